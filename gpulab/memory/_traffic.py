"""``traffic(fn, *args)``: what each operator of a function reads and writes.

The count is the compulsory traffic of each operator by itself: each distinct element of an argument
read once, each element of a result written once. The count ignores caches between operators, and
data that an operator reads more than once. So a fused function and its parts differ exactly by the
arrays that fusion saves. FLOPs follow the convention of ``gpulab.workloads``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gpulab import _validate, devices
from gpulab.evidence import Evidence
from gpulab.memory.step_memory import storages_of, tensors_in, uncompiled
from gpulab.results import Result, Table
from gpulab.units import format_bytes, plural

# A table with more operators than this is too long to read: equal operators then share a row.
_MOST_ROWS = 12


class OperatorTraffic(NamedTuple):
    """One operator that ran.

    Attributes
    ----------
    name : str
        PyTorch's name of the operator, such as "aten.add.Tensor".
    read_bytes, written_bytes : int
        Each distinct element of its arguments once; each element of its results once.
    flops : float or None
        By the catalog's convention; None where there is no count for this operator.
    """

    name: str
    read_bytes: int
    written_bytes: int
    flops: float | None

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Traffic(Result):
    """The memory traffic of a function, operator by operator.

    Attributes
    ----------
    label : str
    operators : tuple of OperatorTraffic
        In the order in which they ran; views, which move nothing, are left out.
    input_bytes, output_bytes : int
        ``input_bytes``: of the arguments, with a module's parameters. ``output_bytes``: of the new
        tensors that the function returned, and of the arguments that it changed in place.
    evidence : Evidence
        MODELLED: counted from shapes, not measured on the memory bus.
    """

    label: str
    operators: tuple[OperatorTraffic, ...]
    input_bytes: int
    output_bytes: int
    evidence: Evidence

    @property
    def read_bytes(self) -> int:
        """The bytes that all operators read."""
        return sum(each.read_bytes for each in self.operators)

    @property
    def written_bytes(self) -> int:
        """The bytes that all operators write."""
        return sum(each.written_bytes for each in self.operators)

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes

    @property
    def compulsory_bytes(self) -> int:
        """The bytes that one fused pass would move: the inputs read once, the results written once.
        An array changed in place counts as both.
        """
        return self.input_bytes + self.output_bytes

    @property
    def flops(self) -> float:
        """The FLOPs of the operators that are counted."""
        return sum(each.flops or 0.0 for each in self.operators)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The operators whose FLOPs are not counted, each once."""
        return tuple(dict.fromkeys(each.name for each in self.operators if each.flops is None))

    def memory_bound(self, roof: Any, arithmetic: str = "float32") -> tuple[OperatorTraffic, ...]:
        """Return the operators that a roofline limits by main memory, not by arithmetic; operators
        without a count of FLOPs are left out.

        Parameters
        ----------
        roof : Roofline
            From ``gpulab.models.roofline``.
        arithmetic : str
            The number format whose arithmetic roof is used.

        Raises
        ------
        InputError
            If ``roof`` is not a roofline, such as the name of a machine.
        """
        from gpulab.models import Roofline

        _validate.instance(
            "memory_bound", "roof", roof, Roofline, "a roofline. Pass gpulab.models.roofline(name)."
        )
        ridge = roof.ridge_flops_per_byte(arithmetic)
        return tuple(
            each
            for each in self.operators
            if each.flops is not None and each.flops < ridge * each.nbytes
        )

    def __repr__(self) -> str:
        moved = f"reads {format_bytes(self.read_bytes)}, writes {format_bytes(self.written_bytes)}"
        return (
            f"<{self.label}: {plural(len(self.operators), 'operator')}, {moved}, {self.flops:.3g} "
            f"FLOP ({self.evidence.badge})>"
        )

    def table(self) -> Table:
        """Return one row per operator (one per kind, where there are many), and the sum."""
        groups: list[tuple[str, list[OperatorTraffic]]] = [(o.name, [o]) for o in self.operators]
        if len(groups) > _MOST_ROWS:
            kinds: dict[str, list[OperatorTraffic]] = {}
            for each in self.operators:
                kinds.setdefault(each.name, []).append(each)
            groups = [(f"{len(kind)} x {name}", kind) for name, kind in kinds.items()]
            groups.sort(key=lambda group: -sum(each.nbytes for each in group[1]))
        rows = [_row(*group) for group in (*groups, ("together", self.operators))]
        return ("operator", "reads", "writes", "FLOP", "FLOP per byte"), rows

    def caption(self) -> str:
        """Return the badge, and the operators whose FLOPs are not counted."""
        left_out = f" · FLOPs not counted: {', '.join(self.uncounted)}" if self.uncounted else ""
        return f"{self.evidence.sentence}{left_out}"


def _row(name: str, operators: Sequence[OperatorTraffic]) -> tuple[str, ...]:
    read = sum(each.read_bytes for each in operators)
    written = sum(each.written_bytes for each in operators)
    flops = sum(each.flops or 0.0 for each in operators)
    counted = any(each.flops is not None for each in operators) or not operators
    intensity = f"{flops / (read + written):.3g}" if counted and read + written else ""
    return (
        name,
        format_bytes(read),
        format_bytes(written),
        f"{flops:.4g}" if counted else "not counted",
        intensity,
    )


