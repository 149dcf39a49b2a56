"""gpulab's sampler beside torch.utils.benchmark, timeit and pyperf, in one run: coverage, width,
cost, and bias.

    python benchmarks/timers.py [--runs 300] [--rounds 15] [--out FILE] [--quick]
    python benchmarks/timers.py --gpu [--rounds 2] [--out FILE]

Part 1, synthetic: the processes of ``processes.py`` through an injected clock, calls of 1 ms, 2 s
for each measurement. torch's ``Timer`` takes the clock as its ``timer``; its intervals are the
usual percentile bootstrap of the median of its blocks, as ``Measurement`` gives none. pyperf starts
processes of its own and can't be given a clock, so its default rule is replayed on the same
durations: 60 values of equal length, each the mean of its calls, with the same bootstrap. ``cost``
is the ratio of the samples taken to the samples that an oracle, which knows the autocorrelation,
needs for the same width; ``strict`` is the coverage of the process's own median where clock states
switch. Coverage is the share of the intervals; ``refused`` is the share of runs without one.

Part 2, live: bias on calibrated loops of 100 ns to 1 ms. The call is ``binascii.crc32`` of a
buffer, one C function whose time grows with the buffer and that allocates nothing. Its true time is
a slope: straight-line code with the call written out 2N times takes longer than code with it N
times, by N calls, and neither the loop nor the clock is in the difference. The call's own dispatch
is part of the call, as it is for the program that makes it. Truth and timers take turns within each
round, and the bias is the median over rounds of timer / truth - 1, so that a change of the
machine's speed affects both. Run it on a quiet machine: on a busy one the long blocks of torch,
timeit and pyperf include time in which other programs ran.

With ``--gpu`` the calls are kernels that spin for 2 us to 100 ms (``torch.cuda._sleep``). The truth
is again a slope: between CUDA graphs of N and of 2N kernels, timed by events. ``gl.measure`` times
one call (with its launch, and until the host knows that it is finished), a train of calls, and the
replay of a graph; beside each stands the plain loop of the same quantity: by the host's clock, by
events around the same train, and the truth (bound of the last two: 1 % or 0.3 us a kernel, else
the exit status is 1; a train of kernels of 1 us is as fast as the host launches, whose pace
changes). Then
10,000 launches in a row, more than the queue holds: the launches return at once until it is full,
so a timer that measures only launches finds two different times.
"""

from __future__ import annotations

import argparse
import binascii
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import zlib
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from interval_coverage import Replay
from processes import Process, catalogue

from gpulab.timing import measure
from gpulab.timing.sampling import Limits, make_loops, sample_in_turns

