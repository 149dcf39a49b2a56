"""The timetable of pipeline parallelism: PyTorch's own orders, what each pass waits for, the published bubbles, what is held."""

from __future__ import annotations

import itertools
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torchs

from gpulab.errors import InputError
from gpulab.models import PIPELINE_SCHEDULES, StageSchedule, _pipeline_schedule, pipeline_schedule

COSTS = st.integers(1, 7)


@st.composite
def pipelines(draw: Any, even: bool = True) -> StageSchedule:
    """Any schedule of up to six stages, with whole costs, so that all arithmetic is exact."""
    name, stages = draw(st.sampled_from(PIPELINE_SCHEDULES)), draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if name == "interleaved" else 1
    microbatches = draw(st.integers(1, 4)) * stages if name == "interleaved" else draw(st.integers(1, 14))

    def cost() -> list[int]:
        return [k * chunks for k in ([draw(COSTS)] * stages if even else [draw(COSTS) for _ in range(stages)])]

    given_chunks = {"chunks": chunks} if name == "interleaved" else {}
    transfer = 0 if even else draw(st.integers(0, 3))
    return pipeline_schedule(stages, microbatches, name, forward=cost(), backward=cost(), transfer=transfer, **given_chunks)


@given(pipelines(even=False))
def test_every_pass_waits_for_what_it_needs(s: StageSchedule) -> None:
    """Each microbatch passes every part once each way; no pass begins before its input and its stage are there, and none later."""
    end = {
        (one.kind, one.chunk * s.stages + one.stage, k): one for one in s.passes for k in range(one.microbatch, one.microbatch + one.count)
    }
    parts = s.stages * s.chunks
    assert len(end) == 2 * parts * s.microbatches
    for stage in range(s.stages):
        free = 0.0
        for one in s.of_stage(stage):
            part = one.chunk * s.stages + stage
            assert one.duration == getattr(s, one.kind)[stage] * one.count / s.chunks
            inputs = [free]
            if one.kind == "forward" and part > 0:
                inputs.append(end["forward", part - 1, one.microbatch].end + (s.transfer if s.stages > 1 else 0))
            if one.kind == "backward":
                assert end["forward", part, one.microbatch].end <= one.begin
                later = end["backward", part + 1, one.microbatch].end if part + 1 < parts else None
                inputs.append(end["forward", part, one.microbatch].end if later is None else later + (s.transfer if s.stages > 1 else 0))
            assert one.begin == max(inputs)
            free = one.end


@given(pipelines())
def test_the_counted_bubble_is_the_formulas(s: StageSchedule) -> None:
    """Even stages, no transfers: (p-1)/(m+p-1) for GPipe and 1F1B whatever a pass costs, (p-1)/(vm+p-1) interleaved, 1-1/p uncut."""
    p, m, v = s.stages, s.microbatches, s.chunks
    expected = Fraction(p - 1, p) if s.schedule == "split" else Fraction(p - 1, v * m + p - 1)
    idle = Fraction(p * s.duration) - sum(Fraction(busy) for busy in s.busy)
    assert idle / Fraction(p * s.duration) == expected
    assert s.bubble_ratio == pytest.approx(float(expected), abs=1e-12)
    assert s.bubble_formula_ratio == pytest.approx(float(expected), abs=1e-12)


@given(pipelines(even=False))
def test_what_is_held_at_most(s: StageSchedule) -> None:
    """GPipe and the uncut batch hold all m; 1F1B holds p less the stage's number, or m where that is fewer; counted moment by moment."""
    expected = [min(s.microbatches, s.stages - stage) if s.schedule == "1f1b" else s.microbatches for stage in range(s.stages)]
    if s.schedule != "interleaved":
        assert list(s.held) == expected
    for stage in range(s.stages):
        passes = s.of_stage(stage)
        begun = {(one.chunk, one.microbatch): one.begin for one in passes if one.kind == "forward"}
        over = {(one.chunk, one.microbatch): one.end for one in passes if one.kind == "backward"}
        sizes = {(one.chunk, one.microbatch): one.count for one in passes}
        at = [sum(sizes[key] for key in begun if begun[key] <= moment < over[key]) for moment in begun.values()]
        assert s.held[stage] == pytest.approx(max(at) / s.chunks)


def order(actions: Any) -> list[tuple[str, int, int]]:
    """PyTorch's actions as kind, part of the model, microbatch; its waits and its sum of the gradients left out."""
    names = {torchs.FORWARD: "forward", torchs.FULL_BACKWARD: "backward"}
    there = [action for action in actions if action is not None and action.computation_type in names]
    return [(names[a.computation_type], a.stage_index, a.microbatch_index) for a in there]


