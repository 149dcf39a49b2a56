"""A plain executor of kernels: each thread is a greenlet that runs the kernel's own Python code. The reference of the tests.

It shares nothing with the simulator under test: no syntax trees, no masks, no NumPy arithmetic. Integers are Python's (they wrap where they
are stored), floats are Python's doubles. A thread gives way at a barrier or a warp function only; blocks run one after the other.
"""
# ruff: noqa: D102 - the methods have the names and the meaning of those of numba.cuda

from __future__ import annotations

import itertools
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from greenlet import greenlet

Extent = tuple[int, int, int]


class Int(int):
    """An integer that knows how wide it is, until arithmetic makes it a plain one of 64 bits."""

    bits = 64


def wrapped(value: Any, dtype: np.dtype) -> Any:
    """Return a number as a variable of the type would hold it."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "fc":
        return dtype.type(value).item()
    width = 8 * dtype.itemsize
    kept = int(value) & ((1 << width) - 1)
    made = Int(kept - (1 << width) if dtype.kind == "i" and kept >> (width - 1) else kept)
    made.bits = width
    return made


def _int32(bits: Any) -> Any:
    return wrapped(sum(bits), np.dtype(np.int32))  # numba-cuda's ballot and match give this type


class Caster:
    """Stands for a type in the kernel's text: as a function, and as an element type."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)

    def __call__(self, value: Any) -> Any:
        return wrapped(value, self.dtype)


class Memory:
    """An array as a thread sees it: bounds are checked, loads give Python numbers, stores wrap."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.shape, self.size, self.ndim, self.dtype = data.shape, data.size, data.ndim, data.dtype

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        found = self.data[index]
        return Memory(found) if isinstance(found, np.ndarray) else wrapped(found.item(), self.data.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert np.ndim(self.data[index]) == 0
        self.data[index] = wrapped(value, self.data.dtype)

    def exchange(self, index: Any, change: Callable[[Any], Any]) -> Any:
        """Update one element and return what it was."""
        old = self[index]
        self[index] = change(old)
        return old


class _Space:
    """``cuda.shared``, ``cuda.local`` and ``cuda.const``."""

    def __init__(self, make: Callable[[Any, np.dtype], Memory]) -> None:
        self._make = make

    def array(self, shape: Any, dtype: Any) -> Memory:
        return self._make(shape, dtype.dtype if isinstance(dtype, Caster) else np.dtype(dtype))

    def array_like(self, array: np.ndarray) -> Memory:
        return Memory(np.ascontiguousarray(array).copy())


class _Atomic:
    """``cuda.atomic``."""

    def add(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: old + v)

    def sub(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: old - v)

    def max(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: v if v > old else old)

    def min(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: v if v < old else old)

    def exch(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: v)

    def and_(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: old & v)

    def or_(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: old | v)

    def xor(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: old ^ v)

    def inc(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: 0 if old >= v else old + 1)

    def dec(self, a: Memory, i: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: v if old == 0 or old > v else old - 1)

    def cas(self, a: Memory, i: Any, expected: Any, v: Any) -> Any:
        return a.exchange(i, lambda old: v if old == expected else old)


class Point:
    """Three numbers: ``threadIdx`` and its like."""

    def __init__(self, place: Extent) -> None:
        self.x, self.y, self.z = place


class Cuda:
    """Stands for ``cuda`` in the kernel's text while one launch runs."""

    warpsize = 32

    def __init__(self, grid: Extent, block: Extent, dynamic_shared_bytes: int) -> None:
        self.gridDim, self.blockDim = Point(grid), Point(block)
        self.blockIdx = self.threadIdx = Point((0, 0, 0))
        self.number = 0
        self._dynamic_bytes = dynamic_shared_bytes
        self.atomic = _Atomic()
        self.local = self.const = _Space(lambda shape, dtype: Memory(np.zeros(shape, dtype)))
        self.shared = _Space(self._shared)

    def begin_block(self, place: Extent) -> None:
        """Forget the shared memory of the block before."""
        self.blockIdx = Point(place)
        self._kept: dict[Any, np.ndarray] = {}
        self._dynamic = np.zeros(self._dynamic_bytes, dtype=np.uint8)

    def _shared(self, shape: Any, dtype: np.dtype) -> Memory:
        if shape == 0:
            return Memory(self._dynamic[: self._dynamic_bytes // dtype.itemsize * dtype.itemsize].view(dtype))
        frame = sys._getframe(2)
        return Memory(self._kept.setdefault((frame.f_code, frame.f_lineno), np.zeros(shape, dtype)))

    @property
    def laneid(self) -> int:
        return self.number % 32

    def grid(self, ndim: int) -> Any:
        found = tuple(getattr(self.blockIdx, a) * getattr(self.blockDim, a) + getattr(self.threadIdx, a) for a in "xyz")
        return found[0] if ndim == 1 else found[:ndim]

    def gridsize(self, ndim: int) -> Any:
        found = tuple(getattr(self.gridDim, a) * getattr(self.blockDim, a) for a in "xyz")
        return found[0] if ndim == 1 else found[:ndim]

    # -- what threads do together: the thread says what it waits for, and gets the answer when all are there --------------------------

    def _wait(self, *what: Any) -> Any:
        return greenlet.getcurrent().parent.switch(what)

    def syncthreads(self) -> None:
        self._wait("block", None, lambda values: None)

    def syncthreads_count(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: sum(1 for v in values if v))

    def syncthreads_and(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: int(all(values)))

    def syncthreads_or(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: int(any(values)))

    def threadfence(self) -> None:
        """Do nothing: every write is seen at once."""

    def syncwarp(self, mask: int = 0xFFFFFFFF) -> None:
        self._wait("warp", mask, None, lambda lane, values: None)

    def _shuffle(self, mask: int, value: Any, source: Callable[[int], int]) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: values.get(source(lane), values[lane]))

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._shuffle(mask, value, lambda own: lane % 32)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle(mask, value, lambda own: own - delta)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle(mask, value, lambda own: own + delta)

    def shfl_xor_sync(self, mask: int, value: Any, other: int) -> Any:
        return self._shuffle(mask, value, lambda own: own ^ other)

    def all_sync(self, mask: int, value: Any) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: all(values.values()))

    def any_sync(self, mask: int, value: Any) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: any(values.values()))

    def eq_sync(self, mask: int, value: Any) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: len(set(map(bool, values.values()))) == 1)

    def ballot_sync(self, mask: int, value: Any) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: _int32(1 << other for other, v in values.items() if v))

    def match_any_sync(self, mask: int, value: Any) -> Any:
        return self._wait("warp", mask, value, lambda lane, values: _int32(1 << o for o, v in values.items() if v == values[lane]))

    # -- bits --------------------------------------------------------------------------------------------------------------------------

    def _bits(self, value: Any) -> tuple[int, int]:
        width = max(32, getattr(value, "bits", 64))
        return int(value) & ((1 << width) - 1), width

    def popc(self, value: Any) -> int:
        return self._bits(value)[0].bit_count()

    def clz(self, value: Any) -> int:
        bits, width = self._bits(value)
        return width - bits.bit_length()

    def ffs(self, value: Any) -> int:
        bits, _ = self._bits(value)
        return (bits & -bits).bit_length()

    def brev(self, value: Any) -> int:
        bits, width = self._bits(value)
        return int(f"{bits:0{width}b}"[::-1], 2)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def selp(self, test: Any, a: Any, b: Any) -> Any:
        return a if test else b

    def cbrt(self, value: Any) -> float:
        return math.cbrt(value)


