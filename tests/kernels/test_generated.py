"""The code that torch.compile writes: fused if there is a compiler, else shown with the reason."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpulab as gl
import pytest
import torch
from gpulab.errors import InputError
from gpulab.evidence import Evidence


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Three elementwise operators."""
    return torch.relu(x * 2.0 + 1.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test an empty compiler cache, and reset the compiler afterwards."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_three_operators_become_one_kernel() -> None:
    """One loop with one load, named after the operators; the numbers are the same."""
    fused, x = torch.compile(smooth), torch.linspace(-3, 3, 10_000)
    written = gl.kernels.generated(fused, x)
    assert (written.reason, written.compiled, written.language) == ("", True, "C++")
    assert written.operators == ("mul", "add", "relu")
    (name,) = written.kernels
    assert all(word in name for word in written.operators)
    assert ("in_ptr0" in written.source, "#include" in written.source) == (True, False)
    assert torch.equal(fused(x), smooth(x))


@pytest.mark.slow
def test_without_a_compiler_the_source_is_shown_with_the_reason() -> None:
    """Without a C++ compiler, the operators and the source are shown, and the reason is given."""
    import torch._inductor.config as settings

    with settings.patch({"cpp.cxx": (None, "/nonexistent/g++")}):
        written = gl.kernels.generated(smooth, torch.ones(4096))
    assert (written.compiled, written.operators) == (False, ("mul", "add", "relu"))
    assert "no C++ compiler" in written.reason
    assert "in_ptr0" in written.source


@pytest.mark.slow
@pytest.mark.parametrize("fn", [3, lambda x: x @ torch.ones(2)])
def test_what_cannot_run_is_refused(fn: Any) -> None:
    """A value that is no function is refused, and a function that fails without compilation too."""
    with pytest.raises(InputError):
        gl.kernels.generated(fn, torch.ones(3))


def test_how_the_result_is_shown(approved: Any) -> None:
    """The text says how many operators became how many kernels, in what time, or why none did."""
    evidence = Evidence.measured("a machine")
    made = gl.kernels.GeneratedCode("f", ("mul", "add"), ("k",), "C++", "x = 1;", 1.5, "", evidence)
    several = dataclasses.replace(made, operators=("relu",), kernels=("a", "b"), language="Triton")
    absent = dataclasses.replace(made, kernels=(), language="", source="", reason="no compiler")
    shown = (f"{each!r}\n{each.table()}\n" for each in (made, several, absent))
    assert "\n".join(shown) == approved
