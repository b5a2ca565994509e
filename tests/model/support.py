"""What the model tests share: parameters as flat arguments for the gradient checks, and comparison leaf by leaf."""

import numpy as np
import torch

from derived.model import leaves, map_arrays
from derived.model.parameters import MultiHeadParams
from tests.support.voices import to_numpy


def shaken(params, rng, size=0.3):
    """The same parameters, each number moved: biases off 0, gains off 1."""
    return map_arrays(lambda x: x + size * rng.normal(size=x.shape), params)


def to_torch(params, dtype=torch.float64):
    """The same parameters as torch tensors."""
    return map_arrays(lambda x: torch.tensor(x).to(dtype), params)


def rebuilt(params, arrays):
    """The structure of params with other arrays in it, in the order of `leaves`."""
    rest = iter(arrays)
    return map_arrays(lambda _: next(rest), params)


def flattened(f, params, *, bare=False):
    """f(params, x, …) as a function of (*arrays, x, …), for `check_vjp` and `check_autograd`.

    A pullback's (dparams, dx, …) becomes (*darrays, dx, …); with `bare` the pullback gives dparams alone.
    """
    number = sum(1 for _ in leaves(params))

    def flat(*args, **options):
        result = f(rebuilt(params, args[:number]), *args[number:], **options)
        if not isinstance(result, tuple):
            return result
        y, pullback = result

        def flat_pullback(dy):
            dparams, *rest = (pullback(dy),) if bare else pullback(dy)
            return (*(x for _, x in leaves(dparams)), *rest)

        return y, flat_pullback

    return flat


def arrays_of(params):
    """The arrays of params, in the order of `leaves`."""
    return [x for _, x in leaves(params)]


def assert_same(mine, theirs, *, rtol=1e-11):
    """Two structures hold the same numbers, to rtol of each array's largest; a difference is named by its path."""
    mine, theirs = dict(leaves(mine)), dict(leaves(theirs))
    assert mine.keys() == theirs.keys()
    for path, expected in theirs.items():
        got, expected = to_numpy(mine[path]), to_numpy(expected)
        scale = np.abs(expected).max(initial=1e-300)
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * scale, err_msg=path)


STEP = 1e-4
"""Step of differences through several layers: their fifth derivatives are some 10⁴ times those of one op."""


def without_key_biases(params):
    """The same without any b_K: where nothing turns the keys its gradient is 0, and what is left is rounding."""
    if isinstance(params, MultiHeadParams):
        return params._replace(b_K=None)
    if not isinstance(params, tuple):
        return params
    parts = [without_key_biases(part) for part in params]
    return type(params)(*parts) if hasattr(params, "_fields") else tuple(parts)
