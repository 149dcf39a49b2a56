"""Engines of an ipyparallel profile: what is missing is told, and engines on other hosts are ranks like any others."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import gpulab as gl
from gpulab.errors import InputError, RankDiedError, RankError
from gpulab.parallel import _profiles
from gpulab.parallel._links import links_reason
from gpulab.parallel._profiles import controller_address

HOSTS = ("gpulab-a", "gpulab-b")
REASON = links_reason()


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a profile named "site", empty."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for name in ("security", "log", "pid"):
        (tmp_path / "profile_site" / name).mkdir(parents=True)
    return tmp_path / "profile_site"


def test_a_profile_that_does_not_exist_is_named(profile: Path) -> None:
    """With the profiles that there are, and how to make one."""
    with pytest.raises(InputError, match=r"no ipyparallel profile 'sight'.*expected one of: site.*ipython profile create"):
        gl.parallel.cluster(2, profile="sight").start()


def test_a_profile_without_a_controller_or_launchers_is_told(profile: Path) -> None:
    """Nothing runs, and nothing says how to start it: both ways out are given."""
    with pytest.raises(RankError, match=r"no controller that runs, and no ipcluster_config.py.*ipcluster start --profile=site --n=2"):
        gl.parallel.cluster(2, profile="site").start()


def test_a_controller_that_is_gone_is_told(profile: Path) -> None:
    """Its file is still there, but nobody answers: told within seconds, with no process left."""
    port = 9  # the discard service, which nobody runs
    found = dict.fromkeys(("registration", "control", "mux", "task", "iopub", "notification", "broadcast"), port)
    found |= {"interface": "tcp://127.0.0.1", "location": "localhost", "ssh": "", "key": "k", "signature_scheme": "hmac-sha256"}
    found |= {"pack": "json", "unpack": "json", "task_scheme": "leastload", "curve_serverkey": None}
    (profile / "security" / "ipcontroller-client.json").write_text(json.dumps(found))
    before = psutil.Process().children()
    begin = time.monotonic()
    with pytest.raises(RankError, match="no controller answers"):
        gl.parallel.cluster(2, profile="site").start()
    assert time.monotonic() - begin < 15.0
    assert psutil.Process().children() == before


def test_the_controllers_address_is_read_as_engines_need_it(tmp_path: Path) -> None:
    """An address as it is; where it listens on all, its machine's name."""
    file = tmp_path / "client.json"
    for interface, expected in (("tcp://10.1.2.3", "10.1.2.3"), ("tcp://*", "head"), ("tcp://0.0.0.0", "head")):
        file.write_text(json.dumps({"interface": interface, "location": "head"}))
        assert controller_address(file) == expected


def total() -> tuple[int, float, str]:
    """Rank, an all-reduce, and the address that the other ranks see."""
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    return dist.get_rank(), float(ones[0]), os.environ["MASTER_ADDR"]


def test_a_profiles_launchers_start_engines_and_end_them(profile: Path) -> None:
    """The same calls, a rank that dies is named, and nothing is left running, neither engine nor controller."""
    (profile / "ipcluster_config.py").write_text("c.Cluster.engine_launcher_class = 'Local'\nc.Cluster.delay = 0.1\n")
    (profile / "ipcontroller_config.py").write_text("c.HeartMonitor.period = 500\nc.IPController.use_threads = True\n")
    started = gl.parallel.cluster(1, profile="site", timeout_seconds=5.0)
    with started:
        guard = psutil.Process(started._engines._guarded.pid)  # type: ignore[union-attr]
        processes = [guard, *guard.children(recursive=True)]
        assert started.run(total)[0][:2] == (0, 1.0)
        with pytest.raises(RankDiedError, match="rank 0"):
            started.run(os._exit, 7)
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert not list((profile / "security").glob("*client.json"))


