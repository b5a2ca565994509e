"""How a token knows where it stands: sinusoids added to it, a rotation of queries and keys, a bias on scores."""

from derived.ops.positions.alibi import alibi_bias, alibi_slopes
from derived.ops.positions.pairing import half_split_to_interleaved, interleaved_to_half_split
from derived.ops.positions.rotary import rope, rope_vjp, rotary_tables
from derived.ops.positions.sinusoids import angles, sinusoids

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "angles",
    "half_split_to_interleaved",
    "interleaved_to_half_split",
    "rope",
    "rope_vjp",
    "rotary_tables",
    "sinusoids",
]
