"""How many cards to book: every placement of replicas on cards, the one that holds most, and why the others fail.

A replica carries all weights and is t tensor-parallel ranks × p pipeline stages. On each of its ranks

    pool = ⌊visible · share⌋ − weights − rotary tables − activation − non-torch,
    conversations = ⌊pool / cache bytes of one conversation, in whole blocks⌋,

and the least over its stages binds the replica. The share is of the card's total memory (vLLM's rule). The bound that
divides all bytes by the card is below every placement: weights once and no remainder wasted. Room alone decides, not
speed: the placements that hold enough with less room are listed too, since a tensor-parallel one answers sooner.

Chapter 13.
"""

from math import prod
from operator import mul

from derived.cost import memory
from derived.cost.hardware import NOTHING, Calibration, Card, card, custom
from derived.cost.record import Record
from derived.cost.spec.fields import ConfigError
from derived.cost.spec.model import Model
from derived.cost.splits import Best, Kind, every_split, hold
from derived.cost.stages import Ranks, layer_counts, refusal

ENUMERATED = 16
"""Up to so many cards every split is tried; beyond, the best split comes from a recursion over kinds of replica."""

MILLION = 10**6
LONGEST = 2**22
"""Blocks of context beyond which no flip is looked for: 64 million tokens."""

NO_LIMIT = 10**12
"""Conversations that a replica holds whose layers keep nothing."""


class Placed(Record):
    """One way to split cards into replicas: what it holds, and in a sentence why it fails (empty: it does not)."""

    gpus: int
    name: str
    replicas: tuple[tuple[int, int], ...]  # (tensor parallel, pipeline stages) of each
    held: tuple[int, ...]  # conversations of each replica
    conversations: int
    reason: str = ""


class Flips(Record):
    """Where the count of cards changes; None where it does not within sense.

    With the cards booked: the least share (four decimals, rounded up), the longest context, the most conversations
    that fit. With one card fewer: the same three, with which it would have done. And what one card more would hold.
    """

    share: float | None
    context: int | None
    conversations: int
    share_one_fewer: float | None
    context_one_fewer: int | None
    conversations_one_fewer: int
    conversations_one_more: int


class Order(Record):
    """The answer and its argument. `gpus` is None where nothing up to `max_gpus` holds the conversations."""

    model: Model
    card: Card
    context: int
    conversations: int
    share: float
    cache_dtype: str
    weights_dtype: str
    calibration: Calibration
    weight_bytes: int
    cache_bytes_per_conversation: int
    lower_bound_gpus: int
    cards_worth: float  # of the usable share, as a fraction
    gpus: int | None
    chosen: Placed | None
    runners_up: tuple[Placed, ...]
    rejected: tuple[Placed, ...]
    flips: Flips | None
    gpus_in_band: tuple[int | None, int | None]
    max_gpus: int

    @property
    def usable_bytes(self) -> int:
        """⌊visible · share⌋ of one card."""
        return usable(self.card, self.share)


