"""The questions and exercises of notebook 00, on how fast something really is."""

from __future__ import annotations

from typing import Any

from gpulab.lessons import _guard, _loading, _material
from gpulab.lessons.content import Exercise, Lesson, Question, Reading, Refused, Seen, Unmeasured, Usual
from gpulab.timing import Measurement
from gpulab.timing.results import format_interval
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, format_ratio, format_seconds

# A right interval may be made by several rules; the exact ones differ in the second order of widths of about 5 %.
_SECOND_ORDER = 0.01


# -- predictions ---------------------------------------------------------------------------------------------------------

RETURNS = Question(
    "00.1",
    (
        Reading(
            lambda predicted, measured: predicted > 20 * measured,
            "A time that long counts the work, or a part of it. The clock was read when the call came back, and the call only put "
            "the work into a queue: that a call has returned does not mean that it is done.",
        ),
    ),
)

FIRST_CALL = Question(
    "00.3",
    (
        Reading(
            lambda predicted, measured: predicted <= 1.5 < measured,
            "The first call is not like the others: it loads code, sets up threads and takes memory from the system. "
            "A measurement that includes it reports the set-up.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "The set-up was cheaper here than you thought. On a GPU the first call also loads the device's code.",
        ),
    ),
    outcome=lambda m: m.first_call_seconds / m.median_seconds if isinstance(m, Measurement) else m,
    close_ratio=3.0,
)

SPREAD = Question(
    "00.4",
    (
        Reading(
            lambda predicted, measured: predicted < measured,
            "The code is the same, the machine is not: other programs, clock frequency, caches and memory pages differ from call to call. "
            "One timing, or the mean of three, tells you little.",
        ),
        Reading(
            lambda predicted, measured: predicted > measured,
            "Your machine is quieter than you thought, now. Run the cell again while something else works, and compare.",
        ),
    ),
)

SMALL = Question(
    "00.6",
    (
        Reading(
            lambda predicted, measured: "accelerator" in predicted and "CPU" in measured,
            "A GPU is not always faster. It must be told what to do, and the data must travel; for little work that "
            "costs more than the work.",
        ),
        Reading(
            lambda predicted, measured: "CPU" in predicted and "accelerator" in measured,
            "Mostly the CPU wins where there is so little to do. Here the start of the work and both copies cost less than the product "
            "took on your CPU: look at how far apart the two are in the first row.",
        ),
    ),
    outcome=lambda c: _winner_of_smallest(c) if isinstance(c, _material.Contest) else c,
    sides=lambda c: c.sides if isinstance(c, _material.Contest) else {},
)

COPIES = Question(
    "00.8",
    (
        Reading(
            lambda predicted, measured: predicted < 1.5,
            "The copies are part of the answer whenever your data begin and end in main memory. Most GPUs lie behind a link that is far "
            "slower than their own memory.",
        ),
        Reading(
            lambda predicted, measured: predicted < measured,
            "Most GPUs lie behind a link that is far slower than their own memory, so for work with little arithmetic the copies decide.",
        ),
    ),
    outcome=lambda c: c.rows[-1].with_copies_seconds / c.rows[-1].accelerator_seconds if isinstance(c, _material.Contest) else c,
)


def _winner_of_smallest(contest: _material.Contest) -> str:
    row = contest.rows[0]
    if row.with_copies_seconds >= row.cpu_seconds:
        return "the CPU"
    if row.disturbed:  # what disturbs the CPU only makes it slower, so it may have won all the same
        raise Unmeasured(
            f"other programs disturbed your CPU ({row.notes}), so its {format_seconds(row.cpu_seconds)} may be far too long. "
            'When it is quiet, run products = gl.lessons.contest("matmul", again=True) and this cell again.'
        )
    return "the accelerator"


# -- 00.2: which of four timings is impossible? --------------------------------------------------------------------------


