"""01.6: choose a block size, and name its limiter."""

# %% exercise
id = "01.6"
title = "choose a block size, and name its limiter"
answer_name = "choice"

# %% stub
choice = (..., ...)  # threads of a block, and "warps", "registers", "shared" or "blocks"

# %% hint
# gl.models.occupancy(256, 48, 0, "8.6") shows how many blocks each resource allows. Try several
# sizes.

# %% hint
# Very small blocks reach the limit of blocks for each SM. Very large blocks leave room in which no
# whole block fits.

# %% solution
choice = (128, "registers")

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import plural

_REGISTERS, _CAPABILITY = 48, "8.6"
_MOST_WARPS = 40  # of 48: each quarter of the SM has 16,384 registers, enough for 10 warps of 32 x 48
_PAIR = "a block size and a limiter, such as (64, 'blocks')"
_LIMITERS = ("warps", "registers", "shared", "blocks")  # the words of the table that gl.models.occupancy shows


def check(answer: Any) -> str:
    from gpulab import models

    if isinstance(answer, (tuple, list)) and any(map(checking.is_stub, answer)):
        raise NotAttempted
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not isinstance(answer[1], str):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects {_PAIR}.")
    word = answer[1].strip().lower()
    if word not in _LIMITERS:
        raise Refused(f"{answer[1][:40]!r} is not a limiter; the check expects one of {', '.join(_LIMITERS)}.")
    size = checking.number(answer[0], "the threads of a block")
    if size != int(size) or not 1 <= size <= 1024:
        raise Refused(f"A block of {size:g} threads cannot be launched. A block has 1 to 1,024 threads.")
    o = models.occupancy(int(size), _REGISTERS, 0, _CAPABILITY)
    if size % 32:
        raise Refused(
            f"{plural(int(size), 'thread')} {'takes' if size == 1 else 'take'} {plural(o.warps_per_block, 'warp')}, and the last of them "
            "is not full. Take a multiple of 32."
        )
    if o.warps_per_sm < _MOST_WARPS:
        raise Refused(f"{size:g} threads reach {o.ratio:.0%}: {o.explanation} With another block size, an SM holds more warps.")
    if word not in o.limiters:
        raise Refused(
            f"No block size holds more warps, but {answer[1][:40]!r} is not its limiter. Which row of the table that gl.models.occupancy "
            "shows allows the fewest blocks?"
        )
    return f"{o.blocks_per_sm} blocks, {o.warps_per_sm} of {o.sm.warps} warps, limited by {' and '.join(o.limiters)}. No block size holds more."

# %% wrong: 1024 threads reach 67%
choice = (1024, "registers")

# %% wrong: 64 threads reach 67%
choice = (64, "blocks")

# %% wrong: not full
choice = (100, "registers")

# %% wrong: allows the fewest blocks
choice = (256, "warps")

# %% wrong: cannot be launched
choice = (2048, "warps")

# %% wrong: one of warps, registers, shared, blocks
choice = (128, "register")

# %% wrong: expects a block size and a limiter
choice = 256
