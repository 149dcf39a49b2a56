"""A kernel and its launch in the SIMT microscope: counts by line, steps of one warp by lane, and
the kernels that the microscope offers.

``gpulab.models`` computes which lanes touch which sectors and banks; this module describes them in
words and as boxes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import inspect
import itertools
import linecache
import math
import pathlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import traitlets
from numpy.lib.array_utils import byte_bounds

from gpulab import kernels
from gpulab._validate import is_whole
from gpulab.errors import StoppedError, shown
from gpulab.figures import palette
from gpulab.kernels import Finding, Simulation
from gpulab.kernels.simulation.report import Counts, Step, StepAccess
from gpulab.lessons import content
from gpulab.models import AccessPattern, access_at
from gpulab.units import plural
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Control,
    Drawing,
    FollowingInstrument,
    Number,
    Panel,
    Progress,
    Stop,
    Values,
    script,
)

COLUMNS = (
    "line",
    "source",
    "active lanes",
    "divergent branches",
    "sectors / request (ideal)",
    "bank conflict",
    "requests",
)
_FIRST_VALUES = 8  # of each array


def show_source(simulation: Simulation) -> list[dict[str, Any]]:
    """Return the source's lines with their counts and findings for the panel, in the order of
    ``COLUMNS``.
    """
    return [
        {
            "line": number,
            "text": text,
            "cells": _cells(simulation.lines.get(number) or Counts()),
            "findings": [
                {"kind": finding.kind, "words": _in_words(finding)}
                for finding in simulation.findings
                if finding.line == number
            ],
        }
        for number, text in simulation.source.items()
    ]


def _in_words(finding: Finding) -> str:
    """Return what is wrong and which threads cause it, in one sentence."""
    who = " and ".join(str(thread) for thread in finding.threads)
    times = "once" if finding.count == 1 else f"{finding.count:,} times"
    return f"{finding.message[:1].upper()}{finding.message[1:]} ({who}; {times})."


def _cells(counts: Counts) -> list[dict[str, Any]]:
    """Return the counts of a line as texts, each with whether it deserves attention."""
    sectors, ideal = counts.sectors_per_request, counts.ideal_sectors_per_request
    ratio = counts.active_ratio
    spaces = ((counts.global_requests, "device"), (counts.shared_requests, "shared"))
    branches = f"{counts.divergent_branches:,} of {counts.branches:,}" if counts.branches else ""
    cells = [
        ("" if ratio is None else f"{ratio:.0%}", False),
        (branches, counts.divergent_branches > 0),
        (
            "" if sectors is None else f"{sectors:.1f} ({ideal:.1f})",
            counts.global_sectors > counts.ideal_global_sectors,
        ),
        (counts.conflict_words, counts.shared_wavefronts > counts.ideal_shared_wavefronts),
        ("\n".join(f"{n:,} {space}" for n, space in spaces if n), False),
    ]
    return [{"text": text, "look": look} for text, look in cells]


def _totals(simulation: Simulation) -> list[tuple[str, str, str]]:
    """Return the totals as rows of (what, count, what it means)."""
    t, lanes = simulation.totals, simulation.totals.active_ratio
    device = [
        (
            "device memory: sectors",
            f"{t.global_sectors:,}",
            f"of 32 bytes, in {plural(t.global_requests, 'request')}; ideal: "
            f"{t.ideal_global_sectors:,}",
        ),
        (
            "sectors / request",
            f"{t.sectors_per_request or 0:.2f}",
            f"ideal: {t.ideal_sectors_per_request or 0:.2f}",
        ),
        ("bytes moved", f"{t.global_bytes_moved:,}", f"{t.global_bytes_requested:,} requested"),
    ]
    shared = (
        "shared memory: wavefronts",
        f"{t.shared_wavefronts:,}",
        f"in {plural(t.shared_requests, 'request')}; ideal: {t.ideal_shared_wavefronts:,}",
    )
    others = [
        ("shared memory of a block", simulation.shared_bytes, "bytes"),
        ("atomics", t.atomic_requests, "of the requests above"),
        ("barriers", t.barriers, "barriers passed, summed over the blocks"),
    ]
    return [
        (
            "active lanes",
            "" if lanes is None else f"{lanes:.1%}",
            f"of 32, averaged over {t.executed_warps:,} statements executed by warps",
        ),
        (
            "divergent branches",
            f"{t.divergent_branches:,}",
            f"of {plural(t.branches, 'branch', 'branches')} executed by warps",
        ),
        *(device if t.global_requests else []),
        *([shared] if t.shared_requests else []),
        *((name, f"{count:,}", meaning) for name, count, meaning in others if count),
    ]


def table_of(
    simulation: Simulation, outputs: Mapping[str, np.ndarray]
) -> Sequence[tuple[str, str, str]]:
    """Return the findings, the totals and the first values of the arrays afterwards, as rows."""
    return [
        *((f"{f.kind}, {f.place}", f"{f.count:,}", _in_words(f)) for f in simulation.findings),
        *_totals(simulation),
        *((f"{name} afterwards", *_afterwards(array)) for name, array in outputs.items()),
    ]


def _afterwards(array: np.ndarray) -> tuple[str, str]:
    """Return the shape of an array and its first values."""
    values = array.reshape(-1)[:_FIRST_VALUES].tolist()
    texts = [f"{v:.6g}" if array.dtype.kind == "f" else str(v) for v in values]
    texts += ["..."] if array.size > _FIRST_VALUES else []
    return f"{array.dtype} {' x '.join(map(str, array.shape))}", ", ".join(texts)


def verdict(s: Simulation) -> str:
    """Return the findings in one sentence."""
    where = f"{s.kernel}, grid {s.grid}, block {s.block}"
    if not s.findings:
        return f"{where}: no race, no out-of-bounds access and no barrier error was found."
    places = Counter(f"{f.kind} in {f.place}" for f in s.findings)
    found = ", ".join(
        f"{place} ({count})" if count > 1 else place for place, count in places.items()
    )
    return f"{where}: {plural(len(s.findings), 'finding')}: {found}."


# The steps of a warp.

LANES = 32
_SECTOR_BYTES, _WORD_BYTES = 32, 4
_VERBS = {"load": "load from", "store": "store to", "atomic": "atomic on"}
_PARTS = {
    1: ("",),
    2: ("first half-warp", "second half-warp"),
    4: tuple(f"{n} quarter-warp" for n in ("first", "second", "third", "fourth")),
}


class Walk:
    """The steps of a traced block, by warp.

    Attributes
    ----------
    simulation : Simulation
        With its trace.
    outputs : mapping of str to ndarray
        The arrays after the kernel, by the names of its parameters.
    steps : list of ndarray
        The places in the trace at which each warp has an active lane, ascending.
    """

    def __init__(self, simulation: Simulation, outputs: Mapping[str, np.ndarray]) -> None:
        self.simulation, self.outputs = simulation, outputs
        active = np.array([step.active for step in simulation.trace], bool)
        warps = warps_of(simulation.block)
        self.steps = [np.flatnonzero(each) for each in active.reshape(-1, warps).T]

    def next_at(self, warp: int, step: int, line: int) -> int | None:
        """Return the next step (counted from 1) at which the warp executes a line. After the last
        such step, return the first; None if the warp never executes the line.
        """
        trace = self.simulation.trace
        places = enumerate(self.steps[warp], start=1)
        there = [k for k, place in places if trace[place].line == line]
        return next((k for k in there if k > step), there[0] if there else None)

    def show(self, warp: int, step: int) -> dict[str, Any]:
        """Return a step of a warp for the panel; ``step`` counts from 1."""
        places, trace = self.steps[warp], self.simulation.trace
        if not len(places):
            nothing = {"words": f"Warp {warp} executes nothing.", "step": 0, "steps": 0, "line": 0}
            return {**nothing, "lanes": [], "accesses": [], "lines": []}
        now = trace[places[step - 1]]
        lanes = [bool(now.active[warp] >> lane & 1) for lane in range(LANES)]
        exist = [warp * LANES + lane < math.prod(self.simulation.block) for lane in range(LANES)]
        return {
            "step": step,
            "steps": len(places),
            "line": now.line,
            "words": f"Warp {warp} at line {now.line}: {_lanes_in_words(lanes, exist)}.",
            "lanes": [
                {
                    "state": "on" if on else "off" if there else "none",
                    "title": _thread(warp * LANES + lane, self.simulation.block),
                }
                for lane, (on, there) in enumerate(zip(lanes, exist, strict=True))
            ],
            "accesses": self._accesses(now, warp, sum(lanes)),
            "lines": sorted({trace[place].line for place in places}),
        }

    def _accesses(self, step: Step, warp: int, active: int) -> list[dict[str, Any]]:
        outside = {(f.line, f.array) for f in self.simulation.findings if f.kind == "bounds"}
        shown = []
        for access in step.accesses:
            if (found := show_access(access, warp)) is None:
                continue
            shown.append(found)
            missing = active - sum(sum(part["lanes"]) for part in found["parts"])
            if missing and (step.line, access.array) in outside:
                does = "does" if missing == 1 else "do"
                found["words"] += (
                    f"; {missing} active {_lanes(missing)} {does} not take part: see the finding"
                )
                found["good"] = False
        return shown


def warps_of(block: Sequence[int]) -> int:
    """Return the warps of a block."""
    return -(-math.prod(block) // LANES)


def _thread(number: int, block: Sequence[int]) -> str:
    if number >= math.prod(block):
        return "no thread: the block ends before this lane"
    place = tuple(map(int, np.unravel_index(number, block, order="F")))
    axes = max((axis for axis, extent in enumerate(block) if extent > 1), default=0)
    return f"threadIdx {place[: axes + 1] if axes else place[0]}"


def _lanes_in_words(lanes: list[bool], exist: list[bool]) -> str:
    active, there = sum(lanes), sum(exist)
    missing = "" if there == LANES else f"; the block has no threads for the other {LANES - there}"
    if active == there:
        return f"all {there} {_lanes(there)} active{missing}"
    which = _ranges([k for k, on in enumerate(lanes) if on])
    return f"{active} of {there} lanes active ({which}), the others idle{missing}"


def _lanes(count: int) -> str:
    return "lane" if count == 1 else "lanes"


def _ranges(numbers: Sequence[int]) -> str:
    """Return lanes in words: "lanes 0 to 7, 16", "every second lane from 0 to 30"."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"every {_NTH.get(step, f'{step}th')} lane from {numbers[0]} to {numbers[-1]}"
    # consecutive numbers have the same distance from their places in the list
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{_lanes(len(numbers))} {', '.join(words)}"


