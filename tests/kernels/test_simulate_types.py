"""The types of the simulator's arithmetic against what numba-cuda's own compiler infers, for every operation and pair of types.

The compiler's inference needs no GPU. Where it has no answer (a typing error), the simulator must refuse.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.errors import KernelError
from gpulab.kernels import simulate
from gpulab.kernels._simulate._frame import Frame
from gpulab.kernels._simulate._registry import FUNCTIONS

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed; its inference is the reference")

NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool")
BINARY: dict[str, Callable[..., Any]] = {
    "p + q": operator.add, "p - q": operator.sub, "p * q": operator.mul, "p / q": operator.truediv, "p // q": operator.floordiv,
    "p % q": operator.mod, "p ** q": operator.pow, "p & q": operator.and_, "p | q": operator.or_, "p ^ q": operator.xor,
    "p << q": operator.lshift, "p >> q": operator.rshift, "p < q": operator.lt, "p <= q": operator.le, "p > q": operator.gt,
    "p >= q": operator.ge, "p == q": operator.eq, "p != q": operator.ne, "min(p, q)": min, "max(p, q)": max,
    "math.atan2(p, q)": math.atan2, "math.hypot(p, q)": math.hypot, "math.copysign(p, q)": math.copysign, "math.fmod(p, q)": math.fmod,
    "math.pow(p, q)": math.pow, "pow(p, q)": pow,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "-p": operator.neg, "+p": operator.pos, "~p": operator.invert, "not p": operator.not_, "abs(p)": abs, "int(p)": int, "float(p)": float,
    "bool(p)": bool, "round(p)": round,
    **{f"math.{f.__name__}(p)": f for f in (
        math.sqrt, math.exp, math.expm1, math.log, math.log2, math.log10, math.log1p, math.sin, math.cos, math.tan, math.asin, math.acos,
        math.atan, math.sinh, math.cosh, math.tanh, math.asinh, math.acosh, math.atanh, math.fabs, math.floor, math.ceil, math.trunc,
        math.erf, math.erfc, math.gamma, math.lgamma, math.radians, math.degrees, math.isnan, math.isinf, math.isfinite)},
}  # fmt: skip
# With numbers written in the kernel, of integers and of all types.
LITERALS = ("p << 1", "1 << p", "p & 1", "p | 256")
ALL_LITERALS = (
    "p + 1", "1 - p", "p * 2.0", "p / 2", "p // 2", "p % 3", "p ** 2", "2 ** p", "p < 1.5", "min(p, 0)", "max(p, 0.5)", "-p * 3",
)  # fmt: skip


@pytest.fixture(scope="module")
def context() -> Any:
    """Return numba-cuda's inference."""
    from numba.cuda.descriptor import cuda_target

    cuda_target.typing_context.refresh()
    return cuda_target.typing_context


def _inferred(context: Any, function: Callable[..., Any], *names: str) -> str | None:
    """Return the type that the compiler gives a function of some types; None where it refuses."""
    from numba import types
    from numba.core.errors import NumbaError

    given = tuple(getattr(types, "boolean" if name == "bool" else name) for name in names)
    try:
        signature = context.resolve_function_type(function, given, {})
    except NumbaError:
        return None
    return None if signature is None else str(signature.return_type)


