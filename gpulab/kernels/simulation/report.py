"""The result of a simulation: counts by line, findings, and on request a trace of one block."""

from __future__ import annotations

import html
import operator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from gpulab.evidence import Evidence
from gpulab.kernels._arguments import Extent
from gpulab.results import Result, html_caption
from gpulab.units import plural

OTHER_FILE = 1_000_000  # added to the line numbers of a second file


@dataclass(frozen=True)
class Thread(Result):
    """A thread, as the kernel names it.

    Attributes
    ----------
    block, thread : (int, int, int)
        ``blockIdx`` and ``threadIdx``, x first. As text, dimensions that are 0 at the end are left
        out.

    Examples
    --------
    >>> print(Thread((3, 0, 0), (1, 2, 0)))
    thread (1, 2) of block 3
    """

    block: Extent
    thread: Extent

    def __str__(self) -> str:
        return f"thread {_short(self.thread)} of block {_short(self.block)}"


def _short(place: Extent) -> str:
    """Return an index without the dimensions that are 0 at its end."""
    last = max((axis for axis, part in enumerate(place) if part), default=0)
    return str(place[: last + 1] if last else place[0])


@dataclass(frozen=True)
class Finding(Result):
    """Something that is wrong with the kernel, or with how it was launched.

    Attributes
    ----------
    kind : str
        "race", "bounds", "barrier", "uninitialised", "shuffle" (a vote as well) or "exception".
    line : int
        The line of the kernel's file or cell. Lines of another file are numbered from 1,000,001
        on, as in ``Simulation.lines``.
    code : str
        The text of that line.
    array : str
        The array's name, or that of a variable that some lanes read without a value; "" where
        neither applies.
    index : tuple of int
        The first element affected: for "bounds" the index that the kernel gave, otherwise the
        number of the element in C order; () if there is none.
    threads : tuple of Thread
        The thread of the first case; for races, barriers and shuffles its two threads.
    count : int
        How many times it occurred, over all lanes.
    message : str
        What is wrong, and how to fix it.
    other_line : int or None
        For a race, the line of the earlier access.
    file : str
        The name of the line's file, if that is not the kernel's; "" otherwise.
    """

    schema_version: ClassVar[int] = 2

    kind: str
    line: int
    code: str
    array: str
    index: tuple[int, ...]
    threads: tuple[Thread, ...]
    count: int
    message: str
    other_line: int | None = None
    file: str = ""

    @property
    def place(self) -> str:
        """Return the line in words, with its file if that is not the kernel's."""
        return f"line {self.line % OTHER_FILE}" + (f" of {self.file}" if self.file else "")

    def again(self, count: int) -> Finding:
        """Return the finding with ``count`` more cases."""
        return replace(self, count=self.count + count)

    def __str__(self) -> str:
        who = " and ".join(str(thread) for thread in self.threads)
        return (
            f"{self.kind}, {self.place} `{self.code}`: {self.message} ({who}; "
            f"{plural(self.count, 'time')})."
        )


@dataclass(frozen=True)
class Counts(Result):
    """What a line, or a whole kernel, executed and moved.

    Attributes
    ----------
    executed_warps : int
        Statements executed, once for each warp that had an active lane.
    active_lanes : int
        The lanes that were active in them, summed; at most 32 times ``executed_warps``.
    branches, divergent_branches : int
        Tests of ``if``, ``while`` and ``for`` by warps, and those of them that sent lanes of one
        warp two ways.
    barriers : int
        Times that a block passed ``syncthreads``.
    global_requests : int
        Accesses to global memory by warps: loads, stores and atomics.
    global_sectors, ideal_global_sectors : int
        32-byte sectors that they touched, and the smallest number that would hold the bytes
        requested (equal addresses count once).
    global_bytes_requested : int
        Bytes that the lanes asked for; ``global_bytes_moved`` counts whole sectors.
    global_load_requests, global_load_sectors, global_store_requests, global_store_sectors : int
        The same for loads and for stores alone.
    shared_requests, shared_wavefronts, ideal_shared_wavefronts : int
        Accesses to shared memory by warps, the passes that they took, and the passes without bank
        conflicts.
    shared_bytes_requested : int
    atomic_requests : int
        Atomics among the requests.
    races : int
        Kinds of races found here.
    """

    executed_warps: int = 0
    active_lanes: int = 0
    branches: int = 0
    divergent_branches: int = 0
    barriers: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    ideal_global_sectors: int = 0
    global_bytes_requested: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    ideal_shared_wavefronts: int = 0
    shared_bytes_requested: int = 0
    atomic_requests: int = 0
    races: int = 0

    @property
    def global_bytes_moved(self) -> int:
        """Return the bytes of all sectors touched."""
        return 32 * self.global_sectors

    @property
    def sectors_per_request(self) -> float | None:
        """Return sectors per global request, or None without any."""
        return self.global_sectors / self.global_requests if self.global_requests else None

    @property
    def ideal_sectors_per_request(self) -> float | None:
        """Return the fewest sectors per global request, or None without any."""
        return self.ideal_global_sectors / self.global_requests if self.global_requests else None

    @property
    def conflict_ways(self) -> float | None:
        """Return the ratio of the wavefronts to those without bank conflicts: 1 without conflicts,
        at most 32; None without shared accesses.
        """
        return (
            self.shared_wavefronts / self.ideal_shared_wavefronts
            if self.ideal_shared_wavefronts
            else None
        )

    @property
    def conflict_words(self) -> str:
        """Return the conflict as tables show it: "2.5-way", "none" where no request had to wait, ""
        without shared accesses.
        """
        ways = self.conflict_ways
        return "" if ways is None else "none" if ways <= 1 else f"{ways:.1f}-way"

    @property
    def active_ratio(self) -> float | None:
        """Return the share of lanes that were active, 0 to 1; None where nothing was executed."""
        return self.active_lanes / (32 * self.executed_warps) if self.executed_warps else None

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class ArrayAccess(Result):
    """One kind of access to one array in one line: ``space`` is "global" or "shared", ``kind``
    "load", "store" or "atomic".
    """

    line: int
    array: str
    space: str
    kind: str
    requests: int = 0
    lanes: int = 0
    bytes_requested: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0


