"""ONNX's RotaryEmbedding: tables by position or by token, a head's first columns alone, heads side by side."""

from array_api_compat import array_namespace

from derived.ops.heads import merge_heads, split_heads
from derived.ops.positions import rope


def turn(case, array):
    """The input with each head's pairs turned; how many columns turn is said by the tables' width."""
    x, cos, sin, positions = (array(case.input(i)) for i in range(4))
    xp = array_namespace(x)
    if positions is not None:
        index = xp.reshape(positions, (-1,))
        cos, sin = (xp.reshape(xp.take(table, index, axis=0), (*positions.shape, -1)) for table in (cos, sin))
    cos, sin = (table[:, None, :, :] for table in (cos, sin))  # one table serves all heads of a sequence
    interleaved = bool(case.attributes.get("interleaved", 0))
    if x.ndim == 3:
        heads = split_heads(x, case.attributes["num_heads"])
        return {0: merge_heads(rope(heads, cos, sin, interleaved=interleaved))}
    return {0: rope(x, cos, sin, interleaved=interleaved)}
