"""Sources that no compiler takes: each is refused in one message with the right line, the caret under the place, and what to do."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from gpulab.errors import CompileError, GpulabError, InputError
from gpulab.kernels import compile_cuda

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no macOS build")

KERNEL = "__global__ void k(float* x) {"
# What is wrong -> the source, the line and column that a person would point at, and words that the message must have.
BROKEN: dict[str, tuple[str, int | None, int | None, str]] = {
    "missing semicolon": (f"{KERNEL}\n  float a = 1   // one\n\n  x[0] = a;\n}}", 2, 14, 'expected a ";"'),
    "missing semicolon on one line": (f"{KERNEL} float a = 1 x[0] = a; }}", 1, 43, 'expected a ";"'),
    "unknown identifier": (f"{KERNEL}\n\n\tx[0] = foo + 1;\n}}", 3, 9, 'identifier "foo" is undefined'),
    "identifier after letters of two bytes": (f"{KERNEL}\n  /* größer, länger */ x[0] = foo;\n}}", 2, 31, '"foo" is undefined'),
    "too much shared memory": (
        f'\n\nextern "C" {KERNEL}\n __shared__ float a[20000]; a[threadIdx.x] = x[0]; x[1] = a[3]; }}', 3, 28, "80,000 bytes, 49,152 max",
    ),
    "too much constant memory": (f"\n__constant__ float c[20000];\n{KERNEL} x[0] = c[threadIdx.x]; }}", 2, 1, "80,000 bytes, 65,536 max"),
    "letters that C++ has not": (f"{KERNEL}\n  x[0] = “1”;\n}}", 2, 10, "unrecognized token"),
    "missing header": (f"\n#include <nothere.h>\n{KERNEL}}}", 2, 21, 'open source file "nothere.h"'),
    "open bracket": (f"{KERNEL}\n  if (x[0] > 1) {{\n    x[0] = 1;\n", 2, 17, "before the end of the source; this one is still open"),
    "open comment": (f"{KERNEL} x[0] = 1; }}\n/* never ends", 2, 1, "comment unclosed"),
    "wrong type": (f'{KERNEL}\n  x[0] = "abc";\n}}', 2, 8, "cannot be assigned"),
    "kernel that returns": (f"\n{KERNEL.replace('void', 'int')} return 1; }}", 2, 1, "must have a void return type"),
    "host function": (f"{KERNEL}}}\nint main() {{ return 0; }}", 2, 5, "host functions are not allowed"),
    "defined twice": (f"{KERNEL}}}\n{KERNEL}}}", 2, 17, "already been defined"),
    "macro with a fault": (f"#define A(v) (v + zzz)\n{KERNEL}\n  x[0] = A(1);\n}}", 3, 10, '"zzz" is undefined'),
    "function without a body": (f"__device__ float ext(float);\n{KERNEL} x[0] = ext(1); }}", 1, 18, r"'ext\(float\)'"),
    "fault in inline assembly": (f'{KERNEL}\n  x[1] = 2;\n  asm("foo.bar;");\n}}', 3, None, "inline assembly"),
    "own error": (f"{KERNEL}}}\n#error not this way", 2, 2, "not this way"),
    "empty": ("", None, None, "the source is empty"),
    "blank": (" \n\t\n", None, None, "the source is empty"),
    "no kernel": ("__device__ float f(float x) { return x; }", None, None, "no kernel came out"),
    "template without an instance": ("template<int N> __global__ void k(float* x) { x[0] = N; }", None, None, r'names=\["kernel<16>"\]'),
    "NUL": (f"{KERNEL}\n  x[0] = \0 1;\n}}", 2, 10, "NUL"),
    "half a character": (f"{KERNEL}\n  x[0] = 1; // \ud83d\n}}", 2, 16, "half a character"),
    "template without end": (
        f"template<int N> struct A {{ static const int v = A<N + 1>::v; }};\n{KERNEL} x[0] = A<0>::v; }}", 1, None, "excessive recursion",
    ),
    "includes itself": (f"#include __FILE__\n{KERNEL}}}", 1, None, "includes itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_source(name: str) -> None:
    """The message has the compiler's words, the error the line and column, and the caret stands under the place."""
    source, line, column, words = BROKEN[name]
    with pytest.raises(CompileError, match=words) as caught:
        compile_cuda(source)
    error = caught.value
    assert error.line == line
    if column is not None:
        assert error.column == column
        assert f"line {line}, column {column}:" in str(error)
    message = str(error).split("\n")
    if line is not None and column is not None and len(message) > 2:
        shown, caret = message[1:3]
        assert shown.startswith(f"{line:>5} | ")
        assert shown[8:] == source.split("\n")[line - 1].replace("\t", " ")
        assert caret.index("^") == len("    1 | ") + column - 1
    assert isinstance(error, GpulabError)


