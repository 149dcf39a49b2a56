"""The questions and exercises of notebook 04, on kernels of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.kernels import Simulation
from gpulab.lessons._climb import LadderTable
from gpulab.lessons._nb04_puzzles import MATMUL, SCAN, SOFTMAX, STENCIL
from gpulab.lessons._nb04_repairs import BARRIER, BOUNDS, RACE, SECTORS
from gpulab.lessons._passes import Passes
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.models import AccessPattern

_GATE_BYTES = 8  # of one element through one kernel: 4 read, 4 written

TRAFFIC = Question(
    "04.1",
    (
        Reading(
            lambda predicted, measured: predicted <= 2.5,
            "You counted the input and the result. Each of NumPy's functions also writes an array that the next one reads again.",
        ),
        Reading(
            lambda predicted, measured: predicted <= 5.05 and predicted < measured,
            "Five passes, but one of them moves more: the last product reads two arrays and writes a third.",
        ),
    ),
    outcome=lambda p: p.bytes_per_element / _GATE_BYTES if isinstance(p, Passes) else p,
    close_ratio=1.05,
)

CHUNKS = Question(
    "04.3",
    (
        Reading(
            lambda predicted, measured: predicted <= 4.5,
            "A thread reads neighbours one after the other, but the memory serves a warp: what counts is what its 32 lanes ask for at one "
            "moment, and these lie 128 bytes apart.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Each lane starts a chunk of its own, 128 bytes from the next, so no two lanes share a sector.",
        ),
    ),
    outcome=lambda s: s.totals.global_load_sectors / s.totals.global_load_requests if isinstance(s, Simulation) else s,
    close_ratio=1.1,
)

POINTS = Question(
    "04.17",
    (
        Reading(
            lambda predicted, measured: predicted <= 4.5,
            "Four sectors hold 32 numbers that lie side by side. Here a y and a z lie between one x and the next, and they travel too.",
        ),
        Reading(
            lambda predicted, measured: predicted > 24,
            "One x lies 12 bytes from the next, so a sector of 32 bytes still holds two or three of them.",
        ),
        Reading(
            lambda predicted, measured: predicted != measured,
            "From the first x to the last z lie 32 times 12 bytes. Divide by the 32 bytes of a sector.",
        ),
    ),
    outcome=lambda p: p.sectors if isinstance(p, AccessPattern) else p,
    close_ratio=1.01,
)

DIVERGENCE = Question(
    "04.5",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.5,
            "Both test as many threads, but it matters where the working ones sit: spread over all warps, or packed into the first.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "In each of the first five steps every warp has lanes that work and lanes that rest.",
        ),
    ),
    outcome=lambda table: (
        table.of("reduction-interleaved").totals.divergent_branches / table.of("reduction-sequential").totals.divergent_branches
        if isinstance(table, LadderTable)
        else table
    ),
    close_ratio=1.3,
)

COLUMN = Question(
    "04.9",
    (
        Reading(
            lambda predicted, measured: predicted <= 1,
            "Shared memory is fast when the lanes ask 32 different banks. The words of a column lie 32 words apart: all in one bank.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "32 words of one bank are served one after the other.",
        ),
    ),
    outcome=lambda table: _column_ways(table) if isinstance(table, LadderTable) else table,
    close_ratio=1.1,
)


def _column_ways(table: LadderTable) -> float:
    """Return the wavefronts of one request that reads a column of the tile without a spare column."""
    loads = [a for a in table.of("transpose-tiled").accesses if a.space == "shared" and a.kind == "load"]
    return float(sum(a.wavefronts for a in loads) / sum(a.requests for a in loads))


ATOMICS = Question(
    "04.11",
    (
        Reading(
            lambda predicted, measured: predicted <= 2,
            "The private one still counts every element, but in shared memory; only 256 numbers for each block go to global memory.",
        ),
    ),
    outcome=lambda table: _global_atomics(table, "global") / _global_atomics(table, "private") if isinstance(table, LadderTable) else table,
    close_ratio=1.5,
)


def _global_atomics(table: LadderTable, form: str) -> int:
    return sum(a.requests for a in table.of(f"histogram-{form}").accesses if a.space == "global" and a.kind == "atomic")


TILES = Question(
    "04.13",
    (
        Reading(
            lambda predicted, measured: predicted >= 30,
            "Each element of the tile is used 32 times, but before that a warp already shared it: one load of a served 32 lanes, and four "
            "sectors of b served them too.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "A tile of 32 x 32 is loaded once and used by 32 rows or columns of the block.",
        ),
    ),
    outcome=lambda table: (
        table.of("matmul-coalesced").totals.global_bytes_moved / table.of("matmul-tiled").totals.global_bytes_moved
        if isinstance(table, LadderTable)
        else table
    ),
    close_ratio=1.3,
)


def _registers(made: Any) -> Any:
    kernels = getattr(made, "kernels", None)
    if not isinstance(kernels, Mapping):
        return made
    if not kernels:
        raise Unmeasured(str(made))
    return float(next(iter(kernels.values())).registers)


REGISTERS = Question(
    "04.15",
    (
        Reading(
            lambda predicted, measured: predicted <= 40,
            "64 sums and 16 factors of each thread are to be in registers at the same time, besides pointers and counters.",
        ),
        Reading(
            lambda predicted, measured: predicted > 200,
            "The compiler loads the factors just before their use and keeps what is needed at one moment; 255 is the most there is.",
        ),
    ),
    outcome=_registers,
    close_ratio=1.2,
)


OCCUPANCY = Question(
    "04.16",
    (
        Reading(
            lambda predicted, measured: predicted >= 90,
            "An SM has 65,536 registers for all of its threads. Two blocks of 256 threads with 128 registers each take them all.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "65,536 registers, 128 for each of 256 threads: two blocks fit, 16 warps of 64.",
        ),
    ),
    outcome=lambda o: 100 * o.ratio if hasattr(o, "ratio") else o,
    close_ratio=1.1,
)

LESSON = Lesson(
    "04_custom_kernels",
    {question.id: question for question in (TRAFFIC, CHUNKS, POINTS, DIVERGENCE, COLUMN, ATOMICS, TILES, REGISTERS, OCCUPANCY)},
    {exercise.id: exercise for exercise in (BOUNDS, SECTORS, RACE, BARRIER, SCAN, STENCIL, SOFTMAX, MATMUL)},
)
