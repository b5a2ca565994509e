"""Print the bibliography page from references.bib: `python book/_ext/bibliography.py` writes it.

Chapters cite in plain Markdown, which every notebook viewer shows: `[arXiv:1706.03762](https://arxiv.org/abs/1706.03762)`
or `[doi:…](https://doi.org/…)`. A test holds each such address against references.bib, and the page against this file.
"""

import re
from pathlib import Path

BOOK = Path(__file__).parents[1]
SOURCE, PAGE = BOOK / "references.bib", BOOK / "appendix" / "bibliography.md"

HEAD = """# Bibliography

Every work that a chapter leans on, by its first author, with an identifier that does not move.
"""


def entries(text):
    """The fields of each entry by its key; one field a line, its value in braces."""
    return {
        key: dict(re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE))
        for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", text, re.MULTILINE | re.DOTALL)
    }


def addresses(entry):
    """Where the work is found, as (text, address): arXiv, DOI, or the publisher's page where it has neither."""
    found = []
    if "eprint" in entry:
        found.append((f"arXiv:{entry['eprint']}", f"https://arxiv.org/abs/{entry['eprint']}"))
    if "doi" in entry:
        found.append((f"doi:{entry['doi']}", f"https://doi.org/{entry['doi']}"))
    return found or [(entry["url"].split("/")[2], entry["url"])]


def people(authors):
    """Names as a list of words: all of up to three, else the first and "et al."."""
    names = [re.sub(r"[{}]", "", name) for name in authors.split(" and ")]
    if len(names) > 3 or names[-1] == "others":
        return f"{names[0]} et al."
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def line(entry):
    """One work as a line of Markdown."""
    title = re.sub(r"[{}]", "", entry["title"])
    venue = f" {entry['note']}." if "note" in entry else ""
    links = ", ".join(f"[{text}]({address})" for text, address in addresses(entry))
    return f"- {people(entry['author'])} ({entry['year']}). {title}.{venue} {links}"


def page(text):
    """The whole page for the text of a references.bib."""
    works = sorted(
        entries(text).values(), key=lambda work: (people(work["author"]).lower(), work["year"], work["title"])
    )
    return HEAD + "\n" + "\n".join(map(line, works)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
