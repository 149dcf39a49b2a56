"""What notebook 02 shows of links: pageable against pinned memory, and the recorded machines' sweeps.

Measured where this machine has a GPU, recorded where a machine with one was recorded, modelled otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab import devices, recordings, timing, transfer
from gpulab.evidence import Evidence, known_errors
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds, plural

_NBYTES = 64 * 2**20


@dataclass(frozen=True)
class TwoKinds(Result):
    """One copy to the GPU from pageable and from pinned memory.

    Attributes
    ----------
    nbytes : int
    pageable_seconds, pinned_seconds : float
    evidence : Evidence
    """

    nbytes: int
    pageable_seconds: float
    pinned_seconds: float
    evidence: Evidence

    @property
    def ratio(self) -> float:
        """Pageable / pinned."""
        return self.pageable_seconds / self.pinned_seconds

    def __repr__(self) -> str:
        return f"<{format_bytes(self.nbytes)} from pageable memory takes {format_ratio(self.ratio)} as long as from pinned>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a kind of memory."""
        rows = [
            (kind, format_seconds(seconds), format_bytes_per_second(self.nbytes / seconds))
            for kind, seconds in (("pageable", self.pageable_seconds), ("pinned", self.pinned_seconds))
        ]
        return (f"{format_bytes(self.nbytes)} to the GPU from", "time", "rate"), rows


def pageable_against_pinned(nbytes: int = _NBYTES) -> TwoKinds:
    """Return what a copy to the GPU takes from both kinds of memory: measured here, recorded, or modelled.

    Parameters
    ----------
    nbytes : int
    """
    device = devices.default()
    if device.torch_type == "cuda":
        kinds = [transfer.measure_copy(nbytes, "to_device", memory, device, deadline=1.0) for memory in ("pageable", "pinned")]
        samples = sum(len(m.samples_seconds) for m in kinds)
        return TwoKinds(nbytes, kinds[0].median_seconds, kinds[1].median_seconds, Evidence.measured(device.name, samples))
    for sweep in recorded_sweeps():
        there = {p.memory: p.median_seconds for p in sweep.points if p.direction == "to_device" and p.nbytes == nbytes}
        if {"pageable", "pinned"} <= set(there):
            return TwoKinds(nbytes, there["pageable"], there["pinned"], sweep.evidence)
    pageable, pinned = transfer.link(memory="pageable"), transfer.link(memory="pinned")
    return TwoKinds(nbytes, pageable.seconds(nbytes), pinned.seconds(nbytes), pageable.evidence)


@dataclass(frozen=True)
class Pinning(Result):
    """What pinning a buffer costs, beside what it gains for each copy.

    Attributes
    ----------
    nbytes : int
    pin_seconds : float
        ``tensor.pin_memory()``.
    pageable_seconds, pinned_seconds : float
        One copy to the GPU.
    evidence : Evidence
    """

    nbytes: int
    pin_seconds: float
    pageable_seconds: float
    pinned_seconds: float
    evidence: Evidence

    @property
    def copies_to_pay(self) -> float | None:
        """How many copies of the same buffer until pinning has paid; None where a pinned copy is no faster."""
        gain = self.pageable_seconds - self.pinned_seconds
        return self.pin_seconds / gain if gain > 0 else None

    def __repr__(self) -> str:
        return f"<pinning {format_bytes(self.nbytes)} takes {format_seconds(self.pin_seconds)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return both ways of sending the buffer once, and when pinning has paid."""
        copies = None if self.copies_to_pay is None else math.ceil(self.copies_to_pay)
        pays = "never: a pinned copy is no faster" if copies is None else f"after {plural(copies, 'copy', 'copies')} of the buffer"
        rows = [
            ("plain copy from pageable memory", format_seconds(self.pageable_seconds)),
            ("pin the buffer", format_seconds(self.pin_seconds)),
            ("then copy from pinned memory", format_seconds(self.pinned_seconds)),
            ("pin and copy, together", format_seconds(self.pin_seconds + self.pinned_seconds)),
            ("pinning has paid", pays),
        ]
        return (f"{format_bytes(self.nbytes)} to the GPU", ""), rows


def pinning(nbytes: int = _NBYTES) -> Pinning:
    """Return what pinning costs: measured where this machine has CUDA, else modelled.

    The model: pinning copies the buffer into fresh memory, which this machine's CPU does now; that the pages are also
    locked is left out, so real pinning takes longer. The copies are those of ``pageable_against_pinned``.

    Parameters
    ----------
    nbytes : int
    """
    if devices.default().torch_type == "cuda":
        cost = transfer.pinning_cost(nbytes)
        return Pinning(nbytes, cost.pin_seconds, cost.pageable_copy_seconds, cost.pinned_copy_seconds, cost.evidence)
    source = np.ones(nbytes, dtype=np.uint8)
    fresh = timing.measure(source.copy, device="cpu", deadline=0.5, label="copy into fresh memory")
    kinds = pageable_against_pinned(nbytes)
    evidence = Evidence.modelled(
        f"pinning takes as long as a copy into fresh memory, {format_seconds(fresh.median_seconds)} measured on {fresh.evidence.device}, "
        f"and no longer; the copies to the GPU: {kinds.evidence.assumptions or kinds.evidence.sentence}",
        "PyTorch, A guide on good usage of non_blocking and pin_memory() (pin_memory copies into page-locked memory)",
        known_errors(copies=kinds.evidence),
    )
    return Pinning(nbytes, fresh.median_seconds, kinds.pageable_seconds, kinds.pinned_seconds, evidence)


def recorded_sweeps() -> list[transfer.Sweep]:
    """Return the sweeps of recorded machines that have a GPU; an empty list means "not recorded yet"."""
    found = []
    for recording in recordings.readable().values():
        sweep = transfer.recorded_sweep(recording) if recording.environment.device_kind != "cpu" else None
        if sweep is not None:
            found.append(sweep)
    return found
