"""How far an answer may go, at the last that passes and the first that does not; and how a check is set up: by hand, with made counts."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from answered import said, solved

from gpulab import lessons, parallel, training
from gpulab.errors import CollectiveTimeoutError, RankDiedError, RankError
from gpulab.lessons import (
    _density,
    _nb01_exercises,
    _nb02_exercises,
    _nb03_exercises,
    _nb04_puzzles,
    _nb04_repairs,
    _nb05_rescue,
    _nb06_exercises,
    _nb07_exercises,
    _nb08,
    _nb08_export,
    _nb08_ring,
    _nb08_strategy,
    _nb09_script,
    _nb10_exercises,
    content,
)
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.parallel import StrategyResult
from gpulab.training import Gain

EXERCISES = {id: exercise for lesson in content.lessons() for id, exercise in lesson.exercises.items()}


def counted(*loads: tuple[str, str, int], **totals: Any) -> SimpleNamespace:
    """A simulation, as far as a check counts: accesses to global memory of (kind, array, bytes), and totals."""
    accesses = [SimpleNamespace(space="global", kind=kind, array=array, bytes_requested=n) for kind, array, n in loads]
    aside = SimpleNamespace(space="shared", kind="load", array="tile", bytes_requested=10**9)
    return SimpleNamespace(accesses=[*accesses, aside], totals=SimpleNamespace(**totals))


def lanes(sectors: float | None, requests: int, nbytes: int) -> SimpleNamespace:
    """A simulation of 04.4."""
    return counted(sectors_per_request=sectors, global_requests=requests, global_bytes_requested=nbytes)


MOVES = {"global_bytes_moved": 147_457, "global_bytes_requested": 147_457, "sectors_per_request": 8.0}
COUNTED: list[tuple[Any, list[SimpleNamespace], str]] = [
    # 712 elements of 4 bytes in 6 blocks.
    (_nb04_puzzles._check_scan, [counted(("load", "x", 2848), shared_requests=1200)], ""),
    (_nb04_puzzles._check_scan, [counted(("load", "x", 2849), shared_requests=0)], "2.78 KiB are loaded from global memory where 2.78 KiB"),
    (_nb04_puzzles._check_scan, [counted(("load", "x", 2848), shared_requests=1201)], "a block asks shared memory 200 times; seven steps"),
    # 4,384 elements; 1.6 loads each are 28,057.6 bytes.
    (_nb04_puzzles._check_blur, [counted(("load", "a", 28_057), ("store", "out", 10**9))], ""),
    (_nb04_puzzles._check_blur, [counted(("load", "a", 28_058))], "each element is loaded 1.60 times from global memory; at most 1.6 are"),
    # Three walks of 3 x 35 + 2 x 7 + 2 x 14 + 2 x 10 requests; 4,240 elements.
    (_nb04_puzzles._check_softmax, [counted(("load", "x", 25_439), global_load_requests=501)], "!each row is loaded once, and kept."),
    (_nb04_puzzles._check_softmax, [counted(("load", "x", 25_441), global_load_requests=501)], "!each row is loaded 2 times. Kept in"),
    (_nb04_puzzles._check_softmax, [counted(("load", "x", 32_128), global_load_requests=502)],
     "warps load 502 times; three walks over the rows need at most 501. Your warps share the row, but these are 1.9 walks"),
    (_nb04_puzzles._check_softmax, [counted(("load", "x", 32_127), global_load_requests=502)], "Share the row among the block"),
    # 16 blocks, 4 pairs of tiles of 1 KiB, and 16 KiB.
    (_nb04_puzzles._check_matmul, [counted(**MOVES | {"global_bytes_moved": 147_456})], "!144 KiB instead of"),
    (_nb04_puzzles._check_matmul, [counted(**MOVES | {"global_bytes_requested": 147_456})], "touches 8.0 sectors where 4 are possible"),
    (_nb04_puzzles._check_matmul, [counted(("load", "c", 1), **MOVES)], "1 B of them are c itself"),
    (_nb04_puzzles._check_matmul, [counted(("load", "c", 1), **MOVES | {"global_bytes_moved": 147_458})], "use each element 16 times"),
    (_nb04_puzzles._check_matmul, [counted(("load", "a", 1), ("store", "c", 32_768), **MOVES)], "use each element 16 times"),
    (_nb04_puzzles._check_matmul, [counted(("store", "c", 32_769), **MOVES)], "32.0 KiB are stored where 16.0 KiB would do"),
    (_nb04_repairs._check_centre, [lanes(4.05, 10, 640), *[lanes(4.0, 1, 64)] * 2, lanes(32.0, 1, 4)], "!4.0 sectors for each request"),
    (_nb04_repairs._check_centre, [lanes(None, 0, 0)] * 3, "only 0.0 of a warp's 32 lanes"),
    (_nb04_repairs._check_centre, [lanes(4.0, 1, 128), lanes(4.06, 1, 128)], "a request touches 4.1 sectors; 4 are possible"),
    (_nb04_repairs._check_centre, [lanes(4.0, 1, 128), lanes(4.0, 10, 639)], "only 16.0 of a warp's 32 lanes take part in a request"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "found", "says"), COUNTED, ids=[f"{check.__name__}-{k}" for k, (check, *_) in enumerate(COUNTED)])
def test_what_a_kernel_may_move(check: Any, found: list[SimpleNamespace], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most that passes, and a byte, a request or a lane beyond it; with "!" it passes."""
    for module in (_nb04_puzzles, _nb04_repairs):
        monkeypatch.setattr(module, "run_trials", lambda *_: found)
    monkeypatch.setattr(_nb04_puzzles, "read_source", lambda answer: SimpleNamespace(parameters=("a", "b", "c")))
    right = not says or says.startswith("!")
    with contextlib.nullcontext() if right else pytest.raises(Refused) as refused:
        praise = check(None)
    assert says.removeprefix("!") in (praise if right else refused.value.args[0])


