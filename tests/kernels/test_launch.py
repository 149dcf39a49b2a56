"""What a launch on a GPU is given, and what comes back: with a device that is the microscope, since the course's machines have no GPU."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from gpulab.devices._nvml import Driver
from gpulab.errors import CompileError, DeviceError, InputError, KernelError, MissingLibraryError
from gpulab.kernels import (
    _launch,
    _launch_arguments,
    _launch_cuda,
    _launch_numba,
    compile_cuda,
    cuda,
    cuda_launcher,
    float32,
    launch,
    launch_cuda,
    launcher,
    simulate,
)

CUDA_ADD = """extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += x[i]; }"""


def scale(x, factor, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor


def helper(v):
    return v * v + 1


def with_helper(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = helper(x[i])


class Microscope:
    """A device that is not the host: arrays on it are copies, and the kernel runs on these under ``simulate``."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.placed: list[np.ndarray] = []
        self.fetched = self.runs = self.waits = 0

    def place(self, array: np.ndarray) -> Any:
        """Copy."""
        self.placed.append(array.copy())
        return self.placed[-1]

    def fetch(self, there: Any) -> np.ndarray:
        """Hand back."""
        self.fetched += 1
        return there

    def ready(self, grid: Any, block: Any, shared_bytes: int, arguments: list[Any]) -> Callable[[], None]:
        """Keep what was asked; a run is a simulation."""
        self.extents, self.arguments = (grid, block, shared_bytes), arguments

        def run() -> None:
            self.runs += 1
            simulate(self.kernel, grid, block, *arguments, dynamic_shared_bytes=shared_bytes)

        return run

    def wait(self) -> None:
        """Count."""
        self.waits += 1


@pytest.fixture
def microscope(monkeypatch: pytest.MonkeyPatch) -> list[Microscope]:
    """Launches go to a Microscope; the list holds those made so far."""
    made: list[Microscope] = []

    def backend(who: str, kernel: Any, *rest: Any) -> Microscope:
        made.append(Microscope(kernel))
        return made[-1]

    monkeypatch.setattr(_launch, "the_device", lambda who, arrays: 0)
    monkeypatch.setattr(_launch_cuda, "the_device", lambda who, arrays: 0)
    monkeypatch.setattr(_launch, "_backend", backend)
    monkeypatch.setattr(_launch_cuda, "_backend", backend)
    return made


def test_the_same_call_works_as_with_simulate(microscope: list[Microscope]):
    """Host arrays travel there and back, so that what simulate changes in place, launch changes in place."""
    x = np.arange(70, dtype=np.float32)
    out, reference = np.zeros(70, np.float32), np.zeros(70, np.float32)
    assert launch(scale, 3, 32, x, 2.5, out) is None
    simulate(scale, 3, 32, x, 2.5, reference)
    assert np.array_equal(out, reference)
    assert np.array_equal(out, x * np.float32(2.5))
    assert microscope[0].extents == ((3, 1, 1), (32, 1, 1), 0)
    assert microscope[0].waits >= 1


def test_tensors_in_main_memory_travel_as_arrays_do(microscope: list[Microscope]):
    """A CPU tensor changes in place, and one that takes part in autograd is taken by its values."""
    x, out = torch.arange(5.0, requires_grad=True), torch.zeros(5)
    launch(scale, 1, 32, x, 3.0, out)
    assert out.tolist() == [0, 3, 6, 9, 12]


def test_an_array_given_twice_is_one_array_on_the_gpu(microscope: list[Microscope]):
    """The same array as input and output, under two shapes as well, travels once."""
    x = np.arange(6, dtype=np.float32)
    launch(scale, 1, 32, x, 2.0, x)
    assert x.tolist() == [0, 2, 4, 6, 8, 10]
    assert len(microscope[0].placed) == 1


def test_numbers_reach_the_kernel_as_they_are(microscope: list[Microscope]):
    """NumPy numbers keep their type, arrays and tensors without dimensions count as numbers."""
    for number in (2, 2.0, True, np.float32(2), np.array(2.0), torch.tensor(2.0)):
        x, out = np.arange(4.0), np.zeros(4)
        launch(scale, 1, 4, x, number, out)
        assert np.array_equal(out, x * float(number))
    assert isinstance(microscope[3].arguments[1], np.float32)


def test_device_arrays_are_used_in_place(microscope: list[Microscope]):
    """What shows a CUDA array interface is handed on as it is, and not fetched."""

    class Foreign:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (0, False), "version": 2}

    out, there = np.zeros(4, np.float32), Foreign()
    launcher(scale, 1, 4, there, 2.0, out)
    assert microscope[0].arguments[0] is there
    assert len(microscope[0].placed) == 1


def test_a_launcher_copies_once_and_launches_often(microscope: list[Microscope]):
    """Each call launches on the same arrays; the host's change at fetch alone."""
    x = np.ones(4, np.float32)
    ready = launcher(scale, 1, 4, x, 3.0, x)
    assert ready.__name__ == "scale"
    for _ in range(3):
        assert ready()[0] is ready.arrays[0]
    assert x.tolist() == [1, 1, 1, 1]
    ready.fetch()
    assert x.tolist() == [27, 27, 27, 27]
    assert (microscope[0].runs, len(microscope[0].placed)) == (3, 1)


def test_read_only_arrays_may_be_read(microscope: list[Microscope]):
    """A read-only input is copied there and not back; one that the kernel writes is refused before anything is copied."""
    x, out = np.arange(4.0), np.zeros(4)
    x.flags.writeable = False
    launch(scale, 1, 4, x, 2.0, out)
    assert out.tolist() == [0, 2, 4, 6]
    out.flags.writeable = False
    with pytest.raises(InputError, match="launch: out is read-only and scale writes to it"):
        launch(scale, 1, 4, x, 2.0, out)
    assert len(microscope) == 1


