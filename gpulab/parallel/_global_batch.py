"""What the global batch does to learning: more ranks mean larger batches and fewer updates, and the
learning rate decides what is left.

One process trains on the whole batch: averaging the gradients of ranks with equal parts computes
the same (``gpulab.parallel.train`` shows it), so accuracy needs no ranks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpulab import _given, training
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.parallel.results import GlobalBatchResult, GlobalBatchRow
from gpulab.units import plural

RULES = ("unchanged", "linear", "linear with warm-up")
_MOST_RANKS = 4096
_SEEDS = 3


def global_batch(
    task: str | training.Task = "digits-mlp",
    ranks: Iterable[int] = (1, 4, 8, 16, 32),
    *,
    batch: int = 16,
    epochs: int = 5,
    learning_rate: float = 0.03,
    momentum: float = 0.9,
    warm_up_epochs: float = 1.0,
    rules: Iterable[str] = RULES,
    seeds: int | Iterable[int] = _SEEDS,
    device: Any = "cpu",
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> GlobalBatchResult:
    """Train with the global batch of several numbers of ranks, for the same epochs, under rules for
    the learning rate.

    Parameters
    ----------
    task : str or Task
        One of ``gpulab.training.tasks()``.
    ranks : iterable of int
        The global batch is ranks x batch; it must not be larger than the training data.
    batch : int
        Samples of each rank.
    epochs : int
    learning_rate, momentum : float
        Of SGD with one rank.
    warm_up_epochs : float
        Epochs over which "linear with warm-up" raises the learning rate in equal steps, beginning
        with that of one rank.
    rules : iterable of str
        "unchanged"; "linear": times the ranks; "linear with warm-up". With one rank all are the
        same, and are trained once.
    seeds : int or iterable of int
        As in ``training.over_seeds``.
    device : optional
        As in ``training.fit``.
    progress, stop : callable, optional
        As in ``training.fit``; a stop keeps the rows that are complete.

    Returns
    -------
    GlobalBatchResult
        Accuracies with 95 % intervals over seeds and test items; evidence MEASURED.

    Raises
    ------
    InputError
        If a number is invalid, or a global batch is larger than the data.
    StoppedError
        If it was stopped before one row was complete.

    Notes
    -----
    The linear rule and the gradual warm-up are those of Goyal et al., "Accurate, Large Minibatch
    SGD: Training ImageNet in 1 Hour" (2017), sections 2.1 and 2.2.
    """
    job = training.task(task)
    report = _given.callback("global_batch", "progress", progress)
    stop = _given.callback("global_batch", "stop", stop)
    several = sorted(
        {
            _given.whole("global_batch", "ranks", each, 1, _MOST_RANKS)
            for each in _given.items("global_batch", "ranks", ranks)
        }
    )
    wanted = [
        _given.word("global_batch", "rule", rule, RULES)
        for rule in _given.items("global_batch", "rules", rules)
    ]
    if not several or not wanted:
        raise InputError(
            "global_batch: ranks or rules is empty; expected at least one of each. Leave them out "
            "for the defaults."
        )
    # each training takes them anew
    chosen = (
        seeds if _given.is_whole(seeds) else tuple(_given.items("global_batch", "seeds", seeds))
    )
    plan = _Plan(
        job,
        _given.whole("global_batch", "batch", batch, 1, 2**20),
        _given.whole("global_batch", "epochs", epochs, 1, 10_000),
        _rate("learning_rate", learning_rate),
        _rate("momentum", momentum, zero=True),
        _rate("warm_up_epochs", warm_up_epochs, zero=True),
        chosen,
        device,
        stop,
    )
    if several[-1] * plan.batch > len(job.train):
        raise InputError(
            f"global_batch: {plural(several[-1], 'rank')} x {plural(plan.batch, 'sample')} are "
            f"more than the {len(job.train)} that "
            f"{job.name} trains on; expected a global batch within them. Pass fewer ranks or a "
            "smaller batch."
        )
    runs = [(rule, p) for p in several for rule in (wanted if p > 1 else wanted[:1])]
    rows: list[GlobalBatchRow] = []
    notes: list[Note] = []
    for number, (rule, p) in enumerate(runs):
        try:
            row = plan.trained(rule, p, _part(report, number, len(runs), f"{rule}, {p} ranks"))
        except StoppedError:
            if not rows:
                raise
            notes.append(
                Note(
                    "stopped",
                    f"stopped after {len(rows)} of {len(runs)} trainings; the rows shown are "
                    "complete. Run it again for the rest.",
                )
            )
            break
        rows += [dataclasses.replace(row, rule=name) for name in (wanted if p == 1 else [rule])]
    rows.sort(key=lambda row: (RULES.index(row.rule), row.ranks))
    evidence = Evidence.measured(
        rows[0].accuracy.evidence.device, samples=sum(len(row.accuracy.accuracies) for row in rows)
    )
    words = f"SGD with momentum {plan.momentum:g}" if plan.momentum else "SGD"
    return GlobalBatchResult(
        job.name,
        plan.batch,
        plan.epochs,
        words,
        plan.rate,
        plan.warm_up_epochs,
        tuple(rows),
        tuple(notes),
        evidence,
    )


@dataclass(frozen=True)
class _Plan:
    """What all trainings share."""

    job: training.Task
    batch: int
    epochs: int
    rate: float
    momentum: float
    warm_up_epochs: float
    seeds: Any
    device: Any
    stop: Callable[[], bool] | None

    def trained(
        self, rule: str, ranks: int, progress: Callable[[float, str], None] | None
    ) -> GlobalBatchRow:
        """Train with the global batch of so many ranks under a rule, once for each seed.

        Raises
        ------
        StoppedError
            If it was stopped before all seeds were through: fewer seeds would be another row.
        """
        size = ranks * self.batch
        an_epoch = len(self.job.train) // size
        rate = self.rate * (1 if rule == RULES[0] else ranks)
        ramp = round(self.warm_up_epochs * an_epoch) if rule == RULES[2] else 0
        halted = StoppedError(
            "global_batch: stopped before its first row was complete; there is nothing to report. "
            "Run it again."
        )
        if self.stop is not None and self.stop():
            raise halted
        with _one_thread():
            found = training.over_seeds(
                self.job,
                self.seeds,
                epochs=self.epochs,
                batch_size=size,
                device=self.device,
                stop=self.stop,
                progress=progress,
                optimizer=functools.partial(_warm_sgd, rate, self.rate, ramp, self.momentum),
            )
        if any(note.code == "stopped" for note in found.notes):
            raise halted
        lost = sum(run.ended == "diverged" for run in found.runs)
        return GlobalBatchRow(rule, ranks, size, rate, self.epochs * an_epoch, found.accuracy, lost)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within the block torch works on one core: small batches gain nothing from more, and on a busy
    machine threads wait for threads.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _warm_sgd(rate: float, start: float, steps: int, momentum: float, parameters: Any) -> Any:
    """Return SGD whose learning rate rises from ``start`` to ``rate`` in equal parts over so many
    steps.
    """
    import torch

    class WarmSgd(torch.optim.SGD):
        """SGD that sets its own learning rate before each of its first steps."""

        taken = 0

        def step(self, closure: Any = None) -> Any:
            if self.taken <= steps:
                share = 1.0 if not steps else self.taken / steps
                for group in self.param_groups:
                    group["lr"] = start + (rate - start) * min(share, 1.0)
            self.taken += 1
            return super().step(closure)

    return WarmSgd(parameters, lr=rate if not steps else start, momentum=momentum)


def _part(
    report: Callable[[float, str], None] | None, number: int, count: int, what: str
) -> Callable[[float, str], None] | None:
    if report is None:
        return None
    return lambda fraction, text: report((number + fraction) / count, f"{what}: {text}")


def _rate(name: str, value: Any, zero: bool = False) -> float:
    if not _given.is_finite(value) or not (0 <= value <= 1e6) or (value == 0 and not zero):
        raise InputError(
            f"global_batch: {name} is {shown(value)}; expected a finite number "
            f"{'from' if zero else 'above'} 0. Leave it out."
        )
    return float(value)
