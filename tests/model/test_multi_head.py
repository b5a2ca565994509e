"""Multi-head attention: loops, differences, autograd, torch's module, its laws, planted errors, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import derived.model.multi_head as module
from derived.errors import DtypeError, ShapeError
from derived.model import Rotary, map_arrays, multi_head_attention, multi_head_attention_vjp
from derived.model.initialise import initial_multi_head
from derived.ops.positions import rotary_tables
from tests.model import torch_weights
from tests.model.support import arrays_of, assert_same, flattened, shaken, to_torch
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

POSITIONS = np.array([0, 1, 3, 7, 8, 20, 21])


def case(rng, *, h=6, h_kv=3, d_k=4, d_v=5, d_memory=7, biased=True):
    """Parameters with every width its own."""
    params = initial_multi_head(rng, 11, h=h, h_kv=h_kv, d_k=d_k, d_v=d_v, d_memory=d_memory, biased=biased)
    return shaken(params, rng)


def rotary(positions=POSITIONS, d_k=4, interleaved=False, array=np.asarray):
    cos, sin = rotary_tables(array(positions), d_k)
    return Rotary(cos, sin, interleaved)


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("h", "h_kv"), [(1, 1), (3, 3), (6, 3), (5, 1)])
def test_cross_attention_is_the_definition(h, h_kv, biased, array, rng):
    params = case(rng, h=h, h_kv=h_kv, biased=biased)
    x, memory = rng.normal(size=(2, 3, 11)), rng.normal(size=(2, 7, 7))
    mask = rng.random((2, 1, 3, 7)) < 0.7
    y = multi_head_attention(map_arrays(array, params), array(x), array(memory), h=h, mask=array(mask))
    expected = np.stack([loops.multi_head(params, x[b], memory[b], h=h, mask=mask[b, 0]) for b in range(2)])
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("reading", [{"causal": True}, {"causal": True, "window": 3}, {"scale": 0.3, "softcap": 2.0}])
def test_self_attention_with_rotary_is_the_definition(reading, interleaved, array, rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    turn = rotary(interleaved=interleaved, array=array)
    y = multi_head_attention(map_arrays(array, params), array(x), h=6, rotary=turn, **reading)
    expected = loops.multi_head(params, x, x, h=6, positions=POSITIONS, interleaved=interleaved, **reading)
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-11, atol=1e-12)


def test_pullback_of_cross_attention_is_the_derivative(rng):
    params = case(rng)
    f, f_vjp = flattened(multi_head_attention, params), flattened(multi_head_attention_vjp, params)
    args = [*arrays_of(params), rng.normal(size=(2, 3, 11)), rng.normal(size=(2, 7, 7))]
    check_vjp(f_vjp, args, rng, h=6, rotary=rotary())
    check_autograd(f, f_vjp, args, rng, h=6, rotary=rotary(array=as_torch))


@pytest.mark.parametrize("biased", [True, False])
def test_pullback_of_self_attention_is_the_derivative(biased, rng):
    params = case(rng, d_memory=11, biased=biased)
    f, f_vjp = flattened(multi_head_attention, params), flattened(multi_head_attention_vjp, params)
    args = [*arrays_of(params), rng.normal(size=(2, 7, 11))]
    check_vjp(f_vjp, args, rng, h=6, causal=True, rotary=rotary())
    check_autograd(f, f_vjp, args, rng, h=6, causal=True, rotary=rotary(array=as_torch))


@pytest.mark.parametrize("which", range(10))
def test_the_derivative_check_sees_one_part_in_a_thousand_in_every_gradient(which, rng):
    params = case(rng)
    args = [*arrays_of(params), rng.normal(size=(2, 3, 11)), rng.normal(size=(2, 7, 7))]
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(flattened(multi_head_attention_vjp, params), 1.001, which), args, rng, h=6, rotary=rotary())


def test_the_bias_of_the_keys_learns_nothing_unless_it_is_turned(rng):
    # the same vector added to all keys moves all scores of a query alike, and softmax does not see it
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    y, pullback = multi_head_attention_vjp(params, x, h=6)
    np.testing.assert_allclose(pullback(rng.normal(size=y.shape))[0].b_K, 0, atol=1e-13)
    turned, pullback = multi_head_attention_vjp(params, x, h=6, rotary=rotary())
    assert abs(pullback(rng.normal(size=turned.shape))[0].b_K).max() > 1e-2


@pytest.mark.parametrize("causal", [True, False])
def test_the_module_of_torch_with_the_same_weights_says_the_same(causal, rng):
    theirs = torch.nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(theirs.in_proj_bias)
    x = as_torch(rng.normal(size=(2, 7, 6))).requires_grad_()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    dy = as_torch(rng.normal(size=(2, 7, 6)))
    expected.backward(dy)
    params = torch_weights.multi_head(torch_weights.weights(theirs))
    y, pullback = multi_head_attention_vjp(params, x.detach(), h=3, causal=causal)
    dparams, dx = pullback(dy)
    expected_grads = torch_weights.multi_head(torch_weights.gradients(theirs))
    # b_K's gradient is 0 up to rounding in both
    assert_same((y, dx, dparams._replace(b_K=None)), (expected, x.grad, expected_grads._replace(b_K=None)))


def test_the_module_of_torch_with_keys_from_elsewhere_says_the_same(rng):
    theirs = torch.nn.MultiheadAttention(6, 3, kdim=5, vdim=5, batch_first=True, dtype=torch.float64)
    x, memory = (as_torch(rng.normal(size=s)).requires_grad_() for s in ((2, 3, 6), (2, 7, 5)))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    # torch: True = ignore, one row a sequence; here True = may read, one axis more for heads and queries each
    expected, _ = theirs(x, memory, memory, key_padding_mask=padding, need_weights=False)
    dy = as_torch(rng.normal(size=(2, 3, 6)))
    expected.backward(dy)
    params = torch_weights.multi_head_apart(torch_weights.weights(theirs))
    y, pullback = multi_head_attention_vjp(params, x.detach(), memory.detach(), h=3, mask=~padding[:, None, None])
    dparams, dx, dmemory = pullback(dy)
    expected_grads = torch_weights.multi_head_apart(torch_weights.gradients(theirs))
    assert_same(
        (y, dx, dmemory, dparams._replace(b_K=None)),
        (expected, x.grad, memory.grad, expected_grads._replace(b_K=None)),
    )
    assert (dmemory[1, 4:] == 0).all()


@given(st.integers(0, 2**31), st.integers(1, 7), st.booleans())
def test_the_last_tokens_against_all_keys_are_the_last_rows_of_the_whole(seed, n, turned):
    rng = np.random.default_rng(seed)
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    turn = rotary() if turned else None
    whole = multi_head_attention(params, x, h=6, causal=True, rotary=turn)
    last = multi_head_attention(params, x[7 - n :], x, h=6, causal=True, rotary=turn)
    np.testing.assert_allclose(last, whole[7 - n :], atol=1e-12)


@given(st.integers(0, 2**31), st.permutations(range(7)))
def test_without_positions_and_mask_tokens_have_no_order(seed, order):
    rng = np.random.default_rng(seed)
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    y = multi_head_attention(params, x, h=6)
    np.testing.assert_allclose(multi_head_attention(params, x[order], h=6), y[order], atol=1e-12)


@given(st.integers(0, 2**31), st.integers(-500, 500))
def test_moving_all_positions_changes_nothing(seed, shift):
    rng = np.random.default_rng(seed)
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    y, moved = (multi_head_attention(params, x, h=6, rotary=rotary(POSITIONS + s)) for s in (0, shift))
    np.testing.assert_allclose(moved, y, atol=1e-10)


def test_every_sequence_may_stand_at_its_own_positions(rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(2, 7, 11))
    positions = np.array([POSITIONS, POSITIONS[::-1]])
    cos, sin = rotary_tables(positions, 4)
    y = multi_head_attention(params, x, h=6, rotary=Rotary(cos[:, None], sin[:, None], interleaved=True))
    for b in range(2):
        alone = loops.multi_head(params, x[b], x[b], h=6, positions=positions[b], interleaved=True)
        np.testing.assert_allclose(y[b], alone, atol=1e-12)


def test_batch_axes_are_independent_and_any_number(rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(2, 3, 5, 11))
    y, pullback = multi_head_attention_vjp(params, x, h=6, causal=True)
    dy = rng.normal(size=y.shape)
    dparams, dx = pullback(dy)
    total = None
    for lead in np.ndindex(2, 3):
        alone, back = multi_head_attention_vjp(params, x[lead], h=6, causal=True)
        dparams_alone, dx_alone = back(dy[lead])
        np.testing.assert_allclose(alone, y[lead], atol=1e-13)
        np.testing.assert_allclose(dx_alone, dx[lead], atol=1e-13)
        total = dparams_alone if total is None else map_arrays(np.add, total, dparams_alone)
    for sum_alone, together in zip(arrays_of(total), arrays_of(dparams), strict=True):
        np.testing.assert_allclose(sum_alone, together, atol=1e-11)


def test_future_tokens_leave_no_trace_forward_or_backward(rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    y, pullback = multi_head_attention_vjp(params, x, h=6, causal=True, rotary=rotary())
    dy = np.zeros_like(y)
    dy[3] = 1
    assert (pullback(dy)[1][4:] == 0).all()
    changed = x.copy()
    changed[4:] = rng.normal(size=(3, 11))
    again = multi_head_attention(params, changed, h=6, causal=True, rotary=rotary())
    np.testing.assert_array_equal(again[:4], y[:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_error_in_low_precision_is_at_most_twice_that_of_torch(dtype, rng):
    theirs = torch.nn.MultiheadAttention(26, 2, batch_first=True, dtype=torch.float64)
    x = as_torch(rng.normal(size=(3, 31, 26)))
    theirs.to(dtype)
    x = x.to(dtype)
    low, _ = theirs(x, x, x, need_weights=False)
    params = torch_weights.multi_head(torch_weights.weights(theirs))
    mine = multi_head_attention(params, x, h=2)
    assert mine.dtype == dtype
    exact = to_numpy(multi_head_attention(map_arrays(lambda a: a.double(), params), x.double(), h=2))
    rms = lambda y: np.sqrt(np.mean((to_numpy(y) - exact) ** 2))  # noqa: E731
    assert rms(mine) <= 2 * rms(low)


def planted(name, monkeypatch):
    """Put one mistake of the wild into the module."""
    if name == "heads reshaped, not transposed":
        monkeypatch.setattr(
            module, "split_heads", lambda x, h: x.reshape(*x.shape[:-2], h, x.shape[-2], x.shape[-1] // h)
        )
    if name == "heads merged without the transpose":
        monkeypatch.setattr(module, "merge_heads", lambda x: x.reshape(*x.shape[:-3], x.shape[-2], -1))
    if name == "key heads tiled":
        right = module.attention_vjp
        monkeypatch.setattr(
            module,
            "attention_vjp",
            lambda q, k, v, **o: right(q, np.concatenate([k, k], -3), np.concatenate([v, v], -3), **o),
        )
    if name == "scaled by the width of the model":
        right = module.attention_vjp
        monkeypatch.setattr(module, "attention_vjp", lambda q, k, v, **o: right(q, k, v, scale=11**-0.5, **o))
    if name == "queries rotated from position 0":
        right = module._turned_vjp
        monkeypatch.setattr(
            module,
            "_turned_vjp",
            lambda x, r, m: right(x, Rotary(r.cos[: x.shape[-2]], r.sin[: x.shape[-2]], r.interleaved), x.shape[-2]),
        )
    if name == "keys not rotated":
        right = module._turned_vjp
        monkeypatch.setattr(module, "_turned_vjp", lambda x, r, m: right(x, r if x.shape[-2] < m else None, m))
    if name == "W_O dropped":
        right = module.linear_vjp
        monkeypatch.setattr(
            module, "linear_vjp", lambda x, W, b: right(x, np.eye(*W.shape), b) if W.shape[0] == 30 else right(x, W, b)
        )


@pytest.mark.parametrize(
    "name",
    [
        "heads reshaped, not transposed",
        "heads merged without the transpose",
        "key heads tiled",
        "scaled by the width of the model",
        "queries rotated from position 0",
        "keys not rotated",
        "W_O dropped",
    ],
)
def test_a_planted_error_is_seen_against_the_loops(name, monkeypatch, rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(7, 11))
    expected = loops.multi_head(params, x[2:], x, h=6, positions=POSITIONS, interleaved=False, causal=True)
    right = multi_head_attention(params, x[2:], x, h=6, rotary=rotary(), causal=True)
    np.testing.assert_allclose(right, expected, atol=1e-12)
    planted(name, monkeypatch)
    wrong = multi_head_attention(params, x[2:], x, h=6, rotary=rotary(), causal=True)
    assert abs(wrong - expected).max() > 1e-2


def test_no_queries_and_no_keys(rng):
    params = case(rng)
    y, pullback = multi_head_attention_vjp(params, rng.normal(size=(3, 11)), np.zeros((0, 7)), h=6)
    np.testing.assert_allclose(y, np.broadcast_to(params.b_O, (3, 11)))  # nothing to read: zeros, then the bias
    dparams, dx, dmemory = pullback(np.ones((3, 11)))
    assert (dx == 0).all() and dmemory.shape == (0, 7) and (dparams.W_K == 0).all()
    assert multi_head_attention(params, np.zeros((0, 11)), np.ones((7, 7)), h=6).shape == (0, 11)


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    params, x = case(rng, d_memory=11), rng.normal(size=(2, 7, 11))
    with pytest.raises(ShapeError, match=r"W_Q has 24 columns, which do not divide into h = 5 heads"):
        multi_head_attention(params, x, h=5)
    with pytest.raises(
        ShapeError, match=r"W_K has 10 columns; with d_k = 4 from W_Q and h = 6 it must hold h_kv · d_k"
    ):
        multi_head_attention(params._replace(W_K=np.ones((11, 10)), b_K=None), x, h=6)
    with pytest.raises(ShapeError, match=r"W_K has 16 columns; .* where h_kv divides h"):
        multi_head_attention(params._replace(W_K=np.ones((11, 16)), b_K=None), x, h=6)
    with pytest.raises(ShapeError, match=r"W_V has 15 columns and W_O 29 rows; with h = 6 and h_kv = 3"):
        multi_head_attention(params._replace(W_O=np.ones((29, 11))), x, h=6)
    with pytest.raises(ShapeError, match=r"W_Q has d_model = 13, x had d_model = 11"):
        multi_head_attention(params._replace(W_Q=np.ones((13, 24))), x, h=6)
    with pytest.raises(ShapeError, match=r"memory has batch = \(3,\), x had batch = \(2,\)"):
        multi_head_attention(params, x, rng.normal(size=(3, 7, 11)), h=6)
    with pytest.raises(ShapeError, match=r"rotary has 7 rows for n = 5 queries and m = 5 keys; it needs one a key"):
        multi_head_attention(params, x[:, :5], h=6, rotary=rotary())
    with pytest.raises(ShapeError, match=r"dy has n = 5, x had n = 7"):
        multi_head_attention_vjp(params, x, h=6)[1](x[:, :5])
    with pytest.raises(DtypeError, match=r"(?s)params is \{.{0,60}\}; MultiHeadParams is expected"):
        multi_head_attention({"W_Q": x}, x, h=6)
    with pytest.raises(DtypeError, match=r"x is an array of numpy, W_Q one of torch"):
        multi_head_attention(to_torch(params), x, h=6)
