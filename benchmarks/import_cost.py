"""What ``import gpulab`` costs against ``import numpy``: the ratio of the times in fresh processes.

The two take turns, and each process times its own import, so the interpreter's start does not
dilute the ratio. Run: python benchmarks/import_cost.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

LIMIT_RATIO = 1.3


def import_seconds(module: str) -> float:
    """Return the seconds that a fresh process spends in importing a module."""
    code = (
        f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - "
        "start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> int:
    """Print both medians and their paired ratio; return 1 if it is over the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10 pairs instead of 60")
    pairs = 10 if parser.parse_args().quick else 60
    for module in ("gpulab", "numpy"):
        import_seconds(module)  # fills the disk cache and writes the byte code
    ours, theirs = [], []
    for turn in range(pairs):
        for which in ("gpulab", "numpy") if turn % 2 else ("numpy", "gpulab"):
            (ours if which == "gpulab" else theirs).append(import_seconds(which))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    medians = [1e3 * statistics.median(seconds) for seconds in (ours, theirs)]
    print(
        f"import gpulab {medians[0]:.2f} ms, import numpy {medians[1]:.2f} ms, median of {pairs} "
        "pairs"
    )
    print(f"ratio {ratio:.3f}; the limit is {LIMIT_RATIO}")
    return int(ratio > LIMIT_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
