"""The first puzzles of notebook 04: kernels that are wrong or wasteful, for the learner to mend."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._kernel_checks import Trial, returns, run_trials, totals
from gpulab.lessons.content import Exercise, Refused, Usual

HEAD = "from gpulab.kernels import cuda, float32\n\n\n"


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return whole numbers as float32: their sums are exact, so results can be compared for equality."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def held(like: np.ndarray) -> np.ndarray:
    """Return an array for results that holds other numbers before: what is not written, or only added to, shows."""
    return np.full_like(like, 77)


# -- 04.2: stay inside ---------------------------------------------------------------------------------------------------

_DIFFERENCE = '''\
def difference(x, out):
    """out[i] = x[i + 1] - x[i]; the last element of out becomes 0."""
    i = cuda.grid(1)
'''
_DIFFERENCE_STUB = _DIFFERENCE + "    if i < x.size:\n        out[i] = x[i + 1] - x[i]"


def _difference_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate((100, 256, 1000, 1)):
        x = whole(np.random.default_rng(seed), n)
        trials.append(Trial(-(-n // 128), 128, (x, held(x)), {1: np.append(np.diff(x), 0)}, f"for {n:,} elements"))
    return trials


def _check_difference(answer: Any) -> str:
    run_trials(answer, _DIFFERENCE_STUB, _difference_trials)
    return (
        "No access out of bounds at four sizes, and every element is right: the guard fits what the thread reads, not only what it writes."
    )


BOUNDS = Exercise(
    id="04.2",
    title="stay inside",
    answer_name="difference",
    stub=_DIFFERENCE_STUB,
    solution=HEAD + _DIFFERENCE + "    if i < x.size - 1:\n        out[i] = x[i + 1] - x[i]\n    elif i == x.size - 1:\n        out[i] = 0",
    hints=(
        "The guard lets the last thread through. Which element of x does it read?",
        "The last element of out has to be set as well, by a thread that reads nothing beyond x.",
        "if i < x.size - 1: ... elif i == x.size - 1: out[i] = 0",
    ),
    check=_check_difference,
    usual=(
        Usual(HEAD + _DIFFERENCE + "    out[i] = x[i + 1] - x[i]", "out of an array's bounds"),
        Usual(HEAD + _DIFFERENCE + "    if i < x.size - 1:\n        out[i] = x[i + 1] - x[i]", "77, and 0 is right"),
        Usual(HEAD + _DIFFERENCE + "    if i < 256:\n        out[i] = x[(i + 1) % 256] - x[i]", "out of an array's bounds"),
        Usual(HEAD + _DIFFERENCE + "    if 0 < i < x.size:\n        out[i] = x[i] - x[i - 1]", "The result is wrong"),
        Usual("def difference(x):\n    pass", "It takes 1 argument;"),
    ),
)

# -- 04.4: from 32 sectors to 4 ------------------------------------------------------------------------------------------

_CENTRE = '''\
def centre(a, mean, out):
    """out[row, column] = a[row, column] - mean[column]; about one thread for each row."""
'''
_CENTRE_STUB = (
    _CENTRE
    + """\
    row = cuda.grid(1)
    if row < a.shape[0]:
        for column in range(a.shape[1]):
            out[row, column] = a[row, column] - mean[column]"""
)
_MOST_SECTORS = 4.05
# Few lanes touch few sectors; the last rows and columns may leave some of a warp idle, but not half of it.
LEAST_LANES = 16


_CENTRE_SHAPES = ((128, 64), (100, 96), (33, 256))  # of whole warps, whose requests are counted
_UNEVEN_SHAPE = (70, 50)  # where a warp that takes neighbours runs into the next row: only the results count


def _centre_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns) in enumerate((*_CENTRE_SHAPES, _UNEVEN_SHAPE)):
        rng = np.random.default_rng(seed)
        a, mean = whole(rng, rows, columns), whole(rng, columns)
        words = f"for {rows} x {columns} elements in blocks of 64 threads"
        trials.append(Trial(-(-rows // 64), 64, (a, mean, held(a)), {2: a - mean}, words))
    return trials


def _check_centre(answer: Any) -> str:
    found = run_trials(answer, _CENTRE_STUB, _centre_trials)[: len(_CENTRE_SHAPES)]
    worst = max(s.totals.sectors_per_request or 0.0 for s in found)
    if worst > _MOST_SECTORS:
        raise Refused(
            f"The results are right, but a request touches {worst:.1f} sectors; 4 are possible. Look at one warp: the 32 lanes that run "
            "the same line together should take 32 neighbours. What each thread takes one after the other does not matter."
        )
    lanes = min(s.totals.global_bytes_requested / 4 / max(s.totals.global_requests, 1) for s in found)
    if lanes < LEAST_LANES:
        raise Refused(
            f"The results are right, but only {lanes:.1f} of a warp's 32 lanes take part in a request, and few lanes touch few sectors. "
            "Let all threads of the launch share the work."
        )
    return f"{worst:.1f} sectors for each request, as few as 32 floats can take: the lanes of a warp take neighbours."


SECTORS = Exercise(
    id="04.4",
    title="from 32 sectors to 4",
    answer_name="centre",
    stub=_CENTRE_STUB,
    solution=HEAD
    + _CENTRE
    + """\
    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        row, column = k // a.shape[1], k % a.shape[1]
        out[row, column] = a[row, column] - mean[column]""",
    hints=(
        "Coalescing is about the 32 lanes of a warp at one moment: which index differs between neighbouring lanes?",
        "Neighbouring lanes should have neighbouring columns. A thread may work on many rows.",
        "Number the elements: k from cuda.grid(1) to a.size in steps of cuda.gridsize(1); row = k // a.shape[1], column = k % a.shape[1].",
    ),
    check=_check_centre,
    usual=(
        Usual(
            HEAD + _CENTRE + "    warp, lane = cuda.grid(1) // 32, cuda.grid(1) % 32\n    if lane < 4:\n"
            "        for row in range(warp, a.shape[0], cuda.gridsize(1) // 32):\n"
            "            for column in range(lane, a.shape[1], 4):\n                out[row, column] = a[row, column] - mean[column]",
            "Let all threads of the launch share",
        ),
        Usual(
            HEAD + _CENTRE + "    row = cuda.grid(1)\n    if row < a.shape[0]:\n        for k in range(a.shape[1]):\n"
            "            column = a.shape[1] - 1 - k\n            out[row, column] = a[row, column] - mean[column]",
            "sectors; 4 are possible",
        ),
        Usual(
            HEAD + _CENTRE + "    each = (a.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)\n    first = each * cuda.grid(1)\n"
            "    for k in range(first, min(first + each, a.size)):\n        row, column = k // a.shape[1], k % a.shape[1]\n"
            "        out[row, column] = a[row, column] - mean[column]",
            "sectors; 4 are possible",
        ),
        Usual(
            HEAD + _CENTRE + "    k = cuda.grid(1)\n    if k < a.size:\n        row, column = k // a.shape[1], k % a.shape[1]\n"
            "        out[row, column] = a[row, column] - mean[column]",
            "The result is wrong",
        ),
        Usual(
            HEAD + _CENTRE + "    warp, lane = cuda.grid(1) // 32, cuda.grid(1) % 32\n"
            "    for row in range(warp, a.shape[0], cuda.gridsize(1) // 32):\n        for k in range(a.shape[1] // 32):\n"
            "            column = 32 * k + lane\n            out[row, column] = a[row, column] - mean[column]",
            "The result is wrong for 70 x 50 elements in blocks of 64 threads: 1,260 of 3,500 elements",
        ),
        Usual(
            HEAD + _CENTRE + "    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):\n"
            "        row, column = k // a.shape[1], k % a.shape[1]\n        out[row, column] += a[row, column] - mean[column]",
            "The result is wrong for 128 x 64 elements",
        ),
        Usual(
            HEAD + _CENTRE + "    column = cuda.grid(1)\n    for row in range(a.shape[0]):\n"
            "        out[row, column] = a[row, column] - mean[column]",
            "out of an array's bounds",
        ),
        Usual(
            HEAD + _CENTRE + "    for k in range(cuda.grid(1), a.size, cuda.gridsize(1)):\n"
            "        row, column = k // a.shape[1], k % a.shape[1]\n        a[row, column] -= mean[column]\n"
            "        out[row, column] = a[row, column]",
            "Your kernel changes a, which others may still need; only out may change",
        ),
    ),
)

# -- 04.6: the missing barrier -------------------------------------------------------------------------------------------

_SUM = '''\
def block_sum(x, sums):
    """sums[block] = the sum of 256 elements of x."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
