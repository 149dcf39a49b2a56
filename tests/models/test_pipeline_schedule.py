"""Pipeline schedules: PyTorch's orders, the published bubbles, the activations held."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
from gpulab.errors import InputError
from gpulab.models import PIPELINE_SCHEDULES, pipeline_schedule
from hypothesis import given
from hypothesis import strategies as st

from texts import table_text


@st.composite
def pipelines(draw, even=True):
    """Any schedule of up to six stages, with integer costs, so that all arithmetic is exact."""
    name, stages = draw(st.sampled_from(PIPELINE_SCHEDULES)), draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if name == "interleaved" else 1
    most = {"min_size": 1 if even else stages, "max_size": 1 if even else stages}
    # A chunk takes its share of the stage's cost: multiples keep the share whole.
    costs = [draw(st.lists(st.integers(1, 7), **most)) for _ in range(2)]
    forward, backward = ([chunks * c for c in cost] * (stages if even else 1) for cost in costs)
    microbatches = (
        draw(st.integers(1, 3)) * stages if name == "interleaved" else draw(st.integers(1, 9))
    )
    options = {"transfer": 0 if even else draw(st.integers(0, 3)), "chunks": chunks}
    return pipeline_schedule(
        stages, microbatches, name, forward=forward, backward=backward, **options
    )


@given(pipelines(even=False))
def test_each_pass_begins_when_all_that_it_waits_for_is_there(s):
    """Every pass runs once, for its cost, as soon as its stage is free and its input is there."""
    parts, wait = s.stages * s.chunks, s.transfer if s.stages > 1 else 0
    end = {(p.kind, p.chunk * s.stages + p.stage, p.microbatch): p.end for p in s.passes}
    assert len(end) == len(s.passes) == 2 * parts * s.microbatches / s.passes[0].count
    free = [0.0] * s.stages
    for one in (one for stage in range(s.stages) for one in s.of_stage(stage)):
        part, k, forward = one.chunk * s.stages + one.stage, one.microbatch, one.kind == "forward"
        cost = (s.forward if forward else s.backward)[one.stage]
        assert one.duration == cost * one.count / s.chunks
        before = (one.kind, part - 1 if forward else part + 1, k)
        inputs = [free[one.stage], *([end[before] + wait] if before in end else [])]
        assert one.begin == max([*inputs, *([] if forward else [end["forward", part, k]])])
        free[one.stage] = one.end
    works = [sum(p.duration for p in s.of_stage(stage)) for stage in range(s.stages)]
    found = (s.duration, *s.busy, s.speedup)
    assert found == (max(free), *works, pytest.approx(sum(works) / max(free)))


@given(pipelines())
def test_the_counted_bubble_is_the_formulas(s):
    """Even stages: (p-1)/(m+p-1) in GPipe and 1F1B, (p-1)/(vm+p-1) interleaved, 1-1/p split."""
    p, m, v = s.stages, s.microbatches, s.chunks
    formula = Fraction(p - 1, p if s.schedule == "split" else v * m + p - 1)
    assert 1 - Fraction(sum(s.busy)) / Fraction(p * s.duration) == formula
    expected = pytest.approx(float(formula), abs=1e-12)
    assert s.bubble_ratio == expected
    assert s.bubble_formula_ratio == expected


@given(pipelines(even=False))
def test_how_many_microbatches_a_stage_holds_at_most(s):
    """Stage s of 1F1B holds min(m, p - s) microbatches, GPipe all m; counted at each time."""
    m, p = s.microbatches, s.stages
    fewest = [min(m, p - stage) if s.schedule == "1f1b" else m for stage in range(p)]
    assert s.schedule == "interleaved" or list(s.held) == fewest
    for stage in range(p):
        passes = {(x.kind, x.chunk, x.microbatch): x for x in s.of_stage(stage)}
        begun = [x for x in passes.values() if x.kind == "forward"]
        spans = [(x, passes["backward", x.chunk, x.microbatch].end) for x in begun]
        held = [sum(x.count for x, end in spans if x.begin <= t.begin < end) for t in begun]
        assert s.held[stage] == pytest.approx(max(held) / s.chunks)


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "chunks"),
    [
        *((name, *at, 1) for name in ("gpipe", "1f1b") for at in ((1, 3), (2, 7), (4, 4), (4, 9))),
        *(("interleaved", *at) for at in ((2, 4, 2), (4, 8, 3), (3, 9, 2))),
    ],
)
def test_the_order_is_pytorchs(name, stages, microbatches, chunks):
    """Each stage's passes come in the order of PyTorch's own schedule.

    For the last stage of 1F1B, PyTorch's list numbers the forward passes from 1 (torch 2.13).
    """
    torchs = pytest.importorskip("torch.distributed.pipelining.schedules")
    rounds = max(1, microbatches // stages)
    asked = SimpleNamespace(
        **{"_num_stages": stages, "_n_microbatches": microbatches, "pp_group_size": stages},
        **{"n_local_stages": chunks, "number_of_rounds": rounds},
        microbatches_per_round=microbatches // rounds,
    )
    plain = {"gpipe": torchs.ScheduleGPipe, "1f1b": torchs.Schedule1F1B}.get(name)
    interleaved = torchs.ScheduleInterleaved1F1B._calculate_single_rank_operations
    theirs = (
        plain._get_pipeline_order(asked)
        if plain
        else [interleaved(asked, i) for i in range(stages)]
    )
    s = pipeline_schedule(stages, microbatches, name, chunks=chunks)
    kinds = {torchs.FORWARD: "forward", torchs.FULL_BACKWARD: "backward"}
    for stage in range(stages):
        late = name == "1f1b" and stage == stages - 1
        done = [a for a in theirs[stage] if a is not None and a.computation_type in kinds]
        rows = [(kinds[a.computation_type], a.stage_index, a.microbatch_index) for a in done]
        expected = [(kind, part, k - (late and kind == "forward")) for kind, part, k in rows]
        ours = [(p.kind, p.chunk * stages + p.stage, p.microbatch) for p in s.of_stage(stage)]
        assert ours == expected


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"stages": 0}, "stages is 0"),
        ({"microbatches": 1.5}, "microbatches is 1.5"),
        ({"schedule": "zigzag"}, "zigzag"),
        ({"forward": 0}, "forward is 0"),
        ({"backward": [1.0]}, "4 stages"),
        ({"transfer": -1}, "transfer is -1"),
        ({"chunks": 2}, "chunks is 2"),
        ({"schedule": "interleaved", "microbatches": 6}, "microbatches=8"),
        ({"microbatches": 12_501}, "100,008"),
    ],
)
def test_what_makes_no_timetable_is_refused(arguments, value):
    """The message names the invalid value, or one that would work."""
    with pytest.raises(InputError, match=value):
        pipeline_schedule(**{"stages": 4, "microbatches": 8, **arguments})


def _grid(s):
    """Return the passes of each stage in units of time, as the papers draw them."""
    rows = [[".."] * round(s.duration) for _ in range(s.stages)]
    for one in s.passes:
        length = round(one.end - one.begin)
        rows[one.stage][round(one.begin) : round(one.end)] = [one.name] * length
    return "\n".join(" ".join(f"{tick:4}" for tick in row) for row in rows)


def test_schedules_as_they_are_shown(approved):
    """Grids, as in GPipe's figure 2 and Megatron-LM's figure 4, and the tables below them.

    Uneven stages by hand: 1 + 2 x 2 + 2 x 2 + 1 units; a message delays the end twice.
    """
    even, units = {"forward": 1, "backward": 1}, {"forward": 2, "backward": 2}
    shown = [pipeline_schedule(4, 4, name, **even) for name in ("gpipe", "1f1b")]
    shown += [pipeline_schedule(2, 3, "split"), pipeline_schedule(2, 4, "interleaved", **units)]
    shown += [pipeline_schedule(2, 2, forward=[1, 2], backward=[1, 2]), pipeline_schedule(2, 2)]
    shown += [pipeline_schedule(2, 2, "gpipe", **units, transfer=1)]
    shown += [pipeline_schedule(2, 2, backward=[1, 2]), pipeline_schedule(2, 2, forward=[1, 2])]
    parts = (f"{_grid(s)}\n{s!r}\n{table_text(s._repr_html_())}" for s in shown)
    assert "\n".join(parts) == approved
