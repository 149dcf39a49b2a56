"""What more ranks bring: measure how a data-parallel step scales over the ranks of a cluster,
beside what one rank and the link predict, or return what was recorded on a named machine; and
measure a collective over sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpulab import _validate, models
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.models.parallelism import MODES
from gpulab.parallel import scaling_steps
from gpulab.parallel._cluster import Ranks, cluster
from gpulab.parallel.rank_results import (
    COMPUTED,
    WAITED,
    ScalingResult,
)
from gpulab.parallel.scaling_steps import MODELS, StepSpec, Turns, predict
from gpulab.timing.statistics import (
    FEWEST_SAMPLES,
    is_precise,
    median_interval,
    paired_ratio,
)
from gpulab.transfer import AlphaBeta, Sweep, SweepPoint
from gpulab.units import format_bytes, plural

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]
_DEADLINE = partial(_validate.deadline, most=3600.0)

_MOST_MEASURED = 64  # ranks
_TURN = 4  # samples of each number of ranks before the next one has its turn
_CHUNK_SECONDS = 0.4  # of turns between two looks at progress and stop
_ROUNDS_AT_LEAST = -(-FEWEST_SAMPLES // _TURN)
_MOST_ROUNDS = 2_000
_MOST_DEADLINES = 3  # after so many of them it ends even where steps are too slow for an interval
_DELAYED = 0.05  # the share of a lone rank's time without a core from which a note names others
# of the intervals of the steps, relative: then the measurement may end before its deadline
_WIDTH = 0.04
# The all-reduce is measured from where its latency rules up to the gradients' size (or the fourth
# of these, where that is larger).
_SIZES = tuple(2**k for k in range(12, 25, 2))
_ALL_REDUCE_SECONDS = 1.0
_ACCELERATOR_STEPS = 10  # steps between two waits for an accelerator


@_validate.arguments(
    model=partial(_validate.word, known=MODELS),
    mode=partial(_validate.word, known=MODES),
    batch=partial(_validate.whole, low=1, high=2**20),
    wait_seconds=partial(_validate.within, low=1e-6, high=10),
    deadline=_DEADLINE,
    progress=_validate.hook,
    stop=_validate.hook,
)
def scaling(
    ranks: Ranks | int,
    model: str = "mlp",
    *,
    mode: str = "strong",
    batch: int | None = None,
    wait_seconds: float | None = None,
    deadline: float = 4.0,
    progress: Progress = _validate.LEFT_OUT,
    stop: Stop = _validate.LEFT_OUT,
) -> ScalingResult:
    """Measure a training step on the first 1, 2 ... ranks of a cluster, in turns, and predict it
    from one rank and the link.

    Parameters
    ----------
    ranks : Ranks or int
        A started cluster, or how many ranks to start (and end) for this alone. Measured are 1 to 4
        of them, powers of two, and all; smaller numbers are groups of its first ranks.
    model : str
        "mlp", "cnn", "transformer" or "large-transformer".
    mode : str
        "strong": ``batch`` is that of all ranks together. "weak": it is that of each rank.
    batch : int, optional
        Samples; in strong scaling each number of ranks must divide it.
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
    advice = "Pass a started cluster, or ranks=2."
    started = ranks if isinstance(ranks, Ranks) else None
    n = (
        started.n
        if started is not None
        else _validate.whole("scaling", "ranks", ranks, 1, _MOST_MEASURED, advice)
    )
    counts = sorted({*range(1, min(n, 4) + 1), *(2**k for k in range(n.bit_length())), n})
    size = MODELS[model].batch if batch is None else batch
    if mode == "strong" and any(size % count for count in counts):
        step = int(np.lcm.reduce(counts))
        raise InputError(
            f"scaling: a batch of {size} does not divide among {', '.join(map(str, counts))} "
            f"ranks; expected a multiple of {step}. Pass batch={-(-size // step) * step}."
        )
    spec = StepSpec(MODELS[model], size, mode == "weak", tuple(counts), wait_seconds)
    with ExitStack() as stack:
        group = started or stack.enter_context(
            cluster(n, progress=lambda part, text: progress(part / 2, text))
        )
        try:
            return _measured(group, spec, deadline, progress, stop)
        except StoppedError as error:
            raise StoppedError(
                "scaling: stopped before any step was timed; there is nothing to report. Run it "
                "again."
            ) from error


