"""The exercise of notebook 08 on leaving the notebook: the same function as a script under torchrun, with the losses of one process."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from gpulab import training
from gpulab.errors import RankError, message_of, shown
from gpulab.lessons import _guard
from gpulab.lessons.content import Exercise, Refused, Usual

TASK, STEPS, BATCH, RATE = "digits-mlp", 20, 64, 0.1  # as the notebook's loop has them
_CLOSE = 1e-3  # relative: sums in another order differ by rounding, 1e-6 or so; a gradient that is not averaged by far more
_LIMIT_SECONDS = 270.0  # two runs of torchrun at their longest
_SLICE_SECONDS = 0.2  # well within the second that a check's end waits


def torchrun(script: str | os.PathLike[str], n: int = 2, *, timeout_seconds: float = 120.0) -> list[Any]:
    """Run a script of ``Ranks.export_script`` under torchrun on this machine; on Windows, which lacks it, as torchrun would run it.

    Parameters
    ----------
    script : path
    n : int
        How many processes.
    timeout_seconds : float
        The run is ended after this long.

    Returns
    -------
    list
        What the function returned, one result a rank.

    Raises
    ------
    RankError
        If the run failed or took too long; the sentence holds its last words.
    """
    file, processes = Path(script).resolve(), f"{n} process{'es' if n != 1 else ''}"
    with tempfile.TemporaryDirectory(prefix="gpulab-") as folder:
        kept = Path(folder) / "results.pickle"
        command = [*_starter(n), str(file), "--results", str(kept)]
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        try:
            code, said = _run(command, environment, timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise RankError(
                f"torchrun: {file.name} on {processes} had not ended after {timeout_seconds:g} s; expected it to. "
                "Does a rank wait for a collective that another one never calls?"
            ) from error
        if code != 0 or not kept.exists():
            crashed = (_root_cause(said) or (0, 0))[1] < 0
            raise (_CrashError if crashed else RankError)(
                f"torchrun: {file.name} on {processes} ended with {code}: {_last_words(said)}; expected results. "
                "Mend the function and export it again."
            )
        results: list[Any] = pickle.loads(kept.read_bytes())  # written by the learner's own script a moment ago
        return results


def _starter(n: int) -> list[str]:
    """Return what starts a script in n processes: torchrun, or on Windows, where it cannot run, what tells them the same."""
    if sys.platform == "win32":
        return [sys.executable, "-P", str(Path(__file__).with_name("_nb08_launch.py")), str(n)]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Return how a process ended and what it printed; TimeoutExpired where that does not come in time.

    What ends a check is raised in its thread, between any two steps: so another thread starts the process and ends it, and none is lost
    between its start and the lines that would end it. The check's thread waits in slices: the end would wait for a single long call.
    """
    stop, ended = threading.Event(), Future[tuple[int, str]]()

    def started() -> tuple[int, str]:
        if stop.is_set():
            return 1, ""  # nobody looks at it: the check has ended
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=os.name == "posix"
        )
        try:
            said = _heard(process, seconds, stop)
        finally:
            _end(process)
        return process.returncode, said

    def keep() -> None:
        try:
            ended.set_result(started())
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=keep, name="gpulab-torchrun")  # no pool: one that is stopped while it starts a thread forgets it
    try:
        thread.start()
        while not ended.done():
            wait([ended], _SLICE_SECONDS)
        return ended.result()
    finally:
        stop.set()
        while thread.is_alive():
            thread.join(_SLICE_SECONDS)


def _heard(process: subprocess.Popen[str], seconds: float, stop: threading.Event) -> str:
    """Return what a process prints until its end, or nothing after a stop; TimeoutExpired where neither comes in time."""
    deadline = time.monotonic() + seconds
    while not stop.is_set():
        left = deadline - time.monotonic()
        try:
            return process.communicate(timeout=min(max(left, 0.0), _SLICE_SECONDS))[0]
        except subprocess.TimeoutExpired:
            if left <= _SLICE_SECONDS:
                raise
    return ""


def _end(process: subprocess.Popen[str]) -> None:
    """End torchrun and the processes that it started, if they still run."""
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            below = _below(process.pid)  # without a group they would go on, and keep the script's files open
            process.kill()
            for one in below:
                with contextlib.suppress(Exception):  # it has ended by itself
                    one.kill()
        process.wait()


def _below(pid: int) -> list[Any]:
    """Return the processes that one started, and those that they started."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _last_words(said: str) -> str:
    """Return the error that a rank ended with, as far as it can be told from what was printed."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [
        line.partition("]:")[2] or line
        for line in lines
        if "Error" in line and not any(own in line for own in ("torch/distributed", "raise ", "ChildFailedError"))
    ]
    if errors:
        return message_of(errors[0])
    cause = _root_cause(said)
    if cause is not None:  # no rank raised anything: what it printed last, before torchrun's own lines, may tell why
        from gpulab.parallel._engines import ending

        own = [line for line in _AGENT.split(said)[0].splitlines() if line.strip()]
        return f"rank {cause[0]} {ending(cause[1])}" + (f" after printing {shown(own[-1].strip(), 100)}" if own else "")
    return message_of(lines[-1] if lines else "nothing was printed")


_AGENT = re.compile(r"^.*failed \(exitcode: ", re.MULTILINE)  # torchrun's first line about a rank that failed
_CAUSE = re.compile(r"^Root Cause.*?^\s*rank\s*: (\d+).*?^\s*exitcode\s*: (-?\d+)", re.MULTILINE | re.DOTALL)


