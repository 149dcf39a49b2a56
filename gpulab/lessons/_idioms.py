"""Idioms of other languages beside the equivalent line here (in Python, with gpulab's libraries);
each row runs and is checked with NumPy.

``rosetta("MATLAB")`` gives the table of one language; ``rosetta("MATLAB").run()`` executes each row
on this machine and reports whether its result agrees with NumPy's. The rows are in
``course/10/idioms``.
"""

from __future__ import annotations

import functools
import html
import linecache
import statistics
import timeit
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpulab
from gpulab import _backends, _validate, devices
from gpulab.errors import GpulabError, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.lessons import content
from gpulab.lessons._material import Listing
from gpulab.results import Result
from gpulab.timing.comparing import flat, relative_difference, tolerance_for
from gpulab.units import plural

AGREES, DIFFERS, NOT_HERE = "agrees", "differs", "not run here"

_CELL = "text-align:left;vertical-align:top;padding:0.3em 1em 0.3em 0"
_CODE = f"{_CELL};font-family:var(--jp-code-font-family,monospace);font-weight:normal;white-space:pre-wrap;overflow-wrap:anywhere"
# a line that is too long is wrapped with a hanging indent
_LINE = '<div style="width:24em;padding-left:2em;text-indent:-2em">'

Names = dict[str, Any]

# Lines that are the equivalent of an idiom in two languages.
COUNTED_PROGRAMS = """\
traces = []


def count(module, inputs):
    traces.append(len(inputs))
    return module.forward


f = torch.compile(lambda x: 2 * x + 1, backend=count, dynamic=False)
for rows in (2, 2, 3):
    f(torch.ones(rows, 4))
result = len(traces)"""
SCALED_BY_A_KERNEL = """\
from gpulab.kernels import cuda


def scale(x, by):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= by


result = a.reshape(-1).copy()
run = gl.kernels.launch if device.startswith("cuda") else gl.kernels.simulate
run(scale, 1, 32, result, np.float32(2))"""


def float64_of(names: Names, name: str = "a") -> Any:
    """Return an array of the run in float64, from which NumPy's answer is computed."""
    return names[name].astype(np.float64)


