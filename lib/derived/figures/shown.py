"""What a cell returns to be shown: HTML for the page, a sentence for everything else."""

import base64
import re
from html import escape

from derived.errors import DerivedError

# a path or file name is what tools put in when nobody wrote a text
FILE_NAME = re.compile(r"^\S+\.(png|svg|jpe?g|gif|pdf)$|^[./~]\S*$", re.IGNORECASE)
SHORTEST = 20  # letters; shorter texts ("a plot", "figure 3") name a figure and do not say what it shows

# MathJax reads the outputs of a page; a price in dollars inside a figure is no formula
NOT_A_FORMULA = "mathjax_ignore tex2jax_ignore"


class Shown:
    """A figure ready to be shown: a notebook shows its HTML, a terminal its text."""

    def __init__(self, html: str, alt: str):
        self.html = html
        self.alt = alt

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def checked_alt(alt: str) -> str:
    """Return the text without surplus blanks; raise DerivedError where it does not say what the figure shows."""
    text = " ".join(str(alt).split())
    if len(text) < SHORTEST or FILE_NAME.match(text):
        raise DerivedError(
            f"alt = {text!r} does not say what the figure shows; give a sentence of at least {SHORTEST} "
            f"letters that tells a reader who cannot see it what there is to see"
        )
    return text


def image(svg: str, alt: str, width: float, height: float) -> str:
    """Return an `<img>` that carries the SVG inside itself, with its alt text; width and height in CSS pixels.

    An image rather than inline SVG: its ids cannot clash with another figure's, a notebook viewer that strips
    SVG keeps it, and every reader's software knows what alt text is.
    """
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(alt)}" width="{width:.0f}" height="{height:.0f}" '
        f'style="max-width:100%;height:auto;background:#fff" src="data:image/svg+xml;base64,{data}">'
    )
