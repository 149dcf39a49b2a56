"""The microscope's counts and the GPU's own counters: which are compared, by which rule, and the
record that keeps both.

Rule: whole counts are equal when they are the same number, averages when they differ by no more
than the last digit that ncu prints. No larger difference is tolerated or hidden: a person who has
looked at the machine code writes into ``explanation`` why the two differ. ``usual_reasons`` says
what to look for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpulab.evidence import Environment
from gpulab.kernels import Simulation
from gpulab.models import occupancy
from gpulab.results import Result

Numbers = Mapping[str, float | None]
RULE = (
    "whole counts: the same number; averages and percentages: within 0.006, the rounding of two "
    "printed digits"
)
PRINTED = 0.006
FEWEST_KERNELS = 20


@dataclass(frozen=True)
class Counter:
    """One comparison: the metrics of ncu that it needs, the GPU's number made from them, the
    microscope's number, the tolerance (``room``), and the usual reasons for a difference.
    """

    name: str
    metrics: tuple[str, ...]
    hardware: Callable[[Numbers], float | None]
    simulated: Callable[[Simulation], float | None]
    room: float
    usual_reasons: str


def _sum_of(s: Simulation, space: str, kind: str, what: str) -> int:
    return sum(
        getattr(access, what)
        for access in s.accesses
        if access.space == space and access.kind == kind
    )


def _requests_and_sectors(short: str, kind: str) -> tuple[Counter, Counter]:
    requests, sectors = (
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{short}.sum" for what in ("requests", "sectors")
    )
    merged = (
        "the compiler merges repeated loads of one address, keeps values in registers, moves "
        "loads out of loops, joins neighbours"
    )

    def per_request(n: Numbers) -> float | None:
        return n[sectors] / n[requests] if n[requests] and n[sectors] is not None else None

    def ours(s: Simulation) -> float | None:
        count = _sum_of(s, "global", kind, "requests")
        return _sum_of(s, "global", kind, "sectors") / count if count else None

    return (
        Counter(
            f"sectors per global {kind}",
            (requests, sectors),
            per_request,
            ours,
            PRINTED,
            f"the mean is over other requests: {merged}",
        ),
        Counter(
            f"global {kind} requests",
            (requests,),
            lambda n: n[requests],
            lambda s: _sum_of(s, "global", kind, "requests"),
            0,
            merged,
        ),
    )


def _shared(short: str, kind: str) -> tuple[Counter, Counter]:
    # Counted at the instruction. The counter of the L1 data stage, on the next line, also counts
    # the passes of other work in that stage.
    at_instruction = f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{short}.sum"
    conflicts = f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{short}.sum"
    wide = (
        "the compiler joins neighbouring words into accesses of 8 or 16 bytes, keeps words in "
        "registers, or unrolls loops into both"
    )

    def lost(s: Simulation) -> float:
        return _sum_of(s, "shared", kind, "wavefronts") - _sum_of(
            s, "shared", kind, "ideal_wavefronts"
        )

    return (
        Counter(
            f"wavefronts of shared {kind}s",
            (at_instruction,),
            lambda n: n[at_instruction],
            lambda s: _sum_of(s, "shared", kind, "wavefronts"),
            0,
            wide,
        ),
        Counter(
            f"bank conflicts of shared {kind}s",
            (conflicts,),
            lambda n: n[conflicts],
            lost,
            0,
            "this counter of the data stage also has passes lost to other work there (fills from "
            f"L2, other warps); or {wide}",
        ),
    )


_ATOMICS = tuple(
    f"l1tex__t_requests_pipe_lsu_mem_global_op_{short}.sum" for short in ("atom", "red")
)
_INSTRUCTIONS = ("smsp__thread_inst_executed.sum", "smsp__inst_executed.sum")
_UNIFORM, _BRANCHES = (
    "smsp__sass_average_branch_targets_threads_uniform.pct",
    "smsp__sass_branch_targets.sum",
)
_RESIDENT = (
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__block_size",
)
# Kept in the file because they help to explain a difference: ncu's own averages, the lanes that
# predicates switched off, achieved occupancy.
ALSO_KEPT = (
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)


def _lanes(n: Numbers) -> float | None:
    threads, warps = (n[name] for name in _INSTRUCTIONS)
    return threads / warps if warps and threads is not None else None


def _atomics(n: Numbers) -> float | None:
    values = [n[name] for name in _ATOMICS]
    return None if all(v is None for v in values) else sum(v or 0 for v in values)


def _uniform(s: Simulation) -> float:
    """Return the percentage of branches that kept a warp together: 100 if there are none."""
    total = s.totals
    return 100 * (1 - total.divergent_branches / max(1, total.branches))


def _uniform_there(n: Numbers) -> float | None:
    return 100.0 if n[_BRANCHES] == 0 else n[_UNIFORM]


COUNTERS = (
    *_requests_and_sectors("ld", "load"),
    *_requests_and_sectors("st", "store"),
    *_shared("ld", "load"),
    *_shared("st", "store"),
    Counter(
        "global atomic requests",
        _ATOMICS,
        _atomics,
        lambda s: _sum_of(s, "global", "atomic", "requests"),
        0,
        "the compiler adds up the lanes of one address first",
    ),
    Counter(
        "active lanes",
        _INSTRUCTIONS,
        _lanes,
        lambda s: 32 * s.totals.active_ratio if s.totals.active_ratio else None,
        PRINTED,
        "the microscope counts statements, the GPU instructions: a statement is several, and short "
        "branches become predicates",
    ),
    Counter(
        "uniform branches",
        (_UNIFORM, _BRANCHES),
        _uniform_there,
        _uniform,
        PRINTED,
        "short branches become predicates, loops are unrolled, and early exits share one test",
    ),
)
METRICS = tuple(
    dict.fromkeys(
        [*(name for counter in COUNTERS for name in counter.metrics), *_RESIDENT, *ALSO_KEPT]
    )
)


@dataclass(frozen=True)
class Comparison(Result):
    """One counter of one kernel. ``explanation`` is empty until a person fills it in, which is
    required if the numbers differ.
    """

    counter: str
    hardware: float | None
    simulated: float | None
    equal: bool
    explanation: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether neither side counted anything, as shared loads in a kernel without shared memory:
        such a pair is equal, but is no evidence.
        """
        return not self.hardware and not self.simulated


