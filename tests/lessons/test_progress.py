"""The learner's progress: hints, solutions and answers are kept whatever happens to the file."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from course import EXERCISES, QUESTIONS
from gpulab import lessons
from gpulab.errors import InputError
from gpulab.lessons import content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from texts import table_text

EMPTY = {
    "schema": "gpulab-progress", "schema_version": 1, "predictions": {}, "exercises": {},
    "history": [],
}  # fmt: skip


def kept(file: Path) -> dict[str, Any]:
    """What the file holds."""
    return json.loads(file.read_text(encoding="utf-8"))


def states(notebook: str = "02") -> dict[str, str]:
    """The state of each item that was begun."""
    begun = (row for row in lessons.progress(notebook).rows)
    return {row.id: row.state for row in begun if row.state not in ("open", "not attempted")}


def answered() -> None:
    """Two predictions, a hint, a solution and three checks of notebook 02."""
    lessons.predict("02.3", "How many times as long?", unit="x").submit(64)
    lessons.reveal("02.3", 1.5)
    lessons.predict("02.4", "From which size on?", unit="KiB").submit(16)
    lessons.predict("02.7", "What share is old?", unit="%")
    lessons.reveal("02.7", None, "no GPU here")
    lessons.predict("02.6", "Pageable over pinned?", unit="x")  # other tests may have asked it
    lessons.reveal("02.6", 3.0)
    lessons.hint("02.8")
    lessons.solution("02.9")
    for answer in (16, 1, 16):
        lessons.check("02.8", answer)
    lessons.check("02.5", 5)


def test_the_table_of_progress(approved: Any, progress_file: Path) -> None:
    """A row for each item, what was said of it, the totals, and where it is kept."""
    answered()
    shown = lessons.progress("02")
    entry = kept(progress_file)["exercises"]["02.8"]
    assert (entry["state"], entry["last"]["state"], entry["attempts"], entry["hints"]) == (
        "passed",
        "passed",
        3,
        1,
    )
    lessons.check("02.8", 1)
    assert [kept(progress_file)["exercises"]["02.8"][key] for key in ("state", "kept")] == [
        "passed",
        {"kind": "value", "value": 16},
    ], "what has passed stays passed"
    whole = lessons.progress()
    text = f"{shown!r}\n{table_text(shown._repr_html_())}{whole.table()}\n"
    assert (whole.exercises, whole.predictions) == (len(EXERCISES), len(QUESTIONS))
    assert text.replace(str(progress_file), "FILE") == approved


@pytest.mark.parametrize("notebook", ["17", "9", "0", "02_x", 2, None])
def test_a_notebook_that_is_not_there_is_refused(notebook: Any) -> None:
    """An unknown or incomplete number and a wrong name are refused; the error lists known ones."""
    with pytest.raises(InputError, match="02"):
        lessons.progress(notebook)


def test_starting_again_keeps_the_old_answers(progress_file: Path, approved: Any) -> None:
    """The notebook's items move into the history; other notebooks, and a file without any, stay."""
    said: list[str] = []
    lessons.start_again("02", said.append)
    assert not progress_file.exists()
    answered()
    lessons.predict("9.1", "Mine?", unit="us").submit(5)
    for notebook in ("02_data_transfer", "02", "x", "9"):
        lessons.start_again(notebook, said.append)
    assert states() == {}
    for wrong in ("", 5):
        with pytest.raises(InputError):
            lessons.start_again(wrong)
    first = kept(progress_file)["history"][0]
    assert (
        first["notebook"],
        first["predictions"]["02.3"]["first"]["value"],
        set(first["exercises"]),
    ) == (
        "02_data_transfer",
        64,
        {"02.5", "02.8", "02.9"},
    )
    assert "\n".join([*said, ""]) == approved


POLICIES: list[tuple[str, str | bytes]] = [
    ("none", ""), ("show", '{"solutions": "show"}'), ("withheld",
    '{"solutions": "withhold", "message": "On Friday."}'),
    ("no message", '{"solutions": "withhold", "message": null}'), ("attempt",
    '{"solutions": "after-attempt"}'),
    ("tried", '{"solutions": "after-attempt", "message": "Zuerst probieren, dann lösen."}'),
    ("empty", b""), ("list", b"[]"),
    ("no text", b"\xff"), ("misspelled", '{"solution": 5}'), ("deep", b"[" * 200_000),
    ("windows", '{"solutions": "withhold"}'.encode("utf-16")), ("marked",
    '{"solutions": "withhold"}'.encode("utf-8-sig")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), POLICIES, ids=[name for name, _ in POLICIES])
