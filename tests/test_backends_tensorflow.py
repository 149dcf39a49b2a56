"""TensorFlow's tensors through share, to_device, to_host, device_of and measure; addresses are asked of numpy's view of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gpulab as gl
from gpulab import _backends
from gpulab._backends import _tensorflow
from gpulab._backends._jax import not_aligned
from gpulab.errors import CopyRequiredError, DeviceError, InputError, MissingLibraryError
from gpulab.timing import _agreement

try:
    tf = _backends.backend("tensorflow").module  # without its chatter
except MissingLibraryError as error:
    pytest.skip(f"TensorFlow is not installed: {error}", allow_module_level=True)
pytestmark = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="asks for what TensorFlow does on a CPU")

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensorflow_and_the_others_share_every_common_dtype(name: str) -> None:
    """Address, dtype, shape and values are the same in numpy and torch; numpy's view is read-only."""
    values = np.arange(6).reshape(2, 3).astype(name)
    tensor = tf.constant(values)
    view = gl.share(tensor, "numpy")
    np.testing.assert_array_equal(view, values)
    assert view.dtype == values.dtype
    assert not view.flags.writeable
    assert view.ctypes.data == np.from_dlpack(tensor).ctypes.data
    if name not in ("uint64",):
        assert gl.share(tensor, "torch").data_ptr() == view.ctypes.data


def test_torch_memory_is_taken_as_it_is() -> None:
    """What torch writes afterwards is seen; bfloat16 and bool too; an empty one."""
    tensor = torch.ones(4)
    view = gl.share(tensor, "tensorflow")
    tensor[0] = 5
    assert float(view[0]) == 5
    assert gl.share(torch.ones(3, dtype=torch.bfloat16), "tensorflow").dtype == tf.bfloat16
    assert gl.share(torch.ones(3, dtype=torch.bool), "tensorflow").dtype == tf.bool
    assert gl.share(torch.zeros(0, 3), "tensorflow").shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "library", "words"),
    [
        (lambda: torch.zeros(9)[1:], "tensorflow", r"4 bytes behind a 64-byte boundary.*gl\.to_device"),
        (lambda: torch.zeros(4, 4).T, "tensorflow", "row by row"),
        (lambda: torch.zeros(3, requires_grad=True), "tensorflow", "autograd"),
        (lambda: torch._neg_view(torch.ones(3)), "tensorflow", "negation"),
        (lambda: np.broadcast_to(np.float32(1), (4,)), "tensorflow", "read-only"),
        (lambda: tf.constant(["text"]), "numpy", "string is no number"),
        (lambda: tf.Variable([1.0]), "torch", r"assigned to.*x\.value\(\)"),
        (lambda: tf.zeros(3, tf.bfloat16), "numpy", "no bfloat16"),
        (lambda: tf.zeros(3), "cupy", "CUDA memory"),
    ],
)
def test_what_cannot_be_shared_says_why(make: Any, library: str, words: str) -> None:
    """Among them two that would end the process: text, and memory that is not aligned."""
    with pytest.raises(CopyRequiredError, match=words):
        gl.share(make(), library)


def test_to_device_copies_and_names_devices_that_are_not_there() -> None:
    """What is written to the source later is not seen, in either direction; a GPU that is not there is an error, not the CPU."""
    array = np.zeros(4)
    there = gl.to_device(array, library="tensorflow")
    array[0] = 1
    assert float(there[0]) == 0
    assert there.dtype == tf.float64
    gl.to_device(there, library="torch")[0] = 3
    assert float(there[0]) == 0
    assert gl.device_of(there).is_cpu
    with pytest.raises(DeviceError, match=r"this TensorFlow has no 'cuda:0' \(it has cpu\)"):
        _backends.backend("tensorflow").from_host(array, "cuda:0", False)


def test_to_device_takes_a_dtype_that_numpy_lacks_in_any_shape_and_stride() -> None:
    """bfloat16 as a slice behind a boundary, transposed, one number: the sentence had said to call to_device, which was the call."""
    x = torch.arange(100).to(torch.bfloat16)
    for part in (x[1:], x[::2], x.reshape(10, 10).T, x[9]):
        there = gl.to_device(part, "cpu", "tensorflow")
        assert there.dtype == tf.bfloat16
        assert tf.cast(there, "float32").numpy().tolist() == part.float().numpy().tolist()


