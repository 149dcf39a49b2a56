"""What checks say about answers that are just right or wrong, and right in another form."""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from course import HERE, ROOT, answer_of, assert_passes, contest, latency
from gpulab import arrays, devices, lessons
from gpulab.evidence import Note
from gpulab.lessons import content
from gpulab.timing import Measurement

# 03.3 by hand: bytes over 20 GB/s, or FLOP over 100 GFLOP/s, of 2^24 numbers, of 4,096 x 4,096
# weights, and of matrices of 1,024 x 1,024.
BY_HAND = {
    "add": 12 * 2**24 / 2e10, "sum": 4 * 2**24 / 2e10, "softmax": 8 * 2**24 / 2e10,
    "one row": 4 * 4096**2 / 2e10, "matmul": 2 * 1024**3 / 1e11,
}  # fmt: skip
# Answers that are values; the approved text has the state and the sentence for each.
EDGES: dict[str, list[Any]] = {
    "00.7": ["Never ", 1000, 256, 512, "always", 32.5],
    "01.3": [17, (16, 0), (16, 16, 1), (17, 0, 1), (16, 0, 16), (16.0, 0, 1)],
    "01.6": [
        (32, "registers"), (96, "registers"), (160, "registers"), (192, "registers"), 256, (128,
        5), (128, "register"),
        (128, "shared"), (128, ""), (0, "warps"), (1, "warps"), (1024, "warps"), (1025, "warps"),
        (128.5, "warps"),
    ],
    "01.7": [
        40, (40, 1, 2), (0, 37 * 1024), (1, 37 * 1024), (255, 0), (256, 0), (40, 2**20), (40,
        2**20 + 1), (40, 1023),
        (40, 1024), (40, 0), (39, 37 * 1024), (41, 0), (40, 36 * 1024), (40, 38 * 1024),
    ],
    "01.9": [
        2**15, [], ["many"], [511], [512], [2**17, 2**17], [2**15, 2**19, 24 * 2**20],
        [2**15 / 1.5, 2**19, 2**23],
        [2**14, 2**19, 2**23], [2**15, 2**23], [2**27], ["32 KiB", 2**19, 2**23], [48 * 1024,
        2**19, 2**23],
    ],
    "02.8": [0, 1, 2, 5, 6, 100, 10**6, 10**6 + 1, "16", 16.0],
    "03.3": [0.5, BY_HAND, {"add": 1.0}]
    + [
        BY_HAND | {name: BY_HAND[name] * factor}
        for name, factor in (
            ("add", 1.29), ("add", 1 / 1.29), ("add", 1.31), ("add", 0.66), ("matmul", 0.54),
            ("matmul", 0.46), ("matmul", 0.56), ("sum", 0.27),
            ("sum", 0.28), ("softmax", 0.46), ("softmax", 0.44), ("one row", 0),
        )
    ],
    "03.6": [6, 7, 16, 17, 0, 1, "Never", 2.5],
    # A column of 2^20 numbers: cache lines of 64 or 128 bytes; the numbers alone are 4 MiB.
    "03.10": [
        5, ("Lines ", 64 * 2**20 * 1.009), ("lines", 128 * 2**20 * 0.991), ("lines",
        64 * 2**20 * 1.0105), ("lines", -1),
        ("lines", 3.95 * 2**20), ("lines", 3.96 * 2**20), ("lines", 4.04 * 2**20), ("lines",
        4.05 * 2**20), ("lines", 2**28),
    ],
    "05.13": [
        {"float32": 16, "autocast": autocast, "pure bfloat16": pure,
        "bfloat16 with master weights": master}
        for autocast, pure, master in ((15, 8, 16), (17, 8, 16), (16, 4, 16), (16, 8, 15), (16, 8,
        16.0))
    ],
    "05.11": [
        {"linear": ("lower", "lower"), "relu": ("inputs", "inputs"), "layer_norm": ("inputs",
        "float32"), "softmax": ("inputs", "float32"), "cross_entropy": ("float32", "float32")}
        | changed for changed in (
            {"linear": [" Lower", "LOWER "]}, {"linear": ("float32", "lower")},
            {"linear": ("lower", "inputs")}, {"relu": ("lower", "inputs")},
            {"relu": ("inputs", "float32")}, {"layer_norm": ("float32", "float32")},
            {"layer_norm": ("inputs", "inputs")}, {"softmax": ("inputs", "lower")},
            {"cross_entropy": ("inputs", "float32")}, {"softmax": ("inputs", "float32", "lower")},
            {"softmax": "inputs"}, {"softmax": ("inputs", "float16")},
        )
    ],
    "06.4": [("data", "copy", "data"), ("Data", "copy", "compute"), ["data", "copy", 5],
    ("compute", "copy", "compute")],
    "06.5": [
        {"workers": workers, "prefetch": prefetch}
        for workers, prefetch in ((0, 2), (3, 2), (4, 2), (6, 2), (13, 1), (12, 1), (7, 2), (1, 2),
        ("5", 2), (5, 0))
    ],
    "06.12": [
        {"accumulate": parts, "checkpoint": checkpoint, "precision": precision}
        for parts, checkpoint, precision in (
            (5, False, "float32"), (0, False, "float32"), (True, False, "float32"), (1, 1,
            "float32"), (1, False, "float64"),
            (2, True, "bfloat16"), (3, True, "float32"),
        )
    ],
    "07.5": [
        order.split(", ")
        for order in (
            "train",
            "train, prune channels, fine-tune, prune weights, fine-tune, quantise, quantise",
            "train, train, prune channels, fine-tune, prune weights, fine-tune, quantise",
            "train, prune weights, fine-tune, prune channels, fine-tune, quantise",
            "train, prune channels, fine-tune, prune weights, fine-tune, prune channels, quantise",
            "train, prune channels, prune weights, fine-tune, quantise",
            "train, prune channels, fine-tune, prune weights, quantise",
        )
    ],
    "08.8": [
        {"microbatches": parts, "schedule": schedule}
        for parts, schedule in ((0, "1f1b"), (97, "1f1b"), (1, "1f1b"), (96, "1f1b"), (64, "1f1b"),
        (48, "gpipe"), (24, "1f1b"),
                                (32, "1f1b"), (48, "1f1b"), (8, "gpipe"))
    ],
    "08.14": [
        {"A": (2, "layer 2"), "B": (3, "slow"), "C": (0, "barrier")} | changed
        for changed in ({"A": (2, "all-reduce layer 1")}, {"A": (2, "layer 4")}, {"A": (2,
        "all-reduce")}, {"B": (3, "late")}, {"B": (2, "slow")},
                        {"C": (0, "all_gather")}, {"C": (4, "barrier")})
    ],
    "09.3": [
        {"A": "faster", "B": "not shown", "C": "slower", "D": "faster",
        "E": "not shown"} | {letter: word}
        for letter, word in (("A", "slower"), ("B", "faster"), ("B", "slower"), ("C", "faster"),
        ("D", "slower"), ("E", "slower"))
    ],
    "09.7": [
        [], ["prefetch", "prefetch"], ["data on the device", "CUDA graph", "compile", "bfloat16"],
        ["data on the device", "prefetch"],
        ["CUDA graph", "fused optimizer"], ["data on the device", "CUDA graph", "bfloat16"],
        ["prefetch", "CUDA graph", "bfloat16"],
        ["data on the device", "compile", "bfloat16"], ["data on the device", "CUDA graph",
        "fewer waits"], ["teleport"],
    ],
}  # fmt: skip


