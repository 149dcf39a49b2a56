"""Bugs: each is a correct kernel with a small edit, what must be found, and the lines at which it may be said.

A line is named by a piece of its text that occurs once. For a race either of its two lines will do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _correct_kernels
import _correct_kernels_more
import numpy as np
from _correct_kernels_more import LAUNCHES, Launch

DEVICE_FUNCTIONS = {"stencil_direct": _correct_kernels.neighbour}


@dataclass(frozen=True)
class Bug:
    """An edit of a kernel: pairs of old and new text, the kind of finding, and pieces of the lines where it may be reported."""

    kernel: str
    edits: tuple[tuple[str, str], ...]
    kind: str
    at: tuple[str, ...]
    launch: int = 0
    changes: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the kernel with the edits, its device function before it."""
        device = DEVICE_FUNCTIONS.get(self.kernel)
        text = (inspect.getsource(device) + "\n\n" if device else "") + inspect.getsource(LAUNCHES[self.kernel][0].kernel)
        for old, new in self.edits:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {self.kernel}"
            text = text.replace(old, new)
        return text

    def build(self, path: Path) -> tuple[Launch, set[int]]:
        """Return the launch with the edited kernel, written to a file, and the lines where the bug may be reported."""
        text = self.text()
        path.write_text(text)
        known: dict[str, Any] = vars(_correct_kernels) | vars(_correct_kernels_more)
        exec(compile(text, str(path), "exec"), known)
        kernel: Callable = known[self.kernel]
        lines = set()
        for piece in self.at:
            found = [number for number, line in enumerate(text.splitlines(), 1) if piece in line]
            assert len(found) == 1, f"{piece!r} is in {len(found)} lines of the edited {self.kernel}"
            lines.add(found[0])
        return replace(LAUNCHES[self.kernel][self.launch], kernel=kernel, **self.changes), lines


def without(statement: str) -> tuple[str, str]:
    """Return the edit that leaves a statement out."""
    return statement, "pass"


def indented(lines: str) -> str:
    """Return lines moved to the right, so that they become part of the ``if`` before them."""
    return "".join(f"    {line}" for line in lines.splitlines(keepends=True))


SYNC = "cuda.syncthreads()"
BUGS: list[Bug] = []


def bug(kernel: str, *edits: tuple[str, str], kind: str, at: str | tuple[str, ...], launch: int = 0, **changes: Any) -> None:
    """Register a bug."""
    BUGS.append(Bug(kernel, edits, kind, (at,) if isinstance(at, str) else at, launch, changes))


def no_barrier(kernel: str, name: str, *at: str, launch: int = 0) -> None:
    """Register a kernel that lacks the barrier of a name (its comment), or its only one."""
    bug(kernel, without(f"{SYNC}  # {name}" if name else SYNC), kind="race", at=at, launch=launch)


def barrier_inside_if(kernel: str, name: str, indent: int) -> None:
    """Register a kernel whose barrier slid into the ``if`` before it."""
    line = f"{SYNC}  # {name}"
    bug(kernel, ("\n" + " " * indent + line, "\n" + " " * (indent + 4) + line), kind="barrier", at=line)


