"""A device's memory now, by owner (the parts sum to the whole); what one cell adds, keeps and
frees; and how to free the memory that a failed cell left behind, or to limit memory.

When a cell raises, Python keeps the last traceback for the debugger; its frames keep every local
variable of the functions that failed, so after an out-of-memory error the memory stays full
(pytorch/pytorch#27600, ipython/ipython#11572).

``limit`` makes the CPU a deliberately small device. It gives out-of-memory errors on demand,
without the risk that the system kills the process. A dispatch mode that counts live tensor storage
enforces the limit and raises ``torch.OutOfMemoryError``, so code that handles this error works on a
full GPU too.

``apply_share`` limits a student to a share of a shared GPU. The administrator of the class server
sets ``GPULAB_GPU_MEMORY`` in the kernel's environment, such as "10 GiB" or "25 %"; it caps the
memory that PyTorch takes on each GPU. An allocation beyond the cap raises
``torch.OutOfMemoryError`` in that kernel only. PyTorch's own allocator enforces the cap: CuPy,
numba, JAX, TensorFlow and the CUDA context (some hundred MB) are outside it, and a student's own
code can lift it. JAX and TensorFlow, which would take most of the GPU at their first operation, are
configured to take only what they need. The cap prevents accidents; only MIG slices isolate users.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulab import _backends, _validate, devices
from gpulab.devices import host_facts, nvml
from gpulab.errors import DeviceError, InputError, shown
from gpulab.evidence import Evidence, Note
from gpulab.memory.step_memory import living, shape_of, storages_of, tensors_in
from gpulab.results import Result, Table, note_rows
from gpulab.units import format_bytes, parse_bytes, plural

# Arrays are looked for inside lists, tuples and mappings down to this depth, and among this many of
# their items. Deeper or longer nests are a library's data structures, where a path means nothing to
# the reader.
_DEPTH, _ITEMS = 3, 200
_LARGEST = 10  # new arrays of a cell that a result keeps
_Life = Callable[[], Any]


class HeldTensor(NamedTuple):
    """One storage on a device, under the first name that leads to it.

    Attributes
    ----------
    name : str
        Such as "x", "model.layers.0.weight" or "model.layers.0.weight.grad"; "graph of y" if only
        the graph that autograd keeps for the backward pass of y refers to the storage; "" if no
        name was found.
    nbytes : int
        Of the whole storage.
    shape : tuple of int
        Of the first array found on the storage; for a nested tensor, its number of elements.
    dtype, library : str
    shared_by : int
        How many arrays (views) were found on the storage.
    """

    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    library: str
    shared_by: int

    @property
    def shape_words(self) -> str:
        """The shape in a table: "2x3", or "scalar"."""
        return "x".join(map(str, self.shape)) or "scalar"


@dataclass(frozen=True)
class Snapshot(Result):
    """All bytes of one device, by owner.

    Attributes
    ----------
    device, device_name : str
    total_bytes : int
        For an accelerator its memory; for a CPU the memory that this process may use.
    parts : mapping of str to int
        In drawing order, summing to ``total_bytes`` exactly: "tensors" (arrays of all libraries,
        with or without a name), "cached" (kept by allocators for later), "this process" (context,
        libraries and the rest), "other processes", "free". Where the driver does not distinguish
        processes, "this process" and "other processes" are one part, "context and other processes".
    tensors : tuple of HeldTensor
        Largest first.
    notes : tuple of Note
    evidence : Evidence
    """

    device: str
    device_name: str
    total_bytes: int
    parts: Mapping[str, int]
    tensors: tuple[HeldTensor, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def tensor_bytes(self) -> int:
        """The bytes of the storages that were found, each counted once."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def free_bytes(self) -> int:
        """The free bytes."""
        return self.parts["free"]

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {format_bytes(nbytes)}" for name, nbytes in self.parts.items() if nbytes
        )
        return f"<memory of {self.device}: {parts}>"

    def table(self) -> Table:
        """Return the parts, then the largest tensors."""
        rows = [
            *(
                (name, format_bytes(nbytes), f"{nbytes / max(1, self.total_bytes):.1%}")
                for name, nbytes in self.parts.items()
            ),
            *(
                (
                    f"- {tensor.name or 'no name'}",
                    format_bytes(tensor.nbytes),
                    f"{tensor.shape_words} {tensor.dtype} ({tensor.library}"
                    f"{f', {tensor.shared_by} views' if tensor.shared_by > 1 else ''})",
                )
                for tensor in self.tensors[:10]
            ),
            *note_rows(self.notes, 3),
        ]
        return (
            f"memory of {self.device}: {format_bytes(self.total_bytes)}",
            "bytes",
            "share",
        ), rows


