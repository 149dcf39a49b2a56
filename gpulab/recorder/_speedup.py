"""The speed-up ladder of notebook 09: a beginner's script, each technique alone, the techniques
added one by one, and all but one.

The task is the random images of the training experiment, which need no scikit-learn; times do not
depend on the content of the images. Every form is a case of its own, timed one after the other, so
their ratios join both intervals. What a form learns is not recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from gpulab import networks, training
from gpulab.devices import Device
from gpulab.errors import GpulabError, InputError
from gpulab.recorder import _training
from gpulab.recorder._registry import LAST, SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure
from gpulab.training import Technique
from gpulab.training._ladder_recorded import ALONE, EXPERIMENT, START, UP_TO, WITHOUT

MODEL = "cnn"  # of the training experiment
_STEPS = 1_000_000
_BEFORE = {"cpu": 2, "accelerator": 6}
_STEPS_A_CALL = {"cpu": 1, "accelerator": 10}
_SHARES = 4  # of the budget, on an accelerator: ten steps a call are long
# The course's sizes fit digits on a CPU; these images and this network fill a GPU.
_SIZES = {"start": 32, "batch": 256}


def _techniques() -> list[Technique]:
    """Return the course's techniques with sizes for these images."""
    other: Mapping[str, dict[str, Any]] = {
        "batch": {"options": {"batch_size": _SIZES["batch"]}},
        "lighter": {"model": lambda: networks.mobilenet(3, 10, width=64, stages=3)},
    }
    return [dataclasses.replace(one, **other.get(one.name, {})) for one in training.techniques()]


def _case(
    device: Device, form: str, technique: str, used: tuple[Technique, ...], rank: int
) -> Case:
    kind = "cpu" if device.is_cpu else "accelerator"
    options: dict[str, Any] = {**training.START, "batch_size": _SIZES["start"]}
    for one in used:
        options.update(one.options)
    steps, batch = _STEPS_A_CALL[kind], int(options["batch_size"])
    params: dict[str, Any] = {
        "model": MODEL,
        "form": form,
        "technique": technique,
        "batch_size": batch,
        "steps": steps,
    }
    label = f"{EXPERIMENT}, {technique or 'nothing'} {form}"

    def time(deadline_seconds: float) -> Measurement:
        task = _training.MODELS[MODEL]()
        for one in used:
            if one.model is not None:
                task = dataclasses.replace(task, _build=one.model)
        run = training.Run(task, device=device, steps=_STEPS, **options)
        run.parts_every = 0
        try:
            run.advance(_BEFORE[kind])
            measured = measure(
                run.advance, steps, device=device, deadline=deadline_seconds, label=label
            )
            if run.is_over:
                raise InputError(
                    f"{label}: the loss was not finite at step {len(run.losses)}; expected a "
                    "finite loss."
                )
            missing = [
                note.sentence
                for note in run.notes
                if note.code == "skipped" and "was pinned" not in note.sentence
            ]
            if missing:  # never record one thing under the name of another
                raise InputError(f"{label}: {missing[0]} Expected it to run as requested.")
            return measured
        finally:
            run.close()

    return Case(params, time, rank, 1 if device.is_cpu else _SHARES)


def _has(device: Device, technique: Technique) -> bool:
    """Return whether the device has a technique, told without running it."""
    try:
        return technique.lacks(device) is None and not (
            technique.name == "prefetch" and device.torch_type != "cuda"
        )
    except (GpulabError, AssertionError, RuntimeError):
        # a device that is not here (a plan for another machine) has what its kind has
        return device.kind == "cuda"


def _cases(device: Device) -> Iterable[Case]:
    """The script, each technique alone and upon the others, then all but one."""
    here = [one for one in _techniques() if _has(device, one)]
    # a CPU's own ladder is climbed live in notebook 09; steps of this network take a CPU a second
    if device.is_cpu:
        return
    yield _case(device, START, "", (), SECOND)
    for number, one in enumerate(here):
        yield _case(
            device,
            UP_TO,
            one.name,
            tuple(here[: number + 1]),
            SECOND if number + 1 == len(here) else THIRD,
        )
        yield _case(device, ALONE, one.name, (one,), THIRD)
    for number, one in enumerate(here):
        yield _case(device, WITHOUT, one.name, tuple(here[:number] + here[number + 1 :]), LAST)


register(
    Experiment(
        EXPERIMENT,
        "a beginner's training script and a dozen techniques: each alone, all together, and all "
        "but one",
        _cases,
    )
)
