"""The kernels on a GPU: accuracy by the rule, the same bits every time, odd shapes, far offsets, memory linear in n."""

from functools import partial

import pytest
import torch

from derived import kernels
from derived.ops.attention import attention_vjp
from tests.kernels.cases import CASES, check_case, drawn, plain
from tests.support.precision import check_precision

ours = partial(kernels.attention, backend="triton")
DEVICE = "cuda"
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
    return torch.randn(shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE, dtype=dtype)


def gradients(attention, arrays, do, **given):
    """Output and gradients of a call."""
    leaves = [x.detach().requires_grad_() for x in arrays]
    o = attention(*leaves, **given)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


@pytest.mark.parametrize("dtype", [*half(), torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_errs_no_more_than_the_plain_formula_would(name, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    check_case(ours, name, dtype, DEVICE)


@pytest.mark.parametrize("dtype", half(), ids=str)
@pytest.mark.parametrize("d", [64, 96, 128, 256])
@pytest.mark.parametrize("given", [{}, {"causal": True}, {"causal": True, "window": 300}], ids=str)
def test_long_sequences_too(given, d, dtype):
    # the tiles of this device, whole and cut, and enough programs that they run at once
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


@pytest.mark.parametrize("axis", ["heads", "rows"])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_offsets_beyond_two_to_the_31(which, axis):
    room(8)
    h, n, d, apart = 9, 9, 64, 2**28  # head 8, or row 8, begins at 2^31
    arrays = [random(1, h, n, d, seed=s) for s in (2, 3, 5, 7)]
    right = gradients(ours, arrays[:3], arrays[3], causal=True)
    strides = (0, apart, d, 1) if axis == "heads" else (0, d, apart, 1)
    far = torch.empty(8 * apart + h * d, dtype=torch.float16, device=DEVICE).as_strided((1, h, n, d), strides)
    arrays[which] = far.copy_(arrays[which])
    for a, b in zip(gradients(ours, arrays[:3], arrays[3], causal=True), right, strict=True):
        assert torch.equal(a, b)


def test_a_batch_beyond_two_to_the_31_numbers():
    room(24)
    B, h, n, d = 33, 1024, 512, 128  # the last sequence begins at 2^31
    arrays = [random(B, h, n, d, seed=2), *(random(B, 1, n, d, seed=s) for s in (3, 5))]
    do = random(B, h, n, d, seed=7)
    last = [x[-1:].clone() for x in arrays]
    right = gradients(ours, last, do[-1:].clone(), causal=True)
    for a, b in zip(gradients(ours, arrays, do, causal=True), right, strict=True):
        assert torch.equal(a[-1:], b)


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


def before_and_after(name, spoil):
    """Output and gradients of a case as it is drawn, and again when `spoil` has changed q, k or v."""
    *arrays, do, given = drawn(name, torch.float16, DEVICE)
    if "mask" in given:  # as under a causal mask, the last three queries alone read the third last key
        given["mask"][..., -3] = False
        given["mask"][..., -3:, -3] = True
    right = gradients(ours, arrays, do, **given)
    spoil(*arrays)
    return right, gradients(ours, arrays, do, **given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("name", ["cached", "causal window", "mask"])
def test_a_broken_key_or_value_changes_nobody_who_may_not_read_it(name, which, broken):
    def spoil(q, k, v):
        (k if which == "key" else v)[:, :, -3] = broken

    right, got = before_and_after(name, spoil)
    for a, b in zip(right[:2], got[:2], strict=True):  # O and dQ
        assert torch.equal(a[:, :, :-3], b[:, :, :-3])
    assert not got[0][:, :, -3:].isfinite().any()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["square", "cached", "causal window", "mask"])
def test_a_broken_query_breaks_its_own_row_alone(name):
    def spoil(q, k, v):
        q[:, :, -3] = torch.nan

    (o, dq, dk, dv), (o_, dq_, dk_, dv_) = before_and_after(name, spoil)
    for a, b in ((o, o_), (dq, dq_)):
        assert b[:, :, -3].isnan().all()
        assert torch.equal(a[:, :, :-3], b[:, :, :-3]) and torch.equal(a[:, :, -2:], b[:, :, -2:])
    for a, b in ((dk, dk_), (dv, dv_)):
        assert b[:, :, -3].isnan().all()
        if name in ("cached", "causal window"):  # the query does not read the last two keys
            assert torch.equal(a[:, :, -2:], b[:, :, -2:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_query_whose_only_key_is_broken_says_so(which, dtype):
    q, k, v = (random(1, 2, 259, 64, dtype=dtype, seed=s) for s in (2, 3, 5))
    right = ours(q, k, v, causal=True, window=1)  # each query reads its own position
    {"query": q, "key": k, "value": v}[which][:, :, 37] = torch.nan
    got = ours(q, k, v, causal=True, window=1)
    assert got[:, :, 37].isnan().all()
    assert torch.equal(got[:, :, :37], right[:, :, :37]) and torch.equal(got[:, :, 38:], right[:, :, 38:])
    everybody = ours(q, k, v)  # here in a tile of which no pair is tested
    assert everybody[:, :, 37 if which == "query" else slice(None)].isnan().all()


LENGTHS = [(700, 900), (0, 5), (513, 513), (3, 0), (1, 1300)]
"""Queries and keys of each sequence of a ragged batch."""


def apart(x, i):
    """The sequences of a ragged batch, as (1, h, tokens, d) each: those of queries for i = 0, those of keys for 1."""
    return [part.transpose(0, 1)[None] for part in x.split([pair[i] for pair in LENGTHS])]


def end_to_end(parts):
    """Sequences of (1, h, tokens, d) as one ragged batch: (all tokens, h, d)."""
    return torch.cat([part[0].transpose(0, 1) for part in parts])


def each(attention, q, k, v, **given):
    """`attention` of each sequence, end to end."""
    parts = zip(apart(q, 0), apart(k, 1), apart(v, 1), strict=True)
    return end_to_end([attention(*part, **given) for part in parts])


@pytest.mark.parametrize("dtype", half(), ids=str)
@pytest.mark.parametrize("given", [{}, {"causal": True}, {"causal": True, "window": 300}], ids=str)
def test_ragged_batches(given, dtype):
    cu_q, cu_k = (
        torch.tensor([0, *counts], device=DEVICE).cumsum(0).int() for counts in zip(*LENGTHS, strict=True)
    )  # fmt: skip
    h, h_kv, d = 4, 2, 64
    q, do = (random(int(cu_q[-1]), h, d, dtype=dtype, seed=s) for s in (2, 3))
    k, v = (random(int(cu_k[-1]), h_kv, d, dtype=dtype, seed=s) for s in (5, 7))
    ragged = partial(kernels.ragged_attention, cu_q=cu_q, cu_k=cu_k, backend="triton")
    mine, rough = gradients(ragged, (q, k, v), do, **given), gradients(partial(each, plain), (q, k, v), do, **given)
    exact = []
    for *arrays, do_b in zip(apart(q, 0), apart(k, 1), apart(v, 1), apart(do, 0), strict=True):
        o, pullback = attention_vjp(*(x.double() for x in arrays), **given)
        exact.append((o, *pullback(do_b.double())))
    rights = map(end_to_end, zip(*exact, strict=True))
    for factor, a, b, right in zip((2, 3, 3, 3), mine, rough, rights, strict=True):
        check_precision(a.cpu(), b.cpu(), right.cpu(), factor=factor, largest=1)
    for x, i, b in ((mine[0], 0, 3), (mine[1], 0, 3), (mine[2], 1, 1), (mine[3], 1, 1)):
        assert not apart(x, i)[b].any()  # queries without keys, and keys without queries


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
    backend, why = kernels.chosen(*[q.float()] * 3)
    assert backend == "torch", why


@pytest.mark.parametrize("given", [{"causal": True}, {"causal": True, "window": 37}, {}], ids=str)
def test_torchs_attention_by_name_gives_the_same(given):
    q, k, v = random(2, 4, 101, 64, seed=2), random(2, 2, 203, 64, seed=3), random(2, 2, 203, 64, seed=5)
    torch.testing.assert_close(kernels.attention(q, k, v, **given, backend="torch"), ours(q, k, v, **given))


@pytest.mark.parametrize("backend", ["triton", "auto"])
def test_torch_compile_keeps_the_operators(backend):
    arrays, do = [random(1, 4, 513, 64, seed=s) for s in (2, 3, 5)], random(1, 4, 513, 64)
    attention = partial(kernels.attention, backend=backend, causal=True)
    right = gradients(attention, arrays, do)
    compiled = torch.compile(attention, fullgraph=True)
    for a, b in zip(gradients(compiled, arrays, do), right, strict=True):
        assert torch.equal(a, b)
