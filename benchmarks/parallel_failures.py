"""Kill ranks at random moments, in all strategies and collectives: how soon the dead rank is named,
how soon the ranks work again, and which processes are left. Then let all ranks stop while
``recover`` sets them up.

Run: ``.venv/bin/python benchmarks/parallel_failures.py [--kills 50] [--skips 12] [--ranks 2]
[--seed 0] [--quick]``. It fails if a bound is violated: a death is named within 5 s, a skipped
collective within 5 s after the timeout, recovery takes at most 30 s, and no process is left. The
timeout of a skipped collective is counted from the start of the call, so the calls before it are in
the figure. On more than two ranks the strategies that cut the network into stages are left out.
``tests/parallel`` has a few such cases; ``make soak`` runs all.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

import gpulab as gl
from gpulab import training
from gpulab.errors import CollectiveTimeoutError, RankDiedError
from gpulab.parallel import Ranks
from gpulab.parallel._train import TrainingJob, train_on_rank

NAMED_SECONDS, RECOVERED_SECONDS = 5.0, 30.0
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
# A kill comes at most this long after the start of the call: while a model is made, in the first
# step, or in a later one.
_LATEST_SECONDS = 4.0
_STEPS = 10_000
_TIMEOUT_SECONDS = 5.0  # of the cluster in which a rank skips a collective
_MOST_CALLS = 200  # before the skipped one, at most


@dataclass(frozen=True)
class Kill:
    """One kill or skip: the work, the rank, the signal (of a skip: what the rank did instead), and
    the seconds until the rank was named and until all ranks worked again.
    """

    work: str
    rank: int
    signal: str
    named_seconds: float
    recovered_seconds: float
    waiting: bool

    @property
    def line(self) -> str:
        """The kill in one line."""
        return (
            f"{self.work:20} rank {self.rank} {self.signal:8} named after "
            f"{self.named_seconds:5.2f} s, usable after {self.recovered_seconds:5.2f} "
            f"s{', others waited' if self.waiting else ''}"
        )


def collective_for_ever(name: str, skipper: int = -1, number: int = -1, then: str = "") -> None:
    """Repeat a collective on each rank. The rank ``skipper`` leaves out call ``number``, and
    returns or sleeps instead.
    """
    import itertools
    import time

    import torch
    import torch.distributed as dist

    n = dist.get_world_size()
    whole = torch.ones(n * 1000)
    parts = list(torch.ones(n, 1000))
    for call in itertools.count():
        if call == number and dist.get_rank() == skipper:
            if then == "returns":
                return
            time.sleep(600)
        if name == "all_reduce":
            dist.all_reduce(whole)
        elif name == "all_gather":
            dist.all_gather(parts, parts[0].clone())
        elif name == "reduce_scatter":
            dist.reduce_scatter_tensor(parts[0].clone(), whole)
        elif name == "broadcast":
            dist.broadcast(whole, 0)
        elif name == "all_to_all":
            dist.all_to_all_single(whole.clone(), whole)
        else:
            dist.barrier()


def call_for(work: str) -> tuple[Any, ...]:
    """Return the function and its arguments that keep ranks busy with some work: a collective, or a
    training by a strategy.
    """
    if work in COLLECTIVES:
        return collective_for_ever, work
    task = training.task("prose-transformer")
    job = TrainingJob(
        work,
        task.name,
        steps=_STEPS,
        batch_size=task.batch_size,
        dtype="float32",
        optimizer="adam",
        learning_rate=task.learning_rate,
        microbatches=4,
        bucket_bytes=2**16,
        seed=0,
    )
    return train_on_rank, job, None


def all_reduce_works() -> float:
    """Return, on each rank, an all-reduce of ones, which is the number of ranks that work."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    return float(one)


def kill_once(ranks: Ranks, work: str, rng: random.Random) -> Kill:
    """Kill a rank at a random moment of some work; return how soon it was named and replaced."""
    victim = rng.randrange(ranks.n)
    number = rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT))
    call = call_for(work)  # before the clock starts, since this loads modules for seconds
    pid = ranks.run(os.getpid)[victim]
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(pid, number)

    timer = threading.Timer(rng.uniform(0.05, _LATEST_SECONDS), kill)
    timer.start()
    try:
        ranks.run(*call)
        raise SystemExit(f"{work}: the call returned though rank {victim} was killed")
    except RankDiedError as error:
        named = time.monotonic() - killed[0]
        if error.ranks != (victim,):
            raise SystemExit(
                f"{work}: rank {victim} was killed and {error.ranks} named: {error}"
            ) from error
        waiting = bool(error.waiting)
    finally:
        timer.cancel()
    begin = time.monotonic()
    working = ranks.recover().run(all_reduce_works)
    if working != [float(ranks.n)] * ranks.n:
        raise SystemExit(f"{work}: after recover() an all-reduce of ones gives {working}")
    return Kill(work, victim, number.name, named, time.monotonic() - begin, waiting)


