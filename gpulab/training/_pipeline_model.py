"""The input pipeline as arithmetic: when each batch is loaded, copied and computed, from five
durations.

The rules are those of ``torch.utils.data.DataLoader`` and of one stream of an accelerator: worker
``k`` of ``W`` loads the batches ``k``, ``k + W``, ...; each may be ``prefetch`` batches ahead of
what was taken; batches are taken in order; the accelerator does one thing at a time; the host waits
for a copy from ordinary memory, and for the step where it reads the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gpulab import _given
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Evidence
from gpulab.training._pipeline_results import PipelineResult, StepSpan
from gpulab.units import format_seconds

_SOURCE = (
    "the rules of torch.utils.data.DataLoader (round robin, prefetch_factor, in order) and of "
    "one CUDA stream"
)
# benchmarks/input_pipeline.py; docs/measurements.md, "The input pipeline", has the table.
KNOWN_ERROR = (
    "2 % median, 6 % at most in throughput where loading times are known; loading varies with "
    "neighbors (docs/measurements.md)"
)


def check_count(function: str, name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within bounds.

    Raises
    ------
    InputError
        If it is not one.
    """
    if not _given.is_whole(value) or not least <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a whole number from {least} to "
            f"{most}. "
            f"Pass for example {name}={max(least, 2)}."
        )
    return int(value)


def check_seconds(function: str, name: str, value: Any, most: float = 60.0) -> float:
    """Return seconds within bounds.

    Raises
    ------
    InputError
        If they are not.
    """
    if not _given.is_finite(value) or not 0 <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected seconds from 0 to {most:g}. Pass for "
            f"example {name}=0.02."
        )
    return float(value)


