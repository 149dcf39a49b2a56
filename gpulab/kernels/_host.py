"""Replacements in main memory for the host functions of ``numba.cuda``: arrays, streams, devices.

For scripts that run under ``simulated()`` without a GPU. Each call finishes its work before it
returns, so streams and events have nothing to wait for. Errors are those that Numba raises in the
same place, since a script may catch them.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

# Attributes of the device that scripts can read; the limits are those of an H100 SXM. Source:
# NVIDIA H100 Tensor Core GPU Architecture white paper, and CUDA Programming Guide 13.0, technical
# specifications of compute capability 9.0. The clock (in kHz) and the memory are those that an
# "H100 80GB HBM3" reports (recordings/data/nvidia-h100.json), the copy engines those that
# deviceQuery prints for it.
COMPUTE_CAPABILITY = (9, 0)
_ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "WARP_SIZE": 32,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 * 1024,
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "CLOCK_RATE": 1_980_000,
    "ASYNC_ENGINE_COUNT": 3,
    "CAN_MAP_HOST_MEMORY": 1,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "CONCURRENT_KERNELS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "COMPUTE_CAPABILITY_MAJOR": COMPUTE_CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": COMPUTE_CAPABILITY[1],
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "TCC_DRIVER": 0,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
}
# Less is free than an H100 has: programs make arrays as large, and here they are in main memory.
_FREE_BYTES, _MEMORY_BYTES = 16 * 2**30, 85_017_493_504


# -------------------------------------------------------------------------------------------------
# Arrays


# Attribute of a device array -> NumPy's name for it.
_OF_THE_ELEMENTS = {
    **{name: name for name in ("shape", "strides", "dtype", "ndim", "size", "nbytes")},
    "alloc_size": "nbytes",
}


class DeviceArray:
    """An array on the simulated device: the program accesses its content only through copies and
    indices, as with Numba's ``DeviceNDArray``.

    Attributes
    ----------
    array : ndarray
        The elements.
    """

    __cuda_ndarray__ = True  # Numba's functions recognize a device array by this attribute

    def __init__(self, array: np.ndarray, stream: Any = 0) -> None:
        self.array, self.stream = array, stream

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the NumPy array: shape, strides, dtype or a size."""
        if name not in _OF_THE_ELEMENTS:
            raise AttributeError(  # Numba's guvectorize asks for ``gpu_data`` where it broadcasts
                f"simulated: a device array has no attribute {name!r}; expected one that does not "
                "concern a GPU's memory. Do without it; in place of guvectorize, which is not "
                "simulated, write a kernel of cuda.jit."
            )
        return getattr(self.array, _OF_THE_ELEMENTS[name])

    @property
    def first_byte(self) -> int:
        """Return how many bytes of the allocation lie before these elements: a slice may begin
        anywhere.
        """
        whole = self.array.base if isinstance(self.array.base, np.ndarray) else self.array
        return byte_bounds(self.array)[0] - byte_bounds(whole)[0]

    @property
    def flags(self) -> dict[str, bool]:
        """Return NumPy's flags for the memory layout."""
        return {name: self.array.flags[name] for name in ("C_CONTIGUOUS", "F_CONTIGUOUS")}

    @property
    def T(self) -> DeviceArray:
        """Return the array with its axes reversed."""
        return self.transpose()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe the memory; the key ``gpulab`` marks it as main memory and has the array."""
        return {**self.array.__array_interface__, "strides": self.strides, "gpulab": self.array}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("`copy=False` is not supported. A copy is always created.")
        return self.copy_to_host().astype(dtype or self.dtype, copy=False)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        part = np.asarray(self.array[index])  # a record keeps its memory
        is_element = part.ndim == 0 and part.dtype.names is None
        return part[()] if is_element else DeviceArray(part, self.stream)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = host_array(value)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """Return one element, or several as an array on the device."""
        return self[item]

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Assign to one element or several."""
        self[key] = value

    def is_c_contiguous(self) -> bool:
        """Return whether the elements follow each other in C order."""
        return self.array.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Return whether the elements follow each other in Fortran order."""
        return self.array.flags.f_contiguous

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> np.ndarray:
        """Copy the elements to an array of the host, or to a new one, and return it."""
        if min(self.strides, default=0) < 0:
            raise NotImplementedError(
                f"D->H copy not implemented for negative strides: {self.strides}"
            )
        if ary is None:
            return self.array.copy(order="K")
        other: np.ndarray = host_array(ary)
        _check_compatible(self.array, other)
        other.squeeze()[...] = self.array.squeeze()
        return other

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy the elements of an array of the host or the device to this one."""
        other = np.asarray(host_array(ary))
        if other.size == 0:
            return
        if not isinstance(ary, DeviceArray):  # the host's layout does not matter
            other = other.copy(order="C" if self.array.flags.c_contiguous else "F")
        _check_compatible(self.array, other)
        self.array.squeeze()[...] = other.squeeze()

    def bind(self, stream: Any = 0) -> DeviceArray:
        """Return the same memory with another default stream."""
        return DeviceArray(self.array, stream)

    def transpose(self, axes: Any = None) -> DeviceArray:
        """Return the same memory with its axes in another order."""
        return DeviceArray(self.array.transpose(axes), self.stream)

    def reshape(self, *shape: Any, order: Any = "C") -> DeviceArray:
        """Return the same memory in another shape."""
        return self._view(self.array.reshape(*shape, order=order))

    def ravel(self, order: Any = "C", stream: Any = 0) -> DeviceArray:
        """Return the same memory as one axis."""
        return self._view(self.array.ravel(order=order))

    def _view(self, other: np.ndarray) -> DeviceArray:
        if self.size and not np.shares_memory(self.array, other):
            raise NotImplementedError("operation requires copying")
        return DeviceArray(other, self.stream)

    def squeeze(self, axis: Any = None, stream: Any = 0) -> DeviceArray:
        """Return the same memory without the axes of length one."""
        return DeviceArray(self.array.squeeze(axis=axis), stream or self.stream)

    def view(self, dtype: Any) -> DeviceArray:
        """Return the same bytes as elements of another type."""
        return DeviceArray(self.array.view(dtype), self.stream)

    def split(self, section: int, stream: Any = 0) -> Iterator[DeviceArray]:
        """Yield parts with the same number of elements; the last may be shorter."""
        for first in range(0, self.size, section):
            yield DeviceArray(self.array[first : first + section], self.stream)

    def __repr__(self) -> str:
        return f"<device array of gpulab.kernels, shape {self.shape}, {self.dtype}>"


