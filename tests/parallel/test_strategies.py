"""Strategies of data, sharded, tensor and sequence parallelism on two real ranks: what they compute, send and hold.

Expected numbers come from one process, from ``training.fit``, from arithmetic on the model's shapes, and from gloo's own algorithms.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from gpulab import networks, parallel, training
from gpulab.errors import GpulabError, StoppedError
from gpulab.models import gloo_wire_bytes
from gpulab.parallel import Ranks, RankTimeline, Strategy, StrategyResult

WIDTH, LAYERS, CONTEXT, BATCH = 16, 2, 64, 8
OURS = ("data", "ddp", "ddp-no-overlap", "ddp-no-sync", "zero1", "zero2", "zero3", "tensor", "sequence")


@functools.cache
def tiny() -> torch.nn.Module:
    """A transformer with 10,000 parameters on the characters of the course's prose."""
    torch.manual_seed(0)
    vocabulary = int(training.task("prose-transformer").train.inputs.max()) + 1
    return networks.transformer(vocabulary, width=WIDTH, heads=4, layers=LAYERS, context=CONTEXT)


def parameter_bytes(dtype_bytes: int = 8) -> int:
    return dtype_bytes * sum(parameter.numel() for parameter in tiny().parameters())


_RESULTS: dict[str, StrategyResult] = {}


def result_of(ranks: Ranks, strategy: str) -> StrategyResult:
    """Return a strategy's run over 20 steps in float64, taken once for this file."""
    if strategy not in _RESULTS:
        _RESULTS[strategy] = parallel.train(
            ranks, strategy, model=tiny(), batch_size=BATCH, dtype="float64", microbatches=2, bucket_bytes=16 * 2**10
        )
    return _RESULTS[strategy]


@pytest.mark.parametrize("strategy", OURS)
def test_computes_what_one_process_computes(ranks: Ranks, strategy: str) -> None:
    """Losses of 20 steps and the parameters after them are those of one process to 1e-9, and training moved both."""
    result = result_of(ranks, strategy)
    assert result.steps == 20
    assert result.loss_difference <= 1e-9
    assert result.state_difference <= 1e-9
    assert result.agrees
    assert not result.notes
    assert result.losses[-1] < result.losses[0] - 0.5


def test_the_single_process_is_the_loop_of_the_course(ranks: Ranks) -> None:
    """The losses beside which strategies are set are those of ``training.fit``, another loop, to float32's last bits."""
    result = parallel.train(ranks, "ddp", steps=4, batch_size=BATCH, seed=3)
    fitted = training.fit("prose-transformer", steps=4, batch_size=BATCH, seed=3, device="cpu")
    assert result.single_losses == pytest.approx(fitted.losses, rel=1e-5)
    assert result.agrees
    assert result.loss_difference > 0  # float32's sums do run in another order


def test_a_function_of_ones_own_is_data_parallel(ranks: Ranks) -> None:
    """A function that averages gradients is a strategy by its own name; one that forgets to is found out, from the second step on."""

    def mine(model: Any) -> None:
        import torch.distributed as dist

        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(dist.get_world_size())

    good = parallel.train(ranks, mine, model=tiny(), steps=4, batch_size=BATCH, dtype="float64")
    assert (good.strategy, good.agrees) == ("mine", True)


def forgets_all(model: Any) -> None:
    """Each rank goes its own way."""


