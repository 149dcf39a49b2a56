"""The functions that a kernel may call: of math, of Python, and of cuda. Each is translated by a function that takes a ``Call``."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import KernelError
from gpulab.kernels._simulate import _atomics, _types, _warp
from gpulab.kernels._simulate._geometry import Batch, Mask
from gpulab.kernels._simulate._machine import Machine
from gpulab.kernels._simulate._memory import View, constant_view, local_view
from gpulab.kernels._simulate._names import Intrinsic, dtype_of, known_object

if TYPE_CHECKING:
    from gpulab.kernels._simulate._expressions import Expression, Translator
    from gpulab.kernels._simulate._translate import Frame

__all__ = ["FUNCTIONS", "INTRINSICS", "Call", "Intrinsic", "dtype_of", "known_object"]


@dataclass(eq=False)
class Call:
    """A call in the kernel's text."""

    node: ast.Call
    translator: Translator
    name: str
    unused: bool
    assigned_to: str | None

    @property
    def line(self) -> int:
        """Return its line."""
        return self.node.lineno

    def fail(self, message: str) -> KernelError:
        """Return the error that names its line."""
        return self.translator.fail(message, self.node)

    def arguments(self, least: int, most: int | None = None, names: tuple[str, ...] = ()) -> list[ast.expr]:
        """Return the argument nodes, those given by name in their place."""
        most = least if most is None else most
        found = list(self.node.args)
        by_name = {k.arg: k.value for k in self.node.keywords}
        for name in names[len(found) :]:
            if name in by_name:
                found.append(by_name.pop(name))
        if by_name or not least <= len(found) <= most or any(isinstance(a, ast.Starred) for a in found):
            wanted = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"{self.name} takes {wanted} arguments")
        return found

    def numbers(self, least: int, most: int | None = None, names: tuple[str, ...] = ()) -> list[Expression]:
        """Return the arguments as closures that give numbers."""
        return [self.numeric(node) for node in self.arguments(least, most, names)]

    def numeric(self, node: ast.expr) -> Expression:
        """Return an argument as a closure that gives a number."""
        value = self.translator.expression(node)

        def run(frame: Frame, mask: Mask) -> Any:
            found = value(frame, mask)
            if not isinstance(found, (np.ndarray, np.generic)):
                raise self.fail(f"{self.name} takes numbers")
            return found

        return run


Maker = Callable[[Call], "Expression"]
FUNCTIONS: dict[str, Maker] = {}
INTRINSICS: dict[str, Callable[[Machine], Any]] = {}


