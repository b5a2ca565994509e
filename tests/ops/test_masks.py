"""Who may read whom: the drawings, the definition in loops, tiles, and sums in which the unread leaves no trace."""

import itertools

import numpy as np
import pytest

from derived.errors import ShapeError
from derived.ops import masks
from derived.ops.masks import cut, may_read, may_read_tile, transposed, weighted_sum
from tests.support.voices import VOICES, to_numpy

NOTHING = {"causal": False, "window": None, "mask": None, "bias": None}


def reads(n, m, array=np.asarray, lead=(), **options):
    return may_read(array(np.ones((*lead, n, 3))), m, **(NOTHING | options))


def by_loops(n, m, causal=False, window=None):
    """Pair by pair: j ≤ i + m − n, and fewer than `window` away."""
    out = np.zeros((n, m), dtype=bool)
    for i, j in np.ndindex(n, m):
        ahead = j - (i + m - n)
        out[i, j] = not (causal and ahead > 0) and not (window is not None and abs(ahead) >= window)
    return out


@pytest.mark.parametrize("array", VOICES)
def test_the_drawings_of_the_docstring(array):
    drawn = {(3, 5, None): "1 1 1 . .|1 1 1 1 .|1 1 1 1 1", (3, 5, 2): ". 1 1 . .|. . 1 1 .|. . . 1 1"}
    drawn[3, 2, None] = ". .|1 .|1 1"
    for (n, m, window), picture in drawn.items():
        rows = picture.split("|")
        allowed = to_numpy(reads(n, m, array, causal=True, window=window))
        np.testing.assert_array_equal(allowed, [[mark == "1" for mark in row.split()] for row in rows])
        for i, row in enumerate(rows):
            assert any(f"i {i}   {row}" in line for line in masks.__doc__.splitlines()), f"not drawn: {row}"


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize(("n", "m"), [(5, 7), (7, 5), (5, 5), (1, 7), (7, 1), (0, 3), (3, 0)])
def test_causal_and_window_are_the_definition(n, m, array):
    for causal, window in ((True, None), (True, 1), (True, 3), (False, 1), (False, 2), (False, 11)):
        allowed = to_numpy(reads(n, m, array, causal=causal, window=window))
        np.testing.assert_array_equal(allowed, by_loops(n, m, causal, window))


def test_all_may_read_all_is_said_by_none():
    assert reads(3, 5) is None and transposed(None) is None


@pytest.mark.parametrize("array", VOICES)
def test_mask_bias_causal_and_window_all_must_agree(array, rng):
    mask, bias = rng.random((2, 1, 3, 5)) < 0.6, np.where(rng.random((7, 3, 5)) < 0.3, -np.inf, 2.0)
    given = {"mask": array(mask), "bias": array(bias)}
    together = to_numpy(reads(3, 5, array, lead=(2, 7), causal=True, window=3, **given))
    np.testing.assert_array_equal(together, by_loops(3, 5, True, 3) & mask & (bias > -np.inf))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (3, 1), (3, 5), (7, 3, 5), (1, 3, 1), (2, 7, 3, 5)])
def test_a_tile_is_the_part_of_the_whole(shape, rng):
    mask = rng.random(shape) < 0.5
    q = np.ones((2, 7, 3, 4))
    for causal, window in itertools.product([False, True], [None, 2]):
        options = {"causal": causal, "window": window, "mask": mask, "bias": None}
        whole = np.broadcast_to(may_read(q, 5, **options), (2, 7, 3, 5))
        for rows, keys in itertools.product([range(0, 2), range(2, 3)], [range(0, 3), range(3, 5)]):
            tile = may_read_tile(q, 5, rows, keys, **options)
            expected = whole[..., rows.start : rows.stop, keys.start : keys.stop]
            np.testing.assert_array_equal(np.broadcast_to(tile, expected.shape), expected)


def test_cutting_leaves_axes_of_one_entry():
    x = np.arange(15).reshape(3, 5)
    np.testing.assert_array_equal(cut(x, range(1, 3), range(2, 4)), [[7, 8], [12, 13]])
    assert cut(x[:1], range(1, 3), range(2, 4)).shape == (1, 2)
    assert cut(x[:, :1], range(1, 3), range(2, 4)).shape == (2, 1)
    assert cut(x[0], range(1, 3), range(2, 4)).shape == (2,)
    assert cut(np.array(1), range(1, 3), range(2, 4)).shape == ()


@pytest.mark.parametrize("array", VOICES)
def test_what_does_not_fit_is_refused_by_a_sentence(array):
    with pytest.raises(ShapeError, match=r"window = 0; a window counts the query itself, so it is at least 1"):
        reads(3, 5, array, window=0)
    with pytest.raises(ShapeError, match=r"mask has shape \(5, 3\), which does not broadcast to \(2, 3, 5\)"):
        reads(3, 5, array, lead=(2,), mask=array(np.ones((5, 3), dtype=bool)))
    with pytest.raises(ShapeError, match=r"bias has shape \(2, 3, 5\), which does not broadcast to \(3, 5\)"):
        reads(3, 5, array, bias=array(np.ones((2, 3, 5))))


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_an_unread_row_adds_nothing_whatever_it_holds(array, poison, rng):
    a, x = rng.random((2, 3, 5)), rng.normal(size=(2, 5, 7))
    allowed = rng.random((3, 5)) < 0.5
    allowed[0, 1], allowed[1, 1] = False, True
    x[1, 1, 2] = poison
    a = np.where(allowed, a, 0)
    y = to_numpy(weighted_sum(array(a), array(x), array(allowed)))
    for b, i, e in np.ndindex(y.shape):
        expected = sum(a[b, i, j] * x[b, j, e] for j in range(5) if allowed[i, j])
        np.testing.assert_allclose(y[b, i, e], expected, rtol=1e-14, atol=1e-14)
    assert np.isfinite(y[1, 0]).all() and not np.isfinite(y[1, 1, 2])
    with np.errstate(invalid="ignore"):
        assert np.isnan(a @ x)[1, 0, 2]  # the plain product does leak: 0 · nan and 0 · ∞


def test_infinities_of_both_signs_meet_only_where_both_are_read():
    x = np.array([[np.inf], [-np.inf], [2.0]])
    allowed = np.array([[True, False, True], [False, True, True], [True, True, True], [False, False, True]])
    with np.errstate(invalid="ignore"):
        y = weighted_sum(np.where(allowed, 0.5, 0), x, allowed)[:, 0]
    np.testing.assert_array_equal(y, [np.inf, -np.inf, np.nan, 1])


@pytest.mark.parametrize("array", VOICES)
def test_without_a_mask_it_is_the_product(array, rng):
    a, x = rng.random((2, 3, 5)), rng.normal(size=(2, 5, 7))
    np.testing.assert_allclose(to_numpy(weighted_sum(array(a), array(x), None)), a @ x, rtol=1e-14, atol=1e-14)
    x[0, 0, 0] = np.nan
    assert np.isnan(to_numpy(weighted_sum(array(a), array(x), None))[0, :, 0]).all()


def test_the_keys_ask_the_same_question():
    for shape in ((), (5,)):  # a mask of one axis, or none, still knows rows from keys
        assert transposed(reads(3, 5, mask=np.ones(shape, dtype=bool))).shape == (*(shape or (1,)), 1)
    allowed = reads(3, 5, causal=True)
    np.testing.assert_array_equal(transposed(allowed), allowed.T)
