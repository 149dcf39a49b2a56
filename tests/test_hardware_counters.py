"""The comparison with a GPU's counters, with a GPU and an ncu made here: their numbers are derived by hand, kernel by kernel."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _counter_kernels as kernels
import _counter_records as records
import _ncu
import _recorded
import hardware_counters

from gpulab.errors import RecordingError
from gpulab.evidence import Environment
from gpulab.kernels import Simulation, simulate

ENVIRONMENT = Environment(
    "2026-01-02T03:04:05+00:00", "Linux 6 x86_64", "a CPU", 8, 2**36, "NVIDIA H200", "cuda", "580.1", "3.12.1", {"numpy": "2.3"},
    "python benchmarks/hardware_counters.py",
)  # fmt: skip
_L1 = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_WAVES = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
# 16,384 elements are 512 warps. A warp's 128 bytes are 4 sectors; at stride 8 each lane has a sector of its own. At stride 2 in shared
# memory, words 0 and 32 share a bank: two wavefronts. A column of a 32 x 32 tile lies in one bank: 32 wavefronts.
BY_HAND: dict[str, dict[str, int]] = {
    "load-stride-1": {"ld": 512, "ld sectors": 2048, "st": 512, "st sectors": 2048},
    "load-stride-8": {"ld": 512, "ld sectors": 16384, "st": 512, "st sectors": 2048},
    "shared-stride-2": {"ld": 512, "ld sectors": 2048, "st": 512, "st sectors": 2048,
                        "waves ld": 1024, "waves st": 1024, "lost ld": 512, "lost st": 512},
    "transpose-tiled": {"ld": 512, "ld sectors": 2048, "st": 512, "st sectors": 2048,
                        "waves ld": 16384, "waves st": 512, "lost ld": 15872},
}  # fmt: skip
RESULTS: dict[str, Callable[..., Any]] = {
    "load-stride-1": lambda x, y, s: x[:: s][: y.size],
    "load-stride-8": lambda x, y, s: x[:: s],
    "shared-stride-2": lambda x, y, s: np.roll(x.reshape(-1, 256), -1, axis=1).ravel(),
    "transpose-tiled": lambda a, b: a.T,
}  # fmt: skip


def metrics_of(counts: dict[str, int]) -> dict[str, str]:
    """Return the metrics as ncu prints them for counts by hand, of a GPU on which every lane of every instruction is active."""
    given = dict.fromkeys(records.METRICS, "0")
    for short in ("ld", "st"):
        given |= {
            _L1.format("requests", short): f"{counts.get(short, 0):,}",
            _L1.format("sectors", short): f"{counts.get(short + ' sectors', 0):,}",
            _WAVES.format(short): f"{counts.get('waves ' + short, 0):,}", _CONFLICTS.format(short): f"{counts.get('lost ' + short, 0):,}",
        }  # fmt: skip
    return given | {
        "smsp__thread_inst_executed.sum": "327,680", "smsp__inst_executed.sum": "10,240", "smsp__sass_branch_targets.sum": "512",
        "smsp__sass_average_branch_targets_threads_uniform.pct": "100", "sm__maximum_warps_per_active_cycle_pct": "100",
        "launch__registers_per_thread": "16", "launch__block_size": "256",
    }  # fmt: skip


class Ready:
    """A kernel on the made-up GPU: when launched, it computes by NumPy, and says so to the made-up ncu."""

    def __init__(self, machine: Machine, case: kernels.Case, arguments: tuple[Any, ...]) -> None:
        self.machine, self.case, self.arguments = machine, case, arguments

    def __call__(self) -> None:
        """Launch."""
        if self.case.name in self.machine.broken:
            raise RuntimeError("no such instruction")
        self.machine.events.append(self.case.name)
        if self.case.name == self.machine.fatal:
            raise SystemExit(139)

    def wait(self) -> None:
        """Nothing runs beside."""

    def fetch(self) -> None:
        """Fill the array that the kernel writes, the last one."""
        out = [a for a in self.arguments if isinstance(a, np.ndarray)][-1]
        out[...] = RESULTS[self.case.name](*self.arguments) * self.machine.factor


class Machine:
    """A GPU with ncu: runs the worker in this process, and writes the CSV of what was launched between the marks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.broken: set[str] = set()
        self.fatal = ""
        self.factor = 1
        self.changes: dict[tuple[str, str], str | None] = {}
        self.renamed: dict[str, str] = {}
        by_kernel = {case.kernel: case for case in kernels.CASES}
        import torch

        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(hardware_counters, "machine_code", lambda *_: {"LDG": 1})  # the compiler takes seconds; it has a test below
        monkeypatch.setattr(hardware_counters, "launcher", lambda kernel, grid, block, *a: Ready(self, self._case(by_kernel, kernel, a), a))

    def _case(self, by_kernel: dict[Any, kernels.Case], kernel: Any, arguments: tuple[Any, ...]) -> kernels.Case:
        strides = [a for a in arguments if isinstance(a, int)]
        alike = [case for case in kernels.CASES if case.kernel is kernel]
        return next((c for c in alike if strides and c.name.endswith(f"-{strides[0]}")), by_kernel[kernel] if len(alike) == 1 else alike[0])

    def cudaProfilerStart(self) -> None:
        """Begin to look."""
        self.events.append("start")

    def cudaProfilerStop(self) -> None:
        """Look away."""
        self.events.append("stop")

    def __call__(self, command: Sequence[str]) -> _ncu.Ran:
        """Run the worker, and print the launches as ncu does."""
        script = next(k for k, word in enumerate(command) if word.endswith("hardware_counters.py"))
        with contextlib.suppress(SystemExit):
            assert hardware_counters.main(list(command[script + 1 :])) == 0
        seen, marked = [], False
        for event in self.events:
            marked = event == "start" if event in ("start", "stop") else marked
            if marked and event != "start":
                seen.append(event)
        log = Path(command[command.index("--log-file") + 1])
        with log.open("w", encoding="utf-8", newline="") as file:
            file.write("==PROF== Connected to process 1 (python)\n")
            rows = csv.writer(file, quoting=csv.QUOTE_ALL)
            rows.writerow(("ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Unit", "Metric Value"))
            cases = {case.name: case for case in kernels.CASES}
            for k, name in enumerate(seen):
                case = cases[name]
                block, grid = (hardware_counters._three(e) for e in (case.block, case.grid))
                for metric, value in metrics_of(BY_HAND[name]).items():
                    told = self.changes.get((name, metric), value)
                    if told is not None:
                        called = self.renamed.get(name, case.kernel.__name__)
                        rows.writerow((k, f"_ZN6cudapy{called}B2v1E5Array", block, grid, metric, "", told))
        return _ncu.Ran(0, "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose GPU does all that it should."""
    return Machine(monkeypatch)


def compared(machine: Machine) -> records.CounterRecord:
    """Compare the four kernels whose counts are known by hand."""
    return hardware_counters.compare(kernels.chosen(",".join(BY_HAND)), ENVIRONMENT, "9.0", ("ncu", "Version 2025.3"), machine)


def test_the_microscope_counts_what_is_derived_by_hand(machine: Machine) -> None:
    """Sectors, requests, wavefronts, conflicts: all equal on a GPU that follows the rules, and each kernel between its own marks."""
    record = compared(machine)
    assert record.unequal() == []
    assert machine.events == [event for name in BY_HAND for event in ("start", name, "stop")]
    assert [kernel.results_agree for kernel in record.kernels] == [True] * 4
    found = {c.counter: (c.hardware, c.simulated) for c in record.kernels[3].comparisons}
    assert found["sectors per global store"] == (4.0, 4.0)
    assert found["bank conflicts of shared loads"] == (15872.0, 15872)
    assert found["theoretical occupancy"] == (100.0, 100.0)
    assert len(found) == 12
    assert record.kernels[0].arguments == ("float32[16384]", "float32[16384]", "1")
    assert "48 of 48 counters of 4 kernels are equal" in hardware_counters.summary(record)


@pytest.mark.parametrize(
    ("metric", "value", "counter"),
    [
        (_L1.format("sectors", "ld"), "2,049", None),  # 4.002 sectors a request: within what two digits show
        (_L1.format("sectors", "ld"), "2,060", "sectors per global load"),
        (_L1.format("requests", "st"), "511", "global store requests"),
        (_WAVES.format("ld"), "16,383", "wavefronts of shared loads"),
        (_CONFLICTS.format("st"), "1", "bank conflicts of shared stores"),
        ("smsp__thread_inst_executed.sum", "320,000", "active lanes"),
        ("smsp__sass_average_branch_targets_threads_uniform.pct", "99.9", "uniform branches"),
        ("l1tex__t_requests_pipe_lsu_mem_global_op_red.sum", "3", "global atomic requests"),
        ("sm__maximum_warps_per_active_cycle_pct", "87.5", "theoretical occupancy"),
        ("smsp__sass_average_branch_targets_threads_uniform.pct", "nan", "uniform branches"),
    ],
)
def test_each_counter_can_differ(machine: Machine, metric: str, value: str, counter: str | None) -> None:
    """One number of the GPU is changed: that counter, and with a request less also the mean over requests, is unequal."""
    machine.changes["transpose-tiled", metric] = value
    names = [c.counter for name, c in compared(machine).unequal() if name == "transpose-tiled"]
    assert (names[-1] if names else None) == counter
    assert len(names) <= 2


def test_missing_metrics_are_named_and_the_rest_is_compared(machine: Machine) -> None:
    """A GPU without one metric: the counter is left out in every kernel, the metric stands in the record and the summary."""
    for name in BY_HAND:
        machine.changes[name, _WAVES.format("ld")] = None
    record = compared(machine)
    assert record.missing_metrics == (_WAVES.format("ld"),)
    assert {len(kernel.comparisons) for kernel in record.kernels} == {11}
    assert _WAVES.format("ld") in hardware_counters.summary(record)


def test_a_kernel_that_fails_is_named_and_the_others_are_compared(machine: Machine) -> None:
    """Its problem stands in the record, its launch is not taken for the next one's."""
    machine.broken.add("load-stride-8")
    record = compared(machine)
    assert [kernel.problem for kernel in record.kernels] == ["", "RuntimeError: no such instruction", "", ""]
    assert record.unequal() == []
    assert machine.events.count("start") == machine.events.count("stop") == 4


def test_a_kernel_that_ends_the_process_is_named_and_those_before_it_are_compared(machine: Machine) -> None:
    """The launch that ncu saw of it belongs to nothing; those after it were not launched."""
    machine.fatal = "shared-stride-2"
    record = compared(machine)
    assert [kernel.problem for kernel in record.kernels] == ["", "", "the process ended while it ran", "it was not launched"]
    assert [len(kernel.comparisons) for kernel in record.kernels] == [12, 12, 0, 0]


def test_where_no_kernel_runs_the_first_ones_reason_is_told(machine: Machine) -> None:
    """All kernels fail: ncu says only that nothing was profiled; the worker's own error stands beside it."""
    machine.broken |= set(BY_HAND)
    with pytest.raises(_ncu.NcuError, match=r"no launch was profiled .* load-stride-1: RuntimeError: no such instruction"):
        compared(machine)


def test_other_results_are_seen(machine: Machine) -> None:
    """A GPU whose arrays are not the microscope's is told by the record, the summary and the check of a file."""
    machine.factor = 2
    record = compared(machine)
    assert not any(kernel.results_agree for kernel in record.kernels)
    assert "RESULTS DIFFER" in hardware_counters.summary(record)
    assert any("arrays are not the microscope's" in sentence for sentence in records.problems(record))


def test_a_launch_of_another_kernel_or_grid_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not belong to the kernel stops the comparison, with both names in the message."""
    machine.renamed["load-stride-8"] = "fill_kernel"
    with pytest.raises(_ncu.NcuError, match=r"fill_kernel.*expected copy_strided of load-stride-8"):
        compared(machine)
    machine.renamed.clear()
    machine.events.clear()
    parse = _ncu.parse
    monkeypatch.setattr(_ncu, "parse", lambda text: tuple(dataclasses.replace(launch, grid=(64, 1, 2)) for launch in parse(text)))
    with pytest.raises(_ncu.NcuError, match=r"has the grid \(64, 1, 2\); expected 64 of load-stride-1"):
        compared(machine)


def perfect(s: Simulation) -> dict[str, float | None]:
    """Return the metrics of a GPU that counts just as the microscope does."""
    totals = s.totals
    given: dict[str, float | None] = dict.fromkeys(records.METRICS, 0.0)
    for access in s.accesses:
        short = {"load": "ld", "store": "st", "atomic": "red"}[access.kind]
        pairs = [(_WAVES, access.wavefronts), (_CONFLICTS, access.wavefronts - access.ideal_wavefronts)]
        if access.space == "global":
            pairs = [(_L1.replace("{}", "requests", 1), access.requests), (_L1.replace("{}", "sectors", 1), access.sectors)]
        for name, count in pairs:
            given[name.format(short)] = (given.get(name.format(short)) or 0.0) + count
    uniform = 100 * (1 - totals.divergent_branches / totals.branches) if totals.branches else None
    return given | {
        "smsp__thread_inst_executed.sum": float(totals.active_lanes), "smsp__inst_executed.sum": float(totals.executed_warps),
        "smsp__sass_branch_targets.sum": float(totals.branches), "smsp__sass_average_branch_targets_threads_uniform.pct": uniform,
        "sm__maximum_warps_per_active_cycle_pct": 100.0, "launch__registers_per_thread": 16.0, "launch__block_size": 256.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def good() -> records.CounterRecord:
    """A record with nothing wrong, made here and never committed."""
    found = []
    for case in kernels.OWN:
        s = simulate(case.kernel, case.grid, case.block, *case.make())
        metrics = perfect(s)
        found.append(records.KernelRecord(case.name, False, s.grid, s.block, (), True, "", {}, metrics, records.compare(metrics, s, "9.0")))
    return records.CounterRecord(ENVIRONMENT, "9.0", "Version 2025.3", records.RULE, (), records.REASONS, tuple(found))


def changed(record: records.CounterRecord, **comparison: Any) -> records.CounterRecord:
    """Return the record with the first comparison of its first kernel changed."""
    first, *others = record.kernels
    c, *rest = first.comparisons
    first = dataclasses.replace(first, comparisons=(dataclasses.replace(c, **comparison), *rest))
    return dataclasses.replace(record, kernels=(first, *others))


def test_a_good_file_is_read_back_and_has_no_problem(good: records.CounterRecord, tmp_path: Path) -> None:
    """Written, read, the same; nothing to complain about; the microscope still counts so."""
    path = _recorded.write(good, "counters", "NVIDIA H200 (1)", tmp_path)
    assert path.name == "counters-nvidia-h200-1.json"
    again = _recorded.read(path, records.CounterRecord)
    assert again == good
    assert records.problems(again) == []
    assert hardware_counters.drift(again) == []


def test_what_is_wrong_with_a_file_is_said(good: records.CounterRecord) -> None:
    """Too few kernels, a difference without a reason, a wrong flag, no driver, a kernel twice, and a kernel that was not run."""

    def told(record: records.CounterRecord) -> str:
        return " ".join(records.problems(record))

    assert "3 kernels; expected at least 20" in told(dataclasses.replace(good, kernels=good.kernels[:3]))
    assert "no explanation" in told(changed(good, hardware=31.0, equal=False))
    assert told(changed(good, hardware=31.0, equal=False, explanation="the compiler joins two loads")) == ""
    assert "says equal=True of 31.0 and 4.0" in told(changed(good, hardware=31.0))
    assert "says equal=False" in told(changed(good, equal=False, explanation="the compiler joins two loads"))
    assert "no driver" in told(dataclasses.replace(good, environment=dataclasses.replace(ENVIRONMENT, driver=None)))
    assert "more than once" in told(dataclasses.replace(good, kernels=(*good.kernels, good.kernels[0])))
    lost = dataclasses.replace(good.kernels[0], problem="it was not launched", comparisons=())
    assert "load-stride-1: nothing was compared (it was not launched)" in told(dataclasses.replace(good, kernels=(lost, *good.kernels[1:])))


def test_a_damaged_file_is_refused(good: records.CounterRecord, tmp_path: Path) -> None:
    """A field that is missing, or of another type, is a RecordingError with its place."""
    path = _recorded.write(good, "counters", "x", tmp_path)
    data = json.loads(path.read_text())
    del data["ncu"]
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match="ncu"):
        _recorded.read(path, records.CounterRecord)
    data = good.to_dict()
    data["kernels"][2]["comparisons"][0]["equal"] = "yes"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match="equal"):
        _recorded.read(path, records.CounterRecord)


def test_a_microscope_that_counts_otherwise_today_is_told(good: records.CounterRecord) -> None:
    """The recorded count of the microscope is held against today's, and so is the list of kernels."""
    assert hardware_counters.drift(changed(good, simulated=5.0)) == ["load-stride-1: sectors per global load was 5 and is 4."]
    renamed = dataclasses.replace(good.kernels[0], name="gone")
    assert hardware_counters.drift(dataclasses.replace(good, kernels=(renamed,))) == ["gone: there is no such kernel any more."]


def test_explanations_stay_while_the_numbers_do(good: records.CounterRecord) -> None:
    """What a person wrote is taken over where both numbers are as they were, and dropped where one has changed."""
    explained = changed(good, hardware=31.0, equal=False, explanation="the compiler joins two loads")
    assert records.with_explanations(changed(good, hardware=31.0, equal=False), explained) == explained
    (_, other), = records.with_explanations(changed(good, hardware=30.0, equal=False), explained).unequal()  # fmt: skip
    assert other.explanation == ""


def test_the_machine_code_is_counted_for_whoever_explains() -> None:
    """A transpose through a tile moves four elements a thread: unrolled, four of each access; a copy has one guarded exit."""
    code = {name: hardware_counters.machine_code(case.kernel, case.make(), "9.0")
            for name in ("transpose-tiled", "load-stride-1") for case in kernels.chosen(name)}  # fmt: skip
    if not code["load-stride-1"]:
        pytest.skip("no disassembler is installed")
    assert code["load-stride-1"]["LDG"] == code["load-stride-1"]["STG"] == 1
    assert "LDS" not in code["load-stride-1"]
    assert {code["transpose-tiled"][name] for name in ("LDG", "STS", "LDS", "STG")} == {4}


def test_the_kernels_are_many_and_their_names_their_own() -> None:
    """At least twenty, from the ladders and of our own; a wrong name is refused with those that there are."""
    names = [case.name for case in kernels.CASES]
    assert len(set(names)) == len(names) >= 40
    assert {case.from_ladder for case in kernels.CASES} == {True, False}
    with pytest.raises(ValueError, match=r"no kernel is named nonsense; expected some of load-stride-1"):
        kernels.chosen("gather,nonsense")


@pytest.mark.parametrize(
    ("gpu", "error", "code", "said"),
    [
        (False, None, 0, "skipped: torch sees no CUDA device"),
        (True, _ncu.NotAvailableError(_ncu.PERMISSION), 0, "skipped: ncu may not read the GPU's counters"),
        (True, _ncu.NcuError("ncu: broken"), 1, "failed: ncu: broken"),
    ],
)
def test_what_is_lacking_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpu: bool, error: Exception | None, code: int, said: str
) -> None:
    """No GPU and no permission end well with one line; a failure of ncu ends with 1."""
    import torch

    def fail() -> str:
        raise error or AssertionError("asked without a GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(hardware_counters.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(_ncu, "find_ncu", fail)
    assert hardware_counters.main([]) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert (captured.out + captured.err).count("\n") == 1
