"""The only table of letters: each letter of the mathematics, its name, its LaTeX and what it counts.

A letter means one thing in every formula, annotation, chapter and printed line. The clashes of the
literature are settled here: L is the number of layers (the loss is ℒ), m the number of keys (the running
maximum of softmax is c), p the pipeline stages, b the bytes of one number, B the batch, A the attention
weights (the factors of a low-rank update are D and U). A letter that only one chapter needs stands in
`CHAPTER_LETTERS`; no chapter gives a letter of the table another meaning.

Chapter: notation.
"""

from typing import NamedTuple


class Letter(NamedTuple):
    """One row of the table: the name used in code, its LaTeX, what it stands for, and its kind."""

    name: str
    latex: str
    meaning: str
    kind: str  # "size" (a positive integer), "array", "scalar" or "bytes"; a chapter's number if it is that chapter's


LETTERS: dict[str, Letter] = {
    row.name: row
    for row in (
        # sizes: the axes of arrays and the arguments of cost formulas
        Letter("B", "B", "sequences in a batch", "size"),
        Letter("n", "n", "query tokens; the context length where queries and keys are the same tokens", "size"),
        Letter("m", "m", "key tokens", "size"),
        Letter("d_model", r"d_{\text{model}}", "width of a token's vector between layers", "size"),
        Letter("h", "h", "query heads", "size"),
        Letter("h_kv", r"h_{\text{kv}}", "key and value heads", "size"),
        Letter("d_k", "d_k", "width of a query and of a key in one head", "size"),
        Letter("d_v", "d_v", "width of a value in one head", "size"),
        Letter("d_ff", r"d_{\text{ff}}", "hidden width of the feed-forward network", "size"),
        Letter("d_in", r"d_{\text{in}}", "width that enters a linear map", "size"),
        Letter("d_out", r"d_{\text{out}}", "width that leaves a linear map", "size"),
        Letter("L", "L", "layers", "size"),
        Letter("n_vocab", r"n_{\text{vocab}}", "entries of the vocabulary", "size"),
        Letter("r", "r", "rank of a low-rank update", "size"),
        Letter("w", "w", "sliding window: keys a query may read, itself included", "size"),
        Letter("B_q", "B_q", "queries in one tile", "size"),
        Letter("B_t", "B_t", "keys in one tile", "size"),
        Letter("t", "t", "tensor-parallel ranks", "size"),
        Letter("p", "p", "pipeline stages", "size"),
        Letter("u", "u", "microbatches", "size"),
        Letter("P", "P", "parameters", "size"),
        Letter("b", "b", "bytes of one number", "bytes"),
        # arrays, rows are tokens
        Letter("X", "X", "token vectors, one a row, (n, d_model)", "array"),
        Letter("Q", "Q", "queries, (n, d_k)", "array"),
        Letter("K", "K", "keys, (m, d_k)", "array"),
        Letter("V", "V", "values, (m, d_v)", "array"),
        Letter("x", "x", "one token's vector, a row of X; in a general statement, the input of a function", "array"),
        Letter("q", "q", "one query, a row of Q", "array"),
        Letter("k", "k", "one key, a row of K", "array"),
        Letter("v", "v", "one value, a row of V", "array"),
        Letter("S", "S", "scores Q Kᵀ, (n, m)", "array"),
        Letter("S_scaled", "S'", "scaled scores S / √d_k, (n, m)", "array"),
        Letter("s", "s", "one row of the scores; s' one row of the scaled scores", "array"),
        Letter("A", "A", "attention weights, softmax of the scaled scores, (n, m)", "array"),
        Letter("a", "a", "one row of the attention weights", "array"),
        Letter("O", "O", "outputs A V, (n, d_v)", "array"),
        Letter("o", "o", "one output, a row of O", "array"),
        Letter("J", "J", "Jacobian of y = f(x): row j, column i holds ∂y_j / ∂x_i", "array"),
        Letter("W", "W", "the weights of a linear map, (d_in, d_out)", "array"),
        Letter("W_Q", "W_Q", "query projection, (d_model, h d_k)", "array"),
        Letter("W_K", "W_K", "key projection, (d_model, h_kv d_k)", "array"),
        Letter("W_V", "W_V", "value projection, (d_model, h_kv d_v)", "array"),
        Letter("W_O", "W_O", "output projection, (h d_v, d_model)", "array"),
        Letter("D", "D", "down factor of a low-rank update, (d_in, r)", "array"),
        Letter("U", "U", "up factor of a low-rank update, (r, d_out)", "array"),
        # scalars
        Letter("loss", r"\mathcal{L}", "the loss", "scalar"),
        Letter("c", "c", "the constant subtracted inside softmax", "scalar"),
        Letter("l", r"\ell", "the sum of exponentials of a row, after c was subtracted", "scalar"),
        Letter("eps", r"\varepsilon", "the constant added to a variance", "scalar"),
        Letter("mu", r"\mu", "a mean", "scalar"),
        Letter("sigma", r"\sigma", "a standard deviation", "scalar"),
        Letter("T", "T", "a temperature: the divisor of the scores", "scalar"),
        Letter("beta", r"\beta", "an inverse temperature: the factor on the scores", "scalar"),
        Letter("H", "H", "entropy of a row of attention weights, in nats", "scalar"),
        Letter("m_ffn", r"m_{\text{FFN}}", "the price of the feed-forward network, in keys read", "scalar"),
        Letter("m_proj", r"m_{\text{proj}}", "the price of the projections, in keys read", "scalar"),
    )
}
"""Every letter by its name, in the order of the notation table."""

