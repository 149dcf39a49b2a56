"""What is wrong with a machine, over made-up facts of machines that nobody here owns."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import errors
from gpulab.devices import Accelerator, Facts, Memory, Processor, diagnose
from gpulab.devices._facts import Torch
from gpulab.devices._machine import machine
from gpulab.devices._nvml import Driver, NvmlGpu

GIB = 2**30
_CPU = Processor("A CPU", "x86_64", 8, 8, None, (), ("avx2",), 3e9, 4e9, None)
_H200 = NvmlGpu("GPU-1", "NVIDIA H200", compute_capability="9.0")
_USABLE = Accelerator("cuda:0", "NVIDIA H200", "cuda", 140 * GIB, 139 * GIB, "9.0", 132)
_BARE = Facts("Linux", "x86_64", "3.12.1", False, _CPU, Memory(64 * GIB, 60 * GIB), "/home/me", 100 * GIB, torch=Torch("2.11.0+cpu"))
_GOOD = dataclasses.replace(
    _BARE,
    accelerators=(_USABLE,),
    pci_gpus={"nvidia": 1},
    driver=Driver("580.95.05", "13.0", None, (_H200,)),
    torch=Torch("2.11.0", None, "13.0", None, "cuda", ("sm_80", "sm_90", "sm_120", "compute_120")),
    cupy_packages=("cupy-cuda13x",),
)


def _codes(base=_BARE, **changes):
    return {problem.code: problem for problem in diagnose(dataclasses.replace(base, **changes))}


def test_a_good_gpu_machine_has_nothing_to_say():
    """Driver, PyTorch and CuPy of one CUDA major, free memory and disk: no problem at all."""
    assert diagnose(_GOOD) == ()


def test_a_machine_without_a_gpu_is_told_that_the_course_runs():
    """No accelerator is information, never an error."""
    (problem,) = diagnose(_BARE)
    assert (problem.code, problem.severity) == ("no-accelerator", "info")
    assert "the course runs without one" in problem.remedy


_CPU_BUILD = Torch("2.11.0+cpu")
_NEWER = Torch("2.13.0", None, "13.0")
_BLIND = dataclasses.replace(_GOOD.torch, kind=None)  # sees no GPU
_BUSY = dataclasses.replace(_USABLE, free_bytes=10 * GIB)
_OLD = dataclasses.replace(_USABLE, name="Tesla P100", compute_capability="6.0")
_CASES = {
    "torch-missing": (_BARE, {"torch": Torch()}, "error", "pip install torch"),
    "torch-broken": (_BARE, {"torch": Torch("2.11.0", "OSError: libc10.so: not found")}, "error", "reinstall"),
    "torch-cpu-build": (_GOOD, {"torch": _CPU_BUILD, "accelerators": ()}, "error", "whl/cu130"),
    "driver-too-old": (
        _GOOD, {"torch": _NEWER, "driver": Driver("535.1", "12.2", None, (_H200,)), "accelerators": (), "cupy_packages": ()}, "error",
        "Update the NVIDIA driver",
    ),
    "driver-older": (_GOOD, {"torch": dataclasses.replace(_GOOD.torch, cuda="13.2")}, "info", "Update the NVIDIA driver when you can"),
    "driver-broken": (_GOOD, {"driver": Driver(error="version mismatch"), "accelerators": ()}, "error", "Restart the machine"),
    "no-driver": (_BARE, {"pci_gpus": {"nvidia": 2}, "torch": _NEWER}, "error", "--gpus all"),
    "gpu-hidden": (_GOOD, {"torch": _BLIND, "accelerators": (), "visible_devices": ""}, "warning", "Unset"),
    "gpu-unusable": (_GOOD, {"torch": _BLIND, "accelerators": ()}, "error", "nvidia-smi"),
    "gpu-architecture": (
        _GOOD, {"accelerators": (_OLD,)}, "error", "older one for an old GPU",
    ),
    "cupy-twice": (_GOOD, {"cupy_packages": ("cupy-cuda12x", "cupy-cuda13x")}, "error", "pip uninstall -y cupy-cuda12x cupy-cuda13x"),
    "cupy-missing": (_GOOD, {"cupy_packages": ()}, "warning", "pip install cupy-cuda13x"),
    "gpu-memory-taken": (_GOOD, {"accelerators": (_BUSY,)}, "warning", "Shut down other kernels"),
    "gpu-throttled": (_GOOD, {"accelerators": (dataclasses.replace(_USABLE, slowdowns=("power cap",)),)}, "warning", "cool"),
    "mig": (_GOOD, {"accelerators": (dataclasses.replace(_USABLE, mig=True, mig_slices=("MIG 1g.18gb",)),)}, "info", "slice"),
    "low-disk": (_GOOD, {"disk_free_bytes": 3 * GIB}, "warning", "Free at least"),
    "low-memory": (_GOOD, {"memory": Memory(8 * GIB, GIB // 2)}, "error", "Shut down"),
    "memory-limit": (_GOOD, {"memory": Memory(64 * GIB, 7 * GIB, 8 * GIB)}, "info", "Nothing to do"),
    "cpu-limit": (_GOOD, {"processor": dataclasses.replace(_CPU, quota_cores=1.5)}, "warning", "OMP_NUM_THREADS=1"),
    "translated": (_GOOD, {"translated": True}, "warning", "own architecture"),
    "virtual-machine": (_GOOD, {"processor": dataclasses.replace(_CPU, hypervisor="KVM")}, "info", "Nothing to do"),
    "amd-gpu-unused": (_BARE, {"pci_gpus": {"amd": 1}}, "info", "ROCm"),
}  # fmt: skip


@pytest.mark.parametrize("code", _CASES)
def test_each_problem_is_found_with_its_severity_and_remedy(code):
    """A machine that is good but for one thing gets that problem, said in a sentence with what to do."""
    base, changes, severity, remedy = _CASES[code]
    problem = _codes(base, **changes)[code]
    assert problem.severity == severity
    assert remedy in problem.remedy
    assert problem.symptom.endswith((".", "!"))
    others = {p.code for p in diagnose(dataclasses.replace(base, **changes))} - {code, "no-accelerator"}
    assert others == set()


@pytest.mark.parametrize(
    ("package", "driver", "torch", "severity"),
    [
        ("cupy-cuda13x", "12.8", "12.8", "error"),  # the driver cannot run CUDA 13
        ("cupy-cuda12x", "13.0", "13.0", "warning"),  # CUDA 12 runs, but the libraries beside torch are of CUDA 13
        ("cupy-cuda12x", "13.0", "12.8", None),  # drivers run older CUDA, and the libraries match
        ("cupy-cuda12x", "12.2", "12.6", None),
        ("cupy", "13.0", "13.0", None),  # conda's or a source build: its CUDA is not in its name
    ],
)
def test_cupy_is_held_against_the_driver_and_torch(package, driver, torch, severity):
    """Only what cannot work, or would look for missing libraries, is a problem."""
    found = _codes(
        _GOOD,
        cupy_packages=(package,),
        driver=dataclasses.replace(_GOOD.driver, cuda=driver),
        torch=dataclasses.replace(_GOOD.torch, cuda=torch),
    ).get("cupy-cuda-mismatch")
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("capability", "runs"), [("9.0", True), ("8.6", True), ("7.5", False), ("12.1", True), ("10.0", False), ("13.0", True)]
)
def test_an_architecture_runs_where_its_kernels_or_ptx_do(capability, runs):
    """sm_80 serves 8.6 but not 9.x or 7.5; compute_120 serves everything from 12.0 on (CUDA's binary and PTX compatibility rules)."""
    gpu = dataclasses.replace(_USABLE, compute_capability=capability)
    assert ("gpu-architecture" not in _codes(_GOOD, accelerators=(gpu,))) == runs


@pytest.mark.parametrize(("kind", "named"), [("cuda", True), ("rocm", False), ("xpu", False), ("mps", False)])
def test_nvidias_tool_is_named_only_about_nvidias_gpus(kind, named):
    """nvidia-smi lists no process of another maker's GPU."""
    busy = dataclasses.replace(_BUSY, kind=kind)
    assert ("nvidia-smi" in _codes(_GOOD, accelerators=(busy,))["gpu-memory-taken"].remedy) == named


def test_the_torch_command_follows_the_driver():
    """The wheel index is the newest one that the driver runs; one older than all gets told to update, once.

    Any driver from 525 on (CUDA 12.0) runs what is built for CUDA 12.6: NVIDIA's CUDA Compatibility, table of minor versions.
    """
    for cuda, words in (
        ("13.0", "cu130"), ("12.9", "cu128"), ("12.7", "cu126"), ("12.2", "cu126"), ("12.0", "cu126"), ("11.8", "Update the NVIDIA driver"),
    ):  # fmt: skip
        driver = dataclasses.replace(_GOOD.driver, cuda=cuda)
        assert words in _codes(_GOOD, torch=_CPU_BUILD, accelerators=(), driver=driver, cupy_packages=())["torch-cpu-build"].remedy
    newer = _codes(_GOOD, torch=_NEWER, accelerators=(), driver=driver, cupy_packages=())["driver-too-old"].remedy
    assert newer == "Update the NVIDIA driver (PyTorch needs one for CUDA 12 or newer), then run `make lab` again."
    windows = _codes(_GOOD, system="Windows", torch=_NEWER, accelerators=(), driver=driver, cupy_packages=())["driver-too-old"].remedy
    assert windows == newer.replace("make lab", r"py tools\setup_env.py")  # there is no make (README.md)


def test_the_torch_command_follows_the_gpu():
    """A GPU older than Turing (7.5) has kernels in the builds for CUDA 12.6 alone, whatever the driver runs (PyTorch RELEASE.md)."""
    for capability, words in (("7.0", "cu126"), ("6.1", "cu126"), ("7.5", "cu130"), ("12.0", "cu130"), (None, "cu130")):
        gpu = dataclasses.replace(_H200, compute_capability=capability)
        driver = dataclasses.replace(_GOOD.driver, gpus=(gpu,))
        assert words in _codes(_GOOD, torch=_CPU_BUILD, accelerators=(), driver=driver, cupy_packages=())["torch-cpu-build"].remedy


def test_a_gpu_that_works_without_a_management_library_is_no_problem():
    """On a bare machine NVML may be missing while CUDA works: nothing is wrong."""
    assert "no-driver" not in _codes(_GOOD, driver=Driver())


def test_errors_come_first_and_codes_only_once():
    """The worst is read first, and two slices of one GPU do not repeat themselves."""
    found = diagnose(
        dataclasses.replace(_GOOD, disk_free_bytes=0, translated=True, accelerators=(dataclasses.replace(_USABLE, mig=True),) * 2)
    )
    assert [p.severity for p in found] == ["error", "warning", "info"]


_TEXTS = st.none() | st.sampled_from(["", "12.8", "13.0", "13", "x.y", "9.0", "gfx942", "580.1", "12.8.1.5"])


@given(
    driver=st.builds(Driver, _TEXTS, _TEXTS, _TEXTS, st.sampled_from([(), (_H200,)])),
    torch=st.builds(
        Torch,
        _TEXTS,
        _TEXTS,
        _TEXTS,
        _TEXTS,
        st.sampled_from([None, "cuda", "rocm", "mps", "xpu"]),
        st.sampled_from([(), ("sm_90a", "odd")]),
    ),
    cupy=st.lists(st.sampled_from(["cupy", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0", "cupy-cuda11x"]), unique=True).map(tuple),
    capability=_TEXTS,
    disk=st.integers(0, 2**50),
)
def test_any_facts_give_problems_and_never_an_exception(driver, torch, cupy, capability, disk):
    """Strange versions, missing parts and unknown kinds are survived; every problem says symptom and remedy, and survives JSON."""
    gpu = Accelerator("cuda:0", "G", "cuda", compute_capability=capability)
    facts = dataclasses.replace(_BARE, driver=driver, torch=torch, cupy_packages=cupy, accelerators=(gpu,), disk_free_bytes=disk)
    for problem in diagnose(facts):
        assert problem.symptom
        assert problem.remedy
        assert type(problem).from_dict(problem.to_dict()) == problem


def test_a_machine_shows_all_its_parts_and_problems():
    """The table names processor, GPU, driver and each problem; the repr is one short line; JSON gives it back."""
    gpu = dataclasses.replace(
        _USABLE, clock_hz=345e6, max_clock_hz=1980e6, power_watts=80.0, power_limit_watts=700.0, temperature_celsius=31.0, mig=False
    )
    shown = machine(dataclasses.replace(_GOOD, accelerators=(gpu,), disk_free_bytes=0))
    text = " ".join(" ".join(row) for row in shown.table()[1])
    for part in (
        "A CPU, 8 usable cores",
        "compute capability 9.0",
        "132 SMs",
        "345 MHz now, up to 1980 MHz",
        "80 of 700 W",
        "31 °C",
        "MIG off",
    ):
        assert part in text
    assert "580.95.05, runs CUDA up to 13.0" in text
    assert "error: low-disk" in text
    assert repr(shown) == "<Machine: A CPU, 8 cores, 60.0 GiB free; NVIDIA H200; 1 thing to mend>"
    assert type(shown).from_dict(shown.to_dict()) == shown
    assert "MEASURED" in shown._repr_html_()


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"disk_free_bytes": 5 * GIB}, "low-disk", None), ({"disk_free_bytes": 5 * GIB - 1}, "low-disk", "warning"),
        ({"disk_free_bytes": GIB}, "low-disk", "warning"), ({"disk_free_bytes": GIB - 1}, "low-disk", "error"),
        ({"memory": Memory(8 * GIB, 2 * GIB)}, "low-memory", None), ({"memory": Memory(8 * GIB, 2 * GIB - 1)}, "low-memory", "warning"),
        ({"memory": Memory(8 * GIB, GIB)}, "low-memory", "warning"), ({"memory": Memory(8 * GIB, GIB - 1)}, "low-memory", "error"),
        ({"memory": Memory(8 * GIB, 7 * GIB, 8 * GIB)}, "memory-limit", None),
        ({"memory": Memory(8 * GIB, 7 * GIB, 8 * GIB - 1)}, "memory-limit", "info"),
        ({"processor": dataclasses.replace(_CPU, quota_cores=8.0)}, "cpu-limit", None),
        ({"processor": dataclasses.replace(_CPU, quota_cores=7.9)}, "cpu-limit", "warning"),
        ({"accelerators": (dataclasses.replace(_USABLE, memory_bytes=100, free_bytes=20),)}, "gpu-memory-taken", None),
        ({"accelerators": (dataclasses.replace(_USABLE, memory_bytes=100, free_bytes=19),)}, "gpu-memory-taken", "warning"),
        ({"accelerators": (dataclasses.replace(_USABLE, slowdowns=("sync boost",)),)}, "gpu-throttled", None),
        ({"torch": dataclasses.replace(_GOOD.torch, cuda="13.0")}, "driver-older", None),
        ({"torch": dataclasses.replace(_GOOD.torch, cuda="14.0")}, "driver-older", "info"),  # it works all the same
        ({"torch": dataclasses.replace(_BLIND, cuda="13.1"), "accelerators": ()}, "driver-older", "info"),
        ({"torch": dataclasses.replace(_BLIND, error="x"), "accelerators": ()}, "gpu-unusable", None),
    ],
)  # fmt: skip
def test_each_limit_at_its_edge(changes, code, severity):
    """A figure on the limit is in order, the next one is not."""
    found = _codes(_GOOD, **changes).get(code)
    assert (found and found.severity) == severity


