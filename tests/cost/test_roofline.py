"""Intensities and bounds against counted bytes, limits and the numbers of real cards and models."""

# ruff: noqa: C408 - dict(n=7, d_model=22) reads as the formulas' sizes do

from fractions import Fraction

import numpy as np
import pytest
import torch

from derived.cost.flops import core_macs, flops, linear_macs
from derived.cost.roofline import (
    attainable_flops_per_second,
    decode_intensity,
    decode_intensity_ceiling,
    decode_step_bytes,
    decode_step_flops,
    layer_norm_bytes,
    layer_norm_flops,
    linear_bytes,
    linear_intensity,
    lower_bound_seconds,
    residual_bytes,
    residual_flops,
    ridge_intensity,
    rms_norm_bytes,
    rms_norm_flops,
    standard_attention_bytes,
    standard_attention_intensity,
    tiled_attention_bytes,
    tiled_attention_intensity,
)
from tests.support import counted_loops
from tests.support.mutants import planted

# dense fp16 FLOP/s and bytes/s of the makers' data sheets
H100_SXM = (989.4e12, 3.35e12)
A100_80GB = (312e12, 2.039e12)

STORY = dict(P=7 * 10**9, L=32, h=32, d_k=128)
# Llama-3-8B: 8,030,261,248 parameters less a table of 128,256 rows of 4096
LLAMA_3_8B = dict(P=8030261248 - 128256 * 4096, L=32, h=32, d_k=128)


def test_ridges_of_two_cards():
    assert round(ridge_intensity(*H100_SXM)) == 295
    assert round(ridge_intensity(*A100_80GB)) == 153


def test_the_roofline_bends_at_the_ridge():
    peak, bandwidth = H100_SXM
    ridge = ridge_intensity(peak, bandwidth)
    assert attainable_flops_per_second(ridge / 2, peak, bandwidth) == pytest.approx(peak / 2)
    assert attainable_flops_per_second(2 * ridge, peak, bandwidth) == peak
    x = np.array([ridge / 2, ridge, 2 * ridge])
    np.testing.assert_allclose(attainable_flops_per_second(x, peak, bandwidth), [peak / 2, peak, peak])


def test_the_slower_of_arithmetic_and_memory_binds():
    assert lower_bound_seconds(12, 10, 4, 5) == 3
    assert lower_bound_seconds(12, 20, 4, 5) == 4


# Bytes counted by writing down each array that crosses the bus


def crossed(b, *shapes):
    return b * sum(int(np.prod(shape)) for shape in shapes)


def test_bytes_are_the_arrays_that_cross():
    n, m, h, h_kv, d_k, d_v, b, d = 7, 11, 6, 2, 5, 3, 2, 13
    assert linear_bytes(n, d, m, b) == crossed(b, (n, d), (d, m), (n, m))
    Q, K, V, O, S = (h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v), (h, n, d_v), (h, n, m)
    moved = standard_attention_bytes(n=n, m=m, h=h, h_kv=h_kv, d_k=d_k, d_v=d_v, b=b)
    assert moved == crossed(b, Q, K, S, S, S, S, V, O)  # scores written; read, weights written; read
    assert layer_norm_bytes(n, d, b) == crossed(b, (n, d), (d,), (d,), (n, d))
    assert rms_norm_bytes(n, d, b) == crossed(b, (n, d), (d,), (n, d))
    assert residual_bytes(n, d, b) == crossed(b, (n, d), (n, d), (n, d))


@pytest.mark.parametrize("B_q", [1, 2, 3, 7, 11])
def test_tiled_bytes_are_what_a_loop_over_query_tiles_moves(B_q):
    n, m, h, d_k, d_v, b = 7, 11, 3, 5, 2, 2
    total = 0
    for _ in range(h):
        for i0 in range(0, n, B_q):
            rows = min(B_q, n - i0)
            total += crossed(b, (rows, d_k), (m, d_k), (m, d_v), (rows, d_v))
    assert tiled_attention_bytes(n=n, m=m, h=h, d_k=d_k, d_v=d_v, B_q=B_q, b=b) == total


def test_intensities_are_flops_over_bytes():
    assert linear_intensity(7, 11, 13, 2) == flops(linear_macs(7, 11, 13)) / linear_bytes(7, 11, 13, 2)
    sizes = dict(n=7, m=11, h=6, d_k=5, d_v=3, b=2)
    work = flops(core_macs(pairs=7 * 11, h=6, d_k=5, d_v=3))
    assert standard_attention_intensity(h_kv=2, **sizes) == work / standard_attention_bytes(h_kv=2, **sizes)
    assert tiled_attention_intensity(B_q=4, **sizes) == work / tiled_attention_bytes(B_q=4, **sizes)


def test_standard_attention_tends_to_half_the_width_and_tiled_to_the_tile():
    """In fp16, from below, and by how much: 1 + d / n and 1 + B_q / n are what the limits leave out."""
    n, d = 2**20, 128
    standard = standard_attention_intensity(n=n, m=n, h=1, h_kv=1, d_k=d, d_v=d, b=2)
    assert standard == pytest.approx(d / 2 / (1 + d / n), rel=1e-12)
    for B_q in (64, 128):
        tiled = tiled_attention_intensity(n=n, m=n, h=1, d_k=d, d_v=d, B_q=B_q, b=2)
        assert tiled == pytest.approx(B_q / (1 + B_q / n), rel=1e-12)


