"""Write docs/misconceptions.md: what each prediction of the course catches, and the usual wrong answers of each exercise.

    python tools/make_misconceptions.py              write the page
    python tools/make_misconceptions.py --check      say whether it is what this would write; exit code 1 if not

The questions' words come from the notebooks, what a wrong answer points to from ``gpulab/lessons/_nbNN.py``. When a wrong answer counts as
usual is a condition there, of the prediction and of what comes out; here it is put into words.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpulab
from gpulab.lessons import content
from gpulab.lessons._quantities import Unit
from gpulab.lessons._quantities import unit as unit_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "misconceptions.md"
NOTEBOOKS = ROOT / "notebooks"
_OPENING = """# Predictions and what they catch

Made by `python tools/make_misconceptions.py` from the notebooks and from `gpulab/lessons`; a test holds it. The guide for teachers is
[teaching.md](teaching.md).

A prediction is close if it lies within the stated factor of what comes out. Else the learner is shown the first sentence of its
question whose condition fits: the misconception that such an answer usually points to. *What comes out* is the learner's own
measurement where there can be one, so the same answer may be close on one machine and off on another.

For each exercise stand the usual wrong answers, as the tests try them, with words of the refusal that each meets. Solutions are
`gl.lessons.solution(ID)`; [classroom.md](classroom.md) says how to withhold them.
"""


@dataclass(frozen=True)
class Asked:
    """A prediction as the notebook asks it."""

    id: str
    text: str
    unit: str
    choices: tuple[str, ...]


def asked(path: Path) -> list[Asked]:
    """Return a notebook's predictions, in its order."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "lessons.predict(" in source:
            code = "\n".join("" if line.startswith("%") else line for line in source.splitlines())
            found += [_asked(call) for call in _calls(code, "predict")]
    return found


def _calls(code: str, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def _asked(call: ast.Call) -> Asked:
    given = dict(zip(("id", "question", "unit", "choices"), map(_value, call.args), strict=False))
    given |= {word.arg: _value(word.value) for word in call.keywords if word.arg}
    return Asked(given["id"], given["question"], given.get("unit", ""), tuple(given.get("choices", ())))


def _value(node: ast.expr) -> Any:
    """Return an argument: a literal, or what the course's own package says (a list of its techniques)."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return eval(compile(ast.Expression(node), "<notebook>", "eval"), {"gl": gpulab})


def usual_answer(when: Callable[[Any, Any], bool], question: Asked) -> str:
    """Return the condition under which a reading is shown, in words."""
    return _of_choices(when, question.choices) if question.choices else _of_numbers(when, unit_of(question.unit))


def _of_choices(when: Callable[[Any, Any], bool], choices: tuple[str, ...]) -> str:
    """Try every pair of a wrong choice and what comes out."""
    fits = {said: [got for got in choices if got != said and when(said, got)] for said in choices}
    parts = []
    for outs in dict.fromkeys(tuple(outs) for outs in fits.values() if outs):
        said = [each for each in choices if tuple(fits[each]) == outs]
        always = len(outs) == len(choices) - 1  # whatever else came out
        parts.append(_either(said) + ("" if always else f", where {_either(outs)} comes out"))
    return "; ".join(parts)


def _either(choices: Any) -> str:
    return " or ".join(f"*{choice}*" for choice in choices)


def _of_numbers(when: Callable[[Any, Any], bool], unit: Unit) -> str:
    """Read the lambda's own comparisons."""
    node = _lambda(when)
    if node is None:
        return "an answer of this kind"
    mine, out = (argument.arg for argument in node.args.args)
    tests = node.body.values if isinstance(node.body, ast.BoolOp) and isinstance(node.body.op, ast.And) else [node.body]
    said = [words for test in tests for words in _comparisons(test, mine, out, unit)]
    return ", ".join(said) if said and all(said) else f"`{ast.unparse(node.body)}`"


def _lambda(when: Callable[[Any, Any], bool]) -> ast.Lambda | None:
    """Return the lambda's syntax tree, by its place in its module."""
    code = when.__code__
    module = inspect.getmodule(when)
    if module is None:
        return None
    place = next((p for p in code.co_positions() if p[0] is not None and p[2] is not None), None)
    inside = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
        and [a.arg for a in node.args.args] == list(code.co_varnames[: code.co_argcount])
    ]  # fmt: skip
    if len(inside) > 1 and place is not None:
        columns = [p[2] for p in code.co_positions() if p[0] == code.co_firstlineno and p[2] is not None]
        inside = [node for node in inside if any(node.body.col_offset <= c <= (node.body.end_col_offset or 0) for c in columns if c)]
    return inside[0] if inside else None


_WORDS = {ast.Lt: "less than {}", ast.LtE: "up to {}", ast.Gt: "more than {}", ast.GtE: "{} or more", ast.Eq: "{}"}
_TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


