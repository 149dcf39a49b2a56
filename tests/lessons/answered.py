"""An exercise asked without a notebook: what its check finds, and the course's own answer."""

from __future__ import annotations

import linecache
from typing import Any

from gpulab.lessons import _checks, content


def said(id: str, answer: Any) -> tuple[str, str]:
    """What a check finds, without the learner's progress."""
    found = _checks._examine(content.exercise(id), answer)
    return found.state, found.message


def solved(id: str) -> Any:
    """The course's own answer."""
    exercise, names = content.exercise(id), dict[str, Any]()
    file = f"<{id}>"
    linecache.cache[file] = (len(exercise.solution), None, exercise.solution.splitlines(keepends=True), file)  # a kernel's text is read
    exec(compile(exercise.solution, file, "exec"), names)
    return names[exercise.answer_name]
