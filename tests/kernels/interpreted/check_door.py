"""The kernels behind the door, interpreted: as operators of torch, on ragged batches, on what went wrong elsewhere."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from derived import kernels
from derived.errors import DerivedError
from derived.kernels.autograd import flash_backward_op, flash_forward_op
from derived.kernels.backends import four_axes
from derived.kernels.decode import decode_op
from derived.kernels.flash_backward import flash_backward
from derived.ops.attention import attention as exactly
from derived.ops.attention import attention_vjp
from tests.kernels.cases import drawn

ours = partial(kernels.attention, backend="triton")
ragged = partial(kernels.ragged_attention, backend="triton")


# Operators.


def operands(**changes):
    """What `flash_forward_op` takes, for a small causal case."""
    q, k, v, do, _ = drawn("one key head, causal")
    given = {"mask": None, "cu_q": None, "cu_k": None, "longest_q": 0, "longest_k": 0}
    given |= {"causal": True, "window": None, "scale": 0.25} | changes
    return (q, k, v), do, given


@pytest.mark.parametrize("changes", [{}, {"window": 7}])
def test_torch_finds_the_operators_sound(changes):
    arrays, do, given = operands(**changes)
    torch.library.opcheck(flash_forward_op, tuple(x.requires_grad_() for x in arrays), given)
    arrays = tuple(x.detach() for x in arrays)
    o, lse = flash_forward_op(*arrays, **given)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    for keys in (True, False):
        torch.library.opcheck(flash_backward_op, (*arrays, o, lse, do), given | {"keys": keys}, test_utils=checks)
    cache = torch.randn((2, 1, 23, 20)), torch.randn((2, 1, 23, 16)), torch.tensor([5, 23])
    rest = {"table": None, "window": None, "scale": 0.25}
    torch.library.opcheck(decode_op, (torch.randn((2, 3, 1, 20)), *cache), rest, test_utils=checks)


@pytest.mark.parametrize("turned", [False, True])
def test_the_twins_give_shapes_strides_and_dtypes(turned):
    (q, k, v), do, given = operands()
    if turned:
        q, k, v, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, do))
    real = flash_forward_op(q.half(), k.half(), v.half(), **given)
    real += flash_backward_op(q.half(), k.half(), v.half(), *real, do.half(), **given, keys=True)
    with torch._subclasses.FakeTensorMode() as mode:
        q, k, v, do = (mode.from_tensor(x).half() for x in (q, k, v, do))
        fake = flash_forward_op(q, k, v, **given)
        fake += flash_backward_op(q, k, v, *fake, do, **given, keys=True)
    assert (real[0].stride(1) < real[0].stride(2)) == turned
    for r, f in zip(real, fake, strict=True):
        assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype)


def test_torch_compile_keeps_them_in_one_graph():
    graphs = []

    def backend(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def f(q, k, v):
        return ours(q * 2, k, v, causal=True).sum()

    (q, k, v), _, _ = operands()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    got = torch.compile(f, backend=backend, fullgraph=True)(*leaves)
    assert len(graphs) == 1 and any("flash_forward" in target for target in graphs[0])
    expected = f(*leaves)
    for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert torch.equal(a, b)


def test_there_is_no_second_derivative_and_it_says_so():
    (q, k, v), _, _ = operands()
    q.requires_grad_()
    (dq,) = torch.autograd.grad(ours(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="flash_backward"):
        dq.sum().backward()


def test_other_leading_axes(rng):
    for lead, kv_lead in (((), ()), ((4,), (2,)), ((2, 3, 4), (2, 3, 2))):
        q, k, v = (
            torch.from_numpy(rng.normal(size=(*axes, s, d))).float()
            for axes, s, d in ((lead, 5, 16), (kv_lead, 7, 16), (kv_lead, 7, 8))
        )
        mask = torch.from_numpy(rng.random((5, 7)) < 0.7)
        right = exactly(q.double(), k.double(), v.double(), mask=mask, causal=True)
        np.testing.assert_allclose(ours(q, k, v, mask=mask, causal=True), right, rtol=0, atol=2e-6)


def test_what_the_interpreter_gets_wrong_is_refused():
    x = torch.ones((1, 1, 3, 16), dtype=torch.bfloat16)
    with pytest.raises(DerivedError, match="interpreter computes bfloat16 wrongly"):
        ours(x, x, x)


# Ragged batches.

LENGTHS = [(5, 7), (0, 3), (37, 41), (3, 0), (29, 11), (1, 40)]


@pytest.mark.parametrize("given", [{}, {"causal": True}, {"causal": True, "window": 13}, {"window": 5, "scale": -0.2}])
@pytest.mark.parametrize("longest", [True, False])
def test_a_ragged_batch_is_its_sequences(given, longest, rng):
    cu_q, cu_k = (torch.tensor([0, *np.cumsum([pair[i] for pair in LENGTHS])]) for i in (0, 1))
    shapes = (cu_q[-1], 4, 16), (cu_k[-1], 2, 16), (cu_k[-1], 2, 8), (cu_q[-1], 4, 8)
    q, k, v, do = (torch.from_numpy(rng.normal(size=shape)).float() for shape in shapes)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    more = {"longest_q": 37, "longest_k": 41} if longest else {}
    o = ragged(*leaves, cu_q.int(), cu_k.int(), **given, **more)
    gradients = torch.autograd.grad(o, leaves, do)
    heads_first = [x.detach().double().transpose(0, 1) for x in (q, k, v, do)]
    for b in range(len(LENGTHS)):
        at_q, at_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        parts = [x[:, at] for x, at in zip(heads_first, (at_q, at_k, at_k, at_q), strict=True)]
        right, pullback = attention_vjp(*parts[:3], **given)
        np.testing.assert_allclose(o[at_q].detach().transpose(0, 1), right, rtol=0, atol=2e-6)
        for g, r, at in zip(gradients, pullback(parts[3]), (at_q, at_k, at_k), strict=True):
            np.testing.assert_allclose(g[at].transpose(0, 1), r, rtol=0, atol=5e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sequences_do_not_read_each_other(rng):
    cu = torch.tensor([0, 17, 40])
    q, k, v = (torch.from_numpy(rng.normal(size=(40, 1, 16))).float() for _ in range(3))
    o = ragged(q, k, v, cu, cu)
    k[17:], v[17:] = torch.nan, torch.nan
    assert torch.equal(ragged(q, k, v, cu, cu)[:17], o[:17])


def test_rows_of_no_sequence_give_zeros_and_have_no_gradient(rng):
    # a packed buffer with room behind its last sequence, and one whose longest sequence is announced too short
    q, k, v = (torch.from_numpy(rng.normal(size=(100, 2, 16))).float().requires_grad_() for _ in range(3))
    cu = torch.tensor([0, 23, 60])
    for backend in ("triton", "torch"):
        o = kernels.ragged_attention(q, k, v, cu, cu, backend=backend)
        gradients = torch.autograd.grad(o.sum(), (q, k, v))
        assert o.shape == q.shape and o[:60].all() and not o[60:].any()
        assert all(not g[60:].any() for g in gradients) and gradients[2][:60].any(dim=2).all()
    o = ragged(q, k, v, torch.tensor([0, 100]), torch.tensor([0, 100]), longest_q=32, longest_k=32)
    gradients = torch.autograd.grad(o.sum(), (q, k, v))
    assert o[:32].all() and not o[32:].any() and all(torch.isfinite(g).all() for g in gradients)


def test_a_batch_of_no_sequences(rng):
    q, cu = torch.empty((0, 2, 16)), torch.tensor([0])
    for backend in ("triton", "torch"):
        assert kernels.ragged_attention(q, q, q, cu, cu, backend=backend).shape == (0, 2, 16)


def test_keys_without_a_gradient_cost_no_kernel(monkeypatch):
    q, k, v, do, given = drawn("one key head, causal")
    right = torch.autograd.grad(ours(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), **given), q, do)[0]
    launched = []
    monkeypatch.setattr(
        "derived.kernels.autograd.flash_backward",
        lambda *args, keys, **more: launched.append(keys) or flash_backward(*args, keys=keys, **more),
    )
    mine = torch.autograd.grad(ours(q, k.detach(), v.detach(), **given), q, do)[0]
    assert launched == [False] and torch.equal(mine, right)
    torch.autograd.grad(ours(q.detach(), k, v.detach(), **given), k, do)
    assert launched == [False, True]


def test_autocast_casts_as_torch_does(rng):
    q, k, v = (torch.from_numpy(rng.normal(size=(1, 2, 37, 16))).float() for _ in range(3))
    with torch.autocast("cpu", dtype=torch.float16):
        o = ours(q.half(), k, v, causal=True)
        assert o.dtype == torch.float16 == kernels.attention(q, k, v, causal=True).dtype
    assert torch.equal(o, ours(q.half(), k.half(), v.half(), causal=True))


def test_a_mask_that_heads_share_is_not_copied_for_each(rng):
    mask = torch.ones((2, 1, 1, 5, 7), dtype=torch.bool).expand(2, 3, 4, 5, 7)
    flat = four_axes(mask)
    assert flat.shape == (6, 4, 5, 7) and flat.stride(1) == 0 and flat.untyped_storage().nbytes() <= 6 * 35
    x = torch.arange(2 * 3 * 4 * 5 * 7).reshape(2, 3, 4, 5, 7)
    assert torch.equal(four_axes(x), x.reshape(6, 4, 5, 7))
    assert torch.equal(four_axes(x[:1].expand(2, -1, -1, -1, -1)), x[:1].repeat(2, 1, 1, 1, 1).reshape(6, 4, 5, 7))


# What went wrong elsewhere.

REPORTS = {r["id"]: r for r in json.loads((Path(__file__).parents[2] / "data" / "attention-bugs.json").read_text())}


def heads(*rows):
    """Rows as (1, 1, rows, width) in float32."""
    return torch.tensor(rows, dtype=torch.float32).reshape(1, 1, len(rows), -1)


def values(*numbers):
    """Queries, keys and values of one head whose scores are all 0."""
    v = heads(*[[x] for x in numbers])
    return torch.zeros_like(v), v


BUGS = {}


def asks(name):
    """Enter a test under the name of the report it answers."""
    assert name in REPORTS
    return lambda function: BUGS.setdefault(name, function)


@asks("mask-row-nan")
def a_row_without_keys_gives_zeros():
    x, v = torch.zeros((1, 1, 2, 2)), torch.eye(2)[None, None]
    o = ours(x, x, v, mask=torch.tensor([[True, False], [False, False]]))
    assert o.tolist() == [[[[1, 0], [0, 0]]]]


@asks("masked-nan-leak")
def a_masked_nan_stays_behind_its_mask():
    k, v = values(2, torch.nan)
    assert ours(k[..., :1, :], k, v, mask=torch.tensor([True, False])).item() == 2


@asks("causal-topleft-decode")
def causal_is_aligned_to_the_last_key():
    k, v = values(1, 2, 6)
    assert ours(k[..., :1, :], k, v, causal=True).item() == 3


@asks("causal-tall")
def the_first_of_too_many_queries_read_nothing():
    k, v = values(1, 3)
    assert ours(torch.zeros((1, 1, 3, 1)), k, v, causal=True).flatten().tolist() == [0, 1, 2]


@asks("mask-sense-inverted")
def true_may_read():
    k, v = values(1, 3)
    for given in ({"causal": True}, {"mask": torch.tensor([[True, False], [True, True]])}):
        assert ours(k, k, v, **given).flatten().tolist() == [1, 2]


@asks("gqa-tile")
def neighbouring_heads_share():
    q, k = torch.zeros((1, 4, 1, 1)), torch.zeros((1, 2, 1, 1))
    assert ours(q, k, torch.tensor([10.0, 20.0]).reshape(1, 2, 1, 1)).flatten().tolist() == [10, 10, 20, 20]


@asks("finfo-plus-finfo")
def two_masks_are_one():
    k, v = values(1, 3)
    mask = torch.tensor([[False, False], [True, True]])
    assert ours(k, k, v, causal=True, mask=mask).flatten().tolist() == [0, 2]


@asks("mask-too-small")
def a_masked_score_is_no_number():
    q, k = heads([1.0]), heads([0.0], [-10020.0])
    assert ours(q, k, heads([1.0], [0.0]), scale=1, mask=torch.tensor([False, True])).item() == 0


@asks("softmax-no-max")
def large_scores_do_not_overflow():
    o = ours(heads([1.0]), heads([100.0], [0.0]), torch.eye(2)[None, None], scale=1).flatten()
    assert o[0] == 1 and 0 <= o[1] < 1e-40


@asks("scale-ignored")
def the_scale_given_is_used():
    q = heads([2.0, 0, 0, 0])
    o = ours(q, torch.cat((q, torch.zeros_like(q)), 2), heads([1.0], [0.0]), scale=1).item()
    assert round(o, 6) == round(1 / (1 + np.exp(-4.0)), 6) == 0.982014


@asks("noncontiguous-v")
def strides_of_values_count():
    v = torch.randn((1, 2, 2, 16), generator=torch.Generator().manual_seed(7)).transpose(1, 2)
    q = k = torch.ones((1, 2, 2, 16))
    assert torch.equal(ours(q, k, v), ours(q, k, v.contiguous()))


@asks("noncontiguous-memeff")
def expanded_keys_are_keys():
    k, v = torch.randn((2, 1, 1, 16, 128), generator=torch.Generator().manual_seed(7))
    k, v, q = k.expand(2, 3, 16, 128), v.expand(2, 3, 16, 128), torch.ones((2, 3, 1, 128))
    assert torch.equal(ours(q, k, v), ours(q, k.contiguous(), v.contiguous()))


@asks("tutorial-bwd-noncausal")
def the_backward_is_causal_only_if_asked():
    q, k, v, do, _ = drawn("whole tiles, causal")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mine = torch.autograd.grad(ours(*leaves), leaves, do)
    for g, r in zip(mine, attention_vjp(q.double(), k.double(), v.double())[1](do.double()), strict=True):
        np.testing.assert_allclose(g, r.detach(), rtol=0, atol=5e-6)


@asks("ragged-seq")
@asks("tail-block")
def lengths_off_the_tile_are_whole():
    for n, m in ((1, 20), (20, 20), (1, 38)):
        q, k, v = (torch.randn((1, 1, s, 64), generator=torch.Generator().manual_seed(s)) for s in (n, m, m))
        np.testing.assert_allclose(ours(q, k, v), exactly(q.double(), k.double(), v.double()), rtol=0, atol=2e-6)


@asks("varlen-zero-q")
def a_sequence_without_queries_gets_no_gradient():
    cu_q, cu_k = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 3])
    q = torch.ones((1, 2, 16), requires_grad=True)
    k, v = (torch.randn((3, 1, 16), generator=torch.Generator().manual_seed(s), requires_grad=True) for s in (3, 5))
    o = ragged(q, k, v, cu_q, cu_k)
    assert torch.equal(o[0, 0], v[2, 0]) and torch.equal(o[0, 1], v[2, 0])
    dk, dv = torch.autograd.grad(o.sum(), (k, v))
    assert not dk[:2].any() and not dv[:2].any() and dv[2].eq(2).all()


@asks("window-off-by-one")
def a_window_counts_the_query_itself():
    k, v = values(1, 2, 6)
    assert ours(k, k, v, causal=True, window=2).flatten().tolist() == [1, 1.5, 4]


@asks("padding-zero-embedding")
def a_padding_key_takes_no_weight():
    k, v = values(2, 0)
    assert ours(k[..., :1, :], k, v, mask=torch.tensor([True, False])).item() == 2


ELSEWHERE = {
    "noncontiguous-dout": "check_flash: strides of the gradient, in poison and expanded",
    "int32-mask-offset": "check_flash: a mask with offsets beyond 2^31, forward and backward",
    "int32-bwd-offset": "check_flash: offsets beyond 2^31, forward and backward",
    "splitkv-empty": "check_decode: an empty stretch adds nothing",
    "interpreter-bf16": "above: bfloat16 is refused here; tests/gpu computes it",
}
NOT_A_KERNELS = {
    "mask-head-needweights", "mask-sense-mha", "rope-layout", "rope-bf16-pos", "cache-length-early",
    "cache-offset-accumulate", "dropout-eval", "layernorm-unbiased", "rmsnorm-inplace",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", BUGS)
def test_the_kernels_give_the_right_value(name):
    BUGS[name]()


def test_every_report_is_tested_or_listed():
    names = [*BUGS, *ELSEWHERE, *NOT_A_KERNELS]
    assert len(names) == len(set(names)) and set(names) == set(REPORTS)
