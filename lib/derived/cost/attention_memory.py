"""Memory that attention takes beside its inputs: scores of all pairs, or results and a few numbers a query.

Analytic: what an allocator rounds up, and what it holds back for later, is left out.
"""

from derived.cost._checks import formula, greatest

STATISTIC_BYTES = 4
"""The numbers a kernel keeps for each query are float32, whatever the arrays are."""


@formula
def scores_bytes(*, n, m, h, b):
    """Bytes of one number a pair and head: the scores of one sequence, or its weights, without a mask.

    b h n m

    Source: chapters 10 and 11.
    """
    return b * h * n * m


@formula
def flash_forward_bytes(*, n, h, d_v, b):
    """Bytes that a flash forward returns and keeps: the outputs, and the log-sum-exp of each query and head.

    n h (b d_v + 4)

    Source: Dao 2023, algorithm 1; chapter 11.
    """
    return n * h * (b * d_v + STATISTIC_BYTES)


@formula
def flash_training_bytes(*, n, m, h, h_kv, d_k, d_v, b):
    """Bytes at the peak of a flash forward and backward: O and three gradients, and three numbers a query and head.

    b (n h + m h_kv) (d_k + d_v) + 12 n h

    O and dQ have n h rows, dK and dV m h_kv. The three numbers of a query are its log-sum-exp, that of the backward's
    exponent, and rowsum(dO ∘ O). dO belongs to the caller.

    Source: chapter 11.
    """
    return b * (n * h + m * h_kv) * (d_k + d_v) + 3 * STATISTIC_BYTES * n * h


@formula
def plain_training_bytes(*, n, m, h, d_k, d_v, b):
    """Bytes at the peak of softmax(Q Kᵀ · scale) V forward and backward, written out in torch: three n × m arrays.

    b h (n m + (n + m) d_v + max(2 n m, (n + m) d_k))

    Forward, S dies when S′ = S · scale is there and S′ after its softmax; A is kept for the way back. Backward, O and
    dV are held from the start; the softmax needs A, dA and dS′ at once. After it dS alone is left, and dQ and dK come:
    in long sequences that is less. No mask; every query head has keys of its own. dO belongs to the caller.

    Source: chapter 5, (5.5) to (5.11); chapter 11.
    """
    return b * h * (n * m + (n + m) * d_v + greatest(2 * n * m, (n + m) * d_k))
