"""What the package promises: its public names, what importing costs, and what is installed."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
import typing
from pathlib import Path
from typing import Any

import gpulab as gl
import make_constraints
import pytest
import setup_env
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Section 3 of the design: name -> parameters in their order. A parameter with "=" has a default.
DESIGN = {
    "machine": "",
    "to_device": "a device= library= pinned=",
    "to_host": "x",
    "share": "x library",
    "device_of": "x",
    "measure": "fn args device= relative_width= deadline= transfer= flops= nbytes= clock=",
    "compare": "work args devices= dtype=",
    "figures.comparison": "c",
    "workloads.names": "",
    "workloads.get": "name",
    "transfer.break_even": "workload",
    "memory.predict": "model inputs loss= optimizer= precision= checkpoint=",
    "memory.trace": "model_or_fn inputs",
    "memory.snapshot": "",
    "memory.release": "",
    "kernels.compile_cuda": "source arch=",
    "kernels.simulate": "kernel grid block args dynamic_shared_bytes=",
    "kernels.launch": "kernel grid block args",
    "models.occupancy": "threads_per_block registers_per_thread shared_bytes_per_block= "
    "compute_capability=",
    "precision.round_to": "x format overflow=",
    "training.fit": "task precision=",
    "recordings.names": "",
    "recordings.load": "name",
    "recordings.read": "path",
    "lessons.predict": "id question unit= choices=",
    "lessons.reveal": "id measured",
    "lessons.check": "id answer=",
    "lessons.solution": "id",
    "lessons.progress": "",
}
FIELDS = {
    "timing.Measurement": "samples_seconds median_seconds interval_seconds first_call_seconds "
    "launch_seconds with_transfer_seconds calls_per_sample flops_per_second bytes_per_second notes "
    "evidence environment to_dict",
    "timing.Comparison": "rows speedup speedup_interval max_relative_difference",
    "workloads.Workload": "inputs run flops nbytes",
    "transfer.Sweep": "fit",
    "transfer.AlphaBeta": "latency_seconds bandwidth_bytes_per_second held_out_error",
    "transfer.BreakEven": "size reason evidence",
    "memory.Prediction": "peak_bytes scratch_bytes fits",
    "lessons.CheckResult": "state message",
}


def _named(dotted: str) -> Any:
    found: Any = gl
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", DESIGN)
def test_parameters_of_the_design(name: str) -> None:
    """A script with the documented parameters keeps working; all others have defaults."""
    parameters = inspect.signature(_named(name)).parameters
    promised = {word.rstrip("="): word.endswith("=") for word in DESIGN[name].split()}
    assert [p for p in parameters if p in promised] == list(promised)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters.values():
        optional = parameter.default is not parameter.empty or parameter.kind in variable
        assert optional or promised[parameter.name] is False


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_the_design(name: str) -> None:
    """The documented fields of each result are there."""
    cls = _named(name)
    assert set(FIELDS[name].split()) <= {*dir(cls), *typing.get_type_hints(cls)}


def test_every_public_name_can_be_fetched() -> None:
    """``from gpulab import *`` works, and a misspelt name lists those that exist."""
    for name in gl.__all__:
        assert getattr(gl, name) is not None
    assert set(gl.__all__) <= set(dir(gl))
    with pytest.raises(AttributeError, match="machine"):
        _ = gl.machnie


def test_every_public_function_is_documented() -> None:
    """Each has a docstring, which names the errors that its own body raises."""
    for module in ("", *(f".{name}" for name in gl.__all__ if inspect.ismodule(getattr(gl, name)))):
        public = importlib.import_module(f"gpulab{module}")
        for name in getattr(public, "__all__", ()):
            function = getattr(public, name)
            if inspect.isfunction(function) and function.__module__.startswith("gpulab"):
                text = inspect.getdoc(function)
                assert text, name
                assert "raise InputError" not in inspect.getsource(function) or "Raises" in text


def _in_a_new_process(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_import_gpulab_loads_only_itself() -> None:
    """``import gpulab`` loads only the standard library, not even NumPy."""
    code = (
        "import sys; before = set(sys.modules); import gpulab, json;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = {name.split(".")[0] for name in json.loads(_in_a_new_process(code))}
    assert loaded - set(sys.stdlib_module_names) == {"gpulab"}


def test_the_core_works_where_no_notebook_is_installed() -> None:
    """On a bare GPU machine without Jupyter, plotly and psutil the core imports and measures."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (core,) = (c["source_modules"] for c in contracts if c["id"] == "core")
    code = f"""
import importlib, pkgutil, sys
ABSENT = {{"IPython", "anywidget", "ipywidgets", "plotly", "jupyterlab", "psutil", "pynvml"}}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
for name in {core!r}:
    module = importlib.import_module(name)
    for below in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(below.name)
import gpulab as gl
m = gl.measure(sum, range(9), device="cpu", deadline=0.1)
print(m.median_seconds > 0, gl.machine().processor.usable_cores > 0)
"""
    assert _in_a_new_process(code).split() == ["True", "True"]


