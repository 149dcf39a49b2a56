"""The checks at their very edges: the last answer that passes, the first that does not, and what is said then; all by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from answered import said, solved

from gpulab import arrays, models
from gpulab.evidence import Evidence, Note
from gpulab.hierarchy import Latency, LatencyPoint, Reported
from gpulab.lessons import (
    _architecture,
    _density,
    _material,
    _nb00,
    _nb01,
    _nb01_exercises,
    _nb02_exercises,
    _nb09_script,
    _nb10_exercises,
)
from gpulab.lessons.content import Refused, Unmeasured
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline

MADE = Evidence.modelled("nothing", "this test")
HERE = Evidence.measured("A CPU")


@pytest.fixture(autouse=True)
def given_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 100 GFLOP/s and 20 GB/s, and four claims of which the first is exactly what its memory does."""
    claims = (("A", 1e9, 0.05), ("B", 8e9, 1.0), ("C", 24e9, 0.4), ("D", 16e9, 2.0))
    monkeypatch.setattr(_material, "_claims", _material.Claims(tuple(_material.Claim(a, "x", b, c) for a, b, c in claims), 20e9, MADE))
    roofs = (ArithmeticRoof("float32", 1e11, "x", HERE),), (MemoryRoof("DRAM", 2e10, math.inf, "x", HERE),)
    monkeypatch.setattr(_density, "_kept", Roofline("A CPU", *roofs, (), (), HERE))


def test_a_call_of_ten_times_twenty_is_not_said_to_be_near_the_work() -> None:
    """150 us beside a call of 5 us and a work of 15 ms: 100 times too short for the work, 30 times too long for the call."""
    reading = next(one for one in _nb00.RETURNS.readings if one.when(150e-6, 5e-6))
    assert "nearer" not in reading.sentence
    assert "a call has returned does not mean that it is done" in reading.sentence


def test_a_speedup_that_was_rounded_is_told_so() -> None:
    """5 ms over 5.02 ms are 0.99601594; with two decimals that is 1, and both would read 1.00x."""

    def speedup(slow: Any, fast: Any) -> tuple[float, ...]:
        (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds
        return tuple(round(each, 2) for each in (slow.median_seconds / fast.median_seconds, a / d, b / c))

    state, message = said("00.9", speedup)
    assert state == "wrong"
    assert message.endswith("you said 1; the medians' ratio is 0.99601594. Return it as it is, not rounded.")


def test_the_loop_may_send_a_tensor() -> None:
    """02.2 in PyTorch's arrays, as a notebook that imports torch invites: two copies in place of 200, the same numbers."""

    def frugal(device: Any, a: np.ndarray) -> np.ndarray:
        there = device.to_device(torch.from_numpy(a))
        for _ in range(100):
            there = device.run(lambda v: 3.9 * v * (1 - v), there)
        return device.to_host(there).numpy()

    state, message = said("02.2", frugal)
    assert (state, message[:25]) == ("passed", "200 copies became 2, and ")


@pytest.mark.parametrize(
    ("letter", "why"),
    [("B", " Count every"), ("D", " It is the longest time; what is impossible is a time too short for its bytes. Count every")],
)
def test_the_longest_time_is_not_the_impossible_one(letter: str, why: str) -> None:
    """8 GB in a second are no claim's extreme; 16 GB in two take longest."""
    state, message = said("00.2", letter)
    assert (state, f"8.00 GB/s, under your memory's 20.0 GB/s, so it can be true.{why} array" in message) == ("wrong", True), message


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        (("deadline", "implausible"), "The physics check refuses it: Of implausible. Measure a function that is done when it returns."),
        (("deadline", "no-interval"), "nobody can tell how much to believe. Of no-interval. Take more samples: raise deadline=."),
        (("deadline",), "nobody can tell how much to believe.  Take more samples"),
    ],
)
def test_a_note_says_why_a_measurement_is_refused(codes: tuple[str, ...], says: str) -> None:
    """00.5: the one that it is refused for, in its own words."""
    notes = tuple(Note(code, f"Of {code}.") for code in codes)
    one = dataclasses.replace(_nb00._made(2.0, 1.9, 2.1), nbytes=10**7, notes=notes, interval_seconds=None)
    state, message = said("00.5", one)
    assert (state, says in message) == ("wrong", True), message


def test_a_bare_number_keeps_nothing() -> None:
    """00.5: whole or not; a text is no measurement either."""
    assert [said("00.5", one)[1][:13] for one in (1, 1.5, "1.5 s")] == ["A bare number", "A bare number", "Your answer i"]


