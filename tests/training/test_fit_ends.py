"""How a run ends: by a stop, an interrupt, a loss that diverges, or an error."""

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import memory, training
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from made_training import Layer, data_that, task_of

from refusals import refused

SHORT: dict[str, Any] = {"batch_size": 48, "device": "cpu"}


def run_for(steps: int, **options: Any) -> training.FitResult:
    """A run of the smallest task."""
    return training.fit("digits-mlp", steps=steps, **{**SHORT, **options})


def note_of(result: training.FitResult, code: str) -> str:
    """Return the sentences of the notes with that code, empty if there is none."""
    return " ".join(note.sentence for note in result.notes if note.code == code)


# -- ended from outside ----------------------------------------------------------------------------


def test_a_stop_keeps_what_was_reached_and_progress_is_reported() -> None:
    """A stop between steps keeps the losses so far; before the first step there is no result."""
    asked, seen = iter([False] * 5 + [True]), []
    told = {"stop": lambda: next(asked), "progress": lambda *each: seen.append(each)}
    result, whole = run_for(50, **told), run_for(6)
    assert (result.ended, result.losses.tolist()) == ("stopped", whole.losses[:5].tolist())
    assert "5 of 50" in note_of(result, "stopped")
    said = [(fraction, text.partition(":")[0]) for fraction, text in seen]
    assert said == [(k / 50, f"step {k} of 50") for k in range(1, 6)]
    refused(StoppedError, run_for, 5, stop=lambda: True)


@pytest.mark.parametrize(("signals", "steps"), [(1, 3), (2, 2)])
def test_an_interrupt_lets_the_step_finish_and_a_second_one_ends_it(
    signals: int, steps: int
) -> None:
    """After a real SIGINT in step 3 the losses so far are returned and the handler is restored."""

    def interrupt(layer: Layer, scores: Any) -> Any:
        for _ in range(signals if layer.calls == 3 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return scores

    before = signal.getsignal(signal.SIGINT)
    result = run_for(50, model=Layer(interrupt))
    assert (
        (result.ended, [note.code for note in result.notes][-1]),
        result.losses.tolist(),
        signal.getsignal(signal.SIGINT) is before,
    ) == (("interrupted",) * 2, run_for(steps).losses.tolist(), True)


# -- divergence ------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rate": 1e20}, "smaller learning_rate (it was 1e+20)."),
        ({"learning_rate": 1e20, "optimizer": "sgd"}, "or clip=1.0"),
        ({"learning_rate": 1e20, "optimizer": "sgd", "clip": 1.0}, "(it was 1e+20)."),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=1e20)}, "Give your optimizer"),
        ({"precision": "float16", "loss_scale": 1e30}, "Leave loss_scale out"),
        ({"precision": "pure-float16"}, 'Pass precision="float16"'),
        ({"model": Layer(lambda layer, y: y * NAN)}, "the model itself"),
        (
            {"model": Layer(lambda layer, y: y * (NAN if layer.calls > 2 else 1))},
            "division by zero",
        ),
    ],
    ids=["rate", "sgd", "clipped", "own", "scale", "pure", "model", "later"],
)
def test_a_run_that_diverges_names_its_step_and_what_to_try(options: dict, words: str) -> None:
    """The first loss that is not finite ends the run, even if it was asked for more steps at once;
    the advice fits the options.
    """
    run = training.Run("digits-mlp", steps=60, **SHORT, **options)
    run.advance(60)
    result = run.result()
    assert (result.ended, result.first_bad_step, np.isfinite(result.losses).tolist()) == (
        "diverged",
        result.steps - 1,
        [True] * (result.steps - 1) + [False],
    )
    told = (f"step {result.first_bad_step}", words)
    assert all(each in note_of(result, "diverged") for each in told)


def test_a_last_update_that_breaks_the_weights_is_named() -> None:
    """A run whose training losses are finite, and whose test loss is not, has diverged."""
    broken = run_for(1, optimizer="sgd", learning_rate=1e38)
    assert (broken.first_bad_step, broken.ended) == (None, "diverged")


# -- what fails ------------------------------------------------------------------------------------


def test_a_test_that_fails_costs_the_test_alone() -> None:
    """The losses are kept, there is no accuracy, and a note has what the model raised."""
    shy = Layer(lambda layer, scores: scores if layer.training else scores.fail_here)
    result = run_for(4, model=shy)
    assert (
        result.ended,
        result.steps,
        result.accuracy,
        "fail_here" in note_of(result, "skipped"),
    ) == ("finished", 4, None, True)


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({}, "accumulate=2 or checkpoint=True or a smaller"),
        ({"accumulate": 2, "checkpoint": True}, "accumulate=4 or a smaller"),
    ],
    ids=str,
)
def test_a_batch_that_does_not_fit_is_named(options: dict, ways: str) -> None:
    """The error names the step, the batch, the device and what to pass beside the options given;
    then a smaller batch trains.
    """
    small = memory.limit("3 MiB", device="cpu", on_top=True)
    with small, pytest.raises(OutOfMemoryError, match=f"step 0 .*=256.*cpu.*=128 or {ways}"):
        training.fit("digits-cnn", batch_size=256, steps=2, device="cpu", **options)
    assert training.fit("digits-cnn", batch_size=16, steps=2, device="cpu").ended == "finished"


@pytest.mark.parametrize("feeding", [{"prefetch": 1}, {}], ids=str)
def test_data_that_fail_are_named(feeding: dict) -> None:
    """An error in a prefetching thread is raised like one in the caller's thread. The run can go
    on, with the batch that failed.
    """
    fault, plain = iter([False, False, True]), task_of(training.task("digits-mlp").train)
    job = task_of(data_that(lambda batch: next(fault, False) and batch.shelf))
    run = training.Run(job, steps=6, **SHORT, **feeding)
    refused(InputError, run.advance, 6).match("shelf")
    whole = training.fit(plain, steps=6, **SHORT).losses
    assert [*run.losses, *run.advance(6)] == whole.tolist()


def test_a_loss_that_rises_and_stays_finite_is_named() -> None:
    """A learning rate too large for Adam gets a note with the step. A usual run gets none, nor one
    that begins far above the loss of guessing, or far below it and stays below.
    """
    rising, tuned = run_for(40, learning_rate=1.0), training.task("digits-mlp").make_model()
    assert f"at step {int(rising.losses.argmax())}" in note_of(rising, "rising")
    run_for(150, model=tuned)
    steep = Layer(lambda layer, y: 100 * y)
    calm = ({}, {"model": steep, "learning_rate": 1e-5}, {"model": tuned, "learning_rate": 0.015})
    assert not any(note_of(run_for(20, **more), "rising") for more in calm)
