"""ONNX's Softmax and LogSoftmax along any axis: the axis is moved to the end, where this package has it."""

from array_api_compat import array_namespace

from derived.ops.softmax import log_softmax, softmax


def normalise(case, array):
    """Weights of the case along its axis, the last one unless given."""
    x, axis = array(case.input(0)), case.attributes.get("axis", -1)
    xp = array_namespace(x)
    f = {"Softmax": softmax, "LogSoftmax": log_softmax}[case.operator]
    return {0: xp.moveaxis(f(xp.moveaxis(x, axis, -1)), -1, axis)}
