"""``gpulab lab``: JupyterLab on the learner's working copy, opened at ``00_start_here``.

The server listens on the loopback address with a fresh token, makes no requests to the internet,
and leaves the user's own JupyterLab settings alone: what the course needs is set as defaults
(``gpulab/_jupyter``), which user settings override. The working copy itself is managed by
``working_copy``.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import secrets
import signal
import site
import socket
import sys
import sysconfig
import urllib.request
import webbrowser
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpulab import working_copy
from gpulab._validate import expanded, whole
from gpulab.errors import GpulabError, InputError, set_up_command, shown

_FIRST_NOTEBOOK = "00_start_here.ipynb"
_COPY_NAME = "my-notebooks"
_ADDRESS = "127.0.0.1"
_PORT_RETRIES = 50
_LAST_REQUESTS_SECONDS = 5
# The settings that arguments after -- must not change: who can reach the server, with which
# credentials, and which folder it serves.
_GUARDED = (
    "ip",
    "sock",
    "sock_mode",
    "port",
    "local_hostnames",
    "allow_remote_access",
    "allow_origin",
    "allow_origin_pat",
    "allow_credentials",
    "token",
    "password",
    "hashed_password",
    "allow_unauthenticated_access",
    "disable_check_xsrf",
    "identity_provider_class",
    "authorizer_class",
    "login_handler_class",
    "root_dir",
    "notebook_dir",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab lab`` and its arguments to its parser."""
    parser.description = "Open the course in JupyterLab, in a working copy of your own."
    parser.add_argument(
        "--no-browser",
        action="store_true",
        help="do not open a browser (for servers); the address is printed",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=None,
        help="the port to listen on (default: the first free one from 8888)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=None,
        help=f"the working copy's folder (default: {_COPY_NAME} beside the course)",
    )
    parser.add_argument(
        "--reset",
        metavar="NAME",
        help="restore the original of one notebook (yours is kept under a dated name), and exit",
    )
    parser.add_argument(
        "jupyter", nargs="*", metavar="-- ARG", help="after --: arguments for JupyterLab itself"
    )


def run(args: argparse.Namespace) -> int:
    """Run ``gpulab lab``; return the process's exit code.

    Raises
    ------
    InputError
        If the originals cannot be found, the port is taken, or an argument cannot be used.
    GpulabError
        If the working copy cannot be written.
    """
    originals = find_originals()
    # beside the originals in a clone (git ignores it there), else in the current folder
    clone = originals.parent
    beside = clone if (clone / "pyproject.toml").is_file() else Path.cwd()
    copy = expanded("lab", args.dir or beside / _COPY_NAME).absolute()
    try:
        if args.reset is not None:
            sentences = working_copy.reset(originals, copy, args.reset)
        else:
            sentences = working_copy.update(originals, copy)
    except OSError as error:
        raise GpulabError(
            f"lab: the working copy {copy} cannot be written ({error.strerror}: "
            f"{error.filename or copy}); "
            "expected a writable folder with free space. Pass another one with --dir."
        ) from error
    if sentences:
        print(*sentences, sep="\n")
    if args.reset is not None:
        print("If the file is open in JupyterLab, use File > Reload Notebook from Disk there.")
        return 0
    from jupyter_server.serverapp import list_running_servers

    running = find_running(copy, list_running_servers())
    if running is None:
        return serve(copy, args.port, open_browser=not args.no_browser, extra=args.jupyter)
    address = _address_of(running)
    print(f"JupyterLab is already running on this working copy:\n    {address}")
    if not args.no_browser:
        webbrowser.open(address)
    return 0


