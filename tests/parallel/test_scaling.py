"""Measured scaling: the arithmetic on made-up ranks whose times are known, real ranks, and the global batch's effect on learning."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gpulab as gl
from gpulab import devices, models, training
from gpulab.errors import InputError, RankError, StoppedError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.parallel import _global_batch, _scaling, _scaling_step
from gpulab.parallel._backend import own_device
from gpulab.parallel._scaling_step import MODELS, StepModel, StepSpec, Turns
from gpulab.parallel.scaling_results import ScalingMeasurement, ScalingResult

ONE, ALPHA, RATE, BYTES = 0.1, 50e-6, 1e9, 4_000_000


class MadeRanks:
    """Ranks whose steps take the time that the ring model says, each multiplied by its own small noise; the link is alpha and rate.

    Their clock runs only while they take turns: a round lasts ``round_seconds``, whatever their steps are said to take.
    """

    now, round_seconds = 50.0, 1e-3

    def __init__(self, n: int, *, cores: int = 8, weak: bool = False, delay: float = 0.0, hosts: int = 1) -> None:
        self.n, self.cores, self.weak, self.delay, self.hosts = n, cores, weak, delay, hosts
        self.accelerators, self.environment = 0, devices.environment("cpu")
        self.called: list[str] = []
        self._draw = np.random.default_rng(3)

    def step(self, count: int) -> float:
        """Return a step's time, by hand: compute, then 2 (p - 1) messages of 1 / p of the gradients."""
        compute = ONE if self.weak else ONE / count
        return compute + 2 * (count - 1) * (ALPHA + BYTES / count / RATE)

    def noise(self, size: int) -> np.ndarray:
        """Return what each sample is multiplied by."""
        return 1 + 0.005 * self._draw.standard_normal(size)

    def monotonic(self) -> float:
        """Return the seconds so far."""
        return self.now

    def run(self, function: Any, *args: Any) -> list[Any]:
        """Answer as the ranks would."""
        self.called.append(function.__name__)
        return getattr(self, f"_{function.__name__}")(*args)

    def _facts(self) -> list[dict[str, Any]]:
        each = {"cores": self.cores, "threads": 1, "accelerators": self.accelerators, "environment": self.environment}
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
        self.now += rounds * self.round_seconds
        columns = {c: self.step(c) * self.noise(rounds * samples) for c in self.spec.counts}
        return [
            Turns({c: list(column * (1 if rank else 1.0001)) for c, column in columns.items() if rank < c}, 1.0, self.delay)
            for rank in range(self.n)
        ]


def _measured(ranks: MadeRanks, **changed: Any) -> Any:
    counts = changed.pop("counts", (1, 2, 4))
    spec = StepSpec(MODELS["mlp"], 240, ranks.weak, counts, changed.pop("wait_seconds", None))
    stop, heard = changed.pop("stop", None), changed.pop("progress", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scaling, "time", ranks)
        return _scaling._Measuring(ranks, spec, changed.pop("deadline", 0.05), heard, stop).result()  # type: ignore[arg-type]


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


def test_the_progress_of_a_measurement_rises_to_one() -> None:
    """From the models to the end, also where a stop ended it early."""
    heard: list[tuple[float, str]] = []
    for stop in (None, lambda: len(heard) > 20):
        heard.clear()
        _measured(MadeRanks(4), progress=lambda *told: heard.append(told), stop=stop)
        fractions = [fraction for fraction, _ in heard]
        assert fractions == sorted(fractions)
        assert (heard[0], heard[-1]) == ((0.5, "making a model on each rank"), (1.0, "done"))


def test_weak_points_by_hand() -> None:
    """Each rank keeps its 240 samples: 100 ms + 6.3 ms a step on four, 4 / 1.063 the samples a second."""
    found = _measured(MadeRanks(4, weak=True))
    assert found.at(4).speedup == pytest.approx(4 / 1.063, rel=0.01)
    assert found.at(4).predicted_seconds == pytest.approx(0.1063, rel=0.005)
    assert [p.batch for p in found.points] == [240, 240, 240]
    with pytest.raises(InputError, match="weak scaling"):
        found.serial_share()


def test_measured_scaling_is_stamped_by_where_its_ranks_computed() -> None:
    """Ranks that say that they have a GPU each: points, and the link they were predicted by, are the GPU's."""
    ranks = MadeRanks(4)
    ranks.accelerators, ranks.environment = 4, dataclasses.replace(ranks.environment, device="a GPU", device_kind="cuda")
    found = _measured(ranks)
    assert (found.environment, found.evidence.device, found.processors) == (ranks.environment, "a GPU", 4)
    measuring = _scaling._Measuring(ranks, StepSpec(MODELS["mlp"], 240, False, (1, 4)), 0.05, None, None)  # type: ignore[arg-type]
    assert measuring._line(BYTES, True, "a GPU").evidence.device == "a GPU"  # type: ignore[union-attr]


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
    asked = iter([False] * 25 + [True] * 100)  # three passes of six sizes of the all-reduce, then chunks of turns: one round, then fifty
    ranks, draw = MadeRanks(2), np.random.default_rng(7)
    ranks.noise = lambda size: draw.uniform(0.1, 0.6, size)  # type: ignore[method-assign]  # never precise in some hundred samples
    found = _measured(ranks, counts=(1, 2), stop=lambda: next(asked), deadline=60.0)
    assert found.has_note("stopped")
    assert len(found.at(2).samples_seconds) == 4 * (1 + 6 * 50)
    ranks = MadeRanks(2)
    with pytest.raises(StoppedError):
        _measured(ranks, counts=(1, 2), stop=lambda: True)
    assert ranks.called[-1] == "end"


