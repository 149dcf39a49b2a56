"""A cluster: functions run on every rank, and nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gpulab as gl
import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from gpulab.errors import InputError, OutOfMemoryError, RankDiedError, RankError
from gpulab.parallel import Ranks

from refusals import refused

pytestmark = pytest.mark.slow


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether processes end within half a minute."""
    return psutil.wait_procs(list(processes), timeout=30)[1] == []


def below() -> set[psutil.Process]:
    """Return all Python descendants of this process, so not a browser that other tests started."""
    children = psutil.Process().children(recursive=True)
    return {one for one in children if one.is_running() and "python" in one.name()}


def work(array: np.ndarray, *, tensor: torch.Tensor) -> dict[str, Any]:
    """Sum over ranks, print, and return the arguments and where this runs."""
    array += dist.get_rank()
    total = torch.full((1000,), float(array[0]))
    dist.all_reduce(total)
    print(f"first of {dist.get_rank()}\nsecond")
    return {
        "array": array, "tensor": tensor * 2, "total": float(total[0]), "pid": os.getpid(),
        "environment": [
            int(os.environ[name])
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        ],
        "threads": torch.get_num_threads(), "backend": dist.get_backend(),
        "timeout": dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.seconds,
    }  # fmt: skip


def test_a_function_runs_on_every_rank(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks have torchrun's variables; their results, printed lines and collectives come back."""
    array = np.zeros(3)
    found = ranks.run(work, array, tensor=torch.ones(2))
    for rank, one in enumerate(found):
        assert (one["array"].tolist(), one["tensor"].tolist()) == ([rank] * 3, [2, 2])
        facts = [one[name] for name in ("total", "threads", "backend", "timeout", "environment")]
        assert facts == [1.0, 1, "gloo", 20, [rank, 2, rank, 2]]
    assert (array.tolist(), len({one["pid"] for one in found} | {os.getpid()})) == ([0, 0, 0], 3)
    assert capsys.readouterr().out.splitlines() == [
        f"[rank {rank}] {line}" for rank in range(2) for line in (f"first of {rank}", "second")
    ]
    assert ranks.hosts == (socket.gethostname(),) * 2
    for of_rank in ranks.log:
        (call,) = of_rank
        assert (call.name, call.payload_bytes, call.group, call.seconds >= 0) == (
            "all_reduce",
            4000,
            (0, 1),
            True,
        )


def rooted() -> None:
    """Call what has a root among ranks 1 and 3, with rank 3 as root, then send it a message."""
    pair, here, x = dist.new_group([1, 3]), dist.get_rank(), torch.ones(2, dtype=torch.float64)
    if here % 2:
        parts = [torch.ones(2, dtype=torch.float64) for _ in range(2)] if here == 3 else None
        dist.broadcast(x, 3, group=pair)
        dist.reduce(x, 3, group=pair)
        dist.gather(x, parts, 3, group=pair)
        dist.scatter(x, parts, 3, group=pair)
        dist.send(x, 3) if here == 1 else dist.recv(x, 1)


def test_a_log_tells_the_root_from_the_others(four_ranks: Ranks) -> None:
    """By hand, for 16 bytes on each of two ranks: what the root and the other rank contribute and
    receive; ranks are those of the whole cluster, also in a smaller group.
    """
    four_ranks.run(rooted)
    found = [
        [(one.name, one.input_bytes, one.output_bytes, one.root) for one in of_rank]
        for of_rank in four_ranks.log
    ]
    assert found == [
        [],
        [("broadcast", 0, 16, 3), ("reduce", 16, 0, 3), ("gather", 16, 0, 3),
         ("scatter", 0, 16, 3), ("send", 16, 0, 3)],
        [],
        [("broadcast", 16, 16, 3), ("reduce", 16, 16, 3), ("gather", 16, 32, 3),
         ("scatter", 32, 16, 3), ("recv", 0, 16, 1)],
    ]  # fmt: skip
    kinds = {(one.dtype, one.group) for of_rank in four_ranks.log for one in of_rank}
    assert kinds == {("float64", (1, 3)), ("float64", (0, 1, 2, 3))}


def test_what_cannot_travel_leaves_the_ranks_usable(ranks: Ranks) -> None:
    """A function or argument that cannot be sent is refused; a result becomes its rank's error."""
    for call in ((3,), (len, (i for i in ()))):
        refused(InputError, ranks.run, *call)
    caught = refused(RankError, ranks.run, lambda: (i for i in range(3)))
    assert caught.value.ranks == (0, 1)
    assert ranks.run(dist.get_rank) == [0, 1]


def test_more_ranks_than_memory_are_refused() -> None:
    """The error says how many fit; no process is started."""
    before = below()
    refused(OutOfMemoryError, gl.parallel.cluster(10**6).start)
    assert below() <= before


def test_a_second_cluster_its_threads_and_its_end(ranks: Ranks) -> None:
    """A second cluster has its own ranks. An exception ends it, and so does dropping it: no process
    or thread is left, and the first cluster still works.
    """
    said: list[tuple[float, bool]] = []
    port = 20_000 + os.getpid() % 10_000
    second = gl.parallel.cluster(
        1, threads=2, port=port, progress=lambda part, _: said.append((part, second.ready))
    )
    states, before, threads = [repr(second)], below(), psutil.Process().num_threads()
    with pytest.raises(ZeroDivisionError), second:  # noqa: PT012
        states.append(repr(second))
        mine = below() - before
        chosen = second.run(lambda: (torch.get_num_threads(), os.environ["MASTER_PORT"]))
        assert chosen == [(2, str(port))]
        raise ZeroDivisionError
    states.append(repr(second))
    second.stop()
    gl.parallel.cluster(1).start()  # dropped, as where its cell is run again
    assert (bool(mine), gone(below() - before)) == (True, True)
    end = time.monotonic() + 30
    while psutil.Process().num_threads() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert psutil.Process().num_threads() <= threads
    assert states == [
        "<Ranks: 1 on no machines, not started>", "<Ranks: 1 on 1 machine, ready>",
        "<Ranks: 1 on 1 machine, stopped>",
    ]  # fmt: skip
    assert (said, said[-1]) == (sorted(said), (1.0, False))
    refused(RankError, second.run, dist.get_rank)
    assert ranks.run(dist.get_rank) == [0, 1]


KERNEL = """
import time, psutil, gpulab as gl
ranks = gl.parallel.cluster(1).start()
print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
ranks.run(lambda: time.sleep(600))
"""


def test_nothing_outlives_a_killed_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed kernel's processes end; its folder is removed unless their guard was killed too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for guard_too in (False, True):
        with subprocess.Popen(
            [sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True
        ) as it:
            try:
                processes = [psutil.Process(int(pid)) for pid in it.stdout.readline().split()]
                assert len(processes) >= 2
                if guard_too:
                    next(one for one in processes if one.ppid() == it.pid).kill()
            finally:
                it.kill()
            assert gone(processes)
        assert len(set(tmp_path.glob("gpulab-*"))) == guard_too


def test_a_profiles_engines_are_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that ``ipcluster start`` started, as docs/clusters.md says, run calls as ranks; the
    error names an engine that died.
    """
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    refused(InputError, gl.parallel.cluster(1, profile="site").start)
    (tmp_path / "profile_site").mkdir()
    refused(RankError, gl.parallel.cluster(1, profile="site").start)
    for name, lines in (
        ("ipcluster", "c.Cluster.engine_launcher_class = 'Local'\nc.Cluster.delay = 0.1\n"),
        ("ipcontroller", "c.HeartMonitor.period = 500\nc.IPController.use_threads = True\n"),
    ):
        (tmp_path / "profile_site" / f"{name}_config.py").write_text(lines)
    command = [sys.executable, "-m", "ipyparallel.cluster", "start", "--profile=site", "--n=1"]
    file = tmp_path / "profile_site" / "security" / "ipcontroller-client.json"
    with subprocess.Popen(command) as it:
        try:
            while it.poll() is None and not (
                file.exists() and file.read_text().rstrip().endswith("}")  # complete
            ):
                time.sleep(0.1)
            for _ in range(2):
                with gl.parallel.cluster(1, profile="site") as started:
                    assert started.run(dist.get_world_size) == [1]
            with gl.parallel.cluster(1, profile="site") as started:
                assert refused(RankDiedError, started.run, os._exit, 7).value.ranks == (0,)
        finally:
            it.send_signal(signal.SIGINT)
