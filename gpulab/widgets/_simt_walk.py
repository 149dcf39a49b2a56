"""The steps of a warp as plain data for the SIMT microscope: its lanes, and the sectors and banks
that each access touches.

Which they are comes from ``gpulab.models``; here they get their words and their boxes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.kernels import Simulation
from gpulab.kernels._simulate.report import Step, StepAccess
from gpulab.models import AccessPattern, access_at

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
    _steps: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    _lines: dict[int, list[int]] = field(default_factory=dict, repr=False)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return warps_of(self.simulation.block)

    def steps(self, warp: int) -> np.ndarray:
        """Return the places in the trace at which a warp has an active lane, ascending."""
        if warp not in self._steps:
            trace = self.simulation.trace
            self._steps[warp] = np.flatnonzero(
                np.fromiter((step.active[warp] != 0 for step in trace), bool, len(trace))
            )
        return self._steps[warp]

    def lines(self, warp: int) -> list[int]:
        """Return the lines that a warp executes."""
        if warp not in self._lines:
            self._lines[warp] = sorted(
                {self.simulation.trace[place].line for place in self.steps(warp)}
            )
        return self._lines[warp]

    def next_at(self, warp: int, step: int, line: int) -> int | None:
        """Return the next step, from 1, at which the warp executes a line; the first one after the
        last, None without any.
        """
        trace = self.simulation.trace
        there = [
            k for k, place in enumerate(self.steps(warp), start=1) if trace[place].line == line
        ]
        return next((k for k in there if k > step), there[0] if there else None)

    def show(self, warp: int, step: int) -> dict[str, Any]:
        """Return a step of a warp for the panel; ``step`` counts from 1."""
        places = self.steps(warp)
        if not len(places):
            return {
                "step": 0,
                "steps": 0,
                "line": 0,
                "words": f"Warp {warp} executes nothing.",
                "lanes": [],
                "accesses": [],
                "lines": [],
            }
        trace = self.simulation.trace
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
            "lines": self.lines(warp),
        }

    def _accesses(self, step: Step, warp: int, active: int) -> list[dict[str, Any]]:
        outside = {(f.line, f.array) for f in self.simulation.findings if f.kind == "bounds"}
        shown = [(access, show_access(access, warp)) for access in step.accesses]
        for access, found in shown:
            missing = (
                0 if found is None else active - sum(sum(part["lanes"]) for part in found["parts"])
            )
            if found is not None and missing and (step.line, access.array) in outside:
                found["words"] += (
                    f"; {missing} active {_lanes(missing)} {'does' if missing == 1 else 'do'} not "
                    "take part: see the finding"
                )
                found["good"] = False
        return [found for _, found in shown if found is not None]


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
    return f"{_lanes(len(numbers))} " + ", ".join(
        words if len(words) <= most else [*words[: most - 1], f"and {len(words) - most + 1} more"]
    )


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
        "title": f"{_VERBS[access.kind]} {access.array}, {size} bytes a lane, {space}".replace(
            "1 bytes", "1 byte"
        ),
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
    lanes, sectors = sum(pattern.active), pattern.sectors
    ideal = min(sectors, math.ceil(pattern.bytes_asked / _SECTOR_BYTES))
    count = f"{lanes} {_lanes(lanes)}, {sectors} sector{'s' if sectors != 1 else ''}"
    return (
        (f"{count}: ideal", True)
        if sectors == ideal
        else (f"{count}, where {ideal} would do", False)
    )


def _banks_in_words(pattern: AccessPattern) -> tuple[str, bool]:
    lanes, waves, ideal = sum(pattern.active), pattern.wavefronts, pattern.ideal_wavefronts
    passes = f"{waves} wavefront{'s' if waves != 1 else ''}"
    if pattern.conflict_ways <= 1:
        one_word = (
            lanes > 1
            and len({a for a, on in zip(pattern.addresses, pattern.active, strict=True) if on}) == 1
        )
        return (
            f"{lanes} {_lanes(lanes)}, {passes}: "
            f"{'one word for all, a broadcast, ' if one_word else ''}no conflict",
            True,
        )
    worst: list[int] = []
    for part in range(_parts_of(pattern)):
        worst += [
            bank
            for bank, words in pattern.bank_lanes(part).items()
            if len(words) == pattern.conflict_ways and bank not in worst
        ]
    also = f" (as in {len(worst) - 1} more)" if len(worst) > 1 else ""
    return (
        f"bank {min(worst)}{also}: {pattern.conflict_ways} words, {pattern.conflict_ways}-way "
        f"conflict; {passes} instead of {ideal}",
        False,
    )


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
    columns: list[dict[str, Any]] = []
    before: int | None = None
    for sector in pattern.sector_lanes():
        first = sector * each
        cells = [
            {"label": str(first + k), "lanes": lanes_of.get(first + k, [])} for k in range(each)
        ]
        columns.append(
            {
                "label": str(first),
                "gap": before is not None and sector != before + 1,
                "cells": cells,
                "title": f"sector of elements {first} to {first + each - 1}",
            }
        )
        before = sector
    return columns


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
    first = word * _WORD_BYTES // size
    return (
        f"element {first}"
        if size >= _WORD_BYTES
        else f"elements {first} to {first + _WORD_BYTES // size - 1}"
    )
