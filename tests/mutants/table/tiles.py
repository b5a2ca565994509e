"""Errors planted in the online softmax and in attention by tiles."""

from tests.mutants.row import rows

ROWS = [
    *rows(
        "ops/online.py",
        "ops/test_online.py",
        (
            "triples joined without rescaling",
            "factor = xp.exp(xp.where(empty, xp.zeros_like(c), x.c) - xp.where(empty, xp.zeros_like(c), c))",
            "factor = xp.ones_like(c)",
            "test_any_cut_into_tiles_gives_the_same_and_torch_agrees",
        ),
        (
            "the sum rescaled, the values not",
            "x.o * factor[..., None])",
            "x.o)",
            "test_any_cut_into_tiles_gives_the_same_and_torch_agrees",
        ),
        (
            "the smaller of the two maxima",
            "c = array_namespace(x.c, y.c).maximum(x.c, y.c)",
            "c = array_namespace(x.c, y.c).minimum(x.c, y.c)",
            "test_scores_far_apart_do_not_overflow",
        ),
        (
            "an empty tile claims a maximum of 0",
            "c = xp.where(nothing, xp.full_like(c[..., 0], -xp.inf), c[..., 0])",
            "c = c[..., 0]",
            "test_a_low_tile_after_an_empty_one_is_not_measured_from_zero",
        ),
        (
            "the log-sum-exp without its maximum",
            "xp.where(empty, x.c, x.c + xp.log(l))",
            "xp.where(empty, x.c, xp.log(l))",
            "test_finished_it_is_softmax_of_the_scores_times_the_values",
        ),
    ),
    *rows(
        "ops/tiled.py",
        "ops/test_tiled.py",
        (
            "dQ times 1.001",
            "dQ[rows] = dQ[rows] + weighted_sum(dS, k_t, reads)",
            "dQ[rows] = dQ[rows] + 1.001 * weighted_sum(dS, k_t, reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "dK times 1.001",
            "dK[keys] = dK[keys] + sum_groups(",
            "dK[keys] = dK[keys] + 1.001 * sum_groups(",
            "test_pullback_is_the_derivative",
        ),
        (
            "the row sum of dA for that of dA ∘ A",
            "xp.sum(dO * O, axis=-1, keepdims=True)",
            "xp.sum(dA, axis=-1, keepdims=True)",
            "test_pullback_is_the_derivative",
        ),
        (
            "weights recomputed without the log-sum-exp",
            "A = where_read(xp.exp(S_masked - lse), reads)",
            "A = where_read(xp.exp(S_masked), reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "the scale lost on the way back",
            "dS = where_read(dS_masked * cap_slope(S_scaled, softcap), reads) * scale",
            "dS = where_read(dS_masked * cap_slope(S_scaled, softcap), reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "the soft cap's slope dropped",
            "dS = where_read(dS_masked * cap_slope(S_scaled, softcap), reads) * scale",
            "dS = where_read(dS_masked, reads) * scale",
            "test_pullback_is_the_derivative[everything]",
        ),
        (
            "the last tile of keys alone teaches a query",
            "dQ[rows] = dQ[rows] + weighted_sum(dS, k_t, reads)",
            "dQ[rows] = weighted_sum(dS, k_t, reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "dV times 1.001",
            "dV[keys] = dV[keys] + sum_groups(",
            "dV[keys] = dV[keys] + 1.001 * sum_groups(",
            "test_pullback_is_the_derivative",
        ),
        (
            "tiles aligned to the first key",
            "first, last = rows.start + m - n, rows.stop - 1 + m - n",
            "first, last = rows.start, rows.stop - 1",
            "test_the_tiles_hold_every_pair_that_may_be_read_once_and_none_is_visited_in_vain",
        ),
        (
            "tiles that nobody may read visited all the same",
            "high = last + 1 if causal else m",
            "high = m if causal else m",
            "test_causal_visits_half_the_square_and_the_diagonal",
        ),
        (
            "the first tile of a window skipped",
            "range(low // B_t * B_t, high, B_t)",
            "range(-(-low // B_t) * B_t, high, B_t)",
            "test_the_tiles_hold_every_pair_that_may_be_read_once_and_none_is_visited_in_vain",
        ),
    ),
]
