"""The puzzles of notebook 04: other right answers pass, and whatever else is handed in ends in a sentence."""

from __future__ import annotations

import contextlib
import linecache
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab import lessons
from gpulab.lessons import _kernel_checks
from gpulab.lessons._nb04_repairs import HEAD
from gpulab.lessons.content import Refused, exercise

HEAD_MATH = "import math\n\n" + HEAD


@pytest.fixture(autouse=True)
def own_progress(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes the learner's progress."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))


def _checked(id: str, source: str) -> lessons.CheckResult:
    place = f"<{id}-{hash(source):x}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, place, "exec"), names)
    return lessons.check(id, names[exercise(id).answer_name])


RIGHT = {
    "a factor out of a tuple": ("01.4", """
def mended(x, out):
    i = cuda.grid(1)
    factor = (2, -1)
    out[i] = factor[i % 2] * x[i]
"""),
    "a neighbour that is clamped": ("04.2", """
def difference(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[min(i + 1, x.size - 1)] - x[i]
"""),
    "early return": ("04.2", """
def difference(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    out[i] = x[i + 1] - x[i] if i + 1 < x.size else 0
"""),
    "other names, wrapped by a compiler": ("04.2", """
@cuda.jit
def difference(values, result):
    me = cuda.grid(1)
    if me + 1 < values.size:
        result[me] = values[me + 1] - values[me]
    elif me < values.size:
        result[me] = 0
"""),
    "columns by threads, rows by blocks": ("04.4", """
def centre(a, mean, out):
    for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
        for column in range(cuda.threadIdx.x, a.shape[1], cuda.blockDim.x):
            out[row, column] = a[row, column] - mean[column]
"""),
    "a sum by shuffles": ("04.6", """
def block_sum(x, sums):
    warps = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
    if t % 32 == 0:
        warps[t // 32] = value
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(8):
            total += warps[k]
        sums[cuda.blockIdx.x] = total
"""),
    "a sum by atomics": ("04.6", """
def block_sum(x, sums):
    cuda.atomic.add(sums, cuda.blockIdx.x, x[cuda.grid(1)])
"""),
    "no shared memory at all": ("04.7", """
def rotate(x, out):
    i = cuda.grid(1)
    first = 64 * cuda.blockIdx.x
    size = min(64, x.size - first)
    if i < x.size:
        out[i] = x[first + (cuda.threadIdx.x + 1) % size]
"""),
    "those without an element end": ("04.7", """
def rotate(x, out):
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    size = min(64, x.size - 64 * cuda.blockIdx.x)
    if i >= x.size:
        return
    tile[t] = x[i]
    cuda.syncthreads()
    out[i] = tile[(t + 1) % size]
"""),
    "a scan by shuffles": ("04.8", """
def scan(x, out):
    warps = cuda.shared.array(4, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i] if i < x.size else float32(0)
    for offset in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(0xFFFFFFFF, value, offset)
        if t % 32 >= offset:
            value += other
    if t % 32 == 31:
        warps[t // 32] = value
    cuda.syncthreads()
    for k in range(3):
        if k < t // 32:
            value += warps[k]
    if i < x.size:
        out[i] = value
"""),
    "two tiles in turn": ("04.8", """
def scan(x, out):
    tile = cuda.shared.array((2, 128), float32)
    t, i, now = cuda.threadIdx.x, cuda.grid(1), 0
    tile[0, t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    for step in (1, 2, 4, 8, 16, 32, 64):
        tile[1 - now, t] = tile[now, t] + (tile[now, t - step] if t >= step else 0.0)
        now = 1 - now
        cuda.syncthreads()
    if i < x.size:
        out[i] = tile[now, t]
"""),
    "a softmax that divides what it stored": ("04.12", """
def softmax(x, y):
    best, total = cuda.shared.array(1, float32), cuda.shared.array(1, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        best[0] = x[row, 0]
        total[0] = 0
    cuda.syncthreads()
    for k in range(t, x.shape[1], 128):
        cuda.atomic.max(best, 0, x[row, k])
    cuda.syncthreads()
    for k in range(t, x.shape[1], 128):
        e = math.exp(x[row, k] - best[0])
        y[row, k] = e
        cuda.atomic.add(total, 0, e)
    cuda.syncthreads()
    for k in range(t, x.shape[1], 128):
        y[row, k] = y[row, k] / total[0]
"""),
    "a softmax with the row kept": ("04.12", """
def softmax(x, y):
    kept = cuda.shared.array(1024, float32)
    best = cuda.shared.array(1, float32)
    total = cuda.shared.array(1, float32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        best[0] = x[row, 0]
        total[0] = 0
    cuda.syncthreads()
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = x[row, k]
        cuda.atomic.max(best, 0, kept[k])
    cuda.syncthreads()
    for k in range(t, x.shape[1], cuda.blockDim.x):
        kept[k] = math.exp(kept[k] - best[0])
        cuda.atomic.add(total, 0, kept[k])
    cuda.syncthreads()
    for k in range(t, x.shape[1], cuda.blockDim.x):
        y[row, k] = kept[k] / total[0]
"""),
}  # fmt: skip


# What each does, in the words of its praise; by hand: two have no barrier, one thread without an element has ended before it.
PRAISED = {
    "a factor out of a tuple": "And neighbouring threads still touch neighbouring elements.",
    "a sum by shuffles": "No race is left",
    "a sum by atomics": "without a barrier",
    "no shared memory at all": "without a barrier",
    "those without an element end": "reach the barrier (or have ended before it)",
    "a softmax with the row kept": "each row is loaded once, and kept",
    "a softmax that divides what it stored": "each row is loaded 3 times. Kept in shared memory it would be once",
}


@pytest.mark.parametrize("what", RIGHT)
def test_other_right_answers_pass(what: str):
    """A check holds invariants, not one text, and praises what the answer does."""
    id, source = RIGHT[what]
    result = _checked(id, HEAD_MATH + source)
    assert result.state == "passed", result.message
    assert PRAISED.get(what, "") in result.message


def test_an_early_return_is_named_only_where_there_is_one():
    """The usual solution of 04.7 has none."""
    assert "All threads of a block reach the barrier, also those" in _checked("04.7", exercise("04.7").solution).message


def test_the_price_of_apart_elements_is_told():
    """The solution of 01.4 has neighbouring threads take every second element: 32 floats in 256 bytes, 8 sectors where 4 would do."""
    assert "2.00x the fewest possible sectors move" in _checked("01.4", exercise("01.4").solution).message


@pytest.mark.parametrize(
    ("given", "expected", "says"),
    [
        ([9.0, 2.0], [10.0, 2.0], ""),  # a tenth of the largest
        ([10.0, 3.01], [10.0, 2.0], "The result is wrong for two: 1 of 2 elements. The first is element 1: 3.01, and 2 is right."),
        ([[1.0, 1.0], [1.2, float("nan")]], [[1.0, 1.0], [1.0, 1.0]], "2 of 4 elements. The first is element (1, 0): 1.2, and 1 is right."),
    ],
)
def test_a_result_may_be_off_by_a_share_of_the_largest(given: list, expected: list, says: str):
    """Its end included; nan is never right; the first wrong element is told with its place."""
    trial = _kernel_checks.Trial(1, 1, (), {}, "for two", 0.1)
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _kernel_checks._compare(trial, np.array(given), np.array(expected))
    assert not says or says in refused.value.args[0]


def test_a_kernel_without_an_end_is_given_twenty_thousand_statements():
    """Twice what one thread takes that does all the work, and told so."""
    message = _checked("04.2", HEAD + WRONG["no end"][0]).message
    assert "the kernel was still at work after 20,000 statements of whole batches" in message


@pytest.mark.parametrize(
    ("kind", "index", "says"),
    [
        ("uninitialised", (), "It reads a variable that some threads have given no value."),
        ("uninitialised", (3,), "It reads shared memory that nothing was written to."),
        ("shuffle", (), "A shuffle or a vote names, or asks, a lane that takes no part."),
    ],
)
def test_a_variable_without_a_value_is_no_shared_memory(kind: str, index: tuple[int, ...], says: str):
    """A finding of a variable has no place in an array."""
    found, trial = SimpleNamespace(kind=kind, index=index), _kernel_checks.Trial(1, 1, (), {}, "for two")
    assert _kernel_checks._sentence([found], trial) == f"{says} For two: {found}"  # type: ignore[list-item]


def test_counts_of_all_trials_are_added_up():
    """Two barriers and three."""
    ran: list = [SimpleNamespace(totals=SimpleNamespace(barriers=count)) for count in (2, 3)]
    assert _kernel_checks.totals(ran, "barriers") == 5


def test_of_several_findings_the_first_of_the_order_is_told():
    """Out of bounds before a race, whatever came first."""
    found = [SimpleNamespace(kind="race"), SimpleNamespace(kind="bounds")]
    trial = _kernel_checks.Trial(1, 1, (), {}, "for two")
    assert _kernel_checks._sentence(found, trial) == f"It goes out of an array's bounds. For two: {found[1]}"  # type: ignore[arg-type]


WRONG = {
    "one argument": ("def difference(x):\n    x[0] = 1", "It takes 1 argument; it is launched with 2: x, out."),
    "no end": ("def difference(x, out):\n    i = 0\n    while i < 1:\n        out[0] = 0", "The microscope cannot run it for 100 elements"),
    "opens a file": ("def difference(x, out):\n    open('f')", "The microscope cannot run it"),
    "imports": ("def difference(x, out):\n    import os\n    out[0] = 1", "The microscope cannot run it"),
    "no kernel": ("difference = 5", "expects a kernel"),
    "a call in place of the function": ("difference = (lambda x, out: None)(1, 2) or 'called'", "expects a kernel"),
    "a lambda": ("difference = lambda x, out: x", "The microscope cannot"),
    "defaults": ("def difference(x, out=None):\n    out[0] = 1", "The microscope cannot read it"),
    "does nothing": ("def difference(x, out):\n    i = cuda.grid(1)", "The result is wrong"),
    "an unknown name": ("def difference(x, out):\n    out[0] = nothing", "The microscope cannot run it"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_run_is_refused_in_a_sentence(what: str):
    """Endless loops, files, imports and things that are no kernels: refused, with the line where there is one."""
    source, words = WRONG[what]
    result = _checked("04.2", HEAD + source)
    assert result.state == "wrong"
    assert words in result.message


def test_a_stub_with_comments_or_a_docstring_is_no_attempt():
    """What a learner only commented is not judged."""
    stub = exercise("04.2").stub
    assert _checked("04.2", stub.replace("    i =", "    # a thought\n    i =")).state == "not attempted"
    assert _checked("04.2", "def difference(x, out):\n    '''Mine.'''\n    ...").state == "not attempted"
    assert _checked("04.8", "def scan(x, out):\n    ...").state == "not attempted"
    assert _checked("04.8", "def scan(x, out):\n    pass").state != "passed"
