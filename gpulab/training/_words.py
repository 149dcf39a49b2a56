"""The sentences on how a run ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.evidence import Note
from gpulab.training._options import SCALED
from gpulab.training.results import Options


def diverged_note(options: Options, losses: Sequence[float], bad: int | None) -> Note:
    """Say at which step the loss was lost, what it was before, and what to try.

    Parameters
    ----------
    bad : int or None
        The first step whose loss is not finite; None where only the last update broke the weights.
    """
    if bad is None:
        when = f"after the last step ({len(losses) - 1}, loss {losses[-1]:.3g}) the test's loss is not a finite number"
    else:
        before = f", after {losses[bad - 1]:.3g} at the step before" if bad else ""
        when = f"the loss was {losses[bad]} at step {bad}{before}"
    return Note("diverged", f"{when}. {_advice(options)}")


def _advice(options: Options) -> str:
    if options.precision == "pure-float16":
        return (
            'Pass precision="float16", which keeps float32 weights and scales the loss, or "bfloat16"; a model in pure float16 dies of '
            "the optimizer's epsilon, which is zero there."
        )
    if options.precision in SCALED and options.loss_scale != "dynamic":
        return 'Leave loss_scale out, so that it is dynamic, or pass precision="bfloat16".'
    clip = "" if options.clip is not None else ", or clip=1.0"
    return f"Pass a smaller learning_rate (it was {options.learning_rate:g}){clip}."


def unfinished_note(code: str, steps: int, options: Options) -> Note:
    """Say how far a run came that was stopped or interrupted."""
    who = "stopped" if code == "stopped" else "interrupted"
    return Note(
        code, f"the run was {who} after {steps} of {options.steps} steps; what is shown is what was reached. Run it again for all of them."
    )
