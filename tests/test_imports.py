"""Imports point one way, and light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[1] / "lib" / "derived"
# What each part may import of the package, itself aside; nobody but chapters imports figures.
MAY = {
    "shapes": set(),
    "errors": set(),
    "ops": {"shapes", "errors"},
    "model": {"shapes", "errors", "ops"},
    "nn": {"shapes", "errors", "ops", "model", "kernels"},
    "kernels": {"errors"},
    "cost": {"shapes", "errors"},
    "cli": {"errors", "cost"},
    "__main__": {"cli"},
    "exercises": {"errors", "ops", "model", "cost", "_exercise_inputs"},
    "_exercise_inputs": {"errors", "ops", "model", "cost"},
    "figures": {"shapes", "errors", "ops", "cost"},
    "__init__": set(),
}
# Third parties that a part must not touch, at import or later.
NEVER = {"cost": {"torch", "scipy"}, "kernels": {"numpy", "array_api_compat"}, "model": {"torch"}}


def part_of(file):
    first = file.relative_to(LIB).parts[0]
    return first.removesuffix(".py")


def imported(file):
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.name}: a relative import hides where it points"
            yield node.module
            if node.module == "derived":
                yield from (f"derived.{alias.name}" for alias in node.names)


def violations(files, part_of=part_of):
    found = []
    for file in files:
        part = part_of(file)
        assert part in MAY, f"{part} is a new part of the package: say in MAY what it may import"
        for module in imported(file):
            top, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if top == "derived" and other and other != part and other not in MAY[part]:
                found.append(f"{file.name} imports {module}: {part} may import {sorted(MAY[part])}")
            if top in NEVER.get(part, ()):
                found.append(f"{file.name} imports {top}, which {part} does without")
    return found


def test_imports_point_one_way():
    files = sorted(LIB.rglob("*.py"))
    assert len(files) > 20
    assert not violations(files)


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("ops", "from derived.model.block import block"),
        ("ops", "def f():\n    import derived.cost"),
        ("cost", "from derived import ops"),
        ("cost", "import torch"),
        ("cli", "import derived.figures"),
    ],
)
def test_an_import_that_points_back_is_seen(tmp_path, part, line):
    file = tmp_path / "planted.py"
    file.write_text(line)
    assert violations([file], part_of=lambda _: part)


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
import pkgutil, importlib, {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
heavy = {heavy!r} & set(sys.modules)
assert not heavy, heavy
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("package", "blocked", "heavy"),
    [
        ("derived.ops", {"torch", "triton"}, {"torch", "altair", "matplotlib", "sympy"}),
        ("derived.model", {"torch", "triton"}, {"torch", "altair", "matplotlib", "sympy"}),
        ("derived.cost", {"numpy", "torch", "sympy", "scipy", "array_api_compat"}, {"numpy"}),
    ],
)
def test_a_part_is_imported_whole_without(package, blocked, heavy):
    done = run(BLOCKED.format(package=package, blocked=blocked, heavy=heavy))
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks():
    assert run(BLOCKED.format(package="derived.ops", blocked={"numpy"}, heavy=set())).returncode == 1


def test_nothing_imports_triton_until_a_kernel_is_asked_for():
    parts = "derived.ops, derived.model, derived.cost, derived.kernels"
    code = f"import sys, {parts}; assert not {{'triton'}} & set(sys.modules)"
    assert run(code).returncode == 0
