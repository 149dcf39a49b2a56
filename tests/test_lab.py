"""``gpulab lab``: where things are found, what is refused, and what JupyterLab is told. The server itself: tests/browser."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import urllib.request
from pathlib import Path

import pytest

from gpulab import _lab
from gpulab.errors import GpulabError, InputError


def parse(*arguments: str) -> argparse.Namespace:
    """Parse a command line as ``gpulab`` does."""
    parser = argparse.ArgumentParser()
    _lab.add_parser(parser.add_subparsers())
    return parser.parse_args(["lab", *arguments])


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one notebook; JupyterLab is not started."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("original")
    (tmp_path / "pyproject.toml").write_text("")
    find = _lab.find_originals
    monkeypatch.setattr(_lab, "find_originals", lambda: find(tmp_path, ()))
    monkeypatch.setattr(_lab, "serve", lambda *a, **k: 0)
    monkeypatch.setattr(_lab, "_running_servers", lambda: [])
    return tmp_path


def test_working_copy_lies_beside_the_course(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a clone, git-ignored my-notebooks/ is filled, and what is new is said."""
    assert _lab.run_lab(parse("--no-browser")) == 0
    assert (course / "my-notebooks" / "00_start_here.ipynb").read_text() == "original"
    assert "00_start_here.ipynb" in capsys.readouterr().out


def test_dir_chooses_another_working_copy(course: Path) -> None:
    """`--dir` names the folder."""
    _lab.run_lab(parse("--dir", str(course / "elsewhere")))
    assert (course / "elsewhere" / "00_start_here.ipynb").exists()
    assert not (course / "my-notebooks").exists()