def test_an_interrupt_keeps_what_was_measured() -> None:
    """An instrument's Stop interrupts the ranks in their turns: those before stand, and ranks that are out of step are asked nothing."""

    class Interrupted(MadeRanks):
        """Ranks that are interrupted in one of their turns, and fail in whatever comes after it."""

        whole = 2

        def run(self, function: Any, *args: Any) -> list[Any]:
            if self.whole < 0:
                raise RankError("run: the ranks are out of step (a call was cut off); expected them in step. Call recover().")
            if function.__name__ == "turns":
                self.whole -= 1
                if self.whole < 0:
                    raise StoppedError("run: stopped before every rank had returned; call it again, or recover() where that says so.")
            return super().run(function, *args)

    ranks, draw = Interrupted(2), np.random.default_rng(7)
    ranks.noise = lambda size: draw.uniform(0.1, 0.6, size)  # type: ignore[method-assign]  # never precise
    found = _measured(ranks, counts=(1, 2), deadline=60.0)
    assert [note.code for note in found.notes] == ["stopped"]
    assert len(found.at(2).samples_seconds) == 4 * (1 + 50)  # one round, then fifty
    ranks = Interrupted(2)
    ranks.whole = 0
    with pytest.raises(StoppedError, match="scaling: stopped before any step was timed"):
        _measured(ranks, counts=(1, 2))


def test_few_samples_have_no_interval() -> None:
    """Where steps are too slow for twenty samples in three deadlines there is a time without an interval, and a note."""
    ranks = MadeRanks(2)
    ranks.round_seconds = 0.02
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


class Clock:
    """Seconds that pass only when a step is taken; ``told`` has what happened, in order."""

    def __init__(self) -> None:
        self.now, self.told = 10.0, []  # type: ignore[var-annotated]

    def perf_counter(self) -> float:
        """Return the seconds so far."""
        self.told.append("clock")
        return self.now

    def step(self) -> None:
        """Take a step: the first two last 1 s, the others 3."""
        self.told.append("step")
        self.now += 1.0 if self.told.count("step") <= 2 else 3.0


