"""What a check says to a wrong answer that has a reason: each number that a slip gives, by hand, and the words for it."""

from __future__ import annotations

from typing import Any

import pytest
from answered import said, solved

from gpulab.lessons import _nb03_exercises, _nb05_exercises, _nb06_memory, _nb07_exercises, _nb08_exercises, _nb09_exercises


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (54 * 16, "they count once"),  # 2 x 3 channels, 3 x 3, at each of 4 x 4 pixels
        (27, "Each output channel looks at every input channel."),
        (18, "A kernel has kernel x kernel weights."),
        (9, "One kernel for each pair"),
    ],
)
def test_weights_of_a_convolution(weights: int, words: str) -> None:
    """From 2 to 3 channels with 3 x 3 there are 54."""
    assert words in _nb07_exercises._why_convolution(weights, 2, 3, 3, 4)


@pytest.mark.parametrize(("weights", "words"), [(96, "has a weight for each input number"), (97, "Flatten both images")])
def test_weights_of_a_linear_layer(weights: int, words: str) -> None:
    """From 2 to 3 channels of 4 x 4 there are 2 x 16 x 3 x 16; one a pixel and channel of the output are 96."""
    assert words in _nb07_exercises._why_linear(weights, 2, 3, 3, 4)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.5, "Those are multiply-adds"),
        (4.0, "only at the input channels of its own group"),
        (0.25, "divided by the groups twice"),
        (1 / 49, "the FLOPs of one pixel"),
        (3.0, "Two for each weight that is read"),
    ],
)
def test_operations_in_groups(ratio: float, words: str) -> None:
    """What was said over what is right, of 4 groups and 7 x 7 pixels."""
    assert words in _nb07_exercises._why_grouped(ratio, 4, 7)


@pytest.mark.parametrize(
    ("stage", "nbytes", "words"),
    [
        (1, 3700.0 / 4, "Those are numbers"),
        (1, 2700.0, "The activations are missing."),
        (1, 2700.0 + 1000 / 8, "The activations are not sharded"),
        (1, 4800.0 + 1000, "Nothing is split yet."),
        (2, 600.0 + 1000, "With ZeRO-2 not all of it is split."),
        (1, 3700.0 - 150, "Adam keeps two numbers for each parameter, not one."),
        (1, 3700.0 - 300, "Adam's state is missing."),
        (2, 2650.0 - 150, "Adam keeps two numbers"),
        (0, 5800.0 - 1200, "Adam keeps two numbers"),
        (2, 2650.0 - 1, "Four numbers for each parameter"),
    ],
)
def test_the_memory_of_a_rank(stage: int, nbytes: float, words: str) -> None:
    """300 million parameters and a GB of activations on 8 ranks, in MB: 4,800 in one piece, 2,700, 1,650 and 600 with ZeRO-1, 2 and 3."""
    million = 1_000_000
    whole = [_nb08_exercises.rank_bytes(300 * million, 1000 * million, 8, each) / million for each in range(4)]
    assert whole == [4800 + 1000, 2700 + 1000, 1650 + 1000, 600 + 1000]
    assert words in _nb08_exercises._why_memory(nbytes * million, 300 * million, 1000 * million, 8, stage)


def test_each_letter_of_what_may_be_said_has_its_reason() -> None:
    """The other words for one letter, and the sentence for it."""
    right = solved("09.3")
    for letter, (word, why) in _nb09_exercises._GAINS.items():
        assert right[letter] == word
        for other in {"faster", "slower", "not shown"} - {word}:
            assert said("09.3", right | {letter: other}) == ("wrong", f"{letter} is not {other!r}. {why}")


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        (lambda before, after: 0.5, "That is the slower over the faster"),
        (lambda before, after: 1.0, "You compare the seconds of the two runs"),
        (lambda before, after: 0.25, "You compare the seconds of a step"),
        (lambda before, after: 8.0, "You count the batch and forget"),
        (lambda before, after: 3.0, "How many samples does each run learn from in a second?"),
    ],
)
def test_samples_a_second(slip: Any, words: str) -> None:
    """400 steps of 16 in 2 s, then 100 of 128 in 2 s: twice as many; the first case tells the slips apart."""
    state, message = said("09.9", slip)
    assert (state, words in message) == ("wrong", True), message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (100 / 49, "You multiply the single gains."),  # 10 / 7, twice
        (2.5, "You subtract each saving from the whole step"),  # 10 / (10 - 3 - 3)
        (0.55, "That is the time that is left, as a ratio."),
        (7.0, "it is 1.818x."),
    ],
)
def test_techniques_together(value: float, words: str) -> None:
    """Of 10 ms the 6 of loading are halved twice: 5.5 ms are left."""

    def together(parts: dict[str, float], leaves: list[dict[str, float]]) -> float:
        return 10 / 7 if len(leaves) == 1 else value

    state, message = said("09.5", together)
    assert (state, words in message) == ("wrong", True), message


