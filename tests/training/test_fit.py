"""One call trains: against loops written by hand, with each option, on an injected clock."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import devices, memory, training
from gpulab.training import Data, Task
from torch.nn import functional
from training_clock import Clock, task_of

STEPS, BATCH = 12, 48
HERE = devices.find("cpu").name


def fitted(task: str | Task = "digits-mlp", **options: Any) -> tuple[training.FitResult, Any]:
    """A short run on the CPU, and its model."""
    seed = options.get("seed", 0)
    model = options.pop("model", None) or training.task(task).make_model(seed)
    options = {"steps": STEPS, "batch_size": BATCH, "device": "cpu", **options}
    return training.fit(task, model=model, **options), model


class Noted(Data):
    """Data that note each batch that was asked for."""

    def __getitem__(self, indices: Any) -> Any:
        """Note the batch."""
        batch = super().__getitem__(indices)
        BATCHES.append(batch)
        return batch


BATCHES: list[Any] = []


def by_hand(
    job: Task, seed: int = 0, cast: Any = None, clip: float | None = None, scaled: bool = False
) -> tuple[list[float], Any]:
    """The run of the batches that were noted, as PyTorch's tutorials write it."""
    model, losses = job.make_model(seed), []
    optimizer = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for x, y in BATCHES:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=cast, enabled=cast is not None):
            loss = functional.cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return losses, model


@pytest.fixture(scope="module", name="plain")
def _plain() -> tuple[training.FitResult, Any]:
    return fitted()


@pytest.mark.parametrize(
    ("options", "hand"),
    [
        ({}, {}),
        ({"seed": 7, "optimizer": lambda p: torch.optim.Adam(p, lr=3e-3)}, {"seed": 7}),
        ({"loss_scale": 1024.0, "clip": 0.5}, {"clip": 0.5}),  # a power of two changes no bit
        ({"precision": "bfloat16"}, {"cast": torch.bfloat16}),
        ({"precision": "float16", "loss_scale": 1}, {"cast": torch.float16}),
        (
            {"precision": "float16", "clip": 0.5},
            {"cast": torch.float16, "clip": 0.5, "scaled": True},
        ),
    ],
    ids=["plain", "seed and own", "scale and clip", "bfloat16", "unscaled", "float16"],
)
def test_a_run_is_the_loop_that_one_writes_by_hand(options: dict, hand: dict) -> None:
    """Losses and weights equal those of PyTorch's own idiom; an epoch sees each item once."""
    BATCHES.clear()
    state = torch.get_rng_state()
    job = task_of(Noted(*training.task("digits-mlp").train[slice(None)]))
    result, model = fitted(job, batch_size=200, **options)
    assert [len(x) for x, _ in BATCHES] == [200] * STEPS
    assert len({x.numpy().tobytes() for batch in BATCHES[:6] for x in batch[0]}) == 1200
    assert not torch.equal(BATCHES[0][1], BATCHES[6][1])
    assert torch.equal(torch.get_rng_state(), state)
    losses, expected = by_hand(job, **hand)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-6)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("digits-mlp", {"workers": 2, "prefetch": 1}, 0),
        ("digits-mlp", {"prefetch": 3}, 0),
        ("digits-mlp", {"loading": "items", "workers": 1, "read_loss": True}, 0),
        ("digits-mlp", {"loading": "resident", "prefetch": 2}, 0),
        ("digits-cnn", {"checkpoint": True}, 0),
        ("digits-mlp", {"accumulate": 7}, 1e-3),
        ("digits-cnn", {"channels_last": True}, 1e-2),
        ("digits-mlp", {"fused": True}, 1e-3),
        ("digits-mlp", {"fused": False}, 1e-3),
    ],
    ids=str,
)
def test_what_is_no_other_training_learns_the_same(
    name: str, options: dict, tolerance: float
) -> None:
    """Who loads how changes no bit, over the end of an epoch; other forms change rounding alone."""
    usual = {"batch_size": 400, "steps": 4, "optimizer": "sgd-momentum"}
    (plain, one), (result, other) = (fitted(name, **usual, **more) for more in ({}, options))
    np.testing.assert_allclose(result.losses, plain.losses, rtol=tolerance)
    tolerances = {"rtol": tolerance, "atol": tolerance / 10}
    torch.testing.assert_close(other.state_dict(), one.state_dict(), **tolerances)
    assert all(getattr(result.options, key) == value for key, value in options.items())


