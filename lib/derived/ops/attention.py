"""Scaled dot-product attention: forward, pullback, and a trace of every intermediate by its name."""

from typing import NamedTuple

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from derived.errors import DerivedError
from derived.ops.arrays import Array, inverse_sqrt, swap_last, widen_together
from derived.ops.contract import shaped
from derived.ops.heads import group_size, repeat_heads, sum_groups
from derived.ops.masks import may_read, transposed, weighted_sum
from derived.ops.softmax import softmax_vjp


class AttentionTrace(NamedTuple):
    """Every array between q, k, v and their gradients, named as in chapter 5; gradients are None without dO."""

    S: Array  # Q Kᵀ
    S_scaled: Array  # S′ = S · scale
    S_masked: Array  # what softmax sees: soft-capped, biased, −inf where a key may not be read
    A: Array
    O: Array
    dO: Array | None = None
    dA: Array | None = None
    dS_scaled: Array | None = None
    dS: Array | None = None
    dQ: Array | None = None
    dK: Array | None = None
    dV: Array | None = None


@shaped
def attention(
    q: Float[Array, "*batch n d_k"],
    k: Float[Array, "*kv_batch m d_k"],
    v: Float[Array, "*kv_batch m d_v"],
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | int | None = None,
    softcap: float | int | None = None,
) -> Float[Array, "*batch n d_v"]:
    """Average the values under softmax(Q Kᵀ / √d_k): `attention_vjp` without the way back."""
    o, _ = attention_vjp(q, k, v, causal=causal, window=window, mask=mask, bias=bias, scale=scale, softcap=softcap)
    return o


@shaped
def attention_vjp(
    q: Float[Array, "*batch n d_k"],
    k: Float[Array, "*kv_batch m d_k"],
    v: Float[Array, "*kv_batch m d_v"],
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | int | None = None,
    softcap: float | int | None = None,
):
    """Let each query average the values, weighted by how well the keys answer it.

        S = Q Kᵀ,   S′ = S · scale,   A = softmax(S′),   O = A V,   scale = 1/√d_k unless given

    Shapes: q (*batch, n, d_k), k (*kv_batch, m, d_k), v (*kv_batch, m, d_v) -> o (*batch, n, d_v);
    pullback: do (*batch, n, d_v) -> dq, dk, dv, shaped like q, k, v.
    kv_batch equals batch, or differs in its last axis: h query heads share h_kv key heads, h / h_kv
    consecutive ones each. mask (True = may read) and bias (added to S′) broadcast to (*batch, n, m) and get
    no gradient. A softcap turns S′ into softcap · tanh(S′ / softcap) before the bias.

    Causal is aligned to the last key: query i reads key j if j ≤ i + m − n; `ops.masks` draws it. A query
    that may read nothing gives zeros and passes zero gradients. A nan or inf in key or value j changes no
    query that may not read j. Half precisions are computed in float32. Memory: n · m numbers a head.

    Raises ShapeError if sizes disagree, DtypeError if a mask is not boolean, DerivedError if softcap is not above 0.

    Source: Vaswani et al. 2017, equation 1; chapter 5, (5.1) to (5.4), backward (5.5) to (5.11).
    """
    forward, pull = _traced(q, k, v, causal, window, mask, bias, scale, softcap)
    xp = array_namespace(q, k, v)

    def pullback(do: Float[Array, "*batch n d_v"]) -> tuple:
        """dV = Aᵀ dO,  dA = dO Vᵀ,  dS′ = A ∘ (dA − rowsum(A ∘ dA)),  dS = dS′ · scale,  dQ = dS K,  dK = dSᵀ Q."""
        trace = pull(do)
        return xp.astype(trace.dQ, q.dtype), xp.astype(trace.dK, k.dtype), xp.astype(trace.dV, v.dtype)

    return xp.astype(forward.O, q.dtype), pullback