@pytest.mark.parametrize(
    ("said_seconds", "computing", "moving", "words"),
    [
        (1.0, 1.0, 8.0, "what the arithmetic alone would take"), (1.09, 1.0, 8.0, "what the arithmetic alone"),
        (1.105, 1.0, 8.0, "too little"), (0.912, 1.0, 8.0, "what the arithmetic alone"), (0.905, 1.0, 8.0, "too little"),
        (2.0, 1.0, 8.0, "a fourth of what it takes"), (4.0, 1.0, 8.0, "half of what it takes"), (16.0, 1.0, 8.0, "too much"),
        (1.0, 8.0, 1.0, "what the bytes alone would take"), (4.0, 8.0, 1.0, "half of the arithmetic"), (2.0, 8.0, 1.0, "too little"),
        (16.0, 8.0, 1.0, "too much"), (7.0, 8.0, 1.0, "too little"), (7.0, 1.0, 8.0, "too little"),
        (4.0, 8.0, 8.0, "half of the arithmetic"), (8.0, 8.0, 8.0, "what the bytes alone would take"),
    ],
)  # fmt: skip
def test_a_time_that_was_placed_elsewhere(said_seconds: float, computing: float, moving: float, words: str) -> None:
    """03.3: 1 s of arithmetic and 8 s of bytes, or the other way round; a slip is known within a tenth, and of equals the arithmetic."""
    assert words in _nb03_exercises._why_misplaced(said_seconds, computing, moving)


@pytest.mark.parametrize(("speed", "passes"), [(4.0, True), (3.999, False)])
def test_four_times_as_fast_is_enough(speed: float, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """09.7: of no technique at all the largest part is loading, with 8 of 20 ms."""
    monkeypatch.setattr(_nb09_exercises, "speed_of", lambda parts, leaves: speed)
    assert said("09.7", []) == (
        ("passed", "4.00x with 0 techniques, one for each large part (MODELLED).") if passes
        else ("wrong", "Together these make the step 4.00x as fast. The largest part that is left is loading.")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "value", "words"),
    [
        (0, 1 / 200, "That is upside down"),
        (0, 600.0, "the ratio of the peaks of arithmetic"),
        (1, 200.0, "the ratio of the bandwidths"),
        (1, 5.0, "On each processor the longer"),
        (3, 200.0, "That leaves out the copies"),
        (3, 5.0, "Add the copies to the GPU's time"),
    ],
)
def test_the_most_that_a_gpu_gains(case: int, value: float, words: str) -> None:
    """0.1 and 60 TFLOP/s, 20 GB/s and 4 TB/s: 200 times where memory binds on both, 600 where arithmetic does."""
    right, calls = solved("03.11"), [0]

    def gain(*given: Any) -> float:
        calls[0] += 1
        return value if calls[0] == case + 1 else right(*given)

    state, message = said("03.11", gain)
    assert (state, words in message) == ("wrong", True), message


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({1000.0: "float32"}, "choose(1000, 0.001, 0.0006): float32 would do, but so would a format of 16 bits (rounding to nearest"),
        ({1e6: "float32"}, "choose(1e+06, 0.001, 0.01): float32 would do, but so would a format of 16 bits. The check"),
        ({200.0: "float64"}, "choose(200, 1e-06, 0.001): float64 would do, but so would a format of 32 bits. The check"),
        ({1000.0: "float8_e4m3fn"}, "float8_e4m3fn ends at 448; 1000 does not fit."),
        ({1000.0: "bfloat16"}, "bfloat16 rounds by up to half of its epsilon, 0.0039 of a number: more than 0.0006."),
        ({200.0: "float16"}, "below 6.1e-05 the numbers of float16 are subnormal"),
        ({1000.0: "int8"}, "choose(1000, 0.001, 0.0006) gives a str ('int8'); the check expects one of"),
    ],
)
def test_a_format_that_does_not_fit_the_task(wrong: dict[float, str], words: str) -> None:
    """float8_e4m3fn ends at 448 and float16's normal numbers at 2^-14; bfloat16 rounds by up to 2^-8 (the formats' standards)."""
    right = solved("05.3")
    state, message = said("05.3", lambda largest, *more: wrong.get(largest) or right(largest, *more))
    assert (state, words in message) == ("wrong", True), message


def test_ends_of_a_format_are_inside_of_it() -> None:
    """The largest, the smallest normal number and half of epsilon are still kept; the next beyond each is not."""
    one = _nb05_exercises.precision.format("float16")
    assert _nb05_exercises._fits(one, 65_504.0, 2.0**-14, 2.0**-11)
    for wrong in ((65_505.0, 2.0**-14, 2.0**-11), (65_504.0, 2.0**-14.1, 2.0**-11), (65_504.0, 2.0**-14, 2.0**-11.1)):
        assert not _nb05_exercises._fits(one, *wrong)


