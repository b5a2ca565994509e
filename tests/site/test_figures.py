"""The numbers that a figure to drag shows are Python's, at several settings, and each input moves them.

A chapter's author adds one row to `tests/site/figures/cNN.py`; the docstring of `tests.site.figures` shows how.
"""

import re

import pytest

from tests.site import dragging
from tests.site.browse import Visit
from tests.site.build import pages
from tests.site.figures import figures
from tests.site.figures.row import difference, read

pytestmark = pytest.mark.browser

ROWS = figures()


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def opened(request, windows, site):
    """A row of the table, and the page that has its figure."""
    visit = Visit(windows["light"], site, request.param.page)
    yield request.param, visit.page
    visit.page.close()


def test_every_figure_with_inputs_has_a_row(built):
    registered = {(row.page, row.name) for row in ROWS}
    for page in pages():
        html = (built / f"{page}.html").read_text(encoding="utf-8")
        for script in html.split('<div id="figure-')[1:]:
            name = re.search(r'data-figure="([^"]*)"', script).group(1)
            if '"bind":{' in script:
                assert name, f"a figure of {page} has inputs and no name: show(chart, alt, name=…)"
                assert (page, name) in registered, f"{page} has a figure {name!r}: add a row to tests/site/figures/"


def test_every_row_has_its_figure(built):
    places = [(row, built / f"{row.page}.html") for row in ROWS]
    missing = [
        f"{row.page}: {row.name}"
        for row, place in places
        if not place.exists() or f'data-figure="{row.name}"' not in place.read_text(encoding="utf-8")
    ]
    assert missing == []


def test_a_row_tries_at_least_three_settings():
    assert [row.name for row in ROWS if len({str(setting) for setting in row.settings}) < 3] == []


def test_a_row_sets_every_input(opened):
    row, page = opened
    assert [set(setting) for setting in row.settings] == [set(dragging.inputs(page, row.name))] * len(row.settings)


def test_every_input_moves_the_drawing_and_the_numbers(opened):
    row, page = opened
    assert dragging.dead_inputs(page, row.name, row.settings) == []


def test_the_numbers_are_those_of_python(opened):
    row, page = opened
    assert wrong_numbers(page, row) == []


def wrong_numbers(page, row):
    """Numbers missing, surplus or other than Python's, at each of a row's settings."""
    found = []
    for setting in row.settings:
        dragging.move(page, row.name, setting)
        shown, expected = dragging.numbers(page, row.name), row.numbers(**setting)
        if set(shown) != set(expected):
            found.append(f"{row.name} shows {sorted(shown)}, and Python gives {sorted(expected)}")
        for number in sorted(set(shown) & set(expected)):
            texts = shown[number] or [""]
            found += [
                f"{row.name} at {setting}: {wrong}" for text in texts if (wrong := difference(text, expected[number]))
            ]
    return found


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("entropy = 7.125 nats", 7.125, 0.0005),
        ("tokens at √d_k = 8 = 16,384", 16384, 0.5),
        ("change = −0.6256", -0.6256, 0.00005),
        ("norm = 1.10e-5", 1.1e-5, 0.5e-7),
        ("norm = 1.10e−5", 1.1e-5, 0.5e-7),
        ("share = 12.5%", 0.125, 0.0005),
    ],
)
def test_a_number_is_read_with_its_precision(text, value, half):
    assert read(text) == (pytest.approx(value, rel=1e-15), pytest.approx(half))


def test_a_number_must_be_rounded_right():
    assert difference("entropy = 7.125 nats", 7.12549) == ""
    assert "should show 7.1256" in difference("entropy = 7.125 nats", 7.1256)
    assert difference("a = NaN", float("nan")) == ""
    assert "should show nan" in difference("a = 0.5", float("nan"))
    assert "should show inf" in difference("a = −∞", float("inf"))
    assert difference("three cards = fit", "fit") == ""
    assert "should say 'fit'" in difference("three cards = do not fit", "fit")
