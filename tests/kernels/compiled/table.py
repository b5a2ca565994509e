"""Which kernels are compiled for which GPU, and what each needs: written to tests/data/kernel-resources.json.

    python -m tests.kernels.compiled.table

writes the file anew; do so when Triton changes, or when a kernel has become better.
"""

import json
import warnings
from pathlib import Path

import triton

from derived.kernels.decode import MOST_SPLITS, decode_kernel, decode_tiles, merge_kernel, merge_tile
from derived.kernels.flash_backward import flash_dkv_kernel, flash_dq_kernel
from derived.kernels.flash_forward import flash_forward_kernel
from derived.kernels.launch import Tiles, padded, tiles_for
from tests.kernels.compiling import Compiled, compiled

RECORD = Path(__file__).parents[2] / "data" / "kernel-resources.json"
KERNELS = {"forward": flash_forward_kernel, "dq": flash_dq_kernel, "dkv": flash_dkv_kernel}
SIZES = {"fp16": 2, "bf16": 2, "fp32": 4}


MANY_ROWS = (
    (80, "bf16", 128, 128), (86, "bf16", 128, 64), (86, "bf16", 128, 128), (86, "bf16", 256, 128),
    (90, "bf16", 128, 64), (90, "bf16", 128, 128), (90, "bf16", 256, 128), (120, "bf16", 128, 128),
    (86, "fp32", 256, 128), (75, "fp16", 64, 128), (75, "fp16", 128, 64), (75, "fp16", 256, 128),
)  # fmt: skip
"""Decoding with more queries than the 16 of the smallest tile: device, dtype, width, queries of a key head."""


def rows() -> dict[str, tuple]:
    """Name -> kernel, capability, dtype, width, what is switched on."""
    table = {}
    for device in (80, 90):
        for kernel in KERNELS:
            for width, dtype in ((64, "fp16"), (128, "bf16")):
                table[f"{kernel} sm_{device} {dtype} {width} causal"] = kernel, device, dtype, width, {"CAUSAL"}
        table[f"decode sm_{device} bf16 128"] = "decode", device, "bf16", 128, set()
    for kernel in KERNELS:
        table[f"{kernel} sm_90 bf16 128 full"] = kernel, 90, "bf16", 128, set()
    table["forward sm_90 bf16 128 ragged causal window"] = "forward", 90, "bf16", 128, {"RAGGED", "CAUSAL", "WINDOWED"}
    table["dkv sm_80 fp16 64 masked"] = "dkv", 80, "fp16", 64, {"MASKED"}
    for device in (80, 90):
        for kernel in KERNELS:
            table[f"{kernel} sm_{device} fp16 256 causal"] = kernel, device, "fp16", 256, {"CAUSAL"}
    table["forward sm_90 bf16 128 masked"] = "forward", 90, "bf16", 128, {"MASKED"}
    table["forward sm_90 fp16 96 causal"] = "forward", 90, "fp16", 96, {"CAUSAL"}
    table["forward sm_80 fp16 80 causal"] = "forward", 80, "fp16", 80, {"CAUSAL"}
    table["forward sm_75 fp16 64 causal"] = "forward", 75, "fp16", 64, {"CAUSAL"}
    table["dq sm_75 fp16 64 causal"] = "dq", 75, "fp16", 64, {"CAUSAL"}
    table["forward sm_80 fp32 64 causal"] = "forward", 80, "fp32", 64, {"CAUSAL"}
    table["paged decode sm_90 bf16 128"] = "decode", 90, "bf16", 128, {"PAGED"}
    table["decode sm_90 bf16 128 in one stretch"] = "decode", 90, "bf16", 128, {"ONE STRETCH"}
    table["decode sm_86 bf16 128"] = "decode", 86, "bf16", 128, set()
    table["decode sm_80 bf16 256"] = "decode", 80, "bf16", 256, set()
    table["decode sm_80 fp32 128"] = "decode", 80, "fp32", 128, set()
    table["decode sm_90 fp32 256"] = "decode", 90, "fp32", 256, set()
    for device, dtype, width, rows in MANY_ROWS:
        on = {"SEVERAL", "WINDOWED", f"{rows} ROWS"}
        table[f"decode sm_{device} {dtype} {width}, {rows} rows"] = "decode", device, dtype, width, on
    table["merge sm_80 bf16 128"] = "merge", 80, "bf16", 128, set()
    table["merge sm_90 fp32 256"] = "merge", 90, "fp32", 256, set()
    return table


