"""The adapters of the array libraries."""

import contextlib
import importlib
import os
import subprocess
import sys
import types
import warnings

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
    log.clear()
    assert backend.move(["here"], "cuda", True) == ["there"]
    assert log == [0, ("copy", ["here"])]
    monkeypatch.setattr(_backends.CupyBackend, "to_host", lambda self, x: np.zeros(len(x)))
    with pytest.raises(DeviceError, match="cupy has no arrays on 'cpu'"):
        backend.move(["here"], "cpu", False)
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


def _read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


def _nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, which PyTorch says once a process
        return torch.nested.nested_tensor([torch.zeros(2)])


def _quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, as above
        return torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)


class _Wrapper(torch.Tensor):
    """A tensor that takes its operators apart itself."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class _Labelled(torch.Tensor):
    """A tensor with another name alone."""


class _OnGpu:
    """What is asked of a tensor in CUDA memory."""

    __torch_dispatch__ = torch.Tensor.__torch_dispatch__
    device, layout, dtype = types.SimpleNamespace(type="cuda", index=1), torch.strided, torch.bfloat16
    is_nested = is_quantized = requires_grad = False

    def is_conj(self):
        return False

    is_neg = is_conj


HOST = ("it is in main memory, and CuPy sees only CUDA memory", "gl.to_device(x, library='cupy')")
HERE = ("it is on cpu, and CuPy sees only CUDA memory", "gl.to_device(x, library='cupy')")
AUTOGRAD = ("it takes part in autograd", "gl.share(x.detach(), ...), or gl.to_host(x) for a copy")
OBSTACLES = [
    (lambda: np.zeros(3), "torch", None), (lambda: np.zeros(()), "torch", None), (lambda: np.zeros((0, 3)), "jax", None),
    (lambda: np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), "torch", None),  # one number again and again, to be written
    (lambda: np.zeros(3), "cupy", HOST), (lambda: np.zeros((2, 2)).view(np.matrix), "cupy", HOST),
    (lambda: np.zeros(3)[::-1], "torch", ("it has a negative stride", "numpy.ascontiguousarray(x)")),
    (_read_only, "torch", ("it is read-only, and the other library would write to it", "x.copy()")),
    (_read_only, "jax", ("it is read-only, which numpy tells only in a form of DLPack that jax does not take", "x.copy()")),
    (_read_only, "tensorflow", ("it is read-only, which numpy tells only in a form of DLPack that tensorflow does not take", "x.copy()")),
    (lambda: np.zeros(16, "u1")[1:9].view("f4"), "torch", ("its elements are not aligned in memory", "x.copy()")),
    (lambda: np.ma.masked_array([1.0], [True]), "torch", ("its mask would be lost", "x.filled(value)")),
    (lambda: np.zeros(2, "M8[s]"), "torch", ("other libraries have no dtype datetime64[s]", "x.astype('float32')")),
    (lambda: np.zeros(2, np.longdouble), "torch", (f"other libraries have no dtype {np.dtype('g')}", "x.astype('float32')")),
    (lambda: np.zeros(2, np.clongdouble), "torch", (f"other libraries have no dtype {np.dtype('G')}", "x.astype('float32')")),
    (lambda: np.zeros(2, ">f4"), "torch", ("its bytes are not in this machine's order", "x.astype(x.dtype.newbyteorder('='))")),
    (lambda: torch.zeros(3), "numpy", None), (lambda: torch.zeros(3), "jax", None), (lambda: torch.zeros(3), "cupy", HERE),
    (lambda: torch.nn.Parameter(torch.zeros(2), requires_grad=False), "numpy", None),
    (lambda: torch.zeros(3, dtype=torch.bfloat16), "numpy", ("numpy has no bfloat16", "x.float()")),
    (lambda: torch.zeros(3, dtype=torch.bfloat16), "jax", None),
    (lambda: torch.zeros(3, requires_grad=True), "jax", AUTOGRAD),
    (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "numpy", ("its conjugation is pending", "x.resolve_conj()")),
    (lambda: torch._neg_view(torch.ones(3)), "numpy", ("its negation is pending", "x.resolve_neg()")),
    (lambda: torch.zeros(3, device="meta"), "numpy", ("a tensor on 'meta' has no data", "torch.empty_like(x, device='cpu')")),
    (lambda: torch.zeros(3).to_sparse(), "numpy", ("its layout is sparse_coo", "x.to_dense()")),
    (_nested, "numpy", ("its layout is nested", "x.to_dense()")),
    (_quantized, "jax", ("its dtype torch.qint8 is quantized", "x.dequantize()")),
    (lambda: torch.zeros(3).as_subclass(_Wrapper), "numpy", ("a _Wrapper is not plain memory", "a plain tensor made from it")),
    (lambda: torch.zeros(3).as_subclass(_Labelled), "numpy", None),
    (_OnGpu, "numpy", ("it is on cuda:1, and numpy sees only main memory", "gl.to_host(x)")), (_OnGpu, "cupy", None), (_OnGpu, "jax", None),
]  # fmt: skip


@pytest.mark.parametrize(("make", "library", "obstacle"), OBSTACLES)
def test_every_obstacle_of_numpy_and_pytorch(make, library, obstacle):
    """Why an array cannot be seen by another library, and the call that makes a copy; None for what can."""
    x = make()
    owner = _backends.backend("numpy" if isinstance(x, np.ndarray) else "torch")
    assert owner.obstacle(x, library) == obstacle


def test_what_every_share_is_asked_is_what_libraries_would_not_report():
    """A lost sign, and a quiet copy out of main memory; what raises by itself is left to raise."""
    torch_, numpy_ = _backends.backend("torch"), _backends.backend("numpy")
    grad, neg = torch.zeros(3, requires_grad=True), torch._neg_view(torch.ones(3))
    assert [torch_.hazard(x, "numpy") for x in (torch.zeros(3), grad)] == [None, None]
    assert torch_.hazard(neg, "numpy") == ("its negation is pending", "x.resolve_neg()")
    assert torch_.hazard(torch.zeros(3), "cupy") == HERE
    assert torch_.hazard(grad, "jax") == AUTOGRAD
    assert torch_.hazard(torch.zeros(3).as_subclass(_Wrapper), "numpy") == ("a _Wrapper is not plain memory", "a plain tensor made from it")
    assert (numpy_.hazard(np.array(["a"]), "torch"), numpy_.hazard(np.zeros(3)[::-1], "torch")[0]) == (None, "it has a negative stride")
    masked = np.ma.masked_array([1.0], [True])
    assert numpy_.hazard(masked, "torch") == ("its mask would be lost", "x.filled(value)")


def test_a_refused_share_says_it_whole():
    """What cannot be seen with its shape, where it has one, the reason and the call."""
    for x, library, sentence in (
        (np.zeros((2, 3)), "cupy", f"cupy cannot see this ndarray of shape (2, 3) without a copy, because {HOST[0]}; expected memory that "
         f"both libraries can use. Call {HOST[1]}."),
        (_nested(), "numpy", "numpy cannot see this Tensor without a copy, because its layout is nested; expected memory that both "
         "libraries can use. Call x.to_dense()."),
    ):  # fmt: skip
        error = _backends._copy_required(x, library, *_backends.backend_of(x).obstacle(x, library))
        assert str(error) == f"share: {sentence}"
    with pytest.raises(CopyRequiredError, match="its mask would be lost"):
        _backends.share(np.ma.masked_array([1.0], [True]), "torch")
    array = np.arange(3.0)
    assert _backends.share(array[::-1][::-1], "torch").data_ptr() == array.ctypes.data
    assert _backends.share(array, "numpy") is array


class _Foreign:
    """An array of a library without an adapter, on a device of dlpack.h's number; a copy of it was asked for, or it was viewed."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


