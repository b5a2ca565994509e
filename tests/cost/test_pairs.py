"""Score pairs under each mask against loops over cells."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derived.cost.pairs import (
    causal_pairs,
    full_pairs,
    padded_causal_pairs,
    tiled_causal_pairs,
    uncached_causal_pairs,
    uncached_full_pairs,
    uncached_token_passes,
    window_pairs,
)
from tests.support.counted_loops import causal
from tests.support.mutants import planted

sizes = st.integers(1, 40)


def cells(n, m, reads):
    """Cells that a mask lets through, one by one."""
    return sum(1 for i in range(n) for j in range(m) if reads(i, j))


@given(sizes, sizes)
def test_full_and_causal_pairs_are_their_cells(n, m):
    assert full_pairs(n, m) == cells(n, m, lambda i, j: True)
    assert causal_pairs(n, m) == cells(n, m, causal(n, m))


@given(sizes, sizes, sizes)
def test_window_pairs_are_their_cells(n, m, w):
    assert window_pairs(n, m, w) == cells(n, m, causal(n, m, w))


@given(sizes, sizes)
def test_a_window_as_long_as_the_keys_is_causal_and_a_window_of_one_reads_itself(n, m):
    assert window_pairs(n, m, m) == window_pairs(n, m, m + 7) == causal_pairs(n, m)
    assert window_pairs(n, m, 1) == min(n, m)


def test_queries_before_the_first_key_read_nothing():
    # 5 queries on 2 keys: the last reads 2, the one before it 1, three read none
    assert causal_pairs(5, 2) == 3
    # 2 queries on 5 keys: 4 and 5
    assert causal_pairs(2, 5) == 9


def visited(n, B_q, B_t, padded):
    """Cells of every tile that holds a readable one, whole or cut at n."""
    total = 0
    for i0, j0 in itertools.product(range(0, n, B_q), range(0, n, B_t)):
        height = B_q if padded else min(B_q, n - i0)
        width = B_t if padded else min(B_t, n - j0)
        total += height * width if j0 <= min(n, i0 + B_q) - 1 else 0
    return total


@given(sizes, st.integers(1, 13))
def test_tiled_pairs_are_the_cells_of_the_tiles_visited(n, B_t):
    assert tiled_causal_pairs(n, B_t) == visited(n, B_t, B_t, padded=False)
    assert padded_causal_pairs(n, B_t) == visited(n, B_t, B_t, padded=True)


@given(sizes, st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 3]))
def test_of_two_tile_sizes_that_divide_the_larger_decides(n, small, times):
    assert visited(n, small, small * times, padded=False) == tiled_causal_pairs(n, small * times)
    assert visited(n, small * times, small, padded=False) == tiled_causal_pairs(n, small * times)


def test_tiles_that_fit_give_the_curriculum_form_and_one_cell_tiles_give_causal():
    assert tiled_causal_pairs(4096, 128) == padded_causal_pairs(4096, 128) == 4096 * (4096 + 128) // 2
    assert tiled_causal_pairs(37, 1) == causal_pairs(37, 37)
    assert tiled_causal_pairs(37, 41) == 37**2


@given(sizes)
def test_work_without_a_cache_is_the_sum_over_prefixes(n):
    assert uncached_token_passes(n) == sum(range(1, n + 1))
    assert uncached_full_pairs(n) == sum(full_pairs(i, i) for i in range(1, n + 1))
    assert uncached_causal_pairs(n) == sum(causal_pairs(i, i) for i in range(1, n + 1))


def test_2048_tokens_without_a_cache():
    n = 2048
    assert uncached_token_passes(n) == 2_098_176
    # against the thirds and sixths of n³: above by 3/(2n) and 3/n, to first order
    assert uncached_full_pairs(n) / (n**3 / 3) - 1 == pytest.approx(3 / (2 * n), rel=1e-3)
    assert uncached_causal_pairs(n) / (n**3 / 6) - 1 == pytest.approx(3 / n, rel=1e-3)


@pytest.mark.parametrize(
    "right, wrong, check",
    [
        ("r * (2 * m - r + 1), 2", "r * (2 * m - r - 1), 2", test_full_and_causal_pairs_are_their_cells),
        (
            "    r = least(n, m)\n    return quotient",
            "    r = n\n    return quotient",
            test_full_and_causal_pairs_are_their_cells,
        ),
        ("- _cut_sum(m - r, w)", "", test_window_pairs_are_their_cells),
        ("+ (x - y) * w", "+ (x - y) * (w - 1)", test_window_pairs_are_their_cells),
        (" - rest * (B_t - rest), 2", ", 2", test_tiled_pairs_are_the_cells_of_the_tiles_visited),
        ("n * (n + B_t)", "n * (n + 1)", test_tiled_pairs_are_the_cells_of_the_tiles_visited),
        ("T * (T + 1)", "T * T", test_tiled_pairs_are_the_cells_of_the_tiles_visited),
        ("(2 * n + 1), 6", "(2 * n + 1), 3", test_work_without_a_cache_is_the_sum_over_prefixes),
        ("(n + 2), 6", "(n + 2), 3", test_work_without_a_cache_is_the_sum_over_prefixes),
    ],
)
def test_the_checks_see_planted_errors(right, wrong, check):
    with planted("derived.cost.pairs", right, wrong), pytest.raises(AssertionError):
        check()
