"""What `import gpulab` costs against `import numpy`: fresh interpreters that take turns, medians above an empty interpreter.

python benchmarks/import_cost.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

STATEMENTS = {"nothing": "pass", "numpy": "import numpy", "gpulab": "import gpulab"}


def seconds(statement: str) -> float:
    """The wall time of one interpreter that runs a statement."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 rounds instead of 100")
    rounds = 10 if parser.parse_args().quick else 100
    for statement in STATEMENTS.values():  # the file cache is warm for all of them
        seconds(statement)
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            samples[name].append(seconds(statement))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, value in medians.items():
        print(f"{name:8} {value * 1e3:7.1f} ms for the process, {(value - medians['nothing']) * 1e3:7.1f} ms for the import")
    print(f"whole process, gpulab / numpy: {medians['gpulab'] / medians['numpy']:.2f} (n = {rounds}; the bound is 1.3)")


if __name__ == "__main__":
    main()