def snapshot(device: Any = None, names: Mapping[str, Any] | None = None) -> Snapshot:
    """Return what holds the memory of a device now.

    Parameters
    ----------
    device : None, str or Device
        None takes the best one available.
    names : mapping of str to object, optional
        Where names are looked for: arrays, modules, optimizers, and lists, tuples and mappings of
        these. None takes the caller's variables (in a notebook, the notebook's).

    Returns
    -------
    Snapshot
        Memory that several arrays share counts once, also that of a NumPy array and of the tensors
        that ``torch.from_numpy`` made of it. Arrays that only C++ code holds are not
        listed, unless they belong to the graph of a named array; on an accelerator their bytes
        still count as "tensors", on a CPU as "this process".

    Raises
    ------
    DeviceError
        If the machine has no such device, or it vanished.
    InputError
        If ``names`` is not a mapping.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> x = torch.zeros(1000); y = x[:10]
    >>> s = memory.snapshot("cpu", names={"x": x, "y": y})
    >>> [(t.name, t.nbytes, t.shared_by >= 2) for t in s.tensors if t.name == "x"]
    [('x', 4000, True)]
    >>> sum(s.parts.values()) == s.total_bytes
    True
    """
    if names is None:
        caller = sys._getframe(1)
        names = {**caller.f_globals, **caller.f_locals}
    else:
        _validate.instance(
            "snapshot", "names", names, Mapping, "a mapping of names to objects. Pass globals()."
        )
    where = devices.find(device)
    with devices.guard(f"snapshot: asking {where} what holds its memory"):
        rows = [row for row, _ in _storages(where, names).values() if row.nbytes]
        tensors = sorted(rows, key=lambda row: (-row.nbytes, row.name))
        parts, notes = _parts(where, sum(t.nbytes for t in tensors))
    total = sum(parts.values())
    return Snapshot(
        str(where), where.name, total, parts, tuple(tensors), notes, Evidence.measured(where.name)
    )


# -- parts ---------------------------------------------------------------------------------------


def _parts(where: devices.Device, found: int) -> tuple[dict[str, int], tuple[Note, ...]]:
    """Return the parts of a device's memory, where ``found`` bytes were found in arrays.

    The device reports the free bytes. Of the used bytes, those that this process holds are its own,
    and the others belong to other processes and the system.
    """
    total, free = where.memory_bytes, where.free_bytes
    held, reserved = (found, found) if where.is_cpu else _pool_bytes(where)[:2]
    mine = host_facts.resident_bytes() if where.is_cpu else _process_bytes(where)
    used = min(total, max(0, total - free))
    tensors = min(held, used, mine if where.is_cpu and mine is not None else used)
    cached = 0 if where.is_cpu else min(max(0, reserved - tensors), used - tensors)
    parts = {"tensors": tensors, "cached": cached}
    if mine is not None:
        here = min(max(mine, tensors + cached), used)
        parts |= {"this process": here - tensors - cached, "other processes": used - here}
        return parts | {"free": total - used}, ()
    parts |= {"context and other processes": used - tensors - cached, "free": total - used}
    return parts, (
        Note(
            "skipped",
            "The driver does not report how much memory each process holds (in a container, on a "
            "MIG slice, without NVML, or on a GPU that is not NVIDIA's), so the rest of the used "
            "memory is shown as one part.",
        ),
    )


