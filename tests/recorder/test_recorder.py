"""The recorder: order, budget, resuming, errors and interrupts, on scripted experiments and a scripted clock."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab import cli, devices, recorder, recordings
from gpulab.errors import InputError, RecordingError, StoppedError
from gpulab.evidence import Evidence
from gpulab.recorder import Case, Experiment, _ceilings, _command, _foretell, _registry, _run, _transfers
from gpulab.timing import Measurement


class Clock:
    """Seconds that pass only when a case spends them."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return the seconds so far."""
        return self.now


def a_measurement(median=1e-3, n=50):
    """A measurement as ``gl.measure`` would give it; the values are arbitrary."""
    samples = np.full(n, median)
    return Measurement(
        label="x",
        device="cpu",
        samples_seconds=samples,
        median_seconds=median,
        interval_seconds=(median, median),
        first_call_seconds=1.0,
        launch_seconds=median,
        with_transfer_seconds=None,
        calls_per_sample=1,
        flops=None,
        nbytes=8.0,
        notes=(),
        evidence=Evidence.measured("cpu", n),
        environment=devices.environment("cpu"),
    )


machine = functools.cache(devices.machine)  # read once for all tests of this file


@pytest.fixture
def bench(monkeypatch):
    """An empty registry with a scripted experiment maker, and a log of what ran with which deadline."""
    clock, log = Clock(), []
    monkeypatch.setattr(_registry, "_REGISTRY", {})
    monkeypatch.setattr(devices, "machine", machine)

    def add(name, ranks, seconds=10.0, fails=(), error=None, shares=1, medians=(1e-3,)):
        def case(i, rank):
            def time(deadline):
                log.append((name, i, deadline))
                clock.now += seconds
                if i in fails:
                    raise error or RuntimeError("boom  \n happened")
                turn = sum(one[:2] == (name, i) for one in log) - 1
                return a_measurement(medians[turn % len(medians)])

            return Case({"i": i}, time, rank, shares)

        recorder.register(Experiment(name, name, lambda device: [case(i, rank) for i, rank in enumerate(ranks)]))

    def run(path, **options):
        return recorder.record(path, **{"device": "cpu", "clock": clock, "name": "test", "visits": 1, **options})

    add.run, add.log, add.clock = run, log, clock
    return add


def test_the_most_telling_cases_run_first(bench, tmp_path):
    """Ranks order the cases across experiments; within a rank the registered order stays."""
    bench("late", [3, 1])
    bench("early", [0, 2])
    bench.run(tmp_path / "r.json")
    assert [(name, i) for name, i, _ in bench.log] == [("early", 0), ("late", 1), ("early", 1), ("late", 0)]


def test_the_budget_ends_the_run_and_names_what_is_missing(bench, tmp_path):
    """With 25 s and cases of 10 s three run, and the other two are kept as not reached."""
    bench("a", [0] * 5)
    recording = bench.run(tmp_path / "r.json", minutes=25 / 60)
    assert len(bench.log) == 3
    assert [e.reason for e in recording.missing()] == ["time did not reach it"] * 2
    assert recordings.read(tmp_path / "r.json").to_dict() == recording.to_dict()


def test_a_second_run_goes_on_where_the_first_stopped(bench, tmp_path):
    """What is recorded is not measured again; what failed or was not reached is tried."""
    bench("a", [0] * 4, fails=(1,))
    bench.run(tmp_path / "r.json", minutes=25 / 60)
    bench.log.clear()
    bench.run(tmp_path / "r.json")
    assert [i for _, i, _ in bench.log] == [1, 3]
    bench.log.clear()
    bench.run(tmp_path / "r.json", restart=True)
    assert len(bench.log) == 4


def test_why_a_case_is_missing_holds_until_it_is_tried_again(bench, tmp_path):
    """A run of other experiments, and one that does not come so far, leave it as it was; a run of all forgets what is no longer planned."""
    bench("a", [0] * 4, fails=(1,))
    path, reasons = tmp_path / "r.json", {"a i=1": "RuntimeError: boom happened", "a i=3": "time did not reach it"}
    missing = lambda recording: {entry.key: entry.reason for entry in recording.missing()}  # noqa: E731
    assert missing(bench.run(path, minutes=25 / 60)) == reasons
    bench("b", [0])
    assert missing(bench.run(path, only=["b"])) == reasons
    assert missing(bench.run(path, stop=lambda: True)) == reasons
    recording = bench.run(path)
    assert missing(recording) == {"a i=1": "RuntimeError: boom happened"}
    gone = dataclasses.replace(recording.missing()[0], experiment="of another version")
    recordings.write(dataclasses.replace(recording, entries=(*recording.entries, gone)), path)
    assert missing(bench.run(path)) == {"a i=1": "RuntimeError: boom happened"}


