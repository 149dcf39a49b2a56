"""Overlap: the pipeline by hand, what counts as overlap, and the threads of a CPU."""

import itertools
from typing import Any

import numpy as np
import pytest
from gpulab import transfer
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Evidence
from gpulab.transfer import Overlap, Span
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import lines, private_turns  # noqa: F401

LINK = transfer.link("pcie4", latency_seconds=1e-3, bandwidth_bytes_per_second=1e6)


def test_a_modelled_pipeline_by_hand(approved: Any) -> None:
    """A compute starts when its chunk has arrived; the ratio is the share of the possible gain.

    4 MB in 4 chunks at 1 ms and 1 MB/s: copies end at 1.001 k s. The last compute of 0.5 s ends at
    4.504 s, so 6.001 - 4.504 s are gained of the possible 2 s.
    """
    o = transfer.overlap(4_000_000, 4, link=LINK, compute_seconds=2.0)
    assert (o.seconds, o.serial_seconds, o.ideal_seconds) == pytest.approx((4.504, 6.001, 4.001))
    assert (o.ratio, o.together_seconds) == pytest.approx(((6.001 - 4.504) / 2.0, 1.5))
    spans = {(s.lane, s.chunk): (s.start_seconds, s.end_seconds) for s in o.timeline}
    for k in range(4):
        assert spans["copy", k] == pytest.approx((1.001 * k, 1.001 * (k + 1)))
        assert spans["compute", k] == pytest.approx((1.001 * (k + 1), 1.001 * (k + 1) + 0.5))
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


@given(st.integers(256, 10**9), st.integers(1, 64), st.floats(0, 100))
def test_formula_and_timeline_agree(nbytes: int, chunks: int, compute: float) -> None:
    """The closed form and the recurrence that draws the timeline give the same end."""
    o = transfer.overlap(nbytes, chunks, link=LINK, compute_seconds=compute)
    copy, work = LINK.seconds(nbytes / chunks), compute / chunks
    assert copy + (chunks - 1) * max(copy, work) + work == pytest.approx(o.seconds)
    assert o.ideal_seconds <= o.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "share"),
    [(3.004, "0%"), (2.996, "0%"), (2.5, "50%"), (3.5, "-50%"), (1.99, "101%")],
)
def test_no_gain_is_0_percent_from_either_side(seconds: float, share: str) -> None:
    """2 s and 1 s in sequence take 3 s: slightly more or less is "0%", never "-0%"."""
    spans = (Span("copy", 0, 0.0, 1.0), Span("copy", 1, 1.0, 2.0), Span("compute", 0, 0.5, 1.5))
    o = Overlap("cpu", 8, 2, 2.0, 1.0, seconds, spans, (), Evidence.measured("cpu"))
    assert (o.ratio_text, o.together_seconds) == (share, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("passes", "codes"), [([2.0], ["no-overlap"]), ([2.0, 0.5], ["implausible", "no-overlap"])]
)
def test_lanes_that_never_meet_are_noted(
    monkeypatch: pytest.MonkeyPatch, passes: list[float], codes: list[str]
) -> None:
    """A copy of 1 s that ends before work of 2 s begins gains nothing; 0.5 s is implausible."""
    now, works = [0.0], itertools.cycle(passes)

    def copyto(target: np.ndarray, source: np.ndarray) -> None:
        now[0] += 1.0

    def work(chunk: np.ndarray) -> None:
        now[0] += next(works)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(np, "copyto", copyto)
    o = transfer.overlap(4096, 1, work=work, device="cpu")
    assert [(note.code, "compute alone" in note.sentence) for note in o.notes] == [
        (code, code == "implausible") for code in codes
    ]
    assert (o.copy_seconds, o.compute_seconds, o.evidence.samples) == pytest.approx((1.0, 2.0, 7))
    assert (o.ratio_text == "0%") == (len(codes) == 1)


def test_threads_copy_each_chunk_before_it_is_computed() -> None:
    """Each chunk arrives complete, once per run; chunks need not divide the array."""
    seen: list[np.ndarray] = []
    o = transfer.overlap(4 * 1003, 7, work=lambda x: seen.append(x.copy()), device="cpu")
    assert all((x == 1).all() for x in seen)
    alone, *parts = [len(x) for x in seen[:8]]
    assert (alone, sum(parts), max(parts) - min(parts)) == (1003, 1003, 1)
    assert sorted(s.chunk for s in o.timeline) == sorted([*range(7)] * 2)
    ends = {s.chunk: s.end_seconds for s in o.timeline if s.lane == "copy"}
    starts = {s.chunk: s.start_seconds for s in o.timeline if s.lane == "compute"}
    assert all(starts[k] >= ends[k] for k in range(7))


def test_a_stop_returns_what_was_reached() -> None:
    """A stop after two runs returns their median with a note; a stop at once is an error."""
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
        {"nbytes": 2**50},
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
    """Invalid sizes and options are refused before anything runs or is allocated."""
    with pytest.raises((InputError, OutOfMemoryError)):
        transfer.overlap(**{"device": "cpu", **options})


@pytest.mark.gpu
def test_overlap_on_a_real_gpu() -> None:
    """Two streams overlap copies with work; work that the host waits for does not."""
    assert "no-overlap" not in [note.code for note in transfer.overlap(256 * 2**20, 8).notes]
    waiting = transfer.overlap(2**20, 4, work=lambda x: x.sum().item())
    assert "no-overlap" in [note.code for note in waiting.notes]