def test_the_words_of_what_is_wrong(monkeypatch):
    """Values in the symptom, and a remedy that names them: by hand for some that differ from machine to machine."""
    monkeypatch.setattr(errors, "_this_python", lambda: "python")
    quota = _codes(_GOOD, processor=dataclasses.replace(_CPU, quota_cores=2.9))["cpu-limit"]
    assert str(quota) == (
        "warning cpu-limit: A container grants 2.9 cores' time, and libraries start 8 threads: they get stalled. "
        "Set OMP_NUM_THREADS=2 before the kernel starts, or call torch.set_num_threads(2)."
    )
    assert "OMP_NUM_THREADS=1 " in _codes(_GOOD, processor=dataclasses.replace(_CPU, quota_cores=0.5))["cpu-limit"].remedy
    assert "(none visible)" in _codes(_GOOD, accelerators=(dataclasses.replace(_USABLE, mig=True),))["mig"].symptom
    nameless = _codes(_GOOD, accelerators=(dataclasses.replace(_BUSY, device=None),))["gpu-memory-taken"]
    assert nameless.symptom == "Only 10.0 GiB of 140 GiB are free on NVIDIA H200."
    cupy = _codes(_GOOD, cupy_packages=("cupy-cuda12x",), driver=dataclasses.replace(_GOOD.driver, cuda="14.1"))["cupy-cuda-mismatch"]
    assert cupy.remedy == "Run `python -m pip uninstall -y cupy-cuda12x`, then `python -m pip install cupy-cuda13x`."
    for cuda, name in (("13.0", "cupy-cuda13x"), ("12.8", "cupy-cuda12x"), (None, "cupy-cuda12x")):
        missing = _codes(_GOOD, cupy_packages=(), driver=dataclasses.replace(_GOOD.driver, cuda=cuda))["cupy-missing"]
        assert missing.remedy == f"Run `python -m pip install {name}`."