def test_to_host_gives_values_and_refuses_names_for_values() -> None:
    """Tensors read-only, Variables as a copy; text, bfloat16 and nodes of a graph are named."""
    tensor = tf.constant([1.0, 2.0])
    assert not gl.to_host(tensor).flags.writeable
    variable = tf.Variable([1.0, 2.0])
    host = gl.to_host(variable)
    host[0] = 7
    assert float(variable[0]) == 1
    for make, words in ((lambda: tf.constant(["a"]), "no number"), (lambda: tf.zeros(1, tf.bfloat16), "bfloat16")):
        with pytest.raises(InputError, match=words):
            gl.to_host(make())
    with tf.Graph().as_default():
        node = tf.compat.v1.placeholder(tf.float32, (2,))
        with pytest.raises(InputError, match="graph will have later"):
            gl.device_of(node)
        with pytest.raises(InputError, match="outside of the graph"):
            gl.to_device(np.zeros(2), library="tensorflow")


def test_measure_and_compare_take_tensors_variables_and_sessions() -> None:
    """With both copies, against torch's result, and a session that holds nodes of a graph."""
    x = tf.constant(np.random.default_rng(0).random((64, 64), dtype=np.float32))
    m = gl.measure(tf.linalg.matmul, x, x, deadline=0.1, transfer=True)
    assert m.device == "cpu"
    assert m.with_transfer_seconds > 0
    assert gl.measure(lambda v: v * 2, tf.Variable([1.0]), deadline=0.05).device == "cpu"
    c = gl.compare({"tf": lambda v: v @ v, "torch": lambda v: torch.tensor(v.numpy()) @ torch.tensor(v.numpy())}, x, deadline=0.1)
    assert c.max_relative_difference < 1e-5
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, (4,))
        doubled = 2 * fed
        run = gl.measure(lambda: session.run(doubled, feed_dict={fed: np.ones(4)}), deadline=0.1)
    assert run.median_seconds > 0


def test_a_large_product_is_checked_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are gathered, for a tensor takes no index array: numpy's product in float64 is near, one with a wrong row is not."""
    monkeypatch.setattr(_agreement, "_WHOLE_PRODUCT", 0.0)
    host = np.random.default_rng(0).random((100, 100), dtype=np.float32)
    a = tf.constant(host)
    reference = _agreement.of_function(tf.matmul, (a, a), (), a, 0.0)
    assert reference.difference is not None
    assert "64 of its 100 rows" in reference.notes[0].sentence
    exact = host.astype(np.float64) @ host.astype(np.float64)
    right, wrong = exact.astype(np.float32), exact.astype(np.float32)
    wrong[-1] *= 1.01
    assert reference.difference(tf.constant(right)) < 1e-6
    assert reference.difference(tf.constant(wrong)) > 1e-3


