"""The shim: precision, erf, scatter-add, and what is told apart between numpy and torch."""

import math

import numpy as np
import pytest
import torch

from derived.ops.arrays import (
    device_of,
    erf,
    inverse_sqrt,
    is_half,
    scatter_add_rows,
    swap_last,
    widen,
    widen_together,
)
from tests.support.voices import VOICES, to_numpy


@pytest.mark.parametrize("dtype", [np.float16, torch.float16, torch.bfloat16])
def test_half_precision_is_widened_to_float32(dtype):
    x = torch.ones(3, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones(3, dtype=dtype)
    wide = widen(x)
    assert str(wide.dtype).endswith("float32") and (wide == 1).all() and x.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, torch.float32, torch.float64, torch.int64])
def test_what_is_wide_enough_is_passed_on_untouched(dtype):
    x = torch.ones(3, dtype=dtype) if isinstance(dtype, torch.dtype) else np.ones(3, dtype=dtype)
    assert widen(x) is x


def test_float64_is_not_half_although_numpy_reads_none_as_float64():
    assert not is_half(np.dtype(np.float64), np) and is_half(np.dtype(np.float16), np)


def test_arrays_that_meet_are_given_the_widest_of_their_dtypes():
    half, single, double = (np.ones(2, dtype=d) for d in (np.float16, np.float32, np.float64))
    assert [x.dtype for x in widen_together(half, single)] == [np.float32] * 2
    assert [x.dtype for x in widen_together(half, half)] == [np.float32] * 2
    wide = widen_together(half, None, double)
    assert wide[1] is None and wide[0].dtype == np.float64 and wide[2] is double
    mixed = widen_together(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16))
    assert [x.dtype for x in mixed] == [torch.float32] * 2


@pytest.mark.parametrize("array", VOICES)
def test_erf_is_that_of_the_standard_library(array):
    x = np.array([-5.9, -1.0, -1e-9, 0.0, 0.3, 2.0, np.inf])
    np.testing.assert_allclose(to_numpy(erf(array(x))), [math.erf(e) for e in x], rtol=1e-15)
    assert np.isnan(to_numpy(erf(array(np.array([np.nan])))))


@pytest.mark.parametrize("array", VOICES)
def test_rows_of_the_same_index_add_up(array, rng):
    rows, index = rng.normal(size=(11, 3)), rng.integers(0, 4, size=11)
    expected = np.zeros((5, 3))
    for j, i in enumerate(index):
        expected[i] += rows[j]
    assert len(set(index)) < 11  # assignment by index would lose rows
    np.testing.assert_allclose(to_numpy(scatter_add_rows(array(rows), array(index), 5)), expected, rtol=1e-14)
    assert scatter_add_rows(array(rows[:0]), array(index[:0]), 5).shape == (5, 3)


def test_scatter_add_lets_torch_differentiate_through_it(rng):
    rows = torch.from_numpy(rng.normal(size=(7, 3))).requires_grad_()
    index = torch.tensor([0, 2, 2, 1, 0, 2, 1])
    dy = torch.from_numpy(rng.normal(size=(3, 3)))
    (d,) = torch.autograd.grad(scatter_add_rows(rows, index, 3), rows, dy)
    assert torch.equal(d, dy[index])


@pytest.mark.parametrize("array", VOICES)
def test_swapping_the_last_axes_leaves_the_leading_ones(array, rng):
    x = rng.normal(size=(2, 3, 5))
    y = to_numpy(swap_last(array(x)))
    assert y.shape == (2, 5, 3) and all(y[b, j, i] == x[b, i, j] for b, i, j in np.ndindex(2, 3, 5))


def test_the_default_scale():
    assert inverse_sqrt(64) == 0.125 and inverse_sqrt(2) == 1 / math.sqrt(2)
    assert inverse_sqrt(0) == 1


def test_new_arrays_are_made_where_the_old_ones_are():
    assert device_of(np.ones(2)) == "cpu"
    assert device_of(torch.ones(2, device="meta")) == torch.device("meta")
