"""Run the experiments within a time budget, save every few seconds, and resume an interrupted run;
and ``gpulab record``, which shows the progress and the remaining time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gpulab
from gpulab import _interrupts, _validate, devices
from gpulab._files import exclusive, refuse_unwritable
from gpulab.devices import Device, Machine
from gpulab.errors import InputError, RecordingError, StoppedError, message_of, shown
from gpulab.recorder._experiments import Case, Experiment, experiments
from gpulab.recordings import Entry, Recording, read, write
from gpulab.recordings.schema import MOST_VISITS, Timing, thin
from gpulab.recordings.several import dated, foreign_part, joined, together, visits_of
from gpulab.results import text_table
from gpulab.timing.measuring import calm_collector

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]
Clock = Callable[[], float]

# A case gets its share of the remaining budget, within these bounds: enough samples for an
# interval, never the whole budget.
SHORTEST_CASE_SECONDS, LONGEST_CASE_SECONDS = 0.15, 1.0
SAVE_EVERY_SECONDS = 5.0
_LONGEST_MINUTES = 24 * 60
# Visits to a case, spread over the run: three are the fewest whose spread shows something. A case
# that took longer than these seconds is visited once.
VISITS, _LONG_SECONDS = 3, 10.0
# This many cases are visited in turn; near the end of the budget, only as many as will probably get
# all of their visits. So a round takes half a minute or more, and even with a short budget nearly
# all cases that are reached get every visit.
_TURN = 30
NOT_REACHED = "time did not reach it"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def _plan(device: Device, only: Iterable[str | Experiment] | None) -> dict[str, tuple[str, Case]]:
    """Return the requested cases by the keys of their entries, the most informative first."""
    planned = [
        (experiment.name, case)
        for experiment in experiments(only)
        for case in experiment.cases(device)
    ]
    return {_not_reached(*item).key: item for item in sorted(planned, key=lambda it: it[1].rank)}


def _not_reached(name: str, case: Case) -> Entry:
    return Entry(name, case.params, None, NOT_REACHED)


def _is_long(timing: Timing) -> bool:
    samples_a_visit = timing.sample_count / len(visits_of(timing))
    return (
        timing.first_call_seconds
        + samples_a_visit * timing.calls_per_sample * timing.median_seconds
        > _LONG_SECONDS
    )


def _previous(out: pathlib.Path, fresh: Recording) -> Recording:
    """Return the recording that an earlier run wrote to the file, with a date on each case; the
    ``fresh`` recording if there is no file. A run on another machine or other software is refused.
    """
    if not out.exists():
        return fresh
    old = dated(read(out))
    part = foreign_part(old.environment, fresh.environment)
    if part is not None:
        before, now = getattr(old.environment, part), getattr(fresh.environment, part)
        raise RecordingError(
            f"record: {out.name} cannot be continued, because it was made with {part} {before!r}; "
            f"expected {now!r}, as on this machine. Pass --out with another file, or --restart to "
            "replace this one."
        )
    return old


def _time(name: str, case: Case, deadline_seconds: float) -> Entry:
    """Time one case and return its entry. If the case raises, the entry has the reason: a library
    that does not fit torch may raise any error. Of a measurement, everything is kept except most of
    its samples.
    """
    try:
        m = case.time(deadline_seconds)
    except Exception as error:
        return Entry(name, case.params, None, f"{type(error).__name__}: {message_of(error, 300)}")
    timing = Timing(
        samples_seconds=thin(m.samples_seconds),
        sample_count=len(m.samples_seconds),
        median_seconds=m.median_seconds,
        interval_seconds=m.interval_seconds,
        first_call_seconds=m.first_call_seconds,
        launch_seconds=m.launch_seconds,
        with_transfer_seconds=m.with_transfer_seconds,
        calls_per_sample=m.calls_per_sample,
        flops=m.flops,
        nbytes=m.nbytes,
        notes=m.notes,
        energy_joules=m.energy_joules,
        energy_error_joules=m.energy_error_joules,
    )
    return Entry(name, case.params, timing, date=m.environment.date)


@dataclass
class _Run:
    """The state of a recording that is being made.

    Attributes
    ----------
    plan : mapping
        The experiment's name and the case of each key.
    entries : mapping
        The entries that the file will have: at first those of an earlier run, or "time did not
        reach it".
    end : float
        When the budget is used up, by the clock.
    given_up : set
        The keys of cases that failed, or that take too long to be visited again.
    made, spent_seconds
        How many visits this run has made, and how long all of them took.
    """

    out: pathlib.Path
    base: Recording
    plan: dict[str, tuple[str, Case]]
    entries: dict[str, Entry]
    visits: int
    clock: Clock
    end: float
    given_up: set[str] = field(default_factory=set)
    last_save: float = -SAVE_EVERY_SECONDS
    made: int = 0
    spent_seconds: float = 0.0

    def left(self) -> float:
        """Return the seconds that are left; negative when the budget is used up."""
        return self.end - self.clock()

    def recording(self) -> Recording:
        return replace(self.base, entries=tuple(self.entries.values()))

    def has_content(self) -> bool:
        """Return whether there is something to save: a visit of this run or of an earlier one."""
        return self.made > 0 or any(entry.recorded for entry in self.entries.values())

    def save(self, force: bool = False) -> None:
        if self.has_content() and (force or self.clock() - self.last_save >= SAVE_EVERY_SECONDS):
            write(self.recording(), self.out)
            self.last_save = self.clock()

    def visited(self, key: str) -> int:
        """Return how often a case has been visited; for a case that will not be visited again, the
        number of visits that every case should get.
        """
        timing = self.entries[key].timing
        if key in self.given_up or (timing is not None and _is_long(timing)):
            return self.visits
        return 0 if timing is None else min(len(visits_of(timing)), self.visits)

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Yield the key of each case to visit and the number of the visit. Up to thirty cases are
        visited in turn, so that the visits of a case are far apart.
        """
        keys = [key for key in self.plan if self.visited(key) < self.visits]
        while keys:
            foreseen = (
                self.left()
                / (self.visits * max(self.spent_seconds / self.made, SHORTEST_CASE_SECONDS))
                if self.made
                else _TURN
            )
            turn = max(1, min(_TURN, int(foreseen)))
            for number in range(1, self.visits + 1):
                yield from ((key, number) for key in keys[:turn] if self.visited(key) < number)
            keys = keys[turn:]

    def visit(self, key: str, deadline_seconds: float) -> None:
        """Time a case; if it fails, its previous result is kept."""
        begin, before = self.clock(), self.entries[key].timing
        entry = _time(*self.plan[key], deadline_seconds)
        seconds = self.clock() - begin
        self.made, self.spent_seconds = self.made + 1, self.spent_seconds + seconds
        if not entry.recorded or (seconds > _LONG_SECONDS and before is None):
            self.given_up.add(key)
        if before is None:
            self.entries[key] = entry
        elif entry.timing is not None:
            self.entries[key] = replace(entry, timing=together(before, entry.timing))


