"""Answers as the progress file keeps them: exact values back, functions that stand alone, a reason where nothing is kept."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import linecache
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import lessons
from gpulab.lessons import _answers, _store, content

_PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(max_size=8) | st.binary(max_size=8)
    | st.just(...)
)  # fmt: skip
_KEYS = st.integers() | st.text(max_size=4) | st.tuples(st.integers(), st.booleans())
_VALUES = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=3) | st.sets(_KEYS, max_size=3)
    ),
    max_leaves=8,
)


def through_a_file(answer: Any, **named: Any) -> Any:
    """The answer after a trip through JSON text."""
    return _answers.restore(json.loads(json.dumps(_answers.keep(answer, **named), allow_nan=False)), "00.0")


def same(a: Any, b: Any) -> bool:
    """Equal with equal types all the way down; nan equals nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)
    return bool(a == b)


@given(_VALUES)
def test_a_value_comes_back_exactly(value: Any) -> None:
    """Every literal comes back with its type: a tuple is no list, True is not 1, -0.0 keeps its sign."""
    if not _has_surrogate(value):
        assert same(through_a_file(value), value)


def _has_surrogate(value: Any) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in repr(value)) or "\\ud" in repr(value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", ">i4"])
def test_arrays_and_their_scalars_come_back(dtype: str) -> None:
    """Shape, dtype and byte order of a small array, and a NumPy number's own type."""
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    back = through_a_file(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    assert type(through_a_file(array[1, 1])) is type(array[1, 1])
    assert through_a_file(np.array(2.5)).shape == ()
    assert math.isnan(through_a_file(np.array([np.nan, np.inf]))[0])


def defined(source: str, name: str = "answer") -> Any:
    """What a cell of that source defines, found by inspect as a notebook's is."""
    file = f"<cell {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), names)
    return names[name]


@pytest.mark.parametrize(
    ("source", "argument", "value"),
    [
        ("import math\n\ndef helper(x):\n    return math.floor(x)\n\nK = 3\ndef answer(x):\n    return helper(x) + K", 2.5, 5),
        ("def make(k):\n    def inner(x):\n        return x * k\n    return inner\nanswer = make(7)", 3, 21),
        ("answer = lambda x: x + 1", 1, 2),
        ("twice = lambda x: 2 * x\ndef answer(x):\n    return twice(x) + 1", 4, 9),
        ("import numpy as np\nTABLE = np.array([1.5, 2.5], dtype=np.float32)\ndef answer(i):\n    return float(TABLE[i])", 1, 2.5),
        ("def answer(n):\n    return 1 if n < 2 else n * answer(n - 1)", 5, 120),
        ("class Box:\n    def __init__(self, v):\n        self.v = v\ndef answer(x):\n    return Box(x).v", 6, 6),
        ("from math import sqrt as root\nSCALE = float('inf')\ndef answer(x, most=SCALE):\n    return min(root(x), most)", 9.0, 3.0),
        ("def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\nanswer = even", 10, True),
    ],
)
def test_a_function_comes_back_with_what_it_needs(source: str, argument: Any, value: Any) -> None:
    """Helpers, imports, values, closures, lambdas, recursion, classes and defaults travel along."""
    assert through_a_file(defined(source))(argument) == value


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\n\ndef answer(x: np.ndarray) -> np.ndarray:\n    return x + 1",
        "Kind = int\ndef one(y: Kind = 1) -> Kind:\n    return y\ndef answer(x: Kind):\n    z: Kind = one()\n    return x + z",
    ],
)
def test_an_annotation_is_no_reason_to_fail(source: str) -> None:
    """What only annotations name is not kept and not looked up: the function works as in the notebook."""
    assert through_a_file(defined(source))(2) == 3


def test_a_wrapped_kernel_is_kept_as_its_own_source() -> None:
    """A kernel under a compiler's decorator is kept; its names come from gpulab, so that it works without Numba too."""
    source = (
        "from gpulab.kernels import cuda\n\ndef wrapped(f):\n    class Kernel:\n        py_func = staticmethod(f)\n    return Kernel()\n"
    )
    source += "\ndef kernel(x):\n    x[cuda.grid(1)] = 1\n\nanswer = wrapped(kernel)"
    kept = _answers.keep(defined(source))
    assert kept["kind"] == "code"
    assert "from gpulab.kernels import cuda" in kept["source"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (object(), "an object cannot be written down"),
        ([0] * 30_000, "30,000 parts"),
        ("x" * 100_000, "100,000 characters"),
        (np.zeros(30_000), "30,000 numbers"),
        (np.array([object()]), "array of object"),
        (functools.partial(print, 1), "partial"),
        (len, "builtin_function_or_method"),
        ([10**20_000], "4,000 digits"),
        (defined("import threading\nlock = threading.Lock()\ndef answer():\n    return lock"), "needs the name lock"),
    ],
    ids=range(9),
)
def test_what_cannot_be_kept_says_why(answer: Any, says: str) -> None:
    """Nothing is kept, and the reason names what is in the way."""
    kept = _answers.keep(answer)
    assert kept["kind"] == "nothing"
    assert says in kept["reason"]
    with pytest.raises(_answers.NotKeptError, match="not kept"):
        _answers.restore(kept, "00.0")


