"""Exercises that check themselves: the reader's function against the book's, on fresh inputs, and what differs.

    check(mine, "softmax")            mine(s)
    check(mine, "softmax_vjp")        mine(s) -> (a, pullback), as in the book
    check(mine, "softmax_pullback")   mine(s, da) -> ds: the gradients alone
    check(mine, "core_macs")          a cost formula, called with its letters: mine(pairs=…, h=…, d_k=…, d_v=…)
    check(mine, reference, inputs)    any function against any other; inputs(rng) gives the arguments

Every public function of `derived.ops` and every formula of `derived.cost` is an exercise by its name. Inputs are
drawn from the annotations, each letter a prime of its own; `EXTRA` adds the inputs on which mistakes show.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from derived._exercise_inputs import HINTS, Case, drawn_by, named, names, upstream

__all__ = ["check", "names", "verdict"]

# Float64 forms of one formula differ by about 1e-13; the smallest slip worth a name, a factor 1.001, by 1e-3.
TOLERANCE = 1e-8


class Verdict(NamedTuple):
    """What a comparison found: True, False, or None where nothing was attempted, and the sentence that says it."""

    passed: bool | None
    sentence: str


def check(mine: Callable | None, exercise: str | Callable, inputs: Callable | None = None) -> None:
    """Print whether `mine` does what the exercise asks, and if not, what differs, where and by how much.

    Raises DerivedError for an exercise that has no such name.
    """
    print(verdict(mine, exercise, inputs).sentence)


def verdict(mine: Callable | None, exercise: str | Callable, inputs: Callable | None = None) -> Verdict:
    """Compare `mine` with the exercise's own answer; `check` prints what this returns.

    mine: the reader's function; None, a body of `...` or a NotImplementedError is "not attempted".
    exercise: a name, or a function to compare with. inputs: for a function, `inputs(rng)` gives one tuple
    or one dictionary of arguments; it is called three times.
    """
    name = exercise if isinstance(exercise, str) else exercise.__name__
    reference, cases = named(exercise) if isinstance(exercise, str) else (exercise, drawn_by(inputs))
    if mine is None:
        return Verdict(None, f"{name}: not attempted yet.")
    compared = 0
    for case in cases:
        if len(_taken(mine, case.options)) < len(case.options):
            continue
        try:
            complaint = _compare(mine, reference, case, name)
        except NotImplementedError:
            return Verdict(None, f"{name}: not attempted yet.")
        if complaint:
            return Verdict(None if complaint == NOTHING else False, f"{name}: {complaint}")
        compared += 1
    sets = "one set" if compared == 1 else f"{compared} sets"
    return Verdict(True, f"{name}: yours agrees with the book's on {sets} of inputs.")


NOTHING = "not attempted yet."


# --- the comparison ---


def _taken(function: Callable, options: Mapping) -> dict:
    """Those of the options that the function has a parameter for."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {name: value for name, value in options.items() if every or name in {p.name for p in parameters}}


def _call(function, case: Case):
    copies = {name: np.copy(a) if isinstance(a, np.ndarray) else a for name, a in case.arguments.items()}
    plain = all(isinstance(a, int) and isinstance(name, str) for name, a in copies.items())
    options = {**case.options, **_taken(function, case.fixed)}
    result = function(**copies) if plain else function(*copies.values(), **options)
    written = [n for n, a in copies.items() if isinstance(a, np.ndarray) and not _same(a, case.arguments[n])]
    return result, written


def _compare(mine: Callable, reference: Callable, case: Case, name: str) -> str:
    """The first difference as a sentence, or nothing."""
    shapes = ", ".join(f"{n} {a.shape}" for n, a in case.arguments.items() if isinstance(a, np.ndarray))
    where = f"on {case.words}" + (f" ({shapes})" if shapes else "")
    with np.errstate(all="ignore"):
        expected, _ = _call(reference, case)
        try:
            got, written = _call(mine, case)
        except NotImplementedError:
            raise
        except Exception as error:
            return f"{where}, yours raises {type(error).__name__}: {error}"
        if got is None or got is Ellipsis:
            return NOTHING
        if written:
            return f"{where}, yours changes its argument {written[0]}; the book's functions leave theirs as they were."
        pairs = _pairs(got, expected, case, name)
        if isinstance(pairs, str):
            return f"{where}, {pairs}"
        for what, own, book in pairs:
            if difference := _difference(own, book):
                hint = HINTS.get(case.words, "")
                return f"{where}, {what} differs: {difference} {hint}".rstrip()
    return ""


