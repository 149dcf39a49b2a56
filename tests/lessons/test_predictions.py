"""Predictions: read with their unit, kept before the measurement shows, and compared."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from course import HERE, MODELLED
from gpulab import lessons
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence, Note
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RECORDED = Evidence(Badge.RECORDED, "A GPU", date="2026-11-01")
UNITS = ("us", "ms", "MiB", "GB/s", "x", "%", "", "elements")


def ask(unit: str = "us", id: str = "90.1", **more: Any) -> lessons.Prediction:
    """Ask a question that no notebook has."""
    return lessons.predict(id, "How much?", unit=unit, **more)


@pytest.mark.parametrize(
    ("unit", "answer", "base"),
    [
        ("s", 5, 5.0), ("ms", 5, 5e-3), ("us", 5, 5e-6), ("ns", 5, 5e-9), ("B", 5, 5.0), ("kB", 5,
        5e3), ("MB", 5, 5e6),
        ("GB", 5, 5e9), ("KiB", 3, 3 * 1024), ("MiB", 2, 2 * 2**20), ("GiB", 1, 2**30), ("B/s", 5,
        5.0), ("MB/s", 5, 5e6),
        ("GB/s", "25", 25e9), ("TB/s", 5, 5e12), ("times", "5", 5.0), ("us", "5", 5e-6), ("us",
        "0.005ms", 5e-6),
        ("us", " 5 µs ", 5e-6), ("ms", "1e-3 s", 1e-3), ("MiB", "2 GiB", 2 * 2**30), ("KiB",
        "64 kB", 64e3),
        ("GB/s", "800 MB/s", 800e6), ("x", "1,000x", 1000.0), ("x", "10 times", 10.0), ("x", "3×",
        3.0),
        ("x", "12,345,678.5x", 12345678.5), ("%", "80%", 80.0), ("%", "80 percent", 80.0),
        ("elements", "1,000,000", 1e6),
        ("elements", "12 elements", 12.0), ("copies", "1 copy", 1.0), ("", np.float32(3), 3.0),
    ],
)  # fmt: skip
def test_a_number_is_read_with_and_without_its_unit(unit: str, answer: Any, base: float) -> None:
    """A bare number has the question's unit; another prefix of the same kind is converted."""
    asked = ask(unit)
    lessons.answer("90.1", answer)
    assert asked.answer.value == pytest.approx(base, rel=1e-12)


def test_numbers_are_written_in_the_units_of_their_question(approved: Any, capsys: Any) -> None:
    """With three digits, singular and plural, and no exponent for a count of millions."""
    words = "passes losses batches searches flushes boxes caches phases copies registers loss"
    for unit in (*UNITS, "calls", *words.split()):
        values = (1.0,) if unit in words else (0, 1, 0.12345, 42, 999.5, 1_234_567, 0.95e15, 1e30)
        for value in values:
            asked = ask(unit)
            print(
                f"{unit:10}", asked.example, "|", asked.text_of(asked.quantity.parse(float(value)))
            )
    assert capsys.readouterr().out == approved


NO_ANSWERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("us", ("soon", "5 u", "5 GB", "", "-5", -1, math.nan, math.inf, "1e999", True, None, [1])),
    ("us", ("+", "e5", "0,125", "0,125 us", "1234,567", "1,5 us", "1,2345", "1.000,5", "1,000,50")),
    ("us", ("1 000 us", object)), ("x", ("5 ms", "0,125x", "00,125x")),
    ("GB/s", ("5 s", "10 Gb/s")),
    ("MiB", ("5 MB/s",)), ("elements", ("5 apples",)), ("%", ("1..2", "1,5 %")),
)  # fmt: skip


def test_what_is_no_answer_is_refused(approved: Any) -> None:
    """The error says in a sentence what is wrong with the answer, and nothing is kept."""
    text = ""
    for unit, answers in NO_ANSWERS:
        asked = ask(unit)
        for answer in answers:
            with pytest.raises(InputError) as refused:
                asked.submit(answer)
            text += f"{refused.value}\n"
        assert asked.answer is None
    assert text == approved


CHOICES = (
    (("the CPU", "the GPU"), {"the gpu": 2, 1: 1, 2: 2, "2": 2, " The CPU ": 1, "0002": 2},
    ("the TPU", 0, 3, None, True, 1.5, "00012", "-1", "9" * 5000, "²")),
    (("as accurate", "less accurate", "the intervals cannot tell"), {"Less accurate": 2},
    ("not as accurate",)),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(CHOICES)))
