"""Facts of compiled kernels, against counts by hand, the compiler's log and the disassembler."""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from gpulab.errors import CompileError, InputError, MissingLibraryError
from gpulab.kernels import CompiledModule, KernelFacts, compile_cuda, compile_python

from texts import table_text

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no build")
cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed (extra kernels)")
from numba import float32, int32  # noqa: E402

SAXPY = """\
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * x[i] + y[i];
    }
}
"""
SHARED = """\
__constant__ float weights[100];
extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1; }  // turned( comes later
extern "C" __global__ void __launch_bounds__(96) turned(float* x, int n) {
    __shared__ float tile[1024];
    extern __shared__ float more[];
    tile[threadIdx.x] = x[threadIdx.x];
    more[threadIdx.x] = weights[n];
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x ^ 1] + more[n];
}
"""
# Sixty-four values that are live at once; the tests allow far fewer registers.
CROWDED = """\
extern "C" __global__ void crowded(float* y, int n) {
    float a[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) a[i] = y[i * n];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; i++) y[i * n + 1] = a[i] * a[63 - i];
}
"""
NAMES = """
template<int N> __global__ void tile(float* y) {
    __shared__ float a[N]; a[threadIdx.x] = y[0]; __syncthreads(); y[1] = a[3]; }
namespace ns { __global__ void two(double* y) { y[0] = 2; } }
__global__ void same(int* y) { y[0] = 1; }
__global__ void same(float* y) { y[0] = 1; }
"""
KERNEL = 'extern "C" __global__ void k(float* x) {'


LOOP = "for (int i = 0; i < 500; i++) a[i] = x[i];"
LOCAL = f"{KERNEL} int a[500]; {LOOP} x[0] = a[(int)x[1]] + a[3]; }}"
SHARED_OF = f"{KERNEL} __shared__ float a[TILE]; a[threadIdx.x] = sinf(x[0]); x[1] = a[2]; }}"
# Headers of the CUDA toolkit and of the C++ library, which come in separate packages.
HALF = (
    "#include <cuda_fp16.h>\n#include <cuda/std/cstdint>\n"
    f"{KERNEL} x[0] = __half2float(__float2half(x[1])); }}"
)


def instructions(module, kernel):
    """A kernel's instructions, padding included, out of the disassembler's text."""
    text = module.sass.split(f".text.{module.kernels[kernel].symbol}:")[1].split("//-----")[0]
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?) ?;", text)


@pytest.mark.parametrize("arch", ["sm_75", "8.0", 90, "SM_120"])
def test_facts_by_hand_and_in_the_log(arch):
    """Bytes, barriers, bounds equal those by hand; registers and stack equal the log's."""
    module = compile_cuda(SHARED, arch)
    arch = f"sm_{re.sub('[^0-9]', '', str(arch))}"
    names = ("line", "shared_bytes", "parameter_bytes", "max_threads", "barriers", "constant_bytes")
    facts = {n: tuple(getattr(k, name) for name in names) for n, k in module.kernels.items()}
    assert facts == {"plain": (2, 0, 8, None, 0, 400), "turned": (3, 4096, 12, 96, 1, 400)}
    for name, kernel in module.kernels.items():
        log = module.log.partition(f"entry function '{name}'")[2].partition("Compiling entry")[0]
        found = re.search(r"(\d+) bytes stack.*Used (\d+) registers", log, re.DOTALL)
        assert [kernel.stack_bytes, kernel.registers] == [int(one) for one in found.groups()]
    assert f".target {arch}" in module.ptx
    assert re.search(rf"\.target\s+{arch}\b", module.sass)
    assert (module.arch, module.cubin[:4], module.language) == (arch, b"\x7fELF", "CUDA C++")


def test_the_code_of_saxpy_and_its_lines():
    """One fused multiply-add on its own line, two loads, one store; 16 bytes an instruction."""
    module = compile_cuda(SAXPY)
    code, facts, lines = instructions(module, "saxpy"), module.kernels["saxpy"], module.sass_lines()
    counts = [sum(name in text for text in code) for name in ("FFMA", "LDG", "STG", "STL")]
    # Arguments: a float, a gap of 4, two pointers, an int.
    found = (counts, facts.code_bytes, facts.parameter_bytes, facts.spill_bytes)
    assert found == ([1, 2, 1, 0], 16 * len(code), 28, 0)
    assert [n for n, own in lines.items() if any("FFMA" in text for text in own)] == [4]
    assert {text for own in lines.values() for text in own} <= set(code)
    assert (module.sass_lines("saxpy"), compile_cuda(SAXPY) is module) == (lines, True)


