"""The processor and the PCI bus, read from made-up system files."""

import contextlib
import importlib.metadata
import json
import platform
import subprocess
import sys
import types

import pytest

from gpulab.devices import Cache, Device, Processor, _cpu, _facts, _host
from gpulab.errors import DeviceError

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="reads Linux's system files")


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _machine(root, cores=4):
    """Two physical cores with two threads each, private L1 and L2, one L3."""
    _write(root / "proc/cpuinfo", "model name\t: X\ncpu MHz\t\t: 2000.5\nflags\t\t: sse2 avx avx2 fma hypervisor\n\ncpu MHz\t\t: 3000.0")
    for n in range(cores):
        cpu = root / f"sys/devices/system/cpu/cpu{n}"
        pair = f"{n % 2},{n % 2 + 2}"
        _write(cpu / "topology/core_cpus_list", pair)
        for i, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", pair), (1, "Instruction", "32K", pair), (2, "Unified", "1024K", pair), (3, "Unified", "32M", "0-3")]
        ):
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                _write(cpu / f"cache/index{i}/{name}", text)
    _write(root / "sys/devices/system/cpu/cpufreq/boost", "1")


def test_caches_cores_and_clocks_come_from_the_system(tmp_path, monkeypatch):
    """Shared caches count once, instruction caches not at all, threads of one core are one core."""
    monkeypatch.setattr(_host, "usable_core_numbers", lambda: (0, 1, 2, 3))
    _machine(tmp_path)
    _write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4500000")
    found = _cpu.probe(tmp_path)
    assert [str(cache) for cache in found.caches] == ["L1d 48.0 KiB x 2", "L2 1.00 MiB x 2", "L3 32.0 MiB"]
    assert (found.usable_cores, found.physical_cores) == (4, 2)
    assert (found.clock_hz, found.max_clock_hz) == (3.0e9, 4.5e9)
    assert found.simd == ("sse2", "avx", "avx2", "fma")
    assert found.hypervisor == "yes"
    assert found.cache("L2").size_bytes == 2**20
    assert found.cache("L4") is None


def test_two_kinds_of_cores_have_caches_of_two_sizes(tmp_path, monkeypatch):
    """An Intel hybrid has its performance cores first; the order in which the kernel lists them decides nothing. By hand: eight times 48
    and four times 32 KiB, eight times 2 MiB and 4 MiB; the clock is the faster cores', also where they come last, as on Arm.
    """
    monkeypatch.setattr(_host, "usable_core_numbers", lambda: tuple(range(12)))
    for n in range(12):
        cpu, fast = tmp_path / f"sys/devices/system/cpu/cpu{n}", n < 8
        for i, (level, kind, size) in enumerate([(1, "Data", "48K" if fast else "32K"), (2, "Unified", "2048K" if fast else "4096K")]):
            shared = str(n) if fast or level == 1 else "8-11"
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                _write(cpu / f"cache/index{i}/{name}", text)
    listed = type(tmp_path).glob
    monkeypatch.setattr(type(tmp_path), "glob", lambda path, pattern: sorted(listed(path, pattern), reverse=True))
    for n, khz in ((0, "1800000"), (8, "3600000"), (12, "5000000")):
        _write(tmp_path / f"sys/devices/system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq", khz)
    found = _cpu.probe(tmp_path)
    assert [str(cache) for cache in found.caches] == ["L1d 48.0 KiB x 8 and 32.0 KiB x 4", "L2 2.00 MiB x 8 and 4.00 MiB"]
    assert [cache.total_bytes for cache in found.caches] == [512 * 2**10, 20 * 2**20]
    assert found.max_clock_hz == 3.6e9  # this process may not run on core 12
    assert Processor.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert Cache.from_dict({"schema": "Cache", "schema_version": 1, "level": "L2", "size_bytes": 8, "instances": 3}) == Cache("L2", 8, 3)


def test_only_the_caches_of_usable_cores_count(tmp_path, monkeypatch):
    """A process bound to one core has that core's caches."""
    monkeypatch.setattr(_host, "usable_core_numbers", lambda: (0,))
    _machine(tmp_path)
    assert [(c.level, c.instances) for c in _cpu.probe(tmp_path).caches] == [("L1d", 1), ("L2", 1), ("L3", 1)]


def test_a_system_that_says_nothing_gives_none(tmp_path):
    """Without a single file there are no caches, no clock, no hypervisor, and no exception."""
    found = _cpu.probe(tmp_path)
    assert (found.caches, found.clock_hz, found.max_clock_hz, found.physical_cores, found.hypervisor) == ((), None, None, None, None)
    assert found.usable_cores >= 1