def _makes(*names: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        for name in names:
            FUNCTIONS[name] = maker
        return maker

    return register


# -- where a thread is --------------------------------------------------------------------------------------------------------------


def _register_places() -> None:
    def place(read: Callable[[Batch, int], Any], axis: int) -> Callable[[Machine], Any]:
        return lambda machine: read(machine.batch, axis)

    for axis, letter in enumerate("xyz"):
        INTRINSICS[f"cuda.threadIdx.{letter}"] = place(lambda batch, i: batch.thread_index(i), axis)
        INTRINSICS[f"cuda.blockIdx.{letter}"] = place(lambda batch, i: batch.block_index(i), axis)
        INTRINSICS[f"cuda.blockDim.{letter}"] = place(lambda batch, i: np.int64(batch.block[i]), axis)
        INTRINSICS[f"cuda.gridDim.{letter}"] = place(lambda batch, i: np.int64(batch.grid[i]), axis)


_register_places()
INTRINSICS["cuda.laneid"] = lambda m: m.batch.linear_thread % 32
INTRINSICS["cuda.warpsize"] = lambda m: np.int64(32)


def _grid_index(batch: Batch, axis: int) -> Any:
    return batch.block_index(axis) * np.int64(batch.block[axis]) + batch.thread_index(axis)


def _grid_size(batch: Batch, axis: int) -> Any:
    return np.int64(batch.block[axis] * batch.grid[axis])


@_makes("cuda.grid", "cuda.gridsize")
def _grid(call: Call) -> Expression:
    dimensions = call.translator.number(call.arguments(1, names=("ndim",))[0])
    if dimensions not in (1, 2, 3):
        raise call.fail(f"{call.name} takes 1, 2 or 3, written as a number")
    of_axis = _grid_index if call.name == "cuda.grid" else _grid_size
    if dimensions == 1:
        return lambda frame, mask: of_axis(frame.machine.batch, 0)
    return lambda frame, mask: tuple(of_axis(frame.machine.batch, axis) for axis in range(dimensions))


# -- arrays -------------------------------------------------------------------------------------------------------------------------


def _shape_and_type(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    shape_node, type_node = call.arguments(2, names=("shape", "dtype"))
    shape = call.translator.number(shape_node)
    shape = tuple(shape) if isinstance(shape, tuple) else (shape,)
    if not shape or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise call.fail("the shape of an array in a kernel must be a constant: numbers, or names of numbers outside of the kernel")
    if any(isinstance(part, ast.BinOp) for part in ast.walk(shape_node)):
        call.translator.program.notes.append(
            f"line {call.line}: numba-cuda takes no arithmetic in the shape `{ast.unparse(shape_node)}`. "
            "For a GPU, name its value outside of the kernel."
        )
    found = type_node.value if isinstance(type_node, ast.Constant) else call.translator.static(type_node)
    dtype = dtype_of(found)
    if dtype is None:
        raise call.fail(f"`{ast.unparse(type_node)}` is no element type; expected one such as float32")
    return tuple(int(n) for n in shape), dtype


@_makes("cuda.shared.array")
def _shared_array(call: Call) -> Expression:
    shape, dtype = _shape_and_type(call)
    if 0 in shape and shape != (0,):
        raise call.fail("a shared array needs elements; its shape (0,) means the dynamic shared memory of the launch")
    name, node = call.assigned_to or "shared array", id(call.node)
    return lambda frame, mask: frame.machine.new_shared(node, name, shape, dtype, call.line)


@_makes("cuda.local.array")
def _local_array(call: Call) -> Expression:
    shape, dtype = _shape_and_type(call)
    if 0 in shape:
        raise call.fail("a local array needs elements")
    name = call.assigned_to or "local array"
    return lambda frame, mask: local_view(name, shape, dtype, frame.machine.batch)


@_makes("cuda.const.array_like")
def _constant_array(call: Call) -> Expression:
    (node,) = call.arguments(1)
    found = call.translator.static(node)
    if not isinstance(found, np.ndarray):
        raise call.fail("cuda.const.array_like takes a NumPy array from outside of the kernel")
    view = constant_view(call.assigned_to or ast.unparse(node), found)
    return lambda frame, mask: view


@_makes("len")
def _len(call: Call) -> Expression:
    value = call.translator.expression(call.arguments(1)[0])

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        if isinstance(found, View):
            return found.shape[0]
        if isinstance(found, tuple):
            return np.int64(len(found))
        raise call.fail("len takes an array or a tuple")

    return run


# -- arithmetic ---------------------------------------------------------------------------------------------------------------------


def _torch_function(name: str) -> Callable[[Any], Any]:
    """Return a function that NumPy lacks, computed by torch in the type of its argument."""

    def apply(value: Any) -> Any:
        import torch

        found = getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(value).reshape(-1))).numpy().reshape(np.shape(value))
        return found[()]

    return apply


_UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in (
        "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "ceil", "floor", "trunc",
        "fabs", "exp2", "cbrt", "radians", "degrees")},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "arcsin": np.arcsin, "arccos": np.arccos, "arctan": np.arctan, "arcsinh": np.arcsinh, "arccosh": np.arccosh, "arctanh": np.arctanh,
    "erf": _torch_function("erf"), "erfc": _torch_function("erfc"), "lgamma": _torch_function("gammaln"),
    "gamma": lambda v: np.exp(_torch_function("gammaln")(v)),
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": np.arctan2, "arctan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign, "fmod": np.fmod, "pow": np.power,
    "power": np.power, "float_power": np.power,
}  # fmt: skip
_TESTS: dict[str, Callable[[Any], Any]] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def _register_arithmetic() -> None:
    for module in ("math", "np"):
        FUNCTIONS.update({f"{module}.{name}": functools.partial(_unary, ufunc=ufunc) for name, ufunc in _UNARY.items()})
        FUNCTIONS.update({f"{module}.{name}": functools.partial(_binary, ufunc=ufunc) for name, ufunc in _BINARY.items()})
        FUNCTIONS.update({f"{module}.{name}": functools.partial(_test, test=test) for name, test in _TESTS.items()})
    FUNCTIONS["cuda.cbrt"] = functools.partial(_unary, ufunc=np.cbrt)


def _unary(call: Call, ufunc: Callable[[Any], Any]) -> Expression:
    (value,) = call.numbers(1)

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        if found.dtype.kind == "c":
            raise call.fail(f"{call.name} takes real numbers")
        return ufunc(_types.cast(found, _types.float_type(found.dtype)))

    return run


