"""06.7: wait once."""

# %% exercise
id = "06.7"
title = "wait once"
answer_name = "frugal"
live = True
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo"]

# %% stub
def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    ...  # as epoch above, but read nothing inside the loop

# %% hint
# A sum of tensors is a tensor. The host waits only when the program reads its value.

# %% hint
# In the loop: total = total + loss.detach(). After the loop: total.item(), once. The same for the
# right answers.

# %% solution
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0  # they become tensors with the first sum, on the device of the losses
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        right = right + (scores.argmax(1) == labels).sum()
    return total.item(), right.item()

# %% check
import math
from typing import Any
from gpulab import devices
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.training import hidden_waits
from gpulab.training.backend_switches import threads
from gpulab.units import plural

_BATCHES = 8
_MOST_WAITS = 3
_MORE_EPOCHS = 16  # joined into a long one: in 8 steps, a loop that reads every 100th loss waits only once


def _training() -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and some batches, the same ones each time."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        batches = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(_BATCHES)]
    return model, torch.optim.SGD(model.parameters(), lr=0.1), batches


def wasteful_epoch(model: Any, optimizer: Any, batches: Any) -> tuple[float, int]:
    """Train for an epoch as the notebook first does, without its check for nan; return the sum of the losses and the count of right answers."""
    import torch

    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
        right += int((scores.argmax(1) == labels).sum())
    return total, right


def check(answer: Any) -> str:
    with threads(1, devices.Device("cpu")):  # on a busy machine such small steps take thirty times longer with two threads
        return _frugal(answer)


def _frugal(answer: Any) -> str:
    import torch

    mine, mine_optimizer, batches = _training()
    result = checking.call(answer, mine, mine_optimizer, batches)
    model, optimizer, batches = _training()
    before = [p.detach().clone() for p in model.parameters()]
    expected = wasteful_epoch(model, optimizer, batches)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Refused(f"Your function returned {checking.describe(result)}; the check expects two numbers: the sum of the losses and the count of right answers.")
    if any(isinstance(value, torch.Tensor) for value in result):
        raise Refused("You return tensors, so the next reader has to wait for them. Read both once, at the end.")
    if all(torch.equal(a, b) for a, b in zip(before, mine.parameters(), strict=True)):
        raise Refused("Your loop does not train: the parameters have not changed. Keep backward() and optimizer.step().")
    total, right = (checking.number(value, "two plain numbers") for value in result)
    if not all(torch.allclose(a, b) for a, b in zip(model.parameters(), mine.parameters(), strict=True)):
        raise Refused("Your loop trains another model than epoch does. Change only the reading, not the training.")
    if not math.isclose(total, expected[0], rel_tol=1e-3) or right != expected[1]:
        raise Refused(
            f"You returned {total:.4g} and {right:g}; the losses add up to {expected[0]:.4g}, and {expected[1]} answers are right."
        )
    # The batches are on the model's device already, so `.to("cpu")` is not needed to move them there: it counts as fetching a value.
    waits = hidden_waits(answer, *_training(), device="cpu", count_to_cpu=True)
    if waits.count > _MOST_WAITS:
        raise Refused(
            f"The host would wait {waits.count} times in {_BATCHES} steps, most often at `{waits.sites[0][0].partition(': ')[2]}`. "
            "Add up tensors in the loop, and read them after it."
        )
    mine, mine_optimizer, batches = _training()
    longer = hidden_waits(answer, mine, mine_optimizer, batches * _MORE_EPOCHS, device="cpu", count_to_cpu=True)
    if longer.count > _MOST_WAITS:
        raise Refused(
            f"In {_BATCHES} steps the host would wait {plural(waits.count, 'time')}, in {_BATCHES * _MORE_EPOCHS} steps "
            f"{longer.count} times, most often at `{longer.sites[0][0].partition(': ')[2]}`. A value that is read "
            "every n steps makes a longer epoch wait more often."
        )
    return f"{plural(waits.count, 'wait')} in all instead of {2 * _BATCHES} ({3 * _BATCHES} with the check for nan), with the same numbers: the accelerator always has work in its queue."

# %% wrong: would wait 16 times
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += int((scores.argmax(1) == labels).sum())
    return total, right

# %% wrong: would wait 16 times
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        with torch.inference_mode():
            total += loss.item()
            right += int((scores.argmax(1) == labels).sum())
    return total, right

# %% wrong: would wait 16 times
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total += loss.detach().to("cpu").numpy()
        right += (scores.argmax(1) == labels).sum().to("cpu").numpy()
    return float(total), int(right)

# %% wrong: You return tensors
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        right = right + (scores.argmax(1) == labels).sum()
    return total, right

# %% wrong: the losses add up to
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    right = 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        right = right + (scores.argmax(1) == labels).sum()
    return loss.item(), right.item()

# %% wrong: In 8 steps the host would wait 3 times, in 128 steps 4 times, most often at
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right, step = 0.0, 0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        right = right + (scores.argmax(1) == labels).sum()
        if step % 100 == 0:
            print(loss.item())
        step += 1
    return total.item(), right.item()

# %% wrong: does not train
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    return 8.7, 40

# %% wrong: another model than epoch
import torch


def frugal(model, optimizer, batches):
    """Train for an epoch; return two plain numbers: the sum of the losses and the count of right answers."""
    total, right = 0.0, 0
    for inputs, labels in batches:
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        right = right + (scores.argmax(1) == labels).sum()
    return total.item(), right.item()
