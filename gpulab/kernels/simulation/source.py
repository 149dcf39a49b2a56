"""A kernel's text and the meaning of the names in it.

The text comes from the file or the notebook cell in which the kernel was defined. It is never
executed as Python: ``_scalar_lanes`` executes only text that it writes itself, from numbers,
operators and variables.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import importlib
import inspect
import linecache
import math
import re
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpulab.errors import KernelError, shown
from gpulab.kernels._host import DeviceArray, executed_texts, host_array
from gpulab.kernels.simulation import _types

# -------------------------------------------------------------------------------------------------
# The text of a kernel, the names it uses, and which of its arrays it writes.


@dataclass(eq=False)
class Text:
    """The facts that follow from a function's text alone, each found when first asked for. All
    functions that are made of this text share them.
    """

    tree: ast.FunctionDef

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the tree."""
        return _types.walk(self.tree)

    @functools.cached_property
    def joins(self) -> _types.Joins:
        """Return the reaching definitions of its variables."""
        return _types.joins_of(self.tree, self.stores)

    @functools.cached_property
    def parameters(self) -> list[str]:
        """Return the names of the parameters, without that of ``*rest``."""
        return [a.arg for a in [*self.tree.args.posonlyargs, *self.tree.args.args]]

    @functools.cached_property
    def stores(self) -> list[ast.Name]:
        """Return where a variable is given a value."""
        return _types.names_of(self.nodes, ast.Store)

    @functools.cached_property
    def local_names(self) -> set[str]:
        """Return the names that the function assigns, its parameters included."""
        return {
            *self.parameters,
            *(node.id for node in self.stores),
            *(node.name for node in self.nodes[1:] if isinstance(node, ast.FunctionDef)),
            *([self.tree.args.vararg.arg] if self.tree.args.vararg else []),
        }

    @functools.cached_property
    def imports(self) -> dict[str, Any]:
        """Return the objects to which imports in the function give names, from modules into which a
        kernel may look.
        """
        found: dict[str, Any] = {}
        for node in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    name = node.module if isinstance(node, ast.ImportFrom) else alias.name
                    if name in _MODULES:
                        module = importlib.import_module(name)
                        found[alias.asname or alias.name] = (
                            getattr(module, alias.name, None)
                            if isinstance(node, ast.ImportFrom)
                            else module
                        )
        return found

    @functools.cached_property
    def assigned(self) -> list[tuple[str, ast.expr]]:
        """Return each variable that is assigned an expression, with the expression."""
        return [
            (target.id, node.value)
            for node in self.nodes
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]

    @functools.cached_property
    def given_once(self) -> dict[str, ast.expr]:
        """Return the assigned expression of each variable that is assigned only once."""
        times = Counter([*self.parameters, *(node.id for node in self.stores)])
        return {name: value for name, value in self.assigned if times[name] == 1}

    @functools.cached_property
    def stored_names(self) -> set[str]:
        """Return the names of arrays to which the function's text stores an element: the name
        before the first dot or bracket.
        """
        parts = (ast.Subscript, ast.Attribute)
        found = [n for n in self.nodes if isinstance(n, parts) and isinstance(n.ctx, ast.Store)]
        for node in found:  # found grows by the parts before them
            found += [node.value] if isinstance(node.value, parts) else []
        return {node.value.id for node in found if isinstance(node.value, ast.Name)}

    @functools.cached_property
    def compared_reads(self) -> set[ast.AST]:
        """Return the reads of elements whose value is used, also through variables, as the old
        value in a compare-and-swap of the same element. The swap fails if the element no longer has
        this value.

        Source: CUDA C++ Programming Guide, "Atomic Functions", whose own loops around ``atomicCAS``
        begin with such a read.
        """
        found: set[ast.AST] = set()
        for node in self.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="cas"), args=[array, index, old, _]):
                    parts, seen = [old], set[str]()
                    for part in parts:  # parts grows by the values of variables
                        if isinstance(part, ast.Name) and part.id not in seen:
                            seen.add(part.id)
                            parts += [value for name, value in self.assigned if name == part.id]
                        elif isinstance(part, ast.Call):  # such as a conversion
                            parts += part.args
                        elif isinstance(part, ast.Subscript):
                            same = ast.dump(part.value), ast.dump(part.slice)
                            found |= {part} if same == (ast.dump(array), ast.dump(index)) else set()
        return found


