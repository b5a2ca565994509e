"""Every op works where its arguments are: beside another default device, and on a GPU if there is one."""

import numpy as np
import pytest
import torch

from derived.ops.activations import gelu_tanh_vjp, gelu_vjp, relu_vjp, silu_vjp
from derived.ops.attention import attention_vjp
from derived.ops.cross_entropy import cross_entropy_vjp, mean_cross_entropy_vjp
from derived.ops.embedding import embedding_vjp
from derived.ops.linear import linear_vjp
from derived.ops.norm import layer_norm_vjp, rms_norm_vjp
from derived.ops.positions import rope_vjp
from derived.ops.softmax import log_softmax_vjp, log_sum_exp_vjp, softmax_vjp
from derived.ops.tiled import tiled_attention_vjp
from tests.support.attention_cases import options, qkv


def attended(rng):
    q, k, v = qkv(rng)
    return [q, k, v], options(rng, "everything", q, k)


CASES = {
    "softmax": (softmax_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "log_softmax": (log_softmax_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "log_sum_exp": (log_sum_exp_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "linear": (linear_vjp, lambda rng: ([rng.normal(size=s) for s in ((3, 5), (5, 7), (7,))], {})),
    "embedding": (embedding_vjp, lambda rng: ([rng.integers(0, 5, size=(2, 7)), rng.normal(size=(5, 3))], {})),
    "cross_entropy": (cross_entropy_vjp, lambda rng: ([rng.normal(size=(3, 7)), rng.integers(0, 7, size=3)], {})),
    "mean_cross_entropy": (
        mean_cross_entropy_vjp,
        lambda rng: ([rng.normal(size=(3, 7)), rng.integers(0, 7, size=3)], {"weight": np.array([1.0, 0.0, 2.0])}),
    ),
    "attention": (attention_vjp, attended),
    "tiled_attention": (tiled_attention_vjp, lambda rng: (attended(rng)[0], {"causal": True, "B_q": 2, "B_t": 3})),
    "rope": (
        rope_vjp,
        lambda rng: ([rng.normal(size=s) for s in ((2, 5, 6), (5, 3), (5, 3))], {"interleaved": True}),
    ),
    "layer_norm": (layer_norm_vjp, lambda rng: ([rng.normal(size=s) for s in ((3, 7), (7,), (7,))], {})),
    "rms_norm": (rms_norm_vjp, lambda rng: ([rng.normal(size=s) for s in ((3, 7), (7,))], {})),
    "relu": (relu_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "gelu": (gelu_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "gelu_tanh": (gelu_tanh_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
    "silu": (silu_vjp, lambda rng: ([rng.normal(size=(3, 7))], {})),
}


def on(device, x):
    """A numpy array as a tensor there; what is no array stays as it is."""
    return torch.from_numpy(np.array(x)).to(device) if isinstance(x, np.ndarray) else x


def run(name, device, rng, default=None):
    """Outputs and gradients of a case as a flat list, computed on a device while another may be the default."""
    f_vjp, draw = CASES[name]
    args, given = draw(rng)
    args, given = [on(device, x) for x in args], {key: on(device, x) for key, x in given.items()}
    with torch.device(default or "cpu"):
        y, pullback = f_vjp(*args, **given)
        gradients = pullback(torch.ones_like(y))
    return [y, *(gradients if isinstance(gradients, tuple) else [gradients])]


def same_numbers(rng_state, name, device, default=None):
    """The case gives on that device, and leaves on it, what it gives on the CPU."""
    expected = run(name, "cpu", np.random.default_rng(rng_state))
    found = run(name, device, np.random.default_rng(rng_state), default)
    assert len(found) == len(expected)
    for mine, right in zip(found, expected, strict=True):
        assert mine.device.type == device
        np.testing.assert_allclose(mine.cpu(), right, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_made_on_the_default_device(name):
    # a tensor made without a device would be of "meta", which holds no numbers and cannot meet one that does
    same_numbers(11, name, "cpu", default="meta")


def test_the_check_sees_an_array_made_on_the_default_device():
    def careless(s):
        return s + torch.zeros(s.shape[-1], dtype=s.dtype), lambda dy: dy

    CASES["careless"] = careless, lambda rng: ([rng.normal(size=(3, 7))], {})
    try:
        with pytest.raises((RuntimeError, AssertionError)):
            same_numbers(11, "careless", "cpu", default="meta")
    finally:
        del CASES["careless"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_the_same_numbers(name):
    if not torch.cuda.is_available():
        pytest.skip("gpu: no CUDA device here")
    same_numbers(11, name, "cuda")
