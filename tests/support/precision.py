"""A tolerance that is measured: an error against float64, beside the error of the plain form in the same precision."""

import numpy as np
import torch

from tests.support.voices import to_numpy

LOW = (torch.float16, torch.bfloat16, torch.float32)
"""The precisions below float64; bfloat16 exists in torch only."""


def check_precision(mine, plain, exact, factor=2.0, largest=2.0):
    """The error of `mine` against `exact` is at most `factor` times that of `plain`; dtypes agree.

    Compared are root mean squares, since the largest of a few rounding errors is a matter of luck; the largest
    error may be `largest` times as far out as that. Where there are errors enough, 1 holds it to the same factor.
    """
    assert mine.dtype == plain.dtype, f"{mine.dtype} came back, the plain form has {plain.dtype}"
    mine, plain, exact = to_numpy(mine), to_numpy(plain), to_numpy(exact)
    assert np.isfinite(mine).all() and np.isfinite(plain).all(), "not finite"
    mine, plain = abs(mine - exact), abs(plain - exact)
    error, allowed = np.sqrt((mine**2).mean()), factor * np.sqrt((plain**2).mean())
    assert error <= allowed, f"error {error:.2e}, allowed {allowed:.2e}"
    error, allowed = mine.max(), largest * factor * plain.max()
    assert error <= allowed, f"largest error {error:.2e}, allowed {allowed:.2e}"
