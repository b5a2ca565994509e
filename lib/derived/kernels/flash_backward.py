"""Flash attention, backward: one kernel for dQ, one for dK and dV, each gradient written once and without atomics.

A is not kept but computed anew, A = exp(S′ − lse), and rowsum(dA ∘ A) = rowsum(dO ∘ O) is one number a query (chapter
5, (5.12)), so a tile of dS needs nothing from the other tiles. Both kernels need A and dA: seven products instead of
the five of a single kernel, which would have to add up dQ across programs, in an order that changes from run to run.
"""

import torch
import triton
import triton.language as tl

from derived.kernels.launch import Tiles, arguments, capability, heads_together, like, on, padded, tiles_for
from derived.kernels.tile import (
    LOG2_E,
    allowed,
    contained,
    keys_of,
    load_tile,
    may_read,
    queries_of,
    sound,
    store_tile,
    turn_of,
)


@triton.jit
def add_keys(
    dq, q, do, shift, delta, i, start, stop, gap, width, k, v, mask, n, m, w, scale,
    stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr, B_t: tl.constexpr,
):  # fmt: skip
    """Add what the keys start … stop − 1 give to dQ of these queries, the scale left out: dQ ← dQ + dS′ K.

    A = 2^(q Kᵀ · scale − shift),   dA = dO Vᵀ,   dS′ = A ∘ (dA − delta)
    """
    for first in range(start, stop, B_t):
        first = tl.where(first < gap, first, first + width)
        k_t = load_tile(k, first, m, stride_kn, stride_kd, B_t, D_K, P_K, WHOLE)
        v_t = load_tile(v, first, m, stride_vn, stride_vd, B_t, D_V, P_V, WHOLE)
        A = tl.exp2(tl.dot(q, tl.trans(k_t), input_precision="ieee") * scale - shift[:, None])
        dA = tl.dot(do, tl.trans(v_t), input_precision="ieee")
        dS = A * (dA - delta[:, None])
        if not WHOLE:
            j = first + tl.arange(0, B_t)
            reads = may_read(i[:, None], j[None, :], n, m, w, CAUSAL, WINDOWED)
            if MASKED:
                reads = reads & allowed(mask, i[:, None], j[None, :], n, m, stride_mn, stride_mm)
            dS, k_t = tl.where(reads, dS, 0.0), sound(k_t)  # a broken key has made its scores nan
        dq = tl.dot(dS.to(k_t.dtype), k_t, dq, input_precision="ieee")
    return dq


