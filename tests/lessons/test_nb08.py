"""What notebook 08 makes of what its ranks did, and the timelines that it hands out to be read."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpulab import lessons, models
from gpulab.errors import RankError
from gpulab.evidence import Evidence
from gpulab.lessons import (
    _checks,
    _guard,
    _nb08,
    _nb08_exercises,
    _nb08_export,
    _nb08_launch,
    _nb08_ring,
    _nb08_strategy,
    _nb08_timelines,
    _parallel_checks,
)
from gpulab.lessons.content import Refused, Unmeasured
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


def test_ranks_that_did_not_run_the_call_say_nothing_of_a_skipped_collective():
    """The cell run twice finds them out of step; a name may be missing; a rank may have died. What PyTorch raised in one is its answer."""
    from gpulab.errors import RankDiedError

    out_of_step, raised = RankError("run: the ranks are out of step. Call recover()."), RankError("run: rank 2 raised", (2,))
    raised.__cause__ = NameError("name 'torch' is not defined")
    for error in (out_of_step, raised, RankDiedError("run: rank 1 died", (1,))):
        with pytest.raises(Unmeasured, match=re.escape("ranks.recover()")):
            _nb08._what_happened(error)
    raised.__cause__ = RuntimeError("[gloo] Connection closed by peer")
    assert _nb08._what_happened(raised) == _nb08.STOPS


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


@pytest.mark.parametrize(
    ("ratio", "held", "says"),
    [(0.0999, 8, "32 microbatches: a bubble of 10.0%, and at most 8 microbatches held"), (0.10, 1, "!the bubble is 10.0%"),
     (0.05, 9, "!1f1b keeps the activations of 9 microbatches until their backward passes; there is room for 8.")],
)  # fmt: skip
def test_a_bubble_is_under_a_tenth_and_eight_microbatches_have_room(ratio: float, held: int, says: str, monkeypatch: pytest.MonkeyPatch):
    """Of a schedule of four stages and 32 microbatches, at both limits; with "!" it is refused."""
    asked: list[Any] = []
    plan = SimpleNamespace(bubble_ratio=ratio, held=(1, held, 1))
    monkeypatch.setattr(_nb08_exercises, "pipeline_schedule", lambda *given: (asked.append(given), plan)[1])
    found = _checks._examine(_nb08_exercises.BUBBLE, {"microbatches": 32, "schedule": "1f1b"})
    assert (found.state, says.removeprefix("!") in found.message) == ("wrong" if says[0] == "!" else "passed", True), found.message
    assert asked == [(4, 32, "1f1b")]


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
    joined, join = list[Any](), threading.Thread.join
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(threading.Thread, "join", lambda thread, timeout=None: (joined.append(timeout), join(thread, timeout))[1])
    with pytest.raises(TimeoutError, match="the end of the check"):
        _nb08_export._run(["torchrun"], dict(os.environ), 60.0)
    assert _nb08_export._SLICE_SECONDS in joined, "it would look again and again, and keep a core busy"
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


def _of_torchrun(printed: str, rank: int, code: str, signal: str) -> str:
    """What torchrun 2.13 prints of a rank that ended so, its traceback shortened to the lines that name an error."""
    return f"""{printed}E1124 01:51:54.735000 3881 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) \
