"""The parts of the compilers' side by themselves, with stand-ins for what this machine need not have."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpulab.errors import CompileError, InputError, MissingLibraryError
from gpulab.kernels._compile import (
    _cuda,
    _elf,
    _faults,
    _libraries,
    _log,
    _names,
    _nvrtc,
    _nvrtc_library,
    _portable,
    _python,
    _sass,
    compile_cuda,
)
from gpulab.kernels._compile.results import KernelFacts, module
from gpulab.kernels._language import StandIn

TWO = """extern "C" __global__ void first(float* x) { x[0] = 1; }
extern "C" __global__ void __launch_bounds__(96) second(float* x, int n) {
    __shared__ float tile[1024];
    tile[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[n] = tile[n];
}"""


class Nvrtc:
    """NVRTC as its reference has it: each call noted, texts by name, and the codes that some calls return."""

    def __init__(self, texts: dict[str, bytes], **codes: int) -> None:
        self.texts, self.codes, self.log = texts, codes, []

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvrtc")

        def call(*given: Any) -> Any:
            if what == "GetErrorString":
                return b"NVRTC_ERROR_%d" % given[0]
            if what == "GetLoweredName":
                given[2]._obj.value = b"_Z" + given[1]
            elif what.startswith("Get") and what.endswith("Size"):
                given[1]._obj.value = len(self.texts.get(what[3:-4], b""))
            elif what.startswith("Get"):
                ctypes.memmove(given[1], self.texts[what[3:]], len(self.texts[what[3:]]))
            else:
                self.log.append((what, *(list(one) if isinstance(one, ctypes.Array) else one for one in given[1:])))
            return self.codes.get(what, 0)

        return call


def test_what_nvrtc_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source, names and options in the order of its reference; texts end before their NUL; the program is destroyed."""
    nvrtc = Nvrtc({"ProgramLog": b" used 8 \0", "PTX": b".version 9\0", "CUBIN": b"\x7fELF\0"})
    monkeypatch.setattr(_nvrtc_library, "library", lambda: nvrtc)
    made = _nvrtc_library.compile_program("source", ["-a", "-b"], ["tile<16>"])
    assert made == _nvrtc_library.Output(0, "used 8", ".version 9", b"\x7fELF\0", (("tile<16>", "_Ztile<16>"),))
    assert nvrtc.log == [
        ("CreateProgram", b"source", b"kernel.cu", 0, None, None), ("AddNameExpression", b"tile<16>"),
        ("CompileProgram", 2, [b"-a", b"-b"]),
        ("DestroyProgram",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "texts", "expected", "destroyed"),
    [
        ({"CreateProgram": 2}, {}, (2, "NVRTC_ERROR_2"), False),
        ({"CompileProgram": 6}, {"ProgramLog": b"kernel.cu(1): error\0"}, (6, "kernel.cu(1): error"), True),
        ({"CompileProgram": 5}, {}, (5, "NVRTC_ERROR_5"), True),
        ({"CompileProgram": 6, "GetProgramLogSize": 1}, {"ProgramLog": b"lost\0"}, (6, "NVRTC_ERROR_6"), True),
    ],
)
def test_what_nvrtc_refuses(
    monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], texts: dict[str, bytes], expected: tuple[int, str], destroyed: bool
) -> None:
    """The code and the log, or NVRTC's word for the code where there is none; no code and no texts; what was made is destroyed."""
    nvrtc = Nvrtc(texts, **codes)
    monkeypatch.setattr(_nvrtc_library, "library", lambda: nvrtc)
    assert _nvrtc_library.compile_program("source", []) == _nvrtc_library.Output(*expected)
    assert (nvrtc.log[-1] == ("DestroyProgram",)) == destroyed
    assert _nvrtc_library.INVALID_OPTION == 5  # nvrtc.h


