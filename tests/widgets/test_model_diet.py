"""ModelDiet with a fake core: points that stay, recipes that do not go together, code that gives the same, junk refused."""

from __future__ import annotations

import ast
import dataclasses
import math
from typing import Any

import pytest
from control_tables import offers_what_it_takes

from gpulab import compression, devices, figures
from gpulab.compression import Recipe, WeighedModel, Weighing
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.training import Accuracy
from gpulab.widgets import ModelDiet
from gpulab.widgets.model_diet import _row

LIVE = Evidence.measured("Slow CPU", 30)
# label: right answers of 500, bytes, times as fast
MADE = {
    "as trained": (490, 68_000, None),
    "90% zeros": (480, 10_000, 1.0),
    "50% of channels gone": (470, 18_000, 2.0),
    "8 bits": (489, 19_000, 0.9),
}


def model(label: str) -> WeighedModel:
    """One row of the scales."""
    correct, nbytes, speedup = MADE.get(label, (450, 5_000, 1.5))
    accuracy = Accuracy(correct, 500, correct / 500, (correct / 500 - 0.02, min(1.0, correct / 500 + 0.01)), 0.1, "digits", LIVE)
    interval = None if speedup is None else (0.9 * speedup, 1.1 * speedup)
    return WeighedModel(
        label, nbytes, 17_000, 0, (), 1e6, 14, 1000, 1e-3, (0.9e-3, 1.1e-3), 1e-4, None, speedup, interval, (accuracy,), (), LIVE
    )  # fmt: skip


def weighing(labels: list[str], **changes: Any) -> Weighing:
    """Several rows."""
    where = dataclasses.replace(devices.environment("cpu"), device="Slow CPU")
    whole = Weighing("digits-cnn", "Slow CPU", 64, tuple(map(model, labels)), (Note("contended", "a neighbour worked."),), LIVE, where)
    return dataclasses.replace(whole, **changes)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Recipe], dict[str, Any]]]:
    """What was cooked."""
    seen: list[tuple[str, list[Recipe], dict[str, Any]]] = []

    def diet(task: str, recipes: list[Recipe], **options: Any) -> Weighing:
        seen.append((task, recipes, options))
        if options["stop"]():
            raise StoppedError("diet: stopped before there was anything; run it again.")
        return weighing(["as trained", *(recipe.label for recipe in recipes)])

    monkeypatch.setattr(compression, "diet", diet)
    return seen


def test_each_run_adds_a_point(calls: list[Any]) -> None:
    """Two recipes and the network as trained are three rows, numbered; the newest says why it is not faster."""
    d = ModelDiet(zeros=0.9)
    assert "Press Run" in d._results.message
    d.run(wait=True)
    d.set(zeros=0.0, channels=0.5, seeds=1)
    assert "controls have moved" not in d._results.message
    d.run(wait=True)
    assert d.error == ""
    assert [row[:3] for row in d._results.rows] == [
        ["1", "as trained", "66.4 KiB"], ["2", "90% zeros", "9.77 KiB"], ["3", "50% of channels gone", "17.6 KiB"],
    ]  # fmt: skip
    assert d._results.rows[2][6:] == ["2.00x [1.80x, 2.20x]", "94.0 % [92.0, 95.0]", "yes"]
    assert d._results.message.startswith("50% of channels gone: 3.78x smaller on disk, 2.00x as fast.")
    assert {"code": "contended", "sentence": "a neighbour worked."} in d._results.notes
    assert d._results.evidence[0]["badge"] == "MEASURED"
    assert calls[1][1] == [Recipe(channels=0.5)]
    assert (calls[0][2]["batch_size"], list(calls[0][2]["seeds"])) == (64, [0])


def test_a_recipe_weighed_again_is_the_newest(calls: list[Any]) -> None:
    """It keeps its number, and the sentence is its own, not that of the recipe below it."""
    d = ModelDiet(zeros=0.9)
    d.run(wait=True)
    d.set(zeros=0.0, channels=0.5)
    d.run(wait=True)
    d.set(zeros=0.9, channels=0.0)
    d.run(wait=True)
    assert [row[1] for row in d._results.rows] == ["as trained", "90% zeros", "50% of channels gone"]
    assert d._results.message.startswith("90% zeros: 6.80x smaller on disk, not faster")


