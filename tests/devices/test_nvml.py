"""The NVIDIA driver, played by a made-up management library and made-up ``nvidia-smi`` output."""

import subprocess
import sys
import types

import pytest

from gpulab.devices import _nvml

# One line of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` (field formats from NVIDIA's manual page), one GPU per line.
_SMI = (
    "GPU-ab, NVIDIA H200, 143771, 143156, 345, 1980, 3201, 9.0, 76.12, 700.00, 27, Disabled, 0x0000000000000001, 580.95.05\n"
    "GPU-cd, Tesla T4, 15360, 15000, 300, 1590, 5001, 7.5, [N/A], 70.00, 40, [N/A], 0x0000000000000024, 580.95.05\n"
)


class _Error(Exception):
    def __init__(self, value=999, words="GPU is lost"):
        super().__init__(words)
        self.value = value


def _fake_nvml(**answers):
    """A pynvml that answers as NVIDIA's API reference says, with two questions that this GPU does not support."""
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = _Error
    for name in ("NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "NotFound"):
        setattr(nvml, f"NVMLError_{name}", type(name, (_Error,), {}))

    def refuse(*args):
        raise nvml.NVMLError_NotSupported

    calls = {
        "nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetCudaDriverVersion": 12080, "nvmlSystemGetDriverVersion": b"570.1",
        "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetName": b"NVIDIA A100-SXM4-40GB",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=40, free=30), "nvmlDeviceGetCudaComputeCapability": (8, 0),
        "nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetCurrentClocksThrottleReasons": 0x44, "nvmlDeviceGetClockInfo": 1410,
        "nvmlDeviceGetMaxClockInfo": 1410, "nvmlDeviceGetMemoryBusWidth": 5120, "nvmlDeviceGetPowerUsage": refuse,
        "nvmlDeviceGetEnforcedPowerLimit": 400000, "nvmlDeviceGetTemperature": refuse, "nvmlDeviceGetMaxMigDeviceCount": 2,
        "nvmlDeviceGetMigDeviceHandleByIndex": "slice", **answers,
    }  # fmt: skip
    for name, answer in calls.items():
        setattr(nvml, name, answer if callable(answer) else lambda *args, answer=answer: answer)
    constants = {
        "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0, "NVML_DEVICE_MIG_ENABLE": 1,
        "NVML_ERROR_LIBRARY_NOT_FOUND": 12, "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    }  # fmt: skip
    for name, value in constants.items():
        setattr(nvml, name, value)
    return nvml


def test_a_gpu_is_read_and_what_it_does_not_support_is_none(monkeypatch):
    """Bytes become text, MHz and milliwatts become Hz and W, the reasons' bits become words (nvml.h), refusals become None."""
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml())
    driver = _nvml.probe()
    (gpu,) = driver.gpus
    assert (driver.version, driver.cuda, driver.error) == ("570.1", "12.8", None)
    assert (gpu.name, gpu.compute_capability, gpu.memory_bytes, gpu.free_bytes) == ("NVIDIA A100-SXM4-40GB", "8.0", 40, 30)
    assert (gpu.clock_hz, gpu.memory_bus_bits, gpu.power_limit_watts) == (1.41e9, 5120, 400.0)
    assert (gpu.power_watts, gpu.temperature_celsius) == (None, None)
    assert gpu.slowdowns == ("power cap", "hardware thermal")
    assert gpu.mig
    assert len(gpu.mig_slices) == 2


def _raise(value, words="words"):
    def fail(*args):
        raise _Error(value, words)

    return fail


@pytest.mark.parametrize(("value", "error"), [(12, None), (9, None), (18, "version mismatch")])
def test_no_library_is_no_driver_and_anything_else_is_an_error(monkeypatch, value, error):
    """Codes 12 and 9 mean that there is no driver; 18 (library and driver differ) is a driver that is broken."""
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml(nvmlInit=_raise(value, "version mismatch")))
    driver = _nvml.probe()
    assert (driver.version, driver.error, driver.gpus) == (None, error, ())