local_rank: {rank} (pid: 3889) of binary: /home/me/python
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
======================================================
work.py FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-24_01:51:55
  host      : localhost
  rank      : 5 (local_rank: 5)
  exitcode  : -15 (pid: 3890)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 3890
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_01:51:54
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 3889){signal}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
======================================================
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[rank0]: ValueError: no\nmore", "ValueError: no"),
        ("  raise ValueError('a')\n  File \"torch/distributed/run.py\" RankError\nlast line", "last line"),
        ("", "nothing was printed"),
        ("x" * 201, "x" * 197 + "..."),
        ("[rank1]: ValueError: " + "x" * 200, "ValueError: " + "x" * 185 + "..."),
        ("KeyError: 'x'", "KeyError: 'x'"),
        (_of_torchrun("", 1, "-11", "  (SIGSEGV)"), "rank 1 was ended by signal 11 (SIGSEGV)"),
        (_of_torchrun("[rank 0] [2.3]\nno exception\n", 0, "-6", "  (SIGABRT)"),
         "rank 0 was ended by signal 6 (SIGABRT) after printing 'no exception'"),
        (_of_torchrun("", 0, "3", " "), "rank 0 left with exit code 3"),
        (_of_torchrun("ValueError: mine\n", 0, "1", " "), "ValueError: mine"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(("code", "crashes", "right"), [("-6", 1, True), ("-6", 2, False), ("1", 1, False)])
def test_a_rank_that_a_signal_ended_is_started_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, code: str, crashes: int, right: bool
):
    """A library that crashes as a process leaves, once in hundreds of runs, is no wrong answer; an exit code of Python is one at once."""
    runs = []

    def run(command: list[str], *_: Any) -> tuple[int, str]:
        runs.append(command)
        if len(runs) <= crashes:
            return 1, _of_torchrun("", 0, code, "")
        pathlib.Path(command[-1]).write_bytes(pickle.dumps([[1.0] * 20] * int(command[-4][-1])))
        return 0, ""

    monkeypatch.setattr(_nb08_export, "_run", run)
    script = tmp_path / "work.py"
    if right:
        assert _nb08_export._results(script, 2) == [[1.0] * 20] * 2
    else:
        with pytest.raises(Refused, match=r"rank 0 (was ended by signal 6 \(SIGABRT\)|left with exit code 1); expected results"):
            _nb08_export._results(script, 2)
    assert len(runs) == (2 if code == "-6" else 1)


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
        ([_REPORT | {"shape": ()}], "rank 1 got a tensor of one number; the check expects a tensor with the sums"),  # x.sum()
        ([_REPORT | {"shape": (9,)}], "returned the shape (9,); the check expects (10,). 3 does not divide 10"),
        ([_REPORT | {"collectives": ["all_reduce"]}], "calls all_reduce"),
    ],
)
def test_a_ring_is_judged_by_its_sums_and_its_bytes(reports: list[dict[str, Any]], says: str):
    """Ten numbers on three ranks: a ring hands on 2 (n - 1) parts, the largest of 4 numbers (by hand)."""
    if not says:
        _nb08_ring._judge(3, 10, "float64", reports)
        return
    with pytest.raises(Refused, match=re.escape(says)):
        _nb08_ring._judge(3, 10, "float64", reports)


def test_a_ring_of_narrower_numbers_sends_half_as_much():
    """Four bytes each, by hand: 2 (3 - 1) parts of 4 numbers; sums that are wrong only then are those of buffers of another dtype."""
    _nb08_ring._judge(3, 10, "float32", [_REPORT | {"sent": 64}] * 2)
    with pytest.raises(Refused, match=r"rank 1 sends 65 bytes, 1\.62 times the data\. In a ring nobody sends more than 64"):
        _nb08_ring._judge(3, 10, "float32", [_REPORT | {"sent": 65}] * 2)
    with pytest.raises(Refused, match=r"^10 numbers of float32 on 3 ranks: on rank 1 the sums are wrong. With float64 they were right"):
        _nb08_ring._judge(3, 10, "float32", [_REPORT | {"equal": False}])


@pytest.mark.parametrize("alone", [True, False], ids=["messages only", "a collective"])
def test_a_ring_is_watched_on_each_rank_that_takes_part(alone: bool, monkeypatch: pytest.MonkeyPatch):
    """Rank 1 of the first two: what it sent in bytes, what it called, what it got; it waits for its group, and ends where all do."""
    import torch
    from torch import distributed as dist

    log: list[Any] = []
    sent = [
        SimpleNamespace(name="send", input_bytes=24),
        SimpleNamespace(name="recv", input_bytes=40),
        SimpleNamespace(name="send", input_bytes=8),
    ]
    calls = [*sent, *([] if alone else [SimpleNamespace(name="all_reduce", input_bytes=1)])]
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "new_group", list)
    monkeypatch.setattr(dist, "barrier", lambda group: log.append(group))  # noqa: PLW0108  (its name is given)
    monkeypatch.setattr(_nb08_ring.parallel, "observe", lambda: contextlib.nullcontext(SimpleNamespace(calls=calls)))

    def function(x: torch.Tensor, rank: int, n: int) -> Any:
        log.append((rank, n))
        wanted = torch.randint(-1000, 1000, (5,), generator=torch.Generator().manual_seed(100 * 5 + 1))
        assert x.tolist() == wanted.tolist(), "whole numbers, each rank's own: any order of adding gives the same"
        return {2: x * 2, 3: x, 4: x[:1], 5: 7}[n]

    kinds: list[Any] = []
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: (kinds.append(x.dtype), x.mul_(2)))
    found = _nb08_ring.probe(
        function, [(n, size, "float32" if n == 2 else "float64") for n, size in ((1, 9), (2, 5), (3, 5), (4, 5), (5, 5))]
    )
    assert kinds == [torch.float32, *[torch.float64] * 3][: 4 if alone else 1]
    expected = [
        {"rank": 1, "n": n, "size": 5, "sent": 32, "collectives": [] if alone else ["all_reduce"], "kind": kind, "shape": shape,
         "equal": n == 2, "own": n == 3, "dtype": "float32" if n == 2 else "float64"}
        for n, kind, shape in ((2, "Tensor", (5,)), (3, "Tensor", (5,)), (4, "Tensor", (1,)), (5, "int", ()))
    ]  # fmt: skip
    assert found == (expected if alone else expected[:1])
    each = [entry for n in range(2, 6) for entry in ((1, n), list(range(n)))]
    assert log == (each if alone else each[:1])


