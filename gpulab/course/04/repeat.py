"""04.18: take it home: the host side of a kernel."""

# %% exercise
id = "04.18"
title = "take it home: the host side of a kernel"
answer_name = "repeat"
live = True

# %% stub
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    ...  # cuda.to_device, cuda.device_array_like, kernel[blocks, threads](...), copy_to_host

# %% hint
# The data crosses the link twice: once to the GPU before the loop, and once back after it. All
# launches work on two arrays that stay on the GPU.

# %% hint
# After a launch the new array is the old one of the next launch: here, there = there, here.

# %% hint
# blocks = (x.size + 255) // 256 rounds up, so the last block covers the rest. kernel[blocks, 256]
# is what you call with the two arrays.

# %% solution
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here = cuda.to_device(x)
    there = cuda.device_array_like(here)
    blocks = (x.size + 255) // 256  # rounded up
    for _ in range(steps):
        kernel[blocks, 256](here, there)
        here, there = there, here
    return here.copy_to_host()

# %% check
import contextlib
import math
import types
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import plural

# (elements, steps). Copies are judged in every case; a block too small and a grid too large only in the first.
_CASES = ((5000, 40), (1000, 7), (1, 3), (300, 1), (257, 0))
_MOST_THREADS = 1024  # of a block, on every GPU
_MOST_COPIES = 2  # each way: one is enough, a second does no harm
# The most threads for each element. Two blocks of 1,024 threads are allowed on top; more threads show a mistake in the grid.
_MOST_THREADS_EACH = 4


def smoothed(x: np.ndarray) -> np.ndarray:
    """Return the result of one launch of the notebook's kernel ``smooth`` on ``x``."""
    wide = np.pad(x, 1, mode="edge")
    return np.float32(0.5) * x + np.float32(0.25) * (wide[:-2] + wide[2:])


class Account:
    """Counts of copies to the GPU (``there``) and back, and of launches, with the threads and blocks of each launch.

    ``by_launch`` counts the copies, also included in the other two, that launches with arrays of the host make.
    """

    def __init__(self) -> None:
        self.there = self.back = self.launches = self.by_launch = 0
        self.threads: list[int] = []
        self.blocks: list[int] = []


class OnDevice:
    """Stands for an array of numba.cuda on the GPU."""

    def __init__(self, account: Account, data: np.ndarray) -> None:
        self._account, self._data = account, data
        self.shape, self.dtype, self.size, self.nbytes = data.shape, data.dtype, data.size, data.nbytes
        self.ndim, self.strides = data.ndim, data.strides

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> np.ndarray:
        self._account.back += 1
        if ary is None:
            return self._data.copy()
        ary[...] = self._data
        return np.asarray(ary)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        if not isinstance(ary, OnDevice):
            self._account.there += 1
        self._data[...] = ary._data if isinstance(ary, OnDevice) else ary

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.copy_to_host(), dtype)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        part = self._data[index]
        if isinstance(part, np.ndarray):
            return OnDevice(self._account, part)
        self._account.back += 1
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(value, OnDevice):
            self._account.there += 1
        self._data[index] = value._data if isinstance(value, OnDevice) else value

    def reshape(self, *shape: Any) -> Any:
        return OnDevice(self._account, self._data.reshape(*shape))

    def ravel(self, order: str = "C") -> Any:
        return OnDevice(self._account, self._data.ravel())


