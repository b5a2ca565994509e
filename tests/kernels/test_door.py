"""The door without a GPU: torch's attention behind our conventions, choices that say why, refusals in sentences."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from derived import kernels
from derived.errors import DerivedError, DtypeError, ShapeError
from derived.kernels import cached
from derived.kernels.backends import Choice
from derived.kernels.torch_attention import readable, shares_heads
from derived.ops.attention import attention
from derived.ops.masks import may_read
from tests.kernels.cases import CASES, check_case

theirs = partial(kernels.attention, backend="torch")


@pytest.mark.parametrize("name", CASES)
def test_torch_is_the_definition_forward_and_backward(name):
    # torch's own backward takes A anew from a rounded log-sum-exp: in 40 draws of each case the root mean square of a
    # gradient's errors was up to 3.25 times the plain formula's ("one query"), the largest up to 5.8 times ("scale")
    check_case(theirs, name, torch.float32, factor=4, largest=2)


def test_a_gradient_off_by_one_part_in_a_thousand_is_seen():
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * 1.001

    with pytest.raises(AssertionError, match="error"):
        check_case(lambda q, k, v, **given: theirs(q, Off.apply(k), v, **given), "cached", torch.float32)


def test_a_single_number_too_far_out_is_seen():
    def off(q, k, v, **given):
        o = theirs(q, k, v, **given)
        wrong = torch.zeros_like(o)
        wrong.view(-1)[7] = 1.3e-6  # the plain formula errs by up to 4.5e-7 here
        return o + wrong

    check_case(off, "cached", torch.float32, largest=2)
    with pytest.raises(AssertionError, match="largest error"):
        check_case(off, "cached", torch.float32)


@pytest.mark.parametrize("n", [1, 5, 7, 11])
@pytest.mark.parametrize("given", [{"causal": True}, {"window": 3}, {"causal": True, "window": 2}])
def test_who_may_read_whom_is_what_ops_say(n, given):
    causal, window = given.get("causal", False), given.get("window")
    q = np.zeros((n, 2))
    right = may_read(q, 7, causal=causal, window=window, mask=None, bias=None)
    np.testing.assert_array_equal(readable(n, 7, causal, window, None, "cpu"), right)


def test_float64_and_other_leading_axes(rng):
    for lead, kv_lead in (((), ()), ((4,), (2,)), ((2, 3, 4), (2, 3, 2))):
        q, k, v = (
            torch.from_numpy(rng.normal(size=(*axes, s, d)))
            for axes, s, d in ((lead, 5, 3), (kv_lead, 7, 3), (kv_lead, 7, 11))
        )
        mask = torch.from_numpy(rng.random((5, 7)) < 0.7)
        o = kernels.attention(q, k, v, mask=mask, causal=True)
        np.testing.assert_allclose(o, attention(q, k, v, mask=mask, causal=True), rtol=1e-12, atol=1e-14)


def test_auto_says_what_it_took_and_why():
    q = torch.ones((1, 2, 3, 4))
    backend, why = kernels.chosen(q, q, q)
    assert backend == "torch" and why == "q lies on the device cpu, and the kernels run on CUDA GPUs"
    assert kernels.chosen(q, q, q, backend="torch").why == "asked for by name"


def test_auto_on_a_gpu_goes_by_its_capability(monkeypatch):
    class OnGpu(torch.Tensor):
        device = torch.device("cuda:0")

    q = torch.ones((1, 2, 3, 4), dtype=torch.float16).as_subclass(OnGpu)
    for capability, backend in (((7, 5), "torch"), ((8, 0), "triton"), ((9, 0), "triton"), ((12, 0), "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
        assert kernels.chosen(q, q, q).backend == backend
        assert ("no tensor cores" in kernels.chosen(q, q, q).why) == (capability < (8, 0))
    assert kernels.chosen(q.double(), q.double(), q.double()).why.startswith("the kernels take float16")
    assert kernels.chosen(q.float(), q.float(), q.float()) == (
        "torch",
        "the kernels multiply float32 exactly, which no tensor core does",
    )
    assert kernels.chosen(q.float(), q.float(), q.float(), backend="triton").backend == "triton"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "laid out for NVIDIA's GPUs" in kernels.chosen(q, q, q).why
    monkeypatch.setattr(torch.version, "hip", None)
    wide = torch.ones((1, 2, 3, 256)).as_subclass(OnGpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert kernels.chosen(wide, wide, wide).why.startswith("float32 heads wider than 128 do not fit")
    monkeypatch.setattr("derived.kernels.backends._interpreted", lambda: True)
    assert kernels.chosen(q, q, q) == ("torch", "Triton interprets in this process, and would compute on the CPU")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels.chosen(q, q, q) == ("torch", "triton is not installed (it exists for Linux only)")


def test_the_choice_is_told_for_what_autocast_makes_of_the_arrays():
    q, k = torch.ones((1, 2, 3, 4), dtype=torch.float16), torch.ones((1, 2, 3, 4))
    with pytest.raises(DtypeError, match="bring them together"):
        kernels.chosen(q, k, k)
    with torch.autocast("cpu", dtype=torch.float16):
        assert kernels.chosen(q, k, k).backend == "torch"


def test_heads_are_shared_only_where_torch_then_holds_no_scores(monkeypatch):
    class OnGpu(torch.Tensor):
        device = torch.device("cuda:0")

    q = torch.ones((1, 2, 3, 4), dtype=torch.float16)
    assert shares_heads(q, fused=False)
    for capability, fused, shared in (((8, 0), True, True), ((8, 0), False, False), ((7, 5), True, False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        assert shares_heads(q.as_subclass(OnGpu), fused) == shared


X = torch.ones((1, 2, 3, 4))
REFUSED = [
    ((X, X, X), {"backend": "triton"}, DerivedError, r'backend = "triton", but .*; ask for "torch" or "auto"'),
    (
        (X, X, X),
        {"backend": "cuda"},
        DerivedError,
        r"backend = 'cuda'; the backends are \"auto\", \"triton\" and \"torch\"",
    ),
    ((X.numpy(), X, X), {}, DtypeError, r"q is a ndarray; the kernels take torch tensors"),
    ((X, X.half(), X), {}, DtypeError, r"k is torch.float16 on cpu, q is torch.float32 on cpu; bring them together"),
    ((X.int(), X.int(), X.int()), {}, DtypeError, r"q is torch.int32; a floating dtype is expected"),
    ((X, X[0], X), {}, ShapeError, r"k has 3 axes, q has 4; all need the same, at least 2"),
    ((X, X[..., :3], X), {}, ShapeError, r"k has d_k = 3, q had d_k = 4; they must agree"),
    ((X, X, X[:, :, :2]), {}, ShapeError, r"v has shape \(1, 2, 2, 4\), k has \(1, 2, 3, 4\)"),
    ((X, X.expand(3, 2, 3, 4), X.expand(3, 2, 3, 4)), {}, ShapeError, r"leading axes \(1, 2\), k and v have \(3, 2\)"),
    ((X[:, :1], X, X), {}, ShapeError, r"leading axes \(1, 1\), k and v have \(1, 2\)"),
    ((X, X, X), {"window": 3.0}, DtypeError, r"window = 3.0 is a float; a whole number is expected"),
    ((X[..., :0], X[..., :0], X), {}, ShapeError, r"q has d_k = 0; a width of at least 1 is expected"),
    ((X, X, X), {"window": 0}, ShapeError, r"window = 0; a window counts the query itself, so it is at least 1"),
    ((X, X, X), {"mask": torch.ones(3, 3)}, DtypeError, r"mask is torch.float32; a boolean tensor is expected"),
    ((X, X, X), {"mask": torch.ones(3, 3, device="meta").bool()}, DtypeError, r"mask is on meta, q on cpu; bring them"),
    ((X, X, X), {"mask": torch.ones(2, 3).bool()}, ShapeError, r"mask has shape \(2, 3\), which does not broadcast to"),
]


def test_a_window_of_numpys_is_a_number_too():
    assert torch.equal(kernels.attention(X, X, X, window=np.int64(2)), kernels.attention(X, X, X, window=2))


@pytest.mark.parametrize(("arrays", "given", "error", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused_in_a_sentence(arrays, given, error, sentence):
    with pytest.raises(error, match=sentence):
        kernels.attention(*arrays, **given)


def test_ragged_and_cached_refuse_in_sentences():
    q, cu = X[0].transpose(0, 1), torch.tensor([0, 3])
    with pytest.raises(
        ShapeError, match=r"ragged_attention: q has shape \(1, 2, 3, 4\); \(tokens, h, d_k\) is expected"
    ):
        kernels.ragged_attention(X, X, X, cu, cu)
    with pytest.raises(DtypeError, match=r"cu_k must be a tensor of int32 or int64"):
        kernels.ragged_attention(q, q, q, cu, cu.float())
    with pytest.raises(ShapeError, match=r"cu_k has shape \(3,\), cu_q has \(2,\)"):
        kernels.ragged_attention(q, q, q, cu, torch.tensor([0, 1, 3]))
    lengths = torch.tensor([3])
    with pytest.raises(DtypeError, match=r"lengths is torch.float32; int32 or int64 is expected"):
        kernels.cached_attention(X, X, X, lengths.float())
    with pytest.raises(ShapeError, match=r"lengths has shape \(2,\); it has 1 axes, the first of size B = 1"):
        kernels.cached_attention(X, X, X, torch.tensor([3, 3]))
    with pytest.raises(ShapeError, match=r"block_table has shape \(1,\); it has 2 axes"):
        kernels.paged_attention(X, X, X, torch.tensor([0]), lengths)
    with pytest.raises(DtypeError, match=r"lengths is a list; the kernels take torch tensors"):
        kernels.cached_attention(X, X, X, [3])
    with pytest.raises(DtypeError, match=r"lengths is on meta, q on cpu; bring them together"):
        kernels.cached_attention(X, X, X, lengths.to("meta"))
    with pytest.raises(DtypeError, match=r"q is torch.int32; a floating dtype is expected"):
        kernels.cached_attention(X.int(), X.int(), X.int(), lengths)
    for length in (4, -1):
        with pytest.raises(ShapeError, match=r"lengths go from -?\d to -?\d, and the cache holds 3 keys a sequence"):
            kernels.cached_attention(X, X, X, torch.tensor([length]))
    with pytest.raises(DtypeError, match=r"block_table is a NoneType; a tensor .* is for cached_attention"):
        kernels.paged_attention(X, X, X, None, lengths)
    with pytest.raises(ShapeError, match=r"window = 0"):
        kernels.cached_attention(X, X, X, lengths, window=0)
    with pytest.raises(DtypeError, match=r"cached_attention: window = 2.5 is a float; a whole number is expected"):
        kernels.cached_attention(X, X, X, lengths, window=2.5)
    with pytest.raises(DtypeError, match=r"k is torch.float16 on cpu, q is torch.float32 on cpu; bring them together"):
        kernels.cached_attention(X, X.half(), X, lengths)
    with pytest.raises(DtypeError, match=r"v is torch.float32 on meta, q is torch.float32 on cpu; bring them together"):
        kernels.cached_attention(X, X, X.to("meta"), lengths)
    with pytest.raises(ShapeError, match=r"v has shape \(2, 3, 4\); four axes are expected"):
        kernels.cached_attention(X, X, X[0], lengths)
    with pytest.raises(ShapeError, match=r"cached_attention: q has d_k = 0; a width of at least 1 is expected"):
        kernels.cached_attention(X[..., :0], X[..., :0], X, lengths)


def test_auto_leaves_more_rows_than_the_kernel_takes_to_torch(monkeypatch):
    monkeypatch.setattr(cached, "choice", lambda *_: Choice("triton", "stands for a GPU"))
    q, many = torch.ones((1, 4, 64, 4)), torch.ones((1, 4, 65, 4))
    assert cached.taken(q, X, X, "auto") == cached.taken(q, X, X, "triton") == "triton"
    assert cached.taken(many, X, X, "auto") == "torch"
    with pytest.raises(DerivedError, match=r"are 130: give it 64 queries at a time at most"):
        cached.taken(many, X, X, "triton")


def test_ragged_on_the_cpu_is_its_sequences(rng):
    cu_q, cu_k = torch.tensor([0, 5, 5, 12]), torch.tensor([0, 7, 10, 13])
    q, k, v = (torch.from_numpy(rng.normal(size=shape)) for shape in ((12, 4, 3), (13, 2, 3), (13, 2, 5)))
    o = kernels.ragged_attention(q, k, v, cu_q, cu_k, causal=True)
    for b in range(3):
        parts = (x[c[b] : c[b + 1]].transpose(0, 1) for x, c in ((q, cu_q), (k, cu_k), (v, cu_k)))
        right = theirs(*parts, causal=True)
        np.testing.assert_allclose(o[cu_q[b] : cu_q[b + 1]].transpose(0, 1), right, rtol=1e-12, atol=1e-14)
    assert kernels.ragged_attention(q[:0], k[:0], v[:0], cu_q[:1], cu_k[:1]).shape == (0, 4, 5)


def test_the_door_opens_without_torch_and_triton():
    code = "import sys, derived.kernels; assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_torchs_attention_comes_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, derived.kernels as k\n"
        "x = torch.ones((1, 2, 3, 4))\n"
        "k.attention(x, x, x, causal=True); k.ragged_attention(x[0], x[0], x[0], *2 * [torch.tensor([0, 2])])\n"
        "k.cached_attention(x, x, x, torch.tensor([2]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torch_compile_goes_through_the_door():
    x = torch.randn((1, 2, 3, 4), generator=torch.Generator().manual_seed(7))
    compiled = torch.compile(lambda q: kernels.attention(q, x, x, causal=True), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), kernels.attention(x, x, x, causal=True))
