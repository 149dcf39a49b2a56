"""Ranks compute together, and nothing of them outlives the kernel that started them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

import gpulab as gl
from gpulab.errors import GpulabError, InputError, OutOfMemoryError, RankError
from gpulab.parallel import Ranks, _engines, _group, _profiles, _rank

# A killed kernel's processes are gone after this; the guard looks twenty times a second, and ends them in well under a second.
GONE_WITHIN = 10.0


def _sum_of_ranks(factor: int) -> int:
    total = torch.tensor(dist.get_rank() * factor)
    dist.all_reduce(total)
    return int(total)


def below(ranks: Ranks) -> list[psutil.Process]:
    """The guard, the controller and the engines of a cluster, with all that they have started."""
    guard = psutil.Process(ranks._engines.guarded.pid)  # type: ignore[union-attr]
    return [guard, *guard.children(recursive=True)]


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    """All have ended within the time."""
    assert psutil.wait_procs(processes, timeout=GONE_WITHIN)[1] == []


def test_a_function_runs_on_every_rank(ranks: Ranks) -> None:
    """Each rank gives its result, in rank order, and a collective joins them."""
    assert ranks.run(lambda: (dist.get_rank(), dist.get_world_size())) == [(0, 2), (1, 2)]
    assert ranks.run(_sum_of_ranks, 5) == [5, 5]
    assert ranks.hosts == (socket.gethostname(),) * 2
    assert repr(ranks) == "<Ranks: 2 on 1 machine, ready>"


def test_arrays_and_keywords_travel_both_ways(ranks: Ranks) -> None:
    """Arrays and tensors arrive as they were sent, on each rank a copy of its own."""

    def twice(array: np.ndarray, *, tensor: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        array += dist.get_rank()
        return array, tensor * 2

    for rank, (array, tensor) in enumerate(ranks.run(twice, np.zeros(3, np.int16), tensor=torch.ones(2, dtype=torch.bfloat16))):
        assert array.dtype == np.int16
        assert array.tolist() == [rank] * 3
        assert torch.equal(tensor, torch.tensor([2.0, 2.0], dtype=torch.bfloat16))


def test_what_ranks_print_is_shown_with_the_rank(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has its rank before it, and nothing else is printed."""
    ranks.run(lambda: print(f"I am\n{dist.get_rank()}"))
    assert capsys.readouterr() == ("[rank 0] I am\n[rank 0] 0\n[rank 1] I am\n[rank 1] 1\n", "")


def test_the_log_has_each_ranks_collectives_in_order(ranks: Ranks) -> None:
    """Name, bytes and group of what the last call entered: four bytes an element by hand."""

    def work() -> None:
        dist.broadcast(torch.ones(10), 0)
        dist.all_reduce(torch.ones(3, dtype=torch.float64))

    ranks.run(work)
    assert [[(c.name, c.payload_bytes, c.group) for c in calls] for calls in ranks.log] == [
        [("broadcast", 40, (0, 1)), ("all_reduce", 24, (0, 1))]
    ] * 2


def test_engines_know_their_rank(ranks: Ranks) -> None:
    """``%%px`` runs in a namespace with `rank` and `world_size`, and sees the environment that torchrun would give."""
    view = ranks._engines.client[list(ranks._engines.ids)]  # type: ignore[union-attr]
    view.execute("import os; seen = (rank, world_size, os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])", block=True)
    assert view.pull("seen", block=True) == [(0, 2, "0", "0", "2"), (1, 2, "1", "1", "2")]


def test_only_one_call_at_a_time(ranks: Ranks) -> None:
    """A call from within another thread's call is refused in a sentence, not mixed up with it."""
    with ranks._busy, pytest.raises(RankError, match="another call is in progress"):
        ranks.run(_sum_of_ranks, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "n=0; expected a whole number of ranks"),
        ({"n": True}, "n=True"),
        ({"n": 2.0}, "n=2.0"),
        ({"timeout_seconds": 0}, "timeout_seconds=0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds=nan"),
        ({"threads": 0}, "threads=0"),
        ({"backend": "mpi"}, "backend is 'mpi'"),
        ({"port": 70_000}, "port=70000"),
        ({"profile": ""}, "profile=''"),
        ({"progress": 3}, "progress=3"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, object], words: str) -> None:
    """One sentence with the value, before any process."""
    with pytest.raises(InputError) as caught:
        gl.parallel.cluster(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "5"])
def test_a_call_that_may_take_no_time_is_refused(ranks: Ranks, seconds: object) -> None:
    """Before it reaches a rank; the next call finds them as they were."""
    with pytest.raises(InputError, match=r"timeout_seconds=.*; expected seconds above 0"):
        ranks.run(_sum_of_ranks, 1, timeout_seconds=seconds)  # type: ignore[arg-type]
    assert ranks.ready


def test_more_ranks_than_memory_are_refused() -> None:
    """The sentence says what they would need, what is free, and how many fit."""
    before = psutil.Process().children()
    with pytest.raises(OutOfMemoryError, match=r"1000000 ranks need about .* TiB \(350 MiB each\).*Ask for \d+ at most"):
        gl.parallel.cluster(1_000_000).start()
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("asked", "spare", "expected"),
    [
        (None, [0, 0], "cpu:gloo,cuda:nccl"),
        (None, [0, -1], "gloo"),
        ("gloo", [3, 3], "gloo"),
        ("gloo", [-2, -2], "gloo"),
        ("nccl", [0, 1], "nccl"),
    ],
)
def test_the_backend_fits_the_gpus(asked: str | None, spare: list[int], expected: str) -> None:
    """NCCL by itself only where every rank has a GPU of its own; what is asked for is taken."""
    assert _group.choose_backend(asked, spare) == expected


