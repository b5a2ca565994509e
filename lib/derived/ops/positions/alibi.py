"""ALiBi: no positions in the tokens, but a penalty on every score that grows with the distance."""

from array_api_compat import array_namespace
from jaxtyping import Float, Real

from derived.errors import ShapeError
from derived.ops.arrays import Array, device_of
from derived.ops.contract import shaped


def alibi_slopes(h: int) -> tuple[float, ...]:
    """The penalty of each head per token of distance: a geometric sequence from 2^{−8/h} down to 2^{−8}.

        slope_i = 2^{−8i/h},   i = 1 … h,   if h is a power of two

    Otherwise, with p the greatest power of two below h: the p slopes of p heads, then every second slope of
    2p heads, from the first on, until there are h. That continuation is the authors' code, not the paper.
    Raises ShapeError if h < 1.

    Source: Press, Smith and Lewis 2022, section 3, and `get_slopes` in their published code
    (ofirpress/attention_with_linear_biases, fairseq/models/transformer.py); chapter 6.
    """
    if h < 1:
        raise ShapeError(f"alibi_slopes: h = {h}; there is at least one head.")
    p = 1 << (h.bit_length() - 1)
    steps = [8 * i / p for i in range(1, p + 1)] + [8 * i / (2 * p) for i in range(1, 2 * (h - p), 2)]
    return tuple(2.0**-step for step in steps)


@shaped
def alibi_bias(query_positions: Real[Array, "n"], key_positions: Real[Array, "m"], h: int) -> Float[Array, "h n m"]:
    """The bias to add to the scaled scores of each head.

        bias_{i,p,q} = −slope_i |p − q|

    Shapes: query_positions (n), key_positions (m) -> (h, n, m). With a causal mask p ≥ q and this is the paper's
    −slope (p − q); without one the penalty is the same to both sides. With m − n cached keys the queries
    stand at m − n … m − 1. Integer positions give float64. Nothing in it is learned, so there is no pullback.
    Raises ShapeError if h < 1.

    Source: Press, Smith and Lewis 2022, equation in section 3; chapter 6.
    """
    xp = array_namespace(query_positions, key_positions)
    p, q = (_floating(xp, positions) for positions in (query_positions, key_positions))
    distance = xp.abs(p[:, None] - q[None, :])
    slopes = xp.asarray(alibi_slopes(h), dtype=distance.dtype, device=device_of(distance))
    return -slopes[:, None, None] * distance


def _floating(xp, positions: Array) -> Array:
    """Integer positions as float64: differences of unsigned integers would wrap."""
    return positions if xp.isdtype(positions.dtype, "real floating") else xp.astype(positions, xp.float64)
