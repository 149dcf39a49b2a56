"""Recording a machine: order, budget, continuing, failures, interrupts, on a scripted clock."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpulab import cli, devices, recorder, recordings
from gpulab.errors import InputError, RecordingError, StoppedError
from gpulab.evidence import Evidence
from gpulab.recorder import Case, Experiment
from gpulab.recordings import Recording
from gpulab.timing import Measurement

from refusals import refused


def a_measurement(median: float = 1e-3, n: int = 50, **changes: Any) -> Measurement:
    """A measurement whose samples are all equal; a call returns after a quarter of the time, takes
    three times as long with its copies, and needs 50 W.
    """
    fields: dict[str, Any] = {
        "label": "x", "device": "cpu", "samples_seconds": np.full(n, median),
        "median_seconds": median, "interval_seconds": (median, median), "first_call_seconds": 1.0,
        "launch_seconds": median / 4, "with_transfer_seconds": 3 * median, "calls_per_sample": 1,
        "energy_joules": 50 * median, "energy_error_joules": 5 * median,
        "flops": None, "nbytes": 8.0, "notes": (), "evidence": Evidence.measured("cpu", n),
        "environment": devices.environment("cpu"),
    }  # fmt: skip
    return Measurement(**{**fields, **changes})


class Bench:
    """A clock and a log of the cases run on it: (experiment, case, deadline in seconds)."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[tuple[str, int, float]] = []

    def __call__(
        self, name: str, ranks: list[int], seconds: float = 10.0, *, fails: Any = None,
        shares: int = 1, medians: tuple[float, ...] = (1e-3,),
    ) -> Experiment:  # fmt: skip
        """An experiment with a case for each rank; ``fails`` maps cases to what they raise."""

        def case(number: int, rank: int) -> Case:
            def time(deadline: float) -> Measurement:
                visit = sum(entry[:2] == (name, number) for entry in self.log)
                self.log.append((name, number, deadline))
                self.now += seconds
                if number in (fails or {}):
                    raise fails[number]
                return a_measurement(medians[visit % len(medians)], first_call_seconds=1.0 + visit)

            return Case({"i": number}, time, rank, shares)

        return Experiment(name, name, lambda device: [case(i, r) for i, r in enumerate(ranks)])

    def run(self, path: Path | str, *only: Experiment, **options: Any) -> Recording:
        """Record the experiments, once each, on this clock."""
        options = {"device": "cpu", "name": "test", "visits": 1, "minutes": 60, **options}
        return recorder.record(path, only=only, clock=lambda: self.now, **options)

    def ran(self) -> list[tuple[str, int]]:
        """Return the cases run since the last call."""
        found, self.log = [entry[:2] for entry in self.log], []
        return found


REACH = "time did not reach it"


