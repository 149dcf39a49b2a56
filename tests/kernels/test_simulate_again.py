"""A kernel that was simulated before is not translated again, and yet never taken for what it was."""

from __future__ import annotations

import gc
import importlib
import linecache
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpulab.errors import KernelError
from gpulab.kernels import cuda, float32, int32, simulate
from gpulab.kernels._simulate import _program

FACTOR = 2
TABLE = np.array([1.0, 2.0, 3.0], np.float32)
SIZES = (4, np.array([7, 8]))
TYPE = float32


def helper(x):
    return x + 1


def scaled(out):
    out[cuda.grid(1)] = FACTOR


def from_table(out):
    i = cuda.grid(1)
    out[i] = TABLE[i] + TABLE.shape[0]


def from_tuple(out):
    out[cuda.grid(1)] = SIZES[1][1] + SIZES[0]


def helped(out):
    out[cuda.grid(1)] = helper(FACTOR)


def typed(out):
    local = cuda.local.array(1, TYPE)
    local[0] = 1.75
    out[cuda.grid(1)] = local[0]


def run(kernel: Callable, threads: int = 3) -> list[float]:
    out = np.zeros(threads)
    simulate(kernel, 1, threads, out)
    return out.tolist()


def test_the_same_kernel_is_translated_once() -> None:
    """The second simulation takes the first one's translation; arguments of other types do not matter to it."""
    run(scaled)
    known = _program.program_of(scaled)
    simulate(scaled, 1, 3, np.zeros(3, np.int16))
    assert _program.program_of(scaled) is known


