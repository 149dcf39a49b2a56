"""What the notebooks show of recorded GPUs; expected values come from the recording's own file, by hand."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any

import pytest

from gpulab import devices, hierarchy, lessons, models, recordings, workloads
from gpulab.errors import InputError, MissingLibraryError
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _recorded_gpus

FILE = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
LIVE = Evidence.measured("a CPU", 9)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one."""
    monkeypatch.setattr(_recorded_gpus.devices, "default", lambda: devices.find("cpu"))


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no GPU was recorded: the CPU's recording alone is there."""
    there = {name: one for name, one in recordings.readable().items() if one.environment.device_kind == "cpu"}
    monkeypatch.setattr(recordings, "readable", lambda: there)


def timings(experiment: str, **params: Any) -> list[dict[str, Any]]:
    """The file's timings of an experiment with these parameters, in its order."""
    return [
        entry["timing"]
        for entry in FILE["entries"]
        if entry["experiment"] == experiment and entry["timing"] and params.items() <= entry["params"].items()
    ]


def test_only_machines_with_an_accelerator_count() -> None:
    """A CPU's recording is none of a GPU."""
    assert "nvidia-h200" in _recorded_gpus.recorded_gpus()
    assert all(one.environment.device_kind != "cpu" for one in _recorded_gpus.recorded_gpus().values())


def test_launches_are_the_recorded_thousand_over_a_thousand() -> None:
    """From one start to the next: the file's median over its 1000 launches; the ratio is that of both."""
    found = lessons.launches()
    (stream,), (graph,) = timings("launch", operation="stream"), timings("launch", operation="graph")
    assert {row.way: row.seconds for row in found.rows} == {
        "stream": pytest.approx(stream["median_seconds"] / 1000), "graph": pytest.approx(graph["median_seconds"] / 1000),
    }  # fmt: skip
    assert found.table()[1][0][-1] == f"{stream['median_seconds'] / graph['median_seconds']:.2f}x"
    assert [each.badge for each in found.evidence] == [Badge.RECORDED]
    assert "gpulab record" in found.caption()


def test_a_gpu_of_ones_own_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's own cases are timed; a refused one is left out."""
    where = devices.Device("cuda", 0)
    monkeypatch.setattr(_recorded_gpus.devices, "default", lambda: where)
    monkeypatch.setattr(devices.Device, "name", "My GPU")
    took = type("Taken", (), {"median_seconds": 5e-3, "interval_seconds": (4e-3, 6e-3)})()
    cases = [({"operation": "stream", "launches": 1000}, took), ({"operation": "graph", "launches": 1000}, "not here: no graphs")]
    asked: list[Any] = []
    monkeypatch.setattr(_recorded_gpus._live, "measured", lambda *given: (asked.append(given), cases)[1])
    found = lessons.launches(0.25)
    ((name, wanted, device, deadline),) = asked
    assert (name, wanted({}), device, deadline) == ("launch", True, where, 0.25)
    assert [(row.way, row.seconds) for row in found.rows] == [("stream", pytest.approx(5e-6))]
    assert found.rows[0].interval_seconds == pytest.approx((4e-6, 6e-6))
    assert found.table()[0][0] == "GPU (MEASURED)"
    monkeypatch.setattr(_recorded_gpus._live, "measured", lambda *given: [(cases[0][0], "not here: x"), (cases[1][0], "not here: y")])
    assert lessons.launches().table()[0][0] == "GPU (RECORDED)"