@_validate.arguments(
    minutes=partial(
        _validate.within, low=1e-3, high=_LONGEST_MINUTES, advice="Pass for example minutes=8."
    ),
    visits=partial(_validate.whole, low=1, high=MOST_VISITS),
    progress=_validate.hook,
    stop=_validate.hook,
)
def record(
    out: str | os.PathLike[str],
    *,
    minutes: float = 8.0,
    only: Iterable[str | Experiment] | None = None,
    name: str | None = None,
    device: Any = None,
    restart: bool = False,
    visits: int = VISITS,
    command: str | None = None,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
    clock: Clock = time.monotonic,
) -> Recording:
    """Measure this machine and write the recording to ``out``.

    Parameters
    ----------
    out : path
        The file to write. An unfinished recording of this machine in it is continued: it keeps its
        notes, and lists the commands of all its runs.
    minutes : float
        The budget. Cases that it does not reach are kept as "not recorded", with the reason.
    only : iterable of str or Experiment, optional
        Names of registered experiments, or experiments of your own; None takes all that are
        registered.
    name : str, optional
        The machine's short name in lower case; by default that of the file that is continued, else
        made from the device's name.
    device : optional
        As ``gl.devices.find`` takes it; None for the best one available.
    restart : bool
        Replace the file instead of continuing it.
    visits : int
        How often a case is timed, 1 to 10: at moments far apart, so that its interval covers how
        the machine changes between them. With one visit more cases are reached, but the intervals
        are those of one moment. Cases that take more than ten seconds are visited once.
    command : str, optional
        The command to state in the recording; by default ``gpulab record`` with ``minutes``.
    progress, stop : callables, optional
        ``progress(fraction, text)``; ``stop() -> bool``, polled between cases.
    clock : callable
        Returns seconds.

    Raises
    ------
    InputError
        If the budget is not positive, or the number of visits, an experiment or the name is not
        usable, or no requested experiment can run on the device.
    RecordingError
        If ``out`` cannot be written, or holds something else or another machine's recording.
    StoppedError
        If no case was timed, and there is nothing from an earlier run.
    """
    where = devices.find(device)
    label = name
    if label is None:  # such as "amd-epyc-2-cores", which may name a file
        label = re.sub(r"[^a-z0-9]+", "-", where.name.lower()).strip("-")[:64] or "machine"
    if not isinstance(label, str) or not _NAME.fullmatch(label):
        raise InputError(
            f"record: the name {shown(label)} cannot be used; expected lower-case letters, digits, "
            "'.', '_' and '-', at most 64. Leave it out to use one made from the device's name."
        )
    target = _validate.expanded("record", out)
    plan = _plan(where, only)
    if not plan:
        raise InputError(
            f"record: none of the requested experiments can run on {where.name}; expected at least "
            "one that can. Choose others (gpulab record --list lists them), or another device."
        )
    machine = devices.machine()
    base = Recording(
        name=label,
        environment=devices.environment(where, command or f"gpulab record --minutes {minutes:g}"),
        clocks_seen=_clocks(machine, where, "before"),
        machine=machine.to_dict(),
        gpulab_version=gpulab.__version__,
        entries=(),
    )
    with _exclusive(target):
        old = base if restart else _previous(target, base)
        # keep what the file has already: name and notes, commands and libraries
        base = replace(
            base,
            name=old.name if name is None else name,
            notes=old.notes,
            environment=joined(old.environment, base.environment),
        )
        # The reason why a case is missing is kept until the case is tried again. A missing case
        # that is not planned is dropped only by a run of all experiments, which would plan it.
        entries = {key: _not_reached(*item) for key, item in plan.items()} | {
            item.key: item
            for item in old.entries
            if item.recorded or only is not None or item.key in plan
        }
        run = _Run(target, base, plan, entries, visits, clock, clock() + minutes * 60.0)
        _loop(run, where, progress=progress, stop=stop)
        after = _clocks(devices.machine(), where, "after")
        run.base = replace(base, clocks_seen={**base.clocks_seen, **after})
        run.save(force=True)
        return run.recording()


