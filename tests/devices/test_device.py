"""Finding a device, and what it says about itself."""

import platform
import types

import pytest
import torch

from gpulab import devices
from gpulab.devices import Device, _device
from gpulab.errors import DeviceError, InputError


def _play(monkeypatch, kind, count=2):
    """Play a machine with accelerators of a kind."""
    monkeypatch.setattr(_device, "accelerator_kind", lambda: kind)
    monkeypatch.setattr(_device, "accelerator_count", lambda k: count if k else 0)


def test_the_ladder_ends_at_the_cpu(monkeypatch):
    """Without an accelerator the CPU is the default; with one the first accelerator is."""
    _play(monkeypatch, None)
    assert devices.default() == Device("cpu")
    _play(monkeypatch, "cuda")
    assert devices.default() == Device("cuda", 0)
    assert [str(d) for d in devices.available()] == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("cuda", "cuda:1", Device("cuda", 1)),
        ("cuda", " GPU ", Device("cuda", 0)),
        ("cuda", torch.device("cuda", 1), Device("cuda", 1)),
        ("cuda", torch.device("cuda"), Device("cuda", 0)),
        ("rocm", "cuda", Device("rocm", 0)),
        ("rocm", "rocm:1", Device("rocm", 1)),
        ("mps", "mps", Device("mps", 0)),
        ("xpu", "xpu:0", Device("xpu", 0)),
        ("cuda", "CPU", Device("cpu")),
        ("cuda", Device("cpu"), Device("cpu")),
        ("cuda", torch.device("cpu"), Device("cpu")),
    ],
)
def test_a_device_is_found_by_any_of_its_names(monkeypatch, kind, name, found):
    """PyTorch's names, our own and "gpu" all lead there; ROCm answers to cuda as PyTorch's does."""
    _play(monkeypatch, kind)
    assert devices.find(name) == found


@pytest.mark.parametrize("name", ["cuda:7", "tpu", "", "cuda:-1", "cpu:1", "cuda:1.5"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch, name):
    """The sentence lists what exists and shows CUDA_VISIBLE_DEVICES where it is set."""
    _play(monkeypatch, "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    with pytest.raises(DeviceError, match=r"CUDA_VISIBLE_DEVICES='3,4'.*expected one of: cpu, cuda:0, cuda:1"):
        devices.find(name)


@pytest.mark.parametrize("thing", [0, 1.5, [], b"cpu", object()])
def test_what_names_no_device_is_an_input_error(thing):
    """Numbers and foreign objects are refused by type."""
    with pytest.raises(InputError, match=type(thing).__name__):
        devices.find(thing)


def test_the_cpu_says_its_name_and_memory():
    """The CPU's name has its core count; what is free is no more than there is."""
    cpu = devices.find("cpu")
    assert "core" in cpu.name
    assert 0 < cpu.free_bytes <= cpu.memory_bytes
    assert cpu.synchronize() is None


def test_a_device_that_vanishes_becomes_one_sentence(monkeypatch):
    """Waiting for, naming and asking a lost GPU each raise DeviceError."""

    def lost(*args):
        raise RuntimeError("CUDA error: device lost\nCompile with TORCH_USE_CUDA_DSA")

    cuda = types.SimpleNamespace(synchronize=lost, get_device_name=lost, mem_get_info=lost)
    monkeypatch.setattr(_device, "_torch", lambda: types.SimpleNamespace(cuda=cuda))
    gpu = Device("cuda", 0)
    for ask in (gpu.synchronize, lambda: gpu.name, lambda: gpu.free_bytes):
        with pytest.raises(DeviceError, match=r"cuda:0.*stopped answering \(CUDA error: device lost\)") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_an_error_that_is_not_the_devices_passes_through(monkeypatch):
    """Synchronize does not dress up a bug as a lost device."""

    def wrong(*args):
        raise RuntimeError("expected 2 arguments")

    monkeypatch.setattr(_device, "_torch", lambda: types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=wrong)))
    with pytest.raises(RuntimeError, match="expected 2 arguments"):
        Device("cuda").synchronize()


def test_the_environment_stamp_says_where_a_number_was_made():
    """Date in UTC, system, processor, cores, memory, versions, and the command that was given."""
    stamp = devices.environment("cpu", command="make bench")
    assert stamp.date.endswith("+00:00")
    assert stamp.device_kind == "cpu"
    assert stamp.libraries["torch"]
    assert stamp.command == "make bench"
    assert stamp.memory_bytes > 2**20


