"""Pipelines on four real ranks: PyTorch's schedules against the timetable, what each stage holds, and the same model as one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from thread_ranks import ThreadRanks

from gpulab import networks, parallel
from gpulab.errors import InputError, StoppedError
from gpulab.models import StagePass, pipeline_schedule
from gpulab.parallel import ScheduleRun, _run_schedule
from gpulab.parallel._strategies import Setting
from gpulab.parallel._strategies_pipeline import ByHand, Pipeline, layers_of, stages_of

QUICK = {"forward_seconds": 0.004, "backward_seconds": 0.008}


@pytest.mark.parametrize("schedule", ["split", "gpipe", "1f1b", "interleaved"])
def test_ranks_do_what_the_timetable_says(four_ranks: Any, schedule: str) -> None:
    """Four stages take eight microbatches in the timetable's order, hold what it says, and wait for what each pass needs."""
    r = parallel.run_schedule(four_ranks, schedule, 8, steps=1, **QUICK)
    for stage in range(4):
        assert [one.name for one in r.of_stage(stage)] == [one.name for one in r.model.of_stage(stage)]
    assert r.held == r.model.held
    assert all(one.duration >= 0.99 * getattr(r, f"{one.kind}_seconds") * one.count / r.chunks for one in r.passes)
    found = {(one.kind, one.chunk * 4 + one.stage, one.microbatch): one for one in r.passes}
    for (kind, part, k), one in found.items():
        before = found.get((kind, part - 1 if kind == "forward" else part + 1, k))
        assert before is None or before.end <= one.begin + 1e-4  # clocks of one machine; the next stage cannot have it earlier


def test_the_bubble_measured_is_the_bubble_in_theory(four_ranks: Any) -> None:
    """Uncut, three of four wait; with eight microbatches the bubble comes down towards 3 / 11, and never below what waiting costs."""
    uncut = parallel.run_schedule(four_ranks, "split", 4, steps=1)
    cut = parallel.run_schedule(four_ranks, "gpipe", 8, steps=3)
    assert uncut.bubble_ratio == pytest.approx(0.75, abs=0.05)
    assert min(cut.bubble_ratios) < 0.5 < uncut.bubble_ratio
    assert cut.bubble_ratio > 3 / 11 - 0.02  # of the median step: where the whole machine pauses, all stages seem to work, and few wait
    assert len(cut.bubble_ratios) == 3
    assert cut.duration_seconds == max(one.end for one in cut.passes) >= 0.99 * cut.model.duration


def test_one_forward_one_backward_holds_less(four_ranks: Any) -> None:
    """Of 16 microbatches GPipe holds all, 1F1B at most four; the bytes of the first stage's activations follow."""
    bytes_of = {name: parallel.run_schedule(four_ranks, name, 16, steps=1, **QUICK).activation_bytes for name in ("gpipe", "1f1b")}
    assert bytes_of["gpipe"][0] > 3 * bytes_of["1f1b"][0]
    assert bytes_of["1f1b"][0] > bytes_of["1f1b"][2]
    layer = 32 * 128 * 4  # a microbatch after a layer, in float32; two layers whose results are kept, per microbatch
    assert bytes_of["gpipe"][0] == 16 * 2 * layer


@pytest.mark.parametrize("strategy", ["split", "pipeline-gpipe", "pipeline-1f1b"])
def test_stages_compute_what_one_process_computes(four_ranks: Any, strategy: str) -> None:
    """20 steps of a transformer of four layers on four ranks: losses and parameters are one process's; so is each stage's share of them."""
    r = parallel.train(four_ranks, strategy, model=small(), steps=20, batch_size=8, dtype="float64")
    assert r.steps == 20
    assert r.agrees
    assert max(r.loss_difference, r.state_difference) <= 1e-12
    assert r.losses[-1] < r.losses[0] - 0.5  # it did learn
    held = [report.most_by_category["parameters"] for report in r.reports]
    assert sum(held) == r.parameter_count * 8
    assert max(held) < r.parameter_count * 8 / 2
    # What goes to the next rank, and comes back as a gradient: 8 windows of 64 characters and 16 features, in float64.
    layer = 8 * 64 * 16 * 8
    sent = [report.payload_bytes["send"] for report in r.reports]
    assert sent == [layer, 2 * layer, 2 * layer, layer]
    parts = 1 if strategy == "split" else 4
    assert [report.calls["send"] for report in r.reports] == [parts, 2 * parts, 2 * parts, parts]
    names = [[span.name for span in r.timeline.lane(rank, "compute")][: 2 * parts] for rank in range(4)]
    if strategy != "split":
        order = pipeline_schedule(4, 4, strategy.removeprefix("pipeline-"))
        assert names == [[f"{one.kind} {one.microbatch}" for one in order.of_stage(stage)] for stage in range(4)]


