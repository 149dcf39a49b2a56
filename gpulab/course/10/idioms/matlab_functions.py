"""MATLAB's GPU-enabled functions beside the lines that do the same here.

Most traps are one of four. MATLAB works down columns where NumPy and PyTorch take the last
dimension or all numbers. It counts from 1. Its batch dimension (the pages) is the last one. It
stores arrays in column-major order. Expected values come from NumPy, some written out as loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._idioms import Idiom, Names, float64_of

_STAYS = "on the device"
_COLUMNS = "MATLAB goes down each column unless told otherwise; {} takes {}, so pass dim=0."


def _conv2(names: Names) -> Any:
    """Return a convolution by its definition, cut to the size of the image."""
    image, kernel = float64_of(names), float64_of(names, "b")[:3, :3]
    full = np.zeros((image.shape[0] + 2, image.shape[1] + 2))
    for i in range(3):
        for j in range(3):
            full[i : i + image.shape[0], j : j + image.shape[1]] += kernel[i, j] * image
    return full[1:-1, 1:-1]


def _accumulated(names: Names) -> Any:
    found = np.zeros(3)
    for k, place in enumerate((1, 2, 2, 3, 1, 2)):
        found[place - 1] += float64_of(names)[k, 0]
    return found


def _linear_places(names: Names) -> Any:
    columns = names["a"].flatten(order="F")
    return np.array([k + 1 for k in range(columns.size) if columns[k] > 0])


_ROWS: tuple[dict[str, Any], ...] = (
    {
        "name": "arrayfun",
        "theirs": "Y = arrayfun(@(x) leaky(x), A);  % one thread for each element",
        "here": """\
from gpulab.kernels import cuda


def leaky(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] if x[i] > 0 else np.float32(0.1) * x[i]


x, result = a.reshape(-1), np.zeros(a.size, np.float32)
run = gl.kernels.launch if device.startswith("cuda") else gl.kernels.simulate
run(leaky, 1, 32, x, result)""",
        "waits": "until the kernel is done and its arrays are back",
        "where": "host arrays travel; CuPy's and PyTorch's are used in place",
        "leaves_out": "Both make one kernel of a scalar function, branches and all. torch.where(A "
        "> 0, A, 0.1 * A) gives the same in three kernels, and torch.compile or CuPy's "
        "ElementwiseKernel in one.",
        "expected": lambda names: np.where(
            names["a"] > 0, float64_of(names), 0.1 * float64_of(names)
        ).reshape(-1),
    },
    {
        "name": "bsxfun",
        "theirs": "Y = bsxfun(@minus, A, mean(A));  % or A - mean(A)",
        "here": "result = A - A.mean(dim=0)",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "mean(A) is one number for each column; A.mean() would be one number in all. "
        "Dimensions are matched from the last one here, from the first one in MATLAB.",
        "expected": lambda names: float64_of(names) - float64_of(names).mean(axis=0),
    },
    {
        "name": "pagefun",
        "theirs": "Y = pagefun(@mtimes, P, Q);  % pages along the third dimension",
        "here": """\
