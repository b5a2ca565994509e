"""How long each part of the gate takes on this machine, beside its budget.

python tests/benchmarks/gate_times.py           every part
python tests/benchmarks/gate_times.py lint book  the named ones
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Seconds; the whole gate has 1,800 on two cores.
BUDGETS = {"lint": 30, "types": 120, "quick": 120, "unit": 720, "notebooks": 720, "book": 180, "site": 360}


def main(names):
    print(f"{'part':<10} {'seconds':>8} {'budget':>8}")
    failed = 0
    for name in names or BUDGETS:
        started = time.perf_counter()
        done = subprocess.run(["make", name], cwd=ROOT, capture_output=True, text=True)
        spent = time.perf_counter() - started
        failed += done.returncode != 0
        note = "failed" if done.returncode else "over budget" if spent > BUDGETS[name] else ""
        print(f"{name:<10} {spent:>8.1f} {BUDGETS[name]:>8} {note}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
