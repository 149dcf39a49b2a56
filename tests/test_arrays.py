"""Moving arrays and sharing them without a copy."""

import sys
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpulab as gl
from gpulab import arrays
from gpulab.devices import Device
from gpulab.errors import CopyRequiredError, DeviceError, InputError, OutOfMemoryError

# What both numpy and torch have (torch.from_numpy's documentation lists them).
_DTYPES = [np.dtype(code) for code in "?bhilBHILefdFD"]
needs_no_accelerator = pytest.mark.skipif(len(gl.devices.available()) > 1, reason="says what happens without an accelerator")


def _address(x):
    """The address of the first element, asked of the library itself."""
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.__array_interface__["data"][0]


@st.composite
def strided_arrays(draw, negative=False):
    """Arrays of any shared dtype with up to three dimensions, made non-contiguous by slices and a transposition."""
    array = draw(hnp.arrays(st.sampled_from(_DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)))
    steps = [1, 2, 3] + ([-1, -2] if negative else [])
    array = array[(..., *(slice(None, None, draw(st.sampled_from(steps))) for _ in range(array.ndim)))]
    return array.transpose(draw(st.permutations(range(array.ndim))))


@given(strided_arrays())
def test_numpy_and_torch_share_any_strided_array_without_a_copy(array):
    """Dtype, shape, strides, values and address are the same on both sides, and back again."""
    tensor = gl.share(array, "torch")
    back = gl.share(tensor, "numpy")
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert tuple(tensor.shape) == back.shape == array.shape
    assert gl.to_host(tensor).dtype == array.dtype
    if array.size:
        assert _address(tensor) == _address(array) == _address(back)
        assert back.strides == array.strides or array.size == 1 or 1 in array.shape


@given(strided_arrays(negative=True))
def test_negative_strides_are_refused_by_share_and_copied_by_to_device(array):
    """A flipped view never reaches torch (it would abort the process): share refuses it, to_device copies its values."""
    if array.strides and min(array.strides) < 0:
        with pytest.raises(CopyRequiredError, match="negative stride"):
            gl.share(array, "torch")
    np.testing.assert_array_equal(gl.to_device(array, "cpu").numpy(), array)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_side=1)), st.floats(allow_nan=False))
def test_what_is_written_on_one_side_is_seen_on_the_other(array, value):
    """A shared view is writable both ways."""
    tensor = gl.share(array, "torch")
    tensor.reshape(-1)[0] = value
    assert array.flat[0] == value
    array.flat[-1] = 42.0
    assert tensor.reshape(-1)[-1] == 42.0
    view = gl.share(tensor, "numpy")
    assert view.flags.writeable


@pytest.mark.parametrize(
    "make", [lambda: np.array([np.nan, np.inf, -0.0]), lambda: np.zeros(()), lambda: np.zeros((0, 3)), lambda: np.ones((3, 4), order="F")]
)
def test_special_contents_and_shapes_pass(make):
    """NaN, infinities, signed zero, no dimensions, no elements and Fortran order come through bit for bit."""
    array = make()
    for passed in (gl.share(array, "torch").numpy(), gl.to_host(gl.to_device(array, "cpu"))):
        assert passed.tobytes() == array.tobytes()
        assert passed.shape == array.shape


def _read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


def _quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, which PyTorch says once a process: another test may have heard it
        return torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)


def _nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, which PyTorch says once a process as well
        return torch.nested.nested_tensor([torch.zeros(2)])


def _fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


