"""Parameter formulas against the modules that torch and transformers build, to the last digit."""

# ruff: noqa: C408 - dict(L=32, d_model=4096) reads as the formulas' sizes do

import pytest
import torch
import transformers
from torch import nn

from derived.cost.parameters import (
    attention_parameters,
    decoder_block_parameters,
    embedding_parameters,
    encoder_block_parameters,
    feed_forward_parameters,
    gated_feed_forward_parameters,
    gpt2_parameters,
    layer_norm_parameters,
    linear_parameters,
    llama_block_parameters,
    llama_parameters,
    lora_break_even_rank,
    lora_parameters,
    rms_norm_parameters,
    transformer_parameters,
)
from tests.support.mutants import planted

LLAMA = {  # the sizes of each published config.json, and the parameters its checkpoint's index reports
    "Llama-2-7B": (dict(L=32, d_model=4096, h=32, h_kv=32, d_k=128, d_ff=11008, n_vocab=32000), 6738415616),
    "Llama-3-8B": (dict(L=32, d_model=4096, h=32, h_kv=8, d_k=128, d_ff=14336, n_vocab=128256), 8030261248),
    "Llama-3.1-70B": (dict(L=80, d_model=8192, h=64, h_kv=8, d_k=128, d_ff=28672, n_vocab=128256), 70553706496),
    "Llama-3.1-405B": (dict(L=126, d_model=16384, h=128, h_kv=8, d_k=128, d_ff=53248, n_vocab=128256), 405853388800),
    "Mistral-7B-v0.1": (dict(L=32, d_model=4096, h=32, h_kv=8, d_k=128, d_ff=14336, n_vocab=32000), 7241732096),
}
GPT2 = {  # Radford et al.'s four sizes as transformers' published configs give them
    "gpt2": (dict(L=12, d_model=768), 124439808),
    "gpt2-medium": (dict(L=24, d_model=1024), 354823168),
    "gpt2-large": (dict(L=36, d_model=1280), 774030080),
    "gpt2-xl": (dict(L=48, d_model=1600), 1557611200),
}


def held(module):
    """The numbers a module holds, a shared tensor once."""
    return sum(p.numel() for p in module.parameters())


def built(make, *args, **kwargs):
    """The module on the meta device: its shapes without its memory."""
    with torch.device("meta"):
        return make(*args, **kwargs)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_norms_and_embedding_hold_what_torch_builds(bias):
    assert linear_parameters(7, 11, bias=bias) == held(built(nn.Linear, 7, 11, bias=bias))
    assert layer_norm_parameters(7, bias=bias) == held(built(nn.LayerNorm, 7, bias=bias))
    assert rms_norm_parameters(7) == held(built(nn.RMSNorm, 7))
    assert embedding_parameters(13, 7) == held(built(nn.Embedding, 13, 7))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("h", [1, 2, 11, 22])
def test_attention_with_full_heads_holds_what_torch_builds_whatever_h(h, bias):
    d = 22
    module = built(nn.MultiheadAttention, d, h, bias=bias)
    sizes = dict(d_model=d, h=h, h_kv=h, d_k=d // h, d_v=d // h)
    assert attention_parameters(**sizes, qkv_bias=bias, output_bias=bias) == held(module)


@pytest.mark.parametrize("bias", [False, True])
def test_grouped_heads_of_their_own_width_hold_what_transformers_builds(bias):
    config = transformers.LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=10, attention_bias=bias
    )
    module = built(transformers.models.llama.modeling_llama.LlamaAttention, config, 0)
    sizes = dict(d_model=24, h=6, h_kv=2, d_k=10, d_v=10)
    assert attention_parameters(**sizes, qkv_bias=bias, output_bias=bias) == held(module)


def test_value_width_apart_from_key_width_is_four_matrices_written_out():
    W_Q, W_K, W_V, W_O = (
        nn.Linear(22, 6 * 5),
        nn.Linear(22, 2 * 5),
        nn.Linear(22, 2 * 3),
        nn.Linear(6 * 3, 22, bias=False),
    )
    sizes = dict(d_model=22, h=6, h_kv=2, d_k=5, d_v=3)
    assert attention_parameters(**sizes, qkv_bias=True) == sum(map(held, (W_Q, W_K, W_V, W_O)))


def test_qkv_bias_alone_is_what_qwen2_builds():
    config = transformers.Qwen2Config(hidden_size=24, num_attention_heads=6, num_key_value_heads=2)
    module = built(transformers.models.qwen2.modeling_qwen2.Qwen2Attention, config, 0)
    assert attention_parameters(d_model=24, h=6, h_kv=2, d_k=4, d_v=4, qkv_bias=True) == held(module)


@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward_plain_and_gated(bias):
    two = nn.Sequential(nn.Linear(7, 11, bias=bias), nn.Linear(11, 7, bias=bias))
    assert feed_forward_parameters(d_model=7, d_ff=11, bias=bias) == held(two)
    config = transformers.LlamaConfig(hidden_size=14, num_attention_heads=1, intermediate_size=11, mlp_bias=bias)
    gated = built(transformers.models.llama.modeling_llama.LlamaMLP, config)
    assert gated_feed_forward_parameters(d_model=14, d_ff=11, bias=bias) == held(gated)


def test_gated_ffn_of_eight_thirds_holds_as_much_as_a_plain_one_of_four():
    assert gated_feed_forward_parameters(d_model=384, d_ff=1024) == feed_forward_parameters(d_model=384, d_ff=4 * 384)


