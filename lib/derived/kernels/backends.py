"""Who computes attention: the choice between the kernels and torch's own attention, made out loud."""

import importlib.util
import math
import os
import sys
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from derived.errors import DerivedError, DtypeError, ShapeError

HALF = (torch.float16, torch.bfloat16)
WIDEST = 256
"""The widest head a tile is laid out for."""
NARROW = 128
"""The widest head in float32 that fits in the 64 KiB of shared memory of a GPU before sm_80."""


class Choice(NamedTuple):
    """A backend by its name, and why it was taken."""

    backend: str
    why: str


def choice(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Choice:
    """The backend that computes attention of these arrays; DerivedError if the one asked for cannot."""
    if backend == "torch":
        return Choice("torch", "asked for by name")
    if backend == "triton":
        if hurdle := _no_kernel(q, v):
            raise DerivedError(f'attention: backend = "triton", but {hurdle}; ask for "torch" or "auto".')
        return Choice("triton", "asked for by name")
    if backend != "auto":
        raise DerivedError(f'attention: backend = {backend!r}; the backends are "auto", "triton" and "torch".')
    if q.device.type != "cuda":
        return Choice("torch", f"q lies on the device {q.device.type}, and the kernels run on CUDA GPUs")
    if hurdle := _no_kernel(q, v):
        return Choice("torch", hurdle)
    if _interpreted():
        return Choice("torch", "Triton interprets in this process, and would compute on the CPU")
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return Choice("torch", "before sm_80 Triton uses no tensor cores, and torch's own attention is faster")
    if q.dtype == torch.float32:
        return Choice("torch", "the kernels multiply float32 exactly, which no tensor core does")
    return Choice("triton", "a CUDA GPU of sm_80 or newer, and a dtype and width that the kernels take")


def _no_kernel(q: Tensor, v: Tensor) -> str | None:
    """What keeps the kernels from running on these arrays, in words; None if nothing does."""
    if q.dtype not in (*HALF, torch.float32):
        return f"the kernels take float16, bfloat16 and float32, and q is {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return f"the kernels take heads up to {WIDEST} wide, and d_k = {q.shape[-1]}, d_v = {v.shape[-1]}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (it exists for Linux only)"
    interpreted = _interpreted()
    if q.device.type == "cuda" and torch.version.hip:
        return "the kernels are laid out for NVIDIA's GPUs, and this torch is built for AMD's"
    if q.device.type != "cuda" and not interpreted:
        return f"q lies on the device {q.device.type}, and the kernels run on CUDA GPUs"
    if q.dtype == torch.bfloat16 and interpreted:
        return "Triton's interpreter computes bfloat16 wrongly"
    if q.dtype == torch.bfloat16 and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "GPUs before sm_80 have no bfloat16: take float16"
    wide = q.dtype == torch.float32 and max(q.shape[-1], v.shape[-1]) > NARROW
    if wide and q.device.type == "cuda" and torch.cuda.get_device_capability(q.device) < (8, 0):
        return f"float32 heads wider than {NARROW} do not fit in the shared memory of a GPU before sm_80"
    return None


def _interpreted() -> bool:
    """Whether Triton interprets kernels in this process: it decides once, when it is first imported."""
    loaded = sys.modules.get("triton.language")
    if loaded is None:
        return os.environ.get("TRITON_INTERPRET") == "1"
    from triton.runtime import JITFunction

    return not isinstance(loaded.max, JITFunction)


def check_arrays(caller: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise DtypeError or ShapeError unless all are tensors of one floating dtype, on one device, and q has a width."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{caller}: {name} is a {type(x).__name__}; the kernels take torch tensors.")
        if x.dtype != q.dtype or x.device != q.device:
            raise DtypeError(
                f"{caller}: {name} is {x.dtype} on {x.device}, q is {q.dtype} on {q.device}; bring them together."
            )
    if not q.dtype.is_floating_point:
        raise DtypeError(f"{caller}: q is {q.dtype}; a floating dtype is expected.")
    if q.ndim and not q.shape[-1]:
        raise ShapeError(f"{caller}: q has d_k = 0; a width of at least 1 is expected.")


def whole_window(caller: str, window: int | None) -> int | None:
    """The window as an int; DtypeError if it is no whole number, ShapeError if it is below 1."""
    if window is None:
        return None
    if not isinstance(window, Integral):
        raise DtypeError(f"{caller}: window = {window!r} is a {type(window).__name__}; a whole number is expected.")
    if window < 1:
        raise ShapeError(f"{caller}: window = {window}; a window counts the query itself, so it is at least 1.")
    return int(window)


def checked(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ShapeError or DtypeError unless q (*batch, n, d_k), k (*, m, d_k), v (*, m, d_v) fit each other."""
    check_arrays("attention", q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != q.ndim or x.ndim < 2:
            raise ShapeError(f"attention: {name} has {x.ndim} axes, q has {q.ndim}; all need the same, at least 2.")
    if k.shape[-1] != q.shape[-1]:
        raise ShapeError(f"attention: k has d_k = {k.shape[-1]}, q had d_k = {q.shape[-1]}; they must agree.")
    if v.shape[:-1] != k.shape[:-1]:
        raise ShapeError(
            f"attention: v has shape {tuple(v.shape)}, k has {tuple(k.shape)}; all but the widths must agree."
        )
    lead_q, lead_k = q.shape[:-2], k.shape[:-2]
    if lead_q != lead_k and (lead_q[:-1] != lead_k[:-1] or not lead_k[-1] or lead_q[-1] % lead_k[-1]):
        raise ShapeError(
            f"attention: q has leading axes {tuple(lead_q)}, k and v have {tuple(lead_k)}; they must agree, but for "
            "the last, where h may be a whole multiple of h_kv."
        )


def fitted(mask: Tensor | None, q: Tensor, m: int) -> Tensor | None:
    """The mask as booleans (*batch, n, m), broadcast by strides of 0; DtypeError or ShapeError if it does not fit."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DtypeError(f"attention: mask is {given}; a boolean tensor is expected, True = may read.")
    if mask.device != q.device:
        raise DtypeError(f"attention: mask is on {mask.device}, q on {q.device}; bring them together.")
    full = (*q.shape[:-1], m)
    if mask.ndim > len(full) or any(a not in (1, b) for a, b in zip(mask.shape[::-1], full[::-1], strict=False)):
        raise ShapeError(
            f"attention: mask has shape {tuple(mask.shape)}, which does not broadcast to {full}, one entry a query and "
            "key; insert axes of size 1 where it is the same for all."
        )
    return mask.expand(full)


def four_axes(x: Tensor | None) -> Tensor | None:
    """(…, h, n, d) as (B, h, n, d): missing axes added, the ones before the heads laid together.

    Laying axes together may copy; an axis that is broadcast by a stride of 0 is then kept out of the copy.
    """
    if x is None or x.ndim == 4:
        return x
    if x.ndim < 4:
        return x[(None,) * (4 - x.ndim)]
    once = x[(..., *(slice(None, 1) if stride == 0 else slice(None) for stride in x.stride()[-3:]))]
    return once.reshape(-1, *once.shape[-3:]).expand(-1, *x.shape[-3:])


def in_autocast(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The arrays in the dtype that torch.autocast asks for, as torch's own attention takes them; else as they are."""
    kind = arrays[0].device.type if isinstance(arrays[0], Tensor) else "cpu"
    if not torch.is_autocast_enabled(kind):
        return arrays
    asked = torch.get_autocast_dtype(kind)
    return tuple(x.to(asked) if isinstance(x, Tensor) and x.dtype in (*HALF, torch.float32) else x for x in arrays)


def attention(q, k, v, *, causal, mask, scale, window, backend) -> tuple[Tensor, Choice]:
    """`derived.kernels.attention`, and the choice that was made."""
    q, k, v = in_autocast(q, k, v)
    checked(q, k, v)
    window = whole_window("attention", window)
    mask = fitted(mask, q, k.shape[-2])
    taken = choice(q, k, v, backend)
    q4, k4, v4, mask4 = four_axes(q), four_axes(k), four_axes(v), four_axes(mask)
    if taken.backend == "torch":
        from derived.kernels.torch_attention import torch_attention

        o = torch_attention(q4, k4, v4, causal=causal, window=window, mask=mask4, scale=scale)
    else:
        from derived.kernels.autograd import attend

        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        o = attend(q4, k4, v4, causal=causal, window=window, mask=mask4, scale=scale)
    return (o if q.ndim == 4 else o.reshape(*q.shape[:-1], v.shape[-1])), taken


def ragged_attention(q, k, v, cu_q, cu_k, *, causal, scale, window, longest_q, longest_k, backend) -> Tensor:
    """`derived.kernels.ragged_attention`."""
    if not isinstance(q, Tensor) or q.ndim != 3:
        raise ShapeError(f"ragged_attention: q has shape {tuple(q.shape)}; (tokens, h, d_k) is expected.")
    q, k, v = in_autocast(q, k, v)
    q4, k4, v4 = (x.transpose(0, 1)[None] if isinstance(x, Tensor) and x.ndim == 3 else x for x in (q, k, v))
    checked(q4, k4, v4)
    window = whole_window("ragged_attention", window)
    for name, cu in (("cu_q", cu_q), ("cu_k", cu_k)):
        if not isinstance(cu, Tensor) or cu.dtype not in (torch.int32, torch.int64):
            raise DtypeError(
                f"ragged_attention: {name} must be a tensor of int32 or int64, the first row of each sequence."
            )
        if cu.ndim != 1 or cu.shape != cu_q.shape or not len(cu):
            raise ShapeError(
                f"ragged_attention: {name} has shape {tuple(cu.shape)}, cu_q has {tuple(cu_q.shape)}; both have one "
                "entry a sequence and one more for the end."
            )
    if choice(q4, k4, v4, backend).backend == "torch":
        return _one_by_one(q4, k4, v4, cu_q, cu_k, causal, scale, window)

    from derived.kernels.autograd import attend

    several = len(cu_q) > 1
    longest_q = (int(cu_q.diff().max()) if several else 0) if longest_q is None else longest_q
    longest_k = (int(cu_k.diff().max()) if several else 0) if longest_k is None else longest_k
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    cu_q, cu_k = cu_q.to(q.device).contiguous(), cu_k.to(q.device).contiguous()
    offsets = (cu_q, cu_k, longest_q, longest_k)
    o = attend(q4, k4, v4, causal=causal, window=window, mask=None, scale=scale, offsets=offsets)
    return o[0].transpose(0, 1)


def _one_by_one(q, k, v, cu_q, cu_k, causal, scale, window) -> Tensor:
    """The sequences of a ragged batch one after another, by torch's attention, zeros beyond them: (tokens, h, d_v)."""
    from derived.kernels.torch_attention import torch_attention

    ends_q, ends_k = cu_q.tolist(), cu_k.tolist()
    parts = [
        torch_attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], causal=causal, window=window, mask=None, scale=scale)
        for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False)
    ]
    beyond = q.new_zeros((1, q.shape[1], q.shape[2] - ends_q[-1], v.shape[3]))
    return torch.cat((*parts, beyond), dim=2)[0].transpose(0, 1)