_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


def run(kernel: Any, grid: Any, block: Any, *args: Any, dynamic_shared_bytes: int = 0) -> None:
    """Run a kernel thread by thread; arrays change in place.

    Raises
    ------
    RuntimeError
        If threads wait for others that never come.
    """
    grid, block = ((*(n if isinstance(n, tuple) else (n,)), 1, 1)[:3] for n in (grid, block))
    cuda = Cuda(grid, block, dynamic_shared_bytes)
    names = dict(kernel.__globals__)
    names.update({name: Caster(name) for name in _TYPES if name in names}, cuda=cuda)
    for name, value in kernel.__globals__.items():
        if isinstance(value, types.FunctionType) and value.__globals__ is kernel.__globals__:
            names[name] = types.FunctionType(value.__code__, names, name)
    function = types.FunctionType(kernel.__code__, names, kernel.__name__, None, kernel.__closure__)
    given = [Memory(a) if isinstance(a, np.ndarray) else a.item() if isinstance(a, np.generic) else a for a in args]
    for place in _places(grid):
        cuda.begin_block(place)
        _run_block(cuda, [greenlet(function) for _ in _places(block)], list(_places(block)), given)


def _places(extent: Extent) -> Iterator[Extent]:
    return ((x, y, z) for z, y, x in itertools.product(*(range(n) for n in reversed(extent))))


def _run_block(cuda: Cuda, threads: list[greenlet], places: list[Extent], given: list[Any]) -> None:
    waiting: dict[int, tuple] = {}
    answers: dict[int, tuple] = {number: tuple(given) for number in range(len(threads))}
    while answers:
        for number, answer in answers.items():
            cuda.number, cuda.threadIdx = number, Point(places[number])
            asked = threads[number].switch(*answer)
            if not threads[number].dead:
                waiting[number] = asked
        alive = [number for number, thread in enumerate(threads) if not thread.dead]
        answers = _served(waiting, alive)
        if alive and not answers:
            raise RuntimeError(f"threads {sorted(waiting)} wait for ever")
        for number in answers:
            del waiting[number]


def _served(waiting: dict[int, tuple], alive: list[int]) -> dict[int, tuple]:
    """Return the answers for the threads whose company is complete."""
    answers: dict[int, tuple] = {}
    if alive and all(waiting[number][0] == "block" for number in alive):
        values = [waiting[number][1] for number in alive]
        return {number: (waiting[number][2](values),) for number in alive}
    for number, (kind, *rest) in waiting.items():
        if kind != "warp":
            continue
        mask, _, answer = rest
        named = [other for other in alive if other // 32 == number // 32 and mask >> other % 32 & 1]
        if all(waiting[other][0] == "warp" for other in named):
            answers[number] = (answer(number % 32, {other % 32: waiting[other][2] for other in named}),)
    return answers
