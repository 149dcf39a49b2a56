"""Seeded faults: what is planted, what is left alone, which tests are asked, and that a test which sees the fault is heard."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import planted_faults
import pytest
import seed_faults

SOURCE = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

__all__ = ["total"]


def total(values: list[float], start: float = 1.5) -> float:
    button.on_click(values)
    torch.cuda.synchronize()
    if not values and start > 2:
        raise ValueError(f"{start + 1} is wrong")
    return scale(values.sum(axis=0), start)
"""


def planted() -> dict[str, list[str]]:
    """SOURCE with each of its faults, by kind."""
    found: dict[str, list[str]] = {}
    for fault in planted_faults.faults_of("x.py", SOURCE):
        found.setdefault(fault.kind, []).append(planted_faults.planted(fault, SOURCE) or "")
    return found


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("wrong constant", "def total(values: list[float], start: float = (1.6500000000000001)) -> float:"),
        ("dead callback", "    pass"),
        ("missing synchronise", "    pass"),
        ("comparison turned", "    if not values and (start >= 2):"),
        ("logic turned", "    if (not values or start > 2):"),
        ("logic turned", "    if (values) and start > 2:"),
        ("dropped statement", "        pass"),
        ("swapped axis", "    return scale(values.sum(axis=1), start)"),
        ("swapped arguments", "    return scale(start, values.sum(axis=0))"),
        ("empty result", "    return None"),
    ],
)
def test_each_kind_changes_one_line(kind: str, line: str) -> None:
    """Written down by hand; everything else stays as it is."""
    before = SOURCE.splitlines()
    changes = [
        [(i, now) for i, (was, now) in enumerate(zip(before, text.splitlines(), strict=True)) if was != now] for text in planted()[kind]
    ]
    assert line in [now for change in changes for _, now in change]
    assert all(len(change) == 1 for change in changes)


def test_what_does_not_run_is_left_alone() -> None:
    """No fault in annotations, in what is for type checkers, in __all__, or inside an f-string; and each one is Python."""
    faults = list(planted_faults.faults_of("x.py", SOURCE))
    assert {fault.line for fault in faults} == {10, 11, 12, 13, 14, 15}
    assert all(ast.parse(text) for texts in planted().values() for text in texts)
    assert not any("start - 1" in text for texts in planted().values() for text in texts)


def test_arguments_that_may_change_places_are_left() -> None:
    """Whether two arrays are equal, or which of two is larger, does not depend on which comes first; how near one is to the other does."""
    source = "def f(a, b):\n    {}(a, b)\n"
    kinds = {
        name: {fault.kind for fault in planted_faults.faults_of("x.py", source.format(name))}
        for name in ("torch.equal", "np.maximum", "isinstance", "np.allclose", "np.power")
    }
    assert {name for name, found in kinds.items() if "swapped arguments" in found} == {"np.allclose", "np.power"}


def test_a_fault_that_says_the_same_is_none() -> None:
    """An empty list for an empty list is no fault, and what is no Python is none either."""
    (empty,) = planted_faults.faults_of("x.py", "def f():\n    return []\n")
    assert planted_faults.planted(empty, "def f():\n    return []\n") is None
    assert planted_faults.planted(empty._replace(new="return ]"), "def f():\n    return []\n") is None


def test_a_cell_is_emptied_and_the_notebook_stays_one() -> None:
    """Code cells alone, magics left out; the change stands in its cell."""
    cells = [
        {"cell_type": "markdown", "id": "a", "source": "x = 1"},
        {"cell_type": "code", "id": "b", "source": ["x = 1\n", "y = x"]},
        {"cell_type": "code", "id": "c", "source": ["%load_ext gpulab"]},
    ]
    text = json.dumps({"cells": cells})
    changed = [json.loads(planted_faults.planted(fault, text) or "") for fault in planted_faults.faults_of_notebook("n.ipynb", text)]
    assert all([cell["source"] for cell in one["cells"]][::2] == ["x = 1", ["%load_ext gpulab"]] for one in changed)
    sources = ["".join(one["cells"][1]["source"]) for one in changed]
    assert sorted(sources) == ["", "x = (2)\ny = x"]


def test_the_nearest_tests_are_asked_first_then_the_folders() -> None:
    """Its own doctests and the tests of its name; in the second turn the other tests of its folder, each file once."""
    nearest, folder = seed_faults.mapped("gpulab/transfer/_break_even.py", seed_faults.ROOT)
    assert nearest == ["gpulab/transfer/_break_even.py", "tests/transfer/test_break_even.py"]
    assert "tests/transfer/test_links.py" in folder
    assert not set(nearest) & set(folder)


