"""The HTML of a figure to drag: a still, the script that draws over it, and how its inputs look."""

from string import Template

PAGE = Template("""<style>
#$id .vega-embed{width:100%;display:block;padding:0}
#$id .vega-bindings{display:flex;flex-wrap:wrap;gap:.5em 1.5em;margin:.6em 0 0;color:$ink;font-family:$font}
#$id .vega-bind label{display:inline-flex;flex-wrap:wrap;align-items:center;gap:.5em;margin:0}
#$id .vega-bind-name{margin:0}
#$id input,#$id select{min-height:1.7em;margin:0;font:inherit}
#$id input[type=range]{width:11em;max-width:100%;accent-color:$accent}
#$id output{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
@media print{#$id .vega-bindings{display:none}}
</style>
<div id="$id" class="derived-drag $ignore" data-figure="$name" \
style="position:relative;overflow-x:auto;background:#fff;color:$ink"><div>$still</div></div>
<script>
(function (spec, options, addresses) {
  const place = document.getElementById("$id"), still = place.firstElementChild, live = document.createElement("div");
  const load = (address) => new Promise((loaded, failed) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = loaded;
    script.onerror = () => failed(new Error("not loaded: " + address));
    document.head.appendChild(script);
  });
  const one_after_another = async () => { for (const address of addresses) await load(address); };
  const library = (address) => address.match(/(vega[a-z-]*)@/)[1];
  const through_require = () => new Promise((loaded, failed) => {
    requirejs.config({paths: Object.fromEntries(addresses.map((address) => [library(address), address]))});
    require(["vega-embed"], loaded, failed);
  });
  const embed = typeof define === "function" && define.amd
    ? through_require()
    : (window.derived_vega ??= one_after_another()).then(() => window.vegaEmbed);
  const numbers = () => [...live.querySelectorAll('g[class*=" number_"] text')].map((text) => text.textContent);
  embed.then((draw) => {
    place.appendChild(live);
    still.hidden = true;
    return draw(live, spec, options);
  }).then((drawn) => {
    const picture = live.querySelector("svg.marks"), said = document.createElement("output");
    still.remove();
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", spec.description);
    for (const part of picture.children) part.setAttribute("aria-hidden", "true");
    ["role", "aria-label", "aria-roledescription"].forEach((attribute) => live.removeAttribute(attribute));
    said.setAttribute("aria-live", "polite");
    place.appendChild(said);
    live.addEventListener("change", async () => {
      await drawn.view.runAsync();
      said.textContent = numbers().join("; ");
    });
    place.dataset.drawn = "true";
  }).catch((error) => {
    still.hidden = false;
    live.remove();
    place.dataset.failed = "true";
    console.warn("The figure stays still: " + error.message);
  });
})($spec, $options, $addresses);
</script>""")
"""Filled in by `show`.

The still goes only when the figure is drawn, so a page that cannot load Vega keeps it. Where an output is framed by
require.js (older notebooks), Vega's scripts register there instead of on the window. Vega calls a figure with inputs
a document; here the drawing is one image with one text, its inputs are ordinary inputs, and a number that changes
is also written where a screen reader says it.
""".strip()
