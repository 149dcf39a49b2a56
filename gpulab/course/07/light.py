"""07.13: a budget on your machine."""

# %% exercise
id = "07.13"
title = "a budget on your machine"
answer_name = "light"
limit_seconds = 120.0
loads = ["torch", "torch.optim", "torch._dynamo"]
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
import time
from collections.abc import Callable
from typing import Any
from gpulab import compression, timing, training
from gpulab.lessons import checking, trained
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, format_ratio


_TASK = "digits-cnn"
# In this order: share of right answers; bytes; ratio to the trained network's time; images.
_LEAST_ACCURACY, _LARGEST_FILE, _LONGEST_TIME, _BATCH = 0.95, 14_000, 0.65, 256
# A thread's clock with longer steps than this is too coarse: a batch takes some milliseconds. Windows counts a thread's time in ticks of
# its timer, 1/64 s (PEP 564 measures it for process_time).
_COARSE_SECONDS = 1e-4
_STEPS = 5  # of the clock, of which the shortest counts: a step may be long because the processor itself was taken away
_ANY = 1e30  # tolerance for outputs: two models with different weights are not meant to agree


def check(answer: Any) -> str:
    import torch

    if not isinstance(answer, torch.nn.Module):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a model (a torch.nn.Module).")
    model = compression.finish(answer).cpu()
    right = training.evaluate(model, _TASK)
    nbytes = compression.size_on_disk(model)
    found = f"{100 * right.ratio:.1f} % right, {nbytes:,} bytes"
    if right.ratio < _LEAST_ACCURACY:
        raise Refused(f"{found}: less than {_LEAST_ACCURACY:.0%} right. Did you fine-tune after each step that loses accuracy?")
    if nbytes > _LARGEST_FILE:
        raise Refused(f"{found}: the file is over {_LARGEST_FILE:,} bytes. Zeros, fewer bits and fewer channels make it smaller. Which did you not use yet?")
    share, sure = _share_of_time(model)
    took = f"{found}, {share:.2f} of the original time"
    if not sure:
        took += " (the median of several measurements, because your machine was busy or the time is close to the limit)"
    if share > _LONGEST_TIME:
        raise Refused(
            f"{took}: more than the limit of {_LONGEST_TIME:g}. Zeros and rounded weights save bytes. What saves time on your machine?"
        )
    before = compression.size_on_disk(trained())
    return f"{took}: within the budget. A speed-up of {format_ratio(1 / share)}, and {format_bytes(nbytes)} instead of {format_bytes(before)}."


_ROUND_SECONDS = (0.25, 0.5, 1.0, 2.0)  # each round is longer, so that a short disturbance is a smaller part of it


def _share_of_time(model: Any) -> tuple[float, bool]:
    """Return the ratio of a model's time to the trained network's, and whether the ratio's whole interval lies on one side of the limit.

    If the interval contains the limit, the time is measured again, for longer. After the last round, the median of all ratios is returned.
    """
    shares = []
    for seconds in _ROUND_SECONDS:
        row = _time_against_trained(model, seconds)
        shares.append(1 / row.speedup if row.speedup else math.inf)
        if row.speedup_interval is not None:
            most, least = (1 / end for end in row.speedup_interval)
            if least > _LONGEST_TIME or most <= _LONGEST_TIME:
                return shares[-1], True
    return statistics.median(shares), False


def _time_against_trained(model: Any, seconds: float) -> timing.ComparisonRow:
    """Compare a model's time for a batch with that of the trained network, measured in turn on one thread; return the model's row.

    The CPU time of this thread is used, so that other load on the machine does not decide whether an answer is right. If the system
    counts CPU time in coarse steps, as Windows does, wall time is used.
    """
    import torch

    inputs = training.task(_TASK).test[slice(0, _BATCH)][0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all of the work is done by the thread whose time is counted
    try:
        models = {"as trained": compression.finish(trained()), "yours": compression.finish(model)}
        return _race(models, inputs, clock=_clock(), seconds=seconds).rows[1]
    finally:
        torch.set_num_threads(threads)


def _race(models: dict[str, Any], x: Any, clock: Callable[[], float], seconds: float) -> timing.Comparison:
    import torch

    def runner(model: Any) -> Any:
        def run(given: Any) -> None:
            with torch.no_grad():
                model(given)

        return run

    runs = {label: runner(model) for label, model in models.items()}
    return timing.compare(runs, x, devices=[str(x.device)], deadline=seconds, tolerance=_ANY, clock=clock)


def _clock() -> Callable[[], float]:
    """Return the clock of this thread's CPU time, or the wall clock if the steps of the CPU time are too coarse."""
    steps: list[float] = []
    last = time.thread_time()
    while len(steps) < _STEPS:
        now = time.thread_time()
        if now > last:
            steps.append(now - last)
            last = now
    return time.thread_time if min(steps) <= _COARSE_SECONDS else time.perf_counter

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