def test_the_class_decides_about_solutions(
    name: str, text: str | bytes, tmp_path: Path, approved: Any, capsys: Any
) -> None:
    """The folder's .gpulab/class.json decides; an unreadable one withholds them and says so."""
    file = tmp_path / ".gpulab" / "class.json"
    file.parent.mkdir()
    if text:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    elif name == "empty":
        file.touch()
    lessons.solution("02.8")
    for _ in range(4):
        lessons.hint("02.8")
    lessons.solution("02.8")
    lessons.check("02.8", 1)
    lessons.hint("02.8")
    lessons.solution("02.8")
    out = capsys.readouterr().out
    shown = content.exercise("02.8").solution in out
    assert shown == (name in ("none", "show", "attempt", "tried"))
    assert out.replace(str(tmp_path), "HERE") == approved


@pytest.mark.parametrize("value", ["withhold", "x" * 500])
def test_an_environment_variable_decides_first(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """GPULAB_SOLUTIONS decides before class.json; an unknown value withholds solutions."""
    (tmp_path / ".gpulab").mkdir()
    (tmp_path / ".gpulab" / "class.json").write_text('{"solutions": "show"}')
    monkeypatch.setenv("GPULAB_SOLUTIONS", value)
    lessons.solution("02.8")
    out = capsys.readouterr().out
    assert ("withheld" in out, content.exercise("02.8").solution in out) == (True, False)
    assert len(out) < 400
    monkeypatch.setenv("GPULAB_SOLUTIONS", "show")
    lessons.solution("02.8")
    assert content.exercise("02.8").solution in capsys.readouterr().out


def damaged(**parts: Any) -> bytes:
    """A progress file with one part that is not as it should be."""
    return json.dumps(EMPTY | parts).encode()


FOREIGN = (
    b"", b"[]", b"null", b'{"schema": "another"}', b"\xff\xfe\x00", damaged(schema_version=99),
    b"[" * 100_000,
    damaged(exercises={"00.1": "text"}), damaged(predictions={"00.1": {"first": 5}}),
    *(
        damaged(exercises={"02.8": each})
        for each in ({"attempts": "two"}, {"hints": "1"}, {"state": 1})
    ),
    *(
        damaged(predictions={"02.3": {name: 5}})
        for name in ("question", "later", "revealed", "unmeasured")
    ),
    damaged(predictions={"00.1": {"unit": 5}}),
    damaged(predictions={"00.1": {"choices": "yes"}}), damaged(history={}), damaged(predictions=[]),
    damaged()[:40],
)  # fmt: skip


@pytest.mark.parametrize("bytes_", FOREIGN)
def test_a_file_that_is_not_ours_is_set_aside(
    bytes_: bytes, progress_file: Path, capsys: Any
) -> None:
    """It counts as empty and says so, and its bytes are kept under another name."""
    progress_file.parent.mkdir(parents=True)
    for number in (1, 2):  # two in one second are both kept
        progress_file.write_bytes(bytes_)
        shown = lessons.progress()
        assert (shown.passed, bool(shown.fault)) == (0, True)
        assert shown.fault in shown.caption()
        capsys.readouterr()
        lessons.check("02.8", 16)
        aside = list(progress_file.parent.glob("*set-aside*"))
        assert [file.read_bytes() for file in aside] == [bytes_] * number
        assert "set-aside" in capsys.readouterr().out
        assert (lessons.progress().fault, states()) == ("", {"02.8": "passed"})


def test_a_file_that_was_edited_on_windows_is_read(progress_file: Path) -> None:
    """A byte order mark and CRLF are accepted; letters stay as they are, one item per line."""
    lessons.predict("90.1", "Wie groß?", unit="us").submit(5)
    assert '   "question": "Wie groß?",' in progress_file.read_text(encoding="utf-8").splitlines()
    progress_file.write_bytes(
        progress_file.read_text("utf-8").replace("\n", "\r\n").encode("utf-8-sig")
    )
    lessons.check("02.8", 16)
    assert list(progress_file.parent.glob("*set-aside*")) == []
    assert (set(kept(progress_file)["predictions"]), states()) == ({"90.1"}, {"02.8": "passed"})


def test_an_entry_without_a_value_counts_as_a_new_one(progress_file: Path) -> None:
    """After an edit by hand, an entry may have ``null`` in place of a number or a text."""
    entries = {
        "exercises": {"02.8": {"attempts": None}},
        "predictions": {"02.1": {"question": None, "unmeasured": None}},
    }
    progress_file.parent.mkdir()
    progress_file.write_text(json.dumps({**EMPTY, **entries}))
    assert lessons.check("02.8", 16).state == "passed"
    assert kept(progress_file)["exercises"]["02.8"]["attempts"] == 1
    assert "None" not in repr(lessons.progress("02").to_dict())


def test_what_cannot_be_written_is_kept_until_the_kernel_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The problem is reported once; answers show in the table and are written once it is solved."""
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where a folder should be")
    monkeypatch.setenv("GPULAB_PROGRESS", str(blocker / "progress.json"))
    lessons.check("02.8", 16)
    lessons.check("02.9", 5)
    assert capsys.readouterr().out.count("GPULAB_PROGRESS") == 1
    assert states() == {"02.8": "passed", "02.9": "wrong"}
    blocker.unlink()
    lessons.check("02.5", 5)
    assert set(kept(blocker / "progress.json")["exercises"]) == {"02.5", "02.8", "02.9"}


@pytest.mark.parametrize("place", ["/dev/full", "~nosuchuser/x", "FIFO", "/"])
def test_a_place_that_can_hold_no_progress_stops_no_lesson(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A path that is no file is not read or replaced; answers are kept until the kernel stops."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("FIFO")
    monkeypatch.setenv("GPULAB_PROGRESS", place)
    assert lessons.check("02.8", 16).state == "passed"
    assert "GPULAB_PROGRESS" in capsys.readouterr().out
    assert (states(), lessons.progress().fault != "") == ({"02.8": "passed"}, True)
    assert Path("FIFO").is_fifo()


@pytest.mark.parametrize("content", [json.dumps(EMPTY), "damaged"])
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_file_keeps_its_mode_and_its_link(
    content: str, mode: int, tmp_path: Path, progress_file: Path
) -> None:
    """Mode and link stay for a sound file elsewhere, and for a damaged one that is replaced."""
    progress_file.parent.mkdir()
    progress_file.symlink_to(tmp_path / "shared.json")
    progress_file.write_text(content)
    progress_file.chmod(mode)
    lessons.check("02.8", 16)
    assert (progress_file.is_symlink(), states()) == (True, {"02.8": "passed"})
    assert (tmp_path / "shared.json").stat().st_mode & 0o777 == mode


def test_a_folder_that_was_removed_stops_no_lesson(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """By default the file is in .gpulab of the working folder; if that is gone, lessons go on."""
    monkeypatch.delenv("GPULAB_PROGRESS")
    lessons.check("02.8", 16)
    assert set(kept(tmp_path / ".gpulab" / "progress.json")["exercises"]) == {"02.8"}
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    lessons.check("02.9", 5)
    lessons.solution("02.9")
    assert states() == {"02.9": "wrong"}
    assert content.exercise("02.9").solution in capsys.readouterr().out


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_file_whole(
    function: str, progress_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """No part of a file stays behind, and the answer is kept in memory."""
    lessons.check("02.8", 16)
    before = progress_file.read_bytes()

    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, function, full)
        lessons.check("02.9", 5)
    assert "No space left" in capsys.readouterr().out
    assert progress_file.read_bytes() == before
    assert {file.name for file in progress_file.parent.iterdir()} <= {
        "progress.json",
        "progress.json.lock",
    }
    assert states() == {"02.8": "passed", "02.9": "wrong"}


MANY = """
import sys
from gpulab import lessons
for number in range(15):
    lessons.predict(f"{sys.argv[1]}.{number}", "How long?", unit="us").submit(number)
"""


@pytest.mark.slow
def test_kernels_at_once_lose_nothing(progress_file: Path) -> None:
    """Three processes that answer 15 questions each leave all 45 in the file."""
    workers = [
        subprocess.Popen([sys.executable, "-c", MANY, f"9{k}"], env=os.environ.copy())
        for k in range(3)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert len(kept(progress_file)["predictions"]) == 45


KEYS = st.sampled_from(["schema", "predictions", "exercises", "history", "02.8", "first", "later"])
CONTENT = st.recursive(
    st.none() | st.text(max_size=5) | st.floats(),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4),
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.binary(max_size=100) | CONTENT)
def test_any_content_is_survived_and_kept(progress_file: Path, value: Any) -> None:
    """Whatever the file holds, an answer is kept afterwards and the strange bytes still exist."""
    text = (
        value
        if isinstance(value, bytes)
        else json.dumps(EMPTY | value if isinstance(value, dict) else value).encode()
    )
    progress_file.parent.mkdir(parents=True, exist_ok=True)
    progress_file.write_bytes(text)
    foreign = bool(lessons.progress().fault)
    lessons.check("02.8", 16)
    assert states()["02.8"] == "passed"
    aside = list(progress_file.parent.glob("*set-aside*"))
    assert [file.read_bytes() for file in aside] == ([text] if foreign else [])
    for file in aside:
        file.unlink()
