"""Set-up chooses the Python and the packages that fit a machine; nothing here touches the network."""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import setup_env
from setup_env import Facts, choose_python, choose_stack

H200 = (("NVIDIA H200", (9, 0)),)
V100 = (("Tesla V100-SXM2-16GB", (7, 0)),)
RTX5090 = (("NVIDIA GeForce RTX 5090", (12, 0)),)


def test_script_parses_with_an_old_python() -> None:
    """A machine's own Python may be too old for the course and must still be able to say so."""
    source = Path(setup_env.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([("python3", (3, 11))], "python3"),
        ([("python3", (3, 9)), ("python3.12", (3, 12))], "python3.12"),
        ([("python3.11", (3, 11)), ("python3.13", (3, 13)), ("python3", (3, 14))], "python3.13"),
        ([("python3", (3, 15)), ("python", (3, 14))], "python"),
        ([("python3", (3, 10))], None),
        ([], None),
    ],
)
def test_python_is_the_newest_that_was_tried(candidates: list[tuple[str, tuple[int, int]]], chosen: str | None) -> None:
    """The newest supported Python wins; one newer than all supported is taken only where there is no other."""
    assert choose_python(candidates) == chosen


@pytest.mark.parametrize(
    ("facts", "name", "index", "extra", "words"),
    [
        (Facts("Linux", "x86_64"), "cpu", "cpu", None, "no NVIDIA driver"),
        (Facts("Linux", "x86_64", (13, 0), H200), "cuda13", None, "cuda13", "NVIDIA H200"),
        (Facts("Linux", "aarch64", (13, 1), H200), "cuda13", None, "cuda13", "CUDA 13.1"),
        (Facts("Linux", "x86_64", (12, 4), H200), "cuda12", "cu126", "cuda12", "CUDA 12.4"),
        (Facts("Linux", "x86_64", (13, 0), V100), "cuda12", "cu126", "cuda12", "older than CUDA 13"),
        (Facts("Linux", "x86_64", (13, 0), V100 + RTX5090), "cuda13", None, "cuda13", "Tesla V100-SXM2-16GB is older than it supports"),
        (Facts("Linux", "x86_64", (13, 0)), "cuda13", None, "cuda13", "an NVIDIA GPU"),
        (Facts("Linux", "x86_64", (12, 8), RTX5090), "cpu", "cpu", None, "Update the driver to 580"),
        (Facts("Linux", "x86_64", (11, 4), V100), "cpu", "cpu", None, "Update the driver"),
        (Facts("Linux", "x86_64", amd=True), "cpu", "cpu", None, "AMD"),
        (Facts("Windows", "AMD64"), "cpu", None, None, "no NVIDIA driver"),
        (Facts("Windows", "AMD64", (13, 0), H200), "cuda13", "cu130", "cuda13", "CUDA 13"),
        (Facts("Windows", "AMD64", (12, 6), H200), "cuda12", "cu126", "cuda12", "CUDA 12.6"),
        (Facts("Darwin", "arm64"), "apple", None, None, "MPS"),
    ],
)
def test_stack_fits_the_machine(facts: Facts, name: str, index: str | None, extra: str | None, words: str) -> None:
    """PyTorch's build and CuPy follow the driver and the GPU's age (PyTorch's RELEASE.md, CUDA's driver table); the reason is said."""
    stack = choose_stack(facts)
    assert (stack.name, stack.index, stack.extra) == (name, index, extra)
    assert words in stack.reason


def test_intel_mac_is_told_what_to_do() -> None:
    """PyTorch has no current build for Intel Macs, so set-up ends with a sentence instead of an installation that fails."""
    with pytest.raises(setup_env.SetupError, match=r"Intel Mac.*Colab"):
        choose_stack(Facts("Darwin", "x86_64"))