def test_nvrtcs_words_for_a_code_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is an int to ctypes unless it is told."""
    loaded = types.SimpleNamespace(nvrtcGetErrorString=types.SimpleNamespace())
    monkeypatch.setattr(_nvrtc_library._libraries, "load", lambda name: {"nvrtc": loaded}[name])
    assert _nvrtc_library.library.__wrapped__().nvrtcGetErrorString.restype is ctypes.c_char_p


def test_a_missing_nvrtc_is_told_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """But what links has a library of its own, and the process says what it lacks."""
    asked = []
    monkeypatch.setattr(_nvrtc._libraries, "find_library", lambda name: None)
    monkeypatch.setattr(_nvrtc._worker, "ask", asked.append)
    with pytest.raises(MissingLibraryError):
        _nvrtc._asked("compile_program", "source")
    assert asked == []
    _nvrtc._asked("link", b"code")
    assert asked == [("link", (b"code",))]


def test_a_library_is_loaded_after_its_builtins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVRTC opens them by their bare name, which the loader knows once they are loaded; no other library's."""
    (tmp_path / "lib").mkdir()
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libother-builtins.so.13.0"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(_libraries, "_WINDOWS", False)
    monkeypatch.setattr(_libraries.sys, "platform", "linux")
    monkeypatch.setattr(_libraries, "roots", lambda: iter([tmp_path]))
    loaded = []
    monkeypatch.setattr(_libraries.ctypes, "CDLL", lambda path: loaded.append(Path(path).name) or "a library")
    assert _libraries.load("nvrtc") == "a library"
    assert loaded == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]


@pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no macOS build")
def test_the_facts_of_a_file_are_its_own() -> None:
    """Registers stand in the file as in the assembler's log, and not only there; the rest by hand."""
    made = compile_cuda(TWO)
    kernels, constants = _elf.read(made.cubin, "sm_90")
    facts = made.kernels
    assert {k.symbol: (k.registers, k.shared_bytes, k.parameter_bytes, k.max_threads, k.code_bytes) for k in kernels} == {
        "first": (facts["first"].registers, 0, 8, None, facts["first"].code_bytes),
        "second": (facts["second"].registers, 4096, 12, 96, facts["second"].code_bytes),
    }
    assert constants == 0


def test_a_required_size_of_a_block_goes_before_the_largest() -> None:
    """Attributes by hand: three numbers under 0x05 (at most) and 0x10 (exactly, EIATTR_REQNTID); others are passed over by their form."""
    at_most, exactly = ((0x04, number, 12, x, 2, 1) for number, x in ((0x05, 100), (0x10, 32)))
    data = b"".join(
        np.array(one[2:3], "<u2").tobytes().join([bytes(one[:2]), np.array(one[3:], "<u4").tobytes()]) for one in (at_most, exactly)
    )
    others = bytes([0x01, 0x50, 0, 0, 0x03, 0x1B, 0xFF, 0x00])
    own = dict(_elf._attributes(others + data + b"\4"))
    assert set(own) == {0x50, 0x1B, _elf._MAX_THREADS, _elf._REQUIRED_THREADS}
    assert (_elf._MAX_THREADS, _elf._REQUIRED_THREADS) == (0x05, 0x10)
    assert own[0x1B] == b"\xff\0"
    assert (_elf._product(own[0x05]), _elf._product(own[0x10])) == (200, 64)


def test_an_attribute_may_end_the_section() -> None:
    """One that holds two bytes itself, and one of four bytes beside it: the last byte of the data is read."""
    for last, value in ((bytes([0x03, 0x1B, 0xFF, 0x01]), b"\xff\x01"), (bytes([0x04, 0x1B, 4, 0, 1, 2, 3, 4]), bytes([1, 2, 3, 4]))):
        assert dict(_elf._attributes(last)) == {0x1B: value}


@pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no macOS build")
def test_a_section_without_room_in_the_file_has_no_data() -> None:
    """Shared memory has a size alone (SHT_NOBITS of the ELF format), and the kernel's code is as long as it says."""
    parts = {part.name: part for part in _elf.sections(compile_cuda(TWO, "sm_80").cubin)}
    shared, code = parts[".nv.shared.second"], parts[".text.second"]
    assert (shared.size, shared.data) == (4096, b"")
    assert len(code.data) == code.size > 0


@pytest.mark.parametrize("cubin", [b"", b"\x7fELF\x02\x01" + bytes(57), b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_machine_code_is_refused(cubin: bytes) -> None:
    """Too short for a head, or of 32 bits."""
    with pytest.raises(CompileError, match=f"cubin: {len(cubin)} bytes that are no ELF file of NVIDIA"):
        _elf.sections(cubin)


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_a_disassembler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it said, at most 200 characters; one that cannot run; one that answers is asked for code with the options."""
    tool = tmp_path / "nvdisasm"
    monkeypatch.setattr(_sass._libraries, "find_tool", lambda name: tool)
    with pytest.raises(CompileError, match=r"sass: .*nvdisasm did not run"):
        _sass.disassembled(b"one")
    tool.write_text(f"#!/bin/sh\necho {'x' * 300} >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(CompileError, match=rf"sass: nvdisasm cannot read this code \({'x' * 197}\.\.\.\); expected") as told:
        _sass.disassembled(b"two")
    assert told.value.log == "x" * 300 + "\n"
    tool.write_text('#!/bin/sh\necho "$1 $2 $#"; cat "$3"\n')
    assert _sass.disassembled(b"three", "-g") == "-c -g 3\nthree"


_DISASSEMBLED = """//--------------------- .text.first
.text.first:
        //## File "kernel.cu", line 9
        /*0000*/                   EXIT ;
//--------------------- .text.second
.text.second:
        /*0000*/                   NOP ;
        //## File "kernel.cu", line 4
        /*0010*/                   MOV R1, c[0x0][0x28] ;
        //## File "cuda_fp16.h", line 70
        /*0020*/                   HADD2 R2, R3, R4 ;
        //## File "kernel.cu", line 2 inlined at "kernel.cu", line 4
        /*0030*/                   IADD3 R5, R6, R7, RZ ;
        //## File "kernel.cu", line 3
        /*0040*/                   STG.E [R2.64], R5 ;
        //## File "kernel.cu", line 4
        /*0050*/                   EXIT ;
//--------------------- .nv.shared.second
        //## File "kernel.cu", line 8
        /*0060*/                   BRA 0x60 ;
"""


def test_instructions_by_line_are_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: of its section alone, each at the last line of the file that was named; a header's, and what was put in, at the caller's."""
    asked = []
    monkeypatch.setattr(_sass, "disassembled", lambda cubin, *options: asked.append((cubin, options)) or _DISASSEMBLED)
    found = _sass.by_line(types.SimpleNamespace(language="Python", cubin=b"code"), types.SimpleNamespace(symbol="second"))  # type: ignore[arg-type]
    assert asked == [(b"code", ("-g",))]
    assert list(found.items()) == [
        (3, ("STG.E [R2.64], R5",)), (4, ("MOV R1, c[0x0][0x28]", "HADD2 R2, R3, R4", "IADD3 R5, R6, R7, RZ", "EXIT")),
    ]  # fmt: skip


@pytest.mark.parametrize(("column", "start"), [(0, 0), (99, 0), (100, 40), (101, 41), (250, 190)])
def test_a_long_line_is_shown_around_the_place(column: int, start: int) -> None:
    """Of its characters 120: from its begin where the place is among the first hundred, else with the place in the middle."""
    line = "".join(chr(ord("a") + i % 26) for i in range(400))
    head, shown, caret, advice = _faults._block("wrong.", line, column, 7, 2).split("\n")
    assert head == "compile_cuda: wrong. (2 errors; this is the first)"
    assert shown == "    7 | " + line[start : start + 120]
    assert caret == "      | " + " " * (column - start) + "^"
    assert advice == "Mend it and run it again."


def test_a_source_of_a_million_characters_is_the_longest() -> None:
    """One more is refused; carriage returns go, so that lines count once."""
    assert _cuda.checked_source("x" * 1_000_000) == "x" * 1_000_000
    with pytest.raises(InputError, match="the source has 1,000,001 characters; expected at most 1,000,000"):
        _cuda.checked_source("x" * 1_000_001)
    assert _cuda.checked_source("a\r\nb\rc\n") == "a\nb\nc\n"


def test_what_a_failed_compiler_means() -> None:
    """Files of its own that are missing are installed again; what it says of no place in the source is told as it is, shortened."""
    error = _faults.fault("", "sm_90", (), (), _nvrtc.Output(7, "nvrtc: error: failed to open libnvrtc-builtins.so.13.0"))
    assert isinstance(error, MissingLibraryError)
    assert "expected NVRTC with all its files" in str(error)
    error = _faults.fault("", "sm_90", (), (), _nvrtc.Output(7, "x" * 400))
    assert isinstance(error, CompileError)
    assert str(error) == f"compile_cuda: the compiler failed for sm_90 ({'x' * 300}); expected code or an error. Try another arch."
    assert error.log == "x" * 400
    # A line without a caret under it: the line is told, and no column.
    error = _faults.fault("int a\nint b;", "sm_90", (), (), _nvrtc.Output(6, f'{_nvrtc.FILE}(2): error: expected a ";"\n'))
    assert isinstance(error, CompileError)
    assert (error.line, error.column) == (2, None)


def test_names_without_a_cpp_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain name is read off; what is no name of C++ stays, also where the library refuses it."""
    assert _names.demangled("_Zxx") == "_Zxx"
    monkeypatch.setattr(_names, "_demangler", lambda: None)
    assert [_names.demangled(symbol) for symbol in ("_Z4tileILi16EEvPf", "saxpy", "_ZN2ns3twoEPd")] == ["tile<...>", "saxpy", "ns::two"]


def test_the_place_of_a_kernel_without_a_namespaces_name() -> None:
    """The C++ library writes brackets for a namespace without a name; the kernel stands where its own name does."""
    source = "int first;\nnamespace {\n__global__ void k(float* x) {}\ntemplate <int N> __global__ void tile(float* x) {}\n}\n"
    written = ("(anonymous namespace)::k(float*)", "void (anonymous namespace)::tile<3>(float*)")  # by c++filt
    assert [_names.kernel_place(source, _names.without_types(name)) for name in written] == [(3, 17), (4, 34)]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("int k;\n__global__ void k(float* x) {}", (2, 17)),  # not where another thing has the name
        ("#define MADE(name) __global__ void name(float* x) {}\n\n MADE(k)", (3, 7)),  # where a macro is given it
        ("__global__ void other(float* x) {}", None),
    ],
)
def test_the_place_of_a_kernel_is_that_of_its_definition(source: str, place: tuple[int, int] | None) -> None:
    """The name before its parameters, else the first place that has it, else none."""
    assert _names.kernel_place(source, "k") == place


def test_types_of_examples() -> None:
    """As numba writes them: 64 bits for Python's numbers; layouts C, F, or A for neither; axes of one element decide nothing."""
    array = np.zeros((3, 4), np.float32)
    on_gpu = types.SimpleNamespace(__cuda_array_interface__={"typestr": "<i2", "shape": (3, 4), "strides": (2, 6)})
    record = np.zeros(2, [("a", "f4")])

    class Watched:
        """A CUDA tensor that autograd watches, as PyTorch answers for it."""

        requires_grad = True

        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

        def detach(self) -> Any:
            return on_gpu

    for example, described in {
        True: ("scalar", np.dtype(bool)), 7: ("scalar", np.dtype("int64")), 1.5: ("scalar", np.dtype("float64")),
        1j: ("scalar", np.dtype("complex128")), np.int8(3): ("scalar", np.dtype("int8")),
        (1.5, (2,)): ("tuple", [("scalar", np.dtype("float64")), ("tuple", [("scalar", np.dtype("int64"))])]),
    }.items():  # fmt: skip
        assert _portable.described(example, "compile_python") == described
    for example, layout in ((array, "C"), (array.T, "F"), (array[:, ::2], "A"), (array[::2], "A"), (array[:1], "C"), (array[:, :1], "A")):
        assert _portable.described(example, "compile_python") == ("array", (np.dtype("float32"), 2, layout))
    for example in (on_gpu, Watched()):
        assert _portable.described(example, "compile_python") == ("array", (np.dtype("int16"), 2, "F"))
    assert _portable.described(record, "compile_python") == ("array", (record.dtype, 1, "C"))
    assert _portable._layout((1, 4), (999, 4), 4) == "C"
    assert _portable._layout((4, 1), (4, 999), 4) == "C"


def test_an_array_without_dimensions_is_a_number_as_for_simulate_and_launch() -> None:
    """What NumPy and PyTorch make of a sum, here and on a GPU."""

    class OnGpu:
        """A CUDA tensor of no dimensions."""

        requires_grad = False
        __cuda_array_interface__ = {"typestr": "<f4", "shape": (), "strides": None}

        def detach(self) -> Any:
            return self

    torch = pytest.importorskip("torch")
    for example, dtype in ((np.array(2.5), "float64"), (torch.tensor(3), "int64"), (torch.ones(2).sum(), "float32"), (OnGpu(), "float32")):
        assert _portable.described(example, "compile_python") == ("scalar", np.dtype(dtype))


def helper(v):
    """Of the test's module."""
    return v + 1


def test_what_a_name_stands_for() -> None:
    """Each kind of value as the other process is told it; what it cannot have is refused at the function's line."""

    def kernel(x):
        """Leans on names."""
        x[0] = helper(x[0])

    def told(value: Any) -> Any:
        return _portable._value("name", value, (kernel,), "compile_python", {})

    numba = pytest.importorskip("numba")
    simulated = types.SimpleNamespace(fn=helper)
    wrapped = types.SimpleNamespace(py_func=helper, targetoptions={"fastmath": True, "inline": False, "max_registers": None, "debug": True})
    for value in (3, 2.5, "text", None, np.float32(1), np.arange(3), (1, (2, 3.0)), abs, np.sin, math.sin, int):
        assert told(value)[0] == "value"
    assert told(math) == ("module", "math")
    assert told(StandIn()) == ("module", "numba.cuda")
    assert told(StandIn(".shared.array")) == ("numba", "shared.array")
    assert told(numba.float32) == ("numba", "float32")
    kind, (data, options) = told(helper)
    assert (kind, data["name"], options) == ("function", "helper", {})
    assert (told(simulated)[1][0]["name"], told(simulated)[1][1]) == ("helper", {})
    assert (told(wrapped)[1][0]["name"], told(wrapped)[1][1]) == ("helper", {"fastmath": True})
    line = kernel.__code__.co_firstlineno
    with pytest.raises(CompileError, match=rf"compile_python: line {line}: kernel uses 'name', which is an object"):
        told(object())
    assert _portable.line_of_name(kernel.__code__, "helper") == line + 2
    assert _portable.line_of_name(kernel.__code__, "nothing") is None


@pytest.mark.parametrize("home", ["math_helpers", "numba_examples", "numpy_tricks", "gpulab_solutions"])
def test_a_device_function_may_come_from_a_module_of_any_name(home: str) -> None:
    """A learner's own module that begins as a library does is sent as any other."""
    names: dict[str, Any] = {"__name__": home}
    exec("def f(v):\n    return v + 1\ndef kernel(x):\n    x[0] = f(x[0])\n", names)
    assert _portable.portable(names["kernel"], "compile_python")["globals"]["f"][0] == "function"


def test_a_function_that_is_met_twice_is_sent_once() -> None:
    """The second time by its number, whoever calls it."""
    names: dict[str, Any] = {}
    exec("def f(v):\n    return v\ndef g(v):\n    return f(v)\ndef kernel(x):\n    x[0] = g(f(x[0]))\n", names)
    sent = _portable.portable(names["kernel"], "compile_python")
    (kind, (f, _)), (_, (g, _)) = sent["globals"]["f"], sent["globals"]["g"]
    assert (kind, sent["number"], f["number"], g["number"]) == ("function", 0, 1, 2)
    assert g["globals"] == {"f": ("function", ({"again": 1}, {}))}


_CALLED = "def kernel(x):\n    x[0] = f(3)\n"
_CIRCLE = "    def f(v):\n        return 0 if v < 1 else f(v - 1)\n"
_INSIDE = f"def around():\n{_CIRCLE}    def kernel(x):\n        x[0] = f(3)\n    return kernel\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"def f(v):\n    return 0 if v < 1 else f(v - 1)\n{_CALLED}", 2),
        (f"def g(v):\n    return f(v)\ndef f(v):\n    return g(v - 1)\n{_CALLED}", 2),
        (f"{_INSIDE}kernel = around()\n", 3),
        ("def kernel(x):\n    x[0] = 1\n    kernel(x)\n", 3),
    ],
    ids=["directly", "through another", "in a function", "a kernel"],
)
def test_what_calls_itself_is_refused_as_under_the_microscope(text: str, line: int) -> None:
    """At the line of the call that closes the circle; the compiler itself would speak of an untyped global name."""
    names: dict[str, Any] = {}
    exec(text, names)
    with pytest.raises(CompileError, match=rf"^compile_python: line {line}: \w+ calls itself; recursion is not supported.") as refused:
        _portable.portable(names["kernel"], "compile_python")
    assert refused.value.line == line


