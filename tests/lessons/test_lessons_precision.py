"""What notebook 05 reveals and shows: outcomes of its predictions from results of every kind, and recorded products of a GPU."""

from __future__ import annotations

import dataclasses
import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import devices, lessons, memory, precision, recorder, recordings, timing, training
from gpulab.devices import environment
from gpulab.evidence import Badge, Evidence, Note
from gpulab.lessons import (
    RecordedPrecisions,
    _live,
    _nb05,
    _nb05_exercises,
    _nb05_rescue,
    _precisions,
    content,
    products,
    recorded_precisions,
)
from gpulab.lessons.content import Refused, Unmeasured
from gpulab.recordings import Entry, Recording, Timing


def outcome(id: str, measured: object) -> object:
    """What reveal would take as the answer."""
    known = content.question(id)
    assert known.outcome is not None
    return known.outcome(measured)


def test_the_ends_of_the_naive_run() -> None:
    """A run that diverged, one that learned, and one that stood still, in the words of the choices."""
    run = training.fit("prose-transformer", steps=2, batch_size=4, device="cpu")
    words = {
        "diverged": (dataclasses.replace(run, ended="diverged"), _nb05.TURNS_NAN),
        "learned": (dataclasses.replace(run, losses=np.array([2.3, 1.0])), _nb05.LIKE_FLOAT32),
        "stood": (dataclasses.replace(run, losses=np.array([2.3, 2.29])), _nb05.STANDS),
    }
    for given, wanted in words.values():
        assert outcome("05.1", given) == wanted
    with pytest.raises(Unmeasured):
        outcome("05.1", dataclasses.replace(run, ended="stopped"))


def test_numbers_are_taken_from_their_results() -> None:
    """The sum of ones in float16; percentages of swallowed updates and vanished gradients."""
    assert outcome("05.2", precision.sum_error([1.0] * 3000, ["float16"])) == 2048
    assert outcome("05.4", precision.swallowed_updates([1.0, 1.0], [1.0001, 1.1], "bfloat16")) == 50
    assert outcome("05.6", precision.gradient_window([1e-9, 1.0, 1.0, 1.0])) == 25


@pytest.mark.parametrize(
    ("said", "says"), [(65_504.0, "never comes near the largest"), (10_000.0, "not each of them"), (1000.0, "up to 2,048")]
)
def test_a_wrong_sum_of_ones_gets_its_own_sentence(said: float, says: str) -> None:
    """2,048 comes out: who expects float16's largest number thinks of an overflow, who expects ten thousand of none."""
    assert says in next(reading.sentence for reading in content.question("05.2").readings if reading.when(said, 2048.0))


def test_a_tenth_is_guessing() -> None:
    """Ten digits: 12 % right is nothing learned, 45 % is something, a nan loss is neither."""
    accuracy = training.Accuracy(60, 500, 0.12, (0.1, 0.15), 2.3, "digits", Evidence.measured("a device"))
    assert outcome("05.8", accuracy) == _nb05.NOTHING
    assert outcome("05.8", dataclasses.replace(accuracy, ratio=0.456)) == _nb05.SAME
    assert outcome("05.8", dataclasses.replace(accuracy, loss=float("nan"))) == _nb05.INFINITE


def test_the_lowest_scale_that_rescues_keeps_few_digits() -> None:
    """NumPy's float16 at the lowest scale of gradients from 1.3e-10: 2^8, where that one is four fifths too large."""
    gradients = np.array([1.3e-10, 1e-6])
    space: dict[str, Any] = {}
    exec(_nb05_exercises.SCALES.solution, space)
    low, high = space["scales"](gradients)
    wrong = [float(np.float16(gradients[0] * scale)) / scale / gradients[0] - 1 for scale in (low, high)]
    assert (low, wrong[0]) == (2.0**8, pytest.approx(0.79, abs=0.01))
    assert abs(wrong[1]) < 2**-11  # half a unit of the eleventh bit
    said = lessons.check("05.7", space["scales"])
    assert said.state == "passed"
    assert "not equally good" in said.message


