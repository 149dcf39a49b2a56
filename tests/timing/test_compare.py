"""gl.compare: results first, then turns, then the speed-up."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import operator
import re

import numpy as np
import pytest
import torch

import gpulab as gl
from gpulab import workloads
from gpulab.devices import Device
from gpulab.devices.conditions import Readings
from gpulab.errors import DeviceError, InputError, MeasurementError, OutOfMemoryError, StoppedError
from gpulab.timing import Comparison, _agreement, _compare, _contenders, _job, _work


class Clock:
    """A clock that moves only when a compared function says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _taking(clock: Clock, seconds: float, result=lambda x: 2.0 * x, order: list | None = None, name: str = ""):
    def work(x):
        clock.now += seconds
        if order is not None:
            order.append(name)
        return result(x)

    return work


@pytest.fixture(autouse=True)
def _private_turns(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


X = np.linspace(1.0, 2.0, 50)


def test_speedup_is_baseline_over_other():
    """Three milliseconds against one: three times, with an interval, the baseline itself without."""
    clock = Clock()
    c = gl.compare({"slow": _taking(clock, 3e-3), "fast": _taking(clock, 1e-3)}, X, clock=clock)
    assert c.speedup == pytest.approx(3.0)
    assert c.speedup_interval == pytest.approx((3.0, 3.0))
    assert [row.name for row in c.rows] == ["slow", "fast"]
    assert c.rows[0].speedup is None
    assert c.rows[1].speedup == pytest.approx(3.0)
    assert c.max_relative_difference == 0.0


def test_speedup_lies_inside_its_own_interval_when_pairs_tell_another_story():
    """Pairs (20, 2), (10, 1), (10, 2) at 45, 45, 10 %: each pair's ratio is mostly 10, the medians' ratio is 10 / 2 = 5 (by hand)."""
    pairs = np.random.default_rng(1).permutation(np.repeat([[20.0, 2.0], [10.0, 1.0], [10.0, 2.0]], [180, 180, 40], axis=0))
    clock = Clock()
    one = gl.measure(_taking(clock, 1e-3), X, clock=clock, deadline=0.1)
    baseline, other = (dataclasses.replace(one, samples_seconds=column, median_seconds=float(np.median(column))) for column in pairs.T)
    speedup, interval = _compare._speedup(baseline, other)
    assert speedup == 5.0
    assert interval[0] <= 5.0 <= interval[1]


def test_fastest_of_the_others_counts():
    """The speed-up of the whole is that of the fastest other row."""
    clock = Clock()
    c = gl.compare({name: _taking(clock, ms * 1e-3) for name, ms in (("a", 4), ("b", 2), ("c", 1), ("d", 8))}, X, clock=clock)
    assert c.speedup == pytest.approx(4.0)
    assert [row.speedup for row in c.rows] == [None, pytest.approx(2.0), pytest.approx(4.0), pytest.approx(0.5)]


def test_rows_take_turns_call_by_call():
    """After the warm-up no row runs twice in a row."""
    clock, order = Clock(), []
    gl.compare({name: _taking(clock, 1e-3, order=order, name=name) for name in "ab"}, X, clock=clock)
    sampled = order[len(order) // 3 :]
    assert len(sampled) > 100
    assert all(one != other for one, other in itertools.pairwise(sampled))


def test_disagreement_reports_no_speedup():
    """A fast wrong answer is no speed-up: the note says who and by how much."""
    clock = Clock()
    wrong = _taking(clock, 1e-3, lambda x: 2.2 * x)
    c = gl.compare({"right": _taking(clock, 3e-3), "wrong": wrong}, X, clock=clock)
    assert c.speedup is None
    assert c.rows[1].speedup is None
    assert c.rows[1].max_relative_difference == pytest.approx(0.1)
    (note,) = (note for note in c.notes if note.code == "disagree")
    assert "wrong" in note.sentence
    assert gl.compare({"right": _taking(clock, 3e-3), "wrong": wrong}, X, clock=clock, tolerance=0.2).speedup == pytest.approx(3.0)


def test_wrong_baseline_reports_no_speedup_at_all():
    """The reference is the baseline's function in float64; a baseline that errs in float32 alone is found out."""
    clock = Clock()

    def coarse(x):
        clock.now += 1e-3
        return x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x

    c = gl.compare({"coarse": coarse, "exact": _taking(clock, 1e-3, lambda x: x)}, X.astype(np.float32), clock=clock)
    assert c.speedup is None
    assert c.rows[1].speedup is None
    assert c.rows[0].max_relative_difference > 1e-4
    assert c.rows[1].max_relative_difference < 1e-6


def test_function_that_refuses_float64_is_held_against_the_baseline():
    """Where a float64 run is impossible the rows are compared with each other, and a note says so."""
    clock = Clock()

    def only_float32(x):
        if x.dtype != np.float32:
            raise TypeError("float32 only")
        clock.now += 1e-3
        return x

    c = gl.compare({"a": only_float32, "b": only_float32}, X.astype(np.float32), clock=clock)
    assert c.speedup == pytest.approx(1.0)
    assert any("does not take float64 (TypeError)" in note.sentence for note in c.notes)


def test_function_without_result_says_that_nothing_was_checked():
    """Nothing returned, nothing checked, and that is said."""
    clock = Clock()
    c = gl.compare({"a": _taking(clock, 1e-3, lambda x: None), "b": _taking(clock, 1e-3, lambda x: None)}, X, clock=clock)
    assert c.max_relative_difference is None
    assert any("could not be checked" in note.sentence for note in c.notes)


def test_impossible_row_makes_no_speedup(monkeypatch):
    """A time that physics forbids is not divided by."""
    clock = Clock()
    monkeypatch.setattr(
        _compare._notes, "of_physics", lambda job, seconds: [_agreement.Note("implausible", "too fast.")] if job.label == "b" else []
    )
    c = gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3)}, X, clock=clock)
    assert c.speedup is None
    assert any(note.code == "implausible" for note in c.notes)


