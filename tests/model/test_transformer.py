"""Stacks and whole transformers: torch's Transformer, GPT-2 and Llama with the same weights, traces, depth."""

from functools import partial

import numpy as np
import pytest
import torch

import derived.model.transformer as module
from derived.errors import DerivedError, ShapeError
from derived.model import (
    Rotary,
    count_parameters,
    decoder,
    decoder_only,
    decoder_only_vjp,
    decoder_vjp,
    encoder,
    encoder_decoder,
    encoder_decoder_vjp,
    encoder_vjp,
    layers_trace,
    leaves,
    map_arrays,
    post_norm_block_vjp,
    pre_norm_block_vjp,
    pre_norm_cross_block_vjp,
    stack_vjp,
)
from derived.model.initialise import (
    fan_in_normal,
    initial_block,
    initial_cross_block,
    initial_decoder_only,
    initial_encoder_decoder,
    initial_gated_feed_forward,
    initial_stack,
    xavier_uniform,
)
from derived.ops.activations import gelu_tanh_vjp, gelu_vjp, silu_vjp
from derived.ops.norm import rms_norm_vjp
from derived.ops.positions import rotary_tables
from tests.model import torch_weights
from tests.model.support import STEP, arrays_of, assert_same, flattened, shaken, to_torch, without_key_biases
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy


def shake(model):
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


# The same weights elsewhere


def test_the_transformer_of_torch_says_the_same(rng):
    theirs = torch.nn.Transformer(6, 2, 2, 2, 13, dropout=0, batch_first=True, dtype=torch.float64)
    shake(theirs)
    source, target = (as_torch(rng.normal(size=s)).requires_grad_() for s in ((2, 7, 6), (2, 5, 6)))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    expected = theirs(
        source,
        target,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    dy = as_torch(rng.normal(size=(2, 5, 6)))
    expected.backward(dy)
    mask = {"mask": ~padding[:, None, None]}
    params = torch_weights.transformer(torch_weights.weights(theirs), 2)
    y, pullback = encoder_decoder_vjp(
        params, source.detach(), target.detach(), h=2, source_reading=mask, memory_reading=mask
    )
    dparams, dsource, dtarget = pullback(dy)
    grads = torch_weights.transformer(torch_weights.gradients(theirs), 2)
    assert_same((y, dsource, dtarget), (expected, source.grad, target.grad))
    assert_same(without_key_biases(dparams), without_key_biases(grads))


def test_gpt2_of_transformers_with_the_same_weights_says_the_same(rng):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=17, n_positions=11, n_embd=6, n_layer=2, n_head=3, n_inner=13, attn_implementation="eager",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).double()
    shake(theirs)
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    expected = theirs(tokens).logits
    dlogits = as_torch(rng.normal(size=(2, 7, 17)))
    expected.backward(dlogits)
    params = torch_weights.gpt2(torch_weights.weights(theirs), 2)
    logits, pullback = decoder_only_vjp(params, tokens, h=3, activation_vjp=gelu_tanh_vjp)
    grads = torch_weights.gpt2(torch_weights.gradients(theirs), 2)
    assert_same(logits, expected)
    assert_same(without_key_biases(pullback(dlogits)), without_key_biases(grads))
    assert count_parameters(params) == theirs.num_parameters()
    exact_form = decoder_only(params, tokens, h=3, activation_vjp=gelu_vjp)
    assert abs(to_numpy(exact_form - logits)).max() > 1e-6  # the comparison is fine enough to tell the two GELUs apart


