"""First slice of measure and compare; the sampling, statistics and notes modules take its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab import devices
from gpulab.evidence import Evidence
from gpulab.timing.results import Comparison, ComparisonRow, Measurement

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]


def measure(
    fn: Callable[..., Any],
    *args: Any,
    device: Any = None,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    transfer: bool = False,
    flops: float | None = None,
    nbytes: float | None = None,
    clock: Callable[[], float] | None = None,
    label: str | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Measurement:
    """Return the time of ``fn(*args)``; first slice."""
    where = devices.find(device)
    read = clock or time.perf_counter
    start = read()
    fn(*args)
    where.synchronize()
    first = read() - start
    samples, launches = [], []
    begin = read()
    while len(samples) < 10 or (read() - begin < deadline and len(samples) < 100):
        start = read()
        fn(*args)
        launches.append(read() - start)
        where.synchronize()
        samples.append(read() - start)
    median = float(np.median(samples))
    low, high = np.quantile(samples, [0.3, 0.7])
    return Measurement(
        label=label or getattr(fn, "__name__", "call"),
        device=str(where),
        samples_seconds=np.array(samples),
        median_seconds=median,
        interval_seconds=(float(low), float(high)),
        first_call_seconds=first,
        launch_seconds=float(np.median(launches)),
        with_transfer_seconds=None,
        calls_per_sample=1,
        flops=flops,
        nbytes=nbytes,
        notes=(),
        evidence=Evidence.measured(where.name, len(samples)),
        environment=devices.environment(where),
    )


def compare(
    work: str | Callable[..., Any],
    *args: Any,
    devices: Any = None,
    transfer: bool = False,
    relative_width: float = 0.02,
    deadline: float = 2.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
    **params: Any,
) -> Comparison:
    """Return the same work on every device; first slice (the CPU only)."""
    from gpulab import workloads

    w = workloads.get(str(work))(**params)
    inputs = w.inputs()
    m = measure(w.run, *inputs, device="cpu", flops=w.flops, nbytes=w.nbytes, label=w.label, deadline=deadline)
    row = ComparisonRow("cpu", m, None, None, None)
    return Comparison(w.label, (row,), None, None, None, w.tolerance, (), m.evidence)
