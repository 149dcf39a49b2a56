"""What one rank of many holds: a plain result that tables, figures and the explorer read; nothing
is predicted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.evidence import Evidence, Note
from gpulab.memory.results import (
    MARGIN_BYTES,
    MARGIN_BYTES_ACCELERATOR,
    MARGIN_RATIO,
    MARGIN_RATIO_ACCELERATOR,
    LiveTensor,
)
from gpulab.results import Result
from gpulab.units import format_bytes, plural

# In the order in which a stacked bar draws them. "communication": parameters gathered for a moment,
# buckets and buffers of messages.
RANK_CATEGORIES = (
    "parameters",
    "optimizer",
    "gradients",
    "communication",
    "activations",
    "inputs",
    "temporary",
)


@dataclass(frozen=True)
class RankMemory(Result):
    """The memory that a training step will take on one rank of many, found without running it.

    Attributes
    ----------
    label : str
        The model.
    strategy : str
        One of ``parallel.strategies()``.
    ranks, rank : int
    peak_bytes : int
        The most live tensor storage on this rank after any operator of a step that follows an
        earlier one.
    scratch_bytes : int
        An upper estimate of what operators allocate inside and free before they return, beyond
        ``peak_bytes``.
    kept_bytes : int
        What stays alive between steps.
    first_step_peak_bytes : int
    peak_by_category : mapping of str to int
        In the order of ``RANK_CATEGORIES``; sums to ``peak_bytes``.
    peak_operator, peak_phase : str
    peak_tensors : tuple of LiveTensor
        The largest storages alive at the peak, largest first.
    parameter_count : int
        Of the whole model.
    optimizer, precision : str
    checkpoint : bool
    microbatches : int
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    strategy: str
    ranks: int
    rank: int
    peak_bytes: int
    scratch_bytes: int
    kept_bytes: int
    first_step_peak_bytes: int
    peak_by_category: Mapping[str, int]
    peak_operator: str
    peak_phase: str
    peak_tensors: tuple[LiveTensor, ...]
    parameter_count: int
    optimizer: str
    precision: str
    checkpoint: bool
    microbatches: int
    notes: tuple[Note, ...]
    evidence: Evidence

    def needed_bytes(self, device_kind: str = "cuda") -> int:
        """Return peak, scratch and the margin of ``memory.Prediction``: what must be free on a
        device of a kind.
        """
        return needed_bytes(self.peak_bytes + self.scratch_bytes, device_kind)

    def fits(self, capacity: int | str) -> bool:
        """Return whether the rank's step fits into a GPU, all of it free.

        Parameters
        ----------
        capacity : int or str
            Bytes, or a GPU of the data sheets by its name, such as "H100 SXM".

        Raises
        ------
        InputError
            If there is no such GPU, or its memory is not known.
        """
        from gpulab.devices.memory_sizes import memory_bytes

        return self.needed_bytes() <= (
            memory_bytes(capacity) if isinstance(capacity, str) else capacity
        )

    def __repr__(self) -> str:
        return (
            f"<{self.label}, {self.strategy} on {plural(self.ranks, 'rank')}, rank {self.rank}: "
            f"peak {format_bytes(self.peak_bytes)} "
            f"+ scratch {format_bytes(self.scratch_bytes)} (modelled)>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the peak, what it is made of, and the largest tensors."""
        rows = [(f"peak, {self.peak_phase}: {self.peak_operator}", format_bytes(self.peak_bytes))]
        rows += [
            (f"- {name}", format_bytes(nbytes))
            for name, nbytes in self.peak_by_category.items()
            if nbytes
        ]
        rows += [
            ("inside operators (upper estimate)", format_bytes(self.scratch_bytes)),
            ("kept between steps", format_bytes(self.kept_bytes)),
        ]
        for t in self.peak_tensors[:5]:
            shape = "x".join(map(str, t.shape)) or "scalar"
            rows.append(
                (
                    f"at the peak: {t.name or t.operator} ({t.category}, {shape} {t.dtype})",
                    format_bytes(t.nbytes),
                )
            )
        rows += [(f"note: {note.code}", note.sentence) for note in self.notes]
        return (f"{self.label}: {self.strategy}, rank {self.rank} of {self.ranks}", "bytes"), rows


def needed_bytes(nbytes: int, device_kind: str) -> int:
    """Return the bytes with the margin that ``memory`` adds for allocators and libraries on a
    device of a kind.
    """
    ratio = MARGIN_RATIO.get(device_kind, MARGIN_RATIO_ACCELERATOR)
    return int(nbytes * (1 + ratio)) + MARGIN_BYTES.get(device_kind, MARGIN_BYTES_ACCELERATOR)
