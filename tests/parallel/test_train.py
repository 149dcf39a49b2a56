"""What a training over ranks reports, from outcomes made by hand; and what a rank does between two readings of its clock."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gpulab import devices, networks, parallel, training
from gpulab.evidence import Environment
from gpulab.parallel import _strategies_worker as worker
from gpulab.parallel import _train, _wire
from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._strategies import Setting, positions_of, strategy_named
from gpulab.parallel._strategies_data import Buckets
from gpulab.parallel._strategies_sharded import Sharded
from gpulab.parallel._strategies_tensor import SplitLayers
from gpulab.parallel._strategies_worker import Job, Outcome
from gpulab.parallel._timeline import RankNotes

HERE = devices.environment("cpu")
NAN = float("nan")


def _job(**changed: Any) -> Job:
    given = {
        "strategy": "ddp", "task": "digits-mlp", "model": None, "steps": 4, "batch_size": 8, "dtype": "float64", "optimizer": "sgd",
        "learning_rate": 0.1, "microbatches": 1, "bucket_bytes": 1024, "seed": 0,
    }  # fmt: skip
    return Job(**{**given, **changed})


def _call(number: int, name: str, nbytes: int, begin: float, root: int | None = None) -> CollectiveCall:
    return CollectiveCall(number, name, f"c10d.{name}", "float64", nbytes, nbytes, (0, 1), root, begin, begin + 0.5, "completion", 0.0)


def _outcome(shares: list[float], seconds: list[float], value: float, peak: int, wire: int | None, where: Environment = HERE) -> Outcome:
    """Two observed steps of 2 s, in each an all-reduce of 800 bytes; after the second a broadcast of 100 from rank 1."""
    calls = (_call(0, "all_reduce", 800, 1.0), _call(1, "all_reduce", 800, 3.0), _call(2, "broadcast", 100, 3.6, root=1))
    notes = RankNotes((("backward", 0.0, 4.0),), calls, (), (), (0.0, 2.0), 4.2)
    return Outcome(shares, {"w": torch.tensor([value])}, where, seconds, peak, {"parameters": peak}, {"parameters": peak}, notes, wire)


def _result(outcomes: list[Outcome], single: Outcome, **job: Any) -> parallel.StrategyResult:
    return _train._result(strategy_named("ddp"), _job(**job), torch.nn.Linear(2, 3), single, outcomes, 1)


def test_a_result_by_hand() -> None:
    """Losses add up over ranks, a step takes as long as on its slowest rank, and bytes and calls are those of one step of two."""
    single = Outcome(
        [4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE, earlier=[{"w": torch.tensor([9.0])}, {"w": torch.tensor([8.0])}]
    )
    outcomes = [
        _outcome([1.0, 1.0, 1.0, 0.5], [5.0, 1.0, 1.0, 2.0], 2.0, 300, 1701),
        _outcome([3.0, 2.0, 1.0, 0.5], [4.0, 2.0, 1.0, 3.0], 2.0, 200, None),
    ]
    r = _result(outcomes, single)
    assert r.losses.tolist() == [4.0, 3.0, 2.0, 1.0] == r.single_losses.tolist()
    assert r.step_seconds.tolist() == [5.0, 2.0, 1.0, 3.0]
    assert (r.ranks, r.steps, r.agrees, r.state_difference, r.parameter_count) == (2, 4, True, 0.0, 2 * 3 + 3)
    assert (r.strategy, r.model, r.dtype, r.optimizer, r.batch_size) == ("ddp", "Linear on digits-mlp", "float64", "sgd", 8)
    assert r.timeline.label == "ddp on 2 ranks"
    for report, (peak, ring, wire) in zip(r.reports, ((300, 800, 850), (200, 850, None)), strict=True):
        assert (report.peak_bytes, report.peak_by_category) == (peak, {"parameters": peak})
        assert report.calls == {"all_reduce": 1, "broadcast": 0}
        assert report.payload_bytes == {"all_reduce": 800, "broadcast": 50}
        # A ring of two sends 2 (2 - 1) / 2 of the payload from each rank; the broadcast's 100 bytes go out from its root alone.
        assert (report.ring_bytes, report.wire_bytes) == (ring, wire)


def test_a_rank_sends_its_own_part_in_a_gather() -> None:
    """Of 400 bytes on four ranks each sends its 100 to the root, which sends nothing; in a scatter the root sends 100 to three others."""

    def sent(name: str, rank: int, given: int, got: int) -> float:
        call = CollectiveCall(0, name, f"c10d.{name}_", "float32", given, got, (0, 1, 2, 3), 1, 0.0, 1.0, "completion", 0.0)
        return _train._as_ring(rank, call)

    assert [sent("gather", rank, 100, 400 if rank == 1 else 0) for rank in range(4)] == [100, 0, 100, 100]
    assert [sent("scatter", rank, 400 if rank == 1 else 0, 100) for rank in range(4)] == [0, 300, 0, 0]


def test_a_result_is_stamped_by_where_its_ranks_computed() -> None:
    """Ranks that say that they computed on a GPU give a result, and lanes, that are the GPU's."""
    there = dataclasses.replace(HERE, device="a GPU", device_kind="cuda", driver="580.1")
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, there)
    r = _result([_outcome([2.0, 1.5, 1.0, 0.5], [1.0] * 4, 2.0, 1, None, there) for _ in range(2)], single)
    assert r.environment == there
    assert (r.evidence.device, r.timeline.evidence.device) == ("a GPU", "a GPU")


