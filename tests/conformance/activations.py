"""ONNX's Gelu and Swish, elementwise."""

from derived.ops.activations import gelu, gelu_tanh, silu


def activate(case, array):
    """The case's non-linearity of its one input."""
    x = array(case.input(0))
    if case.operator == "Swish":
        return {0: silu(x, beta=case.attributes["alpha"])}
    return {0: {"none": gelu, "tanh": gelu_tanh}[case.attributes.get("approximate", "none")](x)}