def nested(depth: int) -> Any:
    """So many lists, one in the other."""
    made: list[Any] = []
    for _ in range(depth - 1):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("most", "too_much"),
    [([0] * 19_999, [0] * 20_000), (nested(21), nested(22)), (2**11_999, 2**12_000), (np.complex128(1), np.clongdouble(1)),
     (np.float64(1), np.longdouble(1))],
    ids=["parts", "depth", "digits", "complex", "float"],
)  # fmt: skip
def test_so_much_is_kept_and_no_more(most: Any, too_much: Any) -> None:
    """The most that comes back, and the least that does not: 20,000 parts, 21 lists in one another, 12,000 bits, 8 bytes a number."""
    assert same(through_a_file(most), most)
    assert _answers.keep(too_much)["kind"] == "nothing"


def test_64_kib_of_json_are_kept_and_no_more() -> None:
    """Of a text without anything to escape: 30 characters of {"kind": "value", "value": ""} and its own."""
    assert through_a_file("x" * (2**16 - 30)) == "x" * 65_506
    kept = _answers.keep("x" * (2**16 - 29))
    assert kept == {"kind": "nothing", "reason": "it takes 65,537 characters, and at most 65,536 are kept"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("x" * 65_536, "it takes 65,566 characters"), ("x" * 65_537, "it holds a text of 65,537 characters"),
        (b"x" * 65_536, "it takes 87,4"), (b"x" * 65_537, "a bytes cannot be written down"),
        ([0] * 20_000, "it has too many parts"), ([0] * 20_001, "it has 20,001 parts"),
        (np.zeros(20_000), "it has too many parts"), (np.zeros(20_001), "it holds an array of 20,001 numbers"),
    ],
    ids=["a text", "a longer one", "bytes", "more bytes", "parts", "more parts", "numbers", "more numbers"],
)  # fmt: skip
def test_what_is_too_large_is_told_before_it_is_written_down(answer: Any, reason: str) -> None:
    """64 KiB of a text or of bytes and 20,000 parts are looked at, and are too many with what stands around them."""
    assert _answers.keep(answer)["reason"].startswith(reason)


def test_a_measurement_of_the_most_characters_keeps_all_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one character more, some, and that is kept too."""
    m = dataclasses.replace(_measured(), samples_seconds=np.linspace(1e-3, 3e-3, 99))
    kept = _answers.keep(m)
    size = len(json.dumps(kept))
    assert "thinned" not in kept
    monkeypatch.setattr(_answers, "MOST_CHARACTERS", size)
    assert _answers.keep(m) == kept
    monkeypatch.setattr(_answers, "MOST_CHARACTERS", size - 1)
    less = _answers.keep(m)
    assert less["thinned"] is True
    assert len(_answers.restore(less, "00.0").samples_seconds) == 32


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [
        ("twice = lambda x: 2 * x\nanswer = twice", "twice", "twice = (lambda x: 2 * x)\n"),
        ("other = answer = lambda x: 2 * x", "answer", "answer = (lambda x: 2 * x)\n"),
        ("answer, other = (lambda x: 2 * x), 5", "answer", "answer = (lambda x: 2 * x)\n"),
        ("K = 2\nanswer = dict(a=lambda x: K * x)['a']", "answer", "answer = (lambda x: K * x)\n"),
        (
            "twice = lambda x: 2 * x\nagain = twice\ndef answer(x):\n    return again(x)", "answer",
            "twice = (lambda x: 2 * x)\nagain = twice\n\n\ndef answer(x):\n    return again(x)\n",
        ),
        (
            "twice = lambda x: 2 * x\ndef answer(x):\n    return twice(x)", "answer",
            "twice = (lambda x: 2 * x)\n\n\ndef answer(x):\n    return twice(x)\n",
        ),
    ],
)  # fmt: skip
def test_a_lambda_is_kept_under_the_one_name_that_it_was_given(source: str, name: str, text: str) -> None:
    """Of several, and of none, it is called answer; a second name is given after the first."""
    kept = _answers.keep(defined(source))
    assert (kept["kind"], kept["name"], kept["source"]) == ("code", name, text)
    assert _answers.restore(kept, "00.0")(3) == 6


def test_a_name_of_gpulabs_may_be_the_learners_own() -> None:
    """What stands for something else is no import from gpulab."""
    answer = defined("def float32(x):\n    return x + 1\ndef answer(x):\n    return float32(x)")
    assert through_a_file(answer)(1) == 2


def test_two_lambdas_in_one_line_are_not_told_apart() -> None:
    """And the learner is told what is."""
    answer = defined("answer, other = (lambda x: 2 * x), (lambda x: 3 * x)")
    assert _answers.keep(answer) == {"kind": "nothing", "reason": "its line holds several lambdas; def is told apart"}


def test_a_function_that_changes_a_variable_around_it_is_not_kept() -> None:
    """Its source alone is no Python."""
    source = "def made():\n    n = 0\n    def answer():\n        nonlocal n\n        n += 1\n        return n\n    return answer\n"
    answer = defined(f"{source}answer = made()")
    assert _answers.keep(answer) == {"kind": "nothing", "reason": "its source does not stand alone (no binding for nonlocal 'n' found)"}


def test_the_text_of_an_answer_that_came_back_can_be_read() -> None:
    """A kernel's is looked up where its code says it lies."""
    back = through_a_file(defined("def answer(x):\n    return x + 1"))
    assert inspect.getsource(back) == "def answer(x):\n    return x + 1\n"


