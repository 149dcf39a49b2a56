"""What notebook 03 works with: roofs that stay, sweeps of arithmetic, fusion; and its checks under roofs of any machine."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab import devices, lessons, models, workloads
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.lessons import _density, _nb03, _nb03_exercises
from gpulab.memory import OperatorTraffic, Traffic

SAID = ("an example", Evidence.measured("A CPU"))


def _roof(peak: float, bandwidth: float, *notes: Note) -> models.Roofline:
    tops, slopes = (models.ArithmeticRoof("float32", peak, *SAID),), (models.MemoryRoof("DRAM", bandwidth, math.inf, *SAID),)
    return models.Roofline("A CPU", tops, slopes, (), notes, SAID[1])


@pytest.fixture(autouse=True)
def no_roof_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Each test begins without roofs, and writes no progress of the learner's."""
    monkeypatch.setattr(_density, "_kept", None)
    monkeypatch.setenv("GPULAB_PROGRESS", f"{tmp_path}/progress.json")


def test_roofs_of_a_quiet_machine_are_measured_once(monkeypatch: pytest.MonkeyPatch):
    """One look where nobody disturbs, and the same roofs from then on; again=True looks again."""
    looks = []
    monkeypatch.setattr(models, "roofline", lambda device, refresh=False: looks.append(refresh) or _roof(1e11, 2e10))
    assert lessons.roof() is lessons.roof()
    assert looks == [False]
    lessons.roof(again=True)
    assert looks == [False, True]


def test_of_disturbed_looks_the_highest_roofs_stay(monkeypatch: pytest.MonkeyPatch):
    """Two looks while others were at work: of each roof the highest, and a larger product may raise the arithmetic's."""
    busy, later = Note("contended", "others"), Note("contended", "Look again with refresh=True.")
    made, looks = iter([_roof(5.0, 40.0, busy), _roof(7.0, 20.0, later)]), []
    monkeypatch.setattr(models, "roofline", lambda device, refresh=False: (looks.append(refresh), next(made))[1])
    monkeypatch.setattr(_density, "_with_larger_product", lambda found: found)
    roof = lessons.roof()
    assert roof.arithmetic_roof().flops_per_second == 7.0
    assert roof.memory_roof().bytes_per_second == 40.0
    assert next(made, None) is None
    assert looks == [False, True], "a second look at what is kept would be none"
    assert [note.sentence for note in roof.notes] == ["Look again with gl.lessons.roof(again=True)."]


@pytest.mark.skipif(not devices.default().is_cpu, reason="the larger product is for busy CPUs")
def test_a_larger_product_raises_a_roof_and_never_lowers_it():
    """The largest product in a quarter of a second of the injected clock: 8.6 GFLOP/s, above one roof and below another."""
    low, high = (_density._with_larger_product(_roof(peak, 1e9), _ticking(0.25)) for peak in (1e9, 1e12))
    assert low.arithmetic_roof().flops_per_second == pytest.approx(2 * 1024**3 / 0.25)
    assert high.arithmetic_roof().flops_per_second == 1e12


def _ticking(step: float) -> Callable[[], float]:
    """A clock on which each look takes a step."""
    return functools.partial(next, itertools.count(0.0, step))


def test_a_sweep_counts_what_it_does():
    """2 k FLOP a number; each number read and written once, and the small matrix."""
    sweep = lessons.arithmetic_sweep(1 << 12, (4, 16), device="cpu", deadline=0.2)
    assert [(row.multiply_adds, row.flops, row.nbytes) for row in sweep.rows] == [
        (4, 2 * 4 * 4096, 4 * (2 * 4096 + 16)),
        (16, 2 * 16 * 4096, 4 * (2 * 4096 + 256)),
    ]
    assert sweep.evidence.badge is Badge.MEASURED
    assert len(sweep.table()[1]) == 2


@pytest.mark.parametrize(
    ("seconds", "free"),
    [
        ((1.0, 1.1, 1.9, 2.1, 4.0), 4), ((1.7, 1.0, 1.0, 3.0, 1.0), 4), ((1, 1, 1, 1, 1), 16), ((3.0, 1.0, 1.0, 1.0, 1.0), 16),
        ((3.0, 1.5, 1.0, 1.0, 1.9, 4.0), 16), ((4.0, 3.0, 1.0, 2.1), 4), ((1.0, 2.0, 2.1), 2),
    ],
)  # fmt: skip
def test_arithmetic_is_free_until_time_doubles(seconds: tuple[float, ...], free: int):
    """The last amount before time doubled; what was slow before the fastest, such as a product of thin rows, ends nothing."""
    rows = tuple(_density.DensityRow(2**k, s, 1.0, 1.0, "") for k, s in enumerate(seconds))
    assert _density.DensitySweep(64, rows, SAID[1]).free_multiply_adds == free


