"""Overlap: the pipeline by hand, what counts as overlap, and real threads on the CPU (their order, never their speed)."""

import contextlib
import dataclasses
import functools
import itertools
import math
import threading
import time
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpulab import devices, transfer
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge, Evidence
from gpulab.transfer import Overlap, Span, _lanes, _overlap
from gpulab.transfer.results import together_seconds

LINK = transfer.link("pcie4", latency_seconds=1e-3, bandwidth_bytes_per_second=1e6)


def test_modelled_pipeline_by_hand():
    """4 MB in 4 chunks over 1 MB/s and 1 ms: copies end at 1.001 k s; computes of 0.5 s start as each arrives."""
    o = transfer.overlap(4_000_000, 4, link=LINK, compute_seconds=2.0)
    assert o.seconds == pytest.approx(4 * 1.001 + 0.5)
    assert o.copy_seconds == pytest.approx(4.001)
    assert o.serial_seconds == pytest.approx(6.001)
    assert o.ideal_seconds == pytest.approx(4.001)
    assert o.ratio == pytest.approx((6.001 - 4.504) / 2.0)
    computes = [s for s in o.timeline if s.lane == "compute"]
    assert [s.start_seconds for s in computes] == pytest.approx([1.001, 2.002, 3.003, 4.004])
    assert [s.seconds for s in computes] == pytest.approx([0.5] * 4)
    copies = [s for s in o.timeline if s.lane == "copy"]
    assert [s.start_seconds for s in copies] == pytest.approx([0.0, 1.001, 2.002, 3.003])
    assert [s.end_seconds for s in copies] == pytest.approx([1.001, 2.002, 3.003, 4.004])
    assert o.together_seconds == pytest.approx(1.5)
    assert o.notes == ()
    assert o.evidence.badge is Badge.MODELLED


@given(st.integers(4, 10**9), st.integers(1, 64), st.floats(0, 100))
def test_formula_and_timeline_agree(nbytes, chunks, compute):
    """The closed form and the recurrence that draws the timeline give the same end."""
    if chunks > nbytes // 4:
        return
    o = transfer.overlap(nbytes, chunks, link=LINK, compute_seconds=compute)
    assert transfer.pipeline_seconds(nbytes, chunks, LINK, compute) == pytest.approx(o.seconds)
    assert o.ideal_seconds <= o.seconds * (1 + 1e-9)
    assert Overlap.from_dict(o.to_dict()) == o


@pytest.mark.parametrize(("seconds", "share"), [(3.004, "0%"), (2.996, "0%"), (2.5, "50%"), (3.5, "-50%"), (1.99, "101%")])
def test_no_gain_is_nought_from_either_side(seconds: float, share: str):
    """Two seconds and one after the other take three (by hand); a hair more or less is "0%", never "-0%"."""
    o = Overlap("cpu", 8, 2, 2.0, 1.0, seconds, (), (), Evidence.measured("cpu"))
    assert ("share of the ideal gain", share) in o.table()[1]
    assert f"{share} of the ideal gain" in repr(o)


def test_launches_count_for_each_chunk():
    """With a launch of 1 ms a chunk, ten chunks whose compute is the slower lane pay it ten times."""
    free = transfer.pipeline_seconds(1000, 10, LINK, 1.0)
    assert transfer.pipeline_seconds(1000, 10, LINK, 1.0, launch_seconds=1e-3) == pytest.approx(free + 10e-3)


def test_the_exercise_has_an_answer_between_too_few_and_too_many():
    """Over PCIe 4 some numbers of chunks reach 80 % of the ideal gain of 64 MiB, one and a thousand do not."""
    ratios = {k: transfer.overlap(64 * 2**20, k, link="pcie4").ratio for k in (1, 2, 8, 16, 32, 1024)}
    assert ratios[1] == 0
    assert max(ratios.values()) > 0.8
    assert ratios[2] < 0.8
    assert ratios[1024] < 0.8


