"""The processor and the PCI bus, read from made-up system files."""

import platform

import pytest

from gpulab.devices import Device, _cpu, _facts, _host
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
