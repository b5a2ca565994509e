"""The embedding: a token's number is the row of a table, and gradients of equal tokens add up."""

import math

from array_api_compat import array_namespace
from jaxtyping import Float, Integer

from derived.ops.arrays import Array, scatter_add_rows, widen
from derived.ops.contract import refuse_out_of_range, shaped


@shaped
def embedding(
    tokens: Integer[Array, "*batch"], table: Float[Array, "n_vocab d_model"]
) -> Float[Array, "*batch d_model"]:
    """Look up one row of the table a token: `embedding_vjp` without the way back."""
    return embedding_vjp(tokens, table)[0]


@shaped
def embedding_vjp(tokens: Integer[Array, "*batch"], table: Float[Array, "n_vocab d_model"]):
    """Replace each token's number by its row of the table.

        y_i = E_{tokens_i}, which is x_i E for the one-hot row x_i: a linear map that need not be multiplied out

    Shapes: tokens (*batch) of integers in [0, n_vocab), table E (n_vocab, d_model) -> y (*batch, d_model);
    pullback: dy (*batch, d_model) -> dE (n_vocab, d_model).

    Raises DerivedError if a number is negative or has no row: counting from the end, as Python's indexing
    would, turns a padding mark of −1 into the last word of the vocabulary.

    Source: chapter 1; backward, chapter 14.
    """
    xp = array_namespace(tokens, table)
    n_vocab, d_model = table.shape
    refuse_out_of_range("embedding", "tokens", tokens, n_vocab)
    index = xp.reshape(xp.astype(tokens, xp.int64), (math.prod(tokens.shape),))
    y = xp.reshape(xp.take(table, index, axis=0), (*tokens.shape, d_model))

    def pullback(dy: Float[Array, "*batch d_model"]) -> Float[Array, "n_vocab d_model"]:
        """dE_v = Σ over {i: tokens_i = v} of dy_i: a token that stands in two places learns from both."""
        rows = xp.reshape(widen(dy), (index.shape[0], d_model))
        return xp.astype(scatter_add_rows(rows, index, n_vocab), table.dtype)

    return y, pullback
