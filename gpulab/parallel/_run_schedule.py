"""Carry out a pipeline's schedule on real ranks, with stages whose passes take a set time, so that
the bubble can be measured anywhere.

Each rank is a stage. A pass does real arithmetic on a small network and then waits until its set
time is over: four stages on two cores would otherwise take turns on the cores, and the time
measured would be theirs. Who waits for whom, the messages and the order are PyTorch's own
(``torch.distributed.pipelining``); only the uncut batch is sent by hand, as people write it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulab import _given, devices
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.models import PIPELINE_SCHEDULES, PassKind, StagePass, StageSchedule, pipeline_schedule
from gpulab.parallel._schedule_results import ScheduleRun

if TYPE_CHECKING:
    from gpulab.parallel._cluster import Ranks

# A pass shorter than this is lost in what sleeping and sending take; a step longer than that
# outlasts patience and timeouts.
_SHORTEST_SECONDS, _LONGEST_STEP_SECONDS = 1e-3, 8.0
_MOST_STEPS = 50
_WIDTH, _ROWS = 128, 32  # of the small network; of a microbatch
# A pass that took this much longer than asked had no core for its arithmetic.
_SLOW_RATIO = 1.25


def run_schedule(
    ranks: Ranks,
    schedule: str = "1f1b",
    microbatches: int = 8,
    *,
    forward_seconds: float = 0.02,
    backward_seconds: float = 0.04,
    chunks: int | None = None,
    steps: int = 3,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ScheduleRun:
    """Run a pipeline's schedule on real ranks and return its bubble, its passes and what each stage
    held.

    Parameters
    ----------
    ranks : Ranks
        At least two, started; each is a stage.
    schedule : "split", "gpipe", "1f1b" or "interleaved"
        As in ``gpulab.models.pipeline_schedule``.
    microbatches : int
        For 1F1B at least as many as ranks, interleaved a multiple of them.
    forward_seconds, backward_seconds : float
        The time of one microbatch's pass through a stage, at least 0.001.
    chunks : int, optional
        Parts of the model in each stage of the interleaved schedule; 2 by default.
    steps : int
        The number of steps measured. One step before them is not measured, and the memory is
        counted in one more.
    progress, stop : callable, optional
        ``stop`` is polled between steps; what was measured until then is returned.

    Returns
    -------
    ScheduleRun
        ``bubble_ratio`` measured, and ``model`` with the timetable of the same passes.

    Raises
    ------
    InputError
        If an argument cannot be used, or a step would take longer than 8 seconds.
    StoppedError
        If ``stop`` returned True before a step was measured.
    RankError
        If a rank failed.
    """
    progress, stop = (
        _given.callback("run_schedule", "progress", progress),
        _given.callback("run_schedule", "stop", stop),
    )
    report = progress or (lambda fraction, text: None)
    if not all(hasattr(ranks, name) for name in ("n", "run", "hosts")):
        raise InputError(
            f"run_schedule: ranks is {shown(ranks)}; expected a started cluster of two ranks or "
            "more. "
            "Use `with gl.parallel.cluster(n=4) as ranks:`."
        )
    plan = _plan(ranks.n, schedule, microbatches, forward_seconds, backward_seconds, chunks)
    if not _given.is_whole(steps) or not 1 <= steps <= _MOST_STEPS:
        raise InputError(
            f"run_schedule: steps is {shown(steps)}; expected a whole number from 1 to "
            f"{_MOST_STEPS}. Pass steps=3."
        )
    steps = int(steps)
    report(0.0, "each rank builds its stage")
    held = ranks.run(
        _set_up,
        plan.schedule,
        plan.microbatches,
        plan.chunks,
        plan.forward[0],
        plan.backward[0],
        len(set(ranks.hosts)) > 1,
    )
    taken: list[tuple[StagePass, ...]] = []
    for number in range(steps):
        if stop is not None and stop():
            break
        report((number + 1) / (steps + 1), f"step {number + 1} of {steps}")
        try:
            taken.append(_from_the_first(ranks.run(_step)))
        except StoppedError:
            # the ranks were interrupted in the middle of a step: what was measured before it counts
            break
    else:
        ranks.run(_clear)
    if not taken:
        raise StoppedError(
            "run_schedule: stopped before a step was measured; expected at least one. Run it again."
        )
    report(1.0, "done")
    return _result(ranks, plan, taken, tuple(int(nbytes) for nbytes in held), steps)


def _plan(
    stages: int, schedule: Any, microbatches: Any, forward: Any, backward: Any, chunks: Any
) -> StageSchedule:
    """Return the timetable of what was asked for; what cannot be run is refused here, before a rank
    hears of it.
    """
    name = _given.word("run_schedule", "schedule", schedule, PIPELINE_SCHEDULES)
    for words, value in (("forward_seconds", forward), ("backward_seconds", backward)):
        if not _given.is_finite(value) or value < _SHORTEST_SECONDS:
            raise InputError(
                f"run_schedule: {words} is {shown(value)}; expected at least "
                f"{_SHORTEST_SECONDS:g}: sleeping and sending take time, too. "
                f"Pass {words}=0.02."
            )
    if stages < 2:
        raise InputError(
            f"run_schedule: {stages} rank; expected at least two, since a single rank never waits. "
            "Start a cluster of two."
        )
    plan = pipeline_schedule(
        stages, microbatches, name, forward=float(forward), backward=float(backward), chunks=chunks
    )
    if name == "1f1b" and microbatches < stages:  # PyTorch's own condition
        raise InputError(
            f"run_schedule: {microbatches} microbatches over {stages} ranks; Schedule1F1B expects "
            "at least as many as ranks. "
            f"Pass microbatches={stages}."
        )
    if plan.duration > _LONGEST_STEP_SECONDS:
        raise InputError(
            f"run_schedule: a step of these would take {plan.duration:.1f} s; expected at most "
            f"{_LONGEST_STEP_SECONDS:g} s. "
            "Pass fewer microbatches or shorter passes."
        )
    return plan


def _from_the_first(stages: list[list[StagePass]]) -> tuple[StagePass, ...]:
    """Return the passes of all stages with times from the begin of the first one."""
    start = min(one.begin for passes in stages for one in passes)
    moved = [
        StagePass(
            one.stage,
            one.kind,
            one.microbatch,
            one.count,
            one.chunk,
            one.begin - start,
            one.end - start,
        )
        for passes in stages
        for one in passes
    ]
    return tuple(sorted(moved, key=lambda one: (one.begin, one.stage)))


def _bubble(passes: tuple[StagePass, ...], stages: int) -> float:
    return 1 - sum(one.duration for one in passes) / (stages * max(one.end for one in passes))


def _result(
    ranks: Ranks,
    plan: StageSchedule,
    taken: list[tuple[StagePass, ...]],
    held: tuple[int, ...],
    asked: int,
) -> ScheduleRun:
    ratios = [_bubble(passes, plan.stages) for passes in taken]
    shown_step = sorted(range(len(ratios)), key=ratios.__getitem__)[len(ratios) // 2]
    notes = []
    if len(taken) < asked:
        notes.append(
            Note(
                "stopped",
                f"{len(taken)} of {asked} steps were measured before the stop. Run it again for "
                "all of them.",
            )
        )
    wanted = {"forward": plan.forward[0] / plan.chunks, "backward": plan.backward[0] / plan.chunks}
    slowest = max(one.duration / (wanted[one.kind] * one.count) for one in taken[shown_step])
    if slowest > _SLOW_RATIO:
        notes.append(
            Note(
                "contended",
                f"A pass took {slowest:.1f} times its set time: its arithmetic had to wait for a "
                "core. Pass longer passes, or end "
                "other programs.",
            )
        )
    here = devices.environment("cpu")
    return ScheduleRun(
        plan.schedule,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        plan.forward[0],
        plan.backward[0],
        tuple(ratios),
        taken[shown_step],
        held,
        tuple(notes),
        Evidence.measured(f"{plan.stages} ranks, {here.processor}", len(ratios)),
        here,
    )


# -- what runs in an engine
# ------------------------------------------------------------------------------------------


class _Stage:
    """One rank's stage between two calls: how it takes a step, and the passes of the last one."""

    def __init__(self, rank: int, stages: int, shift: float, waits: dict[PassKind, float]) -> None:
        self.rank, self.stages, self.shift, self.waits = rank, stages, shift, waits
        self.passes: list[StagePass] = []
        self.take_step: Callable[[], None] = lambda: None

    def timed(
        self, kind: PassKind, count: int, chunk: int, work: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the pass so that it takes its set time and is noted; the first argument is the
        microbatch.
        """

        def one(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = work(microbatch, *args, **kwargs)
            left = begin + self.waits[kind] * count - time.perf_counter()
            if left > 0:
                time.sleep(left)
            end = time.perf_counter()
            self.passes.append(
                StagePass(
                    self.rank, kind, microbatch, count, chunk, begin + self.shift, end + self.shift
                )
            )
            return result

        return one


class _Engine:
    """What an engine remembers between two calls."""

    stage: _Stage | None = None


def _set_up(
    schedule: str, microbatches: int, chunks: int, forward: float, backward: float, far: bool
) -> int:
    """Build this rank's stage, take a step in which the memory is counted and one to warm up;
    return the most bytes of activations.
    """
    import torch
    import torch.distributed as dist

    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = _Engine.stage = _Stage(
        rank, stages, _clock_shift() if far else 0.0, {"forward": 0.0, "backward": 0.0}
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        parts = [torch.nn.Sequential(*[_layer() for _ in range(2)]) for _ in range(stages * chunks)]
        batch = torch.randn(microbatches * _ROWS, _WIDTH)
    mine = [parts[chunk * stages + rank] for chunk in range(chunks)]
    make = _uncut if schedule == "split" else _pytorchs
    stage.take_step = make(stage, schedule, mine, batch, microbatches)
    stage.take_step()  # stages tell each other the shapes
    most = _most_activations(stage.take_step, mine)
    stage.waits = {"forward": forward / chunks, "backward": backward / chunks}
    return most


def _layer() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh())


def _step() -> list[StagePass]:
    """Take one step together with the other ranks; return this one's passes."""
    import torch.distributed as dist

    stage = _Engine.stage
    assert stage is not None
    stage.passes = []
    dist.barrier()
    stage.take_step()
    return stage.passes


def _clear() -> None:
    _Engine.stage = None


def _loss(output: Any, target: Any) -> Any:
    return (output - target).square().mean()


def _pytorchs(
    stage: _Stage, schedule: str, parts: list[Any], batch: Any, microbatches: int
) -> Callable[[], None]:
    """Return a step of PyTorch's own schedule, each of its passes timed."""
    import torch
    from torch.distributed import pipelining

    whole = stage.stages * len(parts)
    made = []
    for chunk, part in enumerate(parts):
        one: Any = pipelining.PipelineStage(
            part, chunk * stage.stages + stage.rank, whole, torch.device("cpu")
        )
        one.forward_one_chunk = stage.timed("forward", 1, chunk, one.forward_one_chunk)
        one.backward_one_chunk = stage.timed("backward", 1, chunk, one.backward_one_chunk)
        made.append(one)
    runner: Any
    if schedule == "interleaved":
        runner = pipelining.ScheduleInterleaved1F1B(made, microbatches, loss_fn=_loss)
    else:
        cls = pipelining.ScheduleGPipe if schedule == "gpipe" else pipelining.Schedule1F1B
        runner = cls(made[0], microbatches, loss_fn=_loss)

    def step() -> None:
        inputs = (batch,) if stage.rank == 0 else ()
        runner.step(*inputs, **({"target": batch} if stage.rank == stage.stages - 1 else {}))
        for part in parts:
            part.zero_grad(set_to_none=True)

    return step


def _uncut(
    stage: _Stage, schedule: str, parts: list[Any], batch: Any, microbatches: int
) -> Callable[[], None]:
    """Return a step as people write it first: take the batch from the rank before, compute, hand it
    on; the gradients come back so.
    """
    import torch
    import torch.distributed as dist

    (part,), first, last = parts, stage.rank == 0, stage.rank == stage.stages - 1
    forward = stage.timed("forward", microbatches, 0, lambda _, x: part(x))
    backward = stage.timed(
        "backward", microbatches, 0, lambda _, y, grad: torch.autograd.backward(y, grad)
    )

    def step() -> None:
        x = batch
        if not first:
            x = torch.empty_like(batch)
            dist.recv(x, stage.rank - 1)
            x.requires_grad_()
        y = forward(0, x)
        grad = None
        if last:
            y = _loss(y, batch)
        else:
            dist.send(y.detach(), stage.rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, stage.rank + 1)
        backward(0, y, grad)
        if not first:
            dist.send(x.grad, stage.rank - 1)
        part.zero_grad(set_to_none=True)

    return step


def _most_activations(take_step: Callable[[], None], parts: list[Any]) -> int:
    """Return the most bytes of activations that were alive at once in a step."""
    from gpulab.memory._tracker import StorageTracker

    tracker = StorageTracker("cpu")
    tracker.watch_modules(parts)
    with tracker:
        take_step()
    tracker.close()
    tracker.classify()
    curve = tracker.timeline().bytes_by_category["activations"]
    return int(curve.max()) if len(curve) else 0


def _clock_shift() -> float:
    """Return what to add to this rank's clock for rank 0's, from the quickest of some messages
    there and back.
    """
    import torch
    import torch.distributed as dist

    best, shift = float("inf"), 0.0
    word = torch.zeros(1, dtype=torch.float64)
    for other in range(1, dist.get_world_size()):
        for _ in range(10):
            if dist.get_rank() == 0:
                dist.recv(word, other)
                word[0] = time.perf_counter()
                dist.send(word, other)
            elif dist.get_rank() == other:
                asked = time.perf_counter()
                dist.send(word, 0)
                dist.recv(word, 0)
                answered = time.perf_counter()
                if answered - asked < best:
                    best, shift = answered - asked, float(word[0]) - (asked + answered) / 2
    return shift