def schedule(
    loading: Sequence[float],
    copying: Sequence[float],
    computing: Sequence[float],
    *,
    workers: int,
    prefetch: int,
    pinned: bool,
    read_loss: bool,
) -> list[StepSpan]:
    """Return who works when, by the rules in the module's docstring.

    Parameters
    ----------
    loading, copying, computing : sequence of float
        Seconds of each batch, all of one length.
    workers, prefetch : int
    pinned, read_loss : bool
    """
    spans: list[StepSpan] = []
    taken: list[float] = []  # when the host took each batch
    loaded: list[float] = []  # when each batch was ready
    # when the host asks for the next batch; when the accelerator has done everything
    host = free = 0.0
    for step, (load, copy, compute) in enumerate(zip(loading, copying, computing, strict=True)):
        if workers == 0:
            start, worker = host, -1
        else:
            # The order for batch k goes out when batch k - prefetch * W was taken; the same
            # worker's earlier batch comes first.
            ordered = taken[step - prefetch * workers] if step >= prefetch * workers else 0.0
            start, worker = (
                max(ordered, loaded[step - workers] if step >= workers else 0.0),
                step % workers,
            )
        ready = start + load
        spans.append(StepSpan("data", step, worker, start, ready))
        loaded.append(ready)
        taken.append(max(host, ready))
        copy_start = max(taken[-1], free)
        copied = copy_start + copy
        free = copied + compute
        spans += [
            StepSpan("copy", step, 0, copy_start, copied),
            StepSpan("compute", step, 0, copied, free),
        ]
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
    """Return the timeline of an input pipeline by arithmetic, without loading or waiting.

    Parameters
    ----------
    loading_seconds : float
        The time that one worker needs for one batch on a core of its own.
    compute_seconds, copy_seconds : float
        The time that the accelerator needs for a step, and for receiving the batch.
    workers : int
        0 to 64; with 0 the training's own process loads.
    prefetch : int
        1 to 16 batches that each worker may load ahead.
    pinned : bool
        Whether batches are copied from page-locked memory.
    read_loss : bool
        Whether the host reads the loss after each step and so waits for it.
    cores : int
        Of the host; more workers than cores take turns on them.
    batch_size, batch_bytes : int
        Used only in the result's texts.
    steps : int
        2 to 1000.

    Returns
    -------
    PipelineResult
        Evidence MODELLED.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> alone = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(alone.stall_ratio, 3)  # 60 of 80 milliseconds
    0.75
    >>> # three batches in 60 milliseconds: just enough
    >>> round(model_pipeline(0.06, 0.02, copy_seconds=0, workers=3).stall_ratio, 3)
    0.0
    """
    name = "model_pipeline"
    loading = check_seconds(name, "loading_seconds", loading_seconds)
    copying = check_seconds(name, "copy_seconds", copy_seconds)
    computing = check_seconds(name, "compute_seconds", compute_seconds)
    cores, workers = (
        check_count(name, "cores", cores, 1, 4096),
        check_count(name, "workers", workers, 0, 64),
    )
    prefetch, steps = (
        check_count(name, "prefetch", prefetch, 1, 16),
        check_count(name, "steps", steps, 2, 1000),
    )
    pinned, read_loss = (
        _given.flag(name, "pinned", pinned),
        _given.flag(name, "read_loss", read_loss),
    )
    shared = loading * max(1.0, workers / cores)
    spans = schedule(
        [shared] * steps,
        [copying] * steps,
        [computing] * steps,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    evidence = Evidence.modelled(
        f"a worker loads a batch in {format_seconds(loading)} on a core of its own ({cores} "
        "cores), a copy takes "
        f"{format_seconds(copying)}, a step {format_seconds(computing)}, always the same",
        _SOURCE,
        KNOWN_ERROR,
    )
    return PipelineResult(
        accelerator="a modelled accelerator",
        batch_size=batch_size,
        batch_bytes=batch_bytes,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        notes=(),
        evidence=evidence,
        accelerator_evidence=evidence,
    )


def replay(
    p: PipelineResult,
    *,
    compute_seconds: float | None = None,
    pinned: bool | None = None,
    read_loss: bool | None = None,
) -> PipelineResult:
    """Return what a pipeline would do with another accelerator or another loop, with the loading
    times of the run.

    Only one thing changes this way: a second run would also be affected by other load on the
    machine.

    Parameters
    ----------
    p : PipelineResult
        A run, or a model.
    compute_seconds : float, optional
        What a step computes; None keeps each step's own time.
    pinned, read_loss : bool, optional
        As in ``pipeline``; None keeps them.

    Returns
    -------
    PipelineResult
        The loading keeps its evidence, the accelerator's side is MODELLED.

    Raises
    ------
    InputError
        If ``p`` is not a pipeline's result, or a value is out of range.

    Examples
    --------
    >>> run = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(replay(run, compute_seconds=0.01).step_seconds, 6)
    0.07
    """
    if not isinstance(p, PipelineResult):
        raise InputError(
            f"replay: {kind_of(p)} was given; expected what training.pipeline returned. Pass that."
        )
    pinned = p.pinned if pinned is None else _given.flag("replay", "pinned", pinned)
    read_loss = p.read_loss if read_loss is None else _given.flag("replay", "read_loss", read_loss)
    loading, copying, computing = (
        [span.seconds for span in p.lane(lane)] for lane in ("data", "copy", "compute")
    )
    words = "its steps as long as they were"
    if compute_seconds is not None:
        seconds = check_seconds("replay", "compute_seconds", compute_seconds)
        computing, words = (
            [seconds] * len(computing),
            f"each step computing for {format_seconds(seconds)}",
        )
    spans = schedule(
        loading,
        copying,
        computing,
        workers=p.workers,
        prefetch=p.prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    host = "waiting for each step" if read_loss else "going on without waiting for a step"
    evidence = Evidence.modelled(
        f"each batch loaded and copied as long as in the run, {words}, the host {host}; no other "
        "effects",
        _SOURCE,
        KNOWN_ERROR,
    )
    return dataclasses.replace(
        p,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        accelerator_evidence=evidence,
    )