def test_a_choice_is_read_by_its_number_or_its_words(number: int) -> None:
    """An answer that fits no choice is refused and not kept."""
    choices, read, refused = CHOICES[number]
    asked = lessons.predict("90.2", "Which?", choices=choices)
    for wrong in refused:
        with pytest.raises(InputError, match=r"1\. "):
            asked.submit(wrong)
    assert asked.answer is None
    for answer, place in read.items():
        assert choices[place - 1] in asked.submit(answer).split("; ")[-1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: lessons.predict("", "Which?"), lambda: lessons.predict(5, "Which?"),
        lambda: lessons.predict("90.3", 5),
        lambda: lessons.predict("90.3", "Which?", 5), lambda: ask("", choices=["one"]),
        lambda: ask("", choices=["a", "a"]),
        lambda: ask("us", choices=["a", "b"]), lambda: lessons.reveal("", 5),
        lambda: lessons.reveal(5, 5), lambda: lessons.answer(5, 5),
        lambda: lessons.answer("77.1", 5),
        *(lambda junk=junk: lessons.reveal("90.1", junk) for junk in (math.nan, math.inf, [1, 2],
        object(), {})),
        *(lambda junk=junk: lessons.reveal("90.1", 3, interval=junk) for junk in (5, "12", (), (1,),
        (1, 2, 3), (1, math.nan), (-math.inf, 1), (None, None), ("1 ms", "2 ms"), (1j, 2))),
        lambda: lessons.reveal("90.1", 3, warning=None),
    ],
)  # fmt: skip
def test_what_names_no_question_and_what_measures_nothing_is_refused(call: Any) -> None:
    """Each such call raises an InputError."""
    with pytest.raises(InputError):
        call()


def test_the_first_answer_counts(approved: Any, capsys: Any, progress_file: Path) -> None:
    """From the question to the reveal and after it: what is printed, kept, counted, observed."""
    asked, heard = ask(), []
    stop = asked.observe(lambda prediction: heard.append(prediction.status))
    print(asked)
    for answer in ("5 us", 7, "5 us", 7.0):
        lessons.answer("90.1", answer)
    print(asked, len(json.loads(progress_file.read_bytes())["predictions"]["90.1"]["later"]))
    print(lessons.reveal("90.1", None, reason="no GPU"), asked.status, sep="\n")
    print(
        lessons.reveal("90.1", 3e-6), lessons.reveal("90.1", 4e-6), asked.revealed, asked, sep="\n"
    )
    lessons.answer("90.1", 9)
    stop()
    lessons.answer("90.1", 10)
    print(*heard, sep="\n")
    late = ask(id="90.2")
    print(
        lessons.reveal("90.2", 3e-6),
        late.submit(3),
        late.answer,
        lessons.reveal("90.2", 5e-6),
        late.status,
        sep="\n",
    )
    assert capsys.readouterr().out == approved
    kept = json.loads(progress_file.read_text(encoding="utf-8"))["predictions"]["90.1"]
    assert (round(kept["first"]["value"], 9), len(kept["later"]), kept["revealed"]["text"]) == (
        5e-6,
        4,
        "3.00 us",
    )


