"""Blocks, post-norm and pre-norm, with and without cross-attention: torch's layers, differences, autograd, slips."""

from functools import partial

import numpy as np
import pytest
import torch

from derived.errors import ShapeError
from derived.model import (
    Rotary,
    feed_forward_layer_vjp,
    layer_vjp,
    map_arrays,
    multi_head_attention_vjp,
    post_norm_block,
    post_norm_block_vjp,
    post_norm_cross_block,
    post_norm_cross_block_vjp,
    pre_norm_block,
    pre_norm_block_vjp,
    pre_norm_cross_block,
    pre_norm_cross_block_vjp,
)
from derived.model.initialise import (
    initial_block,
    initial_cross_block,
    initial_gated_feed_forward,
)
from derived.model.parameters import BlockParams
from derived.ops.activations import gelu_tanh_vjp, gelu_vjp, relu_vjp, silu_vjp
from derived.ops.norm import layer_norm_vjp, rms_norm, rms_norm_vjp
from derived.ops.positions import rotary_tables
from tests.model import torch_weights
from tests.model.support import STEP, arrays_of, assert_same, flattened, shaken, without_key_biases
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

FORMS = [
    pytest.param(post_norm_block, post_norm_block_vjp, id="post_norm"),
    pytest.param(pre_norm_block, pre_norm_block_vjp, id="pre_norm"),
]
each_form = pytest.mark.parametrize(("block", "block_vjp"), FORMS)
CROSS_FORMS = [
    pytest.param(post_norm_cross_block, post_norm_cross_block_vjp, False, id="post_norm"),
    pytest.param(pre_norm_cross_block, pre_norm_cross_block_vjp, True, id="pre_norm"),
]
each_cross_form = pytest.mark.parametrize(("block", "block_vjp", "norm_first"), CROSS_FORMS)


def plain_case(rng):
    """As in 2017: LayerNorm, plain network, biases."""
    return shaken(initial_block(rng, 6, h=3, d_ff=13), rng), {"h": 3, "activation_vjp": gelu_vjp}


def modern_case(rng, array=np.asarray):
    """As in Llama: RMSNorm, gated network, no biases, shared key heads, rotary, causal."""
    params = initial_block(rng, 12, h=3, h_kv=1, d_ff=13, biased=False, feed_forward=initial_gated_feed_forward)
    turn = Rotary(*rotary_tables(array(np.arange(7)), 4), interleaved=False)
    return shaken(params, rng), {
        "h": 3,
        "norm_vjp": partial(rms_norm_vjp, eps=1e-6),
        "activation_vjp": silu_vjp,
        "rotary": turn,
        "causal": True,
    }


@pytest.mark.parametrize("array", VOICES)
@each_form
def test_is_the_definition(block, block_vjp, array, rng):
    params, options = plain_case(rng)
    x = rng.normal(size=(7, 6))

    def norm(params, x):
        return loops.layer_norm(x, *params)

    def attend(x):
        return loops.multi_head(params.attention, x, x, h=3, causal=True)

    def think(x):
        return loops.feed_forward(x, *params.feed_forward, activation=loops.gelu)

    if block is post_norm_block:
        middle = norm(params.norm_1, x + attend(x))
        expected = norm(params.norm_2, middle + think(middle))
    else:
        middle = x + attend(norm(params.norm_1, x))
        expected = middle + think(norm(params.norm_2, middle))
    y = block(map_arrays(array, params), array(x), causal=True, **options)
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", [plain_case, modern_case])
@each_form
def test_pullback_is_the_derivative(block, block_vjp, case, rng):
    params, options = case(rng)
    width = params.norm_1.gain.shape[0]
    options = {"causal": True, **options}
    params = without_key_biases(params)
    args = [*arrays_of(params), rng.normal(size=(2, 7, width))]
    check_vjp(flattened(block_vjp, params), args, rng, step=STEP, **options)
    if case is modern_case:
        options = {"causal": True, **modern_case(rng, as_torch)[1]}
    check_autograd(flattened(block, params), flattened(block_vjp, params), args, rng, **options)


@each_cross_form
def test_pullback_with_cross_attention_is_the_derivative(block, block_vjp, norm_first, rng):
    params = without_key_biases(shaken(initial_cross_block(rng, 6, h=3, d_ff=13), rng))
    args = [*arrays_of(params), rng.normal(size=(2, 5, 6)), rng.normal(size=(2, 7, 6))]
    mask = rng.random((2, 1, 1, 7)) < 0.6
    options = {"h": 3, "activation_vjp": gelu_vjp, "causal": True, "memory_reading": {"mask": mask}}
    check_vjp(flattened(block_vjp, params), args, rng, step=STEP, **options)
    options["memory_reading"] = {"mask": torch.from_numpy(mask)}
    check_autograd(flattened(block, params), flattened(block_vjp, params), args, rng, **options)


