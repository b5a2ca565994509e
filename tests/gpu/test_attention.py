"""The kernels on a GPU: accuracy by the rule, the same bits every time, odd shapes, far offsets, memory linear in n."""

from functools import partial

import pytest
import torch

from derived import kernels
from tests.kernels.cases import CASES, check_case, drawn

ours = partial(kernels.attention, backend="triton")
GiB = 2**30


def half():
    """The dtypes of two bytes that this GPU has."""
    new = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return [torch.float16, torch.bfloat16] if new or not torch.cuda.is_available() else [torch.float16]


def room(gibibytes):
    """Skip where the GPU has less free memory than the test needs."""
    free, _ = torch.cuda.mem_get_info()
    if free < gibibytes * GiB:
        pytest.skip(f"gpu: {gibibytes} GiB of memory are needed, {free / GiB:.0f} are free")


def random(*shape, dtype=torch.float16, seed=7):
    """Normal numbers on the GPU, the same every time."""
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda", dtype=dtype)


def gradients(attention, arrays, do, **given):
    """Output and gradients of a call."""
    leaves = [x.detach().requires_grad_() for x in arrays]
    o = attention(*leaves, **given)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


@pytest.mark.parametrize("dtype", [*half(), torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_errs_no_more_than_the_plain_formula_would(name, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    check_case(ours, name, dtype, "cuda")


@pytest.mark.parametrize("dtype", half(), ids=str)
@pytest.mark.parametrize("d", [64, 96, 128, 256])
@pytest.mark.parametrize("given", [{}, {"causal": True}, {"causal": True, "window": 300}], ids=str)
def test_long_sequences_too(given, d, dtype):
    # the tiles of this device, whole and cut, and enough programs that they run at once
    from derived.ops.attention import attention_vjp
    from tests.kernels.cases import plain
    from tests.support.precision import check_precision

    n, m = 1031, 1153
    q, do = (random(2, 4, n, d, dtype=dtype, seed=s) for s in (2, 3))
    k, v = (random(2, 2, m, d, dtype=dtype, seed=s) for s in (5, 7))
    mine, rough = gradients(ours, (q, k, v), do, **given), gradients(plain, (q, k, v), do, **given)
    o, pullback = attention_vjp(q.double(), k.double(), v.double(), **given)
    for factor, a, b, right in zip((2, 3, 3, 3), mine, rough, (o, *pullback(do.double())), strict=True):
        check_precision(a.cpu(), b.cpu(), right.cpu(), factor=factor, largest=1)


@pytest.mark.parametrize("given", [{}, {"causal": True}], ids=str)
def test_the_same_call_gives_the_same_bits(given):
    arrays, do = [random(2, h, 1025, 128, seed=h) for h in (8, 2, 2)], random(2, 8, 1025, 128, seed=3)
    first = gradients(ours, arrays, do, **given)
    for _ in range(5):
        for a, b in zip(gradients(ours, arrays, do, **given), first, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_offsets_beyond_two_to_the_31(which):
    room(8)
    n, d, apart = 9, 64, 2**28  # row 8 begins at 2^31
    arrays = [random(1, 1, n, d, seed=s) for s in (2, 3, 5, 7)]
    right = gradients(ours, arrays[:3], arrays[3], causal=True)
    far = torch.empty((n - 1) * apart + d, dtype=torch.float16, device="cuda").as_strided(
        (1, 1, n, d), (0, 0, apart, 1)
    )
    arrays[which] = far.copy_(arrays[which])
    for a, b in zip(gradients(ours, arrays[:3], arrays[3], causal=True), right, strict=True):
        assert torch.equal(a, b)


def test_a_batch_beyond_two_to_the_31_numbers():
    room(20)
    B, h, n, d = 33, 1024, 512, 128  # the last sequence begins at 2^31
    q = random(B, h, n, d)
    k = v = q[:, :1]
    o = ours(q, k, v, causal=True)
    assert torch.equal(o[-1:], ours(q[-1:].clone(), k[-1:].clone(), v[-1:].clone(), causal=True))


def peak(call):
    """The most bytes that were held during a call beyond those before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def test_memory_grows_with_n():
    peaks = {}
    for n in (4096, 16384):
        arrays = [random(1, 4, n, 64, seed=s).requires_grad_() for s in (2, 3, 5)]
        do = random(1, 4, n, 64)

        def both(arrays=arrays, do=do):
            return torch.autograd.grad(ours(*arrays, causal=True), arrays, do)

        both()  # what the first call compiles and keeps is not counted
        peaks[n] = peak(both)
    assert peaks[16384] < 4.2 * peaks[4096]
    assert peaks[16384] < 4 * 16384 * 16384 * 2 / 8  # an eighth of the scores


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cached", "causal window", "mask"])
def test_a_broken_value_changes_nobody_who_may_not_read_it(name):
    q, k, v, _, given = drawn(name, torch.float16, "cuda")
    n, m = q.shape[2], k.shape[2]
    if "mask" in given:
        given["mask"][..., : n - 3, m - 3] = False
    o = ours(q, k, v, **given)
    v[:, :, m - 3] = torch.nan
    p = ours(q, k, v, **given)
    assert torch.equal(o[:, :, : n - 3], p[:, :, : n - 3])
    assert p[:, :, n - 1].isnan().any() or "mask" in given or "window" in given


def test_ragged_batches():
    lengths = [(700, 900), (0, 5), (513, 513), (3, 0), (1, 1300)]
    cu_q, cu_k = (
        torch.tensor([0, *torch.tensor([pair[i] for pair in lengths]).cumsum(0)], dtype=torch.int32, device="cuda")
        for i in (0, 1)
    )
    q, k, v = random(int(cu_q[-1]), 4, 64, seed=2), random(int(cu_k[-1]), 2, 64, seed=3), random(int(cu_k[-1]), 2, 64)
    o = kernels.ragged_attention(q, k, v, cu_q, cu_k, causal=True, backend="triton")
    for b in range(len(lengths)):
        parts = [x[c[b] : c[b + 1]].transpose(0, 1)[None] for x, c in ((q, cu_q), (k, cu_k), (v, cu_k))]
        if parts[0].numel():
            torch.testing.assert_close(o[cu_q[b] : cu_q[b + 1]].transpose(0, 1)[None], ours(*parts, causal=True))


def check_decoded(o, q, k, v, lengths, window):
    """Hold each sequence's output to twice the error of the plain formula in the same dtype: outputs of long sequences
    are small, and a bound in common would be that of the short ones."""
    from derived.ops.attention import attention as exactly
    from tests.kernels.cases import plain
    from tests.support.precision import check_precision

    for b, m in enumerate(lengths.tolist()):
        arrays, given = (q[b : b + 1], k[b : b + 1, :, :m], v[b : b + 1, :, :m]), {"causal": True, "window": window}
        right = exactly(*(x.double() for x in arrays), **given)
        check_precision(o[b : b + 1].cpu(), plain(*arrays, **given).cpu(), right.cpu(), largest=1)


@pytest.mark.parametrize(("d", "dtype"), [(128, torch.float32), *((d, x) for d in (128, 256) for x in half())], ids=str)
@pytest.mark.parametrize(("n", "window"), [(1, None), (4, None), (1, 700), (11, None), (32, 700)])
def test_decoding_in_one_piece_and_in_pages(d, n, window, dtype, monkeypatch):
    # four heads a key head: 4 to 128 rows
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    B, h, h_kv, capacity, page = 3, 8, 2, 5003, 16
    q, k, v = random(B, h, n, d, dtype=dtype), *(random(B, h_kv, capacity, d, dtype=dtype, seed=s) for s in (2, 3))
    lengths = torch.tensor([capacity, n, 3001], device="cuda")
    o = kernels.cached_attention(q, k, v, lengths, window=window, backend="triton")
    check_decoded(o, q, k, v, lengths, window)
    count = -(-capacity // page)
    table = torch.randperm(B * count, device="cuda", generator=torch.Generator("cuda").manual_seed(5)).reshape(B, count)
    pages = []
    for x in (k, v):
        padded = torch.nn.functional.pad(x, (0, 0, 0, count * page - capacity))
        home = torch.empty((B * count, h_kv, page, d), dtype=dtype, device="cuda")
        home[table.flatten()] = padded.reshape(B, h_kv, count, page, d).transpose(1, 2).reshape(-1, h_kv, page, d)
        pages.append(home)
    p = kernels.paged_attention(q, *pages, table, lengths, window=window, backend="triton")
    assert torch.equal(p, o)


def test_auto_takes_the_kernels_from_sm_80_on():
    q = random(1, 2, 64, 64)
    backend, why = kernels.chosen(q, q, q)
    assert backend == ("triton" if torch.cuda.get_device_capability() >= (8, 0) else "torch"), why


@pytest.mark.parametrize("given", [{"causal": True}, {"causal": True, "window": 37}, {}], ids=str)
def test_torchs_attention_by_name_gives_the_same(given):
    q, k, v = random(2, 4, 101, 64, seed=2), random(2, 2, 203, 64, seed=3), random(2, 2, 203, 64, seed=5)
    torch.testing.assert_close(kernels.attention(q, k, v, **given, backend="torch"), ours(q, k, v, **given))


def test_torch_compile_keeps_the_operators():
    arrays, do = [random(1, 4, 513, 64, seed=s) for s in (2, 3, 5)], random(1, 4, 513, 64)
    right = gradients(ours, arrays, do, causal=True)
    compiled = torch.compile(ours, fullgraph=True)
    for a, b in zip(gradients(compiled, arrays, do, causal=True), right, strict=True):
        assert torch.equal(a, b)
