"""MemoryInspector: predictions that follow the controls, steps that run, snapshots, release, and the code shown."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from control_tables import offers_what_it_takes

from gpulab import memory, networks
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Evidence
from gpulab.memory import HeldTensor, Prediction, Released, Snapshot, Timeline
from gpulab.units import format_bytes
from gpulab.widgets import MemoryInspector, memory_inspector
from gpulab.widgets._steps import MODELS, OPTIMIZERS, PRECISIONS, StepChoice

MIB, GIB = 2**20, 2**30


def prediction(peak: int, batch: int = 0) -> Prediction:
    """A prediction of a step whose peak is given; ``batch`` goes into its label."""
    timeline = Timeline(("aten.mm.default",) * 2, ("forward", "backward"), (0,), {"activations": np.array([peak // 2, peak])})
    return Prediction(
        f"Made-up {batch}", peak, peak, 3 * MIB, MIB, {"parameters": MIB, "activations": peak - MIB}, "aten.mm.default", "backward", (),
        1000, "Adam", "float32", False, "cpu", timeline, (), Evidence.modelled("made up", "a test"),
    )  # fmt: skip


class Core:
    """The fake core: predictions of 1 GiB a sample, which may be held up."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.may_end = threading.Event()
        self.begun = threading.Event()
        self.may_end.set()

    def predict(
        self, model: Any, x: Any, *, progress: Callable[..., None], stop: Callable[[], bool], targets: Any, **options: Any
    ) -> Prediction:
        """Wait until the test lets it end, or the instrument stops it."""
        assert x.is_meta
        assert len(targets) == len(x)
        self.batches.append(len(x))
        self.options.append(options)
        self.begun.set()
        while not self.may_end.wait(0.005):
            if stop():
                raise StoppedError("predict: stopped.")
        return prediction(len(x) * GIB, len(x))


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """The fake core in the place of ``gpulab.memory.predict``."""
    fake = Core()
    monkeypatch.setattr(memory, "predict", fake.predict)
    yield fake
    fake.may_end.set()


def picture(m: MemoryInspector) -> str:
    """The picture as text."""
    return str(m._picture.outputs)


def test_a_moved_control_predicts_by_itself_and_a_known_step_is_answered_at_once(core: Core) -> None:
    """In the view of predictions each new step is predicted once; going back runs nothing; the newest bars stand side by side."""
    m = MemoryInspector(model="mlp")
    m.set(batch=2)
    assert core.batches == []  # another view: nothing runs behind the reader's back
    m.set(view="predict")
    m.wait()
    m.set(batch=4)
    m.wait()
    m.set(batch=2)
    assert core.batches == [2, 4]
    needs = format_bytes(prediction(2 * GIB).needed_bytes("cpu"))
    assert m._results.message.startswith(f"batch 2, float32, adam: needs {needs} with scratch and margin")
    assert [e["badge"] for e in m._results.evidence] == ["MODELLED"]
    bars = picture(m)
    assert bars.index("batch 2, float32, adam") < bars.index("batch 4, float32, adam")
    assert core.options[0] == {
        "loss": torch.nn.functional.cross_entropy, "optimizer": "adam", "precision": "float32", "checkpoint": False
    }  # fmt: skip


def test_the_four_newest_predictions_of_a_model_stand_side_by_side(core: Core) -> None:
    """The newest on top; those of another model stay out."""
    m = MemoryInspector(model="mlp", batch=1, view="predict")
    m.wait()
    m.set(model="cnn")
    m.wait()
    m.set(model="mlp")
    for batch in (2, 4, 8, 16):
        m.set(batch=batch)
        m.wait()
    (output,) = m._picture.outputs
    rows = output["data"]["application/vnd.plotly.v1+json"]["data"][0]["y"]
    assert rows == [f"batch {batch}, float32, adam" for batch in (16, 8, 4, 2)]


