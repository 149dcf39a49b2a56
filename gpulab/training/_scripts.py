"""Compare a learner's training script before and after a change: time both in turns, count their
samples, and test their models. And write a page about a training that was sped up.

A script is a function of a model and training data. A second script is a speed-up only if it does
the same work: it passes as many samples through the model, all of them before it returns, and its
model is as accurate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from gpulab import _files, _validate, devices, timing
from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing.comparing import compare_within
from gpulab.timing.sampling import Limits
from gpulab.timing.statistics import FEWEST_SAMPLES
from gpulab.training import backend_switches
from gpulab.training.backend_switches import Generators
from gpulab.training.data_tasks import (
    Answers,
    Data,
    Task,
    accuracy_of,
    answers_of,
    difference_over_seeds,
    find_task,
)
from gpulab.training.run_results import LEAST_EFFECT, TOLERANCE, Gain, LadderResult, ScriptsResult

Script = Callable[[Any, Data], Any]
_SCRIPT = functools.partial(
    _validate.instance,
    kind=Callable,
    expected="a function of a model and data. Pass the function itself.",
)
_CALLS = 1.25 * FEWEST_SAMPLES  # of each script, for which the turns have time
_WIDTH = 0.05  # of the interval of each script's seconds, relative to the median: turns end there
_LEAST_SECONDS, _MOST_SECONDS = 0.5, 20.0  # of turns, for each script
_WATCHED_SECONDS = 0.2  # a script that has returned is watched this long for further training
# The same while a thread that the script started is alive: on a busy machine the thread's first
# step may come this late.
_THREAD_SECONDS = 10.0

_TRAINS = "it to train the model. Call it once by itself: script(task.make_model(), task.train)."
_USUAL = ("deadline", "slow-first-call")  # notes left out: the interval shows what matters of them
_READING = (
    "A ratio is a speed-up, measured in turns that the forms took one after the other; in "
    "brackets its 95 % interval. A difference counts as shown only if the whole interval lies "
    f"more than {100 * LEAST_EFFECT:g} % above or below 1. Accuracy is that of models trained on "
    "the same data under the same seeds."
)


@_validate.arguments(
    before=_SCRIPT,
    after=_SCRIPT,
    seeds=functools.partial(_validate.whole, low=1, high=1000),
    deadline=_validate.deadline,
)
def compare_scripts(
    before: Script,
    after: Script,
    task: str | Task = "digits-cnn",
    *,
    items: int = 128,
    seeds: int = 3,
    device: Any = None,
    deadline: float = _MOST_SECONDS,
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
    device : optional
        The device to wait for after each call; None takes the best one available.
    deadline : float
        The limit on the seconds of turns, for each script.

    Returns
    -------
    ScriptsResult
        Evidence MEASURED; ``objections`` says why the second is not a valid speed-up, if it is not.

    Raises
    ------
    InputError
        If a script is not a function, raises, passes no sample through the model, or returns while
        it is still training.

    Notes
    -----
    Samples are counted where they enter the model's ``forward``; those that were captured in a CUDA
    graph are counted at each replay.

    Each call gets a new model and a copy of the items, which are made before its time begins. What
    a script sets up itself, such as an optimizer or a copy on the device, is part of its time.

    Models are tested as the scripts leave them. After few updates the running averages of batch
    norms lag behind the weights, so a larger batch may cost more accuracy here than in ``ladder``,
    which computes them anew. A script can do the same at its end, by
    ``torch.optim.swa_utils.update_bn``.
    """
    job, where = find_task(task), devices.find(device)
    items = _validate.whole("compare_scripts", "items", items, 1, len(job.train))
    both = _pair(before, after, job, where)
    little = Data(*job.train[slice(0, items)])
    with backend_switches.threads(1, where):
        samples = [one.counted(little) for one in both]
        compared = _in_turns(both, little, where, 1, deadline)
        answers = [[one.trained(seed) for seed in range(_validate.fewer(seeds, 2))] for one in both]
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
        tolerance=TOLERANCE,
        notes=tuple(dict.fromkeys(notes)),
        evidence=Evidence.measured(
            where.name, samples=min(len(m.samples_seconds) for m in (first, second))
        ),
        environment=devices.environment(where),
    )


