"""TrainingRace: what the controls ask of the core, moments on the way, Stop, errors, and the code shown."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from control_tables import offers_what_it_takes
from finished_run import run
from test_comparisons import race
from test_recorded_steps import step
from test_recordings import a_recording

from gpulab import recordings, training
from gpulab.errors import OutOfMemoryError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.training import Moment, RaceResult
from gpulab.widgets import TrainingRace, training_race
from gpulab.widgets.training_race import _verdict

REAL = training.race


@pytest.fixture(scope="module", name="finished")
def _finished() -> RaceResult:
    """A real race, a short one."""
    return REAL("prose-transformer", {"batch_size": 2}, {"batch_size": 2, "learning_rate": 1e30}, steps=6, device="cpu")


class Core:
    """The fake core: shows a moment, waits until it may end or is stopped, and gives a race that was run before."""

    def __init__(self, result: RaceResult) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.shown, self.may_end = threading.Event(), threading.Event()
        self.result, self.fails = result, False

    def race(self, task: str, first: Any, second: Any, *, show: Any, progress: Any, stop: Any, **shared: Any) -> RaceResult:
        """Stand for ``training.race``."""
        self.calls.append((task, first, second, shared))
        if self.fails:
            raise OutOfMemoryError("race, second: the batch does not fit; expected it to. Pass a smaller one.")
        losses = ((2.5, 2.25), (2.5, float("nan")))
        show(Moment(("a", "b"), losses, (None, 200.0), (2**20, None), 6, Evidence.measured("Slow CPU")))
        progress(0.5, "step 2 of 6")
        self.shown.set()
        while not self.may_end.wait(0.005):
            if stop():
                raise StoppedError("race: stopped before both had taken a step.")
        return self.result


@pytest.fixture(name="core")
def _core(monkeypatch: pytest.MonkeyPatch, finished: RaceResult) -> Iterator[Core]:
    core = Core(finished)
    monkeypatch.setattr(training, "race", core.race)
    yield core
    core.may_end.set()


def test_the_controls_ask_the_core_and_the_code_says_the_same(core: Core) -> None:
    """Both sides' options, steps, seed and device arrive; running the code shown makes the same call."""
    core.may_end.set()
    t = TrainingRace(task="digits-mlp", steps=40, seed=3, first_means="accumulate", second_precision="float16", second_batch=32)
    t.run(wait=True)
    assert t.error == ""
    task, first, second, shared = core.calls[0]
    assert task == "digits-mlp"
    assert first == {"precision": "float32", "accumulate": 4}
    assert second == {"precision": "float16", "batch_size": 32}
    assert shared == {"steps": 40, "seed": 3, "device": "cpu"}
    called: list[Any] = []
    names = {"gl": type("gl", (), {"training": type("t", (), {"race": lambda *a, **k: called.append((*a, k))}),
                                   "figures": type("f", (), {"race": lambda r: None})})}  # fmt: skip
    exec(t.code.replace("import gpulab as gl", ""), names)
    assert called == [(task, first, second, shared)]


def test_every_option_of_every_side_is_one_that_fit_takes() -> None:
    """Each means and precision in the lists trains a step, on either side."""
    t = TrainingRace(task="digits-mlp")
    for name in ("precision", "means"):
        for value in [option[0] if isinstance(option, tuple) else option for option in t.controls[f"second_{name}"].options]:
            if value == "compile":
                continue  # eight seconds of a compiler; tests/training has it
            t.set(**{f"second_{name}": value})
            call = t.code.split("r = gl.")[1].split("\n")[0].replace("steps=80", "steps=1")
            assert eval(call, {"training": training}).second.steps == 1
        t.set(**{f"second_{name}": t.controls[f"second_{name}"].initial})


def test_each_means_is_what_its_words_say() -> None:
    """The words on the screen beside the options of ``fit`` that they stand for; a batch of 0 is the task's own."""
    t = TrainingRace(first_precision="bfloat16", first_batch=0, second_batch=8)
    asked = {}
    for name, words in t.controls["first_means"].options:  # type: ignore[attr-defined]
        t.set(first_means=name)
        asked[words] = re.findall(r'"precision": "bfloat16"(?:, )?(.*?)\}, \{"precision": "bfloat16", "batch_size": 8\},', t.code)
    assert asked == {
        "nothing more": [""], "4 parts, accumulated": ['"accumulate": 4'], "activation checkpointing": ['"checkpoint": True'],
        "channels last": ['"channels_last": True'], "fused optimizer": ['"fused": True'], "a thread that prefetches": ['"prefetch": 2'],
        "one worker process": ['"workers": 1'], "torch.compile": ['"compile": True'], "a CUDA graph": ['"cuda_graph": True'],
        "gradients clipped at 1": ['"clip": 1.0'], "a learning rate of 1": ['"learning_rate": 1.0'],
    }  # fmt: skip