def test_reset_ends_without_a_server(course: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`--reset` brings the original back, says where the edited one is, and starts nothing."""
    _lab.run_lab(parse())
    mine = course / "my-notebooks" / "00_start_here.ipynb"
    mine.write_text("mine")
    monkeypatch.setattr(_lab, "serve", lambda *a, **k: pytest.fail("a server was started"))
    assert _lab.run_lab(parse("--reset", "00")) == 0
    assert mine.read_text() == "original"
    assert "Yours is kept as 00_start_here.20" in capsys.readouterr().out


def test_wheel_brings_its_notebooks(tmp_path: Path) -> None:
    """Installed from a wheel, the notebooks are in the environment's share/gpulab."""
    place = tmp_path / "env" / "share" / "gpulab" / "notebooks"
    place.mkdir(parents=True)
    (place / "00_start_here.ipynb").write_text("")
    assert _lab.find_originals(tmp_path / "site-packages", [str(tmp_path / "env")]) == place


def test_course_that_is_nowhere_is_told(tmp_path: Path) -> None:
    """The message says where the course comes from."""
    with pytest.raises(InputError, match="Clone the project's repository"):
        _lab.find_originals(tmp_path, [str(tmp_path)])


def test_originals_lie_where_pip_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's, Ubuntu's and so Colab's own Python has the prefix /usr, and sysconfig's scheme posix_local, with data below /usr/local."""
    place = tmp_path / "local" / "share" / "gpulab" / "notebooks"
    place.mkdir(parents=True)
    (place / "00_start_here.ipynb").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", {"data": str(tmp_path / "local")}.__getitem__)
    assert _lab.find_originals(tmp_path / "dist-packages") == place


def test_folder_that_cannot_be_written_is_told(course: Path) -> None:
    """A working copy inside a file cannot be made; the message names the way out."""
    (course / "file").write_text("")
    with pytest.raises(GpulabError, match="--dir"):
        _lab.run_lab(parse("--dir", str(course / "file" / "inside")))


def test_a_home_that_is_not_here_is_told(course: Path) -> None:
    """A shell leaves ~NAME as it is where there is no such user: one sentence, and no folder of that name."""
    with pytest.raises(InputError, match=r"lab: ~nosuchuser/x begins with the home of a user that is not here"):
        _lab.run_lab(parse("--dir", "~nosuchuser/x"))


def test_server_listens_here_only_and_stops_without_a_question() -> None:
    """The address is the loopback one; root is named only where it is root; extra arguments come last."""
    arguments = _lab.jupyter_arguments(Path("/x"), None, open_browser=False, extra=["--LabApp.a=1"])
    assert "--ServerApp.ip=127.0.0.1" in arguments
    assert "--ServerApp.answer_yes=True" in arguments
    assert "--ServerApp.port_retries=50" in arguments
    assert "--allow-root" not in arguments
    assert arguments[-1] == "--LabApp.a=1"
    assert "--allow-root" in _lab.jupyter_arguments(Path("/x"), None, open_browser=False, root=True)
    assert "--ServerApp.port_retries=0" in _lab.jupyter_arguments(Path("/x"), 9000, open_browser=False)


@pytest.mark.parametrize(
    "argument",
    [
        "--ServerApp.ip=0.0.0.0",
        "--ip=0.0.0.0",
        "--IdentityProvider.token=",
        "--ServerApp.allow_remote_access=True",
        # As `jupyter lab --help-all` names them.
        "--ServerApp.allow_origin_pat=.*",
        "--ServerApp.allow_credentials=True",
        "--ServerApp.disable_check_xsrf=True",
        "--ServerApp.allow_unauthenticated_access=True",
        "--PasswordIdentityProvider.hashed_password=x",
        "--ServerApp.identity_provider_class=x.Y",
        "--ServerApp.authorizer_class=x.Y",
        "--ServerApp.login_handler_class=x.Y",
        "--ServerApp.local_hostnames=x",
        "--ServerApp.notebook_dir=/",
        "--ServerApp.sock=/tmp/x",
        "--sock=/tmp/x",
        "--sock-mode=0777",
    ],
)
def test_arguments_that_would_open_the_server_are_refused(argument: str) -> None:
    """The way to serve others is JupyterHub, and the message says where to read on."""
    with pytest.raises(InputError, match="README"):
        _lab.jupyter_arguments(Path("/x"), None, open_browser=False, extra=[argument])


@pytest.mark.parametrize("words", [["notebooks"], ["02"], ["--", "02_data_transfer.ipynb"], ["--", "--LabApp.collaborative=True", "."]])
def test_a_folder_is_not_served_in_the_working_copys_place(words: list[str]) -> None:
    """JupyterLab takes a name that is no option for the folder to serve, whatever it was told before: the originals would be edited."""
    extra = parse(*words).jupyter
    with pytest.raises(InputError, match=r"^lab: '[\w.]+' is no option; expected options alone, and JupyterLab's own after --\. Choose"):
        _lab.jupyter_arguments(Path("/x"), None, open_browser=False, extra=extra)


def test_an_options_value_may_stand_behind_it() -> None:
    """As a word of its own; whether a flag takes one is JupyterLab's business."""
    extra = parse("--", "--ServerApp.certfile", "mine.pem", "--debug").jupyter
    assert _lab.jupyter_arguments(Path("/x"), None, open_browser=False, extra=extra)[-3:] == extra


def test_port_in_use_is_told() -> None:
    """A port that is taken, or does not exist, is a sentence and not a server somewhere else."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot be used"):
            _lab._check_port(taken.getsockname()[1])
    with pytest.raises(InputError, match="does not exist"):
        _lab._check_port(70000)


def test_server_of_this_working_copy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that serves this folder and answers counts: a crashed server leaves its file behind."""
    here = {"root_dir": str(tmp_path), "url": "http://127.0.0.1:1/", "token": "t"}
    other = {**here, "root_dir": str(tmp_path.parent)}
    assert _lab.find_running(tmp_path, [other, here]) is None
    monkeypatch.setattr(_lab, "_answers", lambda server: True)
    assert _lab.find_running(tmp_path, [other, here]) is here


def test_what_listens_at_a_dead_servers_port_is_no_server(tmp_path: Path) -> None:
    """The file of a server that a crash left behind names a port; by now something that is no web server may have it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(60)

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        left = {"root_dir": str(tmp_path), "url": f"http://127.0.0.1:{other.getsockname()[1]}/", "token": "t"}
        assert _lab.find_running(tmp_path, [left]) is None
        greeter.join()


def test_running_server_is_opened_again(course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `gpulab lab` says where the first one is and starts none."""
    server = {"root_dir": str(course / "my-notebooks"), "url": "http://127.0.0.1:9/", "token": "secret"}
    monkeypatch.setattr(_lab, "_running_servers", lambda: [server])
    monkeypatch.setattr(_lab, "_answers", lambda server: True)
    monkeypatch.setattr(_lab, "serve", lambda *a, **k: pytest.fail("a second server was started"))
    assert _lab.run_lab(parse("--no-browser")) == 0
    assert "http://127.0.0.1:9/lab/tree/00_start_here.ipynb?token=secret" in capsys.readouterr().out


LOSING = """
import socket, sys
from jupyter_server.serverapp import ServerApp
find, winners = ServerApp._find_http_port, []
def find_and_lose(self):
    find(self)
    if not winners:  # another server takes the port between the look and the taking
        winners.append(socket.create_server((self.ip, self.port)))
        print("lost", self.port, flush=True)
ServerApp._find_http_port = find_and_lose
from gpulab import cli
sys.exit(cli.main(["lab", "--no-browser", "--dir", sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_port_that_another_server_takes_first_is_no_end(tmp_path: Path) -> None:
    """Of two that start in the same instant, the one that loses its port takes another, says that one, and answers there."""
    own = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    server = subprocess.Popen(
        [sys.executable, "-c", LOSING, str(tmp_path / "mine")], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if "token=" in line:
                break
        lost, found = re.search(r"lost (\d+)", said), re.search(r"http://127\.0\.0\.1:(\d+)/lab/\S+token=(\w+)", said)
        assert lost is not None, said
        assert found is not None, said
        assert lost[1] != found[1]
        asked = urllib.request.Request(f"http://127.0.0.1:{found[1]}/api/status", headers={"Authorization": f"token {found[2]}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=60) as answer:
            assert answer.status == 200
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_the_ports_that_there_are() -> None:
    """0 and 65536 do not exist; the first free one is not asked for beforehand."""
    for port in (0, 65536):
        with pytest.raises(InputError, match=rf"^lab: port {port} does not exist; expected 1 to 65535\."):
            _lab._check_port(port)
    _lab._check_port(None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    _lab._check_port(free)


def test_outside_a_clone_the_copy_lies_where_the_learner_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside pyproject.toml in a clone, else in the current folder."""
    monkeypatch.chdir(tmp_path)
    assert _lab._default_copy(tmp_path / "share" / "notebooks") == tmp_path / "my-notebooks"
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "pyproject.toml").write_text("")
    assert _lab._default_copy(tmp_path / "share" / "notebooks") == tmp_path / "share" / "my-notebooks"