def test_gpipe_holds_every_microbatch_and_1f1b_does_not(four_ranks: Any) -> None:
    """Of eight microbatches the first stage holds all or four, so the bytes of activations go down to about a half; the last, an eighth."""
    most = {}
    for strategy in ("pipeline-gpipe", "pipeline-1f1b"):
        r = parallel.train(four_ranks, strategy, model=small(), steps=3, batch_size=8, microbatches=8)
        most[strategy] = [report.most_by_category["activations"] for report in r.reports]
    ratios = [few / all_of_them for few, all_of_them in zip(most["pipeline-1f1b"], most["pipeline-gpipe"], strict=True)]
    assert ratios[0] == pytest.approx(4 / 8, abs=0.1)
    assert ratios[1] < 0.5
    assert ratios[3] == pytest.approx(1 / 8, abs=0.1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("since", ["2.9", "2.10"])
def test_a_model_gets_no_word_that_pytorchs_schedule_does_not_know(monkeypatch: pytest.MonkeyPatch, schedule: str, since: str) -> None:
    """In 2.9 ``step(*args, target=None, losses=None, **kwargs)`` hands all other words to the model; outputs are left out since 2.10."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    words: list[dict[str, Any]] = []

    def old(self: Any, *args: Any, target: Any = None, losses: Any = None, **kwargs: Any) -> None:
        words.append(kwargs)
        losses.append(torch.tensor(2.0))

    def new(self: Any, *args: Any, target: Any = None, losses: Any = None, return_outputs: bool = True, **kwargs: Any) -> None:
        old(self, target=target, losses=losses, **kwargs)
        assert not return_outputs

    monkeypatch.setattr(PipelineScheduleSingle, "step", old if since == "2.9" else new)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        setting = Setting(0, 1, torch.device("cpu"), networks.mlp(4, 4, 2), lambda model, batch: model(batch[0]).mean(), _sgd, 2, 1024)
        assert Pipeline(setting, schedule).step((torch.ones(2, 4), torch.zeros(2))) == 2.0
    finally:
        dist.destroy_process_group()
    assert words == [{}]


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def small(layers: int = 4, **options: Any) -> Any:
    """A transformer for the task's characters."""
    torch.manual_seed(0)
    return networks.transformer(80, width=16, heads=2, layers=layers, context=64, **options)


@pytest.mark.parametrize(
    ("model", "arguments", "told"),
    [
        (lambda: small(2), {"strategy": "split"}, "split cannot cut 2 layers into 4 stages"),
        (lambda: small(tied=True), {"strategy": "split"}, "Build the model with tied=False"),
        (small, {"strategy": "pipeline-gpipe", "batch_size": 10, "microbatches": 4}, "of 10 does not divide over the 4 microbatches"),
        (small, {"strategy": "pipeline-1f1b", "microbatches": 2}, "Pass microbatches=4"),
        (lambda: torch.nn.LSTM(4, 4), {"strategy": "split"}, "does not know the layers of an LSTM"),
        (lambda: networks.cnn(width=4), {"strategy": "pipeline-gpipe", "batch_size": 8}, "has batch norm"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_cut(four_ranks: Any, model: Any, arguments: dict[str, Any], told: str) -> None:
    """One sentence each, before a rank hears of it."""
    with pytest.raises(InputError, match="train: ") as caught:
        parallel.train(four_ranks, model=model(), **arguments)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (lambda: networks.mlp(64, 8, depth=4), (3, 64)), (lambda: networks.cnn(width=2), (3, 1, 8, 8)),
        (lambda: networks.resnext(width=8, groups=4), (3, 1, 8, 8)), (lambda: networks.mobilenet(width=4), (3, 1, 8, 8)),
        (lambda: torch.nn.Sequential(torch.nn.Flatten(), *[torch.nn.Linear(64, 64) for _ in range(5)]), (3, 64)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3, 4])
def test_stages_in_a_row_are_the_model(model: Any, inputs: tuple[int, ...], count: int) -> None:
    """One after another the stages give what the whole gives, and each parameter lies in exactly one of them."""
    torch.manual_seed(0)
    whole = model().eval()
    stages = stages_of(whole, count)
    x = torch.rand(*inputs)
    assert torch.equal(torch.nn.Sequential(*stages)(x), whole(x))
    assert [id(p) for stage in stages for p in stage.parameters()] == [id(p) for p in whole.parameters()]
    layers = [len(layers_of(stage)) for stage in stages]
    assert max(layers) - min(layers) <= 1


def test_a_stop_keeps_what_was_measured(four_ranks: Any) -> None:
    """Stopped before the first step there is nothing; after it there is one step and a note; the ranks go on."""
    with pytest.raises(StoppedError, match="before a step was measured"):
        parallel.run_schedule(four_ranks, "gpipe", 4, stop=lambda: True, **QUICK)
    asked: list[str] = []
    r = parallel.run_schedule(
        four_ranks, "gpipe", 4, steps=5, progress=lambda fraction, text: asked.append(text), stop=lambda: "step 1 of 5" in asked, **QUICK
    )
    assert len(r.bubble_ratios) == 1
    assert r.notes[0].code == "stopped"
    assert asked[-1] == "done"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"schedule": "spiral"}, "expected one of: split"), ({"microbatches": 3}, "Pass microbatches=4"),
        ({"microbatches": 0}, "microbatches is 0"), ({"forward_seconds": 0}, "forward_seconds is 0"),
        ({"backward_seconds": float("nan")}, "backward_seconds is nan"), ({"steps": 0}, "steps is 0"),
        ({"steps": 51}, "whole number from 1 to 50"), ({"forward_seconds": 0.00099}, "at least 0.001"),
        ({"forward_seconds": 9.0}, "a step of these would take"), ({"schedule": "interleaved", "microbatches": 6}, "Pass microbatches=8"),
    ],
)  # fmt: skip
def test_bad_input_in_one_sentence(four_ranks: Any, arguments: dict[str, Any], told: str) -> None:
    """Nothing is sent to the ranks when the schedule cannot be run."""
    with pytest.raises(InputError) as caught:
        parallel.run_schedule(four_ranks, **arguments)
    assert told in str(caught.value)


