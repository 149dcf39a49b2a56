"""The roofline: the upper limits that arithmetic and memory set for a piece of work.

Roofs come from a data sheet, from rates just measured on this machine, or from a recording, and
each keeps its badge. Nothing is drawn here. Source of the model: Williams, Waterman and Patterson,
"Roofline: An Insightful Visual Performance Model", CACM 52 (4), 2009.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from gpulab import devices, recordings
from gpulab._given import callback, flag, is_finite, items, word
from gpulab.devices import datasheets, specs
from gpulab.errors import DeviceError, InputError, shown
from gpulab.evidence import Badge, Evidence, Note
from gpulab.results import Result
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_number,
    format_seconds,
    plural,
)

Bound = Literal["memory", "arithmetic"]
# What gl.recorder.model_errors says of the recordings that ship; a test holds both together.
KNOWN_ERROR = (
    "on amd-epyc-2-cores the recorded time is 1.4 times the model's in the median of 80 cases, "
    "0.61 to 13 times in the middle 80 %; on amd-epyc-avx2-2-cores the recorded time is 1.8 times "
    "the model's in the median of 83 cases, 1.1 to 7.5 times in the middle 80 %; on nvidia-h200 "
    "the recorded time is 1.8 times the model's in the median of 23 cases, 1.1 to 33 times in the "
    "middle 80 %"
)
# A millionth of an operation a call is no count; far smaller ones would make times of zero.
_LEAST_COUNT = 1e-6

_UNSTATED = "not stated for this device"
_POINT_HEADERS = ("work", "FLOP per byte", "bound by", "attainable", "reached", "of the roof")
CEILINGS = ("measured", "datasheet", "recorded")


@dataclass(frozen=True)
class ArithmeticRoof(Result):
    """The highest arithmetic rate of one number format.

    Attributes
    ----------
    name : str
        The arithmetic, such as "float32" or "tf32".
    flops_per_second : float
    source : str
    evidence : Evidence
    """

    name: str
    flops_per_second: float
    source: str
    evidence: Evidence


@dataclass(frozen=True)
class MemoryRoof(Result):
    """The highest bandwidth of one level of memory.

    Attributes
    ----------
    name : str
        "L1d", "L2", "L3" or "DRAM".
    bytes_per_second : float
    capacity_bytes : float
        What the level holds; infinite where not known.
    source : str
    evidence : Evidence
    """

    name: str
    bytes_per_second: float
    capacity_bytes: float
    source: str
    evidence: Evidence


R = TypeVar("R", ArithmeticRoof, MemoryRoof)


@dataclass(frozen=True, repr=False)
class RooflinePoint(Result):
    """One piece of work under a roofline.

    Attributes
    ----------
    label : str
    flops, nbytes : float
        Of one call.
    arithmetic, memory : str
        The roofs that apply to it.
    attainable_seconds : float
        The least time that both roofs allow.
    bound_by : str
        "memory" or "arithmetic": the roof that requires more time.
    seconds : float or None
        Of one call, measured or recorded; None for a point that was only predicted.
    evidence : Evidence
        Of ``seconds``; where that is None, MODELLED.
    interval_seconds : (float, float) or None
        The 95 % interval of ``seconds``, where there is one.
    """

    label: str
    flops: float
    nbytes: float
    arithmetic: str
    memory: str
    attainable_seconds: float
    bound_by: Bound
    seconds: float | None
    evidence: Evidence
    interval_seconds: tuple[float, float] | None = None

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity; infinite for work that moves nothing."""
        return self.flops / self.nbytes if self.nbytes else math.inf

    @property
    def attainable_flops_per_second(self) -> float:
        """The roof at this intensity; 0 for work without arithmetic, whose roof is
        ``attainable_bytes_per_second``.
        """
        return self.flops / self.attainable_seconds

    @property
    def attainable_bytes_per_second(self) -> float:
        """The traffic at that rate."""
        return self.nbytes / self.attainable_seconds

    @property
    def flops_per_second(self) -> float | None:
        """The rate that was reached; None for a predicted point."""
        return None if self.seconds is None else self.flops / self.seconds

    @property
    def bytes_per_second(self) -> float | None:
        """The traffic that was reached, counted as ``nbytes`` a call; None for a predicted
        point.
        """
        return None if self.seconds is None else self.nbytes / self.seconds

    @property
    def share_of_roof(self) -> float | None:
        """Attainable time over actual time: 1 on the roof, above 1 over it; None for a predicted
        point.
        """
        return None if self.seconds is None else self.attainable_seconds / self.seconds

    @property
    def explanation(self) -> str:
        """One or two sentences: which roof limits the work, and how far below it the point lies."""
        roof = self.memory if self.bound_by == "memory" else self.arithmetic
        intensity = f"{format_number(self.intensity_flops_per_byte)} FLOP per byte"
        what = "no arithmetic" if not self.flops else "no traffic" if not self.nbytes else intensity
        least = (
            f"{self.label}: {what}, so {roof} is the limit: at least "
            f"{format_seconds(self.attainable_seconds)}."
        )
        if self.seconds is None or self.share_of_roof is None:
            return least
        # as it is shown: half a per cent more is the roof itself
        if float(f"{self.share_of_roof:.3g}") > 1.0:
            over = (
                f"It took {format_seconds(self.seconds)}, which is "
                f"{format_number(self.share_of_roof)} times the rate of the roof"
            )
            return (
                f"{least} {over}: a cache helps, the roof is too low, or the count or the clock is "
                "wrong."
            )
        return (
            f"{least} It took {format_seconds(self.seconds)}: "
            f"{format_number(100 * self.share_of_roof)} % of the roof."
        )

    def __repr__(self) -> str:
        return f"<{self.explanation.rstrip('.')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return intensity, the limiting roof, what it allows and what was reached."""
        return _POINT_HEADERS, [_row(self)]


