"""Chapter 11: tiles of one row arriving, merged by the library."""

from functools import reduce

import numpy as np

from derived.ops.online import finish, merge, partial_attention
from tests.site.figures.row import Figure

SCORES = (1.0, -0.5, 2.0, 0.5, 3.0, 1.5, -1.0, 4.0, 0.0, 2.5, 1.0, -2.0)
RUNS = (1, 0, 4, 2, 6, 1, 0, 4, 1, 0, 2, 3)


def numbers(arrived, peak):
    """The triple of the tiles that have arrived, what the last of them did to the sums before it, and the output."""
    s, runs = np.array(SCORES)[None], np.array(RUNS, dtype=float)[:, None]
    s[0, 7] = peak
    nothing = partial_attention(s[:, :0], runs[:0])
    parts = [partial_attention(s[:, j : j + 3], runs[j : j + 3]) for j in range(0, 3 * arrived, 3)]
    total = reduce(merge, parts, nothing)
    before = reduce(merge, parts[:-1], nothing)
    return {
        "c_now": total.c.item(),
        "factor": np.exp(before.c - total.c).item() if arrived > 1 else 1.0,
        "l_now": total.l.item(),
        "o_now": total.o.item(),
        "out": finish(total)[0].item(),
    }


FIGURES = [
    Figure(
        page="book/11-flash-attention",
        name="online-softmax",
        settings=(
            {"arrived": 0, "peak": 4},
            {"arrived": 1, "peak": -3},
            {"arrived": 2, "peak": 4},
            {"arrived": 3, "peak": 6},
            {"arrived": 3, "peak": 2.5},
            {"arrived": 4, "peak": 10},
        ),
        numbers=numbers,
    )
]
