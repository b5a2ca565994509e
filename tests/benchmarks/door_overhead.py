"""What the door costs on this machine's CPU: `derived.kernels.attention` beside torch's attention called directly.

    python tests/benchmarks/door_overhead.py

One thread, float32, forward, n = 1024. The two are called in turns, so that other work on the machine disturbs both
alike; the ratio is of medians. Square causal and unmasked calls must cost under 5 % more; what torch's lower-right
bias, a window and a mask cost is shown beside them: their rows are a call that torch does not have, over a square call
of the same size.
"""

import os
import statistics
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import torch
from torch.nn.functional import scaled_dot_product_attention

from derived import kernels

H, D_K, N, TURNS = 8, 64, 1024, 25


def seconds(call):
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def medians(ours, theirs):
    """The median of each, called in turns."""
    spans = [(seconds(ours), seconds(theirs)) for _ in range(TURNS + 2)][2:]
    return [statistics.median(span) for span in zip(*spans, strict=True)]


def main():
    torch.set_num_threads(1)
    print(f"h = {H}, d_k = d_v = {D_K}, n = {N}, float32, one thread, torch {torch.__version__}")
    print(f"{f'ms, medians of {TURNS}':<36} {'door':>8} {'torch':>8} {'ratio':>7}")
    seed = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn((1, H, N, D_K), generator=seed) for _ in range(3))
    q_1, k_1, v_1 = (x[..., : N - 1, :].contiguous() for x in (q, k, v))
    rows = {
        "unmasked": ((q, k, v), {}, {}),
        "causal, n = m": ((q, k, v), {"causal": True}, {"is_causal": True}),
        "causal, n = m − 1: lower-right bias": ((q_1, k, v), {"causal": True}, {"is_causal": True}),
        "causal, n = m + 1: a row of zeros": ((q, k_1, v_1), {"causal": True}, {"is_causal": True}),
        "causal window of 256": ((q, k, v), {"causal": True, "window": 256}, {"is_causal": True}),
    }
    with torch.no_grad():
        for name, (arrays, ours, theirs) in rows.items():
            mine, direct = medians(
                lambda arrays=arrays, ours=ours: kernels.attention(*arrays, **ours),
                lambda theirs=theirs: scaled_dot_product_attention(q, k, v, **theirs),
            )
            print(f"{name:<36} {1e3 * mine:>8.2f} {1e3 * direct:>8.2f} {mine / direct:>7.3f}", flush=True)
        small = tuple(x[..., :1, :8] for x in (q, k, v))
        mine, direct = medians(lambda: kernels.attention(*small), lambda: scaled_dot_product_attention(*small))
        print(f"one token: the door itself takes {1e6 * (mine - direct):.0f} µs a call")


if __name__ == "__main__":
    main()
