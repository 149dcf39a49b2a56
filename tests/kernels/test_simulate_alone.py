"""Loops whose lanes run alone: results, counts, findings and errors are those of lockstep, and it is known that they did run alone."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_kernels import Writer, function_of, kernel_texts

from gpulab.errors import KernelError
from gpulab.kernels import cuda, float32, float64, int32, int64, simulate
from gpulab.kernels._simulate import _alone
from gpulab.kernels._simulate._alone import Alone
from gpulab.kernels._simulate._alone_values import Refused

_EXAMPLES = max(60, settings.default.max_examples if settings.default else 0)


class Watched:
    """Counts the goes of loops alone that came to an end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes, self._patch = 0, monkeypatch
        inner = Alone._turns

        def turns(loop: Alone, *args: Any) -> Any:
            found = inner(loop, *args)
            self.goes += found is not None
            return found

        monkeypatch.setattr(Alone, "_turns", turns)

    def both(self, kernel: Any, grid: Any, block: Any, make: Callable[[], tuple], **options: Any) -> Any:
        """Simulate with lanes alone and in lockstep; everything must be the same, of floats the bits."""
        first = make()
        found = simulate(kernel, grid, block, *first, **options)
        with self._patch.context() as patch:
            patch.setattr(Alone, "run", lambda loop, frame, mask, items=None: (mask, 0))
            second = make()
            expected = simulate(kernel, grid, block, *second, **options)
        for a, b in zip(first, second, strict=True):
            assert not isinstance(a, np.ndarray) or a.tobytes() == b.tobytes()
        assert found.lines == expected.lines
        assert found.accesses == expected.accesses
        assert found.findings == expected.findings
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return what compares the two ways, and counts."""
    return Watched(monkeypatch)


def collatz(first, out):
    i = cuda.grid(1)
    n = first + i
    steps = 0
    while n != 1 and steps < 200:
        if n % 2 == 0:  # noqa: SIM108 - a branch is what is counted
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    out[i] = steps


def swapped(out, turns):
    i = cuda.grid(1)
    here, there = complex(1.0, 2.0), complex(float(i), 3.0)
    total, k = 0.0, 0
    while k < turns:
        total += here.real + 100 * here.imag
        here, there = there, here
        k += 1
    out[i] = total


def test_the_parts_of_a_complex_number_change_with_it(watched: Watched) -> None:
    """Two numbers that change places in each of 40 turns: the sum of the parts of both, 20 times."""

    def make() -> tuple:
        return np.zeros(32), 40

    watched.both(swapped, 1, 32, make)
    out, turns = make()
    simulate(swapped, 1, 32, out, turns)
    np.testing.assert_array_equal(out, 20 * (1 + np.arange(32) + 100 * (2 + 3)))


def insertion_sort(rows):
    i = cuda.grid(1)
    local = cuda.local.array(12, int32)
    for k in range(12):
        local[k] = rows[i, k]
    for k in range(1, 12):
        value = local[k]
        j = k - 1
        while j >= 0 and local[j] > value:
            local[j + 1] = local[j]
            j -= 1
        local[j + 1] = value
    for k in range(12):
        rows[i, k] = local[k]


def first_divisor(numbers, out):
    i = cuda.grid(1)
    n = numbers[i]
    d = 2
    found = 0
    while d * d <= n:
        if d == 7:
            d += 2
            continue
        if n % d == 0:
            found = d
            break
        d += 1
    out[i] = found


def walk(following, weights, out):
    i = cuda.grid(1)
    at = i
    steps = 0
    total = 0.0
    while at != 0 and steps < 5000:
        at = following[at]
        total += weights[at, 1] if steps % 3 == 0 and weights[at, 0] > 0.5 else 0.25
        steps += 1
    out[i] = total


def rows_of_different_lengths(starts, columns, values, x, out):
    row = cuda.grid(1)
    total = float64(0.0)
    for k in range(starts[row], starts[row + 1]):
        for m in range(k % 3, 5):
            if m == columns[k] % 4:
                break
            total += values[k] * x[columns[k]] + m
        if total > 1000.0:
            continue
        total -= 1.0
    out[row] = total


def backwards(reach, out):
    i = cuda.grid(1)
    at = i
    steps = 0
    while 0 <= at < reach[at] and steps < 100:
        at -= 1 + steps % 2
        steps += 1
    out[i] = steps


def _ring(n: int) -> np.ndarray:
    found, order = np.zeros(n, np.int64), np.random.default_rng(1).permutation(np.arange(1, n))
    found[order] = np.roll(order, -1)
    return found


def _integers(below: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(2).integers(0, below, shape).astype(dtype)


def _sparse() -> tuple:
    lengths = _integers(40, 32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rng = np.random.default_rng(5)
    return starts, rng.integers(0, 32, starts[-1]), rng.random(starts[-1]), rng.random(32), np.zeros(32)


CASES: dict[str, tuple] = {
    "collatz": (collatz, 1, 32, lambda: (1, np.zeros(32, np.int64))),
    "collatz of 27 threads in 2 blocks": (collatz, 2, 27, lambda: (5, np.zeros(54, np.int64))),
    "the last lanes of many": (collatz, 4, 128, lambda: (1, np.zeros(512, np.int64))),
    "insertion sort": (insertion_sort, 1, 32, lambda: (_integers(99, 32, 12, dtype="int32"),)),
    "first divisor": (first_divisor, 1, 64, lambda: (2 * _integers(4000, 64) + 10_001, np.zeros(64, np.int64))),
    "walk": (walk, 1, 40, lambda: (_ring(64), np.random.default_rng(3).random((64, 2)), np.zeros(40))),
    "a chain of comparisons": (backwards, 1, 40, lambda: (np.full(40, 64), np.zeros(40, np.int64))),
    "sparse rows": (rows_of_different_lengths, 1, 32, _sparse),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_alone_is_the_loop_in_lockstep(name: str, watched: Watched) -> None:
    """Results, counts of each line and each access; ``walk`` takes more turns than one go has."""
    watched.both(*CASES[name])
    assert watched.goes > (2 if name == "walk" else 0)


def squares(x, out):
    i = cuda.grid(1)
    n = x[i]
    k = 0
    while k < 12:
        n = n * n + k
        k += 1
    out[i] = n


def beyond(x, out):
    i = cuda.grid(1)
    k = 0
    total = 0
    while k < 10:
        total += x[i + k]  # beyond
        k += 1
    out[i] = total


def by_zero(x, out):
    i = cuda.grid(1)
    k = 8
    total = 0
    while k > -8:
        total += x[i] // k
        k -= 1
    out[i] = total


def single_precision(x, out):
    i = cuda.grid(1)
    t = float32(0.1)
    for _ in range(9):
        t = t * x[i] + t
    out[i] = t


def sum_of_shared(x, out):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if t == 0:
        total = 0
        for k in range(32):
            total += s[k]
        out[0] = total


@pytest.mark.parametrize("kernel", [squares, beyond, by_zero, single_precision, sum_of_shared])
def test_what_lanes_cannot_do_alone_is_done_in_lockstep(kernel: Any, watched: Watched) -> None:
    """Integers that leave 64 bits, an index out of bounds, a division by zero, float32, and memory that others write."""
    dtype = np.float32 if kernel is single_precision else np.int64
    watched.both(kernel, 1, 32, lambda: (_integers(99, 32).astype(dtype), np.zeros(32, dtype)))
    assert watched.goes == 0


def endless(x, out):
    i = cuda.grid(1)
    k = 1
    while k > 0:
        k = x[k % 8] + 1
        if k == 5:
            k += 1
    out[i] = k


@pytest.mark.parametrize("max_steps", [17, 5_000, 20_003])
def test_an_endless_loop_ends_at_the_line_at_which_lockstep_ends_it(max_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of statements is exact, however many lanes ran alone before."""
    errors = []
    for lanes in (_alone.MOST_LANES, -1):
        monkeypatch.setattr(_alone, "MOST_LANES", lanes)
        with pytest.raises(KernelError) as caught:
            simulate(endless, 1, 32, np.arange(8), np.zeros(32, np.int64), max_steps=max_steps)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def counted(out):
    i = cuda.grid(1)
    k = 0
    while k < 600:
        k += 1
    out[i] = k