@pytest.mark.slow
def test_parts_and_recomputing_need_less_memory() -> None:
    """Activations are those of one part, or only those between layers."""
    options = {"batch_size": 8, "steps": 2}
    made = [fitted("prose-transformer", **options, **more) for more in (
        {}, {"accumulate": 4}, {"checkpoint": True},
    )]  # fmt: skip
    plain, parts, again = (result.peak_by_category["activations"] for result, _ in made)
    assert (parts < 0.4 * plain, again < 0.6 * plain) == (True, True)
    assert made[2][0].losses.tolist() == made[0][0].losses.tolist()


@pytest.mark.parametrize(
    ("name", "optimizer", "checkpoint"),
    [("digits-cnn", "adam", False), ("digits-mlp", "sgd", False), ("digits-cnn", "adam", True)],
)
def test_the_memory_is_what_the_prediction_says(
    name: str, optimizer: str, checkpoint: bool
) -> None:
    """Peak and categories of a real step equal those that fake tensors predict of it."""
    job = training.task(name)
    result, model = fitted(job, batch_size=2, steps=2, optimizer=optimizer, checkpoint=checkpoint)
    x, y = job.train[:2]
    expected = memory.predict(
        model,
        x,
        loss=functional.cross_entropy,
        targets=y,
        optimizer=optimizer,
        checkpoint=checkpoint,
        device="cpu",
    )
    assert (result.peak_bytes, result.peak_by_category) == (
        expected.peak_bytes,
        expected.peak_by_category,
    )
    assert sum(result.peak_by_category.values()) == result.peak_bytes


class Steep(Task):
    """A task whose loss is multiplied, so that float16 gradients overflow at first."""

    def loss(self, model: Any, batch: Any) -> Any:
        """Return a thousand times the loss."""
        return super().loss(model, batch) * 1000


@pytest.mark.parametrize("precision", ["float16", "pure-float16"])
def test_dynamic_scaling_leaves_out_steps_that_overflow(precision: str) -> None:
    """Each step left out halves the scale from 65,536 and changes no weight; pure is converted."""
    job, kind = task_of(training.task("digits-mlp").train, Steep), precision.startswith("pure")
    options = {"precision": precision, "optimizer": "sgd", "learning_rate": 1e-4}
    result, _ = fitted(job, **options)
    assert (result.skipped_steps >= 3, result.ended) == (True, "finished")
    assert result.final_scale == 65536 / 2**result.skipped_steps
    first, model = fitted(job, steps=2, **options)
    expected = job.make_model(0).half() if kind else job.make_model(0)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert first.peak_by_category["parameters"] == sum(p.nbytes for p in expected.parameters())
    assert first.has_note("skipped")


def test_the_model_is_trained_in_place_and_keeps_its_modes() -> None:
    """A frozen, evaluating part stays so; PyTorch's switches are the caller's afterwards."""
    model = training.task("digits-cnn").make_model(0)
    model.features[0].weight.requires_grad_(False)
    model.features[1].eval()
    before = [model.features[0].weight.clone(), model.head[2].weight.clone()]
    switches = lambda: (torch.backends.cuda.matmul.fp32_precision, torch.is_grad_enabled())  # noqa: E731
    with torch.no_grad():
        here = switches()
        fitted("digits-cnn", model=model, steps=3)
        assert switches() == here
    after = [model.features[0].weight, model.head[2].weight]
    assert list(map(torch.equal, before, after)) == [True, False]
    assert (model.training, model.features[1].training) == (True, False)


# -- what a machine lacks --------------------------------------------------------------------------


def compiled_by(call: Any) -> Any:
    """A stand-in for ``torch.compile`` whose compiled model calls ``call(model, inputs)``."""
    return lambda model, **_: lambda *inputs: call(model, *inputs)


def test_a_compiled_model_is_what_each_step_calls(monkeypatch: Any, plain: Any) -> None:
    """Its losses are those of the model; the memory inside is not followed, which a note says."""
    calls: list[Any] = []
    monkeypatch.setenv("CXX", "g++")
    stand_in = compiled_by(lambda model, x: calls.append(len(x)) or model(x))
    monkeypatch.setattr(torch, "compile", stand_in)
    result, _ = fitted(compile=True)
    assert (calls, result.losses.tolist()) == ([BATCH] * STEPS, plain[0].losses.tolist())
    assert (result.options.compile, result.peak_bytes, result.has_note("skipped")) == (
        True,
        None,
        True,
    )