def test_the_core_contract_holds_every_module() -> None:
    """A new module of the core cannot escape the rule that the core imports no notebook."""
    contracts = {c["id"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}
    held = {module.removeprefix("gpulab.") for module in contracts["core"]["source_modules"]}
    above = {"__init__", "_html", "_jupyter", "lab", "_nbgrader", "working_copy", "cli", "__main__"}
    above |= {"figures", "magics", "widgets", "course"}
    there = {
        path.stem
        for path in (ROOT / "gpulab").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert there - above == held


def _requirements(*extras: str) -> dict[str, Requirement]:
    project = PROJECT["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    found = map(Requirement, lines)
    return {canonicalize_name(r.name): r for r in found if r.name != "gpulab"}


def _pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def test_each_pin_is_exact_and_fits_the_requirement() -> None:
    """What a learner installs under the constraints satisfies pyproject.toml."""
    pins = _pins()
    assert all(str(pin.specifier).startswith("==") for pin in pins.values())
    extras = ("lab", "compiler", "cuda12", "cuda13", "kernels", "rosetta", "test", "dev")
    for name, requirement in _requirements(*extras).items():
        assert requirement.specifier.contains(str(pins[name].specifier).removeprefix("==")), name


@pytest.mark.pins
def test_pins_cover_every_system_and_python() -> None:
    """Nothing that pip installs on Linux, macOS or Windows is left without a version."""
    pins = _pins()
    for name, systems in make_constraints.needed_on().items():
        for system in systems:
            marker = pins[name].marker
            assert marker is None or marker.evaluate({"sys_platform": system}), (name, system)


CONDA_NAMES = {
    **{"torch": "pytorch", "playwright": "playwright-python", "tensorflow-cpu": "tensorflow"},
    **{"cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy"},
}


@pytest.mark.parametrize(
    ("name", "platform", "machine", "extras"),
    [
        ("environment.yml", "linux", "x86_64", ("cuda13",)),
        ("environment-macos.yml", "darwin", "arm64", ()),
    ],
)
def test_conda_asks_for_what_pip_does(
    name: str, platform: str, machine: str, extras: tuple[str, ...]
) -> None:
    """Each requirement is in the conda environment with the same bound, and nothing else is."""
    system = {"sys_platform": platform, "platform_machine": machine}
    needed = _requirements("lab", "compiler", "test", "kernels", "rosetta", *extras)
    wanted = {
        CONDA_NAMES.get(package, package): str(r.specifier)
        for package, r in needed.items()
        if r.marker is None or r.marker.evaluate(system)
    }
    found: dict[str, str] = {}
    for entry in yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["dependencies"]:
        for line in entry["pip"] if isinstance(entry, dict) else [entry]:
            package, version = re.fullmatch(r"(-e \.|[a-z0-9-]+) ?(.*)", line).groups()
            found[package] = version
    for tool in ("python", "pip", "setuptools", "-e ."):
        del found[tool]
    assert found == wanted


H200, V100 = (("NVIDIA H200", (9, 0)),), (("Tesla V100", (7, 0)),)
RTX5090 = (("NVIDIA GeForce RTX 5090", (12, 0)),)


@pytest.mark.parametrize(
    ("facts", "name", "index", "extra"),
    [
        (("Linux", "x86_64"), "cpu", "cpu", None),
        (("Linux", "x86_64", (13, 0), H200), "cuda13", None, "cuda13"),
        (("Linux", "x86_64", (12, 4), H200), "cuda12", "cu126", "cuda12"),
        (("Linux", "x86_64", (13, 0), V100), "cuda12", "cu126", "cuda12"),
        (("Linux", "x86_64", (13, 0), V100 + RTX5090), "cuda13", None, "cuda13"),
        (("Linux", "x86_64", (12, 8), RTX5090), "cpu", "cpu", None),
        (("Linux", "x86_64", (11, 4), V100), "cpu", "cpu", None),
        (("Windows", "AMD64", (13, 0), H200), "cuda13", "cu130", "cuda13"),
        (("Darwin", "arm64"), "apple", None, None),
    ],
)
def test_set_up_installs_what_fits_the_machine(
    facts: Any, name: str, index: str | None, extra: str | None
) -> None:
    """PyTorch's build and CuPy follow the driver (PyTorch's RELEASE.md, CUDA's driver table)."""
    stack = setup_env.choose_stack(setup_env.Facts(*facts))
    assert (stack.name, stack.index, stack.extra) == (name, index, extra)


def test_set_up_finds_a_python_and_reads_the_driver() -> None:
    """The newest supported Python is taken; nvidia-smi gives the CUDA version and the GPUs."""
    several = [("python3.11", (3, 11)), ("python3.13", (3, 13)), ("python3", (3, 14))]
    assert setup_env.choose_python(several) == "python3.13"
    assert setup_env.choose_python([("python3", (3, 10))]) is None
    with pytest.raises(setup_env.SetupError, match="Colab"):
        setup_env.choose_stack(setup_env.Facts("Darwin", "x86_64"))
    header = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |"
    assert setup_env.parse_nvidia_smi(header, "NVIDIA H200, 9.0\n") == ((13, 0), H200)
    assert setup_env.parse_nvidia_smi("NVIDIA-SMI has failed", "no, really") == (None, ())


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.stem
)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    """Each link names a file of the project, a heading of a page by GitHub's rule, or the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert target.startswith("https://") or place.exists(), target
        if anchor and place.suffix == ".md":
            headings = re.findall("^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in slugs, target


def test_the_maps_name_each_part_and_the_pages_what_is_there() -> None:
    """Both maps have every part of the package; paths and names of gpulab in a page exist."""
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in pages}
    parts = {path.stem for path in (ROOT / "gpulab").iterdir() if not path.stem.startswith("__")}
    for page, heading in (("CONTRIBUTING", "## The map"), ("architecture", "## The parts")):
        words = re.findall(r"\w+", texts[page].partition(heading)[2].partition("\n## ")[0])
        assert parts - {"py"} - set(words) == set()
    for page in texts.keys() - {"CHANGELOG"}:
        folders = r"`((?:gpulab|tests|tools|docs|benchmarks|notebooks)/[\w./-]+)`"
        for path in re.findall(folders, texts[page].replace("NN", "02")):
            assert (ROOT / path).exists(), (page, path)
        for name in re.findall(r"(?<![\w./])gl\.(\w+(?:\.[A-Za-z_]\w*)*)", texts[page]):
            assert _named(name) is not None, (page, name)


def test_nothing_that_names_students_enters_an_image() -> None:
    """What git ignores because it names students is left out of the container too."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").partition("# What names students")
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [*filter(None, ignored[2].splitlines()[1:]), ".gpulab/"]
    assert len(patterns) > 5
    for pattern in patterns:
        there = pattern.strip("/") if pattern.startswith("/") else f"**/{pattern.strip('/')}"
        assert there in left_out


def test_no_package_imports_a_private_module_or_name_of_another() -> None:
    """What packages share has a public name, so that a package can be changed inside."""
    found = []
    for path in (ROOT / "gpulab").rglob("*.py"):
        own, *_ = path.relative_to(ROOT / "gpulab").with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpulab."):
                _, package, *below = f"{node.module}".split(".")
                names = [*below, *(each.name for each in node.names)]
                private = any(re.match("_[^_]", name) for name in names)
                if private and package != own and own != "course":
                    found.append((path.name, node.module, names))
    assert found == []