def _measured(
    ranks: Ranks, spec: StepSpec, deadline: float, report: Progress, stop: Stop
) -> ScalingResult:
    """Measure from the groups to the result. After a stop, which may have come in the middle of a
    collective, the ranks keep their models until the next measurement.
    """
    report(0.5, "making a model on each rank")
    facts = ranks.run(scaling_steps.facts)
    # written for NCCL; no machine of ours with several GPUs has run it
    if facts[0]["accelerators"]:
        spec = replace(spec, steps_a_sample=_ACCELERATOR_STEPS)
    ranks.run(scaling_steps.begin, spec)
    parameter_bytes, line = scaling_steps.parameter_bytes(spec.model), None
    if ranks.n > 1:
        report(0.55, "timing the all-reduce")
        largest = max(parameter_bytes, _SIZES[3])
        sizes = {size for size in _SIZES if size <= largest} | {max(parameter_bytes, _SIZES[0])}
        line = sweep(ranks, "all_reduce", sizes, deadline=_ALL_REDUCE_SECONDS).fit()
    turns, stopped = _turns(ranks, spec, deadline, report, stop)
    notes = []
    if stopped:
        notes.append(
            Note(
                "stopped",
                "the measurement was stopped; the points shown are those measured until then. Run "
                "it again for the rest.",
            )
        )
    else:
        ranks.run(scaling_steps.end)
    if turns.delay_seconds > _DELAYED * turns.alone_seconds:
        share = f"{100 * turns.delay_seconds / turns.alone_seconds:.0f} %"
        words = (
            "other processes kept one rank, when it worked alone, waiting for a core for "
            f"{share} of the time. Close other programs, or measure again later: all points "
            "are slower than they could be."
        )
        notes.append(Note("contended", words))
    report(1.0, "done")
    return _result(spec, facts, parameter_bytes, turns.seconds, line, notes)


def _turns(
    ranks: Ranks, spec: StepSpec, deadline: float, report: Progress, stop: Stop
) -> tuple[Turns, bool]:
    """Return what the slowest ranks saw in their turns, until the intervals are narrow or the time
    is over, and whether they were stopped.
    """
    all_turns = Turns({count: [] for count in spec.counts})
    begin, rounds, done = time.monotonic(), 1, 0
    while done < _MOST_ROUNDS:
        now = time.monotonic() - begin
        late = now >= deadline and (done >= _ROUNDS_AT_LEAST or now >= _MOST_DEADLINES * deadline)
        narrow = done >= 3 * _ROUNDS_AT_LEAST and all(
            is_precise(np.array(column), _WIDTH) for column in all_turns.seconds.values()
        )
        if late or narrow:
            break
        steps = plural(_TURN * done, "step")
        report(min(0.99, 0.65 + 0.34 * now / deadline), f"{steps} of each")
        before = time.monotonic()
        try:
            if stop():
                raise StoppedError("scaling: stopped between two turns.")
            of_ranks = ranks.run(scaling_steps.turns, rounds, _TURN)
        except StoppedError:  # in the middle of these turns: those before them count
            if not done:
                raise
            return all_turns, True
        for count, column in all_turns.seconds.items():
            column.extend(scaling_steps.slowest([each.seconds[count] for each in of_ranks[:count]]))
        all_turns.alone_seconds += of_ranks[0].alone_seconds
        all_turns.delay_seconds += of_ranks[0].delay_seconds
        done += rounds
        a_round = (time.monotonic() - before) / rounds
        rounds = max(1, min(int(_CHUNK_SECONDS / max(a_round, 1e-6)), 50))
    return all_turns, False


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
    processors, computed = sum(hosts.values()), spec.wait_seconds is None
    samples = {count: np.array(column) for count, column in sorted(columns.items())}
    where, mode = facts[0]["environment"], "weak" if spec.weak else "strong"
    predicted = predict(
        line,
        float(np.median(samples[1])) if 1 in samples else None,
        parameter_bytes,
        list(samples),
        len(facts),
        overlap=1.0 if computed else 0.0,
        mode=mode,
        processors=processors if computed else None,
    )
    return ScalingResult(
        label=spec.model.words,
        mode=mode,
        stage=COMPUTED if computed else WAITED,
        parameter_bytes=parameter_bytes,
        processors=processors,
        points=tuple(
            scaling_steps.measurement(
                spec,
                count,
                mine,
                float(np.median(mine)),
                median_interval(mine)[0],
                None if 1 not in samples else paired_ratio(samples[1], mine),
            )
            for count, mine in samples.items()
        ),
        **predicted,
        notes=(*notes, *_notes(spec, processors, samples)),
        evidence=Evidence.measured(where.device, sum(map(len, samples.values()))),
        environment=where,
    )


def _notes(spec: StepSpec, processors: int, samples: dict[int, np.ndarray]) -> Iterator[Note]:
    if spec.wait_seconds is not None:
        yield Note(
            "skipped",
            f"compute is a timed wait of {1e3 * spec.wait_seconds:.3g} ms on one rank, not work. "
            "Only the communication is real: rely on its cost, not on the speed-up.",
        )
    elif max(samples) > processors:
        yield Note(
            "contended",
            f"{max(samples)} ranks share {plural(processors, 'processor')}, so beyond {processors} "
            "they compute in turns and cannot gain. Rely on the cost of communication here; take "
            "speed-ups from machines with one processor per rank.",
        )
    for count, column in samples.items():
        interval, reason = median_interval(column)
        if interval is None:
            yield Note("no-interval", f"{plural(count, 'rank')}: {reason}")
            break


