"""What the names in a kernel mean: numba's cuda module, ours that stands in for it, math, NumPy,
and Python's own functions.

A dotted name is followed only through these; everything else that a kernel names must be a number,
an array, a tuple, or a function of the learner's, so that no module is reached from a kernel and
nothing of it runs.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels._simulate._source import plain_function

_BUILTINS = ("abs", "min", "max", "range", "len", "int", "float", "bool", "round", "pow", "complex")
_SINGLE_NAMES = {"int": "int64", "float": "float64", "bool": "bool"}
_NUMBA_TYPES = {
    **{
        name: name
        for name in (
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
            "complex64",
            "complex128",
        )
    },
    "boolean": "bool",
    "bool_": "bool",
    "intp": "int64",
    "uintp": "uint64",
    "intc": "int32",
    "f4": "float32",
    "f8": "float64",
    "i4": "int32",
    "i8": "int64",
    "u4": "uint32",
    "u8": "uint64",
    "void": "",
}


@dataclass(frozen=True)
class Intrinsic:
    """A name that the simulator itself understands, such as "cuda.threadIdx.x", "math.sqrt" or
    "range".
    """

    name: str


# Kinds of which no code of a learner's runs when they are looked at. One that is derived from a
# number, a text or an array becomes that.
_PLAIN = {
    bool,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    np.ufunc,
    *np.sctypeDict.values(),
}
_MODULES = {
    "math": "math",
    "numpy": "np",
    "numba": "numba",
    "numba.types": "numba",
    "numba.core.types": "numba",
    "numba.cuda": "cuda",
    "numba_cuda.numba.cuda": "cuda",
}
_STUBS = [
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "grid",
    "gridsize",
    "syncthreads",
    "syncthreads_count",
    "syncthreads_and",
    "syncthreads_or",
    "syncwarp",
    "shared",
    "local",
    "const",
    "atomic",
    "shfl_sync",
    "shfl_up_sync",
    "shfl_down_sync",
    "shfl_xor_sync",
    "all_sync",
    "any_sync",
    "eq_sync",
    "ballot_sync",
    "match_any_sync",
    "match_all_sync",
    "activemask",
    "lanemask_lt",
    "popc",
    "brev",
    "clz",
    "ffs",
    "selp",
    "fma",
    "cbrt",
    "laneid",
    "warpsize",
    "threadfence",
    "threadfence_block",
    "threadfence_system",
    "nanosleep",
]
_OURS = ("numba.", "numba_cuda.", "gpulab.kernels._language")
_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    np.dtype: lambda dtype: dtype,
    tuple: lambda parts: tuple(map(inert, tuple.__iter__(parts))),
}


def inert(found: Any) -> Any:
    """Return an object from outside of a kernel so that nothing of it runs, whatever is asked of
    it; for most its name alone is left.
    """
    kind, function = type(found), plain_function(found)
    if kind in _PLAIN or id(found) in _stubs(sys.modules.get("numba.cuda")):
        return found
    if type(function) is types.FunctionType or type.__getattribute__(kind, "__module__").startswith(
        _OURS
    ):
        return function
    if issubclass(kind, np.ndarray):
        array = np.ndarray.view(found, np.ndarray)
        return (
            array
            if array.dtype.kind in "biufc" and array.dtype.isnative
            else types.SimpleNamespace(__name__="array")
        )
    for base, plain in _BASES.items():
        if issubclass(kind, base):
            return plain(found)
    return types.SimpleNamespace(__name__=type.__getattribute__(kind, "__name__"))


def known_object(owner: Any, attribute: str | None = None) -> Any:
    """Return what an object, or an attribute of it, means in a kernel.

    Raises
    ------
    AttributeError
        If the owner is none of the modules that a kernel may look into.
    """
    if attribute is None:
        return _alone(owner)
    if isinstance(owner, Intrinsic):
        return _member(owner.name, attribute)
    if isinstance(owner, np.ndarray) and attribute in ("shape", "size", "ndim"):
        return getattr(owner, attribute)
    is_constant = isinstance(owner, (np.ndarray, tuple, int, float, np.generic))
    of = "a constant" if is_constant else getattr(owner, "__name__", type(owner).__name__)
    raise AttributeError(f"`.{attribute}` of {of} is not supported in a kernel")


def _alone(found: Any) -> Any:
    if isinstance(found, types.ModuleType):
        name = _module_name(found)
        if name is None:
            raise AttributeError(f"the module {found.__name__} is not supported in a kernel")
        return Intrinsic(name)
    if getattr(found, "is_gpulab_cuda", False):
        return Intrinsic("cuda" + getattr(found, "path", ""))
    if isinstance(found, types.BuiltinFunctionType | type) and getattr(found, "__module__", "") in (
        "math",
        "builtins",
    ):
        name = found.__name__
        if found.__module__ == "math":
            return Intrinsic(f"math.{name}")
        if name in _BUILTINS and getattr(builtins, name) is found:
            return np.dtype(_SINGLE_NAMES[name]) if name in _SINGLE_NAMES else Intrinsic(name)
    if isinstance(found, np.ufunc):
        return Intrinsic(f"np.{found.__name__}")
    stub = _stubs(sys.modules.get("numba.cuda")).get(id(found))
    return Intrinsic(stub) if stub else found


def _module_name(module: types.ModuleType) -> str | None:
    name = module.__name__
    return "libdevice" if name.endswith("libdevice") else _MODULES.get(name)


def _member(owner: str, attribute: str) -> Any:
    if owner == "numba" and attribute in ("cuda", "types"):
        return Intrinsic("cuda" if attribute == "cuda" else "numba")
    if owner in ("numba", "np", "cuda") and attribute in _NUMBA_TYPES and _NUMBA_TYPES[attribute]:
        return np.dtype(_NUMBA_TYPES[attribute])
    if owner in ("math", "np") and attribute in ("pi", "e", "inf", "nan", "tau", "newaxis"):
        return getattr(math if owner == "math" else np, attribute)
    return Intrinsic(f"{owner}.{attribute}")


@functools.lru_cache(maxsize=2)
def _stubs(cuda: types.ModuleType | None) -> dict[int, str]:
    """Return numba's own objects for `from numba.cuda import ...`, by identity; none where it is
    not loaded.
    """
    return {id(getattr(cuda, name)): f"cuda.{name}" for name in _STUBS if hasattr(cuda, name)}


def dtype_of(found: Any) -> np.dtype | None:
    """Return the element type that an object stands for: a NumPy type, a numba type, or its name;
    None for anything else.
    """
    if isinstance(found, np.dtype):
        return found
    if isinstance(found, type) and issubclass(found, np.generic):
        return np.dtype(found)
    name = (
        found
        if isinstance(found, str)
        else getattr(found, "name", None)
        if type(found).__module__.startswith("numba")
        else None
    )
    if isinstance(name, str) and _NUMBA_TYPES.get(name):
        return np.dtype(_NUMBA_TYPES[name])
    return None
