"""What happens inside a training step: PyTorch's profiler, read as a timeline in the notebook.

The profiler writes down when each operator began and ended on the host and, on an accelerator, each
kernel on the device. Here that becomes spans with a depth, the time between them, and a table by
operator. A step is also timed without the profiler, which slows every operator a little, so that
its overhead is known.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices
from gpulab.errors import GpulabError, InputError, StoppedError, kind_of, message_of
from gpulab.evidence import Evidence, Note
from gpulab.results import Result
from gpulab.training._pipeline_results import check_count
from gpulab.units import format_seconds, plural

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]
_MARK = "gpulab step "
# More spans than a picture shows; a step of a large network has some ten thousand operators.
_MOST_SPANS = 20_000
_ROWS = 12
# The driver's own calls are on the host's lane as well; these do no work, and the one at the end of
# each step is ours.
_WAIT = re.compile(r"(cuda|cu|hip)[A-Z]\w*Synchronize")


@dataclass(frozen=True)
class ProfileSpan(Result):
    """One piece of work that the profiler saw.

    Attributes
    ----------
    name : str
        The operator, the kernel, or the learner's own mark (``torch.profiler.record_function``).
    lane : str
        "mark", "host" or "device".
    depth : int
        0 for operators that the program called; an operator called by another one is one level
        deeper.
    start_seconds, end_seconds : float
        Since the first step began.
    """

    name: str
    lane: str
    depth: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class OperatorCost(Result):
    """An operator over all the steps.

    Attributes
    ----------
    name : str
    calls_per_step : float
    host_seconds : float
        A step, on the host, without what the operators that it called took.
    device_seconds : float
        A step, of the kernels that it started; 0 on a CPU.
    """

    name: str
    calls_per_step: float
    host_seconds: float
    device_seconds: float


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """Some steps under the profiler.

    Attributes
    ----------
    label, device : str
    steps : tuple of (float, float)
        When each step began and ended; the device had finished.
    unprofiled_seconds : float
        The mean time of a step without the profiler, over as many steps; nan if it was stopped
        before one.
    spans : tuple of ProfileSpan
        In the order in which they began.
    operators : tuple of OperatorCost
        The most expensive on the host first.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    device: str
    steps: tuple[tuple[float, float], ...]
    unprofiled_seconds: float
    spans: tuple[ProfileSpan, ...]
    operators: tuple[OperatorCost, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def step_seconds(self) -> float:
        """The mean time of a step under the profiler."""
        return sum(end - start for start, end in self.steps) / len(self.steps)

    @property
    def operators_per_step(self) -> float:
        """How many operators the program called in a step; those that they called in turn are not
        counted, nor are waits for the device.
        """
        called = (span for span in self.spans if span.lane == "host" and span.depth == 0)
        return sum(1 for span in called if not _WAIT.match(span.name)) / len(self.steps)

    @property
    def between_ratio(self) -> float:
        """The share of the steps in which the host ran no operator: Python code and waiting."""
        return 1.0 - self._covered("host")

    @property
    def device_idle_ratio(self) -> float | None:
        """The share of the steps in which the device ran no kernel; None on a CPU, where host and
        device are one.
        """
        return (
            1.0 - self._covered("device")
            if any(span.lane == "device" for span in self.spans)
            else None
        )

    def _covered(self, lane: str) -> float:
        """Return the share of the steps in which a lane was at work."""
        pieces = [
            (s.start_seconds, s.end_seconds) for s in self.spans if s.lane == lane and s.depth == 0
        ]
        whole = sum(end - start for start, end in self.steps)
        return (
            sum(overlap(union(pieces), step) for step in self.steps) / whole if whole > 0 else 0.0
        )

    def __repr__(self) -> str:
        each = plural(round(self.operators_per_step), "operator")
        return (
            f"<{plural(len(self.steps), 'step')} of {self.label} on {self.device}: {each} and "
            f"{format_seconds(self.step_seconds)} a step, {self.between_ratio:.0%} of it between "
            "operators>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the most expensive operators, the time between them, and the cost of the profiler
        itself.
        """
        first, rest = self.operators[:_ROWS], self.operators[_ROWS:]
        if rest:
            total = OperatorCost(
                f"{len(rest)} more",
                sum(o.calls_per_step for o in rest),
                sum(o.host_seconds for o in rest),
                sum(o.device_seconds for o in rest),
            )
            first = (*first, total)
        plain = self.unprofiled_seconds
        rows = [
            *(
                (
                    cost.name,
                    f"{cost.calls_per_step:g}",
                    format_seconds(cost.host_seconds),
                    format_seconds(cost.device_seconds),
                )
                for cost in first
            ),
            (
                "between the operators (Python)",
                "",
                format_seconds(self.between_ratio * self.step_seconds),
                "",
            ),
            ("a step under the profiler", "", format_seconds(self.step_seconds), ""),
            (
                "a step without it",
                "",
                "not measured" if math.isnan(plain) else format_seconds(plain),
                "",
            ),
            *((f"note: {note.code}", note.sentence, "", "") for note in self.notes),
        ]
        headers = (f"{self.label}, a step", "calls", "host, self time", "its kernels on the device")
        # where host and device are one there are no kernels apart
        columns = 4 if any(span.lane == "device" for span in self.spans) else 3
        return headers[:columns], [row[:columns] for row in rows]


def union(pieces: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the same time without overlaps, in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(pieces):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap(pieces: Iterable[tuple[float, float]], window: tuple[float, float]) -> float:
    """Return how much of a window the pieces, which do not overlap each other, cover."""
    return sum(max(0.0, min(end, window[1]) - max(start, window[0])) for start, end in pieces)


def profile(
    step: Callable[..., Any],
    *args: Any,
    steps: int = 3,
    warmup: int = 2,
    device: Any = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Profile:
    """Run a training step under PyTorch's profiler and return its operators and kernels with their
    times.

    Parameters
    ----------
    step : callable
        Called with ``args``: forward, backward, optimizer, or whatever a step does. Parts that you
        mark with ``torch.profiler.record_function("forward")`` appear as such.
    *args
        For the step.
    steps, warmup : int
        Steps under the profiler, 1 to 100, and before it, 0 to 100; then again as many without it.
    device : Device or str, optional
        The device to wait for at the end of each step; None takes the best there is.
    progress, stop : callable, optional

    Returns
    -------
    Profile
        Evidence MEASURED.

    Raises
    ------
    InputError
        If the step is not a function or raises.
    StoppedError
        If it was stopped before a step was recorded.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(64, 64)
    >>> p = profile(lambda: (x @ x).relu(), steps=2, device="cpu")
    >>> p.operators_per_step
    2.0
    """
    name = "profile"
    if not callable(step):
        raise InputError(
            f"profile: {kind_of(step)} was given; expected a function that makes a step. Pass one, "
            "not its result."
        )
    steps, warmup = (
        check_count(name, "steps", steps, 1, 100),
        check_count(name, "warmup", warmup, 0, 100),
    )
    progress, stop = (
        _given.callback(name, "progress", progress),
        _given.callback(name, "stop", stop),
    )
    where = devices.find(device)
    run = _Run(step, args, where, progress, stop, warmup + 2 * steps)
    run.repeat(warmup, "warm-up step {} of {}")
    events, count = run.profiled(steps)
    if not count:
        raise StoppedError(
            "profile: stopped before a step was recorded; expected at least one. Run it again."
        )
    plain = run.repeat(steps, "step without the profiler {} of {}")
    label = getattr(step, "__name__", "step").replace("<lambda>", "the step")
    # A mean, as all figures of a step here: its rows in the table add up to it.
    mean = sum(plain) / len(plain) if plain else math.nan
    return _result(label, where, events, count, mean, stopped=count < steps)


class _Run:
    """The steps of one profile."""

    def __init__(
        self,
        step: Callable[..., Any],
        args: Any,
        device: devices.Device,
        report: Progress | None,
        stop: Stop | None,
        total: int,
    ) -> None:
        self.step, self.args, self.device, self.report, self.stop = step, args, device, report, stop
        self.done, self.total = 0, total

    def once(self, what: str) -> float:
        """Make a step and wait for the device; return how long both took."""
        if self.report is not None:
            self.report(self.done / self.total, what)
        self.done += 1
        begin = time.perf_counter()
        try:
            with devices.guard(f"profile: {what}"):
                self.step(*self.args)
                self.device.synchronize()
        except GpulabError:
            raise
        except Exception as error:
            raise InputError(
                f"profile: the step raised {type(error).__name__} ({message_of(error)}); expected "
                "it to run. Call it once by itself first."
            ) from error
        return time.perf_counter() - begin

    def repeat(
        self, count: int, what: str, around: Callable[[int], Any] = contextlib.nullcontext
    ) -> list[float]:
        """Make steps until a stop is asked for, each within a context; return what they took."""
        taken: list[float] = []
        while len(taken) < count and not (self.stop is not None and self.stop()):
            with around(len(taken)):
                taken.append(self.once(what.format(len(taken) + 1, count)))
        return taken

    def profiled(self, count: int) -> tuple[Any, int]:
        """Make steps under the profiler; return its events, and how many steps there were."""
        import torch
        from torch.profiler import ProfilerActivity, record_function

        # its library writes two lines of its own into the notebook otherwise
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        if self.device.torch_type in ("cuda", "xpu"):
            activities.append(getattr(ProfilerActivity, self.device.torch_type.upper()))
        profiler: Any = torch.profiler.profile(activities=activities, acc_events=True)
        with _silent():
            profiler.start()
        try:
            taken = self.repeat(
                count, "step {} of {} under the profiler", lambda k: record_function(f"{_MARK}{k}")
            )
        finally:
            with _silent():
                profiler.stop()
        return profiler.events(), len(taken)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what a C++ library writes to standard error out of the notebook: its log level is read
    once, maybe long before this.
    """
    try:
        kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # a program without standard error
        yield
        return
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _result(
    label: str, device: devices.Device, events: Any, count: int, plain: float, *, stopped: bool
) -> Profile:
    marks = sorted(
        (e for e in events if e.name.startswith(_MARK) and not _on_device(e)),
        key=lambda e: e.time_range.start,
    )
    zero = marks[0].time_range.start
    windows = tuple(
        ((e.time_range.start - zero) * 1e-6, (e.time_range.end - zero) * 1e-6) for e in marks
    )
    spans = sorted(
        (span for e in events if (span := _span(e, zero, windows)) is not None),
        key=lambda s: (s.start_seconds, -s.end_seconds),
    )
    notes = []
    if (kept := _whole_steps(spans, windows)) < count:
        sentence = (
            f"{len(spans):,} spans are too many to keep, so the figures are those of the first "
            f"{plural(kept, 'step')} of {count}. Profile fewer steps."
        )
        notes.append(Note("skipped", sentence))
        windows, end = windows[:kept], windows[kept - 1][1]
        spans = [span for span in spans if span.start_seconds <= end]
        events = [event for event in events if (event.time_range.start - zero) * 1e-6 <= end]
    if stopped:
        notes.append(
            Note(
                "stopped",
                f"Stopped after {plural(count, 'step')} under the profiler; the figures are of "
                "what ran.",
            )
        )
    return Profile(
        label,
        str(device),
        windows,
        plain,
        tuple(spans),
        _costs(events, kept),
        tuple(notes),
        Evidence.measured(device.name, kept),
    )


def _whole_steps(spans: Sequence[ProfileSpan], windows: Sequence[tuple[float, float]]) -> int:
    """Return how many steps can be kept with all of their spans: what a step is made of would be
    wrong of a part. The first is.
    """
    starts = [span.start_seconds for span in spans]
    return max(1, sum(bisect_right(starts, end) <= _MOST_SPANS for _, end in windows))


def _on_device(event: Any) -> bool:
    return str(event.device_type).rpartition(".")[2] != "CPU"


def _is_mark(event: Any) -> bool:
    return bool(getattr(event, "is_user_annotation", False))


def _span(event: Any, zero: float, windows: Sequence[tuple[float, float]]) -> ProfileSpan | None:
    """Return an event as a span; None for our own marks and for what is outside the steps."""
    start, end = (event.time_range.start - zero) * 1e-6, (event.time_range.end - zero) * 1e-6
    if event.name.startswith(_MARK) or end <= start or not windows[0][0] <= start <= windows[-1][1]:
        return None
    if _on_device(event):
        return None if _is_mark(event) else ProfileSpan(event.name, "device", 0, start, end)
    if _is_mark(event):
        return ProfileSpan(
            event.name.rpartition("#")[2], "mark", _depth(event, marks=True), start, end
        )
    return ProfileSpan(event.name, "host", _depth(event, marks=False), start, end)


def _depth(event: Any, *, marks: bool) -> int:
    """Return how many operators (or marks) an event lies in."""
    depth, parent = 0, event.cpu_parent
    while parent is not None:
        if _is_mark(parent) == marks and not parent.name.startswith(_MARK):
            depth += 1
        parent = parent.cpu_parent
    return depth


def _costs(events: Any, count: int) -> tuple[OperatorCost, ...]:
    """Return what each operator took by itself, a step."""
    found: dict[str, list[float]] = {}
    for event in events:
        if _on_device(event) or _is_mark(event) or event.name.startswith(_MARK):
            continue
        cost = found.setdefault(event.name, [0.0, 0.0, 0.0])
        cost[0] += 1
        cost[1] += event.self_cpu_time_total * 1e-6
        cost[2] += getattr(event, "self_device_time_total", 0.0) * 1e-6
    costs = [
        OperatorCost(name, calls / count, host / count, there / count)
        for name, (calls, host, there) in found.items()
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.host_seconds))