def test_spills_are_the_local_moves_in_the_code():
    """With 24 registers, spills equal the bytes that local stores and loads move; else they are 0.

    The spills of a function that is not inlined count for the kernel that calls it.
    """
    body = CROWDED.replace('extern "C" __global__', "__device__ __noinline__")
    called = body.replace("    __syncthreads();\n", "") + f"{KERNEL} crowded(x, (int)x[0]); }}"
    asked = ((CROWDED, ["-maxrregcount=24"]), (CROWDED, []), (called, ["-maxrregcount=24"]))
    modules = [compile_cuda(source, "sm_75", options) for source, options in asked]
    tight, free, caller = (next(iter(module.kernels.values())) for module in modules)
    code = instructions(modules[0], "crowded")
    moves = {n: [t for t in code if re.search(rf"\b{n}\b", t)] for n in ("STL", "LDL")}
    sizes = [
        sum(16 if ".128" in t else 8 if ".64" in t else 4 for t in own) for own in moves.values()
    ]
    assert [tight.spill_store_bytes, tight.spill_load_bytes] == sizes
    assert (tight.registers <= 24 < free.registers, free.spill_bytes) == (True, 0)
    stores = map(int, re.findall(r"(\d+) bytes spill stores", modules[2].log))
    assert caller.spill_store_bytes == sum(stores) > 0 < tight.stack_bytes


def test_bounds_local_arrays_headers_and_options():
    """1,024 threads leave 64 registers; an array indexed by data is on the stack; options apply."""
    bounded = CROWDED.replace("void crowded", "void __launch_bounds__(1024) crowded")
    kernel, local = compile_cuda(bounded).kernels["crowded"], compile_cuda(LOCAL).kernels["k"]
    assert (kernel.registers <= 64, kernel.max_threads) == (True, 1024)
    assert (local.stack_bytes, local.spill_bytes) == (2000, 0)
    asked = (["-DTILE=48"], ["-DTILE=48", "-use_fast_math"])
    slow, fast = (compile_cuda(SHARED_OF, options=options).kernels["k"] for options in asked)
    assert (slow.shared_bytes, fast.code_bytes < slow.code_bytes) == (192, True)
    assert list(compile_cuda(HALF).kernels) == ["k"]


def test_names_are_those_of_the_source():
    """Names keep namespaces and requested instances; overloads are distinguished by their types."""
    module = compile_cuda(NAMES, names=["tile<16>", "tile<64 * 2>"])
    found = [(name, k.shared_bytes, k.line) for name, k in module.kernels.items()]
    assert found[2:] == [("ns::two", 0, 4), ("same(float*)", 0, None), ("same(int*)", 0, None)]
    assert [one[:2] for one in found[:2]] == [("tile<16>", 64), ("tile<64 * 2>", 512)]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        *(({"arch": arch}, "sm_75.*sm_120") for arch in ("sm_70", "compute_90", "", None, 9, True)),
        ({"options": ["-nonsense"]}, "nonsense"),
        ({"options": "-w"}, "options"),
        ({"options": ["-arch=sm_80"]}, "-arch=sm_80"),
        ({"options": ["-DTILE=3", "--gpu-architecture", "compute_80"]}, "--gpu-architecture"),
        ({"options": ["-dlto"]}, "-dlto"),
        ({"options": ["--ptx"]}, "--ptx"),
        ({"options": [""]}, "options"),
        ({"options": ["-D\0"]}, "options"),
        ({"names": ["nothing<3>"]}, "nothing"),
        ({"names": "saxpy"}, "names"),
        ({"source": b"__global__"}, "bytes"),
    ],
)
def test_what_the_compiler_cannot_be_given(arguments, value):
    """An invalid architecture, option, instance name or source is refused with an InputError."""
    with pytest.raises(InputError, match=value):
        compile_cuda(**{"source": SAXPY, **arguments})


