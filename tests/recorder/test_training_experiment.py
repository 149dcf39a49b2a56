"""The recorder's training steps: what a device is offered, and a step that is really timed, without scikit-learn."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from gpulab import networks, recorder, training
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder import _speedup, _training
from gpulab.recorder._training import MEANS, _cases
from gpulab.training._graph import _EAGER_STEPS


def named(device: Device) -> set[tuple]:
    """(model, precision, means) of each case."""
    return {tuple(case.params[name] for name in ("model", "precision", "means")) for case in _cases(device)}


def test_a_cpu_is_offered_what_it_has_and_cuda_everything() -> None:
    """Nothing that would be left out with a note, and each case once; graphs never with a scale that the host reads."""
    cpu, cuda = named(Device("cpu")), named(Device("cuda", 0))
    assert not any(means in ("graph", "pinned", "prefetch") for _, _, means in cpu)
    assert not any(precision in ("tf32", "float16") for _, precision, _ in cpu)
    assert cpu < cuda
    assert {means for _, _, means in cuda} == set(MEANS)
    assert ("cnn", "float16", "graph") not in cuda
    assert ("transformer", "bfloat16", "channels_last") not in cuda
    assert len(named(Device("cuda", 0))) == len(list(_cases(Device("cuda", 0))))
    assert "training" in {experiment.name for experiment in recorder.experiments()}


@pytest.fixture(name="small")
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that a test can afford, on the same data; and no scikit-learn."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    real = _training._images

    def images() -> training.Task:
        import dataclasses

        return dataclasses.replace(real(), batch_size=8, _build=lambda: networks.cnn(3, 10, width=4))

    monkeypatch.setitem(_training.MODELS, "cnn", images)


@pytest.mark.usefixtures("small")
def test_a_step_is_timed() -> None:
    """A measurement of real steps on the CPU, one a call."""
    case = _training._case(Device("cpu"), "cnn", "float32", "fused", 0)
    measured = case.time(0.1)
    assert case.params["steps"] == 1
    assert measured.median_seconds > 0
    assert measured.label == "cnn, float32, fused"


@pytest.mark.usefixtures("small")
def test_nothing_is_recorded_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a means is left out, or the loss is lost, the case fails instead."""
    with pytest.raises(InputError, match="no CUDA graphs"):
        _training._case(Device("cpu"), "cnn", "float32", "graph", 0).time(0.01)
    monkeypatch.setitem(_training.MEANS, "plain", {"learning_rate": 1e30})
    with pytest.raises(InputError, match="loss was lost"):
        _training._case(Device("cpu"), "cnn", "float32", "plain", 0).time(0.2)


def test_the_wide_transformer_reads_the_prose() -> None:
    """Its vocabulary is the prose's."""
    task = _training._text()
    assert task.make_model(0).head.out_features == int(task.train.inputs.max()) + 1


def test_the_tasks_are_of_the_sizes_that_are_recorded() -> None:
    """2,048 colour images of 32 x 32 in ten classes, the same each time, and three stages; a width of 256 in four layers of 8 heads."""
    images, again, text = _training._images(), _training._images(), _training._text()
    assert images.train.inputs.shape == (2048, 3, 32, 32)
    assert set(images.train.targets.tolist()) == set(range(10))
    assert images.train.inputs.equal(again.train.inputs)
    assert (images.batch_size, images.epochs, images.learning_rate) == (256, 1, 1e-3)
    convolutions = [m for m in images.make_model(0).modules() if isinstance(m, torch.nn.Conv2d)]
    assert [(m.in_channels, m.out_channels) for m in convolutions] == [
        (3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256),
    ]  # fmt: skip
    assert (text.batch_size, text.epochs, text.learning_rate) == (64, 1, 1e-3)
    model = text.make_model(0)
    assert [(block.heads, block.projection.in_features) for block in model.blocks] == [(8, 256)] * 4
    assert (model.positions.num_embeddings, model.positions.embedding_dim) == (64, 256)