def test_what_it_must_fit_on_is_answered_in_words(core: Core) -> None:
    """Of a bare GPU all memory counts, with an accelerator's margin: 16 GiB do not hold 16 GiB of peak, 24 GiB do."""
    m = MemoryInspector(model="mlp", batch=16, view="predict")
    m.wait()
    m.set(capacity="16")
    assert "it does not fit on a GPU of 16 GiB" in m._results.message
    assert "free: 16.0 GiB" in picture(m)
    assert 'print(p.needed_bytes("cuda") <= 16 * 2**30)' in m.code
    m.set(capacity="24")
    assert "it fits on a GPU of 24 GiB" in m._results.message
    m.set(capacity="cpu")
    assert "free on" in m._results.message
    assert 'print(p.fits("cpu"))' in m.code
    m.set(picture="timeline")
    assert "Memory of one training step of Made-up 16" in picture(m)
    assert m.code.endswith("gl.figures.memory_timeline(p)")


def test_a_control_that_moves_meanwhile_wins(core: Core) -> None:
    """A prediction under way is left when the step changes, and only the last one is kept; Stop leaves it, and nothing starts again."""
    core.may_end.clear()
    m = MemoryInspector(model="mlp", batch=1, view="predict")
    assert core.begun.wait(10)
    for batch in (2, 4, 8):
        core.begun.clear()
        m.set(batch=batch)
        assert core.begun.wait(10)
    core.may_end.set()
    m.wait()
    assert m._results.message.startswith("batch 8,")
    assert core.batches == [1, 2, 4, 8]
    assert list(m._predictions) == [StepChoice("mlp", 8, "adam", "float32", False)]
    core.may_end.clear()
    core.begun.clear()
    m.set(batch=16)
    assert core.begun.wait(10)
    m.stop()
    m.wait()
    assert m.error == ""
    assert m._results.message.startswith("Not predicted yet: batch 16, float32, adam; press Predict")
    m.set(picture="timeline")
    assert not m.running


