"""The same work on every device of this machine, with three times for each, beside recordings of
other machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, recordings, timing, transfer, workloads
from gpulab.errors import RecordingError
from gpulab.evidence import Badge, Note
from gpulab.timing import Comparison, ComparisonRow
from gpulab.timing.recorded import recorded
from gpulab.transfer import BreakEven
from gpulab.units import format_number, format_seconds
from gpulab.widgets._controls import Choice, Control, Number, Several, Slider, Switch, pairs
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

# Without an accelerator of one's own: a recorded one, or the data-sheet model of one behind a named
# link. The data lie in ordinary memory, which is pageable, as in the lesson's own table.
_LINK, _MEMORY, _PROCESSOR = "pcie5-x16", "pageable", "nvidia-h200"
# The largest size of memory that a C library keeps for the next array; of a larger one the pages
# are new each time (glibc: mallopt(3)).
_FRESH_BYTES = 2**25
_FRESH = (
    "With both copies, each result goes into new memory of the host. Where it is larger than about "
    "32 MiB, most of that time is the "
    "system handing out the pages of this memory, not the link."
)
_NO_RECORDING = "Other machines: not recorded yet for this workload, size and dtype."


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
        Action(
            "break_even",
            "Find break-even",
            "Measure the CPU over the usual sizes, and find the size above which the accelerator "
            "is faster, with both copies counted.",
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return workload, size, dtype, devices, copies, time and the recorded machines."""
        names = workloads.names()
        first = "matmul" if "matmul" in names else names[0]
        controls: list[Control] = [
            Choice(
                name="workload",
                label="Workload",
                options=names,
                default=first,
                help="What is computed.",
            ),
            *self._depending(first),
            Slider(
                name="deadline",
                label="Time for each device",
                options=[
                    (s, format_seconds(s).replace(".00", "")) for s in (0.5, 1.0, 2.0, 5.0, 10.0)
                ],
                default=2.0,
                help="Sampling stops earlier once the 95 % interval is narrower than 2 % of "
                "the median.",
            ),
            Switch(
                name="transfer",
                label="With copies",
                for_actions=("run",),
                help="Also time the copy of the inputs to the device and of the result back.",
            ),
            Switch(
                name="recorded",
                label="Recorded machines",
                default=True,
                shows_only=True,
                help="Show what named machines recorded for the same work.",
            ),
            Choice(
                name="against",
                label="Break-even against",
                options=self._accelerators(),
                for_actions=("break_even",),
                help="The accelerator to compare with this CPU.",
            ),
            Choice(
                name="view",
                label="Show",
                options=(("run", "times"), ("break_even", "break-even")),
                radio=True,
                shows_only=True,
                help="Which of the two results is shown.",
            ),
        ]
        if len(self._devices) > 1:
            options = [(str(d), str(d)) for d in self._devices]
            everything = tuple(value for value, _ in options)
            words = "The first is the baseline."
            several = Several(
                name="devices",
                label="Devices",
                options=options,
                default=everything,
                least=1,
                for_actions=("run",),
                help=words,
            )
            controls.insert(3, several)
        return controls

    def _accelerators(self) -> list[tuple[str, str]]:
        """Return what the break-even can be sought against: this machine's, recorded and modelled
        accelerators.
        """
        live = [(str(d), f"{d.name} (this machine)") for d in self._devices if not d.is_cpu]
        loaded = [
            (name, recording.environment) for name, recording in recordings.readable().items()
        ]
        far = [
            (f"recording {name}", f"{e.device} (recorded)")
            for name, e in loaded
            if e.device_kind != "cpu"
        ]
        return [*live, *far, ("model", "H200 over PCIe 5 (modelled)")]

    @staticmethod
    def _depending(workload: str) -> list[Control]:
        """Return the controls whose options the workload decides."""
        spec = workloads.get(workload)
        return [
            Number(
                name="n",
                label="Size n",
                default=spec.sizes[len(spec.sizes) // 2],
                minimum=1,
                maximum=2**40,
                integer=True,
                suggestions=spec.sizes,
                for_actions=("run",),
                help=f"{spec.summary[:1].upper()}{spec.summary[1:]}; n: {spec.size_meaning}. "
                "Arrow keys step through the usual sizes.",
            ),
            Choice(
                name="dtype",
                label="Number format",
                options=spec.dtypes,
                default="float32",
                help="The format of the inputs.",
            ),
        ]

    def changed(self, name: str) -> None:
        """Give size and dtype the options of the new workload; a size that it does not offer
        becomes its default size.
        """
        if name != "workload":
            return
        for control in self._depending(self.values["workload"]):
            self.replace_control(control)
            if isinstance(control, Number) and self.values[control.name] not in control.suggestions:
                self.values[control.name] = control.initial

    def _arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = {"n": values["n"], "dtype": values["dtype"]}
        chosen = values.get("devices")
        if chosen is not None and tuple(chosen) != tuple(str(d) for d in self._devices):
            arguments["devices"] = list(chosen)
        if values["transfer"]:
            arguments["transfer"] = True
        return {**arguments, "deadline": values["deadline"]}

    def _break_even_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        against = values["against"]
        model = {"link": transfer.link(_LINK, memory=_MEMORY), "processor": _PROCESSOR}
        other = model if against == "model" else {"device": against}
        if against.startswith("recording "):
            other = {"recording": against.removeprefix("recording ")}
        return {"dtype": values["dtype"], **other, "deadline": 10 * values["deadline"]}

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Comparison | BreakEven:
        """Run ``gl.compare`` or ``gl.transfer.break_even``."""
        if action == "break_even":
            return transfer.break_even(
                values["workload"],
                progress=progress,
                stop=stop,
                **self._break_even_arguments(values),
            )
        return timing.compare(
            values["workload"], progress=progress, stop=stop, **self._arguments(values)
        )

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.compare`` or ``gl.transfer.break_even``, whichever is shown."""
        name, arguments = (
            ("b", self._break_even_arguments(values))
            if values["view"] == "break_even"
            else ("c", self._arguments(values))
        )
        function = "gl.transfer.break_even" if name == "b" else "gl.compare"
        words = "".join(f", {key}={_literal(value)}" for key, value in arguments.items())
        return (
            f"import gpulab as gl\n\n{name} = "
            f"{function}({_literal(values['workload'])}{words})\n{name}"
        )

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the newest comparison with the recorded machines beside it, or the break-even."""
        if values["view"] == "break_even":
            return draw_break_even(self.results.get("break_even"))
        c: Comparison | None = self.results.get("run")
        made = self._made.get("run", values)
        others, message = (
            _recorded_rows(made["workload"], made["n"], made["dtype"])
            if values["recorded"]
            else ([], "")
        )
        if any(_fetches_into_new_pages(row) for row in [*(c.rows if c else ()), *others]):
            message = f"{message} {_FRESH}".strip()
        if c is None:
            return self._before(others, f"Press Run to measure on this machine. {message}".strip())
        both = [*c.rows, *others]
        headers, rows = _table(both)
        evidence, notes = [row.measurement.evidence for row in both], [*c.notes, *_notes(both)]
        return Drawing(
            figures.comparison(c, recorded=others),
            headers,
            rows,
            evidence,
            notes,
            f"{_verdict(c)} {message}".strip(),
        )

    def _before(self, others: list[ComparisonRow], message: str) -> Drawing:
        if not others:
            return Drawing(message=message)
        first = others[0].measurement
        only = Comparison(first.label, tuple(others), None, None, None, None, (), first.evidence)
        headers, rows = _table(others)
        return Drawing(
            figures.comparison(only),
            headers,
            rows,
            [row.measurement.evidence for row in others],
            _notes(others),
            message,
        )


def _fetches_into_new_pages(row: ComparisonRow) -> bool:
    m = row.measurement
    return m.with_transfer_seconds is not None and (m.nbytes or 0) > _FRESH_BYTES


def draw_break_even(b: BreakEven | None) -> Drawing:
    """Return the result with the evidence of both sides, or what to press for one."""
    if b is None:
        return Drawing(
            message="Press Find break-even: it measures this CPU over the usual sizes of the "
            "workload."
        )
    headers, rows = b.table()
    evidence = [e for e in (b.host_evidence, b.evidence) if e is not None]
    return Drawing(
        figures.break_even(b) if b.rows else None, headers, rows, evidence, b.notes, b.sentence
    )


def _literal(value: Any) -> str:
    """Return the value as Python code with double quotes, as the course writes it."""
    if isinstance(value, transfer.Link):
        return f'gl.transfer.link("{_LINK}", memory="{_MEMORY}")'
    return repr(value).replace("'", '"')


def _recorded_rows(workload: str, n: int, dtype: str) -> tuple[list[ComparisonRow], str]:
    """Return what other machines recorded, and what to say where there is nothing."""
    try:
        found = recorded(workload, n, dtype)
    except RecordingError as error:
        return [], f"Other machines: {error}"
    told = pairs([(name, m.environment.device) for name, m in found.items()])
    return [
        ComparisonRow(text, found[name], None, None, None) for name, text in told
    ], "" if told else _NO_RECORDING


def _table(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str | Badge]]]:
    """Return the comparison's own table with the badge of each row; the notes have their own place
    below.
    """
    first = rows[0].measurement
    headers, body = Comparison("", tuple(rows), None, None, None, None, (), first.evidence).table()
    keep = [k for k, header in enumerate(headers) if header != "notes"]
    table: list[list[str | Badge]] = []
    for row, cells in zip(rows, body, strict=True):
        recorded_one = row.measurement.evidence.badge is not Badge.MEASURED
        texts = [
            "not compared" if recorded_one and headers[k] == "speed-up" else str(cells[k])
            for k in keep
        ]
        table.append([texts[0], row.measurement.evidence.badge, *texts[1:]])
    named = [str(headers[k]) for k in keep]
    return [named[0], "evidence", *named[1:]], table


