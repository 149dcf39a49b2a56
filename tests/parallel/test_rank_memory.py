"""Predicted memory per rank: against real ranks, against ZeRO's formulas and bytes counted by hand, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpulab as gl
from gpulab import networks
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.memory.results import LiveTensor
from gpulab.parallel import RankMemory, Ranks, _rank_memory, _rank_step, predict_ranks
from gpulab.parallel._strategies import strategies
from gpulab.parallel.rank_results import needed_bytes

# The bound that predictions are held to; benchmarks/rank_memory.py has the whole matrix at 2 and 4 ranks.
MOST_OFF = 0.05
POSITIONS = 32


def little() -> Any:
    """Return a transformer of two layers: bytes are compared, so a small one asks as much as a large one."""
    return networks.transformer(100, 32, 4, 2, context=POSITIONS)


def tokens(batch: int = 4) -> torch.Tensor:
    return torch.zeros(batch, POSITIONS, dtype=torch.int64)


def on_real_rank(strategy: str, precision: str) -> dict[str, Any]:
    """Take three steps with real tensors in this rank; runs in the engine."""
    import torch

    from gpulab import networks
    from gpulab.parallel._rank_step import Plan, follow

    torch.manual_seed(0)
    model = networks.transformer(100, 32, 4, 2, context=32)
    x = torch.zeros(4, 32, dtype=torch.int64)
    return follow(Plan(strategy, precision, microbatches=2), model, (x, x), steps=3)


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        ("ddp", "bfloat16"),
        ("zero1", "float32"),
        ("zero3", "bfloat16"),
        ("sequence", "float32"),
        ("pipeline-1f1b", "float32"),
    ],
)
def test_prediction_is_the_peak_of_real_ranks(ranks: Ranks, strategy: str, precision: str) -> None:
    """On each of two real ranks the live tensor storage peaks where predicted, and is made of the same."""
    for rank, real in enumerate(ranks.run(on_real_rank, strategy, precision, timeout_seconds=60)):
        p = predict_ranks(little, tokens(), tokens(), strategy=strategy, ranks=2, rank=rank, precision=precision, microbatches=2)
        assert p.peak_bytes == pytest.approx(real["peak_bytes"], rel=MOST_OFF)
        for category in ("parameters", "optimizer", "gradients", "communication"):
            assert p.peak_by_category[category] == pytest.approx(real["peak_by_category"].get(category, 0), rel=MOST_OFF, abs=4096)


def narrow() -> Any:
    """Return two layers of which the second is small beside what comes in, and goes back as gradients: 8 KiB a microbatch of four rows."""
    return torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.Linear(512, 8))


def on_real_stage(model: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """Take three steps of GPipe in this rank; runs in the engine."""
    import torch

    from gpulab.parallel._rank_step import Plan, follow

    return follow(Plan("pipeline-gpipe", microbatches=4, loss=torch.nn.functional.cross_entropy), model, (x, y), steps=3)


def test_what_a_stage_has_sent_is_held_until_the_schedule_lets_go(ranks: Ranks) -> None:
    """GPipe waits for its sends at the end of a pass: the last stage's peak has all microbatches' gradients for the stage before."""
    x, y = torch.zeros(16, 8), torch.zeros(16, dtype=torch.int64)
    loss = torch.nn.functional.cross_entropy
    for rank, real in enumerate(ranks.run(on_real_stage, narrow(), x, y, timeout_seconds=60)):
        p = predict_ranks(narrow, x, y, strategy="pipeline-gpipe", ranks=2, rank=rank, microbatches=4, loss=loss)
        assert p.peak_bytes == pytest.approx(real["peak_bytes"], abs=64)
    assert p.peak_by_category["communication"] == 2 * 4 * (4 * 512 * 4)  # received activations, gradients sent; float32


def square() -> Any:
    """Return two linear layers of 1024 x 1024 without biases: 2 x 4 MiB."""
    return torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.Linear(1024, 1024, bias=False))


@pytest.mark.parametrize("size", [2, 1024])
@pytest.mark.parametrize("strategy", ["data", "zero2", "zero3"])
def test_states_are_those_of_the_zero_paper(strategy: str, size: int) -> None:
    """Between steps Adam's model states take 16 bytes a parameter, over the ranks where all of them are shared out.

    ZeRO (Rajbhandari et al., 2020), section 3.1 and figure 1: 2 + 2 + 12 bytes in mixed precision; in float32 4 + 4 + 8, the same sum.
    """
    x = torch.zeros(1, 1024)
    p = predict_ranks(square, x, x, strategy=strategy, ranks=size, loss=lambda y, t: y.sum())
    parameters = 2 * 1024 * 1024
    share = parameters // size if strategy != "data" else parameters
    assert p.parameter_count == parameters
    steps = 2 * 4  # Adam counts its steps in four bytes a parameter tensor
    table = 0 if strategy == "data" else 4 * size  # the device mesh lists the ranks
    assert p.kept_bytes == 16 * share + x.nbytes + steps + table


def test_first_stage_shares_the_optimizer_only() -> None:
    """ZeRO stage 1 keeps 4 + 4 bytes a parameter on each rank, and 8 on the rank that updates it."""
    x = torch.zeros(1, 1024)
    p = predict_ranks(square, x, x, strategy="zero1", ranks=2, loss=lambda y, t: y.sum())
    layer = 1024 * 1024
    assert p.kept_bytes - x.nbytes == pytest.approx(2 * 8 * layer + 8 * layer, abs=64)


def test_share_of_an_uneven_layer_is_padded() -> None:
    """Of 1,001 rows four ranks hold 251 each: FSDP pads the last share to the length of the others."""
    x = torch.zeros(1, 10)
    for rank in (0, 3):
        p = predict_ranks(lambda: torch.nn.Linear(10, 1001, bias=False), x, x, strategy="zero3", ranks=4, rank=rank, optimizer="sgd",
                          loss=lambda y, t: y.sum())  # fmt: skip
        assert p.peak_by_category["parameters"] == 251 * 10 * 4


def test_a_stage_holds_its_layers_and_the_microbatches_in_flight() -> None:
    """GPipe's first stage holds all microbatches' activations, 1F1B's as many as there are stages after it, itself counted."""
    layers = 4  # two a stage: with one, its gradients take more than a microbatch's activations, and the peak comes after one is gone
    whole = networks.transformer(100, 32, 4, layers, context=POSITIONS)
    count, head = sum(parameter.numel() for parameter in whole.parameters()), 100 * 32
    held = {}
    for strategy in ("pipeline-gpipe", "pipeline-1f1b"):
        p = predict_ranks(whole, tokens(8), tokens(8), strategy=strategy, ranks=2, microbatches=8, optimizer="sgd")
        assert p.peak_by_category["parameters"] < 4 * (count - head)  # the last stage holds the head, with half of the layers
        held[strategy] = p.peak_by_category["activations"]
    assert held["pipeline-gpipe"] / held["pipeline-1f1b"] == pytest.approx(8 / 2, rel=0.1)


