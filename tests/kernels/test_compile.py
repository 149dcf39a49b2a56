"""What compile_cuda says of kernels, against the assembler's own words, the disassembler, and sizes counted by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpulab as gl
from gpulab.errors import InputError, MissingLibraryError
from gpulab.kernels import CompiledModule, KernelFacts, compile_cuda
from gpulab.kernels._compile import _libraries, _nvrtc, _sass

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compiler has no macOS build")

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
extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(96) turned(float* x, int n) {
    __shared__ float tile[1024];
    extern __shared__ float more[];
    tile[threadIdx.x] = x[threadIdx.x];
    more[threadIdx.x] = weights[n];
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x ^ 1] + more[n];
}
"""
# Sixty-four values that all live at once, where far fewer registers are allowed.
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
ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)


def stated(log: str, kernel: str) -> dict[str, int]:
    """The figures of one kernel in the assembler's log, read apart from the code under test."""
    part = log.partition(f"Compiling entry function '{kernel}'")[2].partition("Compiling entry")[0]
    found = {"registers": int(re.search(r"Used (\d+) registers", part).group(1))}
    shared = re.search(r"(\d+) bytes smem", part)
    found["shared"] = int(shared.group(1)) if shared else 0
    found["stack"] = int(re.search(r"(\d+) bytes stack frame", part).group(1))
    return found


def instructions(module: CompiledModule, kernel: str) -> list[str]:
    """A kernel's instructions, padding included, out of the disassembler's text."""
    text = module.sass.split(f".text.{module.kernels[kernel].symbol}:")[1].split("//-----")[0]
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?) ?;", text)


def width(instruction: str) -> int:
    """Bytes that one local load or store moves."""
    return 16 if ".128" in instruction else 8 if ".64" in instruction else 4


@pytest.mark.parametrize("number", ARCHITECTURES)
def test_every_architecture(number: int) -> None:
    """Shared, constant and argument bytes are those counted by hand; the registers in the machine code's header are those in the log."""
    module = compile_cuda(SHARED, f"sm_{number}")
    plain, turned = module.kernels["plain"], module.kernels["turned"]
    assert (turned.shared_bytes, turned.constant_bytes, turned.max_threads, turned.barriers) == (4096, 400, 96, 1)
    assert (plain.shared_bytes, plain.constant_bytes, plain.max_threads, plain.barriers) == (0, 400, None, 0)
    assert (plain.parameter_bytes, turned.parameter_bytes) == (8, 12)
    for kernel in (plain, turned):
        said = stated(module.log, kernel.name)
        assert (kernel.registers, kernel.shared_bytes, kernel.stack_bytes) == (said["registers"], said["shared"], said["stack"])
        assert 1 <= kernel.registers <= 255
    assert re.search(rf"^\.target sm_{number}$", module.ptx, re.MULTILINE)
    assert re.search(r"^\.version \d+\.\d+$", module.ptx, re.MULTILINE)
    assert re.search(rf"\.target\s+sm_{number}\b", module.sass)
    assert module.cubin[:4] == b"\x7fELF"


def test_nvrtc_knows_the_architectures_that_the_course_names() -> None:
    """Turing to Blackwell, as the release notes of CUDA 13 list them."""
    assert set(ARCHITECTURES) <= set(_nvrtc.architectures())


def test_code_of_saxpy() -> None:
    """One fused multiply-add, two loads, one store; argument bytes with their alignment; code bytes are 16 for each instruction."""
    module = compile_cuda(SAXPY)
    code = instructions(module, "saxpy")
    counts = {name: sum(name in text for text in code) for name in ("FFMA", "LDG", "STG", "STL")}
    assert counts == {"FFMA": 1, "LDG": 2, "STG": 1, "STL": 0}
    assert module.kernels["saxpy"].parameter_bytes == 28  # float, gap of 4, two pointers, int
    assert module.kernels["saxpy"].code_bytes == 16 * len(code)
    assert module.kernels["saxpy"].spill_bytes == 0
    assert ".visible .entry saxpy(" in module.ptx
    assert "fma.rn.f32" in module.ptx


