"""Rotary positions: queries and keys are turned, so that their product knows only how far apart they are.

Two conventions of which columns form a pair are in use, for a head of six columns:

    interleaved   (0 1) (2 3) (4 5)     the paper, GPT-J, Llama's own code
    half-split    (0 3) (1 4) (2 5)     GPT-NeoX, and Llama as transformers stores it

They differ by a permutation of columns (`pairing.py`); weights made for one are wrong under the other.
"""

from array_api_compat import array_namespace
from jaxtyping import Float, Real

from derived.errors import ShapeError
from derived.ops.arrays import Array, widen_together
from derived.ops.contract import shaped
from derived.ops.positions.sinusoids import angles


@shaped
def rotary_tables(positions: Real[Array, "*table n"], d_rot: int, *, base: float | int = 10_000) -> tuple:
    """The cosine and sine of every angle that `rope` turns by.

        cos_{p,i} = cos(p θ_i),   sin_{p,i} = sin(p θ_i),   θ_i = base^{−2i/d_rot}

    Shapes: positions (*table, n) -> cos and sin, each (*table, n, half), half = d_rot/2.
    d_rot is the number of columns that turn: d_k, or fewer. Integer positions give float64 tables.
    Raises ShapeError if d_rot is odd, DtypeError for positions in half precision (see `angles`).

    Source: Su et al. 2021, equation 15; chapter 6.
    """
    xp, turned = array_namespace(positions), angles(positions, d_rot, base=base)
    return xp.cos(turned), xp.sin(turned)


@shaped
def rope(
    x: Float[Array, "*batch n d_k"],
    cos: Float[Array, "*table n half"],
    sin: Float[Array, "*table n half"],
    *,
    interleaved: bool,
) -> Float[Array, "*batch n d_k"]:
    """Turn every pair of columns by its position's angle: `rope_vjp` without the way back."""
    return rope_vjp(x, cos, sin, interleaved=interleaved)[0]


@shaped
def rope_vjp(
    x: Float[Array, "*batch n d_k"],
    cos: Float[Array, "*table n half"],
    sin: Float[Array, "*table n half"],
    *,
    interleaved: bool,
):
    """Turn every pair of columns by its position's angle.

        y_a = x_a cos − x_b sin,   y_b = x_a sin + x_b cos

    where the pair i is (a, b) = (2i, 2i + 1) if interleaved, else (i, i + half).

    Shapes: x (*batch, n, d_k), cos and sin (*table, n, half) -> y (*batch, n, d_k); pullback:
    dy (*batch, n, d_k) -> dx (*batch, n, d_k). table broadcasts to batch. The first 2 · half columns turn,
    the others pass. The tables are constants: no gradient. With tables from `rotary_tables`, norms are
    kept and ⟨y_p, y′_q⟩ depends on p − q only. Half precisions are computed in float32.
    Raises ShapeError if there are more than d_k/2 angles, or table does not broadcast to batch.

    Source: Su et al. 2021, equation 34; chapter 6.
    """
    half, lead, table = cos.shape[-1], tuple(x.shape[:-2]), tuple(cos.shape[:-2])
    if 2 * half > x.shape[-1]:
        raise ShapeError(
            f"rope: {half} angles turn {2 * half} columns, x has d_k = {x.shape[-1]}; give half as many angles."
        )
    tail = lead[len(lead) - len(table) :] if len(table) <= len(lead) else None
    if tail is None or any(given not in (1, wanted) for given, wanted in zip(table, tail, strict=True)):
        raise ShapeError(
            f"rope: cos and sin have leading axes {table}, x has {lead}; insert axes of size 1 where one table serves "
            "all."
        )
    xp = array_namespace(x)
    wide, cos, sin = widen_together(x, cos, sin)

    def pullback(dy: Float[Array, "*batch n d_k"]) -> Float[Array, "*batch n d_k"]:
        """dx_a = dy_a cos + dy_b sin,  dx_b = dy_b cos − dy_a sin: the turn by the negative angle."""
        return xp.astype(_turned(xp.astype(dy, wide.dtype), cos, -sin, interleaved), x.dtype)

    return xp.astype(_turned(wide, cos, sin, interleaved), x.dtype), pullback


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """The rotation itself, on as many columns as there are angles for."""
    xp, half = array_namespace(x), cos.shape[-1]
    rest = x[..., 2 * half :]
    a, b = (
        (x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]) if interleaved else (x[..., :half], x[..., half : 2 * half])
    )
    y_a, y_b = a * cos - b * sin, a * sin + b * cos
    if interleaved:
        turned = xp.reshape(xp.stack((y_a, y_b), axis=-1), (*x.shape[:-1], 2 * half))
        return xp.concat((turned, rest), axis=-1)
    return xp.concat((y_a, y_b, rest), axis=-1)
