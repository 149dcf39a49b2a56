"""Carry out a pipeline's schedule on real ranks, with stages whose passes take a set time, so that
the bubble can be measured anywhere.

Each rank is a stage. A pass does real arithmetic on a small network and then waits until its set
time is over: four stages on two cores would otherwise take turns on the cores, and the time
measured would be theirs. Who waits for whom, the messages and the order are PyTorch's own
(``torch.distributed.pipelining``); only the uncut batch is sent by hand, as people write it first.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist

from gpulab import _validate, devices
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.memory.tracker import StorageTracker
from gpulab.models import PIPELINE_SCHEDULES, PassKind, StagePass, StageSchedule, pipeline_schedule
from gpulab.parallel._cluster import Ranks
from gpulab.parallel._observe import clock_ahead
from gpulab.parallel._strategies import OneAfterAnother, Pipeline, Setting, Stages
from gpulab.parallel.rank_results import ScheduleRun

# A pass shorter than this is lost in what sleeping and sending take; a step longer than that
# outlasts patience and timeouts.
_LONGEST_STEP_SECONDS = 8.0
_SECONDS = partial(_validate.within, low=1e-3, high=_LONGEST_STEP_SECONDS)
_MOST_STEPS = 50
_WIDTH, _ROWS = 128, 32  # of the small network; of a microbatch
# A pass that took this much longer than asked had no core for its arithmetic.
_SLOW_RATIO = 1.25


@_validate.arguments(
    schedule=partial(_validate.word, known=PIPELINE_SCHEDULES),
    forward_seconds=_SECONDS,
    backward_seconds=_SECONDS,
    steps=partial(_validate.whole, low=1, high=_MOST_STEPS),
    progress=_validate.hook,
    stop=_validate.hook,
)
def run_schedule(
    ranks: Ranks,
    schedule: str = "1f1b",
    microbatches: int = 8,
    *,
    forward_seconds: float = 0.02,
    backward_seconds: float = 0.04,
    chunks: int | None = None,
    steps: int = 3,
    progress: Callable[[float, str], None] = _validate.LEFT_OUT,
    stop: Callable[[], bool] = _validate.LEFT_OUT,
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
    if not isinstance(ranks, Ranks):
        raise InputError(
            f"run_schedule: ranks is {shown(ranks)}; expected a started cluster of two ranks or "
            "more. Use `with gl.parallel.cluster(n=4) as ranks:`."
        )
    plan = _plan(ranks.n, schedule, microbatches, forward_seconds, backward_seconds, chunks)
    progress(0.0, "each rank builds its stage")
    held = ranks.run(_set_up, plan)
    taken: list[tuple[StagePass, ...]] = []
    for number in range(steps):
        if stop():
            break
        progress((number + 1) / (steps + 1), f"step {number + 1} of {steps}")
        try:
            taken.append(_from_the_first(ranks.run(_step)))
        except StoppedError:
            # the ranks were interrupted in the middle of a step: what was measured before it counts
            break
    if not taken:
        raise StoppedError(
            "run_schedule: stopped before a step was measured; expected at least one. Run it again."
        )
    progress(1.0, "done")
    return _result(ranks, plan, taken, tuple(int(nbytes) for nbytes in held), steps)


def _plan(
    stages: int,
    schedule: str,
    microbatches: int,
    forward: float,
    backward: float,
    chunks: int | None,
) -> StageSchedule:
    """Return the timetable of what was asked for; what cannot be run is refused here, before a rank
    hears of it.
    """
    if stages < 2:
        raise InputError(
            f"run_schedule: {stages} rank; expected at least two, since a single rank never waits. "
            "Start a cluster of two."
        )
    plan = pipeline_schedule(
        stages, microbatches, schedule, forward=forward, backward=backward, chunks=chunks
    )
    if schedule == "1f1b" and microbatches < stages:  # PyTorch's own condition
        raise InputError(
            f"run_schedule: {microbatches} microbatches over {stages} ranks; Schedule1F1B expects "
            f"at least as many as ranks. Pass microbatches={stages}."
        )
    if plan.duration > _LONGEST_STEP_SECONDS:
        raise InputError(
            f"run_schedule: a step of these would take {plan.duration:.1f} s; expected at most "
            f"{_LONGEST_STEP_SECONDS:g} s. Pass fewer microbatches or shorter passes."
        )
    return plan


def _from_the_first(stages: list[list[StagePass]]) -> tuple[StagePass, ...]:
    """Return the passes of all stages with times from the begin of the first one."""
    passes = [one for of_stage in stages for one in of_stage]
    start = min(one.begin for one in passes)
    moved = [replace(one, begin=one.begin - start, end=one.end - start) for one in passes]
    return tuple(sorted(moved, key=lambda one: (one.begin, one.stage)))


def _result(
    ranks: Ranks,
    plan: StageSchedule,
    taken: list[tuple[StagePass, ...]],
    held: tuple[int, ...],
    asked: int,
) -> ScheduleRun:
    ratios = [
        1 - sum(one.duration for one in passes) / (plan.stages * max(one.end for one in passes))
        for passes in taken
    ]
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
                "core. Pass longer passes, or end other programs.",
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


@dataclass
class _TimedSetting(Setting):
    """A setting in which each pass takes its set time, and is noted on rank 0's clock."""

    pass_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    passes: list[StagePass] = field(default_factory=list)
    ahead_seconds: float = field(default_factory=clock_ahead)

    @contextlib.contextmanager
    def span(self, name: str, chunk: int = 0) -> Iterator[None]:
        """Wait at the end of the block until its time is over; a pass without the number of a
        microbatch is that of all.
        """
        kind, _, microbatch = name.partition(" ")
        count = 1 if microbatch else self.microbatches
        begin = time.perf_counter()
        yield
        left = begin + self.pass_seconds[kind] * count - time.perf_counter()
        if left > 0:
            time.sleep(left)
        begin, end = begin - self.ahead_seconds, time.perf_counter() - self.ahead_seconds
        known: PassKind = "forward" if kind == "forward" else "backward"
        self.passes.append(
            StagePass(self.rank, known, int(microbatch or 0), count, chunk, begin, end)
        )


