"""Flash attention, forward: each program merges the key tiles that one tile of queries may read.

The array version of the same walk is `derived.ops.tiled`; chapter 11 sets them side by side.
"""

import torch
import triton
import triton.language as tl

from derived.kernels.launch import Tiles, arguments, capability, heads_together, like, on, padded, tiles_for
from derived.kernels.tile import LOG2_E, allowed, contained, keys_of, load_tile, may_read, store_tile, turn_of


@triton.jit
def merge_tiles(
    c, l, o, q, i, start, stop, gap, width, k, v, mask, n, m, w, scale,
    stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr, B_t: tl.constexpr,
):  # fmt: skip
    """Merge the keys start … stop − 1, tile by tile, into the triple (c, l, o) of these queries.

    From `gap` on `width` keys are left out, so that the tiles on both sides of the whole ones are one loop.

        S′ = q Kᵀ · scale,   c′ = max(c, max_j S′),   E = 2^(S′ − c′)
        l ← l 2^(c − c′) + Σ_j E,   o ← o 2^(c − c′) + E V

    S′ and c are in units of ln 2. WHOLE: every pair may be read, so nothing is tested.
    """
    for first in range(start, stop, B_t):
        first = tl.where(first < gap, first, first + width)
        k_t = load_tile(k, first, m, stride_kn, stride_kd, B_t, D_K, P_K, WHOLE)
        S = tl.dot(q, tl.trans(k_t), input_precision="ieee")
        if WHOLE:
            c_new = tl.maximum(c, tl.max(S, 1) * scale)  # scale ≥ 0: the maximum is that of S
            shift = tl.where(c_new == float("-inf"), 0.0, c_new)  # no keys yet: −inf − (−inf) would be nan
            E = tl.exp2(S * scale - shift[:, None])
        else:
            j = first + tl.arange(0, B_t)
            reads = may_read(i[:, None], j[None, :], n, m, w, CAUSAL, WINDOWED)
            if MASKED:
                reads = reads & allowed(mask, i[:, None], j[None, :], n, m, stride_mn, stride_mm)
            S = tl.where(reads, S * scale, float("-inf"))
            c_new = tl.maximum(c, tl.max(S, 1))
            shift = tl.where(c_new == float("-inf"), 0.0, c_new)
            E = tl.exp2(S - shift[:, None])
        factor = tl.exp2(c - shift)
        l = l * factor + tl.sum(E, 1)
        o = o * factor[:, None]
        v_t = load_tile(v, first, m, stride_vn, stride_vd, B_t, D_V, P_V, WHOLE)
        if not WHOLE:
            E, v_t = contained(E, v_t)
        o = tl.dot(E.to(v_t.dtype), v_t, o, input_precision="ieee")
        c = c_new
    return c, l, o