def test_what_several_warps_do_together_is_one_statement(watched: Watched) -> None:
    """By hand: three statements, 601 tests and 600 additions, of three warps at once. One fewer is not enough."""
    out = np.zeros(70, np.int64)
    simulate(counted, 1, 70, out, max_steps=3 + 601 + 600)
    assert watched.goes
    assert set(out) == {600}
    with pytest.raises(KernelError):
        simulate(counted, 1, 70, out, max_steps=3 + 601 + 600 - 1)


def test_a_loop_alone_can_be_stopped() -> None:
    """``stop`` is asked between two goes."""

    class Enough(Exception):
        pass

    asked = []

    def stop() -> None:
        asked.append(1)
        if len(asked) > 3:
            raise Enough

    with pytest.raises(Enough):
        simulate(endless, 1, 32, np.arange(8), np.zeros(32, np.int64), stop=stop, max_steps=10**9)


class LoopWriter(Writer):
    """Writes kernels whose loops nearly always can run alone."""

    def integer(self, depth: int) -> tuple[str, int]:
        """Return an expression without calls of device functions."""
        if depth <= 0:
            return self.pick(self._constant, self._variable, self._place, self._load)()
        made, bound = self.pick(
            self._variable, self._sum, self._product, self._quotient, self._bits, self._extreme, self._choice, self._unary, self._guarded,
            self._constant,
        )(depth - 1)  # fmt: skip
        return (f"({made} % 1021)", 1021) if bound > 1 << 50 else (made, bound)

    def _load(self, depth: int = 0) -> tuple[str, int]:
        return self.pick("x[i]", "x[(i + 7) % x.size]", "x[abs(a) % x.size]", "own[a & 3]", "narrow[b & 1, 1]"), 1 << 20

    def floating(self, depth: int) -> str:
        """Return a float of operations that Python and NumPy round alike."""
        if depth <= 0:
            return self.pick("f", "g", "0.5", "1.25")
        a, b = self.floating(depth - 1), self.floating(depth - 1)
        more = f"({a} + {self.small(0)})"
        return self.pick(f"({a} + {b})", f"({a} * {b})", f"({a} / (abs({b}) + 1.0))", f"(-{a})", f"min({a}, {b})", more)

    def _store(self, indent: int) -> None:
        self.line(indent, f"narrow[{self.integer(0)[0]} & 1, 0] {self.pick('=', '+=')} {self.small(1)} % 99")

    _store_float = _store

    def _leave(self, indent: int, depth: int, in_loop: bool) -> None:
        self.line(indent, f"if {self.pick(self.varying(), self.condition(1))}:")
        self.line(indent + 1, self.pick("continue", "break"))

    def _return_if(self, indent: int, depth: int, in_loop: bool) -> None:
        self._float(indent)


