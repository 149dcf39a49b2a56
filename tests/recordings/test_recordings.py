"""Recordings: read back as written, refused where damaged, compared, joined, and listed."""

import copy
import dataclasses
import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpulab import cli, recordings
from gpulab.errors import InputError, RecordingError
from gpulab.recordings import Entry
from made_recordings import EARLIER, LATER, MATMUL, a_recording, a_timing, made, timed

from refusals import refused

SHIPPED = [path.stem for path in sorted(recordings.directory().glob("*.json"))]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the learner's own recordings."""
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    return tmp_path


def test_a_written_recording_is_read_back(tmp_path: Path) -> None:
    """A recording is read back as written, also when overwritten; no temporary file is left."""
    path = tmp_path / "test.json"
    for recording in (a_recording(), a_recording(name="another")):
        recordings.write(recording, path)
        assert recordings.read(path).to_dict() == recording.to_dict()
    assert [each.name for each in tmp_path.iterdir()] == ["test.json"]


def test_lookup_finds_what_was_recorded_and_nothing_else() -> None:
    """`find` needs all parameters, `select` some; a parameter may have any name."""
    recording = a_recording()
    (there,) = recording.select("catalogue", workload="matmul")
    assert recording.find("catalogue", **MATMUL) is there
    for some in ({**MATMUL, "n": 2048}, {"workload": "matmul"}):
        assert recording.find("catalogue", **some) is None
    assert recording.select("other") == recording.select("catalogue", n=5) == ()
    assert [entry.reason for entry in recording.missing()] == ["time did not reach it"]
    odd = Entry("e", {"self": 1, "experiment": "x"}, a_timing())
    assert a_recording(entries=(odd,)).find("e", **odd.params) is odd


def _change(*path: Any, **new: Any) -> Callable[[dict[str, Any]], object]:
    """Return a function that updates the object at this place of a document."""

    def change(data: Any) -> None:
        for key in path:
            data = data[key]
        data.update(new)

    return change


TIMING = ("entries", 0, "timing")
DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    _change(schema_version=99), _change(schema="Other"), _change(extra=1), _change(name="\x1b[2J"),
    lambda d: d.pop("entries"), lambda d: d["entries"].append(copy.deepcopy(d["entries"][0])),
    lambda d: d["entries"][0]["params"].pop("dtype"), _change("entries", 0, timing=None),
    *(_change(*TIMING, median_seconds=value, interval_seconds=None)
      for value in (-1.0, 0.0, "nan", 1.01e9, 0.99e-15, True)),
    *(_change(*TIMING, visits_seconds=value)
      for value in ([1e-3, 1.1e9], [1e-3, 0.9e-15], [0.0], [1e-3] * 4)),
    _change(*TIMING, interval_seconds=[2.0, 3.0]), _change(*TIMING, sample_count=1),
    _change(*TIMING, samples_seconds="many"), _change(*TIMING, samples_seconds=[]),
    _change(*TIMING, calls_per_sample=0), _change(*TIMING, calls_per_sample=1.01e15),
    _change(*TIMING, sample_count=10**400), _change(*TIMING, flops=-5.0),
    _change(*TIMING, nbytes=1.01e30), _change(*TIMING, launch_seconds=-1.0),
    _change("entries", 0, date=""), _change("entries", 0, experiment="cata\ud800logue"),
    _change("entries", 0, experiment="\x1b[2J"), _change("entries", 0, reason="both"),
    *(_change("entries", 0, "params", **{name: value}) for name, value in (
        ("a\rb", 1), ("workload", "\u202emul"), ("dtype", 32), ("n", "1024"), ("n", 0),
        ("n", 2**62 + 1), ("n", 10**400))),
    _change("entries", 1, "params", steps="ten"),
    *(_change("environment", **{name: value}) for name, value in (
        ("device", ""), ("date", ""), ("cores", "two"), ("cores", True), ("device", "\udfff"))),
]  # fmt: skip