def traffic(fn: Callable[..., Any], *args: Any, label: str | None = None) -> Traffic:
    """Run a function once and return the memory traffic of its operators.

    Parameters
    ----------
    fn : callable
        Works on torch tensors, on any device; it may be a training step with its backward pass. A
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

    A module's parameters are among what it must read:

    >>> layer = torch.nn.Linear(1000, 1000, bias=False)
    >>> memory.traffic(layer, torch.ones(1, 1000)).compulsory_bytes
    4008000
    """
    _validate.instance(
        "traffic",
        "fn",
        fn,
        Callable,
        "a function of tensors. Pass traffic(f, x), not traffic(f(x)).",
    )
    counter = TrafficCounter()
    with (
        devices.guard(
            "traffic: the function", "it to run on these arguments. Try fn(*args) first."
        ),
        uncompiled(),
        counter,
    ):
        result = fn(*args)
    parameters = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    inputs = distinct([*tensors_in(args), *parameters])
    written = [
        *(nbytes for key, nbytes in distinct(tensors_in(result)).items() if key not in inputs),
        *(inputs[key] for key in counter.changed & inputs.keys()),
    ]
    assumed = (
        "each operator reads each distinct element of its arguments once and writes its results "
        "once; no cache between operators"
    )
    return Traffic(
        label=label if label is not None else getattr(fn, "__name__", type(fn).__name__),
        operators=tuple(counter.operators),
        input_bytes=sum(inputs.values()),
        output_bytes=sum(written),
        evidence=Evidence.modelled(
            assumed,
            "PyTorch's own operators, counted by a dispatch mode; matrix products by PyTorch's "
            "FLOP formulas",
        ),
    )


# FLOPs per output element, for operators with other than one: by the formulas of gpulab.workloads
# (gelu) or the operator's own definition.
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
# FLOPs per input element, as gpulab.workloads counts softmax and layer_norm; a mean or a sum adds
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
# Operators without arithmetic: they move, sort or fill elements; the number format may change.
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
# The first tensor of these operators is a table, of which they read only the selected rows.
_LOOKUPS = {"index", "index_select", "gather", "embedding"}
# Operators that only make or change a storage or a view, without a pass over memory.
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
# In-place operators that do not read the previous content.
_BLIND = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}


class TrafficCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep one ``OperatorTraffic`` for each operator that moves data, and the tensors that were
    first read and then changed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[OperatorTraffic] = []
        self._fresh: set[tuple[Any, ...]] = set()  # tensors written before they were read
        self._read: set[tuple[Any, ...]] = set()
        self.changed: set[tuple[Any, ...]] = set()  # tensors read before they were written

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "prim" or func.is_view or _base(func) in _NOTHING:
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
    """Return the bytes of each different tensor, where a byte at a repeated address counts once."""
    return {_key(tensor): _nbytes(tensor) for tensor in tensors}


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key of the memory that a tensor covers: its address (for a fake tensor, which has
    none, its storage), dtype, shape and strides.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return (id(tensor),)
    if tensor.is_meta or isinstance(tensor, FakeTensor):  # their data_ptr() is 0, or a warning
        where: Any = (tensor.untyped_storage()._cdata, tensor.storage_offset())
    else:
        where = tensor.data_ptr()
    return where, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of distinct elements: an expanded dimension (stride 0) counts once, and so
    does memory where windows overlap.

    For a sparse tensor these are the bytes of its values and its indices.
    """
    if tensor.is_nested:
        return tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.strided:
        return sum(_nbytes(part) for part, _ in storages_of(tensor, tensor.device.type))
    dimensions = list(zip(tensor.shape, tensor.stride(), strict=True))
    elements = math.prod(size for size, stride in dimensions if stride or not size)
    span = 1 + sum((size - 1) * stride for size, stride in dimensions)  # from first to last
    return min(elements, max(span, 0)) * tensor.element_size()


def _base(func: Any) -> str:
    """Return the operator's name without namespace and overload."""
    return str(func._schema.name).rpartition("::")[2]


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each argument of the schema, its value, and whether the operator writes to it."""
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
    packet, base = func.overloadpacket, _base(func)
    # the name without the underscore of the in-place form
    name = base if base in _BLIND or base.startswith("__") else base.removesuffix("_")
    if name.startswith("_scaled_dot_product"):
        return _attention_flops(name, args)
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=result))
    outputs = tensors_in(result)
    if name in _MOVES or base in _BLIND:
        return 0.0
    if name in _PER_INPUT:
        inputs = tensors_in((args, kwargs))
        return float(_PER_INPUT[name] * inputs[0].numel()) if inputs else None
    if name in _PER_ELEMENT or torch.Tag.pointwise in func.tags:
        scaled = name in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1
        return float((_PER_ELEMENT.get(name, 1) + scaled) * outputs[0].numel()) if outputs else None
    return None


def _attention_flops(name: str, args: Any) -> float:
    """Return the FLOPs of attention's two matrix products, without the softmax, as in
    ``gpulab.workloads``; the backward pass has five products of that size.

    PyTorch's own formula is not used: earlier versions of it refuse heads that share a key and
    value, and it does not cover the CPU's operator.
    """
    backward = name.endswith("_backward")
    query, key, value = args[1:4] if backward else args[:3]
    rows, width, keys = math.prod(query.shape[:-1]), query.shape[-1], key.shape[-2]
    once = 2.0 * rows * keys
    return float(once * (3 * width + 2 * value.shape[-1] if backward else width + value.shape[-1]))