def host_array(value: Any) -> Any:
    """Return the NumPy array in main memory that holds the elements of a simulated device array, or
    of an object whose ``__cuda_array_interface__`` describes one; any other value unchanged.

    Raises
    ------
    TypeError
        If the memory is that of a real GPU.
    """
    if isinstance(value, DeviceArray):
        return value.array
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None or isinstance(value, np.ndarray):
        return value
    if "gpulab" not in interface:
        raise TypeError(
            f"simulated: {type(value).__name__} holds memory of a GPU; expected an array in main "
            "memory, since kernels are simulated there. Copy it to the host first."
        )
    known, shape, strides = interface["gpulab"], interface["shape"], interface.get("strides")
    # np.ndarray refuses the memory of a slice with gaps
    is_same = (shape, strides) == (known.shape, known.strides)
    return known if is_same else np.ndarray(shape, known.dtype, known, strides=strides)


def _check_compatible(one: np.ndarray, other: np.ndarray) -> None:
    """Refuse to copy between arrays of different dtype, shape (but for axes of length one) or
    strides.
    """
    first, second = one.squeeze(), other.squeeze()
    if one.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {one.dtype} vs. {other.dtype}")
    if first.shape != second.shape:
        raise ValueError(f"incompatible shape: {one.shape} vs. {other.shape}")
    if one.size and first.strides != second.strides:
        raise ValueError(f"incompatible strides: {one.strides} vs. {other.strides}")


def _check_contiguous(array: np.ndarray) -> None:
    """Refuse an array that cannot be copied in one piece; axes with stride 0, which a broadcast
    repeats, do not count.
    """
    if not array.size:
        return
    core = array[tuple(slice(None) if stride else 0 for stride in array.strides)]
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(
            "Array contains non-contiguous buffer and cannot be transferred as a single memory "
            "region. Please ensure contiguous buffer with numpy .ascontiguousarray()"
        )


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> DeviceArray:
    """Copy an array, or an object that NumPy can convert to one, to the simulated device; without
    ``copy``, only allocate the memory. An array that is already on the device is returned as it is.
    """
    if to is not None:
        if copy:
            to.copy_to_device(obj, stream)
        return to  # type: ignore[no-any-return]
    if isinstance(obj, DeviceArray):
        return obj
    array = np.asarray(host_array(obj))
    _check_contiguous(array)
    return DeviceArray(array.copy(order="K") if copy else np.empty_like(array), stream)


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0
) -> DeviceArray:
    """Return an uninitialized array on the simulated device."""
    return DeviceArray(np.ndarray(shape, dtype, strides=strides, order=order), stream)