def test_gathered_facts_survive_json_and_find_this_torch():
    """What this machine says is plain data; torch's version is the one that is loaded."""
    facts = devices.gather()
    assert devices.Facts.from_dict(facts.to_dict()) == facts
    assert facts.torch.version == torch.__version__
    assert facts.libraries["numpy"]


def test_a_broken_torch_is_a_fact_and_not_an_exception(monkeypatch):
    """An import that works and a driver that fails leave their sentence in the facts, and the machine is still reported."""

    def broken():
        raise RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment")

    monkeypatch.setattr(_device, "accelerator_kind", broken)
    facts = devices.gather()
    assert "CUDA unknown error" in facts.torch.error
    assert "torch-broken" in {problem.code for problem in devices.diagnose(facts)}


def test_a_gpu_that_vanishes_while_the_facts_are_gathered_is_reported(monkeypatch):
    """machine() does not fail for it."""
    from gpulab.devices import _facts

    def vanish(kind, index):
        raise DeviceError("asking cuda:0 for its memory: the device stopped answering.")

    monkeypatch.setattr(_facts, "probe_torch", lambda: _facts.Torch("2.11.0", None, "13.0", None, "cuda"))
    monkeypatch.setattr(_device, "accelerator_count", lambda kind: 1 if kind else 0)
    monkeypatch.setattr(_facts, "_seen_by_torch", vanish)
    assert "stopped answering" in _facts.gather().torch.error


def test_each_kind_of_device_is_waited_for_by_its_own_library(monkeypatch):
    """PyTorch's call for the kind, with the number where it has several; CuPy's where CuPy alone is loaded; none of them for a CPU."""
    waited = []

    def library(name):
        return types.SimpleNamespace(synchronize=lambda *index: waited.append((name, *index)))

    torches = types.SimpleNamespace(cuda=library("cuda"), xpu=library("xpu"), mps=library("mps"))
    monkeypatch.setattr(_device, "_torch", lambda: torches)
    for device in (Device("cuda", 1), Device("rocm", 2), Device("xpu", 1), Device("mps"), Device("cpu")):
        device.synchronize()
    assert waited == [("cuda", 1), ("cuda", 2), ("xpu", 1), ("mps",)]
    waited.clear()
    place = types.SimpleNamespace(Device=lambda index: types.SimpleNamespace(synchronize=lambda: waited.append(("cupy", index))))
    monkeypatch.setattr(_device.sys, "modules", {"cupy": types.SimpleNamespace(cuda=place)})
    Device("cuda", 1).synchronize()
    Device("xpu", 1).synchronize()
    assert waited == [("cupy", 1), ("xpu", 1)]


def test_each_kind_of_device_is_asked_for_its_own_memory(monkeypatch):
    """(Free, in total): CUDA and newer XPU say both; Metal recommends a most, of which what is taken is gone; older XPU a total alone."""
    both = types.SimpleNamespace(mem_get_info=lambda index: (30 + index, 40), get_device_name=lambda index: f"GPU {index}")
    metal = types.SimpleNamespace(recommended_max_memory=lambda: 100, driver_allocated_memory=lambda: 30)
    old = types.SimpleNamespace(
        get_device_properties=lambda index: types.SimpleNamespace(total_memory=64 + index), get_device_name=lambda index: f"Xe {index}"
    )
    torches = types.SimpleNamespace(cuda=both, mps=metal, xpu=both)
    monkeypatch.setattr(_device, "_torch", lambda: torches)
    found = [(d.free_bytes, d.memory_bytes) for d in (Device("cuda", 1), Device("rocm"), Device("mps"), Device("xpu", 2))]
    assert found == [(31, 40), (30, 40), (70, 100), (32, 40)]
    metal.driver_allocated_memory = lambda: 130
    assert Device("mps").free_bytes == 0
    torches.xpu = old
    assert (Device("xpu", 1).free_bytes, Device("xpu", 1).memory_bytes) == (None, 65)
    assert [Device("cuda", 1).name, Device("rocm").name, Device("xpu", 1).name] == ["GPU 1", "GPU 0", "Xe 1"]
    assert Device("mps").name.startswith("Apple GPU (")


