"""Shapes are the signature: `@shaped` checks every call against its jaxtyping annotations and speaks in a sentence.

jaxtyping decides what fits (each axis letter has one size within a call), beartype decides the plain types.
This file turns their report into one sentence, and lets a pullback be checked against the sizes of the
forward call that made it.
"""

import functools
import inspect
import reprlib
import typing

from array_api_compat import array_namespace
from beartype.door import is_bearable
from jaxtyping import AbstractArray, jaxtyped

from derived.errors import DerivedError, DtypeError, ShapeError


def shaped(function):
    """Check arguments, result and pullback of `function` against its annotations at every call.

    Raises ShapeError when an axis has two sizes or an array has the wrong number of axes, DtypeError when
    an argument is of a type or dtype that the annotation does not admit.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        pairs = [(name, value, signature.parameters[name].annotation) for name, value in given.arguments.items()]
        _one_library(function.__name__, pairs)
        with jaxtyped("context"):
            _check(function.__name__, pairs, known=[])
            result = function(*args, **kwargs)
            if signature.return_annotation is not inspect.Signature.empty:
                _check(function.__name__, [("the result", result, signature.return_annotation)], known=pairs)
        if function.__name__.endswith("_vjp"):
            y, pullback = result
            return y, _shaped_pullback(function.__name__, pullback, pairs)
        return result

    return checked


def refuse_out_of_range(where, name, index, count):
    """Raise DerivedError if an array of numbers to look up holds one below 0, or `count` and above."""
    if not all(index.shape):
        return
    xp = array_namespace(index)
    lowest, highest = int(xp.min(index)), int(xp.max(index))
    if lowest < 0 or highest >= count:
        raise DerivedError(
            f"{where}: {name} holds {lowest if lowest < 0 else highest}, but n_vocab = {count} admits 0 to {count - 1} "
            "only: correct the numbers or enlarge the vocabulary; what is not to count needs a weight of 0, not a mark."
        )


def _shaped_pullback(name, pullback, forward_pairs):
    """Wrap a pullback so that its cotangents are checked with the sizes that the forward call has fixed."""
    signature = inspect.signature(pullback)

    @functools.wraps(pullback)
    def checked(*args):
        given = signature.bind(*args)
        pairs = [(key, value, signature.parameters[key].annotation) for key, value in given.arguments.items()]
        _one_library(f"the pullback of {name}", [*forward_pairs, *pairs])
        with jaxtyped("context"):
            _check(name, forward_pairs, known=[])
            _check(f"the pullback of {name}", pairs, known=forward_pairs)
            return pullback(*args)

    return checked


def _one_library(where, pairs):
    """Raise DtypeError if some arrays are numpy's and others torch's; no formula holds across two libraries."""
    kinds: dict[str, str] = {}
    for name, value, hint in pairs:
        if _array_hint(hint) is not None and hasattr(value, "dtype"):
            kinds.setdefault(type(value).__module__.partition(".")[0], name)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise DtypeError(
            f"{where}: {first} is an array of {one}, {second} one of {other}; convert one of them, with numpy.asarray "
            "or torch.as_tensor."
        )


def _check(where, pairs, known):
    """Raise on the first (name, value, annotation) that does not fit the axis sizes bound so far."""
    earlier = list(known)
    for name, value, hint in pairs:
        if hint is not inspect.Parameter.empty and not _fits(value, hint):
            raise _complaint(where, name, value, hint, earlier)
        earlier.append((name, value, hint))


def _fits(value, hint) -> bool:
    """Whether a value is what a hint says; an array's own class is asked directly.

    A pullback's annotation is a new class at every call of the forward, and beartype would compile a check for each.
    """
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return isinstance(value, hint)
    return is_bearable(value, hint)


def _complaint(where, name, value, hint, earlier):
    """Say what was given, what was expected, and which earlier argument fixed it."""
    wanted = _array_hint(hint)
    if wanted is None:
        return DtypeError(f"{where}: {name} is {reprlib.repr(value)}; {_plain(hint)} is expected.")
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return DtypeError(
            f"{where}: {name} is of type {type(value).__name__}; an array is expected: make it one with numpy.asarray "
            "or torch.as_tensor."
        )
    form = f"{name} takes the shape ({', '.join(wanted.dim_str.split())})"
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in wanted.dtypes:
        return DtypeError(
            f"{where}: {name} has dtype {kind}; {wanted.__name__.split('[')[0].lower()} values are expected: "
            f"convert {name} first."
        )
    sizes: dict[str, tuple] = {}
    for other, array, other_hint in earlier:
        if _array_hint(other_hint) is not None and array is not None:
            for axis, size in _axes(_array_hint(other_hint), array) or []:
                sizes.setdefault(axis, (size, other))
    found = _axes(wanted, value)
    if found is None:
        return ShapeError(
            f"{where}: {name} has shape {tuple(value.shape)}, which has too few or too many axes; {form}."
        )
    for axis, size in found:
        expected, other = sizes.setdefault(axis, (size, name))
        if size != expected:
            verb = "had" if other != name else "also has"
            return ShapeError(f"{where}: {name} has {axis} = {size}, {other} {verb} {axis} = {expected}; {form}.")
    return ShapeError(f"{where}: {name} has shape {tuple(value.shape)}; {form}.")


def _array_hint(hint):
    """The jaxtyping annotation inside `hint` (itself, or a member of a union), or None."""
    options = typing.get_args(hint) or (hint,)
    return next((h for h in options if isinstance(h, type) and issubclass(h, AbstractArray)), None)


def _axes(hint, array):
    """Pair the letters of an annotation with the sizes of an array; None if the number of axes cannot fit."""
    letters, shape = [letter.replace("#", "") for letter in hint.dim_str.split()], tuple(array.shape)
    star = next((i for i, letter in enumerate(letters) if letter.startswith("*") or letter == "..."), None)
    if star is None:
        return list(zip(letters, shape, strict=True)) if len(letters) == len(shape) else None
    tail = len(letters) - star - 1
    if len(shape) < star + tail:
        return None
    middle = shape[star : len(shape) - tail]
    return [
        *zip(letters[:star], shape[:star], strict=True),
        (letters[star].removeprefix("*"), middle),
        *zip(letters[star + 1 :], shape[len(shape) - tail :], strict=True),
    ]


def _plain(hint) -> str:
    """A plain type or union of types as words."""
    return " or ".join(getattr(h, "__name__", str(h)) for h in typing.get_args(hint) or (hint,)).replace(
        "NoneType", "None"
    )
