"""Timelines to read in exercises: three pipelines in notebook 06, and three times four ranks in
notebook 08, in which one rank does not do what the others do.

They are made up, so that they are the same on every machine. The program of a rank is a list of
work and collectives. A collective begins when all ranks have called it; if they do not all call the
same one, all ranks wait until the timeout.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulab import _given, training
from gpulab.evidence import Evidence
from gpulab.parallel.results import RankSpan, RankTimeline
from gpulab.training import PipelineResult

# Loading, copy and step in seconds; workers; cores. What binds is never the first number that the
# eye meets.
_TIMELINES = {
    "A": (0.080, 0.002, 0.015, 6, 2),  # many workers, but two cores: 40 ms a batch
    "B": (0.030, 0.045, 0.020, 4, 8),  # a slow link
    "C": (0.040, 0.001, 0.030, 4, 8),  # the accelerator itself
}
RANKS = 4
# of the picture: long enough to be seen, short enough that the steps before it can be read
TIMEOUT_SECONDS = 0.060
_STEPS = 3
_BYTES = 4_000_000
_LAYERS = (3, 2, 1)  # the backward pass reaches the last layer first
# seconds: a forward pass, one layer's backward pass, one layer's gradients
_FORWARD, _BACKWARD, _SEND = 0.008, 0.005, 0.002
_EVIDENCE = Evidence.modelled(
    "each rank works through its list; a collective begins when all are in it and takes 2 ms",
    "made up for the exercise: no machine ran it",
)

# One item of a rank's program: ("compute", name, seconds) or ("collective", name, seconds).
_Item = tuple[str, str, float]


def timeline(letter: str) -> PipelineResult:
    """Return one of three pipelines, "A" to "C", whose bottleneck the exercise asks for.

    They are made up for the exercise by ``training.model_pipeline``, so they are the same on every
    machine.

    Raises
    ------
    InputError
        If there is no such letter.
    """
    loading, copy, compute, workers, cores = _TIMELINES[
        _given.word("timeline", "letter", letter, _TIMELINES)
    ]
    return training.model_pipeline(
        loading, compute, copy_seconds=copy, workers=workers, cores=cores, steps=24
    )


def collective(layer: int) -> str:
    """Return the name of the collective that averages a layer's gradients, as it appears in the
    timelines.
    """
    return f"all_reduce layer {layer}"


def _program(slow: float = 1.0) -> list[_Item]:
    items: list[_Item] = []
    for step in range(1, _STEPS + 1):
        items.append(("compute", f"forward {step}", _FORWARD * slow))
        for layer in _LAYERS:
            items += [
                ("compute", f"backward {step}, layer {layer}", _BACKWARD * slow),
                ("collective", collective(layer), _SEND),
            ]
        items.append(("compute", f"optimizer {step}", 0.001 * slow))
    return items


def _skips(rank: int, step: int, layer: int) -> list[list[_Item]]:
    """One rank leaves out one collective and goes on."""
    programs = [_program() for _ in range(RANKS)]
    at = [k for k, item in enumerate(programs[rank]) if item[1] == collective(layer)][step - 1]
    del programs[rank][at]
    return programs


def _slow(rank: int) -> list[list[_Item]]:
    """One rank computes at half the pace; nobody leaves anything out."""
    return [_program(2.0 if k == rank else 1.0) for k in range(RANKS)]


def _alone(rank: int, step: int) -> list[list[_Item]]:
    """After a step one rank saves the model and calls a barrier that stands in its branch only."""
    programs = [_program() for _ in range(RANKS)]
    one = programs[rank]
    at = next(k for k, item in enumerate(one) if item[1] == f"optimizer {step}") + 1
    one[at:at] = [("compute", "save", 0.006), ("collective", "barrier", _SEND)]
    return programs


# What the exercise asks for: the rank that leaves the common order, and at which collective
# ("slow": none does).
CASES = {
    "A": (_skips(2, 2, 2), 2, collective(2)),
    "B": (_slow(3), 3, "slow"),
    "C": (_alone(0, 1), 0, "barrier"),
}


# What an answer may name: every collective of the timelines, or that there is none.
NAMES = (*map(collective, _LAYERS), "barrier", "slow")


def hang(letter: str) -> RankTimeline:
    """Return one of three timelines, "A" to "C", for the exercise on hangs.

    Raises
    ------
    InputError
        If there is no such letter.
    """
    programs = CASES[_given.word("hang", "letter", letter, CASES)][0]
    spans, end = _run(programs)
    ordered = tuple(sorted(spans, key=lambda span: (span.rank, span.begin_seconds, span.kind)))
    steps = dict.fromkeys(span.name for span in ordered if span.name.startswith("forward "))
    starts = [min(span.begin_seconds for span in ordered if span.name == step) for step in steps]
    return RankTimeline(f"timeline {letter}", RANKS, ordered, tuple(starts), end, (), _EVIDENCE)


def _run(programs: Sequence[Sequence[_Item]]) -> tuple[list[RankSpan], float]:
    """Let every rank work until all are done, or until all that are left wait for each other."""
    at, now = [0] * len(programs), [0.0] * len(programs)
    spans: list[RankSpan] = []
    while True:
        for rank, program in enumerate(programs):
            while at[rank] < len(program) and program[at[rank]][0] == "compute":
                _, name, seconds = program[at[rank]]
                spans.append(RankSpan(rank, "compute", name, now[rank], now[rank] + seconds))
                now[rank] += seconds
                at[rank] += 1
        waiting = [
            program[at[rank]] if at[rank] < len(program) else None
            for rank, program in enumerate(programs)
        ]
        if all(item is None for item in waiting):
            return spans, max(now)
        begin = max(now)
        together = len({item[1] if item else "" for item in waiting}) == 1
        until = begin if together else begin + TIMEOUT_SECONDS
        for rank, item in enumerate(waiting):
            if item is not None and until > now[rank]:
                spans.append(RankSpan(rank, "idle", item[1], now[rank], until))
            if item is not None and together:
                spans.append(
                    RankSpan(rank, "communication", item[1], begin, begin + item[2], _BYTES)
                )
                now[rank] = begin + item[2]
                at[rank] += 1
        if not together:
            return spans, until