FOUND = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (0, "barrier")}
EDGES: list[tuple[str, Any, str]] = [
    ("01.7", (40.5, 37 * 1024), "40.5 registers and 37888 bytes: a thread has 1 to 255 registers, and bytes are whole."),
    ("01.7", (40, 1024.5), "40 registers and 1024.5 bytes"),
    # The first chunk, and 10 us for each: 80 % of 10.33 ms are hidden by 6 chunks, and no longer by 203.
    ("02.8", 6, "!In 6 x 42.7 MiB you reach 83% of the ideal gain"),
    ("02.8", 202, "!In 202 x 1.27 MiB you reach 80% of the ideal gain"),
    ("02.8", 203, "In 203 x 1.26 MiB you reach 79.9% of the ideal gain: starting 203 copies alone costs 2.03 ms. Take fewer, larger"),
    ("02.8", 4, "In 4 x 64.0 MiB you reach 75% of the ideal gain: nothing is computed while the first chunk travels"),
    ("03.10", ("lines", 256 * 2**20 * 1.009), "That is the whole matrix."),
    ("03.10", ("lines", 256 * 2**20 * 1.0105), "259 MiB is not it"),
    ("03.10", ("lines",), "Your answer is a tuple (('lines',)); the check expects two things"),
    ("05.7", lambda g: (-2.0, 2.0), "Your lowest scale for gradients from 5.8e-11 to 0.062 is -2; the check expects a power of two"),
    ("05.7", lambda g: (0.0, 2.0), "Your lowest scale for gradients from 5.8e-11 to 0.062 is 0; the check expects a power of two"),
    ("08.8", {"microbatches": True, "schedule": "1f1b"}, "microbatches is a bool (True); a batch of 96 can be cut into 1 to 96 of them."),
    ("08.14", FOUND | {"A": (True, "layer 2")}, "For A the rank is a bool (True); it is a number from 0 to 3."),
    ("08.14", FOUND | {"B": (4, "slow")}, "For B the rank is an int (4); it is a number from 0 to 3."),
    ("08.14", FOUND | {"C": (-1, "barrier")}, "For C the rank is an int (-1)"),
    ("08.14", FOUND | {"B": (3.0, "slow")}, "For B the rank is a float (3.0)"),
    ("08.14", FOUND | {"C": (0, 5)}, "For C you gave an int (5); the check expects a collective's name, or 'slow'."),
    ("08.14", FOUND | {"C": (0, "barrier", 1)}, "For C you gave a tuple ((0, 'barrier', 1)); the check expects two things"),
    # Of 8, 6, 5 and 1 ms: 1 + 0.6 + 2 + 1, 0.8 + 1.5 + 1.6 + 1, and 1 + 1.5 + 1.6 + 1.
    ("09.7", ["prefetch", "CUDA graph", "bfloat16"], "!4.35x with 3 techniques"),
    ("09.7", ["data on the device", "compile", "bfloat16"], "!4.08x with 3 techniques"),
    ("09.7", ["prefetch", "compile", "bfloat16"], "Together these make the step 3.92x as fast. The largest part that is left is ar"),
    ("10.8", lambda rows: 1000, "1 program is compiled, and at most 1000 times the rows are computed (of 1 row): 2 times is allowed."),
    ("10.8", lambda rows: rows, "1000 programs are compiled, and at most 1 times the rows are computed: 11 programs are allowed."),
]  # fmt: skip


@pytest.mark.parametrize(("id", "answer", "says"), EDGES, ids=[f"{id}-{k}" for k, (id, *_) in enumerate(EDGES)])
def test_an_answer_at_an_edge(id: str, answer: Any, says: str) -> None:
    """With "!" it passes."""
    state, message = said(id, answer)
    assert (state, message.startswith(says.removeprefix("!"))) == ("passed" if says.startswith("!") else "wrong", True), message


# Those whose answer is a dict of all these parts, and of no others; of the last three only what is missing is told.
WHOLE, PARTLY = ("06.5", "06.12", "08.8", "08.12", "08.14", "09.3"), ("03.3", "05.11", "05.13")


@pytest.mark.parametrize("id", [*WHOLE, *PARTLY])
def test_a_part_that_is_missing_and_one_too_many_are_told(id: str) -> None:
    """In the words that name what is expected, not as an error of the check."""
    names = list(solved(id)) if id != "03.3" else list(lessons.five_works())
    right = solved(id) if id != "03.3" else dict.fromkeys(names, 1.0)
    state, message = said(id, {name: right[name] for name in names[1:]})
    assert (state, "the check expects {" in message if id in WHOLE else message.startswith(f"{names[0]}: not there.")) == ("wrong", True)
    if id in WHOLE:
        state, message = said(id, right | {"more": 1})
        assert (state, "the check expects {" in message) == ("wrong", True)


