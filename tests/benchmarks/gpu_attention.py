"""How fast attention is on this machine's GPU, and what memory it takes: ours, torch's by named backend, FlexAttention.

    python tests/benchmarks/gpu_attention.py [--minutes 7] [--json figures.json]

One process. bfloat16, 16,384 tokens a call in sequences of n, h · d_k = 2,048; a figure is the median of several runs
timed by CUDA events. FLOPs are 4 B h n² d_k, half of that under a causal mask, and 2.5 times as many backward, whatever
a kernel really multiplies. Decode is set against the bandwidth that a copy reaches. What is most wanted comes first;
when the minutes are used up the rest is left out and said to be. Figures go to a JSON file if one is named.
"""

import argparse
import json
import statistics
import subprocess
import time
from contextlib import nullcontext
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from derived import kernels
from derived.cost.attention_memory import flash_training_bytes, plain_training_bytes
from derived.cost.cache import token_cache_bytes

TOKENS, WIDTH = 16384, 2048
LENGTHS = (1024, 2048, 4096, 8192, 16384)
FIRST, LATER = (16384, 4096, 1024), (8192, 2048)
"""The lengths at which FlexAttention is measured, each compiled for itself, and those that may be left out."""
TORCH = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cudnn": SDPBackend.CUDNN_ATTENTION}
EFFICIENT = {"torch efficient": SDPBackend.EFFICIENT_ATTENTION}
"""Asked in decoding too: which of torch's kernels takes a single query and grouped heads depends on its version."""
MIB, GIB = 2**20, 2**30


def milliseconds(call, least=5, span=0.15):
    """The median time of a call, after calls that are not counted, over about `span` seconds."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    runs = max(least, min(200, int(span / max(1e-6, time.perf_counter() - started))))
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for before, after in marks:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in marks)


def peak(call):
    """The most bytes held at once during a call, beyond those before it; results count."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


class Report:
    """Prints rows, keeps them for the file, and says how much time is left."""

    def __init__(self, minutes):
        self.stop, self.rows, self.left_out = time.monotonic() + 60 * minutes, [], []

    def late(self, what, seconds=5):
        """Whether there is no time for this any more; it is then said to be left out."""
        if time.monotonic() + seconds < self.stop:
            return False
        self.left_out.append(what)
        return True

    def add(self, **row):
        """Keep and print one row."""
        self.rows.append(row)
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def versions():
    """What the figures depend on."""
    import triton

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = (
            subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")[0].strip()
        )
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "triton": triton.__version__, "driver": driver,
    }  # fmt: skip


def inputs(n, d, seed=7):
    """q, k, v that want gradients, and the gradient of o: (TOKENS / n, WIDTH / d, n, d)."""
    make = torch.Generator("cuda").manual_seed(seed)
    shape = TOKENS // n, WIDTH // d, n, d
    arrays = [torch.randn(shape, generator=make, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    return [x.requires_grad_() for x in arrays[:3]], arrays[3]


def contender(name, n, causal):
    """The attention of this name as a function of q, k, v, and the context it runs in."""
    if name == "ours":
        return partial(kernels.attention, causal=causal, backend="triton"), nullcontext()
    if name in TORCH:
        return partial(scaled_dot_product_attention, is_causal=causal), sdpa_kernel(TORCH[name])
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # after eight shapes torch compiles no more of a function and runs it as it is
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
    return partial(torch.compile(flex_attention, dynamic=False), block_mask=mask), nullcontext()


def speed(report, d, lengths, names):
    """TFLOP/s, forward and backward, full and causal."""
    for n in lengths:
        for causal in (False, True):
            flops = 4 * TOKENS * n * WIDTH // (2 if causal else 1)
            for name in names:
                what = f"{name}, d_k = {d}, n = {n}, {'causal' if causal else 'full'}"
                if report.late(what, 45 if name == "flex" else 5):
                    continue
                leaves, do = inputs(n, d)
                try:
                    run, context = contender(name, n, causal)
                    with context:
                        with torch.no_grad():
                            forward = milliseconds(partial(run, *leaves))
                        o = run(*leaves)
                        backward = milliseconds(partial(torch.autograd.grad, o, leaves, do, retain_graph=True))
                except RuntimeError as error:
                    report.add(what=what, failed=str(error).split("\n")[0][:100])
                    continue
                report.add(
                    what=what, forward_tflops=flops / forward / 1e9, backward_tflops=2.5 * flops / backward / 1e9,
                    forward_ms=round(forward, 4), backward_ms=round(backward, 4),
                )  # fmt: skip


def bandwidth():
    """Bytes a second that a copy of 2 GiB reads and writes."""
    source = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source)) * 1e3


