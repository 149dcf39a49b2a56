"""The counts of lockstep for a loop that each lane ran alone, from the log of its iterations.

Lanes of a warp execute a statement together if they are in the same iteration of every enclosing
loop. Iterations are mapped to rows: those of the outermost loop are numbered consecutively, and
each has as many rows for its inner loops as the lane with the most iterations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels._simulate._alone_values import ELEMENT_BITS, Site, Turns
from gpulab.kernels._simulate._geometry import WARP, Mask

if TYPE_CHECKING:
    from gpulab.kernels._simulate._machine import Machine


class Logs:
    """What the lanes log: for each loop the codes of the turns, where each run of the loop began,
    and in which turn of the loop around.
    """

    def __init__(self, loops: int, sites: int) -> None:
        self.codes: list[list[int]] = [[] for _ in range(loops)]
        self.around: list[list[int]] = [[] for _ in range(loops)]
        self.starts: list[list[int]] = [[] for _ in range(loops)]
        self.loads: list[list[int]] = [[] for _ in range(sites)]

    def parts(self) -> list[Any]:
        """Return what the lanes' text asks for."""
        found: list[Any] = []
        for codes, around, starts in zip(self.codes, self.around, self.starts, strict=True):
            found += [codes, codes.append, around.append, starts.append]
        return [*found, *(loads.append for loads in self.loads)]

    def begin(self) -> None:
        """Let the next lane begin."""
        self.starts[0].append(len(self.codes[0]))


@dataclass
class _Rows:
    """The turns of one loop: of each, its code, its row, and its lane (the place in the list of
    lanes).
    """

    codes: np.ndarray
    rows: np.ndarray
    lanes: np.ndarray


def _rows_of(logs: Logs, loops: list[Turns]) -> list[_Rows]:
    found: list[_Rows] = []
    for turns in loops:
        codes = np.array(logs.codes[turns.number], dtype=np.int64)
        starts = np.array(logs.starts[turns.number], dtype=np.int64)
        lengths = np.diff(starts, append=len(codes))
        if turns.parent is None:
            begins, lanes = np.zeros(len(starts), dtype=np.int64), np.arange(len(starts))
        else:
            outer, around = (
                found[turns.parent.number],
                np.array(logs.around[turns.number], dtype=np.int64),
            )
            rows, lanes = outer.rows[around], outer.lanes[around]
            longest = np.zeros(int(rows.max()) + 2 if len(rows) else 1, dtype=np.int64)
            np.maximum.at(longest, rows + 1, lengths)
            begins = np.cumsum(longest)[rows]
        found.append(
            _Rows(
                codes,
                np.repeat(begins - starts, lengths) + np.arange(len(codes)),
                np.repeat(lanes, lengths),
            )
        )
    return found


class _Groups:
    """Of one loop, for each code: in which rows which warps have a lane that took this way, and how
    many lanes did.
    """

    def __init__(self, turns: _Rows, warps: np.ndarray, count: int) -> None:
        self._shape = (int(turns.rows.max()) + 1 if len(turns.rows) else 0, count)
        self.lanes: dict[int, int] = {}
        self._here: dict[tuple[int, ...], np.ndarray] = {}
        for code in sorted(set(turns.codes.tolist())):
            took = turns.codes == code
            here = np.zeros(self._shape, dtype=bool)
            if count == 1:
                here[turns.rows[took]] = True
            else:
                here[turns.rows[took], warps[turns.lanes[took]]] = True
            self._here[code,] = here
            self.lanes[code] = int(np.count_nonzero(took))

    def here(self, codes: tuple[int, ...]) -> np.ndarray:
        """Return in which rows which warps took one of these ways."""
        found = self._here.get(codes)
        if found is None:
            found = self._here[codes] = np.zeros(self._shape, dtype=bool)
            for code in codes:
                np.logical_or(found, self._here[code,], out=found)
        return found