@pytest.mark.parametrize("given", [4, None, "four"])
def test_a_number_of_ranks_is_no_cluster(given: Any) -> None:
    """``train`` and ``scaling`` take a number; a schedule wants ranks that were started, and says so."""
    with pytest.raises(InputError, match=r"run_schedule: ranks is .* expected a started cluster of two ranks or more"):
        parallel.run_schedule(given)


def test_the_words_of_a_run() -> None:
    """Two stages by hand: the bubble is the median, the lanes have a gap where a stage waits, JSON goes both ways."""
    from gpulab import devices
    from gpulab.evidence import Evidence

    passes = (
        StagePass(0, "forward", 0, 1, 0, 0.0, 1.0), StagePass(1, "forward", 0, 1, 0, 1.0, 2.0),
        StagePass(1, "backward", 0, 1, 0, 2.0, 4.0), StagePass(0, "backward", 0, 1, 0, 4.5, 6.5),
    )  # fmt: skip
    here = devices.environment("cpu")
    r = ScheduleRun("gpipe", 2, 1, 1, 1.0, 2.0, (0.6, 0.5, 0.51), passes, (100, 50), (), Evidence.measured("2 ranks", 3), here)
    assert r.bubble_ratio == 0.51
    assert r.model.bubble_ratio == 0.5
    assert r.busy_seconds == (3.0, 3.0)
    lane = [(span.kind, span.name, span.begin_seconds, span.end_seconds) for span in r.timeline.lane(0)]
    assert lane == [("compute", "forward 0", 0.0, 1.0), ("idle", "recv", 1.0, 4.5), ("compute", "backward 0", 4.5, 6.5)]
    assert r.timeline.lane(1)[-1].end_seconds == 6.5
    assert r.table()[1] == [
        ("stage 0", "3.00 s of 6.50 s", "53.8%", "1", "100 B"), ("stage 1", "3.00 s of 6.50 s", "53.8%", "1", "50 B"),
        # One microbatch through two stages and back is 3 + 3 seconds, of which each stage works half.
        ("bubble measured", "50.0% to 60.0% in 3 steps", "51.0%", "", ""), ("in the timetable", "6.00 s", "50.0%", "1", ""),
        ("by formula", r.model.bubble_formula, "50.0%", "", ""),
    ]  # fmt: skip
    assert repr(r) == "<gpipe on 2 ranks: bubble 51.0% measured, 50.0% in theory>"
    assert ScheduleRun.from_dict(r.to_dict()) == r