@pytest.mark.parametrize(("disturbed", "first", "seconds"), [(True, 3.0, 1.1), (False, 3.0, 3.0), (True, 2.0, 2.0)])
def test_a_disturbed_pass_before_the_fastest_is_timed_once_more(
    disturbed: bool, first: float, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    """The first of three took 3 s, and 1.1 s when it came again; where it took twice the fastest's time, or no note tells of others at
    work, what was measured stands.
    """
    times = iter([first, 1.0, 1.2, 1.1])

    def measure(*given: object, **named: object) -> object:
        took = next(times)
        notes = (Note("contended", "others"),) if disturbed and took == first else ()
        return type("Taken", (), {"median_seconds": took, "notes": notes})()

    monkeypatch.setattr(_density.timing, "measure", measure)
    sweep = lessons.arithmetic_sweep(1 << 12, (1, 4, 16), device="cpu")
    assert [row.seconds for row in sweep.rows] == [seconds, 1.0, 1.2]
    assert sweep.free_multiply_adds == 16


def test_steps_are_taken_from_few_to_many(monkeypatch: pytest.MonkeyPatch):
    """In whatever order they are given: what is free is told of the amounts, of 1, 4 and 16 the second; one number or none is refused."""
    times = iter([1.0, 1.5, 3.0])
    taken = type("Taken", (), {"median_seconds": property(lambda self: next(times)), "notes": ()})
    monkeypatch.setattr(_density.timing, "measure", lambda *given, **named: taken())
    sweep = lessons.arithmetic_sweep(1 << 12, (16, 1, 4), device="cpu")
    assert [row.multiply_adds for row in sweep.rows] == [1, 4, 16]
    assert sweep.free_multiply_adds == 4
    for wrong, says in ((64, "steps is 64; expected several"), ((), "no steps; expected at least one")):
        with pytest.raises(InputError, match=says):
            lessons.arithmetic_sweep(64, wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"sparse_race: shares is 0\.9; expected several"):
        lessons.sparse_race(0.9)  # type: ignore[arg-type]


def test_a_step_that_does_not_divide_is_refused():
    """One sentence, before anything is measured."""
    for step in (3, 0, 2.5):
        with pytest.raises(InputError, match="does not divide 64 numbers"):
            lessons.arithmetic_sweep(64, (step,))  # type: ignore[arg-type]


def _smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1)