class Float64(torch.nn.Module):
    """torch as modeling_llama sees it, with 64 in place of the 32 bits that it fixes for norms and softmax."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class Tables(torch.nn.Module):
    """Rotary tables in float64 where transformers computes them in float32; each angle twice, as it wants them."""

    def __init__(self, cos, sin):
        super().__init__()
        self.cos, self.sin = (torch.cat((t, t), dim=-1)[None] for t in (cos, sin))

    def forward(self, x, position_ids):
        return self.cos.to(x.dtype), self.sin.to(x.dtype)


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=17, hidden_size=24, intermediate_size=13, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, attn_implementation="eager", bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    shake(theirs)
    return theirs


def as_llama(n, dtype=torch.float64):
    cos, sin = rotary_tables(torch.arange(n), 4, base=500)
    return {
        "h": 6,
        "norm_vjp": partial(rms_norm_vjp, eps=1e-6),
        "activation_vjp": silu_vjp,
        "rotary": Rotary(cos.to(dtype), sin.to(dtype), interleaved=False),
    }


def test_llama_of_transformers_with_the_same_weights_says_the_same(monkeypatch, rng):
    from transformers.models.llama import modeling_llama

    theirs = tiny_llama().double()
    options = as_llama(7)
    theirs.model.rotary_emb = Tables(*options["rotary"][:2])
    monkeypatch.setattr(modeling_llama, "torch", Float64())
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    expected = theirs(tokens).logits
    dlogits = as_torch(rng.normal(size=(2, 7, 17)))
    expected.backward(dlogits)
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    logits, pullback = decoder_only_vjp(params, tokens, **options)
    assert_same(logits, expected)
    assert_same(pullback(dlogits), torch_weights.llama(torch_weights.gradients(theirs), 2))
    assert count_parameters(params) == theirs.num_parameters()


def test_llama_as_published_in_float32_differs_by_rounding_alone(rng):
    theirs = tiny_llama()
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    exact = to_numpy(decoder_only(map_arrays(lambda x: x.double(), params), tokens, **as_llama(7)))
    mine = to_numpy(decoder_only(params, tokens, **as_llama(7, torch.float32)))
    published = to_numpy(theirs(tokens).logits)
    assert 0 < abs(published - exact).max() < 1e-5 * abs(exact).max()
    assert abs(mine - exact).max() <= 2 * abs(published - exact).max()


@pytest.mark.parametrize("slip", ["interleaved", "eps", "theta", "heads tiled"])
def test_a_slip_in_the_settings_of_llama_is_seen(slip, rng):
    theirs = tiny_llama()
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    options = as_llama(7, torch.float32)
    if slip == "interleaved":
        options["rotary"] = options["rotary"]._replace(interleaved=True)
    if slip == "eps":
        options["norm_vjp"] = partial(rms_norm_vjp, eps=1e-3)
    if slip == "theta":
        options["rotary"] = Rotary(*(t.float() for t in rotary_tables(torch.arange(7), 4)), interleaved=False)
    if slip == "heads tiled":  # [a, b, c] shared as [a, b, c, a, b, c] instead of [a, a, b, b, c, c]
        order = torch.tensor([0, 2, 4, 1, 3, 5])
        swap = lambda W: W.reshape(-1, 6, 4)[:, order].reshape(W.shape)  # noqa: E731
        layers = tuple(
            layer._replace(attention=layer.attention._replace(W_Q=swap(layer.attention.W_Q)))
            for layer in params.stack.layers
        )
        params = params._replace(stack=params.stack._replace(layers=layers))
    published = to_numpy(theirs(tokens).logits)
    wrong = to_numpy(decoder_only(params, tokens, **options))
    assert abs(wrong - published).max() > 1e-4 * abs(published).max()


# Gradients


def lm_case(rng, **options):
    """A language model whose keys' biases are left out: without rotary their gradient is 0."""
    params = shaken(initial_decoder_only(rng, 17, 6, L=2, h=3, d_ff=13, **options), rng)
    return without_key_biases(params), rng.integers(0, 17, size=(2, 7))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_max", [None, 11])
