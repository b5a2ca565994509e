"""A still figure is the same bytes every time, carries its text everywhere, and refuses to be mute."""

import base64
import re
from xml.etree import ElementTree

import pytest

from derived.errors import DerivedError
from derived.figures import canvas, still
from derived.figures.stills import tidy

ALT = 'A line that rises from "one" to two, while a < b.'


def drawing():
    fig, ax = canvas()
    ax.plot([1, 2], [1.23456789, 2], label=r"$\sqrt{d_k}$")
    ax.set_title("The line rises")
    ax.legend()
    return fig


def svg_of(shown):
    return base64.b64decode(re.search(r"base64,([^\"]+)", shown.html).group(1)).decode()


def test_the_same_figure_gives_the_same_bytes():
    assert still(drawing(), ALT).html == still(drawing(), ALT).html


def test_another_figure_gives_other_bytes():
    other = drawing()
    other.axes[0].set_title("The line falls")
    assert still(other, ALT).html != still(drawing(), ALT).html


def test_the_text_is_in_the_image_and_escaped():
    html = still(drawing(), ALT)._repr_html_()
    assert 'alt="A line that rises from &quot;one&quot; to two, while a &lt; b."' in html
    assert repr(still(drawing(), ALT)) == f"Figure: {ALT}"


def test_the_image_is_well_formed_and_dated_by_nothing():
    svg = svg_of(still(drawing(), ALT))
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10
    assert not re.search(r"date|20\d\d-\d\d-\d\d|Matplotlib v", svg)


def test_a_caption_stands_under_the_image():
    assert "<figcaption" not in still(drawing(), ALT).html
    assert ">a &amp; b</figcaption>" in still(drawing(), ALT, caption="a & b").html


@pytest.mark.parametrize(
    "alt", ["", "   ", "a plot", "figure-03-spread-of-scores.svg", "./images/spread-of-the-scores"]
)
def test_a_figure_without_a_text_that_says_something_is_refused(alt):
    with pytest.raises(DerivedError, match="does not say what the figure shows"):
        still(drawing(), alt)


def test_only_path_coordinates_are_rounded():
    svg = '<?xml version="1.0"?>\n<svg>\n  <!-- a -->\n  <metadata>x</metadata>\n'
    svg += '  <path id="p" d="M 1.23456 -0.00123 L 2 3.5000"/>\n  <g transform="scale(0.015625)"/>\n</svg>\n'
    assert tidy(svg).split("\n") == [
        "<svg>",
        '<path id="p" d="M 1.23 -0 L 2 3.5"/>',
        '<g transform="scale(0.015625)"/>',
        "</svg>",
    ]


def test_rounding_moves_no_coordinate_by_more_than_half_a_hundredth():
    rough = drawing()
    raw, short = (re.findall(r' d="([^"]*)"', text) for text in (draw_raw(rough), tidy(draw_raw(rough))))
    assert len(raw) == len(short)
    number = re.compile(r"-?\d+\.?\d*")
    for long, brief in zip(raw, short, strict=True):
        for x, y in zip(number.findall(long), number.findall(brief), strict=True):
            assert abs(float(x) - float(y)) <= 0.005 + 1e-9


def draw_raw(fig):
    from derived.figures.stills import draw

    return draw(fig)