@dataclass(eq=False)
class Source:
    """A kernel or a device function: its text, with the line numbers of its file, and what its
    names stand for.
    """

    name: str
    text: Text
    lines: dict[int, str]
    code: types.CodeType
    _globals: dict[str, Any] = field(repr=False)
    _closure: dict[str, types.CellType] = field(repr=False)
    # the name of the file with the text, and all lines of the file
    _file: tuple[str, list[str]] = field(repr=False)
    offset: int = 0  # added to the numbers of its lines

    def part(self, tree: ast.FunctionDef) -> Source:
        """Return the source of a function inside of this one."""
        return replace(self, name=tree.name, text=Text(tree))

    def text_of(self, line: int) -> str:
        """Return a line without its indentation."""
        return self.lines.get(line, "").strip()

    def error(self, message: str, line: int) -> KernelError:
        """Return the error that names a line."""
        return KernelError(
            f"{self.name}, {self.place(line)} `{self.text_of(line)}`: {message}.",
            line - self.offset,
        )

    def place(self, line: int) -> str:
        """Return a line in words, with its file if that is not the kernel's."""
        file = f" of {Path(self.code.co_filename).name}" if self.offset else ""
        return f"line {line - self.offset}{file}"

    def global_object(self, name: str) -> Any:
        """Return what a name that is not local stands for.

        Raises
        ------
        KeyError
            If it stands for nothing.
        """
        if name in self.text.imports:
            return self.text.imports[name]
        name, *attributes = name.split(".")
        if attributes:
            return functools.reduce(
                lambda owner, part: vars(owner)[part], attributes, self.global_object(name)
            )
        if name in self._closure:
            try:
                return self._closure[name].cell_contents
            except ValueError:  # a name of the enclosing function that has no value yet
                raise KeyError(name) from None
        return (self._globals if name in self._globals else vars(builtins))[name]

    def is_current(self) -> bool:
        """Return whether the file or cell still holds the text that was read."""
        name, lines = self._file
        linecache.checkcache(name)
        now = linecache.getlines(name, self._globals)
        return now is lines or now == lines


@dataclass(frozen=True)
class Signature:
    """The types that a function was declared with: the dtype of a number, (dtype, axes) of an
    array, a tuple of these for a tuple; None where the declaration leaves the type open.
    """

    parameters: tuple[Any, ...]
    returns: Any = None

    def takes(self, types: list[Any]) -> bool:
        """Return whether arguments of these types can be taken as the declared ones."""
        return len(types) == len(self.parameters) and all(map(_fits, types, self.parameters))

    def losses(self, types: list[Any]) -> int:
        """Return how far arguments are from the declared types: 1 for each conversion, 100 for one
        that may change a number.
        """
        numbers = [
            (found, wanted)
            for found, wanted in zip(types, self.parameters, strict=True)
            if isinstance(wanted, np.dtype) and found != wanted
        ]
        return sum(1 if np.can_cast(found, wanted) else 100 for found, wanted in numbers)


def _fits(found: Any, wanted: Any) -> bool:
    """Return whether a number can be converted to the declared type, or an array's memory viewed as
    it. numba does not check the arguments of a kernel with one signature.
    """
    if wanted is None or isinstance(wanted, np.dtype):  # not ==: a float64 equals None
        return wanted is None or isinstance(found, np.dtype)
    if not isinstance(found, tuple) or not found or not isinstance(found[0], np.dtype):
        return bool(found == wanted)
    of_a_size = wanted[0] is None or found[0].itemsize == wanted[0].itemsize
    return bool(found[1:] == wanted[1:] and of_a_size)


@dataclass(frozen=True)
class Callee:
    """A Python function that a kernel may call, and its declared signatures."""

    function: types.FunctionType
    signatures: tuple[Signature, ...] = ()


