"""03.8: half of the traffic."""

# %% exercise
id = "03.8"
title = "half of the traffic"
answer_name = "standardize"
live = True
limit_seconds = 90.0
loads = ["torch", "torch.optim", "torch._dynamo", "torch._inductor", "torch.utils.data", "torch.utils.flop_counter"]

# %% stub
def standardize(x, mean, scale, gain, shift):
    ...  # (x - mean) / scale * gain + shift, with at most half of the bytes

# %% hint
# mean, scale, gain and shift are plain numbers. Which operations need the array at all?

# %% hint
# (x - mean) / scale * gain + shift is a straight line in x: x * a + b. Compute a and b before you
# use x.

# %% solution
def standardize(x, mean, scale, gain, shift):
    a = gain / scale  # numbers, not arrays: computed once
    return x * a + (shift - mean * a)  # two passes over the array instead of four

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes

# (mean, scale, gain, shift): ordinary ones, negative ones, and ones where a lost term would show.
_SETTINGS = ((0.5, 2.0, 3.0, 1.0), (-1.0, 0.25, -2.0, 0.5), (10.0, 5.0, 0.5, -7.0))
_ELEMENTS = 1 << 16
# Both forms round in float32 a few times; results are of order 10.
_CLOSE = 1e-4
_HALF = 0.5


def standardize(x: Any, mean: float, scale: float, gain: float, shift: float) -> Any:
    """Compute the expression of exercise 03.8 in its original form, with four operators."""
    return (x - mean) / scale * gain + shift


def check(answer: Any) -> str:
    import torch

    from gpulab import memory
    from gpulab.errors import InputError

    x = torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(3))
    ask = checking.in_turn(answer)
    for setting in _SETTINGS:
        given = x.clone()
        result = ask(f"For mean, scale, gain, shift = {setting}", given, *setting)
        expected = standardize(x.double(), *setting)
        if not isinstance(result, torch.Tensor):
            raise Refused(f"Your function returned {checking.describe(result)}; the check expects a tensor.")
        if result.shape != x.shape or not torch.allclose(result.double(), expected, rtol=_CLOSE, atol=_CLOSE):
            raise Refused(f"The result differs for mean, scale, gain, shift = {setting}. Only the traffic may change.")
        if not torch.equal(given, x):
            raise Refused("Your function changes x itself. The caller may need x again, so leave it unchanged.")
    slow, slow_short = (memory.traffic(standardize, part, *_SETTINGS[0]) for part in (x, x[: _ELEMENTS // 2]))
    try:
        fast, fast_short = (memory.traffic(answer, part.clone(), *_SETTINGS[0]) for part in (x, x[: _ELEMENTS // 2]))
    except InputError as error:
        raise Refused(str(error)) from error
    # Only bytes that grow with the array count. An answer may keep a and b in tensors of one number each, and with their few bytes an exact
    # half would be refused.
    ratio = (fast.nbytes - fast_short.nbytes) / (slow.nbytes - slow_short.nbytes)
    if fast.nbytes < fast.compulsory_bytes:
        raise Refused(
            f"PyTorch moved only {format_bytes(fast.nbytes)}, less than reading x and writing the result: "
            "your function computes where the bytes are not counted. Use PyTorch's operators."
        )
    count = len(fast.operators)
    moved = f"{format_bytes(slow.nbytes)} became {format_bytes(fast.nbytes)} in {count} operator{'s' if count != 1 else ''}"
    if ratio <= _HALF:
        return f"{moved}: {ratio:.0%} of the traffic and the same numbers."
    if any(each.name.partition(".")[2].partition(".")[0].endswith("_") for each in fast.operators) and ratio > 1 - 1e-9:
        raise Refused(f"{moved}. In-place operators save memory, not traffic: every operator still reads and writes the array.")
    compiled = " What torch.compile fuses does not count: rewrite the formula itself." if hasattr(answer, "_torchdynamo_orig_callable") else ""
    raise Refused(
        f"{moved}: {ratio:.0%} is left.{compiled} Each operator on the array reads it and writes it. How few operators do you need?"
    )

# %% wrong: In-place operators save memory, not traffic
def standardize(x, mean, scale, gain, shift):
    y = x.clone()
    y.sub_(mean).div_(scale).mul_(gain).add_(shift)
    return y

# %% wrong: is left
def standardize(x, mean, scale, gain, shift):
    return (x - mean) * (gain / scale) + shift

# %% wrong: 100% is left
def standardize(x, mean, scale, gain, shift):
    return (x - mean) / scale * gain + shift

# %% wrong: The result differs
def standardize(x, mean, scale, gain, shift):
    return x * (gain / scale) + shift

# %% wrong: changes x itself
def standardize(x, mean, scale, gain, shift):
    a = gain / scale
    return x.mul_(a).add_(shift - mean * a)

# %% wrong: where the bytes are not counted
import torch


def standardize(x, mean, scale, gain, shift):
    return torch.from_numpy((x.numpy() - mean) / scale * gain + shift)

# %% wrong: expects a tensor
def standardize(x, mean, scale, gain, shift):
    return 3