# -- matrices -----------------------------------------------------------------------------------------------------------------------
_FILL_A, _FILL_B, _USE = "a_tile[ty, tx] = a[", "b_tile[ty, tx] = b[", "total += a_tile"
no_barrier("matmul", "tiles are full", _FILL_A, _FILL_B, _USE)
no_barrier("matmul", "tiles are used", _USE, "a_tile[ty, tx] = 0", "b_tile[ty, tx] = 0")
bug("matmul", ("if row < c.shape[0] and col < c.shape[1]:", "if True:"), kind="bounds", at="c[row, col] = total", launch=1)
bug("matmul", (" and k + tx < a.shape[1]:", ":"), kind="bounds", at=_FILL_A, launch=1)
bug("matmul", ("col < b.shape[1]:", "col <= b.shape[1]:"), kind="bounds", at=_FILL_B, launch=1)
bug("matmul", ("c[row, col] = total", "c[col, row] = total"), kind="bounds", at="c[col, row] = total", launch=1)
bug("matmul", without("a_tile[ty, tx] = 0"), kind="uninitialised", at=_USE, launch=1)
bug("matmul", without("b_tile[ty, tx] = 0"), kind="uninitialised", at=_USE, launch=2)
bug("matmul", (_FILL_B, "b_tile[tx, ty] = b["), kind="race", at=("b_tile[tx, ty] = b[", "b_tile[ty, tx] = 0"))
bug("matmul", ("range(0, a.shape[1], 16)", "range(0, a.shape[1] - tx, 16)"), kind="barrier", at="# tiles are full", launch=1)
no_barrier("transpose", "", "tile[ty, tx] = a", "b[row, col] = tile")
bug("transpose", ("row < a.shape[0] and col < a.shape[1]", "row < a.shape[0]"), kind="bounds", at="tile[ty, tx] = a", launch=1)
bug(
    "transpose",
    ("row < b.shape[0] and col < b.shape[1]", "row < a.shape[0] and col < a.shape[1]"),
    kind="bounds",
    at="b[row, col] = tile",
    launch=1,
)
bug("transpose", ("col = cuda.blockIdx.y * 16", "col = cuda.blockIdx.x * 16"), kind="race", at="b[row, col] = tile")
bug("transpose", ("(16, 17)", "(16, 15)"), kind="bounds", at=("tile[ty, tx] = a", "b[row, col] = tile"))
bug("transpose", ("col < a.shape[1]:", "col < a.shape[1] - 1:"), kind="uninitialised", at="b[row, col] = tile")
no_barrier("matvec", "parts are there", "part[t] = total", "part[t] += part[t + width]")
no_barrier("matvec", "halved", "part[t] += part[t + width]")
barrier_inside_if("matvec", "halved", 8)
bug("matvec", ("range(t, a.shape[1], 64)", "range(t, a.shape[1] + 1, 64)"), kind="bounds", at="total += a[row", launch=1)
bug("matvec", ("t < width", "t <= width"), kind="bounds", at="part[t] += part[t + width]")
bug("matvec", ("if t == 0:", "if t < 2:"), ("y[row] = part[0]", "y[row] = part[t]"), kind="race", at="y[row] = part[t]")
bug("matvec", ("y[row] = part[0]", "y[row // 2] = part[0]"), kind="race", at="y[row // 2] = part[0]")
bug(
    "matvec",
    ("range(t, a.shape[1], 64)", "range(t + 1, a.shape[1], 64)"),
    ("part[t] = total", "part[t + 1] = total"),
    kind="bounds",
    at="part[t + 1] = total",
)

