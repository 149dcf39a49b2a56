"""pyproject.toml, constraints.txt and the two conda environments ask for the same things, and the pins are complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import make_constraints
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# PyPI's name -> conda-forge's, where they differ.
CONDA_NAMES = {
    "torch": "pytorch",
    "playwright": "playwright-python",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "tensorflow-cpu": "tensorflow",
}
ENVIRONMENTS = ("environment.yml", "environment-macos.yml")


def requirements(*extras: str) -> dict[str, Requirement]:
    """The project's requirements by canonical name, with those of some extras."""
    project = PROJECT["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines) if r.name != "gpulab"}


def pins() -> dict[str, Requirement]:
    """The lines of constraints.txt by name."""
    lines = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    found = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    assert len(found) == len(lines), "a package is pinned twice"
    return found


def conda(name: str) -> dict[str, str]:
    """A conda environment's packages with their version text; those that pip installs are included."""
    environment = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for entry in environment["dependencies"]:
        for line in entry["pip"] if isinstance(entry, dict) else [entry]:
            package, version = re.fullmatch(r"(-e \.|[a-z0-9-]+) ?(.*)", line).groups()
            found[package] = version
    return found


def test_every_pin_is_exact_and_fits_what_the_project_requires() -> None:
    """Each constraint names one version, and that version satisfies pyproject.toml."""
    pinned = pins()
    for pin in pinned.values():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        assert "*" not in specifier.version, pin
    for name, requirement in requirements("cuda12", "cuda13", "kernels", "rosetta", "test", "dev").items():
        (specifier,) = pinned[name].specifier
        assert requirement.specifier.contains(specifier.version), f"{requirement} is not met by the pinned {specifier.version}"


@pytest.mark.pins
def test_pins_cover_every_system_and_python() -> None:
    """Nothing that pip would install on Linux, macOS or Windows with Python 3.11 to 3.13 is left to chance."""
    pinned = pins()
    for name, systems in make_constraints.needed_on().items():
        assert name in pinned, f"{name} is needed on {sorted(systems)} and not pinned"
        for system in systems:
            marker = pinned[name].marker
            assert marker is None or marker.evaluate({"sys_platform": system}), f"{name}: the pin leaves out {system}"


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("linux", "x86_64", "tensorflow-cpu"), ("linux", "aarch64", "tensorflow"), ("darwin", "arm64", "tensorflow"),
        ("win32", "AMD64", "tensorflow-cpu"),
    ],
)  # fmt: skip
def test_tensorflow_is_pinned_on_each_processor(system: str, machine: str, name: str) -> None:
    """The build without CUDA is another package on Intel and AMD than on Arm, and the other tongues of notebook 10 name the right one."""
    environment = {"sys_platform": system, "platform_machine": machine}
    lines = [Requirement(line) for line in PROJECT["project"]["optional-dependencies"]["rosetta"]]
    asked = {each.name for each in lines if each.marker is None or each.marker.evaluate(environment)}
    assert name in asked
    assert pins()[name].marker is None or pins()[name].marker.evaluate(environment)


@pytest.mark.pins
def test_constraints_are_what_the_tool_writes_here() -> None:
    """The environment that runs the tests has the pinned versions, so what passes here is what learners get."""
    for name, pin in pins().items():
        if make_constraints._installed(name):
            (specifier,) = pin.specifier
            assert make_constraints.metadata.version(name).split("+")[0] == specifier.version, name


