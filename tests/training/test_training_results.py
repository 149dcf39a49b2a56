"""Results of training: tables, verdicts at boundaries, recorded runs, a page; and refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import networks, recordings, training
from gpulab.evidence import Environment, Evidence, Note
from gpulab.training import Gain, LadderForm, Learned, LeftOut, Rung
from made_training import told

from refusals import defaults, refusals

HERE = Evidence.measured("a CPU")
NOTES = (Note("stopped", "It was stopped."),)
WHERE = Environment(
    "2026-03-04T05:06:07+00:00", "Linux", "A CPU", 2, 2**30, "A GPU", "cuda", "550.1", "3.11",
    {"torch": "2.9"},
)  # fmt: skip
RIGHT = training.Accuracy(90, 100, 0.9, (0.8, 0.95), 0.1, "digits", HERE)
SEEDS = training.SeedsAccuracy(
    tuple(
        replace(RIGHT, correct=n, ratio=n / 100, interval=((n - 9) / 100, (n + 5) / 100))
        for n in (88, 92)
    ),
    0.9, (0.875, 0.925), (0.85, 0.94), "digits", HERE,
)  # fmt: skip
OPTIONS = training.Options(
    "float32", 8, 20, 0.01, "adam", 1, False, False, False, None, 0, 0, False, False, None, None, 0
)
LOSSES = np.array([2.0] * 18 + [0.1, 0.3])  # the mean of the last tenth is 0.2
RUN = training.FitResult(
    "digits-mlp", "cpu", OPTIONS, "finished", LOSSES, None, RIGHT, np.array([1e-3]), 8000.0,
    (7900.0, 8100.0), 0.01, {"forward": 3e-3, "backward": 1e-3}, 5120,
    {"parameters": 3072, "gradients": 2048}, 3, 1024.0, 1.0, NOTES, HERE, WHERE,
)  # fmt: skip
SCRIPTS = training.ScriptsResult(
    "digits-mlp", "cpu", ("a", "b"), 1000, (3e-3, 1e-3), Gain(3.0, (2.5, 3.5)), (64, 64),
    (SEEDS, replace(SEEDS, mean=0.91)), 0.01, (-0.01, 0.03), 0.02, NOTES, HERE, WHERE,
)  # fmt: skip


def form(rate: float, *names: str, batch: int = 16) -> LadderForm:
    """Return a form of ``rate`` samples per second, known to 5 %, with batches of this size."""
    ends = (0.95 * rate, 1.05 * rate)
    return LadderForm(names, batch, rate, ends, Gain(rate / 1000, None), 0.5, {}, None)


def ladder(*verdicts: str | None, overstated: Gain | None = None) -> Any:
    """Return a ladder: a script of 1,000 samples per second and a rung for each verdict, each twice
    as fast as the one before and with a larger batch. Alone they gain 1.5x, 2x, 2.5x...
    """
    lost = (-0.025, (-0.05, -0.01), 99, False)
    rungs = tuple(
        Rung(
            f"t{k}", f"technique {k}", "the step", form(1000.0 * 2 ** (k + 1), batch=32 + k),
            Gain(2.0, (1.9 - k, 2.1 + k)), Gain(1.5 + k / 2, None), Gain(1.25 + k, (0.5, 3.0)),
            None if verdict is None else Learned(SEEDS, *lost, verdict),
        )
        for k, verdict in enumerate(verdicts)
    )  # fmt: skip
    recorded = (("nvidia-h200", "cnn", Gain(1.5, (1.25, 1.75))), ("nvidia-h100", "", Gain(2, None)))
    out = (
        LeftOut("a", "TF32", "No GPU.", None, recorded),
        LeftOut("b", "slow one", "Too slow.", Gain(0.2, (0.1, 0.3)), ()),
    )
    return training.LadderResult(
        "digits-mlp", "cpu", 4000, (0, 1), 0.02, form(1000.0), SEEDS, rungs, Gain(4.0, (3.5, 4.5)),
        Gain(3.0, None), overstated or Gain(0.75, (0.7, 0.8)), out, (), 24, NOTES, HERE, WHERE,
    )  # fmt: skip


def test_runs_and_their_comparisons_in_tables(approved: Any) -> None:
    """A run whole, scaled and bare; an accuracy over seeds; what was not reached is none."""
    scaled = replace(RUN, options=replace(OPTIONS, loss_scale="dynamic"))
    bare = replace(
        RUN, losses=np.array([]), accuracy=None, samples_per_second=None, peak_bytes=None,
        ended="stopped",
    )  # fmt: skip
    single = replace(SEEDS, accuracies=(RIGHT,), seeds_interval=None)
    assert told(RUN, scaled, bare, SEEDS, single, RIGHT) == approved


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.05, -0.01), "lost"),
        ((-0.05, 0.0), "not decided"),
        ((-0.02, 0.03), "not decided"),
        ((-0.019, 0.03), "kept"),
    ],
)
def test_an_accuracy_is_lost_if_its_interval_is_below_zero(interval: tuple, verdict: str) -> None:
    """Two points may be lost: an interval up to 0 is not "lost", one from -2 points not "kept"."""
    found = replace(SCRIPTS, accuracy_interval=interval)
    assert (found.accuracy_verdict, any("less accurate" in each for each in found.objections)) == (
        verdict,
        verdict == "lost",
    )


def test_two_scripts_and_a_ladder_on_a_page(tmp_path: Path, approved: Any) -> None:
    """A page has heading, machine, sentences, tables and badges; no other file is left."""
    less = replace(SCRIPTS, samples=(64, 32), gain=Gain(1.0, (1.0, 1.2)))
    unsure = replace(SCRIPTS, gain=Gain(1.8, None), notes=())
    results = (ladder("kept", None), SCRIPTS, less, unsure)
    page = tmp_path / "page.md"
    assert (training.speedup_report(page, *results), list(tmp_path.iterdir())) == (page, [page])
    assert page.read_text(encoding="utf-8") == approved


def test_what_a_ladder_says(approved: Any) -> None:
    """Only the rung that loses accuracy is named, not the rungs that inherit the loss; the sentence
    on the product follows its interval.
    """
    verdicts = (
        ("lost", "lost", "kept"),
        ("kept", "lost", "lost"),
        ("lost", "kept", "lost"),
        ("not decided", None),
    )
    over = [Gain(1.5, ends) for ends in ((1.25, 2.0), (0.9, 2.0), None)]
    found = [ladder(*each) for each in verdicts] + [ladder(overstated=gain) for gain in over]
    lines = "".join(f"{one.sentence}\n{one.product_evidence.sentence}\n" for one in found)
    hurting = [" ".join(rung.name for rung in one.hurting) for one in found[:4]]
    assert hurting == ["t0", "t1", "t0 t2", ""]
    assert lines == approved


def test_each_technique_is_what_its_title_says(approved: Any) -> None:
    """Each title fits the technique's options, its model, and the part of a step it improves."""
    text = f"{dict(training.START)}\n"
    for each in training.techniques():
        model = each.model and repr(each.model()).partition("\n")[0]
        text += f"{each.name}: {each.title}; {each.improves}; {dict(each.options)}; {model}\n"
    assert text == approved