@pytest.mark.parametrize("number", [75, 90, 120])
def test_spills_are_the_local_moves_in_the_code(number: int) -> None:
    """With 24 registers the kernel spills what its stores and loads of local memory move; with all it wants it does not."""
    tight, free = (compile_cuda(CROWDED, f"sm_{number}", options) for options in (["-maxrregcount=24"], []))
    kernel, code = tight.kernels["crowded"], instructions(tight, "crowded")
    assert kernel.registers <= 24 < free.kernels["crowded"].registers
    assert kernel.spill_store_bytes == sum(width(text) for text in code if re.search(r"\bSTL\b", text)) > 0
    assert kernel.spill_load_bytes == sum(width(text) for text in code if re.search(r"\bLDL\b", text)) > 0
    assert kernel.spill_bytes == kernel.spill_store_bytes + kernel.spill_load_bytes
    assert kernel.stack_bytes > 0
    assert (free.kernels["crowded"].spill_bytes, free.kernels["crowded"].stack_bytes) == (0, 0)


def test_launch_bounds_bound_the_registers() -> None:
    """1,024 threads a block leave 64 of the 65,536 registers to each; the promise is told."""
    kernel = compile_cuda(CROWDED.replace("void crowded", "void __launch_bounds__(1024) crowded")).kernels["crowded"]
    assert kernel.registers <= 64
    assert kernel.max_threads == 1024


def test_local_array_is_stack_and_no_spill() -> None:
    """An array indexed by data lies in local memory: 4 bytes times its length, and nothing is spilled."""
    source = 'extern "C" __global__ void k(int* x) { int a[500]; for (int i = 0; i < 500; i++) a[i] = x[i]; x[0] = a[x[1]] + a[x[2]]; }'
    kernel = compile_cuda(source).kernels["k"]
    assert kernel.stack_bytes == 2000
    assert kernel.spill_bytes == 0


def test_spills_of_a_called_function_count() -> None:
    """What a function that is not inlined spills is paid by the kernel that calls it."""
    body = CROWDED.replace('extern "C" __global__ void crowded', "__device__ __noinline__ void crowded").replace(
        "    __syncthreads();\n", ""
    )
    source = body + 'extern "C" __global__ void caller(float* y, int n) { crowded(y, n); }'
    module = compile_cuda(source, "sm_75", ["-maxrregcount=24"])
    said = [tuple(map(int, found)) for found in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", module.log)]
    assert module.kernels["caller"].spill_store_bytes == sum(stores for stores, _ in said) > 0
    assert module.kernels["caller"].spill_load_bytes == sum(loads for _, loads in said) > 0


def test_names_are_those_of_the_source() -> None:
    """C++ names are undone: namespaces, template instances as asked for, overloads by their types, in the order of the source."""
    source = """
    template<int N> __global__ void tile(float* y) { __shared__ float a[N]; a[threadIdx.x] = y[0]; __syncthreads(); y[1] = a[3]; }
    namespace ns { __global__ void two(double* y) { y[0] = 2; } }
    __global__ void same(int* y) { y[0] = 1; }
    __global__ void same(float* y) { y[0] = 1; }
    """
    module = compile_cuda(source, names=["tile<16>", "tile<64 * 2>"])
    assert list(module.kernels) == ["tile<16>", "tile<64 * 2>", "ns::two", "same(float*)", "same(int*)"]
    assert (module.kernels["tile<16>"].shared_bytes, module.kernels["tile<64 * 2>"].shared_bytes) == (64, 512)
    assert module.kernels["ns::two"].line == 3
    assert module.kernels["ns::two"].symbol == "_ZN2ns3twoEPd"


def test_two_kernels_have_their_lines() -> None:
    """Each kernel knows the line of its name, also where a comment speaks of it before."""
    module = compile_cuda("// second() comes later\n" + SAXPY + '/* second( */ extern "C" __global__ void\nsecond(float* x) { x[0] = 1; }')
    assert {name: kernel.line for name, kernel in module.kernels.items()} == {"saxpy": 2, "second": 9}


def test_instructions_by_line() -> None:
    """The fused multiply-add belongs to the line that writes it, and the header's line to none."""
    module = compile_cuda(SAXPY)
    lines = module.sass_lines("saxpy")
    (line,) = [number for number, code in lines.items() if any("FFMA" in text for text in code)]
    assert line == 4
    assert any("S2R" in text or "S2UR" in text for text in lines[2])
    assert "-lineinfo" not in module.options
    assert module.sass_lines() == lines
    with pytest.raises(InputError, match=r"'nothing'.*saxpy"):
        module.sass_lines("nothing")


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("cuda_fp16.h", "x[0] = __half2float(__hadd(__float2half(x[1]), __float2half(x[2])));"),
        ("cuda_bf16.h", "x[0] = __bfloat162float(__float2bfloat16(x[1]));"),
        ("cooperative_groups.h", "auto block = cooperative_groups::this_thread_block(); block.sync(); x[0] = block.size();"),
    ],
)
def test_headers_of_cuda_are_found(header: str, body: str) -> None:
    """The headers that the course uses come with it."""
    module = compile_cuda(f'#include <{header}>\nextern "C" __global__ void k(float* x) {{ {body} }}')
    assert list(module.kernels) == ["k"]


