"""What training's results say: whole tables, verdicts at their boundaries, and equality, worked out by hand."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_run import HERE, NOTES, OPTIONS, over_seeds, run

from gpulab import networks, training
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.evidence import Environment, Note
from gpulab.training import CompileCost, ScriptsResult, _evaluate, _report, _seeds, _settings, _techniques, _words
from gpulab.training.ladder_results import Gain, LadderForm, LadderResult, Learned, LeftOut, Rung


def test_the_table_of_a_run() -> None:
    """The mean of the last tenth (0.1 and 0.3), the rate with its interval, the parts with their shares, the memory, the notes."""
    assert run().table()[1] == [
        ("ended", "finished after 20 of 20 steps"),
        ("loss (last tenth)", "0.2"),
        ("accuracy on the test", "90.0 % [80.0 %, 95.0 %]"),
        ("samples a second", "8,000 [7,900, 8,100]"),
        ("a step, part by part", "4.00 ms"),
        ("- forward", "3.00 ms (75%)"),
        ("- backward", "1.00 ms (25%)"),
        ("peak memory of tensors", "5.00 KiB"),
        ("- parameters", "3.00 KiB"),
        ("- gradients", "2.00 KiB"),
        ("note: stopped", "It was stopped."),
    ]
    scaled = run(options=dataclasses.replace(OPTIONS, loss_scale="dynamic"), final_scale=1024.0, skipped_steps=3)
    assert ("loss scale at the end", "1,024, 3 of 20 steps left out") in scaled.table()[1]
    assert not any("scale" in name for name, _ in run(final_scale=1024.0).table()[1])
    bare = run(accuracy=None, samples_per_second=None, phase_seconds={}, peak_bytes=None, notes=())
    assert [name for name, _ in bare.table()[1]] == ["ended", "loss (last tenth)"]


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.05, -0.01), "lost"),
        ((-0.05, 0.0), "not decided"),
        ((-0.02, 0.03), "not decided"),
        ((-0.019, 0.03), "kept"),
        ((0.01, 0.02), "kept"),
    ],
)
def test_an_accuracy_is_lost_only_below_nothing(interval: tuple[float, float], verdict: str) -> None:
    """Two points are allowed: an end that is 0 is no loss, and one that is -2 points is not kept."""
    found = scripts(accuracy_interval=interval)
    assert found.accuracy_verdict == verdict
    assert any("less accurate" in each for each in found.objections) == (verdict == "lost")


def scripts(**changes: Any) -> ScriptsResult:
    """Three times as fast on the same samples."""
    values: dict[str, Any] = {
        "task": "digits-mlp", "device": "cpu", "names": ("a", "b"), "timed_items": 1000, "seconds": (3e-3, 1e-3), "samples": (64, 64),
        "gain": Gain(3.0, (2.5, 3.5)), "accuracy": (over_seeds(), over_seeds(mean=0.91)), "accuracy_difference": 0.01,
        "accuracy_interval": (-0.01, 0.03), "tolerance": 0.02, "notes": NOTES, "evidence": HERE, "environment": None,
    }  # fmt: skip
    return ScriptsResult(**{**values, **changes})


def test_the_table_of_two_scripts() -> None:
    """Seconds, samples and accuracy of each, what sets them apart, the objections and the notes."""
    last = ("accuracy, second minus first", "", "+1.0 points [-1.0, +3.0]: kept")
    assert scripts().table()[1] == [
        ("seconds for 1,000 items", "3.00 ms", "1.00 ms"),
        ("samples through the model", "64", "64"),
        ("accuracy on the test", "90.0 %", "91.0 %"),
        ("first over second", "", "3.00x [2.50x, 3.50x]: faster"),
        last,
        ("note: stopped", "It was stopped.", ""),
    ]
    less = scripts(samples=(64, 32), gain=Gain(1.0, (1.0, 1.2)))
    assert [name for name, *_ in less.table()[1][5:]] == ["objection 1", "objection 2", "note: stopped"]
    assert less.objections[1] == "No speed-up was shown: 1.00x [1.00x, 1.20x], no difference shown. The interval has to lie above 1."
    assert scripts(gain=Gain(1.8, None)).objections == (
        "No speed-up was shown: 1.80x, but the times wander so much that they allow no interval. Close what else runs, and run it again.",
    )
    assert scripts(samples=(64, 65)).objections == ()


def test_the_table_of_compiling() -> None:
    """2 s to compile, 10 against 5 ms: twice as fast, paid after 400 calls."""
    ends = (0.0095, 0.0105), (0.0045, 0.0055)
    cost = CompileCost("it", "cpu", 0.5, 2.0, 0.010, 0.005, *ends, 0.0, "", NOTES, HERE)
    assert cost.table()[1] == [
        ("loading the compiler, once a process", "500 ms"),
        ("the first compiled call", "2.00 s"),
        ("a call as it is", "10.0 ms (95 % 9.50 ms to 10.5 ms)"),
        ("a call compiled", "5.00 ms (95 % 4.50 ms to 5.50 ms)"),
        ("as it is / compiled", "2.00x"),
        ("has paid after", "400 calls (334 to 500)"),
        ("note: stopped", "It was stopped."),
    ]
    slower = dataclasses.replace(cost, compiled_seconds=0.011, compiled_interval=None)
    assert slower.table()[1][3:6] == [
        ("a call compiled", "11.0 ms"),
        ("as it is / compiled", "0.91x"),
        ("has paid after", "no saving was shown"),
    ]
    assert dataclasses.replace(cost, eager_interval=None).table()[1][5] == ("has paid after", "400 calls (without an interval)")


def test_the_interval_of_a_difference_by_hand() -> None:
    """Agresti and Min 2005: of five items one lost and two won, half an item more each: 1/7 -+ 1.96 sqrt(4 - 1/7) / 7."""
    low, high = _evaluate.difference_interval(np.array([1.0, 0, 1, 1, 0]), np.array([1.0, 1, 0, 1, 1]))
    half = 1.959964 * (4 - 1 / 7) ** 0.5 / 7
    assert (low, high) == pytest.approx((1 / 7 - half, 1 / 7 + half), abs=1e-6)


def test_crossed_variances_by_hand() -> None:
    """Right 1 0 1 and 1 1 1: models, items and rest give 1/36 each. A quarter more a row and a column: 1/48 each, no rest, four degrees."""
    half, wide, alike = _seeds._crossed(np.array([[1.0, 0, 1], [1, 1, 1]]))
    assert (half, wide) == pytest.approx((12.7062 / 6, 12.7062 / 6), rel=1e-4)  # Student's t at 97.5 % for one degree
    assert not alike
    quarters = np.array([0.0, 0.25, 0.5])
    half, wide, _ = _seeds._crossed(quarters[:, None] + quarters)
    assert (half, wide) == pytest.approx((4.3027 / 48**0.5, 2.7764 / 24**0.5), rel=1e-3)  # for two, and for 4 / (1/2 + 1/2)
    assert _seeds._crossed(quarters[:, None] + np.zeros(3))[2]
    assert _seeds._kept(0.5, 0.2) == (0.3, 0.7)
    assert _seeds._kept(0.9, 0.2) == pytest.approx((0.7, 1.0))
    assert _seeds._kept(0.1, 0.2) == pytest.approx((0.0, 0.3))


WHERE = Environment("2026-03-04T05:06:07+00:00", "Linux", "A CPU", 2, 2**30, "A GPU", "cuda", "550.1", "3.11", {"torch": "2.9"})


def form(rate: float, *names: str) -> LadderForm:
    """A form of so many samples a second, with 5 % on either side, in batches of 16."""
    return LadderForm(names, 16, rate, (0.95 * rate, 1.05 * rate), Gain(rate / 1000, None), 0.5, {}, None)


def ladder(*verdicts: str | None, **changes: Any) -> LadderResult:
    """A script of 1,000 samples a second and a rung for each verdict, each twice as fast as the one before."""
    rungs = tuple(
        Rung(
            f"t{k}",
            f"technique {k}",
            "the step",
            form(1000.0 * 2 ** (k + 1), *(f"t{j}" for j in range(k + 1))),
            Gain(2.0, (1.9, 2.1)),
            Gain(1.5, None),
            Gain(1.25, (0.5, 3.0)),
            None if verdict is None else Learned(over_seeds(mean=0.875), -0.025, (-0.05, -0.01), 99, False, verdict),
        )
        for k, verdict in enumerate(verdicts)
    )
    values: dict[str, Any] = {
        "task": "digits-mlp", "device": "cpu", "samples": 4000, "seeds": (0, 1), "tolerance": 0.02, "start": form(1000.0),
        "start_accuracy": over_seeds(), "rungs": rungs, "together": Gain(4.0, (3.5, 4.5)), "product": Gain(2.25, None),
        "overstated": Gain(0.5625, (0.5, 0.6)), "left_out": (), "recorded_evidence": (), "turns": 24, "notes": NOTES, "evidence": HERE,
        "environment": WHERE,
    }  # fmt: skip
    return LadderResult(**{**values, **changes})


def test_the_tables_of_a_ladder() -> None:
    """The script, a row a rung, the combination and the product; what was left out by its reason, with each machine that recorded it."""
    recorded = (("nvidia-h200", "cnn, bfloat16", Gain(1.5, (1.25, 1.75))), ("nvidia-h100", "cnn", Gain(2.0, None)))
    out = (LeftOut("a", "TF32", "No GPU.", None, recorded), LeftOut("b", "slow one", "Too slow.", Gain(0.2, (0.1, 0.3)), ()))
    found = ladder("kept", None, left_out=out)
    assert found.table() == (
        ("technique", "samples a second", "over the rung before", "alone, over the script", "all over all but it", "accuracy"),
        [
            ("the script", "1,000 [950, 1,050] (batch 16)", "", "", "", "90.0 %"),
            ("technique 0", "2,000 [1,900, 2,100] (batch 16)", "2.00x [1.90x, 2.10x]", "1.50x (no interval)", "1.25x [0.50x, 3.00x]",
             "87.5 % (-2.5 points [-5.0, -1.0]): kept"),
            ("technique 1", "4,000 [3,800, 4,200] (batch 16)", "2.00x [1.90x, 2.10x]", "1.50x (no interval)", "1.25x [0.50x, 3.00x]", ""),
            ("all together, over the script", "", "4.00x [3.50x, 4.50x]", "", "", ""),
            ("the single gains multiplied (MODELLED)", "", "", "2.25x (no interval)", "", ""),
            ("left out: TF32", "", "", "", "", ""), ("left out: slow one", "slow", "", "0.20x [0.10x, 0.30x]", "", ""),
            ("note: stopped", "It was stopped.", "", "", "", ""),
        ],
    )  # fmt: skip
    assert found.left_out_table() == (
        ("not in the ladder", "because", "alone, here", "RECORDED elsewhere", "gain"),
        [
            ("TF32", "No GPU.", "", "nvidia-h200, cnn, bfloat16", "1.50x [1.25x, 1.75x]"),
            ("", "", "", "nvidia-h100, cnn", "2.00x (no interval)"),
            ("slow one", "Too slow.", "0.20x [0.10x, 0.30x]", "not recorded yet", ""),
        ],
    )  # fmt: skip
    assert ladder().left_out_table()[1] == [("nothing", "", "", "", "")]
    assert ladder(start_accuracy=None).table()[1][0][-1] == ""
    assert repr(found) == "<ladder of 2 techniques on cpu: together 4.00x [3.50x, 4.50x], product 2.25x (no interval)>"
    assert (found.rung("t1"), found.rung("t9")) == (found.rungs[1], None)
    assert LadderResult.from_dict(found.to_dict()) == found
    assert found != ladder("kept", None, left_out=out, turns=25)
    assert found != found.to_dict()
    assert hash(found) == hash(copy.deepcopy(found))


@pytest.mark.parametrize(
    ("verdicts", "hurting"),
    [
        (("lost", "lost", "kept"), ["t0"]), (("kept", "lost", "lost"), ["t1"]), (("lost", "kept", "lost"), ["t0", "t2"]),
        (("lost", None, "lost"), ["t0", "t2"]), (("not decided", "kept", None), []), ((), []),
    ],
)  # fmt: skip
def test_the_rung_that_lost_accuracy_is_named_and_those_that_inherit_it_are_not(
    verdicts: tuple[str | None, ...], hurting: list[str]
) -> None:
    """Also where the last one lost it, the first one is looked at for itself."""
    found = ladder(*verdicts)
    assert [rung.name for rung in found.hurting] == hurting
    named = ", ".join(f"technique {name[1:]}" for name in hurting)
    said = "All together: 4.00x [3.50x, 4.50x]; the single gains multiplied: 2.25x (no interval). Together the techniques give more than"
    assert found.sentence.startswith(f"{said} the product of their single gains.")
    assert found.sentence.endswith(f" Less accurate than the script from here on: {named}." if hurting else "single gains.")


def test_what_a_product_promised_is_said_by_its_interval() -> None:
    """More than it holds, no difference, or nothing; and how far it was off is its known error."""
    more = ladder(overstated=Gain(1.5, (1.25, 2.0)))
    assert "The product promises more than the techniques give together." in more.sentence
    assert more.product_evidence.known_error == "1.50x [1.25x, 2.00x] times the measured combination"
    assert more.product_evidence.assumptions == "that no technique changes what another one gives"
    for gain in (Gain(1.5, (0.9, 2.0)), Gain(1.5, None)):
        assert "No difference between the product and the combination was shown." in ladder(overstated=gain).sentence


def test_threads_are_the_callers_again() -> None:
    """Inside one thread on a CPU; on a GPU, or with None, as many as before; afterwards those in any case."""
    before = torch.get_num_threads()
    more = before + 1
    for count, device, inside in ((more, Device("cpu"), more), (more, Device("cuda", 0), before), (None, Device("cpu"), before)):
        seen = []

        def fail(seen: list[int] = seen) -> None:
            seen.append(torch.get_num_threads())
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), _settings.threads(count, device):
            fail()
        assert (seen, torch.get_num_threads()) == ([inside], before)


def test_a_step_marks_its_parts_in_order() -> None:
    """Two parts of a batch: what is between, forward and backward of each; then the optimizer."""
    going = training.Run("digits-mlp", steps=1, batch_size=4, accumulate=2, device="cpu")
    marks: list[str] = []
    batch = going.task.train[slice(0, 4)]
    with going._step.ready():
        going._step.run(batch, marks.append)
    assert marks == ["other", "forward", "backward"] * 2 + ["optimizer"]


@pytest.mark.parametrize(
    ("changes", "own", "words"),
    [
        ({}, False, "Pass a smaller learning_rate (it was 0.01), or clip=1.0."),
        ({"clip": 1.0}, False, "Pass a smaller learning_rate (it was 0.01)."),
        ({"optimizer": "adam"}, False, "Pass a smaller learning_rate (it was 0.01)."),
        ({}, True, "Give your optimizer a smaller learning rate."),
        ({"precision": "float16", "loss_scale": 1.0}, False, "Leave loss_scale out, so that it is dynamic,"),
        ({"precision": "float16", "loss_scale": "dynamic"}, False, "Pass a smaller learning_rate (it was 0.01), or clip=1.0."),
        ({"precision": "pure-float16", "loss_scale": None}, True, 'Pass precision="float16", which keeps float32 weights'),
    ],
)
def test_a_diverged_run_is_told_what_to_try(changes: dict[str, Any], own: bool, words: str) -> None:
    """The precision first, then whose optimizer it is, then its learning rate; clipping where gradients decide the step."""
    options = dataclasses.replace(OPTIONS, **{"optimizer": "sgd", "learning_rate": 0.01, **changes})
    note = _words.diverged_note(options, [2.0, 1.5, float("nan")], 2, own_optimizer=own)
    assert note.sentence.startswith("the loss was nan at step 2, after 1.5 at the step before. ")
    assert words in note.sentence
    assert ("division by zero" in note.sentence) == (options.precision == "float32")


def test_where_a_loss_was_lost_is_said() -> None:
    """Five steps end with step 4; a rise names its top and its end; one at the end has no end beside it."""
    note = _words.diverged_note(OPTIONS, [2.0, 1.0, 0.5, 0.4, 0.3], None)
    assert note.sentence.startswith("after the last step (4, loss 0.3) the test's loss is not a finite number. ")
    rising = _words.rising_note(OPTIONS, [2.0, 50.0, 9.0], 2.3, False)
    assert rising is not None
    assert rising.sentence.startswith("the loss rose from 2 at step 0 to 50 at step 1, and is 9 at the end: the updates")
    last = _words.rising_note(OPTIONS, [2.0, 9.0, 50.0], 2.3, False)
    assert last is not None
    assert "to 50 at step 2: the updates" in last.sentence
    assert _words.rising_note(OPTIONS, [2.0, 9.2], 2.3, False) is None  # four times guessing
    assert _words.left_out_note(OPTIONS, 10, 20, 4.0) is None
    half = _words.left_out_note(OPTIONS, 11, 20, 4.0)
    assert half is not None
    assert half.sentence.endswith("Take more steps, or begin lower: loss_scale=2.")


def test_who_ended_a_run_is_said() -> None:
    """A stop is asked for, an interrupt comes from the keyboard; of compiling, what is missing is said first."""
    end = " after 5 of 20 steps; what is shown is what was reached. Run it again for all of them."
    for code in ("stopped", "interrupted"):
        assert _words.unfinished_note(code, 5, OPTIONS) == Note(code, f"the run was {code}{end}")
    assert _words.compiling_failed(ValueError("no way")) == "torch.compile failed (ValueError: no way)"
    lost = _words.left_out_note(OPTIONS, 20, 20, 1.0)
    assert lost is not None
    assert lost.sentence.endswith("the loss scale fell to 1 and may find its place yet. Take more steps, or begin lower: loss_scale=1.")
    none = _words.left_out_note(OPTIONS, 20, 20, 0.5)
    assert none is not None
    assert none.sentence.endswith("fell to 0.5, so it is not the scale. Train a few steps in float32 and look where the nan comes from.")


def test_each_technique_is_what_its_title_says() -> None:
    """The options of ``fit`` behind the words, and what the beginner's script does; one of them is another model."""
    assert dict(training.START) == {"batch_size": 16, "loading": "items", "read_loss": True}
    assert {each.title: dict(each.options) for each in training.techniques()} == {
        "data on the device": {"loading": "resident"}, "pinned prefetch": {"prefetch": 2, "pinned": True},
        "larger batch": {"batch_size": 64}, "fewer waits": {"read_loss": False}, "TF32": {"precision": "tf32"},
        "mixed precision (bfloat16)": {"precision": "bfloat16"}, "channels last": {"channels_last": True},
        "cuDNN autotune": {"autotune": True}, "fused optimizer": {"fused": True}, "torch.compile": {"compile": True},
        "CUDA graph": {"cuda_graph": True}, "depthwise layers": {}, "parallel ranks": {},
    }  # fmt: skip
    assert [each.name for each in training.techniques() if each.model is not None] == ["lighter"]
    gpu = Device("cuda", 0)
    lacked = {each.name: each.lacks(gpu) for each in training.techniques() if each.name != "tf32"}
    assert {name for name, why in lacked.items() if why} == {"ranks"}
    assert lacked["ranks"] == "This loop trains on one device: notebook 08 and gl.parallel.scaling measure several."


