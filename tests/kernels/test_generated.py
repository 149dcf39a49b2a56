"""What torch.compile wrote: fused where there is a compiler, shown and excused where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gpulab as gl
from gpulab.errors import InputError
from gpulab.kernels import generated
from gpulab.kernels._generated import _NO_COMPILER, _listening


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Three elementwise operators."""
    return torch.relu(x * 2.0 + 1.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that another test compiled is found again, and nothing stays compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield
    torch.compiler.reset()


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on this machine")
def test_three_operators_become_one_kernel():
    """One loop with one load and one store, named after the three operators; the compiled function gives the same numbers."""
    fused, x = torch.compile(smooth), torch.linspace(-3, 3, 10_000)
    written = gl.kernels.generated(fused, x)
    assert written.compiled, written.reason
    assert written.operators == ("mul", "add", "relu")
    assert len(written.kernels) == 1
    assert all(word in written.kernels[0] for word in ("mul", "add", "relu"))
    assert written.language == "C++"
    assert written.source.count("for(") <= 2  # the vector loop, and where the length asks for it the rest
    assert "loadu(in_ptr0" in written.source
    assert "div_error" not in written.source
    assert written.source.count("{") == written.source.count("}")
    assert torch.allclose(fused(x), smooth(x))


def test_without_a_compiler_the_source_is_shown_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    """No compiler: one sentence that says what to install, the operators and the kernel all the same."""
    import torch._inductor.config as settings

    with settings.patch({"cpp.cxx": (None, "/nonexistent/g++")}):
        written = gl.kernels.generated(smooth, torch.ones(4096))
    assert not written.compiled
    assert "no C++ compiler" in written.reason
    assert "install" in written.reason
    assert written.operators == ("mul", "add", "relu")
    assert "loadu(in_ptr0" in written.source
    assert "cannot run here" in repr(written)


def test_another_torch_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch):
    """Where PyTorch's private hooks are gone, the result says so."""
    from torch._inductor import graph

    monkeypatch.delattr(graph, "GraphLowering")
    written = gl.kernels.generated(smooth, torch.ones(16))
    assert not written.compiled
    assert "GraphLowering" in written.reason
    assert written.kernels == ()


@pytest.mark.parametrize(("fn", "says"), [(3, "cannot be called"), (lambda x: x @ torch.ones(2), "raised")])
def test_what_cannot_run_is_one_sentence(fn: object, says: str):
    """No function; a function that fails without being compiled too."""
    with pytest.raises(InputError, match=says):
        gl.kernels.generated(fn, torch.ones(3))


def test_what_is_read_out_of_inductors_python(monkeypatch: pytest.MonkeyPatch):
    """With a stand-in for torch.compile: what was compiled is forgotten first; names, first language, texts and time."""
    from torch._inductor.graph import GraphLowering

    log: list[str] = []

    def written(x: int) -> int:
        log.append(f"compiled call of {x}")
        GraphLowering.save_output_code("k0 = async_compile.triton('k0', '''\nx = 1\n''', device_str='cuda')")
        GraphLowering.save_output_code("k1 = async_compile.cpp_pybinding(['float*'], r'''\ny = 2;\n''')")
        return x

    def plain(x: int) -> int:
        log.append(f"plain call of {x}")
        return x

    monkeypatch.setattr(torch.compiler, "reset", lambda: log.append("forgotten"))
    monkeypatch.setattr(torch, "compile", lambda fn: log.append("compiled") or written)
    monkeypatch.setattr("time.perf_counter", iter([5.0, 7.5, 10.0, 11.0]).__next__)
    made = generated(plain, 3)
    assert log == ["plain call of 3", "forgotten", "compiled", "compiled call of 3"]
    assert (made.label, made.kernels, made.language, made.source) == ("plain", ("k0", "k1"), "Triton", "x = 1\n\ny = 2;")
    assert (made.seconds, made.reason, made.compiled, made.operators) == (2.5, "", True, ())
    log.clear()
    written._torchdynamo_orig_callable = plain  # as what torch.compile made
    again = generated(written, 4)
    assert log == ["plain call of 4", "forgotten", "compiled call of 4"]
    assert (again.label, again.seconds) == ("plain", 1.0)


def test_inductor_is_asked_for_the_source_alone():
    """One thread, no precompiled headers, no trial of vector instructions, as long as it is listened to and not after."""
    import torch._inductor.config as settings

    def asked() -> tuple[object, ...]:
        return settings.compile_threads, settings.cpp_cache_precompile_headers, settings.cpp.vec_isa_ok

    before = asked()
    with _listening([], []):
        assert asked() == (1, False, True)
    assert asked() == before


def test_an_error_of_the_compiler_is_cut(monkeypatch: pytest.MonkeyPatch):
    """The reason is what it said, at most 200 characters of it; a missing compiler has a sentence of its own."""
    for text, reason in (
        ("x" * 400, "torch.compile said: " + "x" * 197 + "..."),
        ("No working C++ compiler found in g++", _NO_COMPILER),
        ("InvalidCxxCompiler: g++", _NO_COMPILER),
    ):

        def fails(fn: object, text: str = text) -> object:
            raise RuntimeError(text)

        monkeypatch.setattr(torch, "compile", fails)
        assert generated(abs, 3).reason == reason
