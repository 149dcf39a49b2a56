"""Facts read from the system's files, NVIDIA's library and PyTorch, on simulated machines."""

import dataclasses
import os
import platform
import shutil
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from gpulab import devices
from gpulab.devices import Accelerator, Device, Driver, conditions, guard
from gpulab.devices.conditions import GpuReadings, Readings
from gpulab.errors import DeviceError, OutOfMemoryError

from fake_machine import GIB, MIB, play_gpus

linux = pytest.mark.skipif(platform.system() != "Linux", reason="reads Linux's system files")


def _tree(root: Path, files: dict[str, Any]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


GROUP = "sys/fs/cgroup"
V1 = {
    "proc/self/cgroup": "4:memory:/docker/a\n1:cpu,cpuacct:/docker/a",
    f"{GROUP}/memory/docker/a/memory.limit_in_bytes": GIB,
    f"{GROUP}/memory/docker/a/memory.usage_in_bytes": GIB // 2,
    f"{GROUP}/memory/memory.limit_in_bytes": 9223372036854771712,  # stands for no limit
    f"{GROUP}/cpu/docker/a/cpu.cfs_quota_us": 200000,
    f"{GROUP}/cpu/docker/a/cpu.cfs_period_us": 100000,
    f"{GROUP}/cpu/cpu.cfs_quota_us": -1,
}


@linux
@pytest.mark.parametrize(
    ("files", "limit", "free", "cores"),
    [
        # The tightest limit of all levels. In units of 1/64 GiB it is 8; 3 are used, of which 1 is
        # file cache that can be reclaimed.
        (
            {
                "proc/self/cgroup": "0::/slurm/job",
                f"{GROUP}/slurm/memory.max": GIB // 8,
                f"{GROUP}/slurm/memory.current": 3 * GIB // 64,
                f"{GROUP}/slurm/job/memory.max": "max",
                f"{GROUP}/slurm/memory.stat": f"anon 5\ninactive_file {GIB // 64}",
                f"{GROUP}/slurm/job/cpu.max": "150000 100000",
                f"{GROUP}/slurm/cpu.max": "200000 100000",
                f"{GROUP}/cpu.max": "max 100000",
            },
            GIB // 8,
            6 * GIB // 64,
            1.5,
        ),
        (V1, GIB, GIB // 2, 2.0),
        # A container that sees its own group as the root.
        (
            {
                "proc/self/cgroup": "0::/not/here",
                f"{GROUP}/memory.max": 100,
                f"{GROUP}/cpu.max": "7 10",
            },
            100,
            100,
            0.7,
        ),
        (
            {
                "proc/self/cgroup": "0::/",
                f"{GROUP}/memory.max": 100,
                f"{GROUP}/memory.current": 150,
            },
            100,
            0,
            None,
        ),
        (
            {
                "proc/self/cgroup": "0::/../../etc",
                f"{GROUP}/memory.max": "max",
                f"{GROUP}/cpu.max": "7",
            },
            None,
            4 * GIB,
            None,
        ),
        ({"proc/self/cgroup": "::::"}, None, 4 * GIB, None),
    ],
)
def test_limits_of_containers(
    tmp_path: Path, files: dict[str, Any], limit: int | None, free: int, cores: float | None
) -> None:
    """Both versions of control groups limit memory and cores; malformed files set no limit."""
    meminfo = {"proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {4 * MIB} kB"}
    facts = devices.gather(_tree(tmp_path, {**files, **meminfo}))
    assert (facts.memory.limit_bytes, facts.processor.quota_cores) == (limit, cores)
    assert facts.memory.available_bytes == free


@linux
def test_cores_caches_and_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared caches and threads of one core count once; GPUs are counted by vendor.

    By hand: two fast cores of two threads with 48 KiB and 1 MiB each, two others with 32 KiB that
    share 4 MiB; 32 MiB for all. PCI class 0x03 is a display controller, 0x02 a network card.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5}, raising=False)
    files: dict[str, Any] = {
        "proc/cpuinfo": "cpu MHz: 2000.5\nflags: sse2 avx avx2 fma hypervisor\n\ncpu MHz: 3000.0",
        "sys/class/dmi/id/product_name": "KVM",
    }
    for n in range(7):  # this process may not use the last one
        cpu, fast = f"sys/devices/system/cpu/cpu{n}", n < 4
        own = f"{n % 2},{n % 2 + 2}" if fast else str(n)
        files[f"{cpu}/topology/thread_siblings_list"] = own
        files[f"{cpu}/cpufreq/cpuinfo_max_freq"] = (
            3_600_000 if fast else 5_000_000 if n == 6 else 1_800_000
        )
        for i, row in enumerate(
            [
                (1, "Data", "48K" if fast else "32K", own),
                (1, "Instruction", "32K", own),
                (2, "Unified", "1024K" if fast else "4096K", own if fast else "4-5"),
                (3, "Unified", "32M", "0-5"),
            ]
        ):
            names = ("level", "type", "size", "shared_cpu_list")
            files |= {f"{cpu}/cache/index{i}/{k}": v for k, v in zip(names, row, strict=True)}
    pci = [
        ("0x030200", "0x10de"),
        ("0x030000", "0x10de"),
        ("0x020000", "0x10de"),
        ("0x030000", "0x1002"),
    ]
    for n, (kind, vendor) in enumerate(pci):
        files |= {f"sys/bus/pci/devices/{n}/class": kind, f"sys/bus/pci/devices/{n}/vendor": vendor}
    facts = devices.gather(_tree(tmp_path, files))
    cpu = facts.processor
    assert list(map(str, cpu.caches)) == [
        "L1d 48.0 KiB x 2 and 32.0 KiB x 2",
        "L2 1.00 MiB x 2 and 4.00 MiB",
        "L3 32.0 MiB",
    ]
    assert [cache.total_bytes for cache in cpu.caches] == [160 * 2**10, 6 * MIB, 32 * MIB]
    assert (cpu.usable_cores, cpu.physical_cores, cpu.clock_hz, cpu.max_clock_hz) == (
        6,
        5,
        3e9,
        3.6e9,
    )
    assert (cpu.simd, cpu.hypervisor) == (("sse2", "avx", "avx2", "fma"), "KVM")
    assert facts.pci_gpus == {"nvidia": 2, "amd": 1}
    assert cpu.caches[-1].size_bytes == 32 * MIB
    nothing = devices.gather(tmp_path / "none")
    found = (
        nothing.processor.caches,
        nothing.processor.clock_hz,
        nothing.processor.physical_cores,
        nothing.pci_gpus,
    )
    assert found == ((), None, None, None)


