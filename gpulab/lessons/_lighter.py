"""What notebook 07 measures beside whole models: sparse against dense products, convolutions in groups, and the network to make lighter."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, compression, devices, recordings, timing, training
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _live
from gpulab.lessons._recorded_gpus import caption_of, recorded_gpus, with_captions
from gpulab.results import Result
from gpulab.timing.results import format_interval, format_ratio_interval
from gpulab.units import format_flops, format_flops_per_second, format_ratio, format_seconds, plural

SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_ROWS, _CHANNELS = 64, 128
# On an accelerator a layer that a CPU needs a millisecond for would show what starting a kernel takes, and nothing else.
_FEATURES, _GPU_FEATURES = 1024, 4096
_SIDE, _BATCH, _GPU_SIDE, _GPU_BATCH = 16, 8, 56, 64
_SECONDS = 0.25  # of sampling for each row
# A batch takes some milliseconds. Windows counts a thread's time by the ticks of its timer, 1/64 s (PEP 564 measures it for process_time).
_COARSE_SECONDS = 1e-4
_STEPS = 5  # of the clock that are looked at: one may be long because the processor itself was taken away
_ANY = 1e30  # layers of different weights are not meant to agree
_EXPERIMENT, _CHANCE = "compression", 0.9
TASK = "digits-cnn"


# -- sparse against dense --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparseRow(Result):
    """One share of zeros: the dense product and the one in CSR, in turns.

    Attributes
    ----------
    share : float
        Of zeros, 0 to 1.
    dense_seconds, sparse_seconds : float
    ratio : float or None
        Dense over sparse: above 1 the sparse one is faster.
    ratio_interval : (float, float) or None
    """

    share: float
    dense_seconds: float
    sparse_seconds: float
    ratio: float | None
    ratio_interval: tuple[float, float] | None


@dataclass(frozen=True)
class SparseRace(Result):
    """A linear layer with more and more zeros, dense and in CSR.

    Attributes
    ----------
    label : str
    rows : tuple of SparseRow
    evidence : Evidence
    """

    label: str
    rows: tuple[SparseRow, ...]
    evidence: Evidence

    @property
    def ascending(self) -> tuple[SparseRow, ...]:
        """The rows by their share of zeros, in whatever order the shares were tried."""
        return tuple(sorted(self.rows, key=lambda row: row.share))

    @property
    def break_even_share(self) -> float | None:
        """The smallest share of zeros tried from which on CSR was faster each time; None where it was not even with the most zeros."""
        found = None
        for row in reversed(self.ascending):
            if row.sparse_seconds >= row.dense_seconds:
                break
            found = row.share
        return found

    def __repr__(self) -> str:
        share = self.break_even_share
        return f"<{self.label}: CSR is faster {f'from {share:.0%} zeros' if share is not None else 'at none of these'}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a share."""
        rows = [
            (
                f"{row.share:.0%}",
                format_seconds(row.dense_seconds),
                format_seconds(row.sparse_seconds),
                _ratio(row.ratio, row.ratio_interval),
            )
            for row in self.rows
        ]
        return ("zeros", "dense", "CSR", "CSR is so many times as fast"), rows


def sparse_race(shares: Iterable[float] = SHARES, *, device: Any = None) -> SparseRace:
    """Time a linear layer of 1024 x 1024 weights (4096 x 4096 on a GPU) on 64 rows, dense and in CSR, with several shares of zeros.

    Parameters
    ----------
    shares : iterable of float
    device : optional
        None takes the best there is. Apple's GPU has no CSR products: then the CPU is taken.

    Raises
    ------
    InputError
        If there are no shares, or one is not from 0 up to, but not, 1.
    """
    import torch

    several = _given.items("sparse_race", "shares", shares)
    chosen = devices.find(device) if device is not None else devices.default()
    where = "cpu" if chosen.torch_type == "mps" else str(chosen)
    features = _FEATURES if where == "cpu" else _GPU_FEATURES
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layer, x = torch.nn.Sequential(torch.nn.Linear(features, features)).to(where), torch.randn(_ROWS, features).to(where)
    rows = []
    evidence = None
    for share in several:
        pruned = compression.finish(compression.prune(layer, share))
        race = _race({"dense": pruned, "CSR": compression.to_sparse(pruned)}, x)
        dense, sparse = race.rows
        rows.append(
            SparseRow(share, dense.measurement.median_seconds, sparse.measurement.median_seconds, sparse.speedup, sparse.speedup_interval)
        )
        evidence = race.evidence
    if evidence is None:
        raise InputError("sparse_race: there are no shares; expected at least one. Leave shares out.")
    return SparseRace(f"linear layer {features} x {features} on {_ROWS} rows", tuple(rows), evidence)


def _race(models: dict[str, Any], x: Any, clock: Callable[[], float] | None = None, seconds: float = _SECONDS) -> timing.Comparison:
    import torch

    def runner(model: Any) -> Any:
        def run(given: Any) -> None:
            with torch.no_grad():
                model(given)

        return run

    runs = {label: runner(model) for label, model in models.items()}
    return timing.compare(runs, x, devices=[str(x.device)], deadline=seconds, tolerance=_ANY, clock=clock)