def test_a_buffer_is_shared_by_two_libraries_and_refused_by_one() -> None:
    """02.9: each thing that is wrong with one of the three, in its words."""
    a, watched = np.zeros(4), torch.zeros(4, requires_grad=True)
    view = arrays.share(a, "torch")
    nothing = np.zeros(0)
    table: list[tuple[Any, str]] = [
        ((a, view, watched), "One buffer, two libraries. The third is refused: "), ([view, a, watched], "One buffer, two libraries."),
        ((a, view), "the check expects three things"), (a, "the check expects three things"), ((a, view, ...), ""),
        (([0.0], view, watched), "All three must be arrays"), ((a, [0.0], watched), "All three must be arrays"),
        ((a, view, [0.0]), "All three must be arrays"), ((a, a[:], watched), "The first two both belong to numpy"),
        ((a, torch.tensor(a), watched), "The second is a copy, or begins elsewhere"),
        ((nothing, arrays.share(nothing, "torch"), watched), "The second is a copy, or begins elsewhere"),
        ((a, view[1:], watched), "The second is a copy, or begins elsewhere"),
        ((a, view, torch.zeros(4, dtype=torch.bfloat16)), "That numpy has no bfloat16 was shown above."),
        ((a, view, np.ones(3)), "With torch the third can be shared without a copy after all."),
        ((a, view, torch.ones(3)), "With numpy the third can be shared without a copy after all."),
    ]  # fmt: skip
    for answer, says in table:
        state, message = said("02.9", answer)
        right = says.startswith("One buffer")
        assert state == ("passed" if right else "not attempted" if not says else "wrong")
        assert says in message, message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return a", "Nothing ran on the device."),
        ("return list(device.to_host(device.run(lambda v: v, device.to_device(a))))", "the check expects a NumPy array."),
        ("there = device.run(lambda v: v, device.to_device(a))\n    return a", "What you returned is still on the device."),
        ("return device.to_host(device.run(lambda v: v, device.to_device(a)))[:5]", "The result is not that of a hundred steps."),
        ("return device.to_host(device.run(lambda v: v, device.to_device(a)))", "The result is not that of a hundred steps."),
        (
            "there = device.run(lambda v: step(step(v)), device.to_device(a))\n    for _ in range(98):\n"
            "        there = device.run(step, there)\n    return device.to_host(there)",
            "The device was given 99 call(s) for a hundred steps",
        ),
    ],
)
def test_each_thing_that_a_frugal_loop_can_lack_is_told(body: str, says: str) -> None:
    """02.2: nothing computed, another kind of array, nothing fetched, other numbers, and two steps in one call."""
    names: dict[str, Any] = {}
    exec(f"def step(v):\n    return 3.9 * v * (1 - v)\n\n\ndef frugal(device, a):\n    {body}\n", names)
    state, message = said("02.2", names["frugal"])
    assert (state, says in message) == ("wrong", True), message


def test_the_levels_of_a_block_are_compared_with_forty_warps() -> None:
    """01.6: 5 warps in each of 8 blocks are as many as 4 in each of 10; 6 in each of 6 are 36, and 3 in each of 13 are 39."""
    assert [said("01.6", (32 * warps, "registers"))[0] for warps in (4, 5, 6, 3)] == ["passed", "passed", "wrong", "wrong"]
    case = _nb01_exercises._REGISTERS, 0, _nb01_exercises._CAPABILITY
    most = max(models.occupancy(32 * warps, *case).warps_per_sm for warps in range(1, 33))
    assert _nb01_exercises._MOST_WARPS == most == 40


def test_a_rate_at_the_ceiling_can_be_true_and_one_above_cannot() -> None:
    """24e9 bytes are 22.4 GiB, and in 400 ms 60 GB/s; a letter may be small, with spaces around it."""
    why = "60.0 GB/s, but your memory reaches 20.0 GB/s. Whoever measured that stopped the clock too early."
    assert said("00.2", " c ") == ("passed", f"C moves 22.4 GiB in 400 ms: {why}")
    assert said("00.2", "A") == (
        "wrong",
        "A moves 954 MiB in 50.0 ms: 20.0 GB/s, under your memory's 20.0 GB/s, so it can be true. It is the shortest time, but it also has "
        "the least to do: divide the bytes by the time. Count every array that is read or written.",
    )


@pytest.mark.parametrize(
    ("nbytes", "flops", "says"),
    [
        (2_000_000, None, "2.00 s [1.90 s, 2.10 s] at 1.00 MB/s, which this device can do."),
        (None, 2e6, "2.00 s [1.90 s, 2.10 s] at 1.00 MFLOP/s, which this device can do."),
        (2_000_000, 1.0, "2.00 s [1.90 s, 2.10 s] at 1.00 MB/s, which this device can do."),
        (1_900_000, None, "950 kB/s is next to nothing"),
        (None, None, "Physics cannot be checked"),
    ],
)
def test_a_million_a_second_is_enough(nbytes: int | None, flops: float | None, says: str) -> None:
    """Of bytes or of operations, whichever is more."""
    import dataclasses

    state, message = said("00.5", dataclasses.replace(_nb00._made(2.0, 1.9, 2.1), nbytes=nbytes, flops=flops))
    assert (state, message[: len(says)]) == ("passed" if says.endswith("do.") else "wrong", says)


