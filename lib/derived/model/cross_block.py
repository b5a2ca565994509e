"""A decoder's block: it reads its own tokens, then an encoder's output, then thinks; in both places of the norm."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float

from derived.model.layers import feed_forward_layer_vjp, layer_vjp
from derived.model.multi_head import multi_head_attention_vjp
from derived.model.parameters import CrossBlockParams
from derived.ops.activations import relu_vjp
from derived.ops.arrays import Array
from derived.ops.contract import shaped
from derived.ops.norm import layer_norm_vjp


@shaped
def post_norm_cross_block(
    params: CrossBlockParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    **options: Any,
) -> Float[Array, "*batch n d_model"]:
    """The decoder's block of 2017: `post_norm_cross_block_vjp`, its options and all, without the way back."""
    return post_norm_cross_block_vjp(params, x, memory, **options)[0]


@shaped
def post_norm_cross_block_vjp(
    params: CrossBlockParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    memory_reading: dict | None = None,
    **reading: Any,
):
    """The decoder's block of 2017, with the norm behind each of three residual sums.

        x′ = Norm(x + MultiHead(x)),   x″ = Norm(x′ + MultiHead(x′, memory)),   y = Norm(x″ + FFN(x″))

    Shapes: x (*batch, n, d_model), memory (*batch, m, d_memory) -> y (*batch, n, d_model); pullback:
    dy (*batch, n, d_model) -> (dparams, dx, dmemory). reading says who of x may be read (causal, mask, rotary …),
    memory_reading, a dict of the same words, who of the memory. Otherwise as `post_norm_block_vjp`.
    Raises ShapeError if sizes disagree.

    Source: Vaswani et al. 2017, section 3.1; chapter 9.
    """
    a, attention_pullback = multi_head_attention_vjp(params.attention, x, h=h, **reading)
    x_1, norm_1_pullback = layer_vjp(norm_vjp, params.norm_1, x + a)
    c, cross_pullback = multi_head_attention_vjp(params.cross_attention, x_1, memory, h=h, **(memory_reading or {}))
    x_2, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x_1 + c)
    f, feed_forward_pullback = feed_forward_layer_vjp(params.feed_forward, x_2, activation_vjp=activation_vjp)
    y, norm_3_pullback = layer_vjp(norm_vjp, params.norm_3, x_2 + f)

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The lines above in reverse; the memory receives from the cross-attention alone."""
        dnorm_3, dsum_3 = norm_3_pullback(dy)
        dfeed_forward, df = feed_forward_pullback(dsum_3)
        dnorm_2, dsum_2 = norm_2_pullback(dsum_3 + df)
        dcross, dc, dmemory = cross_pullback(dsum_2)
        dnorm_1, dsum_1 = norm_1_pullback(dsum_2 + dc)
        dattention, da = attention_pullback(dsum_1)
        dparams = CrossBlockParams(dattention, dnorm_1, dcross, dnorm_2, dfeed_forward, dnorm_3)
        return dparams, dsum_1 + da, dmemory

    return y, pullback


@shaped
def pre_norm_cross_block(
    params: CrossBlockParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    **options: Any,
) -> Float[Array, "*batch n d_model"]:
    """The decoder's block with norms in front: `pre_norm_cross_block_vjp` without the way back."""
    return pre_norm_cross_block_vjp(params, x, memory, **options)[0]


@shaped
def pre_norm_cross_block_vjp(
    params: CrossBlockParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    memory_reading: dict | None = None,
    **reading: Any,
):
    """The decoder's block with a norm in front of each of its three sub-layers; the memory is read as it is.

        x′ = x + MultiHead(Norm(x)),   x″ = x′ + MultiHead(Norm(x′), memory),   y = x″ + FFN(Norm(x″))

    Shapes: x (*batch, n, d_model), memory (*batch, m, d_memory) -> y (*batch, n, d_model); pullback:
    dy (*batch, n, d_model) -> (dparams, dx, dmemory). Arguments and errors are those of `post_norm_cross_block_vjp`.

    Source: Xiong et al. 2020, table 1; chapter 9.
    """
    x_hat, norm_1_pullback = layer_vjp(norm_vjp, params.norm_1, x)
    a, attention_pullback = multi_head_attention_vjp(params.attention, x_hat, h=h, **reading)
    x_1 = x + a
    x_1_hat, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x_1)
    c, cross_pullback = multi_head_attention_vjp(params.cross_attention, x_1_hat, memory, h=h, **(memory_reading or {}))
    x_2 = x_1 + c
    x_2_hat, norm_3_pullback = layer_vjp(norm_vjp, params.norm_3, x_2)
    f, feed_forward_pullback = feed_forward_layer_vjp(params.feed_forward, x_2_hat, activation_vjp=activation_vjp)
    y = x_2 + f

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The lines above in reverse; dy passes all three residuals."""
        dfeed_forward, dx_2_hat = feed_forward_pullback(dy)
        dnorm_3, dnormed = norm_3_pullback(dx_2_hat)
        dx_2 = dy + dnormed
        dcross, dx_1_hat, dmemory = cross_pullback(dx_2)
        dnorm_2, dnormed = norm_2_pullback(dx_1_hat)
        dx_1 = dx_2 + dnormed
        dattention, dx_hat = attention_pullback(dx_1)
        dnorm_1, dnormed = norm_1_pullback(dx_hat)
        dparams = CrossBlockParams(dattention, dnorm_1, dcross, dnorm_2, dfeed_forward, dnorm_3)
        return dparams, dx_1 + dnormed, dmemory

    return y, pullback
