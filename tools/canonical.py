"""Rewrite notebooks to one canonical form, so that a diff shows only what was edited.

    python tools/canonical.py              rewrite every notebook of notebooks/
    python tools/canonical.py --check      name the notebooks that are not canonical; exit code 1
                                           if there are any
    python tools/canonical.py FILE ...     only these

A file that is not a notebook is named in one sentence, with exit code 2.

The canonical form:

- nbformat 4.5, one space of indentation, a newline at the end;
- cell ids that a person chose; an id that Jupyter drew at random is replaced by the cell's place;
- the python3 kernel and no other metadata; the cells' tags stay;
- outputs only in cells that nbval compares (the tag ``nbval-check-output``), with an execution
  count of 1; no other execution counts.

This file also writes two parts of the course's notebooks. The first is the badge "Open in Colab"
under the title and the cell after it that installs gpulab on Colab, since both name the repository.
The second is what a notebook repeats from the file of an exercise: in a cell with the heading
"### Exercise 02.5" and the task, the title and the hints; and the cell with the stub and the check.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

from gpulab.lessons import content
from gpulab.lessons.content import Exercise

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
CHECKED = "nbval-check-output"
# Where the project is on GitHub. A placeholder until it is published: the one place to change, then
# run this file.
REPOSITORY = "OWNER/gpulab"
_BADGE = FOLDER.parent / "docs" / "images" / "open-in-colab.png"
_ON_COLAB = f"""\
# On Colab, this installs gpulab and lets Colab draw its instruments. Anywhere else it does nothing.
import sys

