"""Attention in tiles: equal to the full form, never holding n × m numbers, and visiting no tile in vain."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.ops import tiled
from derived.ops.attention import attention, attention_vjp
from derived.ops.tiled import tiled_attention, tiled_attention_vjp, tiles
from tests.support import loops
from tests.support.attention_cases import OPTIONS, SIZES, options, qkv, spoken
from tests.support.gradients import check_autograd, check_vjp, off_by
from tests.support.precision import LOW, check_precision
from tests.support.voices import VOICES, as_torch, to_numpy

every_option = pytest.mark.parametrize("name", OPTIONS)
every_size = pytest.mark.parametrize("size", SIZES)
widths = pytest.mark.parametrize(("B_q", "B_t"), [(1, 1), (2, 3), (3, 2), (5, 7), (64, 64)])


@pytest.mark.parametrize("array", VOICES)
@every_option
@every_size
def test_is_the_definition(size, name, array, rng):
    q, k, v = qkv(rng, size)
    given = options(rng, name, q, k)
    mine = tiled_attention(array(q), array(k), array(v), **spoken(array, given), B_q=2, B_t=3)
    np.testing.assert_allclose(to_numpy(mine), loops.attention(q, k, v, **given), rtol=1e-12, atol=1e-14)


@widths
@every_option
@every_size
def test_equals_the_full_form_forward_and_backward(size, name, B_q, B_t, rng):
    q, k, v = qkv(rng, size)
    given = options(rng, name, q, k)
    o, pullback = attention_vjp(q, k, v, **given)
    mine, recomputing = tiled_attention_vjp(q, k, v, **given, B_q=B_q, B_t=B_t)
    np.testing.assert_allclose(mine, o, rtol=1e-12, atol=1e-14)
    do = rng.normal(size=o.shape)
    for d, right in zip(recomputing(do), pullback(do), strict=True):
        np.testing.assert_allclose(d, right, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_pullback_is_the_derivative(name, rng):
    q, k, v = qkv(rng)
    given = options(rng, name, q, k)
    check_vjp(tiled_attention_vjp, [q, k, v], rng, **given, B_q=2, B_t=3)
    check_autograd(tiled_attention, tiled_attention_vjp, [q, k, v], rng, **spoken(as_torch, given), B_q=2, B_t=3)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_checks_see_one_part_in_a_thousand(which, rng):
    with pytest.raises(AssertionError, match="off by"):
        check_vjp(off_by(tiled_attention_vjp, 1.001, which), qkv(rng), rng, B_q=2, B_t=3)


# Which tiles are visited.

lengths, tile_widths = st.integers(0, 17), st.integers(1, 7)


@given(lengths, lengths, tile_widths, tile_widths, st.booleans(), st.none() | st.integers(1, 9))
def test_the_tiles_hold_every_pair_that_may_be_read_once_and_none_is_visited_in_vain(n, m, B_q, B_t, causal, window):
    visits = np.zeros((n, m), dtype=int)
    reads = np.zeros((n, m), dtype=bool)
    for i, j in np.ndindex(n, m):
        ahead = j - (i + m - n)
        reads[i, j] = not (causal and ahead > 0) and (window is None or abs(ahead) < window)
    for rows, keys in tiles(n, m, B_q, B_t, causal=causal, window=window):
        part = slice(rows.start, rows.stop), slice(keys.start, keys.stop)
        assert 0 < len(rows) <= B_q and 0 < len(keys) <= B_t
        assert reads[part].any(), f"visited in vain: {rows}, {keys}"
        visits[part] += 1
    assert visits.max(initial=0) <= 1 and (visits[reads] == 1).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_causal_visits_half_the_square_and_the_diagonal(count):
    n, B = 5 * count, 5
    visited = tiles(n, n, B, B, causal=True)
    assert len(visited) == count * (count + 1) // 2
    assert sum(len(rows) * len(keys) for rows, keys in visited) == n * (n + B) // 2
    assert len(tiles(n, n, B, B)) == count**2


def test_a_window_visits_a_band():
    # w = 16 behind 8 × 8 tiles: a tile of queries reaches back 15 keys, so two tiles and its own
    assert len(tiles(80, 80, 8, 8, causal=True, window=16)) == 1 + 2 + 3 * 8
    assert len(tiles(10_000, 10_000, 100, 100, causal=True, window=1)) == 100


def spy(monkeypatch, name):
    """Count the calls of a function that runs once a tile."""
    calls, inner = [], getattr(tiled, name)
    monkeypatch.setattr(tiled, name, lambda *args: calls.append(1) or inner(*args))
    return calls


@pytest.mark.parametrize(("given", "count"), [({}, 12), ({"causal": True}, 9), ({"causal": True, "window": 2}, 6)])
def test_no_other_tile_is_computed_forward_or_backward(given, count, monkeypatch, rng):
    # n = 5, m = 7, tiles of 2 × 2: three by four; counted by hand on the drawing of positions 2 to 6
    q, k, v = qkv(rng, "flat")
    forward, backward = spy(monkeypatch, "partial_attention"), spy(monkeypatch, "cap_slope")
    o, pullback = tiled_attention_vjp(q, k, v, **given, B_q=2, B_t=2)
    assert len(forward) == count and not backward
    pullback(np.ones_like(o))
    assert len(forward) == len(backward) == count == len(tiles(5, 7, 2, 2, **given))


# Memory.


class Largest(TorchDispatchMode):
    """Remember the largest tensor that any operation of torch returns."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("name", ["plain", "causal", "window", "everything"])