def _in_turns(
    both: list[_Script],
    data: Data,
    where: devices.Device,
    longer: float,
    deadline: float,
) -> timing.Comparison:
    """Time both scripts in turns, for ``longer`` times the usual seconds. The fewest samples that
    an interval needs may take up to the deadline.
    """
    longest = max(one.seconds(data) for one in both)
    turns = min(deadline, longer * max(_LEAST_SECONDS, _CALLS * longest))
    ready = list[tuple[Any, Data]]()
    return compare_within(
        Limits(
            _WIDTH,
            _validate.deadline("compare_scripts", "deadline", turns),
            fewest=FEWEST_SAMPLES,
            patience=deadline,
        ),
        {one.name: one.timed(data, ready) for one in both},
        (),
        devices=[str(where)],
        prepare=lambda: ready.append(both[0].new(data)),
    )


def _gain(compared: timing.Comparison) -> Gain:
    first, second = compared.rows
    return Gain(
        second.speedup or first.measurement.median_seconds / second.measurement.median_seconds,
        second.speedup_interval,
    )


def gain_in_turns(
    before: Script, after: Script, task: Task, data: Data, device: devices.Device, longer: float
) -> Gain:
    """Return the gain, measured by a new series of turns on these data that is ``longer`` times as
    long as the series of ``compare_scripts``.

    Raises
    ------
    InputError
        If a script raises.
    """
    both = _pair(before, after, task, device)
    with backend_switches.threads(1, device):
        return _gain(_in_turns(both, data, device, longer, _MOST_SECONDS))


def samples_of(script: Script, task: Task, data: Data, device: devices.Device) -> int:
    """Return how many samples a script passes through the model in training, in one call on these
    data.

    Raises
    ------
    InputError
        If the script raises, passes no sample, or returns while it still trains.
    """
    return _Script(_name(script), script, task, device).counted(data)


def _name(script: Any) -> str:
    return str(getattr(script, "__name__", "script")).replace("<lambda>", "script")


def _pair(before: Script, after: Script, task: Task, device: devices.Device) -> list[_Script]:
    names = [_name(before), _name(after)]
    if names[0] == names[1]:
        names = [f"{names[0]} (before)", f"{names[1]} (after)"]
    return [
        _Script(name, script, task, device)
        for name, script in zip(names, (before, after), strict=True)
    ]


class _Script:
    """One script, called on new models."""

    def __init__(self, name: str, script: Script, job: Task, where: devices.Device) -> None:
        self.name, self.script, self.job, self.where = name, script, job, where

    def new(self, data: Data, seed: int = 0) -> tuple[Any, Data]:
        """Return a new model and a copy of the data, for one call.

        A script may change its data in place, as ``images -= images.mean()`` does where
        ``.to(device)`` copies nothing. Without the copy the change would affect its next call, the
        other script, and everything that this process trains later.
        """
        return self.job.make_model(seed), dataclasses.replace(
            data, inputs=data.inputs.clone(), targets=data.targets.clone()
        )

    def _call(self, model: Any, data: Data, seed: int = 0) -> None:
        """Call the script under this seed, and wait for the device."""
        with devices.guard(f"compare_scripts: {self.name}", _TRAINS):
            with Generators(seed, self.where).in_use(), backend_switches.put_back():
                self.script(model, data)
            self.where.synchronize()

    def timed(self, data: Data, ready: list[tuple[Any, Data]]) -> Callable[[], None]:
        """Return the function that is timed. It calls the script on what is ready; in calls before
        the samples, for which nothing was made, on what it makes itself.
        """
        return lambda: self._call(*(ready.pop() if ready else self.new(data)))

    def seconds(self, data: Data) -> float:
        """Return the seconds of one call."""
        ready = [self.new(data)]
        begin = time.perf_counter()
        self.timed(data, ready)()
        return time.perf_counter() - begin

    def counted(self, data: Data) -> int:
        """Return the samples that went through the model in training in one call."""
        (model, own), known = self.new(data), threading.enumerate()
        with _counting(model) as seen:
            self._call(model, own)
            returned = until = seen[0]
            # wait until the late training ends: its threads would disturb what comes next
            while comes_late(lambda: seen[0], until, known):
                until = seen[0]
            late = until - returned
        if late:
            raise InputError(
                f"compare_scripts: {self.name} returned while it was still training ({late:,} "
                "samples went through the model after that), so a clock stops before the work is "
                "done. Wait for the work before you return."
            )
        if not returned:
            raise InputError(
                f"compare_scripts: {self.name} passed no sample through the model that it was "
                "given; expected it to train this model. Call model(inputs) with gradients enabled."
            )
        return returned

    def trained(self, seed: int) -> Answers:
        """Train a new model with the script, on all of the training data; return the model's
        answers on the test.
        """
        model, own = self.new(self.job.train, seed)
        self._call(model, own, seed)
        return answers_of(model, self.job)


