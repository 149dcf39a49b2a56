"""Launches on a GPU: what they take and refuse, on a stand-in for the device, and on a real one."""

import contextlib
import sys
import types
from unittest import mock

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.errors import CompileError, DeviceError, InputError, KernelError
from gpulab.kernels import (
    cuda,
    cuda_launcher,
    float32,
    ladder,
    launch,
    launch_cuda,
    launcher,
    simulate,
)

ADD = """extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += x[i]; }"""
TILE, SHIFT = 2, 1
LOG = []
X = np.zeros(4, np.float32)
OVERLAP = np.zeros(8)
# Grids and blocks that no GPU takes.
EXTENTS = [(0, 32), (1, 0), (1, 1025), (1, (32, 64)), (1.5, 32), (1, (1, 1, 65)), ((1, 70_000), 32)]


def helper(v):
    return v * v + 1


def other_helper(v):
    return v + SHIFT


def scale(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


def with_helper(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = helper(x[i]) * TILE


def with_a_static_tile(x, factor, out):
    tile = cuda.shared.array(256, float32)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x] * factor
    out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


def frozen(function):
    """A copy of the function that keeps the present values of its globals, as a compiler does."""
    names, closure = dict(function.__globals__), function.__closure__
    return types.FunctionType(function.__code__, names, function.__name__, None, closure)


class Form:
    """Stands for a kernel that numba-cuda has compiled; it runs CPU tensors in the simulator."""

    specialized, configure, failure = False, None, None

    def __init__(self, function):
        self.py_func = function

    def specialize(self, *arguments):
        """Return the kernel, or raise the failure that a test has set."""
        if Form.failure is not None:
            raise Form.failure
        return self

    def __getitem__(self, asked):
        LOG.append((*asked[:2], asked[3]))
        options = {"dynamic_shared_bytes": asked[3]}
        return lambda *arguments: simulate(self.py_func, *asked[:2], *arguments, **options)


@pytest.fixture
def gpus(monkeypatch):
    """Two pretended GPUs: PyTorch reports them, and a copy of a tensor stands for one on a GPU.

    A stand-in replaces numba; its ``jit``, ``gpus`` and ``synchronize`` follow numba's reference.
    """
    LOG.clear()
    device, to = types.ModuleType("numba.cuda"), torch.Tensor.to
    device.is_available, device.as_cuda_array = lambda: True, lambda array: array
    device.gpus = [contextlib.nullcontext(), contextlib.nullcontext()]
    device.synchronize = lambda: LOG.append("waited")
    device.jit = lambda f=None, **_: Form(frozen(f)) if f else frozen
    numba = types.ModuleType("numba")
    numba.config, numba.cuda = types.SimpleNamespace(ENABLE_CUDASIM=0), device
    for name, module in (("numba", numba), ("numba.cuda", device), ("numba.cuda.fp16", device)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def copied(tensor, *where, **options):
        if not str(where[0]).startswith("cuda"):
            return to(tensor, *where, **options)
        LOG.append(f"{tuple(tensor.shape)} on {where[0]}")
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "to", copied)
    return numba


@pytest.mark.parametrize("make", [np.array, lambda x: torch.tensor(x, requires_grad=True)])
def test_the_same_call_works_as_with_simulate(gpus, make):
    """Host arrays are copied to one device and back; tensors that require gradients work too."""
    x, out = make(np.arange(70, dtype=np.float32)), np.zeros(70, np.float32)
    assert launch(scale, 3, (32, 1), x, 2.5, out, dynamic_shared_bytes=8) is None
    assert np.array_equal(out, np.arange(70, dtype=np.float32) * np.float32(2.5))
    assert LOG == ["(70,) on cuda:0"] * 2 + [((3, 1, 1), (32, 1, 1), 8), "waited"]
    launch(gpus.cuda.jit(scale), 3, 32, x, torch.tensor(2.0), out)  # wrapped by cuda.jit
    assert out.tolist() == [2 * i for i in range(70)]


def test_a_launcher_copies_once_and_launches_often(gpus):
    """Each call launches on the same device arrays; host arrays change only at ``fetch``.

    An array that is passed twice is copied once.
    """
    x = np.ones(4, np.float32)
    ready = launcher(scale, 1, 4, x, 3.0, x.reshape(2, 2).reshape(4))
    assert all(ready()[0] is ready.arrays[0] for _ in range(3))
    ready.wait()
    assert (x.tolist(), LOG.count("(4,) on cuda:0")) == ([1, 1, 1, 1], 1)
    ready.fetch()
    assert (x.tolist(), ready.__name__, len(ready.arrays)) == ([27, 27, 27, 27], "scale", 2)
    assert repr(ready).count("2 arrays") == 1
    two = launcher(scale, 1, 4, x, 1.0, x.reshape(2, 2)).arrays
    assert [tuple(array.shape) for array in two] == [(4,), (2, 2)]
    assert two[0].data_ptr() == two[1].data_ptr()


def test_arrays_stay_as_they_were_where_they_must(gpus):
    """A read-only array may be read; if a kernel writes to one, or fails, no array changes."""

    def wrong(out):
        out[0] = 1
        out[1] = "text"

    x, out = np.arange(4.0), np.zeros(4)
    x.flags.writeable = False
    launch(scale, 1, 4, x, 2.0, out)
    for error, asked in (
        (InputError, (scale, 1, 4, out, 2.0, x)),
        (KernelError, (wrong, 1, 4, out)),
    ):
        with pytest.raises(error):
            launch(*asked)
    assert (out.tolist(), x.tolist()) == ([0, 2, 4, 6], [0, 1, 2, 3])


def test_a_kernel_is_compiled_anew_when_a_name_that_it_uses_changes(gpus, monkeypatch):
    """A notebook may change TILE, or a helper, without running the kernel's cell again."""
    x, out = np.arange(4.0), np.zeros(4)
    changes = [("TILE", 2), ("TILE", 5), ("TILE", 5.5), ("helper", other_helper), ("SHIFT", 3)]
    for name, value in changes:
        monkeypatch.setitem(with_helper.__globals__, name, value)
        launch(with_helper, 1, 4, x, out)
        expected = (x + SHIFT if helper is other_helper else x * x + 1) * TILE
        assert out.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("kernel", "most"), [("scale", 48 * 1024), ("with_a_static_tile", 47 * 1024)]
)
def test_shared_memory_that_numba_cuda_does_not_ask_for_is_refused(gpus, kernel, most):
    """Without opting in, a kernel may have 48 KiB for all of its shared arrays together."""
    x = np.ones(4, np.float32)
    launch(globals()[kernel], 1, 4, x, 2.0, x, dynamic_shared_bytes=most)
    with pytest.raises(InputError, match=f"{most + 1:,}"):
        launcher(globals()[kernel], 1, 4, x, 2.0, x, dynamic_shared_bytes=most + 1)
    assert x.tolist() == [2.0] * 4


