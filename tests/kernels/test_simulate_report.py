"""What a simulation shows: listing, notes, traces, progress; and which text of a kernel counts."""

import itertools
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpulab.errors import KernelError
from gpulab.kernels import Simulation, cuda, float32, simulate
from kernel_case import function_of, line_of, zeros

from texts import table_text

HEADER = "import math, numpy as np\nSIZE = 4\nfrom gpulab.kernels import cuda, float32, uint64\n"
LISTED = """def twice(x, i):
    return 2 * x[i]

def kernel(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    part[2 * t] = x[8 * t]
    # Every second lane stores.
    if t % 2 == 0:
        y[t] = part[2 * t] + twice(x, 200)
    y[1] = t
"""


def _listed() -> Simulation:
    return simulate(function_of(HEADER + LISTED), 1, 32, zeros(249), zeros(32), trace=0)


def test_the_listing_shows_the_counts_beside_the_lines(approved: Any) -> None:
    """By hand: 32 sectors at a stride of 8 words; two words in each bank; half of the lanes."""
    s = _listed()
    assert f"{s!r}\n\n{s.listing()}\n" == approved
    html = table_text(s._repr_html_())
    assert all(" ".join(line.split()) in html for line in s.listing().splitlines()[:-1])


def test_a_simulation_goes_through_json_without_its_trace() -> None:
    """Everything else comes back; totals are the sum over the lines."""
    s = _listed()
    assert Simulation.from_dict(json.loads(json.dumps(s.to_dict()))) == s
    assert s.totals.global_requests == sum(line.global_requests for line in s.lines.values()) == 4


NOTED = {
    "a function without code": "x[0] = np.cbrt(x[1]) + math.cbrt(x[2]) + np.sqrt(x[3])",
    "a vote of truth values": "x[0] = cuda.syncthreads_count(n > 3)",
    "48 KiB of shared memory": "a = cuda.shared.array(12288, float32)\na[0] = n\nx[0] = a[0]",
    "more than that": "a = cuda.shared.array(12289, float32)\na[0] = n\nx[0] = a[0]",
    "a shape to compute": "a = cuda.local.array(SIZE + 1, float32)\na[0] = n\nx[0] = a[0]",
    "a shape of numbers alone": "a = cuda.local.array(4 * 2, float32)\na[0] = n\nx[0] = a[0]",
    "a swap of what was read": (
        "a = cuda.shared.array(2, uint64)\na[0] = a[1] = 1\nold = uint64(a[0])\n"
        "cuda.atomic.cas(a, 0, old, 3)\nold = a[1]\ncuda.atomic.cas(a, 0, old, 3)"
    ),
    "a swap of what was read by a row": (
        "a = cuda.shared.array((2, 2), uint64)\na[0, 1] = n\nold = a[0, 1]\n"
        "cuda.atomic.cas(a, (0, 1), old, 3)\ncuda.atomic.cas(a, (1, 0), a[0, 1], 3)"
    ),
    "a barrier in a test": (
        "k = 0\nwhile cuda.syncthreads_or(k):\n    if k == 2:\n        continue\n    k += 1"
    ),
    "a signed integer in a branch": "h = uint64(n)\nif n > 3:\n    h = -1\nx[0] = h",
    "out of a loop": (
        "h = uint64(n)\nfor k in range(n):\n    if k == 2:\n        h = k\n"
        "        break\nx[0] = h"
    ),
    "on to the next turn": (
        "h = uint64(n)\nfor k in range(n):\n    x[1] = h\n    if k == 2:\n        h = k\n"
        "        continue\n    h = uint64(3)\nx[0] = 1"
    ),
    "in many turns": (
        "for k in range(60):\n    if k > 20:\n        h = k\nif x[0] < 2:\n"
        "    h = uint64(n)\nx[1] = h"
    ),
    "unsigned each time": "h = uint64(n)\nfor k in range(n):\n    h = uint64(h * 3)\nx[0] = h",
    "read in its branch": (
        "if n > 3:\n    h = uint64(n)\n    x[0] = h\nelse:\n    h = n\n"
        "    x[0] = h"
    ),
}  # fmt: skip


def test_what_a_compiler_would_refuse_or_do_otherwise_is_noted(approved: Any) -> None:
    """A note has the line and what to write instead; what the compiler takes has no note."""
    notes = []
    for name, body in NOTED.items():
        text = f"{HEADER}def kernel(x, n):\n    " + body.replace("\n", "\n    ") + "\n"
        s = simulate(function_of(text), 1, 1, np.ones(4), 5)
        notes += [name, *(f"    {note}" for note in s.notes)]
    assert "\n".join(notes) + "\n" == approved


# -- traces and progress ---------------------------------------------------------------------------


