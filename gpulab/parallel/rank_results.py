"""The results of runs over several ranks, as plain data: collectives, outcomes and timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.memory.step_memory import PeakMemory, with_margin
from gpulab.models import ScalingCurve, StagePass, StagePasses, StageSchedule, pipeline_schedule
from gpulab.models.parallelism import PointsByRanks
from gpulab.results import Result, Table, note_rows
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_interval,
    format_seconds,
    format_speedup,
    plural,
)


class CollectiveCall(NamedTuple):
    """One collective, as one rank saw it.

    Attributes
    ----------
    number : int
        From 0, in the order entered by this rank while it was observed.
    name : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "send", "recv", "barrier" or "send and recv".
    dtype : str
        Of the first tensor; "" for a barrier.
    input_bytes : int
        What this rank contributes: the payload, not what the algorithm sends.
    output_bytes : int
        What this rank receives. ``input_bytes`` is 0 if the rank contributes nothing (as a
        broadcast's receiver), ``output_bytes`` if it receives nothing.
    group : tuple of int
        The global ranks that take part.
    root : int or None
        The global rank of a rooted collective's root, or the peer of a send or recv (None where any
        sender is accepted).
    begin_seconds, end_seconds : float, float or None
        ``time.perf_counter`` of this machine; ranks on one Linux machine share it. The end is the
        one that the collective itself reports; if it reports none, the end of a wait for it, which
        may be later. None while in flight.
    error : str or None
        The error's message, if the collective failed.

    Examples
    --------
    >>> from gpulab import parallel
    >>> parallel.CollectiveCall(0, "recv", "float32", 0, 4096, (0, 1), 1, 0.0, None).sentence
    'recv of 4.00 KiB in float32 from rank 1'
    """

    number: int
    name: str
    dtype: str
    input_bytes: int
    output_bytes: int
    group: tuple[int, ...]
    root: int | None
    begin_seconds: float
    end_seconds: float | None
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """From entry to end; None while in flight."""
        return None if self.end_seconds is None else self.end_seconds - self.begin_seconds

    @property
    def payload_bytes(self) -> int:
        """The size that sweeps use: the larger of what the rank contributes and receives (the whole
        tensor of an all-gather).
        """
        return max(self.input_bytes, self.output_bytes)

    @property
    def sentence(self) -> str:
        """The call in words, for messages: "all_reduce of 4.00 KiB in float32 among ranks 0, 1"."""
        size = (
            f" of {format_bytes(self.payload_bytes)} in {self.dtype}" if self.payload_bytes else ""
        )
        whom = {
            "send": f" to rank {self.root}",
            "recv": f" from {'any rank' if self.root is None else f'rank {self.root}'}",
        }.get(self.name, f" among ranks {', '.join(map(str, self.group))}")
        return f"{self.name}{size}{whom}"


State = Literal["returned", "raised", "running", "died"]


@dataclass(frozen=True)
class Sight:
    """Where a rank stands in a call.

    Attributes
    ----------
    state : str
        "returned", "raised", "running", or "died" (its process ended).
    entered : int
        How many collectives of this call the rank has entered.
    collective : CollectiveCall or None
        The collective that the rank stands in, or that it failed in; for a rank that returned, one
        whose failure its function caught.
    where : str
        For a running rank, the line of Python at which it was last seen.
    error : str
        Type and text of the exception that the rank raised; for a rank that died, how its process
        ended.
    rank : int
        The rank's number. The caller fills it in, since an engine does not know its rank before
        the group is open.
    """

    state: State
    entered: int = 0
    collective: CollectiveCall | None = None
    where: str = ""
    error: str = ""
    rank: int = 0

    @property
    def waits(self) -> bool:
        """Whether the rank stands, or failed, in a collective that did not complete."""
        return self.collective is not None and self.state in {"raised", "running"}


@dataclass(frozen=True)
class Outcome:
    """How a call ended on a rank.

    Attributes
    ----------
    sight : Sight
        Where the rank stood when the call ended.
    value : bytes
        The pickled result, if the call returned; else b"".
    error : bytes
        The pickled exception, if there is one that can be pickled; else b"".
    trace : str
        The traceback of the exception, as text formatted on the rank; "" without one.
    printed : str
        The text that the function printed.
    calls : tuple of CollectiveCall
        All collectives that the rank entered, in order.
    """

    sight: Sight
    value: bytes
    error: bytes
    trace: str
    printed: str
    calls: tuple[CollectiveCall, ...]


# The kinds of spans on a timeline. A rank's own thread computes, is idle, or does neither;
# communication runs at the same time.
KINDS = ("compute", "communication", "idle")


class RankSpan(NamedTuple):
    """One stretch of one rank's time.

    Attributes
    ----------
    rank : int
    kind : str
        "compute": the rank's thread worked (forward, backward, optimizer, averaging).
        "communication": the data of a collective or a message moved: from the moment when the last
        rank that takes part had entered it until this rank had its result. It may coincide with
        compute of the same rank: that is overlap. "idle": the rank's thread waited for another rank
        to arrive. It never coincides with compute or communication of the same rank.
    name : str
        The activity: "forward", "backward", "optimizer", or a collective as ``torch.distributed``
        names it ("all_reduce"); for an idle span the collective that was waited for. With
        microbatches the number follows: "forward 2".
    begin_seconds, end_seconds : float
        On one clock for all ranks, from the beginning of the timeline.
    nbytes : int
        For a communication span the payload (the size of the whole tensor); else 0.
    """

    rank: int
    kind: str
    name: str
    begin_seconds: float
    end_seconds: float
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end_seconds - self.begin_seconds


@dataclass(frozen=True)
class RankTimeline(Result):
    """What each rank did when, from a real run: the lanes of a picture.

    Each rank has two lanes: one for its own thread (compute and idle, which never overlap), and one
    for its communication.

    Attributes
    ----------
    label : str
        What ran: a strategy and its ranks.
    ranks : int
    spans : tuple of RankSpan
        In order of rank, then of begin.
    steps : tuple of float
        Seconds at which a training step begins (on the first rank to begin it), in order; empty
        where nothing was trained.
    end_seconds : float
        When the last rank was done.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    ranks: int
    spans: tuple[RankSpan, ...]
    steps: tuple[float, ...]
    end_seconds: float
    notes: tuple[Note, ...]
    evidence: Evidence

    def lane(self, rank: int, kind: str | None = None) -> tuple[RankSpan, ...]:
        """Return the spans of one rank in order of begin; with ``kind``, only those of that
        kind.
        """
        return tuple(span for span in self.spans if span.rank == rank and kind in (None, span.kind))

    def seconds(self, rank: int) -> dict[str, float]:
        """Return a rank's seconds by kind; time that two spans of one kind share counts once."""
        return {kind: _covered(self.lane(rank, kind)) for kind in KINDS}

    def overlap_seconds(self, rank: int) -> float:
        """Return how long a rank's communication overlapped its own compute: the part that costs no
        time.
        """
        compute, communication = self.lane(rank, "compute"), self.lane(rank, "communication")
        return _covered(compute) + _covered(communication) - _covered((*compute, *communication))

    def __repr__(self) -> str:
        spans = plural(len(self.spans), "span")
        return (
            f"<timeline of {self.label}: {spans} on {plural(self.ranks, 'rank')} in "
            f"{format_seconds(self.end_seconds)}>"
        )

    def table(self) -> Table:
        """Return each rank's seconds by kind, and how much of its communication overlapped
        compute.
        """
        rows = [
            (
                f"rank {rank}",
                *map(format_seconds, (*self.seconds(rank).values(), self.overlap_seconds(rank))),
            )
            for rank in range(self.ranks)
        ]
        headers = (self.label, *KINDS, "communication during compute")
        return headers, rows + note_rows(self.notes, len(headers))