def find_originals(root: Path | None = None, prefixes: Iterable[str] | None = None) -> Path:
    """Return the folder of the course's notebooks: beside the package in a clone, in
    ``share/gpulab`` from a wheel.

    Raises
    ------
    InputError
        If it is in neither place.
    """
    root = root or Path(__file__).resolve().parent.parent
    # The prefixes that pip installs to: Debian's own Python has the prefix /usr, and its pip writes
    # below /usr/local.
    prefixes = prefixes or (sys.prefix, sysconfig.get_path("data"), site.getuserbase())
    for folder in (
        root / "notebooks",
        *(Path(prefix) / "share" / "gpulab" / "notebooks" for prefix in prefixes),
    ):
        if (folder / _FIRST_NOTEBOOK).is_file():
            return folder
    raise InputError(
        f"course: the notebooks are neither in {root / 'notebooks'} nor in this environment's "
        f"share/gpulab; expected {_FIRST_NOTEBOOK} there. Clone the project's repository and run "
        f"{set_up_command()} in it."
    )


def find_running(copy: Path, servers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the server that already serves this working copy and responds, or None."""
    own = (s for s in servers if Path(s.get("root_dir", "")).resolve() == copy.resolve())
    return next(filter(_answers, own), None)


def _answers(server: Mapping[str, Any]) -> bool:
    request = urllib.request.Request(
        f"{server['url']}api/status", headers={"Authorization": f"token {server.get('token', '')}"}
    )
    # no proxy for a request to this machine itself
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=3):
            return True
    except (OSError, http.client.HTTPException):
        # HTTPException: another program, which is not a web server, now listens at the port
        return False


def _address_of(server: Mapping[str, Any]) -> str:
    return f"{server['url']}lab/tree/{_FIRST_NOTEBOOK}?token={server.get('token', '')}"


def jupyter_arguments(
    copy: Path,
    port: int | None,
    *,
    open_browser: bool,
    extra: Iterable[str] = (),
    root: bool = False,
) -> list[str]:
    """Return JupyterLab's command line, without the token.

    Raises
    ------
    InputError
        If ``extra`` sets what this command sets itself (address, token, folder, port), or holds the
        name of a file or a folder.
    """
    extra = list(extra)
    for before, argument in zip(["", *extra], extra, strict=False):
        # JupyterLab would serve a folder named here instead of the working copy: `gpulab lab
        # notebooks` would serve the originals.
        if not argument.startswith("-") and ("=" in before or not before.startswith("-")):
            raise InputError(
                f"lab: {shown(argument)} is not an option; expected only options, with those of "
                "JupyterLab after --. Choose the working copy's folder with --dir, and open a "
                "notebook in JupyterLab."
            )
        # the same name for --ServerApp.ip and its short form --ip
        name = argument.lstrip("-").split("=")[0].split(".")[-1].replace("-", "_")
        if name in _GUARDED:
            raise InputError(
                f"lab: {argument} would change who can reach the server or what it serves; "
                "expected other arguments after --. Use --port and --dir; to serve other people, "
                "see docs/classroom.md."
            )
    return [
        f"--ServerApp.ip={_ADDRESS}",
        f"--ServerApp.port={port or 8888}",
        f"--ServerApp.port_retries={0 if port else _PORT_RETRIES}",
        f"--ServerApp.root_dir={copy}",
        f"--ServerApp.open_browser={open_browser}",
        "--ServerApp.answer_yes=True",  # one Ctrl-C stops it, without a question
        "--ServerApp.log_level=WARN",
        "--LabApp.log_level=WARN",
        f"--LabApp.default_url=/lab/tree/{_FIRST_NOTEBOOK}",
        f"--LabApp.workspaces_dir={copy / working_copy.STATE_FOLDER / 'workspaces'}",
        "--LabApp.extension_manager=readonly",  # the default manager sends requests to PyPI
        *(["--allow-root"] if root else []),
        *extra,
    ]


def _check_port(port: int) -> None:
    advice = "Leave --port out to take the first free one."
    whole("lab", "the port", port, 1, 65535, advice)
    try:
        # create_server sets SO_REUSEADDR, but not on Windows, where it would let a port that is in
        # use be bound again
        socket.create_server((_ADDRESS, port)).close()
    except OSError as error:
        raise InputError(
            f"lab: port {port} cannot be used ({error.strerror}); expected a free one. {advice}"
        ) from error


def _listen(server: Any, *, any_port: bool) -> None:
    """Bind the port now; with ``any_port``, the next free one if another server was faster.

    JupyterLab looks for a free port first and binds it later, so of two servers that start in the
    same instant one would give up. JupyterLab also sends the browser to the port before the port is
    bound, so it is bound here, before ``server.start()``.
    """
    take = server._bind_http_server_tcp

    def take_a_free_one() -> bool:
        for _ in range(_PORT_RETRIES if any_port else 0):
            if take():
                return True
            server._find_http_port()
        return bool(take())

    async def taken() -> None:
        """Do nothing; before this, ``run_sync`` runs JupyterLab's own callbacks, which bind the
        port.
        """

    server._bind_http_server_tcp = take_a_free_one
    server.io_loop.run_sync(taken)


def serve(
    copy: Path, port: int | None = None, *, open_browser: bool = True, extra: Iterable[str] = ()
) -> int:
    """Run JupyterLab on a folder, in this process, until it is stopped; return the exit code.

    Parameters
    ----------
    copy : Path
        The folder to serve.
    port : int, optional
        Without one, the first free port from 8888.
    extra : iterable of str
        Further arguments for JupyterLab.

    Raises
    ------
    InputError
        If the port is taken, or ``extra`` sets what this command keeps for itself.
    GpulabError
        If Jupyter's own folders, which lie in the home, cannot be written to.
    """
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    arguments = jupyter_arguments(copy, port, open_browser=open_browser, extra=extra, root=is_root)
    if port is not None:
        _check_port(port)
    if is_root:
        print(
            "Warning: JupyterLab runs as root here, so every notebook can change everything on "
            "this machine. Use a normal user account."
        )
    defaults = str(Path(__file__).resolve().parent / "_jupyter")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        filter(None, (defaults, os.environ.get("JUPYTER_CONFIG_PATH")))
    )
    # Prefer this environment's kernel to one of the same name in the user's home.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    from jupyterlab.labapp import LabApp

    try:
        server = LabApp.initialize_server(argv=arguments)
    except OSError as error:
        # the home folder is missing or read-only, as in a container that runs under another user ID
        raise GpulabError(
            f"lab: Jupyter cannot keep its own files ({error.strerror}: "
            f"{error.filename or 'a file in the home folder'}); expected a home folder that you "
            f"may write to. Set {'APPDATA' if sys.platform == 'win32' else 'HOME'} to such a "
            "folder, and run it again."
        ) from error
    # Always a fresh token: a user's own configuration may have emptied it, and a command line or an
    # environment variable could be read by other users or by every kernel.
    server.identity_provider.token = secrets.token_hex(24)
    server.identity_provider.token_generated = False  # the address is printed below, once
    try:
        _listen(server, any_port=port is None)
        message = (
            f"JupyterLab is at\n    {_address_of(server.server_info())}\nYour notebooks: "
            f"{copy}. Stop with Ctrl-C."
        )
        server.io_loop.add_callback(print, message, flush=True)  # only once the server answers
        if callable(signal.getsignal(signal.SIGINT)) and (
            sys.platform == "win32" or not (sys.stdin and sys.stdin.isatty())
        ):
            # At a terminal JupyterLab handles SIGINT itself, but never on Windows. Otherwise Python
            # would raise KeyboardInterrupt, which ends only the request that is being handled, or
            # ends the loop before JupyterLab has shut down the kernels.
            signal.signal(signal.SIGINT, lambda *_: server.stop(from_signal=True))
        server.start()
    except KeyboardInterrupt:
        server.log.debug("stopped before the server was listening")
    loop = server.io_loop.asyncio_loop
    if requests := asyncio.all_tasks(loop):
        # requests that still run: the process would wait for their threads
        for request in requests:
            request.cancel()
        loop.run_until_complete(asyncio.wait(requests, timeout=_LAST_REQUESTS_SECONDS))
    print("JupyterLab has stopped.")
    return 0
