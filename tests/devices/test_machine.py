"""Problems of a machine, their remedies and how they are shown, from invented facts."""

import dataclasses
import importlib.metadata
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from gpulab import devices
from gpulab.devices import (
    Accelerator,
    Cache,
    Driver,
    Facts,
    Memory,
    Processor,
    Torch,
    checkup,
    diagnose,
    machine,
)
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import GIB, MIB, lines

CPU = Processor("A CPU", "x86_64", 8, 8, None, (), ("avx2",), 3e9, 4e9, None)
H200 = Accelerator(None, "NVIDIA H200", "cuda", compute_capability="9.0")
USABLE = Accelerator("cuda:0", "NVIDIA H200", "cuda", 140 * GIB, 139 * GIB, "9.0", 132)
BARE = Facts(
    "Linux",
    "x86_64",
    False,
    CPU,
    Memory(64 * GIB, 60 * GIB),
    "/home/me",
    100 * GIB,
    torch=Torch("2.11.0+cpu"),
)
GOOD = dataclasses.replace(
    BARE,
    accelerators=(USABLE,),
    pci_gpus={"nvidia": 1},
    cupy_packages=("cupy-cuda13x",),
    driver=Driver("580.95.05", "13.0", None, {"GPU-1": H200}),
    torch=Torch("2.11.0", None, "13.0", None, "cuda", ("sm_80", "sm_90", "sm_120", "compute_120")),
)
BLIND = dataclasses.replace(GOOD.torch, kind=None)  # sees no GPU
CPU_BUILD = Torch("2.11.0+cpu")
NEWER = Torch("2.13.0", None, "13.0")
OLD_DRIVER = Driver("535.1", "12.2", None, {"GPU-1": H200})


def _but(part: Any, **changes: Any) -> Any:
    return dataclasses.replace(part, **changes)


def _gpu(**changes: Any) -> dict[str, Any]:
    return {"accelerators": (_but(USABLE, **changes),)}


def _built(cuda: str | None, driver: str | None, *cupy: str) -> dict[str, Any]:
    changes = {"torch": _but(GOOD.torch, cuda=cuda), "driver": _but(GOOD.driver, cuda=driver)}
    return changes | ({"cupy_packages": cupy} if cupy else {})


def _wheels(cuda: str | None, capability: str | None = "9.0", **changes: Any) -> dict[str, Any]:
    """Return a machine whose PyTorch is built for the CPU, with a driver that runs this CUDA."""
    gpus = {"GPU-1": _but(H200, compute_capability=capability)}
    return {
        "torch": CPU_BUILD,
        "accelerators": (),
        "cupy_packages": (),
        **changes,
        "driver": Driver("1", cuda, None, gpus),
    }


