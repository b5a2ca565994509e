"""LayerNorm and RMSNorm over the last axis, with ε inside the root and the biased variance."""

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.errors import ShapeError
from derived.ops.arrays import Array, widen
from derived.ops.contract import shaped


@shaped
def layer_norm(
    x: Float[Array, "*batch d_model"],
    gain: Float[Array, "d_model"] | None = None,
    bias: Float[Array, "d_model"] | None = None,
    *,
    eps: float | int = 1e-5,
) -> Float[Array, "*batch d_model"]:
    """Give every row mean 0 and variance 1, then a learned gain and bias: `layer_norm_vjp` without the way back."""
    return layer_norm_vjp(x, gain, bias, eps=eps)[0]


@shaped
def layer_norm_vjp(
    x: Float[Array, "*batch d_model"],
    gain: Float[Array, "d_model"] | None = None,
    bias: Float[Array, "d_model"] | None = None,
    *,
    eps: float | int = 1e-5,
):
    """Give every row mean 0 and variance 1, then a learned gain and bias.

        μ = mean(x),   σ² = mean((x − μ)²),   ρ = 1/√(σ² + ε),   x̂ = (x − μ) ρ,   y = x̂ ∘ gain + bias

    Shapes: x (*batch, d_model), gain (d_model), bias (d_model) -> y (*batch, d_model); pullback:
    dy (*batch, d_model) -> dx, and dgain and dbias if gain and bias were given.
    The variance divides by d_model, not d_model − 1, and ε stands inside the root: then a constant row
    gives x̂ = 0 and a finite gradient. A missing gain is 1, a missing bias 0. Half precisions are computed in float32.

    Edges: at width 1, x̂ = 0 and dx = 0. ε = 0 is admitted, but a constant row is then 0/0. A deviation
    whose square overflows (1.8e19 in float32, 1.3e154 in float64) gives x̂ = 0.
    Raises ShapeError if sizes disagree or a row is empty.

    Source: Ba, Kiros and Hinton 2016, equations 3 and 4; chapter 7.
    """
    xp, wide = array_namespace(x), _rows("layer_norm", x)
    centred = wide - _mean(wide)
    rho = 1 / xp.sqrt(_mean(centred * centred) + eps)
    x_hat = centred * rho
    y = _scaled(x_hat, gain) if bias is None else _scaled(x_hat, gain) + widen(bias)

    def pullback(dy: Float[Array, "*batch d_model"]):
        """dx = ρ (dx̂ − mean(dx̂) − x̂ mean(dx̂ ∘ x̂)) with dx̂ = dy ∘ gain;  dgain = Σ dy ∘ x̂;  dbias = Σ dy.

        The first mean is what moving μ takes away, the second what moving σ takes away.
        """
        dy = widen(dy)
        dx_hat = _scaled(dy, gain)
        dx = rho * (dx_hat - _mean(dx_hat) - x_hat * _mean(dx_hat * x_hat))
        return _gradients((x, dx), (gain, dy * x_hat), (bias, dy))

    return xp.astype(y, x.dtype), pullback


@shaped
def rms_norm(
    x: Float[Array, "*batch d_model"], gain: Float[Array, "d_model"] | None = None, *, eps: float | int = 1e-5
) -> Float[Array, "*batch d_model"]:
    """Give every row a mean square of 1, then a learned gain: `rms_norm_vjp` without the way back."""
    return rms_norm_vjp(x, gain, eps=eps)[0]


@shaped
def rms_norm_vjp(
    x: Float[Array, "*batch d_model"], gain: Float[Array, "d_model"] | None = None, *, eps: float | int = 1e-5
):
    """Give every row a mean square of 1, then a learned gain; the mean stays.

        ρ = 1/√(mean(x²) + ε),   x̂ = x ρ,   y = x̂ ∘ gain

    Shapes: x (*batch, d_model), gain (d_model) -> y (*batch, d_model); pullback: dy (*batch, d_model) ->
    dx, and dgain if a gain was given. ε stands inside the root, so a row of zeros gives zeros and the
    finite gradient dy ∘ gain/√ε. Half precisions are computed in float32.

    Edges: those of `layer_norm_vjp`, with "zero row" for "constant row".
    Raises ShapeError if sizes disagree or a row is empty.

    Source: Zhang and Sennrich 2019, equation 4 (there without ε); chapter 7.
    """
    xp, wide = array_namespace(x), _rows("rms_norm", x)
    rho = 1 / xp.sqrt(_mean(wide * wide) + eps)
    x_hat = wide * rho

    def pullback(dy: Float[Array, "*batch d_model"]):
        """dx = ρ (dx̂ − x̂ mean(dx̂ ∘ x̂)) with dx̂ = dy ∘ gain;  dgain = Σ dy ∘ x̂."""
        dy = widen(dy)
        dx_hat = _scaled(dy, gain)
        dx = rho * (dx_hat - x_hat * _mean(dx_hat * x_hat))
        return _gradients((x, dx), (gain, dy * x_hat))

    return xp.astype(_scaled(x_hat, gain), x.dtype), pullback


def _rows(where: str, x: Array) -> Array:
    """x widened, its rows not empty: a mean of nothing has no value."""
    if x.shape[-1] == 0:
        raise ShapeError(f"{where}: x has shape {tuple(x.shape)}, rows of no numbers; a row needs at least one.")
    return widen(x)


def _mean(x: Array) -> Array:
    """The mean of every row, kept as a column."""
    return array_namespace(x).mean(x, axis=-1, keepdims=True)


def _scaled(x: Array, gain: Array | None) -> Array:
    """x ∘ gain; x alone where there is no gain."""
    return x if gain is None else x * widen(gain)


def _gradients(first: tuple, *learned: tuple):
    """dx, then for every learned vector that was given the sum of its rows' gradients; each in its argument's dtype."""
    x, dx = first
    xp = array_namespace(x)
    dx = xp.astype(dx, x.dtype)
    sums = [
        xp.astype(xp.sum(xp.reshape(rows, (-1, rows.shape[-1])), axis=0), array.dtype)
        for array, rows in learned
        if array is not None
    ]
    return (dx, *sums) if sums else dx