def test_clocks_of_other_machines_are_set_by_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose clocks are 100 s ahead and 7 s behind add as much less and more; found to a second, with ranks that are threads."""
    ranks = ThreadRanks(monkeypatch, (0.0, 100.0, -7.0))
    assert ranks.run(_run_schedule._clock_shift) == pytest.approx([0.0, -100.0, 7.0], abs=1.0)
    assert len(ranks.sent) == 2 * 2 * 10  # ten questions from each of two ranks, and as many answers


def test_a_model_split_by_hand_trains_behind_frozen_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning: nothing of the first stage is trained, and the second one's losses and weights are those of the whole model."""
    whole = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    whole[0].requires_grad_(False)
    copies = [copy.deepcopy(whole) for _ in range(2)]
    batch = (torch.randn(6, 3), torch.randint(2, (6,)))
    ranks = ThreadRanks(monkeypatch, (0.0, 0.0))

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    def steps() -> tuple[list[float], dict[str, Any]]:
        rank = ranks.rank()
        trainer = ByHand(Setting(rank, 2, torch.device("cpu"), copies[rank], loss, make, 1, 1))
        return [float(trainer.step(batch)) for _ in range(3)], trainer.state()

    first, second = ranks.run(steps)
    optimizer, expected = make(whole.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(whole, batch)
        value.backward()
        optimizer.step()
        expected.append(float(value.detach()))
    assert (first[0], second[0]) == ([0.0] * 3, pytest.approx(expected))
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close({**first[1], **second[1]}[name], parameter.detach())


def test_passes_are_told_from_the_begin_of_the_first_one() -> None:
    """The first begins at 5 on stage 1; all move by 5, and come in the order in which they begin; the bubble is what none of them fills."""
    stages = [[StagePass(0, "forward", 2, 3, 1, 7.0, 8.0)], [StagePass(1, "backward", 0, 1, 0, 5.0, 9.0)]]
    passes = _run_schedule._from_the_first(stages)
    assert passes == (StagePass(1, "backward", 0, 1, 0, 0.0, 4.0), StagePass(0, "forward", 2, 3, 1, 2.0, 3.0))
    assert _run_schedule._bubble(passes, 2) == 1 - (4 + 1) / (2 * 4)


def test_a_step_begins_when_every_rank_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of the step before are forgotten, the ranks meet, and only then the step is taken."""
    stage = _run_schedule._Stage(0, 2, 0.0, {"forward": 0.0, "backward": 0.0})
    done: list[Any] = []
    monkeypatch.setattr(_run_schedule._Engine, "stage", stage)
    monkeypatch.setattr(dist, "barrier", lambda: done.append("meet"))
    stage.passes = [StagePass(0, "forward", 0, 1, 0, 0.0, 1.0)]
    stage.take_step = lambda: done.append(list(stage.passes))
    assert _run_schedule._step() == []
    assert done == ["meet", []]
    _run_schedule._clear()
    assert _run_schedule._Engine.stage is None


def test_an_uncut_step_gives_each_stage_the_gradients_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three stages that are threads: after a step each one's gradients are those of one process, though only messages went between."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(4, 4) for _ in range(3)]
    batch = torch.randn(6, 4)
    _run_schedule._loss(torch.nn.Sequential(*parts)(batch), batch).backward()
    whole = [[p.grad.clone() for p in part.parameters()] for part in parts]
    for part in parts:
        part.zero_grad()
        monkeypatch.setattr(part, "zero_grad", lambda **_: None)  # what the step clears is looked at here
    ranks = ThreadRanks(monkeypatch, (0.0, 0.0, 0.0))

    def step() -> list[tuple[str, int]]:
        stage = _run_schedule._Stage(ranks.rank(), 3, 0.0, {"forward": 0.0, "backward": 0.0})
        _run_schedule._uncut(stage, "split", [parts[ranks.rank()]], batch, 2)()
        return [(one.kind, one.count) for one in stage.passes]

    assert ranks.run(step) == [[("forward", 2), ("backward", 2)]] * 3
    for part, expected in zip(parts, whole, strict=True):
        for parameter, gradient in zip(part.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    assert sorted(ranks.sent) == [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_the_quickest_answer_sets_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 asks ten times; the fourth answer is back after half a second and counts: 131.25 there when it was 31 and a quarter here."""
    seconds = [4.0, 3.0, 2.0, 0.5, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    clock = iter([moment for k, taken in enumerate(seconds) for moment in (10.0 * k + 1.0, 10.0 * k + 1.0 + taken)])
    words = iter([10.0 * k + 101.25 for k in range(10)])
    sent: list[int] = []
    monkeypatch.setattr(_run_schedule.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "send", lambda word, rank: sent.append(rank))
    monkeypatch.setattr(dist, "recv", lambda word, rank: word.fill_(next(words)))
    assert _run_schedule._clock_shift() == pytest.approx(131.25 - 31.25)
    assert sent == [0] * 10


class MadeRanks:
    """Two ranks on two machines that note what they are asked; ``stops`` is the step in which they are interrupted."""

    n, hosts = 2, ("a", "b")

    def __init__(self, stops: int | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.stops = stops

    def run(self, function: Any, *given: Any) -> list[Any]:
        """Answer as the ranks would."""
        self.asked.append((function.__name__, *given))
        if function is _run_schedule._set_up:
            return [4096, 2048.0]
        if function is _run_schedule._clear:
            return [None, None]
        if len([one for one in self.asked if one[0] == "_step"]) == self.stops:
            raise StoppedError("run: stopped")
        end = 11.0 if len(self.asked) == 3 else 10.5  # the second step's bubble is the larger one
        return [[StagePass(0, "forward", 0, 1, 0, 10.0, 10.02)], [StagePass(1, "forward", 0, 1, 0, end - 0.02, end)]]


def test_a_run_asks_its_ranks_to_build_and_step_and_let_go() -> None:
    """In this order; clocks are set where ranks are on several machines; told by k / (steps + 1); the step of the median is shown."""
    ranks, heard = MadeRanks(), []  # type: ignore[var-annotated]
    r = parallel.run_schedule(ranks, "gpipe", 4, progress=lambda *told: heard.append(told))  # type: ignore[arg-type]
    assert ranks.asked == [("_set_up", "gpipe", 4, 1, 0.02, 0.04, True), ("_step",), ("_step",), ("_step",), ("_clear",)]
    assert heard == [
        (0.0, "each rank builds its stage"), (0.25, "step 1 of 3"), (0.5, "step 2 of 3"), (0.75, "step 3 of 3"), (1.0, "done"),
    ]  # fmt: skip
    assert r.bubble_ratios == pytest.approx((1 - 0.04 / 1.0, 1 - 0.04 / 2.0, 1 - 0.04 / 1.0))
    assert (r.duration_seconds, r.activation_bytes, r.notes) == (pytest.approx(0.5), (4096, 2048), ())
    assert (r.evidence.samples, r.evidence.device.startswith("2 ranks, ")) == (3, True)
    here = MadeRanks()
    here.hosts = ("a", "a")
    parallel.run_schedule(here, "interleaved", 4, chunks=3, steps=1)  # type: ignore[arg-type]
    assert here.asked[0] == ("_set_up", "interleaved", 4, 3, 0.02, 0.04, False)


def test_ranks_that_are_interrupted_in_a_step_are_asked_nothing_more() -> None:
    """Those before it count, with a note; in the first one there is nothing to return."""
    ranks = MadeRanks(stops=3)
    r = parallel.run_schedule(ranks, "gpipe", 4, steps=5)  # type: ignore[arg-type]
    assert (len(r.bubble_ratios), [one[0] for one in ranks.asked]) == (2, ["_set_up", "_step", "_step", "_step"])
    assert [(note.code, note.sentence) for note in r.notes] == [
        ("stopped", "2 of 5 steps were measured before the stop. Run it again for all of them.")
    ]
    with pytest.raises(StoppedError, match=r"^run_schedule: stopped before a step was measured; expected at least one\. Run it again\.$"):
        parallel.run_schedule(MadeRanks(stops=1), "gpipe", 4)  # type: ignore[arg-type]


def test_passes_without_a_core_are_told() -> None:
    """Of two chunks a pass of two microbatches was made to take 20 ms: 24.8 are let pass, 25.2 are not, and the slowest is told."""
    plan = pipeline_schedule(2, 4, "interleaved", forward=0.02, backward=0.04, chunks=2)
    for seconds, notes in (
        (0.0248, []),
        (0.0252, ["A pass took 1.3 times what it was made to take: its arithmetic found no core. Pass longer passes, or end what else "
                  "runs here."]),
    ):  # fmt: skip
        passes = (StagePass(0, "forward", 0, 2, 0, 0.0, seconds), StagePass(1, "backward", 0, 1, 0, 0.0, 0.02))
        r = _run_schedule._result(MadeRanks(), plan, [passes], (1, 2), 1)  # type: ignore[arg-type]
        assert [note.sentence for note in r.notes] == notes
        assert (r.schedule, r.stages, r.microbatches, r.chunks, r.forward_seconds, r.backward_seconds) == (
            "interleaved",
            2,
            4,
            2,
            0.02,
            0.04,
        )


def test_the_longest_step_and_the_fewest_microbatches_are_taken() -> None:
    """Two stages uncut: 2 x (1 + 3) s are eight, and no more; 1F1B wants as many microbatches as ranks; a pass takes a millisecond."""
    assert _run_schedule._plan(2, "split", 1, 1.0, 3.0, None).duration == 8.0
    assert _run_schedule._plan(2, "1f1b", 2, 0.001, 0.001, None).microbatches == 2
    for given, words in (
        ((2, "split", 1, 1.05, 3.0, None),
         "run_schedule: a step of these would take 8.1 s; expected at most 8 s. Pass fewer microbatches or shorter passes."),
        ((3, "1f1b", 2, 0.02, 0.04, None),
         "run_schedule: 2 microbatches over 3 ranks; Schedule1F1B expects at least as many as ranks. Pass microbatches=3."),
        ((1, "gpipe", 2, 0.02, 0.04, None),
         "run_schedule: 1 rank; expected at least two, for one has nobody to wait for. Start a cluster of two."),
        ((2, "gpipe", 2, 0.02, 0.0009, None),
         "run_schedule: backward_seconds is 0.0009; expected at least 0.001: sleeping and sending take some, too. "
         "Pass backward_seconds=0.02."),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            _run_schedule._plan(*given)
        assert str(caught.value) == words


def test_a_pass_takes_its_set_time_and_is_noted_on_rank_0s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two microbatches of 3 s each: work of 2 s waits for 4 more, work of 8 s for nothing; both are noted 100 s later."""
    now, slept = [50.0], []  # type: ignore[var-annotated]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def work(microbatch: int, seconds: float) -> str:
        now[0] += seconds
        return f"result {microbatch}"

    monkeypatch.setattr(_run_schedule.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(_run_schedule.time, "sleep", sleep)
    stage = _run_schedule._Stage(3, 4, 100.0, {"forward": 3.0, "backward": 7.0})
    one = stage.timed("forward", 2, 1, work)
    assert [one(0, 2.0), one(1, seconds=8.0)] == ["result 0", "result 1"]
    assert slept == [4.0]
    assert stage.passes == [StagePass(3, "forward", 0, 2, 1, 150.0, 156.0), StagePass(3, "forward", 1, 2, 1, 156.0, 164.0)]


def test_each_rank_builds_its_own_parts_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four parts over four ranks, or two each over two: rank 1 of two has parts 1 and 3; all have one batch; nobody's draws move on."""

    def built(rank: int, stages: int, chunks: int, schedule: str = "interleaved", far: bool = False) -> tuple[Any, ...]:
        given: list[Any] = []
        steps: list[dict[str, float]] = []

        def make(stage: Any, schedule: str, parts: Any, batch: Any, microbatches: int) -> Any:
            given.extend((stage, schedule, parts, batch, microbatches))
            return lambda: steps.append(dict(stage.waits))

        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: stages)
        monkeypatch.setattr(_run_schedule, "_pytorchs" if schedule == "interleaved" else "_uncut", make)
        monkeypatch.setattr(_run_schedule, "_most_activations", lambda take, parts: take() or 77)
        monkeypatch.setattr(_run_schedule, "_clock_shift", lambda: 9.0)
        monkeypatch.setattr(_run_schedule._Engine, "stage", None)
        before = torch.get_rng_state()
        assert _run_schedule._set_up(schedule, 2, chunks, 0.06, 0.12, far) == 77
        assert torch.equal(torch.get_rng_state(), before)
        stage, named, parts, batch, microbatches = given
        assert (_run_schedule._Engine.stage, named, microbatches) == (stage, schedule, 2)
        assert steps == [{"forward": 0.0, "backward": 0.0}] * 2  # shapes are told, memory is counted, and nothing is slept through
        assert stage.waits == {"forward": 0.06 / chunks, "backward": 0.12 / chunks}
        assert (stage.rank, stage.stages, stage.shift) == (rank, stages, 9.0 if far else 0.0)
        return parts, batch

    def weights(part: Any) -> Any:
        assert [type(layer[0]).__name__ + type(layer[1]).__name__ for layer in part] == ["LinearTanh"] * 2
        return torch.cat([parameter.detach().flatten() for parameter in part.parameters()])

    whole = [built(rank, 4, 1) for rank in range(4)]
    halves = [built(rank, 2, 2, far=True) for rank in range(2)]
    assert [len(parts) for parts, _ in (*whole, *halves)] == [1] * 4 + [2] * 2
    for rank, chunk in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert torch.equal(weights(halves[rank][0][chunk]), weights(whole[2 * chunk + rank][0][0]))
    assert not torch.equal(weights(whole[0][0][0]), weights(whole[1][0][0]))
    assert {tuple(batch.shape) for _, batch in (*whole, *halves)} == {(64, 128)}
    assert torch.equal(halves[0][1], halves[1][1])
    assert len(built(0, 2, 1, "split")[0]) == 1


def test_the_words_of_other_runs() -> None:
    """Several microbatches in a pass have no number; three chunks a stage are the timetable's; another timetable can stand beside."""
    from gpulab import devices
    from gpulab.evidence import Evidence, Note

    here, measured = devices.environment("cpu"), Evidence.measured("2 ranks", 3)
    passes = (
        StagePass(0, "forward", 0, 2, 0, 0.0, 1.0),
        StagePass(1, "forward", 0, 2, 0, 1.0, 2.0),
        StagePass(1, "backward", 0, 1, 0, 2.0, 4.0),
    )
    r = ScheduleRun("split", 2, 2, 1, 0.5, 1.0, (0.5,), passes, (100, 50), (Note("stopped", "Here."),), measured, here)
    assert [span.name for span in r.timeline.lane(1)] == ["recv", "forward", "backward 0"]
    assert [(span.kind, span.name, span.begin_seconds, span.end_seconds) for span in r.timeline.lane(0)] == [
        ("compute", "forward", 0.0, 1.0), ("idle", "end of the step", 1.0, 4.0),
    ]  # fmt: skip
    assert (r.timeline.label, r.timeline.steps, r.timeline.end_seconds, r.timeline.notes) == ("split on 2 ranks", (0.0,), 4.0, r.notes)
    headers, rows = r.table(pipeline_schedule(2, 2, "split", forward=0.5, backward=1.0, transfer=0.25))
    assert headers == ("split, measured", "works", "waits (bubble)", "microbatches held", "their activations")
    assert rows[2] == ("bubble measured", "50.0% to 50.0% in 1 step", "50.0%", "", "")
    assert rows[3][:2] == ("in the timetable", "6.50 s")  # two passes each way of two microbatches, and a message each way of 0.25 s
    assert rows[-1] == ("note: stopped", "Here.", "", "", "")
    three = ScheduleRun("interleaved", 2, 2, 3, 0.5, 1.0, (0.5,), passes, (1, 1), (), measured, here)
    assert (three.model.chunks, three.model.schedule, three.model.microbatches) == (3, "interleaved", 2)
