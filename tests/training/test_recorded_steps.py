"""Two ways to train on a recorded machine, by hand on an invented one."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from test_recordings import a_recording, a_timing

from gpulab import training
from gpulab.errors import InputError
from gpulab.recordings import Entry
from gpulab.training import _ladder_recorded
from gpulab.training.ladder_results import Gain


def step(seconds: float, model: str, precision: str, means: str = "plain", steps: int = 10) -> Entry:
    """A case of ``steps`` steps, 10 % wide."""
    timing = a_timing(median_seconds=seconds, interval_seconds=(0.9 * seconds, 1.1 * seconds), sample_count=40)
    return Entry("training", {"model": model, "precision": precision, "means": means, "steps": steps}, timing)


MACHINE = a_recording(
    entries=(
        step(20e-3, "cnn", "float32"), step(10e-3, "cnn", "bfloat16"), step(5e-3, "cnn", "bfloat16", "compile"),
        step(80e-3, "transformer", "float32"), Entry("training", {"model": "transformer", "precision": "bfloat16", "means": "plain",
                                                                   "steps": 10}, None, "time did not reach it"),
    )
)  # fmt: skip


def test_a_step_of_each_model_that_has_both() -> None:
    """20 ms over 10 ms for ten steps: 2 ms and 1 ms a step, from 1.8 / 1.1 to 2.2 / 0.9; the transformer lacks one."""
    found = training.recorded_steps(MACHINE, {}, {"precision": "bfloat16"})
    (row,) = found.rows
    assert (row.model, row.samples) == ("cnn", 40)
    assert (row.first_seconds, row.second_seconds, row.speedup) == (pytest.approx(2e-3), pytest.approx(1e-3), pytest.approx(2))
    assert row.speedup_interval == pytest.approx((1.8 / 1.1, 2.2 / 0.9))
    assert found.evidence.badge == "RECORDED"
    assert found.table()[1] == [("cnn", "2.00 ms", "1.00 ms", "2.00x [1.64x, 2.44x]")]
    assert repr(found) == "<bfloat16, plain over float32, plain on test: cnn 2.00x>"
    bare = dataclasses.replace(found, rows=(dataclasses.replace(row, speedup_interval=None),))
    assert bare.table()[1] == [("cnn", "2.00 ms", "1.00 ms", "2.00x")]
    assert training.RecordedSteps.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_means_and_precision_together() -> None:
    """From float32 to compiled bfloat16: four times."""
    (row,) = training.recorded_steps(MACHINE, {}, {"precision": "bfloat16", "means": "compile"}).rows
    assert row.speedup == pytest.approx(4)


def test_what_was_not_recorded_is_said() -> None:
    """Neither a precision that nobody recorded nor a way against itself has a row."""
    for second in ({"precision": "float8"}, {"means": "graph"}, {}):
        found = training.recorded_steps(MACHINE, {}, second)
        assert found.rows == ()
        assert "not recorded yet" in repr(found)
        assert found.table()[1][0][0] == "not recorded yet"


def test_bad_input_is_refused() -> None:
    """In a sentence."""
    with pytest.raises(InputError, match="is no recording"):
        training.recorded_steps("nvidia-h200", {}, {})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="second has 'batch'"):
        training.recorded_steps(MACHINE, {}, {"batch": "8"})
    with pytest.raises(InputError, match="first has 'bfloat16'"):
        training.recorded_steps(MACHINE, "bfloat16", {})  # type: ignore[arg-type]


def rung(form: str, technique: str, batch: int, seconds: float | None) -> Entry:
    """A recorded form of a ladder, ten steps a call and 10 % wide; None where it was planned and not reached."""
    timing = None if seconds is None else a_timing(median_seconds=seconds, interval_seconds=(0.9 * seconds, 1.1 * seconds))
    params = {"model": "cnn", "form": form, "technique": technique, "batch_size": batch, "steps": 10}
    return Entry("speed-up ladder", params, timing, None if timing else "time did not reach it")


LADDER = (
    rung("the script", "", 32, 1.0), rung("alone", "batch", 256, 2.0), rung("with all before it", "batch", 256, 2.0),
    rung("all but it", "batch", 32, 0.5), rung("alone", "fused", 32, 0.5), rung("with all before it", "fused", 256, 1.6),
    rung("all but it", "fused", 256, 2.0),
)  # fmt: skip


def test_a_recorded_ladder_by_hand() -> None:
    """1 s for 320 samples: a batch of 256 in 2 s is 4x; fused alone in 0.5 s 2x; both in 1.6 s 5x; the product promises 8x."""
    found = training.recorded_ladder(a_recording(entries=LADDER))
    batch, fused = found.rows
    assert (batch.model, batch.name, batch.title, fused.name, fused.title) == ("cnn", "batch", "larger batch", "fused", "fused optimizer")
    ratios = [gain.ratio for row in found.rows for gain in (row.alone, row.up_to, row.removed) if gain]
    # Without the batch 320 samples take 0.5 s, without the fused optimizer 2,560 take 2 s; all take 1.6 s for 2,560.
    assert ratios == pytest.approx([4, 4, 2.5, 2, 5, 1.25])
    assert found.together is not None
    assert found.together.interval == pytest.approx((5 * 0.9 / 1.1, 5 * 1.1 / 0.9))
    assert found.product == pytest.approx(8)
    assert (found.recording, found.evidence.badge) == ("test", "RECORDED")
    assert found.table() == (
        ("test (RECORDED)", "with all before it, over the script", "alone, over the script", "all over all but it"),
        [
            ("larger batch", "4.00x [3.27x, 4.89x]", "4.00x [3.27x, 4.89x]", "2.50x [2.05x, 3.06x]"),
            ("fused optimizer", "5.00x [4.09x, 6.11x]", "2.00x [1.64x, 2.44x]", "1.25x [1.02x, 1.53x]"),
            ("all together, over the script", "5.00x [4.09x, 6.11x]", "", ""), ("the single gains multiplied (MODELLED)", "", "8.00x", ""),
        ],
    )  # fmt: skip
    assert repr(found) == "<ladder on test: together 5.00x [4.09x, 6.11x], product 8.00x>"
    assert repr(dataclasses.replace(found, product=None)) == "<ladder on test: together 5.00x [4.09x, 6.11x]>"


def test_a_ladder_that_lacks_a_form_is_no_whole_one() -> None:
    """What was planned and not reached, alone or on top, leaves no product or no whole; a machine that recorded no script has no ladder."""
    no_top = training.recorded_ladder(a_recording(entries=(*LADDER, rung("with all before it", "graph", 256, None))))
    assert (no_top.together, no_top.product, [row.name for row in no_top.rows]) == (None, None, ["batch", "fused"])
    assert [row.removed for row in no_top.rows] == [None, None]
    assert repr(no_top) == "<ladder on test: 2 alone; all together not recorded yet>"
    assert [row[0] for row in no_top.table()[1]] == ["larger batch", "fused optimizer"]
    no_single = training.recorded_ladder(a_recording(entries=(*LADDER[:4], *LADDER[5:], rung("alone", "fused", 32, None))))
    assert no_single.product is None
    assert no_single.together is not None
    assert no_single.rows[1].alone is None
    assert no_single.table()[1][1][2] == ""
    none = training.recorded_ladder(a_recording(entries=LADDER[1:]))
    assert (none.rows, none.product, none.together) == ((), None, None)
    assert none.table()[1] == [("not recorded yet", "", "", "")]
    assert repr(none) == "<ladder on test: not recorded yet>"
    with pytest.raises(InputError, match=r"^recorded_ladder: 'far' is no recording; expected one of gl\.recordings\.load\(name\)\.$"):
        training.recorded_ladder("far")  # type: ignore[arg-type]


# Technique -> the two ways whose steps it is the ratio of: precision and means.
_WAYS = {
    "tf32": (("float32", "plain"), ("tf32", "plain")), "mixed": (("float32", "plain"), ("bfloat16", "plain")),
    "layout": (("float32", "plain"), ("float32", "channels_last")), "fused": (("float32", "not fused"), ("float32", "fused")),
    "compile": (("float32", "plain"), ("float32", "compile")), "graph": (("float32", "plain"), ("float32", "graph")),
    "prefetch": (("float32", "plain"), ("float32", "prefetch")),
}  # fmt: skip


@pytest.mark.parametrize("name", _WAYS)
def test_without_a_ladder_the_recorded_steps_speak(name: str) -> None:
    """Each technique is the ratio of two ways to train, and of no others."""
    ways = sorted({way for pair in _WAYS.values() for way in pair})
    seconds = {way: 0.01 * 1.3**k for k, way in enumerate(ways)}
    recording = a_recording(entries=tuple(step(seconds[way], "cnn", *way) for way in ways))
    ((case, gain),) = _ladder_recorded.gains_of(name, recording)
    first, second = _WAYS[name]
    assert (case, gain.ratio) == ("a step of the cnn", pytest.approx(seconds[first] / seconds[second]))


def test_a_ladder_of_its_own_speaks_first_and_a_claim_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, on each model; else the ratios of a claim, with what was timed where its cases do not say; nothing of what nobody recorded."""
    asked: list[str] = []

    def judge(key: str, _: object) -> SimpleNamespace:
        asked.append(key)
        return SimpleNamespace(comparisons=(SimpleNamespace(case="64 items", ratio=3.0, interval=(2.0, 4.0)),))

    monkeypatch.setattr(_ladder_recorded.claims, "judge", judge)
    ((case, gain),) = _ladder_recorded.gains_of("batch", a_recording(entries=LADDER))
    assert (case, gain.ratio, asked) == ("alone, cnn", pytest.approx(4), [])
    found = {name: _ladder_recorded.gains_of(name, MACHINE) for name in ("batch", "waits", "autotune", "ranks")}
    three = Gain(3.0, (2.0, 4.0))
    assert found == {
        "batch": [("64 items", three)], "waits": [("an MLP, 64 items", three)], "autotune": [("one convolution, 64 items", three)],
        "ranks": [],
    }  # fmt: skip
    assert asked == ["larger-batches", "item-waits", "cudnn-autotune"]
    gpu, cpu = MACHINE, a_recording(environment=dataclasses.replace(MACHINE.environment, device_kind="cpu"), entries=MACHINE.entries)
    monkeypatch.setattr(_ladder_recorded.recordings, "readable", lambda: {"a CPU": cpu, "a GPU": gpu})
    ((machine, case, gain, evidence),) = _ladder_recorded.recorded_gains("mixed")
    assert (machine, case, gain.ratio, evidence.badge) == ("a GPU", "a step of the cnn", pytest.approx(2), "RECORDED")