def test_a_gpu_that_vanishes_between_two_questions_is_an_error_in_the_report(monkeypatch):
    """NVML_ERROR_GPU_IS_LOST in the middle gives a sentence, never an exception, also if the shutdown fails too."""
    lost = _raise(15, "GPU is lost")
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml(nvmlDeviceGetUUID=lost, nvmlShutdown=lost))
    assert _nvml.probe().error == "GPU is lost"


def test_the_session_gives_none_where_there_is_nothing_to_ask(monkeypatch):
    """With a library that fails, or none at all, the block runs with None."""
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml(nvmlInit=_raise(12)))
    with _nvml.session() as nvml:
        assert nvml is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with _nvml.session() as nvml:
        assert nvml is None


def test_the_session_shuts_down_what_it_opened(monkeypatch):
    """The library is closed at the end of the block, also after an error inside."""
    closed = []
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml(nvmlShutdown=lambda: closed.append(1)))
    with pytest.raises(KeyError), _nvml.session():
        raise KeyError
    assert closed == [1]


def test_nvidia_smi_stands_in_for_a_missing_library(monkeypatch):
    """Without nvidia-ml-py the same facts come from nvidia-smi; "[N/A]" is None, hexadecimal reasons become words."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, _SMI, ""))
    driver = _nvml.probe()
    first, second = driver.gpus
    assert driver.version == "580.95.05"
    assert (first.uuid, first.memory_bytes, first.max_clock_hz, first.mig, first.slowdowns) == ("GPU-ab", 143771 * 2**20, 1.98e9, False, ())
    assert (second.power_watts, second.mig, second.slowdowns) == (None, None, ("power cap", "software thermal"))


@pytest.mark.parametrize(
    "result",
    [
        subprocess.CompletedProcess([], 9, "", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        OSError("exec format error"),
        subprocess.TimeoutExpired("nvidia-smi", 20),
    ],
)
def test_an_nvidia_smi_that_fails_or_hangs_is_an_error_in_the_report(monkeypatch, result):
    """Whatever goes wrong is a sentence in the report."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")

    def run(*args, **options):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(subprocess, "run", run)
    assert _nvml.probe().error


@pytest.mark.parametrize("text", ["", "\n\n", "one, two", "a,b,c,d,e,f,g,h,i,j,k,l,m,n", _SMI[:60]])
def test_odd_output_of_nvidia_smi_is_survived(text):
    """Cut, empty and foreign lines give what can be read and no exception."""
    for gpu in _nvml.parse_smi(text).gpus:
        assert gpu.memory_bytes is None