def skip_once(ranks: Ranks, work: str, rng: random.Random) -> Kill:
    """Let a rank skip a collective; return how long after the timeout it was named, and how soon
    all work again.
    """
    # the other ranks of a broadcast wait only for its root
    skipper = 0 if work == "broadcast" else rng.randrange(ranks.n)
    then = rng.choice(("returns", "sleeps"))
    begin = time.monotonic()
    try:
        ranks.run(collective_for_ever, work, skipper, rng.randrange(_MOST_CALLS), then)
        raise SystemExit(f"{work}: the call returned though rank {skipper} skipped a collective")
    except CollectiveTimeoutError as error:
        named = time.monotonic() - begin - ranks.timeout_seconds
        if error.ranks != (skipper,):
            raise SystemExit(
                f"{work}: rank {skipper} skipped and {error.ranks} named: {error}"
            ) from error
        waiting = bool(error.waiting)
    begin = time.monotonic()
    if ranks.recover().run(all_reduce_works) != [float(ranks.n)] * ranks.n:
        raise SystemExit(f"{work}: after recover() an all-reduce of ones is wrong")
    return Kill(work, skipper, then, named, time.monotonic() - begin, waiting)


def stop_all(ranks: Ranks) -> float:
    """Let all ranks stop (SIGSTOP) in the next ``recover``, while it sets them up; return the
    seconds until they work again.
    """
    import torch

    def stop(threads: int) -> None:
        signal.raise_signal(signal.SIGSTOP)

    ranks.run(setattr, torch, "set_num_threads", stop)
    begin = time.monotonic()
    if ranks.recover().run(all_reduce_works) != [float(ranks.n)] * ranks.n:
        raise SystemExit("stopped in recover(): afterwards an all-reduce of ones is wrong")
    return time.monotonic() - begin


def skips(ranks: Ranks, count: int, seed: int) -> list[Kill]:
    """Let a rank skip each kind of collective in turn; ``named_seconds`` counts from the
    timeout.
    """
    rng = random.Random(seed)
    found = []
    for i in range(count):
        found.append(skip_once(ranks, COLLECTIVES[i % len(COLLECTIVES)], rng))
        print(f"{found[-1].line} (skipped; after the timeout)", flush=True)
    return found


def kills(ranks: Ranks, count: int, seed: int) -> list[Kill]:
    """Kill a rank ``count`` times, in each kind of work in turn; the order of kinds is random."""
    rng = random.Random(seed)
    works = [*COLLECTIVES, *(name for name in gl.parallel.strategies() if name != "single")]
    if ranks.n > 2:  # the network has two layers
        works = [name for name in works if not name.startswith(("split", "pipeline"))]
    rng.shuffle(works)
    found = []
    for i in range(count):
        found.append(kill_once(ranks, works[i % len(works)], rng))
        print(found[-1].line, flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Kill ranks, print the results, and return 1 if a bound is violated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--skips", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="5 kills, 2 skips")
    chosen = parser.parse_args(arguments)
    kill_count, skip_count = (5, 2) if chosen.quick else (chosen.kills, chosen.skips)
    with gl.parallel.cluster(chosen.ranks, timeout_seconds=20) as ranks:
        killed = kills(ranks, kill_count, chosen.seed)
        left = psutil.Process().children(recursive=True)
    with gl.parallel.cluster(chosen.ranks, timeout_seconds=_TIMEOUT_SECONDS) as ranks:
        skipped = skips(ranks, skip_count, chosen.seed)
        stopped_seconds = stop_all(ranks)
        left += psutil.Process().children(recursive=True)
    orphans = psutil.wait_procs(left, timeout=10)[1]
    works = len({kill.work for kill in killed})
    print(
        f"{chosen.ranks} ranks: {kill_count} kills over {works} kinds of work, {skip_count} "
        "skipped collectives"
    )
    worst = [
        _summary("killed", killed),
        _summary(f"skipped, after the timeout of {_TIMEOUT_SECONDS:g} s", skipped),
    ]
    print(f"stopped in recover(): usable after {stopped_seconds:.2f} s")
    print(f"processes left: {len(orphans)}")
    return int(
        any(named > NAMED_SECONDS or usable > RECOVERED_SECONDS for named, usable in worst)
        or stopped_seconds > RECOVERED_SECONDS
        or bool(orphans)
    )


def _summary(what: str, found: list[Kill]) -> tuple[float, float]:
    """Print medians and maxima; return the maxima."""
    if not found:
        return 0.0, 0.0
    named, usable = (
        [kill.named_seconds for kill in found],
        [kill.recovered_seconds for kill in found],
    )
    print(
        f"{what}: named after {statistics.median(named):.2f} s, at most {max(named):.2f} s",
        end="; ",
    )
    print(f"usable after {statistics.median(usable):.2f} s, at most {max(usable):.2f} s")
    return max(named), max(usable)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
