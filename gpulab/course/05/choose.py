"""05.3: the narrowest format that will do."""

# %% exercise
id = "05.3"
title = "the narrowest format that will do"
answer_name = "choose"

# %% stub
def choose(largest, smallest, error):
    ...  # the name of the narrowest float format that holds such numbers with such an error

# %% hint
# Ask three questions about each format, starting with the narrowest. Is its largest number large
# enough? Is its smallest normal number small enough? Is its rounding fine enough?

# %% hint
# `f = gl.precision.format(name)` has `f.largest`, `f.smallest_normal` and `f.epsilon`.

# %% hint
# Rounding to nearest moves a number by at most half of the spacing. The relative error is at most
# `f.epsilon / 2`.

# %% solution
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        if largest <= f.largest and smallest >= f.smallest_normal and error >= f.epsilon / 2:
            return name

# %% check
from typing import Any
from gpulab import precision
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.precision import Format

CANDIDATES = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64")
# (largest magnitude, smallest magnitude that must keep its digits, relative error allowed)
_DEMANDS = (
    (1000.0, 1e-3, 6e-4),
    (1e6, 1e-3, 1e-2),
    (1e6, 1e-3, 1e-3),
    (300.0, 0.02, 0.1),
    (40000.0, 1e-4, 0.2),
    (200.0, 1e-6, 1e-3),
    (1e300, 1.0, 1e-3),
    (1000.0, 1e-3, 1e-9),  # float64 for its digits
    (1.0, 1e-42, 1e-2),  # float64 for its smallest numbers
)


def _fits(one: Format, largest: float, smallest: float, error: float) -> bool:
    return largest <= one.largest and smallest >= one.smallest_normal and error >= one.epsilon / 2


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for largest, smallest, error in _DEMANDS:
        where = f"choose({largest:g}, {smallest:g}, {error:g})"
        said = ask(f"For {where}", largest, smallest, error)
        if not isinstance(said, str) or said not in CANDIDATES:
            raise Refused(f"{where} gives {checking.describe(said)}; the check expects one of {', '.join(CANDIDATES)}.")
        one = precision.format(said)
        if largest > one.largest:
            raise Refused(f"{where}: the largest number of {said} is {one.largest:.4g}; {largest:g} does not fit.")
        if smallest < one.smallest_normal:
            raise Refused(f"{where}: below {one.smallest_normal:.2g} the numbers of {said} are subnormal and lose digits.")
        if error < one.epsilon / 2:
            raise Refused(f"{where}: {said} rounds by up to half of its epsilon, {one.epsilon / 2:.2g} of a number, and only {error:g} is allowed.")
        least = min(precision.format(name).bits for name in CANDIDATES if _fits(precision.format(name), largest, smallest, error))
        if one.bits > least:
            close = " (rounding to nearest is off by at most half of epsilon)" if error < 1e-3 else ""
            raise Refused(f"{where}: {said} fits, but so does a format of {least} bits{close}. The check expects the narrowest.")
    return "Right. Range decides as often as precision does: one 16-bit task needs float16, another needs bfloat16."

# %% wrong: the narrowest
import gpulab as gl


def choose(largest, smallest, error):
    return "float32" if largest < 1e38 and smallest > 1e-37 else "float64"

# %% wrong: does not fit
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        if error >= f.epsilon / 2:
            return name

# %% wrong: subnormal and lose digits
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        if largest <= f.largest and smallest >= f.smallest_subnormal and error >= f.epsilon / 2:
            return name

# %% wrong: rounds by up to
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        if largest <= f.largest and smallest >= f.smallest_normal:
            return name

# %% wrong: at most half of epsilon
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        if largest <= f.largest and smallest >= f.smallest_normal and error >= f.epsilon:
            return name

# %% wrong: choose(1000, 0.001, 1e-09): float32 rounds by up to
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32"):
        f = gl.precision.format(name)
        if largest <= f.largest and smallest >= f.smallest_normal and error >= f.epsilon / 2:
            return name
    return "float32" if largest < 3.4e38 else "float64"

# %% wrong: choose(1, 1e-42, 0.01): below 1.2e-38 the numbers of bfloat16 are subnormal
import gpulab as gl


def choose(largest, smallest, error):
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        f = gl.precision.format(name)
        smallest_kept = f.smallest_normal if "8" in name or name == "float16" else 0.0
        if largest <= f.largest and smallest >= smallest_kept and error >= f.epsilon / 2:
            return name

# %% wrong: expects one of
def choose(largest, smallest, error):
    return "half"
