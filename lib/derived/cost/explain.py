"""Where every byte of an order goes: a tree of named terms, each with its formula, that sums to the cards booked.

    cards × visible = Σ replicas Σ stages t · (weights + rotary tables + cache + activation + non-torch + free)
                      + what the share leaves unused + idle cards

A formula is written in numbers; evaluated, it gives the term's bytes. Chapter 13.
"""

from collections import Counter

from derived.cost import memory
from derived.cost.placement import Order, replica_name
from derived.cost.record import Record
from derived.cost.spec.model import Cache, Tensor
from derived.cost.stages import Ranks, Stage


class Term(Record):
    """A named number of bytes: a leaf with its formula, or the sum of its parts."""

    name: str
    bytes: int
    formula: str
    parts: tuple["Term", ...] = ()

    def leaves(self, path: str = ""):
        """Every leaf, its name led by those above it."""
        called = f"{path} / {self.name}" if path else self.name
        if not self.parts:
            yield self._replace(name=called)
        for part in self.parts:
            yield from part.leaves(called)


def total(name: str, parts: list[Term], formula: str = "sum of its parts") -> Term:
    """The sum of the parts that are not empty."""
    kept = tuple(part for part in parts if part.bytes)
    return Term(name, sum(part.bytes for part in kept), formula, kept)


def explain(order: Order) -> Term:
    """The tree of an order: all bytes of the cards booked; where none was found, all bytes that any order must hold."""
    ranks = Ranks(order.model, order.weights_dtype, order.cache_dtype, order.calibration)
    if order.chosen is None:
        return needed(order, ranks)
    parts, idle = [], order.gpus
    for (shape, asked), count in Counter(shared_out(order)).items():
        parts.append(replica(order, ranks, *shape, asked, count))
        idle -= shape[0] * shape[1] * count
    visible = order.card.visible_bytes
    parts.append(Term("idle cards", idle * visible, f"{idle} × {visible:,}"))
    return total(f"{order.gpus} × {order.card.name}", parts, f"{order.gpus} × {visible:,}")


def needed(order: Order, ranks: Ranks) -> Term:
    """Weights once and the cache of every conversation: the bound's bytes."""
    whole = ranks.stages(1, 1)[0]
    cache = order.conversations * order.cache_bytes_per_conversation
    formula = f"{order.conversations:,} × {order.cache_bytes_per_conversation:,}"
    return total("needed at least", [*weights(ranks, whole, 1, 1, 1, 0), Term("cache", cache, formula)])


