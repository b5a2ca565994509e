"""A model given by its totals, for the arithmetic of a chapter: so many parameters, spread evenly over the layers."""

from derived.cost.spec import parts
from derived.cost.spec.fields import ConfigError
from derived.cost.spec.model import FFN, Cache, Layer, Model, Scores, Tensor


def outline(
    parameters: int, *, L: int, d_model: int, h: int, n_vocab: int, h_kv: int | None = None, d_k: int | None = None
) -> Model:
    """A model of exactly `parameters`: embedding and head of n_vocab rows, the rest spread evenly over L layers.

    What is spread is cut evenly by tensor parallelism, when the ranks divide the h heads.
    Raises ConfigError where the embedding and the head alone are larger, or heads do not divide.
    Chapter 13: `outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)` is the story's model.
    """
    h_kv = h if h_kv is None else h_kv
    if h % h_kv or (d_k is None and d_model % h):
        raise ConfigError(
            f"h = {h} must be a multiple of h_kv = {h_kv}, and d_model = {d_model} of h where d_k is open"
        )
    d_k = d_model // h if d_k is None else d_k
    embedding, head = parts.embedding(n_vocab, d_model), parts.head(n_vocab, d_model)
    rest = parameters - embedding.parameters - head.parameters
    if rest < L:
        raise ConfigError(f"{parameters} parameters do not hold an embedding and a head of {n_vocab} × {d_model}")
    caches, scores = (Cache("heads", h_kv, d_k, d_k),), (Scores(h, d_k, d_k),)

    def layer(size: int) -> Layer:
        heads = Tensor("all of the layer", FFN, (1, size), 1, size, "pad")
        marker = Tensor("heads", FFN, (h, 0), 0, h)  # no numbers, but ranks must divide the heads
        keys = Tensor("key heads", FFN, (h_kv, 0), 0, h_kv, "repeat")
        return Layer("full attention", (heads, marker, keys), caches, scores)

    each, over = divmod(rest, L)
    layers = tuple(layer(each + 1) if i < over else layer(each) for i in range(L))
    return Model(
        f"{parameters:,} parameters", "outline", d_model, n_vocab, h,
        (embedding,), layers, (head,), False, "fp16", "fp16",
    )  # fmt: skip