def test_an_array_stays_as_it_was_when_the_kernel_fails(microscope: list[Microscope]):
    """Nothing is copied back from a launch that raised."""

    def wrong(out):
        out[0] = 1
        out[1] = "text"

    out = np.zeros(4)
    with pytest.raises(KernelError):
        launch(wrong, 1, 4, out)
    assert not out.any()


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        (0, 32, "grid=0; expected 1 to"), (1, 0, "block=0"), (1, 1025, "expected 1 to 1,024"), (1, (32, 64), "2,048 threads"),
        (1.5, 32, "expected a whole number"), (1, "32", "expected a whole number"), ((1, 1, 1, 1), 32, "up to three"),
        (1, (1, 1, 65), "1 to 64"), ((1, 70_000), 32, "65,535"), (True, 32, "expected a whole number"),
    ],
)  # fmt: skip
def test_grids_and_blocks_are_checked_as_simulate_does(grid: Any, block: Any, words: str):
    """The same refusals as simulate's, under launch's name; without a GPU as well."""
    out = np.zeros(4)
    for call in (launch, launcher, simulate):
        with pytest.raises(InputError, match=words) as raised:
            call(scale, grid, block, np.zeros(4), 1.0, out)
        assert str(raised.value).startswith(f"{call.__name__}:")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((np.zeros(4), 1.0), r"scale takes 3 arguments \(x, factor, out\); 2 are given"),
        (([1, 2], 1.0, np.zeros(4)), "x=.* is a list; expected an array or a number"),
        ((np.zeros(4), None, np.zeros(4)), "factor=None is a NoneType"),
        ((np.zeros((4, 4))[:, 1], 1.0, np.zeros(4)), "is not contiguous"),
        ((np.array(["a"]), 1.0, np.zeros(4)), "expected numbers"),
        ((np.zeros(4, ">f4"), 1.0, np.zeros(4)), "elements of type"),
    ],
)
def test_arguments_are_checked(args: tuple[Any, ...], words: str):
    """Each refusal names the argument."""
    with pytest.raises(InputError, match=words) as raised:
        launch(scale, 1, 4, *args)
    assert str(raised.value).startswith("launch:")


@pytest.mark.parametrize(
    "views", [lambda a: (a[:6], a[2:]), lambda a: (a, a[:6]), lambda a: (a, a.view(np.int64))], ids=["apart", "a part", "another type"]
)
def test_overlapping_arrays_are_refused(views: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]):
    """Two views of one buffer would be two arrays on the GPU, where they begin at one place as well."""
    x, out = views(np.zeros(8))
    with pytest.raises(InputError, match="launch: out and x overlap"):
        launch(scale, 1, 4, x, 1.0, out)


def test_one_array_in_two_shapes_is_one_array_on_the_gpu(microscope: list[Microscope]):
    """Each argument has its own shape there, and what is written to one is what the other reads."""
    x = np.arange(6, dtype=np.float32)
    ready = launcher(scale, 1, 32, x, 2.0, x.reshape(2, 3))
    assert [array.shape for array in ready.arrays] == [(6,), (2, 3)]
    assert np.shares_memory(*ready.arrays)
    assert len(microscope[0].placed) == 1


@pytest.mark.parametrize("kernel", [None, 5, "scale", np.sin, print])
def test_what_is_no_kernel_is_refused(kernel: Any):
    """A kernel is a Python function."""
    with pytest.raises(InputError, match=r"launch: kernel=.*expected a Python function"):
        launch(kernel, 1, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_says_what_to_do():
    """The arrays stay, and the microscope is named."""
    out = np.zeros(4)
    for call in (launch, launcher):
        with pytest.raises(DeviceError, match=r"no CUDA device is visible; .*simulate\(kernel, grid, block"):
            call(scale, 1, 4, np.ones(4), 1.0, out)
    for call in (launch_cuda, cuda_launcher):
        with pytest.raises(DeviceError, match="no CUDA device is visible"):
            call(CUDA_ADD, "add", 1, 32, np.zeros(4, np.float32), np.zeros(4, np.float32), np.int32(4))
    assert not out.any()


def test_arrays_on_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    """A kernel runs on one device."""

    class Somewhere:
        def __init__(self, index: int) -> None:
            self.device = torch.device("cuda", index)

    monkeypatch.setattr(_launch.devices, "available", lambda: [torch_device()])
    assert _launch.the_device("launch", []) == 0
    assert _launch.the_device("launch", [Somewhere(1), Somewhere(1)]) == 1
    with pytest.raises(DeviceError, match="cuda:0, cuda:1; expected one"):
        _launch.the_device("launch", [Somewhere(0), Somewhere(1)])


def torch_device() -> Any:
    class Gpu:
        torch_type = "cuda"

    return Gpu()


# -- CUDA C++ -------------------------------------------------------------------------------------------------------------


def test_cuda_arguments_must_be_of_the_kernels_size(microscope: list[Microscope]):
    """CUDA would read past arguments that are too few or too small; the compiled kernel says what it takes."""
    pytest.importorskip("gpulab.kernels._compile")
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    try:
        cuda_launcher(CUDA_ADD, "add", 1, 32, x, y, np.int32(4))
    except MissingLibraryError:
        pytest.skip("NVRTC is not installed")
    for args in ((x, y), (x, y, np.int64(4)), (x, y, np.float64(4)), (x, y, np.int32(4), np.int32(4))):
        with pytest.raises(InputError, match="add takes 20 bytes of arguments and"):
            cuda_launcher(CUDA_ADD, "add", 1, 32, *args)
    assert len(microscope) == 1


def test_cuda_arguments_are_laid_out_as_c_does():
    """Each argument starts at a multiple of its own size (CUDA Programming Guide, kernel parameters)."""
    arguments = _launch_cuda.sorted_arguments("x", "k", "abcd", (np.int32(1), np.zeros(3), np.int8(1), np.float64(2)), None)
    assert [_launch_cuda.packed_bytes(arguments[:k]) for k in range(5)] == [0, 4, 16, 17, 32]


class OnADevice:
    """An array that the host cannot look into, as a CUDA tensor is none: NumPy's questions end in its TypeError."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}

    def __array__(self, *args: object, **kwargs: object):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_arrays_on_the_device_are_not_looked_into():
    """A pointer of 8 bytes, and a complex number at a multiple of its size."""
    arguments = _launch_cuda.sorted_arguments("x", "k", "abc", (np.int32(1), np.complex64(1), OnADevice()), None)
    assert [_launch_cuda.packed_bytes(arguments[:k]) for k in range(4)] == [0, 4, 16, 24]


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_a_complex_number_lies_where_the_compiler_puts_it(kind: Any):
    """``float2`` and ``double2`` start at a multiple of their whole size: the compiler counts the bytes of all parameters."""
    source = f'extern "C" __global__ void k(float* x, {"float2" if kind is np.complex64 else "double2"} a, float* y, int n) {{ }}'
    try:
        facts = compile_cuda(source).kernels["k"]
    except MissingLibraryError:
        pytest.skip("NVRTC is not installed")
    x = np.zeros(3, np.float32)
    arguments = _launch_cuda.sorted_arguments("x", "k", "abcd", (x, kind(1), x, np.int32(1)), None)
    assert _launch_cuda.packed_bytes(arguments) == facts.parameter_bytes


def test_numba_cuda_loads_beside_a_numpy_without_row_stack():
    """NumPy 2.5 has no row_stack any more; taken away here, numba-cuda still compiles, and NumPy stays as it is."""
    pytest.importorskip("numba_cuda")
    code = """
import numpy as np
if hasattr(np, "row_stack"):
    np.__all__.remove("row_stack")
    del np.row_stack
import numba
from numba import cuda
from gpulab.kernels._launch_numba import _load_beside_new_numpy
_load_beside_new_numpy()
def kernel(a):
    a[cuda.grid(1)] = 1
ptx, _ = cuda.compile(kernel, numba.void(numba.float32[:]), device=False, abi="numba", cc=(9, 0), output="ptx")
assert ".entry" in ptx
assert not hasattr(np, "row_stack")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]


