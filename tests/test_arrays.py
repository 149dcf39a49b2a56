"""``to_device``, ``to_host``, ``share`` and ``device_of`` with NumPy, PyTorch, JAX and TensorFlow.

Addresses and values come from the libraries themselves.
"""

import subprocess
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.devices import Device
from gpulab.errors import CopyRequiredError, DeviceError, InputError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

# The dtypes of both NumPy and PyTorch, by torch.from_numpy's documentation.
DTYPES = [np.dtype(code) for code in "?bhilBHILefdFD"]
needs_no_accelerator = pytest.mark.skipif(
    len(gl.devices.available()) > 1, reason="describes a machine without an accelerator"
)


def _address(x: Any) -> int:
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.__array_interface__["data"][0]


def _aligned(shape: tuple[int, ...], dtype: str = "float32", off: int = 0) -> np.ndarray:
    """Return an array of ones that begins ``off`` bytes behind a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + off
    array = raw[start : start + size].view(dtype).reshape(shape)
    array[...] = 1
    return array


@st.composite
def strided_arrays(draw: Any) -> np.ndarray:
    """Return arrays of any shared dtype, sliced with any step and transposed."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    array = draw(hnp.arrays(st.sampled_from(DTYPES), shapes))
    steps = st.sampled_from([1, 2, 3, -1, -2])
    array = array[(..., *(slice(None, None, draw(steps)) for _ in range(array.ndim)))]
    return array.transpose(draw(st.permutations(range(array.ndim))))


@given(strided_arrays())
def test_numpy_and_torch_share_any_strided_array(array: np.ndarray) -> None:
    """Dtype, shape, values and address are the same on both sides; a flipped view is refused."""
    np.testing.assert_array_equal(gl.to_device(array, "cpu").numpy(), array)
    if array.strides and min(array.strides) < 0:
        with pytest.raises(CopyRequiredError):
            gl.share(array, "torch")
        return
    tensor = gl.share(array, "torch")
    back = gl.share(tensor, "numpy")
    np.testing.assert_array_equal(back, array)
    assert back.dtype == gl.to_host(tensor).dtype == array.dtype
    assert tuple(tensor.shape) == back.shape == array.shape
    if array.size:
        assert _address(tensor) == _address(array) == _address(back)
        array.flat[0] = 1
        assert bool(tensor.reshape(-1)[0] == 1)
        assert back.flags.writeable


def _read_only() -> np.ndarray:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


def _quietly(make: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls these prototypes or deprecated
        return make()


def _fake() -> Any:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


OBSTACLES: dict[str, tuple[Any, str]] = {
    "read-only": (_read_only, "torch"),
    "broadcast": (lambda: np.broadcast_to(np.zeros(1), (4,)), "torch"),
    "flipped": (lambda: np.zeros(4)[::-1], "torch"),
    "objects": (lambda: np.array([1, "a"], dtype=object), "torch"),
    "text": (lambda: np.array(["a"]), "torch"),
    "dates": (lambda: np.zeros(2, "M8[s]"), "torch"),
    "byte order": (lambda: np.zeros(2, ">f4"), "torch"),
    "masked": (lambda: np.ma.masked_array([1.0], [True]), "torch"),
    "unaligned": (lambda: np.zeros(16, "u1")[1:9].view("f4"), "torch"),
    "odd stride": (lambda: np.ndarray((3,), "f4", np.zeros(40, "u1"), 0, (6,)), "torch"),
    "host to cupy": (lambda: np.zeros(3), "cupy"),
    "cpu to cupy": (lambda: torch.zeros(3), "cupy"),
    "autograd": (lambda: torch.zeros(3, requires_grad=True), "numpy"),
    "bfloat16": (lambda: torch.zeros(3, dtype=torch.bfloat16), "numpy"),
    "float8": (lambda: torch.zeros(3, dtype=torch.float8_e4m3fn), "numpy"),
    "sparse": (lambda: torch.zeros(3).to_sparse(), "numpy"),
    "sparse rows": (lambda: _quietly(lambda: torch.zeros(3, 3).to_sparse_csr()), "numpy"),
    "nested": (lambda: _quietly(lambda: torch.nested.nested_tensor([torch.zeros(2)])), "numpy"),
    "quantized": (
        lambda: _quietly(lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)),
        "numpy",
    ),
    "meta": (lambda: torch.zeros(3, device="meta"), "numpy"),
    "fake": (_fake, "numpy"),
    "conjugate": (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "numpy"),
    "imaginary of a conjugate": (
        lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
        "numpy",
    ),
}