@pytest.mark.parametrize(
    ("cuda", "hip", "xpu", "mps", "kind", "count"),
    [(True, None, True, True, "cuda", 3), (True, "6.0", True, True, "rocm", 3), (False, None, True, True, "xpu", 2),
     (False, None, False, True, "mps", 1), (False, None, None, False, None, 0)],
)  # fmt: skip
def test_the_ladder_of_accelerators(monkeypatch, cuda, hip, xpu, mps, kind, count):
    """CUDA or ROCm, then XPU, then MPS, of which there is one; a PyTorch without XPU is not asked for it."""
    torches = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: cuda, device_count=lambda: 3),
        version=types.SimpleNamespace(hip=hip),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: mps)),
    )
    if xpu is not None:
        torches.xpu = types.SimpleNamespace(is_available=lambda: xpu, device_count=lambda: 2)
    monkeypatch.setattr(_device, "_torch", lambda: torches)
    assert _device.accelerator_kind() == kind
    assert _device.accelerator_count(kind) == count


def test_a_gpu_is_what_pytorch_says_and_what_the_driver_adds(monkeypatch):
    """By hand: kilohertz become hertz, PyTorch's view counts where both speak, and a GPU that only the driver sees comes last."""
    from gpulab.devices import _facts, _nvml

    properties = types.SimpleNamespace(
        total_memory=100, major=9, minor=0, multi_processor_count=132, clock_rate=1_980_000, memory_clock_rate=3_201_000,
        memory_bus_width=6144, L2_cache_size=60, uuid="GPU-ab",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(_device, "accelerator_count", lambda kind: 1 if kind else 0)
    monkeypatch.setattr(Device, "name", property(lambda self: "NVIDIA H200"))
    monkeypatch.setattr(Device, "free_bytes", property(lambda self: 90))
    here = _nvml.NvmlGpu("GPU-ab", "driver's name", memory_bytes=200, clock_hz=345e6, power_watts=80.0, mig=False)
    other = _nvml.NvmlGpu("GPU-cd", "Tesla T4", memory_bytes=16, compute_capability="7.5")
    both = _facts._accelerators(_facts.Torch("2.11.0", kind="cuda"), _nvml.Driver("580.1", "13.0", None, (other, here)))
    assert both == (
        _facts.Accelerator(
            "cuda:0", "NVIDIA H200", "cuda", 100, 90, "9.0", 132, 345e6, 1.98e9, 3.201e9, 6144, 60, mig=False, power_watts=80.0
        ),
        _facts.Accelerator(None, "Tesla T4", "cuda", 16, compute_capability="7.5"),
    )
    slice_of_it = _nvml.NvmlGpu("GPU-ef", "NVIDIA H200", mig=True)  # a MIG slice has a UUID of its own: with one GPU it is a part of that
    (found,) = _facts._accelerators(_facts.Torch("2.11.0", kind="cuda"), _nvml.Driver("580.1", "13.0", None, (slice_of_it,)))
    assert (found.device, found.mig) == ("cuda:0", True)
    seen = _facts._accelerators(_facts.Torch("2.11.0", kind="cuda"), _nvml.Driver("580.1", "13.0", None, (slice_of_it, other)))
    assert [(gpu.device, gpu.mig) for gpu in seen] == [("cuda:0", None), (None, True), (None, None)]
    assert [gpu.device for gpu in _facts._accelerators(_facts.Torch("2.11.0"), _nvml.Driver("580.1", "13.0", None, (other,)))] == [None]


def test_gpus_of_other_makers_are_read_by_their_own_names(monkeypatch):
    """AMD's architecture stands for the capability, Intel's Xe cores for the multiprocessors, and Metal says its memory alone."""
    from gpulab.devices import _facts

    monkeypatch.setattr(Device, "name", property(lambda self: "X"))
    monkeypatch.setattr(Device, "free_bytes", property(lambda self: 5))
    monkeypatch.setattr(Device, "memory_bytes", property(lambda self: 8))
    amd = types.SimpleNamespace(gcnArchName="gfx942", major=9, minor=4, multi_processor_count=304, total_memory=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: amd)
    assert _facts._seen_by_torch("rocm", 0) == (_facts.Accelerator("cuda:0", "X", "rocm", 7, 5, "gfx942", 304), "")
    intel = types.SimpleNamespace(gpu_subslice_count=56, total_memory=7)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: intel)
    assert _facts._seen_by_torch("xpu", 1) == (_facts.Accelerator("xpu:1", "X", "xpu", 7, 5, None, 56), "")
    assert _facts._seen_by_torch("mps", 0) == (_facts.Accelerator("mps:0", "X", "mps", 8, 5), "")


