"""What the readers of a recording require of an entry: the parameters of each experiment, and their
types.

The recorder's cases have them, and a test checks that both agree. An experiment that is not listed
here may have any parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpulab.errors import RecordingError, shown
from gpulab.recordings._schema import Entry

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "bandwidth": ("nbytes", "operation"),
    "catalogue": ("workload", "n", "dtype"),
    "ceilings": ("operation", "dtype"),
    "collectives": ("collective", "nbytes", "ranks"),
    "compression": ("layer", "form", "dtype", "n"),
    "data-parallel scaling": ("model", "mode", "ranks", "batch", "parameter_bytes"),
    "ladders": ("family", "rung", "n"),
    "latency": ("nbytes", "method", "hops"),
    "launch": ("operation", "launches"),
    "overlap": ("arrangement", "nbytes", "chunks"),
    "pipeline": ("part",),
    "precision": ("format", "n"),
    "speed-up ladder": ("form", "technique", "batch_size", "steps"),
    "tips": ("tip", "form"),
    "training": ("model", "precision", "means"),
    "transfer": ("direction", "memory", "nbytes"),
}
# Those that are counted with; all others of the above are words.
_WHOLE = frozenset(
    {
        "batch",
        "batch_size",
        "chunks",
        "hops",
        "launches",
        "n",
        "nbytes",
        "parameter_bytes",
        "ranks",
        "steps",
    }
)
# beyond it no memory lies, and a whole number would not turn into a float without loss
_MOST = 2**62


def refuse_unusable(entries: Iterable[Entry]) -> None:
    """Refuse an entry of a known experiment that lacks a parameter, or has one of another type.

    Raises
    ------
    RecordingError
        If one does.
    """
    for entry in entries:
        needed = PARAMETERS.get(entry.experiment, ())
        for name in (*needed, *(_WHOLE & entry.params.keys() if needed else ())):
            value = entry.params.get(name)
            if not (
                isinstance(value, int) and 1 <= value <= _MOST
                if name in _WHOLE
                else isinstance(value, str)
            ):
                expected = "a whole number from 1" if name in _WHOLE else "a word"
                raise RecordingError(
                    f"recordings.read: the case {shown(entry.key)} has {shown(name)} = "
                    f"{shown(value)}; expected {expected}. The file is "
                    "damaged or was written by another version."
                )
