"""Results with round numbers by hand, shared by the tests of figures and of instruments.

Devices have made-up names; dates and versions come from a recording. So no number depends on the
machine.
"""

import dataclasses
import functools

import gpulab as gl
import numpy as np
from gpulab import (
    compression,
    devices,
    hierarchy,
    memory,
    models,
    parallel,
    precision,
    timing,
    training,
    transfer,
)
from gpulab.evidence import Environment, Evidence, Note

KIB, MIB, GIB = 2**10, 2**20, 2**30
NAMES = {"cpu": "Slow CPU", "cuda": "A GPU"}


@functools.cache
def environment(kind: str = "cpu") -> Environment:
    """The environment of the recorded H200, under another name."""
    recorded = gl.recordings.load("nvidia-h200").environment
    return dataclasses.replace(recorded, device=NAMES[kind], device_kind=kind)


def evidence(badge: str = "measured", kind: str = "cpu") -> Evidence:
    """Return evidence with the given badge."""
    if badge == "measured":
        return Evidence.measured(NAMES[kind], 9)
    if badge == "recorded":
        return Evidence.recorded(environment(kind), samples=9)
    return Evidence.modelled("everything is busy", "a book")


LIVE = evidence()
STEADY = (0.95, 1.08)  # the ends differ, so that exchanged ones show


def around(value: float, ends: tuple[float, float] = STEADY) -> tuple[float, float]:
    """The interval of a value."""
    return ends[0] * value, ends[1] * value


def measurement(median: float, badge: str = "measured", kind: str = "cpu") -> timing.Measurement:
    """21 samples, the fastest is the eighth; a call returns after half the median, and takes 3
    medians with both copies. A GPU draws 200 W, known to 30 W.
    """
    samples = median * np.roll(np.linspace(0.9, 1.1, 21), 7)
    return timing.Measurement(
        "work",
        "cpu" if kind == "cpu" else "cuda:0",
        samples,
        median,
        around(median),
        9 * median,
        median / 2,
        3 * median,
        1,
        1e6,
        1e5,
        (),
        evidence(badge, kind),
        environment(kind),
        None if kind == "cpu" else 200 * median,
        None if kind == "cpu" else 30 * median,
    )


def comparison(agree: bool = True) -> timing.Comparison:
    """A CPU of 10 ms beside a GPU of 1 ms and an old one of 5 ms."""
    rows = (
        timing.ComparisonRow("CPU", measurement(1e-2), None, None, None),
        timing.ComparisonRow("GPU", measurement(1e-3, kind="cuda"), 10.0, (9.0, 12.0), 1e-6),
        timing.ComparisonRow("Old GPU", measurement(5e-3, kind="cuda"), 2.0, (1.5, 2.1), 1e-7),
    )
    note = Note("unstable", "The samples drift.")
    return timing.Comparison(
        "work", rows, 10.0, (9.0, 12.0), 1e-6 if agree else 1e-1, 1e-4, (note,), LIVE
    )


def recorded_row() -> timing.ComparisonRow:
    """A recorded GPU of 2 ms."""
    return timing.ComparisonRow("Far GPU", measurement(2e-3, "recorded", "cuda"), None, None, None)


def sweep(badge: str = "measured", ceiling: float | None = 2e10) -> transfer.Sweep:
    """A link of 10 us and 10 GB/s; back to pageable memory, of 30 us and 5 GB/s."""
    points = tuple(
        transfer.SweepPoint(*series, n, latency + n / rate, around(latency + n / rate), 9)
        for series, latency, rate in (
            (("to_device", "pinned"), 1e-5, 1e10),
            (("to_host", "pageable"), 3e-5, 5e9),
        )
        for n in (2**k for k in range(10, 31, 4))
    )
    return transfer.Sweep("A GPU", "torch", points, ceiling, (), evidence(badge, "cuda"), None)


