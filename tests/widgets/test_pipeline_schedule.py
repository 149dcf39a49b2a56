"""PipelineSchedule with ranks of ours: the timetable under each control, a run beneath it, the life of the cluster, the code shown."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second
from stand_in_ranks import StandInRanks, living

from gpulab import devices, models, parallel
from gpulab.errors import InputError, RankError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.parallel import ScheduleRun
from gpulab.widgets import PipelineSchedule
from gpulab.widgets._ranks import LIVE

WAIT = 10.0
RUN = parallel.run_schedule


@pytest.fixture(name="core")
def _core(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A run that takes no time, or waits for its end; what it was asked; ``fails`` is raised."""
    seen: dict[str, Any] = {"calls": [], "fails": None, "waits": False}

    def run(ranks: Any, schedule: str, microbatches: int, *, progress: Any, stop: Any, steps: int, **given: Any) -> ScheduleRun:
        seen["calls"].append((ranks.n, schedule, microbatches, given))
        progress(0.5, "step 2 of 3")
        if seen["fails"] is not None:
            raise seen["fails"]
        end = time.monotonic() + WAIT
        while seen["waits"] and time.monotonic() < end:
            if ranks.interrupted.wait(0.005):
                raise StoppedError("run_schedule: stopped before a step was measured; expected at least one. Run it again.")
        f, b = given["forward_seconds"], given["backward_seconds"]
        chunks = {"chunks": given["chunks"]} if "chunks" in given else {}
        s = models.pipeline_schedule(ranks.n, microbatches, schedule, forward=f, backward=b, transfer=f / 10, **chunks)
        return ScheduleRun(
            schedule, ranks.n, microbatches, s.chunks, f, b, (s.bubble_ratio,) * steps, s.passes, (1,) * ranks.n, (),
            Evidence.measured("ranks", steps), devices.environment("cpu"),
        )  # fmt: skip

    StandInRanks.made.clear()
    monkeypatch.setattr(parallel, "cluster", StandInRanks)
    monkeypatch.setattr(parallel, "run_schedule", run)
    yield seen
    LIVE.end()


def test_the_timetable_follows_each_control() -> None:
    """3 of 11 wait with four stages and eight microbatches; each control moves it as by hand; what cannot be made is told."""
    p = PipelineSchedule()
    assert p._results.message.startswith("The stages wait 27.3% of the time, as the formula (p - 1) / (m + p - 1) says.")
    assert "activations of 8 microbatches at most" in p._results.message
    p.set(schedule="1f1b")
    assert "activations of 4 microbatches at most" in p._results.message
    p.set(stages=2, microbatches=1)
    assert p.timetable.bubble_ratio == pytest.approx(1 / 2)
    assert "activations of 1 microbatch at most" in p._results.message
    p.set(forward_ms=10, backward_ms=30)
    assert p.timetable.duration == 2 * (10 + 30)
    p.set(transfer_ms=5)
    assert p.timetable.duration == 2 * (10 + 5 + 30)
    assert "says 50.0%, without messages" in p._results.message
    p.set(schedule="split", transfer_ms=0, microbatches=4)
    assert "as the formula (p - 1) / p says" in p._results.message
    p.set(schedule="interleaved", stages=4, microbatches=8, chunks=3)
    assert p.timetable.bubble_ratio == pytest.approx(3 / 27)
    p.set(microbatches=6)
    assert "Pass microbatches=8" in p._results.message
    assert p._picture.outputs == ()
    hidden = {c["name"] for c in p._panel.spec if c["hidden"]}
    assert hidden == set()
    p.set(schedule="gpipe")
    assert {c["name"] for c in p._panel.spec if c["hidden"]} == {"chunks"}


def test_every_control_redraws_at_once() -> None:
    """The largest picture that the sliders allow is drawn within 100 ms of processor time."""
    p = PipelineSchedule(schedule="interleaved", stages=8, microbatches=32, chunks=4)
    assert in_a_tenth_of_a_second(lambda milliseconds: p.set(forward_ms=milliseconds), range(10, 15))


