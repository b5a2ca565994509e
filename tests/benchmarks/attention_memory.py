"""How much memory full and tiled attention need as n grows, forward and backward.

    python tests/benchmarks/attention_memory.py

Peak of what numpy allocates while the call runs, results included (tracemalloc sees numpy's arrays), in MiB. The full
form holds n × n matrices, so doubling n multiplies its peak by 4; the tiled form holds one tile, so by 2.
"""

import tracemalloc

import numpy as np

from derived.ops.attention import attention_vjp
from derived.ops.tiled import tiled_attention_vjp

D_K, MIB = 64, 2**20
LENGTHS = (512, 1024, 2048, 4096)


def peak(vjp, arrays, do):
    """The most that was held at once above what was there before, forward and backward, in MiB."""
    tracemalloc.start()
    vjp(*arrays)[1](do)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / MIB


def main():
    print(f"one head, d_k = d_v = {D_K}, float32, numpy {np.__version__}; peak MiB, forward and backward")
    print(f"{'n':>6} {'n × n MiB':>10} {'full MiB':>10} {'growth':>8} {'tiled MiB':>10} {'growth':>8}")
    before = (None, None)
    for n in LENGTHS:
        rng = np.random.default_rng(n)
        *arrays, do = (rng.normal(size=(n, D_K)).astype(np.float32) for _ in range(4))
        now = tuple(peak(vjp, arrays, do) for vjp in (attention_vjp, tiled_attention_vjp))
        growth = [f"×{a / b:.2f}" if b else "" for a, b in zip(now, before, strict=True)]
        row = f"{n:>6} {4 * n * n / MIB:>10.1f} {now[0]:>10.1f} {growth[0]:>8} {now[1]:>10.1f} {growth[1]:>8}"
        print(row, flush=True)
        before = now


if __name__ == "__main__":
    main()
