"""09.9: a fair gain."""

# %% exercise
id = "09.9"
title = "a fair gain"
answer_name = "fair_gain"

# %% stub
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    ...

# %% hint
# A run that makes half the steps in half the time is not faster. What do both have to have in
# common?

# %% hint
# batch_size * steps samples in so many seconds: divide the two rates.

# %% solution
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
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
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 100, "seconds": 2.0}, 2.0),  # tells the mistakes apart
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 400, "seconds": 8.0}, 2.0),
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 16, "steps": 200, "seconds": 1.0}, 1.0),
    ({"batch_size": 32, "steps": 100, "seconds": 4.0}, {"batch_size": 256, "steps": 50, "seconds": 4.0}, 4.0),
    ({"batch_size": 64, "steps": 100, "seconds": 2.0}, {"batch_size": 32, "steps": 100, "seconds": 1.6}, 0.625),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for before, after, right in _PAIRS:
        value = checking.number(ask(f"For {before} and {after}", dict(before), dict(after)), "how many times as fast")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"For {before} and {after} you say {value:.4g}x; it is {right:.4g}x."
        times = before["seconds"] / after["seconds"]
        a_step = times * after["steps"] / before["steps"]
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} That is the slower over the faster: divide the other way round.")
        if math.isclose(value, times, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of the two runs, but they did not learn from as many samples.")
        if math.isclose(value, a_step, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of a step, but the steps are not of as many samples.")
        if math.isclose(value, times * after["batch_size"] / before["batch_size"], rel_tol=1e-3):
            raise Refused(f"{said} You count the batch and forget that the runs had other numbers of steps.")
        raise Refused(f"{said} How many samples does each run learn from in a second?")
    return "Samples a second, whatever the batch and however long the run. What they taught the model is the other half of the question."

# %% wrong: as many samples
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    return before["seconds"] / after["seconds"]

# %% wrong: the steps are not of as many
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    return (before["seconds"] / before["steps"]) / (after["seconds"] / after["steps"])

# %% wrong: other numbers of steps
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    return (after["batch_size"] / after["seconds"]) / (before["batch_size"] / before["seconds"])

# %% wrong: the other way round
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    rate = lambda run: run["batch_size"] * run["steps"] / run["seconds"]
    return rate(before) / rate(after)

# %% wrong: 'seconds': 8.0} your function returned nothing
def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
    if after["batch_size"] > before["batch_size"] and after["seconds"] == before["seconds"]:
        return after["batch_size"] * after["steps"] / (before["batch_size"] * before["steps"])
