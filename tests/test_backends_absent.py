"""JAX and TensorFlow absent: one sentence says how to get them, and nothing else changes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import gpulab as gl
from gpulab import _backends
from gpulab.errors import InputError, MissingLibraryError
from gpulab.lessons import _library

EXTRA = ("jax", "tensorflow")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where neither is installed: their import is blocked, and no adapter was made before."""
    monkeypatch.setattr(_backends, "_made", {name: one for name, one in _backends._made.items() if name not in EXTRA})
    for name in EXTRA:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("library", EXTRA)
def test_an_absent_library_says_in_one_sentence_how_to_get_it(absent: None, library: str) -> None:
    """Share and to_device raise MissingLibraryError with the line that installs it; it is an ImportError too."""
    for call in (lambda: gl.share(np.zeros(3), library), lambda: gl.to_device(np.zeros(3), library=library)):
        with pytest.raises(MissingLibraryError, match=rf"{library}.*not installed.*pip install .* -e '\.\[rosetta\]'") as caught:
            call()
        assert isinstance(caught.value, ImportError)
        assert "\n" not in str(caught.value)
    assert _library.missing(library)


def test_the_others_work_without_them(absent: None) -> None:
    """Arrays of NumPy and PyTorch are shared, moved and measured as ever."""
    tensor = gl.share(np.zeros(4), "torch")
    assert gl.to_host(tensor).shape == (4,)
    assert gl.measure(np.sort, np.arange(100.0), deadline=0.05).device == "cpu"
    assert _backends.waits_for(tensor) is None


def test_an_empty_folder_of_its_name_disturbs_no_other_library(
    absent: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports a folder named tensorflow as an empty package: it owns nothing, and arrays of the others are found and waited for."""
    monkeypatch.setattr(_backends, "_broken", {})
    (tmp_path / "tensorflow").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorflow")
    with pytest.raises(MissingLibraryError, match="cannot be imported"):
        _backends.backend("tensorflow")
    assert sys.modules["tensorflow"].__file__ is None
    assert _backends.backend_of(object()) is None
    assert _backends.waits_for(np.zeros(3)) is None


def test_an_unknown_library_is_told_all_five() -> None:
    """The sentence lists them."""
    with pytest.raises(InputError, match="numpy, torch, cupy, jax, tensorflow"):
        gl.share(np.zeros(2), "mxnet")


def test_nothing_imports_them_unasked() -> None:
    """Importing gpulab, its lessons and the idioms, and measuring, loads neither."""
    code = (
        "import sys, numpy as np, gpulab as gl; gl.measure(np.sort, np.arange(9.0), deadline=0.05); gl.lessons.rosetta('JAX');"
        "gl.lessons.rosetta('TensorFlow'); gl.share(np.zeros(3), 'torch'); print([m for m in ('jax', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
