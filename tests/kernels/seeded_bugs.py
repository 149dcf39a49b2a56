"""Seeded bugs: small edits of correct kernels, each with the kind of its finding and its lines.

A line is identified by a piece of its text that occurs once. Of a race, either line is accepted.
"""

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kernels_of_blocks
from kernel_case import Case

SYNC = "cuda.syncthreads()"


@dataclass(frozen=True)
class Bug:
    """Edits of a kernel (old and new text), the kind of finding, and pieces of its lines.

    ``launch`` is the number of one of the kernel's cases; ``changes`` replace fields of that case.
    """

    kernel: str
    edits: tuple[tuple[str, str], ...]
    kind: str
    at: tuple[str, ...]
    launch: int
    changes: dict[str, Any]

    def build(self, path: Path) -> tuple[Case, set[int]]:
        """Return the case with the edited kernel, written to a file, and the finding's lines."""
        cases = [c for c in kernels_of_blocks.CASES if c.kernel.__name__ == self.kernel]
        text = inspect.getsource(cases[0].kernel)
        if self.kernel == "stencil_direct":
            text = inspect.getsource(kernels_of_blocks.neighbour) + text
        for old, new in self.edits:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {self.kernel}"
            text = text.replace(old, new)
        path.write_text(text)
        names: dict[str, Any] = dict(vars(kernels_of_blocks))
        exec(compile(text, str(path), "exec"), names)
        lines = set()
        for piece in self.at:
            (line,) = (n for n, each in enumerate(text.splitlines(), 1) if piece in each)
            lines.add(line)
        return replace(cases[self.launch], kernel=names[self.kernel], **self.changes), lines


def bug(
    kernel: str, *edits: tuple[str, str], kind: str, at: Any, launch: int = 0, **changes: Any
) -> Bug:
    """Return a bug; ``changes`` replace fields of the chosen case."""
    return Bug(kernel, edits, kind, (at,) if isinstance(at, str) else at, launch, changes)


def without(statement: str) -> tuple[str, str]:
    """Return the edit that replaces a statement with ``pass``."""
    return statement, "pass"


def no_barrier(kernel: str, name: str, *at: str, launch: int = 0) -> Bug:
    """Return the bug of a missing barrier: the one with the comment ``name``, or the only one."""
    return bug(
        kernel, without(f"{SYNC}  # {name}" if name else SYNC), kind="race", at=at, launch=launch
    )


def barrier_inside_if(kernel: str, name: str, indent: int) -> Bug:
    """Return the bug of a barrier that is indented into the ``if`` before it."""
    line = f"{SYNC}  # {name}"
    edit = "\n" + " " * indent + line, "\n" + " " * (indent + 4) + line
    return bug(kernel, edit, kind="barrier", at=line)


def indented(lines: str) -> str:
    """Return lines moved to the right, so that they become part of the ``if`` before them."""
    return "".join(f"    {line}" for line in lines.splitlines(keepends=True))