def test_checkpointing_and_bfloat16_take_less() -> None:
    """Recomputed activations and gathered bfloat16 parameters are smaller, whatever the strategy adds."""
    plain, again, half = (
        predict_ranks(little, tokens(), tokens(), strategy="zero3", ranks=4, optimizer="sgd", **options)
        for options in ({}, {"checkpoint": True}, {"precision": "bfloat16"})
    )
    assert again.peak_by_category["activations"] < plain.peak_by_category["activations"]
    assert half.peak_by_category["communication"] <= 0.6 * plain.peak_by_category["communication"]


def test_module_is_left_as_it_is_and_no_group_stays() -> None:
    """The caller's module keeps its tensors and its heads, and this process belongs to no group afterwards."""
    model = little()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict_ranks(model, tokens(), tokens(), strategy="tensor", ranks=4, optimizer="sgd")
    assert model.blocks[0].heads == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(next(model.parameters())) is torch.nn.Parameter
    assert not torch.distributed.is_initialized()


def test_result_goes_through_json() -> None:
    """A prediction reads back as it was, its parts sum to its peak, and it says which GPU it fits."""
    p = predict_ranks("course", strategy="zero3", ranks=2)
    assert type(p).from_dict(p.to_dict()) == p
    assert sum(p.peak_by_category.values()) == p.peak_bytes
    assert p.parameter_count == gl.parallel.gpt_shape("course").parameter_count
    assert p.fits("T4")
    assert not p.fits(2**20)


