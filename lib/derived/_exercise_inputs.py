"""What the exercises are: every op and every formula by its name, and the inputs they are compared on."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import AbstractArray

import derived.cost
import derived.ops
from derived.errors import DerivedError
from derived.ops.activations import gelu_vjp
from derived.ops.positions.rotary import rotary_tables

SIZES = {"n": 5, "m": 7, "d_k": 11, "d_v": 13, "d_model": 17, "d_ff": 19, "d_in": 5, "d_out": 7, "n_vocab": 23, "r": 3}
BATCH = (2, 3)
# Sizes for cost formulas: no two alike, heads a multiple of KV heads; two sets, so that a constant cannot stand in.
COST_SIZES = [
    {
        "h": 6,
        "h_kv": 2,
        "n": 13,
        "m": 17,
        "d_model": 42,
        "d_k": 7,
        "d_v": 11,
        "d_ff": 101,
        "B": 3,
        "L": 5,
        "n_vocab": 97,
    },
    {
        "h": 15,
        "h_kv": 5,
        "n": 41,
        "m": 53,
        "d_model": 195,
        "d_k": 13,
        "d_v": 19,
        "d_ff": 211,
        "B": 2,
        "L": 7,
        "n_vocab": 89,
    },
]
COST_OTHER = [
    {"r": 3, "w": 11, "B_q": 4, "B_t": 6, "b": 2, "P": 10007, "pairs": 221, "d_in": 23, "d_out": 29, "ffn_matrices": 2},
    {"r": 5, "w": 17, "B_q": 6, "B_t": 4, "b": 4, "P": 20011, "pairs": 437, "d_in": 31, "d_out": 37, "ffn_matrices": 3},
]


class Case(NamedTuple):
    """One set of inputs, with the words that describe it."""

    words: str
    arguments: dict[Any, Any]  # by name, or by position where no name is known
    options: Mapping[str, Any] = MappingProxyType({})  # for functions that take them; others skip the case
    fixed: Mapping[str, Any] = MappingProxyType({})  # what the book's function must be told; yours if it takes it


def names() -> list[str]:
    """The names of all exercises, in alphabetical order."""
    offered = ops()
    with_gradient = [name for name in offered if f"{name}_vjp" in offered]
    return sorted({*offered, *(f"{name}_pullback" for name in with_gradient), *formulas()})


def _public(package) -> dict[str, Callable]:
    found: dict[str, Callable] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.rpartition(".")[2].startswith("_"):
            here = vars(importlib.import_module(module.name))
            found |= {n: f for n, f in here.items() if inspect.isfunction(f) and f.__module__ == module.name}
    return {name: function for name, function in found.items() if not name.startswith("_")}


def ops() -> dict[str, Callable]:
    """The public functions of `derived.ops` whose inputs can be drawn, by name."""
    return {name: f for name, f in _public(derived.ops).items() if name.removesuffix("_vjp") in OWN or _drawable(f)}


def _drawable(function: Callable) -> bool:
    """Whether every argument that it must be given is an array or has its value in FIXED."""
    if not hasattr(function, "__wrapped__"):
        return False
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    if any(getattr(_hint(p.annotation), "dim_str", "").startswith("...") for p in needed):
        return False  # a shape that the annotation leaves open cannot be drawn
    return all(p.name in FIXED if p.kind is p.KEYWORD_ONLY else _hint(p.annotation) is not None for p in needed)


def formulas() -> dict[str, Callable]:
    """The formulas of `derived.cost` that take nothing but letters with a size here, by name."""
    known = COST_SIZES[0] | COST_OTHER[0]
    found = {}
    for name, function in _public(derived.cost).items():
        if not hasattr(function, "__wrapped__"):
            continue  # not a formula of letters
        needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if needed and set(needed) <= set(known):
            found[name] = function
    return found


def named(name: str) -> tuple[Callable, list[Case]]:
    """The book's function of this name and the inputs to compare on; DerivedError if there is none."""
    offered, known = ops(), formulas()
    base = name.removesuffix("_pullback")
    if name in known:
        return known[name], _sizes(known[name])
    if base != name and f"{base}_vjp" in offered:
        vjp = offered[f"{base}_vjp"]
        return _gradients_of(vjp), [_with_upstream(case, vjp) for case in _inputs(offered[base], base)]
    if name in offered:
        return offered[name], _inputs(offered[name], name.removesuffix("_vjp"))
    near = [other for other in names() if name.split("_")[0] in other]
    raise DerivedError(
        f"There is no exercise {name!r}; " + (f"near it: {', '.join(near)}." if near else "see names().")
    )


