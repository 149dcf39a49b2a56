"""The material of the notebooks: claims of which one is impossible, the contest's verdict, and a device that keeps a bill."""

from __future__ import annotations

import dataclasses
import itertools
import json
import types
from pathlib import Path

import numpy as np
import pytest

from gpulab import arrays, devices, lessons, recordings, timing, transfer, workloads
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.lessons import _material, _nb00, _road
from gpulab.lessons._device import LiveDevice
from gpulab.lessons.content import Refused


def test_next_to_nothing_is_told_before_a_missing_interval():
    """00.5: 16 bytes in 2 ms are 8 kB/s, whether the machine let an interval come about or not; more samples would not mend it."""
    slow = dataclasses.replace(_nb00._made(2e-3, 1.9e-3, 2.1e-3), nbytes=16)
    for m in (slow, dataclasses.replace(slow, interval_seconds=None)):
        with pytest.raises(Refused, match=r"^8\.00 kB/s is next to nothing"):
            _nb00._check_measurement(m)
    with pytest.raises(Refused, match="There is no interval"):
        _nb00._check_measurement(dataclasses.replace(slow, nbytes=16e6, interval_seconds=None))


@pytest.fixture
def ceiling(monkeypatch: pytest.MonkeyPatch) -> float:
    """A main memory that moves 20 GB/s, by decree."""
    monkeypatch.setattr(devices, "ceilings", lambda device: types.SimpleNamespace(bandwidth=lambda: 20e9))
    monkeypatch.setattr(_material, "_claims", None)
    return 20e9


def test_exactly_one_claim_is_impossible(ceiling: float):
    """One of four rates is above the ceiling, by a factor that no noise explains; the others stay under it."""
    rates = [claim.nbytes / claim.seconds for claim in lessons.four_claims().claims]
    assert sorted(rate > 1.1 * ceiling for rate in rates) == [False, False, False, True]
    assert [rate / ceiling for rate in rates] == pytest.approx([0.9, 0.5, 3.0, 0.7])
    gib = 2**30  # as the solution counts them: read; read and written; two read and one written; read and written
    assert [claim.nbytes for claim in lessons.four_claims().claims] == [2 * gib, 8 * gib, 24 * gib, 16 * gib]


def test_the_impossible_claim_is_neither_the_shortest_nor_the_longest(ceiling: float):
    """Guessing by the time alone does not find it."""
    claims = lessons.four_claims().claims
    order = sorted(claims, key=lambda claim: claim.seconds)
    worst = max(claims, key=lambda claim: claim.nbytes / claim.seconds)
    assert worst not in (order[0], order[-1])


def test_claims_are_not_dressed_as_measurements(ceiling: float):
    """Exercise data carry the badge MODELLED and say what they are."""
    claims = lessons.four_claims()
    assert claims.evidence.badge is Badge.MODELLED
    assert "exercise data" in claims.caption()


def _contest(*winners: bool) -> _material.Contest:
    rows = tuple(_material.ContestRow(2**k, 1.0, 0.01, 0.1, 0.5 if wins else 2.0) for k, wins in enumerate(winners))
    return _contest_of(*rows)


def _contest_of(*rows: _material.ContestRow) -> _material.Contest:
    return _material.Contest("x", "n", "y", rows, Evidence.modelled("nothing", "this test"), Evidence.measured("Slow CPU"))


@pytest.mark.parametrize(
    ("winners", "size"),
    [((False, False), None), ((True, True), 1), ((False, True, True), 2), ((True, False, True), 4), ((True, True, False), None)],
)
def test_the_accelerator_wins_from_where_it_stays_ahead(winners: tuple[bool, ...], size: int | None):
    """A lucky small size does not count (by hand)."""
    assert _contest(*winners).wins_from == size


def test_where_both_take_as_long_the_cpu_is_ahead():
    """An accelerator has to be faster, copies included: at the largest size it is not, and of a pair of equals the CPU is named."""
    even = _material.ContestRow(8, 1.0, 0.01, 0.1, 1.0, "contended")
    assert _contest_of(_material.ContestRow(4, 1.0, 0.01, 0.1, 0.5), even).wins_from is None
    assert _nb00._winner_of_smallest(_contest_of(even)) == "the CPU"


