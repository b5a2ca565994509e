"""What a config.json may not say, the hub, and ten thousand damaged configs: an answer or a sentence."""

import copy
import json
import random
import sys
import types

import pytest

from derived.cost.spec import ConfigError, known_types, read_config
from tests.cost.configs import ROWS, SHORT

LLAMA = ROWS[SHORT["Llama-2-7b-hf"]]["fields"]
GEMMA = ROWS[SHORT["gemma-3-27b-it"]]["fields"]
MOE = ROWS[SHORT["Qwen3-30B-A3B"]]["fields"]
LATENT = ROWS[SHORT["DeepSeek-V2-Lite"]]["fields"]
NEMOTRON = ROWS[SHORT["NVIDIA-Nemotron-Nano-9B-v2"]]["fields"]


def without(fields, name):
    """The fields but one."""
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (without(LLAMA, "model_type"), "model_type is missing"),
        (LLAMA | {"model_type": "mamba"}, "model_type 'mamba' is not derived here, and what it implies is not guessed"),
        (LLAMA | {"model_type": ["llama"]}, "model_type is missing"),
        (without(LLAMA, "hidden_size"), r"hidden_size \(or n_embd, n_embed, d_model\) is missing"),
        (without(LLAMA, "vocab_size"), "vocab_size is missing"),
        (without(GEMMA, "num_key_value_heads"), "num_key_value_heads is missing"),
        (LLAMA | {"hidden_size": 0}, "hidden_size is 0: it must lie between 1"),
        (LLAMA | {"hidden_size": -4096}, "hidden_size is -4096"),
        (LLAMA | {"hidden_size": 4096.5}, "hidden_size is 4096.5: it must be an integer"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size is '4096': it must be an integer"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers is True"),
        (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000: it must lie between 1 and 4,096"),
        (LLAMA | {"vocab_size": 10**12}, "vocab_size is 1000000000000: it must lie between"),
        (LLAMA | {"hidden_size": 10**7, "num_attention_heads": 10**5, "num_key_value_heads": 10**5}, "is a slip"),
        (LLAMA | {"num_attention_heads": 33, "num_key_value_heads": 33}, "hidden_size 4096 is not a multiple of"),
        (LLAMA | {"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
        (LLAMA | {"n_embd": 512}, "hidden_size is 4096 and n_embd is 512, but they mean the same"),
        (LLAMA | {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no': it must be true or false"),
        (LLAMA | {"layer_types": ["full_attention"] * 31}, "layer_types has 31 entries for 32 layers"),
        (LLAMA | {"layer_types": ["retention"] * 32}, "layer_types names 'retention', which is not derived for llama"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 32}, "layer_types names 'sliding_attention', which is not"),
        (GEMMA | {"layer_types": "full_attention"}, "layer_types must be a list of str"),
        (MOE | {"num_experts_per_tok": 129}, "num_experts_per_tok is 129, but num_experts is 128"),
        (without(MOE, "moe_intermediate_size"), "moe_intermediate_size is missing"),
        (without(LATENT, "kv_lora_rank"), "kv_lora_rank is missing"),
        (without(LATENT, "q_lora_rank"), "q_lora_rank is missing"),
        (without(LATENT, "n_routed_experts"), "n_routed_experts is missing"),
        (without(NEMOTRON, "hybrid_override_pattern"), "layers_block_type is missing"),
        (NEMOTRON | {"hybrid_override_pattern": "M" * 55 + "x"}, "hybrid_override_pattern holds 'x'"),
        (LLAMA | {"torch_dtype": "float12"}, "torch_dtype is 'float12'"),
        (LLAMA | {"quantization_config": "gptq"}, "quantization_config is 'gptq': it must be an object"),
        (LLAMA | {"partial_rotary_factor": 3}, "partial_rotary_factor is 3"),
        ({"model_type": "gemma3"}, "gemma3 wraps a text model, but text_config is missing"),
        ({"model_type": "gemma3", "text_config": 7}, "text_config is missing or not an object"),
    ],
)
def test_a_config_that_no_model_can_be_is_refused_by_a_sentence(fields, said):
    with pytest.raises(ConfigError, match=said) as error:
        read_config(dict(fields))
    assert "\n" not in str(error.value)


def test_files_that_are_no_config(tmp_path):
    (tmp_path / "broken.json").write_text('{"model_type": ')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "latin.json").write_bytes(b'{"model_type": "\xe9"}')
    for name, said in [
        ("broken.json", "is not JSON"),
        ("list.json", "holds a list, but a config.json is an object"),
        ("deep.json", "is not JSON"),
        ("latin.json", "is not JSON"),
        ("absent.json", "cannot be read"),
        ("nul\0.json", "cannot be read"),
        ("", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=said):
            read_config(tmp_path / name)


def test_a_file_and_its_folder_and_a_wrapper_are_read(tmp_path):
    wrapped = {"model_type": "gemma3", "text_config": without(GEMMA, "model_type"), "torch_dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    plain = read_config(dict(GEMMA))
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path / "config.json")):
        found = read_config(source)
        assert "the text model inside gemma3 alone" in found.notes[0]
        assert found.layers == plain.layers and found.dtype == "fp16" and found.parameters == plain.parameters


def test_a_wrapped_config_that_leaves_its_defaults_out_is_read():
    # as gemma-3-4b-it is published
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    found = read_config({"model_type": "gemma3", "text_config": text | {"model_type": "gemma3_text"}})
    assert found.parameters == 3_880_263_168
    assert "num_attention_heads is absent: 8, the default of gemma3" in found.notes


def hub(monkeypatch, answer):
    """A stand-in for the hub's client, whose download answers or raises."""
    client = types.ModuleType("huggingface_hub")
    client.hf_hub_download = answer
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)