def test_a_run_stands_under_the_timetable_until_a_control_moves(core: dict[str, Any]) -> None:
    """Both badges, both bubbles, the core's own arguments; a moved control takes the run away, a moved message does not."""
    p = PipelineSchedule(schedule="1f1b", stages=2, microbatches=4, forward_ms=10, backward_ms=20)
    p.run(wait=True)
    assert p.error == ""
    assert core["calls"] == [(2, "1f1b", 4, {"forward_seconds": 0.01, "backward_seconds": 0.02})]
    assert {line["badge"] for line in p._results.evidence} == {"MEASURED", "MODELLED"}
    assert p._results.message.startswith("Measured, the stages wait")
    p.set(transfer_ms=1)
    assert p._results.message.startswith("Measured, the stages wait")
    p.set(microbatches=8)
    assert "had other settings: press Measure on ranks" in p._results.message
    assert {line["badge"] for line in p._results.evidence} == {"MODELLED"}
    p.set(microbatches=4)
    assert p._results.message.startswith("Measured, the stages wait")


def test_one_cluster_serves_run_after_run(core: dict[str, Any]) -> None:
    """Kept while the number of stages stays, also for a second instrument; another number ends it; the last close ends them all."""
    first, second = PipelineSchedule(stages=2), PipelineSchedule(stages=2)
    first.run(wait=True)
    second.run(wait=True)
    assert [ranks.starts for ranks in StandInRanks.made] == [1]
    living()[0].ready = False
    first.run(wait=True)
    assert living()[0].recoveries == 1
    first.set(stages=3)
    first.run(wait=True)
    assert [(ranks.n, ranks.alive) for ranks in StandInRanks.made] == [(2, False), (3, True)]
    second.set(stages=3)
    second.run(wait=True)
    assert len(living()) == 1
    first.close()
    assert len(living()) == 1
    second.close()
    assert living() == []


def test_stop_interrupts_the_ranks_and_ends_them(core: dict[str, Any]) -> None:
    """Within a moment of Stop the work is over, no process is left, and the next run starts anew."""
    core["waits"] = True
    p = PipelineSchedule(stages=2)
    p.run()
    end = time.monotonic() + WAIT
    while not core["calls"] and time.monotonic() < end:
        time.sleep(0.005)
    p.stop()
    while p.running and time.monotonic() < end:
        time.sleep(0.005)
    assert "stopped before a step" in p._panel.progress
    assert living() == []
    core["waits"] = False
    p.run(wait=True)
    assert p.error == ""
    assert len(living()) == 1