def test_no_array_of_n_by_m_numbers_is_ever_made(name, rng):
    n, m, d = 211, 223, 5
    q, k, v, do = (torch.from_numpy(rng.normal(size=(2, s, d))) for s in (n, m, m, n))
    given = spoken(as_torch, options(rng, name, q, k))  # the caller's own mask is n × m; the op's arrays are not
    largest = {}
    for form, f_vjp, tile in (("full", attention_vjp, {}), ("tiled", tiled_attention_vjp, {"B_q": 16, "B_t": 16})):
        with Largest() as mode:
            _, pullback = f_vjp(q, k, v, **given, **tile)
            forward = mode.numbers
            pullback(do)
        largest[form] = forward, mode.numbers
    if "mask" in given:  # cutting the caller's mask passes a view of n rows by 16 keys
        assert max(largest["tiled"]) <= 2 * n * 16
    else:
        assert max(largest["tiled"]) == 2 * m * d  # the gradients of keys and values, when they are put together
    assert min(largest["full"]) == 2 * n * m


def peak(f_vjp, n, **given):
    """The most bytes that numpy held at once, forward and backward, beyond the arguments."""
    q = np.linspace(-1, 1, n * 4).reshape(n, 4)
    tracemalloc.start()
    try:
        o, pullback = f_vjp(q, q, q, **given)
        pullback(o)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_n_and_not_with_its_square():
    n, B = 256, 32
    small, large = (peak(tiled_attention_vjp, size, causal=True, B_q=B, B_t=B) for size in (n, 4 * n))
    assert large < 4.4 * small  # four times as long; the tile itself does not grow
    assert large < 8 * (4 * n) ** 2 / 8  # an eighth of one n × n array of float64
    assert peak(attention_vjp, 4 * n, causal=True) > 3 * 8 * (4 * n) ** 2  # the full form holds S, A and more


# Precision and contract.


@pytest.mark.parametrize("dtype", LOW)
def test_error_in_low_precision_is_at_most_twice_that_of_the_plain_form(dtype, rng):
    sizes = [(31, 16), (61, 16), (61, 11), (31, 11)]
    q, k, v, do = (torch.from_numpy(rng.normal(size=(2, n, d))).to(dtype) for n, d in sizes)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = torch.softmax(leaves[0] @ leaves[1].mT / 4, dim=-1) @ leaves[2]
    o, pullback = tiled_attention_vjp(q, k, v, B_q=7, B_t=5)
    exact, exactly = attention_vjp(q.double(), k.double(), v.double())
    check_precision(o, plain.detach(), exact)
    theirs = torch.autograd.grad(plain, leaves, do)
    for mine, other, right in zip(pullback(do), theirs, exactly(do.double()), strict=True):
        check_precision(mine, other, right)


def test_wide_tiles_are_the_full_form(rng):
    q, k, v = qkv(rng)
    np.testing.assert_allclose(tiled_attention(q, k, v), attention(q, k, v), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("size", ["grouped", "flat"])
def test_what_does_not_fit_is_refused_by_a_sentence_even_where_no_tile_is_visited(size, rng):
    q, k, v = qkv(rng, size)
    for keys, vals in ((k, v), (k[..., :0, :], v[..., :0, :])):
        with pytest.raises(ShapeError, match=r"window = 0; a window counts the query itself, so it is at least 1"):
            tiled_attention(q, keys, vals, window=0)
        with pytest.raises(ShapeError, match=r"mask has shape \(11, 13\), which does not broadcast to"):
            tiled_attention(q, keys, vals, mask=np.ones((11, 13), dtype=bool))
        with pytest.raises(DerivedError, match=r"softcap = 0; scores are capped at ± softcap"):
            tiled_attention(q, keys, vals, softcap=0)
        with pytest.raises(ShapeError, match=r"tiles: B_q = 0 queries and B_t = 128 keys a tile; both must"):
            tiled_attention(q, keys, vals, B_q=0)
        with pytest.raises(DtypeError, match=r"tiled_attention: B_t is 2\.0; int is expected"):
            tiled_attention(q, keys, vals, B_t=2.0)
    with pytest.raises(ShapeError, match=r"tiled_attention: k has d_k = 11, q had d_k = 3"):
        tiled_attention(q, v, v)
    with pytest.raises(ShapeError, match=r"the pullback of tiled_attention_vjp: do has d_v = 3, v had d_v = 11"):
        tiled_attention_vjp(q, k, v)[1](q)