def test_facts_of_this_machine() -> None:
    """PyTorch's version, memory and the environment's stamp are those of this machine."""
    facts, cpu = devices.gather(), devices.find("cpu")
    assert facts.torch.version == torch.__version__
    assert 0 < cpu.free_bytes <= cpu.memory_bytes <= facts.memory.installed_bytes
    stamp = devices.environment("cpu", command="make bench")
    assert (stamp.device, stamp.device_kind, stamp.driver) == (cpu.name, "cpu", None)
    assert (stamp.command, stamp.python) == ("make bench", platform.python_version())
    assert stamp.system == f"{platform.system()} {platform.release()} {platform.machine()}"


class _Error(Exception):
    """Stand in for pynvml's ``NVMLError``."""

    def __init__(self, value: int = 999, words: str = "GPU is lost") -> None:
        super().__init__(words)
        self.value = value


def _fails(value: int = 3, words: str = "Not Supported", kind: type = _Error) -> Any:
    def fail(*args: Any) -> Any:
        raise kind(value, words)

    return fail


def _nvml(**answers: Any) -> types.ModuleType:
    """Return a fake pynvml: an A100 in MIG slices that answers as NVIDIA's API reference says. It
    is an older one, which does not know ``nvmlDeviceGetCurrentClocksEventReasons``.
    """
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = _Error
    for name in ("NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "NotFound"):
        setattr(nvml, f"NVMLError_{name}", type(name, (_Error,), {}))
    slices = {0: "MIG 1g.5gb", 2: "MIG 2g.10gb"}

    def part(handle: Any, number: int) -> Any:
        return slices[number] if number in slices else _fails(kind=nvml.NVMLError_NotFound)()

    # ns by nvml.h's policy: power, heat, board limit, and low utilization, which slows nothing down
    slowed = {0: 1_000_000_000, 1: 20_000_000, 3: 300_000_000, 4: 9_000_000_000}
    calls = {
        "Init": None,
        "Shutdown": None,
        "SystemGetCudaDriverVersion": 13010,
        "SystemGetDriverVersion": "570.1",
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetUUID": "GPU-ab",
        "DeviceGetHandleByUUID": "handle",
        "DeviceGetName": lambda handle: "NVIDIA A100-SXM4-40GB" if handle == "handle" else handle,
        "DeviceGetMemoryInfo": types.SimpleNamespace(total=40, free=30),
        "DeviceGetCudaComputeCapability": (8, 0),
        "DeviceGetMigMode": (1, 1),
        "DeviceGetMemoryBusWidth": 5120,
        "DeviceGetCurrentClocksThrottleReasons": 0x44,
        "DeviceGetClockInfo": lambda handle, kind: {1: 1410, 2: 2600}[kind],
        "DeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
        "DeviceGetPowerUsage": 76_120,
        "DeviceGetTotalEnergyConsumption": 1_250,  # mJ
        "DeviceGetEnforcedPowerLimit": 400_000,
        "DeviceGetTemperature": 27,
        "DeviceGetMaxMigDeviceCount": 3,
        "DeviceGetMigDeviceHandleByIndex": part,
        "DeviceGetViolationStatus": lambda handle, policy: types.SimpleNamespace(
            violationTime=slowed[policy]
        ),
        "DeviceGetComputeRunningProcesses": [],
        "DeviceGetProcessUtilization": [],
        **answers,
    }
    for name, answer in calls.items():
        setattr(nvml, f"nvml{name}", answer if callable(answer) else lambda *args, a=answer: a)
    for name, value in {
        "CLOCK_SM": 1,
        "CLOCK_MEM": 2,
        "TEMPERATURE_GPU": 0,
        "DEVICE_MIG_ENABLE": 1,
        "ERROR_LIBRARY_NOT_FOUND": 12,
        "ERROR_DRIVER_NOT_LOADED": 9,
    }.items():
        setattr(nvml, f"NVML_{name}", value)
    return nvml


A100 = Accelerator(
    None,
    "NVIDIA A100-SXM4-40GB",
    "cuda",
    40,
    30,
    "8.0",
    clock_hz=1.41e9,
    max_clock_hz=1.98e9,
    memory_clock_hz=2.619e9,
    memory_bus_bits=5120,
    mig=True,
    mig_slices=("MIG 1g.5gb", "MIG 2g.10gb"),
    power_watts=pytest.approx(76.12),
    power_limit_watts=400.0,
    temperature_celsius=27.0,
    slowdowns=("power cap", "hardware thermal"),
)
ASKED = (
    "MemoryInfo",
    "CudaComputeCapability",
    "MigMode",
    "MemoryBusWidth",
    "ClockInfo",
    "MaxClockInfo",
    "CurrentClocksEventReasons",
    "CurrentClocksThrottleReasons",
    "PowerUsage",
    "EnforcedPowerLimit",
    "Temperature",
)


@pytest.mark.parametrize(
    ("answers", "driver"),
    [
        ({}, Driver("570.1", "13.1", None, {"GPU-ab": A100})),
        ({"Init": _fails(12)}, Driver()),  # a missing library or driver is no error
        ({"Init": _fails(9)}, Driver()),
        ({"Init": _fails(18, "version mismatch")}, Driver(error="version mismatch")),
        ({"DeviceGetUUID": _fails(15, "lost"), "Shutdown": _fails()}, Driver(error="lost")),
        (
            {
                "DeviceGetMigMode": (0, 1),
                "DeviceGetCurrentClocksEventReasons": 3,  # a newer one
                "DeviceGetCurrentClocksThrottleReasons": 3,
            },  # idle, user's clocks
            Driver(
                "570.1",
                "13.1",
                None,
                {"GPU-ab": dataclasses.replace(A100, mig=False, mig_slices=(), slowdowns=())},
            ),
        ),
    ],
    ids=["all", "no library", "no driver", "broken", "vanished", "whole"],
)
def test_the_driver_by_nvidias_library(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], driver: Driver
) -> None:
    """MHz, milliwatts and bits become hertz, watts and words; a failure keeps its message."""
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(**answers))
    assert devices.gather().driver == driver


