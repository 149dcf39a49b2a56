"""``gpulab lab`` without its server: the learner's copy, and who may reach the server.

The server itself is started in tests/browser.
"""

import datetime
import socket
from pathlib import Path
from typing import Any

import pytest
from gpulab import lab, working_copy
from gpulab.cli import main
from gpulab.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ("00_start_here.ipynb", "02_data_transfer.ipynb")
BESIDE = "02_data_transfer.new.ipynb"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course of two notebooks and a picture, and files that learners do not get."""
    folder = tmp_path / "notebooks"
    left_out = (".ipynb_checkpoints/x.ipynb", "__pycache__/x.pyc", "images/.x", "conftest.py")
    for name in (*NAMES, "images/bus.svg", *left_out):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}, first edition")
    return folder


def _files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not path.parts[0].startswith(".")}


def test_a_learners_edits_survive_every_update(course: Path, tmp_path: Path) -> None:
    """New files come, untouched ones follow the original, and edited ones are kept.

    A newer original is put beside an edited file. If the learner has edited an earlier one there,
    the newer one gets another name.
    """
    copy = tmp_path / "mine"
    (first,) = working_copy.update(course, copy)
    assert _files(copy) == {*NAMES, "images/bus.svg"}
    assert all(name in first for name in _files(copy))
    assert working_copy.update(course, copy) == []
    (copy / NAMES[1]).write_text("mine")
    for name in NAMES:
        (course / name).write_text("second edition")
    updated, kept = working_copy.update(course, copy)
    assert (NAMES[0] in updated, NAMES[1] in updated) == (True, False)
    assert (f"changed {NAMES[1]}" in kept, BESIDE in kept) == (True, True)
    assert (copy / NAMES[1]).read_text() == "mine"
    assert (copy / BESIDE).read_text() == "second edition"
    (copy / BESIDE).write_text("mine as well")
    (course / NAMES[1]).write_text("third edition")
    (third,) = working_copy.update(course, copy)
    assert "02_data_transfer.new-2.ipynb" in third
    assert (copy / BESIDE).read_text() == "mine as well"
    (copy / NAMES[0]).unlink()
    (fourth,) = working_copy.update(course, copy)
    assert (NAMES[0] in fourth, (copy / NAMES[0]).read_text()) == (True, "second edition")


def test_reset_keeps_the_edited_notebook_under_a_dated_name(course: Path, tmp_path: Path) -> None:
    """The original is restored and the learner's version kept beside it, if it was edited."""
    copy = tmp_path / "mine"
    working_copy.update(course, copy)
    (copy / NAMES[1]).write_text("mine")
    (done,) = working_copy.reset(course, copy, "02", now=datetime.datetime(2026, 3, 1, 14, 5, 6))
    kept = "02_data_transfer.2026-03-01-140506.ipynb"
    assert (NAMES[1] in done, kept in done) == (True, True)
    assert (copy / NAMES[1]).read_text() == f"{NAMES[1]}, first edition"
    assert (copy / kept).read_text() == "mine"
    (done,) = working_copy.reset(course, copy, NAMES[0])
    assert (NAMES[0] in done, _files(copy)) == (True, {*NAMES, kept, "images/bus.svg"})
    for name in ("07", "", "0", "../02_data_transfer.ipynb", "/etc/passwd"):
        with pytest.raises(InputError, match="expected"):
            working_copy.reset(course, copy, name)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "files": {}}', "[" * 100_000])
