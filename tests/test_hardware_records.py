"""The comparisons with hardware that are committed: complete, explained, and still what the microscope and the models say today."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _counter_kernels
import _counter_records
import _recorded
import hardware_counters
import hardware_matmul
import hardware_occupancy

from gpulab.kernels import compile_python
from gpulab.kernels._simulate._run import KNOWN_ERROR
from gpulab.models import _access


def _committed(kind: str) -> list[Path]:
    found = _recorded.committed(kind)
    if not found:
        pytest.skip(f"no {kind} recorded yet in benchmarks/recorded: it takes a GPU and `make gpu-check`")
    return found


def test_the_counters_of_a_gpu_are_equal_or_explained() -> None:
    """At least twenty kernels, each difference with a reason, and the microscope still counts what was compared."""
    for path in _committed("counters"):
        record = _recorded.read(path, _counter_records.CounterRecord)
        assert path.name == _recorded.file_name("counters", record.environment.device)
        assert _counter_records.problems(record) == []
        assert hardware_counters.drift(record) == []


def test_the_microscopes_badge_says_how_many_counters_were_equal() -> None:
    """Counted in the committed file."""
    (path,) = _committed("counters")
    record = _recorded.read(path, _counter_records.CounterRecord)
    count = sum(len(kernel.comparisons) for kernel in record.kernels)
    said = (
        f"{count - len(record.unequal())} of {count} counters of {len(record.kernels)} kernels are those of an {record.environment.device}"
    )
    assert KNOWN_ERROR.startswith(said)


def test_the_badge_of_access_patterns_says_how_many_of_its_counts_were_equal() -> None:
    """Counted in the committed file: what is asked of sectors and banks, and each of the others explained by the machine code."""
    (path,) = _committed("counters")
    record = _recorded.read(path, _counter_records.CounterRecord)
    counts = [
        one for kernel in record.kernels for one in kernel.comparisons
        if one.counter.startswith(("sectors per", "wavefronts of", "bank conflicts of"))
    ]  # fmt: skip
    said = f"{sum(one.equal for one in counts)} of {len(counts)} sectors, wavefronts and conflicts of {len(record.kernels)} kernels"
    assert _access.KNOWN_ERROR.startswith(f"{said} are those of an {record.environment.device}")
    assert all(one.explanation for one in counts if not one.equal)


def test_a_python_kernels_registers_are_those_that_the_gpu_launched() -> None:
    """What compile_python says without a GPU, for every kernel that Nsight Compute read: equal, but that it calls fewer than 16 16."""
    numba_cuda = pytest.importorskip("numba_cuda")
    for path in _committed("counters"):
        record = _recorded.read(path, _counter_records.CounterRecord)
        if record.environment.libraries["numba-cuda"] != numba_cuda.__version__:
            pytest.skip(f"made by numba-cuda {record.environment.libraries['numba-cuda']}, which may give other registers")
        cases, arch = {case.name: case for case in _counter_kernels.CASES}, f"sm_{record.compute_capability.replace('.', '')}"
        launched = {kernel.name: kernel.metrics["launch__registers_per_thread"] for kernel in record.kernels}
        compiled = {name: _registers(cases[name], arch) for name in launched}
        assert {name: max(16, registers) for name, registers in compiled.items()} == launched


def _registers(case: _counter_kernels.Case, arch: str) -> int:
    module = compile_python(case.kernel, *case.make(), arch=arch)
    return next(iter(module.kernels.values())).registers


def test_the_drivers_occupancy_is_the_models() -> None:
    """10,000 launches and no difference."""
    for path in _committed("occupancy"):
        record = _recorded.read(path, hardware_occupancy.OccupancyRecord)
        assert path.name == _recorded.file_name("occupancy", record.environment.device)
        assert hardware_occupancy.problems(record) == []


def test_the_ladders_last_rung_is_near_cublas_or_explained() -> None:
    """TF32 off, right products, at least three rounds, and 93 % or the reason why not."""
    for path in _committed("matmul"):
        record = _recorded.read(path, hardware_matmul.MatmulRecord)
        assert path.name == _recorded.file_name("matmul", record.environment.device)
        assert hardware_matmul.problems(record) == []


def test_committed_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the kind is found by its name, and others are passed over: the tests above skip only where there is none."""
    monkeypatch.setattr(_recorded, "FOLDER", tmp_path)
    for name in ("counters-nvidia-h200.json", "occupancy-nvidia-h200.json", "counters.txt"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in _recorded.committed("counters")] == ["counters-nvidia-h200.json"]
    assert [path.name for path in _committed("occupancy")] == ["occupancy-nvidia-h200.json"]
    assert _recorded.committed("matmul") == []
