"""The exercises of notebook 06 on memory: train within a budget, and recover from an out-of-memory error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from gpulab import _given, memory, training
from gpulab.errors import InputError
from gpulab.lessons import _guard, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.units import format_bytes, plural

_MIB = 2**20

# -- 06.12: a budget ----------------------------------------------------------------------------------------------------------

TASK, BATCH, BUDGET_BYTES, MOST_PARTS = "prose-transformer", 256, 30 * _MIB, 4
_PRECISIONS = ("float32", "bfloat16", "float16")


@functools.cache
def predicted_peak_bytes(part: int, checkpoint: bool, precision: str) -> int:
    """Return the memory that a step of the notebook's transformer needs for a part of the batch, on a CPU, as ``predict`` says."""
    import torch

    task = training.task(TASK)
    inputs, targets = task.train[list(range(part))]

    def loss(scores: Any, wanted: Any) -> Any:
        return torch.nn.functional.cross_entropy(scores.flatten(0, -2), wanted.flatten())

    model = task.make_model()
    found = memory.predict(model, inputs, targets=targets, loss=loss, checkpoint=checkpoint, precision=precision, device="cpu")
    return found.peak_bytes


def _check_budget(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"accumulate", "checkpoint", "precision"}:
        raise Refused(
            f'Your answer is {_guard.describe(answer)}; the check expects {{"accumulate": ..., "checkpoint": ..., "precision": ...}}.'
        )
    if any(_guard.is_stub(value) for value in answer.values()):
        raise NotAttempted
    parts, checkpoint, precision = (_guard.plain(answer[name]) for name in ("accumulate", "checkpoint", "precision"))
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
        raise Refused(f"accumulate is {_guard.describe(parts)}; the batch may be cut into 1 to {MOST_PARTS} parts here.")
    if not isinstance(checkpoint, bool):
        raise Refused(f"checkpoint is {_guard.describe(checkpoint)}; it is True or False.")
    if not isinstance(precision, str) or precision not in _PRECISIONS:
        raise Refused(f"precision is {_guard.describe(precision)}; it is one of {', '.join(_PRECISIONS)}.")
    part = -(-BATCH // parts)
    needed = predicted_peak_bytes(part, checkpoint, precision)
    said = f"Parts of {part} windows, {precision}, {'with' if checkpoint else 'without'} checkpointing need {format_bytes(needed)}"
    if needed > BUDGET_BYTES:
        more = "one of the means alone does not reach; take a second." if (parts > 1) + checkpoint + (precision != "float32") == 1 else (
            "nothing is saved yet." if parts == 1 and not checkpoint and precision == "float32" else "cut the batch into more parts."
        )  # fmt: skip
        raise Refused(f"{said}, and there are {format_bytes(BUDGET_BYTES)}: {more}")
    return f"{said} (MODELLED), within {format_bytes(BUDGET_BYTES)}, and every update still learns from {BATCH} windows."


BUDGET = Exercise(
    id="06.12",
    title="train within a budget",
    answer_name="means",
    stub='means = {"accumulate": ..., "checkpoint": ..., "precision": ...}',
    solution='means = {"accumulate": 4, "checkpoint": True, "precision": "float32"}',
    hints=(
        "Activations grow with what is computed at once. Four parts need about a quarter of them.",
        "Half precision stores the activations in two bytes; checkpointing keeps only those between the layers.",
        "One means is not enough here; four parts and one more are. gl.memory.predict tells before you run anything.",
    ),
    check=_check_budget,
    usual=(
        Usual('means = {"accumulate": 4, "checkpoint": False, "precision": "float32"}', "take a second"),
        Usual('means = {"accumulate": 1, "checkpoint": True, "precision": "bfloat16"}', "more parts"),
        Usual('means = {"accumulate": 16, "checkpoint": False, "precision": "float32"}', "1 to 4 parts"),
        Usual('means = {"accumulate": 1, "checkpoint": False, "precision": "float32"}', "nothing is saved yet"),
        Usual('means = {"accumulate": 4, "checkpoint": True, "precision": "half"}', "it is one of"),
        Usual('means = {"accumulate": 4, "checkpoint": "all", "precision": "float32"}', "checkpoint is a str ('all'); it is True or False"),
    ),
    limit_seconds=60.0,
    loads=_loading.OBSERVED,
)

# -- 06.14: recover -----------------------------------------------------------------------------------------------------------

_ROOM = 8 * _MIB
_ROW_BYTES = 8192  # what one item of the batch takes in each of the step's tensors
_MOST_STEPS = 100  # halving needs 13 from 4096 down to 1


class _Attempts:
    """A training step that needs memory, and a diary of how it was called."""

    def __init__(self, room: int = _ROOM) -> None:
        self.room = memory.limit(room, "cpu", on_top=True)
        self.batches: list[int] = []
        self.held: list[int] = []  # what was there already when a step began
        self.done: list[int] = []

    def step(self, batch: int) -> None:
        """Take a step on so many items; four tensors of its size are alive at the end."""
        import torch

        if not isinstance(batch, bool) and batch == 0:
            raise Refused(
                "Where not even one item fits, your function calls step(0). A step on no items needs no memory: it succeeds, with a loss "
                "of nan. End at 1, and raise the error."
            )
        if len(self.batches) >= _MOST_STEPS:
            raise Refused(
                f"Your function called step more than {_MOST_STEPS} times, at last with {batch}. What does not fit once never will."
            )
        if not _given.is_whole(batch) or batch < 1:
            raise InputError(f"step: a batch of {batch!r}; expected a whole number from 1. Halve with //.")
        batch = int(batch)
        self.batches.append(batch)
        self.held.append(self.room.live_bytes)
        kept = [torch.zeros(batch, _ROW_BYTES // 4)]
        for _ in range(3):
            kept.append(kept[-1].clone())
        self.done.append(batch)


def _check_recover(answer: Any) -> str:
    import torch

    if not callable(answer):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a function to call.")
    for first, right in ((1024, 256), (100, 100), (4096, 256), (1000, 250)):
        diary = _Attempts()
        said = f"Begun with a batch of {first}, in {format_bytes(_ROOM)},"
        try:
            with diary.room:
                result = _guard.call(answer, diary.step, first)
        except Refused as error:
            if any(diary.held[1:]):
                raise Refused(
                    f"{said} your function ended with an error: it tried again inside `except`, where the failed step's tensors are "
                    "still alive."
                ) from error
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise Refused(f"{said} your function ended with the error: it gave up.") from error
            raise
        if any(diary.held[1:]):
            raise Refused(
                f"{said} a step began while {format_bytes(max(diary.held))} of a failed one were still alive: the error was kept. "
                "Leave the except block first, and keep no name for the error."
            )
        if not diary.done:
            raise Refused(f"{said} no step was finished. Try again with a smaller batch, until one fits.")
        if isinstance(result, bool) or result != diary.done[-1]:
            raise Refused(
                f"{said} a batch of {diary.done[-1]} fitted, and you returned {_guard.describe(result)}. Return the batch that fitted."
            )
        if diary.done[-1] != right:
            raise Refused(f"{said} a batch of {right} fits when you halve; your last step had {diary.done[-1]}.")
    _check_hopeless(answer)
    _check_another(answer)
    return (
        "Begun with 1,024 and with 4,096 it ends at 256, which fits, and with 1,000 at 250; 100 fits at once; and nothing of the failed "
        "steps was left alive."
    )


def _tried(answer: Any, step: Callable[[int], None], batch: int) -> tuple[bool, Any]:
    """Return whether a recovery came to its end without an error, and what it returned then; what the step itself refuses is raised."""
    try:
        return True, answer(step, batch)
    except Refused:
        raise
    except Exception:  # the step's own, or what the answer made of it
        return False, None


def _check_hopeless(answer: Any) -> None:
    """Refuse a recovery that does not end with an error where not even one item fits."""
    diary = _Attempts(_ROW_BYTES)  # of the four tensors of one item, one fits
    with diary.room:
        fitted, result = _tried(answer, diary.step, 4)
    if fitted:
        raise Refused(
            f"In {format_bytes(_ROW_BYTES)} not even one item fits, and you returned {_guard.describe(result)}. Raise an error there."
        )


def _check_another(answer: Any) -> None:
    """Refuse a recovery that takes any error for one of memory: a mistake in the step would be tried again with ever smaller batches."""
    asked: list[int] = []

    def mistaken(batch: int) -> None:
        asked.append(batch)
        if len(asked) > _MOST_STEPS:
            raise Refused(f"Your function called step more than {_MOST_STEPS} times, though its error was not one of memory.")
        raise RuntimeError("the shapes of the step do not fit")

    _tried(answer, mistaken, 8)
    if len(asked) != 1:
        raise Refused(
            f"A step whose error is not one of memory (a RuntimeError: shapes that do not fit) was called {plural(len(asked), 'time')}. A "
            "smaller batch does not mend that: catch torch.OutOfMemoryError alone, and let any other error pass."
        )


_RECOVER = '''def recover(step, batch):
    """Call step(batch); after an out-of-memory error with half the batch, until it fits. Return the batch that fitted."""
'''

RECOVER = Exercise(
    id="06.14",
    title="recover without a restart",
    answer_name="recover",
    stub=_RECOVER + "    ...  # the error is torch.OutOfMemoryError",
    solution="import torch\n\n\n"
    + _RECOVER
    + """\
    while batch >= 1:
        try:
            step(batch)
            return batch
        except torch.OutOfMemoryError:
            pass  # nothing here: the error, and what it holds, end with this block
        batch //= 2
    raise torch.OutOfMemoryError("not even one item fits")""",
    hints=(
        "What is still alive while Python is inside the except block? Do the next try behind it.",
        "A while loop as long as batch >= 1: try to step and return; except: pass; then, below, batch //= 2. And behind the loop?",
    ),
    check=_check_recover,
    limit_seconds=60.0,
    loads=_loading.STEPS,
    usual=(
        Usual(
            "import torch\n\n\n" + _RECOVER + "    try:\n        step(batch)\n        return batch\n    except torch.OutOfMemoryError:\n"
            "        return recover(step, batch // 2)",
            "inside `except`",
        ),
        Usual(_RECOVER + "    step(batch)\n    return batch", "it gave up"),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    try:\n        step(batch)\n    except torch.OutOfMemoryError:\n"
            "        pass\n    return batch",
            "no step was finished",
        ),
        Usual(_RECOVER + "    step(1)\n    return 1", "your last step had 1"),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while batch >= 1:\n        try:\n            step(batch)\n            return batch\n"
            "        except torch.OutOfMemoryError:\n            pass\n        batch -= 256\n    raise torch.OutOfMemoryError('none fits')",
            "Begun with a batch of 1000, in 8.00 MiB, a batch of 250 fits when you halve; your last step had 232",
        ),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while True:\n        try:\n            step(batch)\n            return 0\n"
            "        except torch.OutOfMemoryError:\n            pass\n        batch //= 2",
            "Return the batch that fitted",
        ),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while True:\n        try:\n            step(batch)\n            return batch\n"
            "        except torch.OutOfMemoryError:\n            pass\n        batch //= 2",
            "with a loss of nan",
        ),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while True:\n        try:\n            step(batch)\n            return batch\n"
            "        except torch.OutOfMemoryError:\n            pass\n        batch = max(1, batch // 2)",
            "never will",
        ),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while batch >= 1:\n        try:\n            step(batch)\n            return batch\n"
            "        except torch.OutOfMemoryError:\n            pass\n        batch //= 2",
            "Raise an error there",
        ),
        Usual(
            "import torch\n\n\n" + _RECOVER + "    while batch >= 1:\n        try:\n            step(batch)\n            return batch\n"
            "        except Exception:\n            pass\n        batch //= 2\n    raise torch.OutOfMemoryError('none fits')",
            "catch torch.OutOfMemoryError alone",
        ),
    ),
)  # fmt: skip