def test_what_a_gpu_does_not_support_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that the GPU cannot report is left out, without an error."""
    nvml = _nvml()
    for name in ASKED:
        setattr(nvml, f"nvmlDeviceGet{name}", _fails(kind=nvml.NVMLError_NotSupported))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert devices.gather().driver.gpus == {
        "GPU-ab": Accelerator(None, "NVIDIA A100-SXM4-40GB", "cuda")
    }


def test_a_gpu_is_what_pytorch_and_the_driver_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's values win where both report one; the GPU's state comes from the driver."""
    play_gpus(monkeypatch)
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(DeviceGetMigMode=(0, 1)))
    facts = devices.gather()
    assert facts.accelerators == (
        devices.Accelerator(
            "cuda:0",
            "NVIDIA H200",
            "cuda",
            140 * GIB,
            139 * GIB,
            "9.0",
            132,
            1.41e9,
            1.98e9,
            3.201e9,
            6144,
            60 * MIB,
            False,
            (),
            pytest.approx(76.12),
            400.0,
            27.0,
            A100.slowdowns,
        ),
    )
    found = (facts.torch.kind, facts.torch.cuda, facts.torch.architectures[0])
    assert found == ("cuda", "13.0", "sm_80")
    assert devices.environment().driver == "570.1"


