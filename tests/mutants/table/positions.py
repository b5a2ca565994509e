"""Errors planted in positions: sinusoids, rotation, its two pairings, ALiBi."""

from tests.mutants.row import rows

TESTS = "ops/test_positions.py"
ROWS = [
    *rows(
        "ops/positions/sinusoids.py",
        TESTS,
        (
            "one frequency a column, not a pair",
            "base ** (-2 * i / max(width, 1))",
            "base ** (-i / max(width, 1))",
            "test_sinusoids_are_the_definition",
        ),
        (
            "sine and cosine exchanged",
            "pairs = xp.stack((xp.sin(turned), xp.cos(turned)), axis=-1)",
            "pairs = xp.stack((xp.cos(turned), xp.sin(turned)), axis=-1)",
            "test_sinusoids_are_the_definition",
        ),
        (
            "positions in half precision let in",
            "if is_half(positions.dtype, xp):",
            "if False:",
            "test_positions_of_low_precision_collide_and_are_refused",
        ),
    ),
    *rows(
        "ops/positions/rotary.py",
        TESTS,
        (
            "the sign of the turn",
            "y_a, y_b = a * cos - b * sin, a * sin + b * cos",
            "y_a, y_b = a * cos + b * sin, b * cos - a * sin",
            "test_rope_of_four_columns_at_position_one_in_both_pairings",
        ),
        (
            "no rotation: both signs alike",
            "y_a, y_b = a * cos - b * sin, a * sin + b * cos",
            "y_a, y_b = a * cos + b * sin, a * sin + b * cos",
            "test_norms_are_kept",
        ),
        (
            "the pairings exchanged",
            "    if interleaved:\n        turned = xp.reshape",
            "    if not interleaved:\n        turned = xp.reshape",
            "test_rope_of_four_columns_at_position_one_in_both_pairings",
        ),
        (
            "the gradient turned forward again",
            "_turned(xp.astype(dy, wide.dtype), cos, -sin, interleaved)",
            "_turned(xp.astype(dy, wide.dtype), cos, sin, interleaved)",
            "test_pullback_of_rope_is_the_derivative",
        ),
        (
            "the gradient times 1.001",
            "_turned(xp.astype(dy, wide.dtype), cos, -sin, interleaved)",
            "_turned(1.001 * xp.astype(dy, wide.dtype), cos, -sin, interleaved)",
            "test_pullback_of_rope_is_the_derivative",
        ),
    ),
    *rows(
        "ops/positions/pairing.py",
        TESTS,
        (
            "columns permuted across heads",
            "[i * d_k + j for i in range(h) for j in head]",
            "[i * d_k + j for j in head for i in range(h)]",
            "test_permuted_weights_under_the_other_pairing_give_the_same_scores",
        ),
        (
            "the permutation for its inverse",
            "[i // 2 + (i % 2) * (d_rot // 2) for i in range(d_rot)]",
            "[*range(0, d_rot, 2), *range(1, d_rot, 2)]",
            "test_permuted_weights_under_the_other_pairing_give_the_same_scores",
        ),
    ),
    *rows(
        "ops/positions/alibi.py",
        TESTS,
        (
            "far keys favoured",
            "return -slopes[:, None, None] * distance",
            "return slopes[:, None, None] * distance",
            "test_bias_is_minus_the_slope_times_the_distance",
        ),
        (
            "slopes from 1 down",
            "steps = [8 * i / p for i in range(1, p + 1)]",
            "steps = [8 * i / p for i in range(p)]",
            "test_slopes_of_eight_heads_are_those_of_the_paper",
        ),
    ),
]
