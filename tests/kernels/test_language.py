"""The names that a kernel is written with, where numba is installed and where it is not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpulab.kernels import _language
from gpulab.kernels._language import TYPES, StandIn


def test_without_numba_the_names_are_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cuda`` is gpulab's own, and the types are NumPy's of the same names."""
    monkeypatch.setitem(sys.modules, "numba", None)
    cuda, kind = _language._numba()
    assert isinstance(cuda, StandIn)
    assert [np.dtype(kind(name)).name for name in TYPES] == list(TYPES)


def test_with_numba_the_names_are_numbas() -> None:
    """``cuda`` and the types that a kernel imports from gpulab are numba's own."""
    numba = pytest.importorskip("numba")
    from numba import cuda

    assert _language.cuda is cuda
    assert all(getattr(_language, name) is getattr(numba.types, name) for name in TYPES)


def test_the_stand_in_keeps_the_function_and_says_what_it_is() -> None:
    """``jit`` in both of its forms; the dotted name; a call outside a kernel; no private names, which libraries ask objects for."""
    cuda = StandIn()

    def kernel() -> None:
        pass

    assert cuda.jit(kernel) is kernel
    assert cuda.jit(device=True)(kernel) is kernel
    assert cuda.jit("void()")(kernel) is kernel
    assert (repr(cuda), repr(cuda.shared.array)) == ("<cuda of gpulab.kernels>", "<cuda.shared.array of gpulab.kernels>")
    assert cuda.is_gpulab_cuda
    with pytest.raises(RuntimeError, match=r"^cuda\.shared\.array has a meaning inside a kernel only"):
        cuda.shared.array(32)
    with pytest.raises(AttributeError, match=r"^__wrapped__$"):
        cuda.__wrapped__  # noqa: B018
