"""The shapes and masks on which every kernel is asked, and what they are held against."""

import torch

from derived.ops.attention import attention_vjp
from tests.support.precision import check_precision

CASES = {
    "square": (2, 2, 2, 37, 37, 16, 16, {}),
    "square causal": (1, 1, 1, 67, 67, 16, 16, {"causal": True}),
    "whole tiles, causal": (1, 1, 1, 64, 96, 32, 32, {"causal": True}),
    "a tile less one": (1, 1, 1, 31, 63, 16, 16, {"causal": True}),
    "a tile and one": (1, 1, 1, 33, 65, 16, 16, {"causal": True}),
    "cached": (1, 2, 2, 37, 101, 24, 40, {"causal": True}),
    "one query": (1, 2, 2, 1, 71, 16, 16, {"causal": True}),
    "tall": (1, 1, 1, 101, 37, 16, 16, {"causal": True}),
    "grouped": (1, 4, 2, 67, 37, 16, 8, {}),
    "one key head, causal": (2, 3, 1, 23, 43, 20, 16, {"causal": True}),
    "odd widths": (1, 2, 1, 23, 41, 80, 96, {"causal": True}),
    "wide": (1, 1, 1, 19, 23, 256, 192, {}),
    "narrow": (1, 1, 1, 19, 23, 3, 5, {}),
    "causal window": (1, 2, 1, 79, 79, 16, 16, {"causal": True, "window": 13}),
    "causal window, cached": (1, 1, 1, 43, 109, 16, 16, {"causal": True, "window": 41}),
    "causal window, tall": (1, 1, 1, 101, 61, 16, 16, {"causal": True, "window": 2}),
    "window": (1, 1, 1, 97, 103, 16, 16, {"window": 37}),
    "window, tall": (1, 1, 1, 103, 41, 16, 16, {"window": 3}),
    "window beyond all": (1, 1, 1, 37, 41, 16, 16, {"causal": True, "window": 2**62}),
    "mask": (1, 2, 1, 23, 67, 16, 16, {"mask": True}),
    "mask, causal window": (2, 1, 1, 23, 67, 16, 16, {"mask": True, "causal": True, "window": 29}),
    "scale": (1, 1, 1, 37, 41, 16, 16, {"scale": 0.7}),
    "scale below 0": (1, 1, 1, 37, 41, 16, 16, {"scale": -0.3, "causal": True}),
    "scale 0": (1, 1, 1, 37, 41, 16, 16, {"scale": 0.0}),
    "no keys": (1, 2, 2, 5, 0, 16, 16, {"causal": True}),
    "no queries": (1, 2, 2, 0, 5, 16, 16, {}),
    "no batch": (0, 2, 2, 5, 7, 16, 16, {}),
}
"""Name -> B, h, h_kv, n, m, d_k, d_v, keyword arguments (a mask of True stands for one that is drawn)."""


def drawn(name, dtype=torch.float32, device="cpu", times=1):
    """q, k, v, do and the keyword arguments of a case, with a seed of its own; the mask leaves one query nothing.

    The batch is `times` as large as the case says.
    """
    B, h, h_kv, n, m, d_k, d_v, given = CASES[name]
    B *= times
    seed = torch.Generator().manual_seed(sorted(CASES).index(name))
    shapes = (B, h, n, d_k), (B, h_kv, m, d_k), (B, h_kv, m, d_v), (B, h, n, d_v)
    arrays = [torch.randn(shape, generator=seed).to(dtype).to(device) for shape in shapes]
    given = dict(given)
    if given.get("mask") is True:
        mask = torch.rand((B, h, n, m), generator=seed) < 0.6
        mask[..., n // 2, :] = False
        given["mask"] = mask.to(device)
    return *arrays, given


def plain(q, k, v, *, causal=False, window=None, mask=None, scale=None):
    """The formula in the arrays' own precision, with torch's softmax: what a rounding error is measured against."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n, m = q.shape[-2], k.shape[-2]
    ahead = torch.arange(m, device=q.device) - torch.arange(m - n, m, device=q.device)[:, None]
    reads = torch.ones((n, m), dtype=torch.bool, device=q.device)
    if causal:
        reads = reads & (ahead <= 0)
    if window is not None:
        reads = reads & (ahead > -window) & (ahead < window)
    if mask is not None:
        reads = reads & mask
    S = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    A = torch.softmax(S.masked_fill(~reads, torch.finfo(S.dtype).min), dim=-1).masked_fill(~reads, 0.0)
    return A @ v


ENOUGH = 4
"""How many times larger a batch is where errors are compared: of a few rounding errors the largest is a matter of luck.

In float32 on a CPU the kernels' largest errors are then at most 1.38 times those of the plain formula for outputs, 2.23
for gradients (2.80 for those below), and in float16 0.83 and 1.35; from single batches it was 1.83 and 2.57.
"""
DRAWN_FROM_FEW = {"one query", "square causal", "tall", "causal window", "causal window, tall", "window, tall"}
"""Where the largest error of a float32 gradient stays a matter of luck, and more entries do not help.

A query that reads one key or two has a weight near 1, and its dA − delta takes two roundings of nearly one number,
while the plain formula takes a number from itself (`check_flash`, a window of one, has the bound). And a rounded
log-sum-exp is one error in all weights of its query: elsewhere a key averages it over many queries, for "one query" it
does not.
"""


def check_case(attention, name, dtype, device="cpu", factor=3, largest=1):
    """Hold outputs and gradients of `attention` against float64: at most 2 and 3 times the plain formula's error.

    Both the root mean square and the largest; gradients of DRAWN_FROM_FEW may have one twice as large in float32.
    Not run on a GPU in float32 with TF32 products: the plain formula would then be the rougher one.
    """
    q, k, v, do, given = drawn(name, dtype, device, times=ENOUGH)
    mine, its = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    o, p = attention(*mine, **given), plain(*its, **given)
    exact, pullback = attention_vjp(q.double(), k.double(), v.double(), **given)
    assert o.shape == exact.shape and o.dtype == dtype
    if not o.numel():
        assert all(not g.any() for g in torch.autograd.grad(o, mine, do))
        return
    check_precision(o.detach().cpu(), p.detach().cpu(), exact.cpu(), largest=largest)
    gradients = zip(
        torch.autograd.grad(o, mine, do), torch.autograd.grad(p, its, do), pullback(do.double()), strict=True
    )
    for g, rough, right in gradients:
        assert g.shape == right.shape and g.dtype == dtype
        if g.numel():
            few = 2 if dtype == torch.float32 and name in DRAWN_FROM_FEW else 1
            check_precision(g.cpu(), rough.cpu(), right.cpu(), factor=factor, largest=few * largest)
