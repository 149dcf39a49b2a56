"""09.5: put the techniques together."""

# %% exercise
id = "09.5"
title = "put the techniques together"
answer_name = "together"

# %% stub
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    ...

# %% hint
# The parts run one after the other, so a step is their sum. What does each technique do to each
# part?

# %% hint
# Copy the parts, multiply in each technique's ratios part by part, then divide the old sum by the
# new one.

# %% solution
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
    return sum(parts.values()) / sum(rest.values())

# %% check
import copy
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons._speedup import speed_of
from gpulab.lessons.content import Refused

# (parts in ms, what each technique leaves, the answer by hand)
_STEPS: tuple[tuple[dict[str, float], list[dict[str, float]], float], ...] = (
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}], 10 / 7),
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}, {"loading": 0.5}], 10 / 5.5),
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}, {"computing": 0.25}], 10 / 4),
    ({"loading": 6.0, "computing": 4.0}, [], 1.0),
    ({"loading": 2.0, "starting": 3.0, "computing": 5.0}, [{"starting": 0.5, "computing": 0.8}, {"computing": 0.5}], 10 / 5.5),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for parts, leaves, right in _STEPS:
        mine, theirs = dict(parts), copy.deepcopy(leaves)
        value = checking.number(ask(f"With {parts} and {leaves}", mine, theirs), "how many times as fast")
        if mine != parts or theirs != leaves:
            raise Refused("Your function changes the parts that it was given: the second call would find a faster step. Copy them first.")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"With {parts} and {leaves} you say {value:.4g}x; it is {right:.4g}x."
        product = math.prod(speed_of(parts, [one]) for one in leaves)
        saved = sum(parts[part] * (1 - ratio) for one in leaves for part, ratio in one.items())
        rest = sum(parts.values()) - saved
        if math.isclose(value, product, rel_tol=1e-3):
            raise Refused(f"{said} You multiply the single gains. Multiply what is left of each part, then add the parts.")
        if math.isclose(value, sum(parts.values()) / rest, rel_tol=1e-3):
            raise Refused(f"{said} You subtract each saving from the whole step: what the first one saved is gone for the second.")
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} That is the time that is left, as a ratio. How many times as fast is it?")
        raise Refused(said)
    return "Right for one part mended twice (less than the product) and for two parts mended once each (more than the product)."

# %% wrong: You multiply the single gains
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    whole, product = sum(parts.values()), 1.0
    for technique in leaves:
        product *= whole / sum(ms * technique.get(part, 1) for part, ms in parts.items())
    return product

# %% wrong: gone for the second
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    whole = sum(parts.values())
    saved = sum(parts[part] * (1 - ratio) for technique in leaves for part, ratio in technique.items())
    return whole / (whole - saved)

# %% wrong: the time that is left
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
    return sum(rest.values()) / sum(parts.values())

# %% wrong: changes the parts
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    whole = sum(parts.values())
    for technique in leaves:
        for part, ratio in technique.items():
            parts[part] *= ratio
    return whole / sum(parts.values())

# %% wrong: you say 1.429x; it is 1.818x
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
        return sum(parts.values()) / sum(rest.values())

# %% wrong: your function returned nothing
def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
    if len(leaves) == 1:
        ((part, ratio),) = leaves[0].items()
        return sum(parts.values()) / (sum(parts.values()) - parts[part] * (1 - ratio))
