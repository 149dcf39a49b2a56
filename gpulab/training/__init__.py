"""Real training runs that the later notebooks share: small tasks, one configurable loop."""

from gpulab.training._loop import Run, fit
from gpulab.training._profile import (
    HiddenWaits,
    Profile,
    ProfileSpan,
    hidden_waits,
    profile,
)
from gpulab.training._scripts import compare_scripts, speedup_report
from gpulab.training.data_tasks import Data, Task, evaluate, evaluate_models, task, tasks
from gpulab.training.pipelines import PipelineResult, StepSpan, model_pipeline, pipeline, replay
from gpulab.training.run_results import (
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
)
from gpulab.training.speedup_ladder import (
    START,
    RecordedLadder,
    Technique,
    ladder,
    recorded_ladder,
    techniques,
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
    "Options",
    "PipelineResult",
    "Profile",
    "ProfileSpan",
    "RecordedLadder",
    "Run",
    "Rung",
    "ScriptsResult",
    "SeedsAccuracy",
    "StepSpan",
    "Task",
    "Technique",
    "compare_scripts",
    "evaluate",
    "evaluate_models",
    "fit",
    "hidden_waits",
    "ladder",
    "model_pipeline",
    "pipeline",
    "profile",
    "recorded_ladder",
    "replay",
    "speedup_report",
    "task",
    "tasks",
    "techniques",
]