@pytest.mark.parametrize("change", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Callable[[Any], object]) -> None:
    """Impossible values, unknown parameters and hidden characters are refused in one sentence."""
    data = a_recording().to_dict()
    change(data)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError) as caught:
        recordings.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "null", '"x"', "{" * 100_000, "[" * 200_000, '{"a": NaN}', "\x00\x01",
     "\ufeff{}", "1e999", '{"a": 1, "a": 2}', '{"schema": "Recording", "clocks_seen": [1e999]}'],
)  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    """Other JSON, invalid JSON and very deep nesting are refused without a crash."""
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    refused(RecordingError, recordings.read, path)


def test_a_file_that_is_too_large_or_cut_off_is_refused(tmp_path: Path) -> None:
    """The limit is 20 MiB; a truncated file is refused wherever it was cut."""
    path, text = tmp_path / "x.json", json.dumps(a_recording().to_dict())
    for cut in range(0, len(text), 97):
        path.write_text(text[:cut])
        refused(RecordingError, recordings.read, path)
    for nbytes, words in ((20 * 2**20, "not JSON"), (20 * 2**20 + 1, "more than 20,971,520")):
        os.truncate(path, nbytes)
        refused(RecordingError, recordings.read, path).match(words)


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 1e-320, 2**70, "", "nan", "x" * 5000, [], {}, [[[]]], 3.5, "1e5",
)  # fmt: skip
WORDS = ("1e999", "NaN", "null", "[" * 3000, "\\u0000", "0x10", "1_000", "00", "//", "", "7")


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document."""
    items = data.items() if isinstance(data, dict) else ()
    inner = enumerate(data) if isinstance(data, list) else items
    return [each for key, item in inner for each in [(*path, key), *places(item, (*path, key))]]


def mutated(chance: random.Random) -> str:
    """Return a recording's text with a value or key changed or removed, or other characters."""
    data = a_recording().to_dict()
    *path, last = chance.choice(places(data))
    holder = functools.reduce(lambda part, key: part[key], path, data)
    value, kind = holder.pop(last), chance.randrange(4)
    if isinstance(holder, list):
        holder.insert(last, chance.choice(VALUES))
    elif kind:
        name = last + chance.choice((" ", "s", "\u0000")) if kind == 1 else last
        holder[name] = chance.choice(VALUES) if kind == 2 else value
    text = json.dumps(data)
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(WORDS) + text[at + 1 :] if kind == 3 else text


def test_each_mutated_file_is_refused_or_read_as_it_is(tmp_path: Path) -> None:
    """A mutated file is refused with a RecordingError, or read exactly as the file states."""
    path, read = tmp_path / "x.json", 0
    for number in range(500):
        text = mutated(random.Random(number))
        path.write_text(text, encoding="utf-8")
        try:
            found = recordings.read(path)
        except RecordingError:
            continue
        read += 1
        assert found.to_dict() == json.loads(text), (number, text[:300])
    assert 20 < read < 250, "a change of a free text is read, most others are not"


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Version 1 is read; version 2 without its new fields and an unknown version are refused."""
    data = a_recording().to_dict()
    entry = data["entries"][0]
    entry["schema_version"] = entry["timing"]["schema_version"] = 1
    del entry["date"], entry["timing"]["visits_seconds"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    recording = recordings.read(path)
    assert (recording.entries[0].date, recording.entries[0].timing.visits_seconds) == (None, ())
    assert recording.evidence(recording.entries[0]).date == recording.environment.date
    for version, reason in ((2, "date"), (3, "version 3")):
        entry["schema_version"] = version
        path.write_text(json.dumps(data))
        refused(RecordingError, recordings.read, path).match(reason)


def test_names_are_those_of_the_folders(own: Path) -> None:
    """Any file name is listed and loads, broken links are not; no name reaches other folders."""
    (own / "kept").mkdir()
    recordings.write(a_recording(), own / "kept" / "beside.json")
    mine = ("Lab PC 3", "Übung", "x" * 80, ".hidden")
    for name in mine:
        recordings.write(a_recording(), own / f"{name}.json")
    (own / "nothing.json").symlink_to(own / "gone")
    assert set(recordings.names()) == {*SHIPPED, *mine}
    assert {recordings.load(name).name for name in mine} == {"test"}
    for name in ("kept/beside", "../x", str(own / "kept" / "beside"), "/etc/passwd", "", "A", None):
        refused(RecordingError, recordings.load, name)


def test_a_damaged_recording_does_not_hide_the_others(own: Path) -> None:
    """`readable` leaves it out, `load` says why; a learner's file is preferred to a shipped one."""
    (own / "broken.json").write_text("{")
    recordings.write(a_recording(), own / f"{SHIPPED[0]}.json")
    assert set(recordings.readable()) == set(SHIPPED)
    assert recordings.readable()[SHIPPED[0]].name == recordings.load(SHIPPED[0]).name == "test"
    refused(RecordingError, recordings.load, "broken")


