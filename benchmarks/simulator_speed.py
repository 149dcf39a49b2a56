"""The microscope's speed, with exact counts and hazards, against Numba's simulator on the same
kernels and sizes, in one run.

    python benchmarks/simulator_speed.py [--scale 1.0] [--repeat 3] [--kind "one warp"] [--matmul]

Both run in processes of their own, case by case in turns, on one thread. The ratio is that of
Numba's shortest time to ours, both CPU time. Our first run, which reads and translates the kernel,
does not count. Each result must agree with Numba's, element by element. ``--matmul`` also times a
tiled matmul of 1024 x 1024 under the microscope alone. Needs numba and numba-cuda.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time

import numpy as np


def serve(simulator: bool, scale: float) -> None:
    """Run the cases that are named on standard input, one after the other; print the seconds and
    all arrays. The order in which threads append to an array is free, so that one is sorted.
    """
    from _simulator_kernels import cases
    from numba import cuda

    known = {
        f"{name}, {kind}": (kernel, grid, block, make)
        for name, kind, kernel, grid, block, make in cases(scale)
    }
    for line in sys.stdin:
        kernel, grid, block, make = known[line.strip()]
        arguments = make()
        if simulator:
            compiled = cuda.jit(kernel)
            begin = time.process_time()
            compiled[grid, block](*arguments)
        else:
            from gpulab.kernels import simulate

            begin = time.process_time()
            result = simulate(kernel, grid, block, *arguments)
            assert not result.findings, result.findings
        seconds = time.process_time() - begin
        arrays = [np.asarray(a, dtype=np.float64).ravel() for a in arguments]
        if line.startswith("compact"):
            arrays = [np.sort(a) for a in arrays]
        print(json.dumps([seconds, np.concatenate(arrays).tolist()]), flush=True)


def start(simulator: bool, scale: float) -> subprocess.Popen:
    command = [
        sys.executable,
        __file__,
        "--serve",
        "numba" if simulator else "gpulab",
        "--scale",
        str(scale),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **({"NUMBA_ENABLE_CUDASIM": "1"} if simulator else {}),
    }
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process: subprocess.Popen, name: str) -> tuple[float, list[float]]:
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"{name}: the process ended; see its message above")
    seconds, results = json.loads(answer)
    return seconds, results


def matmul_1024() -> None:
    from _simulator_kernels import TILE, matmul_tiled

    from gpulab.kernels import simulate

    n = 1024
    random = np.random.default_rng(1)
    a, b = (random.random((n, n), dtype=np.float32) for _ in range(2))
    out = np.zeros((n, n), np.float32)
    begin = time.process_time()
    result = simulate(matmul_tiled, (n // TILE, n // TILE), (TILE, TILE), a, b, out)
    seconds = time.process_time() - begin
    # By hand: each of n/TILE tiles is loaded once by each warp for a and b, and each result is
    # stored once.
    warps = n * n // 32
    assert result.totals.global_requests == warps * (2 * n // TILE + 1)
    print(
        f"tiled matmul of {n} x {n}, exact counts: {seconds:.1f} s of one core; largest error "
        f"{np.abs(out - a @ b).max() / n:.1e} of n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="threads, relative to 16,384")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the threads, one repetition"
    )
    parser.add_argument(
        "--kind", choices=("regular", "irregular", "one warp"), help="these kernels alone"
    )
    parser.add_argument("--matmul", action="store_true")
    parser.add_argument("--serve", choices=("gpulab", "numba"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.scale, options.repeat = 0.1, 1
    if options.serve:
        serve(options.serve == "numba", options.scale)
        return
    if not all(map(importlib.util.find_spec, ("numba", "numba_cuda"))):
        parser.exit(2, "simulator_speed: numba and numba-cuda are not installed; expected both.\n")
    from _simulator_kernels import cases

    ours, theirs = start(False, options.scale), start(True, options.scale)
    ratios: dict[str, list[float]] = {}
    print(f"scale {options.scale:g} (the ratio grows with the threads), best of {options.repeat}")
    print(f"{'kernel':20s} {'kind':9s} {'ours':>10s} {'Numba':>10s} {'ratio':>7s}")
    for name, kind, *_ in cases(options.scale):
        if options.kind not in (None, kind):
            continue
        both = f"{name}, {kind}"
        ask(ours, both)
        found = []
        for _ in range(options.repeat):
            mine, results = ask(ours, both)
            other, expected = ask(theirs, both)
            found.append((mine, other))
            if not np.allclose(results, expected, rtol=1e-4):
                raise SystemExit(f"{name}: the results differ")
        mine, other = min(m for m, _ in found), min(o for _, o in found)
        ratios.setdefault(kind, []).append(other / mine)
        print(
            f"{name:20s} {kind:9s} {mine * 1e3:7.1f} ms {other * 1e3:7.0f} ms {other / mine:7.1f}",
            flush=True,
        )
    for kind, values in ratios.items():
        print(
            f"{kind}: geometric mean {math.exp(statistics.fmean(map(math.log, values))):.3g}, "
            f"smallest {min(values):.2g}, largest {max(values):.3g}"
        )
    for process in (ours, theirs):
        process.stdin.close()
        process.wait()
    if options.matmul:
        matmul_1024()


if __name__ == "__main__":
    main()
