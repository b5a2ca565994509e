"""The normal form of a notebook: what may differ between two runs or two editors is not in it.

Two cells have one text everywhere, and it stands here: the code cell tagged `setup`, and the Markdown cell tagged
`colab` above it. `fill` writes them; a chapter's author only places the tags.
"""

import hashlib
import json

SETUP = """\
# On Colab: install the book's package, leaving torch, numpy and the rest as they are. Elsewhere: nothing to do.
from importlib.util import find_spec

REPOSITORY, BRANCH = "{url}", "{branch}"
if find_spec("google") and find_spec("google.colab"):
    if REPOSITORY.endswith("/OWNER/REPOSITORY"):
        print("This copy does not know its repository's address yet; the README says how to stamp it in.")
    else:
        %pip install -q git+{{REPOSITORY}}@{{BRANCH}}"""

COLAB = (
    "[Open this chapter in Colab]({link}), or in JupyterLab from a checkout. "
    "It runs from top to bottom on a CPU, alone, from an empty runtime."
)

NOTEBOOK_METADATA = ("derived",)
CELL_METADATA = ("derived", "mystnb", "tags")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def text(source):
    """A source or a text of an output as one string, however the file splits it."""
    return source if isinstance(source, str) else "".join(source)


def tags(cell):
    return cell.get("metadata", {}).get("tags", [])


def fill(notebook, path, address):
    """The notebook with its `setup` and `colab` cells in their canonical text; `path` is from the repository's root."""
    canonical = {
        "setup": SETUP.format(url=address.url, branch=address.branch),
        "colab": COLAB.format(link=address.colab(path)),
    }
    for cell in notebook["cells"]:
        for tag in set(tags(cell)) & set(canonical):
            cell["source"] = canonical[tag]
    return normalise(notebook)


def normalise(notebook):
    """The notebook in its normal form; what was given is left as it was."""
    seen = {}
    return {
        "cells": [_cell(cell, seen) for cell in notebook["cells"]],
        "metadata": {
            **_only(notebook.get("metadata", {}), NOTEBOOK_METADATA),
            "kernelspec": KERNEL,
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def dumps(notebook):
    """The bytes of a notebook in normal form, as text."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _only(metadata, names):
    return {name: metadata[name] for name in names if metadata.get(name)}


def _cell(cell, seen):
    source = text(cell["source"]).strip("\n").rstrip()
    # An id made of the content: it survives a new cell above, and an editor's random one never shows in a diff.
    content = hashlib.sha256(f"{cell['cell_type']}\n{source}".encode()).hexdigest()[:8]
    seen[content] = seen.get(content, 0) + 1
    metadata = _only(cell.get("metadata", {}), CELL_METADATA)
    if "tags" in metadata:
        metadata["tags"] = sorted(set(metadata["tags"]))
    normal = {
        "cell_type": cell["cell_type"],
        "id": content if seen[content] == 1 else f"{content}-{seen[content]}",
        "metadata": metadata,
        "source": source.splitlines(keepends=True),
    }
    if cell["cell_type"] == "code":
        count = cell.get("execution_count")
        normal |= {"execution_count": count, "outputs": _outputs(cell.get("outputs", []), count)}
    return normal


def _outputs(outputs, count):
    normal = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            # a kernel may send one print in several pieces
            if normal and normal[-1].get("name") == output["name"]:
                normal[-1]["text"] += text(output["text"])
            else:
                normal.append({"output_type": kind, "name": output["name"], "text": text(output["text"])})
        elif kind == "error":
            # a traceback carries colours, paths and line numbers of one machine
            normal.append({"output_type": kind, "ename": output["ename"], "evalue": output["evalue"], "traceback": []})
        else:
            data = {mime: _data(mime, value) for mime, value in output["data"].items()}
            normal.append({"output_type": kind, "data": data, "metadata": output.get("metadata", {})})
            if kind == "execute_result":
                normal[-1]["execution_count"] = count
    for output in normal:
        if "text" in output:
            output["text"] = output["text"].splitlines(keepends=True)
    return normal


def _data(mime, value):
    if mime.endswith("json"):
        return value
    value = text(value)
    if mime.startswith("image/") and not mime.endswith("svg+xml"):
        return value.replace("\n", "")
    return value.splitlines(keepends=True)