# For each case: a good (or bare) machine, and the changes to it, mostly a single fault.
CASES: dict[str, tuple[Facts, dict[str, Any]]] = {
    "good": (GOOD, {}),
    "no GPU": (BARE, {}),
    "no torch": (BARE, {"torch": Torch()}),
    "broken torch": (BARE, {"torch": Torch("2.11.0", "OSError: libc10.so: not found")}),
    "broken torch beside a GPU": (
        GOOD,
        {"torch": _but(BLIND, error="OSError: libc10.so: not found"), "accelerators": ()},
    ),
    "CPU build": (GOOD, {"torch": CPU_BUILD, "accelerators": ()}),
    "old driver": (
        GOOD,
        {"torch": NEWER, "driver": OLD_DRIVER, "accelerators": (), "cupy_packages": ()},
    ),
    "older driver": (GOOD, _built("13.2", "13.0")),
    "built for a newer major, works": (GOOD, _built("14.0", "13.0")),
    "driver that does not answer": (
        GOOD,
        {"driver": Driver(error="version mismatch"), "accelerators": ()},
    ),
    "no driver": (BARE, {"pci_gpus": {"nvidia": 2}, "torch": NEWER}),
    "hidden GPU": (GOOD, {"torch": BLIND, "accelerators": (), "visible_devices": ""}),
    "a GPU that is named and not hidden": (
        GOOD,
        {
            "torch": NEWER,
            "driver": OLD_DRIVER,
            "accelerators": (),
            "cupy_packages": (),
            "visible_devices": "0,1",
        },
    ),
    "a GPU that is not there": (
        GOOD,
        {"torch": BLIND, "accelerators": (), "visible_devices": "1,0"},
    ),
    "unusable GPU": (GOOD, {"torch": BLIND, "accelerators": ()}),
    "old architecture": (GOOD, _gpu(name="Tesla P100", compute_capability="6.0")),
    "two CuPys": (GOOD, {"cupy_packages": ("cupy-cuda12x", "cupy-cuda13x")}),
    "no CuPy": (GOOD, {"cupy_packages": ()}),
    "no CuPy, CUDA 12": (GOOD, _built("12.8", "12.8") | {"cupy_packages": ()}),
    "no CuPy, torch for an older CUDA": (GOOD, _built("12.8", "13.0") | {"cupy_packages": ()}),
    "CuPy for a newer CUDA": (GOOD, _built("12.8", "12.8", "cupy-cuda13x")),
    "CuPy for a newer CUDA than an old driver": (GOOD, _built("12.8", "11.8", "cupy-cuda12x")),
    "CuPy for an older CUDA than torch": (GOOD, _built("13.0", "13.0", "cupy-cuda12x")),
    "CuPy for an older CUDA, as torch": (GOOD, _built("12.8", "13.0", "cupy-cuda12x")),
    "CuPy of another source": (GOOD, _built("13.0", "13.0", "cupy")),
    "busy GPU": (GOOD, _gpu(free_bytes=10 * GIB)),
    "busy GPU of another maker": (GOOD, _gpu(free_bytes=10 * GIB, kind="xpu", device="xpu:0")),
    "hot GPU": (GOOD, _gpu(slowdowns=("power cap",))),
    "synchronized boost": (GOOD, _gpu(slowdowns=("sync boost",))),
    "slices": (GOOD, _gpu(mig=True, mig_slices=("MIG 1g.18gb",))),
    "little disk": (GOOD, {"disk_free_bytes": 3 * GIB}),
    "little memory": (GOOD, {"memory": Memory(8 * GIB, GIB // 2)}),
    "container": (
        GOOD,
        {"memory": Memory(64 * GIB, 7 * GIB, 8 * GIB), "processor": _but(CPU, quota_cores=2.9)},
    ),
    "half a core": (GOOD, {"processor": _but(CPU, quota_cores=0.5)}),
    "emulated": (GOOD, {"translated": True}),
    "virtual": (GOOD, {"processor": _but(CPU, hypervisor="KVM")}),
    "AMD": (BARE, {"pci_gpus": {"amd": 1}}),
    "no NVML": (GOOD, {"driver": Driver()}),
    "CUDA 12.9": (GOOD, _wheels("12.9")),
    "CUDA 12.2": (GOOD, _wheels("12.2")),
    "CUDA 11.8": (GOOD, _wheels("11.8")),
    "CUDA 11.8 on Windows": (GOOD, _wheels("11.8", system="Windows")),
    "Volta": (GOOD, _wheels("13.0", "7.0")),
    "Turing": (GOOD, _wheels("13.0", "7.5")),
    "several": (GOOD, {"disk_free_bytes": 0, "translated": True} | _gpu(mig=True)),
}


def test_every_problem_and_its_remedy(approved: Any) -> None:
    """Errors come first, a good machine has none, and commands fit the driver and the GPU.

    The wheels follow NVIDIA's CUDA Compatibility (any driver of CUDA 12 runs 12.6) and PyTorch's
    RELEASE.md (only the builds for CUDA 12.6 have kernels for GPUs older than Turing).
    """
    text = []
    for name, (base, changes) in CASES.items():
        found = diagnose(_but(base, **changes))
        text += [f"== {name}", *(f"{p.severity} {p.code}: {p.symptom} {p.remedy}" for p in found)]
    assert re.sub(r"`\S*python\S*|`py\b", "`python", "\n".join(text)) == approved


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"disk_free_bytes": 5 * GIB}, "low-disk", None),
        ({"disk_free_bytes": 5 * GIB - 1}, "low-disk", "warning"),
        ({"disk_free_bytes": GIB - 1}, "low-disk", "error"),
        ({"memory": Memory(8 * GIB, 2 * GIB)}, "low-memory", None),
        ({"memory": Memory(8 * GIB, 2 * GIB - 1)}, "low-memory", "warning"),
        ({"memory": Memory(8 * GIB, GIB - 1)}, "low-memory", "error"),
        ({"memory": Memory(8 * GIB, 7 * GIB, 8 * GIB)}, "memory-limit", None),
        ({"processor": _but(CPU, quota_cores=8.0)}, "cpu-limit", None),
        (_gpu(memory_bytes=100, free_bytes=20), "gpu-memory-taken", None),
        (_gpu(memory_bytes=100, free_bytes=19), "gpu-memory-taken", "warning"),
        # sm_80 serves 8.6 but not 9.x or 7.5; compute_120 everything from 12.0 on (CUDA's rules).
        (_gpu(compute_capability="8.6"), "gpu-architecture", None),
        (_gpu(compute_capability="7.5"), "gpu-architecture", "error"),
        (_gpu(compute_capability="12.1"), "gpu-architecture", None),
        (_gpu(compute_capability="10.0"), "gpu-architecture", "error"),
        (_gpu(compute_capability="13.0"), "gpu-architecture", None),
    ],
)
def test_each_limit_at_its_edge(changes: dict[str, Any], code: str, severity: str | None) -> None:
    """A value at the limit is accepted; the next one is a problem."""
    found = {problem.code: problem.severity for problem in diagnose(_but(GOOD, **changes))}
    assert found.get(code) == severity