_NTH = {2: "second", 3: "third"}  # the step between 3 lanes or more of a warp is at most 15


# One access of one warp.


def show_access(access: StepAccess, warp: int) -> dict[str, Any] | None:
    """Return an access of a step for the panel: its words, and the boxes that its lanes touch; None
    where the warp takes no part.
    """
    elements = np.asarray(access.elements[warp * LANES : (warp + 1) * LANES], np.int64)
    active = elements >= 0
    if not active.any():
        return None
    size = access.element_bytes
    pattern = access_at(np.where(active, elements * size, 0), size, active)
    shared = access.space == "shared"
    words, good = _banks_in_words(pattern) if shared else _sectors_in_words(pattern)
    together = max(Counter(elements[active].tolist()).values())
    if access.kind == "atomic" and together > 1:
        words += f"; up to {together} lanes update the same element, one after the other"
    space = "shared memory" if shared else "device memory"
    return {
        "title": f"{_VERBS[access.kind]} {access.array}, {plural(size, 'byte')} a lane, {space}",
        "words": words,
        "good": good,
        "kind": "banks" if shared else "sectors",
        "parts": _bank_parts(pattern)
        if shared
        else [
            {
                "title": "",
                "lanes": list(pattern.active),
                "columns": _sector_columns(pattern, elements),
            }
        ],
    }