def test_a_continued_recording_keeps_its_name_its_notes_and_every_command(bench, tmp_path, monkeypatch):
    """What a second run adds to does not become its own: both commands are named, and what somebody wrote into the file stays."""
    monkeypatch.setattr(devices, "machine", functools.cache(devices.machine))
    bench("a", [0] * 9)
    path = tmp_path / "r.json"
    bench.run(path, minutes=15 / 60, name="the-old-box", command="gpulab record --out FILE --minutes 0.25")
    recordings.write(dataclasses.replace(recordings.read(path), notes=("It stood in the sun.",)), path)
    second = bench.run(path, minutes=25 / 60, name=None, command="gpulab record --out FILE --minutes 0.4")
    assert (second.name, second.notes) == ("the-old-box", ("It stood in the sun.",))
    both = "gpulab record --out FILE --minutes 0.25, continued by gpulab record --out FILE --minutes 0.4"
    assert recordings.read(path).environment.command == both
    assert bench.run(path, command="gpulab record --out FILE --minutes 0.4").environment.command == both, "the same again is no news"
    renamed = bench.run(path, name="the-new-box", command=None, minutes=7)
    assert renamed.name == "the-new-box"
    assert renamed.environment.command == f"{both}, continued by gpulab record --minutes 7"
    fresh = bench.run(path, restart=True, command="gpulab record --out FILE --minutes 8")
    assert (fresh.notes, fresh.environment.command) == ((), "gpulab record --out FILE --minutes 8")


def test_a_continued_file_keeps_the_dates_and_the_libraries_of_what_it_had(bench, tmp_path):
    """Entries of the first version have no date: that of their file, not of the run that goes on. A library may be gone since."""
    bench("a", [0] * 2)
    path, date = tmp_path / "r.json", "2026-01-02T03:04:05+00:00"
    first = bench.run(path, minutes=5 / 60)
    libraries = {**first.environment.libraries, "numba-cuda": "0.30.4"}
    entries = tuple(dataclasses.replace(entry, date=None) for entry in first.entries)
    environment = dataclasses.replace(first.environment, date=date, libraries=libraries)
    recordings.write(dataclasses.replace(first, entries=entries, environment=environment), path)
    second = bench.run(path)
    assert [entry.recorded for entry in second.entries] == [True, True]
    assert second.evidence(second.find("a", i=0)).date == date
    assert date < second.environment.date <= second.evidence(second.find("a", i=1)).date  # a second may pass before a case is timed
    assert second.environment.libraries == libraries
    again = dataclasses.replace(second.environment, libraries={**libraries, "numba-cuda": "0.31.0"})
    recordings.write(dataclasses.replace(second, environment=again), tmp_path / "other.json")
    with pytest.raises(RecordingError, match="differ in libraries"):
        recordings.merge(second, recordings.read(tmp_path / "other.json"))


def test_another_machines_file_is_not_overwritten(bench, tmp_path):
    """A recording of another device or driver is refused and stays as it was."""
    bench("a", [0])
    path = tmp_path / "r.json"
    bench.run(path)
    data = json.loads(path.read_text())
    data["environment"]["device"] = "Another GPU"
    path.write_text(json.dumps(data))
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="another device"):
        bench.run(path)
    path.write_text("not ours")
    with pytest.raises(RecordingError, match="not JSON"):
        bench.run(path)
    assert path.read_text() == "not ours"
    assert before


def test_a_failing_case_is_kept_with_its_reason_and_the_rest_goes_on(bench, tmp_path):
    """One case that raises costs only itself; the reason is one line."""
    bench("a", [0] * 3, fails=(1,))
    recording = bench.run(tmp_path / "r.json")
    assert [e.recorded for e in recording.entries] == [True, False, True]
    assert recording.entries[1].reason == "RuntimeError: boom happened"


def test_a_library_that_does_not_fit_ends_its_own_case_alone(bench, tmp_path):
    """As torchao beside an older torch, which raises AttributeError while it is imported: kept as the reason, and the run goes on."""
    bench("a", [0] * 3, fails=(1,), error=AttributeError("module 'torch' has no attribute 'int1'"))
    recording = bench.run(tmp_path / "r.json")
    assert [e.recorded for e in recording.entries] == [True, False, True]
    assert recording.missing()[0].reason == "AttributeError: module 'torch' has no attribute 'int1'"


