"""A training step's memory: every tensor storage is followed from its creation to its release while
real or fake operators run; a trace or a prediction keeps the result for tables and figures.

A dispatch mode sees each operator below autograd, so it sees the tensors that autograd saves and
that the backward pass makes. Views share one storage and count once; a storage is released with its
last owner (PyTorch keeps one Python object per storage alive as long as the storage, so a weak
reference to it shows this). Memory that an operator allocates and frees before it returns is not
seen here: ``kernel_memory`` estimates it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import numbers
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from gpulab import _validate, devices
from gpulab.devices import memory_sizes
from gpulab.errors import DeviceError, InputError
from gpulab.evidence import Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.units import format_bytes, parse_bytes, plural

# In the order in which a stacked plot draws them, the longest-lived at the bottom.
CATEGORIES = ("parameters", "optimizer", "gradients", "inputs", "activations", "temporary")
_PEAK_TENSORS = 50  # the most that a result keeps

# What ``with_margin`` adds for memory outside of tensor storage: a ratio, and bytes. On a CPU a
# quarter for the C library's heap (it keeps and splits freed blocks) and oneDNN's own buffers, and
# a constant for code that loads on first use: real processes grew by up to 0.6 times that much
# (docs/measurements.md, "the whole process"). On an accelerator a share for blocks that the caching
# allocator rounds up and cannot reuse, and a constant for context, modules and the cuBLAS
# workspace.
_HOST_MARGIN = 0.25, 256 * 2**20
_ACCELERATOR_MARGIN = 0.15, 768 * 2**20


def with_margin(nbytes: int, device_kind: str) -> int:
    """Return the bytes that must be free on a kind of device for a step that needs ``nbytes``."""
    ratio, constant = _HOST_MARGIN if device_kind == "cpu" else _ACCELERATOR_MARGIN
    return int(nbytes * (1 + ratio)) + constant


def free_bytes_of(device: Any, kind: str) -> tuple[int, str]:
    """Return (free bytes, device kind) of a device, of a GPU named in the data sheets (all its
    memory), or of a bare capacity, in bytes or such as "24 GB", whose kind is ``kind``.
    """
    if isinstance(device, str) and device in memory_sizes.gpus():
        return memory_sizes.memory_bytes(device), "cuda"
    # text with a number but no unit is not a capacity; it may be part of a GPU's name
    has_unit = (
        isinstance(device, str)
        and device.lstrip(" +-.")[:1].isdigit()
        and not device.strip().isdigit()
    )
    if has_unit or isinstance(device, numbers.Real):
        return parse_bytes(str(device)), kind
    try:
        where = devices.find(device)
    except DeviceError as error:
        known = [name for name in memory_sizes.gpus() if str(device).lower() in name.lower()]
        raise DeviceError(
            f"{error} For a GPU that is not here, pass its name, such as "
            f"{', '.join(map(repr, known or ['T4']))}, or its memory, such as '24 GiB'."
        ) from error
    return where.free_bytes, where.kind


def largest_that_fits(
    make_batch: Callable[[int], Any],
    predicted: Callable[..., Any],
    memory: Any,
    kind: str,
    most: int,
) -> int:
    """Return the largest batch up to ``most`` whose step fits into a memory (see
    ``free_bytes_of``); 0 if none does. ``make_batch`` makes the inputs, and optionally the targets,
    of a given size; ``predicted`` takes them.
    """
    free, kind = free_bytes_of(memory, kind)
    low, high, guess = 0, _validate.whole("largest_batch", "most", most, 1, 2**40) + 1, 1
    before, tries = (0, 0), 0
    while high - low > 1:
        batch = make_batch(guess)
        inputs, targets = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        need, tries = predicted(inputs, targets=targets).needed_bytes(kind), tries + 1
        low, high = (guess, high) if need <= free else (low, guess)
        # Bytes grow almost linearly with the samples, so the line through the last two sizes leads
        # near the answer. At the first size most bytes do not depend on the samples, so the slope
        # is taken as 1/32 of them. Where the bytes jump, the line misses: each fourth guess halves
        # the remaining range.
        slope = max(1.0, (need - before[1]) / (guess - before[0]) if before[0] else need / 32)
        line = min(max(guess + int((free - need) // slope), low + 1), high - 1)
        before, guess = (guess, need), line if tries % 4 else (low + high) // 2
    if low > 1 and 0 < _numbers_of(make_batch(low)) == _numbers_of(make_batch(low // 2)):
        raise InputError(
            f"largest_batch: make_batch({low}) returns as many numbers as make_batch({low // 2}); "
            "expected a batch that grows with the number. Data that is sliced has an end: repeat "
            "one sample, for example x[:1].repeat_interleave(n, dim=0)."
        )
    return low


def _numbers_of(batch: Any) -> int:
    return sum(each.numel() for each in tensors_in(batch))


class LiveTensor(NamedTuple):
    """One storage that was alive at the peak.

    Attributes
    ----------
    name : str
        The parameter's or buffer's name; "" where a tensor has none.
    category : str
        One of ``CATEGORIES``.
    nbytes : int
        Of the whole storage, which several views may share.
    shape : tuple of int
        Of the tensor that made the storage.
    dtype : str
    operator : str
        The operator that made it; "" for a storage made before the step.
    """

    name: str
    category: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    operator: str


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Result):
    """Live bytes by category after each operator that changed them.

    Attributes
    ----------
    operators : tuple of str, length n
        The operator that ran just before, such as "aten.addmm.default".
    phases : tuple of str, length n
        "forward", "backward" or "optimizer".
    steps : tuple of int
        The index at which each training step begins.
    bytes_by_category : mapping of str to ndarray, each of shape (n,)
        In the order of ``CATEGORIES``.
    """

    operators: tuple[str, ...]
    phases: tuple[str, ...]
    steps: tuple[int, ...]
    bytes_by_category: Mapping[str, np.ndarray]

    @property
    def total_bytes(self) -> np.ndarray:
        """The live bytes of all categories, shape (n,)."""
        return (
            np.sum(list(self.bytes_by_category.values()), axis=0) if self.operators else np.zeros(0)
        )

    def __len__(self) -> int:
        return len(self.operators)

    def __repr__(self) -> str:
        return f"<timeline of {len(self)} points over {plural(len(self.steps), 'step')}>"


@dataclass(frozen=True)
class PeakMemory:
    """The fields that traces and predictions have in common."""

    label: str
    peak_bytes: int
    peak_by_category: Mapping[str, int]
    peak_operator: str
    peak_phase: str
    peak_tensors: tuple[LiveTensor, ...]

    def peak_rows(self) -> list[tuple[str, str]]:
        """Return the peak and its parts, as rows of a table."""
        at = f", {self.peak_phase}: {self.peak_operator}" if self.peak_operator else ""
        return [
            (f"peak{at or ' (no operator ran)'}", format_bytes(self.peak_bytes)),
            *(
                (f"- {category}", format_bytes(nbytes))
                for category, nbytes in self.peak_by_category.items()
                if nbytes
            ),
        ]

    def tensor_rows(self, most: int) -> list[tuple[str, str]]:
        """Return the largest storages alive at the peak, as rows of a table."""
        return [
            (
                f"at the peak: {t.name or t.operator} ({t.category}, "
                f"{'x'.join(map(str, t.shape)) or 'scalar'} {t.dtype})",
                format_bytes(t.nbytes),
            )
            for t in self.peak_tensors[:most]
        ]


@dataclass(frozen=True)
class MemoryTrace(PeakMemory, Result):
    """A device's memory while a training step (or a function) ran.

    Attributes
    ----------
    label, device : str
        What ran, and where.
    peak_bytes : int
        The most live tensor storage after any operator.
    peak_by_category : mapping of str to int
        The peak by category of tensor.
    peak_operator, peak_phase : str
        Where the peak occurred.
    peak_tensors : tuple of LiveTensor
        The largest storages alive at the peak, largest first.
    timeline : Timeline
    notes : tuple of Note
    evidence : Evidence
    """

    timeline: Timeline
    notes: tuple[Note, ...]
    evidence: Evidence
    device: str

    def __repr__(self) -> str:
        where = f" in {self.peak_phase} ({self.peak_operator})" if self.peak_operator else ""
        return f"<{self.label} on {self.device}: peak {format_bytes(self.peak_bytes)}{where}>"

    def table(self) -> Table:
        """Return the peak by category, then the largest tensors alive at it."""
        rows = [*self.peak_rows(), *self.tensor_rows(10), *note_rows(self.notes, 2)]
        return (f"memory of {self.label}", "bytes"), rows


@dataclass(frozen=True)
class Prediction(PeakMemory, Result):
    """The memory that a training step will need, determined without running it.

    Attributes
    ----------
    label : str
        The model's class.
    peak_bytes : int
        The most live tensor storage after any operator of a step that follows an earlier one (so
        the optimizer's state is there from the start).
    first_step_peak_bytes : int
        The same for the very first step, in which the optimizer's state is made only at the end.
    scratch_bytes : int
        An upper estimate of what operators allocate inside and free before they return, beyond
        ``peak_bytes``.
    kept_bytes : int
        Storage that stays alive between steps: parameters, buffers, optimizer state, inputs,
        gradients until they are released.
    peak_by_category : mapping of str to int
        Sums to ``peak_bytes``.
    peak_operator, peak_phase : str
    peak_tensors : tuple of LiveTensor
        The largest storages alive at the peak, largest first.
    parameter_count : int
    optimizer, precision : str
    checkpoint : bool
    device_type : str
        The device type whose rules (autocast, choice of kernels) the step followed: "cpu" or
        "cuda".
    timeline : Timeline
    notes : tuple of Note
    evidence : Evidence
    """

    timeline: Timeline
    notes: tuple[Note, ...]
    evidence: Evidence
    first_step_peak_bytes: int
    scratch_bytes: int
    kept_bytes: int
    parameter_count: int
    optimizer: str
    precision: str
    checkpoint: bool
    device_type: str

    def needed_bytes(self, device_kind: str = "cpu") -> int:
        """Return the bytes that must be free on a kind of device for the step to be safe: peak,
        scratch and a margin.
        """
        return with_margin(self.peak_bytes + self.scratch_bytes, device_kind)

    def fits(self, device: Any = None) -> bool:
        """Return whether the step fits into the memory that is free on a device now.

        Counts the peak, the scratch inside operators and a margin for heaps, allocators and
        libraries. Memory in use on the device counts as taken, including this model's own
        parameters, so the answer can be False for a model that is already there and True for one
        that is not.

        Parameters
        ----------
        device : None, str, Device or int
            A device of this machine (None takes the best one available), the name of a GPU that is
            not here, or a capacity: bytes, or text such as "80 GiB". A named GPU and a capacity
            count as entirely free.

        Raises
        ------
        DeviceError
            If this machine has no such device.
        InputError
            If a capacity is not a valid size, such as a negative one.
        """
        free, kind = free_bytes_of(device, self.device_type)
        return self.needed_bytes(kind) <= free

    def __repr__(self) -> str:
        return (
            f"<{self.label}, {self.optimizer}, "
            f"{self.precision}{', checkpointed' if self.checkpoint else ''}: peak "
            f"{format_bytes(self.peak_bytes)} + scratch {format_bytes(self.scratch_bytes)} "
            "(modelled)>"
        )

    def table(self) -> Table:
        """Return the peak, what it is made of, the scratch and the largest tensors."""
        rows = [
            *self.peak_rows(),
            ("inside operators (upper estimate)", format_bytes(self.scratch_bytes)),
            ("first step's peak", format_bytes(self.first_step_peak_bytes)),
            ("kept between steps", format_bytes(self.kept_bytes)),
            *self.tensor_rows(5),
            *note_rows(self.notes, 2),
        ]
        return (f"memory of {self.label}: {self.optimizer}, {self.precision}", "bytes"), rows


# -- following the storages ------------------------------------------------------------------------

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within the block, compiled functions run as they are written: PyTorch would never compile a
    function that it first meets under a dispatch mode.

    One thread at a time: the switch belongs to the whole process, as do the other things that a
    prediction changes. Of two threads at once, the later one would put back what it found, which
    the first one had set.
    """
    with _ONE_AT_A_TIME, torch.compiler.set_stance("force_eager"):
        yield


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_ALIVE = sys.maxsize
# What a sparse tensor consists of.
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class Stopped(Exception):  # noqa: N818  (not an error: the learner pressed Stop)
    """Ends a step from inside an operator when a stop was requested."""


@dataclass(slots=True)
class Record:
    """One storage. ``born`` and ``died`` are event numbers: it is alive from ``born`` until just
    before ``died``.
    """

    nbytes: int
    born: int
    died: int
    phase: str
    recomputed: bool
    category: str | None
    name: str
    operator: str
    shape: tuple[int, ...]
    dtype: str


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the storages of one device type while operators run.

    Parameters
    ----------
    device_type : str
        Storages elsewhere (an optimizer's step counters on the host) are not counted.
    replace : callable, optional
        ``replace(operator, arguments, keywords, in_optimizer)`` runs the operator; predictions use
        it to correct fake kernels.
    scratch : callable, optional
        ``scratch(operator, arguments, result)`` estimates the bytes that an operator takes inside.
    stop : callable, optional
        Polled before each operator; ``Stopped`` is raised when it returns True.
    """

    def __init__(
        self,
        device_type: str,
        *,
        replace: Callable[[Any, Any, Any, bool], Any] | None = None,
        scratch: Callable[[Any, Any, Any], int] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type, self.stop = device_type, stop
        self.replace, self.scratch = replace, scratch
        self.records: list[Record] = []
        self.operators: list[str] = []
        self.phases: list[str] = []
        self.steps: list[int] = []
        self.live_bytes = 0
        self.live: list[int] = []
        self.with_scratch = 0
        self.in_optimizer = self.is_stopped = False
        self._by_key: dict[int, tuple[int, Any]] = {}
        self._parameters: dict[int, Any] = {}
        self._fakes: Any = WeakIdKeyDictionary()
        # small storage -> function from its bytes to those that it stands for
        self.scales: dict[int, Callable[[int], int]] = {}

    # -- what runs for each operator --------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note which storages it made or resized."""
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a query about a tensor, not work
            return func(*args, **kwargs)
        if self.stop is not None and self.stop():
            self.is_stopped = True
            raise Stopped
        tensors = tensors_in((args, kwargs))
        keys = [each.untyped_storage()._cdata for each in tensors] if self.scales else []
        scale = next((self.scales[key] for key in keys if key in self.scales), None)
        for tensor in tensors:
            self._arrived(tensor if scale else self._stand_in(tensor, func))
        with one_thread() if scale else contextlib.nullcontext():
            result = (
                func(*args, **kwargs)
                if self.replace is None
                else self.replace(func, args, kwargs, self.in_optimizer)
            )
        before = self.live_bytes
        outputs = tensors_in(result)
        for tensor in outputs:
            if scale:
                self.scales[tensor.untyped_storage()._cdata] = scale
            self._made(tensor, str(func))
        if self.live_bytes != before or not self.live or self.live[-1] != self.live_bytes:
            self._event(str(func))
        if self.scratch is not None:
            inside = self.scratch(func, args, outputs)
            self.with_scratch = max(self.with_scratch, self.live_bytes + inside)
        return result

    def phase(self) -> str:
        """Return what is running: the autograd engine, an optimizer, or anything else
        ("forward").
        """
        if self.in_optimizer:
            return OPTIMIZER
        return BACKWARD if torch._C._current_graph_task_id() != -1 else FORWARD

    def _event(self, operator: str) -> None:
        phase = self.phase()
        if self.phases and self.phases[-1] == BACKWARD != phase:
            self.mark_gradients()
        self.operators.append(operator)
        self.phases.append(phase)
        self.live.append(self.live_bytes)

    # -- storages ---------------------------------------------------------------------------------

    def _storages(self, tensor: Any) -> Iterable[tuple[Any, Any]]:
        return storages_of(tensor, self.device_type)

    def _stand_in(self, tensor: Any, func: Any) -> Any:
        """Return the fake tensor that a fake operator sees in place of a real one, such as one that
        the loss holds. It is kept, so that all views share its memory.
        """
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if (
            mode is None
            or isinstance(tensor, (FakeTensor, torch.nn.Parameter))
            or func in mode.lift_fns
        ):
            return tensor
        return self._fakes.setdefault(tensor, mode.from_tensor(tensor))

    def _arrived(self, tensor: Any) -> None:
        """Count a tensor that was there before: a parameter of a traced function, or an input."""
        if isinstance(tensor, torch.nn.Parameter):
            self.watch_parameter(tensor, "")
        else:
            self.watch(tensor, None if self.in_optimizer else "inputs")

    def _made(self, tensor: Any, operator: str) -> None:
        for part, storage in self._storages(tensor):
            known = self._by_key.get(storage._cdata)
            if known is None:
                self._count(part, storage, operator, None, "")
            elif (
                storage._cdata not in self.scales
                and self.records[known[0]].nbytes != storage.nbytes()
            ):
                self._resized(known[0], storage)

    def _count(
        self, tensor: Any, storage: Any, operator: str, category: str | None, name: str
    ) -> None:
        key, phase = storage._cdata, self.phase()
        record = Record(
            nbytes=self.scales.get(key, int)(storage.nbytes()),
            born=len(self.operators),
            died=_ALIVE,
            phase=phase,
            recomputed=phase == BACKWARD and torch.is_grad_enabled(),
            category=category,
            name=name,
            operator=operator,
            shape=shape_of(tensor),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        self._by_key[key] = (len(self.records), weakref.ref(storage, lambda _: self._died(key)))
        self.records.append(record)
        self.live_bytes += record.nbytes

    def share(self, new: Any, old: Any, scale: Callable[[int], int] | None) -> Any:
        """Count a new tensor as the same memory as the old one, which it keeps alive. With a scale,
        the new tensor is a small stand-in for that memory.
        """
        storage = new.untyped_storage()
        key = storage._cdata
        self._by_key[key] = (self._by_key[old.untyped_storage()._cdata][0], None)
        if scale is not None:
            self.scales[key] = scale
        for known in (self._by_key, self.scales):
            weakref.finalize(storage, known.pop, key, old.untyped_storage())
        return new

    def _died(self, key: int) -> None:
        index, _ = self._by_key.pop(key)
        self.scales.pop(key, None)
        record = self.records[index]
        record.died = len(self.operators)
        self.live_bytes -= record.nbytes

    def _resized(self, index: int, storage: Any) -> None:
        old = self.records[index]
        old.died = len(self.operators)
        new = replace(old, nbytes=storage.nbytes(), born=old.died, died=_ALIVE)
        self.live_bytes += new.nbytes - old.nbytes
        self._by_key[storage._cdata] = (len(self.records), self._by_key[storage._cdata][1])
        self.records.append(new)

    # -- what the caller knows --------------------------------------------------------------------

    def watch(self, tensor: Any, category: str | None, name: str = "") -> None:
        """Count a tensor from the start, under a category where it is known."""
        for part, storage in self._storages(tensor):
            if storage._cdata not in self._by_key:
                self._count(part, storage, "", category, name)

    def watch_parameter(self, parameter: Any, name: str) -> None:
        """Count a parameter, and treat a tensor in its ``grad`` as a gradient."""
        self._parameters[id(parameter)] = parameter
        self.watch(parameter, "parameters", name)

    def watch_modules(self, modules: Iterable[Any]) -> None:
        """Count the parameters and buffers of modules from the start."""
        for module in modules:
            for name, parameter in module.named_parameters():
                self.watch_parameter(parameter, name)
            for name, buffer in module.named_buffers():
                self.watch(buffer, "parameters", name)

    def watch_inputs(self, values: Any) -> None:
        """Count the tensors of a batch from the start."""
        for tensor in tensors_in(values):
            self.watch(tensor, "inputs", "input")

    def mark_gradients(self) -> None:
        """Categorize the tensors that are now in the parameters' ``grad`` as gradients."""
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                for _, storage in self._storages(parameter.grad):
                    known = self._by_key.get(storage._cdata)
                    if known is not None and self.records[known[0]].category in (None, "inputs"):
                        self.records[known[0]].category = "gradients"

    def begin_step(self) -> None:
        """Mark the beginning of a training step."""
        self.steps.append(len(self.operators))

    def close(self) -> None:
        """Stop following storages: later releases change nothing, and no parameter is kept
        alive.
        """
        self.mark_gradients()
        self._by_key.clear()
        self._parameters.clear()

    # -- what it amounts to -----------------------------------------------------------------------

    def classify(self) -> None:
        """Give a category to each storage without one, by the phase in which it was made and
        whether it outlived that phase.
        """
        ends: list[int] = []  # for each event, the first later event of another phase
        for _, events in itertools.groupby(self.phases):
            length = len(list(events))
            ends += [len(ends) + length] * length
        for record in self.records:
            if record.category is None:
                end = ends[record.born] if record.born < len(ends) else len(ends)
                is_kept = record.recomputed if record.phase == BACKWARD else record.died > end
                kept = "optimizer" if record.phase == OPTIMIZER else "activations"
                record.category = kept if is_kept else "temporary"

    def timeline(self, categories: Sequence[str] = CATEGORIES) -> Timeline:
        """Return the live bytes by category after each event."""
        n = len(self.operators)
        changes = {category: np.zeros(n + 1) for category in categories}
        for record in self.records:
            if record.born < n:
                changes[record.category or "temporary"][record.born] += record.nbytes
                changes[record.category or "temporary"][min(record.died, n)] -= record.nbytes
        curves = {category: np.cumsum(change)[:n] for category, change in changes.items()}
        return Timeline(tuple(self.operators), tuple(self.phases), tuple(self.steps), curves)

    def peak(self, start: int = 0, end: int | None = None) -> tuple[int, int]:
        """Return (event, live bytes) of the first highest point between two events."""
        live = self.live[start:end]
        if not live:
            return 0, self.live_bytes
        highest = max(live)
        return start + live.index(highest), highest

    def at_peak(self, start: int = 0, categories: Sequence[str] = CATEGORIES) -> dict[str, Any]:
        """Return the fields of ``PeakMemory`` about the highest point from an event on."""
        self.classify()
        event, peak = self.peak(start)
        alive = self.alive_at(event)
        return {
            "peak_bytes": peak,
            "peak_by_category": {
                category: sum(t.nbytes for t in alive if t.category == category)
                for category in categories
            },
            "peak_operator": self.operators[event] if self.operators else "",
            "peak_phase": self.phases[event] if self.phases else "",
            "peak_tensors": tuple(alive[:_PEAK_TENSORS]),
        }

    def alive_at(self, event: int) -> list[LiveTensor]:
        """Return the storages alive after an event, largest first."""
        alive = [
            record
            for record in self.records
            if record.born <= event < record.died and record.nbytes
        ]
        alive.sort(key=lambda record: -record.nbytes)
        return [
            LiveTensor(r.name, r.category or "temporary", r.nbytes, r.shape, r.dtype, r.operator)
            for r in alive
        ]


def living(kinds: Iterable[type]) -> list[Any]:
    """Return all objects of exactly these types that Python's garbage collector knows. It knows a
    million other objects, so the loop calls no function of Python code for each.
    """
    wanted, objects = set(map(id, kinds)), gc.get_objects()
    return [
        item
        for item, kind in zip(objects, map(id, map(type, objects)), strict=True)
        if kind in wanted
    ]


def shape_of(array: Any) -> tuple[int, ...]:
    """Return an array's shape; for a nested tensor, which has none, its number of elements."""
    return (
        (int(array.numel()),)
        if getattr(array, "is_nested", False)
        else tuple(int(n) for n in array.shape)
    )


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors of a nest of lists, tuples and mappings."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, run real operators on one thread: on few elements more threads only cost
    time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with unset_fake_temporarily():
            yield
    finally:
        torch.set_num_threads(threads)


def storages_of(tensor: Any, device_type: str) -> list[tuple[Any, Any]]:
    """Return pairs (dense part, storage) of a tensor: one for a dense tensor, several for a sparse
    one, none if the tensor is not on a device of this type.
    """
    if tensor.device.type != device_type:
        return []
    dense = [getattr(tensor, name)() for name in _SPARSE_PARTS.get(tensor.layout, ())]
    parts = [tensor] if tensor.layout is torch.strided else dense
    return [(part, part.untyped_storage()) for part in parts]
