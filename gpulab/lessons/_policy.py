"""What an instructor decides for a class: when solutions are shown.

``GPULAB_SOLUTIONS`` decides first: ``show`` (the default), ``after-attempt`` (once an answer was
checked) or ``withhold``. Otherwise a JSON file decides: the one that ``GPULAB_CLASS`` names, or
``.gpulab/class.json`` in the working directory, such as ``{"solutions": "withhold", "message":
"Solutions open on Friday."}``. The sources of this package contain the solutions anyway: this
setting hides them, but does not protect them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from gpulab._files import read_regular
from gpulab._given import expanded
from gpulab.errors import InputError
from gpulab.lessons import _store

POLICIES = ("show", "after-attempt", "withhold")


@dataclass(frozen=True)
class Policy:
    """When solutions are shown, and the message shown when they are not."""

    solutions: str
    message: str


def policy() -> Policy:
    """Return the class's policy; with a setting that cannot be read, solutions are withheld and the
    message says why.
    """
    chosen = os.environ.get("GPULAB_SOLUTIONS")
    if chosen:
        return _valid(chosen, "", "GPULAB_SOLUTIONS")
    named = os.environ.get("GPULAB_CLASS")
    try:
        where = (
            expanded("GPULAB_CLASS", named) if named else _store.here() / ".gpulab" / "class.json"
        )
    except InputError as error:
        return Policy("withhold", f"{error} Ask your instructor.")
    if not named and not where.exists():
        return Policy("show", "")
    try:
        # which knows by its first bytes how Windows' own tools wrote it
        content = json.loads(read_regular(where))
        return _valid(
            content.get("solutions", "show"), str(content.get("message") or ""), str(where)
        )
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        return Policy(
            "withhold",
            f'{where} cannot be read ({error}); expected JSON such as {{"solutions": "show"}}. Ask '
            "your instructor.",
        )


def _valid(chosen: object, message: str, where: str) -> Policy:
    if chosen in POLICIES:
        return Policy(str(chosen), message)
    return Policy(
        "withhold",
        f"{where} has the value {str(chosen)[:40]!r}; expected one of {', '.join(POLICIES)}. Ask "
        "your instructor.",
    )
