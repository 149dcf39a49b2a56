"""The exercises of notebook 09 that need no training: what an interval allows to say, what techniques give together, and fair samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from gpulab.lessons import _guard
from gpulab.lessons._speedup import LEAVES, PARTS, speed_of
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual

# -- 09.3: what may be said ---------------------------------------------------------------------------------------------------

_WORDS = ("faster", "slower", "not shown")
# Letter -> what may be said, and why the other words may not.
_GAINS = {
    "A": ("faster", "All of A's interval lies above 1."),
    "B": ("not shown", "B's interval reaches from 0.97 to 1.21: with the next run it could as well be slower."),
    "C": ("slower", "All of C's interval lies below 1: it is sure to cost something, however little."),
    "D": ("faster", "D's gain is small, but its whole interval lies above 1. Small is another thing than not shown."),
    "E": ("not shown", "E is a large number from three turns, and has no interval: nobody knows how far it would move in the next run."),
}


def _check_said(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(_GAINS):
        raise Refused(f'Your answer is {_guard.describe(answer)}; the check expects {{"A": ..., "B": ..., and so on to "E"}}.')
    if any(_guard.is_stub(word) for word in answer.values()):
        raise NotAttempted
    for letter, (right, why) in _GAINS.items():
        word = answer[letter]
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {_guard.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != right:
            raise Refused(f"{letter} is not {word!r}. {why}")
    return "Two gains, one loss, and two of which nothing can be said. The size of a ratio decided none of them."


_SAID = 'said = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}  # "faster", "slower" or "not shown"'
MAY_SAY = Exercise(
    id="09.3",
    title="what may be said",
    answer_name="said",
    stub=_SAID,
    solution='said = {"A": "faster", "B": "not shown", "C": "slower", "D": "faster", "E": "not shown"}',
    hints=(
        "Do not look at the ratio first. Where does the interval lie: above 1, below 1, or on both sides?",
        "A small gain can be sure, and a large one can be chance. Without an interval nothing is sure.",
    ),
    check=_check_said,
    usual=(
        Usual('said = {"A": "faster", "B": "faster", "C": "slower", "D": "faster", "E": "faster"}', "could as well be slower"),
        Usual('said = {"A": "faster", "B": "not shown", "C": "not shown", "D": "faster", "E": "not shown"}', "sure to cost something"),
        Usual('said = {"A": "faster", "B": "not shown", "C": "slower", "D": "not shown", "E": "not shown"}', "Small is another thing"),
        Usual('said = {"A": "faster", "B": "not shown", "C": "slower", "D": "faster", "E": "faster"}', "has no interval"),
        Usual('said = {"A": 1, "B": 0, "C": -1, "D": 1, "E": 0}', "expects one of"),
    ),
)

# -- 09.5: together -----------------------------------------------------------------------------------------------------------

# (parts in ms, what each technique leaves, the answer by hand)
_STEPS: tuple[tuple[dict[str, float], list[dict[str, float]], float], ...] = (
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}], 10 / 7),
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}, {"loading": 0.5}], 10 / 5.5),
    ({"loading": 6.0, "computing": 4.0}, [{"loading": 0.5}, {"computing": 0.25}], 10 / 4),
    ({"loading": 6.0, "computing": 4.0}, [], 1.0),
    ({"loading": 2.0, "starting": 3.0, "computing": 5.0}, [{"starting": 0.5, "computing": 0.8}, {"computing": 0.5}], 10 / 5.5),
)


def _check_together(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for parts, leaves, right in _STEPS:
        mine, theirs = dict(parts), copy.deepcopy(leaves)
        value = _guard.number(ask(f"With {parts} and {leaves}", mine, theirs), "how many times as fast")
        if mine != parts or theirs != leaves:
            raise Refused("Your function changes the parts that it was given: the second call would find a faster step. Copy them first.")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"With {parts} and {leaves} you say {value:.4g}x; it is {right:.4g}x."
        product = math.prod(speed_of(parts, [one]) for one in leaves)
        saved = sum(parts[part] * (1 - ratio) for one in leaves for part, ratio in one.items())
        rest = sum(parts.values()) - saved
        if math.isclose(value, product, rel_tol=1e-3):
            raise Refused(f"{said} You multiply the single gains. Multiply what is left of each part, then add the parts.")
        if math.isclose(value, sum(parts.values()) / rest, rel_tol=1e-3):
            raise Refused(f"{said} You subtract each saving from the whole step: what the first one saved is gone for the second.")
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} That is the time that is left, as a ratio. How many times as fast is it?")
        raise Refused(said)
    return "Right for one part mended twice (less than the product) and for two parts mended once each (more than the product)."


_TOGETHER = '''def together(parts, leaves):
    """How many times as fast? parts: milliseconds by name; leaves: for each technique, the ratio it leaves of some parts."""
'''
_REST = """\
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
"""
TOGETHER = Exercise(
    id="09.5",
    title="put the techniques together",
    answer_name="together",
    stub=_TOGETHER + "    ...",
    solution=_TOGETHER + _REST + "    return sum(parts.values()) / sum(rest.values())",
    hints=(
        "The parts run one after the other, so a step is their sum. What does each technique do to each part?",
        "Copy the parts, multiply in each technique's ratios part by part, then divide the old sum by the new one.",
    ),
    check=_check_together,
    usual=(
        Usual(
            _TOGETHER
            + """\
    whole, product = sum(parts.values()), 1.0
    for technique in leaves:
        product *= whole / sum(ms * technique.get(part, 1) for part, ms in parts.items())
    return product""",
            "You multiply the single gains",
        ),
        Usual(
            _TOGETHER
            + """\
    whole = sum(parts.values())
    saved = sum(parts[part] * (1 - ratio) for technique in leaves for part, ratio in technique.items())
    return whole / (whole - saved)""",
            "gone for the second",
        ),
        Usual(
            _TOGETHER + _REST + "    return sum(rest.values()) / sum(parts.values())",
            "the time that is left",
        ),
        Usual(
            _TOGETHER
            + """\
    whole = sum(parts.values())
    for technique in leaves:
        for part, ratio in technique.items():
            parts[part] *= ratio
    return whole / sum(parts.values())""",
            "changes the parts",
        ),
        Usual(
            _TOGETHER + _REST + "        return sum(parts.values()) / sum(rest.values())",
            "you say 1.429x; it is 1.818x",
        ),
        Usual(
            _TOGETHER
            + """\
    if len(leaves) == 1:
        ((part, ratio),) = leaves[0].items()
        return sum(parts.values()) / (sum(parts.values()) - parts[part] * (1 - ratio))""",
            "your function returned nothing",
        ),
    ),
)

# -- 09.7: the fewest ---------------------------------------------------------------------------------------------------------

_MOST_KEPT, _WANTED = 3, 4.0


def _check_fewest(answer: Any) -> str:
    if not isinstance(answer, (tuple, list, set, frozenset)):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects the names of up to {_MOST_KEPT} techniques.")
    names = list(answer)
    if any(_guard.is_stub(name) for name in names):
        raise NotAttempted
    for name in names:
        if not isinstance(name, str) or name not in LEAVES:
            raise Refused(f"{_guard.describe(name)} is no technique of the table; the check expects some of {', '.join(LEAVES)}.")
    if len(set(names)) < len(names):
        raise Refused("One technique is there twice. Applied a second time it finds nothing to do.")
    if len(names) > _MOST_KEPT:
        raise Refused(f"These are {len(names)} techniques; choose at most {_MOST_KEPT}.")
    speed = speed_of(PARTS, [LEAVES[name] for name in names])
    if speed < _WANTED:
        rest = {part: ms * math.prod(LEAVES[name].get(part, 1.0) for name in names) for part, ms in PARTS.items()}
        largest = max(rest, key=lambda part: rest[part])
        twice = next((part for part in PARTS if sum(part in LEAVES[name] for name in names) > 1), None)
        both = f" Two of yours mend {twice}, and the second finds little left." if twice == "loading" else ""
        raise Refused(f"Together these make the step {speed:.2f}x as fast.{both} The largest part that is left is {largest}.")
    return f"{speed:.2f}x with {len(names)} techniques, one for each large part (MODELLED)."


_KEEP = "keep = (..., ..., ...)  # names from the table"
FEWEST = Exercise(
    id="09.7",
    title="three that are enough",
    answer_name="keep",
    stub=_KEEP,
    solution='keep = ("data on the device", "CUDA graph", "bfloat16")  # one for each large part',
    hints=(
        "Do not take the three with the largest single gains: look at which part each of them mends.",
        "Loading, starting and arithmetic are large. What leaves least of each?",
    ),
    check=_check_fewest,
    usual=(
        Usual('keep = ("data on the device", "prefetch", "compile")', "Two of yours mend loading"),
        Usual('keep = ("data on the device", "CUDA graph", "compile")', "The largest part that is left is arithmetic"),
        Usual('keep = ("data on the device", "CUDA graph", "bfloat16", "fewer waits")', "choose at most 3"),
        Usual('keep = ("bfloat16", "CUDA graph", "fewer waits")', "The largest part that is left is loading"),
        Usual('keep = ("larger batch", "CUDA graph", "bfloat16")', "no technique of the table"),
    ),
)

# -- 09.9: the same samples ---------------------------------------------------------------------------------------------------

_Side = dict[str, float]
_PAIRS: tuple[tuple[_Side, _Side, float], ...] = (
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 100, "seconds": 2.0}, 2.0),  # tells the mistakes apart
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 128, "steps": 400, "seconds": 8.0}, 2.0),
    ({"batch_size": 16, "steps": 400, "seconds": 2.0}, {"batch_size": 16, "steps": 200, "seconds": 1.0}, 1.0),
    ({"batch_size": 32, "steps": 100, "seconds": 4.0}, {"batch_size": 256, "steps": 50, "seconds": 4.0}, 4.0),
    ({"batch_size": 64, "steps": 100, "seconds": 2.0}, {"batch_size": 32, "steps": 100, "seconds": 1.6}, 0.625),
)


def _check_samples(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for before, after, right in _PAIRS:
        value = _guard.number(ask(f"For {before} and {after}", dict(before), dict(after)), "how many times as fast")
        if math.isclose(value, right, rel_tol=1e-6):
            continue
        said = f"For {before} and {after} you say {value:.4g}x; it is {right:.4g}x."
        times = before["seconds"] / after["seconds"]
        a_step = times * after["steps"] / before["steps"]
        if math.isclose(value, 1 / right, rel_tol=1e-3):
            raise Refused(f"{said} That is the slower over the faster: divide the other way round.")
        if math.isclose(value, times, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of the two runs, but they did not learn from as many samples.")
        if math.isclose(value, a_step, rel_tol=1e-3):
            raise Refused(f"{said} You compare the seconds of a step, but the steps are not of as many samples.")
        if math.isclose(value, times * after["batch_size"] / before["batch_size"], rel_tol=1e-3):
            raise Refused(f"{said} You count the batch and forget that the runs had other numbers of steps.")
        raise Refused(f"{said} How many samples does each run learn from in a second?")
    return "Samples a second, whatever the batch and however long the run. What they taught the model is the other half of the question."


_FAIR = '''def fair_gain(before, after):
    """How many times as fast does `after` learn from a sample? Each is a dict with batch_size, steps and seconds."""
'''
SAMPLES = Exercise(
    id="09.9",
    title="a fair gain",
    answer_name="fair_gain",
    stub=_FAIR + "    ...",
    solution=_FAIR
    + """\
    def rate(run):
        return run["batch_size"] * run["steps"] / run["seconds"]

    return rate(after) / rate(before)""",
    hints=(
        "A run that makes half the steps in half the time is not faster. What do both have to have in common?",
        "batch_size * steps samples in so many seconds: divide the two rates.",
    ),
    check=_check_samples,
    usual=(
        Usual(_FAIR + '    return before["seconds"] / after["seconds"]', "as many samples"),
        Usual(
            _FAIR + '    return (before["seconds"] / before["steps"]) / (after["seconds"] / after["steps"])', "the steps are not of as many"
        ),
        Usual(
            _FAIR + '    return (after["batch_size"] / after["seconds"]) / (before["batch_size"] / before["seconds"])',
            "other numbers of steps",
        ),
        Usual(
            _FAIR + '    rate = lambda run: run["batch_size"] * run["steps"] / run["seconds"]\n    return rate(before) / rate(after)',
            "the other way round",
        ),
        Usual(
            _FAIR + '    if after["batch_size"] > before["batch_size"] and after["seconds"] == before["seconds"]:\n'
            '        return after["batch_size"] * after["steps"] / (before["batch_size"] * before["steps"])',
            "'seconds': 8.0} your function returned nothing",
        ),
    ),
)
