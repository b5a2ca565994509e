"""Each work has an identifier that does not move, the page shows them all, and chapters cite nothing else."""

import json
import re
import runpy

import pytest

from tests.site.build import ROOT

tool = runpy.run_path(str(ROOT / "book/_ext/bibliography.py"))
TEXT = (ROOT / "book/references.bib").read_text(encoding="utf-8")
ENTRIES = tool["entries"](TEXT)
NEITHER = {"glorot2010"}  # the proceedings give neither; their own address stands in

ARXIV = re.compile(r"https?://arxiv\.org/(?:abs|pdf)/([\w.\-/]+?)(?:v\d+)?(?:\.pdf)?(?=[)\s>\"\\]|$)")
DOI = re.compile(r"https?://(?:dx\.)?doi\.org/([^)\s>\"\\]+)")


def cited(text):
    """The identifiers that a text links to."""
    return {f"arXiv:{found}" for found in ARXIV.findall(text)} | {f"doi:{found}".lower() for found in DOI.findall(text)}


def known():
    texts = [text for entry in ENTRIES.values() for text, _ in tool["addresses"](entry)]
    return {text if text.startswith("arXiv") else text.lower() for text in texts}


def chapters():
    """The book's sources: its Markdown pages and notebooks."""
    files = [file for kind in ("*.md", "*.ipynb") for file in (ROOT / "book").rglob(kind)]
    return sorted(file for file in files if file.parent.name in ("book", "appendix"))


def prose(file):
    """The Markdown of a chapter."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_no_entry_is_lost_in_reading():
    assert len(ENTRIES) == len(re.findall(r"^@", TEXT, re.MULTILINE)) >= 40


@pytest.mark.parametrize("key", ENTRIES)
def test_a_work_has_people_title_year_and_an_identifier(key):
    entry = ENTRIES[key]
    assert {"author", "title", "year"} <= set(entry)
    assert re.fullmatch(r"(1[89]|20)\d\d", entry["year"])
    if key in NEITHER:
        assert entry["url"].startswith("https://")
    else:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.get("eprint", "0000.00000"))
        assert re.fullmatch(r"10\.\d{4,}/\S+", entry.get("doi", "10.0000/x"))
        assert "eprint" in entry or "doi" in entry


def test_an_arxiv_number_is_of_the_year_that_is_given():
    wrong = [
        key
        for key, entry in ENTRIES.items()
        if "eprint" in entry and not 0 <= int(entry["year"]) - (2000 + int(entry["eprint"][:2])) <= 1
    ]
    assert wrong == []


def test_no_work_stands_twice():
    identifiers = [text for entry in ENTRIES.values() for text, _ in tool["addresses"](entry)]
    assert sorted(identifiers) == sorted(set(identifiers))


def test_the_page_is_the_one_that_the_references_give():
    assert tool["PAGE"].read_text(encoding="utf-8") == tool["page"](TEXT), "run python book/_ext/bibliography.py"


@pytest.mark.parametrize("file", chapters(), ids=lambda file: file.stem)
def test_a_chapter_cites_what_the_bibliography_has(file):
    assert sorted(cited(prose(file)) - known()) == []


def test_citations_are_read():
    text = "[a](https://arxiv.org/abs/1706.03762v5), [b](https://doi.org/10.1137/1.9780898717761), https://arxiv.org/pdf/2205.14135.pdf"
    assert cited(text) == {"arXiv:1706.03762", "doi:10.1137/1.9780898717761", "arXiv:2205.14135"}
    assert sorted(cited("[c](https://arxiv.org/abs/9999.99999)") - known()) == ["arXiv:9999.99999"]
