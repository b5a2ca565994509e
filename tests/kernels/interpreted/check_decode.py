"""The decoding kernels, interpreted: right numbers from a cache in one piece and in pages, empty parts merged."""

import numpy as np
import pytest
import torch

from derived.errors import DerivedError
from derived.kernels import cached_attention, paged_attention
from derived.kernels.cached import masked
from derived.kernels.decode import decode_splits, decode_tiles, merge_kernel, split_decode
from derived.kernels.launch import padded
from derived.ops.attention import attention as exactly
from tests.support.precision import check_precision

CASES = {
    "one query": (3, 2, 2, 1, 101, 24, 40, {}),
    "grouped": (3, 6, 2, 1, 101, 16, 8, {}),
    "several queries": (3, 4, 2, 3, 101, 16, 16, {}),
    "window": (3, 4, 2, 1, 211, 16, 16, {"window": 31}),
    "window, several queries": (3, 2, 1, 5, 97, 16, 16, {"window": 7}),
    "window of one": (3, 2, 2, 1, 101, 16, 16, {"window": 1}),
    "scale below 0": (3, 2, 2, 1, 101, 16, 16, {"scale": -0.4}),
    "wide": (3, 2, 1, 1, 37, 192, 256, {}),
    "more rows than a tile": (3, 5, 1, 7, 37, 16, 136, {}),
}


def drawn(name, dtype=torch.float32):
    """q, a cache with nan beyond the lengths, and the lengths: none, all, some."""
    B, h, h_kv, n, capacity, d_k, d_v, given = CASES[name]
    seed = torch.Generator().manual_seed(sorted(CASES).index(name))
    q, k, v = (
        torch.randn(shape, generator=seed).to(dtype)
        for shape in ((B, h, n, d_k), (B, h_kv, capacity, d_k), (B, h_kv, capacity, d_v))
    )
    lengths = torch.tensor([0, capacity, 23])
    for b, m in enumerate(lengths):
        k[b, :, m:] = v[b, :, m:] = torch.nan
    return q, k, v, lengths, given


def right(q, k, v, lengths, given):
    """The definition, sequence by sequence, in float64."""
    parts = [
        exactly(q[b].double(), k[b, :, :m].double(), v[b, :, :m].double(), causal=True, **given)
        for b, m in enumerate(lengths.tolist())
    ]
    return torch.stack(parts)


