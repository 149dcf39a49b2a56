"""09.11: your own script."""

# %% exercise
id = "09.11"
title = "your own script"
answer_name = "mine"
limit_seconds = 300.0
loads = ["torch", "torch.optim", "torch._dynamo", "torch.utils.data"]
machine = "the times of both scripts on your device"
unkept = "what a script gains shows only on the machine that it was written for"

# %% stub
def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    ...

# %% hint
# Which rung gave most in your ladder? Begin with it, and change one thing at a time.

# %% hint
# Move data.inputs and data.targets to the device once. A batch is then images[chosen], for chosen in
# torch.randperm(len(images), device=images.device).split(32).

# %% hint
# Batches of 32, fused=True in Adam, and no .item() in the loop are usually enough. A larger batch
# makes fewer updates, so test the model.

# %% solution
import torch


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    images, labels = data.inputs.to(device), data.targets.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for _ in range(3):
        for chosen in torch.randperm(len(labels), device=device).split(32):
            loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

# %% check
import dataclasses
import threading
from typing import Any
from gpulab import devices, training
from gpulab.errors import GpulabError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.training import Data, Gain, ScriptsResult
from gpulab.training._scripts import comes_late, gain_in_turns, samples_of
from gpulab.training.run_results import trains_less

_TASK, _ITEMS, _SEEDS = "digits-cnn", 64, 3
_LONGER = (2, 3, 4)  # lengths of the repeats in units of the first series: in a longer series a short disturbance matters less
_TINY = 64  # items of the untimed calls that check, before anything is timed, how much the function trains


def slow(model: Any, data: Data) -> None:
    """Train as the notebook's file slow_training.py does."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(3):
        for images, labels in DataLoader(TensorDataset(data.inputs, data.targets), batch_size=16, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()


def check(answer: Any) -> str:
    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a function of a model and data.")
    job = training.task(_TASK)
    _tried(answer, job)
    try:
        _as_many(answer, job)
        found = training.compare_scripts(slow, answer, job, items=_ITEMS, seeds=_SEEDS)
        otherwise_right = len(found.objections) == (0 if found.gain.verdict == "faster" else 1)  # no objection other than to the gain
        if otherwise_right:
            found = dataclasses.replace(found, gain=_sure_gain(found, answer, job))
    except GpulabError as error:
        raise Refused(str(error)) from error
    if found.objections:
        raise Refused(found.objections[0])
    return f"{found.sentence} {found.evidence.badge} on {found.evidence.device}."


def _sure_gain(found: ScriptsResult, answer: Any, job: training.Task) -> Gain:
    """Return a gain that does not rest on one series of turns, unless it is a loss.

    Even without a gain, one interval in forty lies wholly above 1 by chance. So two series in succession must show a gain. An interval
    that contains 1, or a missing interval, decides nothing. So both scripts are measured again, each time in a longer series. If no two
    series in succession show a gain, the result is the last series that shows none.
    """
    little, where = Data(*job.train[slice(0, _ITEMS)]), devices.default()
    gain = unsure = found.gain
    for longer in _LONGER:
        if gain.verdict == "slower":
            return gain
        again = gain_in_turns(slow, answer, job, little, where, longer)
        if gain.verdict == again.verdict == "faster":
            return again
        unsure, gain = (gain if again.verdict == "faster" else again), again
    return unsure


def _as_many(answer: Any, job: training.Task) -> None:
    """Refuse, before anything is timed, an answer that trains on fewer samples than ``slow``."""
    little, where = Data(*job.train[slice(0, _TINY)]), devices.default()
    mine, theirs = (samples_of(script, job, little, where) for script in (answer, slow))
    if mine < theirs:
        raise Refused(trains_less(("slow", str(getattr(answer, "__name__", "your function"))), (theirs, mine)))


def _tried(answer: Any, job: training.Task) -> None:
    """Call the answer once on a few items: it must train the given model, and finish the training before it returns."""
    model, data = job.make_model(0), Data(*job.train[slice(0, _TINY)])
    before, known = [parameter.detach().clone() for parameter in model.parameters()], threading.enumerate()
    try:
        answer(model, data)
    except Refused:
        raise
    except NotImplementedError as error:
        raise NotAttempted from error
    except Exception as error:
        raise Refused(f"Your function raised {checking.explain(error)}.") from error
    if _changed(before, model):
        return
    if checking.is_empty(answer):
        raise NotAttempted
    if comes_late(lambda: _changed(before, model), False, known):
        raise Refused("Your function returned while it was still training, so a clock stops before the work is done. Wait for the end of the training.")
    raise Refused("Your function leaves the model as it was: its parameters have not changed. Train the model that you are given.")


def _changed(before: list[Any], model: Any) -> bool:
    return any(not _as_before(a, b) for a, b in zip(before, model.parameters(), strict=True))


def _as_before(before: Any, after: Any) -> bool:
    """Return whether a parameter is unchanged, whichever device it is on now."""
    return bool((before == after.detach().cpu()).all())

# %% wrong: because it trains less
import torch


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    images, labels = data.inputs.to(device), data.targets.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for _ in range(1):
        for first in range(0, len(data), 32):
            loss = torch.nn.functional.cross_entropy(model(images[first:first + 32]), labels[first:first + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

# %% wrong: while it was still training
import threading

import torch


def train(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    images, labels = data.inputs.to(device), data.targets.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for _ in range(3):
        for first in range(0, len(data), 32):
            loss = torch.nn.functional.cross_entropy(model(images[first:first + 32]), labels[first:first + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    threading.Thread(target=train, args=(model, data)).start()

# %% wrong: less accurate
import torch


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    images, labels = data.inputs.to(device), data.targets.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for _ in range(3):
        for first in range(0, len(data), 256):
            loss = torch.nn.functional.cross_entropy(model(images[first:first + 256]), labels[first:first + 256])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

# %% wrong: No speed-up was shown
import torch
from torch.utils.data import DataLoader, TensorDataset


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(3):
        for images, labels in DataLoader(TensorDataset(data.inputs, data.targets), batch_size=16, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

# %% wrong: leaves the model as it was
import torch

import gpulab as gl


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    other = gl.training.task('digits-cnn').make_model()
    other(data.inputs)

# %% wrong: Your function raised
import torch

import gpulab as gl


def mine(model, data):
    """Train for three epochs on all of data, as slow does, only faster."""
    return model(data)