def _binary(call: Call, ufunc: Callable[[Any, Any], Any]) -> Expression:
    left, right = call.numbers(2)

    def run(frame: Frame, mask: Mask) -> Any:
        a, b = left(frame, mask), right(frame, mask)
        if ufunc in (np.fmod, np.copysign, np.power):
            dtype = _types.float_pair_type(a.dtype, b.dtype, ufunc is np.power)
        else:
            dtype = _types.float_type(_types.arithmetic_type(a.dtype, b.dtype))
        return ufunc(_types.cast(a, dtype), _types.cast(b, dtype))

    return run


def _test(call: Call, test: Callable[[Any], Any]) -> Expression:
    (value,) = call.numbers(1)
    return lambda frame, mask: test(value(frame, mask))


_register_arithmetic()


@_makes("abs", "np.abs", "np.absolute")
def _abs(call: Call) -> Expression:
    (value,) = call.numbers(1)

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        return np.abs(found) if found.dtype.kind != "b" else found.astype(np.int8)

    return run


@_makes("min", "max", "np.minimum", "np.maximum")
def _extreme(call: Call) -> Expression:
    values = call.numbers(2, 64)
    # min and max keep the first where the other is nan or equal, as Python does.
    smaller = call.name in ("min", "np.minimum")

    def run(frame: Frame, mask: Mask) -> Any:
        best = values[0](frame, mask)
        for value in values[1:]:
            other = value(frame, mask)
            dtype = _types.unified(best.dtype, other.dtype)
            best, other = _types.cast(best, dtype), _types.cast(other, dtype)
            chosen: Any = np.where(other < best if smaller else other > best, other, best)
            best = chosen if chosen.ndim else chosen[()]
        return best

    return run


@_makes("round")
def _round(call: Call) -> Expression:
    (value,) = call.numbers(1)
    return lambda frame, mask: np.rint(value(frame, mask)).astype(np.int64)


@_makes("pow")
def _pow(call: Call) -> Expression:
    left, right = call.numbers(2)
    return lambda frame, mask: _types.power(left(frame, mask), right(frame, mask))


@_makes("complex")
def _complex(call: Call) -> Expression:
    real, imaginary = call.numbers(2)
    return lambda frame, mask: np.asarray(real(frame, mask) + 1j * imaginary(frame, mask), dtype=np.complex128)[()]


@_makes("cuda.fma")
def _fma(call: Call) -> Expression:
    a, b, c = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        x, y, z = a(frame, mask), b(frame, mask), c(frame, mask)
        dtype = _types.unified(_types.unified(x.dtype, y.dtype), z.dtype)
        if dtype == _types.SINGLE:  # a product of two float32 is exact in float64
            return _types.cast(_types.cast(x, _types.FLOAT) * _types.cast(y, _types.FLOAT) + _types.cast(z, _types.FLOAT), dtype)
        return _types.cast(x, dtype) * _types.cast(y, dtype) + _types.cast(z, dtype)

    return run


@_makes("cuda.selp")
def _selp(call: Call) -> Expression:
    test, a, b = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        x, y = a(frame, mask), b(frame, mask)
        dtype = _types.unified(x.dtype, y.dtype)
        chosen: Any = np.where(_types.truth(test(frame, mask)), _types.cast(x, dtype), _types.cast(y, dtype))
        return chosen[()]

    return run


def _bits_of(value: Any) -> Any:
    """Return an integer's bits: 32 of them for narrow types, else 64."""
    if value.dtype.kind not in "iub":
        raise TypeError
    return value.astype(np.uint32 if value.dtype.itemsize <= 4 else np.uint64)


def _reversed_bits(bits: Any) -> Any:
    width = 8 * bits.dtype.itemsize
    out = bits.dtype.type(0)
    for i in range(width):
        out = (out << bits.dtype.type(1)) | ((bits >> bits.dtype.type(i)) & bits.dtype.type(1))
    return out


def _leading_zeros(bits: Any) -> Any:
    width = 8 * bits.dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < width:
            bits = bits | (bits >> bits.dtype.type(shift))
    return width - np.bitwise_count(bits).astype(np.int64)


def _first_set(bits: Any) -> Any:
    lowest = bits & (~bits + bits.dtype.type(1))
    found: Any = np.where(bits == 0, 0, np.bitwise_count(lowest - bits.dtype.type(1)).astype(np.int64) + 1)
    return found[()]


def _bit_function(apply: Callable[[Any], Any]) -> Maker:
    def make(call: Call) -> Expression:
        (value,) = call.numbers(1)

        def run(frame: Frame, mask: Mask) -> Any:
            try:
                return apply(_bits_of(value(frame, mask)))
            except TypeError as error:
                raise call.fail(f"{call.name} takes an integer") from error

        return run

    return make


