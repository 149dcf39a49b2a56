"""The GPU's energy counter, and the joules of a call: how often the counter moves, how long a
reading takes, and whether joules per second equal the watts that NVML reads.

    python benchmarks/energy.py [--quick]

The mean power is that between the first and the last step of the counter: a step is about a tenth
of the second for which it is read, so from reading to reading the power could be off by as much.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch

import gpulab as gl
from gpulab.devices import nvml


def counter(label: str, work: Callable[[], object], seconds: float = 1.0) -> None:
    """Read the counter again and again beside some work; print its steps and its mean power."""
    handle = nvml.handle_of(0)
    last = nvml.ask("DeviceGetTotalEnergyConsumption", handle)
    moved: list[tuple[float, int]] = []  # when the counter moved, and its millijoules then
    costs = []
    begin = now = time.perf_counter()
    while now - begin < seconds:
        work()
        asked = time.perf_counter()
        millijoules = nvml.ask("DeviceGetTotalEnergyConsumption", handle)
        now = time.perf_counter()
        costs.append(now - asked)
        if millijoules != last:
            moved.append((asked, millijoules))
            last = millijoules
    if len(moved) < 2:
        print(f"{label}: the counter moved {len(moved)} times in {seconds:g} s; expected steps.")
        return
    steps = [1e3 * (after - before) for (before, _), (after, _) in itertools.pairwise(moved)]
    (start, first), (end, last) = moved[0], moved[-1]
    power = nvml.ask("DeviceGetPowerUsage", handle)
    print(
        f"{label}: a step every {statistics.median(steps):.1f} ms ({min(steps):.1f} to "
        f"{max(steps):.1f}), mean power {1e-3 * (last - first) / (end - start):.0f} W, NVML's "
        f"power at the end {'unknown' if power is None else f'{power / 1e3:.0f} W'}, a reading "
        f"takes {1e6 * statistics.median(costs):.0f} us"
    )


def main() -> None:
    """Print the counter's steps, then joules and watts of products."""
    if not torch.cuda.is_available():
        print("energy: torch sees no CUDA device, so there is no counter to read.")
        return
    if nvml.ask("DeviceGetTotalEnergyConsumption", nvml.handle_of(0)) is None:
        print("energy: NVML gives no energy counter of this GPU (NVIDIA has one since Volta).")
        return
    quick = "--quick" in sys.argv
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def load() -> None:
        for _ in range(5):
            x @ x
        torch.cuda.synchronize()

    counter("idle", lambda: time.sleep(5e-4))
    counter("under load", load)
    for n in (256, 512, 1024) if quick else (1024, 4096, 8192):
        for dtype in (torch.float32, torch.bfloat16):
            a = torch.randn(n, n, device="cuda", dtype=dtype)
            m = gl.measure(torch.mm, a, a, deadline=0.3 if quick else 1.5, relative_width=1e-6)
            watts = f", {m.energy_joules / m.median_seconds:.0f} W" if m.energy_joules else ""
            print(f"product of {n} in {dtype}: {m}, {m.energy}{watts}")


if __name__ == "__main__":
    main()