@st.composite
def texts_of_loops(draw: Any) -> str:
    """Return the text of a kernel of loops within loops."""
    writer = LoopWriter(draw, (), True, 16)
    for indent, line in (
        (0, "import math\nfrom gpulab.kernels import cuda, int16, int64\n\n\ndef kernel(x, out, real):"), (1, "i = cuda.grid(1)"),
        (1, "own = cuda.local.array(4, int64)"), (1, "narrow = cuda.local.array((2, 2), int16)"), (1, "for k in range(4):"),
        (2, "own[k] = k - i"), (2, "narrow[k // 2, k % 2] = k + 3"), (1, "a, b = int64(x[i]), i"), (1, "c, d = 3, cuda.threadIdx.x"),
        (1, "f, g = 0.5 * b, -1.25"), (1, "k = 0"), (1, "turn = 0"), (1, "while turn < 6 + i % 3:"), (2, "turn += 1"),
    ):  # fmt: skip
        writer.line(indent, line)
    for _ in range(draw(st.integers(2, 5))):
        writer.statement(2, 3, True)
    writer.line(1, "out[i, 0] = a + 3 * b + 5 * c + 7 * d")
    writer.line(1, "out[i, 1] = own[0] + own[1] + own[2] + own[3] + k")
    writer.line(1, "out[i, 2] = narrow[0, 0] + narrow[1, 0]")
    writer.line(1, "real[i] = f + g")
    return "\n".join(writer.lines) + "\n"


def _compare(text: str, grid: int, block: int, seed: int, dtype: str) -> int:
    kernel, n = function_of(text), grid * block

    def make() -> tuple:
        x = np.random.default_rng(seed).integers(-100, 100, n).astype(dtype)
        return x, np.zeros((n, 4), np.int64), np.zeros(n)

    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        watched.both(kernel, grid, block, make)
        return watched.goes


def left_by_some_lanes(x, out):
    i = cuda.grid(1)
    d = cuda.threadIdx.x
    if x[i] % 2 == 1:
        for d in range(3):
            w = x[i] + d
            while w > 0:
                w -= 1
    out[i] = d


def test_a_variable_alike_in_all_blocks_is_kept_by_the_lanes_of_each(watched: Watched) -> None:
    """``d`` is one row for all blocks until the loop; then the lanes in it have its last value, and the others their thread."""
    x = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 16, 18])
    watched.both(left_by_some_lanes, 2, 7, lambda: (x.copy(), np.zeros(14, np.int64)))
    assert watched.goes
    out = np.zeros(14, np.int64)
    simulate(left_by_some_lanes, 2, 7, x, out)
    np.testing.assert_array_equal(out, np.where(x % 2 == 1, 2, np.arange(14) % 7))