def paged(k, v, lengths, page, seed=7):
    """The same cache in pages in no order, nan where no key is, and its block table with waste beyond the end."""
    B, _, capacity, _ = k.shape
    count = -(-capacity // page)
    table = torch.randperm(B * count + 3, generator=torch.Generator().manual_seed(seed))[: B * count].reshape(B, count)
    homes = [torch.full((B * count + 3, x.shape[1], page, x.shape[3]), torch.nan, dtype=x.dtype) for x in (k, v)]
    for b, m in enumerate(lengths.tolist()):
        for j in range(m):
            for home, x in zip(homes, (k, v), strict=True):
                home[table[b, j // page], :, j % page] = x[b, :, j]
        table[b, -(-m // page) :] = 2**30  # not a page at all
    return *homes, table


@pytest.mark.parametrize("name", CASES)
def test_one_piece_is_the_definition(name):
    q, k, v, lengths, given = drawn(name)
    o = cached_attention(q, k, v, lengths, **given, backend="triton")
    np.testing.assert_allclose(o, right(q, k, v, lengths, given), rtol=0, atol=2e-6)
    assert not o[0].any()


@pytest.mark.parametrize("page", [16, 7])
@pytest.mark.parametrize("name", ["grouped", "several queries", "window", "wide"])
def test_pages_are_one_piece(name, page):
    q, k, v, lengths, given = drawn(name)
    o = cached_attention(q, k, v, lengths, **given, backend="triton")
    p = paged_attention(q, *paged(k, v, lengths, page), lengths.int(), **given, backend="triton")
    np.testing.assert_allclose(p, o, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "splits"), [("one query", 1), ("one query", 2), ("several queries", 1)])
def test_float16_errs_no_more_than_the_plain_formula_would(name, splits):
    q, k, v, lengths, given = drawn(name, torch.float16)
    o = split_decode(q, k, v, lengths, None, None, q.shape[-1] ** -0.5, splits=splits)[1]
    n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    S = q[1] @ k[1].repeat_interleave(group, 0).mT * q.shape[-1] ** -0.5
    S = S.masked_fill(torch.arange(m) > torch.arange(m - n, m)[:, None], -torch.inf)
    plain = torch.softmax(S, -1) @ v[1].repeat_interleave(group, 0)
    check_precision(o, plain, right(q, k, v, lengths, given)[1], largest=1)


def test_more_rows_than_a_tile_are_several_tiles():
    _, h, h_kv, n, _, d_k, d_v, _ = CASES["more rows than a tile"]
    assert h // h_kv * n > decode_tiles(h // h_kv * n, max(d_k, d_v), 0, 4).ROWS


@pytest.mark.parametrize("splits", [1, 2, 3, 19])
def test_the_number_of_stretches_does_not_matter(splits):
    q, k, v, lengths, _ = drawn("grouped")
    o = split_decode(q, k, v, lengths, None, None, 0.25, splits=splits)
    np.testing.assert_allclose(o, right(q, k, v, lengths, {"scale": 0.25}), rtol=0, atol=2e-6)


def test_a_single_stretch_is_written_at_once(monkeypatch):
    q, k, v, lengths, _ = drawn("grouped", torch.float16)
    monkeypatch.setattr("derived.kernels.decode.merge_kernel", None)
    o = split_decode(q, k, v, lengths, None, None, 0.25, splits=1)
    assert o.dtype == torch.float16 and not o[0].any() and o[1:].isfinite().all()


def test_stretches_fill_whole_waves():
    assert decode_splits(1, 264, 10**6) == 256  # one key head, all processors
    assert decode_splits(8, 264, 10**6) == 33  # one wave, full
    assert decode_splits(264, 264, 10**6) == decode_splits(2640, 264, 10**6) == 1
    assert decode_splits(170, 264, 10**6) == 3  # two waves with 510 of 528 places taken; one has 170 of 264
    assert decode_splits(300, 264, 10**6) == 3  # 900 of four waves' 1056; 300 would leave the second of two empty
    assert decode_splits(1, 264, 5) == 5  # no stretch without a tile
    assert decode_splits(1, 8, 0) == 1


def test_an_empty_stretch_adds_nothing_whatever_it_holds():
    # attention-bugs.json, splitkv-empty: −inf − (−inf) is nan
    lse = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [1.0, 0.0], [torch.nan, 0.0], [-torch.inf] * 2])
    lse[4, 0] = torch.nan
    parts = torch.tensor([[[3.0], [torch.nan]], [[torch.nan], [7.0]], [[3.0], [6.0]], [[1.0], [1.0]], [[1.0], [1.0]]])
    o = torch.full((5, 1), 7.0)
    merge_kernel[(5,)](parts, lse, o, 2, D_V=1, P_V=padded(1), P_S=padded(2), S_t=16)
    # lse in units of ln 2: weights 2 to 1; who has read a nan says so, whatever the other part is
    np.testing.assert_allclose(o, [[3.0], [0.0], [4.0], [torch.nan], [torch.nan]])


def test_more_stretches_than_are_merged_at_once(rng):
    lse, parts = (torch.from_numpy(rng.normal(size=shape)).float() for shape in ((2, 37), (2, 37, 3)))
    o = torch.empty((2, 3))
    merge_kernel[(2,)](parts, lse, o, 37, D_V=3, P_V=padded(3), P_S=padded(37), S_t=16)
    A = torch.softmax(lse.double() * np.log(2), dim=1)
    np.testing.assert_allclose(o, (A[:, None] @ parts.double())[:, 0], rtol=0, atol=1e-6)


WAYS = {
    "triton": lambda *args: split_decode(*args, splits=1),
    "triton, three stretches": lambda *args: split_decode(*args, splits=3),
    "torch, cut": lambda q, k, v, lengths, *_: cached_attention(q, k, v, lengths, scale=0.25, backend="torch"),
    "torch, masked": masked,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
def test_who_reads_a_nan_says_so_and_nobody_else(way):
    # a maximum passes over nan, so that the largest score of such a query stays −inf
    q, k, v, lengths, _ = drawn("several queries")
    o = WAYS[way](q, k, v, lengths, None, None, 0.25)
    q_b = q.clone()
    q_b[1, 2, 1, 5] = torch.nan
    p = WAYS[way](q_b, k, v, lengths, None, None, 0.25)
    assert p[1, 2, 1].isnan().all()
    p[1, 2, 1] = o[1, 2, 1]
    np.testing.assert_allclose(p, o, rtol=0, atol=1e-6)
    k_b = k.clone()
    k_b[1, 0] = torch.nan  # every key of the key head of heads 0 and 1
    p = WAYS[way](q, k_b, v, lengths, None, None, 0.25)
    heads = q.shape[1] // k.shape[1]
    assert p[1, :heads].isnan().all()
    p[1, :heads] = o[1, :heads]
    np.testing.assert_allclose(p, o, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_nan_in_the_only_key(way):
    q, k, v, _, _ = drawn("one query")
    k[1, :, 0] = torch.nan
    p = WAYS[way](q, k, v, torch.tensor([0, 1, 23]), None, None, 0.25)
    assert not p[0].any() and p[1].isnan().all() and p[2].isfinite().all()


def test_more_rows_than_the_kernel_takes():
    q, k, v, lengths, _ = drawn("grouped")
    q = torch.randn((3, 6, 43, 16), generator=torch.Generator().manual_seed(7))
    sentence = r"h / h_kv = 3 heads times n = 43 queries are 129: give it 42 queries at a time at most, or ask for"
    with pytest.raises(DerivedError, match=sentence):
        cached_attention(q, k, v, lengths, backend="triton")
    with pytest.raises(DerivedError, match=r"h / h_kv = 129 heads .* are 129: not one query fits; ask for"):
        cached_attention(torch.ones((3, 258, 1, 16)), k, v, lengths, backend="triton")
    for backend in ("torch", "auto"):
        o = cached_attention(q, k, v, lengths, backend=backend)
        np.testing.assert_allclose(o, right(q, k, v, lengths, {}), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_broken_new_value_changes_no_earlier_query():
    q, k, v, lengths, given = drawn("several queries")
    o = cached_attention(q, k, v, lengths, **given, backend="triton")
    v[1, :, -1, 3] = torch.nan
    p = cached_attention(q, k, v, lengths, **given, backend="triton")
    assert torch.equal(p[:, :, :2], o[:, :, :2])
    assert p[1, :, 2].isnan().any(dim=-1).all()


def test_any_strides_do():
    q, k, v, lengths, given = drawn("grouped")
    o = cached_attention(q, k, v, lengths, **given, backend="triton")
    q_t, k_t, v_t = (x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0) for x in (q, k, v))
    assert torch.equal(cached_attention(q_t, k_t, v_t, lengths, **given, backend="triton"), o)


def test_a_page_beyond_two_to_the_31_numbers():
    d, page, apart = 16, 16, 2**30  # the number of the page and the stride both fit in 32 bits, their product does not
    k, v = torch.randn((2, 1, 1, 3, d), generator=torch.Generator().manual_seed(7)).half()
    q, lengths = torch.ones((1, 1, 1, d), dtype=torch.float16), torch.tensor([3])
    homes = []
    for x in (k, v):  # only the page that is used is ever touched
        store = torch.empty(2 * apart + page * d, dtype=torch.float16)
        homes.append(store.as_strided((3, 1, page, d), (apart, 0, d, 1)))
        homes[-1][2, 0, :3] = x[0, 0]
    p = paged_attention(q, *homes, torch.tensor([[2]]), lengths, backend="triton")
    assert torch.equal(p, cached_attention(q, k, v, lengths, backend="triton"))


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", ["grouped", "several queries", "window", "window, several queries"])
def test_torch_gives_the_same(name, alike):
    q, k, v, lengths, given = drawn(name)
    if alike:
        lengths = torch.full_like(lengths, 23)
    exact = right(q, k, v, lengths, given)
    *pages, table = paged(k, v, lengths, 16)
    theirs = {
        "cut": cached_attention(q, k, v, lengths, **given, backend="torch"),
        "cut, paged": paged_attention(q, *pages, table, lengths, **given, backend="torch"),
        "masked": masked(q, k, v, lengths, None, given.get("window"), 0.25),
        "masked, paged": masked(q, *pages, lengths, table, given.get("window"), 0.25),
    }
    for way, o in theirs.items():
        np.testing.assert_allclose(o, exact, rtol=0, atol=2e-6, err_msg=way)


@pytest.mark.parametrize("lengths", [[5, 5], [5, 3]])
def test_torch_reads_only_what_is_there(lengths):
    capacity = 2**40  # more than any memory: whoever copies it or makes a mask of it fails
    q, k = torch.ones((2, 1, 2, 16)), torch.ones((2, 1, 1, 16)).expand(2, 1, capacity, 16)
    lengths = torch.tensor(lengths)
    assert cached_attention(q, k, k, lengths, backend="torch").eq(1).all()
    assert cached_attention(q, k, k, lengths + capacity - 5, window=3, backend="torch").eq(1).all()
    table = torch.zeros((2, 1), dtype=torch.int64).expand(2, capacity)
    assert paged_attention(q, *2 * [torch.ones((1, 1, 4, 16))], table, lengths, backend="torch").eq(1).all()


def test_torch_takes_a_batch_of_no_sequences():
    x = torch.ones((0, 2, 3, 16))
    assert cached_attention(x, x, x, torch.empty(0, dtype=torch.int64), backend="torch").shape == x.shape
