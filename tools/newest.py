"""Run the tests with the newest versions of all dependencies, in a separate environment.

    python tools/newest.py [pytest's arguments]      bring .gpulab/venv-newest up to date, say what
                                                     is newer than the pins, run the tests
    python tools/newest.py --list                    only say what is newer there than the pins

Run it by hand or on a schedule, not in continuous integration: a dependency's release must not make
the checks of an unrelated change fail. PyTorch comes from its own index, in the build for this
machine. If the index does not answer, the pinned version stays, and a message says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import setup_env

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".gpulab" / "venv-newest"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
TESTS = (
    "-q",
    "-m",
    "not browser and not pins",
    "--nbval-lax",
    "--nbval-cell-timeout=120",
    "--timeout",
    "400",
    "tests",
    "notebooks",
)


def torch_arguments(stack: setup_env.Stack, answers: bool) -> list[str]:
    """Return pip's arguments for the newest PyTorch of a stack, or for the pinned PyTorch if its
    index does not answer.
    """
    if stack.index is None:
        return ["--upgrade", "torch"]
    return (
        ["--upgrade", "torch", "--index-url", setup_env.INDEX + stack.index]
        if answers
        else [setup_env.torch_pin()]
    )


def normal(name: str) -> str:
    """Return a distribution's name as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Return the version that constraints.txt pins for each name."""
    found = (re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line) for line in text.splitlines())
    return {normal(match[1]): match[2] for match in found if match}


def newer(pinned: dict[str, str], installed: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return (name, pinned, installed) of each package whose versions differ, sorted by name. A
    build's tag (``+cpu``) is no difference.
    """
    there = {name: version.partition("+")[0] for name, version in installed.items()}
    return [
        (name, version, installed[name])
        for name, version in sorted(pinned.items())
        if there.get(name, version) != version
    ]


def _pip(*arguments: str) -> None:
    subprocess.run(
        [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-q", *arguments],
        env={**os.environ, "PIP_USER": "0"},
        check=True,
    )


def install() -> None:
    """Make the environment if it is not there, and bring everything in it to the newest version."""
    # without pip where making it was interrupted
    if setup_env.version_of(str(PYTHON)) is None:
        VENV.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    stack = setup_env.stack_here()
    answers = stack.index is None or setup_env.index_answers(stack.index)
    if not answers:
        print(
            f"PyTorch's index {setup_env.INDEX}{stack.index} does not answer: torch stays at its "
            "pin.",
            flush=True,
        )
    _pip(*torch_arguments(stack, answers))
    torch = installed()["torch"].partition("+")[0]
    # otherwise the upgrade of the rest would install the default build of torch, of gigabytes
    held = VENV / "held.txt"
    held.write_text(f"torch=={torch}\n", encoding="utf-8")
    cupy = [stack.extra or "cuda13"] if stack.name != "apple" else []
    name = f"{ROOT}[{','.join(['test', *cupy])}]"
    _pip("--upgrade", "--upgrade-strategy", "eager", "-c", str(held), "-e", name)


def installed() -> dict[str, str]:
    """Return what the environment holds, by name."""
    command = [str(PYTHON), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    listed = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    )
    return {normal(one["name"]): one["version"] for one in listed}


def main(arguments: list[str]) -> int:
    """Run from the command line; return pytest's exit code, or 1 where an installation failed."""
    try:
        if "--list" not in arguments:
            install()
        elif not PYTHON.exists():
            print(
                "There is no environment with the newest dependencies yet; run this without "
                "--list.",
                file=sys.stderr,
            )
            return 1
        there = installed()
    except setup_env.SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(
            f"newest: `{' '.join(map(str, error.cmd))}` failed; its last lines say why.",
            file=sys.stderr,
        )
        return 1
    found = newer(pins((ROOT / "constraints.txt").read_text(encoding="utf-8")), there)
    for name, pinned, version in found:
        print(f"  {name}: {pinned} -> {version}")
    print(f"{len(found)} packages differ from constraints.txt.", flush=True)
    if "--list" in arguments:
        return 0
    return subprocess.run(
        [str(PYTHON), "-m", "pytest", *TESTS, *arguments], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
