"""The last exercise of notebook 09: the learner's own script, faster by its interval, on the same samples, as accurate."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from gpulab import devices, training
from gpulab.errors import InputError
from gpulab.lessons import _guard, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.training import Data, Gain, ScriptsResult
from gpulab.training._scripts import comes_late, gain_in_turns, samples_of
from gpulab.training.script_results import trains_less

_TASK, _ITEMS, _SEEDS = "digits-cnn", 64, 3
_LONGER = (2, 3, 4)  # times the first series of turns: a short disturbance is a smaller part of each that follows
_TINY = 64  # items of the first try, which finds out what is no training before anything is timed


def beginners_script(model: Any, data: Data) -> list[float]:
    """Train for three epochs as beginners write it; the notebook shows the same lines as ``script``."""
    import torch

    device = str(devices.default())
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for first in [*range(0, len(data), 16)] * 3:  # three epochs
        items = [data[k] for k in range(first, min(first + 16, len(data)))]
        images = torch.stack([image for image, _ in items]).to(device)
        labels = torch.stack([label for _, label in items]).to(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_script(answer: Any) -> str:
    if not callable(answer):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a function of a model and data.")
    job = training.task(_TASK)
    _tried(answer, job)
    try:
        _as_many(answer, job)
        found = training.compare_scripts(beginners_script, answer, job, items=_ITEMS, seeds=_SEEDS)
        otherwise_right = len(found.objections) == (0 if found.gain.verdict == "faster" else 1)  # the gain is the only one
        if otherwise_right:
            found = dataclasses.replace(found, gain=_sure_gain(found, answer, job))
    except InputError as error:
        raise Refused(str(error)) from error
    if found.objections:
        raise Refused(found.objections[0])
    return f"{found.sentence} {found.evidence.badge} on {found.evidence.device}."


def _sure_gain(found: ScriptsResult, answer: Any, job: training.Task) -> Gain:
    """Return a gain that does not rest on one series of turns, unless it is a loss.

    By chance alone one interval in forty lies wholly above 1 where there is no gain: two in succession must. One that reaches over 1,
    or none at all, answers nothing. So both are measured again, longer; what was not sure in the end is returned.
    """
    little, where = Data(*job.train[slice(0, _ITEMS)]), devices.default()
    gain = unsure = found.gain
    for longer in _LONGER:
        if gain.verdict == "slower":
            return gain
        again = gain_in_turns(beginners_script, answer, job, little, where, longer)
        if gain.verdict == again.verdict == "faster":
            return again
        unsure, gain = (gain if again.verdict == "faster" else again), again
    return unsure


def _as_many(answer: Any, job: training.Task) -> None:
    """Refuse what trains less before anything is timed."""
    little, where = Data(*job.train[slice(0, _TINY)]), devices.default()
    mine, theirs = (samples_of(script, job, little, where) for script in (answer, beginners_script))
    if mine < theirs:
        raise Refused(trains_less(("script", str(getattr(answer, "__name__", "your function"))), (theirs, mine)))


def _tried(answer: Any, job: training.Task) -> None:
    """Call the answer once on a few items: what it is given must be trained, and it must be over when it returns."""
    model, data = job.make_model(0), Data(*job.train[slice(0, _TINY)])
    before, known = [parameter.detach().clone() for parameter in model.parameters()], threading.enumerate()
    try:
        answer(model, data)
    except Refused:
        raise
    except NotImplementedError as error:
        raise NotAttempted from error
    except Exception as error:
        raise Refused(f"Your function raised {_guard.explain(error)}.") from error
    if _changed(before, model):
        return
    if _guard.is_empty(answer):
        raise NotAttempted
    if comes_late(lambda: _changed(before, model), False, known):
        raise Refused("Your function returned while it was still training: a clock stops before the work is done. Wait for it.")
    raise Refused("Your function leaves the model as it was: its parameters have not changed. Train the model that you are given.")


def _changed(before: list[Any], model: Any) -> bool:
    return any(not _as_before(a, b) for a, b in zip(before, model.parameters(), strict=True))


def _as_before(before: Any, after: Any) -> bool:
    """Return whether a parameter is as it was, wherever it lies now."""
    return bool((before == after.detach().cpu()).all())


_HEAD = '''def mine(model, data):
    """Train for three epochs on all of data, as script does, only faster."""
'''
_IMPORT = "import torch\n\nimport gpulab as gl\n\n\n"
_TRAIN = """\
    device = gl.devices.default()
    model.to(str(device))
    images, labels = data.inputs.to(str(device)), data.targets.to(str(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for first in [*range(0, len(data), {batch})] * {epochs}:
        loss = torch.nn.functional.cross_entropy(model(images[first:first + {batch}]), labels[first:first + {batch}])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SCRIPT = Exercise(
    id="09.11",
    title="your own script",
    answer_name="mine",
    stub=_HEAD + "    ...",
    solution=_IMPORT + _HEAD + _TRAIN.format(batch=32, epochs=3),
    hints=(
        "Which rung gave most in your ladder? Begin there, and change one thing at a time.",
        "Move all images and labels to the device once, and take slices of them instead of stacking items.",
        "Batches of 32, a fused Adam, and no .item() in the loop are usually enough. Larger batches make fewer updates: test the model.",
    ),
    check=_check_script,
    machine="the times of both scripts on your device",
    unkept="what a script gains shows only on the machine that it was written for",
    limit_seconds=300.0,
    loads=(*_loading.STEPS, *_loading.DIGITS),
    usual=(
        Usual(_IMPORT + _HEAD + _TRAIN.format(batch=32, epochs=1), "because it trains less"),
        Usual(
            _IMPORT.replace("import torch", "import threading\n\nimport torch")
            + "def train(model, data):\n" + _TRAIN.format(batch=32, epochs=3) + "\n\n" + _HEAD
            + "    threading.Thread(target=train, args=(model, data)).start()",
            "while it was still training",
        ),
        Usual(_IMPORT + _HEAD + _TRAIN.format(batch=256, epochs=3), "less accurate"),
        Usual(
            _IMPORT
            + "from gpulab.lessons import beginners_script\n\n\n" + _HEAD + "    for k in range(10_000):\n        data[k % len(data)]\n"
            "    return beginners_script(model, data)",
            "No speed-up was shown",
        ),
        Usual(
            _IMPORT + _HEAD + "    other = gl.training.task('digits-cnn').make_model()\n    other(data.inputs)",
            "leaves the model as it was",
        ),
        Usual(_IMPORT + _HEAD + "    return model(data)", "Your function raised"),
    ),
)  # fmt: skip
