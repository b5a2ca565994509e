"""The decoders before Llama: LayerNorms with shifts, two-matrix networks, biases; and T5, with an encoder."""

from derived.cost.spec import parts
from derived.cost.spec.decoder import ends, model_of, rope_rows
from derived.cost.spec.fields import Fields
from derived.cost.spec.model import NORM, Cache, Layer, Model, Scores, Tensor


def stack(f: Fields, tensors: tuple, h_kv: int, d_k: int, L: int | None = None) -> tuple[Layer, ...]:
    """L equal layers of full attention."""
    layer = Layer("full attention", tensors, (Cache("heads", h_kv, d_k, d_k),), (Scores(f.heads, d_k, d_k),))
    return (layer,) * (f.layers if L is None else L)


def block(f: Fields, d_ff: int, *, bias: bool, attention_bias: bool, norms: tuple, h_kv: int | None = None) -> tuple:
    """Attention, a two-matrix network and norms."""
    h, d_k = f.heads, f.head_width()
    attention = parts.grouped_attention(
        f.width, h, h if h_kv is None else h_kv, d_k, qkv_bias=attention_bias, o_bias=attention_bias
    )
    return (*attention, *parts.feed_forward(f.width, d_ff, gated=False, bias=bias), *norms)


def gpt2(f: Fields) -> Model:
    """12 d² + 13 d a layer, learned positions, tied."""
    f.must_be("add_cross_attention", False, False)
    d = f.width
    d_ff = f.size("n_inner", default=4 * d)
    tensors = block(f, d_ff, bias=True, attention_bias=True, norms=parts.norm(d, 2, bias=True))
    tied = f.flag("tie_word_embeddings", True)
    table = parts.positions(f.size("n_positions", "max_position_embeddings", "n_ctx", default=1024), d)
    first, last = ends(f, tied, final=parts.norm(d, bias=True, name="final norm"), extra=(table,))
    layers = stack(f, tensors, f.heads, f.head_width())
    return model_of(f, first=first, layers=layers, last=last, tied=tied, h=f.heads)


def gpt_neox(f: Fields) -> Model:
    """Biases everywhere, rotary positions, an output head of its own."""
    d, biased = f.width, f.flag("attention_bias", True)
    norms = parts.norm(d, 2, bias=True)
    tensors = block(f, f.size("intermediate_size"), bias=True, attention_bias=biased, norms=norms)
    tied = f.flag("tie_word_embeddings", False)
    first, last = ends(f, tied, final=parts.norm(d, bias=True, name="final norm"))
    turning = f.raw.get("rotary_pct")
    if turning is not None and "partial_rotary_factor" not in f.raw:
        f.raw = f.raw | {"partial_rotary_factor": turning}
    return model_of(
        f, first=first, layers=stack(f, tensors, f.heads, f.head_width()), last=last, tied=tied, h=f.heads,
        rope=rope_rows(f, f.head_width()),
    )  # fmt: skip


def opt(f: Fields) -> Model:
    """Learned positions with two rows more than it says; an embedding that may be narrower than the layers."""
    d, biased, affine = f.width, f.flag("enable_bias", True), f.flag("layer_norm_elementwise_affine", True)
    norms = parts.norm(d, 2, bias=affine, weight=affine)
    tensors = block(f, f.size("ffn_dim"), bias=biased, attention_bias=biased, norms=norms)
    narrow = f.size("word_embed_proj_dim", default=d)
    tied = f.flag("tie_word_embeddings", True)
    first = [parts.embedding(f.size("vocab_size"), narrow), parts.positions(f.size("max_position_embeddings") + 2, d)]
    last: list[Tensor] = []
    if f.flag("do_layer_norm_before", True) and not f.flag("_remove_final_layer_norm", False):
        last += parts.norm(d, bias=affine, weight=affine, name="final norm")
    if narrow != d:
        first.append(Tensor("projection in", "projection", (d, narrow)))
        last.append(Tensor("projection out", "projection", (narrow, d)))
    if not tied:
        last.append(parts.head(f.size("vocab_size"), narrow))
    layers = stack(f, tensors, f.heads, f.head_width())
    return model_of(f, first=tuple(first), layers=layers, last=tuple(last), tied=tied, h=f.heads)


