"""Softmax, log-softmax, log-sum-exp: the definition, the gradient, the laws, the edges, the contract."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DtypeError, ShapeError
from derived.ops.softmax import (
    log_softmax,
    log_softmax_vjp,
    log_sum_exp,
    log_sum_exp_vjp,
    shifted_exp,
    softmax,
    softmax_vjp,
)
from tests.support import loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import LOW, check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

OPS = [
    (softmax, softmax_vjp, loops.softmax, torch.softmax),
    (log_softmax, log_softmax_vjp, loops.log_softmax, torch.log_softmax),
    (log_sum_exp, log_sum_exp_vjp, loops.log_sum_exp, torch.logsumexp),
]
each_op = pytest.mark.parametrize(("f", "f_vjp", "loop", "theirs"), OPS, ids=["softmax", "log_softmax", "log_sum_exp"])
rows = arrays(np.float64, (3, 7), elements=st.floats(-50, 50))


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 5)])
@each_op
def test_is_the_definition(f, f_vjp, loop, theirs, shape, array, rng):
    s = rng.normal(0, 5, size=shape)
    np.testing.assert_allclose(to_numpy(f(array(s))), loop(s), rtol=1e-13, atol=1e-14)


@each_op
def test_torch_says_the_same(f, f_vjp, loop, theirs, rng):
    s = as_torch(rng.normal(0, 5, size=(2, 3, 7)))
    np.testing.assert_allclose(to_numpy(f(s)), to_numpy(theirs(s, dim=-1)), rtol=1e-13, atol=1e-14)


def test_the_worked_numbers():
    # shifted to [−2, 0]: exponentials 0.1353 and 1, sum 1.1353
    e, c, l = shifted_exp(np.array([1000.0, 1002.0]))
    np.testing.assert_array_equal(np.round(e, 4), [0.1353, 1])
    assert c[0] == 1002 and round(float(l[0]), 4) == 1.1353
    np.testing.assert_array_equal(np.round(softmax(np.array([1000.0, 1002.0])), 4), [0.1192, 0.8808])


@each_op
def test_pullback_is_the_derivative(f, f_vjp, loop, theirs, rng):
    check_vjp(f_vjp, [rng.normal(size=(2, 3, 7))], rng)
    check_vjp(f_vjp, [rng.normal(size=7)], rng)
    check_autograd(f, f_vjp, [rng.normal(0, 5, size=(2, 3, 7))], rng)


@each_op
def test_the_checks_see_one_part_in_a_thousand(f, f_vjp, loop, theirs, rng):
    s = rng.normal(size=(2, 3, 7))
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(f_vjp, 1.001), [s], rng)
    with pytest.raises(AssertionError):
        check_autograd(f, off_by(f_vjp, 1.001), [s], rng)


@each_op
def test_the_checks_see_the_wrong_axis(f, f_vjp, loop, theirs, rng):
    s = rng.normal(size=(3, 7))
    assert abs(to_numpy(theirs(as_torch(s), dim=0)).sum() - f(s).sum()) > 1e-3


@given(rows, st.floats(-1e3, 1e3))
def test_a_constant_added_to_a_row_cancels_or_passes_through(s, shift):
    np.testing.assert_allclose(softmax(s + shift), softmax(s), atol=1e-12)
    np.testing.assert_allclose(log_softmax(s + shift), log_softmax(s), atol=1e-11)
    np.testing.assert_allclose(log_sum_exp(s + shift), log_sum_exp(s) + shift, atol=1e-11)


@given(rows)
def test_weights_are_positive_sum_to_one_and_keep_the_order(s):
    a = softmax(s)
    assert (a > 0).all()
    np.testing.assert_allclose(a.sum(-1), 1, rtol=1e-14)
    order = np.argsort(s, axis=-1)
    assert (np.diff(np.take_along_axis(a, order, axis=-1)) >= 0).all()


@given(rows, st.permutations(range(7)))
def test_scores_may_come_in_any_order(s, order):
    np.testing.assert_allclose(softmax(s[:, order]), softmax(s)[:, order], rtol=1e-13)
    np.testing.assert_allclose(log_softmax(s[:, order]), log_softmax(s)[:, order], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(log_sum_exp(s[:, order]), log_sum_exp(s), rtol=1e-13, atol=1e-14)


@given(rows)
def test_log_sum_exp_lies_between_the_maximum_and_ln_m_above_it(s):
    y = log_sum_exp(s)
    assert (y >= s.max(-1)).all()
    assert (y <= s.max(-1) + math.log(7) + 1e-13).all()


@given(rows)
def test_the_three_are_one(s):
    np.testing.assert_allclose(np.exp(log_softmax(s)), softmax(s), rtol=1e-12)
    np.testing.assert_allclose(log_softmax(s), s - log_sum_exp(s)[:, None], rtol=1e-12, atol=1e-13)
    # the gradient of log-sum-exp is softmax
    np.testing.assert_allclose(log_sum_exp_vjp(s)[1](np.ones(3)), softmax(s), rtol=1e-13)


@given(rows, rows, rows)
def test_the_jacobian_of_softmax_is_symmetric_and_its_rows_sum_to_zero(s, x, y):
    _, pullback = softmax_vjp(s)
    np.testing.assert_allclose(pullback(x).sum(-1), 0, atol=1e-11)
    np.testing.assert_allclose(pullback(np.ones_like(s)), 0, atol=1e-14)
    np.testing.assert_allclose(np.sum(pullback(x) * y), np.sum(pullback(y) * x), atol=1e-9)


@given(rows, rows)
def test_gradients_of_log_softmax_sum_to_zero(s, dy):
    np.testing.assert_allclose(log_softmax_vjp(s)[1](dy).sum(-1), 0, atol=1e-10)


@pytest.mark.parametrize("array", VOICES)
def test_a_row_of_minus_infinity_is_zero_and_stays_silent(array):
    s = array(np.full((2, 3), -np.inf))
    with np.errstate(all="raise"):
        for f_vjp, expected in ((softmax_vjp, 0), (log_softmax_vjp, -np.inf), (log_sum_exp_vjp, -np.inf)):
            y, pullback = f_vjp(s)
            assert (to_numpy(y) == expected).all()
            assert (to_numpy(pullback(array(np.ones(y.shape)))) == 0).all()


@pytest.mark.parametrize("array", VOICES)
def test_a_score_of_minus_infinity_has_no_weight_and_no_gradient(array):
    s = array(np.array([[0.0, -np.inf, 1.0, -np.inf]]))
    with np.errstate(all="raise"):
        for f_vjp, loop in ((softmax_vjp, loops.softmax), (log_softmax_vjp, loops.log_softmax)):
            y, pullback = f_vjp(s)
            np.testing.assert_allclose(to_numpy(y), loop(to_numpy(s)), rtol=1e-14)
            ds = to_numpy(pullback(array(np.array([[2.0, 3.0, 5.0, 7.0]]))))
            assert (ds[0, [1, 3]] == 0).all() and abs(ds.sum()) < 1e-15
        ds = to_numpy(log_sum_exp_vjp(s)[1](array(np.array([2.0]))))
    np.testing.assert_allclose(ds, 2 * loops.softmax(to_numpy(s)), rtol=1e-14)


@pytest.mark.parametrize("array", VOICES)
def test_no_scores_and_no_rows(array):
    with np.errstate(all="raise"):
        assert softmax(array(np.zeros((2, 0)))).shape == (2, 0)
        assert log_softmax(array(np.zeros((2, 0)))).shape == (2, 0)
        assert (to_numpy(log_sum_exp(array(np.zeros((2, 0))))) == -np.inf).all()
        for f_vjp in (softmax_vjp, log_softmax_vjp, log_sum_exp_vjp):
            y, pullback = f_vjp(array(np.zeros((0, 3))))
            assert pullback(y).shape == (0, 3)


def test_one_score_has_all_the_weight_and_no_gradient():
    a, pullback = softmax_vjp(np.array([[-1e300], [5.0]]))
    assert (a == 1).all() and (pullback(np.array([[3.0], [7.0]])) == 0).all()


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@each_op
def test_a_row_with_nan_or_infinity_is_nan_and_the_others_are_not(f, f_vjp, loop, theirs, poison, array):
    s = np.zeros((2, 3))
    s[0, 1] = poison
    with np.errstate(invalid="ignore"):
        y = to_numpy(f(array(s)))
    assert np.isnan(y[0]).all() and np.isfinite(y[1]).all()


def test_a_weight_too_small_for_float64_still_has_its_logarithm():
    s = np.array([0.0, -800.0])
    assert softmax(s)[1] == 0 and log_softmax(s)[1] == -800
    ds = log_softmax_vjp(s)[1](np.array([0.0, 1.0]))
    np.testing.assert_array_equal(ds, [-1, 1])


@pytest.mark.parametrize("size", [1e3, 1e150, 1e300])
def test_huge_scores_do_not_overflow(size):
    s = np.array([[size, -size, size], [-size, -size, -size]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        np.testing.assert_allclose(softmax(s), [[0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-15)
        np.testing.assert_allclose(log_sum_exp(s), [size + math.log(2), -size + math.log(3)], rtol=1e-15)


def test_exp_without_the_maximum_is_seen_to_fail():
    with np.errstate(all="ignore"):
        e = np.exp(np.array([1000.0, 1002.0]))
        assert np.isnan(e / e.sum()).all()


@pytest.mark.parametrize("dtype", LOW)
@each_op
def test_error_in_low_precision_is_at_most_twice_that_of_the_plain_form(f, f_vjp, loop, theirs, dtype, rng):
    s = torch.from_numpy(rng.normal(size=(5, 1021))).to(dtype)
    e = torch.exp(s)  # no score here is near the overflow, so the plain form has an answer
    plain = {softmax: e / e.sum(-1, keepdim=True), log_sum_exp: torch.log(e.sum(-1))}
    plain[log_softmax] = s - plain[log_sum_exp][:, None]
    check_precision(f(s), plain[f], loop(to_numpy(s)))


@pytest.mark.parametrize("dtype", LOW)
@each_op
def test_gradients_in_low_precision_are_no_worse_than_torchs(f, f_vjp, loop, theirs, dtype, rng):
    s = torch.from_numpy(rng.normal(0, 3, size=(211, 31))).to(dtype)
    dy = torch.from_numpy(rng.normal(size=theirs(s, dim=-1).shape)).to(dtype)
    moved = s.clone().requires_grad_()
    (plain,) = torch.autograd.grad(theirs(moved, dim=-1), moved, dy)
    check_precision(f_vjp(s)[1](dy), plain, f_vjp(s.double())[1](dy.double()))


@pytest.mark.parametrize("array", [lambda x: x, torch.from_numpy])
def test_float16_at_its_ends(array):
    largest = float(np.finfo(np.float16).max)
    s = array(np.array([[largest, -largest, largest]], dtype=np.float16))
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_array_equal(to_numpy(softmax(s)), [[0.5, 0, 0.5]])
        # 70,001 equal scores: the sum of exponentials alone is beyond float16's 65,504
        a = softmax(array(np.zeros((1, 70_001), dtype=np.float16)))
    np.testing.assert_allclose(to_numpy(a), 1 / 70_001, rtol=2**-9)  # a subnormal: 8 bits are left
    assert (to_numpy(a) > 0).all()


@each_op
def test_the_argument_may_lie_anyhow_and_is_not_written_into(f, f_vjp, loop, theirs, rng):
    x = rng.normal(size=(7, 3, 2))
    turned, spread = x.transpose(2, 1, 0), np.broadcast_to(x[:, 0, 0], (3, 7))
    thinned = x.reshape(3, 14)[:, ::2]
    for s in (turned, spread, thinned, as_torch(x).permute(2, 1, 0), as_torch(x[:, 0, 0]).expand(3, 7)):
        y, pullback = f_vjp(s)
        dense = np.ascontiguousarray(to_numpy(s))
        before = dense.copy()
        np.testing.assert_allclose(to_numpy(y), loop(dense), rtol=1e-13, atol=1e-14)
        dy = rng.normal(size=y.shape[::-1]).T  # a cotangent that does not lie in order either
        ds = to_numpy(pullback(as_torch(dy) if isinstance(s, torch.Tensor) else dy))
        expected = f_vjp(dense)[1](np.ascontiguousarray(dy))
        np.testing.assert_allclose(ds, expected, rtol=1e-13, atol=1e-14)  # sums of another order
        np.testing.assert_array_equal(to_numpy(s), before)


@each_op
def test_what_does_not_fit_is_refused_by_a_sentence(f, f_vjp, loop, theirs, rng):
    s = rng.normal(size=(3, 7))
    name = f.__name__
    with pytest.raises(DtypeError, match=rf"{name}: s has dtype int64; float values are expected: convert s first"):
        f(np.ones((3, 7), dtype=np.int64))
    with pytest.raises(DtypeError, match=rf"{name}: s is of type list; an array is expected: make it one with numpy"):
        f([1.0, 2.0])
    with pytest.raises(ShapeError, match=rf"{name}: s has shape \(\), which has too few or too many axes"):
        f(np.array(1.0))
    with pytest.raises(DtypeError, match=rf"pullback of {name}_vjp: s is an array of numpy, d. one of torch"):
        f_vjp(s)[1](as_torch(to_numpy(f(s))))


def test_a_gradient_of_the_wrong_size_is_refused_by_a_sentence(rng):
    s = rng.normal(size=(3, 7))
    with pytest.raises(ShapeError, match=r"the pullback of softmax_vjp: da has m = 5, s had m = 7"):
        softmax_vjp(s)[1](np.ones((3, 5)))
    with pytest.raises(ShapeError, match=r"log_softmax_vjp: dy has batch = \(2,\), s had batch = \(3,\)"):
        log_softmax_vjp(s)[1](np.ones((2, 7)))
    with pytest.raises(ShapeError, match=r"log_sum_exp_vjp: dy has batch = \(2,\), s had batch = \(3,\)"):
        log_sum_exp_vjp(s)[1](np.ones(2))
