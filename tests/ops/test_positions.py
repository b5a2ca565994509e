"""Sinusoids, rotary positions and ALiBi: the definition, the gradient, the laws, the edges, the contract."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from derived.errors import DtypeError, ShapeError
from derived.ops.attention import attention
from derived.ops.positions import (
    alibi_bias,
    alibi_slopes,
    angles,
    half_split_to_interleaved,
    interleaved_to_half_split,
    rope,
    rope_vjp,
    rotary_tables,
    sinusoids,
)
from tests.support import loops_layers as loops
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.voices import VOICES, as_torch, to_numpy

seeds = st.integers(0, 2**31)
both_pairings = pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half_split"])


# Sinusoids


@pytest.mark.parametrize("array", VOICES)
def test_sinusoids_are_the_definition(array):
    positions = np.array([[0, 1, 7], [512, 2, 100_003]])
    y = to_numpy(sinusoids(array(positions), 6))
    np.testing.assert_allclose(y, loops.sinusoids(positions, 6), rtol=1e-12, atol=1e-12)
    y = to_numpy(sinusoids(array(positions), 10, base=500))
    np.testing.assert_allclose(y, loops.sinusoids(positions, 10, base=500), rtol=1e-12, atol=1e-11)


@given(st.integers(0, 4000), st.integers(-500, 500))
def test_moving_on_by_k_turns_every_pair_by_the_same_angle_wherever_it_starts(p, k):
    here, there = sinusoids(np.array([p, p + k]), 10)
    turn = angles(np.array([k]), 10)[0]
    sin, cos = here[0::2], here[1::2]
    np.testing.assert_allclose(there[0::2], sin * np.cos(turn) + cos * np.sin(turn), atol=1e-12)
    np.testing.assert_allclose(there[1::2], cos * np.cos(turn) - sin * np.sin(turn), atol=1e-12)


def test_no_positions_no_columns_one_position():
    assert sinusoids(np.arange(0), 6).shape == (0, 6)
    assert sinusoids(np.arange(3), 0).shape == (3, 0)
    np.testing.assert_array_equal(sinusoids(np.array(0), 4), [0, 1, 0, 1])


# Rotary


@pytest.mark.parametrize("array", VOICES)
@pytest.mark.parametrize("d_rot", [None, 4, 0])
@both_pairings
def test_rope_is_the_definition(interleaved, d_rot, array, rng):
    x, positions = rng.normal(size=(2, 3, 7, 10)), np.array([0, 1, 2, 5, 30, 1000, 4095])
    tables = rotary_tables(array(positions), 10 if d_rot is None else d_rot)
    y = to_numpy(rope(array(x), *tables, interleaved=interleaved))
    np.testing.assert_allclose(y, loops.rope(x, positions, interleaved=interleaved, d_rot=d_rot), atol=1e-11)


@pytest.mark.parametrize("d_rot", [10, 4])
@both_pairings
def test_pullback_of_rope_is_the_derivative(interleaved, d_rot, rng):
    x = rng.normal(size=(2, 3, 7, 10))
    cos, sin = rotary_tables(np.arange(7), d_rot)
    check_vjp(rope_vjp, [x], rng, cos=cos, sin=sin, interleaved=interleaved)
    check_autograd(rope, rope_vjp, [x], rng, cos=as_torch(cos), sin=as_torch(sin), interleaved=interleaved)
    # tables that are no rotation, as ONNX's cases have them: the pullback must still be the transpose
    check_vjp(rope_vjp, [x], rng, cos=cos + 0.3, sin=2 * sin, interleaved=interleaved)


def test_the_derivative_check_sees_one_part_in_a_thousand_and_a_turn_the_same_way(rng):
    x = rng.normal(size=(2, 3, 7, 10))
    cos, sin = rotary_tables(np.arange(7), 10)

    def same_way(x, **options):
        return rope(x, **options), lambda dy: rope(dy, **options)

    for wrong in (off_by(rope_vjp, 1.001), same_way):
        with pytest.raises(AssertionError, match="off by"):
            check_vjp(wrong, [x], rng, cos=cos, sin=sin, interleaved=True)


def test_rope_of_four_columns_at_position_one_in_both_pairings():
    # values worked out by hand for a report of mixed-up pairings: θ = 1 and 0.01
    x, tables = np.array([[1.0, 2.0, 3.0, 4.0]]), rotary_tables(np.array([1]), 4)
    np.testing.assert_allclose(
        rope(x, *tables, interleaved=True), [[-1.142640, 1.922076, 2.959851, 4.029800]], atol=5e-7
    )
    np.testing.assert_allclose(
        rope(x, *tables, interleaved=False), [[-1.984111, 1.959901, 2.462378, 4.019800]], atol=5e-7
    )


def test_transformers_says_the_same_in_both_pairings(rng):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

    q, k = (torch.from_numpy(rng.normal(size=(2, 3, 7, 10))) for _ in range(2))
    cos, sin = rotary_tables(torch.arange(5, 12), 10)
    wide_cos, wide_sin = (torch.cat((t, t), dim=-1)[None] for t in (cos, sin))
    for mine, theirs in zip((q, k), llama(q, k, wide_cos, wide_sin), strict=True):
        torch.testing.assert_close(rope(mine, cos, sin, interleaved=False), theirs, rtol=1e-13, atol=1e-13)
    theirs = gptj(q.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    torch.testing.assert_close(rope(q, cos, sin, interleaved=True), theirs, rtol=1e-13, atol=1e-13)


@given(seeds, st.integers(0, 100_000), st.booleans(), st.sampled_from([2, 6, 10]))
def test_norms_are_kept(seed, position, interleaved, d_rot):
    x = np.random.default_rng(seed).normal(size=(3, 10))
    y = rope(x, *rotary_tables(position + np.arange(3), d_rot), interleaved=interleaved)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-13)
    np.testing.assert_array_equal(y[:, d_rot:], x[:, d_rot:])


@given(seeds, st.integers(0, 5000), st.integers(0, 5000), st.integers(-300, 300), st.booleans())
def test_the_product_knows_only_how_far_apart_the_two_are(seed, p, q, shift, interleaved):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 1, 10))

    def product(p, q):
        left, right = rotary_tables(np.array([p]), 10), rotary_tables(np.array([q]), 10)
        return (rope(x, *left, interleaved=interleaved) @ rope(y, *right, interleaved=interleaved).T).item()

    assert product(p + shift, q + shift) == pytest.approx(product(p, q), abs=1e-10)
    # turning the key by the angle alone is turning it by the difference: the sign of the exponent matters
    assert product(0, q - p) == pytest.approx(product(p, q), abs=1e-10)


def test_a_query_turned_the_other_way_sees_the_sum_of_positions_instead(rng):
    x, y = rng.normal(size=(2, 1, 10))

    def wrong(p, q):
        (cos, sin), right = rotary_tables(np.array([p]), 10), rotary_tables(np.array([q]), 10)
        return (rope(x, cos, -sin, interleaved=True) @ rope(y, *right, interleaved=True).T).item()

    assert abs(wrong(3, 5) - wrong(13, 15)) > 0.1  # the same distance
    assert wrong(3, 5) == pytest.approx(wrong(1, 7), abs=1e-12)  # the same sum


@given(seeds, st.sampled_from([None, 2, 4]))
def test_permuted_weights_under_the_other_pairing_give_the_same_scores(seed, d_rot):
    rng = np.random.default_rng(seed)
    h, d_k, n = 3, 6, 7
    x, W_Q, W_K = rng.normal(size=(n, 5)), *rng.normal(size=(2, 5, h * d_k))
    tables = rotary_tables(np.arange(n), d_k if d_rot is None else d_rot)

    def scores(W_Q, W_K, interleaved):
        q, k = (np.moveaxis((x @ W).reshape(n, h, d_k), 0, 1) for W in (W_Q, W_K))
        q, k = (rope(a, *tables, interleaved=interleaved) for a in (q, k))
        return q @ np.swapaxes(k, -1, -2)

    right = scores(W_Q, W_K, True)
    permuted = [interleaved_to_half_split(W, h, d_rot=d_rot) for W in (W_Q, W_K)]
    np.testing.assert_allclose(scores(*permuted, False), right, atol=1e-10)
    if d_rot != 2:  # one pair is the same pair in both
        assert abs(scores(W_Q, W_K, False) - right).max() > 1e-3
    for W, W_permuted in zip((W_Q, W_K), permuted, strict=True):
        np.testing.assert_array_equal(half_split_to_interleaved(W_permuted, h, d_rot=d_rot), W)


@pytest.mark.parametrize("array", VOICES)
def test_the_permutation_is_the_one_of_published_conversions(array, rng):
    # `permute` of transformers' convert_llama_weights_to_hf.py, on torch's transposed weight (h · d_k, d_model)
    W = rng.normal(size=(5, 3 * 6))
    theirs = W.T.reshape(3, 6 // 2, 2, 5).transpose(0, 2, 1, 3).reshape(18, 5).T
    np.testing.assert_array_equal(to_numpy(interleaved_to_half_split(array(W), 3)), theirs)
    bias = rng.normal(size=18)
    np.testing.assert_array_equal(interleaved_to_half_split(bias, 3), interleaved_to_half_split(bias[None], 3)[0])


def test_one_table_serves_all_heads_or_each_sequence_has_its_own(rng):
    x = rng.normal(size=(2, 3, 7, 10))
    positions = np.array([np.arange(7), np.arange(7) + 11])
    cos, sin = rotary_tables(positions, 10)
    y = rope(x, cos[:, None], sin[:, None], interleaved=True)
    for b in range(2):
        np.testing.assert_allclose(y[b], loops.rope(x[b], positions[b], interleaved=True), atol=1e-12)


def test_positions_of_low_precision_collide_and_are_refused():
    # at frequency 1, bfloat16 turns 257 into 256: cos 0.819306 becomes −0.039791
    cos, _ = rotary_tables(torch.tensor([256, 257]), 2)
    np.testing.assert_allclose(to_numpy(cos)[:, 0], [-0.039791, 0.819306], atol=5e-7)
    assert torch.tensor(257, dtype=torch.bfloat16).item() == 256
    with pytest.raises(DtypeError, match=r"dtype bfloat16, in which neighbouring positions collide; give integers"):
        rotary_tables(torch.tensor([257.0]).bfloat16(), 2)
    with pytest.raises(DtypeError, match=r"dtype float16"):
        sinusoids(np.array([2049.0], dtype=np.float16), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@both_pairings
def test_half_precision_vectors_are_rounded_once_even_far_out(interleaved, dtype, rng):
    x = torch.from_numpy(rng.normal(size=(2, 7, 10))).to(dtype)
    positions = torch.arange(7) + 100_000
    y, pullback = rope_vjp(x, *rotary_tables(positions, 10), interleaved=interleaved)
    dx = pullback(x)
    assert y.dtype == dx.dtype == dtype
    exact = loops.rope(to_numpy(x), positions.numpy(), interleaved=interleaved)
    np.testing.assert_allclose(to_numpy(y), exact, rtol=1.01 * torch.finfo(dtype).eps / 2, atol=1e-9)
    # float32 tables are enough at this distance only if the angle itself was computed in float64
    rough = rotary_tables(positions.float(), 10)
    assert abs(to_numpy(rough[0]) - to_numpy(rotary_tables(positions, 10)[0])).max() > 1e-4


def test_rope_of_no_tokens_and_of_rows_apart(rng):
    assert rope(np.zeros((2, 0, 6)), *rotary_tables(np.arange(0), 6), interleaved=True).shape == (2, 0, 6)
    x = np.moveaxis(rng.normal(size=(2, 7, 3, 10)), 1, 2)
    tables = rotary_tables(np.arange(7), 10)
    np.testing.assert_array_equal(
        rope(x, *tables, interleaved=False), rope(np.ascontiguousarray(x), *tables, interleaved=False)
    )


# ALiBi


@pytest.mark.parametrize("h", [1, 2, 3, 5, 8, 12, 16, 20, 71])
def test_slopes_are_those_of_published_code(h):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), h, torch.float32)[:, 0, 1]
    np.testing.assert_allclose(alibi_slopes(h), theirs, rtol=1e-6)


def test_slopes_of_eight_heads_are_those_of_the_paper():
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert alibi_slopes(3) == (2.0**-4, 2.0**-8, 2.0**-2)


@pytest.mark.parametrize("array", VOICES)
def test_bias_is_minus_the_slope_times_the_distance(array):
    bias = to_numpy(alibi_bias(array(np.array([3, 4])), array(np.arange(5)), 3))
    assert bias.shape == (3, 2, 5)
    for i, slope in enumerate((2.0**-4, 2.0**-8, 2.0**-2)):
        for p in range(2):
            for q in range(5):
                assert bias[i, p, q] == -slope * abs(3 + p - q)


def test_under_a_causal_mask_the_bias_is_what_published_code_adds_to_the_scores(rng):
    # published code adds slope · (position of the key), which differs by a constant in every row
    q, k, v = rng.normal(size=(3, 3, 7, 5))
    slopes = np.array(alibi_slopes(3))[:, None, None]
    mine = attention(q, k, v, causal=True, bias=alibi_bias(np.arange(7), np.arange(7), 3))
    np.testing.assert_allclose(mine, attention(q, k, v, causal=True, bias=slopes * np.arange(7.0)), atol=1e-13)
    cached = attention(q[:, 5:], k, v, causal=True, bias=alibi_bias(np.arange(5, 7), np.arange(7), 3))
    np.testing.assert_allclose(cached, mine[:, 5:], atol=1e-14)


def test_positions_without_a_sign_do_not_wrap():
    unsigned = np.array([0, 3], dtype=np.uint8)
    np.testing.assert_array_equal(alibi_bias(unsigned, unsigned, 1)[0], [[0, -3 / 256], [-3 / 256, 0]])


# What does not fit


def test_what_does_not_fit_is_refused_by_a_sentence(rng):
    x, (cos, sin) = rng.normal(size=(2, 7, 10)), rotary_tables(np.arange(7), 10)
    with pytest.raises(ShapeError, match=r"width = 5; each frequency turns a pair of columns, so give an even width"):
        sinusoids(np.arange(3), 5)
    with pytest.raises(ShapeError, match=r"width = 3"):
        rotary_tables(np.arange(3), 3)
    with pytest.raises(ShapeError, match=r"rope: 5 angles turn 10 columns, x has d_k = 8"):
        rope(x[..., :8], cos, sin, interleaved=True)
    with pytest.raises(ShapeError, match=r"cos has n = 7, x had n = 3"):
        rope(x[:, :3], cos, sin, interleaved=True)
    with pytest.raises(ShapeError, match=r"sin has half = 4, cos had half = 5"):
        rope(x, cos, sin[:, :4], interleaved=True)
    with pytest.raises(ShapeError, match=r"leading axes \(3,\), x has \(2,\); insert axes of size 1"):
        rope(x, np.stack([cos] * 3), np.stack([sin] * 3), interleaved=True)
    with pytest.raises(ShapeError, match=r"dy has d_k = 8, x had d_k = 10"):
        rope_vjp(x, cos, sin, interleaved=True)[1](x[..., :8])
    with pytest.raises(ShapeError, match=r"W has 10 columns, which do not divide into h = 3 heads"):
        interleaved_to_half_split(x[0], 3)
    with pytest.raises(
        ShapeError, match=r"5 columns of each head are to turn; it must be an even number up to d_k = 5"
    ):
        half_split_to_interleaved(x[0], 2)
    with pytest.raises(ShapeError, match=r"6 columns of each head"):
        half_split_to_interleaved(x[0], 2, d_rot=6)
    with pytest.raises(ShapeError, match=r"h = 0; there is at least one head"):
        alibi_bias(np.arange(2), np.arange(3), 0)
