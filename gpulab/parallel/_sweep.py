"""Measure a collective over sizes among the ranks of a cluster: its time, and the bytes that it
puts on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpulab import _given, models
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.parallel import _scaling_step
from gpulab.parallel._cluster import Ranks
from gpulab.parallel._observe import usual_algorithm
from gpulab.parallel.results import CollectivePoint, CollectiveSweep
from gpulab.timing.statistics import FEWEST_SAMPLES, is_precise, median_interval
from gpulab.units import format_bytes

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

OPERATIONS = tuple(name for name in models.GLOO_ALGORITHMS if name != "barrier")
# from where the latency rules to where the bandwidth does
DEFAULT_SIZES = (*(2**k for k in range(10, 24, 2)), 2**23)
_ELEMENT_BYTES = 4
_FIRST = 5  # calls that tell how long one takes
_CHUNK_SECONDS = 0.3  # of calls between two looks at progress and stop
_MOST_CALLS = 2_000
_WIDTH = 0.05  # of a size's interval, relative: then the next size has its turn
_LEAST_SECONDS = 0.05
_LARGEST_BYTES = 2**34


def sweep(
    ranks: Ranks,
    operation: str = "all_reduce",
    sizes: Iterable[int] | None = None,
    *,
    deadline: float = 10.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> CollectiveSweep:
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
    progress, stop : callable, optional
        ``progress(fraction, text)``; ``stop() -> bool``, called a few times a second: what was
        measured until then is kept.

    Returns
    -------
    CollectiveSweep
        Times and bytes sent are MEASURED; the algorithm's bytes and ``models()`` are MODELLED.

    Raises
    ------
    InputError
        If there are fewer than two ranks, the operation is unknown, or a size is out of range.
    StoppedError
        If it was stopped before the first size was measured.
    RankError
        If a rank died, or a collective did not end in time.

    Notes
    -----
    Before each call the ranks meet at a barrier. A call lasts from when the last rank has entered
    it until the last one has its result: ranks on one Linux machine share the clock. On several
    machines it is the longest that a rank was inside. The calls are not observed while they are
    timed, so ``ranks.log`` lacks them.
    """
    report = _given.callback("sweep", "progress", progress)
    stop = _given.callback("sweep", "stop", stop)
    if not isinstance(ranks, Ranks) or ranks.n < 2:
        raise InputError(
            f"sweep: ranks is {shown(ranks)}; expected a started cluster of two ranks or more. "
            "Use `with gl.parallel.cluster(n=2) as ranks:`."
        )
    _given.word("sweep", "operation", operation, OPERATIONS)
    end = time.monotonic() + _given.deadline("sweep", deadline, 3600.0)
    several = _elements(sizes, ranks.n)
    sweeping = _Sweep(ranks, operation, several, end, report, stop)
    while len(sweeping.points) < len(several) and not sweeping.asked_to_stop():
        sweeping.measure(several[len(sweeping.points)])
    return sweeping.result()