def test_one_chunk_cannot_overlap():
    """With one chunk the note says so; with nothing to compute there is nothing to gain."""
    assert transfer.overlap(1000, 2, link=LINK, compute_seconds=0).ratio == 0
    assert [n.code for n in transfer.overlap(1000, 1, link=LINK).notes] == ["no-overlap"]


def test_together_by_hand():
    """Two copies of 1 s and one compute from 0.5 to 1.5: they share 1 s."""
    spans = [Span("copy", 0, 0.0, 1.0), Span("copy", 1, 1.0, 2.0), Span("compute", 0, 0.5, 1.5)]
    assert together_seconds(spans) == pytest.approx(1.0)
    assert together_seconds(spans[:2]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nbytes": 0}, "0 bytes"), ({"nbytes": -1}, "-1 bytes"), ({"nbytes": 1.5}, "1.5 bytes"), ({"chunks": 0}, "0 chunks"),
        ({"chunks": True}, "True chunks"), ({"nbytes": 100, "chunks": 26}, "26 chunks of 100 bytes"), ({"link": "pci"}, "'pci'"),
        ({"compute_seconds": 1.0}, "without a link"), ({"link": "pcie4", "compute_seconds": -1}, "compute_seconds is -1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(arguments, words):
    """What cannot be overlapped is refused before anything runs."""
    with pytest.raises(InputError, match=words):
        transfer.overlap(**{"device": "cpu", **arguments})


def test_whole_numbers_of_numpy_are_chunks():
    """Bytes and chunks from an array give what Python's own numbers give."""
    seconds = transfer.pipeline_seconds(np.int64(4_000_000), np.int64(4), LINK, 2.0)
    assert seconds == transfer.pipeline_seconds(4_000_000, 4, LINK, 2.0)


def test_too_large_is_told_before_allocating():
    """A petabyte is refused with what is free."""
    with pytest.raises(OutOfMemoryError, match="expected at most"):
        transfer.overlap(2**50, device="cpu")


def test_threads_copy_each_chunk_before_it_is_computed():
    """On the CPU each chunk arrives complete before its work starts, once a run, and the timeline has both lanes in order."""
    seen = []
    o = transfer.overlap(4 * 4096, 4, work=lambda x: seen.append(x.copy()), device="cpu")
    assert o.evidence.badge is Badge.MEASURED
    assert all((x == 1).all() for x in seen)
    assert len(o.timeline) == 8
    ends = {s.chunk: s.end_seconds for s in o.timeline if s.lane == "copy"}
    computes = [s for s in o.timeline if s.lane == "compute"]
    assert [s.chunk for s in computes] == [0, 1, 2, 3]
    assert all(s.start_seconds >= ends[s.chunk] - 1e-4 for s in computes)


def test_chunks_need_not_divide_the_array():
    """Every element is copied and computed once however the chunks fall."""
    lengths = []
    transfer.overlap(4 * 1001, 7, work=lambda x: lengths.append(len(x)), device="cpu")
    assert sum(lengths[:1]) == 1001  # the work alone, in one go
    assert sum(lengths[1:8]) == 1001
    assert max(lengths[1:8]) - min(lengths[1:8]) <= 1


def test_work_that_raises_ends_the_copy_thread(monkeypatch):
    """An error in the work of the first chunk comes out as it is, and no thread is left that goes on copying the other seven."""
    copied = np.copyto

    def slow(here, there):
        copied(here, there)
        if threading.current_thread().name == "copy lane":
            time.sleep(0.05)

    def broken(x):
        if len(x) < 2**14:
            raise ZeroDivisionError("in the work")

    monkeypatch.setattr(np, "copyto", slow)
    with pytest.raises(ZeroDivisionError, match="in the work"):
        transfer.overlap(2**16, 8, work=broken, device="cpu")
    assert "copy lane" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(InputError):
        transfer.overlap(2**16, 0, device="cpu")


def test_stop_returns_what_was_reached():
    """A stop after two runs gives their median with a note; at once there is nothing to return."""
    answers = iter([False, False, True])
    o = transfer.overlap(2**16, 2, device="cpu", stop=lambda: next(answers))
    assert [n.code for n in o.notes if n.code == "stopped"] == ["stopped"]
    assert o.evidence.samples == 2
    with pytest.raises(StoppedError, match="before the first run"):
        transfer.overlap(2**16, 2, device="cpu", stop=lambda: True)


def test_measured_for_a_recording():
    """Both arrangements come as measurements with their bytes."""
    serial, chunked = transfer.measure_overlap(2**16, 4, "cpu", deadline=0.1)
    assert serial.nbytes == chunked.nbytes == 2**16
    assert "one after the other" in serial.label


class _Stream:
    """A queue of a simulated GPU: when what was put into it will be done."""

    def __init__(self):
        self.free = 0.0

    def wait_event(self, event):
        self.free = max(self.free, event.at)


class _Gpu:
    """Two queues that work side by side: a byte is copied in 1 ms and worked on in 2 ms; the host reads no event before it has waited."""

    index, name = 0, "a simulated GPU"

    def __init__(self, monkeypatch):
        self.streams, self.unread, self.log = [], set(), []
        self.current = _Stream()
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream=None):
                self.at = (stream or gpu.current).free
                gpu.unread.add(self)

            def elapsed_time(self, later):
                assert not {self, later} & gpu.unread, "an event was read before the device was waited for"
                return (later.at - self.at) * 1e3

        def stream():
            self.streams.append(_Stream())
            return self.streams[-1]

        @contextlib.contextmanager
        def inside(chosen):
            before, self.current = self.current, chosen
            yield
            self.current = before

        def copy_(target, source, non_blocking=False):
            assert non_blocking
            assert source.shape == target.shape
            self.current.free += source.nbytes * 1e-3
            self.log.append(("copy", source.data_ptr(), self.current.free))
            return target

        cuda = types.SimpleNamespace(Event=Event, Stream=stream, stream=inside, device=lambda index: contextlib.nullcontext())
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(torch.Tensor, "copy_", copy_)

    def __str__(self):
        return "cpu"

    def synchronize(self):
        self.log.append(("wait",))
        self.unread.clear()
        for one in self.streams:
            one.free = max(stream.free for stream in self.streams)

    def work(self, x):
        self.log.append(("work", x.data_ptr(), self.current.free))
        self.current.free += x.nbytes * 2e-3


def test_two_streams_make_a_pipeline(monkeypatch):
    """Of 12 bytes in 3 chunks: copies end at 4, 8 and 12 ms, each 8 ms of work begins when its chunk is there and the last is done.

    By hand the work ends at 12, 20 and 28 ms. Alone, the copy takes 12 ms and the work 24.
    """
    gpu = _Gpu(monkeypatch)
    lanes = _lanes.gpu_lanes(12, 3, gpu.work, gpu)
    assert (lanes.copy(), lanes.compute()) == (pytest.approx(0.012), pytest.approx(0.024))
    gpu.log.clear()
    seconds, spans = lanes.chunked()
    assert seconds == pytest.approx(0.028)
    assert [(s.lane, s.chunk, round(s.start_seconds, 6), round(s.end_seconds, 6)) for s in spans] == [
        ("copy", 0, 0, 0.004), ("copy", 1, 0.004, 0.008), ("copy", 2, 0.008, 0.012),
        ("compute", 0, 0.004, 0.012), ("compute", 1, 0.012, 0.02), ("compute", 2, 0.02, 0.028),
    ]  # fmt: skip
    copies, works = ([place for what, place, _ in gpu.log[1:-1] if what == name] for name in ("copy", "work"))
    assert [place - copies[0] for place in copies] == [place - works[0] for place in works] == [0, 4, 8]


def test_a_run_in_chunks_begins_when_the_device_is_idle(monkeypatch):
    """What a caller left in one of the streams is waited for, and not counted into the run."""
    gpu = _Gpu(monkeypatch)
    lanes = _lanes.gpu_lanes(8, 2, gpu.work, gpu)
    gpu.streams[1].free += 1.0
    assert lanes.chunked()[0] == pytest.approx(0.004 + 2 * 0.008)
    gpu.log.clear()
    assert lanes.compute() == pytest.approx(0.016)
    assert [what for what, *_ in gpu.log] == ["wait", "work", "wait"]


def test_the_default_work_takes_about_as_long_as_the_copy(monkeypatch):
    """Passes by whole numbers: a copy of 12 ms and passes of 5 ms make two; it is one at least, also where nothing takes any time."""
    assert _lanes.passes_for(12e-3, 5e-3) == 2
    assert _lanes.passes_for(1e-3, 5e-3) == 1
    assert _lanes.passes_for(0.0, 0.0) == 1
    gpu, passed = _Gpu(monkeypatch), []

    def mul_(x, factor):
        passed.append(factor)
        gpu.current.free += 4e-3
        return x

    monkeypatch.setattr(torch.Tensor, "mul_", mul_)
    lanes = _lanes.gpu_lanes(12, 3, None, gpu)
    passed.clear()
    assert lanes.compute() == pytest.approx(0.012)  # three passes of 4 ms for a copy of 12
    assert len(passed) == 3
    assert all(1 < factor**2000 < 1.001 for factor in passed)  # what is multiplied as often as it may be stays near 1


class _Host:
    """A CPU on a scripted clock: a copy takes 12 ms and a pass 4 ms, and a stop of 0.3 s comes in the copy or pass of that number."""

    def __init__(self, monkeypatch, stopped=None):
        self.now, self.moves, self.stopped, self.factors = 0.0, 0, stopped, []
        monkeypatch.setattr(_lanes, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(np, "copyto", lambda here, there: self.move(12e-3))
        monkeypatch.setattr(np, "multiply", lambda x, factor, out: self.factors.append(factor) or self.move(4e-3))

    def move(self, seconds):
        self.moves += 1
        self.now += seconds + (0.3 if self.moves == self.stopped else 0.0)


@pytest.mark.parametrize("stopped", [None, 1, 2, 3, 4, 5, 6])
def test_one_stop_while_the_passes_are_counted_changes_nothing(monkeypatch, stopped):
    """Passes of 4 ms for a copy of 12 ms are three, by hand, whichever copy or pass was stopped for 0.3 s before."""
    host = _Host(monkeypatch, stopped)
    lanes = _lanes.host_lanes(2**10, 4, None)
    assert (lanes.work.count, host.moves) == (3, 6)  # three turns of a copy and a pass
    assert all(1 < factor**2000 < 1.001 for factor in host.factors)
    assert lanes.compute() == pytest.approx(12e-3)


def _scripted(count, copy=1e-3, one_pass=1e-3, chunked=1.5e-3):
    """Lanes whose times are given, with the default work so many passes long, and what they were asked for."""
    passes, asked = _lanes.Passes(lambda x: None, count), []

    def taking(name, seconds):
        def lane():
            asked.append(name)
            return seconds()

        return lane

    timeline = [Span("copy", 0, 0.0, 1.0), Span("compute", 0, 0.0, 1.0)]
    return _lanes.Lanes(
        taking("copy", lambda: copy),
        taking("compute", lambda: passes.count * one_pass),
        taking("chunked", lambda: (chunked, timeline)),
        passes,
    ), asked


@pytest.mark.parametrize(
    ("count", "one_pass", "afterwards", "runs"), [(62, 1e-3, 1, 16), (3, 0.1e-3, 10, 16), (1, 9e-3, 1, 8), (2, 0.6e-3, 2, 8)]
)
def test_work_far_from_the_copys_length_is_sized_and_run_anew_once(count, one_pass, afterwards, runs):
    """A copy of 1 ms: 62 passes of 1 ms become one and 3 of 0.1 ms ten; one of 9 ms is the least there is, and 1.2 ms are near enough.

    A series is seven runs and one that is thrown away; progress rises through both, to 1.
    """
    lanes, asked = _scripted(count, one_pass=one_pass)
    seen = []
    trials = _overlap._trials(lanes, lambda fraction, text: seen.append(fraction), None)
    assert lanes.work.count == afterwards
    assert asked.count("chunked") == runs
    assert trials.compute == pytest.approx([afterwards * one_pass] * 7)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_stop_while_it_runs_anew_keeps_the_first_runs():
    """Seven runs are there, and stay, where the second series was stopped before its first run."""
    lanes, _ = _scripted(62)
    answers = iter([False] * 7 + [True])
    assert _overlap._trials(lanes, None, lambda: next(answers)).compute == pytest.approx([62e-3] * 7)


def _told(copy, compute, chunked):
    """The codes of the notes on runs with these times in seconds, copy and compute at work together."""
    timeline = [Span("copy", 0, 0.0, 1.0), Span("compute", 0, 0.0, 1.0)]
    trials = _overlap._Trials(copy, compute, [(seconds, timeline) for seconds in chunked])
    o = _overlap._result(devices.find("cpu"), 8, 2, trials)
    rows = dict(o.table()[1])
    assert all(rows[f"note: {note.code}"] == note.sentence for note in o.notes)
    return {note.code: note.sentence for note in o.notes}


def test_a_gain_that_cannot_be_is_told():
    """Beside a copy of 2 s and a compute of 1 s nothing takes less than 2 s: 1.9 s are implausible, 2.0 and 2.5 are not."""
    assert "took 1.90 s, less than the copy alone with 2.00 s" in _told([2.0] * 7, [1.0] * 7, [1.9] * 7)["implausible"]
    assert _told([2.0] * 7, [1.0] * 7, [2.0] * 7) == {}
    assert _told([2.0] * 7, [1.0] * 7, [2.5] * 7) == {}


def test_runs_that_disagree_by_more_than_the_gain_are_told():
    """Three seconds one after the other: by hand the runs gain 0.9 s or lose 0.6; one stop, or a loss that is clear, is no doubt."""
    sentence = _told([2.0] * 7, [1.0] * 7, [2.1, 3.6, 2.1, 3.6, 2.6, 2.1, 3.6])["unstable"]
    assert "from 900 ms less to 600 ms more than one after the other" in sentence
    assert _told([2.0] * 7, [1.0] * 7, [2.5] * 6 + [60.0]) == {}
    assert _told([2.0] * 7, [1.0] * 7, [9.0, 10.0, 11.0, 12.0, 9.0, 10.0, 11.0]) == {}
    assert _told([2.0] * 7, [1.0] * 7, [3.0, 3.1, 2.9, 3.0, 3.1, 2.9, 3.0]) == {}
    assert set(_told([2.0], [1.0], [2.5])) == {"stopped"}


@pytest.mark.gpu
def test_gpu_overlap_happens():
    """On a GPU with pinned memory and two streams, 256 MiB in 8 chunks gain at least a quarter of the ideal."""
    o = transfer.overlap(2**28, 8, device="cuda")
    assert o.ratio > 0.25
    assert not any(n.code == "no-overlap" for n in o.notes)


@pytest.mark.gpu
def test_gpu_without_enough_work_says_no_overlap():
    """A work that the host waits for between chunks cannot overlap, and the note says so."""

    def blocking(x):
        x.mul_(1.0)
        float(x[0])

    o = transfer.overlap(2**24, 4, work=blocking, device="cuda")
    assert [n.code for n in o.notes] == ["no-overlap"]


def test_numpy_lets_the_copy_run_beside():
    """The premise of the CPU's overlap: numpy's copy and arithmetic accept the buffers that the lanes share."""
    x = np.ones(8, dtype=np.float32)
    np.copyto(x[2:4], x[4:6] * 2)
    assert x.sum() == 10


@pytest.mark.parametrize(("together", "told"), [(1.0, False), (0.999, True)])
def test_lanes_that_hardly_met_are_told(together, told):
    """Of a copy of 20 s and a compute of 10 s one second side by side is overlap; less is none, in one sentence."""
    timeline = [Span("copy", 0, 0.0, 20.0), Span("compute", 0, 20.0 - together, 30.0 - together)]
    notes = _overlap._notes(timeline, 2)
    assert [note.code for note in notes] == (["no-overlap"] if told else [])
    if told:
        assert notes[0].sentence.startswith("Copy and compute were both at work for 999 ms of the 10.0 s possible; overlap needs pinned")


def test_the_words_of_an_overlap_by_hand():
    """Its table and what it says of itself: 4 s one after the other, 2.5 in chunks, of 3 at best; the model's own assumptions."""
    timeline = (Span("copy", 0, 0.0, 3.0), Span("compute", 0, 2.0, 2.5))
    o = Overlap("cpu", 2**20, 4, 3.0, 1.0, 3.25, timeline, (), Evidence.measured("cpu"))
    assert o.table() == (("1.00 MiB in 4 chunks", ""), [
        ("copy alone", "3.00 s"), ("compute alone", "1.00 s"), ("one after the other", "4.00 s"), ("in overlapping chunks", "3.25 s"),
        ("ideal (the longer one alone)", "3.00 s"), ("share of the ideal gain", "75%"), ("both at work", "500 ms"),
    ])  # fmt: skip
    assert repr(o) == "<overlap of 1.00 MiB in 4 chunks: 3.25 s, one after the other 4.00 s, 75% of the ideal gain>"
    whole = dataclasses.replace(o, chunks=1)
    assert whole.table()[0] == ("1.00 MiB in 1 chunk", "")
    assert repr(whole).startswith("<overlap of 1.00 MiB in 1 chunk: ")
    made = transfer.overlap(4_000_000, 4, link=LINK, compute_seconds=2.0)
    assert made.evidence.assumptions == (
        f"link pcie4-x16: {LINK.evidence.assumptions}; compute in equal parts of 500 ms, neither lane slows the other"
    )
    assert (made.device, made.evidence.source) == ("pcie4-x16", LINK.evidence.source)
    usual = transfer.overlap(link="pcie4")
    assert (usual.nbytes, usual.chunks, usual.compute_seconds) == (2**26, 8, usual.copy_seconds)


@pytest.mark.parametrize(
    ("count", "copy", "compute", "apart"),
    [(1, 1.0, 0.5, False), (1, 1.0, 0.49, True), (2, 1.0, 2.0, False), (2, 1.0, 2.01, True), (1, 1.0, 9.0, False)],
)
def test_lanes_are_apart_beyond_twice_where_another_count_would_help(count, copy, compute, apart):
    """Exactly twice is near enough, from either side; one pass is the least there is."""
    assert _lanes.Passes(lambda x: None, count).misfit(copy, compute) is apart


def test_passes_and_parts_are_whole():
    """Two thousand passes at most; edges of chunks rounded down, so that none lacks and none is counted twice."""
    assert [_lanes.passes_for(copy, one) for copy, one in ((1.0, 1e-9), (2.0, 1e-3), (1.0, 0.0))] == [2000, 2000, 2000]
    assert _lanes.passes_for(1e-6, 0.0) == 1000  # no pass takes less than a nanosecond
    assert _lanes._slices(10, 4) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    touched = []
    passes = _lanes.Passes(touched.append, 3)
    passes("chunk")
    passes.fit(0.5, 0.3)  # of a tenth of a second each
    assert (touched, passes.count) == (["chunk"] * 3, 5)


def test_both_arrangements_are_measured_with_half_of_the_time(monkeypatch):
    """One copy and one compute in turn, then chunks; where the device is no CUDA device, on the CPU."""
    asked, done = [], []
    lanes = _lanes.Lanes(lambda: done.append("copy"), lambda: done.append("compute"), lambda: done.append("chunked"), None)
    monkeypatch.setattr(_overlap.devices, "find", lambda name: devices.Device("mps"))
    monkeypatch.setattr(_overlap, "host_lanes", lambda *given: asked.append(given) or lanes)
    monkeypatch.setattr(_overlap.timing, "measure", lambda fn, **options: fn() or asked.append(options) or len(asked))
    assert transfer.measure_overlap(2**20, 4) == (2, 3)
    assert done == ["copy", "compute", "chunked"]
    cpu = devices.Device("cpu")
    assert asked == [(2**20, 4, None), *(
        {"device": cpu, "deadline": 1.0, "nbytes": 2**20, "label": f"overlap of 1.00 MiB in 4 chunks: {words}"}
        for words in ("one after the other", "at the same time")
    )]  # fmt: skip
    with pytest.raises(InputError, match="5 chunks of 16 bytes were asked for; expected a whole number from 1, with at least 4 bytes each"):
        transfer.measure_overlap(16, 5)
    assert transfer.pipeline_seconds(16, 4, LINK, 0.0) > 0
    for seconds in (-1e-9, 1e9, math.inf):
        with pytest.raises(InputError, match="launch_seconds is"):
            transfer.pipeline_seconds(16, 4, LINK, 0.0, launch_seconds=seconds)


def test_the_edges_of_seconds_and_deadlines():
    """No time at all is a time, and so is anything under 1e9 s; a deadline is above nothing and under a million seconds."""
    assert [_overlap._check_seconds("overlap", "x", value) for value in (0, 999_999_999)] == [0.0, 999_999_999.0]
    with pytest.raises(InputError, match=r"^overlap: x is 1000000000\.0; expected seconds, 0 or more"):
        _overlap._check_seconds("overlap", "x", 1e9)
    for call, name in ((transfer.sweep, "sweep"), (functools.partial(transfer.break_even, "matmul"), "break_even")):
        for wrong in (0, 1e6):
            with pytest.raises(InputError, match=rf"^{name}: deadline is {wrong}; expected seconds, more than 0"):
                call(deadline=wrong, stop=lambda: True)


def test_times_of_the_threads_count_from_the_begin_of_the_run(monkeypatch):
    """A clock that shows a million at first and goes on by one with each look: every bar lies within the looks of its run."""
    looks = itertools.count(1_000_000)
    monkeypatch.setattr(_lanes, "time", types.SimpleNamespace(perf_counter=lambda: float(next(looks))))
    lanes = _lanes.host_lanes(4 * 64, 4, lambda x: None)
    assert lanes.copy() == 1.0
    seconds, spans = lanes.chunked()
    assert [(s.lane, s.chunk) for s in spans] == [(lane, i) for lane in ("copy", "compute") for i in range(4)]
    assert all(1 <= s.start_seconds < s.end_seconds <= 16 for s in spans)  # two looks a bar, after the one at the begin
    assert seconds == spans[-1].end_seconds == 16  # the last chunk's work ends last


def test_each_arrangement_runs_as_often_as_the_page_says():
    """One turn is thrown away, and seven are kept; in each a copy, a compute, and the chunks."""
    lanes, asked = _scripted(1)
    seen = []
    _overlap._trials(lanes, lambda fraction, text: seen.append((round(fraction * 7, 9), text)), None)
    assert asked == ["copy", "compute", "chunked"] * 8
    assert seen == [*((i, f"run {i + 1} of 7") for i in range(7)), (7, "done")]


def test_a_stop_in_the_first_series_sizes_nothing_anew():
    """Six runs of 62 passes, far from the copy's length, stay what they are: nobody waits for seven more."""
    lanes, asked = _scripted(62)
    answers = iter([False] * 6 + [True])
    assert _overlap._trials(lanes, None, lambda: next(answers)).compute == pytest.approx([62e-3] * 6)
    assert (lanes.work.count, asked.count("chunked")) == (62, 7)


def test_work_of_ones_own_is_never_sized():
    """Of a function that the caller gave there is one length, however far from the copy's."""
    lanes, asked = _scripted(62)
    _overlap._trials(dataclasses.replace(lanes, work=lambda x: None), None, None)
    assert asked.count("chunked") == 8


def test_the_run_with_the_median_time_is_the_one_that_is_drawn():
    """Of seven runs in chunks the fourth by its time, with its own timeline; copy and compute by their own medians."""
    order = [5, 1, 7, 3, 6, 2, 4]
    chunked = [(k / 8, [Span("copy", k, 0.0, 1.0), Span("compute", k, 0.0, 1.0)]) for k in order]
    trials = _overlap._Trials([k / 4 for k in order], [k / 2 for k in order], chunked)
    o = _overlap._result(devices.find("cpu"), 8, 2, trials)
    assert (o.copy_seconds, o.compute_seconds, o.seconds) == (1.0, 2.0, 0.5)
    assert [s.chunk for s in o.timeline] == [4, 4]
    assert (o.evidence.samples, o.device, o.nbytes, o.chunks) == (7, devices.find("cpu").name, 8, 2)
    assert trials.gains == [k * 5 / 8 for k in range(1, 8)]


def _doubted(gains, seconds=3.0, compute=1.0, overlapped=True):
    """The codes of the doubts about runs in chunks beside a copy of 2 s."""
    return [note.code for note in _overlap._doubts(2.0, compute, seconds, gains, overlapped)]


def test_the_edges_of_doubt():
    """By hand: of 1 s possible the runs may disagree by half a second, or by the gain; an end is left out from five runs on."""
    assert _doubted([-0.25, 0.25]) == []
    assert _doubted([-0.25, 0.27]) == ["unstable"]
    assert _doubted([0.0, 0.75], seconds=2.25) == []  # a gain of 0.75
    assert _doubted([0.0, 0.8], seconds=2.25) == ["unstable"]
    assert _doubted([0.0, 0.8], seconds=3.75) == ["unstable"]  # a loss of 0.75
    assert _doubted([0.0, 0.75], seconds=3.75) == []
    assert _doubted([-9.0, 0.0, 0.0, 0.0, 9.0]) == []
    assert _doubted([-9.0, 0.0, 0.0, 9.0]) == ["unstable"]
    assert _doubted([-0.25, 0.27], overlapped=False) == []
    assert _doubted([0.0], compute=0.0, seconds=1.0) == []  # where nothing is computed there is nothing to gain
    sentence = _overlap._doubts(1.0, 2.0, 1.5, [0.0, 2.0], True)[1].sentence
    assert "from 2.00 s less to 0 s more than one after the other" in sentence
    assert "less than the compute alone with 2.00 s" in _overlap._doubts(1.0, 2.0, 1.5, [0.0], True)[0].sentence


def test_a_cuda_device_has_two_streams_and_its_own_room(monkeypatch):
    """Bytes and chunks reach the streams in this order, and the room is asked for on both sides of the link."""
    asked, gpu = [], devices.Device("cuda")
    monkeypatch.setattr(devices.Device, "name", property(lambda self: "A GPU"))
    monkeypatch.setattr(_overlap.devices, "find", lambda name: gpu)
    monkeypatch.setattr(_overlap, "check_room", lambda *given: asked.append(given))
    monkeypatch.setattr(_overlap, "gpu_lanes", lambda *given: asked.append(given) or "lanes")
    monkeypatch.setattr(_overlap, "host_lanes", lambda *given: asked.append(given) or "lanes")
    assert _overlap._lanes("f", 4096, 8, None, "cuda") == (gpu, "lanes")
    monkeypatch.setattr(_overlap.devices, "find", lambda name: devices.Device("mps"))
    cpu = devices.Device("cpu")
    assert _overlap._lanes("f", 4096, 8, None, "mps") == (cpu, "lanes")
    assert asked == [("f", gpu, "to_device", 4096), (4096, 8, None, gpu), ("f", cpu, "host", 4096), (4096, 8, None)]


def test_work_that_is_no_function_is_refused():
    """In one sentence, as what listens and what stops are."""
    with pytest.raises(InputError, match=r"^overlap: work=3; expected a function of one chunk\. Leave it out for the default work\.$"):
        transfer.overlap(2**10, 2, work=3, device="cpu")
    for name in ("progress", "stop"):
        with pytest.raises(InputError, match=rf"^overlap: {name}"):
            transfer.overlap(2**10, 2, device="cpu", **{name: 3})
