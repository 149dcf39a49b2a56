"""Collectives over sizes, steps over ranks, recorded scaling, pipelines."""

import dataclasses
import functools
import math
from typing import Any

import gpulab as gl
import pytest
import torch.distributed as dist
from gpulab import models
from gpulab.errors import InputError, StoppedError
from gpulab.parallel import Ranks
from gpulab.recordings import Entry, Recording
from made_recordings import a_recording, a_timing

from refusals import refused

OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
    "all_to_all",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_collective_over_sizes(ranks: Ranks, operation: str) -> None:
    """A sweep returns ascending sizes, in whole float32 elements, and times with intervals."""
    found = gl.parallel.sweep(ranks, operation, [2**14, 1001], deadline=0.1)
    assert [point.nbytes for point in found.points] == [1008, 2**14]  # two ranks' elements of 4
    for point in found.points:
        assert point.samples >= 20
        low, high = point.interval_seconds
        assert 0 < low <= point.median_seconds <= high
    assert (found.series, found.evidence.samples) == (
        ((operation, "among 2 ranks (gloo)"),),
        sum(point.samples for point in found.points),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "batches"), [("strong", [48, 24]), ("weak", [48, 48])])
def test_steps_on_one_rank_and_on_two(ranks: Ranks, mode: str, batches: list[int]) -> None:
    """A wait of 20 ms stands in for compute. Batches fit the mode, and predictions equal those of
    `models.scaling`. Threads that share a core count as one processor.
    """
    ranks.run(
        exec, "import psutil; psutil.real, psutil.cpu_count = psutil.cpu_count, lambda logical: 1"
    )
    try:
        options = {"mode": mode, "batch": 48, "wait_seconds": 0.02, "deadline": 0.6}
        found = gl.parallel.scaling(ranks, "cnn", **options)
    finally:
        ranks.run(exec, "import psutil; psutil.cpu_count = psutil.real")
    assert [(p.ranks, p.batch) for p in found.points] == list(zip((1, 2), batches, strict=True))
    one, two = found.points
    assert min(one.samples_seconds) >= 0.02
    assert min(two.samples_seconds) >= (0.01 if mode == "strong" else 0.02)
    # the norms' weights and biases, three stages of two convolutions, and the linear layer
    filters = 3 * 16 + 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64
    assert (found.parameter_bytes, one.speedup, two.efficiency, found.processors) == (
        4 * (2 * 2 * (16 + 32 + 64) + 9 * filters + 64 * 10 + 10),
        1.0,
        two.speedup / 2,
        1,
    )
    link = (found.latency_seconds, found.bandwidth_bytes_per_second)
    assert (link[0] >= 0, link[1] > 0) == (True, True)  # a fit of noisy times may have no latency
    curve = models.scaling(one.median_seconds, found.parameter_bytes, *link, [1, 2], mode=mode)
    for predicted in (found.prediction, found.overlapped):  # a wait hides no communication
        assert predicted.at(2).seconds == pytest.approx(curve.at(2).seconds)
    assert (found.evidence.badge, found.prediction.evidence.badge) == ("MEASURED", "MODELLED")
    assert ranks.run(dist.get_world_size) == [2, 2]


def machine(kind: str, *entries: Entry) -> Recording:
    """A recording of an invented device."""
    environment = dataclasses.replace(a_recording().environment, device_kind=kind)
    return a_recording(environment=environment, entries=entries)


def steps(mode: str, medians: dict[int, float], model: str = "mlp") -> list[Entry]:
    """Return recorded steps, one entry for each number of ranks, each known to 1 %."""
    common = {"model": model, "mode": mode, "batch": 240, "parameter_bytes": 4_000_000}
    return [
        Entry("data-parallel scaling", {**common, "ranks": k}, narrow(t))
        for k, t in medians.items()
    ]


def narrow(seconds: float) -> Any:
    """A timing that is known to 1 %."""
    interval = (0.99 * seconds, 1.01 * seconds)
    return a_timing(median_seconds=seconds, interval_seconds=interval)


def test_recorded_scaling_by_hand() -> None:
    """Steps of 100, 55 and 35 ms on 1, 2 and 4 ranks; a ring of 50 us and 1 GB/s per message."""
    reduces = [
        Entry("collectives", {"collective": "all_reduce", "nbytes": n, "ranks": 4},
              narrow(6 * (50e-6 + n / 4 / 1e9)))
        for n in (4096, 65536, 2**20, 2**24)
    ]  # fmt: skip
    recorded = machine("cuda", *steps("strong", {1: 0.1, 2: 0.055, 4: 0.035}), *reduces)
    found = gl.parallel.recorded_scaling(recorded)
    assert [p.speedup for p in found.points] == pytest.approx([1.0, 0.1 / 0.055, 0.1 / 0.035])
    four = found.at(4)
    for end in four.speedup_interval:  # variances of both logarithms add up
        assert abs(math.log(end / four.speedup)) == pytest.approx(0.01 * 2**0.5, rel=0.01)
    expected = pytest.approx(0.025 + 6 * (50e-6 + 1e6 / 1e9), rel=0.01)
    assert (
        found.prediction.at(4).seconds,
        found.overlapped.at(4).seconds,
        found.processors,
        found.at(2).batch,
        four.batch,
    ) == (expected, pytest.approx(0.025, rel=0.01), 4, 120, 60)