@pytest.mark.parametrize(
    ("make", "library", "words"),
    [
        (_read_only, "torch", "read-only.*x.copy"),
        (lambda: np.broadcast_to(np.zeros(1), (4,)), "torch", "read-only"),
        (lambda: np.zeros(4)[::-1], "torch", "negative stride.*ascontiguousarray"),
        (lambda: np.array([1, "a"], dtype=object), "torch", "dtype object"),
        (lambda: np.array(["a"]), "torch", "dtype <U1"),
        (lambda: np.zeros(2, "M8[s]"), "torch", "datetime64"),
        (lambda: np.zeros(2, ">f4"), "torch", "order"),
        (lambda: np.zeros(2, np.longdouble), "torch", "float128|float96|longdouble"),
        (lambda: np.ma.masked_array([1.0], [True]), "torch", "mask"),
        (lambda: np.zeros(16, "u1")[1:9].view("f4"), "torch", "aligned"),
        (lambda: np.ndarray((3,), "f4", np.zeros(40, "u1"), 0, (6,)), "torch", "stride|aligned"),
        (lambda: np.zeros(3), "cupy", "CUDA memory.*gl.to_device"),
        (lambda: torch.zeros(3), "cupy", "CUDA memory.*gl.to_device"),
        (lambda: torch.zeros(3, requires_grad=True), "numpy", "autograd.*detach"),
        (lambda: torch.zeros(3, requires_grad=True) * 2, "numpy", "autograd"),
        (lambda: torch.zeros(3, dtype=torch.bfloat16), "numpy", "no bfloat16.*float"),
        (lambda: torch.zeros(3, dtype=torch.float8_e4m3fn), "numpy", "no float8_e4m3fn"),
        (lambda: torch.zeros(3).to_sparse(), "numpy", "sparse_coo.*to_dense"),
        (lambda: torch.zeros(3, 3).to_sparse_csr(), "numpy", "sparse_csr"),
        (_nested, "numpy", "nested.*to_dense"),
        (_quantized, "numpy", "quantized.*dequantize"),
        (lambda: torch.zeros(3, device="meta"), "numpy", "no data"),
        (_fake, "numpy", "FakeTensor"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "numpy", "conjugation.*resolve_conj"),
        (lambda: torch._neg_view(torch.ones(3)), "numpy", "negation.*resolve_neg"),
    ],
)
def test_what_cannot_be_shared_says_why_and_what_to_call(make, library, words):
    """Each obstacle is named before any library sees the array; none gives wrong values or a crash."""
    x = make()
    with pytest.raises(CopyRequiredError, match=words) as caught:
        gl.share(x, library)
    assert "\n" not in str(caught.value)


def test_sharing_with_the_own_library_gives_the_array_itself():
    """No view is made where none is needed, whatever the array."""
    for x, library in ((np.zeros(3)[::-1], "numpy"), (torch.zeros(3, requires_grad=True), "torch")):
        assert gl.share(x, library) is x


def test_parameters_that_are_frozen_can_be_shared():
    """A torch Parameter is plain memory once it no longer asks for gradients."""
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert _address(gl.share(parameter, "numpy")) == parameter.data_ptr()


