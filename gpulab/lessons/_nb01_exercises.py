"""The exercises of notebook 01: count divergent warps, mend a kernel, choose a block, fit its resources, read a latency curve."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gpulab.errors import GpulabError
from gpulab.hierarchy import Latency
from gpulab.lessons import _architecture, _guard, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Seen, Usual
from gpulab.units import format_bytes, format_ratio, format_seconds, parse_bytes, plural

# -- 01.3: divergent warps -----------------------------------------------------------------------------------------------


def _divergent_warps() -> list[int]:
    from gpulab.kernels import simulate
    from gpulab.lessons._branches import BRANCHES  # loads numba where it is installed

    threads = _architecture.BRANCH_GRID * _architecture.BRANCH_BLOCK
    return [
        simulate(kernel, _architecture.BRANCH_GRID, _architecture.BRANCH_BLOCK, np.zeros(threads, np.int32)).totals.divergent_branches
        for kernel in BRANCHES
    ]


_THREE = "three whole numbers, one a kernel"
_WARPS = _architecture.BRANCH_GRID * _architecture.BRANCH_BLOCK // 32


def _check_divergent(answer: Any) -> str:
    listed = _guard.listed(answer)
    if not isinstance(listed, (tuple, list)) or len(listed) != 3:
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects {_THREE}.")
    given = [_guard.number(value, "a number of warps") for value in listed]
    for name, mine, right in zip("abc", given, _divergent_warps(), strict=True):
        if mine == right:
            continue
        if mine > _WARPS:
            raise Refused(f"{name}: {mine:g} is more than the {_WARPS} warps that there are. Count warps, not threads.")
        if name == "a":
            raise Refused("a: even and odd numbers stand side by side, so look at which warps hold both kinds.")
        if name == "b":
            raise Refused("b: half of the warps go one way and half the other. Is there one in which lanes go different ways?")
        raise Refused("c: only the warp in which the first hundred end can hold lanes of both kinds. Which threads does it hold?")
    return "Right: a warp diverges where its own lanes disagree. What other warps do costs it nothing."


_DIVERGENT_HINTS = (
    "A block of 128 threads has four warps: threads 0 to 31, 32 to 63, and so on. In how many of the 16 warps do lanes disagree?",
    "100 = 3 x 32 + 4.",
)
DIVERGENT = Exercise(
    id="01.3",
    title="count the divergent warps",
    answer_name="divergent",
    stub="divergent = [..., ..., ...]  # warps of a, b and c whose lanes go two ways",
    solution="divergent = [16, 0, 1]",
    hints=_DIVERGENT_HINTS,
    check=_check_divergent,
    usual=(
        Usual("divergent = [256, 256, 100]", "Count warps, not threads"),
        Usual("divergent = [8, 0, 1]", "which warps hold both kinds"),
        Usual("divergent = [16, 8, 1]", "half of the warps go one way"),
        Usual("divergent = [16, 0, 16]", "the first hundred end"),
        Usual("divergent = 17", "three whole numbers"),
    ),
    loads=_loading.KERNELS,
)

# -- 01.4: mend a kernel that diverges -----------------------------------------------------------------------------------

_N, _BLOCK = 256, 64


def _expected(x: np.ndarray) -> np.ndarray:
    even = np.arange(x.size) % 2 == 0
    return np.where(even, 2 * x, -x)


def _check_repair(answer: Any) -> str:
    from gpulab.kernels import simulate

    if not callable(answer):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a kernel, a function of x and out.")
    most = 0.0
    for seed in (1, 2):
        x = np.random.default_rng(seed).integers(1, 1000, _N).astype(np.float32)
        kept, out = x.copy(), np.zeros_like(x)
        try:
            s = simulate(answer, _N // _BLOCK, _BLOCK, x, out)
        except GpulabError as error:
            raise Refused(str(error)) from error
        if not s.totals.executed_warps:
            raise NotAttempted
        if s.findings:
            raise Refused(f"The microscope found: {s.findings[0]}")
        if not np.array_equal(x, kept):
            raise Refused("Your kernel changes x; only out may change.")
        _compare(out, _expected(x))
        if s.totals.divergent_branches:
            raise Refused(
                f"The results are right, but {s.totals.divergent_branches} of {s.totals.branches} tests still send lanes of "
                "one warp two ways. Give neighbouring threads the same kind of work, or write it without a branch."
            )
        if s.totals.global_bytes_requested < _WARP_BYTES * s.totals.global_requests:  # a conditional expression is counted as no branch
            raise Refused(
                "The results are right, but some loads or stores still run with a part of a warp's lanes: a conditional expression whose "
                "arms load goes both ways too. Load once before it, or give neighbouring threads the same kind of work."
            )
        most = s.totals.global_sectors / s.totals.ideal_global_sectors
    cost = (
        f" The price: neighbouring threads now touch elements that are apart, and {format_ratio(most)} the fewest possible sectors move. "
        "Notebook 04 is about such prices."
        if most > 1.01
        else " And neighbouring threads still touch neighbouring elements."
    )
    return f"No warp diverges, and the results are the same.{cost}"


def _compare(out: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.flatnonzero(out != expected)
    if wrong.size:
        first = int(wrong[0])
        raise Refused(
            f"{wrong.size} of {out.size} results differ; the first is out[{first}]: {out[first]:g} instead of {expected[first]:g}. "
            "Elements of even number are doubled, the others change their sign."
        )


_WARP_BYTES = 32 * 4  # what a request asks for where every lane wants its float32
_HEAD = 'def mended(x, out):\n    """Even elements doubled, odd ones negated; 256 elements, 4 blocks of 64 threads."""\n'
_IMPORT = "from gpulab.kernels import cuda\n\n\n"
REPAIR = Exercise(
    id="01.4",
    title="mend a kernel that diverges",
    answer_name="mended",
    stub=_HEAD + "    ...",
    solution=_IMPORT
    + _HEAD
    + """\
    i = cuda.grid(1)
    half = x.size // 2
    if i < half:  # the first two blocks take the even elements
        k = 2 * i
        out[k] = 2 * x[k]
    else:  # the other two the odd ones
        k = 2 * (i - half) + 1
        out[k] = -x[k]""",
    hints=(
        "A thread need not work on the element of its own number.",
        "There are 128 even elements. Let threads 0 to 127, which are whole warps, take one each, and the other threads the odd ones.",
        "Thread i of the first half takes element 2 * i; thread i of the second half takes 2 * (i - 128) + 1.",
    ),
    check=_check_repair,
    usual=(
        Usual(
            _IMPORT + _HEAD + "    i = cuda.grid(1)\n    if i % 2 == 0:\n        out[i] = 2 * x[i]\n    else:\n        out[i] = -x[i]",
            "tests still send lanes",
        ),
        Usual(
            _IMPORT
            + _HEAD
            + "    i = cuda.grid(1)\n    if (i // 32) % 2 == 0:\n        out[i] = 2 * x[i]\n    else:\n        out[i] = -x[i]",
            "results differ",
        ),
        Usual(_IMPORT + _HEAD + "    i = cuda.grid(1)\n    if i < 128:\n        out[2 * i] = 2 * x[2 * i]", "out[1]: 0"),
        Usual(_IMPORT + _HEAD + "    i = cuda.grid(1)\n    out[i] = 2 * x[i] if i % 2 == 0 else -x[i]", "whose arms load"),
        Usual(_IMPORT + _HEAD + "    i = cuda.grid(1)\n    x[i] = 2 * x[i]", "changes x"),
        Usual(_IMPORT + _HEAD + "    i = cuda.grid(1)\n    y = 2 * x[i]", "out[0]: 0"),
        Usual(_IMPORT + _HEAD + "    i = cuda.grid(1)\n    out[2 * i] = 2 * x[2 * i]", "bounds"),
        Usual("mended = [2, -1]", "expects a kernel"),
    ),
)

# -- 01.6: a block size --------------------------------------------------------------------------------------------------

_REGISTERS, _CAPABILITY = 48, "8.6"
_MOST_WARPS = 40  # of 48: 65,536 registers are enough for 42, and an SM gives them to four warps at a time
_PAIR = "a block size and a limiter, such as (64, 'blocks')"
_LIMITERS = ("warps", "registers", "shared", "blocks")  # the words of the table that gl.models.occupancy shows


def _check_block(answer: Any) -> str:
    from gpulab import models

    if isinstance(answer, (tuple, list)) and any(map(_guard.is_stub, answer)):
        raise NotAttempted
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not isinstance(answer[1], str):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects {_PAIR}.")
    word = answer[1].strip().lower()
    if word not in _LIMITERS:
        raise Refused(f"{answer[1][:40]!r} is no limiter; the check expects one of {', '.join(_LIMITERS)}.")
    size = _guard.number(answer[0], "the threads of a block")
    if size != int(size) or not 1 <= size <= 1024:
        raise Refused(f"A block of {size:g} threads cannot be launched; a block has 1 to 1,024 threads.")
    o = models.occupancy(int(size), _REGISTERS, 0, _CAPABILITY)
    if size % 32:
        raise Refused(
            f"{plural(int(size), 'thread')} {'takes' if size == 1 else 'take'} {plural(o.warps_per_block, 'warp')}, and the last of them "
            "is not full. Take a multiple of 32."
        )
    if o.warps_per_sm < _MOST_WARPS:
        raise Refused(f"{size:g} threads reach {o.ratio:.0%}: {o.explanation} Another block size holds more warps.")
    if word not in o.limiters:
        raise Refused(
            f"The block size is a best one, but {answer[1][:40]!r} is not what limits it: which row of the table allows the fewest blocks?"
        )
    return f"{o.blocks_per_sm} blocks, {o.warps_per_sm} of {o.sm.warps} warps, limited by {' and '.join(o.limiters)}, the most of all."


BLOCK = Exercise(
    id="01.6",
    title="choose a block size, and name its limiter",
    answer_name="choice",
    stub='choice = (..., ...)  # threads of a block, and "warps", "registers", "shared" or "blocks"',
    solution='choice = (128, "registers")',
    hints=(
        f'gl.models.occupancy(256, {_REGISTERS}, 0, "{_CAPABILITY}") shows what each resource allows. Try several sizes.',
        "A very small block meets the limit of blocks; a very large one leaves room that no whole block fits into.",
    ),
    check=_check_block,
    usual=(
        Usual('choice = (1024, "registers")', "1024 threads reach 67%"),
        Usual('choice = (64, "blocks")', "64 threads reach 67%"),
        Usual('choice = (100, "registers")', "not full"),
        Usual('choice = (256, "warps")', "allows the fewest blocks"),
        Usual('choice = (2048, "warps")', "cannot be launched"),
        Usual('choice = (128, "register")', "one of warps, registers, shared, blocks"),
        Usual("choice = 256", "expects a block size and a limiter"),
    ),
)

# -- 01.7: registers and shared memory for a given occupancy -------------------------------------------------------------

_THREADS, _SM, _WANTED = 256, "9.0", 0.75
_TWO = "registers of a thread and bytes of shared memory of a block"


def _check_fit(answer: Any) -> str:
    from gpulab import models

    listed = _guard.listed(answer)
    if not isinstance(listed, (tuple, list)) or len(listed) != 2:
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects {_TWO}.")
    registers, shared = (_guard.number(value, _TWO) for value in listed)
    if registers != int(registers) or shared != int(shared) or not 1 <= registers <= 255 or not 0 <= shared <= 2**20:
        raise Refused(f"{registers:g} registers and {shared:g} bytes: a thread has 1 to 255 registers, and bytes are whole.")
    r, b = int(registers), int(shared)
    if b and b < 1024:
        raise Refused(f"{b} bytes of shared memory: did you write KiB? The check expects bytes.")

    def ratio(registers: int, shared: int) -> float:
        return models.occupancy(_THREADS, registers, shared, _SM).ratio

    if ratio(r, 0) < _WANTED:
        raise Refused(
            f"With {r} registers it is {ratio(r, 0):.0%} even without shared memory. A warp gets registers in steps of 256, "
            "eight for each thread."
        )
    if ratio(r, b) < _WANTED:
        raise Refused(f"With {format_bytes(b)} it is {ratio(r, b):.0%}. From 8.0 on the driver takes 1 KiB more of each block, for itself.")
    if ratio(r + 1, b) >= _WANTED:
        raise Refused(
            f"{plural(r, 'register')} {'keeps' if r == 1 else 'keep'} {_WANTED:.0%}, but so do {r + 1}. The task is the most of both."
        )
    if ratio(r, b + 1024) >= _WANTED:
        raise Refused(f"{format_bytes(b)} keep {_WANTED:.0%}, but so do {format_bytes(b + 1024)}. The task is the most of both.")
    return f"{r} registers and {format_bytes(b)} keep {_WANTED:.0%} on {_SM}: one register or one KiB more, and a whole block less fits."


FIT = Exercise(
    id="01.7",
    title="fit registers and shared memory to an occupancy",
    answer_name="fitted",
    stub="fitted = (..., ...)  # registers of a thread, bytes of shared memory of a block",
    solution="fitted = (40, 37 * 1024)",
    hints=(
        "75 % of 64 warps are 48 warps: six blocks of eight.",
        "Divide the 65,536 registers by six blocks and 256 threads, then round down to a multiple of 8.",
        "Divide the 228 KiB by six, and leave 1 KiB of each share to the driver.",
    ),
    check=_check_fit,
    usual=(
        Usual("fitted = (42, 37 * 1024)", "in steps of 256"),
        Usual("fitted = (40, 38 * 1024)", "1 KiB more"),
        Usual("fitted = (32, 37 * 1024)", "but so do 33"),
        Usual("fitted = (40, 16 * 1024)", "but so do 17.0 KiB"),
        Usual("fitted = (40, 37)", "did you write KiB"),
        Usual("fitted = 40", "registers of a thread and bytes"),
    ),
)

# -- 01.9: read the levels off your own curve ----------------------------------------------------------------------------

_SIZES = "sizes in bytes, such as [32 * 1024, 2**20]"
# Reading a logarithmic axis by eye is good to a factor of two each way.
_EYE = 2.0
_STEP_AT_LEAST, _MISSED_AT_LEAST = 1.2, 2.0


def _check_levels(answer: Any) -> str:
    listed = _guard.listed(answer)
    if not isinstance(listed, (tuple, list)) or not listed:
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects {_SIZES}.")
    given = []
    for value in listed:
        try:
            given.append(float(parse_bytes(value)) if isinstance(value, str) else _guard.number(value, _SIZES))
        except GpulabError as error:
            raise Refused(f"The check cannot read {value[:40]!r} as a size; it expects {_SIZES}.") from error
    if any(b <= a for a, b in itertools.pairwise(given)):
        raise Refused("The sizes must go up: the first cache is the smallest.")
    curve = _architecture.memory_curve()
    sizes = np.array([p.nbytes for p in curve.points], dtype=float)
    times = np.minimum.accumulate(np.array([p.least_seconds for p in curve.points])[::-1])[::-1]
    rises = [level.between_bytes for level in curve.levels().levels if level.between_bytes is not None]
    windows = []
    for size in given:
        _refuse_outside(size, sizes)
        low, high = _window(size, rises)
        before, after = _at(low, sizes, times), _at(high, sizes, times)
        if after < _STEP_AT_LEAST * before:
            raise Refused(
                f"Around {format_bytes(size)} your curve is flat: {format_seconds(before)} a hop at {format_bytes(low)}, "
                f"{format_seconds(after)} at {format_bytes(high)}. What the maker prints is of the whole chip; read the size off the curve."
            )
        windows += [low, high]
    edges = [sizes[0], *windows, sizes[-1]]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        _refuse_missed(start, end, sizes, times)
    found = ", ".join(format_bytes(size) for size in given)
    return f"Your curve rises at {found}. Compare with what the system says, in the table of levels."


def _window(size: float, rises: list[tuple[float, float]]) -> tuple[float, float]:
    """Return what a reader's size stands for: a factor of two each way, and the whole of a rise that it lies in."""
    low, high = size / _EYE, size * _EYE
    for start, end in rises:
        if start <= size <= end:
            low, high = min(low, start), max(high, end)
    return low, high


