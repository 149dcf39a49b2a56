"""The questions and exercises of notebook 02, on the road between main memory and a GPU."""

from __future__ import annotations

from gpulab.lessons._content import Lesson, Question, Reading
from gpulab.lessons._nb02_exercises import CHUNKS, FIT, FRUGAL, SHARE
from gpulab.lessons._road import TwoKinds

LOOP = Question(
    "02.1",
    (
        Reading(
            lambda predicted, measured: "CPU" in measured,
            "The computing on the GPU is faster, and the copies eat it: the data travel twice for every step, "
            "whether that is needed or not.",
        ),
        Reading(
            lambda predicted, measured: "GPU" in measured,
            "Here, now, the GPU is ahead even with its copies; look at how much of its time they take all the same. If the CPU's notes "
            "say contended, other programs slowed it: run the cells again when it is quiet.",
        ),
    ),
)

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
