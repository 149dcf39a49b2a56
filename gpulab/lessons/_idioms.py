"""Idioms of other languages beside their line here; each row runs and is checked with NumPy.

``rosetta("MATLAB")`` gives the table of one language; ``rosetta("MATLAB").run()`` executes each row
on this machine and says whether its result is the one that NumPy gives. The rows are in
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
# a line that does not fit goes on below, further in
_LINE = '<div style="width:24em;padding-left:2em;text-indent:-2em">'

Names = dict[str, Any]

# Lines that answer an idiom of two languages.
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
    """An array of the run in float64, from which NumPy's answer is taken."""
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
        Takes the names after the run, returns what NumPy (or another source outside of the line)
        gives.
    runs_theirs : bool
        Whether ``theirs`` is Python too: it is then run where its library is installed, and held
        against the same answer.
    library : str
        The library that ``theirs`` needs, "" for none.
    needs_gpu : bool
        Whether ``theirs`` needs a CUDA device.
    exact : bool
        Whether the result must be equal, not only close.
    operation : str
        "matmul" or "convolution" where the line makes one of float32, which a GPU may compute in
        TF32; "" for everything else.
    within : float
        For a time: the factor that the result may be away from an independent clock's; 0 for
        everything else.
    seconds : float
        About what the line takes beyond the others, so that a notebook can leave it to the tests; 0
        where it is nothing.
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
        """Execute each row on this machine and hold its result against NumPy.

        Parameters
        ----------
        slow : bool
            Also the rows that take seconds.

        Returns
        -------
        Listing
            Of each idiom: where its result was; whether the line here, and the language's own where
            it is Python, "agrees", "differs" or is "not run here"; how far the line here is off, as
            max|result - expected| / max|expected|; and why it differs or was not run.
        """
        found = {row.name: _execute(row) for row in self.rows if slow or not row.seconds}
        left_out = ", ".join(row.name for row in self.rows if row.name not in found)
        notes = [f"{left_out}: left out, as they take seconds."] if left_out else []
        # what several rows give as their reason stands once below the table
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
    """Return the names that every row finds: arrays in main memory (small letters) and on the
    device (capitals), the same each time.
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
    """Run one row here and, where it is Python and its library is there, in its own language;
    return the parts of its row in the table.
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
    """Run a source of a row; return the state, the result, how far it is off, and the words for it;
    what its libraries refuse becomes the words.
    """
    names = _inputs()
    # its text can be looked up, as a notebook's can, for those who read a function's source
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
    """Return what a row's libraries raise for what this device does not have.

    The suite runs every row on a CPU, so there another error is a row's fault. Elsewhere it may be
    a thing that PyTorch has not made for that device: Apple's GPU has no float64, and says so with
    a TypeError. Or a part of a library does not load, as CuPy's of cuBLAS: CuPy is imported without
    it, and the first product raises an ImportError.
    """
    tried = devices.default().kind == "cpu"
    # a NotImplementedError is a RuntimeError
    return (GpulabError,) if tried else (GpulabError, TypeError, RuntimeError, ImportError)


def _held(idiom: Idiom, result: Any, expected: Any, library: str = "") -> tuple[float | None, str]:
    """Return how far a result of PyTorch, or of another library, is from what is expected, and the
    words for it if that is too far.
    """
    if idiom.within:
        ratio = float(result) / float(expected)
        near = 1 / idiom.within <= ratio <= idiom.within
        return None, "" if near else f"it gave {ratio:.3g} times what a plain clock gives"
    if not isinstance(expected, np.ndarray):
        same = result == expected
        return None, "" if same else f"it gave {shown(result)}, and {shown(expected)} is right"
    difference = relative_difference(flat(result), flat(expected))
    kind = devices.default().kind
    # JAX and TensorFlow let a GPU multiply in TF32 unless they are told otherwise, PyTorch only in
    # convolutions
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
    """Return what times a call with the standard library's ``timeit``, waiting for the device: the
    other source for a row that times.
    """

    def seconds(names: Names) -> float:
        def once() -> None:
            call(names)
            devices.default().synchronize()

        once()
        return statistics.median(timeit.repeat(once, number=10, repeat=9)) / 10

    return seconds