@contextlib.contextmanager
def _exclusive(target: pathlib.Path) -> Iterator[None]:
    """Keep a second recorder away from the file: each would overwrite the other's results."""
    try:
        refuse_unwritable(target)
        with exclusive(target.with_name(f".{target.name}.lock")) as free:
            if not free:
                raise RecordingError(
                    f"record: another gpulab record is writing to {target.name}; expected only one "
                    "at a time. Wait for it to end, or pass --out with another file."
                )
            yield
    except OSError as error:
        raise RecordingError(
            f"record: {target} is a folder; expected a file. Pass --out with one, such as "
            f"{target / 'my-machine.json'}."
            if target.is_dir()
            else f"record: {target} cannot be written ({error.strerror or error}); expected a file "
            "in a writable folder with free space. What was saved before is kept; pass --out with "
            "another file, or free some space and run it again."
        ) from error


def _clocks(machine: Machine, device: Device, when: str) -> dict[str, float]:
    """Return the device's present clock in MHz; empty if it reports none."""
    processors = (
        (machine.processor,)
        if device.is_cpu
        else machine.accelerators[device.index : device.index + 1]
    )
    return {f"{when}_mhz": part.clock_hz / 1e6 for part in processors if part.clock_hz}


# With ``calm_collector``, a garbage collection after a case examines only newer objects: examining
# all objects of PyTorch takes longer than the case.
@calm_collector()
def _loop(run: _Run, device: Device, *, progress: Progress, stop: Stop) -> None:
    try:
        for key, number in run.waiting():
            left = run.left()
            if left <= 0 or stop():
                break
            shares = run.plan[key][1].shares
            waiting_shares = sum(
                case.shares * (run.visits - run.visited(one)) for one, (_, case) in run.plan.items()
            )
            share = max(left / waiting_shares, SHORTEST_CASE_SECONDS)
            run.visit(key, shares * min(share, LONGEST_CASE_SECONDS))
            if not device.is_cpu:
                from gpulab import memory  # loads torch, which is not needed to list experiments

                memory.release(device)  # so that the next case finds it empty
            run.save()
            # a file that is continued may have other cases
            visited = [run.visited(one) for one in run.plan]
            again = f" · visit {number} of {run.visits}" if run.visits > 1 else ""
            progress(
                sum(visited) / (run.visits * len(visited)),
                f"{sum(map(bool, visited))} of {len(visited)} · {key}{again} · "
                f"{max(0.0, run.left()):.0f} s left",
            )
    finally:
        run.save(force=True)
    if not run.has_content():
        what_to_do = "Run it again." if stop() else "Pass more --minutes."
        raise StoppedError(
            f"record: stopped before the first case was timed; expected time for one. {what_to_do}"
        )