@pytest.fixture
def type_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Return a function that tells the type which the simulator gives an expression of p and q; None where it refuses."""
    seen: list[str] = []
    assign = Frame.assign

    def spy(self: Frame, name: str, value: Any, *more: Any) -> None:
        seen.append(str(value.dtype))
        assign(self, name, value, *more)

    monkeypatch.setattr(Frame, "assign", spy)

    def tell(expression: str, *names: str) -> str | None:
        parameters = ", ".join("pq"[: len(names)])
        text = f"import math\nimport numpy as np\nfrom gpulab.kernels import cuda\ndef kernel({parameters}):\n    v = {expression}\n"
        seen.clear()
        try:
            simulate(function_of(text, filename=f"<{expression}>"), 1, 1, *(np.dtype(name).type(1) for name in names))
        except KernelError:
            return None
        return seen[-1]

    return tell


def _differences(found: Iterator[tuple[tuple[str, ...], str | None, str | None]]) -> list[str]:
    return [f"{', '.join(names)}: {ours}, numba {theirs}" for names, ours, theirs in found if ours != theirs]


@pytest.mark.parametrize("expression", BINARY)
def test_an_operation_of_two_types_gives_the_type_that_the_compiler_infers(context: Any, type_of: Any, expression: str) -> None:
    """All 121 pairs of types."""
    pairs = itertools.product(NAMES, repeat=2)
    assert not _differences((pair, type_of(expression, *pair), _inferred(context, BINARY[expression], *pair)) for pair in pairs)


@pytest.mark.parametrize("expression", UNARY)
def test_a_function_of_one_type_gives_the_type_that_the_compiler_infers(context: Any, type_of: Any, expression: str) -> None:
    """All 11 types."""
    assert not _differences(((name,), type_of(expression, name), _inferred(context, UNARY[expression], name)) for name in NAMES)


@pytest.mark.parametrize("function", ["minimum", "maximum", "arctan2", "hypot"])
def test_a_function_of_numpy_of_two_types_gives_the_type_that_the_compiler_infers(context: Any, type_of: Any, function: str) -> None:
    """All 121 pairs: a float32 stays one beside any integer, unlike in Python's own min and max."""
    pairs = itertools.product(NAMES, repeat=2)
    expression = f"np.{function}(p, q)"
    assert not _differences((pair, type_of(expression, *pair), _inferred(context, getattr(np, function), *pair)) for pair in pairs)


@pytest.mark.parametrize("function", ["sin", "log2", "arctan", "radians"])
def test_a_function_of_numpy_of_one_type_gives_the_type_that_the_compiler_infers(context: Any, type_of: Any, function: str) -> None:
    """All 11 types."""
    assert not _differences(
        ((name,), type_of(f"np.{function}(p)", name), _inferred(context, getattr(np, function), name)) for name in NAMES
    )


def test_a_function_of_numpy_that_a_gpu_lacks_is_noted(type_of: Any) -> None:
    """All that the simulator knows, by numba-cuda's own table: those without code there have a note, which names one that has it."""
    from numba.cuda.ufuncs import ufunc_db

    with_code = {ufunc.__name__ for ufunc in ufunc_db()}
    for name in (name.removeprefix("np.") for name in FUNCTIONS if name.startswith("np.") and hasattr(np, name[3:])):
        given = "p, p" if type_of(f"np.{name}(p)", "float32") is None else "p"
        text = f"import numpy as np\ndef kernel(p):\n    v = np.{name}({given})\n    v = np.{name}({given})\n"
        notes = simulate(function_of(text, filename=f"<noted {name}>"), 1, 1, np.float32(1)).notes
        known = getattr(np, name).__name__ in with_code
        assert [note.split(" in a kernel. For a GPU, write ")[0] for note in notes] == [
            f"line {line}: numba-cuda has no code for np.{name}" for line in (3, 4) if not known
        ], name
    (note,) = simulate(function_of("import math\ndef kernel(p):\n    v = math.cbrt(p)\n", filename="<cubic>"), 1, 1, 2.0).notes
    assert note == "line 3: numba-cuda has no code for math.cbrt in a kernel. For a GPU, write cuda.cbrt."
    (note,) = simulate(function_of("import numpy as np\ndef kernel(p):\n    v = np.sqrt(p)\n", filename="<root>"), 1, 1, 2.0).notes
    assert note.endswith("For a GPU, write math.sqrt.")


def test_a_complex_number_and_an_fma_have_the_types_that_the_compiler_infers(context: Any, type_of: Any) -> None:
    """Of all 121 pairs of types, the first of them twice in fma."""
    from numba import cuda

    pairs = list(itertools.product(NAMES, repeat=2))
    assert not _differences((pair, type_of("complex(p, q)", *pair), _inferred(context, complex, *pair)) for pair in pairs)
    assert not _differences(((name,), type_of("complex(p)", name), _inferred(context, complex, name)) for name in NAMES)
    assert not _differences(((p, q), type_of("cuda.fma(p, q, p)", p, q), _inferred(context, cuda.fma, p, q, p)) for p, q in pairs)