def test_where_the_accelerator_wins_at_small_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wins at 1, is even at 2 (with and without copies) and at 4 only without: the CPU is ahead at the largest size."""
    rows = tuple(_material.ContestRow(n, 1.0, 0.1, done, copied) for n, done, copied in ((1, 0.2, 0.5), (2, 1.0, 1.0), (4, 0.5, 2.0)))
    monkeypatch.setitem(_material._contests, ("matmul", "float32"), _material.Contest("m", "n", "x", rows, MADE, HERE))
    assert said("00.7", "Never ") == ("passed", "With the copies counted, the CPU is ahead at the largest size of the table.")
    both = "the CPU takes 1.00 s and the accelerator with copies"
    assert [said("00.7", n)[1] for n in (1, 2, 4, 3)] == [
        f"It wins there, but loses again at a larger size: at 1 {both} 500 ms. Give the size from which it stays ahead.",
        f"There the CPU is faster: at 2 {both} 1.00 s.",
        f"You left out the copies: at 4 {both} 2.00 s. Compare the column with copies.",
        "3 is not in the table; the check expects one of 1, 2, 4, or 'never'.",
    ]


SLOW, FAST = (10.0, 9.5, 10.6), (2.0, 1.95, 2.06)  # a ratio of 5, at least 9.5 / 2.06 = 4.612, at most 10.6 / 1.95 = 5.436


@pytest.mark.parametrize(
    ("ratio", "low", "high", "says"),
    [
        (5.0, 9.5 / 2.06, 10.6 / 1.95, ""),
        (5.0 * (1 + 0.9e-6), 4.612, 5.436, ""),
        (5.0 * (1 + 1.05e-6), 4.612, 5.436, "you said 5.0000053; the medians' ratio is 5. Return it as it is"),
        (5.0, 4.612 * 0.9905, 5.436 * 1.0095, ""),
        (5.0, 4.612 * 0.9893, 5.436, "wider than both"),
        (5.0, 4.612, 5.436 * 1.0107, "wider than both"),
        (5.0, 9.5 / 2.0, 10.6 / 2.0, ""),  # 9.5 / 2.0 is less than 10 / 2.06, 10.6 / 2.0 more than 10 / 1.95
        (5.0, 4.751, 5.4, "narrower than one"),
        (5.0, 4.7, 5.299, "narrower than one"),
        (5.0, 9.5 / 1.95, 5.436, "low over low and high over high cancel"),
        (5.0, 4.612, 10.6 / 2.06, "low over low and high over high cancel"),
        (5.0, 9.5 / 1.95 * (1 + 0.9e-6), 5.436, "cancel"),
        (5.0, 9.5 / 1.95 * (1 + 1.05e-6), 5.436, "narrower than one"),
        (5.0, 4.612, 10.6 / 2.06 * (1 - 0.9e-6), "cancel"),
        (5.0, 4.612, 10.6 / 2.06 * (1 - 1.05e-6), "narrower than one"),
        (0.2 * (1 + 0.9e-6), 4.612, 5.436, "upside down"),
        (0.2 * (1 + 1.05e-6), 4.612, 5.436, "the medians' ratio is 5.00x. Use m.median_seconds of both."),
        (5.0, 5.0, 5.0, "without a width"),
        (5.0, 5.4, 4.7, "low is above high"),
        (0.2, 4.612, 5.436, "upside down"),
    ],
)
def test_a_speedup_and_its_ends(ratio: float, low: float, high: float, says: str) -> None:
    """A millionth for rounding, a hundredth for an interval that was not divided but added up."""
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb00._judge((ratio, low, high), SLOW, FAST)
    assert not says or says in refused.value.args[0]


def test_a_speedup_of_one_is_not_upside_down() -> None:
    """It is the same either way; of a millionth more it is not, and of less than that nobody would be told so."""
    _nb00._judge((1.0, 0.9, 1.1), (1.0, 0.95, 1.05), (1.0, 0.95, 1.05))
    for off, says in ((1.05e-6, "that is upside down"), (0.95e-6, "Return it as it is, not rounded")):
        with pytest.raises(Refused, match=says):
            _nb00._judge((1 / (1 + off), 0.9, 1.1), (1 + off, 0.95, 1.05), (1.0, 0.95, 1.05))


AT_THE_EDGE: list[tuple[str, Any, str]] = [
    # Another kind of answer than is asked for.
    ("00.2", 3, "Your answer is an int (3); the check expects one letter"),
    ("00.2", "E", "Your answer is a str ('E'); the check expects one letter"),
    ("00.9", lambda slow, fast: 5.0, "Your function returned a float (5.0); the check expects ratio, low, high."),
    ("01.3", 17, "Your answer is an int (17); the check expects three whole numbers, one a kernel."),
    ("01.3", (16, 0), "Your answer is a tuple ((16, 0)); the check expects three whole numbers"),
    ("01.6", 256, "Your answer is an int (256); the check expects a block size and a limiter"),
    ("01.6", (128, 5), "Your answer is a tuple ((128, 5)); the check expects a block size and a limiter"),
    ("01.6", (128, "register"), "'register' is no limiter; the check expects one of warps, registers, shared, blocks."),
    ("01.7", 40, "Your answer is an int (40); the check expects registers of a thread and bytes of shared memory of a block."),
    ("01.7", (40, 1, 2), "Your answer is a tuple ((40, 1, 2)); the check expects registers of a thread"),
    ("01.9", 2**15, "Your answer is an int (32768); the check expects sizes in bytes"),
    ("01.9", [], "Your answer is a list ([]); the check expects sizes in bytes"),
    ("01.9", ["many"], "The check cannot read 'many' as a size; it expects sizes in bytes"),
    ("03.3", 0.5, "Your answer is a float (0.5); the check expects a dict from each name to seconds."),
    ("03.10", 5, "Your answer is an int (5); the check expects two things: a cause and a number of bytes."),
    # 16 warps of 128 x 4 threads.
    ("01.3", (16, 16, 1), "b: half of the warps go one way"),
    ("01.3", (17, 0, 1), "a: 17 is more than the 16 warps that there are. Count warps, not threads."),
    ("01.3", (16, 0, 16), "c: only the warp in which the first hundred end"),
    ("01.6", (0, "warps"), "A block of 0 threads cannot be launched"),
    ("01.6", (1, "warps"), "1 thread takes 1 warp,"),
    ("01.6", (1024, "warps"), "1024 threads reach "),
    ("01.6", (1025, "warps"), "A block of 1025 threads cannot be launched"),
    ("01.6", (128.5, "warps"), "A block of 128.5 threads cannot be launched"),
    ("01.7", (0, 37 * 1024), "0 registers and 37888 bytes: a thread has 1 to 255"),
    ("01.7", (1, 37 * 1024), "1 register keeps 75%, but so do 2."),
    ("01.7", (255, 0), "With 255 registers it is "),
    ("01.7", (256, 0), "256 registers and 0 bytes: a thread has 1 to 255"),
    ("01.7", (40, 2**20), "With 1.00 MiB it is "),
    ("01.7", (40, 2**20 + 1), "40 registers and 1.04858e+06 bytes"),
    ("01.7", (40, 1023), "1023 bytes of shared memory: did you write KiB?"),
    ("01.7", (40, 1024), "1.00 KiB keep 75%, but so do 2.00 KiB."),
    ("01.7", (40, 0), "0 B keep 75%, but so do 1.00 KiB."),
    ("01.7", (39, 37 * 1024), "39 registers keep 75%, but so do 40."),
    ("01.7", (41, 0), "With 41 registers it is 62% even without shared memory."),
    ("01.7", (40, 36 * 1024), "36.0 KiB keep 75%, but so do 37.0 KiB."),
    ("01.7", (40, 38 * 1024), "With 38.0 KiB it is 62%. From 8.0 on"),
    ("02.8", 0, "0 chunks cannot be made"),
    ("02.8", 10**6, "In 1000000 x 268 B you reach "),
    ("02.8", 10**6 + 1, "1e+06 chunks cannot be made"),
    ("02.8", 5, "In 5 x 51.2 MiB you reach 79.6% of the ideal gain: the first chunk alone costs a 5th of it"),
    ("02.8", 1, "+one chunk there is nothing to compute until all of it has arrived."),
    # A column of 2^20 numbers: lines of 64 or 128 bytes, within a hundredth; the numbers alone are 4 MiB.
    ("03.10", ("Lines ", 64 * 2**20 * 1.009), "!64.6 MiB travel for 4.00 MiB that are used: 16.1x as much."),
    ("03.10", ("lines", 128 * 2**20 * 0.991), "!127 MiB travel for 4.00 MiB that are used: 31.7x as much."),
    ("03.10", ("lines", 64 * 2**20 * 1.0105), "64.7 MiB is not it"),
    ("03.10", ("lines", 3.95 * 2**20), "3.95 MiB is less than the 4.00 MiB"),
    ("03.10", ("lines", 3.96 * 2**20), "Those are the bytes that you asked for."),
    ("03.10", ("lines", 4.04 * 2**20), "Those are the bytes that you asked for."),
    ("03.10", ("lines", 4.05 * 2**20), "4.05 MiB is not it"),
    ("03.10", ("lines", 256 * 2**20), "That is the whole matrix."),
    ("03.10", ("lines", -1), "0 B is less than the 4.00 MiB"),
    # The ridge is at 5 FLOP a byte: 4 x 5 x 4096^2 / (2 x 4096^2 - 8 x 4096 x 5) = 10.05 rows, so from 6.70 to 16.5.
    ("03.6", 6, "With 6 rows the layer has 2.99 FLOP a byte; your ridge is at 5 FLOP a byte. That is still under the ridge"),
    ("03.6", 7, "!From about 11 rows on: your ridge is at 5 FLOP a byte"),
    ("03.6", 16, "!From about 11 rows on"),
    ("03.6", 17, "With 17 rows the layer has 8.43 FLOP a byte; your ridge is at 5 FLOP a byte. That is well beyond"),
    ("03.6", 0, "0 rows is no batch"),
    ("03.6", 1, "With 1 row the layer has 0.5 FLOP a byte"),
    ("03.6", "Never", "It does turn: your ridge is at 5 FLOP a byte"),
    ("06.5", {"workers": 0, "prefetch": 2}, "Without workers the training loads by itself, and the accelerator waits "),
    ("06.5", {"workers": 6, "prefetch": 2}, "!6 workers, each 2 ahead: the accelerator waits "),
    ("06.5", {"workers": 13, "prefetch": 1}, "13 workers, each 1 ahead, are 13 batches in the host's memory; there is room for 12."),
    ("06.5", {"workers": 1, "prefetch": 2}, "The accelerator still waits "),
    ("08.8", {"microbatches": 0, "schedule": "1f1b"}, "microbatches is an int (0); a batch of 96 can be cut into 1 to 96"),
    ("08.8", {"microbatches": 97, "schedule": "1f1b"}, "microbatches is an int (97)"),
    ("08.8", {"microbatches": 1, "schedule": "1f1b"}, "With 1 microbatch the bubble is 75.0%"),
    ("08.8", {"microbatches": 96, "schedule": "1f1b"}, "Microbatches of 1 sample leave each stage too little"),
    ("08.8", {"microbatches": 64, "schedule": "1f1b"}, "96 samples cannot be cut into 64 equal microbatches."),
    ("08.8", {"microbatches": 48, "schedule": "gpipe"}, "gpipe keeps the activations of 48 microbatches until their backward passes"),
    ("08.8", {"microbatches": 24, "schedule": "1f1b"}, "With 24 microbatches the bubble is 11.1%"),  # 3 / 27
    ("08.8", {"microbatches": 32, "schedule": "1f1b"}, "!32 microbatches: a bubble of 8.6%, and at most 4 microbatches held at once"),
    ("09.7", ["data on the device", "CUDA graph", "compile", "bfloat16"], "These are 4 techniques; choose at most 3."),
    ("09.7", ["prefetch", "prefetch"], "One technique is there twice."),
    # Of 8, 6, 5 and 1 ms: both on loading leave 0.1, and 12 beside: 20 / 12.1.
    ("09.7", ["data on the device", "prefetch"], "Together these make the step 1.65x as fast. Two of yours mend loading, and the second "
     "finds little left. The largest part that is left is starting."),
    ("09.7", ["CUDA graph", "fused optimizer"], "Together these make the step 1.38x as fast. The largest part that is left is loading."),
    ("09.7", ["data on the device", "CUDA graph", "bfloat16"], "!4.55x with 3 techniques"),  # 0.8 + 0.6 + 2 + 1 = 4.4 ms
]  # fmt: skip


@pytest.mark.parametrize(("id", "answer", "says"), AT_THE_EDGE, ids=[f"{id}-{k}" for k, (id, *_) in enumerate(AT_THE_EDGE)])
def test_an_answer_at_the_edge(id: str, answer: Any, says: str) -> None:
    """With "!" it passes; with "+" the words stand at the end."""
    state, message = said(id, answer)
    if says.startswith("+"):
        assert (state, message.endswith(says[1:])) == ("wrong", True), message
    else:
        assert (state, message.startswith(says.removeprefix("!"))) == ("passed" if says.startswith("!") else "wrong", True), message


@pytest.mark.parametrize(
    ("name", "factor", "says"),
    [
        ("add", 1.5, ""),
        ("add", 1 / 1.5, ""),
        ("add", 1.51, "That is too much"),
        ("add", 0.66, "That is too little"),
        ("matmul", 1.5, ""),
        ("matmul", 0.54, "That is half of the arithmetic"),
        ("matmul", 0.46, "That is half of the arithmetic"),
        ("matmul", 0.56, "That is too little"),
        ("sum", 0.27, "a fourth of what it takes to move it all"),
        ("sum", 0.28, "That is too little"),
        ("softmax", 0.46, "half of what it takes to move it all"),
        ("softmax", 0.44, "That is too little"),
    ],
)
def test_a_time_is_placed_within_half_as_much_again(name: str, factor: float, says: str) -> None:
    """The ends count; a usual slip is told within a tenth of what it gives."""
    n = 2**24
    by_hand = {
        "add": 12 * n / 2e10,
        "sum": 4 * n / 2e10,
        "softmax": 8 * n / 2e10,
        "one row": 4 * 4096**2 / 2e10,
        "matmul": 2 * 1024**3 / 1e11,
    }
    from gpulab.lessons._nb03_exercises import five_works

    exact = {key: max(work.flops / 1e11, work.nbytes / 2e10) for key, work in five_works().items()}
    assert exact == pytest.approx(by_hand, rel=1e-3)
    state, message = said("03.3", exact | {name: exact[name] * factor})
    assert (state, says in message) == ("wrong" if says else "passed", True), message
    assert said("03.3", exact | {name: 0})[1] == f"{name}: 0 s; a time is more than nothing."


@pytest.mark.parametrize(
    ("mine", "low", "high", "size", "offset", "says"),
    [
        (0.901, 5, 6, 10**6, 1.0, ""),
        (1.099, 5, 6, 10**6, 1.0, ""),
        (1.105, 1.105, 6, 10**6, 1.0, ""),
        (1.105, 1.0, 1.105, 10**6, 1.0, ""),
        (1.105, 1.2, 6, 10**6, 1.0, "The noise of the largest copies"),
        (1.105, 1.2, 6, 10**6, 0.0, "Small copies have a start too"),
        (0.895, 1.2, 6, 10**6 + 1, 0.0, "The large copies are off"),
    ],
)
def test_a_predicted_copy_may_be_off_by_a_tenth(mine: float, low: float, high: float, size: int, offset: float, says: str) -> None:
    """Or lies in the fit's own interval, ends included; which advice is given turns at a million bytes."""
    best = SimpleNamespace(prediction_interval_seconds=lambda nbytes: (low, high))
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb02_exercises._judge_size(size, (offset, mine, 1.0), best, "So")
    assert not says or says in refused.value.args[0]


