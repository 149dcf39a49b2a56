"""The ladders: each rung is a kernel, what it needs to run, and the work that it must do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpulab._validate import is_whole, word
from gpulab.errors import InputError, shown
from gpulab.kernels.ladder import kernels
from gpulab.kernels.simulation._simulate import simulate
from gpulab.kernels.simulation.report import Simulation

Extents = tuple[Any, Any]
_SOURCES = Path(__file__).parents[2] / "course" / "04" / "ladder"
_BLOCK, _SOFTMAX_BLOCK, _SOFTMAX_COLUMNS = 256, 128, 1024


@dataclass(frozen=True)
class Rung:
    """A kernel of a ladder.

    Attributes
    ----------
    name, family, summary : str
        The rung, such as "reduction-shuffle"; its ladder, such as "reduction"; what the kernel does
        differently from that of the rung before.
    kernel : function or str
        A Python function in the style of numba.cuda, or the name of the kernel in ``source``.
    extents : callable
        ``extents(n)`` returns grid and block for the size.
    make : callable
        ``make(n, rng)`` returns the kernel's arguments.
    expected : callable
        Takes the arguments as they were before the launch; returns the values that the kernel
        should write into the argument ``result``, computed by NumPy, real numbers in float64.
    sizes : tuple of int
        The first is for the microscope, the later ones fill a GPU.
    flops, nbytes : callable
        ``flops(n)``: operations; ``nbytes(n)``: bytes that must be read and written at least once.
    result : int
        Which argument the kernel fills.
    multiple : int
        Every size must be a multiple of this number; above 1, the kernel has no guard for partial
        blocks.
    tolerance : float
        Largest allowed difference between result and ``expected``, relative to the largest value
        of ``expected``; it leaves room for float32 sums of n terms.
    source : str
        CUDA C++, which the microscope does not read; "" for a kernel in Python.
    options : tuple of tuple of str
        Compiler options of CUDA C++ that are worth comparing; the first is the default.
    shared_bytes : int
        Bytes of dynamic shared memory that the launch has to request.
    """

    name: str
    family: str
    summary: str
    kernel: Any = field(repr=False)
    extents: Callable[[int], Extents] = field(repr=False)
    make: Callable[[int, np.random.Generator], tuple[Any, ...]] = field(repr=False)
    expected: Callable[..., np.ndarray] = field(repr=False)
    sizes: tuple[int, ...]
    flops: Callable[[int], float] = field(repr=False)
    nbytes: Callable[[int], float] = field(repr=False)
    result: int = field(repr=False, default=1)
    multiple: int = field(repr=False, default=1)
    tolerance: float = field(repr=False, default=1e-5)
    source: str = field(repr=False, default="")
    options: tuple[tuple[str, ...], ...] = field(repr=False, default=())
    shared_bytes: int = field(repr=False, default=0)

    def launch(self, n: int) -> Extents:
        """Return grid and block for size n.

        Raises
        ------
        InputError
            If the kernel does not take this size.
        """
        return self.extents(checked_size(self, n))

    def arguments(self, n: int, seed: int = 0) -> tuple[Any, ...]:
        """Return fresh arguments for size n, the same for the same seed."""
        return self.make(checked_size(self, n), np.random.default_rng(seed))

    def simulate(self, n: int | None = None, seed: int = 0) -> Simulation:
        """Run the kernel under the microscope, by default at its smallest size."""
        size = self.sizes[0] if n is None else n
        return simulate(self.kernel, *self.launch(size), *self.arguments(size, seed))


def checked_size(rung: Rung, n: object) -> int:
    """Return a size as an int.

    Raises
    ------
    InputError
        If the rung's kernel does not take this size.
    """
    if not is_whole(n) or n < 1 or int(n) % rung.multiple:
        expected = (
            "a whole number from 1" if rung.multiple == 1 else f"a multiple of {rung.multiple}"
        )
        raise InputError(
            f"{rung.name}: n={shown(n)}; expected {expected}. Pass for example n={rung.sizes[0]}."
        )
    return int(n)


def _family(name: str, *rungs: tuple[Any, ...], **common: Any) -> list[Rung]:
    """Return the rungs of a ladder. Each of ``rungs`` is (form, summary, kernel, extents), and a
    fifth entry where sizes must be multiples of a number; ``common`` are the fields that are the
    same in all of them.
    """
    return [
        Rung(
            f"{name}-{form}",
            name,
            summary,
            kernel,
            extents,
            multiple=multiple[0] if multiple else 1,
            **common,
        )
        for form, summary, kernel, extents, *multiple in rungs
    ]


def _blocks(each: int) -> Callable[[int], Extents]:
    """Return the ``extents`` of a kernel whose threads each take ``each`` elements."""
    return lambda n: (-(-n // (each * _BLOCK)), _BLOCK)


def _tiles(side: int, block: Any) -> Callable[[int], Extents]:
    """Return the ``extents`` of a kernel whose blocks each take a square tile of a matrix."""
    return lambda n: ((-(-n // side), -(-n // side)), block)


def _matrices(count: int) -> Callable[[int, np.random.Generator], tuple[Any, ...]]:
    """Return a ``make`` of ``count`` random n x n matrices and one of zeros for the result."""
    return lambda n, rng: (
        *(rng.random((n, n), dtype=np.float32) for _ in range(count)),
        np.zeros((n, n), np.float32),
    )


def _gate(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + np.tanh(0.8 * wide)))


def _sums(x: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the sum of each block. In a grid of B blocks, block b sums the elements i with
    i // 256 % B == b.
    """
    padded = np.pad(x.astype(np.float64), (0, -x.size % (sums.size * _BLOCK)))
    return np.asarray(padded.reshape(-1, sums.size, _BLOCK).sum((0, 2)))


