"""Walks over nested parameters: every array by its path, the same thing done to each, their number."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from derived.ops.arrays import Array


def leaves(params: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yield every array of nested parameters with its path, such as "stack.layers.0.attention.W_Q"."""
    if params is None:
        return
    if not isinstance(params, tuple):
        yield path, params
        return
    names = getattr(params, "_fields", range(len(params)))
    for name, value in zip(names, params, strict=True):
        yield from leaves(value, f"{path}.{name}".lstrip("."))


def map_arrays(f: Callable, params: Any, *others: Any) -> Any:
    """The same structure with f of every array, or of the arrays that stand in the same place of all structures.

    So `map_arrays(torch.from_numpy, params)` moves a model to torch, and
    `map_arrays(lambda w, dw: w - 0.1 * dw, params, gradients)` takes a step of gradient descent.
    """
    if params is None:
        return None
    if not isinstance(params, tuple):
        return f(params, *others)
    mapped = [map_arrays(f, *each) for each in zip(params, *others, strict=True)]
    return type(params)(*mapped) if hasattr(params, "_fields") else tuple(mapped)


def count_parameters(params: Any) -> int:
    """How many numbers a model learns: P."""
    return sum(math.prod(x.shape) for _, x in leaves(params))