def test_gpus_on_the_pci_bus_are_counted_by_vendor(tmp_path):
    """Class 0x03 is a display controller (0x0302 a GPU without a screen); a network card of the same vendor is none."""
    for n, (kind, vendor) in enumerate(
        [("0x030200", "0x10de"), ("0x030000", "0x10de"), ("0x020000", "0x10de"), ("0x030000", "0x1002"), ("0x030000", "0x1234")]
    ):
        _write(tmp_path / f"0000:0{n}:00.0/class", kind)
        _write(tmp_path / f"0000:0{n}:00.0/vendor", vendor)
    (tmp_path / "0000:09:00.0").mkdir()
    assert _facts.pci_gpus(tmp_path) == {"nvidia": 2, "amd": 1}
    assert _facts.pci_gpus(tmp_path / "none") is None


def test_memory_respects_the_container(monkeypatch):
    """What a process may use is the smaller of the machine's memory and the container's limit."""
    monkeypatch.setattr("gpulab.devices._cgroup.memory_limit_bytes", lambda: 2**20)
    monkeypatch.setattr("gpulab.devices._cgroup.memory_free_bytes", lambda: 2**19)
    assert _host.memory_bytes() == 2**20
    assert _host.available_memory_bytes() == 2**19
    assert _host.installed_memory_bytes() > 2**20


def test_a_mac_is_read_from_its_system_values(monkeypatch):
    """As `sysctl` prints them on an M1: four performance cores' caches, no clock; on an Intel Mac the plain names and the features."""
    values = {
        "machdep.cpu.brand_string": "Apple M1", "hw.physicalcpu": "8", "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "12582912", "hw.l1dcachesize": "65536", "kern.hv_vmm_present": "0",
    }  # fmt: skip
    monkeypatch.setattr(_cpu, "sysctl", lambda name: values.get(name, ""))
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    found = _cpu._probe_apple()
    assert (found.name, found.physical_cores, found.simd, found.hypervisor) == ("Apple M1", 8, ("asimd",), None)
    assert [str(cache) for cache in found.caches] == ["L1d 128 KiB", "L2 12.0 MiB"]
    assert found.max_clock_hz is None
    values |= {"hw.cpufrequency_max": "2300000000", "machdep.cpu.features": "SSE2 AVX1.0 FMA", "machdep.cpu.leaf7_features": "AVX2"}
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = _cpu._probe_apple()
    assert (found.max_clock_hz, set(found.simd)) == (2.3e9, {"sse2", "avx", "avx2", "fma"})


def test_an_accelerator_is_found_by_its_name_or_has_vanished(monkeypatch):
    """The second of two, and none after the driver has lost it."""
    both = tuple(_facts.Accelerator(f"cuda:{index}", f"GPU {index}", "cuda") for index in (0, 1))
    monkeypatch.setattr(_facts, "_accelerators", lambda torch, driver: both)
    assert _facts.accelerator(Device("cuda", 1)).name == "GPU 1"
    with pytest.raises(DeviceError, match="no longer answers"):
        _facts.accelerator(Device("cuda", 2))


def test_small_values_of_the_system_by_hand(tmp_path, monkeypatch):
    """Sizes in powers of 1024, clocks in kHz; nothing, words and nought are none; a virtual machine by flag, or by what it says it is."""
    assert [_cpu._kernel_size(text) for text in ("512", "48K", "32M", "2G", "K", "4T", "")] == [512, 49152, 2**25, 2**31, None, None, None]
    for text, hertz in (("2400000", 2.4e9), ("0", None), ("none", None), ("", None)):
        _write(tmp_path / "khz", text)
        assert _cpu._khz(tmp_path / "khz") == hertz
    _write(tmp_path / "sys/class/dmi/id/product_name", "KVM")
    assert [_cpu._hypervisor(tmp_path, flags) for flags in ({"hypervisor"}, set())] == ["KVM", None]
    _write(tmp_path / "sys/hypervisor/type", "xen")
    assert _cpu._hypervisor(tmp_path, set()) == "xen"
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir(parents=True)
    _write(tmp_path / "sys/devices/system/cpu/cpu10/topology/thread_siblings_list", "10")
    assert (_cpu._physical_cores(tmp_path), _cpu._caches(tmp_path, [10])) == (1, ())