def test_a_contest_walks_through_its_sizes_once(monkeypatch: pytest.MonkeyPatch):
    """Products of 64 to 1,024 in doublings, sums of 2^10 to 2^24; the table stays, until it is asked for again."""
    made: list[int] = []
    monkeypatch.setattr(_material, "_contests", {})
    monkeypatch.setattr(_material, "_opponent", lambda works: ("it", Evidence.modelled("a", "b"), lambda work: (1.0, 2.0, 3.0)))
    monkeypatch.setattr(_material, "_row", lambda work, times: (made.append(work.n), _material.ContestRow(work.n, 1.0, *times))[1])
    first = lessons.contest("matmul")
    assert made == [64, 128, 256, 512, 1024]
    assert (first.label, first.accelerator, first.rows[0]) == ("matmul float32", "it", _material.ContestRow(64, 1.0, 1.0, 2.0, 3.0))
    assert lessons.contest("matmul") is first
    assert len(made) == 5
    assert lessons.contest("matmul", again=True) is not first
    assert len(made) == 10
    lessons.contest("add", "float64")
    assert made[10:] == [2**k for k in (10, 13, 16, 19, 22, 24)]


def test_a_modelled_opponent_copies_three_arrays_one_by_one():
    """Of 60 bytes in three arrays each copy takes 1 s and a tenth of a second a byte: 5 s of computing and 9 s of copies."""
    asked: list[object] = []
    said = Evidence.modelled("as said", "a book")
    chip = types.SimpleNamespace(
        launch_seconds=0.5, seconds=lambda *given: (asked.append(given), 5.0)[1], evidence=said, name="chip"
    )  # fmt: skip
    link = types.SimpleNamespace(seconds=lambda nbytes: 1 + nbytes / 10, evidence=said, name="link")
    name, _, times = _material._modelled(chip, link)  # type: ignore[arg-type]
    work = types.SimpleNamespace(flops=7.0, nbytes=60, dtype="float32")
    assert (name, times(work)) == ("a modelled chip", (0.5, 5.0, 14.0))  # type: ignore[arg-type]
    assert asked == [(7.0, 60, "float32")]


def test_an_accelerator_of_ones_own_is_the_opponent(monkeypatch: pytest.MonkeyPatch):
    """Before any recording; a measurement without copies counts with its median."""
    monkeypatch.setattr(devices, "default", lambda: Device("cuda", 0))
    monkeypatch.setattr(Device, "name", "A GPU")
    monkeypatch.setattr(_material, "_live", lambda work, device: (work, str(device)))
    name, evidence, times = _material._opponent([])
    assert (name, evidence.device, times("work")) == ("A GPU", "A GPU", ("work", "cuda:0"))  # type: ignore[arg-type]
    bare = types.SimpleNamespace(launch_seconds=1.0, median_seconds=2.0, with_transfer_seconds=None)
    assert _material._three_times(bare) == (1.0, 2.0, 2.0)  # type: ignore[arg-type]


def test_a_contest_is_kept_and_badged():
    """The CPU's column is measured, the accelerator's says what it is, and the same table comes back."""
    first = lessons.contest("add")
    assert lessons.contest("add") is first
    headers, rows = first.table()
    assert "MEASURED" in headers[1]
    assert str(first.evidence.badge) in headers[2]
    assert len(rows) == len(first.rows) >= 5
    assert all(row.with_copies_seconds > row.accelerator_seconds > 0 < row.returned_seconds for row in first.rows)


def test_the_smallest_product_shows_which_side_is_measured():
    """The accelerator's side is modelled and the CPU's measured here: the reveal says which is which, and keeps both badges."""
    asked = lessons.predict("00.6", "Which is faster?", choices=["the CPU", "the accelerator"])
    shown = lessons.reveal("00.6", _contest(False, True))
    assert shown.measured == "the CPU"
    assert shown.table()[0][-1] == "the answer (the CPU MEASURED, the accelerator MODELLED)"
    lines = shown._repr_html_().split("<div>")[1:]
    assert ">MEASURED</span> the CPU: on Slow CPU" in lines[0]
    assert ">MODELLED</span> the accelerator: assumes nothing" in lines[1]
    assert asked.revealed == "the CPU (the CPU MEASURED, the accelerator MODELLED)"


@pytest.mark.parametrize(
    ("notes", "verdict"), [("", "no prediction"), ("unstable", "no prediction"), ("contended, unstable", "not measured")]
)
def test_a_disturbed_cpu_names_no_accelerator(notes: str, verdict: str):
    """Where another program slowed the CPU it may have won all the same: nothing is named, and the sentence says what to run."""
    asked = lessons.predict("00.6", "Which is faster?", choices=["the CPU", "the accelerator"])
    shown = lessons.reveal("00.6", _contest_of(_material.ContestRow(64, 9e-3, 1e-6, 2e-6, 3e-5, notes)))
    assert shown.verdict == verdict
    if verdict == "not measured":
        assert 'products = gl.lessons.contest("matmul", again=True)' in shown.measured_text
        assert asked.revealed is None
    else:
        assert shown.measured == "the accelerator"


