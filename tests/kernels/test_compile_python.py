"""What compile_python says of numba.cuda-style kernels, without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from gpulab.errors import CompileError, InputError, MissingLibraryError
from gpulab.kernels import CompiledModule, compile_python
from gpulab.kernels._compile import _python

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no macOS build")
cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed (extra kernels)")

from numba import float32, int32  # noqa: E402

BLOCK = 256
WEIGHTS = np.arange(8, dtype=np.float32)


@cuda.jit(device=True)
def squared(value):
    """A device function that is wrapped."""
    return value * value


def doubled(value):
    """A device function that is plain, and calls another."""
    return squared(value) + value


def scaled(value, factor=3, shift=4):
    """A device function with defaults."""
    return squared(value) * factor + shift


def with_defaults(x):
    """Leave out what a device function has defaults for."""
    x[0] = scaled(x[0])


def without_defaults(x):
    """The same with them."""
    x[0] = scaled(x[0], 3, 4)


def turned(x, y):
    """Load a block of 256, wait, store it turned."""
    block = cuda.shared.array(BLOCK, float32)
    i = cuda.threadIdx.x
    block[i] = x[i]
    cuda.syncthreads()
    y[i] = doubled(block[i ^ 1])


def one_argument(x):
    """Nearly nothing."""
    x[0] = 1


def saxpy(a, x, y):
    """The usual."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def crowded(y, n):
    """Many values that live at once."""
    a = cuda.local.array(40, float32)
    for i in range(40):
        a[i] = y[i * n]
    cuda.syncthreads()
    for i in range(40):
        y[i * n + 1] = a[i] * a[39 - i]


VECTOR = np.zeros(256, np.float32)


@pytest.mark.parametrize("number", [75, 90, 120])
def test_facts_counted_by_hand(number: int) -> None:
    """256 floats of shared memory, one barrier; an array of one dimension is passed as seven words of 8 bytes."""
    module = compile_python(turned, VECTOR, VECTOR, arch=f"sm_{number}")
    kernel = module.kernels["turned"]
    assert (kernel.shared_bytes, kernel.parameter_bytes, kernel.barriers, kernel.spill_bytes) == (1024, 2 * 7 * 8, 1, 0)
    assert kernel.registers == int(re.search(r"ptxas info\s*: Used (\d+) registers", module.log).group(1))
    assert re.search(rf"^\.target sm_{number}$", module.ptx, re.MULTILINE)
    assert re.search(rf"\.target\s+sm_{number}\b", module.sass)
    assert module.language == "Python"
    assert "numba-cuda" in module.evidence.sentence


def test_instructions_belong_to_the_lines_of_the_file() -> None:
    """The multiplication and addition of saxpy stand on their line of this file."""
    module = compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
    first = saxpy.__code__.co_firstlineno
    lines = module.sass_lines()
    (line,) = [number for number, code in lines.items() if any("FFMA" in text for text in code)]
    assert line == first + 4
    assert module.kernels["saxpy"].line == first
    assert module.source.startswith("def saxpy(a, x, y):")


