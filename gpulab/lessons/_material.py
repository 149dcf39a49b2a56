"""What the notebooks show and their exercises ask about, notebook by notebook: claims and a contest
of two devices (00), two processors and a latency curve (01), the roofs of this machine (03), the
network that is made lighter (07), and models to be trained on several GPUs (08).

Values are from the learner's own machine; what cannot be measured here is recorded or modelled,
with its badge. What an exercise asks about is kept until the kernel ends, so that the checks use
the numbers that the learner saw.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpulab import compression, devices, hierarchy, models, recordings, timing, transfer, workloads
from gpulab.devices import Device, Processor, datasheets
from gpulab.devices.memory_sizes import memory_bytes
from gpulab.errors import InputError, MissingLibraryError
from gpulab.evidence import Badge, Evidence, Note, known_errors
from gpulab.hierarchy import Latency
from gpulab.lessons._recorded import accelerator_of, limits_of, recorded_gpus, with_captions
from gpulab.results import Result
from gpulab.timing import Measurement
from gpulab.timing.recorded import measurement
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_seconds,
    plural,
)

# of notebook 00
_POINT_SECONDS = 0.25
_GIB = 2**30
# The modelled opponent of machines without an accelerator: the GPU and the link that recordings are
# made on.
_PROCESSOR, _LINK = "nvidia-h200", "pcie5-x16"
# Which sizes of a workload a contest walks through: half a minute of CPU would be too long, so
# matmul ends at 1024.
_CONTEST_SIZES = {
    "matmul": (64, 128, 256, 512, 1024),
    "add": (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 24),
}
# Notes that say that something else used or slowed the CPU: it only ever makes a time longer.
_DISTURBANCES = ("contended", "stalled", "throttled")
# A disturbed time is taken again this often at most: half a second a size, and a short disturbance
# is over by then.
_TRIES = 3
# What others do to an accelerator's times. A clock held down is no disturbance there: a GPU at its
# power limit gives what it gives.
_NEIGHBOURS = ("contended", "stalled")
# Notes that are no disturbance: set-up, batching and the deadline are as they should be here.
_EXPECTED_NOTES = ("slow-first-call", "too-short", "deadline", "warm-cache", "turn-taking")
_claims: Claims | None = None
_contests: dict[tuple[str, str], Contest] = {}
# of notebook 01
# The GPU that machines without one are compared with: the one that recordings are made on.
_REFERENCE = "H200"
_REGISTER_BYTES = 4
# Bytes of a vector register and their number, by the widest instruction set (Intel SDM vol. 1; Arm
# ARM, Advanced SIMD).
_VECTORS = {
    "avx512f": (64, 32),
    "avx2": (32, 16),
    "avx": (32, 16),
    "neon": (16, 32),
    "asimd": (16, 32),
    "sse2": (16, 16),
}
_curve: Latency | None = None
# of notebook 03
# A ceiling is the best that was seen; where neighbours were at work it is looked for this often.
_ROOF_TRIES = 2
# Where a CPU is busy: products from a fraction of a millisecond to 200 milliseconds, each size for
# a while.
_PRODUCTS, _PRODUCT_SECONDS = (256, 512, 1024), 0.3
_roof: models.Roofline | None = None
_FIVE: Mapping[str, tuple[str, int, dict[str, int]]] = {
    "add": ("add", 1 << 24, {}),
    "sum": ("sum", 1 << 24, {}),
    "softmax": ("softmax", 1 << 14, {}),
    "one row": ("linear", 1, {"features": 4096}),
    "matmul": ("matmul", 1024, {}),
}
# of notebook 07
_trained: dict[str, Any] = {}
# of notebook 08
VOCABULARY, CONTEXT, HEADS, LAYERS = 32_000, 1024, 16, 4


def disturbed(codes: Iterable[str]) -> bool:
    """Return whether, by the notes of a measurement, something else used or slowed the CPU, so that
    its time may be too long.
    """
    return any(code in _DISTURBANCES for code in codes)


@dataclass(frozen=True)
class Claim(Result):
    """One claimed timing.

    Attributes
    ----------
    letter, work : str
        "A" to "D"; the work that was done.
    nbytes : float
        Bytes read and written; the table does not show them.
    seconds : float
        The claimed time.
    """

    letter: str
    work: str
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Claims(Result):
    """Four claims about this machine's main memory, one of them impossible.

    Attributes
    ----------
    claims : tuple of Claim
    ceiling_bytes_per_second : float
        The bandwidth of this machine's memory.
    evidence : Evidence
    """

    claims: tuple[Claim, ...]
    ceiling_bytes_per_second: float
    evidence: Evidence

    def __repr__(self) -> str:
        lines = [
            f"  {claim.letter}: {claim.work} in {format_seconds(claim.seconds)}"
            for claim in self.claims
        ]
        return "\n".join(
            [
                f"Memory moves at most {format_bytes_per_second(self.ceiling_bytes_per_second)}. "
                "Four claims:",
                *lines,
            ]
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per claim."""
        return ("claim", "the work (float32)", "time claimed"), [
            (c.letter, c.work, format_seconds(c.seconds)) for c in self.claims
        ]

    def caption(self) -> str:
        """Return the badge and the ceiling."""
        return (
            f"{self.evidence.sentence} · your main memory moves at most "
            f"{format_bytes_per_second(self.ceiling_bytes_per_second)} (MEASURED)"
        )