def _check_impossible(answer: Any) -> str:
    if not isinstance(answer, str) or answer.strip().upper() not in ("A", "B", "C", "D"):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects one letter, 'A', 'B', 'C' or 'D'.")
    letter = answer.strip().upper()
    shown = _material.four_claims()
    claim = next(each for each in shown.claims if each.letter == letter)
    rate = claim.nbytes / claim.seconds
    found = f"{letter} moves {format_bytes(claim.nbytes)} in {format_seconds(claim.seconds)}: {format_bytes_per_second(rate)}"
    ceiling = format_bytes_per_second(shown.ceiling_bytes_per_second)
    if rate > shown.ceiling_bytes_per_second:
        return f"{found}, but your memory reaches {ceiling}. Whoever measured that stopped the clock too early."
    order = sorted(shown.claims, key=lambda each: each.seconds)
    why = ""
    if claim is order[0]:
        why = " It is the shortest time, but it also has the least to do: divide the bytes by the time."
    elif claim is order[-1]:
        why = " It is the longest time; what is impossible is a time too short for its bytes."
    raise Refused(f"{found}, under your memory's {ceiling}, so it can be true.{why} Count every array that is read or written.")


IMPOSSIBLE = Exercise(
    id="00.2",
    title="find the impossible timing",
    answer_name="impossible",
    stub='impossible = ...  # "A", "B", "C" or "D"',
    solution=(
        "# Count the arrays that are read and written, and divide by the time:\n"
        "#   A reads 2 GiB; B reads and writes 4 GiB (8 GiB); C reads two and writes one of 8 GiB (24 GiB);\n"
        "#   D reads and writes 8 GiB (16 GiB). Only C lies above the ceiling.\n"
        'impossible = "C"'
    ),
    hints=(
        "For each claim: how many bytes must be read, and how many written?",
        "Bytes / seconds is a rate. Compare each with what your main memory moves at most; the claims show it.",
        "Adding two arrays into a third moves three arrays.",
    ),
    check=_check_impossible,
    usual=(
        Usual('impossible = "A"', "the least to do"),
        Usual('impossible = "D"', "the longest time"),
        Usual('impossible = "B"', "it can be true"),
        Usual('impossible = "none"', "one letter"),
        Usual("impossible = 3", "one letter"),
    ),
    loads=_loading.TORCH,
)

# -- 00.5: a measurement of your own that passes the physics check -------------------------------------------------------


def _check_measurement(answer: Any) -> str:
    m = answer
    if not isinstance(m, Measurement):
        if isinstance(m, (int, float)):
            raise Refused("A bare number keeps no samples and no notes. Return what gl.measure gives: mine = gl.measure(...).")
        raise Refused(f"Your answer is {_guard.describe(m)}; the check expects what gl.measure returns.")
    rates = [rate for rate in (m.flops_per_second, m.bytes_per_second) if rate is not None]
    if not rates:
        raise Refused(
            "Physics cannot be checked: nothing says how much work one call does. Pass nbytes= (bytes read and written) or flops=."
        )
    for note in m.notes:
        if note.code == "implausible":
            raise Refused(f"The physics check refuses it: {note.sentence} Measure a function that is done when it returns.")
    if max(rates) < _LEAST_RATE:
        raise Refused(
            f"{_rate_text(m)} is next to nothing: either the count of bytes or FLOPs is too small, or the function waits. "
            "Count the work of one call."
        )
    if m.interval_seconds is None:  # last of all: more samples mend nothing of the above
        why = next((note.sentence for note in m.notes if note.code == "no-interval"), "")
        raise Refused(f"There is no interval, so nobody can tell how much to believe. {why} Take more samples: raise deadline=.")
    return f"{format_seconds(m.median_seconds)} {format_interval(m.interval_seconds)} at {_rate_text(m)}, which this device can do."


# One megabyte (or a million operations) a second is a thousandth of what any processor of the last thirty years does.
_LEAST_RATE = 1e6


def _rate_text(m: Measurement) -> str:
    return (
        format_bytes_per_second(m.bytes_per_second)
        if m.bytes_per_second is not None
        else format_flops_per_second(m.flops_per_second or 0.0)
    )


