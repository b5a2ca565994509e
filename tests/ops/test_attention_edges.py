"""The edges of attention, asked of the full form and of the tiled one: empty, masked, poisoned, strided, extreme."""

import functools
import math

import numpy as np
import pytest
import torch

from derived.ops.attention import attention_vjp
from derived.ops.tiled import tiled_attention_vjp
from tests.support import loops
from tests.support.attention_cases import OPTIONS, options, qkv, spoken
from tests.support.precision import check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

FORMS = {"full": attention_vjp, "tiled": functools.partial(tiled_attention_vjp, B_q=2, B_t=3)}
each_form = pytest.mark.parametrize("f_vjp", FORMS.values(), ids=FORMS)
both_voices = pytest.mark.parametrize("array", VOICES)


def ones(array, *shape):
    return array(np.ones(shape))


@both_voices
@each_form
def test_no_keys_give_zeros_and_no_queries_give_nothing(f_vjp, array):
    with np.errstate(all="raise"):
        for given in OPTIONS.values():
            given = {key: x for key, x in given.items() if x is not True or key == "causal"}
            o, pullback = f_vjp(ones(array, 2, 5, 3), ones(array, 2, 0, 3), ones(array, 2, 0, 11), **given)
            assert o.shape == (2, 5, 11) and (to_numpy(o) == 0).all()
            dq, dk, dv = pullback(ones(array, 2, 5, 11))
            assert (to_numpy(dq) == 0).all() and dk.shape == (2, 0, 3) and dv.shape == (2, 0, 11)
            o, pullback = f_vjp(ones(array, 2, 0, 3), ones(array, 2, 7, 3), ones(array, 2, 7, 11), **given)
            assert o.shape == (2, 0, 11)
            dq, dk, dv = pullback(o)
            assert dq.shape == (2, 0, 3) and (to_numpy(dk) == 0).all() and (to_numpy(dv) == 0).all()


@both_voices
@each_form
def test_no_sequences_no_heads_and_no_widths(f_vjp, array, rng):
    o, pullback = f_vjp(ones(array, 0, 5, 3), ones(array, 0, 7, 3), ones(array, 0, 7, 11), causal=True)
    assert o.shape == (0, 5, 11) and [d.shape[0] for d in pullback(o)] == [0, 0, 0]
    v = rng.normal(size=(7, 11))
    o, pullback = f_vjp(ones(array, 5, 0), ones(array, 7, 0), array(v))  # nothing to compare: an even average
    np.testing.assert_allclose(to_numpy(o), np.broadcast_to(v.mean(0), (5, 11)), rtol=1e-12, atol=1e-14)
    assert pullback(o)[0].shape == (5, 0)
    o, pullback = f_vjp(ones(array, 5, 3), ones(array, 7, 3), ones(array, 7, 0))
    assert o.shape == (5, 0) and (to_numpy(pullback(o)[0]) == 0).all()


@both_voices
@each_form
def test_one_key_is_the_whole_answer_and_teaches_only_its_value(f_vjp, array, rng):
    q, k, v, do = (rng.normal(size=s) for s in [(2, 5, 3), (2, 1, 3), (2, 1, 11), (2, 5, 11)])
    o, pullback = f_vjp(array(q), array(k), array(v))
    np.testing.assert_allclose(to_numpy(o), np.broadcast_to(v, (2, 5, 11)), rtol=1e-15)
    dq, dk, dv = map(to_numpy, pullback(array(do)))
    np.testing.assert_allclose(dq, 0, atol=1e-14)
    np.testing.assert_allclose(dk, 0, atol=1e-14)
    np.testing.assert_allclose(dv, do.sum(1, keepdims=True), rtol=1e-12, atol=1e-13)


@both_voices
@pytest.mark.parametrize("by", ["mask", "bias", "causal", "window"])
@each_form
def test_a_query_that_may_read_nothing_gives_zeros_silently_and_passes_none(f_vjp, by, array, rng):
    if by == "causal":
        n, m, given, silent = 7, 5, {"causal": True}, [0, 1]
    elif by == "window":
        n, m, given, silent = 7, 2, {"window": 3}, [0, 1, 2]  # query i stands at i − 5
    else:
        n, m, silent = 3, 5, [1]
        reads = np.ones((3, 5), dtype=bool)
        reads[1] = False
        given = {"mask": reads} if by == "mask" else {"bias": np.where(reads, 0.0, -np.inf)}
    q, k, v, do = (rng.normal(size=s) for s in [(2, n, 3), (2, m, 3), (2, m, 11), (2, n, 11)])
    with np.errstate(all="raise"):
        o, pullback = f_vjp(array(q), array(k), array(v), **spoken(array, given))
        dq, dk, dv = map(to_numpy, pullback(array(do)))
    np.testing.assert_allclose(to_numpy(o), loops.attention(q, k, v, **given), rtol=1e-12, atol=1e-14)
    assert (to_numpy(o)[:, silent] == 0).all() and (dq[:, silent] == 0).all()
    others = [i for i in range(n) if i not in silent]
    assert (to_numpy(o)[:, others] != 0).all() and (dq[:, others] != 0).any()
    # what reaches keys and values comes from the other queries alone, even if the gradient there is nan
    do[:, silent] = np.nan
    for clean, poisoned in zip((dq, dk, dv), map(to_numpy, pullback(array(do))), strict=True):
        np.testing.assert_array_equal(clean, poisoned)


