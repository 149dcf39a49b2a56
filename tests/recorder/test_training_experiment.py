"""The recorder's training steps: what a device is offered, and a step that is really timed, without scikit-learn."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpulab import networks, recorder, training
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder import _training
from gpulab.recorder._training import MEANS, _cases


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
