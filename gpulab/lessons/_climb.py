"""The rungs of a kernel ladder side by side: counts, and times from a GPU or a recording."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulab import _validate, devices, recordings
from gpulab.errors import GpulabError, MissingLibraryError
from gpulab.evidence import Evidence
from gpulab.kernels import CompiledModule, Simulation, compile_cuda, compile_python
from gpulab.lessons._material import Listing
from gpulab.recorder import Case, experiments
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
    from gpulab.recordings import Timing

EXPERIMENT = "ladders"
_LIBRARY = "matmul-library"
_RUNG_SECONDS = 0.3
# The limit for a ladder's first rung, the slowest. A rung is launched some five times, and the
# later rungs are several times as fast.
_LONGEST_LAUNCH_SECONDS = 0.5
# The share of the free memory that arrays may take: the page's earlier arrays are still there, and
# others may share the GPU.
_SHARE_OF_FREE = 0.25
# Codes of notes that cast doubt on a recorded or measured time; they are shown beside it.
_SHOWN_NOTES = ("throttled", "unstable", "contended", "no-interval")


def _of(simulation: Simulation, kind: str, space: str = "global") -> list[Any]:
    return [a for a in simulation.accesses if (a.space, a.kind) == (space, kind)]


def _mean(space: str, kind: str, what: str) -> Callable[[Simulation], str]:
    """Return a function that gives the mean of the count ``what`` over the requests of one
    ``kind``, "load" or "store", to one memory space.
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


def climb(family: str, n: int | None = None, rungs: Sequence[str] = ()) -> Listing:
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
    Listing
        A row for each rung: the counts in which the rungs differ, and the time with its rate, in
        FLOP/s for a matrix product and in bytes per second for other ladders.

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
    # the microscope does not read CUDA C++
    counted = [None if one.source else one.simulate(size) for one in chosen]
    counts = _COLUMNS.get(family, ()) if any(counted) else ()
    rows = [
        (
            one.name.removeprefix(f"{family}-"),
            one.summary,
            *("" if simulation is None else _COUNTS[name](simulation) for name in counts),
            _time(one, timed_n, found),
        )
        for one, simulation in zip(chosen, counted, strict=True)
    ]
    if family == "matmul":
        library = dataclasses.replace(first, name=_LIBRARY)
        time = _time(library, timed_n, found)
        rows.append(("library", "the library's own, in float32", *[""] * len(counts), time))
    title, heading = f"ladder {family}: {plural(len(rows), 'rung')}", "time"
    sources = [("", each.evidence) for each in counted if each is not None][:1]
    if times is not None:
        title += f", times {times.badge} on {times.device}"
        heading = f"{times.badge}: time, n = {timed_n:,}"
        sources.append(("the times", times))
    headers = "rung", "what is new", *(f"{name}, n = {size:,}" for name in counts), heading
    return Listing(title, headers, tuple(rows), (), tuple(sources))


def _time(rung: Any, n: int, found: Mapping[str, Timing]) -> str:
    """Return the time of a rung at a size with its rate. For a matrix product, that is FLOP/s, with
    the share of the library's rate. For other ladders, it is bytes per second, counting the bytes
    that must be read and written at least once.
    """
    timing, library = found.get(rung.name), found.get(_LIBRARY)
    if timing is None:
        return "not timed"
    seconds = timing.median_seconds
    rate = format_bytes_per_second(rung.nbytes(n) / seconds)
    if rung.name.startswith("matmul"):
        rate = format_flops_per_second(rung.flops(n) / seconds)
        if library is not None and library is not timing:
            rate += f", {100 * library.median_seconds / seconds:.3g} % of the library's"
    codes = {note.code for note in timing.notes}
    notes = ", ".join(code for code in _SHOWN_NOTES if code in codes)
    return f"{format_seconds(seconds)}, {rate}{f' ({notes})' if notes else ''}"


