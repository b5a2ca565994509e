"""MACs and FLOPs of each part of a transformer: the matrix products, exactly.

One multiply-add is one MAC, two FLOPs. Counted is what torch's FLOP counter counts: products of matrices. Biases,
norms, softmax and activations are left out (`derived.cost.roofline` has their FLOPs and bytes; they are a fraction
of order 1 / d_model). A count of attention takes `pairs`, the (query, key) cells of one head, from
`derived.cost.pairs`: full, causal, windowed, tiled. Multiply by B for a batch.

Chapters: 8 to 12.
"""

from derived.cost._checks import formula
from derived.cost.pairs import causal_pairs, uncached_causal_pairs, uncached_token_passes


def flops(macs):
    """FLOPs of a number of MACs: a multiplication and an addition each."""
    return 2 * macs


@formula
def linear_macs(n, d_in, d_out):
    """MACs of a linear map applied to n tokens: n d_in d_out.

    Source: chapter 8.
    """
    return n * d_in * d_out


@formula
def linear_backward_macs(n, d_in, d_out):
    """MACs of the backward pass of a linear map: twice the forward.

        dX = dY Wᵀ    n d_out d_in
        dW = Xᵀ dY    d_in n d_out

    A first layer that needs no dX, or a frozen one that needs no dW, pays one of the two.

    Source: chapter 9.
    """
    return 2 * linear_macs(n, d_in, d_out)


@formula
def projections_macs(*, n, m, d_model, h, h_kv, d_k, d_v):
    """MACs of the four projections, n tokens asking and m tokens read: d_model [n h (d_k + d_v) + m h_kv (d_k + d_v)].

    Queries and outputs are made for n tokens, keys and values for m (in self-attention n = m; with a cache m is
    the number of new tokens, since old keys and values are not made again). 4 n d_model² in the 2017 form.

    Source: chapters 6, 9 and 10.
    """
    return d_model * (n * h + m * h_kv) * (d_k + d_v)


@formula
def core_macs(*, pairs, h, d_k, d_v):
    """MACs of scores and mixing: each pair of each query head costs d_k for Q Kᵀ and d_v for A V.

        pairs · h (d_k + d_v)

    Without a mask and with h d_k = h d_v = d_model: 2 n² d_model. The number of KV heads does not enter: sharing keys
    saves bytes, not products. The tiled forward computes the same products.

    Source: chapters 10 and 11.
    """
    return pairs * h * (d_k + d_v)


@formula
def core_backward_macs(*, pairs, h, d_k, d_v):
    """MACs of the backward of scores and mixing with A kept: four products, twice the forward.

        dV = Aᵀ dO, dA = dO Vᵀ    2 d_v a pair
        dQ = dS K,  dK = dSᵀ Q    2 d_k a pair

    Source: chapters 5 and 9.
    """
    return 2 * core_macs(pairs=pairs, h=h, d_k=d_k, d_v=d_v)


@formula
def recomputing_backward_macs(*, pairs, h, d_k, d_v):
    """MACs of the tiled backward, which keeps no A and computes the scores again: five products, 3 d_k + 2 d_v a pair.

    2.5 times the forward when d_k = d_v.

    Source: Dao et al., 2022, algorithm 4; chapter 11.
    """
    return pairs * h * (3 * d_k + 2 * d_v)


@formula
def two_pass_backward_macs(*, pairs, h, d_k, d_v):
    """MACs of a tiled backward in two kernels, one for dQ and one for dK and dV: S and dA are both computed twice.

        dQ:      S, dA, dQ        2 d_k + d_v a pair
        dK, dV:  S, dA, dV, dK    2 d_k + 2 d_v a pair

    Seven products, 3.5 times the forward when d_k = d_v: the price of writing each gradient once, without atomics.

    Source: chapter 11.
    """
    return pairs * h * (4 * d_k + 3 * d_v)


@formula
def feed_forward_macs(*, n, d_model, d_ff):
    """MACs of the two-matrix FFN on n tokens: 2 n d_model d_ff, so 8 n d_model² at d_ff = 4 d_model.

    Source: chapter 8.
    """
    return 2 * linear_macs(n, d_model, d_ff)


@formula
def gated_feed_forward_macs(*, n, d_model, d_ff):
    """MACs of the gated FFN (gate, up, down) on n tokens: 3 n d_model d_ff.

    Source: chapter 8.
    """
    return 3 * linear_macs(n, d_model, d_ff)


@formula
def attention_macs(*, n, pairs, d_model, h, h_kv, d_k, d_v):
    """MACs of a self-attention sub-layer for n new tokens: projections and core.

    Source: chapters 9 and 10.
    """
    projections = projections_macs(n=n, m=n, d_model=d_model, h=h, h_kv=h_kv, d_k=d_k, d_v=d_v)
    return projections + core_macs(pairs=pairs, h=h, d_k=d_k, d_v=d_v)


