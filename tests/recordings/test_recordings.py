"""Recordings: what is written is read back, and what is damaged, hostile or too new is refused with a sentence."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import recordings
from gpulab.errors import InputError, RecordingError
from gpulab.evidence import Badge, Environment, Note
from gpulab.recordings import Entry, Recording, Timing, _files
from gpulab.recordings._schema import KEPT_SAMPLES, thin


def a_timing(**changes):
    """A plausible timing; the values are arbitrary."""
    fields = {
        "samples_seconds": np.array([1.0e-3, 1.1e-3, 0.9e-3]),
        "sample_count": 3,
        "median_seconds": 1.0e-3,
        "interval_seconds": (0.9e-3, 1.1e-3),
        "first_call_seconds": 0.2,
        "launch_seconds": 1.0e-4,
        "with_transfer_seconds": None,
        "calls_per_sample": 1,
        "flops": 2.0e9,
        "nbytes": None,
        "notes": (Note("slow-first-call", "the first call took 200 times as long"),),
    }
    return Timing(**{**fields, **changes})


def a_recording(**changes):
    """A small recording of an invented machine, used only inside these tests."""
    environment = Environment(
        date="2026-11-20T10:00:00+00:00",
        system="Linux",
        processor="P",
        cores=2,
        memory_bytes=2**34,
        device="Test Device",
        device_kind="cuda",
        driver="580.1",
        python="3.12.3",
        libraries={"torch": "2.11.0"},
        command="gpulab record --minutes 8",
    )
    entries = (
        Entry("catalogue", {"workload": "matmul", "n": 1024, "dtype": "float32"}, a_timing()),
        Entry("catalogue", {"workload": "matmul", "n": 2048, "dtype": "float32"}, None, "time did not reach it"),
    )
    fields = {
        "name": "test",
        "environment": environment,
        "clocks_seen": {"sm_mhz": 1980.0},
        "machine": {"a": [1, None]},
        "gpulab_version": "0.1.0",
        "entries": entries,
    }
    return Recording(**{**fields, **changes})


def test_a_written_recording_is_read_back_the_same(tmp_path):
    """Writing and reading changes nothing, and leaves no temporary file behind."""
    path = tmp_path / "test.json"
    recordings.write(a_recording(), path)
    assert recordings.read(path).to_dict() == a_recording().to_dict()
    assert [p.name for p in tmp_path.iterdir()] == ["test.json"]


def test_lookup_finds_what_was_recorded_and_nothing_else():
    """An exact lookup finds the case; one that was planned but not recorded is absent and listed as missing."""
    recording = a_recording()
    assert recording.find("catalogue", workload="matmul", n=1024, dtype="float32").timing.median_seconds == 1.0e-3
    assert recording.find("catalogue", workload="matmul", n=2048, dtype="float32") is None
    assert recording.find("catalogue", workload="matmul") is None
    assert [e.reason for e in recording.missing()] == ["time did not reach it"]
    assert len(recording.select("catalogue", workload="matmul")) == 1


def test_every_figure_carries_the_recorded_badge():
    """The evidence names device, driver, versions, date and command."""
    recording = a_recording()
    evidence = recording.evidence(recording.entries[0])
    assert evidence.badge is Badge.RECORDED
    assert evidence.samples == 3
    for word in ("RECORDED", "Test Device", "2026-11-20", "580.1", "torch 2.11.0", "gpulab record"):
        assert word in evidence.sentence


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d.update(schema_version=99), "version"),
        (lambda d: d.update(schema="Other"), "expected"),
        (lambda d: d.pop("entries"), "entries"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["entries"][0]["timing"].update(median_seconds=-1.0), "negative"),
        (lambda d: d["entries"][0]["timing"].update(median_seconds="nan"), "finite"),
        (lambda d: d["entries"][0]["timing"].update(median_seconds=1e308, interval_seconds=None), "no time that was measured"),
        (lambda d: d["entries"][0]["timing"].update(median_seconds=5e-324, interval_seconds=None), "no time that was measured"),
        (lambda d: d["entries"][0]["timing"].update(visits_seconds=[1e-3, 1.1e9]), "no time that was measured"),
        (lambda d: d["entries"][0]["timing"].update(visits_seconds=[1e-3, 0.9e-15]), "no time that was measured"),
        (lambda d: d["entries"][0].update(experiment="cata\ud800logue"), "half a character"),
        (lambda d: d["environment"].update(device="\udfff"), "half a character"),
        (lambda d: d.update(name="\x1b[2Jmine"), r"the name '\\x1b\[2Jmine' holds what cannot be shown"),
        (lambda d: d["entries"][0].update(experiment="\x1b[2J"), "what cannot be shown"),
        (lambda d: d["entries"][0]["params"].update({"a\rb": 1}), "what cannot be shown"),
        (lambda d: d["entries"][0]["params"].update(workload="\u202emul"), "what cannot be shown"),
        (lambda d: d["entries"][0]["timing"].update(interval_seconds=[2.0, 3.0]), "interval"),
        (lambda d: d["entries"][0]["timing"].update(sample_count=1), "counts"),
        (lambda d: d["entries"][0]["timing"].update(samples_seconds="many"), "samples_seconds"),
        (lambda d: d["entries"][0]["timing"].update(flops=-5.0), "FLOPs"),
        (lambda d: d["entries"][0].update(timing=None), "reason"),
        (lambda d: d["entries"].append(copy.deepcopy(d["entries"][0])), "two entries"),
        (lambda d: d["entries"][0]["timing"].update(sample_count=10**400), "nobody counts so many"),
        (lambda d: d["entries"][0]["timing"].update(calls_per_sample=10**16), "nobody counts so many"),
        (lambda d: d["entries"][0]["timing"].update(nbytes=1e300), r"expected FLOPs and bytes of 0 to 1e\+30"),
        (lambda d: d["entries"][0].update(date=""), "Entry catalogue .*: the date is empty"),
        (lambda d: d["entries"][0]["params"].pop("dtype"), "'dtype' = None; expected a word"),
        (lambda d: d["entries"][0]["params"].update(dtype=32), "'dtype' = 32; expected a word"),
        (lambda d: d["entries"][0]["params"].update(n="1024"), "'n' = '1024'; expected a whole number"),
        (lambda d: d["entries"][0]["params"].update(n=0), "'n' = 0; expected a whole number"),
        (lambda d: d["entries"][0]["params"].update(n=10**400), "'n' = 1000.*; expected a whole number"),
        (lambda d: d["entries"][1]["params"].update(steps="ten"), "'steps' = 'ten'; expected a whole number"),
        (lambda d: d["environment"].update(device=""), "it names no device or no date"),
        (lambda d: d["environment"].update(date=""), "it names no device or no date"),
        (lambda d: d["environment"].update(cores="two"), "cores"),
        (lambda d: d["environment"].update(cores=True), "cores"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, change, word):
    """Each kind of damage is a RecordingError that names what is wrong."""
    data = a_recording().to_dict()
    change(data)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordingError, match=word):
        recordings.read(path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"x"', "{" * 100_000, "[" * 200_000, '{"a": NaN}', "\x00\x01"])
def test_what_is_not_a_recording_is_refused(tmp_path, text):
    """Text that is not JSON, or JSON that is not ours, is refused without a crash."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RecordingError):
        recordings.read(path)


