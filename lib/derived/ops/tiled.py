"""Attention tile by tile: the same result as `ops.attention`, and never an array of n × m numbers."""

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from derived.errors import ShapeError
from derived.ops.arrays import Array, device_of, inverse_sqrt, swap_last, widen_together
from derived.ops.attention import cap_slope, masked_scores, where_read
from derived.ops.contract import shaped
from derived.ops.heads import group_size, repeat_heads, sum_groups
from derived.ops.masks import cut, may_read_tile, transposed, weighted_sum
from derived.ops.online import Partial, finish, merge, partial_attention


def tiles(n: int, m: int, B_q: int, B_t: int, *, causal: bool = False, window: int | None = None):
    """List the tiles that hold at least one pair that `causal` and `window` let be read, as (rows, keys) of ranges.

    Rows first, keys in ascending order; the others are skipped whole. The last tile of a side may be shorter.
    The positions p − window + 1 to p (or p + window − 1) of consecutive queries leave no gap, so what a tile
    of queries may read is one interval. Raises ShapeError if a tile has no width.

    Source: Dao 2023, section 3.1; chapter 11.
    """
    if B_q < 1 or B_t < 1:
        raise ShapeError(f"tiles: B_q = {B_q} queries and B_t = {B_t} keys a tile; both must be at least 1.")
    found = []
    for rows in _blocks(n, B_q) if n else []:
        first, last = rows.start + m - n, rows.stop - 1 + m - n  # positions
        low = 0 if window is None else max(0, first - window + 1)
        high = last + 1 if causal else m if window is None else last + window
        high = min(m, high)
        found += [(rows, range(j, min(j + B_t, m))) for j in range(low // B_t * B_t, high, B_t) if low < high]
    return found


@shaped
def tiled_attention(
    q: Float[Array, "*batch n d_k"],
    k: Float[Array, "*kv_batch m d_k"],
    v: Float[Array, "*kv_batch m d_v"],
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | int | None = None,
    softcap: float | int | None = None,
    B_q: int = 128,
    B_t: int = 128,
) -> Float[Array, "*batch n d_v"]:
    """Average the values under softmax(Q Kᵀ / √d_k), tile by tile: `tiled_attention_vjp` without the way back."""
    options = {"causal": causal, "window": window, "mask": mask, "bias": bias, "scale": scale, "softcap": softcap}
    return tiled_attention_vjp(q, k, v, **options, B_q=B_q, B_t=B_t)[0]


@shaped
def tiled_attention_vjp(
    q: Float[Array, "*batch n d_k"],
    k: Float[Array, "*kv_batch m d_k"],
    v: Float[Array, "*kv_batch m d_v"],
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | int | None = None,
    softcap: float | int | None = None,
    B_q: int = 128,
    B_t: int = 128,
):
    """Do what `attention_vjp` does, with all its arguments and edges, holding B_q × B_t scores a head at a time.

        forward: merge the triples (c, l, o) of the key tiles;  lse = c + ln l
        backward: A = exp(S′ − lse), anew for each tile;  rowsum(dA ∘ A) = rowsum(dO ∘ O)

    Shapes: q (*batch, n, d_k), k (*kv_batch, m, d_k), v (*kv_batch, m, d_v) -> o (*batch, n, d_v);
    pullback: do (*batch, n, d_v) -> dq, dk, dv, shaped like q, k, v.

    Memory beyond the arguments: q, k and v once more in half precision, o, and one number a query, so O(n + m).
    A mask or bias of (n, m) is the caller's own and is read in tiles. Tiles that `causal` or `window` forbid
    are not computed. FLOPs stay n · m, and the backward computes the scores a second time.

    Raises what `attention_vjp` raises, and ShapeError if a tile has no width.

    Source: Dao et al. 2022, algorithms 1 and 4; chapter 11; the identity is (5.12).
    """
    xp = array_namespace(q, k, v)
    groups, n, m = group_size(q, k), q.shape[-2], k.shape[-2]
    scale = inverse_sqrt(q.shape[-1]) if scale is None else scale
    visited = tiles(n, m, B_q, B_t, causal=causal, window=window)
    Q, K, V = widen_together(q, k, v)

    def tile(rows, keys):
        """q, k, v of one tile, which of its pairs may be read, and its scores before and after the mask."""
        q_t, k_t, v_t = _rows(Q, rows), repeat_heads(_rows(K, keys), groups), repeat_heads(_rows(V, keys), groups)
        reads = may_read_tile(q, m, rows, keys, causal=causal, window=window, mask=mask, bias=bias)
        S_scaled = q_t @ swap_last(k_t) * scale
        S_masked = masked_scores(S_scaled, softcap, None if bias is None else cut(bias, rows, keys), reads)
        return q_t, k_t, v_t, reads, S_scaled, S_masked

    tile(range(0), range(0))  # what does not fit is refused even where no tile is visited
    sums = {rows: _no_keys(_rows(Q, rows), v.shape[-1]) for rows in _blocks(n, B_q)}
    for rows, keys in visited:
        _, _, v_t, reads, _, S_masked = tile(rows, keys)
        sums[rows] = merge(sums[rows], partial_attention(S_masked, v_t, reads))
    done = {rows: finish(x) for rows, x in sums.items()}
    o = xp.concat([o for o, _ in done.values()], axis=-2)

    def pullback(do: Float[Array, "*batch n d_v"]) -> tuple:
        """dV += Aᵀ dO,  dA = dO Vᵀ,  dS′ = A ∘ (dA − rowsum(dO ∘ O)),  dQ += dS K,  dK += dSᵀ Q, tile by tile."""
        dQ = {rows: xp.zeros_like(_rows(Q, rows)) for rows in sums}
        dK = {keys: xp.zeros_like(_rows(K, keys)) for keys in _blocks(m, B_t)}
        dV = {keys: xp.zeros_like(_rows(V, keys)) for keys in _blocks(m, B_t)}
        for rows, keys in visited:
            q_t, k_t, v_t, reads, S_scaled, S_masked = tile(rows, keys)
            O, lse = done[rows]
            dO = xp.astype(_rows(do, rows), O.dtype)
            lse = xp.where(lse == -xp.inf, xp.zeros_like(lse), lse)[..., None]  # no keys: exp(−inf − 0) is 0
            A = where_read(xp.exp(S_masked - lse), reads)
            dA = where_read(dO @ swap_last(v_t), reads)
            dS_masked = where_read(A * (dA - xp.sum(dO * O, axis=-1, keepdims=True)), reads)
            dS = where_read(dS_masked * cap_slope(S_scaled, softcap), reads) * scale
            dV[keys] = dV[keys] + sum_groups(weighted_sum(swap_last(A), dO, transposed(reads)), groups)
            dQ[rows] = dQ[rows] + weighted_sum(dS, k_t, reads)
            dK[keys] = dK[keys] + sum_groups(weighted_sum(swap_last(dS), q_t, transposed(reads)), groups)
        return _joined(dQ, q), _joined(dK, k), _joined(dV, v)

    return xp.astype(o, q.dtype), pullback


def _blocks(count: int, width: int) -> list[range]:
    """0 to count in ranges of this width; for a count of 0, one empty range."""
    return [range(i, min(i + width, count)) for i in range(0, count, width)] or [range(0)]


def _rows(x: Array, rows: range) -> Array:
    """Some tokens of all heads."""
    return x[..., rows.start : rows.stop, :]


def _no_keys(q: Array, d_v: int) -> Partial:
    """The triple of no keys, for these queries."""
    xp, lead = array_namespace(q), q.shape[:-1]
    number = {"dtype": q.dtype, "device": device_of(q)}
    return Partial(xp.full(lead, -xp.inf, **number), xp.zeros(lead, **number), xp.zeros((*lead, d_v), **number))


def _joined(blocks: dict[range, Array], like: Array) -> Array:
    """The blocks of a gradient under one another, in the argument's dtype."""
    xp = array_namespace(like)
    return xp.astype(xp.concat(list(blocks.values()), axis=-2), like.dtype)
