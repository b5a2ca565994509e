"""Still figures: a matplotlib figure as an SVG inside the page, with alt text and caption."""

import io
import re
from html import escape

import matplotlib

from derived.figures.shown import NOT_A_FORMULA, Shown, checked_alt, image
from derived.figures.style import STYLE

PIXELS_PER_INCH = 96  # what CSS means by a pixel


def still(fig, alt: str, caption: str = "") -> Shown:
    """Show a matplotlib figure as an SVG whose alt text holds in the book, in JupyterLab, Colab and GitHub alike.

    fig: a `matplotlib.figure.Figure`, as `canvas` returns it. alt: a sentence that says what is to be seen;
    DerivedError where it is missing. caption: plain text under the figure, without formulas.

    The same figure gives the same bytes, whenever it is drawn; the title of the figure states its claim.
    """
    alt = checked_alt(alt)
    svg = tidy(draw(fig))
    width, height = (PIXELS_PER_INCH * inches for inches in fig.get_size_inches())
    below = f'<figcaption style="font-size:0.9em">{escape(caption)}</figcaption>' if caption else ""
    inside = image(svg, alt, width, height)
    return Shown(f'<figure class="derived-still {NOT_A_FORMULA}" style="margin:0">{inside}{below}</figure>', alt)


def draw(fig) -> str:
    """Return the figure as matplotlib's SVG, without the date."""
    with matplotlib.rc_context(STYLE), io.StringIO() as out:
        fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return out.getvalue()


def tidy(svg: str) -> str:
    """Drop what no reader sees, and round path coordinates to hundredths of a point.

    Rounding shortens a figure, and hides the last digits in which two machines may differ.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: _rounded(path.group()), svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _rounded(path: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda x: f"{float(x.group()):.2f}".rstrip("0").rstrip("."), path)
