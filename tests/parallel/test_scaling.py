"""Measured scaling: the arithmetic on made-up ranks whose times are known, real ranks, and the global batch's effect on learning."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gpulab as gl
from gpulab import models, training
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Badge
from gpulab.parallel import _global_batch, _scaling, _scaling_step
from gpulab.parallel._scaling_step import MODELS, StepModel, StepSpec, Turns

ONE, ALPHA, RATE, BYTES = 0.1, 50e-6, 1e9, 4_000_000


class MadeRanks:
    """Ranks whose steps take the time that the ring model says, each multiplied by its own small noise; the link is alpha and rate."""

    def __init__(self, n: int, *, cores: int = 8, weak: bool = False, delay: float = 0.0, hosts: int = 1) -> None:
        self.n, self.cores, self.weak, self.delay, self.hosts = n, cores, weak, delay, hosts
        self.called: list[str] = []
        self._draw = np.random.default_rng(3)

    def step(self, count: int) -> float:
        """Return a step's time, by hand: compute, then 2 (p - 1) messages of 1 / p of the gradients."""
        compute = ONE if self.weak else ONE / count
        return compute + 2 * (count - 1) * (ALPHA + BYTES / count / RATE)

    def run(self, function: Any, *args: Any) -> list[Any]:
        """Answer as the ranks would."""
        self.called.append(function.__name__)
        return getattr(self, f"_{function.__name__}")(*args)

    def _facts(self) -> list[dict[str, Any]]:
        each = {"cores": self.cores, "threads": 1, "accelerators": 0}
        return [{"host": f"host{rank % self.hosts}", **each} for rank in range(self.n)]

    def _begin(self, token: str, spec: StepSpec) -> list[int]:
        self.spec = spec
        return [BYTES] * self.n

    def _end(self, token: str) -> list[None]:
        return [None] * self.n

    def _collective_times(self, name: str, nbytes: int, repeats: int) -> list[list[tuple[float, float]]]:
        seconds = 2 * (self.n - 1) * (ALPHA + nbytes / self.n / RATE)
        return [[(0.0, seconds)] * repeats for _ in range(self.n)]

    def _turns(self, token: str, rounds: int, samples: int) -> list[Turns]:
        columns = {c: self.step(c) * (1 + 0.005 * self._draw.standard_normal(rounds * samples)) for c in self.spec.counts}
        return [
            Turns({c: list(column * (1 if rank else 1.0001)) for c, column in columns.items() if rank < c}, 1.0, self.delay)
            for rank in range(self.n)
        ]


def _measured(ranks: MadeRanks, **changed: Any) -> Any:
    counts = changed.pop("counts", (1, 2, 4))
    spec = StepSpec(MODELS["mlp"], 240, ranks.weak, counts, changed.pop("wait_seconds", None))
    stop = changed.pop("stop", None)
    return _scaling._Measuring(ranks, spec, changed.pop("deadline", 0.05), None, stop).result()  # type: ignore[arg-type]


def test_strong_points_by_hand() -> None:
    """100 ms on one rank, 4 MB over 1 GB/s: on four ranks 25 ms + 6 x (50 us + 1 ms) = 31.3 ms, a speed-up of 3.195, predicted exactly."""
    found = _measured(MadeRanks(4))
    four = found.at(4)
    assert four.median_seconds == pytest.approx(0.0313, rel=0.005)
    assert four.speedup == pytest.approx(0.1 / 0.0313, rel=0.01)
    assert four.efficiency == pytest.approx(0.1 / 0.0313 / 4, rel=0.01)
    low, high = four.speedup_interval
    assert low < four.speedup < high < 1.02 * low
    assert four.predicted_seconds == pytest.approx(0.0313, rel=0.005)
    assert four.predicted_overlapped_seconds == pytest.approx(0.025, rel=0.01)  # 6.3 ms fit behind two thirds of 25 ms
    assert (found.latency_seconds, found.bandwidth_bytes_per_second) == (pytest.approx(ALPHA, rel=0.01), pytest.approx(RATE, rel=0.01))
    assert (four.batch, four.samples_per_second) == (60, pytest.approx(240 / four.median_seconds))
    assert found.evidence.badge is Badge.MEASURED
    assert found.prediction.evidence.badge is Badge.MODELLED
    assert found.notes == ()


