"""The same numbers as numpy arrays and as torch tensors, so that one test hears every array."""

import numpy as np
import torch


def as_numpy(x, dtype=np.float64):
    """x as a numpy array; integers and booleans keep their type."""
    x = np.asarray(x)
    return x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x


def as_torch(x, dtype=torch.float64):
    """x as a torch tensor; integers and booleans keep their type."""
    tensor = torch.from_numpy(np.array(x))  # a copy: torch refuses read-only views
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


VOICES = (as_numpy, as_torch)
"""For `pytest.mark.parametrize("array", VOICES)`."""


def to_numpy(x):
    """Any array as float64 (or its own integer or boolean type) in numpy, for comparison."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        return (x.double() if x.is_floating_point() else x).numpy()
    x = np.asarray(x)
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x
