"""Right answers in another form than the solution's: arrays instead of tuples, NumPy's numbers, a name as others write it."""

from __future__ import annotations

from typing import Any

import pytest

from gpulab import lessons
from gpulab.evidence import Evidence
from gpulab.hierarchy import Latency, LatencyPoint
from gpulab.lessons import _architecture, content

# A machine with 32 KiB and 512 KiB of cache: 2, 5 and 90 ns a hop.
_HOPS = tuple((2**k, 2 if k <= 15 else 5 if k <= 19 else 90) for k in range(12, 25))
_POINTS = tuple(LatencyPoint(nbytes, ns * 1e-9, None, ns * 1e-9, 5, 1) for nbytes, ns in _HOPS)
_CURVE = Latency("A CPU", "python", _POINTS, None, (), (), Evidence.measured("A CPU"), None)

_SPEEDUP = """
def speedup(slow, fast):
    (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds
    return {array}([slow.median_seconds / fast.median_seconds, a / d, b / c]{dtype})
"""
_LINE = """
def fit(nbytes, seconds):
    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return {array}([latency, 1 / slope]{dtype})
"""
_SCALES = """
def scales(gradients):
    sizes = np.abs(gradients[gradients != 0])
    low = 2.0 ** (np.floor(np.log2(2.0**-25 / sizes.min())) + 1)
    return {array}([low, 2.0 ** np.floor(np.log2(65504 / sizes.max()))])
"""
_WEIGHTS = """
def weights(source, wide, kernel, side):
    return {array}([source * wide * kernel**2, source * wide * side**4])
"""
_EXACT = {"np.array": "", "torch.tensor": ", dtype=torch.float64"}
_BUDGET = 'means = {"accumulate": np.int64(4), "checkpoint": np.True_, "precision": np.str_("float32")}'
_DIVISORS = """
m = np.arange(1, 97)
plan = {"microbatches": m[(96 % m == 0) & (3 / (m + 3) < 0.1)][0], "schedule": "1f1b"}
"""


@pytest.fixture(autouse=True)
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of 01.9 is one whose ends are known."""
    monkeypatch.setattr(_architecture, "_curve", _CURVE)


def _checked(id: str, source: str) -> lessons.CheckResult:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import numpy as np\nimport torch\n" + source, names)
    return lessons.check(id, names[content.exercise(id).answer_name])


@pytest.mark.parametrize("array", ["np.array", "torch.tensor"])
@pytest.mark.parametrize(
    ("id", "source"),
    [
        ("00.9", _SPEEDUP),
        ("01.3", "divergent = {array}([16, 0, 1])"),
        ("01.7", "fitted = {array}([40, 37 * 1024])"),
        ("01.9", "ends = {array}([2**15, 2**19])"),
        ("02.5", _LINE),
        ("05.7", _SCALES),
        ("07.10", _WEIGHTS),
    ],
)
def test_several_numbers_may_be_an_array(id: str, source: str, array: str):
    """NumPy's and PyTorch's rows of numbers say as much as a tuple."""
    result = _checked(id, source.format(array=array, dtype=_EXACT[array]))
    assert result.state == "passed", result.message


@pytest.mark.parametrize(
    ("id", "source"),
    [
        ("06.5", 'settings = {"workers": np.int64(5), "prefetch": np.int32(2)}'),
        ("06.12", _BUDGET),
        ("08.8", _DIVISORS),
        ("08.14", 'found = {"A": (np.int64(2), "layer 2"), "B": (np.uint8(3), "slow"), "C": (np.int64(0), "barrier")}'),
    ],
)
def test_whole_numbers_may_come_from_numpy(id: str, source: str):
    """What a learner found with arange and where is a number like any other."""
    result = _checked(id, source)
    assert result.state == "passed", result.message


@pytest.mark.parametrize("what", ["all_reduce layer 2", "all-reduce layer 2", "allreduce, layer 2", "AllReduce Layer-2", " layer 2 "])
def test_a_collective_may_be_written_in_several_ways(what: str):
    """All-reduce is written in three ways in the field's manuals; the layer alone names it, too."""
    result = _checked("08.14", f'found = {{"A": (2, {what!r}), "B": (3, "slow"), "C": (0, "Barrier")}}')
    assert result.state == "passed", result.message


@pytest.mark.parametrize(
    ("letter", "what"), [("A", "all-reduce"), ("A", "layer 4"), ("B", "late"), ("C", "all_gather"), ("C", "all_reduce barrier")]
)
def test_what_is_no_collective_of_the_timelines_is_told_so(letter: str, what: str):
    """The rank is right and the word is unknown: that is said, and how the timelines write theirs."""
    right = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (0, "barrier")}
    result = lessons.check("08.14", right | {letter: (right[letter][0], what)})
    assert f"{what!r} is no collective of these timelines; write it as they do, such as 'all_reduce layer 3'." in result.message


def test_another_collective_is_told_as_such_however_it_is_written():
    """The collective of layer 1 is in the timelines, and is not the one."""
    result = lessons.check("08.14", {"A": (2, "all-reduce layer 1"), "B": (3, "slow"), "C": (0, "barrier")})
    assert "not 'all-reduce layer 1'. That is where it waits" in result.message


@pytest.mark.parametrize("word", ["register", "regs", "shared memory", "barriers", ""])
def test_a_word_that_is_no_limiter_is_told_which_there_are(word: str):
    """A right block size with an unknown word is not told that registers do not limit it."""
    result = lessons.check("01.6", (128, word))
    assert result.state == "wrong"
    assert result.message == f"{word!r} is no limiter; the check expects one of warps, registers, shared, blocks."
