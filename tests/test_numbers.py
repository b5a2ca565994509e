"""No number without a computation: the prose of every chapter against its outputs, and the check against itself."""

import numpy as np
import pytest

from tests.support.pages import chapters
from tests.support.prose_numbers import Chapter, planted
from tests.support.text_numbers import claims

CHAPTERS = chapters()
PLANTED = 2400


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_number_of_the_prose_is_shown_or_given(path):
    chapter = Chapter.read(path)
    problems = [f"cell {p.cell}: {p.number.text} {p.number.unit}: {p.reason}: … {p.line} …" for p in chapter.problems()]
    assert not problems, "\n" + "\n".join(problems)
    assert not chapter.unused(), f"declared as given, and not used by the prose: {chapter.unused()}"
    assert chapter.claims(), "a chapter without a number in its prose?"


@pytest.mark.skipif(not CHAPTERS, reason="no chapters")
def test_a_changed_digit_is_caught(capsys):
    chapters = [Chapter.read(path) for path in CHAPTERS]
    rng = np.random.default_rng(11)
    share = -(-PLANTED // len(chapters))
    caught = [hit for chapter in chapters for _, hit in planted(chapter, rng, share)]
    line = f"numbers: {sum(caught)} of {len(caught)} planted digits caught, {100 * np.mean(caught):.1f} %"
    with capsys.disabled():
        print(f"\n{line}")
    assert len(caught) >= 200 and np.mean(caught) >= 0.95, line


READ = {
    "The core grows ×4, the FFN 2×, the layer $2.4\\times$.": ["4 ×", "2 ×", "2.4 ×"],
    "a $n \\times 64$ matrix, 2 × 3, 64×65": ["64", "64", "65"],
    "$10^9$ bytes, 2⁻¹⁶, 1.1e−5, $1.1\\times10^{-5}$, 7 billion": [
        "1000000000 byte",
        "0.0000152587890625",
        "0.000011",
        "0.000011",
        "7000000000",
    ],
    "16,384 and $16{,}384$ and $16\\,384$": ["16384", "16384", "16384"],
    "By (5.3), chapter 5, chapters 10, 11 and 13, cell 31 and row 1, in 2017, 2048 tokens": ["2048"],
    "Llama-2-7B in fp16 on an H100 has 7B, the 3rd, GPT-2, $x_{12}$": [],
    "80 GB, 80GB, an 80-GB card, $213.04\\ \\text{GiB}$": ["80 GB", "80 GB", "80 GB", "213.04 GiB"],
    "[1000, 1002] becomes [−2, 0], and by −0.3128 per step": ["1000", "1002", "-0.3128"],
    "n − 16 of 61–63": ["16", "61", "63"],
    "at 90 %, 90% or $90\\,\\%$": ["90 %", "90 %", "90 %"],
    "four times, two rows, fifty talks, three cards, thirty-two": ["4 ×", "50", "3 card", "32"],
    "two of nine, 3 heads, one card": [],
    "`x = 0.25` of `float32`": ["0.25"],
    "$0.7^{32}$ and $x^{32}$ and $d^2$": ["0.7", "32", "32"],
    "$\\begin{pmatrix} 0.5 & 1\\\\0.25 & 12 \\end{pmatrix} \\tag{5.13}$": ["0.5", "0.25", "12"],
    "```python\nx = 99\n```\n## 12. Title of 77\n11. item 66\n": ["77", "66"],
    "[a link](03-scaling.ipynb#cell-31) to arXiv:1706.03762\n\n## Sources\n\nPages 5998–6008": [],
}


@pytest.mark.parametrize("text", READ, ids=lambda text: text[:30])
def test_numbers_are_read_from_prose(text):
    assert [f"{n.sign}{n.value:f} {n.unit}".strip() for n in claims(text)] == READ[text]


def notebook(prose, output, given=(), mime=None):
    """A chapter of one sentence and one output."""
    shown = {"output_type": "stream", "name": "stdout", "text": output}
    if mime:
        shown = {"output_type": "display_data", "data": {mime: output}, "metadata": {}}
    cells = [
        {"cell_type": "markdown", "source": prose, "metadata": {}},
        {"cell_type": "code", "source": "", "metadata": {}, "outputs": [shown]},
    ]
    return Chapter({"cells": cells, "metadata": {"derived": {"given": list(given)}}})


TABLE = "<table><tr><th>cache GiB</th><th>cards</th></tr><tr><td>213.04</td><td>4</td></tr></table>"
AGREE = [
    ("0.67", "0.6698"),
    ("0.6698", "[[0.6698 0.3302]]"),
    ("0.50", "0.5000"),
    ("1,242 tokens", "1242"),
    ("about 1,242", "1242.3"),
    ("≈ 295", "295.2"),
    ("about 300", "295"),
    ("6.7 billion", "6,738,415,616"),
    ("$2^{30}$", "1073741824"),
    ("2⁻¹⁶", "1.526e-05"),
    ("−0.6256", "-0.6256"),
    ("0.6256", "-0.6256"),
    ("213.04 GiB", "total: 213.04 GiB"),
    ("213.04 GiB", "total/GiB   cards\n213.04      4"),
    ("×2.4", "ratio 2.400x"),
    ("90 %", "share 90.0%"),
    ("200", "200.0"),
    ("four cards", "cards: 4"),
]
DIFFER = [
    ("0.68", "0.6698"),
    ("0.6698", "0.67"),
    ("0.670", "0.6698 "[:4]),
    ("1,242 tokens", "1242.3"),
    ("1,243 tokens", "1242"),
    ("about 400", "295"),
    ("6.8 billion", "6,738,415,616"),
    ("$2^{31}$", "1073741824"),
    ("2⁻¹⁷", "1.526e-05"),
    ("−0.6256", "0.6256"),
    ("213.04 GB", "total: 213.04 GiB"),
    ("213.04 GB", "total/GiB   cards\n213.04      4"),
    ("213.04 GiB", "213.04"),
    ("×2.4", "ratio 2.400"),
    ("90 %", "share 0.90"),
    ("four cards", "cards: 3"),
    ("four times", "cards: 4"),
    ("thirty-three", "32"),
    ("0.7", "0.68"),
    ("10^4", "18**4"),
    ("18^4", "10000"),
    ("of 2018 tokens", "2048"),
]


@pytest.mark.parametrize(("prose", "output"), AGREE)
def test_a_shown_number_is_accepted(prose, output):
    assert notebook(prose, output).claims()
    assert not notebook(prose, output).problems()


@pytest.mark.parametrize(("prose", "output"), DIFFER)
def test_a_number_that_no_output_shows_is_refused(prose, output):
    assert notebook(prose, output).problems()


def test_a_table_shows_its_numbers_and_a_drawing_does_not():
    assert not notebook("213.04 GiB", TABLE, mime="text/html").problems()
    assert notebook("213.04 GiB", f"<svg><text>213.04 GiB</text></svg>{TABLE[:7]}</table>", mime="text/html").problems()


def test_a_short_number_is_shown_in_its_own_section():
    def page(*prose):
        cells = [{"cell_type": "markdown", "source": source, "metadata": {}} for source in prose]
        out = {"output_type": "stream", "name": "stdout", "text": "64 and 1234"}
        cells.insert(1, {"cell_type": "code", "source": "", "metadata": {}, "outputs": [out]})
        return Chapter({"cells": cells, "metadata": {}})

    assert not page("## One\n\nWidth 64.", "and 64 again").problems()
    assert page("## One", "## Two\n\nWidth 64.").problems()
    assert not page("## One", "## Two\n\nIn all 1234.").problems()
    assert not page("## One", "## Takeaways\n\nWidth 64.").problems()


def test_a_given_number_needs_no_output_but_must_be_used():
    assert not notebook("80 GB", "", given=["80 GB"]).problems()
    assert notebook("81 GB", "", given=["80 GB"]).problems()
    assert notebook("80 GiB", "", given=["80 GB"]).problems()
    assert notebook("80 GB", "", given=["80 GB", "n = 64"]).unused() == ["64"]
