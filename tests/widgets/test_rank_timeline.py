"""RankTimeline with ranks of ours: what each control asks of the core, what a run shows, and the code shown."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes
from stand_in_ranks import StandInRanks, living

from gpulab import devices, parallel
from gpulab.errors import InputError, RankDiedError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.parallel import RankReport, RankSpan, StrategyResult
from gpulab.widgets import RankTimeline
from gpulab.widgets._ranks import LIVE
from gpulab.widgets.rank_timeline import _verdict

HERE = Evidence.measured("A CPU")


def result(strategy: str, ranks: int, batch_size: int) -> StrategyResult:
    """Two steps of 100 ms: 60 ms of compute, an all-reduce of 30 of which 20 lie beside it, 20 of waiting."""
    spans = tuple(
        span
        for rank in range(ranks)
        for begin in (0.0, 0.1)
        for span in (
            RankSpan(rank, "compute", "backward", begin, begin + 0.06), RankSpan(rank, "idle", "all_reduce", begin + 0.06, begin + 0.08),
            RankSpan(rank, "communication", "all_reduce", begin + 0.04, begin + 0.07, 2**20),
        )
    )  # fmt: skip
    t = parallel.RankTimeline(f"{strategy} on {ranks} ranks", ranks, spans, (0.0, 0.1), 0.2, (), HERE)
    reports = tuple(RankReport(k, 3 * 2**20, {}, {}, {"all_reduce": 1}, {"all_reduce": 2**20}, 2**20, None) for k in range(ranks))
    losses = np.array([3.0, 2.0, 1.0])
    return StrategyResult(
        strategy, ranks, "a transformer", 1000, "float32", "adam", batch_size, losses, losses, 0.0, 1e-2, losses / 10, reports, t, (), HERE,
        devices.environment("cpu"),
    )  # fmt: skip


@pytest.fixture(name="core")
def _core(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A training that takes no time; what it was asked; ``fails`` is raised; with ``waits`` it ends when it is asked to stop."""
    seen: dict[str, Any] = {"calls": [], "fails": None, "waits": None}

    def train(ranks: Any, strategy: str, *, model: Any = None, progress: Any = None, stop: Any = None, **given: Any) -> StrategyResult:
        seen["calls"].append((getattr(ranks, "n", ranks), strategy, model, given))
        made = result(strategy, getattr(ranks, "n", ranks), given["batch_size"])
        if seen["waits"] is not None:
            seen["waits"].set()
            while not stop():
                time.sleep(0.01)
            made = dataclasses.replace(made, notes=(Note("stopped", "3 of 6 steps were taken before the stop."),))
        if seen["fails"] is not None:
            raise seen["fails"]
        return made

    StandInRanks.made.clear()
    monkeypatch.setattr(parallel, "cluster", StandInRanks)
    monkeypatch.setattr(parallel, "train", train)
    yield seen
    LIVE.end()


def test_a_run_is_drawn_with_its_seconds_shares_and_bytes(core: dict[str, Any]) -> None:
    """The lanes' own arithmetic by hand: 60 of 100 ms compute, 30 communicate, 20 of them beside compute, 20 wait."""
    t = RankTimeline()
    assert t._results.message.startswith("Press Run on ranks")
    t.run(wait=True)
    assert t.error == ""
    assert [cell["badge"] if isinstance(cell, dict) else cell for cell in t._results.rows[1]] == [
        "rank 1", "60.0 ms (60%)", "30.0 ms (30%)", "20.0 ms (20%)", "20.0 ms (20%)", "1.00 MiB", "3.00 MiB",
    ]  # fmt: skip
    assert t._results.message == (
        "ddp on 2 ranks computes what one process computes (losses differ by at most 0). The ranks compute 60% of the time, messages "
        "move 30%, 67% of that beside compute, and they wait 20%."
    )
    assert "ddp on 2 ranks" in t._results.caption
    t.set(shown_steps=1)
    assert not t._results.message.startswith("The controls have moved")
    t.set(batch_size=32)
    assert t._results.message.startswith("The controls have moved")


def test_each_control_reaches_the_core(core: dict[str, Any]) -> None:
    """Ranks, batch, parts and buckets arrive where the strategy knows them, and only there; another size makes another transformer."""
    t = RankTimeline(strategy="pipeline-1f1b", ranks=4, layers=4, width=32, batch_size=8, microbatches=8)
    t.run(wait=True)
    ranks, strategy, model, given = core["calls"][0]
    assert (ranks, strategy) == (4, "pipeline-1f1b")
    assert given == {"steps": 6, "batch_size": 8, "microbatches": 8}
    assert (len(model.blocks), model.head.in_features, model.head.out_features) == (4, 32, 80)
    t.set(strategy="ddp", layers=2, width=64, bucket_kib=16)
    t.run(wait=True)
    assert core["calls"][1][2:] == (None, {"steps": 6, "batch_size": 8, "bucket_bytes": 16384})
    hidden = {c["name"] for c in t._panel.spec if c["hidden"]}
    assert hidden == {"microbatches"}
    t.set(strategy="tensor")
    assert {c["name"] for c in t._panel.spec if c["hidden"]} == {"microbatches", "bucket_kib"}
    options = [value for value, _ in t.controls["strategy"].options]
    assert tuple(options) == parallel.strategies()
    assert all(": " in text for _, text in t.controls["strategy"].options)  # each is told in words


