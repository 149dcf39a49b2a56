"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
from gpulab.lessons.content import Unmeasured
from gpulab.memory import Prediction as MemoryPrediction
from gpulab.precision import AutocastPolicy, GradientWindow, SumError, Updates
from gpulab.training import Accuracy, FitResult


LIKE_FLOAT32 = "it learns about as well as in float32"
TURNS_NAN = "the loss becomes nan within a few steps"
STANDS = "it learns nothing: the loss stays where it was"


def _ended(run: FitResult) -> str:
    if run.ended == "diverged":
        return TURNS_NAN
    if run.ended != "finished" or len(run.losses) < 2:
        raise Unmeasured(f"the run {run.ended}. Run the cell above again.")
    return STANDS if run.losses[-1] > 0.9 * run.losses[0] else LIKE_FLOAT32

SAME = "about the same"
NOTHING = "it learns nothing"
INFINITE = "it becomes infinite or nan"


def _learned(accuracy: Accuracy) -> str:
    """Ten digits: guessing gets a tenth right."""
    if accuracy.loss != accuracy.loss:  # nan
        return INFINITE
    return NOTHING if accuracy.ratio < 0.25 else SAME

BOTH_LOW = "in the lower precision on both"
BOTH_HIGH = "in float32 on both"
CUDA_HIGH = "in float32 on CUDA, in the lower precision on a CPU"
CPU_HIGH = "in float32 on a CPU, in the lower precision on CUDA"


def _norms(cpu: Any, cuda: Any) -> str:
    """What layer_norm runs in when its input is of the lower precision, as it is behind a linear layer."""
    if not (isinstance(cpu, AutocastPolicy) and isinstance(cuda, AutocastPolicy)):
        raise Unmeasured("expected the two policies. Run the cells above again.")
    high = [(row.policy or row.documented) == "float32" for row in (cpu.row("layer_norm"), cuda.row("layer_norm"))]
    return {(True, True): BOTH_HIGH, (False, False): BOTH_LOW, (False, True): CUDA_HIGH, (True, False): CPU_HIGH}[(high[0], high[1])]


def _memory(mixed: Any, full: Any) -> float:
    if not (isinstance(mixed, MemoryPrediction) and isinstance(full, MemoryPrediction)):
        raise Unmeasured("expected two predictions of memory. Run the cell above again.")
    return 100 * mixed.peak_bytes / full.peak_bytes


outcome = {
    "05.1": lambda run: _ended(run) if isinstance(run, FitResult) else run,
    "05.2": lambda s: s.row("float16").total if isinstance(s, SumError) else s,
    "05.4": lambda u: 100 * u.swallowed_share if isinstance(u, Updates) else u,
    "05.6": lambda w: 100 * w.vanishing_share if isinstance(w, GradientWindow) else w,
    "05.8": lambda a: _learned(a) if isinstance(a, Accuracy) else a,
    "05.10": lambda pair: _norms(*pair) if isinstance(pair, tuple) and len(pair) == 2 else pair,
    "05.12": lambda pair: _memory(*pair) if isinstance(pair, tuple) and len(pair) == 2 else pair,
}


sides = {
    "05.10": lambda pair: {"the CPU": pair[0].evidence, "CUDA": pair[1].evidence} if isinstance(pair, tuple) else {},
    "05.12": lambda pair: {"autocast": pair[0].evidence, "float32": pair[1].evidence} if isinstance(pair, tuple) else {},
}
