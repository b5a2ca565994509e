"""The book's notebooks and Markdown pages, and what a test asks of their cells."""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"


def pages(kind):
    """The pages of the book that match a pattern, built copies left out."""
    return [p for p in sorted(BOOK.rglob(kind)) if not {"_build", ".ipynb_checkpoints"} & set(p.parts)]


def chapters():
    """The numbered chapters."""
    return [path for path in pages("*.ipynb") if re.match(r"\d\d-", path.name)]


def text(source):
    """A source or an output's text as one string."""
    return source if isinstance(source, str) else "".join(source)


def cells(path, kind):
    """The cells of one kind as (index, source, cell)."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [(i, text(c["source"]), c) for i, c in enumerate(notebook["cells"]) if c["cell_type"] == kind]


def markdown(path):
    """The Markdown of a page, of a notebook's cells one after another."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(source for _, source, _ in cells(path, "markdown"))


def without_code(source):
    """Markdown without its code blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```+|~~~+).*?^\1", "", source, flags=re.M | re.S))


def headings(source):
    """The headings of a Markdown text."""
    return re.findall(r"(?m)^#{1,6}\s+(.+?)\s*$", re.sub(r"(?ms)^```.*?^```", "", source))


def slugs(source):
    """The anchors that MyST gives to headings: lower case, formulas and punctuation left out, repeats numbered."""
    found = []
    for title in headings(source):
        title = re.sub(r"\$[^$]*\$", "", title)
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower().replace(" ", "-"))
        repeats = sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", other) is not None for other in found)
        found.append(f"{slug}-{repeats}" if repeats else slug)
    return set(found)


def defined_in_lib(*packages):
    """The public functions and classes that files of these subpackages define."""
    files = [file for package in packages for file in (ROOT / "lib/derived" / package).rglob("*.py")]
    nodes = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")}
