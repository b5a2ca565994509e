"""Decoding: a few new queries against a long cache, its keys split among programs and the parts merged.

One query a head reads the whole cache, so bytes decide and not products: K and V are read once, by programs enough to
keep every memory channel busy. The h / h_kv query heads that share a key head are the rows of one tile, so they share
its bytes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from derived.kernels.launch import capability, on, padded
from derived.kernels.paged_decode import cache_rows
from derived.kernels.tile import LOG2_E, contained, may_read

PROGRAMS = 2
"""Programs for each multiprocessor in one wave: while one waits for memory the other computes.

How many run at once the driver knows and nobody before it. Two of the tiles of 16 rows fit everywhere; of larger ones
perhaps one, and then what is planned as one wave is two, as full as it.
"""
MOST_SPLITS = 256
"""So many that one key head occupies a whole GPU of up to 128 multiprocessors, and nearly one of 148."""
MOST_WAVES = 4
FULL = 0.9
"""Fewer waves are taken if they are filled to this part of what more waves could be."""
LARGE = (80, 90, 100, 103)
"""Devices with 163 KiB of shared memory or more for a program; sm_86, 89 and 120 have 99."""


class DecodeTiles(NamedTuple):
    """ROWS queries by B_t keys in a tile; for the compiler, warps and stages of loads in flight."""

    ROWS: int
    B_t: int
    warps: int
    stages: int


def decode_tiles(rows: int, width: int, device: int, size: int) -> DecodeTiles:
    """The tile for so many rows and heads of `width` numbers of `size` bytes each.

    Where all rows in one tile would spill or not fit, it holds fewer, and the tiles of rows, which run side by side,
    each read the keys. tests/data/kernel-resources.json has what tiles need: they fit on sm_75, 80, 86, 89, 90 and 120,
    and none spills more than the 8 bytes that the assembler gives up for a few registers.
    """
    rows = padded(rows)
    if size > 2 or 0 < device < 80:  # products outside the tensor cores, whose operands fill the registers
        return DecodeTiles(min(rows, 64), 32, 8, 1) if width <= 64 else DecodeTiles(min(rows, 32), 16, 8, 1)
    if width > 128:
        return DecodeTiles(min(rows, 64), 32, 8, 2)
    if rows > 32:
        return DecodeTiles(min(rows, 128), 32, 8, 3)
    return DecodeTiles(rows, 64 if device in LARGE or not device else 32, 4, 3)


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
    lse (B, h, n, splits), no lse where it is None: then splits = 1 and o is the result. A stretch without keys gives 0
    and −inf. Row r of the group is query r mod n of its head r div n; programs that follow each other take ROWS of them
    each. Query i reads key j if j ≤ i + m − n, m the sequence's own length. SEVERAL: n > 1.

    Bytes: m (d_k + d_v) numbers a key head, once. FLOPs: 2 m (d_k + d_v) a query head, so a group of g heads does g
    FLOPs a byte in half precision: far below what a GPU could.

    Source: Dao et al. 2023 ("Flash-Decoding"); chapters 11 and 13.
    """
    row_tiles = (group * n + ROWS - 1) // ROWS
    place = tl.program_id(0)
    row = place % row_tiles * ROWS + tl.arange(0, ROWS)
    place //= row_tiles
    split, b = place % splits, (place // splits // h_kv).to(tl.int64)
    head = (place // splits % h_kv).to(tl.int64)
    m = tl.load(lengths + b).to(tl.int32)
    low = 0
    if WINDOWED:
        low = tl.maximum(m - n - w + 1, 0)
    chunk = ((m - low + splits - 1) // splits + B_t - 1) // B_t * B_t
    start = low + split * chunk
    stop = tl.minimum(start + chunk, m)

    cols_k, cols_v = tl.arange(0, P_K), tl.arange(0, P_V)
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

    nothing = l == 0.0  # of a nan c would say nothing: a maximum leaves it out, the sum does not
    divisor = tl.where(nothing, 1.0, l)
    out = ((b * h_kv + head) * group * n + row) * splits + split
    if lse is not None:
        tl.store(lse + out, tl.where(nothing, c, c + tl.log2(divisor)), mask=here)
    acc = tl.where(nothing[:, None], 0.0, acc / divisor[:, None]).to(o.dtype.element_ty)
    tl.store(o + out[:, None] * D_V + cols_v[None, :], acc, mask=here[:, None] & (cols_v[None, :] < D_V))


@triton.jit
def merge_kernel(
    parts, lse, o, splits, D_V: tl.constexpr, P_V: tl.constexpr, P_S: tl.constexpr, S_t: tl.constexpr
):  # fmt: skip
    """One program: the parts of one query of one head become its output, S_t of them at a time.

        o = Σ_s 2^(lse_s − c) o_s / Σ_s 2^(lse_s − c),   c = max_s lse_s;   zeros if every part is empty

    parts (rows, splits, d_v) and lse (rows, splits) in float32, o (rows, d_v). An empty part (lse = −inf) adds nothing,
    whatever its o holds; one whose lse is nan makes the output nan.
    """
    row = tl.program_id(0).to(tl.int64)
    every, cols = tl.arange(0, P_S), tl.arange(0, P_V)
    c = tl.max(tl.load(lse + row * splits + every, mask=every < splits, other=float("-inf")), 0)
    shift = tl.where(c == float("-inf"), 0.0, c)  # −inf − (−inf) would be nan
    total, y = 0.0, tl.zeros([P_V], tl.float32)
    for first in range(0, splits, S_t):
        s = first + tl.arange(0, S_t)
        lse_s = tl.load(lse + row * splits + s, mask=s < splits, other=float("-inf"))
        weight = tl.exp2(lse_s - shift)
        at = parts + (row * splits + s)[:, None] * D_V + cols[None, :]
        part = tl.load(at, mask=(lse_s != float("-inf"))[:, None] & (cols[None, :] < D_V), other=0.0)
        total += tl.sum(weight, 0)
        y += tl.sum(weight[:, None] * part, 0)
    y /= tl.where(total == 0.0, 1.0, total)
    tl.store(o + row * D_V + cols, y.to(o.dtype.element_ty), mask=cols < D_V)


def merge_tile(splits: int, d_v: int) -> tuple[int, int, int]:
    """P_V, P_S and S_t of `merge_kernel`: at most 4096 numbers of parts at a time, 32 for each thread of four warps."""
    P_V, P_S = padded(d_v), padded(splits)
    return P_V, P_S, min(P_S, 4096 // P_V)


def decode_splits(pairs: int, slots: int, tiles: int) -> int:
    """Into how many stretches the keys are cut, where `pairs` programs would run without a cut and `slots` at once.

    So many that whole waves of programs are filled: the fewest waves that are FULL of what up to MOST_WAVES could be.
    None gets less than one tile of keys, as far as the capacity of the cache tells: the lengths are on the GPU.
    """

    def filled(splits: int) -> float:
        return pairs * splits / (slots * triton.cdiv(pairs * splits, slots))

    most = max(1, min(tiles, MOST_SPLITS))
    counts = [min(most, max(1, slots * waves // pairs)) for waves in range(1, MOST_WAVES + 1)]
    enough = FULL * max(map(filled, counts))
    return next(splits for splits in counts if filled(splits) >= enough)


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
    """Launch the kernels: o (B, h, n, d_v) for q (B, h, n, d_k) and a cache in one piece or, with a table, in pages.

    Shapes: as in `decode_kernel`. scale may have either sign: each score is scaled before the largest is taken.
    """
    B, h, n, d_k = q.shape
    h_kv, capacity, d_v = v.shape[1:]
    o = q.new_empty((B, h, n, d_v))
    if not o.numel():
        return o
    group = h // h_kv
    page = 0 if table is None else capacity
    longest = capacity if table is None else capacity * table.shape[1]
    tile = decode_tiles(group * n, max(d_k, d_v), capability(q), q.itemsize)
    pairs = B * h_kv * triton.cdiv(group * n, tile.ROWS)
    splits = splits or decode_splits(pairs, PROGRAMS * processors(q), triton.cdiv(longest, tile.B_t))
    parts, lse = o, None
    if splits > 1:
        parts = q.new_empty((B, h, n, splits, d_v), dtype=torch.float32)
        lse = q.new_empty((B, h, n, splits), dtype=torch.float32)
    w = min(window or 0, n + longest)  # cut, so that sums of it fit
    with on(q):
        decode_kernel[(pairs * splits,)](
            q, k, v, parts, lse, table, lengths, n, w, scale, h_kv, group, splits,
            *q.stride(), *k.stride(), *v.stride(), 0 if table is None else table.stride(0),
            WINDOWED=window is not None, SEVERAL=n > 1, PAGE=page,
            D_K=d_k, D_V=d_v, P_K=padded(d_k), P_V=padded(d_v), ROWS=tile.ROWS, B_t=tile.B_t,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
        )  # fmt: skip
        if splits > 1:
            P_V, P_S, S_t = merge_tile(splits, d_v)
            merge_kernel[(B * h * n,)](
                parts, lse, o, splits, D_V=d_v, P_V=P_V, P_S=P_S, S_t=S_t, num_warps=4, enable_fp_fusion=True
            )  # fmt: skip
    return o


def processors(x: torch.Tensor) -> int:
    """Multiprocessors of the tensor's device; 4 stand in for them where there is no GPU."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4


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
