"""The results of counting and weighing, as plain data for tables and figures."""

from __future__ import annotations

import dataclasses
import html
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table, html_more_notes, note_rows
from gpulab.timing.statistics import t_quantile
from gpulab.training import Accuracy
from gpulab.units import (
    format_bytes,
    format_flops,
    format_interval,
    format_ratio,
    format_seconds,
    format_speedup,
    plural,
)


@dataclass(frozen=True)
class Cost(Result):
    """The cost of a model, by count.

    Attributes
    ----------
    label : str
    batch : int
        Items.
    layers : mapping of str to (str, int, int)
        From a layer's name in the model, in the order in which the layers ran, to its kind
        ("linear", "convolution", "depthwise", "8 groups" or "recurrent", with the form in which its
        weight is stored), the number of stored weights and biases, and the FLOP of the whole batch.
    other_flops : int
        FLOP of matrix products outside of the counted layers, such as attention.
    parameters : int
        Of the whole model, each tied weight once.
    evidence : Evidence
        MODELLED.
    notes : tuple of Note
        Which operators were not counted.
    """

    schema_version: ClassVar[int] = 2  # 1 had no notes

    label: str
    batch: int
    layers: Mapping[str, tuple[str, int, int]]
    other_flops: int
    parameters: int
    evidence: Evidence
    notes: tuple[Note, ...] = ()

    @property
    def flops(self) -> int:
        """Of the whole batch."""
        return sum(flops for _, _, flops in self.layers.values()) + self.other_flops

    @property
    def flops_per_item(self) -> float:
        """Of one item of the batch."""
        return self.flops / self.batch

    def __repr__(self) -> str:
        return (
            f"<{self.label}: {self.parameters:,} parameters, {format_flops(self.flops_per_item)} "
            f"an item ({self.evidence.badge})>"
        )

    def table(self) -> Table:
        """Return one row a layer, and the sum."""
        other = ("other products", "attention and the like", "0", self.other_flops / self.batch)
        rows = [
            *(
                (name, kind, f"{parameters:,}", flops / self.batch)
                for name, (kind, parameters, flops) in self.layers.items()
            ),
            *([other] if self.other_flops else []),
            ("all", plural(len(self.layers), "layer"), f"{self.parameters:,}", self.flops_per_item),
        ]
        texts = [(*words, format_flops(flops)) for *words, flops in rows]
        return (self.label, "kind", "parameters", "FLOP an item"), texts + note_rows(self.notes, 4)


@dataclass(frozen=True)
class WeighedModel(Result):
    """One model in a comparison.

    Attributes
    ----------
    label : str
    file_bytes : int
        Of the file that ``compression.save`` writes.
    parameters, zeros : int
        Stored weights and biases; stored weights of linear and convolutional layers that are zero.
    forms : tuple of str
        How its layers are stored and computed, such as "dense zeros", "csr", "integers in float".
    flops_per_item : float
        By count.
    operators : int or None
        Operators that one call starts; None where they could not be counted.
    moved_bytes : int or None
        Bytes that those operators read and write by count, for the whole batch.
    median_seconds : float
        Of one call with a batch, until the device has finished.
    interval_seconds : (float, float) or None
    single_seconds : float
        Of one call with a single item.
    single_interval_seconds : (float, float) or None
    speedup : float or None
        The first model's time divided by this model's, measured in turns; None for the first model.
    speedup_interval : (float, float) or None
    accuracies : tuple of Accuracy
        On the test set, one for each seed; empty where no task was given.
    reasons : tuple of Note
        Why the model is not faster than the first, or less than its FLOPs suggest; empty where
        there is nothing to explain. The codes: "dense zeros", "unpacked", "converted", "rounding",
        "no instructions", "indices", "starting", "memory", "rate" or "elsewhere".
    evidence : Evidence
    """

    label: str
    file_bytes: int
    parameters: int
    zeros: int
    forms: tuple[str, ...]
    flops_per_item: float
    operators: int | None
    moved_bytes: int | None
    median_seconds: float
    interval_seconds: tuple[float, float] | None
    single_seconds: float
    single_interval_seconds: tuple[float, float] | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    accuracies: tuple[Accuracy, ...]
    reasons: tuple[Note, ...]
    evidence: Evidence

    @property
    def accuracy(self) -> float | None:
        """The share of right answers, mean over the seeds; None without a task."""
        return (
            sum(each.ratio for each in self.accuracies) / len(self.accuracies)
            if self.accuracies
            else None
        )

    @property
    def accuracy_interval(self) -> tuple[float, float] | None:
        """A 95 % interval over test items, and over seeds where there are several.

        With one seed, it is the interval of that seed's test. With several, two distances are
        combined on each side as independent errors are, by the root of the sum of squares: the one
        over the seeds (Student's t of their accuracies), and the one over the items (the mean of
        the seeds' own, as if all seeds failed on the same items). The second is an upper bound, so
        the interval is rather too wide than too narrow.
        """
        if self.accuracy is None:
            return None
        if len(self.accuracies) == 1:
            return self.accuracies[0].interval
        n = len(self.accuracies)
        spread = math.sqrt(
            sum((each.ratio - self.accuracy) ** 2 for each in self.accuracies) / (n - 1)
        )
        seeds = t_quantile(n - 1) * spread / math.sqrt(n)
        # Wilson's interval is not symmetric: near 100 % it reaches much further down than up
        down, up = (
            math.hypot(seeds, sum(each.interval[end] - each.ratio for each in self.accuracies) / n)
            for end in (0, 1)
        )
        return max(0.0, self.accuracy - down), min(1.0, self.accuracy + up)

    @property
    def faster(self) -> str:
        """The comparison with the first model: "faster", "slower", or "as fast" if the speed-up's
        interval includes 1. "" for the first model, or without an interval.
        """
        if self.speedup is None or self.speedup_interval is None:
            return ""
        low, high = self.speedup_interval
        return "faster" if low > 1 else "slower" if high < 1 else "as fast"

    def __repr__(self) -> str:
        accuracy = f", accuracy {100 * self.accuracy:.1f} %" if self.accuracy is not None else ""
        return (
            f"<{self.label}: {format_bytes(self.file_bytes)}, "
            f"{format_seconds(self.median_seconds)} a batch{accuracy}>"
        )


