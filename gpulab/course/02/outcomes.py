"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from collections.abc import Mapping
from typing import Any
from gpulab.lessons._material import disturbed
from gpulab.lessons._road import TwoKinds
from gpulab.lessons.content import Unmeasured
from gpulab.units import format_seconds


def _is_pair(given: Any) -> bool:
    """Return whether it is the CPU's measurement and the GPU's bill, by their names."""
    kinds = {"the CPU": "median_seconds", "the GPU": "total_seconds"}
    return isinstance(given, Mapping) and set(given) == set(kinds) and all(hasattr(given[name], kind) for name, kind in kinds.items())


def _faster(pair: Mapping[str, Any]) -> str:
    """Return which of the CPU's measurement and the GPU's bill is the shorter."""
    cpu, bill = pair["the CPU"], pair["the GPU"]
    if cpu.median_seconds <= bill.total_seconds:
        return "the CPU"
    if disturbed(note.code for note in cpu.notes):  # that only makes the CPU slower, so it may have won all the same
        raise Unmeasured(
            f"other programs disturbed your CPU, so its {format_seconds(cpu.median_seconds)} may be far too long. "
            "When it is quiet, run the cell above and this one again."
        )
    return "the GPU"


outcome = {
    "02.1": lambda pair: _faster(pair) if _is_pair(pair) else pair,
    "02.3": lambda link: link.seconds(64 * 1024) / link.seconds(1024) if hasattr(link, "seconds") else link,
    "02.4": lambda fit: fit.half_bandwidth_bytes if hasattr(fit, "half_bandwidth_bytes") else fit,
    "02.6": lambda kinds: kinds.ratio if isinstance(kinds, TwoKinds) else kinds,
    "02.7": lambda read: 100 * read.stale_ratio if hasattr(read, "stale_ratio") else read,
    "02.10": lambda link: 1000 * link.seconds(4) if hasattr(link, "seconds") else link,
    "02.11": lambda m: m.peak_bytes / m.peak_by_category["parameters"] if hasattr(m, "peak_by_category") else m,
}


sides = {
    "02.1": lambda pair: {name: each.evidence for name, each in pair.items()} if _is_pair(pair) else {},
}
