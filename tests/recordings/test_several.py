"""Two recordings: differences by hand, and joining without mixing machines, dates or cases."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib

import pytest
from test_recordings import a_recording, a_timing

from gpulab import cli, recordings
from gpulab.errors import InputError, RecordingError
from gpulab.recordings import Entry, Recording

EARLIER, LATER = "2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00"


def made(date: str, *entries: Entry, **environment: object) -> Recording:
    """The invented machine's recording on a date."""
    plain = a_recording()
    return dataclasses.replace(plain, environment=dataclasses.replace(plain.environment, date=date, **environment), entries=entries)


def timed(n: int, seconds: float, date: str | None = None, width: float = 0.1) -> Entry:
    """One case."""
    interval = (seconds * (1 - width), seconds * (1 + width))
    return Entry("e", {"n": n}, a_timing(median_seconds=seconds, interval_seconds=interval), None, date)


def test_differences_by_hand() -> None:
    """2 ms after 1 ms, 10 % wide each: 2x from 1.8 / 1.1 to 2.2 / 0.9, so they differ; 1.05 ms after 1 ms does not."""
    first = made(EARLIER, timed(1, 1e-3), timed(2, 1e-3), timed(3, 1e-3), Entry("e", {"n": 5}, None, "time did not reach it"))
    second = made(LATER, timed(1, 1.05e-3), timed(2, 2e-3), timed(4, 1e-3), timed(5, 1e-3), driver="590.0")
    found = recordings.diff(first, second)
    assert [d.key for d in found.differences] == ["e n=2", "e n=1"]
    large, small = found.differences
    assert large.ratio == pytest.approx(2)
    assert large.interval == pytest.approx((1.8 / 1.1, 2.2 / 0.9))
    assert (large.differs, small.differs) == (True, False)
    assert (found.only_first, found.only_second) == (("e n=3",), ("e n=4", "e n=5"))
    assert found.environment == {"driver": ("580.1", "590.0"), "date": (EARLIER, LATER)}
    assert found.agreement() == 0.5
    assert recordings.RecordingDiff.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_agreement_counts_small_ratios_and_missing_intervals() -> None:
    """Within 2 % agrees even where the intervals are narrower; without an interval only the ratio speaks; nothing in common is nan."""
    first = made(EARLIER, timed(1, 1e-3, width=0.001), Entry("e", {"n": 2}, a_timing(interval_seconds=None)))
    second = made(LATER, timed(1, 1.015e-3, width=0.001), Entry("e", {"n": 2}, a_timing(interval_seconds=None, median_seconds=1.05e-3)))
    found = recordings.diff(first, second)
    assert found.differences[1].differs is True
    assert found.differences[0].differs is None
    assert found.agreement() == 0.5
    assert found.agreement(0.06) == 1.0
    assert math.isnan(recordings.diff(made(EARLIER), second).agreement())


def test_joining_takes_the_later_of_two_and_keeps_dates() -> None:
    """The order of the arguments does not matter; a case that the later run did not reach stays the earlier one's."""
    old = made(EARLIER, timed(1, 1e-3), timed(2, 1e-3), Entry("e", {"n": 3}, None, "time did not reach it"))
    new = made(LATER, timed(1, 2e-3), Entry("e", {"n": 2}, None, "time did not reach it"), timed(3, 3e-3))
    for both in (recordings.merge(old, new), recordings.merge(new, old)):
        assert {e.key: (e.timing.median_seconds, e.date) for e in both.entries if e.timing} == {
            "e n=1": (2e-3, LATER),
            "e n=2": (1e-3, EARLIER),
            "e n=3": (3e-3, LATER),
        }
        assert both.environment.date == LATER
        assert both.evidence(both.find("e", n=2)).date == EARLIER


def test_a_joined_recording_names_the_commands_of_all_its_runs() -> None:
    """Earlier ones first, each once; of the thirty of a file that is continued every day the first and the latest four."""
    days = [made(f"2026-11-{day:02d}T10:00:00+00:00", timed(day, 1e-3), command=f"gpulab record --minutes {day}") for day in range(1, 31)]
    one, two = (day.environment.command for day in days[:2])
    assert recordings.merge(days[1], days[0]).environment.command == f"{one}, continued by {two}"
    assert recordings.merge(recordings.merge(*days[:2]), made(LATER, command=two)).environment.command == f"{one}, continued by {two}"
    named = (day.environment.command for day in days[-4:])
    assert functools.reduce(recordings.merge, days).environment.command == ", continued by ".join((one, "others", *named))
    assert recordings.merge(made(EARLIER, command=None), days[1]).environment.command == two