def test_a_gpu_without_cupy_is_shown_recorded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook goes on where only CuPy is missing."""
    where = devices.Device("cuda", 0)
    monkeypatch.setattr(devices, "default", lambda: where)

    def without_cupy(**_: Any) -> Any:
        raise MissingLibraryError("CuPy is not installed")

    monkeypatch.setattr(hierarchy, "latency", without_cupy)
    monkeypatch.setattr(hierarchy, "bandwidth", without_cupy)
    curves = [*lessons.gpu_curves(), *lessons.gpu_streams()]
    assert [one.evidence.badge for one in curves] == [Badge.RECORDED, Badge.RECORDED]


def live(curve: Any, second: int) -> Any:
    """A recorded curve as if it had been measured here, on a machine that looks at its clock."""
    environment = dataclasses.replace(curve.environment, date=f"2026-01-01T00:00:{second:02}+00:00")
    return dataclasses.replace(curve, environment=environment, evidence=Evidence.measured(curve.device))


@pytest.mark.parametrize(("capability", "rows"), [("9.0", 2), ("6.1", 1)])
def test_what_was_measured_seconds_apart_belongs_together(monkeypatch: pytest.MonkeyPatch, capability: str, rows: int) -> None:
    """A GPU's latency and its bandwidth are measured one after the other; one too old for the table of limits is told, not a fault."""
    curve, stream = lessons.gpu_curves()[0], lessons.gpu_streams()[0]
    gpu = types.SimpleNamespace(multiprocessors=20, compute_capability=capability)
    monkeypatch.setattr(_recorded_gpus.devices, "default", lambda: devices.Device("cuda", 0))
    monkeypatch.setattr(devices, "machine", lambda: types.SimpleNamespace(accelerators=(gpu,)))
    found = lessons.under_way(curve, stream, [live(curve, 1)], [live(stream, 9)])
    assert len(found.rows) == rows
    if rows == 2:
        assert (found.rows[1].workers, found.rows[1].threads) == (20, 2048)
    else:
        assert "multiprocessors are needed" in found.table()[1][-1][0]
    assert len(lessons.under_way(curve, stream, [live(curve, 1)], [stream]).rows) == 1  # a measured one goes with no recorded one


def test_the_shape_is_that_of_the_gpu_that_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two the second; one whose multiprocessors or whose capability nobody tells has none."""
    curve = live(lessons.gpu_curves()[0], 1)
    gpus = [types.SimpleNamespace(multiprocessors=n, compute_capability="9.0") for n in (20, 132)]
    monkeypatch.setattr(_recorded_gpus.devices, "default", lambda: devices.Device("cuda", 1))
    monkeypatch.setattr(devices, "machine", lambda: types.SimpleNamespace(accelerators=gpus))
    assert _recorded_gpus._shape(curve) == (132, 2048)
    gpus[1] = types.SimpleNamespace(multiprocessors=None, compute_capability="9.0")
    assert _recorded_gpus._shape(curve) is None
    gpus[1] = types.SimpleNamespace(multiprocessors=132, compute_capability=None)
    assert _recorded_gpus._shape(curve) is None


def test_what_is_under_way_is_latency_times_rate() -> None:
    """At the largest set: seconds of a hop times bytes a second, over 132 multiprocessors of 2048 threads."""
    gpus, streams = lessons.gpu_curves(), lessons.gpu_streams()
    found = lessons.under_way(gpus[0], streams[0], gpus, streams)
    largest = 512 * 2**20
    (chase,), (stream,) = timings("latency", nbytes=largest), timings("bandwidth", nbytes=largest)
    nbytes = chase["median_seconds"] / 8192 * stream["nbytes"] / stream["median_seconds"]
    core, gpu = found.rows
    assert gpu.nbytes == pytest.approx(nbytes)
    assert gpu.bytes_a_thread == pytest.approx(nbytes / 132 / 2048)
    assert (core.workers, core.threads) == (1, 1)
    assert "lines of 64 bytes" in found.table()[1][0][-1]
    assert f"{nbytes / 132 / 2048:.3g} bytes" in found.table()[1][1][-1]
    assert "RECORDED on NVIDIA H200" in found.caption()
    with pytest.raises(InputError, match="under_way: expected"):
        lessons.under_way(1, 2)  # type: ignore[arg-type]


def test_sets_that_a_cache_may_hold_say_nothing_of_main_memory() -> None:
    """A short recording that came to 64 MiB, beside an L2 of 60 MiB: latency and rate of its largest set are mostly the cache's."""
    (curve,), (stream,) = lessons.gpu_curves(), lessons.gpu_streams()
    far = dataclasses.replace(curve, points=tuple(p for p in curve.points if p.nbytes <= 2**26))
    flow = dataclasses.replace(stream, points=tuple(p for p in stream.points if p.nbytes <= 2**26))
    for found in (lessons.under_way(curve, stream, [far], [stream]), lessons.under_way(curve, stream, [curve], [flow])):
        assert len(found.rows) == 1
        assert "both beyond its caches" in found.table()[1][-1][0]


