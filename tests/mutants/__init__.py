"""Planted errors: each row of the table puts one error into a copy of the package, and a named test must catch it."""
