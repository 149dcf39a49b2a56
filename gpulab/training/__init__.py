"""Real training runs that the later notebooks share: small tasks, one loop with everything as an
option, results with intervals.
"""

from gpulab.training._data import Data
from gpulab.training._evaluate import evaluate
from gpulab.training._fit import fit
from gpulab.training._hidden import HiddenWaits, WaitSite, hidden_waits
from gpulab.training._ladder import ladder
from gpulab.training._ladder_recorded import RecordedLadder, RecordedRung, recorded_ladder
from gpulab.training._pipeline import pipeline
from gpulab.training._pipeline_model import model_pipeline, replay
from gpulab.training._pipeline_results import PipelineResult, StepSpan
from gpulab.training._profile import OperatorCost, Profile, ProfileSpan, profile
from gpulab.training._recorded import RecordedStep, RecordedSteps, recorded_steps
from gpulab.training._report import speedup_report
from gpulab.training._run import Run
from gpulab.training._scripts import compare_scripts
from gpulab.training._seeds import evaluate_models, over_seeds
from gpulab.training._tasks import Task, task, tasks
from gpulab.training._techniques import START, Technique, techniques
from gpulab.training.comparisons import SeedsAccuracy, SeedsResult
from gpulab.training.ladder_results import Gain, LadderForm, LadderResult, Learned, LeftOut, Rung
from gpulab.training.results import PHASES, Accuracy, FitResult, Options
from gpulab.training.script_results import ScriptsResult

__all__ = [
    "PHASES",
    "START",
    "Accuracy",
    "Data",
    "FitResult",
    "Gain",
    "HiddenWaits",
    "LadderForm",
    "LadderResult",
    "Learned",
    "LeftOut",
    "OperatorCost",
    "Options",
    "PipelineResult",
    "Profile",
    "ProfileSpan",
    "RecordedLadder",
    "RecordedRung",
    "RecordedStep",
    "RecordedSteps",
    "Run",
    "Rung",
    "ScriptsResult",
    "SeedsAccuracy",
    "SeedsResult",
    "StepSpan",
    "Task",
    "Technique",
    "WaitSite",
    "compare_scripts",
    "evaluate",
    "evaluate_models",
    "fit",
    "hidden_waits",
    "ladder",
    "model_pipeline",
    "over_seeds",
    "pipeline",
    "profile",
    "recorded_ladder",
    "recorded_steps",
    "replay",
    "speedup_report",
    "task",
    "tasks",
    "techniques",
]
