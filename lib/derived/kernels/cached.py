"""Attention to a cache, in one piece or in pages: what fits, and who computes it."""

import math

import torch
from torch import Tensor

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.kernels.backends import check_arrays, choice, whole_window

MOST_ROWS = 128
"""Rows of a key head that the decoding kernel takes: with more the products decide, for which `attention` is laid out.

The rows of a key head are its queries: n of each of the h / h_kv heads that share it.
"""


def checked(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None) -> None:
    """Raise ShapeError or DtypeError unless the arguments of `cached_attention` fit each other."""
    check_arrays("cached_attention", q, k, v)
    if not isinstance(lengths, Tensor):
        raise DtypeError(f"cached_attention: lengths is a {type(lengths).__name__}; the kernels take torch tensors.")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ShapeError(f"cached_attention: {name} has shape {tuple(x.shape)}; four axes are expected.")
    B, h, _, d_k = q.shape
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


def taken(q: Tensor, k: Tensor, v: Tensor, backend: str) -> str:
    """Which backend computes it; DerivedError if the one asked for cannot, as "triton" beyond MOST_ROWS."""
    name = choice(q, k, v, backend).backend
    group, n = q.shape[1] // k.shape[1], q.shape[2]
    if name != "triton" or group * n <= MOST_ROWS:
        return name
    if backend == "auto":
        return "torch"
    fit = MOST_ROWS // group
    mend = f"give it {fit} queries at a time at most, or ask" if fit else "not one query fits; ask"
    raise DerivedError(
        f'cached_attention: backend = "triton" takes {MOST_ROWS} rows of a key head, and h / h_kv = {group} heads '
        f'times n = {n} queries are {group * n}: {mend} for "torch" or "auto".'
    )


def cached_attention(q, k, v, lengths, *, table, window, scale, backend) -> Tensor:
    """`derived.kernels.cached_attention`; with a table, the cache lies in pages."""
    checked(q, k, v, lengths, table)
    window = whole_window("cached_attention", window)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    if taken(q, k, v, backend) == "triton":
        from derived.kernels.decode import decode_op

        lengths = lengths.contiguous()
        table = None if table is None else table.contiguous()
        return decode_op(q, k, v, lengths, table, window, scale)
    cut_or_masked = cut if q.device.type == "cpu" else masked  # elsewhere reading a length would wait for the device
    return cut_or_masked(q, k, v, lengths, table, window, scale)


def cut(q, k, v, lengths, table, window, scale) -> Tensor:
    """By torch's attention to the keys that are there, and to nothing else: all sequences at once, or one by one."""
    from derived.kernels.torch_attention import in_one_piece, torch_attention

    n, ends = q.shape[2], lengths.tolist()
    capacity = k.shape[2] if table is None else k.shape[2] * table.shape[1]
    if ends and not 0 <= min(ends) <= max(ends) <= capacity:
        raise ShapeError(
            f"cached_attention: lengths go from {min(ends)} to {max(ends)}, and the cache holds {capacity} keys "
            "a sequence; a length counts the keys that are there."
        )
    alike = len(set(ends)) == 1
    parts = []
    for b, m in enumerate(ends[:1] if alike else ends):
        here = slice(None) if alike else slice(b, b + 1)
        if table is None:
            k_b, v_b = k[here], v[here]
        else:
            used = table[here, : -(-m // k.shape[2])]
            k_b, v_b = in_one_piece(k, used), in_one_piece(v, used)
        low = 0 if window is None else max(m - n - window + 1, 0)  # before every query's window
        k_b, v_b = k_b[:, :, low:m], v_b[:, :, low:m]
        # a single query reads every key that is left: no mask, not even a window's
        inside = None if n == 1 else window
        parts.append(torch_attention(q[here], k_b, v_b, causal=True, window=inside, mask=None, scale=scale))
    return torch.cat(parts) if parts else q.new_zeros((*q.shape[:3], v.shape[3]))


def masked(q, k, v, lengths, table, window, scale) -> Tensor:
    """By torch's attention to the whole capacity, without a look at the lengths: copies k and v, and masks."""
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