CHAPTER_LETTERS: tuple[Letter, ...] = (
    Letter("Sigma", r"\Sigma", "a covariance matrix, of queries or of keys", "3"),
    Letter("C", "C", "the covariances of query and key components", "3"),
    Letter("rho", r"\rho", "the correlation of a query's and a key's component", "3"),
    Letter("gamma", r"\gamma", "the number that a score is divided by, before it is known to be √d_k", "3"),
    Letter("Delta", r"\Delta", "the difference of two scores", "3"),
    Letter("Z", "Z", "the sum of the exponentials of a row, nothing subtracted", "3"),
    Letter("N", "N", "draws of a simulation", "3"),
    Letter("g", "g", "a LayerNorm's gain", "3"),
    Letter("F", "F", "a matrix, with G", "3"),
    Letter("G", "G", "a matrix, with F", "3"),
    Letter("Y", "Y", "the output of a linear map", "5"),
    Letter("z", "z", "the score of an attention sink", "5"),
    Letter("p_k", "p_k", "the sum of the k-th powers of a row of weights", "5"),
    Letter("kappa", r"\kappa", "the cap of a soft-cap", "5"),
    Letter("tau", r"\tau", "the hyperbolic tangent inside a soft-cap", "5"),
    Letter("Z", "Z", "dropout's factor on each weight", "5"),
    Letter("R", "R", "the rotation of a position", "5"),
    Letter("delta", r"\delta", "1 where its two indices are equal, 0 elsewhere", "5"),
    Letter("Sigma", r"\Sigma", "the sum sign", "5"),
    Letter("d", "d", "d_model, for short", "7"),
    Letter("x_hat", r"\hat x", "the normalised vector", "7"),
    Letter("rho", r"\rho", "what LayerNorm multiplies by, 1 / √(σ² + ε)", "7"),
    Letter("F", "F", "the branch of a residual layer", "7"),
    Letter("g", "g", "the gradient that arrives at a layer", "7"),
    Letter("gamma", r"\gamma", "the standard deviation of what a branch adds", "7"),
    Letter("delta", r"\delta", "the factor by which a branch multiplies a gradient's length", "7"),
    Letter("kappa", r"\kappa", "a common factor of all gradients", "7"),
    Letter("g", "g", "whole tiles in n", "10"),
    Letter("rho", r"\rho", "tokens beyond the last whole tile", "10"),
    Letter("Lambda", r"\Lambda", "the mass of a triple: a sum of exponentials, nothing subtracted", "11"),
    Letter("Omega", r"\Omega", "the moment of a triple: a sum of exponentials times values, nothing subtracted", "11"),
    Letter("E", "E", "the exponentials of a tile, (B_q, B_t)", "11"),
    Letter("M", "M", "bytes of the memory that one processor has to itself", "11"),
    Letter("g", "g", "tiles of one row", "11"),
    Letter("d", "d", "the width of queries, keys and values where all are equal", "11"),
    Letter("R", "R", "replicas", "13"),
    Letter("g", "g", "cards of one replica", "13"),
    Letter("rho", r"\rho", "the chance that a conversation goes on after a token", "13"),
    Letter("n_max", r"n_{\max}", "the tokens that a conversation may reach", "13"),
    Letter(
        "d_latent", r"d_{\text{latent}}", "width of what multi-head latent attention keeps of keys and values", "13"
    ),
    Letter("d_rope", r"d_{\text{rope}}", "width of the rotated key that all its heads share", "13"),
)
"""Letters that one chapter alone needs, `kind` its number. Another chapter may use them for something else."""
