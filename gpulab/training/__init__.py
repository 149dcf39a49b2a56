"""Real training runs that the later notebooks share: small tasks, one configurable loop."""

from gpulab.training._evaluate import evaluate, evaluate_models
from gpulab.training._fit import fit, over_seeds
from gpulab.training._hidden import HiddenWaits, WaitSite, hidden_waits
from gpulab.training._ladder import ladder
from gpulab.training._pipeline_results import PipelineResult, StepSpan, model_pipeline, replay
from gpulab.training._profile import OperatorCost, Profile, ProfileSpan, profile
from gpulab.training._run import Run
from gpulab.training._scripts import compare_scripts, speedup_report
from gpulab.training._techniques import START, Technique, techniques
from gpulab.training.data_tasks import Data, Task, task, tasks
from gpulab.training.ladder_recordings import (
    RecordedLadder,
    RecordedRung,
    RecordedStep,
    RecordedSteps,
    recorded_ladder,
    recorded_steps,
)
from gpulab.training.pipelines import pipeline
from gpulab.training.results import (
    PHASES,
    Accuracy,
    FitResult,
    Gain,
    LadderForm,
    LadderResult,
    Learned,
    LeftOut,
    Options,
    Rung,
    ScriptsResult,
    SeedsAccuracy,
    SeedsResult,
)

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