@dataclass(frozen=True)
class Weighing(Result):
    """Several models compared by the same measures; the first is the baseline.

    Attributes
    ----------
    task : str
        The task whose test set gave the accuracy; "" without a task.
    device : str
    batch : int
        Items of a call.
    models : tuple of WeighedModel
    notes : tuple of Note
    evidence : Evidence
        MEASURED, except for the FLOPs, which are counted.
    environment : Environment
    """

    task: str
    device: str
    batch: int
    models: tuple[WeighedModel, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each model except the first: how much smaller and faster it is, and why
        it is not faster still.
        """
        return tuple(_sentence(self.models[0], each) for each in self.models[1:])

    def front_of(self, *, size: bool = True, time: bool = True) -> tuple[str, ...]:
        """Return the labels of the models on the Pareto front: no other model is at least as good
        in every criterion and better in one. The criteria are accuracy and, if chosen, size and
        time.
        """
        values = {
            m.label: (m.accuracy or 0.0, -m.file_bytes * size, (m.speedup or 1.0) * time)
            for m in self.models
        }
        # a model is beaten by another that is at least as good in all values (more is better) and
        # better in one
        return tuple(
            label
            for label, mine in values.items()
            if not any(all(map(operator.ge, its, mine)) and its != mine for its in values.values())
        )

    def with_models(self, more: Weighing) -> Weighing:
        """Return this weighing with the models of another one that has the same first model; a
        model with the same label is replaced.

        Times of different weighings are comparable by ``speedup`` only: each was measured in turns
        with its own first model.
        """
        kept = {each.label: each for each in self.models}
        kept.update({each.label: each for each in more.models[1:]})
        # the newest note of each code: ten weighings would repeat it ten times
        notes = {note.code: note for note in (*self.notes, *more.notes)}
        return dataclasses.replace(self, models=tuple(kept.values()), notes=tuple(notes.values()))

    def __repr__(self) -> str:
        many = plural(len(self.models), "model")
        return (
            f"<{many} on {self.device}: {', '.join(each.label for each in self.models)} "
            f"({self.evidence.badge})>"
        )

    def table(self) -> Table:
        """Return one row per model."""
        several = max((len(each.accuracies) for each in self.models), default=0)
        right = f"accuracy ({several} seeds)" if several > 1 else "accuracy"
        headers = (
            "model",
            "file",
            "nonzero weights",
            "FLOP an item (counted)",
            f"time for {self.batch}",
            "time for 1",
            "speed-up",
            right,
        )
        rows = [
            (
                each.label,
                format_bytes(each.file_bytes),
                f"{each.parameters - each.zeros:,}",
                format_flops(each.flops_per_item),
                f"{format_seconds(each.median_seconds)} {format_interval(each.interval_seconds)}",
                format_seconds(each.single_seconds),
                "baseline"
                if each.speedup is None
                else format_speedup(each.speedup, each.speedup_interval),
                _right(each),
            )
            for each in self.models
        ]
        return headers, rows

    def _repr_html_(self) -> str:
        """Return the table, and below it, in full width, a sentence for each model and the
        notes.
        """
        notes = [f"Note ({note.code}): {note.sentence}" for note in self.notes]
        shown = "".join(f"<li>{html.escape(each)}</li>" for each in (*self.sentences, *notes[:2]))
        return f"{super()._repr_html_()}<ul>{shown}</ul>{html_more_notes(notes[2:])}"


def _right(model: WeighedModel) -> str:
    if model.accuracy is None or model.accuracy_interval is None:
        return "not measured"
    low, high = model.accuracy_interval
    return f"{100 * model.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _sentence(first: WeighedModel, one: WeighedModel) -> str:
    size = first.file_bytes / one.file_bytes
    small = (
        f"{format_ratio(size)} smaller"
        if size > 1.005
        else f"{format_ratio(1 / size)} larger"
        if size < 0.995
        else "as large"
    )
    if one.speedup is None:
        return f"{one.label}: {small} on disk."
    fast = {
        "faster": f"a speed-up of {format_ratio(one.speedup)}",
        "slower": f"slower (a speed-up of {format_ratio(one.speedup)})",
        "as fast": f"not faster (a speed-up of {format_ratio(one.speedup)}, and the interval "
        "includes 1)",
        "": f"a speed-up of {format_ratio(one.speedup)} without an interval (measure longer, or on "
        "a quieter machine)",
    }[one.faster]
    why = " ".join(reason.sentence for reason in one.reasons)
    return f"{one.label}: {small} on disk, {fast}.{' ' + why if why else ''}"
