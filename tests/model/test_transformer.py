"""Whole transformers: gradients, causality, precision, beginnings and refusals."""

import numpy as np
import pytest
import torch

import derived.model.transformer as module
from derived.errors import DerivedError, ShapeError
from derived.model import (
    decoder,
    decoder_only,
    decoder_only_vjp,
    encoder_decoder,
    encoder_decoder_vjp,
    leaves,
    map_arrays,
)
from derived.model.initialise import (
    fan_in_normal,
    initial_cross_block,
    initial_decoder_only,
    initial_encoder_decoder,
    initial_gated_feed_forward,
    initial_stack,
    xavier_uniform,
)
from derived.ops.activations import gelu_vjp, silu_vjp
from tests.model.support import STEP, arrays_of, assert_same, flattened, shaken, without_key_biases
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, to_numpy

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
    wide = map_arrays(lambda x: x.double(), params)
    exact = decoder_only(wide, torch.from_numpy(tokens), h=3, activation_vjp=silu_vjp)
    # the yardstick: what rounding each parameter once does to the logits, all else exact; measured: 0.2 to 2.6 of it
    half_step = torch.finfo(dtype).eps / 2
    rounded = map_arrays(lambda x: x * (1 + half_step * torch.from_numpy(rng.uniform(-1, 1, x.shape))), wide)
    moved = decoder_only(rounded, torch.from_numpy(tokens), h=3, activation_vjp=silu_vjp) - exact
    assert (logits - exact).square().mean() < 5**2 * moved.square().mean()


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