def test_the_oldest_of_many_results_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two: the one that was asked for last stays."""
    made = []
    monkeypatch.setattr(_python, "_CACHED", 2)
    monkeypatch.setattr(_python, "_cache", type(_python._cache)())
    monkeypatch.setattr(_python, "_check_installed", lambda: None)
    monkeypatch.setattr(_python, "checked_arch", lambda arch: arch)
    monkeypatch.setattr(_python, "_made", lambda function, request, arch, options: made.append(arch) or object())
    for arch in ("sm_75", "sm_80", "sm_75", "sm_90", "sm_75", "sm_80"):
        _python.compile_python(helper, 1, arch=arch)
    assert made == ["sm_75", "sm_80", "sm_90", "sm_80"]
    assert len(_python._cache) == 2


@pytest.mark.parametrize(
    "answer",
    [
        {"missing": "numba", "message": "No module"},
        {"error": "E", "message": "CUDA Toolkit"},
        {"error": "E", "message": "libNVVM is not here"},
    ],
)
def test_a_part_that_numba_lacks_is_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch, answer: dict[str, str]) -> None:
    """Whatever it calls the part, the message says what to install."""
    monkeypatch.setattr(_python._worker, "ask", lambda request: answer)
    with pytest.raises(
        MissingLibraryError, match=rf"compile_python: numba-cuda cannot run here \({answer['message']}\)\. No GPU is needed"
    ):
        _python._made(helper, {}, "sm_90", {})


def test_the_sentence_of_numbas_message() -> None:
    """What wraps it is left out; a call that Numba lacks is named; 300 characters are enough."""
    for message, said in (
        ("Failed in cuda mode pipeline\nDuring: typing\nCannot unify int and str:\nFile x", "Cannot unify int and str"),
        ("No implementation of function\n\n >>> foo(int64)\n\nThere are 2", "Numba has no foo(int64)"),
        ("Something else\n >>> foo(int64)", "Something else"),
        ("During: typing\nFile x", "During: typing"),
        ("y" * 400, "y" * 297 + "..."),
    ):
        assert _python._core(message) == said


def test_results_in_full() -> None:
    """A row a kernel with its units, then the warnings; which kernel is meant where there are two."""
    first = KernelFacts("first", "first", 1, 8, 4096, 16, 4, 8, 400, 12, 1, None, 256)
    second = KernelFacts("second", "second", 2, 32, 0, 0, 0, 0, 400, 8, 0, 96, 128)
    made = module(
        b"code", {"first": first, "second": second}, arch="sm_90", language="CUDA C++", source="", options=(), names=(), ptx="", log="",
        warnings=("line 2: unused",), compiler="NVRTC 13.0.88",
    )  # fmt: skip
    assert first.spill_bytes == 12
    assert made.table() == (
        ("kernel", "registers (a thread)", "shared (a block)", "stack (a thread)", "spill stores", "spill loads", "constants", "arguments",
         "threads at most", "code"),
        [("first", "8", "4.00 KiB", "16 B", "4 B", "8 B", "400 B", "12 B", "no promise", "256 B"),
         ("second", "32", "0 B", "0 B", "0 B", "0 B", "400 B", "8 B", "96", "128 B"), ("warning", "line 2: unused", *[""] * 8)],
    )  # fmt: skip
    assert repr(made) == "<CompiledModule for sm_90; first: 8 registers, 4.00 KiB shared; second: 32 registers, 0 B shared>"
    assert (made._kernel("second"), made.cubin) == (second, b"code")
    assert made.evidence.known_error == "none: a GPU launches by these figures"
    for name, told in ((None, "no name"), ("third", "'third'")):
        with pytest.raises(InputError, match=f"sass_lines: {told} was given; expected one of first, second"):
            made.sass_lines(name)


# As NVRTC 13 and ptxas write them: a kernel with the function that it calls, one that takes nothing, and one of which nothing is said.
_LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 48 bytes cumulative stack size
ptxas info    : Function properties for f
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Compiling entry function 'j' for 'sm_90'
ptxas info    : Function properties for j
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
ptxas info    : Compiling entry function 'u' for 'sm_90'
"""


