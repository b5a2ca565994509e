"""The parts that models are built of, each as its tensors, in the letters of the notation table.

Shapes are (out, in), as checkpoints store them. What tensor parallelism cuts: query heads and feed-forward
columns, and on the way back the inputs of the output projections; the bias of such a projection is added once
and so stays whole on every rank.
"""

from derived.cost.spec.model import (
    ATTENTION,
    EMBEDDING,
    EXPERTS,
    FFN,
    HEAD,
    NORM,
    POSITIONS,
    RECURRENT,
    ROUTER,
    SHARED,
    Cache,
    Tensor,
)


def norm(width: int, count: int = 1, bias: bool = False, name: str = "norm", weight: bool = True) -> tuple[Tensor, ...]:
    """`count` norms of one width: a gain each, and a shift each where the norm is a LayerNorm."""
    vectors = int(weight) + int(bias)
    return (Tensor(name, NORM, (width,), copies=count * vectors),) if vectors * count else ()


def embedding(n_vocab: int, width: int) -> Tensor:
    """One row a token of the vocabulary."""
    return Tensor("token embedding", EMBEDDING, (n_vocab, width), 0, n_vocab, "pad")


def positions(rows: int, width: int) -> Tensor:
    """A learned row a position."""
    return Tensor("position embedding", POSITIONS, (rows, width))


def head(n_vocab: int, width: int) -> Tensor:
    """The output projection onto the vocabulary, when it is not the embedding again."""
    return Tensor("output head", HEAD, (n_vocab, width), 0, n_vocab, "pad")


def grouped_attention(
    d_model: int,
    h: int,
    h_kv: int,
    d_k: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: str = "",
    sinks: bool = False,
    gate: bool = False,
) -> tuple[Tensor, ...]:
    """Attention with h query heads and h_kv heads of keys and values.

    qk_norm "head": a gain of width d_k for queries and one for keys; "row": gains over all heads at once.
    sinks: one number a query head. gate: the query projection is twice as wide, half of it gates the output.
    """
    queries = h * d_k * (2 if gate else 1)
    tensors = [
        Tensor("query", ATTENTION, (queries, d_model), 0, h),
        Tensor("key", ATTENTION, (h_kv * d_k, d_model), 0, h_kv, "repeat"),
        Tensor("value", ATTENTION, (h_kv * d_k, d_model), 0, h_kv, "repeat"),
        Tensor("attention output", ATTENTION, (d_model, h * d_k), 1, h),
    ]
    if qkv_bias:
        tensors.append(Tensor("query bias", ATTENTION, (queries,), 0, h))
        tensors.append(Tensor("key and value bias", ATTENTION, (h_kv * d_k,), 0, h_kv, "repeat", copies=2))
    if o_bias:
        tensors.append(Tensor("attention output bias", ATTENTION, (d_model,)))
    if qk_norm == "head":
        tensors.append(Tensor("query and key norm", NORM, (d_k,), copies=2))
    if qk_norm == "row":
        tensors.append(Tensor("query norm", NORM, (h * d_k,), 0, h))
        tensors.append(Tensor("key norm", NORM, (h_kv * d_k,), 0, h_kv, "repeat"))
    if sinks:
        tensors.append(Tensor("attention sinks", ATTENTION, (h,), 0, h))
    return tuple(tensors)


def latent_attention(
    d_model: int, h: int, q_rank: int | None, kv_rank: int, d_nope: int, d_rope: int, d_v: int, bias: bool
) -> tuple[Tensor, ...]:
    """Multi-head latent attention: keys and values are unfolded from one latent row of width kv_rank + d_rope."""
    d_k = d_nope + d_rope
    tensors = [
        Tensor("latent down", ATTENTION, (kv_rank + d_rope, d_model)),
        Tensor("latent norm", NORM, (kv_rank,)),
        Tensor("latent up", ATTENTION, (h * (d_nope + d_v), kv_rank), 0, h),
        Tensor("attention output", ATTENTION, (d_model, h * d_v), 1, h),
    ]
    if q_rank is None:
        tensors.append(Tensor("query", ATTENTION, (h * d_k, d_model), 0, h))
    else:
        tensors.append(Tensor("query down", ATTENTION, (q_rank, d_model)))
        tensors.append(Tensor("query norm", NORM, (q_rank,)))
        tensors.append(Tensor("query up", ATTENTION, (h * d_k, q_rank), 0, h))
    if bias:
        widths = {"latent down bias": kv_rank + d_rope, "attention output bias": d_model}
        if q_rank is not None:
            widths["query down bias"] = q_rank
        tensors += [Tensor(name, ATTENTION, (width,)) for name, width in widths.items()]
    return tuple(tensors)


