"""Low-rank adaptation: the definition, the gradient, the laws, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from derived.errors import ShapeError
from derived.ops.lora import lora, lora_vjp, merge_lora
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

ALPHA = 7.0


def case(rng):
    return [rng.normal(size=s) for s in ((2, 5, 11), (11, 13), (11, 3), (3, 13))]


def trained(f, W):
    """f of x, D and U alone: W is frozen, no derivative with respect to it is asked for."""
    return lambda x, D, U, **options: f(x, W, D, U, **options)


@pytest.mark.parametrize("array", VOICES)
def test_is_the_definition(array, rng):
    args = case(rng)
    y = lora(*map(array, args), alpha=ALPHA)
    np.testing.assert_allclose(to_numpy(y), loops.lora(*args, alpha=ALPHA), rtol=1e-12, atol=1e-12)


def test_pullback_is_the_derivative(rng):
    x, W, D, U = case(rng)
    check_vjp(trained(lora_vjp, W), [x, D, U], rng, alpha=ALPHA)
    W_torch = as_torch(W)
    check_autograd(trained(lora, W_torch), trained(lora_vjp, W_torch), [x, D, U], rng, alpha=ALPHA)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_derivative_check_sees_one_part_in_a_thousand(which, rng):
    x, W, D, U = case(rng)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(trained(lora_vjp, W), 1.001, which), [x, D, U], rng, alpha=ALPHA)


def test_a_scale_lost_on_the_way_back_is_seen(rng):
    x, W, D, U = case(rng)

    def without_scale(x, D, U):
        y, _ = lora_vjp(x, W, D, U, alpha=ALPHA)
        return y, lora_vjp(x, W, D, U, alpha=D.shape[1])[1]

    with pytest.raises(AssertionError, match="off by"):
        check_vjp(without_scale, [x, D, U], rng)


def test_torch_linear_layers_with_the_same_weights_say_the_same(rng):
    x, W, D, U = map(as_torch, case(rng))
    frozen, down, up = (torch.nn.Linear(*M.shape, bias=False, dtype=torch.float64) for M in (W, D, U))
    with torch.no_grad():
        for layer, M in ((frozen, W), (down, D), (up, U)):
            layer.weight.copy_(M.T)
    x.requires_grad_()
    theirs = frozen(x) + ALPHA / 3 * up(down(x))
    theirs.sum().backward()
    y, pullback = lora_vjp(x.detach(), W, D, U, alpha=ALPHA)
    dx, dD, dU = pullback(torch.ones_like(y))
    pairs = ((y, theirs), (dx, x.grad), (dD, down.weight.grad.T), (dU, up.weight.grad.T))
    for mine, other in pairs:
        np.testing.assert_allclose(to_numpy(mine), to_numpy(other), rtol=1e-12, atol=1e-12)


@given(st.integers(0, 2**31), st.sampled_from([0.5, 1, 16]))
def test_merged_and_apart_are_the_same_map_and_the_update_has_rank_r(seed, alpha):
    x, W, D, U = case(np.random.default_rng(seed))
    merged = merge_lora(W, D, U, alpha=alpha)
    np.testing.assert_allclose(x @ merged, lora(x, W, D, U, alpha=alpha), atol=1e-11)
    assert np.linalg.matrix_rank(merged - W, tol=1e-9) == 3
    np.testing.assert_allclose(merge_lora(merged, D, U, alpha=-alpha), W, atol=1e-12)  # unmerging


def test_with_up_at_zero_nothing_changes_and_the_first_step_moves_up_alone(rng):
    x, W, D, U = case(rng)
    y, pullback = lora_vjp(x, W, D, np.zeros_like(U), alpha=ALPHA)
    np.testing.assert_array_equal(y, x @ W)
    _, dD, dU = pullback(rng.normal(size=y.shape))
    assert (dD == 0).all() and abs(dU).min() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_rounded_once(dtype, rng):
    args = [torch.from_numpy(a).to(dtype) for a in case(rng)]
    dy = torch.from_numpy(rng.normal(size=(2, 5, 13))).to(dtype)
    y, pullback = lora_vjp(*args, alpha=ALPHA)
    exact_y, exactly = lora_vjp(*[a.double() for a in args], alpha=ALPHA)
    for mine, exact in zip((y, *pullback(dy)), (exact_y, *exactly(dy.double())), strict=True):
        assert mine.dtype == dtype
        mine, exact = to_numpy(mine), to_numpy(exact)
        np.testing.assert_allclose(mine, exact, rtol=1.01 * torch.finfo(dtype).eps / 2, atol=2e-6 * abs(exact).max())


def test_merging_in_bfloat16_loses_an_update_below_half_a_step():
    # a step of bfloat16 at 1 is 2⁻⁷, so an update below 2⁻⁸ upward rounds away; 2⁻⁹ of any weight always does
    W, D, U = (torch.tensor([[v]], dtype=torch.bfloat16) for v in (1.0, 2.0**-9, 1.0))
    assert merge_lora(W, D, U, alpha=1).item() == 1.0
    assert lora(torch.ones(1, 1), W.float(), D.float(), U.float(), alpha=1).item() == 1 + 2.0**-9
    assert merge_lora(W.float(), D, U, alpha=1).item() == 1 + 2.0**-9


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    x, W, D, U = case(rng)
    with pytest.raises(ShapeError, match=r"U has r = 5, D had r = 3"):
        lora(x, W, D, np.ones((5, 13)), alpha=1)
    with pytest.raises(ShapeError, match=r"D has d_in = 13, x had d_in = 11"):
        lora(x, W, np.ones((13, 3)), U, alpha=1)
    with pytest.raises(ShapeError, match=r"a rank of 0, and α/r has no value; use r ≥ 1"):
        merge_lora(W, D[:, :0], U[:0], alpha=1)
    with pytest.raises(ShapeError, match=r"dy has d_out = 7, W had d_out = 13"):
        lora_vjp(x, W, D, U, alpha=1)[1](np.ones((2, 5, 7)))
