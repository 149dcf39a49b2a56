"""Overlap: the pipeline by hand, what counts as overlap, and the threads of a CPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gpulab import transfer
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.transfer import Overlap, Span
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import lines, private_turns  # noqa: F401

LINK = transfer.link("pcie4", latency_seconds=1e-3, bandwidth_bytes_per_second=1e6)


def test_a_modelled_pipeline_by_hand(approved: Any) -> None:
    """4 MB in 4 chunks over 1 MB/s and 1 ms: copies end at 1.001 k s, each compute of 0.5 s starts
    as its chunk arrives, so all is over at 4.504 s; of 2 s to gain, 6.001 - 4.504 are gained.
    """
    o = transfer.overlap(4_000_000, 4, link=LINK, compute_seconds=2.0)
    assert (o.seconds, o.serial_seconds, o.ideal_seconds) == pytest.approx((4.504, 6.001, 4.001))
    assert (o.ratio, o.together_seconds) == pytest.approx(((6.001 - 4.504) / 2.0, 1.5))
    spans = [(s.start_seconds, s.end_seconds) for s in o.timeline if s.lane == "copy"]
    assert np.array(spans) == pytest.approx(
        np.array([[1.001 * k, 1.001 * (k + 1)] for k in range(4)])
    )
    spans = [(s.start_seconds, s.end_seconds) for s in o.timeline if s.lane == "compute"]
    assert np.array(spans) == pytest.approx(
        np.array([[1.001 * k, 1.001 * k + 0.5] for k in range(1, 5)])
    )
    slow = transfer.overlap(4_000_000, 4, link=LINK, compute_seconds=8.0)
    assert slow.seconds == pytest.approx(1.001 + 8.0)  # computes of 2 s follow each other
    shown = [
        o,
        slow,
        transfer.overlap(2**20, 1, link=LINK),
        transfer.overlap(64 * 2**20, link="pcie4"),
        transfer.overlap(1000, 2, link=LINK, compute_seconds=0),
    ]
    evidence = [one.evidence.sentence for one in (o, shown[3])]
    assert "\n".join([lines(*shown), *evidence]) == approved


@given(st.integers(4, 10**9), st.integers(1, 64), st.floats(0, 100))
def test_formula_and_timeline_agree(nbytes: int, chunks: int, compute: float) -> None:
    """The closed form and the recurrence that draws the timeline give the same end."""
    if chunks > nbytes // 4:
        return
    o = transfer.overlap(nbytes, chunks, link=LINK, compute_seconds=compute)
    assert transfer.pipeline_seconds(nbytes, chunks, LINK, compute) == pytest.approx(o.seconds)
    assert o.ideal_seconds <= o.seconds * (1 + 1e-9)
    assert Overlap.from_dict(o.to_dict()) == o


def test_launches_count_for_each_chunk() -> None:
    """With a launch of 1 ms a chunk, ten chunks whose compute is the slower lane pay ten."""
    free = transfer.pipeline_seconds(1000, 10, LINK, 1.0)
    launched = transfer.pipeline_seconds(1000, 10, LINK, 1.0, launch_seconds=1e-3)
    assert launched == pytest.approx(free + 10e-3)


@pytest.mark.parametrize(
    ("seconds", "share"),
    [(3.004, "0%"), (2.996, "0%"), (2.5, "50%"), (3.5, "-50%"), (1.99, "101%")],
)
def test_no_gain_is_0_percent_from_either_side(seconds: float, share: str) -> None:
    """2 s and 1 s one after the other take 3: a hair more or less is "0%", never "-0%"."""
    o = Overlap("cpu", 8, 2, 2.0, 1.0, seconds, (), (), Evidence.measured("cpu"))
    assert o.ratio_text == share
    spans = (Span("copy", 0, 0.0, 1.0), Span("copy", 1, 1.0, 2.0), Span("compute", 0, 0.5, 1.5))
    timed = Overlap("cpu", 8, 2, 2.0, 1.0, seconds, spans, (), Evidence.measured("cpu"))
    assert timed.together_seconds == pytest.approx(1.0)


def _scripted(monkeypatch: pytest.MonkeyPatch, copies: list[float], passes: list[float]) -> Any:
    """Let each copy on the CPU take the next of these seconds, and each pass of the default work.

    The copy thread is joined before any compute begins, so that the two lanes never meet.
    """
    times = {"copy": itertools.cycle(copies), "work": itertools.cycle(passes)}
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        now[0] += next(times["copy"])

    def work(chunk: np.ndarray) -> None:
        now[0] += next(times["work"])

    monkeypatch.setattr(np, "copyto", copyto)
    return work


def test_lanes_that_never_meet_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted on one clock, a copy of 1 s and a work of 2 s: no gain, and the note no-overlap."""
    work = _scripted(monkeypatch, [1.0], [2.0])
    o = transfer.overlap(4096, 1, work=work, device="cpu")
    assert (o.copy_seconds, o.compute_seconds, o.seconds) == pytest.approx((1.0, 2.0, 3.0))
    assert (o.ratio_text, [note.code for note in o.notes]) == ("0%", ["no-overlap"])
    assert (o.evidence.samples, o.evidence.badge) == (7, "MEASURED")