def four_claims() -> Claims:
    """Return four claimed timings on this machine, of which exactly one is impossible.

    They are made up for the exercise from the measured ceiling of your main memory
    (``devices.ceilings``): three are below it, one is three times above. All move gigabytes, so no
    cache can explain a rate. They stay the same until the kernel ends, so that the check uses the
    numbers that the learner saw.
    """
    global _claims
    if _claims is None:
        _claims = _make_claims(devices.ceilings("cpu").bandwidth())
    return _claims


def _make_claims(ceiling: float) -> Claims:
    # (work, bytes moved, share of the ceiling): the impossible one is neither the shortest nor the
    # longest time.
    plan = (
        ("add up an array of 2 GiB", 2 * _GIB, 0.9),
        ("copy an array of 4 GiB", 8 * _GIB, 0.5),
        ("add two arrays of 8 GiB each into a third", 24 * _GIB, 3.0),
        ("take the square root of an array of 8 GiB in place", 16 * _GIB, 0.7),
    )
    claims = tuple(
        Claim(letter, work, float(moved), moved / (share * ceiling))
        for letter, (work, moved, share) in zip("ABCD", plan, strict=True)
    )
    made = Evidence.modelled(
        "exercise data: times set to chosen shares of the measured ceiling",
        "gl.lessons.four_claims",
        "not a measurement",
    )
    return Claims(claims, ceiling, made)


@dataclass(frozen=True)
class ContestRow(Result):
    """One size of a contest; seconds per call.

    Attributes
    ----------
    n : int
    cpu_seconds : float
    returned_seconds, accelerator_seconds, with_copies_seconds : float
        On the accelerator: until the call returned; until it was done, with the data already there;
        with the inputs sent and the result fetched.
    notes : str
        The codes of the CPU measurement's notes, such as "contended".
    accelerator_notes : str
        Those of the accelerator's times, measured or recorded, such as "throttled".
    """

    schema_version: ClassVar[int] = 2
    n: int
    cpu_seconds: float
    returned_seconds: float
    accelerator_seconds: float
    with_copies_seconds: float
    notes: str = ""
    accelerator_notes: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether the CPU's time may be too long because something else used the CPU."""
        return disturbed(self.notes.split(", "))


