"""What went wrong elsewhere: each reported bug that an op here could have is asked for its right value.

The reports (`tests/data/attention-bugs.json`) are issues of public repositories, named there; where a report
gives no small example, its input was made up and its value computed in float64.
"""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from derived.ops.attention import attention_trace, attention_vjp
from derived.ops.norm import layer_norm, rms_norm, rms_norm_vjp
from derived.ops.online import Partial, finish, merge
from derived.ops.positions import rope, rotary_tables
from derived.ops.softmax import softmax
from derived.ops.tiled import tiled_attention_vjp
from tests.support import loops
from tests.support.gradients import check_autograd
from tests.support.voices import to_numpy

REPORTS = json.loads((Path(__file__).parents[1] / "data" / "attention-bugs.json").read_text(encoding="utf-8"))

NOT_MET = {
    "cache-length-early": "counts the tokens of a cache: no op keeps one, positions are an argument",
    "cache-offset-accumulate": "advances the offset of a cache: no op keeps one",
    "int32-mask-offset": "an address inside a GPU kernel: ops index through numpy and torch",
    "int32-bwd-offset": "an address inside a GPU kernel: ops index through numpy and torch",
    "interpreter-bf16": "the arithmetic of Triton's interpreter: ops do not run in it",
}
"""Cases that no op can meet, each with the reason."""

FORMS = {"full": attention_vjp, "tiled": functools.partial(tiled_attention_vjp, B_q=16, B_t=16)}
ATTENTION, OTHER = {}, {}


def attends(name):
    """Register a case that is asked of every form of attention."""
    return lambda f: ATTENTION.setdefault(name, f)


def asks(name):
    """Register a case of another op."""
    return lambda f: OTHER.setdefault(name, f)


def column(*numbers):
    """Values of width 1."""
    return np.array(numbers, dtype=np.float64)[:, None]


def average(f_vjp, v, n=1, **given):
    """Attention whose scores are all 0, so that only the mask speaks: the outputs of n queries."""
    v = column(*v)
    o, pullback = f_vjp(np.zeros((n, 1)), np.zeros((len(v), 1)), v, **given)
    assert all(np.isfinite(d).all() for d in pullback(np.ones_like(o)))
    return o[:, 0]


# Masks.


@attends("mask-row-nan")
def fully_masked_row(f_vjp, rng):
    o, pullback = f_vjp(np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2), mask=np.array([[True, False], [False, False]]))
    np.testing.assert_array_equal(o, [[1, 0], [0, 0]])
    assert all(np.isfinite(d).all() for d in pullback(np.ones((2, 2))))
    finite = np.where([[True, False], [False, False]], 0, np.finfo(float).min)
    np.testing.assert_array_equal(f_vjp(np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2), bias=finite)[0][1], [0.5, 0.5])


