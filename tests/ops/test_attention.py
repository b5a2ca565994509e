"""Attention: the definition, the gradient, the trace, the laws, the contract; its edges are in test_attention_edges."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import scaled_dot_product_attention

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.ops.attention import attention, attention_trace, attention_vjp
from tests.support import loops
from tests.support.attention_cases import OPTIONS, SIZES, options, qkv, spoken
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import LOW, check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

every_option = pytest.mark.parametrize("name", OPTIONS)
every_size = pytest.mark.parametrize("size", SIZES)


def some(*shape):
    return arrays(np.float64, shape, elements=st.floats(-3, 3))


queries, keys, values = some(2, 5, 3), some(2, 7, 3), some(2, 7, 2)


@pytest.mark.parametrize("array", VOICES)
@every_option
@every_size
def test_is_the_definition(size, name, array, rng):
    q, k, v = qkv(rng, size)
    given = options(rng, name, q, k)
    mine = attention(array(q), array(k), array(v), **spoken(array, given))
    np.testing.assert_allclose(to_numpy(mine), loops.attention(q, k, v, **given), rtol=1e-12, atol=1e-14)


@every_option
def test_pullback_is_the_derivative(name, rng):
    q, k, v = qkv(rng)
    check_vjp(attention_vjp, [q, k, v], rng, **options(rng, name, q, k))


@every_option
@every_size
def test_pullback_is_torchs_own(size, name, rng):
    q, k, v = qkv(rng, size)
    given = spoken(as_torch, options(rng, name, q, k))
    check_autograd(attention, attention_vjp, [q, k, v], rng, **given)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_checks_see_one_part_in_a_thousand(which, rng):
    wrong = off_by(attention_vjp, 1.001, which)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(wrong, qkv(rng), rng)
    with pytest.raises(AssertionError):
        check_autograd(attention, wrong, qkv(rng), rng)


TORCHS = {
    "plain": {},
    "causal, n = m": {"is_causal": True},
    "scale": {"scale": 0.3},
    "mask": {"attn_mask": "mask"},
    "bias": {"attn_mask": "bias"},
}


@pytest.mark.parametrize("case", TORCHS)
@pytest.mark.parametrize("size", ["square", "cached", "grouped"])
def test_torchs_own_attention_says_the_same_forward_and_backward(size, case, rng):
    if "n = m" in case:
        size = "square"  # elsewhere torch aligns causal to the first key
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in qkv(rng, size))
    theirs, mine = dict(TORCHS[case]), {}
    if "attn_mask" in theirs:
        mask = rng.random((q.shape[-2], k.shape[-2])) < 0.7
        mask[:, 0] = True
        extra = mask if theirs["attn_mask"] == "mask" else np.where(mask, rng.normal(size=mask.shape), -np.inf)
        mine[theirs["attn_mask"]] = theirs["attn_mask"] = as_torch(extra)
    mine |= {"causal": True} if "is_causal" in theirs else {}
    mine |= {"scale": theirs["scale"]} if "scale" in theirs else {}
    expected = scaled_dot_product_attention(q, k, v, enable_gqa=size == "grouped", **theirs)
    do = torch.from_numpy(rng.normal(size=tuple(expected.shape)))
    gradients = torch.autograd.grad(expected, (q, k, v), do)
    o, pullback = attention_vjp(q.detach(), k.detach(), v.detach(), **mine)
    np.testing.assert_allclose(to_numpy(o), to_numpy(expected), rtol=1e-12, atol=1e-14)
    for d, right in zip(pullback(do), gradients, strict=True):
        np.testing.assert_allclose(to_numpy(d), to_numpy(right), rtol=1e-11, atol=1e-13)


def test_torchs_lower_right_causal_bias_is_this_packages_causal(rng):
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = map(as_torch, qkv(rng, "cached"))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(3, 7))
    np.testing.assert_allclose(attention(q, k, v, causal=True), expected, rtol=1e-12, atol=1e-14)
    upper_left = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert abs(attention(q, k, v, causal=True) - upper_left).max() > 0.1


# The two examples of chapter 5.


def test_the_worked_example_of_chapter_5():
    Q = K = np.eye(2)
    V, dO = np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2))
    t = attention_trace(Q, K, V, dO)
    # each number from the chapter's derivation by hand, to four digits
    expected = {
        "S": np.eye(2),
        "S_scaled": 0.7071 * np.eye(2),
        "A": [[0.6698, 0.3302], [0.3302, 0.6698]],
        "O": [[1.6605, 2.6605], [2.3395, 3.3395]],
        "dA": [[3, 7], [3, 7]],
        "dV": [[1, 1], [1, 1]],
        "dS_scaled": [[-0.8847, 0.8847], [-0.8847, 0.8847]],
        "dS": [[-0.6256, 0.6256], [-0.6256, 0.6256]],
        "dQ": [[-0.6256, 0.6256], [-0.6256, 0.6256]],
        "dK": [[-0.6256, -0.6256], [0.6256, 0.6256]],
    }
    for name, numbers in expected.items():
        np.testing.assert_array_equal(np.round(getattr(t, name), 4), numbers, err_msg=name)
    np.testing.assert_array_equal(np.round((t.A * t.dA).sum(-1), 4), [4.3210, 5.6790])


def test_dv_holds_the_column_sums_of_the_weights_and_they_need_not_be_one():
    q, k = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])
    t = attention_trace(q, k, np.ones((3, 2)), np.ones((2, 2)))
    np.testing.assert_allclose(t.dV, np.repeat(t.A.sum(0)[:, None], 2, axis=1), rtol=1e-14)
    assert abs(t.A.sum(0) - 1).max() > 0.3 and abs(t.A.sum(1) - 1).max() < 1e-15


# The trace.


@every_option
@every_size
def test_the_trace_is_the_op_and_its_pullback(size, name, rng):
    q, k, v = qkv(rng, size)
    given = options(rng, name, q, k)
    o, pullback = attention_vjp(q, k, v, **given)
    dO = rng.normal(size=o.shape)
    trace, forward = attention_trace(q, k, v, dO, **given), attention_trace(q, k, v, **given)
    np.testing.assert_array_equal(trace.O, o)
    for mine, d in zip((trace.dQ, trace.dK, trace.dV), pullback(dO), strict=True):
        np.testing.assert_array_equal(mine, d)
    assert forward.dO is forward.dA is forward.dS is forward.dQ is None
    for field in ("S", "S_scaled", "S_masked", "A", "O"):
        np.testing.assert_array_equal(getattr(forward, field), getattr(trace, field))


@every_option
def test_every_gradient_of_the_trace_is_that_of_its_intermediate(name, rng):
    q, k, v = map(as_torch, qkv(rng, "cached"))
    given = spoken(as_torch, options(rng, name, q, k))
    dO = torch.from_numpy(rng.normal(size=(2, 3, 3, 11)))
    t = attention_trace(q, k, v, dO, **given)
    S = t.S.clone().requires_grad_()
    S_scaled = S * given.get("scale", 3**-0.5)
    cap = given.get("softcap")
    seen = S_scaled if cap is None else cap * torch.tanh(S_scaled / cap)
    seen = seen + torch.where(torch.isinf(t.S_masked), -torch.inf, given.get("bias", torch.zeros(())))
    A = torch.nan_to_num(torch.softmax(seen, dim=-1))  # rows that read nothing
    wanted = torch.autograd.grad(A @ v, (A, S_scaled, S), dO)
    reads = ~torch.isinf(t.S_masked)
    for mine, theirs in zip((t.dA, t.dS_scaled, t.dS), wanted, strict=True):
        theirs = torch.where(reads, theirs, 0.0)
        np.testing.assert_allclose(torch.nan_to_num(mine), torch.nan_to_num(theirs), rtol=1e-11, atol=1e-13)


@given(queries, keys, values, some(2, 5, 2))
def test_rows_of_ds_sum_to_zero_and_the_mean_of_da_is_that_of_do(q, k, v, dO):
    t = attention_trace(q, k, v, dO)
    np.testing.assert_allclose(t.dS_scaled.sum(-1), 0, atol=1e-12)
    # the identity that recomputation rests on: rowsum(dA ∘ A) = rowsum(dO ∘ O)
    np.testing.assert_allclose((t.dA * t.A).sum(-1), (t.dO * t.O).sum(-1), atol=1e-12)


@given(queries, keys, values)
def test_the_gradient_of_a_query_is_a_covariance_under_the_weights(q, k, v):
    t = attention_trace(q, k, v, np.ones((2, 5, 2)))
    mean_k, mean_v = t.A @ k, t.O
    covariance = np.einsum("bnm,bmv,bmk->bnvk", t.A, v, k) - mean_v[..., :, None] * mean_k[..., None, :]
    np.testing.assert_allclose(t.dQ, covariance.sum(-2) / np.sqrt(3), atol=1e-11)


# Laws.


@given(queries, keys, values)
def test_an_output_lies_among_the_values(q, k, v):
    o = attention(q, k, v)
    assert (o <= v.max(-2, keepdims=True) + 1e-12).all() and (o >= v.min(-2, keepdims=True) - 1e-12).all()


@given(queries, keys, values, st.permutations(range(7)), st.permutations(range(5)))
def test_keys_may_come_in_any_order_and_queries_keep_theirs(q, k, v, order, rows):
    o = attention(q, k, v)
    np.testing.assert_allclose(attention(q, k[:, order], v[:, order]), o, atol=1e-12)
    np.testing.assert_allclose(attention(q[:, rows], k, v), o[:, rows], atol=1e-12)


@given(queries, keys, values, some(3))
def test_a_vector_added_to_every_key_changes_nothing(q, k, v, shift):
    np.testing.assert_allclose(attention(q, k + shift, v), attention(q, k, v), atol=1e-10)
    _, pullback = attention_vjp(q, k, v)
    _, dk, _ = pullback(np.ones((2, 5, 2)))
    np.testing.assert_allclose(dk.sum(-2), 0, atol=1e-11)  # so a bias on the keys learns nothing


@given(queries, keys, values, st.floats(-2, 2), some(2))
def test_it_is_linear_in_the_values(q, k, v, c, shift):
    np.testing.assert_allclose(attention(q, k, c * v + shift), c * attention(q, k, v) + shift, atol=1e-11)


@given(some(2, 7, 3), keys, values, st.integers(0, 6), st.sampled_from([None, 1, 3]))
def test_a_later_token_changes_no_earlier_output(q, k, v, at, window):
    changed_k, changed_v = k.copy(), v.copy()
    changed_k[:, at], changed_v[:, at] = 2.5 - changed_k[:, at], changed_v[:, at] + 1
    before = attention(q, k, v, causal=True, window=window)
    after = attention(q, changed_k, changed_v, causal=True, window=window)
    np.testing.assert_array_equal(before[:, :at], after[:, :at])
    assert (before[:, at] != after[:, at]).any()
    _, pullback = attention_vjp(q, k, v, causal=True, window=window)
    do = np.zeros((2, 7, 2))
    do[:, :at] = 1  # a loss of the earlier tokens alone
    for d in pullback(do):
        assert (d[:, at:] == 0).all()


@given(some(2, 7, 3), keys, values, st.integers(1, 6), st.sampled_from([None, 3]))
def test_the_last_queries_with_cached_keys_are_the_last_rows_of_the_whole(q, k, v, new, window):
    whole = attention(q, k, v, causal=True, window=window)
    part = attention(q[:, -new:], k, v, causal=True, window=window)
    np.testing.assert_allclose(part, whole[:, -new:], atol=1e-13)


@given(queries, keys, values, st.integers(1, 20))
def test_a_wide_window_is_no_window(q, k, v, extra):
    np.testing.assert_array_equal(attention(q, k, v, causal=True, window=6 + extra), attention(q, k, v, causal=True))
    np.testing.assert_array_equal(attention(q, k, v, window=6 + extra), attention(q, k, v))


def test_a_large_softcap_is_none_and_a_small_one_flattens(rng):
    q, k, v = qkv(rng)
    np.testing.assert_allclose(attention(q, k, v, softcap=1e6), attention(q, k, v), atol=1e-10)
    mean = np.repeat(np.repeat(v.mean(-2, keepdims=True), 2, axis=1), 5, axis=2)
    np.testing.assert_allclose(attention(q, k, v, softcap=1e-9), mean, atol=1e-8)


def test_grouped_heads_are_repeated_keys_with_summed_gradients(rng):
    q, k, v = qkv(rng, "grouped")
    o, pullback = attention_vjp(q, k, v)
    wide, wide_pullback = attention_vjp(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))
    np.testing.assert_array_equal(o, wide)
    do = rng.normal(size=o.shape)
    for mine, theirs in zip(pullback(do)[1:], wide_pullback(do)[1:], strict=True):
        np.testing.assert_allclose(mine, theirs.reshape(2, 3, 2, 7, -1).sum(2), rtol=1e-12, atol=1e-13)


# Precision and contract.


@pytest.mark.parametrize("dtype", LOW)
def test_error_in_low_precision_is_at_most_twice_that_of_the_plain_form(dtype, rng):
    q, k, v, do = (
        torch.from_numpy(rng.normal(size=(2, n, d))).to(dtype) for n, d in [(31, 16), (61, 16), (61, 11), (31, 11)]
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = torch.softmax(leaves[0] @ leaves[1].mT / 4, dim=-1) @ leaves[2]
    o, pullback = attention_vjp(q, k, v)
    exact, exactly = attention_vjp(q.double(), k.double(), v.double())
    check_precision(o, plain.detach(), exact)
    theirs = torch.autograd.grad(plain, leaves, do)
    for mine, other, right in zip(pullback(do), theirs, exactly(do.double()), strict=True):
        check_precision(mine, other, right)


def test_arrays_of_several_precisions_meet_in_the_widest(rng):
    q, k, v = map(as_torch, qkv(rng))
    o, pullback = attention_vjp(q.half(), k.float(), v)
    assert o.dtype == torch.float16 and [d.dtype for d in pullback(o)] == [torch.float16, torch.float32, torch.float64]
    np.testing.assert_allclose(o, attention(q.half().double(), k.float().double(), v), rtol=2**-10, atol=1e-6)
    trace = attention_trace(q.half(), k.half(), v.half(), o)
    assert trace.A.dtype == trace.dQ.dtype == torch.float32


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    q, k, v = qkv(rng)
    with pytest.raises(ShapeError, match=r"attention: k has d_k = 11, q had d_k = 3; k takes the shape"):
        attention(q, v, v)
    with pytest.raises(ShapeError, match=r"attention: v has m = 6, k had m = 7; v takes the shape"):
        attention(q, k, v[..., 1:, :])
    with pytest.raises(ShapeError, match=r"attention: v has kv_batch = \(2, 2\), k had kv_batch = \(2, 3\)"):
        attention(q, k, v[:, 1:])
    with pytest.raises(ShapeError, match=r"q has h = 6 heads, k and v have h_kv = 4"):
        attention(q, np.ones((2, 4, 7, 3)), np.ones((2, 4, 7, 3)))
    with pytest.raises(ShapeError, match=r"the pullback of attention_vjp: do has d_v = 3, v had d_v = 11"):
        attention_vjp(q, k, v)[1](q)
    with pytest.raises(ShapeError, match=r"attention_trace: dO has n = 7, q had n = 5"):
        attention_trace(q, k, v, np.ones((2, 6, 7, 11)))
    with pytest.raises(ShapeError, match=r"window = 0; a window counts the query itself, so it is at least 1"):
        attention(q, k, v, window=0)
    with pytest.raises(ShapeError, match=r"mask has shape \(7, 5\), which does not broadcast to \(2, 6, 5, 7\)"):
        attention(q, k, v, mask=np.ones((7, 5), dtype=bool))
    with pytest.raises(DtypeError, match=r"attention: mask has dtype float64; bool values are expected: convert mask"):
        attention(q, k, v, mask=np.zeros((5, 7)))
    with pytest.raises(DtypeError, match=r"attention: bias has dtype bool; float values are expected"):
        attention(q, k, v, bias=np.ones((5, 7), dtype=bool))
    with pytest.raises(DtypeError, match=r"attention: scale is 'auto'; float or int or None is expected"):
        attention(q, k, v, scale="auto")
    with pytest.raises(DtypeError, match=r"attention: q is an array of numpy, k one of torch"):
        attention(q, as_torch(k), as_torch(v))
    with pytest.raises(DerivedError, match=r"softcap = 0; scores are capped at ± softcap, so give it above 0 or None"):
        attention(q, k, v, softcap=0)
    with pytest.raises(DtypeError, match=r"attention: q has dtype int64; float values are expected"):
        attention(q.astype(int), k, v)
