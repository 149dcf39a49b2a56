"""The recorder's experiment on input pipelines: each kind of case runs in a moment, and a machine without Pillow still has the loops."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest
import torch

from gpulab import devices, networks, recorder
from gpulab.devices import Device
from gpulab.recorder import _pipeline


def cases():
    """The cases of this CPU by what tells them apart."""
    (experiment,) = recorder.experiments(["pipeline"])
    return {tuple(case.params.values()): case for case in experiment.cases(devices.find("cpu"))}


@pytest.mark.parametrize("key", [("decode", 2, 16), ("step", 1, 2, 16), ("loop", 1, 3), ("loop", 0, 3)])
def test_each_kind_of_case_is_measured(key, monkeypatch, tmp_path):
    """A case, made small here, gives a measurement with its own label and lets its workers go."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))  # nobody else's measurement is waited for
    for name, value in (("_BATCH", 2), ("_SIZE", 16), ("_LOOP_STEPS", 3)):
        monkeypatch.setattr(_pipeline, name, value)
    m = cases()[key].time(0.05)
    assert m.median_seconds > 0
    assert key[0] in m.label or "steps" in m.label


def test_a_machine_without_pillow_records_the_loops(monkeypatch):
    """A bare machine lacks Pillow: what needs it is not planned."""
    monkeypatch.setattr(_pipeline.importlib.util, "find_spec", lambda name: None)
    assert {key[0] for key in cases()} == {"loop"}
    monkeypatch.undo()
    assert importlib.util.find_spec("PIL") is not None
    assert {key[0] for key in cases()} == {"loop", "decode", "step"}


def the_loop_by_hand(steps):
    """Plain descent at a hundredth on a perceptron 64-256-10, seeded as the case is; the losses before each step."""
    torch.manual_seed(0)
    model = networks.mlp(64, 256, 10)
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.item())
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.sub_(0.01 * gradient)
    return losses


@pytest.mark.parametrize(("reads", "kind", "word"), [(True, float, "reading"), (False, torch.Tensor, "keeping")])
def test_a_loop_trains_and_its_losses_are_read_or_kept(reads, kind, word, monkeypatch):
    """Three steps, each with its own gradients: the sum of the losses is that of a loop by hand; a loss that is kept holds no graph."""
    monkeypatch.setattr(_pipeline, "_LOOP_STEPS", 3)
    monkeypatch.setattr(_pipeline, "measure", lambda loop, **said: (loop(), said))
    case = _pipeline._loop_case(Device("cpu"), reads)
    total, said = case.time(0.5)
    assert case.params == {"part": "loop", "reads_loss": int(reads), "steps": 3}
    assert isinstance(total, kind)
    assert float(total) == pytest.approx(sum(the_loop_by_hand(3)), rel=1e-5)
    assert reads or not total.requires_grad
    assert said == {"device": Device("cpu"), "deadline": 0.5, "label": f"3 steps, {word} the loss"}


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 0)], ids=str)
def test_a_step_behind_workers_trains_on_cuda_alone(device, monkeypatch):
    """There each batch that arrives is trained on, its memory pinned; on a CPU it is only taken."""
    log = []

    class Accelerator:
        def __init__(self, *given, pinned):
            log.append((*given, pinned))

        def step(self, batch):
            log.append(batch)

    @contextlib.contextmanager
    def loader(batches, workers, prefetch, pinned):
        log.append((batches, workers, prefetch, pinned))
        yield iter(["first", "second"])

    monkeypatch.setattr(_pipeline._pipeline, "LiveAccelerator", Accelerator)
    monkeypatch.setattr(_pipeline._pipeline, "_loader", loader)
    monkeypatch.setattr(_pipeline, "_batches", lambda: "batches")
    monkeypatch.setattr(_pipeline, "measure", lambda step, **said: (step(), step(), said)[2])
    said = _pipeline._step_case(device, 4).time(0.5)
    assert said == {"device": device, "deadline": 0.5, "label": "a step behind 4 workers"}
    assert log == ([("batches", 4, 2, False)] if device.is_cpu else [(device, 32, 128, True), ("batches", 4, 2, True), "first", "second"])


def test_each_call_decodes_the_next_batch(monkeypatch):
    """Two calls, two batches of 32 files at 128 pixels."""
    taken = []

    class Batches:
        def __init__(self, *given):
            assert given == ("files", 32, 128, 1_000_000)  # more batches than any deadline sees

        def __getitem__(self, number):
            taken.append(number)

    monkeypatch.setattr(_pipeline._images, "jpegs", lambda: "files")
    monkeypatch.setattr(_pipeline._images, "BatchSet", Batches)
    monkeypatch.setattr(_pipeline, "measure", lambda decode, **said: (decode(), decode(), said)[2])
    assert _pipeline._decode_case().time(0.5) == {"device": "cpu", "deadline": 0.5, "label": "decode 32 JPEG files"}
    assert taken == [0, 1]
