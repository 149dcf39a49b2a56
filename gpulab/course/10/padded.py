"""10.8: compile less often."""

# %% exercise
id = "10.8"
title = "compile less often"
answer_name = "padded"

# %% stub
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return ...

# %% hint
# Each different number that your function returns is one more program.

# %% hint
# Eleven sizes cover 1 to 1,000 rows, and no batch may grow to more than twice its rows. Which factor
# can lie between a size and the next one?

# %% solution
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return 1 << (rows - 1).bit_length()  # the next power of two: 1, 2, 4, ... 1024

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import plural

LARGEST_BATCH = 1000
_MOST_PROGRAMS = 11
_MOST_WASTE = 2.0


def check(answer: Any) -> str:
    sizes: set[int] = set()
    worst, worst_rows = 1.0, 1
    ask = checking.in_turn(answer)
    for rows in range(1, LARGEST_BATCH + 1):
        value = checking.number(ask(f"For {plural(rows, 'row')}", rows), "a number of rows")
        if value != int(value):
            raise Refused(f"For {plural(rows, 'row')} you gave {value:g}; a batch has a whole number of rows.")
        if value < rows:
            raise Refused(f"For {plural(rows, 'row')} you gave {value:g}: {rows - value:g} of them would be cut off. Padding never makes a batch smaller.")
        sizes.add(int(value))
        if value / rows > worst:
            worst, worst_rows = value / rows, rows
    count = f"{len(sizes)} program{'s are' if len(sizes) != 1 else ' is'} compiled"
    said = f"{count}, and a batch grows to at most {float(f'{worst:.3g}'):g} times its rows"
    if len(sizes) > _MOST_PROGRAMS:
        raise Refused(f"{said}: {_MOST_PROGRAMS} programs are allowed. Let many batch sizes share one shape.")
    if worst > _MOST_WASTE:
        raise Refused(f"{said} (one of {plural(worst_rows, 'row')} does): {_MOST_WASTE:g} times is allowed. Small batches need small shapes.")
    return f"{said}, for the {LARGEST_BATCH} batch sizes that may come."

# %% wrong: 1000 programs
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return rows

# %% wrong: Small batches need small shapes
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return 1000

# %% wrong: programs are allowed
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return -(-rows // 64) * 64

# %% wrong: Padding never makes a batch smaller
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return 1 << (rows.bit_length() - 1)

# %% wrong: whole number of rows
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    return 1.5 * rows

# %% wrong: For 513 rows your function returned nothing
def padded(rows):
    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        if rows <= size:
            return size

# %% wrong: expects a function
padded = 1024