@pytest.mark.parametrize(
    "change", [{"device": "Another"}, {"driver": "1.0"}, {"libraries": {"torch": "2.0"}}, {"system": "Windows"}, {"python": "3.13"}]
)
def test_other_machines_and_software_are_not_joined(change: dict[str, object]) -> None:
    """What was not made alike never stands in one file."""
    with pytest.raises(RecordingError, match=f"differ in {next(iter(change))}"):
        recordings.merge(made(EARLIER, timed(1, 1e-3)), made(LATER, timed(2, 1e-3), **change))


def test_a_library_that_came_later_does_not_part_two_runs() -> None:
    """What both name has the same version; jax, installed in between, had no part in the first."""
    before = dict(a_recording().environment.libraries)
    both = recordings.merge(made(EARLIER, timed(1, 1e-3)), made(LATER, timed(2, 1e-3), libraries={**before, "jax": "0.10"}))
    assert {entry.key for entry in both.entries} == {"e n=1", "e n=2"}
    assert both.environment.libraries["jax"] == "0.10"


def test_the_joined_file_names_a_library_that_the_later_run_no_longer_had() -> None:
    """The earlier run's cases were made with it; taken away and put back in another version, it parts a third run from the two."""
    before = dict(a_recording().environment.libraries)
    old = made(EARLIER, timed(1, 1e-3), libraries={**before, "numba-cuda": "0.30"})
    both = recordings.merge(old, made(LATER, timed(2, 1e-3)))
    assert both.environment.libraries == {**before, "numba-cuda": "0.30"}
    assert "numba-cuda 0.30" in both.evidence(both.find("e", n=1)).sentence
    with pytest.raises(RecordingError, match="differ in libraries"):
        recordings.merge(both, made(LATER, timed(3, 1e-3), libraries={**before, "numba-cuda": "0.31"}))


