"""A simulation as plain data for the SIMT microscope: the counted source, the totals and findings,
and the steps of a warp with its lanes, sectors and banks.

Which lanes touch which sectors and banks comes from ``gpulab.models``; here they get their words
and their boxes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels import Finding, Simulation
from gpulab.kernels.simulation.report import Counts, Step, StepAccess
from gpulab.models import AccessPattern, access_at
from gpulab.units import plural

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
    """Return what is wrong and who does it, in one sentence."""
    who = " and ".join(str(thread) for thread in finding.threads)
    times = "once" if finding.count == 1 else f"{finding.count:,} times"
    return f"{finding.message[:1].upper()}{finding.message[1:]} ({who}; {times})."


def _cells(counts: Counts) -> list[dict[str, Any]]:
    """Return the counts of a line as texts, each with whether it is worth a look."""
    sectors, ideal = counts.sectors_per_request, counts.ideal_sectors_per_request
    ratio, ways = counts.active_ratio, counts.conflict_ways
    spaces = ((counts.global_requests, "device"), (counts.shared_requests, "shared"))
    branches = f"{counts.divergent_branches:,} of {counts.branches:,}" if counts.branches else ""
    conflict = "" if ways is None else f"{ways:.3g}-way" if ways > 1 else "none"
    cells = [
        ("" if ratio is None else f"{ratio:.0%}", False),
        (branches, counts.divergent_branches > 0),
        (
            "" if sectors is None else f"{sectors:.1f} ({ideal:.1f})",
            counts.global_sectors > counts.ideal_global_sectors,
        ),
        (conflict, counts.shared_wavefronts > counts.ideal_shared_wavefronts),
        ("\n".join(f"{n:,} {space}" for n, space in spaces if n), False),
    ]
    return [{"text": text, "look": look} for text, look in cells]


def _totals(simulation: Simulation) -> list[tuple[str, str, str]]:
    """Return the totals as rows of (what, count, what it means)."""
    t = simulation.totals
    rows = [
        (
            "active lanes",
            "" if t.active_ratio is None else f"{t.active_ratio:.1%}",
            f"of 32 in each of {t.executed_warps:,} statements of a warp",
        ),
        (
            "divergent branches",
            f"{t.divergent_branches:,}",
            f"of {plural(t.branches, 'test')} by a warp",
        ),
    ]
    if t.global_requests:
        rows += [
            (
                "device memory: sectors",
                f"{t.global_sectors:,}",
                f"of 32 bytes, in {plural(t.global_requests, 'request')}; "
                f"{t.ideal_global_sectors:,} would do",
            ),
            (
                "sectors / request",
                f"{t.sectors_per_request:.2f}",
                f"ideal: {t.ideal_sectors_per_request:.2f}",
            ),
            ("bytes moved", f"{t.global_bytes_moved:,}", f"{t.global_bytes_requested:,} asked for"),
        ]
    if t.shared_requests:
        rows.append(
            (
                "shared memory: wavefronts",
                f"{t.shared_wavefronts:,}",
                f"in {plural(t.shared_requests, 'request')}; "
                f"{t.ideal_shared_wavefronts:,} would do",
            )
        )
    if simulation.shared_bytes:
        rows.append(("shared memory of a block", f"{simulation.shared_bytes:,}", "bytes"))
    if t.atomic_requests:
        rows.append(("atomics", f"{t.atomic_requests:,}", "requests among those"))
    if t.barriers:
        rows.append(("barriers", f"{t.barriers:,}", "barriers passed, summed over the blocks"))
    return rows


def table_of(
    simulation: Simulation, outputs: Mapping[str, np.ndarray]
) -> Sequence[tuple[str, str, str]]:
    """Return the findings, the totals and the first values of the arrays afterwards, as rows."""
    rows = [(f"{f.kind}, line {f.line}", f"{f.count:,}", _in_words(f)) for f in simulation.findings]
    rows += _totals(simulation)
    for name, array in outputs.items():
        values = array.reshape(-1)[:_FIRST_VALUES].tolist()
        texts = [f"{v:.6g}" if array.dtype.kind == "f" else str(v) for v in values]
        texts += ["..."] if array.size > _FIRST_VALUES else []
        shape = f"{array.dtype} {' x '.join(map(str, array.shape))}"
        rows.append((f"{name} afterwards", shape, ", ".join(texts)))
    return rows


def verdict(s: Simulation) -> str:
    """Return the findings in one sentence."""
    where = f"{s.kernel}, grid {s.grid}, block {s.block}"
    if not s.findings:
        return f"{where}: no race, no out-of-bounds access and no barrier error was found."
    places = Counter(f"{f.kind} in line {f.line}" for f in s.findings)
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


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of a traced block, by warp.

    Attributes
    ----------
    simulation : Simulation
        With its trace.
    """

    simulation: Simulation
    # warp -> the places of its steps, and its lines
    _warps: dict[int, tuple[np.ndarray, list[int]]] = field(default_factory=dict, repr=False)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return warps_of(self.simulation.block)

    def steps(self, warp: int) -> np.ndarray:
        """Return the places in the trace at which a warp has an active lane, ascending."""
        return self._of(warp)[0]

    def _of(self, warp: int) -> tuple[np.ndarray, list[int]]:
        if warp not in self._warps:
            trace = self.simulation.trace
            active = np.fromiter((step.active[warp] != 0 for step in trace), bool, len(trace))
            places = np.flatnonzero(active)
            self._warps[warp] = places, sorted({trace[place].line for place in places})
        return self._warps[warp]

    def next_at(self, warp: int, step: int, line: int) -> int | None:
        """Return the next step, from 1, at which the warp executes a line; the first one after the
        last, None without any.
        """
        trace = self.simulation.trace
        places = enumerate(self.steps(warp), start=1)
        there = [k for k, place in places if trace[place].line == line]
        return next((k for k in there if k > step), there[0] if there else None)

    def show(self, warp: int, step: int) -> dict[str, Any]:
        """Return a step of a warp for the panel; ``step`` counts from 1."""
        (places, lines), trace = self._of(warp), self.simulation.trace
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
            "lines": lines,
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
    place = [number // math.prod(block[:axis]) % block[axis] for axis in range(3)]
    while len(place) > 1 and block[len(place) - 1] == 1:
        place.pop()
    return f"threadIdx {place[0] if len(place) == 1 else tuple(place)}"


def _lanes_in_words(lanes: list[bool], exist: list[bool]) -> str:
    active, there = sum(lanes), sum(exist)
    missing = "" if there == LANES else f"; the block has no threads for the other {LANES - there}"
    if active == there:
        return f"all {there} {_lanes(there)} active{missing}"
    which = _ranges([k for k, on in enumerate(lanes) if on])
    return f"{active} of {there} lanes active ({which}), the others idle{missing}"


def _lanes(count: int) -> str:
    return "lane" if count == 1 else "lanes"


def _ranges(numbers: Sequence[int], most: int = 6) -> str:
    """Return lanes in words: "lanes 0 to 7, 16", "every second lane from 0 to 30"."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"every {_NTH.get(step, f'{step}th')} lane from {numbers[0]} to {numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    if len(words) > most:
        words[most - 1 :] = [f"and {len(words) - most + 1} more"]
    return f"{_lanes(len(numbers))} {', '.join(words)}"


_NTH = {2: "second", 3: "third"}  # of three lanes of a warp, the steps between are 15 at most


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
    """Return the count in words, and whether fewer sectors could not hold as many bytes (the rule
    of the simulation's counts).
    """
    lanes, sectors = plural(sum(pattern.active), "lane"), plural(pattern.sectors, "sector")
    ideal = min(pattern.sectors, math.ceil(pattern.bytes_asked / _SECTOR_BYTES))
    if pattern.sectors == ideal:
        return f"{lanes}, {sectors}: ideal", True
    return f"{lanes}, {sectors}, where {ideal} would do", False


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
        for part in range(_parts_of(pattern))
        for bank, found in pattern.bank_lanes(part).items()
        if len(found) == ways
    }
    also = f" (as in {len(worst) - 1} more)" if len(worst) > 1 else ""
    conflict = f"bank {min(worst)}{also}: {ways} words, {ways}-way conflict"
    return f"{conflict}; {passes} instead of {pattern.ideal_wavefronts}", False


def _parts_of(pattern: AccessPattern) -> int:
    return max(1, pattern.element_bytes // _WORD_BYTES)


def _sector_columns(pattern: AccessPattern, elements: np.ndarray) -> list[dict[str, Any]]:
    """Return a column for each sector, ascending; its cells are the elements in it, each with the
    lanes that touch it.
    """
    size = pattern.element_bytes
    each = _SECTOR_BYTES // size
    lanes_of: dict[int, list[int]] = {}
    for lane, element in enumerate(elements.tolist()):
        if element >= 0:
            lanes_of.setdefault(element, []).append(lane)
    sectors = list(pattern.sector_lanes())
    return [
        {
            "label": str(sector * each),
            "gap": place > 0 and sector != sectors[place - 1] + 1,
            "cells": [
                {"label": str(element), "lanes": lanes_of.get(element, [])}
                for element in range(sector * each, (sector + 1) * each)
            ],
            "title": f"sector of elements {sector * each} to {(sector + 1) * each - 1}",
        }
        for place, sector in enumerate(sectors)
    ]


def _bank_parts(pattern: AccessPattern) -> list[dict[str, Any]]:
    """Return 32 columns, one for each bank, for each part of the warp that goes by itself; cells
    are the words, each with its lanes.
    """
    parts = []
    passes = _parts_of(pattern)
    for part in range(passes):
        found = pattern.bank_lanes(part)
        lanes = [on and lane * passes // LANES == part for lane, on in enumerate(pattern.active)]
        columns = [
            {
                "label": str(bank),
                "gap": False,
                "title": f"bank {bank}",
                "cells": [
                    {"label": _word_in_words(word, pattern.element_bytes), "lanes": list(who)}
                    for word, who in found.get(bank, {}).items()
                ],
            }
            for bank in range(LANES)
        ]
        if any(lanes):
            parts.append({"title": _PARTS[passes][part], "lanes": lanes, "columns": columns})
    return parts


def _word_in_words(word: int, size: int) -> str:
    first, count = word * _WORD_BYTES // size, _WORD_BYTES // size
    return f"elements {first} to {first + count - 1}" if count > 1 else f"element {first}"