@pytest.mark.parametrize(
    ("id", "value", "words"),
    [
        ("06.9", 2000 * 1.009, "not with what it takes"), ("06.9", 2000 * 1.0105, "you say 2021 calls; it is 3,334."),
        ("06.9", 5000 * 0.991, "not with what it takes"), ("06.9", 5000 * 1.0105, "you say 5052.5 calls; it is 3,334."),
        ("06.9", 0.99, "not the other way round"), ("06.9", 1.5, "you say 1.5 calls; it is 3,334."),
        ("06.9", 3333, ""), ("06.9", 3335, ""), ("06.9", 3332.9, "it is 3,334."),
        ("09.9", 0.5 * 1.0009, "the slower over the faster"), ("09.9", 0.5 * 1.00105, "How many samples"),
        ("09.9", 1.0009, "the seconds of the two runs"), ("09.9", 1.00105, "How many samples"),
        ("09.9", 0.25 * 1.0009, "the seconds of a step"), ("09.9", 0.25 * 1.00105, "How many samples"),
        ("09.9", 8 * 1.0009, "You count the batch"), ("09.9", 8 * 1.00105, "How many samples"),
        ("09.9", 0.0, "How many samples"),
    ],
)  # fmt: skip
def test_a_slip_is_recognised_within_so_much(id: str, value: float, words: str) -> None:
    """In the first case, in which they are told apart; the others are answered rightly."""
    right, calls = solved(id), [0]

    def answer(*given: Any) -> Any:
        calls[0] += 1
        return value if calls[0] == 1 else right(*given)

    state, message = said(id, answer)
    assert (state, words in message) == ("wrong" if words else "passed", True), message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (100 / 49 * 1.0009, "You multiply the single gains."), (100 / 49 * 1.00105, "it is 1.818x."),
        (2.5 * 1.0009, "You subtract each saving"), (2.5 * 1.00105, "it is 1.818x."),
        (0.55 * 1.0009, "That is the time that is left"), (0.55 * 1.00105, "it is 1.818x."), (0.0, "it is 1.818x."),
    ],
)  # fmt: skip
def test_a_slip_in_putting_together_is_recognised_within_a_thousandth(value: float, words: str) -> None:
    """09.5: of 10 ms the 6 of loading are halved twice; where no slip is recognised, the sentence ends with what is right."""
    right, calls = solved("09.5"), [0]

    def answer(*given: Any) -> Any:
        calls[0] += 1
        return value if calls[0] == 2 else right(*given)

    state, message = said("09.5", answer)
    assert (state, message.endswith(words) if words.startswith("it is") else words in message) == ("wrong", True), message


@pytest.mark.parametrize(("factor", "passes"), [(1 + 0.9e-3, True), (1 + 1.05e-3, False), (1 - 1.05e-3, False)])
def test_a_sum_of_losses_may_be_rounded(factor: float, passes: bool) -> None:
    """06.7: by a thousandth."""
    answer = solved("06.7")

    def frugal(*given: Any) -> tuple[float, int]:
        total, right = answer(*given)
        return factor * total, right

    state, message = said("06.7", frugal)
    assert (state, "the losses add up to" in message) == ("passed" if passes else "wrong", not passes)


def test_the_accelerator_that_is_fed_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """06.5: 120 ms of loading, 2 ms of copying and 30 ms of computing, on 8 cores, for 200 steps."""
    given: list[dict[str, Any]] = []
    model = _nb06_exercises.model_pipeline

    def modelled(**named: Any) -> Any:
        given.append(named)
        return model(**named)

    monkeypatch.setattr(_nb06_exercises, "model_pipeline", modelled)
    assert said("06.5", {"workers": 6, "prefetch": 2})[0] == "passed"
    host = {"loading_seconds": 0.12, "compute_seconds": 0.03, "copy_seconds": 0.002, "cores": 8, "steps": 200}
    assert given == [host | {"workers": 6, "prefetch": 2}]


