"""The suite can fail: each planted error breaks exactly those of ONNX's cases that its description predicts."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from tests.conformance.agreement import broken
from tests.conformance.attention import aligned_to_last_key, speaks_of_positions
from tests.conformance.cases import collected
from tests.conformance.voices import in_numpy, speaks
from tests.support.mutants import planted

OPS, HERE = "derived.ops", "tests.conformance"


class Planted(NamedTuple):
    """An error, the module and text where it is planted, and the cases of one operator that it must break."""

    what: str
    module: str
    right: str
    wrong: str
    operator: str
    breaks: Callable
    count: int


def heads(case):
    """Query heads and key heads of an Attention case."""
    if case.inputs[0].ndim == 3:
        return case.attributes["q_num_heads"], case.attributes["kv_num_heads"]
    return case.inputs[0].shape[1], case.inputs[1].shape[1]


def unequal(case):
    """ONNX's causal without a cache, on other than as many keys as queries."""
    return speaks_of_positions(case) and case.attributes.get("is_causal", 0) and not aligned_to_last_key(case)


def cached(case):
    """Causal on a cache, given as a past or by the number of valid keys, and more keys than queries."""
    cache = case.input(4) is not None or case.input(6) is not None
    return aligned_to_last_key(case) and cache and not flat(case, 2)


def windowed(case):
    """A window that this package's own `window` serves."""
    return aligned_to_last_key(case) and case.attributes.get("left_window_size", -1) >= 0 and not flat(case, 2)


def masked(case):
    """A boolean mask, the case's own or the one that its positions are written as."""
    own = case.input(3) is not None and case.input(3).dtype == bool
    return own or (speaks_of_positions(case) and not aligned_to_last_key(case))


def every(case):
    """Each case of the operator."""
    return True


def flat(case, position):
    """An input whose tokens are all alike: with such keys every score is, with such values every output is."""
    x = case.inputs[position]
    return bool((x == x[..., :1, :]).all())


ONE_KEY = "test_attention_causal_boolmask_nan_robustness"
"""Its queries read one key or none, so no factor on the scores matters."""

SMALL = None
"""The error may lie below the tolerance: the case is not asked."""


