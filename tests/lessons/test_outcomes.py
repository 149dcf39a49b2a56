"""What a reveal takes from a cell's result, from results of round numbers, by hand; a plain number stays as it is."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from gpulab.compression import Weighing
from gpulab.evidence import Evidence, Note
from gpulab.hierarchy import Bandwidth, ParallelChains, ParallelPoint
from gpulab.lessons import _material, _nb02, _nb03, _nb05, _nb06, _nb08, content
from gpulab.lessons._columns import ColumnLoop
from gpulab.lessons._density import DensityRow, DensitySweep, FusionGain
from gpulab.lessons._feeding import Feeding
from gpulab.lessons._lighter import Grouping
from gpulab.lessons._road import TwoKinds
from gpulab.lessons.content import Unmeasured
from gpulab.memory import MemoryTrace, Traffic
from gpulab.models import RooflinePoint
from gpulab.parallel import StrategyResult
from gpulab.timing.results import Measurement
from gpulab.training import PipelineResult

HERE, THERE = Evidence.measured("A CPU"), Evidence.measured("A GPU")
QUESTIONS = [question for lesson in content.lessons() for question in lesson.questions.values()]


def made(kind: type, **fields: Any) -> Any:
    """A result of that class with these fields alone."""
    one = object.__new__(kind)
    vars(one).update(fields)
    return one


def counted(**totals: float) -> SimpleNamespace:
    """A simulation, as far as the question looks."""
    return SimpleNamespace(totals=SimpleNamespace(**totals))


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.outcome is not None], ids=lambda question: question.id)
def test_a_plain_number_stays(question: content.Question) -> None:
    """Who gives one has measured it in another way."""
    assert question.outcome is not None
    assert question.outcome(7.5) == 7.5


LINK = SimpleNamespace(seconds=lambda nbytes: 10 + nbytes)  # 10 s a copy and a second a byte
ROWS = (_material.ContestRow(8, 1.0, 1.0, 9.0, 9.0), _material.ContestRow(16, 1.0, 1.0, 2.0, 6.0))
TRACED = {"parameters": 2, "gradients": 3, "optimizer": 4, "activations": 9, "other": 99}


@pytest.mark.parametrize(
    ("id", "given", "answer"),
    [
        ("00.3", made(Measurement, first_call_seconds=6.0, median_seconds=2.0), 3.0),
        ("00.8", _material.Contest("x", "n", "it", ROWS, HERE, HERE), 3.0),  # at the largest size
        ("01.1", counted(global_store_requests=2), 2.0),
        ("01.2", (counted(executed_warps=6), counted(executed_warps=2)), 3.0),
        ("01.11", counted(shared_wavefronts=64, shared_requests=2), 32.0),
        ("02.3", LINK, (10 + 65_536) / (10 + 1024)),
        ("02.4", SimpleNamespace(half_bandwidth_bytes=5.0), 5.0),
        ("02.6", TwoKinds(8, 6.0, 2.0, HERE), 3.0),
        ("02.7", SimpleNamespace(stale_ratio=0.25), 25.0),
        ("02.10", LINK, 14_000.0),  # four bytes, a thousand times
        ("02.11", SimpleNamespace(peak_bytes=12, peak_by_category={"parameters": 3, "other": 9}), 4.0),
        ("04.16", SimpleNamespace(ratio=0.25), 25.0),
        ("06.10", made(MemoryTrace, peak_by_category=TRACED), "activations"),
        ("06.10", made(MemoryTrace, peak_by_category={"optimizer": 4, "parameters": 3}), "optimizer"),
        ("07.8", SimpleNamespace(ratio=0.25), 25.0),
        ("10.3", ColumnLoop(8, 6.0, 2.0, (), HERE, (2.0, 4.5)), 3.0),
        ("10.5", Feeding(8, "x", 6.0, 2.0, None, (), HERE, (2.0, 5.9)), 3.0),
    ],
)
def test_an_outcome_by_hand(id: str, given: Any, answer: Any) -> None:
    """One number or choice of each kind of result."""
    outcome = content.question(id).outcome
    assert outcome is not None
    assert outcome(given) == (answer if isinstance(answer, str) else pytest.approx(answer))


@pytest.mark.parametrize(
    ("id", "found", "says"),
    [
        ("10.3", ColumnLoop(8, 6.0, 2.0, (), HERE), "for an interval. Run the cell that times the loop"),
        ("10.3", ColumnLoop(8, 6.0, 2.0, (), HERE, (1.8, 4.0)), "it may be 1.80x or 4.00x"),  # close is from 1.9 to 4.8
        ("10.5", Feeding(8, "x", 6.0, 2.0, None, (), HERE), "for an interval. Run the cell that times both"),
        ("10.5", Feeding(8, "x", 6.0, 2.0, None, (), HERE, (1.6, 6.1)), "it may be 1.60x or 6.10x"),  # close is from 1.5 to 6
    ],
)
def test_a_ratio_without_a_narrow_interval_judges_nobody(id: str, found: Any, says: str) -> None:
    """A prediction is held against a measured ratio whose interval says no more than "close" does; a modelled one has none."""
    outcome = content.question(id).outcome
    with pytest.raises(Unmeasured, match=re.escape(says)):
        outcome(found)  # type: ignore[misc]
    modelled = dataclasses.replace(found, evidence=Evidence.modelled("a link", "a book"), ratio_interval=None)
    assert outcome(modelled) == 3.0  # type: ignore[misc]


def raced(id: str, interval: tuple[float, float] | None) -> Any:
    """What one of three questions is given: 1.4 times as fast, with that interval."""
    row: Any = SimpleNamespace(speedup=1.4, speedup_interval=interval)
    return {
        "03.7": FusionGain("f", 6.0, 2.0, 1.4, 1.0, "", HERE, 1.4, interval),
        "07.1": made(Weighing, models=(SimpleNamespace(speedup=None), row), evidence=HERE),
        "07.12": made(Grouping, rows=(None, row), evidence=HERE),
    }[id]


@pytest.mark.parametrize("id", ["03.7", "07.1", "07.12"])
def test_a_speed_up_whose_interval_is_wide_judges_nobody(id: str) -> None:
    """Of 1.4 times within 0.6 to 3 nobody knows whether who said 1 was wrong; within 1.3 to 1.5 it is told."""
    outcome = content.question(id).outcome
    assert outcome(raced(id, (1.3, 1.5))) == 1.4  # type: ignore[misc]
    with pytest.raises(Unmeasured, match=r"it may be 0\.60x or 3\.00x"):
        outcome(raced(id, (0.6, 3.0)))  # type: ignore[misc]
    with pytest.raises(Unmeasured, match="for an interval"):
        outcome(raced(id, None))  # type: ignore[misc]


def test_a_curve_of_streams_tells_its_own_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the result calls the span."""
    monkeypatch.setattr(Bandwidth, "span_ratio", property(lambda self: 4.0))
    assert content.question("01.10").outcome(object.__new__(Bandwidth)) == 4.0  # type: ignore[misc]


