"""The letters of an order give the sizer's numbers, and the page computes what Python does."""

import math

import pytest

from derived.cost import cache, memory
from derived.cost.placement import Search, size
from derived.cost.render import vega
from derived.cost.spec import outline
from tests.cost.configs import model

sympy = pytest.importorskip("sympy")

GIB = 2**30
STORY = outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)


def test_the_recall_numbers():
    story = {"L": 32, "h_kv": 32, "d_k": 128}
    assert cache.token_cache_bytes(**story, b=2) == 512 * 1024
    assert cache.conversation_cache_bytes(2048, **story, b=2) == GIB
    assert 200 * cache.conversation_cache_bytes(4096, **story, b=2) == 400 * GIB
    assert 200 * cache.conversation_cache_bytes(4096, **story, b=1) == 200 * GIB
    assert cache.token_cache_bytes(L=32, h_kv=8, d_k=128, b=2) == 128 * 1024
    q8 = 200 * memory.conversation_bytes(STORY, 4096, "q8_0")
    assert q8 / GIB == 212.5


@pytest.mark.parametrize("n", [2, 1009, 4096, 4099])
def test_letters_and_layers_agree(n):
    llama, mistral, deepseek = model("Meta-Llama-3-8B"), model("Mistral-7B-v0.1"), model("DeepSeek-V2-Lite")
    sizes = {"L": 32, "h_kv": 8, "d_k": 128, "b": 2}
    assert cache.conversation_cache_bytes(n, **sizes) == memory.conversation_bytes(llama, n)
    assert cache.window_cache_bytes(n, 4096, **sizes) == memory.conversation_bytes(mistral, n)
    assert cache.latent_cache_bytes(n, L=27, d_latent=512, d_rope=64, b=2) == memory.conversation_bytes(deepseek, n)


@pytest.mark.parametrize(("usable", "each", "pair", "stage"), [(80 * 10**9, 61, 135, 203), (72 * 10**9, 54, 121, 181)])
def test_the_story_in_letters(usable, each, pair, stage):
    weights, ends = 14 * 10**9, 2 * 4096 * 32_000
    assert cache.conversations_held(usable, weights, GIB) == each
    assert cache.conversations_held(usable, weights, GIB, ranks=2) == pair
    layer = (weights - 2 * ends) // 32
    assert cache.stage_conversations(usable, 11, layer, ends, GIB // 32) == stage
    assert cache.bound_cards(weights, 200, GIB, 80 * 10**9) == 3
    assert cache.replicas_needed(200, each) == 4


def page(expression: str, **values):
    """A page expression computed as the page would, in doubles."""
    return eval(expression, {"__builtins__": {}}, {"floor": math.floor, "ceil": math.ceil} | values)


def test_the_page_computes_what_the_sizer_does():
    context, share, asked = sympy.symbols("context share conversations", positive=True)
    one = cache.conversation_cache_bytes(context, L=32, h_kv=32, d_k=128, b=2)
    held = cache.conversations_held(80 * 10**9 * share, 14 * 10**9, one)
    text = vega(cache.replicas_needed, conversations=asked, held=held)
    bound = vega(cache.bound_cards, weights=14 * 10**9, conversations=asked, cache=one, memory=80 * 10**9)
    for n, s, c in [(2048, 0.9, 200), (2048, 1.0, 200), (4096, 0.83, 97), (16, 0.9, 1999)]:
        order = size(STORY, 80 * 10**9, context=n, conversations=c, share=s, tensor_parallel=1, pipeline_parallel=1)
        assert page(text, context=n, share=s, conversations=c) == order.gpus
        assert page(bound, context=n, conversations=c) == order.lower_bound_gpus


def test_stages_in_letters_are_the_sizers_stages():
    from derived.cost.hardware import NOTHING, custom

    search = Search(STORY, custom("", 80 * 10**9), 0.9, 2048, "fp16", None, NOTHING, (None,) * 3)
    for p, layers in [(2, 16), (3, 11), (4, 8)]:
        layer = (14 * 10**9 - 4 * 4096 * 32_000) // 32
        first = cache.stage_conversations(72 * 10**9, layers, layer, 2 * 4096 * 32_000, GIB // 32)
        assert search.held(1, p) == first
