"""What notebooks 01 and 04 show of a GPU: the learner's own, measured now, else those of recorded machines.

A figure of a recording is looked up and divided here, never typed into a text; what was not recorded says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices, hierarchy, models, recordings
from gpulab.errors import InputError, MissingLibraryError
from gpulab.evidence import Badge, Evidence
from gpulab.hierarchy import Bandwidth, Latency
from gpulab.hierarchy.results import beyond_caches
from gpulab.lessons import _live
from gpulab.recordings import Entry, Recording
from gpulab.recordings._schema import accelerator_told
from gpulab.results import Result, html_caption, html_table
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, format_ratio, format_seconds, plural

NOT_YET = "not recorded yet"
_LOAD_BYTES = 4  # of one thread's load of a float32
_LINE_BYTES = 64  # what a CPU moves between its memory and its caches (Intel SDM vol. 1; 128 on Apple's)


def recorded_gpus() -> dict[str, Recording]:
    """Return the recordings of machines with an accelerator by their names; empty while there are none."""
    return {name: one for name, one in recordings.readable().items() if one.environment.device_kind != "cpu"}


def caption_of(evidence: Sequence[Evidence]) -> str:
    """The badge lines of a table's machines, each once."""
    return "\n".join(dict.fromkeys(one.sentence for one in evidence)) or NOT_YET


def with_captions(result: Result) -> str:
    """Return a result's table as HTML with a badge line for each of its machines, as a notebook shows it."""
    return html_table(*result.table()) + "".join(f"<div>{html_caption(line)}</div>" for line in result.caption().splitlines())