def test_python_numbers_have_no_size_in_c(microscope: list[Microscope]):
    """A bare 4 may be an int or a long long, and CUDA would not tell."""
    x = np.ones(4, np.float32)
    with pytest.raises(InputError, match=r"argument 3 is 4, a Python number without a size; .*np\.int32"):
        launch_cuda(CUDA_ADD, "add", 1, 32, x, x, 4)
    with pytest.raises(InputError, match=r"np\.float32"):
        launch_cuda(CUDA_ADD, "add", 1, 32, x, x, 4.0)


def test_cuda_sources_are_checked(microscope: list[Microscope]):
    """A name that is not there, a source that does not compile, and junk each get their sentence."""
    x = np.ones(4, np.float32)
    with pytest.raises(KernelError, match="no kernel 'ad'; expected one of add"):
        launch_cuda(CUDA_ADD, "ad", 1, 32, x, x, np.int32(4))
    with pytest.raises(CompileError, match="line 2"):
        launch_cuda(CUDA_ADD.replace("int i", "it i"), "add", 1, 32, x, x, np.int32(4))
    for options in ("-use_fast_math", None):
        with pytest.raises(InputError, match=rf"options={options!r}; expected a list of texts"):
            launch_cuda(CUDA_ADD, "add", 1, 32, x, x, np.int32(4), options=options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name=5"):
        launch_cuda(CUDA_ADD, 5, 1, 32, x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="grid=0"):
        launch_cuda(CUDA_ADD, "add", 0, 32, x, x, np.int32(4))


def test_arrays_with_gaps_are_refused_for_cuda(microscope: list[Microscope]):
    """A pointer knows no strides."""

    class Strided:
        __cuda_array_interface__ = {"shape": (4, 4), "typestr": "<f4", "data": (0, False), "strides": (32, 4), "version": 2}

    with pytest.raises(InputError, match="without gaps"):
        launch_cuda(CUDA_ADD, "add", 1, 32, Strided(), Strided(), np.int32(4))


# -- numba-cuda's own calls -----------------------------------------------------------------------------------------------

_UNDER_NUMBAS_SIMULATOR = """
import sys
import types
sys.path[:0] = {path!r}
import numpy as np
from numba import config, cuda
assert config.ENABLE_CUDASIM
import test_launch
from numba.cuda.simulator.kernel import FakeCUDAKernel
FakeCUDAKernel.specialized = False  # as a kernel without a signature says on hardware
from gpulab.kernels import _launch, _launch_numba

class OnSimulator(_launch_numba.NumbaBackend):
    def place(self, array):
        return cuda.to_device(array)
    def fetch(self, there):
        return there.copy_to_host()

cuda.as_cuda_array = lambda a: a
_launch_numba._numba_cuda = lambda who: cuda
_launch.the_device = lambda who, arrays: 0
_launch._backend = OnSimulator
x, out = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
_launch.launch(test_launch.scale, 3, 32, x, 2.0, out)
assert np.array_equal(out, 2 * x), out
_launch.launch(cuda.jit(test_launch.scale), 3, 32, x, 3.0, out)
assert np.array_equal(out, 3 * x), out
_launch.launch(test_launch.with_helper, (3, 1), (32, 1), x, out)
assert np.array_equal(out, x * x + 1), out
print("agreed")
"""


def test_numbas_own_simulator_runs_what_launch_prepares(tmp_path: Path):
    """The calls of numba.cuda (jit, index by grid and block, copy back) are those that numba knows, with plain device functions."""
    pytest.importorskip("numba_cuda")
    here = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_NUMBAS_SIMULATOR.format(path=here)], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "agreed", done.stderr


def test_numbas_simulator_is_not_taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """With NUMBA_ENABLE_CUDASIM the answer would be no GPU's."""
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 1)
    with pytest.raises(DeviceError, match="NUMBA_ENABLE_CUDASIM is set"):
        _launch_numba._numba_cuda("launch")


def test_a_missing_numba_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    """On a machine with a GPU but without numba-cuda."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for driver in (Driver("580.95", "13.0"), Driver()):
        monkeypatch.setattr(_launch_numba._nvml, "probe", lambda driver=driver: driver)
        with pytest.raises(MissingLibraryError, match=r"pip install -c constraints.txt -e '\.\[kernels\]'"):
            _launch_numba._numba_cuda("launch")


def test_a_driver_for_cuda_12_is_not_told_to_install_numba_cuda(monkeypatch: pytest.MonkeyPatch):
    """README's row of such machines: Python kernels run under the microscope, for numba-cuda is for CUDA 13."""
    monkeypatch.setattr(_launch_numba._nvml, "probe", lambda: Driver("535.183", "12.2"))
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingLibraryError, match=r"^launch: the driver 535\.183 runs CUDA 12\.2, .*\.simulate, .* launch_cuda") as told:
        _launch_numba._numba_cuda("launch")
    assert "install" not in str(told.value)


