"""The only table of letters: each letter of the mathematics, its name, its LaTeX and what it counts.

A letter means one thing in every formula, annotation, chapter and printed line. The clashes of the
literature are settled here: L is the number of layers (the loss is ℒ), m the number of keys (the running
maximum of softmax is c), p the pipeline stages, b the bytes of one number, B the batch, A the attention
weights (the factors of a low-rank update are D and U).

Chapter: notation.
"""

from typing import NamedTuple


class Letter(NamedTuple):
    """One row of the table: the name used in code, its LaTeX, what it stands for, and its kind."""

    name: str
    latex: str
    meaning: str
    kind: str  # "size" (a positive integer), "array", "scalar" or "bytes"


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
        Letter("S", "S", "scores Q Kᵀ, (n, m)", "array"),
        Letter("S_scaled", "S'", "scaled scores S / √d_k, (n, m)", "array"),
        Letter("s", "s", "one row of the scores", "array"),
        Letter("A", "A", "attention weights, softmax of the scaled scores, (n, m)", "array"),
        Letter("a", "a", "one row of the attention weights", "array"),
        Letter("O", "O", "outputs A V, (n, d_v)", "array"),
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
        Letter("sigma", r"\sigma", "a standard deviation", "scalar"),
        Letter("beta", r"\beta", "an inverse temperature: the factor on the scores", "scalar"),
        Letter("H", "H", "entropy of a row of attention weights, in nats", "scalar"),
    )
}
"""Every letter by its name, in the order of the notation table."""
