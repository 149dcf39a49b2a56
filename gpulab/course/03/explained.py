"""03.10: explain a point far under the roof."""

# %% exercise
id = "03.10"
title = "explain a point far under the roof"
answer_name = "explained"

# %% stub
explained = (..., ...)  # "call", "lines", "arithmetic" or "core"; and the bytes that memory really moves

# %% hint
# Neighbours in the column are 256 bytes apart in memory. What comes along when the processor
# fetches one of them?

# %% hint
# Caches hold lines of 64 bytes (128 on Apple's processors). Each of the 2^20 numbers lies in a
# line of its own.

# %% solution
# Each number of the column lies in a cache line of its own, and memory moves whole lines (of 64 bytes):
explained = ("lines", 64 * 2**20)

# %% check
import math
from typing import Any
from gpulab.lessons import _density, checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_bytes, format_ratio

_CAUSES = {
    "call": "Starting one call takes microseconds",
    "lines": "",
    "arithmetic": "There is one addition for each 4 bytes, and the roof above this intensity is the memory's",
    "core": "The work is divided among your cores as for any other sum of this length",
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
        raise Refused(f"{_CAUSES[key]}; that does not explain what is missing here. What does memory send when you ask for 4 bytes?")
    said = checking.number(nbytes, "the bytes that memory moves")
    rows, width = _density.COLUMN_ROWS, _density.COLUMN_WIDTH
    if any(math.isclose(said, line * rows, rel_tol=0.01) for line in _LINES):
        return (
            f"{format_bytes(said)} travel for {format_bytes(4 * rows)} that are used: "
            f"{format_ratio(said / (4 * rows))} as much. Counted so, the point moves up by that factor."
        )
    if said < 3.96 * rows:
        raise Refused(
            f"{format_bytes(max(said, 0.0))} is less than the {format_bytes(4 * rows)} that you asked for. The check expects bytes."
        )
    if said <= 4.04 * rows:
        raise Refused("Those are the bytes that you asked for. Memory moves whole cache lines: how long is one, and how many are touched?")
    if math.isclose(said, 4 * rows * width, rel_tol=0.01):
        raise Refused("That is the whole matrix. A row has 256 bytes, which is several cache lines, and only one of them is touched.")
    raise Refused(f"{format_bytes(said)} is not it: one cache line for each of the {rows:,} rows.")

# %% wrong: the roof above this intensity is the memory's
explained = ("arithmetic", 64 * 2**20)

# %% wrong: Starting one call
explained = ("call", 4 * 2**20)

# %% wrong: divided among your cores
explained = ("core", 64 * 2**20)

# %% wrong: the bytes that you asked for
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
