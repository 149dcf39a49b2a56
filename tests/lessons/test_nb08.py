"""What notebook 08 makes of what its ranks did, and the timelines that it hands out to be read."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpulab import lessons, models
from gpulab.errors import RankError
from gpulab.evidence import Evidence
from gpulab.lessons import _checks, _guard, _nb08, _nb08_exercises, _nb08_export, _nb08_ring, _nb08_timelines
from gpulab.lessons._content import Refused, Unmeasured
from gpulab.parallel.results import RankSpan, RankTimeline

LIVE = Evidence.measured("a CPU")


def timeline(*spans: tuple[int, str, float, float], ranks: int = 2, end: float = 10.0) -> RankTimeline:
    """Spans of (rank, kind, begin, end)."""
    made = tuple(RankSpan(rank, kind, "work", begin, until) for rank, kind, begin, until in spans)
    return RankTimeline("x", ranks, made, (0.0,), end, (), LIVE)


def test_equal_losses_are_the_same_and_others_are_told_apart():
    """Rounding is the same; a larger last loss is worse, a smaller one better."""
    assert _nb08._compared(([1.0, 0.5], [1.0000001, 0.5])) == _nb08.SAME
    assert _nb08._compared(([1.0, 0.9], [1.0, 0.5])) == _nb08.WORSE
    assert _nb08._compared(([1.0, 0.2], [1.0, 0.5])) == _nb08.BETTER


def test_overlap_is_read_from_the_lanes():
    """Communication beside the same rank's compute is early; after it, it is not; nothing sent tells nothing."""
    beside = timeline((0, "compute", 0, 8), (0, "communication", 5, 9))
    behind = timeline((0, "compute", 0, 5), (0, "communication", 5, 9))
    assert _nb08._first_sent(beside) == _nb08.EARLY
    assert _nb08._first_sent(behind) == _nb08.AFTER
    with pytest.raises(Unmeasured, match="two ranks"):
        _nb08._first_sent(timeline((0, "compute", 0, 5)))


def test_the_share_of_work_is_the_mean_over_the_ranks():
    """Two ranks that compute 4 and 2 of 10 seconds work 30 % of the time."""
    assert _nb08._working(timeline((0, "compute", 0, 4), (1, "compute", 4, 6))) == pytest.approx(30)


def test_a_skipped_collective_is_read_from_the_error():
    """A timeout says that all waited; any other error, that PyTorch stopped; none, that they went on."""

    class CollectiveTimeoutError(Exception):
        """As the ranks raise it."""

    assert _nb08._what_happened(CollectiveTimeoutError()) == _nb08.WAITS
    assert _nb08._what_happened(ValueError()) == _nb08.STOPS
    assert _nb08._what_happened(None) == _nb08.WITHOUT


def test_timeline_a_ends_in_two_collectives():
    """Rank 2 lacks one all-reduce of layer 2: it waits in layer 1's, the three others in the one it lacks, until the timeout."""
    found = lessons.hang("A")
    last = [found.lane(rank)[-1] for rank in range(4)]
    assert [span.kind for span in last] == ["idle"] * 4
    assert [span.name.rpartition(" ")[2] for span in last] == ["2", "2", "1", "2"]
    assert {span.end_seconds for span in last} == {found.end_seconds}
    sent = [[span.name for span in found.lane(rank, "communication")] for rank in range(4)]
    assert sent[0] == sent[1] == sent[2] == sent[3] == [f"all_reduce layer {k}" for k in (3, 2, 1, 3)]


def test_timeline_b_comes_to_its_end_at_the_slow_ranks_pace():
    """Three steps of 2 x (8 + 3 x 5 + 1) ms and 3 x 2 ms of sending: 162 ms; only the others wait."""
    found = lessons.hang("B")
    assert found.end_seconds == pytest.approx(3 * (2 * (8 + 3 * 5 + 1) + 3 * 2) * 1e-3)
    assert [bool(found.lane(rank, "idle")) for rank in range(4)] == [True, True, True, False]
    assert all(len(found.lane(rank, "communication")) == 9 for rank in range(4))


def test_timeline_c_has_a_barrier_on_one_rank_only():
    """Rank 0 waits in a barrier, the others in the next step's first all-reduce."""
    last = [lessons.hang("C").lane(rank)[-1].name for rank in range(4)]
    assert last == ["barrier", *["all_reduce layer 3"] * 3]