def test_a_damaged_record_loses_nothing(course: Path, tmp_path: Path, text: str) -> None:
    """Without its record, gpulab keeps every file that differs, and keeps the record aside."""
    copy = tmp_path / "mine"
    working_copy.update(course, copy)
    (copy / NAMES[1]).write_text("mine")
    record = copy / ".gpulab" / "given-out.json"
    record.write_text(text)
    assert "damaged" in working_copy.update(course, copy)[0]
    assert (copy / NAMES[1]).read_text() == "mine"
    assert (copy / ".gpulab" / "given-out.json.damaged").read_text() == text


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("edition"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.sampled_from([*NAMES, BESIDE]), st.integers(0, 3)),
        st.tuples(st.just("reset"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.sampled_from(["damage", "update"]), st.just(""), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(steps=STEPS)
def test_no_order_of_events_loses_work(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """After any updates, resets and damage, what the learner last wrote is in some file."""
    root = tmp_path_factory.mktemp("events")
    originals, copy = root / "notebooks", root / "mine"
    originals.mkdir()
    for name in NAMES:
        (originals / name).write_text(f"edition 0 of {name}")
    working_copy.update(originals, copy)
    wrote: dict[str, str] = {}
    for kind, name, number in steps:
        if kind == "edition":
            (originals / name).write_text(f"edition {number} of {name}")
        elif kind == "edit":
            wrote[name] = f"mine {number} in {name}"
            (copy / name).write_text(wrote[name])
        elif kind == "reset":
            working_copy.reset(originals, copy, name)
        elif kind == "damage":
            (copy / ".gpulab" / "given-out.json").write_text("{")
        else:
            working_copy.update(originals, copy)
    working_copy.update(originals, copy)
    there = {path.read_text() for path in copy.glob("*.ipynb")}
    assert set(wrote.values()) <= there


def test_a_folder_that_cannot_hold_the_copy_is_refused(course: Path, tmp_path: Path) -> None:
    """The originals, a folder inside them and a file are no place for a working copy."""
    (tmp_path / "file").write_text("")
    for place in (course, course / "mine", tmp_path / "file"):
        with pytest.raises(InputError, match=r"--dir|is a file"):
            working_copy.update(course, place)
    with pytest.raises(InputError, match="Clone"):
        lab.find_originals(tmp_path / "elsewhere", [str(tmp_path)])


def test_the_course_of_a_wheel_is_found(tmp_path: Path) -> None:
    """Installed from a wheel, the notebooks are in the environment's share folder."""
    place = tmp_path / "env" / "share" / "gpulab" / "notebooks"
    place.mkdir(parents=True)
    (place / NAMES[0]).write_text("")
    assert lab.find_originals(tmp_path / "site-packages", [str(tmp_path / "env")]) == place


def test_lab_reset_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``gpulab lab --reset 00`` writes the original into ``--dir`` and starts no server."""
    mine = tmp_path / "mine" / NAMES[0]
    mine.parent.mkdir()
    mine.write_text("edited")
    assert main(["lab", "--dir", str(mine.parent), "--reset", "00"]) == 0
    assert mine.read_bytes() == (lab.find_originals() / NAMES[0]).read_bytes()
    assert "00_start_here.20" in capsys.readouterr().out
    assert len(list(mine.parent.glob("00_start_here.20*.ipynb"))) == 1


def test_the_server_is_for_this_machine_only(approved: Any) -> None:
    """JupyterLab listens on the loopback address, asks for a token and needs no internet."""
    arguments = lab.jupyter_arguments(Path("/x"), None, open_browser=True, extra=["--LabApp.a=1"])
    own_port = lab.jupyter_arguments(Path("/x"), 9000, open_browser=False, root=True)
    assert "\n".join([*arguments, "", *own_port]) + "\n" == approved


@pytest.mark.parametrize(
    "argument",
    [
        *("--ServerApp.ip=0.0.0.0", "--ip=0.0.0.0", "--IdentityProvider.token="),
        *("--ServerApp.allow_remote_access=True", "--ServerApp.allow_origin_pat=.*"),
        *("--ServerApp.disable_check_xsrf=True", "--ServerApp.allow_unauthenticated_access=True"),
        *("--PasswordIdentityProvider.hashed_password=x", "--ServerApp.authorizer_class=x.Y"),
        *("--ServerApp.notebook_dir=/", "--ServerApp.sock=/tmp/x", "--sock=/tmp/x", "notebooks"),
    ],
)
def test_an_argument_that_opens_the_server_is_refused(argument: str) -> None:
    """No option hands the learner's kernel to others, or serves the originals."""
    with pytest.raises(InputError):
        lab.jupyter_arguments(Path("/x"), None, open_browser=False, extra=[argument])


def test_a_port_that_cannot_be_used_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A taken port and a port that does not exist end the command with one sentence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 0, 65536):
            arguments = ["lab", "--no-browser", f"--port={port}", f"--dir={tmp_path / 'mine'}"]
            assert main(arguments) == 2
            assert str(port) in capsys.readouterr().err


def test_only_a_server_that_answers_for_this_folder_counts(tmp_path: Path) -> None:
    """A crashed server, or a server of another folder, does not count as running here."""
    dead = {"root_dir": str(tmp_path), "url": "http://127.0.0.1:1/", "token": "t"}
    assert lab.find_running(tmp_path, [dead, {**dead, "root_dir": str(tmp_path.parent)}]) is None
