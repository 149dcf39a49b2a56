"""Indices and slices against NumPy's: rows, blocks and slices of slices, with limits on either side and beyond the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.errors import KernelError
from gpulab.kernels import simulate
from gpulab.kernels._simulate import _indices

CUBE = np.arange(2 * 3 * 5.0).reshape(2, 3, 5)
PARTS = (
    "c[1]", "c[1, 2]", "c[-1, 0]", "c[0, 1:3]", "c[:, 2]", "c[:, :, 3]", "c[1, 1:]", "c[1, :2, 4]", "c[-1, -2:, 1:4]", "c[0, 1, -4:-1]",
    "c[1][2]", "c[1][1:][0]", "c[0, 0, 1:][1:3]", "c[0, 0, 2:2]", "c[0, 0, 4:1]", "c[0, 2, -9:2]", "c[0, 2, 3:99]", "c[0, -3:1]", "c[:1]",
    "c[0, :, 1:][1, -2:]", "c[int32(1), uint8(2)]", "c[int16(0), 0, int32(1):uint16(4)]", "c[uint64(1)]",
)  # fmt: skip


def _kernel(text: str) -> Any:
    header = "from gpulab.kernels import cuda, int16, int32, uint8, uint16, uint64\ndef kernel(out, shape, c, i):\n"
    return function_of(f"{header}    part = {text}\n{_WALK}", filename=f"<part {text}>")


_WALK = """    shape[0], shape[1], shape[2] = part.ndim, part.shape[0], part.size
    if part.ndim == 1:
        for k in range(part.shape[0]):
            out[k] = part[k]
"""


@pytest.mark.parametrize("text", PARTS)
def test_a_part_is_numpys(text: str) -> None:
    """Its dimensions, its first length, how much it holds, and its elements in order where it is a row of them."""
    expected = eval(text, {"c": CUBE, **dict.fromkeys(("int16", "int32", "uint8", "uint16", "uint64"), int)})
    out, shape = np.full(30, -1.0), np.zeros(3, np.int64)
    assert simulate(_kernel(text), 1, 1, out, shape, CUBE, 0).findings == ()
    assert shape.tolist() == [expected.ndim, expected.shape[0], expected.size]
    if expected.ndim == 1:
        assert out[: expected.size].tolist() == expected.tolist()
        assert (out[expected.size :] == -1).all()


@pytest.mark.parametrize("extent", [0, 1, 5])
def test_a_limit_of_a_slice_is_cut_as_python_cuts_it(extent: int) -> None:
    """From the end where it is negative, and never beyond either end."""
    limits = np.arange(-8, 9)
    assert [int(_indices._clipped(np.int64(k), np.int64(extent))) for k in limits] == [slice(k, None).indices(extent)[0] for k in limits]
    assert _indices._clipped(limits[None, :], np.int64(extent)).tolist() == [[slice(0, k).indices(extent)[1] for k in limits]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("c[0, 0, 0, 0]", "c has 3 dimensions and the index has 4"), ("c[1.5]", "an index is of type float64; expected an integer"),
        ("c[i < 1]", "an index is of type bool; expected an integer"), ("c[0, 0, 1.0:]", "an index is of type float64"),
    ],
)  # fmt: skip
def test_what_is_no_index_is_refused(text: str, words: str) -> None:
    """A number with a point, a truth value, and one too many."""
    with pytest.raises(KernelError) as refused:
        simulate(_kernel(text), 1, 1, np.zeros(30), np.zeros(3, np.int64), CUBE, 0)
    assert words in str(refused.value)
    assert refused.value.line == 3


ROWS = """from gpulab.kernels import cuda
def kernel(out, c):
    i = cuda.grid(1)
    part = c[i]
    out[i, 0] = part.shape[0]
    if part.shape[0] > 0:
        out[i, 1] = part[1, 2]
"""


def test_a_part_beyond_the_end_is_found_and_holds_nothing() -> None:
    """Of four threads two ask for a block that is not there: thread 2 first."""
    out = np.full((4, 2), -1.0)
    (finding,) = simulate(function_of(ROWS, filename="<rows>"), 1, 4, out, CUBE).findings
    assert (finding.kind, finding.line, finding.index, finding.count) == ("bounds", 4, (2,), 2)
    assert out.tolist() == [[3, CUBE[0, 1, 2]], [3, CUBE[1, 1, 2]], [0, -1], [0, -1]]
