"""Links of a set bandwidth: what is set is what is measured, and nothing stays behind."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from gpulab import models
from gpulab.errors import DeviceError, InputError, RankDiedError, RankError
from gpulab.parallel import _links as module
from gpulab.parallel import _links_step as step
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


@pytest.mark.parametrize(
    ("bandwidth", "bits", "peak", "kept", "burst", "handed"),
    [
        (50e6, "400000000bit", "420000000bit", "500000", "100000", "50000"),  # what passes in 10, 2 and 1 ms
        (1e4, "80000bit", "84000bit", "32768", "32768", "18000"),  # the least of each
        (5e9, "40000000000bit", "42000000000bit", "16777216", "10000000", "65536"),  # the most
    ],
)
def test_a_rank_is_joined_to_the_switch_by_a_cable_that_is_limited_at_both_ends(monkeypatch, bandwidth, bits, peak, kept, burst, handed):
    """By hand, as ip(8) and tc-tbf(8) have it: a namespace each, frames of 9,000 bytes, an address of RFC 2544's, and two buckets."""
    done = []
    monkeypatch.setattr(module, "_run", lambda command: done.append(" ".join(command)))
    module._build(["a", "b"], "s", bandwidth)

    def bucket(namespace, interface):
        rates = f"rate {bits} burst {kept} peakrate {peak} mtu {burst} limit 16777216"
        return f"tc -n {namespace} qdisc add dev {interface} root tbf {rates}"

    expected = ["ip netns add s", "ip -n s link add switch mtu 9000 type bridge", "ip -n s link set switch up"]
    for rank, name in enumerate("ab"):
        expected += [
            f"ip netns add {name}",
            f"ip -n {name} link add rank mtu 9000 type veth peer name port{rank} mtu 9000 netns s",
            f"ip -n s link set port{rank} master switch up",
            f"ip -n {name} addr add 198.18.0.{rank + 1}/24 dev rank",
            f"ip -n {name} link set rank up", f"ip -n {name} link set lo up",
            f"ip -n {name} link set rank gso_max_size {handed}", f"ip -n s link set port{rank} gso_max_size {handed}",
            bucket(name, "rank"), bucket("s", f"port{rank}"),
        ]  # fmt: skip
    assert done == expected


def test_ranks_that_are_too_many_or_elsewhere_are_refused(monkeypatch):
    """Two hundred may be joined, of one machine and of no profile; the bandwidth's bounds are in."""
    monkeypatch.setattr(module.Ranks, "ready", property(lambda self: True))

    def made(n, profile=None, hosts=("a",)):
        ranks = module.Ranks(n, profile, 20.0, 1, None, 0, lambda fraction, text: None)
        ranks.hosts = hosts * n
        return ranks

    for bandwidth in (1e4, 5e9):
        module._check(made(200), bandwidth)
    for ranks, bandwidth, words in (
        (made(201), 1e6, r"^links: 201 ranks; expected at most 200 on one machine\. Start fewer\.$"),
        (made(2, "site"), 1e6, "belong to an ipyparallel profile"),
        (made(2, None, ("a", "b")), 1e6, "belong to an ipyparallel profile"),
        (made(2), 0.999e4, r"bandwidth_bytes_per_second is 9990\.0; expected 10\.0 kB/s to 5\.00 GB/s\. Pass for example 50e6\.$"),
        (made(2), 5.001e9, "bandwidth_bytes_per_second is 5001000000"),
    ):
        with pytest.raises(InputError, match=words):
            module._check(ranks, bandwidth)


def test_a_rank_steps_into_a_namespace_and_back(monkeypatch):
    """By setns(2) with CLONE_NEWNET, 0x40000000 in linux/sched.h; home is noted once; a refusal is the system's, and nothing stays open."""
    done, refuses = [], []
    monkeypatch.setattr(step, "_home", [])
    monkeypatch.setattr(step.os, "open", lambda path, flags: done.append(("open", str(path), flags)) or 40 + len(done))
    monkeypatch.setattr(step.os, "close", lambda number: done.append(("close", number)))
    monkeypatch.setattr(step._wire, "keep_open_sockets", lambda: done.append("keep"))
    monkeypatch.setattr(step._wire, "keep_no_sockets", lambda: done.append("forget"))
    libc = types.SimpleNamespace(setns=lambda *given: done.append(("setns", *given)) or (-1 if refuses else 0))
    monkeypatch.setattr(step.ctypes, "CDLL", lambda name, use_errno: libc)
    monkeypatch.setattr(step.ctypes, "get_errno", lambda: 1)
    step.enter("a")
    first = [("open", "/proc/self/ns/net", os.O_RDONLY), "keep", ("open", "/run/netns/a", os.O_RDONLY)]
    assert done == [*first, ("setns", 43, 0x40000000), ("close", 43)]
    done.clear()
    step.enter("b")
    assert done == ["keep", ("open", "/run/netns/b", os.O_RDONLY), ("setns", 42, 0x40000000), ("close", 42)]
    refuses.append(True)
    with pytest.raises(PermissionError, match=f"setns: {os.strerror(1)}"):
        step.enter("c")
    refuses.clear()
    done.clear()
    step.leave()
    step.leave()
    assert done == [("setns", 41, 0x40000000), ("close", 41), "forget", "forget"]