ONES = ("n", "m", "w", "h", "h_kv", "group", "query_tiles", "key_tiles", "together", "splits")


def need(kernel: str, device: int, dtype: str, width: int, on: set[str], ones: bool = False) -> Compiled:
    """Compile one row; with `ones`, for sizes that are 1."""
    if kernel == "decode":
        rows = next((int(name.split()[0]) for name in on if name.endswith(" ROWS")), 1)
        decode = decode_tiles(rows, width, device, SIZES[dtype])
        given = {
            "WINDOWED": "WINDOWED" in on, "SEVERAL": "SEVERAL" in on, "PAGE": 16 if "PAGED" in on else 0,
            "D_K": width, "D_V": width, "P_K": padded(width), "P_V": padded(width),
            "ROWS": decode.ROWS, "B_t": decode.B_t,
        }  # fmt: skip
        given |= {} if "PAGED" in on else {"table": None}
        given |= {"lse": None} if "ONE STRETCH" in on else {}
        return build(decode_kernel, dtype, given, device, decode.warps, decode.stages, ones)
    if kernel == "merge":
        P_V, P_S, S_t = merge_tile(MOST_SPLITS, width)
        return build(merge_kernel, dtype, {"D_V": width, "P_V": P_V, "P_S": P_S, "S_t": S_t}, device, 4, 1, ones)
    tile: Tiles = tiles_for(kernel, device, width, SIZES[dtype])
    given = {name: name in on for name in ("CAUSAL", "WINDOWED", "MASKED", "RAGGED")}
    given |= {"D_K": width, "D_V": width, "P_K": padded(width), "P_V": padded(width), "B_q": tile.B_q, "B_t": tile.B_t}
    given |= {"TESTED": tile.tested or tile.B_t // 2} if kernel == "forward" else {}
    given |= {} if "MASKED" in on else {"mask": None}
    given |= {} if "RAGGED" in on else {"cu_q": None, "cu_k": None}
    return build(KERNELS[kernel], dtype, given, device, tile.warps, tile.stages, ones)


def build(kernel, dtype: str, constants: dict, device: int, warps: int, stages: int, ones=False) -> Compiled:
    """Compile a kernel whose arrays have this dtype and lie in memory with their widths innermost."""
    arrays = {"q", "k", "v", "o", "do", "dq", "dk", "dv"}
    single = {"lse", "delta", "shift", "parts"}
    single |= {"o"} if kernel is decode_kernel and "lse" not in constants else set()
    types = {}
    for name in (p.name for p in kernel.params):
        types[name] = "i32"
        if name in arrays:
            types[name] = f"*{dtype}"
        if name in single:
            types[name] = "*fp32"
        if name in ("cu_q", "cu_k", "table", "lengths"):
            types[name] = "*i32"
        types |= {"mask": "*u8", "scale": "fp32"} if name in ("mask", "scale") else {}
    inner = {name: 1 for name in types if name.startswith("stride_") and name.endswith("d")}
    inner |= {name: 1 for name in ONES if ones and name in types}
    return compiled(kernel, types, inner | constants, device, warps, stages)


def main() -> None:
    """Compile every row and write the record."""
    warnings.simplefilter("ignore")
    record = {"triton": triton.__version__}
    for name, row in rows().items():
        got = need(*row)
        record[name] = {"shared": got.shared, "registers": got.registers, "spills": got.spills}
        print(name, record[name], flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