def test_a_mac_is_asked_by_its_own_program(monkeypatch):
    """With the name alone, and five seconds; a program that is not there, or hangs, says nothing."""
    name = _host.processor_name()  # known from here on: what this test says of a Mac must not stay
    asked, answers = [], [subprocess.CompletedProcess([], 0, "8\n", ""), OSError("none"), subprocess.TimeoutExpired("sysctl", 5)]

    def run(command, **options):
        asked.append((command, options["timeout"]))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    assert [_cpu.sysctl("hw.physicalcpu") for _ in range(3)] == ["8", "", ""]
    assert asked == [(["/usr/sbin/sysctl", "-n", "hw.physicalcpu"], 5)] * 3
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(
        _cpu, "sysctl", lambda name: {"kern.hv_vmm_present": "1", "hw.l3cachesize": "0", "hw.physicalcpu": "x"}.get(name, "")
    )
    found = _cpu.probe()
    assert (found.hypervisor, found.caches, found.physical_cores, found.quota_cores, found.clock_hz) == ("yes", (), None, None, None)
    assert found.name == name


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Files of a system of our own, and what psutil says where there are none."""
    monkeypatch.setattr(_host, "pathlib", types.SimpleNamespace(Path=lambda path: tmp_path / path.lstrip("/")))
    process = types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(rss=7))
    memory = types.SimpleNamespace(total=9, available=8)
    monkeypatch.setitem(sys.modules, "psutil", types.SimpleNamespace(Process=lambda: process, virtual_memory=lambda: memory))
    return tmp_path


def test_the_hosts_memory_by_its_files_and_without_them(proc, monkeypatch):
    """Kilobytes of 1024 and pages (proc(5)); where a system has neither, as psutil says."""
    monkeypatch.setattr(_host.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert (_host._available_memory_bytes(), _host.resident_bytes(), _host.installed_memory_bytes()) == (8, 7, 4_096_000)
    _write(proc / "proc/meminfo", "MemTotal:  999 kB\nMemAvailable:    123 kB")
    _write(proc / "proc/self/statm", "50 30 20")
    assert (_host._available_memory_bytes(), _host.resident_bytes()) == (123 * 1024, 30 * 4096)

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(_host.os, "sysconf", unknown)
    assert _host.installed_memory_bytes() == 9
    monkeypatch.setattr("gpulab.devices._cgroup.memory_limit_bytes", lambda: None)
    monkeypatch.setattr("gpulab.devices._cgroup.memory_free_bytes", lambda: None)
    assert (_host.memory_bytes(), _host.available_memory_bytes()) == (9, 123 * 1024)
    monkeypatch.setattr("gpulab.devices._cgroup.memory_limit_bytes", lambda: 10)
    monkeypatch.setattr("gpulab.devices._cgroup.memory_free_bytes", lambda: 2**30)
    assert (_host.memory_bytes(), _host.available_memory_bytes()) == (9, 123 * 1024)


def test_the_processors_name_and_its_cores(proc, monkeypatch):
    """The first line that names it, spaces made one; else what Python knows; all cores where the system tells no others."""
    name = _host.processor_name.__wrapped__
    for known, machine, expected in (("x86 family", "m", "x86 family"), ("", "riscv", "riscv"), ("", "", "unknown processor")):
        monkeypatch.setattr(platform, "processor", lambda known=known: known)
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert name() == expected
    _write(proc / "proc/cpuinfo", "processor : 0\nmodel name\t: A  CPU:  9\nmodel name : B")
    assert name() == "A CPU: 9"
    monkeypatch.delattr(_host.os, "sched_getaffinity")
    for count, cores in ((3, (0, 1, 2)), (None, (0,))):
        monkeypatch.setattr(_host.os, "cpu_count", lambda count=count: count)
        assert (_host.usable_core_numbers(), _host.usable_cores()) == (cores, len(cores))


def test_the_processors_name_is_the_products_on_a_mac_and_on_windows(proc, monkeypatch):
    """As sysctl and the registry have it (spaces may end it there); Python itself says "arm" and "Intel64 Family 6 ...": its kind."""
    name = _host.processor_name.__wrapped__
    monkeypatch.setattr(platform, "processor", lambda: "its kind")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(_cpu, "sysctl", {"machdep.cpu.brand_string": "Apple M2 Pro"}.__getitem__)
    assert name() == "Apple M2 Pro"
    values = {"ProcessorNameString": ("13th Gen Intel(R) Core(TM) i7-1360P   ", 1)}

    def value(key, wanted):
        if wanted not in values:
            raise FileNotFoundError
        return values[wanted]

    keys = {("machine", r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"): contextlib.nullcontext("key")}
    registry = types.SimpleNamespace(HKEY_LOCAL_MACHINE="machine", OpenKey=lambda *place: keys[place], QueryValueEx=value)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(_host.sys, "platform", "win32")
    assert name() == "13th Gen Intel(R) Core(TM) i7-1360P"
    values.clear()
    assert name() == "its kind"


def test_the_drivers_version_is_asked_and_its_library_closed(monkeypatch):
    """Bytes in older versions, also closed where the question fails; no library is no driver."""
    log = []

    def library(answer):
        def version():
            log.append("ask")
            if answer is None:
                raise RuntimeError
            return answer

        return types.SimpleNamespace(
            nvmlInit=lambda: log.append("open"), nvmlShutdown=lambda: log.append("close"), nvmlSystemGetDriverVersion=version
        )

    for answer, expected in ((b"580.1", "580.1"), ("570.2", "570.2")):
        monkeypatch.setitem(sys.modules, "pynvml", library(answer))
        assert _host.nvidia_driver_version() == expected
    monkeypatch.setitem(sys.modules, "pynvml", library(None))
    with pytest.raises(RuntimeError):
        _host.nvidia_driver_version()
    assert log == ["open", "ask", "close"] * 3
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _host.nvidia_driver_version() is None


@pytest.mark.parametrize(
    ("system", "machine", "cpuinfo", "rosetta", "translated"),
    [
        ("Linux", "aarch64", "vendor_id : GenuineIntel", "", True), ("Linux", "aarch64", "CPU implementer : 0x41", "", False),
        ("Linux", "x86_64", "vendor_id : GenuineIntel", "", False), ("Windows", "aarch64", "vendor_id : x", "", False),
        ("Darwin", "x86_64", "", "1", True), ("Darwin", "aarch64", "vendor_id", "0", False),
    ],
)  # fmt: skip
def test_a_python_that_is_emulated_is_found(monkeypatch, system, machine, cpuinfo, rosetta, translated):
    """By Rosetta's own word, or by another architecture's processor in the system's list."""
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(_cpu, "read_text", lambda path: cpuinfo)
    monkeypatch.setattr(_cpu, "sysctl", lambda name: rosetta if name == "sysctl.proc_translated" else "")
    assert _facts._translated() is translated