def test_catalogue_on_the_cpu_has_one_row_and_says_why():
    """Without an accelerator a workload has one row, no speed-up, agreement with its own reference, and a note what to do."""
    c = gl.compare("matmul", n=64, devices=None if len(gl.devices.available()) == 1 else ["cpu"], deadline=0.1)
    assert len(c.rows) == 1
    assert c.speedup is None
    assert c.rows[0].max_relative_difference <= c.tolerance
    assert c.label == "matmul n=64 float32"
    if len(gl.devices.available()) == 1:
        assert any("no accelerator" in note.sentence for note in c.notes)


def test_workload_object_and_copies():
    """A workload made before is taken as it is; with copies each row has the time with them."""
    c = gl.compare(workloads.get("matmul")(n=64), devices="cpu", transfer=True, deadline=0.1)
    assert c.rows[0].measurement.with_transfer_seconds > 0


def test_training_step_keeps_its_state_out_of_the_check():
    """A workload whose first input is a step object is checked on its first step and then timed with copies of its arrays."""
    c = gl.compare("cnn_training_step", n=4, devices="cpu", deadline=0.2, transfer=True)
    assert c.rows[0].max_relative_difference <= c.tolerance


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: gl.compare("matmull"), InputError, "matmull"),
        (lambda: gl.compare("matmul", n=-1), InputError, "-1"),
        (lambda: gl.compare("matmul", n=0), InputError, "0"),
        (lambda: gl.compare("matmul", dtype="float7"), InputError, "float7"),
        (lambda: gl.compare("matmul", n=2**24), OutOfMemoryError, "fit"),
        (lambda: gl.compare("matmul", deadline=math.nan), InputError, "deadline=nan"),
        (lambda: gl.compare("matmul", tolerance=-1), InputError, "tolerance=-1"),
        (lambda: gl.compare("matmul", devices=[]), InputError, "devices is empty"),
        (lambda: gl.compare("matmul", devices=["cpu", "cpu"]), InputError, "twice"),
        (lambda: gl.compare("matmul", devices=["cpu", "cuda:77"]), DeviceError, "cuda:77"),
        (lambda: gl.compare("matmul", X), InputError, "makes its own inputs"),
        (lambda: gl.compare(np.sort, X, n=100), InputError, "n belong"),
        (lambda: gl.compare(3), InputError, "got an int"),
        (lambda: gl.compare({}), InputError, "mapping"),
        (lambda: gl.compare({"a": 3}, X), InputError, "functions under a label"),
        (lambda: gl.compare({"a": np.sort}, X, devices=["cpu", "cpu"]), InputError, "twice"),
        (lambda: gl.compare(np.sort, X, transfer="yes"), InputError, "compare: transfer='yes'"),
        (lambda: gl.compare(np.sort, X, conditions=5), InputError, "compare: conditions=5"),
        (lambda: gl.compare(np.sort, X, clock=lambda: "now"), InputError, "compare: clock gave a str"),
        (lambda: gl.compare(np.sort, X, progress=5), InputError, "compare: progress=5"),
        (lambda: gl.compare(np.sort, X, stop=5), InputError, "compare: stop=5"),
        (lambda: gl.compare(np.sort, X, devices=5.5), InputError, "got a float"),
        (lambda: gl.compare(np.sort, X, relative_width=1.5), InputError, "compare: relative_width=1.5"),
        (lambda: gl.compare(np.sort, X, deadline=1e9), InputError, "compare: deadline=1000000000.0"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(call, error, says):
    """Whatever is wrong with a request is said before anything runs."""
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value)