def pinned_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: Any = "C",
    stream: Any = 0,
    **options: Any,
) -> np.ndarray:
    """Return an uninitialized array of the host; pinned, managed and mapped memory are the same
    here.
    """
    return np.ndarray(shape, dtype, strides=strides, order=order)


def _like(make: Callable[..., Any], ary: Any, stream: Any = 0, **options: Any) -> Any:
    """Return an array from ``make`` with the shape, dtype and axis order of another, without
    gaps.
    """
    model = np.empty_like(host_array(ary))
    return make(model.shape, model.dtype, model.strides, stream=stream, **options)


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """Return the memory of another object as an array on the device."""
    if not is_cuda_array(obj):
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    return DeviceArray(host_array(obj))


def is_cuda_array(obj: Any) -> bool:
    """Return whether an object describes memory of a device."""
    return hasattr(obj, "__cuda_array_interface__")


@contextlib.contextmanager
def pinned(*arrays: Any) -> Iterator[None]:
    """Pin arrays of the host inside the context; this has no effect here."""
    yield


@contextlib.contextmanager
def mapped(*arrays: Any, **options: Any) -> Iterator[Any]:
    """Yield device arrays that use the memory of arrays of the host, without a copy."""
    found = [DeviceArray(array) for array in arrays]
    yield found[0] if len(found) == 1 else found


class Transfer:
    """Base of ``In``, ``Out`` and ``InOut``, which wrap an array and state how it is copied."""

    def __init__(self, value: Any) -> None:
        self.value = value


class In(Transfer):
    """An argument that is only copied to the device: the kernel's writes to it are lost."""


class Out(Transfer):
    """An argument that Numba only copies back; here it keeps its values, as with ``InOut``."""


class InOut(Transfer):
    """An argument that is copied to the device and back, as without a wrapper."""


def kernel_argument(argument: Any) -> Any:
    """Return an argument of a launch in the form that ``simulate`` accepts."""
    # by the class's name, since Numba's own wrappers, made before ``simulated()``, count too
    kind = type(argument).__name__
    if kind == "In":
        return host_array(argument.value).copy()
    if kind in ("Out", "InOut"):
        return kernel_argument(argument.value)
    return as_cuda_array(argument) if is_cuda_array(argument) else argument


# -------------------------------------------------------------------------------------------------
# Streams, events, devices


class Stream:
    """A stream whose work is always done: each call finishes its work before it returns."""

    handle = 0

    def __int__(self) -> int:
        return 0

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Yield the stream; at the end all work is done already."""
        yield self

    def add_callback(self, callback: Any, arg: Any = None) -> None:
        """Call the function at once, since all work before it is done."""
        callback(self, 0, arg)

    def async_done(self) -> Any:
        """Return a future that has its result already."""
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


class Event:
    """An event. The time between two events is that of the simulation, not of a GPU.

    Examples
    --------
    >>> start, end = Event(), Event()
    >>> start.seconds, end.seconds = 2.0, 2.25
    >>> start.elapsed_time(end)  # in milliseconds, as CUDA gives it
    250.0
    """

    def __init__(self, timing: bool = True) -> None:
        self.seconds = 0.0

    def record(self, stream: Any = 0) -> None:
        """Note the time."""
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        """Return True: everything before it is done."""
        return True

    def wait(self, stream: Any = 0) -> None:
        """Do nothing: all work is done."""

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def elapsed_time(self, evtend: Event) -> float:
        """Return the milliseconds that the simulation took from this event to another."""
        return 1e3 * (evtend.seconds - self.seconds)


class MemoryInfo(NamedTuple):
    """Bytes of the device's memory."""

    free: int
    total: int


class Device:
    """The simulated device. The same object also takes the place of its context, of the list of
    devices, which has only this one, and of Numba's queue of memory to be freed.
    """

    id = 0
    name = "gpulab simulator"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = COMPUTE_CAPABILITY
    supports_float16 = True
    supports_bfloat16 = supports_fp8 = False  # NumPy has no such types

    def __getattr__(self, name: str) -> int:
        try:
            return _ATTRIBUTES[name]
        except KeyError:
            raise AttributeError(f"the simulated device has no attribute {name!r}") from None

    @property
    def device(self) -> Device:
        """Return the device of the context."""
        return self

    current = _device = deallocations = device

    @property
    def lst(self) -> list[Device]:
        """Return the devices."""
        return [self]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: Any) -> Any:
        return self.lst[number]

    def __enter__(self) -> Device:
        return self

    get_primary_context = __enter__

    def __exit__(self, *error: object) -> None:
        """Keep the device current: there is no other."""

    def __repr__(self) -> str:
        return f"<CUDA device 0 '{self.name}'>"

    def get_memory_info(self) -> MemoryInfo:
        """Return the free and the total bytes, which are constants here."""
        return MemoryInfo(_FREE_BYTES, _MEMORY_BYTES)

    def get_default_stream(self) -> Stream:
        """Return a stream."""
        return Stream()

    create_stream = get_default_stream

    def reset(self) -> None:
        """Do nothing: memory is freed with the arrays."""

    synchronize = push = pop = clear = reset

    defer_cleanup = staticmethod(pinned)


