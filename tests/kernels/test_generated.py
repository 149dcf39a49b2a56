"""What torch.compile wrote: fused where there is a compiler, shown and excused where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gpulab as gl
from gpulab.errors import InputError


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