def test_an_interrupt_keeps_what_was_recorded(bench, tmp_path):
    """KeyboardInterrupt in the second case leaves a file with the first one in it."""
    bench("a", [0] * 3, fails=(1,), error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.run(tmp_path / "r.json")
    assert [e.recorded for e in recordings.read(tmp_path / "r.json").entries] == [True, False, False]


def test_stop_ends_after_the_case_in_flight(bench, tmp_path):
    """Stopping after one case keeps one; stopping before any is said."""
    bench("a", [0] * 3)
    recording = bench.run(tmp_path / "r.json", stop=lambda: len(bench.log) == 1)
    assert len(bench.log) == 1
    assert len(recording.missing()) == 2
    with pytest.raises(StoppedError, match=r"before the first case was timed; expected time for one. Run it again.$"):
        bench.run(tmp_path / "s.json", stop=lambda: True)
    with pytest.raises(StoppedError, match=r"Give more --minutes.$"):
        bench.run(tmp_path / "t.json", clock=map(float, itertools.count(0, 10**6)).__next__)


def test_experiments_that_the_device_lacks_are_named_as_the_reason(bench, tmp_path):
    """More time would not help where nothing is planned, such as the kernels of notebook 04 on a CPU."""
    recorder.register(Experiment("ladders", "on a GPU", lambda device: []))
    with pytest.raises(InputError, match=r"none of the experiments asked for can run on .*; expected one that can. Choose others"):
        bench.run(tmp_path / "r.json", only=["ladders"])


def test_progress_says_how_far_and_how_long(bench, tmp_path):
    """The fraction reaches 1 and the text says what is left of the budget."""
    bench("a", [0] * 2)
    seen = []
    bench.run(tmp_path / "r.json", minutes=1, progress=lambda fraction, text: seen.append((fraction, text)))
    assert [fraction for fraction, _ in seen] == [0.5, 1.0]
    assert seen[0][1].endswith("50 s left")
    assert not any("visit" in text for _, text in seen)
    seen.clear()
    bench.run(tmp_path / "s.json", minutes=2, visits=2, progress=lambda fraction, text: seen.append((fraction, text)))
    assert ["visit 1 of 2" in text for _, text in seen] == [True, True, False, False]
    assert "visit 2 of 2" in seen[-1][1]


def test_progress_counts_the_cases_of_this_run(bench, tmp_path):
    """Where a file with others is continued, those are none of the two that were asked for."""
    bench("a", [0] * 3)
    bench.run(tmp_path / "r.json", minutes=1)
    bench("b", [0] * 2)
    seen = []
    bench.run(tmp_path / "r.json", minutes=1, only=["b"], progress=lambda fraction, text: seen.append(text.partition(" · ")[0]))
    assert seen == ["1 of 2", "2 of 2"]


def test_a_case_gets_a_bounded_share_of_what_is_left(bench, tmp_path):
    """A small budget gives the shortest deadline, a large one the longest; never zero, never all."""
    bench("a", [0] * 4, seconds=0.0)
    bench.run(tmp_path / "r.json", minutes=1 / 600)
    bench.run(tmp_path / "s.json", minutes=60)
    deadlines = [deadline for _, _, deadline in bench.log]
    assert deadlines[0] == 0.15
    assert deadlines[-1] == 1.0


def test_a_case_of_long_calls_takes_several_shares(bench, tmp_path):
    """Three cases of one share and one of five in 4 s: 0.5 s each and 2.5 s; of the bounds it takes five too."""
    bench("short", [0] * 3, seconds=0.5)
    bench("long", [1], seconds=2.5, shares=5)
    bench.run(tmp_path / "r.json", minutes=4 / 60)
    assert [deadline for _, _, deadline in bench.log] == [pytest.approx(0.5)] * 3 + [pytest.approx(2.5)]
    bench.run(tmp_path / "s.json", minutes=60)
    assert bench.log[-1][2] == 5.0


def test_a_case_is_visited_three_times_with_29_others_between(bench, tmp_path):
    """Thirty cases come in rounds before the next: their visits lie apart, and a short budget still gives most of them all three."""
    bench("a", [0] * 31, seconds=1.0)
    recording = bench.run(tmp_path / "r.json", visits=3)
    assert [i for _, i, _ in bench.log] == [*range(30), *range(30), *range(30), 30, 30, 30]
    assert {len(e.timing.visits_seconds) for e in recording.entries} == {3}


def test_near_the_end_of_the_budget_fewer_cases_are_begun_and_all_of_them_visited_three_times(bench, tmp_path):
    """Cases of a second in 100 s: thirty take 90 s, three more are begun for the 10 s that are left, and one visit of a last is made."""
    bench("a", [0] * 60, seconds=1.0)
    recording = bench.run(tmp_path / "r.json", visits=3, minutes=100 / 60)
    visits = [len(e.timing.visits_seconds or (1,)) for e in recording.entries if e.recorded]
    assert visits == [3] * 33 + [1]


def test_what_a_small_part_foretells_to_take_long_is_left_out(monkeypatch):
    """A part of 10 ms, 8 times: 0.08 s are allowed, 512 times as long are 5.12 s and are not; the warm-up of 9 s is not counted.

    What seems too long is timed twice more, and the least counts: of 1 s, 0.9 s and 0.2 ms, 512 times as long are 0.1 s.
    """
    clock, spent = [0.0], iter((9.0, 0.01, 9.0, 0.02, 0.01, 0.03, 9.0, 1.0, 0.9, 0.0002))
    monkeypatch.setattr(_foretell.time, "perf_counter", lambda: clock[0])

    def part():
        clock[0] += next(spent)

    _foretell.refuse_long("a product", part, 8)
    with pytest.raises(InputError, match=r"a product: a call takes about 5 s here; expected at most 3 s\. Left out\."):
        _foretell.refuse_long("a product", part, 512)
    _foretell.refuse_long("a product", part, 512)
    assert next(spent, None) is None


def test_what_is_just_too_long_does_not_read_as_what_is_allowed(monkeypatch):
    """3.4 s beside at most 3 s are said with a digit more, and 3.6 s are 4 s."""
    clock, spent = [0.0], iter((0.0, 3.4, 3.4, 3.4, 0.0, 3.6, 3.6, 3.6))
    monkeypatch.setattr(_foretell.time, "perf_counter", lambda: clock[0])

    def part():
        clock[0] += next(spent)

    for told in ("3.4", "4"):
        with pytest.raises(InputError, match=rf"a call takes about {told} s here; expected at most 3 s\. Left out\."):
            _foretell.refuse_long("a product", part, 1)


def test_a_ceilings_product_is_foretold_by_one_of_an_eighth_of_its_sides(monkeypatch):
    """On a CPU a side of 8 foretells one of 64, whose product is 8^3 = 512 times the work."""
    asked = []
    monkeypatch.setattr(_ceilings, "refuse_long", lambda who, small, times: asked.append((who, small().shape, times)))
    monkeypatch.setattr(_ceilings, "measure", lambda *given, **named: "measured")
    assert _ceilings._gemm_case(devices.find("cpu"), "bfloat16", 64).time(1.0) == "measured"
    assert asked == [("matrix product bfloat16", (8, 8), 512.0)]


def test_the_interval_of_a_case_is_that_between_its_visits(bench, tmp_path):
    """Visits of 1, 2 and 4 ms: the median is 2 ms, and t with two degrees of freedom gives 2 ms times or over 2 ** (4.303 / sqrt(3))."""
    bench("a", [0], medians=(1e-3, 2e-3, 4e-3))
    timing = bench.run(tmp_path / "r.json", visits=3).entries[0].timing
    assert timing.visits_seconds == (1e-3, 2e-3, 4e-3)
    assert timing.median_seconds == 2e-3
    assert timing.interval_seconds == pytest.approx((2e-3 / 2 ** (4.303 / 3**0.5), 2e-3 * 2 ** (4.303 / 3**0.5)))
    assert timing.sample_count == 150


def test_what_a_stopped_run_visited_once_is_visited_on_and_not_again(bench, tmp_path):
    """Of two cases with three visits each a first run makes three; a second makes the other three, and a third makes none."""
    bench("a", [0, 0])
    bench.run(tmp_path / "r.json", visits=3, minutes=25 / 60)
    assert [i for _, i, _ in bench.log] == [0, 1, 0]
    bench.log.clear()
    bench.run(tmp_path / "r.json", visits=3)
    assert [i for _, i, _ in bench.log] == [1, 0, 1]
    bench.log.clear()
    bench.run(tmp_path / "r.json", visits=3)
    assert not bench.log


def test_visits_that_are_long_together_are_all_made(bench, tmp_path):
    """Ten visits of 50 samples of 40 ms: 2 s each are not long, though they make 20 s."""
    bench("a", [0], seconds=2.0, medians=(0.04,))
    timing = bench.run(tmp_path / "r.json", visits=10).entries[0].timing
    assert timing.visits_seconds == (0.04,) * 10


def test_what_takes_long_or_fails_is_not_visited_again(bench, tmp_path):
    """A visit of more than ten seconds is enough; so is a failure, which in a later visit leaves what the first gave."""
    bench("long", [0], seconds=10.5)
    bench("short", [0, 0], seconds=1.0, fails=(1,))
    recording = bench.run(tmp_path / "r.json", visits=3)
    assert [(name, i) for name, i, _ in bench.log] == [("long", 0), ("short", 0), ("short", 1), ("short", 0), ("short", 0)]
    assert [e.recorded for e in recording.entries] == [True, True, False]


def test_a_visit_that_fails_leaves_what_was_there(bench, tmp_path):
    """The second visit raises: the entry is that of the first."""
    fails = []
    bench("a", [0], fails=fails)
    bench.run(tmp_path / "r.json", minutes=0.1, visits=3)
    before = recordings.read(tmp_path / "r.json").entries[0].timing
    fails.append(0)
    after = bench.run(tmp_path / "r.json", visits=3).entries[0].timing
    assert len(bench.log) == 2
    assert after.to_dict() == before.to_dict()


def test_a_case_with_calls_of_seconds_is_not_visited_again_by_a_later_run(bench, tmp_path):
    """Fifty samples of 0.3 s make 15 s, whatever the clock of this run says."""
    bench("a", [0], seconds=0.0, medians=(0.3,))
    bench.run(tmp_path / "r.json", visits=3)
    bench.run(tmp_path / "r.json", visits=3)
    assert len(bench.log) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"visits": 0},
        {"visits": 11},
        {"visits": True},
        {"minutes": 0},
        {"minutes": -1},
        {"minutes": float("nan")},
        {"name": "../x"},
        {"only": ["no-such"]},
    ],
)
def test_bad_input_is_refused_before_anything_runs(bench, tmp_path, options):
    """A bad budget, name or experiment is an InputError; nothing is written."""
    bench("a", [0])
    with pytest.raises(InputError):
        bench.run(tmp_path / "r.json", **options)
    assert not list(tmp_path.iterdir())


