"""The non-linearities of the feed-forward network: ReLU, GELU in both forms, SiLU; elementwise, with their slopes."""

import math

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.ops.arrays import Array, erf, widen
from derived.ops.contract import shaped

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
"""2 φ(0), the factor for which ½(1 + tanh(√(2/π) x)) has the slope of Φ at 0."""

GELU_CUBIC = 0.044715
"""The fitted factor of x³ inside the tanh form of GELU (Hendrycks and Gimpel 2016, section 2)."""

SATURATED = 40.0
"""Beyond this |x|, φ(x), 1 − tanh² and 1 − σ are 0 in float64: x is clipped to it where it would overflow."""


@shaped
def relu(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """max(x, 0): `relu_vjp` without the way back."""
    return relu_vjp(x)[0]


@shaped
def relu_vjp(x: Float[Array, "*batch"]):
    """Keep what is positive.

        y = max(x, 0),   y′ = 1 if x > 0 else 0

    Shapes: x (*batch) -> y (*batch); pullback: dy (*batch) -> dx (*batch).
    At x = 0 there is no derivative; 0 is taken, as torch takes it. nan stays nan.

    Source: Vaswani et al. 2017, equation 2; chapter 8.
    """
    xp = array_namespace(x)

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """dx = dy where x > 0, else 0."""
        return xp.astype(xp.where(x > 0, dy, xp.zeros_like(dy)), x.dtype)

    return xp.maximum(x, xp.zeros_like(x)), pullback


@shaped
def gelu(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """x Φ(x), with the exact normal distribution function: `gelu_vjp` without the way back."""
    return gelu_vjp(x)[0]


@shaped
def gelu_vjp(x: Float[Array, "*batch"]):
    """Weight x by the probability that a standard normal number lies below it.

        y = x Φ(x),   Φ(x) = ½ (1 + erf(x/√2)),   y′ = Φ(x) + x φ(x),   φ(x) = exp(−x²/2)/√(2π)

    Shapes: x (*batch) -> y (*batch); pullback: dy (*batch) -> dx (*batch).
    Half precisions are computed in float32. Far left, 1 + erf cancels: the error stays below one rounding
    of x, but y rounds to 0 near x = −8.3 in float64. At −∞ the form gives nan (−∞ · 0), as torch does.

    Source: Hendrycks and Gimpel 2016, section 2; chapter 8.
    """
    xp, wide = array_namespace(x), widen(x)
    below = 0.5 * (1 + erf(wide * math.sqrt(0.5)))

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """dx = dy (Φ(x) + x φ(x))."""
        near = xp.clip(wide, -SATURATED, SATURATED)
        density = xp.exp(-0.5 * near * near) * (0.5 * SQRT_2_OVER_PI)
        return xp.astype(widen(dy) * (below + near * density), x.dtype)

    return xp.astype(wide * below, x.dtype), pullback


@shaped
def gelu_tanh(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """GELU with Φ replaced by a tanh: `gelu_tanh_vjp` without the way back."""
    return gelu_tanh_vjp(x)[0]


@shaped
def gelu_tanh_vjp(x: Float[Array, "*batch"]):
    """GELU with Φ replaced by a tanh, as in GPT-2; at most 4.73e-4 away from the exact form.

        u = √(2/π) (x + 0.044715 x³),   t = tanh(u),   y = ½ x (1 + t),   y′ = ½ (1 + t) + ½ x (1 − t²) u′

    Shapes: x (*batch) -> y (*batch); pullback: dy (*batch) -> dx (*batch). Half precisions are computed in float32.
    At −∞ the form gives nan (−∞ · 0), as torch does.

    Source: Hendrycks and Gimpel 2016, section 2; chapter 8.
    """
    xp, wide = array_namespace(x), widen(x)
    near = xp.clip(wide, -SATURATED, SATURATED)
    t = xp.tanh(SQRT_2_OVER_PI * (near + GELU_CUBIC * near**3))

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """dx = dy (½ (1 + t) + ½ x (1 − t²) u′), where u′ = √(2/π) (1 + 3 · 0.044715 x²)."""
        du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * near**2)
        return xp.astype(widen(dy) * (0.5 * (1 + t) + 0.5 * near * (1 - t * t) * du), x.dtype)

    return xp.astype(0.5 * wide * (1 + t), x.dtype), pullback


@shaped
def silu(x: Float[Array, "*batch"], *, beta: float | int = 1) -> Float[Array, "*batch"]:
    """x σ(β x), also called Swish: `silu_vjp` without the way back."""
    return silu_vjp(x, beta=beta)[0]


@shaped
def silu_vjp(x: Float[Array, "*batch"], *, beta: float | int = 1):
    """Weight x by the logistic function of itself; with β ≠ 1 the name is Swish.

        y = x σ(β x),   σ(z) = 1/(1 + exp(−z)),   y′ = σ (1 + β x (1 − σ))

    Shapes: x (*batch) -> y (*batch); pullback: dy (*batch) -> dx (*batch). Half precisions are computed in float32.
    At −∞ the form gives nan (−∞ · 0), as torch does.

    Source: Hendrycks and Gimpel 2016, section 2; Ramachandran et al. 2017 (β); chapter 8.
    """
    xp, wide = array_namespace(x), widen(x)
    z = beta * wide
    s = _logistic(z)

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """dx = dy σ (1 + β x (1 − σ))."""
        near = xp.clip(z, None, SATURATED)  # 1 − σ is 0 from there on, and ∞ · 0 has no value
        return xp.astype(widen(dy) * s * (1 + near * (1 - s)), x.dtype)

    return xp.astype(wide * s, x.dtype), pullback


def _logistic(z: Array) -> Array:
    """1/(1 + exp(−z)), from exp(−|z|), which cannot overflow."""
    xp = array_namespace(z)
    e = xp.exp(-xp.abs(z))
    return xp.where(z >= 0, 1 / (1 + e), e / (1 + e))