@pytest.mark.parametrize(
    ("mends", "says"),
    [
        ("memory", "Your function called step more than 100 times, at last with 1. What does not fit once never will."),
        ("shapes", "Your function called step more than 100 times, though its error was not one of memory."),
    ],
)
def test_a_hundred_tries_are_enough(mends: str, says: str) -> None:
    """06.14: halving needs thirteen; the next call after a hundred is the last, where nothing fits and where it is no matter of memory."""
    calls = [0]

    def recover(step: Any, batch: int) -> int:
        calls[0], last = 0, batch == 4 if mends == "memory" else batch == 8
        while batch >= 1:
            calls[0] += 1
            try:
                step(batch)
            except RuntimeError:
                batch = max(1, batch // 2) if last else batch // 2
            else:
                return batch
        raise RuntimeError("not even one item fits")

    assert said("06.14", recover) == ("wrong", says)
    assert calls == [101]


def test_a_compilation_that_never_pays_may_pay_after_infinitely_many_calls() -> None:
    """06.9: None and infinity say the same."""
    right = solved("06.9")
    assert said("06.9", lambda *given: math.inf if right(*given) is None else right(*given))[0] == "passed"


@pytest.mark.parametrize(
    ("said_bytes", "why"),
    [
        (8 * 225_000.0 + 7.9, "Those are bits."), (8 * 225_000.0 + 8.1, "It is the smaller of two"),
        (200_000.0 + 1.05, "It is the smaller of two"), (800_000.0 + 1.05, "It is the smaller of two"),
        (625_000.0 + 1.05, "It is the smaller of two"), (625_000.0, "You stored the zeros"),
    ],
)  # fmt: skip
def test_a_size_of_a_file_is_recognised_within_a_byte(said_bytes: float, why: str) -> None:
    """07.2: 200,000 weights of 32 bits, three of four zero; where they were counted in bits, within eight."""
    assert why in _nb07_exercises._why_bytes(said_bytes, 200_000, 0.75, 32)


@pytest.mark.parametrize(("off", "says"), [(0.99, "costs more than it saves"), (1.05, "It is the smaller of two")])
def test_a_mask_that_does_not_pay_is_recognised_within_a_byte(off: float, says: str) -> None:
    """07.2: 8,000 codes of 8 bits, of which 5 % are zero: 1,000 bytes of mask and 7,600 of the others are more than 8,000."""
    assert says in _nb07_exercises._why_bytes(8600 + off, 8000, 0.05, 8)


@pytest.mark.parametrize(("factor", "passes"), [(1 + 0.9e-9, True), (1 + 1.05e-9, False), (1 - 0.9e-9, True), (1 - 1.05e-9, False)])
def test_operations_are_counted_exactly(factor: float, passes: bool) -> None:
    """07.11: but for the rounding of a division."""
    answer = solved("07.11")
    assert said("07.11", lambda *given: answer(*given) * factor)[0] == ("passed" if passes else "wrong")


@pytest.mark.parametrize(("factor", "passes"), [(0.95, True), (1.05, False)])
def test_a_translated_script_may_be_off_by_rounding(factor: float, passes: bool) -> None:
    """10.4: by a thousandth of a number and a thousandth."""

    def translated(x: np.ndarray) -> np.ndarray:
        right = _nb10_exercises._matlab(x)
        return right + factor * 1e-3 * (1 + np.abs(right))

    assert said("10.4", translated)[0] == ("passed" if passes else "wrong")


def test_the_tables_of_a_script_are_these() -> None:
    """10.4: of each seed 40 rows of six columns, one of them nine tenths of the first; stretched by 1 to 9 and moved by 5 to 50."""
    for seed, place in ((1, 3), (2, 5), (3, 2)):
        rng = np.random.default_rng(seed)
        plain = rng.standard_normal((40, 6))
        stretch, move = 1 + 8 * rng.random(6), 5 + 45 * rng.random(6)
        plain[:, place] = 0.9 * plain[:, 0] + 0.3 * plain[:, place]
        assert _nb10_exercises._table(seed, place) == pytest.approx(plain * stretch + move, rel=1e-6)


@pytest.mark.parametrize(
    ("begin", "passes"), [("X = gl.to_device(x)", True), ("X = torch.from_numpy(x)", False), ("x -= 1; X = gl.to_device(x)", False)]
)
def test_a_table_may_be_changed_where_a_gpu_would_have_a_copy(begin: str, passes: bool) -> None:
    """10.4: what ``gl.to_device`` gave is a copy on a GPU; an answer that passed there has to pass on a CPU, where it is checked again."""
    from gpulab.lessons import content

    names: dict[str, Any] = {}
    exec(content.exercise("10.4").solution.replace("X = gl.to_device(x)", f"{begin}; X -= 1"), names)
    assert said("10.4", names["translated"])[0] == ("passed" if passes else "wrong")


def test_the_straight_line_may_be_off_by_rounding_and_by_no_operator() -> None:
    """03.8: by a ten-thousandth of a number and a ten-thousandth; half of the traffic, and not a fortieth more."""

    def line(x: torch.Tensor, mean: float, scale: float, gain: float, shift: float, more: float = 0.0) -> torch.Tensor:
        return x * (gain / scale) + (shift - mean * gain / scale + more)

    def in_one(x: torch.Tensor, mean: float, scale: float, gain: float, shift: float) -> torch.Tensor:
        return torch.add(torch.tensor(shift - mean * gain / scale), x, alpha=gain / scale)

    def tenth_again(*given: Any) -> torch.Tensor:
        found = line(*given)
        found[: len(found) // 10].mul_(1.0)
        return found

    assert said("03.8", lambda *given: line(*given, more=0.95e-4))[0] == "passed"
    assert "The result is another one" in said("03.8", lambda *given: line(*given, more=1.08e-4))[1]
    state, message = said("03.8", in_one)
    assert (state, message) == ("passed", "2.00 MiB became 512 KiB in 1 operator: 25% of the traffic, the same numbers.")
    state, message = said("03.8", tenth_again)
    assert state == "wrong", message
    assert "in 3 operators: 52% is left." in message or "in 3 operators: 53% is left." in message


@pytest.mark.parametrize(("trips", "passes"), [(27, True), (29, False)])
def test_a_gain_of_three_times_is_enough(trips: int, passes: bool) -> None:
    """02.2: a hundred steps take as long as 13.1 copies; 213.1 over 69.1 are 3.08, over 73.1 only 2.91."""

    def frugal(device: Any, a: np.ndarray) -> np.ndarray:
        for _ in range(trips):
            a = device.to_host(device.run(_nb02_exercises.logistic, device.to_device(a)))
        there = device.to_device(a)
        for _ in range(100 - trips):
            there = device.run(_nb02_exercises.logistic, there)
        return device.to_host(there)

    state, message = said("02.2", frugal)
    assert (state, "3.08x" in message if passes else "60 copies are left and the gain is 2.91x" in message) == (
        "passed" if passes else "wrong", True,
    ), message  # fmt: skip


def test_a_layer_whose_rows_are_most_of_the_bytes_never_reaches_a_high_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """03.6: 2 n f^2 FLOP over 4 (f^2 + 2 n f) bytes grow towards f / 4 = 1,024, and no further."""
    for ridge, rows in ((1023.0, 4 * 1023 * 4096 / 8), (1024.0, math.inf), (1025.0, math.inf)):
        assert _nb03_exercises._crossing(ridge) == pytest.approx(rows)
    monkeypatch.setattr(_density, "_kept", SimpleNamespace(ridge_flops_per_byte=lambda arithmetic: {"float32": 1024.0}[arithmetic]))
    assert said("03.6", " Never ")[0] == "passed"
    assert "It never does: your ridge is at 1.02e+03 FLOP a byte. Rows of 4096 numbers" in said("03.6", 10**6)[1]
    assert "or 'never'." in said("03.6", "always")[1]
    assert said("03.6", 1.5)[1].startswith("1.5 rows is no batch")
    monkeypatch.setattr(_density, "_kept", SimpleNamespace(ridge_flops_per_byte=lambda arithmetic: 0.1))
    assert said("03.6", 1)[0] == "passed"  # of 0.2 rows one is the least that there is
    assert said("03.6", 2)[0] == "wrong"


def test_lines_are_told_by_their_cause_first() -> None:
    """03.10: another cause, an unknown one, and what only half holds."""
    assert "There is one addition for each 4 bytes" in said("03.10", ("arithmetic", 64 * 2**20))[1]
    assert "the check expects one of call, lines, arithmetic, core." in said("03.10", ("luck", 64 * 2**20))[1]
    assert said("03.10", (..., 64 * 2**20))[0] == said("03.10", ("lines", ...))[0] == "not attempted"


def test_what_a_mended_kernel_is_tried_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """01.4: twice 256 whole numbers from 1 to 999 in four blocks of 64; a hundredth more sectors than the fewest are no price."""
    calls: list[Any] = []
    counted = {"executed_warps": 8, "divergent_branches": 0, "branches": 4, "global_requests": 3, "global_bytes_requested": 384}

    def simulated(kernel: Any, grid: int, block: int, x: np.ndarray, out: np.ndarray) -> SimpleNamespace:
        calls.append((kernel, grid, block, x.copy(), x.dtype))
        out[0::2], out[1::2] = 2 * x[0::2], -x[1::2]
        return SimpleNamespace(findings=(), totals=SimpleNamespace(**totals))

    monkeypatch.setattr("gpulab.kernels.simulate", simulated)
    for sectors, says in ((100, "And neighbouring threads still"), (101, "And neighbouring threads still"), (102, "1.02x the fewest")):
        totals = {**counted, "global_sectors": sectors, "ideal_global_sectors": 100}
        assert says in _nb01_exercises._check_repair(len)
    assert {call[:3] for call in calls} == {(len, 4, 64)}
    assert {call[4] for call in calls} == {np.dtype(np.float32)}
    for (*_, x, _), seed in zip(calls, (1, 2, 1, 2, 1, 2), strict=True):
        assert x.tolist() == np.random.default_rng(seed).integers(1, 1000, 256).tolist()
    for wrong, says in (
        ({"executed_warps": 0}, None), ({"divergent_branches": 1}, "1 of 4 tests still send lanes"),
        ({"global_bytes_requested": 383}, "still run with a part of a warp's lanes"),
    ):  # fmt: skip
        totals = {**counted, "global_sectors": 100, "ideal_global_sectors": 100, **wrong}
        with pytest.raises(Refused if says else NotAttempted, match=says):
            _nb01_exercises._check_repair(len)


def test_the_first_wrong_element_of_a_mended_kernel_is_told() -> None:
    """01.4: two of four, and what they should be."""
    with pytest.raises(Refused, match=r"^2 of 4 results differ; the first is out\[1\]: 5 instead of -7\. Elements of even number"):
        _nb01_exercises._compare(np.array([2.0, 5.0, 6.0, 0.0]), np.array([2.0, -7.0, 6.0, -9.0]))
    _nb01_exercises._compare(np.array([2.0]), np.array([2.0]))


LIMITS = {
    "01.9": 60, "03.8": 90, "05.9": 60, "06.7": 60, "06.12": 60, "06.14": 60, "07.13": 120, "08.3": 120, "08.12": 240, "08.15": 270,
    "09.11": 300,
}  # fmt: skip


def test_a_check_has_twenty_seconds_but_where_it_measures_trains_or_starts_processes() -> None:
    """And one answer is the path of a file, of which the text is kept."""
    assert {id: e.limit_seconds for id, e in EXERCISES.items()} == dict.fromkeys(EXERCISES, 20.0) | LIMITS
    assert [id for id, e in EXERCISES.items() if e.answer_is_file] == ["08.15"]


def test_how_far_weights_went_is_the_root_of_all_squares() -> None:
    """05.9: 3 and 4 in two layers are 5."""
    ones = [torch.tensor([3.0, 1.0], requires_grad=True), torch.tensor([[2.0]])]
    others = [torch.tensor([0.0, 1.0]), torch.tensor([[6.0]])]
    assert _nb05_rescue._apart(ones, others) == _nb05_rescue._apart(others, ones) == pytest.approx(5)


@pytest.mark.parametrize(
    ("moved", "off", "says"),
    [
        (0.2, 0.3, ""), (0.199, 0.0, "The weights hardly moved"), (1.0, 0.301, "The weights moved 1 times as far as in float32"),
        (4.5, 3.5, "The weights moved 4.5 times as far as in float32, and elsewhere."),
    ],
)  # fmt: skip
def test_how_far_a_rescued_run_may_be_off(moved: float, off: float, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """05.9: a fifth of the way that the weights go in float32 is moving, and three tenths of it beside that way are elsewhere."""
    ways = iter((moved, 1.0, off))
    monkeypatch.setattr(_nb05_rescue, "_apart", lambda *_: next(ways))
    monkeypatch.setattr(_nb05_rescue, "_reference", lambda batches: torch.nn.Linear(1, 1))
    monkeypatch.setattr(_nb05_rescue, "_batches", lambda: [(x[:64], y[:64]) for x, y in [training.task("digits-mlp").train[slice(0, 64)]]])
    monkeypatch.setattr(_nb05_rescue.training, "evaluate", lambda *_: SimpleNamespace(ratio=0.9))
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        praise = _nb05_rescue._check_rescue(solved("05.9"))
    assert says in refused.value.args[0] if says else praise.startswith("Rescued: the weights went the way of float32 (off by 30.0% of it)")


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.009, True), (0.991, True), (1.0105, False), (0.9895, False)])
def test_the_rate_of_a_rescued_run_stays(factor: float, passes: bool) -> None:
    """05.9: within a hundredth; of another network's optimizer nothing is asked."""
    mine, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    steps = _nb05_rescue._Steps(mine)
    with steps:
        torch.optim.Adam(other.parameters()).step()
        torch.optim.SGD(mine.parameters(), lr=factor * 1e5).step()
    with contextlib.nullcontext() if passes else pytest.raises(Refused, match="and the loss stays a millionth"):
        steps.check()


