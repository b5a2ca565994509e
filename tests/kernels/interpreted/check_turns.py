"""In which order programs take tiles and heads: every one once, and the numbers do not depend on it."""

import pytest
import torch
import triton
import triton.language as tl

from derived.kernels import launch
from derived.kernels.flash_backward import flash_backward
from derived.kernels.flash_forward import flash_forward
from derived.kernels.tile import turn_of
from tests.kernels.cases import drawn


@triton.jit
def turns_kernel(out, tiles, together):
    tile, head = turn_of(tiles, together)
    tl.store(out + 2 * tl.program_id(0), tile)
    tl.store(out + 2 * tl.program_id(0) + 1, head)


def turns(tiles, heads, together):
    """(tile, head) of each program."""
    out = torch.full((tiles * heads, 2), -1, dtype=torch.int32)
    turns_kernel[(tiles * heads,)](out, tiles, together)
    return [tuple(pair) for pair in out.tolist()]


def test_the_picture_of_the_docstring():
    tile = [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 1, 2]
    head = [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 4, 4, 4]
    assert turns(3, 5, 2) == list(zip(tile, head, strict=True))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 1), (3, 7, 7), (5, 7, 3), (2, 5, 4), (7, 1, 1)])
def test_every_tile_of_every_head_has_one_program(sizes):
    tiles, heads, together = sizes
    found = turns(*sizes)
    assert sorted(found) == [(tile, head) for tile in range(tiles) for head in range(heads)]
    if together == 1:  # head after head
        assert found == [(tile, head) for head in range(heads) for tile in range(tiles)]
    if together == heads:  # the first tiles of all heads first
        assert found == [(tile, head) for tile in range(tiles) for head in range(heads)]


@pytest.mark.parametrize("name", ["one key head, causal", "square causal"])
def test_the_numbers_do_not_depend_on_the_order(name, monkeypatch):
    q, k, v, do, given = drawn(name)
    results = []
    for cache in (0, 2**13, 2**40):  # head after head, some heads at a time, all at once
        monkeypatch.setattr(launch, "INTERPRETED_CACHE", cache)
        o, lse = flash_forward(q, k, v, **given)
        results.append((o, lse, *flash_backward(q, k, v, o, lse, do, **given)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_as_many_heads_take_turns_as_the_cache_holds(monkeypatch):
    k, v = torch.empty((2, 3, 7, 5)), torch.empty((2, 3, 7, 11))  # a key head takes 7 · 16 · 4 bytes, for two queries'
    monkeypatch.setattr(launch, "INTERPRETED_CACHE", 3 * 7 * 16 * 4)
    assert launch.heads_together(k, v, heads=12, causal=True) == 6
    assert launch.heads_together(k, v, heads=12, causal=False) == 1
    monkeypatch.setattr(launch, "INTERPRETED_CACHE", 100)
    assert launch.heads_together(k, v, heads=12, causal=True) == 1
    monkeypatch.setattr(launch, "INTERPRETED_CACHE", 2**30)
    assert launch.heads_together(k, v, heads=12, causal=True) == 12
    assert launch.heads_together(k[:, :, :0], v[:, :, :0], heads=12, causal=True) == 12
