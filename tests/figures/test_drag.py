"""A figure to drag gives the same HTML every time, for both majors of Vega-Lite, with and without a still."""

import json
import re
import sys

import altair
import pytest

from derived.errors import DerivedError
from derived.figures import choice, number, show, slider, switch
from derived.figures import drag as module

ALT = "The density of a score; a larger d_k widens it & scaling undoes that."
SCHEMA = "https://vega.github.io/schema/vega-lite"


def chart(title="Scores spread"):
    inputs = slider("d_k", "width of a head (components)", 2, 128, 1, 64), switch("scaled", "scaled", True)
    line = altair.Chart(altair.sequence(0, 7, as_="s")).mark_line().encode(x="s:Q", y="s:Q").add_params(*inputs)
    return line.properties(title=title) + number("sd", "spread", "sqrt(d_k)", ".3f", "points")


def spec_of(shown):
    """The specification that the script of a figure hands to vega-embed."""
    text = re.search(r"^\}\)\((.*)\);$", shown.html, re.MULTILINE).group(1)
    return json.JSONDecoder().raw_decode(text)[0]


def pretend(monkeypatch, vega, lite, embed):
    """Let Altair say that it writes for these versions."""
    for name, version in (("VEGA_VERSION", vega), ("VEGALITE_VERSION", lite), ("VEGAEMBED_VERSION", embed)):
        monkeypatch.setattr(altair, name, version)


def test_the_same_chart_gives_the_same_html():
    assert show(chart(), ALT).html == show(chart(), ALT).html


def test_running_a_cell_twice_changes_nothing():
    """Altair 5.5 numbers what has no name, and counts on when a cell is run again."""

    def counted(param, view):
        return {
            "$schema": f"{SCHEMA}/v5.20.1.json",
            "mark": "line",
            "name": f"view_{view}",
            "params": [
                {"name": f"param_{param}", "select": "interval", "views": [f"view_{view}"]},
                {"name": f"param_{param + 1}", "expr": f"param_{param} + 1", "views": [f"view_{view}"]},
            ],
        }

    first = module.prepared(counted(1, 1), ALT)
    assert first == module.prepared(counted(8, 23), ALT) == module.prepared(counted(9, 1), ALT)
    assert [p["name"] for p in first["params"]] == ["param_1", "param_2"]
    assert first["params"][1]["expr"] == "param_1 + 1"


def test_another_chart_text_or_name_gives_another_id():
    ids = {
        re.search(r'<div id="(figure-[0-9a-f]{12})"', shown.html).group(1)
        for shown in (
            show(chart(), ALT),
            show(chart("Other"), ALT),
            show(chart(), ALT + " More."),
            show(chart(), ALT, "x"),
        )
    }
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("vega", "lite", "embed"),
    [("5", "5.20.1", "6"), ("6", "6.1.0", "7"), ("6", "6.4.1", "7")],
    ids=["5.5", "6.0", "6.3"],
)
def test_the_libraries_are_those_that_altair_writes_for(monkeypatch, vega, lite, embed):
    pretend(monkeypatch, vega, lite, embed)
    spec = chart().to_dict()
    spec["$schema"] = f"{SCHEMA}/v{lite}.json"
    monkeypatch.setattr(altair.LayerChart, "to_dict", lambda self: spec)
    html = show(chart(), ALT).html
    for library, version in (("vega", vega), ("vega-lite", lite), ("vega-embed", embed)):
        assert f"cdn.jsdelivr.net/npm/{library}@{version}?noext" in html
    assert "data:image/svg+xml;base64," in html