def bloom(f: Fields) -> Model:
    """12 d² + 13 d a layer, ALiBi, a norm behind the embedding."""
    d = f.width
    tensors = block(f, 4 * d, bias=True, attention_bias=True, norms=parts.norm(d, 2, bias=True))
    tied = f.flag("tie_word_embeddings", True)
    behind = parts.norm(d, bias=True, name="embedding norm")
    first, last = ends(f, tied, final=parts.norm(d, bias=True, name="final norm"), extra=behind)
    layers = stack(f, tensors, f.heads, f.head_width())
    return model_of(f, first=first, layers=layers, last=last, tied=tied, h=f.heads)


def falcon(f: Fields) -> Model:
    """One key head (multi_query), or num_kv_heads of them (new_decoder_architecture); attention beside the network."""
    d, h, biased = f.width, f.heads, f.flag("bias", False)
    new, multi = f.flag("new_decoder_architecture", False), f.flag("multi_query", True)
    h_kv = f.size("num_kv_heads", "n_head_kv", default=h) if new else 1 if multi else h
    f.raw = f.raw | {"num_key_value_heads": h_kv}
    h_kv = f.kv_heads()
    norms = 1
    if not f.flag("parallel_attn", True) or f.size("num_ln_in_parallel_attn", default=2 if new else 1) == 2:
        norms = 2
    d_ff = f.size("ffn_hidden_size", default=4 * d)
    gains = parts.norm(d, norms, bias=True)
    tensors = block(f, d_ff, bias=biased, attention_bias=biased, norms=gains, h_kv=h_kv)
    tied = f.flag("tie_word_embeddings", True)
    first, last = ends(f, tied, final=parts.norm(d, bias=True, name="final norm"))
    rope = () if f.flag("alibi", False) else rope_rows(f, f.head_width())
    layers = stack(f, tensors, h_kv, f.head_width())
    return model_of(f, first=first, layers=layers, last=last, tied=tied, h=h, rope=rope)


def mpt(f: Fields) -> Model:
    """No bias anywhere, ALiBi, 12 d² + 2 d a layer at the usual expansion."""
    f.must_be("no_bias", True, True)
    inner = f.raw.get("attn_config")
    attention = Fields(inner if isinstance(inner, dict) else {}, f.model_type)
    attention.must_be("attn_type", "multihead_attention", None)
    attention.must_be("alibi", True, None)
    attention.must_be("qk_ln", False, None)
    d = f.width
    d_ff = d * f.size("expansion_ratio", default=4)
    tensors = block(f, d_ff, bias=False, attention_bias=False, norms=parts.norm(d, 2))
    tied = f.flag("tie_word_embeddings", True)
    first, last = ends(f, tied)
    layers = stack(f, tensors, f.heads, f.head_width())
    return model_of(f, first=first, layers=layers, last=last, tied=tied, h=f.heads)


def t5(f: Fields) -> Model:
    """Encoder layers without a cache, then decoder layers that cache their own tokens and the encoder's.

    The context counts both: n tokens encoded, n decoded.
    """
    d, h, d_k, d_ff = f.width, f.heads, f.size("d_kv"), f.size("d_ff")
    L = f.size("num_layers", "num_hidden_layers", most=4096)
    gated = f.word("feed_forward_proj", "relu").startswith("gated")
    attention = parts.grouped_attention(d, h, h, d_k)
    ffn = parts.feed_forward(d, d_ff, gated=gated)
    encoder = Layer("encoder", (*attention, *ffn, *parts.norm(d, 2)), (), (Scores(h, d_k, d_k),))
    own, cross = (Cache("heads", h, d_k, d_k, name=f"keys and values of {of}") for of in ("the decoder", "the encoder"))
    decoder = Layer(
        "decoder", (*attention, *attention, *ffn, *parts.norm(d, 3)), (own, cross), (Scores(h, d_k, d_k),) * 2
    )
    buckets = f.size("relative_attention_num_buckets", default=32)
    relative = Tensor("relative positions", "positions", (buckets, h), 1, h)
    tied = f.flag("tie_word_embeddings", True)
    first = (parts.embedding(f.size("vocab_size"), d), relative)
    last = [relative, Tensor("final norms", NORM, (d,), copies=2)]
    if not tied:
        last.append(parts.head(f.size("vocab_size"), d))
    layers = (encoder,) * L + (decoder,) * f.size("num_decoder_layers", default=L, most=4096)
    return model_of(f, first=first, layers=layers, last=tuple(last), tied=tied, h=h)
