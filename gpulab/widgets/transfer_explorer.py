"""Copies between host and device: a live sweep with its fit, a modelled link beside it, break-even
and overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, lessons, recordings, transfer, workloads
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.transfer import AlphaBeta, BreakEven, Link, Overlap, Sweep
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds, plural
from gpulab.widgets._controls import Choice, Control, Number, Slider, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop
from gpulab.widgets.compare_timings import draw_break_even

_MIB = 2**20
_LATENCIES = tuple(k / 1e6 for k in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500))
_BANDWIDTHS = tuple(k * 1e9 for k in (1, 2, 4, 8, 12.35, 16, 26, 32, 53, 64, 128, 225, 450, 900))
_WORDS = {"to_device": "host to device", "to_host": "device to host", "host": "host copy"}
_NONE = "none"  # the choice of no recorded machine
_VIEWS = (("sweep", "sweep and fit"), ("break_even", "break-even"), ("overlap", "overlap"))


class TransferExplorer(Instrument):
    """Measure copies over sizes, fit them, and see how a link with another latency and bandwidth
    would perform.

    ``results["sweep"]`` is what ``gl.transfer.sweep`` returned, ``results["break_even"]`` and
    ``results["overlap"]`` likewise; ``fit`` is the fit on the screen and ``link`` the modelled
    link.

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
        "The time of copies between host and device from 1 KiB to 1 GiB, when they pay off, "
        "and when they can be hidden."
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

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        self._recorded: dict[str, Sweep | None] = {}
        # (id of a sweep, series) -> the sweep, without which another one could come to its id, and
        # its fit, or why there is none
        self._fits: dict[tuple[int, str], tuple[Sweep, AlphaBeta | str]] = {}
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return the view, then the controls of each view; the modelled link serves all three."""
        return [
            Choice(
                name="view",
                label="Show",
                options=_VIEWS,
                radio=True,
                shows_only=True,
                help="Each view has its own button.",
            ),
            *self._sweep_controls(),
            *self._break_even_controls(),
            *self._overlap_controls(),
            *_link_controls(),
        ]

    def _sweep_controls(self) -> list[Control]:
        here = [
            (str(d), f"{d.name}{': host copy' if d.is_cpu else ''}")
            for d in reversed(self._devices)
        ]
        far = tuple(recordings.readable())
        machines = [
            (_NONE, "none" if far else "none recorded yet"),
            *((name, name) for name in far),
        ]
        seconds = [
            (s, format_seconds(s).replace(".00", "").replace(".0 ", " "))
            for s in (2.0, 5.0, 10.0, 20.0, 60.0)
        ]
        ours: dict[str, Any] = {"views": ("sweep",), "for_actions": ("sweep",)}
        shown: dict[str, Any] = {"views": ("sweep",), "shows_only": True}
        return [
            Choice(
                name="device",
                label="Measure",
                options=here,
                help="Copies to and from a device, or within host memory.",
                **ours,
            ),
            Slider(
                name="deadline",
                label="Time for the sweep",
                options=seconds,
                default=5.0,
                help="More time gives more precise points.",
                **ours,
            ),
            Choice(
                name="recorded",
                label="Recorded machine",
                options=machines,
                help="Measurements of a named machine, shown for comparison.",
                **{**shown, "views": ("sweep", "overlap")},
            ),
            Choice(
                name="quantity",
                label="Draw",
                options=(("seconds", "time"), ("rate", "rate")),
                radio=True,
                help="Time over size shows the latency, rate over size shows the bandwidth.",
                **shown,
            ),
            Choice(
                name="series",
                label="Fitted series",
                options=((_NONE, "none yet"),),
                help="The series whose time is fitted as latency "
                "+ size / bandwidth, with the 95 % band for a new measurement.",
                **shown,
            ),
            Number(
                name="predict_mebibytes",
                label="Predict a copy of",
                unit="MiB",
                default=3.0,
                minimum=2**-20,
                maximum=2**20,
                suggestions=tuple(float(2**k) for k in range(-10, 11)),
                help="Its time is predicted by the fit, or by the modelled link.",
                **shown,
            ),
            Switch(
                name="link_shown",
                label="Modelled link beside",
                default=True,
                help="Draw the modelled link as a dashed line.",
                **shown,
            ),
        ]

    def _break_even_controls(self) -> list[Control]:
        live = [(str(d), f"{d.name} (this machine)") for d in self._devices if not d.is_cpu]
        loaded = [
            (name, recording.environment) for name, recording in recordings.readable().items()
        ]
        far = [
            (f"recording {name}", f"{e.device} (recorded)")
            for name, e in loaded
            if e.device_kind != "cpu"
        ]
        against = [*live, *far, ("model", "H200 over the modelled link")]
        names = workloads.names()
        ours: dict[str, Any] = {"views": ("break_even",), "for_actions": ("break_even",)}
        return [
            Choice(
                name="workload",
                label="Workload",
                options=names,
                default="matmul",
                help="Computed at its usual sizes.",
                **ours,
            ),
            Choice(
                name="against",
                label="CPU against",
                options=against,
                help="The accelerator; the CPU is measured live.",
                **ours,
            ),
            Slider(
                name="search_deadline",
                label="Time for the search",
                options=[(float(s), f"{s} s") for s in (5, 10, 20, 40)],
                default=10.0,
                help="Sizes whose calls would take longer are left out and listed.",
                **ours,
            ),
        ]

    def _overlap_controls(self) -> list[Control]:
        ways = (("model", "modelled link"), ("here", "measured here"))
        default = "model" if len(self._devices) == 1 else "here"
        ours: dict[str, Any] = {"views": ("overlap",), "for_actions": ("overlap",)}
        shown: dict[str, Any] = {"views": ("overlap",), "shows_only": True}
        ratios = (0.25, 0.5, 1.0, 2.0, 4.0)
        sizes = [
            (_MIB * 2**k, format_bytes(_MIB * 2**k).replace(".00", "").replace(".0 ", " "))
            for k in range(9)
        ]
        return [
            Choice(
                name="way",
                label="Timeline",
                options=ways,
                default=default,
                radio=True,
                help="The modelled timeline is updated with "
                "each control; the measured one is made when you press its button.",
                **shown,
            ),
            Slider(
                name="nbytes",
                label="Total bytes",
                options=sizes,
                default=64 * _MIB,
                help="Copied once, then computed on.",
                **ours,
            ),
            Slider(
                name="chunks",
                label="Chunks",
                options=[2**k for k in range(8)],
                default=8,
                help="More chunks hide more, until the "
                "latency of each copy costs more than it hides.",
                **ours,
            ),
            Slider(
                name="compute_ratio",
                label="Modelled compute / copy",
                options=ratios,
                default=1.0,
                help="The time of the modelled compute relative to one copy of all bytes.",
                **shown,
            ),
        ]

    # What controls do to each other.

    def on_screen(self, control: Control) -> bool:
        """Return whether the control applies to what is shown: the modelled link only if it is
        drawn or used.
        """
        if control.name in (*_LINK_NAMES, "compute_ratio") and not self._link_matters():
            return False
        return super().on_screen(control)

    def _link_matters(self) -> bool:
        view = self.values["view"]
        wanted = {
            "sweep": self.values["link_shown"],
            "break_even": self.values["against"] == "model",
        }
        return bool(wanted.get(view, self.values["way"] == "model"))

    def changed(self, name: str) -> None:
        """Set latency and bandwidth to those of a newly chosen link, and offer the series of the
        machines shown.
        """
        if name == "link":
            preset = transfer.link(self.values["link"])
            self.values["latency_seconds"] = preset.latency_seconds
            self.values["bandwidth_bytes_per_second"] = preset.bandwidth_bytes_per_second
        if name == "recorded":
            self._offer_series()

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)
        if action == "overlap":
            self.turn(action, way="here")
        self._offer_series()

    def _offer_series(self) -> None:
        """Offer each series of the sweeps shown; the live one comes first."""
        options = [
            (
                f"{where} {direction} {memory}",
                f"{name}: {_WORDS.get(direction, direction)}, {memory}",
            )
            for where, s, name in self._sweeps(self.values)
            for direction, memory in s.series
        ]
        before = self.controls["series"]
        if isinstance(before, Choice):
            kept: dict[str, Any] = {"help": before.help, "views": before.views, "shows_only": True}
            self.replace_control(
                Choice(
                    name="series",
                    label=before.label,
                    options=options or [(_NONE, "none yet")],
                    **kept,
                )
            )

    # What is shown.

    @property
    def link(self) -> Link:
        """The modelled link that the controls describe."""
        return self._link(self.values)

    def _link(self, values: Mapping[str, Any]) -> Link:
        return transfer.link(**self._link_arguments(values))

    @property
    def fit(self) -> AlphaBeta | None:
        """The fit on the screen."""
        found = self._fit(self.values)
        return found if isinstance(found, AlphaBeta) else None

    def _sweeps(self, values: Mapping[str, Any]) -> list[tuple[str, Sweep, str]]:
        """Return (key, sweep, name) of what was measured here and of the recorded machine that is
        chosen.
        """
        live: Sweep | None = self.results.get("sweep")
        name = values["recorded"]
        if name not in self._recorded:
            self._recorded[name] = (
                None if name == _NONE else transfer.recorded_sweep(recordings.load(name))
            )
        far = self._recorded[name]
        return [
            *([("live", live, "here")] if live else []),
            *([("recorded", far, name)] if far else []),
        ]

    def _fit(self, values: Mapping[str, Any]) -> AlphaBeta | str | None:
        """Return the chosen series' fit, the sentence why it has none, or None where nothing was
        measured.
        """
        where, _, series = values["series"].partition(" ")
        s = next((s for key, s, _ in self._sweeps(values) if key == where), None)
        return None if s is None else self._fit_of(s, series)

    def _fit_of(self, s: Sweep, series: str) -> AlphaBeta | str:
        key = (id(s), series)
        if key not in self._fits:
            try:
                self._fits[key] = s, s.fit(*series.split(" "))
            except InputError as error:
                # a sweep that was stopped early has too few sizes: said where the fit would be
                self._fits[key] = s, str(error)
        return self._fits[key][1]

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Sweep | BreakEven | Overlap:
        """Run ``gl.transfer.sweep``, ``break_even`` or ``overlap``."""
        if action == "break_even":
            arguments = self._break_even_arguments(values)
            if values["against"] == "model":
                arguments |= {"link": self._link(values), "processor": "nvidia-h200"}
            return transfer.break_even(
                values["workload"], progress=progress, stop=stop, **arguments
            )
        if action == "overlap":
            return transfer.overlap(
                values["nbytes"], chunks=values["chunks"], progress=progress, stop=stop
            )
        s = transfer.sweep(
            values["device"], deadline=values["deadline"], progress=progress, stop=stop
        )
        # here, beside the kernel's main thread, so that a choice of series redraws at once
        for direction, memory in s.series:
            self._fit_of(s, f"{direction} {memory}")
        return s

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the sweep with its fit, the break-even, or the timeline."""
        if values["view"] == "break_even":
            return draw_break_even(self.results.get("break_even"))
        return (
            self._draw_overlap(values) if values["view"] == "overlap" else self._draw_sweep(values)
        )

    def _draw_sweep(self, values: Mapping[str, Any]) -> Drawing:
        sweeps = self._sweeps(values)
        road = self._link(values)
        links = [road] if values["link_shown"] else []
        found = self._fit(values)
        fit = found if isinstance(found, AlphaBeta) else None
        nbytes = float(values["predict_mebibytes"]) * _MIB
        words = [] if self.results.get("sweep") else ["Press Sweep to measure on this machine."]
        if values["recorded"] != _NONE and self._recorded[values["recorded"]] is None:
            words.append(f"Transfers of {values['recorded']}: not recorded yet.")
        if isinstance(found, str):
            words.append(f"No fit: {found}")
        words += _fit_words(fit, nbytes) if fit else []
        if links:
            words.append(
                f"The modelled link {road.name} takes {format_seconds(road.seconds(nbytes))} for "
                f"{format_bytes(nbytes)}."
            )
        if not sweeps and not links:
            return Drawing(message=" ".join(words))
        first = sweeps[0][1] if sweeps else None
        beside = [s for _, s, _ in sweeps[1:]]
        figure = figures.sweep(
            first, fit, values["quantity"], beside, links=links, at_bytes=nbytes if fit else None
        )
        headers, rows = _sweep_table(
            [(s, name) for _, s, name in sweeps], links, values["quantity"]
        )
        evidence = [s.evidence for _, s, _ in sweeps] + [one.evidence for one in links]
        notes = [note for _, s, _ in sweeps for note in s.notes]
        return Drawing(figure, headers, rows, evidence, notes, " ".join(words))

    def _draw_overlap(self, values: Mapping[str, Any]) -> Drawing:
        modelled = values["way"] == "model"
        o: Overlap | None = (
            self._modelled_overlap(values) if modelled else self.results.get("overlap")
        )
        if o is None:
            return Drawing(
                message="Press Measure overlap: it copies and computes on this machine, in chunks "
                "and one after the other."
            )
        (_, header), rows = ("", "time"), o.table()[1]
        codes = {note.code for note in o.notes}
        gain = (
            f"{o.ratio_text} of the gain that is possible"
            if round(100 * o.ratio) > 0
            else "nothing was gained"
        )
        gain = "no overlap happened" if "no-overlap" in codes and o.chunks > 1 else gain
        gain = "more than is possible, so no gain is reported" if "implausible" in codes else gain
        pieces = plural(o.chunks, "chunk")
        message = (
            f"In {pieces} it takes {format_seconds(o.seconds)}, one after the other "
            f"{format_seconds(o.serial_seconds)}: {gain}."
        )
        far, words = _recorded_overlap(values["recorded"], o)
        evidence = [o.evidence, *([recordings.load(values["recorded"]).evidence()] if far else [])]
        title = f"{format_bytes(o.nbytes)} in {pieces}"
        return Drawing(
            figures.overlap(o),
            (title, header),
            [*rows, *far],
            evidence,
            o.notes,
            f"{message} {words}".strip(),
        )

    def _modelled_overlap(self, values: Mapping[str, Any]) -> Overlap:
        road, nbytes = self._link(values), values["nbytes"]
        return transfer.overlap(
            nbytes,
            chunks=values["chunks"],
            link=road,
            compute_seconds=values["compute_ratio"] * road.seconds(nbytes),
        )

    def _stale(self, action: str) -> bool:
        """The modelled timeline follows the controls; only what was measured can be older than they
        are.
        """
        if action == "overlap" and self.values["way"] == "model":
            return False
        modelled = action == "break_even" and self._made.get(action, {}).get("against") == "model"
        moved = modelled and any(
            self._made[action][name] != self.values[name] for name in _LINK_NAMES
        )
        return moved or super()._stale(action)

    # The code.

    def _link_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``gl.transfer.link`` is given: a name, and only those numbers that are not
        the named link's own.
        """
        preset = transfer.link(values["link"])
        own = {
            name: values[name] for name in _LINK_NAMES[1:] if values[name] != getattr(preset, name)
        }
        return {"name": values["link"], **own}

    def _break_even_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        against = values["against"]
        other: dict[str, Any] = {} if against == "model" else {"device": against}
        if against.startswith("recording "):
            other = {"recording": against.removeprefix("recording ")}
        return {**other, "deadline": values["search_deadline"]}

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the calls of ``gl.transfer`` behind the view."""
        first, *own = self._link_arguments(values).items()
        road = (
            "link = "
            f"gl.transfer.link({_literal(first[1])}{''.join(f', {name}={value:g}' for name, value in own)})"
        )
        if values["view"] == "break_even":
            lines = self._break_even_code(values, road)
        elif values["view"] == "overlap":
            chunked = f"o = gl.transfer.overlap({values['nbytes']}, chunks={values['chunks']}"
            seconds = (
                f", compute_seconds={values['compute_ratio']:g} * link.seconds({values['nbytes']})"
            )
            model = f", link=link{'' if values['compute_ratio'] == 1 else seconds})"
            lines = (
                [road, chunked + model, "o"] if values["way"] == "model" else [f"{chunked})", "o"]
            )
            lines += ["gl.lessons.recorded_overlap()"] if values["recorded"] != _NONE else []
        else:
            lines = self._sweep_code(values, road)
        return "\n".join(["import gpulab as gl", "", *lines])

    def _break_even_code(self, values: Mapping[str, Any], road: str) -> list[str]:
        words = "".join(
            f", {name}={_literal(value)}"
            for name, value in self._break_even_arguments(values).items()
        )
        if values["against"] != "model":
            return [f"b = gl.transfer.break_even({_literal(values['workload'])}{words})", "b"]
        call = (
            f"b = gl.transfer.break_even({_literal(values['workload'])}, link=link, "
            f'processor="nvidia-h200"{words})'
        )
        return [road, call, "b"]

    def _sweep_code(self, values: Mapping[str, Any], road: str) -> list[str]:
        where, _, series = values["series"].partition(" ")
        direction, _, memory = series.partition(" ")
        chosen = f"{_literal(direction)}, {_literal(memory)}" if series else ""
        far = values["recorded"] if self._recorded[values["recorded"]] else _NONE
        # as the field shows it: six digits are too few
        mebibytes = self.controls["predict_mebibytes"].raw(values["predict_mebibytes"])
        source = "far" if where == "recorded" else "s"
        lines = [
            f"s = gl.transfer.sweep({_literal(values['device'])}, deadline={values['deadline']})"
        ]
        lines += (
            [f"far = gl.transfer.recorded_sweep(gl.recordings.load({_literal(far)}))"]
            if far != _NONE
            else []
        )
        lines += [
            f"fit = {source}.fit({chosen})",
            f"low, expected, high = fit.predict({mebibytes} * 2**20)",
        ]
        lines += [road] if values["link_shown"] else []
        quantity = "" if values["quantity"] == "seconds" else ', quantity="rate"'
        beside = "" if far == _NONE else ", beside=[far]"
        links = ", links=[link]" if values["link_shown"] else ""
        return [*lines, f"gl.figures.sweep(s, fit{quantity}{beside}{links})"]


