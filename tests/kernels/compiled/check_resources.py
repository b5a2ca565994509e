"""What the kernels become on GPUs that are not here: they compile, fit, do not spill, and use the tensor cores.

Spilled bytes are those of Triton 3.9's assembler; another Triton is held to the limits of the hardware only.
"""

import json

import pytest
import triton
import triton.language as tl

from tests.kernels.compiled.table import RECORD, need, rows
from tests.kernels.compiling import SHARED_LIMIT, compiled

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
ROWS = rows()
KNOWN = json.loads(RECORD.read_text(encoding="utf-8"))
SAME = triton.__version__ == KNOWN["triton"]
SPILLING = {"dkv sm_90 fp16 256 causal"}
"""What spills from sm_80 on, though never more than is recorded: `derived.kernels.launch` says why."""


@pytest.mark.parametrize("name", ROWS)
def test_it_fits_does_not_spill_and_uses_the_tensor_cores(name):
    kernel, device, dtype, *_ = ROWS[name]
    got = need(*ROWS[name])
    assert 0 < got.shared <= SHARED_LIMIT[device], f"{got.shared} bytes of shared memory"
    if device >= 80 and dtype != "fp32":
        product = "wgmma.mma_async" if device == 90 and kernel != "decode" else "mma.sync"
        assert product in got.ptx, f"no {product}: the products have left the tensor cores"
    if SAME and device >= 80 and dtype != "fp32" and name not in SPILLING:
        assert got.spills == 0, f"{got.spills} bytes of registers spilled"
    if SAME:
        known = KNOWN[name]
        assert got.spills <= known["spills"], f"{got.spills} bytes spilled, {known['spills']} before"
        assert got.shared <= known["shared"], f"{got.shared} bytes of shared memory, {known['shared']} before"


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkv", "decode"])
@pytest.mark.parametrize("on", [set(), {"CAUSAL", "WINDOWED"}], ids=["full", "causal window"])
def test_sizes_of_one_compile(kernel, on):
    # Triton folds an argument of 1 into the kernel, where it is no longer a tensor
    assert need(kernel, 80, "fp16", 16, on, ones=True).ptx


def test_every_row_is_recorded():
    assert set(KNOWN) == set(ROWS) | {"triton"}


def test_products_outside_the_tensor_cores_are_seen():
    assert "mma" not in need("forward", 90, "fp32", 64, set()).ptx


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