def test_a_machine_in_words_by_hand():
    """A GPU that only the driver sees, one of another maker, and a machine that says next to nothing."""
    processor = Processor("A CPU", "x86_64", 1, 2, 1.5, (), (), 3.1e9, None, None)
    gpus = (
        Accelerator(None, "Tesla T4", "cuda", 16 * GIB, None, "7.5", 40, None, 1590e6, mig=True, slowdowns=("power cap",)),
        Accelerator("cuda:0", "AMD Instinct", "rocm", None, 5, "gfx942", 304, 2100e6, None, l2_bytes=2**22, power_watts=300.4),
    )  # fmt: skip
    facts = dataclasses.replace(
        _BARE, processor=processor, accelerators=gpus, libraries={"torch": "2.11.0", "numpy": "2.0"}, driver=Driver("580.1")
    )
    shown = machine(facts)
    rows = [row for row in shown.table()[1] if ": " not in row[0]]
    assert shown.table()[0] == ("this machine", "")
    assert rows == [
        ("processor", "A CPU, 1 usable core of 2 physical, 1.5 cores' time granted, 3.10 GHz now"), ("caches", "not reported"),
        ("memory", "60.0 GiB free of 64.0 GiB"), ("disk", "100 GiB free"),
        ("GPU, not usable here", "Tesla T4, 16.0 GiB, compute capability 7.5, 40 SMs, up to 1590 MHz, MIG on: no slice visible, "
         "held down by power cap"),
        ("cuda:0", "AMD Instinct, gfx942, 304 compute units, 2100 MHz now, L2 4.00 MiB, 300 W"), ("NVIDIA driver", "580.1"),
        ("libraries", "torch 2.11.0, numpy 2.0"),
    ]  # fmt: skip
    one = machine(dataclasses.replace(facts, processor=dataclasses.replace(processor, quota_cores=1.0)))
    assert dict(one.table()[1])["processor"] == "A CPU, 1 usable core of 2 physical, 1 core's time granted, 3.10 GHz now"
    quiet = machine(dataclasses.replace(_GOOD, accelerators=(), pci_gpus={}, driver=Driver(), torch=_CPU_BUILD, cupy_packages=()))
    assert repr(quiet) == "<Machine: A CPU, 8 cores, 60.0 GiB free; no accelerator; nothing to mend>"
    assert dict(quiet.table()[1])["accelerator"] == "none"
    assert dict(quiet.table()[1])["processor"] == "A CPU, 8 usable cores, 3.00 GHz now, up to 4.00 GHz, avx2"
    limited = machine(dataclasses.replace(_GOOD, memory=Memory(64 * GIB, GIB, 8 * GIB), disk_free_bytes=0))
    assert dict(limited.table()[1])["memory"] == "1.00 GiB free of 64.0 GiB, limited to 8.00 GiB"
    assert repr(limited) == "<Machine: A CPU, 8 cores, 1.00 GiB free; NVIDIA H200; 2 things to mend>"
