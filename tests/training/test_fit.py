"""`training.fit` against loops written by hand, with each option, and on an injected clock."""

import dataclasses
import itertools
import math
import shutil
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gpulab import devices, memory, training
from gpulab.training import Task
from made_training import Clock, Layer, data_that, optimizer_that, task_of
from torch.nn import functional

STEPS, BATCH = 12, 48
USUAL: dict[str, Any] = {"steps": STEPS, "batch_size": BATCH, "device": "cpu"}
HERE = devices.find("cpu").name


def fitted(task: str | Task = "digits-mlp", **options: Any) -> tuple[training.FitResult, Any]:
    """A short run on the CPU, and its model."""
    model = options.get("model") or training.task(task).make_model(options.get("seed", 0))
    return training.fit(task, **{**USUAL, **options, "model": model}), model


def by_hand(
    job: Task,
    batches: Any,
    seed: int = 0,
    cast: Any = None,
    clip: float | None = None,
    scaled: bool = False,
) -> tuple[list[float], Any]:
    """Train on these batches as PyTorch's tutorials do; return the losses and the model."""
    model, losses = job.make_model(seed), []
    torch.manual_seed(seed)  # of dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for x, y in batches:
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
    ("options", "hand", "scale"),
    [
        ({}, {}, None),
        ({"seed": 7, "optimizer": lambda p: torch.optim.Adam(p, lr=3e-3)}, {"seed": 7}, None),
        # a power of two changes no bit
        ({"loss_scale": 1024.0, "clip": 0.5}, {"clip": 0.5}, 1024.0),
        ({"precision": "bfloat16"}, {"cast": torch.bfloat16}, None),
        ({"precision": "float16", "loss_scale": 1}, {"cast": torch.float16}, None),
        (
            {"precision": "float16", "clip": 0.5},
            {"cast": torch.float16, "clip": 0.5, "scaled": True},
            65536.0,
        ),
    ],
    ids=["plain", "seed and own", "scale and clip", "bfloat16", "unscaled", "float16"],
)
def test_a_run_is_the_loop_that_one_writes_by_hand(
    options: dict, hand: dict, scale: float | None
) -> None:
    """Losses and weights equal those of PyTorch's own idiom, with dropout by the seed though the
    model was given in evaluation mode, to which it returns. An epoch sees each item once.
    """
    batches, state = [], torch.get_rng_state()
    job = task_of(data_that(batches.append))
    given = job.make_model(hand.get("seed", 0)).eval()
    result, model = fitted(job, batch_size=200, model=given, **options)
    seen = {x.numpy().tobytes() for batch in batches[:6] for x in batch[0]}
    assert (
        [len(x) for x, _ in batches],
        len(seen),
        result.final_scale,
        model.training,
        not torch.equal(batches[0][1], batches[6][1]),
    ) == ([200] * STEPS, 1200, scale, False, True)
    assert torch.equal(torch.get_rng_state(), state)
    losses, expected = by_hand(job, batches, **hand)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-6)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_callers_modes_change_no_bit(precision: str) -> None:
    """Autocast, disabled gradients and another default device around a run have no effect on it.
    Without a model of the caller, the run begins with the task's model of this seed.
    """
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.device("meta"):
        result = training.fit("digits-mlp", precision=precision, seed=1, **USUAL)
    assert result.losses.tolist() == fitted(precision=precision, seed=1)[0].losses.tolist()


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("digits-mlp", {"prefetch": 3}, 0),
        ("digits-mlp", {"loading": "items", "read_loss": True}, 0),
        ("digits-mlp", {"loading": "resident", "prefetch": 2}, 0),
        ("digits-cnn", {"checkpoint": True}, 0),
        ("digits-mlp", {"accumulate": 2}, 2e-6),
        ("digits-mlp", {"accumulate": 7}, 2e-6),  # parts of 57 and of 58
        ("digits-cnn", {"channels_last": True}, 1e-2),
        ("digits-mlp", {"fused": True}, 1e-3),
        ("digits-mlp", {"fused": False}, 1e-3),
    ],
    ids=str,
)
def test_loading_and_memory_options_learn_the_same(
    name: str, options: dict, tolerance: float
) -> None:
    """Loading and checkpointing change no bit, even past the end of an epoch; the other options
    change only the rounding.
    """
    usual = {"batch_size": 400, "steps": 4, "optimizer": "sgd-momentum"}
    (plain, one), (result, other) = (fitted(name, **usual, **more) for more in ({}, options))
    near = {"rtol": tolerance, "atol": tolerance / 10}
    np.testing.assert_allclose(result.losses, plain.losses, **near)
    torch.testing.assert_close(other.state_dict(), one.state_dict(), **near)
    assert all(getattr(result.options, key) == value for key, value in options.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits-cnn", {"optimizer": "adam"}),
        ("digits-mlp", {"optimizer": "sgd"}),
        ("digits-mlp", {"optimizer": "adam", "precision": "bfloat16"}),
        ("digits-cnn", {"optimizer": "adam", "checkpoint": True}),
    ],
    ids=str,
)
def test_the_memory_is_what_the_prediction_says(name: str, options: dict) -> None:
    """Peak and categories of a real step equal those that fake tensors predict of it."""
    job = training.task(name)
    (result, model), (x, y) = fitted(job, batch_size=8, steps=2, **options), job.train[:8]
    given = {"loss": functional.cross_entropy, "targets": y, "device": "cpu", **options}
    assert (result.peak_by_category, sum(result.peak_by_category.values())) == (
        memory.predict(model, x, **given).peak_by_category,
        result.peak_bytes,
    )
    if name == "digits-cnn":  # the perceptron's peak is its update
        parts = fitted(job, batch_size=8, steps=2, accumulate=4, **options)[0].peak_by_category
        assert parts["activations"] < 0.4 * result.peak_by_category["activations"]


