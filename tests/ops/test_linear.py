"""The linear map: the definition, the gradient, the laws, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.linear import linear, linear_vjp
from tests.support import loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import LOW, check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

tokens = arrays(np.float64, (3, 5), elements=st.floats(-10, 10))
matrices = arrays(np.float64, (5, 2), elements=st.floats(-10, 10))


def case(rng, lead=(2, 3)):
    return [rng.normal(size=(*lead, 5)), rng.normal(size=(5, 7)), rng.normal(size=7)]


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("count", [2, 3])
def test_is_the_definition_with_and_without_a_bias(count, lead, array, rng):
    args = case(rng, lead)[:count]
    np.testing.assert_allclose(to_numpy(linear(*map(array, args))), loops.linear(*args), rtol=1e-13, atol=1e-14)


def test_torch_holds_the_transposed_weight(rng):
    x, W, b = map(as_torch, case(rng))
    theirs = torch.nn.functional.linear(x, W.T, b)
    np.testing.assert_allclose(to_numpy(linear(x, W, b)), to_numpy(theirs), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("count", [2, 3])
def test_pullback_is_the_derivative(count, lead, rng):
    args = case(rng, lead)[:count]
    check_vjp(linear_vjp, args, rng)
    check_autograd(linear, linear_vjp, args, rng)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_checks_see_one_part_in_a_thousand(which, rng):
    wrong = off_by(linear_vjp, 1.001, which)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(wrong, case(rng), rng)
    with pytest.raises(AssertionError):
        check_autograd(linear, wrong, case(rng), rng)


@given(tokens, tokens, matrices, st.floats(-5, 5))
def test_it_is_linear_and_the_pullback_is_its_transpose(x, y, W, c):
    np.testing.assert_allclose(linear(x + c * y, W), linear(x, W) + c * linear(y, W), atol=1e-10)
    dy = linear(y, W)
    np.testing.assert_allclose(np.sum(linear(x, W) * dy), np.sum(x * linear_vjp(x, W)[1](dy)[0]), rtol=1e-9, atol=1e-9)


@given(tokens, matrices, st.permutations(range(3)))
def test_every_token_is_mapped_alike(x, W, order):
    np.testing.assert_allclose(linear(x[order], W), linear(x, W)[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize(("shape", "d_out"), [((0, 5), 7), ((2, 0, 5), 7), ((3, 0), 7), ((3, 5), 0)])
def test_without_tokens_or_widths_gradients_are_empty_sums(shape, d_out, array):
    x, W, b = np.ones(shape), np.ones((shape[-1], d_out)), np.full(d_out, 2.0)
    y, pullback = linear_vjp(array(x), array(W), array(b))
    assert y.shape == (*shape[:-1], d_out)
    assert shape[-1] or (to_numpy(y) == 2).all()  # of no components, only the bias is left
    dx, dW, db = pullback(y)
    assert dx.shape == shape and dW.shape == W.shape and db.shape == b.shape
    assert (to_numpy(dW) == 0).all()


@pytest.mark.parametrize("dtype", LOW)
def test_error_in_low_precision_is_at_most_twice_that_of_torch(dtype, rng):
    x, W, b = (torch.from_numpy(rng.normal(size=s)).to(dtype).requires_grad_() for s in [(31, 127), (127, 11), (11,)])
    plain = x @ W + b
    dy = torch.from_numpy(rng.normal(size=(31, 11))).to(dtype)
    with torch.no_grad():
        y, pullback = linear_vjp(x, W, b)
        exact, exactly = linear_vjp(x.double(), W.double(), b.double())
        check_precision(y, plain, exact)
        theirs = torch.autograd.grad(plain, (x, W, b), dy)
        for mine, other, right in zip(pullback(dy), theirs, exactly(dy.double()), strict=True):
            check_precision(mine, other, right)


def test_float16_sums_do_not_overflow_on_the_way():
    x = np.full((1, 4), 300, dtype=np.float16)
    W = np.array([[300], [300], [-300], [-300]], dtype=np.float16)  # each product is 90,000, beyond 65,504
    y, pullback = linear_vjp(x, W)
    assert y.dtype == np.float16 and y[0, 0] == 0
    assert all(d.dtype == np.float16 for d in pullback(y))


def test_gradients_come_in_each_arguments_own_dtype(rng):
    x, W, b = case(rng)
    args = as_torch(x, torch.float16), as_torch(W, torch.float32), as_torch(b)
    y, pullback = linear_vjp(*args)
    assert y.dtype == torch.float16
    assert [d.dtype for d in pullback(y)] == [torch.float16, torch.float32, torch.float64]


def test_arguments_may_lie_anyhow_and_are_not_written_into(rng):
    x, W, b, dy = rng.normal(size=(5, 3, 2)).T, rng.normal(size=(7, 5)).T, np.broadcast_to(2.0, 7), np.ones((7, 3, 2)).T
    before = [a.copy() for a in (x, W, b, dy)]
    y, pullback = linear_vjp(x, W, b)
    np.testing.assert_allclose(y, loops.linear(x, W, b), rtol=1e-13, atol=1e-14)
    for mine, dense in zip(pullback(dy), linear_vjp(*before[:3])[1](before[3]), strict=True):
        np.testing.assert_allclose(mine, dense, rtol=1e-13, atol=1e-14)
    for old, new in zip(before, (x, W, b, dy), strict=True):
        np.testing.assert_array_equal(old, new)


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    x, W, b = case(rng)
    with pytest.raises(ShapeError, match=r"linear: W has d_in = 7, x had d_in = 5; W takes the shape \(d_in, d_out\)"):
        linear(x, W.T)
    with pytest.raises(ShapeError, match=r"linear: b has d_out = 5, W had d_out = 7"):
        linear(x, W, b[:5])
    with pytest.raises(ShapeError, match=r"the pullback of linear_vjp: dy has d_out = 5, W had d_out = 7"):
        linear_vjp(x, W)[1](x)
    with pytest.raises(DtypeError, match=r"linear: W has dtype int64; float values are expected"):
        linear(x, W.astype(int))
    with pytest.raises(DtypeError, match=r"linear: x is an array of numpy, W one of torch"):
        linear(x, as_torch(W))