def signatures_of(kernel: Any) -> tuple[Signature, ...]:
    """Return the signatures that a kernel or device function was declared with; empty if the
    arguments decide its types.

    numba's dispatchers hold what they compiled for the declaration; ``jit`` of
    ``gpulab.kernels.cuda`` keeps the declared signatures in ``signatures``.
    """
    given = inspect.getattr_static(kernel, "signatures", None)
    # a dispatcher of numba's has a property of this name
    if (
        not isinstance(given, list)
        and inspect.getattr_static(kernel, "_can_compile", True) is False
    ):
        overloads = inspect.getattr_static(kernel, "overloads", {})
        given = [getattr(made, "signature", types) for types, made in overloads.items()]
    return tuple(map(_signature, given)) if isinstance(given, list) else ()


@functools.lru_cache(maxsize=256)
def _signature(given: Any) -> Signature:
    if isinstance(given, str):
        node = ast.parse(given, mode="eval").body
        if isinstance(node, ast.Call):
            return Signature(tuple(map(_written_type, node.args)), _written_type(node.func))
        return Signature(_written_type(node))
    if isinstance(given, tuple):
        return Signature(tuple(map(_type_of_numba, given)))
    return Signature(tuple(map(_type_of_numba, given.args)), _type_of_numba(given.return_type))


def _written_type(node: ast.expr) -> Any:
    """Return the type that the text of a signature names, such as ``float32[:, ::1]``."""
    match node:
        case ast.Tuple(elts=parts):
            return tuple(map(_written_type, parts))
        case ast.Subscript(value=element, slice=ast.Tuple(elts=axes)):
            return _written_type(element), len(axes)
        case ast.Subscript(value=element):
            return _written_type(element), 1
        case ast.Call(func=ast.Name(id="UniTuple"), args=[part, ast.Constant(value=int(count))]):
            return (_written_type(part),) * count
        case ast.Call(args=[ast.Tuple(elts=parts)]):
            return tuple(map(_written_type, parts))
    return dtype_of(ast.unparse(node).rpartition(".")[2])


def _type_of_numba(found: Any) -> Any:
    """Return a type of numba's in the same form as ``_written_type``."""
    if hasattr(found, "ndim"):
        return _type_of_numba(found.dtype), found.ndim
    if hasattr(found, "types"):
        return tuple(map(_type_of_numba, found.types))
    return dtype_of(found)


def plain_function(kernel: Any) -> Any:
    """Return the Python function behind a kernel, which may be wrapped by a compiler's
    decorator.
    """
    if type(kernel) is types.FunctionType and not kernel.__dict__:
        return kernel
    for attribute in ("py_func", "__wrapped__"):
        # looked up statically: a kernel's globals may be anything, and none of their code may run
        inner = inspect.getattr_static(kernel, attribute, None)
        if type(inner) is types.FunctionType:
            return inner
    return kernel


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return a function's closure cells, by the names of the variables."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _text_around(code: types.CodeType, lines: list[str]) -> list[str]:
    """Return the lines of the text in which a function was defined: its file, its cell, or the text
    that was passed to ``exec``.
    """
    for text, filename in reversed([*executed_texts] if code.co_filename == "<string>" else []):
        if filename == code.co_filename and f"def {code.co_name}(" in text:
            compiled = [compile(text, filename, "exec", dont_inherit=True)]
            for part in compiled:  # compiled grows by the functions in it
                compiled += [one for one in part.co_consts if isinstance(one, types.CodeType)]
            if code in compiled:
                return text.splitlines(keepends=True)
    return lines


# For each code object that is in use: its text, its lines, its file, and the offset of its line
# numbers.
_texts: weakref.WeakKeyDictionary[types.CodeType, tuple[Text, dict[int, str], Any, int]] = (
    weakref.WeakKeyDictionary()
)