def test_each_task_device_batch_and_seeds_has_points_of_its_own(calls: list[Any]) -> None:
    """What was measured with another batch is not drawn beside; turning back shows it again; Clear forgets it."""
    d = ModelDiet(zeros=0.9)
    d.run(wait=True)
    d.set(batch=256)
    assert d.result is None
    assert "Press Run" in d._results.message
    d.set(batch=64)
    assert d.result is not None
    assert len(d._results.rows) == 2
    d.run("clear", wait=True)
    assert d.result is None
    assert d._results.rows == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"compute": "csr", "stored": "8 bits"}, "expected float32 weights for CSR"),
        ({"compute": "integer"}, "'dynamic'"),
        ({"compute": "integer", "stored": "8 bits", "inputs": "static"}, "'dynamic'"),
    ],
)
def test_recipes_that_do_not_go_together_say_so(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], says: str
) -> None:
    """Before the run in the message, at the run as the error; the instrument goes on."""
    d = ModelDiet(**values)
    assert says in d._results.message
    d.run(wait=True)
    assert says in d.error
    assert not d.running
    d.set(compute="dense", stored="float32", zeros=0.9)
    d.run(wait=True)
    assert d.error == ""


def test_doing_nothing_is_said() -> None:
    """The defaults change nothing, and the message says what to turn."""
    assert "changes nothing yet" in ModelDiet()._results.message


def test_controls_show_where_they_mean_something() -> None:
    """A scale only for few bits, another network only for images."""
    d = ModelDiet()
    hidden = {c["name"]: c["hidden"] for c in d._panel.spec}
    assert (hidden["scale"], hidden["inputs"], hidden["network"]) == (True, True, False)
    d.set(stored="4 bits", task="prose-transformer")
    hidden = {c["name"]: c["hidden"] for c in d._panel.spec}
    assert (hidden["scale"], hidden["inputs"], hidden["network"]) == (False, False, True)
    assert d.recipe() == Recipe(bits=4)


def test_the_code_makes_the_same_recipe(calls: list[Any]) -> None:
    """The recipe in the shown code is that of the controls, whatever they are."""
    for values in (
        {"zeros": 0.9, "stored": "16 values"},
        {"channels": 0.25, "stored": "8 bits", "inputs": "dynamic", "compute": "integer", "seeds": 3},
        {"network": "mobilenet", "stored": "3 bits", "scale": "per-tensor", "fine_tune": 0.0},
    ):
        d = ModelDiet(**values)
        call = next(line for line in d.code.splitlines() if line.startswith("recipe"))
        arguments = {k.arg: ast.literal_eval(k.value) for k in ast.parse(call).body[0].value.keywords}  # type: ignore[attr-defined]
        assert Recipe(**arguments) == d.recipe()
        compile(d.code, "code", "exec")
    assert "seeds=(0, 1, 2)" in ModelDiet(seeds=3).code


def test_stopping_is_a_sentence(calls: list[Any]) -> None:
    """A stop before the first point leaves the instrument usable, without points."""
    d = ModelDiet(zeros=0.9)
    original = compression.diet

    def stopped(*arguments: Any, **options: Any) -> Weighing:
        d.stop()
        return original(*arguments, **options)

    compression.diet = stopped  # type: ignore[assignment]
    try:
        d.run(wait=True)
    finally:
        compression.diet = original  # type: ignore[assignment]
    assert not d.running
    assert d.result is None


def test_the_picture_shows_each_model_with_its_intervals() -> None:
    """Numbers as in the table; on the right the first model's time over the speed-up; the front joins who is beaten by none."""
    figure = figures.diet(weighing(list(MADE)))
    small, fast = (trace for trace in figure.data if trace.mode == "markers+text")
    assert list(small.x) == [68_000, 10_000, 18_000, 19_000]
    assert list(small.y) == pytest.approx([98.0, 96.0, 94.0, 97.8])
    assert list(fast.x) == pytest.approx([1.0, 1.0, 0.5, 1 / 0.9])
    assert fast.error_x.array[2] == pytest.approx(1 / 1.8 - 0.5)
    assert small.error_y.arrayminus[0] == pytest.approx(2.0)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert list(lines[0].x) == sorted(lines[0].x)
    assert list(lines[0].x) == [10_000, 19_000, 68_000]  # 50 % of the channels: larger than 90 % zeros, and wrong more often
    assert list(lines[1].x) == pytest.approx([0.5, 1.0])  # of the two that take as long as the first, the first is right more often
    assert "Beaten by none: as trained, 90% zeros" in figure.description
    assert math.isclose(figure.layout.shapes[0].x0, 1)