def test_a_missing_cupy_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    """On a machine with a GPU but without CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingLibraryError, match="pip install cupy"):
        _launch_cuda.CupyBackend("launch_cuda", CUDA_ADD, "add", (), 0)


def test_a_kernel_is_compiled_anew_when_a_name_that_it_uses_changes():
    """A notebook may change TILE without running the kernel's cell again; simulate reads the new value, and so does launch."""
    pytest.importorskip("numba_cuda")

    class Jit:
        def jit(self, function: Any = None, **options: Any) -> Any:
            return (lambda plain: ("device", plain)) if function is None else ("kernel", function)

    names: dict[str, Any] = {"TILE": 4, "cuda": cuda}
    exec("def kernel(x):\n    x[0] = TILE\n", names)
    fake, kernel = Jit(), names["kernel"]
    first = _launch_numba.jitted(fake, kernel)
    assert _launch_numba.jitted(fake, kernel) is first
    names["TILE"] = 8
    assert _launch_numba.jitted(fake, kernel) is not first
    kind, plain = _launch_numba.jitted(fake, with_helper)
    assert kind == "kernel"
    assert plain.__globals__["helper"] == ("device", helper)
    assert with_helper.__globals__["helper"] is helper


@pytest.mark.parametrize("around", ["f(v - 1)", "g(v - 1)"], ids=["directly", "through another"])
def test_a_device_function_that_calls_itself_is_refused_as_under_the_microscope(around: str):
    """With no word of the compiler's, and no RecursionError: numba never sees it."""
    names: dict[str, Any] = {}
    exec(f"def g(v):\n    return f(v)\ndef f(v):\n    if v < 1: return 0\n    return {around}\ndef kernel(x):\n    x[0] = f(3)\n", names)
    with pytest.raises(KernelError, match=r"launch: line \d: f calls itself; recursion is not supported. Write it as a loop.") as refused:
        _launch_numba.jitted(None, names["kernel"])
    assert refused.value.line == (5 if around.startswith("f") else 2)


