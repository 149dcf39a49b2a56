"""The learner's side of a lesson: predictions, checked exercises, hints, solutions and progress.

This package does not import widgets, figures or IPython, so the same cells work in a plain script.
The progress is stored in ``.gpulab/progress.json`` of the working directory, or in the file that
``GPULAB_PROGRESS`` names. An instructor decides with ``GPULAB_SOLUTIONS`` or ``.gpulab/class.json``
when solutions are shown (see ``_progress.policy``).
"""

from gpulab.lessons._climb import climb, compiled
from gpulab.lessons._grades import Rubric, grade
from gpulab.lessons._idioms import rosetta
from gpulab.lessons._material import (
    contest,
    five_works,
    four_claims,
    hang,
    memory_curve,
    roof,
    side_by_side,
    timeline,
    trained,
)
from gpulab.lessons._predictions import Prediction, answer, predict, reveal
from gpulab.lessons._progress import progress, start_again
from gpulab.lessons._report import StudentReport, report, write_report
from gpulab.lessons.checking import CheckResult, check, hint, solution
from gpulab.lessons.classes import Classroom, classroom, read_report
from gpulab.lessons.parallel_checks import torchrun

__all__ = [
    "CheckResult",
    "Classroom",
    "Prediction",
    "Rubric",
    "StudentReport",
    "answer",
    "check",
    "classroom",
    "climb",
    "compiled",
    "contest",
    "five_works",
    "four_claims",
    "grade",
    "hang",
    "hint",
    "memory_curve",
    "predict",
    "progress",
    "read_report",
    "report",
    "reveal",
    "roof",
    "rosetta",
    "side_by_side",
    "solution",
    "start_again",
    "timeline",
    "torchrun",
    "trained",
    "write_report",
]


def __dir__() -> list[str]:
    return __all__
