"""Compare models: bytes on disk, FLOPs, measured time, accuracy, and why a smaller one is not
faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpulab import devices, memory, timing, training
from gpulab.compression import _count, _reasons, _storage, _targets
from gpulab.compression._finish import finish
from gpulab.compression._prune import zero_share
from gpulab.compression.results import Reason, WeighedModel, Weighing
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence, Note

Models = Any  # a module, several (one a seed), or a mapping from label to either

# Two models of different weights never agree to a tolerance; what they have in common is judged by
# the task's accuracy.
_ANY = 1e30


def weigh(
    models: Models,
    on: Any = None,
    *,
    inputs: Any = None,
    device: Any = None,
    batch_size: int = 64,
    deadline: float = 0.5,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> Weighing:
    """Return size on disk, FLOPs, measured time and accuracy of models, side by side.

    Parameters
    ----------
    models : module, sequence of modules, or mapping of str to either
        Each is finished first (masks become plain zeros, and so on). Several modules under one
        label are the same recipe with different seeds: all count for the accuracy, the first one
        for the time, the largest file for the size. All labels get the same batch and take turns,
        call by call; the first label is the baseline.
    on : str or Task, optional
        The task whose test gives the accuracy and the inputs.
    inputs : tensor, optional
        A batch to time with, in place of the test's first ``batch_size`` items; needed without a
        task.
    device : optional
        Where copies of the models are timed and tested; None takes the device of the first model.
    batch_size : int
    deadline : float
        Seconds of sampling for each model and each of the two batch sizes.
    progress, stop, clock : callable, optional
        As for ``gl.measure``.

    Returns
    -------
    Weighing
        Evidence MEASURED.

    Raises
    ------
    InputError
        If there are no models, or one does not take the inputs.
    DeviceError, StoppedError
        As for ``gl.measure``.

    Notes
    -----
    If the FLOPs fell but the time did not, the device's memory bandwidth is measured once per
    process (``gl.devices.ceilings``): memory is named as the cause only if the model's traffic
    comes near that rate.
    """
    named = _named(models)
    job = training.task(on) if on is not None else None
    where = devices.find(device) if device is not None else _where(next(iter(named.values()))[0])
    batch = _inputs(job, inputs, batch_size).to(str(where))
    report = progress or (lambda fraction, text: None)
    finished = {
        label: [finish(each).to(str(where)) for each in several] for label, several in named.items()
    }
    report(0.02, "counting and testing")
    flops = {
        label: float(_count.count(several[0], batch).flops) for label, several in finished.items()
    }
    accuracies = {
        label: tuple(training.evaluate(each, job) for each in several) if job is not None else ()
        for label, several in finished.items()
    }
    runs = {label: _runner(several[0]) for label, several in finished.items()}
    many = _race(runs, batch, deadline, _part(report, 0.1, 0.6), stop, clock)
    one = _race(runs, batch[:1], deadline, _part(report, 0.6, 1.0), stop, clock)
    facts = {}
    for number, (label, several) in enumerate(named.items()):
        speedup, interval = many.rows[number].speedup, many.rows[number].speedup_interval
        moved = _traffic(runs[label], batch)
        facts[label] = _reasons.Facts(
            label,
            len(batch),
            _reasons.forms(several[0], finished[label][0]),
            zero_share(finished[label][0]) or 0.0,
            flops[label],
            moved[0],
            moved[1],
            many.rows[number].measurement.median_seconds,
            one.rows[number].measurement.median_seconds,
            speedup,
            interval[0] if interval else None,
        )
    first = next(iter(facts.values()))

    # measured once a process, and only where it decides; another clock's seconds have none
    def roof(nbytes: int) -> float | None:
        return devices.ceilings(where, stop=stop).bandwidth(nbytes) if clock is None else None

    weighed = [
        _model(
            label,
            several,
            finished[label],
            facts[label],
            _reasons.reasons(first, facts[label], roof),
            many.rows[number],
            one.rows[number],
            accuracies[label],
        )
        for number, (label, several) in enumerate(named.items())
    ]
    measured = many.rows[0].measurement
    notes = (*_broken(accuracies), *_notes_of(many.rows))
    return Weighing(
        job.name if job is not None else "",
        where.name,
        len(batch),
        tuple(weighed),
        notes,
        many.evidence,
        measured.environment,
    )


def _broken(accuracies: Mapping[str, tuple[training.Accuracy, ...]]) -> tuple[Note, ...]:
    """Return a note on the models whose loss on the test is no finite number: a share of right
    answers hides that.
    """
    labels = [
        label
        for label, several in accuracies.items()
        if any(not math.isfinite(each.loss) for each in several)
    ]
    sentence = (
        f"{', '.join(labels)}: the loss on the test is infinite or nan, so its answers are no "
        "better than chance. Train it again."
    )
    return (Note("diverged", sentence),) if labels else ()


def _notes_of(rows: Any) -> tuple[Note, ...]:
    """Return one note of a kind, with the labels that it concerns: six models on a busy machine
    would say the same six times.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for row, note in [
        (each, note) for each in rows for note in each.measurement.notes if note.code != "too-short"
    ]:
        found.setdefault(note.code, []).append((row.name, note.sentence))
    return tuple(
        Note(code, f"{', '.join(name for name, _ in each)}: {each[0][1]}")
        for code, each in found.items()
    )


