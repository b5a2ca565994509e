"""One block in its two forms: the norm behind each residual sum (2017), or in front of each sub-layer."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float

from derived.model.layers import feed_forward_layer_vjp, layer_vjp
from derived.model.multi_head import multi_head_attention_vjp
from derived.model.parameters import BlockParams
from derived.ops.activations import relu_vjp
from derived.ops.arrays import Array
from derived.ops.contract import shaped
from derived.ops.norm import layer_norm_vjp


@shaped
def post_norm_block(
    params: BlockParams,
    x: Float[Array, "*batch n d_model"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    **reading: Any,
) -> Float[Array, "*batch n d_model"]:
    """The block of 2017: `post_norm_block_vjp` without the way back."""
    return post_norm_block_vjp(params, x, h=h, norm_vjp=norm_vjp, activation_vjp=activation_vjp, **reading)[0]


@shaped
def post_norm_block_vjp(
    params: BlockParams,
    x: Float[Array, "*batch n d_model"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    **reading: Any,
):
    """The block of 2017: every sub-layer is added to its input, and the sum is normalised.

        x′ = Norm(x + MultiHead(x)),   y = Norm(x′ + FFN(x′))

    Shapes: x (*batch, n, d_model) -> y (*batch, n, d_model); pullback: dy (*batch, n, d_model) -> (dparams, dx).
    norm_vjp is `layer_norm_vjp` or `rms_norm_vjp`, with another ε by functools.partial. The feed-forward
    network is gated if its parameters are. reading (causal, mask, rotary …) is what `multi_head_attention`
    takes. No path from y to x avoids the norms. Raises ShapeError if sizes disagree.

    Source: Vaswani et al. 2017, section 3.1; chapters 7 and 9.
    """
    a, attention_pullback = multi_head_attention_vjp(params.attention, x, h=h, **reading)
    x_1, norm_1_pullback = layer_vjp(norm_vjp, params.norm_1, x + a)
    f, feed_forward_pullback = feed_forward_layer_vjp(params.feed_forward, x_1, activation_vjp=activation_vjp)
    y, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x_1 + f)

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The lines above in reverse; a sum hands its gradient to both terms, so each residual adds one."""
        dnorm_2, dsum_2 = norm_2_pullback(dy)
        dfeed_forward, df = feed_forward_pullback(dsum_2)
        dnorm_1, dsum_1 = norm_1_pullback(dsum_2 + df)
        dattention, da = attention_pullback(dsum_1)
        return BlockParams(dattention, dnorm_1, dfeed_forward, dnorm_2), dsum_1 + da

    return y, pullback


@shaped
def pre_norm_block(
    params: BlockParams,
    x: Float[Array, "*batch n d_model"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    **reading: Any,
) -> Float[Array, "*batch n d_model"]:
    """The block that normalises what a sub-layer reads: `pre_norm_block_vjp` without the way back."""
    return pre_norm_block_vjp(params, x, h=h, norm_vjp=norm_vjp, activation_vjp=activation_vjp, **reading)[0]


@shaped
def pre_norm_block_vjp(
    params: BlockParams,
    x: Float[Array, "*batch n d_model"],
    *,
    h: int,
    norm_vjp: Callable = layer_norm_vjp,
    activation_vjp: Callable = relu_vjp,
    **reading: Any,
):
    """The block that normalises what a sub-layer reads, and leaves the residual sum alone.

        x′ = x + MultiHead(Norm(x)),   y = x′ + FFN(Norm(x′))

    Shapes: x (*batch, n, d_model) -> y (*batch, n, d_model); pullback: dy (*batch, n, d_model) -> (dparams, dx).
    Arguments and errors are those of `post_norm_block_vjp`. The gradient of y reaches x unchanged, plus what the
    sub-layers add; a stack of such blocks needs one more norm at its end.

    Source: Xiong et al. 2020, table 1; chapters 7 and 9.
    """
    x_hat, norm_1_pullback = layer_vjp(norm_vjp, params.norm_1, x)
    a, attention_pullback = multi_head_attention_vjp(params.attention, x_hat, h=h, **reading)
    x_1 = x + a
    x_1_hat, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x_1)
    f, feed_forward_pullback = feed_forward_layer_vjp(params.feed_forward, x_1_hat, activation_vjp=activation_vjp)
    y = x_1 + f

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The lines above in reverse; dy passes both residuals, and every sub-layer adds its part."""
        dfeed_forward, dx_1_hat = feed_forward_pullback(dy)
        dnorm_2, dnormed = norm_2_pullback(dx_1_hat)
        dx_1 = dy + dnormed
        dattention, dx_hat = attention_pullback(dx_1)
        dnorm_1, dnormed = norm_1_pullback(dx_hat)
        return BlockParams(dattention, dnorm_1, dfeed_forward, dnorm_2), dx_1 + dnormed

    return y, pullback
