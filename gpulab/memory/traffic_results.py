"""What ``memory.traffic`` returns: the bytes that each operator reads and writes, and the
arithmetic that it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, plural

# A table of more operators than this is read by nobody: equal ones then share a row.
_MOST_ROWS = 12


@dataclass(frozen=True)
class OperatorTraffic(Result):
    """One operator that ran.

    Attributes
    ----------
    name : str
        PyTorch's name of it, such as "aten.add.Tensor".
    read_bytes, written_bytes : int
        Each distinct element of its arguments once; each element of its results once.
    flops : float or None
        By the catalogue's convention; None where there is no count for this operator.
    """

    name: str
    read_bytes: int
    written_bytes: int
    flops: float | None

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Traffic(Result):
    """The memory traffic of a function, operator by operator.

    Attributes
    ----------
    label : str
    operators : tuple of OperatorTraffic
        In the order in which they ran; views, which move nothing, are left out.
    input_bytes, output_bytes : int
        Of the tensors that the function was given (with a module's parameters), and of the new ones
        that it returned together with the given ones that it changed in place.
    evidence : Evidence
        MODELLED: counted from shapes, not measured on the memory bus.
    """

    label: str
    operators: tuple[OperatorTraffic, ...]
    input_bytes: int
    output_bytes: int
    evidence: Evidence

    @property
    def read_bytes(self) -> int:
        """The bytes that all operators read."""
        return sum(each.read_bytes for each in self.operators)

    @property
    def written_bytes(self) -> int:
        """The bytes that all operators write."""
        return sum(each.written_bytes for each in self.operators)

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes

    @property
    def compulsory_bytes(self) -> int:
        """The bytes that one fused pass would move: the inputs read once, the results written once,
        an array in place both.
        """
        return self.input_bytes + self.output_bytes

    @property
    def flops(self) -> float:
        """The FLOPs of the operators that are counted."""
        return sum(each.flops or 0.0 for each in self.operators)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The operators whose FLOPs are not counted, each once."""
        return tuple(dict.fromkeys(each.name for each in self.operators if each.flops is None))

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity of the whole; infinite for work that moves nothing."""
        return self.flops / self.nbytes if self.nbytes else math.inf

    def memory_bound(self, roof: Any, arithmetic: str = "float32") -> tuple[OperatorTraffic, ...]:
        """Return the operators that are limited by main memory, not by arithmetic, under a
        roofline; uncounted ones are left out.

        Parameters
        ----------
        roof : Roofline
            From ``gpulab.models.roofline``.
        arithmetic : str
            The number format whose roof counts.
        """
        ridge = roof.ridge_flops_per_byte(arithmetic)
        return tuple(
            each
            for each in self.operators
            if each.flops is not None and each.flops < ridge * each.nbytes
        )

    def __repr__(self) -> str:
        moved = f"reads {format_bytes(self.read_bytes)}, writes {format_bytes(self.written_bytes)}"
        return (
            f"<{self.label}: {plural(len(self.operators), 'operator')}, {moved}, "
            f"{self.flops:.3g} FLOP ({self.evidence.badge})>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per operator (one per kind, where there are many), and the sum."""
        rows: list[tuple[str, ...]] = []
        if len(self.operators) <= _MOST_ROWS:
            rows += [_row(each.name, (each,)) for each in self.operators]
        else:
            kinds = {
                each.name: [other for other in self.operators if other.name == each.name]
                for each in self.operators
            }
            ordered = sorted(kinds.items(), key=lambda kind: -sum(each.nbytes for each in kind[1]))
            rows += [_row(f"{len(each)} x {name}", each) for name, each in ordered]
        return ("operator", "reads", "writes", "FLOP", "FLOP per byte"), [
            *rows,
            _row("together", self.operators),
        ]

    def caption(self) -> str:
        """Return the badge, and what is not counted."""
        left_out = f" · FLOPs not counted: {', '.join(self.uncounted)}" if self.uncounted else ""
        return f"{self.evidence.sentence}{left_out}"


def _row(name: str, operators: Sequence[OperatorTraffic]) -> tuple[str, ...]:
    read, written = (
        sum(each.read_bytes for each in operators),
        sum(each.written_bytes for each in operators),
    )
    flops = sum(each.flops or 0.0 for each in operators)
    counted = any(each.flops is not None for each in operators) or not operators
    intensity = f"{flops / (read + written):.3g}" if counted and read + written else ""
    return (
        name,
        format_bytes(read),
        format_bytes(written),
        f"{flops:.4g}" if counted else "not counted",
        intensity,
    )
