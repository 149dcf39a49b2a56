"""A machine: what it has, one piece of work on each of its devices, and copies between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulab import devices, figures, recordings, timing, transfer, workloads
from gpulab.devices import Machine
from gpulab.errors import InputError, RecordingError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.timing import Comparison, ComparisonRow
from gpulab.timing.recorded import recorded
from gpulab.transfer import AlphaBeta, BreakEven, Link, Overlap, Sweep
from gpulab.transfer.copies import SERIES_WORDS
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_number,
    format_seconds,
    plural,
)
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Code,
    Control,
    Drawing,
    Instrument,
    Number,
    Progress,
    Several,
    Slider,
    Stop,
    Switch,
    Values,
    call,
    cell,
    pairs,
    rounded,
)


class MachineCard(Instrument):
    """Show processors, memories, accelerators, libraries, and problems with their remedies.

    ``result`` is the ``Machine`` that ``gl.machine`` returned; the card calls it when it is made,
    and again at each Refresh.
    """

    title = "This machine"
    summary = "What the course can use here, what is wrong, and how to fix it."
    actions: tuple[Action, ...] = (
        Action("refresh", "Refresh", "Look at the machine again.", measures=False),
    )

    def __init__(self, **values: Any) -> None:
        self._first = devices.machine()
        super().__init__(**values)
        self.publish("refresh", self._first)

    def make_controls(self) -> list[Control]:
        """Return the one switch."""
        return [
            Switch(
                name="problems_only",
                label="Only what needs fixing",
                shows_only=True,
                help="Hide what works. On a machine without problems, the table is then empty.",
            )
        ]

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Machine:
        """Run ``gl.machine``."""
        return devices.machine()

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.machine``."""
        return cell(call("machine"))

    def draw(self, values: Values) -> Drawing:
        """Return the table with the problems first, and the sizes of the memories."""
        m: Machine = self.results.get("refresh", self._first)
        _, rows = m.table()
        problems = [row for row in rows if row[0].startswith(("error: ", "warning: "))]
        others = [row for row in rows if row not in problems]
        many, rows_of = plural(len(problems), "thing"), "row" if len(problems) == 1 else "rows"
        only = values["problems_only"]
        return Drawing(
            None if only else figures.machine(m),
            ("part", "result"),
            problems if only else [*problems, *others],
            [m.evidence],
            message=f"{many} to fix: the first {rows_of} of the table."
            if problems
            else "Nothing to fix.",
        )