@dataclass(frozen=True)
class KernelRecord(Result):
    """One kernel: its launch, whether GPU and microscope gave the same arrays, the raw metrics, and
    the comparisons.

    ``problem`` says why nothing could be compared; it is empty where it could. ``machine_code``
    counts the instructions of the compiled kernel that matter here ("LDS.128": loads of four words
    from shared memory; "predicated": those under a predicate): it shows what the compiler joined,
    unrolled or left without a branch. It is empty where no disassembler is installed.
    """

    name: str
    from_ladder: bool
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[str, ...]
    results_agree: bool
    problem: str
    machine_code: dict[str, int]
    metrics: dict[str, float | None]
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class CounterRecord(Result):
    """The comparison on one GPU, as it is committed."""

    environment: Environment
    compute_capability: str
    ncu: str
    rule: str
    missing_metrics: tuple[str, ...]
    usual_reasons: dict[str, str]
    kernels: tuple[KernelRecord, ...]

    def unequal(self) -> list[tuple[str, Comparison]]:
        """Return kernel and comparison wherever the numbers differ."""
        return [
            (kernel.name, each)
            for kernel in self.kernels
            for each in kernel.comparisons
            if not each.equal
        ]


def are_equal(hardware: float | None, simulated: float | None, room: float) -> bool:
    """Return whether two numbers are equal by ``RULE``; a GPU without any such access gives 0 where
    the microscope gives None.
    """
    if hardware is None or simulated is None:
        return not hardware and not simulated
    return abs(hardware - simulated) <= room


def compare(metrics: Numbers, s: Simulation, compute_capability: str) -> tuple[Comparison, ...]:
    """Return one comparison for each counter whose metrics are all there."""
    found = [
        _compared(c.name, c.hardware(metrics), c.simulated(s), c.room)
        for c in COUNTERS
        if all(name in metrics for name in c.metrics)
    ]
    resident = [metrics.get(name) for name in _RESIDENT]
    if None not in resident:
        percent, registers, static, dynamic, threads = (float(value or 0) for value in resident)
        ours = occupancy(int(threads), int(registers), int(static + dynamic), compute_capability)
        found.append(_compared("theoretical occupancy", percent, 100 * ours.ratio, PRINTED))
    return tuple(found)


def _compared(
    name: str, hardware: float | None, simulated: float | None, room: float
) -> Comparison:
    return Comparison(name, hardware, simulated, are_equal(hardware, simulated, room))


def room_of(counter: str) -> float:
    """Return the largest difference between a counter's two numbers that counts as equal."""
    return next((c.room for c in COUNTERS if c.name == counter), PRINTED)


REASONS = {c.name: c.usual_reasons for c in COUNTERS} | {
    "theoretical occupancy": "the driver chose a smaller share of shared memory than the largest"
}


def with_explanations(record: CounterRecord, earlier: CounterRecord) -> CounterRecord:
    """Return the record with the explanations that a person wrote into an earlier one, for
    comparisons whose numbers have not changed.
    """
    known = {
        (name, c.counter, c.hardware, c.simulated): c.explanation for name, c in earlier.unequal()
    }

    def explained(kernel: KernelRecord, c: Comparison) -> Comparison:
        return dataclasses.replace(
            c,
            explanation=known.get((kernel.name, c.counter, c.hardware, c.simulated), c.explanation),
        )

    kernels = tuple(
        dataclasses.replace(k, comparisons=tuple(explained(k, c) for c in k.comparisons))
        for k in record.kernels
    )
    return dataclasses.replace(record, kernels=kernels)


def problems(record: CounterRecord) -> list[str]:
    """Return what is wrong with a record that is to be committed, one sentence each; empty for a
    good one.
    """
    found = []
    if len(record.kernels) < FEWEST_KERNELS:
        found.append(f"{len(record.kernels)} kernels; expected at least {FEWEST_KERNELS}.")
    if (
        not record.environment.driver
        or record.environment.device_kind != "cuda"
        or not record.environment.command
    ):
        found.append("no driver, command or CUDA device is named; expected all three.")
    names = [kernel.name for kernel in record.kernels]
    found += [
        f"{name} is there more than once."
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    for kernel in record.kernels:
        if kernel.problem or not kernel.comparisons:
            found.append(f"{kernel.name}: nothing was compared ({kernel.problem or 'no metric'}).")
        elif not kernel.results_agree:
            found.append(
                f"{kernel.name}: the GPU's arrays are not the microscope's; expected the same."
            )
        for each in kernel.comparisons:
            if each.equal != are_equal(each.hardware, each.simulated, room_of(each.counter)):
                found.append(
                    f"{kernel.name}: {each.counter} says equal={each.equal} of {each.hardware} and "
                    f"{each.simulated}."
                )
            if not each.equal and len(each.explanation.split()) < 3:
                found.append(
                    f"{kernel.name}: {each.counter}, {each.hardware} and {each.simulated}, has no "
                    "explanation."
                )
    return found
