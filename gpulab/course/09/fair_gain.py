"""09.9: a fair gain."""

# %% exercise
id = "09.9"
title = "a fair gain"
answer_name = "fair_gain"

# %% stub
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    ...

# %% hint
# A run that makes half the steps in half the time is not faster. Compare the time of one sample, or
# the samples of one second.

# %% hint
# A run learns from batch_size * steps samples. Divide by its seconds, and then divide the two rates.

# %% solution
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    def rate(run):
        return run["batch_size"] * run["steps"] / run["seconds"]

    return rate(after) / rate(before)

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_Side = dict[str, float]
_PAIRS: tuple[tuple[_Side, _Side, float], ...] = (
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 150, "seconds": 2.0}, 3.0),  # mistakes give other numbers
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 400, "seconds": 8.0}, 2.0),
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 16, "steps": 200, "seconds": 1.0}, 1.0),
    ({"batch_size": 32, "steps": 100, "seconds": 4.0}, {"batch_size": 256, "steps": 50, "seconds": 4.0}, 4.0),
    ({"batch_size": 64, "steps": 100, "seconds": 2.0}, {"batch_size": 32, "steps": 100, "seconds": 1.6}, 0.625),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for before, after, right in _PAIRS:
        value = checking.number(ask(f"For {before} and {after}", dict(before), dict(after)), "the speed-up")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"For {before} and {after} you return {value:.4g}x; it is {right:.4g}x."
        if math.isclose(value, right, rel_tol=0.05):
            raise Refused(f"For {before} and {after} you return {value:.8g}x; it is {right:.8g}x. Do not round.")
        times = before["seconds"] / after["seconds"]
        a_step = times * after["steps"] / before["steps"]
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} You divide the other way round: it is the rate after, divided by the rate before.")
        if math.isclose(value, times, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of the runs, but they did not learn from the same number of samples.")
        if math.isclose(value, a_step, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of a step, but a step of one run has more samples than a step of the other.")
        if math.isclose(value, times * after["batch_size"] / before["batch_size"], rel_tol=1e-3):
            raise Refused(f"{said} You count the batch, but the runs also differ in their number of steps.")
        if math.isclose(value, right - 1, rel_tol=1e-3):
            raise Refused(f"{said} You return what is gained. The speed-up is the rate after, divided by the rate before.")
        raise Refused(f"{said} How many samples does each run learn from in a second?")
    return "You compare samples a second, for any batch and any length of run. Whether the model is as good is the other half of the question."

# %% wrong: the same number of samples
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    return before["seconds"] / after["seconds"]

# %% wrong: a step of one run has more samples
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    return (before["seconds"] / before["steps"]) / (after["seconds"] / after["steps"])

# %% wrong: differ in their number of steps
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    return (after["batch_size"] / after["seconds"]) / (before["batch_size"] / before["seconds"])

# %% wrong: the other way round
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    rate = lambda run: run["batch_size"] * run["steps"] / run["seconds"]
    return rate(before) / rate(after)

# %% wrong: 'seconds': 8.0} your function returned nothing
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    if after["batch_size"] > before["batch_size"] and after["seconds"] == before["seconds"]:
        return after["batch_size"] * after["steps"] / (before["batch_size"] * before["steps"])


# %% wrong: what is gained
def fair_gain(before, after):
    """Return the speed-up in samples a second. Each run is a dict with batch_size, steps and seconds."""
    def rate(run):
        return run["batch_size"] * run["steps"] / run["seconds"]

    return rate(after) / rate(before) - 1