# Form, technique, batch size, and seconds of a call: of ten steps with batches of 32, of five with
# batches of 256. The script takes 1 s for 320 samples. Five batches of 256 in 1 s are a speed-up of
# 4x, fused alone in 0.5 s of 2x, both in 0.8 s of 5x, where the product promises 8x; all but the
# batch is 2x.
CLIMBED = [
    ("the script", "", 32, 1.0), ("alone", "batch", 256, 1.0), ("alone", "fused", 32, 0.5),
    ("with all before it", "batch", 256, 1.0), ("with all before it", "fused", 256, 0.8),
    ("all but it", "batch", 32, 0.5), ("all but it", "fused", 256, 1.0),
]  # fmt: skip


def recorded(*rows: tuple[str, str, int, float]) -> Any:
    """A machine that recorded these forms of a ladder, each 10 % wide on either side."""
    h200, entries = recordings.load("nvidia-h200"), []
    timing = next(entry.timing for entry in h200.entries if entry.timing)
    for name, technique, batch, seconds in rows:
        params = {"model": "cnn", "form": name, "technique": technique, "batch_size": batch}
        ends = (0.9 * seconds, 1.1 * seconds)
        one = replace(timing, median_seconds=seconds, interval_seconds=ends)
        entries.append(
            recordings.Entry("speed-up ladder", {**params, "steps": 10 if batch == 32 else 5}, one)
        )
    return replace(h200, name="test", entries=tuple(entries))


def test_a_recorded_ladder_by_hand(approved: Any) -> None:
    """Gains alone, upon the rung before and when removed; without some of the forms there is no
    gain of the whole, or no product.
    """
    found = training.recorded_ladder(recorded(*CLIMBED))
    ratios = [gain.ratio for row in found.rows.values() for gain in row]
    assert (ratios, found.together.interval, found.product, found.evidence.badge) == (
        pytest.approx([4, 4, 2.5, 2, 5, 1.25]),
        pytest.approx((5 * 0.9 / 1.1, 5 * 1.1 / 0.9)),
        pytest.approx(8),
        "RECORDED",
    )
    less = [training.recorded_ladder(recorded(*rows)) for rows in (CLIMBED[:3], CLIMBED[1:], ())]
    lines = (f"{one!r}\n{one.table()}\n" for one in (found, *less))
    assert "".join(lines) == approved