class Kernel:
    """Stands for the kernel ``smooth`` behind ``cuda.jit``."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __getitem__(self, configuration: Any) -> Any:
        given = configuration if isinstance(configuration, tuple) else (configuration,)
        if len(given) not in (2, 3, 4):
            raise ValueError("must specify at least the griddim and blockdim: kernel[blocks, threads](...)")
        blocks, threads = (_extent(one) for one in given[:2])
        return lambda *arrays: self._launch(blocks, threads, arrays)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        return self[griddim, blockdim]

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        threads = tpb or 256
        return lambda *arrays: self._launch(-(-ntasks // threads), threads, arrays) if ntasks else None

    def __call__(self, *arrays: Any) -> None:
        raise ValueError("Kernel launch configuration was not specified: kernel[blocks, threads](old, new)")

    def _launch(self, blocks: int, threads: int, arrays: Any) -> None:
        if len(arrays) != 2:
            raise TypeError(f"the kernel takes 2 arguments, old and new; {len(arrays)} are given")
        if threads > _MOST_THREADS:
            raise Refused(
                f"A block of {threads:,} threads is more than the {_MOST_THREADS:,} that a GPU takes, so the launch fails there. "
                "The number of blocks stands first: kernel[blocks, threads]."
            )
        account = self._account
        account.launches += 1
        account.threads.append(threads)
        account.blocks.append(blocks)
        old, new = (self._data(one) for one in arrays)
        if np.shares_memory(old, new):
            raise Refused(
                "A launch is given the same array as old and as new. A thread then reads neighbors that another thread has already "
                "overwritten: a race. Use two arrays and exchange them after each launch."
            )
        if old.dtype != new.dtype:
            raise Refused(
                f"The kernel is given arrays of {old.dtype} and {new.dtype}; x is float32. cuda.device_array makes float64 unless it is "
                "given a dtype, and so does np.zeros; cuda.device_array_like(x) takes that of x."
            )
        if old.shape != new.shape:
            raise Refused(f"The kernel is given arrays of {old.shape} and {new.shape}; both should have the shape of x.")
        done = min(blocks * threads, old.size)
        new[:done] = smoothed(old)[:done]

    def _data(self, array: Any) -> np.ndarray:
        if isinstance(array, OnDevice):
            return array._data
        if not isinstance(array, np.ndarray):
            raise TypeError(f"the kernel takes arrays; it is given {checking.describe(array)}")
        # numba.cuda copies an array of the host to the GPU before the launch and back after it.
        self._account.there, self._account.back = self._account.there + 1, self._account.back + 1
        self._account.by_launch += 2
        return array


def _extent(given: Any) -> int:
    # Returns the number of blocks in a grid, or of threads in a block: the product of its sizes.
    sizes = given if isinstance(given, (tuple, list)) else (given,)
    for one in sizes:
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            raise TypeError(f"grid and block are whole numbers; {checking.describe(one)} is given. Round up with (n + 255) // 256")
        if one < 1:
            raise Refused(f"A launch is given {one} blocks or threads; a GPU refuses fewer than 1. Round the number of blocks up.")
    return math.prod(int(one) for one in sizes)


class Stream:
    """Stands for a stream: the stand-in does everything at once."""

    def synchronize(self) -> None:
        """Do nothing: no work is ever pending."""

    @contextlib.contextmanager
    def auto_synchronize(self) -> Any:
        yield self


class StandIn(types.SimpleNamespace):
    """A namespace in place of ``numba.cuda``; the error for a missing name lists the names that it has."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cuda.{name} is not in this check; it has {', '.join(vars(self))}")


def stand_in(account: Account) -> Any:
    """Return a stand-in for the host side of ``numba.cuda`` that counts copies in ``account``."""

    def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> OnDevice:
        if isinstance(obj, OnDevice):
            return obj
        account.there += 1
        if to is not None:
            to._data[...] = obj
            return to
        return OnDevice(account, np.array(obj))

    def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> OnDevice:
        return OnDevice(account, np.full(shape, 77, dtype))  # new memory on a GPU holds arbitrary numbers

    def device_array_like(ary: Any, stream: Any = 0) -> OnDevice:
        return device_array(ary.shape, ary.dtype)

    def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> np.ndarray:
        return np.full(shape, 77, dtype)

    return StandIn(
        to_device=to_device, device_array=device_array, device_array_like=device_array_like, pinned_array=pinned_array,
        pinned_array_like=lambda ary: pinned_array(ary.shape, ary.dtype), synchronize=lambda: None, stream=Stream,
        default_stream=Stream, pinned=lambda *arrays: contextlib.nullcontext(), is_available=lambda: True,
        current_context=Stream, defer_cleanup=contextlib.nullcontext,
    )  # fmt: skip


def check(answer: Any) -> str:
    ask, judged = checking.in_turn(answer), Account()
    for n, steps in _CASES:
        x = np.random.default_rng(n).integers(-9, 10, n).astype(np.float32)
        before, account = x.copy(), Account()
        where = f"For {n:,} elements and {plural(steps, 'step')}"
        result = ask(where, stand_in(account), Kernel(account), x, steps)
        judged = account if n == _CASES[0][0] else judged
        _judge_copies(account, steps, where)
        if isinstance(result, OnDevice):
            raise Refused("What you returned is still on the GPU. Fetch it with copy_to_host() after the last launch.")
        if not isinstance(result, np.ndarray):
            raise Refused(f"Your function returned {checking.describe(result)}; the check expects a NumPy array.")
        if not np.array_equal(x, before):
            raise Refused("Your function changes x, which others may still need. Let it fill an array of its own.")
        if account.launches != steps:
            raise Refused(f"{where} the kernel is launched {plural(account.launches, 'time')}. One launch makes one step.")
        _compare(result, before, steps, account, where)
        grid = account.blocks[0] * account.threads[0] if steps else 0
        if grid > _MOST_THREADS_EACH * n + 2 * _MOST_THREADS:
            raise Refused(
                f"The results are right, but {grid:,} threads are launched for {plural(n, 'element')}. The grid counts blocks, not "
                "threads: (x.size + 255) // 256 of them."
            )
    if judged.threads[0] < 32:
        raise Refused(
            f"The results are right, but a block has {plural(judged.threads[0], 'thread')}, and a warp always has 32 lanes: most of them "
            "rest. Take a multiple of 32, such as 256. The number of blocks stands first: kernel[blocks, threads]."
        )
    lanes = "" if judged.threads[0] % 32 == 0 else " A multiple of 32 threads for each block would leave no lane of a warp idle."
    return (
        f"Right: {plural(judged.there, 'copy', 'copies')} to the GPU, {judged.launches} launches of {judged.blocks[0]} blocks of "
        f"{judged.threads[0]} threads, {plural(judged.back, 'copy', 'copies')} back.{lanes} "
        "On a GPU: repeat(numba.cuda, numba.cuda.jit(smooth), x, 40)."
    )


