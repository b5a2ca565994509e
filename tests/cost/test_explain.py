"""The tree sums to the cards booked, and every leaf's formula evaluates to its bytes."""

import re

import pytest

from derived.cost import hardware
from derived.cost.explain import explain, lines, shared_out
from derived.cost.placement import size
from derived.cost.spec import outline
from tests.cost.configs import SHORT, model

STORY = outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)


def evaluated(formula: str) -> int:
    """The number that a formula says: words and thousands separators dropped, × and / read as such."""
    bare = re.sub(r"(?<=\d),(?=\d{3})", "", formula)
    bare = re.sub(r"[A-Za-z]+(-[A-Za-z]+)*,?", " ", bare).replace("×", "*")
    return eval(bare.replace("/", "//"), {"__builtins__": {}})


def check(term, whole):
    """Every inner node is the sum of its parts, every leaf its formula, the root the whole."""
    assert term.bytes == whole >= 0
    for part in term.parts:
        check(part, part.bytes)
    if term.parts:
        assert sum(part.bytes for part in term.parts) == term.bytes
    else:
        assert evaluated(term.formula) == term.bytes, term


@pytest.mark.parametrize("share", [0.9, 1.0])
@pytest.mark.parametrize("calibration", [hardware.NOTHING, hardware.MEASURED])
def test_the_story_sums_to_the_cards(share, calibration):
    order = size(STORY, 80 * 10**9, context=2048, conversations=200, share=share, calibration=calibration)
    check(explain(order), order.gpus * 80 * 10**9)


@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize(("weights", "cache"), [(None, None), ("int4", "q8_0"), ("fp8", "fp8")])
def test_every_model_sums_to_the_cards(short, weights, cache):
    order = size(
        model(short), "H200", context=4099, conversations=53, weights_dtype=weights, cache_dtype=cache,
        calibration=hardware.MEASURED, flips=False,
    )  # fmt: skip
    check(explain(order), order.gpus * order.card.visible_bytes)
    mixed = size(model(short), "T4", context=2053, conversations=11, cache_dtype=cache, max_gpus=13, flips=False)
    tree = explain(mixed)
    if mixed.gpus:
        check(tree, mixed.gpus * mixed.card.visible_bytes)
    else:
        check(tree, mixed.weight_bytes + 11 * mixed.cache_bytes_per_conversation)


def test_a_byte_moved_is_seen():
    order = size(STORY, 80 * 10**9, context=2048, conversations=200)
    tree = explain(order)
    with pytest.raises(AssertionError):
        check(tree._replace(bytes=tree.bytes + 1), order.gpus * 80 * 10**9)
    leaf = next(tree.leaves())
    with pytest.raises(AssertionError):
        check(leaf._replace(bytes=leaf.bytes - 1, formula=leaf.formula), leaf.bytes - 1)


def test_all_conversations_are_somewhere():
    order = size(STORY, 80 * 10**9, context=2048, conversations=200, tensor_parallel=1, pipeline_parallel=1)
    cache = sum(leaf.bytes for leaf in explain(order).leaves() if "keys and values" in leaf.name)
    assert order.gpus == 4 and cache == 200 * 2**30


@pytest.mark.parametrize("asked", [1, 7, 199, 200, 216])
def test_conversations_are_shared_out_whole_and_within_what_each_replica_holds(asked):
    order = size(STORY, 80 * 10**9, context=2048, conversations=asked, tensor_parallel=1, flips=False)
    for found in (order, order._replace(chosen=order.rejected[-1]) if order.rejected else order):
        wanted = min(asked, found.chosen.conversations)
        shares = [share for _, share in shared_out(found._replace(conversations=wanted))]
        assert sum(shares) == wanted
        assert all(share <= held for share, held in zip(shares, found.chosen.held, strict=True))
    mixed = order._replace(
        chosen=order.chosen._replace(replicas=((1, 1),) * 3, held=(121, 54, 54)), conversations=asked
    )
    assert sum(share for _, share in shared_out(mixed)) == asked


def test_lines_name_every_term_with_its_unit():
    text = "\n".join(lines(explain(size(STORY, 80 * 10**9, context=2048, conversations=200))))
    assert "GiB" in text and "keys and values" in text and "outside the share" in text
