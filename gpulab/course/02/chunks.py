"""02.8: choose the chunks."""

# %% exercise
id = "02.8"
title = "choose the chunks"
answer_name = "chunks"

# %% stub
chunks = ...  # a whole number

# %% hint
# With k chunks, the first chunk (1/k of the copy) overlaps with nothing. What share of the gain does
# that cost?

# %% hint
# Each copy must also be started, which takes 10 us here. How many starts can you afford beside a copy
# of about 10 ms?

# %% solution
# Chunks so large that starting them costs little, and so small that the first one arrives soon:
chunks = 16

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, format_seconds

# The exercises are checked over this link. It is the same for every learner, so that a right answer is right everywhere.
EXERCISE_LINK = "pcie4-x16"
CHUNKED_BYTES = 256 * 2**20
_ENOUGH, _NEARLY = 0.8, 0.79
_MOST_CHUNKS = 10**6


def check(answer: Any) -> str:
    from gpulab import transfer

    value = checking.number(answer, "a number of chunks")
    if value != int(value) or not 1 <= value <= _MOST_CHUNKS:
        raise Refused(f"{value:g} chunks cannot be made; the check expects a whole number from 1 to a million.")
    chunks = int(value)
    link = transfer.link(EXERCISE_LINK)
    compute = link.seconds(CHUNKED_BYTES)
    copy = link.seconds(CHUNKED_BYTES)
    one, work = link.seconds(CHUNKED_BYTES / chunks), compute / chunks
    pipelined = one + (chunks - 1) * max(one, work) + work  # the first copy, then the slower of the two, then the last compute
    share = (copy + compute - pipelined) / min(copy, compute)  # 1 if the shorter of the two is wholly hidden behind the other
    reached = f"{share:.0%}" if share >= _ENOUGH or share < _NEARLY else f"{math.floor(1000 * share) / 10:g}%"  # just below: rounded down
    said = f"In {chunks} x {format_bytes(CHUNKED_BYTES / chunks)} you reach {reached} of the ideal gain"
    if share >= _ENOUGH:
        return f"{said} (MODELLED over {EXERCISE_LINK})."
    if chunks == 1:
        raise Refused(f"{said}: with one chunk there is nothing to compute until all of it has arrived.")
    starts = link.seconds(0) * chunks
    if starts > copy / chunks:  # starting the copies costs more than waiting for the first chunk
        raise Refused(f"{said}: starting {chunks} copies alone costs {format_seconds(starts)}. Take fewer, larger chunks.")
    if share >= _NEARLY:
        raise Refused(f"{said}: the first chunk alone costs 1/{chunks} of it, and starting the copies costs a little more. Take one more chunk.")
    raise Refused(f"{said}: nothing is computed while the first chunk travels, and this chunk is large. Take more, smaller chunks.")

# %% wrong: nothing to compute until
chunks = 1

# %% wrong: more, smaller chunks
chunks = 2

# %% wrong: 79.6% of the ideal gain: the first chunk alone costs 1/5
chunks = 5

# %% wrong: fewer, larger chunks
chunks = 10_000

# %% wrong: whole number from 1
chunks = 0

# %% wrong: whole number from 1
chunks = 2.5
