"""Library errors in one sentence of ours."""

import pytest
import torch

from gpulab.devices import guard, translate
from gpulab.errors import DeviceError, InputError, OutOfMemoryError


def _named(name, words, parent=RuntimeError):
    """An exception of a library that is not installed here, known by its name."""
    return type(name, (parent,), {})(words)


_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    _named("OutOfMemoryError", "Out of memory allocating 1,000 bytes", MemoryError),  # cupy.cuda.memory
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    _named("CUDARuntimeError", "cudaErrorMemoryAllocation: out of memory"),
]
_DEVICE = [
    RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"),
    _named("AcceleratorError", "CUDA error: unspecified launch failure"),
    _named("CUDARuntimeError", "cudaErrorNoDevice: no CUDA-capable device is detected"),
    _named("NVMLError_GpuIsLost", "GPU is lost", type("NVMLError", (Exception,), {})),
    RuntimeError("No CUDA GPUs are available"),
]


@pytest.mark.parametrize("error", _MEMORY, ids=str)
def test_every_way_to_run_out_of_memory_is_one_error(error):
    """torch, CuPy, numpy and the CPU allocator all end in OutOfMemoryError that says what was being done."""
    ours = translate(error, "copying 2 GiB")
    assert isinstance(ours, OutOfMemoryError)
    assert isinstance(ours, MemoryError)
    assert str(ours).startswith("copying 2 GiB: ")
    assert "\n" not in str(ours)


@pytest.mark.parametrize("error", _DEVICE, ids=lambda e: type(e).__name__ + str(e)[:20])
def test_every_way_to_lose_a_device_is_one_error(error):
    """A device that stopped answering becomes DeviceError with the first line of the library's words."""
    ours = translate(error, "waiting for cuda:0")
    assert isinstance(ours, DeviceError)
    assert str(error).splitlines()[0].rstrip(".") in str(ours)
    assert "\n" not in str(ours)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: invalid argument",
        "CUDA error: invalid configuration argument",
        "CUDA error: too many resources requested for launch",
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle)`",
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(handle)`",
        "HIP error: invalid argument",
    ],
)
def test_a_call_that_is_refused_needs_no_restart(words):
    """CUDA's manual (Runtime API, cudaError) asks for a new process after faults inside a kernel, and after none of these."""
    ours = translate(RuntimeError(words + "\nCUDA kernel errors might be asynchronously reported"), "launching scale")
    assert isinstance(ours, DeviceError)
    assert f"launching scale: the device refused the call ({words})" in str(ours)
    assert "restart" not in str(ours)
    assert "\n" not in str(ours)


@pytest.mark.parametrize(
    "words",
    ["an illegal memory access was encountered", "misaligned address", "device-side assert triggered", "unspecified launch failure"],
)
def test_a_fault_inside_a_kernel_needs_a_restart(words):
    """After these the manual says that the process must be ended and started again."""
    assert "restart the kernel" in str(translate(RuntimeError(f"CUDA error: {words}"), "work"))


@pytest.mark.parametrize(
    "error", [ValueError("out of memory"), RuntimeError("shapes do not match"), KeyError("cuda error"), TypeError("x")]
)
def test_errors_of_the_caller_stay_what_they_are(error):
    """A wrong shape is no lost device, and words in a ValueError do not make it one."""
    assert translate(error, "work") is None
    with pytest.raises(type(error)) as caught, guard("work"):
        raise error
    assert caught.value is error


def test_errors_of_ours_pass_unchanged_and_causes_are_kept():
    """The guard neither wraps our own errors nor hides what the library said; Ctrl-C passes through."""
    ours = InputError("x")
    with pytest.raises(InputError) as caught, guard("work"):
        raise ours
    assert caught.value is ours
    assert ours.__cause__ is None
    with pytest.raises(OutOfMemoryError) as caught, guard("work"):
        raise _MEMORY[0]
    assert caught.value.__cause__ is _MEMORY[0]
    with pytest.raises(KeyboardInterrupt), guard("work"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("length", "told"), [(120, "x" * 120), (121, "x" * 117 + "...")])
def test_a_librarys_words_are_cut_at_120(length, told):
    """The first line that says something, without the stop at its end; its type where it says nothing."""
    error = _named("AcceleratorError", "\n  " + "x" * length + ".\nmore")
    assert f"stopped answering ({told});" in str(translate(error, "work"))
    assert "stopped answering (AcceleratorError);" in str(translate(_named("AcceleratorError", " \n"), "work"))
