"""Cross-entropy from logits: the loss of one token, and the mean over tokens."""

from array_api_compat import array_namespace
from jaxtyping import Float, Integer

from derived.ops.arrays import Array, device_of, widen
from derived.ops.contract import refuse_out_of_range, shaped
from derived.ops.softmax import log_softmax_vjp


@shaped
def cross_entropy(s: Float[Array, "*batch n_vocab"], target: Integer[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The surprise at each target, in nats: `cross_entropy_vjp` without the way back."""
    return cross_entropy_vjp(s, target)[0]


@shaped
def cross_entropy_vjp(s: Float[Array, "*batch n_vocab"], target: Integer[Array, "*batch"]):
    """Measure how little probability the logits gave to what came.

        loss = −ln softmax(s)_target = ln Σ_j exp(s_j) − s_target,   in nats

    Shapes: logits s (*batch, n_vocab), target (*batch) of integers in [0, n_vocab) -> loss (*batch), one a token;
    pullback: dy (*batch) -> ds (*batch, n_vocab).

    A target of logit −inf costs +inf. Raises DerivedError if a target is negative or n_vocab and more; tokens
    that are not to count get weight 0 in `mean_cross_entropy`.

    Source: Bridle 1990; chapter 14.
    """
    xp = array_namespace(s, target)
    n_vocab = s.shape[-1]
    refuse_out_of_range("cross_entropy", "target", target, n_vocab)
    target = xp.astype(target, xp.int64)
    y, _ = log_softmax_vjp(widen(s))
    loss = -xp.take_along_axis(y, target[..., None], axis=-1)[..., 0]

    def pullback(dy: Float[Array, "*batch"]) -> Float[Array, "*batch n_vocab"]:
        """ds = dy · (a − one-hot(target)), a = softmax(s): predicted minus what came."""
        came = xp.arange(n_vocab, device=device_of(s)) == target[..., None]
        a = xp.exp(y)
        return xp.astype(widen(dy)[..., None] * xp.where(came, a - 1, a), s.dtype)

    return xp.astype(loss, s.dtype), pullback


@shaped
def mean_cross_entropy(
    s: Float[Array, "*batch n_vocab"], target: Integer[Array, "*batch"], *, weight: Float[Array, "*batch"] | None = None
) -> Float[Array, ""]:
    """The average surprise over tokens, in nats: `mean_cross_entropy_vjp` without the way back."""
    return mean_cross_entropy_vjp(s, target, weight=weight)[0]


@shaped
def mean_cross_entropy_vjp(
    s: Float[Array, "*batch n_vocab"], target: Integer[Array, "*batch"], *, weight: Float[Array, "*batch"] | None = None
):
    """Average the cross-entropy over tokens, each with its weight.

        loss = Σ_i w_i loss_i / Σ_i w_i,   w_i = 1 unless given

    Shapes: logits s (*batch, n_vocab), target and weight (*batch) -> loss (), one number;
    pullback: dy () -> ds (*batch, n_vocab). The weights are constants and get no gradient.

    A token of weight 0 is not read: nan or −inf in its logits changes nothing, but its target must still be a
    row of the vocabulary. A total weight of 0, or no tokens, gives 0 and zero gradients: nothing was asked,
    so nothing is learnt (torch gives nan there).

    Raises ShapeError if sizes disagree, DerivedError if a target has no logit.

    Source: chapter 14.
    """
    xp = array_namespace(s, target)
    losses, pull = cross_entropy_vjp(widen(s), target)
    w = xp.ones_like(losses) if weight is None else xp.astype(weight, losses.dtype)
    total = xp.sum(w)
    share = w / xp.where(total == 0, xp.ones_like(total), total)
    loss = xp.sum(share * xp.where(share == 0, xp.zeros_like(losses), losses))

    def pullback(dy: Float[Array, ""]) -> Float[Array, "*batch n_vocab"]:
        """ds_i = dy · (w_i / Σ w) · (a_i − one-hot(target_i))."""
        ds = pull(widen(dy) * share)
        return xp.astype(xp.where((share == 0)[..., None], xp.zeros_like(ds), ds), s.dtype)

    return xp.astype(loss, s.dtype), pullback