class Steep(Task):
    """A task whose loss is multiplied, so that float16 gradients overflow at first."""

    def loss(self, model: Any, batch: Any) -> Any:
        """Return a thousand times the loss."""
        return super().loss(model, batch) * 1000


@pytest.mark.parametrize("precision", ["float16", "pure-float16"])
def test_dynamic_scaling_leaves_out_steps_that_overflow(precision: str) -> None:
    """Each skipped step halves the scale of 65,536 and changes no weight; a run in pure float16
    has converted the model, and a later one in float32 converts it back.
    """
    job = task_of(training.task("digits-mlp").train, Steep)
    options = {"precision": precision, "optimizer": "sgd", "learning_rate": 1e-4}
    result, _ = fitted(job, **options)
    assert (result.final_scale, result.ended, result.accuracy.count) == (
        65536 / 2**result.skipped_steps, "finished", 500
    )  # fmt: skip
    first, model = fitted(job, steps=2, **options)
    expected = job.make_model(0).to(torch.half if "pure" in precision else torch.float)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    again = next(fitted(job, model=model, steps=1)[1].parameters())
    assert (first.skipped_steps, again.dtype) == (2, torch.float)


def test_the_model_is_trained_in_place_and_keeps_its_modes() -> None:
    """Parts that are frozen or in evaluation mode stay so; PyTorch's global modes are restored."""
    model = training.task("digits-cnn").make_model(0)
    watched = [model.features[0].weight.requires_grad_(False), model.head[2].weight]
    before, part = [weight.clone() for weight in watched], model.features[1].eval()
    # filling new memory takes an operator for each tensor (PyTorch, torch.utils.deterministic)
    switch, seen = torch.utils.deterministic, set[bool]()
    model.register_forward_hook(lambda *_: seen.add(switch.fill_uninitialized_memory))
    with torch.no_grad():
        fitted("digits-cnn", model=model, steps=3)
        assert (torch.is_grad_enabled(), switch.fill_uninitialized_memory) == (False, True)
    assert (list(map(torch.equal, before, watched)), model.training, part.training, seen) == (
        [True, False],
        True,
        False,
        {False},
    )


# -- what a machine lacks --------------------------------------------------------------------------


@pytest.fixture(name="compiled_by")
def _compiled_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets a stand-in for ``torch.compile``: a compiled model calls ``call(model, inputs)``."""
    monkeypatch.setenv("CXX", "g++")
    stand_in = lambda call: lambda model, **_: lambda *inputs: call(model, *inputs)  # noqa: E731
    return lambda call: monkeypatch.setattr(torch, "compile", stand_in(call))


def test_a_compiled_model_is_what_each_step_calls(compiled_by: Any, plain: Any) -> None:
    """The losses are the uncompiled model's; a note says that its memory is not tracked."""
    calls: list[Any] = []
    compiled_by(lambda model, x: calls.append(len(x)) or model(x))
    result, _ = fitted(compile=True)
    assert (
        calls,
        result.losses.tolist(),
        result.options.compile,
        result.peak_bytes,
        any(note.code == "skipped" for note in result.notes),
    ) == ([BATCH] * STEPS, plain[0].losses.tolist(), True, None, True)


