"""The flash kernels, interpreted: the right numbers on every shape, and nothing read or written that is not theirs."""

from functools import partial

import numpy as np
import pytest
import torch

from derived.kernels import attention, flash_backward, flash_forward, tile
from derived.kernels.flash_backward import flash_backward as backward
from derived.kernels.flash_forward import flash_forward as forward
from derived.kernels.launch import Tiles
from derived.ops.attention import attention as exactly
from derived.ops.tiled import tiles
from tests.kernels.cases import CASES, check_case, drawn

ours = partial(attention, backend="triton")
SOME = ("cached", "grouped", "mask, causal window")


@pytest.mark.parametrize("name", CASES)
def test_float32_is_the_definition_forward_and_backward(name):
    check_case(ours, name, torch.float32)


@pytest.mark.parametrize("name", SOME)
def test_float16_errs_no_more_than_the_plain_formula_would(name):
    check_case(ours, name, torch.float16)


@pytest.mark.parametrize("name", ["cached", "tall", "mask", "causal window, tall"])
def test_the_log_sum_exp_is_that_of_the_scores_that_are_read(name):
    q, k, v, _, given = drawn(name)
    mask = given.pop("mask", None)
    o, lse = forward(q, k, v, mask=None if mask is None else mask.view(torch.uint8), **given)
    ones = torch.ones_like(v[..., :1])
    reads = exactly(q.double() * 0, k.double(), ones.double(), mask=mask, **given) > 0  # reads anything
    n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    S = (q.double() @ k.double().repeat_interleave(group, 1).mT) / q.shape[-1] ** 0.5
    ahead = torch.arange(m) - torch.arange(m - n, m)[:, None]
    forbidden = torch.zeros((n, m), dtype=torch.bool) if mask is None else ~mask
    if given.get("causal"):
        forbidden = forbidden | (ahead > 0)
    if "window" in given:
        forbidden = forbidden | (ahead <= -given["window"])
    right = torch.logsumexp(S.masked_fill(forbidden, -torch.inf), dim=-1)
    np.testing.assert_allclose(lse * np.log(2), right, rtol=2e-6, atol=2e-6)
    nothing = ~reads[..., 0]
    assert nothing.any() == (name != "cached")
    assert (lse[nothing] == -torch.inf).all() and not o[nothing].any()


@pytest.mark.parametrize("sizes", [(32, 64, 4, 1), (64, 32, 4, 1), (32, 64, 4, 1, 16)])
@pytest.mark.parametrize("name", ["cached", "window"])
def test_the_size_of_a_tile_does_not_matter(name, sizes):
    q, k, v, do, given = drawn(name)
    small, other = Tiles(32, 32, 4, 1), Tiles(*sizes)
    o, lse = forward(q, k, v, **given, tiles=small)
    p, lse_p = forward(q, k, v, **given, tiles=other)
    np.testing.assert_allclose(p, o, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse_p, lse, rtol=0, atol=2e-6)
    right = backward(q, k, v, o, lse, do, **given, tiles=(small, small))
    for g, r in zip(backward(q, k, v, o, lse, do, **given, tiles=(other, other)), right, strict=True):
        np.testing.assert_allclose(g, r, rtol=0, atol=5e-6)


# A window of one: A = 1, and what is exactly 0 comes out as the difference of two roundings of one number. The plain
# formula takes that number from itself and has no error at all, so it is no yardstick here.

U = 2.0**-24  # half a unit in the last place of 1, in the float32 of every sum


