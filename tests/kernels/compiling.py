"""Compile a kernel for a GPU that is not there, and read what became of it: shared memory, registers, spills, products.

Triton brings its own assembler, so this needs neither a GPU nor a CUDA toolkit.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

NVIDIA = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_LIMIT = {75: 64 * 1024, 80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
"""Bytes of shared memory that one program may hold: T4, A100, the GeForce of three generations, H100 or H200."""


class Compiled(NamedTuple):
    """What one kernel needs on one device, the PTX it became, and how many products each unit computes."""

    shared: int
    registers: int
    spills: int
    ptx: str
    products: Counter


def compiled(kernel, types: dict, constants: dict, capability: int, warps: int, stages: int) -> Compiled:
    """Compile `kernel` for arguments of these types, addresses and strides divisible by 16, strides of 1 folded in."""
    names = [p.name for p in kernel.params]
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*") or (name.startswith("stride") and name not in constants)
    }
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=aligned)
    done = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages}
    )
    usage = resource_usage(done.asm["cubin"])
    return Compiled(
        done.metadata.shared, usage["REG"], usage["STACK"], done.asm["ptx"], products(done.asm["ttgir"])
    )  # fmt: skip


PRODUCT = re.compile(r"= tt(?:ng)?\.(?:warp_group_)?dot .* -> tensor<[^>#]*, (#\w+)>")
MMA = re.compile(r"^(#\w+) = #\S+\.nvidia_mma<\{versionMajor = (\d)", re.MULTILINE)


def products(ttgir: str) -> Counter:
    """How many products of tiles the program text has, by the unit that computes them: "wgmma", "mma" or "fma".

    The layout of a product's result says it: nvidia_mma of version 3 is Hopper's wgmma, an older one mma.sync, and
    every other layout stands for multiplications number by number. Triton 3.6 and 3.9 print it alike.
    """
    unit = {name: "wgmma" if version == "3" else "mma" for name, version in MMA.findall(ttgir)}
    return Counter(unit.get(layout, "fma") for layout in PRODUCT.findall(ttgir))


def serialised(ptx: str) -> bool:
    """Whether the assembler makes each wgmma wait for the one before, for which it gives a warning and no error."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source, tempfile.NamedTemporaryFile(suffix=".o") as out:
        source.write(ptx)
        source.flush()
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", source.name, "-o", out.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    return "serialized" in said.stdout + said.stderr


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What the assembled kernel takes of each resource; spilled registers lie on its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [NVIDIA / "cuobjdump", "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", text)}
