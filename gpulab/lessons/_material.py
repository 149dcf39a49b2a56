"""Data that the notebooks show and that their exercises ask about: claims and a contest of two
devices (00), two processors and a curve of memory latency (01), roofs (03), pipelines to read (06),
the network that is made lighter (07), and timelines of several ranks (08).

Values are measured on the learner's own machine. Values that it cannot measure are looked up in
recordings, never typed into a text. A value that an exercise asks about is kept until the kernel
ends, so that the check uses the number that the learner saw.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpulab import (
    _validate,
    devices,
    hierarchy,
    models,
    parallel,
    recordings,
    timing,
    workloads,
)
from gpulab.devices import Device, datasheets, measured_rates
from gpulab.errors import InputError, RecordingError
from gpulab.evidence import Evidence, Note
from gpulab.hierarchy import Latency
from gpulab.lessons.content import KEPT
from gpulab.models import Roofline
from gpulab.recordings.schema import reported_accelerator
from gpulab.results import Result, Table, html_caption, html_table, note_rows
from gpulab.timing import Measurement
from gpulab.timing.recorded import recorded
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_flops_per_second,
    format_seconds,
    plural,
)

if TYPE_CHECKING:
    from gpulab import training

# of notebook 00
_POINT_SECONDS = 0.25
_GIB = 2**30
# Half a minute of CPU for one product would be too long.
_CONTEST_SIZES = (64, 128, 256, 512, 1024)
# Codes of notes which say that something else used or slowed the CPU. That can only make a time
# longer.
_DISTURBANCES = ("contended", "stalled", "throttled")
# At most this many measurements of one size, if they are disturbed. The two repetitions take half a
# second, and a short disturbance is over by then.
_TRIES = 3
# Codes of notes which say that other programs disturbed an accelerator's time. A throttled clock
# does not count: for a GPU at its power limit, that is its normal speed.
_NEIGHBOURS = ("contended", "stalled")
# Codes of notes that are expected here (set-up, batching, the deadline), so the contest does not
# show them.
_EXPECTED_NOTES = ("slow-first-call", "too-short", "deadline", "warm-cache", "turn-taking")
# Each claim: its work, the bytes that the work moves, and the share of the memory bandwidth that
# the claimed time implies. The impossible claim has neither the shortest nor the longest time.
CLAIMS = {
    "A": ("add up an array of 2 GiB", 2 * _GIB, 0.9),
    "B": ("copy an array of 4 GiB", 8 * _GIB, 0.5),
    "C": ("add two arrays of 8 GiB each into a third", 24 * _GIB, 3.0),
    "D": ("take the square root of an array of 8 GiB in place", 16 * _GIB, 0.7),
}
# of notebook 01
_REGISTER_BYTES = 4
# For each instruction set, the widest first: the bytes of a vector register, and the number of
# registers (Intel SDM vol. 1; Arm ARM, Advanced SIMD).
_VECTORS = {
    "avx512f": (64, 32),
    "avx2": (32, 16),
    "avx": (32, 16),
    "neon": (16, 32),
    "asimd": (16, 32),
    "sse2": (16, 16),
}
# of notebook 03
# For a busy CPU: sizes of matrix products, which take from a fraction of a millisecond to 200
# milliseconds, and how long each size is repeated.
_PRODUCTS, _PRODUCT_SECONDS = (256, 512, 1024), 0.3
_FIVE: Mapping[str, tuple[str, int, dict[str, int]]] = {
    "add": ("add", 1 << 24, {}),
    "sum": ("sum", 1 << 24, {}),
    "softmax": ("softmax", 1 << 14, {}),
    "one row": ("linear", 1, {"features": 4096}),
    "matmul": ("matmul", 1024, {}),
}
# of notebooks 06 and 08
# Timelines to read in exercises: three pipelines (06), and three timelines of four ranks (08), in
# each of which one rank differs from the others. They are made up, so that they are the same on
# every machine. The program of a rank is a list of work and collectives. A collective begins when
# all ranks have called it; if they do not all call the same one, all ranks wait until the timeout.
# For 06: loading, copy and step in seconds; workers; cores. The first number alone never shows the
# bottleneck.
_TIMELINES = {
    "A": (0.080, 0.002, 0.015, 6, 2),  # many workers, but two cores: 40 ms a batch
    "B": (0.030, 0.045, 0.020, 4, 8),  # a slow link
    "C": (0.040, 0.001, 0.030, 4, 8),  # the accelerator itself
}
RANKS = 4
# the timeout as drawn: long enough to be visible, short enough that the steps before it are
# readable
TIMEOUT_SECONDS = 0.060
_STEPS = 3
_LAYERS = (3, 2, 1)  # the backward pass reaches the last layer first
# seconds: a forward pass, one layer's backward pass, one layer's gradients
_FORWARD, _BACKWARD, _SEND = 0.008, 0.005, 0.002
_EVIDENCE = Evidence.modelled(
    "each rank works through its list; a collective begins when all are in it and takes 2 ms",
    "made up for the exercise: no machine ran it",
)

# One item of a rank's program: ("compute", name, seconds) or ("collective", name, seconds).
_Item = tuple[str, str, float]


def badge_line(evidence: Evidence, about: str = "") -> str:
    """Return the sentence of evidence, with the subject ``about`` inserted after the badge."""
    if not about:
        return evidence.sentence
    rest = evidence.sentence.removeprefix(str(evidence.badge)).strip(" ·")
    return f"{evidence.badge} · {about}: {rest}"


def with_captions(result: Result) -> str:
    """Return a result's table as HTML with one line for each line of its caption."""
    return html_table(*result.table()) + "".join(
        f"<div>{html_caption(line)}</div>" for line in result.caption().splitlines()
    )