def test_what_stopped_early_is_set_beside_as_many_steps_of_one_process() -> None:
    """Three of four steps: one process's state after its third is compared, its first three losses, and a note says so."""
    single = Outcome(
        [4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE, earlier=[{"w": torch.tensor([9.0])}, {"w": torch.tensor([8.0])}]
    )
    outcomes = [_outcome([2.0, 1.5, 1.0], [1.0, 1.0, 1.0], 8.0, 1, None) for _ in range(2)]
    r = _result(outcomes, single)
    assert (r.steps, r.agrees, r.single_losses.tolist()) == (3, True, [4.0, 3.0, 2.0])
    assert [(note.code, "3 of 4 steps" in note.sentence) for note in r.notes] == [("stopped", True)]


def test_the_step_from_which_losses_differ_is_told() -> None:
    """Wrong in the third step (number 2) and after it; where only the parameters differ, that is told."""
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE)
    wrong = _result([_outcome([4.0, 3.0, 2.5, 1.5], [1.0] * 4, 2.0, 1, None)], single)
    assert wrong.loss_difference == 0.5  # of the last: over the larger of 1 and the loss
    assert "from step 2 on (largest difference 5.0e-01, parameters 0.0e+00" in wrong.notes[0].sentence
    drifted = _result([_outcome([4.0, 3.0, 2.0, 1.0], [1.0] * 4, 3.0, 1, None)], single)
    assert "in no step, but the parameters do" in drifted.notes[0].sentence


@pytest.mark.parametrize(
    ("shares", "value", "when"),
    [
        ([4.0, 9.0, NAN, NAN], NAN, "at step 2"), ([4.0, 9.0, float("inf"), NAN], NAN, "at step 2"),
        ([4.0, 9.0, 99.0, 1e9], NAN, "after the last step"),
    ],
)  # fmt: skip
def test_a_rate_that_one_process_dies_of_is_no_fault_of_the_ranks(shares: list[float], value: float, when: str) -> None:
    """Both have no numbers from the same step on: nothing is said against the averaging. A rank that has none before is wrong still."""
    before = [{"w": torch.tensor([9.0])}, {"w": torch.tensor([8.0])}]
    single = Outcome(shares, {"w": torch.tensor([value])}, HERE, earlier=before)
    r = _result([_outcome(shares, [1.0] * 4, value, 1, None)], single)
    (note,) = (note for note in r.notes if note.code in ("diverged", "disagree"))
    assert (note.code, r.agrees, r.table()[1][0][1]) == ("diverged", False, "nothing to compare")
    assert when in note.sentence
    assert "learning_rate" in note.sentence
    assert _result([_outcome([4.0, 8.0, *shares[2:]], [1.0] * 4, value, 1, None)], single).has_note("disagree")
    well = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE, earlier=before)
    assert _result([_outcome(shares, [1.0] * 4, value, 1, None)], well).has_note("disagree")