def test_a_name_that_stands_twice_is_refused(tmp_path):
    """Which of two medians holds is open; a reader that takes the last would show what nobody else reads in the file."""
    path = tmp_path / "x.json"
    text = json.dumps(a_recording().to_dict())
    path.write_text(text.replace('"median_seconds":', '"median_seconds": 1e-9, "median_seconds":', 1))
    with pytest.raises(RecordingError, match="says 'median_seconds' twice in one place"):
        recordings.read(path)


def test_an_oversized_file_is_refused_unread(tmp_path):
    """A file above the limit is refused by its size alone."""
    path = tmp_path / "big.json"
    with path.open("wb") as f:
        f.truncate(21 * 2**20)
    with pytest.raises(RecordingError, match="expected at most"):
        recordings.read(path)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000))
def test_a_truncated_file_is_refused_at_every_length(tmp_path_factory, cut):
    """However much of the file is missing, the answer is one sentence."""
    text = json.dumps(a_recording().to_dict())
    path = tmp_path_factory.mktemp("t") / "x.json"
    path.write_text(text[: min(cut, len(text) - 1)])
    with pytest.raises(RecordingError):
        recordings.read(path)


def test_names_of_files_outside_the_folder_are_refused(tmp_path, monkeypatch):
    """A name cannot climb out of the recordings' folder, not to a recording that is there either."""
    recordings.write(a_recording(), tmp_path / "beside.json")
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path / "kept"))
    for name in ("../beside", str(tmp_path / "beside"), "../../etc/passwd", "/etc/passwd", "", "A B"):
        with pytest.raises(RecordingError, match="there is no recording"):
            recordings.load(name)


