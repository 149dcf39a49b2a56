"""How often NumPy walks over memory for a formula, and the same formula in one pass through four libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given, devices, timing
from gpulab.errors import GpulabError, InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.lessons._recorded_gpus import recorded_gpus
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds, plural

_FORMULA_BYTES = 8  # of one element of the gate: read 4, write 4


@dataclass(frozen=True)
class Passes(Result):
    """What a NumPy expression reads and writes.

    Attributes
    ----------
    steps : tuple of str
        The functions of NumPy that ran, one walk over memory each.
    nbytes : int
        Bytes that they read and wrote together.
    elements : int
        Of the array that was given.
    evidence : Evidence
    """

    steps: tuple[str, ...]
    nbytes: int
    elements: int
    evidence: Evidence

    @property
    def bytes_per_element(self) -> float:
        """Bytes read and written for each element of the array."""
        return self.nbytes / self.elements

    def __repr__(self) -> str:
        return f"<{plural(len(self.steps), 'pass', 'passes')} ({', '.join(self.steps)}): {self.bytes_per_element:g} bytes for each element>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row."""
        row = (str(len(self.steps)), ", ".join(self.steps), format_bytes(self.nbytes), f"{self.bytes_per_element:g}")
        return ("passes", "NumPy's functions", "read and written", "bytes an element"), [row]


class _Counted(np.ndarray):
    """An array that notes what each ufunc reads and writes; results are counted arrays again."""

    log: list[tuple[str, int]]

    def __array_finalize__(self, whole: Any) -> None:
        self.log = getattr(whole, "log", [])  # a slice or a transpose is counted where its array is

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        options = {name: _bare(value) for name, value in kwargs.items()}  # out= and where= would call this again
        result = getattr(ufunc, method)(*map(_bare, inputs), **options)
        results = result if isinstance(result, tuple) else () if result is None else (result,)  # ufunc.at returns nothing
        read = sum(x.nbytes for x in (*inputs, kwargs.get("where")) if isinstance(x, np.ndarray) and x.ndim)
        self.log.append((ufunc.__name__, read + sum(one.nbytes for one in results)))
        given = kwargs.get("out") or (None,) * len(results)
        made = tuple(self._counted(one) if own is None else own for one, own in zip(results, given, strict=True))
        return made if isinstance(result, tuple) else made[0] if made else None

    def _counted(self, result: Any) -> _Counted:
        made: _Counted = np.asarray(result).view(_Counted)
        made.log = self.log
        return made


def _bare(value: Any) -> Any:
    """Return an array, or those of a tuple, as NumPy's own; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def numpy_passes(fn: Callable[[np.ndarray], Any], x: np.ndarray) -> Passes:
    """Run a NumPy formula of one array and count what it reads and writes.

    Parameters
    ----------
    fn : callable
    x : ndarray

    Returns
    -------
    Passes

    Raises
    ------
    InputError
        If ``fn`` is no function or ``x`` no array.
    """
    _given.callback("numpy_passes", "fn", fn)
    if not isinstance(x, np.ndarray) or not x.size:
        raise InputError(f"numpy_passes: x={shown(x)}; expected a NumPy array with elements. Pass one.")
    counted = x.view(_Counted)
    counted.log = []
    fn(counted)
    evidence = Evidence.modelled("each function of NumPy reads its arrays and writes its result once; no caches", "a count of the calls")
    return Passes(tuple(name for name, _ in counted.log), sum(moved for _, moved in counted.log), x.size, evidence)


@dataclass(frozen=True)
class Spelling(Result):
    """One way to write the formula: its time, or why it was not run here."""

    name: str
    seconds: float | None
    reason: str


@dataclass(frozen=True)
class Spellings(Result):
    """One formula through several libraries.

    Attributes
    ----------
    n : int
        Elements.
    rows : tuple of Spelling
    evidence : Evidence
    """

    n: int
    rows: tuple[Spelling, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{', '.join(row.name for row in self.rows if row.seconds is not None)}, {self.n:,} elements>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a library."""
        rows = []
        for row in self.rows:
            rate = "" if row.seconds is None else format_bytes_per_second(_FORMULA_BYTES * self.n / row.seconds)
            rows.append((row.name, "not run" if row.seconds is None else format_seconds(row.seconds), rate, row.reason))
        return (f"{self.n:,} elements", "time", "8 bytes an element", ""), rows


