"""What the notebooks show: recorded figures as approved tables, live ones by hand."""

import dataclasses
import inspect
import itertools
import json
from typing import Any

import gpulab as gl
import numpy as np
import pytest
from course import CURVE, HERE, ROOF
from gpulab import devices, lessons, recordings, workloads
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.hierarchy import Bandwidth, BandwidthPoint
from gpulab.lessons import LiveDevice

from texts import table_text

without_gpu = pytest.mark.skipif(
    not devices.default().is_cpu, reason="this machine measures its own accelerator"
)
STREAM = Bandwidth(
    "A CPU", "numpy", "read", (BandwidthPoint(2**26, 2e10, None, 2e10, 5),), (), (), HERE, None
)
WORKS = [
    workloads.get("add")(n=2**24),
    workloads.get("add")(n=12345),
    workloads.get("matmul")(n=1024),
]


def gains() -> Any:
    """Three works that took a second each here, beside the recorded GPUs."""
    points = [
        dataclasses.replace(ROOF.place_workload(work), seconds=1.0, evidence=HERE) for work in WORKS
    ]
    return lessons.recorded_gains(ROOF.with_points(points), WORKS)


# What each shows without an accelerator: recordings, models, made-up exercise data.
SHOWN: dict[str, Any] = {
    "launches": lessons.launches, "ridges": lessons.recorded_ridges, "roofs": lessons.gpu_roofs,
    "gains": gains,
    "bfloat16 roofs": lambda: lessons.gpu_roofs("bfloat16"),
    "under the roof": lambda: lessons.recorded_under_roof(WORKS),
    "options": lambda: lessons.recorded_options(("plain", "compile", "graph")),
    "all options": lessons.recorded_options,
    "products": lessons.products, "precisions": lessons.recorded_precisions,
    "overlap": lessons.recorded_overlap,
    "scalings": lessons.recorded_scalings, "three cases": lessons.three_cases,
    "step": lessons.step_of_parts,
    "two techniques": lambda: lessons.step_of_parts("data on the device", "prefetch"),
    "other techniques": lambda: lessons.step_of_parts("data on the device", "CUDA graph",
    "bfloat16"),
    "technique gains": lessons.technique_gains,
    "h200 gains": lambda: lessons.technique_gains("nvidia-h200"),
    "claims": lessons.ladder_claims, "ladders": lessons.recorded_ladders,
    "sweeps": lessons.recorded_sweeps,
    "streams": lessons.gpu_streams, "curves": lessons.gpu_curves, "forms": lessons.layer_forms,
    "recorded forms": lessons.recorded_forms,
    "tuning": lambda: lessons.tuning("matmul-warp-tiled"),
    "kinds": lambda: lessons.pageable_against_pinned(64 * 2**20),
    "budget": lessons.budget,
    "in flight": lambda: lessons.under_way(CURVE, STREAM, lessons.gpu_curves(),
    lessons.gpu_streams()),
    **{f"timeline {letter}": (lambda letter=letter: lessons.timeline(letter)) for letter in "ABC"},
    **{f"hang {letter}": (lambda letter=letter: lessons.hang(letter)) for letter in "ABC"},
    **{
        f"idioms of {name}": (lambda name=name: lessons.rosetta(name))
        for name in lessons.tongues()
    },
}  # fmt: skip


@without_gpu
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_without_an_accelerator(name: str, approved: Any) -> None:
    """Each number with its badge, machine and unit; what nobody recorded says so."""
    found = SHOWN[name]()
    several = found if isinstance(found, (tuple, list)) else (found,)
    text = f"{len(several)}\n" + "".join(
        f"{one!r}\n{table_text(one._repr_html_())}" for one in several
    )
    if name.startswith("hang"):
        spans = [(rank, span) for rank in range(found.ranks) for span in found.lane(rank)]
        text += "".join(
            f"{rank} {s.kind} {s.name} {s.begin_seconds:.4g} {s.end_seconds:.4g}\n"
            for rank, s in spans
        )
    assert text == approved


FAMILIES = ("elementwise", "reduction", "transpose", "histogram", "softmax", "matmul")


@pytest.mark.slow
@without_gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_a_ladder_of_kernels(family: str, approved: Any) -> None:
    """Counted by the microscope on a small case, beside the best recorded times."""
    table = lessons.climb(family)
    assert f"{table!r}\n{table_text(table._repr_html_())}" == approved
    with pytest.raises(InputError):
        lessons.climb(f"{family}s")


