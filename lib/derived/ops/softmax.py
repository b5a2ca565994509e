"""Softmax, log-softmax and log-sum-exp over the last axis: three readings of one safe exponential."""

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.ops.arrays import Array, widen
from derived.ops.contract import shaped


@shaped
def softmax(s: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    """Weights of one row of scores, positive and summing to one: `softmax_vjp` without the way back."""
    return softmax_vjp(s)[0]


@shaped
def softmax_vjp(s: Float[Array, "*batch m"]):
    """Turn each row of scores into weights that sum to one.

        e_j = exp(s_j − c),   l = Σ_j e_j,   a_j = e_j / l,   c = max_j s_j

    Shapes: s (*batch, m) -> a (*batch, m); pullback: da (*batch, m) -> ds (*batch, m).

    Edges: a score of −inf has weight 0. A row of −inf alone, and a row of no scores, has no weights to
    give: zeros, and zero gradients. A row with nan or +inf gives nan, since inf − inf has no value.

    Source: chapter 4, (4.3) and (4.4); the Jacobian is (5.7).
    """
    xp = array_namespace(s)
    e, _, l = shifted_exp(widen(s))
    a = e / xp.where(l == 0, xp.ones_like(l), l)

    def pullback(da: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """ds = a ∘ (da − Σ_j a_j da_j), the Jacobian diag(a) − aᵀa applied without being built."""
        da = widen(da)
        mean = xp.sum(a * da, axis=-1, keepdims=True)  # the average of da under a
        return xp.astype(a * (da - mean), s.dtype)

    return xp.astype(a, s.dtype), pullback


@shaped
def log_sum_exp(s: Float[Array, "*batch m"]) -> Float[Array, "*batch"]:
    """The logarithm of a row's sum of exponentials: `log_sum_exp_vjp` without the way back."""
    return log_sum_exp_vjp(s)[0]


@shaped
def log_sum_exp_vjp(s: Float[Array, "*batch m"]):
    """Sum exponentials on the scale of logarithms.

        y = c + ln Σ_j exp(s_j − c),   c = max_j s_j

    Shapes: s (*batch, m) -> y (*batch); pullback: dy (*batch) -> ds (*batch, m).

    Edges: −inf for a row of −inf alone and for a row of no scores (the logarithm of an empty sum), with
    zero gradients. A row with nan or +inf gives nan, as softmax does.

    Source: chapter 4, (4.5).
    """
    xp = array_namespace(s)
    e, c, l = shifted_exp(widen(s))
    empty = l == 0
    safe = xp.where(empty, xp.ones_like(l), l)
    y = xp.where(empty, xp.full_like(l, -xp.inf), c + xp.log(safe))[..., 0]

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch m"]:
        """ds = dy · softmax(s): a row's gradient is shared out by its weights."""
        return xp.astype(widen(dy)[..., None] * (e / safe), s.dtype)

    return xp.astype(y, s.dtype), pullback


@shaped
def log_softmax(s: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    """Logarithms of the softmax weights: `log_softmax_vjp` without the way back."""
    return log_softmax_vjp(s)[0]


@shaped
def log_softmax_vjp(s: Float[Array, "*batch m"]):
    """Take the logarithm of softmax without taking a logarithm of a rounded weight.

        y_j = s_j − c − ln l,   l = Σ_j exp(s_j − c),   c = max_j s_j

    Shapes: s (*batch, m) -> y (*batch, m); pullback: dy (*batch, m) -> ds (*batch, m).

    A weight of exp(−800) is 0 in float64 and its logarithm −inf; y is −800. Edges: −inf where s is −inf,
    and everywhere in a row of −inf alone, with zero gradients there.

    Source: chapter 4, (4.6).
    """
    xp = array_namespace(s)
    x = widen(s)
    e, c, l = shifted_exp(x)
    safe = xp.where(l == 0, xp.ones_like(l), l)
    y = (x - c) - xp.log(safe)
    a = e / safe

    def pullback(dy: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """ds = dy − a Σ_j dy_j, with nothing flowing to a score of −inf."""
        dy = xp.where(x == -xp.inf, xp.zeros_like(x), widen(dy))
        return xp.astype(dy - a * xp.sum(dy, axis=-1, keepdims=True), s.dtype)

    return xp.astype(y, s.dtype), pullback


def shifted_exp(x: Array) -> tuple[Array, Array, Array]:
    """exp(x − c), c and their row sum, where c is the row maximum, or 0 if that is −inf or does not exist."""
    xp = array_namespace(x)
    c = xp.max(x, axis=-1, keepdims=True) if x.shape[-1] else xp.zeros_like(xp.sum(x, axis=-1, keepdims=True))
    c = xp.where(c == -xp.inf, xp.zeros_like(c), c)  # −inf − (−inf) would be nan
    e = xp.exp(x - c)
    return e, c, xp.sum(e, axis=-1, keepdims=True)
