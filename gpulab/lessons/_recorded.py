"""Data of GPUs for the notebooks: of recorded machines, or of the learner's own GPU measured now.

Values of recordings are looked up here and never typed into a text; missing ones are reported as
"not recorded yet".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices, hierarchy, models, recordings, timing, workloads
from gpulab.errors import InputError, MissingLibraryError, shown
from gpulab.evidence import Evidence
from gpulab.hierarchy import Bandwidth
from gpulab.models import Roofline
from gpulab.recordings import Entry, Recording
from gpulab.recordings.schema import accelerator_told
from gpulab.results import Result, html_caption, html_table
from gpulab.timing.recorded import measurement
from gpulab.units import format_bytes, format_flops_per_second, format_ratio, format_seconds, plural

NOT_YET = "not recorded yet"


def recorded_gpus() -> dict[str, Recording]:
    """Return the recordings of machines with an accelerator by their names; empty if there are
    none.
    """
    return {
        name: one
        for name, one in recordings.readable().items()
        if one.environment.device_kind != "cpu"
    }


def caption_of(evidence: Sequence[Evidence]) -> str:
    """The badge lines of a table's machines, each once."""
    return "\n".join(dict.fromkeys(one.sentence for one in evidence)) or NOT_YET


def with_captions(result: Any) -> str:
    """Return a result's table as HTML with a badge line for each of its machines, as a notebook
    shows it.
    """
    return html_table(*result.table()) + "".join(
        f"<div>{html_caption(line)}</div>" for line in result.caption().splitlines()
    )


def gpu_streams() -> tuple[Bandwidth, ...]:
    """Return bandwidth curves of GPUs with all multiprocessors reading: of your own CUDA GPU,
    measured with CuPy, else recorded ones.
    """
    where = devices.default()
    if where.torch_type == "cuda":
        with contextlib.suppress(MissingLibraryError):
            return (hierarchy.bandwidth(device=where, deadline=6.0),)
    found = (hierarchy.recorded_bandwidth(recording) for recording in recorded_gpus().values())
    return tuple(curve for curve in found if curve is not None)


def limits_of(compute_capability: str) -> models.SmLimits | None:
    """Return a multiprocessor's limits; None if its compute capability is not in the table."""
    return (
        models.sm_limits(compute_capability)
        if compute_capability in models.compute_capabilities()
        else None
    )


def accelerator_of(recording: Recording) -> Any:
    """Return a recording's facts about its GPU; None if the number of multiprocessors or the
    compute capability is missing.
    """
    found = accelerator_told(recording)
    several, capability = found.get("multiprocessors"), found.get("compute_capability")
    return (
        found
        if _given.is_whole(several) and several > 0 and isinstance(capability, str) and capability
        else None
    )


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


class _BadgeLines:
    """Part of a result: a table with a badge line for each machine whose figures it shows.

    Attributes
    ----------
    evidence : tuple of Evidence
        Of each machine; empty if nothing is recorded yet.
    """

    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def _repr_html_(self) -> str:
        return with_captions(self)


@dataclass(frozen=True)
class Ridges(_BadgeLines, Result):
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
    wanted = _given.items("recorded_under_roof", "works", works)
    wrong = next((work for work in wanted if not isinstance(work, workloads.Workload)), None)
    if wrong is not None:
        raise InputError(
            f"recorded_under_roof: {shown(wrong)} is not a workload; expected gl.workloads. Pass "
            'gl.workloads.get("matmul")(n=1024).'
        )
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


def _seen(recording: Recording, work: workloads.Workload) -> timing.Measurement | None:
    """Return what was recorded of this very work: the catalogue is recorded with its usual options,
    so another layer is not in it.
    """
    entry = recording.find("catalogue", workload=work.name, n=work.n, dtype=work.dtype)
    m = None if entry is None else measurement(recording, entry)
    return m if m is not None and (m.flops or 0.0, m.nbytes) == (work.flops, work.nbytes) else None


@dataclass(frozen=True)
class RecordedOverlap(_BadgeLines, Result):
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


@dataclass(frozen=True)
class RecordedOptions(_BadgeLines, Result):
    """The effect of the options of a training run on recorded machines.

    Attributes
    ----------
    rows : tuple of (str, ...)
        Machine, what ran and how many steps of it, and their time with its interval.
    evidence : tuple of Evidence
        Of each machine; empty if nothing is recorded yet.
    """

    rows: tuple[tuple[str, str, str], ...]
    evidence: tuple[Evidence, ...]

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self.rows), 'recorded training step')}>"
            if self.rows
            else "<not recorded yet>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per recorded training run."""
        return ("machine", "training, and how many steps of it", "time (RECORDED)"), self.rows or [
            ("no GPU", "not recorded yet", "")
        ]


def recorded_options(means: Sequence[str] | None = None) -> RecordedOptions:
    """Return recorded times of training with different options (mixed precision, compile, graphs,
    layouts, fused optimizers).

    Parameters
    ----------
    means : sequence of str, optional
        Only these, such as ``("plain", "compile", "graph")``; None takes all.
    """

    def by_model(entry: Entry) -> tuple[str, ...]:
        # what is compared stands together: one model in one number format, its options in a row
        parts = (str(entry.params.get(name, "")) for name in ("model", "precision"))
        return (entry.experiment, *parts)

    rows: list[tuple[str, str, str]] = []
    evidence: list[Evidence] = []
    for name, recording in recorded_gpus().items():
        before = len(rows)
        for entry in sorted(recording.entries, key=by_model):
            if not entry.experiment.startswith("training") or entry.timing is None:
                continue
            if means is not None and entry.params.get("means") not in means:
                continue
            interval = entry.timing.interval_seconds
            between = (
                ""
                if interval is None
                else f" (95 % {format_seconds(interval[0])} to {format_seconds(interval[1])})"
            )
            what = ", ".join(
                f"{value} steps" if name == "steps" else str(value)
                for name, value in entry.params.items()
            )
            rows.append(
                (
                    name,
                    f"{entry.experiment}: {what}",
                    format_seconds(entry.timing.median_seconds) + between,
                )
            )
        if len(rows) > before:
            evidence.append(recording.evidence())
    return RecordedOptions(tuple(rows), tuple(evidence))
