"""How many cards to book: every placement of replicas on cards, the one that holds most, and why the others fail.

A replica carries all weights and is t tensor-parallel ranks × p pipeline stages. On each of its ranks

    pool = ⌊visible · share⌋ − weights − rotary tables − activation − non-torch,
    conversations = ⌊pool / cache bytes of one conversation, in whole blocks⌋,

and the least over its stages binds the replica. The share is of the card's total memory (vLLM's rule). The bound that
divides all bytes by the card is below every placement: weights once and no remainder wasted.

Chapter 13.
"""

from typing import NamedTuple

from derived.cost import memory
from derived.cost.hardware import NOTHING, Calibration, Card, card, custom
from derived.cost.spec.fields import ConfigError
from derived.cost.spec.model import Model
from derived.cost.splits import Best, Kind, every_split
from derived.cost.stages import Ranks, Stage, refusal

ENUMERATED = 16
"""Up to so many cards every split is tried; beyond, the best split comes from a recursion over kinds of replica."""

MILLION = 10**6


class Placed(NamedTuple):
    """One way to split cards into replicas: what it holds, and in a sentence why it fails (empty: it does not)."""

    gpus: int
    name: str
    replicas: tuple[tuple[int, int], ...]  # (tensor parallel, pipeline stages) of each
    held: tuple[int, ...]  # conversations of each replica
    conversations: int
    reason: str = ""


class Flips(NamedTuple):
    """Where the count of cards changes; None where it does not within sense.

    With the cards booked: the least share, the longest context, the most conversations that still fit. With one card
    fewer: the least share, the longest context, the most conversations with which it would have done.
    """

    share: float
    context: int
    conversations: int
    share_one_fewer: float | None
    context_one_fewer: int | None
    conversations_one_fewer: int