def test_what_is_no_recording_is_refused() -> None:
    """In a sentence that names the call."""
    with pytest.raises(InputError, match=r"recordings\.diff: 'x' is no recording"):
        recordings.diff(a_recording(), "x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"recordings\.merge: None is no recording"):
        recordings.merge(None, a_recording())  # type: ignore[arg-type]


def test_a_file_of_the_first_version_is_read(tmp_path: pathlib.Path) -> None:
    """Its entries have no date; the recording's own stands for them. A later field in an early file is refused."""
    data = a_recording().to_dict()
    for entry in data["entries"]:
        entry["schema_version"] = 1
        del entry["date"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    read = recordings.read(path)
    assert read.entries[0].date is None
    assert read.evidence(read.entries[0]).date == read.environment.date
    data["entries"][0]["schema_version"] = 2
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match=r"missing or unknown.*date"):
        recordings.read(path)
    del data["entries"][0]["reason"]
    data["entries"][0]["schema_version"] = 3
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match="schema version 3"):
        recordings.read(path)


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """List, show, compare and join, and one sentence where it is asked wrongly."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    recordings.write(made(EARLIER, timed(1, 1e-3)), paths[0])
    recordings.write(made(LATER, timed(1, 2e-3), timed(2, 1e-3)), paths[1])
    assert cli.main(["recordings"]) == 0
    assert "amd-epyc-2-cores" in capsys.readouterr().out
    hostile = dataclasses.replace(made(EARLIER, Entry("e", {"n": 1}, None, "\x1b[2Jgone"), device="\x1b[31mred"), name="last")
    recordings.write(hostile, tmp_path / "zz.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULAB_RECORDINGS", str(tmp_path))
        assert cli.main(["recordings"]) == 0
        listed = capsys.readouterr().out
        assert cli.main(["recordings", "--show", "zz"]) == 0
    assert "broken: cannot be read. recordings.read: 'broken.json' is not JSON" in listed
    assert r"zz: <recording 'last': \x1b[31mred, 2026-11-20, 0 of 1 entries>" in listed, "what is after a bad file is listed all the same"
    assert r"e n=1  not recorded: \x1b[2Jgone" in capsys.readouterr().out
    assert cli.main(["recordings", "--show", str(paths[0])]) == 0
    assert "e n=1" in capsys.readouterr().out
    assert cli.main(["recordings", "--diff", *map(str, paths)]) == 0
    assert "2.00x" in capsys.readouterr().out
    out = tmp_path / "both.json"
    assert cli.main(["recordings", "--merge", *map(str, paths), "--out", str(out)]) == 0
    assert len(recordings.read(out).entries) == 2
    alone = "expected one of --show, --diff and --merge, and --out with --merge alone."
    refused = {
        ("--merge", *map(str, paths)): "expected --out FILE", ("--show", "x", "--diff", "x", "y"): alone, ("--show", "nobody"): "expected",
        ("--out", str(out)): alone, ("--show", "x", "--out", str(out)): alone,
    }  # fmt: skip
    for wrong, said in refused.items():
        capsys.readouterr()
        assert cli.main(["recordings", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_a_comparison_in_a_table_and_in_one_line() -> None:
    """By hand, as above: 2 ms after 1 ms; what differs in the machine comes first."""
    found = recordings.diff(made(EARLIER, timed(1, 1e-3), timed(3, 1e-3)), made(LATER, timed(1, 2e-3), libraries={"jax": "0.10"}))
    assert found.table() == (
        ("case", "test", "test", "second / first"),
        [
            ("date", EARLIER, LATER, ""), ("jax", "none", "0.10", ""), ("torch", "2.11.0", "none", ""),
            ("e n=1", "1.00 ms", "2.00 ms", "2.00x [1.64x, 2.44x]"),
        ],
    )  # fmt: skip
    assert repr(found) == "<test and test: 1 case in both, 1 differ; 1 only in the first, 0 only in the second>"
    assert found.caption() == "; ".join(one.sentence for one in found.evidence)
    without = dataclasses.replace(found, differences=(dataclasses.replace(found.differences[0], interval=None),))
    assert without.table()[1][-1][-1] == "2.00x no interval"


def test_of_two_times_of_one_moment_the_second_stands() -> None:
    """And the notes of both, each once."""
    one, other = (dataclasses.replace(made(EARLIER, timed(1, s)), notes=("n", note)) for s, note in ((1e-3, "a"), (2e-3, "b")))
    both = recordings.merge(one, other)
    assert (both.entries[0].timing.median_seconds, both.notes, both.name) == (2e-3, ("n", "a", "b"), "test")


def test_the_command_says_where_the_joined_file_is(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line; a folder in its place is a sentence; a file without .json is found by its path."""
    path, out = tmp_path / "a.json", tmp_path / "both.json"
    recordings.write(made(EARLIER, timed(1, 1e-3)), path)
    assert cli.main(["recordings", "--merge", str(path), str(path), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"<recording 'test': Test Device, 2026-11-20, 1 of 1 entries> in {out}\n"
    assert cli.main(["recordings", "--merge", str(path), str(path), "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    path.rename(tmp_path / "plain")
    assert cli.main(["recordings", "--show", str(tmp_path / "plain")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "<recording 'test': Test Device, 2026-11-20, 1 of 1 entries>",
        "case   median   95 % interval      visits  arithmetic    memory traffic",
    ]


def test_a_long_reason_makes_no_column_wide(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reason is the last of its line; the columns of the other cases stand as wide as without it."""
    path, plain = tmp_path / "a.json", tmp_path / "b.json"
    recordings.write(made(EARLIER, timed(1, 1e-3), Entry("e", {"n": 2}, None, "of an expectation " * 20)), path)
    recordings.write(made(EARLIER, timed(1, 1e-3)), plain)
    assert cli.main(["recordings", "--show", str(path)]) == 0
    *shown, reason = capsys.readouterr().out.splitlines()
    assert cli.main(["recordings", "--show", str(plain)]) == 0
    assert shown[1:] == capsys.readouterr().out.splitlines()[1:]
    assert reason == "e n=2  not recorded: " + ("of an expectation " * 20).rstrip()


@pytest.mark.parametrize(("ratio", "agrees"), [(1.019, True), (0.981, True), (1.021, False), (0.979, False)])
def test_two_percent_are_agreement_if_nothing_else_is_said(ratio: float, agrees: bool) -> None:
    """Whatever narrow intervals say; a tolerance of one's own takes its place."""
    found = recordings.diff(made(EARLIER, timed(1, 1e-3, width=1e-4)), made(LATER, timed(1, ratio * 1e-3, width=1e-4)))
    assert found.agreement() == float(agrees)
    assert (found.agreement(0.03), found.agreement(0.01)) == (1.0, 0.0)