FUNCTIONS["cuda.popc"] = _bit_function(lambda bits: np.bitwise_count(bits).astype(np.int64))
FUNCTIONS["cuda.clz"] = _bit_function(_leading_zeros)
FUNCTIONS["cuda.ffs"] = _bit_function(_first_set)
FUNCTIONS["cuda.brev"] = _bit_function(_reversed_bits)


# -- what lanes do together ---------------------------------------------------------------------------------------------------------


@_makes("cuda.syncthreads", "cuda.syncthreads_count", "cuda.syncthreads_and", "cuda.syncthreads_or")
def _syncthreads(call: Call) -> Expression:
    kind = call.name.removeprefix("cuda.syncthreads").lstrip("_")
    values = call.numbers(1 if kind else 0)

    def run(frame: Frame, mask: Mask) -> Any:
        value = _types.truth(values[0](frame, mask)) if kind else None
        frame.machine.barrier(mask, call.line)
        if kind:
            return _warp.block_vote(frame.machine, kind, value, mask)
        return None

    return run


@_makes("cuda.syncwarp")
def _syncwarp(call: Call) -> Expression:
    members = call.numbers(0, 1, ("membermask",))
    return lambda frame, mask: _warp.synchronise(frame.machine, members[0](frame, mask) if members else None, mask, call.line)


@_makes("cuda.threadfence", "cuda.threadfence_block", "cuda.threadfence_system")
def _fence(call: Call) -> Expression:
    call.arguments(0)
    if call.name != "cuda.threadfence_block":
        call.translator.program.uses_fences = True
    return lambda frame, mask: frame.machine.fence(mask)


@_makes("cuda.nanosleep")
def _sleep(call: Call) -> Expression:
    call.numbers(1)
    return lambda frame, mask: None


@_makes("cuda.activemask")
def _activemask(call: Call) -> Expression:
    call.arguments(0)
    return lambda frame, mask: _warp.of_warps(frame.machine, mask.bits.astype(np.int64))


@_makes("cuda.lanemask_lt")
def _lanemask_lt(call: Call) -> Expression:
    call.arguments(0)
    return lambda frame, mask: (np.int64(1) << (frame.machine.batch.linear_thread % 32)) - 1


def _register_warp() -> None:
    for kind in ("", "_up", "_down", "_xor"):
        FUNCTIONS[f"cuda.shfl{kind}_sync"] = functools.partial(_shuffle, kind=kind)
    for kind in ("all", "any", "eq", "ballot"):
        FUNCTIONS[f"cuda.{kind}_sync"] = functools.partial(_vote, kind=kind)
    FUNCTIONS["cuda.match_any_sync"] = _match_any
    for operation in (*_atomics.OPERATIONS, "cas", "compare_and_swap"):
        FUNCTIONS[f"cuda.atomic.{operation}"] = functools.partial(_atomic, operation=operation)


def _shuffle(call: Call, kind: str) -> Expression:
    members, value, lane = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        return _warp.shuffle(frame.machine, kind, members(frame, mask), value(frame, mask), lane(frame, mask), mask, call.line)

    return run


def _vote(call: Call, kind: str) -> Expression:
    members, value = call.numbers(2)
    return lambda frame, mask: _warp.vote(frame.machine, kind, members(frame, mask), value(frame, mask), mask)


def _match_any(call: Call) -> Expression:
    members, value = call.numbers(2)
    return lambda frame, mask: _warp.match_any(frame.machine, members(frame, mask), value(frame, mask), mask)


def _atomic(call: Call, operation: str) -> Expression:
    compares = operation in ("cas", "compare_and_swap")
    count = {"compare_and_swap": 3, "cas": 4}.get(operation, 3)
    nodes = call.arguments(count)
    array = call.translator.array(nodes[0])
    whole = operation == "compare_and_swap"  # numba's older form works on the first element
    index = None if whole else call.translator.index(nodes[1])
    values = [call.numeric(node) for node in nodes[1 if whole else 2 :]]

    def run(frame: Frame, mask: Mask) -> Any:
        from gpulab.kernels._simulate._expressions import index_of

        view = array(frame, mask)
        places = [(np.int64(0), False)] if index is None else index(frame, mask)
        indices, from_end = index_of(view, places, call.translator.source, call.line)
        given = [value(frame, mask) for value in values]
        machine = frame.machine
        where, inside = machine.touch_atomic(view, indices, mask, call.line, from_end)
        if inside is None:
            return view.dtype.type(0)
        name = "cas" if compares else operation
        return _atomics.apply(name, view.store, where, given, inside, wanted=not call.unused)

    return run


_register_warp()