# -- reductions ---------------------------------------------------------------------------------------------------------------------
no_barrier("reduce_interleaved", "loaded", "part[t] = x[i]", "part[t] += part[t + step]")
no_barrier("reduce_interleaved", "added", "part[t] += part[t + step]")
barrier_inside_if("reduce_interleaved", "added", 8)
bug("reduce_interleaved", ("t % (2 * step) == 0", "t % step == 0"), kind="race", at="part[t] += part[t + step]")
bug("reduce_interleaved", without("part[t] = 0"), kind="uninitialised", at="part[t] += part[t + step]", launch=1)
bug("reduce_interleaved", ("i < x.size", "i <= x.size"), kind="bounds", at="part[t] = x[i]", launch=1)
bug("reduce_interleaved", ("out[cuda.blockIdx.x] = part[0]", "out[0] = part[0]"), kind="race", at="out[0] = part[0]")
no_barrier("reduce_sequential", "loaded", "part[t] = x[i]", "part[t] += part[t + half]")
no_barrier("reduce_sequential", "added", "part[t] += part[t + half]", "out[cuda.blockIdx.x] = part[0]")
bug("reduce_sequential", ("cuda.blockDim.x // 2", "cuda.blockDim.x"), kind="uninitialised", at="part[t] += part[t + half]")
bug("reduce_sequential", ("x[i] if i < x.size else float32(0)", "x[i]"), kind="bounds", at="part[t] = x[i]", launch=1)
bug("reduce_sequential", ("while half > 0", "while half > t // 64"), kind="barrier", at="# added")
bug("reduce_sequential", ("if t < half:", "if t <= half:"), kind="race", at="part[t] += part[t + half]")
bug("reduce_last_warp", without("cuda.syncwarp()  # 32 are left"), kind="race", at=("part[t] += part[t + 32]", "value = part[t + step]"))
bug("reduce_last_warp", without("cuda.syncwarp()  # read"), kind="race", at=("value = part[t + step]", "part[t] += value"))
bug("reduce_last_warp", without("cuda.syncwarp()  # written"), kind="race", at=("value = part[t + step]", "part[t] += value"))
no_barrier("reduce_last_warp", "64 are left", "part[t] += part[t + 64]", "part[t] += part[t + 32]")
no_barrier("reduce_last_warp", "loaded", "part[t] = x[cuda.grid(1)]", "part[t] += part[t + 64]")
bug(
    "reduce_last_warp",
    *(without(f"cuda.syncwarp()  # {name}") for name in ("32 are left", "read", "written")),
    kind="race",
    at=("part[t] += part[t + 32]", "value = part[t + step]", "part[t] += value"),
)
bug("reduce_last_warp", ("if t < 32:", "if t < 48:"), kind="barrier", at=("# 32 are left", "# read", "# written"))
_DOWN, _XOR = "shfl_down_sync(0xFFFFFFFF", "shfl_xor_sync(0xFFFFFFFF"
_STEPS = "    step = 16\n    while step > 0:\n        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)\n        step //= 2\n"
bug("reduce_shuffle", (_STEPS, indented(_STEPS)), kind="shuffle", at=_DOWN, launch=1)
bug(
    "reduce_shuffle",
    ("    if i < x.size:\n        value = x[i]\n", "    if i >= x.size:\n        return\n    value = x[i]\n"),
    kind="shuffle",
    at=_DOWN,
    launch=1,
)
bug(
    "reduce_shuffle",
    ("    if t < 32:\n", "    if t < cuda.blockDim.x // 32:\n"),
    ("        if t < cuda.blockDim.x // 32:\n            value", "        if True:\n            value"),
    kind="shuffle",
    at=_XOR,
)
no_barrier("reduce_shuffle", "sums of warps", "sums[t // 32] = value", "value = sums[t]")
bug("reduce_shuffle", ("if t < cuda.blockDim.x // 32:", "if True:"), kind="uninitialised", at="value = sums[t]")
bug("reduce_shuffle", ("t % 32 == 0", "t % 16 == 0"), kind="race", at="sums[t // 32] = value")
bug("reduce_shuffle", (_DOWN, "shfl_down_sync(0x0000FFFF"), kind="shuffle", at="shfl_down_sync(0x0000FFFF")
bug("dot", ("cuda.atomic.add(out, 0, part[0])", "out[0] += part[0]"), kind="race", at="out[0] += part[0]", launch=1)
no_barrier("dot", "parts are there", "part[t] = total", "part[t] += part[t + half]")
no_barrier("dot", "halved", "part[t] += part[t + half]", "cuda.atomic.add(out, 0, part[0])")
bug("dot", ("* y[i]", "* y[i + 1]"), kind="bounds", at="total += x[i]")
bug("dot", ("half = 64", "half = 128"), kind="bounds", at="part[t] += part[t + half]")
bug("dot", ("range(cuda.grid(1), x", "range(cuda.grid(1) - 1, x"), kind="bounds", at="total += x[i]")
bug("dot", ("out, 0, part[0]", "out, cuda.blockIdx.x, part[0]"), kind="bounds", at="cuda.atomic.add(out", launch=1)
no_barrier("maximum", "begun", "best[0] = -1", "cuda.atomic.max(best")
no_barrier("maximum", "found", "cuda.atomic.max(best", "cuda.atomic.max(out")
bug("maximum", without("best[0] = -1"), kind="uninitialised", at="cuda.atomic.max(best")
bug("maximum", ("cuda.atomic.max(best, 0, x[i])", "best[0] = max(best[0], x[i])"), kind="race", at="best[0] = max")
bug("maximum", ("cuda.atomic.max(out, 0, best[0])", "out[0] = max(out[0], best[0])"), kind="race", at="out[0] = max")

