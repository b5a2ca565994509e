"""Decoders of which some layers keep a state of constant size instead of keys and values."""

from derived.cost.spec import mixers, parts
from derived.cost.spec.decoder import ends, model_of, rope_rows
from derived.cost.spec.fields import MOST_LAYERS, ConfigError, Fields
from derived.cost.spec.model import Cache, Layer, Model, Scores

NAMES = {
    "full_attention": "attention",
    "attention": "attention",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "moe": "experts",
    "mlp": "network",
}
"""Names of layer kinds as configs write them, and what they are here."""


def kinds(f: Fields, field: str, allowed: set[str], default: list[str] | None) -> list[str]:
    """What each layer is; refused where a name is not known for this type."""
    said = f.listed(field, str, f.layers if f.given("num_hidden_layers") else None)
    said = default if said is None else said
    if said is None:
        raise ConfigError(f"{field} is missing: a {f.model_type} config lists what each layer is")
    if not 0 < len(said) <= MOST_LAYERS:
        raise ConfigError(f"{field} has {len(said)} entries: a model has between 1 and {MOST_LAYERS} layers")
    for name in said:
        if NAMES.get(name) not in allowed:
            known = ", ".join(sorted(name for name, kind in NAMES.items() if kind in allowed))
            raise ConfigError(f"{field} names {name!r}, which is not derived for {f.model_type}; known here: {known}")
    return [NAMES[name] for name in said]


def attention_of(f: Fields, h_kv: int, d_k: int, **more) -> tuple[tuple, tuple, tuple]:
    """Tensors, caches and scores of an attention mixer."""
    h = f.heads
    tensors = parts.grouped_attention(f.width, h, h_kv, d_k, **more)
    return tensors, (Cache("heads", h_kv, d_k, d_k),), (Scores(h, d_k, d_k),)


def gated_delta(ffn):
    """Qwen3-Next and Qwen3.5: three layers of gated linear attention for one of gated full attention."""

    def read(f: Fields) -> Model:
        interval = f.size("full_attention_interval", default=4)
        default = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(f.layers)]
        h_kv, d_k, biased = f.kv_heads(), f.head_width(256), f.flag("attention_bias", False)
        recurrent = parts.delta_net(
            f.width, f.size("linear_num_key_heads"), f.size("linear_num_value_heads"),
            f.size("linear_key_head_dim"), f.size("linear_value_head_dim"), f.size("linear_conv_kernel_dim"),
        )  # fmt: skip
        full = attention_of(f, h_kv, d_k, qkv_bias=biased, o_bias=biased, qk_norm="head", gate=True)
        layers = []
        for i, kind in enumerate(kinds(f, "layer_types", {"attention", "state"}, default)):
            tensors, caches, scores = full if kind == "attention" else (*recurrent, ())
            name = "full attention" if kind == "attention" else "gated linear attention"
            walked = 0 if kind == "attention" else 3 * caches[0].heads * caches[0].width_k
            layers.append(Layer(name, (*tensors, *ffn(f, i, False), *parts.norm(f.width, 2)), caches, scores, walked))
        tied = f.flag("tie_word_embeddings", False)
        first, last = ends(f, tied)
        if "partial_rotary_factor" not in f.raw:
            f.raw = f.raw | {"partial_rotary_factor": 0.25}  # the type's default
        return model_of(
            f, first=first, layers=tuple(layers), last=last, tied=tied, h=f.heads, rope=rope_rows(f, d_k)
        )  # fmt: skip

    return read


qwen3_next = gated_delta(mixers.sparse_steps_shared)
qwen3_5 = gated_delta(mixers.dense)