_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_RAN: list[bool] = []


@settings(max_examples=_EXAMPLES, suppress_health_check=_QUIET)
@given(text=texts_of_loops(), grid=st.integers(1, 2), block=st.sampled_from([1, 7, 33, 70]), seed=st.integers(0, 2**16),
       dtype=st.sampled_from(["int64", "int32"]))  # fmt: skip
def test_random_loops_alone_are_those_in_lockstep(text: str, grid: int, block: int, seed: int, dtype: str) -> None:
    """Loops within loops, left early or not, with loads of memory and arrays of each thread's own."""
    _RAN.append(_compare(text, grid, block, seed, dtype) > 0)


def test_random_loops_did_run_alone() -> None:
    """Most of them, so that the test above compares two things."""
    assert not _RAN or sum(_RAN) > len(_RAN) / 3


@settings(max_examples=_EXAMPLES // 3, suppress_health_check=_QUIET)
@given(text=kernel_texts(), grid=st.integers(1, 2), block=st.sampled_from([7, 33]), seed=st.integers(0, 2**16))
def test_random_kernels_are_the_same_with_lanes_alone(text: str, grid: int, block: int, seed: int) -> None:
    """Whatever a kernel does beside."""
    _compare(text, grid, block, seed, "int64")


def extremes(x, out):
    i = cuda.grid(1)
    least = 0.0
    most = -0.0
    k = 0
    while k < 20 + i % 3:
        least = min(least, x[i, k])
        most = max(x[i, k], most) if k % 2 == 0 else max(most, x[i, k])
        k += 1
    out[i, 0] = least
    out[i, 1] = most
    out[i, 2] = 1.0 / most


def test_the_smaller_and_the_larger_drop_a_nan_as_in_lockstep(watched: Watched) -> None:
    """CUDA's fmin and fmax: the other one where one is nan, and -0.0 below 0.0."""
    x = np.random.default_rng(5).choice([np.nan, 0.0, -0.0, -2.0, 1.5], (32, 24), p=[0.5, 0.2, 0.2, 0.05, 0.05])
    x[0], x[1] = -0.0, np.nan
    out = np.zeros((32, 3))
    watched.both(extremes, 1, 32, lambda: (x.copy(), out))
    assert watched.goes > 0
    assert np.array_equal(out[:, 1] > 0, [bool(np.nanmax(row[: 20 + i % 3], initial=0) > 0) for i, row in enumerate(x)])
    assert not np.isnan(out).any()
    assert np.signbit(out[:2, 1]).all()  # of negative zeros and nan alone


def _loop_of(text: str) -> Alone:
    node = ast.parse(text).body[0]
    assert isinstance(node, (ast.While, ast.For))
    return Alone(node, set(), {})


def test_a_loop_that_fails_four_times_in_a_row_is_left_to_lockstep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A go that comes to its end begins the count anew; under a trace no lane runs alone."""
    failed, done = Refused(), [False, False]
    answers = iter([failed, failed, failed, done, failed, failed, failed, failed])
    asked: list[Any] = []

    def turns(loop: Alone, frame: Any, mask: Any, *rest: Any) -> Any:
        asked.append(rest)
        answer = next(answers)
        if isinstance(answer, Refused):
            raise answer
        return answer

    monkeypatch.setattr(Alone, "_turns", turns)
    launch = SimpleNamespace(left_to_lockstep={}, traced_block=None)
    frame: Any = SimpleNamespace(machine=SimpleNamespace(launch=launch))
    loop, mask = _loop_of("while x: pass"), SimpleNamespace(lanes=2)
    found = [loop.run(frame, mask) for _ in range(9)]  # type: ignore[arg-type]
    assert [mask is left for left, _ in found] == [True] * 3 + [False] + [True] * 5
    assert len(asked) == 8
    launch.left_to_lockstep, launch.traced_block = {}, 0
    assert loop.run(frame, mask) == (mask, 0)  # type: ignore[arg-type]
    assert len(asked) == 8


def test_items_are_taken_in_goes_of_2048(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane its own, as long as it has some; one that ended has no more."""
    asked: list[Any] = []
    answers = iter([[True, False], [False], [True, True], None])

    def turns(loop: Alone, frame: Any, mask: Any, some: Any, items: Any, done: int) -> Any:
        asked.append((mask.flat.tolist(), some, done))
        return next(answers)

    monkeypatch.setattr(Alone, "_turns", turns)
    frame: Any = SimpleNamespace(machine=SimpleNamespace(launch=SimpleNamespace(left_to_lockstep={}, traced_block=None)))
    batch = SimpleNamespace(blocks=1, width=4)
    mask: Any = SimpleNamespace(batch=batch, flat=np.array([1, 3]), lanes=2)
    loop = _loop_of("for i in x: pass")
    assert loop.run(frame, mask, [range(3000), range(10)]) == (None, 4096)
    assert asked == [([1, 3], [range(2048), range(10)], 0), ([1], [range(2048, 3000)], 2048)]
    asked.clear()
    assert loop.run(frame, mask, range(5000)) == (mask, 2048)  # statements without end: what is left is lockstep's
    assert asked == [([1, 3], [range(2048)] * 2, 0), ([1, 3], [range(2048, 4096)] * 2, 2048)]


def test_which_lanes_may_run_alone() -> None:
    """At most 96, of one block, or of some lanes of several that differ; after a short loop not at once."""

    def mask(lanes: int, blocks: int = 1, rows: int | None = None) -> Any:
        return SimpleNamespace(lanes=lanes, batch=SimpleNamespace(blocks=blocks), array=None if rows is None else np.ones((rows, 1)))

    some, live = mask(9, 2, 2), mask(9, 2, 2)
    frame: Any = SimpleNamespace(live=live)
    loop = _loop_of("while x: pass")
    for one, suits in ((mask(96), True), (mask(97), False), (some, True), (live, False), (mask(9, 2), False), (mask(9, 2, 1), False)):
        assert loop.begins().suits(frame, one) is suits
    loop._wait = 2
    loop.begins()
    assert [loop.suits(frame, some) for _ in range(4)] == [False, False, True, True]
    assert loop.begins().suits(frame, some) is False
    nested = _loop_of("while x:\n    for i in x: pass")
    assert (loop.turns_before > 0, nested.turns_before) == (True, 0)  # a loop within is worth the change at once


def test_the_largest_integer_of_what_nobody_writes_is_looked_for_once() -> None:
    """The least of the bounds that holds it on either side; of what is written, of floats, of shared memory and of none, no bound."""

    def view(data: list[Any], space: str = "global", tracker: Any = None, dtype: str = "int64") -> Any:
        array = np.array(data, dtype=dtype)
        return SimpleNamespace(store=SimpleNamespace(space=space, tracker=tracker, dtype=array.dtype, elements=array.size, data=array))

    low, middle, high, none = 2**20, 2**31, 2**60, 2**63
    for data, bound in (([5, -7], low), ([low], low), ([low + 1, 0], middle), ([-low - 1, 0], middle), ([-high], high), ([high + 1], none)):
        assert _alone._largest({}, view(data)) == bound
    for one in (view([]), view([1], "shared"), view([1], tracker=1), view([1.0], dtype="float64"), view([1], dtype="int32")):
        assert _alone._largest({}, one) == none
    known: dict[int, int] = {}
    once = view([5])
    for _ in range(2):
        assert _alone._largest(known, once) == low
        once.store.data[0] = high


def counter_after_its_loop(out, turns):
    i = cuda.grid(1)
    for k in range(turns[i]):
        if k * k > 900:
            break
    out[i] = k


def counters_after_two_loops(out, turns):
    i = cuda.grid(1)
    for k in range(turns[i]):
        for j in range(k):
            last = j
    out[i] = k + 100 * j + 10_000 * last


def set_in_some_turns(out, turns):
    i = cuda.grid(1)
    if i % 3 == 0:
        seen = -1
    for k in range(turns[i]):
        for j in range(k):
            if j == 20:
                seen = k
    out[i] = seen


@pytest.mark.parametrize(
    ("kernel", "turns", "unset"),
    [
        (counter_after_its_loop, lambda i: 50 + 0 * i, {}), (counter_after_its_loop, lambda i: i % 4 * 20, {"k": 8}),
        (counters_after_two_loops, lambda i: i % 4 * 10, {"k": 8, "j": 8, "last": 8}),
        (counters_after_two_loops, lambda i: i % 4, {"k": 8, "j": 16, "last": 16}),
        (set_in_some_turns, lambda i: i, {"seen": 14}),
    ],
)  # fmt: skip
def test_what_lanes_alone_have_not_set_is_found(kernel: Any, turns: Any, unset: dict[str, int], watched: Watched) -> None:
    """By hand, of 32 lanes: without a turn 8 have no k, without a second 8 more no j; 22 reach no k of 21, of which 8 had set it before."""

    def make() -> tuple:
        return np.zeros(32, np.int64), turns(np.arange(32))

    found = watched.both(kernel, 1, 32, make)
    assert {finding.array: finding.count for finding in found.findings} == unset
    assert watched.goes > 0 or kernel is set_in_some_turns
