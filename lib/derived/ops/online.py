"""Online softmax: attention over some of the keys as a triple, and the merge of two such triples.

A triple (c, l, o) says all that later keys need to know of earlier ones: the largest score, the sum of
exponentials and the sum of exponentials times values, both after c was subtracted. The merge is associative
and commutative in real arithmetic, so keys may arrive in any order and any grouping; rounding breaks
associativity by units in the last place.

Source: Milakov and Gimelshein 2018, section 3; chapter 11.
"""

from typing import NamedTuple

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from derived.errors import ShapeError
from derived.ops.arrays import Array
from derived.ops.contract import shaped
from derived.ops.masks import weighted_sum
from derived.ops.softmax import shifted_exp


class Partial(NamedTuple):
    """Attention over some keys: c and l (*batch, n), o (*batch, n, d_v). Without keys: c = −inf, l = 0, o = 0."""

    c: Array
    l: Array
    o: Array


@shaped
def partial_attention(
    S: Float[Array, "*batch n m"], v: Float[Array, "*batch m d_v"], reads: Bool[Array, "..."] | None = None
) -> Partial:
    """Sum up one set of keys for each query.

        c = max_j S_j,   l = Σ_j exp(S_j − c),   o = Σ_j exp(S_j − c) v_j

    Shapes: scores S (*batch, n, m), −inf where a key may not be read; v (*batch, m, d_v); reads says the same
    as a boolean, so that a nan in a value stays behind its mask -> c, l (*batch, n), o (*batch, n, d_v).

    Source: chapter 11.
    """
    xp = array_namespace(S, v)
    e, c, l = shifted_exp(S)
    nothing = l[..., 0] == 0
    c = xp.where(nothing, xp.full_like(c[..., 0], -xp.inf), c[..., 0])
    if reads is not None:
        e = xp.where(reads, e, xp.zeros_like(e))  # a nan query has nan exponentials, but only on keys it may read
    return Partial(c, l[..., 0], weighted_sum(e, v, reads))


def merge(x: Partial, y: Partial) -> Partial:
    """Join what two disjoint sets of keys have to say.

        c = max(c_x, c_y),   l = l_x e^{c_x − c} + l_y e^{c_y − c},   o = o_x e^{c_x − c} + o_y e^{c_y − c}

    Where c = −inf a triple stands for no keys, and its l and o are not read, whatever they hold: −inf − (−inf)
    would be nan. Raises ShapeError if the triples are not of one shape.

    Source: Milakov and Gimelshein 2018, equation 4; chapter 11.
    """
    if x.c.shape != y.c.shape or x.o.shape != y.o.shape:
        raise ShapeError(
            f"merge: one triple has o of shape {tuple(x.o.shape)}, the other {tuple(y.o.shape)}; both sum up keys for "
            "the same queries and values of the same width."
        )
    c = array_namespace(x.c, y.c).maximum(x.c, y.c)
    (l_x, o_x), (l_y, o_y) = _rescaled(x, c), _rescaled(y, c)
    return Partial(c, l_x + l_y, o_x + o_y)


def finish(x: Partial) -> tuple[Array, Array]:
    """The output and the log-sum-exp of the scores: o / l and c + ln l; zeros and −inf where there were no keys.

    Shapes: c, l (*batch, n), o (*batch, n, d_v) -> (*batch, n, d_v) and (*batch, n).
    """
    xp = array_namespace(x.c)
    empty = x.c == -xp.inf
    l = xp.where(empty, xp.ones_like(x.l), x.l)
    o = xp.where(empty[..., None], xp.zeros_like(x.o), x.o / l[..., None])
    return o, xp.where(empty, x.c, x.c + xp.log(l))


def _rescaled(x: Partial, c: Array) -> tuple[Array, Array]:
    """l and o of x as if c had been subtracted instead of x.c; zeros where x stands for no keys."""
    xp = array_namespace(x.c)
    empty = x.c == -xp.inf
    factor = xp.exp(xp.where(empty, xp.zeros_like(c), x.c) - xp.where(empty, xp.zeros_like(c), c))
    l = xp.where(empty, xp.zeros_like(x.l), x.l * factor)
    return l, xp.where(empty[..., None], xp.zeros_like(x.o), x.o * factor[..., None])