def _sectors_in_words(pattern: AccessPattern) -> tuple[str, bool]:
    """Return the count in words, and whether it is ideal: no smaller number of sectors could hold
    the requested bytes (the rule of the simulation's counts).
    """
    lanes, sectors = plural(sum(pattern.active), "lane"), plural(pattern.sectors, "sector")
    ideal = min(pattern.sectors, math.ceil(pattern.bytes_asked / _SECTOR_BYTES))
    if pattern.sectors == ideal:
        return f"{lanes}, {sectors}: ideal", True
    return f"{lanes}, {sectors}; ideal: {ideal}", False


def _banks_in_words(pattern: AccessPattern) -> tuple[str, bool]:
    """Return the conflicts in words, and whether there are none."""
    lanes, ways = sum(pattern.active), pattern.conflict_ways
    passes = plural(pattern.wavefronts, "wavefront")
    if ways <= 1:
        words = {a for a, on in zip(pattern.addresses, pattern.active, strict=True) if on}
        broadcast = "one word for all, a broadcast, " if lanes > 1 and len(words) == 1 else ""
        return f"{plural(lanes, 'lane')}, {passes}: {broadcast}no conflict", True
    worst = {
        bank
        for part in range(pattern.passes)
        for bank, found in pattern.bank_lanes(part).items()
        if len(found) == ways
    }
    also = f" and {plural(len(worst) - 1, 'other bank')}" if len(worst) > 1 else ""
    conflict = f"bank {min(worst)}{also}: {ways} words{' each' * bool(also)}, {ways}-way conflict"
    return f"{conflict}; {passes} instead of {pattern.ideal_wavefronts}", False


