"""Errors planted in the chains: layers, multi-head attention, blocks, stacks, whole models."""

from tests.mutants.row import rows

ROWS = [
    *rows(
        "model/layers.py",
        "model/test_multi_head.py",
        (
            "gradients handed to the parameters in reverse",
            "rest = iter(gradients)",
            "rest = iter(gradients[::-1])",
            "test_pullback_of_cross_attention_is_the_derivative",
        ),
    ),
    *rows(
        "model/multi_head.py",
        "model/test_multi_head.py",
        (
            "dW_Q times 1.001",
            "return (dx, dk + dv, dW_Q,",
            "return (dx, dk + dv, 1.001 * dW_Q,",
            "test_pullback_of_cross_attention_is_the_derivative",
        ),
        (
            "heads' gradients merged without the transpose",
            "dQ, dK, dV = attention_pullback(split_heads(do, h))",
            "dQ, dK, dV = attention_pullback(do.reshape(split_heads(do, h).shape))",
            "test_pullback_of_cross_attention_is_the_derivative",
        ),
        (
            "the output projection dropped",
            "y, output_pullback = linear_vjp(merge_heads(O), W_O, b_O)",
            "y, output_pullback = merge_heads(O)[..., : W_O.shape[1]], linear_vjp(merge_heads(O), W_O, b_O)[1]",
            "test_self_attention_with_rotary_is_the_definition",
        ),
        (
            "the values' bias dropped",
            "v, v_pullback = linear_vjp(memory, W_V, b_V)",
            "v, v_pullback = linear_vjp(memory, W_V, None if b_V is None else 0 * b_V)",
            "test_cross_attention_is_the_definition",
        ),
        (
            "position of a cached query off by one",
            """    return rope_vjp(x, rotary.cos[..., first:, :], rotary.sin[..., first:, :], interleaved""",
            """    first, last = (first - 1, -1) if first else (0, None)
    return rope_vjp(x, rotary.cos[..., first:last, :], rotary.sin[..., first:last, :], interleaved""",
            "test_the_last_tokens_against_all_keys_are_the_last_rows_of_the_whole",
        ),
        (
            "keys not turned",
            "K, turn_k_back = _turned_vjp(split_heads(k, h_kv), rotary, m)",
            "K, turn_k_back = _turned_vjp(split_heads(k, h_kv), None, m)",
            "test_self_attention_with_rotary_is_the_definition",
        ),
        (
            "the keys' gradient not turned back",
            "merge_heads(turn_k_back(dK))",
            "merge_heads(dK)",
            "test_pullback_of_self_attention_is_the_derivative",
        ),
        (
            "tokens that read one another learn from their queries alone",
            "return (dparams, dx + dmemory) if memory is None",
            "return (dparams, dx) if memory is None",
            "test_pullback_of_self_attention_is_the_derivative",
        ),
        (
            "the memory learns from its values alone",
            "return (dx, dk + dv, dW_Q,",
            "return (dx, dv, dW_Q,",
            "test_pullback_of_cross_attention_is_the_derivative",
        ),
    ),
    *rows(
        "model/multi_head.py",
        "model/test_published_models.py",
        (
            "keys and values taken from the queries' tokens",
            "x, x if memory is None else memory, *params,",
            "x, x, *params,",
            "test_the_transformer_of_torch_says_the_same",
        ),
    ),
    *rows(
        "model/block.py",
        "model/test_block.py",
        (
            "first residual dropped, post-norm",
            "layer_vjp(norm_vjp, params.norm_1, x + a)",
            "layer_vjp(norm_vjp, params.norm_1, a)",
            "test_is_the_definition",
        ),
        (
            "second residual from the block's input",
            "y, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x_1 + f)",
            "y, norm_2_pullback = layer_vjp(norm_vjp, params.norm_2, x + f)",
            "test_is_the_definition",
        ),
        (
            "residual dropped, pre-norm",
            "y = x_1 + f",
            "y = f",
            "test_with_output_matrices_of_zero_pre_norm_is_the_identity_and_post_norm_two_norms",
        ),
        (
            "attention reads what is not normalised, pre-norm",
            "multi_head_attention_vjp(params.attention, x_hat, h=h, **reading)",
            "multi_head_attention_vjp(params.attention, x, h=h, **reading)",
            "test_is_the_definition",
        ),
        (
            "residual left out on the way back, post-norm",
            "dfeed_forward, dnorm_2), dsum_1 + da",
            "dfeed_forward, dnorm_2), da",
            "test_pullback_is_the_derivative",
        ),
        (
            "residual left out on the way back, pre-norm",
            "dx_1 = dy + dnormed",
            "dx_1 = dnormed",
            "test_pullback_is_the_derivative",
        ),
        (
            "dx times 1.001, pre-norm",
            "dfeed_forward, dnorm_2), dx_1 + dnormed",
            "dfeed_forward, dnorm_2), 1.001 * (dx_1 + dnormed)",
            "test_pullback_is_the_derivative",
        ),
    ),
    *rows(
        "model/cross_block.py",
        "model/test_block.py",
        (
            "the memory's norm skipped, post-norm",
            "layer_vjp(norm_vjp, params.norm_2, x_1 + c)",
            "layer_vjp(norm_vjp, params.norm_1, x_1 + c)",
            "test_the_decoder_layer_of_torch_says_the_same",
        ),
        (
            "cross-attention reads before the residual, pre-norm",
            "x_2 = x_1 + c",
            "x_2 = x + c",
            "test_the_decoder_layer_of_torch_says_the_same",
        ),
        (
            "the memory's mask forgotten, post-norm",
            "params.cross_attention, x_1, memory, h=h, **(memory_reading or {}))",
            "params.cross_attention, x_1, memory, h=h)",
            "test_the_decoder_layer_of_torch_says_the_same",
        ),
        (
            "the memory's gradient times 1.001, post-norm",
            "return dparams, dsum_1 + da, dmemory",
            "return dparams, dsum_1 + da, 1.001 * dmemory",
            "test_pullback_with_cross_attention_is_the_derivative",
        ),
    ),
    *rows(
        "model/stack.py",
        "model/test_stack.py",
        (
            "the final norm dropped",
            "y, norm_pullback = layer_vjp(norm_vjp, params.final_norm, y)",
            "_, norm_pullback = layer_vjp(norm_vjp, params.final_norm, y)",
            "test_a_stack_without_layers_is_its_final_norm",
        ),
        (
            "gradients handed to the layers in reverse",
            "dlayers=tuple(reversed(dlayers))",
            "dlayers=tuple(dlayers)",
            "test_the_trace_holds_what_enters_each_layer_and_the_gradient_there",
        ),
        (
            "a memory learns from the first layer alone",
            "else [a + b for a, b in zip(dshared, from_layer, strict=True)]",
            "else from_layer",
            "test_a_memory_receives_from_every_layer",
        ),
    ),
    *rows(
        "model/transformer.py",
        "model/test_published_models.py",
        (
            "positions off by one",
            "return array_namespace(tokens).arange(n, device=device_of(tokens))",
            "return array_namespace(tokens).arange(n, device=device_of(tokens)) + 1",
            "test_gpt2_of_transformers_with_the_same_weights_says_the_same",
        ),
    ),
    *rows(
        "model/transformer.py",
        "model/test_transformer.py",
        (
            "the positions' gradient times 1.001",
            "dP = position_pullback(",
            "dP = 1.001 * position_pullback(",
            "test_pullback_of_a_language_model_is_the_derivative",
        ),
        (
            "a tied table learns from its head alone",
            "return DecoderOnlyParams(dE + swap_last(dW_head), dstack, dP)",
            "return DecoderOnlyParams(swap_last(dW_head), dstack, dP)",
            "test_a_tied_table_learns_from_both_of_its_uses",
        ),
        (
            "a language model that reads the future",
            "stack_vjp(block_vjp, params.stack, x, h=h, causal=True, **options)",
            "stack_vjp(block_vjp, params.stack, x, h=h, causal=False, **options)",
            "test_logits_do_not_know_the_future_and_have_no_gradient_there",
        ),
        (
            "the encoder learns nothing",
            "dencoder, dsource = encoder_pullback(dmemory)",
            "dencoder, dsource = encoder_pullback(0 * dmemory)",
            "test_pullback_of_encoder_decoder_is_the_derivative",
        ),
    ),
    *rows(
        "model/initialise.py",
        "model/test_transformer.py",
        (
            "a deviation of 1/d_in, not its root",
            "return rng.normal(0, 1 / math.sqrt(d_in), size=(d_in, d_out))",
            "return rng.normal(0, 1 / d_in, size=(d_in, d_out))",
            "test_matrices_begin_with_the_stated_variance",
        ),
    ),
    *rows(
        "model/tree.py",
        "model/test_transformer.py",
        (
            "paths without the names of fields",
            'names = getattr(params, "_fields", range(len(params)))',
            "names = range(len(params))",
            "test_paths_name_every_array",
        ),
    ),
]
