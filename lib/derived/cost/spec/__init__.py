"""A model for the sizer: read from its config.json, or outlined by its totals.

    from derived.cost.spec import outline, read_config

Chapter 13.
"""

from derived.cost.spec.fields import ConfigError
from derived.cost.spec.model import Cache, Layer, Model, Scores, Tensor
from derived.cost.spec.outline import outline
from derived.cost.spec.read import known_types, read_config

__all__ = ["Cache", "ConfigError", "Layer", "Model", "Scores", "Tensor", "known_types", "outline", "read_config"]
