"""Parameters: how many numbers each module holds, equal to the last digit to what torch and transformers build.

Switches (`bias`, `tied`) say what a module has; their defaults are what the literature's formula takes.

Chapters: 8, 9, 13 and 16.
"""

from derived.cost._checks import formula, quotient


@formula
def linear_parameters(d_in, d_out, *, bias=False):
    """Parameters of a linear map: d_in d_out, and d_out more with a bias.

    Source: chapter 8.
    """
    return d_in * d_out + bias * d_out


@formula
def embedding_parameters(n_vocab, d_model):
    """Parameters of a table of n_vocab rows: n_vocab d_model. A learned position table is one with n rows.

    Source: chapter 9.
    """
    return n_vocab * d_model


@formula
def layer_norm_parameters(d_model, *, bias=True):
    """Parameters of LayerNorm: a gain and, with a bias, a shift for each of d_model components.

    Source: chapter 7.
    """
    return d_model + bias * d_model


@formula
def rms_norm_parameters(d_model):
    """Parameters of RMSNorm: a gain for each of d_model components.

    Source: chapter 7.
    """
    return d_model


@formula
def attention_parameters(*, d_model, h, h_kv, d_k, d_v, qkv_bias=False, output_bias=False):
    """Parameters of W_Q, W_K, W_V and W_O with h query heads and h_kv KV heads.

        d_model (h d_k + h_kv d_k + h_kv d_v + h d_v)
        qkv_bias adds h d_k + h_kv d_k + h_kv d_v, output_bias adds d_model

    With h_kv = h and h d_k = h d_v = d_model that is 4 d_model², whatever h is.

    Source: chapters 6 and 9.
    """
    read = h * d_k + h_kv * d_k + h_kv * d_v
    return d_model * (read + h * d_v) + qkv_bias * read + output_bias * d_model


@formula
def feed_forward_parameters(*, d_model, d_ff, bias=False):
    """Parameters of two linear maps, up and down: 2 d_model d_ff, with biases d_ff + d_model more.

    Source: chapter 8.
    """
    return linear_parameters(d_model, d_ff, bias=bias) + linear_parameters(d_ff, d_model, bias=bias)


@formula
def gated_feed_forward_parameters(*, d_model, d_ff, bias=False):
    """Parameters of gate, up and down: 3 d_model d_ff, with biases 2 d_ff + d_model more.

    Equal to two maps of width 4 d_model when d_ff = 8/3 d_model.

    Source: chapter 8.
    """
    return 2 * linear_parameters(d_model, d_ff, bias=bias) + linear_parameters(d_ff, d_model, bias=bias)


@formula
def encoder_block_parameters(*, d_model, d_ff):
    """Parameters of one encoder block of 2017, biases and two LayerNorms included; a GPT-2 block holds as many.

        4 d_model² + 2 d_model d_ff + 9 d_model + d_ff

    With d_ff = 4 d_model: 12 d_model² + 13 d_model. Pre-norm and post-norm hold the same.

    Source: Vaswani et al., 2017; chapter 9.
    """
    return (
        _attention_2017(d_model)
        + feed_forward_parameters(d_model=d_model, d_ff=d_ff, bias=True)
        + 2 * layer_norm_parameters(d_model)
    )


@formula
def decoder_block_parameters(*, d_model, d_ff):
    """Parameters of one decoder block of 2017: self-attention, cross-attention, FFN and three LayerNorms.

    8 d_model² + 2 d_model d_ff + 15 d_model + d_ff

    Source: Vaswani et al., 2017; chapter 9.
    """
    cross = _attention_2017(d_model) + layer_norm_parameters(d_model)
    return encoder_block_parameters(d_model=d_model, d_ff=d_ff) + cross


@formula
def llama_block_parameters(*, d_model, h, h_kv, d_k, d_ff):
    """Parameters of one decoder-only block of the Llama family: grouped heads, gated FFN, two RMSNorms, no bias.

    2 d_model d_k (h + h_kv) + 3 d_model d_ff + 2 d_model

    Source: Touvron et al., 2023; chapter 9.
    """
    return (
        attention_parameters(d_model=d_model, h=h, h_kv=h_kv, d_k=d_k, d_v=d_k)
        + gated_feed_forward_parameters(d_model=d_model, d_ff=d_ff)
        + 2 * rms_norm_parameters(d_model)
    )


@formula
def transformer_parameters(*, L, d_model, d_ff, n_vocab):
    """Parameters of the encoder–decoder of 2017: L blocks each side, one table for both inputs and the output map.

    L (encoder block + decoder block) + n_vocab d_model

    Positions are sinusoids and hold none. `torch.nn.Transformer` holds 4 d_model more (a LayerNorm after each
    stack) and no table.

    Source: Vaswani et al., 2017, sections 3.1 and 3.4; chapter 9.
    """
    blocks = encoder_block_parameters(d_model=d_model, d_ff=d_ff) + decoder_block_parameters(d_model=d_model, d_ff=d_ff)
    return L * blocks + embedding_parameters(n_vocab, d_model)


@formula
def gpt2_parameters(*, L, d_model, d_ff, n_vocab, n):
    """Parameters of GPT-2 with a position table of n rows; the head is the token table again and counts once.

    L (encoder block) + (n_vocab + n) d_model + 2 d_model

    Source: Radford et al., 2019; chapter 9.
    """
    tables = embedding_parameters(n_vocab, d_model) + embedding_parameters(n, d_model)
    return L * encoder_block_parameters(d_model=d_model, d_ff=d_ff) + tables + layer_norm_parameters(d_model)


@formula
def llama_parameters(*, L, d_model, h, h_kv, d_k, d_ff, n_vocab, tied=False):
    """Parameters of a dense Llama: blocks, a last RMSNorm, the token table, and a head of its own unless tied.

    L (Llama block) + d_model + 2 n_vocab d_model,    tied: n_vocab d_model once

    Source: Touvron et al., 2023; chapter 13.
    """
    block = llama_block_parameters(d_model=d_model, h=h, h_kv=h_kv, d_k=d_k, d_ff=d_ff)
    tables = (2 - tied) * embedding_parameters(n_vocab, d_model)
    return L * block + rms_norm_parameters(d_model) + tables


@formula
def lora_parameters(d_in, d_out, r):
    """Parameters of one low-rank update ΔW = D U: r (d_in + d_out), two matrices for each adapted matrix.

    Smaller than the d_in d_out of W only when r < d_in d_out / (d_in + d_out).

    Source: Hu et al., 2021, section 4.1; chapter 16.
    """
    return linear_parameters(d_in, r) + linear_parameters(r, d_out)


@formula
def lora_break_even_rank(d_in, d_out):
    """The rank at which a low-rank update holds as many parameters as the matrix: d_in d_out / (d_in + d_out).

    Source: chapter 16.
    """
    return quotient(d_in * d_out, d_in + d_out)


def _attention_2017(d_model):
    """Four square projections with biases; h cancels since h d_k = d_model, so it is counted with one head."""
    return attention_parameters(d_model=d_model, h=1, h_kv=1, d_k=d_model, d_v=d_model, qkv_bias=True, output_bias=True)