def test_samples_are_thinned_and_the_interval_stays():
    """Of 500 samples 32 are kept; the count and the interval are those of all 500."""
    kept = _registry.entry("e", Case({}, None), a_measurement(n=500)).timing
    assert (len(kept.samples_seconds), kept.sample_count) == (32, 500)
    assert kept.interval_seconds == (1e-3, 1e-3)


def test_machine_names_are_file_safe():
    """A device's name becomes lower-case words with hyphens."""

    class Device:
        name = "NVIDIA H200 (MIG 1g.18gb)"

    assert _run.machine_name(Device()) == "nvidia-h200-mig-1g-18gb"


def test_the_command_that_is_kept_can_be_typed_again(bench, tmp_path, capsys):
    """The shell takes a name with a space as one word where it is quoted; a wrong name is answered with names to copy."""
    bench("a long climb", [0])
    bench("hints", [0])
    path = tmp_path / "r.json"
    assert cli.main(["record", "--out", str(path), "--device", "cpu", "--visits", "1", "--only", "a long climb", "hints"]) == 0
    assert recordings.read(path).environment.command == (
        "gpulab record --out FILE --minutes 8 --device cpu --visits 1 --only 'a long climb' hints"
    )
    assert cli.main(["record", "--out", str(path), "--only", "climb"]) == 2
    assert "expected one of 'a long climb', hints." in capsys.readouterr().err