def test_a_recording_tells_its_gpu_by_both_its_figures() -> None:
    """The multiprocessors and the compute capability of the first one; without either, or without a GPU, nothing."""
    whole, where = {"multiprocessors": 20, "compute_capability": "9.0"}, types.SimpleNamespace(device="A GPU")
    lacking = [{"machine": {}}, {"machine": {"accelerators": []}}, *({"machine": {"accelerators": [{k: v}]}} for k, v in whole.items())]
    found = [_recorded_gpus.accelerator_of(types.SimpleNamespace(environment=where, **one)) for one in lacking]  # type: ignore[arg-type]
    assert found == [None] * 4
    there = types.SimpleNamespace(environment=where, machine={"accelerators": [whole, {}]})
    assert _recorded_gpus.accelerator_of(there) is whole  # type: ignore[arg-type]
    assert _recorded_gpus.recorded_shape(there) == (20, 2048)  # type: ignore[arg-type]
    machine = {"accelerators": [{"multiprocessors": 20, "compute_capability": "6.1"}]}
    old = types.SimpleNamespace(environment=where, machine=machine)
    assert _recorded_gpus.recorded_shape(old) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [None, 5, "x", [5], [{}], [{"multiprocessors": "x", "compute_capability": 9, "l2_bytes": "many"}]])
def test_a_machine_that_is_told_in_other_words_tells_nothing(told: Any) -> None:
    """What `gl.machine()` said is for people to read: whatever stands there, no curve and no table fails on it."""
    for name in ("nvidia-h200", "amd-epyc-avx2-2-cores"):
        recording = recordings.load(name)
        for machine in ({"accelerators": told, "processor": told}, {"processor": {"caches": told}}):
            odd = dataclasses.replace(recording, machine=machine)
            latency = hierarchy.recorded_latency(odd)
            assert latency is not None
            assert latency.reported == ()
            assert _recorded_gpus.accelerator_of(odd) is None