def _row(point: RooflinePoint) -> tuple[str, ...]:
    def rate(seconds: float) -> str:
        if point.flops:
            return format_flops_per_second(point.flops / seconds)
        return format_bytes_per_second(point.nbytes / seconds)

    attainable, reached, share = rate(point.attainable_seconds), "not measured", ""
    if point.seconds is not None and point.share_of_roof is not None:
        reached = rate(point.seconds)
        share = f"{format_number(100 * point.share_of_roof)} % ({point.evidence.badge})"
    roof = point.memory if point.bound_by == "memory" else point.arithmetic
    return (
        point.label,
        format_number(point.intensity_flops_per_byte),
        f"{point.bound_by} ({roof})",
        attainable,
        reached,
        share,
    )


@dataclass(frozen=True, repr=False)
class Roofline(Result):
    """The roofs of one device, and the work placed under them.

    Attributes
    ----------
    device : str
        Its name, for titles.
    arithmetic : tuple of ArithmeticRoof
    memory : tuple of MemoryRoof
        Fastest level first; a level whose rate is not stated is left out.
    points : tuple of RooflinePoint
    notes : tuple of Note
        What makes measured roofs unreliable, such as another process on the cores.
    evidence : Evidence
        Of the roofs.
    device_kind : str
        As ``Device.kind``: "cpu", "cuda", "rocm", "xpu" or "mps"; "cpu" also where a file of
        version 1 does not have it.
    """

    schema_version: ClassVar[int] = 2  # 1 had no device_kind

    device: str
    arithmetic: tuple[ArithmeticRoof, ...]
    memory: tuple[MemoryRoof, ...]
    points: tuple[RooflinePoint, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    device_kind: str = "cpu"

    def arithmetic_roof(self, name: str = "float32") -> ArithmeticRoof:
        """Return the roof of an arithmetic.

        Raises
        ------
        InputError
            If this roofline has none of that name.
        """
        return _named(self.arithmetic, name, f"arithmetic of {self.device}")

    def memory_roof(
        self, name: str | None = None, working_set_bytes: float = math.inf
    ) -> MemoryRoof:
        """Return the roof of a level of memory; with None, of the fastest that holds a working set
        (infinite: main memory).

        Raises
        ------
        InputError
            If this roofline has no such level, or none that holds the working set.
        """
        if name is not None:
            return _named(self.memory, name, f"memory of {self.device}")
        fits = [
            level
            for level in self.memory
            if working_set_bytes <= level.capacity_bytes or level.name == "DRAM"
        ]
        if not fits:
            known = ", ".join(level.name for level in self.memory) or "none"
            held = (
                "any working set"
                if working_set_bytes == math.inf
                else format_bytes(working_set_bytes)
            )
            raise InputError(
                f"roofline: the rate of {self.device}'s main memory is not stated (levels: "
                f"{known}); expected one that holds {held}. "
                'Use ceilings="measured", or name a level.'
            )
        return fits[0]

    def ridge_flops_per_byte(self, arithmetic: str = "float32", memory: str | None = None) -> float:
        """Return the arithmetic intensity at which the memory roof and the arithmetic roof meet.

        Raises
        ------
        InputError
            If there is no such roof.
        """
        return (
            self.arithmetic_roof(arithmetic).flops_per_second
            / self.memory_roof(memory).bytes_per_second
        )

    def place(
        self,
        label: str,
        flops: float,
        nbytes: float,
        *,
        seconds: float | None = None,
        evidence: Evidence | None = None,
        arithmetic: str = "float32",
        memory: str | None = None,
        working_set_bytes: float = math.inf,
    ) -> RooflinePoint:
        """Return the position of a piece of work under the roofs.

        Parameters
        ----------
        label : str
        flops, nbytes : float
            Of one call; not both 0.
        seconds : float, optional
            Of one call; None places a prediction.
        evidence : Evidence, optional
            Where ``seconds`` comes from; needed with it.
        arithmetic, memory : str
            The roofs; ``memory=None`` takes the level that holds ``working_set_bytes``.
        working_set_bytes : float

        Returns
        -------
        RooflinePoint

        Raises
        ------
        InputError
            If a number is negative or not finite, there is no such roof, or a time comes without
            its evidence (or the other way round).
        """
        if not isinstance(label, str):
            raise InputError(
                f"place: label={shown(label)}; expected text. Pass the words for the table."
            )
        work, traffic = _count("flops", flops), _count("nbytes", nbytes)
        if not work and not traffic:
            raise InputError(
                f"place: {shown(label)} has 0 FLOPs and 0 bytes; expected at least one of the two. "
                "Count it first."
            )
        if (seconds is None) != (evidence is None) or not (
            evidence is None or isinstance(evidence, Evidence)
        ):
            raise InputError(
                f"place: seconds={shown(seconds)} with evidence={shown(evidence)}; expected both "
                "or neither. Pass both."
            )
        if seconds is not None and not _amount("place", "seconds", seconds):
            raise InputError(
                "place: seconds=0; expected a positive time. A call that takes no time was not "
                "measured."
            )
        if working_set_bytes != math.inf:
            _amount("place", "working_set_bytes", working_set_bytes)
        top, level = self.arithmetic_roof(arithmetic), self.memory_roof(memory, working_set_bytes)
        computing, moving = work / top.flops_per_second, traffic / level.bytes_per_second
        return RooflinePoint(
            label=label,
            flops=work,
            nbytes=traffic,
            arithmetic=top.name,
            memory=level.name,
            attainable_seconds=max(computing, moving),
            bound_by="memory" if moving > computing else "arithmetic",
            seconds=None if seconds is None else float(seconds),
            evidence=evidence if evidence is not None else _predicted(top, level),
        )

    def place_workload(
        self, workload: Any, measurement: Any = None, *, arithmetic: str | None = None
    ) -> RooflinePoint:
        """Return the position of a catalogue workload under the roofs.

        Parameters
        ----------
        workload : Workload
            From ``gpulab.workloads``; its FLOPs, bytes and working set are counted there.
        measurement : Measurement, optional
            What ``gl.measure`` returned for it, or a recorded one; its badge stays with the point.
            None places a prediction.
        arithmetic : str, optional
            None takes PyTorch's default: TF32 for convolutions of float32 where the roofs have it,
            else the workload's number format. Pass "tf32" where that was allowed for matrix
            products too, or "float32" where it was forbidden.

        Returns
        -------
        RooflinePoint

        Raises
        ------
        InputError
            If these are not a workload and a measurement, or the roofline lacks that arithmetic.
        """
        if not all(
            hasattr(workload, name)
            for name in ("label", "flops", "nbytes", "working_set_bytes", "arithmetic_dtype")
        ):
            raise InputError(
                f"place_workload: {shown(workload)}; expected a workload. Pass "
                'gl.workloads.get("matmul")(n=1024).'
            )
        if measurement is not None and not all(
            hasattr(measurement, name) for name in ("median_seconds", "evidence")
        ):
            raise InputError(
                f"place_workload: measurement={shown(measurement)}; expected the result of "
                "gl.measure, or None. Pass one of these."
            )
        point = self.place(
            workload.label,
            workload.flops,
            workload.nbytes,
            seconds=None if measurement is None else measurement.median_seconds,
            evidence=None if measurement is None else measurement.evidence,
            arithmetic=self._usual_arithmetic(workload) if arithmetic is None else arithmetic,
            working_set_bytes=workload.working_set_bytes,
        )
        return dataclasses.replace(
            point, interval_seconds=getattr(measurement, "interval_seconds", None)
        )

    def _usual_arithmetic(self, workload: Any) -> str:
        own = str(workload.arithmetic_dtype)
        convolves = getattr(getattr(workload, "spec", None), "matrix", None) == "convolution"
        return (
            "tf32"
            if own == "float32"
            and convolves
            and any(roof.name == "tf32" for roof in self.arithmetic)
            else own
        )

    def with_points(self, points: Iterable[RooflinePoint]) -> Roofline:
        """Return the same roofs with these points in place of the current ones.

        Raises
        ------
        InputError
            If one is not a point.
        """
        given = tuple(items("with_points", "points", points))
        if not all(isinstance(point, RooflinePoint) for point in given):
            raise InputError(
                f"with_points: {shown(given)} are not all points; expected results of place(). "
                "Pass a list of such points."
            )
        return dataclasses.replace(self, points=given)

    def __repr__(self) -> str:
        tops = [
            f"{roof.name} {format_flops_per_second(roof.flops_per_second)}"
            for roof in self.arithmetic
        ]
        slopes = [
            f"{roof.name} {format_bytes_per_second(roof.bytes_per_second)}" for roof in self.memory
        ]
        codes = f", notes: {', '.join(note.code for note in self.notes)}" if self.notes else ""
        rates = ", ".join(tops + slopes) or "nothing stated"
        return (
            f"<roofline of {self.device} ({self.evidence.badge}): {rates}, "
            f"{plural(len(self.points), 'point')}{codes}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the points, or without points the roofs, with a row that says so if no roof is
        stated; then the notes.
        """
        notes = [(f"note: {note.code}", note.sentence) for note in self.notes]
        if self.points:
            return _POINT_HEADERS, [
                *(_row(point) for point in self.points),
                *((*note, "", "", "", "") for note in notes),
            ]
        tops = [
            (roof.name, format_flops_per_second(roof.flops_per_second), roof.source)
            for roof in self.arithmetic
        ]
        rows = tops or [("arithmetic", _UNSTATED, "")]
        rows += [
            (roof.name, format_bytes_per_second(roof.bytes_per_second), roof.source)
            for roof in self.memory
        ]
        if all(roof.name != "DRAM" for roof in self.memory):
            rows.append(("DRAM", _UNSTATED, ""))
        return (self.device, "at most", "source"), [*rows, *((*note, "") for note in notes)]


def _named(roofs: Sequence[R], name: Any, what: str) -> R:
    found = next((roof for roof in roofs if roof.name == name), None)
    if found is None:
        known = ", ".join(roof.name for roof in roofs) or "none is known"
        raise InputError(
            f"roofline: no roof {shown(name)} among the {what}; expected one of: {known}. Pass one "
            "of these."
        )
    return found


def _amount(function: str, name: str, value: Any) -> float:
    if not is_finite(value) or value < 0:
        raise InputError(
            f"{function}: {name}={shown(value)}; expected a finite number from 0. Pass a count or "
            "a rate."
        )
    return float(value)


def _count(name: str, value: Any) -> float:
    amount = _amount("place", name, value)
    if 0.0 < amount < _LEAST_COUNT:
        raise InputError(
            f"place: {name}={shown(value)}; expected 0, or a count of one call. Pass whole "
            "operations and bytes."
        )
    return amount


def _predicted(top: ArithmeticRoof, level: MemoryRoof) -> Evidence:
    assumed = "arithmetic and traffic overlap fully, each byte moves once, nothing else takes time"
    source = f"the roofs {top.name} ({top.source}) and {level.name} ({level.source})"
    stated = Badge.MODELLED in (top.evidence.badge, level.evidence.badge)
    error = f"with measured roofs instead of stated ones {KNOWN_ERROR}" if stated else KNOWN_ERROR
    return Evidence.modelled(assumed, source, error, device=top.evidence.device)


def roofline(
    device: Any = None,
    ceilings: str | None = None,
    refresh: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Roofline:
    """Return the roofs of a device; ``place`` and ``place_workload`` put work beneath them.

    Parameters
    ----------
    device : Device, str or Recording, optional
        A device of this machine ("cpu", "cuda:0"; None takes the best one available), a product
        such as "H200" or "GeForce RTX 4090", a ``Recording``, or the name of one such as
        "nvidia-h200".
    ceilings : str, optional
        "measured": the best streams and matrix products of this machine, run now (about a second,
        once for the life of the process). "datasheet": what the vendor states, or the widths and
        clocks of a CPU, whose main memory has no stated rate. "recorded": the same streams and
        products on the recorded machine. None takes "measured" for a device of this machine, and
        the available kind for the others.
    refresh : bool
        Measure again instead of taking what this process measured before.
    stop : callable, optional
        Called while measuring; once it returns True, the measurement ends after the current call.

    Returns
    -------
    Roofline
        Each roof with its badge: MEASURED, MODELLED (data sheet) or RECORDED.

    Raises
    ------
    DeviceError
        If there is neither such a device nor such a product or recording.
    InputError
        If ``ceilings`` is not one of these names, or the recording has no ceilings.
    RecordingError
        If the recording is missing or damaged.
    StoppedError
        If it was stopped.

    Examples
    --------
    >>> h200 = roofline("H200")
    >>> round(h200.ridge_flops_per_byte("float32"), 1), h200.evidence.badge.value
    (14.0, 'MODELLED')
    >>> h200.place("axpy", flops=2e9, nbytes=12e9).bound_by
    'memory'
    """
    if ceilings is not None:
        word("roofline", "ceilings", ceilings, CEILINGS)
    if isinstance(device, recordings.Recording) and ceilings in (None, "recorded"):
        return _recorded(device)
    if ceilings == "recorded" or (
        ceilings is None and isinstance(device, str) and device in recordings.names()
    ):
        return _recorded(recordings.load(device))
    if ceilings != "measured" and isinstance(device, str) and datasheets.part(device) is not None:
        product = devices.Accelerator(device=None, name=device, kind="cuda")
        return _stated(specs.gpu_spec(product, device))
    try:
        where = devices.find(device)
    except DeviceError as error:
        products = ", ".join(part.name for part in datasheets.PARTS[:3])
        there = ", ".join(recordings.names()) or "none yet"
        raise DeviceError(
            f"roofline: {shown(device)} is not a device of this machine, a known product, or a "
            f"recording; expected one of {', '.join(map(str, devices.available()))}; a product "
            f"such as {products}; or a recording ({there}). Pass one of these."
        ) from error
    if ceilings == "datasheet":
        return _stated(devices.spec(where))
    shown_now = devices.ceilings(
        where, refresh=flag("roofline", "refresh", refresh), stop=callback("roofline", "stop", stop)
    )
    rates = {
        name: devices.Figure(rate, "the fastest matrix product, just measured")
        for name, rate in shown_now.flops_per_second.items()
    }
    return _from_levels(
        where.name, where.kind, rates.items(), shown_now.levels, shown_now.evidence, shown_now.notes
    )


def _stated(spec: devices.DeviceSpec) -> Roofline:
    rates = spec.flops_per_second.items()
    return _from_levels(spec.name, spec.kind, rates, spec.levels, spec.evidence)


def _from_levels(
    name: str,
    kind: str,
    rates: Iterable[tuple[str, devices.Figure]],
    levels: Iterable[devices.MemoryLevel],
    evidence: Evidence,
    notes: tuple[Note, ...] = (),
) -> Roofline:
    return Roofline(
        device=name,
        arithmetic=tuple(
            ArithmeticRoof(arithmetic, figure.value, figure.source, evidence)
            for arithmetic, figure in rates
        ),
        memory=tuple(
            MemoryRoof(
                level.name, level.bytes_per_second, level.capacity_bytes, level.source, evidence
            )
            for level in levels
            if level.bytes_per_second is not None
        ),
        points=(),
        notes=notes,
        evidence=evidence,
        device_kind=kind,
    )


def _recorded(recording: recordings.Recording) -> Roofline:
    """Main memory as the best of copy and triad, and the matrix product of each number format."""
    products, streams = [], []
    for entry in recording.select("ceilings"):
        timing, evidence = entry.timing, recording.evidence(entry)
        if timing is None:
            continue
        source = f"{entry.params.get('operation')} recorded on {recording.name}"
        if timing.flops:
            rate, name = timing.flops / timing.median_seconds, str(entry.params["dtype"])
            products.append(ArithmeticRoof(name, rate, source, evidence))
        elif timing.nbytes:
            rate = timing.nbytes / timing.median_seconds
            streams.append(MemoryRoof("DRAM", rate, math.inf, source, evidence))
    if not products or not streams:
        raise InputError(
            f"roofline: the recording {recording.name!r} has no ceilings; expected streams and "
            "matrix products. Record them with `gpulab record`, or pass a product's name for its "
            "data sheet."
        )
    best = max(streams, key=lambda roof: roof.bytes_per_second)
    where = recording.environment
    return Roofline(
        where.device, tuple(products), (best,), (), (), recording.evidence(), where.device_kind
    )