CHANGES = {
    "a function that a device function calls": ("f = lambda v: v + 1", "f = lambda v: v * 100"),
    "a constant of a device function": ("SCALE = 2", "SCALE = 5"),
    "a constant of another type": ("SCALE = 2", "SCALE = 2.0"),
    "a truth value": ("SCALE = 1", "SCALE = True"),
    "a zero of another sign": ("SCALE = 0.0", "SCALE = -0.0"),
    "a type inside of a tuple": ("PAIR = (1, 2)", "PAIR = (1, 2.0)"),
    "an element of an array": ("TABLE[0] = 1", "TABLE[0] = 2"),
    "a variable of the function around": ("hold(3)", "hold(4)"),
    "a default of a device function": ("def f(v, k=2):\n    return v * k", "def f(v, k=3):\n    return v * k"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_kernel_is_compiled_anew_when_what_a_device_function_leans_on_changes(name: str):
    """All that simulate reads again at the next call; and what is as before is not compiled anew."""
    pytest.importorskip("numba_cuda")

    class Jit:
        def jit(self, function: Any = None, **options: Any) -> Any:
            return (lambda plain: ("device", plain)) if function is None else ("kernel", function)

    names: dict[str, Any] = {"np": np}
    exec(
        "f, SCALE, PAIR, TABLE = (lambda v: v), 1, (1, 1), np.zeros(2)\n"
        "def around(held):\n"
        "    def inner(v):\n        return v + held\n"
        "    def hold(value):\n        nonlocal held\n        held = value\n"
        "    return inner, hold\n"
        "inner, hold = around(1)\n"
        "def g(v):\n    return f(v) * SCALE + PAIR[0] + TABLE[0] + inner(v)\n"
        "def kernel(x):\n    x[0] = g(x[0])\n",
        names,
    )
    before, after = CHANGES[name]
    exec(before, names)
    first = _launch_numba.jitted(Jit(), names["kernel"])
    assert _launch_numba.jitted(Jit(), names["kernel"]) is first
    exec(after, names)
    assert _launch_numba.jitted(Jit(), names["kernel"]) is not first
    exec(before, names)
    assert _launch_numba.jitted(Jit(), names["kernel"]) is first


def test_what_a_kernel_names_stays_as_long_as_its_compiled_form() -> None:
    """An object that is known by its number alone is kept, so that no other one can get that number."""

    class Table:
        pass

    names: dict[str, Any] = {"TABLE": Table()}
    exec("def kernel(x):\n    x[0] = TABLE\n", names)
    there = weakref.ref(names["TABLE"])
    _launch_numba.jitted(types.SimpleNamespace(jit=lambda function: ("kernel", function)), names["kernel"])
    names["TABLE"] = None
    gc.collect()
    assert there() is not None


def test_waiting_for_a_kernel_is_done_on_its_own_device() -> None:
    """With a stand-in for numba's CUDA: the second GPU is chosen, waited for, and let go again."""
    log: list[str] = []

    @contextlib.contextmanager
    def chosen(index: int) -> Iterator[None]:
        log.append(f"gpu {index}")
        yield
        log.append("let go")

    class Gpus:
        """numba.cuda.gpus."""

        def __getitem__(self, index: int) -> Any:
            return chosen(index)

    backend = object.__new__(_launch_numba.NumbaBackend)
    backend._who, backend._index, backend._function = "launch", 1, len  # type: ignore[assignment]
    backend._cuda = types.SimpleNamespace(gpus=Gpus(), synchronize=lambda: log.append("waited"))
    backend.wait()
    assert log == ["gpu 1", "waited", "let go"]


def test_a_launcher_waits_before_it_fetches() -> None:
    """``wait`` waits and copies nothing; ``fetch`` copies what is finished."""
    log: list[str] = []
    backend = types.SimpleNamespace(wait=lambda: log.append("waited"))
    travellers = types.SimpleNamespace(back=lambda: log.append("copied"))
    made = _launch.Launcher("k", backend, lambda: log.append("ran"), travellers, ())  # type: ignore[arg-type]
    made()
    made.wait()
    assert log == ["ran", "waited"]
    made.fetch()
    assert log == ["ran", "waited", "waited", "copied"]


class Cupy(types.ModuleType):
    """A stand-in for CuPy that notes what it is asked for, and on which device."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.log: list[Any] = []
        self.static = 0
        self.cuda = types.SimpleNamespace(Device=self._device, Stream=types.SimpleNamespace(null=self._noted("null stream")))

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        self.log.append(what)
        yield
        self.log.append(f"end of {what}")

    def _device(self, index: int) -> Any:
        noted = self._noted(f"device {index}")
        noted.synchronize = lambda: self.log.append(f"waited for {index}")  # type: ignore[attr-defined]
        return noted

    def asarray(self, value: Any) -> Any:
        """Note that an array was seen."""
        return ("seen", value)

    def RawModule(self, **asked: Any) -> Any:
        """Keep what is compiled; its function notes each launch."""
        self.asked = asked
        return types.SimpleNamespace(get_function=self._function)

    def _function(self, name: str) -> Any:
        cupy = self

        class Function:
            shared_size_bytes = cupy.static
            max_dynamic_shared_size_bytes = None

            def __call__(self, grid: Any, block: Any, values: Any, shared_mem: int) -> None:
                cupy.log.append((name, grid, block, values, shared_mem, self.max_dynamic_shared_size_bytes))

        return Function()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    """Return the stand-in in CuPy's place."""
    made = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(_launch_cuda._backends, "backend_of", lambda value: None)  # it would keep what it makes of the stand-in
    return made


def test_cupy_launches_on_the_device_of_the_arrays(cupy: Cupy) -> None:
    """By CuPy's reference: grid, block, arguments, shared bytes; on the second GPU, its null stream; then that GPU is waited for."""
    backend = _launch_cuda.CupyBackend("launch_cuda", CUDA_ADD, "add", ("-lineinfo",), 1)
    there = OnADevice()
    run = backend.ready((2, 1, 1), (32, 1, 1), 64, [there, np.int32(4), True])
    assert cupy.asked == {"code": CUDA_ADD, "options": ("--std=c++17", "-lineinfo"), "name_expressions": None}
    cupy.log.clear()
    run()
    launched = ("add", (2, 1, 1), (32, 1, 1), (("seen", there), np.int32(4), True), 64, None)
    assert cupy.log == ["device 1", "null stream", launched, "end of null stream", "end of device 1"]
    cupy.log.clear()
    backend.wait()
    assert cupy.log == ["device 1", "waited for 1", "end of device 1"]


@pytest.mark.parametrize(
    ("source", "name", "shared", "names", "limit", "includes"),
    [
        (CUDA_ADD, "add", 48 * 1024, None, None, False),  # what each kernel may have without asking (CUDA Programming Guide)
        (CUDA_ADD, "add", 48 * 1024 + 1, None, 48 * 1024 + 1, False),
        (CUDA_ADD.replace('extern "C" ', ""), "add", 0, ["add"], None, False),  # a C++ name, which only the compiler can tell
        (CUDA_ADD, "tile<16>", 0, ["tile<16>"], None, False),
        ("#include <cuda_fp16.h>\n" + CUDA_ADD, "add", 0, None, None, True),
    ],
)
def test_what_cupy_is_told_of_a_source(
    cupy: Cupy, monkeypatch: pytest.MonkeyPatch, source: str, name: str, shared: int, names: Any, limit: int | None, includes: bool
) -> None:
    """More than 48 KiB must be asked for; a C++ name is given as an expression; headers' folders go with a source that has some."""
    monkeypatch.setattr(_launch_cuda._libraries, "include_folders", lambda: [Path("/headers")])
    _launch_cuda.CupyBackend("launch_cuda", source, name, (), 0).ready((1, 1, 1), (32, 1, 1), shared, [])()
    assert cupy.asked["name_expressions"] == names
    assert cupy.asked["options"] == ("--std=c++17", *(["-I/headers"] if includes else []))
    assert next(entry for entry in cupy.log if isinstance(entry, tuple))[-2:] == (shared, limit)


_G = "__global__ void g(float* x) { if (x) { x[0] = 1; } }"


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (f'extern "C" {_G}', True),
        ('extern "C"\n__global__ void __launch_bounds__(256) g(float* x) {}', True),
        (f'extern "C" __global__ void f(float* x) {{}}\n{_G}', False),  # another's
        (f'{_G}\nextern "C" __global__ void f(float* x) {{}}', False),
        (f'// no extern "C" here\n{_G}', False),
        (f'extern "C" {{\n__global__ void f(float* x) {{}}\n{_G}\n}}', True),  # a block around several
        (f'extern "C" {{ __global__ void f(float* x) {{}} }}\n{_G}', False),
        (f'extern "C" __global__ void g(float* x);\n__global__ void f(float* x) {{}}\n{_G}', True),  # as it was declared
        (f'extern "C" __global__ void big(float* x) {{}}\n{_G}', False),  # a name that ends alike
        ('#define KERNEL(n) extern "C" __global__ void n ## _of(float* x) {}\nKERNEL(some)', True),  # by a macro
        (_G, False),
    ],
)
def test_a_kernel_has_a_c_name_where_its_own_definition_says_so(cupy: Cupy, source: str, plain: bool) -> None:
    """A C++ name is mangled: CuPy finds no kernel by the plain one, and needs an expression, whatever stands around the kernel."""
    name = "g" if " g(" in source else "some_of"
    _launch_cuda.CupyBackend("launch_cuda", source, name, (), 0).ready((1, 1, 1), (32, 1, 1), 0, [])
    assert cupy.asked["name_expressions"] == (None if plain else [name])


@pytest.mark.parametrize(("static", "dynamic", "limit"), [(8192, 40960, None), (8192, 40961, 40961), (49152, 0, None)])
def test_the_other_shared_arrays_count_towards_what_must_be_asked_for(cupy: Cupy, static: int, dynamic: int, limit: int | None) -> None:
    """48 KiB are those of a block: what fits into them is not asked for, and one byte more of dynamic shared memory is."""
    cupy.static = static
    _launch_cuda.CupyBackend("launch_cuda", CUDA_ADD, "add", (), 0).ready((1, 1, 1), (32, 1, 1), dynamic, [])()
    assert next(entry for entry in cupy.log if isinstance(entry, tuple))[-2:] == (dynamic, limit)


