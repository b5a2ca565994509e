"""`python -m tests.mutants [words]`: plants every error (or those whose row holds the words), prints who caught it."""

import importlib.util
import os
import sys
import time

from tests.mutants.row import interpreted
from tests.mutants.run import judged, unmutated
from tests.mutants.table import TABLE


def main(words: list[str]) -> int:
    """Print the table; 1 if an error was missed or a named test does not pass on the package as it is.

    2 if no row of the table holds all the words.
    """
    table = [row for row in TABLE if all(word in f"{row.what} {row.file} {row.test}" for word in words)]
    if not table:
        print(f"no row of the table holds all of the words {' '.join(words)!r}; rows name what is wrong, file and test")
        return 2
    if importlib.util.find_spec("triton") is None:
        everywhere = [row for row in table if not interpreted(row.test)]
        print(f"triton is not installed on this platform: {len(table) - len(everywhere)} errors in kernels left out")
        table = everywhere
    started = time.perf_counter()
    wrong = unmutated(sorted({row.test for row in table}))
    for test, why in wrong.items():
        print(f"FAILS UNMUTATED  {test}: {why}")
    caught = 0
    for row, verdict in judged(table, workers=os.cpu_count() or 1):
        caught += verdict.caught
        mark = "caught" if verdict.caught else "MISSED"
        print(f"{mark}  {row.file:<26} {row.what:<58} {row.test.removeprefix('tests/')}: {verdict.why}", flush=True)
    print(f"{caught} of {len(table)} planted errors caught, {time.perf_counter() - started:.0f} s")
    return int(caught < len(table) or bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
