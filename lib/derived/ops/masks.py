"""Who may read whom: causal masks, sliding windows, and sums in which what may not be read leaves no trace.

True means "may read". Queries are aligned to the last key, as if the first m − n tokens were cached:
query i of n stands at position i + m − n.

    causal, n = 3, m = 5     causal, window 2      causal, n = 3, m = 2

        j 0 1 2 3 4              j 0 1 2 3 4           j 0 1
    i 0   1 1 1 . .          i 0   . 1 1 . .       i 0   . .   <- reads nothing: zeros
    i 1   1 1 1 1 .          i 1   . . 1 1 .       i 1   1 .
    i 2   1 1 1 1 1          i 2   . . . 1 1       i 2   1 1

A window of w counts the query's own position; without `causal` it reaches w − 1 to both sides.
"""

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from derived.errors import ShapeError
from derived.ops.arrays import Array, device_of, swap_last


def may_read(q: Array, m: int, *, causal: bool, window: int | None, mask, bias) -> Array | None:
    """Boolean (n, m), or wider by the leading axes of mask and bias: may query i read key j? None if all may.

    A bias of −inf forbids what it touches. Raises ShapeError if the window holds no token or a mask does not broadcast.

    Source: chapter 4, (4.8).
    """
    whole = range(q.shape[-2]), range(m)
    return may_read_tile(q, m, *whole, causal=causal, window=window, mask=mask, bias=bias)


def may_read_tile(q: Array, m: int, rows: range, keys: range, *, causal: bool, window: int | None, mask, bias):
    """The part of `may_read` for some queries and keys, without the rest: boolean (rows, keys), or wider; or None.

    q is the whole array of queries: its length places them. Chapter 11.
    """
    xp, n = array_namespace(q), q.shape[-2]
    if window is not None and window < 1:
        raise ShapeError(f"attention: window = {window}; a window counts the query itself, so it is at least 1.")
    allowed = []
    if causal or window is not None:
        i = xp.arange(rows.start, rows.stop, device=device_of(q))[:, None] + (m - n)
        j = xp.arange(keys.start, keys.stop, device=device_of(q))[None, :]
        if causal:
            allowed.append(j <= i)
        if window is not None:
            allowed.append(j > i - window)
            if not causal:
                allowed.append(j < i + window)
    if mask is not None:
        allowed.append(cut(_fitting("mask", mask, q, m), rows, keys))
    if bias is not None:
        allowed.append(cut(_fitting("bias", bias, q, m), rows, keys) != -xp.inf)
    if not allowed:
        return None
    reads = allowed[0]
    for other in allowed[1:]:
        reads = reads & other
    return (
        reads[(None,) * (2 - reads.ndim) + (...,)] if reads.ndim < 2 else reads
    )  # rows and keys are axes of their own


def cut(x: Array, rows: range, keys: range) -> Array:
    """The rows and keys of an array that broadcasts to (*batch, n, m); an axis of size 1 stays as it is."""
    if x.ndim > 0 and x.shape[-1] != 1:
        x = x[..., keys.start : keys.stop]
    if x.ndim > 1 and x.shape[-2] != 1:
        x = x[..., rows.start : rows.stop, :]
    return x


def _fitting(name: str, x: Array, q: Array, m: int) -> Array:
    """x if it broadcasts to (*batch, n, m); ShapeError if it does not."""
    full = (*q.shape[:-1], m)
    tail = full[len(full) - x.ndim :] if x.ndim <= len(full) else None
    if tail is None or any(given not in (1, wanted) for given, wanted in zip(x.shape, tail, strict=True)):
        raise ShapeError(
            f"attention: {name} has shape {tuple(x.shape)}, which does not broadcast to {full}, one entry a query and "
            "key; insert axes of size 1 where it is the same for all."
        )
    return x


def weighted_sum(a: Float[Array, "*batch n m"], x: Float[Array, "*batch m d"], reads: Bool[Array, "..."] | None):
    """A x, in which row j of x adds to row i only if i may read j, even if x_j is nan or infinite.

    Shapes: a (*batch, n, m), x (*batch, m, d), reads broadcastable to a, or None -> (*batch, n, d).

    A weight of 0 does not hide a nan, since 0 · nan is nan. So rows with such values are added one by one,
    to the queries that may read them alone; there are none of them in a healthy run.

    Source: chapter 4, (4.9).
    """
    xp = array_namespace(a, x)
    if reads is None:
        return a @ x
    broken = ~xp.isfinite(x)
    if not bool(xp.any(broken)):
        return a @ x
    y = a @ xp.where(broken, xp.zeros_like(x), x)
    reads = xp.broadcast_to(reads, a.shape)
    rows = xp.any(xp.reshape(xp.moveaxis(broken, -2, 0), (x.shape[-2], -1)), axis=-1)
    for j in range(x.shape[-2]):
        if bool(rows[j]):
            seen = reads[..., :, j : j + 1] & broken[..., j : j + 1, :]
            y = y + a[..., :, j : j + 1] * xp.where(seen, x[..., j : j + 1, :], xp.zeros_like(x[..., j : j + 1, :]))
    return y


def transposed(reads: Array | None) -> Array | None:
    """The same question asked by the keys: may key j be read by query i?"""
    return None if reads is None else swap_last(reads)