class _Foreign:
    """An array of a library that gpulab does not know, which speaks DLPack through numpy."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_an_unknown_library_that_speaks_dlpack_is_shared_with_the_same_checks():
    """Host memory of a foreign library is viewed without a copy, and its negative strides do not reach torch."""
    array = np.arange(4.0)
    assert gl.share(_Foreign(array), "torch").data_ptr() == _address(array)
    with pytest.raises(CopyRequiredError, match="negative stride"):
        gl.share(_Foreign(array[::-1]), "torch")
    with pytest.raises(CopyRequiredError, match="its library refuses"):
        gl.share(_Foreign(np.array(["a"])), "torch")


@pytest.mark.parametrize("thing", [1, 2.0, [1, 2], (1,), "text", None, np.float32(1), {"a": 1}, range(3)])
def test_what_is_no_array_is_refused_in_one_sentence(thing):
    """Lists, scalars and text raise InputError that names the type and what to do."""
    for call in (
        lambda: gl.share(thing, "torch"),
        lambda: gl.to_device(thing, "cpu"),
        lambda: gl.to_host(thing),
        lambda: gl.device_of(thing),
    ):
        with pytest.raises(InputError, match=rf"{type(thing).__name__}; expected .*numpy.asarray"):
            call()


@pytest.mark.parametrize("library", ["pandas", "", None, 3, ["torch"]])
def test_an_unknown_library_is_refused(library):
    """The sentence lists the libraries that gpulab knows."""
    for call in (lambda: gl.share(np.zeros(2), library), lambda: gl.to_device(np.zeros(2), "cpu", library=library)):
        with pytest.raises(InputError, match="numpy, torch, cupy"):
            call()


def test_to_host_gives_the_same_memory_and_detaches():
    """On the host nothing is copied; a tensor in autograd gives its values; pending conjugation and negation are done."""
    tensor = torch.arange(3.0, requires_grad=True)
    assert _address(gl.to_host(tensor)) == tensor.data_ptr()
    array = np.zeros(3)
    assert gl.to_host(array) is array
    np.testing.assert_array_equal(gl.to_host(torch.tensor([1 + 2j]).conj()), [1 - 2j])
    np.testing.assert_array_equal(gl.to_host(torch._neg_view(torch.ones(2))), [-1, -1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(3, dtype=torch.bfloat16), "bfloat16.*x.float"),
        (lambda: torch.zeros(3).to_sparse(), "sparse_coo.*to_dense"),
        (lambda: torch.zeros(3, device="meta"), "no data"),
    ],
)
def test_to_host_of_what_numpy_lacks_says_what_to_call(make, words):
    """Dtypes and layouts that numpy has not are refused with the call that helps."""
    with pytest.raises(InputError, match=words):
        gl.to_host(make())


def test_to_device_on_the_same_device_copies_nothing():
    """Numpy to torch on the CPU shares; torch to torch gives the tensor itself and stays in autograd; bfloat16 passes."""
    array = np.zeros((2, 3))
    assert gl.to_device(array, "cpu").data_ptr() == _address(array)
    for tensor in (torch.zeros(3, requires_grad=True), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to_sparse()):
        assert gl.to_device(tensor, "cpu") is tensor
    assert gl.to_device(array, library="numpy") is array
    assert _address(gl.to_device(torch.zeros(3), library="numpy")) != 0


def test_to_device_copies_what_must_not_be_written():
    """A read-only array gives a tensor of its own, so writing to it leaves the original alone."""
    array = _read_only()
    gl.to_device(array, "cpu")[0] = 1
    assert array[0] == 0


@pytest.mark.parametrize(
    "make", [lambda: np.array(["a"]), lambda: np.array([None]), lambda: np.zeros(2, ">f8"), lambda: np.ma.masked_array([1.0], [True])]
)
def test_to_device_refuses_what_torch_has_no_dtype_for(make):
    """Text, objects, foreign byte order and masks are refused with the call that helps."""
    with pytest.raises(InputError, match=r"to_device: .*expected an array of plain numbers"):
        gl.to_device(make(), "cpu")


@pytest.mark.parametrize(("dtype", "less"), [("float64", "float32"), ("complex128", "complex64")])
def test_what_metal_has_no_dtype_for_says_what_to_convert_to(monkeypatch, dtype, less):
    """As PyTorch answers on an Apple GPU; NumPy's arrays are float64 unless told otherwise."""

    def to(self, device):
        raise TypeError(f"Cannot convert a MPS Tensor to {self.dtype} dtype as the MPS framework doesn't support {self.dtype}.")

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(arrays, "find", Device)
    with pytest.raises(InputError) as caught:
        gl.to_device(np.zeros(3, dtype), "mps")
    assert str(caught.value) == (
        f"to_device: mps:0 has no {dtype}; expected a dtype that it has. Convert it first: "
        f'a.astype("{less}") of NumPy, a.to(torch.{less}) of PyTorch.'
    )


def test_devices_and_libraries_that_do_not_fit_are_refused():
    """Numpy has nothing but the CPU, and CuPy has no CPU arrays."""
    with pytest.raises(DeviceError, match="cupy has no arrays on 'cpu'"):
        gl.to_device(np.zeros(3), "cpu", library="cupy")
    with pytest.raises(DeviceError, match="'tpu' is not on this machine"):
        gl.to_device(np.zeros(3), "tpu")
    with pytest.raises(InputError, match="device: got an int"):
        gl.to_device(np.zeros(3), 0)


