"""One replica of t × p cards, stage by stage: what each of its ranks must hold, and whether it can be built at all.

Tensor parallelism cuts every layer over t ranks; a pipeline of p stages gives each a run of whole layers, the embedding
to the first stage, the final norm and the head to the last. Layers that do not divide evenly go one each to the stages
before the last, counted from the back (vLLM's rule): 32 over 3 is 11/11/10, 27 over 2 is 14/13.
"""

from itertools import accumulate
from operator import mul

from derived.cost import memory
from derived.cost.hardware import Calibration
from derived.cost.record import Record
from derived.cost.spec.model import ATTENTION, RECURRENT, Cache, Model, Tensor


class Stage(Record):
    """What one rank of a stage holds, in bytes, beside the cache; and its cache for one conversation by kind.

    `start`, `stop`: its layers. `caches[i]` counts how many of its layers keep the i-th kind of cache.
    """

    start: int
    stop: int
    weights: int
    rope: int
    activation: int
    non_torch: int
    caches: tuple[int, ...]

    @property
    def fixed(self) -> int:
        """Everything that does not grow with conversations."""
        return self.weights + self.rope + self.activation + self.non_torch


def layer_counts(L: int, p: int) -> list[int]:
    """Layers of each of p stages."""
    each, over = divmod(L, p)
    counts = [each] * p
    for i in range(2, over + 2):
        counts[-i] += 1
    return counts


def refusal(model: Model, t: int, p: int) -> str:
    """Why no replica of t × p cards can be built; empty where one can."""
    if p > model.L:
        return f"{p} stages need at least {p} layers, the model has {model.L}"
    if t == 1:
        return ""
    for tensor in distinct_tensors(model):
        fits = tensor.axis is None or tensor.rule == "pad" or tensor.units % t == 0
        if fits or (tensor.rule == "repeat" and t % tensor.units == 0):
            continue
        what = noun(model, tensor)
        if tensor.rule == "repeat":
            return f"{t} ranks neither divide the {tensor.units} {what} nor are a multiple of them"
        return f"{t} ranks do not divide the {tensor.units:,} {what}"
    return ""


def distinct_tensors(model: Model):
    """Each tensor once, however many layers share it."""
    yield from model.first
    for layer in dict.fromkeys(model.layers):
        yield from layer.tensors
    yield from model.last


def noun(model: Model, tensor: Tensor) -> str:
    """What the units of a tensor are, for a sentence."""
    if tensor.kind == RECURRENT:
        return (
            "groups of the recurrent mixer" if tensor.rule == "repeat" else "heads or channels of the recurrent mixer"
        )
    if tensor.rule == "repeat":
        return "key heads"
    return "query heads" if tensor.kind == ATTENTION or tensor.units == model.h else "feed-forward columns"


class Ranks:
    """The prices of one rank for each t: built once for a model, its formats and its calibrated terms."""

    def __init__(self, model: Model, weights_dtype: str | None, cache_dtype: str, calibration: Calibration):
        self.model, self.cache_dtype, self.calibration = model, cache_dtype, calibration
        self.stored = memory.weights(model, weights_dtype)
        self.rope = memory.rope_bytes(model)
        self.kinds: tuple[Cache, ...] = tuple(
            dict.fromkeys(cache for layer in dict.fromkeys(model.layers) for cache in layer.caches)
        )
        self.caches_before = list(accumulate(map(self.caches_of, model.layers), added, initial=(0,) * len(self.kinds)))
        self.weights_before: dict[int, list[int]] = {}
        self.prices: dict[tuple[int, int], tuple[int, ...]] = {}

    def caches_of(self, layer) -> tuple[int, ...]:
        """How many caches of each kind a layer keeps."""
        return tuple(layer.caches.count(kind) for kind in self.kinds)

    def bytes_of(self, tensors, t: int) -> int:
        """Bytes of some tensors on one of t ranks."""
        return sum(self.stored.of(tensor, t) for tensor in tensors)

    def layers_before(self, t: int) -> list[int]:
        """Bytes of the first i layers on one of t ranks, for every i."""
        if t not in self.weights_before:
            each = {layer: self.bytes_of(layer.tensors, t) for layer in dict.fromkeys(self.model.layers)}
            self.weights_before[t] = list(accumulate((each[layer] for layer in self.model.layers), initial=0))
        return self.weights_before[t]

    def end_tensors(self, p: int, index: int) -> tuple[Tensor, ...]:
        """What a stage holds beside its layers. A tied head on another stage than the embedding is a second copy."""
        first = self.model.first if index == 0 else ()
        if index != p - 1:
            return first
        again = tuple(t for t in self.model.first if t.kind == "embedding") if self.model.tied and p > 1 else ()
        return (*first, *self.model.last, *again)

    def heaviest(self, t: int, p: int) -> list[tuple[int, tuple[int, ...]]]:
        """(bytes of weights and tables, caches) of the stages that differ: of those that cache alike, the heaviest.

        What `stages` says in full, for a search over hundreds of replicas.
        """
        before, caches = self.layers_before(t), self.caches_before
        ends = {i: self.bytes_of(self.end_tensors(p, i), t) for i in {0, p - 1}}
        most: dict[tuple[int, ...], int] = {}
        start = 0
        for i, count in enumerate(layer_counts(self.model.L, p)):
            stop = start + count
            kept = subtracted(caches[stop], caches[start])
            held = before[stop] - before[start]
            if i in ends:
                held += ends[i]
            if held > most.get(kept, -1):
                most[kept] = held
            start = stop
        return [(held + self.rope, kept) for kept, held in most.items()]

    def stages(self, t: int, p: int) -> list[Stage]:
        """The stages of a replica of t × p cards."""
        before, caches = self.layers_before(t), self.caches_before
        activation, non_torch = self.calibration.rank_bytes(t, p)
        ends = {i: self.bytes_of(self.end_tensors(p, i), t) for i in {0, p - 1}}
        stages, start = [], 0
        for i, count in enumerate(layer_counts(self.model.L, p)):
            stop = start + count
            kept = subtracted(caches[stop], caches[start])
            held = before[stop] - before[start] + ends.get(i, 0)
            stages.append(Stage(start, stop, held, self.rope, activation, non_torch, kept))
            start = stop
        return stages

    def conversation(self, t: int, n: int) -> tuple[int, ...]:
        """Bytes of one conversation of n tokens in one layer of each kind of cache, whole blocks, on one of t ranks."""
        if (t, n) not in self.prices:
            self.prices[t, n] = tuple(
                memory.cache_bytes(kind, n, self.cache_dtype, t, memory.BLOCK) for kind in self.kinds
            )
        return self.prices[t, n]

    def stage_conversation(self, stage: Stage, t: int, n: int) -> int:
        """Bytes of one conversation on one rank of a stage."""
        return sum(map(mul, stage.caches, self.conversation(t, n)))


def added(before: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    """Sum, entry by entry."""
    return tuple(a + b for a, b in zip(before, more, strict=True))


def subtracted(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """Difference, entry by entry; most models have one kind of cache."""
    if len(after) == 1:
        return (after[0] - before[0],)
    return tuple(a - b for a, b in zip(after, before, strict=True))
