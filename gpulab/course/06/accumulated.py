"""06.15: take it home: one update from several batches."""

# %% exercise
id = "06.15"
title = "take it home: one update from several batches"
answer_name = "train_epoch"
live = True
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo", "torch.utils.data"]

# %% stub
def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    ...  # batches gives (images, labels); the last group may be smaller, and so may the last batch

# %% hint
# The mean over a whole group is the sum of all its losses divided by the number of all its images.
# cross_entropy(..., reduction="sum") gives the sum of a batch.

# %% hint
# You need the number of images before the first backward() of a group. Take `group` batches at a
# time: part = list(itertools.islice(iterator, group)), until part is empty.

# %% hint
# For each group: optimizer.zero_grad(); for each batch of it: (sum of the losses / images of the
# group).backward(); then optimizer.step(), once.

# %% solution
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    device = next(model.parameters()).device
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        count = sum(len(labels) for _, labels in part)
        optimizer.zero_grad()
        for images, labels in part:
            outputs = model(images.to(device))
            loss = cross_entropy(outputs, labels.to(device), reduction="sum")
            (loss / count).backward()
            total = total + loss.detach()
        optimizer.step()
        seen += count
    return (total / seen).item()

# %% check
import math
from typing import Any
from gpulab import devices
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.training.backend_switches import threads
from gpulab.units import plural

_GROUP = 3
# Images of each batch: whole groups; a smaller last group; a smaller last batch as well.
_EPOCHS = (("six equal batches", (8,) * 6), ("seven equal batches", (8,) * 7), ("five batches, the last of 2 images", (8, 8, 8, 8, 2)))
_RATE = 0.1


