"""Lanes of compute, communication and idle, from hand-made notes whose spans are worked out on paper."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from thread_ranks import ThreadRanks

from gpulab.evidence import Evidence, Note
from gpulab.parallel import RankTimeline, _timeline
from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._timeline import RankNotes, timeline
from gpulab.parallel.results import RankSpan

HERE = Evidence.measured("a device")


def call(number: int, name: str, begin: float, end: float, *, group: tuple[int, ...] = (0, 1), root: int | None = None) -> CollectiveCall:
    return CollectiveCall(number, name, f"c10d.{name}", "float32", 400, 400, group, root, begin, end, "completion", 0.0)


def spans(lanes: RankTimeline, rank: int, kind: str) -> list[tuple[str, float, float]]:
    return [(span.name, round(span.begin_seconds, 6), round(span.end_seconds, 6)) for span in lanes.lane(rank, kind)]


def test_waiting_for_a_late_rank_is_idle_and_only_then_comes_communication() -> None:
    """Rank 0 enters at 2 and waits; rank 1 enters at 5; both have the sum at 6."""
    early = RankNotes(
        (("backward", 0.0, 2.0), ("average", 2.0, 6.0)), (call(0, "all_reduce", 2.0, 6.0),), ((0, 2.0, 6.0),), (), (0.0,), 6.0
    )
    late = RankNotes((("backward", 0.0, 5.0), ("average", 5.0, 6.0)), (call(0, "all_reduce", 5.0, 6.0),), ((0, 5.0, 6.0),), (), (0.0,), 6.0)
    lanes = timeline("by hand", [early, late], HERE)
    assert spans(lanes, 0, "compute") == [("backward", 0, 2)]
    assert spans(lanes, 0, "idle") == [("all_reduce", 2, 5)]
    assert spans(lanes, 0, "communication") == [("all_reduce", 5, 6)]
    assert spans(lanes, 1, "idle") == []
    assert spans(lanes, 1, "communication") == [("all_reduce", 5, 6)]
    assert lanes.seconds(0) == pytest.approx({"compute": 2, "communication": 1, "idle": 3})
    assert lanes.overlap_seconds(0) == pytest.approx(0)
    assert lanes.end_seconds == 6


def test_communication_beside_the_backward_pass_is_overlap_and_its_tail_is_not_compute() -> None:
    """Two buckets leave at 1 and 3; the thread computes until 3, then stands in a wait that Python does not see until 5."""
    calls = (call(0, "all_reduce", 1.0, 2.5), call(1, "all_reduce", 3.0, 5.0))
    note = RankNotes((("backward", 0.0, 5.0), ("optimizer", 5.0, 6.0)), calls, (), (5.0,), (0.0,), 6.0)
    lanes = timeline("ddp", [note, note], HERE)
    assert spans(lanes, 0, "compute") == [("backward", 0, 3), ("optimizer", 5, 6)]
    assert spans(lanes, 0, "communication") == [("all_reduce", 1, 2.5), ("all_reduce", 3, 5)]
    assert spans(lanes, 0, "idle") == []
    assert lanes.overlap_seconds(0) == pytest.approx(1.5)


def test_a_late_neighbour_makes_the_tail_of_the_backward_pass_idle() -> None:
    """The neighbour enters the last bucket at 4.5, so from 3 until then the thread stood idle."""
    mine = RankNotes((("backward", 0.0, 5.0),), (call(0, "all_reduce", 3.0, 5.0),), (), (5.0,), (0.0,), 5.0)
    other = RankNotes((("backward", 0.0, 5.0),), (call(0, "all_reduce", 4.5, 5.0),), (), (5.0,), (0.0,), 5.0)
    lanes = timeline("ddp", [mine, other], HERE)
    assert spans(lanes, 0, "idle") == [("all_reduce", 3, 4.5)]
    assert spans(lanes, 0, "compute") == [("backward", 0, 3)]
    assert spans(lanes, 1, "idle") == []


def test_a_message_is_matched_with_its_own_sender_and_not_with_others() -> None:
    """Rank 1 waits from 0 for what rank 0 sends at 3; rank 2's earlier message to rank 1 is another channel."""
    zero = RankNotes((("forward", 0.0, 3.0),), (call(0, "send", 3.0, 3.5, root=1),), ((0, 3.0, 3.5),), (), (0.0,), 3.5)
    one = RankNotes(
        (), (call(0, "recv", 0.0, 4.0, root=0), call(1, "recv", 4.0, 4.2, root=2)), ((0, 0.0, 4.0), (1, 4.0, 4.2)), (), (0.0,), 4.2
    )
    two = RankNotes((), (call(0, "send", 0.5, 0.6, root=1),), (), (), (0.0,), 0.6)
    lanes = timeline("pipeline", [zero, one, two], HERE)
    assert spans(lanes, 1, "idle") == [("recv", 0, 3)]
    assert spans(lanes, 1, "communication") == [("recv", 3, 4), ("recv", 4, 4.2)]
    assert spans(lanes, 2, "communication") == [("send", 0.5, 0.6)]


