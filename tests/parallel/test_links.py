"""Links of a set bandwidth: what is set is what is measured, and nothing stays behind."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulab import models
from gpulab.errors import DeviceError, InputError, RankDiedError, RankError
from gpulab.parallel import _links as module
from gpulab.parallel import links, links_reason, sweep

REASON = links_reason()
allowed = pytest.mark.skipif(REASON is not None, reason=f"no links of a set bandwidth here: {REASON}")


def namespaces():
    """The network namespaces of this process's links."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"gpulab-{os.getpid()}-*")) if folder.is_dir() else []


def one():
    """A sum over ranks: whether they still talk."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


@allowed
def test_the_bandwidth_that_is_set_is_the_bandwidth_that_is_measured(ranks):
    """10 MB/s: from two sizes, so that latency and the bucket's burst cancel, within 10 %. The bytes sent are gloo's, counted there too.

    The sizes are taken in turns, five times, and the median of each counts: what strikes one of them for a while does not change it.
    """
    with links(ranks, 10e6) as limited:
        assert len(namespaces()) == 3
        sweeps = [sweep(limited, "all_reduce", sizes=[2**17, 2**19], deadline=1.0) for _ in range(5)]
    done = sweeps[-1]
    small, large = (statistics.median(each.points[k].median_seconds for each in sweeps) for k in (0, 1))
    measured = (done.points[1].nbytes - done.points[0].nbytes) / (large - small)  # of two ranks, each sends the payload once
    assert measured == pytest.approx(10e6, rel=0.1)
    assert done.link_bytes_per_second == 10e6
    assert "links of 10.0 MB/s" in done.label
    assert done.points[1].sent_bytes == models.gloo_wire_bytes("all_reduce", 2**17, 2)
    assert namespaces() == []
    assert ranks.run(one) == [2.0, 2.0]
    assert sweep(ranks, sizes=[2**10], deadline=0.05).link_bytes_per_second is None


@allowed
def test_an_error_inside_leaves_nothing_behind_and_the_ranks_usable(ranks):
    """The learner's own error passes, the namespaces are gone, the ranks talk."""

    def fail():
        with links(ranks, 50e6):
            assert ranks.run(one) == [2.0, 2.0]
            with pytest.raises(InputError, match="already"), links(ranks, 1e6):
                pass
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert namespaces() == []
    assert ranks.run(one) == [2.0, 2.0]


@allowed
def test_what_a_killed_process_left_is_removed_and_nobody_elses():
    """Namespaces named after a process that has ended go; those of one that lives, and others' names, stay."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True, capture_output=True, text=True)
    dead, living, others = f"gpulab-{ended.stdout.strip()}-0", f"gpulab-{os.getppid()}-0", f"other-{ended.stdout.strip()}-0"
    try:
        for name in (dead, living, others):
            subprocess.run(["ip", "netns", "add", name], check=True)
        module.remove_stale()
        left = {path.name for path in Path("/run/netns").iterdir()}
        assert dead not in left
        assert {living, others} <= left
    finally:
        for name in (dead, living, others):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_where_it_is_not_allowed_one_sentence_says_why(monkeypatch):
    """Another system, missing tools, no rights."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert links_reason() == "network namespaces are Linux's, and this is darwin"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else "/sbin/ip")
    assert links_reason().startswith("tc cannot be found")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert "needs root" in links_reason()


def test_a_refused_command_is_told_with_the_systems_own_words(monkeypatch):
    """`ip` that fails ends in the reason, not in a traceback."""

    def refused(command, **options):
        raise subprocess.CalledProcessError(1, command, stderr="mount --make-shared /run/netns failed: Operation not permitted")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    monkeypatch.setattr(subprocess, "run", refused)
    assert "Operation not permitted" in links_reason()


def test_what_cannot_be_is_refused(ranks, monkeypatch):
    """No cluster; a bandwidth that cannot be; a machine that does not allow it. The ranks go on."""
    with pytest.raises(InputError, match="expected a started cluster"), links(2, 1e6):
        pass
    for wrong in (0, -1, 1e12, "fast"):
        with pytest.raises(InputError, match="bandwidth_bytes_per_second"), links(ranks, wrong):
            pass
    monkeypatch.setattr(module, "links_reason", lambda: "no rights")
    with pytest.raises(DeviceError, match=r"^links: no rights; expected"), links(ranks, 1e6):
        pass
    assert ranks.run(one) == [2.0, 2.0]


def where():
    """The process and the network namespace of a rank."""
    return os.getpid(), str(Path("/proc/self/ns/net").readlink())


def leave_the_other(how):
    """Rank 0 waits in a sum to which rank 1 does not come."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("mine")
    dist.all_reduce(torch.ones(1))


@allowed
@pytest.mark.parametrize(("how", "error", "stays"), [("dies", RankDiedError, False), ("raises", RankError, True)])
def test_recover_inside_brings_the_ranks_behind_their_links_again(ranks, how, error, stays):
    """A rank that fails the other is named; after recover() each is in its namespace, limited as before, and at home after it."""
    home = {place for _, place in ranks.run(where)}
    assert len(home) == 1
    with links(ranks, 20e6) as limited:
        before = limited.run(where)
        with pytest.raises(error, match="rank 0 waited in all_reduce") as caught:
            limited.run(leave_the_other, how)
        assert caught.value.ranks == (1,)
        begin = time.monotonic()
        assert limited.recover().run(one) == [2.0, 2.0]
        assert time.monotonic() - begin < 30.0
        after = limited.run(where)
        assert [place for _, place in after] == [place for _, place in before]
        assert (after == before) is stays
        assert len({place for _, place in after} | home) == 3
        done = sweep(limited, "all_reduce", sizes=[2**18], deadline=0.3)
        assert done.link_bytes_per_second == 20e6
        assert done.points[0].median_seconds > 0.8 * 2**18 / 20e6  # of two ranks, each sends the payload once
    assert namespaces() == []
    assert {place for _, place in ranks.run(where)} == home
    assert ranks.recover().run(one) == [2.0, 2.0]


@allowed
def test_a_rank_that_dies_inside_leaves_no_namespace(ranks):
    """The death is told as ever; on leaving, the namespaces go, and recover() gives ranks on plain links."""

    def kill_one():
        with links(ranks, 50e6):
            os.kill(ranks.run(os.getpid)[1], signal.SIGKILL)
            ranks.run(one)

    with pytest.raises(RankError):
        kill_one()
    assert namespaces() == []
    assert ranks.recover().run(one) == [2.0, 2.0]
