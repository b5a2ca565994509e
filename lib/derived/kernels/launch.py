"""What a launch needs besides the arrays: sizes of tiles for a device, padded widths, the device's own context."""

import contextlib
import math
from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """B_q queries by B_t keys in a tile; for the compiler, warps and stages of loads in flight.

    tested: the forward kernel's keys in a tile of which each pair is tested, for the test takes registers; 0 stands for
    half of B_t. It divides B_t.
    """

    B_q: int
    B_t: int
    warps: int
    stages: int
    tested: int = 0

    def options(self) -> dict[str, int]:
        """The tile as keyword arguments of a launch."""
        return {"B_q": self.B_q, "B_t": self.B_t, "num_warps": self.warps, "num_stages": self.stages}


# Compute capability -> widest head -> tile, for numbers of two bytes. A tile is as large as registers let it be: what
# spills is listed in tests/data/kernel-resources.json: from sm_80 on nothing but dK and dV at width 256 on sm_90. There
# wgmma takes no fewer than 64 keys, whose two sums of 64 × 256 fill half the registers; in the loop over whole tiles
# nothing is spilled, only some of what stays the same is read back.
TILES = {
    "forward": {
        90: {
            64: Tiles(128, 128, 8, 2),
            127: Tiles(128, 64, 8, 3),  # padded to 128: columns are tested too, and a larger tile would spill
            128: Tiles(128, 128, 8, 2, tested=32),
            256: Tiles(128, 32, 8, 2),
        },
        80: {64: Tiles(128, 128, 8, 2, tested=32), 128: Tiles(128, 32, 8, 3), 256: Tiles(64, 32, 8, 2)},
    },
    "dq": {
        90: {64: Tiles(128, 64, 8, 2), 128: Tiles(128, 64, 8, 2), 256: Tiles(64, 32, 8, 2)},
        80: {64: Tiles(128, 64, 8, 2), 128: Tiles(128, 32, 8, 2), 256: Tiles(32, 32, 8, 1)},
    },
    "dkv": {
        90: {64: Tiles(64, 128, 8, 2), 128: Tiles(32, 128, 8, 2), 256: Tiles(32, 64, 8, 2)},
        80: {64: Tiles(32, 64, 8, 2), 128: Tiles(32, 64, 8, 2), 256: Tiles(32, 32, 8, 1)},
    },
}
# Widest head -> tile where products run outside the tensor cores: float32, which is computed exactly, and GPUs before
# sm_80. At width 256 float32 takes up to 98 KiB of shared memory, which a T4 does not have.
SMALL = {
    "forward": {64: Tiles(32, 32, 8, 1), 256: Tiles(16, 32, 8, 1)},
    "dq": {64: Tiles(32, 32, 8, 1), 256: Tiles(16, 32, 8, 1)},
    "dkv": {64: Tiles(32, 16, 8, 1), 256: Tiles(32, 16, 8, 1)},
}
INTERPRETED_CACHE = 2**14
"""Bytes that the interpreter stands in for a second-level cache with: a few heads of the tests' sizes."""


def capability(x: torch.Tensor) -> int:
    """The compute capability of the tensor's device as 10 major + minor (T4 75, A100 80, H100 90); 0 for a CPU."""
    if x.device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(x.device)
    return 10 * major + minor


def tiles_for(kernel: str, device: int, width: int, size: int) -> Tiles:
    """The tile of "forward", "dq" or "dkv" on this device, for heads of `width` numbers of `size` bytes each.

    Devices between two rows take the lower one: sm_86, sm_89 and sm_120 hold less shared memory than sm_90.
    """
    small = size > 2 or device < 80
    table = SMALL[kernel] if small else TILES[kernel][90 if 90 <= device < 120 else 80]
    return next(tile for widest, tile in table.items() if width <= widest)


def padded(d: int) -> int:
    """The width of a tile that holds d columns: a power of two, at least the 16 of one tensor-core product."""
    return max(16, 1 << (d - 1).bit_length())


def arguments(q: torch.Tensor, k: torch.Tensor, window: int | None, scale: float | None) -> tuple[int, int, int, float]:
    """n, m, w and scale as every kernel takes them; a window wider than all positions is cut, so sums of it fit."""
    n, m, d_k = q.shape[-2], k.shape[-2], q.shape[-1]
    return n, m, min(window or 0, n + m), 1 / math.sqrt(d_k) if scale is None else float(scale)


def heads_together(x: torch.Tensor, y: torch.Tensor, heads: int, causal: bool) -> int:
    """How many of the `heads` take turns tile by tile: under a causal mask as many as fit in the cache on the chip.

    A causal mask makes tiles cost from one tile of keys to all of them. Were a head begun only when the one before has
    ended, the last head's tiles alone would fill the end, too few for all processors; with the longest tiles of many
    heads first, the short ones fill it (chapter 11 computes by how much). But programs that run side by side should
    read the same rows, so what they walk through, x and y, must fit in the second-level cache. Without the mask all
    tiles cost the same, and each head is finished before the next.
    """
    if not causal:
        return 1
    cache = torch.cuda.get_device_properties(x.device).L2_cache_size if x.device.type == "cuda" else INTERPRETED_CACHE
    held = (x.numel() + y.numel()) * x.itemsize
    return max(1, min(heads, heads * cache // max(1, held)))


def like(q: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A new (B, h, n, d) array whose heads lie inside its tokens if those of q do."""
    B, h, n, d = shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((B, n, h, d)).transpose(1, 2)
    return q.new_empty((B, h, n, d))


def on(x: torch.Tensor):
    """The context in which kernels are launched on the tensor's own device, where there are several."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext()
