"""A machine: what it has, what is wrong with it, and one piece of work on each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulab import devices, figures, timing, workloads
from gpulab.devices import Machine
from gpulab.errors import RecordingError
from gpulab.evidence import Badge, Note
from gpulab.timing import Comparison, ComparisonRow
from gpulab.timing.recorded import recorded
from gpulab.units import format_number, format_seconds
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
    Switch,
    Values,
    call,
    cell,
    pairs,
)

# The largest size of memory that a C library keeps for the next array; of a larger one the pages
# are new each time (glibc: mallopt(3)).
_FRESH_BYTES = 2**25
_FRESH = (
    "With both copies, each result goes into new memory of the host. Where it is larger than about "
    "32 MiB, most of that time is the "
    "system handing out the pages of this memory, not the link."
)
_NO_RECORDING = "Other machines: not recorded yet for this workload, size and dtype."


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
                help="Hide what works; on a machine without problems the table is then empty.",
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
        message = "Nothing to fix."
        if count := len(problems):
            end = "s" if count != 1 else ""
            message = f"{count} thing{end} to fix: the first row{end} of the table."
        only = values["problems_only"]
        return Drawing(
            None if only else figures.machine(m),
            ("part", "result"),
            problems if only else [*problems, *others],
            [m.evidence],
            message=message,
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
                options=[
                    (s, format_seconds(s).replace(".00", "")) for s in (0.5, 1.0, 2.0, 5.0, 10.0)
                ],
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
        arguments: dict[str, Any] = {"n": values["n"], "dtype": values["dtype"]}
        here = list(map(str, devices.available()))
        if (chosen := list(values.get("devices", here))) != here:
            arguments["devices"] = chosen
        if values["transfer"]:
            arguments["transfer"] = True
        return {**arguments, "deadline": values["deadline"]}

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
        others: list[ComparisonRow] = []
        words = [_verdict(c) if c else "Press Run to measure on this machine."]
        if values["recorded"]:
            others, message = _recorded_rows(made["workload"], made["n"], made["dtype"])
            words.append(message)
        rows = [*(c.rows if c else ()), *others]
        # whose results with both copies go into new pages
        times = [row.measurement for row in rows]
        if any(m.with_transfer_seconds and (m.nbytes or 0) > _FRESH_BYTES for m in times):
            words.append(_FRESH)
        message = " ".join(part for part in words if part)
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
    """Return what other machines recorded, and what to say where there is nothing."""
    try:
        found = recorded(workload, n, dtype)
    except RecordingError as error:
        return [], f"Other machines: {error}"
    names = pairs([(name, m.environment.device) for name, m in found.items()])
    rows = [ComparisonRow(text, found[name], None, None, None) for name, text in names]
    return rows, "" if rows else _NO_RECORDING


def _table(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str | Badge]]]:
    """Return the comparison's own table with the badge of each row; the notes have their own place
    below.
    """
    headers, body = _only(rows).table()
    keep = [k for k, header in enumerate(headers) if header != "notes"]
    table: list[list[str | Badge]] = []
    for row, cells in zip(rows, body, strict=True):
        badge = row.measurement.evidence.badge
        first, *texts = [
            "not compared"
            if badge is not Badge.MEASURED and headers[k] == "speed-up"
            else str(cells[k])
            for k in keep
        ]
        table.append([first, badge, *texts])
    first, *named = [str(headers[k]) for k in keep]
    return [first, "evidence", *named], table


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
            f"{_small(c.max_relative_difference)}, {'within' if agrees else 'beyond'} the "
            f"tolerance {_small(c.tolerance)}. "
        )
    if c.speedup is None:
        alone = "One device, so no speed-up." if len(c.rows) == 1 else "No speed-up is reported."
        return f"{agreement}{alone}"
    interval = ""
    if c.speedup_interval is not None:
        interval = f" (95 % interval {' to '.join(map(format_number, c.speedup_interval))})"
    return (
        f"{agreement}The fastest other device has a speed-up of {format_number(c.speedup)}x over "
        f"{c.rows[0].name}{interval}."
    )