@dataclass(frozen=True)
class Listing(Result):
    """A table of text, such as what recorded GPUs reach, or which exercises fail most in a class.

    Attributes
    ----------
    title : str
        A description of the rows.
    headers : tuple of str
    rows : tuple of tuple of str
    empty : tuple of str
        The row shown if there are no rows.
    sources : tuple of (str, Evidence)
        The sources of the figures: pairs of the figures' name ("" for all of them) and their
        evidence.
    notes : tuple of Note
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: tuple[str, ...]
    sources: tuple[tuple[str, Evidence], ...] = ()
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def table(self) -> Table:
        """Return the rows and the notes."""
        notes = note_rows(self.notes, len(self.headers))
        return self.headers, [*(self.rows or (self.empty,)), *notes]

    def caption(self) -> str:
        """Return the badge lines, each once."""
        return "\n".join(dict.fromkeys(badge_line(each, about) for about, each in self.sources))

    def _repr_html_(self) -> str:
        return with_captions(self)


T = TypeVar("T")


def _kept(name: str, make: Callable[[], T], again: bool = False) -> T:
    """Return the value of that name in ``KEPT``. ``make`` creates it if it is missing, or if
    ``again`` is True.
    """
    if again or name not in KEPT:
        KEPT[name] = make()
    return KEPT[name]  # type: ignore[no-any-return]


def _disturbed(notes: Iterable[Note]) -> bool:
    """Return whether, by the notes of a measurement, something else used or slowed the CPU, so that
    its time may be too long.
    """
    return any(note.code in _DISTURBANCES for note in notes)


def memory_bandwidth() -> float:
    """Return the bandwidth of this machine's main memory, from which the claims are computed."""
    return _kept("claims", lambda: devices.ceilings("cpu").bandwidth())


def claimed_seconds(letter: str) -> float:
    """Return the time that a claim states, which stays the same until the kernel ends."""
    _, moved, share = CLAIMS[letter]
    return moved / (share * memory_bandwidth())


def four_claims() -> Listing:
    """Return four claimed timings on this machine, of which exactly one is impossible.

    They are made up for the exercise from the measured ceiling of your main memory
    (``devices.ceilings``): three need less than this bandwidth, and one needs three times as much.
    All move gigabytes, so no cache can explain a rate.
    """
    rows = tuple(
        (letter, work, format_seconds(claimed_seconds(letter)))
        for letter, (work, *_) in CLAIMS.items()
    )
    made = Evidence.modelled(
        "exercise data: times set to chosen shares of the measured ceiling",
        "gl.lessons.four_claims",
        "not a measurement",
    )
    ceiling = f"your main memory moves at most {format_bytes_per_second(memory_bandwidth())}"
    return Listing(
        f"four claims; {ceiling}",
        ("claim", "the work (float32)", "time claimed"),
        rows,
        (),
        (("", made), (ceiling, devices.ceilings("cpu").evidence)),
    )


