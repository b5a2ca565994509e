"""Figures of the book: one style, still figures, figures to drag. Only chapters import this.

A figure is always shown with a text that says what it shows, for readers who do not see it.

Chapter: all of them.
"""

from derived.figures.controls import choice, number, slider, switch
from derived.figures.drag import show
from derived.figures.stills import still
from derived.figures.style import COLOURS, GRADIENT, INK, VALUE, canvas

__all__ = [
    "COLOURS",
    "GRADIENT",
    "INK",
    "VALUE",
    "canvas",
    "choice",
    "number",
    "show",
    "slider",
    "still",
    "switch",
]