# -- scans --------------------------------------------------------------------------------------------------------------------------
_SUM = "buffers[now, t] + buffers[now, t - step]"
no_barrier("scan_double_buffer", "loaded", "buffers[0, t] = x[i]", _SUM)
no_barrier("scan_double_buffer", "stepped", _SUM, "out[i] = buffers")
bug(
    "scan_double_buffer",
    ("        now = 1 - now\n", ""),
    (f"buffers[1 - now, t] = {_SUM}", f"buffers[now, t] = {_SUM}"),
    kind="race",
    at=_SUM,
)
bug("scan_double_buffer", ("if t >= step:", "if t >= step - 1:"), kind="bounds", at=_SUM)
bug(
    "scan_double_buffer",
    ("        else:\n            buffers[1 - now, t] = buffers[now, t]\n", ""),
    kind="uninitialised",
    at=(_SUM, "out[i] = buffers"),
)
bug(
    "scan_double_buffer",
    (f"        {SYNC}  # stepped", f"        if t >= step:\n            {SYNC}  # stepped"),
    kind="barrier",
    at="# stepped",
)
no_barrier("scan_in_place", "loaded", "part[t] = x[i]", "before = part[t - step]")
no_barrier("scan_in_place", "read", "before = part[t - step]", "part[t] += before")
no_barrier("scan_in_place", "written", "before = part[t - step]", "part[t] += before")
barrier_inside_if("scan_in_place", "read", 8)
bug("scan_in_place", ("while step < cuda.blockDim.x:", "while step < t + 1:"), kind="barrier", at=("# read", "# written"))
no_barrier("scan_blelloch", "up", "part[2 * t] = x", "part[2 * t + 1] = x", "part[right] += part[left]")
no_barrier("scan_blelloch", "down", "kept = part[left]", "part[left] = part[right]", "part[right] += kept", "part[n - 1] = 0")
bug(
    "scan_blelloch",
    (f"{SYNC}  # up\n        if t < d:", f"{SYNC}  # up\n        if t <= d:"),
    kind="bounds",
    at=("part[right] += part[left]",),
    launch=1,
)
bug(
    "scan_of_warps",
    (
        "        other = cuda.shfl_up_sync(0xFFFFFFFF, value, step)\n        if lane >= step:\n            value += other",
        "        if lane >= step:\n            value += cuda.shfl_up_sync(0xFFFFFFFF, value, step)",
    ),
    kind="shuffle",
    at="shfl_up_sync",
)
no_barrier("scan_of_warps", "sums are there", "sums[t // 32] = value", "before += sums[w]")
bug("scan_of_warps", ("if lane == 31:", "if lane >= 30:"), kind="race", at="sums[t // 32] = value")
bug("scan_of_warps", ("range(t // 32)", "range(t // 32 + 1, 32)"), kind="uninitialised", at="before += sums[w]")

# -- histograms, queues, flags ------------------------------------------------------------------------------------------------------
_ADD, _FLUSH = "cuda.atomic.add(mine, x[i], 1)", "cuda.atomic.add(bins, b, mine[b])"
no_barrier("histogram", "cleared", "mine[b] = 0", _ADD)
no_barrier("histogram", "counted", _ADD, _FLUSH)
bug("histogram", (_ADD, "mine[x[i]] += 1"), kind="race", at="mine[x[i]] += 1")
bug("histogram", (_FLUSH, "bins[b] += mine[b]"), kind="race", at="bins[b] += mine[b]")
bug("histogram", ("range(t, 64,", "range(t, 48,"), kind="uninitialised", at=(_ADD, _FLUSH))
bug(
    "histogram",
    ("    for b in range(t, 64, cuda.blockDim.x):\n        mine[b] = 0", "    if t < 64:\n        mine[t] = 0"),
    kind="uninitialised",
    at=(_ADD, _FLUSH),
    launch=1,
)
bug("histogram", ("bins.size", "bins.size + 1"), kind="bounds", at=_FLUSH)
bug("histogram_global", ("cuda.atomic.add(bins, x[i], 1)", "bins[x[i]] += 1"), kind="race", at="bins[x[i]] += 1")
bug("histogram_global", ("i < x.size", "i <= x.size"), kind="bounds", at="cuda.atomic.add")
bug("histogram_global", ("bins, x[i]", "bins, x[i] + 1"), kind="bounds", at="cuda.atomic.add")
bug(
    "append",
    ("slot = cuda.atomic.add(length, 0, 1)", "slot = length[0]\n        length[0] = slot + 1"),
    kind="race",
    at=("slot = length[0]", "length[0] = slot + 1", "queue[slot]"),
)
bug("append", ("queue[slot] =", "queue[length[0] - 1] ="), kind="race", at=("slot = cuda", "queue[length[0] - 1]"))
bug("append", ("x[i] % 3 == 0", "x[i] % 3 >= 0"), ("queue[slot] =", "queue[slot + 1] ="), kind="bounds", at="queue[slot + 1]")
bug("any_negative", ("flag[0] = 1", "flag[0] = i"), kind="race", at="flag[0] = i")
bug("any_negative", ("flag[0] = 1", "flag[0] += 1"), kind="race", at="flag[0] += 1")
no_barrier("vote_of_block", "begun", "found[0] = 0", "found[0] = 1")
no_barrier("vote_of_block", "voted", "found[0] = 1", "] = found[0]")
bug("vote_of_block", without("found[0] = 0"), kind="uninitialised", at="] = found[0]", launch=1)
bug("accumulate", ("cuda.atomic.add(out, i % 10, x[i])", "out[i % 10] += x[i]"), kind="race", at="out[i % 10] += x[i]")
bug(
    "accumulate",
    (
        "        cuda.atomic.add(out, i % 10, x[i])",
        "        if i < 10:\n            out[i] = 0\n        cuda.atomic.add(out, i % 10, x[i])",
    ),
    kind="race",
    at=("out[i] = 0", "cuda.atomic.add"),
)
bug(
    "accumulate",
    ("    if i < x.size:", "    if i == 0:\n        out[0] = 0\n    cuda.syncthreads()\n    if i < x.size:"),
    kind="race",
    at=("out[0] = 0", "cuda.atomic.add"),
    launch=1,
)
bug("flags_of_both_blocks", ("out[cuda.gridDim.x] = 1", "out[cuda.gridDim.x] = b"), kind="race", at="out[cuda.gridDim.x] = b", launch=1)
bug("flags_of_both_blocks", ("out[b] = 1", "out[b] = i"), kind="race", at="out[b] = i")