def test_a_device_function_keeps_its_defaults() -> None:
    """A call that leaves them out is compiled to what one with them is."""
    whole = np.zeros(1, np.int64)
    left_out, given = compile_python(with_defaults, whole), compile_python(without_defaults, whole)
    instructions = [re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", module.sass) for module in (left_out, given)]
    assert instructions[0]
    assert instructions[0] == instructions[1]


def test_types_come_from_the_examples() -> None:
    """A Python float is float64, as Numba has it; layouts and libraries count, values do not."""
    single = compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
    double = compile_python(saxpy, 2.0, VECTOR, VECTOR)
    assert "DFMA" in double.sass
    assert "DFMA" not in single.sass
    assert compile_python(saxpy, np.float32(3), VECTOR + 1, VECTOR) is single
    assert compile_python(saxpy, np.float32(2), VECTOR[::2], VECTOR).ptx != single.ptx


def test_examples_of_other_libraries() -> None:
    """A torch tensor, and anything with CUDA's array interface, is the array that it looks like."""
    torch = pytest.importorskip("torch")
    want = compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
    assert compile_python(saxpy, np.float32(2), torch.zeros(256), torch.zeros(256)) is want
    on_gpu = types.SimpleNamespace(
        __cuda_array_interface__={"typestr": "<f4", "shape": (256,), "strides": None, "data": (0, False), "version": 3}
    )
    assert compile_python(saxpy, np.float32(2), on_gpu, on_gpu) is want


def test_signature_in_place_of_examples() -> None:
    """Numba's words give what the examples give."""
    by_words = compile_python(saxpy, signature="void(float32, float32[::1], float32[::1])")
    by_example = compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
    assert by_words.kernels["saxpy"].registers == by_example.kernels["saxpy"].registers
    assert by_words.kernels["saxpy"].code_bytes == by_example.kernels["saxpy"].code_bytes


def test_options_of_jit_count() -> None:
    """max_registers and launch_bounds of cuda.jit reach the compiler; without them the kernel takes more, and promises nothing."""
    free, few, bound = cuda.jit(crowded), cuda.jit(max_registers=24)(crowded), cuda.jit(launch_bounds=128)(crowded)
    facts = [compile_python(kernel, VECTOR, np.int32(3)).kernels["crowded"] for kernel in (free, few, bound)]
    assert facts[1].registers <= 24 < facts[0].registers
    assert facts[1].spill_bytes > 0 == facts[0].spill_bytes
    assert [kernel.max_threads for kernel in facts] == [None, None, 128]


def test_fast_math_of_jit_counts() -> None:
    """An approximate division is shorter than an exact one."""

    def divided(x):
        x[0] = x[1] / x[2]

    exact, fast = cuda.jit(divided), cuda.jit(fastmath=True)(divided)
    sizes = [compile_python(kernel, VECTOR).kernels["divided"].code_bytes for kernel in (exact, fast)]
    assert sizes[1] < sizes[0]


def test_constants_closures_and_recursion_of_names() -> None:
    """A tuple, an array of constants, a number of the enclosing function and a device function with its own names."""
    step = 3

    def uses(x):
        table = cuda.const.array_like(WEIGHTS)
        i = int32(cuda.grid(1))
        x[i] = table[i % 8] * step + doubled(x[i])

    module = compile_python(uses, VECTOR)
    assert module.kernels["uses"].registers > 0
    assert ".const" in module.ptx or ".global .align" in module.ptx


def test_names_of_gpulab_compile_too() -> None:
    """A kernel written with gpulab's names is the kernel written with Numba's, also with gpulab's own stand-in for cuda."""
    from gpulab.kernels._language import StandIn

    names = {"cuda": StandIn(), "float32": np.float32, "TILE": 16}
    exec("def add(x):\n    s = cuda.shared.array(TILE, float32)\n    i = cuda.threadIdx.x\n    s[i] = x[i]\n    x[i] = s[i] + 1\n", names)
    assert compile_python(names["add"], VECTOR).kernels["add"].shared_bytes == 64


def nothing_known(x):
    """Uses a name that is not there."""
    x[0] = nowhere + 1  # noqa: F821


def opened(x):
    """Opens a file."""
    x[0] = open("x")  # noqa: SIM115, PTH123


def attribute(x):
    """Asks an array for what it has not."""
    x[0] = x.nothing


def words(x):
    """Stores text."""
    x[0] = "text"


@pytest.mark.parametrize(
    ("kernel", "offset", "said"),
    [
        (nothing_known, 2, "'nowhere' is not defined"),
        (opened, 2, "'open'"),
        (attribute, 2, "attribute 'nothing'"),
        (words, None, "setitem"),
    ],
)
def test_broken_kernels(kernel: types.FunctionType, offset: int | None, said: str) -> None:
    """Numba's own sentence, the line of this file, and its text."""
    with pytest.raises(CompileError, match=said) as caught:
        compile_python(kernel, VECTOR)
    if offset is not None:
        assert caught.value.line == kernel.__code__.co_firstlineno + offset
        assert f"line {caught.value.line}: {kernel.__name__}" in str(caught.value)
        assert "    x[0] = " in str(caught.value)


HANDLE = object()


def leans_on_an_object(x):
    """Uses an object that no compiler can take."""
    x[0] = HANDLE


@pytest.mark.parametrize(
    ("kernel", "arguments", "options", "words"),
    [
        (3, (), {}, "expected a Python function"),
        (len, (VECTOR,), {}, "expected a Python function"),
        (saxpy, (VECTOR,), {}, "takes 3 arguments and 1 were given"),
        (one_argument, (), {}, "takes 1 argument and 0 were given; expected one example for each of x. "),
        (saxpy, (1.0, VECTOR, "text"), {}, "str"),
        (saxpy, (1.0, VECTOR, [1, 2]), {}, "list"),
        (saxpy, (1.0, VECTOR, np.array(["a"])), {}, "dtype"),
        (saxpy, (1.0, VECTOR, VECTOR), {"signature": "void()"}, "Leave one of them out"),
        (saxpy, (), {"signature": 3}, "signature=3"),
        (saxpy, (1.0, VECTOR, VECTOR), {"arch": "sm_50"}, "sm_75"),
        (saxpy, (), {"signature": "void(float99)"}, "float99"),
        (leans_on_an_object, (VECTOR,), {}, "HANDLE"),
    ],
)
def test_bad_input(kernel: object, arguments: tuple[object, ...], options: dict[str, object], words: str) -> None:
    """One sentence that says what was expected."""
    with pytest.raises((InputError, CompileError), match=words):
        compile_python(kernel, *arguments, **options)


def test_too_much_shared_memory() -> None:
    """The assembler's refusal is told with its numbers."""

    def large(x):
        block = cuda.shared.array(20000, float32)
        block[cuda.threadIdx.x] = x[0]
        cuda.syncthreads()
        x[1] = block[3]

    with pytest.raises(CompileError, match=r"shared data|80000|0x13880"):
        compile_python(large, VECTOR)


def test_goes_through_json() -> None:
    """The result survives a file."""
    module = compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
    again = CompiledModule.from_dict(json.loads(json.dumps(module.to_dict(), allow_nan=False)))
    assert again == module
    assert again.sass_lines() == module.sass_lines()


def test_simulator_flag_of_numba_changes_nothing(tmp_path: object) -> None:
    """Where the session runs Numba's simulator, the compiler is still the real one."""
    script = tmp_path / "kernel.py"
    script.write_text(
        "import numpy as np\nfrom numba import cuda, float32\nfrom gpulab.kernels import compile_python\n"
        "@cuda.jit(device=True)\ndef one(v):\n    return v + 1\n"
        "@cuda.jit\ndef k(x):\n    s = cuda.shared.array(32, float32)\n    i = cuda.threadIdx.x\n    s[i] = one(x[i])\n    x[i] = s[i]\n"
        "print(compile_python(k, np.zeros(32, np.float32)).kernels['k'].shared_bytes)\n"
    )
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["128"], done.stderr


def test_process_that_dies_is_told_and_replaced() -> None:
    """The next call starts another."""
    compile_python(saxpy, np.float32(2), VECTOR, VECTOR, arch="sm_80")
    _python._worker._process.kill()
    _python._worker._process.wait()
    assert compile_python(saxpy, np.float32(2), VECTOR, VECTOR, arch="sm_86").arch == "sm_86"


def test_without_numba_one_sentence_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr(_python.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match=r"numba and numba_cuda is not installed.*pip install .* -e '\.\[kernels\]'"):
        compile_python(saxpy, np.float32(2), VECTOR, VECTOR)