def test_tensor_cores_are_in_the_code() -> None:
    """A product through mma.h becomes a matrix instruction."""
    source = """#include <mma.h>
    using namespace nvcuda::wmma;
    extern "C" __global__ void k(const half* a, const half* b, float* c) {
        fragment<matrix_a, 16, 16, 16, half, row_major> x; fragment<matrix_b, 16, 16, 16, half, col_major> y;
        fragment<accumulator, 16, 16, 16, float> z;
        fill_fragment(z, 0.0f); load_matrix_sync(x, a, 16); load_matrix_sync(y, b, 16);
        mma_sync(z, x, y, z); store_matrix_sync(c, z, 16, mem_row_major);
    }"""
    assert any("HMMA" in text for text in instructions(compile_cuda(source), "k"))


def test_options_change_the_code() -> None:
    """A definition reaches the source, and fast mathematics takes the special function unit's short way."""
    source = (
        'extern "C" __global__ void k(float* x) { __shared__ float a[TILE]; a[threadIdx.x] = sinf(x[0]); __syncthreads(); x[1] = a[2]; }'
    )
    slow, fast = (compile_cuda(source, options=["-DTILE=48", *more]).kernels["k"] for more in ((), ("-use_fast_math",)))
    assert slow.shared_bytes == fast.shared_bytes == 192
    assert fast.code_bytes < slow.code_bytes


@pytest.mark.parametrize(
    ("given", "made"), [("9.0", "sm_90"), (9.0, "sm_90"), ("SM_90", "sm_90"), ("12.0", "sm_120"), (75, "sm_75"), ("sm_90a", "sm_90a")]
)
def test_spellings_of_an_architecture(given: object, made: str) -> None:
    """A compute capability is as good as NVIDIA's own word."""
    assert compile_cuda(SAXPY, given).arch == made


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "compute_90", "hopper", "", None, 9, True, "sm_90; rm", ["sm_90"]])
def test_unknown_architecture_lists_the_known(arch: object) -> None:
    """One that NVRTC has not is refused in a sentence that lists the others."""
    with pytest.raises(InputError, match=r"sm_75.*sm_120"):
        compile_cuda(SAXPY, arch)


@pytest.mark.parametrize(
    "options", [["-nonsense"], "-w", ["-arch=sm_80"], ["--gpu-architecture=sm_80"], ["-dlto"], [""], [3], None, ["-D\0"], ["--std=c++98"]]
)
def test_bad_options(options: object) -> None:
    """Unknown options, a lone text, and those that the call itself decides are refused in a sentence."""
    with pytest.raises(InputError, match="compile_cuda"):
        compile_cuda(SAXPY, options=options)