MEASUREMENT = Exercise(
    id="00.5",
    title="a measurement that passes the physics check",
    answer_name="mine",
    stub="mine = ...  # gl.measure(your function, its arguments, nbytes=...)",
    solution=(
        "import numpy as np\n"
        "import gpulab as gl\n\n"
        "a = np.ones(500_000)\n"
        'mine = gl.measure(np.cumsum, a, nbytes=2 * a.nbytes, device="cpu")  # reads a, writes as much'
    ),
    hints=(
        "Take any function of yours that computes for a millisecond or so, such as a NumPy function on a large array.",
        "Count the bytes of the arrays that it reads and writes; a.nbytes gives an array's. Pass the sum as nbytes=.",
        'mine = gl.measure(np.cumsum, a, nbytes=2 * a.nbytes, device="cpu")',
    ),
    check=_check_measurement,
    usual=(
        Usual("mine = 0.0012", "A bare number"),
        Usual('mine = "1.2 ms"', "expects what gl.measure returns"),
        Usual(
            'import numpy as np\nimport gpulab as gl\n\nmine = gl.measure(np.cumsum, np.ones(4_000_000), device="cpu", deadline=0.5)',
            "Pass nbytes=",
        ),
        Usual(
            "import numpy as np\nimport gpulab as gl\n\na = np.ones(8_000_000)\n"
            'mine = gl.measure(gl.lessons.WorkQueue().submit, np.cumsum, a, nbytes=2 * a.nbytes, device="cpu", deadline=0.5)',
            "The physics check refuses it",
        ),
        Usual(
            'import time\nimport gpulab as gl\n\nmine = gl.measure(time.sleep, 0.002, nbytes=16, device="cpu", deadline=0.5)',
            "next to nothing",
        ),
    ),
)

# -- 00.7: from which size does the accelerator win? ---------------------------------------------------------------------


def _check_wins(answer: Any) -> str:
    contest = _material.contest("matmul")
    rows = {row.n: row for row in contest.rows}
    right = contest.wins_from
    if isinstance(answer, str):
        if answer.strip().lower() != "never":
            raise Refused("The check expects a size of the table, or 'never'.")
        if right is None:
            return "With the copies counted, the CPU is ahead at the largest size of the table."
        raise Refused(f"It does win: look at {contest.size_meaning} = {right}, with copies against the CPU.")
    size = _guard.number(answer, "a size of the table, or 'never'")
    if size not in rows:
        raise Refused(f"{size:g} is not in the table; the check expects one of {', '.join(map(str, rows))}, or 'never'.")
    row = rows[int(size)]
    cpu, other = format_seconds(row.cpu_seconds), format_seconds(row.with_copies_seconds)
    times = f"at {row.n} the CPU takes {cpu} and the accelerator with copies {other}"
    if row.n == right:
        return f"From there on the accelerator stays ahead: {times}."
    if row.with_copies_seconds >= row.cpu_seconds:
        if row.accelerator_seconds < row.cpu_seconds:
            raise Refused(f"You left out the copies: {times}. Compare the column with copies.")
        raise Refused(f"There the CPU is faster: {times}.")
    if right is not None and row.n > right:
        raise Refused(f"It wins there, but not first: it already does at {right}.")
    raise Refused(f"It wins there, but loses again at a larger size: {times}. Give the size from which it stays ahead.")


