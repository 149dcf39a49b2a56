"""The questions of notebook 05, on mixed precision."""

from __future__ import annotations

from typing import Any

from gpulab.lessons._nb05_exercises import BYTES, CHOOSE, POLICY, SCALES
from gpulab.lessons._nb05_rescue import RESCUE
from gpulab.lessons.content import Lesson, Question, Reading, Unmeasured
from gpulab.memory import Prediction as MemoryPrediction
from gpulab.precision import AutocastPolicy, GradientWindow, SumError, Updates
from gpulab.training import Accuracy, FitResult

LIKE_FLOAT32 = "it learns about as well as in float32"
A_BIT_WORSE = "it learns, but the accuracy is clearly lower"
TURNS_NAN = "the loss becomes nan within a few steps"
STANDS = "it learns nothing: the loss stays where it was"
NAIVE = Question(
    "05.1",
    (
        Reading(
            lambda said, _: said == LIKE_FLOAT32,
            "The 10 bits would have been enough. What the network dies of is a single constant; you will find it below.",
        ),
        Reading(
            lambda said, _: said == A_BIT_WORSE,
            "Half precision does not halve the accuracy. It either works or it breaks, and where it breaks is what this notebook is about.",
        ),
    ),
    outcome=lambda run: _ended(run) if isinstance(run, FitResult) else run,
)


def _ended(run: FitResult) -> str:
    if run.ended == "diverged":
        return TURNS_NAN
    if run.ended != "finished" or len(run.losses) < 2:
        raise Unmeasured(f"the run {run.ended}. Run the cell above again.")
    return STANDS if run.losses[-1] > 0.9 * run.losses[0] else LIKE_FLOAT32


ONES = Question(
    "05.2",
    (
        Reading(
            lambda said, got: said > 60000 > got,
            "The sum never comes near the largest number. It gets stuck where the next number is more than one away.",
        ),
        Reading(
            lambda said, got: said >= 9999 > got,
            "The format holds numbers up to 65,504, but not each of them: from 2,048 on they are 2 apart, and 2,048 + 1 lies midway.",
        ),
        Reading(
            lambda said, got: said < got,
            "All whole numbers up to 2,048 are there: 10 bits of mantissa and the leading 1 that is not stored.",
        ),
    ),
    outcome=lambda s: s.row("float16").total if isinstance(s, SumError) else s,
    close_ratio=1.001,
)

SWALLOWED = Question(
    "05.4",
    (
        Reading(
            lambda said, got: said < got,
            "A typical update is about a thousandth of its weight, and bfloat16 has 8 significant bits: half of a unit in the last place "
            "is a five-hundredth to a two-hundred-and-fiftieth of the weight.",
        ),
        Reading(lambda said, got: said > got, "Small weights have small spacings: an update of usual size still reaches those."),
    ),
    outcome=lambda u: 100 * u.swallowed_share if isinstance(u, Updates) else u,
    close_ratio=1.5,
)

MENDS = "yes, with the right scale"
NO_SCALE = "no, whatever the scale"
EPSILON = Question(
    "05.5",
    (
        Reading(
            lambda said, _: said == MENDS,
            "A scale moves the gradients. What became zero here is Adam's epsilon, which no gradient is multiplied with.",
        ),
    ),
)

VANISHED = Question(
    "05.6",
    (
        Reading(
            lambda said, got: said < got,
            "A network that has learned makes small errors, and small errors have small gradients. Most of those that vanish are those of "
            "the activations, which everything before them is multiplied with.",
        ),
        Reading(lambda said, got: said > got, "Many are small, but float16 goes down to 6e-8 before it loses a gradient entirely."),
    ),
    outcome=lambda w: 100 * w.vanishing_share if isinstance(w, GradientWindow) else w,
    close_ratio=1.6,
)

SAME = "about the same"
NOTHING = "it learns nothing"
INFINITE = "it becomes infinite or nan"
SMALL_LOSS = Question(
    "05.8",
    (
        Reading(
            lambda said, got: said == SAME and got == NOTHING,
            "In exact arithmetic both factors cancel, and in float32 they nearly do. In float16 the gradients are zero before the learning "
            "rate could make up for it.",
        ),
        Reading(
            lambda said, got: said == INFINITE and got == NOTHING,
            "Nothing is too large here: the rate multiplies float32 weights' gradients, which arrive as zeros.",
        ),
    ),
    outcome=lambda a: _learned(a) if isinstance(a, Accuracy) else a,
)


def _learned(accuracy: Accuracy) -> str:
    """Ten digits: guessing gets a tenth right."""
    if accuracy.loss != accuracy.loss:  # nan
        return INFINITE
    return NOTHING if accuracy.ratio < 0.25 else SAME


BOTH_LOW = "in the lower precision on both"
BOTH_HIGH = "in float32 on both"
CUDA_HIGH = "in float32 on CUDA, in the lower precision on a CPU"
CPU_HIGH = "in float32 on a CPU, in the lower precision on CUDA"
NORMS = Question(
    "05.10",
    (
        Reading(
            lambda said, got: got == CUDA_HIGH and said in (BOTH_LOW, BOTH_HIGH),
            "Autocast is one name for two policies. Each device has its own lists, and layer_norm is on CUDA's only.",
        ),
        Reading(
            lambda said, got: got == CUDA_HIGH and said == CPU_HIGH,
            "Two policies there are, but the other way round: layer_norm is on CUDA's list of what runs in float32, and not on the CPU's.",
        ),
    ),
    outcome=lambda pair: _norms(*pair) if isinstance(pair, tuple) and len(pair) == 2 else pair,
    sides=lambda pair: {"the CPU": pair[0].evidence, "CUDA": pair[1].evidence} if isinstance(pair, tuple) else {},
)


def _norms(cpu: Any, cuda: Any) -> str:
    """What layer_norm runs in when its input is of the lower precision, as it is behind a linear layer."""
    if not (isinstance(cpu, AutocastPolicy) and isinstance(cuda, AutocastPolicy)):
        raise Unmeasured("expected the two policies. Run the cells above again.")
    high = [(row.policy or row.documented) == "float32" for row in (cpu.row("layer_norm"), cuda.row("layer_norm"))]
    return {(True, True): BOTH_HIGH, (False, False): BOTH_LOW, (False, True): CUDA_HIGH, (True, False): CPU_HIGH}[(high[0], high[1])]


MEMORY = Question(
    "05.12",
    (
        Reading(
            lambda said, got: said <= 60 < got,
            "Only what the layers save for the backward pass gets shorter. Weights, gradients and Adam's two numbers for each weight stay "
            "float32, and the copies that autocast makes come on top.",
        ),
        Reading(lambda said, got: said > got, "The activations of the products are saved in 16 bits, so something is saved."),
    ),
    outcome=lambda pair: _memory(*pair) if isinstance(pair, tuple) and len(pair) == 2 else pair,
    sides=lambda pair: {"autocast": pair[0].evidence, "float32": pair[1].evidence} if isinstance(pair, tuple) else {},
    close_ratio=1.15,
)


def _memory(mixed: Any, full: Any) -> float:
    if not (isinstance(mixed, MemoryPrediction) and isinstance(full, MemoryPrediction)):
        raise Unmeasured("expected two predictions of memory. Run the cell above again.")
    return 100 * mixed.peak_bytes / full.peak_bytes


LESSON = Lesson(
    "05_mixed_precision",
    {each.id: each for each in (NAIVE, ONES, SWALLOWED, EPSILON, VANISHED, SMALL_LOSS, NORMS, MEMORY)},
    {each.id: each for each in (CHOOSE, SCALES, RESCUE, POLICY, BYTES)},
)