def test_nvidia_smi_is_read() -> None:
    """The header gives the CUDA version, the query the cards; text of another kind gives nothing."""
    header = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |"
    query = "NVIDIA H200, 9.0\nNVIDIA A100-SXM4-80GB, 8.0\n"
    assert setup_env.parse_nvidia_smi(header, query) == ((13, 0), (("NVIDIA H200", (9, 0)), ("NVIDIA A100-SXM4-80GB", (8, 0))))
    assert setup_env.parse_nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate", "no, really") == (None, ())


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [("580.65.06", (13, 0)), ("595.71.05", (13, 0)), ("570.124.06", (12, 0)), ("525.60.13", (12, 0)), ("470.1", (11, 0)), ("?", None)],
)
def test_driver_version_tells_cuda(driver: str, cuda: tuple[int, int] | None) -> None:
    """CUDA 13 needs driver 580 and CUDA 12 needs 525 (NVIDIA's CUDA release notes, driver table)."""
    assert setup_env.cuda_of_driver(driver) == cuda


def test_half_a_character_in_what_a_program_prints_stops_nothing() -> None:
    """As where nvidia-smi cuts the path of a program on the GPU; the version in its head is read all the same."""
    code = r"import sys; sys.stdout.buffer.write(b'CUDA Version: 13.0 \n| ...\x82ukasz/python |\n')"
    assert setup_env.parse_nvidia_smi(setup_env._output(sys.executable, "-c", code), "")[0] == (13, 0)


def test_index_that_does_not_answer_is_left_out() -> None:
    """A refused or timed-out request means "no", and the question is bounded in time."""
    asked = []

    def refuse(request: object, timeout: float) -> object:
        asked.append(timeout)
        raise OSError("refused")

    assert not setup_env.index_answers("cpu", refuse)
    assert setup_env.index_answers("cpu", lambda request, timeout: None)
    assert asked == [setup_env.INDEX_SECONDS]


def test_a_proxy_that_is_none_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an SSH server listens in a proxy's place, set-up takes the default build; it never fails for the question."""
    for name in ("no_proxy", "NO_PROXY"):  # with which urllib would go past the proxy, to PyTorch's own server
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(60)  # who is never asked, waits for nobody

        def greet() -> None:
            connection, _ = proxy.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        handler = urllib.request.ProxyHandler({"https": f"http://127.0.0.1:{proxy.getsockname()[1]}"})
        assert not setup_env.index_answers("cpu", urllib.request.build_opener(handler).open)
        greeter.join()


