"""Several ranks on one machine (notebook 08): data-parallel steps, and collectives.

On a CPU there are at most two ranks; with GPUs there is one rank per GPU, through NCCL. The part
for several GPUs has not been tested on a machine with several GPUs yet.

The ranks are those of ``gpulab.parallel``, which needs ipyparallel: without it these cases are kept
as not recorded, with the reason.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from gpulab import devices, parallel
from gpulab.devices import Device
from gpulab.evidence import Evidence, Note
from gpulab.parallel import scaling_steps
from gpulab.parallel.scaling_steps import MODELS, StepSpec
from gpulab.recorder._experiments import FIRST, SECOND, THIRD, Case, measured
from gpulab.timing import Measurement
from gpulab.timing.statistics import median_interval

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_CPU_RANKS = 2
_ON_CPU, _ON_GPU = ("mlp", "transformer"), ("large-transformer", "mlp")
_CPU_SIZES = tuple(2**k for k in range(10, 25, 2))
_GPU_SIZES = tuple(2**k for k in range(10, 31, 2))
_FEWEST, _MOST_ROUNDS, _TURN, _REPEATS = 3, 2_000, 4, 8
_GPU_STEPS = 10  # between two waits for the device
# ranks are kept this long after a case: starting them takes as long as ten cases
_IDLE_SECONDS = 3.0
_CALL_SECONDS = 60.0  # no call of an experiment takes a minute


# Ranks that no case is using, each with the timer that ends them, by their number and backend.
_idle: dict[tuple[int, str], tuple[parallel.Ranks, threading.Timer]] = {}


@contextmanager
def _ranks(n: int, backend: str) -> Iterator[parallel.Ranks]:
    """Provide ranks: started by the first case that needs them, ended when no case has used them
    for a while.
    """
    kept = _idle.pop((n, backend), None)
    if kept is not None:
        ranks, timer = kept
        timer.cancel()
        if not ranks.ready:  # a rank died meanwhile
            ranks.stop()
    else:
        ranks = parallel.cluster(n, backend=backend, timeout_seconds=_CALL_SECONDS)
        ranks.px = False
    try:
        yield ranks.start()
    except BaseException:  # some ranks may still wait in a collective, so none can be used again
        ranks.stop()
        raise
    timer = threading.Timer(_IDLE_SECONDS, _end, (n, backend))
    _idle[n, backend] = ranks, timer
    timer.daemon = True
    timer.start()


def _end(n: int, backend: str) -> None:
    """End the ranks, unless a case has taken them at this very moment."""
    kept = _idle.pop((n, backend), None)
    if kept is not None:
        kept[0].stop()


def _world(device: Device) -> tuple[int, str]:
    """Return how many ranks an experiment has on this device, and their backend; 0 if the device
    cannot have ranks.
    """
    if device.is_cpu:
        return min(_CPU_RANKS, devices.environment(device).cores), "gloo"
    if device.torch_type == "cuda":
        return sum(each.torch_type == "cuda" for each in devices.available()), "nccl"
    return 0, ""


def scaling(device: Device) -> Iterable[Case]:
    """A training step over numbers of ranks, strong and weak scaling."""
    world, backend = _world(device)
    counts = sorted({2**k for k in range(world.bit_length())} | {world}) if world else []
    for number, name in enumerate(_ON_CPU if device.is_cpu else _ON_GPU):
        rank = THIRD if number else FIRST if world > _CPU_RANKS else SECOND
        model = MODELS[name]
        # strong scaling divides a batch: other numbers of ranks would drop some of its samples
        for mode, ranks in (
            (mode, ranks)
            for mode, ranks in itertools.product(("strong", "weak"), counts)
            if mode == "weak" or model.batch % ranks == 0
        ):
            params = {
                "model": name,
                "mode": mode,
                "ranks": ranks,
                "batch": model.batch,
                "parameter_bytes": scaling_steps.parameter_bytes(model),
            }
            steps = 1 if device.is_cpu else _GPU_STEPS
            spec = StepSpec(model, model.batch, mode == "weak", (ranks,), steps_a_sample=steps)
            yield measured(params, rank, _steps, spec, ranks, world, backend, device)


def _steps(
    spec: StepSpec, ranks: int, world: int, backend: str, device: Device, *, deadline: float
) -> Measurement:
    with _ranks(world, backend) as group:
        first = group.run(scaling_steps.begin, spec)[0]

        def turn() -> list[float]:
            of_ranks = group.run(scaling_steps.turns, 1, _TURN)
            return scaling_steps.slowest([mine.seconds[ranks] for mine in of_ranks[:ranks]])

        measurement = _sampled(turn, first, deadline, device, spec.steps_a_sample)
        group.run(scaling_steps.end)
    return measurement


def collectives(device: Device) -> Iterable[Case]:
    """Collectives over sizes, on all ranks."""
    world, backend = _world(device)
    if world < 2:
        return
    sizes = _CPU_SIZES if device.is_cpu else _GPU_SIZES
    for name, nbytes in itertools.product(_COLLECTIVES, sizes):
        params = {"collective": name, "nbytes": nbytes, "ranks": world}
        rank = SECOND if name == "all_reduce" else THIRD
        yield measured(params, rank, _collective, name, nbytes, world, backend, device)


def _collective(
    name: str, nbytes: int, world: int, backend: str, device: Device, *, deadline: float
) -> Measurement:
    with _ranks(world, backend) as group:

        def some(repeats: int = _REPEATS) -> list[float]:
            return scaling_steps.call_seconds(
                group.run(scaling_steps.collective_times, name, nbytes, repeats)
            )

        return _sampled(some, some(1)[0], deadline, device, nbytes=float(nbytes))


def _sampled(
    take: Callable[[], list[float]],
    first_seconds: float,
    deadline_seconds: float,
    device: Device,
    steps_a_sample: int = 1,
    nbytes: float | None = None,
) -> Measurement:
    """Take samples until the deadline, and return them as a measurement."""
    begin, taken = time.monotonic(), list[float]()
    for _ in range(_MOST_ROUNDS):
        taken += take()
        if len(taken) >= _FEWEST and time.monotonic() - begin >= deadline_seconds:
            break
    samples = np.array(taken)
    interval, reason = median_interval(samples)
    median = float(np.median(samples))
    return Measurement(
        label="ranks",
        device=str(device),
        samples_seconds=samples,
        median_seconds=median,
        interval_seconds=interval,
        first_call_seconds=first_seconds,
        launch_seconds=median,
        with_transfer_seconds=None,
        calls_per_sample=steps_a_sample,
        flops=None,
        nbytes=nbytes,
        notes=() if reason is None else (Note("no-interval", reason),),
        evidence=Evidence.measured(device.name, samples=len(samples)),
        environment=devices.environment(device),
    )