def test_a_broadcast_waits_for_its_root_alone() -> None:
    """Rank 0 sends at 1 and is done at 1.2, though rank 1 comes only at 4."""
    root = RankNotes((), (call(0, "broadcast", 1.0, 1.2, root=0),), ((0, 1.0, 1.2),), (), (0.0,), 1.2)
    other = RankNotes((("forward", 0.0, 4.0),), (call(0, "broadcast", 4.0, 4.1, root=0),), ((0, 4.0, 4.1),), (), (0.0,), 4.1)
    lanes = timeline("zero1", [root, other], HERE)
    assert spans(lanes, 0, "communication") == [("broadcast", 1, 1.2)]
    assert spans(lanes, 1, "communication") == [("broadcast", 4, 4.1)]
    assert spans(lanes, 0, "idle") == spans(lanes, 1, "idle") == []


def test_spans_come_by_rank_and_by_time() -> None:
    """Whatever they are. A pass that ends as its last collective begins stood in no wait, and none before it is one."""
    calls = (call(0, "all_reduce", 2.0, 6.0), call(1, "all_reduce", 6.0, 8.0))
    note = RankNotes((("backward", 0.0, 6.0), ("step", 6.0, 9.0)), calls, (), (6.0,), (0.0,), 9.0)
    late = RankNotes((), (call(0, "all_reduce", 5.0, 6.0), call(1, "all_reduce", 7.0, 8.0)), (), (), (0.0,), 9.0)
    lanes = timeline("by hand", [note, late], HERE)
    assert [(span.rank, span.kind, span.begin_seconds, span.end_seconds) for span in lanes.spans] == [
        (0, "compute", 0, 6), (0, "communication", 5, 6), (0, "compute", 6, 9), (0, "communication", 7, 8),
        (1, "communication", 5, 6), (1, "communication", 7, 8),
    ]  # fmt: skip


def test_groups_are_matched_each_by_itself() -> None:
    """The second collective of rank 0 is the first of its pair with rank 2."""
    pair = (0, 2)
    zero = RankNotes(
        (), (call(0, "all_reduce", 0.0, 1.0), call(1, "all_reduce", 1.0, 9.0, group=pair)), ((0, 0.0, 1.0), (1, 1.0, 9.0)), (), (0.0,), 9.0
    )
    one = RankNotes((), (call(0, "all_reduce", 0.0, 1.0),), ((0, 0.0, 1.0),), (), (0.0,), 1.0)
    two = RankNotes((), (call(0, "all_reduce", 8.0, 9.0, group=pair),), ((0, 8.0, 9.0),), (), (0.0,), 9.0)
    lanes = timeline("groups", [zero, one, two], HERE)
    assert spans(lanes, 0, "idle") == [("all_reduce", 1, 8)]


def test_clocks_that_differ_are_set_side_by_side() -> None:
    """Rank 1's clock is 100 s ahead; the lanes are the same as with one clock."""
    zero = RankNotes((("backward", 0.0, 2.0),), (call(0, "all_reduce", 2.0, 6.0),), ((0, 2.0, 6.0),), (), (0.0,), 6.0)
    one = RankNotes((("backward", 100.0, 105.0),), (call(0, "all_reduce", 105.0, 106.0),), ((0, 105.0, 106.0),), (), (100.0,), 106.0, 100.0)
    lanes = timeline("two machines", [zero, one], HERE)
    assert spans(lanes, 0, "idle") == [("all_reduce", 2, 5)]
    assert spans(lanes, 1, "communication") == [("all_reduce", 5, 6)]
    assert spans(lanes, 1, "compute") == [("backward", 0, 5)]
    assert lanes.steps == (0.0,)
    early = RankNotes(
        (("backward", 100.0, 102.0),), (call(0, "all_reduce", 102.0, 106.0),), ((0, 102.0, 106.0),), (), (100.0,), 106.0, 100.0
    )
    late = RankNotes((("backward", 0.0, 5.0),), (call(0, "all_reduce", 5.0, 6.0),), ((0, 5.0, 6.0),), (), (0.0,), 6.0)
    assert spans(timeline("turned", [late, early], HERE), 1, "idle") == [("all_reduce", 2, 5)]