def shared_out(order: Order) -> list[tuple[tuple[int, int], int]]:
    """(shape, conversations) of each replica: in proportion to what each holds, the remainder from the first on."""
    held, wanted = order.chosen.held, order.conversations
    most = sum(held)
    asked = [wanted * h // most for h in held]
    for i, room in enumerate(h - a for h, a in zip(held, asked, strict=True)):
        asked[i] += min(room, wanted - sum(asked))
    return list(zip(order.chosen.replicas, asked, strict=True))


def replica(order: Order, ranks: Ranks, t: int, p: int, asked: int, count: int) -> Term:
    """`count` equal replicas of t × p cards with `asked` conversations each; equal stages are taken together."""
    stages = ranks.stages(t, p)
    groups: dict[tuple, list[int]] = {}
    for i, stage in enumerate(stages):
        groups.setdefault((i in (0, p - 1) and i, stage[2:]), []).append(i)
    parts = []
    for same in groups.values():
        cards = count * t * len(same)
        name = f"stage {same[0] + 1}" if len(same) == 1 else f"stages {same[0] + 1} to {same[-1] + 1}"
        stage = stages[same[0]]
        layers = stage.stop - stage.start
        called = f"{name}, {layers} layers" if p > 1 else f"{layers} layers"
        parts.append(
            total(called, rank(order, ranks, stage, t, p, same[0], asked, cards), f"on {cards} card{'s' * (cards > 1)}")
        )
    name = f"{count} × {replica_name(t, p, order.model.L)}, {asked:,} conversations{' each' * (count > 1)}"
    return total(name, parts)


def rank(order: Order, ranks: Ranks, stage: Stage, t: int, p: int, index: int, asked: int, cards: int) -> list[Term]:
    """The terms of one rank, `cards` times."""
    visible, usable = order.card.visible_bytes, order.usable_bytes
    cache = total("cache", caches(order, ranks, stage, t, asked, cards))
    terms = [
        total("weights", weights(ranks, stage, t, p, cards, index)),
        Term("rotary tables", cards * stage.rope, f"{cards} × {stage.rope:,}"),
        cache,
        Term("activation peak (calibrated)", cards * stage.activation, f"{cards} × {stage.activation:,}"),
        Term("non-torch memory (calibrated)", cards * stage.non_torch, f"{cards} × {stage.non_torch:,}"),
    ]
    used = sum(term.bytes for term in terms)
    free = cards * usable - used
    terms.append(Term("free for more conversations", free, f"{cards} × {usable:,} - {used:,}"))
    terms.append(Term("outside the share", cards * (visible - usable), f"{cards} × ({visible:,} - {usable:,})"))
    return terms


def weights(ranks: Ranks, stage: Stage, t: int, p: int, cards: int, index: int) -> list[Term]:
    """A term a tensor class, with the tensors that it sums."""
    held: dict[str, Counter] = {}
    own = Counter(ranks.model.layers[stage.start : stage.stop])
    for layer, count in own.items():
        for tensor in layer.tensors:
            held.setdefault(tensor.kind, Counter())[tensor] += count
    for tensor in ranks.end_tensors(p, index):
        held.setdefault(tensor.kind, Counter())[tensor] += 1
    terms = []
    for kind, tensors in held.items():
        formula = " + ".join(written(ranks, tensor, t, count) for tensor, count in tensors.items())
        amount = sum(ranks.stored.of(tensor, t) * count for tensor, count in tensors.items())
        terms.append(Term(kind, cards * amount, f"{cards} × ({formula})"))
    return terms


def written(ranks: Ranks, tensor: Tensor, t: int, count: int) -> str:
    """The bytes of a tensor's copies on one rank, as a product of numbers."""
    copies = count * tensor.copies
    shape = memory.cut(tensor, t)
    one = ranks.stored.of(tensor, t) // tensor.copies if tensor.copies else 0
    form = ranks.stored.rest
    if one != memory.stored_bytes(shape, form):
        form = ranks.stored.form
    numbers = " × ".join(f"{side:,}" for side in shape)
    size = f"{numbers} × {form.bits // 8}" if form.bits >= 8 else f"{numbers} / {8 // form.bits}"
    scales = one - memory.stored_bytes(shape, form._replace(scale_bytes=0))
    body = f"({size} + {scales // form.scale_bytes:,} × {form.scale_bytes})" if scales else size
    return f"{tensor.name} {copies} × {body}" if copies > 1 else f"{tensor.name} {body}"


def caches(order: Order, ranks: Ranks, stage: Stage, t: int, asked: int, cards: int) -> list[Term]:
    """A term a kind of cache: conversations × layers × tokens kept × bytes a token."""
    terms = []
    for kind, layers in zip(ranks.kinds, stage.caches, strict=True):
        each = memory.cache_bytes(kind, order.context, order.cache_dtype, t, memory.BLOCK)
        factors = f"{cards} × {asked:,} conversations × {layers} layers × {per_layer(kind, order, t)}"
        terms.append(Term(cache_name(kind), cards * asked * layers * each, factors))
    return terms


def per_layer(kind: Cache, order: Order, t: int) -> str:
    """One layer's cache of one conversation, as a product."""
    if kind.kind == "state":
        return f"{-(-kind.heads // t):,} × {kind.width_k:,} numbers × {memory.STATE_BYTES} bytes"
    kept = memory.tokens_kept(kind, order.context, memory.BLOCK)
    return f"{kept:,} tokens × {memory.token_bytes(kind, order.cache_dtype, t):,} bytes"


def cache_name(kind: Cache) -> str:
    """The cache and its window."""
    return kind.name if kind.window is None else f"{kind.name}, the last {kind.window:,} tokens"


def lines(term: Term, depth: int = 0):
    """The tree as indented lines: GiB, exact bytes, name, formula."""
    mark = "" if term.parts and term.formula == "sum of its parts" else f"  = {term.formula}"
    yield f"{term.bytes / memory.GIB:12,.3f} GiB {term.bytes:>20,}  {'  ' * depth}{term.name}{mark}"
    for part in term.parts:
        yield from lines(part, depth + 1)