@pytest.mark.parametrize(
    ("seconds", "code", "answer"),
    [(2e-3, "deadline", "the CPU"), (2e-3, "contended", "the CPU"), (9e-3, "deadline", "the GPU"), (9e-3, "contended", None),
     (5e-3, "contended", "the CPU")],
)  # fmt: skip
def test_the_loop_is_judged_like_the_product(seconds: float, code: str, answer: str | None):
    """A bill of 5 ms against the CPU: the shorter wins, or the CPU where they are even; a disturbed CPU loses to nobody."""
    lessons.predict("02.1", "Which is faster?", choices=["the GPU", "the CPU"])
    bill = transfer.LinkReport(200, 100, 1e6, 4e-3, 1e-3, Evidence.modelled("a link", "a book"))
    cpu = types.SimpleNamespace(median_seconds=seconds, notes=(Note(code, "Words."),), evidence=Evidence.measured("Slow CPU", 9))
    shown = lessons.reveal("02.1", {"the CPU": cpu, "the GPU": bill})
    assert shown.measured == answer
    badges = "not measured" if answer is None else "the CPU MEASURED, the GPU MODELLED"
    assert shown.table()[0][-1] == f"the answer ({badges})"
    assert ("run the cell above and this one again" in shown.measured_text) == (answer is None)


@pytest.mark.parametrize("junk", [{}, {"the CPU": 1.0, "the GPU": 2.0}, {"the CPU": None}, [1, 2]])
def test_what_is_no_pair_of_times_is_refused_in_words(junk: object):
    """The reveal of the loop takes a measurement and a bill by their names, or a choice; the rest is told in one sentence."""
    lessons.predict("02.1", "Which is faster?", choices=["the GPU", "the CPU"])
    with pytest.raises(InputError, match="expected"):
        lessons.reveal("02.1", junk)


def test_a_disturbed_cpu_can_still_be_the_faster_one():
    """A disturbance only makes the CPU slower, so a disturbed CPU that wins has won."""
    lessons.predict("00.6", "Which is faster?", choices=["the CPU", "the accelerator"])
    shown = lessons.reveal("00.6", _contest_of(_material.ContestRow(64, 9e-6, 1e-6, 2e-6, 3e-5, "contended")))
    assert shown.measured == "the CPU"


@pytest.mark.parametrize(
    ("medians", "codes", "kept"),
    [((5.0, 1.0), ("", ""), 5.0), ((5.0, 1.0), ("contended", ""), 1.0), ((5.0, 3.0, 4.0), ("contended",) * 3, 3.0)],
)
def test_a_disturbed_time_of_the_contest_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, medians: tuple[float, ...], codes: tuple[str, ...], kept: float
):
    """A quiet measurement is taken as it is; after a disturbed one the next quiet one, or the shortest of three (by hand)."""
    notes = [(Note(code, "Words."),) if code else () for code in codes]
    made = iter([types.SimpleNamespace(median_seconds=m, notes=n) for m, n in zip(medians, notes, strict=True)])
    monkeypatch.setattr(timing, "measure", lambda *_, **__: next(made))
    row = _material._row(workloads.get("add")(n=1024), (1.0, 1.0, 1.0))
    assert row.cpu_seconds == kept
    assert row.disturbed == (codes[-1] == "contended")


@pytest.mark.parametrize(
    ("codes", "times"),
    [(("throttled", "contended"), (1.0, 2.0, 9.0)), (("contended", "deadline"), (1.0, 2.0, 4.0)), (("contended",) * 3, (0.5, 2.0, 4.0))],
)
def test_disturbed_times_of_the_accelerator_are_taken_again(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[str, ...], times: tuple[float, ...]
):
    """Where neighbours were at work the shortest of up to three tries stays; a GPU at its power limit is no disturbance (by hand)."""
    seen = [(1.0, 2.0, 9.0), (1.5, 3.0, 4.0), (0.5, 3.0, 8.0)]
    made = iter(
        types.SimpleNamespace(launch_seconds=a, median_seconds=b, with_transfer_seconds=c, notes=(Note(code, "Words."),))
        for (a, b, c), code in zip(seen, codes, strict=False)
    )
    monkeypatch.setattr(timing, "measure", lambda *_, **__: next(made))
    assert _material._live(workloads.get("add")(n=1024), Device("cpu")) == times


