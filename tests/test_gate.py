"""The gate itself: where skips are forbidden a skip fails, loudly, and only the GPU's is let pass."""

import os
import subprocess
import sys
import zlib

from tests.support.pages import ROOT

SUITE = """
import pytest

def test_passes(rng):
    assert rng.normal() == rng.__class__(rng.bit_generator.__class__({seed})).normal()

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

def test_needs_a_gpu():
    pytest.skip("gpu: none here")
"""
SKIPS = {
    "test_inside.py": "import pytest\n\ndef test_lacks():\n    pytest.skip('Chromium is missing')",
    "test_module.py": "import pytest\n\npytest.importorskip('no_such_module')\n\ndef test_never():\n    pass",
    "test_mark.py": "import pytest\n\n@pytest.mark.skipif(True, reason='later')\ndef test_later():\n    pass",
}


def run(folder, *arguments, **environment):
    """Run pytest in the folder with a copy of the project's conftest."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_every_kind_of_skip_fails_where_skips_are_forbidden(tmp_path):
    for name, source in SKIPS.items():
        (tmp_path / name).write_text(source)
    assert "3 skipped" in run(tmp_path, DERIVED_FORBID_SKIPS="").stdout
    for workers in ((), ("-p", "xdist", "-n", "2")):
        done = run(tmp_path, *workers, "--continue-on-collection-errors", DERIVED_FORBID_SKIPS="1")
        assert done.returncode == 1 and "1 failed, 2 errors" in done.stdout, done.stdout
        for reason in ("Chromium is missing", "could not import 'no_such_module'", "later"):
            assert f"DERIVED_FORBID_SKIPS=1 and this was skipped: Skipped: {reason}" in done.stdout, done.stdout


def test_a_gpu_s_skip_and_a_known_failure_are_let_pass(tmp_path):
    (tmp_path / "test_one.py").write_text(SUITE.format(seed=zlib.crc32(b"test_passes")))
    done = run(tmp_path, DERIVED_FORBID_SKIPS="1")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout


def test_a_suite_prints_its_time_beside_its_budget(tmp_path):
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass")
    within = run(tmp_path, DERIVED_SUITE="unit 12", DERIVED_STARTED="0").stdout
    assert "time: unit took" in within and "of 720 s\n" in within
    assert "time: all so far took" in within and "of 1800 s  OVER BUDGET" in within
    assert within.rstrip().splitlines()[-1].startswith("1 passed")