def _ratio(ratio: float | None, interval: tuple[float, float] | None) -> str:
    if ratio is None:
        return "not told"
    return f"{format_ratio(ratio)} {format_ratio_interval(interval)}"


# -- convolutions in groups ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRow(Result):
    """One convolution.

    Attributes
    ----------
    name : str
    groups, parameters : int
    flops : float
        Of the batch, by count.
    seconds : float
    interval_seconds : (float, float) or None
    speedup : float or None
        The full convolution's time over this one's; None for the full one.
    speedup_interval : (float, float) or None
    """

    name: str
    groups: int
    parameters: int
    flops: float
    seconds: float
    interval_seconds: tuple[float, float] | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Grouping(Result):
    """One convolution in more and more groups, measured in turns.

    Attributes
    ----------
    label : str
    rows : tuple of GroupRow
        The full convolution first, the depthwise one last.
    evidence : Evidence
    """

    label: str
    rows: tuple[GroupRow, ...]
    evidence: Evidence

    @property
    def depthwise(self) -> GroupRow:
        """The convolution with a filter for each channel."""
        return self.rows[-1]

    def __repr__(self) -> str:
        fell = self.rows[0].flops / self.depthwise.flops
        return f"<{self.label}: depthwise has 1/{fell:.0f} of the FLOPs and is {format_ratio(self.depthwise.speedup or 1.0)} as fast>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a convolution."""
        rows = []
        for row in self.rows:
            took = f"{format_seconds(row.seconds)} {format_interval(row.interval_seconds)}"
            gain = "the first" if row.speedup is None else _ratio(row.speedup, row.speedup_interval)
            rate = format_flops_per_second(row.flops / row.seconds)
            rows.append((row.name, f"{row.parameters:,}", format_flops(row.flops), took, gain, rate))
        return ("3x3 convolution", "weights", "FLOP (counted)", "time", "times as fast", "rate"), rows


def grouping(*, device: Any = None) -> Grouping:
    """Time a 3x3 convolution of 128 channels on 8 images of 16x16 (64 of 56x56 on a GPU), full, in 4 and 32 groups, and depthwise.

    Parameters
    ----------
    device : optional
        None takes the best there is.
    """
    import torch

    chosen = devices.find(device) if device is not None else devices.default()
    where, side, batch = str(chosen), *((_SIDE, _BATCH) if chosen.is_cpu else (_GPU_SIDE, _GPU_BATCH))
    parts = {"full": 1, "4 groups": 4, "32 groups": 32, "depthwise": _CHANNELS}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        x = torch.randn(batch, _CHANNELS, side, side).to(where)
        layers = {name: torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=n, bias=False).to(where) for name, n in parts.items()}
    race = _race(layers, x)
    rows = []
    for row in race.rows:
        cost = compression.count(layers[row.name], x)
        m = row.measurement
        rows.append(
            GroupRow(
                row.name,
                parts[row.name],
                cost.parameters,
                float(cost.flops),
                m.median_seconds,
                m.interval_seconds,
                row.speedup,
                row.speedup_interval,
            )
        )
    label = f"3x3 convolution, {_CHANNELS} channels, {batch} images of {side}x{side}"
    return Grouping(label, tuple(rows), race.evidence)


# -- the network to make lighter -------------------------------------------------------------------------------------------------

_kept: dict[str, Any] = {}


def trained(task: str = TASK) -> Any:
    """Return a copy of a task's trained network; it is trained once a session, with seed 0.

    Parameters
    ----------
    task : str
    """
    return copy.deepcopy(_reference(task))


def _reference(task: str) -> Any:
    if task not in _kept:
        _kept[task] = compression.cook(compression.Recipe(), task, seed=0, device="cpu").eval()
    return _kept[task]


def changed_answers(before: Any, after: Any, task: str = TASK) -> int:
    """Return how many of a task's test items two models answer differently.

    Parameters
    ----------
    before, after : torch.nn.Module
    task : str
    """
    import torch

    inputs = training.task(task).test[:][0]
    with torch.no_grad():
        first, second = (model.eval()(inputs).argmax(-1) for model in (compression.finish(before), compression.finish(after)))
    return int((first != second).sum())