def test_errors_of_cupy_are_the_kernels_and_others_pass(cupy: Cupy) -> None:
    """Its own exceptions are told with the kernel and the device; a mistake of anyone else is not covered up."""
    backend = _launch_cuda.CupyBackend("launch_cuda", CUDA_ADD, "add", (), 0)
    refusal = type("CompileException", (Exception,), {"__module__": "cupy.cuda.compiler"})
    with pytest.raises(KernelError, match=r"^launch_cuda: CuPy or the GPU refused add \(.*too old"), backend._translated():
        raise refusal("too old")
    with pytest.raises(ZeroDivisionError), backend._translated():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("home", "name", "line", "words"),
    [
        ("numba.core.errors", "TypingError", 7, "numba-cuda refuses helper, line 7: no such thing."),
        ("numba.core.errors", "TypingError", None, "numba-cuda refuses helper: no such thing."),
        ("numba.cuda.cudadrv.driver", "LinkerError", None, "the GPU stopped helper (no such thing)"),
        ("numba_cuda.errors", "CudaAPIError", None, "the GPU stopped helper (no such thing)"),
    ],
)
def test_errors_of_numba_are_the_compilers_or_the_gpus(home: str, name: str, line: int | None, words: str) -> None:
    """The compiler's come with the line, the driver's with what to do; others pass as they are."""
    backend = object.__new__(_launch_numba.NumbaBackend)
    backend._who, backend._index, backend._function = "launch", 1, helper
    error = type(name, (Exception,), {"__module__": home})("no such thing")
    error.loc = types.SimpleNamespace(line=line)  # type: ignore[attr-defined]
    with pytest.raises(KernelError) as told, backend._translated():
        raise error
    assert str(told.value).startswith("launch: ")
    assert words in str(told.value)
    assert told.value.line == line
    with pytest.raises(ZeroDivisionError), backend._translated():
        raise ZeroDivisionError


def test_a_launcher_keeps_the_arrays_on_the_gpu(microscope: list[Microscope]) -> None:
    """Those that were placed there and those that were there, in the order of the arguments; a number is none."""
    there, out = OnADevice(), np.zeros(4, np.float32)
    ready = launcher(scale, 1, 4, there, 2.0, out)
    assert ready.arrays[0] is there
    assert ready.arrays[1] is microscope[0].placed[0]
    assert repr(ready) == "<Launcher of scale with 2 arrays on the GPU>"


