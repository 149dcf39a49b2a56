"""The ladder's share of cuBLAS: turns and shares with a measurement of our own, and what is wrong with a file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _recorded
import hardware_matmul as comparison

from gpulab.errors import MissingLibraryError
from gpulab.evidence import Environment
from gpulab.kernels import compile_cuda

ENVIRONMENT = Environment("2026-01-02", "Linux", "a CPU", 8, 2**36, "NVIDIA H200", "cuda", "580.1", "3.12", {}, "python x.py")


def share(rung: str, seconds: tuple[float, ...], library: tuple[float, ...] = (1.0, 1.0, 1.0)) -> comparison.ShareRecord:
    """Return a rung's record with a product that is right."""
    return comparison.ShareRecord(rung, (), seconds, library, (), 1e-7)


GOOD = comparison.MatmulRecord(
    ENVIRONMENT, 4096, 0.93, False, 3e-7, (share("matmul-vectorised", (1.25, 1.25, 1.25)), share("matmul-warp-tiled", (1.0, 1.05, 1.25)))
)


def test_a_round_goes_forwards_and_backwards_so_that_a_drifting_clock_meets_all_alike() -> None:
    """Each call costs a second more than the one before: the means of a round are then equal for all."""
    order: list[str] = []

    def measure(work: Any) -> Any:
        order.append(work())
        return SimpleNamespace(median_seconds=float(len(order)), notes=[SimpleNamespace(code="unstable")] if work() == "b" else [])

    seconds, notes = comparison.in_turns({name: lambda name=name: name for name in "abc"}, 2, measure)
    assert "".join(order) == "abccba" * 2
    assert seconds == {"a": [3.5, 9.5], "b": [3.5, 9.5], "c": [3.5, 9.5]}
    assert notes == {"a": set(), "b": {"unstable"}, "c": set()}


def test_the_share_is_the_median_of_the_rounds() -> None:
    """Seconds of cuBLAS over the rung's, round by round; the best rung is named, and so is the goal."""
    slow, fast = GOOD.rungs
    assert slow.shares == (0.8, 0.8, 0.8)
    assert fast.share == 1 / 1.05
    assert GOOD.best is fast
    text = comparison.summary(GOOD)
    assert "95.2% of cuBLAS (80.0% to 100.0%)" in text
    assert "the goal of 93% is reached" in text
    assert "not reached" in comparison.summary(dataclasses.replace(GOOD, goal=0.96))


def test_a_wrong_product_is_measured_against_float64() -> None:
    """One element off by a tenth of the largest value gives 0.1; float32's own rounding gives next to nothing."""
    rng = np.random.default_rng(0)
    a, b = rng.random((64, 64), dtype=np.float32), rng.random((64, 64), dtype=np.float32)
    right = a.astype(np.float64) @ b.astype(np.float64)
    assert comparison.off_by(right.astype(np.float32), a, b) < 1e-6
    right[5, 7] += 0.1 * right.max()
    assert comparison.off_by(right, a, b) == pytest.approx(0.1)


def test_a_file_is_read_back_and_what_is_wrong_with_it_is_said(tmp_path: Path) -> None:
    """TF32, a wrong product, too few rounds, a rung that is missing, and a share below the goal without a reason."""
    again = _recorded.read(_recorded.write(GOOD, "matmul", "NVIDIA H200", tmp_path), comparison.MatmulRecord)
    assert again == GOOD
    assert comparison.problems(again) == []
    slow, fast = GOOD.rungs

    def told(**changes: Any) -> str:
        return " ".join(comparison.problems(dataclasses.replace(GOOD, **changes)))

    assert "TF32 was allowed" in told(tf32_allowed=True)
    assert "cuBLAS was off by 2.0e-04" in told(library_max_relative_difference=2e-4)
    assert "off by 1.0e-02" in told(rungs=(slow, dataclasses.replace(fast, max_relative_difference=1e-2)))
    assert "2 rounds" in told(rungs=(slow, share("matmul-warp-tiled", (1.0, 1.0), (1.0, 1.0))))
    assert "not between 0 and 60 s" in told(rungs=(slow, share("matmul-warp-tiled", (1.0, 1.0, 99.0))))
    assert "the rungs are not" in told(rungs=(slow,))
    below = (slow, share("matmul-warp-tiled", (2.0, 2.0, 2.0)))
    assert "80.0% of cuBLAS, below 93%" in told(rungs=below)
    assert told(rungs=below, explanation="registers spill at this depth") == ""


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no failure."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert comparison.main([]) == 0
    assert "skipped: torch sees no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize("form", comparison.CANDIDATE_FORMS, ids=lambda form: " ".join(form[0]) or "plain")
def test_a_candidate_compiles_without_spills_and_its_tiles_divide_the_product(form: tuple[tuple[str, ...], int, int, int]) -> None:
    """For an H200: no stack, and shared memory of two tiles of A and of B; what it is worth only a GPU can tell."""
    options, rows, columns, threads = form
    depth = 8 if "-DDEPTH=8" in options else 16
    try:
        module = compile_cuda(comparison.CANDIDATE.read_text(encoding="utf-8"), arch="sm_90", options=options)
    except MissingLibraryError:
        pytest.skip("NVRTC is not installed")
    facts = module.kernels[comparison.CANDIDATE_KERNEL]
    assert (facts.spill_store_bytes, facts.spill_load_bytes, facts.stack_bytes) == (0, 0, 0)
    assert facts.shared_bytes == 2 * 4 * depth * (rows + columns)
    assert facts.max_threads == threads
    assert 1024 % rows == 1024 % columns == 0


def test_candidates_are_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    """They are no rungs: asking for both is refused."""
    with pytest.raises(SystemExit):
        comparison.main(["--candidates", "--record", "x"])
    assert "leave out --record" in capsys.readouterr().err