# What libraries report if the driver is older than the compiler: messages from issues of numba-cuda
# and CuPy (NVIDIA/numba-cuda 120 and 163, googlecolab/colabtools 5081), and of CUDA and Triton.
PTX, NUMBA, CUPY = (
    "ptxas application ptx input, line 9; fatal   : Unsupported .version 8.5; current is '8.4'",
    *("numba.cuda.cudadrv.driver", "cupy_backends.cuda.api.driver"),
)
TOO_NEW = [
    (NUMBA, f"[222] Call to cuLinkAddData results in UNKNOWN_CUDA_ERROR\n{PTX}", 12040),
    (NUMBA, "[222] Call to X results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION", 13000),
    ("cuda.bindings.nvjitlink", f"ERROR_PTX_COMPILE (4)\n{PTX}", 12080),
    (CUPY, "the provided PTX was compiled with an unsupported toolchain.", 13010),
    (CUPY, "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid", 12000),
    ("cupy_backends.cuda.api.runtime", "cudaErrorUnsupportedPtxVersion: unsupported", 12040),
]


@pytest.mark.parametrize(
    ("home", "error", "line", "words", "runs"),
    [
        ("numba.core.errors", KernelError, 7, "no such thing", 0),
        ("numba.core.errors", KernelError, None, "no such thing", 0),
        (NUMBA, KernelError, None, "no such thing", 0),
        ("cuda.core._utils.cuda_utils", KernelError, None, "no such thing", 0),  # of a launch
        ("elsewhere", Exception, None, "no such thing", 0),
        *((home, DeviceError, None, words, runs) for home, words, runs in TOO_NEW),
    ],
)
def test_errors_of_numba_are_the_kernels(gpus, monkeypatch, home, error, line, words, runs):
    """A compiler's error has the line, a driver's error says what to do; others pass unchanged.

    If the driver is too old, the advice is a compiler of the driver's CUDA version.
    """

    def kernel(x):
        x[0] = 1

    failure = type("TypingError", (Exception,), {"__module__": home})(words)
    failure.loc = types.SimpleNamespace(line=line)
    monkeypatch.setattr(Form, "failure", failure)
    nvml = mock.MagicMock(NVMLError=KeyError)
    nvml.nvmlDeviceGetCount.return_value, nvml.nvmlSystemGetCudaDriverVersion.return_value = 0, runs
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(error, match=r"no such thing|the driver") as caught:
        launch(kernel, 1, 4, X)
    assert (getattr(caught.value, "line", None), caught.value is failure) == (
        line,
        home == "elsewhere",
    )
    assert ("compile_python" in str(caught.value)) == home.endswith("errors")
    assert (
        f"{runs // 1000}.{runs % 1000 // 10}.*" in str(caught.value),
        "uninstall" in str(caught.value),
    ) == (runs > 0, 12000 <= runs < 13000)


