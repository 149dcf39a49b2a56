"""What notebook 05 shows of recorded GPUs: products in each format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import recordings
from gpulab._result import Result
from gpulab.evidence import Evidence
from gpulab.units import format_flops_per_second, format_ratio

_EXPERIMENT = "precision"


@dataclass(frozen=True, repr=False)
class RecordedProduct(Result):
    """One product on a recorded machine.

    Attributes
    ----------
    machine, format : str
    side : int
    flops_per_second : float
    over_float32_ratio : float or None
        Over float32's rate at the same side, where that is recorded.
    evidence : Evidence
    """

    machine: str
    format: str
    side: int
    flops_per_second: float
    over_float32_ratio: float | None
    evidence: Evidence


@dataclass(frozen=True, repr=False)
class RecordedPrecisions(Result):
    """Products in each format on recorded machines with a GPU.

    Attributes
    ----------
    rows : tuple of RecordedProduct
        Empty where nothing is recorded yet.
    """

    rows: tuple[RecordedProduct, ...]

    @property
    def evidence(self) -> Evidence | None:
        """That of the first row; None where nothing is recorded."""
        return self.rows[0].evidence if self.rows else None

    def __repr__(self) -> str:
        return f"<{len(self.rows)} recorded products>" if self.rows else "<products on a GPU: not recorded yet>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a product, or the words that there is none."""
        headers = ("GPU (RECORDED)", "format", "side", "rate", "over float32")
        if not self.rows:
            return headers, [("not recorded yet", "", "", "", "`gpulab record --out FILE` on a GPU machine makes a recording")]
        return headers, [
            (r.machine, r.format, f"{r.side:,}", format_flops_per_second(r.flops_per_second), _ratio(r.over_float32_ratio))
            for r in self.rows
        ]


def _ratio(value: float | None) -> str:
    return "" if value is None else format_ratio(value)


def recorded_precisions() -> RecordedPrecisions:
    """Return the products that recorded GPUs took, in each format; an empty result means "not recorded yet"."""
    rows: list[RecordedProduct] = []
    for name, recording in recordings.readable().items():
        if recording.environment.device_kind == "cpu":
            continue
        rates: dict[tuple[int, str], tuple[float, Evidence]] = {}
        for entry in recording.entries:
            if entry.experiment == _EXPERIMENT and entry.timing is not None and entry.timing.flops:
                rate = entry.timing.flops / entry.timing.median_seconds
                rates[int(entry.params["n"]), str(entry.params["format"])] = rate, recording.evidence(entry)
        for (side, format_name), (rate, evidence) in sorted(rates.items()):
            base = rates.get((side, "float32"))
            rows.append(RecordedProduct(name, format_name, side, rate, rate / base[0] if base else None, evidence))
    return RecordedPrecisions(tuple(rows))