def _pool_bytes(where: devices.Device) -> tuple[int, int, int]:
    """Return (held by arrays, taken from the driver) of PyTorch's and CuPy's allocators on an
    accelerator, and what arrays of CuPy hold of that.
    """
    if where.kind == "mps":
        return (
            int(torch.mps.current_allocated_memory()),
            int(torch.mps.driver_allocated_memory()),
            0,
        )
    allocator, of_cupy = getattr(torch, where.torch_type), 0
    held, taken = allocator.memory_allocated(where.index), allocator.memory_reserved(where.index)
    cupy = sys.modules.get("cupy")
    # If the driver does not support CuPy's version of CUDA, CuPy holds nothing, and its errors do
    # not mean that the device is lost.
    if cupy is not None and where.torch_type == "cuda" and cupy.cuda.is_available():
        with cupy.cuda.Device(where.index):
            pool = cupy.get_default_memory_pool()
            of_cupy, taken = int(pool.used_bytes()), taken + pool.total_bytes()
    return int(held) + of_cupy, int(taken), of_cupy


def _process_bytes(where: devices.Device) -> int | None:
    """Return the bytes that this process holds on an NVIDIA GPU according to the driver, or None
    where the driver does not report them.
    """
    if where.kind != "cuda":
        return None
    # MIG slices, old drivers and containers do not answer
    entries = nvml.ask("DeviceGetComputeRunningProcesses", nvml.handle_of(where.index)) or ()
    sizes = [entry.usedGpuMemory for entry in entries if entry.pid == os.getpid()]
    return int(sizes[0]) if sizes and sizes[0] is not None else None


# -- tensors -------------------------------------------------------------------------------------


def _storages(
    where: devices.Device, names: Mapping[str, Any]
) -> dict[tuple[str, int], tuple[HeldTensor, _Life]]:
    """Return the storages on a device that Python can reach, by library and identity, each with its
    life: a function that returns None once the storage is gone (see ``storage_of``).
    """
    # for each array on a storage: name, array, bytes, life
    found: dict[tuple[str, int], list[tuple[str, Any, int, _Life]]] = {}
    seen: set[int] = set()
    graphs: dict[Any, str] = {}  # autograd's nodes, and the array whose graph has each

    def take(name: str, array: Any) -> None:
        key = storage_of(array, where)
        if key is not None and id(array) not in seen:
            seen.add(id(array))
            found.setdefault(key[:2], []).append((name, array, *key[2:]))

    named = ((name, value) for name, value in names.items() if isinstance(name, str))
    # Plain names first, then private ones, then IPython's output cache, so that a tensor gets its
    # best name.
    for name, value in sorted(
        named, key=lambda item: (item[0].startswith("_"), item[0] in ("Out", "_oh"))
    ):
        for path, array in arrays_in(name, value):
            take(path, array)
            nodes = [getattr(array, "grad_fn", None)]
            for node in nodes:  # grows: all of the array's graph
                if node is not None and node not in graphs:
                    graphs[node] = path
                    nodes += [before for before, _ in node.next_functions]
    for node, name in graphs.items():
        for value in _kept_by(node):
            for path, array in arrays_in(f"graph of {name}", value):
                take(path, array)
    kinds: list[type] = [torch.Tensor]
    for kind in kinds:  # grows: all classes derived from PyTorch's tensor
        kinds += type.__subclasses__(kind)
    for item in living(kinds):
        take("", item)
    # a tensor from ``torch.from_numpy`` has a storage of its own, in the memory of the array
    spans = [
        (key, array.ctypes.data, entries[0][2])
        for key, entries in found.items()
        if key[0] == "numpy" and (array := entries[0][3]()) is not None
    ]
    inside = {
        key: owner
        for key, entries in found.items()
        if spans and key[0] == "torch"
        for address in [entries[0][1].untyped_storage().data_ptr()]
        for owner, start, nbytes in spans
        if start <= address < start + nbytes
    }
    for key, owner in inside.items():
        found[owner] += found.pop(key)
    rows = {}
    for key, entries in found.items():
        name, array, nbytes, life = entries[0]
        dtype = str(array.dtype).removeprefix("torch.")
        row = HeldTensor(name, nbytes, shape_of(array), dtype, key[0], len(entries))
        rows[key] = row, life
    return rows


def _kept_by(node: Any) -> list[Any]:
    """Return the leaf variable of an autograd node, if it has one, and the tensors that the node
    keeps for the backward pass.
    """
    kept = [getattr(node, "variable", None)]
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            with contextlib.suppress(RuntimeError):  # freed by a backward pass
                saved = tree_leaves(getattr(node, attribute))
                kept += [getattr(each, "data", None) for each in saved]
    return kept