def test_numba_that_cannot_launch_is_refused(gpus):
    """Numba is refused if it sees no GPU, or if its own simulator is switched on."""
    gpus.cuda.is_available = lambda: False
    for word in ("gpulab doctor", "NUMBA_ENABLE_CUDASIM"):
        with pytest.raises(DeviceError, match=word):
            launch(scale, 1, 4, X, 1.0, X)
        gpus.config.ENABLE_CUDASIM = 1


class OnGpu:
    """An array on a GPU that offers only its device and ``__cuda_array_interface__``."""

    def __init__(self, index=0, strides=None, shape=(4,)):
        self.device, facts = torch.device("cuda", index), {"data": (4096, False), "version": 3}
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "strides": strides,
            **facts,
        }


@pytest.fixture
def cupy(gpus, monkeypatch):
    """CuPy with mocks that only record how its modules, devices, streams and arrays are used."""
    real, noted = pytest.importorskip("cupy"), mock.MagicMock()
    noted.kernel = noted.RawModule.return_value.get_function.return_value
    noted.kernel.shared_size_bytes = 0
    for place, name in (
        (real, "RawModule"),
        (real, "asarray"),
        (real.cuda, "Device"),
        (real.cuda, "Stream"),
    ):
        monkeypatch.setattr(place, name, getattr(noted, name))
    return noted


@pytest.mark.parametrize(
    ("static", "dynamic", "limit"), [(0, 49152, None), (0, 49153, 49153), (8192, 40961, 40961)]
)
def test_cuda_is_launched_on_the_device_of_its_arrays(cupy, static, dynamic, limit):
    """Grid, block, arguments and shared bytes are passed on; then the arrays' GPU is waited for."""
    x, n, kernel = OnGpu(1), np.int32(4), cupy.kernel
    kernel.shared_size_bytes, kernel.max_dynamic_shared_size_bytes = static, None
    launch_cuda(ADD, "add", 2, 32, x, x, n, dynamic_shared_bytes=dynamic, options=["-lineinfo"])
    values = (*[cupy.asarray.return_value] * 2, n)
    kernel.assert_called_once_with((2, 1, 1), (32, 1, 1), values, shared_mem=dynamic)
    assert kernel.max_dynamic_shared_size_bytes == limit
    assert {call.args for call in cupy.Device.call_args_list} == {(1,)}
    cupy.Device.return_value.synchronize.assert_called_once_with()
    asked = cupy.RawModule.call_args.kwargs
    assert (asked["code"], asked["options"][-1]) == (ADD, "-lineinfo")
    with pytest.raises(DeviceError, match="cuda:0, cuda:1"):  # a kernel runs on one device
        cuda_launcher(ADD, "add", 1, 32, OnGpu(0), x, n)
    for error, words in ((KernelError, "too old"), (DeviceError, "device kernel image is invalid")):
        cupy.RawModule.side_effect = type("E", (Exception,), {"__module__": "cupy.cuda"})(words)
        with pytest.raises(error, match=words):
            cuda_launcher(ADD, "add", 1, 32, x, x, n)


