"""A learner's own training, before and after: timed in turns, its samples counted, its model
tested.

A script is a function of a model and training data. It is faster only if it does the same work: as
many samples through the model, all of them before it returns, and a model that answers as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

from gpulab import _given, devices, timing
from gpulab.devices import Device
from gpulab.errors import GpulabError, InputError, StoppedError, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing._compare import compare_within
from gpulab.timing._job import Limits
from gpulab.timing.statistics import FEWEST_SAMPLES
from gpulab.training import _settings
from gpulab.training._data import Data
from gpulab.training._evaluate import Answers, answers_of
from gpulab.training._seeds import accuracy_of, difference_over_seeds
from gpulab.training._settings import Generators, check_threads
from gpulab.training._tasks import Task
from gpulab.training._tasks import task as find_task
from gpulab.training.ladder_results import Gain
from gpulab.training.script_results import ScriptsResult

Script = Callable[[Any, Data], Any]
_CALLS = 1.25 * FEWEST_SAMPLES  # of each script, while they take turns
_WIDTH = 0.05  # of the interval of each script's seconds, at which turns end
_LEAST_SECONDS, _MOST_SECONDS = 0.5, 20.0  # of turns, for each script
_WATCHED_SECONDS = 0.2  # in which a script that has returned would show that it still trains
# the same while a thread that it started is alive: on a busy machine its first step may come this
# much later
_THREAD_SECONDS = 10.0


def compare_scripts(
    before: Script,
    after: Script,
    task: str | Task = "digits-cnn",
    *,
    items: int = 128,
    seeds: int = 3,
    tolerance: float = 0.02,
    device: Any = None,
    deadline: float = _MOST_SECONDS,
    threads: int | None = 1,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ScriptsResult:
    """Time two training scripts in turns, and check that the second does the same work as the
    first.

    Parameters
    ----------
    before, after : callable
        ``script(model, data)`` trains the model, which is on the host, in place. ``data.inputs``
        and ``data.targets`` are all items, ``data[k]`` is one item, ``data[indices]`` a batch. The
        model may end on any device.
    task : str or Task
        The task that provides models and data; each call gets a new model, the same for both.
    items : int
        Number of training items on which the scripts are timed.
    seeds : int
        Number of seeds with which each is trained on all of the training data, and tested.
    tolerance : float
        The largest loss of accuracy, as a ratio, that counts as none.
    device : optional
        The device to wait for after each call; None takes the best there is.
    deadline : float
        The limit on the seconds of turns, for each script.
    threads : int, optional
        Of PyTorch on a CPU, as in ``ladder``.
    progress, stop : callable, optional
        As in ``fit``.

    Returns
    -------
    ScriptsResult
        Evidence MEASURED; ``objections`` says why the second is not a valid speed-up, if it is not.

    Raises
    ------
    InputError
        If one is not a function, raises, passes no sample through the model, or returns while it is
        still training.
    StoppedError
        If ``stop`` returned True before the end.

    Notes
    -----
    Samples are counted where they enter the model's ``forward``; those that were captured in a CUDA
    graph are counted at each replay.
    """
    for name, script in (("before", before), ("after", after)):
        if not callable(script):
            raise InputError(
                f"compare_scripts: {name} is {shown(script)}; expected a function of a model and "
                "data. Pass the function itself."
            )
    job, where = find_task(task), devices.find(device)
    if not _given.is_whole(items) or not 1 <= items <= len(job.train):
        raise InputError(
            f"compare_scripts: items is {shown(items)}; expected from 1 to {len(job.train):,}. "
            "Leave it out."
        )
    if not _given.is_whole(seeds) or not 1 <= seeds <= 1000:
        raise InputError(
            f"compare_scripts: seeds is {shown(seeds)}; expected from 1 to 1000. Pass seeds=3."
        )
    if not _given.is_finite(tolerance) or tolerance < 0:
        raise InputError(
            f"compare_scripts: tolerance is {shown(tolerance)}; expected a number of at least 0. "
            "Leave it out."
        )
    deadline = _given.deadline("compare_scripts", deadline)
    report, asked = (
        _given.callback("compare_scripts", "progress", progress),
        _given.callback("compare_scripts", "stop", stop),
    )

    def step(fraction: float, text: str) -> None:
        if asked is not None and asked():
            raise StoppedError(
                "compare_scripts: stopped before both were measured; expected them to run. Call it "
                "again."
            )
        if report is not None:
            report(fraction, text)

    threads = check_threads("compare_scripts", threads)
    with _settings.threads(threads, where):
        return _compared(
            _names(before, after),
            (before, after),
            job,
            where,
            int(items),
            int(seeds),
            tolerance,
            deadline,
            step,
            asked,
        )


def _compared(
    names: tuple[str, str],
    scripts: tuple[Script, Script],
    job: Task,
    where: Device,
    items: int,
    seeds: int,
    tolerance: float,
    deadline: float,
    step: Callable[[float, str], None],
    asked: Callable[[], bool] | None,
) -> ScriptsResult:
    """Count, take turns, test."""
    both = [_Script(name, script, job, where) for name, script in zip(names, scripts, strict=True)]
    little = Data(*job.train[slice(0, items)])
    step(0.0, "counting samples")
    samples = [one.counted(little) for one in both]
    step(0.1, "taking turns")
    compared = _in_turns(both, little, where, 1, deadline, asked)
    answers: list[list[Answers]] = []
    for number, one in enumerate(both):
        answers.append([])
        for seed in range(seeds):
            step(0.4 + 0.3 * number + 0.3 * seed / seeds, f"training {one.name}, seed {seed}")
            answers[-1].append(one.trained(seed))
    difference, interval = difference_over_seeds(answers[0], answers[1])
    first, second = (row.measurement for row in compared.rows)
    notes = [
        Note(note.code, f"{m.label}: {note.sentence}")
        for m in (first, second)
        for note in m.notes
        if note.code not in _USUAL
    ]
    return ScriptsResult(
        task=job.name,
        device=str(where),
        names=(both[0].name, both[1].name),
        timed_items=items,
        seconds=(first.median_seconds, second.median_seconds),
        gain=_gain(compared),
        samples=(samples[0], samples[1]),
        accuracy=(accuracy_of(answers[0]), accuracy_of(answers[1])),
        accuracy_difference=difference,
        accuracy_interval=interval,
        tolerance=float(tolerance),
        notes=tuple(dict.fromkeys(notes)),
        evidence=Evidence.measured(
            where.name, samples=min(len(first.samples_seconds), len(second.samples_seconds))
        ),
        environment=devices.environment(where),
    )


_USUAL = ("deadline", "slow-first-call")  # the interval beside the figure says what of that matters


def _in_turns(
    both: list[_Script],
    data: Data,
    where: Device,
    longer: float,
    deadline: float,
    asked: Callable[[], bool] | None = None,
) -> timing.Comparison:
    """Let both take turns, for ``longer`` times the seconds of a usual series; the fewest for an
    interval may take all of the deadline.
    """
    longest = max(one.seconds(data) for one in both)
    turns = min(deadline, longer * max(_LEAST_SECONDS, _CALLS * longest))
    return compare_within(
        Limits.given("compare_scripts", _WIDTH, turns, None, asked),
        {one.name: one.timed(data) for one in both},
        (),
        devices=[str(where)],
        fewest=FEWEST_SAMPLES,
        patience=deadline,
    )


def _gain(compared: timing.Comparison) -> Gain:
    first, second = compared.rows
    return Gain(
        second.speedup or first.measurement.median_seconds / second.measurement.median_seconds,
        second.speedup_interval,
    )


def gain_in_turns(
    before: Script, after: Script, task: Task, data: Data, device: Device, longer: float
) -> Gain:
    """Return the gain by another series of turns on these data, ``longer`` times as long as that of
    ``compare_scripts``.

    Raises
    ------
    InputError
        If one raises.
    """
    both = [
        _Script(name, script, task, device)
        for name, script in zip(_names(before, after), (before, after), strict=True)
    ]
    with _settings.threads(1, device):
        return _gain(_in_turns(both, data, device, longer, _MOST_SECONDS))


def samples_of(script: Script, task: Task, data: Data, device: Device) -> int:
    """Return how many samples a script takes through the model in training in one call on these
    data.

    Raises
    ------
    InputError
        If it raises, takes none, or returns while it still trains.
    """
    return _Script(
        _names(script, script)[0].removesuffix(" (before)"), script, task, device
    ).counted(data)


def _names(before: Any, after: Any) -> tuple[str, str]:
    one, other = (
        str(getattr(script, "__name__", "script")).replace("<lambda>", "script")
        for script in (before, after)
    )
    return (one, other) if one != other else (f"{one} (before)", f"{other} (after)")


class _Script:
    """One script, called on new models."""

    def __init__(self, name: str, script: Script, job: Task, where: Device) -> None:
        self.name, self.script, self.job, self.where = name, script, job, where

    def _call(self, model: Any, data: Data, seed: int = 0) -> None:
        """Call the script under a seed of its own, on data of its own, and wait for the device.

        One that changes its data in place, as ``images -= images.mean()`` does where
        ``.to(device)`` copies nothing, would change them for its next call, for the other script,
        and for all that this process trains later. The copy is small beside making the model.
        """
        generators = Generators(seed, self.where)
        own = dataclasses.replace(data, inputs=data.inputs.clone(), targets=data.targets.clone())
        try:
            with generators.in_use(), _settings.put_back():
                self.script(model, own)
            self.where.synchronize()
        except GpulabError:
            raise
        except Exception as error:
            raise InputError(
                f"compare_scripts: {self.name} raised {type(error).__name__} "
                f"({message_of(error)}); expected it to train the model. "
                "Call it once by itself: script(task.make_model(), task.train)."
            ) from error

    def timed(self, data: Data) -> Callable[[], None]:
        """Return what is timed: the script on a new model."""
        return lambda: self._call(self.job.make_model(0), data)

    def seconds(self, data: Data) -> float:
        """Return the seconds of one call, after a first one."""
        begin = time.perf_counter()
        self.timed(data)()
        return time.perf_counter() - begin

    def counted(self, data: Data) -> int:
        """Return the samples that went through the model in training in one call."""
        model, known = self.job.make_model(0), threading.enumerate()
        with _counting(model) as seen:
            self._call(model, data)
            returned = until = seen[0]
            # to its end: its threads would disturb what comes next
            while comes_late(lambda: seen[0], until, known):
                until = seen[0]
            late = until - returned
        if late:
            raise InputError(
                f"compare_scripts: {self.name} returned while it was still training ({late:,} "
                "samples went through the model after that), "
                "so a clock stops before the work is done. Wait for the work before you return."
            )
        if not returned:
            raise InputError(
                f"compare_scripts: {self.name} passed no sample through the model that it was "
                "given; expected it to train this model. "
                "Call model(inputs) with gradients."
            )
        return returned

    def trained(self, seed: int) -> Answers:
        """Return what the model answers on the test after the script had all of the training
        data.
        """
        model = self.job.make_model(seed)
        self._call(model, self.job.train, seed)
        return answers_of(model, self.job)


def comes_late(look: Callable[[], int], was: int, known: Collection[threading.Thread]) -> bool:
    """Return whether what is looked at changes although the script has returned; ``known`` are the
    threads from before its call.

    A moment is enough where it left no thread behind; while one is alive, its work may still come.
    """
    begin = time.monotonic()
    while look() == was:
        left = any(thread not in known for thread in threading.enumerate())
        if time.monotonic() - begin >= (_THREAD_SECONDS if left else _WATCHED_SECONDS):
            return look() != was  # a thread that has just ended changed it before that
        time.sleep(_WATCHED_SECONDS / 10)
    return True


@contextlib.contextmanager
def _counting(model: Any) -> Iterator[list[int]]:
    """Count the samples that enter the model's ``forward`` while gradients are kept.

    While a CUDA graph is captured nothing is computed, and a replay does not call ``forward``: what
    entered then counts at each replay. The model gets a class of its own for that, and no hook:
    ``torch.cuda.make_graphed_callables`` refuses a module that has hooks. It puts a ``forward`` of
    its own before the class's, so that its replays are counted once.
    """
    import torch

    seen, capturing = [0], list[int]()
    captured: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    graph: Any = torch.cuda.CUDAGraph
    begin, end, replay = own = graph.capture_begin, graph.capture_end, graph.replay

    # of a compiled model: its own forward is no method of its class
    inner = getattr(model, "_orig_mod", model)
    kind = type(inner)

    @functools.wraps(kind.forward)
    def forward(module: Any, *args: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and args and isinstance(args[0], torch.Tensor):
            (capturing or seen)[0] += len(args[0])
        return kind.forward(module, *args, **named)

    def counted_begin(one: Any, *args: Any, **named: Any) -> None:
        begin(one, *args, **named)
        capturing.append(0)

    def counted_end(one: Any) -> None:
        captured[one] = capturing.pop() if capturing else 0
        end(one)

    def counted_replay(one: Any) -> None:
        seen[0] += captured.get(one, 0)
        replay(one)

    inner.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    graph.capture_begin, graph.capture_end, graph.replay = (
        counted_begin,
        counted_end,
        counted_replay,
    )
    try:
        yield seen
    finally:
        graph.capture_begin, graph.capture_end, graph.replay = own
        inner.__class__ = kind