@triton.jit
def flash_dq_kernel(
    q, k, v, o, do, lse, shift, delta, dq, mask, cu_q, cu_k, n, m, w, scale, h, group, query_tiles, together,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    stride_gb, stride_gh, stride_gn, stride_gd, stride_xb, stride_xh, stride_xn, stride_xd,
    stride_lb, stride_lh, stride_mb, stride_mh, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr,
    B_q: tl.constexpr, B_t: tl.constexpr,
):  # fmt: skip
    """One program: dQ of B_q queries of one head, and two numbers of each that the other kernel reads, delta and shift.

        dQ = dS K,   dS = scale · A ∘ (dO Vᵀ − delta),   A = 2^(S′ / ln 2 − shift)

    Shapes and masks as in `flash_forward_kernel`; do has strides g and dq strides x, shift and delta those of lse.
    FLOPs: 2 pairs (2 d_k + d_v) a head: the products S, dA, dQ. Bytes: q, o, do, dq once, k and v n / B_q times.

    Source: Dao 2023, algorithm 2, cut in two; chapter 11, and (5.6) to (5.10).
    """
    turn, pair = turn_of(query_tiles, together)
    tile = query_tiles - 1 - turn
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
    row_h, row_g = head.to(tl.int64), (head // group).to(tl.int64)
    q += row_b * stride_qb + row_h * stride_qh + start_q * stride_qn
    o += row_b * stride_ob + row_h * stride_oh + start_q * stride_on
    do += row_b * stride_gb + row_h * stride_gh + start_q * stride_gn
    dq += row_b * stride_xb + row_h * stride_xh + start_q * stride_xn
    lse += row_b * stride_lb + row_h * stride_lh + start_q
    shift += row_b * stride_lb + row_h * stride_lh + start_q
    delta += row_b * stride_lb + row_h * stride_lh + start_q
    k += row_b * stride_kb + row_g * stride_kh + start_k * stride_kn
    v += row_b * stride_vb + row_g * stride_vh + start_k * stride_vn
    if MASKED:
        mask += row_b * stride_mb + row_h * stride_mh

    i = first + tl.arange(0, B_q)
    o_t = load_tile(o, first, n, stride_on, stride_od, B_q, D_V, P_V, False)
    do_t = load_tile(do, first, n, stride_gn, stride_gd, B_q, D_V, P_V, False)
    delta_t = tl.sum(o_t.to(tl.float32) * do_t.to(tl.float32), 1)
    tl.store(delta + i, delta_t, mask=i < n)
    shift_t = tl.load(lse + i, mask=i < n, other=float("-inf"))
    shift_t = tl.where(shift_t == float("-inf"), float("inf"), shift_t)  # nothing was read: 2^(S′ − ∞) is 0
    tl.store(shift + i, shift_t, mask=i < n)
    q_t = load_tile(q, first, n, stride_qn, stride_qd, B_q, D_K, P_K, False)
    acc = tl.zeros([B_q, P_K], tl.float32)

    low, left, right, high = keys_of(first, B_q, n, m, w, CAUSAL, WINDOWED, B_t)
    if MASKED:
        left, right = low, low
    if not MASKED:
        acc = add_keys(
            acc, q_t, do_t, shift_t, delta_t, i, left, right, right, 0, k, v, mask, n, m, w, scale * LOG2_E,
            stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
            CAUSAL, WINDOWED, MASKED, True, D_K, D_V, P_K, P_V, B_t,
        )  # fmt: skip
    acc = add_keys(
        acc, q_t, do_t, shift_t, delta_t, i, low, high - (right - left), left, right - left,
        k, v, mask, n, m, w, scale * LOG2_E, stride_kn, stride_kd, stride_vn, stride_vd, stride_mn, stride_mm,
        CAUSAL, WINDOWED, MASKED, False, D_K, D_V, P_K, P_V, B_t // 2,
    )  # fmt: skip
    store_tile(dq, acc * scale, first, n, stride_xn, stride_xd, B_q, D_K, P_K)


@triton.jit
def add_queries(
    dk, dv, k, v, j, start, stop, gap, width, group, q, do, shift, delta, mask, n, m, w, scale,
    stride_qh, stride_qn, stride_qd, stride_gh, stride_gn, stride_gd, stride_lh, stride_mh, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr, B_q: tl.constexpr,
):  # fmt: skip
    """Add what the queries start … stop − 1 of every head of the group give to dK (the scale left out) and dV.

        Aᵀ = 2^(K qᵀ · scale − shift),   dV ← dV + Aᵀ dO,   dS′ᵀ = Aᵀ ∘ (V dOᵀ − delta),   dK ← dK + dS′ᵀ q

    Heads and tiles are one loop: a loop in a loop would keep the addresses of both in registers. gap and width as in
    `flash_forward.merge_tiles`.
    """
    count = (tl.maximum(stop - start, 0) + B_q - 1) // B_q
    for t in range(0, group * count):
        member = tl.cast(t // count, tl.int64)
        first = start + tl.cast(t % count, tl.int32) * B_q
        first = tl.where(first < gap, first, first + width)
        i = first + tl.arange(0, B_q)
        q_t = load_tile(q + member * stride_qh, first, n, stride_qn, stride_qd, B_q, D_K, P_K, WHOLE)
        do_t = load_tile(do + member * stride_gh, first, n, stride_gn, stride_gd, B_q, D_V, P_V, WHOLE)
        if WHOLE:
            shift_t = tl.load(shift + member * stride_lh + i)
            delta_t = tl.load(delta + member * stride_lh + i)
        else:
            shift_t = tl.load(shift + member * stride_lh + i, mask=i < n, other=float("inf"))
            delta_t = tl.load(delta + member * stride_lh + i, mask=i < n, other=0.0)
        A = tl.exp2(tl.dot(k, tl.trans(q_t), input_precision="ieee") * scale - shift_t[None, :])
        if not WHOLE:
            reads = may_read(i[None, :], j[:, None], n, m, w, CAUSAL, WINDOWED)
            if MASKED:
                mask_h = mask + member * stride_mh
                reads = reads & allowed(mask_h, i[None, :], j[:, None], n, m, stride_mn, stride_mm)
            A, do_t = contained(tl.where(reads, A, 0.0), do_t)
        dv = tl.dot(A.to(do_t.dtype), do_t, dv, input_precision="ieee")
        dA = tl.dot(v, tl.trans(do_t), input_precision="ieee")
        dS = A * (dA - delta_t[None, :])
        if not WHOLE:
            dS, q_t = tl.where(A == 0, 0.0, dS), sound(q_t)  # a broken query has made its weights nan
        dk = tl.dot(dS.to(q_t.dtype), q_t, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def flash_dkv_kernel(
    q, k, v, do, shift, delta, dk, dv, mask, cu_q, cu_k, n, m, w, scale, h_kv, group, key_tiles, together,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_gb, stride_gh, stride_gn, stride_gd,
    stride_xb, stride_xh, stride_xn, stride_xd, stride_yb, stride_yh, stride_yn, stride_yd,
    stride_lb, stride_lh, stride_mb, stride_mh, stride_mn, stride_mm,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr,
    D_K: tl.constexpr, D_V: tl.constexpr, P_K: tl.constexpr, P_V: tl.constexpr,
    B_q: tl.constexpr, B_t: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of B_t keys of one key head, summed over the query heads that share it.

        dV = Aᵀ dO,   dK = dSᵀ Q,   dS = scale · A ∘ (dO Vᵀ − delta),   A = 2^(S′ / ln 2 − shift)

    Shapes and masks as in `flash_forward_kernel`; do has strides g, dk strides x, dv strides y, shift and delta l.
    FLOPs: 2 pairs (2 d_k + 2 d_v) a query head: the products S, dA, dV, dK; with the other kernel seven, 3.5 times the
    forward when d_k = d_v. Bytes: k, v, dk, dv once, q and do of the group m / B_t times.

    Source: Dao 2023, algorithm 2, cut in two; chapter 11, and (5.5) to (5.11).
    """
    tile, pair = turn_of(key_tiles, together)  # under a causal mask the first keys are read most: they start first
    b, head = pair // h_kv, pair % h_kv
    row_b = b.to(tl.int64)
    start_q, start_k = 0, 0
    if RAGGED:
        start_q, start_k = tl.load(cu_q + b).to(tl.int64), tl.load(cu_k + b).to(tl.int64)
        n = (tl.load(cu_q + b + 1) - start_q).to(tl.int32)
        m = (tl.load(cu_k + b + 1) - start_k).to(tl.int32)
        row_b = row_b * 0
    first = tile * B_t
    if first >= m:
        return
    row_g = head.to(tl.int64)
    row_h = row_g * group  # the first of the query heads that share this key head
    q += row_b * stride_qb + row_h * stride_qh + start_q * stride_qn
    do += row_b * stride_gb + row_h * stride_gh + start_q * stride_gn
    shift += row_b * stride_lb + row_h * stride_lh + start_q
    delta += row_b * stride_lb + row_h * stride_lh + start_q
    if MASKED:
        mask += row_b * stride_mb + row_h * stride_mh
    k += row_b * stride_kb + row_g * stride_kh + start_k * stride_kn
    v += row_b * stride_vb + row_g * stride_vh + start_k * stride_vn
    dk += row_b * stride_xb + row_g * stride_xh + start_k * stride_xn
    dv += row_b * stride_yb + row_g * stride_yh + start_k * stride_yn

    j = first + tl.arange(0, B_t)
    k_t = load_tile(k, first, m, stride_kn, stride_kd, B_t, D_K, P_K, False)
    v_t = load_tile(v, first, m, stride_vn, stride_vd, B_t, D_V, P_V, False)
    dk_t = tl.zeros([B_t, P_K], tl.float32)
    dv_t = tl.zeros([B_t, P_V], tl.float32)
    low, left, right, high = queries_of(first, B_t, n, m, w, CAUSAL, WINDOWED, B_q)
    if MASKED:
        left, right = low, low
    if not MASKED:
        dk_t, dv_t = add_queries(
            dk_t, dv_t, k_t, v_t, j, left, right, right, 0, group, q, do, shift, delta, mask, n, m, w, scale * LOG2_E,
            stride_qh, stride_qn, stride_qd, stride_gh, stride_gn, stride_gd, stride_lh,
            stride_mh, stride_mn, stride_mm,
            CAUSAL, WINDOWED, MASKED, True, D_K, D_V, P_K, P_V, B_q,
        )  # fmt: skip
    dk_t, dv_t = add_queries(
        dk_t, dv_t, k_t, v_t, j, low, high - (right - left), left, right - left,
        group, q, do, shift, delta, mask, n, m, w, scale * LOG2_E,
        stride_qh, stride_qn, stride_qd, stride_gh, stride_gn, stride_gd, stride_lh, stride_mh, stride_mn, stride_mm,
        CAUSAL, WINDOWED, MASKED, False, D_K, D_V, P_K, P_V, B_q // 2,
    )  # fmt: skip
    store_tile(dk, dk_t * scale, first, m, stride_xn, stride_xd, B_t, D_K, P_K)
    store_tile(dv, dv_t, first, m, stride_yn, stride_yd, B_t, D_V, P_V)


def flash_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    cu_q: torch.Tensor | None = None,
    cu_k: torch.Tensor | None = None,
    longest_q: int | None = None,
    longest_k: int | None = None,
    keys: bool = True,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the two backward kernels: the gradients of q, k and v for the gradient do of o.

        dV = Aᵀ dO,  dA = dO Vᵀ,  dS′ = A ∘ (dA − rowsum(dO ∘ O)),  dS = dS′ · scale,  dQ = dS K,  dK = dSᵀ Q

    Shapes: q (B, h, n, d_k), k (B, h_kv, m, d_k), v (B, h_kv, m, d_v), o and do (B, h, n, d_v), lse (B, h, n) as
    `flash_forward` left it -> dq, dk, dv like q, k, v. The same call gives the same bits: nothing is added atomically.
    Without `keys` dk and dv are not computed, and come back with no entry. `tiles` are those of dQ and of dK and dV.

    Source: Dao 2023, algorithm 2; chapter 11, and (5.5) to (5.12).
    """
    B, h, n, d_k = q.shape
    h_kv, m, d_v = v.shape[1:]
    dq = like(q, q.shape)
    dk, dv = (like(k, k.shape), like(v, v.shape)) if keys else (k.new_empty(0), v.new_empty(0))
    shift, delta = torch.empty_like(lse), torch.empty_like(lse)
    if cu_q is not None:  # rows of no sequence, or beyond the longest: weights 2^(S′ − ∞), gradients of 0
        shift.fill_(float("inf"))
        for x in (delta, dq, dk, dv):
            x.zero_()
    device = capability(q), max(d_k, d_v), q.itemsize
    for_queries, for_keys = tiles or (tiles_for("dq", *device), tiles_for("dkv", *device))
    ragged = cu_q is not None
    sequences = B if cu_q is None else cu_q.shape[0] - 1
    query_tiles = triton.cdiv(longest_q if ragged else n, for_queries.B_q)
    key_tiles = triton.cdiv(longest_k if ragged else m, for_keys.B_t)
    numbers, group = arguments(q, k, window, scale), h // h_kv if h_kv else 1
    mask_strides = mask.stride() if mask is not None else (0, 0, 0, 0)
    constants = {
        "CAUSAL": causal, "WINDOWED": window is not None, "MASKED": mask is not None, "RAGGED": ragged,
        "D_K": d_k, "D_V": d_v, "P_K": padded(d_k), "P_V": padded(d_v), "enable_fp_fusion": True,
    }  # fmt: skip
    with on(q):
        if sequences * h * query_tiles:
            flash_dq_kernel[(sequences * h * query_tiles,)](
                q, k, v, o, do, lse, shift, delta, dq, mask, cu_q, cu_k, *numbers, h, group, query_tiles,
                heads_together(k, v, sequences * h, causal),
                *q.stride(), *k.stride(), *v.stride(), *o.stride(), *do.stride(), *dq.stride(),
                *lse.stride()[:2], *mask_strides, **constants, **for_queries.options(),
            )  # fmt: skip
        if keys and sequences * h_kv * key_tiles:
            flash_dkv_kernel[(sequences * h_kv * key_tiles,)](
                q, k, v, do, shift, delta, dk, dv, mask, cu_q, cu_k, *numbers, h_kv, group, key_tiles,
                heads_together(q, do, sequences * h_kv, causal),
                *q.stride(), *k.stride(), *v.stride(), *do.stride(), *dk.stride(), *dv.stride(),
                *lse.stride()[:2], *mask_strides, **constants, **for_keys.options(),
            )  # fmt: skip
    return dq, dk, dv
