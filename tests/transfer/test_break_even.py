"""Break-even: where the accelerator's line crosses the CPU's, and where that line comes from.

The work of both sides takes scripted time on the test's clock; the search is the package's own.
"""

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import devices, recordings, transfer, workloads
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Note
from gpulab.transfer import BreakEven

from fake_machine import Clock, lines, play_gpus, play_link, private_turns  # noqa: F401


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the machine's clock with one that only the work advances."""
    clock = Clock(now=time.perf_counter())
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def _of_clock(function: Any, name: str = "add", **changes: Any) -> workloads.WorkloadSpec:
    """Return a workload that runs ``function``; as it has no bytes, no ceiling is measured."""
    spec = workloads.get(name)
    return dataclasses.replace(spec, function=function, **{"nbytes": lambda w: 0.0, **changes})


def _work(clock: Clock, seconds: Any, **changes: Any) -> workloads.WorkloadSpec:
    """Return the catalogue's addition, whose call on n elements takes ``seconds(n)``."""

    def add(a: Any, b: Any) -> Any:
        clock.now += seconds(a.numel())
        return a + b

    return _of_clock(add, **changes)


def _shown(b: BreakEven) -> str:
    """Return the answer and its notes, without the notes that a busy machine adds."""
    calm = tuple(n for n in b.notes if n.code in ("skipped", "stopped", "disagree"))
    return lines(dataclasses.replace(b, notes=calm))


def _recorded(seconds: dict[int, float | None], **changes: Any) -> recordings.Recording:
    """Return a recording of additions that take these seconds with both copies."""

    def timing(with_copies: float | None) -> recordings.Timing:
        one = np.array([1e-5])
        return recordings.Timing(
            one, 1, 1e-5, None, 1e-4, 1e-6, with_copies, 1, None, None, **changes
        )

    entries = [
        recordings.Entry("catalogue", {"workload": "add", "n": n, "dtype": "float32"}, timing(s))
        for n, s in seconds.items()
    ]
    return dataclasses.replace(recordings.load("nvidia-h200"), entries=tuple(entries))


@pytest.mark.parametrize(
    ("device", "size"),
    [
        ([9, 9, 9, 9], None),  # never
        ([9, 1, 9, 9], None),  # a win in between is no break-even
        ([0.5, 0.5, 0.5, 0.5], 16),  # always: at the smallest size tried or below
        ([2.0001, 2.0001, 2, 2], 32),  # the times are equal at 32
        ([0.5, 4, 4, 4], 64),  # a win by noise at a small size does not count
        ([3, 3, 3, 3], 48),  # by hand: log(1.5) / log(2) of the way from 32 to 64
        ([4, 8, 8, 4], 91),  # half of the way from 64 to 128, on log scales
    ],
)
def test_the_size_is_where_the_lines_cross_for_the_last_time(
    clock: Clock, device: list[float], size: int | None, approved: Any
) -> None:
    """Lines are straight on log scales between two sizes tried; the answer is also in words.

    The CPU takes 1, 2, 4 and 8 ms for 16, 32, 64 and 128 elements.
    """
    sizes = [16, 32, 64, 128]
    times = {n: 1e-3 * ms for n, ms in zip(sizes, device, strict=True)}
    spec = _work(clock, lambda n: 1e-3 * n / 16)
    b = transfer.break_even(spec, sizes[::-1], recording=_recorded(times, notes=()), deadline=8)
    assert [r.n for r in b.rows] == sizes
    assert [1e3 * r.host_seconds for r in b.rows] == pytest.approx([1, 2, 4, 8])
    assert [1e3 * r.device_seconds for r in b.rows] == pytest.approx(device)
    assert (b.size, b.reason) == (size, "found" if size else "never in this range")
    assert (b.evidence.badge, b.host_evidence.badge) == ("RECORDED", "MEASURED")
    assert _shown(b) == approved


