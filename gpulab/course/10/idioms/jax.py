"""JAX's idioms beside the lines that do the same here; both sides run where JAX is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._idioms import COUNTED_PROGRAMS, Idiom, float64_of

_ROWS: tuple[dict[str, Any], ...] = (
    {
        "name": "device_put",
        "theirs": "import jax\nresult = jax.device_put(a, jax.devices()[0])",
        "here": "result = gl.to_device(a)",
        "waits": "until the copy has been read from a; JAX's own device_put may return before it "
        "is done",
        "where": "on the device",
        "leaves_out": "Without jax_enable_x64 a float64 silently becomes a float32 on its way; "
        'gl.to_device(a, library="jax") refuses it.',
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "device_get",
        "theirs": "import jax\nresult = jax.device_get(jax.numpy.asarray(a) + 1)",
        "here": "result = gl.to_host(A + 1)",
        "waits": "for the value, then for the copy",
        "where": "main memory",
        "leaves_out": "np.asarray(x), print(x) and float(x) wait as well.",
        "expected": lambda names: float64_of(names) + 1,
    },
    {
        "name": "block_until_ready",
        "theirs": "import jax.numpy as jnp\nC = jnp.asarray(a) @ jnp.asarray(b).T\nresult = "
        "C.block_until_ready()",
        "here": "C = A @ B.T\ngl.devices.default().synchronize()\nresult = C",
        "waits": "for this value; here for all that is queued on the device",
        "where": "on the device",
        "leaves_out": "JAX returns before the work is done on a CPU, too, where PyTorch does not. "
        "gl.measure waits for every result of JAX.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": "jit",
        "theirs": """\
import jax
import jax.numpy as jnp

traces = []


@jax.jit
def f(x):
    traces.append(x.shape)  # runs while tracing, not while computing
    return 2 * x + 1


for rows in (2, 2, 3):
    f(jnp.ones((rows, 4)))
result = len(traces)""",
        "here": COUNTED_PROGRAMS,
        "waits": "while it is traced and compiled: once for each new shape and dtype",
        "where": "where the arguments are",
        "leaves_out": "Inside, if x > 0 is an error in JAX, because there are no values yet; "
        "torch.compile splits the function there instead.",
        "expected": lambda names: np.asarray(2),
        "exact": True,
        "seconds": 3.0,
    },
    {
        "name": "vmap",
        "theirs": "import jax\nresult = jax.vmap(lambda row: row @ row)(jax.numpy.asarray(a))",
        "here": "result = torch.vmap(lambda row: row @ row)(A)",
        "waits": "no",
        "where": "on the device",
        "leaves_out": "Neither loops: the function is rewritten for the whole batch.",
        "expected": lambda names: (float64_of(names) ** 2).sum(axis=1),
        "operation": "matmul",
    },
    {
        "name": "grad",
        "theirs": "import jax\nresult = jax.grad(lambda x: (x**2).sum())(jax.numpy.asarray(a))",
        "here": "result = torch.func.grad(lambda x: (x**2).sum())(A)",
        "waits": "no",
        "where": "the gradient lies where x does",
        "leaves_out": "torch.autograd.grad is the other way: it goes back along what was recorded.",
        "expected": lambda names: 2 * float64_of(names),
    },
    {
        "name": ".at[].set",
        "theirs": "import jax.numpy as jnp\nx = jnp.asarray(a)\nresult = x.at[0].set(7.0)  # "
        "another array; x is as it was",
        "here": "result = A.clone()\nresult[0] = 7.0",
        "waits": "no",
        "where": "on the device",
        "leaves_out": "A JAX array never changes; inside jit the copy is omitted if x is not used again.",
        "expected": lambda names: np.vstack([np.full((1, 4), 7.0), float64_of(names)[1:]]),
    },
    {
        "name": "random.key",
        "theirs": """\
import jax

key = jax.random.key(0)
result = bool((jax.random.normal(key, (3,)) == jax.random.normal(key, (3,))).all())""",
        "here": """\
def draw():
    return torch.randn(3, generator=torch.Generator().manual_seed(0))


result = bool((draw() == draw()).all())""",
        "waits": "only because the line asks whether they are equal",
        "where": "on the device",
        "leaves_out": "The same key gives the same numbers each time in JAX: split it for others. "
        "PyTorch's generator goes on by itself.",
        "expected": lambda names: True,
    },
    {
        "name": "sharding",
        "theirs": """\
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
there = jax.device_put(a, NamedSharding(mesh, PartitionSpec("rows")))
result = jax.jit(lambda x: x.sum(axis=0))(there)""",
        "here": """\
parts = [gl.to_device(part.copy(), device) for part in np.array_split(a, 1)]
result = sum(part.sum(dim=0) for part in parts)""",
        "waits": "no",
        "where": "each device holds its rows",
        "leaves_out": "One device here, so one part. JAX puts the communication in by itself, as "
        "torch.distributed.tensor does; gl.parallel shows each collective.",
        "expected": lambda names: float64_of(names).sum(axis=0),
    },
)

ROWS = tuple(Idiom(language="JAX", runs_theirs=True, library="jax", **row) for row in _ROWS)
