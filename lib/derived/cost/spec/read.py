"""A model from its config.json: a path, a dict, or a hub id."""

import json
import os
from importlib import import_module

from derived.cost.spec.decoder import decoder
from derived.cost.spec.fields import ConfigError, Fields
from derived.cost.spec.model import Model
from derived.cost.spec.precision import precisions
from derived.cost.spec.table import DECODERS, WRAPPED_DEFAULTS, WRAPPERS

READERS = {
    "gpt2": "classic:gpt2",
    "gpt_neox": "classic:gpt_neox",
    "opt": "classic:opt",
    "bloom": "classic:bloom",
    "falcon": "classic:falcon",
    "mpt": "classic:mpt",
    "t5": "classic:t5",
    "deepseek_v2": "latent:deepseek_v2",
    "deepseek_v3": "latent:deepseek_v3",
    "kimi_k2": "latent:deepseek_v3",
    "qwen3_next": "hybrid:qwen3_next",
    "qwen3_5_text": "hybrid:qwen3_5",
    "granitemoehybrid": "hybrid:granite_hybrid",
    "nemotron_h": "hybrid:nemotron_h",
}
"""The types that are no row of the table of decoders: module and function that read each, imported when asked for."""

MOST_PARAMETERS = 10**15
MOST_BYTES = 16 * 2**20


def known_types() -> list[str]:
    """Every model_type that is derived here, wrappers included."""
    return sorted({*DECODERS, *READERS, *WRAPPERS})


def read_config(source, name: str = "") -> Model:
    """Read a model from its config.json, adding what its model_type implies and the file does not say.

    source: a path to the file (or to its folder), the parsed dict, or a hub id "owner/name", for which
    huggingface_hub must be installed and online. name: what to call the model.

    Raises ConfigError, a ValueError, with one sentence: not a file, not JSON, an unknown model_type or layer type,
    a field missing, not a positive integer, out of range, or at odds with another.
    Chapter 13.
    """
    raw = source if isinstance(source, dict) else parsed(source)
    fields, kind = text_model(raw)
    f = Fields(fields, kind)
    if fields is not raw:
        unwrapped(f, raw["model_type"])
    dtype, weights, group = precisions(f)
    model = special(f) if f.model_type in READERS else decoder(f, DECODERS[f.model_type])
    called = name or (model.name if isinstance(source, dict) else str(source))
    model = model._replace(name=called, dtype=dtype, weights=weights, weight_group=group, notes=tuple(f.notes))
    if model.parameters > MOST_PARAMETERS:
        raise ConfigError(f"these sizes make {model.parameters:,} parameters: more than {MOST_PARAMETERS:,} is a slip")
    return model


def special(f: Fields) -> Model:
    """A model of a type that is no row of the table."""
    module, function = READERS[f.model_type].split(":")
    return getattr(import_module(f"derived.cost.spec.{module}"), function)(f)


def unwrapped(f: Fields, outer: str) -> None:
    """Fill in what a published text_config leaves to its type, and say what is not counted."""
    absent = {name: value for name, value in WRAPPED_DEFAULTS.get(outer, {}).items() if f.raw.get(name) is None}
    f.raw = f.raw | absent
    f.notes.append(f"the text model inside {outer} alone: what else its checkpoint holds is not counted")
    f.notes += [f"{name} is absent: {value}, the default of {outer}" for name, value in absent.items()]


def text_model(raw: dict) -> tuple[dict, str]:
    """The fields of the text model and its type; a wrapper's text_config is unwrapped, its precision inherited."""
    outer = raw.get("model_type")
    if not isinstance(outer, str):
        raise ConfigError('model_type is missing: a config.json names it, as in "model_type": "llama"')
    fields, kind = raw, outer
    inner = raw.get("text_config")
    if outer in WRAPPERS or (outer not in DECODERS and outer not in READERS and inner is not None):
        if not isinstance(inner, dict):
            raise ConfigError(f"{outer} wraps a text model, but text_config is missing or not an object")
        kind = inner.get("model_type", WRAPPERS.get(outer))
        shared = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
        fields = {key: raw[key] for key in shared if raw.get(key) is not None} | inner
        if not isinstance(kind, str):
            raise ConfigError(f"text_config of {outer} names no model_type")
    if kind not in DECODERS and kind not in READERS:
        raise ConfigError(
            f"model_type {kind!r} is not derived here, and what it implies is not guessed; "
            f"known: {', '.join(known_types())}"
        )
    return fields, kind


def parsed(source) -> dict:
    """The JSON object in a file, in a folder's config.json, or at the hub."""
    path = os.fspath(source)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    if not os.path.exists(path) and looks_like_hub_id(path):
        path = from_hub(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path!r} cannot be read ({reason}): give the path of a config.json") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path!r} is larger than {MOST_BYTES} bytes: that is no config.json")
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path!r} is not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path!r} holds a {type(raw).__name__}, but a config.json is an object")
    return raw


def looks_like_hub_id(text: str) -> bool:
    """owner/name, with no leading dot and no file ending."""
    owner, _, name = text.partition("/")
    return bool(owner and name) and "/" not in name and not text.startswith((".", "~")) and not name.endswith(".json")


def from_hub(hub_id: str) -> str:
    """The path of the config.json that the hub's client fetches."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(
            f"{hub_id!r} is no file here; to fetch it by its hub id, install huggingface_hub, "
            "or give the path of a config.json"
        ) from None
    try:
        return hf_hub_download(hub_id, "config.json")
    except Exception as error:  # the client has many, and each means: no file
        said = str(error).strip().splitlines()
        raise ConfigError(
            f"{hub_id!r} is no file here, and the hub gave none ({said[0] if said else type(error).__name__})"
        ) from None