@both_voices
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["k", "v", "both"])
@pytest.mark.parametrize("name", ["mask", "causal", "window", "everything"])
@each_form
def test_what_may_not_be_read_leaves_no_trace_forward_or_backward(f_vjp, name, where, poison, array, rng):
    q, k, v = qkv(rng, "grouped")
    given = options(rng, name, q, k)
    reads = np.ones((5, 7), dtype=bool)
    reads[:4, 4] = False  # key 4 is for query 4 alone, if for anybody
    given["mask"] = given.get("mask", True) & np.broadcast_to(reads, (2, 6, 5, 7))
    clean, clean_pullback = f_vjp(array(q), array(k), array(v), **spoken(array, given))
    if where in ("k", "both"):
        k[..., 4, 1] = poison
    if where in ("v", "both"):
        v[..., 4, 1] = poison
    with np.errstate(invalid="ignore"):  # numpy warns of ∞ · 0 and ∞ − ∞ in the scores that are then hidden
        o, pullback = f_vjp(array(q), array(k), array(v), **spoken(array, given))
        np.testing.assert_allclose(to_numpy(o)[..., :4, :], to_numpy(clean)[..., :4, :], rtol=1e-13, atol=1e-15)
        do = rng.normal(size=o.shape)
        do[..., 4, :] = 0
        dq = to_numpy(pullback(array(do))[0])
    expected = to_numpy(clean_pullback(array(do))[0])
    np.testing.assert_allclose(dq[..., :4, :], expected[..., :4, :], rtol=1e-12, atol=1e-14)


@both_voices
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@each_form
def test_a_key_that_nobody_may_read_keeps_every_gradient_clean(f_vjp, poison, array, rng):
    q, k, v = qkv(rng, "grouped")
    do = array(rng.normal(size=(2, 6, 5, 11)))
    mask = array(np.arange(7) != 4)
    _, clean = f_vjp(array(q), array(k), array(v), mask=mask)
    expected = [to_numpy(d) for d in clean(do)]
    k[..., 4, :], v[..., 4, :] = poison, poison
    with np.errstate(invalid="ignore"):
        _, pullback = f_vjp(array(q), array(k), array(v), mask=mask)
        gradients = [to_numpy(d) for d in pullback(do)]
    for mine, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-12, atol=1e-14)
    assert (gradients[1][..., 4, :] == 0).all() and (gradients[2][..., 4, :] == 0).all()


@both_voices
@each_form
def test_a_nan_that_is_read_is_not_hidden(f_vjp, array, rng):
    q, k, v = qkv(rng, "square")
    k[..., 3, 0] = np.nan
    o, pullback = f_vjp(array(q), array(k), array(v), causal=True)
    assert np.isfinite(to_numpy(o)[:, :3]).all() and np.isnan(to_numpy(o)[:, 3:]).all()
    dq, _, _ = map(to_numpy, pullback(array(np.ones((2, 5, 11)))))
    assert np.isfinite(dq[:, :3]).all() and np.isnan(dq[:, 3:]).all()


@both_voices
@each_form
def test_a_nan_query_spoils_its_own_row_and_the_keys_it_may_read(f_vjp, array, rng):
    q, k, v = qkv(rng, "square")
    q[:, 1, 0] = np.nan
    o, pullback = f_vjp(array(q), array(k), array(v), causal=True)
    assert (np.isnan(to_numpy(o)).all(-1) == [False, True, False, False, False]).all()
    dq, dk, dv = map(to_numpy, pullback(array(rng.normal(size=(2, 5, 11)))))
    assert (np.isnan(dq).all(-1) == [False, True, False, False, False]).all()
    for d in (dk, dv):
        assert np.isnan(d[:, :2]).any() and np.isfinite(d[:, 2:]).all()


@both_voices
@pytest.mark.parametrize("size", [1e3, 1e150])
@each_form
def test_huge_scores_pick_one_key(f_vjp, size, array, rng):
    q, k = np.full((2, 1), size), np.array([[1.0], [-1.0], [0.5]])
    v = rng.normal(size=(3, 11))
    with np.errstate(over="raise", invalid="raise"):
        o, pullback = f_vjp(array(q), array(k), array(v))
        dq, dk, dv = map(to_numpy, pullback(array(np.ones((2, 11)))))
    np.testing.assert_allclose(to_numpy(o), np.stack([v[0], v[0]]), rtol=1e-15)
    np.testing.assert_allclose(dq, 0, atol=1e-14)
    np.testing.assert_allclose(dk, 0, atol=1e-14 * size)  # dK = dSᵀ Q: a rounding error of dS times a huge query
    np.testing.assert_allclose(dv, np.broadcast_to([[2.0], [0], [0]], (3, 11)), atol=1e-200)


