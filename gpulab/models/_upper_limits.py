"""Upper limits: the roofline of a piece of work, and the text generation of a decoder.

Roofs come from a data sheet, from rates just measured on this machine, or from a recording, and
each keeps its badge. Nothing is drawn here. Source of the model: Williams, Waterman and Patterson,
"Roofline: An Insightful Visual Performance Model", CACM 52 (4), 2009.

``inference(model, device)`` puts a decoder under these roofs. Decode computes one new position of
each sequence: it reads every weight once for the whole batch, and each sequence's own cache.
Prefill computes all positions of one prompt at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from gpulab import devices, recordings
from gpulab._validate import (
    arguments,
    callback,
    flag,
    instance,
    items,
    positive,
    whole,
    within,
    word,
)
from gpulab.devices import datasheets, specs
from gpulab.devices.memory_sizes import gpus
from gpulab.devices.memory_sizes import memory_bytes as product_memory_bytes
from gpulab.errors import DeviceError, InputError, shown
from gpulab.evidence import Badge, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_number,
    format_seconds,
    plural,
)

# The roofline.

Bound = Literal["memory", "arithmetic"]
# What benchmarks/model_errors.py prints for the shipped recordings; a test compares the two.
KNOWN_ERROR = (
    "on amd-epyc-2-cores the recorded time is 1.4 times the model's in the median of 80 cases, "
    "0.61 to 13 times in the middle 80 %; on amd-epyc-avx2-2-cores the recorded time is 1.8 times "
    "the model's in the median of 83 cases, 1.1 to 7.5 times in the middle 80 %; on nvidia-h100 "
    "the recorded time is 1.2 times the model's in the median of 13 cases, 1 to 14 times in the "
    "middle 80 %; on nvidia-h200 the recorded time is 1.8 times the model's in the median of 23 "
    "cases, 1.1 to 33 times in the middle 80 %"
)
_UNSTATED = "not stated for this device"
_POINT_HEADERS = ("work", "FLOP per byte", "bound by", "attainable", "reached", "of the roof")


class ArithmeticRoof(NamedTuple):
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


class MemoryRoof(NamedTuple):
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
        # rounded as in the sentence: a point up to half a per cent above the roof counts as on it
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

    def table(self) -> Table:
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
        As ``Device.kind``: "cpu", "cuda", "rocm", "xpu" or "mps"; "cpu" also for a file of version
        1, which does not store the kind.
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
        """Return the roof of one level of memory. Without a name, take the fastest level that holds
        the working set; only main memory holds an infinite one.

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

    @arguments(
        flops=within,
        nbytes=within,
        seconds=partial(positive, advice="Pass the time that was measured."),
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
            Where ``seconds`` comes from; required with it, and only with it.
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
        if not flops and not nbytes:
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
        if working_set_bytes != math.inf:
            within("place", "working_set_bytes", working_set_bytes)
        top, level = self.arithmetic_roof(arithmetic), self.memory_roof(memory, working_set_bytes)
        computing, moving = flops / top.flops_per_second, nbytes / level.bytes_per_second
        return RooflinePoint(
            label=label,
            flops=flops,
            nbytes=nbytes,
            arithmetic=top.name,
            memory=level.name,
            attainable_seconds=max(computing, moving),
            bound_by="memory" if moving > computing else "arithmetic",
            seconds=seconds,
            evidence=evidence if evidence is not None else _predicted(top, level),
        )

    def place_workload(
        self, workload: Any, measurement: Any = None, *, arithmetic: str | None = None
    ) -> RooflinePoint:
        """Return the position of a workload of the catalog under the roofs.

        Parameters
        ----------
        workload : Workload
            From ``gpulab.workloads``; its FLOPs, bytes and working set are counted there.
        measurement : Measurement, optional
            The result of ``gl.measure`` for this workload, or a recorded measurement; the point
            keeps its badge. None places a prediction.
        arithmetic : str, optional
            None takes PyTorch's default: TF32 for convolutions of float32 where the roofs have it,
            else the workload's number format. Pass "tf32" if TF32 was also allowed for matrix
            products, or "float32" if it was forbidden for convolutions.

        Returns
        -------
        RooflinePoint

        Raises
        ------
        InputError
            If these are not a workload and a measurement, or the roofline lacks that arithmetic.
        """
        is_timed = measurement is None or hasattr(measurement, "median_seconds")
        if not hasattr(workload, "working_set_bytes") or not is_timed:
            raise InputError(
                f"place_workload: {shown(workload)} with the measurement {shown(measurement)}; "
                'expected a workload such as gl.workloads.get("matmul")(n=1024), and the result of '
                "gl.measure or None. Pass these."
            )
        usual = str(workload.dtype)
        convolves = getattr(getattr(workload, "spec", None), "matrix", None) == "convolution"
        if (
            usual == "float32"
            and convolves
            and any(roof.name == "tf32" for roof in self.arithmetic)
        ):
            usual = "tf32"
        point = self.place(
            workload.label,
            workload.flops,
            workload.nbytes,
            seconds=None if measurement is None else measurement.median_seconds,
            evidence=None if measurement is None else measurement.evidence,
            arithmetic=usual if arithmetic is None else arithmetic,
            working_set_bytes=workload.working_set_bytes,
        )
        return dataclasses.replace(
            point, interval_seconds=getattr(measurement, "interval_seconds", None)
        )

    def with_points(self, points: Iterable[RooflinePoint]) -> Roofline:
        """Return the same roofs with these points in place of the current ones.

        Raises
        ------
        InputError
            If one is not a point.
        """
        given = (
            instance(
                "with_points", "a point", point, RooflinePoint, "a result of place(). Pass one."
            )
            for point in items("with_points", "points", points)
        )
        return dataclasses.replace(self, points=tuple(given))

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

    def table(self) -> Table:
        """Return the points, or the roofs if there are no points; then the notes. If no rate of
        arithmetic or of main memory is stated, a row says so.
        """
        if self.points:
            rows = [_row(point) for point in self.points]
            return _POINT_HEADERS, rows + note_rows(self.notes, len(_POINT_HEADERS))
        tops = [
            (roof.name, format_flops_per_second(roof.flops_per_second), roof.source)
            for roof in self.arithmetic
        ]
        rates = tops or [("arithmetic", _UNSTATED, "")]
        rates += [
            (roof.name, format_bytes_per_second(roof.bytes_per_second), roof.source)
            for roof in self.memory
        ]
        if all(roof.name != "DRAM" for roof in self.memory):
            rates.append(("DRAM", _UNSTATED, ""))
        return (self.device, "at most", "source"), [*rates, *note_rows(self.notes, 3)]


def _named(roofs: Sequence[R], name: Any, what: str) -> R:
    known = {roof.name: roof for roof in roofs}
    return known[word("roofline", f"a roof of the {what}", name, known)]


def _predicted(top: ArithmeticRoof, level: MemoryRoof) -> Evidence:
    assumed = "arithmetic and traffic overlap fully, each byte moves once, nothing else takes time"
    source = f"the roofs {top.name} ({top.source}) and {level.name} ({level.source})"
    stated = Badge.MODELLED in (top.evidence.badge, level.evidence.badge)
    error = f"with measured roofs instead of stated ones {KNOWN_ERROR}" if stated else KNOWN_ERROR
    return Evidence.modelled(assumed, source, error, device=top.evidence.device)


@arguments(
    ceilings=partial(word, known=("measured", "datasheet", "recorded")),
    refresh=flag,
    stop=callback,
)
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
        If ``stop`` ended the measurement.

    Examples
    --------
    >>> h200 = roofline("H200")
    >>> round(h200.ridge_flops_per_byte("float32"), 1), h200.evidence.badge.value
    (14.0, 'MODELLED')
    >>> h200.place("axpy", flops=2e9, nbytes=12e9).bound_by
    'memory'
    """
    if isinstance(device, recordings.Recording) and ceilings in (None, "recorded"):
        return _recorded(device)
    if ceilings == "recorded" or (
        ceilings is None and isinstance(device, str) and device in recordings.names()
    ):
        return _recorded(recordings.load(device))
    if ceilings != "measured" and isinstance(device, str) and datasheets.part(device) is not None:
        return _stated(specs.gpu_spec(devices.Accelerator(None, device, "cuda"), device))
    try:
        where = devices.find(device)
    except DeviceError as error:
        names = [part.name for part in datasheets.parts()]
        products = ", ".join(difflib.get_close_matches(str(device).upper(), names) or names[:3])
        raise DeviceError(
            f"roofline: {shown(device)} is not a device of this machine, a known product, or a "
            f"recording; expected one of {', '.join(map(str, devices.available()))}; a product "
            f"such as {products}; or a recording ({', '.join(recordings.names()) or 'none yet'}). "
            "Pass one of these."
        ) from error
    if ceilings == "datasheet":
        return _stated(devices.spec(where))
    shown_now = devices.ceilings(where, refresh=refresh, stop=stop)
    rates = {
        name: devices.Figure(rate, "the fastest matrix product, just measured")
        for name, rate in shown_now.flops_per_second.items()
    }
    return _from_levels(
        where.name, where.kind, rates.items(), shown_now.levels, shown_now.evidence, shown_now.notes
    )


def _stated(spec: devices.DeviceSpec) -> Roofline:
    return _from_levels(
        spec.name, spec.kind, spec.flops_per_second.items(), spec.levels, spec.evidence
    )


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
    """Return the roofs of a recording: its fastest stream (copy or triad) for main memory, and its
    matrix product of each number format.
    """
    recorded: list[tuple[Any, ...]] = [
        (
            entry.timing,
            entry.params.get("dtype"),
            f"{entry.params.get('operation')} recorded on {recording.name}",
            recording.evidence(entry),
        )
        for entry in recording.select("ceilings")
        if entry.timing is not None
    ]
    products = [
        ArithmeticRoof(str(dtype), timing.flops / timing.median_seconds, *origin)
        for timing, dtype, *origin in recorded
        if timing.flops
    ]
    streams = [
        MemoryRoof("DRAM", timing.nbytes / timing.median_seconds, math.inf, *origin)
        for timing, _, *origin in recorded
        if timing.nbytes and not timing.flops
    ]
    if not products or not streams:
        raise InputError(
            f"roofline: the recording {recording.name!r} has no ceilings; expected streams and "
            "matrix products. Record them with `gpulab record`, or pass a product's name for its "
            "data sheet."
        )
    best = max(streams, key=lambda roof: roof.bytes_per_second)
    where = recording.environment
    evidence = recording.evidence(experiment="ceilings")
    return Roofline(where.device, tuple(products), (best,), (), (), evidence, where.device_kind)


# Text generation.

Limit = Literal["weights", "cache", "arithmetic"]
# Bits per stored weight. int4 has 4.5, because a group of 32 codes shares a scale of 16 bits.
WEIGHT_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}
CACHE_BITS = {"float32": 32.0, "bfloat16": 16.0, "float8": 8.0}
_COUNT = partial(whole, low=1, high=10**8)


@dataclass(frozen=True)
class LanguageModel(Result):
    """The shape of a decoder: attention and a feed-forward network in each layer.

    Attributes
    ----------
    name : str
    layers, width : int
    heads, kv_heads, head_size : int
        Query heads; heads of keys and values (fewer with grouped-query attention); numbers in one
        head.
    feed_width : int
        Width of the feed-forward network's inner layer.
    vocabulary : int
        Tokens.
    matrices : int
        Matrices of the feed-forward network: 3 with a gate (SwiGLU), else 2.
    tied : bool
        Whether the output layer uses the embedding table as its weights.
    biases : bool
        Whether the projections to queries, keys and values have biases.
    source : str
        Where the figures are published.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_width: int
    vocabulary: int
    matrices: int = 3
    tied: bool = False
    biases: bool = False
    source: str = "your own figures"

    def __post_init__(self) -> None:
        """Check that counts are whole numbers from 1, and flags booleans."""
        for name, kind in LanguageModel.__annotations__.items():
            value = getattr(self, name)
            if kind == "int":  # NumPy's integers become Python's
                advice = "Take it from the model's configuration."
                count = _COUNT("LanguageModel", name, value, advice=advice)
                object.__setattr__(self, name, count)
            elif kind == "bool":
                flag("LanguageModel", name, value)

    @property
    def read_parameters(self) -> int:
        """The parameters that a decode step reads: all except the embedding table, of which it
        needs only single rows. A tied table counts, as the output layer.
        """
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.width * (2 * queries + 2 * keys) + self.biases * (queries + 2 * keys)
        layer = attention + self.matrices * self.width * self.feed_width + 2 * self.width
        return self.layers * layer + self.width + self.vocabulary * self.width

    @property
    def parameter_count(self) -> int:
        """All parameters."""
        return self.read_parameters + (0 if self.tied else self.vocabulary * self.width)

    def cache_bytes(self, positions: int, bits: float = 16.0) -> float:
        """Return the bytes of one sequence's keys and values, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * positions * bits / 8


# The configurations published with the weights on huggingface.co. The tests compare
# ``parameter_count`` with the published totals.
LANGUAGE_MODELS = {
    model.name: model
    for model in (
        LanguageModel(
            *("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128_256),
            tied=True,
            source="config.json of meta-llama/Llama-3.2-1B",
        ),
        LanguageModel(
            *("Llama 2 7B", 32, 4096, 32, 32, 128, 11_008, 32_000),
            source="config.json of meta-llama/Llama-2-7b-hf",
        ),
        LanguageModel(
            *("Mistral 7B", 32, 4096, 32, 8, 128, 14_336, 32_000),
            source="config.json of mistralai/Mistral-7B-v0.1, without its window of 4,096 "
            "positions",
        ),
        LanguageModel(
            *("Qwen 2.5 7B", 28, 3584, 28, 4, 128, 18_944, 152_064),
            biases=True,
            source="config.json of Qwen/Qwen2.5-7B",
        ),
        LanguageModel(
            *("Llama 3 8B", 32, 4096, 32, 8, 128, 14_336, 128_256),
            source="config.json of meta-llama/Meta-Llama-3-8B",
        ),
        LanguageModel(
            *("Llama 3.1 70B", 80, 8192, 64, 8, 128, 28_672, 128_256),
            source="config.json of meta-llama/Llama-3.1-70B",
        ),
    )
}


@dataclass(frozen=True, repr=False)
class InferencePlan(Result):
    """Memory and least times of generating text with one model on one device.

    Attributes
    ----------
    model : LanguageModel
    device : str
    weights, cache : str
        Their storage formats.
    context, batch : int
        Positions that each sequence's cache holds, and sequences.
    weight_bytes, cache_bytes : float
        Of all weights, and of one sequence's cache.
    memory_bytes : float or None
        Of the device; None where not known.
    largest_batch : int or None
        Sequences of this context that fit beside the weights, without room for activations. 0 if
        not even one fits; None where the memory is not known.
    step_seconds : float
        Of one step of decode: a new token for each sequence.
    prefill_seconds : float
        Of reading a prompt of ``context`` tokens: the least time to the first token.
    limit : str
        What takes most of the step's time: reading the "weights", reading the "cache", or
        "arithmetic".
    knee : float
        The batch at which arithmetic takes as long as reading; infinite if reading always takes
        longer, because each further sequence adds a cache to read.
    evidence : Evidence
        MODELLED.
    """

    model: LanguageModel
    device: str
    weights: str
    cache: str
    context: int
    batch: int
    weight_bytes: float
    cache_bytes: float
    memory_bytes: float | None
    largest_batch: int | None
    step_seconds: float
    prefill_seconds: float
    limit: Limit
    knee: float
    evidence: Evidence

    @property
    def tokens_per_second(self) -> float:
        """New tokens of the whole batch."""
        return self.batch / self.step_seconds

    @arguments(price_per_hour=within)
    def cost_per_million_tokens(self, price_per_hour: float) -> float:
        """Return the price of a million new tokens, in the currency of ``price_per_hour``.

        Raises
        ------
        InputError
            If the price is not 0 or more.
        """
        return price_per_hour / 3600 / self.tokens_per_second * 1e6

    @property
    def explanation(self) -> str:
        """One or two sentences: what limits a step, and whether everything fits."""
        why = {
            "weights": "reading the weights, which the whole batch shares: a further sequence "
            "adds only its own cache",
            "cache": "reading the caches, one for each sequence: a larger batch takes longer",
            "arithmetic": "arithmetic: a larger batch only takes longer",
        }[self.limit]
        if self.largest_batch is None or self.batch <= self.largest_batch:
            return f"Most of a step goes to {why}."
        room = (
            f"at most {plural(self.largest_batch, 'sequence')} can be held"
            if self.largest_batch
            else "not even one sequence fits beside the weights"
        )
        return f"This does not fit: {room}. If it did, most of a step would go to {why}."

    def __repr__(self) -> str:
        return (
            f"<InferencePlan {self.model.name} on {self.device}, batch {self.batch}: "
            f"{self.tokens_per_second:,.0f} tokens/s at most>"
        )

    def table(self) -> Table:
        """Return memory, times and rates, a row for each."""
        memory = "not known" if self.memory_bytes is None else format_bytes(self.memory_bytes)
        fits = "not known" if self.largest_batch is None else plural(self.largest_batch, "sequence")
        return ("model", self.model.name), [
            (f"weights, {self.weights}", format_bytes(self.weight_bytes)),
            (f"cache of a sequence, {self.context:,} positions", format_bytes(self.cache_bytes)),
            (f"largest batch ({memory})", fits),
            ("time to the first token, at least", format_seconds(self.prefill_seconds)),
            (f"time of a step, batch {self.batch:,}, at least", format_seconds(self.step_seconds)),
            ("tokens per second, at most", format_number(self.tokens_per_second)),
            ("tokens per second of each sequence, at most", format_number(1 / self.step_seconds)),
        ]


@arguments(
    context=_COUNT,
    batch=_COUNT,
    weights=partial(word, known=WEIGHT_BITS),
    cache=partial(word, known=CACHE_BITS),
    memory_bytes=within,
)
def inference(
    model: LanguageModel | str,
    device: Any = None,
    *,
    context: int = 4096,
    batch: int = 1,
    weights: str = "bfloat16",
    cache: str = "bfloat16",
    memory_bytes: float | None = None,
) -> InferencePlan:
    """Return memory and least times of generating text with a decoder.

    Parameters
    ----------
    model : LanguageModel or str
        A shape, or the name of one in ``LANGUAGE_MODELS``.
    device : Roofline, Device, str or Recording, optional
        As ``roofline`` takes it: a device of this machine, a product such as "H200 SXM", or a
        recording.
    context : int
        Positions of each sequence: the length of its cache, and of the prompt.
    batch : int
        Sequences that decode together.
    weights : str
        "float32", "bfloat16", "int8" or "int4" (groups of 32 with a scale of 16 bits). Only storage
        is affected: arithmetic is in float32 for "float32", else in bfloat16, float16 or float32,
        whichever is fastest on the device.
    cache : str
        "float32", "bfloat16" or "float8".
    memory_bytes : float, optional
        Of the device; None takes the size of its main memory, where that is known: for a recording
        or a product, the size of its boards.

    Returns
    -------
    InferencePlan
        Upper limits of speed: a perfect kernel, and nothing between kernels. MODELLED.

    Raises
    ------
    InputError
        If there is no such model or format, a number is not positive, or the roofline has no such
        arithmetic or no rate of the main memory.
    DeviceError
        If there is no such device.

    Notes
    -----
    FLOPs: 2 for each parameter and token, and 4 x layers x heads x head size for each earlier
    position in attention. In a causal prefill, attention needs half of that on average, and the
    output layer scores only the token after the last position. Bytes: the weights once, and the
    cache of each sequence. Source: Pope et al., "Efficiently Scaling Transformer Inference", MLSys
    2023.

    Examples
    --------
    >>> p = inference("Llama 3 8B", "H100 SXM", context=8192)
    >>> p.limit, round(p.tokens_per_second)
    ('weights', 208)
    """
    shape = (
        LANGUAGE_MODELS[word("inference", "model", model, LANGUAGE_MODELS)]
        if isinstance(model, str)
        else instance("inference", "model", model, LanguageModel, "a LanguageModel. Pass one.")
    )
    bits = WEIGHT_BITS[weights]
    roofs = device if isinstance(device, Roofline) else roofline(device)
    # A T4 or V100 computes bfloat16 at the rate of float32 and has Tensor Cores for float16: there
    # a kernel that converts the weights is several times as fast.
    formats = ("float32",) if weights == "float32" else ("bfloat16", "float16", "float32")
    usable = [roof for roof in roofs.arithmetic if roof.name in formats]
    top = max(usable or [roofs.arithmetic_roof()], key=lambda roof: roof.flops_per_second)
    peak = top.flops_per_second
    memory = roofs.memory_roof()
    room = memory_bytes if memory_bytes is not None else memory.capacity_bytes
    # by any name of the product, such as the driver's in a recording
    if room == math.inf and (part := datasheets.part(roofs.device)) and part.name in gpus():
        room = product_memory_bytes(part.name)
    stored = shape.parameter_count * bits / 8
    read = shape.read_parameters * bits / 8
    own = shape.cache_bytes(context, CACHE_BITS[cache])
    attention = 4 * shape.layers * shape.heads * shape.head_size * context
    of_token = 2 * shape.read_parameters + attention
    scores = 2 * shape.vocabulary * shape.width  # a prompt needs those of its last position alone
    reading: dict[Limit, float] = {
        "weights": read / memory.bytes_per_second,
        "cache": batch * own / memory.bytes_per_second,
    }
    computing = batch * of_token / peak
    spare = of_token / peak - own / memory.bytes_per_second
    return InferencePlan(
        model=shape,
        device=roofs.device,
        weights=weights,
        cache=cache,
        context=context,
        batch=batch,
        weight_bytes=stored,
        cache_bytes=own,
        memory_bytes=room if math.isfinite(room) else None,
        largest_batch=max(0, int((room - stored) // own)) if math.isfinite(room) else None,
        step_seconds=max(sum(reading.values()), computing),
        prefill_seconds=max(
            reading["weights"],
            (context * (2 * shape.read_parameters - scores + attention / 2) + scores) / peak,
        ),
        limit="arithmetic"
        if computing > sum(reading.values())
        else max(reading, key=reading.__getitem__),
        knee=reading["weights"] / spare if spare > 0 else math.inf,
        evidence=Evidence.modelled(
            "each byte is read once at the rate of main memory, arithmetic runs at its peak, and "
            "nothing waits between kernels",
            "; ".join(
                [
                    f"{shape.name}: {shape.source}",
                    f"{top.name}: {top.source}",
                    *([f"main memory: {memory.source}"] if memory.source != top.source else []),
                ]
            ),
            "Llama 3.2 1B with 2,048 positions, recorded: a step as a graph takes 2.1 times as "
            "long at batch 1 and 1.5 times at batch 64 on an H100 (2.7 times at batch 1 on an "
            "H200), the prefill 2.2 times (2.0 times)",
            device=roofs.device,
        ),
    )
