"""What notebook 02 shows of links: pageable against pinned memory, and the recorded machines' sweeps.

Measured where this machine has a GPU, recorded where a machine with one was recorded, modelled otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import devices, recordings, transfer
from gpulab._result import Result
from gpulab.evidence import Evidence
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds

_NBYTES = 64 * 2**20


@dataclass(frozen=True, repr=False)
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


def recorded_sweeps() -> list[transfer.Sweep]:
    """Return the sweeps of recorded machines that have a GPU; an empty list means "not recorded yet"."""
    found = []
    for name in recordings.names():
        recording = recordings.load(name)
        sweep = transfer.recorded_sweep(recording) if recording.environment.device_kind != "cpu" else None
        if sweep is not None:
            found.append(sweep)
    return found
