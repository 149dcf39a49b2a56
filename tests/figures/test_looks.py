"""Each picture looks as its table says: what stands where, how large, in which colour and pattern, and what the mouse is told.

A line of the tables is one part of a picture. They leave out what all pictures share (``test_style`` has it) and what they mean, which the
other tests of this folder hold with values by hand.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from look import look
from looks import LOOKS
from made_class import report_of, write
from test_collectives_picture import swept
from test_hierarchy_pictures import CACHES, KIB, chains, curve
from test_ladder_picture import RESULT
from test_pictures import LIVE, MODEL, measured, sweep_of, trace
from test_rank_pictures import HERE, split_run
from test_roofline_picture import FAR, SHEET, made
from test_scaling_pictures import _result

from gpulab import devices, figures, lessons, memory, models, precision, training
from gpulab.compression import WeighedModel, Weighing
from gpulab.devices._cpu import Cache
from gpulab.devices._facts import Accelerator, Memory
from gpulab.figures._style import LabFigure
from gpulab.hierarchy import Bandwidth, BandwidthPoint
from gpulab.lessons._report_schema import ReportedPrediction
from gpulab.parallel import GlobalBatchRow, RankSpan, RankTimeline, rank_states
from gpulab.timing import Comparison, ComparisonRow
from gpulab.training import Accuracy, Gain, Profile, ProfileSpan, SeedsAccuracy
from gpulab.transfer import BreakEven, BreakEvenRow, Overlap
from gpulab.transfer.results import Span


def compared() -> LabFigure:
    """A CPU, a GPU, and a recorded one."""
    rows = (
        ComparisonRow("CPU", measured("cpu", 1e-2, LIVE), None, None, None),
        ComparisonRow("GPU", measured("cuda:0", 1e-3, LIVE), 10.0, (9.0, 11.0), None),
    )
    far = ComparisonRow("Far GPU", measured("cuda:0", 2e-3, FAR), None, None, None)
    return figures.comparison(Comparison("work", rows, 10.0, (9.0, 11.0), None, None, (), LIVE), recorded=[far])


def swept_link(quantity: Any) -> LabFigure:
    """A sweep with a ceiling, its fit and a prediction."""
    s = sweep_of(LIVE, 4e10)
    return figures.sweep(s, s.fit("to_device"), quantity, at_bytes=1e6)


def broken_even(size: int | None) -> LabFigure:
    """Two sizes."""
    rows = (BreakEvenRow(64, 1e-4, 2e-4, 1e4), BreakEvenRow(128, 8e-4, 3e-4, 4e4))
    return figures.break_even(BreakEven("matmul", size, "found", "It wins.", rows, (), MODEL))


def overlapped() -> LabFigure:
    """Two chunks."""
    spans = (Span("copy", 0, 0.0, 1e-3), Span("copy", 1, 1e-3, 2e-3), Span("compute", 0, 1e-3, 2.5e-3))
    times = {"copy_seconds": 2e-3, "compute_seconds": 1.5e-3, "seconds": 2.5e-3}
    return figures.overlap(Overlap(device="A GPU", nbytes=2**20, chunks=2, **times, timeline=spans, notes=(), evidence=LIVE))


def predicted(free: float) -> LabFigure:
    """Two predictions of 100 and 200 MiB."""
    made_up = [
        SimpleNamespace(label="net", precision="float32", peak_by_category={"parameters": k * 2**26, "activations": k * 2**25},
                        peak_bytes=k * 3 * 2**25, scratch_bytes=2**20, evidence=MODEL, needed_bytes=lambda kind, k=k: k * 7 * 2**24)
        for k in (1, 2)
    ]  # fmt: skip
    return figures.memory_prediction(made_up, labels=("one", "two"), free_bytes=free)  # type: ignore[arg-type]


def a_machine() -> LabFigure:
    """Two caches, half of the memory granted, a GPU."""
    here = devices.machine()
    caches = (Cache("L1d", 32 * 2**10, 4), Cache("L3", 2**23, 1))
    gpus = (Accelerator("cuda:0", "A GPU", "cuda", memory_bytes=2**36, free_bytes=2**35, l2_bytes=2**25),)
    processor = dataclasses.replace(here.processor, caches=caches)
    return figures.machine(dataclasses.replace(here, processor=processor, accelerators=gpus, memory=Memory(2**34, 2**31, 2**33)))


def phases() -> LabFigure:
    """A step of 100 operators: a long forward pass, a short loss, a long backward pass."""
    names = ("forward",) * 60 + ("loss",) * 3 + ("backward",) * 37
    by = {"parameters": np.full(100, 2**20), "activations": np.arange(100) * 2**18}
    line = memory.Timeline(("aten.add.Tensor",) * 100, names, (0,), by)
    return figures.memory_timeline(dataclasses.replace(trace([1, 2]), timeline=line))


def ranked() -> LabFigure:
    """Two ranks, two steps."""
    spans = (
        RankSpan(0, "compute", "forward", 0.0, 0.03), RankSpan(0, "compute", "backward", 0.03, 0.06),
        RankSpan(0, "idle", "all_reduce", 0.06, 0.08), RankSpan(0, "compute", "optimizer", 0.08, 0.09),
        RankSpan(0, "compute", "forward", 0.1, 0.13), RankSpan(1, "compute", "backward 2", 0.03, 0.08),
        RankSpan(1, "communication", "all_reduce", 0.06, 0.08, 2**20),
    )  # fmt: skip
    return figures.rank_timeline(RankTimeline("ddp on 2 ranks", 2, spans, (0.0, 0.1), 0.2, (), HERE))


def profiled() -> LabFigure:
    """A step with marks, operators and kernels."""
    spans = (
        ProfileSpan("forward", "mark", 0, 0.0, 0.6), ProfileSpan("loss", "mark", 1, 0.3, 0.6), ProfileSpan("aten::mm", "host", 0, 0.1, 0.5),
        ProfileSpan("aten::inside", "host", 1, 0.2, 0.25), ProfileSpan("gemm_kernel", "device", 0, 0.4, 0.9),
    )  # fmt: skip
    return figures.profile(Profile("step", "cuda:0", ((0.0, 1.0),), 0.8, spans, (), (), LIVE))


def trained() -> LabFigure:
    """Forty losses, and where a step's time went."""
    run = SimpleNamespace(
        accuracy=None, ended="finished", steps=40, task="digits", options=SimpleNamespace(precision="float32"), device="cpu", evidence=LIVE,
        losses=np.linspace(2.0, 0.1, 40), phase_seconds={"data": 1e-3, "copy": 2e-3, "forward": 3e-3, "backward": 5e-3, "optimizer": 1e-3},
    )  # fmt: skip
    return figures.training(run)  # type: ignore[arg-type]


