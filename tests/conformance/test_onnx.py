"""Every node case that ONNX has for the operators derived here, as numpy arrays and as torch tensors."""

from collections import Counter
from functools import partial

import pytest

from derived.ops.tiled import tiled_attention
from tests.conformance.agreement import ADAPTERS, compare
from tests.conformance.attention import aligned_to_last_key, speaks_of_positions
from tests.conformance.cases import OPERATORS, collected
from tests.conformance.voices import in_numpy, in_torch, speaks

COUNTS = {
    "Attention": 93,
    "Gelu": 4,
    "LayerNormalization": 19,
    "LogSoftmax": 7,
    "RMSNormalization": 19,
    "RotaryEmbedding": 8,
    "Softmax": 7,
    "SoftmaxCrossEntropyLoss": 34,
    "Swish": 1,
}
"""Cases by operator in onnx 1.23.2, counted among all that its own `collect_testcases` gives."""

LEFT_OUT: dict[str, str] = {}
"""Name of a case -> why it is not run. Empty: every case is."""

RUN = [case for case in collected() if case.name not in LEFT_OUT]

PAIRS = [
    pytest.param(case, array, id=f"{case.name}-{array.__name__}")
    for case in RUN
    for array in (in_numpy, in_torch)
    if speaks(array, case)
]

FIRST_KEY = {
    "test_attention_3d_causal",
    "test_attention_3d_causal_bf16",
    "test_attention_3d_diff_heads_sizes_causal",
    "test_attention_3d_gqa_causal",
    "test_attention_3d_local_window",
    "test_attention_4d_attn_mask_3d_causal",
    "test_attention_4d_attn_mask_4d_causal",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_fp16",
    "test_attention_4d_diff_heads_sizes_causal",
    "test_attention_4d_gqa_causal",
    "test_attention_local_window",
    "test_attention_local_window_gqa_rank4_mask",
    "test_attention_local_window_rank1_boolean_mask",
}
"""Four queries, six keys and no cache: ONNX aligns causal to the first key, this package to the last."""

FIRST_NEW_KEY = {
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
    "test_attention_local_window_with_past",
}
"""A past, and other than one new key a query: ONNX places the first query at the first new key."""

TWO_SIDED = {"test_attention_bidirectional_window"}
"""A window of unequal reach to the left and to the right, which this package does not offer."""


@pytest.mark.parametrize(("case", "array"), PAIRS)
def test_agrees_with_onnx(case, array):
    compare(case, array)


@pytest.mark.parametrize("case", [case for case in RUN if case.operator == "Attention"], ids=lambda case: case.name)
def test_attention_in_tiles_agrees_with_onnx(case):
    compare(case, in_torch, attention=partial(tiled_attention, B_q=3, B_t=2))


def test_every_case_of_onnx_is_run_or_left_out_with_a_reason():
    names = [case.name for case in collected()]
    assert len(set(names)) == len(names)
    assert {case.name for case in RUN} | LEFT_OUT.keys() == set(names)
    assert all(LEFT_OUT.values())
    assert Counter(case.operator for case in collected()) == COUNTS
    assert set(OPERATORS) == ADAPTERS.keys() == COUNTS.keys()


def test_only_bfloat16_is_kept_from_numpy():
    torch_only = [case.name for case in RUN if not speaks(in_numpy, case)]
    assert len(torch_only) == 5 and all(name.endswith("bf16") for name in torch_only)
    assert all(speaks(in_torch, case) for case in RUN)


def test_cases_with_another_alignment_are_listed():
    by_mask = {
        case.name
        for case in RUN
        if case.operator == "Attention" and speaks_of_positions(case) and not aligned_to_last_key(case)
    }
    assert by_mask == FIRST_KEY | FIRST_NEW_KEY | TWO_SIDED
