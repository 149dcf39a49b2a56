"""What one cell does to the memory of each device: its peak, what it keeps, what it frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import devices
from gpulab.devices import _host
from gpulab.evidence import Evidence
from gpulab.memory._snapshot import HeldTensor, cupy_bytes, lives, pool_bytes, storages
from gpulab.results import Result
from gpulab.units import format_bytes

_LARGEST = 10


@dataclass(frozen=True)
class DeviceUse(Result):
    """One device during a cell.

    Attributes
    ----------
    device : str
    before_bytes : int
        Held by tensors when the cell began.
    peak_bytes : int
        The most held by tensors during the cell, those from before counted.
    kept_bytes, freed_bytes : int
        By how much tensors grew over the cell, or shrank; one of the two is 0.
    """

    device: str
    before_bytes: int
    peak_bytes: int
    kept_bytes: int
    freed_bytes: int


@dataclass(frozen=True)
class CellMemory(Result):
    """The memory of one cell.

    Attributes
    ----------
    devices : tuple of DeviceUse
        The CPU first. On a CPU live torch storages after each operator; on an accelerator what
        PyTorch's allocator reports, including what operators allocate internally, and what CuPy
        held before and after.
    host_grown_bytes : int
        By how much this process grew, arrays of other libraries included; negative if it shrank.
    largest : tuple of HeldTensor
        New arrays that are still there, largest first.
    failed : bool
        Whether the cell raised.
    evidence : Evidence
    """

    devices: tuple[DeviceUse, ...]
    host_grown_bytes: int
    largest: tuple[HeldTensor, ...]
    failed: bool
    evidence: Evidence

    def __repr__(self) -> str:
        parts = [
            f"{use.device}: peak {format_bytes(use.peak_bytes)}, kept "
            f"{format_bytes(use.kept_bytes)}"
            for use in self.devices
        ]
        return f"<memory of the cell: {'; '.join(parts)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per device, then the largest new arrays."""
        rows = [
            (
                use.device,
                *(
                    format_bytes(n)
                    for n in (use.before_bytes, use.peak_bytes, use.kept_bytes, use.freed_bytes)
                ),
            )
            for use in self.devices
        ]
        rows.append(
            (
                "this process",
                "",
                "",
                *(format_bytes(max(0, n)) for n in (self.host_grown_bytes, -self.host_grown_bytes)),
            )
        )
        for tensor in self.largest:
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            rows.append(
                (
                    f"- new: {tensor.name or 'no name'}",
                    "",
                    "",
                    format_bytes(tensor.nbytes),
                    f"{shape} {tensor.dtype}",
                )
            )
        return (
            "tensors on" + (" (the cell raised)" if self.failed else ""),
            "before",
            "peak",
            "kept",
            "freed",
        ), rows


class Watch:
    """Follow the memory of a block: ``with Watch(namespace) as watch: ...``, then
    ``watch.result()``.

    Parameters
    ----------
    names : mapping of str to object
        Where the names of arrays are looked for, before and after.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names, self.failed = names, False

    def __enter__(self) -> Watch:
        from gpulab.memory._tracker import StorageTracker

        self._devices = devices.available()
        self._before = {where: lives(where, self.names) for where in self._devices}
        self._pools = {where: pool_bytes(where)[0] for where in self._devices[1:]}
        self._of_cupy = {where: cupy_bytes(where)[0] for where in self._devices[1:]}
        self._resident = _host.resident_bytes()
        for where in self._devices[1:]:
            _peak(where, reset=True)
        self._tracker = StorageTracker("cpu")
        self._tracker.watch_living()
        self._host_before = self._tracker.live_bytes
        self._tracker.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._tracker.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.failed = kind is not None
        self._host_after = self._tracker.live_bytes
        self._host_peak = max([self._host_before, *self._tracker.live])
        self._tracker.close()

    def result(self) -> CellMemory:
        """Return what happened in the block."""
        grown = _host.resident_bytes() - self._resident
        uses = [_use("cpu", self._host_before, self._host_peak, self._host_after)]
        for where in self._devices[1:]:
            before, after = self._pools[where], pool_bytes(where)[0]
            # CuPy keeps no peak: what it holds at both ends counts all along
            throughout = min(self._of_cupy[where], cupy_bytes(where)[0])
            uses.append(
                _use(str(where), before, max(before, after, _peak(where) + throughout), after)
            )
        new = [
            row
            for where in self._devices
            for key, row in storages(where, self.names).items()
            if (alive := self._before[where].get(key)) is None or alive() is None
        ]
        new.sort(key=lambda row: -row.nbytes)
        return CellMemory(
            tuple(uses),
            grown,
            tuple(new[:_LARGEST]),
            self.failed,
            Evidence.measured(self._devices[-1].name),
        )


def _use(device: str, before: int, peak: int, after: int) -> DeviceUse:
    return DeviceUse(device, before, peak, max(0, after - before), max(0, before - after))


def _peak(where: devices.Device, reset: bool = False) -> int:
    """Return PyTorch's peak since the last reset, or 0 where its allocator keeps none (MPS)."""
    if where.torch_type not in ("cuda", "xpu"):
        return 0
    import torch

    where.synchronize()
    allocator = getattr(torch, where.torch_type)
    return int(
        (allocator.reset_peak_memory_stats if reset else allocator.max_memory_allocated)(
            where.index
        )
        or 0
    )
