"""The acceptance table of models, by name."""

import json
from functools import cache
from pathlib import Path

from derived.cost.spec import Model, read_config

DATA = Path(__file__).parents[1] / "data"
ROWS = {row["name"]: row for row in json.loads((DATA / "model-configs.json").read_text())}
SHORT = {name.split("/")[1].split(" ")[0]: name for name in ROWS}


@cache
def model(short: str) -> Model:
    """The model of a row, by the part of its name behind the slash."""
    name = SHORT[short]
    return read_config(dict(ROWS[name]["fields"]), name)
