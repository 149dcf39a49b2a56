"""The work to measure: its arrays, the device that does it, how to wait for that device, to copy to
it and back, and to empty its caches.

The caller need not name the device on which a function works: it is found from the arrays among the
arguments, in the closure, in the globals that the function names, or in its result. Only existing
arrays are inspected; nothing is imported or called.

Copies: on a CPU both are real copies in main memory. Arrays inside tuples, lists and dictionaries
are copied; everything else (numbers, models, step objects) passes through unchanged. The library's
own calls are used, so that no overhead of gpulab is timed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gpulab import _backends
from gpulab import devices as _devices
from gpulab.devices import Device
from gpulab.devices.host_facts import probe
from gpulab.errors import InputError

_DEPTH = 3  # arrays sit in tuples, lists and dictionaries of arguments, hardly ever deeper
_WIDTH = 64  # only the first entries of a long list are inspected
# Assumed where the size of a cache cannot be read: larger than the caches of common machines of
# 2026.
_UNKNOWN_CPU_BYTES = 256 * 2**20
_UNKNOWN_GPU_BYTES = 128 * 2**20
_LAZY = (types.GeneratorType, map, filter, zip)  # their items are computed when they are taken

Change = Callable[[Any, _backends.Backend], Any]


def _parts(value: Any, depth: int = _DEPTH) -> Iterator[tuple[Any, _backends.Backend | None]]:
    """Yield a value, and what is inside it if it is a tuple, a list, a mapping or a model, each
    with the adapter of its library; None where no known library owns it.
    """
    owner, torch = _backends.backend_of(value), sys.modules.get("torch")
    yield value, owner
    items: Iterable[Any] = ()
    if owner is not None:
        return
    if torch is not None and isinstance(value, torch.nn.Module):
        items = value.parameters()
    elif depth > 0 and isinstance(value, (tuple, list)):
        items = value[:_WIDTH]
    elif depth > 0 and isinstance(value, Mapping):
        items = list(value.values())[:_WIDTH]
    for item in items:
        yield from _parts(item, depth - 1)


def arrays_in(value: Any) -> Iterator[tuple[Any, _backends.Backend]]:
    """Yield the arrays of known libraries in a value, each with the adapter of its library: itself,
    or inside tuples, lists and mappings; a model's parameters too.
    """
    for part, owner in _parts(value):
        if owner is not None and owner.has_data(part):
            yield part, owner


def held_by(fn: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the objects that a function holds on to: closure, named globals, defaults, ``self``,
    the parts of a partial.
    """
    if depth == 0:
        return
    if isinstance(fn, functools.partial):
        yield from (*fn.args, *fn.keywords.values())
        yield from held_by(fn.func, depth - 1)
    elif isinstance(fn, types.MethodType):
        yield fn.__self__
        yield from held_by(fn.__func__, depth - 1)
    elif isinstance(fn, types.FunctionType):
        yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        for cell in fn.__closure__ or ():
            # a variable that the enclosing function has not set yet has no contents
            with contextlib.suppress(ValueError):
                yield cell.cell_contents
        # a decorator's wrapper; the function itself is one cell further in
        if "__wrapped__" in fn.__dict__:
            yield from held_by(fn.__dict__["__wrapped__"], depth - 1)
        codes = [fn.__code__]
        for code in codes:  # the list grows by the functions defined inside
            codes += (one for one in code.co_consts if isinstance(one, types.CodeType))
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        yield from (fn.__globals__[name] for name in names if name in fn.__globals__)
    else:
        # an array's own method, such as ``x.sum``, holds the array
        yield fn.__self__ if isinstance(fn, types.BuiltinMethodType) else fn