def test_a_race_under_way_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 moments in two seconds about eight are drawn: each picture takes time from the race."""
    now, drawn = [100.0], []

    def shows(*sides: Any, show: Any, **shared: Any) -> None:
        for _ in range(40):
            show(None)
            now[0] += 0.05

    monkeypatch.setattr(training_race, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(training, "race", shows)
    t = TrainingRace()
    monkeypatch.setattr(t, "publish", lambda action, moment: drawn.append(now[0]))
    t.work("race", t.values, lambda *said: None, lambda: False)
    assert 5 <= len(drawn) <= 10
    assert drawn[0] == 100.0


def test_what_a_race_has_shown_is_said() -> None:
    """The speeds with their interval, then the accuracy; too few steps have no ratio; who diverged comes before all."""
    fast = "b trains at 2.00x the speed of a (95 % 1.50x to 2.50x)."
    assert _verdict(race()) == f"{fast} Its accuracy differs by +2.0 points (-1.0 to +5.0)."
    assert _verdict(race(accuracy_difference_interval=None)) == fast
    assert _verdict(race(accuracy_difference=None, speedup_interval=None)) == (
        "b trains at 2.00x the speed of a (without an honest interval)."
    )
    assert _verdict(race(speedup=None)) == "The race was finished; too few steps were taken for a ratio of speeds."
    broken = race(first=run(ended="diverged"), second=run(ended="diverged"))
    assert _verdict(broken).startswith("a diverged after 20 steps and b diverged after 20 steps: how fast a run is")
    at_once = race(first=run(ended="diverged", losses=run().losses[:1]))
    assert _verdict(at_once).startswith("a diverged after 1 step: how fast")
    risen = run(notes=(Note("rising", "It rose."),))
    assert _verdict(race(first=risen, second=risen)).endswith("points (-1.0 to +5.0). The loss of a and b shot up on the way.")


def test_a_moment_is_drawn_while_the_race_goes_on_and_stop_ends_it(core: Core) -> None:
    """Both losses until then, with the badge; a Stop before anything was reached leaves nothing of it, and no error."""
    t = TrainingRace()
    t.run()
    assert core.shown.wait(10)
    assert isinstance(t.result, Moment)
    assert "under way" in t._results.message
    assert "diverged" in str(t._picture.outputs)
    assert [e["badge"] for e in t._results.evidence] == ["MEASURED"]
    t.set(steps=160)
    assert "controls have moved" in t._results.message
    t.stop()
    assert t._job is not None
    assert t._job.join(10)
    assert (t.error, t.running, t.result) == ("", False, None)
    assert t._results.message.startswith("Press Race")
    assert t._picture.outputs == ()


@pytest.mark.parametrize("shown", [False, True])
def test_a_race_that_ends_early_leaves_the_one_before(core: Core, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, with or without a moment shown, the old race is there, said to be older than the controls, beside its own recorded pair."""
    far = (step(20e-3, "cnn", "float32"), step(5e-3, "cnn", "bfloat16"))
    recordings.write(a_recording(entries=far), tmp_path / "far.json")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    core.may_end.set()
    t = TrainingRace(recorded="far", second_precision="float16")
    t.run(wait=True)
    assert t.result is core.result

    def stopped(*arguments: Any, show: Any, **others: Any) -> None:
        if shown:
            show(Moment(("a", "b"), ((2.5,), ()), (None, None), (None, None), 6, Evidence.measured("Slow CPU")))
        raise StoppedError("race: stopped before both had taken a step; expected them to run. Call it again.")

    monkeypatch.setattr(training, "race", stopped)
    t.set(second_precision="bfloat16")
    t.run(wait=True)
    assert t.result is core.result
    assert "controls have moved" in t._results.message
    assert "This pair on far: not recorded yet." in t._results.message, "float16 was raced, and was not recorded"
    assert "under way" not in t._results.message


def test_the_end_has_the_table_the_verdict_and_the_notes_of_each_side(core: Core) -> None:
    """Who diverged is named, and whose note it is."""
    core.may_end.set()
    t = TrainingRace()
    t.run(wait=True)
    assert "diverged after" in t._results.message
    assert "the speed of" not in t._results.message, "how fast a run is that learns nothing says little"
    assert any(note["code"] == "diverged" and note["sentence"].startswith("learning_rate=") for note in t._results.notes)
    assert t._results.headers[0] == "prose-transformer"
    assert not any(str(row[0]).startswith("note") for row in t._results.rows)


def test_an_error_is_shown_inside_and_the_instrument_lives(core: Core) -> None:
    """The sentence of the core, and the next race runs."""
    core.fails = True
    t = TrainingRace()
    t.run(wait=True)
    assert "does not fit" in t.error
    core.fails = False
    core.may_end.set()
    t.run(wait=True)
    assert t.error == ""
    assert isinstance(t.result, RaceResult)


def test_a_recorded_machine_stands_beside(core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step in both ways with the ratio and the badge, before and after a race; what it has not recorded is said."""
    recordings.write(a_recording(entries=(step(20e-3, "cnn", "float32"), step(5e-3, "cnn", "bfloat16", "compile"))), tmp_path / "far.json")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    core.may_end.set()
    t = TrainingRace(recorded="far", second_precision="bfloat16", second_means="compile")
    drawing = t.draw(t.values)
    (row,) = drawing.rows
    assert row[0] == "RECORDED on test: a step of its cnn"
    assert row[1:] == ("2.00 ms", "500 us, 4.00x the speed (3.27x to 4.89x)")
    assert [e.badge for e in drawing.evidence] == ["RECORDED"]
    for asked in ({"second_means": "nothing"}, {"second_means": "clip"}):
        t.set(**asked)
        drawing = t.draw(t.values)
        assert drawing.message.endswith("This pair on far: not recorded yet.")
        assert drawing.rows == []
    t.set(second_means="compile")
    t.run(wait=True)
    t.set(second_means="nothing")  # the race on the screen is still that of before, and so is what stands beside it
    drawing = t.draw(t.values)
    assert drawing.rows[-1] == row
    assert [e.badge for e in drawing.evidence] == ["MEASURED", "RECORDED"]
    t.set(recorded="none")
    assert "recorded" not in t.draw(t.values).message


def test_a_loss_that_shot_up_is_in_the_verdict() -> None:
    """A learning rate of 1 stays finite under Adam, so the speed is told, and what happened beside it."""
    t = TrainingRace(task="digits-mlp", steps=10, second_precision="float32", second_means="rate")
    t.run("race", wait=True)
    assert "The loss of learning_rate=1.0 shot up on the way." in t._results.message
    assert any(note["code"] == "rising" for note in t._results.notes)


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(TrainingRace())
