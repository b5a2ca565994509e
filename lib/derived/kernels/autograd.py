"""The flash kernels as operators of torch: differentiable, and with shape-only twins so that torch.compile keeps them.

torch sees two operators, `derived::flash_forward` and `derived::flash_backward`, and never looks inside. A twin says
the shapes, strides and dtypes of the results without computing them; the backward is itself an operator, and has no
derivative.
"""

from typing import Any

import torch
from torch import Tensor

from derived.kernels.flash_backward import flash_backward
from derived.kernels.flash_forward import flash_forward
from derived.kernels.launch import like


@torch.library.custom_op("derived::flash_forward", mutates_args=())
def flash_forward_op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None,
    longest_q: int, longest_k: int, causal: bool, window: int | None, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`flash_forward` as an operator: outputs and log-sum-exps; longest_k is for the way back."""
    options: dict[str, Any] = {
        "causal": causal,
        "window": window,
        "mask": mask,
        "scale": scale,
        "cu_q": cu_q,
        "cu_k": cu_k,
    }
    return flash_forward(q, k, v, **options, longest_q=longest_q)


@flash_forward_op.register_fake
def _(q, k, v, mask, cu_q, cu_k, longest_q, longest_k, causal, window, scale):
    return like(q, (*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("derived::flash_backward", mutates_args=())
def flash_backward_op(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor,
    mask: Tensor | None, cu_q: Tensor | None, cu_k: Tensor | None,
    longest_q: int, longest_k: int, causal: bool, window: int | None, scale: float, keys: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`flash_backward` as an operator: dq, dk, dv; without `keys` the last two have no entry."""
    options: dict[str, Any] = {
        "causal": causal,
        "window": window,
        "mask": mask,
        "scale": scale,
        "cu_q": cu_q,
        "cu_k": cu_k,
    }
    return flash_backward(q, k, v, o, lse, do, **options, longest_q=longest_q, longest_k=longest_k, keys=keys)


@flash_backward_op.register_fake
def _(q, k, v, o, lse, do, mask, cu_q, cu_k, longest_q, longest_k, causal, window, scale, keys):
    if not keys:
        return like(q, q.shape), k.new_empty(0), v.new_empty(0)
    return like(q, q.shape), like(k, k.shape), like(v, v.shape)


def _keep(ctx, inputs, output):
    """Save what the way back reads: the arguments, o, and one number a query."""
    q, k, v, mask, cu_q, cu_k, *ctx.numbers = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse, mask, cu_q, cu_k)
    ctx.mark_non_differentiable(lse)


def _pull(ctx, do, _):
    """The gradients of q, k, v for that of o; mask, offsets and numbers have none.

    Four of the seven products are those of keys and values: where neither wants a gradient they are left out.
    """
    q, k, v, o, lse, mask, cu_q, cu_k = ctx.saved_tensors
    keys = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    dq, dk, dv = flash_backward_op(q, k, v, o, lse, do, mask, cu_q, cu_k, *ctx.numbers, keys)
    if not keys:
        dk = dv = None
    return dq, dk, dv, None, None, None, None, None, None, None, None


flash_forward_op.register_autograd(_pull, setup_context=_keep)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    mask: Tensor | None,
    scale: float,
    offsets: tuple[Tensor, Tensor, int, int] | None = None,
) -> Tensor:
    """Differentiable flash attention on 4-D arrays, arguments checked before.

    Shapes: q (B, h, n, d_k), k (B, h_kv, m, d_k), v (B, h_kv, m, d_v), mask (B, h, n, m) of booleans ->
    o (B, h, n, d_v). offsets of a ragged batch: cu_q, cu_k, longest_q, longest_k.
    """
    if scale < 0:  # the kernel takes the largest score before it scales
        q, scale = -q, -scale
    cu_q, cu_k, longest_q, longest_k = offsets or (None, None, 0, 0)
    mask = None if mask is None else mask.view(torch.uint8)
    o, _ = flash_forward_op(q, k, v, mask, cu_q, cu_k, longest_q, longest_k, causal, window, scale)
    return o
