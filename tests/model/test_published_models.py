"""The same weights elsewhere: torch's Transformer, GPT-2 and Llama of transformers say the same."""

from functools import partial

import pytest
import torch

from derived.model import (
    Rotary,
    count_parameters,
    decoder_only,
    decoder_only_vjp,
    encoder_decoder_vjp,
    map_arrays,
)
from derived.ops.activations import gelu_tanh_vjp, gelu_vjp, silu_vjp
from derived.ops.norm import rms_norm_vjp
from derived.ops.positions import rotary_tables
from tests.model import torch_weights
from tests.model.support import assert_same, without_key_biases
from tests.support.voices import as_torch, to_numpy


def shake(model):
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def test_the_transformer_of_torch_says_the_same(rng):
    theirs = torch.nn.Transformer(6, 2, 2, 2, 13, dropout=0, batch_first=True, dtype=torch.float64)
    shake(theirs)
    source, target = (as_torch(rng.normal(size=s)).requires_grad_() for s in ((2, 7, 6), (2, 5, 6)))
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    expected = theirs(
        source,
        target,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    dy = as_torch(rng.normal(size=(2, 5, 6)))
    expected.backward(dy)
    mask = {"mask": ~padding[:, None, None]}
    params = torch_weights.transformer(torch_weights.weights(theirs), 2)
    y, pullback = encoder_decoder_vjp(
        params, source.detach(), target.detach(), h=2, source_reading=mask, memory_reading=mask
    )
    dparams, dsource, dtarget = pullback(dy)
    grads = torch_weights.transformer(torch_weights.gradients(theirs), 2)
    assert_same((y, dsource, dtarget), (expected, source.grad, target.grad))
    assert_same(without_key_biases(dparams), without_key_biases(grads))


def test_gpt2_of_transformers_with_the_same_weights_says_the_same(rng):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=17, n_positions=11, n_embd=6, n_layer=2, n_head=3, n_inner=13, attn_implementation="eager",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).double()
    shake(theirs)
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    expected = theirs(tokens).logits
    dlogits = as_torch(rng.normal(size=(2, 7, 17)))
    expected.backward(dlogits)
    params = torch_weights.gpt2(torch_weights.weights(theirs), 2)
    logits, pullback = decoder_only_vjp(params, tokens, h=3, activation_vjp=gelu_tanh_vjp)
    grads = torch_weights.gpt2(torch_weights.gradients(theirs), 2)
    assert_same(logits, expected)
    assert_same(without_key_biases(pullback(dlogits)), without_key_biases(grads))
    assert count_parameters(params) == theirs.num_parameters()
    exact_form = decoder_only(params, tokens, h=3, activation_vjp=gelu_vjp)
    assert abs(to_numpy(exact_form - logits)).max() > 1e-6  # the comparison is fine enough to tell the two GELUs apart


class Float64(torch.nn.Module):
    """torch as modeling_llama sees it, with 64 in place of the 32 bits that it fixes for norms and softmax."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class Tables(torch.nn.Module):
    """Rotary tables in float64 where transformers computes them in float32; each angle twice, as it wants them."""

    def __init__(self, cos, sin):
        super().__init__()
        self.cos, self.sin = (torch.cat((t, t), dim=-1)[None] for t in (cos, sin))

    def forward(self, x, position_ids):
        return self.cos.to(x.dtype), self.sin.to(x.dtype)


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=17, hidden_size=24, intermediate_size=13, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, attn_implementation="eager", bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    shake(theirs)
    return theirs


def as_llama(n, dtype=torch.float64):
    cos, sin = rotary_tables(torch.arange(n), 4, base=500)
    return {
        "h": 6,
        "norm_vjp": partial(rms_norm_vjp, eps=1e-6),
        "activation_vjp": silu_vjp,
        "rotary": Rotary(cos.to(dtype), sin.to(dtype), interleaved=False),
    }


def test_llama_of_transformers_with_the_same_weights_says_the_same(monkeypatch, rng):
    from transformers.models.llama import modeling_llama

    theirs = tiny_llama().double()
    options = as_llama(7)
    theirs.model.rotary_emb = Tables(*options["rotary"][:2])
    monkeypatch.setattr(modeling_llama, "torch", Float64())
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    expected = theirs(tokens).logits
    dlogits = as_torch(rng.normal(size=(2, 7, 17)))
    expected.backward(dlogits)
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    logits, pullback = decoder_only_vjp(params, tokens, **options)
    assert_same(logits, expected)
    assert_same(pullback(dlogits), torch_weights.llama(torch_weights.gradients(theirs), 2))
    assert count_parameters(params) == theirs.num_parameters()


def test_llama_as_published_in_float32_differs_by_rounding_alone(rng):
    theirs = tiny_llama()
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    exact = to_numpy(decoder_only(map_arrays(lambda x: x.double(), params), tokens, **as_llama(7)))
    mine = to_numpy(decoder_only(params, tokens, **as_llama(7, torch.float32)))
    published = to_numpy(theirs(tokens).logits)
    assert 0 < abs(published - exact).max() < 1e-5 * abs(exact).max()
    assert abs(mine - exact).max() <= 2 * abs(published - exact).max()


@pytest.mark.parametrize("slip", ["interleaved", "eps", "theta", "heads tiled"])
def test_a_slip_in_the_settings_of_llama_is_seen(slip, rng):
    theirs = tiny_llama()
    tokens = torch.from_numpy(rng.integers(0, 17, size=(2, 7)))
    params = torch_weights.llama(torch_weights.weights(theirs), 2)
    options = as_llama(7, torch.float32)
    if slip == "interleaved":
        options["rotary"] = options["rotary"]._replace(interleaved=True)
    if slip == "eps":
        options["norm_vjp"] = partial(rms_norm_vjp, eps=1e-3)
    if slip == "theta":
        options["rotary"] = Rotary(*(t.float() for t in rotary_tables(torch.arange(7), 4)), interleaved=False)
    if slip == "heads tiled":  # [a, b, c] shared as [a, b, c, a, b, c] instead of [a, a, b, b, c, c]
        order = torch.tensor([0, 2, 4, 1, 3, 5])
        swap = lambda W: W.reshape(-1, 6, 4)[:, order].reshape(W.shape)  # noqa: E731
        layers = tuple(
            layer._replace(attention=layer.attention._replace(W_Q=swap(layer.attention.W_Q)))
            for layer in params.stack.layers
        )
        params = params._replace(stack=params.stack._replace(layers=layers))
    published = to_numpy(theirs(tokens).logits)
    wrong = to_numpy(decoder_only(params, tokens, **options))
    assert abs(wrong - published).max() > 1e-4 * abs(published).max()