def test_a_library_without_an_adapter_is_asked_by_dlpack(monkeypatch):
    """Host memory by NumPy's checks, another device's as it is; what speaks no DLPack, or half of it, is none."""
    array = np.arange(4.0)
    assert _backends.share(_Foreign(array), "torch").data_ptr() == array.ctypes.data
    for foreign, words in ((_Foreign(array[::-1]), "negative stride"), (_Foreign(np.array(["a"])), "its library refuses")):
        with pytest.raises(CopyRequiredError, match=words):
            _backends.share(foreign, "torch")
    monkeypatch.setattr(_backends.TorchBackend, "from_dlpack", lambda self, x: ("as it is", x.device))
    assert _backends.share(_Foreign(array, 2), "torch") == ("as it is", 2)
    half = types.SimpleNamespace(__dlpack__=lambda: None)
    for thing in ([1, 2], np.float32(1), None, half, types.SimpleNamespace(__dlpack_device__=lambda: (1, 0))):
        with pytest.raises(
            InputError, match=r"expected an array of numpy, torch, cupy, jax, tensorflow or another one that speaks DLPack\. W"
        ):
            _backends.share(thing, "torch")


def test_arrays_move_to_the_host_and_back():
    """Signs and conjugates are carried out, gradients left behind; what numpy lacks is named; memory is its own where it must be."""
    torch_, numpy_ = _backends.backend("torch"), _backends.backend("numpy")
    turned = torch.tensor([1 + 2j]).conj()
    for x, values in ((torch.ones(2, requires_grad=True), [1, 1]), (torch._neg_view(torch.ones(1)), [-1]), (turned, [1 - 2j])):
        assert torch_.to_host(x).tolist() == values
    for x, words in (
        (torch.zeros(1, dtype=torch.bfloat16), "numpy has no bfloat16"),
        (torch.zeros(1, device="meta"), "a tensor on 'meta'"),
    ):
        with pytest.raises(InputError, match=rf"^to_host: {words}.*; expected a dense tensor of a dtype that numpy has\. Pass "):
            torch_.to_host(x)
    array = np.arange(4.0)
    odd = np.ndarray((3,), "f4", np.zeros(40, "u1"), 0, (6,))
    copied = [_read_only(), array[::-1], odd, np.zeros(17, "u1")[1:].view("f8")]
    assert torch_.from_host(array, "cpu", False).data_ptr() == array.ctypes.data
    assert torch_.from_host(array[::2], "cpu", False).data_ptr() == array.ctypes.data
    for one in copied:
        made = torch_.from_host(one, "cpu", False)
        assert (made.tolist(), made.data_ptr() != one.__array_interface__["data"][0]) == (one.tolist(), True)
    with pytest.raises(
        InputError, match=r"^to_device: other libraries have no dtype <U1; expected an array of plain numbers\. Pass x\.astype"
    ):
        torch_.from_host(np.array(["a"]), "cpu", False)
    assert (numpy_.to_host(array) is array, numpy_.from_host(array, "cpu", False) is array, numpy_.move(array, "cpu", False) is array) == (
        True,
    ) * 3
    with pytest.raises(DeviceError, match=r"^to_device: numpy has no arrays on 'cuda:0'; expected device 'cpu'"):
        numpy_.from_host(array, "cuda:0", False)
    for owner, x in ((numpy_, array), (torch_, torch.ones(3, requires_grad=True))):
        twin = owner.copy(x)
        assert (twin.tolist(), owner.pointer(twin) != owner.pointer(x)) == (x.tolist(), True)
    assert (twin.requires_grad, twin.is_leaf) == (True, True)


