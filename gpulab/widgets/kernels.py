"""Kernels and their limits: the access of one warp, the occupancy of a launch, the roofline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpulab import devices, figures, models, recordings, timing, workloads
from gpulab.devices import datasheets, diagnosis
from gpulab.errors import (
    DeviceError,
    InputError,
    MeasurementError,
    OutOfMemoryError,
    StoppedError,
)
from gpulab.evidence import Badge, Note
from gpulab.models import ACCESS_KINDS, AccessPattern, Occupancy, Roofline, RooflinePoint
from gpulab.timing.recorded import measurement
from gpulab.units import format_seconds
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Control,
    Drawing,
    Instrument,
    Number,
    Progress,
    Several,
    Slider,
    Stop,
    Values,
    call,
    cell,
    notes_for_button,
    part_of,
    rounded,
)
from gpulab.workloads import Workload


class AccessPatterns(Instrument):
    """Let 32 lanes access an array, and count sectors and bank conflicts.

    ``pattern`` is what ``gl.models.access_pattern`` returned for the controls.

    Examples
    --------
    >>> a = AccessPatterns(stride_elements=32)
    >>> a.pattern.sectors, a.pattern.conflict_ways
    (32, 32)
    >>> print(a.code)
    import gpulab as gl
    <BLANKLINE>
    a = gl.models.access_pattern(32, 0, 4)
    gl.figures.access(a)
    """

    title = "Access patterns"
    summary = (
        "What the 32 lanes of a warp request at once: sectors moved in device memory, and bank "
        "conflicts in shared memory."
    )

    def make_controls(self) -> list[Control]:
        """Return the kind of pattern, stride, offset, element size and active lanes."""
        kinds = [(name, f"{kind.label}: {kind.formula}") for name, kind in ACCESS_KINDS.items()]
        return [
            Choice(
                name="kind",
                label="Lane i takes",
                options=kinds,
                help="The element of each lane, as a kernel would write it.",
            ),
            Slider(
                name="stride_elements",
                label="Stride (elements)",
                # every stride up to beyond a row of 32 banks, then the pitches of usual arrays with
                # and without padding
                options=(*range(41), 48, 63, 64, 65, 96, 127, 128, 129, 256, 257, 512, 1024),
                default=1,
                help="From one lane, pair of lanes or row to the next; with 0 between lanes, all "
                "lanes read one element.",
            ),
            Slider(
                name="offset_elements",
                label="Offset (elements)",
                options=range(33),
                default=0,
                help="Added to each index (in a swizzled tile: the column). Element 0 starts a "
                "sector and a row of banks.",
            ),
            Choice(
                name="element_bytes",
                label="Element",
                options=(
                    (1, "1 byte (int8)"),
                    (2, "2 bytes (float16)"),
                    (4, "4 bytes (float32)"),
                    (8, "8 bytes (float64)"),
                    (16, "16 bytes (float4)"),
                ),
                default=4,
                help="The size of what each lane requests.",
            ),
            Slider(
                name="active_lanes",
                label="Active lanes",
                options=range(33),
                default=32,
                help="The number of lanes that take part, counted from lane 0.",
            ),
        ]

    @property
    def pattern(self) -> AccessPattern:
        """The access pattern of the warp for the present controls."""
        kind, *numbers, lanes = self.values.values()  # in the order of the controls
        return models.access_pattern(*numbers, kind=kind, active_lanes=lanes)

    def draw(self, values: Values) -> Drawing:
        """Return sectors and banks, and their counts compared with the ideal."""
        pattern = self.pattern
        return Drawing.of(pattern, figures.access(pattern), pattern.explanation)

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.models.access_pattern`` and the picture."""
        kind, *numbers, lanes = values.values()
        some: dict[str, object] = {"kind": kind} if kind != "strided" else {}
        some |= {"active_lanes": lanes} if lanes != 32 else {}
        made = call("models.access_pattern", *numbers, **some)
        return cell(f"a = {made}", "gl.figures.access(a)")