'''
_SUM_LOOP = "    for step in ({steps}):\n        if t < step:\n            tile[t] += tile[t + step]\n{inside}"
_STEPS = "128, 64, 32, 16, 8, 4, 2, 1"
_SUM_END = "    if t == 0:\n        sums[cuda.blockIdx.x] = tile[0]"
_BARRIER = "cuda.syncthreads()\n"
# Without a barrier of the block, and with no race found, no warp can have read what another one wrote.
_NO_BARRIER = "Right, and without a barrier: no warp reads from shared memory what another one wrote."


def _sum_text(before: str = "", inside: str = "", steps: str = _STEPS) -> str:
    return _SUM + before + _SUM_LOOP.format(steps=steps, inside=inside) + _SUM_END


def _sum_trials() -> list[Trial]:
    trials = []
    for seed, blocks in enumerate((1, 5)):
        x = whole(np.random.default_rng(seed), 256 * blocks)
        trials.append(
            Trial(
                blocks,
                256,
                (x, np.zeros(blocks, np.float32)),
                {1: x.reshape(blocks, 256).sum(1)},
                f"with {blocks} block{'s' if blocks != 1 else ''}",
            )
        )
    return trials


def _check_sum(answer: Any) -> str:
    found = run_trials(answer, _sum_text(), _sum_trials)
    if not totals(found, "barriers"):
        return _NO_BARRIER
    return (
        "No race is left: each thread waits before it reads what another one wrote, and before it overwrites what another one still reads."
    )


RACE = Exercise(
    id="04.6",
    title="the missing barrier",
    answer_name="block_sum",
    stub=_sum_text(),
    solution=HEAD + _sum_text("    " + _BARRIER, "        " + _BARRIER),
    hints=(
        "tile[t + step] was written by another thread. What makes sure that it has written?",
        "Two places: between filling the tile and the first step, and between one step and the next.",
        "cuda.syncthreads() before the loop, and inside it after the if, where all threads pass.",
    ),
    check=_check_sum,
    usual=(
        Usual(HEAD + _sum_text("    " + _BARRIER), "There is a race"),
        Usual(HEAD + _sum_text("    " + _BARRIER, "            " + _BARRIER), "barrier is not reached by all threads"),
        Usual(HEAD + _sum_text("    " + _BARRIER, "        " + _BARRIER, steps=_STEPS.removesuffix(", 1")), "The result is wrong"),
        Usual(HEAD + _sum_text("    cuda.syncwarp()\n", "        cuda.syncwarp()\n"), "There is a race"),
    ),
)

# -- 04.7: a barrier for all ---------------------------------------------------------------------------------------------

_ROTATE = '''\
def rotate(x, out):
    """Turn each block of 64 elements by one place; x may end inside a block."""
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
'''
_ROTATE_STUB = (
    _ROTATE
    + """\
    if i < x.size:
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[(t + 1) % size]"""
)


def _rotate_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate((128, 100, 65, 30)):
        x = whole(np.random.default_rng(seed), n)
        turned = np.concatenate([np.roll(x[k : k + 64], -1) for k in range(0, n, 64)])
        trials.append(Trial(-(-n // 64), 64, (x, held(x)), {1: turned}, f"for {n} elements"))
    return trials


def _check_rotate(answer: Any) -> str:
    found = run_trials(answer, _ROTATE_STUB, _rotate_trials)
    if not totals(found, "barriers"):
        return _NO_BARRIER
    ended = " (or have ended before it)" if returns(answer) else ""
    return f"All threads of a block reach the barrier{ended}, also those without an element, and the order of writing and reading is kept."


BARRIER = Exercise(
    id="04.7",
    title="a barrier for all",
    answer_name="rotate",
    stub=_ROTATE_STUB,
    solution=HEAD
    + _ROTATE
    + """\
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[(t + 1) % size]""",
    hints=(
        "In the last block some threads have no element. Do they reach the barrier?",
        "A barrier waits for all threads of the block, so it stands outside every if whose condition differs between them.",
        "Two ifs, and cuda.syncthreads() between them.",
    ),
    check=_check_rotate,
    usual=(
        Usual(HEAD + _ROTATE + "    if i < x.size:\n        tile[t] = x[i]\n        out[i] = tile[(t + 1) % size]", "There is a race"),
        Usual(
            HEAD + _ROTATE + "    if i < x.size:\n        tile[t] = x[i]\n        cuda.syncthreads()\n        out[i] = tile[(t + 1) % 64]",
            "barrier is not reached by all threads",
        ),
        Usual(
            HEAD + _ROTATE + "    if i < x.size:\n        tile[t] = x[i]\n    cuda.syncthreads()\n    if i < x.size:\n"
            "        out[i] = tile[(t + 1) % 64]",
            "nothing was written to",
        ),
        Usual(
            HEAD + _ROTATE + "    if i < x.size:\n        tile[t] = x[i]\n    cuda.syncthreads()\n    if i < x.size:\n"
            "        out[i] = tile[(t + size - 1) % size]",
            "The result is wrong",
        ),
        Usual(
            HEAD + _ROTATE + "    if i < x.size:\n        tile[t] = x[i]\n    cuda.syncthreads()\n    if i < x.size:\n"
            "        out[i] += tile[(t + 1) % size]",
            "The result is wrong for 128 elements: 128 of 128 elements.",
        ),
    ),
)