def test_an_array_of_nothing_comes_back() -> None:
    """With its shape; and as many numbers are read as there may be parts."""
    assert through_a_file(np.zeros((0, 3))).shape == (0, 3)
    kept = {"kind": "value", "value": {"t": "array", "dtype": "<f8", "shape": [20_000], "v": [0] * 20_000}}
    assert _answers.restore(kept, "00.0").shape == (20_000,)


def test_of_a_file_its_text_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes back as a file of the working directory; one that is missing or large is not kept, and it is code, which may not run."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    kept = _answers.keep(str(file), is_file=True)
    assert kept == {"kind": "file", "text": "x = 1\n"}
    back = _answers.restore(kept, "00.0")
    assert (back.parent, back.read_text()) == (tmp_path, "x = 1\n")
    with pytest.raises(_answers.NotKeptError, match="not run"):
        _answers.restore(kept, "00.0", run_code=False)
    file.write_text("x" * (64 * 1024))
    assert _answers.keep(file, is_file=True)["reason"].startswith("it takes 65,5")
    file.write_text("x" * (64 * 1024 + 1))
    for wrong in (file, tmp_path / "none.py"):
        assert _answers.keep(wrong, is_file=True) == {"kind": "nothing", "reason": "it names no file, or a large one"}
    assert _answers.keep(5, is_file=True) == {"kind": "value", "value": 5}


class _Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    __class__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


def test_keeping_never_raises() -> None:
    """A list that holds itself, an object whose attributes raise, a generator."""
    loop: list[Any] = []
    loop.append(loop)
    for answer in (loop, _Hostile(), (i for i in ()), [[_Hostile()]], {"a": _Hostile()}):
        assert _answers.keep(answer)["kind"] == "nothing"


def _measured() -> Any:
    """A measurement of 2 ms on a clock of its own."""
    from gpulab.timing import measure

    now = [0.0]

    def work() -> None:
        now[0] += 2e-3

    return measure(work, device="cpu", clock=lambda: now[0], deadline=0.5)


def test_a_large_measurement_keeps_some_of_its_samples() -> None:
    """Median and interval are those of all samples; so many samples would fill the file."""
    m = _measured()
    big = dataclasses.replace(m, samples_seconds=np.linspace(1e-3, 3e-3, 9999) * 1.0000001)
    back = through_a_file(big)
    assert len(back.samples_seconds) == 32
    assert (back.median_seconds, back.interval_seconds) == (big.median_seconds, big.interval_seconds)
    assert through_a_file(m) == m


_DAMAGED = (
    5, None, [], {}, {"kind": "value"}, {"kind": "value", "value": {"t": "sorcery", "v": 1}}, {"kind": "value", "value": {"t": "tuple"}},
    {"kind": "value", "value": {"t": "array", "dtype": "O", "shape": [1], "v": [1]}},
    {"kind": "value", "value": {"t": "array", "dtype": "f8", "shape": [-5], "v": [1]}},
    {"kind": "value", "value": {"t": "result", "module": "os", "class": "system", "v": {}}},
    {"kind": "value", "value": {"t": "result", "module": "gpulab.cli", "class": "main", "v": {}}},
    {"kind": "value", "value": {"t": "set", "v": [{"t": "list", "v": []}]}},
    {"kind": "code", "name": 5, "source": "", "values": {}}, {"kind": "code", "name": "x", "source": "y = 1", "values": {}},
)  # fmt: skip


