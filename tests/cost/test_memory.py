"""Laws of bytes: shards and their copies, groups and their scales, windows, and the card table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derived.cost import hardware, memory
from derived.cost.hardware import CARDS, NOTHING
from derived.cost.record import Record
from derived.cost.spec import Tensor, read_config
from derived.cost.spec.model import Cache
from derived.cost.stages import Ranks, layer_counts, refusal
from derived.errors import DerivedError
from tests.cost.configs import ROWS, SHORT, model

whole = st.integers(2, 97)


@pytest.mark.parametrize("short", ["Llama-2-7b-hf", "Qwen2.5-7B-Instruct", "Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite"])
@pytest.mark.parametrize("t", [2, 4])
def test_shards_sum_to_the_whole_plus_what_is_copied(short, t):
    spec = model(short)
    stored = memory.weights(spec, "bf16")
    copied = sum(stored.of(tensor) for tensor in spec.tensors() if tensor.axis is None)
    assert t * sum(stored.of(tensor, t) for tensor in spec.tensors()) == memory.weight_bytes(spec) + (t - 1) * copied
    assert copied > 0


def test_ranks_beyond_the_key_heads_hold_copies():
    spec = model("Meta-Llama-3-8B")
    assert 16 * memory.new_token_bytes(spec, t=16) == 2 * memory.new_token_bytes(spec)
    keys = next(tensor for tensor in spec.tensors() if tensor.name == "key")
    assert [memory.cut(keys, t)[0] for t in (1, 2, 8, 16, 32)] == [1024, 512, 128, 128, 128]


@pytest.mark.parametrize("p", [2, 3, 5, 32])
def test_stages_sum_to_the_whole(p):
    tied, untied = model("gemma-2-2b-it"), model("Llama-2-7b-hf")
    for spec, again in [(untied, 0), (tied, 256000 * 2304 * 2)]:  # a tied head on another stage is a second copy
        stages = Ranks(spec, None, "bf16", NOTHING).stages(1, min(p, spec.L))
        assert sum(stage.weights for stage in stages) == memory.weight_bytes(spec) + again
        assert [stage.stop - stage.start for stage in stages] == layer_counts(spec.L, min(p, spec.L))


@pytest.mark.parametrize(
    ("L", "p", "counts"), [(32, 3, [11, 11, 10]), (27, 2, [14, 13]), (61, 4, [15, 15, 16, 15]), (5, 5, [1] * 5)]
)
def test_layers_of_stages(L, p, counts):
    assert layer_counts(L, p) == counts


@pytest.mark.parametrize(
    ("short", "t", "said"),
    [
        ("Qwen2.5-7B-Instruct", 8, "8 ranks do not divide the 28 query heads"),
        ("phi-4", 4, "4 ranks neither divide the 10 key heads nor are a multiple of them"),
        ("falcon-7b", 2, "2 ranks do not divide the 71 query heads"),
        ("gemma-2b", 8, ""),  # one key head, eight copies
        ("Llama-3.1-8B-Instruct", 16, ""),
    ],
)
def test_which_ranks_can_be_built(short, t, said):
    assert refusal(model(short), t, 1) == said
    assert refusal(model("Llama-2-7b-hf"), 1, 33) == "33 stages need at least 33 layers, the model has 32"


@given(whole, whole, st.integers(1, 9))
def test_formats_store_numbers_and_scales(rows, columns, copies):
    matrix = Tensor("", "attention", (rows, columns), copies=copies)
    count = rows * columns
    by_hand = {
        "fp32": 4 * count,
        "bf16": 2 * count,
        "fp8": count + 4 * rows,
        "int8": count + 4 * rows,
        "int4": -(-count // 2) + 2 * rows * -(-columns // 128),
        "mxfp4": -(-count // 2) + rows * -(-columns // 32),
        "fp8_block": count + 4 * -(-rows // 128) * -(-columns // 128),
    }
    for name, expected in by_hand.items():
        form = memory.Weights(memory.WEIGHT_FORMATS[name], memory.WEIGHT_FORMATS["bf16"], False)
        assert form.of(matrix) == copies * expected
        norm = Tensor("", "norms", (columns,))
        assert form.of(norm) == columns * (4 if name == "fp32" else 2)


@given(st.integers(1, 9000), st.integers(1, 5000))
def test_a_window_keeps_no_more_than_it_sees(n, window):
    cache = Cache("heads", 3, 5, 7, window)
    kept = memory.tokens_kept(cache, n)
    assert kept == min(n, window)
    blocks = memory.tokens_kept(cache, n, 16)
    assert kept <= blocks < kept + 32 and blocks % 16 == 0
    assert memory.cache_bytes(cache, n, "fp16") == kept * 2 * 3 * (5 + 7)


@given(whole, whole, st.integers(1, 4000))
def test_grouped_heads_that_are_all_of_them_are_plain_heads(h, d_k, n):
    fields = dict(ROWS[SHORT["Llama-2-7b-hf"]]["fields"]) | {"num_attention_heads": h, "hidden_size": h * d_k}
    grouped = read_config(fields | {"num_key_value_heads": h})
    plain = read_config({k: v for k, v in fields.items() if k != "num_key_value_heads"})
    assert grouped == plain
    assert memory.conversation_bytes(plain, n) == n * 2 * 32 * h * d_k * 2


@given(st.integers(1, 3000), st.sampled_from(sorted(SHORT)))
def test_longer_contexts_and_wider_numbers_take_no_less(n, short):
    spec = model(short)
    assert memory.conversation_bytes(spec, n + 1) >= memory.conversation_bytes(spec, n)
    sizes = [memory.conversation_bytes(spec, n, dtype) for dtype in ("q4_0", "q8_0", "fp16", "fp32")]
    assert sizes == sorted(sizes)
    assert memory.conversation_bytes(spec, n, block=16) >= memory.conversation_bytes(spec, n)


def test_a_pool_is_floored_to_whole_blocks():
    assert memory.tokens_in_pool(1000, 3) == 320  # 333 tokens would fit, 20 blocks of 16 do
    assert memory.tokens_in_pool(47, 3) == 0 and memory.tokens_in_pool(48, 3) == 16


def test_mxfp4_covers_the_experts_alone_where_there_are_any():
    spec = model("gpt-oss-20b")
    experts = sum(t.parameters for t in spec.tensors() if t.kind == "experts" and len(t.shape) == 2)
    rest = spec.parameters - experts
    assert spec.weights == "mxfp4"
    assert memory.weight_bytes(spec) == experts * 17 // 32 + 2 * rest  # 4.25 bits
    dense = memory.weight_bytes(model("Llama-2-7b-hf"), "mxfp4")
    assert dense < memory.weight_bytes(model("Llama-2-7b-hf"), "int8")


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_cards_show_less_than_their_binary_size_and_name_their_sources(card):
    assert 0.9 * card.sold_bytes < card.visible_bytes <= card.sold_bytes * 2**30 / 10**9
    assert card.visible_source and card.rates_source and card.bytes_per_s >= 300 * 10**9
    assert card.peak("fp16") >= card.peak("fp32")


def test_all_cards_asked_for_are_there():
    asked = ["T4", "L4", "A10G", "A100-40GB", "A100-80GB", "L40S", "H100-80GB", "H200", "B200", "RTX-4090", "MI300X"]
    assert set(asked) <= set(CARDS)
    assert hardware.card("h100-80gb").visible_bytes == 7919 * 2**30 // 100
    assert round(CARDS["H100-80GB"].peak("fp16") / CARDS["H100-80GB"].bytes_per_s) == 295
    assert round(CARDS["A100-80GB"].peak("fp16") / CARDS["A100-80GB"].bytes_per_s) == 153
    with pytest.raises(DerivedError, match="T4 has no bf16 rate"):
        CARDS["T4"].peak("bf16")


def test_calibrated_terms_lie_in_their_bands():
    for term in hardware.MEASURED:
        assert term.low <= term.bytes <= term.high and term.source
    assert hardware.MEASURED.rank_bytes(2, 3)[1] > hardware.MEASURED.rank_bytes(1, 1)[1]


def test_a_record_is_a_tuple_with_names():
    class Pair(Record):
        left: int
        right: int = 7

    assert Pair(3) == (3, 7) == Pair(right=7, left=3) and Pair(3).left == 3
    assert Pair(3)._replace(right=5)._asdict() == {"left": 3, "right": 5}
    assert repr(Pair(3)) == "Pair(left=3, right=7)" and hash(Pair(3)) == hash((3, 7))
    for wrong in (lambda: Pair(), lambda: Pair(1, 2, 3), lambda: Pair(1, middle=2)):
        with pytest.raises(TypeError, match="Pair"):
            wrong()