def test_what_the_assembler_prints_of_a_kernel() -> None:
    """By hand: spills with those of what it calls, the whole stack where it is told and its own frame else, barriers if there are some."""
    assert _log.usage(_LOG) == {"k": _log.Usage(32, 1, 48, 16, 24), "j": _log.Usage(8, 0, 24, 0, 0)}


def test_what_the_front_end_prints() -> None:
    """With the source line and the caret's column where they follow, without where they do not; warnings of both compilers, a line each."""
    log = """kernel.cu(3): warning #177-D: variable "x" was declared
  int x;
      ^

At end of source: warning: odd
ptxas warning : Stack size cannot be determined
kernel.cu(5): error: the end
  y"""
    assert _log.diagnostics(log) == [
        _log.Diagnostic("warning", 'variable "x" was declared', "kernel.cu", 3, "int x;", 4),
        _log.Diagnostic("warning", "odd", None, None),
        _log.Diagnostic("error", "the end", "kernel.cu", 5),
    ]
    assert _log.warnings(log) == ('line 3: variable "x" was declared', "odd", "Stack size cannot be determined")
    assert _log.ptx_error("ptxas application ptx input, line 12; error   : No such thing") == (12, "No such thing")
    assert _log.ptx_error(log) is _log.assembler_error(log) is None
    assert _log.assembler_error("ptxas error   : Too much of it ") == "Too much of it"


