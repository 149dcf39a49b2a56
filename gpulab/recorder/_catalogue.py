"""The workload catalogue over sizes and dtypes, with and without copies."""

from __future__ import annotations

from collections.abc import Iterable

from gpulab import workloads
from gpulab.devices import Device
from gpulab.recorder._foretell import refuse_long
from gpulab.recorder._registry import LAST, SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure
from gpulab.workloads import Workload, WorkloadSpec


def _case(device: Device, spec: WorkloadSpec, n: int, dtype: str, rank: int) -> Case:
    def time_calls(deadline_seconds: float) -> Measurement:
        work = spec(n=n, dtype=dtype)
        work.check(device)
        if device.is_cpu:
            _refuse_long_calls(device, spec, work)
        inputs = work.inputs(device=str(device))
        return measure(
            work.run,
            *inputs,
            device=device,
            flops=work.flops,
            nbytes=work.nbytes,
            deadline=deadline_seconds,
            label=work.label,
            transfer=True,
        )

    return Case({"workload": spec.name, "n": n, "dtype": dtype}, time_calls, rank)


def _refuse_long_calls(device: Device, spec: WorkloadSpec, work: Workload) -> None:
    """Leave out what a much smaller size foretells to take too long, as products do without
    instructions for a format.
    """
    smaller = [spec(n=n, dtype=work.dtype) for n in spec.sizes if n <= work.n // 4]
    if not smaller:
        return
    small = smaller[-1]
    inputs = small.inputs(device=str(device))
    refuse_long(
        work.label,
        lambda: small.run(*inputs),
        max(work.flops / max(small.flops, 1.0), work.nbytes / small.nbytes),
    )


def _cases(device: Device) -> Iterable[Case]:
    """Middle sizes in float32 first, then the other sizes, then the other dtypes."""
    for name in workloads.names():
        spec = workloads.get(name)
        middle = spec.sizes[len(spec.sizes) // 2]
        for dtype in spec.dtypes:
            for n in spec.sizes:
                rank = LAST if dtype != "float32" else SECOND if n == middle else THIRD
                yield _case(device, spec, n, dtype, rank)


register(
    Experiment(
        "catalogue", "every workload over its sizes and dtypes, with and without copies", _cases
    )
)
