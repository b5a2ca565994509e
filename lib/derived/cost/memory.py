"""Bytes, exact: what weights take in a given format, what a cache takes for a token and for a conversation.

All results are whole numbers of bytes. Letters: t tensor-parallel ranks, b bytes of one number, n the context.
"""

from math import prod

from derived.cost.record import Record
from derived.cost.spec.model import Cache, Model, Tensor
from derived.errors import DerivedError

GIB = 2**30
GB = 10**9
BLOCK = 16
"""Tokens in one block of a paged cache: vLLM's default."""

STATE_BYTES = 4
"""Recurrent and convolution states are kept in float32, as the engines' logs show (llama.cpp: S and R buffers)."""


class WeightFormat(Record):
    """How the numbers of a matrix are stored: bits each, and a scale of `scale_bytes` for a block of rows × columns.

    columns 0: the scale spans the whole row. scope "all": every tensor; "matrices": linear maps inside layers, the
    rest stays in the model's own precision; "experts": only the experts' where there are any.
    """

    bits: int
    rows: int = 1
    columns: int = 0
    scale_bytes: int = 0
    scope: str = "matrices"
    meaning: str = ""


WEIGHT_FORMATS = {
    "fp32": WeightFormat(32, scope="all", meaning="4 bytes"),
    "fp16": WeightFormat(16, scope="all", meaning="2 bytes"),
    "bf16": WeightFormat(16, scope="all", meaning="2 bytes"),
    "fp8": WeightFormat(8, scale_bytes=4, meaning="1 byte, a float32 scale an output row"),
    "fp8_block": WeightFormat(8, 128, 128, 4, meaning="1 byte, a float32 scale for 128 × 128 (DeepSeek-V3)"),
    "int8": WeightFormat(8, scale_bytes=4, meaning="1 byte, a float32 scale an output row"),
    "int4": WeightFormat(4, 1, 128, 2, meaning="4 bits, a 16-bit scale for 128 inputs, no zero point"),
    "mxfp4": WeightFormat(4, 1, 32, 1, "experts", "4 bits, an 8-bit exponent for 32 inputs (OCP MX)"),
}
"""Formats of weights. Embedding, head, norms, routers and biases stay unquantised in all but the first three."""


class CacheFormat(Record):
    """`group` numbers of a cache row take `group_bytes`."""

    group: int
    group_bytes: int
    meaning: str


CACHE_FORMATS = {
    "fp32": CacheFormat(1, 4, "4 bytes"),
    "fp16": CacheFormat(1, 2, "2 bytes"),
    "bf16": CacheFormat(1, 2, "2 bytes"),
    "fp8": CacheFormat(1, 1, "1 byte, scales aside; latent rows: a float32 scale for 128, the rotary part in 16 bits"),
    "int8": CacheFormat(1, 1, "1 byte, scales aside"),
    "q8_0": CacheFormat(32, 34, "1 byte, a 16-bit scale for 32 (llama.cpp)"),
    "int4": CacheFormat(2, 1, "4 bits, scales aside"),
    "q4_0": CacheFormat(32, 18, "4 bits, a 16-bit scale for 32 (llama.cpp)"),
}
"""Formats of caches. "Scales aside": one scale a tensor or a head, which no token adds to."""


def known(name: str, table: dict, what: str):
    """The row of a table of formats, or a sentence that lists the table."""
    if name not in table:
        raise DerivedError(f"{what} {name!r} is not known: choose one of {', '.join(table)}")
    return table[name]