def test_the_head_width_cancels_in_the_tiled_form():
    one, other = (tiled_attention_intensity(n=256, m=256, h=2, d_k=d, d_v=d, B_q=64, b=2) for d in (64, 256))
    assert one == other


def test_a_decode_step_through_a_linear_map_does_one_flop_a_byte_and_conversation_in_fp16():
    assert linear_intensity(1, 4096, 4096, 2) == pytest.approx(1, rel=1e-3)
    assert linear_intensity(64, 4096, 4096, 2) == pytest.approx(64 / (1 + 64 / 2048), rel=1e-12)


# Decode with the cache


def test_the_decode_ceiling_of_the_story_is_14_and_of_llama_3_8b_60():
    story = decode_intensity_ceiling(n=2048, h_kv=32, b=2, **STORY)
    assert story == 14e9 / 2**30 + 1  # weights' FLOPs over a GiB of cache, and one FLOP a byte for attention itself
    assert round(story) == 14
    without_table = STORY | dict(P=7 * 10**9 - 32000 * 4096)
    assert round(decode_intensity_ceiling(n=2048, h_kv=32, b=2, **without_table)) == 14
    assert round(decode_intensity_ceiling(n=2048, h_kv=8, b=2, **LLAMA_3_8B)) == 60


def test_fifty_conversations_read_67_7_gb_a_step():
    moved = decode_step_bytes(B=50, weight_bytes=14 * 10**9, cache_bytes=2**30)
    assert moved == 14 * 10**9 + 50 * 2**30
    assert round(moved / 1e9, 1) == 67.7


def check_decode_approaches_its_ceiling():
    sizes = dict(n=2048, weight_bytes=14 * 10**9, cache_bytes=2**30, **STORY)
    ceiling = decode_intensity_ceiling(n=2048, h_kv=32, b=2, **STORY)
    half = Fraction(14 * 10**9, 2**30)
    for B in (1, 13, 200, 10**9):
        assert decode_intensity(B=B, **sizes) == pytest.approx(ceiling * B / (B + float(half)), rel=1e-12)
    assert decode_intensity(B=10**12, **sizes) == pytest.approx(ceiling, rel=1e-9)


def test_decode_approaches_its_ceiling_as_the_batch_grows():
    check_decode_approaches_its_ceiling()


def test_a_decode_step_pays_two_flops_a_parameter_and_four_a_cached_key_width():
    one, two = (decode_step_flops(B=1, n=n, **STORY) for n in (2048, 4096))
    assert one == 2 * 7 * 10**9 + 4 * 32 * 2048 * 4096
    assert two - one == flops(32 * core_macs(pairs=2048, h=32, d_k=128, d_v=128))


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("return (2 * P + 4 * L * n * h * d_k) / (2 * L * n", "return (2 * P + 2 * L * n * h * d_k) / (2 * L * n"),
        ("/ (2 * L * n * h_kv * d_k * b)", "/ (L * n * h_kv * d_k * b)"),  # K and V counted once
        ("return weight_bytes + B * cache_bytes", "return B * (weight_bytes + cache_bytes)"),
        ("return B * (2 * P +", "return B * (P +"),
    ],
)
def test_the_check_of_decode_sees_planted_errors(right, wrong):
    with planted("derived.cost.roofline", right, wrong), pytest.raises(AssertionError):
        check_decode_approaches_its_ceiling()


# Norms and residuals


def check_norms(rng):
    n, d = 5, 7
    X, gain, shift = rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=d)
    x, g, s = (torch.tensor(value) for value in (X, gain, shift))
    Y, spent = counted_loops.norm(X.tolist(), gain.tolist(), shift.tolist())
    np.testing.assert_allclose(Y, torch.nn.functional.layer_norm(x, (d,), g, s, 1e-5), rtol=1e-12, atol=1e-14)
    assert layer_norm_flops(n, d) == spent
    Y, spent = counted_loops.norm(X.tolist(), gain.tolist())
    np.testing.assert_allclose(Y, torch.nn.functional.rms_norm(x, (d,), g, 1e-5), rtol=1e-12, atol=1e-14)
    assert rms_norm_flops(n, d) == spent


def test_norms_spend_what_counted_floats_spend(rng):
    check_norms(rng)


@pytest.mark.parametrize("right, wrong", [("7 * d_model + 3", "6 * d_model + 3"), ("4 * d_model + 3", "4 * d_model")])
def test_the_check_of_norms_sees_planted_errors(rng, right, wrong):
    with planted("derived.cost.roofline", right, wrong), pytest.raises(AssertionError):
        check_norms(rng)


def test_norms_and_residuals_are_negligible_in_flops_not_in_bytes():
    """One block of 2017 at d = 4096, n = 2048, fp16: two LayerNorms and two residuals beside six linear maps."""
    n, d, b = 2048, 4096, 2
    small_flops = 2 * (layer_norm_flops(n, d) + residual_flops(n, d))
    small_bytes = 2 * (layer_norm_bytes(n, d, b) + residual_bytes(n, d, b))
    maps = [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]
    big_flops = sum(flops(linear_macs(n, *widths)) for widths in maps)
    big_bytes = sum(linear_bytes(n, *widths, b) for widths in maps)
    assert small_flops / big_flops == pytest.approx(16 / (24 * d), rel=1e-3)  # 8 FLOPs a number against 24 d
    assert small_flops / big_flops < 2e-4
    assert small_bytes / big_bytes > 0.2