def test_an_accelerator_is_waited_for_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of two steps, the first of 1 s and the second of 3 s each, between waits for the device; on a CPU nobody waits."""
    for device, wait in (("cuda:1", ["wait for cuda:1"]), ("cpu", [])):
        clock, job = Clock(), object.__new__(_scaling_step.Job)
        job.spec, job.device = StepSpec(MODELS["mlp"], 240, False, (1,), None, 2), device
        monkeypatch.setattr(_scaling_step, "time", clock)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda where, clock=clock: clock.told.append(f"wait for {where}"))
        assert job._samples(clock.step, 2) == [1.0, 3.0]
        assert clock.told == [*wait, "clock", *["step", "step", *wait, "clock"] * 2]


def test_ranks_meet_before_each_turn_and_the_first_step_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job for one and four ranks on a rank that belongs to four alone: a meeting a turn, of three steps the last two."""
    told: list[str] = []
    job = object.__new__(_scaling_step.Job)
    job.spec, job.steps, job.device = StepSpec(MODELS["mlp"], 240, False, (1, 4)), {4: lambda: told.append("step")}, "cpu"
    monkeypatch.setattr(dist, "barrier", lambda: told.append("meet"))
    seconds = iter(range(100))
    monkeypatch.setattr(job, "_samples", lambda step, count: [step() or next(seconds) for _ in range(count)])
    taken = job.turns(2, 2)
    assert told == ["meet", "meet", "step", "step", "step"] * 2
    assert (taken.seconds, taken.alone_seconds) == ({4: [1, 2, 4, 5]}, 0.0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_collective_is_timed_between_a_meeting_and_its_result(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Each time ranks meet, a device has ended its work, the call is made and its device waited for; the first time does not count."""
    clock = Clock()
    wait = [] if device == "cpu" else [f"wait for {device}"]

    def reduce(tensor: torch.Tensor) -> None:
        clock.told.append(f"{tensor.nbytes} bytes")
        clock.now += 2.0

    monkeypatch.setattr(_scaling_step, "own_device", lambda: device)
    monkeypatch.setattr(_scaling_step, "time", clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda where: clock.told.append(f"wait for {where}"))
    for name, value in {"get_rank": lambda: 0, "get_world_size": lambda: 3, "all_reduce": reduce}.items():
        monkeypatch.setattr(dist, name, value)
    monkeypatch.setattr(dist, "barrier", lambda: clock.told.append("meet"))
    # 1,000 bytes are 250 float32, of which three ranks can share 249.
    assert _scaling_step.collective_times("all_reduce", 1000, 2) == [(12.0, 14.0), (14.0, 16.0)]
    assert clock.told == ["meet", *wait, "clock", "996 bytes", *wait, "clock"] * 3


def test_ranks_that_talk_through_nccl_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the local number, which torchrun gives too, around again where there are fewer; with gloo they compute on the CPU."""
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(_scaling_step, "environment", lambda device: f"of {device}")
    # What `get_backend()` gives for each backend of `cluster`, seen with torch 2.13: the whole string.
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        monkeypatch.setattr(dist, "get_backend", lambda backend=backend: backend)
        monkeypatch.setenv("LOCAL_RANK", "3")
        assert own_device() == "cuda:1"
        assert (_scaling_step.facts()["accelerators"], _scaling_step.facts()["environment"]) == (2, "of cuda:1")
        monkeypatch.delenv("LOCAL_RANK")
        assert own_device() == "cuda:0"
    assert chosen == ["cuda:1", "cuda:1", "cuda:1", "cuda:0"] * 2
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    assert own_device() == "cpu"
    assert (_scaling_step.facts()["accelerators"], _scaling_step.facts()["environment"]) == (0, "of cpu")


def test_gradients_after_a_timed_wait_are_averaged_where_the_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the all-reduce alone is, by which they are predicted: 400 bytes are 100 float32 on the job's device."""
    job, sent = object.__new__(_scaling_step.Job), []  # type: ignore[var-annotated]
    job.spec, job.device, job.parameter_bytes = StepSpec(MODELS["mlp"], 240, False, (2,), 1e-6), "meta", 400
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: sent.append((tensor.device.type, tensor.numel())))
    job._waiting(2, None)()
    assert sent == [("meta", 100)]


def test_what_strikes_all_numbers_of_ranks_alike_leaves_their_ratio() -> None:
    """Steps grow tenfold while the machine is disturbed, of one rank and of two alike: the speed-up is 1.6 with no width at all."""
    one = np.linspace(0.1, 1.0, 40)
    spec = StepSpec(MODELS["mlp"], 240, False, (1, 2))
    point = _scaling._point(spec, 2, {1: one, 2: one / 1.6}, 0.5, 0.4)
    assert (point.speedup, point.batch, point.predicted_seconds, point.predicted_overlapped_seconds) == (pytest.approx(1.6), 120, 0.5, 0.4)
    assert point.speedup_interval == pytest.approx((1.6, 1.6))
    first = _scaling._point(spec, 1, {1: one, 2: one / 1.6}, None, None)
    assert (first.speedup, first.speedup_interval, first.efficiency_interval) == (1.0, (1.0, 1.0), (1.0, 1.0))


def test_the_table_of_measured_scaling_by_hand() -> None:
    """100 ms on one rank and 62.5 on two: 1.6 times the samples, 80 % each; the link, what a step moves, and the notes below."""
    evidence = Evidence.measured("a device", 40)
    points = (
        ScalingMeasurement(1, 240, np.array([0.1]), 0.1, None, 1.0, (1.0, 1.0), 0.1, 0.1),
        ScalingMeasurement(2, 120, np.array([0.0625]), 0.0625, (0.06, 0.065), 1.6, (1.5, 1.7), 0.07, 0.05),
        ScalingMeasurement(4, 60, np.array([0.05]), 0.05, None, None, None, None, None),
    )
    r = ScalingResult(
        "a net", "strong", "a timed wait", 4_000_000, 8, 1, points, 50e-6, 1e9, None, None, (Note("skipped", "Why."),), evidence,
        devices.environment("cpu"),
    )  # fmt: skip
    assert r.table()[1] == [
        ("1 rank", "240", "100 ms (no interval)", "1.00x [1.00x, 1.00x]", "100 %", "100 ms"),
        ("2 ranks", "120", "62.5 ms [60.0 ms, 65.0 ms]", "1.60x [1.50x, 1.70x]", "80 %", "50.0 ms to 70.0 ms"),
        ("4 ranks", "60", "50.0 ms (no interval)", "", "", "not predicted"),
        ("link", "50.0 us a message and 1.00 GB/s, from the measured all-reduce", "", "", "", ""),
        ("each step", "3.81 MiB of gradients; compute is a timed wait; 8 processors among the ranks", "", "", "", ""),
        ("note: skipped", "Why.", "", "", "", ""),
    ]
    assert points[1].efficiency_interval == (0.75, 0.85)
    assert points[1].samples_per_second == 240 / 0.0625


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
    found = gl.parallel.scaling(ranks, model, deadline=3.0, progress=lambda fraction, text: heard.append(fraction))
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


def test_ranks_leave_their_groups_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All meet first: a rank that left a group in which another still works would fail it. A group of others is not left."""
    told: list[object] = []
    job = object.__new__(_scaling_step.Job)
    job.steps, job.groups = {1: lambda: None}, ["mine", dist.GroupMember.NON_GROUP_MEMBER, "ours"]
    monkeypatch.setattr(dist, "barrier", lambda: told.append(("meet", dict(job.steps))))
    monkeypatch.setattr(dist, "destroy_process_group", told.append)
    job.close()
    assert told == [("meet", {}), "mine", "ours"]
    assert job.groups == []
    _scaling_step._JOBS["a test"] = SimpleNamespace(close=lambda: told.append("closed"), first_seconds=2.5)  # type: ignore[assignment]
    assert _scaling_step.first_seconds("a test") == 2.5
    _scaling_step.end("a test")
    _scaling_step.end("a test")
    assert told[-1] == "closed"
    assert told.count("closed") == 1


def test_a_measurement_in_words_by_hand() -> None:
    """One and two ranks; equal ones are one in a set; what it says of itself is short."""
    one = ScalingMeasurement(1, 240, np.array([0.1]), 0.1, None, None, None, None, None)
    two = ScalingMeasurement(2, 120, np.array([0.0625]), 0.0625, (0.06, 0.065), 1.6, (1.5, 1.7), None, None)
    assert [repr(one), repr(two)] == ["<1 rank: 100 ms a step>", "<2 ranks: 62.5 ms a step, 1.60x>"]
    assert (one.efficiency, one.efficiency_interval) == (None, None)
    assert len({one, dataclasses.replace(one), two}) == 2
    evidence = Evidence.measured("a device", 40)

    def result(points: tuple[ScalingMeasurement, ...], **changed: Any) -> ScalingResult:
        given = {"mode": "strong", "stage": "computed", "processors": 2, **changed}
        return ScalingResult(
            "a net", given["mode"], given["stage"], 4_000_000, given["processors"], 1, points, None, None, None, None, (), evidence,
            devices.environment("cpu"),
        )  # fmt: skip

    compared = "2 ranks train on 1.60x [1.50x, 1.70x] the samples a second of 1"
    assert result((one,)).sentence == "1 rank: 100 ms a step; nothing to compare with."
    assert result((two,)).sentence == "2 ranks: 62.5 ms a step; nothing to compare with."
    assert result((one, two)).sentence == f"{compared}."
    assert result((one, two), processors=1).sentence == (
        f"{compared}, but on 1 processor they take turns: what this machine shows is the cost of more ranks, not their gain."
    )
    assert result((one, two), processors=1, stage="a timed wait").sentence == (
        f"{compared}; their compute was a timed wait, so this shows what communication costs, not how fast this machine is."
    )
    assert repr(result((one, two))) == f"<strong scaling of a net: {compared}>"
    assert len({result((one, two)), result((one, two)), result((one,))}) == 2
    with pytest.raises(InputError, match=r"^at: 3 ranks were not measured \(1, 2 were\); .* Pass it in counts=\.$"):
        result((one, two)).at(3)


def test_recorded_scaling_by_hand() -> None:
    """On 1, 2 and 4 ranks 100, 55 and 35 ms, each known to 1 %: 100 / 35, and the interval of the ratio of two such medians.

    The link is read back from all-reduces of four ranks made by the ring's formula; the prediction is that of the course's own step.
    """
    from gpulab.evidence import Environment
    from gpulab.recordings import Entry, Recording, Timing

    here = Environment("2026-01-02T03:04:05+00:00", "Linux", "a CPU", 8, 2**33, "a GPU", "cuda", "580.1", "3.12", {"torch": "2.11"})

    def timing(seconds: float, interval: bool = True, notes: tuple[Note, ...] = ()) -> Timing:
        span = (0.99 * seconds, 1.01 * seconds) if interval else None
        return Timing(np.array([seconds] * 3), 3, seconds, span, seconds, seconds, None, 1, None, None, notes)

    def step(ranks: int, timed: Timing | None, mode: str = "strong", model: str = "mlp") -> Entry:
        params = {"model": model, "mode": mode, "ranks": ranks, "batch": 240, "parameter_bytes": BYTES}
        return Entry("data-parallel scaling", params, timed, None if timed else "no time")

    def reduce(nbytes: int, ranks: int = 4) -> Entry:
        seconds = 2 * (ranks - 1) * (ALPHA + nbytes / ranks / RATE)
        return Entry("collectives", {"collective": "all_reduce", "nbytes": nbytes, "ranks": ranks}, timing(seconds))

    def recording(*entries: Entry, kind: str = "cuda") -> Recording:
        return Recording("a-machine", dataclasses.replace(here, device_kind=kind), {}, {}, "0.1.0", entries)

    told = Note("contended", "Others.")
    steps = [step(1, timing(0.1)), step(2, timing(0.055, notes=(told,))), step(4, timing(0.035)), step(8, None)]
    links = [reduce(n) for n in (4096, 65536, 2**20, 2**24)]
    other = step(1, timing(0.2), model="cnn"), step(1, timing(0.3), "weak")
    found = gl.parallel.recorded_scaling(recording(*steps, *links[:2], *other))
    assert found is not None
    assert [(p.ranks, p.batch, p.median_seconds) for p in found.points] == [(1, 240, 0.1), (2, 120, 0.055), (4, 60, 0.035)]
    assert [p.speedup for p in found.points] == pytest.approx([1.0, 0.1 / 0.055, 0.1 / 0.035])
    assert found.points[0].speedup_interval == (1.0, 1.0)
    down, up = np.hypot(np.log(1 / 0.99), np.log(1.01)), np.hypot(np.log(1.01), np.log(1 / 0.99))
    assert found.points[2].speedup_interval == pytest.approx((0.1 / 0.035 * np.exp(-down), 0.1 / 0.035 * np.exp(up)))
    assert (found.label, found.mode, found.stage) == ("a perceptron, 2 x 512 hidden on a GPU", "strong", "computed")
    assert (found.parameter_bytes, found.processors, found.hosts, found.notes) == (BYTES, 4, 1, (told,))
    assert (found.evidence.badge, found.environment) == (Badge.RECORDED, recording().environment)
    # Time did not reach eight ranks, and two sizes of the all-reduce are no line.
    assert (found.latency_seconds, found.prediction, found.points[2].predicted_seconds) == (None, None, None)
    linked = gl.parallel.recorded_scaling(recording(*steps[:3], *links))
    assert linked is not None
    assert (linked.latency_seconds, linked.bandwidth_bytes_per_second) == (pytest.approx(ALPHA, rel=0.01), pytest.approx(RATE, rel=0.01))
    assert linked.at(4).predicted_seconds == pytest.approx(0.025 + 6 * (ALPHA + BYTES / 4 / RATE), rel=0.01)
    assert linked.at(4).predicted_overlapped_seconds == pytest.approx(0.025, rel=0.01)  # 6.3 ms fit behind two thirds of 25
    assert linked.processors == 4
    # Three sizes make a line, two do not; and without one rank there is nothing to predict from, or to compare with.
    three, two = (gl.parallel.recorded_scaling(recording(*steps[:3], *links[-n:])) for n in (3, 2))
    assert (three.prediction is None, two.prediction is None) == (False, True)  # type: ignore[union-attr]
    lonely = gl.parallel.recorded_scaling(recording(*steps[1:3], *links))
    assert (lonely.at(4).speedup, lonely.at(4).speedup_interval, lonely.prediction) == (None, None, None)  # type: ignore[union-attr]
    # One that is not known to any interval leaves the ratio without one; on a CPU the processors are its cores.
    loose = gl.parallel.recorded_scaling(recording(step(1, timing(0.1, False)), step(2, timing(0.055)), kind="cpu"))
    assert (loose.at(2).speedup, loose.at(2).speedup_interval) == (pytest.approx(0.1 / 0.055), None)  # type: ignore[union-attr]
    assert loose.processors == 8  # type: ignore[union-attr]
    weak = gl.parallel.recorded_scaling(recording(step(1, timing(0.1), "weak"), step(2, timing(0.125), "weak"), other[0]), "mlp", "weak")
    assert [(p.batch, p.speedup) for p in weak.points] == [(240, 1.0), (240, pytest.approx(1.6))]  # type: ignore[union-attr]
    assert gl.parallel.recorded_scaling(recording(*steps), "cnn") is None
    for given, words in (
        (("nvidia-h200",), r"^recorded_scaling: 'nvidia-h200' is no recording; expected one\. Pass gl\.recordings\.load\(name\)\.$"),
        ((recording(), "resnet"), "model is 'resnet'"), ((recording(), None, "sideways"), "mode is 'sideways'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            gl.parallel.recorded_scaling(*given)  # type: ignore[arg-type]


def test_the_global_batch_in_words_by_hand() -> None:
    """Rows by rule and size; what was lost is counted; the sizes that were tried, from the smallest to the largest."""

    def accuracy(ratio: float) -> Any:
        return SimpleNamespace(mean=ratio, interval=(ratio - 0.01, ratio + 0.01), accuracies=(ratio,) * 3)

    rows = (
        gl.parallel.GlobalBatchRow("linear", 32, 512, 0.96, 10, accuracy(0.5), 2),
        gl.parallel.GlobalBatchRow("linear", 1, 16, 0.03, 400, accuracy(0.975), 0),
        gl.parallel.GlobalBatchRow("unchanged", 32, 512, 0.03, 10, accuracy(0.6), 0),
    )
    r = gl.parallel.GlobalBatchResult("digits-mlp", 16, 5, "SGD", 0.03, 1.0, rows, (Note("stopped", "Here."),), Evidence.measured("x"))
    assert (r.rules, r.select("linear")) == (("linear", "unchanged"), (rows[1], rows[0]))
    assert repr(r) == "<digits-mlp: global batches of 16 to 512 over 5 epochs, 2 rules>"
    assert r.table() == (("learning rate", "ranks", "global batch", "rate", "updates", "right (95 % over seeds and items)"), [
        ("linear", "32", "512", "0.96", "10", "50.0 % [49.0, 51.0], 2 of 3 diverged"),
        ("linear", "1", "16", "0.03", "400", "97.5 % [96.5, 98.5]"),
        ("unchanged", "32", "512", "0.03", "10", "60.0 % [59.0, 61.0]"), ("note: stopped", "Here.", "", "", "", ""),
    ])  # fmt: skip


# The rank's side, without other ranks.


def test_time_alone_and_the_wait_for_a_core_are_counted_between_readings() -> None:
    """From 10 to 14 s half a second without a core, from 20 to 21 a quarter; where a reading does not tell, that turn does not count."""
    taken, at = Turns({}), devices.conditions.Readings
    taken.add(at(10.0, run_delay_seconds=1.0), at(14.0, run_delay_seconds=1.5))
    taken.add(at(15.0, run_delay_seconds=None), at(19.0, run_delay_seconds=9.0))
    taken.add(at(15.0, run_delay_seconds=2.0), at(19.0, run_delay_seconds=None))
    taken.add(at(20.0, run_delay_seconds=3.0), at(21.0, run_delay_seconds=3.25))
    assert (taken.alone_seconds, taken.delay_seconds) == (5.0, 0.75)


def test_a_rank_is_looked_at_only_while_it_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of turns for one and two ranks, those of one lie between two readings of a clock that each reading moves by a second."""
    seconds = iter(range(100))
    job = object.__new__(_scaling_step.Job)
    job.spec, job.steps = StepSpec(MODELS["mlp"], 240, False, (1, 2)), {1: lambda: None, 2: lambda: None}
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(job, "_samples", lambda step, count: [1.0] * count)
    reading = devices.conditions.Readings
    monkeypatch.setattr(_scaling_step.conditions, "read", lambda device: reading(float(next(seconds)), run_delay_seconds=0.0))
    taken = job.turns(3, 2)
    assert (taken.seconds, taken.alone_seconds, next(seconds)) == ({1: [1.0] * 6, 2: [1.0] * 6}, 3.0, 6)


@pytest.mark.parametrize(("rank", "mine", "first"), [(0, (1, 2, 4), 3.0), (1, (2, 4), 2.0), (3, (4,), 1.0)])
def test_a_job_has_a_group_for_each_smaller_number_and_takes_three_steps_to_warm_up(
    monkeypatch: pytest.MonkeyPatch, rank: int, mine: tuple[int, ...], first: float
) -> None:
    """Groups of the first ranks, made by all, but none for all four; a step of one second at each number a rank belongs to, three times."""
    clock, groups, steps = Clock(), [], []  # type: ignore[var-annotated]

    def made(self: Any, count: int, group: Any) -> Any:
        assert group == (dist.group.WORLD if count == 4 else f"group of {count}")  # type: ignore[attr-defined]

        def step() -> None:
            steps.append(count)
            clock.now += 1.0

        return step

    monkeypatch.setattr(_scaling_step, "time", clock)
    monkeypatch.setattr(_scaling_step, "own_device", lambda: "cpu")
    monkeypatch.setattr(_scaling_step.Job, "_step", made)
    for name, value in {"get_rank": rank, "get_world_size": 4, "barrier": None}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(dist, "new_group", lambda ranks: groups.append(ranks) or f"group of {len(ranks)}")
    job = _scaling_step.Job(StepSpec(MODELS["mlp"], 240, False, (1, 2, 4)))
    assert (groups, job.groups) == ([[0], [0, 1]], ["group of 1", "group of 2"])
    assert (steps, job.first_seconds, job.device) == (list(mine) * 3, first, "cpu")


def test_the_step_that_is_timed_descends_the_gradient_of_its_own_batch() -> None:
    """Two steps of SGD at 0.001 on eight samples that the seed 0 draws after the model; the caller's random numbers stay."""
    made = []

    def make() -> Any:
        made.append(torch.nn.Linear(3, 10))
        return made[-1]

    job = object.__new__(_scaling_step.Job)
    job.spec, job.device = StepSpec(StepModel("a layer", make, (3,)), 8, False, (1,)), "cpu"
    before = torch.get_rng_state()
    step = job._step(1, None)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x, y = torch.nn.Linear(3, 10), torch.randn(8, 3), torch.randint(10, (8,))
    for _ in range(2):
        step()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.001 * gradient)
    for parameter, expected in zip(made[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-7)
        assert float((parameter.grad * 0.001).abs().max()) > 1e-5  # a step is far more than that bound
    assert job.parameter_bytes == 4 * (3 * 10 + 10)


@pytest.mark.parametrize(("weak", "count", "slept"), [(False, 1, 0.02), (False, 4, 0.005), (True, 1, 0.02), (True, 4, 0.02)])
def test_a_wait_is_shared_out_like_the_work_it_stands_for(monkeypatch: pytest.MonkeyPatch, weak: bool, count: int, slept: float) -> None:
    """Four ranks each wait a quarter of 20 ms for one batch, and all of it for one each; one rank has nobody to average with."""
    done: list[Any] = []
    job = object.__new__(_scaling_step.Job)
    job.spec, job.device, job.parameter_bytes = StepSpec(MODELS["mlp"], 240, weak, (count,), 0.02), "cpu", 40
    monkeypatch.setattr(_scaling_step, "time", SimpleNamespace(sleep=done.append))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: done.append(group))
    job._waiting(count, "ours")()
    assert done == [slept] + ["ours"] * (count > 1)


