"""The feed-forward network and its gated form: the definition, the gradient, the laws, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.activations import gelu_tanh_vjp, gelu_vjp, relu_vjp, silu_vjp
from derived.ops.feed_forward import feed_forward, feed_forward_vjp, gated_feed_forward, gated_feed_forward_vjp
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

ACTIVATIONS = [
    pytest.param(relu_vjp, loops.relu, id="relu"),
    pytest.param(gelu_vjp, loops.gelu, id="gelu"),
    pytest.param(gelu_tanh_vjp, loops.gelu_tanh, id="gelu_tanh"),
    pytest.param(silu_vjp, loops.silu, id="silu"),
]
each_activation = pytest.mark.parametrize(("activation_vjp", "loop"), ACTIVATIONS)
SMOOTH = [p for p in ACTIVATIONS if p.id != "relu"]  # a difference may step over the kink of ReLU


def plain_case(rng):
    return [rng.normal(size=s) for s in ((2, 3, 5), (5, 11), (11, 5), (11,), (5,))]


def gated_case(rng):
    return [rng.normal(size=s) for s in ((2, 3, 5), (5, 11), (5, 11), (11, 5), (11,), (11,), (5,))]


@pytest.mark.parametrize("array", VOICES)
@each_activation
def test_is_the_definition(activation_vjp, loop, array, rng):
    for biased in (True, False):
        args = plain_case(rng)[: None if biased else 3]
        y = feed_forward(*map(array, args), activation_vjp=activation_vjp)
        np.testing.assert_allclose(to_numpy(y), loops.feed_forward(*args, activation=loop), rtol=1e-12, atol=1e-12)
        args = gated_case(rng)[: None if biased else 4]
        y = gated_feed_forward(*map(array, args), activation_vjp=activation_vjp)
        np.testing.assert_allclose(
            to_numpy(y), loops.gated_feed_forward(*args, activation=loop), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(("activation_vjp", "loop"), SMOOTH)
def test_pullback_is_the_derivative(activation_vjp, loop, rng):
    for biased in (True, False):
        check_vjp(feed_forward_vjp, plain_case(rng)[: None if biased else 3], rng, activation_vjp=activation_vjp)
        args = gated_case(rng)[: None if biased else 4]
        check_vjp(gated_feed_forward_vjp, args, rng, activation_vjp=activation_vjp)


@each_activation
def test_pullback_is_what_autograd_says(activation_vjp, loop, rng):
    check_autograd(feed_forward, feed_forward_vjp, plain_case(rng), rng, activation_vjp=activation_vjp)
    check_autograd(gated_feed_forward, gated_feed_forward_vjp, gated_case(rng), rng, activation_vjp=activation_vjp)


@pytest.mark.parametrize("which", range(7))
def test_the_checks_see_one_part_in_a_thousand(which, rng):
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(gated_feed_forward_vjp, 1.001, which), gated_case(rng), rng, activation_vjp=silu_vjp)
    if which < 5:
        with pytest.raises(AssertionError, match="off by"):
            check_vjp(off_by(feed_forward_vjp, 1.001, which), plain_case(rng), rng, activation_vjp=gelu_vjp)


@pytest.mark.parametrize("planted", ["the other factor", "no slope", "one copy of x"])
def test_slips_in_the_gated_pullback_are_seen(planted, rng):
    x, W_gate, W_up, W_down = gated_case(rng)[:4]
    right = gated_feed_forward_vjp(x, W_gate, W_up, W_down, activation_vjp=silu_vjp)
    g, slope = silu_vjp(x @ W_gate)
    u = x @ W_up

    def slipped(dy):
        dz = dy @ W_down.T
        dg = slope(dz * g) if planted == "the other factor" else dz * u if planted == "no slope" else slope(dz * u)
        dx = dg @ W_gate.T + (0 if planted == "one copy of x" else dz * g @ W_up.T)
        return (dx, *right[1](dy)[1:])

    def wrong(*args, **options):
        return gated_feed_forward_vjp(*args, **options)[0], slipped

    with pytest.raises(AssertionError, match="off by"):
        check_vjp(wrong, [x, W_gate, W_up, W_down], rng, activation_vjp=silu_vjp)


def test_torch_modules_with_the_same_weights_say_the_same(rng):
    x, W_1, W_2, b_1, b_2 = map(as_torch, plain_case(rng))
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 11), torch.nn.GELU(), torch.nn.Linear(11, 5)).double()
    theirs.load_state_dict({"0.weight": W_1.T, "0.bias": b_1, "2.weight": W_2.T, "2.bias": b_2})
    y, pullback = feed_forward_vjp(x, W_1, W_2, b_1, b_2, activation_vjp=gelu_vjp)
    expected = theirs(x)
    expected.sum().backward()
    np.testing.assert_allclose(to_numpy(y), to_numpy(expected), rtol=1e-12, atol=1e-13)
    _, dW_1, dW_2, db_1, db_2 = pullback(torch.ones_like(y))
    for mine, parameter in ((dW_1.T, "0.weight"), (db_1, "0.bias"), (dW_2.T, "2.weight"), (db_2, "2.bias")):
        grad = theirs.get_parameter(parameter).grad
        np.testing.assert_allclose(to_numpy(mine), to_numpy(grad), rtol=1e-12, atol=1e-12)


def test_swiglu_of_transformers_with_the_same_weights_says_the_same(rng):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

    config = LlamaConfig(
        hidden_size=5, intermediate_size=11, hidden_act="silu", mlp_bias=True, num_attention_heads=1, head_dim=2
    )
    theirs = LlamaMLP(config).double()
    x, W_gate, W_up, W_down, b_gate, b_up, b_down = map(as_torch, gated_case(rng))
    weights = {"gate_proj": (W_gate, b_gate), "up_proj": (W_up, b_up), "down_proj": (W_down, b_down)}
    theirs.load_state_dict(
        {f"{n}.weight": W.T for n, (W, _) in weights.items()} | {f"{n}.bias": b for n, (_, b) in weights.items()}
    )
    y = gated_feed_forward(x, W_gate, W_up, W_down, b_gate, b_up, b_down, activation_vjp=silu_vjp)
    np.testing.assert_allclose(to_numpy(y), to_numpy(theirs(x)), rtol=1e-12, atol=1e-12)


def identity_vjp(x):
    return x, lambda dy: dy


@given(arrays(np.float64, (3, 5), elements=st.floats(-9, 9)), st.integers(0, 2**31))
def test_without_a_bend_two_maps_are_one(x, seed):
    rng = np.random.default_rng(seed)
    W_1, W_2, b_1, b_2 = (rng.normal(size=s) for s in ((5, 11), (11, 5), (11,), (5,)))
    y = feed_forward(x, W_1, W_2, b_1, b_2, activation_vjp=identity_vjp)
    np.testing.assert_allclose(y, x @ (W_1 @ W_2) + (b_1 @ W_2 + b_2), atol=1e-10)


@given(st.permutations(range(11)), st.integers(0, 2**31))
def test_hidden_units_have_no_order_and_tokens_do_not_meet(order, seed):
    rng = np.random.default_rng(seed)
    x, W_1, W_2, b_1, b_2 = plain_case(rng)
    y = feed_forward(x, W_1, W_2, b_1, b_2, activation_vjp=gelu_vjp)
    mixed = feed_forward(x, W_1[:, order], W_2[order], b_1[order], b_2, activation_vjp=gelu_vjp)
    np.testing.assert_allclose(mixed, y, atol=1e-12)
    alone = feed_forward(x[1, 2], W_1, W_2, b_1, b_2, activation_vjp=gelu_vjp)
    np.testing.assert_allclose(alone, y[1, 2], atol=1e-12)


def test_a_gate_of_ones_leaves_the_plain_product(rng):
    x, W_gate, W_up, W_down, b_gate, _, _ = gated_case(rng)
    ones_vjp = lambda x: (np.ones_like(x), lambda dy: np.zeros_like(dy))  # noqa: E731
    y = gated_feed_forward(x, W_gate, W_up, W_down, b_gate, activation_vjp=ones_vjp)
    np.testing.assert_allclose(y, x @ W_up @ W_down, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_rounded_once(dtype, rng):
    args = [torch.from_numpy(a).to(dtype) for a in gated_case(rng)]
    dy = torch.from_numpy(rng.normal(size=(2, 3, 5))).to(dtype)
    y, pullback = gated_feed_forward_vjp(*args, activation_vjp=silu_vjp)
    exact_y, exactly = gated_feed_forward_vjp(*[a.double() for a in args], activation_vjp=silu_vjp)
    for mine, exact in zip((y, *pullback(dy)), (exact_y, *exactly(dy.double())), strict=True):
        assert mine.dtype == dtype
        mine, exact = to_numpy(mine), to_numpy(exact)
        # one rounding of the result, and float32 inside where terms cancel
        np.testing.assert_allclose(mine, exact, rtol=1.01 * torch.finfo(dtype).eps / 2, atol=2e-6 * abs(exact).max())


def test_a_hidden_layer_beyond_float16_does_not_overflow():
    # 300 · 300 = 90,000 lies beyond 65,504, but only inside
    x, W_1, W_2 = (np.array([[v]], dtype=np.float16) for v in (300, 300, 0.01))
    y = feed_forward(x, W_1, W_2, activation_vjp=relu_vjp)
    assert y.dtype == np.float16 and y[0, 0] == pytest.approx(900, rel=1e-3)


def test_no_tokens_and_no_hidden_units(rng):
    x, W_1, W_2, b_1, b_2 = plain_case(rng)
    y, pullback = feed_forward_vjp(x[:, :0], W_1, W_2, b_1, b_2, activation_vjp=silu_vjp)
    dx, dW_1, *_ = pullback(y)
    assert y.shape == dx.shape == (2, 0, 5) and (dW_1 == 0).all()
    y = feed_forward(x, W_1[:, :0], W_2[:0], b_1[:0], b_2, activation_vjp=silu_vjp)
    np.testing.assert_array_equal(y, np.broadcast_to(b_2, y.shape))


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    x, W_1, W_2, b_1, _ = plain_case(rng)
    with pytest.raises(ShapeError, match=r"feed_forward: W_2 has d_ff = 13, W_1 had d_ff = 11"):
        feed_forward(x, W_1, np.ones((13, 5)), activation_vjp=relu_vjp)
    with pytest.raises(ShapeError, match=r"W_1 has d_model = 11, x had d_model = 5"):
        feed_forward(x, W_1.T, W_2, activation_vjp=relu_vjp)
    with pytest.raises(ShapeError, match=r"b_2 has d_model = 11"):
        feed_forward(x, W_1, W_2, b_1, b_1, activation_vjp=relu_vjp)
    with pytest.raises(DtypeError, match=r"activation_vjp is 'relu'; Callable is expected"):
        feed_forward(x, W_1, W_2, activation_vjp="relu")
    _, pullback = gated_feed_forward_vjp(x, W_1, W_1, W_2, activation_vjp=silu_vjp)
    with pytest.raises(ShapeError, match=r"dy has d_model = 7, x had d_model = 5"):
        pullback(np.ones((2, 3, 7)))
