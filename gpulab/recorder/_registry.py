"""Experiments, each with its cases and how they are recorded, and the registry that holds them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpulab import _given
from gpulab.devices import Device
from gpulab.errors import InputError, shown
from gpulab.recordings import Entry, Timing
from gpulab.recordings._schema import Parameter, thin
from gpulab.timing import Measurement

# Ranks: what tells most about a machine comes first, so that a short budget still gives a useful
# recording.
FIRST, SECOND, THIRD, LAST = 0, 1, 2, 3


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes
    ----------
    params : mapping
        What distinguishes this case from the others.
    time : callable
        ``time(deadline_seconds) -> Measurement``; allocates, measures and frees.
    rank : int
        Lower ranks run first, across all experiments.
    shares : int
        How many shares of the time budget it may take: more where a call is long, since an interval
        needs twenty calls.
    """

    params: Mapping[str, Parameter]
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


def register(experiment: Experiment) -> Experiment:
    """Add an experiment.

    Raises
    ------
    InputError
        If another experiment has the name.
    """
    if experiment.name in _REGISTRY:
        raise InputError(
            f"recorder.register: an experiment {experiment.name!r} already exists; expected a new "
            "name."
        )
    _REGISTRY[experiment.name] = experiment
    return experiment


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
    wanted = _given.items("recorder", "only", only)
    unknown = [
        one
        for one in wanted
        if not isinstance(one, Experiment) and (not isinstance(one, str) or one not in _REGISTRY)
    ]
    if unknown:
        known = ", ".join(map(shlex.quote, _REGISTRY))  # as they are typed after --only
        raise InputError(
            f"recorder: there is no experiment {shown(unknown[0])}; expected one of {known}."
        )
    return tuple(one if isinstance(one, Experiment) else _REGISTRY[one] for one in wanted)


def entry(experiment: str, case: Case, measurement: Measurement) -> Entry:
    """Return what is kept of a measurement: everything but most of its samples."""
    return Entry(
        experiment=experiment,
        params=case.params,
        timing=Timing(
            samples_seconds=thin(measurement.samples_seconds),
            sample_count=len(measurement.samples_seconds),
            median_seconds=measurement.median_seconds,
            interval_seconds=measurement.interval_seconds,
            first_call_seconds=measurement.first_call_seconds,
            launch_seconds=measurement.launch_seconds,
            with_transfer_seconds=measurement.with_transfer_seconds,
            calls_per_sample=measurement.calls_per_sample,
            flops=measurement.flops,
            nbytes=measurement.nbytes,
            notes=measurement.notes,
        ),
        date=measurement.environment.date,
    )