def test_what_was_not_recorded_is_none() -> None:
    """A mode that was not recorded gives None, and models of later versions are ignored; weak
    scaling counts each rank's samples.
    """
    later = steps("weak", {1: 0.1}, "of-a-later-version")
    recorded = machine("cuda", *later, *steps("weak", {1: 0.1, 2: 0.125}))
    assert [gl.parallel.recorded_scaling(one) for one in (machine("cuda"), recorded)] == [None] * 2
    weak = gl.parallel.recorded_scaling(recorded, mode="weak")
    assert (weak.at(2).speedup, weak.at(2).batch, weak.prediction, weak.latency_seconds) == (
        pytest.approx(1.6),
        240,
        None,
        None,
    )


def test_the_scaling_of_the_shipped_recordings(approved: Any) -> None:
    """Steps, speed-ups, efficiency, the link and the predictions from it, in both modes."""
    lines = []
    for name in ("amd-epyc-avx2-2-cores", "nvidia-h200", "amd-epyc-2-cores"):
        for mode in ("strong", "weak"):
            found = gl.parallel.recorded_scaling(gl.recordings.load(name), mode=mode)
            lines.append(f"{name}, {mode}: {found!r}")
            if found is not None:
                lines += [" | ".join(row) for row in (found.table()[0], *found.table()[1])]
                lines.append(found.caption())
    assert "\n".join(lines) + "\n" == approved


QUICK = {"forward_seconds": 0.004, "backward_seconds": 0.008}
MICROBATCH = 32 * 128 * 4  # bytes of a microbatch after a layer, in float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    ["split", pytest.param("gpipe", marks=pytest.mark.pins), "1f1b", "interleaved"],
)
def test_ranks_do_what_the_timetable_says(four_ranks: Ranks, schedule: str) -> None:
    """Eight microbatches in the timetable's order, with three chunks where stages have several;
    each pass waits for what it needs.
    """
    chunks = 3 if schedule == "interleaved" else None
    r = gl.parallel.run_schedule(four_ranks, schedule, 8, steps=1, chunks=chunks, **QUICK)
    for stage in range(4):
        assert ([p.name for p in r.of_stage(stage)], r.timeline.lane(stage)[-1].end_seconds) == (
            [p.name for p in r.model.of_stage(stage)],
            pytest.approx(r.duration),
        )
    # another timetable than the run's own: 11 passes of 1 s each way, of which 3 wait
    assert (
        (r.held, r.chunks),
        r.table(models.pipeline_schedule(4, 8, "gpipe", forward=1, backward=1))[1][5][1:3],
    ) == ((r.model.held, chunks or 1), ("a step of 22.0 s", "27.3%"))
    seconds = {"forward": 0.004 / r.chunks, "backward": 0.008 / r.chunks}
    assert all(p.duration >= 0.99 * seconds[p.kind] * p.count for p in r.passes)
    found = {(p.kind, p.chunk * 4 + p.stage, p.microbatch): p for p in r.passes}
    for (kind, part, k), one in found.items():
        before = found.get((kind, part - 1 if kind == "forward" else part + 1, k))
        assert before is None or before.end <= one.begin + 1e-4
    assert r.bubble_ratio == pytest.approx(1 - sum(r.busy) / (4 * r.duration))
    if schedule == "gpipe":
        assert r.activation_bytes[0] == 8 * 2 * MICROBATCH  # two layers' results are kept
    if schedule == "1f1b":
        assert r.activation_bytes[2] < r.activation_bytes[0] < 0.6 * 8 * 2 * MICROBATCH


@pytest.mark.slow
def test_a_stopped_schedule_keeps_what_was_measured(four_ranks: Ranks) -> None:
    """A stop after the first step gives a result with a note, an earlier one `StoppedError`; bad
    input is refused.
    """
    asked: list[str] = []
    r = gl.parallel.run_schedule(
        four_ranks, "gpipe", 4, steps=5, progress=lambda _, text: asked.append(text),
        stop=lambda: "step 1 of 5" in asked, **QUICK,
    )  # fmt: skip
    assert (len(r.bubble_ratios), r.notes[0].code, asked[-1]) == (1, "stopped", "done")
    run = functools.partial(gl.parallel.run_schedule, four_ranks)
    refused(StoppedError, run, "gpipe", 4, stop=lambda: True, **QUICK)
    for wrong in (
        {"schedule": "spiral"}, {"microbatches": 3}, {"microbatches": 0}, {"steps": 0},
        {"forward_seconds": 0.00099}, {"backward_seconds": float("nan")}, {"steps": 51},
        {"forward_seconds": 9.0}, {"schedule": "interleaved", "microbatches": 6},
    ):  # fmt: skip
        refused(InputError, run, **wrong)