@pytest.mark.parametrize(
    "raised",
    ["No working C++ compiler found in torch._inductor", "Python.h: No such file", "no backend"],
    ids=["compiler", "headers", "other"],
)
def test_a_compiler_that_fails_leaves_the_model_as_it_is(
    raised: str, monkeypatch: Any, plain: Any, tmp_path: Any, approved: Any
) -> None:
    """A note says why; a checkpoint of the run goes on under the same call."""

    def fail(model: Any, *inputs: Any) -> Any:
        raise RuntimeError(raised)

    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(torch, "compile", compiled_by(fail))
    fitted(compile=True, steps=4, save=tmp_path / "run.pt")
    result, _ = fitted(compile=True, resume=tmp_path / "run.pt")
    assert result.losses.tolist() == plain[0].losses.tolist()
    assert (result.options.compile, result.peak_bytes) == (False, plain[0].peak_bytes)
    assert str(result.notes[0]) + "\n" == approved


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_a_really_compiled_step_learns_the_same(plain: Any) -> None:
    """PyTorch's own compiler: the losses of the model as it is but for rounding."""
    result, _ = fitted(compile=True, steps=4)
    assert result.options.compile
    np.testing.assert_allclose(result.losses, plain[0].losses[:4], rtol=1e-3)


def test_what_a_cpu_lacks_is_noted_and_the_next_best_runs(
    monkeypatch: Any, plain: Any, approved: Any
) -> None:
    """One note each, the options say what ran, and the losses are those of a plain run."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    asked = {"precision": "tf32", "pinned": True, "cuda_graph": True, "autotune": True}
    result, _ = fitted(**asked, compile=True, loading="resident", workers=2)
    assert result.losses.tolist() == plain[0].losses.tolist()
    assert dataclasses.replace(result.options, loading="batches") == plain[0].options
    text, _ = fitted("prose-transformer", steps=1, batch_size=2, channels_last=True)
    rms, _ = fitted(optimizer="RMSprop", fused=True, steps=1)
    assert (text.options.channels_last, rms.options.fused) == (False, None)
    notes = (str(note) for each in (result, text, rms) for note in each.notes)
    lines = "".join(f"{note}\n" for note in notes if not note.startswith("no-interval"))
    assert lines.replace(HERE, "A CPU") == approved


# -- time ------------------------------------------------------------------------------------------


class SlowData(Data):
    """Data of which a batch takes half a second."""

    def __getitem__(self, indices: Any) -> Any:
        """Let the time pass."""
        CLOCK.spend(0.5)
        return super().__getitem__(indices)


class SlowModel(torch.nn.Module):
    """A layer whose forward pass takes one second and whose backward pass two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 10)
        self.inner.weight.register_hook(lambda gradient: CLOCK.spend(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the time, then compute."""
        CLOCK.spend(1.0)
        return self.inner(x.flatten(1))


class SlowAdam(torch.optim.Adam):
    """An optimizer whose steps take a sixteenth and three sixteenths of a second by turns."""

    def step(self, closure: Any = None) -> Any:
        """Take the time, then update."""
        CLOCK.spend(next(BY_TURNS))
        return super().step(closure)


CLOCK, BY_TURNS = Clock(), itertools.cycle((0.0625, 0.1875))


def test_each_phase_gets_its_own_time() -> None:
    """Seconds of data, forward, backward and optimizer add up to the step, and give the rate."""
    job = task_of(SlowData(*training.task("digits-mlp").train[slice(None)]))
    options = {"model": SlowModel(), "optimizer": SlowAdam, "clock": CLOCK, "batch_size": 50}
    result, few = (fitted(job, steps=steps, **options)[0] for steps in (25, 12))
    expected = {"data": 0.5, "forward": 1.0, "backward": 2.0, "optimizer": 0.125}
    found = {phase: result.phase_seconds[phase] for phase in expected}
    assert found == pytest.approx(expected, abs=1e-2)
    assert sum(result.phase_seconds.values()) == pytest.approx(float(np.mean(result.step_seconds)))
    assert result.step_seconds.shape == (23,)  # the first and the one that was followed are none
    assert result.samples_per_second == pytest.approx(50 / np.median(result.step_seconds))
    low, high = result.samples_per_second_interval
    assert low < 50 / 3.625 < high
    assert (result.first_step_seconds, result.total_seconds) == pytest.approx(
        (3.5625, 25 * 3.625), rel=1e-3
    )
    assert (few.samples_per_second_interval, few.has_note("no-interval")) == (None, True)


def test_the_loss_falls_and_the_network_reads() -> None:
    """The shortest task: the loss falls tenfold from ln 10, over nine in ten digits are read."""
    result = training.fit("digits-mlp", device="cpu")
    assert result.losses[0] == pytest.approx(math.log(10), abs=0.2)
    assert result.final_loss < 0.2
    assert (result.accuracy.interval[0] > 0.9, result.steps) == (True, 15 * (1297 // 64))
    assert (result.evidence.badge, result.evidence.device) == ("MEASURED", HERE)