# -- stencils -----------------------------------------------------------------------------------------------------------------------
_HALO = "tile[65] = "
no_barrier("stencil", "", "tile[t + 1] = x[i]", "tile[0] =", _HALO, "y[i] = tile")
bug("stencil", ("        tile[65] = x[i + 1] if i + 1 < x.size else float32(0)", "        pass"), kind="uninitialised", at="y[i] = tile")
bug("stencil", ("x[i - 1] if i > 0 else float32(0)", "x[i - 1]"), kind="bounds", at="tile[0] =")
bug("stencil", ("if i + 1 < x.size", "if i < x.size"), kind="bounds", at=_HALO)
bug("stencil", ("array(66,", "array(65,"), kind="bounds", at=(_HALO, "y[i] = tile"))
bug("stencil", without("tile[t + 1] = 0"), kind="uninitialised", at="y[i] = tile", launch=3)
bug("stencil_direct", ("i >= x.size", "i > x.size"), kind="bounds", at="return x[i]")
bug("stencil_direct", ("if i < 0 or ", "if "), kind="bounds", at="return x[i]")
bug("stencil_direct", ("y[i] = neighbour", "x[i] = neighbour"), kind="race", at=("x[i] = neighbour", "return x[i]"))
no_barrier("smooth", "loaded", "row[t] = x", "left = row", "right = row")
no_barrier("smooth", "read", "left = row", "right = row", "row[t] = left")
no_barrier("smooth", "written", "left = row", "right = row", "row[t] = left", launch=1)
bug("smooth", ("max(t - 1, 0)", "t - 1"), kind="bounds", at="left = row")
bug("smooth", ("min(t + 1, 63)", "t + 1"), kind="bounds", at="right = row")
no_barrier("ping_pong", "", "y[t] = x", "x[t] = y", launch=1)
bug("ping_pong", ("t = cuda.threadIdx.x", "t = cuda.grid(1)"), kind="race", at=("y[t] = x", "x[t] = y"), launch=1, grid=2, block=50)
bug("ping_pong", ("y[t] = x[", "x[t] = x["), kind="race", at=("x[t] = x[",))
no_barrier("blur", "", "tile[k // 10, k % 10] = value", "total += tile")
bug("blur", ("100, 64)", "96, 64)"), kind="uninitialised", at="total += tile")
bug("blur", ("xx < image.shape[1]", "xx <= image.shape[1]"), kind="bounds", at="value = image")
bug("blur", ("yy >= 0 and yy", "yy"), kind="bounds", at="value = image")
bug("blur", ("r < out.shape[0] and c < out.shape[1]", "r < out.shape[1] and c < out.shape[0]"), kind="bounds", at="out[r, c] =", launch=1)
bug("blur", ("range(3):\n                total", "range(4):\n                total"), kind="bounds", at="total += tile")
no_barrier("convolve", "", "tile[k] = 0", "tile[k] = x", "total += WEIGHTS", launch=1)
bug("convolve", ("range(t, 68, 64)", "range(t, 66, 64)"), kind="uninitialised", at="total += WEIGHTS")
bug("convolve", ("base + k >= 0 and ", ""), kind="bounds", at="tile[k] = x")
bug("convolve", ("array(68,", "array(67,"), kind="bounds", at=("tile[k] = 0", "tile[k] = x", "total += WEIGHTS"), launch=1)
bug("life", ("(c + dx) % columns", "c + dx"), kind="bounds", at="alive += now")
bug("life", ("after[r, c] =", "now[r, c] ="), kind="race", at=("now[r, c] = ", "alive += now"))
bug("life", ("rows, columns = now.shape", "columns, rows = now.shape"), kind="bounds", at=("alive += now", "after[r, c] ="), launch=1)

