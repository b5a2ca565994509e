"""Every public function says what it does, its shapes as its annotations have them, its source and its chapter."""

import ast
import re

import pytest

from tests.support.pages import ROOT

LIB = ROOT / "lib" / "derived"
FILES = [f for part in ("ops", "model") for f in sorted((LIB / part).rglob("*.py"))]
ALL = sorted(LIB.rglob("*.py"))


def public(file):
    """The public functions and classes at the top of a file, methods included."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_"))


def shaped(node):
    """Whether the node is a function of the public face: one whose calls are checked."""
    return isinstance(node, ast.FunctionDef) and "shaped" in map(ast.unparse, node.decorator_list)


def axes(annotation):
    """The axes of each jaxtyping annotation in an annotation, as lists of letters."""
    found = []
    for node in ast.walk(annotation) if annotation else ():
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            dims = node.slice.elts[1]
            if isinstance(dims, ast.Constant) and isinstance(dims.value, str):
                found.append(dims.value.split())
    return found


def annotated(function):
    """Argument (or `->`) to its axes, for arrays with one annotation whose axes are named."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    pairs = [(a.arg, axes(a.annotation)) for a in arguments] + [("->", axes(function.returns))]
    return {name: found[0] for name, found in pairs if len(found) == 1 and found[0] != ["..."]}


def letters(shape):
    """`(*batch, n, d_k)`, `(..., n, d_k)` and `(n)` as lists of letters."""
    inner = [letter.strip() for letter in shape.strip("()").split(",") if letter.strip()]
    return ["..." if letter.startswith(("*", "...", "…", "#")) else letter for letter in inner]


def written(docstring):
    """What the paragraph `Shapes:` says: pairs of names and letters, in its order."""
    match = re.search(r"Shapes:(.*?)(?:\n\s*\n|\Z)", docstring, re.S)
    if not match:
        return None
    paragraph = " ".join(match[1].split())
    shape = r"\((?:[*#]?\w+|\.\.\.|…)?(?:,\s*[*#]?(?:\w+|\.\.\.|…))*,?\)"
    names = r"((?:\w+′?(?:,? and |, ))*\w+′?(?: \w+′?)?)"  # `q`, `gain and bias`, `logits s`
    found = []
    for group, dims in re.findall(rf"{names},? (?:each |all |of shape )?({shape})", paragraph):
        found += [(name, letters(dims)) for name in re.split(r",? and |, | ", group)]
    return found


def disagreements(function):
    """Where the docstring's shapes are not the annotations'."""
    said = written(ast.get_docstring(function) or "")
    if said is None:
        return []
    wrong = []
    for name, dims in annotated(function).items():
        dims = ["..." if d.startswith(("*", "...", "#*")) else d.removeprefix("#") for d in dims]
        here = [letters for other, letters in said if other == name]
        if name != "->" and here and dims not in here:
            wrong.append(f"{name}: the docstring says {here[0]}, the annotation {dims}")
    return wrong


@pytest.mark.parametrize("file", ALL, ids=lambda file: file.relative_to(LIB).as_posix())
def test_everything_public_says_what_it_does(file):
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), "a file without a docstring"
    for node in public(file):
        said = ast.get_docstring(node)
        assert said, f"{node.name} has no docstring"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(LIB).as_posix())
def test_shapes_in_words_are_the_annotations(file):
    for node in public(file):
        if isinstance(node, ast.FunctionDef):
            assert not disagreements(node), f"{node.name}: {disagreements(node)}"
        if shaped(node) and node.name.endswith("_vjp"):
            named = {name for name, _ in written(ast.get_docstring(node) or "") or ()}
            missing = set(annotated(node)) - named - {"->"}
            assert not missing, f"{node.name}: the paragraph `Shapes:` leaves out {sorted(missing)}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(LIB).as_posix())
def test_a_derivation_names_its_source(file):
    for node in public(file):
        if shaped(node) and node.name.endswith("_vjp"):
            said = ast.get_docstring(node) or ""
            assert re.search(r"Source|hapter", said), f"{node.name} names neither source nor chapter"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(LIB).as_posix())
def test_every_argument_is_annotated(file):
    for node in public(file):
        if shaped(node):
            bare = [a.arg for a in (*node.args.args, *node.args.kwonlyargs) if a.annotation is None]
            assert not set(bare) - {"self", "cls"}, f"{node.name}: no annotation for {bare}"


PLANTED = '''
def f(q: Float[Array, "*batch n d_k"], b: Float[Array, "d_out"] | None = None) -> Float[Array, "*batch n"]:
    """Say something of q.

    Shapes: q (..., n, {width}), b ({out}) -> y (..., n).
    """
'''


@pytest.mark.parametrize(("width", "out", "wrong"), [("d_k", "d_out", 0), ("d_v", "d_out", 1), ("d_v", "d_in", 2)])
def test_a_shape_in_words_that_is_not_the_annotation_is_seen(width, out, wrong):
    [function] = ast.parse(PLANTED.format(width=width, out=out)).body
    assert len(written(ast.get_docstring(function))) == 3
    assert len(disagreements(function)) == wrong
