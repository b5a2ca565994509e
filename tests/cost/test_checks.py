"""What every formula shares: exact ints, arrays that do not overflow, refusals that speak, nothing heavy imported."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch

from derived.cost.crossing import crossing_tokens
from derived.cost.flops import attention_macs, linear_macs
from derived.cost.pairs import causal_pairs, padded_causal_pairs, tiled_causal_pairs, window_pairs
from derived.cost.parameters import linear_parameters
from derived.cost.roofline import linear_intensity
from derived.errors import DerivedError, DtypeError

MODULES = ["attention_memory", "pairs", "parameters", "flops", "crossing", "roofline", "render"]


def test_importing_cost_imports_nothing_heavy():
    code = "import sys\n" + "".join(f"import derived.cost.{name}\n" for name in MODULES)
    code += "print([m for m in ('numpy', 'torch', 'sympy', 'scipy', 'jaxtyping', 'inspect') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_ints_stay_exact_at_any_size():
    assert linear_macs(10**20 + 1, 10**20 + 3, 7) == 7 * (10**20 + 1) * (10**20 + 3)
    assert type(causal_pairs(7, 11)) is int


def test_arrays_give_what_ints_give_one_by_one():
    n, m = np.arange(1, 12)[:, None], np.arange(1, 14)
    for pairs in (causal_pairs, lambda n, m: window_pairs(n, m, 3), tiled_causal_pairs, padded_causal_pairs):
        got = pairs(n, m)
        assert got.dtype == np.int64 and got.shape == (11, 13)
        assert got.tolist() == [[pairs(i, j) for j in range(1, 14)] for i in range(1, 12)]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64, object])
def test_narrow_arrays_do_not_wrap_around(dtype):
    n = np.array([7, 127], dtype=dtype)
    assert linear_macs(n, 4096, 14336).tolist() == [7 * 4096 * 14336, 127 * 4096 * 14336]
    assert linear_macs(np.int32(50000), np.int32(50000), 3) == 7_500_000_000


def test_an_array_whose_result_needs_more_than_64_bits_is_refused_and_object_is_the_way_out():
    n = np.array([7, 2**40])
    with pytest.raises(DtypeError, match=r"linear_macs gives 1\d+, more than 64 bits hold; .*dtype=object"):
        linear_macs(n, 2**12, 2**12)
    assert linear_macs(n.astype(object), 2**12, 2**12)[1] == 2**64
    assert linear_macs(np.array([2**39 - 1]), 2**12, 2**12)[0] == (2**39 - 1) * 2**24  # the last that fits


def test_fractions_of_integer_arrays_come_back_as_floats():
    x = crossing_tokens(d_model=np.array([7, 8]), h=2, d_k=5, d_v=3, d_ff=11, ffn_matrices=2)
    assert x.dtype == np.float64
    np.testing.assert_array_equal(x, [7 * 22 / 16, 11.0])
    assert linear_intensity(np.array([1, 64]), 4096, 4096, 2).dtype == np.float64


def test_floats_and_fractions_pass():
    np.testing.assert_allclose(causal_pairs(np.array([7.0, 11.0]), 13.0), [causal_pairs(7, 13), causal_pairs(11, 13)])
    assert linear_intensity(1, 2, 3, Fraction(1, 2)) == 2 * 6 / Fraction(11, 2)


@pytest.mark.parametrize(
    "value, error, sentence",
    [
        (0, DerivedError, "n = 0; a size is positive and finite"),
        (-7, DerivedError, "n = -7; a size is positive"),
        (float("nan"), DerivedError, "n = nan; a size is positive"),
        (float("inf"), DerivedError, "n = inf; a size is positive"),
        (np.array([7, 0]), DerivedError, "n = 0; a size is positive"),
        (np.array([7.0, np.nan]), DerivedError, "n = nan; a size is positive"),
        (True, DtypeError, "n = True is a bool; give an int"),
        ("7", DtypeError, "n = '7' is a str; give an int"),
        (None, DtypeError, "n = None is a NoneType; give an int"),
        (7j, DtypeError, "is a complex; give an int"),
        (np.array([True]), DtypeError, "n is an array of bool"),
        (torch.tensor(7), DtypeError, r"n is a torch\.Tensor; give its number, int\(n\)"),
    ],
)
def test_what_is_no_size_is_refused_by_a_sentence(value, error, sentence):
    with pytest.raises(error, match=sentence):
        linear_macs(value, 11, 13)


def test_symbols_that_cannot_be_positive_are_refused():
    with pytest.raises(DerivedError, match="cannot be positive"):
        linear_macs(sympy.Symbol("n", negative=True), 11, 13)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(DerivedError, match="h = 7 query heads do not divide among h_kv = 3 KV heads"):
        attention_macs(n=5, pairs=25, d_model=14, h=7, h_kv=3, d_k=2, d_v=2)


def test_python_still_says_what_is_wrong_with_a_call():
    with pytest.raises(TypeError, match="positional argument"):
        linear_macs(1, 2, 3, 4)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'd_out'"):
        linear_macs(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_model'"):
        linear_parameters(2, 3, d_model=5)