ERRORS = [
    Planted(
        "causal aligned to the last key throughout",
        f"{HERE}.attention",
        "return case.input(6) is not None or queries == new_keys",
        "return True",
        "Attention",
        unequal,
        16,
    ),
    Planted(
        "causal aligned to the first key throughout",
        f"{OPS}.masks",
        "[:, None] + (m - n)",
        "[:, None]",
        "Attention",
        cached,
        10,
    ),
    Planted(
        "window one short",
        f"{OPS}.masks",
        "j > i - window",
        "j > i - window + 1",
        "Attention",
        windowed,
        3,
    ),
    Planted(
        "key heads tiled, not repeated",
        f"{OPS}.heads",
        "xp.broadcast_to(x[..., None, :, :], (*batch, h_kv, groups, m, d))",
        "xp.broadcast_to(x[..., None, :, :, :], (*batch, groups, h_kv, m, d))",
        "Attention",
        lambda case: heads(case)[0] > heads(case)[1] > 1,
        16,
    ),
    Planted(
        "heads reshaped, not transposed",
        f"{OPS}.heads",
        "xp.moveaxis(xp.reshape(x, (*batch, n, h, d_model // h)), -2, -3)",
        "xp.reshape(x, (*batch, h, n, d_model // h))",
        "Attention",
        lambda case: case.inputs[0].ndim == 3 and not flat(case, 2),
        23,
    ),
    Planted(
        "scale lost",
        f"{OPS}.attention",
        "S_scaled = S * scale",
        "S_scaled = S * 1",
        "Attention",
        lambda case: not flat(case, 1) and case.name != ONE_KEY,
        84,
    ),
    Planted(
        "soft cap after the bias",
        f"{OPS}.attention",
        """    seen = S_scaled if softcap is None else softcap * xp.tanh(S_scaled / softcap)
    if bias is not None:
        seen = seen + xp.astype(bias, seen.dtype)
""",
        """    seen = S_scaled if bias is None else S_scaled + xp.astype(bias, S_scaled.dtype)
    seen = seen if softcap is None else softcap * xp.tanh(seen / softcap)
""",
        "Attention",
        lambda case: (
            "softcap" in case.attributes and case.input(3) is not None and case.input(3).max() not in (0, True)
        ),
        2,
    ),
    Planted(
        "soft cap lost",
        f"{OPS}.attention",
        "seen = S_scaled if softcap is None else softcap * xp.tanh(S_scaled / softcap)",
        "seen = S_scaled",
        "Attention",
        lambda case: "softcap" in case.attributes,
        11,
    ),
    Planted(
        "a boolean mask read as True = may not",
        f"{OPS}.masks",
        'allowed.append(cut(_fitting("mask", mask, q, m), rows, keys))',
        'allowed.append(~cut(_fitting("mask", mask, q, m), rows, keys))',
        "Attention",
        masked,
        25,
    ),
    Planted(
        "exponentials without the maximum",
        f"{OPS}.softmax",
        "e = xp.exp(x - c)",
        "e = xp.exp(x)",
        "Softmax",
        lambda case: case.name.endswith("large_number"),
        1,
    ),
    Planted(
        "the sum over the wrong axis",
        f"{OPS}.softmax",
        "return e, c, xp.sum(e, axis=-1, keepdims=True)",
        "return e, c, xp.sum(e, axis=0, keepdims=True)",
        "LogSoftmax",
        every,
        7,
    ),
    Planted(
        "the tanh form for the exact GELU",
        f"{OPS}.activations",
        "below = 0.5 * (1 + erf(wide * math.sqrt(0.5)))",
        "below = 0.5 * (1 + xp.tanh(SQRT_2_OVER_PI * (wide + GELU_CUBIC * wide**3)))",
        "Gelu",
        lambda case: "default" in case.name,
        2,
    ),
    Planted(
        "1.702 in the logistic function",
        f"{OPS}.activations",
        "z = beta * wide",
        "z = 1.702 * wide",
        "Swish",
        every,
        1,
    ),
    Planted(
        "epsilon outside the root",
        f"{OPS}.norm",
        "rho = 1 / xp.sqrt(_mean(centred * centred) + eps)",
        "rho = 1 / (xp.sqrt(_mean(centred * centred)) + eps)",
        "LayerNormalization",
        lambda case: True if "epsilon" in case.attributes else SMALL,
        6,
    ),
    Planted(
        "the unbiased variance",
        f"{OPS}.norm",
        "rho = 1 / xp.sqrt(_mean(centred * centred) + eps)",
        "rho = 1 / xp.sqrt(xp.sum(centred**2, axis=-1, keepdims=True) / (x.shape[-1] - 1) + eps)",
        "LayerNormalization",
        every,
        19,
    ),
    Planted(
        "the mean removed",
        f"{OPS}.norm",
        "x_hat = wide * rho",
        "x_hat = (wide - _mean(wide)) * rho",
        "RMSNormalization",
        every,
        19,
    ),
    Planted(
        "a mean over tokens, not over weights",
        f"{OPS}.cross_entropy",
        "total = xp.sum(w)",
        "total = xp.sum(xp.ones_like(w))",
        "SoftmaxCrossEntropyLoss",
        lambda case: (
            case.attributes["reduction"] == "mean" and (case.input(2) is not None or "ignore_index" in case.attributes)
        ),
        18,
    ),
    Planted(
        "turned the other way",
        f"{OPS}.positions.rotary",
        "y_a, y_b = a * cos - b * sin, a * sin + b * cos",
        "y_a, y_b = a * cos + b * sin, b * cos - a * sin",
        "RotaryEmbedding",
        every,
        8,
    ),
    Planted(
        "the other pairing",
        f"{HERE}.rotary",
        'interleaved = bool(case.attributes.get("interleaved", 0))',
        'interleaved = not bool(case.attributes.get("interleaved", 0))',
        "RotaryEmbedding",
        every,
        8,
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.what)
def test_breaks_the_cases_it_must(error):
    cases = [case for case in collected() if case.operator == error.operator and speaks(in_numpy, case)]
    asked = [case for case in cases if error.breaks(case) is not SMALL]
    with planted(error.module, error.right, error.wrong), np.errstate(all="ignore"):
        found = set(broken(asked, in_numpy))
    assert found == {case.name for case in asked if error.breaks(case)}
    assert len(found) == error.count
    assert not broken(cases, in_numpy), "the error stays after it was taken back"