def _elements(sizes: Iterable[int] | None, n: int) -> tuple[int, ...]:
    """Return ascending numbers of elements that the ranks divide."""
    given = DEFAULT_SIZES if sizes is None else _given.items("sweep", "sizes", sizes)
    for size in given:
        if not _given.is_whole(size) or not 1 <= size <= _LARGEST_BYTES:
            raise InputError(
                f"sweep: sizes has {shown(size)}; expected whole bytes from 1 to "
                f"{format_bytes(_LARGEST_BYTES)}. Pass 2**20."
            )
    if not len(given):
        raise InputError(
            "sweep: sizes is empty; expected at least one. Leave it out, or pass for example "
            "[2**16, 2**20]."
        )
    step = _ELEMENT_BYTES * n
    return tuple(sorted({-(-int(size) // step) * n for size in given}))


class _Sweep:
    """A sweep in progress."""

    def __init__(
        self,
        ranks: Ranks,
        operation: str,
        elements: Sequence[int],
        end: float,
        report: Progress | None,
        stop: Stop | None,
    ) -> None:
        self.ranks, self.operation, self.elements, self.end = ranks, operation, elements, end
        self.report = report or (lambda fraction, text: None)
        self.stop = stop or (lambda: False)
        self.stopped = False
        self.points: list[CollectivePoint] = []
        self.slow: list[str] = []
        self.reason: str | None = None
        facts = ranks.run(_scaling_step.facts)
        self.one_clock = len({each["clock"] for each in facts}) == 1
        self.backend, self.environment = facts[0]["backend"], facts[0]["environment"]
        # gloo's own; NCCL chooses by size and links
        self.algorithm = (
            models.GLOO_ALGORITHMS[operation]
            if self.backend == "gloo"
            else usual_algorithm(operation)
        )

    def result(self) -> CollectiveSweep:
        if not self.points:
            raise StoppedError(
                "sweep: stopped before the first size was measured; expected at least one. Run it "
                "again."
            )
        done, notes = len(self.points), []
        if self.stopped:
            words = f"The sweep was stopped after {done} of {len(self.elements)} sizes; run it"
            notes.append(Note("stopped", f"{words} again for the rest."))
        if self.slow:
            words = f"{len(self.slow)} of {done} sizes; {self.slow[0]}"
            notes.append(Note("no-interval", words))
        if not self.one_clock:
            words = (
                "The ranks' machines do not share a clock, so a time is the longest that a "
                "rank was inside, including its waiting."
            )
            notes.append(Note("skipped", words))
        self.report(1.0, "done")
        samples = sum(point.samples for point in self.points)
        return CollectiveSweep(
            operation=self.operation,
            algorithm=self.algorithm,
            ranks=self.ranks.n,
            hosts=len(set(self.ranks.hosts)) or 1,
            backend=self.backend,
            dtype="float32",
            points=tuple(self.points),
            wire_reason=self.reason,
            notes=tuple(notes),
            evidence=Evidence.measured(self.environment.device, samples),
            environment=self.environment,
        )

    def asked_to_stop(self) -> bool:
        self.stopped = self.stopped or self.stop()
        return self.stopped

    def measure(self, elements: int) -> None:
        """Sample one size until its interval is narrow or its share of the time is over, then count
        its bytes.
        """
        nbytes, number = elements * _ELEMENT_BYTES, len(self.points)
        now = time.monotonic()
        until = now + max((self.end - now) / (len(self.elements) - number), _LEAST_SECONDS)
        seconds: list[float] = []
        calls = _FIRST
        while calls:
            fraction = (number + min(len(seconds) / 100, 0.9)) / len(self.elements)
            self.report(fraction, f"{self.operation} of {format_bytes(nbytes)}")
            before = time.monotonic()
            times = self.ranks.run(_scaling_step.timed_calls, self.operation, elements, calls)
            seconds += _scaling_step.call_seconds(times, self.one_clock)
            now = time.monotonic()
            if self.asked_to_stop() or (
                len(seconds) >= FEWEST_SAMPLES
                and (now >= until or is_precise(np.array(seconds), _WIDTH))
            ):
                break
            chunk = min(_CHUNK_SECONDS, max(until - now, 0.0))
            fitting = int(chunk / max((now - before) / calls, 1e-6))
            calls = max(FEWEST_SAMPLES - len(seconds), fitting, 1)
            calls = min(calls, _MOST_CALLS - len(seconds))
        interval, why = median_interval(np.array(seconds))
        if why is not None:
            self.slow.append(f"{format_bytes(nbytes)}: {why}")
        cost = models.collective_cost(self.operation, nbytes, self.ranks.n, self.algorithm)
        counted = self.ranks.run(_scaling_step.sent_bytes, self.operation, elements)
        sent = [each for each, _ in counted if each is not None]
        self.reason = self.reason or next((reason for _, reason in counted if reason), None)
        self.points.append(
            CollectivePoint(
                nbytes,
                float(np.median(seconds)),
                interval,
                len(seconds),
                tuple(sent) if len(sent) == self.ranks.n else None,
                tuple(cost.sent_bytes(rank) for rank in range(self.ranks.n)),
            )
        )