def test_pullback_of_a_language_model_is_the_derivative(tied, n_max, rng):
    params, tokens = lm_case(rng, tied=tied, n_max=n_max)
    number = len(arrays_of(params))
    f_vjp = flattened(decoder_only_vjp, params, bare=True)
    f = flattened(decoder_only, params)
    options = {"h": 3, "activation_vjp": gelu_vjp}
    check_autograd(f, f_vjp, [*arrays_of(params), tokens], rng, **options)
    for which in (0, number // 2, number - 1):
        with pytest.raises(AssertionError, match="Not equal"):
            check_autograd(f, off_by(f_vjp, 1.001, which), [*arrays_of(params), tokens], rng, **options)
    if tied and n_max:  # the form with the most paths, once more by differences
        check_vjp(f_vjp, [*arrays_of(params), tokens], rng, directions=1, step=STEP, **options)


def test_a_tied_table_learns_from_both_of_its_uses(rng):
    params, tokens = lm_case(rng, tied=True)
    apart = params._replace(W_head=params.E.T)
    logits, pullback = decoder_only_vjp(params, tokens, h=3)
    again, pullback_apart = decoder_only_vjp(apart, tokens, h=3)
    np.testing.assert_array_equal(again, logits)
    dlogits = rng.normal(size=logits.shape)
    both = pullback_apart(dlogits)
    np.testing.assert_allclose(pullback(dlogits).E, both.E + both.W_head.T, rtol=1e-13)
    assert pullback(dlogits).W_head is None and abs(both.E).max() > 0 and abs(both.W_head).max() > 0


def test_pullback_of_encoder_decoder_is_the_derivative(rng):
    params = without_key_biases(shaken(initial_encoder_decoder(rng, 6, L=2, h=3, d_ff=13), rng))
    args = [*arrays_of(params), rng.normal(size=(2, 7, 6)), rng.normal(size=(2, 5, 6))]
    f = flattened(encoder_decoder, params)
    check_autograd(f, flattened(encoder_decoder_vjp, params), args, rng, h=3)


# Stacks


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("block_vjp", [post_norm_block_vjp, pre_norm_block_vjp])
def test_the_trace_holds_what_enters_each_layer_and_the_gradient_there(block_vjp, array, rng):
    layers = tuple(shaken(initial_block(rng, 6, h=3, d_ff=13), rng) for _ in range(5))
    layers = map_arrays(array, layers)
    x, dy = (array(rng.normal(size=(2, 7, 6))) for _ in range(2))
    trace = layers_trace(block_vjp, layers, x, dy=dy, h=3, causal=True)
    assert len(trace.xs) == len(trace.dxs) == 6 and len(trace.dlayers) == 5 and trace.dshared == ()
    at, pullbacks = x, []
    for l, params in enumerate(layers):
        np.testing.assert_array_equal(to_numpy(trace.xs[l]), to_numpy(at))
        at, pullback = block_vjp(params, at, h=3, causal=True)
        pullbacks.append(pullback)
    np.testing.assert_array_equal(to_numpy(trace.xs[5]), to_numpy(at))
    # the gradient at depth l is that of the layers above it alone
    for l in range(5):
        above = layers_trace(block_vjp, layers[l:], trace.xs[l], dy=dy, h=3, causal=True)
        np.testing.assert_allclose(to_numpy(above.dxs[0]), to_numpy(trace.dxs[l]), rtol=1e-12, atol=1e-14)
    dparams, _ = pullbacks[2](trace.dxs[3])
    assert_same(trace.dlayers[2], dparams, rtol=1e-13)
    assert layers_trace(block_vjp, layers, x, h=3).dxs is None


def test_the_gradient_at_every_depth_is_what_autograd_finds_there(rng):
    layers = to_torch(tuple(initial_block(rng, 6, h=3, d_ff=13) for _ in range(5)))
    x, dy = as_torch(rng.normal(size=(2, 7, 6))).requires_grad_(), as_torch(rng.normal(size=(2, 7, 6)))
    forward = layers_trace(pre_norm_block_vjp, layers, x, h=3)
    expected = torch.autograd.grad(forward.xs[-1], forward.xs, dy)
    with torch.no_grad():
        mine = layers_trace(pre_norm_block_vjp, layers, x.detach(), dy=dy, h=3)
    assert_same(mine.dxs, expected, rtol=1e-11)


def test_a_memory_receives_from_every_layer(rng):
    params = shaken(initial_stack(rng, 6, L=3, block=initial_cross_block, h=3, d_ff=13), rng)
    x, memory = rng.normal(size=(2, 5, 6)), rng.normal(size=(2, 7, 6))

    def of_memory(memory):
        y, pullback = decoder_vjp(params, x, memory, h=3, block_vjp=pre_norm_cross_block_vjp, activation_vjp=gelu_vjp)
        return y, lambda dy: pullback(dy)[2]

    check_vjp(of_memory, [memory], rng, step=STEP)
    trace = layers_trace(pre_norm_cross_block_vjp, params.layers, x, memory, dy=x, h=3)
    assert len(trace.dshared) == 1 and trace.dshared[0].shape == memory.shape


def test_a_stack_without_layers_is_its_final_norm(rng):
    params = initial_stack(rng, 6, L=0, h=3, d_ff=13)
    x = rng.normal(size=(2, 7, 6))
    y, pullback = encoder_vjp(params, x, h=3)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-13)
    np.testing.assert_array_equal(encoder(params, x, h=3), y)
    dparams, dx = pullback(x)
    assert dparams.layers == () and dx.shape == x.shape
    y, pullback = stack_vjp(pre_norm_block_vjp, params._replace(final_norm=None), x, h=3)
    np.testing.assert_array_equal(y, x)
    assert pullback(x)[0].final_norm is None


