"""08.15: the same losses under torchrun."""

# %% exercise
id = "08.15"
title = "the same losses under torchrun"
answer_name = "script"
live = True
limit_seconds = 270.0
loads = ["torch", "torch._dynamo", "ipyparallel"]
answer_is_file = True

# %% stub
script = ...  # ranks.export_script("my_training.py", your_function)

# %% hint
# data_parallel returns on each rank the losses of that rank's part. How do you get the loss of the
# whole batch from them?

# %% hint
# Write a function that calls data_parallel and makes a tensor of the list. Add it up over the ranks
# with dist.all_reduce, divide by dist.get_world_size(), and return .tolist().

# %% solution
import torch
import torch.distributed as dist

import gpulab as gl


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole_losses():
    losses = torch.tensor(data_parallel())
    dist.all_reduce(losses)  # the sum over the ranks
    return (losses / dist.get_world_size()).tolist()


ranks = gl.parallel.cluster(n=2)  # yours does as well: export_script only writes a file
script = ranks.export_script("my_training.py", whole_losses)

# %% check
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from gpulab import training
from gpulab.errors import RankError, shown
from gpulab.lessons import checking, torchrun
from gpulab.lessons.parallel_checks import CrashError
from gpulab.lessons.content import Refused

TASK, STEPS, BATCH, RATE = "digits-mlp", 20, 64, 0.1  # as the notebook's loop has them
_CLOSE = 1e-3  # relative; another order of addition changes a loss by about 1e-6, gradients that are not averaged by far more


def reference() -> list[float]:
    """Return the losses of one process on the whole batches: the notebook's loop."""
    import torch

    job = training.task(TASK)
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss = job.loss(model, job.train[list(range(BATCH * step, BATCH * (step + 1)))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def check(answer: Any) -> str:
    if not isinstance(answer, (str, os.PathLike)):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects the path that export_script returned.")
    try:
        text = Path(answer).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Refused(f"There is no script {shown(os.fspath(answer), 60)}. ranks.export_script(path, function) writes one.") from error
    if "--results" not in text or "init_process_group" not in text:
        raise Refused(f"{Path(answer).name} is no script of ranks.export_script. Write it with that function, so that torchrun can start it.")
    _judge(_results(answer, 2))
    alone = _results(answer, 1)
    try:
        _judge(alone)
    except Refused as error:
        raise Refused("On 2 processes the losses are right, on 1 they are not: take the number of ranks from dist.get_world_size().") from error
    return (
        f"On 2 processes and on 1 the script gives the same {STEPS} losses as one process in the notebook. "
        "It needs nothing of the notebook: it runs wherever torchrun and the libraries that it imports are installed."
    )


def _results(script: str | os.PathLike[str], n: int) -> list[Any]:
    try:
        try:
            return torchrun(script, n)
        except CrashError:  # a right script crashes once in hundreds of runs; a wrong one crashes again
            return torchrun(script, n)
    except RankError as error:
        raise Refused(str(error)) from error


def _judge(results: Sequence[Any]) -> None:
    lists = [_losses(rank, each) for rank, each in enumerate(results)]
    if any(not _same(lists[0], other) for other in lists[1:]):
        raise Refused(
            "The ranks return different losses: each returns that of its own part of the batch. The loss of the whole batch is their mean: "
            "add them up over the ranks and divide."
        )
    wanted = reference()
    if not _near(lists[0][0], wanted[0]):
        raise Refused(
            f"The first loss is {lists[0][0]:.4f}; the check expects {wanted[0]:.4f}. Is the sum over the ranks divided by their "
            "number, do the parts of the processes make up the whole batch, and do all begin with the weights of seed 0?"
        )
    first = next((step for step, (mine, one) in enumerate(zip(lists[0], wanted, strict=True)) if not _near(mine, one)), None)
    if first is not None:
        raise Refused(
            f"From step {first + 1} on the loss differs: {lists[0][first]:.4f}; the check expects {wanted[first]:.4f}. Are the "
            "gradients averaged over the ranks before each step of the optimizer?"
        )


def _losses(rank: int, returned: Any) -> list[float]:
    try:
        values = [float(each) for each in returned]
    except Exception as error:
        raise Refused(f"Rank {rank} returned {checking.describe(returned)}; the check expects a list of {STEPS} losses.") from error
    if len(values) != STEPS:
        raise Refused(f"Rank {rank} returned {len(values)} losses; the check expects {STEPS}, one a step.")
    return values


def _near(one: float, other: float) -> bool:
    return math.isfinite(one) and abs(one - other) <= _CLOSE * max(1.0, abs(other))


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(_near(a, b) for a, b in zip(one, other, strict=True))

# %% wrong: different losses
import torch
import torch.distributed as dist

import gpulab as gl


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


ranks = gl.parallel.cluster(n=2)  # yours does as well: export_script only writes a file
script = ranks.export_script("my_training.py", data_parallel)

# %% wrong: gradients averaged over the ranks
import torch
import torch.distributed as dist

import gpulab as gl


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole_losses():
    losses = torch.tensor(data_parallel())
    dist.all_reduce(losses)  # the sum over the ranks
    return (losses / dist.get_world_size()).tolist()


ranks = gl.parallel.cluster(n=2)  # yours does as well: export_script only writes a file
script = ranks.export_script("my_training.py", whole_losses)

# %% wrong: on 1 they are not
import torch
import torch.distributed as dist

import gpulab as gl


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole_losses():
    losses = torch.tensor(data_parallel())
    dist.all_reduce(losses)  # the sum over the ranks
    return (losses / 2).tolist()


ranks = gl.parallel.cluster(n=2)  # yours does as well: export_script only writes a file
script = ranks.export_script("my_training.py", whole_losses)

# %% wrong: There is no script
script = 'my_training.py'

# %% wrong: expects the path
script = 0

# %% wrong: no script of ranks.export_script
from pathlib import Path

script = Path('mine.py')
script.write_text('print(1)')
