"""One letter, one meaning: the tables of `derived.shapes` agree with themselves and with every chapter's formulas."""

import re
from collections import Counter

import pytest

from derived.shapes import CHAPTER_LETTERS, LETTERS
from tests.support.pages import chapters, markdown, without_code

COMMON = {*"efijly", "dots", "I", "mathbf 1"}
"""What the notation page explains as signs and indices: e^x, f, i, j, l, y and the identity."""

GREEK = (
    "alpha beta gamma delta kappa lambda mu rho sigma tau theta xi eta phi Delta Lambda Sigma Phi Omega varepsilon ell"
)
ACCENT = r"\\(?:hat|tilde|bar|dot|overline|mathbf)\b"
WORDS = r"\\(?:text|operatorname|mathrm|tag|begin|end)\*?\{[^}]*\}|\\(?:mathsf|mathrm) *\w"
SUBSCRIPTED = r"([A-Za-z])_(?:\{\\text\{(\w+)\}\}|\{?\\(max)\}?|([kv](?![\w'])|[QKVOtqp]\b))"


def formulas(path):
    """The formulas of a page's prose."""
    prose = re.sub(r"`[^`]*`", "", without_code(markdown(path)))
    return [first or second for first, second in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", prose, re.S)]


def letters(tex):
    """The letters of a formula, accents off, `d_model` and its like whole, dX read as X."""
    tex = re.sub(r"(?<![A-Za-z\\])d(?=\\?[A-Za-z(])", " ", tex)  # dX, d(K^T): a gradient
    tex = re.sub(r"\\rVert_F", " ", re.sub(ACCENT, " ", tex))  # Frobenius
    found, tex = re.findall(r"p_k", re.sub(r"p_\d", "p_k", tex)), re.sub(r"p_\d", " ", tex)  # power sums
    named = {row.latex.replace(" ", ""): row.latex for row in (*LETTERS.values(), *CHAPTER_LETTERS) if "_" in row.latex}

    def whole(match):
        if (name := match[0].replace(" ", "")) in named:
            found.append(named[name])
            return " "
        return match[1] + " "

    tex = re.sub(SUBSCRIPTED, whole, tex)
    tex = re.sub(WORDS, " ", tex.replace(r"\mathcal L", r"\mathcal{L}").replace(r"\mathcal{L}", " "))
    found += ["\\" + name for name in re.findall(r"\\([A-Za-z]+)", tex) if name in GREEK.split()]
    tex = re.sub(r"\\[A-Za-z]+", " ", tex)
    return found + re.findall(r"[A-Za-z]", tex)


def number(path):
    return str(int(path.stem.partition("-")[0]))


def unexplained(used, chapter):
    """The letters used that neither the book's table nor the chapter's explains."""
    known = {row.latex for row in LETTERS.values()} | {row.latex for row in CHAPTER_LETTERS if row.kind == chapter}
    return sorted(set(used) - known - COMMON)


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_every_letter_of_a_chapter_is_in_the_table(path):
    used = [letter for tex in formulas(path) for letter in letters(tex)]
    assert unexplained(used, number(path)) == []


def test_a_letter_stands_once_and_no_chapter_gives_it_another_meaning():
    assert [latex for latex, n in Counter(row.latex for row in LETTERS.values()).items() if n > 1] == []
    assert [pair for pair, n in Counter((r.kind, r.latex) for r in CHAPTER_LETTERS).items() if n > 1] == []
    assert {row.latex for row in LETTERS.values()} & {row.latex for row in CHAPTER_LETTERS} == set()


def test_a_chapters_letters_are_used_by_it():
    used = {number(path): {x for tex in formulas(path) for x in letters(tex)} for path in chapters()}
    idle = [(r.kind, r.latex) for r in CHAPTER_LETTERS if "\\hat" not in r.latex and r.latex not in used[r.kind]]
    assert idle == []


@pytest.mark.parametrize(
    ("tex", "finding"),
    [
        (r"\text{pairs}/n = \Omega", [r"\Omega"]),
        (r"d_{\text{model}} + d_{\text{other}} + d_k", ["d"]),
        (r"W_Q^{\mathsf T} + E", ["E"]),
        (r"\partial\mathcal{L}/\partial X = dX, \quad \hat x \le \frac12 \sum_{i} a_{ij} v_j", []),
    ],
)
def test_a_planted_letter_is_found(tex, finding):
    assert unexplained(letters(tex), "3") == finding
