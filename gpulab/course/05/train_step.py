"""05.15: take it home: a mixed-precision training step."""

# %% exercise
id = "05.15"
title = "take it home: a mixed-precision training step"
answer_name = "train_step"
live = True
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo"]

# %% stub
def train_step(model, optimizer, scaler, batches, max_norm):
    ...  # one step over all micro-batches; returns the mean loss

# %% hint
# Clear the gradients once. Then, for each micro-batch: forward pass and loss under autocast, and a
# backward pass of the scaled loss. Backward passes add to the gradients by themselves.

# %% hint
# Divide each loss by the number of micro-batches before its backward pass; the sum is then the
# mean.

# %% hint
# After the loop, once: scaler.unscale_(optimizer), torch.nn.utils.clip_grad_norm_(model.parameters(),
# max_norm), scaler.step(optimizer), scaler.update().

# %% solution
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_ROWS, _PARTS, _RATE = 16, 4, 0.5
_FAR, _NEAR = 1e9, 0.05  # a norm that no gradient reaches, and one that every gradient here exceeds
_OFF = 0.05  # as a share of the distance that the weights move in float32; rounding to float16 changes it by less than 0.01


def _network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))


class _Case:
    """A small model, its optimizer and scaler, some micro-batches, and what one float32 step over all of them gives."""

    def __init__(self, max_norm: float, scale: float = 2.0**10, huge: bool = False, parts: int = _PARTS) -> None:
        import torch

        generator = torch.Generator().manual_seed(5)
        self.model = _network()
        for p in self.model.parameters():
            p.data = 0.4 * torch.randn(p.shape, generator=generator)
        # The micro-batches differ, so that the gradient of one is not that of all together.
        self.batches = [
            (torch.randn(_ROWS, 12, generator=generator) + part, torch.randint(part, 5, (_ROWS,), generator=generator))
            for part in range(parts)
        ]
        if huge:
            x, y = self.batches[1]
            self.batches[1] = 1e6 * x, y  # infinite in float16
        self.max_norm, self.scale = max_norm, scale
        # Weight decay moves the weights even if gradients that are not finite were replaced by zeros.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE, weight_decay=0.1 if huge else 0.0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)
        self.before = self.weights()
        self.seen: set[str] = set()
        self.rows: list[int] = []
        self.waiting: set[int] = set()  # micro-batches, by their place in memory, that await their backward pass
        self.piled = False  # whether two of them did at once
        self.model[0].register_forward_hook(self._note)

    def _note(self, layer: Any, inputs: Any, output: Any) -> None:
        if output.requires_grad:
            self.seen.add(str(output.dtype).removeprefix("torch."))
            self.rows.append(len(inputs[0]))
            place = inputs[0].data_ptr()
            self.waiting.add(place)
            self.piled |= len(self.waiting) > 1
            output.register_hook(lambda gradient: self.waiting.discard(place))

    def weights(self) -> Any:
        import torch

        return torch.cat([p.detach().flatten().clone() for p in self.model.parameters()])

    def expected(self) -> tuple[Any, float, float]:
        """Return the weights after one float32 step from the current weights, the loss, and the gradient's norm before clipping."""
        import torch

        model = _network()
        model.load_state_dict(self.model.state_dict())
        loss = torch.stack([torch.nn.functional.cross_entropy(model(x), y) for x, y in self.batches]).mean()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.max_norm))
        after = torch.cat([(p - _RATE * p.grad).detach().flatten() for p in model.parameters()])
        return after, float(loss.detach()), norm

    def step(self, answer: Any) -> Any:
        """Call the learner's function; return ``_NOTHING`` if it trains but returns None, which still counts as an attempt."""
        before = self.weights()

        def called(*args: Any) -> Any:
            result = answer(*args)
            return _NOTHING if result is None and (self.seen or not bool((self.weights() == before).all())) else result

        if not callable(answer):
            return checking.call(answer)
        if checking.is_empty(answer):
            raise NotAttempted
        try:
            return checking.call(called, self.model, self.optimizer, self.scaler, list(self.batches), self.max_norm)
        except Refused:
            _float32(self)  # GradScaler raises for float16 weights; then this refusal names the cause
            raise


