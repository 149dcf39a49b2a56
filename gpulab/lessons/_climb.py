"""The rungs of a kernel ladder side by side: counts, and times from a GPU or a recording."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab import _validate, devices
from gpulab.errors import GpulabError, MissingLibraryError
from gpulab.evidence import Evidence
from gpulab.kernels import CompiledModule, Simulation, compile_cuda, compile_python
from gpulab.lessons._material import NOT_YET, badge_line, recorded_gpus, with_captions
from gpulab.recorder import Case, experiments
from gpulab.results import Result
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_seconds,
    plural,
)
from gpulab.workloads import free_bytes

if TYPE_CHECKING:
    from gpulab.kernels.ladder import Rung
    from gpulab.recordings import Recording

EXPERIMENT = "ladders"
_LIBRARY = "matmul-library"
# Rungs that earlier recordings name otherwise.
_FORMER_NAMES = {"matmul-vectorised": "matmul-vectorized"}
_RUNG_SECONDS = 0.3
# Of a ladder's first rung, the slowest, which is launched some five times; the rungs after it are
# several times as fast.
_LONGEST_LAUNCH_SECONDS = 0.5
# Of the free memory: the page's earlier arrays are still there, and others may share the GPU.
_SHARE_OF_FREE = 0.25
# What makes a recorded or measured time worth a second look; shown beside it.
_SHOWN_NOTES = ("throttled", "unstable", "contended", "no-interval")


def _of(simulation: Simulation, kind: str, space: str = "global") -> list[Any]:
    return [a for a in simulation.accesses if (a.space, a.kind) == (space, kind)]


def _mean(space: str, kind: str, what: str) -> Callable[[Simulation], str]:
    """Return what gives the mean of a count over the requests of one kind, loads and stores
    apart.
    """

    def words(simulation: Simulation) -> str:
        found = _of(simulation, kind, space)
        requests = sum(a.requests for a in found)
        return f"{sum(getattr(a, what) for a in found) / requests:.3g}" if requests else ""

    return words


_COUNTS: Mapping[str, Callable[[Simulation], str]] = {
    "sectors a load": _mean("global", "load", "sectors"),
    "sectors a store": _mean("global", "store", "sectors"),
    "wavefronts a shared load": _mean("shared", "load", "wavefronts"),
    "wavefronts a shared store": _mean("shared", "store", "wavefronts"),
    "divergent branches": lambda s: f"{s.totals.divergent_branches:,}",
    "atomics on global memory": lambda s: f"{sum(a.requests for a in _of(s, 'atomic')):,}",
    "moved": lambda s: format_bytes(s.totals.global_bytes_moved),
    "shared wavefronts": lambda s: f"{s.totals.shared_wavefronts:,}",
}
# The counts in which a ladder's rungs differ; the others are in each rung's own simulation.
_COLUMNS = {
    "elementwise": ("sectors a load", "sectors a store"),
    "reduction": ("divergent branches", "wavefronts a shared load"),
    "transpose": (
        "sectors a load",
        "sectors a store",
        "wavefronts a shared load",
        "wavefronts a shared store",
    ),
    "histogram": ("atomics on global memory",),
    "softmax": ("moved",),
    "matmul": ("moved", "shared wavefronts"),
}


@dataclass(frozen=True)
class Climb(Result):
    """One rung: counts of the microscope and times of a GPU, as far as they are available.

    Attributes
    ----------
    rung, summary : str
    simulation : Simulation or None
        None for CUDA C++, which the microscope does not read.
    seconds : float or None
        For one launch at the size of ``LadderTable.timed_n``.
    flops, nbytes : float
        For that size: the FLOP to compute, and the bytes to read and write at least once.
    notes : tuple of str
        Codes of the time's notes that say why it may be wrong, such as "throttled".
    """

    rung: str
    summary: str
    simulation: Simulation | None
    seconds: float | None
    flops: float
    nbytes: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LadderTable(Result):
    """A ladder's rungs side by side.

    Attributes
    ----------
    family : str
    n, timed_n : int
        The size under the microscope, and on the GPU.
    rows : tuple of Climb
    evidence : Evidence
        Of the counts.
    times : Evidence or None
        Of the seconds; None if there are none.
    """

    family: str
    n: int
    timed_n: int
    rows: tuple[Climb, ...]
    evidence: Evidence
    times: Evidence | None

    def __repr__(self) -> str:
        times = (
            "times: not recorded yet"
            if self.times is None
            else f"times {self.times.badge} on {self.times.device}"
        )
        return (
            f"<ladder {self.family}: {plural(len(self.rows), 'rung')}, counted at n = {self.n}, "
            f"{times}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per rung, with the counts that differ between the rungs."""
        counted = any(row.simulation is not None for row in self.rows)
        counts = _COLUMNS.get(self.family, ()) if counted else ()
        time = "time" if self.times is None else f"{self.times.badge}: time, n = {self.timed_n:,}"
        rows = []
        for row in self.rows:
            sizes = ("" if row.simulation is None else _COUNTS[c](row.simulation) for c in counts)
            name = row.rung.removeprefix(f"{self.family}-")
            rows.append((name, row.summary, *sizes, self._time(row)))
        return ("rung", "what is new", *(f"{c}, n = {self.n:,}" for c in counts), time), rows

    def _time(self, row: Climb) -> str:
        if row.seconds is None:
            return NOT_YET
        notes = f" ({', '.join(row.notes)})" if row.notes else ""
        return f"{format_seconds(row.seconds)}, {self._reached(row, row.seconds)}{notes}"

    def _reached(self, row: Climb, seconds: float) -> str:
        """The rate that decides: of a matmul FLOPs, and the share of the library's rate; of the
        other ladders the bytes needed.
        """
        if self.family != "matmul":
            return format_bytes_per_second(row.nbytes / seconds)
        library = next((each.seconds for each in self.rows if each.rung == _LIBRARY), None)
        share = (
            ""
            if library is None or row.rung == _LIBRARY
            else f", {100 * library / seconds:.3g} % of the library's"
        )
        return format_flops_per_second(row.flops / seconds) + share

    def caption(self) -> str:
        """Return the evidence of the counts and of the times, one line each."""
        times = "times: not recorded yet"
        if self.times is not None:
            times = badge_line(self.times, "the times")
        if all(row.simulation is None for row in self.rows):
            return times
        return f"{self.evidence.sentence} · counted at n = {self.n:,}\n{times}"

    def _repr_html_(self) -> str:
        return with_captions(self)


