"""The story's numbers, the choice among placements, and the laws that any answer obeys."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derived.cost import hardware, memory
from derived.cost.placement import ENUMERATED, Search, size, usable
from derived.cost.spec import outline
from derived.cost.splits import Best, Kind, every_split
from derived.errors import DerivedError
from tests.cost.configs import model

STORY = outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)
SOLD, BINARY = 80 * 10**9, 80 * 2**30


def held_by(order) -> dict[str, int]:
    """Conversations of every placement met, by its name."""
    placed = [*order.rejected, *order.runners_up, *([order.chosen] if order.chosen else [])]
    return {p.name: p.conversations for p in placed}


def story(on=SOLD, **more):
    """The order of chapter 13."""
    return size(STORY, on, context=2048, conversations=200, **more)


@pytest.mark.parametrize(
    ("on", "share", "singles", "mixed", "pipeline"),
    [
        (SOLD, 1.0, 183, 196, 203),
        (BINARY, 1.0, 198, 212, 219),
        (SOLD, 0.9, 162, 175, 181),
        (BINARY, 0.9, 174, 188, 196),
    ],
)
def test_three_cards_hold_what_chapter_13_derives(on, share, singles, mixed, pipeline):
    held = held_by(story(on, share=share))
    assert (held["3 × single"], held["tensor 2 + single"], held["pipeline 11/11/10"]) == (singles, mixed, pipeline)
    assert STORY.parameters == 7 * 10**9


def test_the_bound_is_three_whole_cards_and_the_choice_four():
    order = story()
    assert (order.lower_bound_gpus, order.gpus) == (3, 4)
    assert held_by(order)["4 × single"] == 216
    assert round(order.cards_worth, 2) == 3.18
    assert story(calibration=hardware.MEASURED).gpus == 4
    assert story(share=1.0).gpus == 3 and story(BINARY, share=1.0).gpus == 3


def test_the_largest_stage_of_the_pipeline_holds_73_of_74_gib():
    ranks = Search(STORY, hardware.custom("", SOLD), 1.0, 2048, "fp16", None, hardware.NOTHING, (None,) * 3).ranks
    stages = ranks.stages(1, 3)
    assert [stage.stop - stage.start for stage in stages] == [11, 11, 10]
    full = max(stage.fixed + 200 * ranks.stage_conversation(stage, 1, 2048) for stage in stages)
    # by hand: 11/32 of the layers' bytes, the embedding, and 11/32 GiB for each conversation
    by_hand = 11 * (14 * 10**9 - 2 * 32_000 * 4096 * 2) // 32 + 32_000 * 4096 * 2 + 200 * 11 * 2**25
    assert full == by_hand
    assert round(full / 2**30, 1) == 73.3 and round(SOLD / 2**30, 1) == 74.5


def test_tensor_parallel_by_three_is_refused_with_its_reason():
    three = next(placed for placed in story().rejected if placed.replicas == ((3, 1),))
    assert three.reason == "3 ranks do not divide the 32 query heads"


def test_a_rejection_says_what_binds():
    said = {placed.name: placed.reason for placed in story().rejected}
    assert said["tensor 2 + single"] == "holds 175 of 200 conversations: tensor 2 121, single 54"
    assert said["pipeline 11/11/10"] == (
        "holds 181 of 200 conversations; stage 1 of 3, 11 layers, has the least room"  # the embedding is on it
    )
    assert said["3 × single"] == "holds 162 of 200 conversations"


def test_every_placement_of_three_cards_is_listed_once():
    three = [placed for placed in story().rejected if placed.gpus == 3]
    assert len({placed.name for placed in three}) == len(three) == 5
    assert all(placed.reason for placed in three)


def test_the_flips_are_where_the_count_changes():
    order = story()
    flips = order.flips
    for share, gpus in [(flips.share_one_fewer, 3), (flips.share_one_fewer - 1e-4, 4)]:
        assert story(share=share).gpus == gpus
    for context, gpus in [(flips.context_one_fewer, 3), (flips.context_one_fewer + 1, 4), (flips.context, 4)]:
        assert size(STORY, SOLD, context=context, conversations=200).gpus == gpus
    assert size(STORY, SOLD, context=flips.context + 1, conversations=200).gpus > 4
    for conversations, gpus in [(181, 3), (182, 4), (255, 4)]:
        assert size(STORY, SOLD, context=2048, conversations=conversations).gpus == gpus
    assert (flips.conversations_one_fewer, flips.conversations) == (181, 255)
    assert story(share=flips.share).gpus == 4 and story(share=flips.share - 1e-4).gpus > 4


def test_the_real_llama_on_real_cards():
    llama = model("Llama-2-7b-hf")
    for gpu in ("A100-80GB", "H100-80GB"):
        for calibration in (hardware.NOTHING, hardware.MEASURED):
            order = size(llama, gpu, context=2048, conversations=200, calibration=calibration)
            assert (order.lower_bound_gpus, order.gpus) == (3, 4)
    assert order.weight_bytes == 6_738_415_616 * 2
    assert order.cache_bytes_per_conversation == 2**30


def test_beyond_sixteen_cards_the_recursion_finds_what_trying_all_finds():
    kinds = [Kind(t, p, held) for t, p, held in [(1, 1, 0), (2, 1, 7), (1, 2, 5), (3, 1, 12), (1, 5, 21), (2, 2, 15)]]
    best = Best(kinds, 13)
    for cards in range(1, 14):
        tried = max(
            (sum(k.held for k in split) for split in every_split(cards, [k for k in kinds if k.held])), default=0
        )
        assert best.held[cards] == max(tried, best.held[cards - 1])
        assert sum(kind.held for kind in best.split(cards)) == best.held[cards]


@pytest.mark.parametrize(("name", "gpu"), [("Llama-3.1-405B", "H100-80GB"), ("Llama-2-7b-hf", "A100-80GB")])
def test_five_hundred_cards_are_answered_within_a_second(name, gpu):
    spec = model(name)
    wanted = Search(spec, hardware.card(gpu), 0.9, 2048, "bf16", None, hardware.MEASURED, (None,) * 3).best(512)
    started = time.process_time()
    order = size(spec, gpu, context=2048, conversations=wanted, calibration=hardware.MEASURED)
    assert time.process_time() - started < 1
    assert ENUMERATED < order.gpus <= 512


def test_fixed_replicas_are_equal_and_of_the_shape_asked_for():
    order = story(replicas=2, tensor_parallel=2)
    assert order.chosen.replicas == ((2, 1), (2, 1)) and order.gpus == 4
    assert story(tensor_parallel=1, pipeline_parallel=1).chosen.name == "4 × single"
    assert story(tensor_parallel=3, max_gpus=9).gpus is None


def test_more_calibrated_memory_never_needs_fewer_cards():
    low, high = story(calibration=hardware.MEASURED).gpus_in_band
    assert low <= 4 <= high


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300), st.sampled_from([0.5, 0.83, 0.9]))
def test_more_of_anything_needs_no_fewer_cards(context, conversations, share):
    def gpus(n, asked, part):
        return size(STORY, SOLD, context=n, conversations=asked, share=part, flips=False).gpus

    here = gpus(context, conversations, share)
    assert gpus(context + 101, conversations, share) >= here
    assert gpus(context, conversations + 7, share) >= here
    assert gpus(context, conversations, share + 0.05) <= here
    total = STORY.parameters * 2 + conversations * memory.conversation_bytes(STORY, context)
    assert here >= -(-total // SOLD)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200))
def test_doubling_the_context_and_halving_the_bytes_cancel(blocks):
    short = size(STORY, SOLD, context=16 * blocks, conversations=97, cache_dtype="fp16", flips=False)
    long = size(STORY, SOLD, context=32 * blocks, conversations=97, cache_dtype="int8", flips=False)
    assert held_by(short) == held_by(long)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"context": 0}, "context is 0"),
        ({"conversations": -5}, "conversations is -5"),
        ({"share": 1.5}, "share is 1.5"),
        ({"share": 0}, "share is 0"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
        ({"cache_dtype": "fp3"}, "cache format 'fp3' is not known"),
        ({"weights_dtype": "int3"}, "weight format 'int3' is not known"),
    ],
)
def test_numbers_that_make_no_order_are_refused_by_a_sentence(given_, said):
    with pytest.raises(DerivedError, match=said):
        size(STORY, SOLD, **{"context": 2048, "conversations": 200} | given_)
    with pytest.raises(DerivedError, match="GPU 'H900' is not in the table"):
        size(STORY, "H900", context=2048, conversations=200)


def test_a_share_is_the_decimal_that_was_written():
    for parts in (157, 2900, 5700, 9000, 10_000):  # 0.0157 · 10^6 falls short of 15,700 in doubles
        assert usable(hardware.custom("", 10_000), parts / 10_000) == parts


def test_nothing_fits_is_an_answer():
    order = size(STORY, SOLD, context=2048, conversations=200, max_gpus=3)
    assert order.gpus is None and order.chosen is None and order.rejected
    tiny = size(STORY, 2**30, context=2048, conversations=1, max_gpus=2)
    assert tiny.gpus is None
    assert any("before any conversation" in placed.reason for placed in tiny.rejected)