def test_a_compiler_that_fails_leaves_the_model_as_it_is(
    compiled_by: Any, plain: Any, approved: Any
) -> None:
    """The run goes on uncompiled with the same losses and memory, and a note says why."""
    compiled_by(Mock(side_effect=RuntimeError("no backend")))
    result, _ = fitted(compile=True)
    assert (result.losses.tolist(), result.options.compile, result.peak_bytes) == (
        plain[0].losses.tolist(),
        False,
        plain[0].peak_bytes,
    )
    assert str(result.notes[0]) + "\n" == approved


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_a_really_compiled_step_learns_the_same(plain: Any) -> None:
    """With PyTorch's own compiler, the losses equal the uncompiled model's up to rounding."""
    result, _ = fitted(compile=True, steps=4)
    assert result.options.compile
    np.testing.assert_allclose(result.losses, plain[0].losses[:4], rtol=1e-3)


def test_what_a_cpu_lacks_is_noted_and_the_next_best_runs(
    monkeypatch: Any, plain: Any, approved: Any
) -> None:
    """Each option that a CPU lacks gives a note, `options` says what ran, and the losses are those
    of a plain run.
    """
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    asked = {"precision": "tf32", "pinned": True, "cuda_graph": True, "autotune": True}
    result, _ = fitted(**asked, compile=True, loading="resident")
    assert (result.losses.tolist(), dataclasses.replace(result.options, loading="batches")) == (
        plain[0].losses.tolist(),
        plain[0].options,
    )
    half = {"precision": "pure-bfloat16", "channels_last": True}  # of text, which stays whole
    text, _ = fitted("prose-transformer", steps=1, batch_size=2, **half)
    rms, _ = fitted(optimizer="RMSprop", fused=True, steps=1)
    assert (text.options.channels_last, rms.options.fused) == (False, None)
    notes = [note for each in (result, text, rms) for note in each.notes]
    lines = "".join(f"{note}\n" for note in notes if note.code != "no-interval")
    assert lines.replace(HERE, "A CPU") == approved


# -- time ------------------------------------------------------------------------------------------


CLOCK, BY_TURNS = Clock(), itertools.cycle((0.0625, 0.1875))


def slowly(layer: Layer, scores: Any) -> Any:
    """Take a second for the forward pass, and two for the backward pass."""
    CLOCK.spend(1.0)
    if scores.requires_grad:
        scores.register_hook(lambda gradient: CLOCK.spend(2.0))
    return scores


def test_each_phase_gets_its_own_time() -> None:
    """Seconds of data, forward, backward and optimizer add up to the step, and give the rate."""
    job = task_of(data_that(lambda batch: CLOCK.spend(0.5)))
    options = {"model": Layer(slowly), "clock": CLOCK, "batch_size": 50}
    options |= optimizer_that(lambda: CLOCK.spend(next(BY_TURNS)))
    result, few = (fitted(job, steps=steps, **options)[0] for steps in (25, 12))
    expected = {"data": 0.5, "forward": 1.0, "backward": 2.0, "optimizer": 0.125}
    found = {phase: result.phase_seconds[phase] for phase in expected}
    assert (found, sum(result.phase_seconds.values())) == (
        pytest.approx(expected, abs=1e-2),
        pytest.approx(float(np.mean(result.step_seconds))),
    )
    # without the first and the memory-tracked one
    assert (result.step_seconds.shape, result.evidence.samples, result.samples_per_second) == (
        (23,),
        23,
        pytest.approx(50 / np.median(result.step_seconds)),
    )
    assert np.searchsorted(result.samples_per_second_interval, 50 / 3.625) == 1  # inside
    assert (result.total_seconds, few.samples_per_second_interval is None) == (
        pytest.approx(25 * 3.625, rel=1e-3),
        True,
    )
    assert [note.code for note in few.notes] == ["no-interval"]