@dataclass(frozen=True)
class Contest(Result):
    """One workload over sizes: this machine's CPU compared with an accelerator.

    Attributes
    ----------
    label, size_meaning, accelerator : str
    rows : tuple of ContestRow
    evidence : Evidence
        Of the accelerator's columns.
    cpu_evidence : Evidence
        Of the CPU's column, which is measured here.
    """

    label: str
    size_meaning: str
    accelerator: str
    rows: tuple[ContestRow, ...]
    evidence: Evidence
    cpu_evidence: Evidence

    @property
    def sides(self) -> dict[str, Evidence]:
        """The evidence of each side by its name."""
        return {"the CPU": self.cpu_evidence, "the accelerator": self.evidence}

    @property
    def wins_from(self) -> int | None:
        """The smallest size from which the accelerator, copies included, stays ahead up to the
        largest; None if there is none.
        """
        found = None
        for row in reversed(self.rows):
            if row.with_copies_seconds >= row.cpu_seconds:
                break
            found = row.n
        return found

    def __repr__(self) -> str:
        return f"<{self.label}: CPU against {self.accelerator} at {plural(len(self.rows), 'size')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per size."""
        badge = str(self.evidence.badge)
        headers = (
            self.size_meaning,
            "CPU (MEASURED)",
            f"{badge}: returned",
            f"{badge}: done",
            f"{badge}: with copies",
            "notes on the CPU",
            "on the accelerator",
        )
        return headers, [
            (
                str(row.n),
                *map(
                    format_seconds,
                    (
                        row.cpu_seconds,
                        row.returned_seconds,
                        row.accelerator_seconds,
                        row.with_copies_seconds,
                    ),
                ),
                row.notes or "none",
                row.accelerator_notes or "none",
            )
            for row in self.rows
        ]

    def caption(self) -> str:
        """Return the device of the accelerator's columns, and their badge."""
        badge, _, rest = self.evidence.sentence.partition(" ")
        return (
            f"{badge} · the accelerator's columns: {self.accelerator} · {rest.removeprefix('· ')}"
        )


def contest(workload: str = "matmul", dtype: str = "float32", again: bool = False) -> Contest:
    """Measure a workload on this CPU over sizes, and compare with an accelerator.

    The accelerator is the one of this machine, or a recorded one, or a modelled one, in this order.
    The table is kept until the kernel ends, so that an exercise uses the numbers that the learner
    saw.

    Parameters
    ----------
    workload : str
        "matmul" or "add".
    dtype : str
    again : bool
        Measure again.

    Raises
    ------
    InputError
        If the contest has no such workload.
    """
    if workload not in _CONTEST_SIZES:
        raise InputError(
            f"contest: {workload!r} has no sizes here; expected one of "
            f"{', '.join(_CONTEST_SIZES)}. Pass one of these."
        )
    key = (workload, dtype)
    if key in _contests and not again:
        return _contests[key]
    works = [workloads.get(workload)(n=n, dtype=dtype) for n in _CONTEST_SIZES[workload]]
    name, evidence, times = _opponent(works)
    rows = tuple(_row(work, times(work)) for work in works)
    here = Evidence.measured(devices.find("cpu").name)
    _contests[key] = Contest(
        f"{workload} {dtype}", works[0].spec.size_meaning, name, rows, evidence, here
    )
    return _contests[key]


# Returned, done, with both copies, and the codes of the notes.
Times = Callable[[workloads.Workload], tuple[float, float, float, str]]


def _row(work: workloads.Workload, accelerator: tuple[float, float, float, str]) -> ContestRow:
    m = _undisturbed(work)
    returned, done, copied, notes = accelerator
    return ContestRow(work.n, m.median_seconds, returned, done, copied, _codes(m), notes)


def _codes(m: Measurement) -> str:
    return ", ".join(
        dict.fromkeys(note.code for note in m.notes if note.code not in _EXPECTED_NOTES)
    )


def _undisturbed(work: workloads.Workload) -> Measurement:
    """Return the CPU's measurement; one that was disturbed is made again, and of several the
    shortest stays.
    """
    tried: list[Measurement] = []
    inputs = work.inputs("cpu")
    while len(tried) < _TRIES:
        m = timing.measure(
            work.run, *inputs, device="cpu", deadline=_POINT_SECONDS, label=work.label
        )
        if not disturbed(note.code for note in m.notes):
            return m
        tried.append(m)
    return min(tried, key=lambda m: m.median_seconds)


def _opponent(works: list[workloads.Workload]) -> tuple[str, Evidence, Times]:
    device = devices.default()
    if not device.is_cpu:
        return device.name, Evidence.measured(device.name), lambda work: _live(work, device)
    found = [_recorded(work) for work in works]
    for machine in sorted(set.intersection(*(set(each) for each in found))):
        there = {work.n: each[machine] for work, each in zip(works, found, strict=True)}
        if all(
            m.environment.device_kind != "cpu" and m.with_transfer_seconds is not None
            for m in there.values()
        ):
            evidence = there[works[0].n].evidence
            return evidence.device, evidence, functools.partial(_looked_up, there)
    return _modelled(transfer.processor(_PROCESSOR), transfer.link(_LINK, memory="pageable"))


