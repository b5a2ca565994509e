"""A cache in pages: key j of sequence b is row j mod PAGE of page table[b, j div PAGE].

So a sequence grows by a page without being moved, and sequences may share pages. `derived.kernels.decode` asks here
where its keys lie, and is otherwise the same for both kinds of cache.

Source: Kwon et al. 2023; chapters 11 and 13.
"""

import triton
import triton.language as tl


@triton.jit
def cache_rows(x, table, b, j, m, stride_b, stride_n, stride_table, PAGE: tl.constexpr):
    """The addresses of the keys j of sequence b: in one piece, or (PAGE > 0) page by page through the block table."""
    if PAGE == 0:
        at = x + b * stride_b + j.to(tl.int64) * stride_n
    else:
        page = tl.load(table + b * stride_table + j // PAGE, mask=j < m, other=0).to(tl.int64)
        at = x + page * stride_b + (j % PAGE).to(tl.int64) * stride_n
    return at