def test_the_loss_falls_and_the_network_reads() -> None:
    """On the shortest task the loss falls from ln 10 to about 0.1; over 90 % of digits are read."""
    result = training.fit("digits-mlp", device="cpu")
    assert (
        (result.losses[0], result.final_loss),
        result.accuracy.interval[0] > 0.9,
        result.steps,
        result.evidence.badge,
        result.evidence.device,
    ) == (pytest.approx((math.log(10), 0.1), abs=0.2), True, 15 * (1297 // 64), "MEASURED", HERE)


# -- on a GPU --------------------------------------------------------------------------------------


def run(**options: Any) -> training.FitResult:
    """A short run."""
    options = {"steps": 60, "batch_size": 16, "device": "cuda", **options}
    return training.fit("prose-transformer", **options)


def lacks(result: training.FitResult) -> list[str]:
    """Return the notes on options that the device did not apply."""
    return [note.sentence for note in result.notes if note.code == "skipped"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {}, {"pinned": True}, {"prefetch": 2, "pinned": True},
        {"loading": "items"}, {"loading": "resident", "prefetch": 2}, {"read_loss": True},
    ],
    ids=str,
)  # fmt: skip
def test_loading_changes_no_bit_on_a_gpu(options: dict) -> None:
    """Loading changes no loss on the GPU; the first losses equal the CPU's up to rounding."""
    fed = run(**options)
    assert (fed.losses.tolist(), lacks(fed)) == (run().losses.tolist(), [])
    np.testing.assert_allclose(fed.losses[:10], run(device="cpu", steps=10).losses, rtol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {"cuda_graph": True}, {"cuda_graph": True, "accumulate": 4},
        {"cuda_graph": True, "prefetch": 2, "pinned": True},
        {"cuda_graph": True, "loss_scale": 1024.0, "clip": 1.0}, {"fused": True}, {"compile": True},
        {"checkpoint": True}, {"precision": "tf32", "compile": True}, {"precision": "bfloat16"},
        {"precision": "float16"}, {"precision": "pure-bfloat16"},
    ],
    ids=str,
)  # fmt: skip
def test_faster_forms_learn_the_same(options: dict) -> None:
    """Each option is applied, and the final loss is within 10 % of a plain run's. Only a compiled
    step gets a note: its memory has no categories.
    """
    found = run(**options)
    assert len(lacks(found)) == bool(options.get("compile"))
    # 60 steps give 60 losses; bfloat16 has few numbers between 2 and 4
    assert (
        len(set(found.losses.tolist())) >= (31 if "pure-bfloat16" in options.values() else 60),
        found.final_loss,
    ) == (True, pytest.approx(run().final_loss, rel=0.1))
    assert {"graph", "forward"} & set(found.phase_seconds) == {
        "graph" if options.get("cuda_graph") else "forward"
    }


@pytest.mark.gpu
def test_what_no_graph_holds_runs_launched_and_is_noted() -> None:
    """A non-capturable Adam and dynamic loss scaling run without a CUDA graph, with a note."""
    own = run(cuda_graph=True, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3))
    scaled = run(precision="float16", cuda_graph=True, steps=5)
    found = [(one.ended, one.options.cuda_graph, len(lacks(one))) for one in (own, scaled)]
    assert found == [("finished", False, 1)] * 2


@pytest.mark.gpu
def test_the_instruments_see_the_device() -> None:
    """On a GPU there are phases, the allocator's peak, a lane of kernels, a pipeline, a ladder."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run(batch_size=256, steps=100)
    seen = torch.cuda.max_memory_allocated() - before
    assert (
        result.peak_bytes,
        {"data", "copy", "forward", "backward", "optimizer"} <= set(result.phase_seconds),
    ) == (pytest.approx(seen, rel=0.1, abs=2**24), True)
    with torch.profiler.profile(acc_events=True) as profiler:
        torch.ones(2048, 2048, device="cuda").exp()
        torch.cuda.synchronize()
    spans = training.profile(profiler).spans
    assert any(span.lane == "device" and span.seconds > 0 for span in spans)
    steps = training.pipeline(batch_size=8, steps=5, image_size=32, pinned=True, read_loss=False)
    assert all(span.seconds > 0 for span in steps.lane("compute"))
    chosen = ("resident", "prefetch", "batch", "compile", "graph")
    climbed = training.ladder("prose-transformer", chosen, device="cuda", seeds=0, turns=2)
    assert [rung.name for rung in climbed.rungs] == list(chosen)