def test_steps_of_a_minute_are_left_out_before_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a sixteenth of the batch foretells the step: what would take the whole budget is refused with its time."""
    monkeypatch.setattr(_training, "_LONGEST_STEP_SECONDS", 0.0)
    sizes: list[int] = []
    real = _training.training.Run

    def run(task: training.Task, **options: Any) -> Any:
        sizes.append(options.get("batch_size", task.batch_size))
        return real(task, **options)

    monkeypatch.setattr(_training.training, "Run", run)
    with pytest.raises(InputError, match=r"training, cnn, float32, plain: a step takes about \d+ s here"):
        _training._case(Device("cpu"), "cnn", "float32", "plain", 0).time(0.1)
    assert sizes == [_training.MODELS["cnn"]().batch_size // 16]


class PlayedRun:
    """A run that notes its steps; what it is over and what it left out are given here."""

    made: ClassVar[list[PlayedRun]] = []

    def __init__(self, task: training.Task, **options: Any) -> None:
        self.task, self.options, self.log = task, options, list[Any]()
        self.is_over, self.notes, self.losses, self.parts_every = False, [], [], 10
        self.made.append(self)

    def advance(self, steps: int = 1) -> None:
        """Note the steps; between two looks at the parts there must be none, since each look waits for the device."""
        assert self.parts_every == 0
        self.log.append(steps)

    def close(self) -> None:
        """Note the end."""
        self.log.append("closed")


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 0)], ids=str)
def test_steps_are_timed_without_a_look_at_their_parts(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warmed up, then one step a call on a CPU and ten on a GPU; a step that is foretold runs alone, twice; each run is closed."""
    said: list[Any] = []

    def measure(fn: Any, *args: Any, **named: Any) -> str:
        fn(*args)
        said.append(named)
        return "measured"

    for module, case in (
        (_training, _training._case(device, "cnn", "bfloat16", "fused", 2)),
        (_speedup, _speedup._case(device, "alone", "fused", (known("fused"), known("lighter")), 3)),
    ):
        monkeypatch.setattr(module, "measure", measure)
        monkeypatch.setattr(module.training, "Run", PlayedRun)
        PlayedRun.made.clear()
        assert case.time(0.5) == "measured"
        *foretold, run = PlayedRun.made
        each = 1 if device.is_cpu else 10
        assert [one.log for one in foretold] == ([[1, 1, "closed"]] if device.is_cpu and module is _training else [])
        warm, *rest = run.log
        assert (warm, rest) == (2 if device.is_cpu else 6, [each, "closed"])
        assert warm > _EAGER_STEPS or device.is_cpu  # a graph is recorded by then
        assert run.options["steps"] == 1_000_000  # more than any deadline sees
        assert (run.options["device"], run.options["fused"], case.params["steps"]) == (device, True, each)
        assert (case.rank, case.shares) == (2 if module is _training else 3, 1 if device.is_cpu else 4)
    assert [(one["device"], one["deadline"], one["label"]) for one in said] == [
        (device, 0.5, "cnn, bfloat16, fused"), (device, 0.5, "speed-up ladder, fused alone"),
    ]  # fmt: skip
    assert any(getattr(part, "groups", 1) > 1 for part in run.task.make_model(0).modules())  # depthwise: the lighter network


def test_a_step_may_take_twenty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen times what a sixteenth of the batch takes; where it is refused the small run is closed too."""
    asked: list[Any] = []

    def refuse(who: str, small: Any, times: float, **named: Any) -> None:
        small()
        asked.append((who, times, named))
        raise InputError("too long")

    monkeypatch.setattr(_training, "refuse_long", refuse)
    monkeypatch.setattr(_training.training, "Run", PlayedRun)
    PlayedRun.made.clear()
    with pytest.raises(InputError, match="too long"):
        _training._case(Device("cpu"), "cnn", "float32", "plain", 0).time(0.1)
    assert asked == [("training, cnn, float32, plain", 16, {"what": "step", "longest_seconds": 20.0})]
    (run,) = PlayedRun.made
    assert (run.log, run.options["batch_size"], run.options["steps"]) == ([1, "closed"], 16, 1_000_000)


@pytest.mark.parametrize(
    ("sentence", "refused"),
    [("", None), ("lost", "the loss was lost at step 2; expected to go on"), ("There is none.", "There is none. Expected it to run as"),
     ("It was pinned already.", "It was pinned already. Expected")],
)  # fmt: skip
@pytest.mark.parametrize("module", [_training, _speedup])
def test_what_did_not_run_as_asked_is_not_recorded(
    module: Any, sentence: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended, or left something out; a ladder's images may have been pinned before. Each run is closed."""

    class Played(PlayedRun):
        def __init__(self, task: training.Task, **options: Any) -> None:
            super().__init__(task, **options)
            self.is_over, self.losses = sentence == "lost", [1.0, 2.0]
            self.notes = [SimpleNamespace(code="skipped", sentence=sentence)] if "." in sentence else []
            self.notes.append(SimpleNamespace(code="slow", sentence="It took long."))

    monkeypatch.setattr(module, "measure", lambda fn, *args, **named: "measured")
    monkeypatch.setattr(module.training, "Run", Played)
    PlayedRun.made.clear()
    gpu = Device("cuda", 0)
    case = _training._case(gpu, "cnn", "float32", "plain", 0) if module is _training else _speedup._case(gpu, "the script", "", (), 0)
    if refused is None or (module is _speedup and "pinned" in refused):
        assert case.time(0.1) == "measured"
    else:
        with pytest.raises(InputError, match=refused):
            case.time(0.1)
    assert PlayedRun.made[-1].log == [6, "closed"]


def known(name: str) -> training.Technique:
    """One of the course's techniques, with the size that these images ask for."""
    return next(one for one in _speedup._techniques() if one.name == name)
