"""05.7: the smallest scale that rescues, the largest that does not overflow."""

# %% exercise
id = "05.7"
title = "the smallest scale that rescues, the largest that does not overflow"
answer_name = "scales"

# %% stub
def scales(gradients):
    ...  # (lowest, highest): powers of two at which no gradient becomes zero or infinite in float16

# %% hint
# Only two gradients matter: the smallest that is not zero, and the largest. Take their sizes
# without the sign.

# %% hint
# Start with a tiny power of two, and double it until the smallest gradient times the scale no
# longer rounds to zero. Half of the smallest float16 number rounds to zero, and so does all below.

# %% hint
# The smallest number of float16 is 2^-24, so the smallest gradient times the scale must be above
# 2^-25. The largest times the scale must stay below 65,520: from there on, rounding gives infinity.

# %% solution
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    high = 2.0**40
    while sizes.max() * high >= 65520:
        high /= 2
    return low, high

# %% check
import math
from typing import Any
import numpy as np
from gpulab import precision
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_INFINITE_FROM = 65_520  # float16 rounds to infinity from here on: half-way from 65,504 to 2^16


def _gradient_sets() -> list[np.ndarray]:
    """Return sets of gradients as a network has them: of both signs, some exactly zero. Each set has another range.

    In each set the smallest and the largest magnitude are close to a power of two. Most are a thousandth away from it. One smallest is
    exactly a power of two: scaled to half of the smallest float16 number, it still becomes zero. One largest is so close below a power of two
    that, scaled to almost 2^16, it exceeds 65,520; that set's lowest scale is below 1. Either of the two may be negative.
    """
    rng = np.random.default_rng(5)
    sets = []
    for low, high, smallest, largest in (
        (-34, -4, -1.001, 0.999), (-29, 3, 1.001, -0.999), (-40, -18, -1.0, 0.999), (-22, 12, 1.001, 0.9999),
    ):  # fmt: skip
        powers = rng.uniform(low + 2.5, high - 2.5, 500)
        values = rng.choice([-1.0, 1.0], 500) * 2.0**powers
        values[:40] = 0.0
        values[40:42] = smallest * 2.0**low, largest * 2.0**high
        sets.append(values)
    return sets


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for gradients in _gradient_sets():
        sizes = np.abs(gradients[gradients != 0])
        ends = f"for gradients from {sizes.min():.2g} to {sizes.max():.2g}"
        said = checking.listed(ask(ends.capitalize(), gradients.copy()))
        if not isinstance(said, (tuple, list)) or len(said) != 2:
            raise Refused(f"Your function gives {checking.describe(said)}; the check expects (lowest, highest).")
        low, high = (checking.number(each, "a scale for the gradients that are not exactly zero") for each in said)
        for name, scale in (("lowest", low), ("highest", high)):
            if math.frexp(scale)[0] != 0.5:
                raise Refused(f"Your {name} scale {ends} is {scale:g}; the check expects a power of two, which changes no digit.")
        if low > high:
            raise Refused(f"Your lowest scale {ends} is {low:g}, above your highest, {high:g}. Return (lowest, highest).")
        window = precision.gradient_window(gradients, "float16", low, tolerance=0.0)
        if window.vanishing_share > 0:
            raise Refused(
                f"At your lowest scale, {low:g}, {ends}, some gradients still become zero: half of the smallest float16 number, 2^-25, "
                "and less rounds to zero. Take the sizes without their sign, and leave out the gradients that are exactly zero."
            )
        if low > (window.lowest_scale or 0.0):
            raise Refused(
                f"Your lowest scale {ends} is {low:g}, and half of it would do: only what is at most half of the smallest "
                "number, 2^-25, becomes zero."
            )
        top = precision.gradient_window(gradients, "float16", high, tolerance=0.0)
        if top.overflowing_share > 0:
            signed = float(gradients.max()) * high < _INFINITE_FROM
            largest = (-1 if signed else 1) * sizes.max() * high
            why = "It is a negative one: take the sizes without their sign." if signed else "From 65,520 on, rounding gives infinity."
            raise Refused(f"At your highest scale, {high:g}, {ends}, the largest becomes {largest:.6g}: beyond 65,504, infinite. {why}")
        if high < (top.highest_scale or 0.0):
            raise Refused(f"Your highest scale {ends} is {high:g}, and twice as much would still not overflow.")
    return (
        "Right. Between the two, nothing becomes zero or infinite. Large scales are better: near the lowest, small gradients are subnormal "
        "and keep few digits. So a scaler starts with a large scale, and halves it when something overflows."
    )

# %% wrong: half of it would do
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-24:
        low *= 2
    high = 2.0**40
    while sizes.max() * high >= 65520:
        high /= 2
    return low, high

# %% wrong: half of it would do
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 1.0
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    high = low
    while sizes.max() * high * 2 < 65520:
        high *= 2
    return low, high

# %% wrong: without their sign
import numpy as np


def scales(gradients):
    sizes = gradients[gradients > 0]
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    high = 2.0**40
    while sizes.max() * high >= 65520:
        high /= 2
    return low, high

# %% wrong: twice as much
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    return low, low

# %% wrong: infinite
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    return low, 2.0**40

# %% wrong: It is a negative one
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    high = 2.0**40
    while gradients.max() * high >= 65520:
        high /= 2
    return low, high

# %% wrong: the largest becomes 65529.4: beyond 65,504
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    high = 2.0**40
    while sizes.max() * high >= 65536:
        high /= 2
    return low, high

# %% wrong: 2^-25, and less rounds to zero
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** -40
    while sizes.min() * low < 2.0**-25:
        low *= 2
    high = 2.0**40
    while sizes.max() * high >= 65520:
        high /= 2
    return low, high

# %% wrong: a power of two
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    return 2.0**-25 / sizes.min(), 65504 / sizes.max()

# %% wrong: above your highest
import numpy as np


def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = high = 1.0
    while sizes.min() * low <= 2.0**-25:
        low *= 2
    while sizes.min() * low / 2 > 2.0**-25:
        low /= 2
    while sizes.max() * high >= 65520:
        high /= 2
    while sizes.max() * high * 2 < 65520:
        high *= 2
    return high, low

# %% wrong: (lowest, highest)
def scales(gradients):
    return 65536.0