def test_what_is_close_and_how_far_off(
    approved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Close is within a factor of two, ends included; zero and extreme numbers have no factor."""
    text = ""
    pairs = [
        (1.0, 2.0),
        (2.0, 1.0),
        (1.0, 2.1),
        (2.1, 1.0),
        (0.0, 3.0),
        (0.0, 0.0),
        (5e-324, 1.0),
        (1e300, 1e-300),
        (1e-300, 1e300),
    ]
    for number, (predicted, measured) in enumerate(pairs):
        monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / f"{number}.json"))
        ask("times").submit(predicted)
        shown = lessons.reveal("90.1", measured)
        text += f"{predicted:g} {measured:g}: {shown.verdict} {shown.ratio} {shown.sentence}\n"
    # 05.2 is close within a thousandth, 07.7 within two digits or a factor of three, 08.11 within
    # 1.15, which is 7.36 / 6.4.
    for id, predicted, measured in (("08.11", 7.36, 6.4), ("08.11", 7.37, 6.4),
    ("05.2", 2052, 2048), ("05.2", 2000, 2048), ("07.7", 3, 0),
    ("07.7", 5, 0), ("07.7", 20, 50), ("07.7", 50, 20), ("07.7", 10, 50)):  # fmt: skip
        monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / f"{id}-{predicted}-{measured}.json"))
        ask("digits", id).submit(predicted)
        text += f"{id}: {lessons.reveal(id, measured)!r}\n"
    assert text == approved


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        (None, "none"), (RECORDED, "recorded"), ({"the CPU": HERE, "the GPU": RECORDED}, "mixed"),
        ({"the CPU": HERE, "the GPU": MODELLED}, "modelled"), ({"the CPU": HERE,
        "the GPU": Evidence.measured("A GPU", 5)}, "both"),
    ],
)  # fmt: skip
def test_a_reveal_carries_its_badges(evidence: Any, name: str, approved: Any) -> None:
    """Each of two sides has its own line, and the reveal has the weaker badge of the two."""
    lessons.predict("90.2", "Is a < b?", choices=["<yes>", "no"]).submit(1)
    shown = lessons.reveal("90.2", "no", evidence=evidence)
    lines = shown.caption().splitlines() if evidence is not None else [str(shown.evidence.badge)]
    page = shown._repr_html_()
    assert ("&lt;yes&gt;" in page, "<yes>" in page) == (True, False)
    assert "\n".join([str(shown.evidence.badge), shown.table()[0][-1], *lines, ""]) == approved


def test_an_answer_shows_how_sure_it_is(approved: Any) -> None:
    """A number is shown with its interval; a wide interval or a disturbance gives a warning."""
    lessons.predict("90.3", "How long?", unit="us").submit(3)
    doubts: Any = (
        {"interval": (1.5e-6, 5e-6)},
        {"interval": (1e-6, 9e-6)},
        {"interval": (5e-6, 1.5e-6)},  # either end may come first
        {"interval": (0.0, 1e-6)},
        {"interval": (-5e-6, -1.5e-6)},
        {"warning": "A note."},
        {
            "measured": type(
                "Found",
                (),
                {
                    "median_seconds": 3e-6,
                    "notes": [
                        Note("deadline", "Late."),
                        Note("contended", "Busy."),
                        Note("unstable", "Loose."),
                    ],
                },
            )
        },
    )
    shown = [repr(lessons.reveal("90.3", **{"measured": 3e-6, **doubt})) for doubt in doubts]
    assert "\n".join([*shown, ""]) == approved


RESTART = """
import sys
from gpulab import lessons
if sys.argv[1] == "first":
    lessons.predict("90.1", "How much?", unit="GiB").submit(56)
    lessons.predict("90.2", "Does it help?", choices=("yes", "no, whatever the scale")).submit(1)
else:
    print(repr(lessons.reveal("90.1", 1.12e11)))
    print(repr(lessons.reveal("90.2", "no, whatever the scale")))
    print(repr(lessons.reveal("90.3", "a choice that nobody asked")))
    print(lessons.predict("90.1", "How much?", unit="GiB").status)
"""


def run_python(text: str, *words: str) -> str:
    """The output of a process of its own, with this test's progress file."""
    return subprocess.run(
        [sys.executable, "-c", text, *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ.copy(),
    ).stdout


@pytest.mark.slow
def test_a_restarted_kernel_knows_what_was_predicted(approved: Any) -> None:
    """In the question's unit: 1.12e11 / 2**30 are 104.3 GiB, 1.86 times 56."""
    run_python(RESTART, "first")
    assert run_python(RESTART, "again") == approved


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=st.text(max_size=12) | st.floats() | st.integers() | st.none() | st.binary(max_size=3),
    unit=st.sampled_from(UNITS),
)
def test_any_answer_is_a_number_or_refused(answer: Any, unit: str) -> None:
    """Nothing but InputError comes out, and what is read is a finite number of at least zero."""
    try:
        base = ask(unit).quantity.parse(answer)
    except InputError:
        return
    assert math.isfinite(base)
    assert base >= 0


@given(value=st.floats(0, 1e6), unit=st.sampled_from([each for each in UNITS if each]))
def test_text_and_number_agree(value: float, unit: str) -> None:
    """A number with its unit reads as the bare number."""
    quantity = ask(unit).quantity
    assert quantity.parse(f"{value!r} {unit}") == pytest.approx(quantity.parse(value), abs=1e-300)