def test_what_cannot_be_shared_says_why(approved: Any) -> None:
    """Each obstacle is named with the call that helps; none gives wrong values or a crash."""
    lines = []
    for name, (make, library) in OBSTACLES.items():
        with pytest.raises(CopyRequiredError) as refused:
            gl.share(make(), library)
        lines.append(f"{name}: {refused.value}")
    assert "\n".join(lines) + "\n" == approved


def test_special_contents_pass_bit_for_bit() -> None:
    """NaN, infinities, signed zeros, no dimensions, no elements and Fortran order are kept."""
    special = np.array([np.nan, np.inf, -0.0])
    for array in (special, np.zeros(()), np.zeros((0, 3)), np.ones((3, 4), order="F")):
        for passed in (gl.share(array, "torch").numpy(), gl.to_host(gl.to_device(array, "cpu"))):
            assert (passed.tobytes(), passed.shape) == (array.tobytes(), array.shape)


def test_where_nothing_must_be_copied_nothing_is() -> None:
    """In its own library an array is returned itself; on its own device memory is shared."""
    flipped, parameter = np.zeros(3)[::-1], torch.zeros(3, requires_grad=True)
    assert gl.share(flipped, "numpy") is flipped
    assert gl.share(parameter, "torch") is parameter
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert _address(gl.share(frozen, "numpy")) == frozen.data_ptr()
    array = np.zeros((2, 3))
    assert gl.to_host(array) is array is gl.to_device(array, library="numpy")
    assert _address(gl.to_device(array, "cpu")) == _address(array)
    assert _address(gl.to_host(parameter)) == parameter.data_ptr()
    for tensor in (parameter, torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to_sparse()):
        assert gl.to_device(tensor, "cpu") is tensor


def test_values_that_are_pending_are_computed() -> None:
    """A lazy conjugate is computed, and a read-only array is copied, so it cannot change."""
    conjugate = torch.tensor([1 + 2j]).conj()
    np.testing.assert_array_equal(gl.to_host(conjugate), [1 - 2j])
    np.testing.assert_array_equal(gl.to_host(conjugate.imag), [-2])
    array = _read_only()
    gl.to_device(array, "cpu")[0] = 1
    assert array[0] == 0


def test_device_of_and_refusals() -> None:
    """Every array has a device; other objects, unknown libraries and devices are refused."""
    assert gl.device_of(np.zeros(2)) == gl.device_of(torch.zeros(2)) == Device("cpu")
    for thing in (1, 2.0, [1, 2], "text", None, np.float32(1), {"a": 1}, range(3)):
        for call in (gl.to_host, gl.device_of, lambda x: gl.share(x, "torch")):
            with pytest.raises(InputError, match=type(thing).__name__):
                call(thing)
    for library in ("pandas", "", None, 3):
        with pytest.raises(InputError, match="numpy, torch"):
            gl.to_device(np.zeros(2), "cpu", library=library)  # type: ignore[arg-type]
    for arguments in (("cpu", "cupy"), ("tpu",), ("cuda:77",)):
        with pytest.raises(DeviceError):
            gl.to_device(np.zeros(3), *arguments)
    for move, tensor in (
        (gl.to_host, torch.zeros(2, dtype=torch.bfloat16)),
        (gl.to_host, torch.ones(2).to_sparse()),
        (gl.to_device, torch.zeros(2, device="meta")),
    ):
        with pytest.raises(InputError):
            move(tensor)


@needs_no_accelerator
def test_pinned_memory_needs_an_accelerator() -> None:
    """Without an accelerator pinning is an error, which suggests ``pinned=False``."""
    with pytest.raises(DeviceError, match="pinned=False"):
        gl.to_device(np.zeros(3), "cpu", pinned=True)