_NOTHING = object()


def check(answer: Any) -> str:
    for parts in (_PARTS, _PARTS - 1):
        plain = _Case(_FAR, parts=parts)
        wanted, loss, _ = plain.expected()
        said = plain.step(answer)
        _types(plain)
        _same(plain, wanted, f"With {parts} micro-batches and a max_norm that no gradient reaches")
        if said is _NOTHING:
            raise Refused("The step is right, but your function returns nothing. The check expects the mean loss, as a number.")
        value = checking.number(said, "the mean loss")
        if math.isclose(value, loss * plain.scale, rel_tol=0.02):
            raise Refused(f"You return {value:.4g}, the loss times the scale. Return the loss as it is, {loss:.4g}: scale only what goes backward.")
        if not math.isclose(value, loss, rel_tol=0.02):
            raise Refused(f"You return {value:.4g}; the mean loss over the {parts} micro-batches is {loss:.4g}.")
    # The scale is 1, since unscale_ also divides gradients left from an earlier step by the scale, and would make them too small to notice.
    twice = _Case(_FAR, scale=1.0)
    twice.step(answer)
    between, (wanted, _, _) = twice.weights(), twice.expected()
    try:
        twice.step(answer)
    except Refused as failed:
        raise Refused(f"The first step is right, a second one fails. Call scaler.update() at the end of each step. {failed}") from failed
    moved, should = twice.weights() - between, wanted - between
    if float((moved - should).norm()) > _OFF * float(should.norm()):
        raise Refused(
            "The first step is right, the second is not: gradients of the step before are still there. Call optimizer.zero_grad() at the "
            "beginning of each step."
        )
    clipped = _Case(_NEAR)
    wanted, _, norm = clipped.expected()
    clipped.step(answer)
    _clipped(clipped, wanted, norm)
    _overflow(answer)
    return (
        "This is the step of a real training script: accumulate, unscale, clip, step, update. On a GPU with bfloat16 Tensor Cores change the "
        "dtype, and pass GradScaler(enabled=False); nothing else changes."
    )


def _float32(case: _Case) -> None:
    if any(str(p.dtype) != "torch.float32" for p in case.model.parameters()):
        raise Refused("The model's weights are no longer float32. Autocast needs no .half(): the weights stay the float32 master weights.")


def _types(case: _Case) -> None:
    _float32(case)
    if not case.seen:
        raise Refused("Your function never called the model with gradients on. Run model(x) for each micro-batch.")
    if case.seen != {"float16"}:
        raise Refused(
            f"The first layer ran in {' and '.join(sorted(case.seen))}; the check expects float16. Put the forward pass and the loss under "
            "torch.autocast(x.device.type, dtype=torch.float16)."
        )
    if max(case.rows) > _ROWS:
        raise Refused(
            f"The model got {max(case.rows)} rows at once; a micro-batch has {_ROWS}. Run the micro-batches one after the other: accumulation "
            "is there to save memory."
        )
    if case.piled:
        raise Refused(
            "A micro-batch went through the model before the backward pass of the one before it, so the activations of both are in memory. "
            "Call backward() for each micro-batch: accumulation is there to save memory."
        )