@dataclass(frozen=True)
class Idiom:
    """One idiom and its line here.

    Attributes
    ----------
    language, name : str
        "MATLAB", "gather".
    theirs : str
        As that language writes it.
    here : str
        Python that defines ``result``, run with the names of ``_inputs``.
    waits : str
        What the host waits for in the line here.
    where : str
        Where the data are afterwards.
    leaves_out : str
        What is not the same, or what the line does not do.
    expected : callable
        Called with the names after the run; returns the expected result from NumPy, or from another
        source that is independent of the line.
    runs_theirs : bool
        Whether ``theirs`` is Python too. It is then run if its library is installed, and compared
        with the same answer.
    library : str
        The library that ``theirs`` needs, "" for none.
    needs_gpu : bool
        Whether ``theirs`` needs a CUDA device.
    exact : bool
        Whether the result must be equal, not only close.
    operation : str
        "matmul" or "convolution" if the line computes one in float32, which a GPU may do in TF32;
        "" for everything else.
    within : float
        For a result that is a time: the factor by which it may differ from the time of an
        independent clock; 0 for everything else.
    seconds : float
        About how much longer the line takes than the others, so that a notebook can leave it to the
        tests; 0 if it takes no longer.
    """

    language: str
    name: str
    theirs: str
    here: str
    waits: str
    where: str
    leaves_out: str
    expected: Callable[[Names], Any]
    runs_theirs: bool = False
    library: str = ""
    needs_gpu: bool = False
    exact: bool = False
    operation: str = ""
    within: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Rosetta(Result):
    """Idioms of one language beside their lines here.

    Attributes
    ----------
    language : str
    names : tuple of str
        Of the idioms, in the order shown.
    """

    columns = {
        "{0.language}": lambda row: row.theirs,
        "here": lambda row: row.here,
        "what the host waits for": lambda row: row.waits,
        "where the data are": lambda row: row.where,
        "what is not the same": lambda row: row.leaves_out,
    }
    rows_from = "rows"

    language: str
    names: tuple[str, ...]

    @property
    def rows(self) -> tuple[Idiom, ...]:
        """The idioms."""
        known = {each.name: each for each in _all()[self.language]}
        return tuple(known[name] for name in self.names)

    def __repr__(self) -> str:
        return f"<{plural(len(self.names), 'idiom')} of {self.language}: {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        """The table with code as code, and the three remarks of a row below one another."""
        head = "".join(
            f'<th scope="col" style="{_CELL}">{html.escape(text)}</th>'
            for text in (self.language, "here", "remarks")
        )
        body = "".join(map(_html_row, self.rows))
        return (
            '<figure class="gpulab-result" style="margin:0;overflow-x:auto"><table '
            'style="margin:0;color:inherit">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></figure>"
        )

    def only(self, *names: str) -> Rosetta:
        """Return the table of some of the idioms, in the order asked for.

        Raises
        ------
        InputError
            If the language has no such idiom.
        """
        chosen = (_validate.word("only", "name", name, self.names) for name in names)
        return Rosetta(self.language, tuple(chosen))

    def run(self, slow: bool = False) -> Listing:
        """Execute each row on this machine and compare its result with NumPy's.

        Parameters
        ----------
        slow : bool
            Run the rows that take seconds, too.

        Returns
        -------
        Listing
            A row for each idiom: the device of its result; whether the line here, and the
            language's own line if it is Python, "agrees", "differs" or is "not run here"; the error
            of the line here, as max|result - expected| / max|expected|; and why it differs or was
            not run.
        """
        found = {row.name: _execute(row) for row in self.rows if slow or not row.seconds}
        left_out = ", ".join(row.name for row in self.rows if row.name not in found)
        notes = (
            [f"Left out, to save time: {left_out}. run(slow=True) runs all rows."]
            if left_out
            else []
        )
        # a reason that several rows have in common is shown once, below the table
        reasons = Counter(one["reason"] for one in found.values())
        notes += [reason for reason, count in reasons.items() if reason and count > 1]
        columns = {
            "result on": "device",
            "the line here": "state",
            "their own line": "theirs",
            "off by": "difference",
            "": "reason",
        }
        if not any(one["theirs"] for one in found.values()):
            del columns["their own line"]
        rows = [
            (name, *("" if one[part] in notes else one[part] for part in columns.values()))
            for name, one in found.items()
        ]
        agreeing = sum(one["state"] == AGREES for one in found.values())
        return Listing(
            f"{self.language}: {agreeing} of {len(rows)} rows agree with NumPy",
            (self.language, *columns),
            tuple(rows),
            (),
            (("", Evidence.measured(devices.default().name)),),
            tuple(Note("skipped", sentence) for sentence in notes),
        )


def _html_row(row: Idiom) -> str:
    remarks = (("waits", row.waits), ("data", row.where), ("not the same", row.leaves_out))
    words = "".join(
        f"<div><strong>{name}:</strong> {html.escape(text)}</div>" for name, text in remarks
    )
    theirs, here = (
        "".join(f"{_LINE}{html.escape(line) or '&nbsp;'}</div>" for line in code.split("\n"))
        for code in (row.theirs, row.here)
    )
    return (
        f'<tr><th scope="row" style="{_CODE}">{theirs}</th><td style="{_CODE}">{here}</td>'
        f'<td style="{_CELL};white-space:normal;overflow-wrap:anywhere;min-width:16em">{words}'
        "</td></tr>"
    )


@functools.cache
def _all() -> dict[str, tuple[Idiom, ...]]:
    """Return the rows of each language, read from the course's files when they are first needed."""
    found: dict[str, tuple[Idiom, ...]] = {}
    for name in ("matlab", "matlab_functions", "tensorflow", "jax", "cuda"):
        for row in content.definitions(content.COURSE / "10" / "idioms" / f"{name}.py")["ROWS"]:
            found[row.language] = (*found.get(row.language, ()), row)
    return found


def rosetta(language: str) -> Rosetta:
    """Return the idioms of a language beside their working lines here.

    Parameters
    ----------
    language : str
        One of "MATLAB", "TensorFlow", "TensorFlow 1", "JAX", "CuPy", "CUDA C++".

    Returns
    -------
    Rosetta

    Raises
    ------
    InputError
        If there is no table for it.

    Examples
    --------
    >>> rosetta("MATLAB").only("gather").run()
    <MATLAB: 1 of 1 rows agree with NumPy>
    """
    rows = _all()[_validate.word("rosetta", "language", language, _all())]
    return Rosetta(language, tuple(each.name for each in rows))


