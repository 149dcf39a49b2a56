"""The adapters of the array libraries."""

import contextlib
import importlib
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from gpulab import _backends
from gpulab.errors import CopyRequiredError, DeviceError, InputError


def test_the_owner_of_an_array_is_found_by_its_type():
    """Numpy and torch arrays are told apart; anything else has no owner."""
    assert _backends.backend_of(np.zeros(1)).name == "numpy"
    assert _backends.backend_of(torch.zeros(1)).name == "torch"
    assert _backends.backend_of([1]) is None
    assert _backends.backend_of(np.float32(1)) is None


def test_pointers_and_sizes_are_those_that_the_libraries_give():
    """The address and the bytes of a view are its own, not those of the storage behind it."""
    array, tensor = np.zeros((4, 4), np.float32)[1:, 1:], torch.zeros(4, 4, dtype=torch.float64)[1:]
    assert _backends.backend("numpy").pointer(array) == array.ctypes.data
    assert _backends.backend("torch").pointer(tensor) == tensor.data_ptr()
    assert _backends.backend("numpy").nbytes(array) == 36
    assert _backends.backend("torch").nbytes(tensor) == 96
    assert _backends.backend("torch").nbytes(torch.zeros(5).to_sparse()) == 20


@pytest.mark.parametrize(
    ("library", "name", "value"), [("jax", "XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("tensorflow", "TF_FORCE_GPU_ALLOW_GROWTH", "true")]
)
@pytest.mark.parametrize("own", [None, "the learner's"])
def test_a_library_takes_memory_as_it_needs_it(library, name, value, own, monkeypatch):
    """When it is imported, the variable of its manual asks it to leave the rest of the GPU to PyTorch; one that is set stays as it is."""
    seen = []
    empty = types.SimpleNamespace(__internal__=types.SimpleNamespace(EagerTensor=object))
    for one in (name, "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(one, own or "")  # so that it is put back as it was
    if own is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(importlib, "import_module", lambda asked: seen.append((asked, os.environ.get(name))) or empty)
    _backends._CLASSES[library]()
    assert seen == [(library, own or value)]


def test_looking_at_an_array_imports_no_library():
    """With only numpy imported, finding an owner and moving within numpy loads neither torch nor cupy."""
    code = (
        "import sys, numpy as np, gpulab as gl; gl.to_host(np.zeros(2)); gl.device_of(np.zeros(2));"
        "gl.to_device(np.zeros(2), 'cpu', 'numpy');"
        "print([m for m in ('torch', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_library_that_cannot_be_imported_says_what_to_do(monkeypatch):
    """An ImportError becomes one sentence with the doctor's name in it."""
    monkeypatch.setattr(_backends, "_made", {})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"'cupy' cannot be imported .*gpulab doctor"):
        _backends.backend("cupy")


def test_an_exporter_without_dlpack_1_still_gives_a_writable_view(monkeypatch):
    """Where numpy marks a torch view read-only (old capsules cannot say otherwise), torch's own zero-copy view is taken."""
    tensor = torch.zeros(3)

    def old(x, **options):
        view = torch.Tensor.numpy(x).view()
        view.flags.writeable = False
        return view

    monkeypatch.setattr(np, "from_dlpack", old)
    view = _backends.share(tensor, "numpy")
    view[0] = 1
    assert tensor[0] == 1


def test_a_refusal_of_the_library_itself_is_translated(monkeypatch):
    """What the checks do not foresee still comes out as CopyRequiredError with the library's words."""

    def refuse(self, x):
        raise BufferError("not today")

    monkeypatch.setattr(_backends.TorchBackend, "from_dlpack", refuse)
    with pytest.raises(CopyRequiredError, match=r"torch refuses it \(not today\)"):
        _backends.share(np.zeros(2), "torch")


def test_cupy_has_finished_with_the_source_before_it_answers(monkeypatch):
    """By stand-ins for CuPy: on the device asked for, through page-locked memory where that is asked, waited for, and only then given."""
    log = []

    @contextlib.contextmanager
    def on(index):
        log.append(index)
        yield

    stream = types.SimpleNamespace(synchronize=lambda: log.append("wait"))
    cuda = types.SimpleNamespace(Device=on, get_current_stream=lambda: stream)
    cupy = types.SimpleNamespace(
        ndarray=list,
        asarray=lambda a: log.append(("copy", a)) or ["there"],
        cuda=cuda,
    )
    staging = types.SimpleNamespace(empty_like_pinned=lambda a: log.append("pinned") or np.zeros_like(a))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", staging)
    backend, a = _backends.CupyBackend(), np.arange(3.0)
    assert backend.from_host(a, "cuda:1", False) == ["there"]
    assert log == [1, ("copy", a), "wait"]
    log.clear()
    assert backend.from_host(a, "cuda", True) == ["there"]
    place, pinned, (_, source), waited = log
    assert (place, pinned, waited) == (0, "pinned", "wait")
    assert source is not a
    assert source.tolist() == [0, 1, 2]
    log.clear()
    assert backend.move(["here"], "cuda:2", False) == ["there"]
    assert log == [2, ("copy", ["here"])]
    with pytest.raises(DeviceError, match="cupy has no arrays on 'cpu'"):
        backend.from_host(a, "cpu", False)
    with pytest.raises(InputError, match="no dtype"):
        backend.from_host(np.array(["text"]), "cuda", False)


def test_what_cupy_cannot_show_to_others():
    """NumPy sees main memory only; a negative stride is no block that others take; device, address and order are its own."""
    backend = _backends.CupyBackend.__new__(_backends.CupyBackend)
    flags = types.SimpleNamespace(c_contiguous=False)
    x = types.SimpleNamespace(
        device=types.SimpleNamespace(id=1),
        data=types.SimpleNamespace(ptr=4096),
        strides=(8, -4),
        flags=flags,
        get=lambda: "host",
        copy=lambda: "copy",
    )
    x.get, x.copy = (lambda: "host"), (lambda: "copy")
    assert backend.obstacle(x, "numpy") == ("it is on cuda:1, and numpy sees only main memory", "gl.to_host(x)")
    assert backend.obstacle(x, "torch") == ("it has a negative stride", "cupy.ascontiguousarray(x)")
    x.strides = (8, 4)
    assert backend.obstacle(x, "torch") is None
    x.strides = (0, 4)
    assert backend.obstacle(x, "torch") is None
    assert (backend.device_of(x), backend.pointer(x), backend.is_contiguous(x)) == ("cuda:1", 4096, False)
    assert (backend.to_host(x), backend.copy(x)) == ("host", "copy")