def test_the_learners_ranks_are_used_where_they_are_enough_and_ready(monkeypatch: pytest.MonkeyPatch):
    """The first variable of the notebook that is a cluster of at least so many ranks, and not broken; else some are started."""

    class Ranks:
        def __init__(self, n: int, ready: bool) -> None:
            self.n, self.ready = n, ready

    few, broken, enough = Ranks(3, True), Ranks(4, False), Ranks(4, True)
    monkeypatch.setattr(_parallel_checks.parallel, "Ranks", Ranks)
    monkeypatch.setattr(_parallel_checks.parallel, "cluster", lambda n: contextlib.nullcontext(f"{n} new ones"))
    for names, found in (((few, broken, 5, enough), enough), ((few, broken), None)):
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**{f"name{k}": each for k, each in enumerate(names)}))
        assert _parallel_checks.open_ranks(4) is found
        with _parallel_checks.ranks_of(4) as ranks:
            assert ranks == (found or "4 new ones")


@pytest.mark.parametrize(
    ("code", "said", "words"), [(1, "KeyError: 'x'", "ended with 1: KeyError: 'x'; expected"), (0, "", "ended with 0: nothing")]
)
def test_a_torchrun_without_results_is_told(code: int, said: str, words: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """It failed, or it wrote none; each process has one thread, and finds this gpulab first."""
    given: list[Any] = []
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setattr(_nb08_export, "_run", lambda *all_of: (given.extend(all_of), (code, said))[1])
    with pytest.raises(RankError, match=re.escape(f"torchrun: s.py on 1 process {words}")):
        _nb08_export.torchrun(tmp_path / "s.py", 1, timeout_seconds=7)
    command, environment, seconds = given
    assert command[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    root = str(pathlib.Path(lessons.__file__).resolve().parents[2])
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONPATH"], seconds) == ("1", f"{root}{os.pathsep}mine", 7)


def test_a_run_is_waited_for_in_slices(monkeypatch: pytest.MonkeyPatch):
    """No core is kept busy by looking whether it has ended."""
    waits: list[float] = []
    waited, wait = threading.Event(), _nb08_export.wait

    def waiting(futures: Any, seconds: float) -> Any:
        waits.append(seconds)
        waited.set()
        return wait(futures, seconds)

    ended = SimpleNamespace(communicate=lambda timeout: (waited.wait(60), ("said", None))[1], poll=lambda: 0, returncode=0)
    monkeypatch.setattr(_nb08_export.subprocess, "Popen", lambda command, **named: ended)
    monkeypatch.setattr(_nb08_export, "wait", waiting)
    assert _nb08_export._run(["torchrun"], {}, 60.0) == (0, "said")
    assert set(waits) == {_nb08_export._SLICE_SECONDS}


def test_where_there_are_no_groups_of_processes_torchrun_and_what_it_started_are_ended(monkeypatch: pytest.MonkeyPatch):
    """As on Windows: it is killed, then those below it, though one of them has ended by itself; and it is waited for."""
    log: list[str] = []
    process = SimpleNamespace(pid=7, poll=lambda: None, kill=lambda: log.append("kill"), wait=lambda: log.append("wait"))

    def gone() -> None:
        raise psutil.NoSuchProcess(8)

    below = [SimpleNamespace(kill=gone), SimpleNamespace(kill=lambda: log.append("kill below"))]
    monkeypatch.setattr(_nb08_export, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(_nb08_export, "_below", lambda pid: below if pid == 7 else [])
    _nb08_export._end(process)  # type: ignore[arg-type]
    assert log == ["kill", "kill below", "wait"]
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.undo()
    try:
        assert started.pid in [one.pid for one in _nb08_export._below(os.getpid())]
    finally:
        started.kill()
        started.wait()
    assert _nb08_export._below(started.pid) == []


_TELLS = """\
import os, pickle, sys, time
rank, out = int(os.environ["RANK"]), sys.argv[2]
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
with open(f"{out}.{rank}.part", "wb") as file:
    pickle.dump([os.environ.get(name) for name in names], file)
os.replace(f"{out}.{rank}.part", f"{out}.{rank}")
if len(sys.argv) > 3 and rank == 1:
    raise KeyError("rank 1")
while rank == 0 and (len(sys.argv) > 3 or not os.path.exists(f"{out}.1")):
    time.sleep(0.01)
if rank == 0:
    with open(out, "wb") as file:
        pickle.dump([pickle.loads(open(f"{out}.{k}", "rb").read()) for k in range(2)], file)
"""


def test_on_windows_the_processes_are_started_without_torchrun(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's torchrun ends there with "use_libuv was requested but PyTorch was built without libuv support"; each is told the same."""
    script = tmp_path / "work.py"
    script.write_text(_TELLS)
    monkeypatch.setattr(sys, "platform", "win32")
    one, two = _nb08_export.torchrun(script, timeout_seconds=60)
    port = one[5]
    assert one == ["0", "0", "2", "2", "127.0.0.1", port, "1"]
    assert two == ["1", "1", "2", "2", "127.0.0.1", port, "1"]
    assert 0 < int(port) < 65_536


def test_where_one_of_the_processes_fails_the_others_are_ended(tmp_path: pathlib.Path):
    """Rank 0 would wait for ever; the end is told as torchrun's."""
    script = tmp_path / "work.py"
    script.write_text(_TELLS)
    assert _nb08_launch.launch(2, [str(script), "--results", str(tmp_path / "out"), "and fail"]) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("looks", "code"), [([(None, None), (0, None), (0, 0)], 0), ([(None, None), (None, 3)], 1), ([(1, 0)], 1)])
def test_processes_are_looked_at_until_all_have_ended_or_one_has_failed(
    looks: list[tuple[int | None, ...]], code: int, monkeypatch: pytest.MonkeyPatch
):
    """Twenty times a second; whatever still runs is ended, and all are waited for, so that none is left as a zombie."""
    log: list[Any] = []
    seen = [iter(each) for each in zip(*looks, strict=True)]

    def started(command: list[str], env: dict[str, str]) -> SimpleNamespace:
        rank = int(env["RANK"])
        log.append(command[1:])
        return SimpleNamespace(
            poll=lambda: next(seen[rank]), kill=lambda: log.append(("kill", rank)), wait=lambda: log.append(("wait", rank))
        )

    monkeypatch.setattr(_nb08_launch, "subprocess", SimpleNamespace(Popen=started))
    monkeypatch.setattr(_nb08_launch, "time", SimpleNamespace(sleep=log.append))
    assert _nb08_launch.launch(2, ["work.py", "more"]) == code
    ends = [("kill", 0), ("kill", 1), ("wait", 0), ("wait", 1)]
    assert log == [["work.py", "more"]] * 2 + [0.05] * (len(looks) - 1) + ends


def test_losses_are_near_within_a_thousandth():
    """Of the larger one, or of 1 where both are smaller."""
    for one, other, near in ((1.00099, 1.0, True), (1.00105, 1.0, False), (2001.9, 2000.0, True), (2002.1, 2000.0, False),
                             (0.00099, 0.0, True), (0.00105, 0.0, False), (float("inf"), float("inf"), False)):  # fmt: skip
        assert _nb08_export._near(one, other) is near, one


def lanes(letter: str, rank: int, kind: str) -> list[tuple[str, float, float]]:
    """A rank's spans of a kind: name, begin and end in ms."""
    return [(s.name, round(s.begin_seconds * 1e3, 6), round(s.end_seconds * 1e3, 6)) for s in lessons.hang(letter).lane(rank, kind)]


def test_timeline_c_by_hand():
    """A step: 8 ms forward, three layers of 5 ms backward and 2 ms of sending, 1 ms of optimizer. Then rank 0 saves for 6 ms."""
    found = lessons.hang("C")
    sent = [("all_reduce layer 3", 13, 15), ("all_reduce layer 2", 20, 22), ("all_reduce layer 1", 27, 29)]
    first = [
        ("forward 1", 0, 8),
        ("backward 1, layer 3", 8, 13),
        ("backward 1, layer 2", 15, 20),
        ("backward 1, layer 1", 22, 27),
        ("optimizer 1", 29, 30),
    ]
    assert lanes("C", 0, "compute") == [*first, ("save", 30, 36)]
    assert lanes("C", 1, "compute") == [*first, ("forward 2", 30, 38), ("backward 2, layer 3", 38, 43)]
    assert [lanes("C", rank, "communication") for rank in range(4)] == [sent] * 4
    assert lanes("C", 0, "idle") == [("barrier", 36, 103)]
    assert lanes("C", 3, "idle") == [("all_reduce layer 3", 43, 103)]  # the timeout of the picture: 60 ms
    assert (found.steps, round(found.end_seconds, 9)) == (pytest.approx((0.0, 0.030)), 0.103)
    assert {span.nbytes for span in found.spans if span.kind == "communication"} == {4_000_000}


def test_in_timeline_b_the_others_wait_for_half_the_pace():
    """A forward pass of 16 ms against 8 and a backward of 10 against 5: 13 ms until the first sum, then 5 each; the optimizer 1 ms."""
    assert lanes("B", 0, "idle")[:4] == [
        ("all_reduce layer 3", 13, 26), ("all_reduce layer 2", 33, 38), ("all_reduce layer 1", 45, 50), ("all_reduce layer 3", 66, 80),
    ]  # fmt: skip
    assert lanes("B", 3, "compute")[:2] == [("forward 1", 0, 16), ("backward 1, layer 3", 16, 26)]


@pytest.mark.parametrize(
    ("letter", "strategy", "says"),
    [
        ("A", "tensor", "!A: tensor parallelism makes every layer wait for sums over all GPUs, which nothing hides; over PCIe that is"),
        ("A", "ddp", "A: with ddp each of 4 GPUs needs 24.0 GiB of 24.0 GiB."),
        ("A", "zero1", "A: with zero1 each of 4 GPUs needs 8.00 GiB of 24.0 GiB. (PyTorch's zero1 sends 1.5 times"),
        ("A", "zero3", "!A: with zero3 each of 4 GPUs needs 4.00 GiB of 24.0 GiB. It fits, but ddp fits as well (24.0 GiB) and sends less"),
        ("B", "ddp", "!B: with ddp each of 8 GPUs needs 48.0 GiB of 40.0 GiB: 9.00 GiB for parameters, gradients and Adam, 2.00 GiB for "
         "activations and what is on its way, up to 512 MiB inside operators, and 36.5 GiB of margin for what no prediction sees. So it"),
        ("B", "zero3", "!B: with zero3 each of 8 GPUs needs 4.00 GiB of 40.0 GiB. It fits, but zero2 fits as well (6.00 GiB) and sends"),
        ("C", "zero3", "C: with zero3 each of 8 GPUs needs 4.00 GiB of 80.0 GiB."),
        ("C", "tensor", "C: with tensor each of 8 GPUs needs 3.00 GiB of 80.0 GiB."),
    ],
)  # fmt: skip
def test_a_strategy_is_judged_by_what_fits_and_what_it_sends(letter: str, strategy: str, says: str, monkeypatch: pytest.MonkeyPatch):
    """With round numbers: what needs all of a GPU's memory fits; what sends more than need be is refused where less would do."""
    gib = 2**30
    needs = {"ddp": {"A": 24, "B": 48, "C": 96}, "zero1": {"A": 8}, "zero2": {"A": 7, "B": 6, "C": 88}, "zero3": {"A": 4, "B": 4, "C": 4},
             "tensor": {"C": 3}}  # fmt: skip
    parts = {"parameters": 4 * gib, "gradients": 3 * gib, "optimizer": 2 * gib, "activations": 5}
    memory = SimpleNamespace(
        peak_by_category=parts, peak_bytes=11 * gib, scratch_bytes=gib // 2, needed_bytes=lambda: needs[strategy][letter] * gib
    )
    monkeypatch.setattr(_nb08_strategy, "rank_memory", lambda letter, strategy: memory)
    monkeypatch.setattr(_nb08_strategy, "needed_bytes", lambda letter, strategy: needs[strategy][letter] * gib)
    with pytest.raises(Refused) if says.startswith("!") else contextlib.nullcontext() as refused:
        said = _nb08_strategy._judged(_nb08_strategy.CASES[letter], strategy)
    assert (refused.value.args[0] if refused else said).startswith(says.removeprefix("!"))


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