def test_progress_is_shown_in_a_terminal_that_has_no_columns(capsys, monkeypatch):
    """Serial consoles and some containers report 0 columns: the line has the 80 characters of a terminal that says nothing."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    _command._show(0.5, "1 of 2")
    assert capsys.readouterr().out == "\r" + " 50 %  1 of 2".ljust(79)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((1, 1)))
    _command._show(0.5, "1 of 2, and more")
    assert capsys.readouterr().out == "\r 50 %  1 of 2, and m"


def test_every_registered_experiment_has_unique_cases_on_a_cpu():
    """Planning allocates nothing and gives each case its own key."""
    cpu = devices.find("cpu")
    keys = [_run._key(name, case) for name, case in _run._plan(cpu, None)]
    assert len(keys) == len(set(keys))
    assert {"ceilings", "launch", "catalogue", "transfer", "overlap"} <= {e.name for e in recorder.experiments()}


@pytest.mark.parametrize("name", recordings.names())
def test_what_was_recorded_can_be_recorded_again(name):
    """Every experiment that a shipped recording holds is registered."""
    assert {entry.experiment for entry in recordings.load(name).entries} <= {e.name for e in recorder.experiments()}


def test_a_second_experiment_of_a_name_is_refused(bench):
    """Two experiments of one name would write over each other's cases."""
    bench("once", [1])
    with pytest.raises(InputError, match="'once' already"):
        bench("once", [1])