def _recorded_overlap(name: str, o: Overlap) -> tuple[list[tuple[str, str]], str]:
    """Return the rows of the chosen machine for these bytes and chunks, and what to say where it
    has none.
    """
    if name == _NONE:
        return [], ""
    seen = [row[1:] for row in lessons.recorded_overlap().rows if row[0] == name]
    for nbytes, chunks, serial, chunked in seen:
        if (nbytes, chunks) == (o.nbytes, o.chunks):
            words = f"{Badge.RECORDED} on {name}:"
            rows = [
                (f"{words} one after the other", format_seconds(serial)),
                (f"{words} in overlapping chunks", format_seconds(chunked)),
            ]
            return rows, ""
    if not seen:
        if recordings.load(name).environment.device_kind == "cpu":
            return [], f"{name} is a CPU: overlap is compared only with recorded GPUs."
        return [], f"Overlap on {name}: not recorded yet."
    sizes = " and ".join(format_bytes(nbytes) for nbytes in dict.fromkeys(row[0] for row in seen))
    return (
        [],
        f"Overlap on {name} was recorded for {sizes}, in "
        f"{', '.join(str(n) for n in sorted({row[1] for row in seen}))} chunks.",
    )


_LINK_NAMES = ("link", "latency_seconds", "bandwidth_bytes_per_second")