def _inputs() -> Names:
    """Return the names that every row can use: arrays in main memory (lower case) and on the device
    (upper case), with the same values each time.
    """
    import torch

    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    square = rng.standard_normal((5, 5)).astype(np.float32) + 5 * np.eye(5, dtype=np.float32)
    device = str(devices.default())
    on_device = {
        name: torch.from_numpy(array.copy()).to(device)
        for name, array in (("A", a), ("B", b), ("S", square))
    }
    host = {"a": a, "b": b, "s": square}
    return {"np": np, "torch": torch, "gl": gpulab, "device": device, **host, **on_device}


def _execute(idiom: Idiom) -> dict[str, str]:
    """Run the line here and, if the language's own line is Python and its library is installed,
    that line too; return the cells of the row in the table.
    """
    state, result, difference, reason = _outcome(idiom, idiom.here)
    owner = _backends.backend_of(result)
    where = "" if owner is None else owner.device_of(result)
    theirs, why_not = "", ""
    if idiom.runs_theirs:
        if idiom.needs_gpu and devices.default().torch_type != "cuda":
            why_not = f"{idiom.language}'s own line needs a CUDA device"
        elif idiom.library:
            why_not = _backends.unusable(idiom.library)
        theirs = NOT_HERE
        if not why_not:
            theirs, _, _, why_not = _outcome(idiom, idiom.theirs, idiom.library)
    reason = reason or ("" if theirs == DIFFERS else why_not)
    return {
        "device": where,
        "state": state,
        "theirs": theirs,
        "difference": "" if difference is None else f"{difference:.1e}",
        "reason": reason,
    }


def _outcome(idiom: Idiom, source: str, library: str = "") -> tuple[str, Any, float | None, str]:
    """Run a source of a row; return the state, the result, the difference, and the reason if it
    differs or was not run. If a library refuses it, the library's message is the reason.
    """
    names = _inputs()
    # as in a notebook, libraries that read a function's source can look up its text
    file = f"<{idiom.language}: {idiom.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), names)
    except _refusals() as error:
        return NOT_HERE, None, None, message_of(error)
    result = names["result"]
    difference, reason = _held(idiom, result, idiom.expected(names), library)
    return DIFFERS if reason else AGREES, result, difference, reason


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of a row's libraries which mean that this device lacks something.

    The suite runs every row on a CPU, so any other error there is a fault of the row. On other
    devices, PyTorch may lack something: Apple's GPU has no float64, and PyTorch raises a TypeError.
    Or a part of a library may fail to load: CuPy can be imported without cuBLAS, and the first
    product then raises an ImportError.
    """
    tried = devices.default().kind == "cpu"
    # a NotImplementedError is a RuntimeError
    return (GpulabError,) if tried else (GpulabError, TypeError, RuntimeError, ImportError)


def _held(idiom: Idiom, result: Any, expected: Any, library: str = "") -> tuple[float | None, str]:
    """Return the difference of a result from the expected one (None if it is not an array), and a
    sentence if the difference is too large. ``library`` made the result; "" for PyTorch.
    """
    if idiom.within:
        ratio = float(result) / float(expected)
        near = 1 / idiom.within <= ratio <= idiom.within
        return None, "" if near else f"its time is {ratio:.3g} times that of a plain clock"
    if not isinstance(expected, np.ndarray):
        same = result == expected
        return None, "" if same else f"it gave {shown(result)}, and {shown(expected)} is right"
    difference = relative_difference(flat(result), flat(expected))
    kind = devices.default().kind
    # By default JAX and TensorFlow let a GPU use TF32 for both operations, PyTorch only for
    # convolutions.
    tf32 = (
        idiom.operation != ""
        and kind != "cpu"
        and (
            library in ("jax", "tensorflow")
            or "tf32" in devices.arithmetic("float32", kind, idiom.operation)
        )
    )
    near = difference <= (0.0 if idiom.exact else tolerance_for(("float32",), tf32=tf32))
    return difference, "" if near else f"it is off by {difference:.1e} of the largest value"


def plain_clock(call: Callable[[Names], Any]) -> Callable[[Names], float]:
    """Return a function that times a call with the standard library's ``timeit`` and waits for the
    device. It is the independent clock for rows whose result is a time.
    """

    def seconds(names: Names) -> float:
        def once() -> None:
            call(names)
            devices.default().synchronize()

        once()
        return statistics.median(timeit.repeat(once, number=10, repeat=9)) / 10

    return seconds
