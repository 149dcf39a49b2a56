"""Experiments, each with its cases and how they are timed, and the registry that holds them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpulab import _validate
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.timing import Measurement, measure

# Ranks: the most informative cases come first, so that a short budget still gives a useful
# recording.
FIRST, SECOND, THIRD, LAST = 0, 1, 2, 3
# A longer call is refused: a case makes at least some five calls, whatever its share of the budget.
_LONGEST_CALL_SECONDS = 3.0
# A part that seems too long is timed this many times: other work on the machine only makes a time
# longer, and the time is multiplied by hundreds here.
_SAMPLES = 3


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes
    ----------
    params : mapping
        What distinguishes this case from the others: text and numbers.
    time : callable
        ``time(deadline_seconds) -> Measurement``; allocates, measures and frees.
    rank : int
        Lower ranks run first, across all experiments.
    shares : int
        How many shares of the time budget it may take: more where a call is long, since an interval
        needs twenty calls.
    """

    params: Mapping[str, Any]
    time: Callable[[float], Measurement]
    rank: int = SECOND
    shares: int = 1


@dataclass(frozen=True)
class Experiment:
    """A named family of cases.

    Attributes
    ----------
    name, summary : str
    cases : callable
        ``cases(device) -> iterable of Case``: what this device can run; cheap, allocates nothing.
    """

    name: str
    summary: str
    cases: Callable[[Device], Iterable[Case]]


_REGISTRY: dict[str, Experiment] = {}


def register(experiment: Experiment) -> None:
    """Add an experiment; it replaces one of the same name."""
    _REGISTRY[experiment.name] = experiment


def experiments(only: Iterable[str | Experiment] | None = None) -> tuple[Experiment, ...]:
    """Return the experiments: all that are registered, or the requested ones, given by name or as
    objects.

    Raises
    ------
    InputError
        If a name is not registered.
    """
    if only is None:
        return tuple(_REGISTRY.values())
    return tuple(
        one
        if isinstance(one, Experiment)
        else _REGISTRY[_validate.word("recorder", "the experiment", one, _REGISTRY)]
        for one in _validate.items("recorder", "only", only)
    )


class Work(NamedTuple):
    """The function that a case calls, its inputs on the device, and the known costs of a call."""

    run: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    flops: float | None = None
    nbytes: float | None = None
    transfer: bool = False  # whether the copies of the inputs and of the result are timed too
    # entered while the work is timed; its end frees what was prepared
    setting: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def timed(
    device: Device,
    params: Mapping[str, Any],
    rank: int,
    prepare: Callable[..., Work],
    *args: Any,
    shares: int = 1,
) -> Case:
    """Return a case that measures the work that ``prepare(device, *args)`` returns, with products
    of float32 in full precision unless it allows less, whatever the caller set. PyTorch's switches
    are restored afterwards.
    """
    label = ", ".join(map(str, params.values()))

    def time_work(deadline_seconds: float) -> Measurement:
        # imported here, since torch is not needed to read reports
        import torch

        from gpulab.training import backend_switches

        # CuPy and Triton work on the device that is current
        with (
            backend_switches.put_back(),
            backend_switches.current(device),
            torch.enable_grad(),
        ):
            # a caller, or the environment of a container, may allow TF32, or bfloat16 on a CPU, and
            # an entry's dtype may be the default one
            torch.set_float32_matmul_precision("highest")
            torch.set_default_dtype(torch.float32)
            work = prepare(device, *args)
            with work.setting:
                return measure(
                    work.run,
                    *work.inputs,
                    device=device,
                    flops=work.flops,
                    nbytes=work.nbytes,
                    transfer=work.transfer,
                    deadline=deadline_seconds,
                    label=label,
                )

    return Case(params, time_work, rank, shares)


def measured(
    params: Mapping[str, Any], rank: int, take: Callable[..., Measurement], *args: Any
) -> Case:
    """Return the case of a function that makes its own measurement, until its ``deadline``."""
    return Case(params, lambda deadline_seconds: take(*args, deadline=deadline_seconds), rank)


def refuse_long(
    who: str,
    small: Callable[[], Any],
    times: float,
    *,
    what: str = "call",
    longest_seconds: float = _LONGEST_CALL_SECONDS,
) -> None:
    """Estimate how long a whole call takes from a small part of it, and refuse it if that is too
    long: a number format without hardware support takes minutes.

    The estimate is ``times`` times the fastest call of ``small``, after one warm-up call.

    Raises
    ------
    InputError
        If the whole would take more than ``longest_seconds``.
    """
    small()
    least = math.inf
    for _ in range(_SAMPLES):
        begin = time.perf_counter()
        small()
        least = min(least, times * (time.perf_counter() - begin))
        if least <= longest_seconds:
            return
    # Rounded such that the estimate reads as more than the limit: 3.4, not 3, beside a limit of 3.
    estimate = f"{least:.0f}" if round(least) > longest_seconds else f"{least:.1f}"
    raise InputError(
        f"{who}: a {what} would take about {estimate} s here; expected at most {longest_seconds:g} "
        "s. Left out."
    )