def test_error_names_the_row():
    """A function that raises is named, its cause kept."""
    clock = Clock()
    with pytest.raises(MeasurementError, match="broken raised ZeroDivisionError") as caught:
        gl.compare({"fine": _taking(clock, 1e-3), "broken": lambda x: 1 / 0}, X, clock=clock)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_stop():
    """Stopped at once there is nothing to report; stopped later the rows have what they have."""
    clock, asked = Clock(), [0]

    def later() -> bool:
        asked[0] += 1
        return asked[0] > 100

    with pytest.raises(StoppedError):
        gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3)}, X, clock=clock, stop=lambda: True)
    c = gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3)}, X, clock=clock, stop=later)
    assert all(row.measurement.has_note("stopped") for row in c.rows)


def test_comparison_survives_json():
    """A comparison comes back from JSON as it was."""
    clock = Clock()
    c = gl.compare({"a": _taking(clock, 2e-3), "b": _taking(clock, 1e-3)}, X, clock=clock)
    assert Comparison.from_dict(json.loads(json.dumps(c.to_dict()))).to_dict() == c.to_dict()


def test_large_products_are_checked_by_rows():
    """A large product is held against 64 sampled rows in float64; a wrong one among them is found, and how is said."""
    rng = np.random.default_rng(0)
    a, b = rng.random((1100, 1000), dtype=np.float32), rng.random((1000, 1000), dtype=np.float32)
    right = a @ b
    reference = _agreement.of_function(operator.matmul, (a, b), (), right, 0.0)
    assert "64 of its 1100 rows" in reference.notes[0].sentence
    assert reference.difference(right) < 1e-5
    wrong = right.copy()
    wrong[-1] *= 1.01
    assert reference.difference(wrong) > 1e-3
    assert reference.difference(right[:-1]) == math.inf


@pytest.mark.parametrize(
    ("fn", "kind"),
    [(operator.matmul, np.ones), (np.matmul, np.ones), (np.dot, np.ones), (torch.matmul, torch.ones), (torch.mm, torch.ones)],
)
def test_the_libraries_own_products_are_known(fn, kind):
    """Two matrices multiplied by name; other functions, other numbers of arrays and other dimensions are none."""
    assert _agreement._is_product(fn, (kind((2, 3)), kind((3, 2))))
    assert not _agreement._is_product(np.add, (kind((2, 2)), kind((2, 2))))
    assert not _agreement._is_product(fn, (kind((2, 2)), kind((2,))))
    assert not _agreement._is_product(fn, (kind((2, 2)),) * 3)


def test_progress_names_the_rows_and_ends_at_one():
    """As of a measurement: from 0, never back, to 1; each row's first call is told."""
    seen = []
    gl.compare("matmul", n=16, devices="cpu", deadline=0.02, transfer=True, progress=lambda fraction, text: seen.append((fraction, text)))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert any(text.startswith("first call on ") for _, text in seen)


def test_copies_take_half_of_the_deadline_more():
    """Noise that never settles: 1 s of sampling and half a second of copies for each of two rows, on a clock that the calls move."""
    clock, rng = Clock(), np.random.default_rng(0)

    def noisy(x):
        clock.now += 1e-2 * float(np.exp(rng.standard_normal()))
        return 2.0 * x

    gl.compare({"a": noisy, "b": noisy}, X, clock=clock, transfer=True, deadline=1.0, relative_width=1e-4)
    assert 2.9 < clock.now < 3.6
    clock.now = 0.0
    gl.measure(noisy, X, clock=clock, transfer=True, deadline=2.0, relative_width=1e-4)
    assert 2.9 < clock.now < 3.4


def test_the_table_of_a_comparison_by_hand():
    """Three times, the ratio with its interval, the difference and the notes of each row."""
    clock = Clock()
    works = {"slow": _taking(clock, 2**-8), "fast": _taking(clock, 2**-10, lambda x: 2.0 * x + 4e-10)}  # exact in binary
    c = gl.compare(works, X, clock=clock, tolerance=1e-3)
    assert c.table()[1] == [
        ("slow", "3.91 ms [3.91 ms, 3.91 ms]", "3.91 ms", "not asked", "baseline", "0.0e+00", "none"),
        ("fast", "977 us [977 us, 977 us]", "977 us", "not asked", "4.00x [4.00x, 4.00x]", "1.0e-10", "none"),
    ]
    assert repr(c) == "<slow against fast: speed-up 4.00x over slow>"


