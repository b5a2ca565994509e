"""Errors planted in the kernels, which the tests run in Triton's interpreter, and in the door before them.

None lets a kernel write beyond its arrays, or read far beyond them: the process would end before a test has failed.
"""

from tests.mutants.row import rows

DEFINITION = "test_float32_is_the_definition_forward_and_backward"
REPORT = "test_the_kernels_give_the_right_value"
WALK = "test_both_walks_visit_the_tiles_of_the_array_version"

ROWS = [
    *rows(
        "kernels/tile.py",
        "kernels/interpreted/check_door.py",
        (
            "causal aligned to the first key",
            "ahead = j - (i + m - n)",
            "ahead = j - i",
            f"{REPORT}[causal-topleft-decode]",
        ),
        (
            "the key at a query's own position forbidden",
            "reads = reads & (ahead <= 0)",
            "reads = reads & (ahead < 0)",
            f"{REPORT}[mask-sense-inverted]",
        ),
        (
            "a window of w + 1",
            "reads = reads & (ahead > -w)",
            "reads = reads & (ahead >= -w)",
            f"{REPORT}[window-off-by-one]",
        ),
        (
            "the caller's mask turned round",
            "tl.load(at, mask=(i < n) & (j < m), other=0) != 0",
            "tl.load(at, mask=(i < n) & (j < m), other=0) == 0",
            f"{REPORT}[padding-zero-embedding]",
        ),
        (
            "a weight of 0 hides a nan",
            'return tl.where(broken[None, :] & (a != 0), float("nan"), a), sound(x)',
            "return a, x",
            f"{REPORT}[masked-nan-leak]",
        ),
    ),
    *rows(
        "kernels/tile.py",
        "kernels/interpreted/check_flash.py",
        (
            "offsets of 32 bits",
            "rows.to(tl.int64)[:, None] * stride_row\n    at += cols",
            "rows[:, None] * stride_row\n    at += cols",
            "test_offsets_beyond_two_to_the_31[1]",
        ),
        (
            "offsets of a mask of 32 bits",
            "at = mask + i.to(tl.int64) * stride_n + j.to(tl.int64) * stride_m",
            "at = mask + i * stride_n + j * stride_m",
            "test_a_mask_with_offsets_beyond_two_to_the_31",
        ),
        (
            "the walk begins at the newest query's window",
            "low = tl.maximum(oldest - w + 1, 0) // B_t * B_t",
            "low = tl.maximum(newest - w + 1, 0) // B_t * B_t",
            f"{WALK}[causal window]",
        ),
        (
            "a tile on the diagonal taken for whole",
            "right = tl.minimum(oldest + 1, m)",
            "right = tl.minimum(newest + 1, m)",
            f"{WALK}[cached]",
        ),
        (
            "queries whole from the first key on",
            "left = (tl.maximum(newest, 0) + B_q - 1) // B_q * B_q",
            "left = (tl.maximum(oldest, 0) + B_q - 1) // B_q * B_q",
            f"{WALK}[cached]",
        ),
    ),
    *rows(
        "kernels/flash_forward.py",
        "kernels/interpreted/check_flash.py",
        ("the sum not rescaled", "l = l * factor + tl.sum(E, 1)", "l = l + tl.sum(E, 1)", f"{DEFINITION}[narrow]"),
        ("the values not rescaled", "o = o * factor[:, None]", "o = o * 1.0", f"{DEFINITION}[narrow]"),
        (
            "a query of nan taken for one that read nothing",
            "nothing = l == 0  #",
            'nothing = c == float("-inf")  #',
            "test_a_query_that_reads_only_what_is_broken_says_so[mask]",
        ),
        (
            "the log-sum-exp without its logarithm",
            "c + tl.log2(divisor)",
            "c + divisor",
            "test_the_log_sum_exp_is_that_of_the_scores_that_are_read[tall]",
        ),
        (
            "the whole tiles of a masked call left out",
            "left, right = low, low  # any pair",
            "left, right = left, right  # any pair",
            f"{DEFINITION}[mask]",
        ),
        (
            "the whole tiles walked again as cut ones",
            "low, high - (right - left), left, right - left, k, v",
            "low, high - (right - left), left, 0, k, v",
            f"{DEFINITION}[whole tiles, causal]",
        ),
        (
            "cut tiles read as whole ones",
            "CAUSAL, WINDOWED, MASKED, False, D_K, D_V, P_K, P_V, TESTED",
            "CAUSAL, WINDOWED, MASKED, True, D_K, D_V, P_K, P_V, TESTED",
            f"{DEFINITION}[whole tiles, causal]",
        ),
    ),
    *rows(
        "kernels/flash_forward.py",
        "kernels/interpreted/check_door.py",
        (
            "heads share a value head in turns",
            "v += row_b * stride_vb + (head // group)",
            "v += row_b * stride_vb + (head % group)",
            f"{REPORT}[gqa-tile]",
        ),
        (
            "every sequence reads the first one's values",
            "stride_vh + start_k * stride_vn",
            "stride_vh",
            f"{REPORT}[varlen-zero-q]",
        ),
    ),
    *rows(
        "kernels/flash_backward.py",
        "kernels/interpreted/check_flash.py",
        ("delta left out of dQ", "dS = A * (dA - delta[:, None])", "dS = A * dA", f"{DEFINITION}[narrow]"),
        (
            "delta off by one part in 50 000",
            "tl.store(delta + i, delta_t, mask=i < n)",
            "tl.store(delta + i, delta_t * 1.00002, mask=i < n)",
            "test_a_window_of_one_gives_the_value_and_no_gradient_to_query_or_key[2-37-37-causal-torch.float32]",
        ),
        ("the scale lost from dQ", "store_tile(dq, acc * scale,", "store_tile(dq, acc,", f"{DEFINITION}[narrow]"),
        ("the scale lost from dK", "store_tile(dk, dk_t * scale,", "store_tile(dk, dk_t,", f"{DEFINITION}[narrow]"),
        (
            "keys get gradients from one head of their group",
            "for t in range(0, group * count):",
            "for t in range(0, count):",
            f"{DEFINITION}[grouped]",
        ),
        (
            "delta of the group's first head for all, in cut tiles",
            "tl.load(delta + member * stride_lh + i, mask=i < n, other=0.0)",
            "tl.load(delta + i, mask=i < n, other=0.0)",
            f"{DEFINITION}[grouped]",
        ),
        (
            "delta of the group's first head for all, in whole tiles",
            "tl.load(delta + member * stride_lh + i)",
            "tl.load(delta + i)",
            f"{DEFINITION}[grouped]",
        ),
        (
            "the mask of the group's first head for all",
            "mask_h = mask + member * stride_mh",
            "mask_h = mask",
            f"{DEFINITION}[mask]",
        ),
        (
            "a forbidden nan of a key in dQ",
            "dS, k_t = tl.where(reads, dS, 0.0), sound(k_t)",
            "dS, k_t = tl.where(reads, dS, 0.0), k_t",
            "test_a_broken_key_or_value_changes_nobody_who_may_not_read_it[cached-1-nan]",
        ),
    ),
    *rows(
        "kernels/decode.py",
        "kernels/interpreted/check_decode.py",
        (
            "the sum not rescaled",
            "l = l * factor + tl.sum(E, 1)",
            "l = l + tl.sum(E, 1)",
            "test_the_number_of_stretches_does_not_matter[1]",
        ),
        (
            "a query of nan taken for one that reads nothing",
            "nothing = l == 0.0",
            'nothing = c == float("-inf")',
            "test_who_reads_a_nan_says_so_and_nobody_else[triton]",
        ),
        (
            "a part of nan taken for an empty one",
            'part = tl.load(at, mask=(lse_s != float("-inf"))',
            "weight = tl.where(lse_s == lse_s, weight, 0.0)\n        part = tl.load(at, mask=(lse_s == lse_s)",
            "test_an_empty_stretch_adds_nothing_whatever_it_holds",
        ),
        (
            "the sum of a single stretch written undivided",
            "acc / divisor[:, None]).to(",
            "acc / tl.where(lse is None, 1.0, divisor)[:, None]).to(",
            "test_the_number_of_stretches_does_not_matter[1]",
        ),
        (
            "a single stretch merged all the same",
            "parts, lse = o, None\n    if splits > 1:",
            "parts, lse = o, None\n    if splits > 0:",
            "test_a_single_stretch_is_written_at_once",
        ),
        (
            "each tile of rows the first one",
            "row = place % row_tiles * ROWS + tl.arange(0, ROWS)",
            "row = tl.arange(0, ROWS)",
            "test_one_piece_is_the_definition[more rows than a tile]",
        ),
        (
            "the first parts merged again and again",
            "s = first + tl.arange(0, S_t)",
            "s = first * 0 + tl.arange(0, S_t)",
            "test_more_stretches_than_are_merged_at_once",
        ),
        (
            "a last wave counted as full",
            "(slots * triton.cdiv(pairs * splits, slots))",
            "max(slots, pairs * splits)",
            "test_stretches_fill_whole_waves",
        ),
        (
            "parts merged with equal weights",
            "weight = tl.exp2(lse_s - shift)",
            "weight = tl.exp2(tl.minimum(lse_s - shift, 0.0) * 0.001)",
            "test_more_stretches_than_are_merged_at_once",
        ),
        (
            "the last keys in no stretch",
            "chunk = ((m - low + splits - 1) // splits + B_t - 1) // B_t * B_t",
            "chunk = (m - low) // splits // B_t * B_t",
            "test_the_number_of_stretches_does_not_matter[2]",
        ),
        (
            "the first of several queries lose the end of their window",
            "low = tl.maximum(m - n - w + 1, 0)",
            "low = tl.maximum(m - w + 1, 0)",
            "test_one_piece_is_the_definition[window, several queries]",
        ),
        (
            "all heads of a group ask the first one's question",
            "(row // n).to(tl.int64)",
            "(row // n * 0).to(tl.int64)",
            "test_the_number_of_stretches_does_not_matter[1]",
        ),
    ),
    *rows(
        "kernels/paged_decode.py",
        "kernels/interpreted/check_decode.py",
        (
            "pages looked up as if longer by a row",
            "j // PAGE, mask",
            "j // (PAGE + 1), mask",
            "test_pages_are_one_piece[wide-16]",
        ),
        ("rows of a page counted from 1", "(j % PAGE)", "((j + 1) % PAGE)", "test_pages_are_one_piece[wide-16]"),
    ),
    *rows(
        "kernels/launch.py",
        "kernels/interpreted/check_flash.py",
        (
            "no square root in the scale of a direct call",
            "1 / math.sqrt(d_k) if scale",
            "1 / d_k if scale",
            "test_the_log_sum_exp_is_that_of_the_scores_that_are_read[tall]",
        ),
        (
            "a wide window cut to the number of queries",
            "min(window or 0, n + m)",
            "min(window or 0, n)",
            f"{DEFINITION}[window beyond all]",
        ),
    ),
    *rows(
        "kernels/launch.py",
        "kernels/interpreted/check_door.py",
        (
            "heads and tokens of the result in the other order",
            "if q.stride(1) < q.stride(2):",
            "if q.stride(1) > q.stride(2):",
            "test_the_twins_give_shapes_strides_and_dtypes[True]",
        ),
    ),
    *rows(
        "kernels/autograd.py",
        "kernels/interpreted/check_flash.py",
        (
            "the sign of a scale below 0 lost",
            "q, scale = -q, -scale",
            "q, scale = q, -scale",
            f"{DEFINITION}[scale below 0]",
        ),
    ),
    *rows(
        "kernels/backends.py",
        "kernels/interpreted/check_flash.py",
        (
            "the scale of the values' width",
            "scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)\n        o =",
            "scale = 1 / math.sqrt(v.shape[-1]) if scale is None else float(scale)\n        o =",
            f"{DEFINITION}[narrow]",
        ),
    ),
    *rows(
        "kernels/backends.py",
        "kernels/test_door.py",
        (
            "an A100 sent to torch",
            "if torch.cuda.get_device_capability(q.device) < (8, 0):\n        return Choice(",
            "if torch.cuda.get_device_capability(q.device) <= (8, 0):\n        return Choice(",
            "test_auto_on_a_gpu_goes_by_its_capability",
        ),
    ),
    *rows(
        "kernels/cached.py",
        "kernels/interpreted/check_decode.py",
        (
            "torch lets every new query read the newest key",
            "torch.arange(n, device=q.device)[:, None] + there - n",
            "0 * torch.arange(n, device=q.device)[:, None] + there - 1",
            "test_torch_gives_the_same[window, several queries-False]",
        ),
        (
            "torch masks the whole capacity where lengths can be read",
            'cut if q.device.type == "cpu" else masked',
            "masked",
            "test_torch_reads_only_what_is_there[lengths0]",
        ),
        (
            "the window of the newest query for all",
            "max(m - n - window + 1, 0)",
            "max(m - window, 0)",
            "test_torch_gives_the_same[window, several queries-True]",
        ),
        (
            "a query more than fits advised",
            "fit = MOST_ROWS // group",
            "fit = MOST_ROWS // group + 1",
            "test_more_rows_than_the_kernel_takes",
        ),
    ),
    *rows(
        "kernels/tile.py",
        "kernels/interpreted/check_turns.py",
        (
            "a last section counted as long as the others",
            "heads = tl.minimum(together, tl.num_programs(0) // tiles - head)",
            "heads = together",
            "test_the_picture_of_the_docstring",
        ),
        (
            "the heads of a section one after another",
            "return within // heads, head + within % heads",
            "return within % tiles, head + within // tiles",
            "test_the_picture_of_the_docstring",
        ),
    ),
    *rows(
        "kernels/launch.py",
        "kernels/interpreted/check_turns.py",
        (
            "as many heads together as there are, whatever the cache holds",
            "return max(1, min(heads, heads * cache // max(1, held)))",
            "return max(1, heads)",
            "test_as_many_heads_take_turns_as_the_cache_holds",
        ),
    ),
    *rows(
        "kernels/torch_attention.py",
        "kernels/test_door.py",
        (
            "torch's causal mask aligned to the first key",
            "bias = causal_lower_right(n, m)",
            "aligned = True",
            "test_torch_is_the_definition_forward_and_backward[cached]",
        ),
        (
            "a causal window without its far end for torch",
            "reads = reads & (ahead > -window) & (ahead < window)",
            "reads = reads & (ahead < window)",
            "test_who_may_read_whom_is_what_ops_say[given2-5]",
        ),
    ),
]