def _refused(source: str, log: str) -> CompileError:
    error = _faults.fault(source, "sm_90", (), (), _nvrtc.Output(6, log.replace("@", _nvrtc.FILE)))
    assert isinstance(error, CompileError)
    return error


@pytest.mark.parametrize(
    ("source", "log", "place", "message"),
    [
        # What is missing belongs behind the word before, which may stand lines above; nothing stands before the first word.
        ("int a\nint b;", '@(2): error: expected a ";"\n  int b;\n  ^\n', (1, 6),
         'line 1, column 6: expected a ";".\n    1 | int a\n      |      ^\n'),
        ("\n b", '@(2): error: expected a ";"\n   b\n   ^\n', (2, 2), 'line 2, column 2: expected a ";".\n    2 |  b\n      |  ^\n'),
        # At the end of the source: the bracket that the note names, or the last line.
        ("int f() {\n}\nint g() {", "At end of source: error: expected a }\n@(3): note: match this {\n  int g() {\n          ^\n", (3, 9),
         'line 3, column 9: expected a } before the end of the source; this one is still open: "{".\n    3 | int g() {\n'
         "      |         ^\n"),
        ("int a;\nint b", "At end of source: error: expected a declaration\n", (2, None),
         "line 2: expected a declaration before the end of the source.\n    2 | int b\n"),
        ("x y", "@(1): error: no\n  x y\n  ^\n@(1): error: nor\n  x y\n    ^\n", (1, 1),
         "line 1, column 1: no. (2 errors; this is the first)\n    1 | x y\n      | ^\n"),
    ],
)  # fmt: skip
def test_errors_of_the_front_end_in_full(source: str, log: str, place: tuple[int, int | None], message: str) -> None:
    """To the letter: the place, the words, the line with its caret, how many more there are, and what to do."""
    error = _refused(source, log)
    assert (error.line, error.column) == place
    assert str(error) == f"compile_cuda: {message}Mend it and run it again."