def test_only_the_first_row_is_called_the_baseline():
    """A row whose speed-up is withheld, since its result is wrong, is no second baseline in the table."""
    clock = Clock()
    works = {"slow": _taking(clock, 2**-8), "wrong": _taking(clock, 2**-10, lambda x: 3.0 * x)}
    shown = [row[4] for row in gl.compare(works, X, clock=clock).table()[1][:2]]
    assert shown == ["baseline", "not reported"]


def test_the_other_rows_calls_are_no_stop():
    """A row that sleeps, as one that waits for a disk or a GPU, is not "the process stood still" in the row that takes turns with it."""
    clock, asleep = Clock(), [0.0]

    def sleeping(x):
        clock.now += 5e-3
        asleep[0] += 5e-3
        return 2.0 * x

    def counters():
        return Readings(seconds=clock.now, own_cpu_seconds=clock.now - asleep[0], run_delay_seconds=0.0)

    works = {"busy": _taking(clock, 1e-3), "sleeping": sleeping}
    c = gl.compare(works, X, clock=clock, conditions=counters, deadline=1.0)
    assert not any(row.measurement.has_note("stalled") for row in c.rows)


@pytest.mark.parametrize(
    ("got", "expected", "difference"),
    [
        ([np.array([1.0, 2.0])], [np.array([1.0, 2.2])], 0.2 / 2.2),
        ([np.array([1.0, np.nan])], [np.array([1.0, 2.0])], math.inf),
        ([np.array([1.0, np.nan])], [np.array([1.0, np.nan])], 0.0),
        ([np.array([1.0])], [np.array([1.0, 2.0])], math.inf),
        ([np.array([1.0])], [], math.inf),
        ([np.array([True])], [np.array([False])], math.inf),
        ([np.array([])], [np.array([])], 0.0),
        ([np.array([0.5])], [np.array([0.0])], 0.5),
        ([np.array([1 + 1j])], [np.array([1 + 0j])], 1.0),
        ([np.uint8([0, 200])], [np.uint8([1, 200])], 1 / 200),  # unsigned numbers do not wrap round
        ([np.uint8([0, 4])], [np.uint8([255, 4])], 1.0),
        ([np.int8([127])], [np.int8([-128])], 255 / 128),
        ([np.array([2**62 + 1])], [np.array([2**62])], 2.0**-62),
        ([np.array(3 * 10**30)], [np.array(3 * 10**30)], 0.0),  # beyond 64 bits NumPy keeps Python's own
        ([np.array(3 * 10**30)], [np.array(4 * 10**30)], 0.25),
        ([np.array(1.5e30)], [np.array(10**30)], 0.5),
        ([np.array([None, 1])], [np.array([None, 1])], 0.0),
        ([np.array([None, 1])], [np.array([None, 2])], math.inf),
        ([np.array([0, 10**400])], [np.array([0, 0])], math.inf),
    ],
)
def test_relative_difference(got, expected, difference):
    """max|a - b| / max|b| by hand; shapes, structures and values that are not finite must match."""
    assert _agreement.relative_difference(got, expected) == pytest.approx(difference)


def test_without_a_call_on_the_cpu_the_float64_runs_time_is_unknown():
    """Two functions of GPU tensors: nobody knows what the CPU would take, and the note says no number."""
    x = np.ones(4)
    reference = _agreement.of_function(np.sin, (x,), (x,), np.sin(x), np.inf)
    (note,) = reference.notes
    assert "nothing ran on the CPU" in note.sentence
    assert "inf" not in note.sentence
    (note,) = _agreement.of_function(np.sin, (x,), (x,), np.sin(x), 1e4).notes
    assert re.search(r"about \d+ s", note.sentence)


def test_tolerance_is_that_of_the_coarsest_format():
    """Mixed inputs allow what their coarsest floating format allows; whole numbers must agree exactly."""
    assert _agreement.tolerance_for(("float32", "bfloat16"), tf32=False) == _agreement.tolerance_for(("bfloat16",), tf32=False)
    assert _agreement.tolerance_for(("float32",), tf32=True) > _agreement.tolerance_for(("float32",), tf32=False)
    assert _agreement.tolerance_for(("int64",), tf32=False) == 0.0


@pytest.mark.gpu
def test_cpu_against_gpu():
    """The same product on both: results agree, the GPU wins at this size, and each row has its three times."""
    c = gl.compare("matmul", n=2048, transfer=True, deadline=1.0)
    assert c.rows[1].measurement.device == str(Device("cuda", 0))
    assert c.max_relative_difference <= c.tolerance
    assert c.speedup > 1
    assert c.speedup_interval[0] <= c.speedup <= c.speedup_interval[1]
    assert all(row.measurement.with_transfer_seconds is not None for row in c.rows)


