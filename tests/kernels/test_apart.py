"""The kernels without a GPU: interpreted, with numbers, and compiled, with registers, a process a file."""

from pathlib import Path

import pytest

from tests.kernels.apart import run_apart

HERE = Path(__file__).parent


def files(folder):
    found = sorted((HERE / folder).glob("check_*.py"))
    assert found, f"no checks in {folder}"
    return pytest.mark.parametrize("file", found, ids=lambda file: file.stem)


@pytest.mark.slow
@files("interpreted")
def test_interpreted(file):
    run_apart(file, TRITON_INTERPRET="1")


@pytest.mark.slow
@files("compiled")
def test_compiled(file, tmp_path):
    run_apart(file, TRITON_CACHE_DIR=str(tmp_path))


def test_a_failing_file_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.kernels.apart.ROOT", tmp_path)
    for name, body in (("check_failing", "def test_f():\n    assert 0"), ("check_empty", "x = 1")):
        (tmp_path / f"{name}.py").write_text(body)
        with pytest.raises(AssertionError, match=name):
            run_apart(tmp_path / f"{name}.py")
