"""The command line: its numbers, its sentences, its exit codes, and how fast it starts."""

import json
import os
import resource
import subprocess
import sys

import pytest

from derived import cli
from tests.cost.configs import ROWS, SHORT


@pytest.fixture
def config(tmp_path):
    """Llama-2-7B's config.json on disk."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ROWS[SHORT["Llama-2-7b-hf"]]["fields"]))
    return str(path)


def size(config, *more, context="2048", conversations="200", gpu="H100-80GB"):
    """Arguments of `derived size`."""
    return ["size", config, "--context", context, "--conversations", conversations, "--gpu", gpu, *more]


def answered(capsys, arguments) -> dict:
    """What a command prints as JSON."""
    assert cli.main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_size_says_what_was_promised(config, capsys):
    found = answered(capsys, size(config, "--json"))
    assert found["parameters"] == found["active_parameters"] == 6_738_415_616
    assert found["weight_bytes"] == 2 * 6_738_415_616
    assert found["cache_bytes_per_token"] == 524_288 and found["cache_bytes_per_conversation"] == 2**30
    assert (found["lower_bound_gpus"], found["gpus"]) == (3, 4)
    cards = sum(r["tensor_parallel"] * r["pipeline_parallel"] for r in found["placement"])
    assert cards == 4 and found["conversations_that_fit"] >= 200
    assert found["cache_tokens_that_fit"] >= 200 * 2048
    assert all(entry["placement"] and entry["reason"] for entry in found["rejected"])
    assert sum(term["bytes"] for term in found["terms"]) == 4 * found["gpu_visible_bytes"]
    assert all(term["name"] and term["formula"] for term in found["terms"])


def test_calibrated_terms_are_the_default_and_can_be_set(config, capsys):
    default = answered(capsys, size(config, "--json"))
    bare = answered(capsys, size(config, "--json", "--activation-gib", "0", "--non-torch-gib", "0"))
    heavy = answered(capsys, size(config, "--json", "--activation-gib", "30"))
    assert default["calibrated"]["activation"]["bytes"] == 223 * 2**30 // 100 and default["share"] == 0.9
    assert bare["gpus"] == default["gpus"] == 4 and heavy["gpus"] > 4
    assert bare["conversations_that_fit"] > default["conversations_that_fit"]


def test_a_card_can_be_given_by_its_memory(config, capsys):
    found = answered(capsys, size(config, "--json", gpu="79.19GiB"))
    listed = answered(capsys, size(config, "--json"))
    assert found["gpu_visible_bytes"] == listed["gpu_visible_bytes"] == 7919 * 2**30 // 100
    assert (found["gpus"], found["placement"]) == (listed["gpus"], listed["placement"])
    decimal = answered(capsys, size(config, "--json", gpu="80 GB"))
    assert decimal["gpu"] == "80 GB card" and decimal["gpu_visible_bytes"] == 80 * 10**9
    assert cli.main(size(config, gpu="80 GB")) == 0
    assert "80 GB card    74.51 GiB (80.00 GB) visible\n" in capsys.readouterr().out


@pytest.mark.parametrize("gpu", ["80", "0GiB", "-1GiB", "1e3GiB", "80TB", "H900", "99999999GiB"])
def test_a_card_of_neither_name_nor_memory_is_refused(config, capsys, gpu):
    assert cli.main(["size", config, "--context", "2048", "--conversations", "2", f"--gpu={gpu}"]) == 2
    said = capsys.readouterr().err
    assert f"GPU {gpu!r} is not in the table: choose one of T4, L4" in said and "as 95.6GiB" in said
    assert said.count("\n") == 1


def test_a_card_given_by_its_memory_has_no_rates(config, capsys):
    assert cli.main(["flops", config, "--context", "2048", "--gpu", "95.6GiB"]) == 2
    assert "95.6 GiB card has no fp16 rate in the table" in capsys.readouterr().err


def test_the_tokens_that_fit_are_counted_in_blocks(config, capsys):
    bare = ["--activation-gib", "0", "--non-torch-gib", "0", "--tensor-parallel", "1", "--pipeline-parallel", "1"]
    found = answered(capsys, size(config, "--json", *bare))
    usable = 7919 * 2**30 // 100 * 9 // 10
    pool = usable - 2 * 6_738_415_616 - 2 * 4096 * 128  # weights and the rotary table
    assert found["gpus"] == 4 and found["cache_tokens_that_fit"] == 4 * (pool // (16 * 524_288) * 16)


def test_the_flags_fix_the_placement(config, capsys):
    found = answered(capsys, size(config, "--json", "--tensor-parallel", "2", "--replicas", "2"))
    assert found["placement"] == [{"tensor_parallel": 2, "pipeline_parallel": 1}] * 2
    half = answered(capsys, size(config, "--json", "--cache-dtype", "fp8", "--weights-dtype", "int8"))
    assert half["cache_bytes_per_token"] == 262_144 and half["gpus"] < 4


def test_layers_that_differ_give_the_mean_over_the_context(tmp_path, capsys):
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(ROWS[SHORT["gemma-3-27b-it"]]["fields"]))
    found = answered(capsys, size(str(path), "--json", context="131072", conversations="3", gpu="H200"))
    by_hand = 2 * 16 * 128 * 2 * (10 * 131072 + 52 * 1024)
    assert found["cache_bytes_per_conversation"] == by_hand
    assert found["cache_bytes_per_token"] == by_hand / 131072
    assert found["cache_bytes_per_token_is"] == "the mean over the context"
    assert found["cache_bytes_per_next_token"] == 2 * 16 * 128 * 2 * 62


def test_a_price_says_what_one_more_and_one_fewer_cost(config, capsys):
    costs = answered(capsys, size(config, "--json", "--price", "2.5"))["price"]
    assert (costs["per_hour_one_fewer"], costs["per_hour"], costs["per_hour_one_more"]) == (7.5, 10, 12.5)
    assert costs["conversations_one_more"] > 262
    assert costs["conversations_refused_one_fewer"] == 200 - costs["conversations_one_fewer"] > 0


def test_the_table_names_its_units_and_keeps_measured_numbers_apart(config, capsys):
    assert cli.main(size(config, "--explain", "--price", "2")) == 0
    text = capsys.readouterr().out
    derived, calibrated = text.split("Calibrated, measured elsewhere")
    assert "12.55 GiB (13.48 GB)" in derived and "6,738,415,616" in derived and "band" not in derived
    assert "band 1.89 to 5.64" in calibrated and "4 × H100-80GB" in calibrated
    assert "3 ranks do not divide the 32 query heads" in calibrated and "Where every byte goes" in calibrated


def test_nothing_fits_is_exit_code_one(config, capsys):
    assert cli.main(size(config, "--max-gpus", "3", "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"] is None and found["placement"] == [] and found["rejected"]
    assert cli.main(size(config, "--max-gpus", "3")) == 1
    assert "none: nothing up to 3 holds 200 conversations" in capsys.readouterr().out


def test_what_cannot_be_built_says_why(config, capsys):
    assert cli.main(size(config, "--tensor-parallel", "3")) == 1
    text = capsys.readouterr().out
    assert "3 ranks do not divide the 32 query heads" in text and "--max-gpus" not in text
    assert cli.main(size(config, "--replicas", "3")) == 0
    assert "5 would hold" in (text := capsys.readouterr().out) and "with 0 conversations" not in text


def test_a_placement_is_listed_once(config, capsys):
    found = answered(capsys, size(config, "--json", gpu="T4"))  # more cards than are enumerated
    names = [found["placement_name"], *(p["name"] for p in found["runners_up"] + found["rejected"])]
    assert found["gpus"] > 16 and len(set(names)) == len(names)


def test_both_bounds_are_said_and_a_context_beyond_the_config(config, capsys):
    # weights 13,476,831,232 bytes and 200 caches of 4 GiB on cards of 79.19 GiB, whole and nine tenths
    found = answered(capsys, size(config, "--json", context="8192"))
    assert (found["lower_bound_gpus"], found["lower_bound_gpus_at_share"]) == (11, 12)
    assert found["notes"] == ["8,192 tokens are more than the 4,096 positions of the config"]
    assert cli.main(size(config, context="8192")) == 0
    text = capsys.readouterr().out
    assert "11 cards if all of each is used" in text and "12 cards at the share (11.40 before" in text
    assert "8,192 tokens are more" in text
    assert answered(capsys, size(config, "--json", context="4096"))["notes"] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu": "H900"}, "GPU 'H900' is not in the table"),
        ({"context": "0"}, "context is 0"),
        ({"context": "many"}, "invalid int value: 'many'"),
        ({"conversations": "-3"}, "conversations is -3"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(config, capsys, change, said):
    refused(capsys, size(config, **change), said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--share", "1.2"], "share is 1.2"),
        (["--share", "nan"], "share is nan"),
        (["--cache-dtype", "fp3"], "cache format 'fp3' is not known"),
        (["--price", "-1"], "--price is -1.0"),
        (["--activation-gib", "-1"], "--activation-gib is -1.0"),
        (["--activation-gib", "inf"], "--activation-gib is inf"),
        (["--max-gpus", "99999"], "max_gpus is 99999"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_bad_flag_is_one_sentence_and_exit_code_two(config, capsys, more, said):
    refused(capsys, size(config, *more), said)


def refused(capsys, arguments, said):
    """Exit code 2, nothing on stdout, one line on stderr."""
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2 and out == ""
    assert said in err and err.count("\n") == 1


def test_a_missing_file_and_no_command(tmp_path, capsys):
    refused(capsys, size(str(tmp_path / "absent.json")), "cannot be read")
    refused(capsys, [], "the following arguments are required: COMMAND")
    refused(capsys, ["sise"], "invalid choice: 'sise'")


def test_gpus_and_models_are_listed(capsys):
    assert cli.main(["gpus"]) == 0
    assert "H100-80GB" in (text := capsys.readouterr().out) and "79.19" in text and "989.4" in text
    assert answered(capsys, ["gpus", "--json"])["T4"]["sold_bytes"] == 16 * 10**9
    assert cli.main(["models"]) == 0
    assert {"llama", "deepseek_v3", "gemma3"} <= set(capsys.readouterr().out.split())


def test_flops_says_what_was_promised(config, capsys):
    found = answered(capsys, ["flops", config, "--context", "2048", "--json", "--gpu", "A100-80GB"])
    assert found["crossover_tokens"] == 16_512
    assert found["decode_flops_per_token"] == 2 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096) + 4 * 32 * 2048 * 4096
    assert found["prefill_flops"] > 2000 * found["decode_flops_per_token"] * 0.9
    assert found["lower_bounds_seconds"]["each_token_bound_by"] == "bytes/s"
    assert cli.main(["flops", config, "--context", "2048"]) == 0
    assert "16,512 tokens" in capsys.readouterr().out
    refused(capsys, ["flops", config, "--context", "-1"], "context is -1")


def test_a_reader_that_leaves_early_is_no_error(config):
    code = "import sys; from derived.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-c", code, *size(config, "--json")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.wait() == 0 and running.stderr.read() == b""


def cpu_seconds(arguments, environment) -> float:
    """Processor time of the quickest of several runs."""
    took = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(took)


def test_a_cold_start_costs_at_most_four_bare_starts(config, tmp_path):
    # compiled once, as an installed package is
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    command = [sys.executable, "-c", "import sys; from derived.cli import main; sys.exit(main())", *size(config)]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    bare = cpu_seconds([sys.executable, "-c", "pass"], environment)
    assert cpu_seconds(command, environment) <= 4 * bare


def test_sizing_imports_nothing_heavy(config):
    code = (
        "import sys; before = set(sys.modules); from derived.cli import main; main(sys.argv[1:]); "
        "heavy = {'numpy', 'torch', 'sympy', 'dataclasses', 'typing'} & set(sys.modules) - before; "
        "sys.exit(sorted(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code, *size(config)], stdout=subprocess.DEVNULL, check=True)
