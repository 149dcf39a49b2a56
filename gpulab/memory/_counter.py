"""The dispatch mode that counts bytes and FLOPs operator by operator. Imported only inside
functions: it needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gpulab.memory._traffic import OperatorTraffic
from gpulab.memory.tracker import storages_of, tensors_in

# FLOPs an output element where it is not one: the formulas of gpulab.workloads (gelu) or the
# operator's own definition.
_PER_ELEMENT = {
    "gelu": 5,
    "addcmul": 3,
    "addcdiv": 3,
    "lerp": 3,
    "sigmoid": 3,
    "silu": 4,
    "softplus": 4,
    "gelu_backward": 8,
    "threshold_backward": 1,
    "where": 1,
    "clamp": 2,
    "hardtanh": 2,
}
# FLOPs an input element, as gpulab.workloads counts softmax and layer_norm; a mean or a sum adds
# each element once.
_PER_INPUT = {
    "sum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
    "max": 1,
    "min": 1,
    "prod": 1,
    "var": 3,
    "var_mean": 3,
    "argmax": 1,
    "cumsum": 1,
    "norm": 2,
    "linalg_vector_norm": 2,
    "_softmax": 5,
    "_log_softmax": 5,
    "native_layer_norm": 7,
    "native_batch_norm": 7,
    "dot": 2,
}
# Operators that only move, compare places or fill; a number format may change on the way.
_MOVES = {
    "copy_",
    "clone",
    "_to_copy",
    "fill",
    "zero_",
    "fill_",
    "cat",
    "stack",
    "index",
    "index_select",
    "gather",
    "embedding",
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "arange",
    "scatter",
    "index_put",
    "sort",
    "repeat",
    "flip",
    "roll",
    "constant_pad_nd",
}
# Of these the first tensor is a table of which only the asked rows are read.
_LOOKUPS = {"index", "index_select", "gather", "embedding"}
# A storage or a question, not a pass over memory.
_NOTHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "resize_",
    "set_",
    "lift_fresh",
}
# In-place operators that do not look at what was there.
_BLIND = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}


class TrafficCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep one ``OperatorTraffic`` for each operator that moves something, and which tensors were
    read first and changed then.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[OperatorTraffic] = []
        self._fresh: set[tuple[Any, ...]] = set()  # written before anything was read there
        self._read: set[tuple[Any, ...]] = set()
        self.changed: set[tuple[Any, ...]] = set()  # read as they were, then written over

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        views = any(
            each.alias_info is not None and not each.alias_info.is_write
            for each in func._schema.returns
        )
        if func.namespace == "prim" or views or _base(func) in _NOTHING:
            return result
        targets = [value for _, value, writes in _arguments(func, args, kwargs) if writes]
        written = distinct(tensors_in((targets, result)))
        read = _read(func, args, kwargs, written)
        self._read |= read.keys() - self._fresh
        self.changed |= written.keys() & self._read
        self._fresh |= written.keys() - self._read
        if read or written:
            sizes = sum(read.values()), sum(written.values())
            self.operators.append(
                OperatorTraffic(str(func), *sizes, _flops(func, args, kwargs, result))
            )
        return result


def distinct(tensors: Iterable[torch.Tensor]) -> dict[tuple[Any, ...], int]:
    """Return the bytes of distinct memory behind each different tensor."""
    return {_key(tensor): _nbytes(tensor) for tensor in tensors}


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what distinguishes a tensor: the memory that it covers, and how; of a fake one, which
    has no address, its storage.
    """
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    if tensor.is_meta or isinstance(tensor, FakeTensor):  # their data_ptr() is 0, or a warning
        where: Any = (tensor.untyped_storage()._cdata, tensor.storage_offset())
    else:
        where = tensor.data_ptr()
    return where, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of distinct elements: an expanded dimension (stride 0) is there once, and so
    is where windows overlap.

    Of a sparse tensor these are its values and its indices.
    """
    if tensor.layout is not torch.strided:
        return sum(_nbytes(part) for part, _ in storages_of(tensor, tensor.device.type))
    dimensions = list(zip(tensor.shape, tensor.stride(), strict=True))
    elements = math.prod(size for size, stride in dimensions if stride or not size)
    span = 1 + sum((size - 1) * stride for size, stride in dimensions)  # from first to last
    return min(elements, max(span, 0)) * tensor.element_size()


def _base(func: Any) -> str:
    """Return the operator's name without namespace and overload."""
    return str(func._schema.name).rpartition("::")[2]


def _plain(func: Any) -> str:
    """Return the base name of the operator's functional form."""
    base = _base(func)
    return base if base in _BLIND or base.startswith("__") else base.removesuffix("_")


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each argument's place in the schema, its value, and whether the operator writes to
    it.
    """
    for place, argument in enumerate(func._schema.arguments):
        is_placed = place < len(args) and not argument.kwarg_only
        value = args[place] if is_placed else kwargs.get(argument.name)
        yield argument, value, argument.alias_info is not None and argument.alias_info.is_write


def _read(
    func: Any, args: Any, kwargs: Any, written: dict[tuple[Any, ...], int]
) -> dict[tuple[Any, ...], int]:
    # ``out=``, or the target of a copy or a fill, is only written
    values = [
        tree_leaves(value)
        for argument, value, is_written in _arguments(func, args, kwargs)
        if not (is_written and (argument.is_out or _base(func) in _BLIND))
    ]
    read = distinct(tensors_in(values))
    if _base(func) in _LOOKUPS:
        table = _key(tensors_in(values)[0])
        read[table] = min(read[table], sum(written.values()))
    return read


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> float | None:
    packet, name = func.overloadpacket, _plain(func)
    if name.startswith("_scaled_dot_product"):
        return _attention_flops(name, args)
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=result))
    outputs = tensors_in(result)
    if name in _MOVES or _base(func) in _BLIND:
        return 0.0
    if name in _PER_INPUT:
        inputs = tensors_in((args, kwargs))
        return float(_PER_INPUT[name] * inputs[0].numel()) if inputs else None
    if name in _PER_ELEMENT or torch.Tag.pointwise in func.tags:
        scaled = name in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1
        return float((_PER_ELEMENT.get(name, 1) + scaled) * outputs[0].numel()) if outputs else None
    return None


def _attention_flops(name: str, args: Any) -> float:
    """Both products of attention, the softmax left out as in ``gpulab.workloads``; backward makes
    five products of that size.
    """
    backward = name.endswith("_backward")
    query, key, value = args[1:4] if backward else args[:3]
    rows, width, keys = math.prod(query.shape[:-1]), query.shape[-1], key.shape[-2]
    once = 2.0 * rows * keys
    return float(once * (3 * width + 2 * value.shape[-1] if backward else width + value.shape[-1]))