TEXTS = st.none() | st.sampled_from(["", "12.8", "13", "x.y", "9.0", "gfx942", "580.1", "12.8.1.5"])
KINDS = st.sampled_from([None, "cuda", "rocm", "mps", "xpu"])
CODES = st.sampled_from([(), ("sm_90a", "odd")])


@given(
    driver=st.builds(Driver, TEXTS, TEXTS, TEXTS, st.sampled_from([{}, {"GPU-1": H200}])),
    torch_=st.builds(Torch, TEXTS, TEXTS, TEXTS, TEXTS, KINDS, CODES),
    cupy=st.lists(st.sampled_from(["cupy", "cupy-cuda12x", "cupy-rocm-7-0"]), unique=True).map(
        tuple
    ),
    capability=TEXTS,
)
def test_any_facts_give_problems_and_never_an_exception(
    driver: Driver, torch_: Torch, cupy: tuple[str, ...], capability: str | None
) -> None:
    """Strange versions, missing parts and unknown kinds raise nothing; each code appears once."""
    facts = _but(
        BARE, driver=driver, torch=torch_, cupy_packages=cupy, **_gpu(compute_capability=capability)
    )
    found = diagnose(facts)
    assert len({problem.code for problem in found}) == len(found)
    assert all(problem.symptom and problem.remedy for problem in found)


def test_machines_as_they_are_shown(approved: Any) -> None:
    """Processor, caches, memory, each GPU with its state, driver, libraries and problems."""
    caches = (Cache("L1d", 48 * 2**10, 8, ((32 * 2**10, 4),)), Cache("L2", 2 * MIB, 1))
    shown = [
        _but(
            GOOD,
            processor=_but(CPU, caches=caches),
            disk_free_bytes=0,
            accelerators=(
                _but(
                    USABLE,
                    clock_hz=345e6,
                    max_clock_hz=1980e6,
                    power_watts=80.0,
                    power_limit_watts=700.0,
                    temperature_celsius=31.0,
                    mig=False,
                    l2_bytes=60 * MIB,
                ),
            ),
        ),
        _but(
            BARE,
            processor=_but(CPU, usable_cores=1, physical_cores=2, quota_cores=1.5, simd=()),
            libraries={"torch": "2.11.0", "numpy": "2.0"},
            driver=Driver("580.1"),
            accelerators=(
                Accelerator(
                    None,
                    "Tesla T4",
                    "cuda",
                    16 * GIB,
                    None,
                    "7.5",
                    40,
                    mig=True,
                    slowdowns=("power cap",),
                ),
                Accelerator(
                    "cuda:0",
                    "AMD Instinct",
                    "rocm",
                    None,
                    5,
                    "gfx942",
                    304,
                    2100e6,
                    power_watts=300.4,
                ),
            ),
        ),
        _but(
            GOOD, memory=Memory(64 * GIB, GIB, 8 * GIB), **_gpu(clock_hz=None, max_clock_hz=1980e6)
        ),
        BARE,
    ]
    assert lines(*(machine(facts) for facts in shown)) == approved


