"""The context length at which attention costs as much as the FFN, in every reading of the question.

Per layer the core (scores and mixing) grows with pairs, the FFN with tokens. The reading decides the answer: full or
causal, tiled or cell by cell, with the projections or without. The base is the full square; each mask maps it.

    full m_FFN · causal 2 m_FFN − 1 · tiles of width B_t 2 m_FFN − B_t · window of w keys: `window_crossing_tokens`

m_FFN is the price of the FFN in keys, m_proj that of the projections: with them, m_FFN − m_proj stands for m_FFN.

A crossing is a real number of tokens: an int if whole, a Fraction if not, and at most 0 where attention costs more
from the first token on.

Chapter: 10.
"""

from derived.cost._checks import formula, is_symbolic, quotient
from derived.errors import DtypeError


@formula
def crossing_tokens(*, d_model, h, d_k, d_v, d_ff, ffn_matrices):
    """The context at which the core of attention costs what the FFN costs, without a mask.

        n² h (d_k + d_v) = ffn_matrices · n d_model d_ff
        n = m_FFN = ffn_matrices · d_model d_ff / [h (d_k + d_v)]

    In the 2017 form (2 matrices, d_ff = 4 d_model, h d_k = h d_v = d_model) m_FFN = 4 d_model. A decode step that
    reads m_FFN keys has the same crossing, and KV heads do not enter.

    Source: chapter 10.
    """
    return quotient(ffn_matrices * d_model * d_ff, h * (d_k + d_v))


@formula
def crossing_tokens_with_projections(*, d_model, h, h_kv, d_k, d_v, d_ff, ffn_matrices):
    """The context at which the whole attention sub-layer costs what the FFN costs, without a mask.

        n d_model (h + h_kv) (d_k + d_v) + n² h (d_k + d_v) = ffn_matrices · n d_model d_ff
        n = d_model [ffn_matrices · d_ff − (h + h_kv) (d_k + d_v)] / [h (d_k + d_v)] = m_FFN − m_proj
        m_proj = d_model (1 + h_kv / h)

    In the 2017 form n = 2 d_model. Fewer KV heads make the projections cheaper and move the crossing up.

    Source: chapter 10.
    """
    width = d_k + d_v
    return quotient(d_model * (ffn_matrices * d_ff - (h + h_kv) * width), h * width)


def causal_crossing_tokens(crossing):
    """The crossing under a causal mask counted cell by cell, from the full one: (n + 1) / 2 = m_FFN at n = 2 m_FFN − 1.

    In the 2017 form 8 d_model − 1, with projections 4 d_model − 1.

    Source: chapter 10.
    """
    return 2 * crossing - 1


def tiled_crossing_tokens(crossing, B_t):
    """The crossing of a causal kernel that skips whole tiles: (n + B_t) / 2 = m_FFN, n = 2 m_FFN − B_t.

    Exact when B_t divides the result. Otherwise the cut last tile saves ρ (B_t − ρ) / 2 pairs, ρ = n mod B_t, and the
    crossing n lies ρ (B_t − ρ) / n above this line: at most B_t² / (4 n).

    Source: chapter 10, with the count of `derived.cost.pairs.tiled_causal_pairs`.
    """
    return 2 * crossing - B_t


def window_crossing_tokens(crossing, w):
    """The crossing under a causal sliding window of w keys, from the full one; math.inf if there is none.

        2 m_FFN − 1 ≤ w:           2 m_FFN − 1, before the window fills
        m_FFN < w < 2 m_FFN − 1:   w (w − 1) / [2 (w − m_FFN)]
        w ≤ m_FFN:                 never: a token reads at most w keys

    From n w − w (w − 1) / 2 = n m_FFN for n ≥ w. The branches need numbers: symbols are refused by a sentence.

    Source: chapter 10.
    """
    if is_symbolic(crossing) or is_symbolic(w):
        raise DtypeError("window_crossing_tokens picks a branch by size; give numbers, not symbols.")
    if 2 * crossing - 1 <= w:
        return 2 * crossing - 1
    return quotient(w * (w - 1), 2 * (w - crossing)) if crossing < w else float("inf")
