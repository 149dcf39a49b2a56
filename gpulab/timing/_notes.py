"""The notes of one measurement: which rules are applied, to what, and in which order the notes are
shown.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

import numpy as np

from gpulab.devices import Device, disturbance
from gpulab.devices.conditions import Readings
from gpulab.devices.disturbance import Window
from gpulab.evidence import Note
from gpulab.timing import _ceiling, _work, detect
from gpulab.timing._lock import Turn
from gpulab.timing.sampling import Sampled
from gpulab.units import format_seconds, plural
from gpulab.workloads import Workload

if TYPE_CHECKING:
    from gpulab.timing._measure import Job, Limits

# What makes a figure wrong comes before what makes it less precise, and that before what is merely
# good to know.
_ORDER = (
    "implausible",
    "disagree",
    "throttled",
    "contended",
    "stalled",
    "unstable",
    "no-interval",
    "deadline",
    "stopped",
    "warm-cache",
    "slow-first-call",
    "too-short",
    "turn-taking",
    "no-overlap",
    "skipped",
)


def ordered(notes: list[Note]) -> tuple[Note, ...]:
    """Return the notes, gravest first, no sentence twice."""
    return tuple(dict.fromkeys(sorted(notes, key=lambda note: _ORDER.index(note.code))))


def of_sampling(
    job: Job,
    sampled: Sampled,
    limits: Limits,
    before: Readings | None,
    after: Readings | None,
    collections: list[float],
    alone: bool = True,
) -> list[Note]:
    """Return the notes that the samples, the garbage collections meanwhile and the machine's
    counters give.

    Not ``alone``, others were called between the samples.
    """
    window = Window.between(before, after) if before is not None and after is not None else None
    samples = sampled.samples_seconds
    notes = (
        disturbance.from_readings(before, after) if before is not None and after is not None else []
    )
    _, _, walls = job.of_last_size()
    # Where turns are taken, what lies between two samples is another row's call: one that waits is
    # no stop of this row's.
    gaps = _gaps(sampled) if alone else np.zeros(0)
    elapsed = float(np.ptp(sampled.sample_starts_seconds) + walls[-1] * sampled.calls_per_sample)
    rules = (
        detect.collected(collections, elapsed)
        or detect.stalled(walls * sampled.calls_per_sample, gaps, window),
        detect.unstable(samples, limits.relative_width),
        detect.slow_first_call(job.first_seconds, float(np.median(samples))),
        _interval(sampled, limits),
        _too_short(sampled),
    )
    return notes + [note for note in rules if note is not None]


def _gaps(sampled: Sampled) -> np.ndarray:
    """Return the time between samples that the samples themselves do not fill; where they were
    thinned out, what is unusual in it.
    """
    steps = np.diff(sampled.sample_starts_seconds)
    if len(steps) == 0:
        return steps
    walls = (sampled.samples_seconds[:-1] + sampled.overhead_seconds) * sampled.calls_per_sample
    return np.maximum(steps - (walls if sampled.kept_every == 1 else 3.0 * np.median(steps)), 0.0)


def no_interval(reason: str) -> Note:
    """Return the note that no honest interval can be given, and why."""
    return Note(
        "no-interval",
        f"{reason.rstrip('.')}. The median is given without an interval; measure again, for longer "
        "or on a quieter machine.",
    )


def _interval(sampled: Sampled, limits: Limits) -> Note | None:
    if sampled.stopped_by == "stopped":
        return Note(
            "stopped",
            f"sampling was stopped after {plural(len(sampled.samples_seconds), 'sample')}; the "
            "figures are based on "
            "these. Run it again for more.",
        )
    if sampled.interval_seconds is None:
        return no_interval(sampled.no_interval_reason or "the samples do not determine an interval")
    if sampled.stopped_by != "deadline":
        return None
    low, high = sampled.interval_seconds
    width = (high - low) / float(np.median(sampled.samples_seconds))
    # too few samples to end before the deadline, or another row of a comparison was not there yet
    if width <= limits.relative_width:
        return None
    return Note(
        "deadline",
        f"after {format_seconds(limits.deadline)} the interval is {100 * width:.1f} % wide, "
        f"{100 * limits.relative_width:.1f} % was "
        "requested. Pass a longer deadline, or a larger relative_width.",
    )


def copies_stopped(count: int) -> Note:
    """Return the note that the time with both copies was stopped, after so many samples of it."""
    if not count:
        return Note(
            "stopped",
            "stopped before the call with both copies was timed, so that time is missing. Run it "
            "again to get it.",
        )
    return Note(
        "stopped",
        f"the call with both copies was stopped after {plural(count, 'sample')}; its time is based "
        "on these. Run it again for more.",
    )


def _too_short(sampled: Sampled) -> Note | None:
    if sampled.calls_per_sample == 1:
        return None
    return Note(
        "too-short",
        "one call is too short for the clock, so each sample is the mean of "
        f"{sampled.calls_per_sample} calls; the interval is that of the "
        "mean. Do more work per call to time single calls.",
    )


def of_physics(job: Job, seconds: float, cold: bool = False) -> list[Note]:
    """Return the notes ``implausible`` and ``warm-cache``; the device's ceilings are asked for only
    where a count is known.
    """
    if (not job.flops and not job.nbytes) or seconds <= 0:
        return []
    first = None if cold else job.first_seconds
    return _ceiling.check(
        job.device, _formats(job), seconds, job.flops, job.nbytes, working_set(job), first
    )


def _formats(job: Job) -> tuple[str, ...]:
    """Return the formats in which the arithmetic may be done: those of the arguments, and what
    autocast may make of them.
    """
    given = _work.dtypes_in(job.args)
    catalogue = inspect.ismethod(job.fn) and isinstance(job.fn.__self__, Workload)
    # A function of the caller's own may enter autocast where nobody sees it. It casts no float64
    # (PyTorch, torch.amp, "Op Eligibility").
    return given if catalogue or "float32" not in given else (*given, "bfloat16", "float16")


def working_set(job: Job) -> float | None:
    """Return the distinct bytes of one call: the arrays' if they are fewer than the traffic, for
    some bytes move twice.
    """
    if job.working_set_bytes is not None:
        return job.working_set_bytes
    if not job.nbytes:
        return None
    arrays = _work.array_bytes(job.args, _work.held_by(job.fn)) + job.result_bytes
    return min(float(arrays), float(job.nbytes)) if arrays else float(job.nbytes)


def of_turn(turn: Turn, device: str) -> Note | None:
    """Return the note that this measurement waited for another one, or could not."""
    if turn.problem is not None:
        return Note(
            "turn-taking",
            f"no lock could be taken on {device} ({turn.problem}); make sure that no other process "
            "measures at the same time.",
        )
    if not turn.taken:
        return Note(
            "turn-taking",
            f"another gpulab measurement held {device} for more than {turn.waited_seconds:.0f} s, "
            "so this one ran at the "
            f"same time. Measure again when it is done.",
        )
    if turn.waited_seconds > 0:
        return Note(
            "turn-taking",
            f"waited {format_seconds(turn.waited_seconds)} for another gpulab measurement on "
            f"{device}; they did not overlap.",
        )
    return None


def not_on_device(device: Device) -> Note:
    """Return the note that nothing showed the named device at work."""
    return Note(
        "skipped",
        f"inputs and result are on the host: nothing shows that {device} did any work. Pass "
        "gl.to_device(x), or device='cpu'.",
    )


def elsewhere(seen: Device, named: Device) -> Note:
    """Return the note that the arrays are on another accelerator than the named device."""
    return Note(
        "skipped",
        f"the arrays are on {seen}, and {named} was named: both were waited for, but the result is "
        f"labeled {named}. Name {seen}, "
        f"or move the arrays first: gl.to_device(x, '{named}').",
    )


NOTHING_TO_WAIT_FOR = Note(
    "skipped",
    "the function works on JAX arrays and returns none, so gpulab cannot wait for its work and the "
    "time may be that of the call "
    "alone. Return the result from the function.",
)


HOST_COPIES = Note(
    "skipped",
    "both copies are from main memory to main memory: no link to an accelerator was used. See "
    "gl.transfer for a modelled link.",
)


NO_ACCELERATOR = Note(
    "skipped",
    "PyTorch sees no accelerator on this machine, so there is one row and no speed-up. "
    "gl.recordings has machines with an "
    "accelerator; `gpulab doctor` reports what is missing here.",
)


def disagree(names: list[str], difference: float, tolerance: float) -> Note:
    """Return the note that results differ by more than their tolerance."""
    if not math.isfinite(difference):
        return Note(
            "disagree",
            f"{', '.join(names)}: the result differs from the reference in shape or type, or has "
            "an overflow or nan where the reference "
            "has a number, so no speed-up is reported. Find out why before you compare times.",
        )
    return Note(
        "disagree",
        f"{', '.join(names)}: the result differs from the reference by {difference:.1e} of its "
        "largest value "
        f"({tolerance:.1e} is allowed), so no speed-up is reported. "
        "Find out why before you compare times.",
    )


def no_speedup_of_impossible(names: list[str]) -> Note:
    """Return the note that an impossible time makes no speed-up."""
    return Note(
        "implausible",
        f"{', '.join(names)}: the time is physically impossible, so no speed-up is reported. See "
        "that row's own note.",
    )