def test_a_recording_that_came_to_one_format_shows_the_work_of_that_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its budget ended after the bfloat16 product: float32 work has no roof there, and the gain is told without a share of it."""
    whole = recordings.load("nvidia-h200")
    entries = [one for one in whole.entries if one.experiment != "ceilings" or one.params["dtype"] == "bfloat16" or "nbytes" in one.params]
    short = dataclasses.replace(whole, entries=tuple(entries), name="short")
    monkeypatch.setattr("gpulab.lessons._recorded_gains.recorded_gpus", lambda: {"short": short})
    works = [workloads.get("matmul")(n=1024, dtype=dtype) for dtype in ("float32", "bfloat16")]
    (roofs,) = lessons.recorded_under_roof(works)
    assert [point.arithmetic for point in roofs.points] == ["bfloat16"]
    assert lessons.recorded_under_roof(works[:1]) == ()
    assert [len(lessons.gpu_roofs(name)) for name in (None, "bfloat16", "float32")] == [1, 1, 0]


def test_of_two_gpus_the_recorded_one_is_told() -> None:
    """`gpulab record --device cuda:1` beside another GPU: its multiprocessors and its L2, not those of cuda:0."""
    recording = recordings.load("nvidia-h200")
    (own,) = recording.machine["accelerators"]
    other = {**own, "device": "cuda:0", "name": "NVIDIA T4", "multiprocessors": 40, "compute_capability": "7.5", "l2_bytes": 4 * 2**20}
    both = dataclasses.replace(recording, machine={**recording.machine, "accelerators": [other, {**own, "device": "cuda:1"}]})
    assert _recorded_gpus.recorded_shape(both) == _recorded_gpus.recorded_shape(recording) == (132, 2048)
    latency = hierarchy.recorded_latency(both)
    assert latency is not None
    assert [cache.size_bytes for cache in latency.reported] == [own["l2_bytes"]]


def test_recorded_points_stand_under_recorded_roofs() -> None:
    """An add of 2^24 numbers moves 12 bytes each: its recorded rate and the share of the best recorded stream, from the file."""
    (found,) = lessons.recorded_under_roof([workloads.get("add")(n=2**24), workloads.get("add")(n=12345)])
    (point,) = found.points  # the odd size was not recorded
    assert lessons.recorded_under_roof([workloads.get("linear")(n=1, features=4096)]) == ()  # nor a layer of that width
    (taken,) = timings("catalogue", workload="add", n=2**24, dtype="float32")
    best = max(t["nbytes"] / t["median_seconds"] for t in timings("ceilings", dtype="float32") if t["nbytes"])
    assert point.share_of_roof == pytest.approx(12 * 2**24 / best / taken["median_seconds"])
    assert point.evidence.badge is Badge.RECORDED
    (roofs,) = lessons.gpu_roofs()
    (product,) = timings("ceilings", operation="gemm", dtype="bfloat16")
    assert roofs.arithmetic_roof("bfloat16").flops_per_second == pytest.approx(product["flops"] / product["median_seconds"])


def test_ridges_move_right_with_faster_arithmetic() -> None:
    """Each format's best product over the best stream, from the file; the slowest first, float32 being once itself."""
    found = lessons.recorded_ridges()
    best = max(t["nbytes"] / t["median_seconds"] for t in timings("ceilings", dtype="float32") if t["nbytes"])
    rates = {
        entry["params"]["dtype"]: entry["timing"]["flops"] / entry["timing"]["median_seconds"]
        for entry in FILE["entries"] if entry["experiment"] == "ceilings" and entry["params"]["operation"] == "gemm"
    }  # fmt: skip
    assert [row[1] for row in found.rows] == sorted(rates, key=lambda name: rates[name])
    assert {row[1]: row[3] for row in found.rows} == pytest.approx({name: rate / best for name, rate in rates.items()})
    assert {row[1]: row[4] for row in found.rows}["float32"] == 1
    assert [one.badge for one in found.evidence] == [Badge.RECORDED]


def test_each_recorded_gpu_has_its_own_badge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines, the second with another name: a line for each under the tables that hold both."""
    first = recordings.read(recordings.directory() / "nvidia-h200.json")
    second = dataclasses.replace(first, name="other", environment=dataclasses.replace(first.environment, device="Another GPU"))
    monkeypatch.setattr(recordings, "readable", lambda: {one.name: one for one in (first, second)})
    tables = (
        lessons.recorded_ridges(), lessons.recorded_overlap(), lessons.launches(), lessons.tuning(),
        lessons.recorded_options(("plain",)), lessons.recorded_precisions(),
    )  # fmt: skip
    for table in tables:
        lines = table.caption().splitlines()
        assert ["NVIDIA H200" in lines[0], "Another GPU" in lines[1], len(lines)] == [True, True, 2]
        assert "Another GPU" in table._repr_html_().rpartition("</table>")[2]
        assert [one.device for one in table.evidence] == ["NVIDIA H200", "Another GPU"]


def test_two_recordings_of_one_gpu_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second, ten times as slow, each launch is set against its own graph: both ratios are the file's."""
    first = recordings.read(recordings.directory() / "nvidia-h200.json")

    def slower(entry: recordings.Entry) -> recordings.Entry:
        timing = dataclasses.replace(entry.timing, median_seconds=10 * entry.timing.median_seconds, interval_seconds=None)
        return dataclasses.replace(entry, timing=timing)

    second = dataclasses.replace(first, name="other", entries=tuple(map(slower, first.select("launch"))))
    monkeypatch.setattr(recordings, "readable", lambda: {one.name: one for one in (first, second)})
    one, graph_of_one, other, graph_of_other = lessons.launches().table()[1]
    assert (one[-1], graph_of_one[-1], other[-1], graph_of_other[-1]) == (one[-1], "1.00x", one[-1], "1.00x")
    assert (one[0], other[0]) == ("nvidia-h200", "other")


