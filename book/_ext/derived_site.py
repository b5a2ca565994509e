"""The few lines Sphinx needs from this book: MathJax and Vega from the site itself, no Thebe.

No page of the site makes a request elsewhere. MathJax comes from the package sphinx-mathjax-offline,
Vega from vl-convert-python, both installed from the Python index; nothing of them is committed.
Vega is copied only where a page draws with it.
"""

import re
import shutil
from importlib import metadata
from pathlib import Path
from posixpath import relpath

from docutils import nodes

MATHJAX = "_static/mathjax"
# the script, its fonts, and the TeX extensions that it loads when a formula first uses one (\color, \cancel)
MATHJAX_PARTS = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")
VEGA = "_vega/vega.js"  # not under _static, where every script would load on every page
# the list of addresses that derived.figures.show writes into an output
VEGA_ADDRESSES = re.compile(r'\["https://cdn\.jsdelivr\.net/npm/vega@[^\]]*\]')


def serve_vega_locally(app, pagename, templatename, context, doctree):
    """Let the figures of a page load Vega from the site instead of from the network."""
    here = Path(pagename).parent.as_posix()
    if "body" in context:
        context["body"] = VEGA_ADDRESSES.sub(f'["{relpath(VEGA, here)}"]', context["body"])


def leave_out_thebe(app, pagename, templatename, context, doctree):
    """Drop the scripts of Thebe, which nothing here uses: the theme adds its constants twice, and the second throws."""
    if "script_files" in context:
        context["script_files"] = [script for script in context["script_files"] if not is_thebe(script)]


def is_thebe(script):
    """Whether a script entry of a page is one of Thebe's."""
    return "thebe" in f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}"


def leave_formulas_whole(app, doctree):
    r"""Hand a displayed formula to MathJax as it is written.

    Sphinx wraps one that has `\\` in it in an environment that refuses `\tag`; notebooks do not.
    """
    for formula in doctree.findall(nodes.math_block):
        if r"\\" in formula.astext() and not formula.get("nowrap"):
            formula["nowrap"] = True
            formula.children = [nodes.Text(rf"\[{formula.astext()}\]")]


def copy_mathjax(outdir):
    """Copy the parts of MathJax that the pages use."""
    source = Path(metadata.distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline/static/mathjax"))
    for part in MATHJAX_PARTS:
        target = outdir / MATHJAX / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / part).is_dir():
            shutil.copytree(source / part, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / part, target)


def write_vega(outdir):
    """Write Vega, Vega-Lite and vega-embed as one script."""
    import vl_convert  # slow to import, so only where a page draws

    target = outdir / VEGA
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        # in a function, because its top-level names would clash with those of the page's other scripts
        target.write_text(f"(() => {{{vl_convert.javascript_bundle()}}})();", encoding="utf-8")


def finish(app, exception):
    """Lay beside the pages what they load."""
    if exception or app.builder.format != "html":
        return
    outdir = Path(app.outdir)
    copy_mathjax(outdir)
    if any(VEGA in page.read_text(encoding="utf-8") for page in (outdir / "book").rglob("*.html")):
        write_vega(outdir)


def setup(app):
    """Connect the handlers; the late priority lets the theme add its scripts first."""
    app.connect("doctree-read", leave_formulas_whole)
    app.connect("html-page-context", serve_vega_locally)
    app.connect("html-page-context", leave_out_thebe, priority=900)
    app.connect("build-finished", finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