@dataclass(frozen=True)
class Budget(Result):
    """What a lighter model may cost.

    Attributes
    ----------
    least_accuracy : float
        The share of right answers on the test, 0 to 1.
    largest_file : int
        Bytes of the file of ``compression.save``.
    longest_time : float
        Of a batch on one core of this machine, as a share of that of the network as trained.
    batch : int
    """

    least_accuracy: float
    largest_file: int
    longest_time: float
    batch: int

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the three limits."""
        rows = [
            ("right answers on the test, at least", f"{self.least_accuracy:.0%}"),
            ("file, at most", f"{self.largest_file:,} bytes"),
            (
                f"time for {self.batch} images, at most",
                f"{self.longest_time:g} of the time of gl.lessons.trained(), on one core of this machine",
            ),
        ]
        return ("budget", ""), rows


def budget() -> Budget:
    """Return the budget of the last exercise of notebook 07."""
    return Budget(0.95, 14_000, 0.65, 256)


def time_against_trained(model: Any, batch: int, seconds: float = _SECONDS) -> timing.ComparisonRow:
    """Return a model's time for a batch against that of the trained network, in turns on one core of the CPU.

    Counted is the core's time for this thread: what else the machine does must not decide whether an answer is right. Where the system
    counts that in steps longer than a call, as Windows does, it is the time that passes.
    """
    import torch

    inputs = training.task(TASK).test[slice(0, batch)][0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that all of the work is done by the thread whose time is counted
    try:
        models = {"as trained": compression.finish(_reference(TASK)), "yours": compression.finish(model)}
        return _race(models, inputs, clock=_clock(), seconds=seconds).rows[1]
    finally:
        torch.set_num_threads(threads)


def _clock() -> Callable[[], float]:
    """Return the clock of this thread's own time on a core, or the wall's where that one is too coarse."""
    steps: list[float] = []
    last = time.thread_time()
    while len(steps) < _STEPS:
        now = time.thread_time()
        if now > last:
            steps.append(now - last)
            last = now
    return time.thread_time if min(steps) <= _COARSE_SECONDS else time.perf_counter


# -- what a GPU says, this machine's or a recorded one -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedForms(Result):
    """What accelerators say of lighter layers: the learner's own, or recorded ones.

    Attributes
    ----------
    rows : tuple of (machine, layer, time)
    evidence : tuple of Evidence
        Of each machine; empty where nothing was recorded.
    """

    rows: tuple[tuple[str, str, str], ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def _repr_html_(self) -> str:
        return with_captions(self)

    def __repr__(self) -> str:
        kind = "measured" if self._live else "recorded"
        return f"<{plural(len(self.rows), f'{kind} layer')}>" if self.rows else "<not recorded yet>"

    @property
    def _live(self) -> bool:
        return bool(self.evidence) and self.evidence[0].badge is Badge.MEASURED

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a layer, or that nothing was recorded."""
        headers = ("measured on" if self._live else "recorded on", "layer", "time (median, 95 %)")
        return headers, self.rows or (("not recorded yet", "", ""),)


def layer_forms(device: Any = None, deadline: float = 0.25) -> RecordedForms:
    """Return what this machine's GPU says of one linear layer in each form, measured now; without a GPU what recorded ones say.

    Parameters
    ----------
    device : optional
        None takes the best there is; a CPU is measured only where it is asked for.
    deadline : float
        Seconds of sampling for each form.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    where = _live.chosen(device)
    if where is None:
        return recorded_forms()
    rows, evidence = [], Evidence.measured(where.name)  # without a number of samples: each row has its own
    for params, found in _live.measured(_EXPERIMENT, _is_shown, where, deadline):
        if isinstance(found, str):
            took = found
        else:
            notes = ", ".join(_live.doubts(found))
            took = f"{format_seconds(found.median_seconds)} {format_interval(found.interval_seconds)}{f' ({notes})' if notes else ''}"
        rows.append((where.name, _words(params), took))
    return RecordedForms(tuple(rows), (evidence,)) if rows else recorded_forms()


def _is_shown(params: Any) -> bool:
    """The linear layer on many rows; in CSR with those shares of zeros that have a chance."""
    return bool(params["layer"] == "linear" and params["rows"] > 1 and (params["form"] != "csr" or params["zeros"] >= _CHANCE))


def _words(params: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in params.items())


def _by_layer(entry: recordings.Entry) -> tuple[Any, ...]:
    """What is compared stands together: one layer on as many rows, in one number format, dense before all others."""
    given = entry.params
    return (
        entry.experiment, str(given.get("layer", "")) != "linear", given.get("rows", 0), str(given.get("dtype", "")),
        str(given.get("form", "")) != "dense", str(given.get("form", "")), given.get("zeros", 0.0), given.get("groups", 0),
    )  # fmt: skip


def recorded_forms() -> RecordedForms:
    """Return what recorded accelerators say of lighter layers (dense, CSR, 2:4, 8 bits, groups); "not recorded yet" without any."""
    rows: list[tuple[str, str, str]] = []
    evidence: list[Evidence] = []
    for name, recording in recorded_gpus().items():
        before = len(rows)
        for entry in sorted(recording.entries, key=_by_layer):
            if entry.experiment != _EXPERIMENT or entry.timing is None:
                continue
            took = f"{format_seconds(entry.timing.median_seconds)} {format_interval(entry.timing.interval_seconds)}"
            rows.append((name, _words(entry.params), took))
        if len(rows) > before:
            evidence.append(recording.evidence())
    return RecordedForms(tuple(rows), tuple(evidence))