def test_an_end_that_was_told_late_does_not_count_as_overlap() -> None:
    """The work's own thread noted 7, but the wait for it had returned at 6, and the thread computed from then on."""
    note = RankNotes(
        (("average", 2.0, 6.0), ("optimizer", 6.0, 8.0)), (call(0, "all_reduce", 2.0, 7.0),), ((0, 2.0, 6.0),), (), (0.0,), 8.0
    )
    lanes = timeline("late", [note, note], HERE)
    assert spans(lanes, 0, "communication") == [("all_reduce", 2, 6)]
    assert lanes.overlap_seconds(0) == pytest.approx(0)


def test_time_that_two_spans_share_counts_once() -> None:
    """Communication 0 to 3 and 2 to 4 is 4 seconds, of which 1 to 4 lies beside compute."""
    lanes = RankTimeline(
        "x", 1,
        (RankSpan(0, "communication", "a", 0, 3), RankSpan(0, "communication", "b", 2, 4), RankSpan(0, "compute", "c", 1, 10)),
        (0.0,), 10.0, (), HERE,
    )  # fmt: skip
    assert lanes.seconds(0) == {"compute": 9, "communication": 4, "idle": 0}
    assert lanes.overlap_seconds(0) == 3
    assert RankTimeline.from_dict(json.loads(json.dumps(lanes.to_dict()))) == lanes


def test_the_tail_of_a_pass_is_that_of_its_last_collective() -> None:
    """What the thread waited for at the end bears the name of what was entered last, not of what came before or after."""
    calls = (call(0, "reduce_scatter", 1.0, 2.0), call(1, "all_reduce", 3.0, 5.0), call(2, "broadcast", 6.0, 6.5, root=0))
    late = (call(0, "reduce_scatter", 1.0, 2.0), call(1, "all_reduce", 4.5, 5.0), call(2, "broadcast", 6.0, 6.5, root=0))
    mine, other = (RankNotes((("backward", 0.0, 5.0),), each, (), (5.0,), (0.0,), 7.0) for each in (calls, late))
    lanes = timeline("ddp", [mine, other], HERE)
    assert spans(lanes, 0, "idle") == [("all_reduce", 3, 4.5)]
    assert spans(lanes, 0, "compute") == [("backward", 0, 3)]


def test_a_wait_that_is_noted_twice_is_idle_once() -> None:
    """Waits for two collectives from 2 to 5 and from 3 to 6, which the other rank enters at 7: idle is 2 to 5, then 5 to 6."""
    calls = (call(0, "all_reduce", 1.0, 8.0), call(1, "all_gather", 1.5, 8.0))
    mine = RankNotes((), calls, ((0, 2.0, 5.0), (1, 3.0, 6.0)), (), (0.0,), 8.0)
    other = RankNotes((), (call(0, "all_reduce", 7.0, 8.0), call(1, "all_gather", 7.0, 8.0)), (), (), (0.0,), 8.0)
    lanes = timeline("twice", [mine, other], HERE)
    assert spans(lanes, 0, "idle") == [("all_reduce", 2, 5), ("all_gather", 5, 6)]
    assert lanes.seconds(0)["idle"] == pytest.approx(4)


def test_steps_begin_with_the_first_rank_and_the_end_is_the_last_ones() -> None:
    """Ranks begin steps at 1 and 4, and at 2 and 3; the lanes begin at 1, so the steps at 0 and 2, and the end, at 9, is 8."""
    notes = [RankNotes((), (), (), (), (1.0, 4.0), 9.0), RankNotes((), (), (), (), (2.0, 3.0), 8.0)]
    lanes = timeline("steps", notes, HERE)
    assert (lanes.steps, lanes.end_seconds) == ((0.0, 2.0), 8.0)