@pytest.mark.gpu
class TestOnAGpu:
    """What needs a CUDA device."""

    def test_the_gpu_is_reported_with_its_figures(self):
        """Name, memory, capability, multiprocessors and clocks agree with what torch says."""
        gpu = devices.machine().accelerators[0]
        properties = torch.cuda.get_device_properties(0)
        assert gpu.name == properties.name
        assert gpu.multiprocessors == properties.multi_processor_count
        assert gpu.compute_capability == f"{properties.major}.{properties.minor}"
        assert 0 < gpu.free_bytes <= gpu.memory_bytes
        assert 1e8 < gpu.max_clock_hz < 5e9
        assert gpu.l2_bytes == properties.L2_cache_size

    def test_nothing_has_to_be_mended_on_a_good_machine(self):
        """A GPU machine whose torch computes has no error about driver or torch."""
        errors = {p.code for p in devices.machine().problems if p.severity == "error"}
        assert not errors & {"no-driver", "torch-cpu-build", "driver-too-old", "gpu-unusable", "gpu-architecture", "driver-broken"}


@pytest.mark.parametrize(("name", "hip", "device"), [
    ("cpu", None, Device("cpu")), ("cuda:1", None, Device("cuda", 1)), ("cuda", "6.0", Device("rocm")),
    ("cuda:2", "6.0", Device("rocm", 2)),
    ("xpu:3", "6.0", Device("xpu", 3)), ("mps", None, Device("mps")), ("rocm:1", None, Device("rocm", 1)),
])  # fmt: skip
def test_an_arrays_device_is_known_by_its_name(monkeypatch, name, hip, device):
    """Without asking the machine; a ROCm build calls its GPUs cuda."""
    monkeypatch.setitem(_device.sys.modules, "torch", types.SimpleNamespace(version=types.SimpleNamespace(hip=hip)))
    assert devices.of_name(name) == device
    monkeypatch.delitem(_device.sys.modules, "torch")
    assert devices.of_name("cuda:4") == Device("cuda", 4)


def test_an_array_without_data_is_on_no_device():
    """One sentence with the name."""
    with pytest.raises(
        InputError, match=r"^device_of: an array on 'meta' has no data that gpulab can use; expected one on cpu, cuda, xpu or"
    ):
        devices.of_name("meta")


def test_the_stamp_of_a_gpu_has_its_driver(monkeypatch):
    """NVIDIA's alone; the rest is the system's own word for each."""
    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    monkeypatch.setattr(_device._host, "nvidia_driver_version", lambda: "580.1")
    for kind, driver in (("cuda", "580.1"), ("rocm", None), ("mps", None)):
        _play(monkeypatch, kind)
        stamp = devices.environment(command="x")
        assert (stamp.device, stamp.device_kind, stamp.driver) == (f"a {kind}", kind, driver)
        assert stamp.system == f"{platform.system()} {platform.release()} {platform.machine()}"
        assert (stamp.python, stamp.command, devices.environment().command) == (platform.python_version(), "x", None)
    assert devices.environment("cpu").driver is None


def test_the_cpus_name_counts_its_cores(monkeypatch):
    """One core, or several."""
    monkeypatch.setattr(_device._host, "processor_name", lambda: "A CPU")
    for cores, name in ((1, "A CPU (1 core)"), (8, "A CPU (8 cores)")):
        monkeypatch.setattr(_device._host, "usable_cores", lambda cores=cores: cores)
        assert Device("cpu").name == name


def test_what_comes_from_a_lost_device_keeps_its_cause(monkeypatch):
    """The library's own error is the cause, and memory that ran out is told as such."""
    error = RuntimeError("CUDA out of memory")
    lost = types.SimpleNamespace(synchronize=lambda index: (_ for _ in ()).throw(error))
    monkeypatch.setattr(_device, "_torch", lambda: types.SimpleNamespace(cuda=lost))
    with pytest.raises(MemoryError, match=r"^waiting for cuda:0: the memory") as caught:
        Device("cuda").synchronize()
    assert caught.value.__cause__ is error
