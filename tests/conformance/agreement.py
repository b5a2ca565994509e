"""One case, one voice: the adapter of its operator is called and every output compared with ONNX's.

Tolerances, by the dtype of the output. ONNX's own runner allows 1e-3 relative, 2⁻⁶ for bfloat16, and 1e-7
absolute. float32 is held to 1e-5: the largest difference seen is 2.2e-6, where a LayerNorm cancels to nearly 0.
In half precision ONNX's reference rounds after every step, this package once, at the end: they may differ
by one unit in the last place of float16 (2⁻¹⁰, which is ONNX's 1e-3), and by two of bfloat16 (2⁻⁶).
"""

import numpy as np

from tests.conformance import activations, attention, cross_entropy, norm, rotary, softmax
from tests.support.voices import to_numpy

ADAPTERS = {
    "Attention": attention.attend,
    "Gelu": activations.activate,
    "LayerNormalization": norm.layer_normalise,
    "LogSoftmax": softmax.normalise,
    "RMSNormalization": norm.rms_normalise,
    "RotaryEmbedding": rotary.turn,
    "Softmax": softmax.normalise,
    "SoftmaxCrossEntropyLoss": cross_entropy.lose,
    "Swish": activations.activate,
}
"""Operator -> function of a case and a voice that gives the outputs by position."""

RTOL = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 2.0**-6}


def compare(case, array, **options):
    """Raise AssertionError unless every output of the case has ONNX's shape, dtype and values."""
    outputs = ADAPTERS[case.operator](case, array, **options)
    assert outputs.keys() == case.outputs.keys(), f"outputs {sorted(case.outputs)} are asked for"
    for position, expected in case.outputs.items():
        given, kind = outputs[position], expected.dtype.name
        assert str(given.dtype).removeprefix("torch.") == kind, f"output {position}: {given.dtype} for {kind}"
        wanted = expected.astype(np.float64)
        np.testing.assert_allclose(
            to_numpy(given), wanted, rtol=RTOL[kind], atol=case.atol, strict=True, err_msg=f"output {position}"
        )


def broken(cases, array) -> list[str]:
    """Names of the cases that do not agree."""
    names = []
    for case in cases:
        try:
            compare(case, array)
        except AssertionError:
            names.append(case.name)
    return names