def test_dynamic_shared_memory_is_passed_on_and_checked(microscope: list[Microscope], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the four calls launches with the bytes that were asked for, and refuses less than none under its own name."""
    monkeypatch.setattr(_launch_cuda, "compile_cuda", _without_nvrtc)
    monkeypatch.setattr(
        Microscope, "ready", lambda self, grid, block, nbytes, values: self.__setattr__("asked", (grid, block, nbytes)) or len
    )
    monkeypatch.setattr(_launch.Launcher, "__call__", lambda self: ())
    x = np.zeros(4, np.float32)
    for call, head, rest in (
        (launch, (scale,), (x, 1.0, x)), (launcher, (scale,), (x, 1.0, x)), (launch_cuda, (CUDA_ADD, "add"), (x, x, np.int32(4))),
        (cuda_launcher, (CUDA_ADD, "add"), (x, x, np.int32(4))),
    ):  # fmt: skip
        call(*head, 2, (32, 32), *rest, dynamic_shared_bytes=64)  # 1,024 threads, the most
        assert microscope[-1].asked == ((2, 1, 1), (32, 32, 1), 64)
        with pytest.raises(InputError, match=f"^{call.__name__}: dynamic_shared_bytes=-1; expected a whole number from 0"):
            call(*head, 2, 32, *rest, dynamic_shared_bytes=-1)


def with_a_static_tile(x, factor, out):
    tile = cuda.shared.array(256, float32)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x] * factor
    out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


def test_more_shared_memory_than_numba_cuda_asks_for_is_refused(microscope: list[Microscope]) -> None:
    """48 KiB, all shared arrays together, is what a kernel may have without asking (CUDA Programming Guide); launch_cuda does ask."""
    x = np.ones(4, np.float32)
    launch(scale, 1, 4, x, 2.0, x, dynamic_shared_bytes=48 * 1024)
    launch(with_a_static_tile, 1, 4, x, 2.0, x, dynamic_shared_bytes=47 * 1024)
    assert x.tolist() == [4.0] * 4
    for call in (launch, launcher):
        with pytest.raises(InputError, match=f"^{call.__name__}: scale is given dynamic_shared_bytes=49,153; expected at most 49,152 in "):
            call(scale, 1, 4, x, 2.0, x, dynamic_shared_bytes=48 * 1024 + 1)
        with pytest.raises(InputError, match="dynamic_shared_bytes=48,129 beside the 1,024 bytes of its other shared arrays; expected"):
            call(with_a_static_tile, 1, 4, x, 2.0, x, dynamic_shared_bytes=47 * 1024 + 1)
    assert x.tolist() == [4.0] * 4


def _without_nvrtc(*_: Any, **__: Any) -> Any:
    raise MissingLibraryError("no NVRTC")


def test_without_nvrtc_only_the_check_of_the_arguments_is_lost(microscope: list[Microscope], monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy has a compiler of its own; where NVRTC is, a template's instance is asked for by its name, and the options go along."""
    monkeypatch.setattr(_launch_cuda, "compile_cuda", _without_nvrtc)
    x = np.ones(4, np.float32)
    cuda_launcher(CUDA_ADD, "add", 1, 32, x)
    assert len(microscope) == 1
    asked = []

    def compiled(source: str, **given: Any) -> Any:
        asked.append((source, given))
        return types.SimpleNamespace(kernels={name: types.SimpleNamespace(parameter_bytes=8) for name in ("add", "tile<16>")})

    monkeypatch.setattr(_launch_cuda, "compile_cuda", compiled)
    for name in ("add", "tile<16>"):
        cuda_launcher(CUDA_ADD, name, 1, 32, x, options=["-G"])
    assert asked == [(CUDA_ADD, {"options": ("-G",), "names": names}) for names in ((), ("tile<16>",))]


def test_arrays_travel_once_and_come_back_together() -> None:
    """Two shapes of one array have one copy, each in its own; what is read-only stays; where one copy fails, none has changed."""
    placed: list[Any] = []

    def place(array: np.ndarray) -> np.ndarray:
        placed.append(array.shape)
        return array.copy()

    fetched: list[Callable[[np.ndarray], np.ndarray]] = [lambda there: there]

    def fetch(there: np.ndarray) -> np.ndarray:
        return fetched[-1](there)

    travellers = _launch_arguments.Travellers(place, fetch)
    wide, other, fixed = np.arange(6.0).reshape(2, 3), np.arange(4.0), np.zeros(2)
    fixed.flags.writeable = False
    first, again = travellers.there(wide), travellers.there(wide.reshape(-1))
    assert (first.shape, again.shape, np.shares_memory(first, again)) == ((2, 3), (6,), True)
    for there in (first, travellers.there(other), travellers.there(fixed)):
        np.add(there, 1, out=there)
    assert placed == [(2, 3), (4,), (2,)]

    def fails(there: np.ndarray) -> np.ndarray:
        if there.size == 4:
            raise RuntimeError("lost")
        return there

    fetched.append(fails)
    with pytest.raises(RuntimeError, match="lost"):
        travellers.back()
    assert wide.ravel().tolist() == [0, 1, 2, 3, 4, 5]
    fetched.append(lambda there: there.reshape(-1))
    travellers.back()
    assert (wide.tolist(), other.tolist(), fixed.tolist()) == ([[1, 2, 3], [4, 5, 6]], [1, 2, 3, 4], [0, 0])


def test_when_two_arrays_are_the_same_memory() -> None:
    """They begin at one byte, and have as many elements of one type."""
    x = np.zeros(6)
    same = _launch_arguments.same_memory
    others = (x, x.reshape(2, 3), x[:3], x[1:], x.view(np.int64), np.zeros(6))
    assert [same(x, other) for other in others] == [True, True, False, False, False, False]


def test_a_block_has_1024_threads_at_most_in_all_its_axes() -> None:
    """Each axis by itself may be shorter; what is left out is 1; the sentence is that of the function that was called."""
    assert _launch_arguments.checked_extents("launch", 3, (32, 32), 0) == ((3, 1, 1), (32, 32, 1))
    assert _launch_arguments.checked_extents("launch", (2, 3, 4), (4, 4, 64), 7) == ((2, 3, 4), (4, 4, 64))
    with pytest.raises(
        InputError, match=r"^launch: a block of \(33, 32, 1\) has 1,056 threads; expected at most 1,024\. Use more blocks\.$"
    ):
        _launch_arguments.checked_extents("launch", 3, (33, 32), 0)
    for grid, block, dynamic in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(InputError, match=r"^launcher: "):
            _launch_arguments.checked_extents("launcher", grid, block, dynamic)


def test_which_arrays_have_gaps() -> None:
    """By hand, of four bytes each: rows of four follow on each other, or lie further apart, or change places with the columns."""
    for shape, strides, fits in (
        ((4, 4), None, True), ((4, 4), (16, 4), True), ((1, 4), (999, 4), True), ((4, 1), (4, 999), True), ((4, 4), (32, 4), False),
        ((4, 4), (4, 16), False), ((4,), (8,), False), ((2, 4), (16, 8), False), ((2, 4), (32, 4), False),
    ):  # fmt: skip
        array = types.SimpleNamespace(__cuda_array_interface__={"shape": shape, "typestr": "<f4", "strides": strides})
        argument = _launch_cuda.Argument("a", "device", array)
        if fits:
            _launch_cuda._check_for_pointers("launch_cuda", argument)
        else:
            with pytest.raises(InputError, match=r"launch_cuda: a has strides .* without gaps"):
                _launch_cuda._check_for_pointers("launch_cuda", argument)


def test_tensors_that_cannot_travel_and_those_that_need_not() -> None:
    """Without memory, refused; on a GPU (here in name), used in place as what autograd does not watch; text without dimensions is none."""

    class Tensor:
        ndim, device = 1, torch.device("cuda", 1)
        __module__ = "torch.nowhere"

        def detach(self) -> Any:
            return self

    there = Tensor()
    (argument,) = _launch_cuda.sorted_arguments("launch", "k", "x", (there,), None)
    assert (argument.name, argument.kind) == ("x", "device")
    assert argument.value is there
    assert argument != _launch_cuda.sorted_arguments("launch", "k", "x", (there,), None)[0]  # by what they are, never by their numbers
    with pytest.raises(InputError, match="launch: x is a tensor on meta; expected one on a CUDA device or in main memory"):
        _launch_cuda.sorted_arguments("launch", "k", "x", (torch.zeros(4, device="meta"),), None)
    with pytest.raises(InputError, match="is an ndarray; expected an array or a number"):
        _launch_cuda.sorted_arguments("launch", "k", "x", (np.array("text"),), None)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(4, dtype=torch.bfloat16), "tensor of torch.bfloat16"), (torch.tensor(2, dtype=torch.bfloat16), "torch.bfloat16"),
        (torch.eye(4).to_sparse(), "to_dense"), (torch.ones(4, dtype=torch.complex64).conj(), "conj"),
    ],
)  # fmt: skip
def test_tensors_that_numpy_lacks_are_refused_here_and_under_the_microscope(tensor: torch.Tensor, words: str) -> None:
    """One sentence in place of PyTorch's error: bfloat16, as an array and as a number, a sparse tensor, and one conjugated by a mark."""
    for call in (launch, simulate):
        with pytest.raises(InputError, match=f"^{call.__name__}: x is a tensor of .* that is no NumPy array") as raised:
            call(scale, 1, 4, tensor, 1.0, np.zeros(4))
        assert words in str(raised.value)


def test_a_number_that_autograd_watches_is_a_number() -> None:
    """A parameter without dimensions goes to the kernel under the microscope as it goes to a GPU."""
    out = np.zeros(4)
    simulate(scale, 1, 4, np.arange(4.0), torch.tensor(2.0, dtype=torch.float64, requires_grad=True), out)
    assert out.tolist() == [0, 2, 4, 6]


def test_arrays_on_a_gpu_are_sent_back_from_the_microscope() -> None:
    """CuPy's and Numba's arrays, known by their interface, are told where to go; another library's array is named by its own kind."""

    class Elsewhere:
        ndim, item = 1, None

    class There(Elsewhere):
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    with pytest.raises(InputError, match=r"simulate: x is a There on a GPU; expected one in main memory.* Pass gl.to_host\(x\)"):
        simulate(scale, 1, 4, There(), 1.0, np.zeros(4))
    with pytest.raises(InputError, match="is an Elsewhere; expected a NumPy array or a number"):
        simulate(scale, 1, 4, Elsewhere(), 1.0, np.zeros(4))


def test_the_number_of_an_arrays_device() -> None:
    """A tensor's device has an index, CuPy's an id, and one that was never named is the first."""
    devices = (torch.device("cuda", 2), types.SimpleNamespace(id=3), torch.device("cuda"), None)
    assert [_launch._index(types.SimpleNamespace(device=device)) for device in devices] == [2, 3, 0, 0]