def test_a_modelled_accelerator_has_a_pageable_link():
    """A lesson's arrays lie in ordinary memory: its model copies at half of the 26 GB/s that PCI Express 4 reaches from pinned memory."""
    gpu = lessons.accelerator()
    if isinstance(gpu, LiveDevice):
        pytest.skip("this machine has an accelerator")
    gpu.to_device(np.zeros(13_000_000, dtype=np.uint8))
    assert gpu.report().copy_seconds == pytest.approx(1e-3 + 10e-6)


def test_a_recorded_opponent_is_an_accelerator_with_its_copies(monkeypatch: pytest.MonkeyPatch):
    """Of four recordings a CPU's, one without copies and one that lacks a size are passed over; the times are those of the fourth."""

    def machine(kind: str, copies: float | None) -> types.SimpleNamespace:
        environment, evidence = types.SimpleNamespace(device_kind=kind), types.SimpleNamespace(device=f"the {kind}")
        return types.SimpleNamespace(
            environment=environment, evidence=evidence, launch_seconds=1.0, median_seconds=2.0, with_transfer_seconds=copies
        )

    there = {"a": machine("cpu", 3.0), "b": machine("cuda", None), "d": machine("rocm", 3.0)}
    monkeypatch.setattr(_material, "_recorded", lambda work: there | ({"c": machine("xpu", 3.0)} if work.n == 16 else {}))
    monkeypatch.setattr(devices, "default", lambda: Device("cpu"))
    works = [workloads.get("matmul")(n=n) for n in (16, 32)]
    name, evidence, times = _material._opponent(works)
    assert (name, evidence.device, times(works[1])) == ("the rocm", "the rocm", (1.0, 2.0, 3.0))


def test_a_damaged_recording_of_a_class_leaves_the_contest_its_opponent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Half a file in the folder of a class's recordings: the recorded GPU that ships stands there all the same, as without the folder."""
    (tmp_path / "ours.json").write_text('{"schema_version": 1, "name": "ou', encoding="utf-8")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    monkeypatch.setattr(devices, "default", lambda: Device("cpu"))
    works = [workloads.get("matmul")(n=n) for n in (64, 1024)]
    _, evidence, times = _material._opponent(works)
    (taken,) = (
        entry["timing"]
        for entry in json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))["entries"]
        if entry["experiment"] == "catalogue" and entry["params"] == {"workload": "matmul", "n": 1024, "dtype": "float32"}
    )
    assert evidence.badge is Badge.RECORDED
    assert times(works[1])[1:] == (taken["median_seconds"], taken["with_transfer_seconds"])


def test_a_contest_of_nothing_is_refused():
    """An unknown workload names the known ones."""
    with pytest.raises(InputError, match="matmul, add"):
        lessons.contest("knitting")


def test_a_live_device_keeps_the_bill():
    """Copies, calls and seconds add up by the injected clock (two readings a step, one second apart)."""
    ticks = itertools.count()
    device = LiveDevice(Device("cpu"), clock=lambda: float(next(ticks)))
    there = device.to_device(np.ones(1000, dtype=np.float32))
    there = device.run(lambda v: v + 1, there)
    there = device.run(lambda v: v + 1, there)
    assert float(device.to_host(there)[0]) == 3.0
    bill = device.report()
    assert (bill.copies, bill.calls, bill.copied_bytes, bill.copy_seconds, bill.compute_seconds) == (2, 2, 8000, 2.0, 2.0)
    assert (bill.evidence.badge, bill.evidence.samples) == (Badge.MEASURED, 4)
    device.reset()
    assert device.report().copies == 0


def test_a_live_device_is_waited_for_before_each_look_at_the_clock(monkeypatch: pytest.MonkeyPatch):
    """What was queued before is not on the bill, and what a step queued is: wait, look, work, wait, look."""
    log: list[str] = []
    device = LiveDevice(Device("cpu"), clock=lambda: (log.append("look"), 0.0)[1])
    monkeypatch.setattr(Device, "synchronize", lambda self: log.append("wait"))
    device.run(lambda: log.append("work"))
    assert log == ["wait", "look", "work", "wait", "look"]