class Order(NamedTuple):
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
    gpus, chosen, runners_up, rejected = search.fewest(conversations, bound, max_gpus)
    return Order(
        model, on, context, conversations, share, dtype, weights_dtype or model.weights, calibration, weights, cache,
        lower_bound_gpus=bound,
        cards_worth=total / usable(on, share),
        gpus=gpus, chosen=chosen, runners_up=runners_up, rejected=rejected,
        flips=search.flips(conversations, gpus) if gpus and flips else None,
        gpus_in_band=band(search, conversations, bound, max_gpus),
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


def band(search: "Search", conversations: int, bound: int, max_gpus: int) -> tuple[int | None, int | None]:
    """Cards with the calibrated terms at the low and at the high end of their bands."""
    ends = []
    for end in ("low", "high"):
        other = search.calibrated(search.ranks.calibration.at(end))
        ends.append(other.fewest_count(conversations, bound, max_gpus))
    return tuple(ends)


class Search:
    """All placements of one model on one kind of card at one context."""

    def __init__(self, model, on, share, context, cache_dtype, weights_dtype, calibration, fixed):
        self.given = (model, on, share, context, cache_dtype, weights_dtype, calibration, fixed)
        self.model, self.on, self.context, self.fixed = model, on, context, fixed
        self.usable = usable(on, share)
        self.ranks = Ranks(model, weights_dtype, cache_dtype, calibration)
        self.refused: dict[int, str] = {}
        self.distinct: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}

    def calibrated(self, calibration: Calibration) -> "Search":
        """The same search with other calibrated terms."""
        return Search(*self.given[:6], calibration, self.given[7])

    def shapes(self, cards: int) -> list[tuple[int, int]]:
        """The t × p of every replica of so many cards that was not ruled out beforehand."""
        _, t_only, p_only = self.fixed
        return [
            (t, cards // t)
            for t in range(1, cards + 1)
            if cards % t == 0 and t_only in (None, t) and p_only in (None, cards // t)
        ]

    def refusal(self, t: int, p: int) -> str:
        """Why t × p cannot be built; empty where it can."""
        if t not in self.refused:
            self.refused[t] = refusal(self.model, t, 1)
        return self.refused[t] or refusal(self.model, 1, p)

    def stage_prices(self, t: int, p: int) -> list[tuple[int, tuple[int, ...]]]:
        """(fixed bytes, caches) of the stages that differ."""
        if (t, p) not in self.distinct:
            heaviest: dict[tuple[int, ...], int] = {}
            for stage in self.ranks.stages(t, p):
                heaviest[stage.caches] = max(stage.fixed, heaviest.get(stage.caches, 0))
            self.distinct[t, p] = [(fixed, caches) for caches, fixed in heaviest.items()]
        return self.distinct[t, p]

    def held(self, t: int, p: int, context: int | None = None, memory_used: int | None = None) -> int:
        """Conversations that one replica holds: the least over its stages."""
        pool = self.usable if memory_used is None else memory_used
        prices = self.ranks.conversation(t, self.context if context is None else context)
        most = []
        for fixed, caches in self.stage_prices(t, p):
            if fixed > pool:
                return 0
            cost = sum(count * price for count, price in zip(caches, prices, strict=True))
            if cost:
                most.append((pool - fixed) // cost)
        return min(most, default=10**12)  # no stage keeps anything a conversation

    def kinds(self, cards: int, **other) -> list[Kind]:
        """Every replica of up to `cards` cards that can be built, with what it holds."""
        shapes = (shape for n in range(1, cards + 1) for shape in self.shapes(n))
        return [Kind(t, p, self.held(t, p, **other)) for t, p in shapes if not self.refusal(t, p)]

    def best(self, cards: int, **other) -> int:
        """The most conversations that so many cards hold."""
        if self.fixed[0]:
            each, over = divmod(cards, self.fixed[0])
            fits = [self.held(t, p, **other) for t, p in self.shapes(each) if not over and not self.refusal(t, p)]
            return self.fixed[0] * max(fits, default=0)
        return Best(self.kinds(cards, **other), cards).held[cards]

    def fewest_count(self, conversations: int, bound: int, max_gpus: int) -> int | None:
        """The fewest cards that hold the conversations; None where max_gpus do not."""
        if self.fixed[0]:
            return next((n for n in range(bound, max_gpus + 1) if self.best(n) >= conversations), None)
        reach = min(max_gpus, ENUMERATED)
        while True:
            held = Best(self.kinds(reach), reach).held
            for n in range(1, reach + 1):
                if held[n] >= conversations:
                    return n
            if reach >= max_gpus:
                return None
            reach = min(max_gpus, 4 * reach)

    def fewest(self, conversations: int, bound: int, max_gpus: int):
        """(cards, the placement chosen, runners-up, rejected); cards None where max_gpus do not do."""
        gpus = self.fewest_count(conversations, bound, max_gpus)
        upto = max_gpus if gpus is None else gpus
        rejected, fitting = [], []
        for n in range(1, min(upto, ENUMERATED) + 1):
            for placed in self.placements(n, conversations):
                (fitting if n == gpus and not placed.reason else rejected).append(placed)
        if upto > ENUMERATED:
            for n in (upto - 1, upto):
                for placed in self.best_of_each_kind(n, conversations):
                    (fitting if n == gpus and not placed.reason else rejected).append(placed)
        fitting.sort(key=lambda placed: (-placed.conversations, max(t * p for t, p in placed.replicas)))
        return gpus, fitting[0] if fitting else None, tuple(fitting[1:]), tuple(rejected)

    def placements(self, cards: int, wanted: int):
        """Every placement on exactly so many cards; what cannot be built or loaded stands alone, once."""
        count = self.fixed[0]
        if count:
            shapes = self.shapes(cards // count) if cards % count == 0 else []
            for t, p in shapes:
                yield self.unbuildable(t, p, count) or self.placed((Kind(t, p, self.held(t, p)),) * count, wanted)
            return
        for t, p in self.shapes(cards):
            cannot = self.unbuildable(t, p, 1)
            if cannot:
                yield cannot
        kinds = [kind for kind in self.kinds(cards) if kind.held]
        for split in every_split(cards, kinds):
            yield self.placed(split, wanted)

    def best_of_each_kind(self, cards: int, wanted: int):
        """For each kind of replica, the best placement on so many cards that has one."""
        if self.fixed[0]:
            yield from self.placements(cards, wanted)
            return
        kinds = [kind for kind in self.kinds(cards) if kind.held]
        best = Best(kinds, cards)
        for kind in kinds:
            rest = best.split(cards - kind.cards)
            yield self.placed(tuple(sorted((kind, *rest), key=lambda k: (-k.cards, k.p))), wanted)

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
        reason = "" if total >= wanted else f"holds {total:,} of {wanted:,} conversations"
        shapes = tuple((kind.t, kind.p) for kind in split)
        cards = sum(kind.cards for kind in split)
        return Placed(cards, name_of(shapes, self.model.L), shapes, tuple(kind.held for kind in split), total, reason)

    def stages(self, t: int, p: int) -> list[Stage]:
        """The stages of a replica, for whoever explains it."""
        return self.ranks.stages(t, p)

    def flips(self, conversations: int, gpus: int) -> Flips:
        """Where the count of cards changes, by bisection: what fits is monotone in share and in context."""

        def least_share(cards: int) -> float | None:
            whole = self.on.visible_bytes
            found = bisect(
                MILLION, lambda parts: self.best(cards, memory_used=whole * parts // MILLION) >= conversations
            )
            return None if found is None else found / MILLION

        def most_context(cards: int) -> int | None:
            too_long = bisect(2**24, lambda n: self.best(cards, context=n) < conversations)
            return None if too_long == 1 else (too_long or 2**24 + 1) - 1

        fewer = gpus - 1
        return Flips(
            least_share(gpus), most_context(gpus), self.best(gpus),
            least_share(fewer) if fewer else None, most_context(fewer) if fewer else None,
            self.best(fewer) if fewer else 0,
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
    from derived.cost.stages import layer_counts

    if t == p == 1:
        return "single"
    counts = layer_counts(L, p)
    layers = "/".join(map(str, counts)) if p <= 4 else f"of {p} stages"
    return " × ".join([f"tensor {t}"] * (t > 1) + [f"pipeline {layers}"] * (p > 1))
