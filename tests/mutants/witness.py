"""A pytest plugin for the process that tests a copy: whose package it tests, and how each test ended."""

import json
from pathlib import Path

import pytest


class Witness:
    """Refuses to start unless `derived` comes from the copy; writes one line a phase of each test into it."""

    def __init__(self, copy: Path):
        self.copy = copy

    def pytest_sessionstart(self):
        """The copy must be what tests import."""
        import derived

        found = Path(derived.__file__).resolve()
        if self.copy not in found.parents:
            raise pytest.UsageError(f"derived was imported from {found}, not from the copy in {self.copy}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """The test, the phase, the outcome, the name of the error."""
        report = yield
        error = None if call.excinfo is None else call.excinfo.type.__name__
        line = {"nodeid": report.nodeid, "when": report.when, "outcome": report.outcome, "error": error}
        with open(self.copy / "reports.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return report