def kneed() -> tuple[transfer.Sweep, transfer.AlphaBeta]:
    """A link of 10 us and 10 GB/s that drops to 5 GB/s from 16 MiB on, with its fit.

    The times are two percent above and below in turn, so that the fit has intervals.
    """
    nbytes = [2**k for k in range(10, 31)]
    seconds = [
        (10e-6 + n / 10e9 + max(n - 2**24, 0) / 10e9) * (1.02, 0.98)[k % 2]
        for k, n in enumerate(nbytes)
    ]
    points = tuple(
        transfer.SweepPoint("to_device", "pinned", n, t, None, 9)
        for n, t in zip(nbytes, seconds, strict=True)
    )
    s = transfer.Sweep("A GPU", "torch", points, None, (), evidence(kind="cuda"), None)
    return s, transfer.fit(nbytes, seconds)


def break_even(reason: str = "found") -> transfer.BreakEven:
    """The accelerator wins from n = 80 on; for any other ``reason`` it never does."""
    rows = (
        transfer.BreakEvenRow(64, 1e-4, 2e-4, 1e4),
        transfer.BreakEvenRow(128, 8e-4, 3e-4, 4e4),
    )
    found = reason == "found"
    rows = () if reason == "no accelerator" else rows
    sentence = "It wins from 80 on." if found else f"It is {reason}."
    host = evidence() if rows else None
    return transfer.BreakEven(
        "matmul", 80 if found else None, reason, sentence, rows, (), evidence("modelled"), host
    )


def overlap() -> transfer.Overlap:
    """Copies of 0.8 and 1.2 ms; a compute of 1 ms beside the second one, and one of 0.5 ms."""
    spans = (
        transfer.Span("copy", 0, 0.0, 0.8e-3),
        transfer.Span("copy", 1, 0.8e-3, 2e-3),
        transfer.Span("compute", 0, 0.8e-3, 1.8e-3),
        transfer.Span("compute", 1, 2e-3, 2.5e-3),
    )
    return transfer.Overlap(
        device="A GPU",
        nbytes=MIB,
        chunks=2,
        copy_seconds=2e-3,
        compute_seconds=1.5e-3,
        seconds=2.5e-3,
        timeline=spans,
        notes=(),
        evidence=evidence(kind="cuda"),
    )


CACHES = (hierarchy.Reported("L1d", 32.0 * KIB), hierarchy.Reported("L2", 64.0 * KIB))


def latency(badge: str = "measured", kind: str = "cpu") -> hierarchy.Latency:
    """2 ns up to 32 KiB and 20 ns beyond, the fastest samples ten percent below the medians."""
    times = {2**k: 2e-9 if k <= 15 else 20e-9 for k in range(12, 22)}
    points = tuple(
        hierarchy.LatencyPoint(n, t, around(t) if n > 4 * KIB else None, 0.9 * t, 9, 3)
        for n, t in times.items()
    )
    return hierarchy.Latency(
        NAMES[kind], "python", points, 1e-9, CACHES, (), evidence(badge, kind), environment(kind)
    )


def bandwidth(badge: str = "measured", kind: str = "cpu") -> hierarchy.Bandwidth:
    """40 GB/s in the cache and 10 GB/s in main memory; a GPU has ten times as much."""
    scale = 1 if kind == "cpu" else 10
    points = tuple(
        hierarchy.BandwidthPoint(n, scale * r, around(scale * r), 1.2 * scale * r, 5)
        for n, r in ((8 * KIB, 4e10), (MIB, 1e10))
    )
    return hierarchy.Bandwidth(
        NAMES[kind], "numpy", "read", points, CACHES, (), evidence(badge, kind), environment(kind)
    )


def chains() -> hierarchy.ParallelChains:
    """80 ns a load along one chain, 50 along two, 40 along four; the fastest take a tenth less."""
    points = tuple(
        hierarchy.ParallelPoint(n, t, around(t) if n > 1 else None, 0.9 * t, 5)
        for n, t in ((1, 80e-9), (2, 50e-9), (4, 40e-9))
    )
    return hierarchy.ParallelChains("Slow CPU", "python", MIB, points, (), LIVE, None)