def test_a_new_job_takes_the_place_of_what_an_interrupted_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients' bytes come back, and only it is kept."""
    monkeypatch.setattr(_scaling_step, "_JOBS", {"old": SimpleNamespace()})
    monkeypatch.setattr(_scaling_step, "Job", lambda spec: SimpleNamespace(parameter_bytes=12, spec=spec, turns=lambda *given: given))
    spec = StepSpec(MODELS["mlp"], 240, False, (1,))
    assert _scaling_step.begin("new", spec) == 12
    assert list(_scaling_step._JOBS) == ["new"]
    assert _scaling_step.turns("new", 2, 4) == (2, 4)  # type: ignore[comparison-overlap]


def test_each_model_of_the_measurement_by_hand() -> None:
    """Parameters counted from the layers' shapes; samples fit; a batch that 1 to 6 and 8 ranks share; heads of 32 and 64 features."""
    convolutions = 9 * (3 * 16 + 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
    counts = {
        "mlp": 256 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10,
        "cnn": convolutions + 2 * 2 * (16 + 32 + 64) + 64 * 10 + 10,
        "transformer": 2 * (12 * 128**2 + 13 * 128) + (2 * 256 + 32 + 2) * 128,
        "large-transformer": 12 * (12 * 1024**2 + 13 * 1024) + (32_768 + 512 + 2) * 1024,  # its head is its embedding
    }
    shapes = {"mlp": (256,), "cnn": (3, 32, 32), "transformer": (32,), "large-transformer": (512,)}
    scores = {"mlp": (10,), "cnn": (10,), "transformer": (32, 256), "large-transformer": (512, 32_768)}
    assert list(MODELS) == list(counts)
    for name, model in MODELS.items():
        with torch.device("meta"):
            network = model.make()
            x, _ = _scaling_step._samples(model, 2)
            assert (x.shape, network(x).shape) == ((2, *shapes[name]), (2, *scores[name])), name
        assert sum(parameter.numel() for parameter in network.parameters()) == counts[name], name
        assert model.batch == (240 if name == "mlp" else 24)
        assert all(model.batch % ranks == 0 for ranks in (1, 2, 3, 4, 5, 6, 8) if ranks != 5 or name == "mlp")
        if hasattr(network, "blocks"):
            assert [(block.heads, block.qkv.in_features // block.heads) for block in network.blocks] == (
                [(4, 32)] * 2 if name == "transformer" else [(16, 64)] * 12
            )


def test_samples_are_numbers_with_ten_classes_or_tokens_that_are_their_own_targets() -> None:
    """A thousand labels have all ten and no other; seven tokens likewise."""
    torch.manual_seed(0)
    x, y = _scaling_step._samples(StepModel("numbers", _small, (3,)), 1000)
    assert (x.shape, x.dtype, set(y.tolist())) == ((1000, 3), torch.float32, set(range(10)))
    x, y = _scaling_step._samples(StepModel("words", _small, (50,), 7), 20)
    assert (x.shape, set(x.flatten().tolist()), y is x) == ((20, 50), set(range(7)), True)


def test_cores_are_those_that_the_rank_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its affinity; where the system tells none, all there are; where it does not know, one."""
    monkeypatch.setattr(_scaling_step, "environment", lambda device: device)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(_scaling_step.os, "sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    found = _scaling_step.facts()
    assert (found["cores"], found["threads"], found["accelerators"]) == (3, 3, 0)
    monkeypatch.delattr(_scaling_step.os, "sched_getaffinity")
    for there, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(_scaling_step.os, "cpu_count", lambda there=there: there)
        assert _scaling_step.facts()["cores"] == cores


# The caller's side, once more by made-up ranks.


@pytest.mark.parametrize(
    ("nbytes", "sizes"),
    [
        (1000, [4096, 16384, 65536, 262144]),  # from where the latency rules
        (BYTES, [4096, 16384, 65536, 262144, 1048576, BYTES]),  # up to the gradients' size
        (10**9, [4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 10**9]),
    ],
)
def test_the_all_reduce_is_timed_over_sizes_three_times(nbytes: int, sizes: list[int]) -> None:
    """All sizes with six calls each, then all again; how far that is, is told: a tenth of the whole, from 0.55 on."""
    asked, heard = [], []  # type: ignore[var-annotated]
    ranks = MadeRanks(4)
    real = ranks._collective_times
    ranks._collective_times = lambda *given: asked.append(given) or real(*given)  # type: ignore[method-assign]
    spec = StepSpec(MODELS["mlp"], 240, False, (1, 4))
    measuring = _scaling._Measuring(ranks, spec, 1.0, lambda *told: heard.append(told), None)  # type: ignore[arg-type]
    line = measuring._line(nbytes, True, "a device")
    assert line is not None
    assert asked == [("all_reduce", size, 6) for size in sizes] * 3
    assert line.evidence.samples == len(sizes) * 18
    assert [fraction for fraction, _ in heard] == pytest.approx([0.55 + 0.1 * k / 3 for k in range(3) for _ in sizes])
    assert {text for _, text in heard} == {"timing the all-reduce"}


def test_turns_go_on_by_the_clock() -> None:
    """Rounds of 300 ms with 250 to spare are too slow for twenty samples: it ends after three times that, with three rounds of four.

    Told: 0.65 and 0.34 of the time that is over, 0.99 at most.
    """
    heard: list[tuple[float, str]] = []
    ranks = MadeRanks(2)
    ranks.round_seconds = 0.3
    found = _measured(ranks, counts=(1, 2), deadline=0.25, progress=lambda *told: heard.append(told))
    assert [len(point.samples_seconds) for point in found.points] == [12, 12]
    late = [told for told in heard if told[1].endswith("of each")]
    assert late == [(0.65, "0 steps of each"), (0.99, "4 steps of each"), (0.99, "8 steps of each")]
    heard.clear()
    _measured(MadeRanks(2), counts=(1, 2), deadline=0.1, progress=lambda *told: heard.append(told), stop=lambda: len(heard) > 20)
    late = [told for told in heard if told[1].endswith("of each")]
    assert late == [(0.65, "0 steps of each"), (pytest.approx(0.65 + 0.34 * 0.01), "4 steps of each")]


def test_no_measurement_takes_more_rounds_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an hour and steps that are never known well it ends at two thousand rounds: one, then chunks of fifty; the bound is 4 %."""
    widths = set()
    monkeypatch.setattr(_scaling, "is_precise", lambda column, width: widths.add(width) or False)
    found = _measured(MadeRanks(1), counts=(1,), deadline=3600.0)
    assert len(found.at(1).samples_seconds) == 4 * (1 + 40 * 50)
    assert widths == {0.04}


def test_a_measurement_ends_early_only_after_fifteen_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the rounds that twenty samples need, in chunks of as many rounds as fit into 0.4 s: of 100 ms a round one, then fours."""
    monkeypatch.setattr(_scaling, "is_precise", lambda column, width: True)
    ranks = MadeRanks(1)
    ranks.round_seconds = 0.0999
    assert len(_measured(ranks, counts=(1,), deadline=3600.0).at(1).samples_seconds) == 4 * (1 + 4 * 4)


@pytest.mark.parametrize(("delay", "told"), [(0.05, False), (0.052, True)])
def test_a_twentieth_of_the_time_without_a_core_is_let_pass(delay: float, told: bool) -> None:
    """More is told, in per cent of the time that the rank worked alone."""
    found = _measured(MadeRanks(2, delay=delay), counts=(1, 2), deadline=1e-3)
    notes = [note.sentence for note in found.notes if note.code == "contended"]
    assert (
        notes
        == [
            "other processes kept one rank, when it worked alone, off its core for 5 % of the time. Close what else runs, or measure again "
            "later: all points are slower than they could be."
        ]
        * told
    )


def test_ten_steps_lie_between_two_waits_for_an_accelerator() -> None:
    """On a CPU each step is timed by itself."""
    for accelerators, steps in ((2, 10), (0, 1)):
        ranks = MadeRanks(2)
        ranks.accelerators = accelerators
        _measured(ranks, counts=(1, 2))
        assert ranks.spec.steps_a_sample == steps


@pytest.mark.parametrize(("cores", "threads", "processors"), [(8, 3, 2), (1, 4, 1), (6, 1, 6)])
def test_a_processor_is_as_many_cores_as_a_rank_has_threads(cores: int, threads: int, processors: int) -> None:
    """Eight cores of ranks with three threads each are two; there is always one."""
    ranks = MadeRanks(2, cores=cores)
    facts = [{**each, "threads": threads} for each in ranks._facts()]
    ranks._facts = lambda: facts  # type: ignore[method-assign]
    assert _measured(ranks, counts=(1, 2)).processors == processors


def test_what_is_noted_of_steps_by_hand() -> None:
    """Whole sentences: ranks that take turns on one processor or on two, steps too few for an interval, a wait in place of work."""
    spec = StepSpec(MODELS["mlp"], 240, False, (1, 2))
    few, enough = np.linspace(0.1, 0.2, 5), np.linspace(0.1, 0.11, 40)
    turns = (
        "they compute in turns and cannot gain. Believe the cost of communication here; take speed-ups from machines with a processor a "
        "rank."
    )
    assert [note.sentence for note in _scaling._notes(spec, (1, 2), 1, {1: enough, 2: enough})] == [
        f"2 ranks share 1 processor, so beyond 1 {turns}"
    ]
    first, second = _scaling._notes(spec, (1, 2, 3), 2, {1: few, 2: few, 3: enough})
    assert (first.code, first.sentence) == ("contended", f"3 ranks share 2 processors, so beyond 2 {turns}")
    assert second.code == "no-interval"
    assert second.sentence.startswith("1 rank: ")
    assert _scaling._notes(spec, (1, 2), 2, {1: enough, 2: few})[0].sentence.startswith("2 ranks: ")
    (waited,) = _scaling._notes(dataclasses.replace(spec, wait_seconds=0.02), (1, 2), 1, {1: enough, 2: enough})
    assert waited == Note(
        "skipped",
        "compute is a timed wait of 20 ms on one rank, not work; only the communication is real, so believe what it costs and not what is "
        "gained.",
    )


def test_a_batch_that_does_not_divide_is_told_with_the_next_that_does() -> None:
    """The least common multiple of 1, 3 and 4 is 12: 13 samples become 24."""
    with pytest.raises(InputError) as caught:
        _scaling._batch(MODELS["mlp"], 13, "strong", (1, 3, 4))
    assert str(caught.value) == (
        "scaling: a batch of 13 does not divide among 3 ranks; expected one that 1, 3, 4 divide. Pass batch=24, or counts that divide 13."
    )
    assert _scaling._batch(MODELS["mlp"], 13, "weak", (1, 3, 4)) == 13
    assert _scaling._counts(64, None) == (1, 2, 3, 4, 8, 16, 32, 64)


# The global batch, by trainings made up.


def test_each_training_has_the_rate_and_the_ramp_of_its_rule_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,297 digits in batches of 4 x 16 are 20 updates an epoch: one and a half of them are 30 of warm-up; one rank is trained once."""
    asked: list[tuple[Any, ...]] = []
    accuracy = SimpleNamespace(evidence=Evidence.measured("a device"), accuracies=(0.5, 0.6))
    found = SimpleNamespace(accuracy=accuracy, notes=(), runs=[SimpleNamespace(ended="diverged"), SimpleNamespace(ended="steps")])

    def over_seeds(job: Any, seeds: Any, **given: Any) -> Any:
        given["progress"](0.5, "half")
        asked.append(
            (job.name, seeds, given["epochs"], given["batch_size"], given["device"], given["optimizer"].args, torch.get_num_threads())
        )
        return found

    heard: list[tuple[float, str]] = []
    threads = [6]
    monkeypatch.setattr(training, "over_seeds", over_seeds)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    r = gl.parallel.global_batch(
        "digits-mlp", (4, 1), epochs=2, warm_up_epochs=1.5, seeds=(3, 5), progress=lambda *told: heard.append(told)
    )
    rates = [(0.03, 0.03, 0, 0.9), (0.03, 0.03, 0, 0.9), (0.12, 0.03, 0, 0.9), (0.12, 0.03, 30, 0.9)]
    assert asked == [("digits-mlp", (3, 5), 2, 16 if k == 0 else 64, "cpu", rate, 1) for k, rate in enumerate(rates)]
    assert threads == [6, *[1, 6] * 4]
    assert heard == [
        (0.125, "unchanged, 1 ranks: half"), (0.375, "unchanged, 4 ranks: half"), (0.625, "linear, 4 ranks: half"),
        (0.875, "linear with warm-up, 4 ranks: half"),
    ]  # fmt: skip
    assert [(row.ranks, row.steps, row.diverged) for row in r.rows] == [(1, 2 * 81, 1), (4, 2 * 20, 1)] * 3
    assert (r.optimizer, r.batch, r.epochs, r.learning_rate, r.warm_up_epochs) == ("SGD with momentum 0.9", 16, 2, 0.03, 1.5)
    assert (r.evidence.device, r.evidence.samples) == ("a device", 2 * 6)
    plain = gl.parallel.global_batch("digits-mlp", (1,), momentum=0, rules=("linear",), seeds=2, progress=lambda *told: None)
    assert (plain.optimizer, asked[-1][1], asked[-1][5], plain.notes) == ("SGD", 2, (0.03, 0.03, 0, 0.0), ())


def test_a_training_that_is_cut_off_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer seeds would be another accuracy: what was stopped among them is left out, and the rows before stand with a note."""
    accuracy = SimpleNamespace(evidence=Evidence.measured("a device"), accuracies=(0.5,))
    cut = iter([False, True, True])  # what is asked once more ends with another error

    def over_seeds(*given: Any, **options: Any) -> Any:
        return SimpleNamespace(accuracy=accuracy, runs=(), notes=(Note("stopped", "Here."),) if next(cut) else ())

    monkeypatch.setattr(training, "over_seeds", over_seeds)
    r = gl.parallel.global_batch("digits-mlp", (1, 2, 4), rules=("linear",), seeds=1)
    assert [row.ranks for row in r.rows] == [1]
    assert r.notes == (Note("stopped", "stopped after 1 of 3 trainings; what is shown is complete. Run it again."),)
    with pytest.raises(StoppedError, match=r"^global_batch: stopped before its first row was complete; there is nothing to report\."):
        gl.parallel.global_batch("digits-mlp", (1,), rules=("linear",), seeds=1)
    with pytest.raises(StoppedError, match=r"^global_batch: stopped before its first row"):  # and then nothing is begun
        gl.parallel.global_batch("digits-mlp", (1,), rules=("linear",), seeds=1, stop=lambda: True)
    assert next(cut, "not asked") == "not asked"


def test_without_a_warm_up_the_rate_is_there_at_once() -> None:
    """And momentum is what was asked for."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = _global_batch._warm_sgd(0.4, 0.1, 0, 0.5, [weight])
    weight.grad = torch.ones(1)
    optimizer.step()
    assert (weight.item(), optimizer.defaults["momentum"]) == (pytest.approx(-0.4), 0.5)
    optimizer.step()
    assert weight.item() == pytest.approx(-0.4 - 0.4 * 1.5)


def test_equal_measurements_are_equal_and_others_are_not() -> None:
    """By all that they hold; a point or a result that differs in one number, or something else, is another."""
    one = ScalingMeasurement(1, 240, np.array([0.1]), 0.1, None, None, None, None, None)
    assert one == ScalingMeasurement.from_dict(one.to_dict())
    assert one != dataclasses.replace(one, samples_seconds=np.array([0.2]))
    assert one != "something else"
    evidence = Evidence.measured("a device", 40)
    r = ScalingResult(
        "a net", "strong", "computed", 4, 2, 1, (one,), None, None, None, None, (), evidence, devices.environment("cpu")
    )  # fmt: skip
    assert r == ScalingResult.from_dict(r.to_dict())
    assert r != dataclasses.replace(r, processors=3)
    assert r != "something else"
    half = dataclasses.replace(one, predicted_seconds=0.2)  # one of the two alone is no span
    assert dataclasses.replace(r, points=(half,)).table()[1][0][5] == "not predicted"