@triton.jit
def flash_forward_kernel(
    q, k, v, o, lse, mask, cu_q, cu_k, n, m, w, scale, h, group, query_tiles, together,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    stride_lb, stride_lh, stride_mb, stride_mh, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr,
    B_q: tl.constexpr, B_t: tl.constexpr, TESTED: tl.constexpr,
):  # fmt: skip
    """One program: B_q queries of one head of one sequence; writes their rows of O and their log-sum-exp.

        O = softmax(Q Kᵀ · scale) V,   lse = c + log₂ l,   both from the triple (c, l, o) merged over key tiles

    lse is kept in units of ln 2: a factor more would be a rounding more, which exp magnifies by |lse|.
    q (B, h, n, d_k), k (B, h_kv, m, d_k), v (B, h_kv, m, d_v), o (B, h, n, d_v), lse (B, h, n) in float32, mask
    (B, h, n, m) of bytes; any strides. RAGGED: sequence b owns the rows cu_q[b] … cu_q[b + 1] − 1 of one long array,
    and B is 1 there. P_K and P_V are the widths padded to a power of two, scale ≥ 0. First the whole tiles of keys are
    walked, then those that the window, the diagonal or the end cuts (`tile.keys_of`): there each pair is tested, and a
    tile has TESTED keys, fewer, since the test takes registers.

    FLOPs: 2 pairs (d_k + d_v) a head, pairs counted in whole tiles. Bytes: q and o once, k and v once for each of the
    n / B_q tiles of queries, as far as the cache does not hold them.

    Source: Dao 2023, algorithm 1; chapter 11.
    """
    turn, pair = turn_of(query_tiles, together)
    tile = query_tiles - 1 - turn  # under a causal mask the last tile is the longest: it starts first
    b, head = pair // h, pair % h
    row_b = b.to(tl.int64)
    start_q, start_k = 0, 0
    if RAGGED:
        start_q, start_k = tl.load(cu_q + b).to(tl.int64), tl.load(cu_k + b).to(tl.int64)
        n = (tl.load(cu_q + b + 1) - start_q).to(tl.int32)
        m = (tl.load(cu_k + b + 1) - start_k).to(tl.int32)
        row_b = row_b * 0
    first = tile * B_q
    if first >= n:
        return
    q += row_b * stride_qb + head.to(tl.int64) * stride_qh + start_q * stride_qn
    o += row_b * stride_ob + head.to(tl.int64) * stride_oh + start_q * stride_on
    lse += row_b * stride_lb + head.to(tl.int64) * stride_lh + start_q
    k += row_b * stride_kb + (head // group).to(tl.int64) * stride_kh + start_k * stride_kn
    v += row_b * stride_vb + (head // group).to(tl.int64) * stride_vh + start_k * stride_vn
    if MASKED:
        mask += row_b * stride_mb + head.to(tl.int64) * stride_mh

    i = first + tl.arange(0, B_q)
    q_t = load_tile(q, first, n, stride_qn, stride_qd, B_q, D_K, P_K, False)
    scale *= LOG2_E
    c = tl.full([B_q], float("-inf"), tl.float32)
    l = tl.zeros([B_q], tl.float32)
    acc = tl.zeros([B_q, P_V], tl.float32)

    low, left, right, high = keys_of(first, B_q, n, m, w, CAUSAL, WINDOWED, B_t)
    if MASKED:
        left, right = low, low  # any pair may be masked: no tile is whole
    if not MASKED:
        c, l, acc = merge_tiles(
            c, l, acc, q_t, i, left, right, right, 0, k, v, mask, n, m, w, scale,
            stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
            CAUSAL, WINDOWED, MASKED, True, D_K, D_V, P_K, P_V, B_t,
        )  # fmt: skip
    c, l, acc = merge_tiles(
        c, l, acc, q_t, i, low, high - (right - left), left, right - left, k, v, mask, n, m, w, scale,
        stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
        CAUSAL, WINDOWED, MASKED, False, D_K, D_V, P_K, P_V, TESTED,
    )  # fmt: skip

    nothing = l == 0  # not c = −inf: a maximum passes over nan, and a query that read one must say so
    divisor = tl.where(nothing, 1.0, l)
    acc = tl.where(nothing[:, None], 0.0, acc / divisor[:, None])
    store_tile(o, acc, first, n, stride_on, stride_od, B_q, D_V, P_V)
    tl.store(lse + i, tl.where(nothing, c, c + tl.log2(divisor)), mask=i < n)


def flash_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    cu_q: torch.Tensor | None = None,
    cu_k: torch.Tensor | None = None,
    longest_q: int | None = None,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the forward kernel: the outputs, and each query's log-sum-exp, in units of ln 2, for the way back.

        O = softmax(Q Kᵀ · scale) V,   lse_i = log₂ Σ_j exp(S′_ij) over the keys j that i may read

    Shapes: q (B, h, n, d_k), k (B, h_kv, m, d_k), v (B, h_kv, m, d_v), mask (B, h, n, m), broadcast by strides of 0 ->
    o (B, h, n, d_v) in q's dtype, lse (B, h, n) in float32. A query that may read nothing gives zeros and lse = −inf.
    Ragged: B is 1, n and m count the rows of all sequences, sequence b owns rows cu_q[b] to cu_q[b + 1] − 1 of q and
    cu_k[b] to cu_k[b + 1] − 1 of k and v; longest_q is the length of the longest sequence of queries.
    `tiles` takes the place of the sizes chosen for the device. Arguments are checked by `derived.kernels.attention`.

    Source: Dao 2023, algorithm 1; chapter 11.
    """
    B, h, n, d_k = q.shape
    d_v = v.shape[-1]
    o, lse = like(q, (B, h, n, d_v)), q.new_empty((B, h, n), dtype=torch.float32)
    if cu_q is not None:
        o.zero_()  # rows of no sequence, or beyond longest_q, have read nothing
        lse.fill_(float("-inf"))
    tiles = tiles or tiles_for("forward", capability(q), max(d_k, d_v), q.itemsize)
    ragged = cu_q is not None
    sequences = B if cu_q is None else cu_q.shape[0] - 1
    query_tiles = triton.cdiv(longest_q if ragged else n, tiles.B_q)
    grid = (sequences * h * query_tiles,)
    if o.numel() and grid[0]:
        with on(q):
            flash_forward_kernel[grid](
                q, k, v, o, lse, mask, cu_q, cu_k, *arguments(q, k, window, scale), h, h // k.shape[1], query_tiles,
                heads_together(k, v, sequences * h, causal),
                *q.stride(), *k.stride(), *v.stride(), *o.stride(), *lse.stride()[:2],
                *(mask.stride() if mask is not None else (0, 0, 0, 0)),
                CAUSAL=causal, WINDOWED=window is not None, MASKED=mask is not None, RAGGED=ragged,
                D_K=d_k, D_V=d_v, P_K=padded(d_k), P_V=padded(d_v),
                TESTED=tiles.tested or tiles.B_t // 2, enable_fp_fusion=True, **tiles.options(),
            )  # fmt: skip
    return o, lse
