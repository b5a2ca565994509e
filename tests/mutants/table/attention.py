"""Errors planted in attention: heads, masks, scores, the way back, and the same in tiles."""

from tests.mutants.row import rows

ROWS = [
    *rows(
        "ops/heads.py",
        "ops/test_heads.py",
        (
            "key heads tiled, not repeated",
            "xp.broadcast_to(x[..., None, :, :], (*batch, h_kv, groups, m, d))",
            "xp.broadcast_to(x[..., None, :, :, :], (*batch, groups, h_kv, m, d))",
            "test_a_key_head_serves_consecutive_query_heads",
        ),
        (
            "heads reshaped, not transposed",
            "return xp.moveaxis(xp.reshape(x, (*batch, n, h, d_model // h)), -2, -3)",
            "return xp.reshape(x, (*batch, h, n, d_model // h))",
            "test_head_i_takes_the_i_th_piece_of_every_token",
        ),
        (
            "heads merged without the transpose",
            "return xp.reshape(xp.moveaxis(x, -3, -2), (*batch, n, h * d_v))",
            "return xp.reshape(x, (*batch, n, h * d_v))",
            "test_merging_undoes_splitting",
        ),
        (
            "mean instead of sum over shared heads",
            "return xp.sum(xp.reshape(dx, (*batch, h // groups, groups, m, d)), axis=-3)",
            "return xp.mean(xp.reshape(dx, (*batch, h // groups, groups, m, d)), axis=-3)",
            "test_a_shared_head_receives_the_sum",
        ),
    ),
    *rows(
        "ops/masks.py",
        "ops/test_masks.py",
        (
            "causal aligned to the first key",
            "[:, None] + (m - n)",
            "[:, None]",
            "test_the_drawings_of_the_docstring",
        ),
        (
            "a query does not read its own position",
            "allowed.append(j <= i)",
            "allowed.append(j < i)",
            "test_the_drawings_of_the_docstring",
        ),
        (
            "window one wide of its size",
            "allowed.append(j > i - window)",
            "allowed.append(j >= i - window)",
            "test_causal_and_window_are_the_definition",
        ),
        (
            "mask inverted",
            'allowed.append(cut(_fitting("mask", mask, q, m), rows, keys))',
            'allowed.append(~cut(_fitting("mask", mask, q, m), rows, keys))',
            "test_mask_bias_causal_and_window_all_must_agree",
        ),
        (
            "one permission is enough",
            "reads = reads & other",
            "reads = reads | other",
            "test_mask_bias_causal_and_window_all_must_agree",
        ),
        (
            "a bias of minus infinity not seen as a mask",
            'allowed.append(cut(_fitting("bias", bias, q, m), rows, keys) != -xp.inf)',
            'allowed.append(cut(_fitting("bias", bias, q, m), rows, keys) != xp.inf)',
            "test_mask_bias_causal_and_window_all_must_agree",
        ),
        (
            "nan leaks through a weight of 0",
            "    if not bool(xp.any(broken)):\n        return a @ x",
            "    if True:\n        return a @ x",
            "test_an_unread_row_adds_nothing_whatever_it_holds",
        ),
    ),
    *rows(
        "ops/attention.py",
        "ops/test_attention.py",
        (
            "the scale lost",
            "S_scaled = S * scale",
            "S_scaled = S * 1",
            "test_is_the_definition",
        ),
        (
            "scale by d_model, all heads' widths together",
            "scale = inverse_sqrt(q.shape[-1]) if scale is None else scale",
            "scale = inverse_sqrt(q.shape[-1] * q.shape[-3]) if scale is None else scale",
            "test_is_the_definition[grouped-plain-as_numpy]",
        ),
        (
            "softmax over the queries",
            "A, softmax_pullback = softmax_vjp(S_masked)  # (5.3)",
            "A, softmax_pullback = softmax_vjp(swap_last(S_masked))\n    A = swap_last(A)",
            "test_is_the_definition",
        ),
        (
            "soft cap after the bias",
            """    seen = S_scaled if softcap is None else softcap * xp.tanh(S_scaled / softcap)
    if bias is not None:
        seen = seen + xp.astype(bias, seen.dtype)
""",
            """    seen = S_scaled if bias is None else S_scaled + xp.astype(bias, S_scaled.dtype)
    seen = seen if softcap is None else softcap * xp.tanh(seen / softcap)
""",
            "test_is_the_definition",
        ),
        (
            "the bias lost",
            "seen = seen + xp.astype(bias, seen.dtype)",
            "seen = seen + xp.zeros_like(xp.astype(bias, seen.dtype))",
            "test_is_the_definition",
        ),
        (
            "A for its transpose in dV",
            "dV = weighted_sum(swap_last(A), dO, transposed(reads))",
            "dV = weighted_sum(A, dO, reads)",
            "test_pullback_is_torchs_own[square-plain]",
        ),
        (
            "dV times 1.001",
            "dV = weighted_sum(swap_last(A), dO, transposed(reads))",
            "dV = 1.001 * weighted_sum(swap_last(A), dO, transposed(reads))",
            "test_pullback_is_the_derivative",
        ),
        (
            "dA without dO's values",
            "dA = where_read(dO @ swap_last(v), reads)",
            "dA = where_read(1.001 * dO @ swap_last(v), reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "the scale lost on the way back",
            "dS = dS_scaled * scale",
            "dS = dS_scaled * 1",
            "test_pullback_is_the_derivative",
        ),
        (
            "the scale twice on the way back",
            "dQ = weighted_sum(dS, k, reads)",
            "dQ = weighted_sum(dS * scale, k, reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "dQ times 1.001",
            "dQ = weighted_sum(dS, k, reads)",
            "dQ = 1.001 * weighted_sum(dS, k, reads)",
            "test_pullback_is_the_derivative",
        ),
        (
            "dK times 1.001",
            "dK = weighted_sum(swap_last(dS), q, transposed(reads))",
            "dK = 1.001 * weighted_sum(swap_last(dS), q, transposed(reads))",
            "test_pullback_is_the_derivative",
        ),
        (
            "dK takes the weights for dS",
            "dK = weighted_sum(swap_last(dS), q, transposed(reads))",
            "dK = weighted_sum(swap_last(A), q, transposed(reads))",
            "test_pullback_is_the_derivative",
        ),
        (
            "the soft cap's slope dropped",
            "return 1 if softcap is None else 1 - array_namespace(S_scaled).tanh(S_scaled / softcap) ** 2",
            "return 1",
            "test_pullback_is_the_derivative",
        ),
        (
            "a shared key head learns from its first query head alone",
            "dK=sum_groups(dK, groups), dV=sum_groups(dV, groups)",
            "dK=dK[..., ::groups, :, :] if groups > 1 else dK, dV=sum_groups(dV, groups)",
            "test_grouped_heads_are_repeated_keys_with_summed_gradients",
        ),
    ),
    *rows(
        "ops/attention.py",
        "ops/test_attention_edges.py",
        (
            "half precision not widened",
            "q, k, v = widen_together(q, k, v)",
            "pass",
            "test_float16_scores_beyond_its_range",
        ),
        (
            "values summed with what may not be read",
            "O = weighted_sum(A, v, reads)",
            "O = A @ v",
            "test_what_may_not_be_read_leaves_no_trace_forward_or_backward",
        ),
        (
            "dQ summed with keys that may not be read",
            "dQ = weighted_sum(dS, k, reads)",
            "dQ = dS @ k",
            "test_what_may_not_be_read_leaves_no_trace_forward_or_backward",
        ),
        (
            "a nan in dA let through the mask",
            "dA = where_read(dO @ swap_last(v), reads)",
            "dA = dO @ swap_last(v)",
            "test_what_may_not_be_read_leaves_no_trace_forward_or_backward",
        ),
        (
            "a nan query's weights on keys it may not read",
            "A = where_read(A, reads)",
            "A = A",
            "test_a_nan_query_spoils_its_own_row_and_the_keys_it_may_read",
        ),
    ),
    *rows(
        "ops/attention.py",
        "ops/test_small_losses.py",
        (
            "a masked score of −1e4",
            "xp.where(reads, seen, xp.full_like(seen, -xp.inf))",
            "xp.where(reads, seen, xp.full_like(seen, -1e4))",
            "test_a_masked_key_stays_out_however_low_the_others_score",
        ),
    ),
]
