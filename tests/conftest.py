"""What every test gets: one thread, a generator with its own seed, and a gate that counts skips for what they are."""

import os
import sys
import time
import zlib

# Before numpy or torch are imported, and for the kernels that notebooks start: one thread each, so that
# sums are added in one order and two workers do not fight for two cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

STARTED = time.time()


@pytest.fixture
def rng(request):
    """A numpy Generator whose seed is the test's own name: the same numbers in every run, others in every test."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def allowed(reason):
    """Whether a skip for this reason is let pass where skips are forbidden."""
    reason = reason.removeprefix("Skipped: ").strip().lower()
    return reason.startswith("gpu:") or (sys.platform == "darwin" and reason.startswith("triton:"))


class Gate:
    """With DERIVED_FORBID_SKIPS=1 a skipped test is a failed test; and each suite prints its time beside its budget."""

    @staticmethod
    def refuse(report):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"DERIVED_FORBID_SKIPS=1 and this was skipped: {reason}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("DERIVED_FORBID_SKIPS") == "1":
            self.refuse(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        if report.skipped and os.environ.get("DERIVED_FORBID_SKIPS") == "1":
            self.refuse(report)
        return report

    def pytest_terminal_summary(self, terminalreporter):
        suite, _, minutes = os.environ.get("DERIVED_SUITE", "").partition(" ")
        if minutes:
            terminalreporter.write_line(spent(suite, time.time() - STARTED, float(minutes)))
        if started := os.environ.get("DERIVED_STARTED"):
            terminalreporter.write_line(spent("all so far", time.time() - float(started), 30))


def spent(name, seconds, minutes):
    """One line: what a suite took of its budget."""
    over = "  OVER BUDGET" if seconds > 60 * minutes else ""
    return f"time: {name} took {seconds:.0f} s of {60 * minutes:.0f} s{over}"


def pytest_configure(config):
    # As a plugin of its own, so that it also sees what lies outside tests/: the notebooks.
    if not config.pluginmanager.has_plugin("derived-gate"):
        config.pluginmanager.register(Gate(), "derived-gate")
    config.pluginmanager.import_plugin("tests.conformance.summary")
