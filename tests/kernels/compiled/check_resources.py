"""What the kernels become on GPUs that are not here: they compile, fit, do not spill, and use the tensor cores.

Spilled bytes are those of Triton 3.9's assembler; another Triton is held to the limits of the hardware, and to the
same products on the same units.
"""

import json

import pytest
import triton
import triton.language as tl

from derived.kernels.flash_backward import add_queries, flash_dkv_kernel
from derived.kernels.launch import Tiles
from tests.kernels.compiled import table
from tests.kernels.compiled.table import KERNELS, RECORD, need, rows
from tests.kernels.compiling import SHARED_LIMIT, Compiled, compiled, serialised
from tests.support.mutants import exchanged

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
ROWS = rows()
KNOWN = json.loads(RECORD.read_text(encoding="utf-8"))
SAME = triton.__version__ == KNOWN["triton"]
SPILLING = {"dkv sm_90 fp16 256 causal"}
"""What spills from sm_80 on, though never more than is recorded: `derived.kernels.launch` says why."""
PRODUCTS = {"forward": 2, "dq": 3, "dkv": 4, "decode": 2, "merge": 0}
"""The products of tiles in one loop of each kernel: S and O; S, dA and dQ; S, dA, dV and dK; S and O; none."""
MANY_ROWS = {"64 ROWS", "128 ROWS"}
"""So many queries of a key head fill the 64 rows that wgmma takes."""
SCARCE = [(75, "fp16", 256), (75, "fp32", 128), (86, "fp16", 128), (86, "fp16", 256), (86, "fp32", 256)]
"""Device, dtype and width where tiles are largest beside what there is. sm_89 and sm_120 have the tiles and the memory
of sm_86, sm_80 has the same tiles and more memory, and bfloat16 takes what float16 takes."""


def check_products(kernel: str, device: int, dtype: str, on: set[str], got: Compiled):
    """Every product is computed by the fastest unit there is for it, and on sm_90 none waits for another."""
    loops = 2 if kernel in KERNELS and "MASKED" not in on else 1  # tiles that are not tested have a loop of theirs
    unit = "wgmma" if device == 90 and (kernel in KERNELS or on & MANY_ROWS) else "mma"
    if dtype == "fp32" or device < 80:
        unit = "fma"
    due = {unit: loops * PRODUCTS[kernel]} if PRODUCTS[kernel] else {}
    assert dict(got.products) == due, f"{dict(got.products)}, where {due} was due"
    assert unit != "wgmma" or not serialised(got.ptx), "each wgmma waits for the one before"


@pytest.mark.parametrize("name", ROWS)
def test_it_fits_does_not_spill_and_uses_the_tensor_cores(name):
    kernel, device, dtype, _, on = ROWS[name]
    got = need(*ROWS[name])
    assert 0 < got.shared <= SHARED_LIMIT[device], f"{got.shared} bytes of shared memory"
    check_products(kernel, device, dtype, on, got)
    if SAME and device >= 80 and dtype != "fp32" and name not in SPILLING:
        assert got.spills == 0, f"{got.spills} bytes of registers spilled"
    if SAME:
        known = KNOWN[name]
        assert got.spills <= known["spills"], f"{got.spills} bytes spilled, {known['spills']} before"
        assert got.shared <= known["shared"], f"{got.shared} bytes of shared memory, {known['shared']} before"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("device", "dtype", "width"), SCARCE)
def test_it_fits_where_shared_memory_is_scarce(kernel, device, dtype, width):
    got = need(kernel, device, dtype, width, {"CAUSAL"})
    assert 0 < got.shared <= SHARED_LIMIT[device], f"{got.shared} bytes of shared memory"


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkv", "decode"])
@pytest.mark.parametrize("on", [set(), {"CAUSAL", "WINDOWED"}], ids=["full", "causal window"])
def test_sizes_of_one_compile(kernel, on):
    # Triton folds an argument of 1 into the kernel, where it is no longer a tensor
    assert need(kernel, 80, "fp16", 16, on, ones=True).ptx


def test_every_row_is_recorded():
    assert set(KNOWN) == set(ROWS) | {"triton"}


@pytest.mark.parametrize("device", [80, 90])
def test_a_single_product_outside_the_tensor_cores_is_seen(device):
    right = "dk = tl.dot(dS.to(q_t.dtype), q_t, dk,"
    wrong = "dk = tl.dot(dS, q_t.to(tl.float32), dk,"  # float32 in full precision has no tensor core
    source = add_queries.src
    try:
        rewrite(add_queries, exchanged(source, right, wrong))
        got = need("dkv", device, "bf16", 64, {"CAUSAL"})
    finally:
        rewrite(add_queries, source)
    assert got.products["fma"] == 2 and "mma" in got.ptx
    with pytest.raises(AssertionError, match="was due"):
        check_products("dkv", device, "bf16", {"CAUSAL"}, got)


def rewrite(function, source):
    """Give a function of the dK and dV kernel another source; the kernel is then no longer the one compiled before."""
    function._unsafe_update_src(source)
    flash_dkv_kernel.hash = None


def test_a_wgmma_that_waits_is_seen(monkeypatch):
    monkeypatch.setattr(table, "tiles_for", lambda *_: Tiles(32, 128, 4, 2))  # two sums of 128 × 128 for four warps
    got = need("dkv", 90, "bf16", 128, {"CAUSAL"})
    with pytest.raises(AssertionError, match="waits"):
        check_products("dkv", 90, "bf16", {"CAUSAL"}, got)


@triton.jit
def spilling(q, o, N: tl.constexpr):
    """One warp that holds more numbers than it has registers."""
    at = tl.arange(0, N)
    x = tl.load(q + at[:, None] * N + at[None, :])
    y = tl.load(q + at[:, None] + at[None, :] * N + 1)
    for _ in range(0, 7):
        x = tl.exp2(x * y)
        y = y + x
    tl.store(o + at[:, None] * N + at[None, :], x / y)


def test_spills_are_seen():
    got = compiled(spilling, {"q": "*fp32", "o": "*fp32"}, {"N": 64}, 80, 1, 1)
    assert got.spills > 0