def commands(monkeypatch, refused=None):
    """Note each command in place of running it; the one that is refused raises."""
    done = []

    def run(command):
        done.append(" ".join(command))
        if refused is not None and refused in done[-1]:
            raise DeviceError(f"`{done[-1]}` failed: no")

    monkeypatch.setattr(module, "_run", run)
    return done


@pytest.mark.parametrize(("refused", "reason"), [(None, None), ("tbf", "no"), ("type veth", "no"), ("netns add", "no")])
def test_whether_links_can_be_made_is_tried(monkeypatch, refused, reason):
    """A namespace, a cable and its bucket of 1 MB/s are made, and the namespace is removed whatever failed in it."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    done = commands(monkeypatch, refused)
    found = module.links_reason()
    assert (found is None) is (reason is None)
    assert found is None or found.endswith("failed: no")
    name = f"gpulab-{os.getpid()}-try"
    whole = [
        f"ip netns add {name}", f"ip -n {name} link add one type veth peer name two",
        f"tc -n {name} qdisc add dev one root tbf rate 8000000bit burst 32768 peakrate 8400000bit mtu 32768 limit 16777216",
        f"ip netns del {name}",
    ]  # fmt: skip
    assert done == {None: whole, "tbf": whole, "type veth": [*whole[:2], whole[3]], "netns add": whole[:1]}[refused]


def test_both_tools_are_missed_by_name(monkeypatch):
    """And both of root's rights: the sentence is whole."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert links_reason() == "ip and tc cannot be found; expected both (Debian and Ubuntu: the package iproute2)"
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert links_reason() == (
        "making network namespaces needs root, and this process is not (in a container: also the capability SYS_ADMIN)"
    )


def test_a_command_is_given_twenty_seconds_and_told_with_its_own_words(monkeypatch):
    """What it says goes into the sentence, as do a time that is over and a tool that cannot be started."""
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: asked.append((command, options)))
    module._ip("netns", "add", "x")
    assert asked == [(["ip", "netns", "add", "x"], {"check": True, "capture_output": True, "text": True, "timeout": 20.0})]
    for error, words in (
        (subprocess.CalledProcessError(1, "ip", stderr="File exists\n"), "File exists"), (OSError("no such tool"), "no such tool"),
        (subprocess.TimeoutExpired("ip", 20.0), "timed out after 20.0 seconds"),
    ):  # fmt: skip

        def fail(command, error=error, **options):
            raise error

        monkeypatch.setattr(subprocess, "run", fail)
        with pytest.raises(DeviceError) as caught:
            module._run(["ip", "link"])
        assert str(caught.value).startswith("`ip link` failed: ")
        assert words in str(caught.value)


def test_only_namespaces_of_links_whose_process_has_ended_are_stale(monkeypatch, tmp_path):
    """By their names: two of a process that is no more go, those of this one, of others and of no number stay; without ``ip`` all do."""
    real = Path
    places = {"/run/netns": tmp_path / "netns", "/proc": tmp_path / "proc"}

    def path(given):
        here = next((place for place in places if str(given).startswith(place)), None)
        return real(given) if here is None else real(str(given).replace(here, str(places[here]), 1))

    monkeypatch.setattr(module, "Path", path)
    done = commands(monkeypatch, "gpulab-11-0")
    module.remove_stale()  # no such folder
    (tmp_path / "proc" / "22").mkdir(parents=True)
    (tmp_path / "netns").mkdir()
    for name in ("gpulab-11-0", "gpulab-11-switch", "gpulab-22-0", "gpulab-x-0", "other-11-0"):
        (tmp_path / "netns" / name).touch()
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    module.remove_stale()
    assert done == []
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    module.remove_stale()
    assert sorted(done) == ["ip netns del gpulab-11-0", "ip netns del gpulab-11-switch"]  # that one is gone already spares no other
    done.clear()
    module._remove(["gpulab-22-0", "nobody"])
    assert done == ["ip netns del gpulab-22-0"]


