"""The fields of one config.json, read with suspicion: present, of the right type, in range, not at odds."""

from derived.errors import DerivedError

LARGEST = 10**8
"""No size of a published model comes near; a larger one is a slip of the keyboard."""

MOST_LAYERS = 4096


class ConfigError(DerivedError):
    """A config.json is not one, or says something that no model can be."""


class Fields:
    """A config's fields under the names and aliases that its model type uses."""

    def __init__(self, raw: dict, model_type: str):
        self.raw = raw
        self.model_type = model_type
        self.notes: list[str] = []

    def given(self, *names: str):
        """The value under the first of the names that is present and not null; they may not disagree."""
        found = [(name, self.raw[name]) for name in names if self.raw.get(name) is not None]
        for name, value in found[1:]:
            if value != found[0][1]:
                raise ConfigError(
                    f"{found[0][0]} is {found[0][1]!r} and {name} is {value!r}, but they mean the same: keep one"
                )
        return found[0][1] if found else None

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A positive integer; without a default it must be there."""
        value = self.given(*names)
        if value is None:
            if default is None:
                also = f" (or {', '.join(names[1:])})" if names[1:] else ""
                raise ConfigError(
                    f"{names[0]}{also} is missing: a {self.model_type} config gives it as a positive integer"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{names[0]} is {value!r}: it must be an integer of at least {least}")
        if not least <= value <= most:
            raise ConfigError(f"{names[0]} is {value}: it must lie between {least} and {most:,}")
        return value

    def size_or_none(self, *names: str) -> int | None:
        """A positive integer, or None where the field is absent or null."""
        return None if self.given(*names) is None else self.size(*names)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}: it must be true or false")
        return value

    def word(self, name: str, default: str) -> str:
        """A string."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}: it must be a string")
        return value

    def listed(self, name: str, kind: type, length: int | None = None) -> list | None:
        """A list of one type, of a given length where one is given; None where absent."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise ConfigError(f"{name} must be a list of {kind.__name__}, one an entry; it is {str(value)[:60]}")
        if length is not None and len(value) != length:
            raise ConfigError(f"{name} has {len(value)} entries for {length} layers: give one for each")
        return value

    def must_be(self, name: str, wanted, default) -> None:
        """Refuse a setting whose other values build a model that is not derived here."""
        value = self.raw.get(name, default)
        if value is not None and value != wanted:
            raise ConfigError(
                f"{name} is {value!r}: for {self.model_type} only {wanted!r} is derived here, so nothing is guessed"
            )

    @property
    def layers(self) -> int:
        """num_hidden_layers under its several names."""
        return self.size("num_hidden_layers", "n_layer", "n_layers", most=MOST_LAYERS)

    @property
    def width(self) -> int:
        """hidden_size under its several names."""
        return self.size("hidden_size", "n_embd", "n_embed", "d_model")

    @property
    def heads(self) -> int:
        """num_attention_heads under its several names."""
        return self.size("num_attention_heads", "n_head", "n_heads", "num_heads")

    def head_width(self, default: int | None = None) -> int:
        """head_dim if given, else the model type's own, else hidden_size / num_attention_heads."""
        given = self.size_or_none("head_dim")
        if given or default:
            return given or default
        if self.width % self.heads:
            raise ConfigError(
                f"hidden_size {self.width} is not a multiple of num_attention_heads {self.heads}, "
                "and head_dim is not given: give head_dim, or mend one of the two"
            )
        return self.width // self.heads

    def kv_heads(self, default: str = "required") -> int:
        """num_key_value_heads; default "equal": as many as query heads where it is absent."""
        absent = self.heads if default == "equal" else None
        h_kv = self.size("num_key_value_heads", default=absent)
        if self.heads % h_kv:
            raise ConfigError(
                f"num_attention_heads {self.heads} is not a multiple of num_key_value_heads {h_kv}: "
                "every key head must serve the same number of query heads"
            )
        return h_kv