@shaped
def attention_trace(
    q: Float[Array, "*batch n d_k"],
    k: Float[Array, "*kv_batch m d_k"],
    v: Float[Array, "*kv_batch m d_v"],
    dO: Float[Array, "*batch n d_v"] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | int | None = None,
    softcap: float | int | None = None,
) -> AttentionTrace:
    """Return all intermediates of `attention_vjp` by name; with dO, the gradients of each as well.

    Shapes: q (*batch, n, d_k), k (*kv_batch, m, d_k), v (*kv_batch, m, d_v), dO (*batch, n, d_v) ->
    S, S_scaled, S_masked, A and their gradients (*batch, n, m); O, dO (*batch, n, d_v); dQ, dK, dV like q, k, v.
    Arrays of half precision come back as the float32 they were computed in.

    Source: chapter 5, the computational graph.
    """
    forward, pull = _traced(q, k, v, causal, window, mask, bias, scale, softcap)
    return forward if dO is None else pull(dO)


def _traced(q, k, v, causal, window, mask, bias, scale, softcap):
    """The derivation itself, once: the forward trace, and the function from dO to the whole trace."""
    groups = group_size(q, k)
    reads = may_read(q, k.shape[-2], causal=causal, window=window, mask=mask, bias=bias)
    scale = inverse_sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = widen_together(q, k, v)
    k, v = repeat_heads(k, groups), repeat_heads(v, groups)

    S = q @ swap_last(k)  # (5.1)
    S_scaled = S * scale  # (5.2)
    S_masked = masked_scores(S_scaled, softcap, bias, reads)
    A, softmax_pullback = softmax_vjp(S_masked)  # (5.3)
    A = where_read(A, reads)  # a nan query has nan weights, but only on keys it may read
    O = weighted_sum(A, v, reads)  # (5.4)
    forward = AttentionTrace(S, S_scaled, S_masked, A, O)

    def pull(dO: Array) -> AttentionTrace:
        dO = array_namespace(dO).astype(dO, A.dtype)
        dV = weighted_sum(swap_last(A), dO, transposed(reads))  # (5.5)
        dA = where_read(dO @ swap_last(v), reads)  # (5.6)
        dS_masked = where_read(softmax_pullback(dA), reads)  # (5.8)
        dS_scaled = where_read(dS_masked * cap_slope(S_scaled, softcap), reads)
        dS = dS_scaled * scale  # (5.9)
        dQ = weighted_sum(dS, k, reads)  # (5.10)
        dK = weighted_sum(swap_last(dS), q, transposed(reads))  # (5.11)
        return forward._replace(
            dO=dO, dA=dA, dS_scaled=dS_scaled, dS=dS, dQ=dQ, dK=sum_groups(dK, groups), dV=sum_groups(dV, groups)
        )

    return forward, pull


def masked_scores(S_scaled: Array, softcap, bias: Array | None, reads: Array | None) -> Array:
    """What softmax sees: S′ soft-capped, then biased, then −inf where a key may not be read.

    Shapes: S_scaled (*batch, n, m), bias and reads broadcastable to it, or None -> (*batch, n, m).
    Raises DerivedError if softcap is not above 0.
    """
    xp = array_namespace(S_scaled)
    if softcap is not None and not softcap > 0:
        raise DerivedError(
            f"attention: softcap = {softcap}; scores are capped at ± softcap, so give it above 0 or None."
        )
    seen = S_scaled if softcap is None else softcap * xp.tanh(S_scaled / softcap)
    if bias is not None:
        seen = seen + xp.astype(bias, seen.dtype)
    return seen if reads is None else xp.where(reads, seen, xp.full_like(seen, -xp.inf))


def cap_slope(S_scaled: Array, softcap):
    """The derivative of softcap · tanh(S′ / softcap): 1 − tanh², or 1 without a cap."""
    return 1 if softcap is None else 1 - array_namespace(S_scaled).tanh(S_scaled / softcap) ** 2


def where_read(x: Array, reads: Array | None) -> Array:
    """x where a key may be read, 0 elsewhere."""
    xp = array_namespace(x)
    return x if reads is None else xp.where(reads, x, xp.zeros_like(x))
