"""ScalingLab with ranks of ours: curves under each slider, points of a run and of a recording, what is said, the code shown."""

from __future__ import annotations

import ast
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second
from stand_in_ranks import StandInRanks

import gpulab as gl
from gpulab import devices, figures, models, parallel, recordings
from gpulab.errors import InputError, RankDiedError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.parallel import ScalingMeasurement, ScalingResult
from gpulab.recordings import Entry, Recording, Timing
from gpulab.widgets import ScalingLab
from gpulab.widgets._ranks import LIVE
from gpulab.widgets.scaling_lab import _ranks_up_to

ALPHA, RATE, BYTES = 1e-4, 1e9, 4_000_000


def made(counts: tuple[int, ...], mode: str, wait: float | None = None) -> ScalingResult:
    """A measurement of 100 ms on one rank over links of 100 us and 1 GB/s, as the ring model has it."""
    curve = models.scaling(0.1, BYTES, ALPHA, RATE, counts, mode=mode)
    points = tuple(
        ScalingMeasurement(
            p.ranks, 240, np.array([p.seconds]), p.seconds, (0.98 * p.seconds, 1.02 * p.seconds), p.speedup,
            (0.95 * p.speedup, 1.05 * p.speedup), p.seconds, p.compute_seconds,
        )
        for p in curve.points
    )  # fmt: skip
    several = len(counts) > 1
    where = dataclasses.replace(devices.environment("cpu"), device="Slow CPU")
    return ScalingResult(
        "a perceptron", mode, "computed" if wait is None else "a timed wait", BYTES, 2, 1, points, ALPHA if several else None,
        RATE if several else None, curve if several else None, curve if several else None, (Note("contended", "a neighbour worked."),),
        Evidence.measured("Slow CPU", 40), where,
    )  # fmt: skip


