"""Make the course's environment in .venv, with the right Python and PyTorch, all pinned.

    python3 tools/setup_env.py            what the course needs (make lab)
    python3 tools/setup_env.py --tests    and what its tests need (make test)
    python3 tools/setup_env.py --wheelhouse    fill wheels/ for machines without a network (make
                                               wheelhouse)

It needs only Python's standard library, and also runs with a Python that is too old for the course
(3.7), because it looks for a newer one. It prints each decision with the reason. A second run finds
the stamp of the first and does nothing. An interrupted run continues where it stopped, since pip
keeps what is installed and caches what it fetched. If the folder wheels/ has been filled, every
package is taken from it and none from the network.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "gpulab-setup.json"
WHEELS = ROOT / "wheels"
# One line for each kind of machine that the folder was filled for. Written last, so that a partly
# filled folder is not taken for a complete one.
FILLED_FOR = WHEELS / "made-for.txt"
OLDEST = (3, 11)
NEWEST_TRIED = (3, 13)
COMMANDS = ("python3.13", "python3.12", "python3.11", "python3", "python")
INDEX = "https://download.pytorch.org/whl/"
# How long PyTorch's own index may take to answer. Set-up never waits longer, and does not fail if
# there is no answer.
INDEX_SECONDS = 4.0
# The first driver release of each CUDA major version on Linux (CUDA release notes, table of driver
# versions).
DRIVER_OF_CUDA = ((580, 13), (525, 12))
# CUDA 13 builds leave out GPUs older than Turing; the CUDA 12.6 builds of PyTorch leave out
# Blackwell (PyTorch RELEASE.md).
OLDEST_FOR_CUDA_13 = (7, 5)
NEWEST_FOR_CUDA_126 = (9, 0)
# PyTorch's own index for each stack; None: the build on PyPI.
INDEX_OF = {
    "cpu": "cpu",
    "apple": None,
    "cuda12": "cu126",
    "cuda13": "cu130" if os.name == "nt" else None,
}
# Free space that the packages need, in bytes: measured for the CPU build (1.8 GB), estimated for
# CUDA's.
ROOM = {"cpu": 3e9, "apple": 3e9, "cuda12": 12e9, "cuda13": 12e9}
# What the tests need on top: measured (3.0 GB, of which TensorFlow and JAX are 1.8), and room for
# what pip unpacks.
ROOM_OF_TESTS = 3.5e9


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


class Facts(NamedTuple):
    """The facts about a machine that decide which packages fit it."""

    system: str
    machine: str
    cuda: tuple[int, int] | None = None
    gpus: tuple[tuple[str, tuple[int, int]], ...] = ()
    amd: bool = False


class Stack(NamedTuple):
    """A choice of PyTorch and CuPy: its name, PyTorch's index for it (None: PyPI), CuPy's extra,
    and the reason.
    """

    name: str
    index: str | None
    extra: str | None
    reason: str


def choose_python(candidates: list[tuple[str, tuple[int, int]]]) -> str | None:
    """Return the command of the best Python: the newest of those up to NEWEST_TRIED, else the
    oldest of those beyond it, else None.
    """
    fit = [(version, command) for command, version in candidates if version >= OLDEST]
    tried = [pair for pair in fit if pair[0] <= NEWEST_TRIED]
    if tried:
        best = max(version for version, _ in tried)
        return next(command for version, command in tried if version == best)
    return min(fit)[1] if fit else None


def choose_stack(facts: Facts) -> Stack:
    """Return the packages for this machine."""
    if facts.system == "Darwin":
        if facts.machine != "arm64":
            raise SetupError(
                "set-up: this is an Intel Mac or a Python for Intel under Rosetta (machine = "
                f"{facts.machine!r}); PyTorch has no current builds for it. On an Apple-silicon "
                "Mac install a native (arm64) Python; else use another machine, or Colab "
                "(docs/install.md)."
            )
        return Stack(
            "apple",
            None,
            None,
            "an Apple-silicon Mac: PyTorch with Metal (MPS); CuPy has no macOS build",
        )
    windows = facts.system == "Windows"
    if facts.cuda is None:
        index = None if windows else "cpu"  # on Windows PyPI's own build is the CPU one
        if facts.amd:
            return Stack(
                "cpu",
                index,
                None,
                "an AMD GPU and no NVIDIA driver: the CPU build; for ROCm see docs/install.md",
            )
        return Stack(
            "cpu",
            index,
            None,
            "no NVIDIA driver was found: the CPU build, about 0.5 GB to download, not several",
        )
    shown = f"{facts.cuda[0]}.{facts.cuda[1]}"
    names = ", ".join(name for name, _ in facts.gpus) or "an NVIDIA GPU"
    old = [name for name, capability in facts.gpus if capability < OLDEST_FOR_CUDA_13]
    new = [name for name, capability in facts.gpus if capability > NEWEST_FOR_CUDA_126]
    # if no build supports both of two GPUs, choose for the newer one
    if facts.cuda[0] >= 13 and (new or not old):
        left = f"; {', '.join(old)} is older than it supports" if old else ""
        reason = f"{names}, driver for CUDA {shown}: PyTorch and CuPy for CUDA 13{left}"
        return Stack("cuda13", "cu130" if windows else None, "cuda13", reason)
    if facts.cuda[0] >= 12 and not new:
        why = (
            f"{', '.join(old)} is older than CUDA 13 supports"
            if facts.cuda[0] >= 13
            else f"driver for CUDA {shown}"
        )
        return Stack(
            "cuda12",
            "cu126",
            "cuda12",
            f"{names}, {why}: PyTorch for CUDA 12.6 and CuPy for CUDA 12",
        )
    wanted = "580 or newer (CUDA 13)" if new else "525 or newer (CUDA 12), better 580 (CUDA 13)"
    reason = (
        f"{names}, but its driver is for CUDA {shown}: the CPU build. Update the driver to "
        f"{wanted} and run this again to use the GPU"
    )
    return Stack("cpu", None if windows else "cpu", None, reason)


def stack_here() -> Stack:
    """Return the packages that GPULAB_STACK asks for; without it, those for this machine."""
    wanted, fits = os.environ.get("GPULAB_STACK"), choose_stack(look_at_machine())
    if not wanted:
        return fits
    if wanted not in INDEX_OF:
        raise SetupError(
            f"set-up: GPULAB_STACK={wanted!r} is not known; expected one of {', '.join(INDEX_OF)}."
        )
    extra = wanted if wanted.startswith("cuda") else None
    return Stack(wanted, INDEX_OF[wanted], extra, "asked for by GPULAB_STACK")


def cuda_of_driver(driver: str) -> tuple[int, int] | None:
    """Return the CUDA version that a driver version such as "580.65.06" supports, by its major
    number; None if unknown.
    """
    found = re.match(r"\s*(\d+)\.", driver)
    if not found:
        return None
    return next(
        ((cuda, 0) for first, cuda in DRIVER_OF_CUDA if int(found.group(1)) >= first), (11, 0)
    )


def parse_nvidia_smi(
    header: str, query: str
) -> tuple[tuple[int, int] | None, tuple[tuple[str, tuple[int, int]], ...]]:
    """Return the CUDA version of ``nvidia-smi``'s header and the (name, compute capability) of its
    query's lines.
    """
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", header)
    gpus = []
    for line in query.splitlines():
        name, _, capability = line.rpartition(",")
        numbers = re.match(r"\s*(\d+)\.(\d+)\s*$", capability)
        if name and numbers:
            gpus.append((name.strip(), (int(numbers.group(1)), int(numbers.group(2)))))
    return ((int(found.group(1)), int(found.group(2))) if found else None), tuple(gpus)


def _output(*command: str) -> str:
    """Return what a command printed; "" if it is missing, fails or takes more than 20 seconds.

    Bytes that cannot be decoded are replaced: nvidia-smi shortens the paths of the programs on a
    GPU, even in the middle of a character, and on Windows writes them in another encoding than
    Python expects. Set-up needs nothing from those paths.
    """
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=True,
            text=True,
            errors="replace",
        )
        return done.stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _cuda_from_nvml() -> tuple[int, int] | None:
    try:
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if nvml.nvmlInit_v2() != 0:
        return None
    known = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == 0
    nvml.nvmlShutdown()
    return (version.value // 1000, version.value % 1000 // 10) if known else None


def _cuda_from_proc() -> tuple[int, int] | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", text)
    return cuda_of_driver(found.group(1)) if found else None


def look_at_machine() -> Facts:
    """Return the facts of this machine; nothing is fetched."""
    system, machine = platform.system(), platform.machine()
    if system == "Darwin":
        return Facts(system, machine)
    cuda, gpus = parse_nvidia_smi(
        _output("nvidia-smi"),
        _output("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"),
    )
    return Facts(
        system,
        machine,
        cuda or _cuda_from_nvml() or _cuda_from_proc(),
        gpus,
        Path("/dev/kfd").exists(),
    )


def find_pythons() -> list[tuple[str, tuple[int, int]]]:
    """Return (command, version) of each Python that runs here; this one included. If one that is
    new enough has ensurepip, without which no environment gets pip, only those that have it.
    """
    found, complete = [], []
    code = (
        "import sys, importlib.util as util; "
        "print(*sys.version_info[:2], int(util.find_spec('ensurepip') is not None))"
    )
    for command in (*COMMANDS, sys.executable):
        text = _output(command, "-c", code).split()
        if len(text) == 3:
            version = (int(text[0]), int(text[1]))
            found.append((command, version))
            if text[2] == "1" and version >= OLDEST:
                complete.append((command, version))
    return complete or found


def index_answers(index: str, opener: Callable[..., object] = urllib.request.urlopen) -> bool:
    """Whether PyTorch's index has a page for torch, within INDEX_SECONDS."""
    try:
        opener(
            urllib.request.Request(INDEX + index + "/torch/", method="HEAD"), timeout=INDEX_SECONDS
        )
    except (OSError, ValueError, http.client.HTTPException):
        # also for an answer that does not come from a web server, as with a wrong proxy
        return False
    return True


