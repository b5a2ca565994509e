"""What a launch needs besides the arrays: sizes of tiles for a device, padded widths, the device's own context."""

import contextlib
import math
from typing import NamedTuple

import torch


class Tiles(NamedTuple):
    """B_q queries by B_t keys in a tile, and how the compiler shall lay it out: warps, and stages of loads in flight."""

    B_q: int
    B_t: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """The tile as keyword arguments of a launch."""
        return {"B_q": self.B_q, "B_t": self.B_t, "num_warps": self.warps, "num_stages": self.stages}


def padded(d: int) -> int:
    """The width of a tile that holds d columns: a power of two, at least the 16 of one tensor-core product."""
    return max(16, 1 << (d - 1).bit_length())


def capability(x: torch.Tensor) -> int:
    """The compute capability of the tensor's device as 10 major + minor (T4 75, A100 80, H100 90), 0 for a CPU."""
    if x.device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(x.device)
    return 10 * major + minor


def forward_tiles(q: torch.Tensor, d_k: int, d_v: int) -> Tiles:
    """The tile of the forward kernel for this device, dtype and width."""
    return Tiles(32, 32, 4, 2)


def query_tiles_backward(q: torch.Tensor, d_k: int, d_v: int) -> Tiles:
    """The tile of the kernel for dQ."""
    return Tiles(32, 32, 4, 2)


def key_tiles_backward(q: torch.Tensor, d_k: int, d_v: int) -> Tiles:
    """The tile of the kernel for dK and dV."""
    return Tiles(32, 32, 4, 2)


def arguments(q: torch.Tensor, k: torch.Tensor, window: int | None, scale: float | None) -> tuple[int, int, int, float]:
    """n, m, w and scale as every kernel takes them; a window wider than all positions is cut, so that sums of it fit."""
    n, m, d_k = q.shape[-2], k.shape[-2], q.shape[-1]
    return n, m, min(window or 0, n + m), 1 / math.sqrt(d_k) if scale is None else float(scale)


def like(q: torch.Tensor, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """A new (B, h, n, d) array whose heads lie inside its tokens if those of q do."""
    B, h, n, d = shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((B, n, h, d)).transpose(1, 2)
    return q.new_empty(shape)


def on(x: torch.Tensor):
    """The context in which kernels are launched on the tensor's own device, where there are several."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext()
