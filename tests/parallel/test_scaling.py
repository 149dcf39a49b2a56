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
