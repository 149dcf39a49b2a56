"""TensorFlow's idioms beside the lines that do the same here.

Both sides run where TensorFlow is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._idioms import COUNTED_PROGRAMS, Idiom, float64_of

_NO = "no"


_NEW: tuple[dict[str, Any], ...] = (
    {
        "name": "tf.constant",
        "theirs": 'import tensorflow as tf\nwith tf.device("/CPU:0"):\n    result = tf.constant(a)',
        "here": 'result = gl.to_device(a, "cpu")',
        "waits": "until the copy has been read from a",
        "where": "on the device that the with block names; here on the one that the call names",
        "leaves_out": "tf.constant copies, and what it makes never changes. On a CPU to_device "
        "uses a's own memory.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "soft placement",
        "theirs": """\
import tensorflow as tf

gpus = len(tf.config.list_logical_devices("GPU"))
with tf.device(f"/GPU:{gpus}"):  # one more than there are
    landed = tf.matmul(a, b, transpose_b=True).device
result = tf.DeviceSpec.from_string(landed).device_type == "GPU" and gpus == 0""",
        "here": """\
try:
    gl.to_device(a, f"cuda:{torch.cuda.device_count()}")
    result = True
except gl.errors.DeviceError:
    result = False""",
        "waits": _NO,
        "where": "TensorFlow: wherever there is a kernel, without a message; here: an error",
        "leaves_out": "An operation for a GPU that is not there runs on the CPU in TensorFlow. "
        "tf.config.set_soft_device_placement(False) turns this into an error.",
        "expected": lambda names: False,
    },
    {
        "name": ".device",
        "theirs": """\
import tensorflow as tf

C = tf.matmul(a, b, transpose_b=True)
result = tf.DeviceSpec.from_string(C.device).device_type == ("GPU" if tf.config.list_logical_devices("GPU") else "CPU")""",
        "here": "result = gl.device_of(A @ B.T) == gl.devices.find(device)",
        "waits": _NO,
        "where": "on the GPU if there is one, otherwise on the CPU",
        "leaves_out": "tf.debugging.set_log_device_placement(True) prints it for every operation, "
        "also inside a graph; there is no such log here.",
        "expected": lambda names: True,
    },
    {
        "name": "matmul",
        "theirs": "import tensorflow as tf\nresult = tf.matmul(tf.constant(a), tf.constant(b), "
        "transpose_b=True)",
        "here": "result = A @ B.T",
        "waits": "no on a GPU; on a CPU both return when it is done",
        "where": "on the device",
        "leaves_out": "TensorFlow takes nearly all of a GPU's memory at its first operation, "
        "unless set_memory_growth was called before; where gpulab loads TensorFlow, "
        "TF_FORCE_GPU_ALLOW_GROWTH has it take what it needs.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": ".numpy()",
        "theirs": "import tensorflow as tf\nresult = tf.constant(a).numpy()",
        "here": "result = gl.to_host(A)",
        "waits": "for the value, then for the copy",
        "where": "main memory",
        "leaves_out": "print(t) and if t > 0 also copy to main memory, in both.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "sync_devices",
        "theirs": """\
import tensorflow as tf

C = tf.matmul(a, b, transpose_b=True)
tf.test.experimental.sync_devices()
result = C""",
        "here": "C = A @ B.T\ngl.devices.default().synchronize()\nresult = C",
        "waits": "for all work queued on the GPUs",
        "where": "on the device",
        "leaves_out": "Nothing to wait for on a CPU.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": "tf.function",
        "theirs": """\
import tensorflow as tf

traces = []


@tf.function(autograph=False)
def f(x):
    traces.append(x.shape)  # runs while tracing, not while computing
    return 2 * x + 1


for rows in (2, 2, 3):
    f(tf.ones((rows, 4)))
result = len(traces)""",
        "here": COUNTED_PROGRAMS,
        "waits": "while it is traced: once for each new shape and dtype",
        "where": "where the arguments are",
        "leaves_out": "Prints and appends run only while tracing. A Python number as argument is "
        "traced anew for each value in TensorFlow.",
        "expected": lambda names: np.asarray(2),
        "exact": True,
        "seconds": 3.0,
    },
    {
        "name": "GradientTape",
        "theirs": """\
import tensorflow as tf