def raced() -> LabFigure:
    """One side diverges late, the other early."""
    nan = float("nan")
    losses = ((*np.linspace(2.0, 1.0, 30), nan), (2.0, 1.5, nan))
    return figures.race(training.Moment(("a", "b"), losses, (100.0, 50.0), (2**20, 2**21), 40, LIVE))


def weighed() -> LabFigure:
    """Three models, two of them on each other."""
    rows = []
    for label, nbytes, right, speedup in (("as trained", 68_000, 490, None), ("zeros", 10_000, 480, 1.0), ("zeros too", 10_100, 479, 1.01)):
        accuracy = Accuracy(right, 500, right / 500, (right / 500 - 0.02, min(1.0, right / 500 + 0.01)), 0.1, "digits", LIVE)
        span = None if speedup is None else (0.9 * speedup, 1.1 * speedup)
        rows.append(
            WeighedModel(
                label, nbytes, 17_000, 0, (), 1e6, 14, 1000, 1e-3, (0.9e-3, 1.1e-3), 1e-4, None, speedup, span, (accuracy,), (), LIVE
            )
        )  # fmt: skip
    where = dataclasses.replace(devices.environment("cpu"), device="Slow CPU", device_kind="cpu")
    return figures.diet(Weighing("digits-cnn", "Slow CPU", 64, tuple(rows), (), LIVE, where))