G = "__global__ void g(float* x) { if (x) { x[0] = 1; } }"


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (f'extern "C"\n{G}', True),
        (G, False),
        (f'extern "C" __global__ void f(float* x) {{}}\n{G}', False),  # of another kernel
        (f'// no extern "C" here\n{G}', False),
        (
            f'extern "C" {{\n__global__ void f(float* x) {{}}\n{G}\n}}',
            True,
        ),  # a block around several
        (f'extern "C" {{ __global__ void f(float* x) {{}} }}\n{G}', False),
        ('#define K(n) extern "C" __global__ void n(float* x) {}\nK(g)', True),  # by a macro
        (f"#include <cuda_fp16.h>\n{G}", False),
    ],
)
def test_a_kernel_is_found_by_its_name_in_the_code(cupy, source, plain):
    """A C++ name is mangled: CuPy needs an expression where the kernel is not extern "C"."""
    cuda_launcher(source, "g", 1, 32, OnGpu())
    asked = cupy.RawModule.call_args.kwargs
    assert asked["name_expressions"] == (None if plain else ["g"])
    assert any(one.startswith("-I") for one in asked["options"]) == ("#include" in source)


# Whether arguments have the kernel's size; each argument begins at a multiple of its own size.
@pytest.mark.parametrize(
    ("parameters", "values", "fits"),
    [
        ("const float* x, float* y, int n", (OnGpu(), OnGpu(), np.int32(4)), True),
        ("const float* x, float* y, int n", (OnGpu(), OnGpu()), False),
        ("const float* x, float* y, int n", (OnGpu(), OnGpu(), np.int64(4)), False),
        (
            "int n, float* x, char c, double d",
            (np.int32(1), OnGpu(), np.int8(1), np.float64(2)),
            True,
        ),
        ("float* x, float2 a, int n", (OnGpu(), np.complex64(1), np.int32(1)), True),
        ("int n, double2 a", (np.int32(1), np.complex128(1)), True),
        ("float* x, int n", (OnGpu(), 4), False),  # a Python number has no size
        ("float* x", (OnGpu(0, (8,)),), False),  # with gaps
        ("float* x", (OnGpu(0, (16, 4), (4, 4)),), True),
        ("float* x", (OnGpu(0, (4, 16), (4, 4)),), False),
    ],
)
def test_arguments_of_cuda_must_be_what_the_kernel_reads(cupy, parameters, values, fits):
    """CUDA would read past arguments that are too few or too small."""
    with contextlib.nullcontext() if fits else pytest.raises(InputError):
        cuda_launcher(f'extern "C" __global__ void k({parameters}) {{}}', "k", 1, 32, *values)


