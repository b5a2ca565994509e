"""The one door to fast attention: kernels of our own where they are fastest, torch's attention elsewhere.

    attention           q, k, v of equal or other lengths, masks, grouped heads; differentiable
    ragged_attention    sequences of several lengths laid end to end; differentiable
    cached_attention    a few new queries against a long cache, in one piece
    paged_attention     the same against a cache in pages
    chosen              which backend `attention` would take, and why

Importing this file imports neither torch nor triton; a call does. Conventions are those of `derived.ops`: True = may
read, causal is aligned to the last key, a window counts the query itself, who may read nothing gets zeros.
Chapter 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from derived.kernels.backends import Choice

__all__ = ["attention", "cached_attention", "chosen", "paged_attention", "ragged_attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Average the values under softmax(Q Kᵀ / √d_k), on the fastest path there is.

        S′ = Q Kᵀ · scale,   A = softmax(S′),   O = A V,   scale = 1/√d_k unless given

    Shapes: q (*batch, n, d_k), k (*kv_batch, m, d_k), v (*kv_batch, m, d_v) -> o (*batch, n, d_v), in q's dtype.
    kv_batch equals batch, or has fewer heads in its last axis: h query heads share h_kv key heads, h / h_kv consecutive
    ones each. mask (boolean, True = may read) broadcasts to (*batch, n, m). Differentiable in q, k and v.

    backend:
        "triton"   our kernels, for CUDA GPUs; float16, bfloat16 (from sm_80) or float32, computed in float32; heads up
                   to 256 wide. Memory beyond the results is one number a query. A nan or inf in key or value j
                   changes no query that may not read j. Gradients are the same bits in every run.
        "torch"    torch's own attention. Finite inputs only: a nan behind a mask may reach the output. A window or a
                   mask costs an (n, m) array of booleans.
        "auto"     Triton for half precision on GPUs from sm_80 on, torch elsewhere; `chosen` says which and why.
                   The kernels multiply float32 exactly and outside the tensor cores: that has to be asked for.

    Under torch.autocast the arrays are cast as torch's own attention casts them.

    Raises ShapeError or DtypeError if the arguments do not fit each other, DerivedError if the backend asked for
    cannot compute them.

    Source: Dao 2023; chapter 11.
    """
    from derived.kernels import backends

    return backends.attention(q, k, v, causal=causal, mask=mask, scale=scale, window=window, backend=backend)[0]


def chosen(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto") -> Choice:
    """Tell which backend `attention` takes for these arrays, and why: Choice(backend, why).

    Shapes: as in `attention`. Raises what `attention` raises.
    """
    from derived.kernels import backends

    q, k, v = backends.in_autocast(q, k, v)
    backends.checked(q, k, v)
    return backends.choice(q, k, v, backend)


def ragged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    longest_q: int | None = None,
    longest_k: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend within each of several sequences laid end to end: `attention` of each, without padding.

    Shapes: q (tokens_q, h, d_k), k (tokens_k, h_kv, d_k), v (tokens_k, h_kv, d_v) -> o (tokens_q, h, d_v).
    cu_q and cu_k hold one entry a sequence and one more: sequence b is rows cu_q[b] to cu_q[b + 1] − 1 of q, and rows
    cu_k[b] to cu_k[b + 1] − 1 of k and v. They start at 0, never fall and do not pass the number of tokens, which is
    not checked, since a check would wait for the GPU. A sequence may be empty. Rows beyond the last one give zeros.
    longest_q and longest_k are the lengths of the longest sequences; not given, they are read from cu_q and cu_k, which
    waits for the GPU; given too small, "triton" leaves the rest of a longer sequence at zero.

    Backends, errors and conventions as in `attention`; torch takes the sequences one after the other.

    Source: chapter 11.
    """
    from derived.kernels import backends

    return backends.ragged_attention(
        q, k, v, cu_q, cu_k,
        causal=causal, scale=scale, window=window, longest_q=longest_q, longest_k=longest_k, backend=backend,
    )  # fmt: skip


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Let a few new queries of each sequence read its cache: the keys that are there, the n newest included.

    Query i of n reads key j of sequence b if j ≤ i + lengths[b] − n, and a window as everywhere. No gradient.

    Shapes: q (B, h, n, d_k), k (B, h_kv, capacity, d_k), v (B, h_kv, capacity, d_v), lengths (B,) of int32 or int64,
    each at most the capacity, which is checked on the CPU only (elsewhere it would wait) -> o (B, h, n, d_v).

    What lies beyond a length has no influence, be it nan. A query that reads a key of nan, or is nan and reads any key,
    gives nan; with "torch" the other new queries of its sequence may too.

    backend:
        "triton"   splits the keys among programs and lets the heads of a group share the bytes; reads nothing beyond a
                   length; takes n · h / h_kv ≤ 128.
        "torch"    on a CPU reads the lengths and attends to the keys that are there; on a GPU, where reading a length
                   would wait for it, copies and masks the whole capacity in each call.
        "auto"     as in `attention`, and torch where there are more queries than "triton" takes.

    Raises ShapeError, DtypeError or DerivedError, as `attention`.

    Source: Dao et al. 2023; chapters 11 and 13.
    """
    from derived.kernels import cached

    return cached.cached_attention(q, k, v, lengths, table=None, window=window, scale=scale, backend=backend)


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Do what `cached_attention` does, against a cache in pages.

    Key j of sequence b is row j mod PAGE of page block_table[b, j div PAGE].

    Shapes: q (B, h, n, d_k), k_pages (pages, h_kv, PAGE, d_k), v_pages (pages, h_kv, PAGE, d_v) with any strides,
    block_table (B, pages a sequence) and lengths (B,) of int32 or int64 -> o (B, h, n, d_v). Entries of the table
    beyond a sequence's length have no influence. "torch" first copies the pages of each sequence into one piece: on a
    CPU those that are used, on a GPU all of the table.

    Raises what `cached_attention` raises.

    Source: Kwon et al. 2023; chapters 11 and 13.
    """
    from derived.kernels import cached

    return cached.paged_attention(
        q, k_pages, v_pages, block_table, lengths, window=window, scale=scale, backend=backend
    )  # fmt: skip
