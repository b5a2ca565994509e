"""The online softmax: triples that say all of the keys so far, and the laws of their merge."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.online import Partial, finish, merge, partial_attention
from tests.support import loops
from tests.support.voices import VOICES, as_torch, to_numpy


def some(*shape, bound=30):
    return arrays(np.float64, shape, elements=st.floats(-bound, bound))


scores, values = some(3, 7), some(7, 2)


def parts(S, v, cuts, reads=None):
    """One triple for each run of keys between the cuts."""
    edges = [0, *sorted(cuts), S.shape[-1]]
    spans = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return [partial_attention(S[..., s], v[..., s, :], None if reads is None else reads[..., s]) for s in spans]


def empty(array=np.asarray):
    return Partial(array(np.full(3, -np.inf)), array(np.zeros(3)), array(np.zeros((3, 2))))


def assert_same(x, y, **tolerance):
    """Two triples say the same; what they say does not hang on which constant was subtracted."""
    for a, b in zip(finish(x), finish(y), strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), **tolerance)


@pytest.mark.parametrize("array", VOICES)
def test_a_triple_is_the_definition(array, rng):
    S, v = rng.normal(size=(2, 3, 7)), rng.normal(size=(2, 7, 5))
    S[0, 1, 2:] = -np.inf
    x = partial_attention(array(S), array(v))
    for b, i in np.ndindex(2, 3):
        c = max(S[b, i])
        e = [math.exp(s - c) for s in S[b, i]]
        assert to_numpy(x.c)[b, i] == c
        np.testing.assert_allclose(to_numpy(x.l)[b, i], math.fsum(e), rtol=1e-14)
        np.testing.assert_allclose(
            to_numpy(x.o)[b, i], sum(w * row for w, row in zip(e, v[b], strict=True)), rtol=1e-12
        )


@pytest.mark.parametrize("array", VOICES)
def test_finished_it_is_softmax_of_the_scores_times_the_values(array, rng):
    S, v = rng.normal(0, 5, size=(2, 3, 7)), rng.normal(size=(2, 7, 5))
    o, lse = finish(partial_attention(array(S), array(v)))
    np.testing.assert_allclose(to_numpy(o), loops.softmax(S) @ v, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(to_numpy(lse), loops.log_sum_exp(S), rtol=1e-14, atol=1e-14)


@given(scores, values, st.lists(st.integers(0, 7), max_size=4))
def test_any_cut_into_tiles_gives_the_same_and_torch_agrees(S, v, cuts):
    # repeated cuts make tiles without keys
    expected = loops.softmax(S) @ v
    for array in VOICES:
        o, lse = finish(functools.reduce(merge, parts(array(S), array(v), cuts)))
        np.testing.assert_allclose(to_numpy(o), expected, atol=1e-12)
        np.testing.assert_allclose(to_numpy(lse), loops.log_sum_exp(S), atol=1e-12)


@given(scores, values, st.permutations(range(7)))
def test_keys_may_arrive_one_by_one_in_any_order_and_grouping(S, v, order):
    found = [partial_attention(S[:, j : j + 1], v[j : j + 1]) for j in order]
    while len(found) > 1:  # a tree whose shape follows the order
        i = order[len(found) - 1] % (len(found) - 1)
        found[i : i + 2] = [merge(found[i], found[i + 1])]
    assert_same(found[0], partial_attention(S, v), atol=1e-12)


@given(scores, values, st.integers(0, 7), st.integers(0, 7))
def test_the_merge_is_commutative_and_associative_up_to_rounding(S, v, one, other):
    x, y, z = parts(S, v, [one, other])
    for a, b in zip(merge(x, y), merge(y, x), strict=True):
        np.testing.assert_array_equal(a, b)  # a sum of two does not hang on their order, even rounded
    assert_same(merge(merge(x, y), z), merge(x, merge(y, z)), atol=1e-13)


def test_rounding_breaks_associativity_in_float32(rng):
    S, v = rng.normal(0, 3, size=(1021, 30)).astype(np.float32), rng.normal(size=(30, 2)).astype(np.float32)
    x, y, z = parts(S, v, [10, 20])
    left, right = finish(merge(merge(x, y), z))[0], finish(merge(x, merge(y, z)))[0]
    assert (left != right).any()
    np.testing.assert_allclose(left, right, atol=8 * np.finfo(np.float32).eps * abs(v).max())


@given(scores, values)
def test_no_keys_are_neutral_on_both_sides(S, v):
    x = partial_attention(S, v)
    with np.errstate(all="raise", under="ignore"):
        for same in (merge(x, empty()), merge(empty(), x)):
            for a, b in zip(same, x, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("array", VOICES)
def test_no_keys_at_all_give_zeros_and_a_log_sum_exp_of_minus_infinity(array):
    with np.errstate(all="raise"):
        none = partial_attention(array(np.zeros((3, 0))), array(np.zeros((0, 2))))
        hidden = partial_attention(array(np.full((3, 7), -np.inf)), array(np.ones((7, 2))))
        for x in (none, hidden, empty(array), merge(none, hidden), merge(empty(array), empty(array))):
            assert (to_numpy(x.c) == -np.inf).all() and (to_numpy(x.l) == 0).all() and (to_numpy(x.o) == 0).all()
            o, lse = finish(x)
            assert (to_numpy(o) == 0).all() and (to_numpy(lse) == -np.inf).all()


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("junk", [np.nan, np.inf, 7.0])
def test_what_a_triple_of_no_keys_holds_is_not_read(array, junk):
    x = Partial(array(np.array([0.5])), array(np.array([2.0])), array(np.array([[6.0]])))
    nothing = Partial(array(np.array([-np.inf])), array(np.array([junk])), array(np.array([[junk]])))
    with np.errstate(all="raise"):
        for joined in (merge(x, nothing), merge(nothing, x)):
            assert finish(joined)[0] == 3
        both = merge(nothing, nothing)
        assert both.l == 0 and both.o == 0 and finish(both)[0] == finish(nothing)[0] == 0


@pytest.mark.parametrize("far", [1e3, 1e300])
def test_scores_far_apart_do_not_overflow(far):
    low, high = (Partial(np.array([c]), np.array([1.0]), np.array([[o]])) for c, o in ((-far, 5.0), (far, 7.0)))
    with np.errstate(over="raise", invalid="raise"):
        for joined in (merge(low, high), merge(high, low)):
            o, lse = finish(joined)
            assert o == 7 and lse == far


def test_a_low_tile_after_an_empty_one_is_not_measured_from_zero():
    # exp(−1000 − 0) is 0 in float64: an empty tile that claimed a maximum of 0 would erase what follows
    S = np.array([[-np.inf, -1000.0, -1001.0]])
    o, _ = finish(functools.reduce(merge, parts(S, np.array([[9.0], [1.0], [2.0]]), [1])))
    np.testing.assert_allclose(o, [[(1 + 2 * math.exp(-1)) / (1 + math.exp(-1))]], rtol=1e-14)


@pytest.mark.parametrize("array", VOICES)
def test_nan_behind_a_mask_stays_there_and_a_nan_that_is_read_does_not(array):
    S, v = np.zeros((2, 3)), np.array([[2.0], [np.nan], [4.0]])
    reads = np.array([[True, False, True], [True, True, True]])
    S[0, 1] = -np.inf
    o, _ = finish(functools.reduce(merge, parts(array(S), array(v), [1, 2], array(reads))))
    assert to_numpy(o)[0] == 3 and np.isnan(to_numpy(o)[1])


def test_autograd_walks_through_merges(rng):
    S = as_torch(rng.normal(size=(3, 7))).requires_grad_()
    v = as_torch(rng.normal(size=(7, 2)))
    do = as_torch(rng.normal(size=(3, 2)))
    o, _ = finish(functools.reduce(merge, [empty(as_torch), *parts(S, v, [2, 5])]))
    (mine,) = torch.autograd.grad(o, S, do)
    (theirs,) = torch.autograd.grad(torch.softmax(S, -1) @ v, S, do)
    np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-13)


def test_what_does_not_fit_is_refused_by_a_sentence():
    x = partial_attention(np.zeros((3, 7)), np.zeros((7, 2)))
    with pytest.raises(ShapeError, match=r"merge: one triple has o of shape \(3, 2\), the other \(3, 5\); both sum up"):
        merge(x, partial_attention(np.zeros((3, 7)), np.zeros((7, 5))))
    with pytest.raises(ShapeError, match=r"partial_attention: v has m = 5, S had m = 7"):
        partial_attention(np.zeros((3, 7)), np.zeros((5, 2)))
    with pytest.raises(DtypeError, match=r"partial_attention: reads has dtype float64; bool values are expected"):
        partial_attention(np.zeros((3, 7)), np.zeros((7, 2)), np.ones((3, 7)))