def test_every_figure_of_the_driver_in_its_unit(monkeypatch):
    """All at once, by hand: MHz of each clock, milliwatts, degrees; slices by name but for empty slots; asked, then closed."""
    log = []

    def clock(handle, kind):
        return {1: 1410, 2: 1215}[kind]

    def most(handle, kind):
        return {1: 1980, 2: 2619}[kind]

    nvml = _fake_nvml(
        nvmlInit=lambda: log.append("open"), nvmlShutdown=lambda: log.append("close"), nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetMaxClockInfo=most, nvmlDeviceGetPowerUsage=76_120, nvmlDeviceGetTemperature=lambda handle, sensor: 27 + sensor,
        nvmlDeviceGetMaxMigDeviceCount=4, nvmlDeviceGetCurrentClocksThrottleReasons=0xFF, nvmlSystemGetCudaDriverVersion=13010,
    )  # fmt: skip
    gone = {1: nvml.NVMLError_NotFound, 3: nvml.NVMLError_NoPermission}

    def part(handle, number):
        if number in gone:
            raise gone[number]
        return f"slice {number}"

    nvml.nvmlDeviceGetMigDeviceHandleByIndex = part
    nvml.nvmlDeviceGetName = lambda handle: b"NVIDIA A100" if handle == "handle" else f"MIG {handle}"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert _nvml.probe() == _nvml.Driver("570.1", "13.1", None, (
        _nvml.NvmlGpu(
            "GPU-1", "NVIDIA A100", 40, 30, 1.41e9, 1.98e9, 2.619e9, 5120, "8.0", pytest.approx(76.12), 400.0, 27.0, True,
            ("MIG slice 0", "MIG slice 2"),
            ("power cap", "hardware slowdown", "sync boost", "software thermal", "hardware thermal", "power brake"),
        ),
    ))  # fmt: skip
    assert log == ["open", "close"]
    off = _fake_nvml(nvmlDeviceGetMigMode=(0, 1), nvmlDeviceGetCurrentClocksThrottleReasons=0x3)
    monkeypatch.setitem(sys.modules, "pynvml", off)
    (gpu,) = _nvml.probe().gpus
    assert (gpu.mig, gpu.mig_slices, gpu.slowdowns) == (False, (), ())  # idle, and clocks that a user set, are no trouble

    def unsupported(*args):
        raise off.NVMLError_NotSupported

    for name in [
        name for name in vars(off) if name.startswith("nvmlDeviceGet") and name[13:] not in ("Count", "HandleByIndex", "UUID", "Name")
    ]:
        setattr(off, name, unsupported)
    assert _nvml.probe().gpus == (_nvml.NvmlGpu("GPU-1", "NVIDIA A100-SXM4-40GB"),)


def test_every_field_of_nvidia_smi_in_its_unit(monkeypatch):
    """All at once, by hand from the two lines above; what is asked for is one value a field."""
    asked = []

    def run(command, **options):
        asked.append((command, options["timeout"]))
        return subprocess.CompletedProcess(command, 0, _SMI, "")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    mib = 2**20
    assert _nvml.probe() == _nvml.Driver("580.95.05", None, None, (
        _nvml.NvmlGpu("GPU-ab", "NVIDIA H200", 143771 * mib, 143156 * mib, 345e6, 1.98e9, 3.201e9, None, "9.0", 76.12, 700.0, 27.0, False),
        _nvml.NvmlGpu(
            "GPU-cd", "Tesla T4", 15360 * mib, 15000 * mib, 300e6, 1.59e9, 5.001e9, None, "7.5", None, 70.0, 40.0, None,
            slowdowns=("power cap", "software thermal"),
        ),
    ))  # fmt: skip
    fields = (
        "uuid,name,memory.total,memory.free,clocks.sm,clocks.max.sm,clocks.max.memory,compute_cap,power.draw,power.limit,temperature.gpu,"
        "mig.mode.current,clocks_throttle_reasons.active,driver_version"
    )
    assert asked == [(["/bin/nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], 20)]
    on = (
        _SMI.splitlines()[0]
        .replace("Disabled", "Enabled")
        .replace("0x0000000000000001", "N/A")
        .replace("GPU-ab, NVIDIA H200", "N/A, [N/A]")
    )
    (gpu,) = _nvml.parse_smi(on).gpus
    assert (gpu.uuid, gpu.name, gpu.mig, gpu.slowdowns) == ("", "unknown NVIDIA GPU", True, ())


@pytest.mark.parametrize(("done", "error"), [
    ((9, "", "It has failed.\nmore"), "It has failed."), ((9, "out\n", "err"), "out"), ((6, "", ""), "nvidia-smi ended with code 6"),
])  # fmt: skip
def test_how_nvidia_smi_failed_is_its_first_line(monkeypatch, done, error):
    """Of either stream; its code where it says nothing; and no driver where there is no such program."""
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")

    def run(*args, check=False, **options):
        ended = subprocess.CompletedProcess(args, *done)
        if check:
            ended.check_returncode()
        return ended

    monkeypatch.setattr(subprocess, "run", run)
    assert _nvml._probe_smi() == _nvml.Driver(error=error)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert _nvml._probe_smi() == _nvml.Driver()