def test_fusion_without_a_compiler_is_modelled_by_bytes():
    """Six arrays against two: three times, MODELLED, with the reason."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    gain = lessons.fusion_gain(_smooth, broken, torch.ones(4096))
    assert (gain.bytes_ratio, gain.evidence.badge, gain.reason) == (3.0, Badge.MODELLED, "no C++ compiler")
    assert "no C++ compiler" in gain.table()[1][-1]


def test_fusion_is_measured_where_it_runs():
    """Both take turns and are compared; the bytes stand beside."""
    gain = lessons.fusion_gain(_smooth, lambda x: torch.clamp(torch.add(torch.ones(()), x, alpha=2), min=0), torch.ones(4096))
    assert gain.evidence.badge is Badge.MEASURED
    assert gain.separate_bytes == 3 * gain.fused_bytes == 3 * 2 * 4 * 4096
    assert gain.speedup == pytest.approx(gain.separate_seconds / gain.fused_seconds)


def test_fusion_that_gives_other_results_answers_nothing():
    """2 x is not relu(2 x + 1): the race reports no speed-up and says why, and so does the reveal, in place of a number."""
    gain = lessons.fusion_gain(_smooth, lambda x: x * 2, torch.ones(4096))
    assert gain.speedup is None
    assert gain.table()[1][2][-1].startswith("no speed-up (disagree")
    shown = lessons.reveal("03.7", gain)
    assert shown.measured is None
    assert "fused: the result differs from the reference" in shown.measured_text


RACED = lessons.FusionGain(
    "f", 6.0, 2.0, 2.9e-3, 1e-3, "", SAID[1], 2.9, (2.6, 3.2), (Note("contended", "a"), Note("stalled", "b"), Note("contended", "c"))
)


def test_a_raced_fusion_shows_its_interval_and_its_notes():
    """A measured ratio stands with its interval, each code once; below stands what the notes say."""
    assert RACED.table()[1][2:] == [
        ("one by one / fused", "3.00x", "2.90x [2.60x, 3.20x] (contended, stalled)"),
        ("note: contended", "a", ""),
        ("note: stalled", "b", ""),
        ("note: contended", "c", ""),
    ]
    assert repr(RACED) == "<f: one by one / fused 2.90x [2.60x, 3.20x] (contended, stalled) (MEASURED)>"


def test_a_doubt_about_both_forms_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """Two forms that took turns beside the same programs have the same note: one row with both names, not the sentence twice."""
    both, one = Note("contended", "others were at work."), Note("drifting", "it became slower.")
    rows = [
        SimpleNamespace(name=name, measurement=SimpleNamespace(median_seconds=1e-3, notes=notes))
        for name, notes in (("one by one", (both, Note("deadline", "quiet"))), ("fused", (both, one)))
    ]
    race = SimpleNamespace(rows=rows, notes=(), evidence=SAID[1], speedup=1.0, speedup_interval=(0.9, 1.1))
    monkeypatch.setattr(_density.timing, "compare", lambda *_, **__: race)
    gain = lessons.fusion_gain(_smooth, _smooth, torch.ones(64))
    assert gain.table()[1][3:] == [
        ("note: contended", "one by one and fused: others were at work.", ""),
        ("note: drifting", "fused: it became slower.", ""),
    ]


def test_a_fusion_without_an_interval_answers_nothing():
    """A ratio of two moments is no answer: the reveal says so, and what to run again. The row says once that there is no interval."""
    bare = dataclasses.replace(RACED, speedup_interval=None, notes=(Note("no-interval", "too few"), *RACED.notes))
    assert bare.table()[1][2][-1] == "2.90x (no interval) (contended, stalled)"
    shown = lessons.reveal("03.7", bare)
    assert shown.measured is None
    assert "Run the cell that races, and this one, again" in shown.measured_text


def test_work_is_measured_under_the_learners_roofs(monkeypatch: pytest.MonkeyPatch):
    """One measured point a workload, in the order given."""
    monkeypatch.setattr(_density, "_kept", _roof(1e11, 2e10))
    works = [workloads.get("add")(n=1000), workloads.get("matmul")(n=16)]
    under = lessons.under_roof(works, deadline=0.05)
    assert [point.label for point in under.points] == [work.label for work in works]
    assert all(point.evidence.badge is Badge.MEASURED for point in under.points)
    assert under.arithmetic == _roof(1e11, 2e10).arithmetic


@pytest.mark.parametrize(("roofs", "placed"), [(("float32", "tf32"), "tf32"), (("float32",), "float32")])
def test_work_that_may_use_tf32_stands_under_that_roof(monkeypatch: pytest.MonkeyPatch, roofs: tuple[str, ...], placed: str):
    """A float32 convolution on CUDA may use TF32: under float32's roof it would pass for impossible. Older GPUs have no such roof."""
    roof = _roof(1e11, 2e10)
    tops = tuple(models.ArithmeticRoof(name, 1e11, *SAID) for name in roofs)
    monkeypatch.setattr(_density, "_kept", dataclasses.replace(roof, arithmetic=tops))
    monkeypatch.setattr(workloads.Workload, "arithmetic_on", lambda self, device: "tf32")
    (point,) = lessons.under_roof([workloads.get("conv2d")(n=1)], deadline=0.05).points
    assert point.arithmetic == placed


def test_the_column_is_placed_by_the_bytes_asked_for(monkeypatch: pytest.MonkeyPatch):
    """2^20 numbers of 4 bytes, measured, under the learner's roofs."""
    monkeypatch.setattr(_density, "_kept", _roof(1e11, 2e10))
    point = lessons.column_sum()
    assert point.nbytes == 4 * 2**20
    assert point.flops == 2**20 - 1
    assert 4 * _density.COLUMN_ROWS * _density.COLUMN_WIDTH == 256 * 2**20  # as the notebook tells the matrix
    assert point.evidence.badge is Badge.MEASURED


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(peak=st.floats(1e8, 1e15), bandwidth=st.floats(1e9, 1e13))
def test_solutions_pass_under_the_roofs_of_any_machine(peak: float, bandwidth: float):
    """From a busy laptop to a GPU, with ridges from a thousandth to a million FLOP a byte."""
    _density._kept = _roof(peak, bandwidth)
    for exercise in (_nb03_exercises.PLACE, _nb03_exercises.BATCH):
        names: dict[str, object] = {}
        exec(exercise.solution, names)
        result = lessons.check(exercise.id, names[exercise.answer_name])
        assert result.state == "passed", result.message