def _sector_columns(pattern: AccessPattern, elements: np.ndarray) -> list[dict[str, Any]]:
    """Return a column for each sector, ascending; its cells are the elements in it, each with the
    lanes that touch it.
    """
    size = pattern.element_bytes
    each = _SECTOR_BYTES // size
    sectors = list(pattern.sector_lanes())
    return [
        {
            "label": str(sector * each),
            "gap": place > 0 and sector != sectors[place - 1] + 1,
            "cells": [
                {"label": str(element), "lanes": np.flatnonzero(elements == element).tolist()}
                for element in range(sector * each, (sector + 1) * each)
            ],
            "title": f"sector of elements {sector * each} to {(sector + 1) * each - 1}",
        }
        for place, sector in enumerate(sectors)
    ]


def _bank_parts(pattern: AccessPattern) -> list[dict[str, Any]]:
    """Return 32 columns, one per bank, for each part of the warp that is served separately. The
    cells are the words, each with its lanes.
    """
    parts = [
        {
            "title": title,
            "lanes": [on and pattern.pass_of(lane) == k for lane, on in enumerate(pattern.active)],
            "columns": [
                {
                    "label": str(bank),
                    "gap": False,
                    "title": f"bank {bank}",
                    "cells": [
                        {"label": _word_in_words(word, pattern.element_bytes), "lanes": list(who)}
                        for word, who in pattern.bank_lanes(k).get(bank, {}).items()
                    ],
                }
                for bank in range(LANES)
            ],
        }
        for k, title in enumerate(_PARTS[pattern.passes])
    ]
    return [part for part in parts if any(part["lanes"])]


def _word_in_words(word: int, size: int) -> str:
    first, count = word * _WORD_BYTES // size, _WORD_BYTES // size
    return f"elements {first} to {first + count - 1}" if count > 1 else f"element {first}"


