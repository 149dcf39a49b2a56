"""The ladder of techniques: measured alone, cumulatively, all together, and all but one.

All forms take turns, step by step, so that what disturbs one disturbs all; a ratio is paired turn
by turn and has an interval. What was learned is measured apart: each rung is trained on the same
number of samples under the same seeds, and tested.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gpulab import _given, devices
from gpulab.devices import Device
from gpulab.errors import GpulabError, InputError, StoppedError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing.measuring import calm_collector
from gpulab.timing.statistics import FEWEST_SAMPLES, median_interval, median_ratio, ratio_interval
from gpulab.training import backend_switches
from gpulab.training._evaluate import Answers, accuracy_of, difference_over_seeds
from gpulab.training._fit import fit
from gpulab.training._run import Run
from gpulab.training._techniques import START, Technique, techniques
from gpulab.training.data_tasks import Task
from gpulab.training.data_tasks import task as find_task
from gpulab.training.ladder_recordings import recorded_gains
from gpulab.training.results import (
    Gain,
    LadderForm,
    LadderResult,
    Learned,
    LeftOut,
    Rung,
    SeedsAccuracy,
    verdict_of,
)
from gpulab.units import plural

Names = tuple[str, ...]
# arguments of ``fit`` that are the same for all forms
_NOT_OF_A_FORM = {"task", "device", "clock", "save", "progress", "stop"}
_STEPS = 1_000_000  # no form ends by itself while turns are taken
# compiling, a graph's recording, the optimizer's state, the step whose memory is followed
_WARM_STEPS = {"cpu": 6, "accelerator": 6}
# waiting after each step of an accelerator would time the waiting
_STEPS_A_TURN = {"cpu": 2, "accelerator": 10}
_MOST_TURNS = 100_000
# Times as long for a sample, in its first steps, alone or upon those before it: such a technique is
# not for this device, and with it inside no combination would say anything of the others. (bfloat16
# without instructions, depthwise layers in it: 3 to 100 times.)
_HOPELESS, _SURELY = 2.0, 12.0  # beyond the second it is not even worth a turn
# whose best says how long one takes: a single one may have been held up by another program
_FEWEST_STEPS = 3

# What the script's models answered, by task, device and options: the same seed and options give the
# same model, bit for bit, so that a second ladder of one session need not train the slowest form
# again.
_scripts: dict[Any, Answers] = {}


def ladder(
    task: str | Task = "digits-cnn",
    chosen: Iterable[str | Technique] | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    leave_out: Mapping[str, str] | Iterable[str] = (),
    device: Any = None,
    samples: int | None = None,
    seeds: int = 3,
    turns: int = 24,
    tolerance: float = 0.02,
    deadline: float = 60.0,
    threads: int | None = 1,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> LadderResult:
    """Apply techniques to a beginner's training one by one, and measure the gain of each at its
    place, alone, and at the end.

    Parameters
    ----------
    task : str or Task
        What is learned.
    chosen : iterable of str or Technique, optional
        The ladder, beginning with its first rung: names of ``techniques()``, or techniques of your
        own; None takes all of the course's.
    start : mapping, optional
        Options of ``fit`` that make the beginner's script; by default small batches of items loaded
        one by one, and each loss read.
    leave_out : iterable of str, or mapping of str to str
        Names to leave out; a mapping also gives the reasons.
    device : optional
        None takes the best there is.
    samples : int, optional
        Number of samples on which each rung is trained before it is tested, the same for all; None
        takes the task's epochs.
    seeds : int
        Number of seeds with which each rung is trained to the end; 0 leaves accuracy out.
    turns : int
        Number of turns of each form. An interval needs 20.
    tolerance : float
        The largest loss of accuracy, as a ratio, that counts as none.
    deadline : float
        Seconds of turns; afterwards no turn begins, except the first 20.
    threads : int, optional
        PyTorch's threads on a CPU. Small steps on several threads wait for each other whenever
        another process takes a core; None leaves their number as it is.
    progress, stop, clock : callable, optional
        As in ``fit``; a stop after every form had a turn keeps the result so far, without accuracy
        if that was not measured yet.

    Returns
    -------
    LadderResult
        Evidence MEASURED. Techniques that the device lacks are left out, with the reason and the
        gains of recorded machines.

    Raises
    ------
    InputError
        If there is no such task or technique, two have one name, no technique is left, or a form
        cannot be trained.
    DeviceError, OutOfMemoryError
        As ``fit``.
    StoppedError
        If ``stop`` returned True before every form had a turn.

    Notes
    -----
    A larger batch changes the optimization: with the same samples the parameters are updated less
    often. So each form is trained on the same number of samples, and the effect on the accuracy is
    shown with the speed.

    Examples
    --------
    >>> from gpulab import training
    >>> short = {"start": {"batch_size": 2}, "device": "cpu", "seeds": 0, "turns": 2}
    >>> result = training.ladder("prose-transformer", ["batch"], **short)
    >>> [rung.title for rung in result.rungs], result.together.verdict
    (['larger batch'], 'no interval')
    """
    job, where = find_task(task), devices.find(device)
    wanted = _wanted(chosen)
    reasons = _reasons(leave_out, wanted)
    base = _script(start, wanted)
    for name, value, least, most in (("seeds", seeds, 0, 1000), ("turns", turns, 1, _MOST_TURNS)):
        if not _given.is_whole(value) or not least <= value <= most:
            raise InputError(
                f"ladder: {name} is {shown(value)}; expected a whole number from {least} to "
                f"{most:,}. Pass {name}={least + 1}."
            )
    if not _given.is_finite(tolerance) or tolerance < 0:
        raise InputError(
            f"ladder: tolerance is {shown(tolerance)}; expected a number of at least 0. Leave it "
            "out."
        )
    deadline = _given.deadline("ladder", deadline)
    if samples is not None and (not _given.is_whole(samples) or samples < 1):
        raise InputError(
            f"ladder: samples is {shown(samples)}; expected a whole number of at least 1. Leave it "
            "out."
        )
    threads = backend_switches.check_threads("ladder", threads)
    climb = _Climb(job, where, base, _given.clock("ladder", clock))
    climb.report = _given.callback("ladder", "progress", progress)
    climb.stop = _given.callback("ladder", "stop", stop)
    try:
        with backend_switches.threads(threads, where):
            length = int(samples or job.epochs * len(job.train))
            return climb.result(
                wanted, reasons, length, int(seeds), int(turns), float(tolerance), deadline
            )
    finally:
        for run in climb.runs.values():
            run.close()


def _wanted(chosen: Any) -> list[Technique]:
    given = techniques() if chosen is None else _given.items("ladder", "chosen", chosen)
    found = [one if isinstance(one, Technique) else techniques(one)[0] for one in given]
    names = [technique.name for technique in found]
    if not found or len(set(names)) < len(names):
        raise InputError(
            f"ladder: the techniques are {', '.join(names) or 'none'}; expected some, each once. "
            "Pass such as ['batch', 'fused']."
        )
    return found


def _script(start: Any, wanted: list[Technique]) -> dict[str, Any]:
    """Return the options of the beginner's script; a model among them would be one for all forms,
    each training what the last one left.
    """
    if start is not None and not isinstance(start, Mapping):
        raise InputError(
            f"ladder: start is {shown(start)}; expected options of fit by name. Pass for example "
            f"{{'batch_size': 16}}."
        )
    base = dict(START if start is None else start)
    known = set(inspect.signature(fit).parameters) - _NOT_OF_A_FORM
    for what, options in (
        ("start", base),
        *((technique.title, technique.options) for technique in wanted),
    ):
        unknown = [name for name in options if name not in known]
        if unknown:
            raise InputError(
                f"ladder: {what} has {shown(unknown[0])}; expected some of "
                f"{', '.join(sorted(known))}. Pass these names."
            )
        if options.get("model") is not None:
            raise InputError(
                f"ladder: {what} has a model, {kind_of(options['model'])}, which all forms would "
                "train in turn; expected one for each. Pass a technique with a function that "
                "makes one: training.Technique('mine', 'my model', model=make)."
            )
    return base


def _reasons(leave_out: Any, wanted: list[Technique]) -> dict[str, str]:
    if not isinstance(leave_out, Mapping):
        leave_out = dict.fromkeys(
            _given.items("ladder", "leave_out", leave_out), "Left out on request."
        )
    reasons = {name: str(reason) for name, reason in leave_out.items()}
    names = [technique.name for technique in wanted]
    wrong = [name for name in reasons if name not in names]
    if wrong:
        raise InputError(
            f"ladder: leave_out has {shown(wrong[0])}; expected some of {', '.join(names)}. Pass "
            "these names."
        )
    return reasons


class _Climb:
    """A ladder that is being measured: the forms, each a run of its own, and the seconds a sample
    of each turn.
    """

    report: Callable[[float, str], None] | None = None
    stop: Callable[[], bool] | None = None

    def __init__(self, job: Task, where: Device, base: dict[str, Any], clock: Any) -> None:
        self.job, self.where, self.base, self.clock = job, where, base, clock
        self.kind = "cpu" if where.is_cpu else "accelerator"
        self.known: dict[str, Technique] = {}
        self.runs: dict[Names, Run] = {}
        self.seconds: dict[Names, list[float]] = {}
        self.notes: list[Note] = []
        self.too_slow: list[Names] = []
        self.stopped = False

    # -- forms -------------------------------------------------------------------------------------

    def _run(self, names: Names, **more: Any) -> Run:
        """Return a new run of the script with these techniques."""
        options, job = dict(self.base), self.job
        for name in names:
            technique = self.known[name]
            options.update(technique.options)
            if technique.model is not None:
                job = dataclasses.replace(job, _build=technique.model)
        try:
            run = Run(job, device=self.where, clock=self.clock, **{**options, **more})
        except GpulabError as error:
            raise InputError(f"ladder, {self._words(names)}: {error}") from error
        run.parts_every = 0
        return run

    def _words(self, names: Names) -> str:
        return " + ".join(self.known[name].title for name in names) or "the script"

    def _form(self, names: Names, beside: Run | None = None) -> Run:
        """Return the run of a form, warmed up; the same one each time. One that is hopeless beside
        another warms up no longer.
        """
        if names not in self.runs:
            self._ask(0.0, f"warming up: {self._words(names)}")
            run = self.runs[names] = self._run(names, steps=_STEPS)
            for _ in range(_WARM_STEPS[self.kind]):
                run.advance(1)
                if beside is None or len(run.step_seconds) < _FEWEST_STEPS:
                    continue
                if _slower(run, beside) > _SURELY:
                    break
            self._check_learning(names, run)
        return self.runs[names]

    def _check_learning(self, names: Names, run: Run) -> None:
        if run.first_bad_step is not None:
            raise InputError(
                f"ladder, {self._words(names)}: the loss of step {run.first_bad_step} is infinite "
                f"or nan; expected a finite loss. Pass leave_out=[{names[-1]!r}]."
                if names
                else "ladder: the script itself diverges. Pass a smaller learning_rate in start."
            )

    def _ask(self, fraction: float, text: str) -> None:
        if self.stop is not None and self.stop():
            raise StoppedError(
                "ladder: stopped before every form had a turn; expected them to run. Call it again."
            )
        if self.report is not None:
            self.report(fraction, text)

    def _lacking(self, technique: Technique, below: Names) -> str | None:
        """Return why a technique cannot be climbed here upon those below; None where both its forms
        are there, warmed up.
        """
        reason = technique.lacks(self.where)
        if reason is not None:
            return reason
        self.known[technique.name] = technique
        alone = (technique.name,)
        before = self._form(below)
        script = self._form(())
        run = self._form(alone, script)
        missing = _skipped(run)
        if missing and technique.options and not _follows_any(run, technique.options):
            return missing[0]
        for form, other, words in (
            (alone, script, "Added to the script"),
            ((*below, technique.name), before, f"Added to {self._words(below)}"),
        ):
            tried = self._form(form, other)
            known = {*missing, *_skipped(other)}
            lost = [sentence for sentence in _skipped(tried) if sentence not in known]
            if lost and not self._follows(form):
                return f"{words}: {lost[0]}"
            slower = self._hopeless(tried, other)
            if slower is not None:
                self.too_slow += [alone] if _slower(run, script) <= _SURELY else []
                return (
                    f"{words}, a sample took {slower:.3g} times as long in the first steps: "
                    "combinations with it would show nothing about the other techniques. (If the "
                    "machine was busy, this can be chance: run the cell again.)"
                )
        self.notes += [Note("skipped", f"{technique.title}: {sentence}") for sentence in missing]
        return None

    def _follows(self, names: Names) -> bool:
        """Return whether a form does something of what each of its techniques asks and no later one
        asks otherwise.
        """
        last = {option: name for name in names for option in self.known[name].options}
        for name in names:
            options = self.known[name].options.items()
            asked = {option: value for option, value in options if last[option] == name}
            if asked and not _follows_any(self.runs[names], asked):
                return False
        return True

    def _hopeless(self, run: Run, other: Run) -> float | None:
        """Return how many times as long a run takes where that is too slow; by steps in turns,
        since another program may have held it up.
        """
        slower = _slower(run, other)
        steps = _WARM_STEPS[self.kind] if slower > _HOPELESS else 0
        for taken in range(1, steps + 1):
            for one in (other, run) if taken % 2 else (run, other):  # neither always second
                one.advance(1)
            slower = _slower(run, other, taken)
            if taken >= _FEWEST_STEPS and slower > _SURELY:
                break
        return slower if slower > _HOPELESS else None

    # -- turns -------------------------------------------------------------------------------------

    def _take_turns(self, forms: list[Names], turns: int, deadline: float) -> int:
        """Let the forms take turns; returns how many each had."""
        self.seconds = {names: [] for names in forms}
        read = self.clock or time.perf_counter
        end = read() + deadline
        with calm_collector():
            for turn in range(turns):
                if turn >= FEWEST_SAMPLES and read() > end:
                    sentence = (
                        f"{turn} of {turns} turns were taken in {deadline:g} s. Allow a longer "
                        "deadline."
                    )
                    self.notes.append(Note("deadline", sentence))
                    return turn
                try:
                    self._ask(0.3 + 0.3 * turn / turns, f"turn {turn + 1} of {turns}")
                except StoppedError:
                    if not turn:
                        raise
                    self._end_here(f"after {turn} of {turns} turns")
                    return turn
                begin = turn % len(forms)
                order = forms[begin:] + forms[:begin]
                for names in order if turn % 2 == 0 else reversed(order):
                    self._turn(names)
        return turns

    def _end_here(self, when: str) -> None:
        """Note that the learner stopped it: what the turns have shown is kept, and nothing more is
        begun.
        """
        self.stopped = True
        sentence = (
            f"The ladder was stopped {when}; the result shows what was measured until then. Run it "
            "again for the rest."
        )
        self.notes.append(Note("stopped", sentence))

    def _turn(self, names: Names) -> None:
        run = self.runs[names]
        ahead, workers = run.options.prefetch, run.options.workers
        # what was loaded during the others' turns is used up first
        if ahead or workers:
            run.advance(max(1, workers) * max(2, ahead) + 1)
        run.advance(_STEPS_A_TURN[self.kind])
        self._check_learning(names, run)
        self.seconds[names].append(run.step_seconds[-1] / run.options.batch_size)

    def _gain(self, form: Names, over: Names = ()) -> Gain:
        """Return the speed-up of a form over another."""
        before, after = np.array(self.seconds[over]), np.array(self.seconds[form])
        return Gain(
            median_ratio(before, after, paired=True), ratio_interval(before, after, paired=True)[0]
        )

    def _multiplied(self, names: Names) -> tuple[Gain, Gain]:
        """Return the product of the single gains, and that over the measured combination."""
        script, together = np.array(self.seconds[()]), np.array(self.seconds[names])
        products = np.prod([script / np.array(self.seconds[(name,)]) for name in names], axis=0)
        product = float(np.prod([self._gain((name,)).ratio for name in names]))
        ratio = product / self._gain(names).ratio
        return (
            Gain(product, _around(products, product)),
            Gain(ratio, _around(products * together / script, ratio)),
        )

    # -- what was learned --------------------------------------------------------------------------

    def _trained(self, names: Names, samples: int, seeds: int) -> list[Answers]:
        """Train a form on so many samples under each seed; return what each model answers on the
        test.
        """
        found = []
        is_script = not names and not any(map(callable, self.base.values()))
        for seed in range(seeds):
            size = self.runs[names].options.batch_size
            run = self._run(names, steps=max(1, samples // size), seed=seed)
            key = (self.job, str(self.where), run.options)
            try:
                if is_script and key in _scripts:
                    found.append(_scripts[key])
                    continue
                while not run.is_over:
                    at = f"step {len(run.losses)} of {run.options.steps}"
                    self._ask(0.6, f"training {self._words(names)}, seed {seed}: {at}")
                    run.advance(50)
                self._check_learning(names, run)
                run.evaluate()
                assert run.answers is not None
                found.append(run.answers)
                if is_script:
                    _scripts[key] = run.answers
            finally:
                run.close()
        return found

    def _learned(
        self, rungs: list[Names], samples: int, seeds: int, tolerance: float
    ) -> tuple[SeedsAccuracy | None, list[Learned | None]]:
        """Return the script's accuracy, and what each rung learned beside it; nothing where it was
        not asked for, or a stop came before the end.
        """
        nothing: list[Learned | None] = [None] * len(rungs)
        if not seeds or self.stopped:
            return None, nothing
        found: list[Learned | None] = []
        last: Names = ()
        try:
            script = before = self._trained((), samples, seeds)
            for names in rungs:
                run, size = self.runs[names], self.runs[names].options.batch_size
                same = _is_same_training(self.runs[last], run)
                answers = before if same else self._trained(names, samples, seeds)
                difference, interval = difference_over_seeds(script, answers)
                found.append(
                    Learned(
                        accuracy_of(answers),
                        difference,
                        interval,
                        max(1, samples // size),
                        same,
                        verdict_of(interval, tolerance),
                    )
                )
                last, before = names, answers
        except StoppedError:
            self._end_here("before every form was trained to the end, so there is no accuracy")
            return None, nothing
        return accuracy_of(script), found

    # -- the whole ---------------------------------------------------------------------------------

    def result(
        self,
        wanted: list[Technique],
        reasons: dict[str, str],
        samples: int,
        seeds: int,
        turns: int,
        tolerance: float,
        deadline: float,
    ) -> LadderResult:
        """Climb, and return what was found."""
        here: list[Technique] = []
        out: list[tuple[Technique, str]] = []
        for one in wanted:
            below = tuple(other.name for other in here)
            reason = reasons.get(one.name) or self._lacking(one, below)
            if reason is None:
                here.append(one)
            else:
                out.append((one, reason))
        if not here:
            raise InputError(
                f"ladder: {self.where.name} has none of these techniques; expected at least one. "
                "Pass others."
            )
        names = tuple(one.name for one in here)
        rungs = [names[: k + 1] for k in range(len(names))]
        without = [self._all_but(name, names) for name in names]
        singles = [(name,) for name in names]
        forms = list(dict.fromkeys([(), *rungs, *singles, *without, *self.too_slow]))
        for form in forms:
            self._form(form)
        for form in [form for form in self.runs if form not in forms]:
            self.runs.pop(form).close()
        taken = self._take_turns(forms, turns, deadline)
        self._note_what_was_skipped(forms)
        accuracy, learned = self._learned(rungs, samples, seeds, tolerance)
        product, overstated = self._multiplied(names)
        if taken < FEWEST_SAMPLES:
            few = f"{plural(taken, 'turn')} {'are' if taken != 1 else 'is'} too few for an interval"
            sentence = f"{few}; expected {FEWEST_SAMPLES}. Pass turns=24."
            self.notes.append(Note("no-interval", sentence))
        recorded = {one.name: recorded_gains(one.name) for one, _ in out}
        if self.report is not None:
            self.report(1.0, "done")
        return LadderResult(
            task=self.job.name,
            device=str(self.where),
            samples=samples,
            seeds=tuple(range(0 if accuracy is None else seeds)),
            tolerance=tolerance,
            start=self._described(()),
            start_accuracy=accuracy,
            rungs=tuple(
                Rung(
                    one.name,
                    one.title,
                    one.mends,
                    self._described(rung),
                    self._gain(rung, rung[:-1]),
                    self._gain((one.name,)),
                    self._gain(names, others),
                    what,
                )
                for one, rung, others, what in zip(here, rungs, without, learned, strict=True)
            ),
            together=self._gain(names),
            product=product,
            overstated=overstated,
            left_out=tuple(
                LeftOut(
                    one.name,
                    one.title,
                    reason,
                    self._gain((one.name,)) if (one.name,) in self.too_slow else None,
                    tuple((machine, case, gain) for machine, case, gain, _ in recorded[one.name]),
                )
                for one, reason in out
            ),
            recorded_evidence=tuple(
                {e.sentence: e for gains in recorded.values() for *_, e in gains}.values()
            ),
            turns=taken,
            notes=tuple(self.notes),
            evidence=Evidence.measured(self.where.name, samples=taken),
            environment=devices.environment(self.where),
        )

    def _note_what_was_skipped(self, forms: list[Names]) -> None:
        """Note what a form does not do of what it is called, each once, under the first form that
        lacks it.
        """
        for form in forms:
            for sentence in _skipped(self.runs[form]):
                if all(sentence not in note.sentence for note in self.notes):
                    self.notes.append(Note("skipped", f"{self._words(form)}: {sentence}"))

    def _all_but(self, name: str, names: Names) -> Names:
        """Return all techniques but one; all of them where a later one sets all that it sets, with
        a note: no form is timed against itself.
        """
        mine = self.known[name]
        if mine.options and mine.model is None:
            for other in names[names.index(name) + 1 :]:
                later = self.known[other]
                if set(mine.options) <= set(later.options):
                    sentence = (
                        f"{mine.title}: {later.title} replaces it, so that leaving it out changes "
                        "nothing at the end."
                    )
                    self.notes.append(Note("skipped", sentence))
                    return names
        return tuple(other for other in names if other != name)

    def _described(self, names: Names) -> LadderForm:
        """Return how fast a form is, and what its steps take."""
        run, seconds = self.runs[names], np.array(self.seconds[names])
        span, _ = median_interval(seconds)
        return LadderForm(
            names,
            run.options.batch_size,
            1 / float(np.median(seconds)),
            None if span is None or span[0] <= 0 else (1 / span[1], 1 / span[0]),
            self._gain(names),
            run.meter.first_step_seconds or 0.0,
            run.meter.phase_seconds,
            run.meter.peak_bytes,
        )


def _skipped(run: Run) -> list[str]:
    """Return what a run was asked to do and does not do on this device, in sentences."""
    return [note.sentence for note in run.notes if note.code == "skipped"]


def _follows_any(run: Run, options: Mapping[str, Any]) -> bool:
    """Return whether a run follows one of the options at least; a function, which its own options
    do not show, it follows.
    """
    return any(
        callable(value) or getattr(run.options, name, value) == value
        for name, value in options.items()
    )


def _slower(run: Run, other: Run, last: int = 0) -> float:
    """Return how many times as long a sample takes in one run, at the best of the steps that only
    trained, or of the last of them.
    """
    mine, its = (min(one.step_seconds[-last:]) / one.options.batch_size for one in (run, other))
    return mine / its


def _is_same_training(one: Run, other: Run) -> bool:
    """Return whether two runs that took turns have batches of one size and the same losses, bit for
    bit, as far as both went.
    """
    n = min(len(one.losses), len(other.losses))
    same_size = one.options.batch_size == other.options.batch_size
    return same_size and one.losses[:n] == other.losses[:n]


def _around(values: np.ndarray, figure: float) -> tuple[float, float] | None:
    """Return a 95 % interval of the median of values, wide enough to hold the figure that is shown
    for it.
    """
    span, _ = median_interval(values)
    return None if span is None else (min(span[0], figure), max(span[1], figure))
