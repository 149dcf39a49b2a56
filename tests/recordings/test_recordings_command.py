"""``gpulab recordings``, asked as the command line asks it: what is printed to the letter, and what is refused."""

from __future__ import annotations

import argparse
import pathlib

import pytest
from test_several import EARLIER, LATER, made, timed

from gpulab import recordings
from gpulab.errors import InputError, RecordingError
from gpulab.recordings import Entry, _command


def asked(*words: str) -> argparse.Namespace:
    """What the parser makes of the words after ``gpulab recordings``."""
    parser = argparse.ArgumentParser()
    _command.add_parser(parser.add_subparsers())
    return parser.parse_args(["recordings", *words])


@pytest.fixture
def two(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two files of one machine, and a folder of recordings with these alone."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    recordings.write(made(EARLIER, timed(1, 1e-3)), paths[0])
    recordings.write(made(LATER, timed(1, 2e-3), Entry("e", {"n": 2}, None, "no time")), paths[1])
    monkeypatch.setattr("gpulab.recordings._files._folders", lambda: [tmp_path])
    return [str(path) for path in paths]


def test_alone_it_lists_each_by_its_name(two: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each; one that cannot be read does not hide those after it."""
    (tmp_path / "aa.json").write_text("{}")
    arguments = asked()
    assert arguments.run(arguments) == 0
    first, broken, last = capsys.readouterr().out.splitlines()
    assert first == "a: <recording 'test': Test Device, 2026-11-20, 1 of 1 entries>"
    assert broken.startswith("aa: cannot be read. ")
    assert broken.endswith(".")
    assert last == "b: <recording 'test': Test Device, 2026-11-21, 1 of 2 entries>"


@pytest.mark.parametrize("name", ["b", "{tmp}/b.json", "{tmp}/plain"])
def test_one_is_shown_by_its_name_or_its_file(
    two: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Its line, the head, and a line for each case; columns two spaces apart, and none ends in spaces."""
    (tmp_path / "plain").write_bytes((tmp_path / "b.json").read_bytes())
    assert _command.run(asked("--show", name.format(tmp=tmp_path))) == 0
    line, head, case, missing = capsys.readouterr().out.splitlines()
    assert line == "<recording 'test': Test Device, 2026-11-21, 1 of 2 entries>"
    assert head.split() == ["case", "median", "95", "%", "interval", "visits", "arithmetic", "memory", "traffic"]
    assert case.startswith("e n=1  2.00 ms")
    assert head.index("95 %") == case.index("1.80 ms")
    assert missing == "e n=2  not recorded: no time"
    assert [one.rstrip() for one in (head, case)] == [head, case]


def test_two_are_compared_in_the_order_that_is_asked(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """2 ms after 1 ms is twice; the other way round half."""
    for names, ratio in ((two, "2.00x"), (two[::-1], "0.50x")):
        assert _command.run(asked("--diff", *names)) == 0
        line, *rows = capsys.readouterr().out.splitlines()
        assert line.startswith("<test and test: 1 case in both, 1 differ; ")
        assert f"  {ratio} [" in rows[-1]


def test_two_are_joined_into_a_file(two: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says what is in it and where it is; without --out nothing is read; a folder in its place is a sentence."""
    out = tmp_path / "both.json"
    assert _command.run(asked("--merge", *two, "--out", str(out))) == 0
    assert capsys.readouterr().out == f"<recording 'test': Test Device, 2026-11-21, 1 of 2 entries> in {out}\n"
    assert recordings.read(out).find("e", n=1).timing.median_seconds == 2e-3
    with pytest.raises(InputError, match="--merge writes a file; expected --out FILE"):
        _command.run(asked("--merge", "no", "such"))
    with pytest.raises(InputError, match=f"{tmp_path} cannot be written .*; expected a folder of yours. Change --out"):
        _command.run(asked("--merge", *two, "--out", str(tmp_path)))


@pytest.mark.parametrize(
    "words",
    [
        ("--out", "x"), ("--show", "x", "--out", "y"), ("--diff", "x", "y", "--out", "z"), ("--show", "x", "--diff", "x", "y"),
        ("--diff", "x", "y", "--merge", "x", "y", "--out", "z"),
    ],
)  # fmt: skip
def test_two_things_at_once_are_refused(words: tuple[str, ...]) -> None:
    """Before anything is read."""
    with pytest.raises(InputError, match="expected one of --show, --diff and --merge, and --out with --merge alone"):
        _command.run(asked(*words))


def test_a_name_that_is_nobodys_is_refused_with_those_that_are(two: list[str]) -> None:
    """By the names of the folder."""
    with pytest.raises(RecordingError, match="no recording 'c'; expected one of: a, b"):
        _command.run(asked("--show", "c"))