_prepared: list[tuple[_TimedSetting, Callable[[], None]]] = []  # of this rank, at most one


def _set_up(plan: StageSchedule) -> int:
    """Build this rank's stage, take a step to warm up and one in which the memory is counted;
    return the most bytes of activations.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers = [
            module
            for _ in range(2 * plan.stages * plan.chunks)
            for module in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh())
        ]
        batch = torch.randn(plan.microbatches * _ROWS, _WIDTH)
    setting = _TimedSetting(
        rank=dist.get_rank(),
        size=plan.stages,
        device=torch.device("cpu"),
        model=torch.nn.Sequential(*layers),
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        make_optimizer=partial(torch.optim.SGD, lr=0.0),
        microbatches=plan.microbatches,
        bucket_bytes=0,
    )
    trainer: Stages = (
        OneAfterAnother(setting)
        if plan.schedule == "split"
        else Pipeline(setting, plan.schedule, plan.chunks)
    )

    def take_step() -> None:
        trainer.passes((batch, batch))
        trainer.optimizer.zero_grad(set_to_none=True)

    take_step()  # stages tell each other the shapes
    tracker = StorageTracker("cpu")
    tracker.watch_modules(trainer.modules)
    with tracker:
        take_step()
    tracker.close()
    tracker.classify()
    setting.pass_seconds = {
        "forward": plan.forward[0] / plan.chunks,
        "backward": plan.backward[0] / plan.chunks,
    }
    _prepared[:] = [(setting, take_step)]
    return int(tracker.timeline().bytes_by_category["activations"].max(initial=0))


def _step() -> list[StagePass]:
    """Take one step together with the other ranks; return this one's passes."""
    setting, take_step = _prepared[0]
    setting.passes = []
    dist.barrier()
    take_step()
    return setting.passes
