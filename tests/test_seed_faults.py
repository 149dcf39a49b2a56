"""Seeded faults: what is planted, what is left alone, which tests are asked, and that a test which sees the fault is heard."""

from __future__ import annotations

import ast
import json
from pathlib import Path

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


def planted() -> dict[str, list[seed_faults.Fault]]:
    """The faults of SOURCE by kind."""
    found: dict[str, list[seed_faults.Fault]] = {}
    for fault in seed_faults.faults_of("x.py", SOURCE):
        found.setdefault(fault.kind, []).append(fault)
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
        [(i, now) for i, (was, now) in enumerate(zip(before, f.text.splitlines(), strict=True)) if was != now] for f in planted()[kind]
    ]
    assert line in [now for change in changes for _, now in change]
    assert all(len(change) == 1 for change in changes)


def test_what_does_not_run_is_left_alone() -> None:
    """No fault in annotations, in what is for type checkers, in __all__, or inside an f-string; and each one is Python."""
    faults = [fault for kind in planted().values() for fault in kind]
    assert {fault.line for fault in faults} == {10, 11, 12, 13, 14, 15}
    assert all(ast.parse(fault.text) for fault in faults)
    assert not any("start - 1" in fault.text for fault in faults)


def test_a_cell_is_emptied_and_the_notebook_stays_one() -> None:
    """Code cells alone, magics left out; the change stands in its cell."""
    cells = [
        {"cell_type": "markdown", "id": "a", "source": "x = 1"},
        {"cell_type": "code", "id": "b", "source": ["x = 1\n", "y = x"]},
        {"cell_type": "code", "id": "c", "source": ["%load_ext gpulab"]},
    ]
    faults = list(seed_faults.faults_of_notebook("n.ipynb", json.dumps({"cells": cells})))
    sources = ["".join(json.loads(fault.text)["cells"][1]["source"]) for fault in faults]
    assert sorted(sources) == ["", "x = (2)\ny = x"]


def test_a_file_is_mapped_to_the_tests_of_its_name_then_its_folder() -> None:
    """Its own doctests first."""
    found = seed_faults.mapped("gpulab/transfer/_break_even.py", seed_faults.ROOT)
    assert found[:2] == ["gpulab/transfer/_break_even.py", "tests/transfer/test_break_even.py"]
    assert "tests/transfer/test_links.py" in found[2:]
    assert seed_faults.mapped("gpulab/lessons/_nb03.py", seed_faults.ROOT)[1] == "tests/notebooks/test_solutions.py"
    assert seed_faults.mapped("notebooks/03_compute_density.ipynb", seed_faults.ROOT)[-3:] == [
        "notebooks/03_compute_density.ipynb", "-k", "03 or form",
    ]  # fmt: skip


def test_the_choice_is_the_seeds_and_rare_kinds_get_their_share() -> None:
    """A hundred constants and one callback: ten faults hold both kinds; the same seed chooses the same."""
    constants = [seed_faults.Fault("wrong constant", "a.py", i, str(i), "") for i in range(100)]
    found = {"wrong constant": {"a.py": constants}, "dead callback": {"b.py": [seed_faults.Fault("dead callback", "b.py", 1, "x", "")]}}
    chosen = seed_faults.choose(found, 10, 1)
    assert {fault.kind for fault in chosen} == {"wrong constant", "dead callback"}
    assert chosen == seed_faults.choose(found, 10, 1) != seed_faults.choose(found, 10, 2)
    assert len(seed_faults.choose(found, 1000, 1)) == 101


def test_a_test_that_sees_the_fault_is_heard(tmp_path: Path) -> None:
    """The copy's own module is what its tests import; an endless test is ended and counts as heard."""
    (tmp_path / "planted.py").write_text("x = 1\n")
    (tmp_path / "test_it.py").write_text(
        "import time, planted\ndef test_x():\n    time.sleep(planted.x == 3 and 60)\n    assert planted.x == 1\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    browser\n    gpu\n")
    assert seed_faults.run_tests(tmp_path, ["test_it.py"], 60)[0] == "passed"
    (tmp_path / "planted.py").write_text("x = 2\n")
    assert seed_faults.run_tests(tmp_path, ["test_it.py"], 60)[0] == "failed"
    (tmp_path / "planted.py").write_text("x = 3\n")
    assert seed_faults.run_tests(tmp_path, ["test_it.py"], 5)[0] == "timed out"