@needs_no_accelerator
def test_pinned_without_an_accelerator_is_a_device_error():
    """There is nothing to pin for, and the sentence says so."""
    with pytest.raises(DeviceError, match=r"no accelerator to pin memory for.*pinned=False"):
        gl.to_device(np.zeros(3), "cpu", pinned=True)


@needs_no_accelerator
def test_cupy_without_a_gpu_is_a_device_error():
    """Asking for a CuPy array where there is no CUDA device says what exists."""
    with pytest.raises(DeviceError, match="cupy has no arrays on 'cpu'"):
        gl.to_device(np.zeros(3), library="cupy")


def test_device_of_knows_every_library_without_asking_the_machine(monkeypatch):
    """The array says where it is; the machine is not searched."""
    monkeypatch.setattr("gpulab.devices._device.available", lambda: pytest.fail("the machine was searched"))
    assert gl.device_of(np.zeros(2)) == gl.device_of(torch.zeros(2)) == Device("cpu")
    with pytest.raises(InputError, match="no data"):
        gl.device_of(torch.zeros(2, device="meta"))


def test_a_copy_that_main_memory_cannot_hold_is_refused_before_it_starts(monkeypatch):
    """Linux would grant the memory and kill the kernel later, so the size is checked first."""
    monkeypatch.setattr("gpulab.devices._host.available_memory_bytes", lambda: 100)
    monkeypatch.setattr("gpulab._backends.TorchBackend.device_of", lambda self, x: "cuda:0")
    with pytest.raises(OutOfMemoryError, match=r"1\.00 KiB of main memory and 100 B are free"):
        gl.to_host(torch.zeros(128, dtype=torch.float64))


def test_a_copy_as_large_as_what_is_free_is_made(monkeypatch):
    """A byte more is refused, by its function, with both sizes; into main memory to_device asks as to_host does."""
    monkeypatch.setattr("gpulab.devices._host.available_memory_bytes", lambda: 1024)
    arrays._need_main_memory("f", 1024)
    with pytest.raises(OutOfMemoryError) as refused:
        arrays._need_main_memory("f", 2048)
    assert str(refused.value) == (
        "f: the copy needs 2.00 KiB of main memory and 1.00 KiB are free; expected it to fit. "
        "Copy a part of the array, or call gl.memory.release() first."
    )
    monkeypatch.setattr("gpulab._backends.TorchBackend.device_of", lambda self, x: "cuda:0")
    with pytest.raises(OutOfMemoryError, match=r"^to_device: the copy needs 2\.00 KiB"):
        gl.to_device(torch.zeros(256, dtype=torch.float64), "cpu")
    monkeypatch.setattr("gpulab.devices._host.available_memory_bytes", lambda: None)
    arrays._need_main_memory("f", 2048)