def test_the_table_of_a_rank_by_hand() -> None:
    """The peak and its parts that are not empty, what is kept, the largest tensors with shape or "scalar", and the notes."""
    tensors = (
        LiveTensor(name="w", nbytes=8192, shape=(64, 32), dtype="float32", category="gradients", operator="aten.mm"),
        LiveTensor(name="", nbytes=4, shape=(), dtype="int64", category="inputs", operator="aten.add"),
    )
    parts = {"parameters": 1024, "optimizer": 0, "gradients": 8192}
    r = RankMemory(
        "net", "zero3", 8, 1, 9216, 100, 2048, 9000, parts, "aten.mm", "backward", tensors, 10, "adam", "float32", False, 1,
        (Note("stopped", "Here."),), Evidence.measured("x"),
    )  # fmt: skip
    assert r.table() == (("net: zero3, rank 1 of 8", "bytes"), [
        ("peak, backward: aten.mm", "9.00 KiB"), ("- parameters", "1.00 KiB"), ("- gradients", "8.00 KiB"),
        ("inside operators (upper estimate)", "100 B"), ("kept between steps", "2.00 KiB"),
        ("at the peak: w (gradients, 64x32 float32)", "8.00 KiB"), ("at the peak: aten.add (inputs, scalar int64)", "4 B"),
        ("note: stopped", "Here."),
    ])  # fmt: skip
    needed = r.needed_bytes()
    assert needed > 9216 + 100
    assert (r.fits(needed), r.fits(needed - 1)) == (True, False)


def wide() -> Any:
    """Return two layers as wide as the 7B shape's 32 have parameters: 26 GB that must not be allocated."""
    return networks.transformer(1000, 16384, 4, 2, context=POSITIONS)


def resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since it was last reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what a process had at most since a moment")
@pytest.mark.parametrize(
    "given", [pytest.param((wide, tokens(1), tokens(1)), id="wide"), pytest.param(("7B",), id="7B", marks=pytest.mark.soak)]
)
def test_seven_billion_parameters_on_1024_ranks(given: tuple[Any, ...]) -> None:
    """The process that predicts them grows by less than 500 MB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the most so far becomes what there is now (proc(5))
    before = resident("VmRSS")
    p = predict_ranks(*given, strategy="zero3", ranks=1024)
    assert resident("VmHWM") - before < 500e6
    assert p.parameter_count > 6.4e9
    assert p.peak_by_category["parameters"] == pytest.approx(4 * p.parameter_count / 1024, rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks is 0; expected a whole number from 1 to 1024"),
        ({"ranks": 1025}, "ranks is 1025"),
        ({"rank": 2}, "rank is 2; expected a whole number from 0 to 1"),
        ({"strategy": "zero4"}, "strategy is 'zero4'; expected one of: single"),
        ({"precision": "int8"}, "precision is 'int8'"),
        ({"optimizer": None}, "optimizer is None"),
        ({"strategy": "tensor", "ranks": 3}, "predict_ranks: tensor cannot split 4 heads over 3 ranks"),
        (
            {"strategy": "sequence", "ranks": 4, "inputs": tokens()[:, :30], "targets": tokens()[:, :30]},
            r"predict_ranks: sequence cannot split 30 positions over 4 ranks; .* inputs of 28 positions",
        ),
        (
            {"strategy": "sequence", "ranks": 4, "inputs": tokens()[:, :3], "targets": tokens()[:, :3]},
            "sequence cannot split 3 positions over 4 ranks; .* inputs of 4 positions",
        ),
        ({"strategy": "pipeline-gpipe", "ranks": 8}, "cannot cut 2 layers into 8 stages"),
        ({"strategy": "pipeline-gpipe", "microbatches": 3}, "does not divide over the 3 microbatches"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"inputs": "x"}, "inputs is 'x'; expected a tensor"),
        ({"model": "8B"}, "'8B' is no size of the transformer"),
        ({"loss": lambda y, t: y}, "the loss is a tensor of shape"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    """What cannot be predicted is told with its value, and no process group stays behind."""
    asked = {"model": little, "inputs": tokens(), "targets": tokens(), "strategy": "ddp", "ranks": 2, **options}
    model, inputs, targets = (asked.pop(name) for name in ("model", "inputs", "targets"))
    with pytest.raises(InputError, match=words) as caught:
        predict_ranks(model, inputs, targets, **asked)
    assert "\n" not in str(caught.value)
    assert not torch.distributed.is_initialized()


def test_stop_ends_it() -> None:
    """A stop is obeyed at the next operator."""
    with pytest.raises(StoppedError, match="stopped before two steps"):
        predict_ranks(little, tokens(), tokens(), strategy="zero3", ranks=2, stop=lambda: True)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [("pipeline-gpipe", "a batch of 3 does not divide over the 2 microbatches"), ("ddp-no-sync", "a batch of 12 does not divide over")],
)
def test_a_batch_that_does_not_divide_is_told_in_what_can_be_passed(strategy: str, told: str) -> None:
    """Three items in two microbatches: two would do, which are the pipeline's batch, and of four ranks each one's part of eight."""
    with pytest.raises(InputError) as caught:
        predict_ranks(little, tokens(3), strategy=strategy, ranks=4 if strategy == "ddp-no-sync" else 2, microbatches=2)
    assert told in str(caught.value)
    assert str(caught.value).endswith("Pass inputs of 2 items.")


def test_process_of_a_group_is_refused() -> None:
    """A process that is a rank already keeps its group."""
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        with pytest.raises(InputError, match="this process is rank 0 of a process group already"):
            predict_ranks(little, tokens(), tokens(), strategy="ddp", ranks=2)
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


def test_strategies_that_no_other_test_predicts() -> None:
    """No strategy of the registry is left out: these here, the others above."""
    here = {"single", "ddp-no-overlap", "ddp-no-sync", "tensor", "split"}
    assert set(strategies()) - here == {"data", "ddp", "zero1", "zero2", "zero3", "sequence", "pipeline-gpipe", "pipeline-1f1b"}
    x = torch.zeros(2, 4, dtype=torch.int64)
    for strategy in sorted(here):
        p = predict_ranks(lambda: networks.transformer(20, 8, 2, 2, context=4), x, x, strategy=strategy, ranks=2, optimizer="sgd")
        assert 0 < p.peak_by_category["parameters"] <= 4 * p.parameter_count


def test_a_prediction_says_how_far_it_is() -> None:
    """What is done, and its share: two steps fill what lies between a fifth and the end."""
    told: list[tuple[float, str]] = []
    x = torch.zeros(2, 8)
    loss = torch.nn.functional.mse_loss
    predict_ranks(lambda: torch.nn.Linear(8, 8), x, x, strategy="data", ranks=2, loss=loss, progress=lambda *given: told.append(given))
    assert told == [
        (0.0, "making fake tensors"), (0.1, "building"), (0.2, "following step 1 of 2"), (pytest.approx(0.6), "following step 2 of 2"),
        (1.0, "done"),
    ]  # fmt: skip


def test_a_model_is_named_by_what_was_given() -> None:
    """A module by its class, a function by its name but for one without, a size by its own; a named size brings its batch."""
    x = torch.zeros(3)
    for model, label in ((torch.nn.Linear(1, 1), "Linear"), (little, "little"), (lambda: None, "the model")):
        assert (_rank_memory._what(model, x, None, 2)[0], _rank_memory._what(model, x, None, 2)[2]) == (label, (x, None))
    label, _, (inputs, targets) = _rank_memory._what("course", None, None, 3)
    assert (label, inputs.shape, inputs.dtype, inputs.is_meta, targets is inputs) == ("course", (3, 128), torch.int64, True, True)
    assert _rank_memory._what("course", x, x, 3)[2] == (x, x)
    for inputs, model in ((torch.tensor(1.0), little), (torch.zeros(0, 3), little), (x, 3)):
        with pytest.raises(InputError, match=r"^predict_ranks: (inputs|model) is "):
            _rank_memory._what(model, inputs, None, 2)
    assert [_rank_memory._parts(name, 8) for name in ("pipeline-1f1b", "ddp-no-sync", "ddp", "split")] == [8, 2, 1, 1]


@pytest.mark.parametrize(
    ("strategy", "precision", "inside", "outside"),
    [
        ("ddp", "float32", torch.float32, torch.float32), ("ddp", "bfloat16", torch.bfloat16, torch.float32),
        ("zero3", "bfloat16", torch.float32, torch.float32), ("zero2", "bfloat16", torch.float32, torch.float32),
    ],
)  # fmt: skip
def test_arithmetic_is_mixed_where_it_was_asked_for(strategy: str, precision: str, inside: torch.dtype, outside: torch.dtype) -> None:
    """By autocast, but where FSDP2 mixes by itself; with a loss of one's own and with the model's, with targets and without."""
    seen: list[torch.dtype] = []

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            seen.append(super().forward(x).dtype)
            return super().forward(x).float().sum() if y is not None else super().forward(x)

    model, x = Model(4, 4), torch.ones(2, 4)
    _rank_step._loss(_rank_step.Plan(strategy, precision))(model, (x, x))
    own = _rank_step._loss(_rank_step.Plan(strategy, precision, loss=lambda y, *t: (y + len(t)).float().sum()))
    with_targets, without = own(model, (x, x)), own(model, (x, None))
    assert seen == [inside] * 3
    assert float((with_targets - without).detach()) == pytest.approx(8.0, abs=0.1)  # of eight numbers each is one more
    assert (model(x).dtype, with_targets.dtype) == (outside, torch.float32)


def test_fsdp_gathers_in_bfloat16_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And sums gradients in float32; afterwards it is as it was, also where a step failed. A stage alone has autocast of its own."""
    from torch.distributed import fsdp

    given: list[dict[str, Any]] = []
    monkeypatch.setattr(fsdp, "fully_shard", lambda *modules, **options: given.append(options))
    plain = fsdp.fully_shard
    with _rank_step._mixed_shards("float32"):
        fsdp.fully_shard("block", reshard_after_forward=True)

    def fails() -> None:
        with _rank_step._mixed_shards("bfloat16"):
            fsdp.fully_shard("block", reshard_after_forward=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert fsdp.fully_shard is plain
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert given == [{"reshard_after_forward": True}, {"reshard_after_forward": True, "mp_policy": policy}]
    stage = torch.nn.Linear(4, 4)
    _rank_step._autocast_stage(stage)
    assert stage(torch.ones(2, 4)).dtype == torch.bfloat16


def test_what_was_followed_becomes_plain_numbers() -> None:
    """By hand: the peak of all but the first step, its parts by category, thirty tensors of it, and what operators took beside it."""

    class Tracker:
        steps, operators, phases, with_scratch = [2, 5], list("abcdefgh"), list("ABCDEFGH"), 130

        def classify(self) -> None:
            self.classified = True

        def peak(self, begin: int, end: int | None = None) -> tuple[int, int]:
            return (6, 100) if (begin, end) == (5, None) else (3, 90) if (begin, end) == (2, 5) else (0, -1)

        def alive_at(self, event: int) -> list[Any]:
            assert (event, self.classified) == (6, True)
            kinds = ["gradients"] * 2 + ["inputs"] * 30
            return [SimpleNamespace(category=kind, nbytes=k, to_dict=lambda k=k: {"nbytes": k}) for k, kind in enumerate(kinds, 1)]

    assert _rank_step._found(Tracker(), [5, 8]) == {
        "peak_bytes": 100, "peak_by_category": {"gradients": 3, "inputs": sum(range(3, 33))}, "peak_operator": "g", "peak_phase": "G",
        "peak_tensors": [{"nbytes": k} for k in range(1, 31)], "first_step_peak_bytes": 90, "scratch_bytes": 30,
    }  # fmt: skip
    tight = Tracker()
    tight.with_scratch = 99
    assert _rank_step._found(tight, [5, 8])["scratch_bytes"] == 0


def test_what_must_be_free_is_more_than_the_peak() -> None:
    """15 % and 768 MiB on an accelerator, 25 % and 256 MiB on a CPU, by ``memory.predict``'s own page; five tensors are shown."""
    mib = 2**20
    assert [needed_bytes(1000 * mib, kind) for kind in ("cuda", "rocm", "cpu")] == [1918 * mib, 1918 * mib, 1506 * mib]
    tensors = tuple(LiveTensor(name=f"w{k}", nbytes=9 - k, shape=(k,), dtype="int8", category="inputs", operator="x") for k in range(6))
    r = RankMemory(
        "net", "zero3", 8, 1, 600 * mib, 400 * mib, 1, 1, {}, "op", "forward", tensors, 10, "adam", "float32", False, 1, (),
        Evidence.measured("x"),
    )  # fmt: skip
    assert (r.needed_bytes(), r.needed_bytes("cpu")) == (1918 * mib, 1506 * mib)
    assert [row[0].split()[3] for row in r.table()[1] if row[0].startswith("at the peak")] == ["w0", "w1", "w2", "w3", "w4"]
    assert repr(r) == "<net, zero3 on 8 ranks, rank 1: peak 600 MiB + scratch 400 MiB (modelled)>"


def test_pytorch_before_2_13_has_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 2.9 on, the oldest that is asked for: the sum that is scattered has its older name, and pipelines alone are refused."""
    from torch.distributed.pipelining import PipelineStage

    monkeypatch.delattr(torch.distributed, "reduce_scatter_single", raising=False)
    monkeypatch.delattr(PipelineStage, "_warmup_forward_vote", raising=False)
    x = torch.zeros(2, 784)
    options: dict[str, Any] = {"loss": torch.sum, "ranks": 2}
    assert predict_ranks(torch.nn.Linear(784, 10), x, strategy="data", **options).peak_by_category["parameters"] == 4 * 7850
    with pytest.raises(InputError, match=r"expected 2\.13 or newer"):
        predict_ranks(torch.nn.Linear(784, 10), x, strategy="pipeline-gpipe", **options)


def test_a_step_that_fails_is_told_in_one_sentence() -> None:
    """Layers that do not fit: whose the failure is, with PyTorch's words; no group and no fake mode stay behind."""
    x = torch.zeros(2, 3)
    with pytest.raises(InputError) as caught:
        predict_ranks(lambda: torch.nn.Linear(4, 4), x, strategy="data", ranks=2, loss=torch.sum)
    assert str(caught.value).startswith("predict_ranks: the step ")
    assert "\n" not in str(caught.value)
    assert "memory.trace" not in str(caught.value)
    assert not torch.distributed.is_initialized()
    assert type(torch.zeros(1)) is torch.Tensor

    def broken() -> Any:
        raise ValueError("no model today")

    with pytest.raises(InputError, match=r"^predict_ranks: .*no model today"):
        predict_ranks(broken, x, strategy="data", ranks=2)


@pytest.mark.parametrize(("length", "parts"), [(8, 3), (8, 8), (3, 8), (7, 4), (1, 1), (6, 5)])
def test_parts_of_a_parameter_are_those_that_fsdp_cuts(length: int, parts: int) -> None:
    """Beside FSDP's own function, which cuts all of them: the same numbers in the same shapes, and empty ones at the end."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

    from gpulab.parallel._fake_ranks import _Chunks

    whole = torch.arange(2.0 * length).reshape(length, 2)
    real, ours = _chunk_with_empty(whole, parts, 0), _Chunks(whole, parts, 0)
    assert len(ours) == len(real) == parts
    for k, part in enumerate(real):
        assert ours[k].shape == part.shape
        assert torch.equal(ours[k], part)
    turned = _chunk_with_empty(whole.T, parts, 1)
    assert all(torch.equal(_Chunks(whole.T, parts, 1)[k], part) for k, part in enumerate(turned))


def test_only_what_goes_to_the_meta_device_is_let_go_there() -> None:
    """Parameters keep their shapes and whether they are trained, buffers go too; any other move is PyTorch's own, as it is afterwards."""
    from gpulab.parallel._fake_ranks import _let_go

    before = torch.nn.Module.to
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3, affine=False), torch.nn.Linear(3, 2, bias=False))
    model[2].requires_grad_(False)
    with _let_go():
        assert model.to(torch.float64)[0].weight.dtype == torch.float64
        assert model.to(device="cpu")[0].weight.device.type == "cpu"
        assert model.to("meta") is model
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert [(tuple(p.shape), p.requires_grad) for p in model.parameters()] == [((3, 2), True), ((3,), True), ((2, 3), False)]
    assert [tuple(b.shape) for b in model.buffers()] == [(3,), (3,), ()]
    assert all(type(parameter) is torch.nn.Parameter for parameter in model.parameters())
    assert torch.nn.Module.to is before