@pytest.mark.parametrize(
    ("setting", "nbytes", "words"),
    [
        ("autocast", 15, "It converts no weight"),
        ("autocast", 17, "count the weight, its gradient"),
        ("float32", 8, "Besides the weight there is its gradient"),
        ("float32", 4, "Besides the weight there is its gradient"),
        ("float32", 5, "float32: 5 bytes; count the weight"),
        ("bfloat16 with master weights", 15, "The float32 copy of the weights"),
        ("pure bfloat16", 4, "Besides the weight there is its gradient"),
    ],
)
def test_bytes_of_a_parameter(setting: str, nbytes: int, words: str) -> None:
    """With Adam 16 in float32 and under autocast, 8 in bfloat16, 16 with master weights."""
    right = solved("05.13")
    assert right == {"float32": 16, "autocast": 16, "pure bfloat16": 8, "bfloat16 with master weights": 16}
    state, message = said("05.13", right | {setting: nbytes})
    assert (state, words in message) == ("wrong", True), message


@pytest.mark.parametrize(
    ("means", "more", "words"),
    [
        ((1, False, "float32"), 0, "Parts of 256 windows, float32, without checkpointing need 30.0 MiB (MODELLED), within 30.0 MiB"),
        ((1, False, "float32"), 1, "nothing is saved yet."),
        (
            (2, False, "float32"),
            1,
            "Parts of 128 windows, float32, without checkpointing need 30.0 MiB, and there are 30.0 MiB: one of the",
        ),
        ((1, True, "float32"), 1, "one of the means alone does not reach; take a second."),
        ((1, False, "bfloat16"), 1, "one of the means alone does not reach"),
        ((3, True, "float32"), 1, "Parts of 86 windows, float32, with checkpointing need 30.0 MiB, and there are 30.0 MiB: cut the batch"),
        ((4, True, "bfloat16"), 1, "cut the batch into more parts."),
        ((5, False, "float32"), 0, "accumulate is an int (5); the batch may be cut into 1 to 4 parts here."),
        ((0, False, "float32"), 0, "accumulate is an int (0)"),
        ((True, False, "float32"), 0, "accumulate is a bool (True)"),
        ((1, 1, "float32"), 0, "checkpoint is an int (1); it is True or False."),
        ((1, False, "float64"), 0, "precision is a str ('float64')"),
    ],
)
def test_means_and_what_they_need(means: tuple[Any, ...], more: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs exactly the budget is within it; a byte more is not, and the advice turns with what is used already."""
    asked: list[Any] = []
    monkeypatch.setattr(_nb06_memory, "predicted_peak_bytes", lambda *given: (asked.append(given), 30 * 2**20 + more)[1])
    state, message = said("06.12", dict(zip(("accumulate", "checkpoint", "precision"), means, strict=True)))
    assert (state, words in message) == ("passed" if "MODELLED" in words else "wrong", True), message
    assert [given[1:] for given in asked] in ([], [means[1:]])


PRAISE = {
    "05.3": "Range decides as often as precision does: the same 16 bits are float16 for the one task and bfloat16 for the other.",
    "05.13": "Right: with Adam, mixed precision saves nothing on the parameters' side. What it saves is activations, and time.",
    "06.14": "Begun with 1,024 and with 4,096 it ends at 256, which fits, and with 1,000 at 250; 100 fits at once; and nothing of the "
    "failed steps was left alive.",
    "07.2": "90 % zeros make a file of float32 weights 7.6 times smaller, not 10 times: the mask is a bit for each weight, zero or not.",
    "07.5": "Each loss is mended before the next one, channels go before weights, and rounding comes last.",
    "07.6": "No weight moved by more than half a step of its own row, and the narrowest row kept as many codes as the widest.",
    "07.11": "Depthwise, 128 channels: 1/128 of the FLOPs. The bytes of the images in and out are the same as before.",
    "08.14": "A: rank 2 left out a collective, and everybody waits. B: nobody hangs, rank 3 is slow, and all move at its pace. C: rank 0 "
    "waits in a barrier that only it calls.",
    "09.3": "Two gains, one loss, and two of which nothing can be said. The size of a ratio decided none of them.",
    "09.5": "Right for one part mended twice (less than the product) and for two parts mended once each (more than the product).",
    "09.9": "Samples a second, whatever the batch and however long the run. What they taught the model is the other half of the question.",
}


@pytest.mark.parametrize("id", PRAISE)
def test_why_a_right_answer_is_right(id: str) -> None:
    """The course's own answer passes, and is told what it shows."""
    assert said(id, solved(id)) == ("passed", PRAISE[id])


@pytest.mark.parametrize(
    ("id", "parts"),
    [
        ("08.14", {"C": (0, ...)}), ("08.14", {"C": (..., "barrier")}), ("08.14", {"C": ...}), ("08.8", {"schedule": ...}),
        ("08.8", {"microbatches": ...}), ("09.3", {"E": ...}), ("06.12", {"precision": ...}), ("05.11", {"cross_entropy": ("lower", ...)}),
        ("05.11", {"cross_entropy": ...}), ("05.13", {"pure bfloat16": ...}),
    ],
)  # fmt: skip
def test_a_part_that_still_holds_dots_is_no_attempt(id: str, parts: dict[str, Any]) -> None:
    """With all the others right; half of a part too."""
    assert said(id, solved(id) | parts) == ("not attempted", "")
