"""A decoder from its row of the table and its config's fields."""

from derived.cost.spec import parts
from derived.cost.spec.fields import ConfigError, Fields
from derived.cost.spec.model import Cache, Layer, Model, Scores
from derived.cost.spec.table import Row


def switch(f: Fields, said: bool | str) -> bool:
    """A column's value: implied, or the field that says so ("name" is off by default, "name=true" on)."""
    if isinstance(said, bool):
        return said
    name, _, default = said.partition("=")
    return f.flag(name, default == "true")


def model_of(f: Fields, *, first: tuple, layers: tuple, last: tuple, tied: bool, h: int, **more) -> Model:
    """A Model with the fields that all types share."""
    return Model(
        name=f.word("_name_or_path", "") or f.model_type,
        model_type=f.model_type,
        d_model=f.width,
        n_vocab=f.size("vocab_size"),
        h=h,
        first=first,
        layers=layers,
        last=last,
        tied=tied,
        max_context=f.size_or_none("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
        notes=tuple(f.notes),
        **more,
    )


def ends(f: Fields, tied: bool, *, final: tuple | None = None, extra: tuple = ()) -> tuple[tuple, tuple]:
    """What sits before the first layer and after the last: embedding; final norm and, untied, the head."""
    n_vocab, d_model = f.size("vocab_size"), f.width
    last = parts.norm(d_model, name="final norm") if final is None else final
    return (parts.embedding(n_vocab, d_model), *extra), (*last, *(() if tied else (parts.head(n_vocab, d_model),)))


def rope_rows(f: Fields, d_k: int, tables: int = 1) -> tuple[tuple[int, int], ...]:
    """The rotary tables that an engine keeps: a row a position, a cosine and a sine for each pair that turns."""
    rows = f.size_or_none("max_position_embeddings")
    if rows is None:
        return ()
    inner = f.raw.get("rope_parameters")
    said = f.raw.get("partial_rotary_factor", inner.get("partial_rotary_factor") if isinstance(inner, dict) else None)
    if said is None:
        return ((rows, d_k),) * tables
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said <= 1:
        raise ConfigError(f"partial_rotary_factor is {said!r}: it must be above 0 and at most 1")
    return ((rows, int(d_k * said)),) * tables


def decoder(f: Fields, row: Row) -> Model:
    """Embedding, layers of attention and feed-forward network between norms, final norm, head."""
    d_model, h, h_kv, d_k = f.width, f.heads, f.kv_heads(row.kv), f.head_width(row.d_k)
    attention = parts.grouped_attention(
        d_model, h, h_kv, d_k, qkv_bias=switch(f, row.qkv_bias), o_bias=switch(f, row.o_bias),
        qk_norm=row.qk_norm, sinks=row.sinks,
    )  # fmt: skip
    norms, ffn_bias = parts.norm(d_model, row.norms), switch(f, row.ffn_bias)
    layers, seen = [], {}
    for i, window in enumerate(row.window(f)):
        ffn = row.ffn(f, i, ffn_bias)
        key = (window, ffn)
        if key not in seen:
            name = "full attention" if window is None else f"attention over {window} tokens"
            caches = (Cache("heads", h_kv, d_k, d_k, window),)
            seen[key] = Layer(name, (*attention, *ffn, *norms), caches, (Scores(h, d_k, d_k, window),))
        layers.append(seen[key])
    tied = f.flag("tie_word_embeddings", row.tied)
    first, last = ends(f, tied)
    rope = rope_rows(f, d_k, row.ropes)
    return model_of(f, first=first, layers=tuple(layers), last=last, tied=tied, h=h, rope=rope)