@pytest.mark.parametrize(
    ("kernel", "name", "value", "before", "after"),
    [
        (scaled, "FACTOR", 3, [2, 2, 2], [3, 3, 3]),
        (scaled, "FACTOR", 2.5, [2, 2, 2], [2.5, 2.5, 2.5]),
        (from_table, "TABLE", np.array([5, 5, 5, 5]), [4, 5, 6], [9, 9, 9]),
        (from_tuple, "SIZES", (5, np.array([1, 2])), [12, 12, 12], [7, 7, 7]),
        (helped, "helper", lambda x: 0, None, None),
        (typed, "TYPE", int32, [1.75] * 3, [1, 1, 1]),
    ],
)
def test_a_name_outside_may_change(
    kernel: Callable, name: str, value: object, before: list | None, after: list | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number, array, tuple, function or type that is bound to a name anew counts at once, and so does the old one's return."""
    expected = before or [3, 3, 3]
    assert run(kernel) == expected
    monkeypatch.setitem(globals(), name, value)
    if after is None:
        with pytest.raises(KernelError):  # a lambda cannot be read
            run(kernel)
    else:
        assert run(kernel) == after
    monkeypatch.undo()
    assert run(kernel) == expected


def test_an_array_outside_may_change_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is read each time, also of one that is not contiguous; a new shape counts."""
    table = np.arange(12, dtype=np.float32)
    monkeypatch.setitem(globals(), "TABLE", table)
    assert run(from_table) == [12, 13, 14]
    table[0] = 100
    assert run(from_table) == [112, 13, 14]
    monkeypatch.setitem(globals(), "TABLE", strided := table[::2])
    assert run(from_table) == [106, 8, 10]
    strided[1] = 50
    assert run(from_table) == [106, 56, 10]
    monkeypatch.setitem(globals(), "TABLE", table)
    assert run(from_table) == [112, 13, 62]
    table.shape = (3, 4)
    with pytest.raises(KernelError, match="does not take an array"):  # of two axes, of which the kernel gives one
        run(from_table)


def test_a_closure_may_change() -> None:
    """A variable of the function around a kernel counts with its present value; kernels of one factory do not share it."""

    def make(amount: int) -> tuple[Callable, Callable]:
        def kernel(out):
            out[cuda.grid(1)] = amount

        def change(new: int) -> None:
            nonlocal amount
            amount = new

        return kernel, change

    first, change = make(1)
    second, _ = make(2)
    assert run(first) + run(second) == [1, 1, 1, 2, 2, 2]
    change(5)
    assert run(first) + run(second) == [5, 5, 5, 2, 2, 2]


def test_device_functions_of_one_factory_are_apart() -> None:
    """Two functions of the same text that hold different values are two."""

    def make(amount: int) -> Callable:
        def add(x):
            return x + amount

        return add

    one, ten = make(1), make(10)

    def kernel(out):
        out[cuda.grid(1)] = one(0) + ten(0)

    assert run(kernel) == [11, 11, 11]
    one = ten
    assert run(kernel) == [20, 20, 20]


def cell(text: str, name: str, names: dict | None = None) -> FunctionType:
    """Return the function of a notebook cell."""
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    names = {"cuda": cuda} if names is None else names
    exec(compile(text, name, "exec"), names)
    return names["kernel"]


def test_a_cell_that_was_edited_is_read_again() -> None:
    """An edited cell makes another function, of the same name; under one file name, or changed in place as autoreload does, as well."""
    text = "def kernel(out):\n    out[cuda.grid(1)] = 1\n"
    first = cell(text, "<cell 1>")
    assert run(first) == [1, 1, 1]
    edited = text.replace("= 1\n", "= 2\n")
    assert run(cell(edited, "<cell 2>")) == [2, 2, 2]
    assert run(cell(edited, "<cell 1>")) == [2, 2, 2]
    grown = cell("\n" + text.replace("= 1\n", "= 3\n"), "<cell 3>")
    first.__code__ = grown.__code__
    assert run(first) == [3, 3, 3]


def _module(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(path.stem)


def test_a_file_that_was_edited_and_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel and device function of a module count as they stand in the file that was loaded last."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    text = "from gpulab.kernels import cuda\ndef add(x):\n    return x + 1\ndef kernel(out):\n    out[cuda.grid(1)] = add(1)\n"
    module = _module(tmp_path / "edited_kernels.py", text)
    assert run(module.kernel) == [2, 2, 2]
    (tmp_path / "edited_kernels.py").write_text(text.replace("x + 1", "x + 100"))
    assert run(importlib.reload(module).kernel) == [101, 101, 101]
    monkeypatch.delitem(sys.modules, "edited_kernels")


def test_a_name_that_is_gone_is_told() -> None:
    """A kernel whose helper was deleted is refused by name, though it ran before."""
    names = {"cuda": cuda, "AMOUNT": 4}
    kernel = cell("def kernel(out):\n    out[cuda.grid(1)] = AMOUNT\n", "<cell 5>", names)
    assert run(kernel) == [4, 4, 4]
    del names["AMOUNT"]
    with pytest.raises(KernelError, match="AMOUNT"):
        run(kernel)


def test_a_translation_tells_whether_it_is_what_the_text_says() -> None:
    """Until a name stands for something else, for nothing, or the cell holds other text; and again where all is as it was."""
    names = {"cuda": cuda, "AMOUNT": 4}
    text = "def kernel(out):\n    out[cuda.grid(1)] = AMOUNT\n"
    known = _program.program_of(cell(text, "<cell 6>", names))
    assert known.is_current() is True
    names["AMOUNT"] = 5
    assert known.is_current() is False
    del names["AMOUNT"]
    assert known.is_current() is False
    names["AMOUNT"] = 4
    assert known.is_current() is True
    lines = text.replace("AMOUNT", "4").splitlines(keepends=True)
    linecache.cache["<cell 6>"] = (len(text), None, lines, "<cell 6>")
    assert known.is_current() is False


def test_a_wrapped_kernel_is_the_function_inside() -> None:
    """The wrapper of a compiler's decorator may be made anew each time."""
    run(scaled)
    known = _program.program_of(scaled)
    assert _program.program_of(SimpleNamespace(py_func=scaled)) is known


def test_a_kernel_that_is_gone_is_forgotten() -> None:
    """Neither a kernel nor an array that it captured stays in memory because it was simulated."""

    class Named(np.ndarray):
        pass

    def make() -> tuple[weakref.ref, weakref.ref]:
        table = np.arange(3.0).view(Named)

        def kernel(out):
            out[cuda.grid(1)] = table[0]

        assert run(kernel) == [0, 0, 0]
        return weakref.ref(kernel), weakref.ref(table)

    kernel, table = make()
    gc.collect()
    assert kernel() is None
    assert table() is None