def _sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.fixture
def two_hosts(profile: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A controller here, and an engine on each of two hosts: network namespaces with names of their own, joined by a bridge."""
    tag = f"gl{os.getpid() % 100_000}"
    head = f"198.18.{os.getpid() % 250}"
    processes: dict[str, subprocess.Popen[bytes]] = {}
    log = (profile / "log" / "all").open("ab")
    try:
        _sh(f"ip link add {tag} type bridge")
        _sh(f"ip addr add {head}.1/24 dev {tag}")
        _sh(f"ip link set {tag} up")
        options = [f"--ip={head}.1", "--nodb", "--usethreads", "--HeartMonitor.period=500", "--log-level=40"]
        command = [sys.executable, "-m", "ipyparallel.controller", f"--profile-dir={profile}", *options]
        processes["controller"] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for i in range(len(HOSTS)):
            _sh(f"ip netns add {tag}{i}")
            _sh(f"ip link add {tag}v{i} type veth peer name eth0 netns {tag}{i}")
            _sh(f"ip link set {tag}v{i} master {tag} up")
            for each in ("lo up", "eth0 up"):
                _sh(f"ip -n {tag}{i} link set {each}")
            _sh(f"ip -n {tag}{i} addr add {head}.{10 + i}/24 dev eth0")
        while not (profile / "security" / "ipcontroller-engine.json").exists():
            assert processes["controller"].poll() is None
            time.sleep(0.1)
        for i, host in enumerate(HOSTS):
            engine = f"hostname {host}; exec {sys.executable} -m ipyparallel.engine --profile-dir={profile} --log-level=40"
            command = ["ip", "netns", "exec", f"{tag}{i}", "unshare", "--uts", "sh", "-c", engine]
            processes[host] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        yield processes
    finally:
        below = [child for p in processes.values() if p.poll() is None for child in psutil.Process(p.pid).children(recursive=True)]
        for process in [*processes.values(), *below]:
            process.kill()
        for process in processes.values():
            process.wait()
        log.close()
        for command in (*(f"ip netns del {tag}{i}" for i in range(2)), f"ip link del {tag}"):
            subprocess.run(command.split(), check=False, capture_output=True)


@pytest.mark.skipif(REASON is not None, reason=f"no other hosts here: {REASON}")
def test_engines_on_other_hosts_are_ranks_like_any_others(profile: Path, two_hosts: dict[str, subprocess.Popen[bytes]]) -> None:
    """Ranks on two hosts meet over their network, a sleeper and a death are named, and engines that were there stay."""

    def late() -> None:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2.0))
        if dist.get_rank() == 1:
            time.sleep(300)
        total()

    with gl.parallel.cluster(2, profile="site", timeout_seconds=10.0) as ranks:
        assert ranks.hosts == HOSTS
        found = ranks.run(total)
        assert [each[:2] for each in found] == [(0, 2.0), (1, 2.0)]
        assert found[0][2].startswith("198.18.")
        with pytest.raises(RankError, match=r"rank 0 waited in all_reduce .* rank 1 did not come: it was still at work at line"):
            ranks.run(late)
        ranks.recover()
        assert [each[1] for each in ranks.run(total)] == [2.0, 2.0]
    assert all(process.poll() is None for process in two_hosts.values())
    with gl.parallel.cluster(2, profile="site", timeout_seconds=20.0) as ranks:
        begin = time.monotonic()
        with pytest.raises(RankDiedError, match=r"rank 1 .*; rank 0 waited in all_reduce") as caught:
            ranks.run(lambda: os._exit(3) if dist.get_rank() == 1 else total())
        assert time.monotonic() - begin < 5.0
        assert caught.value.ranks == (1,)
        with pytest.raises(RankError, match="1 of the engines of profile site answer; expected 2"):
            ranks.recover()


class Site:
    """A controller with engines on hosts, and a clock that runs while somebody sleeps; an engine answers after its own time."""

    def __init__(self, hosts: dict[int, tuple[str, float]]) -> None:
        self.hosts, self.now, self.ids, self.signals, self.asked = hosts, 50.0, list(hosts), [], 0  # type: ignore[var-annotated]

    def monotonic(self) -> float:
        """Return the seconds so far."""
        self.asked += 1
        assert self.asked < 10_000, "somebody looks all the time, and waits for nothing"
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let them pass."""
        self.now += seconds

    def __getitem__(self, engine: int) -> Any:
        host, ready = self.hosts[engine]
        at = self.now + ready
        job = SimpleNamespace(done=lambda: self.now >= at, successful=lambda: host != "", get=lambda seconds: host)
        return SimpleNamespace(apply_async=lambda *call: job)

    def send_signal(self, number: int, targets: list[int], block: bool) -> None:
        """Note whom."""
        self.signals.append((number, targets, block))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Engines of a profile: 3 and 5 on b, 4 on a, 6 broken, 7 too busy."""
    engines = _profiles.ProfileEngines(2, "site")
    engines.client = Site({3: ("b", 0.0), 4: ("a", 0.5), 5: ("b", 2.5), 6: ("", 0.0), 7: ("a", 60.0)})
    monkeypatch.setattr(_profiles, "time", engines.client)
    return engines


def test_engines_that_answer_are_put_machine_by_machine(site: Any) -> None:
    """Within three seconds; the broken and the busy one are none; others take the places of those that left."""
    told: list[float] = []
    site._take(lambda fraction, text: told.append(fraction), 60.0)
    assert (site.ids, told) == ((4, 3), [0.8])
    assert site.client.now == pytest.approx(53.0, abs=0.11)
    site.client.ids = [4, 5]
    assert site.deaths() == {1: "has left its controller: its process or its machine has ended"}
    site.interrupt([0, 1])
    site.interrupt([1])
    assert site.client.signals == [(signal.SIGINT, [4], False)]
    site.renew(lambda fraction, text: told.append(fraction))
    assert (site.ids, told[1:]) == ((4, 5), [0.2])
    site.n = 3
    with pytest.raises(RankError, match=r"^recover: 2 of the engines of profile site answer; expected 3\. .* --profile=site --n=1`; those"):
        site.renew(lambda fraction, text: None)
    site.client.ids = [3, 4, 5, 6]
    site.n = 4
    with pytest.raises(RankError, match=r"^cluster: 3 of the engines of profile site answer; expected 4, idle\. .* --n=1`, or wait"):
        site._take(lambda fraction, text: None, 60.0)


def test_who_waits_for_a_profiles_engines_is_told_why_none_come(site: Any, tmp_path: Path) -> None:
    """After the time, or at once where what was started has ended, with its last words; how far it came is told once a number."""
    told: list[tuple[float, str]] = []
    site.n, site.client.ids = 10, [3, 4, 5]
    with pytest.raises(RankError) as caught:
        site._take(lambda *given: told.append(given), 60.0)
    why = "expected 10 engines. See what `ipcluster start --profile=site --n=10` says."
    assert str(caught.value) == f"cluster: too few engines have come for profile site (waited 60 s); {why}"
    assert site.client.now == pytest.approx(110.0, abs=0.2)
    assert told == [(pytest.approx(0.3 + 0.5 * 3 / 10), "3 of 10 engines are there")]
    (tmp_path / "ipcluster.log").write_text("no queue\n")
    for alive, ends, words in ((False, {}, "ipcluster has ended"), (True, {"ipcluster": 1}, "ipcluster has ended")):
        site._guarded = SimpleNamespace(alive=alive, ends=ends, folder=tmp_path, close=lambda: None)
        begin = site.client.now
        with pytest.raises(RankError) as caught:
            site._wait(lambda: False, 60.0, "no controller has come up")
        assert str(caught.value) == f"cluster: no controller has come up for profile site ({words}; its last words: no queue); {why}"
        assert site.client.now == begin
        site.ids = (3, 4)
        assert site.deaths() == dict.fromkeys((0, 1), "ended with ipcluster, which had started it")
    site._guarded = SimpleNamespace(alive=True, ends={}, folder=tmp_path)
    site.ids = (3, 9)
    assert list(site.deaths()) == [1]


class Attached:
    """A client of a controller: engines on hosts, who answers what, and what was asked of whom."""

    def __init__(self, ids: tuple[int, ...] = (1, 2), seconds: float = 0.0) -> None:
        self.ids, self.asked, self.closed = ids, [], 0  # type: ignore[var-annotated]
        self.job = SimpleNamespace(done=lambda: seconds <= 0.0, successful=lambda: True, get=lambda wait: "host")

    def __getitem__(self, engine: int) -> Any:
        return SimpleNamespace(apply_async=lambda *call: self.asked.append((engine, *call)) or self.job)

    def close(self) -> None:
        """Note it."""
        self.closed += 1


@pytest.mark.parametrize("runs", [True, False], ids=["a controller that runs", "one that is gone"])
def test_a_controller_that_runs_is_used_and_else_one_is_started(profile: Path, monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    """It has five seconds to answer and its engines a minute to come; those that wait in a queue have ten. Its address is read."""
    (profile / "ipcluster_config.py").touch()
    (profile / "security" / "ipcontroller-client.json").touch()
    told, asked, waited = [], [], []  # type: ignore[var-annotated]

    def connect(file: Path, seconds: float = -1.0) -> Any:
        asked.append((file.name, seconds))
        if not runs and seconds == 5.0:
            raise RankError("cluster: no controller answers")
        return Attached()

    orders: list[Any] = []

    class Guard:
        def __init__(self, folder: Path, threads: int, end_seconds: float) -> None:
            self.folder, self.alive, self.ends = folder, True, {}  # type: ignore[var-annotated]
            orders.append((threads, end_seconds))

        def order(self, what: str, **given: Any) -> None:
            orders.append((what, given))
            (profile / "security" / "ipcontroller-gpulab-abcd-client.json").touch()

        def close(self) -> None:
            """End."""

    monkeypatch.setattr(_profiles._hub, "connect", connect)
    monkeypatch.setattr(_profiles, "Guarded", Guard)
    monkeypatch.setattr(_profiles.secrets, "token_hex", lambda n: "abcd" if n == 4 else "")
    monkeypatch.setattr(_profiles.tempfile, "mkdtemp", lambda prefix: str(profile / prefix))
    monkeypatch.setattr(_profiles, "controller_address", lambda file: f"address in {file.name}")
    engines = _profiles.ProfileEngines(2, "site")
    monkeypatch.setattr(engines, "_take", lambda progress, seconds: waited.append(seconds))
    engines.start(lambda *given: told.append(given))
    looking = (0.1, "looking for the controller of profile site")
    if runs:
        assert (told, asked, waited, orders) == ([looking], [("ipcontroller-client.json", 5.0)], [60.0], [])
        assert engines.address == "address in ipcontroller-client.json"
        return
    name = "ipcontroller-gpulab-abcd-client.json"
    assert told == [looking, (0.1, "starting engines as profile site says")]
    assert (asked, waited) == ([("ipcontroller-client.json", 5.0), (name, -1.0)], [600.0])
    assert engines.address == f"address in {name}"
    command = [sys.executable, "-m", "ipyparallel.cluster", "start", f"--profile-dir={profile}", "--cluster-id=gpulab-abcd", "--n=2"]
    assert orders == [(1, 30.0), ("process", {
        "name": "ipcluster", "command": command, "log": str(profile / "gpulab-cluster-" / "ipcluster.log"),
        "stop": {"signal": 2, "seconds": 20.0},
    })]  # fmt: skip


def test_engines_that_are_not_ours_are_left_and_those_of_ours_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is still there leaves the group, for three seconds at most; a second stop does nothing."""
    for seconds, waits in ((0.0, 0.0), (9.0, 3.0)):
        client = Attached((1, 3), seconds)
        clock = Site({})
        monkeypatch.setattr(_profiles, "time", clock)
        engines = _profiles.ProfileEngines(3, "site")
        engines.client, engines.ids = client, (1, 2, 3)
        engines.stop()
        engines.stop()
        assert client.asked == [(1, _profiles._rank.leave_engine), (3, _profiles._rank.leave_engine)]
        assert (client.closed, engines.client, clock.now - 50.0) == (1, None, pytest.approx(waits, abs=0.11))
    ended: list[bool] = []
    client, engines = Attached(), _profiles.ProfileEngines(2, "site")
    engines.client, engines.ids, engines._guarded = client, (1, 2), SimpleNamespace(close=lambda: ended.append(True))  # type: ignore[assignment]
    engines.stop()
    assert (client.asked, client.closed, ended) == ([], 1, [True])


def test_engines_of_ours_are_started_anew_with_a_guard_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old guard ends what it had, and is forgotten before the start."""
    done: list[Any] = []
    engines = _profiles.ProfileEngines(2, "site")
    engines._guarded = SimpleNamespace(close=lambda: done.append("end"))  # type: ignore[assignment]
    monkeypatch.setattr(engines, "start", lambda progress: done.append((engines._guarded, progress)))
    engines.renew(print)
    assert done == ["end", (None, print)]


def test_a_profile_beside_the_notebook_comes_before_one_at_home(profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ipyparallel looks for it; what there is at home is listed in order, folders alone."""
    here = tmp_path / "work"
    (here / "profile_site").mkdir(parents=True)
    assert _profiles.find_profile("site") == profile
    monkeypatch.chdir(here)
    assert _profiles.find_profile("site") == here / "profile_site"
    (tmp_path / "profile_another").mkdir()
    (tmp_path / "profile_file").touch()
    with pytest.raises(InputError) as caught:
        _profiles.find_profile("x")
    assert str(caught.value) == (
        f"cluster: there is no ipyparallel profile 'x' in {tmp_path}; expected one of: another, site. "
        "Make it with `ipython profile create --parallel --profile=x`; docs/clusters.md has its contents."
    )
    monkeypatch.setenv("IPYTHONDIR", str(here / "none"))
    with pytest.raises(InputError, match=r"expected one of: none yet\."):
        _profiles.find_profile("x")


def test_the_address_of_a_controller_that_listens_on_all_and_names_no_machine(tmp_path: Path) -> None:
    """It is this machine's own."""
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"interface": "tcp://*"}))
    assert controller_address(file) == "127.0.0.1"