# A kernel with its launch.


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its launch.

    Attributes
    ----------
    kernel : callable
        As ``gpulab.kernels.simulate`` takes it.
    grid, block : int or tuple of int
    arguments : tuple
        Arrays and numbers.
    dynamic_shared_bytes : int
    """

    kernel: Any
    grid: Any
    block: Any
    arguments: tuple[Any, ...]
    dynamic_shared_bytes: int = 0

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(getattr(_function(self.kernel), "__name__", None) or shown(self.kernel))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters; empty if the kernel is not a function."""
        code = getattr(_function(self.kernel), "__code__", None)
        return () if code is None else tuple(code.co_varnames[: code.co_argcount])

    def newest(self) -> Launch:
        """Return the launch with the current function of the kernel's name, since its cell may have
        been run again.
        """
        function = _function(self.kernel)
        name = getattr(function, "__qualname__", "")
        now = getattr(function, "__globals__", {}).get(name, self.kernel)
        if now is self.kernel or not hasattr(_function(now), "__code__"):
            return self
        return dataclasses.replace(self, kernel=now)

    def code(self) -> str:
        """Return the call's arguments as source. An array becomes the variable that holds it, or
        else its parameter's name; a number becomes a literal.
        """
        # copied at once: a cell may define names while the work's thread reads them
        there = list(getattr(_function(self.kernel), "__globals__", {}).items())
        variables = {id(value): name for name, value in there if not name.startswith("_")}
        parameters = dict(enumerate(self.parameters))
        words = (
            variables.get(id(argument), parameters.get(k, f"argument{k}"))
            if getattr(argument, "ndim", 0)
            else shown(argument)
            for k, argument in enumerate(self.arguments)
        )
        return ", ".join([self.name, str(self.grid), str(self.block), *words])

    def copies(self) -> list[Any]:
        """Return the arguments with copies of the arrays: strides stay, and memory that several of
        them share stays shared.
        """
        arrays = [_host_array(argument) for argument in self.arguments]
        spans: list[tuple[int, int]] = []
        for low, high in sorted(byte_bounds(array) for array in arrays if array is not None):
            if spans and low < spans[-1][1]:
                spans[-1] = spans[-1][0], max(high, spans[-1][1])
            else:
                spans.append((low, high))
        made = {low: np.array(bytearray(ctypes.string_at(low, high - low))) for low, high in spans}
        copies = list(self.arguments)
        for k, array in enumerate(arrays):
            if array is not None:
                start = max(low for low in made if low <= byte_bounds(array)[0])
                place = array.ctypes.data - start
                copy = np.ndarray(array.shape, array.dtype, made[start], place, array.strides)
                copy.flags.writeable = array.flags.writeable
                copies[k] = copy
        return copies


def _function(kernel: Any) -> Any:
    """Return the Python function behind a kernel, which may be wrapped by a compiler's
    decorator.
    """
    return getattr(kernel, "py_func", kernel)


def _host_array(argument: Any) -> np.ndarray | None:
    """Return an argument's array in main memory, or None."""
    if hasattr(argument, "detach"):  # a tensor of PyTorch, or a parameter
        try:
            argument = argument.detach().cpu().numpy()
        except (TypeError, RuntimeError):  # NumPy cannot hold it: simulate refuses it
            return None
    return argument if isinstance(argument, np.ndarray) and not argument.dtype.hasobject else None


def _count(extent: Any) -> int:
    """Return the blocks of a grid or the threads of a block; 1 for an invalid extent (``simulate``
    then reports what is wrong with it).
    """
    parts = extent if isinstance(extent, (tuple, list)) else (extent,)
    is_extent = all(is_whole(part) and 0 < part < 2**31 for part in parts)
    return math.prod(map(int, parts)) if is_extent else 1


# The microscope's own kernels, whose cells are the files of ``course/04/microscope``.

# The kernel's name, which is also that of its file -> its label in the list of choices, its grid
# and its block.
EXAMPLES: Mapping[str, tuple[str, Any, Any]] = {
    "vector_add": ("vector add, with its guard", 4, 32),
    "vector_add_unguarded": ("vector add, without the guard", 4, 32),
    "odd_and_even": ("odd and even lanes diverge", 2, 64),
    "strided_copy": ("copy with a stride of 8", 2, 64),
    "transpose_naive": ("transpose, naive", (2, 2), (32, 32)),
    "transpose_tiled": ("transpose, tiled", (2, 2), (32, 32)),
    "transpose_padded": ("transpose, tiled and padded", (2, 2), (32, 32)),
    "block_sum": ("block sum", 2, 128),
    "block_sum_no_barrier": ("block sum, a barrier missing", 2, 128),
}


