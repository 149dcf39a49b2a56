"""Variables of two integer types, which numba makes a float64 of: noted where its own compiler does so, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.kernels import simulate
from gpulab.kernels._simulate import _alone

# The body of ``kernel(x, n, seed)``, x and seed of uint64; and what the note says of h, where there is one: its line and the other one.
BODIES: dict[str, tuple[str, tuple[int | str, int] | None]] = {
    "a generator's literal": ("h = seed\nfor k in range(n):\n    h = h * 3\nx[0] = h", (6, 4)),
    "a parameter": ("for k in range(n):\n    seed = seed * 3\nx[0] = seed", (5, 3)),
    "a literal before": ("h = 0\nfor k in range(n):\n    h = uint64(h + k)\nx[0] = h", (4, 6)),
    "bits after that": ("h = seed\nfor k in range(n):\n    h ^= x[k]\n    h *= 1099511628211\nx[0] = h", (7, 4)),
    "a branch": ("h = seed\nif n > 3:\n    h = -1\nx[0] = h", (6, 4)),
    "two branches": ("for k in range(n):\n    if k > 0:\n        h = seed\n    else:\n        h = n\n    x[k] = h", (8, 6)),
    "asked by an if": ("h = seed\nif n > 3:\n    h = -1\nif h > 2:\n    x[0] = 1", (6, 4)),
    "asked by a loop": ("h = seed\nif n > 3:\n    h = -1\nwhile h > 2:\n    x[0] = 1\n    break", (6, 4)),
    "a reset": ("h = seed\nwhile n > 0:\n    h = h + uint64(1)\n    n -= 1\n    if h > 2:\n        h = 0\nx[0] = h", ("6, 9", 4)),
    "out of a loop": ("h = seed\nfor k in range(n):\n    if k == 2:\n        h = k\n        break\nx[0] = h", (7, 4)),
    "on to the next turn": (
        "h = seed\nfor k in range(n):\n    x[1] = h\n    if k == 2:\n        h = k\n        continue\n    h = seed\nx[0] = 1", (8, 4)),
    "one after the other": ("h = seed\nh = h * 3\nfor k in range(n):\n    h = h + 1\nx[0] = h", None),
    "new in each turn": ("for k in range(n):\n    h = uint64(x[k])\n    h = h * 3\n    x[k] = h", None),
    "a uint64 each time": ("h = seed\nfor k in range(n):\n    h = uint64(h * 3)\nx[0] = h", None),
    "unsigned ones": ("h = seed\nfor k in range(n):\n    h = h * uint64(3) + uint32(1)\nx[0] = h", None),
    "32 bits": ("h = uint32(seed)\nfor k in range(n):\n    h = h * 1664525 + 1013904223\nx[0] = h", None),
    "returned before": ("h = seed\nif n > 3:\n    h = 0\n    x[1] = h\n    return\nx[0] = h", None),
    "each read in its branch": ("if n > 3:\n    h = seed\n    x[0] = h\nelse:\n    h = n\n    x[0] = h", None),
}  # fmt: skip


def _kernel(name: str) -> Any:
    body = BODIES[name][0].replace("\n", "\n    ")
    return function_of(f"from numba import uint32, uint64\n\ndef kernel(x, n, seed):\n    {body}\n", filename=f"<joined {name}>")


@pytest.mark.parametrize("name", BODIES)
def test_a_uint64_that_meets_a_signed_integer_is_noted(name: str) -> None:
    """The note names the variable, the line of the signed integer and that of the uint64; otherwise there is none."""
    pytest.importorskip("numba")
    told = BODIES[name][1]
    notes = simulate(_kernel(name), 1, 1, np.array([3, 5, 7, 9, 2], np.uint64), 5, np.uint64(1)).notes
    if told is None:
        assert notes == ()
        return
    (note,) = notes
    where = f"lines {told[0]}" if isinstance(told[0], str) else f"line {told[0]}"
    variable = "seed" if "seed =" in BODIES[name][0] else "h"
    assert note.startswith(f"{where}: {variable} is a signed integer here and a uint64 in line {told[1]}. numba-cuda makes one variable")


LOOPS = {
    "a turn of the loop": "for k in range(n):\n    if k > 20:\n        h = k\nif x[0] > 2:\n    h = seed\nx[1] = h",
    "a loop in a loop": "for k in range(n):\n    for h in range(k):\n        m = h\nif x[0] > 2:\n    m = seed\nx[1] = m",
    "while": "k = n\nwhile k > 0:\n    h = k - 1\n    k = h\nif x[0] > 2:\n    h = seed\nx[1] = h",
}


@pytest.mark.parametrize("name", LOOPS)
def test_lanes_that_run_alone_note_what_lockstep_notes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signed integer is given in turns of a loop that few lanes take one after the other, the uint64 behind it."""
    pytest.importorskip("numba")
    body = LOOPS[name].replace("\n", "\n    ")
    kernel = function_of(f"from numba import uint64\n\ndef kernel(x, n, seed):\n    {body}\n", filename=f"<alone {name}>")
    notes = []
    for lanes in (_alone.MOST_LANES, -1):
        monkeypatch.setattr(_alone, "MOST_LANES", lanes)
        notes.append(simulate(kernel, 1, 1, np.array([3, 5], np.uint64), 60, np.uint64(1)).notes)
    assert notes[0] == notes[1]
    assert "is a signed integer here and a uint64 in line" in notes[0][0]


@pytest.mark.parametrize("name", BODIES)
def test_what_is_noted_is_what_the_compiler_does(name: str) -> None:
    """numba-cuda's inference has a float64 among the forms of the variable, or finds no operation for one, where there is a note."""
    pytest.importorskip("numba.cuda")
    from numba import types
    from numba.core.errors import TypingError
    from numba.cuda.compiler import compile_cuda

    given = types.Array(types.uint64, 1, "C"), types.int64, types.uint64
    try:
        found = compile_cuda(_kernel(name), types.void, given, cc=(9, 0)).type_annotation.typemap
    except TypingError as error:
        kinds = ["float64"] if "ixor(float64" in str(error) else []
    else:
        kinds = [str(kind) for variable, kind in found.items() if variable.split(".")[0] in ("h", "seed")]
    assert ("float64" in kinds) == (BODIES[name][1] is not None)
