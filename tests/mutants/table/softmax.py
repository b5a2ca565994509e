"""Errors planted in softmax, log-softmax and log-sum-exp."""

from tests.mutants.row import rows

DERIVATIVE = "test_pullback_is_the_derivative[{}]"

ROWS = rows(
    "ops/softmax.py",
    "ops/test_softmax.py",
    (
        "exp without the maximum",
        "e = xp.exp(x - c)",
        "e = xp.exp(x)",
        "test_huge_scores_do_not_overflow",
    ),
    (
        "sum over the wrong axis",
        "return e, c, xp.sum(e, axis=-1, keepdims=True)",
        "return e, c, xp.sum(e, axis=0, keepdims=True)",
        "test_is_the_definition",
    ),
    (
        "minus infinity subtracted from itself",
        "c = xp.where(c == -xp.inf, xp.zeros_like(c), c)",
        "c = xp.where(c == -xp.inf, c, c)",
        "test_a_row_of_minus_infinity_is_zero_and_stays_silent",
    ),
    (
        "log-sum-exp without c",
        "xp.full_like(l, -xp.inf), c + xp.log(safe))",
        "xp.full_like(l, -xp.inf), xp.log(safe))",
        "test_is_the_definition",
    ),
    (
        "log-softmax as the logarithm of rounded weights",
        "y = (x - c) - xp.log(safe)",
        "y = xp.log(e / safe)",
        "test_a_weight_too_small_for_float64_still_has_its_logarithm",
    ),
    (
        "half precision not widened",
        "e, _, l = shifted_exp(widen(s))",
        "e, _, l = shifted_exp(s)",
        "test_float16_at_its_ends",
    ),
    (
        "softmax's mean gradient dropped",
        "return xp.astype(a * (da - mean), s.dtype)",
        "return xp.astype(a * da, s.dtype)",
        "test_the_jacobian_of_softmax_is_symmetric_and_its_rows_sum_to_zero",
    ),
    (
        "softmax's gradient times 1.001",
        "return xp.astype(a * (da - mean), s.dtype)",
        "return xp.astype(1.001 * a * (da - mean), s.dtype)",
        DERIVATIVE.format("softmax"),
    ),
    (
        "log-sum-exp's gradient times 1.001",
        "return xp.astype(widen(dy)[..., None] * (e / safe), s.dtype)",
        "return xp.astype(1.001 * widen(dy)[..., None] * (e / safe), s.dtype)",
        DERIVATIVE.format("log_sum_exp"),
    ),
    (
        "log-softmax's gradient times 1.001",
        "return xp.astype(dy - a * xp.sum(dy, axis=-1, keepdims=True), s.dtype)",
        "return xp.astype(1.001 * (dy - a * xp.sum(dy, axis=-1, keepdims=True)), s.dtype)",
        DERIVATIVE.format("log_softmax"),
    ),
)
