"""The feed-forward network, per token: two linear maps around a non-linearity, and the gated form with three."""

from collections.abc import Callable

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.ops.arrays import Array, widen_together
from derived.ops.contract import shaped
from derived.ops.linear import linear_vjp


@shaped
def feed_forward(
    x: Float[Array, "*batch d_model"],
    W_1: Float[Array, "d_model d_ff"],
    W_2: Float[Array, "d_ff d_model"],
    b_1: Float[Array, "d_ff"] | None = None,
    b_2: Float[Array, "d_model"] | None = None,
    *,
    activation_vjp: Callable,
) -> Float[Array, "*batch d_model"]:
    """Widen every token, bend it, narrow it again: `feed_forward_vjp` without the way back."""
    return feed_forward_vjp(x, W_1, W_2, b_1, b_2, activation_vjp=activation_vjp)[0]


@shaped
def feed_forward_vjp(
    x: Float[Array, "*batch d_model"],
    W_1: Float[Array, "d_model d_ff"],
    W_2: Float[Array, "d_ff d_model"],
    b_1: Float[Array, "d_ff"] | None = None,
    b_2: Float[Array, "d_model"] | None = None,
    *,
    activation_vjp: Callable,
):
    """Widen every token, bend it, narrow it again.

        u = x W_1 + b_1,   z = f(u),   y = z W_2 + b_2

    Shapes: x (*batch, d_model), W_1 (d_model, d_ff), W_2 (d_ff, d_model), b_1 (d_ff), b_2 (d_model) ->
    y (*batch, d_model); pullback: dy (*batch, d_model) -> dx, dW_1, dW_2, and db_1 and db_2 if they were given.
    f is one of `ops.activations`, handed over as its `_vjp`. Half precisions are computed in float32 throughout.
    Raises ShapeError if sizes disagree.

    Source: Vaswani et al. 2017, equation 2 (f = ReLU); chapter 8.
    """
    xp = array_namespace(x)
    wide = widen_together(x, W_1, W_2, b_1, b_2)
    u, first_pullback = linear_vjp(wide[0], wide[1], wide[3])
    z, bend_pullback = activation_vjp(u)
    y, second_pullback = linear_vjp(z, wide[2], wide[4])

    def pullback(dy: Float[Array, "*batch d_model"]) -> tuple:
        """The three lines above in reverse: dz, dW_2, db_2;  du = dz ∘ f′(u);  dx, dW_1, db_1."""
        dz, dW_2, *db_2 = second_pullback(xp.astype(dy, y.dtype))
        du = bend_pullback(dz)
        dx, dW_1, *db_1 = first_pullback(du)
        return _rounded((dx, dW_1, dW_2, *db_1, *db_2), (x, W_1, W_2, b_1, b_2))

    return xp.astype(y, x.dtype), pullback


@shaped
def gated_feed_forward(
    x: Float[Array, "*batch d_model"],
    W_gate: Float[Array, "d_model d_ff"],
    W_up: Float[Array, "d_model d_ff"],
    W_down: Float[Array, "d_ff d_model"],
    b_gate: Float[Array, "d_ff"] | None = None,
    b_up: Float[Array, "d_ff"] | None = None,
    b_down: Float[Array, "d_model"] | None = None,
    *,
    activation_vjp: Callable,
) -> Float[Array, "*batch d_model"]:
    """Widen every token twice, let one copy gate the other, narrow: `gated_feed_forward_vjp` without the way back."""
    return gated_feed_forward_vjp(x, W_gate, W_up, W_down, b_gate, b_up, b_down, activation_vjp=activation_vjp)[0]


@shaped
def gated_feed_forward_vjp(
    x: Float[Array, "*batch d_model"],
    W_gate: Float[Array, "d_model d_ff"],
    W_up: Float[Array, "d_model d_ff"],
    W_down: Float[Array, "d_ff d_model"],
    b_gate: Float[Array, "d_ff"] | None = None,
    b_up: Float[Array, "d_ff"] | None = None,
    b_down: Float[Array, "d_model"] | None = None,
    *,
    activation_vjp: Callable,
):
    """Widen every token twice, let one copy gate the other, narrow.

        g = f(x W_gate + b_gate),   u = x W_up + b_up,   y = (g ∘ u) W_down + b_down

    Shapes: x (*batch, d_model), W_gate and W_up (d_model, d_ff), W_down (d_ff, d_model), b_gate and b_up (d_ff),
    b_down (d_model) -> y (*batch, d_model); pullback: dy (*batch, d_model) -> dx, dW_gate, dW_up, dW_down, and
    the gradients of those biases that were given. f = SiLU makes it SwiGLU, f = GELU GEGLU. Three matrices
    instead of two: d_ff = 8/3 d_model holds as many parameters as the plain form at d_ff = 4 d_model.
    Half precisions are computed in float32 throughout. Raises ShapeError if sizes disagree.

    Source: Shazeer 2020, equation 6; chapter 8.
    """
    xp = array_namespace(x)
    wide = widen_together(x, W_gate, W_up, W_down, b_gate, b_up, b_down)
    bent, gate_pullback = linear_vjp(wide[0], wide[1], wide[4])
    g, bend_pullback = activation_vjp(bent)
    u, up_pullback = linear_vjp(wide[0], wide[2], wide[5])
    y, down_pullback = linear_vjp(g * u, wide[3], wide[6])

    def pullback(dy: Float[Array, "*batch d_model"]) -> tuple:
        """d(g ∘ u) is handed to each factor times the other; x receives from both of its copies."""
        dz, dW_down, *db_down = down_pullback(xp.astype(dy, y.dtype))
        dx_up, dW_up, *db_up = up_pullback(dz * g)
        dx_gate, dW_gate, *db_gate = gate_pullback(bend_pullback(dz * u))
        gradients = (dx_gate + dx_up, dW_gate, dW_up, dW_down, *db_gate, *db_up, *db_down)
        return _rounded(gradients, (x, W_gate, W_up, W_down, b_gate, b_up, b_down))

    return xp.astype(y, x.dtype), pullback


def _rounded(gradients: tuple, arguments: tuple) -> tuple:
    """Each gradient in the dtype of the argument it belongs to; arguments that were not given have none."""
    xp, given = array_namespace(arguments[0]), [x for x in arguments if x is not None]
    return tuple(xp.astype(dx, x.dtype) for dx, x in zip(gradients, given, strict=True))