READY = _but(GOOD, accelerators=(), pci_gpus={}, cupy_packages=(), torch=CPU_BUILD, driver=Driver())


def _states(facts: Facts) -> dict[str, str]:
    return {check.name: check.state for check in checkup(facts).checks}


def test_the_doctors_report(approved: Any) -> None:
    """One line per part with its remedy, and the machine's problems, without contradictions."""
    text = []
    for facts in (
        READY,
        _but(READY, disk_free_bytes=0),
        _but(READY, disk_free_bytes=3 * GIB, translated=True),
    ):
        report = checkup(facts)
        own = ("python", "write access", "accelerator", "disk", "memory", "low-disk", "translated")
        checks = tuple(c for c in report.checks if c.name in own[2:])
        assert {check.name for check in report.checks} > {"numpy", "torch", "jupyterlab", *own[:2]}
        text += [repr(report), dataclasses.replace(report, checks=checks).text, ""]
    assert "\n".join(text) == approved


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.26.4", "fix"),
        ("2.0", "ok"),
        ("2.0.0rc1", "ok"),
        ("10.0+local", "ok"),
        (importlib.metadata.PackageNotFoundError("numpy"), "fix"),
        (None, "fix"),
    ],
)
def test_packages_are_held_against_the_oldest_that_works(
    monkeypatch: pytest.MonkeyPatch, version: Any, state: str
) -> None:
    """Missing, half-installed and old packages need a fix; versions compare by number.

    Without a version pip cannot remove the installed package, so the advice is to ignore it.
    """

    def installed(name: str) -> Any:
        if isinstance(version, Exception):
            raise version
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    assert [
        (check.state, "--ignore-installed" in str(check.remedy))
        for check in checkup(READY).checks
        if check.name == "numpy"
    ] == [(state, state == "fix" and not isinstance(version, str))]


def test_the_doctor_asks_for_the_releases_that_the_course_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each package that pyproject.toml requires on every system, an old release is refused."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    wanted = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0")
    assert all(";" in one or f'"{one}"' in checkup(READY).text for one in wanted)


@pytest.mark.parametrize(("size", "state"), [(64, "ok"), (2, "fix")])
def test_the_doctor_multiplies_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, size: int, state: str
) -> None:
    """The doctor reports a wrong product in PyTorch or CuPy: the sum over ones must be right."""
    gpu = _gpu(device="cpu")
    found = _but(READY, torch=GOOD.torch, cupy_packages=("cupy-cuda13x",), **gpu)
    made = torch.full((size, size), 1.0)
    product = types.SimpleNamespace(sum=lambda: types.SimpleNamespace(get=lambda: size**3))
    ones = type("Ones", (), {"__matmul__": lambda self, other: product})
    cupy = types.SimpleNamespace(float32="float32", ones=lambda shape, dtype: ones())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch, "ones", lambda *shape, **options: made)
    states = _states(found)
    assert (states["accelerator"], states["cupy"]) == (state, state)


def test_no_place_to_write_and_no_gpu_that_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder that cannot be written and a GPU that does not answer both need a fix."""
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    states = _states(_but(READY, torch=GOOD.torch, **_gpu(device="cuda:77")))
    assert [states[part] for part in ("write access", "accelerator")] == ["fix"] * 2


@pytest.mark.gpu
def test_a_real_gpu_machine_is_in_order() -> None:
    """Its properties are PyTorch's, and no problem that is found is an error."""
    found, properties = devices.machine(), torch.cuda.get_device_properties(0)
    gpu = found.accelerators[0]
    assert (gpu.name, gpu.multiprocessors) == (properties.name, properties.multi_processor_count)
    assert 0 < gpu.free_bytes <= gpu.memory_bytes
    assert not [problem for problem in found.problems if problem.severity == "error"]
    assert {check.name: check.state for check in checkup().checks}["accelerator"] == "ok"