P, Q = A.reshape(2, 3, 4), B.reshape(2, 4, 3)
result = P @ Q  # pages along the first dimension""",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "Pages come last in MATLAB and first here: permute once, when the data "
        "arrives. pagefun(@mldivide, P, b) is torch.linalg.solve(P, b).",
        "expected": lambda names: np.einsum(
            "pij,pjk->pik",
            float64_of(names).reshape(2, 3, 4),
            float64_of(names, "b").reshape(2, 4, 3),
        ),
        "operation": "matmul",
    },
    {
        "name": "mtimes",
        "theirs": "C = A * B';",
        "here": "result = A @ B.T",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "* is the matrix product there, and element by element here; .* there is * here.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": "mldivide",
        "theirs": "x = S \\ c;",
        "here": "result = torch.linalg.solve(S, A[:5])",
        "waits": "until it is known whether S is singular",
        "where": _STAYS,
        "leaves_out": "A singular S is a warning in MATLAB and an error here; solve_ex does not "
        "wait and returns a code in place of the error. For a tall matrix MATLAB gives least squares: "
        "torch.linalg.lstsq(S, c).solution.",
        "expected": lambda names: np.linalg.inv(float64_of(names, "s")) @ float64_of(names)[:5],
    },
    {
        "name": "fft",
        "theirs": "F = fft(A);",
        "here": "result = torch.fft.fft(A, dim=0)",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": _COLUMNS.format("torch.fft.fft", "the last dimension"),
        "expected": lambda names: (
            np.exp(-2j * np.pi * np.outer(np.arange(6), np.arange(6)) / 6) @ float64_of(names)
        ),
    },
    {
        "name": "cumsum",
        "theirs": "Y = cumsum(A);",
        "here": "result = torch.cumsum(A, dim=0)",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "NumPy's cumsum without axis flattens first; PyTorch's asks for dim. Sums "
        "are added in another order on a GPU, so the last digits differ.",
        "expected": lambda names: np.tril(np.ones((6, 6))) @ float64_of(names),
    },
    {
        "name": "sort",
        "theirs": '[Y, i] = sort(A, "descend");',
        "here": "result, places = torch.sort(A, dim=0, descending=True, stable=True)",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "Places count from 0. MATLAB keeps equal elements in their order; PyTorch "
        "does with stable=True. nan sorts as the largest in both, so it comes first here.",
        "expected": lambda names: -np.sort(-names["a"], axis=0),
        "exact": True,
    },
    {
        "name": "conv2",
        "theirs": 'Y = conv2(A, K, "same");',
        "here": """\
K = B[:3, :3]
flipped = K.flip(0, 1)  # deep learning's "convolution" does not flip its kernel
result = torch.nn.functional.conv2d(A[None, None], flipped[None, None], padding=1)[0, 0]""",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "conv2d is a correlation: without the flip every kernel that is not "
        "symmetric gives another picture. It takes batches and channels, hence the two None.",
        "expected": _conv2,
        "operation": "convolution",
    },
    {
        "name": "sum",
        "theirs": 's = sum(A);  t = sum(A, "all");',
        "here": "result = torch.cat([A.sum(dim=0), A.sum().reshape(1)])",
        "waits": "no; float(A.sum()) would",
        "where": _STAYS,
        "leaves_out": _COLUMNS.format("A.sum()", "everything"),
        "expected": lambda names: np.append(float64_of(names).sum(axis=0), float64_of(names).sum()),
    },
    {
        "name": "std",
        "theirs": "s = std(A);",
        "here": "result = A.std(dim=0)",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "MATLAB and PyTorch divide by n - 1; NumPy and CuPy by n, unless you pass ddof=1.",
        "expected": lambda names: np.sqrt(
            ((float64_of(names) - float64_of(names).mean(axis=0)) ** 2).sum(axis=0) / 5
        ),
    },
    {
        "name": "max",
        "theirs": "[m, i] = max(A);",
        "here": """\
largest, places = A.max(dim=0)
result = places + 1  # as MATLAB counts""",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "MATLAB leaves nan out; PyTorch returns it.",
        "expected": lambda names: np.argmax(names["a"], axis=0) + 1,
        "exact": True,
    },
    {
        "name": "find",
        "theirs": "k = find(A > 0);",
        "here": "result = torch.nonzero(A.T.reshape(-1) > 0).reshape(-1) + 1",
        "waits": "for the count: without it the size of the result is not known",
        "where": _STAYS,
        "leaves_out": "MATLAB's single index runs down the columns and counts from 1, hence A.T "
        "and + 1. A[A > 0] waits as well.",
        "expected": _linear_places,
        "exact": True,
    },
    {
        "name": "accumarray",
        "theirs": "s = accumarray([1 2 2 3 1 2]', A(:, 1));",
        "here": """\
where = torch.tensor([1, 2, 2, 3, 1, 2], device=device) - 1
result = torch.zeros(3, device=device).index_add_(0, where, A[:, 0])""",
        "waits": "for the six numbers to be sent",
        "where": _STAYS,
        "leaves_out": "On a GPU the order of the sums is not fixed (atomics), so the last digits "
        "may differ from run to run.",
        "expected": _accumulated,
    },
    {
        "name": "A(2:4, :)",
        "theirs": "Y = A(2:4, :);",
        "here": "result = A[1:4]",
        "waits": "no",
        "where": "A's own memory",
        "leaves_out": "2:4 includes its end, 1:4 does not. It is a view: writing to it writes to A, "
        "where MATLAB would copy.",
        "expected": lambda names: np.stack([names["a"][1], names["a"][2], names["a"][3]]),
        "exact": True,
    },
    {
        "name": "A(:)",
        "theirs": "v = A(:);",
        "here": "result = A.T.reshape(-1)",
        "waits": "no",
        "where": _STAYS + ", a copy",
        "leaves_out": "A.reshape(-1) reads along the rows: the same numbers in another order.",
        "expected": lambda names: np.concatenate([names["a"][:, k] for k in range(4)]),
        "exact": True,
    },
    {
        "name": "A'",
        "theirs": "Y = A';  % A.' without conjugating",
        "here": "result = A.mH",
        "waits": "no",
        "where": "A's own memory",
        "leaves_out": "A view: only its shape and strides differ. MATLAB moves the numbers. A.mT does not "
        "conjugate.",
        "expected": lambda names: np.array(
            [[names["a"][i, j] for i in range(6)] for j in range(4)]
        ),
        "exact": True,
    },
    {
        "name": "single",
        "theirs": "Y = single(X);  underlyingType(Y)",
        "here": """\
X = A.double()
result = X.float()""",
        "waits": "no",
        "where": _STAYS,
        "leaves_out": "X.dtype says what underlyingType says. A consumer GPU computes float64 at "
        "a small share of float32's rate; Apple's GPU has no float64.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
)

ROWS = tuple(Idiom(language="MATLAB", **row) for row in _ROWS)
