"""LayerNorm and RMSNorm: the definition, the gradient, the laws, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.norm import layer_norm, layer_norm_vjp, rms_norm, rms_norm_vjp
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

# one column lies 70 to 170 above 0, the others at most 50 away from it: no row is constant
spread_rows = arrays(np.float64, (3, 7), elements=st.floats(-50, 50)).map(lambda x: x + 120 * np.eye(7)[1])


def layer_case(rng):
    return [rng.normal(1.5, 3, size=(2, 3, 7)), rng.normal(size=7), rng.normal(size=7)]


def rms_case(rng):
    return layer_case(rng)[:2]


NORMS = [(layer_norm, layer_norm_vjp, loops.layer_norm, layer_case), (rms_norm, rms_norm_vjp, loops.rms_norm, rms_case)]
each_norm = pytest.mark.parametrize(("f", "f_vjp", "loop", "case"), NORMS, ids=["layer_norm", "rms_norm"])


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("eps", [1e-5, 0.3])
@each_norm
def test_is_the_definition(f, f_vjp, loop, case, eps, array, rng):
    args = case(rng)
    y = f(*map(array, args), eps=eps)
    np.testing.assert_allclose(to_numpy(y), loop(*args, eps=eps), rtol=1e-12, atol=1e-14)


@each_norm
def test_gain_and_bias_may_be_left_out(f, f_vjp, loop, case, rng):
    x = rng.normal(size=(3, 7))
    np.testing.assert_allclose(f(x), loop(x), rtol=1e-12, atol=1e-14)
    check_vjp(f_vjp, [x], rng)
    check_vjp(f_vjp, [x, rng.normal(size=7)], rng)


def test_a_bias_without_a_gain(rng):
    x, bias = rng.normal(size=(3, 7)), rng.normal(size=7)
    y, pullback = layer_norm_vjp(x, None, bias)
    np.testing.assert_allclose(y, loops.layer_norm(x, None, bias), rtol=1e-12, atol=1e-14)
    dx, dbias = pullback(np.ones((3, 7)))
    np.testing.assert_array_equal(dbias, np.full(7, 3.0))
    assert dx.shape == x.shape


@pytest.mark.parametrize("eps", [1e-5, 0.3])
@each_norm
def test_pullback_is_the_derivative(f, f_vjp, loop, case, eps, rng):
    check_vjp(f_vjp, case(rng), rng, eps=eps)
    check_autograd(f, f_vjp, case(rng), rng, eps=eps)


@pytest.mark.parametrize("which", [0, 1, 2])
@each_norm
def test_the_checks_see_one_part_in_a_thousand(f, f_vjp, loop, case, which, rng):
    args = case(rng)
    wrong = off_by(f_vjp, 1.001, which % len(args))
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(wrong, args, rng)
    with pytest.raises(AssertionError):
        check_autograd(f, wrong, args, rng)


def test_torch_says_the_same_forward_and_backward(rng):
    x, gain, bias, dy = (as_torch(a).requires_grad_() for a in (*layer_case(rng), rng.normal(size=(2, 3, 7))))
    theirs = torch.nn.functional.layer_norm(x, (7,), gain, bias, eps=1e-3)
    y, pullback = layer_norm_vjp(x.detach(), gain.detach(), bias.detach(), eps=1e-3)
    np.testing.assert_allclose(to_numpy(y), to_numpy(theirs), rtol=1e-12, atol=1e-14)
    for mine, other in zip(pullback(dy.detach()), torch.autograd.grad(theirs, (x, gain, bias), dy), strict=True):
        np.testing.assert_allclose(to_numpy(mine), to_numpy(other), rtol=1e-11, atol=1e-13)

    theirs = torch.nn.functional.rms_norm(x, (7,), gain, eps=1e-3)
    y, pullback = rms_norm_vjp(x.detach(), gain.detach(), eps=1e-3)
    np.testing.assert_allclose(to_numpy(y), to_numpy(theirs), rtol=1e-12, atol=1e-14)
    for mine, other in zip(pullback(dy.detach()), torch.autograd.grad(theirs, (x, gain), dy), strict=True):
        np.testing.assert_allclose(to_numpy(mine), to_numpy(other), rtol=1e-11, atol=1e-13)


def test_the_variance_is_biased_and_epsilon_stands_inside_the_root():
    # the wrong answers come from code in the wild: the unbiased variance, and x / (σ + ε)
    x = np.array([1.0, 0.0, 0.0, 0.0])
    y = layer_norm(x)
    np.testing.assert_allclose(y, [1.732005, -0.577335, -0.577335, -0.577335], atol=5e-7)
    unbiased = (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-5)
    outside = (x - x.mean()) / (x.std() + 1e-5)
    assert abs(unbiased - y).max() > 0.2 and abs(outside - y).max() > 5e-6


@given(spread_rows)
def test_rows_of_layer_norm_have_mean_zero_and_rows_of_rms_norm_mean_square_one(x):
    y = layer_norm(x, eps=0)
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-12)
    np.testing.assert_allclose((rms_norm(x, eps=0) ** 2).mean(-1), 1, rtol=1e-12)


@given(spread_rows, st.floats(0.5, 20), st.floats(-20, 20))
def test_layer_norm_forgets_scale_and_shift_and_rms_norm_forgets_scale_alone(x, scale, shift):
    np.testing.assert_allclose(layer_norm(scale * x + shift, eps=0), layer_norm(x, eps=0), atol=1e-9)
    np.testing.assert_allclose(rms_norm(scale * x, eps=0), rms_norm(x, eps=0), atol=1e-12)
    if abs(shift) > 1:
        assert abs(rms_norm(x + shift, eps=0) - rms_norm(x, eps=0)).max() > 1e-4


@given(spread_rows, spread_rows, st.sampled_from([0.0, 1e-5, 0.7]))
def test_the_jacobian_of_layer_norm_kills_the_mean_and_leaves_epsilon_of_x_hat(x, dy, eps):
    # J = ρ (I − 11ᵀ/d − x̂ x̂ᵀ/d) is symmetric, so the pullback applies J itself:
    # J 1 = 0 and J x̂ = ε x̂ / (σ² + ε)^{3/2}, which is zero only at ε = 0
    x_hat, pullback = layer_norm_vjp(x, eps=eps)
    variance = x.var(-1, keepdims=True)
    np.testing.assert_allclose(pullback(np.ones_like(x)), 0, atol=1e-12)
    np.testing.assert_allclose(pullback(x_hat), eps * x_hat / (variance + eps) ** 1.5, atol=1e-12)
    np.testing.assert_allclose(pullback(dy).sum(-1), 0, atol=1e-9)


@given(spread_rows, st.sampled_from([0.0, 1e-5, 0.7]))
def test_the_jacobian_of_rms_norm_keeps_the_mean_and_leaves_epsilon_of_x_hat(x, eps):
    x_hat, pullback = rms_norm_vjp(x, eps=eps)
    mean_square = (x**2).mean(-1, keepdims=True)
    np.testing.assert_allclose(pullback(x_hat), eps * x_hat / (mean_square + eps) ** 1.5, atol=1e-12)
    sums = np.ones_like(x) - x_hat * x_hat.mean(-1, keepdims=True)
    np.testing.assert_allclose(pullback(np.ones_like(x)), sums / np.sqrt(mean_square + eps), rtol=1e-9, atol=1e-12)


def test_a_constant_row_gives_the_bias_and_a_finite_gradient(rng):
    x, gain, bias = np.full((2, 7), 0.1), rng.normal(size=7), rng.normal(size=7)
    y, pullback = layer_norm_vjp(x, gain, bias)
    np.testing.assert_allclose(y, np.broadcast_to(bias, (2, 7)), atol=1e-13)
    dy = rng.normal(size=(2, 7))
    dx_hat = dy * gain
    expected = (dx_hat - dx_hat.mean(-1, keepdims=True)) / np.sqrt(1e-5)
    np.testing.assert_allclose(pullback(dy)[0], expected, rtol=1e-9)


def test_a_row_of_zeros_through_rms_norm(rng):
    gain, dy = rng.normal(size=7), rng.normal(size=(2, 7))
    y, pullback = rms_norm_vjp(np.zeros((2, 7)), gain)
    assert (y == 0).all()
    np.testing.assert_allclose(pullback(dy)[0], dy * gain / np.sqrt(1e-5), rtol=1e-12)


def test_width_one(rng):
    x = rng.normal(size=(3, 1))
    y, pullback = layer_norm_vjp(x, np.array([2.0]), np.array([5.0]))
    assert (y == 5).all() and (pullback(np.ones((3, 1)))[0] == 0).all()
    np.testing.assert_allclose(rms_norm(x, eps=0), np.sign(x), rtol=1e-15)


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 1e150), (np.float32, 1e18), (np.float16, 6e4)])
@each_norm
def test_huge_rows_are_right_up_to_the_stated_limit(f, f_vjp, loop, case, dtype, size):
    x = np.array([[1.0, -1.0, 0.5, 0.25, -0.75]])
    mine = f((x * size).astype(dtype))
    assert mine.dtype == dtype
    np.testing.assert_allclose(mine.astype(np.float64), loop(x, eps=0), rtol=2 * np.finfo(dtype).eps, atol=0)


@each_norm
def test_beyond_the_stated_limit_rows_become_zero_and_numpy_says_why(f, f_vjp, loop, case):
    with pytest.warns(RuntimeWarning, match="overflow"):
        y = f(np.array([[2.0, -2.0, 1.0]], dtype=np.float32) * np.float32(1e20))
    assert (y == 0).all()


@pytest.mark.parametrize(("dtype", "mean"), [(torch.float16, 300), (torch.bfloat16, 300), (torch.float32, 3)])
def test_error_in_low_precision_is_at_most_twice_that_of_torch(dtype, mean, rng):
    # 1021 numbers around 300: their sum alone overflows float16
    x = torch.from_numpy(rng.normal(mean, 1, size=(5, 1021))).to(dtype)
    gain, bias = (torch.from_numpy(rng.normal(size=1021)).to(dtype) for _ in range(2))
    exact = loops.layer_norm(to_numpy(x), to_numpy(gain), to_numpy(bias))
    mine = to_numpy(layer_norm(x, gain, bias))
    theirs = to_numpy(torch.nn.functional.layer_norm(x, (1021,), gain, bias))
    assert abs(mine - exact).max() <= 2 * abs(theirs - exact).max()
    exact = loops.rms_norm(to_numpy(x), to_numpy(gain))
    mine, theirs = to_numpy(rms_norm(x, gain)), to_numpy(torch.nn.functional.rms_norm(x, (1021,), gain, 1e-5))
    assert abs(mine - exact).max() <= 2 * abs(theirs - exact).max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_norm
def test_gradients_of_half_precision_are_rounded_once(f, f_vjp, loop, case, dtype, rng):
    args = [torch.from_numpy(a).to(dtype) for a in case(rng)]
    dy = torch.from_numpy(rng.normal(size=(2, 3, 7))).to(dtype)
    _, pullback = f_vjp(*args)
    _, exactly = f_vjp(*[a.double() for a in args])
    for mine, exact in zip(pullback(dy), exactly(dy.double()), strict=True):
        assert mine.dtype == dtype
        half_a_step = torch.finfo(dtype).eps / 2
        # 1.01: the float32 inside adds a little to the one rounding
        np.testing.assert_allclose(to_numpy(mine), to_numpy(exact), rtol=1.01 * half_a_step, atol=1e-6)


def test_the_argument_is_not_written_into_in_float32(rng):
    x = torch.from_numpy(rng.normal(size=(3, 7))).float()
    before = x.clone()
    rms_norm(x, torch.full((7,), 2.0))
    layer_norm(x, torch.full((7,), 2.0))
    assert torch.equal(x, before)


def test_rows_need_not_lie_next_to_each_other(rng):
    x = rng.normal(size=(7, 3)).T
    np.testing.assert_allclose(layer_norm(x), loops.layer_norm(x), rtol=1e-12, atol=1e-14)


def test_no_rows_give_no_rows_and_zero_gradients():
    y, pullback = layer_norm_vjp(np.zeros((0, 7)), np.ones(7), np.ones(7))
    dx, dgain, dbias = pullback(y)
    assert y.shape == dx.shape == (0, 7) and (dgain == 0).all() and (dbias == 0).all()


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    x = rng.normal(size=(3, 7))
    with pytest.raises(ShapeError, match=r"gain has d_model = 5, x had d_model = 7"):
        layer_norm(x, np.ones(5))
    with pytest.raises(ShapeError, match=r"bias has d_model = 5, x had d_model = 7"):
        layer_norm(x, np.ones(7), np.ones(5))
    with pytest.raises(ShapeError, match=r"x has shape \(3, 0\), rows of no numbers; a row needs at least one"):
        rms_norm(np.zeros((3, 0)))
    with pytest.raises(ShapeError, match=r"dy has d_model = 5, x had d_model = 7"):
        rms_norm_vjp(x)[1](np.ones((3, 5)))
    with pytest.raises(DtypeError, match=r"x has dtype int64; float values are expected"):
        layer_norm(np.ones((3, 7), dtype=np.int64))
    with pytest.raises(DtypeError, match=r"eps is 'small'; float or int is expected"):
        rms_norm(x, eps="small")
