"""Measure this machine's memory hierarchy by both methods of pointer chasing, several times, to see
whether they find the same levels.

    python benchmarks/memory_hierarchy.py [--runs 3]

Prints, for each run and method, the levels of the curve with their ends; then the loads in flight
with 16 chains and the rates at which one core reads. The machine's load is printed first, since
other programs make caches look smaller.
"""

from __future__ import annotations

import argparse
import time

import psutil

import gpulab as gl
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    processor = gl.machine().processor
    print(
        f"{processor.name}, {', '.join(map(str, processor.caches))}; load "
        f"{psutil.getloadavg()[0]:.1f} on {processor.usable_cores} cores"
    )
    for method in gl.hierarchy.methods():
        for _ in range(runs):
            start = time.perf_counter()
            curve = gl.hierarchy.latency(method=method)
            levels = "; ".join(
                f"{level.name} {level.speed_text}"
                + (f" to {format_bytes(level.ends_bytes)}" if level.ends_bytes else "")
                for level in curve.levels().levels
            )
            print(
                f"{method:7} {time.perf_counter() - start:5.1f} s, floor "
                f"{format_seconds(curve.floor_seconds or 0.0)}: {levels}"
            )
    for method in gl.hierarchy.methods():
        found = [gl.hierarchy.parallel([16], method=method).gain for _ in range(runs)]
        print(
            f"{method:7} loads in flight with 16 chains: "
            f"{', '.join(f'{gain:.1f}' for gain in found)}"
        )
    stream = gl.hierarchy.bandwidth([2**18, 2**21, 2**26])
    print(
        "one core reads",
        ", ".join(
            f"{format_bytes(p.nbytes)} {format_bytes_per_second(p.most_bytes_per_second)}"
            for p in stream.points
        ),
    )


if __name__ == "__main__":
    main()
