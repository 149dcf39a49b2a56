"""06.9: after how many calls?"""

# %% exercise
id = "06.9"
title = "after how many calls?"
answer_name = "pays_after"

# %% stub
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    ...  # the seconds of compiling, of an eager call, and of a compiled call

# %% hint
# Each call earns back a small part of the seconds that compiling took. Which part?

# %% hint
# compile_seconds / (eager_seconds - compiled_seconds), rounded up with math.ceil. If a call saves
# nothing, return None.

# %% solution
import math


def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    saved = eager_seconds - compiled_seconds
    return math.ceil(compile_seconds / saved) if saved > 0 else None

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_seconds

# (seconds to compile, of an eager call and of a compiled call; accepted numbers of calls). In the third case rounding may leave a
# remainder, so one call more is right as well; in the last one all steps are exact.
_COSTS = (
    (10.0, 0.005, 0.002, (3334,)), (0.5, 2.0, 0.25, (1,)), (8.0, 0.050, 0.010, (200, 201)),
    (30.0, 0.0625, 0.0615234375, (30_720,)),
)  # fmt: skip
_NEVER = ((10.0, 0.004, 0.005), (3.0, 0.01, 0.01))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for compile_seconds, eager, compiled, right in _COSTS:
        case = f"{format_seconds(compile_seconds)} to compile, {format_seconds(eager)} for an eager call and {format_seconds(compiled)} compiled"
        value, said = checking.number(ask(f"For {case}", compile_seconds, eager, compiled), "a number of calls"), f"With {case}"
        if value in right:
            continue
        if math.isclose(value, compile_seconds / eager, rel_tol=0.01) or math.isclose(value, compile_seconds / compiled, rel_tol=0.01):
            raise Refused(f"{said} you return {value:g}. Divide by what a call saves, not by what a call takes.")
        exact = compile_seconds / (eager - compiled)
        if value != int(value) and math.isclose(value, exact, rel_tol=0.01):
            raise Refused(f"{said} you return {value:.6g}. The calls are a whole number: round up.")
        if value == math.floor(exact):
            saved = value * (eager - compiled)
            raise Refused(
                f"{said} you return {value:,.0f} calls. They save {saved:.4g} s, less than the {compile_seconds:g} s of compiling: round up."
            )
        if 0 < value < 1:
            raise Refused(f"{said} you return {value:g} calls. Divide the cost by the saving, not the saving by the cost.")
        raise Refused(f"{said} you return {value:g} calls; it is {right[0]:,}.")
    for compile_seconds, eager, compiled in _NEVER:
        try:
            value = checking.call(answer, compile_seconds, eager, compiled)
        except NotAttempted:  # the function returned None, as it should
            continue
        raise Refused(
            f"An eager call takes {format_seconds(eager)} and a compiled call {format_seconds(compiled)}: that never pays off, and you "
            f"return {checking.describe(value)}. Return None there."
        )
    return "Right in six cases; in two of them compiling never pays off."

# %% wrong: not by what a call takes
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return compile_seconds / eager_seconds

# %% wrong: not by what a call takes
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return compile_seconds / compiled_seconds

# %% wrong: less than the 10 s of compiling
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return int(compile_seconds / (eager_seconds - compiled_seconds)) if eager_seconds > compiled_seconds else None

# %% wrong: a whole number
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return compile_seconds / (eager_seconds - compiled_seconds) if eager_seconds > compiled_seconds else None

# %% wrong: never pays off
import math


def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return math.ceil(compile_seconds / (eager_seconds - compiled_seconds + 1e-12))

# %% wrong: not the saving by the cost
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return (eager_seconds - compiled_seconds) / compile_seconds

# %% wrong: it is 3,334
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return 100

# %% wrong: you return 30721 calls
def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """The smallest whole number of calls that save as much as compiling cost. None if no number does."""
    return int(compile_seconds / (eager_seconds - compiled_seconds)) + 1 if eager_seconds > compiled_seconds else None
