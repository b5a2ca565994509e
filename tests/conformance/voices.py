"""A case's arrays as numpy arrays or torch tensors, with the case's own dtype kept, bfloat16 included."""

import numpy as np
import torch


def in_numpy(x):
    """x as it is; numpy has no bfloat16 of its own, so cases with one are not for this voice."""
    return None if x is None else np.asarray(x)


def in_torch(x):
    """x as a torch tensor of the same bits; bfloat16 goes through its 16-bit pattern."""
    if x is None:
        return None
    x = np.array(x)  # a copy, since torch refuses read-only memory
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def speaks(voice, case) -> bool:
    """Tell whether a case can be asked of this voice: bfloat16 only of torch."""
    return voice is in_torch or all(x is None or x.dtype.name != "bfloat16" for x in case.inputs)