def test_the_table_of_a_result_by_hand() -> None:
    """Memory, payload and time a step: two steps had 4 s of work, and data moved for three times half a second."""
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE)
    r = _result([_outcome([4.0, 3.0, 2.0, 1.0], [1.0] * 4, 2.0, 300, 1701)], single)
    assert r.seconds(0) == pytest.approx({"compute": 2.0, "communication": 3 * 0.5 / 2, "idle": 0.0})
    rows = {row[0]: row[1:] for row in r.table()[1]}
    assert rows["computes what one process computes"] == ("yes",)
    assert rows["peak memory of tensors"] == ("300 B",)
    assert (rows["- parameters at most"], rows["- gradients at most"]) == (("300 B",), ("0 B",))
    assert rows["payload of collectives a step"] == ("850 B",)
    assert rows["sent on the wire"] == ("850 B",)
    assert rows["compute a step"] == ("2.00 s",)


def test_one_rank_is_a_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken, and a cluster of one asked for."""
    asked: list[int] = []

    def started(n: int, **_: Any) -> Any:
        asked.append(n)
        raise ZeroDivisionError

    monkeypatch.setattr(_train, "cluster", started)
    with pytest.raises(ZeroDivisionError):
        parallel.train(1, "ddp", task="digits-mlp", steps=3)
    assert asked == [1]


def test_a_task_of_ones_own_travels_to_the_ranks_whatever_its_name() -> None:
    """Ours goes by its name; one with another model under the same name goes itself, or the ranks would train ours."""
    ours = training.task("digits-mlp")
    own = dataclasses.replace(ours, _build=lambda: networks.mlp(64, 8, 10))
    given = {"steps": 3, "batch_size": None, "dtype": "float32", "optimizer": "sgd", "learning_rate": None, "microbatches": 1}
    jobs = [_train._job(strategy_named("ddp"), one, None, bucket_bytes=1, seed=0, **given) for one in ("digits-mlp", ours, own)]
    assert [job.task for job in jobs] == ["digits-mlp", "digits-mlp", own]


def test_the_single_process_is_trained_once_for_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept by what it depends on, weights too, but not by the strategy."""
    ran: list[int] = []

    def run(function: Any, job: Job, model: Any) -> list[Any]:
        ran.append(job.seed)
        return [Outcome([float(job.seed)], {}, HERE), None]

    ranks: Any = SimpleNamespace(run=run)
    monkeypatch.setattr(_train, "_references", type(_train._references)())
    model = networks.mlp(4, 4, 2)
    assert _train._reference(ranks, _job(seed=1), model).shares == [1.0]
    assert _train._reference(ranks, _job(seed=1, strategy="data", bucket_bytes=1, microbatches=2), model).shares == [1.0]
    assert ran == [1]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    for changed in ({"seed": 1}, {"steps": 5}, {"batch_size": 9}, {"dtype": "float32"}, {"optimizer": "adam"}, {"learning_rate": 0.2}):
        before = len(ran)
        _train._reference(ranks, _job(**{"seed": 1, **changed}), model)
        assert len(ran) == before + 1, changed


