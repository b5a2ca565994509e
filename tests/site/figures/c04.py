"""Chapter 4: softmax as it stands in float32, and with the maximum subtracted."""

import numpy as np

from derived.ops.softmax import softmax
from tests.site.figures.row import Figure

SCORES = np.array([0.0, 1.0, 2.0, 4.0])


def both_forms(offset, T):
    """Sum of exponentials and largest weight, with float32's range on the left and the library on the right."""
    x = (SCORES + offset) / T
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        e = np.exp(x.astype(np.float32)).astype(np.float64)  # float32's range; the sum is the page's, in float64
        plain = e[-1] / e.sum()
    return {
        "plain_sum": e.sum(),
        "plain_weight": plain,
        "safe_sum": np.exp(x - x.max()).sum(),
        "safe_weight": softmax(x)[-1],
    }


FIGURES = [
    Figure(
        page="book/04-softmax-and-mask",
        name="softmax-range",
        settings=(
            {"offset": 0, "T": 1},
            {"offset": 84, "T": 1},
            {"offset": 85, "T": 1},
            {"offset": 40, "T": 0.4},
            {"offset": -200, "T": 1},
        ),
        numbers=both_forms,
    )
]