# -- elementwise --------------------------------------------------------------------------------------------------------------------
bug("double_in_place", ("i < x.size", "i <= x.size"), kind="bounds", at="x[i] = 2", launch=1)
bug("double_in_place", ("if i < x.size", "if True"), kind="bounds", at="x[i] = 2", launch=3)
bug("double_in_place", ("x[i] = 2 * x[i]", "x[i] += x[(i + 1) % x.size]"), kind="race", at="x[i] += x")
bug("double_in_place", ("x[i] = 2", "x[i // 2] = 2"), kind="race", at="x[i // 2] = 2")
bug("double_in_place", ("x[i] = 2 * x[i]", "x[x.size - 1 - i] = 2 * x[i]"), kind="race", at="x[x.size - 1 - i]", launch=1)
bug("saxpy", ("x.size, cuda.gridsize(1)", "x.size, cuda.blockDim.x"), kind="race", at="y[i] = a")
bug("saxpy", ("range(cuda.grid(1)", "range(cuda.threadIdx.x"), kind="race", at="y[i] = a")
bug("saxpy", ("y[i] = a", "y[i + 1] = a"), kind="race", at="y[i + 1] = a")
bug("saxpy", ("x.size, ", "x.size + 1, "), kind="bounds", at="y[i] = a", launch=1)
bug("image_scale", ("c < a.shape[1] and r < a.shape[0]", "c < a.shape[0] and r < a.shape[1]"), kind="bounds", at="out[r, c] =")
bug("image_scale", ("c < a.shape[1]", "c <= a.shape[1]"), kind="bounds", at="out[r, c] =")
bug("image_scale", (" and r < a.shape[0]", ""), kind="bounds", at="out[r, c] =", launch=2)
bug("image_scale", ("out[r, c] =", "out[r, c // 2] ="), kind="race", at="out[r, c // 2] =")
bug("early_return", ("i >= x.size", "i > x.size"), kind="bounds", at="y[i] = x")
bug(
    "early_return_then_barrier",
    (f"    if t >= 40:\n        return\n    part[t] = x[i]\n    {SYNC}", f"    if t < 40:\n        part[t] = x[i]\n        {SYNC}"),
    kind="barrier",
    at=SYNC,
)
bug("early_return_then_barrier", ("39 - t", "40 - t"), kind="uninitialised", at="out[i] = part")
no_barrier("early_return_then_barrier", "", "part[t] = x", "out[i] = part")
no_barrier("broadcast", "", "first[0] = x", "] = first[0]")
bug("broadcast", ("cuda.threadIdx.x == 0", "cuda.grid(1) == 0"), kind="uninitialised", at="] = first[0]", launch=1)
bug(
    "broadcast",
    ("threadIdx.x == 0", "threadIdx.x < 2"),
    ("x[cuda.blockIdx.x]", "x[cuda.blockIdx.x] + cuda.threadIdx.x"),
    kind="race",
    at="first[0] = x",
)
no_barrier("reverse_dynamic", "", "part[t] = x", "= part[n")
bug("reverse_dynamic", ("part[n - 1 - t]", "part[n - t]"), kind="bounds", at="= part[n")
bug("reverse_dynamic", kind="bounds", at=("part[t] = x", "= part[n"), dynamic_shared_bytes=4 * 63)