@pytest.mark.parametrize(("losses", "stands"), [([1.0, 0.91], True), ([1.0, 0.9], False), ([1.0, 0.5, 0.95], True)])
def test_a_run_that_lost_less_than_a_tenth_stands(losses: list[float], stands: bool) -> None:
    """05.1: by its last loss."""
    from gpulab.lessons import _nb05

    run = SimpleNamespace(ended="finished", losses=losses)
    assert _nb05._ended(run) == (_nb05.STANDS if stands else _nb05.LIKE_FLOAT32)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ratio", "learned"), [(0.249, False), (0.25, True)])
def test_a_quarter_of_ten_digits_is_something(ratio: float, learned: bool) -> None:
    """05.8: guessing gets a tenth."""
    from gpulab.lessons import _nb05

    found = _nb05._learned(SimpleNamespace(loss=2.0, ratio=ratio))  # type: ignore[arg-type]
    assert found == (_nb05.SAME if learned else _nb05.NOTHING)


@pytest.mark.parametrize(
    ("off", "says"),
    [({}, ""), ({"right": 0.949}, "94.9 % right, 60,000 bytes: less than 95% right."),
     ({"nbytes": 60_001}, "95.0 % right, 60,001 bytes: the file is over 60,000 bytes."),
     ({"interval": (1.0, 2.0), "speedup": 1.9}, "0.53 of the time (the middle of several measurements"),
     ({"interval": (1.9, 2.1), "speedup": 1.95}, "0.51 of the time (the middle of several measurements"),
     ({"interval": (1.0, 1.99), "speedup": 1.95}, "95.0 % right, 60,000 bytes, 0.51 of the time: longer than 0.5 of it.")],
)  # fmt: skip
def test_a_budget_may_be_used_up(off: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """07.13: exactly what is allowed is within it; what reaches over the limit of time is measured four times, each longer."""
    found = {"right": 0.95, "nbytes": 60_000, "interval": (2.0, 4.0), "speedup": 2.0} | off
    budget, asked_for = SimpleNamespace(least_accuracy=0.95, largest_file=60_000, longest_time=0.5, batch=256), list[Any]()
    monkeypatch.setattr(_nb07_exercises._lighter, "budget", lambda: budget)
    monkeypatch.setattr(_nb07_exercises._lighter, "trained", lambda: "as trained")
    monkeypatch.setattr(_nb07_exercises.compression, "finish", lambda model: model)
    monkeypatch.setattr(_nb07_exercises.training, "evaluate", lambda *_: SimpleNamespace(ratio=found["right"]))
    monkeypatch.setattr(_nb07_exercises.compression, "size_on_disk", lambda model: 120_000 if model == "as trained" else found["nbytes"])
    row = SimpleNamespace(speedup=found["speedup"], speedup_interval=found["interval"])
    monkeypatch.setattr(_nb07_exercises._lighter, "time_against_trained", lambda *given: (asked_for.append(given[1:]), row)[1])
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        praise = _nb07_exercises._check_budget(torch.nn.Linear(1, 1))
    if says:
        assert refused.value.args[0].startswith(says) or f", {says}" in refused.value.args[0]
    else:
        assert praise.endswith("0.50 of the time: within the budget. 2.00x as fast, with 58.6 KiB in place of 117 KiB.")
    assert asked_for in ([], [(256, 0.25)], [(256, seconds) for seconds in (0.25, 0.5, 1.0, 2.0)])
    assert len(asked_for) == (4 if "several" in says else 0 if "bytes:" in says else 1)


def test_losses_are_compared_by_a_thousandth_of_the_largest() -> None:
    """08.4: of 200 that is 0.2."""
    assert _nb08._compared(([200.19], [200.0])) == _nb08.SAME
    assert _nb08._compared(([200.21], [200.0])) == _nb08.WORSE
    assert _nb08._compared(([199.79], [200.0])) == _nb08.BETTER
    assert _nb08._compared(([1001.0], [1000.0])) == _nb08.SAME  # exactly a thousandth
    assert _nb08._compared(([5.0, 1.0], [1.0, 1.0])) == _nb08.BETTER, "it ends no higher"


def test_a_rank_takes_its_share_of_the_last_global_batch() -> None:
    """08.6: the accuracy with the largest global batch under the unchanged rule, in per cent."""
    from gpulab.parallel.scaling_results import GlobalBatchResult

    rows = [SimpleNamespace(accuracy=SimpleNamespace(mean=mean)) for mean in (0.9, 0.5, 0.25)]
    found = object.__new__(GlobalBatchResult)
    object.__setattr__(found, "rows", tuple(SimpleNamespace(rule="unchanged", global_batch=k, **vars(row)) for k, row in enumerate(rows)))
    assert _nb08.BATCH.outcome(found) == 25.0  # type: ignore[misc]


def test_the_traffic_of_two_runs_needs_two() -> None:
    """08.9: three are no pair."""
    run = object.__new__(StrategyResult)
    object.__setattr__(run, "reports", (SimpleNamespace(ring_bytes=2),))
    assert _nb08._traffic([run, run]) == 1.0
    assert _nb08._traffic([run, run, run]) == [run, run, run]


class Ranks:
    """Ranks that report what a ring does, or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls, self.recovered = error, list[Any](), 0

    def run(self, function: Any, answer: Any, cases: Any, timeout_seconds: float) -> list[list[dict[str, Any]]]:
        """Return a report of each case from each rank that takes part."""
        self.calls.append((function, cases, timeout_seconds))
        if self.error is not None:
            raise self.error
        report = {"sent": 0, "collectives": [], "kind": "Tensor", "equal": True, "own": False}
        return [
            [{**report, "rank": rank, "n": n, "size": size, "dtype": dtype, "shape": (size,)} for n, size, dtype in cases if rank < n]
            for rank in range(4)
        ]

    def recover(self) -> None:
        """Count how often."""
        self.recovered += 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "on 2, 3 and 4 ranks, and with 4 ranks each sent 1.5 times the data"),
        (CollectiveTimeoutError("run: they waited"), "Your ranks wait for each other, and nobody goes on."),
        (RankDiedError("run: rank 1 died", (1,)), "run: rank 1 died A message larger than its buffer ends the process"),
        (RankError("run: rank 2 raised ValueError"), "On the ranks your function failed: run: rank 2 raised ValueError"),
    ],
)
def test_ranks_that_failed_can_be_used_again(error: Exception | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """08.3: whatever ended a call, the learner's ranks are recovered; four, three and two take part, the last time in float32."""
    ranks, wanted, alone = Ranks(error), list[int](), list[Any]()
    monkeypatch.setattr(_nb08_ring._parallel_checks, "ranks_of", lambda n: (wanted.append(n), contextlib.nullcontext(ranks))[1])

    def answer(x: torch.Tensor, rank: int, n: int) -> torch.Tensor:
        alone.append((x.tolist(), rank, n))
        return x

    with contextlib.nullcontext() if error is None else pytest.raises(Refused) as refused:
        praise = _nb08_ring._check_ring(answer)
    assert says in (praise if error is None else refused.value.args[0])
    assert ranks.recovered == (error is not None)
    cases = ((4, 10_007, "float64"), (4, 6, "float64"), (3, 1000, "float64"), (2, 7, "float64"), (2, 7, "float32"))
    assert ranks.calls == [(_nb08_ring.probe, cases, 60.0)]
    assert (wanted, alone) == ([4], [([0.0, 1.0, 2.0, 3.0, 4.0], 0, 1)])


@pytest.mark.parametrize("text", ["init_process_group", "--results"])
def test_a_script_of_the_export_has_both_marks(text: str, tmp_path: Any) -> None:
    """08.15: one that joins a group, or keeps results, is not enough."""
    script = tmp_path / "mine.py"
    script.write_text(text)
    assert "mine.py is no script of ranks.export_script" in said("08.15", script)[1]
    assert "Your answer is a bytes (b'mine.py'); the check expects the path" in said("08.15", b"mine.py")[1]


def test_a_run_that_says_nothing_of_a_signal_is_not_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """08.15: only a library that crashed as a process left is given a second time."""
    runs: list[Any] = []

    def run(*given: Any) -> tuple[int, str]:
        runs.append(given)
        return 1, "KeyError: 'x'"

    monkeypatch.setattr(_nb08_export, "_run", run)
    with pytest.raises(Refused, match="on 2 processes ended with 1: KeyError: 'x'"):
        _nb08_export._results(tmp_path / "s.py", 2)
    assert len(runs) == 1


def test_torchrun_has_two_processes_and_two_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Where nothing else is said."""
    given: list[Any] = []
    monkeypatch.setattr(_nb08_export, "_run", lambda *all_of: (given.extend(all_of), (1, "no"))[1])
    with pytest.raises(RankError, match="on 2 processes ended with 1: no"):
        _nb08_export.torchrun(tmp_path / "s.py")
    assert given[2] == 120.0


def test_one_process_trains_as_the_notebooks_loop() -> None:
    """08.15: twenty batches of 64, one after the other, by SGD at 0.1 from the weights of seed 0; the losses written out here."""
    job = training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    for step in range(20):
        loss = job.loss(model, job.train[slice(64 * step, 64 * step + 64)])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weights, gradient in zip(model.parameters(), gradients, strict=True):
                weights.sub_(gradient, alpha=0.1)
        losses.append(float(loss.detach()))
    assert _nb08_export.reference() == pytest.approx(losses, rel=1e-4)


def test_a_strategys_memory_is_asked_for_with_one_sequence_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """08.12: of 1,024 tokens, for the case's own model and GPUs."""
    asked_for: list[Any] = []
    monkeypatch.setattr(parallel, "predict_ranks", lambda model, *given, **named: (asked_for.append((model, given, named)), "memory")[1])
    _nb08_strategy.rank_memory.cache_clear()
    try:
        assert _nb08_strategy.rank_memory("A", "zero2") == "memory"
    finally:
        _nb08_strategy.rank_memory.cache_clear()
    ((model, (tokens, targets), named),) = asked_for
    assert (tuple(tokens.shape), tokens.dtype, targets is tokens) == ((1, 1024), torch.int64, True)
    assert named == {"strategy": "zero2", "ranks": 4}
    with torch.device("meta"):
        assert sum(p.numel() for p in model().parameters()) == _nb08_strategy.CASES["A"].parameter_count


def test_scripts_are_compared_on_sixty_four_items_and_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """09.11: the first try has as many items; each further series of turns is longer."""
    seen: dict[str, Any] = {"longer": [], "items": []}

    def compared(before: Any, after: Any, job: Any, **named: Any) -> SimpleNamespace:
        seen["compared"] = (before is _nb09_script.beginners_script, after is mine, named)
        return found

    found = SimpleNamespace(objections=("not shown",), gain=Gain(1.1, (0.9, 1.3)))
    monkeypatch.setattr(_nb09_script, "_tried", lambda *_: None)
    monkeypatch.setattr(_nb09_script, "samples_of", lambda script, job, little, where: seen["items"].append(len(little)) or 192)
    monkeypatch.setattr(training, "compare_scripts", compared)
    monkeypatch.setattr(_nb09_script, "gain_in_turns", lambda *given: (seen["longer"].append(given[-1]), found.gain)[1])
    monkeypatch.setattr(_nb09_script.dataclasses, "replace", lambda one, **changed: one)

    def mine(model: Any, data: Any) -> None:
        """Train as script does."""

    with pytest.raises(Refused, match="not shown"):
        _nb09_script._check_script(mine)
    assert seen == {"longer": [2, 3, 4], "items": [64, 64], "compared": (True, True, {"items": 64, "seeds": 3})}


def test_a_script_is_tried_on_sixty_four_items() -> None:
    """09.11: and one that says that it is not written yet is no attempt."""
    sizes: list[int] = []

    def unwritten(model: Any, data: Any) -> None:
        sizes.append(len(data))
        raise NotImplementedError

    with pytest.raises(NotAttempted):
        _nb09_script._tried(unwritten, training.task("digits-cnn"))
    assert sizes == [64]


def test_the_scripts_solution_trains_as_long_as_the_beginners() -> None:
    """09.11: three epochs of all items, in the batches of 32 that the last hint names."""
    assert "for first in [*range(0, len(data), 32)] * 3:" in _nb09_script.SCRIPT.solution
    assert "Batches of 32" in _nb09_script.SCRIPT.hints[-1]


def test_a_ladder_of_one_technique_has_its_most_where_that_has_an_interval() -> None:
    """09.2: there is no other that it could be taken for; without an interval nothing is said."""
    from gpulab.lessons import _nb09
    from gpulab.training import LadderResult

    found = object.__new__(LadderResult)
    object.__setattr__(found, "rungs", (SimpleNamespace(title="prefetch", alone=Gain(2.0, (1.8, 2.2))),))
    assert _nb09.MOST.outcome(found) == "prefetch"  # type: ignore[misc]
    object.__setattr__(found, "rungs", (SimpleNamespace(title="prefetch", alone=Gain(2.0, None)),))
    with pytest.raises(content.Unmeasured, match="the intervals cannot tell which gains most: prefetch"):
        _nb09.MOST.outcome(found)  # type: ignore[misc]