@pytest.mark.parametrize(("folders", "words"), [([], "-m pip install nvidia-cuda-runtime"), ([Path("/x")], "take <cuda/std/cstdint>")])
def test_a_missing_header_says_which_there_are(monkeypatch: pytest.MonkeyPatch, folders: list[Path], words: str) -> None:
    """How to install CUDA's own; where they are, what takes the place of the standard library's. Both of the front end's wordings."""
    monkeypatch.setattr(_faults._libraries, "include_folders", lambda: folders)
    for said in ("could not open", "cannot open"):
        assert words in str(_refused("#include <x>", f'@(1): error: {said} source file "x"\n'))


@pytest.mark.parametrize(
    ("at", "ptx", "line"),
    [(3, ".loc 1 5 0\n.loc 1 7 0\nfoo\n.loc 1 9 0", 7), (1, "foo\n.loc 1 9 0", None), (3, "", None), (None, ".loc 1 5 0", None)],
)
def test_the_line_of_inline_assembly_is_that_of_the_last_mark_above(
    monkeypatch: pytest.MonkeyPatch, at: int | None, ptx: str, line: int | None
) -> None:
    """Compiled again with marks of lines: once to see where the assembler stops then, once for the PTX alone, which has no assembler."""
    asked = []

    def compiled(source: str, flags: Any, names: Any) -> Any:
        asked.append(tuple(flags))
        log = "" if at is None else f"ptxas application ptx input, line {at}; error   : Not a name of any known instruction: 'foo'\n"
        return _nvrtc.Output(0 if len(asked) > 1 else 6, log, ptx)

    monkeypatch.setattr(_faults._nvrtc, "compile_program", compiled)
    assert _faults._line_of_ptx("source", ("--gpu-architecture=sm_90", "--ptxas-options=-v", "-DX"), ()) == line
    assert asked == [
        ("--gpu-architecture=sm_90", "--ptxas-options=-v", "-DX", "-lineinfo"), ("--gpu-architecture=compute_90", "-DX", "-lineinfo"),
    ]  # fmt: skip
