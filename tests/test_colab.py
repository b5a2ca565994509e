"""The setup cell and the package on Colab, without Colab: its package list, and a module of its name."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest
from book._tools import address, normal

from tests.support.pages import ROOT

# `pip freeze` of Colab's runtime as googlecolab/backend-info publishes it (pip-freeze.txt, August 2026; Python 3.13).
LIST = Path(__file__).parent / "data" / "colab-packages.txt"
# What may be added there: our package, and what of its needs Colab lacks.
ADDED = {"derived", "jaxtyping", "array-api-compat", "wadler-lindig"}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def colab():
    """The packages of Colab's list, name to version."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return dict(
        re.fullmatch(r"([\w.-]+)==(\S+)", line).groups() for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)
    )


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    """A virtual environment with a name and a version for every package of the list, and nothing in them."""
    home = tmp_path_factory.mktemp("colab")
    venv.create(home, with_pip=True)
    [site] = home.glob("lib/python3*/site-packages")
    for name, version in colab().items():
        info = site / f"{canonical(name).replace('-', '_')}-{version}.dist-info"
        if canonical(name) in ("pip", "setuptools"):
            continue
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    return home / "bin" / "python"


def report(python, *wanted):
    """The names that pip would install in this environment, with versions."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["install"]
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in found}


def test_the_list_is_colab_s():
    packages = colab()
    assert len(packages) > 600 and {"torch", "numpy", "altair", "matplotlib", "beartype"} <= set(packages)
    assert not {"jaxtyping", "array-api-compat"} & set(packages)


def test_nothing_of_the_list_is_replaced(stubs):
    added = report(stubs, str(ROOT))
    assert "derived" in added
    assert set(added) <= ADDED, f"an install on Colab would bring or replace {sorted(set(added) - ADDED)}"


def test_a_floor_above_the_list_would_be_seen(stubs):
    version = colab()["beartype"]
    assert "beartype" in report(stubs, f"beartype>{version}")


def test_ranges_admit_the_list():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [r for group in project["optional-dependencies"].values() for r in group]
    packages = {canonical(name): version for name, version in colab().items()}
    from packaging.requirements import Requirement

    for requirement in map(Requirement, wanted):
        version = packages.get(canonical(requirement.name))
        assert not version or requirement.specifier.contains(version), f"{requirement} refuses Colab's {version}"


PROGRAM = """
import sys, types
sys.path[:0] = [{fake!r}]
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell({cell!r}).raise_error()
shell.run_cell("import derived.ops.softmax as s; print('from', s.__file__)").raise_error()
"""


def setup_cell(url, branch="main"):
    return normal.SETUP.format(url=url, branch=branch)


def in_empty_folder(tmp_path, python, cell, env=None):
    """Run the cell with a module named google.colab, in a folder that holds nothing else."""
    empty, fake = tmp_path / "empty", tmp_path / "fake"
    (fake / "google" / "colab").mkdir(parents=True)
    (fake / "google" / "colab" / "__init__.py").write_text("")
    empty.mkdir()
    program = textwrap.dedent(PROGRAM.format(fake=str(fake), cell=cell))
    return subprocess.run(
        [python, "-c", program], cwd=empty, env=env or os.environ, capture_output=True, text=True, timeout=300
    )


def test_unstamped_it_says_so_in_a_sentence(tmp_path):
    done = in_empty_folder(tmp_path, sys.executable, setup_cell(address.UNSTAMPED.url))
    assert done.returncode == 0, done.stderr
    assert "does not know its repository's address yet" in done.stdout


def test_elsewhere_it_does_nothing():
    code = (
        f"from IPython.core.interactiveshell import InteractiveShell as I; I.instance().run_cell({setup_cell('x')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def git(*arguments, cwd):
    identity = ["-c", "user.name=reader", "-c", "user.email=reader@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A repository with the package as it stands in the working tree, on a branch named main."""
    home = tmp_path_factory.mktemp("origin")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "lib", "pyproject.toml", "README.md"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        if (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes((ROOT / name).read_bytes())
    git("init", "-q", "-b", "main", cwd=home)
    git("add", "-A", cwd=home)
    git("commit", "-q", "-m", "as it stands", cwd=home)
    return home


def test_from_an_empty_folder_it_installs_the_repository_and_nothing_else(tmp_path, clone):
    """On a machine like Colab: everything is there but our package."""
    home = tmp_path / "runtime"
    venv.create(home, with_pip=True)
    [site] = home.glob("lib/python3*/site-packages")
    # what Colab has and what it lacks of our needs, from the environment of these tests; pip sees it as installed
    around = next(p for p in map(Path, sys.path) if p.name == "site-packages")
    (site / "around.pth").write_text(f"{around}\n")
    before = {p.name for p in site.iterdir()}
    done = in_empty_folder(tmp_path, home / "bin" / "python", setup_cell(f"file://{clone}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"from {site.resolve()}" in done.stdout.replace(str(site), str(site.resolve()))
    new = {p.name for p in site.iterdir()} - before
    assert {re.split(r"-|\.", name)[0] for name in new} == {"derived"}, new


def test_a_wheel_holds_the_whole_package(tmp_path, clone):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, clone],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    import zipfile

    [wheel] = tmp_path.glob("derived-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    sources = {p.relative_to(clone / "lib").as_posix() for p in (clone / "lib").rglob("*.py")}
    assert sources <= held and "derived/py.typed" in held
