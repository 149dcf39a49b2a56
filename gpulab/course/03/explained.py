"""03.10: explain a point far under the roof."""

# %% exercise
id = "03.10"
title = "explain a point far under the roof"
answer_name = "explained"

# %% stub
explained = (..., ...)  # a cause, and the bytes that memory really moves

# %% hint
# Neighbors in the column are 256 bytes apart in memory. What else does the processor receive when
# it fetches one of them?

# %% hint
# Memory moves whole cache lines, of 64 bytes on most processors (128 on Apple's). Each of the 2^20
# numbers lies in a line of its own.

# %% solution
# Each number of the column lies in its own cache line, and memory moves whole lines of 64 bytes:
explained = ("lines", 64 * 2**20)

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_bytes

_CAUSES = {
    "call": "Starting one call takes a few microseconds, and this sum takes far longer",
    "lines": "",
    "arithmetic": "There is one addition for each 4 bytes: at this intensity the memory is the roof",
    "core": "This sum runs on as many threads as the copy that gave the roof of the memory",
}
# A cache line has 64 bytes on x86 and most ARM processors, 128 on Apple's; processors may also fetch lines in pairs.
_LINES = (64, 128)


def check(answer: Any) -> str:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects two things: a cause and a number of bytes.")
    cause, nbytes = answer
    if checking.is_stub(cause) or checking.is_stub(nbytes):
        raise NotAttempted
    if not isinstance(cause, str) or cause.strip().lower() not in _CAUSES:
        raise Refused(f"The cause is {checking.describe(cause)}; the check expects one of {', '.join(_CAUSES)}.")
    key = cause.strip().lower()
    if key != "lines":
        raise Refused(f"{_CAUSES[key]}. It does not explain the gap. What does memory send when you ask for 4 bytes?")
    given = checking.number(nbytes, "the bytes that memory moves")
    rows, width = 1 << 20, 64  # of the matrix in the notebook
    if any(math.isclose(given, line * rows, rel_tol=0.01) for line in _LINES):
        return (
            f"Memory moves {format_bytes(given)} for {format_bytes(4 * rows)} that are used, a factor of "
            f"{given / (4 * rows):g}. With these bytes counted, the point lies higher by that factor."
        )
    if given < 3.96 * rows:
        raise Refused(
            f"{format_bytes(max(given, 0.0))} is less than the {format_bytes(4 * rows)} that the program asks for. The check expects a number of bytes."
        )
    if given <= 4.04 * rows:
        raise Refused("Those are the bytes that the program asks for. Memory moves whole cache lines: how long is a line, and how many does the column touch?")
    if math.isclose(given, 4 * rows * width, rel_tol=0.01):
        raise Refused("That is the whole matrix. A row of 256 bytes fills several cache lines, and the column touches only one of them.")
    raise Refused(f"{format_bytes(given)} does not fit: memory moves one cache line for each of the {rows:,} rows. How long is a line?")

# %% wrong: at this intensity the memory is the roof
explained = ("arithmetic", 64 * 2**20)

# %% wrong: Starting one call
explained = ("call", 4 * 2**20)

# %% wrong: as many threads as the copy
explained = ("core", 64 * 2**20)

# %% wrong: the bytes that the program asks for
explained = ("lines", 4 * 2**20)

# %% wrong: less than the 4.00 MiB
explained = ("lines", 64)

# %% wrong: the whole matrix
explained = ("lines", 256 * 2**20)

# %% wrong: one cache line for each
explained = ("lines", 16 * 2**20)

# %% wrong: two things
explained = "lines"

# %% wrong: expects one of
explained = ("caches", 3)
