"""The linear map on row vectors, y = x W + b: one matrix for every token."""

import math

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.ops.arrays import Array, swap_last, widen_together
from derived.ops.contract import shaped


@shaped
def linear(
    x: Float[Array, "*batch d_in"], W: Float[Array, "d_in d_out"], b: Float[Array, "d_out"] | None = None
) -> Float[Array, "*batch d_out"]:
    """Map every row of x by W, and add b if there is one: `linear_vjp` without the way back."""
    y, _ = linear_vjp(x, W, b)
    return y


@shaped
def linear_vjp(x: Float[Array, "*batch d_in"], W: Float[Array, "d_in d_out"], b: Float[Array, "d_out"] | None = None):
    """Map every token's vector by the same matrix, and shift it.

        y = x W + b

    Shapes: x (*batch, d_in), W (d_in, d_out), b (d_out) or None -> y (*batch, d_out);
    pullback: dy (*batch, d_out) -> dx (*batch, d_in), dW (d_in, d_out), and db (d_out) if a bias was given.

    Vectors are rows, so W is the transpose of the weight that torch.nn.Linear holds. Without tokens, dW and
    db are zeros, the empty sum. Raises ShapeError if the widths disagree.

    Source: chapter 2; backward, chapter 9: dX and dW cost as much as the forward each.
    """
    wide_x, wide_W, wide_b = widen_together(x, W, b)
    xp = array_namespace(x, W)
    y = wide_x @ wide_W
    y = y if b is None else y + wide_b

    def pullback(dy: Float[Array, "*batch d_out"]) -> tuple:
        """db = Σ over tokens dy,  dW = Σ over tokens xᵀ dy,  dx = dy Wᵀ."""
        dy, W_wide = widen_together(dy, wide_W)
        rows, dy_rows = _rows(wide_x), _rows(dy)
        dx = xp.astype(dy @ swap_last(W_wide), x.dtype)
        dW = xp.astype(swap_last(rows) @ dy_rows, W.dtype)
        return (dx, dW) if b is None else (dx, dW, xp.astype(xp.sum(dy_rows, axis=0), b.dtype))

    return xp.astype(y, x.dtype), pullback


def _rows(x: Array) -> Array:
    """All tokens of all sequences under one another: (*batch, d) -> (tokens, d)."""
    *batch, d = x.shape
    return array_namespace(x).reshape(x, (math.prod(batch), d))