def test_ranks_that_are_ended_late_are_not_those_of_the_next_run(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop as a run ended, then Run: however late the ranks' end comes, it is the old ones', and the new start when those are gone."""
    p, may_end, ends = PipelineSchedule(stages=2), threading.Event(), []
    run, start = threading.Thread.run, StandInRanks.start

    def held(thread: threading.Thread) -> None:
        if thread.name == "gpulab-ranks-end":
            ends.append(thread)
            assert may_end.wait(WAIT)
        run(thread)

    def alone(ranks: StandInRanks) -> StandInRanks:
        assert living() == []
        return start(ranks)

    monkeypatch.setattr(threading.Thread, "run", held)
    monkeypatch.setattr(StandInRanks, "start", alone)
    p.run(wait=True)
    p.stop()
    core["waits"] = True
    p.run()
    end = time.monotonic() + WAIT
    while len(core["calls"]) < 2 and time.monotonic() < end:
        time.sleep(0.005)
    may_end.set()
    while not ends and time.monotonic() < end:
        time.sleep(0.005)
    ends[0].join(WAIT)
    assert [ranks.alive for ranks in StandInRanks.made] == [False, True]
    p.stop()
    p.wait()
    assert living() == []


def test_stop_does_not_wait_for_ranks_that_another_instrument_starts(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds: a cell that runs again stops its old instrument and goes on, and the ranks are those of the one that asked."""
    first, second = PipelineSchedule(stages=2), PipelineSchedule(stages=2)
    starting, may_start, start = threading.Event(), threading.Event(), StandInRanks.start

    def slowly(ranks: StandInRanks) -> StandInRanks:
        starting.set()
        may_start.wait(WAIT)
        return start(ranks)

    second.run(wait=True)
    LIVE.end()
    monkeypatch.setattr(StandInRanks, "start", slowly)
    first.run()
    assert starting.wait(WAIT)
    second.stop()
    second.close()
    assert living() == []
    may_start.set()
    first.wait()
    assert first.error == ""
    assert len(living()) == 1


def test_failures_are_told_and_leave_nothing_running(core: dict[str, Any]) -> None:
    """A dead rank ends the cluster; arguments that are refused do not; too many ranks are a sentence."""
    p = PipelineSchedule(stages=2)
    core["fails"] = RankError("run: rank 1 died in recv; expected it to live. Run it again.")
    p.run(wait=True)
    assert p.error.startswith("run: rank 1 died")
    assert living() == []
    core["fails"] = InputError("run_schedule: too few; expected more. Pass more.")
    p.run(wait=True)
    assert p.error.startswith("run_schedule: too few")
    assert len(living()) == 1
    p.set(stages=8)
    p.run(wait=True)
    assert p.error == "cluster: 8 ranks do not fit; expected them to. Ask for 6."
    assert living() == []


def test_a_lent_cluster_is_used_and_never_ended(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has as many ranks as stages it does the work; else the instrument starts its own; what is no cluster is refused."""
    monkeypatch.setattr(parallel, "Ranks", StandInRanks)
    mine = StandInRanks(2).start()
    p = PipelineSchedule(stages=2).use(mine)
    p.run(wait=True)
    assert len(StandInRanks.made) == 1
    p.set(stages=3)
    p.run(wait=True)
    assert [ranks.n for ranks in living()] == [2, 3]
    p.close()
    assert living() == [mine]
    with pytest.raises(InputError, match="expected what gl"):
        PipelineSchedule().use(4)


@pytest.mark.parametrize(
    "values", [{"schedule": "1f1b"}, {"schedule": "interleaved", "chunks": 3, "transfer_ms": 2}, {"forward_ms": 123.456789}]
)
def test_the_code_gives_the_same_result(core: dict[str, Any], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown as code makes the same timetable, and after a run the same call on as many ranks."""
    p = PipelineSchedule(stages=2, microbatches=4, **values)
    space: dict[str, Any] = {}
    exec(p.code, space)
    assert space["s"] == p.timetable
    p.run(wait=True)

    @contextlib.contextmanager
    def cluster(n: int) -> Iterator[Any]:
        yield StandInRanks(n)

    called = core["calls"].copy()
    assert len(p.result.bubble_ratios) == inspect.signature(RUN).parameters["steps"].default, "the code leaves the steps out"
    run = parallel.run_schedule
    monkeypatch.setattr(parallel, "cluster", cluster)
    monkeypatch.setattr(parallel, "run_schedule", lambda ranks, *a, **k: run(ranks, *a, **k, steps=3, progress=lambda *_: None, stop=None))
    exec(p.code, space)
    assert core["calls"] == called * 2
    if "transfer_ms" in values:  # the timetable above the run has messages, so the code makes it too, in seconds
        assert space["s"].duration == pytest.approx(1e-3 * p.timetable.duration)
        assert space["s"].transfer == pytest.approx(2e-3)


def test_the_table_beside_a_run_has_the_timetable_that_is_drawn(core: dict[str, Any]) -> None:
    """Two stages, one microbatch, passes of 10 and 30 ms: half is bubble; with two messages of 5 ms 90 ms pass, of which 80 of 180 work."""
    p = PipelineSchedule(schedule="1f1b", stages=2, microbatches=1, forward_ms=10, backward_ms=30)
    p.run(wait=True)
    told = [
        (0, "80.0 ms", "50.0%", "points is messages, starting"),
        (5, "90.0 ms", "55.6%", "points is messages that take another time than 5"),
    ]
    for milliseconds, whole, bubble, words in told:
        p.set(transfer_ms=milliseconds)
        (row,) = [row for row in p._results.rows if row[0] == "in the timetable"]
        assert row[1:3] == [whole, bubble]
        assert f"the timetable says {bubble}" in p._results.message
        assert words in p._results.message


def test_a_runs_notes_stand_apart_from_its_table(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a run is a note with its code, and no row; the words have both bubbles and their difference."""
    run = parallel.run_schedule
    note = Note("contended", "Another process was active.")
    changed = {"notes": (note,), "bubble_ratios": (0.4, 0.4, 0.4)}
    monkeypatch.setattr(parallel, "run_schedule", lambda *a, **k: dataclasses.replace(run(*a, **k), **changed))
    p = PipelineSchedule(schedule="1f1b", stages=2, microbatches=4)
    p.run(wait=True)
    assert p._results.notes == [{"code": "contended", "sentence": "Another process was active."}]
    headers, rows = p.results["measure"].table()
    assert p._results.headers == list(headers)
    assert p._results.rows == [[str(cell) for cell in row] for row in rows if not row[0].startswith("note: ")]
    assert len(p._results.rows) == len(rows) - 1
    # Two stages and four microbatches: 1 of 5 waits, so 20 %.
    assert p._results.message.startswith(
        "Measured, the stages wait 40.0% of the time; the timetable says 20.0%. The difference of +20.0 points"
    )
    assert "A stage held 2 microbatches at most." in p._results.message


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(PipelineSchedule())