def _same(case: _Case, wanted: Any, where: str) -> None:
    """Refuse a step after which the weights are not where a float32 step takes them; name the likely mistake."""
    import torch

    moved, should = case.weights() - case.before, wanted - case.before
    if not bool(torch.isfinite(moved).all()):
        raise Refused("The weights are infinite or nan after the step. Divide the gradients by the scale: scaler.step(optimizer) does.")
    if float((moved - should).norm()) <= _OFF * float(should.norm()):
        return
    ratio, cosine = float(moved.norm() / should.norm()), float(torch.nn.functional.cosine_similarity(moved, should, dim=0))
    if ratio < 1e-3:
        raise Refused(f"{where}, the weights hardly moved. Does the function call scaler.step(optimizer), with the scaler and optimizer that it gets?")
    parts, count = len(case.batches), len(case.rows)
    if cosine > 0.99 and math.isclose(ratio, parts, rel_tol=0.1):
        raise Refused(
            f"{where}, the weights moved {parts} times too far: that is the gradient of the sum of {parts} losses. Divide each loss by "
            "len(batches) before its backward pass."
        )
    if cosine > 0.99 and ratio > 1000:
        raise Refused(f"{where}, the weights moved {ratio:,.0f} times too far: the gradients still have the scale. Use scaler.step(optimizer).")
    if count < parts:
        raise Refused(f"{where}, the model ran on {count} of {parts} micro-batches. Run all of them before the step.")
    if cosine > 0.99:
        raise Refused(f"{where}, the weights moved {ratio:.2g} times as far as in float32. Divide each loss by len(batches), and clip to max_norm.")
    raise Refused(
        f"{where}, the weights moved elsewhere than in float32. Clear the gradients once, before the loop, and take one step, after it: the "
        "gradients of all micro-batches must add up. Take it with the optimizer that the function gets."
    )


def _clipped(case: _Case, wanted: Any, norm: float) -> None:
    moved, should = float((case.weights() - case.before).norm()), float((wanted - case.before).norm())
    facts = f"With max_norm={case.max_norm:g} and gradients of norm {norm:.2g}"
    if moved < 0.01 * should:
        raise Refused(
            f"{facts}, the weights hardly moved: you clipped the scaled gradients, and the step divided what was left by the scale. Call "
            "scaler.unscale_(optimizer) before you clip."
        )
    if moved > 1.5 * should:
        raise Refused(f"{facts}, the weights moved {moved / should:,.0f} times too far: the norm of the gradients was not limited before the step. torch.nn.utils.clip_grad_norm_ does that.")
    _same(case, wanted, facts)


def _overflow(answer: Any) -> None:
    """Refuse an answer that changes the weights or keeps the scale after a micro-batch overflows in float16."""
    case = _Case(_NEAR, huge=True)
    case.step(answer)
    if not bool((case.weights() == case.before).all()):
        raise Refused(
            "One micro-batch overflowed in float16, and the weights changed all the same. Let scaler.step(optimizer) take the step: it skips "
            "the step if a gradient is infinite or nan."
        )
    if not case.scaler.get_scale() < case.scale:
        raise Refused(
            "One micro-batch overflowed in float16, and the scale is as high as before. Call scaler.update() at the end of the step: after "
            "an overflow it halves the scale."
        )

# %% wrong: clipped the scaled gradients
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the gradient of the sum of 4 losses
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        total += loss.item() / len(batches)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: Clear the gradients once, before the loop
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the second is not
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: norm of the gradients was not limited before the step
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the weights changed all the same
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return total

# %% wrong: Call scaler.update() at the end of each step
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return total

# %% wrong: the scale is as high as before
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if torch.isfinite(norm):
        optimizer.step()
    return total

# %% wrong: no longer float32
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    model.half()
    optimizer.zero_grad()
    for x, y in batches:
        loss = cross_entropy(model(x.half()), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the check expects float16
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the loss times the scale
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = scaler.scale(cross_entropy(model(x), y) / len(batches))
        loss.backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the check expects the mean loss, a plain number
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: a function to call
train_step = 1.0

# %% wrong: Call backward() for each micro-batch
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        total += loss
    scaler.scale(total).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total.item()

# %% wrong: With 3 micro-batches
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total

# %% wrong: the weights changed all the same
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    total = 0.0
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = cross_entropy(model(x), y) / len(batches)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return total

# %% wrong: rows at once
import torch
from torch.nn.functional import cross_entropy


def train_step(model, optimizer, scaler, batches, max_norm):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16):
        loss = cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
