"""The text that torch.compile wrote, and the result that shows it: nothing is compiled here."""

from __future__ import annotations

import dataclasses

from gpulab.evidence import Evidence
from gpulab.kernels import GeneratedCode
from gpulab.kernels._generated import _readable


def test_what_inductor_writes_is_shown_without_its_bookkeeping():
    """By hand: headers, blank lines, hints and the flag go; of braces within braces one pair stays, and those with more beside stay."""
    written = """#include <cmath>
extern "C" void kernel(float* x)
{

    {
        {
            for (;;)
            {
                x[0] = 1;\x20
            }
            if (C10_LIKELY(n > 0))
        }
    }
    bool integer_div_error = false;
}
"""
    assert _readable(written).split("\n") == [
        'extern "C" void kernel(float* x)', "{", "            for (;;)", "            {", "                x[0] = 1;", "            }", "}",
    ]  # fmt: skip


def test_the_result_says_how_many_kernels_and_why_none():
    """The singular and the plural, the first call's time only where it ran, a row a kernel, and a row for the reason."""
    made = GeneratedCode("f", ("mul", "add"), ("fused",), "C++", "x = 1;", 1.5, "", Evidence.measured("a machine"))
    assert repr(made) == "f: 2 operators (mul, add) became 1 kernel in C++ in 1.50 s\n\nx = 1;"
    assert made.table() == (
        ("f", ""), [("operators found", "mul, add"), ("first call", "1.50 s"), ("kernel 1 (C++)", "fused")],
    )  # fmt: skip
    one = dataclasses.replace(made, operators=("relu",))
    assert repr(one) == "f: 1 operator (relu) became 1 kernel in C++ in 1.50 s\n\nx = 1;"
    nothing = dataclasses.replace(made, operators=(), kernels=(), source="")
    assert repr(nothing) == "f: 0 operators became no kernel in 1.50 s"
    two = dataclasses.replace(made, kernels=("a", "b"), language="Triton", reason="no compiler")
    assert repr(two) == "f: 2 operators (mul, add) became 2 kernels in Triton\nIt cannot run here: no compiler.\n\nx = 1;"
    assert two.table()[1][2:] == [("not compiled", "no compiler"), ("kernel 1 (Triton)", "a"), ("kernel 2 (Triton)", "b")]
    none = dataclasses.replace(made, kernels=(), language="", source="", reason="no hooks")
    assert repr(none) == "f: 2 operators (mul, add) became no kernel\nIt cannot run here: no hooks."