@pytest.mark.parametrize(
    ("latency", "bandwidth", "says"),
    [
        (1e6, 1.0, ""),
        (1.05e6, 2.0, "in the wrong order"),
        (9e-9, 0.5, "that is the slope, then the latency"),
        (9e-9, -0.5, "that is the slope, then the latency"),
        (1.05e-8, 0.5, "your bandwidth is 0.5 bytes a second. The slope"),
        (9e-9, 1.5, ""),
        (1.0, 1.5, ""),
        (0.0, 0.0, "a copy never gives time back"),
    ],
)
def test_two_numbers_that_mean_something_else(latency: float, bandwidth: float, says: str) -> None:
    """A slope is under 10 ns a byte, a latency under a million seconds, a bandwidth at least a byte a second."""
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb02_exercises._judge_numbers(latency, bandwidth, "So")
    assert not says or says in refused.value.args[0]


def _curve(steps: dict[int, float], last: int = 26) -> Latency:
    """From 4 KiB on in doublings; 10 ns a hop, times a factor from each size that is named on (as a power of two)."""
    times = [10e-9 * math.prod(factor for start, factor in steps.items() if k >= start) for k in range(12, last)]
    points = tuple(LatencyPoint(2 ** (12 + k), t, None, t, 5, 1) for k, t in enumerate(times))
    return Latency("A CPU", "python", points, None, (), (), HERE, None)


