"""ONNX's SoftmaxCrossEntropyLoss: classes on axis 1, weights by class, an index to leave out, three reductions."""

from array_api_compat import array_namespace

from derived.ops.cross_entropy import cross_entropy, mean_cross_entropy
from derived.ops.softmax import log_softmax


def lose(case, array):
    """The loss as the case reduces it, and the logarithms of the probabilities where it asks for them."""
    s, target, by_class = (array(case.input(i)) for i in range(3))
    xp = array_namespace(s)
    s = xp.moveaxis(s, 1, -1)
    counts = target != case.attributes.get("ignore_index", s.shape[-1])  # n_vocab is nobody's index
    target = xp.where(counts, target, xp.zeros_like(target))  # an admitted index; its weight is 0
    weight = xp.ones_like(s[..., 0]) if by_class is None else xp.reshape(xp.take(by_class, _flat(target)), target.shape)
    weight = xp.where(counts, weight, xp.zeros_like(weight))

    reduction = case.attributes.get("reduction", "mean")
    if reduction == "mean":
        loss = mean_cross_entropy(s, target, weight=weight)
    else:
        loss = weight * cross_entropy(s, target)
        loss = xp.sum(loss) if reduction == "sum" else loss
    return {0: loss, 1: xp.moveaxis(log_softmax(s), -1, 1)} if 1 in case.outputs else {0: loss}


def _flat(x):
    """x as one axis."""
    return array_namespace(x).reshape(x, (-1,))
