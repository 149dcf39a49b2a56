"""The GPU's energy counter, and the joules of a call: how often the counter moves, how long a
reading takes, and whether joules per second equal the watts that NVML reads.

    python benchmarks/energy.py [--quick]
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
    begin = time.perf_counter()
    first = last = nvml.ask("DeviceGetTotalEnergyConsumption", handle)
    moved, costs, now = [], [], begin
    while now - begin < seconds:
        work()
        asked = time.perf_counter()
        joules = nvml.ask("DeviceGetTotalEnergyConsumption", handle)
        now = time.perf_counter()
        costs.append(now - asked)
        if joules != last:
            moved.append(asked)
            last = joules
    steps = [1e3 * (after - before) for before, after in itertools.pairwise(moved)]
    power = nvml.ask("DeviceGetPowerUsage", handle) / 1e3
    print(
        f"{label}: a step every {statistics.median(steps):.1f} ms ({min(steps):.1f} to "
        f"{max(steps):.1f}), mean power {(last - first) / (now - begin) / 1e3:.0f} W, NVML's power "
        f"at the end {power:.0f} W, a reading takes {1e6 * statistics.median(costs):.0f} us"
    )


def main() -> None:
    """Print the counter's steps, then joules and watts of products."""
    if not torch.cuda.is_available():
        print("energy: torch sees no CUDA device, so there is no counter to read.")
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
            watts = m.energy_joules and f"{m.energy_joules / m.median_seconds:.0f} W"
            print(f"product of {n} in {dtype}: {m}, {m.energy}, {watts}")


if __name__ == "__main__":
    main()
