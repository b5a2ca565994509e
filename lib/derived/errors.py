"""Errors that speak: what was given, what was expected, and how to mend it."""


class DerivedError(ValueError):
    """The family of everything this package refuses; a ValueError, so callers need not know of it."""


class ShapeError(DerivedError):
    """An array's shape does not fit the formula, or the arrays do not fit each other."""


class DtypeError(DerivedError, TypeError):
    """An argument's type or an array's dtype is none that the formula is defined for."""