def _is_tensor(item: Any) -> bool:
    return issubclass(type(item), torch.Tensor)  # unlike isinstance, does not ask a mock


def storage_of(array: Any, where: devices.Device) -> tuple[str, int, int, _Life] | None:
    """Return (library, storage, bytes, life) of an array on the device, or None for an array that
    holds no memory there. The life is a function that returns None once the storage is gone; for
    CuPy, whose pool does not report this, it never does.
    """
    cupy = sys.modules.get("cupy")
    if _is_tensor(array):
        # a lazy layer's parameter has no memory yet
        is_dense = not torch.nn.parameter.is_lazy(array) and array.layout is torch.strided
        place = array.device.type, array.device.index or 0
        if is_dense and place == (where.torch_type, where.index):
            # a fake tensor's storage is on no device, and a wrapper's has no memory of its own:
            # its address cannot be asked for
            with contextlib.suppress(NotImplementedError, RuntimeError):
                storage = array.untyped_storage()
                if storage.device.type == where.torch_type:
                    storage.data_ptr()
                    return "torch", storage._cdata, int(storage.nbytes()), weakref.ref(storage)
    elif isinstance(array, np.ndarray) and where.is_cpu:
        owner = array
        while isinstance(owner.base, np.ndarray):  # the array is a view of its base
            owner = owner.base
        if owner.flags.owndata:
            return "numpy", id(owner), int(owner.nbytes), weakref.ref(owner)
    elif (
        cupy is not None
        and isinstance(array, cupy.ndarray)
        and (where.torch_type, where.index) == ("cuda", array.device.id)
    ):
        return "cupy", int(array.data.mem.ptr), int(array.data.mem.size), lambda: True
    return None


