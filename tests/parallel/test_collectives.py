"""A sweep of a collective: times over ranks, bytes on the wire beside theory, and what its models predict."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gpulab import devices, models
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.parallel import CollectivePoint, CollectiveSweep, _sweep, _sweep_step, sweep
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


class MadeRanks:
    """Two ranks, and a clock that runs while they call: 10 ms for each call and 100 ms for each request; the link is told in bytes."""

    n, hosts = 2, ("a", "b")
    backend, environment = "gloo", devices.environment("cpu")

    def __init__(self, seconds, clocks=("x", "x"), sent=((100, None), (90, None))):
        self.now, self.seconds, self.clocks, self.sent = 50.0, seconds, clocks, sent
        self.asked = []

    def monotonic(self):
        """Return the seconds so far."""
        return self.now

    def run(self, function, *given):
        """Answer as the ranks would."""
        if function is _sweep_step.facts:
            return [{"clock": clock, "backend": self.backend, "environment": self.environment} for clock in self.clocks]
        self.asked.append((function.__name__, *given))
        if function is _sweep_step.sent_bytes:
            return list(self.sent)
        count = given[-1]
        self.now += 0.1 + 0.01 * count
        times = [self.seconds(len(self.asked), k) for k in range(count)]
        return [([(0.0, t) for t in times], 0.25), ([(1.0, t + 1.0) for t in times], 0.75)]


def swept(monkeypatch, ranks, elements, deadline, stop=None):
    """Sweep an all-reduce on made ranks."""
    monkeypatch.setattr(_sweep, "time", ranks)
    return _sweep._Runner(ranks, "all_reduce", elements, deadline, None, stop).result()


def test_each_size_is_called_until_its_interval_is_narrow(monkeypatch):
    """Equal calls are enough when there are twenty: five that tell how long one takes, then fifteen; then the bytes; then the next size."""
    ranks = MadeRanks(lambda request, k: 2.0)
    done = swept(monkeypatch, ranks, (2, 8), 100.0)
    assert ranks.asked == [
        ("timed_calls", "all_reduce", 2, 5), ("timed_calls", "all_reduce", 2, 15), ("sent_bytes", "all_reduce", 2),
        ("timed_calls", "all_reduce", 8, 5), ("timed_calls", "all_reduce", 8, 15), ("sent_bytes", "all_reduce", 8),
    ]  # fmt: skip
    # From when the last rank had entered, at 1, until the last had its result, at 3; a ring of two sends the payload once from each.
    assert done.points == (
        CollectivePoint(8, 2.0, (2.0, 2.0), 20, (100, 90), (8.0, 8.0)), CollectivePoint(32, 2.0, (2.0, 2.0), 20, (100, 90), (32.0, 32.0)),
    )  # fmt: skip
    assert (done.ranks, done.hosts, done.backend, done.wire_reason, done.notes) == (2, 2, "gloo", None, ())
    assert done.evidence.samples == 40


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_ranks_that_talk_through_nccl_are_counted_as_rings_on_their_gpus(monkeypatch, backend):
    """A reduce-scatter, which gloo does by a whole all-reduce, is a ring's: of 32 bytes among two each sends half, not all."""
    ranks = MadeRanks(lambda request, k: 2.0, sent=((None, "x"), (None, "x")))
    ranks.backend, ranks.environment = backend, dataclasses.replace(ranks.environment, device="a GPU", device_kind="cuda")
    monkeypatch.setattr(_sweep, "time", ranks)
    done = _sweep._Runner(ranks, "reduce_scatter", (8,), 100.0, None, None).result()
    assert (done.backend, done.algorithm, done.points[0].algorithm_bytes) == (backend, "ring", (16.0, 16.0))
    assert (done.environment, done.evidence.device) == (ranks.environment, "a GPU")
    assert [_sweep.algorithm_of("reduce_scatter", name) for name in ("gloo", backend)] == ["ring all-reduce", "ring"]
    assert [_sweep.algorithm_of("broadcast", name) for name in ("gloo", backend)] == ["tree", "tree"]