@pytest.mark.parametrize("machines", [1, 3])
def test_how_far_clocks_are_ahead_is_asked_of_each_rank(monkeypatch: pytest.MonkeyPatch, machines: int) -> None:
    """Three ranks that are threads; on machines of their own their clocks run 100 s ahead and 7 s behind, which is found to a second."""
    ranks = ThreadRanks(monkeypatch, (0.0, 100.0, -7.0))
    monkeypatch.setattr(_timeline, "_machine", lambda: f"machine {ranks.rank() % machines}")
    found = ranks.run(_timeline.clocks_ahead)
    assert found == ([0.0, 0.0, 0.0] if machines == 1 else pytest.approx([0.0, 100.0, -7.0], abs=1.0))
    assert len(ranks.sent) == (0 if machines == 1 else 2 * 2 * 8)  # eight questions to each of two ranks, and as many answers


@pytest.mark.parametrize("name", ["reduce", "gather"])
def test_only_the_root_of_a_reduce_waits_for_the_others(name: str) -> None:
    """Rank 0 gives its part at 1 and goes on at 1.2; the root enters at 2 and has the result only after rank 2 came, at 5."""
    notes = [
        RankNotes((), (call(0, name, begin, end, group=(0, 1, 2), root=1),), ((0, begin, end),), (), (0.0,), end)
        for begin, end in ((1.0, 1.2), (2.0, 5.5), (5.0, 5.2))
    ]
    lanes = timeline("a tree", notes, HERE)
    assert [spans(lanes, rank, "communication") for rank in range(3)] == [[(name, 1, 1.2)], [(name, 5, 5.5)], [(name, 5, 5.2)]]
    assert [spans(lanes, rank, "idle") for rank in range(3)] == [[], [(name, 2, 5)], []]


def test_a_send_waits_for_its_receiver_unless_the_system_keeps_the_message() -> None:
    """A long message entered at 1 moves from 3, when its receiver comes, to 3.5; a short one sent at 4 is gone at 4.1, long before 6."""
    sender = RankNotes(
        (), (call(0, "send", 1.0, 3.5, root=1), call(1, "send", 4.0, 4.1, root=1)), ((0, 1.0, 3.5), (1, 4.0, 4.1)), (), (0.0,), 4.1
    )
    receiver = RankNotes((), (call(0, "recv", 3.0, 3.5, root=0), call(1, "recv", 6.0, 6.2, root=0)), (), (), (0.0,), 6.2)
    lanes = timeline("messages", [sender, receiver], HERE)
    assert spans(lanes, 0, "communication") == [("send", 3, 3.5), ("send", 4, 4.1)]
    assert spans(lanes, 0, "idle") == [("send", 1, 3)]
    assert spans(lanes, 1, "communication") == [("recv", 3, 3.5), ("recv", 6, 6.2)]


def test_what_ended_before_another_came_has_moved_for_no_time() -> None:
    """Clocks of two machines are set by hand: a sum that ends at 2, half a second before the other rank's entry, is all waiting."""
    early = RankNotes((), (call(0, "all_reduce", 1.0, 2.0),), ((0, 1.0, 2.0),), (), (0.0,), 2.0)
    late = RankNotes((), (call(0, "all_reduce", 2.5, 3.0),), (), (), (0.0,), 3.0)
    lanes = timeline("two machines", [early, late], HERE)
    assert spans(lanes, 0, "communication") == [("all_reduce", 2, 2)]
    assert spans(lanes, 0, "idle") == [("all_reduce", 1, 2)]


def test_a_call_without_an_end_and_pieces_of_less_than_a_microsecond_are_left_out() -> None:
    """What is in flight has no span; half a microsecond of waiting is two readings of a clock, a whole one and two of them are not."""
    open_call = dataclasses.replace(call(0, "all_reduce", 1.0, 2.0), end_seconds=None)
    phases = (("edge", 0.0, 1e-6), ("forward", 0.0, 1.0), ("twice", 2.0, 2.0000005), ("once", 3.0, 3.000002))
    note = RankNotes(phases, (open_call,), (), (), (0.0,), 4.0)
    lanes = timeline("open", [note, note], HERE)
    assert spans(lanes, 0, "communication") == []
    assert spans(lanes, 0, "compute") == [("edge", 0, 1e-6), ("forward", 0, 1), ("once", 3, 3.000002)]


