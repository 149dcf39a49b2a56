"""03.6: the batch size that pays."""

# %% exercise
id = "03.6"
title = "the batch size that pays"
answer_name = "rows"
machine = "the ridge of your device"

# %% stub
rows = ...  # a whole number, or "never"

# %% hint
# With n rows each weight is read once and used n times. How many FLOP per byte is that, if nearly
# all bytes are weights?

# %% hint
# A weight has 4 bytes and takes part in one multiply-add (2 FLOP) for each row: n / 2 FLOP per
# byte. Set this equal to your ridge.

# %% solution
import math

import gpulab as gl

ridge = gl.lessons.roof().ridge_flops_per_byte("float32")
f = 4096
# 2 n f^2 FLOP over 4 (f^2 + 2 n f) bytes = ridge, solved for n:
rest = 2 * f**2 - 8 * f * ridge
rows = max(1, math.ceil(4 * ridge * f**2 / rest)) if rest > 0 else "never"

# %% check
import math
from typing import Any
from gpulab import models
from gpulab.lessons import checking, roof
from gpulab.lessons.content import Refused, Seen

_WITHIN = 1.5
_ROOF = Seen("roof", models.Roofline)
_ROUNDING = 1 + 1e-9  # exactly 1.5 is within 1.5
FEATURES = 4096


def _crossing(ridge: float) -> float:
    """Return the batch size at which a linear layer reaches the ridge's intensity, or infinity if it never does.

    With n rows: 2 n f^2 FLOPs, and 4 (f^2 + 2 n f) bytes.
    """
    rest = 2 * FEATURES**2 - 8 * FEATURES * ridge
    return 4 * ridge * FEATURES**2 / rest if rest > 0 else math.inf


def check(answer: Any) -> str:
    ridge = roof().ridge_flops_per_byte("float32")
    right = _crossing(ridge)
    where = f"your ridge is at {ridge:.3g} FLOP per byte"
    if isinstance(answer, str):
        if answer.strip().lower() != "never":
            raise Refused(f"Your answer is {checking.describe(answer)}; the check expects the rows as a number, or 'never'.")
        if right == math.inf:
            return f"Right: {where}, more than this layer reaches at any batch size."
        raise Refused(f"The layer does become compute-bound: {where}, and with enough rows each weight is used often enough.")
    given = checking.number(answer, "a number of rows, or 'never'")
    if given < 1 or given != int(given):
        raise Refused(f"Your answer is {given:g} rows; the check expects a whole number from 1, or 'never'.")
    if right == math.inf:
        raise Refused(f"The layer never becomes compute-bound: {where}. The rows of {FEATURES} numbers must be read and written too.")
    least = max(1.0, right)
    if least / _WITHIN / _ROUNDING <= given <= math.ceil(least) * _WITHIN * _ROUNDING:
        return f"Compute-bound from about {math.ceil(least)} rows: {where}, and a weight of 4 bytes does 2 FLOP per row."
    intensity = 2 * given * FEATURES**2 / (4 * (FEATURES**2 + 2 * given * FEATURES))
    text = f"With {given:g} row{'' if given == 1 else 's'} the layer has {intensity:.3g} FLOP per byte; {where}."
    if given < least:
        raise Refused(f"{text} That is still below the ridge: each weight has 4 bytes and does 2 FLOP for each row.")
    raise Refused(f"{text} That is well above the ridge: a multiply-add counts as two FLOP, so fewer rows are enough.")


seen = _ROOF

# %% wrong: still below the ridge
import math

import gpulab as gl

ridge = gl.lessons.roof().ridge_flops_per_byte("float32")
rows = max(1, round(ridge))

# %% wrong: still below the ridge
import math

import gpulab as gl

ridge = gl.lessons.roof().ridge_flops_per_byte("float32")
rows = max(1, round(ridge / 2))

# %% wrong: well above the ridge
import math

import gpulab as gl

ridge = gl.lessons.roof().ridge_flops_per_byte("float32")
rows = 8 * math.ceil(ridge)

# %% wrong: does become compute-bound
rows = "never"

# %% wrong: Your answer is 0 rows
rows = 0

# %% wrong: or 'never'
rows = "many"
