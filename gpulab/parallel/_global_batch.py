"""What the global batch does to learning: more ranks mean larger batches and fewer updates, and the
learning rate decides what is left.

One process trains on the whole batch: averaging the gradients of ranks with equal parts computes
the same (``gpulab.parallel.train`` shows it), so accuracy needs no ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpulab import _given, training
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
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

    Returns
    -------
    GlobalBatchResult
        Accuracies with 95 % intervals over seeds and test items; evidence MEASURED.

    Raises
    ------
    InputError
        If a number is invalid, or a global batch is larger than the data.

    Notes
    -----
    The linear rule and the gradual warm-up are those of Goyal et al., "Accurate, Large Minibatch
    SGD: Training ImageNet in 1 Hour" (2017), sections 2.1 and 2.2.
    """
    job = training.task(task)
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
    batch = _given.whole("global_batch", "batch", batch, 1, 2**20)
    epochs = _given.whole("global_batch", "epochs", epochs, 1, 10_000)
    rate = _rate("learning_rate", learning_rate)
    momentum = _rate("momentum", momentum, zero=True)
    warm_up_epochs = _rate("warm_up_epochs", warm_up_epochs, zero=True)
    if not _given.is_whole(seeds):  # each training takes them anew
        seeds = tuple(_given.items("global_batch", "seeds", seeds))
    if several[-1] * batch > len(job.train):
        raise InputError(
            f"global_batch: {plural(several[-1], 'rank')} x {plural(batch, 'sample')} are "
            f"more than the {len(job.train)} that "
            f"{job.name} trains on; expected a global batch within them. Pass fewer ranks or a "
            "smaller batch."
        )
    rows: list[GlobalBatchRow] = []
    for p in several:
        # with one rank all rules are the same
        for rule in wanted if p > 1 else wanted[:1]:
            row = _train_row(
                rule,
                p,
                job=job,
                batch=batch,
                rate=rate,
                momentum=momentum,
                warm_up_epochs=warm_up_epochs,
                seeds=seeds,
                epochs=epochs,
                device=device,
            )
            rows += [replace(row, rule=name) for name in (wanted if p == 1 else [rule])]
    rows.sort(key=lambda row: (RULES.index(row.rule), row.ranks))
    evidence = Evidence.measured(
        rows[0].accuracy.evidence.device, samples=sum(len(row.accuracy.accuracies) for row in rows)
    )
    words = f"SGD with momentum {momentum:g}" if momentum else "SGD"
    return GlobalBatchResult(
        job.name, batch, epochs, words, rate, warm_up_epochs, tuple(rows), (), evidence
    )


def _train_row(
    rule: str,
    ranks: int,
    *,
    job: training.Task,
    batch: int,
    rate: float,
    momentum: float,
    warm_up_epochs: float,
    epochs: int,
    seeds: Any,
    **options: Any,
) -> GlobalBatchRow:
    """Train with the global batch of so many ranks under a rule, once for each seed."""
    size = ranks * batch
    an_epoch = len(job.train) // size
    scaled = rate * (1 if rule == RULES[0] else ranks)
    ramp = round(warm_up_epochs * an_epoch) if rule == RULES[2] else 0
    with _one_thread():
        runs = training.over_seeds(
            job,
            seeds,
            epochs=epochs,
            batch_size=size,
            optimizer=functools.partial(_warm_sgd, scaled, rate, ramp, momentum),
            **options,
        )
    lost = sum(run.ended == "diverged" for run in runs.runs)
    return GlobalBatchRow(rule, ranks, size, scaled, epochs * an_epoch, runs.accuracy, lost)


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


def _rate(name: str, value: Any, zero: bool = False) -> float:
    if not _given.is_finite(value) or not (0 <= value <= 1e6) or (value == 0 and not zero):
        raise InputError(
            f"global_batch: {name} is {shown(value)}; expected a finite number "
            f"{'from' if zero else 'above'} 0. Leave it out."
        )
    return float(value)
