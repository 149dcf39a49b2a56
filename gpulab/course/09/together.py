"""09.5: put the techniques together."""

# %% exercise
id = "09.5"
title = "put the techniques together"
answer_name = "together"

# %% stub
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    ...

# %% hint
# The parts run one after the other, so the time of a step is their sum. What does each technique
# leave of each part?

# %% hint
# Copy the parts. Multiply each part by the shares of all techniques that change it. Then divide
# the old sum by the new one.

# %% solution
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
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
from gpulab.lessons.content import Refused


def speed_of(parts: dict[str, float], leaves: list[dict[str, float]]) -> float:
    """Return the speed-up of a step whose parts run one after the other."""
    rest = {part: ms * math.prod(one.get(part, 1.0) for one in leaves) for part, ms in parts.items()}
    return sum(parts.values()) / sum(rest.values())


# (parts in ms, the shares of the parts that each technique leaves, the speed-up computed by hand)
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
        value = checking.number(ask(f"With {parts} and {leaves}", mine, theirs), "the speed-up")
        if mine != parts:
            raise Refused("Your function changes the parts that it was given, so a second call starts from a faster step. Copy them first.")
        if theirs != leaves:
            raise Refused("Your function changes the list `leaves` that it was given, so a second call has other techniques. Only read it.")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"With {parts} and {leaves} you return {value:.4g}x; it is {right:.4g}x."
        if math.isclose(value, right, rel_tol=5e-3):
            raise Refused(f"With {parts} and {leaves} you return {value:.8g}x; it is {right:.8g}x. Do not round it.")
        product = math.prod(speed_of(parts, [one]) for one in leaves)
        saved = sum(parts[part] * (1 - ratio) for one in leaves for part, ratio in one.items())
        rest = sum(parts.values()) - saved
        if math.isclose(value, product, rel_tol=1e-3):
            raise Refused(f"{said} You multiply the single gains. Multiply what is left of each part, and then add the parts.")
        if math.isclose(value, sum(parts.values()) / rest, rel_tol=1e-3):
            raise Refused(f"{said} You subtract each saving from the whole step. What the first technique saved, the second cannot save again.")
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} That is the share of the time that is left. The speed-up is the old time divided by the new one.")
        raise Refused(said)
    return "Right for two techniques on one part (less than the product) and for two techniques on different parts (more than the product)."

# %% wrong: You multiply the single gains
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    whole, product = sum(parts.values()), 1.0
    for technique in leaves:
        product *= whole / sum(ms * technique.get(part, 1) for part, ms in parts.items())
    return product

# %% wrong: Do not round it
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
    return round(sum(parts.values()) / sum(rest.values()), 2)

# %% wrong: cannot save again
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    whole = sum(parts.values())
    saved = sum(parts[part] * (1 - ratio) for technique in leaves for part, ratio in technique.items())
    return whole / (whole - saved)

# %% wrong: the share of the time that is left
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
    return sum(rest.values()) / sum(parts.values())

# %% wrong: changes the parts
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    whole = sum(parts.values())
    for technique in leaves:
        for part, ratio in technique.items():
            parts[part] *= ratio
    return whole / sum(parts.values())

# %% wrong: you return 1.429x; it is 1.818x
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
        return sum(parts.values()) / sum(rest.values())

# %% wrong: your function returned nothing
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    if len(leaves) == 1:
        ((part, ratio),) = leaves[0].items()
        return sum(parts.values()) / (sum(parts.values()) - parts[part] * (1 - ratio))


# %% wrong: changes the list `leaves`
def together(parts, leaves):
    """Return the speed-up. parts: milliseconds by name; leaves: for each technique, the share that it leaves of some parts."""
    rest = dict(parts)
    while leaves:
        for part, ratio in leaves.pop().items():
            rest[part] *= ratio
    return sum(parts.values()) / sum(rest.values())
