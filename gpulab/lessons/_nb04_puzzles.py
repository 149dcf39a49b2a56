"""The later puzzles of notebook 04: kernels that the learner writes, with a bound on what they may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.kernels import Simulation
from gpulab.kernels._simulate._source import read_source
from gpulab.lessons._kernel_checks import Trial, run_trials, totals
from gpulab.lessons._nb04_repairs import HEAD, LEAST_LANES, held, whole
from gpulab.lessons.content import Exercise, Refused, Usual
from gpulab.units import format_bytes


def _loaded(simulations: Sequence[Simulation]) -> int:
    """Return the bytes that were loaded from global memory."""
    return _requested(simulations, "load")


def _requested(simulations: Sequence[Simulation], kind: str, array: str = "") -> int:
    """Return the bytes of one kind of access to global memory; of one array, by the kernel's own name for it, or of all."""
    return sum(
        a.bytes_requested for s in simulations for a in s.accesses if a.space == "global" and a.kind == kind and array in ("", a.array)
    )


# -- 04.8: a running sum -------------------------------------------------------------------------------------------------

_SCAN = '''\
def scan(x, out):
    """out[i] = the sum of x from the first element of i's block up to i; blocks of 128 threads."""
'''
_SCAN_SIZES = (128, 384, 200)
# Seven steps of three accesses by four warps, and the ends, are under 100. One thread alone needs some 400, and some 320 are needed if
# each thread walks over all that lies before it.
_MOST_SHARED = 200