def _times(first: Rung, wanted: Collection[str]) -> tuple[int, Mapping[str, Any], Evidence | None]:
    """Return the size, the timings by rung and their evidence. The wanted rungs are measured on
    this machine's GPU, or else all rungs are taken from a recording. If there is neither, there are
    no timings and no evidence.

    The size is the largest that this GPU can do, or the largest of those that were recorded with
    the most rungs. At small sizes, the time to start a kernel hides the differences between rungs.
    """
    family, sizes = first.family, first.sizes[1:]
    where = devices.default()
    if where.torch_type == "cuda" and importlib.util.find_spec("numba_cuda") is not None:
        found = _measured(first, wanted, where)
        # empty if every rung was refused: numba-cuda is installed but does not work with this
        # driver
        if found[1]:
            return found
    for recording in recordings.of_accelerators().values():
        # each rung with its default settings; a recording that was cut short may lack the later
        # rungs
        by_size = {
            n: {
                str(entry.params["rung"]): entry.timing
                for entry in recording.select(EXPERIMENT, family=family, n=n)
                if entry.timing is not None and not entry.params.get("options")
            }
            for n in sizes
        }
        n = max(sizes, key=lambda size: (len(by_size[size]), size))
        if by_size[n]:
            return n, by_size[n], recording.evidence(experiment=EXPERIMENT, family=family)
    return sizes[0], {}, None


def _measured(
    first: Rung, wanted: Collection[str], where: devices.Device
) -> tuple[int, Mapping[str, Any], Evidence | None]:
    """Time the wanted rungs at the largest size for which a learner need not wait long. To estimate
    that size, time the ladder's first rung at the smallest size.
    """
    (experiment,) = experiments([EXPERIMENT])
    cases = [case for case in experiment.cases(where) if case.params["family"] == first.family]
    trial = _timed(cases, first.sizes[1], {first.name})
    n = _largest(first, trial[first.name].median_seconds if trial else math.inf, where)
    found = _timed(cases, n, wanted)
    return n, found, Evidence.measured(where.name) if found else None


def _largest(first: Rung, seconds: float, where: devices.Device) -> int:
    """Return the largest size whose arrays fit into memory and whose launch is short enough, as
    estimated from a launch that took ``seconds`` at the smallest size.

    The time grows about as the arithmetic or the bytes, whichever grows more (up to twice as much
    if the smaller arrays fit into a cache). So a size that would take far too long is never run.
    """
    _, smallest, *larger = first.sizes
    room = _SHARE_OF_FREE * min(map(free_bytes, (devices.Device("cpu"), where)))
    for n in sorted(larger, reverse=True):
        growth = max(
            count(n) / count(smallest) for count in (first.flops, first.nbytes) if count(smallest)
        )
        if growth * seconds <= _LONGEST_LAUNCH_SECONDS and first.nbytes(n) <= room:
            return n
    return smallest


def _timed(cases: Sequence[Case], n: int, wanted: Collection[str]) -> dict[str, Any]:
    """Return the timings of the wanted rungs at one size, each with its default settings."""
    found: dict[str, Any] = {}
    for case in cases:
        rung = str(case.params["rung"])
        if case.params["n"] == n and rung in wanted and not case.params.get("options"):
            # one rung that this GPU refuses leaves its row empty; `make gpu-check` says why
            with contextlib.suppress(GpulabError):
                found[rung] = case.time(_RUNG_SECONDS)
    return found


def compiled(source: Any, *args: Any, arch: str = "sm_90") -> CompiledModule:
    """Compile CUDA C++ or a Python kernel to get its facts; without a compiler, return a module
    without kernels and with a warning that says so.

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
        return CompiledModule(
            arch,
            language="Python" if callable(source) else "CUDA C++",
            source="" if callable(source) else source,
            options=(),
            names=(),
            kernels={},
            ptx="",
            cubin_base64="",
            log="",
            warnings=(str(error),),
            compiler="",
            evidence=Evidence.modelled(
                "nothing: no compiler is installed", "the compiler's own log, if available"
            ),
        )