def _root_cause(said: str) -> tuple[int, int] | None:
    """Return the rank that failed first and its exit code, a negative one after a signal, where torchrun's summary says so."""
    found = _CAUSE.search(said)
    return (int(found[1]), int(found[2])) if found else None


class _CrashError(RankError):
    """A rank was ended by a signal: memory that ran out, or a library that crashed; Python's own failures are exceptions."""


def reference() -> list[float]:
    """Return the losses of one process on the whole batches: the notebook's loop."""
    import torch

    job = training.task(TASK)
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss = job.loss(model, job.train[list(range(BATCH * step, BATCH * (step + 1)))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _check_export(answer: Any) -> str:
    if not isinstance(answer, (str, os.PathLike)):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects the path that export_script returned.")
    try:
        text = Path(answer).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Refused(f"There is no script {shown(os.fspath(answer), 60)}. ranks.export_script(path, function) writes one.") from error
    if "--results" not in text or "init_process_group" not in text:
        raise Refused(f"{Path(answer).name} is no script of ranks.export_script: write it with that, so that torchrun can start it.")
    _judge(_results(answer, 2))
    alone = _results(answer, 1)
    try:
        _judge(alone)
    except Refused as error:
        raise Refused("On 2 processes the losses are right, on 1 they are not: take the number from dist.get_world_size().") from error
    return (
        f"On 2 processes and on 1, started as torchrun does it, the same {STEPS} losses as without. "
        "Nothing of the notebook was needed: this script runs wherever torchrun does."
    )


def _results(script: str | os.PathLike[str], n: int) -> list[Any]:
    try:
        try:
            return torchrun(script, n)
        except _CrashError:  # once in hundreds of runs a right script ends so; a wrong one does it again
            return torchrun(script, n)
    except RankError as error:
        raise Refused(str(error)) from error


def _judge(results: Sequence[Any]) -> None:
    lists = [_losses(rank, each) for rank, each in enumerate(results)]
    if any(not _same(lists[0], other) for other in lists[1:]):
        raise Refused(
            "The ranks return different losses: each says that of its own part of the batch. The loss of the whole batch is their mean: "
            "add them up over the ranks and divide."
        )
    wanted = reference()
    if not _near(lists[0][0], wanted[0]):
        raise Refused(
            f"Already the first loss is {lists[0][0]:.4f} in place of {wanted[0]:.4f}: on 2 processes, do the parts make up the whole "
            "batch, and do all begin with the weights of seed 0?"
        )
    first = next((step for step, (mine, one) in enumerate(zip(lists[0], wanted, strict=True)) if not _near(mine, one)), None)
    if first is not None:
        raise Refused(
            f"From step {first} on the loss differs: {lists[0][first]:.4f} in place of {wanted[first]:.4f}. The data are the same; are the "
            "gradients averaged over the ranks before each step of the optimizer?"
        )


def _losses(rank: int, returned: Any) -> list[float]:
    try:
        values = [float(each) for each in returned]
    except Exception as error:
        raise Refused(f"Rank {rank} returned {_guard.describe(returned)}; the check expects a list of {STEPS} losses.") from error
    if len(values) != STEPS:
        raise Refused(f"Rank {rank} returned {len(values)} losses; the check expects {STEPS}, one a step.")
    return values


def _near(one: float, other: float) -> bool:
    return math.isfinite(one) and abs(one - other) <= _CLOSE * max(1.0, abs(other))


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(_near(a, b) for a, b in zip(one, other, strict=True))


# The notebook's cells, so that the solution stands alone.
_CELLS = """\
import torch
import torch.distributed as dist

import gpulab as gl


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


"""
_WHOLE = """\
def whole_losses():
    losses = torch.tensor(data_parallel())
    dist.all_reduce(losses)  # the sum over the ranks
    return (losses / dist.get_world_size()).tolist()


"""
_RANKS = "ranks = gl.parallel.cluster(n=2)  # yours does as well: export_script only writes a file\n"
EXPORT = Exercise(
    id="08.15",
    title="the same losses under torchrun",
    answer_name="script",
    stub='script = ...  # ranks.export_script("my_training.py", your_function)',
    solution=_CELLS + _WHOLE + _RANKS + 'script = ranks.export_script("my_training.py", whole_losses)',
    hints=(
        "data_parallel returns on each rank the losses of that rank's part. What is the loss of the whole batch?",
        "Write a function that calls data_parallel, makes a tensor of the list, adds it up over the ranks (dist.all_reduce), divides by "
        "dist.get_world_size() and returns .tolist().",
    ),
    check=_check_export,
    usual=(
        Usual(_CELLS + _RANKS + 'script = ranks.export_script("my_training.py", data_parallel)', "different losses"),
        Usual(
            _CELLS.replace("        average_gradients(model)\n", "")
            + _WHOLE
            + _RANKS
            + 'script = ranks.export_script("my_training.py", whole_losses)',
            "gradients averaged over the ranks",
        ),
        Usual(
            _CELLS + _WHOLE.replace("dist.get_world_size()", "2") + _RANKS + 'script = ranks.export_script("my_training.py", whole_losses)',
            "on 1 they are not",
        ),
        Usual("script = 'my_training.py'", "There is no script"),
        Usual("script = 0", "expects the path"),
        Usual("from pathlib import Path\n\nscript = Path('mine.py')\nscript.write_text('print(1)')", "no script of ranks.export_script"),
    ),
    limit_seconds=_LIMIT_SECONDS,
    loads=("torch", "torch._dynamo", "sklearn.datasets", "ipyparallel"),
    answer_is_file=True,
)