@pytest.mark.parametrize(
    ("steps", "answer", "says"),
    [
        ({18: 1.25}, [2**17], ""),
        ({18: 1.15}, [2**17], "Around 128 KiB your curve is flat"),
        ({15: 3.0, 20: 2.1}, [2**14], "a hop gets 2.10x as long; your list has no level's end there"),
        ({15: 3.0, 20: 1.9}, [2**14], ""),
        ({15: 3.0, 20: 1.5, 22: 1.5}, [2**14], ""),  # two rises within a factor of eight, and none that doubles within four
        # Of a rise of 1.6 times from 128 to 256 KiB a size that is off by 1.5 sees 1.21 times within a factor of two, by 1.55 only 1.19.
        ({18: 1.6}, [2**17 / 1.5], ""),
        ({18: 1.6}, [2**17 / 1.55], "your curve is flat"),
        ({18: 1.6}, [2**18 * 1.5], ""),
        ({18: 1.6}, [2**18 * 1.55], "your curve is flat"),
        ({18: 3.0}, [511], "511 bytes: did you write KiB?"),
        ({18: 3.0}, [512], "512 B is not on your curve, which goes from 4.00 KiB to 32.0 MiB."),
        ({18: 3.0}, [2**17, 2**17], "The sizes must go up"),
        ({18: 3.0}, [2**17, 24 * 2**20], "Around 24.0 MiB your curve is flat"),
        ({15: 3.0, 25: 2.1}, [2**14], "a hop gets 2.10x as long"),  # in the last doubling of the curve
        ({18: 3.0}, [2**26], "64.0 MiB is not on your curve"),
    ],
)
def test_a_level_ends_where_the_curve_rises(steps: dict[int, float], answer: list[int], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth within a factor of two each way is a rise; one that doubles must not be left out."""
    monkeypatch.setattr(_architecture, "_curve", _curve(steps))
    state, message = said("01.9", answer)
    assert (state, says in message) == ("wrong" if says else "passed", True), message


def test_main_memory_is_compared_with_the_nearest_cache() -> None:
    """Of three levels the last over the first; of one there is no answer."""
    levels = [SimpleNamespace(latency_seconds=s) for s in (2.0, 6.0, 10.0)]
    found = (SimpleNamespace(levels=levels[:k], unseen=()) for k in (1, 2, 3))
    curves = [SimpleNamespace(levels=lambda one=one: one, reported=(), points=[SimpleNamespace(nbytes=2**26)]) for one in found]
    assert [_nb01._far_over_near(curve) for curve in curves[1:]] == [3.0, 5.0]
    with pytest.raises(Unmeasured, match="shows no level's end"):
        _nb01._far_over_near(curves[0])


@pytest.mark.parametrize(
    ("caches", "told"),
    [
        ((2**15, 2**21, 480 * 2**20), False),  # the curve ends inside of the last
        ((2**15, 2**21, 20 * 2**20), False),  # the largest set is not twice as large
        ((2**15, 2**21, 16 * 2**20), True),  # it shows no end, and the largest set is twice as large
        ((2**15, 2**21), True),  # each ends in a rise
        ((), True),  # the system tells of none
    ],
)
def test_a_last_flat_part_that_may_be_a_caches_is_no_main_memory(caches: tuple[int, ...], told: bool) -> None:
    """Two rises, of 3 and of 2 times, at about 16 KiB and 1 MiB, of a curve that ends at 32 MiB."""
    curve = dataclasses.replace(_curve({15: 3.0, 20: 2.0}), reported=tuple(Reported(f"L{k}", n) for k, n in enumerate(caches, 1)))
    if told:
        assert _nb01._far_over_near(curve) == pytest.approx(6.0)
        return
    with pytest.raises(
        Unmeasured, match=r"32\.0 MiB, is not far above your largest cache \(L3 \d+.* MiB\).* takes 6\.00x as long as the first"
    ):
        _nb01._far_over_near(curve)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f, true: true * 1.019, ""),
        (lambda f, true: true * 0.981, ""),
        (lambda f, true: true * 1.021, "it takes 4.02 ms. Is all that is timed one call"),
        (lambda f, true: true * 2.03, "that is the work of 2 calls. Was the one before still under way"),
        (lambda f, true: true * 2.045, "it takes 4.02 ms"),
        (lambda f, true: true * 3.0, "that is the work of 3 calls. If you timed several"),
        (lambda f, true: true * 0.51, "it takes 4.02 ms"),
        (lambda f, true: true * 0.49, "that is when the call returned"),
        (lambda f, true: 0.0, "the call takes longer than nothing"),
    ],
)
def test_a_call_is_timed_within_a_fiftieth(change: Any, says: str) -> None:
    """20 us to return and 4 ms of work; twice or three times that are as many calls."""

    def seconds(f: Any, x: Any, clock: Any) -> float:
        f(x).block_until_ready()
        start = clock()
        f(x).block_until_ready()
        return change(f, clock() - start)

    state, message = said("10.2", seconds)
    assert (state, says in message) == ("wrong" if says else "passed", True), message


@pytest.mark.parametrize("how", _nb10_exercises._SLIPS)
def test_each_slip_of_the_translation_is_told(how: str) -> None:
    """In the words for it; and one that is none of them by its size."""
    assert said("10.4", lambda x: _nb10_exercises._matlab(x, how)) == ("wrong", _nb10_exercises._SLIPS[how])
    assert "Your numbers differ from the script's by up to " in said("10.4", lambda x: _nb10_exercises._matlab(x) * 1.02)[1]
    assert said("10.4", lambda x: _nb10_exercises._matlab(x) * 1.0005)[0] == "passed"
    assert "Your result has 1 number, the script's 3." in said("10.4", lambda x: np.ones(1))[1]


@pytest.mark.parametrize(
    ("most", "small", "says"),
    [
        ({}, 1, "!11 programs are compiled, and at most 2 times the rows are computed, for the 1000 batch sizes that may come."),
        ({1000: 1000}, 1, "12 programs are compiled, and at most 2 times the rows are computed: 11 programs are allowed."),
        ({10: 21}, 2, "11 programs are compiled, and at most 2.1 times the rows are computed (of 10 rows): 2 times is allowed."),
        ({1: 0}, 1, "For 1 row you gave 0: 1 of them would be cut off."),
        ({3: 3.5}, 1, "For 3 rows you gave 3.5; a batch has a whole number of rows."),
    ],
)
def test_batches_share_eleven_shapes(most: dict[int, float], small: int, says: str) -> None:
    """Powers of two from 1 to 1,024 are eleven, and at most double a batch; every size from 1 to 1,000 is asked for."""
    asked: list[int] = []

    def padded(rows: int) -> float:
        asked.append(rows)
        return most.get(rows, max(small, 1 << (rows - 1).bit_length()))

    state, message = said("10.8", padded)
    assert (state, message.startswith(says.removeprefix("!"))) == ("passed" if says[0] == "!" else "wrong", True), message
    assert asked == list(range(1, len(asked) + 1))
    assert len(asked) == (1000 if says[0] in "!1" else len(asked))


@pytest.mark.parametrize(
    ("id", "factor", "passes"),
    [
        ("09.5", 1 + 0.9e-6, True), ("09.5", 1 + 1.05e-6, False), ("09.9", 1 + 0.9e-6, True), ("09.9", 1 + 1.05e-6, False),
        ("10.6", 1 + 0.9e-5, True), ("10.6", 1 + 1.05e-5, False), ("03.11", 1.009, True), ("03.11", 1.0105, False),
    ],
)  # fmt: skip
def test_what_is_left_to_rounding(id: str, factor: float, passes: bool) -> None:
    """A number may be off by so much, and by no more."""
    answer = solved(id)
    assert said(id, lambda *given: answer(*given) * factor)[0] == ("passed" if passes else "wrong")


@pytest.mark.parametrize(
    ("id", "more", "passes"),
    [("07.2", 1.0, True), ("07.2", 1.05, False), ("06.9", 1.0, True), ("06.9", 1.05, False), ("08.10", 64.0, True), ("08.10", 65.0, False)],
)
def test_what_is_left_to_rounding_up(id: str, more: float, passes: bool) -> None:
    """A byte or a call more is as right; a shard of a model may be a cache line larger."""
    answer = solved(id)

    def off(*given: Any) -> Any:
        found = answer(*given)
        return found if found is None else found + more

    assert said(id, off)[0] == ("passed" if passes else "wrong")


def test_a_script_that_takes_as_many_samples_trains_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fewer is less."""
    job = SimpleNamespace(train=[()] * 64)
    monkeypatch.setattr(_nb09_script, "Data", lambda *parts: parts)
    for mine, less in ((192, False), (191, True)):
        taken = {"mine": mine, "theirs": 192}
        monkeypatch.setattr(_nb09_script, "samples_of", lambda script, *_, taken=taken: taken["mine" if script == "mine" else "theirs"])
        with pytest.raises(Refused, match="192") if less else contextlib.nullcontext():
            _nb09_script._as_many("mine", job)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda codes, scales: (codes, scales * 1.0009), ""),
        (lambda codes, scales: (codes, scales * 1.0015), "steps are wider than they need be"),
        (lambda codes, scales: (codes[:, :-1], scales), "codes have the shape (2, 2)"),
        (lambda codes, scales: (codes, scales[:1]), "one scale for the whole layer"),
        (lambda codes, scales: (codes, scales.repeat(2, 1)[:3]), "There are 3 scales"),
        (lambda codes, scales: (codes, scales * float("nan")), "not finite"),
        (lambda codes, scales: (codes + 0.5, scales), "not whole numbers"),
        (lambda codes, scales: (codes * 2, scales / 2), "A code of 8 bits is 254; expected from -127 to 127"),
        (lambda codes, scales: (codes + (codes == 0).double(), scales), "A weight of zero has another code"),
        (lambda codes, scales: (codes - 2 * (codes == 64).double(), scales), "A weight was cut off"),
        (lambda codes, scales: (codes - (codes == 64).double(), scales), "A weight moved by more than half a step"),
    ],
)
def test_how_far_a_rounded_weight_may_be_off(change: Any, says: str) -> None:
    """Rows of 127, 0 and 63.6 steps, of 1 and of 0.01: half a step is the most, and a thousandth for the scale."""
    import torch

    from gpulab.lessons import _nb07_exercises

    scales = torch.tensor([[1.0], [0.01]]).double()
    weight = torch.tensor([[-127.0, 0.0, 63.6], [127.0, 0.0, 63.6]]).double() * scales
    codes = torch.tensor([[-127.0, 0.0, 64.0], [127.0, 0.0, 64.0]]).double()
    _nb07_exercises._judge(codes, scales, weight.double() - 0.1 * (codes == 64).double() * scales, 8)  # exactly half a step
    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb07_exercises._judge(*change(codes, scales), weight, 8)
    assert not says or says in refused.value.args[0]


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (63.5, ""),
        (63.48, "more than half a step"),
        (64.52, "more than half a step"),
        (65.0, "more than half a step"),
        (65.05, "was cut off"),
    ],
)
def test_half_a_step_is_rounding_and_a_whole_one_is_the_end(weight: float, says: str) -> None:
    """Of the code 64 in steps of 1: a five-hundredth of half a step, and a hundredth of a whole one, for float32."""
    import torch

    from gpulab.lessons import _nb07_exercises

    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb07_exercises._judge(
            torch.tensor([[127.0, 64.0], [127.0, 64.0]]).double(), torch.ones(2, 1).double(),
            torch.tensor([[127.0, weight], [127.0, 64.0]]).double(), 8,
        )  # fmt: skip
    assert not says or says in refused.value.args[0]


