"""How much a cell measures, and for how long, where it says nothing: the sizes that the notebooks tell, and seconds of sampling."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import devices, hierarchy, lessons, models, timing, transfer, workloads
from gpulab.devices import Device
from gpulab.evidence import Evidence
from gpulab.lessons import _climb, _density, _lighter, _live, _material, _passes, _sharded
from gpulab.lessons.content import Unmeasured
from gpulab.recorder import Case

# Bytes and numbers as the notebooks' texts have them (64 MiB are beyond most caches; 2^22 and 2^24 numbers are 16 and 64 MiB of float32),
# and seconds of sampling: some tenths a row, so that a table takes as long as its text takes to read.
DEFAULTS: dict[str, dict[str, Any]] = {
    "arithmetic_sweep": {"numbers": 16_777_216, "steps": (8, 16, 32, 64, 128, 256), "device": None, "deadline": 2.0},
    "climb": {"n": None},
    "column_loop": {"n": 4096, "deadline": 1.0},
    "compiled": {"arch": "sm_90"},
    "contest": {"workload": "matmul", "dtype": "float32", "again": False},
    "feeding": {"nbytes": 67_108_864, "deadline": 0.7},
    "five_times": {"n": 1024, "deadline": 0.6},
    "grade": {"rubric": None, "run_code": True, "seconds": None, "memory_bytes": 2_147_483_648, "progress": None, "stop": None},
    "grouping": {"device": None},
    "instructions": {"arch": "sm_90"},
    "launches": {"deadline": 0.5},
    "layer_forms": {"device": None, "deadline": 0.25},
    "memory_curve": {"again": False},
    "pageable_against_pinned": {"nbytes": 67_108_864},
    "pinning": {"nbytes": 67_108_864},
    "predict": {"unit": "", "choices": ()},
    "products": {"device": None, "deadline": 0.3},
    "recorded_scalings": {"mode": "strong"},
    "report": {"name": "", "notebook": "", "measure": True, "progress": True},
    "retraces": {"batches": (32, 32, 32, 17, 32, 17, 64, 1)},
    "reveal": {"reason": "", "evidence": None},
    "roof": {"again": False},
    "sharded": {"devices_wanted": 4},
    "sparse_race": {"shares": (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), "device": None},
    "spellings": {"n": 4_194_304},
    "trained": {"task": "digits-cnn"},
    "tuning": {"rung": "matmul-warp-tiled"},
    "under_roof": {"deadline": 0.3},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_measured_where_nothing_is_asked_for(name: str) -> None:
    """Sizes, devices and seconds of a call without options."""
    given = inspect.signature(getattr(lessons, name)).parameters.values()
    assert {each.name: each.default for each in given if each.default is not inspect.Parameter.empty} == DEFAULTS[name]


def test_what_counts_where_a_rubric_says_nothing() -> None:
    """A point for an exercise, a quarter of one for a prediction, and all that somebody has worked on."""
    assert vars(lessons.Rubric()) == {"exercise_points": 1.0, "points": {}, "prediction_points": 0.25, "open_share": None, "notebooks": ()}


@pytest.mark.parametrize(("seconds", "free", "n"), [(0.25, 1600.0, 20), (0.251, 1600.0, 10), (0.25, 1599.0, 10), (0.0625, 1e9, 80)])
def test_a_size_is_taken_whose_launch_and_arrays_just_fit(seconds: float, free: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second, a quarter of what is free: of twice the operations twice the time, and of 20 numbers of 20 bytes 400 bytes."""
    monkeypatch.setattr(_climb, "free_bytes", lambda device: free)
    first: Any = SimpleNamespace(sizes=(1, 10, 20, 80), flops=float, nbytes=lambda n: 20.0 * n)
    assert _climb._largest(first, seconds, CPU) == n


class Asked(BaseException):
    """Raised in a measurement's place, past what takes a library's error for an answer; its argument is how it was asked for."""


def asked(*given: Any, **named: Any) -> Any:
    """Stands in for a measurement."""
    raise Asked(named)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement begins."""
    for owner, name in ((timing, "measure"), (timing, "compare"), (hierarchy, "latency"), (hierarchy, "bandwidth")):
        monkeypatch.setattr(owner, name, asked)
    monkeypatch.setattr(transfer, "measure_copy", asked)


def _add() -> workloads.Workload:
    return workloads.get("add")(n=8)


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


CPU, GPU = Device("cpu"), Device("cuda", 0)
# The best device of the machine, a call, and what its first measurement is asked for.
ASKED: dict[str, tuple[Device, Callable[[], Any], dict[str, Any]]] = {
    "a size of a contest": (CPU, lambda: _material._undisturbed(_add()), {"device": "cpu", "deadline": 0.25}),
    "an accelerator's": (CPU, lambda: _material._live(_add(), CPU), {"device": CPU, "deadline": 0.25, "transfer": True}),
    "one amount of arithmetic": (CPU, lambda: lessons.arithmetic_sweep(8, (8,)), {"deadline": 0.3, "flops": 128.0, "nbytes": 320.0}),
    "two of them": (CPU, lambda: lessons.arithmetic_sweep(8, (4, 8), deadline=0.5), {"deadline": 0.25}),
    "a fusion": (CPU, lambda: lessons.fusion_gain(_twice, _twice, torch.ones(8)), {"devices": ["cpu"], "deadline": 0.7}),
    "work under a roof": (CPU, lambda: lessons.under_roof([_add()]), {"device": CPU, "deadline": 0.3}),
    "a column": (CPU, lessons.column_sum, {"device": "cpu", "deadline": 0.5}),
    "NumPy's formula": (CPU, lambda: lessons.spellings(8), {"device": "cpu", "deadline": 0.5}),
    "another spelling": (
        CPU, lambda: _passes._measured("x", lambda x, where: len, np.ones(8), CPU), {"device": CPU, "deadline": 0.5, "label": "x"},
    ),
    "pinning": (CPU, lambda: lessons.pinning(8), {"device": "cpu", "deadline": 0.5}),
    "a copy": (GPU, lambda: lessons.pageable_against_pinned(8), {"deadline": 1.0}),
    "a curve of memory": (CPU, lambda: lessons.memory_curve(again=True), {"deadline": 5.0}),
    "a curve of a GPU": (GPU, lessons.gpu_curves, {"device": GPU, "chases": 1, "deadline": 8.0}),
    "a stream of a GPU": (GPU, lessons.gpu_streams, {"device": GPU, "deadline": 6.0}),
    "layers in turns": (CPU, lambda: lessons.sparse_race((0.5,)), {"devices": ["cpu"], "deadline": 0.25, "clock": None}),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_how_long_a_measurement_takes(what: str, stopped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seconds, its device, and what it is told of the work."""
    best, call, wanted = ASKED[what]
    monkeypatch.setattr(devices, "default", lambda: best)
    monkeypatch.setattr(_lighter, "_FEATURES", 8)
    with pytest.raises(Asked) as found:
        call()
    assert {name: value for name, value in found.value.args[0].items() if name in wanted} == wanted