def wanted_key(stack: str, python: tuple[int, int]) -> str:
    """A hash of everything that decides what is installed."""
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*parts, stack.encode(), str(python).encode()])).hexdigest()


def read_stamp() -> dict[str, object]:
    """Return the stamp of the last set-up; empty if there is none or it cannot be read. A set-up
    that did not finish has left only its stack and the project's folder.
    """
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(facts: dict[str, object]) -> None:
    """Write the stamp for the next set-up: ``facts`` and the project's folder."""
    STAMP.write_text(json.dumps({**facts, "root": str(ROOT)}) + "\n")


def is_done(stamp: dict[str, object], key: str, extras: list[str]) -> bool:
    """Whether a stamp says that all of ``extras`` are installed for ``key``."""
    there = stamp.get("extras")
    return stamp.get("key") == key and isinstance(there, list) and set(extras) <= set(there)


def is_there(extras: list[str]) -> bool:
    """Return whether the environment holds gpulab and all that it and ``extras``, with the extras
    that these name, require, so that packages removed by hand are installed again.
    """
    code = (
        "import importlib.metadata, sys\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "required = list(map(Requirement, importlib.metadata.requires('gpulab')))\n"
        "extras = ['', *sys.argv[1:]]\n"
        "for extra in extras:\n"
        "    for each in required:\n"
        "        if each.marker is not None and not each.marker.evaluate({'extra': extra}):\n"
        "            continue\n"
        "        if each.name == 'gpulab':\n"
        "            extras += each.extras - set(extras)\n"
        "        else:\n"
        "            found = importlib.metadata.version(each.name)\n"
        "            assert each.specifier.contains(found, prereleases=True)"
    )
    return (
        subprocess.run(
            [str(venv_python()), "-c", code, *extras], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def torch_pin() -> str:
    """The line of constraints.txt that pins torch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.split(";")[0].strip() for line in lines if line.startswith("torch=="))


def venv_python() -> Path:
    """The environment's own interpreter."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def version_of(python: str) -> tuple[int, int] | None:
    """Return the version of an environment's interpreter; None if it does not run or lacks pip."""
    text = _output(
        python, "-c", "import sys, pip; print(sys.version_info[0], sys.version_info[1])"
    ).split()
    return (int(text[0]), int(text[1])) if len(text) == 2 else None


def make_venv() -> tuple[int, int]:
    """Make .venv if it is not there, does not run or was moved; return its Python's version."""
    version = version_of(str(venv_python()))
    # The programs in .venv/bin name the folder that they were installed in, so a project that was
    # moved needs new ones.
    moved = read_stamp().get("root", str(ROOT)) != str(ROOT)
    if version is not None and version >= OLDEST and not moved:
        return version
    pythons, filled = find_pythons(), FILLED_FOR.read_text() if FILLED_FOR.exists() else ""
    fit = [
        (each, (major, minor))
        for each, (major, minor) in pythons
        if f"Python {major}.{minor}," in filled
    ]
    command = choose_python(fit or pythons)
    if command is None:
        raise SetupError(
            f"set-up: no Python {OLDEST[0]}.{OLDEST[1]} or newer was found (looked for "
            f"{', '.join(COMMANDS)}). Install one from python.org or your system's packages, and "
            "run this again."
        )
    print(f"Making .venv with {command}.", flush=True)
    made = subprocess.run([command, "-m", "venv", "--clear", str(VENV)], check=False)
    version = version_of(str(venv_python()))
    if made.returncode != 0 or version is None:
        raise SetupError(
            f"set-up: {command} cannot make an environment in {VENV}; the lines above say why. "
            "Expected a folder that you may write to, with room on the disk, and Python's module "
            "venv, which is a package of its own on Debian and Ubuntu: apt-get install "
            "python3-venv. If you may not install it, use a Python that has venv, such as uv's or "
            "conda's, and put it first in PATH. Then run this again."
        )
    if version > NEWEST_TRIED:
        print(
            f"Note: Python {version[0]}.{version[1]} is newer than the newest one supported here "
            f"({NEWEST_TRIED[0]}.{NEWEST_TRIED[1]}). If packages cannot be installed, install that "
            f"one, delete {VENV}, and run this again."
        )
    return version


def _pip(*arguments: str) -> None:
    command = [str(venv_python()), "-m", "pip", *arguments]
    offline = arguments[0] == "install" and FILLED_FOR.exists()
    if offline:
        command += ["--no-index", "--find-links", str(WHEELS)]
    # A server may tell pip to install for the user, which pip refuses in an environment.
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_USER="0")
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        if offline:
            raise SetupError(
                f"set-up: `pip {' '.join(arguments)}` failed; its last lines say why. Packages are "
                f"taken from {WHEELS}, which was filled for: "
                f"{'; '.join(FILLED_FOR.read_text().splitlines())}. On another kind of machine run "
                "`make wheelhouse` there, or rename the folder to install from the network."
            )
        raise SetupError(
            f"set-up: `pip {' '.join(arguments)}` failed; its last lines say why. Expected a "
            f"network, room on the disk and for temporary files, the right to write to {VENV}, and "
            f"Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST_TRIED[0]}.{NEWEST_TRIED[1]} in it. Run the "
            "same again: it goes on where it stopped."
        )


def room_needed(stack: str, extras: list[str], before: dict[str, object]) -> float:
    """Return the free space, in bytes, that the packages still to be installed need."""
    there = before.get("extras")
    tests = "test" in extras and not (isinstance(there, list) and "test" in there)
    return (0.0 if before.get("key") else ROOM[stack]) + (ROOM_OF_TESTS if tests else 0.0)


def compile_packages() -> None:
    """Compile all packages and gpulab to bytecode on all cores; pip would use one core, for most of
    two minutes for 19,000 files.

    Files that packages contain for other versions of Python do not compile; pip ignores them too.
    The packages' own tests, one file in seven, are not compiled, since they are never imported.
    """
    code = (
        "import compileall, re, sys, sysconfig\n"
        "for place in (sysconfig.get_path('purelib'), *sys.argv[1:]):\n"
        "    tests = re.compile(re.escape(place) + r'.*[/\\\\]tests[/\\\\]')\n"
        "    compileall.compile_dir(place, quiet=2, workers=0, rx=tests)"
    )
    command = [str(venv_python()), "-c", code, str(ROOT / "gpulab")]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def index_options(stack: Stack) -> list[str]:
    """Pip's options for PyTorch's own index, if this stack has one and it answers."""
    if stack.index is None:
        return []
    if index_answers(stack.index):
        return ["--extra-index-url", INDEX + stack.index]
    also = (
        ", which may be several gigabytes"
        if stack.name == "cpu"
        else "; it may not be able to use this GPU"
    )
    print(
        f"PyTorch's index {INDEX}{stack.index} does not answer, so the default build is "
        f"taken{also}.",
        flush=True,
    )
    return []


def fitting(stack: Stack, extras: list[str]) -> list[str]:
    """Return ``extras`` and those that this machine's GPU, or the tests without one, need."""
    # CuPy can be imported without a driver, and tests of gpulab's messages in that case need it (it
    # has no macOS build).
    cupy = stack.extra or ("cuda13" if "test" in extras and stack.name != "apple" else None)
    # numba-cuda runs Python kernels on a GPU; the pinned one is for CUDA 13 alone (the tests bring
    # it in any case, to compile).
    kernels = ["kernels"] if stack.extra == "cuda13" else []
    return [*([cupy] if cupy else []), *kernels, *extras]


def project(stack: Stack, extras: list[str]) -> str:
    """Return the project with its extras as a requirement for pip."""
    return f"{ROOT}[{','.join(fitting(stack, extras))}]"


def fill_wheelhouse(stack: Stack, extras: list[str], python: tuple[int, int]) -> None:
    """Download into wheels/ all packages of this machine's environment but the project itself,
    which is installed from its folder.
    """
    print(
        f"Filling {WHEELS} for machines like this one: {stack.name} ({stack.reason}).", flush=True
    )
    made_for = (
        f"{platform.system()} {platform.machine()}, Python {python[0]}.{python[1]}, {stack.name}"
    )
    download = [
        "download",
        "--only-binary",
        ":all:",
        "-c",
        str(ROOT / "constraints.txt"),
        "--dest",
        str(WHEELS),
        *index_options(stack),
    ]
    _pip(*download, torch_pin(), "setuptools")
    _pip(*download, "--find-links", str(WHEELS), project(stack, extras))
    before = FILLED_FOR.read_text().splitlines() if FILLED_FOR.exists() else []
    FILLED_FOR.write_text("\n".join(sorted({*before, made_for})) + "\n")
    nbytes = sum(path.stat().st_size for path in WHEELS.iterdir())
    print(
        f"{WHEELS.name} holds {nbytes / 1e9:.1f} GB. Copy the project's folder with it to each "
        "machine and run `make lab` there."
    )


def install(stack: Stack, extras: list[str], before: dict[str, object]) -> None:
    """Install torch's exact pin first (a range would take the newest build, gigabytes of it), then
    the rest.
    """
    free, needed = shutil.disk_usage(str(VENV)).free, room_needed(stack.name, extras, before)
    if free < needed:
        print(
            f"Note: {free / 1e9:.1f} GB are free here; this may need {needed / 1e9:.1f} GB.",
            flush=True,
        )
    if before.get("stack", stack.name) != stack.name:
        # pip would keep the same version, though it was built for another stack
        _pip("uninstall", "--yes", "torch")
    # written first: if this run is interrupted, the next one may be for another stack
    if before.get("stack") != stack.name:
        write_stamp({"stack": stack.name})
    constraints = ["--no-compile", "-c", str(ROOT / "constraints.txt")]
    _pip(
        "install",
        *constraints,
        torch_pin(),
        "setuptools",
        *([] if FILLED_FOR.exists() else index_options(stack)),
    )
    _pip("install", *constraints, "--no-build-isolation", "-e", project(stack, extras))
    compile_packages()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other set-up of this folder runs: two of them damage one environment.

    The lock is on the folder itself, so it needs no right to write, and the system frees it when
    this process ends. Windows, and file systems without locks, do without it.
    """
    folder = None
    try:
        import fcntl

        folder = os.open(str(ROOT), os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another set-up of this folder (Ctrl-C ends the wait).", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if folder is not None:
            os.close(folder)


def run(extras: list[str], wheelhouse: bool = False) -> None:
    """Bring .venv up to date, or fill the wheelhouse."""
    stack = stack_here()
    python = make_venv()
    # PyTorch for CUDA 12.6 brings its own compiler and gets none of CUDA 13: an older driver cannot
    # load what CUDA 13's compiler makes.
    extras = ["lab", *([] if stack.name == "cuda12" else ["compiler"]), *extras]
    if wheelhouse:
        fill_wheelhouse(stack, extras, python)
        return
    key, before = wanted_key(stack.name, python), read_stamp()
    if is_done(before, key, extras) and is_there(fitting(stack, extras)):
        return
    print(f"Setting up for this machine: {stack.name} ({stack.reason}).", flush=True)
    kept = before.get("extras") if before.get("key") == key else None
    every = sorted({*extras, *(kept if isinstance(kept, list) else [])})
    install(stack, every, before)
    write_stamp({"key": key, "extras": every, "stack": stack.name})
    print(f"The environment is ready in {VENV.name}.", flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Make the course's environment in .venv.")
    parser.add_argument("--tests", action="store_true", help="install what the tests need, too")
    parser.add_argument(
        "--wheelhouse",
        action="store_true",
        help="install nothing; download the packages into wheels/",
    )
    options = parser.parse_args()
    try:
        with alone():
            run(["test", "dev"] if options.tests else [], options.wheelhouse)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"set-up: {error}. Expected a folder that you may write to, with room on the disk. "
            "Then run the same again.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; run the same again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
