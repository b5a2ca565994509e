"""Every number in a chapter's prose is shown by an output of the page, value and unit, or declared as given.

    python -m tests.support.prose_numbers book/03-*.ipynb      list the numbers that nothing explains

What counts as a number, and as shown, by these rules:

- Read: Markdown cells, LaTeX and inline code included; not fenced code, links' targets, headings' own numbers, names
  (H100, fp16, GPT-2), subscripts, the sections "Sources" and "Next".
- Let pass: years, labels (chapter 3, (5.3), cell 31, row 1), whole numbers below ten without a unit.
  With a unit (4 ×, 5 %, 2 GiB, 3 cards) a number below ten is a result like any other; so is "four times".
- Shown: an output's number that rounds to it. A decimal of k places must equal an output rounded to k places (one of a
  single digit, 0.7, must stand there as it is, unless "about" comes before it); a whole
  number must stand in an output as it is, unless "about", "≈" or the like comes before it; then a decimal that
  rounds to it, or a number that agrees with it in its digits up to the closing zeros (at least two), is enough.
  A power of ten or two stands for its exact value. An explicit sign must be the output's sign.
- Where: a number of one to three digits without a unit is shown by chance too easily, so an output of its own section
  (`##`) must show it; sections that look back (takeaways, recall, ledger, belief, exercises) and longer numbers are
  compared with the whole chapter.
- Units: a number with a unit needs that unit at the output's number, or else on its line, or else (a table
  whose header names the units) in the same output. GiB is not GB, % is not a fraction, × is not a bare number.
- Given: notebook metadata `derived: {given: ["200 conversations", "80 GB", 0.7]}`. What only stands in the code is not
  shown: print it or declare it. A given number that the prose does not use is an error too.
- Outputs are text, Markdown, LaTeX and HTML tables. Drawings and charts show no number by themselves, nor do cells
  tagged `nbval-ignore-output`, whose outputs nobody compares.
"""

import json
import re
import sys
from decimal import ROUND_HALF_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from html import unescape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.support.text_numbers import Number, claims, numbers, shown

# Sections that look back on the whole chapter.
SUMMARY = r"(?i)takeaway|recall|stops being true|ledger|belief|exercise"


class Problem(NamedTuple):
    """A number that nothing explains."""

    cell: int
    number: Number
    line: str
    reason: str


# --- agreement ---

DIGITS = Context(prec=400)  # the largest float64 has 309 digits before the point


def _rounded(value, places):
    quantum = Decimal(1).scaleb(-places)
    return {value.quantize(quantum, r, DIGITS) for r in (ROUND_HALF_EVEN, ROUND_HALF_UP, ROUND_HALF_DOWN)}


def agrees(claim, output):
    """Whether an output's number is the claimed one."""
    if claim.sign and claim.sign != output.sign and claim.value:
        return False
    if claim.value == output.value:
        return True
    if claim.exact:  # all digits are meant: the output may have rounded them
        digits = len(output.value.as_tuple().digits)
        return digits >= 3 and output.value in _rounded(claim.value, output.places)
    if not claim.whole:
        if len(claim.value.as_tuple().digits) == 1 and not claim.about:
            return False  # 0.7 without "about" would be any of 0.65 to 0.75
        return output.places >= claim.places and claim.value in _rounded(output.value, claim.places)
    if not claim.about:
        return False
    zeros = len(str(int(claim.value))) - len(str(int(claim.value)).rstrip("0"))
    zeros = max(0, min(zeros, len(str(int(claim.value))) - 2))
    return claim.value in _rounded(output.value, 0) | _rounded(output.value, -zeros)


def explained(claim, outputs, given):
    """None when the number is shown or given, else a reason."""
    if any(claim.value == g.value and (not claim.unit or claim.unit == g.unit) for g in given):
        return None
    same = [output for output in outputs if agrees(claim, output)]
    if not same:
        return "no output shows it, and it is not given"
    if not claim.unit or any(claim.unit == (o.unit or claim.unit) and (o.unit or claim.unit in o.nearby) for o in same):
        return None
    units = sorted({o.unit or "no unit" for o in same})
    return f"outputs show the value with {', '.join(units)}, not with {claim.unit}"


# --- chapters ---


