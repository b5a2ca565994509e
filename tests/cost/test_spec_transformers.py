"""The second source: every model type built by transformers on the meta device holds the same number of parameters.

Its default configuration, and small random ones in which the switches that change the count are turned both ways.
"""

import json
import random

import pytest

from derived.cost.spec import known_types, read_config
from derived.cost.spec.table import WRAPPERS

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

NO_SECOND_SOURCE = {
    "kimi_k2": "transformers has no class of that name; the file names DeepSeek-V3's code, whose adapter reads it",
}
"""Types that transformers cannot build; the wrappers below are read by their text model's adapter."""

MISSING_DEFAULTS = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Fields without which the default configuration is no model."""

BUILT = sorted(set(known_types()) - set(NO_SECOND_SOURCE) - set(WRAPPERS))


def built_parameters(config) -> int:
    """Parameters of the built model, each tensor once, and the routers' correction biases, kept there as buffers."""
    with torch.device("meta"):
        auto = transformers.AutoModelForCausalLM
        if config.model_type == "t5":
            auto = transformers.AutoModelForSeq2SeqLM
        model = auto.from_config(config)
    corrections = sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return sum(parameter.numel() for parameter in {id(p): p for p in model.parameters()}.values()) + corrections


def read(config) -> int:
    """Parameters that serving loads, read from what the configuration writes to its config.json."""
    return read_config(json.loads(config.to_json_string(use_diff=False))).served_parameters


@pytest.mark.parametrize("model_type", BUILT)
def test_the_default_configuration(model_type):
    config = transformers.AutoConfig.for_model(model_type, **MISSING_DEFAULTS.get(model_type, {}))
    assert read(config) == built_parameters(config)


def pick(chance: random.Random) -> dict:
    """Sizes that no two fields share, and switches."""
    h_kv, group = chance.choice([1, 2, 3]), chance.choice([1, 2, 5])
    h, d_k = h_kv * group, chance.choice([4, 6, 10])
    return {
        "h": h, "h_kv": h_kv, "d_k": d_k, "d": h * d_k * chance.choice([1, 3]), "L": chance.choice([2, 3, 5, 7]),
        "n_vocab": chance.choice([101, 211]), "d_ff": chance.choice([17, 23, 46]), "E": chance.choice([3, 5]),
        "d_e": chance.choice([11, 13]), "on": chance.random() < 0.5, "also": chance.random() < 0.5,
        "tied": chance.random() < 0.5,
    }  # fmt: skip