def test_a_folder_of_the_learners_own_is_searched_too(tmp_path, monkeypatch):
    """GPULAB_RECORDINGS adds a folder, also one below the home folder."""
    recordings.write(a_recording(), tmp_path / "kept" / "mine.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (str(tmp_path / "kept"), "~/kept"):
        monkeypatch.setenv("GPULAB_RECORDINGS", folder)
        assert "mine" in recordings.names()
        assert recordings.load("mine").name == "test"


def test_every_name_that_is_listed_can_be_loaded(tmp_path, monkeypatch):
    """A file may be called as its owner likes; a folder or a link to nothing is no recording."""
    for name in ("Lab PC 3", "Übung", "x" * 80, ".hidden"):
        recordings.write(a_recording(), tmp_path / f"{name}.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nothing.json").symlink_to(tmp_path / "gone")
    (tmp_path / ".json").write_text("{}")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    own = set(recordings.names()) - {path.stem for path in recordings.directory().glob("*.json")}
    assert own == {"Lab PC 3", "Übung", "x" * 80, ".hidden"}
    assert {recordings.load(name).name for name in own} == {"test"}


def test_times_at_the_ends_of_what_is_read_can_be_compared():
    """A femtosecond and thirty-two years are 24 decades apart, which is a number that every table can show."""
    short, long = (a_timing(median_seconds=t, interval_seconds=None, samples_seconds=np.array([t])) for t in (1e-15, 1e9))
    one, two = (a_recording(entries=(Entry("e", {"n": 1}, t),)) for t in (short, long))
    assert [d.ratio for d in recordings.diff(one, two).differences] == [pytest.approx(1e24)]
    assert [d.ratio for d in recordings.diff(two, one).differences] == [pytest.approx(1e-24)]


def test_a_damaged_recording_does_not_hide_the_others(tmp_path, monkeypatch):
    """What can be read is offered; the damaged one is left out, and loading it says why."""
    recordings.write(a_recording(), tmp_path / "mine.json")
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    assert "mine" in recordings.readable()
    assert "broken" not in recordings.readable()
    with pytest.raises(RecordingError, match="truncated"):
        recordings.load("broken")


def test_a_file_that_changed_is_read_again(tmp_path):
    """A recording that was written anew is not taken from memory."""
    path = tmp_path / "mine.json"
    recordings.write(a_recording(), path)
    assert recordings.read(path).name == "test"
    recordings.write(a_recording(name="another"), path)
    assert recordings.read(path).name == "another"


def test_two_entries_among_very_many_are_found_at_once(monkeypatch):
    """Twenty mebibytes hold 200,000 entries without a timing: each is looked at once, where all pairs would take minutes."""

    class Key(str):
        compared = 0

        def __eq__(self, other):
            Key.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    monkeypatch.setattr(Entry, "key", property(lambda entry: Key(entry.experiment)))
    many = tuple(Entry(f"e{n}", {}, None, "r") for n in range(300))
    with pytest.raises(RecordingError, match="two entries for 'e299'"):
        a_recording(entries=(*many, many[-1]))
    assert Key.compared < 300


def test_a_parameter_may_have_any_name():
    """Also those that the function that looks for it has: "self" and "experiment"."""
    entry = Entry("e", {"self": 1, "experiment": "x"}, a_timing())
    recording = a_recording(entries=(entry,))
    assert recording.find("e", **entry.params) is entry
    assert recording.select("e", experiment="y") == ()


def test_what_ships_loads():
    """Recordings ship, pass their own checks and have at least a hundred recorded cases each."""
    shipped = [path.stem for path in recordings.directory().glob("*.json")]
    assert shipped
    for name in shipped:
        recording = recordings.load(name)
        assert sum(entry.recorded for entry in recording.entries) >= 100
        assert recording.environment.command


@given(n=st.integers(1, 500), keep=st.integers(2, 64))
def test_thinning_keeps_the_ends_and_the_order(n, keep):
    """Thinned samples are a subsequence with the first and the last sample."""
    samples = np.arange(float(n))
    kept = thin(samples, keep)
    assert len(kept) == min(n, keep)
    assert kept[0] == 0
    assert kept[-1] == n - 1
    assert np.all(np.diff(kept) > 0)
    assert KEPT_SAMPLES == 32


def test_table_has_rates_by_hand():
    """2 GFLOP and 5 MB in a millisecond are 2 TFLOP/s and 5 GB/s."""
    entry = Entry("catalogue", {"workload": "matmul", "n": 1024, "dtype": "float32"}, a_timing(nbytes=5.0e6))
    (row,) = a_recording(entries=(entry,)).table()[1]
    assert row[1:] == ("1.00 ms", "900 us to 1.10 ms", "1", "2.00 TFLOP/s", "5.00 GB/s")


def test_table_has_the_visits_and_says_where_there_is_no_interval():
    """Two visits count two; without an interval the cell says so."""
    entry = Entry("e", {}, a_timing(visits_seconds=(1e-3, 1.1e-3), interval_seconds=None))
    (row,) = a_recording(entries=(entry,)).table()[1]
    assert row[2:4] == ("none", "2")


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    """The error lists every recording that can be loaded."""
    assert recordings.names()
    with pytest.raises(RecordingError) as raised:
        recordings.load("no-such-machine")
    assert all(name in str(raised.value) for name in recordings.names())


def test_twenty_mebibytes_are_the_most(tmp_path):
    """A file of just so many is looked at, and is no JSON; one byte more is not."""
    path = tmp_path / "big.json"
    for nbytes, says in ((20 * 2**20, "is not JSON"), (20 * 2**20 + 1, "has 20971521 bytes; expected at most 20971520")):
        with path.open("wb") as f:
            f.truncate(nbytes)
        with pytest.raises(RecordingError, match=says):
            recordings.read(path)


def test_a_recording_in_one_line_and_with_its_badge():
    """The device, the date, and how many of its cases have a time."""
    recording = a_recording()
    assert repr(recording) == "<recording 'test': Test Device, 2026-11-20, 1 of 2 entries>"
    assert recording.caption() == recording.evidence().sentence
    assert recording.evidence().samples is None
    later = Entry("e", {}, a_timing(), date="2026-11-21T10:00:00+00:00")
    assert recording.evidence(later).date == "2026-11-21T10:00:00+00:00"
    assert recording.table()[1][1] == (
        "catalogue dtype=float32 n=2048 workload=matmul",
        "not recorded: time did not reach it",
        "",
        "",
        "",
        "",
    )


def test_the_interval_of_a_ratio_needs_one_above_zero():
    """1 ms over 1 ms, 10 % wide each; where the other's reaches down to nothing, or one is missing, there is none."""
    one = a_timing()
    assert one.over(one) == (1.0, (pytest.approx(0.9 / 1.1), pytest.approx(1.1 / 0.9)))
    assert one.over(a_timing(interval_seconds=(0.0, 1e-3))) == (1.0, None)
    assert one.over(a_timing(interval_seconds=None)) == (1.0, None)
    assert a_timing(interval_seconds=None).over(one) == (1.0, None)


def test_a_path_may_begin_with_the_home(tmp_path, monkeypatch):
    """In a notebook no shell writes the ~ out; a home of nobody's is one sentence."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    recordings.write(a_recording(), "~/mine.json")
    assert (tmp_path / "mine.json").is_file()
    assert recordings.read("~/mine.json") == recordings.read(tmp_path / "mine.json")
    with pytest.raises(InputError, match=r"recordings\.read: ~nobody-of-that-name/r\.json begins with the home of a user that is not here"):
        recordings.read("~nobody-of-that-name/r.json")


def test_where_there_is_none_the_error_says_how_to_make_one(tmp_path, monkeypatch):
    """No folder at all, and one that is empty or not there."""
    for folders in ([], [tmp_path, tmp_path / "gone"]):
        monkeypatch.setattr(_files, "_folders", lambda folders=folders: folders)
        assert (recordings.names(), recordings.readable()) == ((), {})
        with pytest.raises(RecordingError, match=r"no recording 'mine'; expected one of: none yet\. Make one with `gpulab record"):
            recordings.load("mine")


def test_a_file_that_did_not_change_is_parsed_once(tmp_path):
    """An instrument asks for its recordings at every redraw."""
    recordings.write(a_recording(), tmp_path / "mine.json")
    assert recordings.read(tmp_path / "mine.json") is recordings.read(tmp_path / "mine.json")
