"""Measure how a data-parallel step scales over the ranks of a cluster, beside what one rank and the
link predict.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpulab import _given, models
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.models._scaling import MODES
from gpulab.parallel import _scaling_step
from gpulab.parallel._cluster import Ranks, cluster
from gpulab.parallel._scaling_step import StepModel, StepSpec
from gpulab.parallel.scaling_results import COMPUTED, WAITED, ScalingMeasurement, ScalingResult
from gpulab.timing.statistics import (
    FEWEST_SAMPLES,
    is_precise,
    median_interval,
    median_ratio,
    ratio_interval,
)
from gpulab.transfer import AlphaBeta, fit
from gpulab.units import plural

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

_TURN = 4  # samples of each number of ranks before the next one has its turn
_CHUNK_SECONDS = 0.4  # of turns between two looks at progress and stop
_ROUNDS_AT_LEAST = -(-FEWEST_SAMPLES // _TURN)
_MOST_ROUNDS = 2_000
_MOST_DEADLINES = 3  # after so many of them it ends even where steps are too slow for an interval
_DELAYED = 0.05  # the share of a lone rank's time without a core from which a note tells of others
# of the intervals of the steps, relative: then the measurement may end before its deadline
_WIDTH = 0.04
# The all-reduce is measured from where its latency rules up to the gradients' size (or the largest
# of these), in so many passes with so many calls each.
_SIZES = tuple(2**k for k in range(12, 25, 2))
_PASSES, _REPEATS = 3, 6
_ACCELERATOR_STEPS = 10  # steps between two waits for an accelerator


def scaling(
    ranks: Ranks | int,
    model: str | StepModel = "mlp",
    *,
    mode: str = "strong",
    batch: int | None = None,
    counts: Iterable[int] | None = None,
    wait_seconds: float | None = None,
    deadline: float = 4.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> ScalingResult:
    """Measure a training step on the first 1, 2 ... ranks of a cluster, in turns, and predict it
    from one rank and the link.

    Parameters
    ----------
    ranks : Ranks or int
        A started cluster, or how many ranks to start (and end) for this alone. Smaller numbers are
        groups of its first ranks.
    model : str or StepModel
        "mlp", "cnn", "transformer" or "large-transformer".
    mode : str
        "strong": ``batch`` is that of all ranks together. "weak": it is that of each rank.
    batch : int, optional
        Samples; in strong scaling each number of ranks must divide it.
    counts : iterable of int, optional
        Numbers of ranks; by default 1 to 4, then powers of two, and all ranks.
    wait_seconds : float, optional
        Replaces computing by a wait of this length on one rank (in strong scaling divided by the
        ranks); gradients are still averaged. Such ranks need no processor of their own, so
        communication shows even where ranks share processors. The result has a note on it.
    deadline : float
        Seconds of sampling, for all numbers of ranks together; sampling ends earlier if all
        intervals are narrow.
    progress, stop : callable, optional
        ``progress(fraction, text)``; ``stop() -> bool``, called a few times a second: what was
        measured until then is kept.

    Returns
    -------
    ScalingResult
        Steps are MEASURED; its ``prediction`` is MODELLED. Ranks beyond the processors compute in
        turns, and a note says so.

    Raises
    ------
    InputError
        If the model or mode is unknown, there are fewer ranks than asked for, or the batch does not
        divide.
    StoppedError
        If it was stopped before there were samples.
    RankError
        If a rank died, or a collective did not end in time.

    Notes
    -----
    Steps are timed on each rank; the slowest rank's are kept. The numbers of ranks take turns of
    four steps, so that disturbances affect all of them alike; the speed-up is the median of the
    ratios of neighboring turns.
    """
    report, asked = (
        _given.callback("scaling", "progress", progress),
        _given.callback("scaling", "stop", stop),
    )
    chosen = _model(model)
    known = _given.word("scaling", "mode", mode, MODES)
    deadline = _given.deadline("scaling", deadline, 3600.0)
    if wait_seconds is not None and (
        not _given.is_finite(wait_seconds) or not 0 < wait_seconds <= 10
    ):
        raise InputError(
            f"scaling: wait_seconds is {shown(wait_seconds)}; expected more than 0 and at most 10. "
            "Pass wait_seconds=0.02."
        )
    several = _counts(ranks, counts)
    spec = StepSpec(
        chosen, _batch(chosen, batch, known, several), known == "weak", several, wait_seconds
    )
    with ExitStack() as stack:
        if isinstance(ranks, Ranks):
            group = ranks
        else:
            starting = None if report is None else lambda part, text: report(0.5 * part, text)
            group = stack.enter_context(cluster(max(several), progress=starting))
        return _Measuring(group, spec, deadline, report, asked).result()


class _Measuring:
    """One measurement, from the groups to the result."""

    def __init__(
        self,
        ranks: Ranks,
        spec: StepSpec,
        deadline: float,
        report: Progress | None,
        stop: Stop | None,
    ) -> None:
        self.ranks, self.spec, self.deadline = ranks, spec, deadline
        self.say = report or (lambda fraction, text: None)
        self.stopped = stop or (lambda: False)
        self.token = uuid.uuid4().hex
        self.columns: dict[int, list[float]] = {count: [] for count in spec.counts}
        self.alone_seconds = self.delay_seconds = 0.0
        self.notes: list[Note] = []
        self.cut_off = False  # an interrupt has left the ranks in the middle of a call

    def result(self) -> ScalingResult:
        self.say(0.5, "making a model on each rank")
        facts = self._run(_scaling_step.facts)
        # written for NCCL; no machine of ours with several GPUs has run it
        if facts[0]["accelerators"]:
            self.spec = dataclasses.replace(self.spec, steps_a_sample=_ACCELERATOR_STEPS)
        parameter_bytes = self._run(_scaling_step.begin, self.token, self.spec)[0]
        try:
            line = self._line(
                parameter_bytes,
                len({each["host"] for each in facts}) == 1,
                facts[0]["environment"].device,
            )
            self._sample()
        except StoppedError:
            self._let_go()
            raise
        self._let_go()
        if self.delay_seconds > _DELAYED * self.alone_seconds:
            share = f"{100 * self.delay_seconds / self.alone_seconds:.0f} %"
            told = (
                "other processes kept one rank, when it worked alone, waiting for a core for "
                f"{share} of the time"
            )
            self.notes.append(
                Note(
                    "contended",
                    f"{told}. Close other programs, or measure again later: all points are slower "
                    "than they could be.",
                )
            )
        self.say(1.0, "done")
        return _result(self.spec, facts, parameter_bytes, self.columns, line, self.notes)

    def _run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Ask the ranks; where they are interrupted, as by an instrument's Stop, say so in words of
        this measurement.
        """
        try:
            return self.ranks.run(function, *args)
        except StoppedError as error:
            self.cut_off = True
            raise StoppedError(
                "scaling: stopped before any step was timed; there is nothing to report. Run it "
                "again."
            ) from error

    def _let_go(self) -> None:
        """Close the groups; not after an error or an interrupt, for it is itself collective: the
        next measurement lets go.
        """
        if not self.cut_off:
            self.ranks.run(_scaling_step.end, self.token)

    def _line(self, parameter_bytes: int, one_clock: bool, device: str) -> AlphaBeta | None:
        """Time the all-reduce of all ranks over sizes, and fit it; None with one rank."""
        if self.ranks.n < 2:
            return None
        sizes = sorted(
            {size for size in _SIZES if size <= max(parameter_bytes, _SIZES[3])}
            | {max(parameter_bytes, _SIZES[0])}
        )
        taken: dict[int, list[float]] = {size: [] for size in sizes}
        # all sizes, then all again: what disturbs the machine for a while spoils no size alone
        for number in range(_PASSES):
            for size in sizes:
                if self.stopped():
                    raise StoppedError(
                        "scaling: stopped while the all-reduce was timed; there is nothing to "
                        "report. Run it again."
                    )
                self.say(0.55 + 0.1 * number / _PASSES, "timing the all-reduce")
                of_ranks = self._run(_scaling_step.collective_times, "all_reduce", size, _REPEATS)
                taken[size] += _scaling_step.call_seconds(of_ranks, one_clock)
        medians = [float(np.median(taken[size])) for size in sizes]
        return fit(
            sizes, medians, Evidence.measured(device, samples=len(sizes) * _PASSES * _REPEATS)
        )

    def _sample(self) -> None:
        begin, rounds = time.monotonic(), 1
        done = 0
        while done < _MOST_ROUNDS:
            now = time.monotonic() - begin
            if self.stopped():
                self._note_stop()
                break
            if now >= self.deadline and (
                done >= _ROUNDS_AT_LEAST or now >= _MOST_DEADLINES * self.deadline
            ):
                break
            if done >= 3 * _ROUNDS_AT_LEAST and all(
                is_precise(np.array(column), _WIDTH) for column in self.columns.values()
            ):
                break
            self.say(
                min(0.99, 0.65 + 0.34 * now / self.deadline),
                f"{plural(len(self.columns[self.spec.counts[0]]), 'step')} of each",
            )
            before = time.monotonic()
            try:
                of_ranks = self._run(_scaling_step.turns, self.token, rounds, _TURN)
            except StoppedError:  # in the middle of these turns: those before them count
                if not done:
                    raise
                self._note_stop()
                break
            for count in self.columns:
                self.columns[count] += _scaling_step.slowest(
                    [rank.seconds[count] for rank in of_ranks[:count]]
                )
            self.alone_seconds += of_ranks[0].alone_seconds
            self.delay_seconds += of_ranks[0].delay_seconds
            done += rounds
            a_round = (time.monotonic() - before) / rounds
            rounds = max(1, min(int(_CHUNK_SECONDS / max(a_round, 1e-6)), 50))
        if not done:
            raise StoppedError(
                "scaling: stopped before any step was timed; there is nothing to report. Run it "
                "again."
            )

    def _note_stop(self) -> None:
        self.notes.append(
            Note(
                "stopped",
                "the measurement was stopped; the points shown are those measured until then. Run "
                "it again for the rest.",
            )
        )


