"""Errors name the failed rank and its fault in limited time; the cluster can be used again."""

import datetime
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from gpulab.errors import CollectiveTimeoutError, RankDiedError, RankError, StoppedError
from gpulab.parallel import Ranks
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from refusals import refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="no signals between processes on Windows"),
]


def total() -> float:
    """An all-reduce of ones."""
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    return float(ones[0])


def fails(how: str) -> None:
    """Run one collective on all ranks; then rank 1 fails as ``how`` says while the others wait."""
    faults = {
        "return": lambda: None, "raise": lambda: int("my mistake"),
        "sleep": lambda: time.sleep(300), "other": lambda: dist.broadcast(torch.ones(1000), 0),
        "exit": lambda: os._exit(3), "silent": lambda: next(iter(())),
        "size": lambda: dist.all_gather([torch.ones(2)] * 4, torch.ones(3)),
        "peer": lambda: dist.recv(torch.ones(1), 4),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }  # fmt: skip
    total()
    if how in {"return", "sleep", "other"}:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1.5))
    if dist.get_rank() == 1:
        faults[how]()
    if dist.get_rank() != 1 or how == "other":
        total()


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("return", CollectiveTimeoutError, r"for [1-9]\d?(\.\d+)? s; .*returned after"),
        ("sleep", CollectiveTimeoutError, "line "),
        ("other", CollectiveTimeoutError, "broadcast of 3.91 KiB"),
        ("raise", RankError, "ValueError: .*my mistake"),
        ("size", RankError, "RuntimeError: .*invalid tensor size"),
        ("peer", RankError, "there is no rank 4; expected a rank from 0 to 3"),
        ("silent", RankError, "rank 1 raised StopIteration; "),
        ("exit", RankDiedError, "exit code 3"),
        ("kill", RankDiedError, "SIGKILL"),
    ],
)
def test_a_rank_that_fails_the_others_is_named(
    four_ranks: Ranks, how: str, kind: type[RankError], words: str
) -> None:
    """The error names the rank, its fault and the collective in which the others wait; after
    `recover` all ranks work.
    """
    begin = time.monotonic()
    caught = refused(kind, four_ranks.run, fails, how)
    caught.match(words)
    assert time.monotonic() - begin < 60, "a rank that hangs is not waited for"
    assert (
        type(caught.value),
        caught.value.ranks,
        caught.value.waiting[0],
        bool(re.search("all_reduce of 3.91 KiB.*2nd collective", str(caught.value))),
    ) == (kind, (1,), 0, True)
    refused(RankError, four_ranks.run, total)
    assert four_ranks.recover().run(total) == [4.0] * 4


def test_what_a_rank_raised_is_the_cause(four_ranks: Ranks) -> None:
    """The cause has the rank's traceback as a note. If all ranks raise the same exception, one
    error names them all, and they stay in step.
    """

    def all_raise() -> None:
        raise KeyError("missing")

    caught = refused(RankError, four_ranks.run, all_raise)
    assert (
        type(caught.value),
        caught.value.ranks,
        isinstance(caught.value.__cause__, KeyError),
    ) == (RankError, (0, 1, 2, 3), True)
    assert "in all_raise" in caught.value.__cause__.__notes__[0]
    assert four_ranks.run(total) == [4.0] * 4


def test_a_death_between_two_calls_and_its_children(four_ranks: Ranks) -> None:
    """The next call names the dead rank and its signal; processes that it started die with it."""

    def with_children() -> list[int]:
        new = (False, True)
        sleep = ["sleep", "600"]
        return [os.getpid(), *(subprocess.Popen(sleep, start_new_session=n).pid for n in new)]

    process, *children = map(psutil.Process, four_ranks.run(with_children)[2])
    process.send_signal(signal.SIGSEGV)
    assert psutil.wait_procs([process, *children], timeout=30)[1] == []
    caught = refused(RankDiedError, four_ranks.run, total)
    assert caught.value.ranks == (2,)
    caught.match("SIGSEGV")


def test_a_dead_controller_is_replaced(four_ranks: Ranks) -> None:
    """One `recover` is enough after a rank and a process of the controller were killed together."""
    rank = psutil.Process(four_ranks.run(os.getpid)[0])
    below = rank.parent().children(recursive=True)
    heart = next(p for p in below if "-m" in p.cmdline() and p.ppid() != rank.ppid())
    for process in (rank, heart):
        process.kill()
    refused(RankDiedError, four_ranks.run, total)
    assert four_ranks.recover().run(total) == [4.0] * 4


