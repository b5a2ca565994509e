"""Whole transformers: encoder, decoder, the two together, and the language model that is a decoder alone."""

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Float, Integer

from derived.errors import ShapeError
from derived.model.block import post_norm_block_vjp, pre_norm_block_vjp
from derived.model.cross_block import post_norm_cross_block_vjp
from derived.model.parameters import DecoderOnlyParams, EncoderDecoderParams, StackParams
from derived.model.stack import stack_vjp
from derived.ops.arrays import Array, device_of, swap_last
from derived.ops.contract import shaped
from derived.ops.embedding import embedding_vjp
from derived.ops.linear import linear_vjp


@shaped
def encoder(
    params: StackParams, x: Float[Array, "*batch m d_model"], **options: Any
) -> Float[Array, "*batch m d_model"]:
    """Blocks whose tokens all read one another: `encoder_vjp`, its options and all, without the way back."""
    return encoder_vjp(params, x, **options)[0]


@shaped
def encoder_vjp(
    params: StackParams,
    x: Float[Array, "*batch m d_model"],
    *,
    h: int,
    block_vjp: Callable = post_norm_block_vjp,
    **options: Any,
):
    """Blocks whose tokens all read one another, unless a mask hides some.

    Shapes: x (*batch, m, d_model) -> y (*batch, m, d_model); pullback: dy (*batch, m, d_model) -> (dparams, dx).
    The options (norm_vjp, activation_vjp, mask, rotary …) are those of block_vjp.

    Source: Vaswani et al. 2017, section 3.1; chapter 9.
    """
    y, stack_pullback = stack_vjp(block_vjp, params, x, h=h, **options)

    def pullback(dy: Float[Array, "*batch m d_model"]) -> tuple:
        """That of the stack."""
        return stack_pullback(dy)

    return y, pullback


@shaped
def decoder(
    params: StackParams, x: Float[Array, "*batch n d_model"], memory: Float[Array, "*batch m d_memory"], **options: Any
) -> Float[Array, "*batch n d_model"]:
    """Blocks that read what came before and a memory: `decoder_vjp`, its options and all, without the way back."""
    return decoder_vjp(params, x, memory, **options)[0]


@shaped
def decoder_vjp(
    params: StackParams,
    x: Float[Array, "*batch n d_model"],
    memory: Float[Array, "*batch m d_memory"],
    *,
    h: int,
    block_vjp: Callable = post_norm_cross_block_vjp,
    **options: Any,
):
    """Blocks whose tokens read the ones before them and all of a memory.

    Shapes: x (*batch, n, d_model), memory (*batch, m, d_memory) -> y (*batch, n, d_model);
    pullback: dy (*batch, n, d_model) -> (dparams, dx, dmemory), where dmemory is the sum over the layers.
    The options (norm_vjp, activation_vjp, mask, memory_reading …) are those of block_vjp; causal is set.

    Source: Vaswani et al. 2017, section 3.1; chapter 9.
    """
    y, stack_pullback = stack_vjp(block_vjp, params, x, memory, h=h, causal=True, **options)

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """That of the stack."""
        return stack_pullback(dy)

    return y, pullback


@shaped
def encoder_decoder(
    params: EncoderDecoderParams,
    source: Float[Array, "*batch m d_model"],
    target: Float[Array, "*batch n d_model"],
    **options: Any,
) -> Float[Array, "*batch n d_model"]:
    """The transformer of 2017 between its embeddings: `encoder_decoder_vjp` without the way back."""
    return encoder_decoder_vjp(params, source, target, **options)[0]