def test_the_bubble_has_exactly_two_right_answers():
    """Of all numbers of microbatches and both schedules: 32 or 48, with 1F1B."""
    plans = [{"microbatches": m, "schedule": s} for m in range(1, 97) for s in ("gpipe", "1f1b")]
    right = [plan for plan in plans if _checks._examine(_nb08_exercises.BUBBLE, plan).state == "passed"]
    assert right == [{"microbatches": m, "schedule": "1f1b"} for m in (32, 48)]
    assert models.pipeline_schedule(4, 32, "1f1b").bubble_ratio == pytest.approx(3 / 35)


@pytest.mark.skipif(os.name != "posix", reason="a group of processes")
def test_what_torchrun_left_behind_is_ended_and_taken_away():
    """A run whose time is up is killed, and is no zombie of the notebook's afterwards; one that has ended is left alone."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True, text=True)
    _nb08_export._end(process)
    assert process.returncode == -signal.SIGKILL
    ended = SimpleNamespace(poll=lambda: 0)
    _nb08_export._end(ended)  # type: ignore[arg-type]


@pytest.mark.skipif(os.name != "posix", reason="a group of processes")
def test_an_end_between_a_thread_and_its_name_ends_torchrun(monkeypatch: pytest.MonkeyPatch):
    """The end of a check may come when the thread that starts torchrun runs already, and nobody has been told: it is waited for."""
    started: list[subprocess.Popen[str]] = []
    popen, start, up = subprocess.Popen, threading.Thread.start, threading.Event()

    def sleeping(command: list[str], **named: Any) -> subprocess.Popen[str]:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **named))
        up.set()
        return started[0]

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert up.wait(60)
        raise TimeoutError("the end of the check")

    monkeypatch.setattr(_nb08_export.subprocess, "Popen", sleeping)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(TimeoutError, match="the end of the check"):
        _nb08_export._run(["torchrun"], dict(os.environ), 60.0)
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.skipif(os.name != "posix", reason="a group of processes")
@pytest.mark.parametrize("returns", [True, False], ids=["waited for", "being started"])
def test_a_check_that_is_ended_ends_its_torchrun(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, returns: bool):
    """The end of a check reaches the wait for torchrun, at any moment: no process is left working in the background."""
    started: list[subprocess.Popen[str]] = []
    popen, wait, waits = subprocess.Popen, _guard._wait, itertools.count()
    up, ended = threading.Event(), threading.Event()

    def sleeping(command: list[str], **named: Any) -> subprocess.Popen[str]:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **named))
        up.set()
        assert returns or ended.wait(60)
        return started[0]

    def until_up(*given: Any) -> bool:
        if next(waits) == 0:
            return not up.wait(60)  # the check's time is up when the process is
        ended.set()
        return wait(*given)

    monkeypatch.setattr(_nb08_export.subprocess, "Popen", sleeping)
    monkeypatch.setattr(_guard, "_wait", until_up)
    monkeypatch.setattr(_guard, "_GRACE_SECONDS", 30.0)
    with pytest.raises(Refused) as refused:
        _guard.run(lambda: _nb08_export.torchrun(tmp_path / "script.py"), 0.05)
    assert str(refused.value) == "Your code did not finish within 0.05 s. Is there a loop without an end?"
    assert started[0].returncode == -signal.SIGKILL


def test_a_torchrun_that_takes_too_long_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Its own limit holds, in slices too, and what was printed before is heard whole."""
    popen = subprocess.Popen
    monkeypatch.setattr(
        _nb08_export.subprocess, "Popen", lambda command, **named: popen([sys.executable, "-c", "import time; time.sleep(60)"], **named)
    )
    with pytest.raises(RankError, match=r"had not ended after 0\.3 s"):
        _nb08_export.torchrun(tmp_path / "script.py", timeout_seconds=0.3)
    talking = popen(
        [sys.executable, "-c", "import time; print('first', flush=True); time.sleep(0.5); print('last')"], stdout=subprocess.PIPE, text=True
    )
    assert _nb08_export._heard(talking, 60, threading.Event()) == "first\nlast\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[rank0]: ValueError: no\nmore", "ValueError: no"),
        ("  raise ValueError('a')\n  File \"torch/distributed/run.py\" RankError\nlast line", "last line"),
        ("", "nothing was printed"),
        ("KeyError: 'x'", "KeyError: 'x'"),
    ],
)
def test_the_last_words_of_a_run_are_its_error(said: str, words: str):
    """The rank's own error, without the prefix of torchrun and without torchrun's own lines; else the last line."""
    assert _nb08_export._last_words(said) == words


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([[1.0] * 20, [1.0] * 19 + [1.01]], "different losses"),
        ([[2.0] + [1.0] * 19] * 2, "first loss is 2.0000 in place of 1.0000"),
        ([[1.0] * 7 + [1.1] + [1.0] * 12] * 2, "From step 7 on the loss differs: 1.1000 in place of 1.0000"),
        ([[1.0] * 19], "returned 19 losses; the check expects 20"),
        ([5], "Rank 0 returned an int (5)"),
        ([[1.0] * 20, [1.0] * 19 + [float("nan")]], "different losses"),
        ([[1.0009] * 20] * 2, ""),
    ],
)
def test_the_losses_of_a_run_are_judged_step_by_step(monkeypatch: pytest.MonkeyPatch, returned: list[Any], says: str):
    """Against one process whose loss is always 1: within a thousandth they are the same, and the first that differs is told."""
    monkeypatch.setattr(_nb08_export, "reference", lambda: [1.0] * 20)
    if not says:
        _nb08_export._judge(returned)
        return
    with pytest.raises(Refused, match=re.escape(says)):
        _nb08_export._judge(returned)


