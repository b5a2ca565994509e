"""ReLU, GELU in both forms and SiLU: the definition, the slope, the laws, the edges, the contract."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.activations import gelu, gelu_tanh, gelu_tanh_vjp, gelu_vjp, relu, relu_vjp, silu, silu_vjp
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, to_numpy

functional = torch.nn.functional
ALL = {
    "relu": (relu, relu_vjp, loops.relu, functional.relu),
    "gelu": (gelu, gelu_vjp, loops.gelu, functional.gelu),
    "gelu_tanh": (gelu_tanh, gelu_tanh_vjp, loops.gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (silu, silu_vjp, loops.silu, functional.silu),
}
each_form = pytest.mark.parametrize("name", ALL)


def away_from_zero(rng):
    """Numbers of both signs, none so near to 0 that a difference would step over the kink of ReLU."""
    x = rng.normal(size=(2, 3, 7))
    return x + np.sign(x) * 0.1


@pytest.mark.parametrize("array", VOICES)
@each_form
def test_is_the_definition_and_what_torch_says(name, array, rng):
    f, _, loop, theirs = ALL[name]
    x = 3 * rng.normal(size=(2, 3, 7))
    y = to_numpy(f(array(x)))
    np.testing.assert_allclose(y, loops.each(loop, x), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(y, to_numpy(theirs(torch.from_numpy(x))), rtol=1e-13, atol=1e-15)


@each_form
def test_pullback_is_the_derivative(name, rng):
    f, f_vjp, _, _ = ALL[name]
    check_vjp(f_vjp, [away_from_zero(rng)], rng)
    check_autograd(f, f_vjp, [3 * rng.normal(size=(2, 3, 7))], rng)


@each_form
def test_the_checks_see_one_part_in_a_thousand(name, rng):
    f, f_vjp, _, _ = ALL[name]
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(f_vjp, 1.001), [away_from_zero(rng)], rng)
    with pytest.raises(AssertionError):
        check_autograd(f, off_by(f_vjp, 1.001), [away_from_zero(rng)], rng)


@each_form
def test_the_slope_is_what_torch_says(name, rng):
    _, f_vjp, _, theirs = ALL[name]
    x = torch.linspace(-12, 12, 97, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(theirs(x).sum(), x)
    _, pullback = f_vjp(x.detach())
    np.testing.assert_allclose(pullback(torch.ones_like(x)).numpy(), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_relu_has_slope_zero_at_zero_and_so_says_torch():
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert (relu_vjp(x.detach())[1](torch.ones(2)) == 0).all()
    assert (torch.autograd.grad(functional.relu(x).sum(), x)[0] == 0).all()


@pytest.mark.parametrize("beta", [0.5, 1.702, 3, -1])
def test_silu_with_a_beta(beta, rng):
    x = 3 * rng.normal(size=(2, 3, 7))
    np.testing.assert_allclose(silu(x, beta=beta), loops.each(lambda e: loops.silu(e, beta), x), rtol=1e-13, atol=1e-15)
    check_vjp(silu_vjp, [x], rng, beta=beta)


def test_values_by_another_road():
    # Φ(1) = 0.841344746068543 and 1/(1 + e⁻¹) = 0.731058578630005, both from printed tables
    assert gelu(np.array([1.0]))[0] == pytest.approx(0.841344746068543, rel=1e-14)
    assert silu(np.array([1.0]))[0] == pytest.approx(0.731058578630005, rel=1e-14)
    sigmoid_gelu = silu(np.array([1.0]), beta=1.702)[0]  # the third form of Hendrycks and Gimpel
    assert sigmoid_gelu == pytest.approx(1 / (1 + math.exp(-1.702)), rel=1e-14)


def test_the_two_forms_of_gelu_differ_by_what_the_docstring_states():
    x = np.linspace(-8, 8, 1_600_001)
    gap = np.abs(gelu(x) - gelu_tanh(x))
    assert round(gap.max(), 6) == 0.000473
    assert f"{gap.max():.2e}".replace("e-04", "e-4") in gelu_tanh_vjp.__doc__
    assert abs(abs(x[gap.argmax()]) - 2.699) < 0.001  # far out in both tails, where neither is near 0 or x


@given(arrays(np.float64, 7, elements=st.floats(-30, 30)))
def test_what_a_weight_takes_from_x_it_gives_to_minus_x(x):
    # Φ(x) + Φ(−x) = 1 and σ(x) + σ(−x) = 1, so f(x) − f(−x) = x for every form
    for f, _, _, _ in ALL.values():
        np.testing.assert_allclose(f(x) - f(-x), x, atol=1e-13)


@given(st.floats(-30, 30))
def test_every_form_lies_between_its_bounds(x):
    x = np.array([x])
    assert relu(x)[0] >= 0
    assert -0.17005 < gelu(x)[0] <= max(x[0], 0) and -0.17005 < gelu_tanh(x)[0] <= max(x[0], 0) + 1e-15
    assert -0.27847 < silu(x)[0] <= max(x[0], 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@each_form
def test_huge_numbers_pass_or_vanish_without_a_warning(name, dtype):
    _, f_vjp, _, _ = ALL[name]
    big = np.finfo(dtype).max
    with np.errstate(over="raise", invalid="raise"):
        y, pullback = f_vjp(np.array([-big, 0, big, np.inf], dtype=dtype))
        np.testing.assert_array_equal(y, np.array([0, 0, big, np.inf], dtype=dtype))
        slope = pullback(np.ones(4, dtype=dtype))
    np.testing.assert_array_equal(slope[[0, 2]], [0, 1])


@each_form
def test_nan_stays_nan(name):
    f, _, _, _ = ALL[name]
    assert np.isnan(f(np.array([np.nan, 1.0]))).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_form
def test_half_precisions_are_rounded_once(name, dtype, rng):
    _, f_vjp, loop, _ = ALL[name]
    x = torch.from_numpy(away_from_zero(rng)).to(dtype)
    dy = torch.from_numpy(rng.normal(size=(2, 3, 7))).to(dtype)
    y, pullback = f_vjp(x)
    dx = pullback(dy)
    assert y.dtype == dx.dtype == dtype
    half_a_step = 1.01 * torch.finfo(dtype).eps / 2
    np.testing.assert_allclose(to_numpy(y), loops.each(loop, to_numpy(x)), rtol=half_a_step, atol=1e-7)
    exact = f_vjp(x.double())[1](dy.double())
    np.testing.assert_allclose(to_numpy(dx), to_numpy(exact), rtol=half_a_step, atol=1e-7)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
@each_form
def test_any_shape_is_taken(name, shape):
    f, f_vjp, _, _ = ALL[name]
    y, pullback = f_vjp(np.ones(shape))
    assert f(np.ones(shape)).shape == y.shape == pullback(y).shape == shape


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    with pytest.raises(DtypeError, match=r"gelu: x has dtype int64; float values are expected"):
        gelu(np.arange(3))
    with pytest.raises(ShapeError, match=r"the pullback of relu_vjp: dy has batch = \(5,\), x had batch = \(3,\)"):
        relu_vjp(np.ones(3))[1](np.ones(5))
