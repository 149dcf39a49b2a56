"""10.4: translate a MATLAB script."""

# %% exercise
id = "10.4"
title = "translate a MATLAB script"
answer_name = "translated"
loads = ["torch"]

# %% stub
def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    ...  # torch.tensor(x, device=...), mean(dim=0), .cpu().numpy()

# %% hint
# mean, std and max work down the columns in MATLAB: dim=0. A product of matrices is @.

# %% hint
# MATLAB and PyTorch divide a variance by n - 1, NumPy by n unless you say ddof=1.

# %% hint
# i counts from 1, and s(1:i) holds s(i): with i = argmax + 1 the slice is s[:i].

# %% solution
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x, device="cuda" if torch.cuda.is_available() else "cpu")
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].cpu().numpy()

# %% check
from collections.abc import Callable
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import plural

_ROWS = 40  # few, so that dividing by n and by n - 1 are far apart
_CLOSE = 1e-3


def _matlab(x: np.ndarray, how: str = "") -> np.ndarray:
    """Return the script's result in float64, or the result of the slip that ``how`` names.

    The script sorts C in ascending order on purpose. The largest numbers of C are the ones on its diagonal: in descending order they
    would also come first if each column were sorted by itself, and their sums would hide that slip.
    """
    x = x.astype(np.float64)
    mean = x.mean() if how == "mean" else x.mean(axis=0)
    spread = x.std(ddof=1) if how == "std of all" else x.std(axis=0, ddof=0 if how == "std" else 1)
    y = (x - mean) / spread
    c = y.T @ y / (x.shape[0] - (0 if how == "rows" else 1))
    place = int(np.argmax(c[1:, 0])) + 1
    if how == "counting":
        place -= 1
    elif how == "row 1":
        place = int(np.argmax(c[0:, 0])) + 1
    axis = {"columns": 0, "lines": 1}.get(how)
    values = np.sort(c, axis).reshape(-1)  # axis None sorts all numbers together
    values = values[::-1] if how == "descending" else values
    return np.asarray(values[:place] if how == "cumsum" else np.cumsum(values)[:place])


_SLIPS = {
    "mean": "mean(X) is one number for each column; yours is one number for the whole table.",
    "std of all": "std(X) is one number for each column; yours is one number for the whole table.",
    "std": "MATLAB's std divides by n - 1, NumPy's by n unless you say ddof=1.",
    "rows": "The script divides by size(X, 1) - 1, one less than the number of rows.",
    "counting": "It is one element short: i counts from 1 in MATLAB, and s(1:i) holds s(i).",
    "row 1": "C(2:end, 1) leaves out the first row, and i counts from there.",
    "descending": "sort(...) puts the smallest first by default.",
    "columns": "C(:) makes one column of all numbers, and sort sorts all of them; you sorted down each column.",
    "lines": "C(:) makes one column of all numbers, and sort sorts all of them; you sorted along each row.",
    "cumsum": "These are the sorted numbers themselves; cumsum adds them up as it goes.",
}


def _table(seed: int, place: int) -> np.ndarray:
    """Return six columns. Column ``place``, counted from 0, is correlated with the first one. The means are far from 0 and from one another."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((_ROWS, 6))
    x[:, place] = 0.9 * x[:, 0] + 0.3 * x[:, place]
    return (x * rng.uniform(1, 9, 6) + rng.uniform(5, 50, 6)).astype(np.float32)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for number, (seed, place) in enumerate(((1, 3), (2, 5), (3, 2)), 1):
        x = _table(seed, place)
        given = x.copy()
        found = ask(f"For table {number}", given)
        if not isinstance(found, np.ndarray):
            raise Refused(
                f"Your function returned {checking.describe(found)}; gather brings the result to main memory. Return a NumPy array."
            )
        right = _matlab(x)
        if found.ndim == 2 and 1 in found.shape:  # a column as MATLAB's, or a row
            found = found.ravel()
        if found.ndim != 1:
            raise Refused(f"Your result has the shape {found.shape}; s(1:i) is one column of numbers: return them in one dimension.")
        if not _same(found, right):
            raise Refused(next((words for how, words in _SLIPS.items() if _same(found, _matlab(x, how))), _unknown(found, right)))
        if not np.array_equal(given, x):
            _check_copied(ask, number, x)
    return "Three tables: the same numbers as the script's, in main memory."


def _check_copied(ask: Callable[..., Any], number: int, x: np.ndarray) -> None:
    """Refuse an answer that has changed the caller's table, unless it leaves a read-only table unchanged.

    On a GPU this fault does not show, because the table is copied to the GPU.
    """
    sealed = x.copy()
    sealed.flags.writeable = False
    try:
        ask(f"For table {number}", sealed)
        if np.array_equal(sealed, x):
            return
    except Refused:  # NumPy raised, because the answer writes to a read-only array
        pass
    raise Refused(
        "The numbers are right, but the caller's x was changed: torch.from_numpy shares the array's memory, and MATLAB's gpuArray is "
        "a copy. Leave x as it is: use torch.tensor(x), or give what you compute another name."
    )


def _same(found: np.ndarray, right: np.ndarray) -> bool:
    return found.shape == right.shape and bool(np.allclose(found, right, rtol=_CLOSE, atol=_CLOSE))


def _unknown(found: np.ndarray, right: np.ndarray) -> str:
    if odd := np.count_nonzero(~np.isfinite(found)):
        return f"{odd} of your {plural(found.size, 'number')} {'is' if odd == 1 else 'are'} NaN or infinite. Print Y and C: what do you divide by?"
    if found.shape != right.shape:
        return f"Your result has {plural(found.size, 'number')}, the script's {right.size}. Check the value of i, and what 1:i contains."
    return (
        f"Your numbers differ from the script's by up to {np.max(np.abs(found - right)):.3g}. Go through it line by line: along which "
        "dimension does each function work, and what does it divide by?"
    )

# %% wrong: for each column
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean()) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: NaN or infinite
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / torch.sqrt(X.mean(dim=0) ** 2 - (X**2).mean(dim=0))
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: divides by n - 1
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0, correction=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: one element short
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax())
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: smallest first
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1), descending=True).values, dim=0)
    return s[:i].numpy()

# %% wrong: down each column
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C, dim=0).values.reshape(-1), dim=0)
    return s[:i].numpy()

# %% wrong: along each row
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C).values.reshape(-1), dim=0)
    return s[:i].numpy()

# %% wrong: leaves out the first row
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: gather brings
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i]

# %% wrong: one column of numbers: return them in one dimension
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return C[:i].numpy()

# %% wrong: For table 2 your function returned nothing
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy() if i < 5 else None

# %% wrong: RuntimeError
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.tensor(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T * Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()

# %% wrong: the caller's x was changed
import torch


def translated(x):
    """The script, for a NumPy array x of float32; returns r."""
    X = torch.from_numpy(x)
    X -= 0 * X + 1
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
    return s[:i].numpy()