# The source, and the line and column that a person would point at.
BROKEN = {
    "missing semicolon": (f"{KERNEL}\n  float a = 1   // one\n\n  x[0] = a;\n}}", 4, 3),
    "unknown name": (f"{KERNEL}\n\n\tx[0] = foo + 1;\n}}", 3, 9),
    "after letters of two bytes": (f"{KERNEL}\n  /* größer, länger */ x[0] = foo;\n}}", 2, 31),
    "carriage returns": (f"{KERNEL}\r\n\r\n  x[0] = foo;\r\n}}", 3, 10),
    "line separators": (f"{KERNEL} // a\u2028b\x0cc\n  x[0] = foo;\n}}", 2, 10),
    "two errors": (f"{KERNEL}\n  x[0] = foo; x[1] = bar; }}", 2, 10),
    "much shared memory": ("\n" + SHARED_OF.replace("TILE", "20000"), None, None),
    "much constant memory": (f"__constant__ float c[20000];\n{KERNEL} x[0] = c[2]; }}", None, None),
    "missing header": (f"\n#include <nothere.h>\n{KERNEL}}}", 2, 21),
    "open bracket": (f"{KERNEL}\n  if (x[0] > 1) {{\n    x[0] = 1;\n", None, None),
    "macro": (f"#define A(v) (v + zzz)\n{KERNEL}\n  x[0] = A(1);\n}}", 3, 10),
    "no body": (f"__device__ float ext(float);\n{KERNEL} x[0] = ext(1); }}", None, None),
    "inline assembly": (f'{KERNEL}\n  x[1] = 2;\n  asm("foo.bar;");\n}}', None, None),
    "no source": (" \n\t\n", None, None),
    "no kernel": ("__device__ float f(float x) { return x; }", None, None),
    "half a character": (f"{KERNEL}\n  x[0] = 1; }} // \ud800", None, None),
    "NUL": (f"{KERNEL}\n  x[0] = \0 1;\n}}", None, None),
    "a header's error": (f"#define __half2 int +\n#include <cuda_fp16.h>\n{KERNEL}}}", None, None),
    "long line": (f"{KERNEL} x[0] = {'1 + ' * 2000} foo; }}", 1, len(KERNEL) + 8 + 8000 + 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_stands_at_its_line(name):
    """The error has line and column; its message shows the line, shortened, with a caret below."""
    source, line, column = BROKEN[name]
    with pytest.raises(CompileError) as caught:
        compile_cuda(source)
    assert (caught.value.line, caught.value.column) == (line, column)
    if column is not None:
        _, shown, caret, _ = str(caught.value).split("\n")
        there = source.replace("\r", "").replace("\t", " ").split("\n")[line - 1][column - 1 :]
        assert shown.startswith(f"{line:>5} | ")
        assert there.startswith(shown[caret.index("^") :])
    assert ("2 errors" in str(caught.value)) == (name in ("two errors", "open bracket"))


def test_warnings_are_kept_with_their_line():
    """Warnings of the front end and of the assembler are both kept."""
    source = KERNEL.replace("void", "void __launch_bounds__(5000)") + "\n int unused; x[0] = 1; }"
    warnings = compile_cuda(source).warnings
    assert [one for one in warnings if "unused" in one and "line 2" in one]
    assert [one for one in warnings if "unused" not in one]


def test_threads_at_once_get_what_each_gets_alone():
    """Compilations in threads do not mix; a source that is nested too deep breaks nothing later."""
    with ThreadPoolExecutor(3) as pool:
        made = pool.map(
            lambda n: compile_cuda(SHARED_OF, "sm_86", [f"-DTILE={n}"]), (100, 200, 300)
        )
        assert [module.kernels["k"].shared_bytes for module in made] == [400, 800, 1200]
    with contextlib.suppress(CompileError):
        compile_cuda(f"{KERNEL} x[0] = {'(' * 20_000}1{')' * 20_000}; }}")
    assert list(compile_cuda(f"{KERNEL} x[0] = 7; }}").kernels) == ["k"]


def test_without_the_libraries_the_missing_package_is_named(monkeypatch, tmp_path):
    """If NVIDIA's libraries are missing, the error and the disassembly name the packages."""
    module = compile_cuda(f"{KERNEL} x[0] = 70; }}")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "pathfinder.py").write_text("""
def load_nvidia_dynamic_lib(name): raise RuntimeError("no such file")
""")
    monkeypatch.syspath_prepend(tmp_path)
    finder = importlib.import_module("cuda.pathfinder")
    monkeypatch.setattr(finder, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(MissingLibraryError, match="install nvidia-cuda-nvrtc"):
        compile_cuda(f"{KERNEL} x[0] = 71; }}")
    assert re.match("// .*install nvidia-cuda-nvdisasm", module.sass)


@pytest.mark.pins
def test_a_module_as_it_is_shown(approved):
    """A module shows a row for each kernel, with units, and its warnings.

    If there are two kernels, ``sass_lines`` requires the name of one.
    """
    first = KernelFacts("first", "first", 1, 8, 4096, 16, 4, 8, 400, 12, 1, None, 256)
    second = KernelFacts("second", "second", 2, 32, 0, 0, 0, 0, 400, 8, 0, 96, 128)
    texts, evidence = (
        ("Y29kZQ==", "", ("line 2: unused",), "NVRTC 13.0.88"),
        compile_cuda(SAXPY).evidence,
    )
    kernels = {"first": first, "second": second}
    made = CompiledModule("sm_90", "CUDA C++", "", (), (), kernels, "", *texts, evidence)
    for name in (None, "third"):
        with pytest.raises(InputError, match="first, second"):
            made.sass_lines(name)
    assert (first.spill_bytes, made.cubin) == (12, b"code")
    assert f"{made!r}\n{table_text(made._repr_html_())}" == approved


# -- Python ----------------------------------------------------------------------------------------

BLOCK = 256
WEIGHTS = np.arange(8, dtype=np.float32)
VECTOR = np.zeros(256, np.float32)
HANDLE, NUMBERS = object(), [1.0]


@cuda.jit(device=True)
def squared(value):
    """A device function that ``cuda.jit`` has wrapped."""
    return value * value


def scaled(value, factor=3):
    """A plain device function with a default argument; it calls another one."""
    return squared(value) * factor + value


def turned(x, y):
    """Load 256 elements, wait, and store them with neighbors exchanged."""
    block = cuda.shared.array(BLOCK, float32)
    i = cuda.threadIdx.x
    block[i] = x[i]
    cuda.syncthreads()
    y[i] = scaled(block[i ^ 1])


def saxpy(a, x, y):
    """Store a * x + y in y."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def crowded(y, n):
    """Keep many values live at once."""
    a = cuda.local.array(40, float32)
    for i in range(40):
        a[i] = y[i * n]
    cuda.syncthreads()
    for i in range(40):
        y[i * n + 1] = a[i] * a[39 - i] / y[0]


@pytest.mark.slow
def test_facts_of_a_python_kernel_by_hand():
    """256 floats, one barrier, and seven words of 8 bytes for an array of one dimension."""
    module = compile_python(turned, VECTOR, VECTOR, arch="sm_75")
    kernel = module.kernels["turned"]
    assert (kernel.shared_bytes, kernel.parameter_bytes, kernel.barriers) == (1024, 2 * 7 * 8, 1)
    assert kernel.registers == int(re.search(r"Used (\d+) registers", module.log).group(1))
    assert (module.language, module.arch, ".target sm_75" in module.ptx) == (
        "Python",
        "sm_75",
        True,
    )


@pytest.mark.slow
def test_types_and_lines_of_a_python_kernel():
    """Lines are those of the file, types those of the example arguments; a float is float64."""
    single, torch = (
        compile_python(saxpy, np.float32(2), VECTOR, VECTOR),
        pytest.importorskip("torch"),
    )
    first, lines = saxpy.__code__.co_firstlineno, single.sass_lines()
    assert [n for n, own in lines.items() if any("FFMA" in text for text in own)] == [first + 4]
    assert (single.kernels["saxpy"].line, single.source[:10]) == (first, "def saxpy(")
    interface = {
        "typestr": "<f4",
        "shape": (256,),
        "strides": None,
        "data": (0, False),
        "version": 3,
    }
    for x in (VECTOR + 1, torch.zeros(256), SimpleNamespace(__cuda_array_interface__=interface)):
        (other,) = compile_python(saxpy, np.float32(3), x, x).kernels.values()
        assert other._replace(symbol="") == single.kernels["saxpy"]._replace(symbol="")
    assert compile_python(saxpy, np.float32(2), VECTOR[::2], VECTOR).ptx != single.ptx
    assert ["DFMA" in m.sass for m in (single, compile_python(saxpy, 2.0, VECTOR, VECTOR))] == [
        False,
        True,
    ]


@pytest.mark.slow
def test_options_of_jit_count():
    """max_registers, launch_bounds and fastmath of cuda.jit reach the compiler."""
    asked = [{}, {"max_registers": 24}, {"launch_bounds": 128}, {"fastmath": True}]
    kernels = [cuda.jit(**options)(crowded) if options else crowded for options in asked]
    modules = [compile_python(kernel, VECTOR, np.int32(3)) for kernel in kernels]
    free, few, bound, fast = (module.kernels["crowded"] for module in modules)
    assert few.registers <= 24 < free.registers
    assert few.spill_bytes > 0 == free.spill_bytes
    assert (free.max_threads, bound.max_threads, fast.code_bytes < free.code_bytes) == (
        None,
        128,
        True,
    )


@pytest.mark.slow
def test_what_a_python_kernel_leans_on():
    """Outer arrays and numbers, device functions and their defaults are compiled into a kernel."""
    step = 3

    def left_out(x):
        x[0] = cuda.const.array_like(WEIGHTS)[int32(cuda.grid(1)) % 8] * step + scaled(x[0])

    def given(x):
        x[0] = cuda.const.array_like(WEIGHTS)[int32(cuda.grid(1)) % 8] * 3 + scaled(x[0], 3)

    kernels = {"left_out": left_out, "given": given}
    first, second = (instructions(compile_python(k, VECTOR), n) for n, k in kernels.items())
    assert first == second != []


def nothing_known(x):
    """Uses an undefined name."""
    x[0] = nowhere + 1  # noqa: F821


def recursive(x):
    """Calls itself."""
    x[0] = recursive(x)


def leans_on_an_object(x):
    """Uses an object that no compiler can take."""
    x[0] = HANDLE


def leans_on_a_list(x):
    """Uses a list; Numba's own error would show only its internal name for the type."""
    x[0] = NUMBERS[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "arguments", "options", "value", "offset"),
    [
        (nothing_known, (VECTOR,), {}, r"line \d+: nothing_known: .*nowhere", 2),  # of this file
        (recursive, (VECTOR,), {}, "recursi", 2),
        (leans_on_an_object, (VECTOR,), {}, "HANDLE", 2),
        (leans_on_a_list, (VECTOR,), {}, "'NUMBERS', which is a list", 2),
        # a name of the function around the kernel
        ((lambda own: lambda x: own[0])([1.0]), (VECTOR,), {}, "'own', which is a list", 0),  # noqa: PLC3002
        (len, (VECTOR,), {}, "function", None),
        (saxpy, (VECTOR,), {}, "3 arguments", None),
        (saxpy, (1.0, VECTOR, [1, 2]), {}, "list", None),
        (saxpy, (1.0, VECTOR, np.array([None])), {}, "type object", None),
        (saxpy, (1.0, VECTOR, VECTOR.astype(">f4")), {}, "type >f4", None),
        (saxpy, (1.0, VECTOR, VECTOR), {"arch": "sm_50"}, "sm_75", None),
    ],
)
def test_what_is_no_python_kernel_or_example_of_arguments(
    kernel, arguments, options, value, offset
):
    """The error names what is wrong and, where the compiler refuses a kernel, has its line."""
    with pytest.raises((InputError, CompileError), match=value) as caught:
        compile_python(kernel, *arguments, **options)
    line = getattr(caught.value, "line", None)
    assert line == (None if offset is None else kernel.__code__.co_firstlineno + offset)


@pytest.mark.slow
def test_an_interrupt_waits_for_numba(monkeypatch):
    """Ctrl-C takes effect only after Numba has compiled the kernel.

    Numba builds its tables once; interrupted there, it would refuse every kernel until Python ends.
    """
    compiled, ended = cuda.compile, []

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGINT)
        ended.append(compiled(*args, **options))
        return ended[0]

    monkeypatch.setattr(cuda, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_python(crowded, VECTOR, np.int32(3))
    assert ended


SCRIPT = """
import os, signal, sys, threading
import numpy as np
from numba import cuda
from gpulab.errors import DeviceError
from gpulab.kernels import compile_cuda, compile_python
KERNEL = 'extern "C" __global__ void k(float* x) {'

compile_cuda(KERNEL + " x[0] = 1; }")
try:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    compile_cuda(KERNEL + "x[0] += x[1] * x[2];" * 40_000 + "}")
except KeyboardInterrupt:
    print("interrupted")
print(*compile_cuda(KERNEL + " x[0] = 2; }").kernels)
try:
    compile_python(cuda.jit(lambda x: None), np.zeros(32))
except DeviceError as error:
    print(str(error).split(":")[1].split()[0])
"""


@pytest.mark.slow
def test_interrupts_and_numbas_simulator(tmp_path):
    """Ctrl-C raises KeyboardInterrupt, and later kernels compile; Numba's simulator is refused."""
    (tmp_path / "script.py").write_text(SCRIPT)
    asked = {"env": {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, "timeout": 240}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, **asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["interrupted", "k", "NUMBA_ENABLE_CUDASIM"], done.stderr
