"""The names that a kernel is written with, where numba is installed and where it is not."""

from __future__ import annotations

import importlib
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


def test_public_names_are_loaded_when_they_are_asked_for() -> None:
    """Each is found where the table says, and kept; ``dir`` has them all before; another name is refused with those there are."""
    from gpulab import kernels

    assert dir(kernels) == sorted(dir(kernels))
    assert set(kernels.__all__) <= set(dir(kernels))
    for name, home in kernels._PUBLIC.items():
        vars(kernels).pop(name, None)
        found = getattr(kernels, name)
        assert found is getattr(importlib.import_module(home), name)
        assert vars(kernels)[name] is found
    with pytest.raises(
        AttributeError, match=r"module 'gpulab.kernels' has no attribute 'lunch'; its public names are .*, launch, "
    ) as told:
        kernels.lunch  # noqa: B018
    assert str(told.value).endswith(", ".join(sorted(kernels.__all__)))
