"""Two references for a kernel's results that share nothing with the simulator under test.

``run`` runs each thread as a greenlet of the kernel's own Python code: no syntax trees, no masks,
no NumPy arithmetic. Integers are Python's (they wrap where they are stored), floats are Python's
doubles. A thread yields only at a barrier or a warp function; blocks run one after the other.

    NUMBA_ENABLE_CUDASIM=1 python oracles.py RESULTS.npz

runs the kernels in Numba's own simulator and writes what their arrays hold afterwards. This takes a
separate process, since that simulator replaces ``numba.cuda`` when numba is imported.
"""

# ruff: noqa: D102 - the methods have the names and the meaning of those of numba.cuda

import importlib
import itertools
import operator
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NUMBA_MODULES = ("kernels_of_ours", "kernels_of_blocks")


class Int(int):
    """An integer with a width in bits; arithmetic returns a plain int, which counts as 64 bits."""

    bits = 64


def wrapped(value: Any, dtype: np.dtype) -> Any:
    """Return a number as a variable of the type would hold it."""
    if dtype.kind in "bfc":
        return dtype.type(value).item()
    width = 8 * dtype.itemsize
    kept = int(value) & ((1 << width) - 1)
    made = Int(kept - (1 << width) if dtype.kind == "i" and kept >> (width - 1) else kept)
    made.bits = width
    return made


def _mask_of(lanes: Any) -> Any:
    """Return lanes as a bit mask of type int32, as numba-cuda's ballot and match do."""
    return wrapped(sum(1 << lane for lane in lanes), np.dtype(np.int32))


class Caster:
    """Stands for a type in the kernel's text: as a function, and as an element type."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)

    def __call__(self, value: Any) -> Any:
        return wrapped(value, self.dtype)


class Memory:
    """An array as a thread sees it: bounds are checked, loads give Python numbers, stores wrap.

    ``log`` counts accesses by (line, space, kind); None for local and constant memory.
    """

    def __init__(self, data: np.ndarray, space: str = "", log: Counter | None = None) -> None:
        self.data, self.space, self.log = data, space, log
        self.shape, self.size, self.ndim, self.dtype = data.shape, data.size, data.ndim, data.dtype

    def __len__(self) -> int:
        return len(self.data)

    def note(self, kind: str) -> None:
        """Count an access for the kernel's line, which is two frames up the call stack."""
        if self.log is not None:
            self.log[sys._getframe(2).f_lineno, self.space, kind] += 1

    def __getitem__(self, index: Any) -> Any:
        found = self.data[index]
        if isinstance(found, np.ndarray):
            return Memory(found, self.space, self.log)
        self.note("load")
        return wrapped(found.item(), self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.note("store")
        self.data[index] = wrapped(value, self.dtype)


# What an atomic stores, computed from the old value and its one or two arguments.
ATOMICS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "max": max, "min": min, "and_": operator.and_,
    "or_": operator.or_, "xor": operator.xor, "exch": lambda old, new: new,
    # CUDA C++ Programming Guide, atomicInc and atomicDec.
    "inc": lambda old, limit: 0 if old >= limit else old + 1,
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
    "cas": lambda old, expected, new: new if old == expected else old,
}  # fmt: skip