def test_ddp_hears_that_its_buckets_stay() -> None:
    """Nothing was rebuilt; whatever else it asks its reducer is the reducer's own; what is sent is held beside its work."""
    from gpulab.parallel._fake_ranks import _Held, _replaced, _SameBuckets, _Zero

    reducer = SimpleNamespace(_rebuild_buckets=lambda: True, prepare=7)
    same = _SameBuckets(reducer)
    assert (same._rebuild_buckets(), same.prepare) == (False, 7)
    held = _Held(SimpleNamespace(wait=lambda: "waited"), ["a tensor"])
    assert (held.wait(), held._tensors, _Zero().item()) == ("waited", ["a tensor"], 0)
    owner = SimpleNamespace(one=1, two=2)

    def fails() -> None:
        with _replaced(owner, one=3):
            assert (owner.one, owner.two) == (3, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (owner.one, owner.two) == (1, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ("microbatches", 2**20 + 1, 1, 2**20),
            "microbatches is 1048577; expected a whole number from 1 to 1048576. Pass for example microbatches=2.",
        ),
        (("rank", 5, 0, 0), "rank is 5; expected a whole number from 0 to 0. Pass for example rank=0."),
        (("ranks", 1.5, 3, 9), "ranks is 1.5; expected a whole number from 3 to 9. Pass for example ranks=3."),
    ],
)
def test_a_number_out_of_range_is_told_with_one_that_fits(given: tuple[Any, ...], words: str) -> None:
    """Both bounds are taken."""
    with pytest.raises(InputError) as caught:
        _rank_memory._whole(*given)
    assert str(caught.value) == f"predict_ranks: {words}"
    name, _, least, most = given
    assert [_rank_memory._whole(name, value, least, most) for value in (least, most)] == [least, most]


