"""00.2: find the impossible timing."""

# %% exercise
id = "00.2"
title = "find the impossible timing"
answer_name = "impossible"
loads = ["torch"]

# %% stub
impossible = ...  # "A", "B", "C" or "D"

# %% hint
# For each claim: how many bytes must be read, and how many written?

# %% hint
# Bytes divided by seconds is a rate. Compare each rate with what your main memory delivers; the
# last line under the table of the claims states it.

# %% hint
# An addition of two arrays into a third moves three arrays.

# %% solution
# Count the arrays that are read and written, and divide by the time:
#   A reads 2 GiB; B reads and writes 4 GiB (8 GiB); C reads two arrays and writes one, of 8 GiB
#   each (24 GiB); D reads and writes 8 GiB (16 GiB). Only the rate of C is above the memory's.
impossible = "C"

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons._material import CLAIMS, claimed_seconds, memory_bandwidth
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds


def check(answer: Any) -> str:
    if not isinstance(answer, str) or answer.strip().upper() not in CLAIMS:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects one letter, 'A', 'B', 'C' or 'D'.")
    letter = answer.strip().upper()
    _, moved, _ = CLAIMS[letter]
    seconds = {each: claimed_seconds(each) for each in CLAIMS}
    rate = moved / seconds[letter]
    found = f"{letter} moves {format_bytes(moved)} in {format_seconds(seconds[letter])}: {format_bytes_per_second(rate)}"
    ceiling = format_bytes_per_second(memory_bandwidth())
    if rate > memory_bandwidth():
        return f"{found}, but your memory delivers {ceiling}. So this is impossible: the clock was stopped too early."
    why = ""
    if seconds[letter] == min(seconds.values()):
        why = " It is the shortest time, but this claim also moves the fewest bytes. Divide the bytes by the time."
    elif seconds[letter] == max(seconds.values()):
        why = " It is the longest time. But a claim is impossible if its time is too short for its bytes."
    raise Refused(f"{found}, below your memory's {ceiling}, so it can be true.{why} Count every array that is read or written.")

# %% wrong: the fewest bytes
impossible = "A"

# %% wrong: the longest time
impossible = "D"

# %% wrong: it can be true
impossible = "B"

# %% wrong: one letter
impossible = "none"

# %% wrong: one letter
impossible = 3
