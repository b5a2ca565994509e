"""Errors planted where tokens come in and out: arrays, linear maps, embeddings, cross-entropy."""

from tests.mutants.row import rows

ROWS = [
    *rows(
        "ops/arrays.py",
        "ops/test_arrays.py",
        (
            "repeated rows assigned instead of added, torch",
            ".index_add(0, index, rows)",
            ".index_copy(0, index, rows)",
            "test_rows_of_the_same_index_add_up",
        ),
        (
            "repeated rows assigned instead of added, numpy",
            "np.add.at(out, index, rows)",
            "out[index] = rows",
            "test_rows_of_the_same_index_add_up",
        ),
        (
            "half precision left as it is",
            "return xp.astype(x, xp.float32) if is_half(x.dtype, xp) else x",
            "return x",
            "test_half_precision_is_widened_to_float32",
        ),
        (
            "scale of 1/d_k",
            "return 1 / math.sqrt(x) if x else 1.0",
            "return 1 / x if x else 1.0",
            "test_the_default_scale",
        ),
        (
            "all axes reversed",
            "return array_namespace(x).matrix_transpose(x)",
            "return array_namespace(x).permute_dims(x, tuple(reversed(range(x.ndim))))",
            "test_swapping_the_last_axes_leaves_the_leading_ones",
        ),
    ),
    *rows(
        "ops/linear.py",
        "ops/test_linear.py",
        (
            "db times 1.001",
            "xp.astype(xp.sum(dy_rows, axis=0), b.dtype)",
            "xp.astype(1.001 * xp.sum(dy_rows, axis=0), b.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "bias dropped",
            "y = y if b is None else y + wide_b",
            "y = y",
            "test_is_the_definition_with_and_without_a_bias",
        ),
        (
            "dW times 1.001",
            "dW = xp.astype(swap_last(rows) @ dy_rows, W.dtype)",
            "dW = xp.astype(1.001 * (swap_last(rows) @ dy_rows), W.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "dx times 1.001",
            "dx = xp.astype(dy @ swap_last(W_wide), x.dtype)",
            "dx = xp.astype(1.001 * dy @ swap_last(W_wide), x.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "db a mean over tokens, not a sum",
            "xp.astype(xp.sum(dy_rows, axis=0), b.dtype)",
            "xp.astype(xp.mean(dy_rows, axis=0), b.dtype)",
            "test_pullback_is_the_derivative",
        ),
    ),
    *rows(
        "ops/embedding.py",
        "ops/test_embedding.py",
        (
            "the neighbour's row",
            "xp.take(table, index, axis=0)",
            "xp.take(table, (index + 1) % n_vocab, axis=0)",
            "test_is_the_definition",
        ),
        (
            "dE times 1.001",
            "return xp.astype(scatter_add_rows(rows, index, n_vocab), table.dtype)",
            "return xp.astype(1.001 * scatter_add_rows(rows, index, n_vocab), table.dtype)",
            "test_pullback_is_the_derivative",
        ),
    ),
    *rows(
        "ops/cross_entropy.py",
        "ops/test_cross_entropy.py",
        (
            "the mean's gradient times 1.001",
            "ds = pull(widen(dy) * share)",
            "ds = pull(1.001 * widen(dy) * share)",
            "test_pullback_with_weights_is_the_derivative",
        ),
        (
            "one-hot forgotten in the gradient",
            "xp.where(came, a - 1, a)",
            "xp.where(came, a, a)",
            "test_the_gradient_is_predicted_minus_one_hot",
        ),
        (
            "the gradient times 1.001",
            "return xp.astype(widen(dy)[..., None] * xp.where(came, a - 1, a), s.dtype)",
            "return xp.astype(1.001 * widen(dy)[..., None] * xp.where(came, a - 1, a), s.dtype)",
            "test_pullback_is_the_derivative",
        ),
        (
            "a mean over tokens, not over weights",
            "total = xp.sum(w)",
            "total = xp.sum(xp.ones_like(w))",
            "test_weights_are_the_definition",
        ),
        (
            "a token of weight 0 read all the same",
            "loss = xp.sum(share * xp.where(share == 0, xp.zeros_like(losses), losses))",
            "loss = xp.sum(share * losses)",
            "test_a_token_of_weight_zero_is_not_read",
        ),
    ),
    *rows(
        "ops/embedding.py",
        "ops/test_small_losses.py",
        (
            "gradients of one token summed in half precision",
            "rows = xp.reshape(widen(dy), (index.shape[0], d_model))",
            "rows = xp.reshape(dy, (index.shape[0], d_model))",
            "test_gradients_of_one_token_add_up_in_numpys_float16",
        ),
    ),
]