def test_what_provides_cupy_is_found_by_its_name(monkeypatch, tmp_path):
    """Wheels for CUDA and ROCm, and a build from source; nothing that is only called alike, no code, and no place that is no folder."""
    folders = (
        "CuPy_CUDA12x-13.0.dist-info", "cupy", "cupy_rocm_7_0-14.0.dist-info", "cupyx-1.0.dist-info", "cupy_xarray-0.1.dist-info",
        "cupy_cuda11x", "-1.0.dist-info", "numpy-2.4.dist-info", "other/cupy-13.0-py3.11.egg-info",
    )  # fmt: skip
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "python.zip").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "python.zip"), str(tmp_path / "none")])
    found = _facts._cupy_packages()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "other")])
    assert (found, _facts._cupy_packages()) == (("cupy-cuda12x", "cupy-rocm-7-0"), ("cupy", "cupy-cuda12x", "cupy-rocm-7-0"))


def test_the_cupy_that_is_installed_is_found():
    """As its own metadata name it; none where there is none."""
    names = {str(each.metadata["Name"]).lower() for each in importlib.metadata.distributions()}
    assert set(_facts._cupy_packages()) == {name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm"))}


def test_what_pytorch_says_of_itself(monkeypatch):
    """Versions and architectures of a build for CUDA; none of these where there is no GPU; nothing where it is not installed."""
    version = types.SimpleNamespace(cuda="13.0", hip=None)
    torch = types.SimpleNamespace(__version__="2.11.0", version=version, cuda=types.SimpleNamespace(get_arch_list=lambda: ["sm_90"]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    for kind, architectures in (("cuda", ("sm_90",)), ("rocm", ("sm_90",)), (None, ()), ("mps", ())):
        monkeypatch.setattr(_facts._device, "accelerator_kind", lambda kind=kind: kind)
        assert _facts.probe_torch() == _facts.Torch("2.11.0", None, "13.0", None, kind, architectures)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(_facts.importlib.util, "find_spec", lambda name: None)
    assert _facts.probe_torch() == _facts.Torch()
