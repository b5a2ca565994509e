"""Open a page in Chromium, wait until it has drawn everything, and ask what is wrong with it.

Every question returns a list of findings in words; an empty list is a page without fault.
"""

import shutil
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ELSEWHERE = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing else is reached, whatever a page asks for
)
PATIENCE = 30_000  # milliseconds in which a page must be drawn, on a machine with other things to do

MODES = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
"""How a page is looked at: on a desk by day and by night, and on a telephone."""

# Two findings belong to the theme: a button whose name says more than its sign, and content outside landmarks.
THEME = ("label-content-name-mismatch", "region")
SERIOUS = ("serious", "critical")

SETTLED = """() => (!window.MathJax || window.settled) &&
  [...document.querySelectorAll(".derived-drag")].every((place) => place.dataset.drawn || place.dataset.failed)"""
WATCH = """() => { window.MathJax?.startup?.promise?.then(() => { window.settled = true; }); }"""
# axe needs a minute for ten thousand elements: formulas are emptied, their size kept (a screen reader reads their
# MathML), and of each kind of word in the code two are left coloured on the page
THIN_OUT = """() => {
  const drawn = [...document.querySelectorAll("mjx-math")].map((math) => [math, math.getBoundingClientRect()]);
  for (const [math, {width, height}] of drawn) {
    math.replaceChildren();
    math.style.cssText += `;display:inline-block;min-width:0;width:${width}px;height:${height}px`;
  }
  const seen = {};
  for (const word of document.querySelectorAll("pre span")) {
    seen[word.className] = (seen[word.className] ?? 0) + 1;
    if (seen[word.className] > 2) word.replaceWith(...word.childNodes);
  }
}"""
OPEN_ALL = """() => document.querySelectorAll("details").forEach((details) => { details.open = true; })"""


def executable():
    """The path of Chromium, or a skip that says that it is missing."""
    for path in (*map(shutil.which, CHROMIUM), *CHROMIUM_ELSEWHERE):
        if path and Path(path).exists():
            return path
    pytest.skip("Chromium is missing, so no page of the site was opened; install the package chromium")


class Visit:
    """One page, opened, with all that it asked for and complained of on the way."""

    def __init__(self, context, site, page):
        self.page = context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.on("console", self.hear)
        self.page.on("response", self.judge)
        answer = self.page.goto(f"{site}/{page}.html", wait_until="load")
        assert answer.ok, f"the site has no page {page}"
        self.page.evaluate(WATCH)
        self.page.wait_for_function(SETTLED, timeout=PATIENCE)
        self.page.evaluate(OPEN_ALL)

    def hear(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def judge(self, response):
        if response.status >= 400:
            self.complaints.append(f"{response.status}: {response.url}")

    def outside(self):
        """Requests that left this machine."""
        return [url for url in self.requests if urlsplit(url).hostname not in ("127.0.0.1", None)]

    def formulas(self):
        """Formulas that MathJax refused, did not know, or never saw, and tables left as Markdown."""
        return self.page.evaluate("""() => {
          const found = [], text = (node) => node.textContent.trim().slice(0, 80);
          for (const error of document.querySelectorAll("mjx-merror"))
            found.push("refused: " + (error.getAttribute("data-mjx-error") ?? text(error)));
          for (const word of document.querySelectorAll("mjx-assistive-mml mtext"))
            if (word.textContent.startsWith("\\\\")) found.push("unknown: " + text(word));
          for (const place of document.querySelectorAll(".math"))
            if (!place.querySelector("mjx-container")) found.push("not typeset: " + text(place));
          const article = document.querySelector("article") ?? document.body;
          const source = /\\\\\\(|\\\\\\[|\\$\\$|\\$[^$]*[\\\\_^][^$]*\\$|\\| *[-—]+ *\\|/;
          const prose = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
          for (let node = prose.nextNode(); node; node = prose.nextNode())
            if (source.test(node.data) && !node.parentElement.closest("pre, code, script, style"))
              found.push("left as source: " + text(node));
          return found;
        }""")

    def figures(self):
        """Figures to drag that were not drawn, or carry no text."""
        return self.page.evaluate("""() => [...document.querySelectorAll(".derived-drag")].flatMap((place) => {
          const name = place.dataset.figure || place.id, drawings = place.querySelectorAll("svg.marks");
          if (drawings.length !== 1) return [name + ": " + drawings.length + " drawings"];
          const found = [], [drawing] = drawings;
          if (!drawing.querySelector(".role-mark path, .role-mark text, .role-mark line, .role-mark rect"))
            found.push(name + ": an empty drawing");
          if (drawing.getAttribute("role") !== "img" || !drawing.getAttribute("aria-label"))
            found.push(name + ": a drawing without a text");
          for (const number of drawing.querySelectorAll('g[class*=" number_"]'))
            if (/undefined|null/.test(number.textContent)) found.push(name + ": " + number.textContent);
          return found;
        })""")

    def mute(self):
        """Drawings and images in the text that say nothing to those who cannot see them."""
        return self.page.evaluate("""() => [...document.querySelectorAll("article img, article svg")]
          .filter((e) => !e.closest("button"))
          .filter((e) => e.tagName === "IMG" ? !e.alt.trim() : e.getAttribute("aria-hidden") !== "true")
          .filter((e) => e.tagName === "IMG" || e.getAttribute("role") !== "img"
            || !(e.getAttribute("aria-label") || e.querySelector("title")))
          .map((e) => e.outerHTML.slice(0, 120))""")

    def too_wide(self):
        """What makes the page scroll sideways."""
        return self.page.evaluate("""() => {
          const width = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= width) return [];
          const beyond = (element) => element.getBoundingClientRect().right > width + 1;
          const wide = [...document.querySelectorAll("article *")].filter(beyond);
          return ["the page is " + document.documentElement.scrollWidth + " wide", ...wide.slice(0, 5).map(
            (e) => e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 60))];
        }""")

    def barriers(self):
        """What axe-core calls serious or critical, but for the theme's two.

        This thins the page out, so ask it last.
        """
        script = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(THIN_OUT)
        self.page.evaluate(script)
        found = self.page.evaluate(
            """async (off) => {
              const rules = Object.fromEntries(off.map((rule) => [rule, {enabled: false}]));
              const result = await axe.run(document, {resultTypes: ["violations"], preload: false, rules});
              const said = (node) => node.target.join(" ") + ": " + node.failureSummary.split("\\n").slice(1).join(" ");
              return result.violations.map((broken) => [broken.impact, broken.id, broken.nodes.map(said)]);
            }""",
            list(THEME),
        )
        return [f"{rule}: {node}" for impact, rule, nodes in found if impact in SERIOUS for node in nodes[:5]]