def test_weak_points_by_hand() -> None:
    """Each rank keeps its 240 samples: 100 ms + 6.3 ms a step on four, 4 / 1.063 the samples a second."""
    found = _measured(MadeRanks(4, weak=True))
    assert found.at(4).speedup == pytest.approx(4 / 1.063, rel=0.01)
    assert found.at(4).predicted_seconds == pytest.approx(0.1063, rel=0.005)
    assert [p.batch for p in found.points] == [240, 240, 240]
    with pytest.raises(InputError, match="weak scaling"):
        found.serial_share()


def test_serial_share_of_measured_points() -> None:
    """A made-up fifth that does not divide comes back, inside its interval."""
    ranks = MadeRanks(4)
    ranks.step = lambda count: ONE * (0.2 + 0.8 / count)  # type: ignore[method-assign]
    share = _measured(ranks).serial_share()
    low, high = share.interval
    assert low < 0.2 < high
    assert high - low < 0.05


def test_more_ranks_than_processors_is_said() -> None:
    """Four ranks on two processors: a note, and a prediction in which they take turns (50 ms of compute, not 25)."""
    found = _measured(MadeRanks(4, cores=2))
    assert found.processors == 2
    assert [note.code for note in found.notes] == ["contended"]
    assert found.at(4).predicted_seconds == pytest.approx(0.05 + 0.0063, rel=0.01)
    assert "take turns" in found.sentence
    assert _measured(MadeRanks(4, cores=2, hosts=2)).processors == 4


def test_neighbours_on_the_cores_are_said() -> None:
    """A lone rank without a core for a third of its time gives a note; for a hundredth, none."""
    busy = _measured(MadeRanks(2, delay=0.33), counts=(1, 2))
    assert "33 % of the time" in busy.notes[0].sentence
    assert _measured(MadeRanks(2, delay=0.01), counts=(1, 2)).notes == ()


def test_a_timed_wait_is_named() -> None:
    """Ranks that wait in place of computing need no processors, and the result says what they did, in a note and in its sentence."""
    found = _measured(MadeRanks(4, cores=1), wait_seconds=0.1)
    assert found.stage == "a timed wait"
    assert [note.code for note in found.notes] == ["skipped"]
    assert "timed wait" in found.sentence
    assert found.at(4).predicted_seconds == found.at(4).predicted_overlapped_seconds == pytest.approx(0.0313, rel=0.005)


def test_one_rank_has_nothing_beside_it() -> None:
    """With one rank there is no all-reduce to time and nothing to compare with."""
    found = _measured(MadeRanks(1), counts=(1,))
    assert found.prediction is None
    assert "nothing to compare" in found.sentence
    assert "collective_times" not in str(found.environment)
    without_one = _measured(MadeRanks(4), counts=(2, 4))
    assert without_one.at(4).speedup is None
    assert without_one.prediction is None


def test_a_stop_keeps_what_was_measured() -> None:
    """Stopped after some rounds the points stand, with a note; stopped at once there is nothing, and the ranks have let go either way."""
    asked = iter([False] * 25 + [True] * 100)  # three passes of seven sizes of the all-reduce, then chunks of turns
    ranks = MadeRanks(2)
    ranks.step = lambda count: 0.1 + 0.5 * np.random.default_rng().random()  # type: ignore[method-assign]  # never precise
    found = _measured(ranks, counts=(1, 2), stop=lambda: next(asked), deadline=60.0)
    assert found.has_note("stopped")
    assert len(found.at(2).samples_seconds) > 0
    ranks = MadeRanks(2)
    with pytest.raises(StoppedError):
        _measured(ranks, counts=(1, 2), stop=lambda: True)
    assert ranks.called[-1] == "end"


def test_few_samples_have_no_interval() -> None:
    """Where steps are too slow for twenty samples in three deadlines there is a time without an interval, and a note."""
    ranks = MadeRanks(2)
    turns = ranks._turns
    ranks._turns = lambda *args: (time.sleep(0.02), turns(*args))[1]  # type: ignore[method-assign,func-returns-value]
    found = _measured(ranks, counts=(1, 2), deadline=1e-3)
    assert found.at(2).interval_seconds is None
    assert found.has_note("no-interval")
    assert "(no interval)" in found.table()[1][1][2]


