"""Several ranks on one machine (notebook 08): data-parallel steps over numbers of ranks, and
collectives over sizes.

On a CPU there are at most two ranks; with GPUs there is one rank per GPU, through NCCL. That part
is for machines with several GPUs and has not been tested on one yet.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from gpulab import devices
from gpulab.devices import Device
from gpulab.evidence import Evidence, Note
from gpulab.parallel import _scaling_step
from gpulab.parallel._scaling_step import MODELS, StepSpec
from gpulab.recorder._rank_process import RankProcesses
from gpulab.recorder._registry import FIRST, SECOND, THIRD, Case, Experiment, register
from gpulab.recordings._schema import Parameter
from gpulab.timing import Measurement
from gpulab.timing.statistics import median_interval

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_CPU_RANKS = 2
_ON_CPU, _ON_GPU = ("mlp", "transformer"), ("large-transformer", "mlp")
_CPU_SIZES = tuple(2**k for k in range(10, 25, 2))
_GPU_SIZES = tuple(2**k for k in range(10, 31, 2))
_FEWEST, _MOST_ROUNDS, _TURN, _REPEATS = 3, 2_000, 4, 8
_GPU_STEPS = 10  # between two waits for the device
# the ranks outlive a case for so long: starting them costs as much as ten cases
_IDLE_SECONDS = 3.0


class _Session:
    """The ranks of this process: started by the first case that needs them, ended when no case has
    used them for a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: RankProcesses | None = None
        self._made: tuple[int, str] = (0, "")
        self._timer: threading.Timer | None = None

    @contextmanager
    def ranks(self, n: int, backend: str) -> Iterator[RankProcesses]:
        """Provide a number of ranks."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._ranks is None or not self._ranks.pids or self._made != (n, backend):
                self._end()
                self._ranks, self._made = RankProcesses(n, backend), (n, backend)
            try:
                yield self._ranks
            except BaseException:  # ranks that one left behind in a collective are of no more use
                self._end()
                raise
            self._timer = threading.Timer(_IDLE_SECONDS, self.close)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """End the ranks, unless a case is using them."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


SESSION = _Session()
atexit.register(SESSION.close)


def world_of(device: Device) -> tuple[int, str]:
    """Return how many ranks an experiment has on this device, and their backend; 0 where there can
    be none.
    """
    if os.name != "posix":  # the ranks' pipes are handed over as file descriptors
        return 0, ""
    if device.is_cpu:
        return min(_CPU_RANKS, devices.environment(device).cores), "gloo"
    if device.torch_type == "cuda":
        return sum(each.torch_type == "cuda" for each in devices.available()), "nccl"
    return 0, ""


@functools.cache
def _parameter_bytes(model: str) -> int:
    """Return the bytes of a model's parameters, from a copy without storage."""
    import torch

    with torch.device("meta"):
        return sum(p.nbytes for p in MODELS[model].make().parameters())


def _step_case(
    device: Device, model: str, mode: str, ranks: int, world: int, backend: str, rank: int
) -> Case:
    batch, each = MODELS[model].batch, 1 if device.is_cpu else _GPU_STEPS

    def time_step(deadline_seconds: float) -> Measurement:
        spec, token = (
            StepSpec(MODELS[model], batch, mode == "weak", (ranks,), steps_a_sample=each),
            uuid.uuid4().hex,
        )
        with SESSION.ranks(world, backend) as group:
            group.run(_scaling_step.begin, token, spec)
            first = group.run(_scaling_step.first_seconds, token)[0]

            def turn() -> list[float]:
                of_ranks = group.run(_scaling_step.turns, token, 1, _TURN)
                return _scaling_step.slowest([mine.seconds[ranks] for mine in of_ranks[:ranks]])

            samples = _until(deadline_seconds, turn)
            group.run(_scaling_step.end, token)
        return _measurement(
            f"{mode} scaling, {model}, {ranks} ranks", device, samples, first, each, None
        )

    params: dict[str, Parameter] = {
        "model": model,
        "mode": mode,
        "ranks": ranks,
        "batch": batch,
        "parameter_bytes": _parameter_bytes(model),
    }
    return Case(params, time_step, rank)


def _collective_case(
    device: Device, name: str, nbytes: int, world: int, backend: str, rank: int
) -> Case:
    def time_collective(deadline_seconds: float) -> Measurement:
        with SESSION.ranks(world, backend) as group:

            def some(repeats: int = _REPEATS) -> list[float]:
                return _scaling_step.call_seconds(
                    group.run(_scaling_step.collective_times, name, nbytes, repeats)
                )

            first = some(1)[0]
            samples = _until(deadline_seconds, some)
        return _measurement(
            f"{name} of {nbytes} bytes, {world} ranks", device, samples, first, 1, float(nbytes)
        )

    return Case({"collective": name, "nbytes": nbytes, "ranks": world}, time_collective, rank)


def _until(deadline_seconds: float, take: Callable[[], list[float]]) -> np.ndarray:
    begin = time.monotonic()
    samples: list[float] = []
    for _ in range(_MOST_ROUNDS):
        samples += take()
        if len(samples) >= _FEWEST and time.monotonic() - begin >= deadline_seconds:
            break
    return np.array(samples)


def _measurement(
    label: str, device: Device, samples: np.ndarray, first: float, each: int, nbytes: float | None
) -> Measurement:
    interval, reason = median_interval(samples)
    median = float(np.median(samples))
    return Measurement(
        label=label,
        device=str(device),
        samples_seconds=samples,
        median_seconds=median,
        interval_seconds=interval,
        first_call_seconds=first,
        launch_seconds=median,
        with_transfer_seconds=None,
        calls_per_sample=each,
        flops=None,
        nbytes=nbytes,
        notes=() if reason is None else (Note("no-interval", reason),),
        evidence=Evidence.measured(device.name, samples=len(samples)),
        environment=devices.environment(device),
    )


def _counts(world: int) -> list[int]:
    return sorted({2**k for k in range(world.bit_length()) if 2**k <= world} | {world})


def _scaling_cases(device: Device) -> Iterable[Case]:
    world, backend = world_of(device)
    if not world:
        return
    for number, model in enumerate(_ON_CPU if device.is_cpu else _ON_GPU):
        for mode in ("strong", "weak"):
            for ranks in _counts(world):
                yield _step_case(
                    device,
                    model,
                    mode,
                    ranks,
                    world,
                    backend,
                    (FIRST if world > _CPU_RANKS else SECOND) if not number else THIRD,
                )


def _collective_cases(device: Device) -> Iterable[Case]:
    world, backend = world_of(device)
    if world < 2:
        return
    for name in COLLECTIVES:
        for nbytes in _CPU_SIZES if device.is_cpu else _GPU_SIZES:
            yield _collective_case(
                device, name, nbytes, world, backend, SECOND if name == "all_reduce" else THIRD
            )


register(
    Experiment(
        "data-parallel scaling",
        "a training step over numbers of ranks, strong and weak scaling",
        _scaling_cases,
    )
)
register(Experiment("collectives", "collectives over sizes, on all ranks", _collective_cases))
