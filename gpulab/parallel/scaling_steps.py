"""Steps whose scaling is measured, what one rank and the link predict for them, and recorded ones.

Nothing here needs torch before a model is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from gpulab import _given, models, networks
from gpulab.errors import InputError, shown
from gpulab.models.parallelism import MODES
from gpulab.parallel.results import COMPUTED, ScalingMeasurement, ScalingResult
from gpulab.recordings import Recording, Timing
from gpulab.transfer import AlphaBeta, fit

_EXPERIMENT = "data-parallel scaling"
_FEWEST_SIZES = 3  # of the recorded all-reduce, for a fit


@dataclass(frozen=True)
class StepModel:
    """A model whose step is measured: how it is made, and what one sample is.

    Attributes
    ----------
    words : str
    make : callable
        ``make()`` returns the network, which the caller's seed decides.
    shape : tuple of int
        Of one sample.
    vocabulary : int
        Of a language model, whose samples are tokens and whose targets are too; 0 for samples of
        numbers.
    batch : int
        Samples on one rank, unless the caller says otherwise; 1 to 6 and 8 divide it.
    """

    words: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    vocabulary: int = 0
    batch: int = 24


MODELS: Mapping[str, StepModel] = {
    "mlp": StepModel(
        "a perceptron, 2 x 512 hidden", partial(networks.mlp, 256, 512, 10), (256,), batch=240
    ),
    "cnn": StepModel(
        "a convolutional network on 32 x 32 color images",
        partial(networks.cnn, 3, 10, width=16, stages=3),
        (3, 32, 32),
    ),
    "transformer": StepModel(
        "a transformer of width 128",
        partial(networks.transformer, 256, 128, 4, 2, context=32),
        (32,),
        256,
    ),
    "large-transformer": StepModel(
        "a transformer of width 1024 and 12 layers",
        partial(networks.transformer, 32768, 1024, 16, 12, context=512, tied=True),
        (512,),
        32768,
    ),
}


@dataclass(frozen=True)
class StepSpec:
    """What each rank is asked to do.

    Attributes
    ----------
    model : StepModel
    batch : int
        In strong scaling of all ranks together, in weak scaling of each.
    weak : bool
    counts : tuple of int
        Numbers of ranks, in the order of their turns.
    wait_seconds : float or None
        Not None: a rank waits so long (in strong scaling divided by the ranks) in place of
        computing, then averages the gradients.
    steps_a_sample : int
        On an accelerator several, with one wait for the device.
    """

    model: StepModel
    batch: int
    weak: bool
    counts: tuple[int, ...]
    wait_seconds: float | None = None
    steps_a_sample: int = 1

    def batch_of(self, count: int) -> int:
        """Return how many samples each of so many ranks has."""
        return self.batch if self.weak else self.batch // count


class Prediction(NamedTuple):
    """What one rank's step and the all-reduce predict; all None where one of them was not
    measured.
    """

    latency: float | None = None
    bandwidth: float | None = None
    plain: models.ScalingCurve | None = None  # without overlap
    hidden: models.ScalingCurve | None = None  # with the largest possible overlap

    def seconds(self, count: int) -> tuple[float | None, float | None]:
        """Return the predicted seconds on so many ranks, without and with overlap."""
        return (
            None if self.plain is None else self.plain.at(count).seconds,
            None if self.hidden is None else self.hidden.at(count).seconds,
        )


def predict(
    line: AlphaBeta | None,
    one_seconds: float | None,
    parameter_bytes: int,
    counts: Sequence[int],
    world: int,
    *,
    overlap: float = 1.0,
    **options: Any,
) -> Prediction:
    """Return what the time of one rank's step and the all-reduce among ``world`` ranks predict."""
    if line is None or one_seconds is None:
        return Prediction()
    # From the ring of all ranks to one message, so that smaller rings can be predicted.
    latency, bandwidth = models.collective_message(
        "all_reduce",
        world,
        "ring",
        latency_seconds=line.latency_seconds,
        bandwidth_bytes_per_second=line.bandwidth_bytes_per_second,
    )
    curves = (
        models.scaling(
            one_seconds, parameter_bytes, latency, bandwidth, counts, overlap=each, **options
        )
        for each in (0.0, overlap)
    )
    return Prediction(latency, bandwidth, *curves)


