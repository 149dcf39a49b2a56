"""The command line."""

import errno
import io
import json
import os
import re
import subprocess
import sys

import pytest

import gpulab
from gpulab import cli, devices
from gpulab.errors import InputError


def _report(state):
    return lambda: devices.Checkup((devices.Check("python", state, "found", ""),))


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("note", 0), ("fix", 1)])
def test_doctor_ends_with_the_code_that_a_script_can_ask_for(monkeypatch, capsys, state, code):
    """0 where nothing has to be fixed, else 1; the JSON says the same."""
    monkeypatch.setattr(devices, "checkup", _report(state))
    assert cli.main(["doctor"]) == code
    assert "python" in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] == (code == 0)
    assert data["checks"][0]["state"] == state


def test_the_help_lists_every_command_without_loading_it():
    """`gpulab --help` names them all and imports neither torch nor Jupyter."""
    code = "\n".join(
        (
            "import sys",
            "from gpulab import cli",
            "try:",
            "    cli.main(['--help'])",
            "except SystemExit as end:",
            "    print(end.code, [m for m in ('torch', 'jupyterlab', 'plotly', 'numpy') if m in sys.modules])",
        )
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    for command in ("doctor", "lab", "record"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["doctor", "lab", "record"])
def test_each_command_has_its_own_help(capsys, command):
    """`gpulab COMMAND --help` ends with 0 and shows the command's arguments."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"gpulab {command}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["dance"], ["doctor", "--dance"]])
def test_wrong_arguments_end_with_two(words, capsys):
    """Argparse's own code for usage errors, with the usage on stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage: gpulab" in capsys.readouterr().err


def _raising(error):
    def checkup():
        raise error

    return checkup


def test_an_interrupt_gives_one_line_and_130(monkeypatch, capsys):
    """Ctrl-C shows no traceback."""
    monkeypatch.setattr(devices, "checkup", _raising(KeyboardInterrupt()))
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "gpulab: interrupted.\n"


def test_an_error_of_ours_gives_its_sentence_and_2(monkeypatch, capsys):
    """The sentence goes to stderr, without a traceback."""
    monkeypatch.setattr(devices, "checkup", _raising(InputError("measure: no such thing; expected another. Do that.")))
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "gpulab: measure: no such thing; expected another. Do that.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there a folder in which a program stands cannot be removed")
@pytest.mark.parametrize("words", [["doctor"], ["report"], ["class", "reports"]])
def test_a_folder_that_is_gone_is_one_sentence(words, tmp_path, monkeypatch, capsys):
    """Cloned anew while a terminal stood in the old folder: no command has a traceback for it."""
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path / "old")
    (tmp_path / "old").rmdir()
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert re.match(r"gpulab: the folder in which this command was called is gone \(No such file.* Go to it once more with cd", said)


def test_a_bug_is_not_hidden(monkeypatch):
    """Any other exception keeps its traceback."""
    monkeypatch.setattr(devices, "checkup", _raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


def test_a_reader_that_goes_away_is_no_error():
    """`gpulab doctor | head -1` shows no traceback."""
    code = "\n".join(
        (
            "import os, sys",
            "from gpulab import cli, devices",
            "os.close(1)",
            "reader, writer = os.pipe()",
            "os.close(reader)",
            "os.dup2(writer, 1)",
            "devices.checkup = lambda: devices.Checkup(())",
            "sys.exit(cli.main(['doctor']))",
        )
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("lines", [1, 2000])
def test_an_output_on_a_full_disk_is_one_sentence(lines):
    """`gpulab doctor > file`, be it written at the end or, since it is long, before."""
    code = "\n".join(
        (
            "import sys",
            "from gpulab import cli, devices",
            f"devices.checkup = lambda: devices.Checkup((devices.Check('python', 'ok', 'x' * 20),) * {lines})",
            "sys.exit(cli.main(['doctor']))",
        )
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"gpulab: what was to be printed cannot be written \(.+\)\. Make room, and run it again\.\n", done.stderr)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "mine.json"), OSError(errno.EIO, "Input/output error")])
def test_a_full_disk_under_another_file_is_no_fault_of_the_output(error, monkeypatch):
    """Nor is another fault one of a full disk: each keeps its traceback."""
    monkeypatch.setattr(devices, "checkup", _raising(error))
    with pytest.raises(OSError, match=error.strerror):
        cli.main(["doctor"])


@pytest.mark.parametrize("words", [["doctor"], ["record", "--list"]])
def test_a_command_without_an_output_does_its_work(words, monkeypatch):
    """`gpulab doctor >&-` is asked for its code alone: Python has no sys.stdout then."""
    monkeypatch.setattr(devices, "checkup", lambda: devices.Checkup(()))
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(words) == 0


def test_a_name_that_the_outputs_alphabet_lacks_ends_nothing(monkeypatch):
    """`gpulab doctor > file` on Windows writes in one alphabet's encoding, such as 1252: what it lacks is shown by its escape."""
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="cp1252"))
    monkeypatch.setattr(devices, "checkup", lambda: devices.Checkup((devices.Check("write access", "ok", "C:/Łukasz Größe"),)))
    assert cli.main(["doctor"]) == 0
    sys.stdout.flush()
    assert "C:/\\u0141ukasz Größe" in file.getvalue().decode("cp1252")


def test_the_version_is_the_packages(capsys):
    """One line, and code 0."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"gpulab {gpulab.__version__}\n")
