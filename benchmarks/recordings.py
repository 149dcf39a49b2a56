"""Check whether a recording can be trusted: record the same machine twice, and time recorded cases
again in turns with a plain loop.

    python benchmarks/recordings.py [--minutes 8] [--rounds 15] [--deadline 1] [--only EXPERIMENT
    ...] [--keep FOLDER] [--quick]

Part 1 records this machine twice, each time for ``--minutes``, and compares the two recordings. It
prints the share of cases whose ratio of medians is 1 within both intervals, or within 2 %: of all
cases (bound: 90 %), and of the cases with both intervals. ``--keep`` keeps both recordings;
``--minutes 0`` leaves this part out.

Part 2 times cases of the recorder in turns, by ``gl.measure`` and by a plain loop: on a CPU
``time.perf_counter`` around each call, on a GPU a pair of CUDA events around a train of calls. The
host copy is also timed by the C library's ``memmove``. On a GPU copies are also timed by a loop of
``cudaMemcpyAsync`` (through CuPy's runtime), for pinned memory against ``gl.transfer.sweep``, and
matrix products by a loop of cuBLAS's ``gemmEx`` (through CuPy, not PyTorch). The figure reported is
the ratio of our time to the loop's, as the median over rounds with the extremes, so that a change
of the machine's speed affects both (bounds: 3 %; 1 % for pinned copies, 2 % for cuBLAS; for copies
within a device by another library the ratio only shows which stores they use).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpulab import devices, recorder, recordings, transfer
from gpulab.devices import Device
from gpulab.timing import measure

CALLS = 30
PINNED_BYTES = 2**28
# cuda_runtime's library_types.h and cublas_api.h
CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT = 0, 14, 68, -1


def twice(minutes: float, only: list[str] | None, keep: pathlib.Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [(keep or pathlib.Path(folder)) / f"{k}.json" for k in (1, 2)]
        made = [
            recorder.record(file, minutes=minutes, only=only, restart=True, progress=_every_tenth())
            for file in files
        ]
    difference = recordings.diff(*made)
    counted = tuple(d for d in difference.differences if d.interval is not None)
    print(
        f"\nrecorded twice, {minutes:g} minutes each: {len(difference.differences)} cases in both, "
        f"{len(counted)} with both intervals"
    )
    print(
        f"  agree within the intervals or 2 %: {100 * agreement(difference.differences):.1f} % of "
        "all (bound 90 %)"
    )
    print(f"  of those with both intervals: {100 * agreement(counted):.1f} %")
    for d in difference.differences[:10]:
        print(
            f"  largest: {d.key}: {d.ratio:.3f} "
            f"{'' if d.interval is None else '[{:.3f}, {:.3f}]'.format(*d.interval)}"
        )


def agreement(differences: Sequence[recordings.Difference]) -> float:
    """Return the share of the cases whose ratio is 1 within both intervals or within 2 %; nan
    without a case.
    """
    agree = [abs(d.ratio - 1) <= 0.02 or d.differs is False for d in differences]
    return sum(agree) / len(agree) if agree else math.nan


def _every_tenth() -> Callable[[float, str], None]:
    shown = [0]

    def progress(fraction: float, text: str) -> None:
        if int(10 * fraction) > shown[0]:
            shown[0] = int(10 * fraction)
            print(f"  {text}", flush=True)

    return progress


def plain_seconds(run: Callable[[], Any], device: Device) -> float:
    """Return the median seconds of a call by the plainest loop there is."""
    run()
    if device.torch_type != "cuda":
        times = []
        for _ in range(CALLS):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)
    pace = train_seconds(run, 2)
    calls = max(3, min(CALLS, int(0.05 / pace)))
    return statistics.median(train_seconds(run, calls) for _ in range(5))


def train_seconds(run: Callable[[], Any], calls: int) -> float:
    """Return the seconds of a call in a train of calls between two CUDA events."""
    import torch

    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(calls):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


def cublas_product(x: Any, y: Any) -> Callable[[], None]:
    """Return a function that calls cuBLAS for ``x @ y`` of two square matrices; checked once."""
    import cupy
    import torch
    from cupy_backends.cuda.libs import cublas

    out, n = torch.empty_like(x), len(x)
    kind = CUDA_R_32F if x.dtype == torch.float32 else CUDA_R_16BF
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    handle = cupy.cuda.device.get_cublas_handle()
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)

    def product() -> None:
        # column-major: out' = y' x'
        cublas.gemmEx(
            *(handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, n, n),
            *(one.ctypes.data, y.data_ptr(), kind, n, x.data_ptr(), kind, n),
            *(zero.ctypes.data, out.data_ptr(), kind, n),
            *(CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        )

    product()
    torch.testing.assert_close(out, x @ y, rtol=2e-2, atol=0.5)
    return product


def pinned_copies(device: Device, deadline: float) -> dict[str, tuple[Callable, Callable]]:
    """Return pairs of functions that time copies of pinned memory: by ``gl.transfer.sweep``, and by
    a loop of ``cudaMemcpyAsync``.
    """
    import cupy
    import torch

    runtime, stream = cupy.cuda.runtime, torch.cuda.current_stream().cuda_stream
    there = torch.ones(PINNED_BYTES, dtype=torch.uint8, device=str(device))
    here = cupy.cuda.alloc_pinned_memory(PINNED_BYTES)

    def sweep_seconds(direction: str) -> float:
        swept = transfer.sweep(device, [direction], ["pinned"], [PINNED_BYTES], deadline=deadline)
        return swept.points[0].median_seconds

    def to_device() -> None:
        runtime.memcpyAsync(
            there.data_ptr(), here.ptr, PINNED_BYTES, runtime.memcpyHostToDevice, stream
        )

    def to_host() -> None:
        runtime.memcpyAsync(
            here.ptr, there.data_ptr(), PINNED_BYTES, runtime.memcpyDeviceToHost, stream
        )

    return {
        "pinned to device, cudaMemcpyAsync": (
            lambda: sweep_seconds("to_device"),
            lambda: plain_seconds(to_device, device),
        ),
        "pinned to host, cudaMemcpyAsync": (
            lambda: sweep_seconds("to_host"),
            lambda: plain_seconds(to_host, device),
        ),
    }


def pairs(device: Device, deadline: float) -> dict[str, tuple[Callable, Callable]]:
    """Return pairs of functions that time a call, by ``gl.measure`` and by the plain loop. Both
    time the same call, unless the name of the pair mentions another.
    """

    def both(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Callable, Callable]:
        return (
            lambda: measure(ours, device=device, deadline=deadline).median_seconds,
            lambda: plain_seconds(theirs, device),
        )

    import torch

    n, side = (2**26, 1024) if device.is_cpu else (2**28, 8192)
    where = str(device)
    a, b, c = (torch.ones(n, device=where) for _ in range(3))
    x, y = (torch.randn(side, side).to(where) for _ in range(2))
    small = torch.ones(2**20, device=where)
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: a.copy_(b),
        "triad": lambda: torch.add(b, c, alpha=3.0, out=a),
        "matrix product, float32": lambda: x @ y,
        "exp of a million": lambda: torch.exp(small),
        "sum of all": b.sum,
    }
    found = {name: both(call, call) for name, call in calls.items()}
    if device.is_cpu:
        move = ctypes.memmove
        found["copy, against memmove of C"] = both(
            calls["copy"], lambda: move(a.data_ptr(), b.data_ptr(), 4 * n)
        )
    elif device.kind == "cuda" and importlib.util.find_spec("cupy") is None:
        print("recordings: CuPy is not installed; its copies and products are left out")
    elif device.kind == "cuda":
        import cupy

        def copy_async() -> None:
            cupy.cuda.runtime.memcpyAsync(
                a.data_ptr(),
                b.data_ptr(),
                4 * n,
                cupy.cuda.runtime.memcpyDeviceToDevice,
                torch.cuda.current_stream().cuda_stream,
            )

        found["copy, against cudaMemcpyAsync"] = both(calls["copy"], copy_async)
        found |= pinned_copies(device, deadline)
        half = [side.bfloat16() for side in (x, y)]
        found["product, float32, cuBLAS"] = both(lambda: x @ y, cublas_product(x, y))
        found["product, bfloat16, cuBLAS"] = both(lambda: half[0] @ half[1], cublas_product(*half))
    return found


def in_turns(rounds: int, deadline: float) -> None:
    device = devices.find(None)
    print(
        f"\nin turns with a plain loop on {device.name}, {rounds} rounds: ours / theirs, median "
        "[least, most], and the median of our times"
    )
    for name, (ours, theirs) in pairs(device, deadline).items():
        ratios, times = [], []
        for number in range(rounds):
            order = (0, 1) if number % 2 else (1, 0)
            seconds = [0.0, 0.0]
            for which in order:
                seconds[which] = (ours, theirs)[which]()
            ratios.append(seconds[0] / seconds[1])
            times.append(seconds[0])
        print(
            f"  {name:32} {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
            f"  {1e3 * statistics.median(times):.3f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--deadline", type=float, default=1.0, help="seconds of each of our times")
    parser.add_argument("--only", nargs="+")
    parser.add_argument(
        "--keep",
        type=pathlib.Path,
        metavar="FOLDER",
        help="keep both recordings there, as 1.json and 2.json",
    )
    parser.add_argument(
        "--quick", action="store_true", help="5 rounds of 0.3 s, and recordings of 18 s"
    )
    options = parser.parse_args()
    if options.rounds:
        in_turns(5 if options.quick else options.rounds, 0.3 if options.quick else options.deadline)
    if options.minutes:
        twice(0.3 if options.quick else options.minutes, options.only, options.keep)


if __name__ == "__main__":
    main()
