"""``traffic(fn, *args)``: what each operator of a function reads and writes, counted below autograd
while it runs.

The count is the compulsory traffic of each operator by itself: each distinct element of an argument
read once, each element of a result written once. Caches between operators, and what an operator
reads again, are not seen; so a fused function and its parts differ here exactly by the arrays that
fusion saves. FLOPs follow the convention of ``gpulab.workloads``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.memory.traffic_results import Traffic


def traffic(fn: Callable[..., Any], *args: Any, label: str | None = None) -> Traffic:
    """Run a function once and return the memory traffic of its operators.

    Parameters
    ----------
    fn : callable
        Works on torch tensors, on any device; a training step with its backward pass counts too. A
        function made by ``torch.compile`` is counted as the operators that it was written with.
    *args
        What ``fn`` takes.
    label : str, optional
        The function's name by default.

    Returns
    -------
    Traffic
        With evidence MODELLED.

    Raises
    ------
    InputError
        If ``fn`` cannot be called, or raises.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> t = memory.traffic(lambda x: x * 2 + 1, torch.ones(1000))
    >>> t.nbytes, t.compulsory_bytes, t.flops
    (16000, 8000, 2000.0)
    """
    if not callable(fn):
        raise InputError(
            f"traffic: {shown(fn)} cannot be called; expected a function of tensors. Pass "
            "traffic(f, x), not traffic(f(x))."
        )
    import torch
    from torch.utils._pytree import tree_leaves

    from gpulab.memory import _counter

    original = getattr(fn, "_torchdynamo_orig_callable", fn)
    counter = _counter.TrafficCounter()
    try:
        with counter:
            result = original(*args)
    except Exception as error:
        raise InputError(
            f"traffic: the function raised {message_of(error)}; expected it to run on these "
            "arguments. Try fn(*args) first."
        ) from error
    parameters = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    given = _counter.distinct([*tree_leaves(args), *parameters])
    made = _counter.distinct(tree_leaves(result))
    written = [nbytes for key, nbytes in made.items() if key not in given] + [
        given[key] for key in counter.changed & given.keys()
    ]
    assumed = (
        "each operator reads each distinct element of its arguments once and writes its "
        "results once; no cache between operators"
    )
    return Traffic(
        label=label if label is not None else getattr(fn, "__name__", type(fn).__name__),
        operators=tuple(counter.operators),
        input_bytes=sum(given.values()),
        output_bytes=sum(written),
        evidence=Evidence.modelled(
            assumed,
            "PyTorch's own operators, counted by a dispatch mode; matrix products by PyTorch's "
            "FLOP formulas",
        ),
    )
