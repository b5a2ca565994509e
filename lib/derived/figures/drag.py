"""Figures to drag: an Altair chart as HTML that is the same every time, with a still for those without JavaScript."""

import copy
import hashlib
import json
import re
from html import escape

from derived.figures.controls import END
from derived.figures.page import PAGE
from derived.figures.shown import NOT_A_FORMULA, Shown, checked_alt, image
from derived.figures.style import COLOURS, INK

CDN = "https://cdn.jsdelivr.net/npm"
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # of one width: the still is laid out with the first
STILL_WIDTH = 560  # pixels, where the page's width would decide

CONFIG = {
    "background": "white",
    "font": FONT,
    "title": {"anchor": "start", "fontSize": 14, "color": INK, "offset": 12},
    "axis": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "gridColor": "#e3e7eb"},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12},
    "range": {"category": list(COLOURS), "heatmap": {"scheme": "cividis"}, "ramp": {"scheme": "cividis"}},
    "aria": False,  # the whole figure carries one text; a screen reader need not walk through its marks
}

OPTIONS = {"mode": "vega-lite", "renderer": "svg", "actions": False}


def show(chart, alt: str, name: str = "") -> Shown:
    """Show an Altair chart with its inputs: drawn in the page, without a kernel, and as a still where nothing runs.

    chart: any Altair chart (5.5 or newer); without a width of its own it takes the page's.
    alt: a sentence that says what is to be seen and what dragging changes; DerivedError where it is missing.
    name: by which the browser test finds the figure; needed where the figure shows numbers.

    The HTML depends on nothing but the chart, the texts and Altair's version.
    The still is drawn by vl-convert-python; where that is not installed (Colab) its place holds the text.
    """
    alt = checked_alt(alt)
    spec = prepared(chart.to_dict(), alt)
    key = f"figure-{hashlib.sha256((name + written(spec)).encode()).hexdigest()[:12]}"
    html = PAGE.substitute(
        id=key,
        name=escape(name),
        ignore=NOT_A_FORMULA,
        still=drawn_still(spec, alt),
        spec=written(spec),
        options=written(OPTIONS),
        addresses=json.dumps(addresses()),
        ink=INK,
        accent=COLOURS[0],
        font=FONT,
    )
    return Shown(html, alt)


def prepared(spec: dict, alt: str) -> dict:
    """Return the specification in the house style, described by its text, with names that do not count cells."""
    spec = _renamed(copy.deepcopy(spec))
    spec["description"] = alt
    spec["config"] = _merged(CONFIG, spec.get("config", {}))
    if "width" not in spec and ("mark" in spec or "layer" in spec):
        spec["width"] = "container"
        spec.setdefault("autosize", {"type": "fit-x", "contains": "padding"})
    return spec


def _renamed(spec: dict) -> dict:
    """Number Altair's own names anew: its counters go on over a session, so running a cell twice would change them.

    A number gets its own name back, without the position that Altair adds to names in panels side by side.
    """
    text = json.dumps(spec)
    for kind in ("param", "view"):
        found = dict.fromkeys(re.findall(rf"\b{kind}_\d+\b", text))
        names = {old: f"{kind}_{i}" for i, old in enumerate(found, start=1)}
        parts = re.split(rf"\b({kind}_\d+)\b", text)
        text = "".join(names.get(part, part) for part in parts)
    return json.loads(re.sub(rf'"number_(\w+?){END}(?:_\d+)*"', r'"number_\1"', text))


def _merged(house: dict, own: dict) -> dict:
    """The author's settings over the house's, key by key."""
    both = {**house, **own}
    for key in house.keys() & own.keys():
        if isinstance(house[key], dict) and isinstance(own[key], dict):
            both[key] = _merged(house[key], own[key])
    return both


def written(value) -> str:
    """JSON in one order and without blanks; no `<` in it, which could end the script that holds it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def drawn_still(spec: dict, alt: str) -> str:
    """Return the figure as drawn before anyone touches it, or its text where vl-convert is not installed."""
    try:
        import vl_convert
    except ImportError:
        return f"<p>{escape(alt)}</p>"
    fixed = {**spec, "width": STILL_WIDTH} if spec.get("width") == "container" else spec
    svg = vl_convert.vegalite_to_svg(fixed, vl_version=_nearest(spec["$schema"], vl_convert.get_vegalite_versions()))
    [(width, height)] = re.findall(r'^<svg\b[^>]*?width="([\d.]+)" height="([\d.]+)"', svg)
    return image(svg, alt, float(width), float(height))


def _nearest(schema: str, versions: list[str]) -> str:
    """The version of Vega-Lite among those at hand for a schema's address: the same, or the newest."""
    wanted = re.search(r"/v(\d+\.\d+)", schema)
    return wanted.group(1) if wanted and wanted.group(1) in versions else versions[-1]


def addresses() -> list[str]:
    """Where a notebook loads Vega from, in the versions that Altair writes for; the built site replaces them."""
    import altair

    libraries = (
        ("vega", altair.VEGA_VERSION),
        ("vega-lite", altair.VEGALITE_VERSION),
        ("vega-embed", altair.VEGAEMBED_VERSION),
    )
    return [f"{CDN}/{library}@{version}?noext" for library, version in libraries]