def check_encoder_block():
    for pre_norm in (False, True):
        module = built(nn.TransformerEncoderLayer, 22, 11, 13, norm_first=pre_norm)
        assert encoder_block_parameters(d_model=22, d_ff=13) == held(module)


def test_encoder_block_holds_what_torch_builds():
    check_encoder_block()
    assert encoder_block_parameters(d_model=512, d_ff=2048) == 12 * 512**2 + 13 * 512


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("+ 2 * layer_norm_parameters(d_model)", "+ 1 * layer_norm_parameters(d_model)"),
        ("return d_model + bias * d_model", "return d_model"),
        ("d_model * (read + h * d_v)", "d_model * read"),
        ("return d_in * d_out + bias * d_out", "return d_in * d_out + bias"),
    ],
)
def test_the_check_of_the_block_sees_planted_errors(right, wrong):
    with planted("derived.cost.parameters", right, wrong), pytest.raises(AssertionError):
        check_encoder_block()


def test_decoder_block_holds_what_torch_builds():
    assert decoder_block_parameters(d_model=22, d_ff=13) == held(built(nn.TransformerDecoderLayer, 22, 11, 13))


def test_the_transformer_of_2017_is_torchs_with_one_table_and_without_two_last_norms():
    L, d, d_ff, n_vocab = 3, 22, 13, 37
    module = built(nn.Transformer, d, 2, L, L, d_ff, batch_first=True)
    whole = transformer_parameters(L=L, d_model=d, d_ff=d_ff, n_vocab=n_vocab)
    assert whole == held(module) - 2 * held(nn.LayerNorm(d)) + held(built(nn.Embedding, n_vocab, d))


def test_the_big_model_of_2017_rounds_to_the_papers_213_million():
    # Vaswani et al., 2017, table 3: 213 million; 37,000 shared entries, section 5.1
    whole = transformer_parameters(L=6, d_model=1024, d_ff=4096, n_vocab=37000)
    assert abs(whole - 213e6) < 2e6  # the paper gives the size of its table rounded to thousands


@pytest.mark.parametrize("name", GPT2)
def test_gpt2_holds_what_transformers_builds_and_what_was_published(name):
    sizes, published = GPT2[name]
    config = transformers.GPT2Config(n_layer=sizes["L"], n_embd=sizes["d_model"], n_head=sizes["d_model"] // 64)
    whole = gpt2_parameters(**sizes, d_ff=4 * sizes["d_model"], n_vocab=50257, n=1024)
    assert whole == published == held(built(transformers.GPT2LMHeadModel, config))


def llama_config(sizes, tied=False):
    return transformers.LlamaConfig(
        num_hidden_layers=sizes["L"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["h"],
        num_key_value_heads=sizes["h_kv"],
        head_dim=sizes["d_k"],
        intermediate_size=sizes["d_ff"],
        vocab_size=sizes["n_vocab"],
        tie_word_embeddings=tied,
    )


@pytest.mark.parametrize("name", LLAMA)
def test_llama_holds_what_was_published(name):
    sizes, published = LLAMA[name]
    assert llama_parameters(**sizes) == published


def check_llama():
    sizes = LLAMA["Llama-3-8B"][0] | dict(L=3)
    assert llama_parameters(**sizes) == held(built(transformers.LlamaForCausalLM, llama_config(sizes)))


def test_llama_holds_what_transformers_builds():
    check_llama()
    sizes = dict(L=2, d_model=24, h=6, h_kv=2, d_k=10, d_ff=13, n_vocab=37)
    assert llama_parameters(**sizes, tied=True) == held(
        built(transformers.LlamaForCausalLM, llama_config(sizes, tied=True))
    )
    block = {letter: size for letter, size in sizes.items() if letter not in ("L", "n_vocab")}
    layer = built(transformers.models.llama.modeling_llama.LlamaDecoderLayer, llama_config(sizes), 0)
    assert llama_block_parameters(**block) == held(layer)


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("(2 - tied) * embedding", "(1 - tied) * embedding"),  # the head forgotten
        (
            "return 2 * linear_parameters(d_model, d_ff, bias=bias) +",
            "return linear_parameters(d_model, d_ff, bias=bias) +",
        ),
        ("read = h * d_k + h_kv * d_k + h_kv * d_v", "read = h * d_k + h * d_k + h * d_v"),  # grouped heads ignored
        ("rms_norm_parameters(d_model) + tables", "tables"),
    ],
)
def test_the_check_of_llama_sees_planted_errors(right, wrong):
    with planted("derived.cost.parameters", right, wrong), pytest.raises(AssertionError):
        check_llama()


def test_a_low_rank_update_is_two_matrices_for_each_adapted_one():
    D, U = nn.Linear(7, 3, bias=False), nn.Linear(3, 11, bias=False)
    assert lora_parameters(7, 11, 3) == held(D) + held(U)
    # what the peft library prints for Llama-2-7B at rank 8 on the query and value projections:
    # "trainable params: 4,194,304 || all params: 6,742,609,920"
    trainable = 32 * 2 * lora_parameters(4096, 4096, 8)
    assert trainable == 4194304
    assert llama_parameters(**LLAMA["Llama-2-7B"][0]) + trainable == 6742609920


def test_a_low_rank_update_of_break_even_rank_saves_nothing():
    assert lora_break_even_rank(6, 3) == 2
    assert lora_parameters(6, 3, 2) == linear_parameters(6, 3)