@dataclass
class _Counted:
    line: int
    warps: int
    lanes: int
    tested: bool
    divergent: int


def account(
    machine: Machine,
    loops: list[Turns],
    sites: list[Site],
    logs: Logs,
    mask: Mask,
    variables: dict[str, Any],
) -> bool:
    """Count what the lanes did; return False, with nothing counted, where that would be too many
    statements.
    """
    turns = _rows_of(logs, loops)
    warps, slots = np.unique(mask.flat // WARP, return_inverse=True)
    found: list[_Counted] = []
    steps = 0
    for loop, log in zip(loops, turns, strict=True):
        if not len(log.codes):
            continue
        groups = _Groups(log, slots, len(warps))
        for line, codes, tests in _statements(loop, list(groups.lanes)):
            here = groups.here(codes)
            steps += (
                int(np.count_nonzero(here.any(axis=1)))
                if len(warps) > 1
                else int(np.count_nonzero(here))
            )
            both = 0
            if tests is not None and tests[0] and tests[1]:
                both = int(np.count_nonzero(groups.here(tests[0]) & groups.here(tests[1])))
            lanes = sum(groups.lanes[code] for code in codes)
            found.append(
                _Counted(line, int(np.count_nonzero(here)), lanes, tests is not None, both)
            )
    launch = machine.launch
    if launch.steps + steps > launch.max_steps:
        return False
    for part in found:
        counts = machine.counters.line(part.line)
        counts.executed_warps += part.warps
        counts.active_lanes += part.lanes
        if part.tested:
            counts.branches += part.warps
            counts.divergent_branches += part.divergent
    for site, loads in zip(sites, logs.loads, strict=True):
        if loads:
            _loaded(
                machine,
                site,
                np.array(loads, dtype=np.int64),
                turns[site.turns.number],
                slots,
                mask,
                variables,
            )
    machine.steps(loops[0].line, steps)
    return True


_Tests = tuple[tuple[int, ...], tuple[int, ...]]


def _statements(loop: Turns, codes: list[int]) -> list[tuple[int, tuple[int, ...], _Tests | None]]:
    """Return of each statement its line, the codes with which it was executed, and for a test those
    of yes and of no.
    """
    taken = tuple(code for code in codes if code)
    found: list[tuple[int, tuple[int, ...], _Tests | None]] = [
        (loop.line, tuple(codes), (taken, tuple(c for c in codes if not c)))
    ]
    executed: dict[int, tuple[int, list[int]]] = {}
    tests: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for code in taken:
        done, asked = loop.way(code)
        for node in done:
            executed.setdefault(id(node), (getattr(node, "test", node).lineno, []))[1].append(code)
        for node, yes in asked:
            tests[id(node)][0 if yes else 1].append(code)
    for number, (line, several) in executed.items():
        asked_of = tests.get(number)
        found.append(
            (
                line,
                tuple(several),
                None if asked_of is None else (tuple(asked_of[0]), tuple(asked_of[1])),
            )
        )
    return found


def _loaded(
    machine: Machine,
    site: Site,
    loads: np.ndarray,
    turns: _Rows,
    slots: np.ndarray,
    mask: Mask,
    variables: dict[str, Any],
) -> None:
    """Count the requests of a load: one for each row and warp."""
    elements, where = loads & ((1 << ELEMENT_BITS) - 1), loads >> ELEMENT_BITS
    lanes = turns.lanes[where]
    request = turns.rows[where] * (int(slots.max()) + 1) + slots[lanes]
    made = np.zeros(int(request.max()) + 1, dtype=bool)
    made[request] = True
    number = np.cumsum(made) - 1
    which, count = number[request], int(number[-1]) + 1
    at, active = np.zeros((count, WARP), dtype=np.int64), np.zeros((count, WARP), dtype=bool)
    place = mask.flat[lanes] % WARP
    at[which, place] = elements
    active[which, place] = True
    machine.counters.requests(site.line, variables[site.name].store, "load", at, active)
