"""Chapter 3: scores of 64 keys, spread by the square root of the head width or scaled to 1."""

import numpy as np

from derived.ops.softmax import log_softmax, softmax
from tests.site.figures.row import Figure

DRAW = np.sort(np.random.default_rng(64).normal(size=64))
STANDARD = np.round((DRAW - DRAW.mean()) / DRAW.std(), 4)


def spread(d_k, scaled):
    """Deviation of the scores, entropy and largest of their weights."""
    deviation = 1 if scaled else np.sqrt(d_k)
    s = deviation * STANDARD
    a = softmax(s)
    return {"deviation": deviation, "entropy": -np.sum(a * log_softmax(s)), "largest": a.max()}


FIGURES = [
    Figure(
        page="book/03-why-sqrt-dk",
        name="scores-spread",
        settings=(
            {"d_k": 64, "scaled": False},
            {"d_k": 64, "scaled": True},
            {"d_k": 1, "scaled": False},
            {"d_k": 256, "scaled": False},
        ),
        numbers=spread,
    )
]