def test_memory_is_pinned_where_it_was_asked_for_and_is_the_hosts(monkeypatch):
    """Before the copy to the device; a tensor that is there already is not, nor one that nobody asked for."""
    log = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: log.append(tensor.tolist()) or tensor)
    torch_ = _backends.backend("torch")
    assert torch_.move(torch.ones(2), "meta", True).is_meta
    assert torch_.move(torch.ones(2), "cpu", False).tolist() == [1, 1]
    assert torch_.move(torch.ones(2, device="meta"), "meta", True).is_meta
    assert _backends.backend("numpy").from_host(np.full(2, 7.0), "cpu", True).tolist() == [7, 7]
    assert log == [[1, 1], [7, 7]]


def test_what_the_adapters_say_of_their_libraries():
    """Whose arrays never change and may be copied unasked; which dtypes numpy has; where an array is, and how it lies."""
    made = _backends._CLASSES.items()
    assert {name: (kind.immutable, kind.may_copy) for name, kind in made} == {
        "numpy": (False, False), "torch": (False, False), "cupy": (False, False), "jax": (True, True), "tensorflow": (True, True),
    }  # fmt: skip
    assert (_backends.names(), _backends.backend("torch") is _backends.backend("torch")) == (tuple(_backends._CLASSES), True)
    torch_, numpy_ = _backends.backend("torch"), _backends.backend("numpy")
    names = [
        (torch_.dtype_name(torch.zeros(1, dtype=kind)), torch_.in_numpy(torch.zeros(1, dtype=kind)))
        for kind in (torch.bfloat16, torch.int8)
    ]
    assert (names, numpy_.dtype_name(np.zeros(1, "f2")), numpy_.in_numpy(np.zeros(1))) == (
        [("bfloat16", False), ("int8", True)],
        "float16",
        True,
    )
    assert [torch_.device_of(x) for x in (torch.zeros(1), torch.zeros(1, device="meta"), _OnGpu())] == ["cpu", "meta:0", "cuda:1"]
    assert [owner.is_contiguous(x) for owner, x in ((torch_, torch.zeros(2, 3)), (numpy_, np.zeros((2, 3))))] == [True, True]
    assert [owner.is_contiguous(x) for owner, x in ((torch_, torch.zeros(2, 3).T), (numpy_, np.zeros((2, 3)).T))] == [False, False]
    cupy = _backends.CupyBackend.__new__(_backends.CupyBackend)
    assert (cupy.has_data(None), cupy.in_numpy(None), cupy.nbytes(np.zeros(3)), numpy_.has_data(None)) == (True, True, 24, True)
    x = types.SimpleNamespace(device=types.SimpleNamespace(id=0), strides=(8,))
    assert (cupy.hazard(x, "numpy"), cupy.best_device(), cupy.waits_for([x]), cupy.refuses(x, cupy)) == (
        cupy.obstacle(x, "numpy"),
        *[None] * 3,
    )


def test_libraries_are_asked_to_leave_memory_before_they_are_imported(monkeypatch):
    """Both of the extra, without importing them; what the learner has set stays."""
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    _backends.leave_memory()
    found = [os.environ[name] for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CPP_MIN_LOG_LEVEL")]
    assert found == ["false", "true", "0"]