def test_a_gain_that_cannot_be_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a work takes 2 s, and in its chunk half a second: less than the longer lane."""
    work = _scripted(monkeypatch, [1.0], [2.0, 0.5])
    o = transfer.overlap(4096, 1, work=work, device="cpu")
    assert [note.code for note in o.notes] == ["implausible", "no-overlap"]


def test_threads_copy_each_chunk_before_it_is_computed() -> None:
    """Each chunk arrives complete, once a run; chunks need not divide the array."""
    seen: list[np.ndarray] = []
    o = transfer.overlap(4 * 1003, 7, work=lambda x: seen.append(x.copy()), device="cpu")
    assert all((x == 1).all() for x in seen)
    assert len(seen[0]) == 1003  # the work alone, in one go
    parts = [len(x) for x in seen[1:8]]
    assert ((sum(parts), max(parts) - min(parts)), len(o.timeline)) == ((1003, 1), 14)
    ends = {s.chunk: s.end_seconds for s in o.timeline if s.lane == "copy"}
    computes = [s for s in o.timeline if s.lane == "compute"]
    assert [s.chunk for s in computes] == [*range(7)]
    assert all(s.start_seconds >= ends[s.chunk] - 1e-4 for s in computes)


def test_a_stop_returns_what_was_reached() -> None:
    """After two runs their median with a note; at once there is nothing to return."""
    asked = itertools.count(1)
    seen: list[float] = []
    o = transfer.overlap(
        2**16,
        4,
        device="cpu",
        work=len,
        stop=lambda: next(asked) > 2,
        progress=lambda fraction, text: seen.append(fraction),
    )
    assert (o.evidence.samples, o.notes[-1].code) == (2, "stopped")
    assert seen == [0.0, pytest.approx(1 / 7), 1.0]
    with pytest.raises(StoppedError):
        transfer.overlap(2**16, 4, device="cpu", work=len, stop=lambda: True)


@pytest.mark.parametrize(
    "options",
    [
        {"nbytes": 0},
        {"nbytes": 1.5},
        {"chunks": 0},
        {"chunks": True},
        {"nbytes": 100, "chunks": 26},
        {"link": "pci"},
        {"compute_seconds": 1.0},
        {"link": "pcie4", "compute_seconds": -1},
        {"work": 5},
    ],
    ids=str,
)
def test_what_cannot_be_overlapped_is_refused(options: dict[str, Any]) -> None:
    """Before anything runs or is allocated."""
    with pytest.raises(InputError):
        transfer.overlap(**{"device": "cpu", **options})
    with pytest.raises(OutOfMemoryError):
        transfer.overlap(2**50, device="cpu")
    with pytest.raises(InputError):
        transfer.pipeline_seconds(100, 2, LINK, float("nan"))


@pytest.mark.gpu
def test_overlap_on_a_real_gpu() -> None:
    """With pinned memory and two streams 256 MiB overlap; work that the host waits for does not."""
    o = transfer.overlap(256 * 2**20, 8)
    assert o.ratio > 0.25
    assert not any(isinstance(note, Note) and note.code == "no-overlap" for note in o.notes)
    waiting = transfer.overlap(2**20, 4, work=lambda x: x.sum().item())
    assert [note.code for note in waiting.notes if note.code == "no-overlap"]
