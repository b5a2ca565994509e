"""A small book in the house's own setting, each page with one planted fault, to see that the checks see it."""

import shutil

import altair
import nbformat
import yaml

from derived.figures import canvas, number, show, slider, still, switch
from derived.figures.shown import Shown
from tests.site.build import ROOT
from tests.site.figures.row import Figure

MARKDOWN = {
    "sound": "$x^2$ and $$a = b \\\\ c = d \\tag{1}$$ and [a link](links.md).\n\n"
    "| a | b |\n|---|---|\n| 1 | $\\sqrt{2}$ |\n\n<details><summary>An answer</summary>\n\nFolded, $y$.\n\n</details>",
    "refused": r"$x^2^3$ is no formula.",
    "unknown": r"$\nosuchmacro{1}$ is none either.",
    "source": "The dollars are lost: \\\\(x^2\\\\).",
    "letter": "The dollars are text: \\$d_k\\$.",
    "table": "| a | b | |---|---| | 1 | 2 |",
    "mute": '<img src="../_static/favicon.svg" alt="">',
    "path": '<img src="../_static/favicon.svg" alt="figure-03-spread.svg">',
    "unlabelled": '<svg width="10" height="10" role="img"><path d="M0 0L9 9"/></svg>',
    "elsewhere": '<img src="http://planted.invalid/a.png" alt="A picture from elsewhere">',
    "sheet": "<style>@font-face{font-family:f;src:url(http://planted.invalid/f.woff)} em{font-family:f}</style>"
    " <em>a</em>",
    "throws": '<script>throw new Error("planted")</script>',
    "complains": '<script>console.error("planted")</script>',
    "absent": '<script src="../_static/absent.js"></script>',
    "links": 'Links: <a href="nowhere.html">a page</a>, <a href="sound.html#nowhere">an anchor</a>, '
    '<a href="#nowhere">here</a>, '
    '<a href="https://colab.research.google.com/github/OWNER/REPOSITORY/blob/main/book/nowhere.ipynb">Colab</a>.',
    "wide": '<div style="width:800px">800 pixels</div>',
    "button": '<button type="button"></button>',
    "faint": '<p style="color:#ccc;background:#fff">faint</p>',
}
"""Pages of text by name; `sound` has no fault."""


def doubled(tokens, factor):
    """What the figure of the page `figures` should show."""
    return {"doubled": 2 * tokens, "word": "twice" if factor else "once"}


ALT = "A dot that moves to the right as the slider does."
SETTINGS = tuple({"tokens": tokens, "factor": factor} for tokens, factor in ((3, True), (7, True), (7, False)))
SOUND = Figure("book/figures", "sound", SETTINGS, doubled)
WRONG = Figure("book/figures", "wrong", SETTINGS, doubled)
DEAD = Figure("book/figures", "dead", SETTINGS, doubled)


def chart(expression="2 * tokens", word="factor ? 'twice' : 'once'", x="factor ? tokens : -tokens"):
    """A dot and two numbers, moved by a slider and a switch."""
    inputs = slider("tokens", "width (tokens)", 1, 11, 2, 5), switch("factor", "doubled", True)
    dot = (
        altair.Chart(altair.Data(values=[{}])).transform_calculate(x=x).mark_point().encode(x="x:Q").add_params(*inputs)
    )
    text = altair.Chart(altair.Data(values=[{}])).transform_calculate(t=f"'word = ' + ({word})")
    words = text.mark_text().encode(text="t:N", x=altair.value(9), y=altair.value(9)).properties(name="number_word")
    return dot + number("doubled", "doubled", expression, ".1f") + words


def broken(shown):
    """A figure whose specification the page cannot draw; `show` would have refused it."""
    return Shown(shown.html.replace("2 * tokens", "nosuchfunction(tokens)"), shown.alt)


def drawings():
    """Outputs by page: figures as a chapter would show them."""
    fig, ax = canvas()
    ax.plot([1, 2])
    yield "figures", still(fig, "A line that rises from one to two.")
    yield "figures", show(chart(), ALT, name="sound")
    yield "figures", show(chart("2.1 * tokens"), ALT, name="wrong")
    yield "figures", show(chart(x="tokens", word="'twice'"), ALT, name="dead")
    yield "undrawn", broken(show(chart(), ALT, name="undrawn"))
    yield "empty", show(altair.Chart(altair.Data(values=[])).mark_point().encode(x="a:Q"), ALT, name="empty")


def write(folder):
    """Write the book's sources into a folder, with the settings, extension and style sheets of the real one."""
    (folder / "book").mkdir()
    shutil.copy(ROOT / "_config.yml", folder)
    for part in ("_ext", "_static"):
        shutil.copytree(ROOT / "book" / part, folder / "book" / part)
    for name, text in MARKDOWN.items():
        (folder / f"book/{name}.md").write_text(f"# The page {name}\n\n{text}\n", encoding="utf-8")
    cells = {}
    for page, shown in drawings():
        data = {"text/html": shown.html, "text/plain": repr(shown)}
        output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
        cells.setdefault(page, []).append(nbformat.v4.new_code_cell("shown", outputs=[output], execution_count=1))
    for page, found in cells.items():
        title = nbformat.v4.new_markdown_cell(f"# The page {page}")
        notebook = nbformat.v4.new_notebook(cells=[title, *found])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, folder / f"book/{page}.ipynb")
    names = [f"book/{name}" for name in (*MARKDOWN, *cells)]
    toc = {"format": "jb-book", "root": names[0], "chapters": [{"file": name} for name in names[1:]]}
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc))