# -- rows, sorts, parts of a block --------------------------------------------------------------------------------------------------
no_barrier("softmax_rows", "maxima are there", "part[t] = best", "part[t] = max")
no_barrier("softmax_rows", "maxima halved", "part[t] = max", "best = part[0]")
no_barrier("softmax_rows", "maximum is read", "best = part[0]", "part[t] = total")
no_barrier("softmax_rows", "sums are there", "part[t] = total", "part[t] += part")
no_barrier("softmax_rows", "sums halved", "part[t] += part", "/ part[0]")
bug("softmax_rows", ("e = math.exp(x[r, c] - best)", "e = math.exp(x[r, c + 1] - best)"), kind="bounds", at="e = math.exp")
no_barrier("producer_consumer", "box is handed over", "box[turn % 2, lane] = ", "2 * box[", launch=1)
bug(
    "producer_consumer",
    ("box[turn % 2, lane]", "box[0, lane]"),
    ("box[(turn - 1) % 2, lane]", "box[0, lane]"),
    kind="race",
    at=("box[0, lane] = x", "2 * box[0"),
    launch=1,
)
bug("producer_consumer", ("if turn < turns:", "if turn <= turns:"), kind="bounds", at="= x[turn * 32")
bug("producer_consumer", ("elif turn > 0:", "else:"), kind="uninitialised", at="2 * box[")
barrier_inside_if("producer_consumer", "box is handed over", 8)
no_barrier("bitonic_sort", "loaded", "part[t] = x", "a = part[t]", "b = part[other]", "part[t] = b", "part[other] = a")
no_barrier("bitonic_sort", "exchanged", "a = part[t]", "b = part[other]", "part[t] = b", "part[other] = a")
bug(
    "bitonic_sort",
    ("if other > t:", "if other >= 0:"),
    kind="race",
    at=("a = part[t]", "b = part[other]", "part[t] = b", "part[other] = a"),
)
barrier_inside_if("bitonic_sort", "exchanged", 12)
bug("bitonic_sort", ("while k <= n", "while k <= 2 * n"), kind="bounds", at=("b = part[other]",), launch=1)
_ODD_EVEN = ("part[t] > part[t + 1]:", "kept = part[t]", "part[t] = part[t + 1]", "part[t + 1] = kept")
no_barrier("odd_even_sort", "turn", *_ODD_EVEN, "part[t] = x")
bug(
    "odd_even_sort",
    without(f"{SYNC}  # sorted"),
    kind="race",
    at=(*_ODD_EVEN, "x[cuda.grid(1)] = part[t]"),
    make=lambda: (np.arange(64, dtype=np.float32)[::-1].copy(),),
)
bug("odd_even_sort", (" and t + 1 < n and", " and"), kind="bounds", at=_ODD_EVEN)
bug("odd_even_sort", ("t % 2 == turn % 2 and ", ""), kind="race", at=_ODD_EVEN)
bug("segmented_sum", ("s < starts.size - 1", "s < starts.size"), kind="bounds", at="for i in range", grid=3)
bug("segmented_sum", ("starts[s + 1])", "starts[s + 1] + 1)"), kind="bounds", at="total += x[i]")
bug("segmented_sum", ("out[s] =", "out[s // 2] ="), kind="race", at="out[s // 2] =")
no_barrier("largest_place", "loaded", "values[t] = x[i]", "places[t] = i", "if t < half", "values[t] = values", "places[t] = places")
no_barrier("largest_place", "halved", "if t < half", "values[t] = values", "places[t] = places", "] = places[0]")
bug("largest_place", without("values[t] = -math.inf"), kind="uninitialised", at="if t < half", launch=1)
no_barrier("sums_of_columns", "", "part[ty, tx] =", "total += part")
bug("sums_of_columns", ("if ty == 0 and c <", "if c <"), kind="race", at="out[c] = total")
bug(
    "sums_of_columns",
    ("    if c < a.shape[1]:\n        for", "    if c <= a.shape[1]:\n        for"),
    kind="bounds",
    at="total += a",
    launch=1,
)
bug("sums_of_columns", ("range(1, 8)", "range(1, 9)"), kind="bounds", at="total += part")
_CLEAR = ("    if t == 0:\n        total[0] = 0\n    for", "    if t == 0:\n        total[0] = 0 * t\n    for")
no_barrier("normalise", "summed", "cuda.atomic.add", "y[r, t] =")
bug("normalise", _CLEAR, without(f"{SYNC}  # cleared"), kind="race", at=("total[0] = 0 * t", "cuda.atomic.add"))
bug(
    "normalise",
    _CLEAR,
    without(f"{SYNC}  # used"),
    ("            total[0] = 0", "            total[0] = 0.0"),
    kind="race",
    at=("y[r, t] =", "total[0] = 0.0"),
)
bug("normalise", ("cuda.atomic.add(total, 0, x[r, t])", "total[0] += x[r, t]"), kind="race", at="total[0] += x")
no_barrier("until_settled", "settled", "row[t] = x", "left = row", "changed = row", "row[t] = left")
bug("until_settled", ("while going > 0:", "while going > 0 and row[t] > 0:"), kind="barrier", at=("# settled", "syncthreads_or"))
no_barrier("tile_of_rows", "", "tile[k, j, i] =", "= tile[i, j, k]")
bug("tile_of_rows", ("tile[k, j, i] =", "tile[k, i, i] ="), kind="race", at="tile[k, i, i] =")