@pytest.fixture(name="core")
def _core(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A measurement that takes no time; what it was asked; ``fails`` is raised."""
    seen: dict[str, Any] = {"calls": [], "fails": None}

    def scaling(ranks: Any, model: str, *, mode: str, wait_seconds: float | None = None, progress: Any = None, stop: Any = None) -> Any:
        count = ranks if isinstance(ranks, int) else ranks.n  # the code that is shown starts ranks of its own
        seen["calls"].append((count, model, mode, wait_seconds))
        if seen["fails"] is not None:
            raise seen["fails"]
        return made(tuple(range(1, count + 1)), mode, wait_seconds)

    StandInRanks.made.clear()
    monkeypatch.setattr(parallel, "cluster", StandInRanks)
    monkeypatch.setattr(parallel, "scaling", scaling)
    monkeypatch.setattr(recordings, "readable", dict)
    yield seen
    LIVE.end()


@pytest.mark.usefixtures("core")
def test_curves_follow_the_sliders() -> None:
    """Each slider moves the curve that it belongs to, as by hand: 1 / (0.1 + 0.9 / 64), 0.1 + 0.9 x 64, 0.1 s / 64 + 126 messages."""
    lab = ScalingLab(serial_share=0.1, top=64)
    assert [c.speedup for c in lab.curves[:2]] == pytest.approx([1 / (0.1 + 0.9 / 64), 0.1 + 0.9 * 64])
    lab.set(serial_share=0.0, laws=("ring",), step_seconds=0.1, parameter_bytes=2**20, latency_seconds=1e-5, bandwidth_bytes_per_second=1e9)
    assert lab.curves[0].points[-1].seconds == pytest.approx(0.1 / 64 + 126 * (1e-5 + 2**20 / 64 / 1e9))
    lab.set(overlap=1.0)  # two thirds of 0.1 s / 64 is the room
    waited = 126 * (1e-5 + 2**20 / 64 / 1e9) - 2 / 3 * 0.1 / 64
    assert lab.curves[0].points[-1].exposed_seconds == pytest.approx(waited)
    lab.set(mode="weak", overlap=0.0)
    assert lab.curves[0].points[-1].speedup == pytest.approx(64 * 0.1 / (0.1 + 126 * (1e-5 + 2**20 / 64 / 1e9)))
    told = "With communication 64 ranks train on 61.9x the samples a second of one, 96.8 % of what so many could"
    assert f"{told}; 3.22 % of a step is waiting for gradients." in lab._results.message  # 3.324 of 103.324 ms
    lab.set(top=8)
    assert lab._results.rows[-1][0] == "8"
    lab.set(laws=())
    assert lab._results.headers == ["ranks"]
    assert lab.error == ""


@pytest.mark.usefixtures("core")
def test_where_more_ranks_no_longer_help_is_said() -> None:
    """The words name the number of ranks of the model: 50 ms - 2 x 1 MiB / 1 GB/s over 20 us is p (p + 1) >= 2395, so 49."""
    lab = ScalingLab(
        serial_share=0.0, laws=("ring",), step_seconds=0.05, parameter_bytes=2**20, latency_seconds=1e-5, bandwidth_bytes_per_second=1e9
    )
    assert "From 49 ranks on one more no longer helps" in lab._results.message
    assert any("49 ranks" in trace["name"] for trace in lab_figure(lab)["data"])
    lab.set(mode="weak")
    assert "no longer helps" not in lab._results.message


def lab_figure(lab: ScalingLab) -> dict[str, Any]:
    """The figure as the browser gets it."""
    return dict(figures.mimebundle(lab.draw(lab.values).figure)["application/vnd.plotly.v1+json"])


def test_a_run_gives_points(core: dict[str, Any]) -> None:
    """Measured rows with intervals stand beside the curves, with the badge, the notes and the sentence; the ranks are those asked for."""
    lab = ScalingLab(ranks=3, laws=("amdahl",), top=8)
    lab.run(wait=True)
    assert lab.error == ""
    assert core["calls"] == [(3, "mlp", "strong", None)]
    assert [row[:2] for row in lab._results.rows] == [["1", "100 ms"], ["2", "54.2 ms"], ["3", "39.1 ms"], ["4", ""], ["8", ""]]
    assert lab._results.rows[1][2] == "1.85x [1.75x, 1.94x]"
    assert {each["badge"] for each in lab._results.evidence} == {"MEASURED", "MODELLED"}
    assert {"code": "contended", "sentence": "a neighbour worked."} in lab._results.notes
    assert "Measured: 3 ranks train on 2.56x" in lab._results.message
    lab.set(mode="weak")
    assert "controls have moved" in lab._results.message
    lab.set(model="cnn", waits=True)
    lab.run(wait=True)
    assert core["calls"][-1] == (3, "cnn", "weak", 0.02)


def test_the_measured_link_carries_the_curve(core: dict[str, Any]) -> None:
    """Turned to what was measured, the curve takes the measured step, gradients and link; without a run, the sliders, and says so."""
    lab = ScalingLab(basis="measured", laws=("ring",), serial_share=0.0, top=64)
    assert "Until then the curve with communication uses the sliders" in lab._results.message
    assert lab.on_screen(lab.controls["latency_seconds"])
    lab.run(wait=True)
    assert lab.curves[0].points[-1].seconds == pytest.approx(0.1 / 64 + 126 * (ALPHA + BYTES / 64 / RATE))
    assert not lab.on_screen(lab.controls["latency_seconds"])
    lab.set(ranks=1)
    lab.run(wait=True)
    assert "One rank alone has no link" in lab._results.message
    assert len(core["calls"]) == 2


@pytest.mark.parametrize(
    ("laws", "quantity", "step", "link"),
    [
        (("amdahl",), "seconds", True, False), (("gustafson",), "seconds", True, False), (("amdahl",), "speedup", False, False),
        (("gustafson",), "efficiency", False, False), ((), "seconds", False, False), (("ring",), "speedup", True, True),
        (("amdahl", "ring"), "seconds", True, True),
    ],
)  # fmt: skip
def test_what_moves_a_curve_is_on_the_screen(core: dict[str, Any], laws: tuple[str, ...], quantity: str, step: bool, link: bool) -> None:
    """One rank's step moves every curve in seconds, and the one with communication always; the link moves that one alone."""
    lab = ScalingLab(laws=laws, quantity=quantity)

    def shown(name: str) -> bool:
        return not next(c["hidden"] for c in lab._panel.spec if c["name"] == name)

    def drawn() -> list[Any]:
        return [trace["y"] for trace in lab_figure(lab)["data"]]

    before = drawn()
    lab.set(step_seconds=0.5)
    assert (before != drawn()) == step
    before = drawn()
    lab.set(bandwidth_bytes_per_second=1e9)
    assert (before != drawn()) == link
    assert [shown(name) for name in ("step_seconds", "basis", "bandwidth_bytes_per_second", "overlap")] == [step, step, link, link]
    lab.set(basis="measured")
    assert ("use the sliders" in lab._results.message or "uses the sliders" in lab._results.message) == step
    lab.run(wait=True)
    assert [shown(name) for name in ("step_seconds", "basis", "bandwidth_bytes_per_second")] == [False, step, False]
    assert "the sliders" not in lab._results.message


def _recording() -> Recording:
    def entry(ranks: int, seconds: float) -> Entry:
        timing = Timing(np.array([seconds]), 1, seconds, (0.99 * seconds, 1.01 * seconds), seconds, seconds, None, 1, None, None, ())
        params = {"model": "mlp", "mode": "strong", "batch": 240, "parameter_bytes": BYTES, "ranks": ranks}
        return Entry("data-parallel scaling", params, timing)

    environment = dataclasses.replace(devices.environment("cpu"), device="four made-up GPUs", device_kind="cuda")
    return Recording("made-up", environment, {}, {}, "0", (entry(1, 0.1), entry(4, 0.04)))


def test_recorded_points_wear_their_badge(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded machine stands beside, hollow and RECORDED; of one without such entries the words say "not recorded yet"."""
    there = {"made-up": _recording(), "bare": dataclasses.replace(_recording(), name="bare", entries=())}
    monkeypatch.setattr(recordings, "readable", lambda: there)
    monkeypatch.setattr(recordings, "load", there.__getitem__)
    lab = ScalingLab(laws=("amdahl",), top=8)
    assert "not recorded yet" not in lab._results.message
    lab.set(recorded="made-up")
    row = next(row for row in lab._results.rows if row[0] == "4")
    assert row[1:3] == ["40.0 ms", "2.50x [2.46x, 2.54x]"]
    assert "RECORDED" in {each["badge"] for each in lab._results.evidence}
    points = next(trace for trace in lab_figure(lab)["data"] if "recorded" in trace["name"])
    assert points["marker"]["symbol"].endswith("-open")
    lab.set(mode="weak")
    assert "Scaling on made-up: not recorded yet." in lab._results.message
    lab.set(mode="strong", recorded="bare")
    assert "Scaling on bare: not recorded yet." in lab._results.message
    assert core["calls"] == []


@pytest.mark.usefixtures("core")
def test_a_machine_with_one_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One recorded rank is a step and its gradients, for the sliders; that there are no more ranks is said."""
    one = _recording()
    alone = dataclasses.replace(one, entries=tuple(e for e in one.entries if e.params.get("ranks") == 1))
    monkeypatch.setattr(recordings, "readable", lambda: {"made-up": alone})
    monkeypatch.setattr(recordings, "load", lambda name: alone)
    lab = ScalingLab(laws=("amdahl",), top=8, recorded="made-up")
    assert "was recorded with 1 rank: 100 ms a step" in lab._results.message
    assert "More ranks: not recorded yet." in lab._results.message
    lab.set(recorded="none")
    assert lab._results.message.endswith("Scaling over several GPUs: not recorded yet."), "one rank of a GPU is no scaling"


@pytest.mark.usefixtures("core")
def test_nothing_recorded_is_said() -> None:
    """Where no machine with several accelerators was recorded, the instrument says so."""
    assert "Scaling over several GPUs: not recorded yet." in ScalingLab()._results.message


def test_failures_and_stops_are_told(core: dict[str, Any]) -> None:
    """A dead rank and a stop are shown in one sentence; the curves stay, the ranks end, and the next run works."""
    lab = ScalingLab()
    core["fails"] = RankDiedError("scaling: rank 1 died; expected every rank to be alive. Run it again.", (1,))
    lab.run(wait=True)
    assert "rank 1 died" in lab.error
    assert not LIVE.running
    core["fails"] = StoppedError("scaling: stopped before any step was timed; there is nothing to report. Run it again.")
    lab.run(wait=True)
    assert lab._results.rows
    core["fails"] = None
    lab.run(wait=True)
    assert lab.error == ""
    assert lab.result is not None


@pytest.mark.parametrize("lent", [False, True])
def test_stopping_one_that_waits_its_turn_leaves_the_other_at_work(
    core: dict[str, Any], lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the instrument whose work is on the ranks interrupts them, whether they are the shared ones or lent."""
    monkeypatch.setattr(parallel, "Ranks", StandInRanks)
    entered, fake = threading.Event(), parallel.scaling

    def scaling(ranks: Any, model: str, **asked: Any) -> Any:
        entered.set()
        assert ranks.interrupted.wait(10)
        return fake(ranks, model, **asked)

    monkeypatch.setattr(parallel, "scaling", scaling)
    first, second = ScalingLab(), ScalingLab()
    if lent:
        ranks = StandInRanks(2)
        first.use(ranks)
        second.use(ranks)
    first.run()
    assert entered.wait(10)
    (ranks,) = StandInRanks.made
    second.run()
    second.stop()
    assert second._job is not None
    assert second._job.join(10)
    assert not ranks.interrupted.is_set()
    assert first.running
    first.stop()
    assert first._job is not None
    assert first._job.join(10)
    assert ranks.interrupted.is_set()
    assert first.error == ""


@pytest.mark.parametrize("quantity", ["speedup", "efficiency", "seconds"])
def test_the_code_gives_the_same(core: dict[str, Any], quantity: str) -> None:
    """The lines shown run, and make the curves of the screen (at powers of two) and the same measurement."""
    lab = ScalingLab(quantity=quantity, top=64, mode="weak", overlap=0.5)
    lab.run(wait=True)
    lines = lab.code
    ast.parse(lines)
    scope: dict[str, Any] = {}
    exec(lines, scope)
    for curve, mine in zip(scope["curves"], lab.curves, strict=True):
        assert curve.speedup == pytest.approx(mine.speedup)
        assert curve.best_ranks == mine.best_ranks
    assert core["calls"] == [(2, "mlp", "weak", None)] * 2
    assert f'"{quantity}"' in lines or quantity == "speedup"


@pytest.mark.usefixtures("core")
def test_a_number_typed_as_people_write_it_has_its_place() -> None:
    """5 us is one of the latencies, though five times a millionth is another number; the timed wait is in the call that is shown."""
    lab = ScalingLab(latency_seconds=5e-6, waits=True)
    assert lab.values["latency_seconds"] == 5e-6
    lab.run(wait=True)
    assert 's = gl.parallel.scaling(2, "mlp", mode="strong", wait_seconds=0.02)' in lab.code


@pytest.mark.usefixtures("core")
def test_a_redraw_is_quick_and_junk_is_refused() -> None:
    """A redraw takes a tenth of a second at most; what a control cannot take is refused in one sentence."""
    lab = ScalingLab(top=4096)
    lab.run(wait=True)
    assert in_a_tenth_of_a_second(lambda overlap: lab.set(overlap=overlap), (0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 0.25, 0.5))
    for junk in ({"ranks": 64}, {"serial_share": 2}, {"laws": ("Moore",)}, {"mode": None}, {"overlap": "all"}):
        with pytest.raises(InputError):
            lab.set(**junk)
    assert gl.widgets.ScalingLab is ScalingLab


def test_a_curve_has_quarter_octaves() -> None:
    """Up to 4096 ranks 48 steps of 2^(1/4), rounded: 2^11.25 is 2435.5, 2^11.5 is 2896.3, 2^11.75 is 3444.3; up to 8 every number."""
    ranks = _ranks_up_to(4096)
    assert ranks[-5:] == [2048, 2435, 2896, 3444, 4096]
    assert ranks[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert _ranks_up_to(8) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(ScalingLab())