def forgets_to_divide(model: Any) -> None:
    """Sums, and never divides."""
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def forgets_one(model: Any) -> None:
    """Averages all but the last norm's weight."""
    import torch.distributed as dist

    for name, parameter in model.named_parameters():
        if name != "norm.weight":
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def takes_the_first_half_twice(setting: Any) -> Any:
    """Every rank takes rank 0's part of the batch."""
    from gpulab.parallel._strategies_data import ByHand, average_gradients

    trainer = ByHand(setting, average_gradients)
    setting.share = lambda batch: (batch[0][: len(batch[0]) // setting.size], batch[1][: len(batch[1]) // setting.size])
    return trainer


def cuts_heads_apart(setting: Any) -> Any:
    """Cut queries, keys and values where they lie, so that a rank's keys belong to other heads than its queries."""
    from gpulab.parallel import _strategies_tensor

    right, _strategies_tensor.order_heads = _strategies_tensor.order_heads, lambda block, ranks: None
    try:
        return _strategies_tensor.SplitLayers(setting, sequence=False)
    finally:
        _strategies_tensor.order_heads = right


def sums_no_positions(setting: Any) -> Any:
    """Take each rank's gradients of the norms as they are: those of its own positions only."""
    from gpulab.parallel._strategies_tensor import SplitLayers

    class Forgetful(SplitLayers):
        def exchange(self) -> None:
            from torch.distributed.tensor import DTensor

            for parameter in self.model.parameters():
                if isinstance(parameter.grad, DTensor) and parameter.grad.placements != parameter.placements:
                    parameter.grad = DTensor.from_local(parameter.grad.to_local(), parameter.device_mesh, parameter.placements)

    return Forgetful(setting, sequence=True)


FAULTS: dict[str, Any] = {
    "forgets all": forgets_all,
    "forgets to divide": forgets_to_divide,
    "forgets one": forgets_one,
    "one part twice": Strategy("one part twice", "", takes_the_first_half_twice),
    "heads cut apart": Strategy("heads cut apart", "", cuts_heads_apart),
    "positions not summed": Strategy("positions not summed", "", sums_no_positions),
}


# What float32's larger tolerance lets through in a few steps is found in float64: one small parameter, or norms.
@pytest.mark.parametrize(
    ("fault", "dtype"), [*((fault, "float64") for fault in FAULTS), ("forgets all", "float32"), ("heads cut apart", "float32")]
)
def test_a_seeded_fault_is_found(ranks: Ranks, fault: str, dtype: str) -> None:
    """A mistake of the usual kinds makes losses or parameters differ by far more than the tolerance, and a note says so."""
    result = parallel.train(
        ranks, FAULTS[fault], model=tiny(), steps=4, batch_size=BATCH, dtype=dtype, optimizer="sgd-momentum", learning_rate=0.1
    )
    assert not result.agrees
    assert max(result.loss_difference, result.state_difference) > 3 * result.tolerance
    assert result.has_note("disagree")


@pytest.mark.parametrize("strategy", ["data", "ddp", "ddp-no-overlap", "ddp-no-sync"])
def test_data_parallel_sends_the_gradients_once_around_the_ring(ranks: Ranks, strategy: str) -> None:
    """Each step all gradients enter all-reduces, accumulated or not; a ring sends 2 (n - 1) / n of their bytes."""
    for report in result_of(ranks, strategy).reports:
        assert report.payload_bytes == {"all_reduce": parameter_bytes()}
        assert report.ring_bytes == 2 * (2 - 1) / 2 * parameter_bytes()


def test_zero3_moves_one_and_a_half_times_as_much(ranks: Ranks) -> None:
    """Two gathers and one reduce-scatter of (n - 1) / n each, where data parallel has two; stage 2, with one gather, is level with DDP."""
    for rank in range(2):
        ddp, zero2, zero3 = (result_of(ranks, name).reports[rank] for name in ("ddp", "zero2", "zero3"))
        assert zero3.payload_bytes == {"all_gather": 2 * parameter_bytes(), "reduce_scatter": parameter_bytes()}
        assert zero3.ring_bytes == 1.5 * ddp.ring_bytes
        assert zero2.ring_bytes == ddp.ring_bytes


def test_zero1_sends_each_parameter_from_its_owner(ranks: Ranks) -> None:
    """Beside DDP's all-reduces, each parameter is broadcast once; the two ranks' own parts add up to all of it."""
    reports = result_of(ranks, "zero1").reports
    assert all(report.payload_bytes == {"all_reduce": parameter_bytes(), "broadcast": parameter_bytes()} for report in reports)
    assert all(report.calls["broadcast"] == len(list(tiny().parameters())) for report in reports)
    assert sum(report.ring_bytes for report in reports) == 2 * parameter_bytes() + parameter_bytes()


def test_tensor_parallel_sums_twice_each_way_a_block(ranks: Ranks) -> None:
    """Two all-reduces forward and two backward a block, each of the activations of the whole batch."""
    activations = BATCH * CONTEXT * WIDTH * 8
    for report in result_of(ranks, "tensor").reports:
        assert report.calls == {"all_reduce": 4 * LAYERS}
        assert report.payload_bytes == {"all_reduce": 4 * LAYERS * activations}


def test_sequence_parallel_gathers_and_scatters_where_tensor_parallel_sums(ranks: Ranks) -> None:
    """A block has four all-gathers and four reduce-scatters, which as rings cost what four all-reduces do; one gather more at each end."""
    activations = BATCH * CONTEXT * WIDTH * 8
    norms = 2 * (2 * LAYERS + 1) * WIDTH * 8  # weights and biases, each of which a rank knows from its own positions only
    for report in result_of(ranks, "sequence").reports:
        assert report.payload_bytes == {
            "all_gather": (4 * LAYERS + 2) * activations, "reduce_scatter": 4 * LAYERS * activations, "all_reduce": norms,
        }  # fmt: skip


def test_bytes_on_the_wire_are_those_of_gloos_algorithms(ranks: Ranks) -> None:
    """What DDP's sockets sent in a step is what gloo's ring sends for its buckets, headers included, to the byte."""
    result = result_of(ranks, "ddp")
    spans = result.timeline.lane(0, "communication")
    for rank, report in enumerate(result.reports):
        if report.wire_bytes is None:
            pytest.skip("bytes on the wire are counted on Linux only")
        expected = sum(gloo_wire_bytes("all_reduce", span.nbytes // 8, 2, element_bytes=8)[rank] for span in spans)
        assert report.wire_bytes == round(expected / len(result.timeline.steps))


def test_memory_is_shared_out_as_each_stage_says(ranks: Ranks) -> None:
    """Adam's state is twice the parameters, and a counter each: stage 1 shares it out, stages 2 and 3 gradients and parameters too."""
    whole, counters = parameter_bytes(), 4 * len(list(tiny().parameters()))
    kept = {name: [report.most_by_category for report in result_of(ranks, name).reports] for name in ("data", "zero1", "zero2", "zero3")}
    for of_rank in kept["data"]:
        assert (of_rank["parameters"], of_rank["gradients"], of_rank["optimizer"]) == (whole, whole, 2 * whole + counters)
    assert sum(of_rank["optimizer"] for of_rank in kept["zero1"]) == 2 * whole + counters
    assert max(of_rank["optimizer"] for of_rank in kept["zero1"]) < 0.6 * (2 * whole)
    for stage in ("zero2", "zero3"):
        for of_rank in kept[stage]:
            assert (of_rank["parameters"], of_rank["gradients"]) == (whole // 2, whole // 2)
            assert of_rank["optimizer"] == whole + counters
    assert kept["zero3"][0]["communication"] < kept["zero2"][0]["communication"]


def test_activations_follow_the_part_of_the_batch_and_sequence_parallel_splits_the_rest(ranks: Ranks) -> None:
    """Half the batch, half the activations; tensor parallel leaves what lies between the pairs whole, sequence parallel does not."""
    single = (
        parallel.train(ranks, "single", model=tiny(), steps=4, batch_size=BATCH, dtype="float64").reports[0].most_by_category["activations"]
    )
    data, tensor, sequence = (result_of(ranks, name).reports[0].most_by_category["activations"] for name in ("data", "tensor", "sequence"))
    assert data == pytest.approx(single / 2, rel=0.01)
    assert data < sequence < tensor < single


def test_every_second_is_accounted_for(ranks: Ranks) -> None:
    """Compute, idle and communication that is not beside compute make up most of a rank's time in a step, and never more than all of it."""
    for name in ("data", "ddp", "zero3", "tensor"):
        lanes = result_of(ranks, name).timeline
        for rank in range(2):
            seconds = lanes.seconds(rank)
            used = seconds["compute"] + seconds["idle"] + seconds["communication"] - lanes.overlap_seconds(rank)
            assert used <= lanes.end_seconds * (1 + 1e-9), name
            assert statistics.median(shares_accounted_for(lanes, rank)) > 0.5, name


def shares_accounted_for(lanes: RankTimeline, rank: int) -> list[float]:
    """Return of each step which share of a rank's time, from its first span to the end of its last, lies in spans."""
    shares = []
    for begin, end in itertools.pairwise([*lanes.steps, float("inf")]):
        mine = sorted((s.begin_seconds, s.end_seconds) for s in lanes.spans if s.rank == rank and begin <= s.begin_seconds < end)
        covered, reached = 0.0, mine[0][0]
        for first, last in mine:
            covered, reached = covered + max(0.0, last - max(first, reached)), max(last, reached)
        shares.append(covered / (reached - mine[0][0]))
    return shares


def beside_backward(result: StrategyResult, rank: int) -> float:
    """Seconds of communication beside spans of the backward pass."""
    lanes = result.timeline
    return sum(
        max(0.0, min(a.end_seconds, b.end_seconds) - max(a.begin_seconds, b.begin_seconds))
        for a in lanes.lane(rank, "communication")
        for b in lanes.lane(rank, "compute")
        if b.name.startswith("backward")
    )


def test_overlap_is_seen_in_ddp_alone(ranks: Ranks) -> None:
    """DDP's buckets travel beside the backward pass; the same buckets sent afterwards, and gradients by hand, never do."""
    assert any(beside_backward(result_of(ranks, "ddp"), rank) > 0 for rank in range(2))
    for name in ("data", "ddp-no-overlap"):
        assert all(beside_backward(result_of(ranks, name), rank) == 0 for rank in range(2))


def test_a_result_goes_through_json_and_has_a_table(ranks: Ranks) -> None:
    """What comes back from its text is equal; the table has a column a rank."""
    result = result_of(ranks, "zero1")
    assert StrategyResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    headers, rows = result.table()
    assert headers[1:] == ("rank 0", "rank 1")
    assert all(len(row) == len(headers) for row in rows)
    assert "as one process" in repr(result)


def test_a_model_that_normalises_its_own_part_is_told_apart(ranks: Ranks) -> None:
    """Batch norm over half a batch is another computation, and the note names it."""
    result = parallel.train(ranks, "ddp", task="digits-cnn", model=networks.cnn(width=4), steps=4, batch_size=16, dtype="float64")
    assert not result.agrees
    assert "Batch norm" in result.notes[0].sentence


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "tensor"])
def test_tied_embeddings_stay_tied(ranks: Ranks, strategy: str) -> None:
    """A weight that the first and the last layer share gets the sum of both gradients, as in one process."""
    torch.manual_seed(1)
    model = networks.transformer(tiny().tokens.num_embeddings, width=WIDTH, heads=4, layers=1, context=CONTEXT, tied=True)
    result = parallel.train(ranks, strategy, model=model, steps=4, batch_size=BATCH, dtype="float64")
    assert result.agrees
    assert result.parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_a_model_of_linear_layers_is_split_in_pairs(ranks: Ranks) -> None:
    """The perceptron's layers by columns, then rows: one sum forward, and one backward unless nothing before needs a gradient."""
    result = parallel.train(ranks, "tensor", task="digits-mlp", steps=4, batch_size=BATCH, dtype="float64")
    assert result.agrees
    assert result.reports[0].calls == {"all_reduce": 1}


def test_the_callers_model_stays_as_it_is(ranks: Ranks) -> None:
    """Training works on copies."""
    before = {name: value.clone() for name, value in tiny().state_dict().items()}
    result_of(ranks, "ddp")
    assert all(torch.equal(value, before[name]) for name, value in tiny().state_dict().items())
    assert {parameter.dtype for parameter in tiny().parameters()} == {torch.float32}


class _Slow:
    """Steps of the trainer that it wraps; one of rank 0's says that it has begun, and lasts until the wish to stop lies beside its file."""

    def __init__(self, setting: Any, path: str, slow: int) -> None:
        from gpulab.parallel._strategies_data import ByHand, average_gradients

        self.inner, self.path, self.slow, self.taken = ByHand(setting, average_gradients), path, slow, 0

    def step(self, batch: Any) -> Any:
        import pathlib
        import time

        import torch.distributed as dist

        self.taken += 1
        if self.taken == self.slow and dist.get_rank() == 0:  # rank 1 may come to a step before rank 0 has asked whether to go on
            begun, end = pathlib.Path(self.path), time.monotonic() + 60.0
            begun.touch()
            while not list(begun.parent.glob("gpulab-stop-*/stop")) and time.monotonic() < end:
                time.sleep(0.005)
        return self.inner.step(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def stopped_in(ranks: Ranks, step: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StrategyResult:
    """Train six steps of which the last three are observed, and stop in one, counted from 1; what says so lies in the folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # where the wish to stop is made
    path = folder / "begun"
    slow = Strategy(f"slow {step}", "", functools.partial(_Slow, path=str(path), slow=step))
    return parallel.train(ranks, slow, model=tiny(), steps=6, batch_size=BATCH, dtype="float64", stop=path.exists)


@pytest.mark.parametrize(("step", "taken"), [(3, 4), (4, 5), (6, 6)])
def test_a_stop_keeps_whole_steps(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, taken: int) -> None:
    """The step in flight and one more are taken by both ranks; what is kept is what one process has after as many steps."""
    result = stopped_in(ranks, step, tmp_path, monkeypatch)
    assert (result.steps, result.has_note("stopped")) == (taken, taken < 6)
    assert len(result.timeline.steps) == taken - 3
    assert result.agrees
    assert all(report.payload_bytes == {"all_reduce": parameter_bytes()} for report in result.reports)
    assert ranks.ready


def test_a_stop_before_a_step_was_observed_keeps_nothing(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says so, in the first steps as in the single process; the ranks stay in step, and a failing ``stop`` is named."""
    with pytest.raises(
        StoppedError, match=r"^train: stopped before a step was observed, so nothing of this run was kept\. Run it again\.$"
    ):
        stopped_in(ranks, 1, tmp_path, monkeypatch)
    with pytest.raises(StoppedError, match="nothing of this run was kept"):
        parallel.train(ranks, "ddp", model=tiny(), steps=50, batch_size=BATCH, seed=7, stop=lambda: True)
    with pytest.raises(GpulabError, match="stop"):
        parallel.train(ranks, "ddp", model=tiny(), steps=50, batch_size=BATCH, seed=7, stop=lambda: 1 / 0)
    assert ranks.ready
