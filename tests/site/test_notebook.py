"""A figure to drag outside the site: in a notebook, in one framed by require.js, without a network, without scripts."""

import pytest
import vl_convert

from tests.site import planted

pytestmark = pytest.mark.browser

REQUIRE = """<script>
window.define = () => {}; window.define.amd = {};
window.requirejs = {config: ({paths}) => { window.paths = paths; }};
window.require = (names, loaded, failed) => {
  const script = document.createElement("script");
  script.src = window.paths[names[0]];
  script.onload = () => loaded(window.vegaEmbed);
  script.onerror = () => failed(new Error("not loaded"));
  document.head.appendChild(script);
};
</script>"""


@pytest.fixture(scope="module")
def figure():
    return planted.show(planted.chart(), planted.ALT, name="sound").html


@pytest.fixture
def notebook(browser):
    """Opens a page with a figure, with or without a network and scripts; returns it and the addresses it asked for."""
    contexts = []

    def opened(html, network=True, scripts=True):
        context = browser.new_context(java_script_enabled=scripts)
        contexts.append(context)
        page, asked = context.new_page(), []

        def answer(route):
            asked.append(route.request.url)
            if not network:
                return route.abort()
            whole = "/vega-embed@" in route.request.url
            return route.fulfill(body=vl_convert.javascript_bundle() if whole else "", content_type="text/javascript")

        page.route("https://cdn.jsdelivr.net/**", answer)
        page.set_content(f"<!doctype html><title>A notebook</title>{html}", wait_until="load")
        return page, asked

    yield opened
    for context in contexts:
        context.close()


def test_a_notebook_loads_vega_once_and_draws_each_figure(notebook, figure):
    other = planted.show(planted.chart("3 * tokens"), planted.ALT).html
    page, asked = notebook(figure + other)
    page.wait_for_function("document.querySelectorAll('[data-drawn]').length === 2")
    assert [url.split("npm/")[1].split("@")[0] for url in asked] == ["vega", "vega-lite", "vega-embed"]
    assert page.locator("svg.marks").count() == 2
    assert page.locator("img").count() == 0


def test_a_notebook_framed_by_require_draws_it_too(notebook, figure):
    page, asked = notebook(REQUIRE + figure)
    page.wait_for_selector("[data-drawn]")
    assert len(asked) == 1
    assert page.locator("svg.marks").count() == 1


@pytest.mark.parametrize("frame", ["", REQUIRE], ids=["plain", "require"])
def test_without_a_network_the_still_stays(notebook, figure, frame):
    page, _ = notebook(frame + figure, network=False)
    page.wait_for_selector("[data-failed]")
    assert page.locator("svg.marks").count() == 0
    assert page.locator(f"img[alt='{planted.ALT}']").is_visible()


def test_without_scripts_the_still_is_shown(notebook, figure):
    page, _ = notebook(figure, scripts=False)
    assert page.locator(f"img[alt='{planted.ALT}']").is_visible()


def test_a_reader_who_hears_the_page_is_told_the_new_numbers(notebook, figure):
    page, _ = notebook(figure)
    page.wait_for_selector("[data-drawn]")
    assert page.locator("output").text_content() == ""
    page.locator("input[type=checkbox]").click()
    page.wait_for_function("document.querySelector('output').textContent !== ''")
    assert page.locator("output").text_content() == "doubled = 10.0; word = once"