@pytest.mark.parametrize("names", [["nothing<3>"], ["saxpy<"], "saxpy", [""]])
def test_bad_names(names: object) -> None:
    """An instance of a template that does not exist is refused by its name."""
    with pytest.raises(InputError, match="names"):
        compile_cuda(SAXPY, names=names)


def test_warnings_are_shown() -> None:
    """What the compilers warn of is in the result, with its line, and in the table."""
    module = compile_cuda('extern "C" __global__ void k(float* x) {\n int unused; x[0] = 1; }')
    assert module.warnings == ('line 2: variable "unused" was declared but never referenced',)
    assert "never referenced" in module._repr_html_()
    bounds = compile_cuda('extern "C" __global__ void __launch_bounds__(5000) k(float* x) { x[0] = 1; }')
    assert any("out of range" in text for text in bounds.warnings)


def test_table_has_units_and_the_badge() -> None:
    """A row for each kernel, sizes with their unit, and where the figures are from."""
    html = compile_cuda(SHARED)._repr_html_()
    for text in ("turned", "4.00 KiB", "400 B", "MODELLED", "NVRTC 13", "no promise", "registers (a thread)"):
        assert text in html
    assert repr(compile_cuda(SHARED)).startswith("<CompiledModule for sm_90; plain: ")


def test_goes_through_json() -> None:
    """The result with its machine code survives a file, and still disassembles."""
    module = compile_cuda(SHARED)
    again = CompiledModule.from_dict(json.loads(json.dumps(module.to_dict(), allow_nan=False)))
    assert again == module
    assert again.cubin == module.cubin
    assert again.sass == module.sass
    assert isinstance(again.kernels["plain"], KernelFacts)


def test_same_call_is_answered_from_memory() -> None:
    """The compiler runs once for a source, an architecture and options."""
    assert compile_cuda(SAXPY) is compile_cuda(SAXPY)
    assert compile_cuda(SAXPY, "sm_80") is not compile_cuda(SAXPY)


def test_threads_at_once() -> None:
    """Eight threads with sources of their own get what each gets alone."""

    def source(size: int) -> str:
        return (
            f'extern "C" __global__ void k(float* x) {{ __shared__ float a[{size}]; a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[3]; }}'
        )

    found: dict[int, int] = {}

    def run(size: int) -> None:
        found[size] = compile_cuda(source(size), "sm_86").kernels["k"].shared_bytes

    threads = [threading.Thread(target=run, args=(size,)) for size in range(100, 900, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {size: 4 * size for size in range(100, 900, 100)}


def test_figures_feed_occupancy() -> None:
    """The names that the design gives are there, on the package's own path."""
    kernel = gl.kernels.compile_cuda(SAXPY, arch="sm_90").kernels["saxpy"]
    assert dataclasses.is_dataclass(kernel)
    assert all(isinstance(value, int) for value in (kernel.registers, kernel.shared_bytes, kernel.spill_bytes))


def test_without_nvrtc_one_sentence_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no library is found, the error says what to install, and that no GPU is needed."""
    monkeypatch.setattr(_libraries, "roots", lambda: iter(()))
    with pytest.raises(MissingLibraryError, match=r"needs no GPU. Run `.* -m pip install nvidia-cuda-nvrtc`"):
        _libraries.load("nvrtc")
    monkeypatch.setattr(_libraries.sys, "platform", "darwin")
    with pytest.raises(MissingLibraryError, match="no macOS build"):
        _libraries.load("nvrtc")


def test_damaged_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """A file that is no library is named, with the line that puts it right."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnvrtc.so.13").write_bytes(b"not a library")
    monkeypatch.setattr(_libraries, "roots", lambda: iter([tmp_path]))
    monkeypatch.setattr(_libraries, "_WINDOWS", False)
    with pytest.raises(MissingLibraryError, match=r"libnvrtc.so.13 cannot be loaded.*force-reinstall"):
        _libraries.load("nvrtc")


def test_headers_of_one_toolkit_may_lie_in_two_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment with cuda_fp16.h comes first, the same toolkit's other wheels after it, and no other toolkit's at all."""
    user, venv, older = (tmp_path / name for name in ("user/nvidia/cu13", "venv/nvidia/cu13", "venv/nvidia/cu12"))
    for root, file in ((user, "crt/mma.h"), (user, "cccl/nv/target"), (venv, "cuda_fp16.h"), (older, "cuda_fp16.h"), (older, "crt/mma.h")):
        (root / "include" / file).parent.mkdir(parents=True, exist_ok=True)
        (root / "include" / file).touch()
    monkeypatch.setattr(_libraries, "roots", lambda: iter([user, venv, older]))
    folders = [venv / "include", user / "include", user / "include" / "cccl"]
    assert _libraries.include_folders() == folders
    (venv / "include" / "cuda_fp16.h").unlink()
    assert _libraries.include_folders() == [older / "include"]
    (older / "include" / "cuda_fp16.h").unlink()
    assert _libraries.include_folders()[:1] == [user / "include"]


def test_the_helper_process_uses_no_cache() -> None:
    """NVRTC keeps what it made on disk (where there is a driver), and gives it back without the assembler's log."""
    code = "import os, sys; from gpulab.kernels._compile._nvrtc import serve; serve(); "
    code += "os.write(2, os.environ['CUDA_CACHE_DISABLE'].encode()); os.write(1, b' printed')"
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout, done.stderr) == ("", "1 printed")  # what a library prints is no answer


