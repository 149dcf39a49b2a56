"""The SIMT microscope on kernels of one's own: steps, lanes, counts, edited cells, errors, Stop."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpulab.errors import InputError
from gpulab.kernels import cuda, float32
from gpulab.widgets import SimtMicroscope
from gpulab.widgets.simt_microscope import EXAMPLES
from instruments import run_cell

PARTS = """
def parts(x, out):
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = x[i]
    else:
        out[i] = -x[i]
"""
ENDLESS = """
def parts(x, out):
    while out[0] == out[0]:  # by a value, or the loop would be refused at its first turn
        out[0] = x[0]
"""


@pytest.fixture
def cell() -> Callable[[str], dict[str, Any]]:
    """Run a notebook's cell: in one namespace, each time a new text, as IPython does."""
    names: dict[str, Any] = {"__name__": "__main__", "cuda": cuda, "float32": float32}
    count = itertools.count()
    return lambda code: run_cell(code, names, f"<cell {next(count)} of {id(names)}>")[0]


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """64 numbers and room for as many."""
    return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


@pytest.fixture
def microscope(cell: Any, arrays: Any) -> Iterator[SimtMicroscope]:
    """A microscope on two warps, in which odd and even lanes diverge."""
    one = SimtMicroscope(cell(PARTS)["parts"], 1, 64, *arrays)
    one.wait()
    yield one
    one.close()


def _text(m: SimtMicroscope) -> str:
    """Every step of the warp, in words."""
    lines = []
    for step in range(1, m.position["steps"] + 1):
        m.set(step=step)
        lines.append(f"step {step}, line {m.position['line']}: " + "; ".join(m.words))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_in_words(name: str, approved: Any) -> None:
    """Each step of a warp: its line, active lanes, sectors, banks, conflicts; then the counts."""
    m = SimtMicroscope(name)
    m.set(block_number=m.controls["block_number"].maximum)
    text = _text(m) + "\n".join(" | ".join(row) for row in m.shown.rows) + f"\n{m.shown.message}\n"
    m.close()
    assert text == approved


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_code_of_an_example_gives_the_same_counts(name: str, capsys: Any) -> None:
    """The cell runs by itself, prints the listing, and ends at the step that is shown."""
    m = SimtMicroscope(name)
    totals = m.result.totals
    names, _ = run_cell(m.code)
    assert names["s"].totals == totals
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{m.position['line']} ")
    m.close()


def test_diverging_lanes_take_their_own_lines(microscope: SimtMicroscope, arrays: Any) -> None:
    """Even lanes take one line, odd ones the other, 16 of 32 each; outputs are those of NumPy."""
    steps = _text(microscope).splitlines()
    even, odd = (next(text for text in steps if f"line {line}" in text) for line in (5, 7))
    for first, text in enumerate((even, odd)):
        assert ("16 of 32" in text, f"lane from {first}" in text) == (True, True)
    x, out = arrays
    expected = np.where(np.arange(64) % 2 == 0, x, -x)
    np.testing.assert_array_equal(microscope.outputs["out"], expected)
    assert not out.any()
    assert microscope.result.totals.divergent_branches == 2


def test_going_to_warps_and_steps(microscope: SimtMicroscope) -> None:
    """Another warp is shown at the same moment; a step beyond the last one is the last one.

    Step 0, and warps and blocks that do not exist, are refused.
    """
    microscope.set(step=3)
    before = microscope.position
    microscope.set(warp=1)
    after = microscope.position
    assert (microscope.values["warp"], after["line"]) == (1, before["line"])
    microscope.set(step=after["steps"] + 9)
    assert microscope.position["step"] == after["steps"]
    for bad in ({"step": 0}, {"warp": 2}, {"block_number": 1}):
        with pytest.raises(InputError):
            microscope.set(**bad)


def test_run_reads_the_edited_cell(
    microscope: SimtMicroscope, cell: Callable[[str], dict[str, Any]]
) -> None:
    """Before Run nothing changes; after it the new text counts, at the same step."""
    microscope.set(step=3)
    before = microscope.result.totals
    cell(PARTS.replace("out[i] = -x[i]", "out[i] = x[2]"))
    assert microscope.result.totals == before
    microscope.run(wait=True)
    assert microscope.values["step"] == 3
    assert microscope.outputs["out"][1] == 2.0


def test_an_example_and_back_to_ones_own_kernel(microscope: SimtMicroscope) -> None:
    """An example takes the place of one's own kernel, and one's own comes back."""
    microscope.set(kernel="vector_add")
    assert microscope.outputs["out"].shape == (100,)
    microscope.set(kernel="parts (yours)")
    assert microscope.outputs["out"].shape == (64,)
    assert microscope.words
    assert "simulate(parts, 1, 64, " in microscope.code


def test_findings_are_shown_with_their_line(approved: Any) -> None:
    """Without its guard a kernel reaches outside: the verdict, the step and the table say so."""
    m = SimtMicroscope("vector_add_unguarded", block_number=3)
    text = _text(m) + m.shown.message + "\n"
    assert {finding.kind for finding in m.result.findings} == {"bounds"}
    m.close()
    assert text == approved


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def parts(x, out):\n    import os\n", "import"),
        ("def parts(x, out):\n    out[cuda.grid(1)] = nosuch\n", "nosuch"),
        ("def parts(x):\n    x[0] = 1\n", "argument"),
    ],
)
def test_a_kernel_that_cannot_run_says_why(
    microscope: SimtMicroscope, cell: Any, source: str, words: str
) -> None:
    """One sentence says why; nothing of the previous run is left; the next kernel runs."""
    cell(source)
    microscope.set(kernel="vector_add")
    microscope.run(wait=True)
    microscope.set(kernel="parts (yours)")
    microscope.wait()
    assert words in microscope.error
    assert microscope.shown.message.startswith("Nothing to show")
    assert "\n" not in microscope.error
    assert (microscope.result, microscope.words, microscope.position) == (None, [], {})
    cell(PARTS)
    microscope.run(wait=True)
    assert microscope.error == ""
    assert microscope.words


def test_stop_ends_an_endless_kernel(microscope: SimtMicroscope, cell: Any) -> None:
    """It is stopped without an error, and another kernel can be looked at."""
    cell(ENDLESS)
    microscope.run()
    assert microscope.running
    microscope.stop()
    microscope.wait()
    assert (microscope.running, microscope.error) == (False, "")
    microscope.set(kernel="vector_add")
    assert microscope.words


@pytest.mark.parametrize(
    "arguments",
    [
        *(("nosuch",), (3,), (print, 1, 32), (lambda x: None,)),
        (lambda x: None, 1, 32, torch.zeros(1, dtype=torch.bfloat16)),
    ],
)
def test_junk_for_a_kernel_is_refused(arguments: Any) -> None:
    """An unknown name, a number, a builtin, no launch, a tensor that NumPy cannot hold: one
    sentence, raised or shown.
    """
    with contextlib.suppress(InputError):
        m = SimtMicroscope(*arguments)
        m.wait()
        assert m.error
        assert "traceback" not in m.error
        m.close()


@pytest.mark.parametrize("lay_out", [np.asarray, lambda a: np.repeat(a, 2)[::2], lambda a: a[::-1]])
def test_the_arrays_of_a_launch_stay_as_they_are(cell: Any, arrays: Any, lay_out: Any) -> None:
    """Whatever their layout, the kernel runs on copies."""
    out = lay_out(arrays[1])
    m = SimtMicroscope(cell(PARTS)["parts"], 1, 64, arrays[0], out)
    m.wait()
    assert (m.error, bool(m.words)) == ("", True)
    assert not out.any()
    m.close()
