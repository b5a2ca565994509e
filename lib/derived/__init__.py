"""The transformer, derived: operations with hand-derived gradients, models chained of them, and what they cost."""

__version__ = "0.1.0"