def _inputs(function: Callable, name: str) -> list[Case]:
    """Inputs drawn from the annotations, and what EXTRA has for this name."""
    rng = np.random.default_rng(2017)
    parameters = inspect.signature(function).parameters.values()
    fixed = {p.name: FIXED[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in FIXED}
    drawn = {p.name: _draw(p.annotation, rng) for p in parameters if p.kind is not p.KEYWORD_ONLY}
    plain = Case("plain inputs", {n: a for n, a in drawn.items() if a is not None}, fixed=fixed)
    extra = [Case(words, *case) for words, case in EXTRA.get(name, lambda rng: {})(rng).items()]
    return extra if name in OWN else [plain, *extra]


def _hint(annotation):
    options = getattr(annotation, "__args__", (annotation,))
    return next((h for h in options if isinstance(h, type) and issubclass(h, AbstractArray)), None)


def _draw(annotation, rng):
    """An array for a jaxtyping annotation, alone or in a union; None for anything else, an open shape too."""
    hint = _hint(annotation)
    if hint is None or hint.dim_str.startswith("..."):
        return None
    shape: list[int] = []
    for letter in hint.dim_str.split():
        shape.extend(BATCH if letter.startswith(("*", "...")) else [SIZES.get(letter, 3)])
    kind = hint.dtypes[0]
    if kind.startswith("bool"):
        return rng.random(shape) < 0.7
    return rng.integers(0, SIZES["n_vocab"], shape) if "int" in kind else rng.normal(size=shape)


def _scores(rng):
    s = rng.normal(size=(2, 3, 7))
    gone = s.copy()
    gone[..., 2:5] = -np.inf
    return {
        "large scores (1000 is added)": ({"s": s + 1000},),
        "scores with −inf": ({"s": gone},),
    }


def _heads(rng):
    q, k, v = rng.normal(size=(2, 3, 5, 11)), rng.normal(size=(2, 3, 7, 11)), rng.normal(size=(2, 3, 7, 13))
    return {"a causal mask": ({"q": q, "k": k, "v": v}, {"causal": True})}


def _constant_row(rng):
    return {"a row whose entries are all equal": ({"x": np.full((2, 17), 3.0)},)}


def _heads_split(rng):
    return {"h = 3": ({"x": rng.normal(size=(2, 5, 21)), "h": 3},)}


def _rotary(rng):
    cos, sin = rotary_tables(np.arange(5), 22)
    arguments = {"x": rng.normal(size=(2, 3, 5, 22)), "cos": cos, "sin": sin}
    return {
        "halves turned together": (arguments, {}, {"interleaved": False}),
        "neighbours turned together": (arguments, {"interleaved": True}),
    }


# Inputs on which a mistake shows that plain ones would hide; a name in OWN takes no others.
EXTRA: dict[str, Callable] = {
    "softmax": _scores,
    "log_sum_exp": _scores,
    "attention": _heads,
    "layer_norm": _constant_row,
    "rms_norm": _constant_row,
    "rope": _rotary,
    "split_heads": _heads_split,
}
OWN = {"rope", "split_heads"}
FIXED = {"activation_vjp": gelu_vjp, "alpha": 6.0, "h": 3}
# What a mistake looks like on those inputs.
HINTS = {
    "large scores (1000 is added)": "Was the row's maximum subtracted before exp?",
    "scores with −inf": "A weight for −inf is 0, and −inf must not meet itself in a difference.",
    "a causal mask": "The book aligns causal to the last key: query i of n reads key j of m when j ≤ i + m − n.",
    "a row whose entries are all equal": "ε inside the root keeps such a row finite.",
}


def _sizes(formula: Callable) -> list[Case]:
    needed = inspect.signature(formula).parameters
    sets = [sizes | other for sizes, other in zip(COST_SIZES, COST_OTHER, strict=True)]
    cases = [{letter: sizes[letter] for letter in needed if letter in sizes} for sizes in sets]
    return [Case(", ".join(f"{letter} = {size}" for letter, size in case.items()), case) for case in cases]


def drawn_by(inputs: Callable | None) -> list[Case]:
    """Three sets of arguments that `inputs` makes of a generator."""
    if inputs is None:
        raise DerivedError("A function to compare with needs `inputs`: a function of a generator that gives arguments.")
    rng = np.random.default_rng(2017)
    drawn = [inputs(rng) for _ in range(3)]
    given = [
        one if isinstance(one, dict) else dict(enumerate(one if isinstance(one, tuple) else (one,))) for one in drawn
    ]
    return [Case(f"set {i} of inputs", arguments) for i, arguments in enumerate(given, start=1)]


def _gradients_of(vjp: Callable) -> Callable:
    def pullback(*arguments, **options):
        return vjp(*arguments[:-1], **options)[1](arguments[-1])

    return pullback


def _with_upstream(case: Case, vjp: Callable) -> Case:
    y, _ = vjp(*case.arguments.values(), **case.options, **case.fixed)
    return case._replace(arguments={**case.arguments, "the gradient that comes in": upstream(np.shape(y))})


def upstream(shape) -> np.ndarray:
    """The gradient that comes in from behind: without symmetry, so that no slip cancels."""
    return np.random.default_rng(2018).normal(size=shape)