def test_a_hub_id_is_fetched_by_the_hubs_client(tmp_path, monkeypatch):
    asked = []

    def download(repository, filename):
        asked.append((repository, filename))
        (tmp_path / "fetched.json").write_text(json.dumps(LLAMA))
        return str(tmp_path / "fetched.json")

    monkeypatch.chdir(tmp_path)
    hub(monkeypatch, download)
    assert read_config("meta-llama/Llama-2-7b-hf").parameters == 6_738_415_616
    assert asked == [("meta-llama/Llama-2-7b-hf", "config.json")]


def test_a_hub_that_does_not_answer_is_a_sentence(tmp_path, monkeypatch):
    def offline(repository, filename):
        raise OSError("no route\nto anywhere")

    monkeypatch.chdir(tmp_path)
    hub(monkeypatch, offline)
    with pytest.raises(ConfigError, match=r"'a/b' is no file here, and the hub gave none \(no route\)"):
        read_config("a/b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="install huggingface_hub"):
        read_config("a/b")


STRANGE = [None, 0, -1, 1, 2, 7, 10**9, 10**30, 1.5, float("nan"), float("inf"), "", "x", "sliding_attention", True,
           False, [], [0], ["full_attention"], {}, {"rope_type": 3}, [[]], "4096"]  # fmt: skip


def damaged(chance: random.Random) -> dict:
    """A config of the table with up to three fields dropped, swapped, or set to something strange."""
    fields = copy.deepcopy(chance.choice(list(ROWS.values()))["fields"])
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(list(fields) or ["model_type"])
        match chance.randrange(5):
            case 0:
                fields.pop(name, None)
            case 1:
                fields[name] = chance.choice(STRANGE)
            case 2:
                other = chance.choice(list(ROWS.values()))["fields"]
                fields |= {key: other[key] for key in chance.sample(list(other), 2)}
            case 3:
                fields["model_type"] = chance.choice(known_types())
            case 4:
                fields = {"model_type": chance.choice(known_types()), "text_config": fields}
    return fields


def test_ten_thousand_damaged_configs_give_an_answer_or_a_sentence():
    chance = random.Random(20260131)
    answers = refusals = 0
    for _ in range(10_000):
        fields = damaged(chance)
        try:
            found = read_config(fields)
            assert found.parameters > 0
            answers += 1
        except ConfigError as error:
            assert str(error) and "\n" not in str(error)
            refusals += 1
    assert answers > 1000 and refusals > 1000