BITS = ("popc", "clz", "ffs", "brev")
# numba-cuda infers a type of ffs for narrower integers, and then has no code for them.
WITHOUT_CODE = [("ffs", name) for name in ("int8", "int16", "uint8", "uint16", "bool")]


@pytest.mark.parametrize("function", BITS)
def test_a_function_of_bits_gives_the_type_that_the_compiler_infers(context: Any, type_of: Any, function: str) -> None:
    """All nine types that are no floats."""
    from numba import cuda

    names = [name for name in NAMES if not name.startswith("float") and (function, name) not in WITHOUT_CODE]
    found = [((name,), type_of(f"cuda.{function}(p)", name), _inferred(context, getattr(cuda, function), name)) for name in names]
    assert not _differences(iter(found))
    assert {type_of(f"cuda.{of}(p)", name) for of, name in WITHOUT_CODE} == {None}


def _compiled(kernel: Any, name: str) -> str | None:
    """Return the type that numba-cuda gives the kernel's variable v where its parameter is of a type; None where it refuses."""
    from numba import types
    from numba.core.errors import TypingError
    from numba.cuda.compiler import compile_cuda

    try:
        made = compile_cuda(kernel, types.void, (getattr(types, "boolean" if name == "bool" else name),), cc=(9, 0))
    except TypingError:
        return None
    return str(made.type_annotation.typemap["v"])


@pytest.mark.parametrize("call", ["shfl_down_sync(1, p, 0)", "shfl_xor_sync(1, p, 0)", "all_sync(1, p)", "ballot_sync(1, p)"])
def test_a_shuffle_and_a_vote_take_the_types_that_the_compiler_takes(type_of: Any, call: str) -> None:
    """All 11 types: what numba-cuda compiles has its type, and what it refuses is refused."""
    kernel = function_of(f"from gpulab.kernels import cuda\ndef kernel(p):\n    v = cuda.{call}\n", filename=f"<compiled {call}>")
    assert not _differences(((name,), type_of(f"cuda.{call}", name), _compiled(kernel, name)) for name in NAMES)


@pytest.mark.parametrize("name", ["float32", "float64", "int8", "int64"])
def test_a_power_of_where_a_thread_is_has_the_type_that_the_compiler_infers(type_of: Any, name: str) -> None:
    """There threadIdx is int32, so that a float32 stays one; under cuda.grid, which is int64, it becomes a float64."""
    head = "import math\nfrom gpulab.kernels import cuda\n"
    for place in ("cuda.threadIdx.x", "cuda.grid(1)"):
        power = f"math.pow(p, {place})"
        kernel = function_of(f"{head}def kernel(p):\n    v = {power}\n", filename=f"<{power}>")
        assert type_of(power, name) == _compiled(kernel, name), place


@pytest.mark.parametrize("function", ["syncthreads_count", "syncthreads_and", "syncthreads_or"])
def test_a_vote_of_a_block_takes_the_types_that_the_compiler_takes(type_of: Any, function: str) -> None:
    """Integers, for an int32; a truth value, which numba-cuda refuses, runs with a note that says so, and floats are refused here too."""
    call = f"cuda.{function}(p)"
    kernel = function_of(f"from gpulab.kernels import cuda\ndef kernel(p):\n    v = {call}\n", filename=f"<voted {call}>")
    names = [name for name in NAMES if name != "bool"] if function.endswith("count") else ["int64", "float32"]  # they share their typing
    assert not _differences(((name,), type_of(call, name), _compiled(kernel, name)) for name in names)
    assert simulate(kernel, 1, 32, np.uint64(3)).notes == ()
    assert _compiled(kernel, "bool") is None
    (note,) = simulate(kernel, 2, 32, True).notes
    assert note == f"line 3: numba-cuda takes no truth value in cuda.{function}. For a GPU, make an integer of it: int32(...)."


