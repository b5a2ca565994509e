"""Each check of the site is seen to fail: on a page with one planted fault, and on no page without."""

import nbformat
import pytest

from tests.site import dragging, links, planted
from tests.site.build import STRICT, build
from tests.site.test_figures import wrong_numbers

browser = pytest.mark.browser


def test_links_that_lead_nowhere_are_found(planted_built, tmp_path):
    found = [line for line in links.broken_links(planted_built, tmp_path) if line.startswith("book/links.html")]
    expected = (
        "nowhere.html: no such file",
        "sound.html#nowhere: no such anchor",
        "#nowhere: no such anchor",
        "no such notebook",
    )
    assert [any(line.endswith(end) for line in found) for end in expected] == [True] * 4
    assert len(found) == 4


def test_a_script_that_is_absent_is_found(planted_built, tmp_path):
    assert "book/absent.html: ../_static/absent.js: no such file" in links.broken_links(planted_built, tmp_path)


def test_a_page_without_fault_has_no_broken_link(planted_built):
    assert [
        line for line in links.broken_links(planted_built, planted_built) if line.startswith("book/sound.html")
    ] == []


def test_images_without_a_text_are_found(planted_built):
    assert {line.partition(":")[0] for line in links.mute_images(planted_built)} == {"book/mute.html", "book/path.html"}


def test_what_is_loaded_from_elsewhere_is_found(planted_built):
    assert links.loads_from_elsewhere(planted_built) == ["book/elsewhere.html: http://planted.invalid/a.png"]


def test_a_warning_fails_the_strict_build(tmp_path):
    (tmp_path / "_config.yml").write_text("title: t\nexecute: {execute_notebooks: 'off'}\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: a\n")
    (tmp_path / "a.md").write_text("# A\n\n[nowhere](nowhere.md)\n")
    built = build(tmp_path, tmp_path, *STRICT)
    assert built.failed
    assert "cross-reference target not found: 'nowhere.md'" in " ".join(built.problems)


def test_an_error_stream_in_a_chapter_fails_the_strict_build(tmp_path):
    planted.write(tmp_path)
    notebook = nbformat.read(tmp_path / "book/figures.ipynb", as_version=4)
    notebook.cells[1].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="a warning"))
    nbformat.write(notebook, tmp_path / "book/figures.ipynb")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/figures\n")
    built = build(tmp_path, tmp_path, *STRICT)
    assert built.failed
    assert "stderr" in " ".join(built.problems)


@browser
@pytest.mark.parametrize("mode", ["light", "dark", "narrow"])
@pytest.mark.parametrize("page", ["sound", "figures"])
def test_nothing_is_found_on_a_page_without_fault(planted_visit, page, mode):
    visit = planted_visit(f"book/{page}", mode)
    checks = (visit.outside, visit.formulas, visit.figures, visit.mute, visit.too_wide, visit.barriers)
    assert visit.complaints + [finding for check in checks for finding in check()] == []


@browser
@pytest.mark.parametrize(
    ("page", "check", "finding"),
    [
        ("refused", "formulas", "refused: "),
        ("unknown", "formulas", r"unknown: \\nosuchmacro"),
        ("source", "formulas", "left as source: "),
        ("letter", "formulas", "left as source: "),
        ("table", "formulas", "left as source: "),
        ("mute", "mute", "<img"),
        ("unlabelled", "mute", "<svg"),
        ("elsewhere", "outside", "http://planted.invalid/a.png"),
        ("sheet", "outside", "http://planted.invalid/f.woff"),
        ("undrawn", "figures", "undrawn: 0 drawings"),
        ("empty", "figures", "empty: an empty drawing"),
        ("button", "barriers", "button-name: "),
        ("faint", "barriers", "color-contrast: "),
    ],
)
def test_a_planted_fault_is_found(planted_visit, page, check, finding):
    found = getattr(planted_visit(f"book/{page}"), check)()
    assert len(found) == 1
    assert found[0].startswith(finding.replace("\\\\", "\\"))


@browser
def test_what_is_too_wide_is_found_on_a_telephone_alone(planted_visit):
    assert planted_visit("book/wide", "narrow").too_wide()[0].startswith("the page is 8")
    assert planted_visit("book/wide", "light").too_wide() == []


@browser
@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("throws", "page error: planted"),
        ("complains", "console error: planted"),
        ("absent", "404: "),
        ("undrawn", "stays still"),
    ],
)
def test_complaints_are_heard(planted_visit, page, complaint):
    assert complaint in " ".join(planted_visit(f"book/{page}").complaints)


@pytest.fixture
def figures(planted_visit):
    return planted_visit("book/figures").page


@browser
def test_a_sound_figure_agrees_with_python_and_all_its_inputs_live(figures):
    assert wrong_numbers(figures, planted.SOUND) == []
    assert dragging.dead_inputs(figures, "sound", planted.SETTINGS) == []


@browser
def test_a_figure_that_computes_another_number_is_found(figures):
    found = wrong_numbers(figures, planted.WRONG)
    assert len(found) == 3
    assert found[0] == "wrong at {'tokens': 3, 'factor': True}: 'doubled = 6.3' should show 6"


@browser
def test_a_number_that_only_python_has_is_found(figures):
    row = planted.Figure("", "sound", planted.SETTINGS, lambda tokens, factor: {"tripled": 3 * tokens})
    assert "Python gives ['tripled']" in wrong_numbers(figures, row)[0]


@browser
def test_an_input_that_moves_nothing_is_found(figures):
    found = dragging.dead_inputs(figures, "dead", planted.SETTINGS)
    assert found == ["dead: factor changes nothing that is drawn", "dead: factor changes no number"]


@browser
def test_an_input_cannot_be_set_beyond_its_end(figures):
    with pytest.raises(Exception, match="stays at 11 and cannot be 13"):
        dragging.move(figures, "sound", {"tokens": 13})