def test_a_test_that_imports_a_private_module_is_near_it() -> None:
    """tests/lessons/test_classroom.py imports gpulab.lessons._class_reading, whose name no test file has."""
    assert "tests/lessons/test_classroom.py" in seed_faults.mapped("gpulab/lessons/_class_reading.py", seed_faults.ROOT)[0]
    assert "tests/lessons/test_classroom.py" not in seed_faults.mapped("gpulab/lessons/_nb02.py", seed_faults.ROOT)[0]


def test_a_shared_word_is_near_where_nothing_has_the_whole_name() -> None:
    """Results of traffic are looked for among the tests of traffic."""
    assert "tests/memory/test_memory_traffic.py" in seed_faults.mapped("gpulab/memory/traffic_results.py", seed_faults.ROOT)[0]


def test_a_lesson_is_mapped_to_the_solutions_of_its_notebook() -> None:
    """Of its own notebook alone: the others know nothing of it. What only 04's exercises import is 04's too."""
    found = seed_faults.mapped("gpulab/lessons/_nb03_exercises.py", seed_faults.ROOT)
    assert found[1] == ["tests/notebooks/test_solutions.py", "-k", "03. or ids"]
    shared = seed_faults.mapped("gpulab/lessons/_kernel_checks.py", seed_faults.ROOT)
    assert ["tests/notebooks/test_solutions.py", "-k", "04. or ids"] in shared


def test_a_folder_without_tests_has_the_tests_of_its_name() -> None:
    """The adapters of array libraries lie in gpulab/_backends, their tests in tests/test_backends*.py."""
    assert "tests/test_backends.py" in seed_faults.mapped("gpulab/_backends/_numpy.py", seed_faults.ROOT)[-1]


def test_a_notebook_is_asked_for_its_form_then_run() -> None:
    """The form costs a second and its cells a minute."""
    form, itself, *_ = seed_faults.mapped("notebooks/03_compute_density.ipynb", seed_faults.ROOT)
    names = ("cells", "cells_calls", "cells_said", "form", "notebook_exercises")
    assert form == [*(f"tests/notebooks/test_{name}.py" for name in names), "-k", "03 or form or cells"]
    assert itself == ["notebooks/03_compute_density.ipynb"]


def test_the_choice_is_the_seeds_and_rare_kinds_get_their_share(tmp_path: Path) -> None:
    """A hundred constants and one callback: ten faults hold both kinds; a seed chooses alike, and no fault says the same."""
    (tmp_path / "a.py").write_text("".join(f"x = {k}.5\n" for k in range(100)) + "def f():\n    return []\n")
    (tmp_path / "b.py").write_text("button.on_click(x)\n")
    found: dict[str, dict[str, list[planted_faults.Fault]]] = {}
    for name in ("a.py", "b.py"):
        for fault in planted_faults.faults_in(name, tmp_path):
            found.setdefault(fault.kind, {}).setdefault(name, []).append(fault)
    chosen = seed_faults.choose(found, 10, 1, tmp_path)
    assert {fault.kind for fault in chosen} == {"wrong constant", "dead callback"}
    assert chosen == seed_faults.choose(found, 10, 1, tmp_path) != seed_faults.choose(found, 10, 2, tmp_path)
    assert len(seed_faults.choose(found, 1000, 1, tmp_path)) == 101


@pytest.fixture(scope="module")
def warm() -> Iterator[seed_faults.Tests]:
    """One server of runs for all tests of this file."""
    with seed_faults.Tests() as tests:
        yield tests


def small_project(folder: Path) -> Path:
    """A package of one module, a test that sees its constant, one that sees nothing, and one that fails anyway."""
    for name, text in {
        "gpulab/__init__.py": "",
        "gpulab/part/__init__.py": "",
        "gpulab/part/_thing.py": "def size():\n    return 3\n\n\ndef unseen():\n    return 5\n",
        "tests/part/test_thing.py": "def test_always():\n    assert False\n",
        "tests/part/test_other.py": "from gpulab.part._thing import size\ndef test_size():\n    assert size() == 3\n",
        "pytest.ini": "[pytest]\nmarkers =\n    browser\n    gpu\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_module_that_no_test_names_has_the_tests_of_those_that_import_it(tmp_path: Path) -> None:
    """It would have none else, and the mapping alone would be to blame for what is missed."""
    project = small_project(tmp_path)
    (project / "gpulab/_words.py").write_text("WORDS = 3\n")
    (project / "gpulab/speech.py").write_text("def say():\n    from gpulab._words import WORDS\n    return WORDS\n")
    (project / "tests/test_speech.py").write_text("from gpulab import speech\n")
    (project / "tests/test_else.py").write_text("from gpulab import part\n")
    assert seed_faults.mapped("gpulab/_words.py", project) == [[], ["tests/test_speech.py"]]


def test_a_test_that_fails_anyway_has_noticed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: seed_faults.Tests) -> None:
    """It is asked no more; one constant is seen by the other test, one by none; the file is put back."""
    project = small_project(tmp_path)
    monkeypatch.setattr(seed_faults, "ROOT", project)
    text = (project / "gpulab/part/_thing.py").read_text()
    faults = [fault for fault in planted_faults.faults_in("gpulab/part/_thing.py", project) if fault.kind == "wrong constant"]
    entries = [{"kind": f.kind, "path": f.path, "line": f.line, "what": f.what, "first": None, "again": None} for f in faults]
    broken: list[str] = []
    saved: list[str] = []
    seed_faults.try_all(seed_faults.Copy(project, warm, 60, broken), entries, "first", lambda: saved.append(json.dumps(entries)))
    assert broken == ["tests/part/test_thing.py::test_always"]
    assert [(entry["line"], entry["first"]["outcome"], entry["first"]["by"]) for entry in entries] == [
        (2, "failed", ["tests/part/test_other.py::test_size"]),
        (6, "passed", []),
    ]
    assert all(entry["first"]["sound"] for entry in entries)
    assert (project / "gpulab/part/_thing.py").read_text() == text
    assert seed_faults.report(entries) == 0.5
    # Interrupted after the first result, it goes on from there.
    again = json.loads(saved[0])
    seed_faults.try_all(seed_faults.Copy(project, warm, 60, ["tests/part/test_thing.py::test_always"]), again, "first", lambda: None)
    assert [entry["first"]["outcome"] for entry in again] == ["failed", "passed"]


