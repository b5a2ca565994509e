"""Multi-head attention: project, split into heads, let every head attend, merge, project back."""

from typing import Any, NamedTuple

from jaxtyping import Float

from derived.errors import ShapeError
from derived.model.layers import in_place_of
from derived.model.parameters import MultiHeadParams
from derived.ops.arrays import Array
from derived.ops.attention import attention_vjp
from derived.ops.contract import shaped
from derived.ops.heads import merge_heads, split_heads
from derived.ops.linear import linear_vjp
from derived.ops.positions import rope_vjp


class Rotary(NamedTuple):
    """Tables for `ops.positions.rope`, one row a key; the queries take the last rows, as under a causal mask."""

    cos: Array  # (*table, m, half)
    sin: Array  # (*table, m, half)
    interleaved: bool


@shaped
def multi_head_attention(
    params: MultiHeadParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"] | None = None,
    *,
    h: int,
    rotary: Rotary | None = None,
    **reading: Any,
) -> Float[Array, "*batch n d_model"]:
    """Attention in h learned projections at once: `multi_head_attention_vjp` without the way back."""
    return multi_head_attention_vjp(params, x, memory, h=h, rotary=rotary, **reading)[0]


@shaped
def multi_head_attention_vjp(
    params: MultiHeadParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"] | None = None,
    *,
    h: int,
    rotary: Rotary | None = None,
    **reading: Any,
):
    """Attention in h learned projections at once.

        Q = x W_Q,   K = memory W_K,   V = memory W_V,   each split into heads
        O = attention(Q, K, V),   y = merged(O) W_O

    Shapes: x (*batch, n, d_model), memory (*batch, m, d_memory) -> y (*batch, n, d_model); pullback:
    dy (*batch, n, d_model) -> (dparams, dx, dmemory). Without memory the tokens read one another, memory = x,
    and the pullback gives (dparams, dx). With memory = all m tokens and x = the last n of them, y is the last
    n rows of self-attention: what a cache of keys relies on.
    h heads of width d_k = columns of W_Q / h; W_K holds h_kv = its columns / d_k heads, and h_kv divides h.
    rotary turns queries and keys. reading is what `ops.attention` takes: causal, window, mask, bias, scale,
    softcap; a mask or bias broadcasts to (*batch, h, n, m).
    Raises ShapeError if sizes disagree or widths hold no whole number of heads.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 (h_kv < h); chapters 6 and 9.
    """
    y, arrays_pullback = _multi_head_vjp(
        x, x if memory is None else memory, *params, h=h, rotary=rotary, reading=reading
    )

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """Where the tokens read one another, x receives from its queries, its keys and its values."""
        dx, dmemory, *learned = arrays_pullback(dy)
        dparams = in_place_of(params, learned)
        return (dparams, dx + dmemory) if memory is None else (dparams, dx, dmemory)

    return y, pullback


@shaped
def _multi_head_vjp(
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    W_Q: Float[Array, "d_model h_d_k"],
    W_K: Float[Array, "d_memory h_kv_d_k"],
    W_V: Float[Array, "d_memory h_kv_d_v"],
    W_O: Float[Array, "h_d_v d_model"],
    b_Q: Float[Array, "h_d_k"] | None = None,
    b_K: Float[Array, "h_kv_d_k"] | None = None,
    b_V: Float[Array, "h_kv_d_v"] | None = None,
    b_O: Float[Array, "d_model"] | None = None,
    *,
    h: int,
    rotary: Rotary | None,
    reading: dict,
):
    """The same with every array by its name, so that a complaint can name it; gradients in argument order."""
    h_kv = _key_heads(W_Q, W_K, W_V, W_O, h)
    q, q_pullback = linear_vjp(x, W_Q, b_Q)
    k, k_pullback = linear_vjp(memory, W_K, b_K)
    v, v_pullback = linear_vjp(memory, W_V, b_V)
    m = memory.shape[-2]
    Q, turn_q_back = _turned_vjp(split_heads(q, h), rotary, m)
    K, turn_k_back = _turned_vjp(split_heads(k, h_kv), rotary, m)
    O, attention_pullback = attention_vjp(Q, K, split_heads(v, h_kv), **reading)
    y, output_pullback = linear_vjp(merge_heads(O), W_O, b_O)

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The lines above in reverse; merging is the pullback of splitting, and splitting that of merging."""
        do, dW_O, *db_O = output_pullback(dy)
        dQ, dK, dV = attention_pullback(split_heads(do, h))
        dv, dW_V, *db_V = v_pullback(merge_heads(dV))
        dk, dW_K, *db_K = k_pullback(merge_heads(turn_k_back(dK)))
        dx, dW_Q, *db_Q = q_pullback(merge_heads(turn_q_back(dQ)))
        return (dx, dk + dv, dW_Q, dW_K, dW_V, dW_O, *db_Q, *db_K, *db_V, *db_O)

    return y, pullback


def _turned_vjp(x: Array, rotary: Rotary | None, m: int):
    """x turned by the last rows of the tables, as many as it has tokens; ShapeError unless there is a row a key."""
    if rotary is None:
        return x, lambda dy: dy
    rows, n = rotary.cos.shape[-2], x.shape[-2]
    if rows != m or n > m:
        raise ShapeError(
            f"multi_head_attention: rotary has {rows} rows for n = {n} queries and m = {m} keys; it needs one a key, "
            "and no more queries than keys: make the tables from the positions of the keys."
        )
    first = rows - n
    return rope_vjp(x, rotary.cos[..., first:, :], rotary.sin[..., first:, :], interleaved=rotary.interleaved)


def _key_heads(W_Q: Array, W_K: Array, W_V: Array, W_O: Array, h: int) -> int:
    """h_kv, read off the widths; ShapeError where they hold no whole number of heads, or W_O expects another number."""
    if h < 1 or W_Q.shape[1] % h or not W_Q.shape[1]:
        raise ShapeError(
            f"multi_head_attention: W_Q has {W_Q.shape[1]} columns, which do not divide into h = {h} heads."
        )
    d_k = W_Q.shape[1] // h
    h_kv, rest = divmod(W_K.shape[1], d_k)
    if rest or not h_kv or h % h_kv:
        raise ShapeError(
            f"multi_head_attention: W_K has {W_K.shape[1]} columns; with d_k = {d_k} from W_Q and h = {h} it must hold "
            "h_kv · d_k of them, where h_kv divides h."
        )
    d_v, rest = divmod(W_V.shape[1], h_kv)
    if rest or W_O.shape[0] != h * d_v:
        raise ShapeError(
            f"multi_head_attention: W_V has {W_V.shape[1]} columns and W_O {W_O.shape[0]} rows; with h = {h} and "
            f"h_kv = {h_kv} they must be h_kv · d_v and h · d_v."
        )
    return h_kv
