"""Arithmetic intensity and lower bounds on time: FLOPs against bytes.

A time here is a bound, never a prediction: every product at the card's peak, every byte once over its bus, the two
overlapped perfectly. Cards are arguments (FLOP/s and bytes/s). Intensities are FLOPs a byte; b is the bytes of one
number. Caches on the chip beyond what is said are assumed empty.

Chapters: 10, 11 and 12.
"""

from derived.cost._checks import formula, greatest, least, tiles
from derived.cost.flops import core_macs, flops, linear_macs


@formula
def ridge_intensity(flops_per_second, bytes_per_second):
    """FLOPs a byte at which a card's arithmetic and its memory take equally long; below it memory binds.

    Source: Williams, Waterman and Patterson, 2009; chapter 10.
    """
    return flops_per_second / bytes_per_second


@formula
def attainable_flops_per_second(intensity, flops_per_second, bytes_per_second):
    """The roofline: min(peak FLOP/s, intensity · bytes/s).

    Source: Williams, Waterman and Patterson, 2009; chapter 10.
    """
    return least(flops_per_second, intensity * bytes_per_second)


@formula
def lower_bound_seconds(flop_count, byte_count, flops_per_second, bytes_per_second):
    """The least time for a number of FLOPs and bytes: the slower of the two, perfectly overlapped.

    max(FLOPs / (FLOP/s), bytes / (bytes/s))

    Source: chapters 10 and 12.
    """
    return greatest(flop_count / flops_per_second, byte_count / bytes_per_second)


@formula
def linear_bytes(n, d_in, d_out, b):
    """Bytes that a linear map moves: inputs and weights read once, outputs written once.

    b (n d_in + d_in d_out + n d_out)

    Source: chapter 10.
    """
    return b * (n * d_in + d_in * d_out + n * d_out)


@formula
def linear_intensity(n, d_in, d_out, b):
    """FLOPs a byte of a linear map on n tokens: 2 n / b while n is far below the widths.

        2 n d_in d_out / [b (n d_in + d_in d_out + n d_out)]

    In a decode step n is the batch B: one token a conversation. The limit n → ∞ is 2 d_in d_out / [b (d_in + d_out)].

    Source: chapters 10 and 12.
    """
    return flops(linear_macs(n, d_in, d_out)) / linear_bytes(n, d_in, d_out, b)


@formula
def standard_attention_bytes(*, n, m, h, h_kv, d_k, d_v, b):
    """Bytes of attention as three kernels (scores, softmax, mixing), without a mask: S and A are each written and read.

    b [(n h + m h_kv) (d_k + d_v) + 4 n m h]

    Source: chapter 11.
    """
    return b * ((n * h + m * h_kv) * (d_k + d_v) + 4 * n * m * h)


@formula
def standard_attention_intensity(*, n, m, h, h_kv, d_k, d_v, b):
    """FLOPs a byte of attention as three kernels: tends to (d_k + d_v) / (2 b), d_k / 2 in fp16 with d_v = d_k.

    Source: chapter 11.
    """
    moved = standard_attention_bytes(n=n, m=m, h=h, h_kv=h_kv, d_k=d_k, d_v=d_v, b=b)
    return flops(core_macs(pairs=n * m, h=h, d_k=d_k, d_v=d_v)) / moved


@formula
def tiled_attention_bytes(*, n, m, h, d_k, d_v, B_q, b):
    """Bytes of tiled attention without a mask: Q read and O written once, K and V read for each tile of B_q queries.

        b h (d_k + d_v) (n + m ⌈n / B_q⌉)

    Query heads that share a KV head are counted as reading it each. The log-sum-exp kept for the backward pass,
    one number a query and head, is left out.

    Source: Dao et al., 2022; chapter 11.
    """
    return b * h * (d_k + d_v) * (n + m * tiles(n, B_q))


@formula
def tiled_attention_intensity(*, n, m, h, d_k, d_v, B_q, b):
    """FLOPs a byte of tiled attention: 2 n m / [b (n + m ⌈n / B_q⌉)], which tends to 2 B_q / b, B_q in fp16.

    The head width cancels: it multiplies products and bytes alike.

    Source: chapter 11.
    """
    moved = tiled_attention_bytes(n=n, m=m, h=h, d_k=d_k, d_v=d_v, B_q=B_q, b=b)
    return flops(core_macs(pairs=n * m, h=h, d_k=d_k, d_v=d_v)) / moved


@formula
def decode_step_flops(*, B, n, P, L, h, d_k):
    """FLOPs of one decode step for B conversations of n tokens each, with the cache: B (2 P + 4 L n h d_k).

    P counts the parameters that multiply: without the input table, with the head.

    Source: chapter 12.
    """
    return B * (2 * P + 4 * L * n * h * d_k)


@formula
def decode_step_bytes(*, B, weight_bytes, cache_bytes):
    """Bytes that one decode step reads: the weights once for the batch, each conversation's cache once.

    weight_bytes + B · cache_bytes

    Source: chapter 12.
    """
    return weight_bytes + B * cache_bytes


@formula
def decode_intensity(*, B, n, P, L, h, d_k, weight_bytes, cache_bytes):
    """FLOPs a byte of one decode step: ceiling · B / (B + weight_bytes / cache_bytes).

    The batch amortises the weights alone; at B = weight_bytes / cache_bytes half of the ceiling is reached.

    Source: chapter 12.
    """
    moved = decode_step_bytes(B=B, weight_bytes=weight_bytes, cache_bytes=cache_bytes)
    return decode_step_flops(B=B, n=n, P=P, L=L, h=h, d_k=d_k) / moved


@formula
def decode_intensity_ceiling(*, n, P, L, h, h_kv, d_k, b):
    """FLOPs a byte of a decode step as B → ∞, set by the cache of 2 L n h_kv d_k numbers of b bytes.

        (2 P + 4 L n h d_k) / (2 L n h_kv d_k b)

    Falls with n towards 2 h / (h_kv b): one FLOP a byte with a KV head for each query head in fp16.

    Source: chapter 12.
    """
    return (2 * P + 4 * L * n * h * d_k) / (2 * L * n * h_kv * d_k * b)


@formula
def layer_norm_flops(n, d_model):
    """FLOPs of LayerNorm on n tokens, every operation counted: n (7 d_model + 3).

        mean d_model, centre d_model, squares d_model, their mean d_model, + ε, root, reciprocal 3,
        scale d_model, gain d_model, shift d_model

    Source: chapter 10.
    """
    return n * (7 * d_model + 3)


@formula
def rms_norm_flops(n, d_model):
    """FLOPs of RMSNorm on n tokens, every operation counted: n (4 d_model + 3); no mean, no shift.

    Source: chapter 10.
    """
    return n * (4 * d_model + 3)


@formula
def residual_flops(n, d_model):
    """FLOPs of a residual addition: n d_model.

    Source: chapter 10.
    """
    return n * d_model


@formula
def layer_norm_bytes(n, d_model, b):
    """Bytes of LayerNorm as one kernel: tokens read and written, gain and shift read: b (2 n d_model + 2 d_model).

    Source: chapter 10.
    """
    return b * (2 * n * d_model + 2 * d_model)


@formula
def rms_norm_bytes(n, d_model, b):
    """Bytes of RMSNorm as one kernel: tokens read and written, the gain read: b (2 n d_model + d_model).

    Source: chapter 10.
    """
    return b * (2 * n * d_model + d_model)


@formula
def residual_bytes(n, d_model, b):
    """Bytes of a residual addition as one kernel, two arrays read and one written: 3 n d_model b.

    Source: chapter 10.
    """
    return 3 * n * d_model * b