def device_of(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> Device | None:
    """Return the device that the arguments' arrays are on, or else those that ``fn`` holds; None
    where there are none.

    One array on an accelerator is enough: where host and device arrays are mixed, the accelerator
    must be waited for.
    """
    return device_of_values((args,)) or device_of_values(held_by(fn))


def device_of_values(values: Iterable[Any], named: Device | None = None) -> Device | None:
    """Return the device of the arrays in some values, or None where there are none; ``named`` is
    the requested one.

    An array of a library that gpulab has no adapter for, such as Numba's own, shows that it is on a
    CUDA device, but not on which one. That is then taken to be ``named``, or else the first GPU, as
    in ``gpulab.kernels.launch``.
    """
    found: Device | None = None
    for value in values:
        foreign = False
        for part, owner in _parts(value):
            if owner is None:
                # look at the type: reading an attribute of the object may run any code
                foreign = foreign or hasattr(type(part), "__cuda_array_interface__")
            elif owner.has_data(part):
                device = _devices.find(owner.device_of(part))
                if not device.is_cpu:
                    return device
                found = device
        if foreign:
            gpu = named if named is not None and named.torch_type == "cuda" else _devices.default()
            if gpu.torch_type == "cuda":
                return gpu
    return found


def array_bytes(*values: Any, beside: Any = ()) -> int:
    """Return the distinct bytes of all arrays in the values: an array given twice counts once, a
    broadcast axis has length 1.

    Arrays that are in ``beside`` too do not count, such as an argument that is also the result.
    """
    distinct = {id(array): (array, owner) for array, owner in arrays_in(values)}
    counted = {id(array) for array, _ in arrays_in(beside)}
    return sum(_own_bytes(*pair) for key, pair in distinct.items() if key not in counted)


def _own_bytes(array: Any, owner: _backends.Backend) -> int:
    if owner.immutable:  # it has neither strides nor broadcast axes
        return owner.nbytes(array)
    layout = getattr(array, "layout", None)
    # sparse and nested tensors have no strides, so their bytes are not counted
    if layout is not None and (str(layout) != "torch.strided" or array.is_nested):
        return 0
    strides = array.stride() if layout is not None else array.strides
    lengths = [length for length, stride in zip(array.shape, strides, strict=True) if stride != 0]
    return int(math.prod(lengths)) * int(array.itemsize)


def dtypes_in(*values: Any) -> tuple[str, ...]:
    """Return the names of the arrays' element types, such as "float32"."""
    return tuple(dict.fromkeys(owner.dtype_name(array) for array, owner in arrays_in(values)))


def libraries_in(*values: Any) -> set[str]:
    """Return the names of the libraries that the arrays belong to, such as "torch"."""
    return {owner.name for _, owner in arrays_in(values)}


def allocations() -> dict[int, int]:
    """Return how many blocks PyTorch has handed out on each CUDA device; empty where CUDA is not in
    use.

    A function that works on the GPU without showing any array there still allocates.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        index: torch.cuda.memory_stats(index).get("allocation.all.allocated", 0)
        for index in range(torch.cuda.device_count())
    }


def newly_used(before: Mapping[int, int]) -> Device | None:
    """Return the first CUDA device that handed out memory since ``allocations`` gave ``before``."""
    grown = [index for index, count in allocations().items() if count > before.get(index, 0)]
    return _devices.find(f"cuda:{grown[0]}") if grown else None


def refuse_promise(label: str, result: Any, args: tuple[Any, ...]) -> None:
    """Raise InputError if the first call did no work (it returned a generator, a coroutine or a
    meta tensor), or if it used up an iterator, so that later calls have no work: there is nothing
    to time.
    """
    # Only Python's own iterators: a data reader would lose an item here, or wait for one.
    iterators: list[Any] = [
        one
        for one in args
        if isinstance(one, Iterator) and type(one).__module__ in ("builtins", "itertools")
    ]
    if any(next(one, iterators) is iterators for one in iterators):
        raise InputError(
            f"measure: the first call of {label} used up the iterator that it was given; expected "
            "arguments for many calls. Pass a list, or make the iterator inside of the function."
        )
    # only of an array: reading an attribute of another object may run any code
    if any(owner is not None and getattr(part, "is_meta", False) for part, owner in _parts(result)):
        raise InputError(
            f"measure: {label} returned a tensor on the device 'meta', so its work was not done; "
            "expected one on a device that computes. Make its inputs with device='cpu'."
        )
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    elif not isinstance(result, (*_LAZY, types.AsyncGeneratorType)):
        return
    raise InputError(
        f"measure: {label} returned a {type(result).__name__}, so its work was not done; expected "
        f"a function that does it. Measure lambda: list({label}(...)); for a coroutine, outside of "
        f"a notebook, lambda: asyncio.run({label}(...))."
    )


def label_of(fn: Any) -> str:
    """Return the name of a function as tables show it.

    Examples
    --------
    >>> label_of(max), label_of(functools.partial(sorted, reverse=True)), label_of(lambda: None)
    ('max', 'sorted', 'call')
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return "call" if name == "<lambda>" else str(name)


def mapped(value: Any, change: Change) -> Any:
    """Return the value with each array in it changed; ``change`` gets the array and its library's
    adapter.
    """
    owner, kind = _backends.backend_of(value), type(value)
    if owner is not None:
        return change(value, owner)
    if kind in (dict, collections.OrderedDict):
        return kind((key, mapped(item, change)) for key, item in value.items())
    # Named tuples have ``_make``; what torch.sort returns has ``n_fields``.
    is_named = isinstance(value, tuple) and (hasattr(kind, "_make") or hasattr(kind, "n_fields"))
    if kind in (tuple, list) or is_named:
        return getattr(kind, "_make", kind)(mapped(item, change) for item in value)
    return value


def on_host(value: Any) -> Any:
    """Return the value with its arrays in host memory: torch tensors stay torch tensors, arrays of
    other GPU libraries become numpy arrays, host arrays stay as they are.
    """

    def change(array: Any, owner: _backends.Backend) -> Any:
        if owner.device_of(array) == "cpu":
            return array
        if owner.name == "torch":
            return array.detach().cpu().requires_grad_(array.requires_grad)
        return owner.to_host(array)

    return mapped(value, change)


def copier_to(device: Device, original: Any) -> Callable[[], Any]:
    """Return a function that copies the host version of ``original`` to a device and returns the
    copy, as arrays of the same library.

    numpy has no arrays on an accelerator: there its arrays become those of the GPU library in
    ``original``, or torch tensors. On a CPU they stay numpy arrays.
    """
    libraries = libraries_in(original)
    target = next((name for name in ("cupy", "jax", "tensorflow") if name in libraries), "torch")

    def change(array: Any, owner: _backends.Backend) -> Any:
        if owner.name == "numpy":
            return _backends.backend(target).from_host(array, str(device), False)
        if owner.name == "torch":
            copy = owner.move(array.detach(), str(device), False)
            return copy.requires_grad_(array.requires_grad)
        return owner.move(array, str(device), False)

    host = on_host(original)
    if device.is_cpu:
        return lambda: mapped(host, lambda array, owner: owner.copy(array))
    if target == "torch":  # convert once: the tensors share numpy's memory
        torch = _backends.backend("torch")
        host = mapped(
            host, lambda a, owner: torch.from_host(a, "cpu", False) if owner.name == "numpy" else a
        )
    return lambda: mapped(host, change)


def host_copier() -> Callable[[Any], None]:
    """Return a function that copies a result's arrays to host memory, each time to the same place.
    When it returns, the device has finished with the arrays.

    The place is kept because fresh memory of 32 MiB and more comes from the system page by page at
    its first use, which takes longer than the copy.
    """
    kept: list[Any] = []

    def copy(result: Any) -> None:
        places = iter(kept.copy())
        kept.clear()

        def change(array: Any, owner: _backends.Backend) -> Any:
            place: Any = next(places, None)
            fits = place is not None and (place.shape, place.dtype) == (array.shape, array.dtype)
            if owner.name == "torch":
                import torch

                place = place if fits else torch.empty_like(array, device="cpu")
                place.copy_(array.detach())
            elif owner.name == "cupy":
                place = array.get(out=place if fits else None)
            else:
                value = owner.to_host(array)
                place = place if fits else np.empty_like(value)
                np.copyto(place, value)
            kept.append(place)
            return place

        mapped(result, change)

    return copy


def cache_flusher(device: Device) -> Callable[[], Any]:
    """Return a function that leaves nothing useful in the device's caches: it writes twice as much
    as they hold, and returns when that is done.

    On a CPU the calling thread writes: caches private to other cores keep what they have, so a
    function on many threads is only as cold as the shared cache makes it. On a GPU the L2 cache is
    cleared (as nvbench does).
    """
    if device.is_cpu:
        sizes = (cache.total_bytes for cache in probe().caches)
        nbytes = max(sizes, default=_UNKNOWN_CPU_BYTES)
        buffer = np.zeros(2 * nbytes // 8, dtype=np.int64)
        return lambda: np.add(buffer, 1, out=buffer)
    import torch

    properties: Any = (
        torch.cuda.get_device_properties(device.index) if device.torch_type == "cuda" else None
    )
    nbytes = int(getattr(properties, "L2_cache_size", 0) or _UNKNOWN_GPU_BYTES)
    tensor = torch.empty(2 * nbytes // 4, dtype=torch.int32, device=str(device))

    def flush_device() -> None:
        tensor.zero_()
        device.synchronize()

    return flush_device