def test_ranks_that_send_nothing_and_disagree_are_told_so(core: dict[str, Any]) -> None:
    """Alone with half of the time to compute, and another loss than one process has: no share of messages, and the difference."""
    whole = result("single", 2, 8)
    spans = tuple(span for span in whole.timeline.spans if span.kind != "communication")
    apart = dataclasses.replace(whole, timeline=dataclasses.replace(whole.timeline, spans=spans), losses=np.array([3.0, 2.0, 1.5]))
    assert _verdict(apart) == (
        "single on 2 ranks does not compute what one process computes (losses differ by at most 0.5). The ranks compute 60% of the time, "
        "messages move 0%, and they wait 20%."
    )


def test_more_ranks_than_cores_is_said(core: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks on two cores: the note says what the seconds are not; two ranks have none."""
    two = dataclasses.replace(devices.environment("cpu"), cores=2)
    monkeypatch.setattr(devices, "environment", lambda device: two)
    t = RankTimeline(ranks=4)
    t.run(wait=True)
    assert t._results.notes[0]["sentence"].startswith("4 ranks share 2 cores and take turns")
    t.set(ranks=2)
    t.run(wait=True)
    assert t._results.notes == []
    monkeypatch.setattr(devices, "environment", lambda device: dataclasses.replace(two, cores=1))
    t.run(wait=True)
    assert t._results.notes[0]["sentence"].startswith("2 ranks share 1 core and take turns")


def test_a_dead_rank_is_told_and_a_refusal_keeps_the_ranks(core: dict[str, Any]) -> None:
    """The sentence of the core stands inside; after a death the next run starts new ranks."""
    t = RankTimeline()
    core["fails"] = InputError("train: split cannot cut 2 layers into 4 stages; expected more. Take 2 ranks.")
    t.run(wait=True)
    assert t.error.startswith("train: split cannot cut")
    assert len(living()) == 1
    core["fails"] = RankDiedError("run: rank 1 died; expected it to live. Call recover().", (1,))
    t.run(wait=True)
    assert t.error.startswith("run: rank 1 died")
    assert living() == []
    core["fails"] = None
    t.run(wait=True)
    assert t.error == ""
    t.close()
    assert living() == []


@pytest.mark.parametrize("fails", [None, StoppedError("train: stopped before a step was observed, so nothing of this run was kept.")])
def test_a_stop_keeps_the_steps_that_were_taken(core: dict[str, Any], fails: StoppedError | None) -> None:
    """The ranks end their step themselves and are not interrupted; what was observed is drawn, else one sentence says that it was not."""
    core.update(waits=threading.Event(), fails=fails)
    t = RankTimeline()
    t.run()
    assert core["waits"].wait(10)
    (ranks,) = living()
    t.stop()
    assert t._job is not None
    assert t._job.join(10)
    assert not ranks.interrupted.is_set()
    assert living() == []
    assert t.error == ""
    if fails is None:
        assert t._panel.progress == "Run on ranks: stopped"
        assert (t.result.strategy, [note["code"] for note in t._results.notes]) == ("ddp", ["stopped"])
        assert len(t._results.rows) == 2
    else:
        assert t._panel.progress == str(fails)
        assert t.result is None


@pytest.mark.parametrize("values", [{"strategy": "zero1"}, {"strategy": "split", "layers": 4, "width": 128}])
def test_the_code_makes_the_same_call(core: dict[str, Any], values: dict[str, Any]) -> None:
    """What is shown as code asks the core for the same, and draws it."""
    t = RankTimeline(shown_steps=1, **values)
    if "width" in values:  # the task's characters and its windows of 64
        assert "gl.networks.transformer(vocabulary=80, width=128, layers=4, context=64)" in t.code
    t.run(wait=True)
    exec(t.code, {})
    first, second = core["calls"]
    assert (first[:2], first[3]) == (second[:2], second[3])
    if first[2] is None:
        assert second[2] is None
    else:
        assert all(np.array_equal(a.detach(), b.detach()) for a, b in zip(first[2].parameters(), second[2].parameters(), strict=True))


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(RankTimeline())