@pytest.mark.parametrize(
    ("kind", "formats"),
    [
        ("cuda", {"float32", "float64", "tf32", "bfloat16", "float16"}),
        ("mps", {"float32", "bfloat16", "float16"}),  # Metal has no float64, and TF32 is NVIDIA's
    ],
)
def test_a_device_is_asked_for_products_in_formats_that_it_has(kind, formats):
    """The matrix products among the ceilings: by NVIDIA's and Apple's lists of number formats."""
    device = SimpleNamespace(is_cpu=False, kind=kind)
    cases = [case.params for case in _ceilings._ceiling_cases(device) if case.params["operation"] == "gemm"]
    assert {case["dtype"] for case in cases} == formats


@pytest.mark.parametrize(("arrangement", "wanted"), [("serial", 0), ("chunked", 1)])
def test_an_overlap_is_measured_in_both_arrangements_and_gives_its_own(arrangement, wanted, monkeypatch):
    """One call measures both, so it gets the time of two cases; each case keeps its half."""
    given, both = [], (a_measurement(1e-3), a_measurement(2e-3))
    monkeypatch.setattr(_transfers.transfer, "measure_overlap", lambda *a, deadline: given.append((a, deadline)) or both)
    case = _transfers._overlap_case("a device", 1024, 8, arrangement)
    assert case.time(3.0) is both[wanted]
    assert given == [((1024, 8, "a device"), 6.0)]


def test_the_file_is_saved_every_five_seconds(bench, tmp_path, monkeypatch):
    """Six cases of 2.5 s: after the first, the third and the fifth, at the end of the run and with the clocks after it."""
    saved = []
    monkeypatch.setattr(_run, "write", lambda recording, path: saved.append(len(recording.entries) - len(recording.missing())))
    bench("a", [0] * 6, seconds=2.5)
    bench.run(tmp_path / "r.json")
    assert saved == [1, 3, 5, 6, 6]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (lambda tmp: tmp, "is a folder; expected the name of a file"),
        (lambda tmp: tmp / "no" / "r.json", "the folder '.* is not there; expected an existing folder"),
        (lambda tmp: 5, "5 is not the name of a file"),
        (lambda tmp: "a\0b", "is not the name of a file"),
    ],
)
def test_what_is_no_file_to_write_is_said_before_anything_runs(bench, tmp_path, out, says):
    """A folder, a file in a folder that is not there, a number, a null character."""
    bench("a", [0])
    with pytest.raises(InputError, match=says):
        bench.run(out(tmp_path))
    assert bench.log == []


def test_a_recording_may_go_into_the_home(bench, tmp_path, monkeypatch):
    """`--out=~/r.json`: a shell writes a ~ out only where it begins a word."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    bench("a", [0])
    bench.run("~/r.json")
    assert (tmp_path / "r.json").is_file()
    with pytest.raises(InputError, match="begins with the home of a user that is not here"):
        bench.run("~nobody-of-that-name/r.json")


def test_the_edges_of_budget_and_name(bench, tmp_path):
    """A day is the most; a name has 64 characters at most, and a device without letters is a machine."""
    bench("a", [0])
    assert bench.run(tmp_path / "r.json", minutes=24 * 60, name="x" * 64).name == "x" * 64
    for wrong in ({"minutes": 24 * 60 + 1}, {"name": "x" * 65}, {"name": ""}, {"name": 5}):
        with pytest.raises(InputError, match=r"record: (minutes =|name)"):
            bench.run(tmp_path / "r.json", restart=True, **wrong)
    assert _run.machine_name(SimpleNamespace(name="?!")) == "machine"
    assert _run.machine_name(SimpleNamespace(name="A" * 70)) == "a" * 64


def test_a_full_disk_and_a_second_recorder_are_told(bench, tmp_path, monkeypatch):
    """What was saved before stands; each of two recorders would overwrite what the other has measured."""
    bench("a", [0])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_run, "write", full)
        with pytest.raises(RecordingError, match=r"r\.json cannot be written \(No space left on device\); expected a folder of yours"):
            bench.run(tmp_path / "r.json")
    bench.log.clear()
    with _run.alone(tmp_path / "r.json"), pytest.raises(RecordingError, match=r"another gpulab record writes to r\.json now"):
        bench.run(tmp_path / "r.json")
    assert bench.log == []


def test_the_devices_clock_is_kept_in_megahertz():
    """The processor's of a CPU, of several accelerators the one that is measured; what does not tell its clock has none."""
    machine = SimpleNamespace(
        processor=SimpleNamespace(clock_hz=3.5e9), accelerators=[SimpleNamespace(clock_hz=1.98e9), SimpleNamespace(clock_hz=None)]
    )
    found = [_run._clocks(machine, device, "before") for device in (devices.Device("cpu"), *(devices.Device("cuda", k) for k in range(3)))]
    assert found == [{"before_mhz": 3500.0}, {"before_mhz": 1980.0}, {}, {}]


