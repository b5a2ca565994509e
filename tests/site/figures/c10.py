"""Chapter 10: the crossing, and the two memories beside it."""

from derived.cost import crossing, flops, pairs
from derived.cost.memory import GIB, token_bytes
from derived.cost.spec.model import Cache
from tests.site.figures.row import Figure

FFN = {0: (2, 4), 1: (3, 2.6875), 2: (3, 3.5), 3: (3, 5)}  # matrices, d_ff / d_model


def numbers(n, d_model, ffn, causal, group):
    """What the figure shows of a layer with heads of width 128."""
    h, (ffn_matrices, ratio) = d_model // 128, FFN[ffn]
    widths = {"h": h, "d_k": 128, "d_v": 128}
    network = {"d_model": d_model, "d_ff": round(ratio * d_model), "ffn_matrices": ffn_matrices}
    X = crossing.crossing_tokens(**network, **widths)
    together = crossing.crossing_tokens_with_projections(h_kv=h // group, **network, **widths)
    read = pairs.causal_pairs(n, n) if causal else pairs.full_pairs(n, n)
    core = flops.core_macs(pairs=read, **widths)
    scores = 2 * h * n * n
    cache = n * token_bytes(Cache("heads", h // group, 128, 128), "fp16")
    return {
        "core": float(crossing.causal_crossing_tokens(X) if causal else X),
        "sublayer": float(crossing.causal_crossing_tokens(together) if causal else together),
        "ratio": core / (ffn_matrices * flops.linear_macs(n, d_model, network["d_ff"])),
        "scores": scores / GIB,
        "cache": cache / GIB,
        "memories": scores / cache,
    }


FIGURES = [
    Figure(
        page="book/10-the-flop-crossing",
        name="flop-crossing",
        settings=(
            {"n": 16384, "d_model": 4096, "ffn": 0, "causal": False, "group": 1},
            {"n": 2048, "d_model": 4096, "ffn": 2, "causal": True, "group": 4},
            {"n": 131072, "d_model": 16384, "ffn": 3, "causal": True, "group": 8},
            {"n": 5120, "d_model": 7168, "ffn": 1, "causal": False, "group": 8},
        ),
        numbers=numbers,
    )
]