def test_the_bill_leaves_out_what_gpulab_does(monkeypatch: pytest.MonkeyPatch):
    """Looking up devices and free memory takes longer than a small copy, and is on nobody's bill."""
    now = [0.0]

    def slowly(function):
        def call(*args):
            now[0] += 1.0
            return function(*args)

        return call

    device = LiveDevice(Device("cpu"), clock=lambda: now[0])
    for name in ("to_device", "to_host"):
        monkeypatch.setattr(arrays, name, slowly(getattr(arrays, name)))
    assert device.to_host(device.to_device(np.ones(3))).tolist() == [1.0] * 3
    assert now[0] >= 2.0
    assert device.report().copy_seconds == 0.0


def test_without_an_accelerator_the_device_is_modelled():
    """The same three methods, and a bill that says MODELLED; with one, the bill is measured."""
    gpu = lessons.accelerator()
    gpu.to_host(gpu.run(lambda v: v * 2, gpu.to_device(np.ones(10, dtype=np.float32))))
    assert gpu.report().evidence.badge is (Badge.MEASURED if isinstance(gpu, LiveDevice) else Badge.MODELLED)


FETCHED = {
    "copied": "return np.array(device.to_host(there))",
    "copied by the array": "return device.to_host(there).copy()",
    "in another number format": "return device.to_host(there).astype(np.float64)",
    "put back": "a[:] = device.to_host(there)\n    return a",
}


@pytest.mark.parametrize("end", FETCHED.values(), ids=FETCHED)
def test_what_was_fetched_may_be_copied(end: str):
    """02.2: a hundred steps on the device, and their result fetched; the host may keep it wherever it likes."""
    names: dict[str, object] = {"np": np}
    body = "    there = device.to_device(a)\n    for _ in range(100):\n        there = device.run(lambda v: 3.9 * v * (1 - v), there)\n"
    exec(f"def frugal(device, a):\n{body}    {end}", names)
    result = lessons.check("02.2", names["frugal"])
    assert result.state == "passed", result.message


def test_pageable_takes_longer_than_pinned():
    """Whichever of the three sources answers, the badge is there and the table has both kinds."""
    kinds = lessons.pageable_against_pinned(2**26)
    assert kinds.ratio == pytest.approx(kinds.pageable_seconds / kinds.pinned_seconds)
    assert [row[0] for row in kinds.table()[1]] == ["pageable", "pinned"]
    assert str(kinds.evidence.badge) in kinds.caption()


