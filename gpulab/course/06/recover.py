"""06.14: recover without a restart."""

# %% exercise
id = "06.14"
title = "recover without a restart"
answer_name = "recover"
live = True
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo"]

# %% stub
def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    ...  # the error is torch.OutOfMemoryError

# %% hint
# What is still alive while Python is inside the except block? Start the next attempt after the
# block.

# %% hint
# while batch >= 1: try the step and return; except torch.OutOfMemoryError: pass; after the block,
# batch //= 2. And after the loop?

# %% solution
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while batch >= 1:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass  # nothing here: the error and what it holds end with this block
        batch //= 2
    raise torch.OutOfMemoryError("not even one item fits")

# %% check
from collections.abc import Callable
from typing import Any
from gpulab import _validate, memory
from gpulab.errors import InputError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_bytes, plural

_MIB = 2**20
_ROOM = 8 * _MIB
_ROW_BYTES = 8192  # of one item of the batch, in each tensor of the step
_MOST_STEPS = 100  # halving needs 13 from 4096 down to 1


class _Attempts:
    """A training step that needs memory, and a record of how it was called."""

    def __init__(self, room: int) -> None:
        self.room = memory.limit(room, "cpu", on_top=True)
        self.batches: list[int] = []
        self.held: list[int] = []  # live bytes at the start of each step
        self.done: list[int] = []  # batches of the steps that finished

    def step(self, batch: int) -> None:
        """Take a step on ``batch`` items: it makes four tensors of ``batch`` rows, and all four are alive at its end."""
        import torch

        if not isinstance(batch, bool) and batch == 0:
            raise Refused(
                "Where not even one item fits, your function calls step(0). A step on no items needs no memory: it succeeds, with a loss "
                "of nan. End at 1, and raise an error."
            )
        if len(self.batches) >= _MOST_STEPS:
            raise Refused(
                f"Your function called step more than {_MOST_STEPS} times, the last time with {batch}. A batch that does not fit once does not fit later either."
            )
        if not _validate.is_whole(batch) or batch < 1:
            raise InputError(f"step: a batch of {batch!r}; expected a whole number from 1. Halve with //.")
        batch = int(batch)
        self.batches.append(batch)
        self.held.append(self.room.live_bytes)
        kept = [torch.zeros(batch, _ROW_BYTES // 4)]
        for _ in range(3):
            kept.append(kept[-1].clone())
        self.done.append(batch)


def check(answer: Any) -> str:
    import torch

    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a function to call.")
    for first, right, room in ((1024, 256, _ROOM), (100, 100, _ROOM), (4096, 256, _ROOM), (1000, 250, _ROOM), (4, 1, 4 * _ROW_BYTES)):
        diary = _Attempts(room)
        said = f"Started with a batch of {first} and {format_bytes(room)} of memory,"
        try:
            with diary.room:
                result = checking.call(answer, diary.step, first)
        except (NotAttempted, Refused) as error:
            if any(diary.held[1:]):
                raise Refused(
                    f"{said} your function ended with an error: it tried again while the tensors of the failed step were still alive, "
                    "inside `except` or with the error kept."
                ) from error
            if right == 1 and 2 in diary.batches and 1 not in diary.batches:
                raise Refused(f"{said} a batch of 1 fits, and your function gave up before it.") from error
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise Refused(f"{said} your function ended with the error: it gave up.") from error
            raise
        if any(diary.held[1:]):
            raise Refused(
                f"{said} a step began while {format_bytes(max(diary.held))} of a failed step were still alive: the error was kept. "
                "Leave the except block first, and keep no name for the error."
            )
        if not diary.done:
            raise Refused(f"{said} no step was finished. Try a smaller batch, until one fits.")
        if isinstance(result, bool) or result != diary.done[-1]:
            raise Refused(
                f"{said} a batch of {diary.done[-1]} fits, and you returned {checking.describe(result)}. Return the batch that fits."
            )
        if diary.done[-1] != right:
            raise Refused(f"{said} halving ends at a batch of {right}; your last step had {diary.done[-1]}.")
    _check_hopeless(answer)
    _check_another(answer)
    return (
        "From 1,024 and from 4,096 it ends at 256, from 1,000 at 250, from 4 at 1, and 100 fits at once. No tensor of a failed step was still alive "
        "when the next one began."
    )


def _tried(answer: Any, step: Callable[[int], None], batch: int) -> tuple[bool, Any]:
    """Return whether ``answer`` ended without an error, and its result (None after an error); a ``Refused`` from the step is raised."""
    try:
        return True, answer(step, batch)
    except Refused:
        raise
    except Exception:  # the step's error, or another one that the answer raised instead
        return False, None


def _check_hopeless(answer: Any) -> None:
    """Refuse a recovery that ends without an error although not even one item fits."""
    diary = _Attempts(_ROW_BYTES)  # room for one of the four tensors that one item needs
    with diary.room:
        fitted, result = _tried(answer, diary.step, 4)
    if fitted:
        raise Refused(
            f"In {format_bytes(_ROW_BYTES)} not even one item fits, and you returned {checking.describe(result)}. Raise an error there."
        )


def _check_another(answer: Any) -> None:
    """Refuse a recovery that also catches other errors: it would repeat a step that has a mistake, with ever smaller batches."""
    asked: list[int] = []

    def mistaken(batch: int) -> None:
        asked.append(batch)
        if len(asked) > _MOST_STEPS:
            raise Refused(f"Your function called step more than {_MOST_STEPS} times, though the error was not an out-of-memory error.")
        raise RuntimeError("the shapes of the step do not fit")

    _tried(answer, mistaken, 8)
    if len(asked) != 1:
        raise Refused(
            f"A step that fails for another reason (a RuntimeError: shapes that do not fit) was called {plural(len(asked), 'time')}. A "
            "smaller batch does not repair that: catch only torch.OutOfMemoryError, and let every other error pass."
        )

# %% wrong: inside `except`
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    try:
        step(batch)
        return batch
    except torch.OutOfMemoryError:
        return recover(step, batch // 2)

# %% wrong: it gave up
def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    step(batch)
    return batch

# %% wrong: no step was finished
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    try:
        step(batch)
    except torch.OutOfMemoryError:
        pass
    return batch

# %% wrong: your last step had 1
def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    step(1)
    return 1

# %% wrong: Started with a batch of 1000 and 8.00 MiB of memory, halving ends at a batch of 250; your last step had 232
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while batch >= 1:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        batch -= 256
    raise torch.OutOfMemoryError('none fits')

# %% wrong: Return the batch that fits
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while True:
        try:
            step(batch)
            return 0
        except torch.OutOfMemoryError:
            pass
        batch //= 2

# %% wrong: with a loss of nan
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while True:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        batch //= 2

# %% wrong: does not fit later either
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while True:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        batch = max(1, batch // 2)

# %% wrong: Raise an error there
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while batch >= 1:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        batch //= 2

# %% wrong: catch only torch.OutOfMemoryError
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while batch >= 1:
        try:
            step(batch)
            return batch
        except Exception:
            pass
        batch //= 2
    raise torch.OutOfMemoryError('none fits')

# %% wrong: a batch of 1 fits
import torch


def recover(step, batch):
    """Call step(batch); after an out-of-memory error, try half the batch, until it fits. Return the batch that fits."""
    while batch > 1:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass
        batch //= 2
    raise torch.OutOfMemoryError("not even one item fits")