class ContestRow(NamedTuple):
    """One size of a contest; seconds per call.

    Attributes
    ----------
    n : int
    cpu_seconds : float
    returned_seconds, accelerator_seconds, with_copies_seconds : float
        Times on the accelerator: until the call returned; until the work was done, with the data
        already on the device; and until it was done, including the copies of the inputs and of the
        result.
    notes : str
        The codes of the CPU measurement's notes, such as "contended".
    accelerator_notes : str
        The codes of the notes on the accelerator's times, measured or recorded, such as
        "throttled".
    """

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
        return not set(_DISTURBANCES).isdisjoint(self.notes.split(", "))


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

    columns = {
        "{0.size_meaning}": lambda row: row.n,
        "CPU (MEASURED)": lambda row: format_seconds(row.cpu_seconds),
        "{0.evidence.badge}: returned": lambda row: format_seconds(row.returned_seconds),
        "{0.evidence.badge}: done": lambda row: format_seconds(row.accelerator_seconds),
        "{0.evidence.badge}: with copies": lambda row: format_seconds(row.with_copies_seconds),
        "notes on the CPU": lambda row: row.notes or "none",
        "notes on the accelerator": lambda row: row.accelerator_notes or "none",
    }
    rows_from = "rows"

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
        """The smallest size from which on the accelerator is faster at every size, including the
        copies; None if there is no such size.
        """
        found = None
        for row in reversed(self.rows):
            if row.with_copies_seconds >= row.cpu_seconds:
                break
            found = row.n
        return found

    def __repr__(self) -> str:
        return f"<{self.label}: CPU against {self.accelerator} at {plural(len(self.rows), 'size')}>"

    def caption(self) -> str:
        """Return the device of the accelerator's columns, and their badge."""
        badge, _, rest = self.evidence.sentence.partition(" ")
        return (
            f"{badge} · the accelerator's columns: {self.accelerator} · {rest.removeprefix('· ')}"
        )


@_validate.arguments(again=_validate.flag)
def contest(again: bool = False) -> Contest:
    """Measure matrix products in float32 on this CPU over sizes, and compare with an accelerator.

    The accelerator is the one of this machine, or a recorded one. The table is kept until the
    kernel ends, so that an exercise uses the numbers that the learner saw.

    Parameters
    ----------
    again : bool
        Measure again.

    Raises
    ------
    InputError
        If ``again`` is neither True nor False.
    """
    return _kept("contest matmul", _contest, again)


def _contest() -> Contest:
    works = [workloads.get("matmul")(n=n, dtype="float32") for n in _CONTEST_SIZES]
    there = _opponent(works)
    here = [_quietest(work, "cpu", _DISTURBANCES) for work in works]
    rows = tuple(
        ContestRow(
            work.n,
            own.median_seconds,
            other.launch_seconds,
            other.median_seconds,
            other.with_transfer_seconds or other.median_seconds,
            _codes(own),
            _codes(other),
        )
        for work, own, other in zip(works, here, there, strict=True)
    )
    evidence, meaning = there[0].evidence, works[0].spec.size_meaning
    cpu = Evidence.measured(devices.find("cpu").name)
    return Contest("matmul float32", meaning, evidence.device, rows, evidence, cpu)


def _codes(m: Measurement) -> str:
    return ", ".join(
        dict.fromkeys(note.code for note in m.notes if note.code not in _EXPECTED_NOTES)
    )


def _quietest(work: workloads.Workload, device: Any, codes: Sequence[str]) -> Measurement:
    """Measure a workload on a device until a measurement has none of the notes ``codes``, at most
    ``_TRIES`` times. Return that measurement, or the shortest if each has such a note.
    """
    inputs, tried = work.inputs(device), list[Measurement]()
    for _ in range(_TRIES):
        m = timing.measure(
            work.run,
            *inputs,
            device=device,
            deadline=_POINT_SECONDS,
            transfer=device != "cpu",
            label=work.label,
        )
        if not any(note.code in codes for note in m.notes):
            return m
        tried.append(m)
    return min(tried, key=lambda m: m.median_seconds)


def _opponent(works: list[workloads.Workload]) -> list[Measurement]:
    """Return the workloads' times on this machine's accelerator, or on a recorded one if there is
    none.
    """
    device = devices.default()
    if not device.is_cpu:
        return [_quietest(work, device, _NEIGHBOURS) for work in works]
    times = [recorded(work.name, work.n, work.dtype) for work in works]
    # the first recorded accelerator that has all sizes, with the time of the copies
    name = next(
        name
        for name in recordings.of_accelerators()
        if all(name in those and those[name].with_transfer_seconds for those in times)
    )
    return [those[name] for those in times]