def _atomic(change: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(memory: Memory, index: Any, *given: Any) -> Any:
        old = wrapped(memory.data[index].item(), memory.dtype)
        memory.note("atomic")
        memory.data[index] = wrapped(change(old, *given), memory.dtype)
        return old

    return atomic


class Cuda:
    """Stands for ``cuda`` in the kernel's text while one launch runs."""

    warpsize = 32
    atomic = types.SimpleNamespace(**{name: _atomic(change) for name, change in ATOMICS.items()})

    def __init__(self, grid: tuple, block: tuple, dynamic_shared_bytes: int) -> None:
        self.gridDim, self.blockDim = _point(grid), _point(block)
        self.dynamic_bytes, self.log = dynamic_shared_bytes, Counter()
        self.local = types.SimpleNamespace(array=lambda n, kind: Memory(np.zeros(n, kind.dtype)))
        self.const = types.SimpleNamespace(array_like=lambda array: Memory(array.copy()))
        self.shared = types.SimpleNamespace(array=self._shared)

    def begin_block(self, place: tuple) -> None:
        """Set the index of the block, and clear the shared memory of the previous block."""
        self.blockIdx = _point(place)
        self.kept: dict[Any, np.ndarray] = {}
        self.dynamic = np.zeros(self.dynamic_bytes, dtype=np.uint8)

    def begin_thread(self, number: int, place: tuple) -> None:
        """Set the lane and thread index that the kernel sees from now on."""
        self.laneid, self.threadIdx = number % 32, _point(place)

    def _shared(self, shape: Any, kind: Caster) -> Memory:
        if shape == 0:
            size = kind.dtype.itemsize
            return Memory(
                self.dynamic[: self.dynamic_bytes // size * size].view(kind.dtype),
                "shared",
                self.log,
            )
        frame = sys._getframe(1)
        place = frame.f_code, frame.f_lineno
        return Memory(self.kept.setdefault(place, np.zeros(shape, kind.dtype)), "shared", self.log)

    def grid(self, ndim: int) -> Any:
        block, size, thread = map(vars, (self.blockIdx, self.blockDim, self.threadIdx))
        found = tuple(block[a] * size[a] + thread[a] for a in "xyz")
        return found[0] if ndim == 1 else found[:ndim]

    def gridsize(self, ndim: int) -> Any:
        found = tuple(vars(self.gridDim)[a] * vars(self.blockDim)[a] for a in "xyz")
        return found[0] if ndim == 1 else found[:ndim]

    # -- synchronization: a thread reports what it waits for, and resumes with the answer ---------

    def _wait(self, *what: Any) -> Any:
        from greenlet import getcurrent

        answer = getcurrent().parent.switch(what)
        sys.settrace(self.trace)  # the end of another thread switches tracing off
        return answer

    def trace(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        """Count the statements of the kernel and its functions, by (line, "", "lanes")."""
        last = 0

        def count(frame: types.FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "line" and frame.f_lineno != last:  # Python may report a line twice
                last = frame.f_lineno
                self.log[last, "", "lanes"] += 1
            return count

        return count if frame.f_code in self.codes else None

    def syncthreads(self) -> None:
        self._wait("block", None, lambda values: None)

    def syncthreads_count(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: sum(map(bool, values)))

    def syncthreads_and(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: int(all(values)))

    def syncthreads_or(self, value: Any) -> Any:
        return self._wait("block", value, lambda values: int(any(values)))

    def threadfence(self) -> None:
        """Do nothing: every write is seen at once."""

    def syncwarp(self, mask: int = 0xFFFFFFFF) -> None:
        self._wait("warp", mask, None, lambda lane, values: None)

    def _shuffle(self, mask: int, value: Any, source: Callable[[int], int]) -> Any:
        return self._wait("warp", mask, value, lambda own, all_: all_.get(source(own), all_[own]))

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._shuffle(mask, value, lambda own: lane % 32)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle(mask, value, lambda own: own - delta)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle(mask, value, lambda own: own + delta)

    def shfl_xor_sync(self, mask: int, value: Any, other: int) -> Any:
        return self._shuffle(mask, value, lambda own: own ^ other)

    def ballot_sync(self, mask: int, value: Any) -> Any:
        return self._wait(
            "warp", mask, value, lambda lane, values: _mask_of(o for o, v in values.items() if v)
        )

    def match_any_sync(self, mask: int, value: Any) -> Any:
        def alike(lane: int, values: dict) -> Any:
            return _mask_of(other for other, v in values.items() if v == values[lane])

        return self._wait("warp", mask, value, alike)

    def lanemask_lt(self) -> int:
        return (1 << self.laneid) - 1

    def popc(self, value: Any) -> int:
        width = max(32, getattr(value, "bits", 64))
        return (int(value) & ((1 << width) - 1)).bit_count()

    def ffs(self, value: Any) -> int:
        return (value & -value).bit_length()


def _point(place: tuple) -> types.SimpleNamespace:
    return types.SimpleNamespace(x=place[0], y=place[1], z=place[2])


_TYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_TYPES += ["float16", "float32", "float64"]


def run(kernel: Any, grid: Any, block: Any, *args: Any, dynamic_shared_bytes: int = 0) -> Counter:
    """Run a kernel thread by thread; arrays change in place.

    Returns how often threads accessed memory, by (line, space, kind), and executed each line.

    Raises
    ------
    RuntimeError
        If threads wait for others that never come.
    """
    from greenlet import greenlet

    grid, block = ((*(n if isinstance(n, tuple) else (n,)), 1, 1)[:3] for n in (grid, block))
    cuda = Cuda(grid, block, dynamic_shared_bytes)
    names = dict(kernel.__globals__)
    functions = [
        (name, value)
        for name, value in kernel.__globals__.items()
        if isinstance(value, types.FunctionType) and value.__globals__ is kernel.__globals__
    ]
    names.update({name: Caster(name) for name in _TYPES if name in names}, cuda=cuda)
    for name, value in functions:
        names[name] = types.FunctionType(value.__code__, names, name)
    cuda.codes = {kernel.__code__, *(value.__code__ for _, value in functions)}
    function = types.FunctionType(kernel.__code__, names)

    def thread(*arguments: Any) -> None:
        sys.settrace(cuda.trace)
        function(*arguments)
        sys.settrace(None)

    given = [Memory(a, "global", cuda.log) if isinstance(a, np.ndarray) else a for a in args]
    places, tracing = list(_places(block)), sys.gettrace()
    for place in _places(grid):
        cuda.begin_block(place)
        _run_block(cuda, [greenlet(thread) for _ in places], places, given)
    sys.settrace(tracing)
    return cuda.log


def _places(extent: tuple) -> Iterator[tuple]:
    return ((x, y, z) for z, y, x in itertools.product(*(range(n) for n in reversed(extent))))


def _run_block(cuda: Cuda, threads: list[Any], places: list[tuple], given: list[Any]) -> None:
    waiting: dict[int, tuple] = {}
    answers: dict[int, tuple] = {number: tuple(given) for number in range(len(threads))}
    while answers:
        for number, answer in answers.items():
            cuda.begin_thread(number, places[number])
            asked = threads[number].switch(*answer)
            if not threads[number].dead:
                waiting[number] = asked
        alive = [number for number, thread in enumerate(threads) if not thread.dead]
        answers = _served(waiting, alive)
        if alive and not answers:
            raise RuntimeError(f"threads {sorted(waiting)} wait forever")
        for number in answers:
            del waiting[number]


def _served(waiting: dict[int, tuple], alive: list[int]) -> dict[int, tuple]:
    """Return the answers for the threads whose wait is over, since all others have arrived."""
    if alive and all(waiting[number][0] == "block" for number in alive):
        values = [waiting[number][1] for number in alive]
        return {number: (waiting[number][2](values),) for number in alive}
    answers: dict[int, tuple] = {}
    for number, (kind, *rest) in waiting.items():
        if kind == "warp":
            mask, _, answer = rest
            named = [o for o in alive if o // 32 == number // 32 and mask >> o % 32 & 1]
            if all(waiting[other][0] == "warp" for other in named):
                values = {other % 32: waiting[other][2] for other in named}
                answers[number] = (answer(number % 32, values),)
    return answers


def _share_arrays_in_a_block() -> None:
    """Give all threads of a block the same shared array, whichever of them asks first.

    Numba's simulator first looks for the array of a line, then makes and stores one. A thread that
    looks before another has stored gets an array of its own. ``setdefault`` does both in one step.
    """
    from numba.cuda.simulator import kernelapi

    numbas = kernelapi.FakeCUDAShared.array

    def array(self: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
        if shape == 0 or alignment is not None:  # dynamic memory is there before the threads begin
            return numbas(self, shape, dtype, alignment)
        if isinstance(dtype, kernelapi.types.Type):
            dtype = kernelapi.numpy_support.as_dtype(dtype)
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        return self._allocations.setdefault(place, np.empty(shape, dtype))

    kernelapi.FakeCUDAShared.array = array


def main(path: str) -> None:
    """Run each case that Numba's simulator can run."""
    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1", "set before numba is imported"
    from numba import cuda

    _share_arrays_in_a_block()
    results: dict[str, np.ndarray] = {}
    for module in NUMBA_MODULES:
        for case in importlib.import_module(module).CASES:
            if case.runs_in_numba:
                given, shared = case.make(), case.dynamic_shared_bytes
                cuda.jit(case.kernel)[case.grid, case.block, 0, shared](*given)
                arrays = ((n, a) for n, a in enumerate(given) if isinstance(a, np.ndarray))
                results |= {f"{case.name}/{n}": a for n, a in arrays}
    np.savez(path, **results)


if __name__ == "__main__":
    main(sys.argv[1])