def test_a_path_may_begin_with_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is expanded, since a notebook has no shell to do so; unknown users are refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPULAB_RECORDINGS", "~/kept")
    recordings.write(a_recording(), tmp_path / "kept" / "mine.json")
    recordings.write(a_recording(), "~/mine.json")
    assert recordings.load("mine").to_dict() == recordings.read("~/mine.json").to_dict()
    refused(InputError, recordings.read, "~nobody-of-that-name/r.json")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships(name: str, approved: Any) -> None:
    """A shipped recording has the approved cases, and is the same if all of it is read and checked.

    The approved text has the number of cases of each experiment and the row of the first one.
    """
    recording = recordings.load(name)
    whole = recordings.read(recordings.directory() / f"{name}.json")
    assert recording.to_dict() == whole.to_dict()
    lines = [repr(recording), recording.caption()]
    for experiment in dict.fromkeys(entry.experiment for entry in recording.entries):
        cases = [entry for entry in recording.entries if entry.experiment == experiment]
        there = recording.select(experiment)
        row = recording.table()[1][recording.entries.index(there[0])] if there else ("none",)
        lines.append(f"{experiment}: {len(there)} of {len(cases)}; " + " | ".join(row))
    assert "\n".join(lines) + "\n" == approved


def test_the_table_has_rates_and_intervals() -> None:
    """2 GFLOP and 5 MB in 1 ms are 2 TFLOP/s and 5 GB/s; a missing interval is "none"."""
    entries = (
        Entry("catalogue", MATMUL, a_timing(nbytes=5.0e6)),
        Entry("e", {}, a_timing(visits_seconds=(1e-3, 1.1e-3), interval_seconds=None, flops=None)),
        Entry("e", {"n": 1}, None, "no time"),
    )
    headers, rows = a_recording(entries=entries).table()
    assert (len(headers), [row[0] for row in rows]) == (6, [entry.key for entry in entries])
    assert [row[1:] for row in rows] == [
        ("1.00 ms", "900 us to 1.10 ms", "1", "2.00 TFLOP/s", "5.00 GB/s"),
        ("1.00 ms", "none", "2", "", ""),
        ("not recorded: no time", "", "", "", ""),
    ]


def test_differences_by_hand() -> None:
    """2 ms after 1 ms, within 10 % each: 2x (1.8 / 1.1 to 2.2 / 0.9); 1.05 ms is no change. The
    largest change stands first, whether slower or faster.
    """
    late = Entry("e", {"n": 5}, None, "time did not reach it")
    first = made(EARLIER, timed(1, 1e-3), timed(2, 1e-3), timed(3, 1e-3), late, timed(6, 4e-3))
    second = made(LATER, timed(1, 1.05e-3), timed(2, 2e-3), timed(4, 1e-3), timed(5, 1e-3),
                  timed(6, 1e-3), driver="590.0", libraries={"jax": "0.10"})  # fmt: skip
    found = recordings.diff(first, second)
    faster, large, small = found.differences
    assert (faster.key, large.key, large.differs) == ("e n=6", "e n=2", True)
    assert (large.ratio, *large.interval) == pytest.approx((2, 1.8 / 1.1, 2.2 / 0.9))
    assert (small.key, small.differs) == ("e n=1", False)
    assert (found.only_first, found.only_second) == (("e n=3",), ("e n=4", "e n=5"))
    assert found.environment == {
        "driver": ("580.1", "590.0"), "date": (EARLIER, LATER), "jax": ("none", "0.10"),
        "torch": ("2.11.0", "none"),
    }  # fmt: skip
    assert found.table()[1][-2:] == [
        ("e n=2", "1.00 ms", "2.00 ms", "2.00x [1.64x, 2.44x]"),
        ("e n=1", "1.00 ms", "1.05 ms", "1.05x [0.86x, 1.28x]"),
    ]
    assert [line[0] for line in found.table()[1][:4]] == list(found.environment)


