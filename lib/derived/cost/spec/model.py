"""What a model is to the sizer: named tensors, layer by layer, and what each layer caches."""

from math import prod

from derived.cost.record import Record

EMBEDDING, POSITIONS, HEAD = "embedding", "positions", "head"
ATTENTION, RECURRENT = "attention", "recurrent mixer"
FFN, EXPERTS, SHARED, ROUTER = "feed-forward", "experts", "shared experts", "router"
NORM = "norms"

MATRIX_KINDS = frozenset({ATTENTION, RECURRENT, FFN, EXPERTS, SHARED})
"""The classes whose matrices engines quantise; the others stay in the model's own precision."""


class Tensor(Record):
    """One parameter tensor, `copies` times, and how tensor parallelism cuts it.

    `axis` is cut into `units` whole pieces (heads, columns, vocabulary rows); None: every rank holds it all.
    rule "divide": the ranks must divide the units. "repeat": fewer units than ranks are held several times
    (key and value heads). "pad": the units are padded to the next multiple of the ranks (vocabulary).
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    axis: int | None = None
    units: int = 1
    rule: str = "divide"
    copies: int = 1
    active: int | None = None  # copies that one token uses; None: all

    @property
    def parameters(self) -> int:
        """Numbers in all copies."""
        return prod(self.shape) * self.copies

    @property
    def active_parameters(self) -> int:
        """Numbers in the copies that one token uses."""
        return prod(self.shape) * (self.copies if self.active is None else self.active)

    @property
    def is_matrix(self) -> bool:
        """Whether an engine may store it quantised: the weight of a linear map inside a layer."""
        return len(self.shape) == 2 and self.kind in MATRIX_KINDS


class Cache(Record):
    """What one layer keeps of a sequence.

    kind "heads": h_kv keys of width `width_k` and values of width `width_v` a token. "latent": one row of
    `width_k` + `width_v` (latent and rotary part) a token, for all heads at once. "state": `heads` pieces of
    `width_k` numbers a sequence, whatever its length. `window`: the most tokens a layer keeps; None: all.
    """

    kind: str
    heads: int
    width_k: int
    width_v: int = 0
    window: int | None = None
    name: str = "keys and values"


class Scores(Record):
    """The attention that a layer computes, for its FLOPs: h query heads of widths d_k and d_v.

    `cached`: the two widths together where a decode step works on cached rows of another width (latent attention,
    whose up-projections are then applied to queries and outputs, at the same cost).
    """

    h: int
    d_k: int
    d_v: int
    window: int | None = None
    cached: int | None = None


class Layer(Record):
    """One layer: its tensors, its caches, its scores. Equal layers are equal tuples.

    `recurrence`: MACs of a recurrent mixer for one token beside its matrices, in the form that walks token by token.
    """

    name: str
    tensors: tuple[Tensor, ...]
    caches: tuple[Cache, ...] = ()
    scores: tuple[Scores, ...] = ()
    recurrence: int = 0


class Model(Record):
    """A model read from its config.json, or given by its totals.

    `first` sits on the first pipeline stage, `last` on the last. A tied head is no tensor of its own: it is the
    embedding again, which `tied` says. `prediction` holds extra prediction layers that serving leaves unloaded.
    `rope` is (positions, width) of each rotary table that an engine stores beside the weights.
    """

    name: str
    model_type: str
    d_model: int
    n_vocab: int
    h: int
    first: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    last: tuple[Tensor, ...]
    tied: bool
    dtype: str = "bf16"
    weights: str = "bf16"
    weight_group: int | None = None
    max_context: int | None = None
    rope: tuple[tuple[int, int], ...] = ()
    prediction: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def L(self) -> int:
        """Layers."""
        return len(self.layers)

    def tensors(self):
        """Every tensor that serving loads, first stage to last."""
        yield from self.first
        for layer in self.layers:
            yield from layer.tensors
        yield from self.last

    @property
    def parameters(self) -> int:
        """All parameters, a tied head once, extra prediction layers included."""
        return self.served_parameters + sum(tensor.parameters for tensor in self.prediction)

    @property
    def served_parameters(self) -> int:
        """The parameters that serving loads: without the extra prediction layers."""
        return sum(tensor.parameters for tensor in self.tensors())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, input embedding (and the head, tied or not) included."""
        return sum(tensor.active_parameters for tensor in self.tensors())

    @property
    def active_without_embedding(self) -> int:
        """Active parameters without the input embedding: what decode multiplies by. A tied head stays in."""
        looked_up = sum(tensor.parameters for tensor in self.first if tensor.kind in (EMBEDDING, POSITIONS))
        return self.active_parameters - looked_up + self.tied_head_parameters

    @property
    def tied_head_parameters(self) -> int:
        """Parameters of the embedding where it is the head again; 0 where the head has its own."""
        return sum(tensor.parameters for tensor in self.first if tensor.kind == EMBEDDING) if self.tied else 0

    def by_class(self) -> dict[str, int]:
        """Parameters of each tensor class, in the order met; they sum to `served_parameters`."""
        totals: dict[str, int] = {}
        for tensor in self.tensors():
            totals[tensor.kind] = totals.get(tensor.kind, 0) + tensor.parameters
        return totals
