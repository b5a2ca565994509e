"""Decoding: a few new queries against a long cache, its keys split among programs and the parts merged.

One query a head reads the whole cache, so bytes decide and not products: K and V are read once, by programs enough to
keep every memory channel busy. The h / h_kv query heads that share a key head are the rows of one tile, so they share
its bytes.
"""

import torch
import triton
import triton.language as tl

from derived.kernels.launch import arguments, capability, on, padded
from derived.kernels.paged_decode import cache_rows
from derived.kernels.tile import LOG2_E, contained, may_read

PROGRAMS = 2
"""Programs for each multiprocessor: while one waits for memory the other computes."""
MOST_SPLITS = 64


@triton.jit
def decode_kernel(
    q, k, v, o, lse, table, lengths, n, w, scale, h_kv, group, splits,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_table,
    WINDOWED: tl.constexpr, SEVERAL: tl.constexpr, PAGE: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr,
    ROWS: tl.constexpr, B_t: tl.constexpr,
):  # fmt: skip
    """One program: the queries of one key head against one stretch of the keys of one sequence.

        c = max_j S′,   l = Σ_j 2^(S′ − c),   o = Σ_j 2^(S′ − c) v_j / l,   lse = c + log₂ l

    q (B, h, n, d_k); k and v (B, h_kv, capacity, d) or pages (pages, h_kv, PAGE, d) with a block table (B, pages a
    sequence); lengths (B,) counts the keys that are there, the n newest included. Writes o (B, h, n, splits, d_v) and
    lse (B, h, n, splits) in float32; a stretch without keys gives 0 and −inf. Row r of the tile is query r mod n of
    head r div n of the group. Query i reads key j if j ≤ i + m − n, m the sequence's own length. SEVERAL: n > 1.

    Bytes: m (d_k + d_v) numbers a key head, once. FLOPs: 2 m (d_k + d_v) a query head, so a group of g heads does g
    FLOPs a byte in half precision: far below what a GPU could.

    Source: Dao et al. 2023 ("Flash-Decoding"); chapters 11 and 13.
    """
    place = tl.program_id(0)
    split, b = place % splits, (place // splits // h_kv).to(tl.int64)
    head = (place // splits % h_kv).to(tl.int64)
    m = tl.load(lengths + b).to(tl.int32)
    low = 0
    if WINDOWED:
        low = tl.maximum(m - n - w + 1, 0)
    chunk = ((m - low + splits - 1) // splits + B_t - 1) // B_t * B_t
    start = low + split * chunk
    stop = tl.minimum(start + chunk, m)

    row, cols_k, cols_v = tl.arange(0, ROWS), tl.arange(0, P_K), tl.arange(0, P_V)
    i, member = row % n, (row // n).to(tl.int64)
    here = row < group * n
    at = q + b * stride_qb + (head * group + member)[:, None] * stride_qh + i.to(tl.int64)[:, None] * stride_qn
    at += cols_k.to(tl.int64)[None, :] * stride_qd
    q_t = tl.load(at, mask=here[:, None] & (cols_k[None, :] < D_K), other=0.0)
    k += head * stride_kh
    v += head * stride_vh
    scale *= LOG2_E
    c = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, P_V], tl.float32)
    for first in range(start, stop, B_t):
        j = first + tl.arange(0, B_t)
        at_k = cache_rows(k, table, b, j, m, stride_kb, stride_kn, stride_table, PAGE)[:, None]
        at_k += cols_k.to(tl.int64)[None, :] * stride_kd
        k_t = tl.load(at_k, mask=(j < m)[:, None] & (cols_k[None, :] < D_K), other=0.0)
        reads = may_read(i[:, None], j[None, :], n, m, w, True, WINDOWED)
        S = tl.where(reads, tl.dot(q_t, tl.trans(k_t), input_precision="ieee") * scale, float("-inf"))
        c_new = tl.maximum(c, tl.max(S, 1))
        shift = tl.where(c_new == float("-inf"), 0.0, c_new)
        E = tl.exp2(S - shift[:, None])
        factor = tl.exp2(c - shift)
        l = l * factor + tl.sum(E, 1)
        at_v = cache_rows(v, table, b, j, m, stride_vb, stride_vn, stride_table, PAGE)[:, None]
        at_v += cols_v.to(tl.int64)[None, :] * stride_vd
        v_t = tl.load(at_v, mask=(j < m)[:, None] & (cols_v[None, :] < D_V), other=0.0)
        if SEVERAL:  # a single query reads all that is loaded
            E, v_t = contained(E, v_t)
        acc = tl.dot(E.to(v_t.dtype), v_t, acc * factor[:, None], input_precision="ieee")
        c = c_new

    nothing = c == float("-inf")
    divisor = tl.where(nothing, 1.0, l)
    out = ((b * h_kv + head) * group * n + row) * splits + split
    tl.store(lse + out, tl.where(nothing, c, c + tl.log2(divisor)), mask=here)
    acc = tl.where(nothing[:, None], 0.0, acc / divisor[:, None])
    tl.store(o + out[:, None] * D_V + cols_v[None, :], acc, mask=here[:, None] & (cols_v[None, :] < D_V))


@triton.jit
def merge_kernel(parts, lse, o, splits, D_V: tl.constexpr, P_V: tl.constexpr, P_S: tl.constexpr):
    """One program: the parts of one query of one head become its output.

        o = Σ_s 2^(lse_s − c) o_s / Σ_s 2^(lse_s − c),   c = max_s lse_s;   zeros if every part is empty

    parts (rows, splits, d_v) and lse (rows, splits) in float32, o (rows, d_v). An empty part (lse = −inf) adds nothing,
    whatever its o holds.
    """
    row = tl.program_id(0).to(tl.int64)
    s, cols = tl.arange(0, P_S), tl.arange(0, P_V)
    lse_s = tl.load(lse + row * splits + s, mask=s < splits, other=float("-inf"))
    empty = lse_s == float("-inf")
    c = tl.max(lse_s, 0)
    weight = tl.where(empty, 0.0, tl.exp2(tl.where(empty, 0.0, lse_s) - tl.where(c == float("-inf"), 0.0, c)))
    at = parts + (row * splits + s)[:, None] * D_V + cols[None, :]
    part = tl.load(at, mask=~empty[:, None] & (cols[None, :] < D_V), other=0.0)
    total = tl.sum(weight, 0)
    y = tl.sum(weight[:, None] * part, 0) / tl.where(total == 0, 1.0, total)
    tl.store(o + row * D_V + cols, y.to(o.dtype.element_ty), mask=cols < D_V)


def decode_splits(q: torch.Tensor, h_kv: int, longest: int, B_t: int) -> int:
    """Into how many stretches the keys are cut: programs for the whole device, none with less than one tile."""
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 4
    wanted = triton.cdiv(PROGRAMS * processors, max(1, q.shape[0] * h_kv))
    return max(1, min(wanted, triton.cdiv(longest, B_t), MOST_SPLITS))


def split_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor | None,
    window: int | None,
    scale: float,
    splits: int | None = None,
) -> torch.Tensor:
    """Launch both kernels: o (B, h, n, d_v) for q (B, h, n, d_k) and a cache in one piece or, with a table, in pages.

    Shapes: as in `decode_kernel`; group · n ≤ 128. scale may have either sign: each score is scaled before the largest
    is taken.
    """
    B, h, n, d_k = q.shape
    h_kv, capacity, d_v = v.shape[1:]
    group = h // h_kv
    page = 0 if table is None else capacity
    longest = capacity if table is None else capacity * table.shape[1]
    wide, small = max(d_k, d_v) > 128, q.itemsize > 2 or 0 < capability(q) < 80
    B_t = 32 if wide or small else 64
    splits = splits or decode_splits(q, h_kv, longest, B_t)
    parts = q.new_empty((B, h, n, splits, d_v), dtype=torch.float32)
    lse = q.new_empty((B, h, n, splits), dtype=torch.float32)
    o = q.new_empty((B, h, n, d_v))
    _, _, w, scale = arguments(q, q.new_empty((longest, 0)), window, scale)
    if o.numel():
        with on(q):
            decode_kernel[(B * h_kv * splits,)](
                q, k, v, parts, lse, table, lengths, n, w, scale, h_kv, group, splits,
                *q.stride(), *k.stride(), *v.stride(), 0 if table is None else table.stride(0),
                WINDOWED=window is not None, SEVERAL=n > 1, PAGE=page,
                D_K=d_k, D_V=d_v, P_K=padded(d_k), P_V=padded(d_v), ROWS=padded(group * n), B_t=B_t,
                num_warps=4, num_stages=1 if small else 3, enable_fp_fusion=True,
            )  # fmt: skip
            merge_kernel[(B * h * n,)](
                parts, lse, o, splits, D_V=d_v, P_V=padded(d_v), P_S=padded(splits), num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return o


@torch.library.custom_op("derived::decode", mutates_args=())
def decode_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None,
    window: int | None, scale: float,
) -> torch.Tensor:  # fmt: skip
    """`split_decode` as an operator of torch; it has no derivative."""
    return split_decode(q, k, v, lengths, table, window, scale)


@decode_op.register_fake
def _(q, k, v, lengths, table, window, scale):
    return q.new_empty((*q.shape[:3], v.shape[3]))