def comes_late(look: Callable[[], int], was: int, known: Collection[threading.Thread]) -> bool:
    """Return whether ``look()`` still changes from ``was`` although the script has returned;
    ``known`` are the threads from before its call.

    If the script left no thread behind, it is enough to watch for a moment. While a new thread is
    alive, its work may still come, so the function watches longer.
    """
    begin = time.monotonic()
    while look() == was:
        left = any(thread not in known for thread in threading.enumerate())
        if time.monotonic() - begin >= (_THREAD_SECONDS if left else _WATCHED_SECONDS):
            return look() != was  # a thread that has just ended may have changed it
        time.sleep(_WATCHED_SECONDS / 10)
    return True


@contextlib.contextmanager
def _counting(model: Any) -> Iterator[list[int]]:
    """Count the samples that enter the model's ``forward`` while gradients are enabled.

    Capturing a CUDA graph computes nothing, and a replay does not call ``forward``. So samples that
    enter during a capture are counted at each replay instead.

    For the counting, the model gets a class of its own and not a hook:
    ``torch.cuda.make_graphed_callables`` refuses a module that has hooks. That function puts a
    ``forward`` of its own in front of the class's, so its replays are counted only once.
    """
    seen, capturing = [0], list[int]()
    captured: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    graph: Any = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    # count in the original of a compiled model: the compiled forward is not a method of its class
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
    try:
        with mock.patch.multiple(
            graph, capture_begin=counted_begin, capture_end=counted_end, replay=counted_replay
        ):
            yield seen
    finally:
        inner.__class__ = kind


def speedup_report(path: Any, *results: LadderResult | ScriptsResult) -> Path:
    """Write a page in Markdown: the machine, every technique with its interval, and the accuracy
    before and after. The file is written as a whole or not at all.

    Parameters
    ----------
    path : path
        Ends in ``.md``.
    *results : LadderResult or ScriptsResult
        In the order of the page.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If there is no result, one is of another kind, or the path has another suffix or cannot be
        written.
    """
    if not isinstance(path, (str, Path)) or Path(path).suffix.lower() != ".md":
        raise InputError(
            f"speedup_report: path is {shown(path)}; expected a file that ends in .md. Pass "
            "'my_speedup.md'."
        )
    wrong = [result for result in results if not isinstance(result, (LadderResult, ScriptsResult))]
    if wrong or not results:
        raise InputError(
            f"speedup_report: {f'a result is {shown(wrong[0])}' if wrong else 'there is no result'}"
            "; expected results of gl.training.ladder or gl.training.compare_scripts. Pass one or "
            "both."
        )
    machine = results[0].environment
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    driver = f", driver {machine.driver}" if machine.driver else ""
    parts = [
        "# What made the training faster",
        f"{machine.device}{driver}; {machine.date[:10]}; {libraries}.",
        _READING,
    ]
    for result in results:
        what = (
            "Techniques, one by one"
            if isinstance(result, LadderResult)
            else " and ".join(result.names)
        )
        heading = f"## {what} ({result.task})"
        parts += [heading, result.sentence, _table(*result.table()), f"> {result.caption()}"]
    where = _validate.expanded("speedup_report", path)
    try:
        _files.write_atomically(where, ("\n\n".join(parts) + "\n").encode())
    except OSError as error:
        raise InputError(
            f"speedup_report: {str(where)!r} could not be written ({message_of(error, 100)}); "
            "expected a path that can be written. Pass another one."
        ) from error
    return where


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [
        [str(cell).replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (headers, ["---"] * len(headers), *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