def test_gains_divide_what_was_measured_by_what_was_recorded() -> None:
    """A second here over the file's medians, without and with copies; work that was not recorded says so."""
    works = [workloads.get("matmul")(n=1024), workloads.get("matmul")(n=1000)]
    roof = models.roofline("H200")
    points = [dataclasses.replace(roof.place_workload(work), seconds=1.0, evidence=LIVE) for work in works]
    found = lessons.recorded_gains(roof.with_points(points), works)
    (taken,) = timings("catalogue", workload="matmul", n=1024, dtype="float32")
    rows = found.table()[1]
    assert rows[0][5:7] == (f"{1 / taken['median_seconds']:.0f}x", f"{1 / taken['with_transfer_seconds']:.0f}x")
    assert rows[1][3] == "not recorded yet"
    (top,) = timings("ceilings", operation="gemm", dtype="float32")
    least = 2 * 1024**3 / (top["flops"] / top["median_seconds"])
    assert found.rows[0].least_seconds == pytest.approx(least)
    assert [line.partition(" ")[0] for line in found.caption().splitlines()] == ["MEASURED", "RECORDED"]
    for not_measured in (roof, roof.with_points([roof.place_workload(work) for work in works]), roof.with_points(points[:1])):
        with pytest.raises(InputError, match="expected one measured point a work"):
            lessons.recorded_gains(not_measured, works)


def test_each_of_two_recordings_of_one_gpu_is_held_to_its_own_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is half as fast in all stands as near to its roofs, which are half as high: the least time is twice the other's."""
    first = recordings.read(recordings.directory() / "nvidia-h200.json")
    work = workloads.get("matmul")(n=1024)

    def slower(entry: recordings.Entry) -> recordings.Entry:
        timing = dataclasses.replace(entry.timing, median_seconds=2 * entry.timing.median_seconds, interval_seconds=None)
        return dataclasses.replace(entry, timing=timing)

    kept = [entry for entry in (*first.select("ceilings"), *first.select("catalogue", workload="matmul")) if entry.timing is not None]
    second = dataclasses.replace(first, name="other", entries=tuple(map(slower, kept)))
    monkeypatch.setattr(recordings, "readable", lambda: {one.name: one for one in (first, second)})
    roof = models.roofline("H200")
    point = dataclasses.replace(roof.place_workload(work), seconds=1.0, evidence=LIVE)
    found = lessons.recorded_gains(roof.with_points([point]), [work])
    assert [row.machine for row in found.rows] == ["nvidia-h200", "other"]
    assert found.rows[1].least_seconds == pytest.approx(2 * found.rows[0].least_seconds)
    assert found.table()[1][0][-1] == found.table()[1][1][-1]