@pytest.mark.parametrize(("ridge", "rows"), [(0.1, 1), (5.0, 11), (14.0, 29), (100.0, 222)])
def test_the_batch_that_turns_compute_bound_by_trial(ridge: float, rows: int, monkeypatch: pytest.MonkeyPatch):
    """The first batch whose intensity, counted directly, is at least the ridge; within 1.5 of it passes, beyond does not."""
    first = next(n for n in range(1, 10_000) if 2 * n * 4096**2 >= ridge * 4 * (4096**2 + 2 * n * 4096))
    assert first == rows
    monkeypatch.setattr(_density, "_kept", _roof(ridge * 1e10, 1e10))
    assert lessons.check("03.6", rows).state == "passed"
    assert lessons.check("03.6", 2 * rows + 1).state == "wrong"


def test_numbers_kept_in_tensors_do_not_tip_the_half():
    """Two passes in place of four are half, also where a and b are tensors of one number; three passes are 75 %, in whatever they are."""

    def two(x: torch.Tensor, mean: float, scale: float, gain: float, shift: float) -> torch.Tensor:
        a, b = torch.tensor(gain / scale), torch.tensor(shift - mean * gain / scale)
        return x * a + b

    def three(x: torch.Tensor, mean: float, scale: float, gain: float, shift: float) -> torch.Tensor:
        return (x - mean) * torch.tensor(gain / scale) + shift

    passed, refused = lessons.check("03.8", two), lessons.check("03.8", three)
    assert (passed.state, refused.state) == ("passed", "wrong")
    assert "2.00 MiB became 1.00 MiB in 2 operators: 50% of the traffic" in passed.message
    assert "75% is left" in refused.message


def test_the_five_works_are_what_the_exercise_says():
    """Bytes and FLOPs by hand, as the task counts them (the bias and the single result are left out there)."""
    n = 2**24
    by_hand = {
        "add": (n, 12 * n), "sum": (n, 4 * n), "softmax": (5 * n, 8 * n), "one row": (2 * 4096**2, 4 * 4096**2),
        "matmul": (2 * 1024**3, 12 * 1024**2),
    }  # fmt: skip
    for name, work in lessons.five_works().items():
        assert (work.flops, work.nbytes) == pytest.approx(by_hand[name], rel=0.01)


MOVED = Traffic("f", (OperatorTraffic("aten.mm", 8, 4, 1e6), OperatorTraffic("aten.add", 8, 4, 1.0)), 8, 4, SAID[1])
GAIN = lessons.FusionGain("f", 6.0, 2.0, None, None, "no C++ compiler", SAID[1])
POINT = models.RooflinePoint("p", 1.0, 4.0, "float32", "DRAM", 0.02, "memory", 1.0, SAID[1])
SWEEP = lessons.DensitySweep(64, (lessons.DensityRow(8, 1.0, 1.0, 1.0, ""), lessons.DensityRow(16, 3.0, 1.0, 1.0, "")), SAID[1])


@pytest.mark.parametrize(
    ("id", "given", "outcome"),
    [
        ("03.4", (MOVED, _roof(5.0, 1.0)), 50.0),
        ("03.5", SWEEP, 8),
        ("03.7", GAIN, 3.0),
        ("03.7", RACED, 2.9),
        ("03.9", POINT, 2.0),
        ("03.2", 0.5, 0.5),
    ],
)
def test_what_a_reveal_takes_from_a_result(id: str, given: object, outcome: float):
    """Half of the operators, the last cheap step, the ratio of the bytes, the percentage of the roof; a plain number stays."""
    found = _nb03.LESSON.questions[id].outcome
    assert found is not None
    assert found(given) == pytest.approx(outcome)


@pytest.mark.parametrize(
    ("id", "predicted", "measured", "says"),
    [
        ("03.1", 1.0, 400.0, "FLOPs alone"),
        ("03.1", 20.0, 400.0, "512 times the bytes"),
        ("03.2", 100.0, 0.5, "look the same from outside"),
        ("03.4", 10.0, 54.0, "by count"),
        ("03.5", 8.0, 64.0, "costs nothing"),
        ("03.7", 1.0, 2.9, "written only to be read again"),
        ("03.9", 90.0, 2.0, "no way to send four bytes alone"),
    ],
)
def test_usual_wrong_predictions_get_their_own_sentence(id: str, predicted: float, measured: float, says: str):
    """The misconceptions of the storyline: FLOPs predict time, busy is fast, networks are products, arithmetic costs."""
    reading = next(each for each in _nb03.LESSON.questions[id].readings if each.when(predicted, measured))
    assert says in reading.sentence


def test_the_sum_moves_512_times_the_bytes_of_the_product():
    """What a reading of 03.1 says, by the catalogue's own counts at the notebook's sizes."""
    product, total = workloads.get("matmul")(n=256), workloads.get("add")(n=2**25)
    assert product.flops == total.flops
    assert total.nbytes / product.nbytes == 512
