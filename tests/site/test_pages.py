"""Every page, opened by day, by night and on a telephone, is whole: nothing fails, nothing is fetched, all is drawn."""

import pytest

pytestmark = pytest.mark.browser


def test_nothing_is_complained_of(visit):
    assert visit.complaints == []


def test_nothing_is_fetched_from_elsewhere(visit):
    assert visit.outside() == []


def test_every_formula_is_typeset(visit):
    assert visit.formulas() == []


def test_every_figure_to_drag_is_drawn(visit):
    assert visit.figures() == []


def test_every_picture_says_what_it_shows(visit):
    assert visit.mute() == []


def test_the_page_does_not_scroll_sideways(visit):
    assert visit.too_wide() == []


def test_no_serious_barrier_stands_before_a_reader(visit):
    assert visit.barriers() == []
