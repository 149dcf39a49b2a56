"""A ladder's rungs side by side: what the microscope counts on any machine, and times where a GPU is here or was recorded."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab import devices
from gpulab.errors import GpulabError, MissingLibraryError
from gpulab.evidence import Evidence
from gpulab.kernels import CompiledModule, Simulation, compile_cuda, compile_python
from gpulab.lessons._recorded_gpus import recorded_gpus, with_captions
from gpulab.recorder import Case, experiments
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, format_seconds, plural
from gpulab.workloads._fits import free_bytes

if TYPE_CHECKING:
    from gpulab.kernels.ladder import Rung
    from gpulab.recordings import Recording

EXPERIMENT = "ladders"
_LIBRARY = "matmul-library"
_RUNG_SECONDS = 0.3
# Of a ladder's first rung, the slowest, which is launched some five times; the rungs after it are several times as fast.
_LONGEST_LAUNCH_SECONDS = 0.5
# Of the free memory: the page's earlier arrays are still there, and others may share the GPU.
_SHARE_OF_FREE = 0.25


@dataclass(frozen=True)
class Climb(Result):
    """One rung: counts where the microscope has them, seconds where a GPU gave them.

    Attributes
    ----------
    rung, summary : str
    simulation : Simulation or None
        None for CUDA C++, which the microscope does not read.
    seconds : float or None
        For one launch at the size of ``LadderTable.timed_n``.
    flops, nbytes : float
        Of that size: what has to be computed, and read and written at least once.
    """

    rung: str
    summary: str
    simulation: Simulation | None
    seconds: float | None
    flops: float
    nbytes: float


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
        Of the seconds; None while there are none.
    """

    family: str
    n: int
    timed_n: int
    rows: tuple[Climb, ...]
    evidence: Evidence
    times: Evidence | None

    def of(self, rung: str) -> Simulation:
        """Return what the microscope counted for a rung.

        Raises
        ------
        KeyError
            If the ladder has no such rung.
        """
        for row in self.rows:
            if row.rung == rung and row.simulation is not None:
                return row.simulation
        raise KeyError(rung)

    def __repr__(self) -> str:
        times = "times: not recorded yet" if self.times is None else f"times {self.times.badge} on {self.times.device}"
        return f"<ladder {self.family}: {plural(len(self.rows), 'rung')}, counted at n = {self.n}, {times}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a rung."""
        time = "time" if self.times is None else f"{self.times.badge}: time, n = {self.timed_n:,}"
        headers = ("rung", "what is new", "sectors a request", "moved", "shared wavefronts", "conflicts", "divergent branches", time)
        return headers, [self._cells(row) for row in self.rows]

    def _cells(self, row: Climb) -> tuple[str, ...]:
        time = "not recorded yet" if row.seconds is None else f"{format_seconds(row.seconds)}, {self._reached(row, row.seconds)}"
        name = row.rung.removeprefix(f"{self.family}-")
        if row.simulation is None:
            return name, row.summary, "", "", "", "", "", time
        t = row.simulation.totals
        ways = t.conflict_words
        sectors = f"{t.sectors_per_request:.1f}" if t.sectors_per_request is not None else ""
        return (name, row.summary, sectors, format_bytes(t.global_bytes_moved), f"{t.shared_wavefronts:,}" if ways else "", ways,
                f"{t.divergent_branches:,}", time)  # fmt: skip

    def _reached(self, row: Climb, seconds: float) -> str:
        """The rate that decides: of a matmul FLOPs, and the share of the library's rate; of the other ladders the bytes needed."""
        if self.family != "matmul":
            return format_bytes_per_second(row.nbytes / seconds)
        library = next((each.seconds for each in self.rows if each.rung == _LIBRARY), None)
        share = "" if library is None or row.rung == _LIBRARY else f", {100 * library / seconds:.3g} % of the library's"
        return format_flops_per_second(row.flops / seconds) + share

    def caption_of_times(self) -> str:
        """Return where the times are from."""
        if self.times is None:
            return "times: not recorded yet"
        badge, _, rest = self.times.sentence.partition(" ")
        return f"{badge} · the times: {rest}"

    def caption(self) -> str:
        """Return the evidence of the counts and of the times, a line for each."""
        return f"{self.evidence.sentence} · counted at n = {self.n:,}\n{self.caption_of_times()}"

    def _repr_html_(self) -> str:
        return with_captions(self)


def climb(family: str, n: int | None = None) -> LadderTable:
    """Run a ladder's kernels under the microscope, and time them where this machine has a GPU or a recorded one had them.

    Parameters
    ----------
    family : str
        One of ``gl.kernels.ladder.families()``.
    n : int, optional
        The size under the microscope; None takes the ladder's smallest.

    Returns
    -------
    LadderTable

    Raises
    ------
    InputError
        If there is no such ladder, or a rung does not take this size.
    """
    from gpulab.kernels import ladder  # its kernels load numba

    rungs = ladder.family(family)
    size = rungs[0].sizes[0] if n is None else n
    timed_n, seconds, times = _times(rungs[0])
    rows = [Climb(r.name, r.summary, r.simulate(size), seconds.get(r.name), r.flops(timed_n), r.nbytes(timed_n)) for r in rungs]
    if family == "matmul":
        rows += [Climb(r.name, r.summary, None, seconds.get(r.name), r.flops(timed_n), r.nbytes(timed_n)) for r in ladder.CUDA_RUNGS]
        work = rungs[0].flops(timed_n), rungs[0].nbytes(timed_n)
        rows.append(Climb(_LIBRARY, "the library's own", None, seconds.get(_LIBRARY), *work))
    counted = rows[0].simulation
    assert counted is not None
    return LadderTable(family, int(size), timed_n, tuple(rows), counted.evidence, times)