@pytest.mark.slow  # measures this machine's ceilings, before the clock is replaced
def test_a_modelled_accelerator_by_hand(approved: Any, request: pytest.FixtureRequest) -> None:
    """Rows and the break-even size follow from the formulas of link and processor.

    Three copies of 4 n bytes at 10 us and 24 GB/s, then 2.5 us and 12 n bytes at 3.77 TB/s, against
    12 n bytes at 1 GB/s on the CPU.
    """
    devices.ceilings("cpu")
    clock = request.getfixturevalue("clock")
    link = transfer.link("pcie4", 10e-6, 24e9)
    spec = _work(clock, lambda n: 12 * n / 1e9, nbytes=lambda w: 12.0 * w.n)
    b = transfer.break_even(spec, [2**k for k in range(6, 16)], link=link, deadline=0.4)
    assert b.size == pytest.approx(32.5e-6 / (12 / 1e9 - 12 / 24e9 - 12 / 3.77e12), rel=0.1)
    for row in b.rows:
        there = 3 * 10e-6 + 12 * row.n / 24e9 + 2.5e-6 + 12 * row.n / 3.77e12
        assert row.device_seconds == pytest.approx(there)
        # Seconds since the machine was started round to some 1e-12 s.
        here = pytest.approx(12 * row.n / 1e9, rel=1e-4)
        assert (row.host_seconds, row.copied_bytes) == (here, 12 * row.n)
        assert row.speedup == row.host_seconds / row.device_seconds
    assert f"{_shown(b)}{b.evidence.sentence}" == approved
    slower = transfer.break_even(spec, [2**15], processor="nvidia-h200", deadline=0.4)
    assert slower.rows[0].device_seconds == pytest.approx(b.rows[-1].device_seconds, rel=0.2)


