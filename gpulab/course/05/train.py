"""05.9: save the run with a scaler."""

# %% exercise
id = "05.9"
title = "save the run with a scaler"
answer_name = "train"
live = True
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo"]

# %% stub
def train(model, batches):
    ...  # the loop above, under autocast, with loss scaling

# %% hint
# Three things are needed: multiply the loss before the backward pass, divide the gradients before
# the optimizer's step, and skip the step if a gradient overflowed.

# %% hint
# torch.amp.GradScaler("cpu") does all three. Create it once, before the loop. In the loop:
# scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update().

# %% solution
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

# %% check
import math
from collections.abc import Sequence
from typing import Any
from gpulab import training
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_WEIGHT = 1e-6
_RATE = 0.1 / _WEIGHT
_BATCH, _BATCHES = 64, 40
# Shares of the distance that the weights move in float32. With gradients of zero they move less than the first share. Trained with a
# scaler, they move nearly as far as in float32, and end nearer than the second share to the place where float32 takes them.
_HARDLY, _ELSEWHERE = 0.2, 0.3


def _batches() -> list[tuple[Any, Any]]:
    """Forty batches of the digits, about two passes over the training set."""
    data = training.task("digits-mlp").train
    starts = [k * _BATCH % (len(data) - _BATCH) for k in range(_BATCHES)]
    return [data[start : start + _BATCH] for start in starts]


def _reference(batches: Sequence[tuple[Any, Any]]) -> Any:
    """Train in float32 and return the model."""
    import torch
    from torch.nn import functional

    model = training.task("digits-mlp").make_model(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    for x, y in batches:
        optimizer.zero_grad()
        loss: Any = _WEIGHT * functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return model


def check(answer: Any) -> str:
    import torch

    task, batches = training.task("digits-mlp"), _batches()
    model = task.make_model(seed=1)
    before = [p.detach().clone() for p in model.parameters()]
    seen: set[str] = set()
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))

    rows: list[int] = []

    def note(module: Any, args: Any, output: Any) -> None:
        if torch.is_grad_enabled():  # a forward pass without gradients trains nothing, so it may run in float32
            seen.add(str(output.dtype))
            rows.append(len(output))

    layer.register_forward_hook(note)
    stale: list[bool] = []  # for each backward pass, whether it adds to gradients that are there already
    layer.weight.register_hook(lambda gradient: stale.append(layer.weight.grad is not None and bool(layer.weight.grad.any())))
    steps = _Steps(model)
    failed: Refused | None = None
    try:
        with steps:
            _returned(answer, model, batches)
    except Refused as refused:
        failed = refused
    if any(p.dtype is not torch.float32 for p in model.parameters()):
        raise Refused("The model's weights are no longer float32. Autocast needs no .half(): the weights stay the float32 master weights.")
    if failed is not None:
        raise failed
    if not seen:
        raise NotAttempted
    if seen != {"torch.float16"}:
        raise Refused(
            f"The layers ran in {', '.join(sorted(seen))}. Keep the forward pass under autocast to float16: the task is to save the float16 run, not to avoid it."
        )
    steps.check()
    after = list(model.parameters())
    if not all(bool(torch.isfinite(p).all()) for p in after):
        raise Refused(
            "The weights are infinite or nan at the end. A scaled loss makes scaled gradients: they must be divided by the scale again "
            "before the optimizer takes its step. scaler.step(optimizer) does that."
        )
    should = list(_reference(batches).parameters())
    moved, wanted, off = _apart(after, before), _apart(should, before), _apart(after, should)
    if moved < _HARDLY * wanted:
        raise Refused(
            "The weights hardly moved: the gradients are still zero. Multiply the loss before backward(), by scaler.scale(loss). If you "
            'do that already: torch.amp.GradScaler() is for CUDA and switches itself off without it; write torch.amp.GradScaler("cpu").'
        )
    if any(stale):
        raise Refused(
            "A backward pass began while the gradients of the batch before were still there, and added to them. Make a step for each batch, "
            "and call optimizer.zero_grad() in each step, as the loop above does."
        )
    if off > _ELSEWHERE * wanted and sum(rows) < _BATCH * _BATCHES:
        raise Refused(f"The model ran on {sum(rows) / _BATCH:.3g} of {_BATCHES} batches. Train on all of them, one step for each.")
    if off > _ELSEWHERE * wanted and steps.count > _BATCHES:
        raise Refused(
            f"The optimizer stepped {steps.count} times for {_BATCHES} batches. scaler.step(optimizer) calls optimizer.step() itself, so one "
            "call of it for each batch is enough."
        )
    if off > _ELSEWHERE * wanted:
        raise Refused(
            f"The weights moved {moved / wanted:.3g} times as far as in float32, to another place. Divide the gradients by the scale "
            "before the step: scaler.step(optimizer) does, and skips a step that overflowed. Keep the loss and the rate as they are."
        )
    right = training.evaluate(model, task).ratio
    return f"Saved: the weights end where float32 takes them (off by {off / wanted:.1%} of the distance), and {right:.0%} of the test digits are right."