def climb(family: str, n: int | None = None, rungs: Sequence[str] = ()) -> LadderTable:
    """Run a ladder's kernels in the microscope, with times from this machine's GPU, or from a
    recorded one.

    Parameters
    ----------
    family : str
        One of ``gl.kernels.ladder.families()``.
    n : int, optional
        The size under the microscope; None takes the ladder's smallest.
    rungs : sequence of str
        Only these, by their names in the table ("tiled"); all by default. The library's product
        stays in the table for comparison.

    Returns
    -------
    LadderTable

    Raises
    ------
    InputError
        If there is no such ladder or rung, or a rung does not take this size.

    Notes
    -----
    A time is that of the rung's source with its default settings.
    """
    from gpulab.kernels import ladder  # its kernels load numba

    whole = ladder.family(family)
    every: list[Any] = [*whole, *(ladder.CUDA_RUNGS if family == "matmul" else ())]
    short = {one.name.removeprefix(f"{family}-"): one for one in every}
    chosen = [
        short[_validate.word("climb", "rungs", name, list(short))]
        for name in _validate.items("climb", "rungs", rungs) or short
    ]
    first = whole[0]
    size = first.sizes[0] if n is None else n
    timed_n, found, times = _times(first, {_LIBRARY, *(one.name for one in chosen)})

    def row(name: str, summary: str, simulation: Simulation | None, rung: Any) -> Climb:
        timing = found.get(name)
        codes = () if timing is None else {note.code for note in timing.notes}
        return Climb(
            name,
            summary,
            simulation,
            None if timing is None else timing.median_seconds,
            rung.flops(timed_n),
            rung.nbytes(timed_n),
            tuple(code for code in _SHOWN_NOTES if code in codes),
        )

    rows = [
        row(one.name, one.summary, one.simulate(size) if hasattr(one, "simulate") else None, one)
        for one in chosen
    ]
    if family == "matmul":
        rows.append(row(_LIBRARY, "the library's own", None, first))
    counted = next((one.simulation.evidence for one in rows if one.simulation is not None), None)
    evidence = (
        counted
        or times
        or Evidence.modelled(
            "nothing: the microscope does not read CUDA C++", "no time is recorded yet"
        )
    )
    return LadderTable(family, int(size), timed_n, tuple(rows), evidence, times)


def _times(first: Rung, wanted: Collection[str]) -> tuple[int, Mapping[str, Any], Evidence | None]:
    """Return the size, the timings by rung and their evidence: measured here, of those wanted, or
    recorded; none where there is neither.

    Both are of the largest size, of those recorded with the most rungs or of those that this GPU
    can do: starting a kernel hides what the rungs differ in at small ones.
    """
    family, sizes = first.family, first.sizes[1:]
    where = devices.default()
    if where.torch_type == "cuda" and importlib.util.find_spec("numba_cuda") is not None:
        found = _measured(first, wanted, where)
        # empty where every rung was refused: numba-cuda is installed and cannot run beside this
        # driver
        if found[1]:
            return found
    for recording in recorded_gpus().values():
        by_size = {n: _recorded(recording, family, n) for n in sizes}
        n = max(sizes, key=lambda size: (len(by_size[size]), size))
        if by_size[n]:
            return n, by_size[n], recording.evidence(experiment="ladders")
    return sizes[0], {}, None