def _times(first: Rung) -> tuple[int, Mapping[str, float], Evidence | None]:
    """Return the size, the seconds by rung and their evidence: measured here, or recorded; none where there is neither.

    Both are of the largest size, of those recorded with the most rungs or of those that this GPU can do: starting a kernel hides what the
    rungs differ in at small ones.
    """
    family, sizes = first.family, first.sizes[1:]
    where = devices.default()
    if where.torch_type == "cuda" and importlib.util.find_spec("numba_cuda") is not None:
        found = _measured(first, where)
        if found[1]:  # empty where every rung was refused: numba-cuda is installed and cannot run beside this driver
            return found
    for recording in recorded_gpus().values():
        by_size = {n: _recorded_seconds(recording, family, n) for n in sizes}
        n = max(sizes, key=lambda size: (len(by_size[size]), size))
        if by_size[n]:
            return n, by_size[n], recording.evidence()
    return sizes[0], {}, None


def _recorded_seconds(recording: Recording, family: str, n: int) -> dict[str, float]:
    """Return the best time of each rung that was recorded at a size; a recording that was cut short may hold only the first of them."""
    best: dict[str, float] = {}
    for entry in recording.select(EXPERIMENT, family=family, n=n):
        if entry.timing is not None:
            name = str(entry.params["rung"])
            best[name] = min(entry.timing.median_seconds, best.get(name, math.inf))
    return best


def _measured(first: Rung, where: devices.Device) -> tuple[int, Mapping[str, float], Evidence | None]:
    """Time the rungs at the largest size that this GPU does while the learner waits; begin with the first rung, at the smallest."""
    (experiment,) = experiments([EXPERIMENT])
    cases = [case for case in experiment.cases(where) if case.params["family"] == first.family]
    trial = _timed(cases, first.sizes[1], only=first.name)
    n = _largest(first, trial.get(first.name, math.inf), where)
    best = _timed(cases, n)
    return n, best, Evidence.measured(where.name) if best else None


def _largest(first: Rung, seconds: float, where: devices.Device) -> int:
    """Return the largest size whose arrays fit and whose launch, by the one that took ``seconds`` at the smallest, is short enough.

    Time grows about as the larger of arithmetic and bytes (up to twice that where a cache held the smaller arrays), so nothing has to be
    run to know that it would be far too long.
    """
    _, smallest, *larger = first.sizes
    room = min((_SHARE_OF_FREE * free for free in map(free_bytes, (devices.Device("cpu"), where)) if free is not None), default=math.inf)
    for n in sorted(larger, reverse=True):
        growth = max(count(n) / count(smallest) for count in (first.flops, first.nbytes) if count(smallest))
        if growth * seconds <= _LONGEST_LAUNCH_SECONDS and first.nbytes(n) <= room:
            return n
    return smallest


def _timed(cases: Sequence[Case], n: int, only: str = "") -> dict[str, float]:
    """Return the seconds at one size by rung, the best of a rung's options."""
    best: dict[str, float] = {}
    for case in cases:
        rung = str(case.params["rung"])
        if case.params["n"] == n and only in ("", rung):
            try:
                seconds = case.time(_RUNG_SECONDS).median_seconds
            except GpulabError:  # one rung that this GPU refuses leaves its row empty; `make gpu-check` tells why
                continue
            best[rung] = min(seconds, best.get(rung, math.inf))
    return best


@dataclass(frozen=True)
class Uncompiled(Result):
    """What stands where a compiler is missing: no kernels, and the sentence that says how to get it."""

    sentence: str
    kernels: Mapping[str, float]
    evidence: Evidence

    def __repr__(self) -> str:
        return self.sentence

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the sentence."""
        return ("not compiled here",), [(self.sentence,)]


def compiled(source: Any, *args: Any, arch: str = "sm_90") -> CompiledModule | Uncompiled:
    """Compile CUDA C++ or a Python kernel for the facts; where the compiler is not installed, return the sentence that says so.

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
        return compile_python(source, *args, arch=arch) if callable(source) else compile_cuda(source, arch=arch)
    except MissingLibraryError as error:
        return Uncompiled(str(error), {}, Evidence.modelled("nothing: no compiler is here", "the compiler's own log, where there is one"))


@dataclass(frozen=True)
class Instructions(Result):
    """How often some instructions stand in machine code, or why that cannot be said here."""

    counts: Mapping[str, int]
    sentence: str
    evidence: Evidence

    def __repr__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.counts.items()) or self.sentence

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row an instruction."""
        if not self.counts:
            return ("not compiled here",), [(self.sentence,)]
        return ("instruction", "how often it stands in the code"), [(name, str(count)) for name, count in self.counts.items()]


def instructions(source: str, *names: str, arch: str = "sm_90") -> Instructions:
    """Count instructions in the machine code of CUDA C++, such as "FFMA" (a float32 product and sum) or "HMMA" (a Tensor Core's).

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
    evidence = Evidence.modelled(f"the code for {arch}, counted once however often it runs", "NVRTC and nvdisasm")
    try:
        code = compile_cuda(source, arch=arch).sass
    except MissingLibraryError as error:
        return Instructions({}, str(error), evidence)
    return Instructions({name: len(re.findall(rf"\b{re.escape(name)}\b", code)) for name in names}, "", evidence)