@pytest.fixture
def bench() -> Bench:
    """Experiments on a clock of their own."""
    return Bench()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the recording goes."""
    return tmp_path / "r.json"


def test_the_most_telling_cases_run_first(bench: Bench, path: Path) -> None:
    """Cases run by rank across experiments, and in the given order within a rank."""
    bench.run(path, bench("late", [3, 1]), bench("early", [0, 2]))
    assert bench.ran() == [("early", 0), ("late", 1), ("early", 1), ("late", 0)]


def test_a_run_ends_with_its_budget_and_a_later_one_goes_on(bench: Bench, path: Path) -> None:
    """In 25 s three cases of 10 s run; the next run takes the failed and unreached ones."""
    a = bench("a", [0] * 4, fails={1: RuntimeError("boom  \n happened")})
    reasons = {"a i=1": "RuntimeError: boom happened", "a i=3": REACH}
    first = bench.run(path, a, minutes=25 / 60)
    assert (
        {entry.key: entry.reason for entry in first.missing()},
        recordings.read(path).to_dict(),
    ) == (reasons, first.to_dict())
    bench.ran()
    other = bench.run(path, bench("b", [0]))
    assert {entry.key: entry.reason for entry in other.missing()} == reasons
    assert bench.run(path, a, stop=lambda: True).missing() == other.missing()
    assert bench.ran() == [("b", 0)]
    assert [entry.recorded for entry in bench.run(path, a).select("a")] == [True] * 3
    assert bench.ran() == [("a", 1), ("a", 3)]
    assert len(bench.run(path, a, restart=True).entries) == 4
    assert len(bench.ran()) == 4


def test_a_continued_file_keeps_what_stood_in_it(bench: Bench, path: Path) -> None:
    """Name, notes, commands, dates and libraries of earlier runs stay; a new run adds its own."""
    a, date = bench("a", [0] * 3), "2026-01-02T03:04:05+00:00"
    first = bench.run(path, a, minutes=5 / 60, name="old-box", command="one")
    libraries = {**first.environment.libraries, "gone": "0.30"}
    old = dataclasses.replace(
        first, notes=("It stood in the sun.",),
        entries=tuple(dataclasses.replace(entry, date=None) for entry in first.entries),
        environment=dataclasses.replace(first.environment, date=date, libraries=libraries),
    )  # fmt: skip
    recordings.write(old, path)
    second = bench.run(path, a, minutes=5 / 60, name=None, command="two")
    assert (
        second.name,
        second.notes,
        second.environment.command,
        second.environment.libraries,
    ) == ("old-box", old.notes, "one, continued by two", libraries)
    assert second.evidence(second.find("a", i=0)).date == date
    assert date < second.environment.date <= second.evidence(second.find("a", i=1)).date
    third = bench.run(path, a, command=None, name="new-box", minutes=7)
    assert third.environment.command.endswith("two, continued by gpulab record --minutes 7")


def test_a_failing_case_costs_only_itself(bench: Bench, path: Path) -> None:
    """Any error of a library becomes the case's reason; Ctrl-C keeps the cases recorded so far."""
    recording = bench.run(path, bench("a", [0] * 3, fails={1: AttributeError("no int1")}))
    assert [entry.reason for entry in recording.entries] == [None, "AttributeError: no int1", None]
    with pytest.raises(KeyboardInterrupt):
        bench.run(path, bench("b", [0] * 3, fails={1: KeyboardInterrupt()}))
    there = recordings.read(path)
    assert [entry.recorded for entry in there.entries if entry.experiment == "b"] == [
        True, False, False
    ]  # fmt: skip
    assert len(there.select("a")) == 2


def test_stop_ends_after_the_case_in_flight(bench: Bench, path: Path) -> None:
    """A stop after one case keeps it; a stop before any is an error, and no file is written."""
    a = bench("a", [0] * 3)
    assert len(bench.run(path, a, stop=lambda: len(bench.log) == 1).missing()) == 2
    other = path.with_name("s.json")
    refused(StoppedError, bench.run, other, a, stop=lambda: True)
    assert not other.exists()


def test_progress_counts_the_cases_of_this_run(bench: Bench, path: Path) -> None:
    """Progress shows the count, the case, the visit if there are several, and the seconds left."""
    seen: list[tuple[float, str]] = []
    show = lambda fraction, text: seen.append((fraction, text))  # noqa: E731
    bench.run(path, bench("a", [0]))
    bench.run(path, bench("b", [0] * 2), minutes=1, progress=show)
    bench.run(path, bench("c", [0] * 2, 1.0), minutes=1, visits=2, progress=show)
    assert seen == [
        (0.5, "1 of 2 · b i=0 · 50 s left"), (1.0, "2 of 2 · b i=1 · 40 s left"),
        (0.25, "1 of 2 · c i=0 · visit 1 of 2 · 59 s left"),
        (0.5, "2 of 2 · c i=1 · visit 1 of 2 · 58 s left"),
        (0.75, "2 of 2 · c i=0 · visit 2 of 2 · 57 s left"),
        (1.0, "2 of 2 · c i=1 · visit 2 of 2 · 56 s left"),
    ]  # fmt: skip


