"""07.13: a budget on your machine."""

# %% exercise
id = "07.13"
title = "a budget on your machine"
answer_name = "light"
limit_seconds = 120.0
loads = ["torch", "torch.optim", "torch._dynamo", "sklearn.datasets"]
machine = "the time of a call on your processor"
unkept = "a trained model is larger than what is kept"

# %% stub
light = ...  # a model; begin with gl.lessons.trained()

# %% hint
# Which technique of this notebook saves time on any processor? Begin with it, then fine-tune.

# %% hint
# Removing channels saves time and bytes. Remove more than half of them, and fine-tune for some
# epochs to win the accuracy back.

# %% hint
# If the file is still too large, also set weights to zero (and fine-tune), or store 8 bits.

# %% solution
import gpulab as gl

light = gl.lessons.trained()
light = gl.compression.prune(light, 0.6, structured=True)  # removing channels saves time
gl.training.fit("digits-cnn", model=light, epochs=5, device="cpu")

# %% check
import math
import statistics
from typing import Any
from gpulab import compression, training
from gpulab.lessons import checking, _lighter
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, format_ratio


def check(answer: Any) -> str:
    import torch

    if not isinstance(answer, torch.nn.Module):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a model (a torch.nn.Module).")
    limits = _lighter.budget()
    model = compression.finish(answer).cpu()
    right = training.evaluate(model, _lighter.TASK)
    nbytes = compression.size_on_disk(model)
    found = f"{100 * right.ratio:.1f} % right, {nbytes:,} bytes"
    if right.ratio < limits.least_accuracy:
        raise Refused(f"{found}: less than {limits.least_accuracy:.0%} right. Did you fine-tune after each step that loses accuracy?")
    if nbytes > limits.largest_file:
        raise Refused(f"{found}: the file is over {limits.largest_file:,} bytes. Zeros, fewer bits and fewer channels make it smaller. Which did you not use yet?")
    share, sure = _share_of_time(model, limits)
    took = f"{found}, {share:.2f} of the original time"
    if not sure:
        took += " (the median of several measurements, because your machine was busy or the time is close to the limit)"
    if share > limits.longest_time:
        raise Refused(
            f"{took}: more than the limit of {limits.longest_time:g}. Zeros and rounded weights save bytes. What saves time on your machine?"
        )
    before = compression.size_on_disk(_lighter.trained())
    return f"{took}: within the budget. A speed-up of {format_ratio(1 / share)}, and {format_bytes(nbytes)} instead of {format_bytes(before)}."


_ROUND_SECONDS = (0.25, 0.5, 1.0, 2.0)  # each longer than the one before: a short disturbance is a smaller part of it


def _share_of_time(model: Any, limits: _lighter.Budget) -> tuple[float, bool]:
    """Return a model's time over the trained one's, and whether a whole interval lies on one side of the limit.

    An interval that reaches over the limit answers nothing, so it is measured again, longer; in the end the median decides.
    """
    shares = []
    for seconds in _ROUND_SECONDS:
        row = _lighter.time_against_trained(model, limits.batch, seconds)
        shares.append(1 / row.speedup if row.speedup else math.inf)
        if row.speedup_interval is not None:
            most, least = (1 / end for end in row.speedup_interval)
            if least > limits.longest_time or most <= limits.longest_time:
                return shares[-1], True
    return statistics.median(shares), False

# %% wrong: the file is over
import gpulab as gl

light = gl.lessons.trained()

# %% wrong: Did you fine-tune
import gpulab as gl

light = gl.lessons.trained()
light = gl.compression.prune(light, 0.6, structured=True)

# %% wrong: save bytes
import gpulab as gl

light = gl.lessons.trained()
light = gl.compression.prune(light, 0.85)
gl.training.fit("digits-cnn", model=light, epochs=3, device="cpu")

# %% wrong: save bytes
import gpulab as gl

light = gl.lessons.trained()
light = gl.compression.quantize(light, bits=4)

# %% wrong: expects a model
light = 0.95

# %% wrong: expects a model
light = {'accuracy': 0.95}
