"""Run a file of tests in a process of its own: kernels are interpreted or compiled for the whole life of a process.

The files are named check_*.py, so that nothing collects them in a process that has decided otherwise.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_TRITON = "triton: not installed on this platform"


def run_apart(file: Path, **environment: str) -> None:
    """Run pytest on the file with these variables set; fail with its output unless tests ran and all passed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip(NO_TRITON)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "PYTEST_XDIST", "DERIVED_SUITE"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(file.relative_to(ROOT)),
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=ROOT, env=variables | environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{file.name}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert int((re.search(r"(\d+) passed", done.stdout) or [0, 0])[1]) > 0, f"{file.name} has run no test"