OPERATIONS = tuple(name for name in models.GLOO_ALGORITHMS if name != "barrier")
# from where the latency rules to where the bandwidth does
DEFAULT_SIZES = (*(2**k for k in range(10, 24, 2)), 2**23)
_ELEMENT_BYTES = 4
_FIRST = 5  # calls that tell how long one takes
_CALLS_SECONDS = 0.3  # of calls between two looks at the interval
_MOST_CALLS = 2_000
_CALLS_WIDTH = 0.05  # of a size's interval, relative: then the next size has its turn
_LEAST_SECONDS = 0.05
_LARGEST_BYTES = 2**34


@_validate.arguments(operation=partial(_validate.word, known=OPERATIONS), deadline=_DEADLINE)
def sweep(
    ranks: Ranks,
    operation: str = "all_reduce",
    sizes: Iterable[int] | None = None,
    *,
    deadline: float = 10.0,
) -> Sweep:
    """Measure a collective over sizes.

    Parameters
    ----------
    ranks : Ranks
        A started cluster of two ranks or more.
    operation : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter" or
        "all_to_all".
    sizes : iterable of int, optional
        Bytes of the whole tensor (an all-gather's result, a reduce-scatter's input), from 1 kB to 8
        MB by default. They are rounded up to float32 elements that the ranks divide.
    deadline : float
        Seconds of sampling, for all sizes together; a size ends earlier if its interval is narrow.
        If 20 calls need longer than its share, a size gets a little more.

    Returns
    -------
    Sweep
        As of ``gpulab.transfer.sweep``, with the operation for its direction: MEASURED.
        ``models.collective_message`` has what its fit says of one message between two ranks.

    Raises
    ------
    InputError
        If there are fewer than two ranks, the operation is unknown, or a size is out of range.
    RankError
        If a rank died, or a collective did not end in time.

    Notes
    -----
    Before each call the ranks meet at a barrier. A call lasts from when the last rank has entered
    it until the last one has its result: ranks on one Linux machine share the clock. On several
    machines it is the longest that a rank was inside. The calls are not observed while they are
    timed, so ``ranks.log`` lacks them.
    """
    if not isinstance(ranks, Ranks) or ranks.n < 2:
        raise InputError(
            f"sweep: ranks is {shown(ranks)}; expected a started cluster of two ranks or more. Use "
            "`with gl.parallel.cluster(n=2) as ranks:`."
        )
    end = time.monotonic() + deadline
    several = _elements(sizes, ranks.n)
    facts = ranks.run(scaling_steps.facts)
    one_clock, where = len({each["clock"] for each in facts}) == 1, facts[0]["environment"]
    among = f"among {ranks.n} ranks ({facts[0]['backend']})"
    points, slow, notes = [], [], []
    for number, elements in enumerate(several):
        now = time.monotonic()
        until = now + max((end - now) / (len(several) - number), _LEAST_SECONDS)
        seconds = _sampled_calls(ranks, operation, elements, until, one_clock)
        nbytes = elements * _ELEMENT_BYTES
        interval, why = median_interval(seconds)
        if why is not None:
            slow.append(f"{format_bytes(nbytes)}: {why}")
        median = float(np.median(seconds))
        points.append(SweepPoint(operation, among, nbytes, median, interval, len(seconds)))
    if slow:
        notes.append(Note("no-interval", f"{len(slow)} of {len(points)} sizes; {slow[0]}"))
    if not one_clock:
        words = (
            "The ranks' machines do not share a clock, so a time is the longest that a rank was "
            "inside, including its waiting."
        )
        notes.append(Note("skipped", words))
    evidence = Evidence.measured(where.device, sum(point.samples for point in points))
    return Sweep(
        where.device, "torch.distributed", tuple(points), None, tuple(notes), evidence, where
    )


def _elements(sizes: Iterable[int] | None, n: int) -> tuple[int, ...]:
    """Return ascending numbers of elements that the ranks divide."""
    given = DEFAULT_SIZES if sizes is None else _validate.items("sweep", "sizes", sizes)
    if not len(given):
        raise InputError(
            "sweep: sizes is empty; expected at least one. Leave it out, or pass for example "
            "[2**16, 2**20]."
        )
    step = _ELEMENT_BYTES * n
    several = {_validate.whole("sweep", "sizes", size, 1, _LARGEST_BYTES) for size in given}
    return tuple(sorted({-(-size // step) * n for size in several}))


def _sampled_calls(
    ranks: Ranks, operation: str, elements: int, until: float, one_clock: bool
) -> np.ndarray:
    """Return the seconds of calls of one size, until their interval is narrow or the time is
    over.
    """
    seconds: list[float] = []
    calls = _FIRST
    while calls:
        before = time.monotonic()
        times = ranks.run(scaling_steps.timed_calls, operation, elements, calls)
        seconds += scaling_steps.call_seconds(times, one_clock)
        now = time.monotonic()
        if len(seconds) >= FEWEST_SAMPLES and (
            now >= until or is_precise(np.array(seconds), _CALLS_WIDTH)
        ):
            break
        chunk = min(_CALLS_SECONDS, max(until - now, 0.0))
        fitting = int(chunk / max((now - before) / calls, 1e-6))
        calls = max(FEWEST_SAMPLES - len(seconds), fitting, 1)
        calls = min(calls, _MOST_CALLS - len(seconds))
    return np.array(seconds)
