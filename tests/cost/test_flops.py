"""MACs against torch's FLOP counter where it counts, and against loops that count where it does not."""

# ruff: noqa: C408 - dict(n=7, d_model=22) reads as the formulas' sizes do

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from derived.cost.flops import (
    attention_macs,
    block_macs,
    causal_training_flops_per_token,
    core_backward_macs,
    core_macs,
    decode_step_macs,
    decoder_block_macs,
    feed_forward_macs,
    flops,
    gated_feed_forward_macs,
    linear_backward_macs,
    linear_macs,
    lm_head_macs,
    prefill_macs,
    projections_macs,
    recomputing_backward_macs,
    training_flops_per_token,
    two_pass_backward_macs,
    uncached_macs,
)
from derived.cost.pairs import causal_pairs, full_pairs, padded_causal_pairs, tiled_causal_pairs, window_pairs
from tests.support import counted_loops
from tests.support.mutants import planted

LLAMA_3_8B = dict(d_model=4096, h=32, h_kv=8, d_k=128, d_ff=14336)


def counted(run, *inputs):
    """(forward FLOPs, backward FLOPs) that torch counts for run(*inputs) with attention as plain products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        y = run(*inputs)
    if not y.requires_grad:
        return forward.get_total_flops(), 0
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def tensor(*shape, grad=True):
    return torch.empty(shape, device="meta", requires_grad=grad)


# Torch's counter: linear maps, full attention, blocks, models


def test_linear_forward_and_backward_are_what_torch_counts():
    forward, backward = counted(linear, tensor(7, 11), tensor(13, 11), tensor(13))
    assert forward == flops(linear_macs(7, 11, 13))
    assert backward == flops(linear_backward_macs(7, 11, 13)) == 2 * forward


def test_a_first_layer_that_needs_no_input_gradient_pays_half_of_it():
    _, backward = counted(linear, tensor(7, 11, grad=False), tensor(13, 11))
    assert backward == flops(linear_macs(7, 11, 13))


def check_core():
    B, n, m, h, h_kv, d_k, d_v = 2, 7, 11, 6, 2, 5, 3
    run = lambda q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
    forward, backward = counted(run, tensor(B, h, n, d_k), tensor(B, h_kv, m, d_k), tensor(B, h_kv, m, d_v))
    assert forward == flops(B * core_macs(pairs=full_pairs(n, m), h=h, d_k=d_k, d_v=d_v))
    assert backward == flops(B * core_backward_macs(pairs=full_pairs(n, m), h=h, d_k=d_k, d_v=d_v))


def test_full_attention_forward_and_backward_is_what_torch_counts():
    check_core()


def test_the_tiled_kernels_are_what_torch_counts_for_its_own():
    B, n, m, h, d_k, d_v = 2, 7, 11, 3, 5, 13
    q, k, v, o = (B, h, n, d_k), (B, h, m, d_k), (B, h, m, d_v), (B, h, n, d_v)
    sizes = dict(pairs=full_pairs(n, m), h=h, d_k=d_k, d_v=d_v)
    assert sdpa_flop_count(q, k, v) == flops(B * core_macs(**sizes))
    assert sdpa_backward_flop_count(o, q, k, v) == flops(B * recomputing_backward_macs(**sizes))


def test_backward_of_equal_widths_is_2_and_2_5_and_3_5_forwards():
    sizes = dict(pairs=full_pairs(7, 11), h=3, d_k=4, d_v=4)
    forward = core_macs(**sizes)
    assert core_backward_macs(**sizes) == 2 * forward
    assert 2 * recomputing_backward_macs(**sizes) == 5 * forward
    assert 2 * two_pass_backward_macs(**sizes) == 7 * forward


def test_what_torchs_counter_omits():
    """A causal mask is not halved, and the CPU's default attention is not seen at all."""
    q, k, v = (torch.zeros(1, 3, 7, 8) for _ in range(3))
    causal, _ = counted(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    assert causal == flops(core_macs(pairs=full_pairs(7, 7), h=3, d_k=8, d_v=8))
    with FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(q, k, v)
    assert counter.get_total_flops() == 0


def check_block():
    B, n, d, h, d_ff = 2, 7, 22, 11, 13
    sizes = dict(d_model=d, h=h, h_kv=h, d_k=2, d_v=2, d_ff=d_ff)
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(d, h, d_ff, dropout=0.0, batch_first=True)
    forward, backward = counted(layer, tensor(B, n, d))
    assert forward == flops(B * block_macs(n=n, pairs=full_pairs(n, n), ffn_matrices=2, **sizes))
    assert backward == 2 * forward


def test_encoder_block_forward_and_backward_is_what_torch_counts():
    check_block()


def test_the_block_of_2017_is_12_n_d_squared_and_2_n_squared_d():
    n, d = 7, 12
    sizes = dict(d_model=d, h=3, h_kv=3, d_k=4, d_v=4)
    block = block_macs(n=n, pairs=n * n, d_ff=4 * d, ffn_matrices=2, **sizes)
    assert block == 12 * n * d**2 + 2 * n**2 * d
    assert block == attention_macs(n=n, pairs=n * n, **sizes) + feed_forward_macs(n=n, d_model=d, d_ff=4 * d)
    assert projections_macs(n=n, m=n, **sizes) == 4 * n * d**2
    assert feed_forward_macs(n=n, d_model=d, d_ff=4 * d) == 8 * n * d**2


def test_gated_ffn_is_what_torch_counts():
    config = transformers.LlamaConfig(hidden_size=14, num_attention_heads=1, intermediate_size=11)
    with torch.device("meta"):
        module = transformers.models.llama.modeling_llama.LlamaMLP(config)
    forward, backward = counted(module, tensor(7, 14))
    assert forward == flops(gated_feed_forward_macs(n=7, d_model=14, d_ff=11))
    assert backward == 2 * forward


def test_decoder_block_is_what_torch_counts():
    B, n, m, d, h, d_ff = 2, 7, 5, 22, 11, 13
    with torch.device("meta"):
        layer = nn.TransformerDecoderLayer(d, h, d_ff, dropout=0.0, batch_first=True)
    forward, backward = counted(layer, tensor(B, n, d), tensor(B, m, d))
    block = decoder_block_macs(n=n, m=m, pairs=full_pairs(n, n), d_model=d, h=h, d_k=2, d_v=2, d_ff=d_ff)
    assert forward == flops(B * block)
    assert backward == 2 * forward


def decoder_only(name, config):
    with torch.device("meta"):
        model = getattr(transformers, name)(config)

    def logits(ids):
        B, n = ids.shape
        mask = tensor(B, 1, n, n, grad=False)  # given, so that transformers does not look into ids for one
        return model(ids, attention_mask=mask, use_cache=False).logits

    return logits


def test_gpt2_is_what_torch_counts():
    B, n = 2, 7
    config = transformers.GPT2Config(
        n_layer=3, n_embd=22, n_head=11, n_inner=13, vocab_size=37, attn_implementation="sdpa"
    )
    forward, _ = counted(decoder_only("GPT2LMHeadModel", config), torch.zeros(B, n, dtype=torch.long, device="meta"))
    sizes = dict(d_model=22, h=11, h_kv=11, d_k=2, d_v=2, d_ff=13)
    blocks = 3 * block_macs(n=n, pairs=full_pairs(n, n), ffn_matrices=2, **sizes)
    assert forward == flops(B * (blocks + lm_head_macs(n, 22, 37)))


def llama(L, n_vocab, n):
    """(forward FLOPs, backward FLOPs) of Llama-3-8B cut to L layers."""
    config = transformers.LlamaConfig(
        num_hidden_layers=L,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=n_vocab,
        attn_implementation="sdpa",
    )
    ids = torch.zeros(1, n, dtype=torch.long, device="meta")
    return counted(decoder_only("LlamaForCausalLM", config), ids)


def test_llama_3_8b_of_two_layers_is_what_torch_counts():
    n, n_vocab = 2048, 128256
    forward, _ = llama(2, n_vocab, n)
    blocks = 2 * block_macs(n=n, pairs=full_pairs(n, n), d_v=128, ffn_matrices=3, **LLAMA_3_8B)
    assert forward == flops(blocks + lm_head_macs(n, 4096, n_vocab))


def test_training_is_six_flops_a_parameter_and_twelve_L_n_d_for_scores():
    L, n, n_vocab = 2, 31, 128256
    forward, backward = llama(L, n_vocab, n)
    P = L * (4096 * 128 * (32 + 8) * 2 + 3 * 4096 * 14336) + n_vocab * 4096  # every matrix that multiplies
    per_token = training_flops_per_token(P=P, L=L, n=n, h=32, d_k=128)
    assert per_token == 6 * P + 12 * L * n * 4096
    # the first block needs the gradient of its input, since the table is trained: backward is twice forward exactly
    assert n * per_token == forward + backward


def test_causal_training_is_three_times_the_causal_forward():
    L, n = 3, 7
    sizes = dict(L=L, n=n, d_model=24, h=6, h_kv=2, d_k=10, d_ff=13, ffn_matrices=3)
    P = L * (24 * 10 * (6 + 2) * 2 + 3 * 24 * 13)
    assert n * causal_training_flops_per_token(P=P, L=L, n=n, h=6, d_k=10) == 3 * flops(prefill_macs(**sizes))


# Loops that count: causal, windowed, grouped and tiled attention, and three backwards


def arrays(rng, *shapes):
    return [rng.normal(size=shape) for shape in shapes]


def expected(Q, K, V, reads):
    """Attention by numpy over the whole matrix, for the loops' values."""
    n, m = Q.shape[-2], K.shape[-2]
    K, V = (np.repeat(x, len(Q) // len(x), axis=0) for x in (K, V))
    allowed = np.array([[reads(i, j) for j in range(m)] for i in range(n)])
    e = np.exp(Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])) * allowed
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ V


MASKS = [
    ("full", lambda n, m: full_pairs(n, m), lambda n, m: lambda i, j: True),
    ("causal", causal_pairs, counted_loops.causal),
    ("window 3", lambda n, m: window_pairs(n, m, 3), lambda n, m: counted_loops.causal(n, m, 3)),
]


@pytest.mark.parametrize("n, m", [(7, 11), (11, 7), (7, 7), (1, 11)])
@pytest.mark.parametrize("name, pairs, mask", MASKS, ids=[row[0] for row in MASKS])
def test_masked_attention_of_grouped_heads_is_what_a_loop_counts(rng, n, m, name, pairs, mask):
    Q, K, V = arrays(rng, (6, n, 5), (2, m, 5), (2, m, 3))
    O, macs = counted_loops.attention(Q.tolist(), K.tolist(), V.tolist(), mask(n, m))
    np.testing.assert_allclose(O, expected(Q, K, V, mask(n, m)), rtol=1e-12, atol=1e-14)
    assert macs == core_macs(pairs=pairs(n, m), h=6, d_k=5, d_v=3)


@pytest.mark.parametrize("B_q, B_t", [(3, 3), (1, 3), (2, 4), (4, 2), (5, 5), (13, 13)])
@pytest.mark.parametrize("padded", [False, True])
def test_tiled_causal_attention_is_what_a_loop_counts(rng, B_q, B_t, padded):
    n = 11
    Q, K, V = arrays(rng, (n, 5), (n, 5), (n, 3))
    reads = counted_loops.causal(n, n)
    O, macs = counted_loops.tiled_attention(Q.tolist(), K.tolist(), V.tolist(), reads, B_q, B_t, padded)
    np.testing.assert_allclose(O, expected(Q[None], K[None], V[None], reads)[0], rtol=1e-12, atol=1e-14)
    if not padded:
        assert macs == core_macs(pairs=tiled_causal_pairs(n, max(B_q, B_t)), h=1, d_k=5, d_v=3)
    elif B_q == B_t:
        assert macs == core_macs(pairs=padded_causal_pairs(n, B_t), h=1, d_k=5, d_v=3)
    else:  # each side is padded to its own tile, so the square form is an upper bound
        assert macs <= core_macs(pairs=padded_causal_pairs(n, max(B_q, B_t)), h=1, d_k=5, d_v=3)


def autograd(Q, K, V, dO, reads):
    tensors = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    mask = torch.tensor([[reads(i, j) for j in range(len(K))] for i in range(len(Q))])
    scaled_dot_product_attention(*(x[None] for x in tensors), attn_mask=mask)[0].backward(torch.tensor(dO))
    return [x.grad.numpy() for x in tensors]


BACKWARDS = [
    ("A kept", core_backward_macs, lambda *x: counted_loops.attention_backward(*x, recompute=False)),
    ("recomputed", recomputing_backward_macs, lambda *x: counted_loops.attention_backward(*x, recompute=True)),
    ("two kernels", two_pass_backward_macs, counted_loops.two_pass_backward),
]


@pytest.mark.parametrize("name, macs_of, loop", BACKWARDS, ids=[row[0] for row in BACKWARDS])
def test_causal_backward_is_what_a_loop_counts(rng, name, macs_of, loop):
    n, m = 7, 11
    Q, K, V, dO = arrays(rng, (n, 5), (m, 5), (m, 3), (n, 3))
    reads = counted_loops.causal(n, m)
    *gradients, macs = loop(Q.tolist(), K.tolist(), V.tolist(), dO.tolist(), reads)
    for ours, theirs in zip(gradients, autograd(Q, K, V, dO, reads), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
    assert macs == macs_of(pairs=causal_pairs(n, m), h=1, d_k=5, d_v=3)


def test_linear_maps_are_what_loops_count(rng):
    X, W, dY = arrays(rng, (7, 11), (11, 13), (7, 13))
    Y, macs = counted_loops.linear(X.tolist(), W.tolist())
    np.testing.assert_allclose(Y, X @ W, rtol=1e-12, atol=1e-14)
    assert macs == linear_macs(7, 11, 13)
    dX, dW, macs = counted_loops.linear_backward(X.tolist(), W.tolist(), dY.tolist())
    np.testing.assert_allclose(dX, dY @ W.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dW, X.T @ dY, rtol=1e-12, atol=1e-14)
    assert macs == linear_backward_macs(7, 11, 13)


# Prefill, decode steps, and what the cache saves

STACK = dict(L=3, d_model=24, h=6, h_kv=2, d_k=10, d_ff=13, ffn_matrices=3)


def check_prefill_is_decode():
    for n in (1, 2, 7):
        assert prefill_macs(n=n, **STACK) == sum(decode_step_macs(n=i, **STACK) for i in range(1, n + 1))
        assert uncached_macs(n=n, **STACK) == sum(prefill_macs(n=i, **STACK) for i in range(1, n + 1))


def test_prefill_is_the_sum_of_decode_steps_and_no_cache_the_sum_of_prefills():
    check_prefill_is_decode()


def test_doubling_the_context_of_a_prefill():
    """Core ×4, FFN ×2, the sub-layer ×2.4 with full heads and ×2.57 in Llama-3-8B, all without a mask."""
    full, grouped = (dict(d_model=4096, h=32, h_kv=h_kv, d_k=128, d_v=128) for h_kv in (32, 8))

    def growth(cost):
        return cost(4096) / cost(2048)

    assert growth(lambda n: core_macs(pairs=full_pairs(n, n), h=32, d_k=128, d_v=128)) == 4
    assert growth(lambda n: gated_feed_forward_macs(n=n, d_model=4096, d_ff=14336)) == 2
    assert growth(lambda n: attention_macs(n=n, pairs=full_pairs(n, n), **full)) == 2.4
    assert growth(lambda n: attention_macs(n=n, pairs=full_pairs(n, n), **grouped)) == 18 / 7  # 2.571


def test_doubling_the_context_of_a_decode_step():
    """Core ×2, everything else ×1."""
    short, long = (decode_step_macs(n=n, L=1, ffn_matrices=3, **LLAMA_3_8B) for n in (2048, 4096))
    core = core_macs(pairs=2048, h=32, d_k=128, d_v=128)
    assert long - short == core
    assert core_macs(pairs=4096, h=32, d_k=128, d_v=128) == 2 * core


@pytest.mark.parametrize(
    "module, right, wrong, check",
    [
        ("flops", "return 2 * macs", "return macs", check_core),
        ("flops", "return 2 * macs", "return macs", check_block),
        ("flops", "return pairs * h * (d_k + d_v)", "return pairs * h * 2 * d_k", check_core),
        ("flops", "return 2 * core_macs(", "return core_macs(", check_core),
        ("flops", "(n * h + m * h_kv)", "(n * h)", check_block),
        ("flops", "attention + ffn_matrices *", "attention + 1 *", check_block),
        ("flops", "n=1, pairs=n,", "n=1, pairs=n + 1,", check_prefill_is_decode),
        ("pairs", "(2 * m - r + 1), 2", "(2 * m - r + 2), 2", check_prefill_is_decode),
        ("flops", "n=uncached_token_passes(n)", "n=n * n", check_prefill_is_decode),
    ],
)
def test_the_checks_see_planted_errors(module, right, wrong, check):
    with planted(f"derived.cost.{module}", right, wrong), pytest.raises(AssertionError):
        check()