def small(model_type: str, s: dict) -> dict:
    """The sizes of `pick` under the names of a model type."""
    common = {
        "vocab_size": s["n_vocab"], "hidden_size": s["d"], "num_hidden_layers": s["L"], "pad_token_id": 0,
        "num_attention_heads": s["h"], "intermediate_size": s["d_ff"], "tie_word_embeddings": s["tied"],
    }  # fmt: skip
    grouped = common | {"num_key_value_heads": s["h_kv"]}
    wide, biased = grouped | {"head_dim": s["d_k"]}, {"attention_bias": s["on"]}
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": s["d_e"]}
    linear = {
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 7,
        "linear_conv_kernel_dim": 3,
    }  # fmt: skip
    sparse = experts | {"num_experts": s["E"], "mlp_only_layers": [1] if s["also"] else []}
    latent = common | biased | experts | {
        "num_key_value_heads": s["h"], "kv_lora_rank": 13, "q_lora_rank": 11 if s["also"] else None,
        "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7, "n_routed_experts": 6, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    mixers = ["linear_attention", "full_attention", "linear_attention"]
    types = {
        "llama": wide | biased | {"mlp_bias": s["also"]},
        "qwen2": grouped | {"use_sliding_window": s["also"], "sliding_window": 5, "max_window_layers": 1},
        "qwen3": wide | biased,
        "mistral": wide | {"sliding_window": 5 if s["on"] else None},
        "gemma": wide | biased,
        "gemma2": wide | biased,
        "gemma3_text": wide | biased,
        "phi3": grouped,
        "qwen3_moe": wide | biased | sparse | {"decoder_sparse_step": 2 if s["on"] else 1},
        "mixtral": wide | {"num_local_experts": s["E"], "num_experts_per_tok": 2},
        "gpt_oss": wide | biased | {"num_local_experts": s["E"], "num_experts_per_tok": 2},
        "olmo2": grouped | biased,
        "olmo3": grouped | biased,
        "smollm3": grouped | biased | {"mlp_bias": s["also"]},
        "llama4_text": wide | biased | {
            "num_local_experts": s["E"], "intermediate_size_mlp": 19,
            "interleave_moe_layer_step": 2 if s["also"] else 1,
        },
        "granite": grouped | biased | {"mlp_bias": s["also"]},
        "gpt2": {
            "vocab_size": s["n_vocab"], "n_embd": s["d"], "n_layer": s["L"], "n_head": s["h"], "n_positions": 37,
            "n_inner": s["d_ff"] if s["on"] else None, "tie_word_embeddings": s["tied"],
        },
        "gpt_neox": common | biased,
        "opt": {k: v for k, v in common.items() if k != "intermediate_size"} | {
            "ffn_dim": s["d_ff"], "max_position_embeddings": 37, "word_embed_proj_dim": s["d"] if s["on"] else 9,
            "do_layer_norm_before": s["also"], "enable_bias": not s["tied"],
            "layer_norm_elementwise_affine": s["also"],
        },
        "bloom": {
            "vocab_size": s["n_vocab"], "hidden_size": s["d"], "n_layer": s["L"], "n_head": s["h"],
            "tie_word_embeddings": s["tied"],
        },
        "falcon": {k: v for k, v in common.items() if k != "intermediate_size"} | {
            "bias": s["on"], "new_decoder_architecture": s["also"], "multi_query": s["tied"], "num_kv_heads": s["h_kv"],
            "parallel_attn": not s["on"] or s["also"], "ffn_hidden_size": s["d_ff"],
        },
        "mpt": {
            "vocab_size": s["n_vocab"], "d_model": s["d"], "n_layers": s["L"], "n_heads": s["h"],
            "expansion_ratio": 4,  # transformers builds no other
            "tie_word_embeddings": s["tied"],
        },
        "t5": {
            "vocab_size": s["n_vocab"], "d_model": s["d"], "d_kv": s["d_k"], "d_ff": s["d_ff"], "num_layers": s["L"],
            "num_decoder_layers": 3, "num_heads": s["h"], "relative_attention_num_buckets": 7,
            "feed_forward_proj": "gated-gelu" if s["on"] else "relu",
        },
        "deepseek_v2": latent,
        "deepseek_v3": latent,
        "qwen3_next": wide | biased | sparse | linear | {"shared_expert_intermediate_size": 19},
        "qwen3_5_text": wide | biased | linear,
        "granitemoehybrid": grouped | biased | {
            "num_hidden_layers": 3, "layer_types": mixers, "shared_intermediate_size": 19, "num_experts_per_tok": 2,
            "num_local_experts": s["E"] if s["also"] else 0, "mamba_n_heads": 2 * s["h"], "mamba_n_groups": 2,
            "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_conv_bias": s["on"], "mamba_proj_bias": s["also"],
        },
        "nemotron_h": wide | biased | experts | {
            "layers_block_type": [*mixers, "mlp", "moe"], "num_hidden_layers": 5, "n_routed_experts": 4,
            "moe_shared_expert_intermediate_size": 19, "mamba_num_heads": 6, "mamba_head_dim": 5, "n_groups": 2,
            "ssm_state_size": 7, "conv_kernel": 3, "use_conv_bias": s["on"],
            "tie_word_embeddings": False,  # transformers ties no head of this type
        },
    }  # fmt: skip
    return types[model_type]


@pytest.mark.parametrize("model_type", BUILT)
def test_small_random_configurations(model_type):
    chance = random.Random(model_type)
    for _ in range(6):
        fields = small(model_type, pick(chance))
        config = transformers.AutoConfig.for_model(model_type, **fields)
        assert read(config) == built_parameters(config), fields


def test_a_parameter_more_is_seen():
    config = transformers.AutoConfig.for_model("gpt2", n_embd=12, n_head=3, n_layer=2, vocab_size=101, n_positions=37)
    fields = json.loads(config.to_json_string(use_diff=False))
    assert read_config(fields | {"n_positions": 38}).served_parameters == built_parameters(config) + 12


def test_every_type_is_built_wrapped_or_listed():
    assert set(known_types()) == set(BUILT) | set(NO_SECOND_SOURCE) | set(WRAPPERS)
    assert set(WRAPPERS.values()) <= set(BUILT)