def size(
    model: Model,
    on: Card | str | int,
    *,
    context: int,
    conversations: int,
    share: float = 0.9,
    cache_dtype: str | None = None,
    weights_dtype: str | None = None,
    calibration: Calibration = NOTHING,
    max_gpus: int = 512,
    replicas: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    flips: bool = True,
) -> Order:
    """The fewest cards whose best placement holds `conversations` of `context` tokens, and the whole argument.

    on: a Card, its name, or a number of bytes of which all are visible. share: of the visible memory. Formats: None
    follows the config. calibration: NOTHING counts derived bytes alone (the default here), MEASURED adds what engines
    logged (the command line's default). replicas: so many equal ones; tensor_parallel, pipeline_parallel: of each.

    Raises ConfigError for numbers that make no order.
    """
    on = card(on) if isinstance(on, str) else custom(f"a card of {on:,} bytes", on) if isinstance(on, int) else on
    check(context, conversations, share, max_gpus, replicas, tensor_parallel, pipeline_parallel)
    dtype = model.dtype if cache_dtype is None else cache_dtype
    search = Search(model, on, share, context, dtype, weights_dtype, calibration,
                    (replicas, tensor_parallel, pipeline_parallel))  # fmt: skip
    weights = memory.weight_bytes(model, weights_dtype)
    cache = memory.conversation_bytes(model, context, dtype)
    total = weights + conversations * cache
    bound = -(-total // on.visible_bytes)
    gpus, chosen, runners_up, rejected = search.fewest(conversations, max_gpus)
    return Order(
        model, on, context, conversations, share, dtype, weights_dtype or model.weights, calibration, weights, cache,
        lower_bound_gpus=bound,
        cards_worth=total / usable(on, share),
        gpus=gpus, chosen=chosen, runners_up=runners_up, rejected=rejected,
        flips=search.flips(conversations, gpus) if gpus and flips else None,
        gpus_in_band=search.gpus_in_band(conversations, max_gpus),
        max_gpus=max_gpus,
    )  # fmt: skip


def usable(on: Card, share: float) -> int:
    """⌊visible · share⌋, the share to a millionth, so that 0.9 is nine tenths."""
    return on.visible_bytes * round(share * MILLION) // MILLION


def check(context: int, conversations: int, share: float, max_gpus: int, *fixed: int | None) -> None:
    """Refuse numbers that make no order."""
    whole = {"context": context, "conversations": conversations, "max_gpus": max_gpus}
    whole |= zip(("replicas", "tensor_parallel", "pipeline_parallel"), fixed, strict=True)
    for name, value in whole.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**12:
            raise ConfigError(f"{name} is {value!r}: it must be a positive integer")
    if max_gpus > 4096:
        raise ConfigError(f"max_gpus is {max_gpus}: up to 4096 cards are placed")
    if not isinstance(share, int | float) or not 1e-6 <= share <= 1:
        raise ConfigError(f"share is {share!r}: it is the part of the card's memory to use, above 0 and at most 1")


class Search:
    """All placements of one model on one kind of card at one context."""

    def __init__(self, model, on, share, context, cache_dtype, weights_dtype, calibration, fixed):
        self.model, self.on, self.context, self.fixed = model, on, context, fixed
        self.usable, self.calibration = usable(on, share), calibration
        self.ranks = Ranks(model, weights_dtype, cache_dtype, calibration)
        self.refused: dict[int, str] = {}
        self.loads: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
        self.allowed: dict[int, list[tuple[int, int]]] = {}

    def shapes(self, cards: int) -> list[tuple[int, int]]:
        """The t × p of every replica of exactly so many cards that was not ruled out beforehand."""
        if cards not in self.allowed:
            _, t_only, p_only = self.fixed
            self.allowed[cards] = [
                (t, cards // t)
                for t in range(1, cards + 1)
                if cards % t == 0 and t_only in (None, t) and p_only in (None, cards // t)
            ]
        return self.allowed[cards]

    def refusal(self, t: int, p: int) -> str:
        """Why t × p cannot be built; empty where it can."""
        if t not in self.refused:
            self.refused[t] = refusal(self.model, t, 1)
        return self.refused[t] or refusal(self.model, 1, p)

    def held(self, t: int, p: int, context: int | None = None, pool: int | None = None, calibration=None) -> int:
        """Conversations that one replica holds: the least over its stages."""
        if (t, p) not in self.loads:
            self.loads[t, p] = self.ranks.heaviest(t, p)
        pool = self.usable if pool is None else pool
        prices = self.ranks.conversation(t, self.context if context is None else context)
        pool -= sum((self.calibration if calibration is None else calibration).rank_bytes(t, p))
        least = NO_LIMIT
        for weights, caches in self.loads[t, p]:
            if weights > pool:
                return 0
            cost = sum(map(mul, caches, prices))
            if cost and (pool - weights) // cost < least:
                least = (pool - weights) // cost
        return least

    def kinds(self, cards: int, **other) -> list[Kind]:
        """Every replica of up to `cards` cards that can be built, with what it holds."""
        shapes = (shape for n in range(1, cards + 1) for shape in self.shapes(n))
        return [Kind(t, p, self.held(t, p, **other)) for t, p in shapes if not self.refusal(t, p)]

    def equal(self, cards: int, **other) -> int:
        """The most conversations of the fixed number of equal replicas on exactly so many cards."""
        each, over = divmod(cards, self.fixed[0])
        fits = [self.held(t, p, **other) for t, p in self.shapes(each) if not over and not self.refusal(t, p)]
        return self.fixed[0] * max(fits, default=0)

    def best(self, cards: int, **other) -> int:
        """The most conversations that so many cards hold."""
        return self.equal(cards, **other) if self.fixed[0] else Best(self.kinds(cards, **other), cards).held[cards]

    def holds(self, cards: int, wanted: int, **other) -> bool:
        """Whether so many cards hold so many conversations."""
        if self.fixed[0]:
            return self.equal(cards, **other) >= wanted
        return hold(self.kinds(cards, **other), cards, wanted)

    def fewest_count(self, wanted: int, max_gpus: int, **other) -> int | None:
        """The fewest cards that hold the conversations; None where max_gpus do not."""
        if self.fixed[0]:
            return next((n for n in range(1, max_gpus + 1) if self.equal(n, **other) >= wanted), None)
        reach = min(max_gpus, ENUMERATED)
        while not self.holds(reach, wanted, **other):
            if reach == max_gpus:
                return None
            reach = min(max_gpus, 2 * reach)
        held = Best(self.kinds(reach, **other), reach).held
        return next(n for n in range(1, reach + 1) if held[n] >= wanted)

    def gpus_in_band(self, wanted: int, max_gpus: int) -> tuple[int | None, int | None]:
        """Cards with the calibrated terms at the low and at the high end of their bands."""
        low, high = (
            self.fewest_count(wanted, max_gpus, calibration=self.calibration.at(end)) for end in ("low", "high")
        )
        return low, high

    def fewest(self, conversations: int, max_gpus: int):
        """(cards, the placement chosen, runners-up, rejected); cards None where max_gpus do not do."""
        gpus = self.fewest_count(conversations, max_gpus)
        upto = max_gpus if gpus is None else gpus
        rejected: list[Placed] = []
        fitting: list[Placed] = []
        counts = list(range(1, upto + 1)) if upto <= ENUMERATED else self.last_two(upto)
        for n in counts:
            found = (
                self.placements(n, conversations) if upto <= ENUMERATED else self.best_of_each_kind(n, conversations)
            )
            for placed in found:
                (fitting if n == gpus and not placed.reason else rejected).append(placed)
        fitting.sort(key=lambda placed: (-placed.conversations, max(t * p for t, p in placed.replicas)))
        once = tuple(dict.fromkeys(rejected))  # with a card idle, a placement of fewer cards comes back
        return gpus, fitting[0] if fitting else None, tuple(fitting[1:]), once

    def last_two(self, upto: int) -> list[int]:
        """The last two numbers of cards up to `upto` on which what is fixed can stand at all."""
        step = prod(n or 1 for n in self.fixed)
        return list(range(step, upto + 1, step))[-2:] or [step]

    def placements(self, cards: int, wanted: int):
        """Every placement on exactly so many cards; what cannot be built or loaded stands alone, once."""
        count = self.fixed[0]
        if count:
            shapes = self.shapes(cards // count) if cards % count == 0 else []
            for t, p in shapes:
                yield self.unbuildable(t, p, count) or self.placed((Kind(t, p, self.held(t, p)),) * count, wanted)
            return
        yield from filter(None, (self.unbuildable(t, p, 1) for t, p in self.shapes(cards)))
        kinds = [kind for kind in self.kinds(cards) if kind.held]
        for split in every_split(cards, kinds):
            yield self.placed(split, wanted)

    def best_of_each_kind(self, cards: int, wanted: int):
        """For each kind of replica, the best placement on so many cards that has one."""
        if self.fixed[0]:
            yield from self.placements(cards, wanted)
            return
        yield from filter(None, (self.unbuildable(t, p, 1) for t, p in self.shapes(cards)))
        kinds = [kind for kind in self.kinds(cards) if kind.held]
        best = Best(kinds, cards)
        with_each = ((kind, *best.split(cards - kind.cards)) for kind in kinds)
        for split in dict.fromkeys(tuple(sorted(split, key=lambda k: (-k.cards, k.p))) for split in with_each):
            yield self.placed(split, wanted)

    def unbuildable(self, t: int, p: int, count: int) -> Placed | None:
        """The rejection of a replica that breaks a rule or whose weights do not fit; None where it can be loaded."""
        reason = self.refusal(t, p)
        if not reason and not self.held(t, p):
            stage = max(self.ranks.stages(t, p), key=lambda stage: stage.fixed)
            cost = self.ranks.stage_conversation(stage, t, self.context)
            reason = (
                f"the fullest rank needs {gib(stage.fixed)} GiB before any conversation and {gib(cost)} for one, "
                f"of {gib(self.usable)} usable"
            )
        if not reason:
            return None
        shape = ((t, p),) * count
        return Placed(t * p * count, name_of(shape, self.model.L), shape, (0,) * count, 0, reason)

    def placed(self, split: tuple[Kind, ...], wanted: int) -> Placed:
        """A split with its total, and the sentence why that is too little."""
        total = sum(kind.held for kind in split)
        reason = "" if total >= wanted else f"holds {total:,} of {wanted:,} conversations{self.because(split)}"
        shapes = tuple((kind.t, kind.p) for kind in split)
        cards = sum(kind.cards for kind in split)
        return Placed(cards, name_of(shapes, self.model.L), shapes, tuple(kind.held for kind in split), total, reason)

    def because(self, split: tuple[Kind, ...]) -> str:
        """What each replica adds, or which stage binds a pipeline."""
        kinds = list(dict.fromkeys(split))
        if len(kinds) > 1:
            return ": " + ", ".join(f"{replica_name(k.t, k.p, self.model.L)} {k.held:,}" for k in kinds)
        t, p, _ = kinds[0]
        return f"; {self.fullest(t, p)} has the least room" if p > 1 else ""

    def fullest(self, t: int, p: int) -> str:
        """The stage of a pipeline that holds the fewest conversations."""

        def room(stage) -> float:
            cost = self.ranks.stage_conversation(stage, t, self.context)
            return (self.usable - stage.fixed) / cost if cost else float("inf")

        stages = self.ranks.stages(t, p)
        index = min(range(p), key=lambda i: room(stages[i]))
        layers = stages[index].stop - stages[index].start
        return f"stage {index + 1} of {p}, {layers} layer{'s' * (layers > 1)},"

    def flips(self, wanted: int, gpus: int) -> Flips:
        """Where the count of cards changes, by bisection: what fits is monotone in share and in context."""
        whole = self.on.visible_bytes

        def least_share(cards: int) -> float | None:
            found = bisect(10_000, lambda part: self.holds(cards, wanted, pool=whole * part // 10_000))
            return None if found is None else found / 10_000

        def most_context(cards: int) -> int | None:
            """Contexts of whole blocks: within a block nothing changes."""
            longest = 16
            while longest < LONGEST and self.holds(cards, wanted, context=longest * memory.BLOCK):
                longest *= 4
            over = bisect(longest, lambda n: not self.holds(cards, wanted, context=n * memory.BLOCK))
            return None if over in (None, 1) else (over - 1) * memory.BLOCK

        fewer = gpus - 1
        return Flips(
            least_share(gpus), most_context(gpus), self.best(gpus),
            least_share(fewer) if fewer else None, most_context(fewer) if fewer else None,
            self.best(fewer) if fewer else 0, self.best(gpus + 1),
        )  # fmt: skip


def bisect(most: int, holds) -> int | None:
    """The least whole number from 1 to `most` for which a condition that stays true is true; None: never."""
    if not holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def gib(count: int) -> str:
    """Bytes as GiB with two decimals."""
    return f"{count / 2**30:.2f}"


def name_of(shapes: tuple[tuple[int, int], ...], L: int) -> str:
    """A placement in words: "tensor 2 + single", "pipeline 11/11/10", "3 × single"."""
    words = []
    for shape in dict.fromkeys(shapes):
        count = shapes.count(shape)
        words.append((f"{count} × " if count > 1 else "") + replica_name(*shape, L))
    return " + ".join(words)


def replica_name(t: int, p: int, L: int) -> str:
    """One replica in words."""
    if t == p == 1:
        return "single"
    counts = layer_counts(L, p)
    layers = "/".join(map(str, counts)) if p <= 4 else f"of {p} stages"
    return " × ".join([f"tensor {t}"] * (t > 1) + [f"pipeline {layers}"] * (p > 1))
