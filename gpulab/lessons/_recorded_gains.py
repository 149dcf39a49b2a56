"""Data of recorded GPUs for notebooks 03 and 08: roofs, gains on work that was measured here,
overlap, and ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpulab import _given, models, timing, workloads
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.lessons._recorded_gpus import NOT_YET, caption_of, recorded_gpus, with_captions
from gpulab.models import Roofline
from gpulab.recordings import Recording
from gpulab.results import Result
from gpulab.timing.recorded import measurement
from gpulab.units import format_bytes, format_flops_per_second, format_ratio, format_seconds, plural

# -- 03: roofs, points and gains
# --------------------------------------------------------------------------------------------------


def gpu_roofs(arithmetic: str | None = None) -> tuple[Roofline, ...]:
    """Return the roofs of recorded GPUs, those that have ceilings; empty means "not recorded yet".

    Parameters
    ----------
    arithmetic : str, optional
        Only GPUs with a recorded product in this number format, such as "bfloat16".
    """
    found = []
    for recording in recorded_gpus().values():
        try:
            roofs = models.roofline(recording)
        except InputError:  # a recording of a part of the experiments
            continue
        if arithmetic is None or any(top.name == arithmetic for top in roofs.arithmetic):
            found.append(roofs)
    return tuple(found)


@dataclass(frozen=True)
class Ridges(Result):
    """The best matrix product in each number format on recorded GPUs, with the ridge of the main
    memory's bandwidth.

    Attributes
    ----------
    rows : tuple of (str, str, float, float, float or None)
        GPU, format, FLOP/s, the ridge in FLOP per byte, and the rate relative to float32.
    evidence : tuple of Evidence
        Of each GPU; empty if nothing is recorded yet.
    """

    rows: tuple[tuple[str, str, float, float, float | None], ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return f"<ridges: {', '.join(f'{row[1]} {row[3]:.3g}' for row in self.rows) or NOT_YET}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per format, the slowest first."""
        headers = (
            "GPU (RECORDED)",
            "format",
            "best product",
            "relative to float32",
            "ridge, FLOP per byte",
        )
        rows = [
            (
                gpu,
                name,
                format_flops_per_second(rate),
                "" if over is None else format_ratio(over),
                f"{ridge:.3g}",
            )
            for gpu, name, rate, ridge, over in self.rows
        ]
        return headers, rows or [(NOT_YET, "", "", "", "")]

    def _repr_html_(self) -> str:
        return with_captions(self)


def recorded_ridges() -> Ridges:
    """Return the ridge of each number format on recorded GPUs; an empty result means "not recorded
    yet".
    """
    rows: list[tuple[str, str, float, float, float | None]] = []
    roofs = gpu_roofs()
    for one in roofs:
        rates = {top.name: top.flops_per_second for top in one.arithmetic}
        for name in sorted(rates, key=lambda each: rates[each]):
            over = rates[name] / rates["float32"] if "float32" in rates else None
            rows.append((one.device, name, rates[name], one.ridge_flops_per_byte(name), over))
    return Ridges(tuple(rows), tuple(one.evidence for one in roofs))


def recorded_under_roof(works: Iterable[workloads.Workload]) -> tuple[Roofline, ...]:
    """Return recorded GPUs' roofs with the recorded points of the same work; work that was not
    recorded is left out.

    Parameters
    ----------
    works : iterable of Workload
        From ``gpulab.workloads``.

    Raises
    ------
    InputError
        If one is not a workload.
    """
    wanted = _works("recorded_under_roof", works)
    found = (_under_roof(recording, wanted) for recording in recorded_gpus().values())
    return tuple(roofs for roofs in found if roofs is not None)


def _under_roof(recording: Recording, works: Sequence[workloads.Workload]) -> Roofline | None:
    """Return one recording's roofs with the work under them; None where it lacks the roofs, or all
    of the work.
    """
    try:
        roofs = models.roofline(recording)
    except InputError:
        return None
    points = []
    for work in works:
        seen = _seen(recording, work)
        if seen is not None:
            # no roof of its arithmetic: a short recording has not come to each format
            with contextlib.suppress(InputError):
                points.append(roofs.place_workload(work, seen))
    return roofs.with_points(points) if points else None


def _works(who: str, works: Iterable[workloads.Workload]) -> list[workloads.Workload]:
    wanted = _given.items(who, "works", works)
    wrong = next((work for work in wanted if not isinstance(work, workloads.Workload)), None)
    if wrong is not None:
        raise InputError(
            f"{who}: {shown(wrong)} is not a workload; expected gl.workloads. Pass "
            'gl.workloads.get("matmul")(n=1024).'
        )
    return wanted


def _seen(recording: Recording, work: workloads.Workload) -> timing.Measurement | None:
    """Return what was recorded of this very work: the catalogue is recorded with its usual options,
    so another layer is not in it.
    """
    entry = recording.find("catalogue", workload=work.name, n=work.n, dtype=work.dtype)
    m = None if entry is None else measurement(recording, entry)
    return m if m is not None and (m.flops or 0.0, m.nbytes) == (work.flops, work.nbytes) else None


# -- 08: overlap and ranks
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedOverlap(Result):
    """Copying and computing one after the other, and in chunks that overlap, on recorded machines.

    Attributes
    ----------
    rows : tuple of (str, int, int, float, float)
        Machine, bytes, chunks, seconds one after the other, seconds in chunks.
    evidence : tuple of Evidence
        Of each machine; empty if nothing is recorded yet.
    """

    rows: tuple[tuple[str, int, int, float, float], ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self.rows), 'recorded overlap')}>"
            if self.rows
            else f"<overlap on a GPU: {NOT_YET}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per number of chunks."""
        headers = (
            "GPU (RECORDED)",
            "copied and computed on",
            "chunks",
            "one after the other",
            "chunks that overlap",
            "speed-up",
        )
        rows = [
            (
                machine,
                format_bytes(nbytes),
                str(chunks),
                format_seconds(serial),
                format_seconds(chunked),
                format_ratio(serial / chunked),
            )
            for machine, nbytes, chunks, serial, chunked in self.rows
        ]
        return headers, rows or [(NOT_YET, "", "", "", "", "")]

    def _repr_html_(self) -> str:
        return with_captions(self)


def recorded_overlap() -> RecordedOverlap:
    """Return the gain of overlapping copies with compute on recorded GPUs, by bytes and chunks;
    empty means "not recorded yet".
    """
    rows, evidence = [], []
    for name, recording in recorded_gpus().items():
        times = {
            (
                int(e.params["nbytes"]),
                int(e.params["chunks"]),
                str(e.params["arrangement"]),
            ): e.timing.median_seconds
            for e in recording.select("overlap")
            if e.timing is not None
        }
        found = [
            (name, nbytes, chunks, seconds, times[nbytes, chunks, "chunked"])
            for (nbytes, chunks, arrangement), seconds in sorted(times.items())
            if arrangement == "serial" and (nbytes, chunks, "chunked") in times
        ]
        if found:
            rows += found
            evidence.append(recording.evidence())
    return RecordedOverlap(tuple(rows), tuple(evidence))
