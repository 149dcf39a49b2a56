"""The sentences on how a run ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.errors import message_of
from gpulab.evidence import Note
from gpulab.training._options import SCALED
from gpulab.training.results import Options

# times the loss at the beginning (or that of guessing): no noise of batches does that
_SHOT_UP = 4.0
# whose steps do not grow with the gradients, so clipping those helps little
_ADAPTIVE = ("ada", "nadam", "radam", "rmsprop", "rprop")


def diverged_note(
    options: Options,
    losses: Sequence[float],
    bad: int | None,
    *,
    own_optimizer: bool = False,
    spoilt: int = 0,
    whole: bool = True,
) -> Note:
    """Say at which step the loss was lost, what it was before, and what to try.

    Parameters
    ----------
    bad : int or None
        The first step whose loss is not finite; None where only the last update broke the weights.
    own_optimizer : bool
        Whether a function made the optimizer, and so decided the learning rate.
    spoilt : int
        Items of that step's batch that are not finite in the run's precision.
    whole : bool
        Whether all weights were finite numbers before the first step.
    """
    if bad is None:
        when = (
            f"after the last step ({len(losses) - 1}, loss {losses[-1]:.3g}) the test's loss "
            "is not a finite number"
        )
    else:
        before = f", after {losses[bad - 1]:.3g} at the step before" if bad else ""
        when = f"the loss was {losses[bad]} at step {bad}{before}"
    if not whole:
        cause = (
            "The model had weights that are infinite or nan from the start. Pass "
            "task.make_model(seed), or a model from a good checkpoint."
        )
    elif spoilt:
        cause = (
            f"{spoilt} of the {options.batch_size} items of that batch hold numbers that are "
            f"infinite or nan in {options.precision}, so it "
            "is the data. Find them with torch.isfinite, and fix them or leave them out."
        )
    elif bad == 0 and options.precision in SCALED:
        cause = (
            "No update came before it, so the forward pass leaves the range of float16. Pass "
            'precision="bfloat16".'
        )
    elif bad == 0:
        cause = (
            "No update came before it, so it is the model itself. Look at its layers: "
            "task.loss(model, task.train[:8])."
        )
    else:
        cause = _advice(options, own_optimizer)
        if options.precision not in SCALED:
            cause += (
                " If that changes nothing, a layer makes the nan: look for a division by "
                "zero, or a root or logarithm of zero."
            )
    return Note("diverged", f"{when}. {cause}")


def _advice(options: Options, own_optimizer: bool) -> str:
    if options.precision == "pure-float16":
        return (
            'Pass precision="float16", which keeps float32 weights and scales the loss, or '
            '"bfloat16"; in pure float16 '
            "the optimizer's epsilon is zero, which makes the weights nan."
        )
    if options.precision in SCALED and options.loss_scale != "dynamic":
        return 'Leave loss_scale out, so that it is dynamic, or pass precision="bfloat16".'
    if own_optimizer:
        return "Give your optimizer a smaller learning rate."
    clip = (
        ""
        if options.clip is not None or options.optimizer.startswith(_ADAPTIVE)
        else ", or clip=1.0"
    )
    return f"Pass a smaller learning_rate (it was {options.learning_rate:g}){clip}."


def rising_note(
    options: Options, losses: Sequence[float], guessing: float, own_optimizer: bool
) -> Note | None:
    """Say that the loss shot up, where it did: Adam keeps such a run finite, and so do ReLUs that
    are all dead.

    Parameters
    ----------
    losses : sequence of float
        Finite.
    guessing : float
        The loss of a model that guesses. A run that begins under it, such as fine-tuning, may go up
        and down there.
    """
    top = max(range(len(losses)), key=losses.__getitem__)
    if losses[top] <= _SHOT_UP * max(losses[0], guessing):
        return None
    now = f", and is {losses[-1]:.3g} at the end" if top < len(losses) - 1 else ""
    where = f"the loss rose from {losses[0]:.3g} at step 0 to {losses[top]:.3g} at step {top}{now}"
    return Note("rising", f"{where}: the updates are too large. {_advice(options, own_optimizer)}")


def left_out_note(options: Options, skipped: int, steps: int, scale: float) -> Note | None:
    """Say that dynamic scaling left out most of the steps, where it did: the loss stands still
    then, and nothing else tells.
    """
    if 2 * skipped <= steps:
        return None
    told = (
        f"{skipped} of {steps} steps changed no weight, since gradients were infinite or nan "
        f"in float16; the loss scale fell to {scale:g}"
    )
    if scale < 1:
        return Note(
            "skipped",
            f"{told}, so the scale is not the cause. Train a few steps in float32 and find where "
            "the nan comes from.",
        )
    return Note(
        "skipped",
        f"{told} and may still settle. Take more steps, or start with a lower one: "
        f"loss_scale={max(scale / 2, 1):g}.",
    )


def unfinished_note(code: str, steps: int, options: Options) -> Note:
    """Say how far a run came that was stopped or interrupted."""
    who = "stopped" if code == "stopped" else "interrupted"
    return Note(
        code,
        f"the run was {who} after {steps} of {options.steps} steps; the result covers these steps. "
        "Run it again for all of them.",
    )


def compiling_failed(error: Exception) -> str:
    """Say why ``torch.compile`` made nothing: mostly it is a compiler, or Python's headers, that
    this machine lacks.
    """
    text = f"{type(error).__name__} {error}"
    if any(words in text for words in ("InvalidCxxCompiler", "No working C++ compiler")):
        return (
            "torch.compile found no working C++ compiler; install g++ (or clang++, and set "
            "CXX=clang++)"
        )
    if "Python.h" in text:
        return "torch.compile found no headers of Python (Python.h); install python3-dev"
    return f"torch.compile failed ({type(error).__name__}: {message_of(error, 120)})"
