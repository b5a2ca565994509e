"""Low-rank adaptation: a frozen matrix, and beside it an update of rank r that alone is trained."""

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.errors import ShapeError
from derived.ops.arrays import Array, widen_together
from derived.ops.contract import shaped
from derived.ops.linear import linear_vjp


@shaped
def lora(
    x: Float[Array, "*batch d_in"],
    W: Float[Array, "d_in d_out"],
    D: Float[Array, "d_in r"],
    U: Float[Array, "r d_out"],
    *,
    alpha: float | int,
) -> Float[Array, "*batch d_out"]:
    """Map every row by W and by a low-rank update of it: `lora_vjp` without the way back."""
    return lora_vjp(x, W, D, U, alpha=alpha)[0]


@shaped
def lora_vjp(
    x: Float[Array, "*batch d_in"],
    W: Float[Array, "d_in d_out"],
    D: Float[Array, "d_in r"],
    U: Float[Array, "r d_out"],
    *,
    alpha: float | int,
):
    """Map every row by W and by a low-rank update of it.

        z = x D,   y = x W + (α/r) z U

    Shapes: x (*batch, d_in), W (d_in, d_out), D (d_in, r), U (r, d_out) -> y (*batch, d_out);
    pullback: dy (*batch, d_out) -> dx, dD, dU. W is frozen: it has no gradient here, but x's gradient
    passes through it. D and U together hold r (d_in + d_out) numbers. With U = 0, the usual start, y = x W
    and dD = 0: the first step moves U alone. Half precisions are computed in float32 throughout.
    Raises ShapeError if sizes disagree or r = 0.

    Source: Hu et al. 2021, equation 3 and section 4.1 (α/r); chapter 16.
    """
    scale = _scale(alpha, D)
    xp = array_namespace(x)
    wide_x, wide_W, wide_D, wide_U = widen_together(x, W, D, U)
    z, down_pullback = linear_vjp(wide_x, wide_D)
    update, up_pullback = linear_vjp(z, wide_U)
    y = wide_x @ wide_W + scale * update

    def pullback(dy: Float[Array, "*batch d_out"]) -> tuple:
        """dU = (α/r) Σ zᵀ dy,  dz = (α/r) dy Uᵀ,  dD = Σ xᵀ dz,  dx = dy Wᵀ + dz Dᵀ."""
        dy = xp.astype(dy, y.dtype)
        dz, dU = up_pullback(scale * dy)
        dx_low, dD = down_pullback(dz)
        dx = dy @ xp.matrix_transpose(wide_W) + dx_low
        return xp.astype(dx, x.dtype), xp.astype(dD, D.dtype), xp.astype(dU, U.dtype)

    return xp.astype(y, x.dtype), pullback


@shaped
def merge_lora(
    W: Float[Array, "d_in d_out"], D: Float[Array, "d_in r"], U: Float[Array, "r d_out"], *, alpha: float | int
) -> Float[Array, "d_in d_out"]:
    """One matrix in place of three: W + (α/r) D U.

    Shapes: W (d_in, d_out), D (d_in, r), U (r, d_out) -> (d_in, d_out), in the dtype of W.
    Exact in real arithmetic. Rounded to the dtype of W it loses what lies below half a step of W: in
    bfloat16 an entry of the update below 2⁻⁹ of W's entry vanishes altogether.
    Raises ShapeError if sizes disagree or r = 0.

    Source: Hu et al. 2021, section 4.1; chapter 16.
    """
    wide_W, wide_D, wide_U = widen_together(W, D, U)
    return array_namespace(W).astype(wide_W + _scale(alpha, D) * (wide_D @ wide_U), W.dtype)


def _scale(alpha: float, D: Array) -> float:
    """α / r."""
    if D.shape[1] == 0:
        raise ShapeError(
            f"lora: D has shape {tuple(D.shape)}, a rank of 0, and α/r has no value; use r ≥ 1, or W alone."
        )
    return alpha / D.shape[1]
