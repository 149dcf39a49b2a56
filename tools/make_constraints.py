"""Write constraints.txt: each package for any supported machine, at the version tested here.

Run with the environment's own Python after changing versions: ``.venv/bin/python
tools/make_constraints.py``. The closure is walked through the installed packages' own metadata,
once for each supported system, processor and Python version, so a package that only Windows needs
is pinned too. The packages that only another system installs are named, with their versions, below.
"""

from __future__ import annotations

import itertools
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
# sys_platform -> (platform_system, os_name, platform_machine ...) of the supported systems.
SYSTEMS = {
    "linux": ("Linux", "posix", "x86_64", "aarch64"),
    "darwin": ("Darwin", "posix", "arm64"),
    "win32": ("Windows", "nt", "AMD64"),
}
# Needed on other systems only, so not installed where this file is made.
ELSEWHERE = {
    "appnope": "0.1.4",
    "colorama": "0.4.6",
    "pywinpty": "3.1.2",
    "cupy-cuda12x": "14.2.0",
    "cupy-cuda13x": "14.2.0",
    # CUDA 12.6, as PyTorch's build for it.
    "nvidia-cuda-nvcc-cu12": "12.6.85",
    "nvidia-cuda-cccl-cu12": "12.6.77",
    "tensorflow": "2.21.0",
}
# Packages whose build for another processor has another name, but the same requirements.
ALIKE = {"tensorflow": "tensorflow-cpu"}
# What pip does not see as a dependency of ours: the build backend.
_ALSO = {"setuptools": tuple(SYSTEMS)}
# The CUDA build of this torch asks for these versions exactly (its metadata: cuda-toolkit==13.0.3,
# and that package's own metadata), so a newer pin would make it impossible to install. The CPU
# build, which is installed here, does not name them. Check them again when torch changes.
TORCH = "2.13.0"
FIXED_BY_TORCH = {
    "nvidia-cuda-nvrtc": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-nvjitlink": "13.0.88",
}
# Prefixes of the packages that only torch's CUDA builds ask for: torch fixes their versions itself,
# by its own or by its toolkit's metadata.
_BY_A_CUDA_BUILD = ("nvidia-", "cuda-", "triton")
# Kept at the release of FIXED_BY_TORCH, though torch does not ask for them: headers and compilers
# of one toolkit belong together.
OF_THE_SAME_TOOLKIT = {
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-cuda-cccl": "13.0.85",
    "nvidia-nvvm": "13.0.88",
}
# CuPy has no builds for macOS.
_NO_CUPY = ("darwin",)

_HEADER = """\
# The exact versions of the course, for pip's -c option; `make lab` uses them. Made by tools/make_constraints.py.
# torch's own build (CPU, CUDA 12.6, CUDA 13) is chosen by tools/setup_env.py; it pins most of NVIDIA's libraries itself, and the few
# that are named here have the versions that it asks for.
"""


def direct_requirements() -> list[Requirement]:
    """Return the requirements of pyproject.toml, with those of every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    return [r for r in map(Requirement, lines) if canonicalize_name(r.name) != "gpulab"]


def needed_on() -> dict[str, set[str]]:
    """Return each needed package's name with the systems (as in ``sys.platform``) that need it."""
    systems: dict[str, set[str]] = defaultdict(set)
    for platform, (system, os_name, *machines) in SYSTEMS.items():
        for python, machine in itertools.product(PYTHONS, machines):
            environment = {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
                "sys_platform": platform,
                "platform_system": system,
                "os_name": os_name,
                "platform_machine": machine,
            }
            for name in _closure(environment):
                systems[name].add(platform)
    for name in [n for n in systems if n.startswith("cupy-")]:
        systems[name] -= set(_NO_CUPY)
    for name, platforms in _ALSO.items():
        systems[name] |= set(platforms)
    return dict(systems)


def _closure(environment: dict[str, str]) -> set[str]:
    todo = [
        (r, "") for r in direct_requirements() if r.marker is None or r.marker.evaluate(environment)
    ]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, asked = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            source = ALIKE.get(name, name)
            elsewhere = name in ELSEWHERE or not (
                requirement.marker is None or requirement.marker.evaluate({"extra": asked})
            )
            # such as a package for an older Python: its own requirements are not known here
            if elsewhere and not _installed(source):
                continue
            for line in metadata.distribution(source).requires or []:
                below = Requirement(line)
                if name == "torch" and below.name.startswith(_BY_A_CUDA_BUILD):
                    continue
                if below.marker is None or below.marker.evaluate({**environment, "extra": extra}):
                    todo.append((below, extra))
    return {name for name, _ in seen}


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _version(name: str) -> str:
    """Return the version that is named above, else the installed one without a build's tag (+cpu),
    so that every build fits it.
    """
    named = {**ELSEWHERE, **FIXED_BY_TORCH, **OF_THE_SAME_TOOLKIT}
    return named.get(name) or metadata.version(name).split("+")[0]


def _line(name: str, platforms: set[str]) -> str:
    marker = ""
    if platforms != set(SYSTEMS):
        marker = " ; " + " or ".join(
            f'sys_platform == "{platform}"' for platform in SYSTEMS if platform in platforms
        )
    return f"{name}=={_version(name)}{marker}\n"


def main() -> None:
    """Write the file."""
    if _version("torch") != TORCH:
        raise SystemExit(
            f"make_constraints: torch {_version('torch')} is installed, FIXED_BY_TORCH is for "
            f"{TORCH}. Read there what to check, and change both."
        )
    lines = [_line(name, platforms) for name, platforms in sorted(needed_on().items())]
    CONSTRAINTS.write_text(_HEADER + "".join(lines), encoding="utf-8")
    print(f"{CONSTRAINTS.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
