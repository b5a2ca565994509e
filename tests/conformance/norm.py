"""ONNX's LayerNormalization and RMSNormalization: the axes normalised over are laid out as one.

ONNX also gives the mean and the inverse deviation of LayerNormalization, which `layer_norm` keeps to itself.
They are read off its result: x̂ = (x − μ) ρ is a straight line in x, so two entries of a row fix ρ and μ.
"""

import math

from array_api_compat import array_namespace

from derived.ops.norm import layer_norm, rms_norm


def layer_normalise(case, array):
    """Y, and the mean and inverse deviation where the case asks for them."""
    x, rows, (gain, bias), eps = _laid_out(case, array)
    xp = array_namespace(x)
    outputs = {0: xp.reshape(layer_norm(rows, gain, bias, eps=eps), x.shape)}
    mean, rho = _line(xp.astype(rows, xp.float64), eps)
    axis = case.attributes.get("axis", -1) % x.ndim
    kept = (*x.shape[:axis], *(1,) * (x.ndim - axis))
    outputs |= {1: xp.reshape(xp.astype(mean, x.dtype), kept), 2: xp.reshape(xp.astype(rho, x.dtype), kept)}
    return {i: outputs[i] for i in case.outputs}


def rms_normalise(case, array):
    """Y alone."""
    x, rows, (gain, _), eps = _laid_out(case, array)
    return {0: array_namespace(x).reshape(rms_norm(rows, gain, eps=eps), x.shape)}


def _laid_out(case, array):
    """x, x as (rows, numbers), gain and bias as vectors, ε."""
    x, gain, bias = (array(case.input(i)) for i in range(3))
    xp = array_namespace(x)
    width = math.prod(x.shape[case.attributes.get("axis", -1) % x.ndim :])
    vectors = [p if p is None else xp.reshape(p, (width,)) for p in (gain, bias)]
    return x, xp.reshape(x, (-1, width)), vectors, case.attributes.get("epsilon", 1e-5)


def _line(rows, eps):
    """μ and ρ of every row, from the largest and the smallest entry and what became of them; float64."""
    xp = array_namespace(rows)
    x_hat = layer_norm(rows, eps=eps)
    high, low = xp.max(rows, axis=-1), xp.min(rows, axis=-1)
    rho = (xp.max(x_hat, axis=-1) - xp.min(x_hat, axis=-1)) / (high - low)
    return low - xp.min(x_hat, axis=-1) / rho, rho