@pytest.mark.parametrize(("name", "cls"), [("gpipe", torchs.ScheduleGPipe), ("1f1b", torchs.Schedule1F1B)])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (2, 7), (4, 4), (4, 9), (8, 16)])
def test_the_order_is_pytorchs(name: str, cls: Any, stages: int, microbatches: int) -> None:
    """Each stage's passes come in the order that PyTorch writes down for its own schedule.

    What it writes for the last stage of 1F1B counts the forwards from 1 (torch 2.13); what it does there is in tests/parallel.
    """
    theirs = cls._get_pipeline_order(SimpleNamespace(_num_stages=stages, _n_microbatches=microbatches))
    s = pipeline_schedule(stages, microbatches, name)
    for stage in range(stages):
        late = 1 if name == "1f1b" and stage == stages - 1 else 0
        expected = [(kind, part, k - late if kind == "forward" else k) for kind, part, k in order(theirs[stage])]
        assert [(one.kind, one.stage, one.microbatch) for one in s.of_stage(stage)] == expected


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(2, 4, 2), (4, 4, 2), (4, 8, 3), (3, 9, 2)])
def test_the_interleaved_order_is_pytorchs(stages: int, microbatches: int, chunks: int) -> None:
    """Each stage's passes through its several parts come in the order of ScheduleInterleaved1F1B."""
    rounds = max(1, microbatches // stages)
    theirs = SimpleNamespace(
        pp_group_size=stages, n_local_stages=chunks, _n_microbatches=microbatches, number_of_rounds=rounds,
        microbatches_per_round=microbatches // rounds,
    )  # fmt: skip
    s = pipeline_schedule(stages, microbatches, "interleaved", chunks=chunks)
    for stage in range(stages):
        actions = torchs.ScheduleInterleaved1F1B._calculate_single_rank_operations(theirs, stage)
        assert [(one.kind, one.chunk * stages + one.stage, one.microbatch) for one in s.of_stage(stage)] == order(actions)


def test_the_grid_of_the_gpipe_paper() -> None:
    """Four stages, four microbatches, passes of one unit: the staircase of GPipe's figure 2, its backwards in the order of the forwards."""
    s = pipeline_schedule(4, 4, "gpipe", forward=1, backward=1)
    assert [" ".join(tick or ".." for tick in row) for row in s.ticks()] == [
        "F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3",
        ".. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..",
        ".. .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 .. ..",
        ".. .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. .. ..",
    ]
    assert s.bubble_ratio == pytest.approx(3 / 7)
    assert s.speedup == pytest.approx(4 * 4 / 7)


def test_an_uncut_batch_leaves_all_but_one_idle() -> None:
    """Two stages by hand, a batch worth three microbatches: one works, the other waits, and no time is gained over one processor."""
    s = pipeline_schedule(2, 3, "split", forward=1, backward=2)
    assert s.ticks()[0] == ("F",) * 3 + ("",) * 9 + ("B",) * 6
    assert s.ticks()[1] == ("",) * 3 + ("F",) * 3 + ("B",) * 6 + ("",) * 6
    assert (s.speedup, s.bubble_ratio, s.held) == (1.0, 0.5, (3, 3))


def test_uneven_stages_and_transfers_add_to_the_bubble() -> None:
    """A stage twice as slow halves what the other does, by hand; the formula does not speak of it; transfers only delay."""
    s = pipeline_schedule(2, 2, "gpipe", forward=[1, 2], backward=[1, 2])
    assert s.duration == 1 + 2 * 2 + 2 * 2 + 1  # the slow stage works all the time between the fast one's first and last pass
    assert (s.busy, s.bubble_formula_ratio) == ((4, 8), None)
    # In, 1; over, 0.5; the other stage's four passes; back, 0.5; the last backward, 1.
    assert pipeline_schedule(2, 2, "gpipe", forward=1, backward=1, transfer=0.5).duration == 1 + 0.5 + 4 + 0.5 + 1
    assert pipeline_schedule(1, 4, "1f1b", transfer=9).bubble_ratio == 0


def test_words_and_tables() -> None:
    """The table has a row a stage, then all of them, then the formula; the repr says bubble and held; JSON goes both ways."""
    s = pipeline_schedule(2, 3, "1f1b", forward=1, backward=2)
    headers, rows = s.table()
    assert [row[0] for row in rows] == ["stage 0", "stage 1", "all stages", "by formula"]
    assert rows[0][1:] == ("9 of 12", "25.0%", "2")
    assert rows[3][1:3] == ("(p - 1) / (m + p - 1)", "25.0%")
    assert len(headers) == 4
    assert repr(s) == "<1f1b of 2 stages and 3 microbatches: bubble 25.0%, at most 2 microbatches held>"
    assert StageSchedule.from_dict(s.to_dict()) == s
    assert "arXiv 2104.04473" in s.evidence.sentence


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"stages": 0}, "stages is 0"), ({"stages": 2.0}, "stages is 2.0"), ({"microbatches": True}, "microbatches is True"),
        ({"schedule": "zigzag"}, "expected one of: split, gpipe"), ({"forward": 0}, "forward is 0"),
        ({"backward": [1.0]}, "one for each of the 4 stages"), ({"forward": "much"}, "forward is 'much'"),
        ({"transfer": -1}, "transfer is -1"), ({"chunks": 2}, "only in the interleaved"),
        ({"schedule": "interleaved", "microbatches": 6}, "Pass microbatches=8"), ({"microbatches": 10**9}, "expected at most 100,000"),
    ],
)  # fmt: skip
def test_bad_input_in_one_sentence(arguments: dict[str, Any], told: str) -> None:
    """What makes no timetable is refused with its value and what to pass."""
    with pytest.raises(InputError, match="pipeline_schedule: ") as caught:
        pipeline_schedule(**{"stages": 4, "microbatches": 8, **arguments})
    assert told in str(caught.value)