def example_cell(name: str) -> str:
    """Return the text of the notebook cell that defines an example and its arguments."""
    return (content.COURSE / "04" / "microscope" / f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def example_launch(name: str) -> Launch:
    """Return an example with its launch; its arrays are shared, as each run works on copies.

    Its cell is run as a learner would run it, so the line numbers in the microscope are those of
    the cell that "Show the code" prints.
    """
    cell, file, names = example_cell(name), f"<{name}>", dict[str, Any]()
    exec(compile(cell, file, "exec"), names)
    # As IPython does for its cells: ``inspect`` finds the text here, and without a modification
    # time linecache never discards it.
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    arguments = tuple(names[word] for word in inspect.signature(names[name]).parameters)
    return Launch(names[name], *EXAMPLES[name][1:], arguments)


# The instrument.

_OWN = "own"
_COLORS = {
    "lane": palette.BLUISH_GREEN,
    "touched": palette.SKY_BLUE,
    "conflict": palette.ORANGE,
    "look": palette.VERMILLION,
    "guide": palette.GREY,
}


class MicroscopePanel(Panel):
    """The source with its counts, and the step of a warp: its lanes, and the sectors and banks that
    they touch.
    """

    _esm = script("simt_microscope.js")
    _css = (pathlib.Path(__file__).parent / "simt_microscope.css").read_text(encoding="utf-8")

    columns = traitlets.List(list(COLUMNS)).tag(sync=True)
    colors = traitlets.Dict(_COLORS).tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)  # names the table for a screen reader
    source: traitlets.List[Any] = traitlets.List().tag(sync=True)  # show_source()
    position = traitlets.Dict().tag(sync=True)  # Walk.show()