def test_looking_at_an_array_imports_no_library() -> None:
    """With NumPy alone imported, moving within NumPy loads neither torch nor cupy."""
    code = (
        "import sys, numpy as np, gpulab as gl; gl.to_host(np.zeros(2)); gl.device_of(np.zeros(2));"
        "gl.to_device(np.zeros(2), 'cpu', 'numpy');"
        "print([m for m in ('torch', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_foreign_library_is_shared_through_dlpack() -> None:
    """An unknown library that speaks DLPack is viewed without a copy, with the same checks."""

    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    array = np.arange(4.0)
    assert gl.share(Foreign(array), "torch").data_ptr() == _address(array)
    with pytest.raises(CopyRequiredError):
        gl.share(Foreign(array[::-1]), "torch")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "float32", "complex64"])
def test_jax_shares_aligned_memory_and_never_lies_over_what_may_change(dtype: str) -> None:
    """``share`` keeps the address; ``to_device`` copies, so later writes do not reach the copy."""
    pytest.importorskip("jax")
    array = _aligned((2, 3), dtype)
    view = gl.share(array, "jax")
    assert view.unsafe_buffer_pointer() == array.ctypes.data
    assert not gl.share(view, "numpy").flags.writeable
    for off in (0, 16):
        source = _aligned((1000,), off=off)
        there = gl.to_device(source, library="jax")
        source[:] = 7
        assert float(there[0]) == 1
    assert gl.to_device(there, library="jax") is there
    assert gl.device_of(there).is_cpu


@pytest.mark.slow
def test_jax_keeps_dtype_and_values_or_refuses() -> None:
    """float64 is not narrowed, misaligned memory is not copied silently, bfloat16 passes."""
    jax = pytest.importorskip("jax")
    wide = [torch.zeros(3, dtype=torch.float64), np.zeros(3, np.int64)]
    for x in (*wide, _aligned((4,), off=16), torch.zeros(16)[::2], _aligned((4,))[::-1]):
        with pytest.raises(CopyRequiredError):
            gl.share(x, "jax")
    with pytest.raises(InputError, match="float64"):
        gl.to_device(np.zeros(3), library="jax")
    x = torch.arange(100).to(torch.bfloat16)
    for part in (x[1:], x[::2], x.reshape(10, 10).T, x[9]):
        there = gl.to_device(part, "cpu", "jax")
        assert np.asarray(there.astype("float32")).tolist() == part.float().numpy().tolist()
    with pytest.raises(InputError, match="jit"):
        jax.jit(gl.to_host)(jax.numpy.arange(4.0))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra rosetta")
def test_tensorflow_shares_and_refuses_the_same_way() -> None:
    """Tensors are read-only views of the same memory; text and variables are refused."""
    array = np.zeros(4)
    there = gl.to_device(array, library="tensorflow")  # before the import: it loads Triton first
    import tensorflow as tf

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = tf.constant(values)
    view = gl.share(tensor, "numpy")
    np.testing.assert_array_equal(view, values)
    assert not view.flags.writeable
    assert gl.share(tensor, "torch").data_ptr() == view.ctypes.data
    ours = torch.ones(4)
    seen = gl.share(ours, "tensorflow")
    ours[0] = 5
    assert float(seen[0]) == 5
    array[0] = 1
    assert float(there[0]) == 0
    for x, library in ((tf.constant(["text"]), "numpy"), (tf.Variable([1.0]), "torch")):
        with pytest.raises(CopyRequiredError):
            gl.share(x, library)
    assert gl.device_of(there).is_cpu


@pytest.mark.gpu
def test_a_round_trip_over_the_gpu() -> None:
    """Values survive the way to the GPU and back, pinned or not, and torch and CuPy share there."""
    array = np.arange(1000.0)
    for pinned in (False, True):
        there = gl.to_device(array, "cuda", pinned=pinned)
        assert gl.device_of(there).kind == "cuda"
        np.testing.assert_array_equal(gl.to_host(there), array)
    cupy = pytest.importorskip("cupy")
    view = gl.share(there, "cupy")
    assert view.data.ptr == there.data_ptr()
    assert isinstance(view, cupy.ndarray)