def test_an_exchange_of_messages_is_matched_apart_from_the_groups_collectives() -> None:
    """Rank 0 sums first and then exchanges, rank 1 entered its sum after: each waits for its own kind."""
    zero = RankNotes((), (call(0, "send and recv", 1.0, 4.0), call(1, "all_reduce", 5.0, 7.0)), (), (), (0.0,), 7.0)
    one = RankNotes((), (call(0, "send and recv", 3.0, 4.0), call(1, "all_reduce", 6.0, 7.0)), (), (), (0.0,), 7.0)
    lanes = timeline("exchange", [zero, one], HERE)
    assert spans(lanes, 0, "communication") == [("send and recv", 3, 4), ("all_reduce", 6, 7)]


@pytest.mark.parametrize(
    ("intervals", "holes", "rest"),
    [
        ([(0, 10)], [(2, 3), (5, 7)], [(0, 2), (3, 5), (7, 10)]),
        ([(0, 1), (8, 9)], [(2, 3)], [(0, 1), (8, 9)]),
        ([(2, 3)], [(1, 4)], []),
        ([(0, 2), (3, 5)], [(1, 3), (2, 4)], [(0, 1), (4, 5)]),
        ([(0, 2)], [(2, 3)], [(0, 2)]),
        ([(3, 4)], [(2, 3)], [(3, 4)]),
        ([(0, 3)], [(2, 3)], [(0, 2)]),  # nothing of no length is left
        ([(2, 4)], [(2, 3)], [(3, 4)]),
    ],
)
def test_what_is_left_of_intervals(intervals: list[tuple[float, float]], holes: list[tuple[float, float]], rest: list[object]) -> None:
    """Outside holes that may overlap, lie apart, or touch."""
    assert _timeline._without(intervals, holes) == rest


def test_the_quickest_answer_tells_how_far_a_clock_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 asks four times; the third answer is back after 0.2 s and counts: 150.3 when it was 50.1 here is 100.2 ahead."""
    asks = [(10.0, 14.0), (30.0, 31.0), (50.0, 50.2), (70.0, 73.0)]
    clock = iter([moment for ask in asks for moment in ask])
    answers = iter([111.0, 130.0, 150.3, 171.0])
    told: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", lambda names, name: names.__setitem__(slice(None), ["a", "b"]))
    monkeypatch.setattr(dist, "send", lambda tensor, rank: None)
    monkeypatch.setattr(dist, "recv", lambda tensor, rank: tensor.fill_(next(answers)))
    monkeypatch.setattr(dist, "broadcast", lambda tensor, root: told.extend(tensor.tolist()))
    assert _timeline.clocks_ahead(rounds=4) == 0.0  # of rank 0 before itself
    assert told == [0.0, pytest.approx(150.3 - 50.1)]


def test_a_machine_is_told_from_another_of_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the number of this start of its kernel, on Linux; elsewhere there is the name alone."""
    boot = tmp_path / "boot_id"
    real = Path
    monkeypatch.setattr("pathlib.Path", lambda given: boot if str(given) == "/proc/sys/kernel/random/boot_id" else real(given))
    monkeypatch.setattr("platform.node", lambda: "node7")
    assert _timeline._machine() == "node7 "
    boot.write_text("abc-1\n")
    assert _timeline._machine() == "node7 abc-1"


def test_equal_lanes_are_equal_and_others_are_not() -> None:
    """By all their spans; a span that is a second longer, or something else, is another; a lane has its rank's spans of its kind alone."""
    one = RankTimeline("x", 2, (RankSpan(0, "compute", "a", 0, 1), RankSpan(1, "idle", "b", 0, 2)), (0.0,), 2.0, (), HERE)
    assert one == RankTimeline.from_dict(one.to_dict())
    assert one != dataclasses.replace(one, spans=(RankSpan(0, "compute", "a", 0, 2), one.spans[1]))
    assert one != "something else"
    assert [one.lane(0), one.lane(1), one.lane(1, "compute")] == [(one.spans[0],), (one.spans[1],), ()]
    noted = dataclasses.replace(one, notes=(Note("stopped", "Here."),)).table()
    assert noted == (("x", "compute", "communication", "idle", "communication beside compute"), [
        ("rank 0", "1.00 s", "0 s", "0 s", "0 s"), ("rank 1", "0 s", "0 s", "2.00 s", "0 s"), ("note: stopped", "Here.", "", "", ""),
    ])  # fmt: skip
