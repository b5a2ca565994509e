"""Which tokens each layer keeps: the rule that a model type has, where its config does not list the layers."""

from derived.cost.spec.fields import ConfigError, Fields

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"

Windows = list[int | None]


def listed(f: Fields, known: dict[str, int | None]) -> Windows | None:
    """The windows of an explicit layer_types; None where the config has none."""
    kinds = f.listed("layer_types", str, f.layers)
    if kinds is None:
        return None
    strange = sorted(set(kinds) - set(known))
    if strange:
        raise ConfigError(
            f"layer_types names {strange[0]!r}, which is not derived for {f.model_type}; "
            f"known here: {', '.join(sorted(known))}"
        )
    if SLIDING in kinds and known.get(SLIDING) is None:
        raise ConfigError("layer_types names sliding_attention, but sliding_window is not given: give its tokens")
    return [known[kind] for kind in kinds]


def everywhere_full(f: Fields) -> Windows:
    """No layer forgets; a config that asks for windows contradicts its type."""
    return listed(f, {FULL: None}) or [None] * f.layers


def everywhere(default: int | None):
    """Every layer has sliding_window, if it is not null; `default` where the field is absent."""

    def rule(f: Fields) -> Windows:
        window = f.size_or_none("sliding_window") if "sliding_window" in f.raw else default
        if "sliding_window" not in f.raw and default:
            f.notes.append(f"sliding_window is absent: {default}, the default of {f.model_type}")
        return listed(f, {FULL: None, SLIDING: window}) or [window] * f.layers

    return rule


def switched(per_layer):
    """A window only where use_sliding_window says so; `per_layer(f, i)` then picks the layers."""

    def rule(f: Fields) -> Windows:
        window = f.size("sliding_window", default=4096) if f.flag("use_sliding_window", False) else None
        return listed(f, {FULL: None, SLIDING: window}) or [
            window if per_layer(f, i) else None for i in range(f.layers)
        ]

    return rule


from_layer = switched(lambda f, i: i >= f.size("max_window_layers", default=28, least=0))
every_layer = switched(lambda f, i: True)
without_rope = switched(lambda f, i: not rotated(f)[i])


def all_but_every(interval: int, default: int, field: str = ""):
    """Every `interval`-th layer is full, the others slide; `field` may give another interval."""

    def rule(f: Fields) -> Windows:
        window = f.size("sliding_window", default=default)
        step = f.size(field, default=interval) if field else interval
        return listed(f, {FULL: None, SLIDING: window}) or [window if (i + 1) % step else None for i in range(f.layers)]

    return rule


def rotated(f: Fields) -> list[int]:
    """Which layers rotate queries and keys: no_rope_layers, or all but every no_rope_layer_interval-th."""
    interval = f.size("no_rope_layer_interval", default=4)
    return f.listed("no_rope_layers", int, f.layers if f.raw.get("no_rope_layers") else None) or [
        int((i + 1) % interval != 0) for i in range(f.layers)
    ]


def chunked_where_rotated(f: Fields) -> Windows:
    """Layers with rotary positions attend within chunks and keep at most one; the others keep all."""
    chunk = f.size_or_none("attention_chunk_size") if "attention_chunk_size" in f.raw else 8192
    return listed(f, {FULL: None, CHUNKED: chunk}) or [chunk if turns else None for turns in rotated(f)]
