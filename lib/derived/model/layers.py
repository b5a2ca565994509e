"""An op on arrays as a layer with parameters: f_vjp(params, x) -> (y, pullback), pullback(dy) -> (dparams, dx)."""

from collections.abc import Callable
from typing import Any

from derived.model.parameters import FeedForwardParams, GatedFeedForwardParams
from derived.ops.arrays import Array
from derived.ops.feed_forward import feed_forward_vjp, gated_feed_forward_vjp


def layer_vjp(op_vjp: Callable, params: tuple, x: Array, **options: Any) -> tuple[Array, Callable]:
    """Call an op whose arguments after x are the parameters, and sort its gradients into their structure.

    Shapes: those of the op; pullback: dy -> (dparams, dx), where dparams has the type of params and None
    where params has None.
    """
    given = list(params)
    while given and given[-1] is None:  # RMSNorm takes no bias, not even None
        given.pop()
    y, op_pullback = op_vjp(x, *given, **options)

    def pullback(dy: Array) -> tuple:
        """The op's own pullback, sorted: (dparams, dx)."""
        dx, *learned = op_pullback(dy)
        return in_place_of(params, learned), dx

    return y, pullback


def in_place_of(params: Any, gradients: list) -> Any:
    """The gradients of those parameters that are there, in order, as the same named tuple; None for None."""
    rest = iter(gradients)
    return type(params)(*(None if array is None else next(rest) for array in params))


def feed_forward_layer_vjp(
    params: FeedForwardParams | GatedFeedForwardParams, x: Array, *, activation_vjp: Callable
) -> tuple[Array, Callable]:
    """The feed-forward network that the type of the parameters names: two matrices, or three with a gate.

    Shapes: x (*batch, d_model) -> y (*batch, d_model); pullback: dy -> (dparams, dx).

    Source: chapter 8.
    """
    op_vjp = gated_feed_forward_vjp if isinstance(params, GatedFeedForwardParams) else feed_forward_vjp
    return layer_vjp(op_vjp, params, x, activation_vjp=activation_vjp)