def test_the_single_process_is_kept_by_all_that_its_model_computes() -> None:
    """Options that change no weight, code, and what is frozen count; a model made again in the same way, or copied, is the same one."""

    def transformer(heads: int) -> Any:
        torch.manual_seed(0)
        return networks.transformer(128, width=32, heads=heads, layers=2, context=64)

    class Times(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    def times() -> Any:
        torch.manual_seed(0)
        return Times(2, 3)

    keys = [_train._key(_job(), model) for model in (transformer(4), transformer(4), copy.deepcopy(transformer(4)), transformer(2))]
    assert [key == keys[0] for key in keys] == [True, True, True, False]
    assert (_train._key(_job(), times()) == _train._key(_job(), times())) is True
    before = _train._key(_job(), times())
    Times.forward = lambda self, x: 3 * torch.nn.Linear.forward(self, x)  # type: ignore[method-assign]
    assert _train._key(_job(), times()) != before
    model = times()
    before = _train._key(_job(), model)
    model.bias.requires_grad_(False)
    assert _train._key(_job(), model) != before


def test_a_model_of_a_dtype_that_numpy_lacks_is_told_from_others() -> None:
    """bfloat16 weights have a key, which is another with other weights, or with the same in float32."""
    model = torch.nn.Linear(2, 3).bfloat16()
    key = _train._key(_job(), model)
    assert key == _train._key(_job(), copy.deepcopy(model))
    assert key != _train._key(_job(), copy.deepcopy(model).float())
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert key != _train._key(_job(), model)
    model.register_buffer("turned", torch.tensor([1j, 2]).conj())  # a view that is turned over only when it is read
    assert _train._key(_job(), model) == _train._key(_job(), copy.deepcopy(model))


def test_of_nine_kept_runs_the_one_least_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight seeds are kept; the first is used again, so a ninth takes the place of the second."""
    ran: list[int] = []

    def run(function: Any, job: Job, model: Any) -> list[Any]:
        ran.append(job.seed)
        return [Outcome([float(job.seed)], {}, HERE), None]

    monkeypatch.setattr(_train, "_references", type(_train._references)())
    model = networks.mlp(4, 4, 2)
    for seed in (0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 0, 1):
        assert _train._reference(SimpleNamespace(run=run), _job(seed=seed), model).shares == [seed]  # type: ignore[arg-type]
    assert ran == [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]


def test_a_gpu_is_waited_for_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's time ends when its device is done; on a CPU there is nothing to wait for."""
    for kind, expected in (("cuda", ["clock", "step", "wait for cuda:1", "clock"]), ("cpu", ["clock", "step", "clock"])):
        told: list[str] = []
        clock = iter((5.0, 7.5))
        run = object.__new__(worker._Work)
        run.begins, run.shares, run.seconds = [], [], []
        run.setting = SimpleNamespace(device=torch.device(kind, 1) if kind == "cuda" else torch.device("cpu"))  # type: ignore[assignment]
        run.trainer = SimpleNamespace(step=lambda batch, told=told: told.append("step"))  # type: ignore[assignment]
        monkeypatch.setattr(
            worker, "time", SimpleNamespace(perf_counter=lambda told=told, clock=clock: told.append("clock") or next(clock))
        )
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device, told=told: told.append(f"wait for {device}"))
        run._step(None)
        assert (told, run.begins, run.seconds) == (expected, [5.0], [2.5])