def roofline(badge: str = "measured", kind: str = "cpu", point_badge: str = "") -> models.Roofline:
    """1 TFLOP/s in float32 over a cache of 1 TB/s and a memory of 100 GB/s: ridges at 1 and 10.

    One point at 5 FLOP per byte reaches 60 % of the memory's roof, which is 0.5 TFLOP/s there; its
    interval is 0.25 to 0.4 TFLOP/s. All rates of a GPU are ten times as high.
    """
    proof = evidence(badge, kind)
    scale = 1.0 if kind == "cpu" else 10.0
    flops = tuple(
        models.ArithmeticRoof(name, rate * scale, "a sheet", proof)
        for name, rate in (("float32", 1e12), ("float16", 8e12))
    )
    levels = tuple(
        models.MemoryRoof(name, rate * scale, size, "a sheet", proof)
        for name, rate, size in (("L2", 1e12, 1e6), ("DRAM", 1e11, 1e10))
    )
    empty = models.Roofline(NAMES[kind], flops, levels, (), (), proof, kind)
    point = empty.place(
        "work n=8 float32",
        5e8,
        1e8,
        seconds=5e8 / (0.3e12 * scale),
        evidence=evidence(point_badge or badge, kind),
    )
    return empty.with_points(
        [
            dataclasses.replace(
                point, interval_seconds=(5e8 / (0.4e12 * scale), 5e8 / (0.25e12 * scale))
            )
        ]
    )


def memory_trace(badge: str = "measured") -> memory.MemoryTrace:
    """A step of ten operators whose peak of 9 MiB is in the backward pass."""
    activations = np.array([1, 2, 4, 6, 8, 7, 5, 3, 1, 0]) * MIB
    by = {"parameters": np.full(10, MIB), "activations": activations}
    line = memory.Timeline(
        tuple(f"aten.op{k}.default" for k in range(10)),
        ("forward",) * 4 + ("backward",) * 4 + ("optimizer",) * 2,
        (0,),
        by,
    )
    peaks = {"parameters": MIB, "activations": 8 * MIB}
    return memory.MemoryTrace(
        "a model",
        9 * MIB,
        peaks,
        "aten.op4.default",
        "backward",
        (),
        line,
        (),
        evidence(badge),
        "cpu",
    )


def prediction(batch: int = 1) -> memory.Prediction:
    """9 MiB at the peak for one sample, of which 7 MiB do not depend on the batch."""
    by = {
        "parameters": 2 * MIB,
        "optimizer": 4 * MIB,
        "gradients": MIB,
        "activations": 2 * batch * MIB,
    }
    weight = memory.LiveTensor("weight", "parameters", 2 * MIB, (2**19,), "float32", "")
    return memory.Prediction(
        "MLP",
        sum(by.values()),
        by,
        "aten.mm.default",
        "backward",
        (weight,),
        memory_trace("modelled").timeline,
        (),
        evidence("modelled"),
        8 * MIB,
        3 * MIB,
        6 * MIB,
        2**19,
        "Adam",
        "float32",
        False,
        "cpu",
    )


def snapshot() -> memory.Snapshot:
    """Half of 1 GiB is free; two tensors have 256 and 64 MiB."""
    held = (
        memory.HeldTensor("weights", 2**28, (2**26,), "float32", "torch", 1),
        memory.HeldTensor("image", 2**26, (2**12, 2**11), "float64", "cupy", 2),
    )
    parts = {
        "tensors": 320 * MIB,
        "cached": 128 * MIB,
        "this process": 40 * MIB,
        "other processes": 24 * MIB,
        "free": 512 * MIB,
    }
    return memory.Snapshot("cuda:0", "A GPU", GIB, parts, held, (), evidence(kind="cuda"))


def released() -> memory.Released:
    """256 MiB came back, and this process shrank from 3 to 2.5 GiB."""
    return memory.Released(
        "cuda:0", GIB, GIB + 256 * MIB, 3 * GIB, 2 * GIB + 512 * MIB, ("cuda cache",), (),
        evidence(kind="cuda"),
    )  # fmt: skip


def machine() -> devices.Machine:
    """8 of 16 GiB granted, a GPU with its L2, and one that is not used."""
    gpus = (
        devices.Accelerator(
            "cuda:0", "A GPU", "cuda", memory_bytes=2**36, free_bytes=2**35, l2_bytes=2**25
        ),
        devices.Accelerator(None, "Another", "cuda", memory_bytes=3 * 2**33),
    )
    caches = (devices.Cache("L1d", 32 * KIB, 4), devices.Cache("L3", 8 * MIB, 1))
    problems = (
        devices.Problem("error", "old-driver", "The driver is old.", "Update it."),
        devices.Problem("warning", "no-cupy", "CuPy is missing.", "Install it."),
        devices.Problem("info", "virtual-machine", "This is a virtual machine.", "Nothing to do."),
    )
    cpu = devices.Processor("Slow CPU", "x86_64", 4, 2, None, caches, ("avx2",), 2e9, 3e9, None)
    return devices.Machine(
        environment(),
        cpu,
        devices.Memory(2**34, 2**31, 2**33),
        2**37,
        gpus,
        "580.1",
        "13.0",
        {"numpy": "2.4.6"},
        problems,
        LIVE,
    )