def _recorded(recording: Recording, family: str, n: int) -> dict[str, Any]:
    """Return the timing of each rung's source as it stands; a recording that was cut short may hold
    only the first of them.
    """
    return {
        _FORMER_NAMES.get(str(entry.params["rung"]), str(entry.params["rung"])): entry.timing
        for entry in recording.select(EXPERIMENT, family=family, n=n)
        if entry.timing is not None and not entry.params.get("options")
    }


def _measured(
    first: Rung, wanted: Collection[str], where: devices.Device
) -> tuple[int, Mapping[str, Any], Evidence | None]:
    """Time the wanted rungs at the largest size that this GPU does while the learner waits; begin
    with the ladder's first rung, at the smallest.
    """
    (experiment,) = experiments([EXPERIMENT])
    cases = [case for case in experiment.cases(where) if case.params["family"] == first.family]
    trial = _timed(cases, first.sizes[1], {first.name})
    n = _largest(first, trial[first.name].median_seconds if trial else math.inf, where)
    found = _timed(cases, n, wanted)
    return n, found, Evidence.measured(where.name) if found else None


def _largest(first: Rung, seconds: float, where: devices.Device) -> int:
    """Return the largest size whose arrays fit and whose launch, by the one that took ``seconds``
    at the smallest, is short enough.

    Time grows about as the larger of arithmetic and bytes (up to twice that where a cache held the
    smaller arrays), so nothing has to be run to know that it would be far too long.
    """
    _, smallest, *larger = first.sizes
    free = map(free_bytes, (devices.Device("cpu"), where))
    room = min((_SHARE_OF_FREE * each for each in free if each is not None), default=math.inf)
    for n in sorted(larger, reverse=True):
        growth = max(
            count(n) / count(smallest) for count in (first.flops, first.nbytes) if count(smallest)
        )
        if growth * seconds <= _LONGEST_LAUNCH_SECONDS and first.nbytes(n) <= room:
            return n
    return smallest


def _timed(cases: Sequence[Case], n: int, wanted: Collection[str]) -> dict[str, Any]:
    """Return the timings of the wanted rungs at one size, each of the source as it stands."""
    found: dict[str, Any] = {}
    for case in cases:
        rung = str(case.params["rung"])
        if case.params["n"] == n and rung in wanted and not case.params.get("options"):
            # one rung that this GPU refuses leaves its row empty; `make gpu-check` says why
            with contextlib.suppress(GpulabError):
                found[rung] = case.time(_RUNG_SECONDS)
    return found


@dataclass(frozen=True)
class Uncompiled(Result):
    """The result without a compiler: no kernels, and the sentence that says how to install it."""

    sentence: str
    kernels: Mapping[str, float]
    evidence: Evidence

    def __repr__(self) -> str:
        return self.sentence

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the sentence."""
        return ("not compiled here",), [(self.sentence,)]


def _uncompiled(error: MissingLibraryError) -> Uncompiled:
    evidence = Evidence.modelled(
        "nothing: no compiler is installed", "the compiler's own log, if available"
    )
    return Uncompiled(str(error), {}, evidence)


def compiled(source: Any, *args: Any, arch: str = "sm_90") -> CompiledModule | Uncompiled:
    """Compile CUDA C++ or a Python kernel to get its facts; without a compiler, return a result
    with a sentence that says so.

    Parameters
    ----------
    source : str or function
        As for ``gl.kernels.compile_cuda``, or ``gl.kernels.compile_python``.
    *args
        Examples of a Python kernel's arguments.
    arch : str

    Raises
    ------
    CompileError
        If the compiler refuses the source.
    InputError
        If an argument is not what it should be.
    """
    try:
        if callable(source):
            return compile_python(source, *args, arch=arch)
        return compile_cuda(source, arch=arch)
    except MissingLibraryError as error:
        return _uncompiled(error)


@dataclass(frozen=True)
class Instructions(Result):
    """The counts of some instructions in machine code."""

    columns = {
        "instruction": lambda pair: pair[0],
        "occurrences in the code": lambda pair: pair[1],
    }
    rows_from = "counts"

    counts: tuple[tuple[str, int], ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.counts)


def instructions(source: str, *names: str, arch: str = "sm_90") -> Instructions | Uncompiled:
    """Count instructions in the machine code of CUDA C++, such as "FFMA" (a float32 product and
    sum) or "HMMA" (a Tensor Core's).

    Parameters
    ----------
    source : str
    *names : str
        As NVIDIA's disassembler writes them.
    arch : str

    Raises
    ------
    CompileError
        If the compiler refuses the source.
    InputError
        If an argument is not what it should be.
    """
    try:
        code = compile_cuda(source, arch=arch).sass
    except MissingLibraryError as error:
        return _uncompiled(error)
    counts = ((name, len(re.findall(rf"\b{re.escape(name)}\b", code))) for name in names)
    evidence = Evidence.modelled(
        f"the code for {arch}, where each instruction counts once, however often it runs",
        "NVRTC and nvdisasm",
    )
    return Instructions(tuple(counts), evidence)