def test_without_nvdisasm_the_code_is_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts need no disassembler; where it is missing, the text says how to get it."""
    module = compile_cuda(SAXPY)
    _sass.disassembled.cache_clear()
    monkeypatch.setattr(_libraries, "find_tool", lambda name: None)
    assert re.fullmatch(r"// sass: .*Run `.* -m pip install nvidia-cuda-nvdisasm`.*", module.sass)
    with pytest.raises(MissingLibraryError, match="nvidia-cuda-nvdisasm"):
        module.sass_lines()


@pytest.mark.parametrize(
    ("windows", "files", "name", "wanted"),
    [
        (True, [f"nvidia/cu13/bin/x86_64/{f}.dll" for f in ("nvrtc-builtins64_130", "nvrtc64_130_0.alt", "nvrtc64_130_0")], "nvrtc", 2),
        (True, ["nvidia/cu13/bin/x86_64/nvJitLink_130_0.dll"], "nvJitLink", 0),
        (False, ["nvidia/cu13/lib/" + f for f in ("libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13", "libnvrtc.so.13")], "nvrtc", 2),
        (False, ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"], "nvrtc", 1),
        (False, ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12"], "nvrtc", 0),
        (False, ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu14/lib/libnvrtc.so.14"], "nvrtc", 1),
        (False, ["targets/sbsa-linux/lib/libnvrtc.so.13.0.88"], "nvrtc", 0),
        (True, ["Library/bin/x64/nvrtc64_120_0.dll"], "nvrtc", 0),
    ],
)  # fmt: skip
def test_file_names_of_each_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, windows: bool, files: list[str], name: str, wanted: int
) -> None:
    """The names as the wheels of Linux and Windows and conda's packages have them; the newest toolkit wins, builtins never do."""
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    spec = _libraries.importlib.util.spec_from_loader("nvidia", None)
    spec.submodule_search_locations = [str(tmp_path / "nvidia")]
    monkeypatch.setattr(_libraries.importlib.util, "find_spec", lambda package: spec)
    monkeypatch.setattr(_libraries.sys, "prefix", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(_libraries, "_WINDOWS", windows)
    assert _libraries.find_library(name) == tmp_path / files[wanted]