@pytest.mark.parametrize("which", range(-17, 0))
@each_form
def test_the_derivative_check_sees_one_part_in_a_thousand_in_every_gradient(block, block_vjp, which, rng):
    params, options = plain_case(rng)
    params = without_key_biases(params)
    args = [*arrays_of(params), rng.normal(size=(2, 7, 6))]
    with pytest.raises(AssertionError, match="off by"):
        wrong = off_by(flattened(block_vjp, params), 1.001, which % len(args))
        check_vjp(wrong, args, rng, directions=1, step=STEP, **options)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_encoder_layer_of_torch_says_the_same(norm_first, causal, activation, rng):
    theirs = torch.nn.TransformerEncoderLayer(
        6, 3, 13, dropout=0, activation=activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    shake(theirs)
    x = as_torch(rng.normal(size=(2, 7, 6))).requires_grad_()
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    dy = as_torch(rng.normal(size=(2, 7, 6)))
    expected = theirs(x, src_mask=hidden, src_key_padding_mask=padding)
    expected.backward(dy)
    y, pullback = (pre_norm_block_vjp if norm_first else post_norm_block_vjp)(
        torch_weights.encoder_layer(torch_weights.weights(theirs)),
        x.detach(),
        h=3,
        activation_vjp={"relu": relu_vjp, "gelu": gelu_vjp}[activation],
        causal=causal,
        mask=~padding[:, None, None],
    )
    dparams, dx = pullback(dy)
    grads = torch_weights.encoder_layer(torch_weights.gradients(theirs))
    assert_same((y, dx, without_key_biases(dparams)), (expected, x.grad, without_key_biases(grads)))


@each_cross_form
def test_the_decoder_layer_of_torch_says_the_same(block, block_vjp, norm_first, rng):
    theirs = torch.nn.TransformerDecoderLayer(
        6, 3, 13, dropout=0, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    shake(theirs)
    x, memory = (as_torch(rng.normal(size=s)).requires_grad_() for s in ((2, 5, 6), (2, 7, 6)))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 3:] = True
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    dy = as_torch(rng.normal(size=(2, 5, 6)))
    expected = theirs(x, memory, tgt_mask=hidden, memory_key_padding_mask=padding)
    expected.backward(dy)
    y, pullback = block_vjp(
        torch_weights.decoder_layer(torch_weights.weights(theirs)),
        x.detach(),
        memory.detach(),
        h=3,
        causal=True,
        memory_reading={"mask": ~padding[:, None, None]},
    )
    dparams, dx, dmemory = pullback(dy)
    grads = torch_weights.decoder_layer(torch_weights.gradients(theirs))
    assert_same(
        (y, dx, dmemory, without_key_biases(dparams)), (expected, x.grad, memory.grad, without_key_biases(grads))
    )


def shake(module):
    """Move torch's biases off 0 and its gains off 1."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


@each_form
def test_with_output_matrices_of_zero_pre_norm_is_the_identity_and_post_norm_two_norms(block, block_vjp, rng):
    params, options = modern_case(rng)
    params = params._replace(
        attention=params.attention._replace(W_O=0 * params.attention.W_O),
        feed_forward=params.feed_forward._replace(W_down=0 * params.feed_forward.W_down),
    )
    x, dy = rng.normal(size=(2, 2, 7, 12))
    y, pullback = block_vjp(params, x, **options)
    if block is pre_norm_block:
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(pullback(dy)[1], dy)
    else:
        twice = rms_norm(rms_norm(x, params.norm_1.gain, eps=1e-6), params.norm_2.gain, eps=1e-6)
        np.testing.assert_allclose(y, twice, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm_first", [False, True])
def test_error_in_low_precision_is_at_most_twice_that_of_torch(norm_first, dtype, rng):
    theirs = torch.nn.TransformerEncoderLayer(26, 2, 53, dropout=0, norm_first=norm_first, batch_first=True)
    theirs, x = theirs.to(dtype), torch.from_numpy(rng.normal(size=(3, 31, 26))).to(dtype)
    block_vjp = pre_norm_block_vjp if norm_first else post_norm_block_vjp
    params = torch_weights.encoder_layer(torch_weights.weights(theirs))
    mine, pullback = block_vjp(params, x, h=2)
    exact, exactly = block_vjp(map_arrays(lambda a: a.double(), params), x.double(), h=2)
    leaf = x.clone().requires_grad_()
    low = theirs(leaf)
    dy = torch.from_numpy(rng.normal(size=(3, 31, 26))).to(dtype)
    low.backward(dy)

    def rms(y, exact):
        assert y.dtype == dtype
        return np.sqrt(np.mean((to_numpy(y) - to_numpy(exact)) ** 2))

    assert rms(mine, exact) <= 2 * rms(low, exact)
    dx, dx_exact = pullback(dy)[1], exactly(dy.double())[1]
    assert rms(dx, dx_exact) <= 2 * rms(leaf.grad, dx_exact)


def slipped(slip):
    """The block of 2017 with one slip in its pullback, or in its forward."""

    def block_vjp(params, x, *, h, norm_vjp=layer_norm_vjp, activation_vjp=relu_vjp, **reading):
        a, attention_pullback = multi_head_attention_vjp(params.attention, x, h=h, **reading)
        residual = a if slip == "the first residual lost" else x + a
        x_1, norm_1_pullback = layer_vjp(norm_vjp, params.norm_1, residual)
        f, feed_forward_pullback = feed_forward_layer_vjp(params.feed_forward, x_1, activation_vjp=activation_vjp)
        second = x + f if slip == "the second residual taken from x" else x_1 + f
        y, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, second)

        def pullback(dy):
            dnorm_2, dsum_2 = norm_2_pullback(dy)
            dfeed_forward, df = feed_forward_pullback(dsum_2)
            dnorm_1, dsum_1 = norm_1_pullback(df if slip == "no gradient through the second residual" else dsum_2 + df)
            dattention, da = attention_pullback(dsum_2 if slip == "the first norm passed by" else dsum_1)
            if slip == "norms swapped":
                dnorm_1, dnorm_2 = dnorm_2, dnorm_1
            dx = dsum_1 if slip == "attention's part lost" else dsum_1 + da
            return BlockParams(dattention, dnorm_1, dfeed_forward, dnorm_2), dx

        return y, pullback

    return block_vjp


BACKWARD_SLIPS = [
    "no gradient through the second residual",
    "the first norm passed by",
    "norms swapped",
    "attention's part lost",
]


@pytest.mark.parametrize("slip", BACKWARD_SLIPS)
def test_a_slip_in_the_chain_is_seen_by_the_derivative_check(slip, rng):
    params, options = plain_case(rng)
    params = without_key_biases(params)
    args = [*arrays_of(params), rng.normal(size=(2, 7, 6))]
    check_vjp(flattened(slipped(None), params), args, rng, step=STEP, **options)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(flattened(slipped(slip), params), args, rng, step=STEP, **options)


@pytest.mark.parametrize("slip", ["the first residual lost", "the second residual taken from x"])
def test_a_slip_in_the_forward_is_seen_against_the_block(slip, rng):
    params, options = plain_case(rng)
    x = rng.normal(size=(2, 7, 6))
    right = post_norm_block(params, x, **options)
    np.testing.assert_array_equal(slipped(None)(params, x, **options)[0], right)
    assert abs(slipped(slip)(params, x, **options)[0] - right).max() > 0.1
    assert abs(pre_norm_block(params, x, **options) - right).max() > 0.1  # the two forms are not one


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    params, options = plain_case(rng)
    x = rng.normal(size=(2, 7, 6))
    with pytest.raises(ShapeError, match=r"gain has d_model = 5, x had d_model = 6"):
        post_norm_block(params._replace(norm_1=params.norm_1._replace(gain=np.ones(5))), x, **options)
    with pytest.raises(ShapeError, match=r"dy has n = 3, x had n = 7"):
        pre_norm_block_vjp(params, x, **options)[1](x[:, :3])
    with pytest.raises(TypeError, match="causul"):
        pre_norm_block(params, x, causul=True, **options)


def test_the_tanh_form_is_passed_through(rng):
    params, options = plain_case(rng)
    x = rng.normal(size=(2, 7, 6))
    exact, tanh = (pre_norm_block(params, x, h=3, activation_vjp=f) for f in (gelu_vjp, gelu_tanh_vjp))
    assert 0 < abs(exact - tanh).max() < 13 * 5e-4 * abs(params.feed_forward.W_2).max()
    np.testing.assert_array_equal(exact, pre_norm_block(params, x, **options))