@pytest.mark.parametrize(
    ("codes", "step", "weight", "says"),
    [
        (64, 1000, 64_501, ""),  # a five-hundredth beyond half a step
        (64, 1000, 64_502, "more than half a step"),
        (64, 100, 6501, "more than half a step"),  # a hundredth beyond a whole one
        (64, 100, 6502, "was cut off"),
    ],
)
def test_room_for_rounding_is_taken_whole(codes: int, step: int, weight: int, says: str) -> None:
    """07.6: a weight beside one of 127 whole steps; the numbers are exact, so each limit is met at its very end."""
    import torch

    from gpulab.lessons import _nb07_exercises

    with pytest.raises(Refused) if says else contextlib.nullcontext() as refused:
        _nb07_exercises._judge(
            torch.tensor([[127.0, codes]] * 2).double(), torch.full((2, 1), float(step)).double(),
            torch.tensor([[127.0 * step, weight], [127.0 * step, 64.0 * step]]).double(), 8,
        )  # fmt: skip
    assert not says or says in refused.value.args[0]


@pytest.mark.parametrize(
    ("said_bytes", "why"),
    [
        (8 * 225_000.0, "Those are bits."),
        (200_000.0, "but not where they belong"),
        (800_000.0, "every zero in full"),
        (100_000.0 / 4 + 600_000.0, "You stored the zeros and left out the others"),
        (1.0, "It is the smaller of two"),
    ],
)
def test_usual_sizes_of_a_file_are_told(said_bytes: float, why: str) -> None:
    """200,000 weights of 32 bits, three of four zero: 25,000 bytes of mask and 200,000 of the others."""
    from gpulab.lessons import _nb07_exercises

    assert _nb07_exercises.stored_bytes(200_000, 0.75, 32) == 225_000
    for off in (0.0, 0.99):
        assert why in _nb07_exercises._why_bytes(said_bytes + off, 200_000, 0.75, 32)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("train", "'prune channels' is missing"),
        ("train, prune channels, fine-tune, prune weights, fine-tune, quantise, quantise", "Quantise once, at the end"),
        ("train, train, prune channels, fine-tune, prune weights, fine-tune, quantise", "Training comes first, and once"),
        ("train, prune weights, fine-tune, prune channels, fine-tune, quantise", "Remove channels before single weights"),
        ("train, prune channels, fine-tune, prune weights, fine-tune, prune channels, fine-tune, quantise", "Remove channels before"),
        ("train, prune channels, prune weights, fine-tune, quantise", "After 'prune channels' comes 'prune weights'"),
        ("Train, Prune  channels, fine-tune, prune weights, fine-tune, prune weights, fine-tune, quantise", ""),
    ],
)
def test_an_order_of_steps(order: str, says: str) -> None:
    """Each mistake in its own words; weights may be pruned twice, however the steps are written."""
    state, message = said("07.5", order.split(", "))
    assert (state, says in message) == ("wrong" if says else "passed", True), message
