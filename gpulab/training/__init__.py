"""Real training runs that the later notebooks share: small tasks, one loop with everything as an option, honest results."""

from gpulab.training._compile_cost import CompileCost, break_even_calls, compile_cost
from gpulab.training._data import Data
from gpulab.training._evaluate import evaluate
from gpulab.training._fit import fit
from gpulab.training._hidden import HiddenWaits, WaitSite, hidden_waits
from gpulab.training._pipeline import pipeline
from gpulab.training._pipeline_model import model_pipeline, replay
from gpulab.training._pipeline_results import PipelineResult, StepSpan
from gpulab.training._profile import OperatorCost, Profile, ProfileSpan, profile
from gpulab.training._race import Moment, race
from gpulab.training._recorded import RecordedStep, RecordedSteps, recorded_steps
from gpulab.training._run import Run
from gpulab.training._seeds import evaluate_models, over_seeds
from gpulab.training._tasks import Task, task, tasks
from gpulab.training.comparisons import RaceResult, SeedsAccuracy, SeedsResult
from gpulab.training.results import PHASES, Accuracy, FitResult, Options

__all__ = [
    "PHASES",
    "Accuracy",
    "CompileCost",
    "Data",
    "FitResult",
    "HiddenWaits",
    "Moment",
    "OperatorCost",
    "Options",
    "PipelineResult",
    "Profile",
    "ProfileSpan",
    "RaceResult",
    "RecordedStep",
    "RecordedSteps",
    "Run",
    "SeedsAccuracy",
    "SeedsResult",
    "StepSpan",
    "Task",
    "WaitSite",
    "break_even_calls",
    "compile_cost",
    "evaluate",
    "evaluate_models",
    "fit",
    "hidden_waits",
    "model_pipeline",
    "over_seeds",
    "pipeline",
    "profile",
    "race",
    "recorded_steps",
    "replay",
    "task",
    "tasks",
]
