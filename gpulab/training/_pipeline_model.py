"""The input pipeline as arithmetic: when each batch is loaded, copied and computed, from five durations.

The rules are those of ``torch.utils.data.DataLoader`` and of one stream of an accelerator: worker ``k`` of ``W`` loads the batches
``k``, ``k + W``, ...; each may be ``prefetch`` batches ahead of what was taken; batches are taken in order; the accelerator does one
thing at a time; the host waits for a copy from ordinary memory, and for the step where it reads the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpulab import _given
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.training._pipeline_results import PipelineResult, StepSpan
from gpulab.units import format_seconds

_SOURCE = "the rules of torch.utils.data.DataLoader (round robin, prefetch_factor, in order) and of one CUDA stream"
# benchmarks/input_pipeline.py; docs/measurements.md, "The input pipeline", has the table.
KNOWN_ERROR = "docs/measurements.md, The input pipeline"


@dataclass(frozen=True)
class Durations:
    """What the pieces of a step take.

    Attributes
    ----------
    loading_seconds : float
        One worker, one batch, with a core of its own.
    copy_seconds, compute_seconds : float
        On the accelerator.
    cores : int
        Of the host: more workers than cores share them.
    """

    loading_seconds: float
    copy_seconds: float
    compute_seconds: float
    cores: int


def check_count(function: str, name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within bounds.

    Raises
    ------
    InputError
        If it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a whole number from {least} to {most}. "
            f"Pass for example {name}={max(least, 2)}."
        )
    return value


def check_seconds(function: str, name: str, value: Any, most: float = 60.0) -> float:
    """Return seconds within bounds.

    Raises
    ------
    InputError
        If they are not.
    """
    if not _given.is_finite(value) or not 0 <= value <= most:
        raise InputError(f"{function}: {name} is {shown(value)}; expected seconds from 0 to {most:g}. Pass for example {name}=0.02.")
    return float(value)


def schedule(durations: Durations, *, steps: int, workers: int, prefetch: int, pinned: bool, read_loss: bool) -> list[StepSpan]:
    """Return who works when, by the rules in the module's docstring."""
    loading = durations.loading_seconds * max(1.0, workers / max(1, durations.cores))
    spans: list[StepSpan] = []
    taken: list[float] = []  # when the host took each batch
    loaded: list[float] = []  # when each batch was ready
    host = free = 0.0  # when the host asks for the next batch; when the accelerator has done everything
    for step in range(steps):
        if workers == 0:
            start = host
            ready = start + loading
            worker = -1
        else:
            # The order for batch k goes out when batch k - prefetch * W was taken; the same worker's earlier batch comes first.
            ordered = taken[step - prefetch * workers] if step >= prefetch * workers else 0.0
            start = max(ordered, loaded[step - workers] if step >= workers else 0.0)
            ready = start + loading
            worker = step % workers
        spans.append(StepSpan("data", step, worker, start, ready))
        loaded.append(ready)
        taken.append(max(host, ready))
        copy_start = max(taken[-1], free)
        copied = copy_start + durations.copy_seconds
        free = copied + durations.compute_seconds
        spans += [StepSpan("copy", step, 0, copy_start, copied), StepSpan("compute", step, 0, copied, free)]
        host = free if read_loss else taken[-1] if pinned else copied
    return spans


def model_pipeline(
    loading_seconds: float,
    compute_seconds: float,
    *,
    copy_seconds: float = 0.001,
    workers: int = 0,
    prefetch: int = 2,
    pinned: bool = False,
    read_loss: bool = True,
    cores: int = 8,
    batch_size: int = 32,
    batch_bytes: int = 32 * 3 * 128 * 128,
    steps: int = 24,
) -> PipelineResult:
    """Return the timeline of an input pipeline by arithmetic: nothing is loaded, nothing is waited for.

    Parameters
    ----------
    loading_seconds : float
        What one worker needs for one batch on a core of its own.
    compute_seconds, copy_seconds : float
        What the accelerator needs for a step, and for receiving the batch.
    workers : int
        0 to 64; 0 means that the training's own process loads.
    prefetch : int
        1 to 16 batches that each worker may be ahead.
    pinned : bool
        Whether batches travel from page-locked memory.
    read_loss : bool
        Whether the host reads the loss after each step and so waits for it.
    cores : int
        Of the host; more workers than cores take turns on them.
    batch_size, batch_bytes : int
        Only for what the result says of them.
    steps : int
        2 to 1000.

    Returns
    -------
    PipelineResult
        Evidence MODELLED.

    Raises
    ------
    InputError
        If a number is not one that the function can use.

    Examples
    --------
    >>> alone = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(alone.stall_ratio, 3)  # 60 of 80 milliseconds
    0.75
    >>> round(model_pipeline(0.06, 0.02, copy_seconds=0, workers=3).stall_ratio, 3)  # three batches in 60 milliseconds: just enough
    0.0
    """
    name = "model_pipeline"
    durations = Durations(
        check_seconds(name, "loading_seconds", loading_seconds), check_seconds(name, "copy_seconds", copy_seconds),
        check_seconds(name, "compute_seconds", compute_seconds), check_count(name, "cores", cores, 1, 4096),
    )  # fmt: skip
    check_count(name, "workers", workers, 0, 64), check_count(name, "prefetch", prefetch, 1, 16), check_count(name, "steps", steps, 2, 1000)
    pinned, read_loss = _given.flag(name, "pinned", pinned), _given.flag(name, "read_loss", read_loss)
    spans = schedule(durations, steps=steps, workers=workers, prefetch=prefetch, pinned=pinned, read_loss=read_loss)
    evidence = Evidence.modelled(
        f"a worker loads a batch in {format_seconds(durations.loading_seconds)} on a core of its own ({durations.cores} cores), "
        f"a copy takes {format_seconds(durations.copy_seconds)}, a step {format_seconds(durations.compute_seconds)}, always the same",
        _SOURCE,
        KNOWN_ERROR,
    )
    return PipelineResult(
        accelerator="a modelled accelerator", batch_size=batch_size, batch_bytes=batch_bytes, workers=workers, prefetch=prefetch,
        pinned=pinned, read_loss=read_loss, startup_seconds=spans[0].end_seconds, spans=tuple(spans), notes=(), evidence=evidence,
        accelerator_evidence=evidence,
    )  # fmt: skip