def _listed(depth: int) -> Any:
    """As a file has so many lists in one another."""
    kept: dict[str, Any] = {"t": "list", "v": []}
    for _ in range(depth - 1):
        kept = {"t": "list", "v": [kept]}
    return kept


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (_listed(22), "an unknown kind of value"),
        ({"t": "array", "dtype": "<f8", "shape": [20_001], "v": [0] * 20_001}, "an array of float64"),
        ({"t": "array", "dtype": "<f8", "shape": [True], "v": [0]}, "an array of float64"),
        ({"t": "array", "dtype": "<f8", "shape": [-1], "v": [0]}, "an array of float64"),
        ({"t": "bytes", "v": "?AAAA?"}, "the file is damaged here"),
        ({"t": "float", "v": "-nan"}, "the file is damaged here"),
    ],
    ids=["depth", "numbers", "a side of True", "a side of -1", "no base64", "no number"],
)
def test_no_more_is_read_than_is_ever_kept(value: Any, says: str) -> None:
    """Nothing that gpulab wrote is so deep or so large, or says so; the most that is kept is read."""
    with pytest.raises(_answers.NotKeptError, match=says):
        _answers.restore({"kind": "value", "value": value}, "00.0")
    assert _answers.restore({"kind": "value", "value": _listed(21)}, "00.0") == nested(21)


def test_what_is_no_json_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare nan would make the progress file one that other programs cannot read, also in a measurement whose samples were thinned."""
    reason = "it could not be read (ValueError)"
    monkeypatch.setattr(_answers, "_keep", lambda answer: {"kind": "value", "value": math.nan})
    assert _answers.keep(1) == {"kind": "nothing", "reason": reason}
    kept = iter([{"kind": "value", "value": "x" * 70_000}, {"kind": "value", "value": math.nan}])
    monkeypatch.setattr(_answers, "_keep", lambda answer: next(kept))
    assert _answers.keep(_measured())["reason"] == reason


@pytest.mark.parametrize("kept", _DAMAGED, ids=range(len(_DAMAGED)))
def test_a_damaged_answer_is_refused_by_one_error(kept: Any) -> None:
    """Whatever stands in a file, there is one kind of error, and no object outside gpulab's results is ever made."""
    if kept == {"kind": "value"}:
        assert _answers.restore(kept, "00.0") is None
        return
    with pytest.raises(_answers.NotKeptError):
        _answers.restore(kept, "00.0")


def test_code_does_not_run_unless_it_may(tmp_path: pathlib.Path) -> None:
    """Without leave, a function's source and a file stay text."""
    trace = tmp_path / "ran"
    kept = {"kind": "code", "name": "x", "source": f"open({str(trace)!r}, 'w')\nx = 1", "values": {}}
    with pytest.raises(_answers.NotKeptError, match="not run"):
        _answers.restore(kept, "00.0", run_code=False)
    assert not trace.exists()


def test_a_check_keeps_the_answer_that_passed(capsys: pytest.CaptureFixture[str]) -> None:
    """The last wrong answer is kept until one passes; that one stays, whatever is tried later."""
    for answer in (_RIGHT_ORDER, _RIGHT_ORDER[:-2]):
        lessons.check("07.5", answer)
        assert _answers.restore(_store.read()["exercises"]["07.5"]["kept"], "07.5") == _RIGHT_ORDER
    lessons.check("08.8", {"microbatches": 4, "schedule": "1f1b"})
    entry = _store.read()["exercises"]["08.8"]
    assert (entry["state"], _answers.restore(entry["kept"], "08.8")) == ("wrong", {"microbatches": 4, "schedule": "1f1b"})
    assert capsys.readouterr().out


_RIGHT_ORDER = ["train", "prune channels", "fine-tune", "prune weights", "fine-tune", "quantise"]


def test_which_checks_depend_on_the_machine() -> None:
    """Read off the checks by hand: what compares with times or roofs of the learner's own machine, and what no file can hold."""
    exercises = [e for lesson in content.lessons() for e in lesson.exercises.values()]
    assert {e.id for e in exercises if e.depends_on_machine} == {"00.7", "01.9", "03.3", "03.6", "07.13", "09.11"}
    assert {e.id for e in exercises if e.unkept} == {"02.9", "07.13", "09.11"}
    for e in exercises:
        assert not e.depends_on_machine or bool(e.seen) != bool(e.unkept), e.id
