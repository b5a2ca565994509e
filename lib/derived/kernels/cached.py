"""Attention to a cache, in one piece or in pages: what fits, and who computes it."""

import math

import torch
from torch import Tensor

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.kernels.backends import choice

MOST_ROWS = 128


def checked(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, window: int | None) -> None:
    """Raise ShapeError, DtypeError or DerivedError unless the arguments of `cached_attention` fit each other."""
    for name, x in (("q", q), ("k", k), ("v", v), ("lengths", lengths)):
        if not isinstance(x, Tensor):
            raise DtypeError(f"cached_attention: {name} is a {type(x).__name__}; the kernels take torch tensors.")
    if not q.dtype.is_floating_point:
        raise DtypeError(f"cached_attention: q is {q.dtype}; a floating dtype is expected.")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or x.dtype != q.dtype or x.device != q.device:
            raise ShapeError(
                f"cached_attention: {name} has shape {tuple(x.shape)}, {x.dtype}, on {x.device}; four axes are "
                f"expected, and dtype and device of q, {q.dtype} on {q.device}."
            )
    B, h, n, d_k = q.shape
    h_kv = k.shape[1]
    if k.shape[:3] != v.shape[:3] or k.shape[3] != d_k or not h_kv or h % h_kv:
        raise ShapeError(
            f"cached_attention: q has shape {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; k and v "
            "agree but for their widths, k has that of q, and h is a whole multiple of h_kv."
        )
    if table is None and k.shape[0] != B:
        raise ShapeError(f"cached_attention: q holds {B} sequences, k and v {k.shape[0]}; they must be the same.")
    for name, x, axes in (("lengths", lengths, 1), ("block_table", table, 2)):
        if x is None:
            continue
        if x.dtype not in (torch.int32, torch.int64):
            raise DtypeError(f"cached_attention: {name} is {x.dtype}; int32 or int64 is expected.")
        if x.device != q.device:
            raise DtypeError(f"cached_attention: {name} is on {x.device}, q on {q.device}; bring them together.")
        if x.ndim != axes or x.shape[0] != B:
            raise ShapeError(
                f"cached_attention: {name} has shape {tuple(x.shape)}; it has {axes} axes, the first of size B = {B}."
            )
    if h // h_kv * n > MOST_ROWS:
        raise DerivedError(
            f"cached_attention: {h // h_kv} heads a key head times n = {n} queries are {h // h_kv * n} rows of a "
            f"tile, and {MOST_ROWS} is the most: take attention() for so many queries."
        )
    if window is not None and window < 1:
        raise ShapeError(f"cached_attention: window = {window}; a window counts the query itself, so it is at least 1.")


def cached_attention(q, k, v, lengths, *, table, window, scale, backend) -> Tensor:
    """`derived.kernels.cached_attention`; with a table, the cache lies in pages."""
    checked(q, k, v, lengths, table, window)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    if choice(q, k, v, backend).backend == "triton":
        from derived.kernels.decode import decode_op

        lengths = lengths.contiguous()
        table = None if table is None else table.contiguous()
        return decode_op(q, k, v, lengths, table, window, scale)

    from derived.kernels.torch_attention import in_one_piece, torch_attention

    if table is not None:
        k, v = in_one_piece(k, table), in_one_piece(v, table)
    n, m = q.shape[2], k.shape[2]
    there = lengths[:, None, None, None]
    ahead = torch.arange(m, device=q.device) - (torch.arange(n, device=q.device)[:, None] + there - n)
    reads = ahead <= 0 if window is None else (ahead <= 0) & (ahead > -window)
    used = (torch.arange(m, device=q.device)[:, None] < there).expand(*k.shape[:3], 1)
    k, v = (x.masked_fill(~used, 0.0) for x in (k, v))  # what lies beyond the lengths may be anything, nan too
    return torch_attention(q, k, v, causal=False, window=None, mask=reads, scale=scale)


def paged_attention(q, k_pages, v_pages, table, lengths, *, window, scale, backend) -> Tensor:
    """`derived.kernels.paged_attention`: `cached_attention` with a table, which must be there."""
    if not isinstance(table, Tensor):
        raise DtypeError(
            f"paged_attention: block_table is a {type(table).__name__}; a tensor (B, pages a sequence) of int32 or "
            "int64 is expected. A cache in one piece is for cached_attention."
        )
    return cached_attention(
        q, k_pages, v_pages, lengths, table=table, window=window, scale=scale, backend=backend
    )  # fmt: skip
