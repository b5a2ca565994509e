"""The table cannot rot: every row's text stands in its file, every named test exists; and the judge can tell."""

import ast
import functools
import importlib.util
import subprocess
import sys

import pytest

from tests.kernels.apart import NO_TRITON
from tests.mutants.row import INTERPRETED, PACKAGE, ROOT, interpreted
from tests.mutants.table import TABLE
from tests.support.mutants import exchanged, planted

ENOUGH = 40
"""Fewest planted errors that are promised."""


@functools.cache
def names_of_tests(path):
    """Names of the test functions in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.file}: {row.what}")
def test_each_row_names_one_place_and_a_test(row):
    compile(exchanged(row.source(), row.right, row.wrong), row.file, "exec")
    path, _, name = row.test.partition("::")
    assert name.partition("[")[0] in names_of_tests(path)


def test_no_two_rows_are_one():
    assert len(TABLE) >= ENOUGH
    assert len({(row.file, row.right, row.wrong) for row in TABLE}) == len(TABLE)
    assert len({(row.file, row.what) for row in TABLE}) == len(TABLE)


def test_every_derived_op_model_and_kernel_has_an_error_planted_in_it():
    without_formulas = {"ops/contract.py", "model/parameters.py"}
    files = {
        f.relative_to(PACKAGE).as_posix()
        for part in ("ops", "model", "kernels")
        for f in (PACKAGE / part).rglob("*.py")
    }
    files = {f for f in files if not f.endswith("__init__.py")}
    assert files - {row.file for row in TABLE} == without_formulas


def test_text_that_names_no_place_is_refused():
    for right in ("b", "x"):
        with pytest.raises(AssertionError, match="must occur once"):
            exchanged("a b b", right, "c")
    with pytest.raises(AssertionError, match="nothing is exchanged"):
        exchanged("a b", "b", "b")


def test_a_planted_function_is_wrong_for_whoever_has_imported_it_and_only_meanwhile():
    import numpy as np

    from derived.ops.heads import repeat_heads

    x = np.arange(6.0).reshape(2, 3, 1)
    tiled = "xp.broadcast_to(x[..., None, :, :, :], (*batch, groups, h_kv, m, d))"
    with planted("derived.ops.heads", "xp.broadcast_to(x[..., None, :, :], (*batch, h_kv, groups, m, d))", tiled):
        assert repeat_heads(x, 2)[1, 0, 0] == 3
    assert repeat_heads(x, 2)[1, 0, 0] == 0


JUDGED = """
import sys
from tests.mutants.row import Mutant
from tests.mutants.run import judged, unmutated

file, test, right, *wrongs = sys.argv[1:]
for row, verdict in judged([Mutant(wrong, file, right, wrong, test) for wrong in wrongs], workers=1):
    print(verdict.caught, verdict.why)
print(unmutated([test]), unmutated([test + "_and_more"]))
"""
OP = (
    "ops/softmax.py",
    "tests/ops/test_softmax.py::test_a_weight_too_small_for_float64_still_has_its_logarithm",
    "y = (x - c) - xp.log(safe)",
    "y = (x - c) - 1.001 * xp.log(safe) - 1",
    "y = (x - c) - xp.log(1 * safe)",
    "y = (x - c) - xp.lag(safe)",
)
KERNEL = (
    "kernels/tile.py",
    f"{INTERPRETED}check_flash.py::test_float32_is_the_definition_forward_and_backward[narrow]",
    "reads = (i < n) & (j < m)",
    "reads = (i < n) & (j < m - 1)",
    "reads = (i < n) & (m > j)",
    "reads = (i < n) & (j < k)",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "error"), [(OP, "AttributeError"), (KERNEL, "InterpreterError")], ids=["op", "kernel"]
)
def test_the_judge_tells_caught_from_missed_and_from_code_that_does_not_run(words, error):
    if interpreted(words[1]) and importlib.util.find_spec("triton") is None:
        pytest.skip(NO_TRITON)
    command = [sys.executable, "-c", JUDGED, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    caught, missed, broken, unmutated = done.stdout.splitlines()
    assert caught.startswith("True AssertionError")
    assert missed == "False the test passes"
    assert broken.startswith(f"False {error} in call: the mutant does not run")
    assert unmutated.startswith(f"{{}} {{'{words[1]}_and_more': ") and "not found" in unmutated