def decoding(report):
    """One new token a sequence: the bytes of the cache over the time, as a share of a copy's bandwidth."""
    copied = bandwidth()
    report.add(what="copy", gb_a_second=copied / 1e9)
    make = torch.Generator("cuda").manual_seed(7)
    for B, h, h_kv, m, d in ((16, 32, 8, 16384, 128), (1, 32, 8, 131072, 128), (64, 32, 8, 4096, 128)):
        q = torch.randn((B, h, 1, d), generator=make, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn((B, h_kv, m, d), generator=make, device="cuda", dtype=torch.bfloat16) for _ in "kv")
        lengths = torch.full((B,), m, dtype=torch.int32, device="cuda")
        size = B * m * token_cache_bytes(L=1, h_kv=h_kv, d_k=d, b=2)
        calls = {
            "ours in one piece": (partial(kernels.cached_attention, q, k, v, lengths, backend="triton"), nullcontext)
        }
        for page in (16, 64, 256):
            count = m // page
            table = torch.randperm(B * count, generator=make, device="cuda").to(torch.int32).reshape(B, count)
            # a page holds its rows one after the other, heads inside: (pages, PAGE, h_kv, d), heads then moved forward
            pages = [x.transpose(1, 2).reshape(B * count, page, h_kv, d).transpose(1, 2) for x in (k, v)]
            call = partial(kernels.paged_attention, q, *pages, table, lengths, backend="triton")
            calls[f"ours in pages of {page}"] = call, nullcontext
        for name, backend in (TORCH | EFFICIENT).items():
            call = partial(scaled_dot_product_attention, q, k, v, enable_gqa=True)
            calls[name] = call, partial(sdpa_kernel, backend)
        for name, (call, context) in calls.items():
            what = f"decode, {name}, B = {B}, m = {m}"
            if report.late(what):
                continue
            try:
                with torch.no_grad(), context():
                    spent = milliseconds(call)
            except RuntimeError as error:
                report.add(what=what, failed=str(error).split("\n")[0][:100])
                continue
            report.add(what=what, percent_of_copy=100 * size / spent * 1e3 / copied, ms=round(spent, 4))
        del calls, pages


def memory(report):
    """Peak memory of forward and backward against what the formulas of the book predict."""
    for n in (1024, 4096, 16384):
        d, h, b = 128, 16, 2
        make = torch.Generator("cuda").manual_seed(7)
        leaves = [torch.randn((1, h, n, d), generator=make, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        leaves, do = [x.requires_grad_() for x in leaves], torch.ones_like(leaves[0])

        def both(run, leaves=leaves, do=do):
            return torch.autograd.grad(run(*leaves), leaves, do)

        tiled = flash_training_bytes(n=n, m=n, h=h, h_kv=h, d_k=d, d_v=d, b=b)
        measured = peak(partial(both, partial(kernels.attention, causal=True, backend="triton")))
        report.add(what=f"memory, ours, n = {n}", predicted_mib=tiled / MIB, measured_mib=measured / MIB)
        if n > 4096:
            continue  # the plain form would take gibibytes

        def plainly(q, k, v, scale=d**-0.5):
            return torch.softmax(q @ k.mT * scale, -1) @ v

        written_out = plain_training_bytes(n=n, m=n, h=h, d_k=d, d_v=d, b=b)
        measured = peak(partial(both, plainly))
        report.add(what=f"memory, plain, n = {n}", predicted_mib=written_out / MIB, measured_mib=measured / MIB)


def begun(about, minutes, **numbers):
    """What was asked for on the command line, and the versions, printed; ends the script where there is no GPU."""
    read = argparse.ArgumentParser(description=about.split("\n")[0])
    read.add_argument("--minutes", type=float, default=minutes)
    for name, value in numbers.items():
        read.add_argument(f"--{name}", type=int, default=value)
    read.add_argument("--json")
    asked = read.parse_args()
    if not torch.cuda.is_available():
        print("gpu: no CUDA GPU on this machine; nothing was measured")
        raise SystemExit
    found = versions()
    print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    return asked, found


def main():
    asked, about = begun(__doc__, minutes=7)
    report = Report(asked.minutes)
    names = ["ours", *TORCH]
    speed(report, 128, LENGTHS, names)
    decoding(report)
    memory(report)
    speed(report, 64, LENGTHS, names)
    for lengths in (FIRST, LATER):
        for d in (128, 64):
            speed(report, d, lengths, ["flex"])
    if report.left_out:
        print("left out for want of time:", *report.left_out, sep="\n  ")
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({"versions": about, "rows": report.rows, "left_out": report.left_out}, file, indent=1)


if __name__ == "__main__":
    main()