def test_what_altair_5_5_writes_is_drawn():
    """A specification as Altair 5.5 gave it for a slider and a line, drawn by the still's own library."""
    spec = {
        "$schema": f"{SCHEMA}/v5.20.1.json",
        "config": {"view": {"continuousWidth": 300, "continuousHeight": 300}},
        "data": {"sequence": {"start": 0, "stop": 7, "as": "s"}},
        "mark": {"type": "line"},
        "encoding": {"x": {"field": "s", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
        "params": [{"name": "d_k", "bind": {"input": "range", "max": 128, "min": 2, "step": 1}, "value": 64}],
        "transform": [{"calculate": "datum.s * d_k", "as": "y"}],
    }
    drawn = module.drawn_still(module.prepared(spec, ALT), ALT)
    assert 'width="560"' in drawn


def test_without_vl_convert_the_text_takes_the_place_of_the_still(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    html = show(chart(), ALT).html
    assert "<p>The density of a score; a larger d_k widens it &amp; scaling undoes that.</p>" in html
    assert "<img" not in html


def test_the_text_is_the_description_and_the_alt_of_the_still():
    shown = show(chart(), ALT)
    assert spec_of(shown)["description"] == ALT
    assert 'alt="The density of a score; a larger d_k widens it &amp; scaling undoes that."' in shown.html
    assert repr(shown) == f"Figure: {ALT}"


def test_a_figure_without_a_text_is_refused():
    with pytest.raises(DerivedError, match="does not say what the figure shows"):
        show(chart(), "slider")


def test_nothing_in_a_chart_can_end_the_script():
    html = show(chart("</script><b>"), ALT).html
    assert html.count("</script>") == 1
    assert spec_of(show(chart("</script><b>"), ALT))["layer"][0]["title"] == "</script><b>"


def test_a_chart_takes_the_width_of_the_page_unless_it_has_one():
    assert spec_of(show(chart(), ALT))["width"] == "container"
    assert spec_of(show(chart().properties(width=123), ALT))["width"] == 123
    assert "width" not in spec_of(show(chart() | chart(), ALT))


def test_the_settings_of_a_chart_win_over_those_of_the_house():
    config = spec_of(show(chart().configure_axis(labelFontSize=7), ALT))["config"]
    assert config["axis"]["labelFontSize"] == 7
    assert config["axis"]["titleFontSize"] == module.CONFIG["axis"]["titleFontSize"]


def test_the_figure_has_no_menu_and_is_drawn_as_svg():
    html = show(chart(), ALT).html
    assert '{"actions":false,"mode":"vega-lite","renderer":"svg"}' in html


def test_inputs_carry_name_label_and_start():
    pick = choice("kind", "feed-forward kind", ["plain", "gated"], "gated", shown=["two matrices", "three matrices"])
    params = {p["name"]: p for p in chart().add_params(pick).to_dict()["params"]}
    assert params["d_k"]["bind"] == {
        "input": "range", "min": 2, "max": 128, "step": 1, "name": "width of a head (components)"
    }  # fmt: skip
    assert params["scaled"] == {"name": "scaled", "value": True, "bind": {"input": "checkbox", "name": "scaled"}}
    assert params["kind"]["bind"]["labels"] == ["two matrices", "three matrices"]
    assert params["kind"]["value"] == "gated"


@pytest.mark.parametrize("name", ["width", "datum", "d-k", "d k", ""])
def test_an_input_does_not_take_a_name_of_vega(name):
    with pytest.raises(DerivedError, match="an input cannot be called"):
        slider(name, "width of a head", 2, 128, 1, 64)


def test_a_number_is_drawn_with_label_unit_and_name():
    import vl_convert

    spec = module.prepared(chart().to_dict(), ALT)
    svg = vl_convert.vegalite_to_svg({**spec, "width": 300})
    assert "number_sd_marks" in svg
    assert svg.count(">spread = 8.000 points<") == 1


def test_numbers_keep_their_names_in_panels_side_by_side():
    panels = [chart().properties(width=90) + number(name, name, "d_k", ".0f") for name in ("left_1", "right")]
    nested = altair.layer(chart(), number("a", "a", "d_k", ".0f") + number("b", "b", "d_k", ".0f"))
    for figure, wanted in ((panels[0] | panels[1], {"left_1", "right"}), (nested, {"a", "b"})):
        spec = json.dumps(module.prepared(figure.to_dict(), ALT))
        assert set(re.findall(r'"number_(\w+)"', spec)) == wanted | {"sd"}


def test_a_number_of_a_chart_is_shown_once():
    import vl_convert

    rows = altair.Chart(altair.sequence(1, 6, as_="s")).transform_joinaggregate(total="sum(s)")
    total = number("total", "total", "datum.total", ".0f", chart=rows)
    svg = vl_convert.vegalite_to_svg(altair.layer(rows.mark_point().encode(x="s:Q"), total).to_dict())
    assert svg.count(">total = 15<") == 1