def _covered(spans: Sequence[RankSpan]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted((span.begin_seconds, span.end_seconds) for span in spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return float(total)


class RankReport(NamedTuple):
    """What one rank held and sent in one training step.

    Attributes
    ----------
    rank : int
    peak_bytes : int
        The most live tensor storage after any operator of a step that follows earlier ones.
    peak_by_category : mapping of str to int
        Sums to ``peak_bytes``: the categories of ``memory.CATEGORIES``, and "communication" for
        what exists only to be sent or received.
    most_by_category : mapping of str to int
        The most that each category held at any moment of that step. These moments differ, so they
        do not sum to the peak.
    calls : mapping of str to int
        Collectives and messages in a step, by name.
    payload_bytes : mapping of str to int
        The payload of these calls in a step, by name: the size of the whole tensor (an all-gather's
        result, a reduce-scatter's input), however much of it is sent.
    ring_bytes : int
        MODELLED: the bytes that this rank sends in a step if each collective runs as a ring (a
        broadcast as a tree), without headers.
    """

    rank: int
    peak_bytes: int
    peak_by_category: Mapping[str, int]
    most_by_category: Mapping[str, int]
    calls: Mapping[str, int]
    payload_bytes: Mapping[str, int]
    ring_bytes: int


@dataclass(frozen=True, eq=False)
class StrategyResult(Result):
    """One training run over several ranks, compared with the same run in one process.

    Attributes
    ----------
    strategy : str
        One of ``parallel.strategies()``.
    ranks : int
    model : str
        What was trained, in words.
    parameter_count : int
        Of the whole model.
    dtype : str
        "float32" or "float64", of parameters and arithmetic.
    losses : ndarray, shape (steps,)
        The mean loss of each step's whole batch.
    single_losses : ndarray, shape (steps,)
        The same losses when one process trains the whole model on the whole batch.
    state_difference : float
        After the last step: the largest difference between a parameter here and in the single
        process, divided by the largest parameter.
    tolerance : float
        The largest ``loss_difference`` and ``state_difference`` at which the two runs count as the
        same computation.
    step_seconds : ndarray, shape (steps,)
        The duration of each step, on the slowest rank. The first step includes one-time work, and
        the first two are slower because their memory was followed. In all steps, and so in the
        timeline, each operator takes about 20 us longer than in a plain training, because
        collectives are observed: small models take 1.3 to 1.5 times as long.
    reports : tuple of RankReport
        One per rank, in rank order.
    timeline : RankTimeline
        Of the last steps.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    strategy: str
    ranks: int
    model: str
    parameter_count: int
    dtype: str
    losses: np.ndarray
    single_losses: np.ndarray
    state_difference: float
    tolerance: float
    step_seconds: np.ndarray
    reports: tuple[RankReport, ...]
    timeline: RankTimeline
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.losses)

    @property
    def loss_differences(self) -> np.ndarray:
        """The difference between each step's loss and the single process's, divided by the larger
        of 1 and the single process's; nan if a loss is nan or the single process's is infinite.
        """
        single = self.single_losses
        with np.errstate(invalid="ignore"):  # inf - inf is nan
            return np.asarray(np.abs(self.losses - single) / np.maximum(1.0, np.abs(single)))

    @property
    def loss_difference(self) -> float:
        """The largest of ``loss_differences``."""
        return float(np.max(self.loss_differences))

    @property
    def agrees(self) -> bool:
        """Whether the run computed the same as one process: losses and state within the
        tolerance.
        """
        return bool(
            self.loss_difference <= self.tolerance and self.state_difference <= self.tolerance
        )

    def seconds(self, rank: int) -> dict[str, float]:
        """Return a rank's seconds a step by kind, mean over the steps of the timeline."""
        count = max(1, len(self.timeline.steps))
        return {kind: value / count for kind, value in self.timeline.seconds(rank).items()}

    def __repr__(self) -> str:
        verdict = f"{'agrees' if self.agrees else 'does not agree'} with one process"
        where = f"{self.strategy} on {plural(self.ranks, 'rank')}, {plural(self.steps, 'step')}"
        return f"<{where}: {verdict}, losses differ by {self.loss_difference:.1e}>"

    def table(self) -> Table:
        """Return whether the run agrees with one process, then each rank's memory, bytes and
        seconds per step.
        """
        width = self.ranks
        rest = ("",) * (width - 1)
        same = "yes" if self.agrees else "nothing to compare" if self.has_note("diverged") else "no"
        reports, seconds = self.reports, [self.seconds(rank) for rank in range(width)]
        rows: list[tuple[str, ...]] = [
            ("computes what one process computes", same, *rest),
            (
                "- losses differ by at most (relative)",
                f"{self.loss_difference:.1e} (tolerance {self.tolerance:.0e})",
                *rest,
            ),
            (
                "- parameters differ at the end by at most (relative)",
                f"{self.state_difference:.1e}",
                *rest,
            ),
            ("peak memory of tensors", *(format_bytes(one.peak_bytes) for one in reports)),
            *(
                (
                    f"- {category} at most",
                    *(format_bytes(one.most_by_category.get(category, 0)) for one in reports),
                )
                for category in ("parameters", "gradients", "optimizer", "activations")
            ),
            (
                "payload of collectives a step",
                *(format_bytes(sum(one.payload_bytes.values())) for one in reports),
            ),
            (
                "sent a step, as rings (modelled)",
                *(format_bytes(one.ring_bytes) for one in reports),
            ),
            *(
                (f"{kind} a step", *(format_seconds(of_rank[kind]) for of_rank in seconds))
                for kind in KINDS
            ),
        ]
        headers = (
            f"{self.strategy}: {self.model}, {self.dtype}",
            *(f"rank {rank}" for rank in range(width)),
        )
        return headers, rows + note_rows(self.notes, len(headers))


@dataclass(frozen=True)
class ScheduleRun(StagePasses, Result):
    """A schedule of pipeline parallelism as real ranks carried it out; each rank is a stage.

    Attributes
    ----------
    schedule : str
        One of ``gpulab.models.PIPELINE_SCHEDULES``.
    stages, microbatches, chunks : int
    forward_seconds, backward_seconds : float
        The set time of one microbatch's pass through a stage.
    bubble_ratios : tuple of float
        For each measured step, the share of all ranks' time in which no pass ran, from the begin of
        the first pass to the end of the last.
    passes : tuple of StagePass
        The passes of the step with the median bubble, in seconds from its begin. The passes of each
        stage are in the order in which it did them.
    activation_bytes : tuple of int
        The peak of each stage's activations in a step, counted tensor by tensor.
    notes : tuple of Note
    evidence : Evidence
        MEASURED.
    environment : Environment
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    forward_seconds: float
    backward_seconds: float
    bubble_ratios: tuple[float, ...]
    passes: tuple[StagePass, ...]
    activation_bytes: tuple[int, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def bubble_ratio(self) -> float:
        """Median over the steps, 0 to 1; the messages' time counts as bubble."""
        return float(np.median(self.bubble_ratios))

    @property
    def model(self) -> StageSchedule:
        """The timetable of the same passes if messages took no time."""
        return pipeline_schedule(
            self.stages,
            self.microbatches,
            self.schedule,
            forward=self.forward_seconds,
            backward=self.backward_seconds,
            chunks=self.chunks if self.schedule == "interleaved" else None,
        )

    @property
    def timeline(self) -> RankTimeline:
        """The step of ``passes`` as lanes: each rank's passes, and idle time between them (which
        here includes the time of the messages).
        """
        spans: list[RankSpan] = []
        for stage in range(self.stages):
            own = self.of_stage(stage)
            spans += [
                RankSpan(
                    stage,
                    "compute",
                    one.kind if one.count > 1 else f"{one.kind} {one.microbatch}",
                    one.begin,
                    one.end,
                )
                for one in own
            ]
            ends = [0.0, *(one.end for one in own)]
            begins = [*(one.begin for one in own), self.duration]
            waits = [*["recv"] * len(own), "end of the step"]
            spans += [
                RankSpan(stage, "idle", name, end, begin)
                for name, end, begin in zip(waits, ends, begins, strict=True)
                if begin > end
            ]
        spans.sort(key=lambda span: (span.rank, span.begin_seconds))
        label = f"{self.schedule} on {plural(self.stages, 'rank')}"
        return RankTimeline(
            label,
            self.stages,
            tuple(spans),
            (0.0,),
            self.duration,
            self.notes,
            self.evidence,
        )

    def __repr__(self) -> str:
        where = f"{self.schedule} on {plural(self.stages, 'rank')}"
        return (
            f"<{where}: bubble {self.bubble_ratio:.1%} measured, {self.model.bubble_ratio:.1%} in "
            "the timetable>"
        )

    def table(self, timetable: StageSchedule | None = None) -> Table:
        """Return one row per stage, then the bubble: measured, counted in the timetable, and by
        formula.

        Parameters
        ----------
        timetable : StageSchedule, optional
            A timetable of the same passes, in seconds, such as one whose messages take time;
            ``model`` by default.
        """
        whole, model = self.duration, self.model if timetable is None else timetable
        ratios, formula = self.bubble_ratios, model.bubble_formula_ratio
        spread = f"{min(ratios):.1%} to {max(ratios):.1%} in {plural(len(ratios), 'step')}"
        rows: list[tuple[str, ...]] = [
            (
                f"stage {stage}",
                f"{format_seconds(busy)} of {format_seconds(whole)}",
                f"{1 - busy / whole:.1%}",
                f"{self.held[stage]:g}",
                format_bytes(self.activation_bytes[stage]),
            )
            for stage, busy in enumerate(self.busy)
        ]
        rows += [
            ("bubble measured", spread, f"{self.bubble_ratio:.1%}", "", ""),
            (
                "bubble in the timetable",
                f"a step of {format_seconds(model.duration)}",
                f"{model.bubble_ratio:.1%}",
                f"{max(model.held):g}",
                "",
            ),
            (
                "bubble by formula",
                model.bubble_formula,
                "" if formula is None else f"{formula:.1%}",
                "",
                "",
            ),
        ]
        columns = ("works", "waits (bubble)", "microbatches held", "activations held")
        return (f"{self.schedule}, measured", *columns), rows + note_rows(self.notes, 5)


# In the order in which a stacked bar draws them. "communication": parameters gathered for a moment,
# buckets and buffers of messages.
RANK_CATEGORIES = (
    "parameters",
    "optimizer",
    "gradients",
    "communication",
    "activations",
    "inputs",
    "temporary",
)


@dataclass(frozen=True)
class RankMemory(PeakMemory, Result):
    """The memory that a training step will take on one rank of many, found without running it.

    Attributes
    ----------
    label : str
        The model.
    strategy : str
        One of ``parallel.strategies()``.
    ranks, rank : int
    peak_bytes : int
        The most live tensor storage on this rank after any operator of a step that follows an
        earlier one.
    scratch_bytes : int
        An upper estimate of what operators allocate inside and free before they return, beyond
        ``peak_bytes``.
    kept_bytes : int
        What stays alive between steps.
    peak_by_category : mapping of str to int
        In the order of ``RANK_CATEGORIES``; sums to ``peak_bytes``.
    peak_operator, peak_phase : str
    peak_tensors : tuple of LiveTensor
        The largest storages alive at the peak, largest first.
    parameter_count : int
        Of the whole model.
    evidence : Evidence
    """

    strategy: str
    ranks: int
    rank: int
    scratch_bytes: int
    kept_bytes: int
    parameter_count: int
    evidence: Evidence

    def needed_bytes(self, device_kind: str = "cuda") -> int:
        """Return the bytes that must be free on a kind of device: peak and scratch, with the margin
        of ``memory.Prediction``.
        """
        return with_margin(self.peak_bytes + self.scratch_bytes, device_kind)

    def __repr__(self) -> str:
        return (
            f"<{self.label}, {self.strategy} on {plural(self.ranks, 'rank')}, rank {self.rank}: "
            f"peak {format_bytes(self.peak_bytes)} + scratch {format_bytes(self.scratch_bytes)} "
            "(modelled)>"
        )

    def table(self) -> Table:
        """Return the peak, what it is made of, and the largest tensors."""
        rows = [
            *self.peak_rows(),
            ("inside operators (upper estimate)", format_bytes(self.scratch_bytes)),
            ("kept between steps", format_bytes(self.kept_bytes)),
            *self.tensor_rows(5),
        ]
        headers = (f"{self.label}: {self.strategy}, rank {self.rank} of {self.ranks}", "bytes")
        return headers, rows


COMPUTED, WAITED = "computed", "a timed wait"


class ScalingMeasurement(NamedTuple):
    """A training step on one number of ranks.

    Attributes
    ----------
    ranks : int
    batch : int
        Samples that each rank has in a step.
    samples_seconds : ndarray, shape (n,)
        The duration of each step, on the slowest rank.
    median_seconds : float
    interval_seconds : (float, float) or None
        The 95 % interval of the median.
    speedup : float or None
        Ratio of the samples per second to those of one rank: paired turn by turn in a measurement,
        of the medians in a recording. None if one rank was not measured.
    speedup_interval : (float, float) or None
        The 95 % interval of the speed-up.
    """

    ranks: int
    batch: int
    samples_seconds: np.ndarray
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None

    @property
    def efficiency(self) -> float | None:
        """The speed-up over the number of ranks."""
        return None if self.speedup is None else self.speedup / self.ranks

    @property
    def efficiency_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the efficiency."""
        return (
            None
            if self.speedup_interval is None
            else (self.speedup_interval[0] / self.ranks, self.speedup_interval[1] / self.ranks)
        )


@dataclass(frozen=True, eq=False)
class ScalingResult(PointsByRanks, Result):
    """The same training step on several numbers of ranks.

    Attributes
    ----------
    label : str
        What was trained.
    mode : str
        "strong" (the global batch stays the same) or "weak" (each rank's batch does).
    stage : str
        "computed", or "a timed wait" if ranks wait instead of computing, so that they need no
        processor.
    parameter_bytes : int
        Of the model, hence the payload of each step's all-reduce.
    processors : int
        Cores (or accelerators) available to all ranks together; if there are more ranks, they take
        turns. The hyperthreads of a core count as one.
    points : tuple of ScalingMeasurement
        Ascending in ranks.
    latency_seconds, bandwidth_bytes_per_second : float or None
        The link: latency and bandwidth of one message between two neighbors of the ring, from the
        fit of the measured all-reduce; None if that was not measured.
    prediction, overlapped : ScalingCurve or None
        MODELLED from one rank's step and that link, at the same numbers of ranks: without overlap,
        and with the largest possible overlap.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    label: str
    mode: str
    stage: str
    parameter_bytes: int
    processors: int
    points: tuple[ScalingMeasurement, ...]
    latency_seconds: float | None
    bandwidth_bytes_per_second: float | None
    prediction: ScalingCurve | None
    overlapped: ScalingCurve | None
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    def _predicted(self, ranks: int) -> str:
        ends = [
            format_seconds(point.seconds)
            for curve in (self.overlapped, self.prediction)
            if curve is not None
            for point in curve.points
            if point.ranks == ranks
        ]
        return " to ".join(dict.fromkeys(ends)) or "not predicted"

    @property
    def sentence(self) -> str:
        """The result in one sentence, with its limits."""
        last = self.points[-1]
        if last.speedup is None or len(self.points) == 1:
            who = plural(last.ranks, "rank")
            return (
                f"{who}: {format_seconds(last.median_seconds)} a step; there is nothing to compare "
                "it with."
            )
        limit = ""
        if self.stage == WAITED:
            limit = (
                "; their compute was a timed wait, so this shows what communication costs, "
                "not how fast this machine is"
            )
        elif last.ranks > self.processors:
            limit = (
                f", but they take turns on {plural(self.processors, 'processor')}: this shows the "
                "cost of more ranks, not their gain"
            )
        return (
            f"{last.ranks} ranks have a speed-up of "
            f"{format_speedup(last.speedup, last.speedup_interval)} in samples a second over one "
            f"rank{limit}."
        )

    def __repr__(self) -> str:
        return f"<{self.mode} scaling of {self.label}: {self.sentence.rstrip('.')}>"

    def table(self) -> Table:
        """Return one row per number of ranks, then the link and the notes."""
        rows: list[tuple[str, ...]] = [
            (
                plural(p.ranks, "rank"),
                str(p.batch),
                f"{format_seconds(p.median_seconds)} {format_interval(p.interval_seconds)}",
                "" if p.speedup is None else format_speedup(p.speedup, p.speedup_interval),
                "" if p.efficiency is None else f"{100 * p.efficiency:.3g} %",
                self._predicted(p.ranks),
            )
            for p in self.points
        ]
        if self.latency_seconds is not None and self.bandwidth_bytes_per_second is not None:
            rate = format_bytes_per_second(self.bandwidth_bytes_per_second)
            link = (
                f"{format_seconds(self.latency_seconds)} a message and {rate}, from the measured "
                "all-reduce"
            )
            rows.append(("link", link, "", "", "", ""))
        what = (
            f"{format_bytes(self.parameter_bytes)} of gradients; compute is "
            f"{WAITED if self.stage == WAITED else 'real'}"
        )
        rows.append(
            (
                "each step",
                f"{what}; {plural(self.processors, 'processor')} for all ranks",
                "",
                "",
                "",
                "",
            )
        )
        headers = (
            f"{self.mode} scaling, {self.label}",
            "batch a rank",
            "step (median, 95 %)",
            "speed-up (95 %)",
            "efficiency",
            "predicted",
        )
        return headers, rows + note_rows(self.notes, len(headers))