@pytest.mark.gpu
def test_function_of_host_arrays_on_both_devices():
    """A function of numpy arrays runs on torch tensors of the GPU too."""
    c = gl.compare(lambda x: (x @ x).sum(0), np.random.default_rng(0).random((512, 512), dtype=np.float32), deadline=0.3)
    assert [row.measurement.device for row in c.rows][:2] == ["cpu", "cuda:0"]
    assert c.speedup is not None


@pytest.mark.parametrize(("dtype", "significand_bits"), [("float64", 53), ("float32", 24), ("tf32", 11), ("float16", 11), ("bfloat16", 8)])
def test_tolerance_is_some_roundings_of_the_format(dtype, significand_bits):
    """A chain of operations errs by more than four single roundings (IEEE 754: 2^-p), and a wrong result by more than a tenth."""
    allowed = _agreement.tolerance_for(("float32",), tf32=True) if dtype == "tf32" else _agreement.tolerance_for((dtype,), tf32=False)
    assert 4 * 2.0**-significand_bits < allowed < 0.1


def test_a_refused_comparison_runs_nothing():
    """Stopped before the first call, no function is called; stopped before each row has a sample, there is no median to compare."""
    clock, asked, order = Clock(), [0], []
    rows = {name: _taking(clock, 1e-3, order=order, name=name) for name in "ab"}
    with pytest.raises(StoppedError, match="before anything was run"):
        gl.compare(rows, X, clock=clock, stop=lambda: True)
    assert order == []

    def after_the_first() -> bool:
        asked[0] += 1
        return asked[0] > 1

    with pytest.raises(StoppedError, match="before every row had a sample"):
        gl.compare(rows, X, clock=clock, stop=after_the_first)


def test_stopped_before_the_copies_the_rows_have_none():
    """Stopped while it samples, it has samples and no time with copies."""
    clock, asked = Clock(), [0]

    def later() -> bool:
        asked[0] += 1
        return asked[0] > 100

    c = gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3)}, X, clock=clock, stop=later, transfer=True)
    assert [row.measurement.with_transfer_seconds for row in c.rows] == [None, None]
    assert c.evidence.samples == sum(len(row.measurement.samples_seconds) for row in c.rows)


@pytest.mark.parametrize("samples", [0, 1, 2])
@pytest.mark.parametrize("run", [gl.measure, lambda *args, **kwargs: gl.compare(*args, **kwargs).rows[0].measurement])
def test_stopped_among_the_copies_it_is_said(run, samples):
    """Asked before each sample of theirs, the stop comes after so many: the note says of how many their time is, or that there is none."""
    clock, copied = Clock(), [0]

    def work(x):
        clock.now += 1e-3
        copied[0] += x is not X
        return x

    if run is not gl.measure:
        copied[0] = -1  # the float64 run
    m = run(work, X, clock=clock, transfer=True, deadline=0.3, stop=lambda: copied[0] > samples)  # their first call is no sample
    (note,) = (note.sentence for note in m.notes if note.code == "stopped")
    assert (m.with_transfer_seconds is None) == (samples == 0)
    what = ("so that time is not there", "after 1 sample; its time is of these", "after 2 samples; its time is of these")[samples]
    assert what in note


def test_another_shape_is_told_in_words():
    """A row and a column, or an overflow: no share of the largest value describes that."""
    clock = Clock()
    c = gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3, lambda x: 2.0 * x[:, None])}, X, clock=clock, deadline=0.1)
    assert [note.sentence for note in c.notes] == [
        "b: the result has another shape or kind than the reference, or an overflow or nan where that has a number, so no speed-up is "
        "reported. Find out why before you compare times."
    ]


def test_a_comparison_holds_each_devices_turn_and_calms_the_collector(monkeypatch):
    """The turn on the CPU while it runs, that of a device that only a first result shows after it; a scripted clock takes none."""
    held, frozen = [], []
    hidden = Device("xpu", 3)
    monkeypatch.setattr(_work, "device_of_result", lambda result: hidden)
    monkeypatch.setattr(_work, "waiter", lambda device: _work.nothing)
    monkeypatch.setattr(_job.Job, "environment", lambda job: gl.devices.environment("cpu"))
    real = _job._lock.turn
    monkeypatch.setattr(_job._lock, "turn", lambda name, **options: (held.append(name), real(name, **options))[1])
    gc.unfreeze()
    gl.compare({"a": lambda x: frozen.append(gc.get_freeze_count()) or x}, X, deadline=0.01)
    assert held == ["cpu", "xpu-3"]
    assert min(frozen) > 0
    assert gc.get_freeze_count() == 0
    clock = Clock()
    gl.compare({"a": _taking(clock, 1e-3)}, X, clock=clock, deadline=0.01)
    assert len(held) == 2