def test_a_page_of_two_scripts_is_whole(tmp_path: Path) -> None:
    """Heading, machine with its driver, how to read it, then the result: words, table, evidence. Another title is in the head too."""
    where = Environment("2026-03-04T05:06:07+00:00", "Linux", "A CPU", 2, 2**30, "A GPU", "cuda", "550.1", "3.11", {"torch": "2.9"})
    found = scripts(environment=where, notes=())
    page = training.speedup_report(tmp_path / "page.md", found, title=" Mine ")
    assert page.read_text() == (
        "# Mine\n\nA GPU, driver 550.1; 2026-03-04; torch 2.9.\n\n"
        "A ratio is how many times as fast, the median of turns that the forms took one after the other; in brackets its 95 % interval. "
        "Where the interval holds 1, no difference was shown. Accuracy is compared on the same number of samples under the same seeds.\n\n"
        "## a and b (digits-mlp)\n\n"
        "b is 3.00x [2.50x, 3.50x] as fast as a on the same samples, and the accuracy is kept (+1.0 points [-1.0, +3.0]).\n\n"
        "| digits-mlp | a | b |\n| --- | --- | --- |\n| seconds for 1,000 items | 3.00 ms | 1.00 ms |\n"
        "| samples through the model | 64 | 64 |\n| accuracy on the test | 90.0 % | 91.0 % |\n"
        "| first over second |  | 3.00x [2.50x, 3.50x]: faster |\n"
        "| accuracy, second minus first |  | +1.0 points [-1.0, +3.0]: kept |\n\n> MEASURED on a CPU\n"
    )
    assert _report._machine(dataclasses.replace(where, driver=None)) == [("text", "A GPU; 2026-03-04; torch 2.9.")]
    html = training.speedup_report(tmp_path / "page.html", found).read_text()
    assert html.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What made the training faster</title><style>')
    assert html.count("<h1>") == html.count("<h2>") == html.count("<table") == 1
    assert html.endswith("<p>MEASURED on a CPU</p></body></html>\n")


