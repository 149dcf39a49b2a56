"""The questions and exercises of notebook 02, on the road between main memory and a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab.lessons._material import disturbed
from gpulab.lessons._nb02_exercises import CHUNKS, FIT, FRUGAL, SHARE
from gpulab.lessons._road import TwoKinds
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.units import format_seconds

LOOP = Question(
    "02.1",
    (
        Reading(
            lambda predicted, measured: "CPU" in measured,
            "The copies eat what the GPU may gain: the data travel twice for every step, whether that is needed or not. "
            "Look at what they take of its bill.",
        ),
        Reading(
            lambda predicted, measured: "GPU" in measured,
            "On this machine even the copies do not make up for what the GPU gains. Look at how much of its time they take all the same.",
        ),
    ),
    outcome=lambda pair: _faster(pair) if _is_pair(pair) else pair,
    sides=lambda pair: {name: each.evidence for name, each in pair.items()} if _is_pair(pair) else {},
)


def _is_pair(given: Any) -> bool:
    """Return whether it is the CPU's measurement and the GPU's bill, by their names."""
    kinds = {"the CPU": "median_seconds", "the GPU": "total_seconds"}
    return isinstance(given, Mapping) and set(given) == set(kinds) and all(hasattr(given[name], kind) for name, kind in kinds.items())


def _faster(pair: Mapping[str, Any]) -> str:
    """Return which of the CPU's measurement and the GPU's bill is the shorter."""
    cpu, bill = pair["the CPU"], pair["the GPU"]
    if cpu.median_seconds <= bill.total_seconds:
        return "the CPU"
    if disturbed(note.code for note in cpu.notes):  # that only makes the CPU slower, so it may have won all the same
        raise Unmeasured(
            f"other programs disturbed your CPU, so its {format_seconds(cpu.median_seconds)} may be far too long. "
            "When it is quiet, run the cell above and this one again."
        )
    return "the GPU"


LATENCY = Question(
    "02.3",
    (
        Reading(
            lambda predicted, measured: predicted > 20,
            "64 times the bytes, but not 64 times the time: a small copy spends its time on being started, not on bytes. "
            "Bandwidth is not all that matters.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "A small copy spends most of its time on being started, so size hardly matters yet.",
        ),
    ),
    outcome=lambda link: link.seconds(64 * 1024) / link.seconds(1024) if hasattr(link, "seconds") else link,
    close_ratio=1.5,
)

HALF = Question(
    "02.4",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "Copies must be larger than that before the bytes, and not the start, take most of the time. "
            "Send one large array rather than many small ones.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The start of a copy is cheaper than you thought, so smaller copies already use half of the link.",
        ),
    ),
    outcome=lambda fit: fit.half_bandwidth_bytes if hasattr(fit, "half_bandwidth_bytes") else fit,
)

PINNED = Question(
    "02.6",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.1 < measured,
            "It is the same memory chip, but the GPU may only fetch from pages that cannot move. From ordinary memory the "
            "driver first copies everything into pinned pages of its own.",
        ),
    ),
    outcome=lambda kinds: kinds.ratio if isinstance(kinds, TwoKinds) else kinds,
    close_ratio=1.3,
)

STALE = Question(
    "02.7",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "The call that starts the copy has returned; the copy has not happened yet. Nothing warns you: you read "
            "numbers, and they are old.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured > 0,
            "A part of the copy had arrived by the time you looked, and the rest had not. How much differs from run to run: that is what "
            "makes the mistake hard to find.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The copy was quicker than the reading this time. That is what makes the mistake hard to find: it depends on luck.",
        ),
    ),
    outcome=lambda read: 100 * read.stale_ratio if hasattr(read, "stale_ratio") else read,
    close_ratio=1.25,
)

ITEM = Question(
    "02.10",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "Four bytes are nothing; starting a copy is not. And while the host waits for the number it gives the GPU no new work.",
        ),
    ),
    outcome=lambda link: 1000 * link.seconds(4) if hasattr(link, "seconds") else link,
    close_ratio=3.0,
)

STEP_MEMORY = Question(
    "02.11",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.5,
            "The parameters are only a part: each has a gradient of its own size, Adam keeps two more numbers for each, "
            "and the activations wait for the backward pass.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Gradients (once the parameters) and Adam's two averages (twice) make four; the activations come on top.",
        ),
    ),
    outcome=lambda m: m.peak_bytes / m.peak_by_category["parameters"] if hasattr(m, "peak_by_category") else m,
    close_ratio=1.3,
)

LESSON = Lesson(
    "02_data_transfer",
    {question.id: question for question in (LOOP, LATENCY, HALF, PINNED, STALE, ITEM, STEP_MEMORY)},
    {exercise.id: exercise for exercise in (FRUGAL, FIT, CHUNKS, SHARE)},
)