def _recorded(work: workloads.Workload) -> dict[str, Measurement]:
    """Return what each recorded machine measured for a workload; a recording that cannot be read is
    left out, as in all notebooks.
    """
    found = {}
    for name, recording in recordings.readable().items():
        entry = recording.find("catalogue", workload=work.name, n=work.n, dtype=work.dtype)
        m = None if entry is None else measurement(recording, entry)
        if m is not None:
            found[name] = m
    return found


def _modelled(chip: transfer.ProcessorModel, link: transfer.Link) -> tuple[str, Evidence, Times]:
    """Return an accelerator that computes by a processor's formula and copies each array over a
    link's.
    """

    def times(work: workloads.Workload) -> tuple[float, float, float, str]:
        inside = chip.seconds(work.flops, work.nbytes, work.dtype)
        arrays = 3  # both workloads of a contest send two arrays and fetch one of the same size
        return chip.launch_seconds, inside, inside + arrays * link.seconds(work.nbytes / arrays), ""

    evidence = Evidence.modelled(
        f"{chip.evidence.assumptions}; each array copied separately over {link.name}, "
        f"{link.evidence.assumptions}",
        f"{chip.evidence.source}; {link.evidence.source}",
        known_errors(link=link.evidence, compute=chip.evidence),
    )
    return f"a modelled {chip.name}", evidence, times


def _looked_up(
    there: Mapping[int, Measurement], work: workloads.Workload
) -> tuple[float, float, float, str]:
    return *_three_times(there[work.n]), _codes(there[work.n])


def _three_times(m: Measurement) -> tuple[float, float, float]:
    copies = m.with_transfer_seconds if m.with_transfer_seconds is not None else m.median_seconds
    return m.launch_seconds, m.median_seconds, copies


def _live(work: workloads.Workload, device: Any) -> tuple[float, float, float, str]:
    """Return the three times on this machine's accelerator; where others disturb them, the shortest
    of each in a few tries.
    """
    inputs = work.inputs(device)
    tried: list[tuple[float, float, float]] = []
    while len(tried) < _TRIES:
        m = timing.measure(
            work.run,
            *inputs,
            device=device,
            deadline=_POINT_SECONDS,
            transfer=True,
            label=work.label,
        )
        tried.append(_three_times(m))
        if not any(note.code in _NEIGHBOURS for note in m.notes):
            break
    returned, done, copied = (min(times) for times in zip(*tried, strict=True))
    return returned, done, copied, _codes(m)


