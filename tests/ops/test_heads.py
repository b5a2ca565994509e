"""Heads: split and merge undo each other, shared key heads are repeated and their gradients summed."""

import numpy as np
import pytest
import torch

from derived.errors import DtypeError, ShapeError
from derived.ops.heads import group_size, merge_heads, repeat_heads, split_heads, sum_groups
from tests.support.voices import VOICES, as_torch, to_numpy


@pytest.mark.parametrize("array", VOICES)
def test_head_i_takes_the_i_th_piece_of_every_token(array, rng):
    x = rng.normal(size=(2, 5, 21))
    y = to_numpy(split_heads(array(x), 3))
    assert y.shape == (2, 3, 5, 7)
    for b, i, t, c in np.ndindex(y.shape):
        assert y[b, i, t, c] == x[b, t, 7 * i + c]


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_merging_undoes_splitting(lead, array, rng):
    x = rng.normal(size=(*lead, 5, 21))
    np.testing.assert_array_equal(to_numpy(merge_heads(split_heads(array(x), 3))), x)


def test_each_is_the_others_pullback(rng):
    x, dy = as_torch(rng.normal(size=(2, 5, 21))).requires_grad_(), as_torch(rng.normal(size=(2, 3, 5, 7)))
    (dx,) = torch.autograd.grad(split_heads(x, 3), x, dy)
    assert torch.equal(dx, merge_heads(dy))
    (ddy,) = torch.autograd.grad(merge_heads(dy.requires_grad_()), dy, dx)
    assert torch.equal(ddy, split_heads(dx, 3))


def test_a_bare_reshape_mixes_tokens(rng):
    x = rng.normal(size=(5, 21))
    assert (split_heads(x, 3) != x.reshape(3, 5, 7)).any()


def test_one_head_and_no_tokens():
    assert split_heads(np.ones((5, 7)), 1).shape == (1, 5, 7)
    assert merge_heads(split_heads(np.ones((0, 21)), 3)).shape == (0, 21)


def test_a_width_that_does_not_divide_is_refused_by_a_sentence():
    with pytest.raises(ShapeError, match=r"a width of 21 does not divide into h = 4 heads; choose h among its divis"):
        split_heads(np.ones((5, 21)), 4)
    with pytest.raises(ShapeError, match=r"a width of 21 does not divide into h = 0 heads"):
        split_heads(np.ones((5, 21)), 0)
    with pytest.raises(DtypeError, match=r"split_heads: h is 3\.0; int is expected"):
        split_heads(np.ones((5, 21)), 3.0)


@pytest.mark.parametrize("array", VOICES)
def test_a_key_head_serves_consecutive_query_heads(array, rng):
    x = rng.normal(size=(2, 3, 5, 7))
    y = to_numpy(repeat_heads(array(x), 2))
    np.testing.assert_array_equal(y, torch.repeat_interleave(as_torch(x), 2, dim=1).numpy())
    np.testing.assert_array_equal(y[0, :, 0, 0], x[0, [0, 0, 1, 1, 2, 2], 0, 0])
    assert (y != np.tile(x, (1, 2, 1, 1))).any()  # tiled would be a, b, c, a, b, c


@pytest.mark.parametrize("array", VOICES)
def test_a_shared_head_receives_the_sum(array, rng):
    dx = rng.normal(size=(2, 6, 5, 7))
    expected = np.stack([dx[:, 2 * i] + dx[:, 2 * i + 1] for i in range(3)], axis=1)
    np.testing.assert_allclose(to_numpy(sum_groups(array(dx), 2)), expected, rtol=1e-15)


def test_summing_is_the_pullback_of_repeating(rng):
    x, dy = as_torch(rng.normal(size=(2, 3, 5, 7))).requires_grad_(), as_torch(rng.normal(size=(2, 6, 5, 7)))
    (dx,) = torch.autograd.grad(repeat_heads(x, 2), x, dy)
    np.testing.assert_allclose(dx, sum_groups(dy, 2), rtol=1e-15)


def test_groups_of_one_are_the_array_itself(rng):
    x = rng.normal(size=(2, 3, 5, 7))
    assert repeat_heads(x, 1) is x and sum_groups(x, 1) is x


def test_how_many_query_heads_share_a_key_head():
    def ones(*lead):
        return np.ones((*lead, 5, 7))

    assert group_size(ones(2, 6), ones(2, 3)) == 2
    assert group_size(ones(2, 6), ones(2, 6)) == group_size(ones(), ones()) == 1
    with pytest.raises(ShapeError, match=r"q has h = 6 heads, k and v have h_kv = 4; h must be a whole multiple"):
        group_size(ones(2, 6), ones(2, 4))
    with pytest.raises(ShapeError, match=r"q has h = 3 heads, k and v have h_kv = 6"):
        group_size(ones(2, 3), ones(2, 6))
    with pytest.raises(ShapeError, match=r"q has h = 3 heads, k and v have h_kv = 0"):
        group_size(ones(2, 3), ones(2, 0))
    with pytest.raises(ShapeError, match=r"q has leading axes \(2, 6\), k and v have \(3, 6\); they must agree"):
        group_size(ones(2, 6), ones(3, 6))
    with pytest.raises(ShapeError, match=r"q has leading axes \(2, 6\), k and v have \(6,\); they must agree"):
        group_size(ones(2, 6), ones(6))