def test_calls_that_differ_take_their_share_of_the_time_in_chunks(monkeypatch):
    """Times from 1 to 3 s are never narrow: of 8 s the first of two sizes has 4, in chunks of 0.3 s at the pace of the last one."""
    ranks = MadeRanks(lambda request, k: 1.0 + 2.0 * (k % 2))
    done = swept(monkeypatch, ranks, (2, 8), 8.0)
    first = [given[-1] for given in ranks.asked[: ranks.asked.index(("sent_bytes", "all_reduce", 2))]]
    # Five took 0.15 s: 0.03 each, so ten in 0.3 s, but twenty are needed: fifteen. These took 0.25 s: 0.0167 each, so eighteen; and so on.
    assert first[:4] == [5, 15, 18, 19]
    assert sum(0.1 + 0.01 * count for count in first[:-1]) < 4.0 <= sum(0.1 + 0.01 * count for count in first)
    assert len(done.points) == 2
    assert ranks.now == pytest.approx(58.0, abs=0.6)
    assert done.points[0].samples == sum(first)


def test_no_size_takes_more_calls_than_it_may(monkeypatch):
    """With an hour and times that are never narrow it ends at 2,000 calls."""
    ranks = MadeRanks(lambda request, k: 1.0 + 2.0 * (k % 2))
    assert swept(monkeypatch, ranks, (2,), 3600.0).points[0].samples == 2000


def test_what_a_sweep_could_not_do_is_noted(monkeypatch):
    """No clock in common; bytes that one rank cannot count, so none, with its reason; calls that are too few; and how far it came."""
    stops = iter([False, True, True])
    ranks = MadeRanks(lambda request, k: 2.0, clocks=("x", "y"), sent=((100, None), (None, "no such count")))
    done = swept(monkeypatch, ranks, (2, 8, 16), 100.0, lambda: next(stops))
    assert [(p.nbytes, p.median_seconds, p.interval_seconds, p.samples, p.sent_bytes) for p in done.points] == [(8, 2.0, None, 5, None)]
    assert done.wire_reason == "no such count"
    assert [note.code for note in done.notes] == ["stopped", "no-interval", "skipped"]
    assert "after 1 of 3 sizes" in done.notes[0].sentence
    assert done.notes[1].sentence.startswith("1 of 1 sizes; 8 B: ")
    assert "no clock in common" in done.notes[2].sentence


def test_links_that_are_not_what_limits_are_noted_with_the_wait_of_both_ranks(monkeypatch):
    """Of 2 s a link of 10 MB/s is used for 1 s by 10 MB; ranks waited a quarter and three quarters of the time for a core: half."""
    monkeypatch.setattr(_sweep, "link_limit", lambda ranks: 10e6)
    done = swept(monkeypatch, MadeRanks(lambda request, k: 2.0), (2_500_000,), 10.0)
    assert done.link_bytes_per_second == 10e6
    assert [note.code for note in done.notes] == ["contended"]
    assert "are used 50 % of the time; a rank's threads waited for a core 50 % of the time" in done.notes[0].sentence


def test_each_call_that_is_timed_comes_after_a_meeting_and_is_waited_for(monkeypatch):
    """Of three calls the first is not timed; the device ends each before the clock is read; bytes count between meetings."""
    told = []
    clock = itertools.count(10.0)
    monkeypatch.setattr(_sweep_step, "_call", lambda *given: (lambda: told.append("call"), lambda: told.append("wait")))
    monkeypatch.setattr(_sweep_step.time, "perf_counter", lambda: told.append("clock") or next(clock))
    monkeypatch.setattr(dist, "barrier", lambda: told.append("meet"))
    monkeypatch.setattr(_sweep_step.conditions, "read", lambda device: _Readings())
    times, waited = _sweep_step.timed_calls("all_reduce", 8, 2)
    assert told == [
        "meet",
        "clock",
        "call",
        "wait",
        "meet",
        *["clock", "call", "wait", "clock"],
        "meet",
        *["clock", "call", "wait", "clock"],
    ]
    assert (times, waited) == ([(11.0, 12.0), (13.0, 14.0)], None)
    # Of 2 s a thread waited half a second, or longer than there was, as two may; where either reading lacks it, nothing is told.
    for first, last, share in ((1.0, 1.5, 0.25), (1.0, 9.0, 1.0), (None, 1.0, None), (1.0, None, None)):
        readings = iter((_Readings(4.0, first), _Readings(6.0, last)))
        monkeypatch.setattr(_sweep_step.conditions, "read", lambda device, readings=readings: next(readings))
        assert _sweep_step.timed_calls("all_reduce", 8, 1)[1] == share
    told.clear()
    counts = iter((1000, 1030, 2030 + 30))
    monkeypatch.setattr(_sweep_step, "wire_bytes", lambda: told.append("count") or _wire(next(counts)))
    assert _sweep_step.sent_bytes("all_reduce", 8) == (1000, None)  # 1,030 with a meeting, of which one alone sends 30
    assert told == ["meet", "meet", "count", "meet", "count", "call", "wait", "meet", "count"]