def test_figures_of_the_recording_by_hand() -> None:
    """From the file itself: seconds of a start, ridges, and what is in flight by Little's law."""
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))

    def timing(experiment: str, **params: Any) -> dict[str, Any]:
        """The file's timing of that experiment with these parameters."""
        (one,) = [
            e["timing"]
            for e in file["entries"]
            if e["experiment"] == experiment
            and e["timing"]
            and params.items() <= e["params"].items()
        ]
        return one

    serial, chunked = (
        timing("overlap", arrangement=a, nbytes=2**28, chunks=16)["median_seconds"]
        for a in ("serial", "chunked")
    )
    assert next(row for row in lessons.recorded_overlap().rows if row[1:3] == (2**28, 16))[3:] == (
        serial,
        chunked,
    )
    product = timing("ceilings", operation="gemm", dtype="bfloat16")
    (roofs,) = lessons.gpu_roofs("bfloat16")
    assert roofs.arithmetic_roof("bfloat16").flops_per_second == pytest.approx(
        product["flops"] / product["median_seconds"]
    )
    chase, stream = timing("latency", nbytes=2**29), timing("bandwidth", nbytes=2**29)
    found = lessons.under_way(CURVE, STREAM, lessons.gpu_curves(), lessons.gpu_streams())
    if devices.default().is_cpu:
        core, gpu = found.rows
        assert gpu.nbytes == pytest.approx(
            chase["median_seconds"] / 8192 * stream["nbytes"] / stream["median_seconds"]
        )
        assert (core.nbytes, gpu.workers, gpu.threads) == (pytest.approx(90e-9 * 2e10), 132, 2048)


PASSES = [
    (lambda x: 0.5 * (1 + np.tanh(0.8 * x)), 32),  # four walks that read one array and write one
    (lambda x: x + x, 12), (lambda x: x > 0, 5), (lambda x: np.sqrt(x) * 2, 16),
    (lambda x: x * 0.5 * (1 + np.tanh(0.8 * x)), 44),
]  # fmt: skip


@pytest.mark.parametrize(("number", "nbytes"), [(k, count) for k, (_, count) in enumerate(PASSES)])
def test_passes_of_numpy_by_hand(number: int, nbytes: int) -> None:
    """Each operation reads its arrays, 4 bytes an element, and writes its result."""
    assert (
        lessons.numpy_passes(PASSES[number][0], np.ones(64, np.float32)).bytes_per_element == nbytes
    )


@pytest.mark.slow
def test_claims_of_which_one_cannot_be_true() -> None:
    """00.2: one rate is above the memory's, more than noise explains; the others are below."""
    claims = lessons.four_claims()
    rates = [
        claim.nbytes / claim.seconds / claims.ceiling_bytes_per_second for claim in claims.claims
    ]
    assert [rate > 1 for rate in rates] == [False, False, True, False]
    assert rates[2] > 2
    assert max(rates[:2] + rates[3:]) < 0.95
    assert claims.evidence.badge is Badge.MODELLED


def test_the_bill_of_a_device_by_its_clock() -> None:
    """Two readings a step, one second apart: copies, calls, bytes and seconds add up."""
    ticks = itertools.count()
    device = LiveDevice(devices.find("cpu"), clock=lambda: float(next(ticks)))
    there = device.to_device(np.ones(1000, dtype=np.float32))
    there = device.run(lambda v: v + 1, device.run(lambda v: v + 1, there))
    assert float(device.to_host(there)[0]) == 3.0
    bill = device.report()
    assert (
        bill.copies,
        bill.calls,
        bill.copied_bytes,
        bill.copy_seconds,
        bill.compute_seconds,
    ) == (2, 2, 8000, 2.0, 2.0)
    device.reset()
    assert device.report().copies == 0


@without_gpu
def test_the_modelled_device_has_the_link_of_a_lesson() -> None:
    """13 MB over half of PCI Express 4's 26 GB/s, and 10 us to start."""
    gpu = lessons.accelerator()
    gpu.to_device(np.zeros(13_000_000, dtype=np.uint8))
    assert gpu.report().copy_seconds == pytest.approx(1e-3 + 10e-6)


def test_a_queue_returns_before_its_work_is_done() -> None:
    """The work waits for an event that is set after the call; synchronize waits for the work."""
    import threading

    queue, go, done = lessons.WorkQueue(), threading.Event(), []
    queue.submit(go.wait)
    queue.submit(done.append, 1)
    assert done == []
    go.set()
    queue.synchronize()
    assert done == [1]
    queue.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        queue.synchronize()


def test_answers_that_changed_are_counted() -> None:
    """A model against itself changes nothing, two that say different digits all 500."""
    torch = pytest.importorskip("torch")

    class Always(torch.nn.Module):
        """Says one digit, whatever it sees."""

        def __init__(self, digit: int) -> None:
            super().__init__()
            self.scores = torch.nn.Parameter(torch.eye(10)[digit])

        def forward(self, x: Any) -> Any:
            return self.scores.expand(len(x), 10)

    assert [lessons.changed_answers(Always(3), Always(digit)) for digit in (3, 4)] == [0, 500]


