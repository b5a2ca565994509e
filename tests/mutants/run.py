"""Runs named tests against a copy of the package, each time in a process of its own, and judges what came of it.

The working tree is never written to. The copy comes first on the path of the new process, before the installed
package, and the process refuses to start unless `derived` is imported from it. The processes are forked from
one that has imported what tests need and never the package, which saves most of the time of each.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.row import PACKAGE, ROOT, Mutant, interpreted
from tests.mutants.witness import Witness
from tests.support.mutants import exchanged

BROKEN_CODE = (
    "AttributeError",
    "ImportError",
    "InterpreterError",  # Triton's, for whatever is raised in a kernel
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "UnboundLocalError",
)
"""What Python raises for code that does not run; a mutant that ends in one of these has shown nothing."""

TESTS_FAILED = 1
"""pytest's exit code when tests ran and some failed; 2 to 5 mean that none were judged."""

HEAVY = ("pytest", "numpy", "scipy.special", "torch", "hypothesis.extra.numpy", "jaxtyping", "beartype.door")
"""What nearly every test imports; imported once, before the processes are forked."""


class Verdict(NamedTuple):
    """Whether the named test failed as it must, and what it failed with or why it does not count."""

    caught: bool
    why: str


class Outcome(NamedTuple):
    """What one process left behind: pytest's exit code, a report for each phase of each test, the end of its output."""

    code: int
    reports: list[dict]
    output: str


def judged(table: Iterable[Mutant], workers: int) -> Iterator[tuple[Mutant, Verdict]]:
    """Plant each error in a copy of its own and run its test there; rows come as they are done."""
    jobs = []
    for row in table:
        try:
            jobs.append((row, [row.test], {row.file: exchanged(row.source(), row.right, row.wrong)}))
        except AssertionError as error:
            yield row, Verdict(False, str(error))
    for row, outcome in processes(jobs, workers):
        yield row, verdict(row.test, outcome)


def verdict(test: str, outcome: Outcome) -> Verdict:
    """Judge what became of a test that had to fail."""
    failed = [r for r in outcome.reports if r["outcome"] == "failed" and belongs(r["nodeid"], test)]
    if outcome.code == 0:
        return Verdict(False, "the test passes")
    if outcome.code != TESTS_FAILED or not failed:
        return Verdict(False, f"exit code {outcome.code} and no failure of the test: {outcome.output[-400:]}")
    first = failed[0]
    if first["when"] != "call" or first["error"] in BROKEN_CODE:
        return Verdict(False, f"{first['error']} in {first['when']}: the mutant does not run, so nothing is shown")
    return Verdict(True, first["error"])


def unmutated(tests: list[str]) -> dict[str, str]:
    """Test -> what is wrong with it, for those that do not pass against an unchanged copy."""
    parts = [[test for test in tests if interpreted(test) is apart] for apart in (False, True)]
    wrong = {}
    for part, outcome in processes(((part, part, {}) for part in parts if part), workers=2):
        for test in part:
            seen = {r["outcome"] for r in outcome.reports if r["when"] == "call" and belongs(r["nodeid"], test)}
            if seen != {"passed"}:
                wrong[test] = ", ".join(sorted(seen)) or f"not run: {outcome.output[-400:]}"
    return wrong


def belongs(nodeid: str, test: str) -> bool:
    """Tell whether a report is of this test: named whole, or one of its parameters where none was named."""
    return nodeid == test or nodeid.startswith(f"{test}[")


def processes(jobs: Iterable, workers: int) -> Iterator[tuple]:
    """Run jobs (key, tests, {file: its new text}), so many at a time; gives each key and its Outcome."""
    for name in HEAVY:
        importlib.import_module(name)
    # the package would not be the copy's, and Triton has decided when it is imported whether it interprets kernels
    assert not {"derived", "triton"} & set(sys.modules), "the processes to be forked would inherit them from this one"
    running = {}
    try:
        for key, tests, texts in jobs:
            if len(running) == workers:
                yield _ended(running)
            copy = Path(tempfile.mkdtemp(prefix="derived-mutant-")).resolve()
            running[_forked(copy, tests, texts)] = key, copy
        while running:
            yield _ended(running)
    finally:
        for pid, (_, copy) in running.items():  # only after an error: nobody waits for these any more
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            shutil.rmtree(copy)


def _ended(running: dict) -> tuple:
    """Wait for one of the processes, read what it left, remove its copy."""
    pid, status = os.waitpid(next(iter(running)), 0)
    key, copy = running.pop(pid)
    witness, output = copy / "reports.jsonl", copy / "output.txt"
    reports = [json.loads(line) for line in witness.read_text().splitlines()] if witness.exists() else []
    outcome = Outcome(os.waitstatus_to_exitcode(status), reports, output.read_text() if output.exists() else "")
    shutil.rmtree(copy)
    return key, outcome


def _forked(copy: Path, tests: list[str], texts: dict[str, str]) -> int:
    """Lay out the copy and fork a process that runs the tests there; its id."""
    shutil.copytree(PACKAGE, copy / "derived", ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in texts.items():
        (copy / "derived" / file).write_text(text, encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70  # anything but an exit code of pytest, should the lines below not reach their end
    try:
        code = _tested(copy, tests)
    finally:
        os._exit(code)


def _tested(copy: Path, tests: list[str]) -> int:
    """In the forked process: pytest on these tests, with the copy first on the path."""
    import pytest

    with open(copy / "output.txt", "w") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    os.chdir(ROOT)
    os.environ |= {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(copy),  # for processes that a test starts
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
        "CI": "1",  # hypothesis draws the same examples every time
    }
    os.environ.pop("TRITON_INTERPRET", None)
    if all(map(interpreted, tests)):
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(copy))
    flags = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    return int(pytest.main([*flags, *tests], plugins=[Witness(copy)]))
