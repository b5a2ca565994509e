"""Every notebook: run from top to bottom, in normal form, readable without MyST, with the bones of a chapter."""

import ast
import json
import re
import subprocess
import sys

import pytest
from book._tools import address, normal
from IPython.core.inputtransformer2 import TransformerManager

from derived import exercises
from tests.support.pages import ROOT, cells, chapters, defined_in_lib, markdown, pages, slugs, text, without_code

NOTEBOOKS = pages("*.ipynb")
PAGES = NOTEBOOKS + pages("*.md")
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
every_chapter = pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)

LINES, COLUMNS = 15, 100
FILLER = (
    r"simply|obviously|clearly|of course|trivially|powerful|elegant(?:ly)?|delve|dive in(?:to)?|crucial(?:ly)?"
    r"|leverag\w+|seamless\w*|remarkabl\w+|it is worth noting|in this chapter,? we"
)
MYST = r"```\{|^:::|\{(?:glue|eval|cite|numref|eq|ref|doc|prf|math)[:\w]*\}`|\{(?:code|note|figure)[\w-]*\}"
BONES = {
    "what is assumed": r"(?mi)^#+ .*assum",
    "a numbered derivation": r"\\tag\{\d+\.\w+\}",
    "a ledger of assumptions": r"(?mi)^\|\s*assum",
    "takeaways": r"(?mi)^#+ .*takeaway",
    "recall": r"(?mi)^#+ .*recall",
    "folded answers": r"<details>",
    "exercises": r"(?mi)^#+ .*exercise",
    "sources": r"(?mi)^#+ .*sources",
    "what comes next": r"(?mi)^#+ .*next",
    "the prompt: explain it with an everyday picture": r"(?i)never seen a computer",
    "the prompt: what to build": r"(?i)build first",
    "the prompt: three things learnt": r"(?i)three things",
    "the prompt: one question left open": r"(?i)left? open|still open",
}


def python(source):
    """The syntax of a code cell, IPython's own lines translated."""
    return ast.parse(TransformerManager().transform_cell(source))


@every_notebook
def test_is_run_from_top_to_bottom(path):
    code = [c for _, _, c in cells(path, "code")]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    silent = [c for c in code if not c["outputs"] and not text(c["source"]).strip()]
    assert not silent, "an empty code cell"


@every_notebook
def test_holds_no_error_and_writes_no_warning(path):
    for index, _, cell in cells(path, "code"):
        raised = [o for o in cell["outputs"] if o["output_type"] == "error"]
        assert not raised or "raises-exception" in normal.tags(cell), f"cell {index} holds {raised[0]['ename']}"
        assert not [o for o in cell["outputs"] if o.get("name") == "stderr"], f"cell {index} writes to stderr"


@every_notebook
def test_is_in_normal_form_with_the_canonical_cells(path):
    stored = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT).as_posix()
    assert stored == normal.dumps(normal.fill(json.loads(stored), place, address.current())), "run book/_tools/refresh"


@every_notebook
def test_every_cell_is_compared_when_the_tests_run(path):
    for index, source, cell in cells(path, "code"):
        tags = set(normal.tags(cell))
        assert not tags & {"nbval-skip", "nbval-ignore-output"} or "nbval-ignore-output" in tags, f"cell {index}"
        if "nbval-ignore-output" in tags:
            assert re.search(r"cuda|time|perf_counter", source), f"cell {index} is not compared, and needs no exemption"


@every_notebook
def test_code_cells_are_short(path):
    long = [(i, len(s.splitlines())) for i, s, _ in cells(path, "code") if len(s.splitlines()) > LINES]
    assert not long, f"cells (index, lines) of more than {LINES} lines: {long}"