def granite_hybrid(f: Fields) -> Model:
    """Mamba-2 or attention, then experts (if any) beside a shared network."""
    d = f.width
    h, expand = f.size("mamba_n_heads", default=128), f.size("mamba_expand", default=2)
    d_head = f.raw.get("mamba_d_head", "auto")
    if d_head == "auto":
        d_head = d * expand // h
    elif f.size("mamba_d_head") * h != d * expand:
        raise ConfigError(f"mamba_n_heads {h} × mamba_d_head {d_head} is not mamba_expand × hidden_size {d * expand}")
    recurrent = parts.mamba2(
        d, h, d_head, f.size("mamba_n_groups", default=1), f.size("mamba_d_state", default=256),
        f.size("mamba_d_conv", default=4), conv_bias=f.flag("mamba_conv_bias", True),
        bias=f.flag("mamba_proj_bias", False),
    )  # fmt: skip
    biased = f.flag("attention_bias", False)
    full = attention_of(f, f.kv_heads("equal"), f.head_width(), qkv_bias=biased, o_bias=biased)
    ffn = parts.shared_expert(d, f.size("shared_intermediate_size"))
    if f.size("num_local_experts", least=0):
        used = mixers.counts(f, "num_local_experts")
        ffn = (*parts.experts(d, f.size("intermediate_size"), *used), *ffn)
    layers = []
    for kind in kinds(f, "layer_types", {"attention", "state"}, None):
        tensors, caches, scores = full if kind == "attention" else (*recurrent, ())
        name = "full attention" if kind == "attention" else "state space"
        walked = 0 if kind == "attention" else 2 * caches[0].heads * caches[0].width_k
        layers.append(Layer(name, (*tensors, *ffn, *parts.norm(d, 2)), caches, scores, walked))
    tied = f.flag("tie_word_embeddings", False)
    first, last = ends(f, tied)
    rope = rope_rows(f, f.head_width()) if f.word("position_embedding_type", "") == "rope" else ()
    return model_of(f, first=first, layers=tuple(layers), last=last, tied=tied, h=f.heads, rope=rope)


PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(f: Fields) -> Model:
    """One mixer a layer under one norm: Mamba-2, attention, a two-matrix network, or experts."""
    pattern = f.word("hybrid_override_pattern", "")
    if pattern and not f.raw.get("layers_block_type"):
        strange = sorted(set(pattern) - set(PATTERN))
        if strange:
            raise ConfigError(f"hybrid_override_pattern holds {strange[0]!r}; known here: {' '.join(PATTERN)}")
        f.raw = f.raw | {"layers_block_type": [PATTERN[letter] for letter in pattern]}
    d, biased = f.width, f.flag("mlp_bias", False)
    attention = attention_of(f, f.kv_heads("equal"), f.head_width(128))
    recurrent = parts.mamba2(
        d, f.size("mamba_num_heads"), f.size("mamba_head_dim"), f.size("n_groups", "mamba_n_groups"),
        f.size("ssm_state_size"), f.size("conv_kernel", "mamba_d_conv", default=4),
        conv_bias=f.flag("use_conv_bias", True), bias=f.flag("use_bias", False),
    )  # fmt: skip
    every = {"attention", "state", "experts", "network"}
    layers = []
    for kind in kinds(f, "layers_block_type", every, None):
        if kind == "attention":
            tensors, caches, scores = attention
        elif kind == "state":
            tensors, caches, scores = (*recurrent, ())
        else:
            tensors, caches, scores = routed(f) if kind == "experts" else network(f, biased), (), ()
        walked = 2 * caches[0].heads * caches[0].width_k if kind == "state" else 0
        layers.append(Layer(kind, (*tensors, *parts.norm(d)), caches, scores, walked))
    tied = f.flag("tie_word_embeddings", False)
    first, last = ends(f, tied)
    return model_of(f, first=first, layers=tuple(layers), last=last, tied=tied, h=f.heads)


def network(f: Fields, biased: bool) -> tuple:
    """Two matrices around a squared ReLU."""
    return parts.feed_forward(f.width, f.size("intermediate_size"), gated=False, bias=biased)


def routed(f: Fields) -> tuple:
    """Two-matrix experts with a correction bias in the router, a shared one beside them."""
    if f.size_or_none("moe_latent_size"):
        raise ConfigError("moe_latent_size is set: experts behind a latent projection are not derived here")
    d, d_ff = f.width, f.size("moe_intermediate_size")
    count = mixers.counts(f, "n_routed_experts", "num_local_experts")
    shared = parts.shared_expert(d, f.size("moe_shared_expert_intermediate_size"), gated=False)
    return (*parts.experts(d, d_ff, *count, gated=False, router_bias=True), *shared)
