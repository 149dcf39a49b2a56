"""The catalog: named operations with inputs, FLOPs and bytes. One registry serves instruments,
recordings and benchmarks.

``names()`` lists the entries, ``get(name)`` returns one, and calling it with a size gives a
``Workload``:

>>> from gpulab import workloads
>>> w = workloads.get("matmul")(n=64)
>>> w.label, w.flops, w.nbytes
('matmul n=64 float32', 524288.0, 49152.0)
>>> a, b = w.inputs("cpu")
>>> w.difference(w.run(a, b), (a, b)) <= w.tolerance
True

What is counted
---------------
FLOPs: every addition, multiplication, comparison and elementary function (exp, erf, division,
square root) of the formula counts one, a multiply-add two; each entry's ``counts`` has its formula.
Attention and the training steps count matrix products and convolutions only, as the literature
does. Bytes are the compulsory traffic: each input read once, each output written once; repeated
reads and memory that an implementation keeps between operators are not counted.

Adding a workload takes 13 lines in one place, here or in your own module::

    from gpulab.workloads import WorkloadSpec, draw, register

    register(
        WorkloadSpec(
            name="square",
            summary="each element squared",
            size_meaning="elements",
            sizes=(1024, 1 << 20, 1 << 24),
            function=lambda x: x * x,
            flops=lambda w: w.n,
            nbytes=lambda w: 2 * w.n * w.itemsize,
            make_inputs=lambda w, generator: (draw.normal(generator, w.n),),
            counts="n FLOPs; one array read, one written",
        )
    )

``inputs`` are drawn on the CPU in float32 and then converted and moved, so they have the same
values on every device. The default check computes some rows (entries along the first dimension)
again in float64; an entry whose rows depend on each other provides its own ``difference``. See
``WorkloadSpec`` for the rest.
"""

from gpulab.workloads import _catalog as _catalog
from gpulab.workloads import draw
from gpulab.workloads._registry import (
    MARGIN,
    Workload,
    WorkloadSpec,
    free_bytes,
    get,
    names,
    register,
)

__all__ = [
    "MARGIN",
    "Workload",
    "WorkloadSpec",
    "draw",
    "free_bytes",
    "get",
    "names",
    "register",
]