@dataclass(frozen=True)
class SideBySide(Result):
    """Your CPU compared with a GPU.

    Attributes
    ----------
    cpu, gpu : str
        Their names.
    rows : tuple of (str, str, str)
        Name of the figure, value of the CPU, value of the GPU.
    cpu_evidence, evidence : Evidence
        Of each side; without a GPU here, the GPU's is from a recording or a data sheet.
    notes : tuple of Note
        What disturbed the measurement of the rates.
    """

    cpu: str
    gpu: str
    rows: tuple[tuple[str, str, str], ...]
    cpu_evidence: Evidence
    evidence: Evidence
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.cpu} beside {self.gpu}: {plural(len(self.rows), 'figure')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a figure, and the notes."""
        notes = [(f"note: {note.code}", note.sentence, "") for note in self.notes]
        return ("", f"CPU: {self.cpu}", f"GPU: {self.gpu}"), [*self.rows, *notes]

    def caption(self) -> str:
        """Return the sources of the CPU's and of the GPU's figures, one line each."""
        shown = self.evidence.badge is not Badge.MODELLED
        gpu = (
            "the GPU's rates (the rest by its driver and its compute capability)"
            if shown
            else "the GPU"
        )
        sides = (
            ("the CPU's rates (the rest as the system reports it)", self.cpu_evidence),
            (gpu, self.evidence),
        )
        return "\n".join(
            f"{each.badge} · {name}: {each.sentence.removeprefix(str(each.badge)).strip(' ·')}"
            for name, each in sides
        )

    def _repr_html_(self) -> str:
        return with_captions(self)


def side_by_side() -> SideBySide:
    """Return your CPU compared with your GPU; without one, with a recorded GPU or the data sheet of
    an NVIDIA H200.
    """
    processor, ceilings = devices.machine().processor, devices.ceilings("cpu")
    where = devices.default()
    name, figures, evidence, doubts = (
        _own(where) if where.kind == "cuda" else _of_recording() or _of_data_sheet()
    )
    lanes, held = _vector(processor)
    cpu = (
        _cores(processor),
        str(lanes) if lanes else "not reported",
        "1 or 2",
        f"{format_bytes(held)} of vector registers" if held else "not reported",
        ", ".join(map(str, processor.caches)) or "not reported",
        f"{format_bytes_per_second(ceilings.bandwidth())} (all cores)",
        f"{format_flops_per_second(ceilings.flops_per_second['float32'])} (all cores, matrix "
        "product)",
    )
    names = (
        "cores (of a GPU: streaming multiprocessors)",
        "float32 numbers in a vector register (of a GPU: float32 units of one)",
        "resident threads of one core",
        "registers of one core",
        "caches (of a GPU: shared memory of each multiprocessor, and L2)",
        "main memory bandwidth",
        "float32 arithmetic",
    )
    rows = tuple(zip(names, cpu, figures, strict=True))
    told = {note.code for note in ceilings.notes}
    notes = (
        *_pointing("cpu", ceilings.notes),
        *(note for note in _pointing(str(where), doubts) if note.code not in told),
    )
    return SideBySide(processor.name, name, rows, ceilings.evidence, evidence, notes)


def _pointing(device: str, notes: Sequence[Note]) -> list[Note]:
    """Let the notes name the call that measures afresh: the rates are kept, and ``side_by_side``
    itself has nothing to refresh.
    """
    call = f'gl.devices.ceilings("{device}", refresh=True), then run this cell again,'
    return [
        dataclasses.replace(
            note, sentence=note.sentence.replace("with refresh=True", f"with {call}")
        )
        for note in notes
    ]


def _cores(processor: Processor) -> str:
    """Return how many cores this process may use: two threads of one core are listed as two
    processors by the system.
    """
    threads, cores = processor.usable_cores, processor.physical_cores
    return (
        f"{threads}" if cores is None or cores >= threads else f"{cores} (with {threads} threads)"
    )


def _vector(processor: Processor) -> tuple[int, int]:
    """Return the float32 numbers of a vector register, and the bytes that all of a core's hold;
    zeros where nothing is known.
    """
    for word, (nbytes, count) in _VECTORS.items():
        if word in processor.simd:
            return nbytes // 4, nbytes * count
    return (4, 512) if processor.architecture in ("arm64", "aarch64") else (0, 0)


def _figures(
    capability: str, multiprocessors: int, l2_bytes: int | None, bandwidth: float, flops: float
) -> tuple[str, ...]:
    sm, lanes = limits_of(capability), _lanes(capability)
    held = (
        (
            f"{sm.warps * 32:,}",
            format_bytes(sm.registers * _REGISTER_BYTES),
            format_bytes(sm.shared_bytes),
        )
        if sm
        else ("not known",) * 3
    )
    if isinstance(l2_bytes, int) and l2_bytes > 0:  # a recording may lack it
        held = (*held[:2], f"{held[2]} in each, L2 {format_bytes(l2_bytes)} for all")
    rates = format_bytes_per_second(bandwidth), format_flops_per_second(flops)
    return (f"{multiprocessors}", str(lanes) if lanes else "not known", *held, *rates)


def _lanes(capability: str) -> int:
    """The float32 units of a multiprocessor, each of which does a multiplication and an addition in
    a clock; 0 where not known.
    """
    rates = datasheets.rates_per_clock(capability)
    return rates["float32"] // 2 if rates is not None else 0


def _of_data_sheet() -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    part = datasheets.part(_REFERENCE)
    assert part is not None
    flops = part.peaks()["float32"]
    figures = _figures(
        part.compute_capability, part.multiprocessors, None, part.bytes_per_second, flops
    )
    made = Evidence.modelled(
        "every unit busy at the highest clock",
        f"{part.source}; CUDA Programming Guide, compute capabilities",
        "upper bounds, which no program reaches",
    )
    return f"NVIDIA {part.name} (data sheet)", figures, made, ()


def _of_recording() -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]] | None:
    """The first recorded GPU that has ceilings and tells its multiprocessors; None where there is
    none.
    """
    for recording in recorded_gpus().values():
        gpu = accelerator_of(recording)
        try:
            roofs = models.roofline(recording)
            rates = (
                roofs.memory_roof().bytes_per_second,
                roofs.arithmetic_roof("float32").flops_per_second,
            )
        except InputError:  # a recording without these ceilings
            continue
        if gpu is not None:
            figures = _figures(
                str(gpu["compute_capability"]),
                int(gpu["multiprocessors"]),
                gpu.get("l2_bytes"),
                *rates,
            )
            return roofs.device, figures, roofs.evidence, ()
    return None


def _own(where: Device) -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    gpu, shown = devices.machine().accelerators[where.index or 0], devices.ceilings(where)
    # float32 itself, as of the CPU: what Tensor Cores add is notebook 03's.
    rates = shown.bandwidth(), shown.flops_per_second.get("float32", 0.0)
    return (
        where.name,
        _figures(gpu.compute_capability or "", gpu.multiprocessors or 1, gpu.l2_bytes, *rates),
        shown.evidence,
        shown.notes,
    )


def memory_curve(again: bool = False) -> Latency:
    """Return the latency of your CPU's memory by working set; measured once per kernel, so that the
    check uses the values that you saw.

    Parameters
    ----------
    again : bool
        Measure again, for example because other programs were running.
    """
    global _curve
    if _curve is None or again:
        _curve = hierarchy.latency(deadline=5.0)
    return _curve


def gpu_curves() -> tuple[Latency, ...]:
    """Return latency curves of GPUs: of your own CUDA GPU, measured with CuPy, else the recorded
    ones; empty if there are none.
    """
    where = devices.default()
    if where.torch_type == "cuda":
        with contextlib.suppress(MissingLibraryError):
            return (hierarchy.latency(device=where, chases=1, deadline=8.0),)
    found = (hierarchy.recorded_latency(recording) for recording in recorded_gpus().values())
    return tuple(curve for curve in found if curve is not None)


def five_works() -> dict[str, workloads.Workload]:
    """Return the five pieces of work of exercise 03.3, float32, by the names that it uses."""
    return {key: workloads.get(name)(n=n, **params) for key, (name, n, params) in _FIVE.items()}


def roof(again: bool = False) -> models.Roofline:
    """Return the measured roofs of this machine's best device; they stay the same until the kernel
    ends.

    If other programs disturbed the measurement, it is repeated, and the highest value of each roof
    is kept.

    Parameters
    ----------
    again : bool
        Measure again.

    Examples
    --------
    >>> roof() is roof()
    True
    """
    global _roof
    if _roof is None or again:
        best = models.roofline(devices.default(), refresh=again)
        for _ in range(_ROOF_TRIES - 1):
            if not disturbed(note.code for note in best.notes):
                break
            best = _highest(best, models.roofline(devices.default(), refresh=True))
        _roof = (
            _with_larger_product(_pointing_here(best))
            if disturbed(note.code for note in best.notes)
            else best
        )
    return _roof


def _pointing_here(found: models.Roofline) -> models.Roofline:
    """Let the notes name the call that the learner has: these roofs are kept here."""
    notes = (
        dataclasses.replace(
            note, sentence=note.sentence.replace("refresh=True", "gl.lessons.roof(again=True)")
        )
        for note in found.notes
    )
    return dataclasses.replace(found, notes=tuple(notes))


def _with_larger_product(
    found: models.Roofline, clock: Callable[[], float] = time.perf_counter
) -> models.Roofline:
    """Raise the float32 roof to what more and larger products reach.

    On a busy CPU nearly every short product waits for a thread that lost its core, so the quick
    look of ``devices.ceilings`` finds next to nothing. Many short ones meet a quiet moment, long
    ones outlast the waiting.
    """
    import torch

    if not devices.default().is_cpu:
        return found
    best, source = 0.0, ""
    for n in _PRODUCTS:
        a, out = torch.rand(n, n, generator=torch.Generator().manual_seed(0)), torch.empty(n, n)
        shortest, start, end = math.inf, clock(), clock() + _PRODUCT_SECONDS
        while start < end:
            torch.mm(a, a, out=out)
            now = clock()
            shortest, start = min(shortest, now - start), now
        if 2.0 * n**3 / shortest > best:
            best, source = (
                2.0 * n**3 / shortest,
                f"the best product of {n} x {n} matrices, just now",
            )
    tops = tuple(
        dataclasses.replace(top, flops_per_second=best, source=source)
        if top.name == "float32" and best > top.flops_per_second
        else top
        for top in found.arithmetic
    )
    return dataclasses.replace(found, arithmetic=tops)


def _highest(one: models.Roofline, other: models.Roofline) -> models.Roofline:
    """Return the higher of each roof, with the notes and the badge of the later look."""
    tops = {each.name: each for each in (*one.arithmetic, *other.arithmetic)}
    slopes = {each.name: each for each in (*one.memory, *other.memory)}
    for top in one.arithmetic:
        tops[top.name] = max(top, tops[top.name], key=lambda each: each.flops_per_second)
    for slope in one.memory:
        slopes[slope.name] = max(slope, slopes[slope.name], key=lambda each: each.bytes_per_second)
    return dataclasses.replace(
        other, arithmetic=tuple(tops.values()), memory=tuple(slopes.values())
    )


def trained(task: str = "digits-cnn") -> Any:
    """Return a copy of a task's trained network; it is trained once per session, with seed 0.

    Parameters
    ----------
    task : str
    """
    if task not in _trained:
        _trained[task] = compression.cook(compression.Recipe(), task, seed=0, device="cpu").eval()
    return copy.deepcopy(_trained[task])


@dataclass(frozen=True)
class Case(Result):
    """One model on one machine.

    Attributes
    ----------
    letter : str
    width : int
        Features of a token; the transformer has four layers, so that predicting its memory takes
        seconds.
    gpus : int
    gpu : str
        Its name in the data sheets.
    gpu_bytes : int
        The memory of one GPU.
    link : str
        The link between the GPUs.
    """

    letter: str
    width: int
    gpus: int
    gpu: str
    gpu_bytes: int
    link: str

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model: 12 width^2 + 13 width per layer, embedding and output,
        positions, the last norm.
        """
        return (
            LAYERS * (12 * self.width**2 + 13 * self.width)
            + (2 * VOCABULARY + CONTEXT + 2) * self.width
        )


CASES = {
    letter: Case(letter, width, gpus, gpu, memory_bytes(gpu), link)
    for letter, width, gpus, gpu, link in (
        ("A", 1024, 4, "GeForce RTX 4090", "PCIe"),
        ("B", 5120, 8, "A100 40GB", "PCIe"),
        ("C", 13312, 8, "H100 SXM", "NVLink"),
    )
}


@dataclass(frozen=True)
class ThreeCases(Result):
    """The cases of the exercise, side by side.

    Attributes
    ----------
    cases : tuple of Case
    evidence : Evidence
    """

    cases: tuple[Case, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{len(self.cases)} models on {len(self.cases)} machines>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per case."""
        rows = [
            (
                case.letter,
                f"{case.parameter_count / 1e9:.2g} billion",
                f"{case.gpus} x {case.gpu}",
                format_bytes(case.gpu_bytes),
                case.link,
            )
            for case in self.cases
        ]
        return ("", "parameters", "machine", "memory of each GPU", "link"), rows


def three_cases() -> ThreeCases:
    """Return the three models and machines of the exercise on choosing a strategy."""
    words = (
        "made up for the exercise: transformers of four wide layers, float32, Adam, one sequence "
        "of 1,024 tokens for each rank"
    )
    return ThreeCases(
        tuple(CASES.values()),
        Evidence.modelled(words, "memory of the GPUs from NVIDIA's data sheets"),
    )
