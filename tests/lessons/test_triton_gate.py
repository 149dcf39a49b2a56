"""The gate in Triton, and what starts it and its two sisters: NumPy stands in for the languages, a list for the launch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpulab import kernels
from gpulab.devices import Device
from gpulab.lessons import _passes, _triton_gate


class Pointer:
    """An array's place in memory, to which Triton adds offsets."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __add__(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.array, offsets


def language(program: int) -> SimpleNamespace:
    """Triton's language for one program; an offset behind the array's end is an error."""

    def load(place: tuple[np.ndarray, np.ndarray], mask: np.ndarray) -> np.ndarray:
        assert (place[1] >= 0).all(), "before the array's beginning"
        found = np.zeros(len(mask))
        found[mask] = place[0][place[1][mask]]
        return found

    def store(place: tuple[np.ndarray, np.ndarray], values: np.ndarray, mask: np.ndarray) -> None:
        place[0][place[1][mask]] = values[mask]

    ids = {0: program}
    return SimpleNamespace(program_id=ids.__getitem__, arange=np.arange, load=load, store=store, sigmoid=lambda v: 1 / (1 + np.exp(-v)))


def test_each_program_takes_its_block_and_the_last_one_stops_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 numbers by two programs of 64: x (1 + tanh(0.8 x)) / 2 of each, by NumPy, and nothing behind the last one is touched."""
    x, y = np.linspace(-3, 3, 100), np.full(100, np.nan)
    for program in range(2):
        monkeypatch.setattr(_triton_gate, "tl", language(program))
        _triton_gate.gate(Pointer(x), Pointer(y), 100, BLOCK=64)
    assert y == pytest.approx(x * (1 + np.tanh(0.8 * x)) / 2)


def test_triton_is_asked_for_when_the_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its language is what the kernel names then."""
    monkeypatch.setattr(_triton_gate, "tl", None)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(language="its language", jit=lambda fn: ("compiled", fn)))
    assert _triton_gate.compiled_gate() == ("compiled", _triton_gate.gate)
    assert _triton_gate.tl == "its language"


def test_a_program_for_each_1024_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,025 numbers there are two programs."""
    asked: list[Any] = []

    class Compiled:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *given, **named: asked.extend((grid, given, named))

    monkeypatch.setattr(_triton_gate, "compiled_gate", Compiled)
    x = np.arange(1025, dtype=np.float32)
    _passes._in_triton(x, Device("cpu"))()
    grid, (there, out, n), named = asked
    assert (grid, n, named) == ((2,), 1025, {"BLOCK": 1024})
    assert (there.tolist(), out.shape) == (x.tolist(), (1025,))


def test_our_kernel_has_a_block_for_each_256_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 257 numbers there are two blocks; it writes into an array of its own."""
    monkeypatch.setattr(kernels, "launcher", lambda *given: given)
    x = np.arange(257, dtype=np.float32)
    kernel, grid, block, source, out = _passes._ours(x, Device("cuda", 0))  # type: ignore[misc]
    assert (kernel is kernels.ladder.gate_each, grid, block, source is x) == (True, 2, 256, True)
    assert out.tolist() == [0.0] * 257


def test_cupys_kernel_reads_x_and_writes_y(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula's own text, with x as what is read; the arrays are CuPy's."""
    made: list[Any] = []

    def elementwise(*words: str) -> Callable[..., None]:
        made.append(words)
        return lambda source, out: made.extend((source, out))

    cupy = SimpleNamespace(ElementwiseKernel=elementwise, asarray=lambda x: ("there", x), empty_like=lambda x: ("as", x))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    _passes._in_cupy("x", Device("cuda", 0))()  # type: ignore[arg-type]
    (reads, writes, formula, _), source, out = made
    assert (reads, writes, source, out) == ("float32 x", "float32 y", ("there", "x"), ("as", ("there", "x")))
    name, _, right = formula.partition(" = ")
    x = np.linspace(-3, 3, 9)
    by_numpy = eval(right.replace("f ", " ").replace("f)", ")"), {"x": x, "tanhf": np.tanh})
    assert name == "y"
    assert by_numpy == pytest.approx(_passes._in_numpy(x))


def test_on_a_gpu_each_way_is_timed_refused_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy on the CPU 4 s, our kernel 2 s with its note, CuPy refused in its own words, and no Triton; both devices are named."""
    from gpulab.errors import KernelError
    from gpulab.evidence import Evidence, Note

    took = iter([(4.0, ()), (2.0, (Note("contended", "Others."), Note("deadline", "At last.")))])

    def measure(fn: Any, *given: Any, **named: Any) -> SimpleNamespace:
        if fn == "CuPy's":
            raise KernelError("No kernel for this GPU.")
        seconds, notes = next(took)
        return SimpleNamespace(median_seconds=seconds, notes=notes, evidence=Evidence.measured("A CPU"))

    monkeypatch.setattr(_passes.devices, "default", lambda: Device("cuda", 0))
    monkeypatch.setattr(Device, "name", "A GPU")
    monkeypatch.setattr(_passes.timing, "measure", measure)
    monkeypatch.setattr(_passes.importlib.util, "find_spec", lambda name: None if name == "triton" else name)
    monkeypatch.setattr(_passes, "_ours", lambda x, where: "ours")
    monkeypatch.setattr(_passes, "_in_cupy", lambda x, where: "CuPy's")
    found = _passes.spellings(1)
    assert [(row.name, row.seconds, row.reason) for row in found.rows] == [
        ("NumPy, on the CPU", 4.0, ""),
        ("our kernel, gl.kernels.launch", 2.0, "contended, deadline"),
        ("CuPy, ElementwiseKernel", None, "No kernel for this GPU."),
        ("Triton", None, "triton is not installed"),
    ]
    assert (found.n, found.evidence.device) == (1, "A CPU and A GPU")


def test_a_library_that_cannot_be_loaded_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy is installed for another CUDA, and Python's import of it fails: its words stand in its row, and the others are timed."""
    from gpulab.evidence import Evidence

    monkeypatch.setattr(_passes.devices, "default", lambda: Device("cuda", 0))
    monkeypatch.setattr(Device, "name", "A GPU")
    timed = SimpleNamespace(median_seconds=2.0, notes=(), evidence=Evidence.measured("A CPU"))
    monkeypatch.setattr(_passes.timing, "measure", lambda fn, *given, **named: timed)
    monkeypatch.setattr(_passes.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "cupy", None)  # as Python marks what cannot be imported
    for way in ("_ours", "_in_triton"):
        monkeypatch.setattr(_passes, way, lambda x, where: None)
    rows = {row.name: (row.seconds, row.reason) for row in _passes.spellings(1).rows}
    seconds, reason = rows.pop("CuPy, ElementwiseKernel")
    assert seconds is None
    assert reason.startswith("not here: ")
    assert "cupy" in reason
    assert set(rows.values()) == {(2.0, "")}