@pytest.mark.parametrize(
    ("on_one", "says"),
    [
        ([[1.0] * 20], ""),
        ([[0.5] * 20], "On 2 processes the losses are right, on 1 they are not: take the number from dist.get_world_size()."),
        (RankError("torchrun: it ended"), "torchrun: it ended"),
    ],
)
def test_losses_that_are_right_on_two_processes_must_be_on_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, on_one: Any, says: str
):
    """A number of ranks that is written down is right for that number alone: halves of the sum are the mean over two, and half of one."""

    def run(script: str, n: int, **_: Any) -> list[list[float]]:
        if n == 1 and isinstance(on_one, RankError):
            raise on_one
        return [[1.0] * 20] * 2 if n == 2 else on_one

    script = tmp_path / "work.py"
    script.write_text("init_process_group --results")
    monkeypatch.setattr(_nb08_export, "reference", lambda: [1.0] * 20)
    monkeypatch.setattr(_nb08_export, "torchrun", run)
    if not says:
        assert _nb08_export._check_export(script).startswith("On 2 processes and on 1, ")
        return
    with pytest.raises(Refused, match=re.escape(says)):
        _nb08_export._check_export(script)


_REPORT = {"rank": 1, "sent": 0, "collectives": [], "kind": "Tensor", "shape": (10,), "equal": True, "own": False}


@pytest.mark.parametrize(
    ("reports", "says"),
    [
        ([_REPORT | {"sent": 128}] * 2, ""),  # 2 (3 - 1) parts of 4 numbers of 8 bytes
        (
            [_REPORT, _REPORT | {"rank": 2, "sent": 129}],
            "rank 2 sends 129 bytes, 1.61 times the data. In a ring nobody sends more than 128",
        ),
        ([_REPORT | {"equal": False}, _REPORT], "on rank 1 the sums are wrong. The sum has to reach every rank"),
        ([_REPORT | {"rank": k, "equal": False} for k in range(3)], "on ranks 0, 1, 2 the sums are wrong. Which part"),
        ([_REPORT | {"rank": k, "equal": False, "own": True} for k in range(3)], "Each rank has its own x still"),
        ([_REPORT | {"shape": (), "kind": "int"}], "rank 1 got an int"),
        ([_REPORT | {"shape": (9,)}], "returned the shape (9,); the check expects (10,). 3 does not divide 10"),
        ([_REPORT | {"collectives": ["all_reduce"]}], "calls all_reduce"),
    ],
)
def test_a_ring_is_judged_by_its_sums_and_its_bytes(reports: list[dict[str, Any]], says: str):
    """Ten numbers on three ranks: a ring hands on 2 (n - 1) parts, the largest of 4 numbers (by hand)."""
    if not says:
        _nb08_ring._judge(3, 10, reports)
        return
    with pytest.raises(Refused, match=re.escape(says)):
        _nb08_ring._judge(3, 10, reports)


def test_memory_per_rank_by_hand():
    """8 parameters and 5 bytes of activations on 4 ranks: 133, 85, 61 and 37 bytes."""
    # 32 + 32 + 64 + 5; 32 + 32 + 16 + 5; 32 + 8 + 16 + 5; 8 + 8 + 16 + 5
    assert [_nb08_exercises.rank_bytes(8, 5, 4, stage) for stage in range(4)] == [133, 85, 61, 37]


def test_every_case_of_a_hang_can_be_found_in_its_timeline():
    """The collective that the answer names is in some lane; the culprit is a rank."""
    for letter, (_, rank, what) in _nb08_timelines.CASES.items():
        names = {span.name for span in lessons.hang(letter).spans}
        assert what == "slow" or what in names
        assert 0 <= rank < 4
