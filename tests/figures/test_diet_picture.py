"""The picture of lighter models: numbered points, bars and the line of those that none beats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures
from gpulab.compression import WeighedModel, Weighing
from gpulab.evidence import Evidence
from gpulab.figures._style import LabFigure
from gpulab.figures.diet import _on_each_other
from gpulab.training import Accuracy

LIVE = Evidence.measured("A GPU", 9)


def test_points_that_lie_on_each_other_share_their_numbers() -> None:
    """By hand: nearer than 6 per cent in size or time, and than 0.8 points of accuracy."""

    def on(size: float, right: float) -> bool:
        one, other = (SimpleNamespace(size=s, accuracy=r) for s, r in ((100.0, 0.5), (size, right)))
        return _on_each_other(one, other, lambda m: m.size) and _on_each_other(other, one, lambda m: m.size)  # type: ignore[arg-type]

    assert [on(size, 0.5) for size in (105.9, 106.1, 94.4, 94.3)] == [True, False, True, False]
    assert [on(100.0, right) for right in (0.5079, 0.5081, 0.4921, 0.4919)] == [True, False, True, False]


def weighed() -> LabFigure:
    """Three models, two of them on each other."""
    rows = []
    for label, nbytes, right, speedup in (("as trained", 68_000, 490, None), ("zeros", 10_000, 480, 1.0), ("zeros too", 10_100, 479, 1.01)):
        accuracy = Accuracy(right, 500, right / 500, (right / 500 - 0.02, min(1.0, right / 500 + 0.01)), 0.1, "digits", LIVE)
        span = None if speedup is None else (0.9 * speedup, 1.1 * speedup)
        rows.append(
            WeighedModel(
                label, nbytes, 17_000, 0, (), 1e6, 14, 1000, 1e-3, (0.9e-3, 1.1e-3), 1e-4, None, speedup, span, (accuracy,), (), LIVE
            )
        )  # fmt: skip
    where = dataclasses.replace(devices.environment("cpu"), device="Slow CPU", device_kind="cpu")
    return figures.diet(Weighing("digits-cnn", "Slow CPU", 64, tuple(rows), (), LIVE, where))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "diet": weighed,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