def test_readings_are_the_machines_own_where_the_clock_is(monkeypatch):
    """Each row before and after, the second with the first at hand; on a scripted clock the machine is not asked."""
    asked = []
    monkeypatch.setattr(_job.conditions, "read", lambda device, last=None: asked.append((str(device), last)) or len(asked))
    monkeypatch.setattr(_compare._notes, "of_sampling", lambda *given, **options: [])
    gl.compare({"a": np.sum}, X, deadline=0.01)
    gl.measure(np.sum, X, deadline=0.01)
    assert asked == [("cpu", None), ("cpu", 1), ("cpu", None), ("cpu", 3)]
    clock = Clock()
    gl.compare({"a": _taking(clock, 1e-3)}, X, clock=clock, deadline=0.01)
    gl.measure(_taking(clock, 1e-3), X, clock=clock, deadline=0.01)
    assert len(asked) == 4


def test_whole_numbers_agree_exactly_or_not_at_all():
    """A difference of 0 is allowed where 0 is; one of 1 in 50 is not, and the whole sentence says both."""
    clock, whole = Clock(), np.arange(51)
    same, off = _taking(clock, 1e-3, lambda x: x), _taking(clock, 1e-3, lambda x: x + (x == 50))
    assert gl.compare({"a": same, "b": same}, whole, clock=clock).speedup == pytest.approx(1.0)
    c = gl.compare({"a": same, "b": off}, whole, clock=clock)
    assert [note.sentence for note in c.notes] == [
        "b: the result differs from the reference by 2.0e-02 of its largest value, 0.0e+00 is allowed, so no speed-up is reported. "
        "Find out why before you compare times."
    ]
    c = gl.compare({"a": same, "b": off}, whole, clock=clock, tolerance=0.01)
    assert "2.0e-02 of its largest value, 1.0e-02 is allowed" in c.notes[0].sentence


def test_a_comparison_tells_what_it_cannot(monkeypatch):
    """Calls of 2 s leave no interval of the ratio; one row alone has no speed-up that an impossible time could spoil."""
    clock = Clock()
    c = gl.compare({"a": _taking(clock, 2.0), "b": _taking(clock, 2.0)}, X, clock=clock)
    assert (c.speedup, c.speedup_interval) == (pytest.approx(1.0), None)
    assert [note.code for note in c.notes] == ["no-interval", "skipped"]  # and a float64 run would take 6 s
    assert c.notes[0].sentence.startswith("the samples allow no interval of the ratio. ")
    monkeypatch.setattr(_compare._notes, "of_physics", lambda job, seconds: [_agreement.Note("implausible", "too fast.")])
    assert gl.compare({"a": _taking(clock, 1e-3)}, X, clock=clock).notes == ()
    c = gl.compare({"a": _taking(clock, 1e-3), "b": _taking(clock, 1e-3)}, X, clock=clock)
    assert [note.sentence for note in c.notes] == [
        "a, b: the time is physically impossible, so no speed-up is reported. See that row's own note."
    ]
    assert repr(gl.compare({"a": _taking(clock, 1e-3)}, X, clock=clock)) == "<a: 1 row, no speed-up to report>"
    nothing = dataclasses.replace(c.rows[1].measurement, median_seconds=0.0)
    assert _compare._speedup(c.rows[0].measurement, nothing) == (None, None)


def test_patience_is_for_each_row():
    """Two rows of half a second, 1 s each: with 4.875 s of patience for each, nine rounds of 1 s end before 9.75 s (by hand)."""
    clock = Clock()
    limits = _job.Limits(1e-9, 1.0, None, None)
    works = {"a": _taking(clock, 0.5), "b": _taking(clock, 0.5)}
    c = _compare.compare_within(limits, works, (X,), clock=clock, fewest=20, patience=4.875)
    assert [len(row.measurement.samples_seconds) for row in c.rows] == [9, 9]


class Elsewhere:
    """PyTorch's device without memory, as an accelerator of a name."""

    is_cpu, name = False, "an accelerator"

    def __init__(self, index: int) -> None:
        self.index = index

    def __str__(self) -> str:
        return "meta"


