"""Chapter 7: the gradient that arrives at the first block, measured and predicted."""

import numpy as np

from derived.model.block import post_norm_block_vjp, pre_norm_block_vjp
from derived.model.initialise import initial_block
from derived.model.stack import layers_trace
from tests.site.figures.row import Figure

KINDS = {"pre-norm": pre_norm_block_vjp, "post-norm": post_norm_block_vjp}


def at_the_first_block(kind, L):
    """Length of the gradient relative to the last block's, in a fresh stack; and the pre-norm law."""
    rng = np.random.default_rng(L)
    layers = [initial_block(rng, 32, h=4, d_ff=128) for _ in range(L)]
    x, dy = rng.normal(size=(2, 3, 8, 32))
    first = layers_trace(KINDS[kind], layers, x, dy=dy, h=4, causal=True).dxs[0]
    return {"measured": np.linalg.norm(first) / np.linalg.norm(dy), "predicted": np.sqrt(2 * L + 1)}


FIGURES = [
    Figure(
        page="book/07-residual-and-layernorm",
        name="gradient-by-depth",
        settings=(
            {"kind": "pre-norm", "L": 32},
            {"kind": "pre-norm", "L": 2},
            {"kind": "post-norm", "L": 8},
        ),
        numbers=at_the_first_block,
    )
]
