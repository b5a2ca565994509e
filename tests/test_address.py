"""The repository's address: one place says it, all others agree, and stamping changes each and can be undone."""

import json
import shutil
import subprocess
import sys

import pytest
from book._tools import address, normal

from tests.support.pages import ROOT

NEW = address.Address("a-reader", "transformers.derived", "trunk")


def carriers(root=ROOT):
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in address.places(root)}


@pytest.fixture
def tree(tmp_path):
    """A copy of every file that carries the address, a notebook among them, with the tools to stamp it."""
    for path in (*address.places(), *(ROOT / "book/_tools").glob("*")):
        if path.is_file():
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": "", "metadata": {"tags": ["colab"]}},
            {"cell_type": "code", "source": "", "metadata": {"tags": ["setup"]}, "execution_count": 1, "outputs": []},
        ]
    }
    place = "book/99-trial.ipynb"
    (tmp_path / place).write_text(normal.dumps(normal.fill(notebook, place, address.current())))
    return tmp_path


def test_every_place_says_what_the_one_place_says():
    here = address.current()
    files = carriers()
    for name in ("_config.yml", "pyproject.toml", "README.md", "CITATION.cff"):
        assert here.url in files[name], f"{name} does not carry {here.url}: run book/_tools/stamp {here.url}"
    for name, text in files.items():
        if name.endswith(".ipynb") and '"setup"' in text:
            assert f'\\"{here.url}\\", \\"{here.branch}\\"' in text, f"{name}: the setup cell has another address"
            assert here.colab(name) in text, f"{name}: the link to Colab has another address"
        if here.stamped:
            left = text.replace('endswith(\\"/OWNER/REPOSITORY\\")', "")
            assert "OWNER/REPOSITORY" not in left or name == "README.md", f"{name} was not stamped"


def test_stamping_changes_every_place_and_can_be_undone(tree):
    old, before = address.current(tree), carriers(tree)
    changed = address.stamp(NEW, tree)
    assert address.current(tree) == NEW
    after = carriers(tree)
    assert {"_config.yml", "pyproject.toml", "README.md", "CITATION.cff", "book/99-trial.ipynb"} <= set(changed)
    for name in changed:
        assert NEW.url in after[name]
    for name, text in after.items():
        left = text.replace('endswith(\\"/OWNER/REPOSITORY\\")', "")
        assert f"{old.owner}/{old.name}" not in left and f"{old.owner}.github.io" not in left, name
    cell = json.loads(after["book/99-trial.ipynb"])["cells"][1]["source"]
    assert f'REPOSITORY, BRANCH = "{NEW.url}", "{NEW.branch}"\n' in cell
    assert address.stamp(NEW, tree) == []
    address.stamp(old, tree)
    assert carriers(tree) == before


def test_the_command_stamps_the_tree_that_it_lies_in(tree):
    url = "https://github.com/a-reader/book.git"
    command = [sys.executable, tree / "book/_tools/stamp"]
    done = subprocess.run([*command, url, "--branch", "trunk"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "README.md" in done.stdout
    assert address.current(tree) == address.Address("a-reader", "book", "trunk")
    again = subprocess.run([*command, url, "--branch", "trunk"], capture_output=True, text=True, timeout=60)
    assert again.stdout == "every file carries https://github.com/a-reader/book already\n"
    refused = subprocess.run([*command, "https://example.org/book"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "the one that Colab can open" in refused.stderr


def test_a_name_that_only_begins_like_ours_is_left_alone():
    old, new = address.UNSTAMPED, NEW
    text = f"{old.url}-fork {old.url}/issues {old.colab('book/x.ipynb')} https://OWNER.github.io/REPOSITORY/"
    expected = (
        f"{old.url}-fork {new.url}/issues "
        "https://colab.research.google.com/github/a-reader/transformers.derived/blob/trunk/book/x.ipynb "
        "https://a-reader.github.io/transformers.derived/"
    )
    assert address.rewrite(text, old, new) == expected
