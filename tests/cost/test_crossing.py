"""Crossings against searches over token counts and against the numbers of real configs."""

# ruff: noqa: C408 - dict(d_model=4096, h=32) reads as the formulas' sizes do

import math
from fractions import Fraction

import pytest
import sympy

from derived.cost.crossing import (
    causal_crossing_tokens,
    crossing_tokens,
    crossing_tokens_with_projections,
    tiled_crossing_tokens,
    window_crossing_tokens,
)
from derived.cost.flops import attention_macs, core_macs, linear_macs
from derived.cost.pairs import causal_pairs, full_pairs, tiled_causal_pairs, window_pairs
from derived.errors import DtypeError
from tests.support.mutants import planted

CONFIGS = {  # sizes of each published config.json; crossing of the core, and with the projections
    "2017, d = 4096": (dict(d_model=4096, h=32, h_kv=32, d_k=128, d_ff=16384, ffn_matrices=2), 16384, 8192),
    "Llama-2-7B": (dict(d_model=4096, h=32, h_kv=32, d_k=128, d_ff=11008, ffn_matrices=3), 16512, 8320),
    "Llama-3-8B": (dict(d_model=4096, h=32, h_kv=8, d_k=128, d_ff=14336, ffn_matrices=3), 21504, 16384),
    # 3 · 28672 / 2 = 43008; less half of (2 · 8192 + 2 · 1024) = 9216
    "Llama-3-70B": (dict(d_model=8192, h=64, h_kv=8, d_k=128, d_ff=28672, ffn_matrices=3), 43008, 33792),
    # h d_k = 8192 is not d_model: 3 · 5120 · 25600 / 16384 = 24000; less 5120 (64 + 8) 256 / 16384 = 5760
    "Qwen3-32B": (dict(d_model=5120, h=64, h_kv=8, d_k=128, d_ff=25600, ffn_matrices=3), 24000, 18240),
}


def first(n_from, n_to, costs_as_much):
    """The first token count in the range at which the condition holds, by halving (it holds from there on)."""
    while n_from < n_to:
        middle = (n_from + n_to) // 2
        n_from, n_to = (n_from, middle) if costs_as_much(middle) else (middle + 1, n_to)
    return n_from


def core_only(sizes):
    return {letter: sizes[letter] for letter in ("d_model", "h", "d_k", "d_ff", "ffn_matrices")} | {"d_v": sizes["d_k"]}


def ffn(n, sizes):
    return sizes["ffn_matrices"] * linear_macs(n, sizes["d_model"], sizes["d_ff"])


def core(pairs, sizes):
    return core_macs(pairs=pairs, h=sizes["h"], d_k=sizes["d_k"], d_v=sizes["d_k"])


def sublayer(n, pairs, sizes):
    heads = {letter: sizes[letter] for letter in ("d_model", "h", "h_kv", "d_k")}
    return attention_macs(n=n, pairs=pairs, d_v=sizes["d_k"], **heads)


def check(sizes, expected, with_projections):
    assert crossing_tokens(**core_only(sizes)) == expected
    assert first(1, 2**20, lambda n: core(full_pairs(n, n), sizes) >= ffn(n, sizes)) == expected
    assert crossing_tokens_with_projections(d_v=sizes["d_k"], **sizes) == with_projections
    assert first(1, 2**20, lambda n: sublayer(n, full_pairs(n, n), sizes) >= ffn(n, sizes)) == with_projections