# -- defaults, edges and refusals ------------------------------------------------------------------

fit, profile, pipeline = training.fit, training.profile, training.pipeline
DIGITS = 1297  # training items of the digits' tasks
RUN_OF_TWO = training.model_pipeline(0.01, 0.01, steps=2)
FIT, LADDER = ("digits-mlp",), ("digits-mlp", ["batch"])
SCRIPT, MODEL = (len, len, "digits-mlp"), (60, 60.0)
# That a value is accepted shows in the refusal of another argument of the call: nothing trains
# here.
EDGES = [
    *[(fit, FIT, {"device": "cpu", **options}) for options in (
        {"batch_size": DIGITS, "accumulate": DIGITS + 1}, {"batch_size": DIGITS + 1}, {"steps": 0},
        {"batch_size": 1, "accumulate": 1, "steps": 1_000_001}, {"epochs": 0}, {"clip": 0},
        {"steps": 1_000_000, "learning_rate": 0}, {"workers": 2}, {"epochs": 1, "steps": 1},
        {"prefetch": 1001}, {"prefetch": 1000, "loss_scale": 0}, {"seed": -1},
        {"precision": "fp8"}, {"precision": "int8"}, {"precision": "half"}, {"precision": "double"},
        {"optimizer": 5}, {"optimizer": len, "learning_rate": 1},
        {"optimizer": lambda p: None}, {"loading": "eager"}, {"read_loss": 1}, {"model": len},
        {"model": networks.mlp(64, 8).requires_grad_(False)}, {"model": networks.mlp(3, 8)},
    )],
    (fit, ("no task",), {}),
    *[(training.ladder, LADDER, {"device": "cpu", **options}) for options in (
        {"seeds": 1001}, {"seeds": 1000, "turns": 0}, {"seeds": 0, "turns": 100_001},
        {"turns": 100_000, "deadline": -1}, {"samples": 0},
        {"start": {"bach": 3}}, {"start": {"precision": "fp8"}}, {"start": ["batch_size"]},
        {"start": {"learning_rate": 1e38, "optimizer": "sgd"}},
    )],
    *[(training.ladder, ("digits-mlp", chosen), {}) for chosen in (["x"], [], ["batch"] * 2)],
    *[(training.compare_scripts, SCRIPT, {"device": "cpu", **options}) for options in (
        {"items": DIGITS + 1}, {"items": DIGITS, "seeds": 1001}, {"seeds": 1000, "deadline": 0},
    )],
    (profile, (3,), {}), (profile, (torch.profiler.profile(),), {"device": "cpu"}),
    (training.hidden_waits, (len,), {"calls": 1001}), (training.hidden_waits, (3,), {}),
    (training.hidden_waits, (lambda: 1 / 0,), {"device": "cpu"}),
    *[(training.model_pipeline, MODEL, options) for options in (
        {"cores": 4096, "workers": 64, "prefetch": 16, "steps": 1001}, {"cores": 0}, {"steps": 1},
        {"workers": 65}, {"prefetch": 17}, {"prefetch": 0}, {"cores": 4097}, {"batch_size": 0},
    )],
    (training.model_pipeline, (60.5, 1), {}), (training.replay, (3,), {}),
    (training.replay, (RUN_OF_TWO,), {"read_loss": -1}),
    *[(pipeline, (), options) for options in (
        {"batch_size": 1024, "workers": 32, "prefetch": 16, "steps": 1000, "image_size": 513},
        {"batch_size": 1025}, {"workers": 33}, {"image_size": 7}, {"seed": 2**31 + 1},
        {"step_seconds": -0.1},
    )],
    (training.evaluate_models, ([], "digits-mlp"), {}), (training.evaluate, (5, "digits-mlp"), {}),
    (training.evaluate, (networks.mlp(3, 8), "digits-mlp"), {}), (training.techniques, ("x",), {}),
    (training.Technique, ("", "b"), {}), (training.Technique, ("a", "b"), {"model": 5}),
    (training.recorded_ladder, (3,), {}),
    (training.speedup_report, ("a.txt", SCRIPTS), {}), (training.speedup_report, ("a.md",), {}),
]  # fmt: skip


@pytest.mark.pins
def test_edges_refusals_and_defaults(approved: Any) -> None:
    """Each argument's last accepted and first refused value; and the defaults."""
    assert refusals(EDGES) + defaults(training) == approved