@formula
def block_macs(*, n, pairs, d_model, h, h_kv, d_k, d_v, d_ff, ffn_matrices):
    """MACs of one encoder or decoder-only block for n new tokens: attention and an FFN of 2 or 3 matrices.

        d_model n (h + h_kv) (d_k + d_v) + pairs · h (d_k + d_v) + ffn_matrices · n d_model d_ff

    The block of 2017 without a mask: 12 n d_model² + 2 n² d_model.

    Source: chapters 9 and 10.
    """
    attention = attention_macs(n=n, pairs=pairs, d_model=d_model, h=h, h_kv=h_kv, d_k=d_k, d_v=d_v)
    return attention + ffn_matrices * linear_macs(n, d_model, d_ff)


@formula
def decoder_block_macs(*, n, m, pairs, d_model, h, d_k, d_v, d_ff):
    """MACs of a decoder block of 2017: self-attention over n tokens, cross-attention to m, and the FFN.

    Source: Vaswani et al., 2017; chapter 9.
    """
    cross = projections_macs(n=n, m=m, d_model=d_model, h=h, h_kv=h, d_k=d_k, d_v=d_v) + core_macs(
        pairs=n * m, h=h, d_k=d_k, d_v=d_v
    )
    return cross + block_macs(
        n=n, pairs=pairs, d_model=d_model, h=h, h_kv=h, d_k=d_k, d_v=d_v, d_ff=d_ff, ffn_matrices=2
    )


@formula
def lm_head_macs(n, d_model, n_vocab):
    """MACs of the output map for n positions: n d_model n_vocab. Prefill needs it for one position, training for all.

    Source: chapters 12 and 14.
    """
    return linear_macs(n, d_model, n_vocab)


@formula
def prefill_macs(*, n, L, d_model, h, h_kv, d_k, d_ff, ffn_matrices):
    """MACs of L decoder-only blocks over a prompt of n tokens, causal and cell by cell; without the LM head.

        L [2 n d_model d_k (h + h_kv) + n (n + 1) h d_k + ffn_matrices · n d_model d_ff]

    Equal to the sum of n decode steps at contexts 1, …, n: the cache saves repetition, not first-time work.

    Source: chapter 12.
    """
    return L * block_macs(
        n=n,
        pairs=causal_pairs(n, n),
        d_model=d_model,
        h=h,
        h_kv=h_kv,
        d_k=d_k,
        d_v=d_k,
        d_ff=d_ff,
        ffn_matrices=ffn_matrices,
    )


@formula
def decode_step_macs(*, n, L, d_model, h, h_kv, d_k, d_ff, ffn_matrices):
    """MACs of L decoder-only blocks for one new token that reads n keys, its own included; without the LM head.

        L [2 d_model d_k (h + h_kv) + 2 n h d_k + ffn_matrices · d_model d_ff]

    Source: chapter 12.
    """
    return L * block_macs(
        n=1, pairs=n, d_model=d_model, h=h, h_kv=h_kv, d_k=d_k, d_v=d_k, d_ff=d_ff, ffn_matrices=ffn_matrices
    )


@formula
def uncached_macs(*, n, L, d_model, h, h_kv, d_k, d_ff, ffn_matrices):
    """MACs of L blocks to write n tokens without a cache, the whole prefix run again for each; without the LM head.

        Σ_{i=1}^{n} prefill(i) = L [n (n + 1) / 2 · (projections and FFN of a token) + n (n + 1) (n + 2) / 3 · h d_k]

    Source: chapter 12.
    """
    return L * block_macs(
        n=uncached_token_passes(n),
        pairs=uncached_causal_pairs(n),
        d_model=d_model,
        h=h,
        h_kv=h_kv,
        d_k=d_k,
        d_v=d_k,
        d_ff=d_ff,
        ffn_matrices=ffn_matrices,
    )


@formula
def training_flops_per_token(*, P, L, n, h, d_k):
    """FLOPs to train on one token of a sequence of n: 6 a parameter, and 12 L n h d_k for full squares of scores.

        6 P + 12 L n h d_k

    One MAC a parameter forward, two backward, two FLOPs each. P counts the parameters of linear maps, the LM head
    included, the input table (looked up, not multiplied), norms and biases not. h d_k = d_model in most models.

    Source: Chowdhery et al., 2022, appendix B; chapter 9.
    """
    return 6 * P + 12 * L * n * h * d_k


@formula
def causal_training_flops_per_token(*, P, L, n, h, d_k):
    """FLOPs to train on one token, averaged over a sequence of n, when masked cells are not computed.

    6 P + 6 L (n + 1) h d_k

    Source: chapter 9.
    """
    return 6 * P + 6 * L * (n + 1) * h * d_k
