"""Parameters to begin with, drawn from a generator: numpy float64, in the structures of `model.parameters`.

`model.tree.map_arrays(torch.from_numpy, params)` moves them to torch. Biases begin at 0 and gains at 1.
"""

import math
from collections.abc import Callable

import numpy as np

from derived.model.parameters import (
    BlockParams,
    CrossBlockParams,
    DecoderOnlyParams,
    EncoderDecoderParams,
    FeedForwardParams,
    GatedFeedForwardParams,
    MultiHeadParams,
    NormParams,
    StackParams,
)


def fan_in_normal(rng: np.random.Generator, d_in: int, d_out: int) -> np.ndarray:
    """Normal with variance 1/d_in: inputs of variance 1 give outputs of variance 1, whatever the width.

    Shapes: -> (d_in, d_out).

    Source: LeCun et al. 1998, section 4.6; chapter 7.
    """
    return rng.normal(0, 1 / math.sqrt(d_in), size=(d_in, d_out))


def xavier_uniform(rng: np.random.Generator, d_in: int, d_out: int) -> np.ndarray:
    """Uniform with variance 2/(d_in + d_out), a compromise between the way there and the way back.

    Shapes: -> (d_in, d_out).

    Source: Glorot and Bengio 2010, equation 16; torch.nn.Transformer begins so.
    """
    limit = math.sqrt(6 / (d_in + d_out))
    return rng.uniform(-limit, limit, size=(d_in, d_out))


def initial_norm(d_model: int, *, biased: bool = True) -> NormParams:
    """Gain 1, and bias 0 unless the norm has none."""
    return NormParams(np.ones(d_model), np.zeros(d_model) if biased else None)


def initial_multi_head(
    rng: np.random.Generator,
    d_model: int,
    *,
    h: int,
    h_kv: int | None = None,
    d_k: int | None = None,
    d_v: int | None = None,
    d_memory: int | None = None,
    biased: bool = True,
    matrix: Callable = fan_in_normal,
) -> MultiHeadParams:
    """The four projections; h_kv is h, d_k is d_model // h, d_v is d_k and d_memory is d_model unless given."""
    h_kv, d_k = h_kv or h, d_k or d_model // h
    d_v, d_memory = d_v or d_k, d_memory or d_model
    shapes = ((d_model, h * d_k), (d_memory, h_kv * d_k), (d_memory, h_kv * d_v), (h * d_v, d_model))
    matrices = [matrix(rng, *shape) for shape in shapes]
    return MultiHeadParams(*matrices, *(np.zeros(d_out) for _, d_out in shapes if biased))


def initial_feed_forward(
    rng: np.random.Generator, d_model: int, d_ff: int, *, biased: bool = True, matrix: Callable = fan_in_normal
) -> FeedForwardParams:
    """The two matrices of the plain network."""
    shapes = ((d_model, d_ff), (d_ff, d_model))
    return FeedForwardParams(*(matrix(rng, *s) for s in shapes), *(np.zeros(d_out) for _, d_out in shapes if biased))


def initial_gated_feed_forward(
    rng: np.random.Generator, d_model: int, d_ff: int, *, biased: bool = True, matrix: Callable = fan_in_normal
) -> GatedFeedForwardParams:
    """The three matrices of the gated network."""
    shapes = ((d_model, d_ff), (d_model, d_ff), (d_ff, d_model))
    return GatedFeedForwardParams(
        *(matrix(rng, *s) for s in shapes), *(np.zeros(d_out) for _, d_out in shapes if biased)
    )


def initial_block(
    rng: np.random.Generator,
    d_model: int,
    *,
    h: int,
    d_ff: int,
    h_kv: int | None = None,
    biased: bool = True,
    feed_forward: Callable = initial_feed_forward,
    matrix: Callable = fan_in_normal,
) -> BlockParams:
    """One block, with or without biases throughout; feed_forward may be `initial_gated_feed_forward`."""
    return BlockParams(
        initial_multi_head(rng, d_model, h=h, h_kv=h_kv, biased=biased, matrix=matrix),
        initial_norm(d_model, biased=biased),
        feed_forward(rng, d_model, d_ff, biased=biased, matrix=matrix),
        initial_norm(d_model, biased=biased),
    )


def initial_cross_block(
    rng: np.random.Generator, d_model: int, *, h: int, d_ff: int, biased: bool = True, matrix: Callable = fan_in_normal
) -> CrossBlockParams:
    """One block of a decoder that reads an encoder's output."""
    return CrossBlockParams(
        initial_multi_head(rng, d_model, h=h, biased=biased, matrix=matrix),
        initial_norm(d_model, biased=biased),
        initial_multi_head(rng, d_model, h=h, biased=biased, matrix=matrix),
        initial_norm(d_model, biased=biased),
        initial_feed_forward(rng, d_model, d_ff, biased=biased, matrix=matrix),
        initial_norm(d_model, biased=biased),
    )


def initial_stack(rng: np.random.Generator, d_model: int, *, L: int, block: Callable = initial_block, **options):
    """L blocks and a final norm, which post-norm stacks of 2017 lack: `._replace(final_norm=None)` drops it."""
    layers = tuple(block(rng, d_model, **options) for _ in range(L))
    return StackParams(layers, initial_norm(d_model, biased=options.get("biased", True)))


def initial_encoder_decoder(rng: np.random.Generator, d_model: int, *, L: int, **options) -> EncoderDecoderParams:
    """Two stacks of L blocks."""
    encoder = initial_stack(rng, d_model, L=L, **options)
    return EncoderDecoderParams(encoder, initial_stack(rng, d_model, L=L, block=initial_cross_block, **options))


def initial_decoder_only(
    rng: np.random.Generator,
    n_vocab: int,
    d_model: int,
    *,
    L: int,
    n_max: int | None = None,
    tied: bool = True,
    **options,
) -> DecoderOnlyParams:
    """A language model: embedding and learned positions (n_max of them, or none) with deviation 0.02, as in GPT.

    Source: Radford et al. 2018, section 4.1 (0.02).
    """
    matrix = options.get("matrix", fan_in_normal)
    return DecoderOnlyParams(
        E=rng.normal(0, 0.02, size=(n_vocab, d_model)),
        stack=initial_stack(rng, d_model, L=L, **options),
        P=None if n_max is None else rng.normal(0, 0.02, size=(n_max, d_model)),
        W_head=None if tied else matrix(rng, d_model, n_vocab),
    )
