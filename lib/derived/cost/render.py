"""One function, three forms: its number, its LaTeX, and the expression that a figure computes in the page.

A formula is called with symbols for its parameters, letters and LaTeX from `derived.shapes`; what comes out is
printed as LaTeX or as a Vega expression (the part of JavaScript that Vega evaluates). The text and the slider can
therefore not drift from the table.

Vega computes in doubles: whole numbers are exact up to 2^53 = 9,007,199,254,740,992, intermediate products
included, and a whole result of whole sizes below that is exact, since divisions are printed last. Beyond, the last
digits are lost; Python's ints are exact at any size.

Chapters: 10 to 13.
"""

import math

from derived.errors import DerivedError, DtypeError
from derived.shapes import LETTERS

_READING_ORDER = (
    *("B", "P", "L", "t", "p", "u", "r", "n", "m", "w", "h", "h_kv", "n_vocab"),
    *("d_model", "d_in", "d_k", "d_v", "d_ff", "d_out", "B_q", "B_t", "b"),
)
"""The order in which a product's letters are read: counts before widths, 12 L n h d_k."""

EXACT_BELOW = 2**53
"""Whole numbers up to here are exact in a page's arithmetic."""


def letter(name: str):
    """The sympy symbol of a size of `derived.shapes`: a positive integer, `b` a positive number.

    Raises DerivedError for a name that is no size in the table.
    """
    from sympy import Symbol  # the package imports without sympy; only who renders pays for it

    row = LETTERS.get(name)
    if row is None or row.kind not in ("size", "bytes"):
        raise DerivedError(f"{name!r} is no size in derived.shapes.LETTERS; fix it with {name}=… or add its row there.")
    return Symbol(name, positive=True, integer=row.kind == "size" or None)


def expression(formula, **fixed):
    """The formula as a sympy expression: each parameter its letter, unless fixed to a number or another expression.

        expression(core_macs, pairs=full_pairs(letter("n"), letter("n")), d_v=letter("d_k"))   →   2 n² h d_k

    `formula` is any function whose parameters are letters; parameters with a default keep it.

    Raises DerivedError for a parameter that is neither a letter nor fixed, and for a fixed name it does not take.
    """
    import inspect

    from sympy import sympify

    parameters = inspect.signature(formula).parameters
    if unknown := sorted(fixed.keys() - parameters.keys()):
        raise DerivedError(f"the formula takes {', '.join(parameters)}; it has no {', '.join(unknown)} to fix.")
    keywords, positional = dict(fixed), []
    for name, parameter in parameters.items():
        if name not in keywords and parameter.default is parameter.empty:
            keywords[name] = letter(name)
        if parameter.kind is not parameter.KEYWORD_ONLY and name in keywords:
            positional.append(keywords.pop(name))
    return sympify(formula(*positional, **keywords))


def latex(formula, **fixed) -> str:
    """The formula in LaTeX, letters as the notation table writes them, factors in reading order (L n h d_k).

    Arguments and errors as `expression`.
    """
    from sympy import Symbol
    from sympy import latex as sympy_latex

    value, names, stands_for = expression(formula, **fixed), {}, {}
    for symbol in value.free_symbols:
        rank = _READING_ORDER.index(symbol.name) if symbol.name in _READING_ORDER else len(_READING_ORDER)
        # sympy orders factors by name, so each letter goes by its rank and is written as itself
        stands_for[symbol] = Symbol(f"x{rank:02}_{symbol.name}", **symbol.assumptions0)
        names[stands_for[symbol]] = LETTERS[symbol.name].latex if symbol.name in LETTERS else sympy_latex(symbol)
    return sympy_latex(_one_fraction(value.xreplace(stands_for)), symbol_names=names)


def vega(formula, names: dict[str, str] | None = None, **fixed) -> str:
    """The formula as an expression for Vega or Vega-Lite: a param's `expr`, a `calculate` transform.

    `names` maps letters to what the page calls them, {"n": "datum.n"}; the rest stand as they are and must be
    params of the chart. Uses + - * / %, floor, ceil, min, max, abs, pow, sqrt, log and exp: all of it is also
    JavaScript after `with (Math)`. Numbers are doubles, exact up to EXACT_BELOW.

    Raises DtypeError for a function that Vega's expressions do not have; otherwise as `expression`.
    """
    return _print(_one_fraction(expression(formula, **fixed)), names or {})


def _one_fraction(value):
    """A sum of fractions over one bar: sympy spreads a quotient over a sum; together it is read, and rounded, once."""
    from sympy import denom, together

    spread = value.is_Add and any(denom(term) != 1 for term in value.args)
    return together(value) if spread else value


_CALLS = {"floor": "floor", "ceiling": "ceil", "Min": "min", "Max": "max", "Abs": "abs", "log": "log", "exp": "exp"}


def _print(node, names) -> str:
    """The expression as text, every operation in parentheses where JavaScript's precedence would need them."""
    if node.is_Symbol:
        return names.get(node.name, node.name)
    if node.is_Integer:
        return str(int(node)) if node >= 0 else f"({int(node)})"
    if node.is_Rational:
        return f"({node.p} / {node.q})"
    if node.is_number and node.is_real and not node.args:
        return repr(float(node))  # a float, π, e
    if node.is_Add:
        return _print_sum(node, names)
    if node.is_Mul:
        return _print_product(node, names)
    if node.is_Pow:
        return _print_power(node, names)
    kind = type(node).__name__
    if kind == "Mod":
        return "({} % {})".format(*(_print(part, names) for part in node.args))
    if kind in _CALLS:
        return f"{_CALLS[kind]}({', '.join(sorted(_print(part, names) for part in node.args))})"
    raise DtypeError(f"{kind} in {node} has no counterpart in Vega's expressions; {', '.join(_CALLS.values())} have.")


def _print_sum(node, names) -> str:
    """Terms joined by their signs, a positive one first where there is one."""
    terms = sorted(node.as_ordered_terms(), key=lambda term: term.could_extract_minus_sign())
    text = _print(terms[0], names)
    for term in terms[1:]:
        minus = term.could_extract_minus_sign()
        text += f" - {_print(-term, names)}" if minus else f" + {_print(term, names)}"
    return f"({text})"


def _print_product(node, names) -> str:
    """Numerator before denominator, so that n (n + 1) / 2 stays whole; 1/2 n (n + 1) would, 1/6 would not."""
    above, below = node.as_numer_denom()
    if below == 1:
        return "(" + " * ".join(_print(factor, names) for factor in _factors(above)) + ")"
    return f"({_print(above, names)} / {_print(below, names)})"


def _factors(node):
    """Factors of a product in reading order, its number first."""
    return node.as_ordered_factors() if node.is_Mul else [node]


def _print_power(node, names) -> str:
    """A whole power as a product (exact below 2^53, which pow need not be), a root as sqrt, the rest as pow."""
    base, exponent = node.args
    if exponent.is_Integer and 2 <= exponent <= 4:
        return "(" + " * ".join([_print(base, names)] * int(exponent)) + ")"
    if exponent.is_negative:
        return f"(1 / {_print(base**-exponent, names)})"
    if exponent.is_Rational and exponent.p == 1 and exponent.q == 2:
        return f"sqrt({_print(base, names)})"
    if base == math.e:
        return f"exp({_print(exponent, names)})"
    return f"pow({_print(base, names)}, {_print(exponent, names)})"
