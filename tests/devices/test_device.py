"""Finding a device, and what it says about itself."""

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
