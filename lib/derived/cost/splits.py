"""Ways to split N cards into replicas: all of them for few cards, the best of them for many."""

from derived.cost.record import Record


class Kind(Record):
    """A replica of t × p cards and the conversations it holds; `held` 0: it cannot be loaded."""

    t: int
    p: int
    held: int

    @property
    def cards(self) -> int:
        """t · p."""
        return self.t * self.p


def every_split(cards: int, kinds: list[Kind]):
    """Every multiset of kinds that fills `cards`, as a tuple from the largest replica to the smallest."""
    kinds = sorted(kinds, key=lambda kind: (-kind.cards, kind.p))

    def fill(left: int, start: int, taken: tuple[Kind, ...]):
        if left == 0:
            yield taken
        for i in range(start, len(kinds)):
            if kinds[i].cards <= left:
                yield from fill(left - kinds[i].cards, i, (*taken, kinds[i]))

    yield from fill(cards, 0, ())


def hold(kinds: list[Kind], cards: int, wanted: int) -> bool:
    """Whether some split of `cards` holds `wanted`: two cheap bounds first, the recursion only between them.

    Above: no split holds more than the best rate per card times the cards. Below: as many of the kind with that rate
    as fit, and the best single replica in what is left.
    """
    kinds = [kind for kind in kinds if kind.held]
    if not kinds:
        return False
    best = max(kinds, key=lambda kind: kind.held / (kind.t * kind.p))
    if best.held * cards < wanted * best.cards:
        return False
    count, left = divmod(cards, best.cards)
    rest = max((kind.held * (left // kind.cards) for kind in kinds if kind.t * kind.p <= left), default=0)
    return count * best.held + rest >= wanted or Best(kinds, cards).held[cards] >= wanted


class Best:
    """The most conversations that n cards hold, for every n: f(n) = max over kinds of held + f(n − cards).

    A kind that a split of smaller ones matches is dropped, so few remain and hundreds of cards cost little.
    Cards that no kind fills stay idle.
    """

    def __init__(self, kinds: list[Kind], cards: int):
        largest: dict[int, Kind] = {}
        for kind in kinds:
            if kind.held and (kind.cards not in largest or kind.held > largest[kind.cards].held):
                largest[kind.cards] = kind
        self.held = [0] * (cards + 1)
        self.last: list[Kind | None] = [None] * (cards + 1)
        useful: list[tuple[Kind, int, int]] = []
        for n in range(1, cards + 1):
            self.held[n] = self.held[n - 1]
            for kind, size, each in useful:
                total = each + self.held[n - size]
                if total > self.held[n]:
                    self.held[n], self.last[n] = total, kind
            alone = largest.get(n)
            if alone and alone.held > self.held[n]:
                self.held[n], self.last[n] = alone.held, alone
                useful.append((alone, n, alone.held))

    def split(self, n: int) -> tuple[Kind, ...]:
        """The replicas of the best split of n cards, largest first."""
        taken = []
        while n > 0:
            kind = self.last[n]
            if kind is None:
                n -= 1
                continue
            taken.append(kind)
            n -= kind.cards
        return tuple(sorted(taken, key=lambda kind: (-kind.cards, kind.p)))