# -- the command ---------------------------------------------------------------------

_NARROWEST = 20  # characters of the line of progress: some terminals report that they have none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab record`` and its arguments to its parser."""
    parser.description = (
        "Measure this machine within a time budget. Run it again with the same --out "
        "to continue after an interrupt."
    )
    parser.add_argument("--out", metavar="FILE", help="the recording to write (JSON)")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="the time budget in minutes (default: 8)"
    )
    parser.add_argument(
        "--name",
        help="the machine's short name, such as nvidia-h200 (default: that of FILE, else made "
        "from the device's name)",
    )
    parser.add_argument(
        "--device",
        help="the device to measure, such as cuda:1 or cpu (default: the best one available)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="EXPERIMENT", help="only these experiments (see --list)"
    )
    parser.add_argument(
        "--visits",
        type=int,
        default=VISITS,
        metavar="N",
        help="how often to time each case, at moments far apart (default: 3)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="replace FILE instead of continuing it"
    )
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab record``; return the exit code."""
    if arguments.list:
        rows = [(experiment.name, experiment.summary) for experiment in experiments()]
        print(text_table(("experiment", "what it times"), rows))
        return 0
    if not arguments.out:
        raise InputError(
            "record: --out is missing; expected a file to write. Pass for example --out "
            "my-machine.json."
        )
    line_is_open = False

    def show(fraction: float, text: str) -> None:
        nonlocal line_is_open
        line, end = f"{100 * fraction:3.0f} %  {text}", "\n"
        if sys.stdout.isatty():
            width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
            line_is_open = fraction < 1
            line, end = f"\r{line[:width]:{width}}", "" if line_is_open else "\n"
        try:
            print(line, end=end, flush=True)
        except OSError as error:  # the terminal is closed, or the pipe's reader ended (``| head``)
            stop.asked = stop.asked or isinstance(error, BrokenPipeError)

    def answer() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            print(
                "\nstopping after the current case; press Ctrl-C again to stop immediately",
                file=sys.stderr,
            )

    try:
        # Signals that ask for the end: a batch system sends SIGTERM, and a terminal that closes
        # sends SIGHUP, some seconds before the process is killed. An ignored signal stays ignored:
        # under ``nohup`` a recording goes on when its terminal is closed.
        asks = [
            signal.SIGINT,
            *(
                number
                for name in ("SIGTERM", "SIGHUP")
                if (number := getattr(signal, name, None)) is not None
                and signal.getsignal(number) not in (signal.SIG_IGN, None)
            ),
        ]
        with _interrupts.deferred(asks, answer) as stop:
            recording = record(
                arguments.out,
                minutes=arguments.minutes,
                only=arguments.only,
                name=arguments.name,
                device=arguments.device,
                restart=arguments.restart,
                visits=arguments.visits,
                command=_command(arguments),
                progress=show,
                stop=lambda: stop.asked,
            )
    finally:
        # the budget ended before the last case: the next output would be on the line of progress
        if line_is_open:
            print(flush=True)
    missing = recording.missing()
    print(
        f"{len(recording.entries) - len(missing)} of {len(recording.entries)} cases recorded on "
        f"{recording.environment.device} in {arguments.out}"
    )
    for reason, count in Counter(entry.reason for entry in missing).most_common():
        print(f"  {count} not recorded: {reason}")
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """Return the command that makes the recording again, with FILE in place of the file's path."""
    words = ["gpulab", "record", "--out", "FILE", "--minutes", f"{arguments.minutes:g}"]
    words += ["--device", arguments.device] if arguments.device else []
    words += ["--visits", str(arguments.visits)] if arguments.visits != VISITS else []
    words += ["--only", *arguments.only] if arguments.only else []
    return shlex.join(words)  # names of experiments have spaces
