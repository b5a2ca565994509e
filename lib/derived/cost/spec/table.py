"""The table of decoders: what each `model_type` implies that its config.json does not say.

A column that holds a string names the config's field; a column that holds a value is implied by the type.
The last word is the code that each type names; a test builds every row beside it, tensor class for tensor class.
"""

from collections.abc import Callable

from derived.cost.record import Record
from derived.cost.spec import mixers, windows


class Row(Record):
    """What a decoder of one type is, beyond its sizes."""

    kv: str = "required"  # num_key_value_heads absent: "equal" to the query heads, or refused
    d_k: int | None = None  # head_dim absent: this; None: hidden_size / heads
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    ffn_bias: bool | str = False
    qk_norm: str = ""  # "head", or "row": over all heads at once
    sinks: bool = False
    norms: int = 2  # a layer
    tied: bool = False  # tie_word_embeddings absent
    window: Callable = windows.everywhere_full
    ffn: Callable = mixers.dense
    ropes: int = 1  # rotary tables of different base


SAID = "attention_bias"
BIASES = {"qkv_bias": SAID, "o_bias": SAID}

#   model_type          what its config does not say
DECODERS = {
    "llama":        Row(kv="equal", **BIASES, ffn_bias="mlp_bias"),
    "qwen2":        Row(qkv_bias=True, window=windows.from_layer),
    "qwen3":        Row(d_k=128, **BIASES, qk_norm="head", window=windows.from_layer),
    "mistral":      Row(window=windows.everywhere(4096)),
    "gemma":        Row(d_k=256, **BIASES, tied=True),
    "gemma2":       Row(d_k=256, **BIASES, norms=4, tied=True, window=windows.all_but_every(2, 4096)),
    "gemma3_text":  Row(d_k=256, **BIASES, norms=4, tied=True, qk_norm="head", ropes=2,
                        window=windows.all_but_every(6, 4096, "sliding_window_pattern")),
    "phi3":         Row(kv="equal", window=windows.everywhere(None)),
    "qwen3_moe":    Row(**BIASES, qk_norm="head", window=windows.every_layer, ffn=mixers.sparse_steps),
    "mixtral":      Row(window=windows.everywhere(None), ffn=mixers.every_layer_routed),
    "gpt_oss":      Row(d_k=64, qkv_bias="attention_bias=true", o_bias="attention_bias=true", sinks=True,
                        window=windows.all_but_every(2, 128), ffn=mixers.biased_experts),
    "olmo2":        Row(kv="equal", **BIASES, qk_norm="row"),
    "olmo3":        Row(kv="equal", **BIASES, qk_norm="row", window=windows.all_but_every(4, 4096), ropes=2),
    "smollm3":      Row(**BIASES, ffn_bias="mlp_bias", tied=True, window=windows.without_rope),
    "llama4_text":  Row(d_k=128, **BIASES, window=windows.chunked_where_rotated, ffn=mixers.interleaved_experts),
    "granite":      Row(kv="equal", **BIASES, ffn_bias="mlp_bias"),
}  # fmt: skip
"""One row a model type, read from the code of transformers 5.24."""

WRAPPERS = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "kimi_k25": "deepseek_v3",
    "mistral3": "mistral",
}
"""Types that wrap a text model with a vision tower; the text model's type where text_config names none."""

WRAPPED_DEFAULTS = {
    "gemma3": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
}
"""What a wrapper's published text_config leaves out when it equals the type's default; a file of its own says all."""