def test_bounds_of_a_prediction_are_those_that_are_told() -> None:
    """A thousand ranks, a million microbatches, a petabyte of buckets; what comes first is refused first."""
    x = torch.zeros(2, 3)
    for options, words in (
        ({"microbatches": 2**20, "bucket_bytes": 2**50 + 1},
         "bucket_bytes is 1125899906842625; expected a whole number from 1 to 1125899906842624"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0"), ({"bucket_bytes": 2**50, "optimizer": None}, "optimizer is None"),
        ({"bucket_bytes": 1, "optimizer": None}, "optimizer is None"), ({"microbatches": 2**20 + 1}, "microbatches is 1048577"),
        ({"checkpoint": 1}, "checkpoint=1; expected True or False"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^predict_ranks: {words}"):
            predict_ranks(little, x, strategy="ddp", ranks=1024, **options)


def test_a_checkpoint_counts_the_generators_state_once_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a step made up: five calls of checkpoints in two steps are two a step, each with PyTorch's 5,056 bytes in blocks: 5,120."""
    found = {
        "peak_bytes": 10, "scratch_bytes": 7, "checkpoints": 5, "kept_bytes": 3, "first_step_peak_bytes": 9, "peak_by_category": {},
        "peak_operator": "x", "peak_phase": "forward", "peak_tensors": [],
    }  # fmt: skip
    monkeypatch.setattr(_rank_memory, "_followed", lambda work: found)
    p = predict_ranks(lambda: torch.nn.Linear(2, 2), torch.zeros(2, 2), strategy="data", ranks=2, checkpoint=True, loss=torch.sum)
    assert (p.scratch_bytes, p.checkpoint, p.parameter_count, p.kept_bytes) == (7 + 2 * 5120, True, 6, 3)
    assert p.peak_by_category == dict.fromkeys(
        ("parameters", "optimizer", "gradients", "communication", "activations", "inputs", "temporary"), 0
    )
    assert p.evidence.assumptions is not None
    assert "bfloat16" not in p.evidence.assumptions