def test_a_reset_without_a_changed_version_says_so(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines: what is the original again, and how an open one shows it."""
    assert _lab.run_lab(parse("--reset", "00")) == 0
    assert capsys.readouterr().out == (
        "00_start_here.ipynb is the original again. There was no changed version to keep.\n"
        "If it is open in JupyterLab, use File > Reload Notebook from Disk there.\n"
    )


def test_what_is_asked_for_reaches_the_server(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder, the port, the browser and what stands behind --; the exit code comes back."""
    given: list[object] = []
    monkeypatch.setattr(_lab, "serve", lambda *a, **k: given.extend((a, k)) or 7)
    assert _lab.run_lab(parse("--port", "9000", "--", "--LabApp.a=1")) == 7
    assert _lab.run_lab(parse("--no-browser")) == 7
    copy = course / "my-notebooks"
    assert given == [
        (copy, 9000), {"open_browser": True, "extra": ["--LabApp.a=1"]}, (copy, None), {"open_browser": False, "extra": []},
    ]  # fmt: skip


def test_jupyters_command_line_word_by_word() -> None:
    """Here only, from 8888 on; the notebook to open, the learner's layouts in the working copy, and no question to the internet."""
    copy = Path("/x")
    assert _lab.jupyter_arguments(copy, None, open_browser=True) == [
        "--ServerApp.ip=127.0.0.1", "--ServerApp.port=8888", "--ServerApp.port_retries=50", f"--ServerApp.root_dir={copy}",
        "--ServerApp.open_browser=True", "--ServerApp.answer_yes=True", "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN",
        "--LabApp.default_url=/lab/tree/00_start_here.ipynb", f"--LabApp.workspaces_dir={copy / '.gpulab' / 'workspaces'}",
        "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    assert "--ServerApp.port=9000" in _lab.jupyter_arguments(copy, 9000, open_browser=False)


def test_a_running_server_is_shown_in_the_browser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At its address with its token, and only where a browser may be opened."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    server = {"url": "http://127.0.0.1:9/", "token": "t"}
    assert (_lab._open_running(server, open_browser=True), _lab._open_running(server, open_browser=False)) == (0, 0)
    assert opened == ["http://127.0.0.1:9/lab/tree/00_start_here.ipynb?token=t"]
    assert capsys.readouterr().out.startswith(f"JupyterLab already runs on this working copy:\n    {opened[0]}\n")


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_is_asked_with_its_token(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Past any proxy; one that does not answer in three seconds is not there."""
    asked: list[object] = []

    class Opener:
        def __init__(self, handler: urllib.request.ProxyHandler) -> None:
            asked.append(handler.proxies)  # type: ignore[attr-defined]

        def open(self, request: urllib.request.Request, timeout: float) -> socket.socket:
            asked.append((request.full_url, request.get_header("Authorization"), timeout))
            if not answers:
                raise TimeoutError
            return socket.socket()

    monkeypatch.setattr(urllib.request, "build_opener", Opener)
    assert _lab._answers({"url": "http://127.0.0.1:9/", "token": "t"}) is answers
    assert asked == [{}, ("http://127.0.0.1:9/api/status", "token t", 3)]


class FakeServer:
    """JupyterLab's server as far as `gpulab lab` touches it; its port is taken by others for a number of tries."""

    def __init__(self, taken: int = 0) -> None:
        self.taken, self.tries, self.looks, self.argv = taken, 0, 0, []
        self.io_loop, self.identity_provider, self.log = self, argparse.Namespace(token="", token_generated=True), self
        self.said: list[str] = []

    def initialize_server(self, argv: list[str]) -> FakeServer:
        """Give itself, as the class would."""
        self.argv = argv
        return self

    def _bind_http_server_tcp(self) -> bool:
        self.tries += 1
        return self.tries > self.taken

    def _find_http_port(self) -> None:
        self.looks += 1

    def run_sync(self, work: object) -> None:
        """What JupyterLab has put into the loop runs first."""
        self.bound = self._bind_http_server_tcp()

    def server_info(self) -> dict[str, str]:
        """Where it is."""
        return {"url": "http://127.0.0.1:9/", "token": self.identity_provider.token}

    def add_callback(self, function: object, message: str, **options: object) -> None:
        """What is said once it answers."""
        self.said.append(message)

    debug = server_info

    def start(self) -> None:
        """End at once."""


@pytest.mark.parametrize(
    ("taken", "any_port", "bound", "tries", "looks"),
    [
        (0, True, True, 1, 0),
        (2, True, True, 3, 2),
        (49, True, True, 50, 49),
        (50, True, False, 50, 50),
        (1, False, False, 1, 0),
        (0, False, True, 1, 0),
    ],
)
def test_the_next_free_port_is_looked_for_fifty_times(taken: int, any_port: bool, bound: bool, tries: int, looks: int) -> None:
    """And not at all where one port was asked for."""
    server = FakeServer(taken)
    _lab._listen(server, any_port=any_port)
    assert (server.bound, server.tries, server.looks) == (bound, tries, looks)


@pytest.mark.parametrize("root", [False, True])
def test_the_server_has_a_token_of_its_own_and_the_courses_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: bool
) -> None:
    """A fresh token each time; the course's settings before the user's own; root is warned; the address is said once."""
    server = FakeServer()
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", argparse.Namespace(LabApp=server))  # type: ignore[arg-type]
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000, raising=False)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/mine")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    monkeypatch.delenv("JUPYTER_PREFER_ENV_PATH")
    assert _lab.serve(tmp_path, extra=["--LabApp.a=1"]) == 0
    token = server.identity_provider.token
    assert re.fullmatch("[0-9a-f]{48}", token)
    assert server.identity_provider.token_generated is False
    assert server.argv == _lab.jupyter_arguments(tmp_path, None, open_browser=True, extra=["--LabApp.a=1"], root=root)
    address = f"http://127.0.0.1:9/lab/tree/00_start_here.ipynb?token={token}"
    assert server.said == [f"JupyterLab is at\n    {address}\nYour notebooks: {tmp_path}. Stop with Ctrl-C."]
    defaults, mine = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert (Path(defaults), mine) == (Path(_lab.__file__).resolve().parent / "_jupyter", "/mine")
    assert os.environ["JUPYTER_PREFER_ENV_PATH"] == "1"
    said = capsys.readouterr().out
    assert said.endswith("JupyterLab has stopped.\n")
    assert said.startswith("Warning: JupyterLab runs as root here") is root
    _lab.serve(tmp_path)
    assert server.identity_provider.token != token


def test_a_home_that_jupyter_cannot_write_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `docker run --user 1234`, whose home is /: jupyter_core makes its folder there and passes on what the system says."""

    def initialize_server(argv: list[str]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/.local")

    server = argparse.Namespace(initialize_server=initialize_server)
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", argparse.Namespace(LabApp=server))  # type: ignore[arg-type]
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PREFER_ENV_PATH"):
        monkeypatch.setenv(name, "")
    with pytest.raises(GpulabError, match=r"^lab: Jupyter cannot keep its own files \(Permission denied: /\.local\); .* Set HOME to such"):
        _lab.serve(tmp_path)
