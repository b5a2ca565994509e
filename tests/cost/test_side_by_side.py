"""Chapter 13's table of what other calculators say: its row of transformers is what transformers says today.

The five models are built on the meta device; their parameters are counted, and what the cache keeps after a pass.
"""

import ast

import pytest

from derived.cost import memory
from tests.cost.configs import ROWS, SHORT, model
from tests.support.pages import BOOK, cells

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

PAGE = BOOK / "13-kv-cache-and-gpu-order.ipynb"
FIVE = ["Llama-2-7b-hf", "Meta-Llama-3-8B", "Mistral-7B-v0.1", "gemma-3-1b-it", "DeepSeek-V2-Lite"]
LONG = FIVE[2:]


def row(tool: str) -> list[str]:
    """The figures of one tool: weights of the five, cache of the five at 2,048 tokens, of the last three at 32,768."""
    for _, source, _ in cells(PAGE, "code"):
        for node in ast.parse(source).body if "\nSAID = " in source else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SAID":
                lines = ast.literal_eval(node.value).replace("\n  ", " ").strip().splitlines()
                [line] = [line for line in lines if line.startswith(tool)]
                return " ".join(line.split("|")[1:]).split()
    raise AssertionError("the table is not in the chapter")


def built(short: str):
    """The model of a row on the meta device."""
    fields = dict(ROWS[SHORT[short]]["fields"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def kept(net, n: int) -> int:
    """Bytes that the cache keeps after a pass of n tokens."""
    kept = transformers.DynamicCache(config=net.config)
    with torch.no_grad():
        net(torch.zeros(1, n, dtype=torch.long, device="meta"), cache=kept, logits_to_keep=1)
    return sum(part.nbytes for layer in kept.layers for part in (layer.keys, layer.values))


@pytest.mark.parametrize("short", FIVE)
def test_what_transformers_builds_and_keeps(short):
    said, net = row("transformers"), built(short)
    assert int(said[FIVE.index(short)]) == 2 * sum(part.numel() for part in net.parameters())
    assert int(said[5 + FIVE.index(short)]) == kept(net, 2048)
    if short in LONG:
        assert int(said[10 + LONG.index(short)]) == kept(net, 32768)


def test_the_derived_figures_differ_by_one_token_a_window():
    said = [int(figure) for figure in row("transformers")]
    for i, short in enumerate(FIVE):
        spec = model(short)
        assert said[i] == memory.weight_bytes(spec, "bf16")
        one = sum(memory.token_bytes(layer.caches[0], "bf16") for layer in spec.layers if layer.caches[0].window)
        for n, at in ((2048, 5 + i), (32768, 8 + i)):
            if n == 2048 or short in LONG:
                full = all(layer.caches[0].window in (None, 4096) for layer in spec.layers) and n == 2048
                assert said[at] == memory.conversation_bytes(spec, n, "bf16") - (0 if full else one)