SYNTHETIC = (
    "independent 2%",
    "independent 10%",
    "AR(1) 0.3 10%",
    "AR(1) 0.6 10%",
    "AR(1) 0.9 2%",
    "AR(1) 0.9 10%",
    "states 100 random 2.0%",
    "drift linear +10% noise 2%",
    "tails pareto",
    "interference every 10 +20% noise 2%",
    "interference sine 100 +5% noise 2%",
)
DEADLINE = 2.0
BOOTSTRAPS = 400
TARGETS_SECONDS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
KERNEL_SECONDS = (2e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LAUNCH_SECONDS = 1.5e-6  # of an empty kernel, about
BOUND_RATIO, BOUND_SECONDS = 0.01, 0.3e-6
IN_A_ROW = 10_000
# The timed code looks up local names, as in the truth and in pyperf: global ones cost about 2 ns.
LOCALS = "f, b = function, buffer"


def bootstrap(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float] | None:
    """Return the percentile bootstrap's 95 % interval of the median."""
    if len(values) < 2:
        return None
    medians = np.median(values[rng.integers(0, len(values), (BOOTSTRAPS, len(values)))], axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def by_gpulab(replay: Replay, _rng: np.random.Generator) -> tuple[float, float] | None:
    """Measure with gpulab's sampler."""
    limits = Limits(deadline=DEADLINE)
    (seen,) = sample_in_turns([replay.run], replay.clock, [None], [math.inf], limits)
    return seen.interval_seconds


def _torch_timer(replay: Replay) -> object:
    from torch.utils.benchmark import Timer

    return Timer("call()", globals={"call": lambda: replay.run(1)}, timer=replay.clock)


def by_torch_blocked(replay: Replay, rng: np.random.Generator) -> tuple[float, float] | None:
    """Measure with torch's blocked_autorange."""
    return bootstrap(
        np.array(_torch_timer(replay).blocked_autorange(min_run_time=DEADLINE).times), rng
    )


def by_torch_adaptive(replay: Replay, rng: np.random.Generator) -> tuple[float, float] | None:
    """Measure with torch's adaptive_autorange."""
    return bootstrap(
        np.array(_torch_timer(replay).adaptive_autorange(max_run_time=DEADLINE).times), rng
    )


def by_pyperf_rule(replay: Replay, rng: np.random.Generator) -> tuple[float, float] | None:
    """Replay pyperf's default rule: 20 processes of 3 values, here of equal length within the
    deadline.
    """
    calls = max(1, round(DEADLINE / 1e-3 / 60))
    return bootstrap(np.array([replay.run(calls)[1] / calls for _ in range(60)]), rng)


METHODS: dict[str, Callable[[Replay, np.random.Generator], tuple[float, float] | None]] = {
    "gpulab": by_gpulab,
    "torch blocked_autorange": by_torch_blocked,
    "torch adaptive_autorange": by_torch_adaptive,
    "pyperf's rule": by_pyperf_rule,
}


def synthetic(process: Process, method: str, runs: int) -> dict[str, object]:
    """Return coverage, width and cost of one method on one process."""
    covered, strict, widths, counts, costs = 0, 0, [], [], []
    for run in range(runs):
        rng = np.random.default_rng([3, zlib.crc32(process.name.encode()), run])
        drawn = process.draw(rng, 20_000)
        replay = Replay(drawn.durations_seconds)
        interval = METHODS[method](replay, rng)
        counts.append(replay.calls)
        if interval is None:
            continue
        low, high = process.truth(drawn, replay.calls)
        covered += interval[0] <= high and interval[1] >= low
        strict += interval[0] <= process.median <= interval[1]
        width = (interval[1] - interval[0]) / float(
            np.median(drawn.durations_seconds[: replay.calls])
        )
        widths.append(width)
        if process.oracle_width is not None and width > 0:
            costs.append(replay.calls * (width / process.oracle_width) ** 2)
    given = max(len(widths), 1)
    return {
        "process": process.name,
        "method": method,
        "covered": covered / given,
        "refused": 1 - len(widths) / runs,
        "strict": strict / given if process.family == "states" else None,
        "calls": float(np.mean(counts)),
        "width": float(np.mean(widths)) if widths else math.nan,
        "cost": float(np.mean(costs)) if costs else None,
    }


def straight(calls: int) -> Callable[[Callable[[bytes], int], bytes], float]:
    """Return a function that times ``calls`` calls written one after the other."""
    source = (
        "def block(f, b, clock):\n    start = clock()\n"
        + "    f(b)\n" * calls
        + "    return clock() - start\n"
    )
    scope: dict[str, Callable] = {}
    exec(compile(source, "<straight-line calls>", "exec"), scope)
    return lambda f, b: scope["block"](f, b, time.perf_counter)


def true_seconds(buffer: bytes, target: float) -> float:
    """Return the time of a call from the slope between 2N and N calls in a row, the median of many
    such slopes.
    """
    calls = max(1, min(2000, round(2e-4 / target)))
    once, twice = straight(calls), straight(2 * calls)
    slopes, end = [], time.perf_counter() + max(0.2, 150 * calls * target)
    while time.perf_counter() < end or len(slopes) < 5:
        slopes.append((twice(binascii.crc32, buffer) - once(binascii.crc32, buffer)) / calls)
    return float(np.median(slopes))


def buffer_for(target: float) -> bytes:
    """Return a buffer whose call takes about ``target`` seconds."""
    size = 64
    for _ in range(6):
        size = max(8, int(size * target / max(true_seconds(b"y" * size, target), 1e-9)))
    return b"y" * size


def live_gpulab(buffer: bytes, _target: float) -> float:
    """Return gpulab's median."""
    work, empty = make_loops(binascii.crc32, (buffer,), lambda: None, time.perf_counter)
    limits = Limits(deadline=0.3)
    (seen,) = sample_in_turns([work], time.perf_counter, [empty], [math.inf], limits)
    return float(np.median(seen.samples_seconds))


def live_torch(buffer: bytes, _target: float) -> float:
    """Return the median of torch's blocked_autorange."""
    from torch.utils.benchmark import Timer

    names = {"function": binascii.crc32, "buffer": buffer}
    return float(Timer("f(b)", LOCALS, globals=names).blocked_autorange(min_run_time=0.3).median)


def live_timeit(buffer: bytes, _target: float) -> float:
    """Return the median of timeit's repeats, with the number of calls that its autorange finds
    (shortened to a fifth).
    """
    timer = timeit.Timer("f(b)", LOCALS, globals={"function": binascii.crc32, "buffer": buffer})
    number = max(1, timer.autorange()[0] // 5)
    return float(np.median(timer.repeat(9, number))) / number


def live_pyperf(buffer: bytes, target: float) -> float:
    """Return the median of ``pyperf timeit``'s values, from processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "values.json"
        command = [
            sys.executable,
            "-m",
            "pyperf",
            "timeit",
            "-p",
            "2",
            "-n",
            "3",
            "-w",
            "1",
            "--min-time",
            "0.05",
            "-q",
            "-o",
            str(out),
        ]
        setup = f"import binascii; f = binascii.crc32; b = b'y' * {len(buffer)}"
        subprocess.run([*command, "-s", setup, "f(b)"], check=True, capture_output=True)
        values = [
            value
            for run in json.loads(out.read_text())["benchmarks"][0]["runs"]
            for value in run.get("values", [])
        ]
    return float(np.median(values))


LIVE = {"gpulab": live_gpulab, "torch": live_torch, "timeit": live_timeit, "pyperf": live_pyperf}


def live(target: float, rounds: int) -> dict[str, object]:
    """Return the bias of each timer on a loop of about ``target`` seconds."""
    buffer = buffer_for(target)
    ratios: dict[str, list[float]] = {name: [] for name in LIVE}
    truths = []
    for _ in range(rounds):
        for name, timer in LIVE.items():
            before = true_seconds(buffer, target)
            value = timer(buffer, target)
            truth = (before + true_seconds(buffer, target)) / 2
            truths.append(truth)
            ratios[name].append(value / truth - 1)
    return {
        "target_seconds": target,
        "true_seconds": float(np.median(truths)),
        "true_spread": float(np.subtract(*np.quantile(truths, [0.75, 0.25])) / np.median(truths)),
        "bias": {name: float(np.median(values)) for name, values in ratios.items()},
        "bias_quartiles": {
            name: np.quantile(values, [0.25, 0.75]).tolist() for name, values in ratios.items()
        },
    }


def event_seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Return the seconds per call of ``calls`` calls in a row, between two CUDA events."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


def wall_seconds(run: Callable[[], object], calls: int) -> float:
    """Return the median seconds of single calls by the host's clock, each waited for."""
    import torch

    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def graph_of(run: Callable[[], object], calls: int) -> Callable[[], None]:
    """Return the replay of a CUDA graph of ``calls`` calls, which has been replayed once."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def kernel_of(target: float) -> Callable[[], None]:
    """Return a call of a kernel that spins for about ``target`` seconds."""
    import torch

    torch.cuda._sleep(1_000_000)
    cycles_per_second = 1e7 / event_seconds(lambda: torch.cuda._sleep(10_000_000))
    cycles = max(1, round(cycles_per_second * (target - LAUNCH_SECONDS)))
    return lambda: torch.cuda._sleep(cycles)


def on_gpu(target: float, rounds: int) -> dict[str, float]:
    """Return seconds of a kernel by each timer, the median over rounds."""
    from torch.utils.benchmark import Timer
    from triton.testing import do_bench

    call = kernel_of(target)
    count = max(1, min(500, round(5e-3 / target)))
    once, twice = graph_of(call, count), graph_of(call, 2 * count)

    def train() -> None:
        for _ in range(count):
            call()

    def ours(run: Callable[[], object]) -> float:
        return measure(run, device="cuda", deadline=0.2).median_seconds

    def truth() -> float:
        times = ((event_seconds(twice) - event_seconds(once)) / count for _ in range(5))
        return statistics.median(times)

    few = max(3, min(200, round(0.05 / target)))
    timers: dict[str, Callable[[], float]] = {
        "truth": truth,
        "measure": lambda: ours(call),
        "wall": lambda: wall_seconds(call, few),
        "measure, train": lambda: ours(train) / count,
        "events, train": lambda: statistics.median(event_seconds(call, count) for _ in range(5)),
        "measure, graph": lambda: ours(once) / count,
        "do_bench": lambda: do_bench(call, warmup=10, rep=100, return_mode="median") / 1e3,
        "torch": lambda: (
            Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.1).median
        ),
    }
    seen: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            seen[name].append(timer())
    return {name: statistics.median(values) for name, values in seen.items()}


def in_a_row(target: float) -> dict[str, float]:
    """Return the seconds per kernel by each timer, in a row of launches longer than the queue."""
    from torch.utils.benchmark import Timer

    call, returned = kernel_of(target), []

    def row() -> None:
        for _ in range(IN_A_ROW):
            call()

    ours = measure(row, device="cuda", deadline=0.5)
    events = statistics.median(event_seconds(row) for _ in range(3))
    for _ in range(IN_A_ROW):
        start = time.perf_counter()
        call()
        returned.append(time.perf_counter() - start)
    timer = Timer("call()", globals={"call": call})
    blocks = timer.blocked_autorange(min_run_time=0.2)
    return {
        "measure": ours.median_seconds / IN_A_ROW,
        "measure, call returned": ours.launch_seconds / IN_A_ROW,
        "events": events / IN_A_ROW,
        "median of single launches": statistics.median(returned),
        "mean of single launches": statistics.fmean(returned),
        "torch, median": blocks.median,
        "torch, mean": blocks.mean,
        "torch, timeit": timer.timeit(IN_A_ROW).mean,
    }


def gpu_part(rounds: int) -> tuple[list[dict[str, float]], int]:
    """Print and return the figures of a GPU, and how many are outside the bound."""
    import torch

    rows, outside = [], 0
    for _ in range(100):  # half a second, in which an idle GPU raises its clock
        torch.cuda._sleep(10_000_000)
    for target in KERNEL_SECONDS:
        row = on_gpu(target, rounds)
        rows.append(row)
        if len(rows) == 1:
            print("microseconds a kernel")
            print("  ".join(f"{name:>14s}" for name in row))
        print("  ".join(f"{1e6 * value:14.3f}" for value in row.values()))
        for name, peer in (("measure, train", "events, train"), ("measure, graph", "truth")):
            off = row[name] - row[peer]
            within = abs(off) <= max(BOUND_RATIO * row[peer], BOUND_SECONDS)
            outside += not within
            print(
                f"    {name} against {peer}: {off / row[peer]:+.2%}, {1e6 * off:+.3f} us: "
                f"{'within' if within else 'OUTSIDE'} 1 % or 0.3 us",
                flush=True,
            )
    for target in (2e-6, 2e-5):
        row = in_a_row(target)
        rows.append(row)
        print(f"{IN_A_ROW:,} launches in a row of a kernel of {1e6 * target:g} us, in us each")
        for name, value in row.items():
            print(f"    {name:28s} {1e6 * value:9.3f}", flush=True)
    return rows, outside


def missing(*modules: str) -> str:
    """Return the first of some modules that is not installed; "" if all are."""
    return next((name for name in modules if importlib.util.find_spec(name) is None), "")


def main() -> int:
    """Print the figures; return 1 if one of a GPU is outside its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--part", choices=("both", "synthetic", "live"), default="both")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the figures")
    parser.add_argument("--quick", action="store_true", help="40 runs, 2 rounds")
    parser.add_argument("--gpu", action="store_true", help="the kernels of a GPU only")
    args = parser.parse_args()
    runs, rounds = (40, 2) if args.quick else (args.runs, args.rounds)
    figures: dict[str, list] = {"synthetic": [], "live": []}
    outside = 0
    if args.gpu:
        import torch

        if missing("triton") or not torch.cuda.is_available():
            parser.exit(2, "timers: --gpu needs triton and a CUDA device that torch sees.\n")
        rows, outside = gpu_part(rounds)
        figures = {"gpu": rows}
    if not args.gpu and args.part != "live":
        print(f"{'process':38s} {'method':26s} covered refused strict   calls   width    cost")
        for process in (p for p in catalogue() if p.name in SYNTHETIC):
            for method in METHODS:
                row = synthetic(process, method, runs)
                figures["synthetic"].append(row)
                cost = "" if row["cost"] is None else f"{row['cost']:7.2f}"
                strict = "" if row["strict"] is None else f"{row['strict']:6.1%}"
                figure = (
                    f"{row['covered']:6.1%} {row['refused']:8.1%} {strict:>6s} "
                    f"{row['calls']:8.0f} {row['width']:7.2%} {cost}"
                )
                print(f"{row['process']:38s} {method:26s} {figure}", flush=True)
    if not args.gpu and args.part != "synthetic":
        if missing("pyperf"):
            LIVE.pop("pyperf")
            print("\npyperf is left out, since it is not installed: pip install pyperf")
        print(
            f"\n{'loop':>10s} {'truth':>10s} {'spread':>7s}  "
            + "  ".join(f"{name + ' bias':>22s}" for name in LIVE)
        )
        for target in TARGETS_SECONDS:
            row = live(target, rounds)
            figures["live"].append(row)
            biases = "  ".join(
                f"{row['bias'][n]:+7.1%} [{row['bias_quartiles'][n][0]:+.1%}, "
                f"{row['bias_quartiles'][n][1]:+.1%}]"
                for n in LIVE
            )
            print(
                f"{target:10.0e} {row['true_seconds']:10.3e} {row['true_spread']:7.1%}  {biases}",
                flush=True,
            )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main())