def test_a_rank_that_talks_through_nccl_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its local number, 0 where nobody gave one; else the processor."""
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    # What `get_backend()` gives for each backend of `cluster`, seen with torch 2.13: the whole string.
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        monkeypatch.setattr(dist, "get_backend", lambda backend=backend: backend)
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert worker._device() == torch.device("cuda", 2)
        monkeypatch.delenv("LOCAL_RANK")
        assert worker._device() == torch.device("cuda", 0)
    assert current == ["cuda:2", "cuda:0"] * 2
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    assert worker._device() == torch.device("cpu")


def test_the_most_of_each_category_is_counted_event_by_event() -> None:
    """Two of 100 bytes that live one after the other and overlap at one operator, one that lives to the end, one never met."""

    def record(category: str | None, nbytes: int, born: int, died: int) -> Any:
        return SimpleNamespace(category=category, nbytes=nbytes, born=born, died=died)

    tracker = SimpleNamespace(
        operators=["a", "b", "c", "d"],
        records=[
            record("gradients", 100, 0, 2), record("gradients", 100, 1, 3), record("inputs", 7, 3, 99), record(None, 5, 2, 3),
            record("optimizer", 9, 4, 9),
        ],
    )  # fmt: skip
    assert worker.most_by_category(tracker) == {"gradients": 200, "inputs": 7, "temporary": 5}


@pytest.mark.parametrize(("stops", "expected"), [
    (None, ["step 0", "step 1", "follow 2", "clocks", "meet", "count", "step 3", "step 4", "step 5", "count"]),
    (0, []), (1, ["step 0"]), (2, ["step 0", "step 1"]), (3, ["step 0", "step 1", "follow 2"]),
    (4, ["step 0", "step 1", "follow 2", "clocks", "meet", "count", "step 3", "count"]),
])  # fmt: skip
def test_ranks_meet_before_the_steps_that_are_observed(monkeypatch: pytest.MonkeyPatch, stops: int | None, expected: list[str]) -> None:
    """Of six steps two only train, one is followed, three are observed; before these the ranks meet, with nothing left to prepare.

    A wish to stop before the first of them leaves nothing; after it what was observed is kept. What came before is forgotten.
    """
    told: list[str] = []
    run = object.__new__(worker._Work)
    run.job, run.shares, run.seconds, run.begins = _job(steps=6), [torch.tensor(1.5)], [], [7.0]
    run.setting = SimpleNamespace(device=torch.device("cpu"), phases=["before"], ends_in_wait=[1.0])  # type: ignore[assignment]
    run.trainer = SimpleNamespace(state=lambda: {"w": torch.tensor([2.0])})  # type: ignore[assignment]
    counts = iter((100, 350))

    def batches(job: Job, device: Any) -> Any:
        for k in range(6):
            assert told[-1:] != ["meet"]
            yield k

    asked: list[int] = []

    def goes_on() -> bool:
        asked.append(len([one for one in told if one[:4] in ("step", "foll")]))
        return stops is None or asked[-1] < stops

    monkeypatch.setattr(run, "_goes_on", goes_on)
    monkeypatch.setattr(run, "_step", lambda batch: told.append(f"step {batch}"))
    monkeypatch.setattr(run, "_followed", lambda batch: told.append(f"follow {batch}") or (9, {"inputs": 1}, {"inputs": 2}))
    monkeypatch.setattr(worker, "_batches", batches)
    monkeypatch.setattr(worker, "_environment", lambda: HERE)
    monkeypatch.setattr(worker, "clocks_ahead", lambda device: told.append("clocks") or 0.25)
    monkeypatch.setattr(dist, "barrier", lambda: told.append("meet"))
    evidence = parallel.wire_bytes().evidence
    monkeypatch.setattr(_wire, "wire_bytes", lambda: told.append("count") or parallel.WireBytes(next(counts), 0, 0, (1,), None, evidence))
    found = run.done()
    assert told == expected
    assert asked == list(range(6 if stops is None else stops + 1))  # once before each step: a second answer could be another one
    assert (found is None) is (stops is not None and stops <= 3)
    if found is not None:
        assert (found.peak_bytes, found.peak_by_category, found.most_by_category) == (9, {"inputs": 1}, {"inputs": 2})
        assert (found.shares, found.wire_bytes, found.state["w"].tolist()) == ([1.5], 250, [2.0])
        assert found.notes is not None
        assert (found.notes.phases, found.notes.ends_in_wait, found.notes.steps, found.notes.ahead_seconds) == ((), (), (), 0.25)


def test_what_a_training_could_not_do_is_noted() -> None:
    """One rank alone; several machines; bytes that one rank could not count. Each in its sentence."""
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE)
    outcomes = [_outcome([4.0, 3.0, 2.0, 1.0], [1.0] * 4, 2.0, 1, None)]
    uncounted = [dataclasses.replace(outcomes[0], wire_reason="no such count")]
    r = _train._result(strategy_named("ddp"), _job(), torch.nn.Linear(2, 3), single, uncounted, 2)
    assert [(note.code, note.sentence) for note in r.notes] == [
        ("skipped", "One rank has nobody to share with, so nothing was split or sent. Start a cluster of two or more."),
        ("contended", "The ranks are on several machines, whose clocks were set side by side by asking for the time."),
        ("skipped", "Bytes on the wire were not counted: no such count."),
    ]
    assert (r.timeline.label, repr(r)) == ("ddp on 1 rank", "<ddp on 1 rank, 4 steps: as one process, losses differ by 0.0e+00>")
    assert repr(r.timeline) == "<timeline of ddp on 1 rank: 4 spans on 1 rank in 4.20 s>"
    assert repr(r.reports[0]) == "<rank 0: peak 1 B, payload 850 B a step>"
    assert len({r, dataclasses.replace(r), dataclasses.replace(r, ranks=3)}) == 2
    assert len({r.timeline, dataclasses.replace(r.timeline), dataclasses.replace(r.timeline, label="x")}) == 2
    off = dataclasses.replace(r, state_difference=1.0)
    assert (off.agrees, off.has_note("skipped"), off.has_note("disagree")) == (False, True, False)
    assert repr(off) == "<ddp on 1 rank, 4 steps: not as one process, losses differ by 0.0e+00>"
    assert not dataclasses.replace(r, losses=r.losses + 1.0).agrees
    assert dataclasses.replace(r, timeline=dataclasses.replace(r.timeline, steps=())).seconds(0) == r.timeline.seconds(0)


def test_messages_count_as_they_are_and_collectives_as_rings() -> None:
    """What is sent to one rank goes once; of an all-gather of 800 bytes a rank of two passes on 400; what is received costs nothing."""

    def call(name: str, given: int, got: int) -> CollectiveCall:
        return CollectiveCall(0, name, "x", "float32", given, got, (4, 6), None, 0.0, 1.0, "wait", 0.0)

    sent = [
        _train._as_ring(6, call(*one)) for one in (("send", 800, 0), ("recv", 0, 800), ("all_gather", 400, 800), ("all_reduce", 800, 800))
    ]
    assert sent == [800.0, 0.0, 400.0, 800.0]


def test_a_rank_takes_its_parts_one_after_another_and_exchanges_once() -> None:
    """DDP in a group of one, in one part and in two: the spans of its thread, one wait at the end, and one exchange, after the last."""

    def setting(parts: int) -> Setting:
        torch.manual_seed(0)
        return Setting(
            0, 1, torch.device("cpu"), torch.nn.Linear(4, 2), lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
            worker.OptimizerMaker("sgd", 0.1), parts, 2**20,
        )  # fmt: skip

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        losses, x, y = [], torch.arange(16.0).view(4, 4), torch.ones(4, 2)
        for parts, names in (
            (1, ["forward", "backward", "optimizer"]), (2, ["forward 0", "backward 0", "forward 1", "backward 1", "optimizer"]),
        ):  # fmt: skip
            given = setting(parts)
            trainer = Buckets(given, parts)
            before = [parameter.detach().clone() for parameter in given.model.parameters()]
            with parallel.observe() as seen:
                losses.append(float(trainer.step((x, y))))
            assert [name for name, *_ in given.phases] == names
            assert len(given.ends_in_wait) == 1
            assert [call.name for call in seen.calls] == ["all_reduce"]
            assert not any(torch.equal(*each) for each in zip(before, given.model.parameters(), strict=True))
        assert losses[0] == pytest.approx(losses[1])  # the mean over the whole batch
        assert set(trainer.state()) == {"weight", "bias"}
    finally:
        dist.destroy_process_group()
    assert [positions_of(torch.zeros(*shape)) for shape in ((5,), (5, 7), (5, 7, 3))] == [1, 7, 7]


def test_a_difference_of_the_tolerance_itself_agrees() -> None:
    """Of losses as of parameters; a little more of either does not. Equal results are equal, and others, or something else, are not."""
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE)
    r = dataclasses.replace(_result([_outcome([4.0, 3.0, 2.0, 1.0], [1.0] * 4, 2.0, 1, None)], single), tolerance=0.5)
    off = dataclasses.replace(r, losses=r.losses + np.array([0.0, 0.0, 0.0, 0.5]))
    assert (off.loss_difference, off.agrees) == (0.5, True)
    assert dataclasses.replace(off, state_difference=0.5).agrees
    assert not dataclasses.replace(off, state_difference=0.51).agrees
    assert not dataclasses.replace(off, losses=r.losses + 0.51, state_difference=0.0).agrees
    assert r == parallel.StrategyResult.from_dict(r.to_dict())
    assert r != off
    assert r != "something else"


def test_states_are_told_by_rank_0_alone_where_they_are_gathered() -> None:
    """A whole model once is enough to travel; every rank takes part in the gathering."""
    gathered: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def detach(self) -> Part:
            return self

        def full_tensor(self) -> str:
            gathered.append(self.name)
            return f"whole {self.name}"

    model = SimpleNamespace(named_parameters=lambda: [("a", Part("a")), ("b", Part("b"))])
    for rank, state in ((0, {"a": "whole a", "b": "whole b"}), (1, {})):
        trainer = object.__new__(Sharded)
        trainer.setting, trainer.model = SimpleNamespace(rank=rank), model  # type: ignore[assignment]
        assert trainer.state() == state
        split = object.__new__(SplitLayers)
        split.setting = SimpleNamespace(rank=rank, size=2)  # type: ignore[assignment]
        rows = torch.arange(6.0).reshape(6, 1)  # of two ranks: query 0, key 0, value 0 of the first half of the heads, then of the second
        split.model = SimpleNamespace(
            named_parameters=lambda rows=rows: [("blocks.0.qkv.weight", rows), ("blocks.0.projection.weight", rows)]
        )
        found = {name: value.flatten().tolist() for name, value in split.state().items()}
        ordered = {"blocks.0.qkv.weight": [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], "blocks.0.projection.weight": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
        assert found == (ordered if rank == 0 else {})
    assert gathered == ["a", "b"] * 2


def test_a_training_tells_what_it_does_and_asks_its_ranks_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process first, then all; a cluster of so many ranks is started for it, and left; ranks on two machines are noted."""
    heard: list[tuple[float, str]] = []
    asked: list[Any] = []
    single = Outcome([4.0, 3.0, 2.0, 1.0], {"w": torch.tensor([2.0])}, HERE)

    class Group:
        hosts, timeout_seconds = ("a", "b"), 7.0

        def __enter__(self) -> Group:
            asked.append("start")
            return self

        def __exit__(self, *_: object) -> None:
            asked.append("stop")

        def run(self, function: Any, job: Job, *given: Any) -> list[Any]:
            asked.append((function.__name__, job.strategy, job.steps, job.wish))
            if function is worker.alone:
                return [single, None]
            return [_outcome([2.0, 1.5, 1.0, 0.5], [1.0] * 4, 2.0, 1, None) for _ in range(2)]

    def started(n: int, progress: Any) -> Group:
        asked.append(n)
        progress(0.05, "starting")
        return Group()

    monkeypatch.setattr(_train, "cluster", started)
    monkeypatch.setattr(_train, "_references", type(_train._references)())
    r = parallel.train(2, "ddp", task="digits-mlp", steps=4, progress=lambda *told: heard.append(told))
    assert asked == [2, "start", ("alone", "ddp", 4, None), ("work", "ddp", 4, None), "stop"]
    assert heard == [
        (0.05, "starting"), (0.1, "one process trains the whole model"), (0.4, "2 ranks train by ddp"), (1.0, "done"),
    ]  # fmt: skip
    assert [note.code for note in r.notes] == ["contended"]
    assert r.losses.tolist() == [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [("adam", "Adam", {}), ("adamw", "AdamW", {}), ("sgd", "SGD", {"momentum": 0}), ("sgd-momentum", "SGD", {"momentum": 0.9})],
)
def test_an_optimizer_is_made_by_its_name(name: str, kind: str, options: dict[str, float]) -> None:
    """Of torch.optim's class, with the learning rate and PyTorch's own options; one parameter after another."""
    made = worker.OptimizerMaker(name, 0.25)([torch.nn.Parameter(torch.zeros(1))])
    assert type(made).__name__ == kind
    assert (made.defaults["lr"], made.defaults["foreach"]) == (0.25, False)
    assert {key: made.defaults[key] for key in options} == options