def test_windows_line_ends_count_once() -> None:
    """A source with carriage returns has the lines that a person sees."""
    with pytest.raises(CompileError) as caught:
        compile_cuda(f"{KERNEL}\r\n\r\n  x[0] = foo;\r\n}}")
    assert (caught.value.line, caught.value.column) == (3, 10)


def test_line_separators_inside_a_comment_are_no_lines() -> None:
    """A form feed or U+2028 ends no line of C++, and must not move the line that is shown."""
    with pytest.raises(CompileError) as caught:
        compile_cuda(f"{KERNEL} // a\u2028b\x0cc\n  x[0] = foo;\n}}")
    assert caught.value.line == 2
    assert "x[0] = foo;" in str(caught.value)


def test_long_line_is_cut_around_the_caret() -> None:
    """A line of thousands of characters shows the part that matters."""
    with pytest.raises(CompileError) as caught:
        compile_cuda(f"{KERNEL} x[0] = {'1 + ' * 2000} foo; }}")
    _, shown, caret, _ = str(caught.value).split("\n")
    assert len(shown) < 140
    assert shown[caret.index("^") :].startswith("foo")


def test_error_in_a_header_names_the_header() -> None:
    """A fault outside the source is told with the header's own line, and no line of the source is blamed."""
    with pytest.raises(CompileError, match=r"in .*cuda_fp16\.h.*, line \d+") as caught:
        compile_cuda(f"#define __half2 int +\n#include <cuda_fp16.h>\n{KERNEL}}}")
    assert caught.value.line is None


def test_several_errors_are_counted() -> None:
    """The first is shown, the number of all is told, and the log has each."""
    with pytest.raises(CompileError, match="2 errors; this is the first") as caught:
        compile_cuda(f"{KERNEL} x[0] = foo; x[1] = bar; }}")
    assert '"bar" is undefined' in caught.value.log


@pytest.mark.parametrize("source", [None, b"__global__ void k() {}", 3, ["a"], object()])
def test_source_must_be_text(source: object) -> None:
    """Anything else is refused with its type."""
    with pytest.raises(InputError, match=type(source).__name__):
        compile_cuda(source)


def test_huge_source_is_refused_before_it_takes_minutes() -> None:
    """A million characters are the limit, and the message says how many there were."""
    with pytest.raises(InputError, match=r"1,200,0\d\d characters; expected at most 1,000,000"):
        compile_cuda(f"{KERNEL}}}\n" + "// x\n" * 240_000)


def test_long_source_below_the_limit_compiles() -> None:
    """Half a million characters of comment cost nothing."""
    assert compile_cuda("// a line of the comment\n" * 20_000 + f'extern "C" {KERNEL} x[0] = 1; }}').kernels["k"].line == 20_001


def test_errors_are_not_remembered() -> None:
    """A source that failed can be tried again, and still fails by itself."""
    for _ in range(2):
        with pytest.raises(CompileError):
            compile_cuda(f"{KERNEL} x[0] = foo; }}")


@pytest.mark.parametrize("nested", ["(" * 20_000 + "1" + ")" * 20_000, "!" * 20_000 + "1"], ids=["brackets", "not"])
def test_deep_nesting_ends_no_kernel(nested: str) -> None:
    """A source that ends the compiler itself, or nearly, is an answer here, and the next source compiles."""
    with contextlib.suppress(CompileError):
        assert list(compile_cuda(f'extern "C" {KERNEL} x[0] = {nested}; }}').kernels) == ["k"]
    assert list(compile_cuda(f'extern "C" {KERNEL} x[0] = 7; }}').kernels) == ["k"]


def test_interrupt_ends_the_compiler_and_is_heard_at_once() -> None:
    """An interrupt during a source that takes many seconds comes back as itself; the next source compiles."""
    script = """
import os, signal, threading, time
from gpulab.kernels import compile_cuda
compile_cuda('extern "C" __global__ void k(float* x) { x[0] = 1; }')
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    compile_cuda('extern "C" __global__ void k(float* x) {' + "x[0] += x[1] * x[2];" * 20_000 + "}")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 10)
print(list(compile_cuda('extern "C" __global__ void again(float* x) { x[0] = 1; }').kernels))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["interrupted True", "['again']"], done.stderr