x = tf.constant(a)
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.reduce_sum(x**2)
result = tape.gradient(y, x)""",
        "here": "x = A.clone().requires_grad_(True)\n(result,) = "
        "torch.autograd.grad((x**2).sum(), x)",
        "waits": _NO,
        "where": "the gradient lies where x does",
        "leaves_out": "The tape records what is inside the with block; PyTorch records what is computed "
        "from a tensor with requires_grad=True.",
        "expected": lambda names: 2 * float64_of(names),
    },
    {
        "name": "tf.Variable",
        "theirs": "import tensorflow as tf\nv = tf.Variable(a)\nv.assign_add(b)\nresult = v.value()",
        "here": "result = A.clone()\nresult += B",
        "waits": _NO,
        "where": "on the device, in place",
        "leaves_out": "Only a Variable can change in TensorFlow; every tensor can here.",
        "expected": lambda names: float64_of(names) + float64_of(names, "b"),
    },
    {
        "name": "tf.data prefetch",
        "theirs": """\
import tensorflow as tf

rows = tf.data.Dataset.from_tensor_slices(a).batch(2).prefetch(tf.data.AUTOTUNE)
result = np.concatenate([batch.numpy() for batch in rows])""",
        "here": """\
from torch.utils.data import DataLoader

rows = DataLoader(torch.from_numpy(a), batch_size=2)  # num_workers=2, prefetch_factor=2 load ahead in processes
result = np.concatenate([batch.numpy() for batch in rows])""",
        "waits": "for a batch that is not there yet",
        "where": "main memory; tf.data can prefetch to a GPU as well",
        "leaves_out": "tf.data loads ahead in threads of TensorFlow, DataLoader in processes, "
        "and only with num_workers above 0 (notebook 06).",
        "expected": lambda names: names["a"],
        "exact": True,
    },
)

_OLD: tuple[dict[str, Any], ...] = (
    {
        "name": "Session, feed_dict",
        "theirs": """\
import tensorflow as tf

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder(tf.float32, a.shape)
    y = 2 * x + 1
    result = session.run(y, feed_dict={x: a})  # a is sent, y is fetched, in every run""",
        "here": "x = gl.to_device(a)\nresult = gl.to_host(2 * x + 1)",
        "waits": "until y is in main memory",
        "where": "main memory before and after",
        "leaves_out": "run sends and fetches each time, whether that is needed or not. Here the "
        "two copies are two calls: leave them out of the loop.",
        "expected": lambda names: 2 * float64_of(names) + 1,
    },
    {
        "name": "Variable, initializer",
        "theirs": """\
import tensorflow as tf

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    start = tf.compat.v1.placeholder(tf.float32, a.shape)
    v = tf.compat.v1.get_variable("v", initializer=start, use_resource=True)
    session.run(v.initializer, feed_dict={start: a})  # sent once
    step = v.assign_add(tf.ones_like(v.read_value())).op
    for _ in range(3):
        session.run(step)  # an operation returns nothing, so nothing is fetched
    result = session.run(v.read_value())""",
        "here": "v = gl.to_device(a.copy())\nfor _ in range(3):\n    v += 1\nresult = "
        "gl.to_host(v)",
        "waits": "each run for its step; the last one for the value",
        "where": "v stays on the device",
        "leaves_out": "This is the way out of feeding: data that stays belongs in a Variable.",
        "expected": lambda names: float64_of(names) + 3,
    },
    {
        "name": "tf.device, ConfigProto",
        "theirs": """\
import tensorflow as tf

soft = tf.compat.v1.ConfigProto(allow_soft_placement=False)
with tf.Graph().as_default(), tf.compat.v1.Session(config=soft) as session:
    with tf.device("/CPU:0"):
        y = tf.reduce_sum(tf.constant(a), axis=0)
    result = session.run(y)""",
        "here": 'result = gl.to_device(a, "cpu").sum(dim=0)',
        "waits": "until y is in main memory",
        "where": "on the device that is named",
        "leaves_out": "log_device_placement=True in the ConfigProto prints where each operation "
        "landed, once for each graph.",
        "expected": lambda names: float64_of(names).sum(axis=0),
    },
)

ROWS = tuple(
    Idiom(language=language, runs_theirs=True, library="tensorflow", **row)
    for language, rows in (("TensorFlow", _NEW), ("TensorFlow 1", _OLD))
    for row in rows
)