def read_source(kernel: Any, offset: int = 0) -> Source:
    """Return the source of a kernel; ``offset`` is added to the numbers of its lines.

    Raises
    ------
    KernelError
        If it is not a Python function, its text cannot be found, or it has parameters that a kernel
        cannot have.
    """
    function = plain_function(kernel)
    if not isinstance(function, types.FunctionType):
        raise KernelError(
            f"simulate: the kernel is {shown(kernel)}; expected a Python function. Pass the "
            "function itself, not its call."
        )
    name, code, names = function.__name__, function.__code__, function.__globals__
    closure, known = cells_of(function), _texts.get(code)
    # codes of two files may be equal, though their texts differ in a comment
    if known is not None and known[2][0] == code.co_filename:
        source = Source(name, *known[:2], code, names, closure, *known[2:])
        if source.offset == offset and source.is_current():
            return source
    filename = inspect.getsourcefile(function) or code.co_filename
    linecache.checkcache(filename)
    file = filename, linecache.getlines(filename, names)
    try:
        tree, lines = _definition(code, file[1], offset)
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise KernelError(
            f"simulate: the text of {name} cannot be found; expected a function that was defined "
            "in a file or a notebook cell. Write it into one."
        ) from error
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(
            f"simulate: {name} is not a plain function; expected one defined with `def`. Write it "
            f"as `def {name}(...)`."
        )
    source = Source(name, Text(tree), lines, code, names, closure, file, offset)
    if tree.args.kwarg or tree.args.kwonlyargs:
        raise source.error(
            "expected parameters that can be given by position; ** and those after * are not "
            "supported",
            tree.lineno,
        )
    if file[1]:  # a string that was executed has no file by which two texts could be distinguished
        _texts[code] = source.text, lines, file, offset
    return source


def _definition(
    code: types.CodeType, file: list[str], offset: int
) -> tuple[ast.stmt, dict[int, str]]:
    """Return the syntax tree of a function and its lines, numbered as in its file plus an offset.

    Raises
    ------
    OSError
        If it is a lambda, and not the only one at its place in the text.
    """
    text, first = _text_around(code, file), code.co_firstlineno
    if code.co_name == "<lambda>":
        places = {(line, column) for line, _, column, _ in code.co_positions()}
        found = [
            node
            for node in _types.walk(ast.parse("".join(text)))
            if isinstance(node, ast.Lambda) and (node.body.lineno, node.body.col_offset) in places
        ]
        if len(found) != 1:
            raise OSError
        tree: Any = as_function(found[0])
        lines = text[first - 1 : found[0].end_lineno]
    else:
        block = _BLOCK.match("".join(text[first - 1 :])) or [""]
        try:
            lines = [f"{line}\n" for line in block[0].removesuffix("\n").split("\n")]
            tree = _parsed(lines, first)
        except SyntaxError:  # for example, a string in it begins farther left
            lines = inspect.getblock(text[first - 1 :])
            tree = _parsed(lines, first)
    if offset:
        ast.increment_lineno(tree, offset)
    return tree, dict(enumerate(map(str.rstrip, lines), first + offset))


# Finds a function by its indentation, 10 times as fast as ``inspect.getblock``: decorators, the
# ``def``, and all lines that are indented farther, with the empty lines and comments between them.
_BLOCK = re.compile(
    r"([ \t]*)(?:@.*\n(?:.*\n)*?\1)?(?:async )?def .*\n?(?:(?:[^\S\n]*(?:#.*)?\n)*\1[ \t]+\S.*\n?)*"
)


def _parsed(lines: list[str], first: int) -> Any:
    """Return the syntax tree of a function whose first line has this number."""
    # whether it is in a function or a class. Only the first line shows it: below the ``def``, a
    # comment or a long string may begin farther to the left
    inner = lines[0][0].isspace()
    before = "\n" * (first - 1 - inner) + "if True:\n" * inner
    tree: Any = ast.parse(before + "".join(lines)).body[0]
    return tree.body[0] if inner else tree


def as_function(node: ast.Lambda) -> ast.FunctionDef:
    """Return a lambda as the function that returns its value."""
    body = ast.copy_location(ast.Return(value=node.body), node.body)
    tree = ast.FunctionDef(name="<lambda>", args=node.args, body=[body], decorator_list=[])
    return ast.copy_location(tree, node)