class Made(module.Ranks):
    """Two ranks that are up, whose process group is opened by whom they were told."""

    ready = True

    def __init__(self):
        super().__init__(2, None, 7.0, 3, None, 0, lambda fraction, text: None)
        self.hosts, self.px, self.opened = ("a", "a"), False, []
        self._engines = types.SimpleNamespace(ids=(4, 5), deaths=dict)

    def _open_plain(self, engines):
        self.opened.append("plain")
        return self.hosts


@pytest.mark.parametrize("fails", [False, True])
def test_links_are_there_in_the_block_and_gone_after_it(monkeypatch, fails):
    """Stale ones go first; cables, then the group behind them; the limit is known inside; at last the group at home, and no namespace."""
    ranks, done = Made(), []
    pid = os.getpid()
    names = [f"gpulab-{pid}-0", f"gpulab-{pid}-1"]
    monkeypatch.setattr(module, "remove_stale", lambda: done.append("stale"))
    monkeypatch.setattr(module, "links_reason", lambda: None)
    monkeypatch.setattr(module, "_build", lambda *given: done.append(("build", *given)))
    monkeypatch.setattr(module, "_open_behind", lambda ranks, names, engines: done.append(("behind", names)) or ranks.hosts)
    monkeypatch.setattr(module, "_remove", lambda names: done.append(("remove", names)))
    monkeypatch.setattr(module._group, "close", lambda engines: done.append(("close", ranks._broken, ranks._busy.locked())) or True)
    monkeypatch.setattr(module._group, "_gather", lambda engines, calls, doing: done.append((calls, doing)))

    def block():
        with links(ranks, 10**7) as limited:
            assert limited is ranks
            assert (module.link_limit(ranks), type(module.link_limit(ranks))) == (1e7, float)
            assert ranks._broken is None
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            block()
    else:
        block()
    closed = ("close", "their links were being changed", True)
    assert done == [
        "stale", ("build", names, f"gpulab-{pid}-switch", 1e7), closed, ("behind", names), closed,
        ([(step.leave,)] * 2, "leave their links"), ("remove", [*names, f"gpulab-{pid}-switch"]),
    ]  # fmt: skip
    assert (module.link_limit(ranks), ranks._opener, ranks.opened, ranks._broken) == (None, None, ["plain"], None)


def test_ranks_that_died_or_hang_are_left_to_recover(monkeypatch):
    """How their group is to be opened is kept for it; ranks that cannot close theirs stay out of step, and say why."""
    ranks, opened = Made(), []
    monkeypatch.setattr(module._group, "close", lambda engines: False)
    module._open(ranks, opened.append)
    assert (opened, ranks._opener == opened.append, ranks._broken) == ([], True, "their links were being changed")
    ranks = Made()
    ranks._engines.deaths = lambda: {0: "left"}
    module._open(ranks, opened.append)
    assert (opened, ranks._broken) == ([], None)
    ranks._engines = None
    module._open(ranks, opened.append)
    assert opened == []


def test_ranks_meet_behind_their_links(monkeypatch):
    """By hand: threads, then the namespaces; the store is at the first address, and each rank opens its group by its own, over gloo."""
    ranks, done = Made(), []
    monkeypatch.setattr(module._group, "_gather", lambda engines, calls, doing: done.append((calls, doing)))
    monkeypatch.setattr(module._group, "_store", lambda engines, address, port: done.append((address, port)) or 4711)
    assert module._open_behind(ranks, ["x", "y"], "engines") == ("a", "a")
    place = module._rank.Place
    assert done == [
        ([(module._rank.set_threads, 3)] * 2, "load torch"), ([(step.enter, "x"), (step.enter, "y")], "enter their links"),
        ("198.18.0.1", 0),
        ([(module._rank.open_group, place(0, 2, 0, 2), "198.18.0.1", 4711, "198.18.0.1", 7.0, "gloo"),
          (module._rank.open_group, place(1, 2, 1, 2), "198.18.0.1", 4711, "198.18.0.2", 7.0, "gloo")], "open the process group"),
    ]  # fmt: skip


def test_the_systems_own_number_of_a_refusal_is_asked_for(monkeypatch):
    """Python keeps errno only for a library that was opened so."""
    opened = []
    libc = types.SimpleNamespace(setns=lambda *given: 0)
    monkeypatch.setattr(step.ctypes, "CDLL", lambda name, use_errno=False: opened.append((name, use_errno)) or libc)
    step._setns(3)
    assert opened == [(None, True)]