def accuracy(right: int = 450) -> training.Accuracy:
    """Return an accuracy of ``right`` out of 500."""
    share = right / 500
    return training.Accuracy(right, 500, share, (share - 0.05, share + 0.03), 0.3, "digits", LIVE)


OPTIONS = training.Options(
    "float32", 32, 40, 0.1, "sgd", 1, False, False, False, None, 0, 2, False, False, None, None, 0
)


def ladder() -> training.LadderResult:
    """Three rungs: 2x, then 0.9x, then 1.06x, whose interval includes 1."""

    def form(ratio: float) -> training.LadderForm:
        gain = training.Gain(ratio, around(ratio))
        return training.LadderForm((), 16, 100 * ratio, None, gain, 0.1, {}, None)

    def gains(*pairs: tuple[float, tuple[float, float] | None]) -> list[training.Gain]:
        return [training.Gain(*pair) for pair in pairs]

    rungs = (
        training.Rung(
            "a",
            "first",
            "loading",
            form(2.0),
            *gains((2.0, (1.8, 2.3)), (2.2, (2.1, 2.5)), (1.2, (1.1, 1.4))),
            None,
        ),
        training.Rung(
            "b",
            "second",
            "waiting",
            form(1.8),
            *gains((0.9, (0.82, 0.95)), (1.5, (1.2, 1.7)), (0.85, (0.75, 0.98))),
            None,
        ),
        training.Rung(
            "c",
            "third",
            "arithmetic",
            form(1.92),
            *gains((1.06, (0.9, 1.2)), (1.1, None), (1.05, (0.96, 1.3))),
            None,
        ),
    )
    return training.LadderResult(
        "digits",
        "cpu",
        100,
        (),
        0.02,
        form(1.0),
        None,
        rungs,
        *gains((1.9, (1.7, 2.2)), (3.63, (2.5, 4.0)), (1.91, (1.3, 2.1))),
        (),
        (),
        24,
        (),
        LIVE,
        environment(),
    )


def profile() -> training.Profile:
    """One step of 1 s: two marks, operators two deep, a kernel of 0.5 s; and a step of 2 s."""
    spans = (
        training.ProfileSpan("forward", "mark", 0, 0.0, 0.6),
        training.ProfileSpan("loss", "mark", 1, 0.3, 0.6),
        training.ProfileSpan("aten::mm", "host", 0, 0.1, 0.5),
        training.ProfileSpan("aten::inside", "host", 1, 0.2, 0.25),
        training.ProfileSpan("aten::add", "host", 0, 1.2, 1.3),
        training.ProfileSpan("gemm_kernel", "device", 0, 0.4, 0.9),
    )
    return training.Profile(
        "train", "cuda:0", ((0.0, 1.0), (1.0, 3.0)), spans, (), (), evidence(kind="cuda")
    )


def pipeline_run() -> training.PipelineResult:
    """A modelled pipeline with the badge of a measured one.

    Loading takes 60, 59, 56, 51, 44 and 35 ms, a copy 1 to 0.5 ms, a step 30 to 20 ms: each part
    begins later by a time of its own, times the square of the step.
    """
    p = training.model_pipeline(0.06, 0.03, workers=2, steps=6, cores=4)
    return dataclasses.replace(
        p,
        spans=tuple(
            span._replace(start_seconds=span.start_seconds + later * span.step**2)
            for lane, later in (("data", 1e-3), ("copy", 2e-5), ("compute", 4e-4))
            for span in p.lane(lane)
        ),
        evidence=LIVE,
    )