def test_a_rung_is_timed_for_three_tenths_of_a_second() -> None:
    """Those of the size that is asked for, of all rungs or of one; the best of a rung's options."""
    seen: list[tuple[str, float]] = []

    def case(rung: str, n: int, seconds: float) -> Case:
        def time(deadline: float) -> Any:
            seen.append((f"{rung} {n}", deadline))
            return SimpleNamespace(median_seconds=seconds)

        return Case({"rung": rung, "n": n}, time)

    cases = [case("a", 8, 2.0), case("a", 8, 1.0), case("b", 8, 3.0), case("a", 9, 0.5)]
    assert _climb._timed(cases, 8) == {"a": 1.0, "b": 3.0}
    assert _climb._timed(cases, 8, only="b") == {"b": 3.0}
    assert seen == [("a 8", 0.3), ("a 8", 0.3), ("b 8", 0.3), ("b 8", 0.3)]


def test_a_sweep_of_many_steps_takes_no_longer_than_one_of_few(stopped: None) -> None:
    """Of eight steps in two seconds each has a quarter."""
    with pytest.raises(Asked) as found:
        lessons.arithmetic_sweep(256, tuple(2**k for k in range(8)), device="cpu")
    assert found.value.args[0]["deadline"] == 0.25


def test_devices_of_jax_have_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a crowded machine a first import of JAX takes half of one."""
    monkeypatch.setattr(_sharded._library, "unusable", lambda name: "")
    monkeypatch.setattr(_sharded.subprocess, "run", asked)
    with pytest.raises(Asked) as found:
        lessons.sharded()
    assert (found.value.args[0]["timeout"], found.value.args[0]["text"], found.value.args[0]["capture_output"]) == (120, True, True)


def test_a_product_on_a_busy_machine_is_repeated_for_three_tenths_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 256, 512 and 1024; on a clock that moves on a sixteenth of a second at each look that is five times."""
    sizes: list[int] = []
    monkeypatch.setattr(devices, "default", lambda: CPU)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: sizes.append(len(a)))
    said = ("an example", Evidence.measured("A CPU"))
    tops, slopes = (models.ArithmeticRoof("float32", 1.0, *said),), (models.MemoryRoof("DRAM", 1.0, 1.0, *said),)
    ticks = itertools.count(0.0, 0.0625)
    raised = _density._with_larger_product(models.Roofline("A CPU", tops, slopes, (), (), said[1]), lambda: next(ticks))
    assert {n: sizes.count(n) for n in sizes} == {256: 5, 512: 5, 1024: 5}
    top = raised.arithmetic_roof()
    assert (top.flops_per_second, top.source) == (2 * 1024**3 / 0.0625, "the best product of 1024 x 1024 matrices, just now")


@pytest.mark.parametrize(("interval", "told"), [((2.0, 4.5), True), ((1.99, 3.1), False), ((2.9, 4.51), False), (None, False)])
def test_a_prediction_is_judged_by_a_ratio_that_is_known_as_well_as_close_is(interval: Any, told: bool) -> None:
    """3 times, of which a prediction is close from 2 to 4.5 times: within a factor of 1.5, both ends included."""
    with contextlib.nullcontext() if told else pytest.raises(Unmeasured, match=r"Run the cell that races, and this one, again\.$"):
        assert _live.judged(3.0, interval, 1.5, "races") == 3.0


def test_a_ratio_is_looked_at_until_it_is_within_a_fiftieth(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compare itself does; up to four times as long where the ratios would have no interval else."""
    seen: list[Any] = []
    monkeypatch.setattr(_live, "compare_within", lambda limits, runs, args, **named: seen.append((limits, runs, args, named)))
    _live.compared("a cell", {"a": len}, 0.5)
    ((limits, runs, args, named),) = seen
    assert (limits.relative_width, limits.deadline, runs, args) == (0.02, 0.5, {"a": len}, ())
    assert named == {"fewest": 20, "patience": 2.0}