def test_a_test_that_is_there_only_with_the_fault_has_noticed(tmp_path: Path, warm: seed_faults.Tests) -> None:
    """Its parameters come from what was changed, so the unchanged copy has none of its name; a file that cannot be read notices none."""
    project = small_project(tmp_path)
    (project / "tests/part/test_other.py").write_text(
        "import pytest\nfrom gpulab.part._thing import size\n"
        "@pytest.mark.parametrize('n', [size()])\ndef test_size(n):\n    assert n == 3\n"
    )
    (project / "tests/part/test_bad.py").write_text("import nothing_of_this_name\n")
    where = seed_faults.Copy(project, warm, 60, [])
    assert warm.run(project, ["tests/part/test_other.py::test_size[3]"], 60).outcome == "passed"
    assert where.unsound([{"by": ["tests/part/test_other.py::test_size[4]"]}]) == []
    for failing in ("tests/part/test_bad.py", "tests/part/test_thing.py::test_always"):
        assert where.unsound([{"by": [failing]}]) == [{"by": [failing]}]
        assert failing in where.broken


def test_a_test_that_sees_the_fault_is_heard(tmp_path: Path, warm: seed_faults.Tests) -> None:
    """The copy's own module is what its tests import; an endless test is ended and counts as heard; no test at all hears nothing."""
    (tmp_path / "planted.py").write_text("x = 1\n")
    (tmp_path / "test_it.py").write_text(
        "import time, planted\ndef test_x():\n    time.sleep(planted.x == 3 and 60)\n    assert planted.x == 1\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    browser\n    gpu\n")
    assert warm.run(tmp_path, ["test_it.py"], 60).outcome == "passed"
    assert warm.run(tmp_path, ["planted.py"], 60).outcome == "passed"
    assert warm.run(tmp_path, [], 60) == ("passed", 0.0, [])
    (tmp_path / "planted.py").write_text("x = 2\n")
    run = warm.run(tmp_path, ["test_it.py"], 60)
    assert (run.outcome, run.failed) == ("failed", ["test_it.py::test_x"])
    (tmp_path / "planted.py").write_text("x = 3\n")
    assert warm.run(tmp_path, ["test_it.py"], 5).outcome == "timed out"


def test_a_far_test_has_to_fail_twice(tmp_path: Path) -> None:
    """One that fails only now and then has noticed nothing and is not asked again; the turn is asked once more without it."""
    project = small_project(tmp_path)
    answers = [seed_faults.Run("failed", 1.0, ["tests/part/test_far.py::test_clock"]), seed_faults.Run("passed", 1.0, [])]
    asked: list[list[str]] = []

    class Scripted:
        def run(self, tree: Path, tests: list[str], seconds: float, *more: str) -> seed_faults.Run:
            asked.append([*more, *tests])
            return answers[len(asked) - 1] if len(asked) < 3 else seed_faults.Run("passed", 1.0, [])

    (project / "tests/part/test_far.py").write_text("import os\n")
    fault = next(planted_faults.faults_of("gpulab/part/_thing.py", (project / "gpulab/part/_thing.py").read_text()))
    where = seed_faults.Copy(project, Scripted(), 60, [])  # type: ignore[arg-type]
    found = where.attempt(fault, 1)
    assert (found["outcome"], found["turn"], where.broken) == ("so far", 0, ["tests/part/test_far.py::test_clock"])
    assert asked[1] == where.broken
    assert where.attempt(fault, found["turn"] + 1)["outcome"] == "passed"
    assert "--deselect=tests/part/test_far.py::test_clock" in asked[2]
