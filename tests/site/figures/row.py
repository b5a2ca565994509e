"""A row of the table of figures, and how a number shown is compared with a number computed."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

NUMBER = re.compile(r"([-+−]?)(∞|NaN|nan|Infinity|[\d,]*\.?\d+(?:e[-+−]?\d+)?)(%?)")


@dataclass(frozen=True)
class Figure:
    """A figure of a page, settings of its inputs, and the function that gives the numbers it must then show."""

    page: str
    name: str
    settings: tuple[dict, ...]
    numbers: Callable[..., dict]


def read(text):
    """The number in `label = number unit`, and half of the last digit that is shown of it."""
    shown = text.rpartition("=")[2].strip()
    found = NUMBER.match(shown)
    if not found:
        raise ValueError(f"no number after the last '=' in {text!r}")
    sign, digits, percent = found.groups()
    for written, plain in ((",", ""), ("−", "-"), ("∞", "inf"), ("Infinity", "inf")):
        digits = digits.replace(written, plain)
    digits = digits.lower()
    mantissa, _, exponent = digits.partition("e")
    places = len(mantissa.partition(".")[2]) - int(exponent or 0) + (2 if percent else 0)
    value = float(digits) / (100 if percent else 1)
    return (-value if sign in ("-", "−") else value), 0.5 * 10.0**-places


def difference(text, expected):
    """What is wrong with a text that should show the expected number or word; empty if nothing is."""
    if isinstance(expected, str):
        shown = text.rpartition("=")[2].strip()
        return "" if shown.startswith(expected) else f"{text!r} should say {expected!r}"
    shown, half = read(text)
    if math.isnan(shown) or math.isinf(shown) or math.isnan(expected) or math.isinf(expected):
        same = str(float(shown)) == str(float(expected))
    else:
        same = abs(shown - expected) <= half * (1 + 1e-9) + 1e-12 * abs(expected)
    return "" if same else f"{text!r} should show {expected!r}"