def cut(tensor: Tensor, t: int) -> tuple[int, ...]:
    """The shape of one rank's piece: ⌈units / t⌉ units along the cut axis, and at least one.

    Where ranks outnumber key heads each holds one, so together they hold more than the model has.
    """
    if t == 1 or tensor.axis is None:
        return tensor.shape
    held = max(1, -(-tensor.units // t))
    shape = list(tensor.shape)
    shape[tensor.axis] = shape[tensor.axis] // tensor.units * held
    return tuple(shape)


def stored_bytes(shape: tuple[int, ...], form: WeightFormat) -> int:
    """Bytes of one tensor in a format: ⌈numbers · bits / 8⌉ and its scales."""
    numbers = -(-prod(shape) * form.bits // 8)
    if not form.scale_bytes or not numbers:
        return numbers
    rows, columns = shape
    blocks = -(-rows // form.rows) * (-(-columns // form.columns) if form.columns else 1)
    return numbers + blocks * form.scale_bytes


class Weights(Record):
    """How a model's tensors are stored: `form` for what the format covers, `rest` for what it leaves."""

    form: WeightFormat
    rest: WeightFormat
    experts_only: bool

    def of(self, tensor: Tensor, t: int = 1) -> int:
        """Bytes of all copies of a tensor on one of t ranks."""
        covered = self.form.scope == "all" or (tensor.is_matrix and (not self.experts_only or tensor.kind == "experts"))
        return tensor.copies * stored_bytes(cut(tensor, t), self.form if covered else self.rest)

    def scales(self, tensor: Tensor) -> int:
        """Scale values that the format adds to a tensor."""
        return (self.of(tensor) - Weights(self.form._replace(scale_bytes=0), *self[1:]).of(tensor)) // max(
            1, self.form.scale_bytes
        )


def weights(model: Model, dtype: str | None = None) -> Weights:
    """How `model` is stored in the format `dtype`; None: as its config says."""
    name = model.weights if dtype is None else dtype
    form = known(name, WEIGHT_FORMATS, "weight format")
    if dtype is None and model.weight_group and name == "int4":
        form = form._replace(columns=model.weight_group)
    routed = any(tensor.kind == "experts" for layer in set(model.layers) for tensor in layer.tensors)
    return Weights(form, WEIGHT_FORMATS[model.dtype], form.scope == "experts" and routed)


def weight_bytes(model: Model, dtype: str | None = None) -> int:
    """Bytes of the tensors that serving loads, a tied head once, extra prediction layers left out.

        Σ over tensors of copies · (⌈numbers · bits / 8⌉ + scales)

    dtype: a key of WEIGHT_FORMATS; None: as the config says. Raises DerivedError for an unknown format. Chapter 13.
    """
    stored = weights(model, dtype)
    return sum(stored.of(tensor) for tensor in model.tensors())


def rope_bytes(model: Model) -> int:
    """Bytes of the rotary tables an engine keeps beside the weights, whole on every rank: positions · width · b."""
    return sum(rows * width for rows, width in model.rope) * WEIGHT_FORMATS[model.dtype].bits // 8


def row_bytes(values: int, form: CacheFormat) -> int:
    """Bytes of a row of numbers: whole groups."""
    return -(-values // form.group) * form.group_bytes


def token_bytes(cache: Cache, dtype: str, t: int = 1) -> int:
    """Bytes that one token adds to one layer's cache on one of t ranks.

    heads: (width_k + width_v) · max(1, h_kv / t) numbers, that is 2 h_kv d_k b. latent: width_k + width_v numbers, once
    for keys and values, whole on every rank; in fp8 a float32 scale for 128 and the rotary part in 16 bits.
    state: nothing. Chapter 13.
    """
    form = known(dtype, CACHE_FORMATS, "cache format")
    if cache.kind == "state":
        return 0
    if cache.kind == "latent":
        if dtype == "fp8":
            return cache.width_k + 4 * -(-cache.width_k // 128) + 2 * cache.width_v
        return row_bytes(cache.width_k + cache.width_v, form)
    held = max(1, -(-cache.heads // t))
    return row_bytes(held * cache.width_k, form) + row_bytes(held * cache.width_v, form)


def tokens_kept(cache: Cache, n: int, block: int = 1, in_flight: int = 1) -> int:
    """Tokens of a context of n that one layer keeps: min(n, window), in whole blocks.

    A window of w keeps w − 1 tokens and those in flight; it may start inside a block, so an engine adds one:
    min(⌈n / block⌉, ⌈(w − 1 + in_flight) / block⌉ + 1) blocks. With block = 1 no block is added.
    """
    if cache.window is None:
        return -(-n // block) * block
    window = cache.window - 1 + in_flight
    if block == 1:
        return min(n, window)
    return min(-(-n // block), -(-window // block) + 1) * block


def cache_bytes(cache: Cache, n: int, dtype: str, t: int = 1, block: int = 1) -> int:
    """Bytes of one layer's cache for one conversation of n tokens on one of t ranks."""
    if cache.kind == "state":
        return -(-cache.heads // t) * cache.width_k * STATE_BYTES
    return tokens_kept(cache, n, block) * token_bytes(cache, dtype, t)


def conversation_bytes(model: Model, n: int, dtype: str | None = None, t: int = 1, block: int = 1) -> int:
    """Bytes of the whole cache of one conversation of n tokens (on one of t ranks, in whole blocks).

        Σ over layers of min(n, window) · 2 h_kv d_k b, and a constant for layers that keep a state

    dtype: a key of CACHE_FORMATS; None: the model's own precision. Chapter 13.
    """
    dtype = model.dtype if dtype is None else dtype
    return sum(cache_bytes(cache, n, dtype, t, block) for layer in model.layers for cache in layer.caches)


def new_token_bytes(model: Model, dtype: str | None = None, t: int = 1) -> int:
    """Bytes that the next token adds over all layers while no window is full: 2 L h_kv d_k b where layers agree."""
    dtype = model.dtype if dtype is None else dtype
    return sum(token_bytes(cache, dtype, t) for layer in model.layers for cache in layer.caches)


def tokens_in_pool(pool: int, bytes_a_token: int, block: int = BLOCK) -> int:
    """Tokens that a pool of bytes holds, floored to whole blocks: ⌊pool / (block · bytes)⌋ · block."""
    return pool // (block * bytes_a_token) * block