def feed_forward(d_model: int, d_ff: int, *, gated: bool, bias: bool = False, kind: str = FFN) -> tuple[Tensor, ...]:
    """Two matrices, or three when gated."""
    up = ("gate", "up") if gated else ("up",)
    tensors = [Tensor(f"{kind} {name}", kind, (d_ff, d_model), 0, d_ff) for name in up]
    tensors.append(Tensor(f"{kind} down", kind, (d_model, d_ff), 1, d_ff))
    if bias:
        tensors.append(Tensor(f"{kind} up bias", kind, (d_ff,), 0, d_ff, copies=len(up)))
        tensors.append(Tensor(f"{kind} down bias", kind, (d_model,)))
    return tuple(tensors)


def experts(
    d_model: int,
    d_ff: int,
    count: int,
    used: int,
    *,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    width: int | None = None,
) -> tuple[Tensor, ...]:
    """`count` feed-forward networks of which a token uses `used`, and the router that picks them.

    width: what goes into an expert, where it is not d_model.
    """
    expert = feed_forward(width or d_model, d_ff, gated=gated, bias=bias, kind=EXPERTS)
    tensors = [t._replace(copies=t.copies * count, active=t.copies * used) for t in expert]
    tensors.append(Tensor("router", ROUTER, (count, d_model)))
    if router_bias:
        tensors.append(Tensor("router bias", ROUTER, (count,)))
    return tuple(tensors)


def shared_expert(d_model: int, d_ff: int, *, gated: bool = True, gate: bool = False) -> tuple[Tensor, ...]:
    """A feed-forward network beside the experts that every token uses; gate: one row that weighs it."""
    tensors = feed_forward(d_model, d_ff, gated=gated, kind=SHARED)
    return (*tensors, Tensor("shared expert gate", ROUTER, (1, d_model))) if gate else tensors


def delta_net(
    d_model: int, h_k: int, h_v: int, d_k: int, d_v: int, kernel: int
) -> tuple[tuple[Tensor, ...], tuple[Cache, ...]]:
    """Gated linear attention with the delta rule: h_v states of d_k × d_v, fed through a short convolution.

    Its recurrence is 3 h_v d_k d_v MACs a token: what the state says of the key, the correction, what it says of the
    query.
    """
    channels = 2 * h_k * d_k + h_v * d_v
    tensors = (
        Tensor("query and key", RECURRENT, (2 * h_k * d_k, d_model), 0, h_k),
        Tensor("value and gate", RECURRENT, (2 * h_v * d_v, d_model), 0, h_v),
        Tensor("step and decay", RECURRENT, (2 * h_v, d_model), 0, h_v),
        Tensor("convolution", RECURRENT, (channels, 1, kernel), 0, channels),
        Tensor("decay and its bias", RECURRENT, (h_v,), 0, h_v, copies=2),
        Tensor("gated norm", NORM, (d_v,)),
        Tensor("mixer output", RECURRENT, (d_model, h_v * d_v), 1, h_v),
    )
    state = Cache("state", h_v, d_k * d_v, name="recurrent state")
    return tensors, (state, Cache("state", channels, kernel - 1, name="convolution state"))


def mamba2(
    d_model: int, h: int, d_head: int, groups: int, d_state: int, kernel: int, *, conv_bias: bool, bias: bool
) -> tuple[tuple[Tensor, ...], tuple[Cache, ...]]:
    """A Mamba-2 mixer: h states of d_head × d_state, fed through a short convolution.

    Its recurrence is 2 h d_head d_state MACs a token: what is written to the state and what is read from it.
    """
    inner = h * d_head
    channels = inner + 2 * groups * d_state
    tensors = [
        Tensor("mixer input, gate and value", RECURRENT, (2 * inner, d_model), 0, h),
        Tensor("mixer input, groups", RECURRENT, (2 * groups * d_state, d_model), 0, groups, "repeat"),
        Tensor("mixer input, step", RECURRENT, (h, d_model), 0, h),
        Tensor("convolution of values", RECURRENT, (inner, 1, kernel), 0, h),
        Tensor("convolution of groups", RECURRENT, (2 * groups * d_state, 1, kernel), 0, groups, "repeat"),
        Tensor("step bias, decay and skip", RECURRENT, (h,), 0, h, copies=3),
        Tensor("gated norm", NORM, (inner,), 0, h),
        Tensor("mixer output", RECURRENT, (d_model, inner), 1, h),
    ]
    if conv_bias:
        tensors.append(Tensor("convolution bias of values", RECURRENT, (inner,), 0, h))
        tensors.append(Tensor("convolution bias of groups", RECURRENT, (2 * groups * d_state,), 0, groups, "repeat"))
    if bias:
        tensors.append(Tensor("mixer input bias", RECURRENT, (inner + channels + h,)))
        tensors.append(Tensor("mixer output bias", RECURRENT, (d_model,)))
    state = Cache("state", h, d_head * d_state, name="recurrent state")
    return tuple(tensors), (state, Cache("state", channels, kernel - 1, name="convolution state"))
