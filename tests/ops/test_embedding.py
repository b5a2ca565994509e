"""The embedding: the definition, the gradient that adds up, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.ops.embedding import embedding, embedding_vjp
from derived.ops.linear import linear_vjp
from tests.support import loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import check_precision
from tests.support.voices import VOICES, as_torch, to_numpy


def case(rng):
    tokens = rng.integers(0, 5, size=(2, 7))
    tokens[0, :2] = 3  # a token that stands in two places
    return [tokens, rng.normal(size=(5, 3))]


@pytest.mark.parametrize("array", VOICES)
def test_is_the_definition(array, rng):
    tokens, table = case(rng)
    np.testing.assert_array_equal(to_numpy(embedding(array(tokens), array(table))), loops.embedding(tokens, table))
    assert embedding(array(tokens[0, 0]), array(table)).shape == (3,)


def test_torch_says_the_same_forward_and_backward(rng):
    tokens, table = map(as_torch, case(rng))
    y, pullback = embedding_vjp(tokens, table)
    theirs = torch.nn.functional.embedding(tokens, table.requires_grad_())
    dy = torch.from_numpy(rng.normal(size=(2, 7, 3)))
    (dtable,) = torch.autograd.grad(theirs, table, dy)
    assert torch.equal(y, theirs)
    np.testing.assert_allclose(pullback(dy), dtable, rtol=1e-13, atol=1e-14)


def test_pullback_is_the_derivative(rng):
    check_vjp(embedding_vjp, case(rng), rng)
    check_autograd(embedding, embedding_vjp, case(rng), rng)
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(embedding_vjp, 1.001), case(rng), rng)


def test_the_check_sees_a_gradient_that_is_assigned_instead_of_added(rng):
    def assigning(tokens, table):
        def pullback(dy):
            dtable = np.zeros_like(table)
            dtable[tokens] = dy
            return dtable

        return table[tokens], pullback

    with pytest.raises(AssertionError, match="off by"):
        check_vjp(assigning, case(rng), rng)


@given(arrays(np.int64, (2, 7), elements=st.integers(0, 4)), arrays(np.float64, (2, 7, 3), elements=st.floats(-9, 9)))
def test_it_is_the_linear_map_of_one_hot_rows(tokens, dy):
    table = np.arange(15.0).reshape(5, 3)
    y, pullback = embedding_vjp(tokens, table)
    same, linear_pullback = linear_vjp(np.eye(5)[tokens], table)
    np.testing.assert_array_equal(y, same)
    np.testing.assert_allclose(pullback(dy), linear_pullback(dy)[1], atol=1e-12)
    np.testing.assert_allclose(pullback(dy).sum(0), dy.sum((0, 1)), atol=1e-12)  # nothing is lost


def test_tokens_that_do_not_occur_learn_nothing(rng):
    _, table = case(rng)
    assert (embedding_vjp(np.array([1, 3, 1]), table)[1](np.ones((3, 3)))[[0, 2, 4]] == 0).all()


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_any_integers_serve_bytes_included(dtype, array, rng):
    # torch reads a uint8 index as a mask unless it is converted
    tokens, table = case(rng)
    y, pullback = embedding_vjp(array(tokens.astype(dtype)), array(table))
    np.testing.assert_array_equal(to_numpy(y), table[tokens])
    assert pullback(y).shape == table.shape


@pytest.mark.parametrize("array", VOICES)
def test_no_tokens_and_no_width(array):
    y, pullback = embedding_vjp(array(np.zeros((2, 0), dtype=np.int64)), array(np.ones((5, 3))))
    assert y.shape == (2, 0, 3) and (to_numpy(pullback(y)) == 0).all()
    y, pullback = embedding_vjp(array(np.zeros((2, 7), dtype=np.int64)), array(np.ones((5, 0))))
    assert y.shape == (2, 7, 0) and pullback(y).shape == (5, 0)
    y, _ = embedding_vjp(array(np.zeros(0, dtype=np.int64)), array(np.ones((0, 3))))
    assert y.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_small_gradients_of_one_token_are_not_lost_in_half_precision(dtype):
    # 4,099 gradients of 1/16 sum to 256.2; added in bfloat16 one by one they stop at 16
    tokens, dy = torch.zeros(4099, dtype=torch.int64), torch.full((4099, 3), 1 / 16, dtype=dtype)
    dtable = embedding_vjp(tokens, torch.zeros((2, 3), dtype=dtype))[1](dy)
    exact = torch.tensor([[4099 / 16] * 3, [0.0] * 3], dtype=torch.float64)
    check_precision(dtable, exact.to(dtype), exact, factor=1)
    stalled = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(4099):
        stalled = stalled + dy[0, 0].bfloat16()
    assert stalled == 16


def test_arguments_may_lie_anyhow_and_are_not_written_into(rng):
    tokens, table, dy = rng.integers(0, 5, size=(7, 2)).T, rng.normal(size=(3, 5)).T, np.broadcast_to(2.0, (2, 7, 3))
    before = tokens.copy(), table.copy()
    y, pullback = embedding_vjp(tokens, table)
    np.testing.assert_array_equal(y, loops.embedding(tokens, table))
    np.testing.assert_array_equal(pullback(dy), embedding_vjp(*before)[1](dy.copy()))
    y[:] = 0  # the rows are copies: writing into the result does not reach the table
    np.testing.assert_array_equal(table, before[1])
    np.testing.assert_array_equal(tokens, before[0])


@pytest.mark.parametrize("array", VOICES)
def test_what_does_not_fit_is_refused_by_a_sentence(array, rng):
    tokens, table = case(rng)
    with pytest.raises(DerivedError, match=r"embedding: tokens holds 5, but n_vocab = 5 admits 0 to 4 only"):
        embedding(array(np.array([0, 5])), array(table))
    with pytest.raises(DerivedError, match=r"embedding: tokens holds -1, but n_vocab = 5 admits 0 to 4 only"):
        embedding(array(np.array([0, -1])), array(table))
    with pytest.raises(DtypeError, match=r"embedding: tokens has dtype float64; integer values are expected"):
        embedding(array(tokens.astype(float)), array(table))
    with pytest.raises(ShapeError, match=r"embedding: table has shape \(3,\), which has too few or too many axes"):
        embedding(array(tokens), array(table[0]))
    with pytest.raises(ShapeError, match=r"the pullback of embedding_vjp: dy has d_model = 5, table had d_model = 3"):
        embedding_vjp(array(tokens), array(table))[1](array(np.ones((2, 7, 5))))