def test_sixteen_chains_are_compared_with_one() -> None:
    """The question names 16: of 12, 4 and 10 ns a hop, one chain's over that of all, though fewer chains made more hops."""
    points = tuple(ParallelPoint(chains, 99.0, None, seconds * 1e-9, 5) for chains, seconds in ((1, 12), (8, 4), (16, 10)))
    both = made(ParallelChains, points=points)
    assert content.question("01.5").outcome(both) == pytest.approx(1.2)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("id", "predicted", "measured", "says"),
    [
        ("00.6", "the CPU", "the accelerator", "Mostly the CPU wins"),
        ("00.6", "the accelerator", "the CPU", "A GPU is not always faster"),
        ("05.10", _nb05.CPU_HIGH, _nb05.CUDA_HIGH, "the other way round"),
        ("05.10", _nb05.BOTH_LOW, _nb05.CUDA_HIGH, "one name for two policies"),
    ],
)
def test_each_wrong_choice_is_explained_where_no_text_below_does(id: str, predicted: str, measured: str, says: str) -> None:
    """The text behind these cells says why the usual answer comes out, or nothing at all."""
    reading = next(each for each in content.question(id).readings if each.when(predicted, measured))
    assert says in reading.sentence


def test_more_workers_than_the_accelerator_needs_are_explained() -> None:
    """Of 4 times expected and 2.5 found, on 64 cores, no core was missing: a step of 25 ms cannot fall below its 10 ms of computing."""
    (reading, *_) = (each for each in _nb06.WORKERS.readings if each.when(4.0, 2.5))
    assert "where the accelerator waits no more, no worker makes it faster" in reading.sentence


def test_a_sum_and_a_product_are_told_by_their_names() -> None:
    """6 s over 2 s; with another name, with a third, or with numbers in their place, nothing is told."""
    slow, fast = made(Measurement, median_seconds=6.0, evidence=HERE), made(Measurement, median_seconds=2.0, evidence=THERE)
    pair = {"the sum": slow, "the product": fast}
    assert _nb03._ratio_of(pair) == 3.0
    for wrong in ({"the sum": slow}, pair | {"more": slow}, {"the sum": slow, "the other": fast}, {"the sum": 6.0, "the product": fast}):
        with pytest.raises(Unmeasured, match="with two measurements"):
            _nb03._ratio_of(wrong)
    assert content.question("03.1").sides(pair) == {"the sum": HERE, "the product": THERE}  # type: ignore[misc]


def test_arithmetic_that_never_cost_anything_has_no_end_yet() -> None:
    """Of 8, 16 and 32 multiply-adds, 3 s at 32 say that 16 are free; where 32 took no twice the shortest time, it may be any more."""
    outcome = content.question("03.5").outcome
    sweeps = [
        DensitySweep(64, tuple(DensityRow(k, took, 1.0, 1.0, "") for k, took in zip((8, 16, 32), seconds, strict=True)), HERE)
        for seconds in ((1.0, 1.5, 3.0), (1.0, 1.5, 1.9), (3.0, 2.0, 1.0))
    ]
    assert outcome(sweeps[0]) == 16  # type: ignore[misc]
    for sweep in sweeps[1:]:
        with pytest.raises(Unmeasured, match=r"it is 32 or more\. Run .*steps=\(8, 16, 32, 64, 128\), device=device"):
            outcome(sweep)  # type: ignore[misc]