@pytest.mark.parametrize("stopped", [False, True])
def test_who_waits_waits_for_what_the_last_moment_began(core: Core, monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    """A control that moves when the work is done or stopped, and not yet said to be, is predicted too before the wait is over."""
    idle, said = threading.Event(), threading.Event()
    end, batches = MemoryInspector._end, [4]

    def late(self: MemoryInspector, *args: Any) -> None:
        while batches:
            self.set(batch=batches.pop())
        end(self, *args)

    def look(change: Any) -> None:
        if change["new"] == "idle":
            idle.set()
            said.wait(0.2)  # time enough to take it for the end

    def ask_when_idle() -> None:
        assert idle.wait(10)
        m.wait()
        found.append((m.running, m._results.message))
        said.set()

    found: list[tuple[bool, str]] = []
    monkeypatch.setattr(MemoryInspector, "_end", late)
    core.may_end.clear()
    m = MemoryInspector(model="mlp", batch=2, view="predict")
    m._panel.observe(look, names=["state"])
    assert core.begun.wait(10)
    asking = threading.Thread(target=ask_when_idle)
    asking.start()
    if stopped:
        m.stop()
    core.may_end.set()
    asking.join(10)
    assert [(running, message.split(":")[0]) for running, message in found] == [(False, "batch 4, float32, adam")]


def test_a_prediction_that_ends_leaves_the_reader_in_the_view_that_he_chose(core: Core) -> None:
    """It began by itself in the view of predictions; the reader who went on to another view stays there."""
    core.may_end.clear()
    m = MemoryInspector(model="mlp", batch=1, view="predict")
    assert core.begun.wait(10)
    m.set(view="snapshot")
    core.may_end.set()
    m.wait()
    assert m.values["view"] == "snapshot"
    assert m._results.message.startswith("Press Snapshot")
    m.run("predict", wait=True)  # from another view, by its button
    assert m.values["view"] == "predict"


def test_a_step_that_cannot_be_followed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing prediction shows its sentence and is not tried again until a control moves."""
    seen: list[int] = []

    def predict(model: Any, x: Any, **_: Any) -> Prediction:
        seen.append(len(x))
        raise InputError("predict: the step fails; expected one that runs. Choose another.")

    monkeypatch.setattr(memory, "predict", predict)
    m = MemoryInspector(model="mlp", batch=1, view="predict")
    m.wait()
    assert m.error == "predict: the step fails; expected one that runs. Choose another."
    m.set(picture="timeline")
    m.wait()
    assert seen == [1]
    m.set(batch=2)
    m.wait()
    assert seen == [1, 2]
    assert not m.running


def test_a_step_that_does_not_fit_is_not_run(core: Core) -> None:
    """The prediction guards the real step: a thousand GiB are refused in words before anything is allocated."""
    m = MemoryInspector(model="mlp", batch=1024, device="cpu")
    m.run("trace", wait=True)
    assert f"would take {format_bytes(prediction(1024 * GIB).needed_bytes('cpu') + MIB)}" in m.error
    assert "Choose a smaller batch" in m.error
    assert isinstance(OutOfMemoryError(m.error), MemoryError)
    assert m.results.get("trace") is None


def test_a_real_step_agrees_with_its_prediction() -> None:
    """Both run for real on a small model: the message has the difference, the picture both phases, and the code runs."""
    m = MemoryInspector(model="mlp", batch=4, device="cpu")
    m.run("trace", wait=True)
    assert m.error == "", m.traceback
    assert m.values["view"] == "trace"
    assert "The prediction (modelled) says" in m._results.message
    assert abs(float(m._results.message.rsplit(": ", 1)[1].removesuffix("%."))) < 1
    assert [e["badge"] for e in m._results.evidence] == ["MEASURED"]
    for words in ("forward", "backward", "optimizer", "parameters"):
        assert words in picture(m)
    names: dict[str, Any] = {}
    exec(m.code, names)
    assert names["t"].peak_bytes == pytest.approx(m.results["trace"].peak_bytes, rel=0.001)
    m.set(view="predict")
    assert not m.running  # the guard has already predicted it
    exec(m.code, names)
    assert names["p"].peak_bytes == m.results["trace"].peak_bytes
    m.set(view="trace", batch=8)
    assert m._results.message.startswith("The controls have moved since this was made: press Run a step")


def test_a_snapshot_is_shown_with_the_largest_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts sum to the whole, the largest tensor is named, and the notebook's variables give the names."""
    seen: list[Any] = []

    def snapshot(device: str, names: Any) -> Snapshot:
        seen.append((device, names))
        parts = {"tensors": 2 * GIB, "cached": 0, "this process": GIB, "other processes": GIB, "free": 4 * GIB}
        held = (HeldTensor("weights", 2 * GIB, (512, 1024, 1024), "float32", "torch", 1),)
        return Snapshot("cpu", "Slow CPU", 8 * GIB, parts, held, (), Evidence.measured("Slow CPU"))

    monkeypatch.setattr(memory, "snapshot", snapshot)
    m = MemoryInspector(device="cpu")
    assert m._results.message.startswith("Press Snapshot")
    m.run("snapshot", wait=True)
    assert seen == [("cpu", {})]
    assert m._results.message == "4.00 GiB of 8.00 GiB are free; 1 tensor holds 2.00 GiB. The largest is weights with 2.00 GiB."
    assert ["- weights", "2.00 GiB", "512x1024x1024 float32 (torch)"] in m._results.rows
    assert "Who holds the memory of cpu" in picture(m)


@pytest.mark.parametrize(("after", "words"), [(1 * GIB, "2.00 GiB came back on cpu."), (3 * GIB, "No bytes came back on cpu.")])
def test_release_says_how_many_bytes_came_back(monkeypatch: pytest.MonkeyPatch, after: int, words: str) -> None:
    """The difference is in the first sentence, before and after are in the table, and the switch reaches the core."""
    seen: list[Any] = []

    def release(device: str, outputs: bool) -> Released:
        seen.append((device, outputs))
        return Released("cpu", GIB, 3 * GIB, 3 * GIB, after, ("Collected garbage.",), (), Evidence.measured("Slow CPU"))

    monkeypatch.setattr(memory, "release", release)
    m = MemoryInspector(device="cpu", outputs=True)
    m.run("release", wait=True)
    assert seen == [("cpu", True)]
    assert m._results.message == f"{words} Collected garbage."
    assert ["held by this process, before", "3.00 GiB"] in m._results.rows
    assert m.code.endswith('gl.memory.release("cpu", outputs=True)')


def test_each_view_has_its_own_controls(core: Core) -> None:
    """The step's controls are hidden where they decide nothing."""
    m = MemoryInspector(model="mlp")

    def on_screen() -> set[str]:
        return {c["name"] for c in m._panel.spec if not c["hidden"]}

    step = {"view", "model", "batch", "optimizer", "precision", "checkpoint"}
    assert on_screen() == {"view", "device"}
    m.set(view="predict")
    assert on_screen() == step | {"capacity", "picture"}
    m.wait()
    m.set(view="trace")
    assert on_screen() == step | {"device"}
    m.set(view="release")
    assert on_screen() == {"view", "device", "outputs"}


@pytest.mark.parametrize("bad", [{"batch": 3}, {"batch": -1}, {"model": "resnet"}, {"precision": "float8"}, {"device": "cuda:9"}])
def test_bad_values_are_refused_in_words(bad: dict[str, Any]) -> None:
    """Unknown names and impossible sizes raise one sentence from Python and change nothing."""
    m = MemoryInspector()
    before = dict(m.values)
    with pytest.raises(InputError, match="expected"):
        m.set(**bad)
    assert m.values == before


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_is_made_as_its_code_says(name: str) -> None:
    """The call in the code makes the same model, and its inputs fit: the shapes of a forward pass on "meta" come out."""
    chosen = MODELS[name]
    with torch.device("meta"):
        model = chosen.make()
        again = eval(chosen.call, {chosen.network: getattr(networks, chosen.network)})
    assert [p.shape for p in model.parameters()] == [p.shape for p in again.parameters()]
    x, y = chosen.batch(2, "meta")
    names: dict[str, Any] = {"torch": torch}
    exec(chosen.batch_code(2, '"meta"'), names)
    assert (names["x"].shape, names["x"].dtype, names["y"].shape) == (x.shape, x.dtype, y.shape)
    assert len(model(x)) == 2
    assert re.findall(r"randint\((\d+)", chosen.batch_code(2)) == [str(model(x).shape[-1])], "a target for each score"


def test_the_models_are_of_the_sizes_that_their_labels_tell() -> None:
    """By hand, biases and norms included; the largest is GPT-2 small, whose published number of parameters this is."""
    counts = dict.fromkeys(MODELS, 0)
    for name, chosen in MODELS.items():
        with torch.device("meta"):
            counts[name] = sum(p.numel() for p in chosen.make().parameters())
    assert counts["mlp"] == 785 * 1024 + 2 * 1025 * 1024 + 1025 * 10
    assert counts["gpt2-small"] == 124_439_808
    layer = 12 * 256**2 + 13 * 256
    assert counts["transformer"] - 2 * 1000 * 256 - 128 * 256 - 4 * layer in (512, 512 + 1000)  # the last norm, and a head's biases
    assert [chosen.shape for chosen in MODELS.values()] == [(3, 32, 32), (784,), (128,), (1024,)]
    assert MODELS["cnn"].call == "cnn(3, 10, width=32, stages=3)"


def test_old_predictions_are_forgotten(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than are kept those go that were not looked at for longest."""
    monkeypatch.setattr(memory_inspector, "_KEPT", 2)
    m = MemoryInspector(model="mlp", view="predict")
    for batch in (1, 2, 4):
        m.set(batch=batch)
        m.wait()
    assert [step.batch for step in m._predictions] == [2, 4]


def test_the_lists_of_choices_are_the_cores() -> None:
    """Each optimizer and precision offered is one that the core takes."""
    x = torch.zeros(2, 8, device="meta")
    for optimizer in OPTIMIZERS:
        assert memory.predict(torch.nn.Linear(8, 8), x, loss=torch.sum, optimizer=optimizer).peak_bytes > 0
    for precision in PRECISIONS:
        assert memory.predict(torch.nn.Linear(8, 8), x, loss=torch.sum, precision=precision).precision == precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("function", "default"), [("predict", "adam"), ("trace", None)])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_call_that_is_shown_names_what_is_not_the_functions_own_choice(
    function: str, default: str | None, optimizer: str, precision: str
) -> None:
    """``predict`` takes Adam if nothing is said, ``trace`` no optimizer at all; a keyword twice would be no Python."""
    code = StepChoice("mlp", 8, optimizer, precision, False).code(function, '"cpu"')
    (call,) = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and ast.unparse(node.func) == f"gl.memory.{function}"
    ]
    words = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in ("optimizer", "precision", "checkpoint")}
    expected = {} if optimizer == default else {"optimizer": optimizer}
    assert words == (expected if precision == "float32" else {**expected, "precision": precision})


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(MemoryInspector())