@pytest.mark.parametrize(("nccl", "expected"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_a_gpu_without_nccl_is_none_for_the_ranks(nccl: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's builds for Windows have CUDA and no NCCL: asked for it, init_process_group raises in every rank."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    assert _group.choose_backend(None, [_rank.gpus() - 1]) == expected


@pytest.mark.parametrize("asked", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_without_a_gpu_for_each_rank_is_refused(asked: str) -> None:
    """One sentence that names the ranks, in place of PyTorch's own failure inside them."""
    with pytest.raises(InputError, match=r"not enough for ranks 1 and 3; .*backend='gloo'"):
        _group.choose_backend(asked, [0, -1, 0, -2])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the loopback is called lo on Linux only")
def test_a_rank_is_reached_by_the_address_on_the_way() -> None:
    """Towards this machine that is the loopback's, whose interface gloo is told; an address of nobody's has none."""
    assert _rank.address_towards("127.0.0.1") == "127.0.0.1"
    assert _rank._interface_of("127.0.0.1") == "lo"
    assert _rank._interface_of("203.0.113.7") == ""  # kept for documentation: RFC 5737


@pytest.mark.parametrize(("system", "libuv"), [("win32", False), ("linux", True), ("darwin", True)])
def test_the_store_asks_for_libuv_where_pytorch_was_built_with_it(system: str, libuv: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own rendezvous.py (2.13) says: "PyTorch is built without libuv support on windows, so default to 0"; the store does not."""
    asked: list[bool] = []

    class Store:
        port = 29_500

        def __init__(self, *place: object, use_libuv: bool = True, **options: object) -> None:
            asked.append(use_libuv)

    monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", Store)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *args, **options: None)
    monkeypatch.setattr(_rank, "_prepare_engine", lambda place: None)
    monkeypatch.setattr(_rank, "_interface_of", lambda address: "")
    monkeypatch.setattr(_rank, "_STATE", _rank._State())
    monkeypatch.setattr(_rank, "AGENT", SimpleNamespace(keep_sockets=lambda: None))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "platform", system)
    assert _rank.open_store("127.0.0.1", 0) == Store.port
    _rank.open_group(_rank.Place(1, 2, 1, 2), "127.0.0.1", Store.port, "127.0.0.1", 5.0, "gloo")
    assert asked == [libuv, libuv]


def test_an_engine_of_others_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own variables come back, those of a rank go, and torch has its threads again; also after a group that was opened twice."""
    own = {"MASTER_ADDR": "head", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/home/you"}
    names = {"rank": 0, "world_size": 2, "mine": 3}
    threads = [8]
    monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", lambda *place, **options: None)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *args, **options: None)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads[-1])
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("ipykernel.ipkernel.IPythonKernel.instance", lambda: SimpleNamespace(shell=SimpleNamespace(user_ns=names)))
    monkeypatch.setattr(_rank, "_prepare_engine", lambda place: None)
    monkeypatch.setattr(_rank, "_interface_of", lambda address: "eth0")
    monkeypatch.setattr(_rank, "_STATE", _rank._State())
    monkeypatch.setattr(_rank, "AGENT", SimpleNamespace(keep_sockets=lambda: None))
    monkeypatch.setattr(os, "environ", dict(own))
    for port in (29_500, 29_501):
        _rank.set_threads(1)
        _rank.open_group(_rank.Place(1, 2, 1, 2), "10.1.2.3", port, "10.1.2.4", 5.0, "gloo")
        assert (os.environ["RANK"], os.environ["MASTER_PORT"], os.environ["GLOO_SOCKET_IFNAME"]) == ("1", str(port), "eth0")
    _rank.leave_engine()
    assert os.environ == own
    assert (threads, names) == ([8, 1, 1, 8], {"mine": 3})


@pytest.mark.parametrize("pids", [[(202, 1), (201, 1)], [(801, 202), (802, 201)]], ids=["itself", "below a launcher"])
def test_engines_are_told_in_the_order_of_ranks_with_a_fraction_that_rises(
    pids: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of two engines one comes first, then both: a start from 0.5 goes by 0.7 to 0.9; their processes say which is which rank.

    On Windows an environment's python.exe starts the real one as its child, and an engine is known by its parent (CPython, PC/launcher).
    """
    engines = _engines.LocalEngines(2, 1)
    orders: list[tuple[str, str]] = []
    told: list[tuple[float, str]] = []
    coming = iter(({4}, {4}, {4, 7}, {4, 7, 9}))

    class Client:
        ids: set[int] = {4}

        def __getitem__(self, ids: list[int]) -> Client:
            assert ids == [7, 9]  # 4 belongs to the engines before
            return self

        def apply_async(self, function: object) -> Client:
            return self

        def get(self, seconds: float) -> list[tuple[int, int]]:
            return pids

    def wait(condition: Callable[[], bool], *_: object, **__: object) -> None:
        while not condition():
            engines.client.ids = next(coming)

    started = {"engine 1.0": 201, "engine 1.1": 202}
    engines.client = Client()
    engines.guarded = SimpleNamespace(  # type: ignore[assignment]
        folder=tmp_path, pids=started, order=lambda what, **given: orders.append((what, given["name"]))
    )
    monkeypatch.setattr(engines, "_wait", wait)
    engines._launch(lambda fraction, text: told.append((round(fraction, 9), text)), 0.5)
    assert orders == [("engine", "engine 1.0"), ("engine", "engine 1.1")]
    assert told == [(0.5, "0 of 2 engines are there"), (0.7, "1 of 2 engines are there"), (0.9, "2 of 2 engines are there")]
    assert engines.ids == (9, 7)


def test_a_port_in_use_is_named(ranks: Ranks) -> None:
    """The port at which ranks are to meet is taken: which, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use"):
            _group._store(ranks._engines, "127.0.0.1", port)  # type: ignore[arg-type]


def test_what_cannot_travel_is_refused(ranks: Ranks) -> None:
    """A generator cannot be pickled; no function at all cannot be called."""
    with pytest.raises(InputError, match="cannot travel to the ranks"):
        ranks.run(lambda x: x, (i for i in range(3)))
    with pytest.raises(InputError, match="3 is no function"):
        ranks.run(3)  # type: ignore[arg-type]
    assert ranks.run(_sum_of_ranks, 1) == [1, 1]


def test_a_result_that_cannot_travel_is_the_ranks_error(ranks: Ranks) -> None:
    """The call fails with a sentence, and the ranks stay usable."""
    with pytest.raises(RankError, match="raised TypeError"):
        ranks.run(lambda: (i for i in range(3)))
    assert ranks.run(_sum_of_ranks, 1) == [1, 1]


@pytest.mark.parametrize("library", ["python", "torch", "ipyparallel"])
def test_engines_with_different_versions_are_refused(library: str) -> None:
    """Which library, which version on which ranks; a build's suffix makes no difference."""

    def facts(python: str, **versions: str) -> dict[str, object]:
        return {
            "python": python,
            "host": "a",
            "versions": {"torch": "2.9.0", "ipyparallel": "9.0", "gpulab": "0.1", "cloudpickle": "3"} | versions,
        }

    _group.check_versions([facts("3.11", torch="2.9.0+cpu"), facts("3.11", torch="2.9.0+cu128")])
    other = facts("3.12") if library == "python" else facts("3.11", **{library: "8.5"})
    with pytest.raises(RankError) as caught:
        _group.check_versions([facts("3.11"), other, facts("3.11")])
    assert f"different versions of {library}" in str(caught.value)
    assert "on ranks 0 and 2" in str(caught.value)
    assert "on rank 1" in str(caught.value)


def test_gpulab_that_runs_from_its_source_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was installed there is no metadata, and the module itself is asked; what is not there at all is "none"."""
    found = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name=None: iter(()) if name == "gpulab" else found(name=name))
    assert eval(_group._FACTS)["versions"]["gpulab"] == gl.__version__
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert eval(_group._FACTS)["versions"]["gpulab"] == "none"


def test_engines_without_gpulab_are_refused() -> None:
    """Where none has it, the sentence says so in place of naming versions."""
    versions = {"torch": "2.9.0", "ipyparallel": "9.0", "gpulab": "none", "cloudpickle": "3"}
    with pytest.raises(RankError, match="the engines have no gpulab"):
        _group.check_versions([{"python": "3.11", "host": "a", "versions": versions}] * 2)


def test_two_clusters_side_by_side_and_an_exception_that_ends_one(ranks: Ranks) -> None:
    """Each has its own ranks; the exception leaves no process, the other goes on, and a second stop does nothing."""
    said: list[tuple[float, str]] = []
    second = gl.parallel.cluster(1, progress=lambda fraction, text: said.append((fraction, text)))
    assert repr(second) == "<Ranks: 1 on no machines, not started>"

    def both() -> None:
        with second:
            assert second.run(_sum_of_ranks, 1) == [0]
            assert ranks.run(_sum_of_ranks, 1) == [1, 1]
            seen.extend(below(second))
            raise ZeroDivisionError

    seen: list[psutil.Process] = []
    with pytest.raises(ZeroDivisionError):
        both()
    assert len(seen) >= 3
    assert_gone(seen)
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said)
    assert said[-1] == (1.0, "rank 0 ready")
    second.stop()
    assert repr(second) == "<Ranks: 1 on 1 machine, stopped>"
    with pytest.raises(RankError, match="not running"):
        second.run(_sum_of_ranks, 1)
    assert ranks.run(_sum_of_ranks, 1) == [1, 1]


_KERNEL = """
import sys, time, psutil
import gpulab as gl
ranks = gl.parallel.cluster(1).start()
print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
ranks.run(lambda: time.sleep(600))
"""


def test_nothing_outlives_a_killed_kernel() -> None:
    """A kernel that is killed in the middle of a call takes all processes with it."""
    with subprocess.Popen([sys.executable, "-c", _KERNEL], stdout=subprocess.PIPE, text=True) as kernel:
        try:
            processes = [psutil.Process(int(pid)) for pid in kernel.stdout.readline().split()]  # type: ignore[union-attr]
            assert len(processes) >= 3
            kernel.kill()
            assert_gone(processes)
        finally:
            kernel.kill()


# The guard alone, with a process below it that starts another in a session of its own.
_GUARDED = """
import gc, os, pathlib, sys, tempfile, psutil
from gpulab.parallel._guarded import Guarded
guarded = Guarded(pathlib.Path(tempfile.mkdtemp()), 1)
two = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); subprocess.run(['sleep', '600'])"
guarded.order("process", name="two", command=[sys.executable, "-c", two], log=os.devnull)
while len(found := psutil.Process().children(recursive=True)) < 4:
    pass
print(guarded.folder, *[p.pid for p in found], flush=True)
if sys.argv[1] == "fork" and os.fork() == 0:
    import time
    time.sleep(600)
input()
if sys.argv[1] == "drop":
    del guarded
    gc.collect()
    input()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no sessions on Windows")
@pytest.mark.parametrize("how", ["leave", "drop", "hold", "fork"])
def test_the_guard_ends_all_when_its_owner_is_gone(how: str) -> None:
    """The interpreter's end, a dropped object, a kill, and a kill while a fork of the kernel still holds the pipe."""
    with subprocess.Popen([sys.executable, "-c", _GUARDED, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        forked: list[psutil.Process] = []
        try:
            folder, *pids = kernel.stdout.readline().split()  # type: ignore[union-attr]
            processes = [psutil.Process(int(pid)) for pid in pids]
            if how == "fork":
                while not forked:
                    forked = [p for p in psutil.Process(kernel.pid).children() if p.pid not in {q.pid for q in processes}]
            if how in {"hold", "fork"}:
                kernel.kill()
            else:
                kernel.stdin.write("\n")  # type: ignore[union-attr]
                kernel.stdin.flush()  # type: ignore[union-attr]
            assert_gone(processes)
            assert not Path(folder).exists()
        finally:
            kernel.kill()
            for process in forked:
                process.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_the_guards_own_death_ends_the_ranks_and_is_mended(ranks: Ranks) -> None:
    """Without its guard a cluster ends; the next call says so, and recover() brings all back."""
    processes = below(ranks)
    os.kill(processes[0].pid, signal.SIGKILL)
    assert_gone(processes)
    end = time.monotonic() + 5.0
    while ranks.ready:
        assert time.monotonic() < end
    with pytest.raises(GpulabError, match="watches over the engines"):
        ranks.run(_sum_of_ranks, 1)
    assert ranks.recover().run(_sum_of_ranks, 1) == [1, 1]


def test_each_rank_has_one_thread_unless_told_otherwise() -> None:
    """As torchrun sets OMP_NUM_THREADS=1: ranks share the cores, and several threads each would wait for one another."""
    assert inspect.signature(gl.parallel.cluster).parameters["threads"].default == 1


class Told:
    """What a guard has told, by hand; its ``changed`` is a clock, too: a wait takes the time that it is given, and nothing else does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.waits = folder, 100.0, 0
        self.alive, self.failures, self.ends = True, [], {}  # type: ignore[var-annotated]
        self.changed = self

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""

    def wait(self, seconds: float) -> None:
        """Let the seconds pass."""
        self.now, self.waits = self.now + seconds, self.waits + 1

    def monotonic(self) -> float:
        """Return the seconds so far; who only looks, and never waits, does not get on."""
        self.looks = getattr(self, "looks", 0) + 1
        assert self.looks < 10_000, "somebody looks all the time, and waits for nothing"
        return self.now


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Told:
    """A guard that has started all."""
    made = Told(tmp_path)
    monkeypatch.setattr(_engines, "time", made)
    return made


def test_whoever_waits_for_engines_leaves_them_the_core(told: Told) -> None:
    """Between two looks somebody waits: what comes after a second of the clock is met, and not asked for a thousand times before."""
    engines = _engines.LocalEngines(2, 1)
    engines.guarded = told  # type: ignore[assignment]
    engines._wait(lambda: told.now >= 101.0, "it has not come", "guard.log")
    assert told.now == pytest.approx(101.0, abs=0.1)
    assert 10 <= told.waits <= 1000


@pytest.mark.parametrize("kind", ["local", "profile"])
def test_a_second_interrupt_leaves_no_engine_behind(kind: str) -> None:
    """The first one ends the call in the block, the second one meets the client while it closes: the guard is told to end all the same."""
    ended: list[bool] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    guarded = SimpleNamespace(close=lambda: ended.append(True))
    engines: Any = _engines.LocalEngines(2, 1) if kind == "local" else _profiles.ProfileEngines(2, "site")
    engines.client = SimpleNamespace(close=interrupted)
    engines.guarded = engines._guarded = guarded
    with pytest.raises(KeyboardInterrupt):
        engines.stop()
    assert ended == [True]


@pytest.mark.parametrize(
    ("wrong", "log", "words"),
    [
        ({"ends": {"controller": 3}}, "controller.log", "controller left with exit code 3; its last words: no port"),
        (
            {"ends": {"engine 1": -9}},
            "engine 1.log",
            "engine 1 was ended by signal 9 (SIGKILL), which the system sends where memory runs out",
        ),
        ({"alive": False}, "guard.log", "the process that starts them has ended; its last words: no port"),
        ({"failures": ["OSError: one", "OSError: two"]}, "own.log", "OSError: two; its last words: no port"),
        ({}, "own.log", "nothing came within 7 s; its last words: no port"),
        ({}, "another.log", "nothing came within 7 s"),
    ],
)
def test_why_engines_do_not_come_is_told(told: Told, wrong: dict[str, object], log: str, words: str) -> None:
    """Who has ended and how, with the last line of its log that says something; else what failed, or how long it was waited for."""
    engines = _engines.LocalEngines(2, 1)
    engines.guarded = told  # type: ignore[assignment]
    vars(told).update(wrong)
    (told.folder / log).write_text("loading\nno port\n  \n")
    with pytest.raises(RankError) as caught:
        engines._wait(lambda: False, "they are not there", "own.log", ("engine 1",), seconds=7.0)
    assert words in str(caught.value)
    assert str(caught.value).startswith("cluster: they are not there (")
    assert str(caught.value).endswith(
        "; expected 2 engines on this machine. Free some memory or processor time and start the cluster again; "
        "`gpulab doctor` looks at the installation."
    )
    assert (told.now == 100.0) is bool(wrong)  # what has ended is told at once
    assert told.now <= 107.1


def test_engines_that_ended_are_known_by_their_place(told: Told) -> None:
    """By the generation that runs; all of them where the controller, or the guard itself, is gone; a signal goes to who is named."""
    engines, orders = _engines.LocalEngines(3, 1), []
    engines.guarded, engines._generation = told, 2  # type: ignore[assignment]
    told.ends = {"engine 1.0": 0, "engine 2.1": -11}
    assert engines.deaths() == {1: "was ended by signal 11 (SIGSEGV)"}
    told.order = lambda what, **given: orders.append((what, given))  # type: ignore[attr-defined]
    engines.interrupt([0, 2])
    assert orders == [("signal", {"names": ["engine 2.0", "engine 2.2"], "signal": 2})]
    told.ends["controller"] = 0
    assert engines.deaths() == dict.fromkeys(range(3), "ended with the controller")
    told.alive = False
    assert engines.deaths() == dict.fromkeys(range(3), "ended with the process that watches over the engines")
    engines.interrupt([0])
    assert len(orders) == 1


def test_an_interrupt_is_a_message_where_a_signal_would_end_the_engine(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows os.kill ends a process by any signal but two of the console's (Python's manual); only engines that are there hear."""
    engines, sent = _engines.LocalEngines(3, 1), []
    engines.guarded, engines.ids = told, (4, 5, 6)  # type: ignore[assignment]
    engines.client = SimpleNamespace(ids=[4, 6], send_signal=lambda *what, **where: sent.append((what, where)))
    monkeypatch.setattr(sys, "platform", "win32")
    engines.interrupt([0, 1])
    engines.interrupt([1])
    assert sent == [((signal.SIGINT,), {"targets": [4], "block": False})]


@pytest.mark.parametrize("number", [2, "SIGINT"])
def test_a_message_interrupts_the_function_and_not_the_engines_life(number: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heard in the thread of control messages; the main thread gets what Ctrl-C gives it, without os.kill, and an answer is sent."""
    sent: list[object] = []
    kernel = SimpleNamespace(session=SimpleNamespace(send=lambda *what, **more: sent.append(what[1])))
    monkeypatch.setattr("ipykernel.ipkernel.IPythonKernel.instance", lambda: kernel)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    message = {"content": {"sig": number}}
    control = threading.Thread(target=_rank._on_signal_request, args=(None, None, message))

    def until_heard() -> None:
        control.start()
        control.join()
        signal.getsignal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        until_heard()
    control.join()
    assert sent == ["signal_reply"]


def test_as_many_ranks_as_fit_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 350 MiB fit into 1,050 MiB, and not into a byte less; ranks of a profile are other machines' business."""
    free = 3 * 350 * 2**20
    monkeypatch.setattr("gpulab.devices._host.available_memory_bytes", lambda: free)
    gl.parallel.cluster(3)._check_memory()
    free -= 1
    with pytest.raises(OutOfMemoryError) as caught:
        gl.parallel.cluster(3)._check_memory()
    assert str(caught.value) == (
        "cluster: 3 ranks need about 1.03 GiB (350 MiB each) and 1.03 GiB are free; expected them to fit. Ask for 2 at most, or free some."
    )
    gl.parallel.cluster(3, profile="site")._check_memory()


def test_nobody_recovers_ranks_that_work(ranks: Ranks) -> None:
    """In one sentence, and the call in progress goes on."""
    with ranks._busy, pytest.raises(RankError, match=r"^recover: a call is in progress on these ranks; .*interrupt\(\) first"):
        ranks.recover()
    assert ranks.ready


def _of_a_fork() -> tuple[object, ...]:
    """What an engine has made its own."""
    mine = os.getpid() == os.getsid(0)
    score = Path("/proc/self/oom_score_adj").read_text().strip()
    return mine, score, os.read(0, 1), float(np.random.random())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines are forked on Linux only")
def test_each_engine_is_a_process_of_its_own(ranks: Ranks) -> None:
    """Its own session; where memory runs out it goes before the kernel; nothing to read; its own random numbers."""
    first, second = ranks.run(_of_a_fork)
    assert first[:3] == second[:3] == (True, "500", b"")
    assert first[3] != second[3]


def test_each_rank_knows_its_place_on_its_machine() -> None:
    """Of ranks on a, b and a: the local numbers, and how many there are on each, by hand."""
    assert _group._places(("a", "b", "a")) == [_rank.Place(0, 3, 0, 2), _rank.Place(1, 3, 0, 1), _rank.Place(2, 3, 1, 2)]


class Jobs:
    """Engines 5 and 7 and a clock: each answers after its own time, or with its own error."""

    def __init__(self, *answers: tuple[float, object]) -> None:
        self.ids, self.client, self.now, self.dead = (5, 7), self, 50.0, {}  # type: ignore[var-annotated]
        self.answers, self.sent = dict(zip(self.ids, answers, strict=True)), []  # type: ignore[var-annotated]

    def __getitem__(self, engine: int) -> SimpleNamespace:
        seconds, answer = self.answers[engine]

        def get(limit: float) -> object:
            assert limit <= 1.0  # it is there already
            if isinstance(answer, Exception):
                raise answer
            return answer

        job = SimpleNamespace(
            done=lambda: self.now - 50.0 >= seconds, successful=lambda: not isinstance(answer, Exception), get=get,
        )  # fmt: skip
        return SimpleNamespace(apply_async=lambda *call: self.sent.append((engine, *call)) or job)

    def deaths(self) -> dict[int, str]:
        """Return who has ended."""
        return self.dead

    def monotonic(self) -> float:
        """Return the seconds so far."""
        self.looks = getattr(self, "looks", 0) + 1
        assert self.looks < 10_000, "somebody looks all the time, and waits for nothing"
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let them pass."""
        self.now += seconds
        assert self.now < 200.0, "nobody gives up"


def test_what_engines_are_asked_is_answered_in_their_order_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later answer too; an error with its rank; who says nothing for a minute; who died meanwhile, at once."""

    def asked(engines: Jobs, count: int = 2) -> list[object]:
        monkeypatch.setattr(_group, "time", engines)
        return _group._gather(engines, [(len, k) for k in range(count)], "count")  # type: ignore[arg-type]

    engines = Jobs((2.0, "a"), (0.0, "b"))
    assert asked(engines) == ["a", "b"]
    assert engines.sent == [(5, len, 0), (7, len, 1)]
    assert asked(Jobs((0.0, "a"), (9.0, "b")), 1) == ["a"]
    with pytest.raises(RankError, match=r"^cluster: rank 1 could not count \(no\); expected it to\. See") as caught:
        asked(Jobs((0.0, "a"), (0.0, ValueError("no"))))
    assert (caught.value.ranks, type(caught.value.__cause__)) == ((1,), ValueError)
    engines = Jobs((0.0, "a"), (99.0, "b"))
    with pytest.raises(RankError) as caught:
        asked(engines)
    assert str(caught.value) == (
        "cluster: rank 1 did not answer in 60 s while the ranks were to count; expected all to. Start the cluster again."
    )
    assert (caught.value.ranks, engines.now) == ((1,), pytest.approx(110.0, abs=0.11))
    engines = Jobs((99.0, "a"), (99.0, "b"))
    engines.dead = {0: "left with exit code 1"}
    with pytest.raises(RankError, match=r"^cluster: rank 0 left with exit code 1 while the ranks were to count") as caught:
        asked(engines)
    assert (caught.value.ranks, engines.now) == ((0,), 50.0)


@pytest.mark.parametrize(("answers", "dead", "closed", "seconds"), [
    (((2.0, None), (0.0, None)), {}, True, 2.0), (((2.0, None), (0.0, OSError())), {}, False, 2.0),
    (((9.0, None), (0.0, None)), {}, False, 3.0),
    (((9.0, None), (9.0, None)), {1: "died"}, False, 0.0),
])  # fmt: skip
def test_a_group_is_closed_where_all_leave_it_in_three_seconds(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[tuple[float, object], ...], dead: dict[int, str], closed: bool, seconds: float
) -> None:
    """All of them, and in order; whoever hangs, fails or dies leaves it open."""
    engines = Jobs(*answers)
    engines.dead = dead
    monkeypatch.setattr(_group, "time", engines)
    assert _group.close(engines) is closed  # type: ignore[arg-type]
    assert engines.now - 50.0 == pytest.approx(seconds, abs=0.11)


@pytest.mark.parametrize("far", [False, True])
def test_a_group_is_opened_step_by_step(monkeypatch: pytest.MonkeyPatch, far: bool) -> None:
    """By hand for three ranks: versions, threads, GPUs, where rank 0 is met (from the controller's side on several machines), the join.

    Each rank is met at its own address on the way to rank 0, whose own is the meeting's.
    """
    hosts = ("a", "b", "a") if far else ("a", "a", "a")
    done: list[Any] = []
    facts = [{"python": "3.11", "host": host, "versions": dict.fromkeys(_group._LIBRARIES, "1")} for host in hosts]
    answers = {
        "tell their versions": facts, "load torch": [None] * 3, "count their GPUs": [2, 1, 2], "find their address": ["10.0.0.1", "x", "y"],
        "open the process group": [None] * 3,
    }  # fmt: skip

    def gather(engines: Any, calls: list[Any], doing: str) -> list[Any]:
        done.append((doing, calls))
        return list(answers[doing])[: len(calls)]

    monkeypatch.setattr(_group, "_gather", gather)
    monkeypatch.setattr(_group, "_store", lambda engines, address, port: done.append(("store", address, port)) or 4711)
    engines: Any = SimpleNamespace(ids=(4, 5, 6), address="10.9.9.9")
    assert _group.open_on(engines, 7.0, 3, None, 80) == hosts
    places = [_rank.Place(k, 3, (0, 0, 1)[k] if far else k, (2, 1, 2)[k] if far else 3) for k in range(3)]
    backend = "cpu:gloo,cuda:nccl" if far else "gloo"  # two GPUs are there for two ranks on a and one on b, not for three on a
    join = [
        (_rank.open_group, place, "10.0.0.1", 4711, own, 7.0, backend) for place, own in zip(places, ("10.0.0.1", "x", "y"), strict=True)
    ]
    assert done == [
        ("tell their versions", [(eval, _group._FACTS)] * 3), ("load torch", [(_rank.set_threads, 3)] * 3),
        ("count their GPUs", [(_rank.gpus,)] * 3), ("find their address", [(_rank.address_towards, "10.9.9.9" if far else "127.0.0.1")]),
        ("store", "10.0.0.1", 80), ("find their address", [(_rank.address_towards, "10.0.0.1")] * 3), ("open the process group", join),
    ]  # fmt: skip


def test_a_store_that_fails_otherwise_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in use is the caller's argument, whoever names it how; anything else is the rank's; its port is a plain number."""
    engines: Any = SimpleNamespace(ids=(4,))
    asked: list[Any] = []
    monkeypatch.setattr(_group, "_gather", lambda engines, calls, doing: asked.append((calls, doing)) or ["4711"])
    assert _group._store(engines, "here", 80) == 4711
    assert asked == [([(_rank.open_store, "here", 80)], "open the port")]
    for words, kind in (("EADDRINUSE", InputError), ("the Address Already In Use", InputError), ("no route", RankError)):

        def fail(*given: Any, words: str = words) -> Any:
            raise RankError("cluster: rank 0 could not open the port") from OSError(words)

        monkeypatch.setattr(_group, "_gather", fail)
        with pytest.raises(kind) as caught:
            _group._store(engines, "here", 80)
        assert ("port 80 is in use on rank 0's machine; expected a free one." in str(caught.value)) is (kind is InputError)


class Engines:
    """Engines of a stand-in cluster: what is done to them, in order; who has died."""

    client, ids, address = None, (1, 2), "127.0.0.1"

    def __init__(self, fails: str = "") -> None:
        self.done, self.dead, self.fails = [], {}, fails  # type: ignore[var-annotated]

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what == self.fails:
            raise RankError(f"cluster: {what} failed")

    def start(self, progress: Any) -> None:
        """Start."""
        self._do("start")

    def renew(self, progress: Any) -> None:
        """Renew."""
        self._do("renew")
        self.dead.clear()

    def stop(self) -> None:
        """End."""
        self._do("stop")

    def deaths(self) -> dict[int, str]:
        """Return who has ended."""
        return self.dead


def standing(
    monkeypatch: pytest.MonkeyPatch, engines: Engines, opens: Sequence[bool] = (True,) * 9, closes: bool = True
) -> tuple[Ranks, list[Any]]:
    """Ranks on engines that stand in, whose group opens and closes as told; and what was told of the start."""
    told: list[Any] = []
    ranks = gl.parallel.cluster(2, progress=lambda *given: told.append(given))
    come = iter(opens)

    def opened(given: Any, *options: Any) -> tuple[str, ...]:
        engines.done.append(("open", options))
        if not next(come):
            raise RankError("cluster: no group")
        return ("a", "a")

    monkeypatch.setattr(ranks, "_new_engines", lambda: engines)
    monkeypatch.setattr(ranks, "_check_memory", lambda: engines.done.append("memory"))
    monkeypatch.setattr(_group, "open_on", opened)
    monkeypatch.setattr(_group, "close", lambda given: engines.done.append("close") or closes)
    return ranks, told


OPEN = ("open", (20.0, 1, None, 0))


def test_a_start_checks_memory_starts_engines_and_opens_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; a second start does nothing; the end is told; a stop ends the engines, and a second one does nothing."""
    engines = Engines()
    ranks, told = standing(monkeypatch, engines)
    with ranks as entered:
        assert entered is ranks
        assert ranks.start() is ranks
        assert engines.done == ["memory", "start", OPEN]
        assert told == [(0.9, "opening the process group"), (1.0, "ranks 0 and 1 ready")]
        assert (ranks.ready, repr(ranks)) == (True, "<Ranks: 2 on 1 machine, ready>")
        engines.dead[1] = "left with exit code 3"
        assert (ranks.ready, repr(ranks)) == (False, "<Ranks: 2 on 1 machine, broken>")
        with pytest.raises(GpulabError) as caught:
            ranks.run(len)
        assert str(caught.value) == "run: rank 1 left with exit code 3; expected every rank to be alive. Call recover() to go on."
        assert caught.value.ranks == (1,)  # type: ignore[attr-defined]
    ranks.stop()
    assert engines.done[-2:] == [OPEN, "stop"]
    assert repr(ranks) == "<Ranks: 2 on 1 machine, stopped>"
    with pytest.raises(
        RankError, match=r"^run: the ranks are not running; .* Use `with cluster\(\.\.\.\) as ranks:`, or call start\(\)\.$"
    ):
        ranks.run(len)


@pytest.mark.parametrize(
    ("fails", "opens", "done"), [("start", (True,), ["memory", "start", "stop"]), ("", (False,), ["memory", "start", OPEN, "stop"])]
)
def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, fails: str, opens: Sequence[bool], done: list[Any]) -> None:
    """Whether engines or their group do not come up, all is ended, and the error goes on."""
    engines = Engines(fails)
    ranks, _ = standing(monkeypatch, engines, opens)
    with pytest.raises(RankError):
        ranks.start()
    assert (engines.done, ranks.ready) == (done, False)


@pytest.mark.parametrize(
    ("dead", "closes", "opens", "done"),
    [
        ({}, True, (True, True), ["close", OPEN]),  # all alive and idle: they stay
        ({}, False, (True, True), ["close", "renew", OPEN]),  # one hangs
        ({}, True, (True, False, True), ["close", OPEN, "renew", OPEN]),  # they do not come together again
        ({1: "died"}, True, (True, True), ["renew", OPEN]),
    ],
)
def test_recovery_keeps_engines_where_it_can(
    monkeypatch: pytest.MonkeyPatch, dead: dict[int, str], closes: bool, opens: Sequence[bool], done: list[Any]
) -> None:
    """A new group among those that are there, else new engines; ready in the end; ranks that were never started start."""
    engines = Engines()
    ranks, told = standing(monkeypatch, engines, opens, closes)
    assert ranks.recover() is ranks
    assert engines.done == ["memory", "start", OPEN]
    engines.done.clear()
    told.clear()
    engines.dead |= dead
    ranks._broken = "out of step"
    words = "rank 1 died" if dead else r"the ranks are out of step \(out of step\); expected them in step\. Call recover\(\)\.$"
    with pytest.raises(RankError, match=rf"^run: {words}"):
        ranks.run(len)
    assert ranks.recover() is ranks
    assert (engines.done, ranks.ready, ranks._busy.locked()) == (done, True, False)
    assert told[0] == ((0.9, "opening the process group") if dead else (0.1, "closing the old process group"))


def test_a_recovery_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """New engines do not come up: nothing is left running, the lock is let go, and another start starts anew."""
    engines = Engines("renew")
    ranks, _ = standing(monkeypatch, engines)
    ranks.start()
    engines.dead[0] = "died"
    with pytest.raises(RankError, match="renew failed"):
        ranks.recover()
    assert (engines.done[-2:], ranks._busy.locked(), ranks._engines) == (["renew", "stop"], False, None)


def test_engines_are_this_machines_or_a_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whether a profile was named; with as many threads, or of that name."""
    local: Any = gl.parallel.cluster(3, threads=2)._new_engines()
    assert (type(local), local.n, local.threads) == (_engines.LocalEngines, 3, 2)
    site: Any = gl.parallel.cluster(3, profile="site")._new_engines()
    assert (type(site), site.n, site.profile) == (_profiles.ProfileEngines, 3, "site")


def test_a_learner_sees_how_far_the_start_is_and_px_reaches_these_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook or a terminal of IPython alone; ranks of an instrument leave the magic to the learner's own."""
    from gpulab.parallel import _cluster

    asked: list[Any] = []
    view = SimpleNamespace(block=False, activate=lambda: asked.append(("activate", view.block)))

    class Client:
        def __getitem__(self, ids: list[int]) -> Any:
            asked.append(ids)
            return view

    engines = Engines()
    engines.client = Client()  # type: ignore[assignment]
    for there, shell, sees in ((False, None, False), (True, None, False), (True, object(), True)):
        asked.clear()
        view.block = False
        if there:
            monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        else:
            monkeypatch.delitem(sys.modules, "IPython", raising=False)
        _cluster._print(0.5, "half")
        _cluster._activate(engines)  # type: ignore[arg-type]
        assert capsys.readouterr().out == ("cluster: half\n" if sees else "")
        assert asked == ([[1, 2], ("activate", True)] if sees else [])
    ranks, _ = standing(monkeypatch, engines)
    asked.clear()
    ranks.px = False
    ranks.start()
    assert asked == []
    assert Ranks.px is True


def test_why_ranks_are_out_of_step_is_short() -> None:
    """The first half of the error's sentence, without whose it is; long ones are cut."""
    from gpulab.parallel import _cluster

    assert _cluster._short(RankError("run: rank 1 raised ValueError: x; expected a result. Mend it.")) == "rank 1 raised ValueError: x"
    assert len(_cluster._short(RankError(f"run: {'x' * 500}"))) <= 120


def test_new_engines_take_the_place_of_those_that_ended(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are killed and their ends awaited for five seconds, the controller's list too; where it or the guard is gone, all begins anew."""
    engines, done = _engines.LocalEngines(2, 1), []  # type: ignore[var-annotated]
    engines.guarded, engines._generation, engines.ids = told, 3, (7, 8)  # type: ignore[assignment]
    told.order = lambda what, **given: done.append((what, given))  # type: ignore[attr-defined]
    engines.client = SimpleNamespace(ids=[7])

    def wait(condition: Callable[[], bool], failed: str, log: str, names: Sequence[str] = (), seconds: float = -1.0) -> None:
        assert not condition()
        told.ends |= {"engine 3.0": 0}
        assert not condition()
        told.ends |= {"engine 3.1": -9}
        assert condition()
        done.append((failed, log, seconds))

    def forget(seconds: float) -> None:
        told.now += seconds
        if told.now >= 101.0:
            engines.client.ids = [9]

    monkeypatch.setattr(engines, "_wait", wait)
    monkeypatch.setattr(told, "sleep", forget, raising=False)
    monkeypatch.setattr(engines, "_launch", lambda progress, fraction: done.append(("launch", fraction, round(told.now, 1))))
    engines.renew(lambda *given: done.append(given))
    assert done == [
        ("kill", {"names": ["engine 3.0", "engine 3.1"]}), ("the old engines could not be ended", "guard.log", 5.0),
        (0.2, "starting new engines"), ("launch", 0.2, 101.0),
    ]  # fmt: skip
    engines.client.ids = [7]
    told.now = 200.0
    monkeypatch.setattr(told, "sleep", lambda seconds: setattr(told, "now", told.now + seconds), raising=False)
    engines._until_forgotten()  # a controller that forgets nobody is not waited for longer
    assert told.now == pytest.approx(205.0, abs=0.05)
    for gone in ({"ends": {"controller": 1}}, {"ends": {}, "alive": False}):
        vars(told).update(gone)
        done.clear()
        monkeypatch.setattr(engines, "stop", lambda: done.append("stop"))
        monkeypatch.setattr(engines, "start", lambda progress: done.append("start"))
        engines.renew(print)
        assert done == ["stop", "start"]


def test_the_controller_hears_of_an_engine_of_this_generation_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number there; before all are registered, and of others, it hears nothing."""
    engines, heard = _engines.LocalEngines(2, 1), []  # type: ignore[var-annotated]
    engines._generation = 2
    monkeypatch.setattr(_engines, "unregister", lambda *given: heard.append(given))
    engines.ids = (7, 8)
    engines._engine_ended("engine 2.1")  # there is no controller yet
    engines._controller = "the controller"  # type: ignore[assignment]
    for name in ("engine 1.1", "controller", "engine 2.1"):
        engines._engine_ended(name)
    engines.ids = ()
    engines._engine_ended("engine 2.0")
    assert heard == [("the controller", [8])]


def test_a_start_on_this_machine_goes_by_guard_controller_libraries_and_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Folders first, then each is ordered and awaited, with its log, and told; the command opens the controller to this machine alone."""
    done: list[Any] = []
    folder = tmp_path / "work"
    folder.mkdir()

    class Guard:
        forks: bool | None = None

        def __init__(self, place: Path, threads: int, on_end: Any) -> None:
            done.append((sorted(each.name for each in place.iterdir()), threads, on_end() == engines._engine_ended))

        def order(self, what: str, **given: Any) -> None:
            done.append((what, given))

    def wait(condition: Callable[[], bool], failed: str, log: str) -> None:
        assert not condition()
        (folder / "security" / "ipcontroller-client.json").touch()
        Guard.forks = False if "libraries" in failed else None
        assert condition()
        done.append((failed, log))

    engines = _engines.LocalEngines(2, 3)
    monkeypatch.setattr(_engines.tempfile, "mkdtemp", lambda prefix: str(folder) if prefix == "gpulab-cluster-" else "")
    monkeypatch.setattr(_engines, "Guarded", Guard)
    monkeypatch.setattr(_engines, "Controller", SimpleNamespace(read=lambda place: f"controller in {place.name}"))
    monkeypatch.setattr(_engines, "connect", lambda file: f"client of {file.name}")
    monkeypatch.setattr(engines, "_wait", wait)
    monkeypatch.setattr(engines, "_launch", lambda progress, fraction: done.append(("launch", fraction, engines.client)))
    engines.start(lambda *given: done.append(given))
    command = _engines._controller_command(folder)
    assert done == [
        (0.0, "starting the controller"), (["log", "pid", "security"], 3, True),
        ("process", {"name": "controller", "command": command, "log": str(folder / "controller.log")}), ("load", {}),
        ("the controller has not come up", "controller.log"), (0.1, "loading torch and the engines"),
        ("the libraries of the engines were not loaded", "guard.log"), ("launch", 0.5, "client of ipcontroller-client.json"),
    ]  # fmt: skip
    assert engines._controller == "controller in security"  # type: ignore[comparison-overlap]
    assert command[:3] == [sys.executable, "-m", "ipyparallel.controller"]
    assert {f"--profile-dir={folder}", "--ip=127.0.0.1", "--nodb"} <= set(command)


def test_how_a_process_ended_in_words(tmp_path: Path) -> None:
    """Zero is a code too; a signal that Python does not name has its number; a log's last line is cut at 200 characters."""
    assert [_engines.ending(code) for code in (0, -9, -250)] == [
        "left with exit code 0", "was ended by signal 9 (SIGKILL), which the system sends where memory runs out", "was ended by signal 250",
    ]  # fmt: skip
    (tmp_path / "log").write_text(f"first\n  {'x' * 300}  \n\n")
    assert _engines.last_line(tmp_path / "log") == "x" * 200
    (tmp_path / "log").write_text(" \n")
    assert _engines.last_line(tmp_path / "log") == _engines.last_line(tmp_path / "none") == ""
