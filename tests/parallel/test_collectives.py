"""A sweep of a collective: times over ranks, bytes on the wire beside theory, and what its models predict."""

import itertools

import numpy as np
import pytest

from gpulab import models
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence
from gpulab.parallel import CollectivePoint, CollectiveSweep, sweep
from gpulab.parallel._sweep import OPERATIONS, _elements, call_seconds, unused_link


def made(operation, algorithm, n, latency, bandwidth, sizes):
    """A sweep whose times are those of a formula."""
    points = []
    for nbytes in sizes:
        cost = models.collective_cost(operation, nbytes, n, algorithm, latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)
        points.append(CollectivePoint(nbytes, cost.seconds, None, 20, None, tuple(cost.sent_bytes(r) for r in range(n))))
    evidence = Evidence.measured("nothing", 1)
    return CollectiveSweep(operation, algorithm, n, 1, "gloo", "float32", tuple(points), None, "made up", (), evidence, None)


def test_a_call_lasts_from_the_last_entry_to_the_last_result():
    """By hand: ranks enter at 1 and 3, have their result at 5 and 6: 3 s. Without a common clock: the longest inside, 4 s."""
    assert call_seconds([[(1.0, 5.0), (10.0, 11.0)], [(3.0, 6.0), (10.0, 12.0)]]) == [3.0, 2.0]
    assert call_seconds([[(1.0, 5.0)], [(103.0, 106.0)]], one_clock=False) == [4.0]


@pytest.mark.parametrize(
    ("seconds", "limit", "algorithm", "nbytes", "told"),
    [
        (0.150, 100e6, "ring", 8_000_000, "used 80 % of the time; a rank's threads waited for a core 35 % of the time"),
        (0.130, 100e6, "ring", 8_000_000, None),  # 92 %
        (0.150, None, "ring", 8_000_000, None),
        (0.150, 100e6, "tree", 8_000_000, None),
        (0.010, 100e6, "ring", 400_000, None),  # 6 ms of a link: latency still counts
    ],
)
def test_a_link_that_is_not_what_limits_is_told(seconds, limit, algorithm, nbytes, told):
    """By hand: of 8 MB four ranks send 12 MB each around a ring, which takes a link of 100 MB/s 120 ms; 150 ms use it 80 % of the time."""
    point = CollectivePoint(nbytes, seconds, None, 20, None, (1.5 * nbytes,) * 4)
    note = unused_link([point], limit, algorithm, 0.35)
    assert (note is None) is (told is None)
    if told is not None:
        assert (note.code, told in note.sentence, "100 MB/s" in note.sentence) == ("contended", True, True)
        assert "waited" not in unused_link([point], limit, algorithm, None).sentence


def test_sizes_become_elements_that_the_ranks_divide():
    """1 kB over 3 ranks: 256 float32 are rounded up to 258."""
    assert _elements([1024, 12, 1], 3) == (3, 258)
    assert all(size % 4 == 0 for size in _elements(None, 4))
    for wrong in (0, -4, 2.5, True, 2**40):
        with pytest.raises(InputError, match="expected whole bytes"):
            _elements([wrong], 2)
    with pytest.raises(InputError, match="sizes is empty"):
        _elements([], 2)


def test_the_bytes_of_every_size_are_those_of_gloos_algorithm(ranks):
    """Measured on the sockets of both ranks; the time is positive and its interval holds it; all goes through JSON."""
    done = sweep(ranks, "all_reduce", sizes=[4, 10_000, 2**18], deadline=0.6)
    assert [p.nbytes for p in done.points] == [8, 10_000, 2**18]
    for point in done.points:
        assert point.samples >= 20
        assert point.interval_seconds[0] <= point.median_seconds <= point.interval_seconds[1]
        assert point.median_seconds > 0
        if done.wire_reason is None:
            assert point.sent_bytes == models.gloo_wire_bytes("all_reduce", point.nbytes // 4, 2)
        assert point.algorithm_bytes == (point.nbytes, point.nbytes)  # 2 (n - 1) / n of the payload, with two ranks
    assert (done.algorithm, done.ranks, done.hosts, done.backend, done.link_bytes_per_second) == ("ring", 2, 1, "gloo", None)
    assert CollectiveSweep.from_dict(done.to_dict()) == done
    assert "MEASURED" in done._repr_html_()


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "all_reduce"])
def test_every_operation_can_be_swept(ranks, operation):
    """Few calls of a small size: measured, counted, and the algorithm is one that the models know."""
    done = sweep(ranks, operation, sizes=[4096], deadline=0.05)
    assert done.algorithm in models.collective_algorithms(operation)
    (point,) = done.points
    assert point.median_seconds > 0
    if done.wire_reason is None:
        assert point.sent_bytes == models.gloo_wire_bytes(operation, 1024, 2)


def test_progress_rises_and_a_stop_keeps_what_was_measured(ranks):
    """Stopped once the first size is done: one point and a note; stopped at once: an error in one sentence."""
    told, asked = [], itertools.count()
    done = sweep(
        ranks, "broadcast", sizes=[1024, 2048, 4096], deadline=0.3,
        progress=lambda fraction, text: told.append(fraction), stop=lambda: next(asked) > 0,
    )  # fmt: skip
    assert len(done.points) == 1
    assert done.notes[0].code == "stopped"
    assert told == sorted(told)
    assert told[-1] == 1.0
    with pytest.raises(StoppedError, match="before the first size"):
        sweep(ranks, "broadcast", sizes=[1024], stop=lambda: True)


def test_what_cannot_be_swept_is_refused_before_anything_runs(ranks):
    """Each in one sentence."""
    for given, words in (
        ((3,), "expected a started cluster of two ranks or more"),
        ((ranks, "barrier"), "operation is 'barrier'"),
    ):
        with pytest.raises(InputError, match=words):
            sweep(*given)
    with pytest.raises(InputError, match="deadline is -1"):
        sweep(ranks, deadline=-1)


@pytest.mark.parametrize(("operation", "n"), [("all_reduce", 4), ("all_gather", 3), ("broadcast", 4), ("reduce_scatter", 2)])
def test_a_message_and_the_models_are_read_back_from_times_made_by_the_formula(operation, n):
    """Times of 50 us and 1 GB/s a message give these back, and with them each algorithm's own times."""
    algorithm = models.GLOO_ALGORITHMS[operation]
    swept = made(operation, algorithm, n, 50e-6, 1e9, [3 * 2**k for k in range(10, 23, 2)])
    latency, bandwidth = swept.message()
    assert latency == pytest.approx(50e-6, rel=0.02)
    assert bandwidth == pytest.approx(1e9, rel=0.02)
    beside = swept.models()
    assert set(beside) <= set(models.collective_algorithms(operation))
    own = [cost.seconds for cost in beside[algorithm]]
    assert own == pytest.approx([p.median_seconds for p in swept.points], rel=0.03)


def test_a_barrier_in_the_tree_costs_more_for_large_and_less_for_small_payloads():
    """The crossing that the figure shows, among 8 ranks: the tree of an all-reduce needs 6 messages in turn, the ring 14."""
    swept = made("all_reduce", "ring", 8, 50e-6, 1e9, [2**k for k in range(10, 25, 2)])
    tree, ring = (np.array([c.seconds for c in swept.models()[name]]) for name in ("tree", "ring"))
    assert tree[0] < ring[0]
    assert tree[-1] > ring[-1]
    assert swept.bus_bytes_per_second(swept.points[-1]) == pytest.approx(1e9, rel=0.1)