def test_each_case_gets_a_bounded_share_of_the_budget(bench: Bench, path: Path) -> None:
    """A share gets 0.15 to 1 s; of 4 s, cases of one share get 0.5 s and one of five 2.5 s."""
    bench.run(path, bench("a", [0] * 4, seconds=0.0), minutes=1 / 600)
    bench.run(path, bench("b", [0], seconds=0.0))
    cases = (bench("c", [0] * 3, seconds=0.5), bench("d", [1], seconds=2.5, shares=5))
    bench.run(path, *cases, minutes=4 / 60)
    bench.run(path, *cases, restart=True)
    assert [deadline for _, _, deadline in bench.log] == pytest.approx(
        [0.15] * 4 + [1.0] + [0.5] * 3 + [2.5] + [1.0] * 3 + [5.0]
    )


def test_visits_lie_apart(bench: Bench, path: Path) -> None:
    """Visits rotate over 30 cases; near the budget's end only cases that can finish are begun."""
    recording = bench.run(path, bench("a", [0] * 31, seconds=1.0), visits=3)
    assert (
        [number for _, number in bench.ran()],
        {len(entry.timing.visits_seconds) for entry in recording.entries},
    ) == ([*[*range(30)] * 3, 30, 30, 30], {3})
    many = bench.run(path, bench("b", [0] * 60, seconds=1.0), visits=3, minutes=100 / 60)
    assert [len(entry.timing.visits_seconds or (1,)) for entry in many.select("b")] == [
        *([3] * 33), 1,
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_interval_is_students_t_between_visits(bench: Bench, path: Path, count: int) -> None:
    """The interval is SciPy's for the medians' logarithms; samples of all visits are kept. What is
    a quarter of the median, or three times as much, in each visit is so in all of them. The
    first call is the first visit's, and the energy the mean.
    """
    stats = pytest.importorskip("scipy.stats")
    medians = np.random.default_rng(count).lognormal(-7.0, 0.1, count)
    timing = bench.run(path, bench("a", [0], 1.0, medians=tuple(medians)), visits=count)
    timing = timing.entries[0].timing
    logs = np.log(medians)
    wanted = np.exp(stats.t.interval(0.95, count - 1, loc=logs.mean(), scale=stats.sem(logs)))
    assert (timing.interval_seconds, timing.visits_seconds) == (
        pytest.approx(tuple(wanted), rel=1e-3),
        pytest.approx(tuple(medians)),
    )
    found = (
        *(timing.median_seconds, 4 * timing.launch_seconds, timing.with_transfer_seconds / 3),
        *(timing.energy_joules, timing.energy_error_joules),
        *(timing.sample_count, timing.first_call_seconds),
    )
    assert found == pytest.approx(
        (*[np.median(medians)] * 3, 50 * medians.mean(), 5 * medians.mean(), 50 * count, 1.0)
    )
    kept = [(timing.samples_seconds == median).sum() for median in medians]
    assert 32 // count - 1 <= min(kept) <= sum(kept) / count <= 32 / count


def test_what_is_long_or_fails_is_visited_once(bench: Bench, path: Path) -> None:
    """A case of over ten seconds has one visit; a failed later visit keeps the first result."""
    long, slow = bench("long", [0], 10.5), bench("slow", [0], 0.0, medians=(0.3,))
    fails: dict[int, Exception] = {1: RuntimeError("x")}
    recording = bench.run(path, long, slow, bench("short", [0, 0], 1.0, fails=fails), visits=3)
    first = [("long", 0), ("slow", 0), ("short", 0), ("short", 1)]
    assert (bench.ran(), [entry.recorded for entry in recording.entries]) == (
        [*first, ("short", 0), ("short", 0)],
        [True, True, True, False],
    )
    b = bench("b", [0], 1.0, fails=fails)
    fails.clear()
    before = bench.run(path, b, minutes=0.01, visits=3).find("b", i=0)
    fails[0] = RuntimeError("x")
    after = bench.run(path, b, slow, visits=3).find("b", i=0)
    assert (after.to_dict(), len(bench.ran())) == (before.to_dict(), 2)


def test_what_is_kept_of_a_measurement(bench: Bench, path: Path) -> None:
    """Every value is kept, and 32 of 500 samples in order, with the first and the last."""
    given = a_measurement(
        250.0, 500, samples_seconds=np.arange(1.0, 501.0), interval_seconds=(240.0, 260.0),
        first_call_seconds=2.0, launch_seconds=0.5, with_transfer_seconds=4.0,
        calls_per_sample=3, flops=7.0, nbytes=9.0, energy_joules=5.0, energy_error_joules=0.5,
    )  # fmt: skip
    one = Experiment("a", "", lambda device: [Case({"i": 0}, lambda deadline: given)])
    (entry,) = bench.run(path, one).entries
    kept = entry.timing.samples_seconds
    assert (len(kept), kept[0], kept[-1], bool((np.diff(kept) > 0).all())) == (32, 1, 500, True)
    for name in ("median_seconds", "interval_seconds", "first_call_seconds", "launch_seconds",
                 "with_transfer_seconds", "calls_per_sample", "flops", "nbytes", "energy_joules",
                 "energy_error_joules"):  # fmt: skip
        assert getattr(entry.timing, name) == getattr(given, name), name
    assert (entry.timing.sample_count, entry.date) == (500, given.environment.date)


def test_bad_input_is_refused_before_anything_runs(
    bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid budgets, visits, names, experiments and files; values at the limits are accepted."""
    a = bench("a", [0])
    for wrong in (
        {"visits": 0}, {"visits": 11}, {"visits": True}, {"minutes": 0}, {"minutes": -1},
        {"minutes": float("nan")}, {"minutes": 24 * 60 + 1}, {"name": "../x"}, {"name": ""},
        {"name": "x" * 65}, {"name": 5},
    ):  # fmt: skip
        refused(InputError, bench.run, path, a, **wrong)
    places = {5: InputError, "a\0b": InputError, "~nobody-of-that-name/r.json": InputError,
              path / "no" / "r.json": RecordingError}  # fmt: skip
    for out, error in places.items():
        refused(error, bench.run, out, a)
    refused(RecordingError, bench.run, path.parent, a).match("is a folder")
    for only in ("no-such", 5, Experiment("empty", "", lambda device: [])):
        refused(InputError, bench.run, path, only)
    assert (bench.ran(), list(path.parent.glob("*.json"))) == ([], [])
    monkeypatch.setenv("HOME", str(path.parent))
    bench.run("~/r.json", a, minutes=24 * 60, name="x" * 64, visits=10)
    assert recordings.read(path).name == "x" * 64
    named = bench.run(path.with_name("s.json"), a, name=None)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", named.name)


def test_two_recorders_do_not_share_a_file(bench: Bench, path: Path) -> None:
    """A recorder that starts while another writes the same file is refused."""
    b = bench("b", [0])

    def time(deadline: float) -> Any:
        refused(RecordingError, bench.run, path, b)
        return a_measurement()

    one = Experiment("a", "", lambda device: [Case({"i": 0}, time)])
    assert bench.run(path, one).missing() == ()


def test_the_file_is_whole_after_each_case(bench: Bench, path: Path) -> None:
    """The file is saved every five seconds and at the end, and never loses a case."""
    counts = []

    def count(fraction: float, text: str) -> None:
        counts.append(sum(entry.recorded for entry in recordings.read(path).entries))

    bench.run(path, bench("a", [0] * 6, seconds=2.5), progress=count)
    assert (counts, len(recordings.read(path).select("a"))) == ([1, 1, 3, 3, 5, 5], 6)


REGISTER = """
import os, signal, sys
from test_record import a_measurement
from gpulab import cli, recorder
from gpulab.evidence import Evidence
from gpulab.recorder import Case, Experiment
from gpulab.recordings import Recording
from gpulab.timing import Measurement
number, presses = getattr(signal, sys.argv[1]), int(sys.argv[2])
signal.signal(number, signal.default_int_handler)  # not ignored, as it would be under nohup
def time(deadline):
    for _ in range(presses):
        signal.raise_signal(number)
    return a_measurement()
cases = [Case({"i": i}, time) for i in range(3)]
recorder.register(Experiment("a long climb", "", lambda device: cases))
sys.exit(cli.main(["record", "--only", "a long climb", "--device", "cpu", *sys.argv[3:]]))
"""


def in_a_process(
    folder: Path, *words: str, stdout: Any = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run `gpulab record` with cases that raise the signal ``words[0]``, ``words[1]`` times."""
    tests = Path(__file__).parents[1]
    places = [str(tests / "recorder"), str(tests / "recordings"), str(tests), str(tests.parent)]
    return subprocess.run(
        [sys.executable, "-c", REGISTER, *words], cwd=folder, stdout=stdout, text=True,
        stderr=subprocess.PIPE, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
@pytest.mark.parametrize(("name", "presses"), [("SIGINT", 1), ("SIGHUP", 1), ("SIGTERM", 2)])
def test_signals_end_a_recording_after_the_case(tmp_path: Path, name: str, presses: int) -> None:
    """The first signal ends the run after the current case, which is kept; the second at once."""
    done = in_a_process(tmp_path, name, str(presses), "--out", "r.json", "--visits", "1")
    assert (done.returncode == 0, (tmp_path / "r.json").exists()) == (presses == 1,) * 2
    if presses == 2:
        return
    recording = recordings.read(tmp_path / "r.json")
    assert recording.environment.command == (
        "gpulab record --out FILE --minutes 8 --device cpu --visits 1 --only 'a long climb'"
    )
    assert done.stdout.splitlines()[-2:] == [
        f"1 of 3 cases recorded on {recording.environment.device} in r.json",
        f"  2 not recorded: {REACH}",
    ]
    assert done.stderr.count("Ctrl-C") == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes of Windows end otherwise")
def test_a_recording_ends_when_its_reader_has_gone(tmp_path: Path) -> None:
    """When the pipe's reader ends (``| head``), the current case is kept and the command ends."""
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        done = in_a_process(tmp_path, "SIGINT", "0", "--out", "r.json", stdout=reader.stdin)
    assert (done.returncode, len(recordings.read(tmp_path / "r.json").missing())) == (141, 2)


def test_the_command_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    approved: Any,
) -> None:  # fmt: skip
    """The command lists the experiments and records one; an unknown name shows them all."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    for words in (["--list"], ["--device", "cpu"], ["--out", "r.json", "--only", "climb"]):
        print("exit code", cli.main(["record", *words]))
    printed = capsys.readouterr()
    assert printed.out + printed.err == approved
    # Waiting for another process's measurement could make the case long: it would have one visit.
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "turns"))
    assert not cli.main(
        [
            *("record", "--out", "r.json", "--only", "launch", "--device", "cpu"),
            *("--minutes", "5", "--visits", "2", "--name", "mine"),
        ]
    )
    first, *_, last = capsys.readouterr().out.splitlines()
    assert re.search("1 of 1 .*launches=1000.* visit 1 of 2", first)
    assert re.search(f"1 of 1 .*{re.escape(devices.find('cpu').name)} .*r.json", last)
    assert signal.getsignal(signal.SIGINT) is before
    recording = recordings.read("r.json")
    assert (len(recording.entries[0].timing.visits_seconds), recording.name) == (2, "mine")
