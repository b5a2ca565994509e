"""From one pairing of rotary columns to the other: a permutation of the columns of W_Q and W_K, head by head."""

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.errors import ShapeError
from derived.ops.arrays import Array, device_of
from derived.ops.contract import shaped


@shaped
def interleaved_to_half_split(
    W: Float[Array, "*rows h_d_k"], h: int, *, d_rot: int | None = None
) -> Float[Array, "*rows h_d_k"]:
    """Reorder the columns of W_Q or W_K (or its bias), made for interleaved pairs, for half-split pairs.

        W′[…, i] = W[…, 2i],   W′[…, i + d_rot/2] = W[…, 2i + 1]   within every head,   i < d_rot/2

    Shapes: W (*rows, h_d_k) -> (*rows, h_d_k), where h_d_k is the product h · d_k; h is the number of heads
    in W (h_kv for W_K). d_rot is the number of columns a head turns, d_k unless given; the others stay.
    Queries and keys are permuted alike, so their products, and all that follows, remain the same.
    Raises ShapeError if h does not divide the width, or d_rot is odd or wider than a head.

    Source: the conversion of Llama's weights in transformers (`permute`); chapter 6.
    """
    d_rot = _turning("interleaved_to_half_split", W, h, d_rot)
    return _reordered(W, h, [*range(0, d_rot, 2), *range(1, d_rot, 2)])


@shaped
def half_split_to_interleaved(
    W: Float[Array, "*rows h_d_k"], h: int, *, d_rot: int | None = None
) -> Float[Array, "*rows h_d_k"]:
    """Undo `interleaved_to_half_split`.

        W′[…, 2i] = W[…, i],   W′[…, 2i + 1] = W[…, i + d_rot/2]   within every head,   i < d_rot/2

    Shapes: W (*rows, h_d_k) -> (*rows, h_d_k). Raises as `interleaved_to_half_split` does.

    Source: chapter 6.
    """
    d_rot = _turning("half_split_to_interleaved", W, h, d_rot)
    return _reordered(W, h, [i // 2 + (i % 2) * (d_rot // 2) for i in range(d_rot)])


def _turning(where: str, W: Array, h: int, d_rot: int | None) -> int:
    """The number of columns of a head that turn, checked against the width of a head."""
    width = W.shape[-1]
    if h < 1 or width % h:
        raise ShapeError(f"{where}: W has {width} columns, which do not divide into h = {h} heads.")
    d_k = width // h
    d_rot = d_k if d_rot is None else d_rot
    if d_rot % 2 or not 0 <= d_rot <= d_k:
        raise ShapeError(
            f"{where}: {d_rot} columns of each head are to turn; it must be an even number up to d_k = {d_k}."
        )
    return d_rot


def _reordered(W: Array, h: int, order: list[int]) -> Array:
    """The columns of every head in the given order; those beyond it stay in place."""
    xp, d_k = array_namespace(W), W.shape[-1] // h
    head = [*order, *range(len(order), d_k)]
    columns = xp.asarray([i * d_k + j for i in range(h) for j in head], dtype=xp.int64, device=device_of(W))
    return xp.take(W, columns, axis=-1)