def test_the_grid_needs_whole_costs() -> None:
    """Half a unit has no place in a grid of ticks, nor have ten thousand of them."""
    for costs in ({"forward": 0.5}, {"forward": 5000}):
        with pytest.raises(InputError, match="expected costs in whole units"):
            pipeline_schedule(2, 2, **costs).ticks()


def test_more_microbatches_less_bubble() -> None:
    """The rule of the lesson: the bubble falls with each further microbatch, and under 10 % takes nine times p - 1."""
    ratios = [pipeline_schedule(4, m).bubble_ratio for m in range(1, 33)]
    assert all(later < earlier for earlier, later in itertools.pairwise(ratios))
    assert next(m for m, ratio in enumerate(ratios, start=1) if ratio <= 0.1) == 9 * 3


def test_what_is_taken_where_nothing_is_said() -> None:
    """GPipe with passes of 1 and 2 units: by hand (2 + 1) x (1 + 2); two chunks a stage where it is interleaved, else one."""
    assert pipeline_schedule(2, 2).duration == 9
    assert pipeline_schedule(2, 2).schedule == "gpipe"
    assert pipeline_schedule(2, 2, "interleaved").chunks == 2
    assert pipeline_schedule(2, 2, "1f1b", chunks=1).chunks == 1


def test_the_most_passes_and_the_longest_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last that is taken is the number that the sentence names: 2 x 2 x 4 passes, and 4,096 units."""
    assert len(pipeline_schedule(1, 1, forward=4095, backward=1).ticks()[0]) == 4096
    with pytest.raises(InputError, match=r"take 4097 units .* begin at whole ones; expected costs in whole units and at most 4,096"):
        pipeline_schedule(1, 1, forward=4096, backward=1).ticks()
    with pytest.raises(InputError, match=r"take 4 units in all and begin between whole ones"):
        pipeline_schedule(1, 2, forward=0.5, backward=1.5).ticks()
    assert _pipeline_schedule.MOST_PASSES == 100_000
    monkeypatch.setattr(_pipeline_schedule, "MOST_PASSES", 16)
    assert len(pipeline_schedule(2, 4).passes) == 16
    with pytest.raises(InputError, match="2 stages and 5 microbatches make 20 passes; expected at most 16"):
        pipeline_schedule(2, 5)
    with pytest.raises(InputError, match="make 32 passes"):
        pipeline_schedule(2, 4, "interleaved")


def test_tables_in_full() -> None:
    """By hand: each stage works 3 x (1 + 2) of 12 units; uneven ones 4 and 8 of 10, of which the formula does not speak."""
    headers = ("works", "waits (bubble)", "microbatches held at most")
    assert pipeline_schedule(2, 3, "1f1b").table() == (
        ("1f1b", *headers),
        [("stage 0", "9 of 12", "25.0%", "2"), ("stage 1", "9 of 12", "25.0%", "1"), ("all stages", "18 of 24", "25.0%", "2"),
         ("by formula", "(p - 1) / (m + p - 1)", "25.0%", "")],
    )  # fmt: skip
    assert pipeline_schedule(2, 2, forward=[1, 2], backward=[1, 2]).table() == (
        ("gpipe", *headers),
        [("stage 0", "4 of 10", "60.0%", "2"), ("stage 1", "8 of 10", "20.0%", "2"), ("all stages", "12 of 20", "40.0%", "2"),
         ("by formula", "(p - 1) / (m + p - 1)", "none: uneven stages", "")],
    )  # fmt: skip
    assert pipeline_schedule(2, 2, backward=[1, 2]).bubble_formula_ratio is None
    assert pipeline_schedule(2, 2, forward=[1, 2]).bubble_formula_ratio is None
    assert pipeline_schedule(2, 2, "split").table()[1][-1] == ("by formula", "(p - 1) / p", "50.0%", "")
    assert pipeline_schedule(2, 2, "interleaved").table()[1][-1] == ("by formula", "(p - 1) / (v m + p - 1)", "20.0%", "")
