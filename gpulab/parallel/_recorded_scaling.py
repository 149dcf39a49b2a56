"""Scaling that was recorded on a named machine, in the shape of a live result and with the badge
RECORDED.
"""

from __future__ import annotations

from gpulab import _given, models
from gpulab.errors import InputError, shown
from gpulab.models._scaling import MODES
from gpulab.parallel._scaling_step import MODELS, StepSpec
from gpulab.parallel.scaling_results import COMPUTED, ScalingMeasurement, ScalingResult
from gpulab.recordings import Recording, Timing
from gpulab.transfer import AlphaBeta, fit

_EXPERIMENT = "data-parallel scaling"
_FEWEST_SIZES = 3  # of the recorded all-reduce, for a fit


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
    line = _line(recording, counts[-1])
    latency = bandwidth = None
    plain = hidden = None
    if line is not None and 1 in timings:
        latency, bandwidth = models.collective_message(
            "all_reduce",
            counts[-1],
            "ring",
            latency_seconds=line.latency_seconds,
            bandwidth_bytes_per_second=line.bandwidth_bytes_per_second,
        )
        given = (timings[1].median_seconds, parameter_bytes, latency, bandwidth, counts)
        plain, hidden = (
            models.scaling(*given, mode=mode, overlap=overlap) for overlap in (0.0, 1.0)
        )
    points = tuple(
        _point(
            spec,
            count,
            timings,
            plain.at(count).seconds if plain else None,
            hidden.at(count).seconds if hidden else None,
        )
        for count in timings
    )
    cpu = recording.environment.device_kind == "cpu"
    return ScalingResult(
        label=f"{MODELS[name].words} on {recording.environment.device}",
        mode=mode,
        stage=COMPUTED,
        parameter_bytes=parameter_bytes,
        processors=recording.environment.cores if cpu else counts[-1],
        hosts=1,
        points=points,
        latency_seconds=latency,
        bandwidth_bytes_per_second=bandwidth,
        prediction=plain,
        overlapped=hidden,
        notes=tuple(note for timing in timings.values() for note in timing.notes),
        evidence=recording.evidence(entries[max(entries)]),
        environment=recording.environment,
    )


def _point(
    spec: StepSpec,
    count: int,
    timings: dict[int, Timing],
    predicted: float | None,
    overlapped: float | None,
) -> ScalingMeasurement:
    """Return a point; recorded steps did not take turns, so the ratio's interval joins those of
    both times.
    """
    mine, one = timings[count], timings.get(1)
    work = count * spec.batch_of(count) / spec.batch_of(1)
    speedup = None if one is None else work * one.median_seconds / mine.median_seconds
    span = None
    if one is not None and one.interval_seconds is not None and mine.interval_seconds is not None:
        span = _joined(one, mine, work) if count > 1 else (1.0, 1.0)
    return ScalingMeasurement(
        count,
        spec.batch_of(count),
        mine.samples_seconds,
        mine.median_seconds,
        mine.interval_seconds,
        speedup,
        span,
        predicted,
        overlapped,
    )


def _joined(one: Timing, mine: Timing, work: float) -> tuple[float, float] | None:
    """Return the interval of the ratio of two medians by the method of variance estimates recovery,
    on logs.

    Source: Zou and Donner, Statistics in Medicine 27 (2008), 1693; as
    ``gpulab.timing.statistics.ratio_interval`` does from samples.
    """
    import math

    first, second = one.interval_seconds, mine.interval_seconds
    if first is None or second is None or first[0] <= 0 or second[0] <= 0:
        return None
    a, b = math.log(one.median_seconds), math.log(mine.median_seconds)
    down, up = (
        math.hypot(a - math.log(first[0]), math.log(second[1]) - b),
        math.hypot(math.log(first[1]) - a, b - math.log(second[0])),
    )
    return work * math.exp(a - b - down), work * math.exp(a - b + up)


def _line(recording: Recording, ranks: int) -> AlphaBeta | None:
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