def test_joining_takes_the_later_of_two_and_keeps_dates() -> None:
    """The order of the arguments does not matter; a case that the later run lacks stays."""
    missing = [Entry("e", {"n": n}, None, "time did not reach it") for n in (2, 3)]
    old = made(EARLIER, timed(1, 1e-3), timed(2, 1e-3), missing[1])
    new = made(LATER, timed(1, 2e-3), missing[0], timed(3, 3e-3))
    for both in (recordings.merge(old, new), recordings.merge(new, old)):
        there = {e.key: (e.timing.median_seconds, e.date) for e in both.entries if e.timing}
        assert there == {
            "e n=1": (2e-3, LATER), "e n=2": (1e-3, EARLIER), "e n=3": (3e-3, LATER)
        }  # fmt: skip
        assert both.environment.date == both.evidence(experiment="e").date == LATER
    same = [dataclasses.replace(made(EARLIER, timed(1, s)), notes=("n", str(s))) for s in (1, 2)]
    both = recordings.merge(*same)
    assert (both.entries[0].timing.median_seconds, both.notes) == (2, ("n", "1", "2"))


@pytest.mark.parametrize(
    "change",
    [{"device": "Another"}, {"device_kind": "cpu"}, {"driver": "1.0"}, {"system": "Windows"},
     {"python": "3.13"}, {"libraries": {"torch": "2.0"}}],
)  # fmt: skip
def test_other_machines_and_software_are_not_joined(change: dict[str, Any]) -> None:
    """Different machines or software are refused; a library that only one has is accepted."""
    with pytest.raises(RecordingError, match=f"differ in {next(iter(change))} "):
        recordings.merge(made(EARLIER, timed(1, 1e-3)), made(LATER, timed(2, 1e-3), **change))
    more = {"torch": "2.11.0", "jax": "0.10"}
    both = recordings.merge(made(EARLIER, libraries=more), made(LATER))
    assert both.environment.libraries == more


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    approved: Any,
) -> None:  # fmt: skip
    """List, show, compare, join; a bad file hides nothing, and no control character is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path / "own"))
    reason = Entry("e", {"n": 3}, None, "of an expectation " * 6)
    recordings.write(
        made(EARLIER, timed(1, 1e-3), reason, *(timed(n, 1e-3) for n in (2, 4, 5, 6))), "a.json"
    )
    recordings.write(made(LATER, timed(1, 2e-3), timed(22, 1e-3), timed(2, 1e-3)), "own/b.json")
    gone = Entry("e", {"n": 1}, None, "\x1b[2Jgone")
    recordings.write(made(EARLIER, gone, device="\x1b[31mred"), "own/zz.json")
    Path("own/broken.json").write_text("[]")
    Path("plain").write_bytes(Path("own/b.json").read_bytes())
    for words in (
        [], ["--show", "zz"], ["--show", "a.json"], ["--show", "plain"],
        ["--diff", "a.json", "b"], ["--merge", "a.json", "b", "--out", "both.json"],
        ["--merge", "a.json", "b", "--out", "."], ["--merge", "a.json", "b"],
        ["--show", "zz", "--diff", "a.json", "b"], ["--out", "x.json"],
        ["--show", "zz", "--out", "x.json"],
    ):  # fmt: skip
        print("$ gpulab recordings", *words)
        print("exit code", cli.main(["recordings", *words]))
    printed = capsys.readouterr()
    assert printed.out + printed.err == approved
    assert len(recordings.read("both.json").entries) == 7
    assert not Path("x.json").exists()
