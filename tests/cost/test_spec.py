"""Models from their config.json: exact parameters against published totals, and what is refused."""

import pytest

from derived.cost import memory
from derived.cost.spec import outline, read_config
from tests.cost.configs import ROWS, SHORT, model

# Why a checkpoint's published total differs from the parameters, and by how much.
VISION_3 = 27 * (4 * (1152**2 + 1152) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152) + 588 * 1152 + 1152
VISION_3 += 4096 * 1152 + 2 * 1152 + 1152
EXPLAINED = {
    "Llama-2-7b-hf": 32 * 64,  # a rotary buffer stored a layer
    "Llama-2-13b-hf": 40 * 64,
    "Llama-2-70b-hf": 80 * 64,
    "Qwen3-0.6B": 151936 * 1024,  # a tied head stored twice
    "Qwen3-1.7B": 151936 * 2048,
    "falcon-7b": 65024 * 4544,
    "gemma-3-4b-it": VISION_3 + 1152 * 2560,  # vision tower and projector
    "gemma-3-27b-it": VISION_3 + 1152 * 5376,
    "Llama-4-Scout-17B-16E": 811_115_008 + 39_845_888 + 20_971_520,
    "DeepSeek-V3": 41_540_496,  # scales of 128 × 128 blocks
    # one extra prediction layer: gated attention, 512 experts and a shared one, a projection of two rows, norms
    "Qwen3-Next-80B-A3B-Instruct": 2048 * 256 * (3 * 16 + 2 * 2)
    + 512 * 2048
    + 513 * 3 * 2048 * 512
    + 2048
    + 2 * 2048 * 2048
    + 5 * 2048
    + 2 * 256,
}


@pytest.mark.parametrize("short", SHORT)
def test_parameters_equal_the_formula_of_the_table(short):
    expected = ROWS[SHORT[short]]["formula_params"]
    if expected is None:
        expected = ROWS[SHORT[short]]["published_params"]["value"] - EXPLAINED.get(short, 0)
    assert model(short).parameters == expected


@pytest.mark.parametrize("short", [s for s in SHORT if ROWS[SHORT[s]]["published_params"]])
def test_a_published_total_differs_by_a_named_quantity_or_not_at_all(short):
    published = ROWS[SHORT[short]]["published_params"]["value"]
    assert published - model(short).parameters == EXPLAINED.get(short, 0)


@pytest.mark.parametrize(
    ("short", "active", "without_embedding"),
    [
        ("Mixtral-8x7B-v0.1", 12_879_925_248, 12_879_925_248 - 32000 * 4096),
        ("Qwen3-30B-A3B", 3_353_032_704, 3_353_032_704 - 151936 * 2048),
        ("gpt-oss-20b", 4_187_440_704, 4_187_440_704 - 579_133_440),
        ("Llama-4-Scout-17B-16E", 17_172_894_720, 17_172_894_720 - 202048 * 5120),
        ("DeepSeek-V3", 37_552_297_472, 37_552_297_472 - 129280 * 7168),
        ("gemma-2b", 2_506_172_416, 2_506_172_416),  # the tied head is multiplied by, the embedding looked up
        ("gpt2", 124_439_808, 124_439_808 - 1024 * 768),
    ],
)
def test_active_parameters(short, active, without_embedding):
    assert model(short).active_parameters == active
    assert model(short).active_without_embedding == without_embedding


def test_deepseek_v3_has_as_many_scales_as_its_checkpoint_stores():
    spec = model("DeepSeek-V3")
    assert spec.weights == "fp8_block"
    stored = memory.weights(spec)
    blocks = sum(stored.scales(tensor) for tensor in (*spec.tensors(), *spec.prediction))
    projection = 7168 // 128 * (2 * 7168 // 128)  # the checkpoint keeps the prediction projection unquantised
    assert blocks - projection == 41_540_496
    assert spec.served_parameters == 671_026_419_200


@pytest.mark.parametrize("short", SHORT)
def test_classes_sum_to_the_whole(short):
    spec = model(short)
    assert sum(spec.by_class().values()) == spec.served_parameters
    assert spec.served_parameters + sum(t.parameters for t in spec.prediction) == spec.parameters


def test_layers_that_slide():
    windows = lambda short: [layer.caches[0].window for layer in model(short).layers]  # noqa: E731
    assert windows("Mistral-7B-v0.1") == [4096] * 32
    assert windows("Mistral-7B-Instruct-v0.3") == [None] * 32
    assert windows("Qwen2.5-7B-Instruct") == [None] * 28  # sliding_window is there, use_sliding_window says no
    assert windows("gemma-2-2b-it") == [4096, None] * 13
    assert windows("gemma-3-1b-it") == ([512] * 5 + [None]) * 4 + [512] * 2
    assert windows("gpt-oss-20b") == [128, None] * 12
    assert windows("Llama-4-Scout-17B-16E") == ([8192] * 3 + [None]) * 12


def test_hybrids_keep_keys_in_some_layers_only():
    kept = lambda short: sum(any(c.kind == "heads" for c in layer.caches) for layer in model(short).layers)  # noqa: E731
    assert (kept("Qwen3.5-27B"), kept("Qwen3-Next-80B-A3B-Instruct"), kept("NVIDIA-Nemotron-Nano-9B-v2")) == (16, 12, 4)


def test_an_outline_has_exactly_the_parameters_asked_for():
    spec = outline(7_000_000_003, L=31, d_model=4096, h=32, n_vocab=32_000)
    assert spec.parameters == 7_000_000_003 and spec.L == 31
    assert read_config(dict(ROWS[SHORT["Llama-2-7b-hf"]]["fields"])).name == "llama"


def test_rotary_tables_are_as_wide_as_what_turns():
    rope = lambda short: model(short).rope  # noqa: E731
    assert rope("Llama-3.1-8B-Instruct") == ((131072, 128),)
    assert rope("gemma-3-27b-it") == ((131072, 128),) * 2  # one base for full layers, one for sliding ones
    assert rope("Qwen3.5-27B") == ((262144, 64),)  # a quarter of 256
    assert rope("DeepSeek-V2-Lite") == ((163840, 64),)
    assert rope("gpt2") == rope("bloom") == rope("mpt-7b") == ()
    half = read_config(dict(ROWS[SHORT["Qwen3-8B"]]["fields"]) | {"rope_parameters": {"partial_rotary_factor": 0.5}})
    assert half.rope == ((40960, 64),)