def test_the_gradients_between_the_ends_keep_off_them() -> None:
    """05.7: of seed 5, 500 a set, of both signs and between 2.5 powers of two above its lower end and 2.5 below its upper one."""
    rng = np.random.default_rng(5)
    for gradients, (low, high) in zip(_nb05_exercises._gradient_sets(), ((-34, -4), (-29, 3), (-40, -18), (-26, 9)), strict=True):
        sizes = np.exp2(rng.uniform(low + 2.5, high - 2.5, 500))
        signs = rng.choice((-1, 1), 500)
        assert gradients[42:] == pytest.approx((signs * sizes)[42:], rel=1e-12)


@pytest.mark.parametrize(
    ("largest", "why"), [(65_519.0, "A negative one: take the sizes without"), (65_520.0, "Rounding ends at infinity")]
)
def test_float16_becomes_infinite_from_65520_on(largest: float, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """05.7: half-way between 65,504 and 2^16; where only the negative ones reach it, their sign was forgotten."""
    monkeypatch.setattr(_nb05_exercises, "_gradient_sets", lambda: [np.array([-70_000.0, largest, 2.0**-24])])
    with pytest.raises(Refused, match=rf"the largest becomes -?70000: beyond 65,504, infinite\. {why}"):
        _nb05_exercises._check_scales(lambda gradients: (1.0, 1.0))


def test_where_an_operator_cannot_be_observed_pytorchs_lists_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the manual's "CPU Op-Specific Behavior" and "CUDA Op-Specific Behavior": the CPU's list has neither norm nor softmax."""
    rows = tuple(precision.AutocastRow(name, None, "float32") for name in _nb05_exercises.OPERATORS)
    blind = precision.AutocastPolicy("cpu", "bfloat16", rows, Evidence.measured("a CPU"))
    monkeypatch.setattr(precision, "autocast_policy", lambda *args: blind)
    assert _nb05_exercises._truth() == {
        "linear": ("lower", "lower"),
        "relu": ("inputs", "inputs"),
        "layer_norm": ("inputs", "float32"),
        "softmax": ("inputs", "float32"),
        "cross_entropy": ("float32", "float32"),
    }


def test_the_norms_of_both_devices() -> None:
    """From two policies: the CPU's observed one, and a CUDA that keeps norms in float32 or does not."""
    cpu = precision.autocast_policy("cpu", operators=["layer_norm"])
    high = precision.AutocastPolicy("cuda", "float16", (precision.AutocastRow("layer_norm", None, "float32"),), cpu.evidence)
    low = dataclasses.replace(high, rows=(precision.AutocastRow("layer_norm", "inputs", "float32"),))
    assert outcome("05.10", (cpu, high)) == _nb05.CUDA_HIGH
    assert outcome("05.10", (cpu, low)) == _nb05.BOTH_LOW
    assert outcome("05.10", (high, high)) == _nb05.BOTH_HIGH
    assert set(content.question("05.10").sides((cpu, high))) == {"the CPU", "CUDA"}
    with pytest.raises(Unmeasured):
        outcome("05.10", (cpu, "cuda"))


def test_the_share_of_memory_and_the_bytes_of_a_parameter() -> None:
    """The exercise's bytes are those that memory.predict finds for a layer whose activations hardly count."""
    import torch

    layer, x = torch.nn.Linear(512, 512, bias=False), torch.ones(1, 512)
    need = {p: memory.predict(layer, x, loss=torch.sum, precision=p, device="cpu") for p in ("float32", "bfloat16", "pure-bfloat16")}
    assert outcome("05.12", (need["float32"], need["float32"])) == 100
    both = (need["bfloat16"], need["float32"])
    assert content.question("05.12").sides(both) == {"autocast": both[0].evidence, "float32": both[1].evidence}
    for other in ((need["float32"], 7), (7, need["float32"])):
        with pytest.raises(Unmeasured, match="two predictions of memory"):
            outcome("05.12", other)
    for setting, name in (("float32", "float32"), ("autocast", "bfloat16"), ("pure bfloat16", "pure-bfloat16")):
        held = need[name].peak_by_category
        weight, gradient, state, _ = _nb05_exercises._PARTS[setting]
        assert held["parameters"] / 512**2 == weight
        assert held["optimizer"] / 512**2 == pytest.approx(state, abs=0.01)
        assert held.get("gradients", gradient * 512**2) / 512**2 in (gradient, 0)


def _recording(device_kind: str) -> Recording:
    def entry(name: str, n: int, seconds: float) -> Entry:
        told = (Note("throttled", "The clock fell."), Note("deadline", "Too soon.")) if n == 4095 else ()
        timing = Timing(
            samples_seconds=np.array([seconds]), sample_count=1, median_seconds=seconds, interval_seconds=None, first_call_seconds=seconds,
            launch_seconds=seconds, with_transfer_seconds=None, calls_per_sample=1, flops=2.0 * n**3, nbytes=None, notes=told,
        )  # fmt: skip
        return Entry("precision", {"format": name, "n": n}, timing)

    entries = (entry("float32", 4096, 4e-3), entry("bfloat16", 4096, 1e-3), entry("bfloat16", 4095, 2e-3))
    here = dataclasses.replace(environment("cpu"), device="A GPU", device_kind=device_kind)
    return Recording("a-gpu", here, {}, {}, "0", entries)


def test_recorded_products(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """By hand: four times the rate of float32 at the same side; nothing to compare with at another; a CPU's recording counts as none."""
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    before = {row.machine for row in recorded_precisions().rows}
    recordings.write(_recording("cpu"), tmp_path / "a-cpu.json")
    assert {row.machine for row in recorded_precisions().rows} == before
    recordings.write(_recording("cuda"), tmp_path / "a-gpu.json")
    rows = {(row.format, row.side): row for row in recorded_precisions().rows if row.machine == "a-gpu"}
    assert rows["bfloat16", 4096].over_float32_ratio == pytest.approx(4)
    assert rows["bfloat16", 4096].flops_per_second == pytest.approx(2 * 4096**3 / 1e-3)
    assert rows["bfloat16", 4095].over_float32_ratio is None
    assert "A GPU" in rows["float32", 4096].evidence.sentence
    assert [row.notes for row in rows.values()] == [("throttled",) if side == 4095 else () for _, side in rows]
    assert "not recorded yet" in RecordedPrecisions(())._repr_html_()


def ticking(**options: Any) -> timing.Measurement:
    """Measure a function that takes 100 us on a clock of the test."""
    now = [0.0]

    def work() -> None:
        now[0] += 1e-4

    return timing.measure(work, clock=lambda: now[0], **options)


def test_products_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: four times float32's rate at the same side; a refusal keeps its place; a CPU is measured only where it is asked for."""
    here = ticking(device="cpu", deadline=0.01)
    cases = [
        ({"format": "float32", "n": 4096}, dataclasses.replace(here, flops=1e9)),
        ({"format": "bfloat16", "n": 4096}, dataclasses.replace(here, flops=4e9)),
        ({"format": "float8_e4m3fn", "n": 4096}, "not here: no such kernel"),
    ]
    monkeypatch.setattr(_precisions._live, "measured", lambda *_: cases)
    found = products("cpu")
    assert [row.over_float32_ratio for row in found.rows] == pytest.approx([1, 4])
    assert found.table()[0][0] == "device (MEASURED)"
    assert "no such kernel" in found._repr_html_()
    assert [one.badge for one in found.evidence] == [Badge.MEASURED]
    monkeypatch.setattr(_precisions._live.devices, "default", lambda: _precisions._live.devices.find("cpu"))
    monkeypatch.setattr(recordings, "readable", dict)
    assert products().rows == ()


def test_the_sides_that_are_measured_are_pairs_of_the_recorders_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU 4096 and 4095, on a CPU 512 and 511: a side that fits the hardware, and one that does not."""
    asked: list[Any] = []
    monkeypatch.setattr(_precisions._live, "measured", lambda *given: (asked.append(given), [])[1])
    products("cpu", 0.7)
    ((name, wanted, where, deadline),) = asked
    assert (name, where.is_cpu, deadline) == ("precision", True, 0.7)
    from gpulab.recorder import _precision

    assert [n for n in (*_precision._GPU_SIDES, *_precision._CPU_SIDES) if wanted({"n": n})] == [4096, 4095, 512, 511]


def test_which_notes_make_a_figure_doubtful() -> None:
    """Each code once; how sampling began and ended is none of them."""
    codes = ("deadline", "contended", "no-interval", "slow-first-call", "too-short", "throttled", "contended")
    noted = types.SimpleNamespace(notes=tuple(Note(code, "Words.") for code in codes))
    assert _live.doubts(noted) == ("contended", "throttled")  # type: ignore[arg-type]


def test_an_interval_as_wide_as_what_is_close_judges() -> None:
    """Of 2 within a factor of 2 that is 1 to 4, both ends included; half a percent beyond either, or no interval, judges nobody."""
    assert _live.judged(2.0, (1.0, 4.0), 2.0, "races") == 2.0
    for interval, says in (((0.995, 4.0), "it may be 0.99x or 4.00x"), ((1.0, 4.02), "it may be 1.00x or 4.02x")):
        with pytest.raises(Unmeasured) as why:
            _live.judged(2.0, interval, 2.0, "races")
        assert str(why.value) == f"the times jumped about so much that {says}. Run the cell that races, and this one, again."
    with pytest.raises(Unmeasured) as why:
        _live.judged(2.0, None, 2.0, "weighs")
    assert str(why.value) == ("other programs disturbed the times too much for an interval. Run the cell that weighs, and this one, again.")
    assert [_live.with_interval(2.0, None), _live.with_interval(2.0, (1.0, 4.0))] == ["2.00x", "2.00x [1.00x, 4.00x]"]


@pytest.mark.parametrize(("asked", "best", "found"), [(None, "cpu", None), (None, "cuda", "cuda"), ("cpu", "cuda", "cpu")])
def test_a_cpu_is_measured_where_it_is_asked_for(asked: str | None, best: str, found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unasked, recordings speak for it; a GPU speaks for itself."""
    monkeypatch.setattr(_live.devices, "default", lambda: devices.Device(best))
    where = _live.chosen(asked)
    assert (where and where.torch_type) == found


def test_the_recorders_cases_run_live_and_say_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an experiment's cases those that are wanted; one that fails gives its reason."""

    def broken(_: float) -> timing.Measurement:
        raise RuntimeError("no kernel image")

    cases = [recorder.Case({"n": 1}, lambda deadline: ticking(device="cpu", deadline=deadline)),
             recorder.Case({"n": 2}, broken), recorder.Case({"n": 3}, broken)]  # fmt: skip
    monkeypatch.setattr(recorder, "experiments", lambda only: (recorder.Experiment("x", "x", lambda device: cases),))
    found = _live.measured("x", lambda params: params["n"] < 3, devices.find("cpu"), 0.01)
    assert found[0][1].median_seconds == pytest.approx(1e-4)
    assert found[1] == ({"n": 2}, "not here: no kernel image")
    assert len(found) == 2


MANUAL = """
import torch
from torch.nn.functional import cross_entropy

def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * 2**16).backward()
        for p in model.parameters():
            p.grad /= 2**16
        {step}
"""
BY_HAND = """with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 / 1e-6 * p.grad"""


@pytest.mark.parametrize("step", ["optimizer.step()", BY_HAND], ids=["optimizer", "by hand"])
def test_a_run_may_be_rescued_without_a_scaler(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale of 2^16, divided out again, is what the scaler does; a step of SGD may be written out. Later steps are not looked at."""
    looks: list[object] = []
    note = _nb05_rescue._Steps._note
    monkeypatch.setattr(_nb05_rescue._Steps, "_note", lambda self, *given: (looks.append(given), note(self, *given))[1])
    names: dict[str, Any] = {}
    exec(MANUAL.format(step=step), names)
    result = lessons.check("05.9", names["train"])
    assert result.state == "passed", result.message
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0).step()
    assert len(looks) == (40 if step == "optimizer.step()" else 0)  # one for each batch


def test_a_look_at_the_loss_needs_no_autocast() -> None:
    """05.9: the loss of the trained model in float32, without gradients, is no step of the training."""
    look = "\n    with torch.no_grad():\n        print(float(cross_entropy(model(x), y)))"
    names: dict[str, Any] = {}
    exec(_nb05_rescue.RESCUE.solution + look, names)
    result = lessons.check("05.9", names["train"])
    assert result.state == "passed", result.message
