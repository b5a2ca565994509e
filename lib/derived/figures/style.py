"""One style for every figure: colours, sizes, and a canvas to draw on.

Values are blue and gradients red, everywhere. The colours keep a contrast of at least 4.5 to white,
and they stay apart for readers who do not tell red from green; lines should differ in dash or marker too.

Chapter: all of them.
"""

import matplotlib
from matplotlib.figure import Figure

VALUE = "#0b5cad"
"""Blue: what the forward pass computes."""
GRADIENT = "#b3261e"
"""Red: what the backward pass computes."""
INK = "#1f2328"
"""Text and axes."""
COLOURS = (VALUE, GRADIENT, "#127f52", "#831871", "#382610", "#707078")
"""The order in which unnamed lines take their colours: blue, red, green, purple, brown, grey."""

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))

WIDTH, HEIGHT = 6.4, 3.6  # inches; 6.4 inches are 614 pixels on the page, less than its text is wide

STYLE = {
    "figure.facecolor": "white",  # dark pages put outputs on a light card; transparent figures would vanish
    "figure.dpi": 96,
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",  # matplotlib carries this font, so every machine draws the same
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS, linestyle=DASHES),
    "grid.color": "#d9dee3",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "image.cmap": "cividis",  # even in lightness, and the same to readers who confuse red and green
    "svg.fonttype": "path",
    "svg.hashsalt": "derived",  # without it the ids in an SVG are random
}
"""The settings of matplotlib under which the book draws; `canvas` and `still` apply them."""


def canvas(rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT, **subplots):
    """Return a figure and its axes, and put the book's style in force for what is drawn from here on.

    Width and height in inches; `subplots` goes to `Figure.subplots` (sharex, width_ratios, squeeze, …).
    The figure is none of pyplot's, so it is not shown by itself: end the cell with `still(fig, alt=…)`.
    """
    matplotlib.rcParams.update(STYLE)  # a title or legend reads the settings when it is made, not when its axes are
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **subplots)