@pytest.mark.parametrize(
    ("error", "call", "value"),
    [
        *((InputError, lambda call=call, at=at: call(scale, *at, X, 1.0, X), "expected")
          for call in (launch, launcher, simulate)
          for at in EXTENTS),
        (InputError, lambda: launch(scale, 1, 4, X, 1.0), "3 arguments"),
        (InputError, lambda: launch(scale, 1, 4, [1, 2], 1.0, X), "x="),
        (InputError, lambda: launch(scale, 1, 4, X, None, X), "factor=None"),
        (InputError, lambda: launch(scale, 1, 4, np.zeros((4, 4))[:, 1], 1.0, X), "contiguous"),
        (InputError, lambda: launch(scale, 1, 4, np.array(["a"]), 1.0, X), "numbers"),
        (InputError, lambda: launch(scale, 1, 4, OVERLAP[:6], 1.0, OVERLAP[2:]), "overlap"),
        (InputError, lambda: launch(scale, 1, 4, OVERLAP, 1.0, OVERLAP.view(np.int64)), "overlap"),
        (InputError, lambda: launch(scale, 1, 4, torch.zeros(4, device="meta"), 1.0, X), "meta"),
        (InputError, lambda: launch(scale, 1, 4, torch.zeros(4).bfloat16(), 1.0, X), "bfloat16"),
        (InputError, lambda: launch(scale, 1, 4, X, 1.0, X, dynamic_shared_bytes=-1), "-1"),
        (InputError, lambda: launch(np.sin, 1, 4), "function"),
        (InputError, lambda: launch_cuda(ADD, 5, 1, 32, X), "name=5"),
        (InputError, lambda: launch_cuda(ADD, "add", 0, 32, X, X, np.int32(4)), "grid=0"),
        (InputError, lambda: launch_cuda(ADD, "add", 1, 32, X, options="-w"), "options"),
        (DeviceError, lambda: launch_cuda(ADD, "add", 1, 32, X, X, np.int32(4)), "no CUDA device"),
        (DeviceError, lambda: launch(scale, 1, 4, X, 1.0, X), "simulate"),
        (DeviceError, lambda: launcher(scale, 1, 4, X, 1.0, X), "simulate"),
        (KernelError, lambda: launch_cuda(ADD, "ad", 1, 32, X, X, np.int32(4)), "add"),
        (CompileError, lambda: launch_cuda(ADD.replace("int", "it"), "add", 1, 32, X), "line 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_refused(error, call, value):
    """Wrong grids, blocks, arguments and sources are refused, and any launch without a GPU."""
    if error is DeviceError and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(error, match=value):
        call()


# -- on a GPU: make gpu-check ----------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [*ladder.RUNGS, *ladder.CUDA_RUNGS], ids=lambda rung: rung.name)
def test_each_rung_is_right_and_measured_on_a_gpu(rung):
    """Python through numba-cuda and CUDA C++ through CuPy give NumPy's result, and are measured."""
    n, plain = rung.sizes[0], not rung.source
    for options in rung.options or (None,):
        arguments = rung.arguments(n)
        expected = rung.expected(*arguments)
        make, *text = (launcher,) if plain else (cuda_launcher, rung.source)
        asked = {} if plain else {"options": options, "dynamic_shared_bytes": rung.shared_bytes}
        ready = make(*text, rung.kernel, *rung.launch(n), *arguments, **asked)
        ready()
        ready.fetch()
        found, room = arguments[rung.result], 10 * rung.tolerance
        np.testing.assert_allclose(found, expected, rtol=0, atol=room * np.abs(expected).max())
        assert gl.measure(ready, nbytes=rung.nbytes(n), deadline=0.3).device.startswith("cuda")


@pytest.mark.gpu
@pytest.mark.filterwarnings("error:.*Grid size")  # a few blocks are no mistake in an example
def test_arrays_on_the_gpu_are_used_in_place():
    """CUDA tensors and CuPy arrays change without a copy or a warning; a refused kernel changes
    nothing.
    """

    def wrong(out):
        out[0] = undefined_name  # noqa: F821

    x, out = torch.arange(100.0, device="cuda"), torch.zeros(100, device="cuda")
    there, host = pytest.importorskip("cupy").ones(100, "float32"), np.zeros(4, np.float32)
    launch(scale, 4, 32, x, np.float32(2), out)
    launch_cuda(ADD, "add", 4, 32, x, there, np.int32(100))
    template = "template <int N> __global__ void k(float* x) { x[threadIdx.x] *= N; }"
    launch_cuda(template, "k<3>", 1, 100, there)
    launch(with_helper, 1, 4, np.arange(4, dtype=np.float32), host)
    with pytest.raises(KernelError):
        launch(wrong, 1, 4, host)
    assert torch.equal(out, 2 * x)
    assert gl.to_host(there).tolist() == [3 * (i + 1) for i in range(100)]
    assert host.tolist() == [(i * i + 1) * TILE for i in range(4)]