def _comparisons(test: ast.expr, mine: str, out: str, unit: Unit) -> list[str]:
    """Return the words of a chain of comparisons; an empty text where there are none for one of them."""
    if not isinstance(test, ast.Compare):
        return [""]
    sides = [test.left, *test.comparators]
    names = [_name(side, mine, out) for side in sides]
    if names == ["", "share", ""]:
        low, high = (ast.literal_eval(side) for side in (sides[0], sides[2]))
        return [f"between {low} and {high} of what comes out"]
    pairs = zip(zip(sides, names, strict=True), zip(sides[1:], names[1:], strict=True), strict=False)
    return [_pair(left, type(op), right, unit) for (left, right), op in zip(pairs, test.ops, strict=True)]


def _name(side: ast.expr, mine: str, out: str) -> str:
    """Return "mine", "out" (also a multiple of it), "share" (mine over out), or "" for a number."""
    used = {node.id for node in ast.walk(side) if isinstance(node, ast.Name)}
    return "share" if used == {mine, out} else "mine" if used == {mine} else "out" if used == {out} else ""


def _pair(left: tuple[ast.expr, str], op: type, right: tuple[ast.expr, str], unit: Unit) -> str:
    if right[1] == "mine" or (right[1] == "out" and left[1] == ""):
        left, op, right = right, _TURNED.get(op, op), left
    if left[1] == "mine" and right[1] == "out":
        return "anything else" if op is ast.NotEq else _WORDS[op].format(_multiple(right[0])) if op in _WORDS else ""
    if right[1] or op not in _WORDS:
        return ""
    number = ast.literal_eval(right[0])
    shown = re.sub(r"\.(\d*?)0+(?!\d)", lambda found: f".{found[1]}" if found[1] else "", unit.format(number))  # 1.5x, not 1.50x
    words = _WORDS[op].format(shown)
    return words if left[1] == "mine" else f"where {words} comes out"


def _multiple(side: ast.expr) -> str:
    if isinstance(side, ast.BinOp) and isinstance(side.op, (ast.Mult, ast.Div)):
        number = next(node.value for node in ast.walk(side) if isinstance(node, ast.Constant))
        if isinstance(side.op, ast.Mult):
            return f"{number} times what comes out"
        return "half of what comes out" if number == 2 else f"1/{number} of what comes out"
    return "what comes out"


def page() -> str:
    """Return the page's text."""
    parts = [_OPENING]
    for lesson in content.lessons():
        questions = {each.id: each for each in asked(NOTEBOOKS / f"{lesson.notebook}.ipynb")}
        parts.append(f"\n## {lesson.notebook}\n\n{_predictions(lesson, questions)}\n{_exercises(lesson)}")
    return "".join(parts)


def _predictions(lesson: content.Lesson, questions: dict[str, Asked]) -> str:
    lines = ["| prediction | usual answer | what it points to |", "|---|---|---|"]
    for id, question in lesson.questions.items():
        words = questions[id]
        small = f", or off by {question.close_absolute:g} at most" if question.close_absolute else ""
        how = "" if words.choices else f" Close: within a factor of {question.close_ratio:g}{small}."
        asks = f"**{id}** {words.text}{f' ({words.unit})' if words.unit else ''}{how}"
        for reading in question.readings:
            lines.append(f"| {_cell(asks)} | {_cell(usual_answer(reading.when, words))} | {_cell(reading.sentence)} |")
            asks = ""
    return "\n".join(lines) + "\n"


def _exercises(lesson: content.Lesson) -> str:
    lines = ["| exercise | usual wrong answer | its refusal says |", "|---|---|---|"]
    for id, exercise in lesson.exercises.items():
        title = f"**{id}** {exercise.title}"
        for usual in exercise.usual:
            lines.append(f"| {_cell(title)} | {_code(usual.source)} | {_cell(usual.says)} |")
            title = ""
    return "\n".join(lines) + "\n"


def _code(source: str) -> str:
    """Return a source in a table's cell; GitHub's Markdown knows no blocks there."""
    lines = [line for line in source.strip().splitlines() if line.strip()]
    shown = lines if len(lines) <= 12 else [*lines[:11], f"... and {len(lines) - 11} more lines"]
    return "<br>".join(f"<code>{_cell(line).replace(' ' * 4, '&nbsp;' * 4)}</code>" for line in shown)


def _cell(text: str) -> str:
    marks = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "\n": " "}
    return "".join(marks.get(letter, letter) for letter in text)


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    text = page()
    if "--check" in arguments:
        there = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if there != text:
            print(f"{PAGE.relative_to(ROOT)} is not what the lessons say: run python tools/make_misconceptions.py")
        return int(there != text)
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