def _apart(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """Return the Euclidean distance between two sets of weights."""
    return math.hypot(*(float((one - other).detach().norm()) for one, other in zip(ones, others, strict=True)))


class _Steps:
    """Record which optimizers step a model's weights and at what rate, including steps inside ``GradScaler.step``.

    The final weights alone are not enough. A run that drops the factor of a millionth from the loss and uses a rate of 0.1 ends at the
    same weights, but it avoids the problem instead of solving it.
    """

    def __init__(self, model: Any) -> None:
        self._own = {id(p) for p in model.parameters()}
        self._made: dict[tuple[type, float], None] = {}
        self.count = 0

    def __enter__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._handle = register_optimizer_step_pre_hook(self._note)

    def __exit__(self, *raised: object) -> None:
        self._handle.remove()

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.count += 1
        for group in optimizer.param_groups:
            if any(id(p) in self._own for p in group["params"]):
                self._made[type(optimizer), float(group["lr"])] = None

    def check(self) -> None:
        """Refuse an optimizer other than SGD and a rate other than the task's. Updates without an optimizer are not recorded here."""
        import torch

        for kind, rate in self._made:
            if not issubclass(kind, torch.optim.SGD):
                raise Refused(
                    f"Your optimizer is {kind.__name__}; it stays SGD, as in the loop above. Repair the gradients, not the optimizer."
                )
            if not math.isclose(rate, _RATE, rel_tol=0.01):
                raise Refused(
                    f"Your optimizer's rate is {rate:g}; it stays 0.1 / 1e-6, and the loss stays a millionth. "
                    "Repair the gradients, not the loss."
                )


def _returned(answer: Any, model: Any, batches: Sequence[tuple[Any, Any]]) -> None:
    """Call the learner's function. It returns None, which ``checking.call`` alone would not accept as an attempt."""
    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a function to call.")

    def trained(*args: Any) -> bool:
        answer(*args)
        return True

    checking.call(trained, model, list(batches))

# %% wrong: the gradients are still zero
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% wrong: switches itself off without it; write torch.amp.GradScaler("cpu")
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler(enabled=False)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

# %% wrong: divided by the scale
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        optimizer.step()

# %% wrong: not to avoid it
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16, enabled=False):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% wrong: no longer float32
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% wrong: rate is 0.1; it stays 0.1 / 1e-6, and the loss stays a millionth
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% wrong: rate is 0.1; it stays 0.1 / 1e-6
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

# %% wrong: it stays SGD
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

# %% wrong: ran on 20 of 40 batches
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches[::2]:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

# %% wrong: stepped 80 times for 40 batches
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        optimizer.step()
        scaler.update()

# %% wrong: a function to call
train = 65536.0

# %% wrong: optimizer.zero_grad() in each step
import torch
from torch.nn.functional import cross_entropy


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 1e-6)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
