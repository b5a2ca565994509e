"""What the Array API leaves out, in one place: the array type of annotations, precision, erf, scatter-add.

Everything else in `ops` is written over the Array API (`array_api_compat.array_namespace`), so that one
source serves numpy and torch. Where numpy and torch must be told apart, they are told apart here.
"""

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

Array = Any
"""A numpy array or a torch tensor; jaxtyping checks its shape and dtype, the namespace its kind."""


def is_half(dtype, xp) -> bool:
    """Tell whether dtype is float16 or bfloat16, the two that are widened before they are summed."""
    halves = [getattr(xp, name) for name in ("float16", "bfloat16") if hasattr(xp, name)]
    return any(dtype == half for half in halves)  # never compared with None: numpy reads None as float64


def widen(x: Array) -> Array:
    """Return x in float32 if it is in half precision, else x itself.

    A sum of n float16 numbers loses about log2(n) of its 11 bits and overflows at 65,504; every formula
    here is computed on widened arrays and rounded once, at the end.
    """
    xp = array_namespace(x)
    return xp.astype(x, xp.float32) if is_half(x.dtype, xp) else x


def widen_together(*xs: Array | None) -> tuple:
    """Return all of xs widened and in one dtype, the widest among them; None stays None.

    numpy multiplies matrices of two dtypes, torch does not: with this, one source serves both.
    """
    given = [widen(x) for x in xs if x is not None]
    xp = array_namespace(*given)
    dtype = xp.result_type(*(x.dtype for x in given))
    return tuple(x if x is None or x.dtype == dtype else xp.astype(x, dtype) for x in xs)


def swap_last(x: Array) -> Array:
    """Transpose the last two axes, Xᵀ for every matrix of a batch."""
    return array_namespace(x).matrix_transpose(x)


def erf(x: Array) -> Array:
    """The error function erf(x) = 2/√π ∫₀ˣ exp(−t²) dt, elementwise; scipy for numpy, torch for torch."""
    if is_torch_array(x):
        import torch

        return torch.erf(x)
    from scipy.special import erf as scipy_erf

    return scipy_erf(x)


def scatter_add_rows(rows: Array, index: Array, count: int) -> Array:
    """Sum rows that carry the same index: out[i] = Σ over {j: index_j = i} of rows_j.

    Shapes: rows (j, d), index (j,) of integers in [0, count) -> out (count, d).
    Repeated indices add up, which assignment by index would not do.
    """
    if is_torch_array(rows):
        import torch

        return torch.zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device).index_add(0, index, rows)
    out = np.zeros((count, rows.shape[1]), dtype=rows.dtype)
    np.add.at(out, index, rows)
    return out


def device_of(x: Array) -> Any:
    """The device x lives on, in the form that the creation functions of its namespace take."""
    return x.device if is_torch_array(x) else "cpu"


def inverse_sqrt(x: int) -> float:
    """1/√x for a size x; a width of 0 scores nothing, so any factor serves and 1 is returned."""
    return 1 / math.sqrt(x) if x else 1.0
