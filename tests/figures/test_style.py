"""The colours keep their contrast, stay apart for colour-blind readers, and a canvas is drawn in the style."""

import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from derived.figures import COLOURS, GRADIENT, INK, VALUE, canvas
from derived.figures.style import DASHES

# Machado, Oliveira and Fernandes 2009 (doi:10.1109/TVCG.2009.113), severity 1.0, on linear RGB
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, D65


def linear(colour):
    """The three channels of "#rrggbb", linear in light (WCAG 2.1, relative luminance)."""
    channel = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def contrast_to_white(colour):
    return 1.05 / (linear(colour) @ np.array([0.2126, 0.7152, 0.0722]) + 0.05)


def lab(rgb):
    """CIE 1976 L*a*b* of linear sRGB."""
    x = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(x > (6 / 29) ** 3, np.cbrt(x), x * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(one, other, sight):
    return np.linalg.norm(lab(SIGHT[sight] @ linear(one)) - lab(SIGHT[sight] @ linear(other)))


def test_contrast_of_known_colours():
    assert contrast_to_white("#000000") == pytest.approx(21)
    assert contrast_to_white("#767676") == pytest.approx(4.54, abs=0.005)  # WCAG's own example of just enough


@pytest.mark.parametrize("colour", [*COLOURS, INK])
def test_every_colour_is_readable_on_white(colour):
    assert contrast_to_white(colour) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
def test_values_and_gradients_are_told_apart(sight):
    assert apart(VALUE, GRADIENT, sight) > 40


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_colours_look_alike(sight):
    for one, other in itertools.combinations(COLOURS, 2):
        assert apart(one, other, sight) > 12, (one, other)


def test_the_check_of_colours_sees_a_pair_that_is_confused():
    assert apart("#b3261e", "#8a6100", "deuteranopia") < 12 < apart("#b3261e", "#8a6100", "normal")


def test_lines_differ_in_more_than_colour():
    assert len(set(DASHES)) == len(DASHES) == len(COLOURS)


def test_a_canvas_is_a_figure_in_the_style():
    with matplotlib.rc_context():
        fig, axes = canvas(2, 3, width=5, height=2, sharex=True)
        (line,) = axes[0, 0].plot([1, 2])
        axes[0, 0].set_title("A claim")
    assert isinstance(fig, Figure)
    assert axes.shape == (2, 3)
    assert tuple(fig.get_size_inches()) == (5, 2)
    assert line.get_color() == VALUE
    assert axes[0, 0].get_title(loc="left") == "A claim"


def test_a_canvas_is_unknown_to_pyplot_which_would_show_it_a_second_time():
    from matplotlib import pyplot

    with matplotlib.rc_context():
        canvas()
    assert pyplot.get_fignums() == []
