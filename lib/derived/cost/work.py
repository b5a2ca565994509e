"""FLOPs of a real model: a prompt of n tokens, a decode step at n, a training step, and where attention takes over.

Counted are the products of matrices, two FLOPs a MAC: every matrix that a token uses (of experts, those it is routed
to), the output head, convolutions, recurrences token by token, and 2 h (d_k + d_v) FLOPs for each query and key that
it reads. Norms, biases, softmax and activations are not counted; the input embedding is looked up, not multiplied.
Causal attention is counted cell by cell: query i reads min(i, window) keys, itself included.

Chapters 10, 12 and 13.
"""

from math import prod

from derived.cost import memory
from derived.cost.hardware import Card
from derived.cost.record import Record
from derived.cost.spec.fields import ConfigError
from derived.cost.spec.model import EXPERTS, FFN, HEAD, SHARED, Layer, Model, Tensor

NETWORK = frozenset({FFN, EXPERTS, SHARED})


class Work(Record):
    """FLOPs of a model at a context, whole numbers; `crossover_tokens` is None where attention never takes over."""

    context: int
    prefill_flops: int
    prefill_flops_one_logit: int
    decode_flops_per_token: int
    training_flops_per_token: int
    crossover_tokens: int | float | None


class Times(Record):
    """Lower bounds in seconds on one card, and which side binds: "FLOP/s" or "bytes/s"."""

    first_token: float
    first_token_bound_by: str
    each_token: float
    each_token_bound_by: str


def multiplied(tensor: Tensor) -> int:
    """MACs that one token costs in a tensor: its numbers in the copies used, where it is a matrix or a convolution."""
    used = tensor.copies if tensor.active is None else tensor.active
    return prod(tensor.shape) * used if len(tensor.shape) > 1 else 0


def head_macs(model: Model) -> int:
    """MACs of the output head for one position: its own matrix, or the embedding again."""
    return model.tied_head_parameters + sum(multiplied(tensor) for tensor in model.last if tensor.kind == HEAD)


def token_macs(model: Model) -> int:
    """MACs of one token in everything but scores and head."""
    around = [t for t in (*model.first, *model.last) if t.kind == "projection"]
    inside = sum(sum(map(multiplied, layer.tensors)) + layer.recurrence for layer in model.layers)
    return inside + sum(map(multiplied, around))


def pairs_read(n: int, window: int | None) -> int:
    """(query, key) cells of a causal prompt: Σ min(i, w) for i = 1, …, n."""
    w = n if window is None else min(n, window)
    return w * (w + 1) // 2 + (n - w) * w


def prompt_score_macs(model: Model, n: int) -> int:
    """MACs of scores and mixing over a causal prompt of n tokens."""
    return sum(s.h * (s.d_k + s.d_v) * pairs_read(n, s.window) for layer in model.layers for s in layer.scores)


def step_score_macs(model: Model, n: int) -> int:
    """MACs of scores and mixing for one new token that reads n keys, its own included, from the cache."""

    def one(s) -> int:
        width = s.d_k + s.d_v if s.cached is None else s.cached
        return s.h * width * (n if s.window is None else min(n, s.window))

    return sum(one(s) for layer in model.layers for s in layer.scores)


def work(model: Model, n: int) -> Work:
    """The FLOPs of a decoder at a context of n tokens.

        prefill    2 n (M + head) + Σ over layers 2 h (d_k + d_v) Σ_i min(i, w)
        decode     2 (M + head) + Σ over layers 2 h (d_k + d_v) min(n, w)
        training   3 · prefill / n a token: forward, and twice it backward

    M: the matrix numbers that a token uses. `prefill_flops` counts the head at every position, as a training step and
    most published estimates do; `prefill_flops_one_logit` at the last alone, which is all that serving needs.
    Raises ConfigError for an encoder–decoder, whose two lengths are not one context, and for a context below 1.
    Chapters 10, 12 and 13.
    """
    if model.model_type == "t5":
        raise ConfigError("t5 is an encoder with a decoder: its FLOPs depend on two lengths, which is not derived here")
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 10**12:
        raise ConfigError(f"context is {n!r}: it must be a positive integer")
    inside, head, scores = token_macs(model), head_macs(model), prompt_score_macs(model, n)
    prompt = 2 * (n * (inside + head) + scores)
    return Work(
        context=n,
        prefill_flops=prompt,
        prefill_flops_one_logit=2 * (n * inside + head + scores),
        decode_flops_per_token=2 * (inside + head + step_score_macs(model, n)),
        training_flops_per_token=3 * prompt // n,
        crossover_tokens=crossover(model),
    )


def network_macs(layer: Layer) -> int:
    """MACs of one token in a layer's feed-forward network: of experts, those it uses."""
    return sum(multiplied(tensor) for tensor in layer.tensors if tensor.kind in NETWORK)


def crossover(model: Model) -> int | float | None:
    """The context at which a token's scores cost what its feed-forward networks cost, over all layers.

        Σ h (d_k + d_v) min(n, w) = Σ feed-forward MACs

    Full squares (under a causal mask a prompt crosses at 2 n − 1); whole where it is whole. None where windows keep
    attention below for ever, or there is no attention.
    """
    wanted = sum(map(network_macs, model.layers))
    scores = [s for layer in model.layers for s in layer.scores]
    ends = sorted({s.window for s in scores if s.window is not None})
    start = 0
    for stop in (*ends, None):
        settled = sum(s.h * (s.d_k + s.d_v) * s.window for s in scores if s.window is not None and s.window <= start)
        growing = sum(s.h * (s.d_k + s.d_v) for s in scores if s.window is None or s.window > start)
        if growing and (stop is None or settled + growing * stop >= wanted):
            whole, rest = divmod(wanted - settled, growing)
            return whole if not rest else (wanted - settled) / growing
        start = stop
    return None


def active_weight_bytes(model: Model, dtype: str | None = None) -> int:
    """Bytes of weights that one token reads: of experts those it uses, of the input embedding one row."""
    stored = memory.weights(model, dtype)
    read = 0
    for tensor in model.tensors():
        if tensor.kind in ("embedding", "positions") and not (model.tied and tensor.kind == "embedding"):
            read += stored.of(tensor) // tensor.shape[0]
        else:
            used = tensor.copies if tensor.active is None else tensor.active
            read += stored.of(tensor) // max(1, tensor.copies) * used
    return read


def lower_bounds(model: Model, on: Card, n: int, rate: str = "fp16") -> Times:
    """Least seconds to the first token of a prompt of n, and for each token at n, for one conversation on one card.

        max(FLOPs / (FLOP/s), bytes / (bytes/s)), perfectly overlapped

    Bytes: weights once (for one token, those it uses) and the cache once. rate: the precision of the peak.
    Chapter 12.
    """
    done, peak = work(model, n), on.peak(rate)
    cache = memory.conversation_bytes(model, n)
    first = slower(done.prefill_flops_one_logit / peak, memory.weight_bytes(model) / on.bytes_per_s)
    each = slower(done.decode_flops_per_token / peak, (active_weight_bytes(model) + cache) / on.bytes_per_s)
    return Times(*first, *each)


def slower(computing: float, moving: float) -> tuple[float, str]:
    """The longer of two times, and what it waits for."""
    return (computing, "FLOP/s") if computing >= moving else (moving, "bytes/s")