class CompareTimings(Instrument):
    """Time one workload on the devices of this machine.

    ``result`` is the ``Comparison`` that ``gl.compare`` returned.

    Examples
    --------
    >>> t = CompareTimings(workload="matmul", n=256)
    >>> print(t.code)
    import gpulab as gl
    <BLANKLINE>
    c = gl.compare("matmul", n=256, dtype="float32", deadline=2.0)
    c
    """

    title = "Compare timings"
    summary = (
        "The same work on each device, timed until the call returns, until the device has "
        "finished, and with both copies."
    )
    actions: tuple[Action, ...] = (
        Action("run", "Run", "Measure the work on the devices in turn."),
    )

    def make_controls(self) -> list[Control]:
        """Return workload, size, dtype, devices, copies, time and the recorded machines."""
        spec = workloads.get(self.values.get("workload", "matmul"))
        here = tuple(map(str, devices.available()))
        several = Several(
            name="devices",
            label="Devices",
            options=here,
            default=here,
            least=1,
            help="The first is the baseline.",
        )
        return [
            Choice(
                name="workload",
                label="Workload",
                options=workloads.names(),
                default="matmul",
                help="What is computed.",
            ),
            Number(
                name="n",
                label="Size n",
                default=spec.sizes[len(spec.sizes) // 2],
                minimum=1,
                maximum=2**40,
                integer=True,
                suggestions=spec.sizes,
                help=f"{spec.summary[:1].upper()}{spec.summary[1:]}; n: {spec.size_meaning}. Arrow "
                "keys step through the usual sizes.",
            ),
            Choice(
                name="dtype",
                label="Number format",
                options=spec.dtypes,
                default="float32",
                help="The format of the inputs.",
            ),
            *([several] if len(here) > 1 else []),
            Slider(
                name="deadline",
                label="Time for each device",
                options=[(s, rounded(format_seconds(s))) for s in (0.5, 1.0, 2.0, 5.0, 10.0)],
                default=2.0,
                help="Sampling stops earlier once the 95 % interval is narrower than 2 % of the "
                "median.",
            ),
            Switch(
                name="transfer",
                label="With copies",
                help="Also time the copy of the inputs to the device and of the result back.",
            ),
            Switch(
                name="recorded",
                label="Recorded machines",
                default=True,
                shows_only=True,
                help="Show what named machines recorded for the same work.",
            ),
        ]

    def changed(self, name: str) -> None:
        """Give size and dtype the options of the new workload; a size that it does not offer
        becomes its default size.
        """
        if name == "workload":
            self.rebuild("n", "dtype")
            spec = workloads.get(self.values["workload"])
            if self.values["n"] not in spec.sizes:
                self.values["n"] = self.controls["n"].initial

    def _arguments(self, values: Values) -> dict[str, Any]:
        """Return what ``gl.compare`` takes after the workload."""
        here = list(map(str, devices.available()))
        chosen = list(values.get("devices", here))
        return {
            "n": values["n"],
            "dtype": values["dtype"],
            **({"devices": chosen} if chosen != here else {}),
            **({"transfer": True} if values["transfer"] else {}),
            "deadline": values["deadline"],
        }

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Comparison:
        """Run ``gl.compare``."""
        return timing.compare(
            values["workload"], progress=progress, stop=stop, **self._arguments(values)
        )

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.compare``."""
        return cell(f"c = {call('compare', values['workload'], **self._arguments(values))}", "c")

    def draw(self, values: Values) -> Drawing:
        """Return the newest comparison with the recorded machines beside it."""
        c: Comparison | None = self.results.get("run")
        made = self._made.get("run", values)
        same = (made["workload"], made["n"], made["dtype"])
        others, missing = _recorded_rows(*same) if values["recorded"] else ([], "")
        rows = [*(c.rows if c else ()), *others]
        times = [row.measurement for row in rows]
        verdict = _verdict(c) if c else "Press Run to measure on this machine."
        message = " ".join(filter(None, (verdict, missing)))
        if not rows:
            return Drawing(message=message)
        figure = figures.comparison(c, recorded=others) if c else figures.comparison(_only(rows))
        evidence, notes = [m.evidence for m in times], [*(c.notes if c else ()), *_notes(rows)]
        return Drawing(figure, *_table(rows), evidence, notes, message)


def _only(rows: Sequence[ComparisonRow]) -> Comparison:
    """Return rows without a baseline as a comparison."""
    first = rows[0].measurement
    return Comparison(first.label, tuple(rows), None, None, None, None, (), first.evidence)


def _recorded_rows(workload: str, n: int, dtype: str) -> tuple[list[ComparisonRow], str]:
    """Return what other machines recorded, and a sentence if there is nothing."""
    try:
        found = recorded(workload, n, dtype)
    except RecordingError as error:
        return [], f"Other machines: {error}"
    names = pairs([(name, m.environment.device) for name, m in found.items()])
    rows = [ComparisonRow(text, found[name], None, None, None) for name, text in names]
    missing = "Other machines: not recorded yet for this workload, size and dtype."
    return rows, "" if rows else missing


def _table(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str | Badge]]]:
    """Return the comparison's own table with the badge of each row; the notes have their own place
    below.
    """
    (first, *headers, _), body = _only(rows).table()
    table: list[list[str | Badge]] = []
    for row, (name, *texts, _) in zip(rows, body, strict=True):
        badge = row.measurement.evidence.badge
        if badge is not Badge.MEASURED:
            texts[headers.index("speed-up")] = "not compared"
        table.append([name, badge, *texts])
    return [first, "evidence", *headers], table


def _notes(rows: Sequence[ComparisonRow]) -> list[Note]:
    """Return the notes of all rows, each with the row's name. A recorded row's note states only the
    symptom: its advice is of no use, because the row cannot be measured again here.
    """
    return [
        Note(
            n.code,
            f"{row.name}: {n.sentence}"
            if row.measurement.evidence.badge is Badge.MEASURED
            else f"{row.name}: as recorded, {n.symptom}",
        )
        for row in rows
        for n in row.measurement.notes
    ]


def _verdict(c: Comparison) -> str:
    """Return the outcome of the comparison, first whether the results agree."""
    agreement = ""
    if c.max_relative_difference is not None and c.tolerance is not None:
        agrees = c.max_relative_difference <= c.tolerance
        agreement = (
            f"The results {'agree' if agrees else 'disagree'}: the largest relative difference is "
            f"{c.max_relative_difference:.2g}, {'within' if agrees else 'beyond'} the "
            f"tolerance {c.tolerance:.2g}. "
        )
    if c.speedup is None:
        alone = (
            "Only one device was measured, so there is no speed-up."
            if len(c.rows) == 1
            else "No speed-up is reported."
        )
        return f"{agreement}{alone}"
    ends = " to ".join(map(format_number, c.speedup_interval or ()))
    interval = f" (95 % interval {ends})" if ends else ""
    return (
        f"{agreement}The fastest other device has a speed-up of {format_number(c.speedup)}x over "
        f"{c.rows[0].name}{interval}."
    )


# Copies.

_MIB = 2**20
_NONE = "none"  # the choice of no recorded machine
_NUMBERS = ("latency_seconds", "bandwidth_bytes_per_second")  # of the modelled link
_ARRANGEMENTS = {"serial": "one after the other", "chunked": "in overlapping chunks"}


class TransferExplorer(Instrument):
    """Measure copies over sizes, fit them, and see how a link with another latency and bandwidth
    would perform.

    ``results["sweep"]`` is what ``gl.transfer.sweep`` returned, ``results["break_even"]`` and
    ``results["overlap"]`` likewise; ``link`` is the modelled link.

    Examples
    --------
    >>> t = TransferExplorer(link="pcie3-x16", view="overlap", chunks=4)
    >>> print(t.code)
    import gpulab as gl
    <BLANKLINE>
    link = gl.transfer.link("pcie3-x16")
    o = gl.transfer.overlap(67108864, chunks=4, link=link)
    o
    """

    title = "Transfers"
    summary = (
        "The time of copies between host and device from 1 KiB to 1 GiB, when they pay off, and "
        "when they can be hidden."
    )
    actions: tuple[Action, ...] = (
        Action("sweep", "Sweep", "Measure copies of many sizes."),
        Action(
            "break_even",
            "Find break-even",
            "Find the size above which the accelerator is faster, with both copies counted.",
        ),
        Action(
            "overlap",
            "Measure overlap",
            "Copy in chunks, and compute on each chunk while the next one is copied.",
        ),
    )

    def make_controls(self) -> list[Control]:
        """Return the view, then the controls of each view; the modelled link serves all three."""
        here = [
            (str(d), f"{d.name}{': host copy' if d.is_cpu else ''}")
            for d in reversed(devices.available())
        ]
        machines = [(_NONE, "none"), *recordings.readable()]
        seconds = [(s, rounded(format_seconds(s))) for s in (2.0, 5.0, 10.0, 20.0, 60.0)]
        # the series of all sweeps that are shown, those of the live sweep first
        series = [
            (f"{where} {' '.join(one)}", f"{name}: {_series_words(*one)}")
            for where, (s, name) in self._sweeps().items()
            for one in s.series
        ]
        against = [
            (str(d), f"{d.name} (this machine)") for d in devices.available() if not d.is_cpu
        ]
        against += [
            (f"recording {name}", f"{recording.environment.device} (recorded)")
            for name, recording in recordings.of_accelerators().items()
        ]
        sizes = [(n, rounded(format_bytes(n))) for n in (_MIB * 2**k for k in range(9))]
        default = transfer.link("pcie4-x16")
        # for controls that decide the result of a view's action, and for those that only show it
        own: dict[str, dict[str, Any]] = {
            view: {"views": (view,), "for_actions": (view,)}
            for view in ("sweep", "break_even", "overlap")
        }
        shown: dict[str, dict[str, Any]] = {
            view: {"views": (view,), "shows_only": True} for view in ("sweep", "overlap")
        }
        modelled: dict[str, Any] = {"shows_only": True, "when": _uses_link}
        return [
            Choice(
                name="view",
                label="Show",
                options=(
                    ("sweep", "sweep and fit"),
                    ("break_even", "break-even"),
                    ("overlap", "overlap"),
                ),
                radio=True,
                shows_only=True,
                help="Each view has its own button.",
            ),
            Choice(
                name="device",
                label="Measure",
                options=here,
                help="Copies to and from a device, or within host memory.",
                **own["sweep"],
            ),
            Slider(
                name="deadline",
                label="Time for the sweep",
                options=seconds,
                default=5.0,
                help="More time gives more precise points.",
                **own["sweep"],
            ),
            Choice(
                name="recorded",
                label="Recorded machine",
                options=machines,
                help="Measurements of a named machine, shown for comparison.",
                views=("sweep", "overlap"),
                shows_only=True,
            ),
            Choice(
                name="quantity",
                label="Draw",
                options=(("seconds", "time"), ("rate", "rate")),
                radio=True,
                help="Time over size shows the latency, rate over size shows the bandwidth.",
                **shown["sweep"],
            ),
            Choice(
                name="series",
                label="Fitted series",
                options=series or ((_NONE, "none yet"),),
                help="The series whose time is fitted as latency + size / bandwidth, with the 95 % "
                "band for a new measurement.",
                **shown["sweep"],
            ),
            Number(
                name="predict_mebibytes",
                label="Predict a copy of",
                unit="MiB",
                default=3.0,
                minimum=2**-20,
                maximum=2**20,
                suggestions=tuple(float(2**k) for k in range(-10, 11)),
                help="Its time is predicted by the fit and by the modelled link, where shown.",
                **shown["sweep"],
            ),
            Switch(
                name="link_shown",
                label="Show the modelled link",
                default=True,
                help="Draw the modelled link as a dashed line.",
                **shown["sweep"],
            ),
            Choice(
                name="workload",
                label="Workload",
                options=workloads.names(),
                default="matmul",
                help="Computed at its usual sizes.",
                **own["break_even"],
            ),
            Choice(
                name="against",
                label="CPU against",
                options=[*against, ("model", "H200 over the modelled link")],
                help="The accelerator; the CPU is measured live.",
                **own["break_even"],
            ),
            Slider(
                name="search_deadline",
                label="Time for the search",
                options=[(float(s), f"{s} s") for s in (5, 10, 20, 40)],
                default=10.0,
                help="Sizes whose calls would take longer are left out and listed.",
                **own["break_even"],
            ),
            Choice(
                name="way",
                label="Timeline",
                options=(("model", "modelled link"), ("here", "measured here")),
                default="model" if len(devices.available()) == 1 else "here",
                radio=True,
                help="The modelled timeline is updated with "
                "each control; the measured one is made when you press its button.",
                **shown["overlap"],
            ),
            Slider(
                name="nbytes",
                label="Total bytes",
                options=sizes,
                default=64 * _MIB,
                help="All bytes are copied to the device once, and computed on.",
                **own["overlap"],
            ),
            Slider(
                name="chunks",
                label="Chunks",
                options=[2**k for k in range(8)],
                default=8,
                help="More chunks hide more, until the latency of each copy costs more than it "
                "hides.",
                **own["overlap"],
            ),
            Slider(
                name="compute_ratio",
                label="Modelled compute / copy",
                options=(0.25, 0.5, 1.0, 2.0, 4.0),
                default=1.0,
                help="The time of the modelled compute relative to one copy of all bytes.",
                when=_uses_link,
                **shown["overlap"],
            ),
            Choice(
                name="link",
                label="Modelled link",
                options=transfer.link_names(),
                default=default.name,
                help="Sets latency and bandwidth to those published for such a link.",
                **modelled,
            ),
            Slider(
                name="latency_seconds",
                label="Its latency",
                options=[
                    (s, rounded(format_seconds(s)))
                    for s in (k / 1e6 for k in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500))
                ],
                default=default.latency_seconds,
                help="The time of a copy of zero bytes.",
                **modelled,
            ),
            Slider(
                name="bandwidth_bytes_per_second",
                label="Its bandwidth",
                options=[
                    (r, f"{r / 1e9:g} GB/s")
                    for r in (
                        k * 1e9 for k in (1, 2, 4, 8, 12.35, 16, 26, 32, 53, 64, 128, 225, 450, 900)
                    )
                ],
                default=default.bandwidth_bytes_per_second,
                help="The rate that large copies approach.",
                **modelled,
            ),
        ]

    # How controls change each other.

    def changed(self, name: str) -> None:
        """Set latency and bandwidth to those of a newly chosen link, and offer the series of the
        machines shown.
        """
        if name == "link":
            preset = transfer.link(self.values["link"])
            self.values.update({number: getattr(preset, number) for number in _NUMBERS})
        if name == "recorded":
            self.rebuild("series")

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)
        if action == "overlap":
            self.turn(action, way="here")
        self.rebuild("series")

    # What is shown.

    @property
    def link(self) -> Link:
        """The modelled link that the controls describe."""
        return transfer.link(**_link_arguments(self.values))

    def _sweeps(self) -> dict[str, tuple[Sweep, str]]:
        """Return the sweep measured here and that of the chosen recorded machine, as far as they
        exist, each with its name.
        """
        both = {
            "live": (self.results.get("sweep"), "here"),
            "recorded": (_recorded_sweep(self.values), self.values.get("recorded", _NONE)),
        }
        return {key: (s, name) for key, (s, name) in both.items() if s is not None}

    def work(
        self, action: str, values: Values, progress: Progress, stop: Stop
    ) -> Sweep | BreakEven | Overlap:
        """Run ``gl.transfer.sweep``, ``break_even`` or ``overlap``."""
        if action == "break_even":
            link = transfer.link(**_link_arguments(values))
            arguments = _break_even_arguments(values, link)
            return transfer.break_even(progress=progress, stop=stop, **arguments)
        if action == "overlap":
            return transfer.overlap(
                values["nbytes"], chunks=values["chunks"], progress=progress, stop=stop
            )
        return transfer.sweep(
            values["device"], deadline=values["deadline"], progress=progress, stop=stop
        )

    def draw(self, values: Values) -> Drawing:
        """Return the sweep with its fit, the break-even, or the timeline."""
        if values["view"] == "overlap":
            return self._draw_overlap(values)
        if values["view"] == "sweep":
            return self._draw_sweep(values)
        b: BreakEven | None = self.results.get("break_even")
        if b is None:
            return Drawing(
                message="Press Find break-even: it measures the workload at its usual sizes on "
                "this machine."
            )
        figure = figures.break_even(b) if b.rows else None
        evidence = [e for e in (b.host_evidence, b.evidence) if e is not None]
        made = self._made["break_even"]
        moved = any(made[name] != values[name] for name in ("link", *_NUMBERS))
        is_stale = self.is_stale("break_even") or (made["against"] == "model" and moved)
        return Drawing(figure, *b.table(), evidence, b.notes, b.sentence, is_stale)

    def _draw_sweep(self, values: Values) -> Drawing:
        sweeps, link, name = self._sweeps(), self.link, values["recorded"]
        links = [link] if values["link_shown"] else []
        where, *series = values["series"].split(" ")
        fit, no_fit = None, ""
        try:
            fit = sweeps[where][0].fit(*series) if where in sweeps else None
        except InputError as error:  # a sweep that was stopped early has too few sizes
            no_fit = str(error)
        nbytes = float(values["predict_mebibytes"]) * _MIB
        missing = name != _NONE and "recorded" not in sweeps
        words = [
            *([] if self.results.get("sweep") else ["Press Sweep to measure on this machine."]),
            *([f"Transfers of {name}: not recorded yet."] if missing else []),
            *([f"No fit: {no_fit}"] if no_fit else []),
            *(_fit_words(fit, nbytes) if fit else []),
            *(
                f"The modelled link {each.name} takes {format_seconds(each.seconds(nbytes))} for "
                f"{format_bytes(nbytes)}."
                for each in links
            ),
        ]
        message = " ".join(words)
        if not sweeps and not links:
            return Drawing(message=message)
        shown = [s for s, _ in sweeps.values()]
        figure = figures.sweep(
            shown[0] if shown else None,
            fit,
            values["quantity"],
            shown[1:],
            links=links,
            at_bytes=nbytes if fit else None,
        )
        return Drawing(
            figure,
            *_sweep_table(list(sweeps.values()), links, values["quantity"]),
            [*(s.evidence for s in shown), *(link.evidence for link in links)],
            [note for s in shown for note in s.notes],
            message,
        )

    def _draw_overlap(self, values: Values) -> Drawing:
        o: Overlap | None = self.results.get("overlap")
        if values["way"] == "model":
            link, nbytes = self.link, values["nbytes"]
            o = transfer.overlap(
                nbytes,
                chunks=values["chunks"],
                link=link,
                compute_seconds=values["compute_ratio"] * link.seconds(nbytes),
            )
        if o is None:
            return Drawing(
                message="Press Measure overlap: on this machine, it copies and computes in "
                "overlapping chunks, and one after the other."
            )
        codes = {note.code for note in o.notes}
        gains = (
            ("more than is possible, so no gain is reported", "implausible" in codes),
            ("no overlap happened", "no-overlap" in codes and o.chunks > 1),
            (f"{o.ratio_text} of the gain that is possible", round(100 * o.ratio) > 0),
            ("nothing was gained", True),
        )
        gain = next(words for words, holds in gains if holds)
        pieces = plural(o.chunks, "chunk")
        message = (
            f"Copy and compute take {format_seconds(o.seconds)} in {pieces}, and "
            f"{format_seconds(o.serial_seconds)} one after the other: {gain}."
        )
        far, words = _recorded_overlap(values["recorded"], o)
        evidence = [o.evidence, *([recordings.load(values["recorded"]).evidence()] if far else [])]
        return Drawing(
            figures.overlap(o),
            (f"{format_bytes(o.nbytes)} in {pieces}", "time"),
            [*o.table()[1], *far],
            evidence,
            o.notes,
            f"{message} {words}".strip(),
            is_stale=False if values["way"] == "model" else None,
        )

    # The code.

    def code_for(self, values: Values) -> str:
        """Return the calls of ``gl.transfer`` behind the view."""
        arguments = {
            name: value if name == "name" else Code(f"{value:g}")
            for name, value in _link_arguments(values).items()
        }
        link = f"link = {call('transfer.link', arguments.pop('name'), **arguments)}"
        if values["view"] == "break_even":
            arguments = _break_even_arguments(values, Code("link"))
            made = call("transfer.break_even", arguments.pop("workload"), **arguments)
            return cell(*([link] if "link" in arguments else []), f"b = {made}", "b")
        if values["view"] == "sweep":
            return cell(*self._sweep_code(values, link))
        nbytes, arguments, lines = values["nbytes"], {"chunks": values["chunks"]}, []
        if values["way"] == "model":
            lines, arguments["link"] = [link], Code("link")
            ratio = Code(f"{values['compute_ratio']:g} * link.seconds({nbytes})")
            arguments |= {"compute_seconds": ratio} if values["compute_ratio"] != 1 else {}
        lines += [f"o = {call('transfer.overlap', nbytes, **arguments)}", "o"]
        if values["recorded"] != _NONE:
            lines.append(f'{call("recordings.load", values["recorded"])}.select("overlap")')
        return cell(*lines)

    def _sweep_code(self, values: Values, link: str) -> list[str]:
        where, *series = values["series"].split(" ")
        chosen = ", ".join(f'"{part}"' for part in series) if len(series) == 2 else ""
        # with all digits, as the field shows it; the six of "g" are too few
        mebibytes = self.controls["predict_mebibytes"].raw(values["predict_mebibytes"])
        recording = Code(call("recordings.load", values["recorded"]))
        far = [f"far = {call('transfer.recorded_sweep', recording)}"]
        rate, beside = values["quantity"] == "rate", _recorded_sweep(values) is not None
        parts = {
            'quantity="rate"': rate,
            "beside=[far]": beside,
            "links=[link]": values["link_shown"],
        }
        drawn = ", ".join(["s", "fit", *(part for part, there in parts.items() if there)])
        return [
            f"s = {call('transfer.sweep', values['device'], deadline=values['deadline'])}",
            *(far if beside else []),
            f"fit = {'far' if where == 'recorded' else 's'}.fit({chosen})",
            f"low, expected, high = fit.predict({mebibytes} * 2**20)",
            *([link] if values["link_shown"] else []),
            f"gl.figures.sweep({drawn})",
        ]


def _uses_link(values: Values) -> bool:
    """Return whether the view draws or uses the modelled link."""
    used = {"sweep": values["link_shown"], "break_even": values["against"] == "model"}
    return bool(used.get(values["view"], values["way"] == "model"))


def _recorded_sweep(values: Values) -> Sweep | None:
    name = values.get("recorded", _NONE)
    return None if name == _NONE else transfer.recorded_sweep(recordings.load(name))


def _link_arguments(values: Values) -> dict[str, Any]:
    """Return the arguments of ``gl.transfer.link``: a name, and only those numbers that differ from
    the named link's own.
    """
    name = values["link"]
    preset = transfer.link(name)
    own = {n: values[n] for n in _NUMBERS if values[n] != getattr(preset, n)}
    return {"name": name, **own}


def _break_even_arguments(values: Values, link: Any) -> dict[str, Any]:
    """Return what ``gl.transfer.break_even`` takes."""
    kind, _, recording = values["against"].partition(" ")
    others = {
        "model": {"link": link, "processor": "nvidia-h200"},
        "recording": {"recording": recording},
    }
    other = others.get(kind, {"device": values["against"]})
    return {"workload": values["workload"], **other, "deadline": values["search_deadline"]}


def _series_words(direction: str, memory: str) -> str:
    return f"{SERIES_WORDS.get(direction, direction)}, {memory}"


def _recorded_overlap(name: str, o: Overlap) -> tuple[list[tuple[str, str]], str]:
    """Return the rows of the chosen machine for these bytes and chunks, and a sentence if it has
    none.
    """
    if name == _NONE:
        return [], ""
    recording = recordings.load(name)
    times = {
        (int(e.params["nbytes"]), int(e.params["chunks"]), str(e.params["arrangement"])): e.timing
        for e in recording.select("overlap")
        if e.timing is not None
    }
    both = [times.get((o.nbytes, o.chunks, arrangement)) for arrangement in _ARRANGEMENTS]
    if all(both):
        return [
            (f"{Badge.RECORDED} on {name}: {how}", format_seconds(timing.median_seconds))
            for how, timing in zip(_ARRANGEMENTS.values(), both, strict=True)
            if timing
        ], ""
    if not times:
        return [], f"Overlap on {name}: not recorded yet."
    sizes = " and ".join(format_bytes(nbytes) for nbytes in sorted({key[0] for key in times}))
    counts = ", ".join(map(str, sorted({key[1] for key in times})))
    return [], f"Overlap on {name} was recorded for {sizes}, in {counts} chunks."


def _fit_words(fit: AlphaBeta, nbytes: float) -> list[str]:
    """Return sentences about the fit and its prediction."""
    latency = " to ".join(format_seconds(v) for v in fit.latency_interval_seconds)
    rate = " to ".join(format_bytes_per_second(v) for v in fit.bandwidth_interval_bytes_per_second)
    knees = ", ".join(map(format_bytes, fit.knees_bytes))
    knees = f"knee{'s' if len(fit.knees_bytes) > 1 else ''} at {knees}" if knees else "no knee"
    low, expected, high = fit.predict(nbytes)
    return [
        f"Fit: latency {format_seconds(fit.latency_seconds)} (95 % {latency}), bandwidth "
        f"{format_bytes_per_second(fit.bandwidth_bytes_per_second)} (95 % {rate}), {knees}; "
        f"held-out error {fit.held_out_error:.1%}.",
        f"A copy of {format_bytes(nbytes)} is expected to take {format_seconds(expected)} (95 % "
        f"prediction interval {format_seconds(low)} to {format_seconds(high)}).",
    ]


def _sweep_table(
    sweeps: Sequence[tuple[Sweep, str]], links: Sequence[Link], quantity: str
) -> tuple[list[str], list[list[str | Badge]]]:
    """Return one row per size and one column per series or link, each column with its badge."""
    columns: list[tuple[str, Evidence, dict[int, str]]] = [
        (
            f"{f'{name}: ' if len(sweeps) > 1 else ''}{_series_words(*series)}",
            s.evidence,
            {
                p.nbytes: _cell(p.median_seconds, p.interval_seconds, p.nbytes, quantity)
                for p in s.select(*series)
            },
        )
        for s, name in sweeps
        for series in s.series
    ]
    sizes = sorted(
        {n for _, _, cells in columns for n in cells} or {2**k for k in range(10, 31, 2)}
    )
    columns += [
        (link.name, link.evidence, {n: _cell(link.seconds(n), None, n, quantity) for n in sizes})
        for link in links
    ]
    rows: list[list[str | Badge]] = [["evidence", *(evidence.badge for _, evidence, _ in columns)]]
    rows += [
        [format_bytes(n), *(cells.get(n, "not measured") for _, _, cells in columns)] for n in sizes
    ]
    return ["size", *(name for name, _, _ in columns)], rows


def _cell(seconds: float, interval: tuple[float, float] | None, nbytes: int, quantity: str) -> str:
    if quantity == "rate":
        return format_bytes_per_second(nbytes / seconds)
    ends = "" if interval is None else f" [{', '.join(format_seconds(v) for v in interval)}]"
    return f"{format_seconds(seconds)}{ends}"