def test_tuning_lists_each_option_and_marks_the_fastest() -> None:
    """The warp-tiled rung with three depths at two sizes; the fastest of each by the file's medians."""
    found = lessons.tuning()
    for n in (1024, 4096):
        marked = [row[2] for row in found.table()[1] if row[1] == f"{n:,}" and row[-1] == "fastest"]
        there = {
            entry["params"]["options"]: entry["timing"]["median_seconds"]
            for entry in FILE["entries"]
            if entry["experiment"] == "ladders" and entry["params"]["rung"] == "matmul-warp-tiled" and entry["params"]["n"] == n
        }
        assert marked == [min(there, key=lambda name: there[name]) or "as it stands"]


def test_overlap_divides_one_after_the_other_by_chunks() -> None:
    """256 MiB in 16 chunks: the file's two medians."""
    (serial,) = timings("overlap", arrangement="serial", nbytes=2**28, chunks=16)
    (chunked,) = timings("overlap", arrangement="chunked", nbytes=2**28, chunks=16)
    row = next(row for row in lessons.recorded_overlap().rows if row[1:3] == (2**28, 16))
    assert row[3:] == (serial["median_seconds"], chunked["median_seconds"])


def test_scalings_are_those_of_machines_with_gpus() -> None:
    """The H200's step on one rank, and its gradients' bytes."""
    (found,) = lessons.recorded_scalings()
    (taken,) = timings("data-parallel scaling", model="large-transformer", mode="strong")
    assert [(p.ranks, p.median_seconds) for p in found.points] == [(1, taken["median_seconds"])]
    assert found.parameter_bytes == 740_941_824
    assert found.evidence.badge is Badge.RECORDED


def test_options_can_be_asked_for() -> None:
    """Plain and graph alone: as many rows as the file has of these."""
    wanted = sum(bool(e["timing"]) for e in FILE["entries"] if e["experiment"] == "training" and e["params"]["means"] in ("plain", "graph"))
    found = lessons.recorded_options(("plain", "graph")).rows
    assert len(found) == wanted
    models_in_turn = [row[1].split(",")[0] for row in found]
    assert models_in_turn == sorted(models_in_turn)  # what is compared stands together


@pytest.mark.usefixtures("nothing")
def test_nothing_recorded_is_said_and_no_number_stands_there() -> None:
    """Without a GPU and without a recording of one, every table says so."""
    assert lessons.gpu_curves() == lessons.gpu_streams() == lessons.gpu_roofs() == lessons.recorded_scalings() == ()
    assert lessons.recorded_under_roof([workloads.get("add")()]) == ()
    any_curves = recordings.read(recordings.directory() / "nvidia-h200.json")  # of any processor: here they stand for the learner's
    curve, stream = hierarchy.recorded_latency(any_curves), hierarchy.recorded_bandwidth(any_curves)
    assert curve is not None
    assert stream is not None
    tables = [lessons.recorded_ridges(), lessons.launches(), lessons.tuning(), lessons.recorded_overlap(), lessons.under_way(curve, stream)]
    roof = models.roofline("H200")
    point = dataclasses.replace(roof.place("x", 1e9, 1e9), seconds=1.0, evidence=LIVE)
    tables.append(lessons.recorded_gains(roof.with_points([point]), [workloads.get("add")()]))
    assert all("not recorded yet" in str(one.table()[1]) for one in tables)
    assert lessons.side_by_side().evidence.badge is Badge.MODELLED


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lessons.under_way(1, 2, 3, 4), "gpus"),
        (lambda: lessons.under_way(1, 2), "expected a curve of latency"),
        (lambda: lessons.tuning("nothing"), "matmul-warp-tiled"),
        (lambda: lessons.tuning(3), "rung"),
        (lambda: lessons.recorded_gains(1, []), "is no roofline"),
        (lambda: lessons.recorded_gains(1, 2), "works"),
        (lambda: lessons.recorded_under_roof([1]), "1 is no workload"),
        (lambda: lessons.recorded_under_roof("add"), "works"),
    ],
)
def test_junk_is_told_in_a_sentence(call: Any, says: str) -> None:
    """Each in the words of an InputError, never Python's own error."""
    with pytest.raises(InputError, match=says):
        call()