_MATMUL = ("matmul", "float32")  # the contest's key
WINS = Exercise(
    id="00.7",
    title="from which size does the accelerator win?",
    answer_name="wins_from",
    stub='wins_from = ...  # a size of the table above, or "never"',
    solution=(
        "import gpulab as gl\n\n"
        'wins_from = "never"\n'
        'for row in reversed(gl.lessons.contest("matmul").rows):  # from the largest size down\n'
        "    if row.with_copies_seconds >= row.cpu_seconds:\n"
        "        break\n"
        "    wins_from = row.n"
    ),
    hints=(
        "Your data begin in main memory, and you want the result there: which column counts?",
        "Go from the largest size down, as long as the accelerator with copies is ahead of the CPU.",
    ),
    check=_check_wins,
    loads=_loading.TORCH,  # for a contest that this kernel has not measured yet
    machine="the times of your CPU, beside those of the accelerator that it was set against",
    seen=Seen(
        "the contest over sizes",
        _material.Contest,
        lambda: _material._contests.get(_MATMUL),
        lambda contest: _material._contests.update({_MATMUL: contest}),
    ),
    usual=(
        Usual("wins_from = 1000", "is not in the table"),
        Usual("wins_from = 32", "There the CPU is faster"),
        Usual("wins_from = 128", "You left out the copies"),
        Usual("wins_from = 1024", "already does at 256"),
        Usual('wins_from = "never"', "It does win"),
        Usual('wins_from = "always"', "or 'never'"),
        Usual("wins_from = True", "plain number"),
    ),
)

# -- 00.9: a speed-up with its interval ----------------------------------------------------------------------------------


def _made(median: float, low: float, high: float) -> Measurement:
    """Return a measurement with a given median and interval, for checking functions of two of them."""
    import numpy as np

    from gpulab import devices
    from gpulab.evidence import Evidence

    # Calls spread far wider than the interval of their median: who takes their ends for the interval's is found out.
    samples = np.array([low * 0.8, low, median, high, high * 1.3])
    evidence = Evidence.measured("an example", samples.size)
    where = devices.environment("cpu")
    return Measurement("example", "cpu", samples, median, (low, high), median, median, None, 1, None, None, (), evidence, where)


# (slow, fast) as (median, low, high) in milliseconds: clearly faster, no difference, in truth slower, one of them noisy.
_PAIRS = (
    ((10.0, 9.5, 10.6), (2.0, 1.95, 2.06)),
    ((5.0, 4.9, 5.1), (5.02, 4.9, 5.12)),
    ((3.0, 2.95, 3.06), (4.0, 3.9, 4.1)),
    ((8.0, 7.96, 8.04), (1.0, 0.94, 1.05)),
)


