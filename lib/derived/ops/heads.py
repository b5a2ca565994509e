"""Heads are a reshape: split the last axis into heads, merge it again, and share key heads among query heads."""

from array_api_compat import array_namespace
from jaxtyping import Float

from derived.errors import ShapeError
from derived.ops.arrays import Array
from derived.ops.contract import shaped


@shaped
def split_heads(x: Float[Array, "*batch n d_model"], h: int) -> Float[Array, "*batch h n d_k"]:
    """Cut each token's vector into h equal pieces and put the heads before the tokens.

        y[…, i, t, c] = x[…, t, i·d_k + c],   d_k = d_model / h

    Shapes: x (*batch, n, d_model) -> (*batch, h, n, d_k). The order matters twice: the pieces are
    consecutive, and the axis of heads is moved by a transpose; a bare reshape to (h, n, d_k) would mix tokens.
    Raises ShapeError if h does not divide the width. Its pullback is `merge_heads`.

    Source: Vaswani et al. 2017, section 3.2.2; chapter 5.
    """
    xp = array_namespace(x)
    *batch, n, d_model = x.shape
    if h < 1 or d_model % h:
        raise ShapeError(
            f"split_heads: a width of {d_model} does not divide into h = {h} heads; choose h among its divisors."
        )
    return xp.moveaxis(xp.reshape(x, (*batch, n, h, d_model // h)), -2, -3)


@shaped
def merge_heads(x: Float[Array, "*batch h n d_v"]) -> Float[Array, "*batch n h_d_v"]:
    """Lay the heads' outputs side by side again: the inverse of `split_heads`, and its pullback.

    Shapes: x (*batch, h, n, d_v) -> (*batch, n, h_d_v), where h_d_v is the product h · d_v.

    Source: Vaswani et al. 2017, section 3.2.2; chapter 5.
    """
    xp = array_namespace(x)
    *batch, h, n, d_v = x.shape
    return xp.reshape(xp.moveaxis(x, -3, -2), (*batch, n, h * d_v))


def group_size(q: Array, k: Array) -> int:
    """How many query heads share one key head, h / h_kv; 1 where there is no axis of heads.

    Raises ShapeError if the leading axes differ elsewhere than in the last one, or h_kv does not divide h.
    """
    lead_q, lead_k = tuple(q.shape[:-2]), tuple(k.shape[:-2])
    if lead_q == lead_k:
        return 1
    if len(lead_q) != len(lead_k) or lead_q[:-1] != lead_k[:-1]:
        raise ShapeError(
            f"attention: q has leading axes {lead_q}, k and v have {lead_k}; they must agree, except that the last "
            "of them, the heads, may be fewer for k and v: add or broadcast the missing axes first."
        )
    h, h_kv = lead_q[-1], lead_k[-1]
    if h_kv == 0 or h % h_kv:
        raise ShapeError(
            f"attention: q has h = {h} heads, k and v have h_kv = {h_kv}; h must be a whole multiple of h_kv."
        )
    return h // h_kv


def repeat_heads(x: Array, groups: int) -> Array:
    """Give each of `groups` consecutive query heads the same key head: heads [a, b] become [a, a, b, b].

    Repeated, not tiled: [a, b, a, b] pairs query heads with the wrong keys.
    Shapes: x (*batch, h_kv, m, d) -> (*batch, h_kv · groups, m, d).

    Source: Ainslie et al. 2023, section 2.2.
    """
    if groups == 1:
        return x
    xp = array_namespace(x)
    *batch, h_kv, m, d = x.shape
    wide = xp.broadcast_to(x[..., None, :, :], (*batch, h_kv, groups, m, d))
    return xp.reshape(wide, (*batch, h_kv * groups, m, d))


def sum_groups(dx: Array, groups: int) -> Array:
    """Pullback of `repeat_heads`: a shared head receives the sum of what its copies receive.

    Shapes: dx (*batch, h_kv · groups, m, d) -> (*batch, h_kv, m, d).
    """
    if groups == 1:
        return dx
    xp = array_namespace(dx)
    *batch, h, m, d = dx.shape
    return xp.sum(xp.reshape(dx, (*batch, h // groups, groups, m, d)), axis=-3)
