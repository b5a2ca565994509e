"""Cross-entropy: the definition, the gradient predicted minus one-hot, the laws, the edges, the contract."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.ops.cross_entropy import cross_entropy, cross_entropy_vjp, mean_cross_entropy, mean_cross_entropy_vjp
from tests.support import loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import LOW, check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

OPS = [
    (cross_entropy, cross_entropy_vjp, loops.cross_entropy, "none"),
    (mean_cross_entropy, mean_cross_entropy_vjp, loops.mean_cross_entropy, "mean"),
]
each_op = pytest.mark.parametrize(("f", "f_vjp", "loop", "reduction"), OPS, ids=["token", "mean"])
logits = arrays(np.float64, (3, 7), elements=st.floats(-50, 50))
answers = arrays(np.int64, 3, elements=st.integers(0, 6))


def case(rng, lead=(2, 3)):
    return [rng.normal(0, 2, size=(*lead, 7)), rng.integers(0, 7, size=lead)]


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@each_op
def test_is_the_definition(f, f_vjp, loop, reduction, lead, array, rng):
    s, target = case(rng, lead)
    np.testing.assert_allclose(to_numpy(f(array(s), array(target))), loop(s, target), rtol=1e-13)


@pytest.mark.parametrize("array", VOICES)
def test_weights_are_the_definition(array, rng):
    s, target = case(rng)
    weight = rng.random((2, 3)) * (rng.random((2, 3)) < 0.7)
    mine = to_numpy(mean_cross_entropy(array(s), array(target), weight=array(weight)))
    np.testing.assert_allclose(mine, loops.mean_cross_entropy(s, target, weight=weight), rtol=1e-13)


@each_op
def test_torch_says_the_same_forward_and_backward(f, f_vjp, loop, reduction, rng):
    s, target = map(as_torch, case(rng, (5,)))
    y, pullback = f_vjp(s, target)
    theirs = torch.nn.functional.cross_entropy(s.requires_grad_(), target, reduction=reduction)
    dy = torch.from_numpy(rng.normal(size=y.shape)) if y.ndim else torch.tensor(2.0, dtype=torch.float64)
    (ds,) = torch.autograd.grad(theirs, s, dy)
    np.testing.assert_allclose(to_numpy(y), to_numpy(theirs), rtol=1e-13)
    np.testing.assert_allclose(to_numpy(pullback(dy)), to_numpy(ds), rtol=1e-12, atol=1e-15)


def test_weights_by_class_and_an_index_to_ignore_are_weights_of_tokens(rng):
    s, target = map(as_torch, case(rng, (11,)))
    by_class, ignored = torch.from_numpy(rng.random(7)), int(target[0])
    theirs = torch.nn.functional.cross_entropy(s, target, weight=by_class, ignore_index=ignored)
    weight = torch.where(target == ignored, 0.0, by_class[target])
    np.testing.assert_allclose(mean_cross_entropy(s, target, weight=weight), theirs, rtol=1e-13)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@each_op
def test_pullback_is_the_derivative(f, f_vjp, loop, reduction, lead, rng):
    check_vjp(f_vjp, case(rng, lead), rng)
    check_autograd(f, f_vjp, case(rng, lead), rng)


def test_pullback_with_weights_is_the_derivative(rng):
    weight = np.array([[0.5, 0, 2], [0, 3, 0.25]])
    check_vjp(mean_cross_entropy_vjp, case(rng), rng, weight=weight)
    check_autograd(
        lambda s, t: mean_cross_entropy(s, t, weight=as_torch(weight)),
        lambda s, t: mean_cross_entropy_vjp(s, t, weight=as_torch(weight)),
        case(rng),
        rng,
    )


@each_op
def test_the_checks_see_one_part_in_a_thousand(f, f_vjp, loop, reduction, rng):
    wrong = off_by(f_vjp, 1.001)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(wrong, case(rng), rng)
    with pytest.raises(AssertionError):
        check_autograd(f, wrong, case(rng), rng)


@given(logits, answers)
def test_the_gradient_is_predicted_minus_one_hot(s, target):
    ds = cross_entropy_vjp(s, target)[1](np.ones(3))
    np.testing.assert_allclose(ds, loops.softmax(s) - np.eye(7)[target], atol=1e-12)
    np.testing.assert_allclose(ds.sum(-1), 0, atol=1e-12)


@given(logits, answers, st.floats(-1e3, 1e3))
def test_a_loss_is_never_negative_and_forgets_a_common_offset(s, target, shift):
    loss = cross_entropy(s, target)
    assert (loss >= 0).all()
    np.testing.assert_allclose(cross_entropy(s + shift, target), loss, atol=1e-11)


@given(logits, answers, st.permutations(range(7)))
def test_the_vocabulary_may_be_numbered_in_any_order(s, target, order):
    order = np.array(order)
    np.testing.assert_allclose(
        cross_entropy(s[:, order], np.argsort(order)[target]), cross_entropy(s, target), atol=1e-13
    )


def test_equal_logits_cost_the_logarithm_of_the_vocabulary():
    np.testing.assert_allclose(cross_entropy(np.zeros((2, 7)), np.array([0, 6])), math.log(7), rtol=1e-15)


@pytest.mark.parametrize("array", VOICES)
def test_a_target_without_probability_costs_infinity(array):
    s, target = array(np.array([[0.0, -np.inf, 2.0]])), array(np.array([1]))
    with np.errstate(all="raise"):
        loss, pullback = cross_entropy_vjp(s, target)
        assert to_numpy(loss)[0] == np.inf
        ds = to_numpy(pullback(array(np.ones(1))))
    np.testing.assert_allclose(ds, loops.softmax(to_numpy(s)) - [[0, 1, 0]], rtol=1e-14)


@pytest.mark.parametrize("array", VOICES)
def test_a_logit_of_minus_infinity_elsewhere_takes_no_part(array):
    s, target = array(np.array([[0.0, -np.inf, 2.0]])), array(np.array([2]))
    with np.errstate(all="raise"):
        loss, pullback = cross_entropy_vjp(s, target)
        ds = to_numpy(pullback(array(np.ones(1))))
    np.testing.assert_allclose(to_numpy(loss), math.log1p(math.exp(-2)), rtol=1e-14)
    assert ds[0, 1] == 0 and abs(ds.sum()) < 1e-15


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("poison", [np.nan, -np.inf])
def test_a_token_of_weight_zero_is_not_read(array, poison, rng):
    s, target = case(rng, (3,))
    s[1] = poison
    weight = array(np.array([1.0, 0.0, 3.0]))
    loss, pullback = mean_cross_entropy_vjp(array(s), array(target), weight=weight)
    expected = (loops.cross_entropy(s[[0, 2]], target[[0, 2]]) * [0.25, 0.75]).sum()
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-13)
    ds = to_numpy(pullback(array(np.array(2.0))))
    assert (ds[1] == 0).all() and np.isfinite(ds).all() and (ds[[0, 2]] != 0).all()


@pytest.mark.parametrize("array", VOICES)
def test_nothing_to_average_gives_zero_and_zero_gradients(array, rng):
    s, target = case(rng, (3,))
    one = array(np.array(1.0))
    with np.errstate(all="raise"):
        loss, pullback = mean_cross_entropy_vjp(array(s), array(target), weight=array(np.zeros(3)))
        assert loss == 0 and (to_numpy(pullback(one)) == 0).all()
        loss, pullback = mean_cross_entropy_vjp(array(s[:0]), array(target[:0]))
        assert loss == 0 and pullback(one).shape == (0, 7)
    theirs = torch.nn.functional.cross_entropy(as_torch(s), torch.full((3,), -100))
    assert torch.isnan(theirs)  # the other convention


def test_one_word_is_no_surprise():
    loss, pullback = cross_entropy_vjp(np.array([[3.0], [-1e300]]), np.array([0, 0]))
    assert (loss == 0).all() and (pullback(np.ones(2)) == 0).all()


def test_huge_logits_do_not_overflow():
    s = np.array([[1e300, -1e300], [1000.0, 1002.0]])
    with np.errstate(over="raise", invalid="raise"):
        loss, pullback = cross_entropy_vjp(s, np.array([0, 0]))
        ds = pullback(np.ones(2))
    np.testing.assert_allclose(loss, [0, 2 + math.log1p(math.exp(-2))], rtol=1e-15)
    np.testing.assert_array_equal(np.round(ds, 4), [[0, 0], [-0.8808, 0.8808]])


@pytest.mark.parametrize("dtype", LOW)
@each_op
def test_error_in_low_precision_is_at_most_twice_that_of_the_plain_form(f, f_vjp, loop, reduction, dtype, rng):
    s, target = case(rng, (211,))
    s, target = torch.from_numpy(s).to(dtype).requires_grad_(), torch.from_numpy(target)
    plain = torch.log(torch.exp(s).sum(-1)) - s[torch.arange(211), target]
    plain = plain if reduction == "none" else plain.mean()
    dy = torch.ones_like(plain)
    with torch.no_grad():
        y, pullback = f_vjp(s, target)
        exact, exactly = f_vjp(s.double(), target)
        if reduction == "none":  # one number has too much luck in its rounding
            check_precision(y, plain, exact)
        (theirs,) = torch.autograd.grad(plain, s, dy)
        check_precision(pullback(dy), theirs, exactly(dy.double()))


def test_float16_at_its_ends():
    largest = float(np.finfo(np.float16).max)
    s = np.array([[largest, -largest, largest]], dtype=np.float16)
    loss, pullback = cross_entropy_vjp(s, np.array([0]))
    assert loss.dtype == np.float16
    np.testing.assert_allclose(loss.astype(float), math.log(2), rtol=2**-11)
    np.testing.assert_array_equal(pullback(np.ones(1, dtype=np.float16)), [[-0.5, 0, 0.5]])
    # 100,003 losses of ln 3 sum to 109,865, beyond 65,504; their mean does not pass through that number
    many = mean_cross_entropy(np.zeros((100_003, 3), dtype=np.float16), np.zeros(100_003, dtype=np.int8))
    np.testing.assert_allclose(float(many), math.log(3), rtol=2**-11)


@each_op
def test_arguments_may_lie_anyhow_and_are_not_written_into(f, f_vjp, loop, reduction, rng):
    s, target = rng.normal(size=(7, 3, 2)).T, rng.integers(0, 7, size=(3, 2)).T
    before = s.copy(), target.copy()
    y, pullback = f_vjp(s, target)
    np.testing.assert_allclose(y, loop(s, target), rtol=1e-13)
    dy = np.broadcast_to(2.0, y.shape)
    np.testing.assert_allclose(pullback(dy), f_vjp(*before)[1](dy.copy()), rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(s, before[0])
    np.testing.assert_array_equal(target, before[1])


@pytest.mark.parametrize("array", VOICES)
@each_op
def test_what_does_not_fit_is_refused_by_a_sentence(f, f_vjp, loop, reduction, array, rng):
    s, target = case(rng)
    with pytest.raises(DerivedError, match=r"cross_entropy: target holds -100, but n_vocab = 7 admits 0 to 6 only"):
        f(array(s), array(np.where(target == target[0, 0], -100, target)))
    with pytest.raises(DerivedError, match=r"cross_entropy: target holds 7, but n_vocab = 7 admits 0 to 6 only"):
        f(array(s), array(np.where(target == target[0, 0], 7, target)))
    with pytest.raises(ShapeError, match=r"cross_entropy: target has batch = \(3,\), s had batch = \(2, 3\)"):
        f(array(s), array(target[0]))
    with pytest.raises(DtypeError, match=r"cross_entropy: target has dtype float64; integer values are expected"):
        f(array(s), array(target.astype(float)))
    with pytest.raises(ShapeError, match=r"the pullback of (mean_)?cross_entropy_vjp: dy has "):
        f_vjp(array(s), array(target))[1](array(np.ones((5, 3))))


def test_weights_that_do_not_fit_are_refused_by_a_sentence(rng):
    s, target = case(rng)
    with pytest.raises(ShapeError, match=r"mean_cross_entropy: weight has batch = \(3,\), s had batch = \(2, 3\)"):
        mean_cross_entropy(s, target, weight=np.ones(3))
    with pytest.raises(DtypeError, match=r"mean_cross_entropy: weight has dtype bool; float values are expected"):
        mean_cross_entropy(s, target, weight=np.ones((2, 3), dtype=bool))
