"""What notebook 05 shows of GPUs, the learner's own or recorded ones: products in each format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpulab import recordings
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _live
from gpulab.lessons._recorded_gpus import caption_of, with_captions
from gpulab.results import Result
from gpulab.units import format_flops_per_second, format_ratio, plural

_EXPERIMENT = "precision"
_SIDES = (4096, 4095, 512, 511)  # of the experiment's, the pair that fills a GPU, and the CPU's pair


@dataclass(frozen=True)
class RecordedProduct(Result):
    """One product on one machine.

    Attributes
    ----------
    machine, format : str
    side : int
    flops_per_second : float
    over_float32_ratio : float or None
        Over float32's rate at the same side, where that is known.
    evidence : Evidence
    notes : tuple of str
        Codes of what is wrong with the measurement.
    """

    machine: str
    format: str
    side: int
    flops_per_second: float
    over_float32_ratio: float | None
    evidence: Evidence
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedPrecisions(Result):
    """Products in each format on GPUs: the learner's own, or those of recorded machines.

    Attributes
    ----------
    rows : tuple of RecordedProduct
        Empty where nothing is recorded yet.
    refused : tuple of (str, int, str)
        Format, side and reason of what could not be measured.
    """

    rows: tuple[RecordedProduct, ...]
    refused: tuple[tuple[str, int, str], ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Of each machine, without a number of samples, which differs from row to row; empty where nothing is recorded."""
        lines: dict[str, Evidence] = {}
        for row in self.rows:
            one = replace(row.evidence, samples=None)
            lines.setdefault(one.sentence, one)
        return tuple(lines.values())

    def __repr__(self) -> str:
        kind = "measured" if self._live else "recorded"
        return f"<{plural(len(self.rows), f'{kind} product')}>" if self.rows else "<products on a GPU: not recorded yet>"

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def _repr_html_(self) -> str:
        return with_captions(self)

    @property
    def _live(self) -> bool:
        return bool(self.rows) and self.rows[0].evidence.badge is Badge.MEASURED

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a product, or the words that there is none."""
        headers = ("device (MEASURED)" if self._live else "GPU (RECORDED)", "format", "side", "rate", "over float32")
        if not self.rows:
            return headers, [("not recorded yet", "", "", "", "`gpulab record --out FILE` on a GPU machine makes a recording")]
        rows = [
            (
                r.machine,
                r.format,
                f"{r.side:,}",
                format_flops_per_second(r.flops_per_second) + _noted(r.notes),
                _ratio(r.over_float32_ratio),
            )
            for r in self.rows
        ]
        return headers, rows + [("", name, f"{side:,}", reason, "") for name, side, reason in self.refused]


def _ratio(value: float | None) -> str:
    return "" if value is None else format_ratio(value)


def _noted(notes: tuple[str, ...]) -> str:
    return f" ({', '.join(notes)})" if notes else ""


def products(device: Any = None, deadline: float = 0.3) -> RecordedPrecisions:
    """Return the products of this machine's GPU in each format, measured now; without a GPU those of recorded ones.

    Parameters
    ----------
    device : Device or str, optional
        None takes the best there is; a CPU is measured only where it is asked for.
    deadline : float
        Seconds of sampling for each product.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    where = _live.chosen(device)
    if where is None:
        return recorded_precisions()
    rows: list[RecordedProduct] = []
    refused: list[tuple[str, int, str]] = []
    base: dict[int, float] = {}
    for params, found in _live.measured(_EXPERIMENT, lambda params: params["n"] in _SIDES, where, deadline):
        name, side = str(params["format"]), int(params["n"])
        if isinstance(found, str):
            refused.append((name, side, found))
            continue
        rate = found.flops_per_second or 0.0
        if name == "float32":
            base[side] = rate
        notes = _live.doubts(found)
        rows.append(RecordedProduct(where.name, name, side, rate, rate / base[side] if side in base else None, found.evidence, notes))
    return RecordedPrecisions(tuple(rows), tuple(refused))


def recorded_precisions() -> RecordedPrecisions:
    """Return the products that recorded GPUs took, in each format; an empty result means "not recorded yet"."""
    rows: list[RecordedProduct] = []
    for name, recording in recordings.readable().items():
        if recording.environment.device_kind == "cpu":
            continue
        rates: dict[tuple[int, str], tuple[float, Evidence, tuple[str, ...]]] = {}
        for entry in recording.entries:
            if entry.experiment == _EXPERIMENT and entry.timing is not None and entry.timing.flops:
                rate = entry.timing.flops / entry.timing.median_seconds
                rates[int(entry.params["n"]), str(entry.params["format"])] = rate, recording.evidence(entry), _live.doubts(entry.timing)
        for (side, format_name), (rate, evidence, notes) in sorted(rates.items()):
            base = rates.get((side, "float32"))
            rows.append(RecordedProduct(name, format_name, side, rate, rate / base[0] if base else None, evidence, notes))
    return RecordedPrecisions(tuple(rows))