def arrays_in(path: str, value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that a value holds, each with the path that leads to it."""
    cupy = sys.modules.get("cupy")
    if isinstance(value, np.ndarray) or (cupy is not None and isinstance(value, cupy.ndarray)):
        yield path, value
    elif _is_tensor(value):
        yield from _with_gradient(path, value)
    elif isinstance(value, torch.nn.Module):
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield from _with_gradient(f"{path}.{name}", tensor)
    elif isinstance(value, torch.optim.Optimizer):
        for number, state in enumerate(value.state.values()):
            kept = [(name, tensor) for name, tensor in state.items() if _is_tensor(tensor)]
            yield from ((f"{path}.state[{number}].{name}", tensor) for name, tensor in kept)
    elif depth and type(value) in (list, tuple):
        for number, item in enumerate(value[:_ITEMS]):
            yield from arrays_in(f"{path}[{number}]", item, depth - 1)
    elif depth and issubclass(type(value), dict):  # also an OrderedDict, as of state_dict()
        for key, item in list(dict.items(value))[:_ITEMS]:
            if isinstance(key, (str, int)):
                yield from arrays_in(f"{path}[{key!r}]", item, depth - 1)


def _with_gradient(path: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    yield path, tensor
    if tensor.is_leaf and tensor.grad is not None:
        yield f"{path}.grad", tensor.grad


# -- a cell --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellMemory(Result):
    """The memory of one cell.

    Attributes
    ----------
    devices : tuple of (str, int, int, int, int)
        For each device, the CPU first: its name, the bytes of its tensors before the cell and at
        the peak, and the bytes by which they grew over the cell, or shrank (one of these two is 0).
        On a CPU these are live torch storages after each operator, without what compiled code
        allocates and frees; on an accelerator the bytes that PyTorch's allocator reports, including
        those that operators allocate internally, and the bytes that CuPy held before and after
        (of CuPy, the peak includes what it held both times).
    host_grown_bytes : int
        By how much this process grew, arrays of other libraries included; negative if it shrank.
    largest : tuple of HeldTensor
        New arrays that are still there, largest first.
    failed : bool
        Whether the cell raised.
    evidence : Evidence
    """

    devices: tuple[tuple[str, int, int, int, int], ...]
    host_grown_bytes: int
    largest: tuple[HeldTensor, ...]
    failed: bool
    evidence: Evidence

    def __repr__(self) -> str:
        parts = [
            f"{device}: peak {format_bytes(peak)}, kept {format_bytes(kept)}"
            for device, _, peak, kept, _ in self.devices
        ]
        return f"<memory of the cell: {'; '.join(parts)}>"

    def table(self) -> Table:
        """Return one row per device, then the largest new arrays."""
        grown = self.host_grown_bytes
        rows = [
            *((device, *map(format_bytes, sizes)) for device, *sizes in self.devices),
            ("this process", "", "", *(format_bytes(max(0, n)) for n in (grown, -grown))),
            *(
                (
                    f"- new: {tensor.name or 'no name'}",
                    "",
                    "",
                    format_bytes(tensor.nbytes),
                    f"{tensor.shape_words} {tensor.dtype}",
                )
                for tensor in self.largest
            ),
        ]
        which = "tensors on (the cell raised)" if self.failed else "tensors on"
        return (which, "before", "peak", "kept", "freed"), rows


@contextlib.contextmanager
def watch(names: Mapping[str, Any]) -> Iterator[Callable[[], CellMemory]]:
    """Follow the memory of a block: ``with watch(namespace) as result: ...``, then ``result()``.

    Parameters
    ----------
    names : mapping of str to object
        The variables in which the arrays' names are looked for, before and after the block.
    """
    places, failed = devices.available(), True
    before = {
        where: {key: life for key, (_, life) in _storages(where, names).items()} for where in places
    }
    held = {where: _pool_bytes(where) for where in places[1:]}
    resident = host_facts.resident_bytes()
    for where in places[1:]:
        _peak(where, reset=True)

    def result() -> CellMemory:
        """Return the memory of the block."""
        grown = host_facts.resident_bytes() - resident
        host._count(living((torch.Tensor, torch.nn.Parameter)))  # what compiled code made
        uses = [("cpu", live, max(host.peak_bytes, host.live_bytes), host.live_bytes)]
        for where in places[1:]:
            (start, _, cupy_before), (end, _, cupy_after) = held[where], _pool_bytes(where)
            # CuPy records no peak: what it holds before and after the block counts all along
            peak = max(start, end, _peak(where) + min(cupy_before, cupy_after))
            uses.append((str(where), start, peak, end))
        changes = tuple(
            (device, start, peak, max(0, end - start), max(0, start - end))
            for device, start, peak, end in uses
        )
        new = [
            row
            for where in places
            for key, (row, _) in _storages(where, names).items()
            if (alive := before[where].get(key)) is None or alive() is None
        ]
        new.sort(key=lambda row: -row.nbytes)
        evidence = Evidence.measured(places[-1].name)
        return CellMemory(changes, grown, tuple(new[:_LARGEST]), failed, evidence)

    with Limit(sys.maxsize, on_top=False) as host:
        live = host.live_bytes
        yield result
        failed = False


def _peak(where: devices.Device, reset: bool = False) -> int:
    """Return PyTorch's peak since the last reset, or 0 where its allocator keeps none (MPS)."""
    if where.torch_type not in ("cuda", "xpu"):
        return 0
    where.synchronize()
    ask = "reset_peak_memory_stats" if reset else "max_memory_allocated"
    return int(getattr(getattr(torch, where.torch_type), ask)(where.index) or 0)


@dataclass(frozen=True)
class Released(Result):
    """The memory that was freed, measured before and after.

    Attributes
    ----------
    device : str
    device_free_before_bytes, device_free_after_bytes : int
        Free memory of the device.
    host_resident_before_bytes, host_resident_after_bytes : int
        Physical memory of this process.
    what : tuple of str
        Sentences about what was done, and about arrays that are still held.
    notes : tuple of Note
    evidence : Evidence
    """

    device: str
    device_free_before_bytes: int
    device_free_after_bytes: int
    host_resident_before_bytes: int
    host_resident_after_bytes: int
    what: tuple[str, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def freed_host_bytes(self) -> int:
        """How many bytes this process shrank by; negative if it grew."""
        return self.host_resident_before_bytes - self.host_resident_after_bytes

    @property
    def freed_device_bytes(self) -> int:
        """How many bytes were freed on the device; on a CPU, how many bytes this process shrank
        by.
        """
        return (
            self.freed_host_bytes
            if self.device == "cpu"
            else self.device_free_after_bytes - self.device_free_before_bytes
        )

    def __repr__(self) -> str:
        return (
            f"<{format_bytes(self.freed_device_bytes)} freed on {self.device}, "
            f"{format_bytes(self.freed_host_bytes)} in this process>"
        )

    def table(self) -> Table:
        """Return the bytes that were freed, then what was done."""
        shrank = ("this process shrank by", format_bytes(self.freed_host_bytes))
        rows = [
            (f"freed on {self.device}", format_bytes(self.freed_device_bytes)),
            *([] if self.device == "cpu" else [shrank]),
            *(("", sentence) for sentence in self.what),
            *note_rows(self.notes, 2),
        ]
        return ("released", ""), rows


@_validate.arguments(outputs=_validate.flag)
def release(device: Any = None, outputs: bool = False) -> Released:
    """Free the memory that the last failure holds and that allocators keep, and report how many
    bytes were freed.

    The function clears the local variables in the frames of the last traceback (its text stays;
    ``%debug`` can no longer show the variables), collects garbage, and empties the caches of torch,
    CuPy and, on Linux, the C library. Your variables are never touched.

    Parameters
    ----------
    device : None, str or Device
        The device whose free memory is compared; None takes the best one available. Caches of all
        devices are emptied.
    outputs : bool
        Also empty IPython's output cache (``Out``, ``_``, ``_3``, ...). False only reports the
        arrays in the cache.

    Returns
    -------
    Released

    Raises
    ------
    DeviceError
        If the machine has no such device, or it vanished.
    InputError
        If ``outputs`` is neither True nor False.

    Examples
    --------
    >>> from gpulab import memory
    >>> memory.release("cpu").device
    'cpu'
    """
    where = devices.find(device)
    if not where.is_cpu:
        where.synchronize()  # work in flight still holds its tensors
    free, resident = where.free_bytes, host_facts.resident_bytes()
    what = (
        _clear_tracebacks(),
        *_outputs(where, drop=outputs),
        f"Collected garbage ({gc.collect()} unreachable objects).",
    )
    with devices.guard(f"release: emptying the caches of {where}"):
        _empty_caches()
    # glibc's call gives free pages back to the system; other C libraries have none
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    return Released(
        device=str(where),
        device_free_before_bytes=free,
        device_free_after_bytes=where.free_bytes,
        host_resident_before_bytes=resident,
        host_resident_after_bytes=host_facts.resident_bytes(),
        what=what,
        notes=(),
        evidence=Evidence.measured(where.name),
    )


def _clear_tracebacks() -> str:
    """Clear the frames of the last errors that Python and IPython keep, and of the errors' causes
    and contexts.
    """
    kept = (getattr(sys, "last_exc", None), getattr(sys, "last_value", None), sys.exc_info()[1])
    errors = [error for error in kept if error is not None]
    frames: dict[int, Any] = {}
    for error in errors:  # grows
        traceback.clear_frames(error.__traceback__)
        frames |= {id(frame): frame for frame, _ in traceback.walk_tb(error.__traceback__)}
        before = (error.__cause__, error.__context__, *getattr(error, "exceptions", ()))
        # by identity: an exception may define ==
        errors += [
            one for one in before if one is not None and not any(one is each for each in errors)
        ]
    for frame in frames.values():
        # Up to Python 3.12 a frame keeps the dictionary that it once showed to a debugger or to
        # IPython, and clear() leaves that alone; reading f_locals again brings it up to date, which
        # empties it.
        _ = frame.f_locals
    return (
        f"Cleared the local variables in {plural(len(frames), 'frame')} of the last traceback."
        if frames
        else "No failed cell's traceback was kept."
    )


def _outputs(where: devices.Device, drop: bool) -> list[str]:
    module = sys.modules.get("IPython.core.getipython")  # found without importing IPython
    shell: Any = module.get_ipython() if module is not None else None
    cache = shell.user_ns.get("_oh", {}) if shell is not None else {}
    holding: dict[Any, int] = {}
    for number, value in cache.items():
        keys = [storage_of(array, where) for _, array in arrays_in("", value)]
        nbytes = sum({key[:2]: key[2] for key in keys if key is not None}.values())
        if nbytes:
            holding[number] = nbytes
    if not holding:
        return []
    listed = ", ".join(
        f"Out[{number}] {format_bytes(nbytes)}"
        for number, nbytes in sorted(holding.items(), key=lambda item: -item[1])[:5]
    )
    if not drop:
        return [
            f"IPython's output cache still holds arrays on {where}: {listed}. Call "
            "gl.memory.release(outputs=True) to drop them."
        ]
    shell.displayhook.flush()
    shell.user_ns_hidden.update(_="", __="", ___="")  # which flush() leaves there
    return [f"Emptied IPython's output cache, which held {listed}."]


def _empty_caches() -> None:
    """Release the memory that the allocators of PyTorch and CuPy keep for later, on all devices."""
    cupy = sys.modules.get("cupy")
    torch.clear_autocast_cache()
    if torch.cuda.is_initialized() and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):  # type: ignore[no-untyped-call]
        torch._C._cuda_clearCublasWorkspaces()
    for each in devices.available()[1:2]:  # all accelerators are of one kind
        getattr(torch, each.torch_type).empty_cache()
    if cupy is not None and cupy.cuda.is_available():
        for index in range(cupy.cuda.runtime.getDeviceCount()):
            with cupy.cuda.Device(index):  # the pool frees the current device's blocks only
                cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


# -- limits ----------------------------------------------------------------------------------------


VARIABLE = "GPULAB_GPU_MEMORY"


class Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The context manager of ``limit``: it counts the live storages of CPU tensors, and raises
    PyTorch's own error when an operator's result makes their total exceed the limit. It may be
    entered repeatedly, and keeps counting storages that are still alive.

    It keeps an entry for each live storage and none for freed ones, so that it can stay on during a
    whole training.

    Parameters
    ----------
    nbytes : int
        The most bytes that the live storages may take together.
    on_top : bool
        Whether to count only storages that are made while the mode is on.

    Attributes
    ----------
    live_bytes, peak_bytes : int
        Bytes of the live storages that are counted, now and at the peak.
    """

    def __init__(self, nbytes: int, on_top: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes, self.on_top = nbytes, on_top
        self.live_bytes = self.peak_bytes = 0
        self._living: dict[int, tuple[int | None, Any]] = {}  # None: older, and not counted

    @property
    def free_bytes(self) -> int:
        """The bytes that are left of the limit."""
        return max(0, self.nbytes - self.live_bytes)

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Return whether compiled code may run as such in the block: in ``watch``, which limits
        nothing. Under any other mode PyTorch runs it uncompiled, and never compiles it afterwards.
        """
        return self.nbytes == sys.maxsize

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; a result that does not fit is released before the error is raised."""
        kwargs = kwargs or {}
        # arguments made before the block, or kept by autograd
        self._count((args, kwargs), ours=not self.on_top)
        before = self.live_bytes
        result = func(*args, **kwargs)
        self._count(result)
        made = self.live_bytes - before
        if made > 0 and self.live_bytes > self.nbytes:
            # the error keeps this frame, and with it the result that did not fit, unless it is
            # released here
            result = None
            raise torch.OutOfMemoryError(
                f"CPU out of memory. Tried to allocate {format_bytes(made)} in {func}. "
                f"gpulab.memory.limit allows {format_bytes(self.nbytes)}, of which "
                f"{format_bytes(max(0, self.nbytes - before))} is free; live tensors hold "
                f"{format_bytes(before)}."
            )
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def __enter__(self) -> Any:
        """Count every tensor that Python can reach now (made before the block, or between two
        blocks), unless ``on_top`` is set.
        """
        if not self.on_top:
            self._count(living((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)))
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def _count(self, values: Any, ours: bool = True) -> None:
        for tensor in tensors_in(values):
            for _, storage in storages_of(tensor, "cpu"):
                if storage.device.type != "cpu":
                    continue  # a fake tensor, which only claims to be on the CPU
                key, nbytes = storage._cdata, storage.nbytes()
                known = self._living.get(key)
                if known is None:
                    self._living[key] = (
                        nbytes if ours else None,
                        weakref.ref(storage, functools.partial(self._died, key)),
                    )
                    self.live_bytes += nbytes if ours else 0
                elif known[0] is not None and known[0] != nbytes:  # resized in place
                    self._living[key] = (nbytes, known[1])
                    self.live_bytes += nbytes - known[0]

    def _died(self, key: int, _: Any) -> None:
        self.live_bytes -= self._living.pop(key)[0] or 0


@_validate.arguments(on_top=_validate.flag)
def limit(nbytes: int | str, device: Any = None, *, on_top: bool = False) -> Limit:
    """Return a context manager that limits how much memory the CPU's tensors take together.

    An allocation beyond the limit raises ``torch.OutOfMemoryError``, as on a full GPU; the program
    goes on, and the rest of the machine is not affected.

    Parameters
    ----------
    nbytes : int or str
        Bytes, or text such as "96 MiB". The storage of live tensors counts, after each operator of
        this thread; tensors made before the block are included. Memory that an operator allocates
        internally and frees again does not count.
    device : None, str or Device
        The CPU. None takes the best device available; a GPU is refused, because PyTorch limits it
        itself: ``torch.cuda.memory.set_per_process_memory_fraction``.
    on_top : bool
        True counts only tensors that are made inside the block, on top of the earlier ones.

    Returns
    -------
    Limit
        For ``with``; ``live_bytes``, ``peak_bytes`` and ``free_bytes`` show how full it is. When it
        is entered again, it still counts tensors of the first block that are alive.

    Raises
    ------
    InputError
        If ``nbytes`` is not a size of at least 1 byte.
    DeviceError
        If there is no such device, or it is not the CPU.

    Examples
    --------
    >>> import torch
    >>> small = limit("1 MiB", "cpu", on_top=True)
    >>> try:
    ...     with small:
    ...         torch.zeros(2**20)
    ... except torch.OutOfMemoryError as error:
    ...     print(str(error)[:45])
    CPU out of memory. Tried to allocate 4.00 MiB
    """
    size = parse_bytes(nbytes)
    if size < 1:
        raise InputError(
            f"limit: {size} bytes cannot hold a tensor; expected at least 1. Pass for example '96 "
            "MiB'."
        )
    where = devices.find(device)  # None means a GPU where there is one, and is then refused
    if not where.is_cpu:
        raise DeviceError(
            f"limit: only the tensors of a CPU can be limited, not those of {where.name}; expected "
            "device='cpu'. PyTorch limits a GPU: torch.cuda.set_per_process_memory_fraction(0.1)."
        )
    return Limit(size, on_top)


def apply_share() -> str:
    """Cap this process's memory on each GPU as ``GPULAB_GPU_MEMORY`` says; called by ``%load_ext
    gpulab``.

    Returns
    -------
    str
        A sentence about what was done; "" where the variable is not set or there is no GPU. A share
        that cannot be read or enforced is reported in the sentence and raises no error, so that the
        kernel starts.

    Notes
    -----
    Source: PyTorch, ``torch.cuda.memory.set_per_process_memory_fraction``.
    """
    wanted = os.environ.get(VARIABLE, "").strip()
    if not wanted or not torch.cuda.is_available():
        return ""
    _backends.leave_memory()
    try:
        totals = [
            int(torch.cuda.get_device_properties(index).total_memory)
            for index in range(torch.cuda.device_count())
        ]
        # All shares are computed before the first is set: a size larger than the smallest GPU then
        # caps nothing, as the sentence says.
        for index, share in enumerate([_share(wanted, total) for total in totals]):
            torch.cuda.set_per_process_memory_fraction(share, index)
    except (InputError, RuntimeError, ValueError, OverflowError) as error:
        return (
            f"{VARIABLE}={shown(wanted)} sets no limit ({error}); expected a size such as '10 GiB' "
            "or a share such as '25 %'. Tell the administrator of this class server."
        )
    return f"You can use up to {wanted} of each GPU's memory here ({VARIABLE})."


def _share(wanted: str, total: int) -> float:
    share = float(wanted[:-1]) / 100 if wanted.endswith("%") else parse_bytes(wanted) / total
    if not 0 < share <= 1:
        raise InputError(f"it is not above 0 and at most the GPU's {format_bytes(total)}")
    return share