@pytest.mark.parametrize(("owner_keeps", "target_keeps"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("here", ["cuda:0", "cuda:1"])
def test_between_two_libraries_of_a_gpu_nothing_passes_through_the_host(monkeypatch, here, owner_keeps, target_keeps):
    """Moved within the first library where it lies on another GPU, then shared; copied where one of the two never changes an array."""
    owner = types.SimpleNamespace(device_of=lambda a: here, move=lambda a, where, pinned: (a, where, pinned), immutable=owner_keeps)
    target = types.SimpleNamespace(name="cupy", copy=lambda view: ("copy", view), immutable=target_keeps)
    monkeypatch.setattr("gpulab._backends.share", lambda x, library: ("view", x, library))
    moved = "a" if here == "cuda:1" else ("a", "cuda:1", False)
    view = ("view", moved, "cupy")
    assert arrays._across_libraries("a", owner, target, "cuda:1") == (("copy", view) if owner_keeps or target_keeps else view)


def test_what_a_gpu_library_cannot_see_as_it_lies_is_made_compact_there(monkeypatch):
    """As a transposed tensor for TensorFlow; where no copy can be made the refusal stays."""

    def share(x, library):
        if x != "compact":
            raise CopyRequiredError("share: its elements do not lie one behind the other")
        return ("view", x, library)

    owner = types.SimpleNamespace(device_of=lambda a: "cuda:0", immutable=False, compact=lambda a: "compact" if a == "a" else None)
    target = types.SimpleNamespace(name="tensorflow", copy=lambda view: ("copy", view), immutable=True)
    monkeypatch.setattr("gpulab._backends.share", share)
    assert arrays._across_libraries("a", owner, target, "cuda:0") == ("copy", ("view", "compact", "tensorflow"))
    with pytest.raises(CopyRequiredError, match="one behind the other"):
        arrays._across_libraries("b", owner, target, "cuda:0")


def test_a_device_that_runs_out_of_memory_gives_one_sentence(monkeypatch):
    """Torch's own out-of-memory error is translated, and stays the cause."""
    original = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB. GPU 0 has a total capacity of ...")

    def fail(self, *args):
        raise original

    monkeypatch.setattr("gpulab._backends.TorchBackend.from_host", fail)
    with pytest.raises(OutOfMemoryError, match=r"to_device: moving 800 B from cpu to cpu") as caught:
        gl.to_device(np.zeros(100), "cpu")
    assert caught.value.__cause__ is original
    assert "\n" not in str(caught.value)


def test_a_half_imported_library_does_not_disturb_the_others(monkeypatch):
    """A None in sys.modules (an import that was blocked) leaves numpy arrays usable."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gl.device_of(np.zeros(1)).is_cpu
    with pytest.raises(InputError):
        gl.device_of(types.SimpleNamespace())


def test_public_names_come_from_this_module():
    """gl.share and its neighbours are the functions of gpulab.arrays."""
    for name in ("share", "to_device", "to_host", "device_of"):
        assert getattr(gl, name) is getattr(arrays, name)


@pytest.mark.gpu
class TestOnAGpu:
    """What needs a CUDA device."""

    def test_torch_and_cupy_share_both_ways(self):
        """Pointer equality, and a write on one side is seen on the other."""
        cupy = pytest.importorskip("cupy")
        tensor = torch.arange(6.0, device="cuda").reshape(2, 3)
        array = gl.share(tensor, "cupy")
        assert array.data.ptr == tensor.data_ptr()
        array[0, 0] = 9
        cupy.cuda.Device(0).synchronize()
        assert float(tensor[0, 0]) == 9
        assert gl.share(array, "torch").data_ptr() == array.data.ptr
        assert gl.to_device(tensor, "cuda", library="cupy").data.ptr == tensor.data_ptr()

    @pytest.mark.parametrize("library", ["torch", "cupy"])
    @pytest.mark.parametrize("pinned", [False, True])
    def test_there_and_back_keeps_every_bit(self, library, pinned):
        """Host to device to host gives the same bits, dtype and shape, pinned or not, also for awkward strides."""
        pytest.importorskip(library)
        for array in (
            np.random.default_rng(0).random((7, 5)),
            np.zeros((0, 3), np.float16),
            np.arange(9)[::-2],
            np.ones((2, 3), order="F"),
        ):
            x = gl.to_device(array, library=library, pinned=pinned)
            assert gl.device_of(x).index == 0
            assert not gl.device_of(x).is_cpu
            np.testing.assert_array_equal(gl.to_host(x), array)

    def test_cpu_memory_can_be_pinned(self):
        """With device "cpu" the result itself is page-locked."""
        assert gl.to_device(np.zeros(4), "cpu", pinned=True).is_pinned()

    def test_the_host_cannot_see_device_memory(self):
        """Share to numpy says which call copies."""
        with pytest.raises(CopyRequiredError, match=r"cuda:0.*gl\.to_host"):
            gl.share(torch.zeros(3, device="cuda"), "numpy")

    def test_too_much_for_the_device_is_one_sentence(self):
        """More than the GPU has raises OutOfMemoryError, and the device stays usable."""
        total = torch.cuda.mem_get_info()[1]
        huge = torch.empty(1, device="cpu").expand(2 * total // 4)
        with pytest.raises(OutOfMemoryError, match="to_device: moving"):
            gl.to_device(huge, "cuda")
        assert float(torch.ones(2, device="cuda").sum()) == 2