def _softmax(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _product(a: np.ndarray, b: np.ndarray, *_: Any) -> np.ndarray:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def _product_flops(n: int) -> float:
    return 2.0 * int(n) ** 3


def _sum_rungs(each: int, *rungs: tuple[str, str, Any]) -> list[Rung]:
    """Return rungs that sum the elements of each block, ``each`` elements a thread."""
    extents = _blocks(each)
    return _family(
        "reduction",
        *((*rung, extents) for rung in rungs),
        make=lambda n, rng: (
            rng.random(n, dtype=np.float32),
            np.zeros(extents(n)[0], np.float32),
        ),
        expected=_sums,
        sizes=(1 << 14, 1 << 22, 1 << 26),
        flops=float,
        nbytes=lambda n: 4.0 * n,
    )


def _histogram_extents(n: int) -> Extents:
    return max(1, min(512, n // (16 * _BLOCK))), _BLOCK


RUNGS: tuple[Rung, ...] = (
    *_family(
        "elementwise",
        ("chunks", "32 neighbors for each thread", kernels.gate_chunks, _blocks(32)),
        ("each", "one thread for each element", kernels.gate_each, _blocks(1)),
        (
            "grid-stride",
            "128 blocks stride over all elements",
            kernels.gate_grid_stride,
            lambda n: (min(128, -(-n // _BLOCK)), _BLOCK),
        ),
        make=lambda n, rng: (rng.standard_normal(n, dtype=np.float32), np.zeros(n, np.float32)),
        expected=_gate,
        sizes=(1 << 16, 1 << 22, 1 << 26),
        flops=lambda n: 5.0 * n,  # NumPy's operations; a tanh counts as one
        nbytes=lambda n: 8.0 * n,
        tolerance=1e-6,
    ),
    *_sum_rungs(
        1,
        ("interleaved", "neighboring elements are added first", kernels.sum_interleaved),
        ("strided", "the same pairs, by the first threads", kernels.sum_strided),
        ("sequential", "halves are added", kernels.sum_sequential),
        ("shuffle", "a warp adds in registers", kernels.sum_shuffle),
    ),
    *_sum_rungs(
        8, ("grid-stride", "each thread first adds eight elements", kernels.sum_grid_stride)
    ),
    *_family(
        "transpose",
        (
            "naive",
            "rows are read, columns are written",
            kernels.transpose_naive,
            _tiles(32, (32, 8)),
        ),
        ("tiled", "transposed in shared memory", kernels.transpose_tiled, _tiles(32, (32, 8))),
        ("padded", "the tile has a spare column", kernels.transpose_padded, _tiles(32, (32, 8))),
        make=_matrices(1),
        expected=lambda a, b: a.T.astype(np.float64),
        sizes=(128, 2048, 8192),
        flops=lambda n: 0.0,
        nbytes=lambda n: 8.0 * n * n,
        tolerance=0.0,
    ),
    *_family(
        "histogram",
        (
            "global",
            "one atomic on global memory for each element",
            kernels.histogram_global,
            _histogram_extents,
        ),
        (
            "private",
            "each block has counters of its own",
            kernels.histogram_private,
            _histogram_extents,
        ),
        # Like the pixels of a picture: some values come far more often than others.
        make=lambda n, rng: (
            rng.normal(100, 20, n).clip(0, 255).astype(np.int32),
            np.zeros(256, np.int32),
        ),
        expected=lambda x, counts: np.bincount(x, minlength=256),
        sizes=(1 << 16, 1 << 22, 1 << 26),
        flops=float,
        nbytes=lambda n: 4.0 * n + 1024,
        tolerance=0.0,
    ),
    *_family(
        "softmax",
        (
            "three-walks",
            "the row is read three times",
            kernels.softmax_three_walks,
            lambda n: (n, _SOFTMAX_BLOCK),
        ),
        (
            "kept",
            "the row stays in shared memory",
            kernels.softmax_kept,
            lambda n: (n, _SOFTMAX_BLOCK),
        ),
        make=lambda n, rng: (
            rng.standard_normal((n, _SOFTMAX_COLUMNS), dtype=np.float32) * np.float32(3),
            np.zeros((n, _SOFTMAX_COLUMNS), np.float32),
        ),
        expected=_softmax,
        sizes=(32, 4096, 65536),
        # For each element: compare, subtract, exponential, add, divide.
        flops=lambda n: 5.0 * n * _SOFTMAX_COLUMNS,
        nbytes=lambda n: 8.0 * n * _SOFTMAX_COLUMNS,
    ),
    *_family(
        "matmul",
        (
            "naive",
            "one thread for each element, rows side by side",
            kernels.matmul_naive,
            _tiles(32, (32, 32)),
        ),
        (
            "coalesced",
            "one thread for each element, columns side by side",
            kernels.matmul_coalesced,
            _tiles(32, (32, 32)),
        ),
        ("tiled", "tiles of 32 x 32 in shared memory", kernels.matmul_tiled, _tiles(32, (32, 32))),
        (
            "registers-1d",
            "eight results for each thread",
            kernels.matmul_registers_1d,
            _tiles(64, 512),
            64,
        ),
        (
            "registers-2d",
            "64 results for each thread",
            kernels.matmul_registers_2d,
            _tiles(128, 256),
            128,
        ),
        make=_matrices(2),
        expected=_product,
        sizes=(128, 1024, 4096),
        flops=_product_flops,
        nbytes=lambda n: 12.0 * n * n,
        result=2,
    ),
)


# -------------------------------------------------------------------------------------------------
# CUDA C++ goes on where Python's kernels end: C = A B for square matrices. C is float32; A and B
# are float32 too, but for the last rung, which takes bfloat16.


def _with_size(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return two random matrices, one of zeros for the result, and the size."""
    return (*_matrices(2)(n, rng), np.int32(n))


def _with_size_bfloat16(n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return the arguments of ``_with_size``, with the bits of bfloat16 factors as int16."""
    *factors, result, size = _with_size(n, rng)
    # the upper half of each float32, rounded to nearest
    halves = [(x.view(np.uint32) + 0x8000) >> 16 for x in factors]
    return (*(x.astype(np.uint16).view(np.int16) for x in halves), result, size)


def _product_bfloat16(a: np.ndarray, b: np.ndarray, *_: Any) -> np.ndarray:
    wide = ((x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (a, b))
    return _product(*wide)


def _cuda(name: str, summary: str, width: int = 128, **others: Any) -> Rung:
    """Return a rung in CUDA C++ whose blocks each compute 128 x ``width`` results."""
    file = name.replace("-", "_")
    usual: dict[str, Any] = {
        "kernel": f"matmul_{file}",
        "extents": lambda n: ((n // width, n // 128), 256),
        "make": _with_size,
        "expected": _product,
        "nbytes": lambda n: 12.0 * n * n,
        "options": ((),),
    }
    return Rung(
        name=f"matmul-{name}",
        family="matmul",
        summary=f"CUDA C++: {summary}",
        source=(_SOURCES / f"{file}.cu").read_text(encoding="utf-8"),
        result=2,
        sizes=(width, 1024, 4096),
        multiple=width,
        flops=_product_flops,
        **{**usual, **others},
    )


CUDA_RUNGS = (
    _cuda("registers-2d-cuda", "64 results for each thread", kernel="matmul_registers_2d"),
    _cuda("vectorized", "four floats at once"),
    _cuda(
        "warp-tiled",
        "a tile for each warp",
        options=((), ("-DDEPTH=8",), ("-DDEPTH=32",)),
    ),
    _cuda("double-buffered", "the next tile is loaded ahead", 256),
    _cuda(
        "tensor-bf16",
        "Tensor Cores, bfloat16",
        extents=lambda n: ((n // 128, n // 128), 128),
        make=_with_size_bfloat16,
        expected=_product_bfloat16,
        nbytes=lambda n: 8.0 * n * n,
        shared_bytes=75_776,
    ),
)


def families() -> tuple[str, ...]:
    """Return the names of the ladders.

    Examples
    --------
    >>> families()
    ('elementwise', 'reduction', 'transpose', 'histogram', 'softmax', 'matmul')
    """
    return tuple(dict.fromkeys(each.family for each in RUNGS))


def family(name: str) -> tuple[Rung, ...]:
    """Return the rungs of a ladder, the slowest first.

    Raises
    ------
    InputError
        If there is no such ladder.
    """
    word("ladder", "family", name, families())
    return tuple(each for each in RUNGS if each.family == name)


def rung(name: str) -> Rung:
    """Return the rung of that name, such as "matmul-tiled" or, in CUDA C++, "matmul-warp-tiled".

    Raises
    ------
    InputError
        If there is no such rung.
    """
    by_name = {each.name: each for each in (*RUNGS, *CUDA_RUNGS)}
    return by_name[word("ladder", "rung", name, by_name)]