class Installer:
    """Stands in for pip and the machine: remembers what would have been installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.compiled_after: list[int] = []
        self.fail_at: int | None = None
        self.facts = Facts("Linux", "x86_64")
        monkeypatch.setattr(setup_env, "VENV", tmp_path)
        monkeypatch.setattr(setup_env, "STAMP", tmp_path / "stamp.json")
        monkeypatch.setattr(setup_env, "make_venv", lambda: (3, 12))
        monkeypatch.setattr(setup_env, "look_at_machine", lambda: self.facts)
        self.asked: list[list[str]] = []
        self.there = True
        monkeypatch.setattr(setup_env, "is_there", lambda extras: self.asked.append(extras) or self.there)
        monkeypatch.setattr(setup_env, "index_answers", lambda index: False)
        monkeypatch.setattr(setup_env, "_pip", self.pip)
        monkeypatch.setattr(setup_env, "compile_packages", lambda: self.compiled_after.append(len(self.calls)))

    def pip(self, *arguments: str) -> None:
        """Record one call of pip, or fail as it would without a network."""
        self.calls.append(arguments)
        if len(self.calls) == self.fail_at:
            raise setup_env.SetupError("no network")


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installer:
    """Set-up with pip and the machine replaced."""
    return Installer(monkeypatch, tmp_path)


def test_torch_is_installed_first_at_its_exact_pin(installer: Installer) -> None:
    """A range with no torch present would fetch the newest build, gigabytes of it."""
    setup_env.run([], None)
    first, second = installer.calls
    assert setup_env.torch_pin() in first
    assert first.index("-c") + 1 == first.index(str(setup_env.ROOT / "constraints.txt"))
    assert second[-1] == str(setup_env.ROOT)


def test_packages_are_compiled_once_when_all_are_there(installer: Installer) -> None:
    """Pip itself compiles nothing; an install that fails is compiled when it has been taken up again."""
    installer.fail_at = 2
    with pytest.raises(setup_env.SetupError):
        setup_env.run([], None)
    setup_env.run([], None)
    assert installer.compiled_after == [4]
    assert all("--no-compile" in call for call in installer.calls)


def test_packages_are_compiled_but_for_what_is_no_python_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an environment's own folder of packages; a file of another Python stops nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    monkeypatch.setattr(setup_env, "VENV", tmp_path)
    packages = Path(
        subprocess.check_output(
            [setup_env.venv_python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    for name, text in (("a.py", "x = 1\n"), ("b.py", "print 'x'\n"), ("part/c.py", "x = 1\n"), ("part/tests/d.py", "x = 1\n")):
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    (tmp_path / "gpulab").mkdir()
    (tmp_path / "gpulab" / "e.py").write_text("x = 1\n")
    setup_env.compile_packages()
    assert sorted(path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")) == ["a", "c", "e"]


def test_pip_installs_into_the_environment_whatever_it_is_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """`user = yes` in a server's pip.conf, or PIP_USER, is refused in an environment; a variable goes before a file (pip's manual)."""
    monkeypatch.setenv("PIP_USER", "1")
    seen: list[dict[str, str]] = []
    monkeypatch.setattr(setup_env.subprocess, "run", lambda command, env, check: seen.append(env) or SimpleNamespace(returncode=0))
    setup_env._pip("install", "x")
    assert seen[0]["PIP_USER"] == "0"


def test_second_run_does_nothing(installer: Installer) -> None:
    """The stamp tells that everything is there; a run that needs more extras installs again and keeps the others."""
    setup_env.run([], None)
    installer.calls.clear()
    setup_env.run([], None)
    assert installer.calls == []
    setup_env.run(["test", "dev"], None)
    assert installer.calls[-1][-1].endswith("[cuda13,dev,test]")
    installer.calls.clear()
    setup_env.run([], None)
    assert installer.calls == []


def test_what_was_removed_by_hand_comes_again(installer: Installer) -> None:
    """The doctor sends whoever lacks a package to `make lab`: the stamp alone would send them back."""
    installer.facts = Facts("Linux", "x86_64", (13, 0), H200)
    setup_env.run([], None)
    installer.calls.clear()
    installer.there = False
    setup_env.run([], None)
    assert installer.asked == [["cuda13"]]
    assert installer.calls[-1][-1].endswith("[cuda13,kernels]")


def test_an_environment_is_asked_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs these tests has what they need, and no CuPy for CUDA 12; one without gpulab has nothing."""
    monkeypatch.setattr(setup_env, "venv_python", lambda: Path(sys.executable))
    assert setup_env.is_there([])
    assert setup_env.is_there(["test"])
    assert not setup_env.is_there(["cuda12"])
    monkeypatch.setattr(setup_env, "venv_python", lambda: Path(sys.executable).with_name("none"))
    with pytest.raises(OSError, match="none"):
        setup_env.is_there([])


def test_interrupted_install_is_taken_up_again(installer: Installer) -> None:
    """No stamp says before the end that all is there, so a failed run is repeated."""
    installer.fail_at = 2
    with pytest.raises(setup_env.SetupError):
        setup_env.run([], None)
    installer.fail_at = None
    setup_env.run([], None)
    assert len(installer.calls) == 4


def test_new_gpu_brings_another_torch(installer: Installer) -> None:
    """The same version of torch for another device counts as installed for pip, so it is taken out first."""
    setup_env.run([], None)
    installer.calls.clear()
    installer.facts = Facts("Linux", "x86_64", (13, 0), H200)
    setup_env.run([], None)
    assert installer.calls[0] == ("uninstall", "--yes", "torch")
    assert installer.calls[-1][-1].endswith("[cuda13,kernels]")


@pytest.mark.parametrize("finished_before", [False, True])
def test_an_install_that_was_interrupted_for_another_device_leaves_no_torch_of_it(installer: Installer, finished_before: bool) -> None:
    """Whoever sees "the CPU build", stops it and asks for a GPU's would keep the CPU's torch: its version counts as installed for pip."""
    if finished_before:
        setup_env.run([], "cuda12")
        installer.calls.clear()
    installer.fail_at = 3 if finished_before else 2  # torch is there, the rest is not
    with pytest.raises(setup_env.SetupError):
        setup_env.run([], None)
    installer.calls.clear()
    installer.fail_at = None
    setup_env.run([], "cuda13")
    assert installer.calls[0] == ("uninstall", "--yes", "torch")
    installer.calls.clear()
    setup_env.run([], "cuda13")
    assert installer.calls == []