def _notes(rows: Sequence[ComparisonRow]) -> list[Note]:
    """Return the notes of rows, which say whose they are; of a recorded one the symptom, as nobody
    can measure it again here.
    """
    return [
        Note(n.code, f"{row.name}: {n.sentence if live else f'as recorded, {n.symptom}'}")
        for row in rows
        for live in [row.measurement.evidence.badge is Badge.MEASURED]
        for n in row.measurement.notes
    ]


def _small(value: float) -> str:
    """Return a relative difference in words: a power of ten, and no power of ten for none."""
    return f"{value:.1e}" if value else "0"


def _verdict(c: Comparison) -> str:
    """Return the outcome of the comparison, first whether the results agree."""
    agreement = ""
    if c.max_relative_difference is not None and c.tolerance is not None:
        agrees = c.max_relative_difference <= c.tolerance
        agreement = (
            f"The results {'agree' if agrees else 'disagree'}: the largest relative difference is "
            f"{_small(c.max_relative_difference)}, "
            f"{'within' if agrees else 'beyond'} the tolerance {_small(c.tolerance)}. "
        )
    if c.speedup is None:
        return agreement + (
            "One device, so no speed-up." if len(c.rows) == 1 else "No speed-up is reported."
        )
    interval = (
        ""
        if c.speedup_interval is None
        else " (95 % interval {} to {})".format(*map(format_number, c.speedup_interval))
    )
    return (
        f"{agreement}The fastest other device has a speed-up of {format_number(c.speedup)}x "
        f"over {c.rows[0].name}{interval}."
    )
