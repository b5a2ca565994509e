"""How long attention takes on this machine's CPU, forward and backward: our ops on numpy and on torch, torch's own.

    python tests/benchmarks/attention_speed.py

One thread, float32, the least of several runs: a lower bound that other work on the machine disturbs least.
"""

import os
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import torch

from derived.ops.attention import attention_vjp
from derived.ops.tiled import tiled_attention_vjp

H, D_K, RUNS = 4, 64, 5
LENGTHS = (128, 512, 1024, 2048)


def least(run):
    """The shortest of several runs in milliseconds, after one that is not counted."""
    run()
    spans = []
    for _ in range(RUNS):
        started = time.perf_counter()
        run()
        spans.append(time.perf_counter() - started)
    return 1e3 * min(spans)


def ours(vjp, arrays, do):
    """Forward, and forward with backward, of an op with its own pullback."""
    return lambda: vjp(*arrays), lambda: vjp(*arrays)[1](do)


def torch_own(arrays, do):
    """The same of torch's attention with its autograd."""
    leaves = [x.clone().requires_grad_() for x in arrays]

    def forward():
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(*arrays)

    def both():
        torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*leaves), leaves, do)

    return forward, both


def main():
    torch.set_num_threads(1)
    print(f"h = {H}, d_k = d_v = {D_K}, float32, one thread, numpy {np.__version__}, torch {torch.__version__}")
    print(f"{'n':>6}  {'':<20} {'forward ms':>11} {'and backward ms':>16}")
    for n in LENGTHS:
        rng = np.random.default_rng(n)
        *arrays, do = (rng.normal(size=(H, n, D_K)).astype(np.float32) for _ in range(4))
        *tensors, t_do = (torch.from_numpy(x) for x in (*arrays, do))
        rows = {
            "ops on numpy": ours(attention_vjp, arrays, do),
            "ops on torch": ours(attention_vjp, tensors, t_do),
            "ops on numpy, tiled": ours(tiled_attention_vjp, arrays, do),
            "torch's own": torch_own(tensors, t_do),
        }
        for name, (forward, both) in rows.items():
            print(f"{n:>6}  {name:<20} {least(forward):>11.2f} {least(both):>16.2f}", flush=True)


if __name__ == "__main__":
    main()