def _tables(html):
    """The text of an HTML output's tables; what is drawn (svg, script) is no text."""
    html = re.sub(r"(?is)<(svg|script|style|head)\b.*?</\1>", " ", html)
    tables = re.findall(r"(?is)<table\b.*?</table>", html)
    rows = [re.sub(r"(?i)</t[dh]>", "  ", row) for table in tables for row in re.split(r"(?i)</tr>", table)]
    return "\n".join(" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows)


class Chapter:
    """A notebook: its prose, the numbers its outputs show, and those it declares as given."""

    def __init__(self, notebook, name="notebook"):
        self.name = name
        cells = [(i, c["cell_type"], "".join(c["source"]), c) for i, c in enumerate(notebook["cells"])]
        self.prose = [(i, source) for i, kind, source, _ in cells if kind == "markdown" and not _is_last(cells, i)]
        self.sections = _sections(cells)
        self.shown, self.here = [], {}
        for i, kind, _, cell in cells:
            if kind == "code" and "nbval-ignore-output" not in _tags(cell):
                found = _of_outputs(cell["outputs"])
                self.shown += found
                self.here.setdefault(self.sections[i][-1], []).extend(found)
        declared = notebook["metadata"].get("derived", {}).get("given", [])
        self.given = [n for item in declared for n in numbers(str(item))]

    @classmethod
    def read(cls, path):
        return cls(json.loads(Path(path).read_text(encoding="utf-8")), Path(path).name)

    def claims(self):
        """Every (cell, number) that must be explained."""
        return [(index, number) for index, source in self.prose for number in claims(source)]

    def problems(self):
        """The numbers of the prose that no output shows and that are not given."""
        return [problem for index, source in self.prose for problem in self.problems_of(source, index)]

    def problems_of(self, source, index=0):
        """The same for one text."""
        touched = self.sections.get(index, [""])
        near = (
            self.shown if re.search(SUMMARY, " ".join(touched)) else [n for s in touched for n in self.here.get(s, [])]
        )
        found = [(n, explained(n, near if _common(n) else self.shown, self.given)) for n in claims(source)]
        return [Problem(index, number, _context(source, number), reason) for number, reason in found if reason]

    def unused(self):
        """The given numbers that the prose does not use."""
        used = {number.value for _, source in self.prose for number in numbers(source)}
        return [number.text for number in self.given if number.value not in used]


def _common(number):
    """Whether so many numbers look like this one that it proves little: fewer than four digits that count, no unit."""
    return not number.unit and not number.exact and sum(map(str.isdecimal, number.text.lstrip("0."))) < 4


def _sections(cells):
    """Cell to the titles of the sections (## headings) that it touches, the one it ends in last."""
    found, current = {}, ""
    for index, kind, source, _ in cells:
        titles = re.findall(r"(?m)^##\s+(.*)$", source) if kind == "markdown" else []
        starts = bool(re.match(r"##\s", source))
        found[index] = ([] if starts else [current]) + titles
        current = found[index][-1]
    return found


def _is_last(cells, index):
    """Whether the cell lies under the heading "Sources" or "Next"."""
    for _, kind, source, _ in reversed(cells[:index]):
        headings = re.findall(r"(?m)^#{1,6}\s+(.*)$", source) if kind == "markdown" else []
        if headings:
            return bool(re.search(r"\b(Sources|Next)\b", headings[-1])) and not re.match(r"#", cells[index][2])
    return False


def _tags(cell):
    return cell["metadata"].get("tags", [])


def _of_outputs(outputs):
    found = []
    for output in outputs:
        if output["output_type"] == "stream":
            found += shown("".join(output["text"]))
        for mime, value in output.get("data", {}).items():
            text = "".join(value) if isinstance(value, list) else value
            if mime == "text/plain":
                found += shown(text)
            elif mime in ("text/markdown", "text/latex"):
                found += shown(text, mask=True)
            elif mime == "text/html":
                found += shown(_tables(text))
    return found


def _context(source, number):
    start = source.rfind("\n", 0, number.start) + 1
    end = source.find("\n", number.end)
    line = source[start : end if end >= 0 else len(source)]
    at = number.start - start
    return line[max(0, at - 50) : at + 50].strip()


def planted(chapter, rng, count):
    """`count` seeded pairs of (what was changed, whether it was caught): one digit of one result that is not given."""
    sources, given = dict(chapter.prose), {number.value for number in chapter.given}
    known = {index: {p.number.start for p in chapter.problems_of(source, index)} for index, source in chapter.prose}
    results = [(index, n) for index, n in chapter.claims() if n.value not in given]
    sound = [(index, n) for index, n in results if n.start not in known[index] and re.search(r"\d", n.text)]
    for _ in range(count if sound else 0):
        index, number = sound[rng.integers(len(sound))]
        places = [number.start + i for i, sign in enumerate(number.text) if sign.isdecimal()]
        at = places[rng.integers(len(places))]
        leading = at == places[0] and len(places) > 1
        others = [d for d in "0123456789"[leading:] if d != sources[index][at]]
        changed = sources[index][:at] + others[rng.integers(len(others))] + sources[index][at + 1 :]
        change = f"{number.text} -> {changed[number.start : number.end]}"
        yield change, len(chapter.problems_of(changed, index)) > len(known[index])


def main(paths):
    """Print what nothing explains, and how many of 200 planted digits are caught; 1 if there is anything to mend."""
    total = 0
    for path in paths:
        chapter = Chapter.read(path)
        problems, unused, count = chapter.problems(), chapter.unused(), len(chapter.claims())
        for p in problems:
            print(f"{chapter.name} cell {p.cell}: {p.number.text} {p.number.unit}: {p.reason}\n    … {p.line} …")
        for given in unused:
            print(f"{chapter.name}: {given!r} is declared as given and not used by the prose")
        caught = [hit for _, hit in planted(chapter, np.random.default_rng(11), 200)]
        bad = len(problems) + len(unused)
        print(f"{chapter.name}: {count} numbers in the prose, {len(chapter.given)} given, {bad} to mend;", end=" ")
        print(f"{sum(caught)} of {len(caught)} planted digits caught")
        total += bad
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