def test_who_is_compared(monkeypatch):
    """A workload, a function and a mapping of them: each job by hand (a product of 8 x 8 is 2 * 8^3 FLOPs and three matrices of 256 B)."""
    clock, there = Clock(), Elsewhere(0)
    field = _contenders.gather("matmul", (), "cpu", clock, {"n": 8, "dtype": "float32"})
    (one,) = field.contenders
    assert (field.label, field.methods, one.job.label, one.job.given, one.job.clock) == (
        "matmul n=8 float32",
        False,
        field.label,
        True,
        clock,
    )
    assert (one.job.flops, one.job.nbytes, one.job.working_set_bytes) == (1024.0, 768.0, 768.0)
    assert [a.shape for a in one.job.args] == [(8, 8), (8, 8)]
    monkeypatch.setattr(_contenders._devices, "available", lambda: (Device("cpu"), there))
    field = _contenders.gather(np.sort, (X,), None, clock, {"dtype": "float32"})
    host, moved = (contender.job for contender in field.contenders)
    assert (field.label, field.methods, host.given, moved.given, moved.device) == ("sort", False, True, True, there)
    assert host.args[0] is X
    assert (moved.args[0].device.type, moved.args[0].shape) == ("meta", (50,))
    field = _contenders.gather({"f": np.sort, "g": np.sum}, (X,), None, clock, {"dtype": "float32"})
    assert (field.label, field.methods, [c.name for c in field.contenders]) == ("f against g", True, ["f", "g"])
    assert [(c.job.given, str(c.job.device), c.job.args[0] is X) for c in field.contenders] == [(False, "cpu", True)] * 2
    field = _contenders.gather({"f": np.sort}, (X,), "cpu", clock, {"dtype": "float32"})
    assert [(c.job.given, str(c.job.device)) for c in field.contenders] == [(True, "cpu")]
    with pytest.raises(InputError, match="dtype belong"):
        _contenders.gather(np.sort, (X,), None, clock, {"dtype": "float64"})
    monkeypatch.setattr(_contenders, "_places", lambda devices: (Device("cpu"), there))
    with pytest.raises(InputError, match="2 devices for a mapping of functions; expected one at most"):
        _contenders.gather({"f": np.sort}, (X,), ["cpu", "meta"], clock, {"dtype": "float32"})


def test_devices_of_one_name_are_told_apart_by_their_place():
    """Two alike have PyTorch's name beside their own, a third has not."""
    alike = [Elsewhere(0), Elsewhere(1)]
    assert _contenders._names((alike[0], Device("cpu"))) == ["an accelerator", Device("cpu").name]
    assert _contenders._names(tuple(alike)) == ["an accelerator (meta)"] * 2


@pytest.mark.parametrize("made", [np.ones(2), torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.int32)])
def test_precise_copies_share_nothing_with_the_arrays(made):
    """The reference is computed after the first calls, which may have changed their arrays in place."""
    (copied,) = _agreement.precise_copy([made])
    assert not np.shares_memory(np.asarray(copied), np.asarray(made))
    assert str(copied.dtype).removeprefix("torch.") == ("int32" if "int" in str(made.dtype) else "float64")


def test_the_reference_knows_nothing_of_what_calls_did_to_their_inputs():
    """Both add 1 to the tensor that they are given: the first leaves 2, as in float64; the second 3, which is told."""
    clock = Clock()

    def add(x):
        clock.now += 1e-3
        return x.add_(1.0).clone()

    c = gl.compare({"a": add, "b": add}, torch.ones(3, dtype=torch.float64), clock=clock)
    assert [row.max_relative_difference for row in c.rows] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("got", "expected", "difference"),
    [
        ([np.array([True])], [np.array([0])], math.inf),
        ([np.array([1])], [np.array([1.5])], 0.5 / 1.5),
        ([np.array([3])], [np.array([0])], 3.0),
        ([np.array([0.5, np.inf])], [np.array([0.0, np.inf])], 0.5),
        ([np.array([1.0, np.inf])], [np.array([2.0, np.inf])], 0.5),
        ([np.array([1.0, np.inf])], [np.array([1.0, -np.inf])], math.inf),
        ([np.array(["a"]), np.ones(1)], [np.array(["a"]), np.ones(1)], 0.0),
    ],
)
def test_relative_difference_of_mixed_kinds(got, expected, difference):
    """A truth against a number, a whole number against none, zero and infinity on both sides, and text."""
    assert _agreement.relative_difference(got, expected) == pytest.approx(difference)