def _result(
    spec: StepSpec,
    facts: Sequence[dict[str, Any]],
    parameter_bytes: int,
    columns: dict[int, list[float]],
    line: AlphaBeta | None,
    notes: list[Note],
) -> ScalingResult:
    """Put samples, link and prediction together."""
    hosts = {
        each["host"]: each["accelerators"] or max(1, each["cores"] // each["threads"])
        for each in facts
    }
    processors = sum(hosts.values())
    samples = {count: np.array(column) for count, column in sorted(columns.items())}
    counts, world = list(samples), len(facts)
    notes = notes + _notes(spec, counts, processors, samples)
    where = facts[0]["environment"]
    evidence = Evidence.measured(
        where.device, samples=sum(len(column) for column in samples.values())
    )
    latency = bandwidth = None
    plain = hidden = None
    if line is not None and 1 in samples:
        # From the ring of all ranks to one message, so that smaller rings can be told.
        latency, bandwidth = models.collective_message(
            "all_reduce",
            world,
            "ring",
            latency_seconds=line.latency_seconds,
            bandwidth_bytes_per_second=line.bandwidth_bytes_per_second,
        )
        own = None if spec.wait_seconds is not None else processors
        given = (float(np.median(samples[1])), parameter_bytes, latency, bandwidth, counts)
        plain, hidden = (
            models.scaling(
                *given, mode="weak" if spec.weak else "strong", overlap=overlap, processors=own
            )
            for overlap in (0.0, 0.0 if spec.wait_seconds is not None else 1.0)
        )
    points = [
        _point(
            spec,
            count,
            samples,
            None if plain is None else plain.at(count).seconds,
            None if hidden is None else hidden.at(count).seconds,
        )
        for count in counts
    ]
    return ScalingResult(
        label=spec.model.words,
        mode="weak" if spec.weak else "strong",
        stage=COMPUTED if spec.wait_seconds is None else WAITED,
        parameter_bytes=parameter_bytes,
        processors=processors,
        hosts=len(hosts),
        points=tuple(points),
        latency_seconds=latency,
        bandwidth_bytes_per_second=bandwidth,
        prediction=plain,
        overlapped=hidden,
        notes=tuple(notes),
        evidence=evidence,
        environment=where,
    )


def _point(
    spec: StepSpec,
    count: int,
    samples: dict[int, np.ndarray],
    predicted: float | None,
    overlapped: float | None,
) -> ScalingMeasurement:
    mine, least = samples[count], min(samples)
    interval, _ = median_interval(mine)
    work = count * spec.batch_of(count) / (least * spec.batch_of(least))
    speedup: float | None = None
    span = None
    if count == least == 1:
        speedup, span = 1.0, (1.0, 1.0)
    elif least == 1:
        speedup = work * median_ratio(samples[least], mine, paired=True)
        ratios, _ = ratio_interval(samples[least], mine, paired=True)
        span = None if ratios is None else (work * ratios[0], work * ratios[1])
    return ScalingMeasurement(
        count,
        spec.batch_of(count),
        mine,
        float(np.median(mine)),
        interval,
        speedup,
        span,
        predicted,
        overlapped,
    )


def _notes(
    spec: StepSpec, counts: Sequence[int], processors: int, samples: dict[int, np.ndarray]
) -> list[Note]:
    notes = []
    if spec.wait_seconds is not None:
        notes.append(
            Note(
                "skipped",
                f"compute is a timed wait of {1e3 * spec.wait_seconds:.3g} ms on one rank, not "
                "work. Only the communication is real: "
                "rely on its cost, not on the speed-up.",
            )
        )
    elif max(counts) > processors:
        notes.append(
            Note(
                "contended",
                f"{max(counts)} ranks share {processors} processor{'s' if processors > 1 else ''}, "
                f"so beyond {processors} they compute in "
                "turns and cannot gain. Rely on the cost of communication here; take speed-ups "
                "from machines with one processor per rank.",
            )
        )
    few = [count for count, column in samples.items() if median_interval(column)[0] is None]
    if few:
        reason = median_interval(samples[few[0]])[1] or ""
        notes.append(Note("no-interval", f"{few[0]} rank{'s' if few[0] > 1 else ''}: {reason}"))
    return notes


def _model(given: Any) -> StepModel:
    if isinstance(given, StepModel):
        return given
    return _scaling_step.MODELS[_given.word("scaling", "model", given, _scaling_step.MODELS)]


def _counts(ranks: Any, given: Any) -> tuple[int, ...]:
    if not isinstance(ranks, Ranks) and (not _given.is_whole(ranks) or not 1 <= ranks <= 64):
        raise InputError(
            f"scaling: ranks is {shown(ranks)}; expected a started cluster, or a whole number from "
            "1 to 64. Pass ranks=2."
        )
    n = ranks.n if isinstance(ranks, Ranks) else int(ranks)
    if given is None:
        return tuple(sorted({*range(1, min(n, 4) + 1), *(2**k for k in range(7) if 2**k <= n), n}))
    wanted = _given.items("scaling", "counts", given)
    for each in wanted:
        if not _given.is_whole(each) or not 1 <= each <= n:
            raise InputError(
                f"scaling: counts has {shown(each)}; expected whole numbers from 1 to {n}, the "
                "number of ranks. Start more."
            )
    if not wanted:
        raise InputError(
            "scaling: counts is empty; expected at least one number of ranks. Leave it out, or "
            "pass (1, 2)."
        )
    return tuple(sorted({int(each) for each in wanted}))


def _batch(model: StepModel, given: Any, mode: str, counts: Sequence[int]) -> int:
    batch = model.batch if given is None else given
    if not _given.is_whole(batch) or not 1 <= batch <= 2**20:
        raise InputError(
            f"scaling: batch is {shown(batch)}; expected a whole number from 1 to 1,048,576. Pass "
            f"batch={model.batch}."
        )
    batch = int(batch)
    uneven = [count for count in counts if batch % count] if mode == "strong" else []
    if uneven:
        raise InputError(
            f"scaling: a batch of {batch} does not divide among {uneven[0]} ranks; expected one "
            f"that {', '.join(map(str, counts))} divide. "
            f"Pass batch={-(-batch // int(np.lcm.reduce(counts))) * int(np.lcm.reduce(counts))}, "
            f"or counts that divide {batch}."
        )
    return batch
