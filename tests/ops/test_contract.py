"""The shape contract: what does not fit its annotation is refused by one sentence that names sizes and remedies."""

import inspect

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Integer

from derived.errors import DerivedError, DtypeError, ShapeError
from derived.ops.arrays import Array
from derived.ops.contract import refuse_out_of_range, shaped


@shaped
def scale(x: Float[Array, "*batch n m"], y: Float[Array, "m d_k"], *, times: int = 1) -> Float[Array, "*batch n d_k"]:
    """x y, times over."""
    return (x @ y) * times


@shaped
def scale_vjp(x: Float[Array, "*batch n m"], y: Float[Array, "m d_k"]):
    """x y and its pullback."""

    def pullback(dz: Float[Array, "*batch n d_k"]) -> tuple:
        """dx = dz yᵀ."""
        return dz @ y.T, None

    return x @ y, pullback


@shaped
def optional(
    x: Float[Array, "n"], keep: Bool[Array, "..."] | None = None, at: Integer[Array, "n"] | None = None
) -> Float[Array, "n"]:
    """x, whatever else is given."""
    return x


x, y = np.ones((2, 3, 5)), np.ones((5, 7))


def test_what_fits_passes_with_all_defaults():
    assert scale(x, y).shape == (2, 3, 7)
    assert scale(x[0], y, times=3)[0, 0] == 15
    assert scale(y=y, x=x).shape == (2, 3, 7)
    z, pullback = scale_vjp(torch.ones(3, 5), torch.ones(5, 7))
    assert pullback(z)[0].shape == (3, 5)


def test_the_wrapper_keeps_name_signature_and_docstring():
    assert scale.__name__ == "scale" and scale.__doc__ == "x y, times over."
    assert list(inspect.signature(scale).parameters) == ["x", "y", "times"]
    assert scale_vjp(x, y)[1].__doc__ == "dx = dz yᵀ."


def test_errors_are_one_family_and_still_what_python_calls_them():
    assert issubclass(ShapeError, DerivedError) and issubclass(DtypeError, DerivedError)
    assert issubclass(DerivedError, ValueError) and issubclass(DtypeError, TypeError)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: scale(x, np.ones((11, 7))),
            ShapeError,
            "scale: y has m = 11, x had m = 5; y takes the shape (m, d_k).",
        ),
        (
            lambda: scale(np.ones(5), y),
            ShapeError,
            "scale: x has shape (5,), which has too few or too many axes; x takes the shape (*batch, n, m).",
        ),
        (
            lambda: scale(x, np.ones((2, 5, 7))),
            ShapeError,
            "scale: y has shape (2, 5, 7), which has too few or too many axes; y takes the shape (m, d_k).",
        ),
        (
            lambda: scale(x.astype(int), y),
            DtypeError,
            "scale: x has dtype int64; float values are expected: convert x first.",
        ),
        (
            lambda: scale(torch.ones(3, 5, dtype=torch.int32), torch.ones(5, 7)),
            DtypeError,
            "scale: x has dtype int32; float values are expected: convert x first.",
        ),
        (
            lambda: scale([[1.0]], y),
            DtypeError,
            "scale: x is of type list; an array is expected: make it one with numpy.asarray or torch.as_tensor.",
        ),
        (
            lambda: scale(x, None),
            DtypeError,
            "scale: y is of type NoneType; an array is expected: make it one with numpy.asarray or torch.as_tensor.",
        ),
        (lambda: scale(x, y, times=2.5), DtypeError, "scale: times is 2.5; int is expected."),
        (
            lambda: scale(x, torch.ones(5, 7)),
            DtypeError,
            "scale: x is an array of numpy, y one of torch; convert one of them, with numpy.asarray or "
            "torch.as_tensor.",
        ),
        (
            lambda: optional(np.ones(3), np.ones(3)),
            DtypeError,
            "optional: keep has dtype float64; bool values are expected: convert keep first.",
        ),
        (
            lambda: optional(np.ones(3), None, np.ones(3)),
            DtypeError,
            "optional: at has dtype float64; integer values are expected: convert at first.",
        ),
        (
            lambda: optional(np.ones(3), None, np.arange(5)),
            ShapeError,
            "optional: at has n = 5, x had n = 3; at takes the shape (n).",
        ),
        (
            lambda: scale_vjp(x, y)[1](np.ones((2, 3, 11))),
            ShapeError,
            "the pullback of scale_vjp: dz has d_k = 11, y had d_k = 7; dz takes the shape (*batch, n, d_k).",
        ),
        (
            lambda: scale_vjp(x, y)[1](np.ones((11, 3, 7))),
            ShapeError,
            "the pullback of scale_vjp: dz has batch = (11,), x had batch = (2,); dz takes the shape (*batch, n, d_k).",
        ),
        (
            lambda: scale_vjp(x, y)[1](1.0),
            DtypeError,
            "the pullback of scale_vjp: dz is of type float; an array is expected: make it one with numpy.asarray or "
            "torch.as_tensor.",
        ),
        (
            lambda: scale_vjp(x, y)[1](torch.ones(2, 3, 7)),
            DtypeError,
            "the pullback of scale_vjp: x is an array of numpy, dz one of torch; convert one of them, with "
            "numpy.asarray or torch.as_tensor.",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_a_sentence(call, error, sentence):
    with pytest.raises(error) as refusal:
        call()
    assert str(refusal.value) == sentence


def test_an_axis_named_twice_in_one_argument_must_agree_with_itself():
    @shaped
    def trace(x: Float[Array, "n n"]) -> Float[Array, ""]:
        return np.trace(x)

    with pytest.raises(ShapeError, match=r"trace: x has n = 5, x also has n = 3; x takes the shape \(n, n\)\."):
        trace(np.ones((3, 5)))


def test_a_result_that_breaks_the_promise_is_refused_too():
    @shaped
    def forgetful(x: Float[Array, "n m"]) -> Float[Array, "n"]:
        return x.sum(0)

    with pytest.raises(ShapeError, match=r"forgetful: the result has n = 5, x had n = 3"):
        forgetful(np.ones((3, 5)))


def test_sizes_of_one_call_are_forgotten_by_the_next_and_by_calls_inside():
    @shaped
    def outer(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
        assert scale(x.T, np.ones((x.shape[0], 2))).shape == (x.shape[1], 2)  # n and m mean other sizes in there
        return x.T

    assert outer(np.ones((3, 5))).shape == (5, 3)
    assert outer(np.ones((7, 2))).shape == (2, 7)


def test_the_sizes_of_the_forward_call_bind_its_own_pullback_alone():
    _, first = scale_vjp(x, y)
    _, second = scale_vjp(np.ones((11, 5)), y)
    assert first(np.ones((2, 3, 7)))[0].shape == (2, 3, 5)
    assert second(np.ones((11, 7)))[0].shape == (11, 5)


def test_a_missing_argument_is_pythons_own_complaint():
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        scale(x)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_numbers_that_are_no_row_are_named(array):
    refuse_out_of_range("f", "tokens", array([0, 4]), 5)
    refuse_out_of_range("f", "tokens", array([[]]), 0)
    with pytest.raises(DerivedError, match=r"f: tokens holds 5, but n_vocab = 5 admits 0 to 4 only"):
        refuse_out_of_range("f", "tokens", array([0, 5]), 5)
    with pytest.raises(DerivedError, match=r"f: tokens holds -1, but n_vocab = 5 admits 0 to 4 only"):
        refuse_out_of_range("f", "tokens", array([-1, 5]), 5)