if "google.colab" in sys.modules:
    %pip install -q git+https://github.com/{REPOSITORY}
    from google.colab import output

    output.enable_custom_widget_manager()"""
_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_KEPT_CELL_METADATA = ("tags", "jupyter")
_HEADING = re.compile(r"^### Exercise (\d\d\.\d+)", re.MULTILINE)
_CHECK = re.compile(r'^gl\.lessons\.check\("(\d\d\.\d+)"', re.MULTILINE)


def canonical(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook (as JSON data, nbformat 4) in canonical form."""
    taken: set[str] = set()
    cells = [_cell(cell, number, taken) for number, cell in enumerate(notebook["cells"])]
    return {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def canonical_text(path: Path) -> str:
    """Return a notebook file's canonical text."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if path.resolve().parent == FOLDER:
        notebook["cells"] = _with_exercises(_with_colab(notebook["cells"], path.name))
    return json.dumps(canonical(notebook), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _with_colab(cells: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the cells with the badge under the title in the first cell, and with the cell for
    Colab after it.
    """
    first, *others = [cell for cell in cells if cell.get("id") != "colab"]
    title, _, rest = re.sub(
        r"\n\n\[!\[Open in Colab.*", "", "".join(first["source"]), count=1
    ).partition("\n")
    address = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{name}"
    # The picture is stored in the notebook: without the internet, a page cannot load it from
    # elsewhere.
    picture = {"image/png": base64.b64encode(_BADGE.read_bytes()).decode()}
    source = f"{title}\n\n[![Open in Colab](attachment:{_BADGE.name})]({address})\n{rest}"
    head = {**first, "source": source, "attachments": {_BADGE.name: picture}}
    return [head, {"cell_type": "code", "id": "colab", "source": _ON_COLAB}, *others]


def _with_exercises(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells with each exercise's title, hints, stub and check from its file in
    gpulab/course; a missing cell with the check is added.
    """
    checked = {id for cell in cells for id in _CHECK.findall("".join(cell["source"]))}
    made: list[dict[str, Any]] = []
    for cell in cells:
        source, is_code = "".join(cell["source"]), cell["cell_type"] == "code"
        named = (_CHECK if is_code else _HEADING).search(source)
        exercise = content.exercises().get(named[1]) if named else None
        if exercise is None:
            made.append(cell)
        elif is_code:
            made.append({**cell, "source": _check_cell(exercise)})
        else:
            made.append({**cell, "source": _task(exercise, source)})
            if exercise.id not in checked:
                name = f"ex-{exercise.id.replace('.', '-')}"
                made.append({"cell_type": "code", "id": name, "source": _check_cell(exercise)})
    return made


def _task(exercise: Exercise, source: str) -> str:
    """Return the task in ``source`` between the exercise's title and its hints."""
    before, _, after = source.partition("### Exercise ")
    task = after.partition("\n")[2].partition("<details>")[0].strip()
    hints = (
        f"<details><summary>Hint {number}</summary>\n\n{hint}\n\n</details>\n\n"
        for number, hint in enumerate(exercise.hints, 1)
    )
    return (
        f"{before}### Exercise {exercise.id}: {exercise.title}\n\n{task}\n\n{''.join(hints)}"
        f'Stuck? `gl.lessons.solution("{exercise.id}")` shows one solution.'
    )


def _check_cell(exercise: Exercise) -> str:
    """Return the stub and its check, which has two empty lines above it after a function."""
    gap = "\n\n\n" if exercise.stub.splitlines()[-1].startswith(" ") else "\n\n"
    return f'{exercise.stub}{gap}gl.lessons.check("{exercise.id}", {exercise.answer_name})'


def _cell(cell: dict[str, Any], number: int, taken: set[str]) -> dict[str, Any]:
    kind = cell["cell_type"]
    source = _lines("".join(cell["source"]).rstrip())
    # An id that a person gave stays, since links and checks may name it; a random one would differ
    # at each export.
    name = cell.get("id", "")
    if not name or name in taken or _is_random(name):
        name = f"cell-{number:03d}"
    while name in taken:
        name += "x"
    taken.add(name)
    metadata = {
        key: value
        for key, value in cell.get("metadata", {}).items()
        if key in _KEPT_CELL_METADATA and value
    }
    made: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": metadata, "source": source}
    if kind == "code":
        outputs = cell.get("outputs", []) if CHECKED in metadata.get("tags", []) else []
        # nbval takes a cell with outputs but no count for one that never ran, and fails it.
        made |= {
            "execution_count": 1 if outputs else None,
            "outputs": [_output(output) for output in outputs],
        }
    if cell.get("attachments"):
        made["attachments"] = cell["attachments"]
    return made


def _is_random(name: str) -> bool:
    """Whether a cell id looks like the eight hex digits, or the UUID, that Jupyter draws."""
    digits = name.replace("-", "")
    return len(digits) in (8, 32) and all(character in "0123456789abcdef" for character in digits)


def _output(output: dict[str, Any]) -> dict[str, Any]:
    made = dict(output)
    if "execution_count" in made:
        made["execution_count"] = None
    if "text" in made:
        made["text"] = _lines("".join(made["text"]))
    if "data" in made:
        made["data"] = {
            kind: _lines(_joined(value)) if isinstance(_joined(value), str) else value
            for kind, value in made["data"].items()
        }
    return made


def _joined(value: Any) -> Any:
    return (
        "".join(value)
        if isinstance(value, list) and all(isinstance(line, str) for line in value)
        else value
    )


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(arguments: list[str]) -> int:
    """Rewrite or check; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args(arguments)
    different = 0
    for path in chosen.files or sorted(FOLDER.glob("*.ipynb")):
        try:
            text = path.read_text(encoding="utf-8")
            wanted = canonical_text(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # ValueError: no JSON, or not in UTF-8
            print(
                f"{path}: no notebook ({type(error).__name__}: {error}); expected JSON in nbformat "
                "4. Restore the file.",
                file=sys.stderr,
            )
            return 2
        if text != wanted:
            different += 1
            state = "not canonical; run tools/canonical.py" if chosen.check else "rewritten"
            print(f"{path}: {state}")
            if not chosen.check:
                path.write_text(wanted, encoding="utf-8", newline="\n")
    return 1 if chosen.check and different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
