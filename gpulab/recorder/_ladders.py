"""The kernels of notebook 04 on a GPU: reductions, transposes, histograms, softmax, and the matmul
ladder up to the library's own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpulab import arrays, workloads
from gpulab.devices import Device
from gpulab.kernels import cuda_launcher, launcher
from gpulab.recorder._registry import SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure

if TYPE_CHECKING:
    from gpulab.kernels.ladder import CudaRung, Rung

NAME = "ladders"


def _rank(rung: Rung | CudaRung, n: int) -> int:
    return SECOND if n == rung.sizes[1] else THIRD


def _python_case(device: Device, rung: Rung, n: int) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        there = [arrays.to_device(a, device) for a in rung.arguments(n)]
        ready = launcher(rung.kernel, *rung.launch(n), *there)
        return measure(
            ready,
            device=device,
            flops=rung.flops(n),
            nbytes=rung.nbytes(n),
            deadline=deadline_seconds,
            label=rung.name,
        )

    return Case({"family": rung.family, "rung": rung.name, "n": n}, time, _rank(rung, n))


def _cuda_case(device: Device, rung: CudaRung, n: int, options: tuple[str, ...]) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        *given, size = rung.arguments(n)
        there = [arrays.to_device(a, device) for a in given]
        ready = cuda_launcher(
            rung.source, rung.kernel, *rung.launch(n), *there, size, options=options
        )
        return measure(
            ready,
            device=device,
            flops=rung.flops(n),
            nbytes=rung.nbytes(n),
            deadline=deadline_seconds,
            label=rung.name,
        )

    return Case(
        {"family": rung.family, "rung": rung.name, "n": n, "options": " ".join(options)},
        time,
        _rank(rung, n),
    )


def _library_case(device: Device, n: int) -> Case:
    """What the ladder is compared with: the library's float32 product, which the settings of
    PyTorch keep from TF32.
    """

    def time(deadline_seconds: float) -> Measurement:
        work = workloads.get("matmul")(n=n, dtype="float32")
        inputs = work.inputs(device=str(device))
        return measure(
            work.run,
            *inputs,
            device=device,
            flops=work.flops,
            nbytes=work.nbytes,
            deadline=deadline_seconds,
            label="matmul-library",
        )

    return Case(
        {"family": "matmul", "rung": "matmul-library", "n": n}, time, SECOND if n == 1024 else THIRD
    )


def _cases(device: Device) -> Iterable[Case]:
    if device.torch_type != "cuda":
        return
    from gpulab.kernels import ladder  # its kernels load numba

    if all(importlib.util.find_spec(name) is not None for name in ("numba", "numba_cuda")):
        for rung in ladder.RUNGS:
            for n in rung.sizes[1:]:
                yield _python_case(device, rung, n)
    if importlib.util.find_spec("cupy") is not None:
        for cuda_rung in ladder.CUDA_RUNGS:
            for n in cuda_rung.sizes[1:]:
                for options in cuda_rung.options:
                    yield _cuda_case(device, cuda_rung, n, options)
    for n in ladder.CUDA_RUNGS[0].sizes[1:]:
        yield _library_case(device, n)


register(
    Experiment(
        NAME,
        "the kernel ladders of notebook 04: Python kernels (with numba-cuda), CUDA C++ (with "
        "CuPy), the library's product",
        _cases,
    )
)