def recorded_scaling(
    recording: Recording, model: str | None = None, mode: str = "strong"
) -> ScalingResult | None:
    """Return a recorded machine's scaling, or None where it was not recorded.

    Parameters
    ----------
    recording : Recording
        From ``gpulab.recordings``.
    model : str, optional
        As ``scaling`` names them; None takes the first that was recorded.
    mode : str
        "strong" or "weak".

    Returns
    -------
    ScalingResult or None
        Evidence RECORDED; where the all-reduce was recorded on the same number of ranks, the link
        and the prediction come from it.

    Raises
    ------
    InputError
        If this is not a recording, or there is no such model or mode.
    """
    if not isinstance(recording, Recording):
        raise InputError(
            f"recorded_scaling: {shown(recording)} is not a recording; expected one. Pass "
            "gl.recordings.load(name)."
        )
    _given.word("recorded_scaling", "mode", mode, MODES)
    if model is not None:
        _given.word("recorded_scaling", "model", model, MODELS)
    wanted = recording.select(_EXPERIMENT, mode=mode, **({} if model is None else {"model": model}))
    # a later version of gpulab may have recorded another
    there = [entry for entry in wanted if entry.params.get("model") in MODELS]
    if not there:
        return None
    name = str(there[0].params["model"])
    entries = {
        int(entry.params["ranks"]): entry for entry in there if entry.params["model"] == name
    }
    counts = sorted(entries)
    timings = {count: timing for count in counts if (timing := entries[count].timing) is not None}
    batch, parameter_bytes = int(there[0].params["batch"]), int(there[0].params["parameter_bytes"])
    spec = StepSpec(MODELS[name], batch, mode == "weak", tuple(counts))
    prediction = predict(
        _recorded_line(recording, counts[-1]),
        timings[1].median_seconds if 1 in timings else None,
        parameter_bytes,
        counts,
        counts[-1],
        mode=mode,
    )
    cpu = recording.environment.device_kind == "cpu"
    return ScalingResult(
        label=f"{MODELS[name].words} on {recording.environment.device}",
        mode=mode,
        stage=COMPUTED,
        parameter_bytes=parameter_bytes,
        processors=recording.environment.cores if cpu else counts[-1],
        hosts=1,
        points=tuple(_recorded_point(spec, count, timings, prediction) for count in timings),
        latency_seconds=prediction.latency,
        bandwidth_bytes_per_second=prediction.bandwidth,
        prediction=prediction.plain,
        overlapped=prediction.hidden,
        notes=tuple(note for timing in timings.values() for note in timing.notes),
        evidence=recording.evidence(entries[max(entries)]),
        environment=recording.environment,
    )


def _recorded_point(
    spec: StepSpec, count: int, timings: dict[int, Timing], prediction: Prediction
) -> ScalingMeasurement:
    """Return a point; recorded steps did not take turns, so the ratio's interval joins those of
    both times.
    """
    mine, one = timings[count], timings.get(1)
    work = count * spec.batch_of(count) / spec.batch_of(1)
    speedup = None if one is None else work * one.median_seconds / mine.median_seconds
    span = None if one is None else _joined(one, mine, work)
    return ScalingMeasurement(
        count,
        spec.batch_of(count),
        mine.samples_seconds,
        mine.median_seconds,
        mine.interval_seconds,
        speedup,
        (1.0, 1.0) if span is not None and count == 1 else span,
        *prediction.seconds(count),
    )


def _joined(one: Timing, mine: Timing, work: float) -> tuple[float, float] | None:
    """Return the interval of the ratio of two medians by the method of variance estimates recovery,
    on logs.

    Source: Zou and Donner, Statistics in Medicine 27 (2008), 1693; as
    ``gpulab.timing.statistics.ratio_interval`` does from samples.
    """
    first, second = one.interval_seconds, mine.interval_seconds
    if first is None or second is None or first[0] <= 0 or second[0] <= 0:
        return None
    a, b = math.log(one.median_seconds), math.log(mine.median_seconds)
    down, up = (
        math.hypot(a - math.log(first[0]), math.log(second[1]) - b),
        math.hypot(math.log(first[1]) - a, b - math.log(second[0])),
    )
    return work * math.exp(a - b - down), work * math.exp(a - b + up)


def _recorded_line(recording: Recording, ranks: int) -> AlphaBeta | None:
    """Return the fit of the recorded all-reduce on so many ranks."""
    entries = [
        entry
        for entry in recording.select("collectives", collective="all_reduce", ranks=ranks)
        if entry.timing is not None
    ]
    if ranks < 2 or len(entries) < _FEWEST_SIZES:
        return None
    sizes = [float(entry.params["nbytes"]) for entry in entries]
    return fit(
        sizes,
        [entry.timing.median_seconds for entry in entries if entry.timing is not None],
        recording.evidence(entries[0]),
    )
