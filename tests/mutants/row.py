"""One row of the table of planted errors."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lib" / "derived"
INTERPRETED = "tests/kernels/interpreted/"
"""Where the tests lie that run kernels in Triton's interpreter."""


def interpreted(test: str) -> bool:
    """Tell whether a test needs a process in which Triton interprets its kernels."""
    return test.startswith(INTERPRETED)


class Mutant(NamedTuple):
    """What is wrong, the file under lib/derived, the text that is exchanged, and the test that must catch it."""

    what: str
    file: str
    right: str
    wrong: str
    test: str

    def source(self) -> str:
        """The file as it stands."""
        return (PACKAGE / self.file).read_text(encoding="utf-8")


def rows(file: str, test_file: str, *errors: tuple[str, str, str, str]) -> list[Mutant]:
    """Rows of one file of the package, caught in one file of tests: (what, right, wrong, test)."""
    return [Mutant(what, file, right, wrong, f"tests/{test_file}::{test}") for what, right, wrong, test in errors]