def at(case: int, value: Any) -> Any:
    """A change that replaces the solution's result of one call, counted from 0, by a value."""
    return lambda number, result: value if number == case else result


def times(factor: float) -> Any:
    """A change that multiplies each result of the solution, a number or an array."""
    return lambda number, result: result * factor


def each(*factors: float) -> Any:
    """A change that multiplies the parts of each result by these factors."""
    return lambda number, result: tuple(one * k for one, k in zip(result, factors, strict=True))


def plus(more: float) -> Any:
    """A change that adds to each result that is a number."""
    return lambda number, result: None if result is None else result + more


SIXTH = 1e-6  # the room for rounding in most of these
# Answers that are functions: the solution, with its results changed.
CHANGED: dict[str, list[Any]] = {
    "00.9": [
        each(1 + 0.9 * SIXTH, 1, 1), each(1 + 1.05 * SIXTH, 1, 1), each(1, 0.9905, 1.0095), each(1,
        0.9893, 1), each(1, 1, 1.0107),
        at(0, (5.0, 9.5 / 2.0, 10.6 / 2.0)), at(0, (5.0, 4.751, 5.4)), at(0, (5.0, 4.7, 5.299)),
        at(0, (5.0, 5.0, 5.0)),
        at(0, (0.2, 4.612, 5.436)), at(0, (5.0, 5.4, 4.7)), at(3, (8.0, 7.96 / 0.94, 8.6)), at(0,
        5.0), at(2, None),
        lambda number, result: tuple(round(one, 2) for one in result),
    ],
    # Within 2 % of 1 ms; a reading and a launch take 5 us of it.
    "00.10": [
        times(1.01), times(1.03), times(0.97), times(1e3), times(1e6), times(0), times(-1),
        plus(100.0), times(0.006), times(0.002), at(1, 1.5), at(0, 0.5e-3), at(0, 80e-3),
        at(0, 16e-3), at(0, 1.2e-3), at(0, "fast"), at(2, None), at(3, 4e-6),
    ],
    "03.12": [
        each(1.009, 1), each(1.0105, 1), each(2, 1), each(0.5, 1), each(0.25, 1),
        lambda number, result: (result[0], f" {result[1].title()}-bound"),
        lambda number, result: (result[0], "memory"), lambda number, result: (result[0], "both"),
        lambda number, result: (result[0], None), lambda number, result: result[0],
        at(1, (4 * 2 * 256**2 / 4e12, "compute")), at(6, (4e-6, "memory")), at(3, (0.0, "memory")),
        at(2, None),
    ],
    "02.5": [
        each(1.05, 1), each(1, 1.05), each(1, 1.2), each(3.0, 1), each(0.0, 1), each(1, -1), at(1,
        (5e-6, 0.5)), at(0, (1e6, 1.0)),
        at(0, (2e6, 5.0)), at(2, (9e-9, 0.5)), at(2, None),
    ],
    "03.11": [
        times(1.009), times(1.0105), at(0, 1 / 200), at(0, 600.0), at(1, 200.0), at(1, 5.0), at(3,
        200.0), at(3, 5.0), at(0, "much"),
        at(2, None),
    ],
    "05.3": [
        at(0, "float32"), at(1, "float32"), at(5, "float64"), at(0, "float8_e4m3fn"), at(0,
        "bfloat16"), at(5, "float16"), at(0, "int8"),
        at(3, "float16"), at(4, None),
    ],
    "05.7": [each(2, 1), each(0.5, 1), each(1, 2), each(1, 0.5), each(-1, 1), each(1.5, 1), at(0,
    5), at(1, None)],
    "06.9": [plus(1.0), plus(1.05), plus(-1.0), at(4, 30.0), at(0, None), at(0, "many"),
    times(0.5)],
    "07.2": [plus(5.0), plus(5.05), times(8), at(0, 400_000), at(0, 4e6), at(0, 600_000), at(0,
    None), at(2, 64_005.5)],
    "07.10": [
        at(0, (864 * 32**2, 96 * 2**20)), at(0, (144, 96 * 2**20)), at(0, (9, 96 * 2**20)), at(0,
        (96, 96 * 2**20)), at(0, (864, 96 * 2**10)),
        at(0, (864, 5)), at(0, (865, 96 * 2**20)), at(1, None), at(0, 5),
    ],
    "07.11": [times(0.5), times(2), times(1 / 16), at(0, 75_497_472 * 4), at(1, 589_824 / 256),
    at(2, 5), at(3, None)],
    "08.10": [
        plus(64.0), plus(65.0), plus(-64), times(0.25), at(0, 5e9), at(0, 13.8e9 - 1.2e9), at(0,
        22.2e9), at(0, 13.8e9 - 3e9),
        at(0, 13.8e9 - 3e9 + 3e9 / 8), at(2, 22.2e9), at(3, None),
    ],
    "09.5": [times(1 + 0.9 * SIXTH), times(1 + 1.05 * SIXTH), at(1, 100 / 49), at(1, 2.5), at(1,
    0.55), at(1, 7.0), at(1, None)],
    "09.9": [
        times(1 + 0.9 * SIXTH), times(1 + 1.05 * SIXTH), at(0, 1 / 3), at(0, 1.0), at(0, 0.375),
        at(0, 8.0), at(0, 2.0), at(0, 5.0), at(1, None),
    ],
    "10.2": [
        times(1.019), times(0.981), times(1.021), times(2.03), times(2.045), times(3.0),
        times(0.51), times(0.49), at(0, 0.0),
        at(0, "soon"),
    ],
    "10.4": [
        times(1.02), times(1.0005), lambda number, result: result[:1], lambda number,
        result: result.tolist(), at(1, None),
        lambda number, result: result[:, None],
    ],
    "10.8": [at(999, 1000), at(9, 21), at(9, 20), at(0, 0), at(2, 3.5), at(4, None), times(2),
    at(0, 2)],
    # Rows of 20 weights in 8, 4 and 2 bits: the codes and one scale a row.
    "07.6": [
        lambda number, result: (result[0], result[1] * 1.0009), lambda number, result: (result[0],
        result[1] * 1.0015),
        lambda number, result: (result[0][:, :-1], result[1]), lambda number, result: (result[0],
        result[1][:1]),
        lambda number, result: (result[0], result[1].repeat(2, 1)[:3]), lambda number,
        result: (result[0], result[1] * float("nan")),
        lambda number, result: (result[0] + 0.5, result[1]), lambda number, result: (result[0] * 2,
        result[1] / 2),
        lambda number, result: (result[0] + (result[0] == 0), result[1]), lambda number,
        result: (result[0] - 2 * (result[0] == 64), result[1]),
        lambda number, result: (result[0] + (result[0].abs() < 100), result[1]), lambda number,
        result: result[0], at(1, None),
    ],
    "10.6": [times(1 + 0.9e-5), times(1 + 1.05e-5), times(2)],
    "10.9": [
        lambda number, result: result.clone(), lambda number, result: result.double(),
        lambda number, result: result[:1], lambda number, result: result.reshape(-1),
        lambda number, result: result.numpy(), at(3, torch.full((3, 2), 2.0)),
        at(5, torch.zeros(3, 4)), at(7, torch.arange(5, dtype=torch.int32)), at(1, None),
    ],
    "11.3": [
        times(1.0009), times(1.004), times(float("nan")), lambda number, result: result.double(),
        lambda number, result: result[:, :4], lambda number, result: result.tolist(),
        lambda number, result: result.long(), at(1, None),
    ],
    "11.6": [
        times(1.0009), times(1.01), times(-1), lambda number, result: result.mT,
        lambda number, result: result.numpy(), at(1, None),
    ],
    "11.8": [
        lambda number, result: [*result], lambda number, result: result[::-1],
        lambda number, result: result[0], lambda number, result: (*result, result[0]),
        lambda number, result: (result[0][:, :, :-1], result[1]),
        lambda number, result: (result[0], result[1][:, :, -1:] if number == 3 else result[1]),
        each(1 + 1e-4, 1), lambda number, result: (result[0].clone(), result[1]), at(1, None),
    ],
    # A thousandth or a token a second is the room for rounding.
    "11.10": [
        times(1.0009), times(1.0011), plus(0.98), plus(1.0), at(3, 1895), at(3, 1893.7),
        at(0, 142.857 / 8), at(0, 142.857 / 2), at(3, 1894.737 / 12), at(4, 142.857),
        at(2, 3000 / 7), at(0, 0.007), at(3, 19e9 / 3e12), at(1, "fast"), at(2, None),
    ],
    "11.12": [
        plus(1), plus(-1), plus(0.5), times(2), at(2, 1), at(3, 0), at(4, -3), at(4, 1),
        at(1, None), at(5, "none"),
    ],
    "11.15": [
        lambda number, result: [set(step) for step in result],
        lambda number, result: [step[::-1] for step in result],
        lambda number, result: result[:-1], lambda number, result: [*result, []],
        lambda number, result: result[::-1],
        lambda number, result: [[*step, *step] for step in result],
        lambda number, result: [*result, result[-1]], lambda number, result: [[9], *result],
        lambda number, result: [result[0]] * len(result), at(0, 5), at(2, None),
        lambda number, result: [[request + 0.5 for request in step] for step in result],
    ],
    "11.17": [
        lambda number, result: tuple(result), lambda number, result: [*map(float, result)],
        lambda number, result: result[:-1], lambda number, result: [*result, 4],
        lambda number, result: result[::-1], at(0, 5), at(0, "572"),
        at(0, {5: 0, 7: 0, 2: 0}), at(0, [5, 7, 9]),
        at(0, [5, 7, 2, 4]), at(1, [5, 7, 9]), at(2, []), at(4, []), at(4, None),
    ],
    "11.19": [
        lambda number, result: result.int(), lambda number, result: result[:, :-1],
        lambda number, result: result[:, [*range(result.shape[1]), -1]],
        lambda number, result: result[:, -12:], lambda number, result: result[:1],
        lambda number, result: result.tolist(), lambda number, result: result.flip(1), at(3, None),
    ],
}  # fmt: skip


