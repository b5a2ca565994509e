"""What a model learns, as nested named tuples of arrays; None stands where a model has no such array.

A gradient comes back in the same structure as the parameters it belongs to, None for None. Matrices act on
row vectors from the right, so they are the transposes of what torch.nn.Linear holds.
"""

from typing import NamedTuple

from derived.ops.arrays import Array


class NormParams(NamedTuple):
    """LayerNorm's gain (d_model) and bias (d_model), or RMSNorm's gain alone."""

    gain: Array
    bias: Array | None = None


class MultiHeadParams(NamedTuple):
    """The four projections of attention; d_memory is d_model unless keys come from elsewhere."""

    W_Q: Array  # (d_model, h d_k)
    W_K: Array  # (d_memory, h_kv d_k)
    W_V: Array  # (d_memory, h_kv d_v)
    W_O: Array  # (h d_v, d_model)
    b_Q: Array | None = None
    b_K: Array | None = None
    b_V: Array | None = None
    b_O: Array | None = None


class FeedForwardParams(NamedTuple):
    """Two linear maps around an activation."""

    W_1: Array  # (d_model, d_ff)
    W_2: Array  # (d_ff, d_model)
    b_1: Array | None = None
    b_2: Array | None = None


class GatedFeedForwardParams(NamedTuple):
    """Three linear maps: one of the two that widen is activated and gates the other."""

    W_gate: Array  # (d_model, d_ff)
    W_up: Array  # (d_model, d_ff)
    W_down: Array  # (d_ff, d_model)
    b_gate: Array | None = None
    b_up: Array | None = None
    b_down: Array | None = None


class BlockParams(NamedTuple):
    """One layer of an encoder, or of a decoder-only model."""

    attention: MultiHeadParams
    norm_1: NormParams
    feed_forward: FeedForwardParams | GatedFeedForwardParams
    norm_2: NormParams


class CrossBlockParams(NamedTuple):
    """One layer of a decoder that also reads an encoder's output."""

    attention: MultiHeadParams
    norm_1: NormParams
    cross_attention: MultiHeadParams
    norm_2: NormParams
    feed_forward: FeedForwardParams | GatedFeedForwardParams
    norm_3: NormParams


class StackParams(NamedTuple):
    """Layers one after another, and the norm behind the last one that pre-norm stacks need."""

    layers: tuple[BlockParams, ...] | tuple[CrossBlockParams, ...]
    final_norm: NormParams | None = None


class EncoderDecoderParams(NamedTuple):
    """Two stacks; every layer of the second reads the output of the first."""

    encoder: StackParams  # of BlockParams
    decoder: StackParams  # of CrossBlockParams


class DecoderOnlyParams(NamedTuple):
    """A language model: tokens in, one logit for every entry of the vocabulary out."""

    E: Array  # embedding, (n_vocab, d_model)
    stack: StackParams  # of BlockParams
    P: Array | None = None  # learned positions, (n_max, d_model)
    W_head: Array | None = None  # (d_model, n_vocab); None: tied, the head is Eᵀ