def _named(models: Models) -> dict[str, list[Any]]:
    given = models if isinstance(models, Mapping) else {"the model": models}
    named = {}
    for label, each in given.items():
        if not isinstance(label, str) or not label:
            raise InputError(
                f"weigh: a model is called {shown(label)}; expected text. Pass for example "
                f"{{'dense': model, 'pruned': small}}."
            )
        several = (
            list(each)
            if isinstance(each, Iterable)
            and not hasattr(each, "forward")
            and not isinstance(each, str)
            else [each]
        )
        if not several:
            raise InputError(
                f"weigh: {label!r} has no models; expected at least one. Pass a module."
            )
        named[label] = [_targets.module("weigh", one) for one in several]
    if not named:
        raise InputError(
            "weigh: there are no models; expected at least one. Pass for example {'dense': model}."
        )
    return named


def _where(model: Any) -> devices.Device:
    first = next((t for t in (*model.parameters(), *model.buffers())), None)
    return devices.find(str(first.device) if first is not None else "cpu")


def _inputs(job: Any, inputs: Any, batch_size: Any) -> Any:
    import torch

    if inputs is not None:
        if not isinstance(inputs, torch.Tensor) or inputs.dim() == 0 or not len(inputs):
            raise InputError(
                f"weigh: inputs is {shown(inputs)}; expected a tensor of items. Pass a batch, such "
                "as x[:64]."
            )
        return inputs
    if job is None:
        raise InputError(
            "weigh: neither a task nor inputs; expected one of them. Pass on='digits-cnn', or "
            "inputs=x."
        )
    return job.test[slice(0, _targets.whole("weigh", "batch_size", batch_size, 1, 1 << 20))][0]


def _runner(model: Any) -> Callable[[Any], None]:
    """Return a call that gives nothing back: outputs of different models are not meant to agree."""
    import torch

    def run(x: Any) -> None:
        with torch.no_grad():
            model(x)

    return run


def _part(
    report: Callable[[float, str], None], begin: float, end: float
) -> Callable[[float, str], None]:
    return lambda fraction, text: report(begin + (end - begin) * fraction, text)


def _race(
    runs: Mapping[str, Any], x: Any, deadline: float, progress: Any, stop: Any, clock: Any
) -> timing.Comparison:
    return timing.compare(
        dict(runs),
        x,
        devices=[str(x.device)],
        deadline=deadline,
        tolerance=_ANY,
        progress=progress,
        stop=stop,
        clock=clock,
    )


def _traffic(run: Callable[[Any], None], x: Any) -> tuple[int | None, int | None]:
    """Return operators and bytes moved, by count; None where an operator's storage cannot be looked
    at (a library's own tensors).
    """
    try:
        seen = memory.traffic(run, x)
    except Exception:
        return None, None
    return len(seen.operators), seen.nbytes


def _model(
    label: str,
    given: list[Any],
    finished: list[Any],
    facts: _reasons.Facts,
    why: tuple[Reason, ...],
    row: Any,
    single: Any,
    accuracies: Any,
) -> WeighedModel:
    m, s = row.measurement, single.measurement
    stored = _count._stored(finished[0])
    return WeighedModel(
        label=label,
        file_bytes=max(_storage.size_on_disk(each) for each in finished),
        parameters=stored,
        zeros=_stored_zeros(finished[0]),
        forms=facts.forms,
        flops_per_item=facts.flops / facts.batch,
        operators=facts.operators,
        moved_bytes=facts.moved_bytes,
        median_seconds=m.median_seconds,
        interval_seconds=m.interval_seconds,
        single_seconds=s.median_seconds,
        single_interval_seconds=s.interval_seconds,
        speedup=row.speedup,
        speedup_interval=row.speedup_interval,
        accuracies=accuracies,
        reasons=why,
        evidence=Evidence.measured(
            m.environment.device, len(m.samples_seconds), m.environment.date
        ),
    )


def _stored_zeros(model: Any) -> int:
    """Return how many weights are zero and stored: none of a CSR layer's, but all of a layer that
    stayed dense beside it.
    """
    import torch

    from gpulab.compression._modules import Sparse
    from gpulab.compression._prune import _has_weight, _numbers

    weights = [
        _numbers(m.weight.detach())
        for m in model.modules()
        if _has_weight(m) and not isinstance(m, Sparse)
    ]
    return sum(w.numel() - int(torch.count_nonzero(w)) for w in weights)