def test_a_cpu_beside_a_recorded_gpu() -> None:
    """01: the H200's shape and rates are the recording's, the CPU's column is this machine's."""
    found = lessons.side_by_side()
    headers, rows = found.table()
    words = {row[0]: row[-1] for row in rows}
    assert any("132" in cell for cell in words.values())
    assert devices.find("cpu").name.split("(")[0].strip()[:10] in " ".join(headers) + str(rows)
    assert len(rows) >= 6


LIVE: dict[str, Any] = {
    "columns": (lambda: lessons.column_loop(64, deadline=0.05),
    lambda r: r.ratio > 0 and r.n == 64),
    # 2 k FLOP a number.
    "sweep": (
        lambda: lessons.arithmetic_sweep(4096, (4, 1, 2), device="cpu", deadline=0.05),
        lambda r: [(row.multiply_adds, row.flops) for row in r.rows] == [(k,
        2 * k * 4096) for k in (1, 2, 4)],
    ),
    "sparse": (lambda: lessons.sparse_race((0.5, 0.98), device="cpu"),
    lambda r: [row.share for row in r.rows] == [0.5, 0.98]),
    # 8 images of 16x16, 128 channels, 3x3: 2 * 8 * 256 * 128 * 128 * 9 FLOP, divided by the groups.
    "groups": (
        lambda: lessons.grouping(device="cpu"),
        lambda r: {row.flops * row.groups for row in r.rows} == {2 * 8 * 256 * 128 * 128 * 9},
    ),
    "spellings": (lambda: lessons.spellings(1 << 12),
    lambda r: "NumPy" in str(r.table()[1]) and len(r.table()[1]) >= 3),
    "column": (lessons.column_sum, lambda r: r.nbytes == 4 * 2**20 and r.seconds > 0),
    "roof": (lessons.roof,
    lambda r: r.arithmetic_roof("float32").flops_per_second > 1e8 and lessons.roof() is r),
    "under": (lambda: lessons.under_roof([workloads.get("add")(n=2**16)], 0.05),
    lambda r: len(r.points) == 1 and r.points[0].nbytes == 12 * 2**16),
    "contest": (
        lambda: lessons.contest("add"),
        lambda r: all(row.with_copies_seconds >= row.accelerator_seconds for row in r.rows),
    ),
    "shards": (lambda: lessons.sharded(4), lambda r: [(s.first,
    s.end) for s in r.shards] == [(8 * k, 8 * k + 8) for k in range(4)]),
    "five": (lambda: lessons.five_times(64, deadline=0.05),
    lambda r: len(r.rows) >= 4 and lessons.usual_timings(r).table()[1]),
    "feeding": (lambda: lessons.feeding(2**20, deadline=0.05),
    lambda r: r.nbytes == 2**20 and r.ratio > 0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_what_is_measured_here(name: str) -> None:
    """Counts by hand, times above nothing, a badge, and a table."""
    show, holds = LIVE[name]
    found = show()
    assert holds(found), found
    assert found._repr_html_().count("<table") >= 1
    assert str(found.evidence.badge) in ("MEASURED", "MODELLED", "RECORDED")


def test_what_is_measured_where_a_cell_says_nothing(approved: Any) -> None:
    """The sizes that the notebooks name, and seconds of sampling: the functions' defaults."""
    text = ""
    for name in sorted(name for name in lessons.__all__ if name.islower()):
        parameters = inspect.signature(getattr(lessons, name)).parameters.values()
        known = [f"{p.name}={p.default!r}" for p in parameters if p.default is not p.empty]
        text += f"{name}({', '.join(known)})\n".replace("<built-in function print>", "print")
    assert text == approved


@pytest.mark.slow
@pytest.mark.parametrize(
    "tongue", ["MATLAB", "CUDA C++", "CuPy", "TensorFlow 1", "JAX", "TensorFlow"]
)
def test_every_line_of_the_tables_gives_numpys_answer(tongue: str) -> None:
    """Each row of a tongue that can run here agrees; one whose library is missing says so."""
    run = lessons.rosetta(tongue).run()
    assert [row for row in run.rows if row.state not in ("agrees", "not run here")] == []
    assert [row for row in run.rows if row.theirs not in ("agrees", "", "not run here")] == []
    for wrong in (f"{tongue}s", 5):
        with pytest.raises(InputError):
            lessons.rosetta(wrong)
    assert gl.lessons.tongues() == tuple(lessons.tongues())