@shaped
def encoder_decoder_vjp(
    params: EncoderDecoderParams,
    source: Float[Array, "*batch m d_model"],
    target: Float[Array, "*batch n d_model"],
    *,
    h: int,
    encoder_block_vjp: Callable = post_norm_block_vjp,
    decoder_block_vjp: Callable = post_norm_cross_block_vjp,
    source_reading: dict | None = None,
    memory_reading: dict | None = None,
    **options: Any,
):
    """The transformer of 2017 between its embeddings: the target reads itself causally, and the encoded source.

        memory = encoder(source),   y = decoder(target, memory)

    Shapes: source (*batch, m, d_model), target (*batch, n, d_model) -> y (*batch, n, d_model);
    pullback: dy (*batch, n, d_model) -> (dparams, dsource, dtarget). The options (norm_vjp, activation_vjp) go to
    both stacks; source_reading (a mask of padding, rotary …) to the encoder's attention, memory_reading to
    the decoder's attention to the memory.

    Source: Vaswani et al. 2017, figure 1; chapter 9.
    """
    memory, encoder_pullback = encoder_vjp(
        params.encoder, source, h=h, block_vjp=encoder_block_vjp, **options, **(source_reading or {})
    )
    y, decoder_pullback = decoder_vjp(
        params.decoder, target, memory, h=h, block_vjp=decoder_block_vjp, memory_reading=memory_reading, **options
    )

    def pullback(dy: Float[Array, "*batch n d_model"]) -> tuple:
        """The decoder hands the memory's gradient to the encoder."""
        ddecoder, dtarget, dmemory = decoder_pullback(dy)
        dencoder, dsource = encoder_pullback(dmemory)
        return EncoderDecoderParams(dencoder, ddecoder), dsource, dtarget

    return y, pullback


@shaped
def decoder_only(
    params: DecoderOnlyParams,
    tokens: Integer[Array, "*batch n"],
    *,
    h: int,
    block_vjp: Callable = pre_norm_block_vjp,
    **options: Any,
) -> Float[Array, "*batch n n_vocab"]:
    """The logits of the token that follows each token: `decoder_only_vjp` without the way back."""
    return decoder_only_vjp(params, tokens, h=h, block_vjp=block_vjp, **options)[0]


@shaped
def decoder_only_vjp(
    params: DecoderOnlyParams,
    tokens: Integer[Array, "*batch n"],
    *,
    h: int,
    block_vjp: Callable = pre_norm_block_vjp,
    **options: Any,
):
    """The logits of the token that follows each token, read from it and the ones before it.

        x_0 = E[tokens] + P[0 … n − 1],   x_L = blocks(x_0), causal,   logits = Norm(x_L) W_head

    Shapes: tokens (*batch, n) of integers in [0, n_vocab) -> logits (*batch, n, n_vocab); pullback:
    dlogits (*batch, n, n_vocab) -> dparams. Without P nothing is added (positions may come from rotary, for n
    keys); without W_head the head is Eᵀ, and E receives from both of its uses. The options (norm_vjp,
    activation_vjp, rotary, window …) are those of block_vjp; causal is set.
    Raises ShapeError if sizes disagree or P has fewer than n rows, DerivedError for a token out of range.

    Source: Radford et al. 2019, section 2.3 (pre-norm, final norm), Press and Wolf 2017 (tied head); chapter 9.
    """
    xp, E = array_namespace(tokens, params.E), params.E
    x, embedding_pullback = embedding_vjp(tokens, E)
    if params.P is not None:
        p, position_pullback = embedding_vjp(_first_positions(tokens, params.P), params.P)
        x = x + p
    y, stack_pullback = stack_vjp(block_vjp, params.stack, x, h=h, causal=True, **options)
    tied = params.W_head is None
    logits, head_pullback = linear_vjp(y, swap_last(E) if tied else params.W_head)

    def pullback(dlogits: Float[Array, "*batch n n_vocab"]) -> DecoderOnlyParams:
        """The lines above in reverse; a position's row learns from every sequence of the batch."""
        dy, dW_head = head_pullback(dlogits)
        dstack, dx = stack_pullback(dy)
        dE = embedding_pullback(dx)
        dP = None
        if params.P is not None:
            sequences = math.prod(tokens.shape[:-1])
            dP = position_pullback(xp.sum(xp.reshape(dx, (sequences, *dx.shape[-2:])), axis=0))
        if tied:
            return DecoderOnlyParams(dE + swap_last(dW_head), dstack, dP)
        return DecoderOnlyParams(dE, dstack, dP, dW_head)

    return logits, pullback


def _first_positions(tokens: Array, P: Array) -> Array:
    """0 … n − 1; ShapeError if the table of positions is shorter."""
    n = tokens.shape[-1]
    if n > P.shape[0]:
        raise ShapeError(
            f"decoder_only: tokens has n = {n}, P has rows for {P.shape[0]} positions only; give fewer tokens."
        )
    return array_namespace(tokens).arange(n, device=device_of(tokens))
