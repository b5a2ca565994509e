"""Layers one after another, and the gradient at every depth between them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from derived.model.layers import layer_vjp
from derived.model.parameters import StackParams
from derived.ops.arrays import Array
from derived.ops.norm import layer_norm_vjp


class StackTrace(NamedTuple):
    """What flows between the layers: xs[l] enters layer l, xs[L] leaves the last; dxs holds their gradients."""

    xs: tuple[Array, ...]  # L + 1 of them
    dxs: tuple[Array, ...] | None = None  # L + 1 of them
    dlayers: tuple | None = None  # the gradient of each layer's parameters
    dshared: tuple[Array, ...] | None = None  # the gradients of what every layer reads besides x, such as a memory


def layers_trace(
    block_vjp: Callable, layers: Sequence, x: Array, *shared: Array, dy: Array | None = None, **options: Any
) -> StackTrace:
    """Run x through the layers, keep what enters each, and with dy also the gradient at every depth.

        x_0 = x,   x_{l+1} = block_l(x_l),   dx_L = dy,   dx_l = dx_{l+1} ∂x_{l+1}/∂x_l

    Shapes: x (*batch, n, d_model), and what else the block reads -> xs and dxs, each L + 1 arrays like x.
    block_vjp is called as block_vjp(params, x, *shared, **options), one of `model.block` or `model.cross_block`
    or any other function that returns (y, pullback) with pullback(dy) -> (dparams, dx, *dshared).

    Source: chapter 7.
    """
    forward, pull = _traced(block_vjp, layers, x, shared, options)
    return forward if dy is None else pull(dy)


def stack_vjp(
    block_vjp: Callable,
    params: StackParams,
    x: Array,
    *shared: Array,
    norm_vjp: Callable = layer_norm_vjp,
    **options: Any,
) -> tuple[Array, Callable]:
    """Layers one after another, then the final norm if the parameters have one.

        x_0 = x,   x_{l+1} = block_l(x_l),   y = Norm(x_L)

    Shapes: x (*batch, n, d_model) -> y (*batch, n, d_model); pullback: dy (*batch, n, d_model) ->
    (dparams, dx, *dshared). norm_vjp and the options go to every block as well.

    Source: Vaswani et al. 2017, section 3.1; chapter 9.
    """
    forward, pull = _traced(block_vjp, params.layers, x, shared, {"norm_vjp": norm_vjp, **options})
    y, norm_pullback = forward.xs[-1], None
    if params.final_norm is not None:
        y, norm_pullback = layer_vjp(norm_vjp, params.final_norm, y)

    def pullback(dy: Array) -> tuple:
        """The final norm, then the layers from the last to the first."""
        dnorm, dx_L = (None, dy) if norm_pullback is None else norm_pullback(dy)
        trace = pull(dx_L)
        return StackParams(trace.dlayers, dnorm), trace.dxs[0], *trace.dshared

    return y, pullback


def _traced(block_vjp, layers, x, shared, options):
    """The forward trace, and the function from the gradient at the end to the whole trace."""
    xs, pullbacks = [x], []
    for params in layers:
        x, pullback = block_vjp(params, x, *shared, **options)
        xs.append(x)
        pullbacks.append(pullback)
    forward = StackTrace(tuple(xs))

    def pull(dy: Array) -> StackTrace:
        dxs, dlayers, dshared = [dy], [], None
        for pullback in reversed(pullbacks):
            dparams, dx, *from_layer = pullback(dxs[-1])
            dxs.append(dx)
            dlayers.append(dparams)
            # every layer read the same array, so it receives from every layer
            dshared = from_layer if dshared is None else [a + b for a, b in zip(dshared, from_layer, strict=True)]
        if dshared is None:
            dshared = [0 * array for array in shared]
        return forward._replace(dxs=tuple(reversed(dxs)), dlayers=tuple(reversed(dlayers)), dshared=tuple(dshared))

    return forward, pull