def test_an_accelerators_memory_is_let_go_between_cases(monkeypatch):
    """Cycles first, then the caches of PyTorch and of CuPy, whose pool keeps gigabytes of a sweep; a CPU needs none of them."""
    done = []
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: True, Device=lambda index: contextlib.nullcontext(done.append(f"device {index}"))),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: done.append("pool")),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_run.gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: done.append("empty"))
    for kind, wanted in (("cpu", []), ("xpu", ["collect"]), ("cuda", ["collect", "empty", "device 0", "pool"])):
        _run._let_go(devices.Device(kind))
        assert done == wanted
        done.clear()


def test_what_the_command_says(bench, tmp_path, capsys):
    """A line for each experiment where asked; else how many cases were recorded and why the others were not; Ctrl-C is as before."""
    bench("short", [0] * 3, seconds=0.0, fails=(1, 2))
    before, path = signal.getsignal(signal.SIGINT), tmp_path / "r.json"
    assert cli.main(["record", "--list"]) == 0
    assert capsys.readouterr().out == "short        short\n"
    assert cli.main(["record", "--device", "cpu"]) == 2
    assert "no file was given; expected --out FILE" in capsys.readouterr().err
    assert cli.main(["record", "--out", str(path), "--device", "cpu", "--minutes", "0.5", "--visits", "1"]) == 0
    *lines, end, missing = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines] == [" 33 % ", " 67 % ", "100 % "]
    assert end == f"1 of 3 cases recorded on {devices.find('cpu').name} in {path}"
    assert missing == "  not recorded: 2 x RuntimeError: boom happened"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_ctrl_c_ends_after_the_case_and_the_second_at_once(monkeypatch, tmp_path, capsys, name):
    """Each case presses it: once, and what was timed is kept; twice, and nothing is waited for. A batch system's signals do the same."""
    pressed, number = [1], getattr(signal, name, None)
    if number is None or (name != "SIGINT" and sys.platform == "win32"):
        pytest.skip("Windows has no such signal to raise")
    if name != "SIGINT" and signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the tests run under nohup, which a recording obeys")

    def time(deadline):
        for _ in range(pressed[0]):
            signal.raise_signal(number)
        return a_measurement()

    monkeypatch.setattr(devices, "machine", machine)
    monkeypatch.setattr(_registry, "_REGISTRY", {})
    recorder.register(Experiment("a", "a", lambda device: [Case({"i": i}, time) for i in range(3)]))
    arguments = argparse.Namespace(
        list=False, out=tmp_path / "r.json", minutes=8.0, only=None, name=None, device="cpu", restart=False, visits=1
    )
    before = signal.getsignal(number)
    assert _command.run(arguments) == 0
    assert signal.getsignal(number) is before
    said = capsys.readouterr()
    assert said.err == "\nstopping after the case in flight; press Ctrl-C again to stop at once\n"
    assert said.out.splitlines()[-1] == "  not recorded: 2 x time did not reach it"
    pressed[0] = 2
    with pytest.raises(KeyboardInterrupt):
        _command.run(argparse.Namespace(**{**vars(arguments), "out": tmp_path / "s.json"}))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_closed_terminal_ends_a_recording_after_the_case_unless_it_is_told_to_go_on(monkeypatch, tmp_path):
    """SIGHUP comes, and from then on nothing can be written to the terminal; under nohup it is ignored, and all cases are recorded."""
    monkeypatch.setattr(devices, "machine", machine)
    monkeypatch.setattr(_registry, "_REGISTRY", {})
    case = lambda deadline: [signal.raise_signal(signal.SIGHUP), a_measurement()][1]  # noqa: E731
    recorder.register(Experiment("a", "a", lambda device: [Case({"i": i}, case) for i in range(3)]))
    words = {"list": False, "minutes": 8.0, "only": None, "name": None, "device": "cpu", "restart": False, "visits": 1}
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert _command.run(argparse.Namespace(**words, out=tmp_path / "nohup.json")) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

        def closed(*_):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(_command, "_show", closed)
        monkeypatch.setattr(sys.stderr, "write", closed)
        with pytest.raises(BrokenPipeError):
            _command.run(argparse.Namespace(**words, out=tmp_path / "closed.json"))
    finally:
        signal.signal(signal.SIGHUP, before)
    found = {name: [entry.recorded for entry in recordings.read(tmp_path / name).entries] for name in ("nohup.json", "closed.json")}
    assert found == {"nohup.json": [True] * 3, "closed.json": [True, False, False]}