def side_by_side() -> Listing:
    """Return your CPU compared with your GPU, or with a recorded one."""
    processor, ceilings = devices.machine().processor, devices.ceilings("cpu")
    where = devices.default()
    name, figures, evidence, doubts = _own(where) if where.kind == "cuda" else _of_recording()
    threads, cores = processor.usable_cores, processor.physical_cores
    # two threads of one core are listed as two processors by the system
    has_threads = cores is not None and cores < threads
    lanes, held = next(
        (
            (nbytes // 4, nbytes * k)
            for word, (nbytes, k) in _VECTORS.items()
            if word in processor.simd
        ),
        (4, 512) if processor.architecture in ("arm64", "aarch64") else (0, 0),
    )
    cpu = (
        f"{cores} (with {threads} threads)" if has_threads else f"{threads}",
        str(lanes) if lanes else "not reported",
        "1 or 2",
        f"{format_bytes(held)} of vector registers" if held else "not reported",
        ", ".join(map(str, processor.caches)) or "not reported",
        f"{format_bytes_per_second(ceilings.bandwidth())} (all threads)",
        f"{format_flops_per_second(ceilings.flops_per_second['float32'])} (all threads, matrix "
        "product)",
    )
    names = (
        "cores (of a GPU: streaming multiprocessors)",
        "float32 numbers in a vector register (of a GPU: float32 units of a multiprocessor)",
        "resident threads of one core",
        "registers of one core",
        "caches (of a GPU: shared memory of each multiprocessor, and L2)",
        "main memory bandwidth",
        "float32 arithmetic",
    )
    shown = {note.code for note in ceilings.notes}
    notes = (
        *_pointing(ceilings.notes, _CEILINGS.format("cpu")),
        *_pointing([n for n in doubts if n.code not in shown], _CEILINGS.format(where)),
    )
    return Listing(
        f"{processor.name} beside {name}: {plural(len(names), 'figure')}",
        ("", f"CPU: {processor.name}", f"GPU: {name}"),
        tuple(zip(names, cpu, figures, strict=True)),
        (),
        (
            ("the CPU's rates (the rest as the system reports it)", ceilings.evidence),
            ("the GPU's rates (the rest by its driver and its compute capability)", evidence),
        ),
        notes,
    )


# ``devices.ceilings`` keeps its rates and ``side_by_side`` has no option ``refresh``, so the notes
# name this call.
_CEILINGS = 'gl.devices.ceilings("{}", refresh=True), then run this cell again,'


def _pointing(notes: Iterable[Note], call: str) -> tuple[Note, ...]:
    """Return the notes with ``call`` in place of ``refresh=True``: the call that measures again."""
    return tuple(
        dataclasses.replace(note, sentence=note.sentence.replace("refresh=True", call))
        for note in notes
    )


def _figures(
    capability: str, multiprocessors: int, l2_bytes: int | None, bandwidth: float, flops: float
) -> tuple[str, ...]:
    # a GPU's column of ``side_by_side``, in the order of the rows
    sm = models.sm_limits(capability) if capability in models.compute_capabilities() else None
    # the float32 units of a multiprocessor each do a multiplication and an addition in a clock
    clock = datasheets.rates_per_clock(capability)
    lanes = "not known" if clock is None else f"{clock['float32'] // 2}"
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
    return (f"{multiprocessors}", lanes, *held, *rates)


def _of_recording() -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    """Return the name, figures, evidence and notes of the first recorded GPU that has ceilings and
    reports its number of multiprocessors.
    """
    for recording in recordings.of_accelerators().values():
        gpu = reported_accelerator(recording)
        several, capability = gpu.get("multiprocessors"), str(gpu.get("compute_capability") or "")
        with contextlib.suppress(InputError):  # a recording without ceilings
            roofs = models.roofline(recording)
            rates = (
                roofs.memory_roof().bytes_per_second,
                roofs.arithmetic_roof("float32").flops_per_second,
            )
            if isinstance(several, int) and several > 0 and capability:
                figures = _figures(capability, several, gpu.get("l2_bytes"), *rates)
                return roofs.device, figures, roofs.evidence, ()
    raise RecordingError(
        "side_by_side: no recorded GPU has ceilings; expected the recordings that come with "
        "gpulab. Install it again."
    )


def _own(where: Device) -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    # the name, figures, evidence and notes of this machine's GPU
    gpu, shown = devices.machine().accelerators[where.index or 0], devices.ceilings(where)
    # float32 without Tensor Cores, to compare with the CPU; Tensor Cores are the subject of
    # notebook 03
    rates = shown.bandwidth(), shown.flops_per_second.get("float32", 0.0)
    return (
        where.name,
        _figures(gpu.compute_capability or "", gpu.multiprocessors or 1, gpu.l2_bytes, *rates),
        shown.evidence,
        shown.notes,
    )


@_validate.arguments(again=_validate.flag)
def memory_curve(again: bool = False) -> Latency:
    """Return the latency of your CPU's memory by working set; measured once per kernel, so that the
    check uses the values that you saw.

    Parameters
    ----------
    again : bool
        Measure again, for example because other programs were running.

    Raises
    ------
    InputError
        If ``again`` is neither True nor False.
    """
    return _kept("latency curve", lambda: hierarchy.latency(deadline=5.0), again)


def five_works() -> dict[str, workloads.Workload]:
    """Return the five float32 workloads of exercise 03.3, by the names that the exercise uses."""
    return {key: workloads.get(name)(n=n, **params) for key, (name, n, params) in _FIVE.items()}


@_validate.arguments(again=_validate.flag)
def roof(again: bool = False) -> Roofline:
    """Return the measured roofs of this machine's best device; they stay the same until the kernel
    ends.

    If other programs disturbed the measurement, it is repeated, and the highest value of each roof
    is kept.

    Parameters
    ----------
    again : bool
        Measure again.

    Raises
    ------
    InputError
        If ``again`` is neither True nor False.

    Examples
    --------
    >>> roof() is roof()
    True
    """
    return _kept("roof", lambda: _quiet_roof(again), again)


def _quiet_roof(refresh: bool) -> Roofline:
    # the roofs of the default device; a disturbed measurement is repeated once
    best = models.roofline(devices.default(), refresh=refresh)
    if _disturbed(best.notes):
        again = models.roofline(devices.default(), refresh=True)
        # the higher of each roof, with the notes and the badge of the later measurement
        tops = _best((*best.arithmetic, *again.arithmetic), lambda top: top.flops_per_second)
        slopes = _best((*best.memory, *again.memory), lambda slope: slope.bytes_per_second)
        best = dataclasses.replace(again, arithmetic=tops, memory=slopes)
    if not _disturbed(best.notes):
        return best
    notes = _pointing(best.notes, "gl.lessons.roof(again=True)")  # ``roof`` keeps the roofs
    return _with_larger_product(dataclasses.replace(best, notes=notes))


def _with_larger_product(found: Roofline) -> Roofline:
    """Return the roofs, with float32 raised to the rate of more and larger products if it is
    higher.

    On a busy CPU, nearly every short product waits for a thread that lost its core, so the short
    measurement of ``devices.ceilings`` gives far too low a rate. Among many short products, some
    run in a quiet moment. In a long product, the waiting takes a smaller share of the time.
    """
    import torch

    if not devices.default().is_cpu:
        return found
    best, source = 0.0, ""
    for n in _PRODUCTS:
        a, out = torch.rand(
            (2, n, n), generator=torch.Generator().manual_seed(0), dtype=torch.float32
        )
        product = functools.partial(torch.mm, a, a, out=out)
        rate = 2.0 * n**3 / measured_rates.shortest(product, time.perf_counter, _PRODUCT_SECONDS)
        if rate > best:
            best, source = rate, f"the best product of {n} x {n} matrices, just now"
    tops = tuple(
        top._replace(flops_per_second=best, source=source)
        if top.name == "float32" and best > top.flops_per_second
        else top
        for top in found.arithmetic
    )
    return dataclasses.replace(found, arithmetic=tops)


def _best(roofs: Sequence[Any], rate: Callable[[Any], float]) -> tuple[Any, ...]:
    """Return the highest roof of each name."""
    names = dict.fromkeys(roof.name for roof in roofs)
    return tuple(max((roof for roof in roofs if roof.name == name), key=rate) for name in names)


def trained(task: str = "digits-cnn") -> Any:
    """Return a copy of a task's trained network; it is trained once per session, with seed 0.

    Parameters
    ----------
    task : str
    """
    from gpulab import compression  # loads torch, which reading reports does not need

    def train() -> Any:
        return compression.cook(compression.Recipe(), task, seed=0, device="cpu").eval()

    return copy.deepcopy(_kept(f"trained {task}", train))


def timeline(letter: str) -> training.PipelineResult:
    """Return one of three pipelines, "A" to "C", whose bottleneck the exercise asks for.

    They are made up for the exercise by ``training.model_pipeline``, so they are the same on every
    machine.

    Raises
    ------
    InputError
        If there is no such letter.
    """
    from gpulab import training

    loading, copy, compute, workers, cores = _TIMELINES[
        _validate.word("timeline", "letter", letter, _TIMELINES)
    ]
    return training.model_pipeline(
        loading, compute, copy_seconds=copy, workers=workers, cores=cores, steps=24
    )


def collective(layer: int) -> str:
    """Return the name of the collective that averages a layer's gradients, as it appears in the
    timelines.
    """
    return f"all_reduce layer {layer}"


# what each collective exchanges: a rank that skips one meets the others at another size
_BYTES = {
    collective(1): 3_000_000,
    collective(2): 4_000_000,
    collective(3): 1_000_000,
    "barrier": 0,
}


def _program(slow: float = 1.0) -> list[_Item]:
    # the program of a rank that trains; ``slow`` multiplies its compute times
    items: list[_Item] = []
    for step in range(1, _STEPS + 1):
        items.append(("compute", f"forward {step}", _FORWARD * slow))
        for layer in _LAYERS:
            items += [
                ("compute", f"backward {step}, layer {layer}", _BACKWARD * slow),
                ("collective", collective(layer), _SEND),
            ]
        items.append(("compute", f"optimizer {step}", 0.001 * slow))
    return items


def _hangs() -> dict[str, tuple[list[list[_Item]], int, str]]:
    """Return, for each timeline, the programs of its ranks, the rank that differs from the others,
    and the collective at which it leaves the common order ("slow" if it is only slow).
    """
    skips, slow, alone = ([_program() for _ in range(RANKS)] for _ in range(3))
    # rank 2 leaves out one collective of the second step and goes on
    del skips[2][[k for k, item in enumerate(skips[2]) if item[1] == collective(2)][1]]
    # rank 3 computes at half the pace
    slow[3] = _program(2.0)
    # after the first step, rank 0 saves the model and calls a barrier that no other rank calls
    at = next(k for k, item in enumerate(alone[0]) if item[1] == "optimizer 1") + 1
    alone[0][at:at] = [("compute", "save", 0.006), ("collective", "barrier", _SEND)]
    return {"A": (skips, 2, collective(2)), "B": (slow, 3, "slow"), "C": (alone, 0, "barrier")}


HANGS = _hangs()


# What an answer may name: a collective of the timelines, or "slow" if no rank leaves the order.
NAMES = (*map(collective, _LAYERS), "barrier", "slow")


def hang(letter: str) -> parallel.RankTimeline:
    """Return one of three timelines, "A" to "C", for the exercise on hangs.

    Raises
    ------
    InputError
        If there is no such letter.
    """
    programs = HANGS[_validate.word("hang", "letter", letter, HANGS)][0]
    spans, end = _run(programs)
    ordered = tuple(sorted(spans, key=lambda span: (span.rank, span.begin_seconds, span.kind)))
    steps = dict.fromkeys(span.name for span in ordered if span.name.startswith("forward "))
    starts = [min(span.begin_seconds for span in ordered if span.name == step) for step in steps]
    return parallel.RankTimeline(
        f"timeline {letter}", RANKS, ordered, tuple(starts), end, (), _EVIDENCE
    )


def _run(programs: Sequence[Sequence[_Item]]) -> tuple[list[parallel.RankSpan], float]:
    """Run the programs until all ranks are done, or until the ranks wait for different collectives
    and time out; return the spans and the time of the end.
    """
    left, now = [deque(program) for program in programs], [0.0] * len(programs)
    spans: list[parallel.RankSpan] = []
    while True:
        for rank, items in enumerate(left):
            while items and items[0][0] == "compute":
                _, name, seconds = items.popleft()
                begin, now[rank] = now[rank], now[rank] + seconds
                spans.append(parallel.RankSpan(rank, "compute", name, begin, now[rank]))
        begin = max(now)
        if not any(left):
            return spans, begin
        together = len({items[0][1] if items else "" for items in left}) == 1
        until = begin if together else begin + TIMEOUT_SECONDS
        for rank, items in enumerate(left):
            if items and until > now[rank]:
                spans.append(parallel.RankSpan(rank, "idle", items[0][1], now[rank], until))
        if not together:
            return spans, until
        for rank, items in enumerate(left):
            _, name, seconds = items.popleft()
            now[rank] = begin + seconds
            spans.append(
                parallel.RankSpan(rank, "communication", name, begin, now[rank], _BYTES[name])
            )
