"""06.9: after how many calls?."""

# %% exercise
id = "06.9"
title = "after how many calls?"
answer_name = "pays_after"

# %% stub
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    ...  # the seconds of compiling, of a call before, and of a call after

# %% hint
# Each call gives back a little of what compiling took. How much?

# %% hint
# compile_seconds / (eager_seconds - compiled_seconds), rounded up; and if a call saves nothing,
# never.

# %% solution
import math


def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    saved = eager_seconds - compiled_seconds
    return math.ceil(compile_seconds / saved) if saved > 0 else None

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_seconds

# (seconds to compile, a call as it is, a call compiled, after how many calls that has paid)
_COSTS = ((10.0, 0.005, 0.002, 3334), (8.0, 0.050, 0.010, 200), (0.5, 2.0, 0.25, 1), (30.0, 0.0625, 0.0615234375, 30_720))
_NEVER = ((10.0, 0.004, 0.005), (3.0, 0.01, 0.01))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for compile_seconds, eager, compiled, right in _COSTS:
        case = f"{format_seconds(compile_seconds)} to compile, {format_seconds(eager)} a call before and {format_seconds(compiled)} after"
        value, said = checking.number(ask(f"For {case}", compile_seconds, eager, compiled), "a number of calls"), f"With {case}"
        if abs(value - right) <= 1:  # rounding down is as right
            continue
        if math.isclose(value, compile_seconds / eager, rel_tol=0.01) or math.isclose(value, compile_seconds / compiled, rel_tol=0.01):
            raise Refused(f"{said} you say {value:g}. Compiling is paid back with what a call saves, not with what it takes.")
        if 0 < value < 1:
            raise Refused(
                f"{said} you say {value:g} calls. It is the cost over the saving, not the other way round, and at least one call."
            )
        raise Refused(f"{said} you say {value:g} calls; it is {right:,}.")
    for compile_seconds, eager, compiled in _NEVER:
        try:
            value = checking.call(answer, compile_seconds, eager, compiled)
        except NotAttempted:  # None, which is right here
            continue
        if value == math.inf:
            continue
        raise Refused(
            f"A call takes {format_seconds(eager)} before and {format_seconds(compiled)} after compiling: that never pays, and you say "
            f"{checking.describe(value)}. Return None there."
        )
    return "Right in six cases, the two in which compiling never pays among them."

# %% wrong: not with what it takes
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    return compile_seconds / eager_seconds

# %% wrong: not with what it takes
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    return compile_seconds / compiled_seconds

# %% wrong: never pays
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    return max(1, round(compile_seconds / (eager_seconds - compiled_seconds + 1e-12)))

# %% wrong: not the other way round
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    return (eager_seconds - compiled_seconds) / compile_seconds

# %% wrong: it is 3,334
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
    return 100
