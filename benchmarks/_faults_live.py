"""Real faults on this machine: a thread, a neighbour on the same core, a helper that sends SIGSTOP,
a control group.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from gpulab.devices import conditions
from gpulab.timing import Measurement, measure

ELEMENTS = 100_000
LIVE_DEADLINE = 1.0


def work_on(x: np.ndarray, y: np.ndarray) -> None:
    """Work for about a quarter of a millisecond on one core."""
    np.sqrt(x, out=y)
    np.exp(y, out=y)


def arrays(elements: int = ELEMENTS) -> tuple[np.ndarray, np.ndarray]:
    """Return an input and an output."""
    return np.random.default_rng(0).random(elements), np.empty(elements)


class Handed:
    """Hands its work to a thread and returns at once, like an asynchronous call that is not
    synchronized. Only one piece of work runs at a time.
    """

    def __init__(self) -> None:
        self.free = threading.Semaphore(1)
        self.data = arrays(4_000_000)

    def __call__(self) -> None:
        """Start the work unless the previous work is still running; return at once."""
        if self.free.acquire(blocking=False):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        work_on(*self.data)
        self.free.release()


def live_unsynchronised(_: int) -> Measurement:
    """Two passes over 64 MB, and the clock stops before they are done."""
    handed = Handed()
    nbytes = 2.0 * sum(array.nbytes for array in handed.data)
    return measure(handed, nbytes=nbytes, deadline=LIVE_DEADLINE)


def live_compiling(seed: int) -> Measurement:
    """The first call compiles 2,000 functions with Python's own compiler."""
    made: dict[str, object] = {}
    x, y = arrays()

    def call() -> None:
        if not made:
            exec(
                compile(
                    "\n".join(f"def f{i}(x): return x * {i} + {seed}" for i in range(2000)),
                    "<compiled>",
                    "exec",
                ),
                made,
            )
        work_on(x, y)

    return measure(call, deadline=LIVE_DEADLINE)


def live_cached(_: int) -> Measurement:
    """An addition of 64 KiB arrays that never leave the cache."""
    x, y = arrays(8192)
    return measure(np.add, x, x, y, nbytes=2.0 * x.nbytes, deadline=LIVE_DEADLINE)


@contextlib.contextmanager
def pinned() -> Iterator[int]:
    """Keep this process on one core."""
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def helper(code: str, *arguments: object) -> Iterator[None]:
    """Run a helper process beside the block, and end it afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdout is not None:
            process.stdout.readline()  # it prints a line when it is ready
        yield
    finally:
        process.kill()
        process.wait()


_NEIGHBOUR = (
    "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print('ready', "
    "flush=True)\nwhile True: pass"
)
_STOPPER = """
import os, signal, sys, time
print('ready', flush=True)
time.sleep(float(sys.argv[2])); os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(float(sys.argv[3])); os.kill(int(sys.argv[1]), signal.SIGCONT)
time.sleep(60)
"""


def live_contended(_: int) -> Measurement:
    """Another process keeps the same core busy all the time."""
    x, y = arrays()
    with pinned() as core, helper(_NEIGHBOUR, core):
        return measure(work_on, x, y, deadline=LIVE_DEADLINE)


def live_stopped(seed: int) -> Measurement:
    """SIGSTOP for 0.1 to 0.3 s, somewhere in the measurement."""
    x, y = arrays()
    draw = random.Random(seed)
    with helper(_STOPPER, os.getpid(), 0.05 + 0.2 * draw.random(), 0.1 + 0.2 * draw.random()):
        return measure(work_on, x, y, deadline=LIVE_DEADLINE)


def _make_cgroup() -> tuple[pathlib.Path, pathlib.Path] | None:
    """Return a control group with a fifth of a core, and the process's own, to which it goes back;
    None if the machine does not allow making one.
    """
    root = pathlib.Path("/sys/fs/cgroup")
    for parent, quota, value, controller in (
        (root / "cpu", "cpu.cfs_quota_us", "20000", "cpu"),
        (root, "cpu.max", "20000 100000", ""),
    ):
        group = parent / f"gpulab-benchmark-{os.getpid()}"
        try:
            group.mkdir()
            (group / quota).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
        places = {
            name: path
            for _, names, path in (x.split(":", 2) for x in lines)
            for name in names.split(",")
        }
        own = parent / places.get(controller, "").lstrip("/")
        # in a container the path may be the host's
        return group, own if own.is_dir() else parent
    return None


def live_throttled(_: int) -> Measurement | None:
    """A control group that gives a fifth of a core; None if none can be made."""
    made = _make_cgroup()
    if made is None:
        return None
    group, own = made
    x, y = arrays()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        conditions._cpu_stats.cache_clear()  # gpulab caches the groups of its process
        return measure(work_on, x, y, deadline=LIVE_DEADLINE)
    finally:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        conditions._cpu_stats.cache_clear()
        time.sleep(0.05)
        group.rmdir()


def live_clean(seed: int) -> Measurement:
    """Undisturbed work after a warm-up call: element-wise, a sort, or pure Python."""
    x, y = arrays()
    kind = seed % 3
    fn: Callable[..., object] = (
        work_on
        if kind == 0
        else (lambda a, b: np.sort(a[:20_000]))
        if kind == 1
        else (lambda a, b: sum(range(20_000)))
    )
    fn(x, y)
    return measure(fn, x, y, deadline=LIVE_DEADLINE)


LIVE: dict[str, tuple[Callable[[int], Measurement | None], str]] = {
    "missing synchronise": (live_unsynchronised, "implausible"),
    "compiling first call": (live_compiling, "slow-first-call"),
    "warm cache": (live_cached, "warm-cache"),
    "competing process on the core": (live_contended, "contended"),
    "SIGSTOP": (live_stopped, "stalled"),
    "quota of a control group": (live_throttled, "throttled"),
}