@pytest.mark.pins
@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0"])
def test_pinned_packages_accept_old_patch_releases(python: str) -> None:
    """Debian 12's Python is 3.11.2; a package that asks for a later patch release could not be installed there."""
    from packaging.specifiers import SpecifierSet

    for name in pins():
        if make_constraints._installed(name):
            wanted = make_constraints.metadata.distribution(name).metadata.get("Requires-Python") or ""
            assert SpecifierSet(wanted).contains(Version(python)), f"{name} wants Python {wanted}"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_conda_environment_asks_for_what_the_project_requires(name: str) -> None:
    """Each requirement and test requirement is in the conda environment with the same lower bound, and nothing else is."""
    extras = ("test", "kernels", "rosetta") if name == "environment-macos.yml" else ("test", "kernels", "rosetta", "cuda13")
    # On the macOS machines that PyTorch has builds for; TensorFlow's package has one name for all of them at conda-forge.
    system = (
        {"sys_platform": "darwin", "platform_machine": "arm64"}
        if name == "environment-macos.yml"
        else {"sys_platform": "linux", "platform_machine": "x86_64"}
    )
    needed = {package: r for package, r in requirements(*extras).items() if r.marker is None or r.marker.evaluate(system)}
    wanted = {CONDA_NAMES.get(package, package): str(r.specifier) for package, r in needed.items()}
    found = conda(name)
    (build,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert found.pop("setuptools") == str(build.specifier)
    assert found.pop("python") == PROJECT["project"]["requires-python"] + ",<3.14"
    for tool in ("pip", "-e ."):
        found.pop(tool)
    assert found == wanted


def test_macos_environment_is_the_other_one_without_nvidia() -> None:
    """CuPy, numba-cuda and NVIDIA's compilers have no macOS build; nothing else differs."""
    without = set(conda("environment.yml")) - set(conda("environment-macos.yml"))
    assert {name for name in without if not name.startswith("nvidia-")} == {"cupy", "numba-cuda"}
    assert "nvidia-cuda-nvrtc" in without
    assert set(conda("environment-macos.yml")) <= set(conda("environment.yml"))


def test_both_cupy_extras_ask_for_the_same_release() -> None:
    """The course behaves alike with CUDA 12 and CUDA 13."""
    both = requirements("cuda12", "cuda13")
    assert both["cupy-cuda12x"].specifier == both["cupy-cuda13x"].specifier
    assert pins()["cupy-cuda12x"].specifier == pins()["cupy-cuda13x"].specifier


def test_nvidias_compilers_fit_the_cuda_build_of_torch() -> None:
    """The CUDA build of torch asks for exact versions of some of NVIDIA's libraries; another pin would make it impossible to install."""
    found = {name: next(iter(pin.specifier)).version for name, pin in pins().items()}
    assert found["torch"] == make_constraints.TORCH, "look up what the CUDA build of this torch asks for, and mend make_constraints.py"
    for name, version in {**make_constraints.FIXED_BY_TORCH, **make_constraints.OF_THE_SAME_TOOLKIT}.items():
        assert found[name] == version, name
        assert version.startswith("13.0."), name


@pytest.mark.pins
def test_nothing_of_nvidias_compilers_is_asked_for_on_macos() -> None:
    """There are no such wheels for macOS, so an install there must not ask for them."""
    needed = make_constraints.needed_on()
    asked = [
        name for name, systems in needed.items() if "darwin" in systems and name.startswith(("nvidia-cuda", "nvidia-nv", "numba-cuda"))
    ]
    assert asked == []
    assert needed["nvidia-cuda-nvrtc"] == {"linux", "win32"}


def test_every_core_module_is_held_by_the_contract() -> None:
    """A new module of the core cannot escape the rule that the core imports neither widgets nor plots."""
    contracts = {c["id"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}
    held = {module.removeprefix("gpulab.") for module in contracts["core"]["source_modules"]}
    above = {"__init__", "_html", "_jupyter", "_lab", "_nbgrader", "_working_copy", "cli", "__main__", "figures", "magics", "widgets"}
    modules = {path.stem for path in (ROOT / "gpulab").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules - above == held


def test_map_of_the_code_has_every_layer_in_its_order() -> None:
    """CONTRIBUTING's map is read as import-linter's list: a module may use those below it."""
    contracts = {c["id"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}
    layers = [name.strip(" ()") for layer in contracts["layers"]["layers"] for name in layer.split("|")]
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [name.rstrip("/").removesuffix(".py") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert named == [*layers, "notebooks", "tests", "benchmarks", "tools"]


def test_citation_names_the_version() -> None:
    """CITATION.cff and the package agree."""
    import gpulab

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == gpulab.__version__
    assert set(citation["license"]) == set(PROJECT["project"]["license"].split(" AND "))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/measurements.md"])
def test_links_of_the_pages_lead_somewhere(page: str) -> None:
    """Each link and picture names a file of the project or is the web's."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("https://"):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target} is not there"


@pytest.mark.parametrize("page", ["README.md", "Dockerfile"])
def test_the_container_gets_the_shared_memory_that_loading_asks_for(page: str) -> None:
    """Docker gives 64 MB, where four workers with 128-pixel images are refused: what the refusal names is in the command that is told."""
    refusal = (ROOT / "gpulab" / "training" / "_pipeline.py").read_text(encoding="utf-8")
    wanted = re.search(r"docker run (--shm-size=\w+)", refusal)
    assert wanted
    commands = re.findall(r"docker run [^`\n]+", (ROOT / page).read_text(encoding="utf-8"))
    assert commands
    assert all(wanted[1] in command for command in commands)


def test_what_names_students_is_in_no_image() -> None:
    """Reports, grades and nbgrader's course, which git leaves out by name, are left out of what the container is built from too."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").partition("# What names students")[2].splitlines()[1:]
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert len(ignored) > 5
    for pattern in (*ignored, ".gpulab/"):  # which holds the answers, below any folder of notebooks
        # Docker's patterns begin at the top, git's only where they begin with a slash.
        there = pattern.strip("/") if pattern.startswith("/") else f"**/{pattern.strip('/')}"
        assert there in left_out, pattern
