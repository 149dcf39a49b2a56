"""01.7: fit registers and shared memory to an occupancy."""

# %% exercise
id = "01.7"
title = "fit registers and shared memory to an occupancy"
answer_name = "fitted"

# %% stub
fitted = (..., ...)  # registers of a thread, bytes of shared memory of a block

# %% hint
# 75 % of 64 warps are 48 warps: six blocks of eight.

# %% hint
# Divide the 65,536 registers by six blocks and 256 threads. Round down to a multiple of 8.

# %% hint
# Divide the 228 KiB by six. The driver takes 1 KiB of each share.

# %% solution
fitted = (40, 37 * 1024)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, plural

_THREADS, _SM, _WANTED = 256, "9.0", 0.75
_TWO = "registers of a thread and bytes of shared memory of a block"


def check(answer: Any) -> str:
    from gpulab import models

    listed = checking.listed(answer)
    if not isinstance(listed, (tuple, list)) or len(listed) != 2:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects {_TWO}.")
    registers, shared = (checking.number(value, _TWO) for value in listed)
    if registers != int(registers) or shared != int(shared) or not 1 <= registers <= 255 or not 0 <= shared <= 2**20:
        raise Refused(f"{registers:g} registers and {shared:g} bytes: a thread has 1 to 255 registers, and bytes are whole.")
    r, b = int(registers), int(shared)
    if b and b < 1024:
        raise Refused(f"{b} bytes of shared memory: did you write KiB? The check expects bytes.")

    if b % 1024:
        raise Refused(f"{b:,} bytes are not a whole number of KiB. A KiB has 1,024 bytes.")

    def ratio(registers: int, shared: int) -> float:
        return models.occupancy(_THREADS, registers, shared, _SM).ratio

    if ratio(r, 0) < _WANTED:
        raise Refused(
            f"With {r} registers the occupancy is {ratio(r, 0):.0%}, even without shared memory. The blocks on an SM share its 65,536 "
            "registers. A warp gets them in steps of 256, which is eight for each thread."
        )
    if ratio(r, b) < _WANTED:
        raise Refused(
            f"With {format_bytes(b)} the occupancy is {ratio(r, b):.0%}. The blocks on an SM share its 228 KiB, and from 8.0 on the driver takes "
            "1 KiB more for each block."
        )
    if ratio(r + 1, b) >= _WANTED:
        raise Refused(
            f"{plural(r, 'register')} {'keeps' if r == 1 else 'keep'} {_WANTED:.0%}, but so do {r + 1}. Use as many as possible."
        )
    if ratio(r, b + 1024) >= _WANTED:
        raise Refused(f"{format_bytes(b)} keep {_WANTED:.0%}, but so do {format_bytes(b + 1024)}. Use as much as possible.")
    return f"{r} registers and {format_bytes(b)} keep {_WANTED:.0%} on {_SM}. With one register or one KiB more, one block fewer fits."

# %% wrong: in steps of 256
fitted = (42, 37 * 1024)

# %% wrong: 1 KiB more for each block
fitted = (40, 38 * 1024)

# %% wrong: but so do 33
fitted = (32, 37 * 1024)

# %% wrong: but so do 17.0 KiB
fitted = (40, 16 * 1024)

# %% wrong: A KiB has 1,024 bytes
fitted = (40, 37_000)

# %% wrong: did you write KiB
fitted = (40, 37)

# %% wrong: registers of a thread and bytes
fitted = 40
