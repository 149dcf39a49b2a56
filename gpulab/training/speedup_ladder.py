"""The speed-up ladder: its techniques, the ladder that a machine recorded, and the one measured
here.

Each technique is a few options of ``training.fit``; nothing is implemented a second time here.

The ladder measures each technique alone, cumulatively (with all before it), and left out of all;
and all techniques together. All forms take turns of a few steps, so that a disturbance affects all
of them; a ratio is paired turn by turn and has an interval. Accuracy is measured separately: each
rung is trained on the same number of samples under the same seeds, and tested. Before the test the
running averages of batch norms are computed anew, as ``compression.cook`` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpulab import _validate, devices, networks
from gpulab.errors import GpulabError, InputError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.recordings import Entry, Recording
from gpulab.recordings.schema import RECORDING
from gpulab.results import Result, Table
from gpulab.timing.measuring import calm_collector
from gpulab.timing.statistics import (
    FEWEST_SAMPLES,
    median_interval,
    paired_ratio,
    product_interval,
)
from gpulab.training import backend_switches
from gpulab.training._loop import Run
from gpulab.training.data_tasks import Answers, Task, accuracy_of, difference_over_seeds, find_task
from gpulab.training.run_results import (
    TOLERANCE,
    Gain,
    LadderForm,
    LadderResult,
    Learned,
    LeftOut,
    Rung,
    SeedsAccuracy,
    verdict_of,
)
from gpulab.units import format_ratio, plural

# What a beginner's script does: items loaded one by one and copied in the loop, a small batch,
# every loss read, float32, nothing compiled.
START: Mapping[str, Any] = {"batch_size": 16, "loading": "items", "read_loss": True}
_LARGE_BATCH = 64
_AHEAD = 2


@dataclass(frozen=True)
class Technique:
    """One rung: options of ``fit`` that replace those of the beginner's script.

    Attributes
    ----------
    name, title : str
        A short name, and the title in tables.
    improves : str
        The part of a step that it improves.
    options : mapping
        Of ``training.fit``.
    model : callable, optional
        ``model() -> torch.nn.Module``: another model in place of the task's own.
    """

    name: str
    title: str
    improves: str = "the step"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        texts = (self.name, self.title, self.improves)
        if (
            not all(isinstance(text, str) and text for text in texts)
            or not isinstance(self.options, Mapping)
            or not (self.model is None or callable(self.model))
        ):
            raise InputError(
                f"Technique {shown(self.name)}: expected a name, a title and what it improves in a "
                "few words, options of fit by name, and a function that makes a model or None. "
                "Pass for example Technique('mine', 'my batch', options={'batch_size': 32})."
            )


_ALL = (
    Technique("resident", "data on the device", "loading", {"loading": "resident"}),
    Technique("prefetch", "pinned prefetch", "loading", {"prefetch": _AHEAD, "pinned": True}),
    Technique("batch", "larger batch", "starting operators", {"batch_size": _LARGE_BATCH}),
    Technique("waits", "fewer waits", "waiting", {"read_loss": False}),
    Technique("tf32", "TF32", "arithmetic", {"precision": "tf32"}),
    Technique("mixed", "mixed precision (bfloat16)", "arithmetic", {"precision": "bfloat16"}),
    Technique("layout", "channels last", "memory", {"channels_last": True}),
    Technique("autotune", "cuDNN autotune", "arithmetic", {"autotune": True}),
    Technique("fused", "fused optimizer", "starting operators", {"fused": True}),
    Technique("compile", "torch.compile", "starting operators", {"compile": True}),
    Technique("graph", "CUDA graph", "starting operators", {"cuda_graph": True}),
    Technique(
        "lighter", "depthwise layers", "arithmetic", model=lambda: networks.mobilenet(width=16)
    ),
)


def techniques(*names: str) -> tuple[Technique, ...]:
    """Return the course's techniques: all of them in the ladder's order, or the named ones in the
    order of the names.

    Raises
    ------
    InputError
        If there is no technique of a name.

    Examples
    --------
    >>> [technique.title for technique in techniques("batch", "fused")]
    ['larger batch', 'fused optimizer']
    """
    known = {technique.name: technique for technique in _ALL}
    chosen = tuple(known[_validate.word("techniques", "name", name, known)] for name in names)
    return chosen or _ALL


EXPERIMENT = "speed-up ladder"
SCRIPT, ALONE, UP_TO, WITHOUT = "the script", "alone", "with all before it", "all but it"


@dataclass(frozen=True, repr=False)
class RecordedLadder(Result):
    """The ladder that a machine recorded.

    Attributes
    ----------
    recording : str
        The machine's short name.
    model : str
        The model that was trained; "" if no ladder was recorded.
    rows : mapping of str to (Gain or None, Gain or None, Gain or None)
        By the technique's title, three speed-ups: of the technique alone over the script; of this
        and all techniques before it over the script; and of all techniques over all but this one. A
        speed-up that was not recorded is None.
    product : float or None
        The product of the single gains of all techniques that the recorder planned; None if one is
        missing.
    together : Gain or None
        All techniques that the recorder planned, over the script; None if they were not recorded
        together.
    evidence : Evidence
    """

    recording: str
    model: str
    rows: Mapping[str, tuple[Gain | None, Gain | None, Gain | None]]
    product: float | None
    together: Gain | None
    evidence: Evidence

    def __repr__(self) -> str:
        product = "" if self.product is None else f", product {format_ratio(self.product)}"
        together = self.together or "not recorded yet"
        return f"<ladder on {self.recording}: together {together}{product}>"

    def table(self) -> Table:
        """Return one row a technique, then the combination and the product."""
        product = "" if self.product is None else format_ratio(self.product)
        rows = [
            *(
                (title, *(str(gain or "") for gain in (up_to, alone, removed)))
                for title, (alone, up_to, removed) in self.rows.items()
            ),
            *([("all together vs script", str(self.together), "", "")] if self.together else []),
            *([("product of the single gains (MODELLED)", "", product, "")] if product else []),
        ]
        headers = (
            f"{self.recording} (RECORDED)",
            "cumulative vs script",
            "alone vs script",
            "all vs all but this",
        )
        return headers, rows or [("not recorded yet", "", "", "")]


@_validate.arguments(recording=RECORDING)
def recorded_ladder(recording: Recording) -> RecordedLadder:
    """Return the ladder that a machine recorded; one without rows means "not recorded yet".

    A recorder times one form after the other, so the interval of a ratio uses the least favorable
    ends of both intervals.

    Raises
    ------
    InputError
        If it is not a recording.

    Examples
    --------
    >>> from gpulab import recordings
    >>> recorded_ladder(recordings.load("amd-epyc-2-cores"))
    <ladder on amd-epyc-2-cores: together not recorded yet>
    """
    script = next(iter(recording.select(EXPERIMENT, form=SCRIPT)), None)
    if script is None:
        return RecordedLadder(recording.name, "", {}, None, None, recording.evidence())
    forms = {(e.params["form"], e.params["technique"]): e for e in recording.select(EXPERIMENT)}
    # Forms that failed or were not reached have entries too. The form with all techniques is the
    # last one that was planned; the last one that was recorded may lack techniques.
    asked = {
        (e.params.get("form"), e.params.get("technique"))
        for e in recording.entries
        if e.experiment == EXPERIMENT
    }
    planned = [one.name for one in techniques() if {(ALONE, one.name), (UP_TO, one.name)} & asked]
    climbed = [name for name in planned if (UP_TO, name) in asked]
    whole = forms.get((UP_TO, climbed[-1])) if climbed else None
    rows = {
        one.title: (
            _over(script, forms.get((ALONE, one.name))),
            _over(script, forms.get((UP_TO, one.name))),
            _over(forms.get((WITHOUT, one.name)), whole),
        )
        for one in techniques()
        if (ALONE, one.name) in forms or (UP_TO, one.name) in forms
    }
    singles = [alone.ratio for alone, _, _ in rows.values() if alone is not None]
    product = math.prod(singles) if rows and len(singles) == len(planned) else None
    model, together = str(script.params.get("model", "")), _over(script, whole)
    return RecordedLadder(recording.name, model, rows, product, together, recording.evidence())


def _over(first: Entry | None, second: Entry | None) -> Gain | None:
    """Return the speed-up of the second form over the first: the ratio of their seconds per sample;
    None if one was not recorded.
    """
    if first is None or second is None or first.timing is None or second.timing is None:
        return None
    samples = [float(e.params["steps"]) * float(e.params["batch_size"]) for e in (first, second)]
    return Gain(*first.timing.over(second.timing, samples[1] / samples[0]))


# -- the ladder, measured here

Names = tuple[str, ...]
_ENDLESS = 1_000_000  # no form ends by itself while turns are taken
# Steps before the turns: they compile, record a graph, make the optimizer's state, and include the
# step whose memory is followed.
_WARM_STEPS = 6
# waiting after each step of an accelerator would time the waiting
_STEPS_A_TURN = {"cpu": 2, "accelerator": 10}
_MOST_TURNS, _MOST_SAMPLES = 100_000, 10**9
# A technique is left out if, alone or added to those before it, a sample takes more than this many
# times as long in the first steps: it does not suit this device, and combinations with it would
# show nothing about the other techniques. (bfloat16 on a device without instructions for it, and
# depthwise layers in bfloat16, take 3 to 100 times as long.)
_HOPELESS, _SURELY = 2.0, 12.0  # beyond the second it is not even timed in turns

# The answers of the models that the script trained, by task, then by device and options. The same
# seed and options give the same model, bit for bit, so a second ladder of the session need not
# train the slowest form again. A task that nothing else refers to is dropped, with its data.
_scripts: weakref.WeakKeyDictionary[Task, dict[Any, Answers]] = weakref.WeakKeyDictionary()


@_validate.arguments(
    start=partial(
        _validate.instance,
        kind=Mapping,
        expected="options of fit by name. Pass for example {'batch_size': 16}.",
    ),
    samples=partial(_validate.whole, low=1, high=_MOST_SAMPLES),
    seeds=partial(_validate.whole, low=0, high=1000),
    turns=partial(_validate.whole, low=1, high=_MOST_TURNS),
    deadline=_validate.deadline,
    clock=_validate.clock,
)
def ladder(
    task: str | Task = "digits-cnn",
    chosen: Iterable[str | Technique] | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    device: Any = None,
    samples: int | None = None,
    seeds: int = 3,
    turns: int = 24,
    deadline: float = 60.0,
    clock: Callable[[], float] | None = None,
) -> LadderResult:
    """Apply techniques to a beginner's training one by one, and measure the gain of each at its
    place in the ladder, alone, and as the last one added.

    On a CPU PyTorch computes with one thread: small steps on several threads wait for each other
    whenever another process takes a core.

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
    device : optional
        None takes the best one available.
    samples : int, optional
        Number of samples on which each rung is trained before it is tested, the same for all; None
        takes the task's epochs.
    seeds : int
        Number of seeds with which each rung is trained to the end; 0 leaves accuracy out.
    turns : int
        Number of turns of each form. An interval needs 20.
    deadline : float
        Seconds of turns; afterwards no turn begins, except the first 20.
    clock : callable, optional
        As in ``fit``.

    Returns
    -------
    LadderResult
        Evidence MEASURED. Techniques that the device lacks are left out, with the reason.

    Raises
    ------
    InputError
        If there is no such task or technique, two techniques have the same name, no technique is
        left, or a form cannot be trained.
    DeviceError, OutOfMemoryError
        As ``fit``.

    Notes
    -----
    A larger batch changes the optimization: with the same samples the parameters are updated less
    often. So each form is trained on the same number of samples, and the effect on the accuracy is
    shown with the speed. Before each test the running averages of batch norms are computed anew
    from the training data (``torch.optim.swa_utils.update_bn``).

    Examples
    --------
    >>> from gpulab import training
    >>> short = {"start": {"batch_size": 2}, "device": "cpu", "seeds": 0, "turns": 2}
    >>> result = training.ladder("prose-transformer", ["batch"], **short)
    >>> [rung.title for rung in result.rungs], result.together.verdict
    (['larger batch'], 'no interval')
    """
    job, where = find_task(task), devices.find(device)
    given = techniques() if chosen is None else _validate.items("ladder", "chosen", chosen)
    wanted = [one if isinstance(one, Technique) else techniques(one)[0] for one in given]
    names = [technique.name for technique in wanted]
    if not wanted or len(set(names)) < len(names):
        raise InputError(
            f"ladder: the techniques are {', '.join(names) or 'none'}; expected at "
            "least one, each only once. Pass for example ['batch', 'fused']."
        )
    base = dict(START if start is None else start)
    length = job.epochs * len(job.train) if samples is None else samples
    climb = _Climb(job, where, base, clock)
    try:
        with backend_switches.threads(1, where):
            return climb.result(wanted, length, _validate.fewer(seeds, 2), turns, deadline)
    finally:
        for run in climb.runs.values():
            run.close()


class _Climb:
    """A ladder that is being measured: the forms, each with its own run, and the seconds per sample
    of each turn.
    """

    def __init__(self, job: Task, where: devices.Device, base: dict[str, Any], clock: Any) -> None:
        self.job, self.where, self.base, self.clock = job, where, base, clock
        self.known: dict[str, Technique] = {}
        self.runs: dict[Names, Run] = {}
        self.seconds: dict[Names, list[float]] = {}
        self.notes: list[Note] = []
        self.too_slow: list[Names] = []

    # -- forms -------------------------------------------------------------------------------------

    def _run(self, names: Names, **more: Any) -> Run:
        """Return a new run of the script with these techniques."""
        options, job = dict(self.base), self.job
        for name in names:
            technique = self.known[name]
            options.update(technique.options)
            if technique.model is not None:
                job = dataclasses.replace(job, _build=technique.model)
        if options.get("model") is not None:
            raise InputError(
                f"ladder, {self._words(names)}: the options contain {kind_of(options['model'])}, "
                "which all forms would train in turn; expected a model for each form. Pass a "
                "technique with a function that makes one: training.Technique('mine', 'my model', "
                "model=make)."
            )
        try:
            run = Run(job, device=self.where, clock=self.clock, **{**options, **more})
        except GpulabError as error:
            raise InputError(f"ladder, {self._words(names)}: {error}") from error
        run.parts_every = 0
        return run

    def _words(self, names: Names) -> str:
        return " + ".join(self.known[name].title for name in names) or "the script"

    def _form(self, names: Names) -> Run:
        """Return the run of a form, which is made and warmed up on the first call."""
        if names not in self.runs:
            run = self.runs[names] = self._run(names, steps=_ENDLESS)
            for _ in range(_WARM_STEPS):
                run.advance(1)
            self._check_learning(names, run)
        return self.runs[names]

    def _check_learning(self, names: Names, run: Run) -> None:
        if run.first_bad_step is not None:
            raise InputError(
                f"ladder, {self._words(names)}: the loss of step {run.first_bad_step} is infinite "
                f"or nan; expected a finite loss. Choose techniques without {names[-1]!r}."
                if names
                else "ladder: the script itself diverges. Pass a smaller learning_rate in start."
            )

    def _lacking(self, technique: Technique, below: Names) -> str | None:
        """Return why a technique cannot be added to those below on this device; None if it can. Its
        two forms, alone and with those below, are then warmed up.
        """
        self.known[technique.name] = technique
        before, script, alone = self._form(below), self._form(()), (technique.name,)
        run = self._form(alone)
        missing = _skipped(run)
        if missing and technique.options and not _follows_any(run, technique.options):
            return missing[0]
        for form, other, words in (
            (alone, script, "the script"),
            ((*below, technique.name), before, self._words(below)),
        ):
            slower = _times_as_long(self._form(form), other)
            if slower > _HOPELESS:
                self.too_slow += [alone] if slower <= _SURELY else []
                return (
                    f"With it, a sample took {slower:.3g} times as long in the first steps as with "
                    f"{words} alone: combinations with it would show nothing about the other "
                    "techniques. (If the machine was busy, this can be chance: run the cell again.)"
                )
        self.notes += [Note("skipped", f"{technique.title}: {sentence}") for sentence in missing]
        return None

    # -- turns -------------------------------------------------------------------------------------

    def _take_turns(self, forms: list[Names], turns: int, deadline: float) -> int:
        """Time the forms in turns; return how many turns each form had."""
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
                begin = turn % len(forms)
                order = forms[begin:] + forms[:begin]
                for names in order if turn % 2 == 0 else reversed(order):
                    self._turn(names)
        return turns

    def _turn(self, names: Names) -> None:
        run = self.runs[names]
        # first use up the batches that were loaded during the turns of other forms
        if run.options.prefetch:
            run.advance(max(2, run.options.prefetch) + 1)
        run.advance(_STEPS_A_TURN["cpu" if self.where.is_cpu else "accelerator"])
        self._check_learning(names, run)
        self.seconds[names].append(run.step_seconds[-1] / run.options.batch_size)

    def _gain(self, form: Names, over: Names = ()) -> Gain:
        """Return the speed-up of a form over another."""
        before, after = np.array(self.seconds[over]), np.array(self.seconds[form])
        return Gain(*paired_ratio(before, after))

    def _multiplied(self, names: Names) -> tuple[Gain, Gain]:
        """Return the product of the single gains, and the ratio of this product to the gain of the
        measured combination.
        """
        singles = [np.divide(self.seconds[()], self.seconds[(name,)]) for name in names]
        over = np.divide(self.seconds[names], self.seconds[()])
        product = float(np.prod([self._gain((name,)).ratio for name in names]))
        return (
            Gain(product, product_interval(np.array(singles))),
            Gain(product / self._gain(names).ratio, product_interval(np.array([*singles, over]))),
        )

    # -- what was learned --------------------------------------------------------------------------

    def _trained(self, names: Names, samples: int, seeds: int) -> list[Answers]:
        """Train a form on ``samples`` samples under each seed; return each model's answers on the
        test.
        """
        found, steps = [], max(1, samples // self.runs[names].options.batch_size)
        is_script = not names and not any(map(callable, self.base.values()))
        done = _scripts.setdefault(self.job, {}) if is_script else {}
        for seed in range(seeds):
            with contextlib.closing(self._run(names, steps=steps, seed=seed)) as run:
                key = str(self.where), run.options
                if key not in done:
                    while not run.is_over:
                        run.advance(50)
                    self._check_learning(names, run)
                    with backend_switches.switches(run.options.precision, run.device):
                        run.task.renew_norms(run.model)
                    done[key] = run.test()
                found.append(done[key])
        return found

    def _learned(
        self, rungs: list[Names], samples: int, seeds: int
    ) -> tuple[SeedsAccuracy | None, list[Learned | None]]:
        """Return the script's accuracy, and the accuracy of each rung compared with it; all None if
        there are no seeds.
        """
        if not seeds:
            return None, [None] * len(rungs)
        found: list[Learned | None] = []
        last: Names = ()
        script = before = self._trained((), samples, seeds)
        for names in rungs:
            run, size = self.runs[names], self.runs[names].options.batch_size
            # with the same batch size and losses, bit for bit, in the steps that both runs took,
            # the models are the same
            n = min(len(self.runs[last].losses), len(run.losses))
            same = self.runs[last].options.batch_size == size and (
                self.runs[last].losses[:n] == run.losses[:n]
            )
            answers = before if same else self._trained(names, samples, seeds)
            difference, interval = difference_over_seeds(script, answers)
            found.append(
                Learned(
                    accuracy_of(answers),
                    difference,
                    interval,
                    max(1, samples // size),
                    same,
                    verdict_of(interval, TOLERANCE),
                )
            )
            last, before = names, answers
        return accuracy_of(script), found

    # -- the whole ---------------------------------------------------------------------------------

    def result(
        self,
        wanted: list[Technique],
        samples: int,
        seeds: int,
        turns: int,
        deadline: float,
    ) -> LadderResult:
        """Measure the ladder and return its result."""
        names: Names = ()
        out: list[tuple[Technique, str]] = []
        for one in wanted:
            reason = self._lacking(one, names)
            if reason is None:
                names = (*names, one.name)
            else:
                out.append((one, reason))
        if not names:
            raise InputError(
                f"ladder: none of these techniques is left, since {self.where.name} lacks them or "
                "is slower with them; expected at least one. Pass others."
            )
        here = [self.known[name] for name in names]
        rungs = [names[: k + 1] for k in range(len(names))]
        without = [tuple(other for other in names if other != name) for name in names]
        singles = [(name,) for name in names]
        forms = list(dict.fromkeys([(), *rungs, *singles, *without, *self.too_slow]))
        for form in forms:
            self._form(form)
        for form in [form for form in self.runs if form not in forms]:
            self.runs.pop(form).close()
        taken = self._take_turns(forms, turns, deadline)
        # note each option that a form does not follow once, under the first such form
        for form in forms:
            for sentence in _skipped(self.runs[form]):
                if all(sentence not in note.sentence for note in self.notes):
                    self.notes.append(Note("skipped", f"{self._words(form)}: {sentence}"))
        accuracy, learned = self._learned(rungs, samples, seeds)
        product, overstated = self._multiplied(names)
        if taken < FEWEST_SAMPLES:
            few = f"{plural(taken, 'turn')} {'are' if taken != 1 else 'is'} too few for an interval"
            sentence = f"{few}; expected {FEWEST_SAMPLES}. Pass turns=24."
            self.notes.append(Note("no-interval", sentence))
        return LadderResult(
            task=self.job.name,
            device=str(self.where),
            samples=samples,
            seeds=tuple(range(seeds)),
            tolerance=TOLERANCE,
            start=self._described(()),
            start_accuracy=accuracy,
            rungs=tuple(
                Rung(
                    one.name,
                    one.title,
                    one.improves,
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
                )
                for one, reason in out
            ),
            recorded_evidence=(),
            turns=taken,
            notes=tuple(self.notes),
            evidence=Evidence.measured(self.where.name, samples=taken),
            environment=devices.environment(self.where),
        )

    def _described(self, names: Names) -> LadderForm:
        """Return a form's speed, and the times of the parts and the memory of its steps."""
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
    """Return the sentences on requested options that a run does not follow on this device."""
    return [note.sentence for note in run.notes if note.code == "skipped"]


def _follows_any(run: Run, options: Mapping[str, Any]) -> bool:
    """Return whether a run follows at least one of the options. An option that is a function, which
    the run's own options do not show, counts as followed.
    """
    return any(
        callable(value) or getattr(run.options, name, value) == value
        for name, value in options.items()
    )


def _times_as_long(run: Run, other: Run) -> float:
    """Return the ratio of the seconds per sample of two runs, each at its fastest step. If the
    ratio is large, another program may have slowed a run, so both take more steps in turns, and
    only these count.
    """

    def ratio(last: int) -> float:
        mine, its = (min(one.step_seconds[-last:]) / one.options.batch_size for one in (run, other))
        return mine / its

    if ratio(0) <= _HOPELESS:
        return ratio(0)
    for one in (other, run) * _WARM_STEPS:
        one.advance(1)
    return ratio(_WARM_STEPS)
