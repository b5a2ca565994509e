"""What the kernels share: reading a tile, which pairs of it may be read, and which tiles hold any such pair.

Positions are those of `derived.ops.masks`: queries are aligned to the last key, query i of n stands at i + m − n, and a
window of w counts the query itself. Queries i and keys j are counted within their own sequence.

    causal, n = 3, m = 5     causal, window 2      window 2

        j 0 1 2 3 4              j 0 1 2 3 4           j 0 1 2 3 4
    i 0   1 1 1 . .          i 0   . 1 1 . .       i 0   . 1 1 1 .
    i 1   1 1 1 1 .          i 1   . . 1 1 .       i 1   . . 1 1 1
    i 2   1 1 1 1 1          i 2   . . . 1 1       i 2   . . . 1 1

A tile is *whole* if each of its pairs may be read and none lies beyond an end: its loads and scores need no test.
Chapter 11.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # 1 / ln 2: the hardware has 2^x, so scores are kept in units of ln 2


@triton.jit
def turn_of(tiles, together):
    """Which tile and which head this program takes, of `tiles` tiles of each head: both counted from 0.

    Programs start in the order of their numbers. Heads go in sections of `together` (the last may have fewer), and in a
    section the first tiles of all its heads come before the second ones: those that cost most can so start first.

        together = 2, tiles = 3, five heads      program  0  1  2  3  4  5 | 6  7  8  9 10 11 | 12 13 14
                                                 tile     0  0  1  1  2  2 | 0  0  1  1  2  2 |  0  1  2
                                                 head     0  1  0  1  0  1 | 2  3  2  3  2  3 |  4  4  4
    """
    place = tl.program_id(0)
    head = place // (together * tiles) * together
    heads = tl.minimum(together, tl.num_programs(0) // tiles - head)
    within = place - head * tiles
    return within // heads, head + within % heads


@triton.jit
def load_tile(
    x, first, count, stride_row, stride_col,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, P: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Rows first … first + ROWS − 1 of x, as (ROWS, P): zeros beyond row `count` and beyond column WIDTH.

    With WHOLE no row lies beyond `count`, and none is tested. Offsets are 64 bits wide: an array may hold more than
    2³¹ numbers.
    """
    rows, cols = tl.arange(0, ROWS), tl.arange(0, P)
    at = x + first.to(tl.int64) * stride_row + rows.to(tl.int64)[:, None] * stride_row
    at += cols.to(tl.int64)[None, :] * stride_col
    if WHOLE and WIDTH == P:
        tile = tl.load(at)
    elif WHOLE:
        tile = tl.load(at, mask=cols[None, :] < WIDTH, other=0.0)
    elif WIDTH == P:
        tile = tl.load(at, mask=(first + rows < count)[:, None], other=0.0)
    else:
        tile = tl.load(at, mask=(first + rows < count)[:, None] & (cols[None, :] < WIDTH), other=0.0)
    return tile


@triton.jit
def store_tile(x, tile, first, count, stride_row, stride_col, ROWS: tl.constexpr, WIDTH: tl.constexpr, P: tl.constexpr):
    """Write a tile (ROWS, P) to rows first … of x, but nothing beyond row `count` or column WIDTH."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, P)
    at = x + (first + rows).to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
    inside = (first + rows < count)[:, None] & (cols[None, :] < WIDTH)
    tl.store(at, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def may_read(i, j, n, m, w, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """May query i read key j? i and j are tiles of numbers that broadcast against each other."""
    ahead = j - (i + m - n)
    reads = (i < n) & (j < m)
    if CAUSAL:
        reads = reads & (ahead <= 0)
    if WINDOWED:
        reads = reads & (ahead > -w)
        if not CAUSAL:
            reads = reads & (ahead < w)
    return reads


@triton.jit
def allowed(mask, i, j, n, m, stride_n, stride_m):
    """What the caller's own mask says of query i and key j; False beyond its ends."""
    at = mask + i.to(tl.int64) * stride_n + j.to(tl.int64) * stride_m
    return tl.load(at, mask=(i < n) & (j < m), other=0) != 0


@triton.jit
def keys_of(first, ROWS: tl.constexpr, n, m, w, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, B_t: tl.constexpr):
    """What the queries first … first + ROWS − 1 may read: key tiles in [low, high), those in [left, right) whole.

    The positions p − w + 1 to p of consecutive queries leave no gap, so both are intervals: the first is the union
    over the queries, the second the intersection. low, left and right are multiples of B_t, or equal to high.
    """
    oldest = first + m - n  # the position of the first query, and of the last one
    newest = tl.minimum(first + ROWS, n) - 1 + m - n
    low, left, high, right = 0, 0, m, m
    if WINDOWED:
        low = tl.maximum(oldest - w + 1, 0) // B_t * B_t
        left = (tl.maximum(newest - w + 1, 0) + B_t - 1) // B_t * B_t
        if not CAUSAL:
            high = tl.minimum(newest + w, m)
            right = tl.minimum(oldest + w, m)
    if CAUSAL:
        high = tl.minimum(newest + 1, m)
        right = tl.minimum(oldest + 1, m)
    high = tl.maximum(high, low)
    left = tl.minimum(left, high)
    right = tl.maximum(tl.maximum(right, 0) // B_t * B_t, left)
    return low, left, right, high


@triton.jit
def queries_of(first, COLS: tl.constexpr, n, m, w, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, B_q: tl.constexpr):
    """Who may read the keys first … first + COLS − 1: query tiles in [low, high), those in [left, right) whole."""
    oldest = first - (m - n)  # the query that stands where the first key stands, and the last one
    newest = tl.minimum(first + COLS, m) - 1 - (m - n)
    low, left, high, right = 0, 0, n, n
    if CAUSAL:
        low = tl.maximum(oldest, 0) // B_q * B_q
        left = (tl.maximum(newest, 0) + B_q - 1) // B_q * B_q
    if WINDOWED:
        high = tl.minimum(newest + w, n)
        right = tl.minimum(oldest + w, n)
        if not CAUSAL:
            low = tl.maximum(oldest - w + 1, 0) // B_q * B_q
            left = (tl.maximum(newest - w + 1, 0) + B_q - 1) // B_q * B_q
    high = tl.maximum(high, low)
    left = tl.minimum(left, high)
    right = tl.maximum(tl.maximum(right, 0) // B_q * B_q, left)
    return low, left, right, high


@triton.jit
def sound(x):
    """x with 0 in place of what is nan or infinite: for rows whose weights are nan already for all who read them."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def contained(a, x):
    """A tile of weights a and of rows x, changed so that in a x a nan or inf of row j reaches only those who weigh it.

    A weight of 0 does not hide a nan, since 0 · nan is nan. So such entries of x become 0, and the weights other than 0
    of their row become nan: a broken value shows in the whole row of the product, and is hidden from no reader.

    Shapes: a (R, C), x (C, P). Chapter 4, (4.9), has the form that keeps other columns whole.
    """
    broken = tl.min((tl.abs(x) < float("inf")).to(tl.int32), 1) == 0
    return tl.where(broken[None, :] & (a != 0), float("nan"), a), sound(x)