def interrupt_once_begun(folder: Path, ranks: Ranks | None = None) -> None:
    """Press Ctrl-C, or interrupt the ranks, as soon as four ranks have left files in a folder."""
    while len(list(folder.glob("[0-3]"))) < 4:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT) if ranks is None else ranks.interrupt()


def hang(folder: Path, how: str) -> None:
    """Sleep for 300 s; for "collective", rank 0 waits in an all-reduce without the others."""
    (folder / str(dist.get_rank())).touch()
    if how == "collective" and dist.get_rank() == 0:
        total()
    time.sleep(300)


@pytest.mark.parametrize("how", ["collective", "sleep", "stop"])
def test_an_interrupt_reaches_all_ranks(four_ranks: Ranks, tmp_path: Path, how: str) -> None:
    """Ctrl-C, or `interrupt` from another thread, ends the call. The engines stay alive, even if
    another interrupt reaches them during `recover`.
    """
    before = four_ranks.run(os.getpid)
    threading.Thread(
        target=interrupt_once_begun,
        args=(tmp_path, four_ranks if how == "stop" else None),
        daemon=True,
    ).start()
    with pytest.raises(StoppedError if how == "stop" else KeyboardInterrupt):
        four_ranks.run(hang, tmp_path, how)
    assert four_ranks.ready or how == "collective"
    late = [threading.Timer(0.02, os.kill, (process, signal.SIGINT)) for process in before]
    for timer in late:
        timer.start()
    four_ranks.recover()
    for timer in late:
        timer.join()  # on a busy machine it must not meet the next call
    assert (four_ranks.run(total), four_ranks.run(os.getpid)) == ([4.0] * 4, before)


def test_an_interrupt_ends_a_px_cell(four_ranks: Ranks, tmp_path: Path) -> None:
    """An interrupt, which ``%%px`` sends by the signal's name, ends the cell. While a cell still
    runs, a call is refused.
    """
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    try:
        four_ranks.recover()
        shell.run_cell_magic(
            "px",
            "--noblock",
            f"import pathlib, time\nfolder = pathlib.Path({str(tmp_path)!r})\n"
            "while not (folder / 'go on').exists(): time.sleep(0.01)",
        )
        refused(RankError, four_ranks.run, total).match("a cell of %%px")
        (tmp_path / "go on").touch()
        threading.Thread(target=interrupt_once_begun, args=(tmp_path,), daemon=True).start()
        shell.run_cell_magic("px", "", "(folder / str(rank)).touch()\ntime.sleep(300)")
    except KeyboardInterrupt:  # it would end the whole test session
        pytest.fail("the interrupt did not reach %%px")
    finally:
        InteractiveShell.clear_instance()
    assert four_ranks.run(total) == [4.0] * 4


def test_a_call_may_be_given_a_limit(four_ranks: Ranks) -> None:
    """A function that takes longer is interrupted; the error names the line that it had reached."""

    def spin() -> None:
        while True:
            time.sleep(0.01)

    caught = refused(RankError, four_ranks.run, spin, timeout_seconds=3.0)
    assert caught.value.ranks == (0, 1, 2, 3)
    caught.match(r"3 s \(at line \d+ of spin\)")
    assert four_ranks.run(total) == [4.0] * 4


def test_a_collective_that_one_rank_alone_entered_is_noticed(four_ranks: Ranks) -> None:
    """The call that leaves the collective unawaited succeeds. The next call is refused, since it
    would sum wrong numbers.
    """

    def unawaited() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3), async_op=True)

    assert four_ranks.run(unawaited) == [None] * 4
    refused(RankError, four_ranks.run, total)
    assert four_ranks.recover().run(total) == [4.0] * 4


def test_messages_and_groups_of_some_ranks_leave_all_in_step(four_ranks: Ranks) -> None:
    """A message between two ranks, or a collective of some ranks, is not taken for a fault."""

    def right() -> None:
        here, x, everything = dist.get_rank(), torch.ones(2), [None] * 4
        if here < 2:
            dist.isend(x, 1).wait() if here == 0 else dist.recv(x)
        for some in ([0], [1, 3], [0, 1, 2, 3]):
            group = dist.new_group(some)
            if here in some:
                dist.all_reduce(x, group=group)
        dist.all_gather_object(everything, here)

    four_ranks.run(right)
    assert four_ranks.ready
