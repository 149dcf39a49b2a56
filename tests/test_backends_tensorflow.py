"""TensorFlow's tensors through share, to_device, to_host, device_of and measure; addresses are asked of numpy's view of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import gpulab as gl
from gpulab import _backends
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


def test_tensorflow_is_quiet_when_gpulab_loads_it() -> None:
    """Nothing on either stream, by the variable that TensorFlow's manual names."""
    clean = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}  # JAX sets it as well
    code = (
        "import numpy as np, os, gpulab as gl; gl.to_device(np.zeros(2), library='tensorflow'); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True, env=clean)
    assert (done.stdout.strip(), done.stderr.strip()) == ("2", "")