@attends("mask-head-needweights")
def fully_masked_head(f_vjp, rng):
    q, k, v = (torch.from_numpy(rng.normal(size=(1, 3, 5, 1))) for _ in range(3))
    mask = torch.ones(3, 5, 5, dtype=torch.bool)
    mask[2] = False
    trace = attention_trace(q, k, v, mask=mask)  # the form that hands out the weights
    assert torch.isfinite(trace.A).all() and (trace.A[:, 2] == 0).all()
    o, _ = f_vjp(q, k, v, mask=mask)
    np.testing.assert_allclose(o, trace.O, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(o[:, :2], scaled_dot_product_attention(q, k, v)[:, :2], rtol=1e-12, atol=1e-14)
    assert (o[:, 2] == 0).all()


@attends("masked-nan-leak")
def nan_behind_the_mask(f_vjp, rng):
    for k, v in (([0, 0], [2, np.nan]), ([0, np.nan], [2, 5]), ([0, np.nan], [2, np.nan])):
        o, pullback = f_vjp(np.zeros((1, 1)), column(*k), column(*v), mask=np.array([[True, False]]))
        assert o[0, 0] == 2
        assert all(np.isfinite(d).all() for d in pullback(np.ones((1, 1))))


@attends("causal-topleft-decode")
def one_query_after_a_cache(f_vjp, rng):
    assert average(f_vjp, [1, 2, 6], causal=True)[0] == pytest.approx(3.0, rel=1e-15)
    q, k, v = torch.zeros(1, 1, 1), torch.zeros(1, 3, 1), torch.tensor([[[1.0], [2.0], [6.0]]])
    assert scaled_dot_product_attention(q, k, v, is_causal=True) == 1.0  # aligned to the first key


@attends("causal-tall")
def more_queries_than_keys(f_vjp, rng):
    np.testing.assert_array_equal(average(f_vjp, [1, 3], n=3, causal=True), [0, 1, 2])


@attends("mask-sense-inverted")
def true_means_may_read(f_vjp, rng):
    may_read = np.tri(2, dtype=bool)
    np.testing.assert_array_equal(average(f_vjp, [1, 3], n=2, mask=may_read), [1, 2])
    np.testing.assert_array_equal(average(f_vjp, [1, 3], n=2, causal=True), [1, 2])
    np.testing.assert_array_equal(average(f_vjp, [1, 3], n=2, mask=~may_read), [3, 0])


@attends("mask-sense-mha")
def padding_masks_of_torchs_layer_mean_the_opposite(f_vjp, rng):
    ignored = np.array([False, True])
    np.testing.assert_array_equal(average(f_vjp, [1, 3], mask=~ignored), [1])
    np.testing.assert_array_equal(average(f_vjp, [1, 3], bias=np.where(ignored, -np.inf, 0.0)), [1])


@attends("finfo-plus-finfo")
def two_planes_over_one_cell(f_vjp, rng):
    plane = np.where(np.tri(3, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)
    q, v = np.zeros((3, 1), dtype=np.float32), np.array([[1], [2], [6]], dtype=np.float32)
    o, _ = f_vjp(q, q, v, causal=True, mask=plane == 0, bias=plane)  # the same cells, three times over
    np.testing.assert_array_equal(o[:, 0], [1, 1.5, 3])
    with np.errstate(over="ignore"):
        twice = plane + plane
    assert np.isneginf(twice).any()
    np.testing.assert_array_equal(f_vjp(q, q, v, bias=twice)[0], o)
    twice[0] = -np.inf
    np.testing.assert_array_equal(f_vjp(q, q, v, bias=twice)[0][0], [0])  # not nan


@attends("mask-too-small")
def a_masked_key_never_wins(f_vjp, rng):
    q, k, v = np.ones((1, 1)), column(0, -10020), column(1, 0)
    assert f_vjp(q, k, v, mask=np.array([[False, True]]))[0] == 0
    assert f_vjp(q, k, v, bias=np.array([[-1e4, 0]]))[0] == pytest.approx(1, rel=1e-8)  # what is then not a mask
    half = [x.astype(np.float16) for x in (q, k, v)]
    assert f_vjp(*half, mask=np.array([[False, True]]))[0] == 0


@attends("window-off-by-one")
def a_window_counts_the_query_itself(f_vjp, rng):
    np.testing.assert_allclose(average(f_vjp, [1, 2, 6], n=3, causal=True, window=2), [1, 1.5, 4.0], rtol=1e-15)
    np.testing.assert_allclose(average(f_vjp, [1, 2, 6], n=3, causal=True, window=3)[2], 3.0, rtol=1e-15)


@attends("padding-zero-embedding")
def a_padding_key_of_zeros_still_takes_weight(f_vjp, rng):
    assert average(f_vjp, [2, 0], mask=np.array([[True, False]]))[0] == 2.0
    assert average(f_vjp, [2, 0])[0] == 1.0  # without the mask


# Heads, scale, dropout.


@attends("gqa-tile")
def key_heads_are_repeated_not_tiled(f_vjp, rng):
    v = np.array([10.0, 20.0])[:, None, None] * np.ones((2, 3, 1))
    o, _ = f_vjp(np.zeros((4, 1, 1)), np.zeros((2, 3, 1)), v)
    np.testing.assert_allclose(o[:, 0, 0], [10, 10, 20, 20], rtol=1e-15)


@attends("scale-ignored")
def the_scale_that_is_asked_for(f_vjp, rng):
    q = np.array([[2.0, 0, 0, 0]])
    k, v = np.concatenate([q, 0 * q]), column(1, 0)
    assert round(float(f_vjp(q, k, v, scale=1)[0][0, 0]), 6) == 0.982014
    assert round(float(f_vjp(q, k, v)[0][0, 0]), 6) == 0.880797


@attends("dropout-eval")
def nothing_is_dropped(f_vjp, rng):
    assert all(average(f_vjp, [1])[0] == 1.0 for _ in range(11))


# Arrays that do not lie in order.


def same_as_contiguous(f_vjp, q, k, v, do):
    """Run on views and on copies of them: outputs and gradients agree to rounding."""
    o, pullback = f_vjp(q, k, v)
    dense, dense_pullback = f_vjp(*(x.contiguous() for x in (q, k, v)))
    for mine, right in zip((o, *pullback(do)), (dense, *dense_pullback(do.contiguous())), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-12, atol=1e-13)


def drawn(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape))


@attends("noncontiguous-v")
def transposed_values(f_vjp, rng):
    v = drawn(rng, 1, 2, 2, 16).transpose(1, 2)
    assert not v.is_contiguous()
    same_as_contiguous(f_vjp, drawn(rng, 1, 2, 2, 16), drawn(rng, 1, 2, 2, 16), v, drawn(rng, 1, 2, 2, 16))


@attends("noncontiguous-memeff")
def expanded_keys_and_values(f_vjp, rng):
    k, v = (drawn(rng, 1, 1, 16, 128).expand(2, 3, 16, 128) for _ in range(2))
    same_as_contiguous(f_vjp, drawn(rng, 2, 3, 1, 128), k, v, drawn(rng, 2, 3, 1, 128))


@attends("noncontiguous-dout")
def gradients_that_are_views(f_vjp, rng):
    q, k, v = (drawn(rng, 2, 3, 5, 7) for _ in range(3))
    same_as_contiguous(f_vjp, q, k, v, drawn(rng, 2, 5, 3, 7).transpose(1, 2))
    same_as_contiguous(f_vjp, q, k, v, torch.ones((), dtype=torch.float64).expand(2, 3, 5, 7))


# Lengths and tiles.


@attends("tutorial-bwd-noncausal")
def the_backward_is_not_causal_unless_the_forward_is(f_vjp, rng):
    q, k, v = (rng.normal(size=(128, 64)) for _ in range(3))
    check_autograd(lambda *x: f_vjp(*x)[0], f_vjp, [q, k, v], rng)
    do = np.zeros((128, 64))
    do[0] = 1  # a loss of the first token alone still teaches the last key
    assert (f_vjp(q, k, v)[1](do)[1][-1] != 0).all()
    assert (f_vjp(q, k, v, causal=True)[1](do)[1][1:] == 0).all()


@attends("ragged-seq")
def lengths_that_are_no_multiple_of_a_tile(f_vjp, rng):
    for n, m in ((1, 20), (20, 20)):
        q, k, v = (rng.normal(size=(s, 3)) for s in (n, m, m))
        np.testing.assert_allclose(f_vjp(q, k, v)[0], loops.attention(q, k, v), rtol=1e-12, atol=1e-14)
        check_autograd(lambda *x: f_vjp(*x)[0], f_vjp, [q, k, v], rng)


@attends("tail-block")
def the_last_tile_reads_nothing_past_the_end(f_vjp, rng):
    space = drawn(rng, 2, 64, 64)
    space[:, 38:] = np.nan  # what lies behind the last key in memory
    k, v = space[:, :38]
    q = drawn(rng, 1, 64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = scaled_dot_product_attention(q[None], k[None], v[None])[0]
    np.testing.assert_allclose(f_vjp(q, k, v)[0], expected, rtol=1e-12, atol=1e-14)


@attends("varlen-zero-q")
def a_sequence_without_queries(f_vjp, rng):
    # queries 0:0 and 0:1, keys 0:2 and 2:3, two query heads over one key head
    q, k, v = rng.normal(size=(2, 1, 3)), rng.normal(size=(1, 3, 3)), rng.normal(size=(1, 3, 3))
    for causal in (False, True):
        first, first_pullback = f_vjp(q[:, 0:0], k[:, 0:2], v[:, 0:2], causal=causal)
        second, _ = f_vjp(q[:, 0:1], k[:, 2:3], v[:, 2:3], causal=causal)
        assert first.shape == (2, 0, 3)
        np.testing.assert_allclose(second, np.broadcast_to(v[:, 2:3], (2, 1, 3)), rtol=1e-15)
        assert all((d == 0).all() for d in first_pullback(first)[1:])


# Other ops.


@asks("splitkv-empty")
def a_split_without_keys(rng):
    for junk in (7.0, np.nan, np.inf):
        splits = [Partial(np.array([lse]), np.ones(1), np.array([[o]])) for lse, o in ((0.0, 3.0), (-np.inf, junk))]
        assert finish(merge(*splits))[0] == 3
        o, lse = finish(merge(splits[1], splits[1]))
        assert o == 0 and lse == -np.inf


@asks("softmax-no-max")
def softmax_subtracts_the_maximum(rng):
    s = np.array([100, 0], dtype=np.float32)
    a = softmax(s)
    assert a.dtype == np.float32 and a[0] == 1
    assert float(a[1]) == pytest.approx(3.72e-44, abs=1.4e-45)  # a subnormal: one unit in the last place
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan((np.exp(s) / np.exp(s).sum())[0])


@asks("rope-layout")
def both_pairings_of_rope(rng):
    x, tables = np.array([[1.0, 2.0, 3.0, 4.0]]), rotary_tables(np.array([1.0]), 4)
    expected = {True: [-1.142640, 1.922076, 2.959851, 4.029800], False: [-1.984111, 1.959901, 2.462378, 4.019800]}
    for interleaved, numbers in expected.items():
        np.testing.assert_array_equal(np.round(rope(x, *tables, interleaved=interleaved), 6), [numbers])


@asks("rope-bf16-pos")
def positions_above_256_do_not_collide(rng):
    cos, _ = rotary_tables(torch.tensor([257]), 2)
    assert round(float(cos[0, 0]), 6) == 0.819306
    assert round(math.cos(float(torch.tensor(257.0).bfloat16())), 6) == -0.039791
    x = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)  # the vectors may be in half precision all the same
    turned = rope(x, *rotary_tables(torch.tensor([257]), 2), interleaved=True)
    assert turned.dtype == torch.bfloat16 and abs(float(turned[0, 0]) - 0.819306) < 2**-9
    with pytest.raises(TypeError, match="positions"):
        rotary_tables(torch.tensor([257.0], dtype=torch.bfloat16), 2)


@asks("layernorm-unbiased")
def the_variance_is_biased(rng):
    y = layer_norm(np.array([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_array_equal(np.round(y, 6), [1.732005, -0.577335, -0.577335, -0.577335])


@asks("rmsnorm-inplace")
def the_residual_is_not_overwritten(rng):
    for x in (rng.normal(size=(3, 7)).astype(np.float32), torch.from_numpy(rng.normal(size=(3, 7))).float()):
        before = to_numpy(x).copy()
        gain = x[0] * 0 + 2
        y = rms_norm(x, gain)
        rms_norm_vjp(x, gain)[1](y)
        np.testing.assert_array_equal(to_numpy(x), before)


# Last, since the table of cases is complete only here.


def test_every_report_is_tested_or_listed_with_a_reason_and_none_twice():
    names = [report["id"] for report in REPORTS]
    assert len(names) == len(set(names)) == len(ATTENTION) + len(OTHER) + len(NOT_MET)
    assert set(names) == set(ATTENTION) | set(OTHER) | set(NOT_MET)
    assert all(report["source"] and report["right_value"] for report in REPORTS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [report["id"] for report in REPORTS if report["id"] in ATTENTION])
def test_attention_gives_the_right_value(name, form, rng):
    ATTENTION[name](FORMS[form], rng)


@pytest.mark.parametrize("name", [report["id"] for report in REPORTS if report["id"] in OTHER])
def test_the_op_gives_the_right_value(name, rng):
    OTHER[name](rng)