@both_voices
@each_form
def test_scores_a_million_apart_in_different_tiles(f_vjp, array):
    # keys come in tiles of 3: the largest score is last, first, or alone in the middle
    v = np.arange(7.0)[:, None]
    for order in (np.arange(7), np.arange(7)[::-1], np.array([0, 3, 1, 6, 2, 5, 4])):
        k = 1e6 * order[:, None] - 3e6
        o, _ = f_vjp(array(np.ones((5, 1))), array(k), array(v))
        np.testing.assert_array_equal(to_numpy(o), np.full((5, 1), float(np.argmax(order))))


@each_form
def test_arguments_may_lie_anyhow(f_vjp, rng):
    q, k, v = rng.normal(size=(5, 6, 2, 3)), rng.normal(size=(3, 7, 3, 2)), rng.normal(size=(7, 1, 1, 22))
    do = rng.normal(size=(11, 5, 6, 2))
    q, k, v, do = q.transpose(2, 1, 0, 3), k.T, np.broadcast_to(v[:, 0, 0, ::2], (2, 3, 7, 11)), do.T
    for array in (np.ascontiguousarray, lambda x: torch.from_numpy(np.ascontiguousarray(x))):
        dense_o, dense_pullback = f_vjp(*map(array, (q, k, v)), causal=True)
        dense = dense_pullback(array(do))
        if array is np.ascontiguousarray:
            o, pullback = f_vjp(q, k, v, causal=True)
            gradients = pullback(do)
        else:
            turned = [torch.from_numpy(np.ascontiguousarray(x.T)).permute(3, 2, 1, 0) for x in (q, k, do)]
            spread = torch.from_numpy(v[0, 0].copy()).expand(2, 3, 7, 11)
            assert not any(x.is_contiguous() for x in (*turned, spread))
            o, pullback = f_vjp(turned[0], turned[1], spread, causal=True)
            gradients = pullback(turned[2])
        for mine, right in zip((o, *gradients), (dense_o, *dense), strict=True):
            np.testing.assert_allclose(to_numpy(mine), to_numpy(right), rtol=1e-12, atol=1e-13)


@each_form
def test_nothing_given_is_written_into(f_vjp, rng):
    q, k, v = qkv(rng)
    given = options(rng, "everything", q, k)
    do = rng.normal(size=(2, 6, 5, 11))
    arrays = [q, k, v, do, given["mask"], given["bias"]]
    before = [x.copy() for x in arrays]
    for x in arrays:
        x.flags.writeable = False
    o, pullback = f_vjp(q, k, v, **given)
    first = [d.copy() for d in pullback(do)]
    o[:] = 0  # nor does the way back hang on what was handed out
    for mine, again in zip(first, pullback(do), strict=True):
        np.testing.assert_array_equal(mine, again)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_form
def test_half_precision_is_as_good_as_one_rounding(f_vjp, dtype, rng):
    q, k, v = (torch.from_numpy(rng.normal(size=(2, n, d))).to(dtype) for n, d in [(31, 16), (61, 16), (61, 11)])
    o, _ = f_vjp(q, k, v, causal=True)
    exact, _ = f_vjp(q.double(), k.double(), v.double(), causal=True)
    check_precision(o, exact.to(dtype), exact, factor=1.01)


@both_voices
@each_form
def test_float16_scores_beyond_its_range(f_vjp, array, rng):
    # 64 · 100 · 100 = 640,000 before the scale, 80,000 after it: both beyond 65,504
    q = np.full((2, 64), 100, dtype=np.float16)
    k = np.stack([q[0], q[0] * np.float16(0.5), -q[0]])
    v = rng.normal(size=(3, 5)).astype(np.float16)
    half = torch.from_numpy if array is as_torch else np.asarray
    o, pullback = f_vjp(half(q), half(k), half(v))
    np.testing.assert_array_equal(to_numpy(o), np.stack([v[0], v[0]]).astype(float))
    assert all(np.isfinite(to_numpy(d)).all() and d.dtype == o.dtype for d in pullback(o))


@each_form
def test_even_weights_over_many_keys_in_float16(f_vjp):
    # each weight is 1/4099, its float16 spacing 2⁻²²; summed in float16 one by one they would stop short
    v = np.ones((4099, 2), dtype=np.float16)
    o, _ = f_vjp(np.zeros((2, 3), dtype=np.float16), np.zeros((4099, 3), dtype=np.float16), v)
    np.testing.assert_array_equal(o, 1)


@both_voices
@each_form
def test_a_bias_shifts_scores_as_it_stands(f_vjp, array):
    q, k, v = np.zeros((2, 3)), np.zeros((5, 3)), np.eye(5)
    weights = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    with np.errstate(divide="ignore"):
        bias = np.log(weights)
    o, _ = f_vjp(array(q), array(k), array(v), bias=array(bias))
    np.testing.assert_allclose(to_numpy(o), [weights, weights], rtol=1e-14)
    o, _ = f_vjp(array(q), array(k), array(v), bias=array(bias + math.pi), softcap=0.1)  # the cap is not on the bias
    np.testing.assert_allclose(to_numpy(o), [weights, weights], rtol=1e-14)