def weighing() -> compression.Weighing:
    """Four models, the last two of nearly the same size and accuracy; the second was not tested."""
    rows = tuple(
        compression.WeighedModel(
            label,
            nbytes,
            17_000,
            0,
            (),
            1e6,
            14,
            1000,
            1e-3,
            around(1e-3),
            1e-4,
            None,
            speedup,
            None if speedup is None else around(speedup),
            (accuracy(right),) if right else (),
            (),
            LIVE,
        )
        for label, nbytes, right, speedup in (
            ("as trained", 68_000, 470, None),
            ("not tested", 5_000, 0, 2.0),
            ("zeros", 10_000, 450, 1.2),
            ("zeros too", 10_100, 449, 1.25),
        )
    )
    return compression.Weighing("digits-cnn", "Slow CPU", 64, rows, (), LIVE, environment())


def gradients() -> precision.Gradients:
    """Gradients of parameters are powers of two, 2^-30 to 4; all of activations are 2^-10."""
    kinds = {"parameters": 2.0 ** np.arange(-30, 3), "activations": np.full(11, 2.0**-10)}
    return precision.Gradients(
        "your model",
        tuple(precision.Magnitudes(name, len(v), 0, 0, v) for name, v in kinds.items()),
        LIVE,
    )


def scaling_result(
    badge: str = "measured", kind: str = "cpu", predicted: bool = True
) -> parallel.ScalingResult:
    """A step of 120 ms whose 4 MB of gradients travel at 1 GB/s, on 1, 2 and 4 ranks: somewhat
    slower than predicted. A recorded one is weak scaling, of ranks that wait.
    """
    plain = models.scaling(0.12, 4e6, 1e-4, 1e9, [1, 2, 4])
    hidden = models.scaling(0.12, 4e6, 1e-4, 1e9, [1, 2, 4], overlap=1.0)
    points = tuple(
        parallel.ScalingMeasurement(
            ranks, 60 // ranks, np.array([t]), t, around(t), speedup, around(speedup, (0.9, 1.2))
        )
        for ranks, t, speedup in ((1, 0.12, 1.0), (2, 0.07, 1.8), (4, 0.045, 2.6))
    )
    return parallel.ScalingResult(
        "a perceptron",
        "strong" if badge == "measured" else "weak",
        "computed" if badge == "measured" else "a timed wait",
        4_000_000,
        4,
        points,
        1e-4,
        1e9,
        plain if predicted else None,
        hidden if predicted else None,
        (),
        evidence(badge, kind),
        environment(kind),
    )


def rank_timeline() -> parallel.RankTimeline:
    """Two steps, of 100 and 80 ms, after 20 ms in which one rank prepares and the other begins to
    send; its all-reduce lies beside its backward pass.
    """
    spans = tuple(
        parallel.RankSpan(*span)
        for span in (
            (0, "compute", "prepare", 0.0, 0.015),
            (0, "compute", "forward", 0.02, 0.05),
            (0, "compute", "backward", 0.05, 0.08),
            (0, "idle", "all_reduce", 0.08, 0.1),
            (0, "compute", "optimizer", 0.1, 0.11),
            (0, "compute", "forward", 0.12, 0.16),
            (1, "communication", "broadcast", 0.01, 0.03, 2 * MIB),
            (1, "compute", "forward 2", 0.02, 0.055),
            (1, "compute", "backward 2", 0.055, 0.1),
            (1, "communication", "all_reduce", 0.08, 0.1, MIB),
        )
    )
    return parallel.RankTimeline("ddp on 2 ranks", 2, spans, (0.02, 0.12), 0.2, (), LIVE)


def schedule_run() -> parallel.ScheduleRun:
    """Two stages without overlap: 10.5 s, of which the stages work for 4.5 and 4.8 s.

    So 9.3 of 21 s are no bubble; in two other steps it was smaller and larger.
    """
    passes = tuple(
        models.StagePass(*one)
        for one in (
            (0, "forward", 0, 3, 0, 0.0, 1.5),
            (1, "forward", 0, 3, 0, 2.0, 3.6),
            (1, "backward", 0, 3, 0, 3.6, 6.8),
            (0, "backward", 0, 3, 0, 7.5, 10.5),
        )
    )
    return parallel.ScheduleRun(
        "split", 2, 3, 1, 0.5, 1.0, (0.61, 0.52, 0.557), passes, (3 * MIB, MIB), (), LIVE,
        environment(),
    )  # fmt: skip
