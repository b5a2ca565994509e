"""Chapter 5: the Jacobian of softmax under a logit scale."""

import numpy as np

from derived.ops.softmax import log_softmax, softmax_vjp
from tests.site.figures.row import Figure


def jacobian(beta, keys):
    """Norm of the Jacobian, column by column from the pullback, and entropy, of evenly spread scores."""
    s = beta * np.linspace(-1, 1, keys)
    a, _ = softmax_vjp(s)
    _, pullback = softmax_vjp(np.tile(s, (keys, 1)))
    return {"norm": np.linalg.norm(pullback(np.eye(keys))), "entropy": -np.sum(a * log_softmax(s))}


FIGURES = [
    Figure(
        page="book/05-the-gradient",
        name="softmax-jacobian",
        settings=(
            {"beta": 0, "keys": 4},
            {"beta": 5.5, "keys": 16},
            {"beta": 1.75, "keys": 3},
            {"beta": 30, "keys": 16},
        ),
        numbers=jacobian,
    ),
]
