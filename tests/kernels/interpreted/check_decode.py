"""The decoding kernels, interpreted: right numbers from a cache in one piece and in pages, empty parts merged."""

from functools import partial

import numpy as np
import pytest
import torch

from derived.kernels import cached_attention, paged_attention
from derived.kernels.decode import merge_kernel, split_decode
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


@pytest.mark.parametrize("name", ["one query", "several queries"])
def test_float16_errs_no_more_than_the_plain_formula_would(name):
    q, k, v, lengths, given = drawn(name, torch.float16)
    o = cached_attention(q, k, v, lengths, **given, backend="triton")[1]
    n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    S = q[1] @ k[1].repeat_interleave(group, 0).mT * q.shape[-1] ** -0.5
    S = S.masked_fill(torch.arange(m) > torch.arange(m - n, m)[:, None], -torch.inf)
    plain = torch.softmax(S, -1) @ v[1].repeat_interleave(group, 0)
    check_precision(o, plain, right(q, k, v, lengths, given)[1], largest=1)


@pytest.mark.parametrize("splits", [1, 2, 3, 64])
def test_the_number_of_stretches_does_not_matter(splits):
    q, k, v, lengths, _ = drawn("grouped")
    o = split_decode(q, k, v, lengths, None, None, 0.25, splits=splits)
    np.testing.assert_allclose(o, right(q, k, v, lengths, {"scale": 0.25}), rtol=0, atol=2e-6)


def test_an_empty_stretch_adds_nothing_whatever_it_holds():
    # attention-bugs.json, splitkv-empty: −inf − (−inf) is nan
    lse = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [1.0, 0.0]])
    parts = torch.tensor([[[3.0], [torch.nan]], [[torch.nan], [7.0]], [[3.0], [6.0]]])
    o = torch.full((3, 1), torch.nan)
    merge_kernel[(3,)](parts, lse, o, 2, D_V=1, P_V=padded(1), P_S=padded(2))
    np.testing.assert_allclose(o, [[3.0], [0.0], [4.0]])  # lse in units of ln 2: weights 2 to 1


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


@pytest.mark.parametrize("name", ["grouped", "window, several queries"])
def test_torch_gives_the_same(name):
    q, k, v, lengths, given = drawn(name)
    exact = right(q, k, v, lengths, given)
    theirs = partial(cached_attention, backend="torch")(q, k, v, lengths, **given)
    np.testing.assert_allclose(theirs, exact, rtol=0, atol=2e-6)
    theirs = paged_attention(q, *paged(k, v, lengths, 16), lengths, **given, backend="torch")
    np.testing.assert_allclose(theirs, exact, rtol=0, atol=2e-6)
