"""Errors planted in what a token passes alone: norms, activations, the feed-forward network, low-rank updates."""

from tests.mutants.row import rows

ROWS = [
    *rows(
        "ops/norm.py",
        "ops/test_norm.py",
        (
            "epsilon outside the root",
            "rho = 1 / xp.sqrt(_mean(centred * centred) + eps)",
            "rho = 1 / (xp.sqrt(_mean(centred * centred)) + eps)",
            "test_the_variance_is_biased_and_epsilon_stands_inside_the_root",
        ),
        (
            "unbiased variance",
            "rho = 1 / xp.sqrt(_mean(centred * centred) + eps)",
            "rho = 1 / xp.sqrt(xp.sum(centred**2, axis=-1, keepdims=True) / (x.shape[-1] - 1) + eps)",
            "test_the_variance_is_biased_and_epsilon_stands_inside_the_root",
        ),
        (
            "statistics over the wrong axis",
            "return array_namespace(x).mean(x, axis=-1, keepdims=True)",
            "return array_namespace(x).mean(x, axis=0, keepdims=True)",
            "test_is_the_definition",
        ),
        (
            "RMSNorm removes the mean",
            "x_hat = wide * rho",
            "x_hat = (wide - _mean(wide)) * rho",
            "test_is_the_definition[rms_norm-1e-05-as_numpy]",
        ),
        (
            "no gradient through the mean",
            "dx = rho * (dx_hat - _mean(dx_hat) - x_hat * _mean(dx_hat * x_hat))",
            "dx = rho * (dx_hat - x_hat * _mean(dx_hat * x_hat))",
            "test_pullback_is_the_derivative[layer_norm-1e-05]",
        ),
        (
            "no gradient through the deviation",
            "dx = rho * (dx_hat - _mean(dx_hat) - x_hat * _mean(dx_hat * x_hat))",
            "dx = rho * (dx_hat - _mean(dx_hat))",
            "test_pullback_is_the_derivative[layer_norm-1e-05]",
        ),
        (
            "LayerNorm's dx times 1.001",
            "dx = rho * (dx_hat - _mean(dx_hat) - x_hat * _mean(dx_hat * x_hat))",
            "dx = 1.001 * rho * (dx_hat - _mean(dx_hat) - x_hat * _mean(dx_hat * x_hat))",
            "test_pullback_is_the_derivative[layer_norm-1e-05]",
        ),
        (
            "RMSNorm's dx times 1.001",
            "dx = rho * (dx_hat - x_hat * _mean(dx_hat * x_hat))",
            "dx = 1.001 * rho * (dx_hat - x_hat * _mean(dx_hat * x_hat))",
            "test_pullback_is_the_derivative[rms_norm-1e-05]",
        ),
        (
            "gain left out of the gradient",
            "dx_hat = _scaled(dy, gain)\n        dx = rho * (dx_hat - _mean(dx_hat)",
            "dx_hat = dy\n        dx = rho * (dx_hat - _mean(dx_hat)",
            "test_pullback_is_the_derivative[layer_norm-1e-05]",
        ),
        (
            "LayerNorm's dgain without x̂",
            "return _gradients((x, dx), (gain, dy * x_hat), (bias, dy))",
            "return _gradients((x, dx), (gain, dy), (bias, dy))",
            "test_pullback_is_the_derivative[layer_norm-1e-05]",
        ),
    ),
    *rows(
        "ops/activations.py",
        "ops/test_activations.py",
        (
            "the tanh form for the exact GELU",
            "below = 0.5 * (1 + erf(wide * math.sqrt(0.5)))",
            "below = 0.5 * (1 + xp.tanh(SQRT_2_OVER_PI * (wide + GELU_CUBIC * wide**3)))",
            "test_is_the_definition_and_what_torch_says",
        ),
        (
            "GELU's density forgotten in the slope",
            "return xp.astype(widen(dy) * (below + near * density), x.dtype)",
            "return xp.astype(widen(dy) * below, x.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "GELU's gradient times 1.001",
            "return xp.astype(widen(dy) * (below + near * density), x.dtype)",
            "return xp.astype(1.001 * widen(dy) * (below + near * density), x.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "tanh form's inner slope without the factor 3",
            "du = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * near**2)",
            "du = SQRT_2_OVER_PI * (1 + GELU_CUBIC * near**2)",
            "test_pullback_is_the_derivative",
        ),
        (
            "SiLU's slope taken for the logistic function's",
            "return xp.astype(widen(dy) * s * (1 + near * (1 - s)), x.dtype)",
            "return xp.astype(widen(dy) * s * (1 - s), x.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "logistic function that overflows",
            "e = xp.exp(-xp.abs(z))\n    return xp.where(z >= 0, 1 / (1 + e), e / (1 + e))",
            "return 1 / (1 + xp.exp(-z))",
            "test_huge_numbers_pass_or_vanish_without_a_warning",
        ),
        (
            "ReLU lets everything back",
            "return xp.astype(xp.where(x > 0, dy, xp.zeros_like(dy)), x.dtype)",
            "return xp.astype(dy, x.dtype)",
            "test_the_slope_is_what_torch_says",
        ),
    ),
    *rows(
        "ops/feed_forward.py",
        "ops/test_feed_forward.py",
        (
            "no slope of the activation",
            "du = bend_pullback(dz)",
            "du = dz",
            "test_pullback_is_what_autograd_says",
        ),
        (
            "the other factor of the gate",
            "dx_gate, dW_gate, *db_gate = gate_pullback(bend_pullback(dz * u))",
            "dx_gate, dW_gate, *db_gate = gate_pullback(bend_pullback(dz * g))",
            "test_pullback_is_what_autograd_says",
        ),
        (
            "one copy of x forgotten",
            "gradients = (dx_gate + dx_up, dW_gate,",
            "gradients = (dx_gate, dW_gate,",
            "test_pullback_is_what_autograd_says",
        ),
        (
            "the activation on the wrong branch",
            "y, down_pullback = linear_vjp(g * u, wide[3], wide[6])",
            "y, down_pullback = linear_vjp(activation_vjp(u)[0] * bent, wide[3], wide[6])",
            "test_swiglu_of_transformers_with_the_same_weights_says_the_same",
        ),
    ),
    *rows(
        "ops/lora.py",
        "ops/test_lora.py",
        (
            "alpha not divided by r",
            "return alpha / D.shape[1]",
            "return alpha",
            "test_is_the_definition",
        ),
        (
            "merged without the scale",
            "wide_W + _scale(alpha, D) * (wide_D @ wide_U)",
            "wide_W + wide_D @ wide_U",
            "test_merged_and_apart_are_the_same_map_and_the_update_has_rank_r",
        ),
        (
            "the scale lost on the way back",
            "dz, dU = up_pullback(scale * dy)",
            "dz, dU = up_pullback(dy)",
            "test_pullback_is_the_derivative",
        ),
        (
            "no gradient through the frozen matrix",
            "dx = dy @ xp.matrix_transpose(wide_W) + dx_low",
            "dx = dx_low",
            "test_pullback_is_the_derivative",
        ),
    ),
]