def _check_speedup(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for slow, fast in _PAIRS:
        pair = (_made(*(value * 1e-3 for value in each)) for each in (slow, fast))
        result = ask(f"For a slow call of {slow[0]:g} ms and a fast one of {fast[0]:g} ms", *pair)
        _judge(_guard.listed(result), slow, fast)
    return (
        "The ratio of the medians, with the least and the most that both intervals allow. "
        "Where the interval holds 1, there is nothing to report."
    )


def _judge(result: Any, slow: tuple[float, float, float], fast: tuple[float, float, float]) -> None:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        found = _guard.describe(result)
        raise Refused(f"Your function returned {found}; the check expects ratio, low, high. A speed-up is not one number.")
    ratio, low, high = (_guard.number(value, "three numbers: ratio, low, high") for value in result)
    (s, s_low, s_high), (f, f_low, f_high) = slow, fast
    times = f"a slow call of {s:g} ms [{s_low:g}, {s_high:g}] and a fast one of {f:g} ms [{f_low:g}, {f_high:g}]"
    case = f"For {times} you said {format_ratio(ratio)}"
    if abs(ratio * s / f - 1) < 1e-6 and abs(s / f - 1) > 1e-6:
        raise Refused(f"{case}: that is upside down. A speed-up is the slow time over the fast time, {format_ratio(s / f)}.")
    if abs(ratio / (s / f) - 1) > 1e-6:
        if format_ratio(ratio) == format_ratio(s / f):  # a rounded one: in three digits both would read alike
            raise Refused(f"For {times} you said {ratio:.8g}; the medians' ratio is {s / f:.8g}. Return it as it is, not rounded.")
        raise Refused(f"{case}; the medians' ratio is {format_ratio(s / f)}. Use m.median_seconds of both.")
    said = f"{case} [{low:.3f}, {high:.3f}]"
    if low > high:
        raise Refused(f"{said}: low is above high.")
    if low == high:
        raise Refused(
            f"{said}: an interval without a width claims to know the speed-up exactly. Both times are uncertain, so the ratio is."
        )
    if abs(low / (s_low / f_low) - 1) < 1e-6 or abs(high / (s_high / f_high) - 1) < 1e-6:
        raise Refused(
            f"{said}: low over low and high over high cancel the doubt. "
            "The least speed-up is the slow call's low over the fast call's high."
        )
    least, most = s_low / f_high, s_high / f_low
    if low < least * (1 - _SECOND_ORDER) or high > most * (1 + _SECOND_ORDER):
        raise Refused(f"{said}, wider than both intervals allow: [{least:.3f}, {most:.3f}].")
    if low > min(s_low / f, s / f_high) or high < max(s_high / f, s / f_low):
        raise Refused(f"{said}, narrower than one of the two intervals alone makes it. Both times are uncertain: use both intervals.")


SPEEDUP = Exercise(
    id="00.9",
    title="a speed-up with its interval",
    answer_name="speedup",
    stub=(
        "def speedup(slow, fast):\n"
        '    """Return (ratio, low, high) of two measurements."""\n'
        "    ...  # slow.median_seconds, slow.interval_seconds, ..."
    ),
    solution=(
        "def speedup(slow, fast):\n"
        '    """Return (ratio, low, high) of two measurements."""\n'
        "    slow_low, slow_high = slow.interval_seconds\n"
        "    fast_low, fast_high = fast.interval_seconds\n"
        "    ratio = slow.median_seconds / fast.median_seconds\n"
        "    return ratio, slow_low / fast_high, slow_high / fast_low"
    ),
    hints=(
        "The ratio is the slow median over the fast median.",
        "The least speed-up that both intervals allow: the slow call was as short as it may be, the fast one as long as it may be.",
    ),
    check=_check_speedup,
    usual=(
        Usual("def speedup(slow, fast):\n    return slow.median_seconds / fast.median_seconds", "A speed-up is not one number"),
        Usual(
            "def speedup(slow, fast):\n    r = fast.median_seconds / slow.median_seconds\n    return r, 0.9 * r, 1.1 * r",
            "upside down",
        ),
        Usual(
            "def speedup(slow, fast):\n    (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds\n"
            "    return slow.median_seconds / fast.median_seconds, a / c, b / d",
            "cancel the doubt",
        ),
        Usual("def speedup(slow, fast):\n    r = slow.median_seconds / fast.median_seconds\n    return r, r, r", "without a width"),
        Usual("def speedup(slow, fast):\n    r = slow.median_seconds / fast.median_seconds\n    return r, 0.5 * r, 2 * r", "wider than"),
        Usual(
            "def speedup(slow, fast):\n    r = slow.median_seconds / fast.median_seconds\n    return r, 0.999 * r, 1.001 * r",
            "narrower than",
        ),
        Usual(
            "def speedup(slow, fast):\n    (a, b), (c, d) = slow.interval_seconds, fast.interval_seconds\n"
            "    return slow.median_seconds / fast.median_seconds, b / c, a / d",
            "low is above high",
        ),
        Usual(
            "def speedup(slow, fast):\n    a, b = slow.samples_seconds, fast.samples_seconds\n"
            "    return slow.median_seconds / fast.median_seconds, a.min() / b.max(), a.max() / b.min()",
            "wider than both intervals allow",
        ),
        Usual("def speedup(slow, fast):\n    return min(slow) / min(fast)", "TypeError"),
    ),
)

LESSON = Lesson(
    "00_start_here",
    {question.id: question for question in (RETURNS, FIRST_CALL, SPREAD, SMALL, COPIES)},
    {exercise.id: exercise for exercise in (IMPOSSIBLE, MEASUREMENT, WINS, SPEEDUP)},
)