@pytest.mark.parametrize("name", CONFIGS)
def test_crossings_of_real_configs_are_where_the_counts_meet(name):
    check(*CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_causal_crossings_are_where_the_counts_meet(name):
    sizes, X, X_with = CONFIGS[name]
    assert causal_crossing_tokens(X) == first(1, 2**20, lambda n: core(causal_pairs(n, n), sizes) >= ffn(n, sizes))
    assert causal_crossing_tokens(X_with) == first(
        1, 2**20, lambda n: sublayer(n, causal_pairs(n, n), sizes) >= ffn(n, sizes)
    )


def test_causal_is_8_d_minus_1_and_tiled_8_d_minus_the_tile():
    d = 4096
    full = crossing_tokens(d_model=d, h=32, d_k=128, d_v=128, d_ff=4 * d, ffn_matrices=2)
    assert full == 4 * d
    assert causal_crossing_tokens(full) == 8 * d - 1 == 32767
    assert tiled_crossing_tokens(full, 128) == 8 * d - 128 == 32640


@pytest.mark.parametrize("B_t", [16, 64, 128, 100, 48, 11])
def test_tiled_crossings_are_where_the_counts_meet(B_t):
    sizes, X, _ = CONFIGS["Llama-3-8B"]
    found = first(1, 2**20, lambda n: core(tiled_causal_pairs(n, B_t), sizes) >= ffn(n, sizes))
    line = tiled_crossing_tokens(X, B_t)
    s = line % B_t
    if s == 0:
        assert found == line
    else:
        assert 0 <= found - line <= 1 + B_t**2 / (4 * line)


@pytest.mark.parametrize("w", [4096, 21504, 21505, 25000, 30000, 43006, 43007, 50000])
def test_window_crossings_are_where_the_counts_meet(w):
    sizes, X, _ = CONFIGS["Llama-3-8B"]
    crossing = window_crossing_tokens(X, w)
    assert (crossing == math.inf) == (w <= X)
    if crossing < math.inf:
        n = math.ceil(crossing)
        assert core(window_pairs(n, n, w), sizes) >= ffn(n, sizes)
        assert core(window_pairs(n - 1, n - 1, w), sizes) < ffn(n - 1, sizes)


def test_mistrals_window_of_4096_never_reaches_its_ffn():
    sizes = CONFIGS["Llama-3-8B"][0]  # Mistral-7B-v0.1 has the same widths, and a window of 4096
    assert window_crossing_tokens(crossing_tokens(**core_only(sizes)), 4096) == math.inf


def test_one_decode_step_crosses_where_a_full_prefill_does():
    sizes, X, _ = CONFIGS["Llama-3-8B"]
    assert core(X, sizes) == ffn(1, sizes)


def test_kv_heads_move_the_crossing_with_projections_alone():
    sizes = CONFIGS["Llama-3-8B"][0]
    moved = [crossing_tokens_with_projections(d_v=128, **(sizes | dict(h_kv=h_kv))) for h_kv in (32, 8, 1)]
    assert moved == sorted(set(moved))


def test_a_crossing_between_two_tokens_is_an_exact_fraction():
    assert crossing_tokens(d_model=7, h=2, d_k=5, d_v=3, d_ff=11, ffn_matrices=2) == Fraction(2 * 7 * 11, 16)


def test_an_ffn_cheaper_than_the_projections_gives_no_positive_crossing():
    assert crossing_tokens_with_projections(d_model=16, h=2, h_kv=2, d_k=8, d_v=8, d_ff=16, ffn_matrices=2) < 0


def test_a_window_picks_a_branch_and_refuses_symbols():
    with pytest.raises(DtypeError, match="give numbers, not symbols"):
        window_crossing_tokens(sympy.Symbol("X"), 4096)


@pytest.mark.parametrize(
    "right, wrong",
    [
        (
            "quotient(ffn_matrices * d_model * d_ff, h * (d_k + d_v))",
            "quotient(ffn_matrices * d_model * d_ff, h * d_k)",
        ),
        ("quotient(ffn_matrices * d_model * d_ff", "quotient(2 * d_model * d_ff"),  # a gated FFN taken for a plain one
        ("(h + h_kv) * width)", "2 * h * width)"),  # grouped heads ignored
        ("ffn_matrices * d_ff - (h", "ffn_matrices * d_ff + (h"),
    ],
)
def test_the_check_of_crossings_sees_planted_errors(right, wrong):
    with planted("derived.cost.crossing", right, wrong), pytest.raises(AssertionError):
        check(*CONFIGS["Llama-3-8B"])


@pytest.mark.parametrize(
    "right, wrong, look, size",
    [
        (
            "2 * crossing - 1\n\n\n",
            "2 * crossing + 1\n\n\n",
            test_causal_crossings_are_where_the_counts_meet,
            "Llama-3-8B",
        ),
        ("return 2 * crossing - B_t", "return 2 * crossing", test_tiled_crossings_are_where_the_counts_meet, 64),
        ("w * (w - 1), 2", "w * (w + 1), 2", test_window_crossings_are_where_the_counts_meet, 30000),
    ],
)
def test_the_checks_of_masks_see_planted_errors(right, wrong, look, size):
    with planted("derived.cost.crossing", right, wrong), pytest.raises(AssertionError):
        look(size)
