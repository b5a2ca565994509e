"""Which tiles are fastest on this machine's GPU: candidates for each kernel beside those that `launch` chooses.

    python tests/benchmarks/gpu_tiles.py [--minutes 5] [--width 128] [--json tiles.json]

bfloat16, causal, 16,384 tokens in sequences of 4,096, h · d_k = 2,048. A candidate is timed if it compiles, fits in
shared memory and gives the numbers of the chosen tile. The fastest stands first.
"""

import itertools
import json
import time
from functools import partial

import torch
from gpu_attention import begun, inputs, milliseconds  # beside this file

from derived.kernels.launch import Tiles, capability, tiles_for

N, BYTES = 4096, 2
CANDIDATES = {
    "forward": itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4), (16, 32)),
    "dq": itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3)),
    "dkv": itertools.product((32, 64, 128), (64, 128), (4, 8), (1, 2, 3)),
}
"""B_q, B_t, warps, stages and, forward, the keys of a tested tile.

`dkv` walks through queries, so there B_t is the tile that a program owns.
"""


def calls(width):
    """Kernel -> a function of its tiles that launches it once and returns what it computes."""
    from derived.kernels.flash_backward import flash_backward
    from derived.kernels.flash_forward import flash_forward

    leaves, do = inputs(N, width)
    q, k, v = (x.detach() for x in leaves)
    chosen = {name: tiles_for(name, capability(q), width, BYTES) for name in CANDIDATES}
    o, lse = flash_forward(q, k, v, causal=True)
    back = partial(flash_backward, q, k, v, o, lse, do, causal=True)
    return chosen, {
        "forward": lambda tiles: flash_forward(q, k, v, causal=True, tiles=tiles)[:1],
        "dq": lambda tiles: back(tiles=(tiles, chosen["dkv"]))[:1],
        "dkv": lambda tiles: back(tiles=(chosen["dq"], tiles))[1:],
    }


def agree(mine, right):
    """Whether two results are the same but for rounding."""
    return all(
        torch.allclose(a, b, rtol=0, atol=2**-6 * b.abs().max().item()) for a, b in zip(mine, right, strict=True)
    )


def swept(call, chosen, candidates, stop):
    """Rows of (milliseconds, tiles), the fastest first, and what was left out, with the reason."""
    right = call(chosen)
    rows, left_out = [], []
    for tiles in dict.fromkeys([chosen, *itertools.starmap(Tiles, candidates)]):
        if time.monotonic() > stop:
            left_out.append((tiles, "no time left"))
            continue
        try:
            if not agree(call(tiles), right):
                left_out.append((tiles, "other numbers"))
                continue
            rows.append((milliseconds(partial(call, tiles), least=3, span=0.1), tiles))
        except Exception as error:  # the compiler and the launch fail in many ways, and each is worth a line
            left_out.append((tiles, str(error).split("\n")[0][:80]))
    return sorted(rows), left_out


def main():
    asked, about = begun(__doc__, minutes=5, width=128)
    found = {}
    started, (chosen, run) = time.monotonic(), calls(asked.width)
    for turn, (name, candidates) in enumerate(CANDIDATES.items(), start=1):
        stop = started + 60 * asked.minutes * turn / len(CANDIDATES)
        rows, left_out = swept(run[name], chosen[name], candidates, stop)
        print(f"\n{name}, width {asked.width}: milliseconds a call (dq and dkv: of the whole backward)")
        for ms, tiles in rows[:12]:
            print(f"  {ms:8.3f}  {tiles}{'  <- chosen' if tiles == chosen[name] else ''}", flush=True)
        print(f"  left out: {len(left_out)}")
        for tiles, why in left_out:
            print(f"    {tiles}: {why}")
        found[name] = {"rows": [(ms, *tiles) for ms, tiles in rows], "left_out": [str(x) for x in left_out]}
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({"versions": about, "width": asked.width, "kernels": found}, file, indent=1)


if __name__ == "__main__":
    main()
