"""ONNX's own node cases for the operators that `derived.ops` derives, read from the installed `onnx` package.

A case is a node (an operator with its attributes), input arrays and the output arrays that ONNX's
reference gives. The package writes them while its modules are imported, so only those modules are
imported in whose text one of the operators is named: half a second instead of eight.

Source: the package `onnx`, `onnx.backend.test.case.node` (Apache-2.0).
"""

import functools
import importlib
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

OPERATORS = (
    "Attention",
    "Gelu",
    "LayerNormalization",
    "LogSoftmax",
    "RMSNormalization",
    "RotaryEmbedding",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Swish",
)


class Case(NamedTuple):
    """One node case: inputs by position, None where an optional one is left out; outputs by position."""

    name: str
    operator: str
    attributes: dict
    inputs: tuple
    outputs: dict[int, np.ndarray]
    rtol: float
    atol: float

    def input(self, position):
        """The input at this position, or None if the node has none there."""
        return self.inputs[position] if position < len(self.inputs) else None


@functools.cache
def collected() -> tuple[Case, ...]:
    """Every case of OPERATORS but the `_expanded` ones, which state the same numbers for a graph of simpler nodes."""
    import onnx.backend.test.case.node as package

    state = np.random.get_state()  # noqa: NPY002 (the modules seed numpy's global generator as they are imported)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the references overflow and divide on purpose
        for module in modules_that_name(OPERATORS):
            importlib.import_module(module)
    np.random.set_state(state)  # noqa: NPY002
    found = [test for test in package._NodeTestCases if "_expanded" not in test.name]
    return tuple(_case(test) for test in found if test.model.graph.node[0].op_type in OPERATORS)


def modules_that_name(operators) -> list[str]:
    """The case modules of onnx in whose source text one of the operators stands in quotes."""
    import onnx.backend.test.case.node as package

    root = Path(package.__file__).parent
    texts = {
        path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")) if path.name != "__init__.py"
    }
    return [
        ".".join((package.__name__, *path.relative_to(root).with_suffix("").parts))
        for path, text in texts.items()
        if any(f'"{operator}"' in text for operator in operators)
    ]


def _case(test) -> Case:
    """Unpack one test of onnx: its single node, and its single set of arrays."""
    import onnx.helper

    (node,) = test.model.graph.node
    ((inputs, outputs),) = test.data_sets
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs, outputs = iter(inputs), iter(outputs)  # arrays are given only for names that are not empty
    return Case(
        name=test.name,
        operator=node.op_type,
        attributes={key: x.decode() if isinstance(x, bytes) else x for key, x in attributes.items()},
        inputs=tuple(next(inputs) if name else None for name in node.input),
        outputs={i: next(outputs) for i, name in enumerate(node.output) if name},
        rtol=test.rtol,
        atol=test.atol,
    )
