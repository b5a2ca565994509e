"""What every cost formula shares: sizes are checked, whole numbers stay exact, one quotient for every kind.

A formula is one expression. `@formula` lets it take ints, floats, Fractions, numpy arrays and sympy
expressions, and refuses what would give a wrong number in silence: a size below one, a nan, a fixed-width
integer that overflows.
"""

import functools
import sys

from derived.errors import DerivedError, DtypeError

INT64_MAX = 2**63 - 1


def formula(function):
    """Check the sizes given to `function` by its parameters' names, and keep whole numbers exact.

    Fixed-width integers (numpy scalars and arrays) are computed as Python ints; whole results of such arrays come
    back as int64, fractions as float64. Parameters whose default is False or True are switches and arrive as 0 or 1.

    Raises DerivedError for a size that is not positive or not finite and for heads that do not divide among
    KV heads; DtypeError for a type no formula is defined for and for an array whose result needs more than 64 bits.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    switches = {name: value for name, value in (function.__kwdefaults__ or {}).items() if isinstance(value, bool)}

    @functools.wraps(function)
    def checked(*args, **kwargs):
        if len(args) > code.co_argcount:
            return function(*args, **kwargs)  # Python's own TypeError: sizes after the first few go by their letter
        given = dict(zip(names, args, strict=False)) | kwargs
        narrow = any(_is_fixed_width(value) and value.ndim for value in given.values())
        given = switches | given
        sizes = {name: int(value) if name in switches else _exact(name, value) for name, value in given.items()}
        _check_heads(sizes)
        positional = [sizes.pop(name) for name in names[: len(args)]]
        result = function(*positional, **sizes)
        return _narrow(function.__name__, result) if narrow else result

    return checked


def quotient(a, b):
    """a / b, exact where it can be: an int if whole, a Fraction if not, a float or an expression as given."""
    if isinstance(a, int) and isinstance(b, int):
        if a % b == 0:
            return a // b
        from fractions import Fraction  # not at the top: a cold start of the command line is measured

        return Fraction(a, b)
    if _is_object_array(a) or _is_object_array(b):
        return _numpy().frompyfunc(quotient, 2, 1)(a, b)
    return a / b


def least(a, b):
    """min(a, b), element by element on arrays, Min(a, b) on symbols."""
    if is_symbolic(a) or is_symbolic(b):
        return sys.modules["sympy"].Min(a, b)
    return _numpy().minimum(a, b) if _is_array(a) or _is_array(b) else min(a, b)


def greatest(a, b):
    """max(a, b), element by element on arrays, Max(a, b) on symbols."""
    if is_symbolic(a) or is_symbolic(b):
        return sys.modules["sympy"].Max(a, b)
    return _numpy().maximum(a, b) if _is_array(a) or _is_array(b) else max(a, b)


def tiles(n, size):
    """⌈n / size⌉, the tiles that cover n."""
    if is_symbolic(n) or is_symbolic(size):
        return sys.modules["sympy"].ceiling(n / size)
    return -(-n // size)


def is_symbolic(value) -> bool:
    """Whether the value is a sympy expression."""
    return hasattr(value, "free_symbols")


def _numpy():
    return sys.modules["numpy"]  # an array is at hand, so numpy is loaded


def _is_array(value) -> bool:
    return "numpy" in sys.modules and isinstance(value, _numpy().ndarray)


def _is_object_array(value) -> bool:
    return _is_array(value) and value.dtype == object


def _is_fixed_width(value) -> bool:
    if "numpy" not in sys.modules or not isinstance(value, _numpy().ndarray | _numpy().generic):
        return False
    return value.dtype.kind in "iu"


def _exact(name, value):
    """The value as the formula may use it, or the sentence that refuses it."""
    if _is_fixed_width(value):
        value = value.astype(object) if value.ndim else int(value)
    if _is_array(value):
        if value.dtype.kind not in "fO":
            raise DtypeError(f"{name} is an array of {value.dtype}; a size is a whole or a real number.")
        for element in value.flat:
            _check_size(name, element)
    else:
        _check_size(name, value)
    return value


def _check_size(name, value) -> None:
    if is_symbolic(value):
        if value.is_positive is False:
            raise DerivedError(f"{name} = {value} cannot be positive; a size is at least 1.")
        return
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        kind = type(value).__name__
        raise DtypeError(f"{name} = {value!r} is a {kind}; give an int, a float, a numpy array or a sympy symbol.")
    if type(value).__module__.partition(".")[0] not in ("builtins", "fractions", "numpy"):
        raise DtypeError(f"{name} is a {type(value).__module__}.{type(value).__name__}; give its number, int({name}).")
    if not 0 < value < float("inf"):
        raise DerivedError(f"{name} = {value}; a size is positive and finite.")


def _check_heads(sizes) -> None:
    h, h_kv = sizes.get("h"), sizes.get("h_kv")
    if isinstance(h, int) and isinstance(h_kv, int) and h % h_kv:
        raise DerivedError(
            f"h = {h} query heads do not divide among h_kv = {h_kv} KV heads; each KV head serves h / h_kv query heads."
        )


def _narrow(name, result):
    """An array of exact results as int64 or float64; what does not fit is refused, never wrapped around."""
    if not _is_object_array(result):
        return result
    values = list(result.flat)
    if all(isinstance(value, int) for value in values):
        worst = max(values, key=abs, default=0)
        if abs(worst) > INT64_MAX:
            raise DtypeError(f"{name} gives {worst}, more than 64 bits hold; give the sizes with dtype=object.")
        return result.astype("int64")
    return result if any(is_symbolic(value) for value in values) else result.astype("float64")