def _judge_copies(account: Account, steps: int, where: str) -> None:
    if account.by_launch:
        raise Refused(
            f"{where} the kernel is launched with arrays of the host. numba copies them to the GPU before each launch and back after "
            f"it: {account.by_launch} copies. Call cuda.to_device once, before the loop, and launch with what it returns."
        )
    if max(account.there, account.back) > _MOST_COPIES and steps:
        raise Refused(
            f"{where} your function copies {plural(account.there, 'time')} to the GPU and {plural(account.back, 'time')} back. The data "
            "can stay on the GPU between launches: one copy before the loop, one after it."
        )


def _compare(result: np.ndarray, x: np.ndarray, steps: int, account: Account, where: str) -> None:
    states = [x]
    for _ in range(steps):
        states.append(smoothed(states[-1]))
    if np.array_equal(result, states[-1]):
        return
    threads = account.blocks[0] * account.threads[0] if account.launches else 0
    if 0 < threads < x.size:
        raise Refused(
            f"{where} {account.blocks[0]} blocks of {account.threads[0]} threads are {threads:,} threads: the last "
            f"{x.size - threads} elements have none. Round the number of blocks up: (x.size + 255) // 256."
        )
    old = next((k for k, one in enumerate(states[:-1]) if np.array_equal(result, one)), None)
    if old is not None:
        raise Refused(
            f"{where} the result is that of {plural(old, 'step')}. The kernel writes its second argument: after a launch that one "
            "holds the new values, and it is the first argument of the next launch."
        )
    raise Refused(f"{where} the result is wrong. Each launch reads what the launch before it wrote: exchange the two arrays after it.")

# %% wrong: the last 136 elements have none
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[x.size // 256, 256](here, there)
        here, there = there, here
    return here.copy_to_host()

# %% wrong: with arrays of the host
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    old, new = x.copy(), x.copy()
    for _ in range(steps):
        kernel[(x.size + 255) // 256, 256](old, new)
        old, new = new, old
    return old

# %% wrong: can stay on the GPU between launches
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    for _ in range(steps):
        here, there = cuda.to_device(x), cuda.device_array_like(x)
        kernel[(x.size + 255) // 256, 256](here, there)
        x = there.copy_to_host()
    return x

# %% wrong: still on the GPU
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[(x.size + 255) // 256, 256](here, there)
        here, there = there, here
    return here

# %% wrong: the same array as old and as new
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here = cuda.to_device(x)
    for _ in range(steps):
        kernel[(x.size + 255) // 256, 256](here, here)
    return here.copy_to_host()

# %% wrong: the result is that of 39 steps
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[(x.size + 255) // 256, 256](here, there)
        here, there = there, here
    return there.copy_to_host()

# %% wrong: threads are launched for 5,000 elements
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[x.size, 256](here, there)
        here, there = there, here
    return here.copy_to_host()

# %% wrong: cuda.device_array makes float64
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array(x.shape)
    for _ in range(steps):
        kernel[(x.size + 255) // 256, 256](here, there)
        here, there = there, here
    return here.copy_to_host()

# %% wrong: The number of blocks stands first
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[256, (x.size + 255) // 256](here, there)
        here, there = there, here
    return here.copy_to_host()

# %% wrong: threads are launched for 1 element.
def repeat(cuda, kernel, x, steps):
    """Return a NumPy array: x after `steps` launches of kernel(old, new). x itself stays as it is."""
    here, there = cuda.to_device(x), cuda.device_array_like(x)
    for _ in range(steps):
        kernel[20, 256](here, there)  # enough for 5,000 elements
        here, there = there, here
    return here.copy_to_host()