def test_a_gpu_that_pytorch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that only the driver sees has no device; a lost GPU is an error with its reason."""
    play_gpus(monkeypatch, count=0)
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(DeviceGetMigMode=(0, 1)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = devices.gather()
    assert [(a.device, a.name) for a in hidden.accelerators] == [(None, "NVIDIA A100-SXM4-40GB")]
    codes = [p.code for p in devices.machine(hidden).problems if "gpu" in p.code]
    assert codes == ["gpu-hidden", "gpu-throttled"]
    lost = _fails("CUDA error: device lost", "Compile with TORCH_USE_CUDA_DSA", RuntimeError)
    play_gpus(monkeypatch, synchronize=lost)
    for name in ("get_device_properties", "mem_get_info", "get_device_name"):
        monkeypatch.setattr(torch.cuda, name, lost)
    assert "device lost" in devices.gather().torch.error
    for ask in (Device.synchronize, Device.free_bytes.fget):
        with pytest.raises(DeviceError):
            ask(Device("cuda"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, "cuda:0"),
        ("gpu", "cuda:0"),
        ("CUDA", "cuda:0"),
        ("cuda:1", "cuda:1"),
        ("cpu:0", "cpu"),
        (Device("cuda", 1), "cuda:1"),
        (torch.device("cpu"), "cpu"),
    ],
)
def test_a_device_is_found_by_its_names(
    monkeypatch: pytest.MonkeyPatch, name: Any, found: str
) -> None:
    """PyTorch's names, gpulab's and "gpu" find a device; a device that is not there is refused.
    The memory of a GPU and what is free of it are the driver's.
    """
    play_gpus(monkeypatch, count=2)
    assert (str(devices.find(name)), Device("cuda").memory_bytes, Device("cuda").free_bytes) == (
        found,
        140 * GIB,
        139 * GIB,
    )
    for unknown in ("cuda:7", "tpu", "cpu:1"):
        with pytest.raises(DeviceError):
            devices.find(unknown)


NumbaError = type("CudaAPIError", (Exception,), {})


@pytest.mark.parametrize(
    ("error", "ours", "restart"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), OutOfMemoryError, False),
        (MemoryError(), OutOfMemoryError, False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemoryError, False),
        (RuntimeError("MPS backend out of memory"), OutOfMemoryError, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), OutOfMemoryError, False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceError, True),
        (RuntimeError("No CUDA GPUs are available"), DeviceError, True),
        (RuntimeError("CUDA error: device-side assert triggered\nmore"), DeviceError, True),
        (RuntimeError("HIP error: misaligned address"), DeviceError, True),
        (RuntimeError("CUDA error: invalid argument"), DeviceError, False),
        (RuntimeError("CUDA error: too many resources requested for launch"), DeviceError, False),
        (RuntimeError("CUDA error: no kernel image is available for"), DeviceError, False),
        # numba-cuda's messages, as its driver.py writes them
        (NumbaError("Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"), OutOfMemoryError, 0),
        (NumbaError("Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS"), DeviceError, 1),
        (NumbaError("Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE"), NumbaError, 0),
        (ValueError("out of memory"), ValueError, False),
        (RuntimeError("shapes do not match"), RuntimeError, False),
        (KeyError("cuda error"), KeyError, False),
    ],
    ids=repr,
)
def test_libraries_errors_become_ours(
    error: Exception, ours: type[Exception], restart: bool
) -> None:
    """The message decides: out of memory, a lost device (advice: restart) or a refused call."""
    with pytest.raises(ours) as caught, guard("work"):
        raise error
    assert caught.value is error or caught.value.__cause__ is error
    assert ("restart" in str(caught.value), "\n" in str(caught.value)) == (restart, False)


CPU0 = "sys/devices/system/cpu/cpu0"


@linux
def test_counters_in_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks, ns, us and kHz become seconds and hertz; an ended thread does not reduce the wait. The
    name counts the cores that this process may use.

    By hand: 400 + 10 + 200 + 3 + 10 ticks of 10 ms are busy, 20 stolen. Then one thread waits 1 ns
    more, another ends, and a third ends and its number goes to a new thread, which waits 6 ns.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(threading, "get_native_id", lambda: 1)
    root = _tree(
        tmp_path,
        {
            "proc/stat": "cpu0 400 10 200 4500 5 3 10 20 0 0\ncpu1 600 0 300 4500 5 0 10 10 0 0",
            "proc/self/task/1/schedstat": "70 3385392 20",
            "proc/self/task/2/schedstat": "70 3 2",
            "proc/self/task/3/schedstat": "70 8 2",
            "proc/self/cgroup": "0::/job",
            f"{GROUP}/job/cpu.stat": "nr_throttled 3\nthrottled_usec 250000",
            f"{GROUP}/cpu.stat": "throttled_usec 5",
            f"{CPU0}/cpufreq/scaling_cur_freq": 3_000_000,
            f"{CPU0}/thermal_throttle/core_throttle_count": 7,
        },
    )
    first, name = conditions.read(Device("cpu"), root=root), Device("cpu").name
    tick = os.sysconf("SC_CLK_TCK")
    found = (first.busy_seconds, first.stolen_seconds, first.throttled_seconds)
    assert found == pytest.approx((623 / tick, 20 / tick, 0.250005))
    assert first.run_delay_seconds == pytest.approx(3.385392e-3)
    assert (first.frequency_hertz, first.thermal_events, name[-9:]) == (3e9, 7, " (1 core)")
    shutil.rmtree(root / "proc/self/task/2")
    _tree(
        root, {"proc/self/task/1/schedstat": "70 3385393 2", "proc/self/task/3/schedstat": "70 6 2"}
    )
    second = dataclasses.replace(
        conditions.read(Device("cpu"), first, root), seconds=first.seconds + 1
    )
    assert conditions.Window.between(first, second).process_delay == pytest.approx(7e-9)
    stat = {f"{GROUP}/cpu/docker/a/cpu.stat": "throttled_time 2000000000"}
    old = conditions.read(Device("cpu"), root=_tree(tmp_path / "version 1", {**V1, **stat}))
    assert old.throttled_seconds == pytest.approx(2.0)
    nothing = conditions.read(Device("cpu"), root=tmp_path / "none")
    found = (nothing.run_delay_seconds, nothing.throttled_seconds, nothing.frequency_hertz)
    assert found == (None, None, None)


@pytest.mark.parametrize(
    ("used", "neighbors"),
    [
        ({os.getpid(): 0}, (0, 0.0)),
        ({os.getpid(): 99, 7: 50, 8: 30}, (2, 0.5)),
        ({7: 90, 8: 30}, (1, 0.3)),  # a container hides our id: the busiest counts as ours
        ({7: 90}, (0, 0.0)),
    ],
    ids=["alone", "beside two", "hidden", "hidden and alone"],
)
def test_counters_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, used: dict[int, int], neighbors: tuple[int, float]
) -> None:
    """MHz, ns, mJ and percent become hertz, seconds, joules and shares; slowed times add up. The
    shares are those since the reading before.
    """
    play_gpus(monkeypatch)
    rows = [types.SimpleNamespace(pid=pid, smUtil=share) for pid, share in used.items()]
    nvml = _nvml(
        DeviceGetComputeRunningProcesses=rows,
        DeviceGetProcessUtilization=lambda handle, since: rows if since == 42 else [],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = conditions.read(Device("cuda"), Readings(0.0, 1, gpu=GpuReadings(42))).gpu
    assert (found.slowed_seconds, found.reasons) == (pytest.approx(1.32), A100.slowdowns)
    assert (found.clock_hertz, found.top_clock_hertz, found.energy_joules) == (1.41e9, 1.98e9, 1.25)
    assert (found.neighbours, found.neighbour_busy_ratio) == neighbors
    silent = _nvml(DeviceGetHandleByUUID=_fails(), DeviceGetHandleByIndex=_fails())
    monkeypatch.setitem(sys.modules, "pynvml", silent)
    assert conditions.read(Device("cuda")).gpu is None


# One thread works for two seconds on two cores; for 0.4 % of the time it waits for a core.
BEFORE = Readings(
    0.0,
    2,
    run_delay_seconds=0.0,
    busy_seconds=0.0,
    stolen_seconds=0.0,
    throttled_seconds=0.0,
    thermal_events=0,
    frequency_hertz=3e9,
)
AFTER = dataclasses.replace(
    BEFORE,
    seconds=2.0,
    own_cpu_seconds=1.98,
    run_delay_seconds=0.008,
    thread_delays={"1": 0.008},
    busy_seconds=2.0,
)
UNTOLD = {"run_delay_seconds": None, "stolen_seconds": None, "cores": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "quiet": {},
    "neighbor": {"run_delay_seconds": 0.2, "own_cpu_seconds": 1.8},
    "hypervisor": {"stolen_seconds": 0.1},
    "quota": {
        "own_cpu_seconds": 1.0,
        "run_delay_seconds": 1.0,
        "busy_seconds": 1.01,
        "throttled_seconds": 0.98,
    },
    "a wait from before": {"run_delay_seconds": 3.0, "own_cpu_seconds": 0.5, "busy_seconds": 3.5},
    "own threads": {
        "own_cpu_seconds": 3.98,
        "busy_seconds": 3.99,
        "thread_delays": {"1": 3.0},
    },
    "worker threads": {
        "own_cpu_seconds": 3.4,
        "busy_seconds": 3.98,
        "thread_delays": {"1": 0.6},
    },
    "heat": {"thermal_events": 3},
    "once hot": {"thermal_events": 1},
    "clock fell": {"frequency_hertz": 2.7e9},
    "clock fell by 3 %": {"frequency_hertz": 2.91e9},
    "all cores busy, by no run queue": {**UNTOLD, "busy_seconds": 8.0},
    "half of the cores busy": {**UNTOLD, "busy_seconds": 4.0},
}
GPUS: dict[str, tuple[GpuReadings, GpuReadings]] = {
    "limited": (GpuReadings(0, 5.0), GpuReadings(1, 5.2, ("power cap",))),
    "counter runs on after heavy work": (GpuReadings(0, 5.0), GpuReadings(1, 5.2)),
    "below its clock": (GpuReadings(0, 5.0), GpuReadings(1, 5.2, (), 1.5e9, 1.98e9)),
    "hardly limited": (GpuReadings(0, 5.0, ("power cap",)), GpuReadings(1, 5.01, ("power cap",))),
    "no counter, limited": (
        GpuReadings(0, None, ("power cap",)),
        GpuReadings(1, None, ("power cap",)),
    ),
    "no counter, fell": (
        GpuReadings(0, clock_hertz=1.9e9),
        GpuReadings(1, None, ("power cap",), 1.5e9),
    ),
    "no counter, no reason": (GpuReadings(0, clock_hertz=1.9e9), GpuReadings(1, clock_hertz=1.5e9)),
    "shared": (GpuReadings(0), GpuReadings(1, neighbours=2, neighbour_busy_ratio=0.3)),
    "idle neighbors": (GpuReadings(0), GpuReadings(1, neighbours=2, neighbour_busy_ratio=0.0)),
}


def test_what_counters_mean(approved: Any) -> None:
    """Two readings give a note for each disturbance with its share of the time; quiet has none."""
    both = {}
    for name, changes in CHANGES.items():
        always = {k: v for k, v in changes.items() if v is None or k == "cores"}
        both[name] = dataclasses.replace(BEFORE, **always), dataclasses.replace(AFTER, **changes)
    for name, (one, other) in GPUS.items():
        begin, end = dataclasses.replace(BEFORE, gpu=one), dataclasses.replace(AFTER, gpu=other)
        both[f"GPU: {name}"] = begin, end
    text = [[f"== {name}", *conditions.from_readings(*two)] for name, two in both.items()]
    assert "\n".join(str(line) for part in text for line in part) == approved
