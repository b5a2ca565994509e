"""The drawn graph: every number of the trace in its colour, both directions of every edge, nothing over anything."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

from derived.errors import ShapeError
from derived.figures import graph
from derived.figures.style import GRADIENT, VALUE
from derived.ops.attention import attention_trace

Q = np.array([[1.0, 0], [-1, 1]])
K = np.array([[1.0, 1], [0, 2], [2, -1]])
V = np.array([[1.0, 0, 2], [3, 1, 0], [0, 2, -1]])
DO = np.array([[1.0, 2, 0], [0, -1, 1]])


@pytest.fixture
def drawn():
    return graph.attention_graph(Q, K, V, DO, "A title that states the claim")


def texts(fig, colour):
    return [text for text in fig.axes[0].texts if to_hex(text.get_color()) == colour]


def numbers(fig, colour):
    """The numbers in one colour, in the order in which they are drawn."""
    lines = [text.get_text() for text in texts(fig, colour) if "$" not in text.get_text()]
    return [float(word.replace("−", "-")) for line in lines for word in line.split()]


def test_all_values_are_blue_and_all_gradients_red(drawn):
    t = attention_trace(Q, K, V, DO)
    values = [Q, K, V, t.S, t.S_scaled, t.A, t.O, np.sum(t.O * DO)]
    gradients = [t.dQ, t.dK, t.dV, t.dS, t.dS_scaled, t.dA, t.dO, 1.0]
    for colour, arrays in ((VALUE, values), (GRADIENT, gradients)):
        wanted = np.concatenate([np.ravel(x) for x in arrays])
        np.testing.assert_allclose(numbers(drawn, colour), wanted, rtol=0, atol=0.5e-4)


def test_each_node_carries_the_formulas_with_the_numbers_of_their_equations(drawn):
    formulas = " ".join(text.get_text() for text in drawn.axes[0].texts if "$" in text.get_text())
    found = sorted(map(int, re.findall(r"\(5\.(\d+)\)", formulas)))
    assert found == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11]  # (5.7) is the Jacobian inside (5.8)


def test_each_edge_goes_both_ways(drawn):
    arrows = [patch for patch in drawn.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    down = [a for a in arrows if to_hex(a.get_edgecolor()) == VALUE]
    up = [a for a in arrows if to_hex(a.get_edgecolor()) == GRADIENT]
    assert len(down) == len(up) == 7
    assert {type(a.get_arrowstyle()).__name__ for a in down} == {"CurveFilledB"}  # head at the end
    assert {type(a.get_arrowstyle()).__name__ for a in up} == {"CurveFilledA"}  # head at the start


def crowded(fig):
    """Pairs of texts that overlap, and texts that lie in no box."""
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw(renderer)
    boxes = [p.get_window_extent(renderer) for p in fig.axes[0].patches if isinstance(p, FancyBboxPatch)]
    areas = [text.get_window_extent(renderer).shrunk(0.96, 0.8) for text in fig.axes[0].texts]
    over = [(a, b) for a, b in itertools.combinations(areas, 2) if a.overlaps(b)]
    within = [any(b.x0 <= a.x0 and a.x1 <= b.x1 and b.y0 <= a.y0 and a.y1 <= b.y1 for b in boxes) for a in areas]
    return over, within.count(False)


@pytest.mark.parametrize("factor", [1, -30])
def test_texts_stay_in_their_boxes_and_off_each_other(factor):
    over, outside = crowded(graph.attention_graph(Q, factor * K, factor * V, DO, "A title that states the claim"))
    assert not over
    assert outside == 0


def test_the_layout_check_sees_boxes_that_are_too_narrow(monkeypatch):
    monkeypatch.setattr(graph, "CHARACTER", graph.CHARACTER * 0.7)
    over, outside = crowded(graph.attention_graph(Q, K, V, DO, "A title that states the claim"))
    assert over and outside


def test_a_long_title_widens_the_figure():
    fig = graph.attention_graph(Q, K, V, DO, "A title that goes on and on " * 4)
    renderer = FigureCanvasAgg(fig).get_renderer()
    title = next(t for t in fig.findobj(Text) if t.get_text().startswith("A title")).get_window_extent(renderer)
    boxes = [p.get_window_extent(renderer) for p in fig.axes[0].patches if isinstance(p, FancyBboxPatch)]
    assert title.x1 > max(box.x1 for box in boxes)  # else nothing is tested
    assert fig.bbox.x0 <= title.x0 and title.x1 <= fig.bbox.x1


def test_boxes_do_not_touch(drawn):
    boxes = [p.get_window_extent() for p in drawn.axes[0].patches if isinstance(p, FancyBboxPatch)]
    assert len(boxes) == 8
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.parametrize("q", [Q[None], np.ones((5, 2))])
def test_what_does_not_fit_on_a_page_is_refused_by_a_sentence(q):
    with pytest.raises(ShapeError, match=r"q has shape .* one head of a small example"):
        graph.attention_graph(q, K, V, DO, "A title")


def test_a_number_is_written_with_four_decimals_a_whole_matrix_with_none():
    assert graph.written([[1.0, -2.0], [10.0, 0.0]]) == [" 1  −2", "10   0"]
    assert graph.written([[0.25, -1.0]]) == [" 0.2500  −1.0000"]
