"""Layers one after another: what enters each, the gradient at every depth, a memory that all read."""

import numpy as np
import pytest
import torch

from derived.model import (
    decoder_vjp,
    encoder,
    encoder_vjp,
    layers_trace,
    map_arrays,
    post_norm_block_vjp,
    pre_norm_block_vjp,
    pre_norm_cross_block_vjp,
    stack_vjp,
)
from derived.model.initialise import (
    initial_block,
    initial_cross_block,
    initial_stack,
)
from derived.ops.activations import gelu_vjp
from tests.model.support import STEP, assert_same, shaken, to_torch
from tests.support.gradients import check_vjp
from tests.support.voices import VOICES, as_torch, to_numpy


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
    for l, pullback in enumerate(pullbacks):
        assert_same(trace.dlayers[l], pullback(trace.dxs[l + 1])[0], rtol=1e-13)
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


def test_64_pre_norm_blocks_stretch_a_gradient_like_a_square_root_of_their_number(rng):
    layers = tuple(initial_block(rng, 32, h=4, d_ff=128) for _ in range(64))
    x, dy = rng.normal(size=(2, 2, 13, 32))
    trace = layers_trace(pre_norm_block_vjp, layers, x, dy=dy, h=4)
    stretch = np.linalg.norm(trace.dxs[0]) / np.linalg.norm(dy)
    # (7.11) for the 128 sub-layers of 64 blocks, in the wide limit; no residual or no norm misses it by far more
    assert 1 / 3 < stretch / np.sqrt(2 * 64 + 1) < 3