def _link_controls() -> list[Control]:
    presets = transfer.link_names()
    latencies = [(s, format_seconds(s).replace(".00", "").replace(".0 ", " ")) for s in _LATENCIES]
    bandwidths = [(r, f"{r / 1e9:g} GB/s") for r in _BANDWIDTHS]
    default = transfer.link("pcie4-x16")
    kind: dict[str, Any] = {"shows_only": True}
    return [
        Choice(
            name="link",
            label="Modelled link",
            options=presets,
            default=default.name,
            help="Sets latency and bandwidth to those published for such a link.",
            **kind,
        ),
        Slider(
            name="latency_seconds",
            label="Its latency",
            options=latencies,
            default=default.latency_seconds,
            help="The time of a copy of zero bytes.",
            **kind,
        ),
        Slider(
            name="bandwidth_bytes_per_second",
            label="Its bandwidth",
            options=bandwidths,
            default=default.bandwidth_bytes_per_second,
            help="The rate that large copies approach.",
            **kind,
        ),
    ]


def _fit_words(fit: AlphaBeta, nbytes: float) -> list[str]:
    """Return sentences about the fit and its prediction."""
    latency = " to ".join(format_seconds(v) for v in fit.latency_interval_seconds)
    rate = " to ".join(format_bytes_per_second(v) for v in fit.bandwidth_interval_bytes_per_second)
    count = len(fit.knees_bytes)
    knees = (
        f", knee{'s' if count > 1 else ''} at {', '.join(format_bytes(k) for k in fit.knees_bytes)}"
        if count
        else ", no knee"
    )
    low, expected, high = fit.predict(nbytes)
    return [
        f"Fit: latency {format_seconds(fit.latency_seconds)} (95 % {latency}), bandwidth "
        f"{format_bytes_per_second(fit.bandwidth_bytes_per_second)} (95 % {rate}){knees}; held-out "
        f"error {fit.held_out_error:.1%}.",
        f"A copy of {format_bytes(nbytes)} is expected to take {format_seconds(expected)}, 95 % "
        "between "
        f"{format_seconds(low)} and {format_seconds(high)}.",
    ]


def _sweep_table(
    sweeps: Sequence[tuple[Sweep, str]], links: Sequence[Link], quantity: str
) -> tuple[list[str], list[list[str | Badge]]]:
    """Return one row a size and one column a series or link, each column with its badge."""
    columns: list[tuple[str, Evidence, dict[int, str]]] = []
    for s, name in sweeps:
        for direction, memory in s.series:
            cells = {
                p.nbytes: _cell(p.median_seconds, p.interval_seconds, p.nbytes, quantity)
                for p in s.select(direction, memory)
            }
            where = f"{name}: " if len(sweeps) > 1 else ""
            columns.append(
                (f"{where}{_WORDS.get(direction, direction)}, {memory}", s.evidence, cells)
            )
    sizes = sorted(
        {n for _, _, cells in columns for n in cells} or {2**k for k in range(10, 31, 2)}
    )
    columns += [
        (road.name, road.evidence, {n: _cell(road.seconds(n), None, n, quantity) for n in sizes})
        for road in links
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


def _literal(value: Any) -> str:
    """Return the value as Python code with double quotes, as the course writes it."""
    return repr(value).replace("'", '"')
