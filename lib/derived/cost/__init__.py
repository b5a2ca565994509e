"""What a transformer costs: parameters, FLOPs, bytes and lower bounds on time, as plain formulas.

Every formula takes sizes by their letter (`derived.shapes`) and works on Python ints (exact, whatever the size),
floats, numpy arrays and sympy symbols, so that a number in a table, the LaTeX in a text and the expression
behind a slider come from one function. One multiply-add is one MAC, two FLOPs; a function's name says which it
returns. Importing this package imports neither numpy nor torch nor sympy.

Chapters: 8 to 13 and 16.
"""
