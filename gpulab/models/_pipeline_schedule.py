"""The timetable of pipeline parallelism: stages, microbatches, bubble, and activations held.

Stages are parts of one model, each on a processor of its own; a batch is cut into microbatches that
pass through them. (The pipeline that loads data for a training is another one:
``gpulab.training.pipeline``.) Each schedule is only an order of forward and backward passes for
each stage; their times follow from what each pass waits for, so the bubble is counted and can be
compared with the formula.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpulab._validate import is_finite, whole, within, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result

PassKind = Literal["forward", "backward"]
PIPELINE_SCHEDULES = ("split", "gpipe", "1f1b", "interleaved")
# More passes than this are no picture and no lesson, and would keep a slider waiting.
MOST_PASSES = 100_000
_MOST_COST = 1e9
_SOURCES = {
    "split": "dependencies alone: a layer needs the output of the one before it",
    "gpipe": "Huang et al., GPipe, NeurIPS 2019, section 2.3 (arXiv 1811.06965)",
    "1f1b": "Narayanan et al., PipeDream, SOSP 2019; with flushes as in Megatron-LM, SC 2021, "
    "section 2.2.1 (arXiv 2104.04473)",
    "interleaved": "Narayanan et al., Megatron-LM, SC 2021, section 2.2.2 (arXiv 2104.04473)",
}
_ASSUMPTIONS = "passes take the given times, a stage does one at a time, messages only add a delay"
_KNOWN_ERROR = (
    "gl.parallel.run_schedule runs PyTorch's own schedules and compares the measured times with "
    "this model"
)


@dataclass(frozen=True)
class StagePass(Result):
    """One forward or backward pass of one stage.

    Attributes
    ----------
    stage : int
        The processor that works, from 0.
    kind : "forward" or "backward"
    microbatch : int
        From 0; the first of them where the pass takes several at once.
    count : int
        Microbatches in this pass: all of them where the batch is not cut.
    chunk : int
        Which of the stage's parts of the model; 0 except in the interleaved schedule.
    begin, end : float
        In the unit of the costs.
    """

    stage: int
    kind: PassKind
    microbatch: int
    count: int
    chunk: int
    begin: float
    end: float

    @property
    def duration(self) -> float:
        """``end - begin``, in the unit of the costs."""
        return self.end - self.begin

    @property
    def name(self) -> str:
        """In a few letters: "F3" is the forward of microbatch 3, "B" the backward of an uncut
        batch, "F3'1" in the second chunk.
        """
        number = str(self.microbatch) if self.count == 1 else ""
        return f"{self.kind[0].upper()}{number}" + (f"'{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, repr=False)
class StageSchedule(Result):
    """When each stage of a pipeline does which pass, for one batch from the first forward to the
    last backward.

    Attributes
    ----------
    schedule : str
        One of ``PIPELINE_SCHEDULES``.
    stages, microbatches, chunks : int
        ``chunks``: parts of the model that a stage holds; 1 except in the interleaved schedule.
    forward, backward : tuple of float
        Cost of one microbatch's pass through all of a stage, one number per stage, in any unit of
        time.
    transfer : float
        From the end of a pass until the next stage has its output, in the same unit.
    passes : tuple of StagePass
        In the order of their begin.
    evidence : Evidence
        MODELLED.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    transfer: float
    passes: tuple[StagePass, ...]
    evidence: Evidence

    @property
    def duration(self) -> float:
        """From the first forward's begin to the last backward's end, in the unit of the costs."""
        return max(one.end for one in self.passes)

    def of_stage(self, stage: int) -> tuple[StagePass, ...]:
        """Return the passes of one stage, in the order in which it does them."""
        return tuple(one for one in self.passes if one.stage == stage)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each stage works, in the unit of the costs."""
        return tuple(
            sum(one.duration for one in self.of_stage(stage)) for stage in range(self.stages)
        )

    @property
    def bubble_ratio(self) -> float:
        """The share of all stages' time in which they wait, counted in the timetable; 0 to 1."""
        # a rounding below nothing is nothing
        return max(0.0, 1 - sum(self.busy) / (self.stages * self.duration))

    @property
    def bubble_formula_ratio(self) -> float | None:
        """The same by the formula, which ignores uneven stages and the time of transfers; None for
        uneven stages.
        """
        if len(set(self.forward)) > 1 or len(set(self.backward)) > 1:
            return None
        if self.schedule == "split":
            return 1 - 1 / self.stages
        return (self.stages - 1) / (self.chunks * self.microbatches + self.stages - 1)

    @property
    def bubble_formula(self) -> str:
        """The formula in words of p stages, m microbatches and v chunks."""
        return {"split": "(p - 1) / p", "interleaved": "(p - 1) / (v m + p - 1)"}.get(
            self.schedule, "(p - 1) / (m + p - 1)"
        )

    @property
    def held(self) -> tuple[float, ...]:
        """The most microbatches whose activations each stage holds at once: from a forward's begin
        until its backward's end.

        A chunk's activations count as a part of the stage's, so this may be a fraction where there
        are several.
        """
        return tuple(most_held(self.of_stage(stage), self.chunks) for stage in range(self.stages))

    @property
    def speedup(self) -> float:
        """The speed-up over one processor that does all passes one after the other."""
        return sum(self.busy) / self.duration

    def __repr__(self) -> str:
        return (
            f"<{self.schedule} of {self.stages} stages and {self.microbatches} microbatches: "
            f"bubble {self.bubble_ratio:.1%}, at most {max(self.held):g} microbatches held>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per stage, then the bubble counted and by formula."""
        whole = self.duration
        rows = [
            (f"stage {stage}", f"{busy:g} of {whole:g}", f"{1 - busy / whole:.1%}", f"{held:g}")
            for stage, (busy, held) in enumerate(zip(self.busy, self.held, strict=True))
        ]
        formula = self.bubble_formula_ratio
        rows += [
            (
                "all stages",
                f"{sum(self.busy):g} of {self.stages * whole:g}",
                f"{self.bubble_ratio:.1%}",
                f"{max(self.held):g}",
            ),
            (
                "by formula",
                self.bubble_formula,
                "none: uneven stages" if formula is None else f"{formula:.1%}",
                "",
            ),
        ]
        return (self.schedule, "works", "waits (bubble)", "microbatches held at most"), rows


def most_held(passes: Iterable[StagePass], chunks: int = 1) -> float:
    """Return the most microbatches that one stage holds at once, given its passes in their order.

    Parameters
    ----------
    passes : iterable of StagePass
        Of one stage.
    chunks : int
        A pass through one chunk counts as this part of a microbatch.
    """
    now = most = 0
    for one in passes:
        if one.kind == "forward":
            now += one.count
            most = max(most, now)
        else:
            now -= one.count
    return most if chunks == 1 else most / chunks


def pipeline_schedule(
    stages: int,
    microbatches: int,
    schedule: str = "gpipe",
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    transfer: float = 0.0,
    chunks: int | None = None,
) -> StageSchedule:
    """Return when each stage of a pipeline does which pass, and with it the bubble and the
    activations held.

    Parameters
    ----------
    stages : int
        Parts of the model (p), each on a processor of its own.
    microbatches : int
        Parts of the batch (m).
    schedule : "split", "gpipe", "1f1b" or "interleaved"
        ``split``: the batch goes through uncut, one stage works at a time. ``gpipe``: all forwards,
        then all backwards. ``1f1b``: as soon as the last stage has one, a backward after each
        forward. ``interleaved``: 1F1B with several parts of the model a stage.
    forward, backward : float or one number per stage
        Cost of one microbatch's pass through a stage, in any unit of time.
    transfer : float
        From the end of a pass until the next stage has its output.
    chunks : int, optional
        Parts of the model that a stage holds in the interleaved schedule; 2 if not given.

    Returns
    -------
    StageSchedule
        ``bubble_ratio`` counted, ``bubble_formula_ratio`` beside it, ``held`` a stage.

    Raises
    ------
    InputError
        If a count is not a whole number of at least 1, a cost is not a positive number, the
        schedule is not known, or the interleaved schedule is not possible (its microbatches must be
        a multiple of the stages).

    Notes
    -----
    Sources: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019, and
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021. As
    in PyTorch, GPipe's backwards take the microbatches in the order of the forwards; the paper
    draws them the other way round, with the same bubble.

    Examples
    --------
    >>> s = pipeline_schedule(4, 8, "1f1b")
    >>> round(s.bubble_ratio, 4) == round(3 / 11, 4), s.held
    (True, (4, 3, 2, 1))
    >>> pipeline_schedule(4, 8, "gpipe").held
    (8, 8, 8, 8)
    >>> two = pipeline_schedule(2, 2, "1f1b", forward=1, backward=1)
    >>> [f"{one.name} at {one.begin:g}" for one in two.of_stage(1)]
    ['F0 at 1', 'B0 at 2', 'F1 at 3', 'B1 at 4']
    """
    name = word("pipeline_schedule", "schedule", schedule, PIPELINE_SCHEDULES)
    stages = whole("pipeline_schedule", "stages", stages, 1, MOST_PASSES)
    microbatches = whole("pipeline_schedule", "microbatches", microbatches, 1, MOST_PASSES)
    parts = _chunks(name, stages, microbatches, chunks)
    passes = 2 * stages * microbatches * parts
    if passes > MOST_PASSES:
        raise InputError(
            f"pipeline_schedule: {stages:,} stages and {microbatches:,} microbatches make "
            f"{passes:,} passes; expected at most {MOST_PASSES:,}. Pass fewer microbatches."
        )
    costs = {
        "forward": _costs("forward", forward, stages),
        "backward": _costs("backward", backward, stages),
    }
    transfer = within("pipeline_schedule", "transfer", transfer, 0, _MOST_COST)
    orders = [_ORDERS[name](stage, stages, microbatches, parts) for stage in range(stages)]
    timed = _timetable(orders, costs, transfer, parts)
    return StageSchedule(
        name,
        stages,
        microbatches,
        parts,
        costs["forward"],
        costs["backward"],
        transfer,
        timed,
        Evidence.modelled(_ASSUMPTIONS, _SOURCES[name], _KNOWN_ERROR),
    )


def _chunks(schedule: str, stages: int, microbatches: int, chunks: int | None) -> int:
    if schedule != "interleaved":
        if chunks not in (None, 1):
            raise InputError(
                f"pipeline_schedule: chunks is {shown(chunks)} in the {schedule} schedule; "
                "expected it only in the interleaved one. "
                'Leave it out, or pass schedule="interleaved".'
            )
        return 1
    parts = 2 if chunks is None else whole("pipeline_schedule", "chunks", chunks, 1, MOST_PASSES)
    if microbatches % stages:
        raise InputError(
            f"pipeline_schedule: {microbatches} microbatches over {stages} stages; the interleaved "
            "schedule expects a multiple of the stages. Pass "
            f"microbatches={stages * math.ceil(microbatches / stages)}."
        )
    return parts


def _costs(name: str, given: Any, stages: int) -> tuple[float, ...]:
    several = list(given) if isinstance(given, (tuple, list)) else [given] * stages
    if len(several) != stages or not all(
        is_finite(one) and 0 < one <= _MOST_COST for one in several
    ):
        raise InputError(
            f"pipeline_schedule: {name} is {shown(given)}; expected a positive number, or one for "
            f"each of the {stages} stages. Pass for example "
            f"{name}={'1.0' if name == 'forward' else '2.0'}."
        )
    return tuple(float(one) for one in several)


# A pass that has no time yet: kind, first microbatch, how many, chunk.
_Order = list[tuple[PassKind, int, int, int]]


def _split(stage: int, stages: int, microbatches: int, chunks: int) -> _Order:
    return [("forward", 0, microbatches, 0), ("backward", 0, microbatches, 0)]


def _gpipe(stage: int, stages: int, microbatches: int, chunks: int) -> _Order:
    kinds: tuple[PassKind, ...] = ("forward", "backward")
    return [(kind, k, 1, 0) for kind in kinds for k in range(microbatches)]


def _one_forward_one_backward(forwards: _Order, backwards: _Order, warm_up: int) -> _Order:
    """So many forwards first, then one of each in turn, then the backwards that are left."""
    first = min(warm_up, len(forwards))
    pairs = zip(forwards[first:], backwards, strict=False)
    return [
        *forwards[:first],
        *(one for pair in pairs for one in pair),
        *backwards[len(forwards) - first :],
    ]


def _1f1b(stage: int, stages: int, microbatches: int, chunks: int) -> _Order:
    forwards: _Order = [("forward", k, 1, 0) for k in range(microbatches)]
    backwards: _Order = [("backward", k, 1, 0) for k in range(microbatches)]
    return _one_forward_one_backward(forwards, backwards, stages - 1 - stage)


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> _Order:
    """As many microbatches as stages go through one chunk, then through the next, then the next of
    them come.
    """
    places = [
        (group * stages + k, chunk)
        for group in range(microbatches // stages)
        for chunk in range(chunks)
        for k in range(stages)
    ]
    forwards: _Order = [("forward", k, 1, chunk) for k, chunk in places]
    backwards: _Order = [("backward", k, 1, chunks - 1 - chunk) for k, chunk in places]
    # Megatron-LM's warm-up: twice the distance to the last stage, so that sends overlap, and all
    # chunks but the last.
    return _one_forward_one_backward(
        forwards, backwards, 2 * (stages - 1 - stage) + (chunks - 1) * stages
    )


_ORDERS: dict[str, Callable[[int, int, int, int], _Order]] = {
    "split": _split, "gpipe": _gpipe, "1f1b": _1f1b, "interleaved": _interleaved,
}  # fmt: skip


def _timetable(
    orders: Sequence[_Order], costs: dict[str, tuple[float, ...]], transfer: float, chunks: int
) -> tuple[StagePass, ...]:
    """Let each stage begin its next pass as soon as it is free and the input is there."""
    stages = len(orders)
    last = stages * chunks - 1
    # kind, part of the model from its input to its output, microbatch
    ended: dict[tuple[str, int, int], float] = {}
    free, passes = [0.0] * stages, list[StagePass]()
    left = [collections.deque(order) for order in orders]
    while any(left):
        for stage, waiting in enumerate(left):
            while waiting:
                kind, k, count, chunk = waiting[0]
                part = chunk * stages + stage
                ready: float | None = 0.0
                if kind == "backward" and part == last:
                    ready = ended.get(("forward", part, k))
                elif kind == "backward" or part > 0:
                    ready = ended.get((kind, part + (1 if kind == "backward" else -1), k))
                    if ready is not None and stages > 1:
                        ready += transfer
                if ready is None:
                    break
                begin = max(free[stage], ready)
                free[stage] = ended[kind, part, k] = begin + costs[kind][stage] * count / chunks
                passes.append(StagePass(stage, kind, k, count, chunk, begin, free[stage]))
                waiting.popleft()
    return tuple(sorted(passes, key=lambda one: (one.begin, one.stage, one.end)))