def test_a_step_begins_from_the_seed_and_leaves_the_ranks_own_draws() -> None:
    """Inside the numbers of seed 5, whatever was drawn before; afterwards the generator goes on where it was; states are copies."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with worker._quiet(_job(seed=5), torch.device("cpu")):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(inside, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    weight = torch.ones(2)
    kept = worker._on_host({"w": weight})
    weight += 1
    assert kept["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("ends", "seconds"), [(0.0, 0.0), (0.5, 0.5), (9.0, 1.0)])
def test_an_end_that_is_told_late_is_awaited_for_a_second(monkeypatch: pytest.MonkeyPatch, ends: float, seconds: float) -> None:
    """By looks of a millisecond; what has not ended then is given as it is."""
    now = [50.0]

    def sleep(given: float) -> None:
        now[0] += given

    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))

    class Seen:
        calls = ("a call",)

        @property
        def in_flight(self) -> bool:
            return now[0] - 50.0 < ends

    assert worker._ended(Seen()) == ("a call",)
    assert now[0] - 50.0 == pytest.approx(seconds, abs=0.002)


def test_ddp_is_given_buckets_of_the_size_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts in MiB: half a one is 524,288 bytes; gradients are views of the buckets, so that they take no memory of their own."""
    given: list[Any] = []
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", lambda model, **options: given.append(options) or model)
    setting = Setting(
        0, 1, torch.device("cpu"), torch.nn.Linear(4, 2), lambda model, batch: 0, worker.OptimizerMaker("sgd", 0.1), 1, 524_288
    )
    trainer = Buckets(setting)
    assert (given, trainer.parts) == ([{"bucket_cap_mb": 0.5, "gradient_as_bucket_view": True}], 1)