# -- 01: what a launch costs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchRow(Result):
    """One way to start small work, again and again.

    Attributes
    ----------
    machine, way : str
        "stream" or "graph".
    seconds : float
        From one start to the next.
    interval_seconds : (float, float) or None
    """

    machine: str
    way: str
    seconds: float
    interval_seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Launches(Result):
    """From one small kernel to the next on a GPU: started one by one, and as a graph.

    Attributes
    ----------
    rows : tuple of LaunchRow
        Empty where nothing is recorded yet.
    evidence : tuple of Evidence
        Of each machine.
    """

    rows: tuple[LaunchRow, ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return f"<launches: {', '.join(f'{row.way} {format_seconds(row.seconds)}' for row in self.rows) or NOT_YET}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a way, and how much sooner the graph comes to the next."""
        badge = self.evidence[0].badge if self.evidence else Badge.RECORDED
        headers = (f"GPU ({badge})", "how small kernels are started", "from one to the next", "over a graph")
        graphs = {row.machine: row.seconds for row in self.rows if row.way == "graph"}
        words = {"stream": "one by one, in a stream", "graph": "all at once, as a CUDA graph"}
        rows = [
            (row.machine, words.get(row.way, row.way), format_seconds(row.seconds),
             format_ratio(row.seconds / graphs[row.machine]) if row.machine in graphs else "")
            for row in self.rows
        ]  # fmt: skip
        return headers, rows or [("no GPU", NOT_YET, "", "")]

    def _repr_html_(self) -> str:
        return with_captions(self)


def launches(deadline: float = 0.5) -> Launches:
    """Return what lies between two small kernels: on this machine's CUDA GPU, measured now, else (or if it refuses) on recorded ones.

    Parameters
    ----------
    deadline : float
        Seconds of sampling for each way.
    """
    where = devices.default()
    rows: list[LaunchRow] = []
    if where.torch_type == "cuda":
        for params, found in _live.measured("launch", lambda params: True, where, deadline):
            if not isinstance(found, str):
                rows.append(_launch(where.name, params, found.median_seconds, found.interval_seconds))
        if rows:
            return Launches(tuple(rows), (Evidence.measured(where.name),))
    evidence = []
    for name, recording in recorded_gpus().items():
        there = [
            _launch(name, entry.params, entry.timing.median_seconds, entry.timing.interval_seconds)
            for entry in recording.select("launch") if entry.timing is not None
        ]  # fmt: skip
        if there:
            rows += there
            evidence.append(recording.evidence())
    return Launches(tuple(rows), tuple(evidence))


def _launch(machine: str, params: Any, seconds: float, interval: tuple[float, float] | None) -> LaunchRow:
    count = int(params["launches"])
    ends = None if interval is None else (interval[0] / count, interval[1] / count)
    return LaunchRow(machine, str(params["operation"]), seconds / count, ends)


# -- 01: bandwidth, and what has to be under way -----------------------------------------------------------------------------


def gpu_streams() -> tuple[Bandwidth, ...]:
    """Return curves of bandwidth of GPUs, all multiprocessors reading: your own CUDA GPU's, measured with CuPy, else those recorded."""
    where = devices.default()
    if where.torch_type == "cuda":
        with contextlib.suppress(MissingLibraryError):
            return (hierarchy.bandwidth(device=where, deadline=6.0),)
    found = (hierarchy.recorded_bandwidth(recording) for recording in recorded_gpus().values())
    return tuple(curve for curve in found if curve is not None)


@dataclass(frozen=True)
class UnderWayRow(Result):
    """Little's law for one processor and its main memory.

    Attributes
    ----------
    machine : str
    latency_seconds, bytes_per_second : float
        Of the largest working set, which no cache holds.
    workers : int
        Multiprocessors of a GPU; 1 for a core.
    threads : int
        That a multiprocessor keeps at hand; 1 for a core.
    badge : Badge
    """

    machine: str
    latency_seconds: float
    bytes_per_second: float
    workers: int
    threads: int
    badge: Badge

    @property
    def nbytes(self) -> float:
        """What has to be under way so that the memory is busy all the time."""
        return self.latency_seconds * self.bytes_per_second

    @property
    def bytes_a_thread(self) -> float:
        """What each thread that can be at hand has to have under way."""
        return self.nbytes / (self.workers * self.threads)


@dataclass(frozen=True)
class UnderWay(Result):
    """Latency times rate, of one core and of GPUs.

    Attributes
    ----------
    rows : tuple of UnderWayRow
        The core first.
    evidence : tuple of Evidence
        One a row.
    missing : str
        Why there is no GPU, where there is none.
    """

    rows: tuple[UnderWayRow, ...]
    evidence: tuple[Evidence, ...]
    missing: str = NOT_YET

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return f"<under way: {', '.join(f'{row.machine} {format_bytes(row.nbytes)}' for row in self.rows)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a processor, or that no GPU was recorded."""
        rows = [
            (f"{row.machine} ({row.badge})", format_seconds(row.latency_seconds), format_bytes_per_second(row.bytes_per_second),
             format_bytes(row.nbytes), _shares(row))
            for row in self.rows
        ]  # fmt: skip
        if all(row.workers == 1 for row in self.rows):
            rows.append((f"a GPU: {self.missing}", "", "", "", ""))
        return ("", "a load waits", "memory moves", "under way: the product", "that is"), rows

    def _repr_html_(self) -> str:
        return with_captions(self)


def _shares(row: UnderWayRow) -> str:
    if row.threads == 1:
        return f"{row.nbytes / _LINE_BYTES:.3g} lines of {_LINE_BYTES} bytes"
    each = row.bytes_a_thread
    return (
        f"{format_bytes(row.nbytes / row.workers)} on each of {row.workers} multiprocessors: {each:.3g} bytes "
        f"({each / _LOAD_BYTES:.2g} float32 loads) for each of its {row.threads:,} possible threads"
    )


def under_way(curve: Latency, stream: Bandwidth, gpus: Iterable[Latency] = (), streams: Iterable[Bandwidth] = ()) -> UnderWay:
    """Return what has to be under way to main memory by Little's law: for one core as you measured it, and for GPUs.

    Parameters
    ----------
    curve : Latency
        Of your CPU.
    stream : Bandwidth
        Of one of its cores.
    gpus : iterable of Latency
        As ``gpu_curves`` returned them.
    streams : iterable of Bandwidth
        As ``gpu_streams`` returned them; a GPU that lacks one of the two, or whose largest set a cache may hold, is left out.

    Raises
    ------
    InputError
        If these are no such curves.
    """
    far, flows = _given.items("under_way", "gpus", gpus), _given.items("under_way", "streams", streams)
    if not all(isinstance(one, Latency) for one in (curve, *far)) or not all(isinstance(one, Bandwidth) for one in (stream, *flows)):
        raise InputError(
            "under_way: expected a curve of latency, one of bandwidth, and those of GPUs. "
            "Pass gl.lessons.memory_curve(), gl.hierarchy.bandwidth(), gl.lessons.gpu_curves() and gl.lessons.gpu_streams()."
        )
    rows, evidence = [_under_way(f"one core of {curve.device}", curve, stream, 1, 1)], [curve.evidence]
    missing = NOT_YET if not far else "its latency and its bandwidth, both beyond its caches, and its multiprocessors are needed"
    for one in far:
        flow = next((each for each in flows if _of_one_machine(one, each)), None)
        shape = _shape(one)
        if flow is not None and shape is not None and all(beyond_caches(c.points[-1].nbytes, c.reported) for c in (one, flow)):
            rows.append(_under_way(one.device, one, flow, *shape))
            evidence.append(one.evidence)
    return UnderWay(tuple(rows), tuple(evidence), missing)


def _of_one_machine(curve: Latency, stream: Bandwidth) -> bool:
    """Both measured here, at whatever second, or both of one recording."""
    if (curve.device, curve.evidence.badge) != (stream.device, stream.evidence.badge):
        return False
    return curve.evidence.badge is Badge.MEASURED or curve.environment == stream.environment


def _under_way(machine: str, curve: Latency, stream: Bandwidth, workers: int, threads: int) -> UnderWayRow:
    largest, flow = curve.points[-1], stream.points[-1]
    return UnderWayRow(machine, largest.median_seconds, flow.bytes_per_second, workers, threads, curve.evidence.badge)


def _shape(curve: Latency) -> tuple[int, int] | None:
    """Return the multiprocessors of a curve's GPU and the threads that one keeps at hand; None where nothing tells."""
    for recording in recorded_gpus().values():
        if recording.environment == curve.environment:
            return recorded_shape(recording)
    where = devices.default()
    gpu = devices.machine().accelerators[where.index or 0] if where.torch_type == "cuda" else None
    if gpu is None or not gpu.multiprocessors or not gpu.compute_capability:
        return None
    limits = limits_of(gpu.compute_capability)
    return None if limits is None else (gpu.multiprocessors, limits.warps * 32)


def recorded_shape(recording: Recording) -> tuple[int, int] | None:
    """Return the multiprocessors of a recorded GPU and the threads that one keeps at hand; None where the file does not tell."""
    gpu = accelerator_of(recording)
    limits = None if gpu is None else limits_of(str(gpu["compute_capability"]))
    return None if gpu is None or limits is None else (int(gpu["multiprocessors"]), limits.warps * 32)


def limits_of(compute_capability: str) -> models.SmLimits | None:
    """Return a multiprocessor's limits; None for one that is older, or newer, than those in the table."""
    return models.sm_limits(compute_capability) if compute_capability in models.compute_capabilities() else None


def accelerator_of(recording: Recording) -> Any:
    """Return what a recording tells of its GPU; None where it lacks the multiprocessors or the compute capability."""
    found = accelerator_told(recording)
    several, capability = found.get("multiprocessors"), found.get("compute_capability")
    return found if _given.is_whole(several) and several > 0 and isinstance(capability, str) and capability else None


# -- 04: the options of a rung ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning(Result):
    """One kernel compiled with several options, on recorded machines.

    Attributes
    ----------
    rung : str
    rows : tuple of (str, int, str, float, float)
        Machine, size, options, seconds, FLOP/s.
    evidence : tuple of Evidence
        Of each machine; empty where nothing is recorded yet.
    """

    rung: str
    rows: tuple[tuple[str, int, str, float, float], ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return f"<{self.rung}: {plural(len(self.rows), 'recorded setting')}>" if self.rows else f"<{self.rung}: {NOT_YET}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a setting; the fastest of each machine and size is marked."""
        headers = ("GPU (RECORDED)", "n", "options", "time", "rate", "")
        best = {(machine, n): min(row[3] for row in self.rows if row[:2] == (machine, n)) for machine, n, *_ in self.rows}
        rows = [
            (machine, f"{n:,}", options or "as it stands", format_seconds(seconds), format_flops_per_second(rate),
             "fastest" if seconds == best[machine, n] else "")
            for machine, n, options, seconds, rate in self.rows
        ]  # fmt: skip
        return headers, rows or [(NOT_YET, "", "", "", "", "")]

    def _repr_html_(self) -> str:
        return with_captions(self)


def tuning(rung: str = "matmul-warp-tiled") -> Tuning:
    """Return what recorded GPUs took for one rung of CUDA C++ with each of its options.

    Parameters
    ----------
    rung : str
        As the ladder names it.

    Raises
    ------
    InputError
        If the ladder has no such rung in CUDA C++.
    """
    from gpulab.kernels import ladder  # its kernels load numba

    rung = _given.word("tuning", "rung", rung, [one.name for one in ladder.CUDA_RUNGS])
    rows, evidence = [], []
    for name, recording in recorded_gpus().items():
        found = []
        for entry in sorted(recording.select("ladders", rung=rung), key=_by_size):
            timed = entry.timing
            if timed is not None and timed.flops and "options" in entry.params:
                found.append((name, int(entry.params["n"]), str(entry.params["options"]), timed.median_seconds,
                              timed.flops / timed.median_seconds))  # fmt: skip
        if found:
            rows += found
            evidence.append(recording.evidence())
    return Tuning(rung, tuple(rows), tuple(evidence))


def _by_size(entry: Entry) -> tuple[int, str]:
    return int(entry.params["n"]), str(entry.params.get("options", ""))