def test_depth_is_cheap_enough_to_measure_gradients_in_64_layers(rng):
    layers = tuple(initial_block(rng, 16, h=2, d_ff=64) for _ in range(64))
    x, dy = rng.normal(size=(2, 2, 13, 16))
    trace = layers_trace(pre_norm_block_vjp, layers, x, dy=dy, h=2)
    norms = [np.linalg.norm(dx) for dx in trace.dxs]
    assert np.isfinite(norms).all() and len(norms) == 65


# Laws of the whole


@pytest.mark.parametrize("array", VOICES)
def test_logits_do_not_know_the_future_and_have_no_gradient_there(array, rng):
    params, tokens = lm_case(rng, n_max=11)
    params = map_arrays(array, params)
    logits, pullback = decoder_only_vjp(params, array(tokens), h=3)
    changed = tokens.copy()
    changed[:, 4:] = (changed[:, 4:] + 1) % 17
    again = decoder_only(params, array(changed), h=3)
    np.testing.assert_array_equal(to_numpy(again)[:, :4], to_numpy(logits)[:, :4])
    assert abs(to_numpy(again)[:, 4:] - to_numpy(logits)[:, 4:]).min() > 0
    dlogits = np.zeros((2, 7, 17))
    dlogits[:, 3] = 1
    dP = to_numpy(pullback(array(dlogits)).P)
    assert (dP[4:] == 0).all() and abs(dP[:4]).min() > 0


def test_a_leak_from_the_future_is_seen(monkeypatch, rng):
    params, tokens = lm_case(rng, n_max=11)
    right = module.stack_vjp
    monkeypatch.setattr(module, "stack_vjp", lambda *args, **options: right(*args, **(options | {"causal": False})))
    logits, pullback = decoder_only_vjp(params, tokens, h=3)
    dlogits = np.zeros_like(logits)
    dlogits[:, 3] = 1
    assert abs(pullback(dlogits).P[4:7]).min() > 0


