"""The comparison with the driver's occupancy: the kernels really differ, the launches are many and near limits, a difference is seen."""

from __future__ import annotations

import collections
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _recorded
import hardware_occupancy as comparison

from gpulab.errors import MissingLibraryError
from gpulab.evidence import Environment
from gpulab.kernels import compile_cuda
from gpulab.models import occupancy, occupancy_table

ENVIRONMENT = Environment("2026-01-02", "Linux", "a CPU", 8, 2**36, "NVIDIA H200", "cuda", "580.1", "3.12", {}, "python x.py")
MOST_SHARED = 232448  # of a block on 9.0. Source: CUDA Programming Guide 13.0, technical specifications: 227 KB
FUNCTIONS = tuple(comparison.FunctionRecord(r, s, 1024 if r <= 64 else 256, b) for r, s, b in
                  zip(range(16, 256, 12), [0, 1000, 49152, 4] * 5, [0, 1, 16, 5, 2] * 4, strict=True))  # fmt: skip


class Driver:
    """Answers as the model does, one launch at a time, but for those that are told otherwise; counts what it was asked."""

    functions = FUNCTIONS
    most_shared = MOST_SHARED

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, int]] = []
        self.wrong_every = 0

    def blocks(self, function: int, threads: int, dynamic_bytes: int, carveout: int) -> int:
        """Answer, and be wrong where asked to."""
        self.asked.append((function, threads, dynamic_bytes, carveout))
        f = self.functions[function]
        right = occupancy(
            threads, f.registers, f.shared_bytes + dynamic_bytes, "9.0", barriers_per_block=f.barriers,
            carveout_percent=None if carveout < 0 else carveout,
        )  # fmt: skip
        wrong = self.wrong_every and len(self.asked) % self.wrong_every == 0
        return right.blocks_per_sm + int(wrong)


def test_equal_answers_give_no_difference_and_every_kernel_is_asked() -> None:
    """All launches are asked about, each kernel and whole and started warps among them, shared memory up to the most."""
    driver = Driver()
    record = comparison.compare(driver, ENVIRONMENT, "9.0", launches=1000)
    assert (record.launches, record.different, record.carveout_launches, record.carveout_different) == (1000, 0, 200, 0)
    assert len(driver.asked) == 1200
    plain = np.array(driver.asked[:1000])
    assert set(plain[:, 0]) == set(range(len(FUNCTIONS)))
    assert set(plain[:, 3]) == {-1}
    assert min(share for *_, share in driver.asked[1000:]) >= 0
    most = np.array([f.max_threads for f in FUNCTIONS])[plain[:, 0]]
    assert ((plain[:, 1] >= 1) & (plain[:, 1] <= most)).all()
    assert 300 < np.count_nonzero(plain[:, 1] % 32) < 700
    total = plain[:, 2] + np.array([f.shared_bytes for f in FUNCTIONS])[plain[:, 0]]
    assert (total <= MOST_SHARED).all()
    assert (plain[:, 2] == 0).mean() < 0.65


def test_the_launches_are_limited_by_each_resource() -> None:
    """Warps, registers, shared memory, blocks and barriers each decide at least fifty of the 10,000 launches."""
    rows = comparison.draw(FUNCTIONS, comparison.LAUNCHES, MOST_SHARED, np.random.default_rng(1))
    names = ("registers", "shared_bytes", "barriers")
    registers, static, barriers = (np.array([getattr(FUNCTIONS[k], name) for k in rows[:, 0]]) for name in names)
    table = occupancy_table(rows[:, 1], registers, static + rows[:, 2], "9.0", barriers_per_block=barriers)
    limiters = collections.Counter(table.limiter.tolist())
    assert min(limiters[name] for name in ("warps", "registers", "shared", "blocks", "barriers")) >= 50, limiters


def test_a_driver_that_answers_otherwise_is_seen() -> None:
    """Every hundredth answer is one block more: just these launches are in the record, with both answers, and a file is refused."""
    driver = Driver()
    driver.wrong_every = 100
    record = comparison.compare(driver, ENVIRONMENT, "9.0", launches=1000)
    assert (record.different, record.carveout_different) == (10, 2)
    assert [(d.function, d.threads, d.dynamic_bytes, d.carveout) for d in record.differences] == driver.asked[99:1000:100]
    assert all(d.driver == d.modelled + 1 for d in record.differences)
    told = comparison.problems(record)
    assert "10 launches differ from the driver; expected none." in told
    assert any("1,000 launches; expected at least 10,000" in sentence for sentence in told)
    assert any("expected an explanation" in sentence for sentence in told)


def test_a_file_is_read_back_and_checked(tmp_path: Path) -> None:
    """A good record has no problem; one whose model answers otherwise today, or whose kernels are alike, has."""
    hinted = (comparison.Difference(0, 256, 0, 10, 7, 8),)
    good = comparison.OccupancyRecord(
        ENVIRONMENT, "9.0", 1, FUNCTIONS, 10_000, 0, (), 2000, 1, hinted, "the driver takes the share as a hint"
    )
    again = _recorded.read(_recorded.write(good, "occupancy", "NVIDIA H200", tmp_path), comparison.OccupancyRecord)
    assert again == good
    # 16 registers, no shared memory, 256 threads: 8 blocks of 8 warps fill the 64 slots of 9.0, whatever the share.
    assert comparison.problems(again) == []
    stale = dataclasses.replace(good, carveout_differences=(dataclasses.replace(hinted[0], modelled=9),))
    assert comparison.problems(stale) == ["the model now answers differently than when this was recorded; expected a new recording."]
    assert any("register counts" in s for s in comparison.problems(dataclasses.replace(good, functions=FUNCTIONS[:3])))


def test_the_compiler_makes_what_each_kernel_is_meant_to_take() -> None:
    """Shared memory, barriers and bounds as asked, registers from few to 255 in many steps: every sixth kernel through the compiler."""
    registers = set()
    for variant in comparison.variants()[::6]:
        try:
            facts = compile_cuda(variant.source, arch="sm_90", options=variant.options).kernels["busy"]
        except MissingLibraryError as error:
            pytest.skip(str(error))
        assert facts.shared_bytes == variant.shared
        assert facts.barriers == variant.barriers
        assert facts.max_threads == variant.bound
        assert facts.registers <= (variant.most_registers or 255)
        registers.add(facts.registers)
    assert len(registers) >= 6
    assert len(comparison.variants()) >= 40
    assert {variant.barriers for variant in comparison.variants()} >= {0, 1, 16}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no failure."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert comparison.main([]) == 0
    assert "skipped: torch sees no CUDA device" in capsys.readouterr().out