def test_what_a_device_lacks_has_its_reason() -> None:
    """A CPU has neither TF32 nor cuDNN nor CUDA graphs, and ranks belong to another notebook; the rest it has."""
    cpu = Device("cpu")
    lacked = {each.name: each.lacks(cpu) for each in training.techniques() if each.lacks(cpu) is not None}
    assert set(lacked) == {"tf32", "autotune", "graph", "ranks"}
    assert lacked["tf32"].startswith("TF32 is a number format of NVIDIA GPUs from compute capability 8.0; this is ")
    assert lacked["ranks"].startswith("Ranks on one CPU share its cores: notebook 08")
    with pytest.raises(InputError, match=r"^techniques: there is no 'speed'; expected some of: resident, prefetch"):
        training.techniques("batch", "speed")
    with pytest.raises(InputError, match=r"^Technique: title is ''; expected a few words"):
        training.Technique("a", "")
    with pytest.raises(InputError, match=r"^Technique a: expected options of fit by name"):
        training.Technique("a", "b", options=[])  # type: ignore[arg-type]


def test_a_technique_of_ones_own_needs_little() -> None:
    """It works on the whole step, changes nothing, and every device has it; each of its words is a text, its model a function."""
    own = _techniques.Technique("mine", "my trick")
    assert (own.mends, dict(own.options), own.model) == ("the step", {}, None)
    assert own.lacks(Device("cpu")) is None
    for wrong, says in (((1, "b"), "name is 1"), (("a", ""), "title is ''"), (("a", "b", ""), "mends is ''"), (("", "b"), "name is ''")):
        with pytest.raises(InputError, match=rf"^Technique: {says}; expected a few words"):
            training.Technique(*wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^Technique a: expected options of fit by name, and a function"):
        training.Technique("a", "b", model=5)  # type: ignore[arg-type]


def test_the_lighter_model_is_a_mobilenet_of_width_sixteen() -> None:
    """Shape for shape; and a named technique comes in the order asked for."""
    lighter = next(each for each in training.techniques() if each.name == "lighter")
    assert lighter.model is not None
    shapes = [p.shape for p in lighter.model().parameters()]
    assert shapes == [p.shape for p in networks.mobilenet(width=16).parameters()]
    assert [each.name for each in training.techniques("fused", "batch")] == ["fused", "batch"]
    with pytest.raises(InputError, match=r"^techniques: there is no 5; expected"):
        training.techniques(5)  # type: ignore[arg-type]