def test_both_backends_copy_to_their_own_device(cupy: Cupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """There as a tensor on the second GPU, back as an array; each is made with what it launches."""
    monkeypatch.setattr(_launch_numba, "NumbaBackend", lambda *given: given)
    assert _launch._backend("launch", scale, 1) == ("launch", scale, 1)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    made = _launch_cuda._backend("launch_cuda", CUDA_ADD, "add", ("-G",), 1)
    assert (made._who, made._source, made._name, made._options, made._index) == ("launch_cuda", CUDA_ADD, "add", ("-G",), 1)
    numbas = object.__new__(_launch_numba.NumbaBackend)
    numbas._index = 1
    for backend, module in ((made, _launch_cuda), (numbas, _launch_numba)):
        monkeypatch.setattr(module.arrays, "to_device", lambda array, device: ("there", array, device))
        monkeypatch.setattr(module.arrays, "to_host", lambda there: ("back", there))
        assert backend.place(7) == ("there", 7, "cuda:1")
        assert backend.fetch(7) == ("back", 7)
    monkeypatch.setattr(_launch_cuda._backends, "backend_of", lambda value: "torch")
    monkeypatch.setattr(_launch_cuda._backends, "share", lambda value, library: (library, value))
    assert made._seen("a tensor") == ("cupy", "a tensor")


@pytest.mark.parametrize("specialized", [False, True])
def test_a_kernel_is_ready_for_its_types_before_it_is_launched(specialized: bool) -> None:
    """With a stand-in for numba's CUDA: compiled and configured on its own GPU, without the word on small grids; a launch only launches."""
    log: list[Any] = []

    class Gpus:
        @contextlib.contextmanager
        def __getitem__(self, index: int) -> Iterator[None]:
            log.append(f"gpu {index}")
            yield
            log.append("let go")

    class Form:
        def __init__(self, specialized: bool) -> None:
            self.specialized = specialized

        def specialize(self, *seen: Any) -> Form:
            log.append(("specialize", seen))
            return Form(True)

        def __getitem__(self, configuration: Any) -> Any:
            assert self.specialized
            log.append(configuration)
            warnings.warn("Grid size 2 will likely result in GPU under-utilization due to low occupancy.", stacklevel=1)
            return lambda *seen: log.append(("launch", seen))

    backend = object.__new__(_launch_numba.NumbaBackend)
    backend._who, backend._index, backend._function = "launch", 1, helper
    backend._cuda = types.SimpleNamespace(gpus=Gpus(), as_cuda_array=lambda array: ("seen", array))
    backend._dispatcher = Form(specialized)
    there = OnADevice()
    seen = (("seen", there), 2.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = backend.ready((2, 1, 1), (32, 1, 1), 64, [there, 2.5])
    made = [] if specialized else [("specialize", seen)]
    assert log == ["gpu 1", *made, ((2, 1, 1), (32, 1, 1), 0, 64), "let go"]
    log.clear()
    run()
    assert log == ["gpu 1", ("launch", seen), "let go"]


def test_a_numba_that_sees_no_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs of NumPy is there before it is asked; without a GPU, the program that looks for the reason is named."""
    numbas = pytest.importorskip("numba.cuda")
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 0)
    mended: list[bool] = []
    monkeypatch.setattr(_launch_numba, "_load_beside_new_numpy", lambda: mended.append(True))
    for there in (True, False):
        monkeypatch.setattr(numbas, "is_available", lambda there=there: bool(mended) and there)
        if there:
            assert _launch_numba._numba_cuda("launch") is numbas
        else:
            with pytest.raises(DeviceError, match=r"launch: numba-cuda sees no GPU though torch does; .*gpulab doctor"):
                _launch_numba._numba_cuda("launch")
            monkeypatch.setattr(_launch_numba._nvml, "probe", lambda: Driver("535.183", "12.2"))
            with pytest.raises(DeviceError, match=r"launch: the driver 535\.183 runs CUDA 12\.2, and numba-cuda"):
                _launch_numba._numba_cuda("launch")


def test_device_functions_of_the_function_around_are_made_as_well() -> None:
    """A helper that a closure holds, beside a number that stays; the copy keeps the module and the original keeps its helper."""

    def around(inner: Any, number: int) -> Any:
        def kernel(x: Any) -> None:
            x[0] = inner(x[0]) + number

        return kernel

    kernel = around(helper, 3)
    kernel.__module__ = "elsewhere"
    fake = types.SimpleNamespace(jit=lambda device: lambda plain: ("device", plain))
    copy = _launch_numba.with_device_functions(fake, kernel, {})
    assert [cell.cell_contents for cell in copy.__closure__] == [("device", helper), 3]
    assert [cell.cell_contents for cell in kernel.__closure__] == [helper, 3]
    assert (copy.__module__, copy.__name__) == ("elsewhere", "kernel")
    assert _launch_numba.with_device_functions(fake, helper, {}) is helper


def test_a_device_function_that_calls_another_keeps_its_defaults() -> None:
    """numba-cuda fills them in where a call leaves them out."""
    names: dict[str, Any] = {}
    exec("def g(v):\n    return v\ndef f(v, k=2):\n    return g(v) * k\ndef kernel(x):\n    x[0] = f(x[0])\n", names)
    fake = types.SimpleNamespace(jit=lambda device: lambda plain: plain)
    copy = _launch_numba.with_device_functions(fake, names["kernel"], {names["g"]: "device"}).__globals__["f"]
    assert copy is not names["f"]
    assert copy.__defaults__ == (2,)


def test_what_is_launched_runs_once_and_is_then_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launcher that only notes what is asked of it: without a GPU nobody else would say whether the kernel ran."""
    log: list[Any] = []

    class Noted:
        def __call__(self) -> None:
            log.append("run")

        def fetch(self) -> None:
            log.append("fetch")

    def launcher(*given: Any) -> Noted:
        log.append(given)
        return Noted()

    monkeypatch.setattr(_launch_cuda, "_cuda_launcher", launcher)
    _launch_cuda.launch_cuda("text", "add", 2, 32, 1.0, dynamic_shared_bytes=4, options=("-G",))
    assert log == [("launch_cuda", "text", "add", (2, 32), (1.0,), 4, ("-G",)), "run", "fetch"]