def test_sequences_of_a_batch_do_not_meet(rng):
    params, tokens = lm_case(rng, n_max=11)
    logits = decoder_only(params, np.stack([tokens, tokens[::-1]]), h=3)
    np.testing.assert_allclose(logits[0], logits[1][::-1], atol=1e-13)
    np.testing.assert_allclose(decoder_only(params, tokens[1], h=3), logits[0, 1], atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_model_stays_in_its_precision(dtype, rng):
    params, tokens = lm_case(rng, n_max=11, feed_forward=initial_gated_feed_forward)
    params = map_arrays(lambda x: torch.from_numpy(x).to(dtype), params)
    logits, pullback = decoder_only_vjp(params, torch.from_numpy(tokens), h=3, activation_vjp=silu_vjp)
    dparams = pullback(torch.ones_like(logits))
    assert logits.dtype == dtype and {x.dtype for _, x in leaves(dparams)} == {dtype}
    exact = decoder_only(
        map_arrays(lambda x: x.double(), params), torch.from_numpy(tokens), h=3, activation_vjp=silu_vjp
    )
    # measured: 1.5 to 3 steps of the precision, over two layers
    assert abs(to_numpy(logits - exact)).max() < 6 * torch.finfo(dtype).eps * abs(to_numpy(exact)).max()


def test_one_step_against_the_gradient_lowers_the_loss(rng):
    params, tokens = lm_case(rng, n_max=11)
    weights = rng.normal(size=(2, 7, 17))
    logits, pullback = decoder_only_vjp(params, tokens, h=3)
    stepped = map_arrays(lambda w, dw: w - 1e-7 * dw, params, pullback(weights))
    squared = sum(np.sum(g * g) for _, g in leaves(pullback(weights)))
    fall = np.sum(weights * logits) - np.sum(weights * decoder_only(stepped, tokens, h=3))
    assert fall == pytest.approx(1e-7 * squared, rel=1e-3)


# Beginnings, and what does not fit


def test_parameters_come_from_the_generator_and_from_nothing_else():
    one, again, other = (initial_decoder_only(np.random.default_rng(s), 17, 6, L=2, h=3, d_ff=13) for s in (1, 1, 2))
    assert_same(one, again, rtol=0)
    assert (one.E != other.E).all()


@pytest.mark.parametrize(("matrix", "variance"), [(fan_in_normal, 1 / 211), (xavier_uniform, 2 / (211 + 307))])
def test_matrices_begin_with_the_stated_variance(matrix, variance, rng):
    W = matrix(rng, 211, 307)
    # five standard errors of a sample variance of 64,777 numbers, at most √(2/64,777) of it each for a normal
    assert W.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / W.size))
    assert abs(W.mean()) < 5 * np.sqrt(variance / W.size)


def test_paths_name_every_array(rng):
    params = initial_decoder_only(rng, 17, 6, L=2, h=3, d_ff=13, biased=False)
    paths = [path for path, _ in leaves(params)]
    assert paths[:3] == ["E", "stack.layers.0.attention.W_Q", "stack.layers.0.attention.W_K"]
    assert paths[-1] == "stack.final_norm.gain" and len(paths) == 1 + 2 * 8 + 1


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    params, tokens = lm_case(rng, n_max=5)
    with pytest.raises(ShapeError, match=r"tokens has n = 7, P has rows for 5 positions only; give fewer tokens"):
        decoder_only(params, tokens, h=3)
    params, tokens = lm_case(rng)
    with pytest.raises(DerivedError, match=r"tokens holds 17, but n_vocab = 17 admits 0 to 16"):
        decoder_only(params, np.full_like(tokens, 17), h=3)
    with pytest.raises(ShapeError, match=r"dy has d_out = 5, W had d_out = 17"):
        decoder_only_vjp(params, tokens, h=3)[1](np.zeros((2, 7, 5)))
    with pytest.raises(ShapeError, match=r"memory has batch = \(3,\), x had batch = \(2,\)"):
        stack = initial_stack(rng, 6, L=1, block=initial_cross_block, h=3, d_ff=13)
        decoder(stack, np.ones((2, 5, 6)), np.ones((3, 7, 6)), h=3)