def test_the_share_of_a_peak_needs_the_operations() -> None:
    """Half a GFLOP/s under a roof of 10 GFLOP/s."""
    roof = SimpleNamespace(arithmetic_roof=lambda name: SimpleNamespace(flops_per_second={"float32": 1e10}[name]))
    assert _nb03._share_of_peak((SimpleNamespace(flops_per_second=5e8), roof)) == pytest.approx(5.0)
    with pytest.raises(Unmeasured, match="Pass flops="):
        _nb03._share_of_peak((SimpleNamespace(flops_per_second=None), roof))


def test_operators_that_memory_holds_back_are_a_share_of_all() -> None:
    """Of four, under a ridge of 5 FLOP a byte: 4 and 0 FLOP a byte are held back, 5 are not, and of one nobody counted them."""
    operators = tuple(SimpleNamespace(flops=flops, nbytes=10) for flops in (40, 0, 50, None))
    roof = SimpleNamespace(ridge_flops_per_byte=lambda arithmetic: {"float32": 5.0}[arithmetic])
    assert _nb03._share_of_operators((made(Traffic, operators=operators), roof)) == 50.0
    assert content.question("03.4").outcome((made(Traffic, operators=operators[:1]), roof)) == 100.0  # type: ignore[misc]
    for nothing in (made(Traffic, operators=()), 7):
        with pytest.raises(Unmeasured, match="nothing was counted"):
            _nb03._share_of_operators((nothing, roof))


def test_the_share_of_a_roof_is_told_in_per_cent() -> None:
    """2 s where the roofs allow 0.5; of work that was only predicted there is none."""
    point = RooflinePoint("x", 8.0, 2.0, "float32", "DRAM", 0.5, "memory", 2.0, HERE)
    assert [content.question("03.9").outcome(each) for each in (point, dataclasses.replace(point, seconds=None))] == [25.0, 0.0]  # type: ignore[misc]


def test_a_pair_is_of_the_cpu_and_the_gpu() -> None:
    """Both by their names, each with its own kind of time."""
    cpu, gpu = SimpleNamespace(median_seconds=1.0), SimpleNamespace(total_seconds=2.0)
    assert _nb02._is_pair({"the CPU": cpu, "the GPU": gpu})
    for wrong in ({"the CPU": cpu}, {"the CPU": gpu, "the GPU": cpu}, {"the CPU": cpu, "the GPU": cpu}, {"a": cpu, "b": gpu}, [cpu, gpu]):
        assert not _nb02._is_pair(wrong)


@pytest.mark.parametrize(
    ("seconds", "code", "answer"),
    [(4.0, "contended", "the CPU"), (5.0, "contended", "the CPU"), (9.0, "deadline", "the GPU"), (9.0, "contended", "")],
)
def test_a_cpu_that_others_disturbed_loses_to_nobody(seconds: float, code: str, answer: str) -> None:
    """02.1: against a bill of 5 s; where both take as long it is the CPU."""
    pair = {
        "the CPU": SimpleNamespace(median_seconds=seconds, notes=(Note(code, "Words."),)),
        "the GPU": SimpleNamespace(total_seconds=5.0),
    }
    if answer:
        assert _nb02._faster(pair) == answer
        return
    with pytest.raises(Unmeasured, match=r"so its 9\.00 s may be far too long"):
        _nb02._faster(pair)


def test_a_second_run_is_compared_with_the_first() -> None:
    """Images a second of pipelines: 80 over 40. Bytes that rings send: 6 and 3 over 2 and 4; nothing sent before tells nothing."""
    pipelines = tuple(made(PipelineResult, evidence=one, accelerator_evidence=THERE) for one in (THERE, HERE))
    assert _nb06._are_pipelines(list(pipelines))
    assert not any(map(_nb06._are_pipelines, (pipelines[:1], (*pipelines, pipelines[0]), (pipelines[0], 5), 5)))
    assert _nb06._sides(pipelines) == _nb06._sides(pipelines[1]) == {"the loading": HERE, "the accelerator": THERE}
    runs = [
        made(StrategyResult, reports=tuple(SimpleNamespace(ring_bytes=n) for n in sent), evidence=THERE)
        for sent in ((2, 4), (6, 3), (0, 0))
    ]
    assert _nb08._traffic(runs[:2]) == 1.5
    with pytest.raises(Unmeasured, match="the first run sent nothing"):
        _nb08._traffic((runs[2], runs[0]))
    for plain in (runs, (runs[0], 5), 5):
        assert _nb08._traffic(plain) is plain
    assert {name: str(each.badge) for name, each in _nb08._as_rings(runs).items()} == {
        "the collectives": "MEASURED",
        "what they send": "MODELLED",
    }
    assert _nb08._as_rings(5) == {}
