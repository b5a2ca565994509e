"""Memory beside the inputs: against arrays written down one by one, and against what the operators' twins allocate."""

import importlib.util

import numpy as np
import pytest
import torch

from derived.cost.attention_memory import (
    flash_forward_bytes,
    flash_training_bytes,
    plain_training_bytes,
    scores_bytes,
)
from derived.errors import DerivedError
from tests.support.mutants import planted

SIZES = {"n": 7, "m": 11, "h": 6, "h_kv": 2, "d_k": 5, "d_v": 3}


def held(b, *shapes):
    return b * sum(int(np.prod(shape)) for shape in shapes)


def check_bytes():
    n, m, h, h_kv, d_k, d_v = SIZES.values()
    assert scores_bytes(n=n, m=m, h=h, b=2) == held(2, (h, n, m))
    outputs, statistic = (h, n, d_v), (h, n)
    assert flash_forward_bytes(n=n, h=h, d_v=d_v, b=2) == held(2, outputs) + held(4, statistic)
    gradients = (h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v)
    assert flash_training_bytes(**SIZES, b=2) == held(2, outputs, *gradients) + held(4, *[statistic] * 3)


def peak(call):
    """The most bytes held at once during a call on the CPU, as torch's allocator tells its profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = call()
    events = seen.profiler.kineto_results.events()
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"]
    del kept
    return int(np.cumsum(changes).max())


def plainly(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


LONG, SHORT = (71, 89, 2, 5, 3), (5, 7, 2, 61, 67)
"""n, m, h, d_k, d_v: n m outweighs (n + m) d_k, or the other way round."""


def check_plain(n, m, h, d_k, d_v):
    leaves = [torch.ones((1, h, *shape), requires_grad=True) for shape in ((n, d_k), (m, d_k), (m, d_v))]
    do = torch.ones((1, h, n, d_v))
    most = peak(lambda: torch.autograd.grad(plainly(*leaves), leaves, do))
    # the scale is a number of 8 bytes in memory while it multiplies
    assert 0 <= most - plain_training_bytes(n=n, m=m, h=h, d_k=d_k, d_v=d_v, b=4) <= 8


@pytest.mark.parametrize("sizes", [LONG, SHORT], ids=["long", "short"])
def test_the_plain_form_holds_this(sizes):
    check_plain(*sizes)


@pytest.mark.parametrize(
    ("sizes", "right", "wrong"),
    [
        (LONG, "greatest(2 * n * m,", "greatest(n * m,"),
        (LONG, "(n + m) * d_v + greatest", "n * d_v + greatest"),
        (SHORT, "(n + m) * d_k)", "n * d_k)"),
    ],
)
def test_the_measured_peak_sees_planted_errors(sizes, right, wrong):
    with planted("derived.cost.attention_memory", right, wrong), pytest.raises(AssertionError):
        check_plain(*sizes)


def test_bytes_are_the_arrays_that_are_held():
    check_bytes()


def test_one_head_of_16384_tokens_in_half_precision():
    # 16384² · 2 bytes = 2^29; 16384 · 4 bytes = 2^16
    assert scores_bytes(n=16384, m=16384, h=1, b=2) == 2**29
    assert flash_forward_bytes(n=16384, h=1, d_v=128, b=2) == 2**22 + 2**16


def test_the_operators_allocate_this():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton: not installed on this platform")
    from torch._subclasses import FakeTensorMode

    from derived.kernels.autograd import flash_backward_op, flash_forward_op

    n, m, h, h_kv, d_k, d_v = SIZES.values()
    rest = {"mask": None, "cu_q": None, "cu_k": None, "longest_q": 0, "longest_k": 0}
    rest |= {"causal": False, "window": None, "scale": 1.0}
    with FakeTensorMode():
        q, k, v = (torch.empty((1, *x), dtype=torch.float16) for x in ((h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v)))
        o, lse = flash_forward_op(q, k, v, **rest)
        gradients = flash_backward_op(q, k, v, o, lse, torch.empty_like(o), **rest, keys=True)
    assert flash_forward_bytes(n=n, h=h, d_v=d_v, b=2) == o.nbytes + lse.nbytes
    inside = 2 * lse.nbytes  # shift and delta, which `flash_backward` makes like lse
    assert flash_training_bytes(**SIZES, b=2) == o.nbytes + lse.nbytes + sum(g.nbytes for g in gradients) + inside


def test_sizes_are_positive_whole_numbers():
    with pytest.raises(DerivedError, match="n ="):
        scores_bytes(n=-7, m=11, h=6, b=2)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return b * h * n * m", "return b * n * m"),
        ("return n * h * (b * d_v + STATISTIC_BYTES)", "return n * h * b * d_v"),
        ("3 * STATISTIC_BYTES * n * h", "STATISTIC_BYTES * n * h"),
        ("(n * h + m * h_kv)", "(n * h + m * h)"),
    ],
)
def test_the_check_sees_planted_errors(right, wrong):
    with planted("derived.cost.attention_memory", right, wrong), pytest.raises(AssertionError):
        check_bytes()
