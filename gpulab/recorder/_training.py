"""The training of notebooks 05 and 06: each precision and each technique alone, on data that needs
no scikit-learn.

A case is the time of the number of steps that it states: one on a CPU, ten between two
synchronizations on an accelerator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpulab import networks, training
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder._foretell import refuse_long
from gpulab.recorder._registry import FIRST, SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure
from gpulab.training import Data, Task

PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "pure-bfloat16")
# Name -> the options of ``training.fit`` beside the precision.
MEANS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "not fused": {"fused": False},
    "channels_last": {"channels_last": True},
    "compile": {"compile": True},
    "graph": {"cuda_graph": True},
    "pinned": {"pinned": True},
    "prefetch": {"prefetch": 2, "pinned": True},
    "checkpoint": {"checkpoint": True},
}
_IMAGES, _SIDE, _STEPS = 2048, 32, 1_000_000
# steps before the first sample: compilation, a graph's recording, the optimizer's state
_BEFORE = {"cpu": 2, "accelerator": 6}
# A step may take this long: on a CPU whose convolutions are slow in bfloat16 it takes a minute. A
# sixteenth of the batch foretells it, up to three times too long (seen: 11 s for 3.6 s on a busy
# machine), so what is left out surely takes long.
_LONGEST_STEP_SECONDS, _SMALL_SHARE = 20.0, 16
_STEPS_A_CALL = 10  # on an accelerator: waiting after each step would time the waiting
_SHARES = 4  # there; an H200 takes 50 to 150 ms for such a call
# Means that say something of a network of images alone.
_OF_IMAGES = ("channels_last",)


def _images() -> Task:
    """Return a task of colour images with a network that fills a GPU better than the digits do;
    times do not depend on what is seen.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    data = Data(
        torch.randn(_IMAGES, 3, _SIDE, _SIDE, generator=generator),
        torch.randint(10, (_IMAGES,), generator=generator),
    )
    return Task(
        "noise-cnn",
        "a convolutional network on random images of 32x32 pixels",
        "images",
        "classes",
        256,
        1,
        1e-3,
        lambda: (data, data),
        lambda: networks.cnn(3, 10, width=64, stages=3),
    )


def _text() -> Task:
    """Return the task of the prose with a transformer four times as wide and twice as deep."""
    small = training.task("prose-transformer")
    letters = int(small.train.inputs.max()) + 1
    return Task(
        "prose-wide",
        "a transformer of width 256 and four layers on the prose",
        "windows",
        "characters",
        64,
        1,
        1e-3,
        lambda: (small.train, small.test),
        lambda: networks.transformer(letters, width=256, heads=8, layers=4, context=64),
    )


MODELS = {"cnn": _images, "transformer": _text}


def _case(device: Device, model: str, precision: str, means: str, rank: int) -> Case:
    steps = 1 if device.is_cpu else _STEPS_A_CALL

    def time_steps(deadline_seconds: float) -> Measurement:
        task = MODELS[model]()
        if device.is_cpu:
            _refuse_long_steps(task, device, precision, f"training, {model}, {precision}, {means}")
        run = training.Run(task, device=device, precision=precision, steps=_STEPS, **MEANS[means])
        run.parts_every = 0
        try:
            run.advance(_BEFORE["cpu" if device.is_cpu else "accelerator"])
            measured = measure(
                run.advance,
                steps,
                device=device,
                deadline=deadline_seconds,
                label=f"{model}, {precision}, {means}",
            )
            if run.is_over:  # further calls would have returned at once
                raise InputError(
                    f"training, {model}, {precision}, {means}: the loss was not finite at step "
                    f"{len(run.losses)}; expected a finite loss."
                )
            missing = [note.sentence for note in run.notes if note.code == "skipped"]
            if missing:  # never record one thing under the name of another
                raise InputError(
                    f"training, {model}, {precision}, {means}: {missing[0]} Expected it to run as "
                    "requested."
                )
            return measured
        finally:
            run.close()

    return Case(
        {"model": model, "precision": precision, "means": means, "steps": steps},
        time_steps,
        rank,
        1 if device.is_cpu else _SHARES,
    )


def _refuse_long_steps(task: Task, device: Device, precision: str, who: str) -> None:
    run = training.Run(
        task,
        device=device,
        precision=precision,
        steps=_STEPS,
        batch_size=max(1, task.batch_size // _SMALL_SHARE),
    )
    run.parts_every = 0
    try:
        refuse_long(
            who,
            lambda: run.advance(1),
            _SMALL_SHARE,
            what="step",
            longest_seconds=_LONGEST_STEP_SECONDS,
        )
    finally:
        run.close()


def _has(device: Device, precision: str, means: str) -> bool:
    """Return whether the device has both, so that nothing is recorded under the name of something
    else.
    """
    cuda = device.kind == "cuda"
    if precision == "tf32" and not cuda:
        return False
    # slow without instructions; the scaler reads on the host
    if precision == "float16" and (device.is_cpu or means == "graph"):
        return False
    return cuda or means not in ("graph", "pinned", "prefetch")


def _cases(device: Device) -> Iterable[Case]:
    for model in MODELS:
        for precision in PRECISIONS:
            if _has(device, precision, "plain"):
                yield _case(
                    device,
                    model,
                    precision,
                    "plain",
                    FIRST if precision in ("float32", "bfloat16") else SECOND,
                )
        for means in list(MEANS)[1:]:
            for precision in ("float32", "bfloat16"):
                if _has(device, precision, means) and (model == "cnn" or means not in _OF_IMAGES):
                    yield _case(
                        device,
                        model,
                        precision,
                        means,
                        SECOND if precision == "bfloat16" else THIRD,
                    )


register(
    Experiment(
        "training",
        "a training step in each precision, and with each technique of notebook 06",
        _cases,
    )
)