# -------------------------------------------------------------------------------------------------
# What the names in a kernel mean: numba's cuda module, ours that stands in for it, math, NumPy,
# and Python's own functions.
#
# A dotted name is followed only through these modules. Everything else that a kernel names must be
# a number, an array, a tuple, or a function of the learner's. A kernel therefore reaches no other
# module, and runs no code of one.


_BUILTINS = (
    *("abs", "min", "max", "range", "len", "int", "float", "bool", "round", "pow", "complex"),
    *("divmod", "sum", "enumerate", "zip", "print", "tuple", "isinstance"),
)
_TYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Name of a number type in numba -> NumPy's name.
NUMBA_TYPES = {
    **{name: name for name in _TYPES},
    **{np.dtype(name).str[1:]: name for name in _TYPES},  # such as f4
    **{"boolean": "bool", "bool_": "bool", "intp": "int64", "uintp": "uint64", "intc": "int32"},
    **{"uintc": "uint32", "byte": "uint8", "short": "int16", "ushort": "uint16", "int_": "int64"},
    **{"uint": "uint64", "longlong": "int64", "ulonglong": "uint64", "double": "float64"},
    **{"size_t": "uint64", "ssize_t": "int64", "ulong": "uint64", "long_": "int64"},
    **{"char": "int8", "uchar": "uint8", "float_": "float32"},
}


UNKNOWN: Any = object()  # marks an expression without a value before the kernel runs


@dataclass(frozen=True)
class Intrinsic:
    """A name that the simulator itself understands, such as "cuda.threadIdx.x", "math.sqrt" or
    "range".
    """

    name: str


# Types whose objects run no code of a learner's when they are looked at. An object of a class that
# is derived from a number, a string or an array is converted to that base.
_PLAIN = {
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    np.ufunc,
    enum.EnumMeta,
    *np.sctypeDict.values(),
}
_MODULES = {
    "math": "math",
    "cmath": "cmath",
    "operator": "operator",
    "numpy": "np",
    "numba": "numba",
    "numba.types": "numba",
    "numba.core.types": "numba",
    "numba.cuda": "cuda",
    "numba_cuda.numba.cuda": "cuda",
    "numba.cuda.cg": "cuda.cg",
    "numba_cuda.numba.cuda.cg": "cuda.cg",
    "numba.cuda.libdevice": "libdevice",
    "numba_cuda.numba.cuda.libdevice": "libdevice",
}
_PARTS = {"cuda": "cuda", "types": "numba", "libdevice": "libdevice"}
_OURS = ("numba.", "numba_cuda.", "gpulab.kernels._language")
_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    np.dtype: lambda dtype: dtype,
    tuple: lambda parts: tuple(map(inert, tuple.__iter__(parts))),
}


class IntegerMember(np.int64):
    """A member of an ``IntEnum``: a number that keeps its class, since ``is`` holds only between
    members of one class.
    """

    kind: type[enum.IntEnum]

    def __new__(cls, member: enum.IntEnum) -> IntegerMember:
        """Keep the class of a member beside its number."""
        found = super().__new__(cls, int.__int__(member))
        found.kind = type(member)
        return found


def inert(found: Any) -> Any:
    """Return an object from outside of a kernel in a form whose use runs none of the object's code.
    For most objects only the name of their class is left.
    """
    kind = type(found)
    if kind in _PLAIN or id(found) in _stubs(sys.modules.get("numba.cuda")):
        return found
    function = plain_function(found)
    if type(function) is types.FunctionType:
        return Callee(function, signatures_of(found))
    interface = inspect.getattr_static(found, "__cuda_array_interface__", None)
    is_ours = isinstance(interface, dict) and "gpulab" in interface
    if is_ours or kind is DeviceArray:
        return DeviceArray(host_array(found))
    is_member = type(kind) is enum.EnumMeta
    if type.__getattribute__(kind, "__module__").startswith(_OURS) and not is_member:
        return found
    if issubclass(kind, np.ndarray):
        array = np.ndarray.view(found, np.ndarray)
        return (
            array
            if (array.dtype.kind in "biufcmM" or array.dtype.names) and array.dtype.isnative
            else types.SimpleNamespace(__name__="array")
        )
    if is_member and issubclass(kind, int):
        return IntegerMember(found)
    for base, plain in _BASES.items():
        if issubclass(kind, base):
            return plain(found)
    if is_member:
        return found
    return types.SimpleNamespace(__name__=type.__getattribute__(kind, "__name__"))