def test_an_accelerator_of_this_machine_is_measured(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time includes the copies both ways; a wrong result gives a note instead of a row."""
    play_gpus(monkeypatch, synchronize=clock.finish)
    play_link(monkeypatch, clock)
    there: dict[int, Any] = {}  # keeps the copies alive, so that their ids are not reused

    def to(tensor: Any, *args: Any, **options: Any) -> Any:
        if not (args and str(args[0]).startswith("cuda")):
            return tensor
        clock.now += 1e-3
        copy = tensor.detach().clone()
        there[id(copy)] = copy
        return copy

    def add(a: Any, b: Any) -> Any:
        clock.now += (1e-3 if id(a) in there else 1e-2) * a.numel() / 16
        return a + b

    monkeypatch.setattr(torch.Tensor, "to", to)
    spec = _of_clock(add)
    b = transfer.break_even(spec, [16, 32], deadline=10.0)
    assert [r.host_seconds for r in b.rows] == pytest.approx([1e-2, 2e-2])
    # two copies there, the call of 1 or 2 ms, and the copy back over the link
    assert [r.device_seconds for r in b.rows] == pytest.approx([3.01e-3, 4.01e-3], rel=1e-4)
    assert (b.reason, b.size) == ("found", 16)
    assert (b.evidence.badge, b.evidence.device) == ("MEASURED", "NVIDIA H200")
    wrong = dataclasses.replace(spec, difference=lambda w, result, inputs: 0.5)
    b = transfer.break_even(wrong, [16], deadline=10.0)
    assert (b.rows, [note.code for note in b.notes]) == ((), ["disagree"])
    assert " named " in transfer.break_even(spec, [16], device="cpu").sentence  # there is one


def test_what_is_left_out_is_noted(clock: Clock, approved: Any) -> None:
    """Sizes that are not recorded, do not fit, or would take longer than the deadline.

    By hand: after a call of 1 s at 16, one of 64 takes 4 s, and three of these do not fit into 9.
    """
    spec = _work(clock, lambda n: n / 16)
    gaps = _recorded({16: 0.5, 64: None}, notes=())
    shown = [
        transfer.break_even(spec, [16, 32, 64], recording=gaps, deadline=800),
        transfer.break_even(spec, [16, 64, 128], link="pcie4", dtype="float64", deadline=9.0),
    ]
    assert "\n".join(map(_shown, shown)) == approved
    usual = _of_clock(clock.takes(1.0, lambda x, *rest: x), "linear")
    other = transfer.break_even(usual, [4], recording="nvidia-h200", features=64, deadline=80)
    assert (other.rows, other.notes[-1].code) == ((), "skipped")  # other parameters
    assert len(transfer.break_even(usual, [4], recording="nvidia-h200", deadline=80).rows) == 1
    huge = transfer.break_even(spec, [16, 2**39], link="pcie4", deadline=80000)
    assert ([r.n for r in huge.rows], huge.notes[-1].code) == ([16], "skipped")


def test_disturbed_times_are_named_once_with_their_sizes(clock: Clock) -> None:
    """Notes of the recording and of the CPU name the sizes that have them."""
    hot = _recorded({16: 0.5, 32: 0.5}, notes=(Note("throttled", "it was hot. Measure again."),))
    b = transfer.break_even(_work(clock, lambda n: 10.0), [16, 32], recording=hot, deadline=160)
    of = {note.code: note.sentence.split() for note in b.notes if "n = 16, 32" in note.sentence}
    assert [of[code][1] for code in ("throttled", "no-interval")] == ["accelerator's", "CPU's"]
    assert of["throttled"][-3:] == ["it", "was", "hot."]  # the advice to measure again is left out
    assert b.caption().startswith("RECORDED · ")
    assert " · the CPU's side: MEASURED on " in b.caption()


def test_a_stop_keeps_the_sizes_reached(clock: Clock) -> None:
    """A stop at the third size keeps the answer of the first two; at the first it is an error."""
    seen: list[Any] = []
    kept = 2

    def add(a: Any, b: Any) -> Any:
        clock.now += 1.0
        return a + b

    options: dict[str, Any] = {
        "link": "pcie4",
        "deadline": 800,
        "progress": lambda *p: seen.append(p),
        "stop": lambda: len(seen) > kept,
    }
    b = transfer.break_even(_of_clock(add), [16, 32, 64, 128], **options)
    assert ([r.n for r in b.rows], b.notes[0].code) == ([16, 32], "stopped")
    assert [fraction for fraction, _ in seen] == pytest.approx([0, 1 / 4, 2 / 4, 1])
    seen.clear()
    slow = {**options, "link": transfer.link("pcie4", 100.0, 24e9)}
    assert transfer.break_even(_of_clock(add), [16, 32, 64], **slow).reason == "not found so far"
    kept = 0
    with pytest.raises(StoppedError):
        transfer.break_even(_of_clock(add), [16], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": []},
        {"sizes": "16"},
        {"sizes": 16},
        {"sizes": [0]},
        {"sizes": [1.5]},
        {"dtype": "int3"},
        {"deadline": 0},
        {"link": "pci"},
        {"processor": "x"},
        {"rows": 5},
        {"recording": "nvidia-h200", "link": "pcie4"},
        {"workload": "addd"},
    ],
    ids=str,
)
def test_what_cannot_be_searched_is_refused(options: dict[str, Any]) -> None:
    """Invalid sizes, names and options are refused before anything runs."""
    with pytest.raises(InputError):
        transfer.break_even(options.pop("workload", "add"), **options)


@pytest.mark.slow
def test_training_steps_copy_their_batch_only(clock: Clock) -> None:
    """The model is not copied: only images, labels and the loss are (by hand, for one image)."""
    step = clock.takes(1.0, lambda *given: torch.zeros(()))
    spec = _of_clock(step, "cnn_training_step")
    arrays = [x for x in spec(n=1).inputs("cpu") if isinstance(x, torch.Tensor)]
    b = transfer.break_even(spec, [1], link="pcie4", deadline=80)
    assert b.rows[0].copied_bytes == sum(a.nbytes for a in arrays) + 4 > 100