def test_a_torch_that_could_not_be_taken_out_is_taken_out_by_the_next_run(installer: Installer) -> None:
    """Only then is the environment another device's."""
    setup_env.run([], None)
    installer.calls.clear()
    installer.fail_at = 1
    with pytest.raises(setup_env.SetupError):
        setup_env.run([], "cuda13")
    setup_env.run([], "cuda13")
    assert installer.calls[:2] == [("uninstall", "--yes", "torch")] * 2


def test_damaged_stamp_means_install_again(installer: Installer) -> None:
    """A stamp that cannot be read is no reason to stop, and none to trust it."""
    setup_env.STAMP.write_text("{")
    setup_env.run([], None)
    assert len(installer.calls) == 2
    assert json.loads(setup_env.STAMP.read_text())["stack"] == "cpu"


@pytest.mark.parametrize(
    ("free", "course_is_there", "extras", "note"),
    [
        (4.9e9, False, ["test", "dev"], "Note: 4.9 GB are free here; this may need 6.5 GB."),  # what an environment with the tests takes
        (4.9e9, False, [], ""),
        (2.1e9, False, [], "Note: 2.1 GB are free here; this may need 3.0 GB."),
        (2.9e9, True, ["test", "dev"], "Note: 2.9 GB are free here; this may need 3.5 GB."),
        (6.6e9, False, ["test", "dev"], ""),
        (0.1e9, True, [], ""),
    ],
)
def test_too_little_room_is_said_before_anything_is_fetched(
    installer: Installer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    free: float, course_is_there: bool, extras: list[str], note: str,
) -> None:  # fmt: skip
    """The room is that of what is still to come: the course, its tests, or both."""
    disk = SimpleNamespace(free=1e12)
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda path: disk)
    if course_is_there:
        setup_env.run([], None)
        assert "Note" not in capsys.readouterr().out
    disk.free = free
    setup_env.run(extras, None)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note")] == ([note] if note else [])


def test_environment_of_a_moved_project_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its programs name the old folder; one that was not moved is left alone."""
    made: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        made.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(setup_env, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(setup_env, "_version_of", lambda python: (3, 12))
    monkeypatch.setattr(setup_env.subprocess, "run", run)
    monkeypatch.setattr(setup_env, "find_pythons", lambda: [("python3", (3, 12))])
    setup_env.STAMP.write_text(json.dumps({"root": str(setup_env.ROOT)}))
    assert setup_env.make_venv() == (3, 12)
    assert made == []
    setup_env.STAMP.write_text(json.dumps({"root": "/elsewhere"}))
    setup_env.make_venv()
    assert made == [["python3", "-m", "venv", "--clear", str(setup_env.VENV)]]


def test_make_alone_lists_the_commands(tmp_path: Path) -> None:
    """`make` in a fresh clone explains itself, also on macOS, whose sed knows no tab: it writes a t for backslash-t."""
    sed = tmp_path / "sed"
    sed.write_text(f"#!{sys.executable}\nimport os, sys\nos.execv({shutil.which('sed')!r}, [w.replace('\\\\t', 't') for w in sys.argv])\n")
    sed.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    text = subprocess.run(["make"], cwd=setup_env.ROOT, capture_output=True, text=True, check=True, env=environment).stdout
    for command in ("lab", "test", "test-newest", "lint", "bench", "gpu-check", "soak", "help"):
        assert f"make {command} " in text


@pytest.mark.parametrize(
    ("arguments", "out"), [("", "course-pages"), ("--solutions", "course-pages"), ("--out pages --solutions", "pages")]
)
def test_make_html_has_a_folder_whatever_else_is_asked_for(arguments: str, out: str) -> None:
    """`gpulab html` takes no folder for granted; of two the last counts (argparse)."""
    command = ["make", "--dry-run", "html", f"ARGS={arguments}"]
    text = subprocess.run(command, cwd=setup_env.ROOT, capture_output=True, text=True, check=True).stdout
    words = next(line for line in text.splitlines() if "gpulab html" in line).split()
    assert [after for word, after in itertools.pairwise(words) if word == "--out"][-1:] == [out]
    assert ("--solutions" in words) == ("--solutions" in arguments)