class _Readings:
    def __init__(self, seconds=0.0, delay=None):
        self.seconds, self.process_run_delay_seconds = seconds, delay


def _wire(sent):
    from gpulab.parallel import WireBytes

    return WireBytes(sent, 0, 0, (1,), None, Evidence.measured("x"))


def test_ranks_that_talk_through_nccl_call_on_their_gpus(monkeypatch):
    """Tensors of the asked size on the GPU of the local number, which is waited for; shapes by hand for twelve elements of three."""
    made, told = [], []
    zeros = torch.zeros

    def on_meta(*shape, device):
        made.append((shape[0], device))
        return zeros(*shape, device="meta")

    monkeypatch.setattr(dist, "get_backend", lambda: "cpu:gloo,cuda:nccl")  # what torch 2.13 gives for a cluster's own choice
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(torch, "zeros", on_meta)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("wait"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(dist, "gather", lambda part, parts, root: told.append((part.numel(), parts, root)))
    call, wait = _sweep_step._call("gather", 12, 0)
    call()
    wait()
    assert made == [(12, "cuda:1"), (4, "cuda:1"), (0, "cuda:1")]
    assert told == ["cuda:1", (4, None, 0), "wait"]
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    call, _ = _sweep_step._call("gather", 12, 0)
    call()
    part, parts, root = told[-1]
    assert (part, [one.numel() for one in parts], root) == (4, [4, 4, 4], 0)
    for operation, new, old in (
        ("all_gather", "all_gather_single", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"),
    ):  # fmt: skip
        got, given = (12, 4) if operation == "all_gather" else (4, 12)
        for name in (new, old):  # torch 2.13's own name where it is there, else the one before
            monkeypatch.setattr(dist, name, lambda a, b, name=name: told.append((name, a.numel(), b.numel())), raising=False)
        _sweep_step._call(operation, 12, 0)[0]()
        monkeypatch.delattr(dist, new)
        _sweep_step._call(operation, 12, 0)[0]()
        assert told[-3::2] == [(new, got, given), (old, got, given)]


def test_the_table_of_a_sweep_by_hand():
    """Two ranks that sum 8 MB in 10 ms run a bus of 800 MB/s; the busiest rank by the formula is shown; what is missing stays empty."""
    evidence = Evidence.measured("x", 1)
    points = (
        CollectivePoint(4096, 1e-3, None, 5, None, (4096.0, 4096.0)),
        CollectivePoint(8_000_000, 1e-2, (9e-3, 1.1e-2), 40, (7, 9), (5.0, 8.0)),
    )  # fmt: skip
    made = CollectiveSweep("all_reduce", "ring", 2, 1, "gloo", "float32", points, 10e6, "why", (Note("stopped", "Here."),), evidence, None)
    assert made.table()[1] == [
        ("4.00 KiB", "1.00 ms", "", "4.10 MB/s", "not counted", "4.00 KiB", "5"),
        ("7.63 MiB", "10.0 ms", "9.00 ms to 11.0 ms", "800 MB/s", "9 B", "8 B", "40"),
        ("note: stopped", "Here.", "", "", "", "", ""),
    ]
    assert repr(made) == "<all_reduce among 2 ranks, links of 10.0 MB/s: 7.63 MiB in 10.0 ms, 2 sizes>"
    assert made.caption().endswith(" · bytes on the wire: why")


def test_sizes_that_are_left_out_go_from_a_kilobyte_to_eight_megabytes():
    """By fours, and twice as much at the end; of two ranks each size is that of float32 elements."""
    kib = 1024
    assert [4 * elements for elements in _elements(None, 2)] == [
        kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, 1024 * kib, 4096 * kib, 8192 * kib,
    ]  # fmt: skip
    assert OPERATIONS == ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all")


@pytest.mark.parametrize(
    ("seconds", "most", "told"),
    [
        (0.020, 1_000_000, True),  # ten milliseconds of a link of 100 MB/s are enough to judge
        (0.020, 999_000, False),
        (1.0, 90_000_000, False),  # nine tenths are used well
        (1.0, 89_900_000, True),
    ],
)
def test_the_bounds_of_a_link_that_is_used(seconds, most, told):
    """Of the rank that sends most, and of the largest size."""
    small = CollectivePoint(4, 9.0, None, 20, None, (4.0, 4.0))
    large = CollectivePoint(8_000_000, seconds, None, 20, None, (most / 2, float(most)))
    assert (unused_link([small, large], 100e6, "ring", None) is not None) is told
    assert unused_link([], 100e6, "ring", None) is None


def test_how_far_a_sweep_is_rises_within_each_size(monkeypatch):
    """Of two sizes each has half: hundredths of it by the calls that were taken, nine tenths at most, and one at the end."""
    ranks, heard = MadeRanks(lambda request, k: 1.0 + 2.0 * (k % 2)), []
    monkeypatch.setattr(_sweep, "time", ranks)
    _sweep._Runner(ranks, "all_reduce", (2, 256), 4.0, lambda *told: heard.append(told), None).result()
    first, second = ([fraction for fraction, text in heard if text == f"all_reduce of {words}"] for words in ("8 B", "1.00 KiB"))
    assert first[:3] == pytest.approx([0.0, 0.025, 0.1])
    assert (first[-1], second[0], second[-1]) == (pytest.approx(0.45), 0.5, pytest.approx(0.95))
    assert heard[-1] == (1.0, "done")


@pytest.mark.parametrize(
    ("operation", "name", "given"),
    [
        ("all_reduce", "all_reduce", [12]), ("broadcast", "broadcast", [12, 1]), ("reduce", "reduce", [12, 1]),
        ("all_gather", "all_gather_single", [12, 4]), ("reduce_scatter", "reduce_scatter_single", [4, 12]),
        ("gather", "gather", [4, [4, 4, 4], 1]), ("scatter", "scatter", [4, [4, 4, 4], 1]), ("barrier", "barrier", []),
    ],
)  # fmt: skip
def test_each_operation_is_called_as_pytorch_wants_it(monkeypatch, operation, name, given):
    """Twelve elements over three ranks on the root, rank 1: what is written to comes before what is read, in sizes by hand."""
    told = []

    def noted(*arguments):
        told.append([[part.numel() for part in one] if isinstance(one, list) else one if isinstance(one, int) else one.numel()
                     for one in arguments])  # fmt: skip

    for known, value in (("get_backend", "gloo"), ("get_world_size", 3), ("get_rank", 1)):
        monkeypatch.setattr(dist, known, lambda value=value: value)
    monkeypatch.setattr(dist, name, noted, raising=False)
    call, wait = _sweep_step._call(operation, 12, 1)
    call()
    assert wait() is None  # no device to wait for
    assert told == [given]


def test_an_exchange_of_all_with_all_writes_to_a_tensor_of_its_own(monkeypatch):
    """Its input is the tensor that the other operations work on: eight elements of two ranks into eight others."""
    told = []
    for known, value in (("get_backend", "gloo"), ("get_world_size", 2), ("get_rank", 0)):
        monkeypatch.setattr(dist, known, lambda value=value: value)
    made, zeros = [], torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: made.append(zeros(*shape)) or made[-1])
    monkeypatch.setattr(
        dist, "all_to_all_single", lambda *given: told.append([next(k for k, t in enumerate(made) if t is one) for one in given])
    )
    _sweep_step._call("all_to_all", 8, 0)[0]()
    assert [tensor.numel() for tensor in made] == [8, 4, 8]  # the whole, a rank's part, and what comes from the others
    assert told == [[2, 0]]


def test_ranks_of_one_running_kernel_share_a_clock(monkeypatch, tmp_path):
    """Known by the number of the kernel's start; where there is none, by the machine's name."""
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(_sweep_step, "Path", lambda given: boot)
    monkeypatch.setattr(_sweep_step.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(_sweep_step.devices, "environment", lambda device: f"of {device}")
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    assert _sweep_step.facts() == {"clock": "node7", "backend": "gloo", "environment": "of cpu"}
    boot.write_text("abc")
    assert _sweep_step.facts()["clock"] == "abc"


def test_a_sweep_of_nothing_and_one_of_equals():
    """No point is said as such; a sweep needs ranks, and is equal to what comes back from its JSON."""
    empty = CollectiveSweep("reduce", "tree", 3, 1, "gloo", "float32", (), None, None, (), Evidence.measured("x", 1), None)
    assert repr(empty) == "<reduce among 3 ranks: no point>"
    assert empty.caption() == dataclasses.replace(empty, wire_reason="").caption()
    assert "bytes on the wire" not in empty.caption()
