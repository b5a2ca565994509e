"""Models chained of derived ops: f_vjp(params, x) -> (y, pullback), where pullback(dy) -> (dparams, dx).

Parameters are nested named tuples of arrays, and their gradient has the same structure. Nothing is learned
or stored here; a step of training is one `map_arrays` over parameters and gradients.
"""

from derived.model.block import post_norm_block, post_norm_block_vjp, pre_norm_block, pre_norm_block_vjp
from derived.model.cross_block import (
    post_norm_cross_block,
    post_norm_cross_block_vjp,
    pre_norm_cross_block,
    pre_norm_cross_block_vjp,
)
from derived.model.layers import feed_forward_layer_vjp, layer_vjp
from derived.model.multi_head import Rotary, multi_head_attention, multi_head_attention_vjp
from derived.model.stack import StackTrace, layers_trace, stack_vjp
from derived.model.transformer import (
    decoder,
    decoder_only,
    decoder_only_vjp,
    decoder_vjp,
    encoder,
    encoder_decoder,
    encoder_decoder_vjp,
    encoder_vjp,
)
from derived.model.tree import count_parameters, leaves, map_arrays

__all__ = [
    "Rotary",
    "StackTrace",
    "count_parameters",
    "decoder",
    "decoder_only",
    "decoder_only_vjp",
    "decoder_vjp",
    "encoder",
    "encoder_decoder",
    "encoder_decoder_vjp",
    "encoder_vjp",
    "feed_forward_layer_vjp",
    "layer_vjp",
    "layers_trace",
    "leaves",
    "map_arrays",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "post_norm_block",
    "post_norm_block_vjp",
    "post_norm_cross_block",
    "post_norm_cross_block_vjp",
    "pre_norm_block",
    "pre_norm_block_vjp",
    "pre_norm_cross_block",
    "pre_norm_cross_block_vjp",
    "stack_vjp",
]