_KIB = 1024


class OccupancyExplorer(Instrument):
    """Vary a launch within the limits of an SM.

    ``launch`` is what ``gl.models.occupancy`` returned for the controls.

    Examples
    --------
    >>> o = OccupancyExplorer(threads_per_block=256, registers_per_thread=64,
    ...                       compute_capability="9.0")
    >>> o.launch.ratio, o.launch.limiter
    (0.5, 'registers')
    >>> print(o.code)
    import gpulab as gl
    <BLANKLINE>
    o = gl.models.occupancy(256, 64, 0, "9.0")
    gl.figures.occupancy(o)
    """

    title = "Occupancy"
    summary = "How many warps of a launch are resident on one SM, and which resource limits them."

    def make_controls(self) -> list[Control]:
        """Return block size, registers, shared bytes, compute capability and barriers."""
        gpus = [device for device in devices.available() if device.kind == "cuda"]
        here = diagnosis.accelerator(gpus[0]).compute_capability if gpus else None
        known = models.compute_capabilities()
        return [
            Number(
                name="threads_per_block",
                label="Threads of a block",
                default=256,
                minimum=1,
                maximum=1024,
                integer=True,
                suggestions=range(32, 1025, 32),
                help="Arrow keys step by whole warps; a partly filled warp counts as a whole one.",
            ),
            Slider(
                name="registers_per_thread",
                label="Registers of a thread",
                options=range(256),
                default=32,
                help="As the compiler reports them; they are allocated to each warp of 32 threads "
                "in units of 256.",
            ),
            Number(
                name="shared_bytes_per_block",
                label="Shared memory of a block",
                unit="bytes",
                default=0,
                minimum=0,
                maximum=256 * _KIB,
                integer=True,
                suggestions=range(0, 256 * _KIB + 1, _KIB),
                help="Static and dynamic together, without what the driver "
                "adds from compute capability 8.0 on. Arrow keys step by KiB.",
            ),
            Choice(
                name="compute_capability",
                label="Compute capability",
                options=[(c, _named(c)) for c in known],
                default=here if here in known else "9.0",
                help="The generation of the GPU decides what an SM holds.",
            ),
            Slider(
                name="barriers_per_block",
                label="Barriers of a block",
                options=range(17),
                default=1,
                help="__syncthreads is one. Barriers can be the limit from compute capability 9.0 "
                "on.",
            ),
        ]

    @property
    def launch(self) -> Occupancy:
        """The occupancy of the launch that the controls describe."""
        *numbers, barriers = self.values.values()  # in the order of the controls
        return models.occupancy(*numbers, barriers_per_block=barriers)

    def draw(self, values: Values) -> Drawing:
        """Return the curves with the launch on them, the blocks that each resource allows, and
        why.
        """
        launch = self.launch
        drawn = Drawing.of(launch, figures.occupancy(launch), launch.explanation)
        facts = [row for row in drawn.rows if row[0] != "why"]  # shown above the table
        return dataclasses.replace(drawn, rows=facts)

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.models.occupancy`` and the picture."""
        *numbers, barriers = values.values()
        some = {"barriers_per_block": barriers} if barriers != 1 else {}
        made = call("models.occupancy", *numbers, **some)
        return cell(f"o = {made}", "gl.figures.occupancy(o)")


def _named(capability: str) -> str:
    """Return a compute capability with a product of it."""
    names = [part.name for part in datasheets.parts() if part.compute_capability == capability]
    return f"{capability}, such as {names[0]}" if names else capability


# The roofline.

_NONE = "none"
# If one workload fails with one of these errors, the others still run. MPS lacks some operators,
# which shows only at their first call.
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

    def make_controls(self) -> list[Control]:
        """Return workloads, number format, size, device, time for each, and the machine beside."""
        here = [(str(d), d.name) for d in reversed(devices.available())]
        names = workloads.names()
        formats = dict.fromkeys(dtype for name in names for dtype in workloads.get(name).dtypes)
        far = [
            (name, f"{recording.environment.device} (recorded)")
            for name, recording in recordings.readable().items()
        ]
        sheets = [(part.name, f"{part.name} (data sheet)") for part in datasheets.parts()]
        seconds = [(s, rounded(format_seconds(s))) for s in (0.2, 0.5, 1.0, 2.0, 5.0)]
        return [
            Several(
                name="workloads",
                label="Workloads",
                options=names,
                default=("matmul", "softmax", "add", "gelu", "fft", "conv2d"),
                least=1,
                help="The workloads to place under the roofs.",
            ),
            Choice(
                name="dtype",
                label="Number format",
                options=tuple(formats),
                default="float32",
                help="The format of the inputs; it selects the roof.",
            ),
            Slider(
                name="size",
                label="Size",
                options=(
                    (0.0, "smallest"),
                    (0.25, "small"),
                    (0.5, "medium"),
                    (0.75, "large"),
                    (1.0, "largest"),
                ),
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
                help="Sampling stops earlier once the 95 % interval is narrower than 2 % of the "
                "median.",
            ),
            Choice(
                name="beside",
                label="Beside it",
                options=[(_NONE, "nothing"), *far, *sheets],
                default="H200 SXM",
                help="The roofs of another machine, with recorded points or, for a data sheet, "
                "predicted points.",
                shows_only=True,
            ),
        ]

    # The work.

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Roofline:
        """Measure the roofs, then each workload; the points so far are shown after each of them."""
        progress(0.0, "measuring the roofs")
        # measured again if the button is pressed again: another process may have disturbed them
        found = models.roofline(values["device"], refresh="run" in self.results, stop=stop)
        chosen = values["workloads"]
        for done, name in enumerate(chosen, start=1):
            part = part_of(progress, done, len(chosen) + 1, name)
            try:
                found = self._one_more(found, name, values, part, stop)
            except StoppedError:  # the points measured before are kept
                return _noted(found, Note("stopped", f"Stopped before {name} was measured."))
            self.publish("run", found)
        return found

    def _one_more(
        self, found: Roofline, name: str, values: Values, progress: Progress, stop: Stop
    ) -> Roofline:
        try:
            work = _workload(name, values)
            m = timing.measure(
                work.run,
                *work.inputs(values["device"]),
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
            return _noted(found, _skipped(name, error))
        notes = (Note(note.code, f"{work.label}: {note.sentence}") for note in m.notes)
        return _noted(found.with_points([*found.points, point]), *notes)

    # The other machine.

    @property
    def beside(self) -> Roofline | None:
        """The roofline of the other machine, with its points; None if there is none."""
        return self._beside(self.values)[0]

    def _beside(self, values: Values) -> tuple[Roofline | None, list[Note]]:
        """Return the other machine with its points, and notes on what was left out."""
        name, points, notes = values["beside"], list[RooflinePoint](), list[Note]()
        if name == _NONE:
            return None, notes
        try:
            roofs = models.roofline(name)
        except InputError as error:  # a recording without ceilings
            return None, [Note("skipped", str(error))]
        recording = recordings.readable().get(name)  # a data sheet has predictions instead
        for each in values["workloads"]:
            try:
                work = _workload(each, values)
                same = {"workload": each, "n": work.n, "dtype": work.dtype}
                entry = recording.find("catalogue", **same) if recording is not None else None
                seen = measurement(recording, entry) if recording and entry else None
                if recording is not None and seen is None:
                    notes.append(Note("skipped", f"{work.label} on {name}: not recorded yet."))
                else:
                    points.append(roofs.place_workload(work, seen))
            except InputError as error:
                notes.append(_skipped(each, error))
        return roofs.with_points(points), notes

    # What is shown.

    def draw(self, values: Values) -> Drawing:
        """Return the roofs with their points as figure and table, and what was left out."""
        live: Roofline | None = self.results.get("run")
        other, notes = self._beside(values)
        there = [one for one in (live, other) if one is not None]
        start = "Press Run to measure on this machine: its roofs, then each workload."
        beyond = ", ".join(
            dict.fromkeys(p.label for one in there for p in one.points if not p.flops)
        )
        missing = f"Not in the figure, since they do no arithmetic: {beyond}."
        message = " ".join([*([] if live else [start]), *([missing] if beyond else [])])
        if not there:
            return Drawing(notes=notes, message=message)
        headers, rows = _table(there)
        # one entry per badge and device: the points of one machine differ only in their samples
        evidence = [e for one in there for e in (one.evidence, *(p.evidence for p in one.points))]
        several = {(e.badge, e.device, e.assumptions): e for e in reversed(evidence)}
        return Drawing(
            figures.roofline(
                there[0], there[1:], arithmetic=self._made.get("run", values)["dtype"]
            ),
            headers,
            rows,
            list(several.values())[::-1],
            [*notes_for_button(live.notes if live else ()), *notes],
            message,
        )

    def code_for(self, values: Values) -> str:
        """Return the loop over the workloads: measure, place, draw."""
        where, name = values["device"], values["beside"]
        sizes = ", ".join(
            f'"{each}": {_size(each, values["size"])}'
            for each in values["workloads"]
            if values["dtype"] in workloads.get(each).dtypes  # the others are skipped, with a note
        )
        others = ["    others.append(far.place_workload(work))"]
        if name in recordings.readable():
            others = [
                f'    seen = gl.timing.recorded.recorded(name, n, work.dtype).get("{name}")',
                "    others += [far.place_workload(work, seen)] if seen else []",
            ]
        is_alone = name == _NONE
        return cell(
            f'roof = gl.models.roofline("{where}")',
            "points = []",
            *([] if is_alone else [f'far = gl.models.roofline("{name}")', "others = []"]),
            f"for name, n in {{{sizes}}}.items():",
            f'    work = gl.workloads.get(name)(n=n, dtype="{values["dtype"]}")',
            f'    m = gl.measure(work.run, *work.inputs("{where}"), device="{where}", '
            f"deadline={values['deadline']})",
            "    points.append(roof.place_workload(work, m))",
            *([] if is_alone else others),
            "gl.figures.roofline(roof.with_points(points), "
            f"{'' if is_alone else '[far.with_points(others)], '}"
            f'arithmetic="{values["dtype"]}")',
        )


def _noted(roofs: Roofline, *notes: Note) -> Roofline:
    return dataclasses.replace(roofs, notes=(*roofs.notes, *notes))


def _skipped(name: str, error: Exception) -> Note:
    """Return a note with an error's sentence, which begins with the workload's name."""
    words = str(error)
    return Note("skipped", words if words.startswith(f"{name}:") else f"{name}: {words}")


def _size(name: str, share: float) -> int:
    """Return a usual size of a workload: ``share`` is its place in the list, 0 first to 1 last."""
    sizes = workloads.get(name).sizes
    return sizes[round(share * (len(sizes) - 1))]


def _workload(name: str, values: Values) -> Workload:
    return workloads.get(name)(n=_size(name, values["size"]), dtype=values["dtype"])


def _table(there: Sequence[Roofline]) -> tuple[list[str], list[list[str | Badge]]]:
    """Return the points of each machine with their badges. A machine without points has no row; its
    roofs are in the picture.
    """
    headers: list[str] = []
    rows: list[list[str | Badge]] = []
    for one in (one for one in there if one.points):
        (_, *named), body = one.table()
        headers = ["work", "machine", "evidence", *named]
        for point, (label, *cells) in zip(one.points, body, strict=False):
            # Shorten "matmul n=512 float32" to "matmul n=512": all rows share the format, which the
            # column of the limiting roof names. The badge in brackets has a column of its own.
            work, badge = " ".join(label.split(" ")[:2]), point.evidence.badge
            texts = [text.removesuffix(f" ({badge})") for text in cells]
            rows.append([work, one.device, badge, *texts])
    return headers, rows