BUGS = [
    no_barrier(
        "matmul", "tiles are full", "a_tile[ty, tx] = a[", "b_tile[ty, tx] = b[", "total += a_tile"
    ),
    no_barrier(
        "matmul", "tiles are used", "total += a_tile", "a_tile[ty, tx] = 0", "b_tile[ty, tx] = 0"
    ),
    bug(
        "matmul",
        ("if row < c.shape[0] and col < c.shape[1]:", "if True:"),
        kind="bounds",
        at="c[row, col] = total",
        launch=1,
    ),
    bug(
        "matmul",
        (" and k + tx < a.shape[1]:", ":"),
        kind="bounds",
        at="a_tile[ty, tx] = a[",
        launch=1,
    ),
    bug(
        "matmul",
        ("col < b.shape[1]:", "col <= b.shape[1]:"),
        kind="bounds",
        at="b_tile[ty, tx] = b[",
        launch=1,
    ),
    bug(
        "matmul",
        ("c[row, col] = total", "c[col, row] = total"),
        kind="bounds",
        at="c[col, row] = total",
        launch=1,
    ),
    bug(
        "matmul",
        without("a_tile[ty, tx] = 0"),
        kind="uninitialised",
        at="total += a_tile",
        launch=1,
    ),
    bug(
        "matmul",
        without("b_tile[ty, tx] = 0"),
        kind="uninitialised",
        at="total += a_tile",
        launch=2,
    ),
    bug(
        "matmul",
        ("b_tile[ty, tx] = b[", "b_tile[tx, ty] = b["),
        kind="race",
        at=("b_tile[tx, ty] = b[", "b_tile[ty, tx] = 0"),
    ),
    bug(
        "matmul",
        ("range(0, a.shape[1], 16)", "range(0, a.shape[1] - tx, 16)"),
        kind="barrier",
        at="# tiles are full",
        launch=1,
    ),
    no_barrier("transpose", "", "tile[ty, tx] = a", "b[row, col] = tile"),
    bug(
        "transpose",
        ("row < a.shape[0] and col < a.shape[1]", "row < a.shape[0]"),
        kind="bounds",
        at="tile[ty, tx] = a",
        launch=1,
    ),
    bug(
        "transpose",
        ("row < b.shape[0] and col < b.shape[1]", "row < a.shape[0] and col < a.shape[1]"),
        kind="bounds",
        at="b[row, col] = tile",
        launch=1,
    ),
    bug(
        "transpose",
        ("col = cuda.blockIdx.y * 16", "col = cuda.blockIdx.x * 16"),
        kind="race",
        at="b[row, col] = tile",
    ),
    bug(
        "transpose",
        ("(16, 17)", "(16, 15)"),
        kind="bounds",
        at=("tile[ty, tx] = a", "b[row, col] = tile"),
    ),
    bug(
        "transpose",
        ("col < a.shape[1]:", "col < a.shape[1] - 1:"),
        kind="uninitialised",
        at="b[row, col] = tile",
    ),
    no_barrier("reduce_sequential", "loaded", "part[t] = x[i]", "part[t] += part[t + half]"),
    no_barrier(
        "reduce_sequential", "added", "part[t] += part[t + half]", "out[cuda.blockIdx.x] = part[0]"
    ),
    bug(
        "reduce_sequential",
        ("cuda.blockDim.x // 2", "cuda.blockDim.x"),
        kind="uninitialised",
        at="part[t] += part[t + half]",
    ),
    bug(
        "reduce_sequential",
        ("x[i] if i < x.size else float32(0)", "x[i]"),
        kind="bounds",
        at="part[t] = x[i]",
        launch=1,
    ),
    bug(
        "reduce_sequential",
        ("while half > 0", "while half > t // 64"),
        kind="barrier",
        at="# added",
    ),
    bug(
        "reduce_sequential",
        ("if t < half:", "if t <= half:"),
        kind="race",
        at="part[t] += part[t + half]",
    ),
    bug(
        "reduce_last_warp",
        without("cuda.syncwarp()  # 32 are left"),
        kind="race",
        at=("part[t] += part[t + 32]", "value = part[t + step]"),
    ),
    bug(
        "reduce_last_warp",
        without("cuda.syncwarp()  # read"),
        kind="race",
        at=("value = part[t + step]", "part[t] += value"),
    ),
    bug(
        "reduce_last_warp",
        without("cuda.syncwarp()  # written"),
        kind="race",
        at=("value = part[t + step]", "part[t] += value"),
    ),
    no_barrier(
        "reduce_last_warp", "64 are left", "part[t] += part[t + 64]", "part[t] += part[t + 32]"
    ),
    no_barrier(
        "reduce_last_warp", "loaded", "part[t] = x[cuda.grid(1)]", "part[t] += part[t + 64]"
    ),
    bug(
        "reduce_last_warp",
        *(without(f"cuda.syncwarp()  # {name}") for name in ("32 are left", "read", "written")),
        kind="race",
        at=("part[t] += part[t + 32]", "value = part[t + step]", "part[t] += value"),
    ),
    bug(
        "reduce_last_warp",
        ("if t < 32:", "if t < 48:"),
        kind="barrier",
        at=("# 32 are left", "# read", "# written"),
    ),
    bug(
        "reduce_shuffle",
        (
            (
                "    step = 16\n    while step > 0:\n"
                "        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)\n"
                "        step //= 2\n"
            ),
            indented(
                "    step = 16\n    while step > 0:\n"
                "        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)\n"
                "        step //= 2\n"
            ),
        ),
        kind="shuffle",
        at="shfl_down_sync(0xFFFFFFFF",
        launch=1,
    ),
    bug(
        "reduce_shuffle",
        (
            "    if i < x.size:\n        value = x[i]\n",
            "    if i >= x.size:\n        return\n    value = x[i]\n",
        ),
        kind="shuffle",
        at="shfl_down_sync(0xFFFFFFFF",
        launch=1,
    ),
    bug(
        "reduce_shuffle",
        ("    if t < 32:\n", "    if t < cuda.blockDim.x // 32:\n"),
        (
            "        if t < cuda.blockDim.x // 32:\n            value",
            "        if True:\n            value",
        ),
        kind="shuffle",
        at="shfl_xor_sync(0xFFFFFFFF",
    ),
    no_barrier("reduce_shuffle", "sums of warps", "sums[t // 32] = value", "value = sums[t]"),
    bug(
        "reduce_shuffle",
        ("if t < cuda.blockDim.x // 32:", "if True:"),
        kind="uninitialised",
        at="value = sums[t]",
    ),
    bug("reduce_shuffle", ("t % 32 == 0", "t % 16 == 0"), kind="race", at="sums[t // 32] = value"),
    bug(
        "reduce_shuffle",
        ("shfl_down_sync(0xFFFFFFFF", "shfl_down_sync(0x0000FFFF"),
        kind="shuffle",
        at="shfl_down_sync(0x0000FFFF",
    ),
    bug(
        "scan_of_warps",
        (
            (
                "        other = cuda.shfl_up_sync(0xFFFFFFFF, value, step)\n"
                "        if lane >= step:\n            value += other"
            ),
            (
                "        if lane >= step:\n"
                "            value += cuda.shfl_up_sync(0xFFFFFFFF, value, step)"
            ),
        ),
        kind="shuffle",
        at="shfl_up_sync",
    ),
    no_barrier("scan_of_warps", "sums are there", "sums[t // 32] = value", "before += sums[w]"),
    bug(
        "scan_of_warps",
        ("if lane == 31:", "if lane >= 30:"),
        kind="race",
        at="sums[t // 32] = value",
    ),
    bug(
        "scan_of_warps",
        ("range(t // 32)", "range(t // 32 + 1, 32)"),
        kind="uninitialised",
        at="before += sums[w]",
    ),
    no_barrier("histogram", "cleared", "mine[b] = 0", "cuda.atomic.add(mine, x[i], 1)"),
    no_barrier(
        "histogram",
        "counted",
        "cuda.atomic.add(mine, x[i], 1)",
        "cuda.atomic.add(bins, b, mine[b])",
    ),
    bug(
        "histogram",
        ("cuda.atomic.add(mine, x[i], 1)", "mine[x[i]] += 1"),
        kind="race",
        at="mine[x[i]] += 1",
    ),
    bug(
        "histogram",
        ("cuda.atomic.add(bins, b, mine[b])", "bins[b] += mine[b]"),
        kind="race",
        at="bins[b] += mine[b]",
    ),
    bug(
        "histogram",
        ("range(t, 64,", "range(t, 48,"),
        kind="uninitialised",
        at=("cuda.atomic.add(mine, x[i], 1)", "cuda.atomic.add(bins, b, mine[b])"),
    ),
    bug(
        "histogram",
        (
            "    for b in range(t, 64, cuda.blockDim.x):\n        mine[b] = 0",
            "    if t < 64:\n        mine[t] = 0",
        ),
        kind="uninitialised",
        at=("cuda.atomic.add(mine, x[i], 1)", "cuda.atomic.add(bins, b, mine[b])"),
        launch=1,
    ),
    bug(
        "histogram",
        ("bins.size", "bins.size + 1"),
        kind="bounds",
        at="cuda.atomic.add(bins, b, mine[b])",
    ),
    bug(
        "append",
        ("slot = cuda.atomic.add(length, 0, 1)", "slot = length[0]\n        length[0] = slot + 1"),
        kind="race",
        at=("slot = length[0]", "length[0] = slot + 1", "queue[slot]"),
    ),
    bug(
        "append",
        ("queue[slot] =", "queue[length[0] - 1] ="),
        kind="race",
        at=("slot = cuda", "queue[length[0] - 1]"),
    ),
    bug(
        "append",
        ("x[i] % 3 == 0", "x[i] % 3 >= 0"),
        ("queue[slot] =", "queue[slot + 1] ="),
        kind="bounds",
        at="queue[slot + 1]",
    ),
    bug("any_negative", ("flag[0] = 1", "flag[0] = i"), kind="race", at="flag[0] = i"),
    bug("any_negative", ("flag[0] = 1", "flag[0] += 1"), kind="race", at="flag[0] += 1"),
    bug(
        "flags_of_both_blocks",
        ("out[cuda.gridDim.x] = 1", "out[cuda.gridDim.x] = b"),
        kind="race",
        at="out[cuda.gridDim.x] = b",
        launch=1,
    ),
    bug("flags_of_both_blocks", ("out[b] = 1", "out[b] = i"), kind="race", at="out[b] = i"),
    no_barrier("stencil", "", "tile[t + 1] = x[i]", "tile[0] =", "tile[65] = ", "y[i] = tile"),
    bug(
        "stencil",
        ("        tile[65] = x[i + 1] if i + 1 < x.size else float32(0)", "        pass"),
        kind="uninitialised",
        at="y[i] = tile",
    ),
    bug(
        "stencil", ("x[i - 1] if i > 0 else float32(0)", "x[i - 1]"), kind="bounds", at="tile[0] ="
    ),
    bug("stencil", ("if i + 1 < x.size", "if i < x.size"), kind="bounds", at="tile[65] = "),
    bug("stencil", ("array(66,", "array(65,"), kind="bounds", at=("tile[65] = ", "y[i] = tile")),
    bug("stencil", without("tile[t + 1] = 0"), kind="uninitialised", at="y[i] = tile", launch=3),
    bug("stencil_direct", ("i >= x.size", "i > x.size"), kind="bounds", at="return x[i]"),
    bug("stencil_direct", ("if i < 0 or ", "if "), kind="bounds", at="return x[i]"),
    bug(
        "stencil_direct",
        ("y[i] = neighbour", "x[i] = neighbour"),
        kind="race",
        at=("x[i] = neighbour", "return x[i]"),
    ),
    bug("double_in_place", ("i < x.size", "i <= x.size"), kind="bounds", at="x[i] = 2", launch=1),
    bug("double_in_place", ("if i < x.size", "if True"), kind="bounds", at="x[i] = 2", launch=3),
    bug(
        "double_in_place",
        ("x[i] = 2 * x[i]", "x[i] += x[(i + 1) % x.size]"),
        kind="race",
        at="x[i] += x",
    ),
    bug("double_in_place", ("x[i] = 2", "x[i // 2] = 2"), kind="race", at="x[i // 2] = 2"),
    bug(
        "double_in_place",
        ("x[i] = 2 * x[i]", "x[x.size - 1 - i] = 2 * x[i]"),
        kind="race",
        at="x[x.size - 1 - i]",
        launch=1,
    ),
    bug(
        "saxpy", ("x.size, cuda.gridsize(1)", "x.size, cuda.blockDim.x"), kind="race", at="y[i] = a"
    ),
    bug("saxpy", ("range(cuda.grid(1)", "range(cuda.threadIdx.x"), kind="race", at="y[i] = a"),
    bug("saxpy", ("y[i] = a", "y[i + 1] = a"), kind="race", at="y[i + 1] = a"),
    bug("saxpy", ("x.size, ", "x.size + 1, "), kind="bounds", at="y[i] = a", launch=1),
    bug(
        "image_scale",
        ("c < a.shape[1] and r < a.shape[0]", "c < a.shape[0] and r < a.shape[1]"),
        kind="bounds",
        at="out[r, c] =",
    ),
    bug("image_scale", ("c < a.shape[1]", "c <= a.shape[1]"), kind="bounds", at="out[r, c] ="),
    bug("image_scale", (" and r < a.shape[0]", ""), kind="bounds", at="out[r, c] =", launch=2),
    bug("image_scale", ("out[r, c] =", "out[r, c // 2] ="), kind="race", at="out[r, c // 2] ="),
    bug(
        "early_return_then_barrier",
        (
            "    if t >= 40:\n        return\n    part[t] = x[i]\n    cuda.syncthreads()",
            "    if t < 40:\n        part[t] = x[i]\n        cuda.syncthreads()",
        ),
        kind="barrier",
        at="cuda.syncthreads()",
    ),
    bug(
        "early_return_then_barrier", ("39 - t", "40 - t"), kind="uninitialised", at="out[i] = part"
    ),
    no_barrier("early_return_then_barrier", "", "part[t] = x", "out[i] = part"),
    no_barrier("broadcast", "", "first[0] = x", "] = first[0]"),
    bug(
        "broadcast",
        ("cuda.threadIdx.x == 0", "cuda.grid(1) == 0"),
        kind="uninitialised",
        at="] = first[0]",
        launch=1,
    ),
    bug(
        "broadcast",
        ("threadIdx.x == 0", "threadIdx.x < 2"),
        ("x[cuda.blockIdx.x]", "x[cuda.blockIdx.x] + cuda.threadIdx.x"),
        kind="race",
        at="first[0] = x",
    ),
    no_barrier("reverse_dynamic", "", "part[t] = x", "= part[n"),
    bug("reverse_dynamic", ("part[n - 1 - t]", "part[n - t]"), kind="bounds", at="= part[n"),
    bug(
        "reverse_dynamic",
        kind="bounds",
        at=("part[t] = x", "= part[n"),
        dynamic_shared_bytes=4 * 63,
    ),
    no_barrier(
        "producer_consumer", "box is handed over", "box[turn % 2, lane] = ", "2 * box[", launch=1
    ),
    bug(
        "producer_consumer",
        ("box[turn % 2, lane]", "box[0, lane]"),
        ("box[(turn - 1) % 2, lane]", "box[0, lane]"),
        kind="race",
        at=("box[0, lane] = x", "2 * box[0"),
        launch=1,
    ),
    bug(
        "producer_consumer",
        ("if turn < turns:", "if turn <= turns:"),
        kind="bounds",
        at="= x[turn * 32",
    ),
    bug("producer_consumer", ("elif turn > 0:", "else:"), kind="uninitialised", at="2 * box["),
    barrier_inside_if("producer_consumer", "box is handed over", 8),
    no_barrier(
        "bitonic_sort",
        "loaded",
        "part[t] = x",
        "a = part[t]",
        "b = part[other]",
        "part[t] = b",
        "part[other] = a",
    ),
    no_barrier(
        "bitonic_sort",
        "exchanged",
        "a = part[t]",
        "b = part[other]",
        "part[t] = b",
        "part[other] = a",
    ),
    bug(
        "bitonic_sort",
        ("if other > t:", "if other >= 0:"),
        kind="race",
        at=("a = part[t]", "b = part[other]", "part[t] = b", "part[other] = a"),
    ),
    barrier_inside_if("bitonic_sort", "exchanged", 12),
    bug(
        "bitonic_sort",
        ("while k <= n", "while k <= 2 * n"),
        kind="bounds",
        at=("b = part[other]",),
        launch=1,
    ),
    bug(
        "warp_transpose",
        without("cuda.syncwarp()  # written"),
        kind="race",
        at=("tile[w, lane] = x", "= tile[w, lane // 4"),
    ),
    bug(
        "warp_transpose",
        without("cuda.syncwarp()  # read"),
        kind="race",
        at=("tile[w, lane] = x", "= tile[w, lane // 4"),
    ),
    bug(
        "warp_transpose",
        ("w = t // 32", "w = t // 64"),
        kind="race",
        at=("tile[w, lane] = x", "= tile[w, lane // 4"),
        launch=1,
    ),
    bug(
        "groups_of_eight",
        without("cuda.syncwarp(members)  # written"),
        kind="race",
        at=("part[t] = x", "y[cuda.grid(1)] = part"),
    ),
    bug(
        "groups_of_eight",
        ("0xFF <<", "0x7F <<"),
        kind="race",
        at=("part[t] = x", "y[cuda.grid(1)] = part"),
    ),
    bug(
        "groups_of_eight",
        ("(7 - t % 8)", "(15 - t % 16)"),
        ("t - t % 8 +", "t - t % 16 +"),
        kind="race",
        at=("part[t] = x", "y[cuda.grid(1)] = part"),
    ),
    bug(
        "half_warps", ("0x0000FFFF", "0x000000FF"), kind="race", at=("part[t] = x", "= part[t ^ 1]")
    ),
    bug(
        "half_warps",
        ("part[t ^ 3]", "part[t ^ 16]"),
        kind="race",
        at=("part[t] = x", "= part[t ^ 16]"),
    ),
    bug(
        "half_warps",
        ("if t % 32 < 16:", "if t % 32 < 15:"),
        kind="barrier",
        at=("# lower", "# upper"),
    ),
    bug(
        "compact",
        ("base + cuda.popc(bits & cuda.lanemask_lt())", "base + t % 32 // 4"),
        kind="race",
        at="out[slot] =",
    ),
    bug(
        "compact",
        (
            "    base = cuda.shfl_sync(0xFFFFFFFF, base, 0)\n    if wanted:\n",
            "    if wanted:\n        base = cuda.shfl_sync(0xFFFFFFFF, base, 0)\n",
        ),
        kind="shuffle",
        at="shfl_sync",
    ),
    bug(
        "compact",
        (
            "base = cuda.atomic.add(length, 0, cuda.popc(bits))",
            "base = length[0]\n        length[0] = base + cuda.popc(bits)",
        ),
        kind="race",
        at=("base = length[0]", "length[0] = base"),
    ),
    bug("compact", ("i < x.size and ", ""), kind="bounds", at="wanted = x[i]", launch=1),
    bug("butterfly_of_half", ("range(4)", "range(5)"), kind="shuffle", at="shfl_xor_sync"),
    bug("butterfly_of_half", ("t % 32 < 16:", "t % 32 < 12:"), kind="shuffle", at="shfl_xor_sync"),
    bug(
        "last_block_done",
        without("cuda.threadfence()  # before the ticket"),
        kind="race",
        at=("part[cuda.blockIdx.x] =", "+= part[k]"),
        launch=1,
    ),
    bug(
        "last_block_done",
        ("cuda.threadfence()  # before the ticket", "cuda.threadfence_block()  # too near"),
        kind="race",
        at=("part[cuda.blockIdx.x] =", "+= part[k]"),
        launch=1,
    ),
    bug(
        "last_block_done",
        ("last[0] == cuda.gridDim.x - 1", "last[0] == cuda.gridDim.x - 2"),
        kind="race",
        at=("part[cuda.blockIdx.x] =", "+= part[k]"),
        launch=1,
    ),
    no_barrier("last_block_done", "ticket is there", "last[0] = cuda", "if last[0] =="),
]
