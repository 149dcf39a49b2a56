"""00.7: from which size does the accelerator win?"""

# %% exercise
id = "00.7"
title = "from which size does the accelerator win?"
answer_name = "wins_from"
loads = ["torch"]
machine = "the times of your CPU, beside those of the accelerator that it was set against"

# %% stub
wins_from = ...  # a size of the table above, or "never"

# %% hint
# Your data begins in main memory, and the result must end there. Which column counts?

# %% hint
# Start at the largest size and go down. Stop where the accelerator with copies is no longer faster
# than the CPU.

# %% solution
import gpulab as gl

wins_from = "never"
for row in reversed(gl.lessons.contest().rows):  # from the largest size down
    if row.with_copies_seconds >= row.cpu_seconds:
        break
    wins_from = row.n

# %% check
from typing import Any
from gpulab.lessons import checking, contest as measured_contest
from gpulab.lessons._material import Contest
from gpulab.lessons.content import Refused, Seen
from gpulab.units import format_seconds


def check(answer: Any) -> str:
    contest = measured_contest()
    rows = {row.n: row for row in contest.rows}
    right = contest.wins_from
    if isinstance(answer, str):
        if answer.strip().lower() != "never":
            raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a size of the table as a number, or 'never'.")
        if right is None:
            return "With the copies, the CPU is faster at the largest size of the table."
        raise Refused(f"It does win. At {contest.size_meaning} = {right}, compare the column with copies with that of the CPU.")
    size = checking.number(answer, "a size of the table, or 'never'")
    if size not in rows:
        raise Refused(f"{size:g} is not in the table; the check expects one of {', '.join(map(str, rows))}, or 'never'.")
    row = rows[int(size)]
    cpu, other = format_seconds(row.cpu_seconds), format_seconds(row.with_copies_seconds)
    times = f"at {row.n} the CPU takes {cpu} and the accelerator with copies {other}"
    if row.n == right:
        return f"From there on the accelerator stays faster: {times}."
    if row.with_copies_seconds >= row.cpu_seconds:
        if row.accelerator_seconds < row.cpu_seconds:
            raise Refused(f"You left out the copies: {times}. Compare the column with copies.")
        raise Refused(f"There the CPU is faster: {times}.")
    if right is not None and row.n > right:
        raise Refused(f"It wins there, but it already wins at {right}.")
    raise Refused(f"It wins there, but loses again at a larger size: {times}. Which size is the first from which it stays faster?")


seen = Seen("contest matmul", Contest)

# %% wrong: is not in the table
wins_from = 1000

# %% wrong: There the CPU is faster
wins_from = 32

# %% wrong: You left out the copies
wins_from = 128

# %% wrong: already wins at 256
wins_from = 1024

# %% wrong: It does win
wins_from = "never"

# %% wrong: or 'never'
wins_from = "always"

# %% wrong: as a number
wins_from = "256"

# %% wrong: plain number
wins_from = True
