"""Workloads under the roofs of this machine, measured live, beside those of a recorded machine or a
data sheet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, models, recordings, timing, workloads
from gpulab.devices import _datasheets
from gpulab.errors import (
    DeviceError,
    InputError,
    MeasurementError,
    OutOfMemoryError,
    RecordingError,
    StoppedError,
)
from gpulab.evidence import Badge, Evidence, Note
from gpulab.models import Roofline, RooflinePoint
from gpulab.timing.recorded import measurement
from gpulab.units import format_seconds
from gpulab.widgets._controls import Choice, Control, Several, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop
from gpulab.workloads import Workload

_NONE = "none"
_FIRST = ("matmul", "softmax", "add", "gelu", "fft", "conv2d")
_SIZES = ((0.0, "smallest"), (0.25, "small"), (0.5, "middle"), (0.75, "large"), (1.0, "largest"))
_SHEET = "H200 SXM"
# What one workload may fail with, and the others go on; MPS lacks some operators, which only their
# first call tells.
_LEFT_OUT = (InputError, DeviceError, OutOfMemoryError, MeasurementError)


class RooflineExplorer(Instrument):
    """Measure workloads and see which roof limits each of them.

    ``result`` is the ``Roofline`` of the measured device, with its points; ``beside`` is that of
    the other machine.

    Examples
    --------
    >>> r = RooflineExplorer(workloads=["add"], beside="H200 SXM")
    >>> r.beside.points[0].bound_by
    'memory'
    """

    title = "Roofline"
    summary = (
        "How fast work of a given arithmetic intensity can be on this machine, and how fast it is."
    )
    actions: tuple[Action, ...] = (
        Action("run", "Run", "Measure the roofs of the device, then each workload."),
    )

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        self._recordings = recordings.readable()
        # what stands beside, by its controls
        self._known: dict[tuple[Any, ...], tuple[Roofline | None, tuple[Note, ...]]] = {}
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return workloads, number format, size, device, time for each, and the machine beside."""
        here = [(str(d), d.name) for d in reversed(self._devices)]
        names = workloads.names()
        formats = tuple(
            dict.fromkeys(dtype for name in names for dtype in workloads.get(name).dtypes)
        )
        far = [
            (name, f"{recording.environment.device} (recorded)")
            for name, recording in self._recordings.items()
        ]
        sheets = [(part.name, f"{part.name} (data sheet)") for part in _datasheets.PARTS]
        seconds = [
            (s, format_seconds(s).replace(".00", "").replace(".0 ", " "))
            for s in (0.2, 0.5, 1.0, 2.0, 5.0)
        ]
        shown: dict[str, Any] = {"shows_only": True}
        return [
            Several(
                name="workloads",
                label="Workloads",
                options=names,
                default=_FIRST,
                least=1,
                help="The workloads to place under the roofs.",
            ),
            Choice(
                name="dtype",
                label="Number format",
                options=formats,
                default="float32",
                help="The format of the inputs; it selects the roof.",
            ),
            Slider(
                name="size",
                label="Size",
                options=_SIZES,
                default=0.5,
                help="Among the usual sizes of each workload.",
            ),
            Choice(
                name="device",
                label="Measure on",
                options=here,
                help="Its roofs are measured first; on an idle machine this takes about a second.",
            ),
            Slider(
                name="deadline",
                label="Time for each",
                options=seconds,
                default=0.5,
                help="Sampling stops earlier once the 95 % "
                "interval is narrower than 2 % of the median.",
            ),
            Choice(
                name="beside",
                label="Beside it",
                options=[(_NONE, "nothing"), *far, *sheets],
                default=_SHEET,
                help="The roofs of "
                "another machine, with recorded points or, for a data sheet, predicted points.",
                **shown,
            ),
        ]

    # The work.

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Roofline:
        """Measure the roofs, then each workload; the points so far are shown after each of them."""
        progress(0.0, "measuring the roofs")
        found = models.roofline(values["device"], stop=stop)
        # a neighbour spoiled the roofs that this process keeps: try again
        if found.notes and "run" in self.results:
            found = models.roofline(values["device"], refresh=True, stop=stop)
        chosen = list(values["workloads"])
        steps = len(chosen) + 1
        for done, name in enumerate(chosen, start=1):
            progress(done / steps, name)
            try:
                more = (
                    None
                    if stop()
                    else self._one_more(
                        found, name, values, _part_of(progress, done, steps, name), stop
                    )
                )
            except StoppedError:
                more = None
            if more is None:  # what was measured before it stays
                return dataclasses.replace(
                    found, notes=(*found.notes, Note("stopped", f"Stopped before {name}."))
                )
            found = more
            self.publish("run", found)
        return found

    def _one_more(
        self, found: Roofline, name: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Roofline:
        try:
            work = _workload(name, values)
            inputs = work.inputs(values["device"])
            m = timing.measure(
                work.run,
                *inputs,
                device=values["device"],
                deadline=values["deadline"],
                flops=work.flops or None,
                nbytes=work.nbytes,
                label=work.label,
                progress=progress,
                stop=stop,
            )
            top = work.arithmetic_on(values["device"])
            known = any(roof.name == top for roof in found.arithmetic)
            point = found.place_workload(work, m, arithmetic=top if known else None)
        except _LEFT_OUT as error:
            return dataclasses.replace(
                found, notes=(*found.notes, Note("skipped", _named(name, error)))
            )
        notes = tuple(Note(note.code, f"{work.label}: {note.sentence}") for note in m.notes)
        return dataclasses.replace(
            found.with_points([*found.points, point]), notes=(*found.notes, *notes)
        )

    # The other machine.

    @property
    def beside(self) -> Roofline | None:
        """The roofline of the other machine, with its points; None if there is none."""
        return self._beside(self.values)[0]

    def _beside(self, values: Mapping[str, Any]) -> tuple[Roofline | None, tuple[Note, ...]]:
        key = tuple(values[name] for name in ("beside", "workloads", "dtype", "size"))
        if key not in self._known:
            self._known[key] = self._find_beside(values)
        return self._known[key]

    def _find_beside(self, values: Mapping[str, Any]) -> tuple[Roofline | None, tuple[Note, ...]]:
        name = values["beside"]
        if name == _NONE:
            return None, ()
        try:
            roofs = models.roofline(name)
        except (InputError, DeviceError, RecordingError) as error:
            # such as a recording without ceilings
            return None, (Note("skipped", str(error)),)
        points: list[RooflinePoint] = []
        notes: list[Note] = []
        for each in values["workloads"]:
            try:
                point = self._placed(roofs, _workload(each, values), name)
            except InputError as error:
                notes.append(Note("skipped", _named(each, error)))
                continue
            if point is None:
                notes.append(
                    Note("skipped", f"{_workload(each, values).label} on {name}: not recorded yet.")
                )
            else:
                points.append(point)
        return roofs.with_points(points), tuple(notes)

    def _placed(self, roofs: Roofline, work: Workload, name: str) -> RooflinePoint | None:
        """Return a recorded point, None where it was not recorded, or a prediction from a data
        sheet.
        """
        recording = self._recordings.get(name)
        if recording is None:
            return roofs.place_workload(work)
        entry = recording.find("catalogue", workload=work.name, n=work.n, dtype=work.dtype)
        m = measurement(recording, entry) if entry is not None else None
        return None if m is None else roofs.place_workload(work, m)

    # What is shown.

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the roofs with their points as figure and table, and what was left out."""
        live: Roofline | None = self.results.get("run")
        other, notes = self._beside(values)
        there = [one for one in (live, other) if one is not None]
        told = (
            [] if live else ["Press Run to measure on this machine: its roofs, then each workload."]
        )
        beyond = [p.label for one in there for p in one.points if not p.flops]
        if beyond:
            told.append(
                "Not in the figure, since they do no arithmetic: "
                f"{', '.join(dict.fromkeys(beyond))}."
            )
        message = " ".join(told)
        if not there:
            return Drawing(notes=notes, message=message)
        dtype = self._made["run"]["dtype"] if "run" in self._made and live else values["dtype"]
        figure = figures.roofline(there[0], there[1:], arithmetic=dtype)
        headers, rows = _table(there)
        evidence = [e for one in there for e in (one.evidence, *(p.evidence for p in one.points))]
        return Drawing(
            figure,
            headers,
            rows,
            _apart(evidence),
            [*_pointing(live.notes if live else ()), *notes],
            message,
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the loop over the workloads: measure, place, draw."""
        where, name = values["device"], values["beside"]
        sizes = ", ".join(
            f'"{each}": {_size(each, values["size"])}' for each in values["workloads"]
        )
        lines = ["import gpulab as gl", "", f'roof = gl.models.roofline("{where}")', "points = []"]
        lines += [f'far = gl.models.roofline("{name}")', "others = []"] if name != _NONE else []
        lines += [
            f"for name, n in {{{sizes}}}.items():",
            f'    work = gl.workloads.get(name)(n=n, dtype="{values["dtype"]}")',
            f'    m = gl.measure(work.run, *work.inputs("{where}"), device="{where}", '
            f"deadline={values['deadline']})",
            "    points.append(roof.place_workload(work, m))",
        ]
        if name in self._recordings:
            lines.append(
                f'    seen = gl.timing.recorded.recorded(name, n, work.dtype).get("{name}")'
            )
            lines.append("    others += [far.place_workload(work, seen)] if seen else []")
        elif name != _NONE:
            lines.append("    others.append(far.place_workload(work))")
        beside = ", [far.with_points(others)]" if name != _NONE else ""
        lines.append(f"gl.figures.roofline(roof.with_points(points){beside})")
        return "\n".join(lines)


def _pointing(notes: Sequence[Note]) -> list[Note]:
    """Let the notes name the button here instead of an argument: pressed again, Run measures
    disturbed roofs afresh.
    """
    return [
        dataclasses.replace(
            note,
            sentence=note.sentence.replace("measure again with refresh=True", "press Run again"),
        )
        for note in notes
    ]


def _part_of(progress: Progress, done: int, steps: int, name: str) -> Progress:
    """Return the progress of one step among several, told by its name."""
    return lambda fraction, _: progress((done + fraction) / steps, name)


def _named(name: str, error: Exception) -> str:
    """Return an error's sentence under the name of its workload, which many begin with already."""
    words = str(error)
    return words if words.startswith(f"{name}:") else f"{name}: {words}"


def _size(name: str, share: float) -> int:
    """Return the size at a share of a workload's list of usual ones."""
    sizes = workloads.get(name).sizes
    return sizes[round(share * (len(sizes) - 1))]


def _workload(name: str, values: Mapping[str, Any]) -> Workload:
    return workloads.get(name)(n=_size(name, values["size"]), dtype=values["dtype"])


def _table(there: Sequence[Roofline]) -> tuple[list[str], list[list[str | Badge]]]:
    """Return the points of each machine with their badges; of a machine without points its roofs
    are in the picture.
    """
    headers: list[str] = []
    rows: list[list[str | Badge]] = []
    for one in there:
        if one.points:
            named, body = one.with_points(one.points).table()
            headers = ["work", "machine", "evidence", *named[1:]]
            for point, cells in zip(one.points, body, strict=False):
                rows.append(
                    [
                        _without_format(cells[0]),
                        one.device,
                        point.evidence.badge,
                        *_unbadged(cells[1:]),
                    ]
                )
    return headers, rows


def _without_format(label: str) -> str:
    """Return "matmul n=512" of "matmul n=512 float32": all rows share the format, and the column
    that binds names it.
    """
    return " ".join(label.split(" ")[:2])


def _unbadged(cells: Sequence[str]) -> list[str]:
    """Return the cells without the badge in brackets, which has a column of its own."""
    return [
        cell.partition(" (")[0] if cell.endswith(tuple(f"({badge})" for badge in Badge)) else cell
        for cell in cells
    ]


def _apart(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return one evidence of each badge and device: the points of one machine differ only in their
    samples.
    """
    return list({(e.badge, e.device, e.assumptions): e for e in reversed(evidence)}.values())[::-1]
