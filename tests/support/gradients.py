"""Two second opinions on a hand-derived pullback: central differences and torch autograd."""

import numpy as np
import torch

from tests.support.voices import as_torch, to_numpy

STEP = 1e-3
"""Step of the fourth-order difference: truncation about STEP⁴ = 1e-12, rounding about 1e-16 / STEP = 1e-13."""

TOLERANCE = 1e-8
"""Ten thousand times finer than the planted 0.1 % error, a hundred times coarser than what is measured."""


def check_vjp(f_vjp, args, rng, *, directions=3, step=STEP, **options):
    """Compare a pullback with differences of the forward, along random directions of each argument.

    ⟨pullback(dy), e⟩ must equal the derivative of ⟨f(x + t e), dy⟩ at t = 0. Only floating arguments are
    moved. Also demands that gradients have their argument's shape and dtype, that arguments are not
    written into, and that a single gradient is bare while several are a tuple.
    """
    args = [np.asarray(x) for x in args]
    before = [x.copy() for x in args]
    y, pullback = f_vjp(*args, **options)
    dy = rng.normal(size=y.shape)
    gradients = pullback(dy)
    floating = [i for i, x in enumerate(args) if np.issubdtype(x.dtype, np.floating)]
    assert isinstance(gradients, tuple) == (len(floating) > 1), "one gradient comes bare, several as a tuple"
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    assert len(gradients) == len(floating), f"{len(floating)} arguments move, {len(gradients)} gradients came back"
    for old, new in zip(before, args, strict=True):
        np.testing.assert_array_equal(old, new, err_msg="an argument was written into")
    for i, dx in zip(floating, gradients, strict=True):
        assert dx.shape == args[i].shape and dx.dtype == args[i].dtype, f"gradient {i}: {dx.shape} {dx.dtype}"
        assert np.isfinite(dx).all(), f"gradient {i} is not finite"
        for _ in range(directions):
            e = rng.normal(size=args[i].shape)
            moved = [
                np.sum(f_vjp(*args[:i], args[i] + t * step * e, *args[i + 1 :], **options)[0] * dy)
                for t in (-2, -1, 1, 2)
            ]
            expected = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * step)
            size = np.linalg.norm(dx) * np.linalg.norm(e) + 1e-300
            error = abs(np.sum(dx * e) - expected) / size
            assert error < TOLERANCE, f"gradient of argument {i} is off by {error:.1e} of its size"


def check_autograd(f, f_vjp, args, rng, *, rtol=1e-11, **options):
    """Compare a pullback with torch autograd through the forward, in float64, element by element."""
    tensors = [as_torch(x) for x in args]
    floating = [x for x in tensors if x.is_floating_point()]
    for x in floating:
        x.requires_grad_(True)
    y = f(*tensors, **options)
    dy = as_torch(rng.normal(size=tuple(y.shape)))
    expected = torch.autograd.grad(y, floating, dy)
    with torch.no_grad():
        _, pullback = f_vjp(*[x.detach() for x in tensors], **options)
        gradients = pullback(dy)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    for mine, theirs in zip(gradients, expected, strict=True):
        mine, theirs = to_numpy(mine), to_numpy(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max(initial=1e-300))


def off_by(f_vjp, factor, which=0):
    """f_vjp with its gradient number `which` multiplied by `factor`: what a check must object to."""

    def planted(*args, **options):
        y, pullback = f_vjp(*args, **options)

        def wrong(dy):
            gradients = pullback(dy)
            if not isinstance(gradients, tuple):
                return gradients * factor
            return tuple(g * factor if i == which else g for i, g in enumerate(gradients))

        return y, wrong

    return planted