def moved(x, count):
    """The last `count` rows of x, below rows of zeros if x has fewer: each key beside its query, and the reverse."""
    return torch.nn.functional.pad(x, (0, 0, count - x.shape[2], 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("h, n, m", [(2, 37, 37), (2, 71, 43), (2, 29, 67), (4, 37, 41)])
def test_a_window_of_one_gives_the_value_and_no_gradient_to_query_or_key(h, n, m, causal, dtype):
    h_kv, d_k, d_v = 2, 19, 11
    seed = torch.Generator().manual_seed(n)
    shapes = (1, h, n, d_k), (1, h_kv, m, d_k), (1, h_kv, m, d_v), (1, h, n, d_v)
    q, k, v, do = (torch.randn(shape, generator=seed).to(dtype) for shape in shapes)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = ours(*leaves, causal=causal, window=1)
    dq, dk, dv = torch.autograd.grad(o, leaves, do)

    k_i, v_i = (moved(x.repeat_interleave(h // h_kv, 1), n) for x in (k, v))  # what query i reads
    assert torch.equal(o, v_i)
    q, k_i, v_i = (x.double().abs() for x in (q, k_i, v_i))  # from here on only sizes count

    def summed(x):
        """Rows of queries, added up over the heads of a group, where the keys stand."""
        return moved(x, m).unflatten(1, (h_kv, -1)).sum(2)

    # A = 2^(s − s′), two roundings of one score: d_k products added up and one scaling, u each, and 2 u for 2^x
    scale = d_k**-0.5
    off = 2 * (d_k + 2) * U * (q * k_i).sum(-1, keepdim=True) * scale + 2 * U
    if dtype == torch.float16:
        assert off.max() < 2**-12  # so that A, a factor in float16, is rounded to 1
        assert torch.equal(dv, summed(do.float()).half())
    else:
        right = summed(do.double())
        assert ((dv - right).abs() <= summed(off * do.abs()) + U * right.abs()).all()

    # dS′ = A ∘ (dA − delta), two roundings of dO · v: d_v products added up, u each; (d_v + 1)/d_v leaves room for A.
    # Rounding keeps order, so a bound that is rounded like the number itself stays a bound.
    dS = 2 * (d_v + 1) * U * (do.double().abs() * v_i).sum(-1, keepdim=True)
    dS = dS.to(dtype).double()
    assert (dq.abs() <= (dS * k_i * scale).to(dtype)).all()
    assert (dk.abs() <= (summed(dS * q) * scale).to(dtype)).all()
    assert dq.any() and dk.any()  # else the plain formula would do


# Memory that is not theirs.


def in_poison(x):
    """The same numbers as a view into an array of nan, with odd strides and an odd offset."""
    B, h, n, d = x.shape
    home = torch.full((B, n + 5, h, d + 7), torch.nan, dtype=x.dtype)
    view = home[:, 2 : 2 + n, :, 3 : 3 + d].transpose(1, 2)
    view.copy_(x)
    return view


@pytest.mark.parametrize("name", ["cached", "grouped", "causal window", "mask"])
def test_nothing_is_read_beyond_the_ends_and_any_strides_do(name):
    q, k, v, do, given = drawn(name)
    plainly, strided = ([x.requires_grad_() for x in (q.clone(), k.clone(), v.clone())] for _ in range(2))
    o, p = ours(*plainly, **given), ours(*map(in_poison, strided), **given)
    assert torch.equal(o, p)
    spread = in_poison(do)
    for g, r in zip(torch.autograd.grad(p, strided, spread), torch.autograd.grad(o, plainly, do), strict=True):
        assert torch.equal(g, r)


@pytest.mark.parametrize("turned", [(0, 1, 3, 2), (3, 2, 1, 0)])
def test_axes_may_lie_in_memory_in_any_order(turned):
    q, k, v, do, given = drawn("cached")
    back = [turned.index(i) for i in range(4)]
    o, lse = forward(q, k, v, **given)
    q_t, k_t, v_t, do_t = (x.permute(turned).contiguous().permute(back) for x in (q, k, v, do))
    p, lse_t = forward(q_t, k_t, v_t, **given)
    assert torch.equal(o, p) and torch.equal(lse, lse_t)
    right = backward(q, k, v, o, lse, do, **given)
    for g, r in zip(backward(q_t, k_t, v_t, p, lse_t, do_t, **given), right, strict=True):
        assert torch.equal(g, r)


def test_an_expanded_gradient_is_read_by_its_strides():
    q, k, v, _, given = drawn("cached")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = ours(*leaves, **given)
    for g, r in zip(
        torch.autograd.grad(o.sum(), leaves, retain_graph=True),  # autograd expands one number
        torch.autograd.grad(o, leaves, torch.ones_like(o)),
        strict=True,
    ):
        assert torch.equal(g, r)


@pytest.mark.parametrize("module", [flash_forward, flash_backward])
@pytest.mark.parametrize("name", ["cached", "tall"])
def test_nothing_is_written_beyond_the_ends(name, module, monkeypatch):
    homes = []

    def poisoned(q, shape):
        B, h, n, d = shape
        homes.append(torch.full((B, h, n + 3, d + 5), 7.0))
        view = homes[-1][:, :, 1 : 1 + n, 2 : 2 + d]
        view.fill_(torch.nan)
        return view

    q, k, v, do, given = drawn(name)
    o, lse = forward(q, k, v, **given)
    monkeypatch.setattr(module, "like", poisoned)
    results = forward(q, k, v, **given)[:1] if module is flash_forward else backward(q, k, v, o, lse, do, **given)
    assert len(homes) == len(results)
    for home, view in zip(homes, results, strict=True):
        assert torch.isfinite(view).all()
        around = torch.ones_like(home, dtype=torch.bool)
        around[:, :, 1 : 1 + view.shape[2], 2 : 2 + view.shape[3]] = False
        assert (home[around] == 7.0).all()


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_offsets_beyond_two_to_the_31(which):
    # five rows half a billion numbers apart; only the pages that hold them are ever touched. Before them lies the room
    # that an offset of 32 bits would lead to, so that it finds wrong numbers and does not end the process
    n, d, apart, before = 5, 16, 2**29, 2**31
    seed = torch.Generator().manual_seed(7)
    arrays = [torch.randn((1, 1, n, d), generator=seed).half() for _ in range(4)]
    o, lse = forward(*arrays[:3])
    right = backward(*arrays[:3], o, lse, arrays[3])
    home = torch.empty(before + (n - 1) * apart + d, dtype=torch.float16)
    far = home.as_strided((1, 1, n, d), (0, 0, apart, 1), before)
    arrays[which] = far.copy_(arrays[which])
    p, lse = forward(*arrays[:3])
    assert torch.equal(o, p)
    # the gradients take the layout of their arrays only as to the order of heads and tokens, so they stay small
    for g, r in zip(backward(*arrays[:3], p, lse, arrays[3]), right, strict=True):
        assert torch.equal(g, r)


def test_a_mask_with_offsets_beyond_two_to_the_31():
    n, m, apart, before = 5, 7, 2**29, 2**31
    seed = torch.Generator().manual_seed(7)
    q, k, v, do = (torch.randn((1, 1, s, 16), generator=seed) for s in (n, m, m, n))
    mask = (torch.rand((1, 1, n, m), generator=seed) < 0.6).view(torch.uint8)
    home = torch.empty(before + (n - 1) * apart + m, dtype=torch.uint8)
    far = home.as_strided((1, 1, n, m), (0, 0, apart, 1), before).copy_(mask)
    results = []
    for given in (mask, far):
        o, lse = forward(q, k, v, mask=given)
        results.append((o, *backward(q, k, v, o, lse, do, mask=given)))
    assert all(map(torch.equal, *results))


# What may not be read leaves no trace.


QUIET = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of nan and inf that are meant


@QUIET
@pytest.mark.parametrize(("which", "broken"), [(1, torch.nan), (1, torch.inf), (2, torch.nan), (2, -torch.inf)])
@pytest.mark.parametrize("name", ["cached", "causal window", "mask"])
def test_a_broken_key_or_value_changes_nobody_who_may_not_read_it(name, which, broken):
    q, k, v, do, given = drawn(name)
    arrays = [q, k, v]
    n, m = q.shape[2], k.shape[2]
    j = m - 3
    if "mask" in given:
        given["mask"][..., : n - 5, j] = False
    harmed = [x.clone() for x in arrays]
    harmed[which][:, :, j, 2] = broken
    leaves, broken_leaves = ([x.requires_grad_() for x in xs] for xs in (arrays, harmed))
    o, p = ours(*leaves, **given), ours(*broken_leaves, **given)
    reads = o.new_zeros(n, dtype=torch.bool)
    reads[n - 5 if "mask" in given else n - 3 :] = True
    assert torch.equal(o[:, :, ~reads], p[:, :, ~reads])
    if broken is torch.nan or which == 2:
        readers = reads if "mask" not in given else reads & given["mask"][0, 0, :, j]
        assert not torch.isfinite(p[0, 0, readers]).all(dim=-1).any()
    right, g = torch.autograd.grad(o, leaves, do), torch.autograd.grad(p, broken_leaves, do)
    np.testing.assert_array_equal(g[0][:, :, ~reads], right[0][:, :, ~reads])


@QUIET
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("name", ["square causal", "causal window", "mask"])
def test_a_query_that_reads_only_what_is_broken_says_so(name):
    # a maximum passes over nan, so that the largest score of such a query stays −inf
    q, k, v, _, given = drawn(name)
    right, lse = forward(q, k, v, **given | ({"mask": given["mask"].view(torch.uint8)} if "mask" in given else {}))
    for which in ("query", "keys"):
        q_b, k_b = q.clone(), k.clone()
        if which == "query":
            q_b[:, :, 5] = torch.nan
        else:
            k_b[:] = torch.nan
        o = ours(q_b, k_b, v, **given)
        reads = lse > -torch.inf
        broken = reads if which == "keys" else reads & (torch.arange(q.shape[2]) == 5)
        assert broken.any() and o[broken].isnan().all()
        assert torch.equal(o[~broken], right[~broken])


@QUIET
def test_a_broken_query_or_gradient_reaches_only_the_keys_it_reads():
    q, k, v, do, given = drawn("causal window")
    o, lse = forward(q, k, v, **given)
    right = backward(q, k, v, o, lse, do, **given)
    n, i, w = q.shape[2], 50, given["window"]
    unread = torch.ones(n, dtype=torch.bool)
    unread[i - w + 1 : i + 1] = False
    for which in ("q", "do"):
        q_b, do_b = q.clone(), do.clone()
        (q_b if which == "q" else do_b)[:, :, i, 1] = torch.nan
        p, lse_b = forward(q_b, k, v, **given)
        dq, dk, dv = backward(q_b, k, v, p, lse_b, do_b, **given)
        others = torch.arange(n) != i
        assert torch.equal(dq[:, :, others], right[0][:, :, others])
        assert dq[:, :, i].isnan().all()
        for g, r in ((dk, right[1]), (dv, right[2])):
            assert torch.equal(g[:, :, unread], r[:, :, unread])
            assert g[:, :, ~unread].isnan().any(dim=-1).all()


# The walk is that of the array version.


@pytest.mark.parametrize("name", ["cached", "tall", "window", "causal window", "window, tall", "square"])
def test_both_walks_visit_the_tiles_of_the_array_version(name):
    q, k, *_, given = drawn(name)
    n, m = q.shape[2], k.shape[2]
    given = {"causal": given.get("causal", False), "window": given.get("window")}
    seen = [(rows.start, keys.start) for rows, keys in tiles(n, m, 32, 32, **given)]
    assert sorted(seen) == sorted(walked(n, m, **given, by="queries")) == sorted(walked(n, m, **given, by="keys"))


def walked(n, m, causal, window, by):
    """(first query, first key) of each tile of 32 × 32 that a kernel walks, read off `keys_of` or `queries_of`."""
    import triton
    import triton.language as tl

    @triton.jit
    def bounds(out, n, m, w, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, KEYS: tl.constexpr):
        first = tl.program_id(0) * 32
        if KEYS:
            low, left, right, high = tile.keys_of(first, 32, n, m, w, CAUSAL, WINDOWED, 32)
        else:
            low, left, right, high = tile.queries_of(first, 32, n, m, w, CAUSAL, WINDOWED, 32)
        tl.store(out + 4 * tl.program_id(0), low)
        tl.store(out + 4 * tl.program_id(0) + 1, left)
        tl.store(out + 4 * tl.program_id(0) + 2, right)
        tl.store(out + 4 * tl.program_id(0) + 3, high)

    keys = by == "queries"
    length = n if keys else m
    count = -(-length // 32)
    out = torch.full((count, 4), -1, dtype=torch.int32)
    bounds[(count,)](out, n, m, window or 0, causal, window is not None, keys)
    found = []
    for t, (low, left, right, high) in enumerate(out.tolist()):
        assert 0 <= low <= left <= right <= high
        mine = [(32 * t, first) for first in range(low, high, 32)]
        found += mine if keys else [(b, a) for a, b in mine]
        for first in range(left, right, 32):  # every pair of a whole tile may be read
            r, c = (32 * t, first) if keys else (first, 32 * t)
            i, j = torch.arange(r, min(r + 32, n))[:, None], torch.arange(c, min(c + 32, m))
            ahead = j - (i + m - n)
            reads = (ahead <= 0) if causal else torch.ones_like(ahead, dtype=torch.bool)
            reads = reads & (ahead.abs() < window) if window else reads
            assert reads.all() and first + 32 <= (m if keys else n)
    return found