def test_result_round_trip_and_table() -> None:
    """A result goes through JSON, and its table has a row a number of ranks, the link, and the notes."""
    found = _measured(MadeRanks(4, cores=2))
    assert gl.parallel.ScalingResult.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    rows = found.table()[1]
    assert [row[0] for row in rows] == ["1 rank", "2 ranks", "4 ranks", "link", "each step", "note: contended"]
    with pytest.raises(InputError, match="3 ranks were not measured"):
        found.at(3)


def test_times_of_a_collective() -> None:
    """From when the last rank entered to when the last had its result; across hosts the longest stay of one rank."""
    calls = [[(0.0, 5.0), (10.0, 11.0)], [(3.0, 4.5), (10.5, 12.0)]]
    assert _scaling_step.call_seconds(calls) == [2.0, 1.5]
    assert _scaling_step.call_seconds(calls, one_clock=False) == [5.0, 1.5]
    assert _scaling_step.slowest([[1.0, 1.0], [0.5, 2.0]]) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": "two"}, "ranks is 'two'"),
        ({"model": "resnet-9000"}, "model is 'resnet-9000'"),
        ({"mode": "sideways"}, "strong, weak"),
        ({"batch": 3}, "does not divide among 2 ranks"),
        ({"batch": 3}, "batch=4"),
        ({"batch": 2.5}, "batch is 2.5"),
        ({"counts": (1, 3)}, "counts has 3"),
        ({"counts": ()}, "counts is empty"),
        ({"deadline": float("inf")}, "deadline is inf"),
        ({"wait_seconds": -1}, "wait_seconds is -1"),
    ],
)
def test_refusals(given: dict[str, Any], words: str) -> None:
    """What cannot be is refused in one sentence, before anything is started."""
    with pytest.raises(InputError) as failure:
        gl.parallel.scaling(**{"ranks": 2, **given})
    assert words in str(failure.value)


def test_default_counts() -> None:
    """Each number up to four, then powers of two, and all."""
    assert _scaling._counts(2, None) == (1, 2)
    assert _scaling._counts(12, None) == (1, 2, 3, 4, 8, 12)


# Real ranks.


def _small() -> Any:
    return gl.networks.mlp(8, 16, 10)


def test_real_ranks(ranks: Any) -> None:
    """Two real ranks take steps of their own and together: points with intervals, a link from the all-reduce, gradients of 4 bytes each."""
    heard: list[float] = []
    model = StepModel("a small perceptron", _small, (8,), batch=12)
    found = gl.parallel.scaling(ranks, model, deadline=0.3, progress=lambda fraction, text: heard.append(fraction))
    assert [p.ranks for p in found.points] == [1, 2]
    assert [p.batch for p in found.points] == [12, 6]
    assert all(len(p.samples_seconds) >= 20 for p in found.points)
    assert found.parameter_bytes == 4 * (8 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10)
    assert found.at(2).speedup_interval is not None
    assert found.bandwidth_bytes_per_second > 0
    assert heard == sorted(heard)
    assert ranks.run(dist.get_world_size) == [2, 2]  # the ranks are as they were


def test_real_ranks_that_wait(ranks: Any) -> None:
    """A wait of 20 ms is never shorter on one rank, nor 10 ms on two that halve it; two ranks take less, since waits need no core."""
    found = gl.parallel.scaling(ranks, "mlp", wait_seconds=0.02, deadline=0.6)
    assert min(found.at(1).samples_seconds) >= 0.02
    assert min(found.at(2).samples_seconds) >= 0.01
    assert found.parameter_bytes == 4 * (256 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)
    assert found.at(1).median_seconds < 0.03


def _state_of_a_step(token: str) -> list[float]:
    """Return a rank's weights after more steps of the job for two ranks."""
    job = _scaling_step._JOBS[token]
    for _ in range(3):
        job.steps[2]()
    wrapped = next(cell.cell_contents for cell in job.steps[2].__closure__ or () if isinstance(cell.cell_contents, torch.nn.Module))
    return [float(p.double().sum()) for p in wrapped.parameters()]


def test_ranks_of_a_group_average(ranks: Any) -> None:
    """The step that is timed is a real one: both ranks keep the same weights, which move."""
    spec = StepSpec(StepModel("a small perceptron", _small, (8,), batch=12), 12, False, (1, 2))
    ranks.run(_scaling_step.begin, "test", spec)
    first, second = ranks.run(_state_of_a_step, "test")
    again, _ = ranks.run(_state_of_a_step, "test")
    ranks.run(_scaling_step.end, "test")
    assert first == second
    assert first != again


