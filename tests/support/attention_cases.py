"""The arguments on which every form of attention is asked: one table for the full form and the tiled one."""

import numpy as np

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": 2},
    "causal window": {"causal": True, "window": 3},
    "mask": {"mask": True},
    "bias": {"bias": True},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "everything": {"causal": True, "window": 4, "mask": True, "bias": True, "scale": 0.7, "softcap": 2.0},
}
"""Keyword arguments by name; True for mask and bias stands for an array that `options` draws."""

SIZES = {
    "flat": ((), (), 5, 7),
    "square": ((2,), (2,), 5, 5),
    "cached": ((2, 3), (2, 3), 3, 7),
    "tall": ((2, 3), (2, 3), 7, 5),
    "grouped": ((2, 6), (2, 3), 5, 7),
    "one key head": ((2, 3), (2, 1), 5, 7),
}
"""Leading axes of q, leading axes of k and v, n, m."""

D_K, D_V = 3, 11


def qkv(rng, size="grouped"):
    """Queries, keys and values of these sizes, d_v other than d_k."""
    lead, kv_lead, n, m = SIZES[size]
    shapes = (*lead, n, D_K), (*kv_lead, m, D_K), (*kv_lead, m, D_V)
    return [rng.normal(size=shape) for shape in shapes]


def options(rng, name, q, k):
    """The keyword arguments of this name, with mask and bias drawn to fit q and k."""
    given = dict(OPTIONS[name])
    full = (*q.shape[:-1], k.shape[-2])
    if given.get("mask") is True:
        given["mask"] = rng.random(full) < 0.7
    if given.get("bias") is True:
        given["bias"] = np.where(rng.random(full[-2:]) < 0.2, -np.inf, rng.normal(size=full[-2:]))
    return given


def spoken(array, given):
    """Keyword arguments with their arrays turned into `array`'s kind."""
    return {key: array(x) if isinstance(x, np.ndarray) else x for key, x in given.items()}