def _pairs(got, expected, case: Case, name: str):
    """Name each output of the two; or say why they cannot be laid side by side."""
    if name.endswith("_vjp"):
        if not (isinstance(got, tuple) and len(got) == 2 and callable(got[1])):
            return "yours should return two things: the result and a function, its pullback."
        incoming = upstream(np.shape(expected[0]))
        forward = _pairs(got[0], expected[0], case, "")
        if isinstance(forward, str) or any(_difference(own, book) for _, own, book in forward):
            return forward
        try:
            gradient = got[1](incoming.copy())
        except Exception as error:
            return f"the pullback of yours raises {type(error).__name__}: {error}"
        return forward + _gradients(gradient, expected[1](incoming), case)
    if name.endswith("_pullback"):
        return _gradients(got, expected, case)
    if len(_tuple(got)) != len(_tuple(expected)):
        return f"yours returns {len(_tuple(got))} results, the book's {len(_tuple(expected))}."
    fields = getattr(expected, "_fields", None) or [f"result {i}" for i in range(1, len(_tuple(expected)) + 1)]
    fields = fields if len(fields) > 1 else ["the result"]
    return list(zip(fields, _tuple(got), _tuple(expected), strict=True))


def _gradients(got, expected, case: Case):
    got, expected = _tuple(got), _tuple(expected)
    if len(got) != len(expected):
        return f"yours gives {len(got)} gradients, the book's {len(expected)}."
    arrays = [n for n, a in case.arguments.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    return [(f"d{name}", own, book) for name, own, book in zip(arrays, got, expected, strict=False)]


def _difference(own, book) -> str:
    """How `own` differs from `book`, or nothing."""
    try:
        array, book = _plain(own), _plain(book)
        array.astype(float)
    except Exception:
        return f"yours is of type {type(own).__name__}, an array is expected."
    own = array
    if own.shape != book.shape:
        turned = own.ndim > 1 and own.swapaxes(-1, -2).shape == book.shape
        return f"yours has shape {own.shape}, the book's {book.shape}." + (" Is it transposed?" if turned else "")
    if _same(own, book):
        return ""
    if not np.isfinite(own[np.isfinite(book)]).all():
        count = int((~np.isfinite(own) & np.isfinite(book)).sum())
        return f"{count} of yours are nan or infinite where the book's are finite."
    gap = np.abs(np.where(np.isfinite(book), own - book, 0))
    at = np.unravel_index(int(np.argmax(gap)), gap.shape)
    place = f" at {[int(i) for i in at]}" if at else ""
    return f"most{place}, where yours is {own[at]:.6g} and the book's {book[at]:.6g}.{_likely(own, book)}"


def _likely(own, book) -> str:
    """A mistake that would explain the whole difference, where there is one."""
    if own.ndim > 1 and own.shape[-1] == own.shape[-2] and _same(own.swapaxes(-1, -2), book):
        return " Yours is the transpose."
    rest = (np.abs(book) > TOLERANCE) & np.isfinite(book)
    if rest.sum() < 2:
        return ""
    ratio, offset = own[rest] / book[rest], own[rest] - book[rest]
    if np.ptp(ratio) < TOLERANCE * abs(ratio).max():
        return f" Yours is {ratio.flat[0]:.6g} times the book's everywhere."
    if np.ptp(offset) < TOLERANCE * abs(offset).max():
        return f" Yours is the book's plus {offset.flat[0]:.6g} everywhere."
    return ""


def _plain(value) -> np.ndarray:
    """An array; whole numbers of any size stay exact, fractions become floats."""
    array = np.asarray(value)
    whole = array.dtype == object and all(isinstance(x, int) for x in array.flat)
    return array.astype(float) if array.dtype == object and not whole else array


def _same(own, book) -> bool:
    own, book = _plain(own), _plain(book)
    if book.dtype.kind in "biuO" and own.dtype.kind in "biuO":
        return bool(np.array_equal(own, book))
    own, book = own.astype(float), book.astype(float)
    largest = np.max(np.abs(book), initial=0.0, where=np.isfinite(book))
    return bool(np.allclose(own, book, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True))


def _tuple(value) -> tuple:
    return tuple(value) if isinstance(value, tuple) else (value,)