def traced(x, y):
    part = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[63 - t] = x[i]  # load
    if t % 2 == 1:  # test
        y[i] = part[t]  # odd
    cuda.atomic.add(y, 0, 1)  # add
    for _ in range(t // 16):  # loop
        y[i] += 1  # turn


@pytest.mark.parametrize("block", [0, 2])
def test_a_trace_keeps_the_statements_of_one_block(block: int) -> None:
    """By hand, of a warp and a half: steps in order, lanes as bits, elements by lane."""
    s = simulate(traced, 3, 48, zeros(144), zeros(144), trace=block)
    whole, odd, none = (0xFFFFFFFF, 0xFFFF), (0xAAAAAAAA, 0xAAAA), [-1] * 16
    marks = {line_of(traced, mark): mark for mark in ("load", "test", "odd", "add", "loop", "turn")}
    steps = [(marks[step.line], step.active) for step in s.trace if step.line in marks]
    assert steps == [
        ("load", whole), ("test", whole), ("odd", odd), ("add", whole), ("loop", whole),
        ("turn", (0xFFFF0000, 0xFFFF)), ("loop", (0xFFFF0000, 0xFFFF)), ("turn", (0, 0xFFFF)),
        ("loop", (0, 0xFFFF)),
    ]  # fmt: skip
    found = {
        (marks[step.line], a.array, a.space, a.kind, a.element_bytes): list(a.elements)
        for step in s.trace if marks.get(step.line) in ("load", "odd", "add") for a in step.accesses
    }  # fmt: skip
    own = [48 * block + t for t in range(48)]
    assert found == {
        ("load", "x", "global", "load", 4): own + none,
        ("load", "part", "shared", "store", 4): [63 - t for t in range(48)] + none,
        ("odd", "part", "shared", "load", 4): [t if t % 2 else -1 for t in range(48)] + none,
        ("odd", "y", "global", "store", 4): [i if i % 2 else -1 for i in own] + none,
        ("add", "y", "global", "atomic", 4): [0] * 48 + none,
    }
    plain = simulate(traced, 3, 48, zeros(144), zeros(144))
    assert (plain.trace, plain.lines, s.trace_cut) == ((), s.lines, False)


def turns(out):
    for k in range(60_000):
        out[0] = k


@pytest.mark.slow
def test_a_trace_ends_after_100_000_statements() -> None:
    """The trace is cut there, but counting goes on."""
    s = simulate(turns, 1, 1, zeros(1), trace=0)
    assert (len(s.trace), s.trace_cut) == (100_000, True)
    assert s.totals.executed_warps == 120_001


def sized(shared_words: int, local_words: int) -> Callable:
    """Return a kernel with a shared and a local array of so many float32."""

    def large(out):
        part = cuda.shared.array(shared_words, float32)
        mine = cuda.local.array(local_words, float32)
        mine[31] = cuda.grid(1)
        part[cuda.threadIdx.x] = mine[31]
        cuda.syncthreads()
        out[cuda.grid(1)] = part[31 - cuda.threadIdx.x]

    return large


@pytest.mark.slow
@pytest.mark.parametrize(("shared_words", "local_words"), [(12288, 32), (32, 4096)])
def test_large_arrays_of_many_blocks_fit_into_memory(shared_words: int, local_words: int) -> None:
    """All at once they would take over 400 MiB; progress comes after each share of blocks."""
    out, reports = zeros(32 * 1024), []
    tracemalloc.start()
    try:
        kernel = sized(shared_words, local_words)
        simulate(kernel, 1024, 32, out, progress=lambda *report: reports.append(report))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.tolist() == [i ^ 31 for i in range(32 * 1024)]
    assert peak < 300 * 2**20
    assert all(a[0] < b[0] for a, b in itertools.pairwise(reports))
    assert reports[-1] == (1.0, "1,024 of 1,024 blocks")


# -- which text counts -----------------------------------------------------------------------------


def run(kernel: Callable) -> list[float]:
    """Return what three threads store."""
    out = np.zeros(3)
    simulate(kernel, 1, 3, out)
    return out.tolist()


SCALED = """from gpulab.kernels import cuda
import numpy as np
FACTOR, TABLE, PAIR = 2, np.arange(3.0), (4, np.array([7, 8]))
def helper(x):
    return x + 1
def kernel(out):
    i = cuda.grid(1)
    out[i] = 1000 * FACTOR + 100 * helper(FACTOR) + 10 * TABLE[i] + PAIR[0] + PAIR[1][0]
"""


def test_a_name_outside_of_the_kernel_has_its_present_value() -> None:
    """A changed number, array, tuple or function takes effect at once; a deleted name is refused.

    A kernel made by ``jit`` keeps the values of its first launch.
    """
    kernel = function_of(SCALED)
    names, compiled = kernel.__globals__, cuda.jit(kernel)
    assert run(kernel) == run(compiled) == [2311, 2321, 2331]
    zero, one = (function_of(f"def other(x):\n    return {n}\n", "other") for n in (0, 1))
    for owner, name, value, expected in (
        (names, "FACTOR", 1.5, [1761, 1771, 1781]),
        (names["TABLE"], 1, 7, [1761, 1831, 1781]),
        (names["PAIR"][1], 0, 9, [1763, 1833, 1783]),
        (names, "TABLE", np.zeros(6)[::2], [1763] * 3),
        (names, "PAIR", (5, np.array([1])), [1756] * 3),
        (names, "helper", zero, [1506] * 3),
    ):
        owner[name] = value
        assert run(kernel) == run(cuda.jit(kernel)) == expected
    zero.__code__ = one.__code__
    assert run(kernel) == [1606] * 3
    del names["FACTOR"]
    assert run(compiled) == [2311, 2321, 2331]
    with pytest.raises(KernelError, match="FACTOR"):
        run(kernel)


def test_an_edited_cell_and_each_closure_count_for_themselves() -> None:
    """Kernels do not mix if they share a file name or a factory, or are edited or wrapped."""
    first, second = (
        function_of(SCALED.replace("1000", n), filename="<a cell>") for n in ("0", "2000")
    )
    assert run(second) == [4311, 4321, 4331]
    first.__code__ = function_of("\n" + SCALED.replace("1000", "3000")).__code__
    assert run(first) == [6311, 6321, 6331]
    text = f"{HEADER}def kernel(out):\n    out[0] = 1"
    for end in ("\n", "  # of another cell\n"):
        again = function_of(text + end, filename=f"<{end}>")
        assert end.strip() in str(simulate(again, 1, 1, zeros(1)).source)
    inner = "    def kernel(out):\n        out[cuda.grid(1)] = n\n    return kernel\n"
    make = function_of(f"{HEADER}def make(n):\n{inner}", "make")
    one, two = make(1), make(2)
    assert run(one) + run(two) + run(one) == [1] * 3 + [2] * 3 + [1] * 3
    assert run(cuda.jit(one)) == [1] * 3
    inner = "    def own(i):\n        tile = cuda.shared.array(32, float32)\n        tile[i] = n\n"
    make = function_of(
        f"{HEADER}def make(n):\n{inner}        return tile\n    return own\n", "make"
    )
    body = "    i = cuda.grid(1)\n    mine, other = first(i), second(i)\n    out[i] = mine[i]\n"
    kernel = function_of(f"{HEADER}def kernel(out):\n{body}")
    kernel.__globals__.update(first=make(1), second=make(2))
    assert (run(kernel), simulate(kernel, 1, 32, zeros(32)).shared_bytes) == ([1] * 3, 256)


def test_device_functions_in_other_files_keep_their_lines() -> None:
    """By hand: 16 and 11 of 32 lanes are within bounds, of four sectors; a note names each file.

    Elements 2 to 30 that are even, or a multiple of three, are read by an earlier thread and then
    written; element 2, the first, was read by thread 1 in the other file.
    """
    texts = {
        "second": ("\n\ndef second(x, i):\n    return x[2 * i]\n", "of_another_file.py"),
        "third": ("def third(x, i):\n    return x[3 * i]\n", "of_a_third.py"),
    }
    body = "    i = cuda.grid(1)\n    out[i] = second(x, i) + third(x, i)\n    x[i] = i\n"
    kernel = function_of(f"{HEADER}def kernel(out, x):\n{body}")
    kernel.__globals__.update({n: function_of(text, n, file) for n, (text, file) in texts.items()})
    s = simulate(kernel, 1, 32, zeros(32), zeros(32))
    assert [(f.kind, f.line, f.other_line, f.place, f.code, f.count) for f in s.findings] == [
        ("race", 7, 1_000_004, "line 7", "x[i] = i", 15 + 10 - 5),
        ("bounds", 1_000_004, None, "line 4 of of_another_file.py", "return x[2 * i]", 16),
        ("bounds", 2_000_002, None, "line 2 of of_a_third.py", "return x[3 * i]", 32 - 11),
    ]
    assert (
        "here and in line 4 of of_another_file.py," in s.findings[0].message,
        [s.lines[f.line].global_load_sectors for f in s.findings[1:]],
    ) == (True, [4, 4])
    assert s.notes == tuple(
        f"lines from {n:,} on are those of {file}, counted from its first line"
        for n, (_, file) in zip((1_000_001, 2_000_001), texts.values(), strict=True)
    )
    kernel.__globals__["third"] = function_of(
        "\ndef third(x, i):\n    return x.no\n", "third", "a.py"
    )
    with pytest.raises(KernelError, match=r"^third, line 3 of a.py `return x.no`: ") as refused:
        simulate(kernel, 1, 32, zeros(32), zeros(32))
    assert refused.value.line == 3


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import numpy as np
from gpulab.kernels import cuda, float32, simulate
sys.path.insert(0, sys.argv[1])
from kernel_case import function_of
text = '''from gpulab.kernels import cuda, float32
@cuda.jit
def kernel(out):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.syncthreads()
    out[t] = tile[31 - t] + cuda.popc(cuda.ballot_sync(0xFFFFFFFF, t > 3))
'''
out = np.zeros(32)
assert simulate(function_of(text), 1, 32, out).findings == ()
assert out.tolist() == [31 - t + 28 for t in range(32)]
assert np.dtype(float32).name == "float32"
cuda.syncthreads()
"""


@pytest.mark.slow
def test_kernels_run_without_numba() -> None:
    """The ``cuda`` and types of gpulab replace Numba's; outside of a kernel a call is refused."""
    command = [sys.executable, "-c", WITHOUT_NUMBA, str(Path(__file__).parent)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stderr.strip().splitlines()[-1].startswith("RuntimeError: cuda.syncthreads")
