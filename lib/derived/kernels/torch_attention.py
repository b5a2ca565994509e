"""Torch's own attention behind the conventions of `derived.ops.masks`; finite inputs only.

torch aligns `is_causal` to the first key; here causal is aligned to the last. For n ≠ m this passes torch's lower-right
bias, which torch's fused GPU kernels know and its CPU kernel reads as an (n, m) array.
"""

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention


def torch_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Average the values under softmax(Q Kᵀ · scale), by torch's `scaled_dot_product_attention`.

    Shapes: q (B, h, n, d_k), k (B, h_kv, m, d_k), v (B, h_kv, m, d_v), mask broadcastable to (B, h, n, m) ->
    o (B, h, n, d_v).
    A window or a mask becomes an (n, m) boolean array, and torch may then hold n · m numbers a head.
    A nan or inf behind a mask may reach the output: torch multiplies it by a weight of 0.
    """
    n, m = q.shape[-2], k.shape[-2]
    grouped = q.shape[1] != k.shape[1]
    fused = mask is None and window is None and q.shape[-1] == v.shape[-1] and q.dtype != torch.float32
    if grouped and (m == 0 or not shares_heads(q, fused)):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    if m == 0:
        return (q @ k.mT) @ v  # zeros, and zero gradients
    bias, aligned = None, False
    if window is not None or mask is not None:
        bias = readable(n, m, causal, window, mask, q.device)
    elif causal and n > m:  # the first n − m queries stand before every key
        head = q.new_zeros((*q.shape[:2], n - m, v.shape[-1]))
        tail = torch_attention(q[..., n - m :, :], k, v, causal=True, window=None, mask=None, scale=scale)
        return torch.cat((head, tail), dim=-2)
    elif causal and n == m:
        aligned = True
    elif causal and n > 1:  # a single query reads every key
        bias = causal_lower_right(n, m)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=aligned, scale=scale, enable_gqa=grouped)


def readable(n: int, m: int, causal: bool, window: int | None, mask: Tensor | None, device) -> Tensor:
    """Boolean (n, m), or wider by the leading axes of mask: may query i read key j?"""
    ahead = torch.arange(m, device=device) - torch.arange(m - n, m, device=device)[:, None]
    reads = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    if window is not None:
        reads = reads & (ahead > -window) & (ahead < window)
    return reads if mask is None else reads & mask


def shares_heads(q: Tensor, fused: bool) -> bool:
    """Whether one of torch's kernels takes fewer key heads than query heads here, and not the one that holds n · m.

    On a GPU its flash kernel does, from sm_80 on, for half precision without a mask and of equal widths: `fused`.
    """
    return q.device.type != "cuda" or (fused and torch.cuda.get_device_capability(q.device) >= (8, 0))


def in_one_piece(pages: Tensor, table: Tensor) -> Tensor:
    """The pages of each sequence one after the other: (pages, h_kv, PAGE, d) -> (B, h_kv, all rows, d)."""
    B, count = table.shape
    _, h_kv, page, d = pages.shape
    known = table.long().clamp(0, len(pages) - 1)  # beyond a sequence's end a table may hold anything
    return pages[known].transpose(1, 2).reshape(B, h_kv, count * page, d)
