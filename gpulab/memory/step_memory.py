"""The results of a trace and of a prediction: what holds the memory, and when.

No tensor is touched here; ``trace`` and ``predict`` make these objects, tables and figures read
them.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpulab import _validate, devices
from gpulab.devices import memory_sizes
from gpulab.evidence import Evidence, Note
from gpulab.results import Result, note_rows
from gpulab.units import format_bytes

# In the order in which a stacked plot draws them, the longest-lived at the bottom.
CATEGORIES = ("parameters", "optimizer", "gradients", "inputs", "activations", "temporary")

# What ``with_margin`` adds for what no tensor storage shows. On a CPU a quarter for the C
# library's heap (it keeps and splits freed blocks) and oneDNN's own buffers, and a constant for
# code that loads on first use: real processes grew by up to 0.6 times that much
# (docs/measurements.md, "the whole process"). On an accelerator a share for blocks that the caching
# allocator rounds up and cannot reuse, and a constant for context, modules and the cuBLAS
# workspace.
_HOST_MARGIN = 0.25, 256 * 2**20
_ACCELERATOR_MARGIN = 0.15, 768 * 2**20
_MOST_BYTES = 2**60  # of a device's memory; more is a slip


def with_margin(nbytes: int, device_kind: str) -> int:
    """Return what must be free on a device of a kind for a step that needs so many bytes."""
    ratio, constant = _HOST_MARGIN if device_kind == "cpu" else _ACCELERATOR_MARGIN
    return int(nbytes * (1 + ratio)) + constant


def free_bytes_of(device: Any, kind: str) -> tuple[int, str]:
    """Return (free bytes, device kind) of a device, of a GPU of the data sheets, or of a bare
    capacity in bytes, then of the kind given.
    """
    if isinstance(device, str) and device in memory_sizes.gpus():
        return memory_sizes.memory_bytes(device), "cuda"
    if isinstance(device, numbers.Real) and not isinstance(device, bool):
        advice = "Pass for example parse_bytes('24 GiB')."
        name = "the capacity in bytes"
        return int(_validate.within("fits", name, device, 0, _MOST_BYTES, advice)), kind
    where = devices.find(device)
    return where.free_bytes, where.kind


def largest_that_fits(
    function: str, needed_bytes: Callable[[int], int], free: int, most: int
) -> int:
    """Return the largest size up to ``most`` that needs no more than ``free`` bytes; 0 if none."""
    low, high, guess = 0, _validate.whole(function, "most", most, 1, 2**40) + 1, 1
    before, tries = (0, 0), 0
    while high - low > 1:
        need, tries = needed_bytes(guess), tries + 1
        low, high = (guess, high) if need <= free else (low, guess)
        # Bytes grow by about as much for each sample, so the line through the last two sizes leads
        # near the answer. Of the first size most is there without any sample. Where the bytes jump,
        # the line does not lead there: each fourth guess halves what is left.
        slope = max(1.0, (need - before[1]) / (guess - before[0]) if before[0] else need / 32)
        line = min(max(guess + int((free - need) // slope), low + 1), high - 1)
        before, guess = (guess, need), line if tries % 4 else (low + high) // 2
    return low


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
        The operator that made it; "" for what was there before the step.
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
        return (
            f"<timeline of {len(self)} points over {len(self.steps)} "
            f"step{'s' if len(self.steps) != 1 else ''}>"
        )


@dataclass(frozen=True)
class _Peak:
    """What a trace and a prediction have in common."""

    label: str
    peak_bytes: int
    peak_by_category: Mapping[str, int]
    peak_operator: str
    peak_phase: str
    peak_tensors: tuple[LiveTensor, ...]
    timeline: Timeline
    notes: tuple[Note, ...]
    evidence: Evidence

    def _parts(self) -> list[tuple[str, str]]:
        return [
            (f"- {category}", format_bytes(self.peak_by_category[category]))
            for category in CATEGORIES
            if self.peak_by_category.get(category)
        ]

    def _tensors(self, most: int) -> list[tuple[str, str]]:
        return [
            (
                f"at the peak: {t.name or t.operator} ({t.category}, "
                f"{'x'.join(map(str, t.shape)) or 'scalar'} {t.dtype})",
                format_bytes(t.nbytes),
            )
            for t in self.peak_tensors[:most]
        ]


@dataclass(frozen=True)
class MemoryTrace(_Peak, Result):
    """What held a device's memory while a training step (or a function) ran.

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

    device: str

    def __repr__(self) -> str:
        where = f" in {self.peak_phase} ({self.peak_operator})" if self.peak_operator else ""
        return f"<{self.label} on {self.device}: peak {format_bytes(self.peak_bytes)}{where}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the peak by category, then the largest tensors alive at it."""
        peak = (
            f"peak, {self.peak_phase}: {self.peak_operator}"
            if self.peak_operator
            else "peak (no operator ran)"
        )
        rows = [
            (peak, format_bytes(self.peak_bytes)),
            *self._parts(),
            *self._tensors(10),
            *note_rows(self.notes, 2),
        ]
        return (f"memory of {self.label}", "bytes"), rows


@dataclass(frozen=True)
class Prediction(_Peak, Result):
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
        What stays alive between steps: parameters, buffers, optimizer state, inputs, gradients
        until they are released.
    peak_by_category : mapping of str to int
        Sums to ``peak_bytes``.
    peak_operator, peak_phase : str
    peak_tensors : tuple of LiveTensor
        The largest storages alive at the peak, largest first.
    parameter_count : int
    optimizer, precision : str
    checkpoint : bool
    device_type : str
        Whose rules (autocast, choice of kernels) the step followed: "cpu" or "cuda".
    timeline : Timeline
    notes : tuple of Note
    evidence : Evidence
    """

    first_step_peak_bytes: int
    scratch_bytes: int
    kept_bytes: int
    parameter_count: int
    optimizer: str
    precision: str
    checkpoint: bool
    device_type: str

    def needed_bytes(self, device_kind: str = "cpu") -> int:
        """Return peak, scratch and a margin: what must be free for the step to be safe on such a
        device.
        """
        return with_margin(self.peak_bytes + self.scratch_bytes, device_kind)

    def fits(self, device: Any = None) -> bool:
        """Return whether the step fits into what is free on a device now.

        Counts the peak, the scratch inside operators and a margin for heaps, allocators and
        libraries. Memory in use on the device counts as taken, including this model's own
        parameters, so the answer can be False for a model that is already there and True for one
        that is not.

        Parameters
        ----------
        device : None, str, Device or int
            A device of this machine (None takes the best one available), or a capacity in bytes,
            all of it free: for example ``parse_bytes("80 GiB")`` for a machine that is not here.

        Raises
        ------
        DeviceError
            If this machine has no such device.
        InputError
            If a capacity is negative.
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

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the peak, what it is made of, the scratch and the largest tensors."""
        rows = [
            (f"peak, {self.peak_phase}: {self.peak_operator}", format_bytes(self.peak_bytes)),
            *self._parts(),
            ("inside operators (upper estimate)", format_bytes(self.scratch_bytes)),
            ("first step's peak", format_bytes(self.first_step_peak_bytes)),
            ("kept between steps", format_bytes(self.kept_bytes)),
            *self._tensors(5),
            *note_rows(self.notes, 2),
        ]
        return (f"memory of {self.label}: {self.optimizer}, {self.precision}", "bytes"), rows