def test_only_what_is_told_for_information_is_left_out(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that TensorFlow 2.21 writes on a processor with AVX512-VNNI; an error and a warning stay, and all for who asks for all."""
    lines = (
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        b"I0000 00:00:1795491872.337260   28199 port.cc:153] oneDNN custom operations are on.\n"
        b"W0000 00:00:1795491872.337260   28199 x.cc:1] a warning\nE0000 an error\nIndeed\n"
    )
    kept = lines.decode().splitlines()[2:]
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    for _ in range(2):  # the output is as it was after the first time
        with _tensorflow._without_chatter():
            os.write(2, lines)
        assert capfd.readouterr().err.splitlines() == kept
    import_fails = _tensorflow._without_chatter()
    import_fails.__enter__()
    os.write(2, lines)
    error = ImportError("no")
    with contextlib.suppress(ImportError):
        import_fails.__exit__(ImportError, error, None)
    assert capfd.readouterr().err.splitlines() == kept
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with _tensorflow._without_chatter():
        os.write(2, lines)
    assert capfd.readouterr().err.encode() == lines


def test_tensorflow_is_quiet_when_gpulab_loads_it() -> None:
    """Nothing on either stream, by the variable that TensorFlow's manual names."""
    clean = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}  # JAX sets it as well
    code = (
        "import numpy as np, os, gpulab as gl; gl.to_device(np.zeros(2), library='tensorflow'); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True, env=clean)
    assert (done.stdout.strip(), done.stderr.strip()) == ("2", "")


def test_a_tensorflow_with_a_gpu_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's word for it; obstacles, moves and waits by hand, without a GPU."""
    adapter, x = _backends.backend("tensorflow"), tf.constant([1.0])
    gpus = [SimpleNamespace(name="/device:GPU:0")]
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind=None: [*([] if kind else [SimpleNamespace(name="/device:CPU:0")]), *gpus]
    )
    names = ("/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:1", "TPU:2", "GPU")
    assert [adapter._name(name) for name in names] == ["cpu", "cuda:1", "tpu:2", "cuda:0"]
    assert [adapter._device(name) for name in ("cpu", "cuda", "cuda:0")] == ["/device:CPU:0", "/device:GPU:0", "/device:GPU:0"]
    for name in ("cuda:1", "xpu:0", "mps"):
        with pytest.raises(
            DeviceError, match=rf"^to_device: this TensorFlow has no '{name}' \(it has cpu, cuda:0\); expected one of these\. P"
        ):
            adapter._device(name)
    assert adapter.best_device() == "cuda:0"
    waited: list[str] = []
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: waited.append("all"))
    assert adapter.waits_for({"steps": 3}) is None
    wait = adapter.waits_for({"loss": [x]})
    assert wait is not None
    wait(x)
    assert waited == ["all"]
    owner: Any = SimpleNamespace(is_contiguous=lambda x: True, pointer=lambda x: 65)
    refused = []
    for where in ("cuda:0", "xpu:0", "cpu"):
        owner.device_of = lambda x, where=where: where
        refused.append(adapter.refuses(x, owner))
    elsewhere = ("it is on xpu:0, which this TensorFlow cannot use", 'gl.to_device(x, "cpu", library="tensorflow")')
    assert refused == [None, elsewhere, not_aligned(65, "tensorflow")]
    monkeypatch.setattr(type(adapter), "device_of", lambda self, x: "cuda:0")
    assert [adapter.obstacle(x, library) for library in ("torch", "cupy", "numpy")] == [
        None, None, ("it is on cuda:0, and numpy sees only main memory", "gl.to_host(x)"),
    ]  # fmt: skip
    gpus.clear()
    owner.device_of = lambda x: "cuda:0"
    assert adapter.refuses(x, owner) == ("it is on cuda:0, which this TensorFlow cannot use", elsewhere[1])
    assert (adapter.best_device(), adapter.waits_for([x])) == ("cpu", None)


def test_what_a_tensor_says_of_itself() -> None:
    """Bytes and names of dtypes by hand; a copy of its own; page-locked memory is refused; a Variable of a graph is no array."""
    adapter = _backends.backend("tensorflow")
    kinds = [tf.zeros((2, 3), kind) for kind in ("float16", "bfloat16", "int64", "bool", "complex128")]
    assert [(adapter.nbytes(x), adapter.dtype_name(x), adapter.in_numpy(x)) for x in kinds] == [
        (12, "float16", True), (12, "bfloat16", False), (48, "int64", True), (6, "bool", True), (96, "complex128", True),
    ]  # fmt: skip
    x = tf.constant([1.0, 2.0])
    twin = adapter.copy(x)
    assert (twin.numpy().tolist(), adapter.pointer(twin) != adapter.pointer(x), adapter.has_data(x)) == ([1.0, 2.0], True, True)
    for move in (adapter.move, adapter.from_host):
        with pytest.raises(
            DeviceError, match=r"^to_device: TensorFlow takes no page-locked memory from outside; expected pinned=False\. Leave"
        ):
            move(x if move == adapter.move else np.zeros(2), "cpu", True)
    with pytest.raises(
        InputError, match=r"^to_device: its dtype string is no number; expected a tensor with numbers in it\. Pass a tensor of num"
    ):
        adapter.move(tf.constant(["a"]), "cpu", False)
    with pytest.raises(InputError, match=r"^to_device: other libraries have no dtype <U1"):
        adapter.from_host(np.array(["a"]), "cpu", False)
    with tf.Graph().as_default():
        assert adapter._no_data(tf.Variable([1.0])) == ("it is a Variable of a graph", "session.run(x)")


def test_the_address_of_a_view_counts_what_lies_before_it() -> None:
    """Of a DLTensor by hand (dlpack.h): data at 0, byte_offset behind device, dimensions, dtype, shape and strides, at 40."""
    parts = (ctypes.c_uint64 * 6)(4096, 0, 0, 0, 0, 64)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    x = SimpleNamespace(__dlpack__=lambda: new(ctypes.addressof(parts), b"dltensor", None))
    assert _backends.backend("tensorflow").pointer(x) == 4160