def spellings(n: int = 1 << 22) -> Spellings:
    """Measure the gate of notebook 04 in NumPy, as our kernel, with CuPy's ElementwiseKernel and in Triton, each where it can run.

    Parameters
    ----------
    n : int
        Elements, float32.

    Raises
    ------
    InputError
        If n is no whole number above 0.
    """
    if not _given.is_whole(n) or n < 1:
        raise InputError(f"spellings: n={shown(n)}; expected a whole number above 0. Pass for example n=1_000_000.")
    n = int(n)
    x = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    here = timing.measure(_in_numpy, x, device="cpu", deadline=0.5)
    rows = [Spelling("NumPy, on the CPU", here.median_seconds, _notes(here))]
    where = devices.default()
    ways = (("our kernel, gl.kernels.launch", "numba_cuda", _ours), ("CuPy, ElementwiseKernel", "cupy", _in_cupy),
            ("Triton", "triton", _in_triton))  # fmt: skip
    for name, module, make in ways:
        if where.torch_type != "cuda":
            rows.append(Spelling(name, None, "no CUDA device here"))
            if make is _ours:
                rows += _recorded(name, n)
        elif importlib.util.find_spec(module) is None:
            rows.append(Spelling(name, None, f"{module} is not installed"))
        else:
            rows.append(_measured(name, make, x, where))
    device = here.evidence.device if where.is_cpu else f"{here.evidence.device} and {where.name}"
    return Spellings(n, tuple(rows), Evidence.measured(device))


def _recorded(name: str, n: int) -> list[Spelling]:
    """Return the same kernel as recorded GPUs launched it, with where it is from in place of a reason."""
    found = []
    for recording in recorded_gpus().values():
        entry = recording.find("ladders", family="elementwise", rung="elementwise-each", n=n)
        if entry is not None and entry.timing is not None:
            found.append(Spelling(f"{name} (RECORDED)", entry.timing.median_seconds, recording.evidence(entry).sentence))
    return found


def _measured(name: str, make: Callable[[np.ndarray, devices.Device], Callable[[], Any]], x: np.ndarray, where: devices.Device) -> Spelling:
    try:
        m = timing.measure(make(x, where), device=where, deadline=0.5, label=name)
    except GpulabError as error:
        return Spelling(name, None, str(error))
    except Exception as error:  # a library that is installed and cannot be loaded here, such as CuPy for another CUDA: its own words
        return Spelling(name, None, f"not here: {message_of(error)}")
    return Spelling(name, m.median_seconds, _notes(m))


def _notes(m: timing.Measurement) -> str:
    return ", ".join(note.code for note in m.notes)


def _in_numpy(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * x))


def _ours(x: np.ndarray, where: devices.Device) -> Callable[[], Any]:
    from gpulab.kernels import ladder, launcher

    ready: Callable[[], Any] = launcher(ladder.gate_each, -(-x.size // 256), 256, x, np.zeros_like(x))
    return ready


def _in_cupy(x: np.ndarray, where: devices.Device) -> Callable[[], Any]:
    import cupy

    gate = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 0.5f * x * (1.0f + tanhf(0.8f * x))", "gate")
    there = cupy.asarray(x)
    out = cupy.empty_like(there)
    return lambda: gate(there, out)


def _in_triton(x: np.ndarray, where: devices.Device) -> Callable[[], Any]:
    import torch

    from gpulab.lessons._triton_gate import compiled_gate

    there = torch.from_numpy(x).to(str(where))
    out, gate = torch.empty_like(there), compiled_gate()
    return lambda: gate[(-(-x.size // 1024),)](there, out, x.size, BLOCK=1024)