@pytest.mark.parametrize("name", NAMES)
def test_numbers_in_the_text_have_the_types_that_the_compiler_gives_them(type_of: Any, name: str) -> None:
    """An integer literal is int64, a float literal float64; a power of a literal keeps its base's type. Inferred by numba.njit."""
    import numba

    expressions = ALL_LITERALS if name.startswith("float") else (*LITERALS, *ALL_LITERALS)
    function = function_of(f"def everything(p):\n    return ({', '.join(expressions)},)\n", "everything", f"<literals {name}>")
    compiled = numba.njit(function)
    compiled.compile((getattr(numba.types, "boolean" if name == "bool" else name),))
    theirs = [str(part) for part in compiled.nopython_signatures[0].return_type]
    assert not _differences(((text,), type_of(text, name), their) for text, their in zip(expressions, theirs, strict=True))


UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
RANGES = [
    *itertools.product(UNSIGNED), *itertools.product(UNSIGNED, repeat=2), *((name, name, "int64") for name in UNSIGNED),
    ("int64", "uint64"), ("uint64", "int64"), ("int64",), ("int64", "int64"), ("int64", "int64", "int64"),
]  # fmt: skip


@pytest.mark.parametrize("alike", [True, False], ids=["the same limits", "limits of each thread"])
def test_a_range_gives_the_type_that_the_compiler_infers(context: Any, monkeypatch: pytest.MonkeyPatch, alike: bool) -> None:
    """The loop's variable, in every turn; the compiler's range is named after it."""
    seen: list[str] = []
    assign = Frame.assign
    monkeypatch.setattr(Frame, "assign", lambda self, name, value, *more: (seen.append(str(value.dtype)), assign(self, name, value, *more)))
    given = {1: "3", 2: "1, 4", 3: "1, 4, 2"}
    for names in RANGES:
        numbers = [np.full(2, int(n), name) for n, name in zip(given[len(names)].split(", "), names, strict=True)]
        if not alike:
            numbers[len(numbers) > 1][1] += 1
        limits = ", ".join(f"{p}[cuda.threadIdx.x]" if not alike else f"{p}[0]" for p in "pqr"[: len(names)])
        text = f"from gpulab.kernels import cuda\ndef kernel(p, q, r):\n    for k in range({limits}):\n        pass\n"
        seen.clear()
        simulate(function_of(text, filename=f"<range {names} {alike}>"), 1, 2, *(numbers * 3)[:3])
        assert len(seen) > 1
        assert {f"range_state_{name}" for name in seen} == {_inferred(context, range, *names)}, names


ATOMICS = ("add", "sub", "min", "max", "nanmin", "nanmax", "and_", "or_", "xor", "exch", "inc", "dec", "cas", "compare_and_swap")


def _takes(context: Any, function: Any, given: tuple[Any, ...]) -> bool:
    from numba.core.errors import NumbaError

    try:
        return context.resolve_function_type(function, given, {}) is not None
    except NumbaError:
        return False


@pytest.mark.parametrize("operation", ATOMICS)
def test_an_atomic_takes_the_types_that_the_compiler_takes(context: Any, operation: str) -> None:
    """On an array of each type: it runs, or is refused with the types that would do."""
    from numba import cuda, types

    count = {"cas": 2, "compare_and_swap": 2}.get(operation, 1)
    index = "" if operation == "compare_and_swap" else "0, "
    call = f"cuda.atomic.{operation}(h, {index}{', '.join(['h[1]'] * count)})"
    kernel = function_of(f"from gpulab.kernels import cuda\ndef kernel(h):\n    {call}\n", filename=f"<{call}>")
    for name in (*NAMES, "float16", "complex64"):
        element = getattr(types, "boolean" if name == "bool" else name)
        given = (types.Array(element, 1, "C"), *([types.intp] if index else []), *[element] * count)
        theirs = _takes(context, context.resolve_getattr(types.Module(cuda.atomic), operation), given)
        h = np.zeros(4, name)
        if theirs:
            simulate(kernel, 1, 32, h)
            continue
        with pytest.raises(KernelError, match=rf"line 3 .*cuda.atomic.{operation} takes arrays of .*int32.*; h has {name}"):
            simulate(kernel, 1, 32, h)