def test_what_a_chain_of_operations_may_lose_in_each_format():
    """A share of the largest value, thousands of single roundings (2^-53, 2^-24, 2^-11, 2^-11, 2^-8) at most; the coarsest counts."""
    allowed = {"float64": 1e-10, "complex128": 1e-10, "float32": 1e-4, "complex64": 1e-4, "float16": 0.01, "bfloat16": 0.05, "int32": 0.0}
    assert {name: _agreement.tolerance_for((name,), False) for name in allowed} == allowed
    assert [_agreement.tolerance_for((name,), True) for name in ("float32", "float64", "float16")] == [0.005, 1e-10, 0.01]
    assert _agreement.tolerance_for(("float64", "bfloat16", "int32"), False) == 0.05
    assert _agreement.tolerance_for((), False) == _agreement.tolerance_for((), True) == 1e-4


@pytest.mark.parametrize(("shape", "sampled"), [((1000, 1000, 1000), False), ((1000, 1000, 1001), True)])
def test_a_product_is_large_above_two_thousand_million_operations(shape, sampled):
    """2 * 1000^3 are checked whole; a thousandth more by rows."""
    a, b = np.zeros(shape[:2], np.float32), np.zeros(shape[1:], np.float32)
    assert (_agreement._sampled_product((a, b)) is not None) == sampled


def test_a_product_of_few_rows_is_checked_whole(monkeypatch):
    """Of 64 rows none can be left out, however long they are; of 65 one is."""
    monkeypatch.setattr(_agreement, "_WHOLE_PRODUCT", 0.0)
    assert _agreement._sampled_product((np.zeros((64, 2)), np.zeros((2, 2)))) is None
    checked = _agreement._sampled_product((np.zeros((65, 2)), np.zeros((2, 2))))
    assert checked.notes[0].sentence.startswith("the product is large: 64 of its 65 rows, evenly spaced, were checked against float64")


@pytest.mark.parametrize(("seconds", "says"), [(5 / 3, None), (1.7, "a float64 run would take about 5 s, "), (1e4, "about 30000 s, ")])
def test_a_float64_run_may_take_five_seconds(seconds, says):
    """Three times what a call takes on the CPU: 5 s are run, 5.1 s are not."""
    x = np.ones(4)
    notes = _agreement.of_function(np.sin, (x,), (x,), np.sin(x), seconds).notes
    assert (says in notes[0].sentence) if says else notes == ()


@pytest.mark.parametrize(
    ("places", "arithmetic", "tf32"), [(1, ("tf32",), False), (2, ("float32", "tf32"), True), (2, ("float32",), False)]
)
def test_products_of_float32_may_run_in_tf32_on_a_gpu_alone(monkeypatch, places, arithmetic, tf32):
    """Where there is one and its settings permit it, a float32 result is allowed TF32's errors."""
    asked = []
    monkeypatch.setattr(_agreement.devices, "available", lambda: [None] * places)
    monkeypatch.setattr(_agreement.devices, "arithmetic", lambda *given: asked.append(given) or arithmetic)
    assert _agreement._function_tolerance((X.astype(np.float32),)) == _agreement.tolerance_for(("float32",), tf32)
    assert asked == [("float32", "cuda")] * (places - 1)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_results_are_compared_with_their_zeros(layout, monkeypatch):
    """Of [0, 2; 0, 3] the half is right where it is sparse and where it is dense, and 1 in place of a zero is 1 / 1.5 off; the product of
    a sparse matrix is large, and it has no rows to take.
    """
    dense = torch.tensor([[0.0, 2.0], [0.0, 3.0]])
    sparse = getattr(dense, layout)()
    wrong = torch.tensor([[1.0, 1.0], [0.0, 1.5]])
    reference = _agreement.of_function(lambda x: x * 0.5, (sparse,), _agreement.precise_copy((sparse,)), sparse * 0.5, 0.0)
    assert [reference.difference(given) for given in (sparse * 0.5, dense * 0.5, wrong)] == [0.0, 0.0, pytest.approx(1 / 1.5)]
    assert reference.notes == ()
    monkeypatch.setattr(_agreement, "_WHOLE_PRODUCT", 0.0)
    monkeypatch.setattr(_agreement, "_SAMPLED_ROWS", 1)
    both = (sparse, dense)
    product = _agreement.of_function(torch.matmul, both, _agreement.precise_copy(both), torch.matmul(*both), 0.0)
    assert (product.difference(dense @ dense), product.notes) == (0.0, ())


def test_a_sparse_result_too_large_with_its_zeros_says_so():
    """A pebibyte of zeros is what no machine has: one sentence, with the shape, in place of PyTorch's own error."""
    huge = torch.sparse_coo_tensor([[0], [1]], [1.0], (2**24, 2**23))
    with pytest.raises(OutOfMemoryError, match=r"compare: a sparse result of shape \(16777216, 8388608\) takes 1024 TiB with"):
        _agreement.flat(huge)