def batches() -> LabFigure:
    """Three rules on one and two ranks."""
    right = Accuracy(450, 500, 0.9, (0.85, 0.95), 0.3, "digits", LIVE)
    accuracy = SeedsAccuracy((right, right), 0.9, (0.88, 0.92), (0.8, 0.96), "digits", LIVE)
    rules = ("unchanged", "linear", "linear with warm-up")
    rows = tuple(GlobalBatchRow(rule, p, 16 * p, 0.03 * p, 400 // p, accuracy, 0) for rule in rules for p in (1, 2))
    return figures.global_batch(SimpleNamespace(rows=rows, rules=rules, task="digits", epochs=2, batch=16, evidence=LIVE,
                                                select=lambda rule: [row for row in rows if row.rule == rule]))  # type: ignore[arg-type]  # fmt: skip


def scaled() -> LabFigure:
    """Two results with their predictions, and a law."""
    laws = [models.amdahl(0.1, [1, 8, 64]), models.scaling(0.1, 400e6, 10e-6, 100e9, [1, 8, 68, 512])]
    return figures.scaling([_result(), _result(FAR, predicted=False)], laws)


def streams() -> LabFigure:
    """Two sizes."""
    points = tuple(BandwidthPoint(n, r, (0.9 * r, 1.1 * r), 1.2 * r, 5) for n, r in ((8 * KIB, 4e10), (2**20, 1e10)))
    return figures.bandwidth(Bandwidth("A CPU", "numpy", "read", points, CACHES, (), LIVE, None))


def roofs() -> LabFigure:
    """A measured machine with three kinds of points, beside one of a sheet."""
    r = made("Slow CPU", LIVE)
    points = [
        dataclasses.replace(r.place("add n=1", 1e9, 1e9, seconds=0.05, evidence=LIVE), interval_seconds=(0.04, 0.06)),
        r.place("mul n=2", 2e9, 2e8),
        r.place("copy n=3", 3e9, 1e7, seconds=0.1, evidence=FAR),
    ]  # fmt: skip
    return figures.roofline(r.with_points(points), beside=[made("A GPU", SHEET, "cuda")])


def far_ladder() -> LabFigure:
    """A ladder of which one interval is cut."""
    rung = RESULT.rungs[0]
    wild = dataclasses.replace(rung, form=dataclasses.replace(rung.form, over_start=Gain(2.0, (1.8, 50.0))))
    return figures.waterfall(dataclasses.replace(RESULT, rungs=(wild, *RESULT.rungs[1:])))


def class_of(folder: pathlib.Path, kind: Callable[[Any], LabFigure]) -> LabFigure:
    """Two students."""
    for number in (0, 4):
        report = report_of(number)
        roof = dataclasses.replace(
            report.roofs[0], flops_per_second={"float32": 1e11}, bytes_per_second={"L2": 1e11, "DRAM": 1e10 * (1 + number)}
        )
        asked = (("00.3", 3.0, 30.0), ("07.1", 1.5, 1.0))
        rows = tuple(ReportedPrediction(id, "How much?", x, "p", m, "m", "", "MEASURED", 0) for id, x, m in asked)
        write(folder, f"{number}.json", dataclasses.replace(report, roofs=(roof,), predictions=rows))
    return kind(lessons.classroom(folder))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "access": lambda: figures.access(models.access_pattern(32, active_lanes=2)),
    "bandwidth": streams,
    "break even: late": lambda: broken_even(127),
    "break even: none": lambda: broken_even(None),
    "collectives": lambda: figures.collectives(swept(link=5e7), "bus"),
    "comparison": compared,
    "diet": weighed,
    "global batch": batches,
    "gradient window": lambda: figures.gradient_window(precision.gradient_window([2.0**-40, 2.0**-20, 1.0, 3.0e4], "float16", 8)),
    "gradient window: narrow": lambda: figures.gradient_window(precision.gradient_window([1.0, 1.5, 2.0], "float8_e5m2")),
    "ladder": lambda: figures.ladder_gains(RESULT),
    "ladder: cut": far_ladder,
    "latency": lambda: figures.latency(curve()),
    "machine": a_machine,
    "measurement": lambda: figures.measurement(measured("cpu", 1e-3, LIVE)),
    "memory prediction": lambda: predicted(2**28),
    "memory prediction: far": lambda: predicted(2**34),
    "memory snapshot": lambda: figures.memory_snapshot(
        memory.Snapshot("cuda:0", "A GPU", 2**30, {"tensors": 2**29, "free": 2**29, "cache": 0}, (), (), LIVE)
    ),
    "memory timeline": phases,
    "number line: two": lambda: figures.number_line([precision.number(1.0, "float32"), precision.number(1.0, "bfloat16")]),
    "number line: beyond": lambda: figures.number_line(precision.number(70000.0, "float16")),
    "number line: 64 bits": lambda: figures.number_line(precision.number(0.5, "float64")),
    "occupancy": lambda: figures.occupancy(models.occupancy(256, 64, 4096, "9.0")),
    "overlap": overlapped,
    "parallel chains": lambda: figures.parallel_chains(chains()),
    "pipeline": lambda: figures.pipeline(training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=3)),
    "profile": profiled,
    "race": raced,
    "rank memory": lambda: figures.rank_memory([rank_states("course", strategy=s, ranks=2) for s in ("ddp", "zero3")], 2**30, "a GPU"),
    "rank timeline": ranked,
    "roofline": roofs,
    "scaling": scaled,
    "stages": lambda: figures.pipeline_schedule(models.pipeline_schedule(2, 2, "1f1b", forward=1, backward=1)),
    "stages: a run": lambda: figures.pipeline_schedule(split_run()),
    "sweep: rate": lambda: swept_link("rate"),
    "sweep: seconds": lambda: swept_link("seconds"),
    "training": trained,
}


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]


@pytest.mark.parametrize("kind", [figures.class_predictions, figures.class_roofline], ids=lambda kind: kind.__name__)
def test_a_picture_of_a_class_looks_as_its_table_says(kind: Any, tmp_path: pathlib.Path) -> None:
    """Part by part, of two students."""
    assert look(class_of(tmp_path, kind)) == LOOKS[kind.__name__]


def test_every_picture_has_its_table() -> None:
    """No picture without one, no table of none."""
    assert {*LOOKS} == {*PICTURES, "class_predictions", "class_roofline"}
