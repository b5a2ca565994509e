"""Score pairs: how many (query, key) cells one head computes under each mask, exactly.

Every cost of attention is a number of pairs times a width. Causal masks are aligned to the last key: query i of n
reads key j of m when j ≤ i + m − n, so with n > m the first n − m queries read nothing.

Chapters: 10, 11 and 12.
"""

from derived.cost._checks import formula, least, quotient, tiles


@formula
def full_pairs(n, m):
    """Pairs of a head without a mask: every query reads every key, n m.

    Source: chapter 10.
    """
    return n * m


@formula
def causal_pairs(n, m):
    """Pairs that a causal mask lets through, counted cell by cell.

        Σ_{i=1}^{r} (m − r + i) = r (2m − r + 1) / 2,    r = min(n, m)

    The last r queries read m − r + 1, …, m keys; with n = m that is n (n + 1) / 2, not n² / 2.

    Source: chapter 10.
    """
    r = least(n, m)
    return quotient(r * (2 * m - r + 1), 2)


@formula
def window_pairs(n, m, w):
    """Pairs of a causal sliding window: a query reads at most w keys, itself included.

        T(m) − T(m − r),    T(x) = Σ_{j=1}^{x} min(j, w) = y (y + 1) / 2 + (x − y) w,
        r = min(n, m),      y = min(x, w)

    The queries that read anything see 1 + m − r, …, m keys, each number cut at w.

    Source: chapters 10 and 13.
    """
    r = least(n, m)
    return _cut_sum(m, w) - _cut_sum(m - r, w)


def _cut_sum(x, w):
    """Σ_{j=1}^{x} min(j, w)."""
    y = least(x, w)
    return quotient(y * (y + 1), 2) + (x - y) * w


@formula
def tiled_causal_pairs(n, B_t):
    """Pairs that a causal kernel computes when it skips whole tiles of B_t keys and cuts the last one at n.

        [n (n + B_t) − ρ (B_t − ρ)] / 2,    ρ = n mod B_t

    Row i (from 1) pays for all keys of every tile it touches, min(n, B_t ⌈i / B_t⌉). With n = g B_t + ρ the g whole
    tiles of rows give B_t² g (g + 1) / 2 and the last ρ rows ρ n; the sum is the line above. If B_t divides n, it is
    n (n + B_t) / 2.

    Exact when the tile of queries divides B_t; if B_t divides the tile of queries instead, put that size here:
    the larger of the two decides.

    Source: chapters 10 and 11.
    """
    rest = n % B_t
    return quotient(n * (n + B_t) - rest * (B_t - rest), 2)


@formula
def padded_causal_pairs(n, B_t):
    """Pairs that a causal kernel computes in whole square tiles, the last ones padded to B_t.

    B_t² T (T + 1) / 2,    T = ⌈n / B_t⌉

    Source: chapter 11.
    """
    T = tiles(n, B_t)
    return quotient(B_t * B_t * T * (T + 1), 2)


@formula
def uncached_token_passes(n):
    """Token passes to write n tokens one at a time without a cache: the prefix is run again each time.

    Σ_{i=1}^{n} i = n (n + 1) / 2

    Source: chapter 12.
    """
    return quotient(n * (n + 1), 2)


@formula
def uncached_full_pairs(n):
    """Pairs a head computes over n steps without a cache, each step the full square of its prefix; about n³ / 3.

    Σ_{i=1}^{n} i² = n (n + 1) (2n + 1) / 6

    Source: chapter 12.
    """
    return quotient(n * (n + 1) * (2 * n + 1), 6)


@formula
def uncached_causal_pairs(n):
    """Pairs a head computes over n steps without a cache, each step its prefix's causal triangle; about n³ / 6.

    Σ_{i=1}^{n} i (i + 1) / 2 = n (n + 1) (n + 2) / 6

    Source: chapter 12.
    """
    return quotient(n * (n + 1) * (n + 2), 6)
