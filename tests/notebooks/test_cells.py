"""What cells work out by themselves, with numbers whose answer is known: a cell that runs can still compute the wrong thing."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpulab import kernels

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
# The kernels of notebook 01, by the group of threads that takes a branch together.
GROUPS = {"apart": 1, "together": 32}


def run(notebook: str, id: str, **names: Any) -> dict[str, Any]:
    """Run one cell on these names and return what is there afterwards."""
    cells = json.loads((FOLDER / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == id)
    file = f"<{id}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # a kernel's text is found, as in a notebook
    exec(compile(source, file, "exec"), names)
    return names


def seconds(value: float) -> str:
    """What stands for gpulab's own words for seconds."""
    return f"{value:g} s"


def test_means_of_three_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    """1 to 10 s: (1, 2, 3), (4, 5, 6), (7, 8, 9), and the tenth is left over."""
    run("00_start_here", "means", root=SimpleNamespace(samples_seconds=np.arange(1.0, 11.0)), format_seconds=seconds)
    assert capsys.readouterr().out.startswith("3 means of three: from 2 s to 8 s\n")


def test_the_spread_of_ten_calls_in_percent() -> None:
    """From 2 to 5 s: the slowest takes 150 % longer."""
    revealed: list[tuple[str, float]] = []
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda id, value: revealed.append((id, value))))
    run("00_start_here", "reveal-spread", times=[3.0, 2.0, 5.0, 4.0], gl=gl)
    assert revealed == [("00.4", pytest.approx(150.0))]


@pytest.mark.parametrize("id", list(GROUPS))
def test_both_kernels_do_the_same_work_apart_from_who_takes_which_branch(id: str) -> None:
    """Doubled and one more, or tripled and one less, in turns of one thread or of one warp."""
    names = run("01_gpu_architecture", id, cuda=kernels.cuda)
    kernel = names["lanes_apart" if id == "apart" else "warps_apart"]
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    kernels.simulate(kernel, 2, 64, x, out)
    assert list(out) == [2 * k + 1 if k // GROUPS[id] % 2 == 0 else 3 * k - 1 for k in range(128)]


def test_columns_are_summed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, and the strides of 4-byte numbers in three rows of two, stored by rows and by columns."""
    names = run("10_rosetta", "columns-loop", np=np)
    assert capsys.readouterr().out == "[3. 3.] strides in bytes: (8, 4) (4, 12)\n"
    assert list(names["sum_columns"](np.array([[1, 2, 3], [10, 20, 30]]))) == [11, 22, 33]