# -- within a warp ------------------------------------------------------------------------------------------------------------------
_PUT, _GET = "tile[w, lane] = x", "= tile[w, lane // 4"
bug("warp_transpose", without("cuda.syncwarp()  # written"), kind="race", at=(_PUT, _GET))
bug("warp_transpose", without("cuda.syncwarp()  # read"), kind="race", at=(_PUT, _GET))
bug("warp_transpose", ("w = t // 32", "w = t // 64"), kind="race", at=(_PUT, _GET), launch=1)
_TURN = "y[cuda.grid(1)] = part"
bug("groups_of_eight", without("cuda.syncwarp(members)  # written"), kind="race", at=("part[t] = x", _TURN))
bug("groups_of_eight", ("0xFF <<", "0x7F <<"), kind="race", at=("part[t] = x", _TURN))
bug("groups_of_eight", ("(7 - t % 8)", "(15 - t % 16)"), ("t - t % 8 +", "t - t % 16 +"), kind="race", at=("part[t] = x", _TURN))
bug("half_warps", ("0x0000FFFF", "0x000000FF"), kind="race", at=("part[t] = x", "= part[t ^ 1]"))
bug("half_warps", ("part[t ^ 3]", "part[t ^ 16]"), kind="race", at=("part[t] = x", "= part[t ^ 16]"))
bug("half_warps", ("if t % 32 < 16:", "if t % 32 < 15:"), kind="barrier", at=("# lower", "# upper"))
bug("compact", ("base + cuda.popc(bits & cuda.lanemask_lt())", "base + t % 32 // 4"), kind="race", at="out[slot] =")
bug(
    "compact",
    (
        "    base = cuda.shfl_sync(0xFFFFFFFF, base, 0)\n    if wanted:\n",
        "    if wanted:\n        base = cuda.shfl_sync(0xFFFFFFFF, base, 0)\n",
    ),
    kind="shuffle",
    at="shfl_sync",
)
bug(
    "compact",
    ("base = cuda.atomic.add(length, 0, cuda.popc(bits))", "base = length[0]\n        length[0] = base + cuda.popc(bits)"),
    kind="race",
    at=("base = length[0]", "length[0] = base"),
)
bug("compact", ("i < x.size and ", ""), kind="bounds", at="wanted = x[i]", launch=1)
bug("neighbours_by_shuffle", kind="shuffle", at="right = ", launch=1, grid=6, block=48)
bug(
    "neighbours_by_shuffle",
    ("    right = cuda.shfl_down_sync(0xFFFFFFFF, value, 1)\n", ""),
    ("left + value + right", "left + value + cuda.shfl_down_sync(0xFFFFFFFF, value, 1)"),
    kind="shuffle",
    at="shfl_down_sync",
)
bug("butterfly_of_half", ("range(4)", "range(5)"), kind="shuffle", at="shfl_xor_sync")
bug("butterfly_of_half", ("t % 32 < 16:", "t % 32 < 12:"), kind="shuffle", at="shfl_xor_sync")
bug(
    "last_block_done",
    without("cuda.threadfence()  # before the ticket"),
    kind="race",
    at=("part[cuda.blockIdx.x] =", "+= part[k]"),
    launch=1,
)
bug(
    "last_block_done",
    ("last[0] == cuda.gridDim.x - 1", "last[0] == cuda.gridDim.x - 2"),
    kind="race",
    at=("part[cuda.blockIdx.x] =", "+= part[k]"),
    launch=1,
)
no_barrier("last_block_done", "ticket is there", "last[0] = cuda", "if last[0] ==")