def _scan_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate(_SCAN_SIZES):
        x = whole(np.random.default_rng(seed), n)
        sums = np.concatenate([np.cumsum(x[k : k + 128]) for k in range(0, n, 128)])
        trials.append(Trial(-(-n // 128), 128, (x, held(x)), {1: sums}, f"for {n} elements"))
    return trials


def _check_scan(answer: Any) -> str:
    found = run_trials(answer, _SCAN + "    ...", _scan_trials)
    needed = 4 * sum(_SCAN_SIZES)
    if _loaded(found) > needed:
        raise Refused(
            f"The results are right, but {format_bytes(_loaded(found))} are loaded from global memory where {format_bytes(needed)} would "
            "do: load each element once, and meet in shared memory."
        )
    shared, blocks = totals(found, "shared_requests"), sum(-(-n // 128) for n in _SCAN_SIZES)
    if shared > _MOST_SHARED * blocks:
        raise Refused(
            f"The results are right, but a block asks shared memory {shared / blocks:.0f} times; seven steps for all threads need about "
            "90. Whether one thread adds up everything, or each thread walks over all that lies before it: the last one makes 127 "
            "additions in a row. In each step every thread adds *one* place, 1, 2, 4, ... before it."
        )
    return f"Each element is loaded once, and a block asks shared memory {shared / blocks:.0f} times: the steps grow with the logarithm."


_SCAN_BEGIN = """\
    tile = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
"""
_SCAN_END = "    if i < x.size:\n        out[i] = tile[t]"

SCAN = Exercise(
    id="04.8",
    title="a running sum",
    answer_name="scan",
    stub=_SCAN + "    ...  # cuda.shared.array(128, float32), cuda.syncthreads()",
    solution=HEAD
    + _SCAN
    + _SCAN_BEGIN
    + """\
    step = 1
    while step < 128:
        before = tile[t - step] if t >= step else float32(0)
        cuda.syncthreads()  # all have read before anyone writes
        tile[t] += before
        cuda.syncthreads()
        step *= 2
"""
    + _SCAN_END,
    hints=(
        "After the step of 1 each place holds the sum of 2 elements, after the step of 2 of 4, after the step of 4 of 8, and so on.",
        "In a step every thread reads the place `step` before its own, and adds it to its own. Who still reads what you overwrite?",
        "Read into a variable, wait, add it to your place, wait. Seven steps: 1, 2, 4, ... 64.",
    ),
    check=_check_scan,
    usual=(
        Usual(
            HEAD
            + _SCAN
            + _SCAN_BEGIN
            + "    step = 1\n    while step < 128:\n        if t >= step:\n            tile[t] += tile[t - step]\n"
            "        cuda.syncthreads()\n        step *= 2\n" + _SCAN_END,
            "There is a race",
        ),
        Usual(
            HEAD + _SCAN + "    i = cuda.grid(1)\n    if i < x.size:\n        total = float32(0)\n"
            "        for k in range(128 * cuda.blockIdx.x, i + 1):\n            total += x[k]\n        out[i] = total",
            "load each element once",
        ),
        Usual(
            HEAD + _SCAN + _SCAN_BEGIN + "    if t == 0:\n        for k in range(1, 128):\n            tile[k] += tile[k - 1]\n"
            "    cuda.syncthreads()\n" + _SCAN_END,
            "127 additions in a row",
        ),
        Usual(
            HEAD + _SCAN + _SCAN_BEGIN + "    total = float32(0)\n    for k in range(t + 1):\n        total += tile[k]\n"
            "    if i < x.size:\n        out[i] = total",
            "each thread walks over all that lies before it",
        ),
        Usual(
            HEAD
            + _SCAN
            + _SCAN_BEGIN
            + "    step = 1\n    while step < 64:\n        before = tile[t - step] if t >= step else float32(0)\n"
            "        cuda.syncthreads()\n        tile[t] += before\n        cuda.syncthreads()\n        step *= 2\n" + _SCAN_END,
            "The result is wrong",
        ),
    ),
)

# -- 04.10: neighbours in two dimensions ---------------------------------------------------------------------------------

_BLUR = '''\
def blur(a, out):
    """out[y, x] = a[y, x] + its four neighbours, 0 beyond the edge; blocks of 16 x 16 threads."""
'''
_BLUR_SHAPES = ((48, 48), (40, 50), (16, 5))
# A tile with its border is 18 x 18 for 16 x 16 results: 1.27 loads a result. Straight from global memory it is 5.
_MOST_LOADS = 1.6


def _blur_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns) in enumerate(_BLUR_SHAPES):
        a = whole(np.random.default_rng(seed), rows, columns)
        wide = np.pad(a, 1)
        sums = a + wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        grid = (-(-columns // 16), -(-rows // 16))
        trials.append(Trial(grid, (16, 16), (a, held(a)), {1: sums}, f"for {rows} x {columns} elements"))
    return trials


def _check_blur(answer: Any) -> str:
    found = run_trials(answer, _BLUR + "    ...", _blur_trials)
    ratio = _loaded(found) / (4 * sum(rows * columns for rows, columns in _BLUR_SHAPES))
    if ratio > _MOST_LOADS:
        raise Refused(
            f"The results are right, but each element is loaded {ratio:.2f} times from global memory; at most {_MOST_LOADS} are allowed. "
            "Load the block's 16 x 16 elements and a border of one into shared memory first."
        )
    return f"Each element is loaded {ratio:.2f} times instead of five: the border is all that blocks load twice."


_BLUR_TILE = "    tile = cuda.shared.array((18, 18), float32)\n    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y\n"
_BLUR_FILL = """\
    for k in range(tx + 16 * ty, 18 * 18, 256):  # 324 places, 256 threads
        y = 16 * cuda.blockIdx.y + k // 18 - 1
        x = 16 * cuda.blockIdx.x + k % 18 - 1
        inside = y >= 0 and y < a.shape[0] and x >= 0 and x < a.shape[1]
        tile[k // 18, k % 18] = a[y, x] if inside else float32(0)
"""
_BLUR_SUM = """\
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        across = tile[ty + 1, tx] + tile[ty + 1, tx + 1] + tile[ty + 1, tx + 2]
        out[y, x] = across + tile[ty, tx + 1] + tile[ty + 2, tx + 1]"""

STENCIL = Exercise(
    id="04.10",
    title="a stencil with its halo",
    answer_name="blur",
    stub=_BLUR + "    ...  # cuda.shared.array((18, 18), float32): the block and a border of one",
    solution=HEAD + _BLUR + _BLUR_TILE + _BLUR_FILL + "    cuda.syncthreads()\n" + _BLUR_SUM,
    hints=(
        "A tile of 18 x 18 holds the block's elements and their neighbours. It has 324 places, and the block has 256 threads.",
        "Number the places: k from tx + 16 * ty to 324 in steps of 256. Place k lies in row k // 18 and column k % 18 of the tile.",
        "Beyond the edge of a the tile gets 0: test the four bounds before you load. Then a barrier, then five places of the tile.",
    ),
    check=_check_blur,
    usual=(
        Usual(
            HEAD + _BLUR + "    x, y = cuda.grid(2)\n    if y < a.shape[0] and x < a.shape[1]:\n        total = a[y, x]\n"
            "        if y > 0:\n            total += a[y - 1, x]\n        if y + 1 < a.shape[0]:\n            total += a[y + 1, x]\n"
            "        if x > 0:\n            total += a[y, x - 1]\n        if x + 1 < a.shape[1]:\n            total += a[y, x + 1]\n"
            "        out[y, x] = total",
            "times from global memory",
        ),
        Usual(HEAD + _BLUR + _BLUR_TILE + _BLUR_FILL + _BLUR_SUM, "There is a race"),
        Usual(
            HEAD + _BLUR + _BLUR_TILE + "    x, y = cuda.grid(2)\n    if y < a.shape[0] and x < a.shape[1]:\n"
            "        tile[ty + 1, tx + 1] = a[y, x]\n    cuda.syncthreads()\n" + _BLUR_SUM,
            "nothing was written to",
        ),
        Usual(
            HEAD + _BLUR + _BLUR_TILE + _BLUR_FILL.replace("a[y, x] if inside else float32(0)", "a[y, x]") + "    cuda.syncthreads()\n"
            + _BLUR_SUM,
            "out of an array's bounds",
        ),
        Usual(
            HEAD + _BLUR + _BLUR_TILE + _BLUR_FILL + "    cuda.syncthreads()\n" + _BLUR_SUM.replace(" + tile[ty, tx + 1]", ""),
            "The result is wrong",
        ),
        Usual(
            HEAD + _BLUR + _BLUR_TILE + _BLUR_FILL + "    cuda.syncthreads()\n" + _BLUR_SUM.replace("out[y, x] =", "out[y, x] +="),
            "The result is wrong for 48 x 48 elements: 2,304 of 2,304 elements.",
        ),
    ),
)  # fmt: skip

# -- 04.12: softmax of a row ---------------------------------------------------------------------------------------------

_SOFTMAX = '''\
def softmax(x, y):
    """y[row] = exp(x[row] - its largest) / the sum of these; one block of 128 threads for each row."""
'''
# (rows, columns, what their elements lie near, what a row of such elements asks for)
_SOFTMAX_ROWS = (
    (3, 1000, 0, ""),
    (2, 100, 0, ""),
    (2, 320, 1000, "whose exponentials overflow unless the largest is subtracted first"),
    (2, 200, -1000, "whose exponentials all vanish unless the largest is subtracted first: it is one of the row's, and not 0"),
)


def _softmax_trials() -> list[Trial]:
    trials = []
    for seed, (rows, columns, near, why) in enumerate(_SOFTMAX_ROWS):
        x = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32) + np.float32(near)
        words = f"for rows of elements near {near:,}, {why}" if why else f"for rows of {columns} elements"
        wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        trials.append(Trial(rows, 128, (x, held(x)), {1: wide / wide.sum(1, keepdims=True)}, words, 1e-5))
    return trials


def _check_softmax(answer: Any) -> str:
    found = run_trials(answer, _SOFTMAX + "    ...", _softmax_trials)
    # Three walks by whole warps; 128 threads leave up to four warps part of the way at a row's end.
    most = 3 * sum(rows * (columns // 32 + 4) for rows, columns, *_ in _SOFTMAX_ROWS)
    loads = totals(found, "global_load_requests")
    walks = _loaded(found) / (4 * sum(rows * columns for rows, columns, *_ in _SOFTMAX_ROWS))
    if loads > most:
        words = f"The results are right, but warps load {loads:,} times; three walks over the rows need at most {most:,}."
        if _loaded(found) / 4 / loads >= LEAST_LANES:
            raise Refused(
                f"{words} Your warps share the row, but these are {walks:.1f} walks over the rows: reading y again counts as one. Keep the "
                "exponential in a variable until you have stored it and added it."
            )
        raise Refused(f"{words} Share the row among the block: thread t takes elements t, t + 128, t + 256, ...")
    right = "Right, also where exponentials would overflow; each row is loaded"
    if round(walks) <= 1:
        return f"{right} once, and kept."
    return f"{right} {walks:.0f} times. Kept in shared memory it would be once."


def _softmax_text(first: str = "    cuda.syncthreads()\n", largest: str = "tile[0]", divisor: str = "tile[0]") -> str:
    return f"""\
    tile = cuda.shared.array(128, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    best = x[row, 0]
    for k in range(t, x.shape[1], 128):
        best = max(best, x[row, k])
    tile[t] = best
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] = max(tile[t], tile[t + step])
        cuda.syncthreads()
        step //= 2
    largest = {largest}
{first}    total = float32(0)
    for k in range(t, x.shape[1], 128):
        total += math.exp(x[row, k] - largest)
    tile[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncthreads()
        step //= 2
    for k in range(t, x.shape[1], 128):
        y[row, k] = math.exp(x[row, k] - largest) / {divisor}"""


_SOFTMAX_HEAD = "import math\n\n" + HEAD

SOFTMAX = Exercise(
    id="04.12",
    title="softmax of a row",
    answer_name="softmax",
    stub=_SOFTMAX + "    ...  # math.exp, max, and what you know of reductions",
    solution=_SOFTMAX_HEAD + _SOFTMAX + _softmax_text(),
    hints=(
        "Three parts: the largest element, the sum of the exponentials, the quotients. The first two are reductions of the block.",
        "Each thread first takes elements t, t + 128, t + 256, ... alone; then the 128 results meet in shared memory, as in 04.6.",
        "If you use one tile for both reductions: everyone must have read the largest before anyone overwrites it.",
    ),
    check=_check_softmax,
    usual=(
        Usual(_SOFTMAX_HEAD + _SOFTMAX + _softmax_text(largest="float32(0)"), "overflow unless the largest is subtracted"),
        Usual(_SOFTMAX_HEAD + _SOFTMAX + _softmax_text().replace("best = x[row, 0]", "best = float32(0)"), "and not 0"),
        Usual(_SOFTMAX_HEAD + _SOFTMAX + _softmax_text(first=""), "There is a race"),
        Usual(_SOFTMAX_HEAD + _SOFTMAX + _softmax_text(divisor="total"), "The result is wrong"),
        Usual(
            _SOFTMAX_HEAD + _SOFTMAX + "    row = cuda.blockIdx.x\n    if cuda.threadIdx.x == 0:\n        largest = x[row, 0]\n"
            "        for k in range(x.shape[1]):\n            largest = max(largest, x[row, k])\n        total = float32(0)\n"
            "        for k in range(x.shape[1]):\n            total += math.exp(x[row, k] - largest)\n"
            "        for k in range(x.shape[1]):\n            y[row, k] = math.exp(x[row, k] - largest) / total",
            "Share the row among the block",
        ),
        Usual(
            _SOFTMAX_HEAD + _SOFTMAX + _softmax_text()
            .replace("total += math.exp(x[row, k] - largest)", "y[row, k] = math.exp(x[row, k] - largest)\n        total += y[row, k]")
            .replace("y[row, k] = math.exp(x[row, k] - largest) / tile[0]", "y[row, k] = y[row, k] / tile[0]"),
            "reading y again counts as one",
        ),
        Usual(
            _SOFTMAX_HEAD + _SOFTMAX + _softmax_text()
            .replace("total += math.exp(x[row, k] - largest)", "part = math.exp(x[row, k] - largest)\n        total += part\n"
                     "        x[row, k] = part")
            .replace("y[row, k] = math.exp(x[row, k] - largest) / tile[0]", "y[row, k] = x[row, k] / tile[0]"),
            "changes x, which others may still need; only y may change",
        ),
    ),
)  # fmt: skip

# -- 04.14: a matmul that moves less -------------------------------------------------------------------------------------

_MATMUL = '''\
def matmul(a, b, c):
    """c = a b for square matrices; blocks of 16 x 16 threads, one thread for each element of c."""
    j, i = cuda.grid(2)
'''
_MATMUL_STUB = (
    _MATMUL
    + """\
    if i < c.shape[0] and j < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total"""
)
_MATMUL_SIZES = (64, 40)
# Of 64 x 64 matrices with tiles of 16 x 16: 16 blocks load 4 pairs of tiles of 1 KiB, and 16 KiB are stored.
_STORED = 16 * 1024
_MOST_MOVED = 16 * 4 * 2 * 1024 + _STORED


def _matmul_trials() -> list[Trial]:
    trials = []
    for seed, n in enumerate(_MATMUL_SIZES):
        rng = np.random.default_rng(seed)
        a, b = whole(rng, n, n), whole(rng, n, n)
        blocks = -(-n // 16)
        trials.append(Trial((blocks, blocks), (16, 16), (a, b, np.zeros_like(a)), {2: a @ b}, f"for {n} x {n} matrices"))
    return trials


def _check_matmul(answer: Any) -> str:
    found = run_trials(answer, _MATMUL_STUB, _matmul_trials)
    count = found[0].totals
    moved = count.global_bytes_moved
    if moved > _MOST_MOVED:
        words = (
            f"The results are right, but {format_bytes(moved)} are moved for 64 x 64 matrices; at most {format_bytes(_MOST_MOVED)} are "
            "allowed."
        )
        if count.global_bytes_requested <= _MOST_MOVED:
            raise Refused(
                f"{words} Your threads ask for {format_bytes(count.global_bytes_requested)}, which is little enough, but a request touches "
                f"{count.sectors_per_request:.1f} sectors where 4 are possible. Neighbouring tx should take neighbouring columns of a, b "
                "and c (as in 04.4)."
            )
        again = _requested(found[:1], "load", read_source(answer).parameters[2])
        if again and moved - again <= _MOST_MOVED:
            raise Refused(
                f"{words} {format_bytes(again)} of them are c itself, which is loaded to be added to: c may hold anything before. Begin "
                "the sum at 0, and store it with =."
            )
        stored = _requested(found[:1], "store")
        if stored > 2 * _STORED:  # twice: a zero first, then the sum
            raise Refused(
                f"{words} {format_bytes(stored)} are stored where {format_bytes(_STORED)} would do: c is written again for each part of "
                "the sum. Add up in a variable, and store it once, at the end."
            )
        raise Refused(f"{words} Let the block bring a tile of a and one of b into shared memory, and use each element 16 times.")
    return f"{format_bytes(moved)} instead of 1.02 MiB: each element that is loaded is used by 16 threads."


def _matmul_text(guard: bool = True, last: str = "        cuda.syncthreads()\n", b_tile: bool = True) -> str:
    a_inside = " if i < a.shape[0] and first + tx < a.shape[1] else float32(0)" if guard else ""
    b_inside = " if first + ty < b.shape[0] and j < b.shape[1] else float32(0)" if guard else ""
    right = "tile_b[k, tx]" if b_tile else "(b[first + k, j] if first + k < b.shape[0] and j < b.shape[1] else float32(0))"
    return f"""\
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    total = float32(0)
    for first in range(0, a.shape[1], 16):
        tile_a[ty, tx] = a[i, first + tx]{a_inside}
        tile_b[ty, tx] = b[first + ty, j]{b_inside}
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * {right}
{last}    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total"""


MATMUL = Exercise(
    id="04.14",
    title="a matmul that moves less",
    answer_name="matmul",
    stub=_MATMUL_STUB,
    solution=HEAD + _MATMUL + _matmul_text(),
    hints=(
        "How many threads of the block read a[i, k]? How many read b[k, j]?",
        "Walk along k in steps of 16: each thread brings one element of a and one of b into two tiles, then all use the tiles 16 times.",
        "Two barriers: before the tiles are read, and before they are overwritten. Beyond the edge a tile holds 0.",
    ),
    check=_check_matmul,
    usual=(
        Usual(HEAD + _MATMUL.replace("j, i", "i, j") + _MATMUL_STUB.removeprefix(_MATMUL), "use each element 16 times"),
        Usual(HEAD + _MATMUL + _matmul_text(b_tile=False), "use each element 16 times"),
        Usual(
            HEAD
            + _MATMUL
            + _matmul_text()
            .replace("            total +=", "            if i < c.shape[0] and j < c.shape[1]:\n                c[i, j] +=")
            .replace("c[i, j] = total", "c[i, j] += total"),
            "Add up in a variable, and store it once, at the end",
        ),
        Usual(
            HEAD
            + _MATMUL
            + _matmul_text(last="        cuda.syncthreads()\n        if i < c.shape[0] and j < c.shape[1]:\n            c[i, j] = total\n"),
            "80.0 KiB are stored where 16.0 KiB would do",
        ),
        Usual(
            HEAD
            + _MATMUL
            + "    row = 16 * cuda.blockIdx.y\n"
            + _matmul_text().replace(
                "tile_a[ty, tx] = a[i, first + tx] if i < a.shape[0] and first + tx < a.shape[1]",
                "tile_a[tx, ty] = a[row + tx, first + ty] if row + tx < a.shape[0] and first + ty < a.shape[1]",
            ),
            "neighbouring columns of a",
        ),
        Usual(
            HEAD + _MATMUL + _matmul_text().replace("c[i, j] = total", "c[i, j] += total"),
            "16.0 KiB of them are c itself, which is loaded to be added to",
        ),
        Usual(HEAD + _MATMUL + _matmul_text(last=""), "There is a race"),
        Usual(HEAD + _MATMUL + _matmul_text(guard=False), "out of an array's bounds"),
        Usual(HEAD + _MATMUL + _matmul_text().replace("tile_b[k, tx]", "tile_b[tx, k]"), "The result is wrong"),
    ),
)