def member_of(owner: Any, attribute: str) -> Any:
    """Return what an attribute of an object means in a kernel.

    Raises
    ------
    AttributeError
        If the attribute is not supported in a kernel.
    """
    if isinstance(owner, Intrinsic):
        return _member(owner.name, attribute)
    if isinstance(owner, np.dtype) and attribute == "type":
        return owner
    if isinstance(owner, enum.EnumMeta) and attribute in owner.__members__:
        return inert(owner.__members__[attribute])
    if isinstance(owner, enum.Enum) and attribute == "value":
        return inert(owner._value_)
    if isinstance(owner, np.ndarray) and attribute in ("shape", "size", "ndim"):
        return getattr(owner, attribute)
    is_constant = isinstance(owner, (np.ndarray, tuple, int, float, np.generic))
    of = "a constant" if is_constant else getattr(owner, "__name__", type(owner).__name__)
    raise AttributeError(f"`.{attribute}` of {of} is not supported in a kernel")


def meaning_of(found: Any) -> Any:
    """Return what an object from outside means in a kernel."""
    if isinstance(found, types.ModuleType):
        name = _MODULES.get(found.__name__)
        return found if name is None else Intrinsic(name)
    if isinstance(found, Callee) and str(found.function.__module__).startswith(_OURS[:2]):
        name = found.function.__name__
        return Intrinsic(name) if name == "literal_unroll" else found
    if getattr(found, "is_gpulab_cuda", False):
        return Intrinsic("cuda" + getattr(found, "path", ""))
    module = getattr(found, "__module__", None)
    if isinstance(found, types.BuiltinFunctionType | type) and isinstance(module, str):
        name = found.__name__
        if module in ("math", "cmath", "_operator"):
            return Intrinsic(f"{module.lstrip('_')}.{name}")
        if name in _BUILTINS and getattr(builtins, name) is found:
            return np.dtype(found) if found in (int, float, bool) else Intrinsic(name)
    if isinstance(found, np.ufunc):
        return Intrinsic(f"np.{found.__name__}")
    stub = _stubs(sys.modules.get("numba.cuda")).get(id(found))
    return Intrinsic(stub) if stub else found


def _member(owner: str, attribute: str) -> Any:
    if owner in ("numba", "cuda") and attribute in _PARTS:
        return Intrinsic(_PARTS[attribute])
    if owner in ("numba", "np", "cuda") and attribute in NUMBA_TYPES:
        return np.dtype(NUMBA_TYPES[attribute])
    if owner in ("math", "np") and attribute in ("pi", "e", "inf", "nan", "tau", "newaxis"):
        return getattr(math if owner == "math" else np, attribute)
    return Intrinsic(f"{owner}.{attribute}")


@functools.lru_cache(maxsize=2)
def _stubs(cuda: types.ModuleType | None) -> dict[int, str]:
    """Return the names of numba's own objects for `from numba.cuda import ...`, by the objects'
    ``id``; empty if numba.cuda is not loaded.
    """
    named = {} if cuda is None else vars(cuda)
    return {
        id(found): f"cuda.{name}"
        for name, found in named.items()
        if str(getattr(found, "__module__", "")).startswith("numba") and dtype_of(found) is None
    }


def dtype_of(found: Any) -> np.dtype | None:
    """Return the element type that an object stands for: a NumPy type, a numba type, or its name;
    None for anything else.
    """
    if isinstance(found, np.dtype):
        return found
    if isinstance(found, type) and issubclass(found, np.generic):
        return np.dtype(found)
    module, name = type(found).__module__, found if isinstance(found, str) else None
    of_record = getattr(found, "dtype", None) if module.startswith("numba") else None
    if isinstance(of_record, np.dtype):
        return of_record
    if module.startswith(_OURS):
        name = getattr(found, "name", None)
    if isinstance(name, str) and name in NUMBA_TYPES:
        return np.dtype(NUMBA_TYPES[name])
    return None