class SimtMicroscope(FollowingInstrument):
    """Run a kernel as warps in lockstep, and look at each line, each step, each lane.

    Parameters
    ----------
    kernel : callable or str, optional
        A kernel as ``gpulab.kernels.simulate`` takes it, or the name of one of the microscope's own
        (the keys of ``EXAMPLES``). By default the first of these is shown.
    grid, block : int or tuple of up to 3 int, optional
        Blocks of the grid and threads of a block; required for your own kernel.
    *args : ndarray or number
        The kernel's arguments. The microscope works on copies: your arrays do not change.
    dynamic_shared_bytes : int
        As for ``simulate``.
    **values
        Initial values of controls: ``block_number`` (the block that is followed), ``warp``,
        ``step`` (from 1).

    Notes
    -----
    Edit the kernel in its own cell and run that; then press Run here (or call ``run()``), which
    reads the newest function of that name.

    Examples
    --------
    >>> m = SimtMicroscope("transpose_tiled", step=6)
    >>> m.words[1].rpartition("; ")[2]
    '32 wavefronts instead of 1'
    """

    follows = "run"
    title = "SIMT microscope"
    summary = (
        "One kernel, warp by warp: what each line executes and moves, and which lanes, "
        "sectors and banks each step uses."
    )
    actions: tuple[Action, ...] = (
        Action(
            "run",
            "Run",
            "Read the kernel again and run it on fresh copies of its arrays.",
            measures=False,
        ),
    )

    # For a learner's own kernel: whether its name referred to it when it was passed, so that Run
    # may read the newest function of that name.
    _follows: bool

    def __init__(
        self,
        kernel: Any = None,
        grid: Any = None,
        block: Any = None,
        *args: Any,
        dynamic_shared_bytes: int = 0,
        **values: Any,
    ) -> None:
        self._own: Launch | None = None
        if isinstance(kernel, str):
            values = {"kernel": kernel, **values}
        elif kernel is not None:
            self._own = Launch(kernel, grid, block, args, dynamic_shared_bytes)
            self._follows = self._own.newest() is self._own
        self._microscope = MicroscopePanel()
        self._microscope.on_msg(self._on_message)
        self._again: object = None  # a new object for each request to run the same kernel again
        super().__init__(**values)
        self._microscope.open_now()
        self.children = (self._panel, self._microscope, self._results)
        self.run_if_wanted()

    # Controls.

    def make_controls(self) -> list[Control]:
        """Return the kernel, the block and the warp that are followed; the step has its own buttons
        below them.
        """
        own = [(_OWN, f"{self._own.name} (yours)")] if self._own else []
        edit = (
            "Edit your kernel in its own cell, run that cell, and press Run here."
            if self._own
            else "The code at the end is the kernel's cell: copy it, change it, and open it in "
            "the microscope as the last line shows."
        )
        blocks = _count(self.launch.grid) - 1
        # a larger block is refused by the simulation
        threads = min(_count(self.launch.block), 1024)
        return [
            Choice(
                name="kernel",
                label="Kernel",
                options=[*own, *((name, label) for name, (label, *_) in EXAMPLES.items())],
                help=edit,
            ),
            Number(
                name="block_number",
                label="Block",
                default=0,
                minimum=0,
                maximum=blocks,
                integer=True,
                help=f"The block to follow, 0 to {blocks:,}, where x varies fastest; the counts "
                "are summed over all blocks.",
            ),
            Choice(
                name="warp",
                label="Warp",
                options=[
                    (w, f"{w}: threads {LANES * w} to {min(LANES * w + LANES, threads) - 1}")
                    for w in range(warps_of((threads,)))
                ],
                help="The warp to follow: 32 threads with consecutive numbers.",
                shows_only=True,
            ),
            Number(
                name="step",
                label="Step",
                default=1,
                minimum=1,
                maximum=2**31,  # beyond the last one that is shown
                integer=True,
                shows_only=True,
                in_panel=False,  # it has its own slider below
            ),
        ]

    def changed(self, name: str) -> None:
        """Adjust the block and the warp to a new kernel, and the step to a new warp: it becomes the
        new warp's first step at or after the present moment of the block.
        """
        if name == "kernel":
            self.rebuild("block_number", "warp")
            self.values["step"] = 1
        elif name == "warp" and self._place is not None and self.wanted() == self._tried:
            steps = self.results["run"].steps[self._shown_warp]
            place = int(np.searchsorted(steps, self._place))
            self.values["step"] = max(1, min(place + 1, len(steps)))

    @property
    def _shown_warp(self) -> int:
        """The chosen warp, or the last one of the result if it has fewer: for a moment the controls
        of a new kernel are shown with the old result.
        """
        return min(int(self.values["warp"]), len(self.results["run"].steps) - 1)

    # For use from Python.

    @property
    def launch(self) -> Launch:
        """The kernel in the microscope, with its launch."""
        first = _OWN if self._own else next(iter(EXAMPLES))
        name = self.values.get("kernel", first)  # none before the controls are made
        return self._own if self._own and name == _OWN else example_launch(name)

    @property
    def result(self) -> Any:
        """The ``Simulation``, with the trace of the block; None if the run failed."""
        self.wait()
        return None if self._walk is None else self._walk.simulation

    @property
    def _walk(self) -> Walk | None:
        return self.results.get("run")

    @property
    def position(self) -> dict[str, Any]:
        """The picture as data: the warp's ``step`` and ``line``, how many ``steps`` it has, its
        ``lanes``, and the ``accesses`` of the step; empty if there is none.
        """
        self.wait()
        return dict(self._microscope.position)

    @property
    def words(self) -> list[str]:
        """A description of the picture: the lanes, then each access of the step."""
        position = self.position
        accesses = (f"{each['title']}: {each['words']}" for each in position.get("accesses", ()))
        return [position["words"], *accesses] if position else []

    @property
    def outputs(self) -> Mapping[str, np.ndarray]:
        """The arrays after the kernel, by the names of its parameters. They are copies; your arrays
        are unchanged.
        """
        self.wait()
        return {} if self._walk is None else self._walk.outputs

    # Runs start automatically: at first, and when another kernel or block is chosen.

    def run(self, action: str | None = None, wait: bool = False) -> None:
        """Read the kernel again and run it; a run in progress is restarted."""
        with self._lock:
            self._again = object()
            if self._own is not None and self._follows:
                self._own = self._own.newest()
            if not self.running or action not in (None, "run"):
                super().run(action)
        if wait:
            self.wait()

    def wanted(self) -> tuple[Launch, int, object]:
        """Return the kernel and the block to run."""
        return self.launch, self.values["block_number"], self._again

    # The work.

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Walk:
        """Run ``gl.kernels.simulate`` for the present controls; if they change meanwhile, start
        again.
        """
        result: Walk = self.work_on_newest(
            lambda wanted, ends: self._simulate(wanted[0], wanted[1], progress, ends), stop
        )
        return result

    def _simulate(self, launch: Launch, block_number: int, progress: Progress, stop: Stop) -> Walk:
        begun, name, reached = time.monotonic(), launch.name, 0.0

        def batch_done(share: float, words: str) -> None:
            nonlocal reached
            reached = share
            progress(share, f"{name}: {words}")

        def now_and_then() -> None:
            progress(reached, f"{name}: simulating for {time.monotonic() - begun:.0f} s")
            if stop():
                raise StoppedError(f"{name}: stopped; nothing was counted.")

        arguments = launch.copies()
        s = kernels.simulate(
            launch.kernel,
            launch.grid,
            launch.block,
            *arguments,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            trace=block_number,
            stop=now_and_then,
            progress=batch_done,
        )
        if stop():
            raise StoppedError(f"{name}: stopped.")
        both = zip(launch.parameters, arguments, strict=False)
        return Walk(s, {name: np.asarray(array) for name, array in both if np.ndim(array)})

    def ended(self, action: str) -> None:
        """Show the new result; the step is kept if it is still valid."""
        s = self.results[action].simulation
        label = f"Source of {s.kernel} with its counts"
        self._microscope.write(source=show_source(s), label=label)
        self.rebuild("warp")

    def failed(self, action: str) -> None:
        """Remove the old result from the screen: it belongs to another kernel, or to an older
        version of this one.
        """
        self.results.clear()
        self._redraw()

    # What is shown.

    _place: int | None = None  # of the step that is shown, in the trace of the block

    def draw(self, values: Values) -> Drawing:
        """Show the step; return the totals, the findings and the arrays as a table."""
        if self._walk is None:
            self._place = None
            self._microscope.write(source=[], position={})
            # a run that the controls ask for starts only after this drawing
            is_begun = self._working is not None or self.wanted() != self._tried
            message = (
                "The simulation is running."
                if is_begun
                else "Nothing to show: choose another kernel, or press Run."
            )
            return Drawing(message=message, is_stale=False)
        s, warp = self._walk.simulation, self._shown_warp
        steps = self._walk.steps[warp]
        step = min(values["step"], max(len(steps), 1))
        self._place = int(steps[step - 1]) if len(steps) else None
        self._microscope.write(position=self._walk.show(warp, step))
        rows = table_of(s, self._walk.outputs)
        # never stale: the result belongs to the controls, or a run is in progress
        return Drawing(
            None, ("", "count", "meaning"), rows, [s.evidence], (), verdict(s), is_stale=False
        )

    def _handle(self, content: Any) -> None:
        if content.get("do") != "line":
            super()._handle(content)
        elif self._walk is not None:
            line = content.get("line")
            step = self._walk.next_at(self._shown_warp, self._microscope.position["step"], line)
            self._take(content, [("step", step, content.get("seq"))] if step else ())

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.kernels.simulate`` and the step that is shown."""
        launch, place = self.launch, self._place
        launched = launch.code()
        if launch.dynamic_shared_bytes:
            launched += f", dynamic_shared_bytes={launch.dynamic_shared_bytes}"
        own = [
            *(["import numpy as np", ""] if "np." in launched else []),
            "import gpulab as gl",
            "",
            "# Arrays change in place here, as on a GPU; the microscope works on copies.",
        ]
        is_own, first = values["kernel"] == _OWN, LANES * values["warp"]
        lanes = f"list(a.elements[{first}:{first + LANES}])"
        step = [
            f"step = s.trace[{place}]",
            f"print(step.line, [(a.array, a.kind, {lanes}) for a in step.accesses])",
        ]
        lines = [
            *(own if is_own else example_cell(values["kernel"]).splitlines()),
            f"s = gl.kernels.simulate({launched}, trace={values['block_number']})",
            "print(s.listing())",
            *([] if place is None else step),
            f"# The same in the microscope: gl.widgets.SimtMicroscope({launched})",
        ]
        return "\n".join(lines)
