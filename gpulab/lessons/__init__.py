"""The learner's side of a lesson: predictions, checked exercises, hints, solutions and progress.

Nothing here imports a widget, a figure or IPython, so the same cells work in a plain script. The progress lives in
``.gpulab/progress.json`` of the working directory, or where ``GPULAB_PROGRESS`` says. An instructor decides with
``GPULAB_SOLUTIONS`` or ``.gpulab/class.json`` when solutions are shown (see ``_policy``).
"""

from gpulab.lessons._architecture import SideBySide, gpu_curves, memory_curve, side_by_side
from gpulab.lessons._beginners_script import beginners_script
from gpulab.lessons._checks import CheckResult, check, hint, solution
from gpulab.lessons._class_reading import classroom, read_report
from gpulab.lessons._classroom import Classroom, Student
from gpulab.lessons._climb import LadderTable, climb, compiled, instructions
from gpulab.lessons._columns import ColumnLoop, column_loop
from gpulab.lessons._density import roof
from gpulab.lessons._feeding import Feeding, feeding
from gpulab.lessons._five_times import FiveTimes, UsualTimings, five_times, usual_timings
from gpulab.lessons._five_works import five_works
from gpulab.lessons._grades import Grades, grade
from gpulab.lessons._hangs import hang
from gpulab.lessons._idioms import Rosetta, RosettaRun, rosetta, tongues
from gpulab.lessons._lighter import Budget, budget, trained
from gpulab.lessons._material import contest, four_claims
from gpulab.lessons._predictions import KeptAnswer, Prediction, answer, known, predict
from gpulab.lessons._progress import Progress, ProgressRow, progress, start_again
from gpulab.lessons._recorded_gains import RecordedOverlap, Ridges, gpu_roofs, recorded_overlap, recorded_ridges, recorded_under_roof
from gpulab.lessons._recorded_gpus import gpu_streams
from gpulab.lessons._report import report, write_report
from gpulab.lessons._report_schema import StudentReport
from gpulab.lessons._retraces import Retraces, retraces
from gpulab.lessons._reveal import Reveal, reveal
from gpulab.lessons._rubric import Rubric
from gpulab.lessons._sharded import Sharded, sharded
from gpulab.lessons._speedup import (
    LadderClaims,
    StepOfParts,
    TechniqueGains,
    ladder_claims,
    recorded_ladders,
    step_of_parts,
    technique_gains,
)
from gpulab.lessons._three_cases import ThreeCases, three_cases
from gpulab.lessons._timelines import RecordedOptions, recorded_options, timeline
from gpulab.lessons._torchrun import torchrun
from gpulab.lessons._worker import WorkQueue

__all__ = [
    "Budget",
    "CheckResult",
    "Classroom",
    "ColumnLoop",
    "Feeding",
    "FiveTimes",
    "Grades",
    "KeptAnswer",
    "LadderClaims",
    "LadderTable",
    "Prediction",
    "Progress",
    "ProgressRow",
    "RecordedOptions",
    "RecordedOverlap",
    "Retraces",
    "Reveal",
    "Ridges",
    "Rosetta",
    "RosettaRun",
    "Rubric",
    "Sharded",
    "SideBySide",
    "StepOfParts",
    "Student",
    "StudentReport",
    "TechniqueGains",
    "ThreeCases",
    "UsualTimings",
    "WorkQueue",
    "answer",
    "beginners_script",
    "budget",
    "check",
    "classroom",
    "climb",
    "column_loop",
    "compiled",
    "contest",
    "feeding",
    "five_times",
    "five_works",
    "four_claims",
    "gpu_curves",
    "gpu_roofs",
    "gpu_streams",
    "grade",
    "hang",
    "hint",
    "instructions",
    "known",
    "ladder_claims",
    "memory_curve",
    "predict",
    "progress",
    "read_report",
    "recorded_ladders",
    "recorded_options",
    "recorded_overlap",
    "recorded_ridges",
    "recorded_under_roof",
    "report",
    "retraces",
    "reveal",
    "roof",
    "rosetta",
    "sharded",
    "side_by_side",
    "solution",
    "start_again",
    "step_of_parts",
    "technique_gains",
    "three_cases",
    "timeline",
    "tongues",
    "torchrun",
    "trained",
    "usual_timings",
    "write_report",
]