def test_a_reader_that_goes_away_ends_a_recording_as_any_other_command(bench, tmp_path, monkeypatch):
    """`gpulab record --out FILE | head -1`: the case in flight is kept, the rest is for the next run, and nobody is told of progress."""
    bench("a", [0] * 3, seconds=0.0)
    told = []

    def show(fraction, text):
        told.append(text)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(_command, "_show", show)
    with pytest.raises(BrokenPipeError):  # what `gpulab` makes of it is in tests/test_cli.py
        _command.run(
            argparse.Namespace(
                list=False, out=tmp_path / "r.json", minutes=8.0, only=None, name=None, device="cpu", restart=False, visits=1
            )
        )
    assert (len(bench.log), len(told)) == (1, 1)
    assert [entry.recorded for entry in recordings.read(tmp_path / "r.json").entries] == [True, False, False]


def test_progress_ends_its_line_at_the_end(capsys, monkeypatch):
    """In a terminal one line that is written over, ended where all is done; elsewhere a line each."""
    _command._show(0.25, "1 of 4")
    assert capsys.readouterr().out == " 25 %  1 of 4\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(_command.shutil, "get_terminal_size", lambda: os.terminal_size((31, 5)))
    _command._show(1.0, "4 of 4")
    assert capsys.readouterr().out == "\r" + "100 %  4 of 4".ljust(30) + "\n"


def test_what_is_said_at_the_end_has_a_line_of_its_own(bench, tmp_path, capsys, monkeypatch):
    """Most budgets end before the last case: the line that is written over is ended first, and not twice where all is done."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    bench("a", [0] * 2, seconds=0.0)
    real = recorder.record
    monkeypatch.setattr(recorder, "record", lambda *given, **named: real(*given, **named, clock=bench.clock))
    arguments = ["record", "--out", str(tmp_path / "r.json"), "--device", "cpu", "--visits", "1"]
    bench("long", [1] * 2, seconds=60.0)
    assert cli.main([*arguments, "--minutes", "1"]) == 0
    *_, shown, end, missing = capsys.readouterr().out.split("\n")[:-1]
    assert shown.rpartition("\r")[2].startswith(" 75 %  3 of 4")
    assert end.startswith("3 of 4 cases recorded on ")
    assert missing == "  not recorded: 1 x time did not reach it"
    assert cli.main([*arguments, "--minutes", "9"]) == 0
    *_, shown, end = capsys.readouterr().out.split("\n")[:-1]
    assert shown.rpartition("\r")[2].startswith("100 %  4 of 4")
    assert end.startswith("4 of 4 cases recorded on ")


def test_every_figure_of_a_measurement_is_kept():
    """In its place, with the case's parameters and the measurement's own date."""
    m = dataclasses.replace(a_measurement(n=2), with_transfer_seconds=4.0, launch_seconds=0.5, flops=3.0, calls_per_sample=7)
    kept = _registry.entry("e", Case({"i": 1}, None), m)
    t = kept.timing
    assert (kept.experiment, kept.params, kept.date, t.samples_seconds.tolist(), t.median_seconds) == (
        "e", {"i": 1}, m.environment.date, [1e-3, 1e-3], 1e-3,
    )  # fmt: skip
    assert (t.first_call_seconds, t.launch_seconds, t.with_transfer_seconds, t.calls_per_sample, t.flops, t.nbytes) == (
        1.0,
        0.5,
        4.0,
        7,
        3.0,
        8.0,
    )


def test_a_day_is_the_longest_budget(tmp_path):
    """It is taken, as the refusal of what comes after it shows; half a minute more is not."""
    with pytest.raises(InputError, match=r"^record: name 'My Box'; expected lower-case"):
        recorder.record(tmp_path / "r.json", minutes=24 * 60, name="My Box", device="cpu")
    for minutes in (24 * 60 + 0.5, 0):
        with pytest.raises(InputError, match=rf"^record: minutes = {minutes}; expected more than 0, and a day at most"):
            recorder.record(tmp_path / "r.json", minutes=minutes, name="box", device="cpu")


def test_the_cases_after_the_first_thirty_are_visited_in_turn_too(bench, tmp_path):
    """Forty cases of a second in two visits: 60 of 120 s are left after the first thirty, enough for the other ten in turn."""
    bench("a", [0] * 40, seconds=1.0)
    bench.run(tmp_path / "r.json", visits=2, minutes=2)
    assert [i for _, i, _ in bench.log] == [*range(30), *range(30), *range(30, 40), *range(30, 40)]