def _refuse_missed(start: float, end: float, sizes: np.ndarray, times: np.ndarray) -> None:
    """Refuse where the curve doubles within two doublings of the set, between two sizes that were given."""
    for at in [start, *sizes[(sizes > start) & (sizes < end)]]:
        to = min(at * _EYE**2, end)
        rise = _at(to, sizes, times) / _at(at, sizes, times)
        if rise >= _MISSED_AT_LEAST:
            raise Refused(
                f"From {format_bytes(at)} to {format_bytes(to)} a hop gets {format_ratio(rise)} as long; your list has no level's "
                "end there. Every step of the curve is the end of a level."
            )


def _refuse_outside(size: float, sizes: np.ndarray) -> None:
    if size < 512:
        raise Refused(f"{size:g} bytes: did you write KiB? The check expects bytes.")
    if not sizes[0] <= size <= sizes[-1]:
        raise Refused(
            f"{format_bytes(size)} is not on your curve, which goes from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}. "
            "The check expects where a level ends."
        )


def _at(size: float, sizes: np.ndarray, times: np.ndarray) -> float:
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))


LEVELS = Exercise(
    id="01.9",
    title="find where your caches end",
    answer_name="ends",
    stub="ends = [..., ...]  # working sets in bytes at which your curve leaves a level, smallest first",
    solution="import gpulab as gl\n\nends = [size for size in gl.lessons.memory_curve().levels().ends_bytes]",
    hints=(
        "Look for the flat parts: each is a level. Where does one end and the curve go up?",
        "Take the size in the middle of each rise. There are as many as your curve has steps: two, three or four.",
        "curve.levels() finds them too; compare with what you read off.",
    ),
    check=_check_levels,
    usual=(
        Usual("ends = [32, 512, 8192]", "did you write KiB"),
        Usual("ends = [2**22, 2**19, 2**15]", "must go up"),
        Usual("ends = [2**15]", "no level's end there"),
        Usual("ends = [2**15, 2**17, 2**19, 2**23]", "your curve is flat"),
        Usual("ends = [2**15, 2**40]", "not on your curve"),
        Usual("ends = 2**15", "expects sizes in bytes"),
    ),
    limit_seconds=60.0,
    machine="the caches of your processor",
    seen=Seen(
        "the latency curve of your memory",
        Latency,
        lambda: _architecture._curve,
        lambda curve: setattr(_architecture, "_curve", curve),
    ),
)
