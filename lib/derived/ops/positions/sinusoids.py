"""Angles that grow with the position, one frequency a pair of columns, and the sinusoids of 2017 made of them."""

from array_api_compat import array_namespace
from jaxtyping import Float, Real

from derived.errors import DtypeError, ShapeError
from derived.ops.arrays import Array, device_of, is_half
from derived.ops.contract import shaped


@shaped
def angles(positions: Real[Array, "*batch"], width: int, *, base: float | int = 10_000) -> Float[Array, "*batch half"]:
    """The angle of every position at each of width/2 frequencies.

        angle_{p,i} = p θ_i,   θ_i = base^{−2i/width},   i = 0 … width/2 − 1

    Shapes: positions (*batch) -> (*batch, half), half = width/2, in radians.
    Integer positions give float64. Floating positions keep their precision, and half precision is refused:
    in bfloat16 the integers above 256, in float16 those above 2048, share their numbers with their neighbours.
    Raises ShapeError if width is odd, DtypeError for positions in half precision.

    Source: Vaswani et al. 2017, section 3.5; chapter 6.
    """
    xp = array_namespace(positions)
    if width < 0 or width % 2:
        raise ShapeError(f"angles: width = {width}; each frequency turns a pair of columns, so give an even width.")
    if is_half(positions.dtype, xp):
        kind = str(positions.dtype).removeprefix("torch.")
        raise DtypeError(
            f"angles: positions have dtype {kind}, in which neighbouring positions collide; give integers or float32."
        )
    if not xp.isdtype(positions.dtype, "real floating"):
        positions = xp.astype(positions, xp.float64)
    i = xp.arange(width // 2, dtype=positions.dtype, device=device_of(positions))
    return positions[..., None] * base ** (-2 * i / max(width, 1))


@shaped
def sinusoids(
    positions: Real[Array, "*batch"], d_model: int, *, base: float | int = 10_000
) -> Float[Array, "*batch d_model"]:
    """A vector for every position, to be added to the token's own: sine in even columns, cosine in odd ones.

        y_{p,2i} = sin(p θ_i),   y_{p,2i+1} = cos(p θ_i),   θ_i = base^{−2i/d_model}

    Shapes: positions (*batch) -> (*batch, d_model). Nothing in it is learned, so there is no pullback.
    Moving on by k positions turns every pair by the angle k θ_i, whatever p is: a linear map.
    Raises ShapeError if d_model is odd, DtypeError for positions in half precision (see `angles`).

    Source: Vaswani et al. 2017, section 3.5; chapter 6.
    """
    xp, turned = array_namespace(positions), angles(positions, d_model, base=base)
    pairs = xp.stack((xp.sin(turned), xp.cos(turned)), axis=-1)
    return xp.reshape(pairs, (*positions.shape, d_model))