def test_a_row_of_the_table_by_hand() -> None:
    """Zeros are no weights left; without an interval that is said; the first has nothing before it; who is beaten has no yes."""
    less = dataclasses.replace(model("8 bits"), zeros=2_000, speedup_interval=None)
    rows = [_row(number, one, weighing(["as trained"])) for number, one in enumerate((model("as trained"), less), 1)]
    assert rows == [
        ["1", "as trained", "66.4 KiB", "17,000", "1.00 MFLOP", "1.00 ms", "the first", "98.0 % [96.0, 99.0]", "yes"],
        ["2", "8 bits", "18.6 KiB", "15,000", "1.00 MFLOP", "1.00 ms", "0.90x (no interval)", "97.8 % [95.8, 98.8]", ""],
    ]
    nobody = dataclasses.replace(less, accuracies=())
    assert _row(2, nobody, weighing(["as trained"]))[-2] == "0.0 % [0.0, 100.0]"


def test_what_is_hidden_decides_nothing() -> None:
    """Scale and inputs belong to weights of few bits: with float32 the recipe is that of an untouched instrument."""
    assert ModelDiet(scale="per-tensor", inputs="dynamic").recipe() == ModelDiet().recipe()


def test_points_on_each_other_share_a_label() -> None:
    """Two models of the same size and accuracy would have their numbers on each other: the first says both."""
    rows = (model("as trained"), model("8 bits"), dataclasses.replace(model("8 bits"), label="8 bits again"))
    text = figures.diet(weighing([], models=rows)).data[1].text
    assert ["2, 3" in each for each in text] == [False, True, False]
    assert text[2].count(">") == 2  # nothing between the marks
    right = dataclasses.replace(model("8 bits").accuracies[0], ratio=0.008)
    wrong = dataclasses.replace(right, ratio=0.0)
    apart = [dataclasses.replace(model("8 bits"), label=label, accuracies=(one,)) for label, one in (("right", right), ("wrong", wrong))]
    text = figures.diet(weighing([], models=(model("as trained"), *apart))).data[1].text
    assert [number in each for number, each in zip("123", text, strict=True)] == [True] * 3  # the height of a digit is room enough


def test_a_model_without_accuracy_is_not_drawn() -> None:
    """Weighed on bare inputs, there is no accuracy to place it by."""
    rows = (model("as trained"), dataclasses.replace(model("8 bits"), accuracies=()))
    assert len(figures.diet(weighing([], models=rows)).data[1].x) == 1


def test_junk_is_refused_in_one_sentence() -> None:
    """Each control refuses junk and keeps its state."""
    d = ModelDiet()
    before = dict(d.values)
    for name in before:
        for value in (math.nan, -1, "junk", b"x", [], object(), 10**400):
            with pytest.raises(InputError) as caught:
                d.set(**{name: value})
            assert len(str(caught.value)) < 800
    assert d.values == before


@pytest.mark.parametrize("name", ["zeros", "channels", "fine_tune"])
def test_every_share_that_can_be_chosen_is_one_that_a_recipe_takes(name: str) -> None:
    """From nothing up to less than all of it, rising, written in per cent."""
    d = ModelDiet()
    shares = d.controls[name].options  # type: ignore[attr-defined]
    assert [text for _, text in shares] == ["none", *(f"{round(100 * share)}%" for share, _ in shares[1:])]
    assert [share for share, _ in shares] == sorted({share for share, _ in shares})
    for share, _ in shares:
        assert getattr(dataclasses.replace(d.recipe(), **{name: share}), name) == share


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(ModelDiet())