@dataclass(slots=True)
class StepAccess:
    """One access in a trace: the element of each lane of the block (an int64 array), -1 where the
    lane takes no part.
    """

    array: str
    space: str
    kind: str
    element_bytes: int
    elements: np.ndarray


@dataclass(slots=True)
class Step:
    """One statement in a trace of a block: its line, the active lanes of each warp as bits, and its
    accesses in order.
    """

    line: int
    active: tuple[int, ...]
    accesses: list[StepAccess] = field(default_factory=list)


@dataclass(frozen=True)
class Simulation(Result):
    """A kernel that ran as warps in lockstep: what it executed and moved, and what is wrong with
    it.

    Attributes
    ----------
    kernel : str
        Its name.
    grid, block : (int, int, int)
        Blocks and threads, x first.
    lines : dict of int to Counts
        By line of the kernel's file or cell, device functions included.
    accesses : tuple of ArrayAccess
        The memory accesses in full detail.
    findings : tuple of Finding
        Empty for a kernel in which nothing was found.
    shared_bytes : int
        Shared memory of a block, static and dynamic.
    source : dict of int to str
        The text of the lines, device functions included.
    evidence : Evidence
        Always MODELLED: the counts follow from rules, not from hardware.
    notes : tuple of str
        Remarks, such as code that the microscope accepts but a GPU's compiler would reject, or
        loops in which threads wait for others.
    trace : tuple of Step
        The statements of one block in order, where ``trace`` was asked for. Not kept in JSON.
    trace_cut : bool
        Whether the trace ends before the block does, after 100,000 statements.
    """

    kernel: str
    grid: Extent
    block: Extent
    lines: dict[int, Counts]
    accesses: tuple[ArrayAccess, ...]
    findings: tuple[Finding, ...]
    shared_bytes: int
    source: dict[int, str]
    evidence: Evidence
    notes: tuple[str, ...] = ()
    trace: Any = field(default=(), compare=False, repr=False)
    trace_cut: bool = False

    @property
    def totals(self) -> Counts:
        """Return the sum over all lines."""
        return sum(self.lines.values(), Counts())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without the trace."""
        return Result.to_dict(replace(self, trace=None) if self.trace else self)

    def __repr__(self) -> str:
        t = self.totals
        found = ", ".join(sorted({f.kind for f in self.findings})) or "nothing"
        return (
            f"<Simulation {self.kernel} {self.grid}x{self.block}: "
            f"{plural(t.global_requests, 'global request')}, {plural(t.global_sectors, 'sector')}, "
            f"{plural(t.shared_wavefronts, 'wavefront')}, "
            f"{plural(t.divergent_branches, 'divergent branch', 'divergent branches')}; found: "
            f"{found}; MODELLED>"
        )

    def _repr_html_(self) -> str:
        """Return the listing in lines that are not wrapped, with the evidence below it as under
        every table.
        """
        lines = html.escape("\n".join(self._lines()))
        return (
            "<pre "
            f'style="margin:0;white-space:pre;overflow-x:auto">{lines}</pre><div>{html_caption(str(self.evidence))}</div>'
        )

    def listing(self) -> str:
        """Return the source with its counts beside it, and the findings."""
        return "\n".join([*self._lines(), str(self.evidence)])

    def _lines(self) -> list[str]:
        rows = [f"{'lanes':>6s} {'diverged':>9s} {'sectors/req':>11s} {'conflicts':>9s}"]
        for number, text in self.source.items():
            counts = self.lines.get(number)
            if counts is None or not counts.executed_warps:
                rows.append(f"{'':38s} {number:4d}  {text}")
                continue
            lanes = f"{counts.active_ratio:.0%}"
            diverged = f"{counts.divergent_branches:,}" if counts.branches else ""
            sectors = f"{counts.sectors_per_request:.1f}" if counts.global_requests else ""
            rows.append(
                f"{lanes:>6s} {diverged:>9s} {sectors:>11s} {counts.conflict_words:>9s} "
                f"{number:4d}  {text}"
            )
        return [*rows, *map(str, self.findings), *self.notes]