def _training(sizes: tuple[int, ...]) -> tuple[Any, Any, list[Any]]:
    """Return a model, its optimizer and batches of these sizes, the same ones each time."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
        batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]
    return model, torch.optim.SGD(model.parameters(), lr=_RATE), batches


def _reference(sizes: tuple[int, ...], *, by_group: bool = False, divided: bool = True, piled: bool = False, last: bool = False) -> list[Any]:
    """Return the parameters after an epoch; each keyword makes one of the usual mistakes.

    ``by_group``: the mean loss of each batch is divided by ``_GROUP``, also in a smaller last group. ``divided=False``: the mean loss of
    each batch is not divided at all. ``piled``: gradients are never set to zero. ``last``: only the last batch of a group counts.
    """
    import torch

    model, optimizer, batches = _training(sizes)
    for first in range(0, len(batches), _GROUP):
        part = batches[first : first + _GROUP]
        count = sum(len(labels) for _, labels in part)
        if not piled:
            optimizer.zero_grad()
        for images, labels in part[-1:] if last else part:
            loss = torch.nn.functional.cross_entropy(model(images), labels, reduction="sum")
            share = loss / count if divided and not by_group and not last else loss / len(labels) / (_GROUP if by_group else 1)
            share.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _mean_loss(sizes: tuple[int, ...]) -> float:
    """Return the mean loss of an image; the losses of a group are computed before its update."""
    import torch

    model, optimizer, batches = _training(sizes)
    total = 0.0
    for first in range(0, len(batches), _GROUP):
        part = batches[first : first + _GROUP]
        images, labels = (torch.cat(each) for each in zip(*part, strict=True))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        total += loss.item() * len(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return total / sum(sizes)


def check(answer: Any) -> str:
    with threads(1, devices.Device("cpu")):  # a second thread only adds noise to such small steps
        for name, sizes in _EPOCHS:
            _epoch(answer, name, sizes)
    return (
        "Each update is the one that a single batch with all images of the group would make, also for a smaller last group and a smaller "
        "last batch, and the model never sees more than one batch at a time."
    )


def _epoch(answer: Any, name: str, sizes: tuple[int, ...]) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model, optimizer, batches = _training(sizes)
    loader = DataLoader(TensorDataset(*map(torch.cat, zip(*batches, strict=True))), batch_size=max(sizes))
    seen: list[int] = []  # images of each forward pass
    updates: list[int] = []  # forward passes before each update
    waiting: list[int] = [0, 0]  # forward passes without their backward pass: now, and the maximum so far

    def forward(module: Any, given: Any, scores: Any) -> None:
        seen.append(len(given[0]))
        if scores.requires_grad:
            waiting[:] = waiting[0] + 1, max(waiting[1], waiting[0] + 1)
            scores.register_hook(lambda gradient: waiting.__setitem__(0, waiting[0] - 1))

    model.register_forward_hook(forward)
    optimizer.register_step_post_hook(lambda *given: updates.append(len(seen)))
    result = checking.call(answer, model, optimizer, loader, _GROUP)
    said, right = f"With {name} and group={_GROUP}", -(-len(sizes) // _GROUP)
    if not seen:
        raise Refused(f"{said} your function never calls model(images).")
    if max(seen) > max(sizes):
        raise Refused(
            f"{said} the model got {max(seen)} images at once, and a batch has {max(sizes)}. Accumulate gradients instead: that needs the "
            "memory of one batch."
        )
    if waiting[1] > 1:
        raise Refused(
            f"{said} {waiting[1]} batches went through the model before a backward pass, so the activations of all of them are alive at "
            "once. Call backward() for each batch, before the next one."
        )
    if not updates:
        raise Refused(f"{said} your function never calls the step() of the optimizer that it is given.")
    if len(updates) > right:
        raise Refused(f"{said} your function makes {plural(len(updates), 'update')}; {right} are right. Call optimizer.step() once for a group.")
    if len(updates) < right or sum(seen) < sum(sizes):
        cure = "Use the last, smaller group as well." if len(sizes) % _GROUP else "Make one update for each group."
        raise Refused(
            f"{said} your function makes {plural(len(updates), 'update')} from {plural(sum(seen), 'image')}; the epoch has {right} groups "
            f"and {sum(sizes)} images. {cure}"
        )
    _compare(said, sizes, [p.detach() for p in model.parameters()])
    value, loss = checking.number(result, "the mean loss of an image"), _mean_loss(sizes)
    if not math.isclose(value, loss, rel_tol=1e-4):  # the mean of the batches' means is off by 9e-4
        raise Refused(f"{said} you returned {value:.5g}; the mean loss of an image is {loss:.5g}. Divide the sum of all losses by all images.")


def _compare(said: str, sizes: tuple[int, ...], mine: list[Any]) -> None:
    """Refuse parameters that differ from those after one update for each group. If a usual mistake explains them, the refusal names it."""
    import torch

    def same(other: list[Any]) -> bool:
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(mine, other, strict=True))

    if same(_reference(sizes)):
        return
    if same(_reference(sizes, divided=False)):
        raise Refused(f"{said} your gradients are the sum of {_GROUP} means, so each update is {_GROUP} times too long. Divide each loss.")
    if same(_reference(sizes, piled=True)) or same(_reference(sizes, piled=True, divided=False)):
        raise Refused(f"{said} the second update still holds the gradients of the first group. Call optimizer.zero_grad() for each group.")
    if same(_reference(sizes, last=True)):
        raise Refused(f"{said} each update knows only the last batch of its group. Call optimizer.zero_grad() once for a group, not for each batch.")
    if same(_reference(sizes, by_group=True)):
        raise Refused(f"{said} the last group is smaller, and you divide by {_GROUP} there too. Divide by the images that the group really has.")
    raise Refused(
        f"{said} the parameters after the epoch are not those of one update for each group, made from the mean over all its images. "
        "Weigh each batch by its number of images."
    )

# %% wrong: Divide each loss
from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    batches, total = list(batches), 0.0
    for number, (images, labels) in enumerate(batches, 1):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        total += loss.item()
        if number % group == 0 or number == len(batches):
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)

# %% wrong: you divide by 3 there too
from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    batches, total = list(batches), 0.0
    for number, (images, labels) in enumerate(batches, 1):
        loss = cross_entropy(model(images), labels)
        (loss / group).backward()
        total += loss.item()
        if number % group == 0 or number == len(batches):
            optimizer.step()
            optimizer.zero_grad()
    return total / len(batches)

# %% wrong: Use the last, smaller group as well
from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    total = 0.0
    for number, (images, labels) in enumerate(batches, 1):
        loss = cross_entropy(model(images), labels)
        (loss / group).backward()
        total += loss.item()
        if number % group == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / number

# %% wrong: Call optimizer.step() once for a group
from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    total, seen = 0.0, 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        (loss / group).backward()
        optimizer.step()
        total, seen = total + loss.item() * len(labels), seen + len(labels)
    return total / seen

# %% wrong: still holds the gradients of the first group
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        count = sum(len(labels) for _, labels in part)
        for images, labels in part:
            loss = cross_entropy(model(images), labels, reduction="sum")
            (loss / count).backward()
            total += loss.item()
        optimizer.step()
        seen += count
    return total / seen

# %% wrong: only the last batch of its group
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        for images, labels in part:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            total, seen = total + loss.item() * len(labels), seen + len(labels)
        optimizer.step()
    return total / seen

# %% wrong: 24 images at once
import itertools

import torch
from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        images, labels = (torch.cat(each) for each in zip(*part, strict=True))
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total, seen = total + loss.item() * len(labels), seen + len(labels)
    return total / seen

# %% wrong: Call backward() for each batch
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        count = sum(len(labels) for _, labels in part)
        optimizer.zero_grad()
        loss = sum(cross_entropy(model(images), labels, reduction="sum") for images, labels in part)
        (loss / count).backward()
        optimizer.step()
        total, seen = total + loss.item(), seen + count
    return total / seen

# %% wrong: Weigh each batch by its number of images
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, total, seen = iter(batches), 0.0, 0
    while part := list(itertools.islice(iterator, group)):
        optimizer.zero_grad()
        for images, labels in part:
            loss = cross_entropy(model(images), labels)
            (loss / len(part)).backward()
            total, seen = total + loss.item() * len(labels), seen + len(labels)
        optimizer.step()
    return total / seen

# %% wrong: Divide the sum of all losses by all images
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, losses = iter(batches), []
    while part := list(itertools.islice(iterator, group)):
        count = sum(len(labels) for _, labels in part)
        optimizer.zero_grad()
        for images, labels in part:
            loss = cross_entropy(model(images), labels) * len(labels) / count
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return sum(losses)

# %% wrong: With five batches, the last of 2 images and group=3 you returned
import itertools

from torch.nn.functional import cross_entropy


def train_epoch(model, optimizer, batches, group):
    """Make one update for each `group` batches; return the mean loss of an image as a plain number."""
    iterator, losses = iter(batches), []
    while part := list(itertools.islice(iterator, group)):
        count = sum(len(labels) for _, labels in part)
        optimizer.zero_grad()
        for images, labels in part:
            loss = cross_entropy(model(images), labels)
            (loss * len(labels) / count).backward()
            losses.append(loss.item())
        optimizer.step()
    return sum(losses) / len(losses)