@every_notebook
def test_code_fits_the_column(path):
    own = [(i, s.splitlines()) for i, s, c in cells(path, "code") if "setup" not in normal.tags(c)]
    wide = [(i, number, len(line)) for i, lines in own for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
    assert not wide, f"lines (cell, line, characters) of more than {COLUMNS} characters: {wide}"


@every_notebook
def test_code_is_laid_out_for_the_column(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] = [c for c in notebook["cells"] if "setup" not in normal.tags(c)]
    asked = [sys.executable, "-m", "ruff", "format", "--diff", "--stdin-filename", path, "-"]
    ruff = subprocess.run(asked, input=normal.dumps(notebook), capture_output=True, encoding="utf-8", cwd=ROOT)
    assert ruff.returncode == 0, f"run ruff format on it, then book/_tools/refresh:\n{ruff.stdout}{ruff.stderr}"


@every_page
def test_reads_well_without_myst(path):
    found = re.findall(MYST, without_code(markdown(path)), re.M)
    if path.suffix == ".ipynb":
        assert not found, f"a role or directive that Colab shows as raw text: {found}"
    assert "- [ ]" not in markdown(path)


@every_page
def test_no_word_that_carries_nothing(path):
    assert not re.findall(rf"(?i)\b(?:{FILLER})\b", without_code(markdown(path)))


@every_page
def test_links_lead_to_pages_that_exist(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(markdown(path))):
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), f"{target} leads nowhere"
        assert not file or "/" not in file or page.is_relative_to(ROOT / "book"), f"{target} leads out of the book"
        if anchor:
            assert anchor in slugs(markdown(page)), (
                f"{target}: no such heading; there are {sorted(slugs(markdown(page)))}"
            )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_front_pages_lead_to_what_exists(name):
    source = without_code((ROOT / name).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", source):
        # a file of the repository, by its path or through Colab
        file = target.partition("/blob/")[2].partition("/")[2] if "colab.research" in target else target
        if not file.startswith("https:"):
            assert (ROOT / file).exists(), f"{name}: {target} leads nowhere"


def speaks(alt):
    """Whether an alternative text says something."""
    return len(alt.split()) >= 4 and not re.fullmatch(r"\S+\.(?:png|svg|jpe?g)", alt)


@every_notebook
def test_every_picture_has_words_for_those_who_do_not_see_it(path):
    for index, source, _ in cells(path, "markdown"):
        for alt in re.findall(r"!\[([^\]]*)\]\(", source):
            assert speaks(alt), f"cell {index}: an image whose text is {alt!r}"
    for index, _, cell in cells(path, "code"):
        for output in cell["outputs"]:
            data = output.get("data", {})
            if any(mime.startswith("image/") for mime in data):
                alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
                assert speaks(alt), f"cell {index}: a figure without alt text in its metadata (mystnb: image: alt)"
            html = text(data.get("text/html", ""))
            for tag in re.findall(r"<img\b[^>]*>", html):
                alt = re.search(r'\balt="([^"]*)"', tag)
                assert alt and speaks(alt[1]), f"cell {index}: {tag[:80]} has no alt text"
            for tag in re.findall(r"<svg\b[^>]*>", html):
                named = re.search(r'aria-label="([^"]*)"', tag) or "aria-hidden" in tag or "<title" in html
                assert named, f"cell {index}: an inline drawing without a name"


@every_chapter
def test_title_carries_the_number(path):
    first = markdown(path).lstrip().splitlines()
    assert re.match(rf"# {int(path.name[:2])}\. \S", first[0]), first[0]
    opening = next(line for line in first[1:] if line.strip())
    assert re.match(r"[A-Z\"“*]", opening) and "$" not in opening, (
        "a chapter begins with a plain sentence, its question"
    )


@every_chapter
@pytest.mark.parametrize("bone", BONES)
def test_has_every_bone(path, bone):
    assert re.search(BONES[bone], markdown(path)), f"{path.name} lacks {bone}"


@every_chapter
def test_equations_are_numbered_once_and_cited_where_they_exist(path):
    number = int(path.name[:2])
    labels = re.findall(r"\\tag\{([^}]+)\}", markdown(path))
    assert len(labels) == len(set(labels)), f"a number given twice: {sorted(x for x in labels if labels.count(x) > 1)}"
    assert all(label.startswith(f"{number}.") for label in labels), labels
    known = {other: set(re.findall(r"\\tag\{([^}]+)\}", markdown(other))) for other in chapters()}
    everywhere = set().union(*known.values())
    numbers = {int(other.name[:2]) for other in known}
    prose = re.sub(r"\\tag\{[^}]*\}", "", without_code(markdown(path)))
    for chapter, rest in re.findall(r"\((\d{1,2})\.(\d{1,2}[a-z]?)\)", prose):
        if int(chapter) in numbers:
            assert f"{chapter}.{rest}" in everywhere, f"({chapter}.{rest}) is cited and nowhere derived"


@every_chapter
def test_has_setup_and_link_once_at_the_top(path):
    tagged = [(tag, i) for kind in ("markdown", "code") for i, _, c in cells(path, kind) for tag in normal.tags(c)]
    assert [tag for tag, _ in tagged if tag in ("setup", "colab")] == ["colab", "setup"]
    first_code = cells(path, "code")[0]
    assert "setup" in normal.tags(first_code[2]), "the first code cell is the setup"


@every_chapter
def test_exercises_check_themselves(path):
    code = [s for _, s, c in cells(path, "code") if "setup" not in normal.tags(c)]
    calls = [n for s in code for n in ast.walk(python(s)) if isinstance(n, ast.Call)]
    assert sum(ast.unparse(call.func) in ("check", "exercises.check") for call in calls) >= 2
    recall = markdown(path).split("ecall", 1)[-1]
    assert recall.count("<details>") >= 4 and recall.count("<details>") == recall.count("</details>")


@every_chapter
def test_no_cell_writes_again_what_the_lib_has(path):
    known = defined_in_lib("ops", "model")
    for index, source, cell in cells(path, "code"):
        if "setup" in normal.tags(cell):
            continue
        defined = {n.name for n in ast.walk(python(source)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert not defined & known, f"cell {index} defines {sorted(defined & known)}, which the lib has"


@every_chapter
def test_randomness_has_a_seed(path):
    source = "\n".join(s for _, s, _ in cells(path, "code"))
    assert not re.search(r"default_rng\(\)|np\.random\.(?:rand|randn|normal|seed|uniform|choice)\b", source)
    if re.search(r"torch\.(?:rand|randn|randint|normal)\(", source):
        assert re.search(r"manual_seed\(\d+\)", source), "torch draws numbers without a seed"


@every_chapter
def test_one_cell_runs_on_a_gpu_where_there_is_one(path):
    gpu = [c for _, s, c in cells(path, "code") if "cuda.is_available" in s]
    assert len(gpu) == 1 and "nbval-ignore-output" in normal.tags(gpu[0])
    said = "".join(text(o.get("text", "")) for o in gpu[0]["outputs"])
    assert said, "without a GPU the cell says so"


def test_every_exercise_asked_for_exists():
    for path in chapters():
        for name in re.findall(r'\bcheck\(\w+, "(\w+)"\)', "\n".join(s for _, s, _ in cells(path, "code"))):
            assert name in exercises.names(), f"{path.name} asks for the exercise {name!r}"