SLOW = ("01.3", "06.12")  # more than a second


def checked(id: str, answer: Any) -> str:
    """State and sentence, without digits that another processor may round differently."""
    return re.sub(r"(\d\.\d{6})\d{3,}", r"\1...", str(lessons.check(id, answer))) + "\n"


def plain(value: Any) -> str:
    """A short text of an argument or a result; "" for a value that is not plain."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if not re.search(r"tensor|\[\s*-?\d|Measurement|object|<function", text) else ""


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=pytest.mark.slow if id in SLOW else ()) for id in EDGES]
)
def test_values_at_the_edge(id: str, approved: Any) -> None:
    """The last value that passes, the first that does not, and what is said then."""
    assert "".join(f"{answer!r}\n    {checked(id, answer)}" for answer in EDGES[id]) == approved


@pytest.mark.parametrize("id", CHANGED)
def test_functions_at_the_edge(id: str, approved: Any) -> None:
    """The approved text has the calls of a check with the right results, and its state and sentence
    for each changed result: a little off, or a usual slip.
    """
    exercise = content.exercise(id)
    solution, calls = answer_of(exercise, exercise.solution), list[str]()

    def changed_by(change: Any) -> Any:
        def answer(*given: Any) -> Any:
            result = solution(*given)
            calls.append(f"    {', '.join(map(plain, given))} -> {plain(result)}\n")
            return change(len(calls) - 1, result)

        calls.clear()
        return answer

    text = checked(id, changed_by(lambda number, result: result))
    text += "".join(calls if len(calls) < 20 else calls[:3])
    assert text + "".join(checked(id, changed_by(change)) for change in CHANGED[id]) == approved


# A rise of a fifth within a factor of two each way ends a level; one that doubles must be named.
RISES: list[tuple[dict[int, float], list[float]]] = [
    ({18: 1.25}, [2**17]), ({18: 1.15}, [2**17]), ({15: 3.0, 20: 2.1}, [2**14]), ({15: 3.0,
    20: 1.9}, [2**14]),
    ({15: 3.0, 20: 1.5, 22: 1.5}, [2**14]), ({15: 3.0, 25: 2.1}, [2**14]),
    # Of a rise of 1.6 from 128 to 256 KiB a size off by 1.5 sees 1.21 within a factor of two, one
    # off by 1.55 only 1.19.
    ({18: 1.6}, [2**17 / 1.5]), ({18: 1.6}, [2**17 / 1.55]), ({18: 1.6}, [2**18 * 1.5]),
    ({18: 1.6}, [2**18 * 1.55]),
]  # fmt: skip


def risen(rises: dict[int, float]) -> Any:
    """A curve from 4 KiB to 32 MiB with 10 ns per hop.

    From 2**k bytes on, the time is multiplied by ``rises[k]``.
    """
    return latency(
        {k: 10.0 * math.prod(f for start, f in rises.items() if k >= start) for k in range(12, 26)}
    )


def test_ends_of_levels_on_other_curves(approved: Any) -> None:
    """01.9 compares with the curve that the learner saw."""
    text = ""
    for rises, answer in RISES:
        content.KEPT["latency curve"] = risen(rises)
        text += f"{rises}: {[round(one) for one in answer]}\n    {checked('01.9', answer)}"
    assert text == approved


def test_a_contest_that_is_not_won_for_good(approved: Any) -> None:
    """00.7: with its copies, the accelerator is ahead at 1, even at 2 and behind at 4."""
    rows = ((1, 1.0, 0.2, 0.5), (2, 1.0, 1.0, 1.0), (4, 1.0, 0.5, 2.0))
    content.KEPT["contest matmul"] = contest(rows)
    assert "".join(checked("00.7", answer) for answer in ("never", 1, 2, 4, 3)) == approved


def test_what_a_measurement_of_ones_own_must_have(approved: Any) -> None:
    """00.5: a measurement needs counted work, at least a million operations or bytes a second, an
    interval, and a possible time.
    """
    where = devices.environment("cpu")
    samples = np.array([1.9, 2.0, 2.1])
    one = Measurement(
        "mine", "cpu", samples, 2.0, (1.9, 2.1), 2.0, 2.0, None, 1, None, 2_000_000, (), HERE, where
    )
    noted = [Note("deadline", "Time was up."), Note("no-interval", "Too few samples.")]
    table: list[dict[str, Any]] = [
        {}, {"nbytes": None, "flops": 2e6}, {"flops": 1.0}, {"nbytes": 1_900_000},
        {"nbytes": None}, {"interval_seconds": None},
        {"interval_seconds": None, "notes": tuple(noted)}, {"notes": (noted[0],)},
        {"notes": (Note("implausible", "Impossible."),)},
    ]  # fmt: skip
    text = "".join(checked("00.5", dataclasses.replace(one, **change)) for change in table)
    assert text + "".join(checked("00.5", junk) for junk in (1, 1.5, "1.5 s")) == approved


def test_three_arrays_of_which_two_share(approved: Any) -> None:
    """02.9: whatever is wrong with one of the three has a sentence of its own."""
    a, watched, nothing = np.zeros(4), torch.zeros(4, requires_grad=True), np.zeros(0)
    view = arrays.share(a, "torch")
    table: list[Any] = [
        (a, view, watched), [view, a, watched], (a, view), (a, view, ...), ([0.0], view, watched),
        (a, [0.0], watched),
        (a, view, [0.0]), (a, a[:], watched), (a, torch.tensor(a), watched), (nothing,
        arrays.share(nothing, "torch"), watched),
        (a, view[1:], watched), (a, view, torch.zeros(4, dtype=torch.bfloat16)), (a, view,
        np.ones(3)), (a, view, torch.ones(3)),
    ]  # fmt: skip
    assert "".join(checked("02.9", answer) for answer in table) == approved


CELLS = (ROOT / "tests/lessons/right_answers.txt").read_text().split("# %% ")[1:]
HEAD = """\
import math
import numpy as np
import torch
from gpulab.kernels import cuda, float32


"""


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.partition("\n")[0])
def test_another_right_answer_passes(cell: str) -> None:
    """A check judges what an answer does, in whatever form it is written."""
    title, _, source = cell.partition("\n")
    assert_passes(content.exercise(title.partition(":")[0]), HEAD + source)
