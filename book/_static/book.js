/* What scrolls must be reachable by the keyboard: give it a place in the tab order, while it is wider than its frame. */
const SCROLLS = [
  "div.math", "mjx-container", "figure.derived-still", "div.derived-drag", "pre", "table", ".pst-scrollable-table-container",
].join();

function letKeyboardScroll() {
  for (const element of document.querySelectorAll(SCROLLS)) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}

window.addEventListener("load", () => {
  (window.MathJax?.startup?.promise ?? Promise.resolve()).then(letKeyboardScroll);
  window.addEventListener("resize", letKeyboardScroll);
  document.addEventListener("toggle", letKeyboardScroll, true);  // an answer unfolded
});
