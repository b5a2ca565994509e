"""The parameters, or the gradients, of modules of torch and transformers in the structures of `derived.model`.

`get(name)` returns one array of the module: `weights(module)` or `gradients(module)`.
"""

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


def weights(module):
    """get for the module's parameters."""
    return lambda name: module.get_parameter(name).detach()


def gradients(module):
    """get for the gradients that a backward pass has left on the module's parameters."""
    return lambda name: module.get_parameter(name).grad


def norm(get, at):
    return NormParams(get(f"{at}.weight"), get(f"{at}.bias"))


def multi_head(get, at=""):
    """torch.nn.MultiheadAttention: one matrix for three projections."""
    at = f"{at}." if at else ""
    q, k, v = get(f"{at}in_proj_weight").chunk(3)
    biases = get(f"{at}in_proj_bias").chunk(3)
    return MultiHeadParams(q.T, k.T, v.T, get(f"{at}out_proj.weight").T, *biases, get(f"{at}out_proj.bias"))


def multi_head_apart(get):
    """torch.nn.MultiheadAttention with kdim or vdim: three matrices."""
    q, k, v = (get(f"{name}_proj_weight").T for name in "qkv")
    return MultiHeadParams(q, k, v, get("out_proj.weight").T, *get("in_proj_bias").chunk(3), get("out_proj.bias"))


def feed_forward(get, at):
    return FeedForwardParams(
        get(f"{at}linear1.weight").T, get(f"{at}linear2.weight").T, get(f"{at}linear1.bias"), get(f"{at}linear2.bias")
    )


def encoder_layer(get, at=""):
    """torch.nn.TransformerEncoderLayer."""
    return BlockParams(
        multi_head(get, f"{at}self_attn"), norm(get, f"{at}norm1"), feed_forward(get, at), norm(get, f"{at}norm2")
    )


def decoder_layer(get, at=""):
    """torch.nn.TransformerDecoderLayer."""
    return CrossBlockParams(
        multi_head(get, f"{at}self_attn"),
        norm(get, f"{at}norm1"),
        multi_head(get, f"{at}multihead_attn"),
        norm(get, f"{at}norm2"),
        feed_forward(get, at),
        norm(get, f"{at}norm3"),
    )


def transformer(get, L):
    """torch.nn.Transformer with L layers in each stack."""
    return EncoderDecoderParams(
        StackParams(tuple(encoder_layer(get, f"encoder.layers.{i}.") for i in range(L)), norm(get, "encoder.norm")),
        StackParams(tuple(decoder_layer(get, f"decoder.layers.{i}.") for i in range(L)), norm(get, "decoder.norm")),
    )


def gpt2(get, L):
    """transformers' GPT2LMHeadModel: its Conv1D matrices act from the right, as ours do; tied head."""

    def block(at):
        q, k, v = get(f"{at}attn.c_attn.weight").chunk(3, dim=1)
        biases = get(f"{at}attn.c_attn.bias").chunk(3)
        return BlockParams(
            MultiHeadParams(q, k, v, get(f"{at}attn.c_proj.weight"), *biases, get(f"{at}attn.c_proj.bias")),
            norm(get, f"{at}ln_1"),
            FeedForwardParams(
                get(f"{at}mlp.c_fc.weight"),
                get(f"{at}mlp.c_proj.weight"),
                get(f"{at}mlp.c_fc.bias"),
                get(f"{at}mlp.c_proj.bias"),
            ),
            norm(get, f"{at}ln_2"),
        )

    layers = tuple(block(f"transformer.h.{i}.") for i in range(L))
    stack = StackParams(layers, norm(get, "transformer.ln_f"))
    return DecoderOnlyParams(get("transformer.wte.weight"), stack, get("transformer.wpe.weight"))


def llama(get, L):
    """transformers' LlamaForCausalLM: no biases, RMSNorm, gated, its own head."""

    def block(at):
        q, k, v, o = (get(f"{at}self_attn.{name}_proj.weight").T for name in "qkvo")
        gate, up, down = (get(f"{at}mlp.{name}_proj.weight").T for name in ("gate", "up", "down"))
        return BlockParams(
            MultiHeadParams(q, k, v, o),
            NormParams(get(f"{at}input_layernorm.weight")),
            GatedFeedForwardParams(gate, up, down),
            NormParams(get(f"{at}post_attention_layernorm.weight")),
        )

    stack = StackParams(tuple(block(f"model.layers.{i}.") for i in range(L)), NormParams(get("model.norm.weight")))
    return DecoderOnlyParams(get("model.embed_tokens.weight"), stack, None, get("lm_head.weight").T)