DEVICE = Device()


def select_device(device_id: int = 0) -> Device:
    """Return the device with this number, which must be 0."""
    if device_id != 0:
        raise ValueError(f"device {device_id} does not exist; the simulator has only device 0")
    return DEVICE


def detect() -> bool:
    """Print the devices; return True, since there is one."""
    print(f"Found 1 CUDA devices\nid 0    {DEVICE.name:>20} {'[SUPPORTED]':>40}")
    print(
        f"{'Compute Capability':>40}: {'.'.join(map(str, COMPUTE_CAPABILITY))}\n"
        "Summary:\n\t1/1 devices are supported"
    )
    return True


class Reduce:
    """A reduction, made from a function of two values. It runs on the host, without counts."""

    def __init__(self, functor: Callable[[Any, Any], Any]) -> None:
        self.functor = getattr(functor, "py_func", functor)

    def __call__(
        self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0
    ) -> Any:
        values = host_array(arr)
        if values.ndim != 1:
            raise TypeError("only support 1D array")
        total = functools.reduce(self.functor, values[:size], values.dtype.type(init))
        if res is None:
            return values.dtype.type(total)
        res[0] = total
        return None


def _nothing(*arguments: Any, **options: Any) -> None:
    """Replace the functions that have no effect here."""


# Name in numba.cuda -> its replacement.
HOST_API: dict[str, Any] = {
    "to_device": to_device,
    "device_array": device_array,
    "device_array_like": functools.partial(_like, device_array),
    "pinned_array": pinned_array,
    "managed_array": pinned_array,
    "mapped_array": pinned_array,
    "pinned_array_like": functools.partial(_like, pinned_array),
    "mapped_array_like": functools.partial(_like, pinned_array),
    "as_cuda_array": as_cuda_array,
    "is_cuda_array": is_cuda_array,
    "pinned": pinned,
    "mapped": mapped,
    "In": In,
    "Out": Out,
    "InOut": InOut,
    "stream": Stream,
    "default_stream": Stream,
    "legacy_default_stream": Stream,
    "per_thread_default_stream": Stream,
    "external_stream": lambda pointer: Stream(),
    "event": Event,
    "event_elapsed_time": Event.elapsed_time,
    "synchronize": _nothing,
    "close": _nothing,
    "profile_start": _nothing,
    "profile_stop": _nothing,
    "profiling": pinned,
    "defer_cleanup": pinned,
    "select_device": select_device,
    "get_current_device": lambda: DEVICE,
    "current_context": lambda devnum=None: DEVICE,
    "list_devices": lambda: DEVICE,
    "gpus": DEVICE,
    "detect": detect,
    "require_context": lambda function: function,
    # the version that the simulator's rules come from
    "runtime": types.SimpleNamespace(
        get_version=lambda: (13, 0), is_supported_version=lambda: True
    ),
    "is_available": lambda: True,
    "is_supported_version": lambda: True,
    "is_float16_supported": lambda: True,
    "is_bfloat16_supported": lambda: False,  # NumPy has no such type
    "is_fp8_supported": lambda: False,
    "cuda_error": _nothing,
    "reduce": Reduce,
    "Reduce": Reduce,
}


# -------------------------------------------------------------------------------------------------
# Sources of kernels that a program defines through ``exec``. No file has them, so they are kept.


# Libraries compile texts too (a dataclass compiles several), so number and length are limited.
_MOST_TEXTS, _LONGEST = 4096, 1 << 16
# (text, file name that was passed to ``compile``)
executed_texts: collections.deque[tuple[str, str]] = collections.deque(maxlen=_MOST_TEXTS)


def _keep(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "compile" or not isinstance(arguments[0], (str, bytes)):
        return
    given = arguments[0]
    text = given if isinstance(given, str) else given.decode(errors="replace")
    if len(text) < _LONGEST and "def " in text:
        executed_texts.append((text, arguments[1]))


@functools.cache  # a hook cannot be removed: one is added when the first script begins
def keep_texts() -> None:
    """Keep the most recent sources that are compiled from strings, from now on."""
    sys.addaudithook(_keep)