# The global batch.


def test_rules_for_the_learning_rate() -> None:
    """Warm-up rises in equal parts from the rate of one rank and then stays: 0.1, 0.2, 0.3, 0.4, 0.4 over three steps."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = _global_batch._warm_sgd(0.4, 0.1, 3, 0.0, [weight])
    moved = []
    for _ in range(5):
        before = weight.item()
        weight.grad = torch.ones(1)
        optimizer.step()
        moved.append(before - weight.item())
    assert moved == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_global_batch_rows() -> None:
    """1,297 digits: batches of 64 give 20 updates an epoch, of 256 five; rates by the rule; one rank is trained once for all rules."""
    heard: list[str] = []
    found = gl.parallel.global_batch(
        "digits-mlp", (4, 1), batch=64, epochs=1, learning_rate=0.01, seeds=1, progress=lambda fraction, text: heard.append(text)
    )
    items = len(training.task("digits-mlp").train)
    assert [(r.rule, r.ranks, r.global_batch, r.learning_rate, r.steps) for r in found.rows] == [
        ("unchanged", 1, 64, 0.01, items // 64),
        ("unchanged", 4, 256, 0.01, items // 256),
        ("linear", 1, 64, 0.01, items // 64),
        ("linear", 4, 256, 0.04, items // 256),
        ("linear with warm-up", 1, 64, 0.01, items // 64),
        ("linear with warm-up", 4, 256, 0.04, items // 256),
    ]
    ones = [row.accuracy for row in found.rows if row.ranks == 1]
    assert ones[0] == ones[1] == ones[2]
    assert len({text.split(":")[0] for text in heard}) == 4
    assert found.evidence.badge is Badge.MEASURED
    assert gl.parallel.GlobalBatchResult.from_dict(json.loads(json.dumps(found.to_dict()))).rows == found.rows
    plain = training.fit(
        "digits-mlp", epochs=1, batch_size=256, optimizer=lambda p: torch.optim.SGD(p, lr=0.04, momentum=0.9), seed=0, device="cpu"
    )
    assert found.select("linear")[1].accuracy.mean == pytest.approx(plain.accuracy.ratio)


def test_a_stopped_global_batch_keeps_whole_rows() -> None:
    """Stopped in the second training the first one stands, with a note; stopped in the first there is nothing."""
    state = SimpleNamespace(trained=0)

    def progress(fraction: float, text: str) -> None:
        state.trained = max(state.trained, int(fraction * 2 + 1e-9))

    options: dict[str, Any] = {"batch": 64, "epochs": 1, "seeds": 1, "rules": ("linear",), "progress": progress}
    found = gl.parallel.global_batch("digits-mlp", (1, 2), stop=lambda: state.trained >= 1, **options)
    assert [row.ranks for row in found.rows] == [1]
    assert found.notes[0].code == "stopped"
    with pytest.raises(StoppedError):
        gl.parallel.global_batch("digits-mlp", (1, 2), stop=lambda: True, **options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": (1, 100000)}, "ranks is 100000"),
        ({"ranks": ()}, "no number of ranks"),
        ({"ranks": (1, 64), "batch": 64}, "64 ranks x 64 samples are more than the"),
        ({"batch": 0}, "batch is 0"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"warm_up_epochs": float("nan")}, "warm_up_epochs is nan"),
        ({"rules": ("square root",)}, "linear with warm-up"),
        ({"task": "chess"}, "chess"),
    ],
)
def test_refusals_of_the_global_batch(given: dict[str, Any], words: str) -> None:
    """What cannot be is refused before anything is trained."""
    with pytest.raises(InputError) as failure:
        gl.parallel.global_batch(**given)
    assert words in str(failure.value)


def test_prediction_is_the_model() -> None:
    """The prediction of a result is what gl.models.scaling gives for one rank's median and the fitted link."""
    found = _measured(MadeRanks(4))
    again = models.scaling(
        found.at(1).median_seconds, BYTES, found.latency_seconds, found.bandwidth_bytes_per_second, [1, 2, 4], processors=8
    )
    assert dataclasses.replace(again, evidence=found.prediction.evidence) == found.prediction