def test_a_recorded_machine_comes_before_the_model(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU, a recorded sweep with both kinds at that size is used, with its own evidence."""
    there = Evidence(Badge.RECORDED, "a recorded GPU", samples=9, date="2026-11-01")
    points = tuple(
        transfer.SweepPoint("to_device", memory, 2**26, seconds, None, 9) for memory, seconds in (("pinned", 2e-3), ("pageable", 6e-3))
    )
    others = (("to_host", "pinned", 2**26), ("to_device", "pageable", 2**20))  # another way, and another size
    points += tuple(transfer.SweepPoint(*other, 1.0, None, 9) for other in others)
    sweep = transfer.Sweep("a recorded GPU", "torch", points, None, (), there, None)
    monkeypatch.setattr(_road, "recorded_sweeps", lambda: [sweep])
    monkeypatch.setattr(devices, "default", lambda: Device("cpu"))
    kinds = lessons.pageable_against_pinned(2**26)
    assert kinds.ratio == pytest.approx(3.0)
    assert kinds.evidence.badge is Badge.RECORDED


def test_a_modelled_link_copies_pageable_memory_at_half_the_rate(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU and a recording: 26 GB/s of PCI Express 4 from pinned memory, half of it from pageable, 10 us for each copy."""
    monkeypatch.setattr(_road, "recorded_sweeps", list)
    monkeypatch.setattr(devices, "default", lambda: Device("cpu"))
    kinds = lessons.pageable_against_pinned(13_000_000)
    assert (kinds.pageable_seconds, kinds.pinned_seconds) == (pytest.approx(1e-3 + 10e-6), pytest.approx(0.5e-3 + 10e-6))
    assert (kinds.nbytes, kinds.evidence.badge) == (13_000_000, Badge.MODELLED)


def test_a_gpu_of_ones_own_copies_and_pins(monkeypatch: pytest.MonkeyPatch):
    """Both kinds are measured on the way to it, and the samples of both count; what pinning costs is taken as it was measured."""
    took = {"pageable": (6.0, 5), "pinned": (2.0, 4)}

    def copy(nbytes: int, direction: str, memory: str, device: Device, **_: object) -> types.SimpleNamespace:
        assert (nbytes, direction, device) == (8, "to_device", Device("cuda", 0))
        return types.SimpleNamespace(median_seconds=took[memory][0], samples_seconds=np.zeros(took[memory][1]))

    cost = types.SimpleNamespace(pin_seconds=1.0, pageable_copy_seconds=2.0, pinned_copy_seconds=3.0, evidence=Evidence.measured("it"))
    monkeypatch.setattr(devices, "default", lambda: Device("cuda", 0))
    monkeypatch.setattr(Device, "name", "A GPU")
    monkeypatch.setattr(transfer, "measure_copy", copy)
    monkeypatch.setattr(transfer, "pinning_cost", lambda nbytes: cost)
    kinds = lessons.pageable_against_pinned(8)
    assert kinds == lessons.TwoKinds(8, 6.0, 2.0, Evidence.measured("A GPU", 9))
    assert lessons.pinning(8) == lessons.Pinning(8, 1.0, 2.0, 3.0, cost.evidence)


def test_only_sweeps_of_machines_with_a_gpu_are_shown(monkeypatch: pytest.MonkeyPatch):
    """A sweep on a CPU copies from main memory to main memory; a GPU may have recorded none."""
    there = {
        name: types.SimpleNamespace(environment=types.SimpleNamespace(device_kind=kind), sweep=sweep)
        for name, kind, sweep in (("a", "cpu", 1), ("b", "cuda", 2), ("c", "rocm", None), ("d", "cuda", 4))
    }
    monkeypatch.setattr(_road.recordings, "readable", lambda: there)
    monkeypatch.setattr(transfer, "recorded_sweep", lambda recording: recording.sweep)
    assert lessons.recorded_sweeps() == [2, 4]


@pytest.mark.parametrize(
    ("pin", "pageable", "pinned", "words"),
    [
        (5e-3, 4e-3, 2e-3, "after 3 copies of"), (1e-3, 4e-3, 2e-3, "after 1 copy of"), (5e-3, 2e-3, 2e-3, "never"),
    ],
)  # fmt: skip
def test_pinning_pays_after_some_copies(pin: float, pageable: float, pinned: float, words: str):
    """5 ms of pinning at 2 ms gained a copy pay with the third, 1 ms with the first (by hand); no gain never pays."""
    cost = lessons.Pinning(2**26, pin, pageable, pinned, Evidence.modelled("nothing", "this test"))
    assert words in cost.table()[1][-1][1]


def test_the_cost_of_pinning_says_what_it_assumes():
    """Without CUDA it is a model with a host copy of this machine in it, and says so."""
    cost = lessons.pinning(2**22)
    assert cost.pin_seconds > 0
    if cost.evidence.badge is Badge.MODELLED:
        assert "copy into fresh memory" in cost.caption()


@pytest.mark.parametrize(("known", "told"), [("3 % at most", "copies: 3 % at most"), (None, None)])
def test_the_cost_of_pinning_has_its_copies_known_error(known: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch):
    """Where the copies are a model's whose error is known, it goes with them."""
    kinds = lessons.TwoKinds(2**12, 2.0, 1.0, Evidence.modelled("a link", "a book", known))
    monkeypatch.setattr(_road, "pageable_against_pinned", lambda nbytes: kinds)
    monkeypatch.setattr(devices, "default", lambda: Device("cpu"))
    assert lessons.pinning(2**12).evidence.known_error == told


@pytest.mark.gpu
def test_a_real_accelerator_keeps_a_measured_bill():
    """On a GPU the three methods run there and the bill is measured."""
    gpu = lessons.accelerator()
    there = gpu.run(lambda v: v * 2, gpu.to_device(np.ones(1000, dtype=np.float32)))
    assert str(devices.find(there.device)) == str(devices.default())
    assert gpu.to_host(there).tolist() == [2.0] * 1000
    bill = gpu.report()
    assert bill.evidence.badge is Badge.MEASURED
    assert bill.copies == 2
    assert bill.copy_seconds > 0


@pytest.mark.gpu
def test_pinned_memory_is_faster_on_a_real_link():
    """On CUDA a large copy from pinned memory takes no longer than from pageable memory, and the badge is MEASURED."""
    kinds = lessons.pageable_against_pinned(2**26)
    assert kinds.evidence.badge is Badge.MEASURED
    assert kinds.ratio > 0.9
