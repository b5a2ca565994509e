"""Move the inputs of a figure as a reader does, and read what it then shows."""

SET = """([name, values]) => {
  const place = document.querySelector(`[data-figure="${name}"]`);
  if (!place) throw new Error(`the page has no figure ${name}`);
  for (const [input, value] of Object.entries(values)) {
    const found = [...place.querySelectorAll(`.vega-bindings [name="${input}"]`)];
    if (!found.length) throw new Error(`the figure ${name} has no input ${input}`);
    for (const element of found) {
      const moved = (kind) => element.dispatchEvent(new Event(kind, {bubbles: true}));
      if (element.type === "checkbox") { if (element.checked !== value) element.click(); }
      else if (element.type === "radio") { if (element.value === String(value)) element.click(); }
      else {
        element.value = element.tagName === "SELECT"
          ? [...element.options].find((option) => option.value === String(value)).value : value;
        if (Number(element.value) !== Number(value) && element.value !== String(value))
          throw new Error(`the input ${input} of ${name} stays at ${element.value} and cannot be ${value}`);
        moved("input"); moved("change");
      }
    }
  }
}"""

INPUTS = """(name) => {
  const found = [...document.querySelectorAll(`[data-figure="${name}"] .vega-bindings [name]`)];
  const values = (element) => element.type === "checkbox" ? [true, false]
    : element.tagName === "SELECT" ? [...element.options].map((option) => option.value)
    : element.type === "radio" ? found.filter((other) => other.name === element.name).map((other) => other.value)
    : [Number(element.min), Number(element.max)];
  return Object.fromEntries(found.map((element) => [element.name, values(element)]));
}"""

NUMBERS = """(name) => Object.fromEntries(
  [...document.querySelectorAll(`[data-figure="${name}"] svg.marks g[class*=" number_"]`)].map((group) => [
    group.getAttribute("class").match(/ number_(.*)_marks/)[1],
    [...group.querySelectorAll("text")].map((text) => text.textContent)]))"""

DRAWING = """(name) => document.querySelector(`[data-figure="${name}"] svg.marks`).innerHTML"""

# Vega redraws in the next frame after its inputs moved
DRAWN = """() => new Promise((drawn) => {
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn, 20)));
})"""


def inputs(page, name):
    """Each input by name, with the values that it can take; of a slider, its two ends."""
    return page.evaluate(INPUTS, name)


def move(page, name, values):
    """Set inputs to values, and wait until the figure is drawn anew."""
    page.evaluate(SET, [name, values])
    page.evaluate(DRAWN)


def numbers(page, name):
    """Each number that the figure shows, by name, as the texts in which it shows it."""
    return page.evaluate(NUMBERS, name)


def drawing(page, name):
    """The drawing as it stands."""
    return page.evaluate(DRAWING, name)


def dead_inputs(page, name, bases):
    """Inputs that, moved from end to end at every one of the base settings, change no number or nothing drawn."""
    found = []
    for moved, values in inputs(page, name).items():
        pictures, shown = set(), set()
        for base in bases:
            seen = [(move(page, name, {**base, moved: value}), _state(page, name))[1] for value in values]
            pictures.add(len({picture for picture, _ in seen}) > 1)
            shown.add(len({texts for _, texts in seen}) > 1)
        found += [f"{name}: {moved} changes nothing that is drawn"] * (True not in pictures)
        found += [f"{name}: {moved} changes no number"] * (True not in shown)
    return found


def _state(page, name):
    return drawing(page, name), str(numbers(page, name))
