"""FLOPs of real models: against torch's counter, the formulas in letters, published figures."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derived.cost import crossing, flops, hardware, memory
from derived.cost.spec import ConfigError, outline
from derived.cost.work import active_weight_bytes, crossover, lower_bounds, pairs_read, work
from tests.cost.configs import SHORT, model

DECODERS = sorted(set(SHORT) - {"t5-small"})


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {"num_key_value_heads": 2, "hidden_size": 40, "intermediate_size": 23}),
        ("qwen3", {"num_key_value_heads": 1, "hidden_size": 40, "intermediate_size": 23, "head_dim": 6}),
        ("gemma2", {"num_key_value_heads": 2, "hidden_size": 40, "intermediate_size": 23, "head_dim": 6}),
        ("gpt_neox", {"hidden_size": 40, "intermediate_size": 23}),
        ("olmo2", {"num_key_value_heads": 4, "hidden_size": 40, "intermediate_size": 23}),
    ],
)
def test_a_forward_pass_costs_what_torch_counts(model_type, fields):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    from derived.cost.spec import read_config

    n, sizes = 13, {"vocab_size": 101, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0} | fields
    config = transformers.AutoConfig.for_model(model_type, **sizes, attn_implementation="eager")
    spec = read_config(json.loads(config.to_json_string(use_diff=False)))
    built = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built(torch.arange(2, n + 2)[None], use_cache=False)
    masked = sum(2 * s.h * (s.d_k + s.d_v) * (n * n - pairs_read(n, s.window)) for la in spec.layers for s in la.scores)
    assert counter.get_total_flops() == work(spec, n).prefill_flops + masked


@pytest.mark.parametrize("n", [1, 2048, 4096])
def test_layers_and_letters_agree(n):
    llama = {"L": 32, "d_model": 4096, "h": 32, "h_kv": 8, "d_k": 128, "d_ff": 14336, "ffn_matrices": 3}
    head = flops.lm_head_macs(1, 4096, 128256)
    found = work(model("Meta-Llama-3-8B"), n)
    assert found.prefill_flops == 2 * (flops.prefill_macs(n=n, **llama) + n * head)
    assert found.prefill_flops_one_logit == 2 * (flops.prefill_macs(n=n, **llama) + head)
    assert found.training_flops_per_token == 3 * found.prefill_flops // n  # forward once, backward twice
    assert found.decode_flops_per_token == 2 * (flops.decode_step_macs(n=n, **llama) + head)


@pytest.mark.parametrize("short", DECODERS)
def test_the_rule_of_thumb_is_within_two_percent(short):
    spec, n = model(short), 2048
    scores = 4 * n * sum(s.h * s.d_k * min(1, (s.window or n) / n) for la in spec.layers for s in la.scores)
    if any(s.cached for la in spec.layers for s in la.scores):
        return  # latent rows are wider than the heads that the rule counts
    assert work(spec, n).decode_flops_per_token == pytest.approx(2 * spec.active_without_embedding + scores, rel=0.02)


@pytest.mark.parametrize(
    ("short", "tokens"),
    [("Meta-Llama-3-8B", 21_504), ("Llama-2-7b-hf", 16_512), ("Llama-3.1-70B", 43_008), ("Qwen3-32B", 24_000)],
)
def test_where_scores_cost_what_the_network_costs(short, tokens):
    assert crossover(model(short)) == tokens
    assert isinstance(work(model(short), 2048).crossover_tokens, int)


def test_windows_move_the_crossing_or_forbid_it():
    assert crossover(model("Mistral-7B-v0.1")) is None  # 4096 tokens a layer, 21,504 needed
    assert crossover(model("Mistral-7B-Instruct-v0.3")) == 21_504
    gemma = model("gemma-2-2b-it")
    network = 3 * 2304 * 9216 * 26
    assert crossover(gemma) == (network - 13 * 8 * 512 * 4096) / (13 * 8 * 512)
    assert crossing.crossing_tokens(d_model=2304, h=8, d_k=256, d_v=256, d_ff=9216, ffn_matrices=3) < crossover(gemma)


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)))
def test_pairs_are_those_that_a_loop_counts(n, window):
    assert pairs_read(n, window) == sum(j > i - (window or n) for i in range(n) for j in range(i + 1))


@pytest.mark.parametrize("short", ["Llama-2-7b-hf", "gemma-2-2b-it", "Qwen3.5-27B", "Mixtral-8x7B-v0.1"])
def test_a_prompt_costs_what_its_steps_cost(short):
    spec, n = model(short), 37
    assert work(spec, n).prefill_flops == sum(work(spec, i).decode_flops_per_token for i in range(1, n + 1))


def test_experts_count_as_they_are_used():
    mixtral = model("Mixtral-8x7B-v0.1")
    assert active_weight_bytes(mixtral) < memory.weight_bytes(mixtral) / 3
    matrices = 2 * (mixtral.active_without_embedding - 65 * 4096)  # norms are not products of matrices
    assert work(mixtral, 1).decode_flops_per_token == matrices + 32 * 4 * 32 * 128


def test_lower_bounds_are_the_slower_of_two():
    llama, card = model("Llama-2-7b-hf"), hardware.CARDS["H100-80GB"]
    times, done = lower_bounds(llama, card, 2048), work(llama, 2048)
    assert times.first_token == done.prefill_flops_one_logit / 989.4e12 and times.first_token_bound_by == "FLOP/s"
    moved = (6_738_415_616 - 32_000 * 4096 + 4096) * 2 + 2**30
    assert times.each_token == moved / 3350e9 and times.each_token_bound_by == "bytes/s"


def test_the_story_in_flops():
    spec = outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)
    assert work(spec, 2048).decode_flops_per_token == 2 * (7 * 10**9 - 32_000 * 4096) + 4 * 32 * 2048 * 4096


def test_two_lengths_are_refused():
    with pytest.raises(ConfigError, match="t5 is an encoder with a decoder"):
        work(model("t5-small"), 7)
    with pytest.raises(ConfigError, match="context is 0"):
        work(model("gpt2"), 0)
