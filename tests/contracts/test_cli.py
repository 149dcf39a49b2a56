"""Every command of ``gpulab``: help, bad arguments, missing files, interrupt, closed pipe."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from gpulab.cli import COMMANDS, main

RUN = [sys.executable, "-m", "gpulab"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_of_each_command(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    approved: Any,
) -> None:
    """``gpulab COMMAND --help`` says what it does, with each option and its default."""
    monkeypatch.setenv("COLUMNS", "1000")  # narrower lines may end within a word with a hyphen
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [command]), "--help"])
    assert ended.value.code == 0
    # Python's versions break the lines of a help page in different places.
    assert " ".join(capsys.readouterr().out.split()) + "\n" == approved


def test_the_help_loads_nothing_heavy() -> None:
    """A machine without Jupyter and torch can still ask what the commands are; a terminal that
    lacks a character shows its number.
    """
    code = (
        "import sys\nfrom gpulab.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    heavy = {'torch', 'jupyterlab', 'plotly', 'numpy'} & {*sys.modules}\n"
        "    print('\\u674e', [*heavy])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.splitlines()[-1] == r"\u674e []"


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["dance"], *([command, "--dance"] for command in COMMANDS)),
        *(["html"], ["nbgrader"], ["class"], ["simulate"], ["record", "--minutes", "soon"]),
    ],
    ids=" ".join,
)
def test_a_wrong_option_ends_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command gives the usage on standard error and the exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: gpulab" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["recordings", "--show", "no-such"], ["recordings", "--diff", "nvidia-h200", "no-such"]),
        *(["recordings", "--merge", "nvidia-h200", "nvidia-h200"], ["class", "no-such-folder"]),
        *(
            ["class", ".", "--grades", "g.csv", "--rubric", "no-such"],
            ["report", "--notebook", "77"],
        ),
        *(["report", "--name", "x" * 5000], ["claims", "--recording", "no-such"]),
        *(
            ["record", "--out", "r.json", *words]
            for words in (["--only", "no-such"], ["--minutes", "-1"], ["--device", "cuda:99"])
        ),
        *(["record", "--minutes", "1"], ["simulate", "no-such.py"]),
        *(["html", "--out", "o", "--notebooks", "no-such"], ["html", "--out", "~nosuchuser/x"]),
        *(["nbgrader", "--out", "o", "--points", "-1"], ["nbgrader", "--out", "file"]),
        *(["lab", "--reset", "77", "--dir", "mine"], ["claims", "--out", "file/inside"]),
        *(["misconceptions", "77"], ["misconceptions", "0"], ["misconceptions", "../02"]),
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is missing or wrong gives one line on standard error and the code 2; no file appears."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    assert main(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("gpulab: ")
    assert len(said[0]) < 800
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "in the way"}


def test_a_folder_that_is_gone_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command run in a deleted folder prints one sentence and no traceback."""
    gone = tmp_path / "old"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for arguments in (["report"], ["class", "reports"]):
        assert main(arguments) == 2
        assert re.match("gpulab: .*\n$", capsys.readouterr().err)


def test_the_doctor_reports_to_scripts_too(capsys: pytest.CaptureFixture[str]) -> None:
    """``gpulab doctor --json`` and its exit code say the same as the page for people."""
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (code == 0)
    assert report["ok"] is not any(check["state"] == "fix" for check in report["checks"])
    assert main(["doctor"]) == code
    page = capsys.readouterr().out
    assert all(check["name"] in page for check in report["checks"])


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and pipes")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "before", "ends"),
    [
        # These may end before the interrupt arrives.
        *(
            (short, "SIGINT", "default_int_handler", [(130, 1), (0, 0)])
            for short in ("doctor", "report", "claims", "recordings", "misconceptions")
        ),
        *(
            (long, "SIGINT", "default_int_handler", [(130, 1)])
            for long in ("nbgrader --out o", "html --out o", "lab --no-browser --dir mine")
        ),
        ("html --out o", "SIGTERM", "SIG_DFL", [(143, 0)]),  # 128 + 15, as a shell says it
        ("html --out o", "SIGHUP", "SIG_DFL", [(129, 0)]),
        ("recordings", "SIGHUP", "SIG_IGN", [(0, 0)]),  # as under nohup
    ],
)
def test_an_interrupt_is_one_line(
    command: str, name: str, before: str, ends: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Ctrl-C in the middle of a command ends it with exit code 130 and no traceback; a signal that
    ends processes has its own code, and no line.
    """
    code = (
        "import signal, sys; from gpulab.cli import main;"
        f"signal.signal(signal.{name}, signal.{before});"
        f"signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.{name}));"
        "signal.setitimer(signal.ITIMER_REAL, 0.15); code = main();"
        "signal.setitimer(signal.ITIMER_REAL, 0); sys.exit(code)"
    )
    arguments = [sys.executable, "-c", code, *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) in ends
    assert {path.name for path in tmp_path.iterdir()} <= {"mine"}  # the learner's notebooks


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and pipes")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "out", "ends"),
    [
        *(
            (command, "&1", (141, 0))
            for command in (
                *("recordings", "recordings --show nvidia-h200", "claims", "doctor"),
                *("record --list", "report", "class .", "nbgrader --out o", "misconceptions"),
                "lab --reset 00 --dir mine",
            )
        ),
        pytest.param(
            *("recordings", "/dev/full", (2, 1)),
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it"),
        ),
    ],
)
def test_a_reader_that_goes_away_is_no_error(
    command: str, out: str, ends: tuple[int, int], tmp_path: Path
) -> None:
    """``gpulab recordings | head -1`` shows no traceback, and a full disk one sentence."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        arguments = ["sh", "-c", f'exec "$0" "$@" >{out}', *RUN, *command.split()]
        done = subprocess.run(
            arguments,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # which containers set
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr.count("\n")) == ends, done.stderr


def test_the_misconceptions_are_those_of_the_courses_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each reading and wrong answer of the requested notebook is listed, in its files' words."""
    folder = Path(__file__).parents[2] / "gpulab" / "course" / "02"
    assert main(["misconceptions", "02"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    tables = tomllib.loads((folder / "predictions.toml").read_text(encoding="utf-8"))
    assert tables.pop("notebook") in listed
    words = [each["text"] for table in tables.values() for each in table["readings"]]
    for file in folder.glob("*.py"):
        words += "".join(file.read_text(encoding="utf-8").split("# %% wrong: ")[1:]).splitlines()
    assert [each for each in words if " ".join(each.split()) not in listed] == []
    assert "03." not in listed


def test_without_the_local_lab_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without JupyterLab, as in a hosted notebook, ``gpulab lab`` names the extra to install."""
    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", None)
    assert main(["lab", "--no-browser", "--dir", str(tmp_path)]) == 2
    assert "[lab]" in capsys.readouterr().err
