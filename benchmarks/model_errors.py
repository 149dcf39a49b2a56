"""The errors of the models on recorded machines: roofline, transfer line, link, processor.

    python benchmarks/model_errors.py [NAME ...]      of these recordings; without names, of all

The badges of the models quote the sentences that this prints (``known_error``); a test holds both
together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpulab import models, recordings, transfer, workloads
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Evidence
from gpulab.recordings import Entry, Recording
from gpulab.units import plural

# A call that should take less is mostly the cost of the call itself, which neither model knows.
LEAST_SECONDS = 1e-4
_FEWEST_POINTS = 8  # of a series, since the line is fitted to half of them
# Part of a device's name -> the names that the models have for its link to the host and for its
# processor (NVIDIA's data sheet of the part).
_MODELS_OF = {"H200": ("pcie5-x16", "nvidia-h200")}


class ModelError(NamedTuple):
    """The ratios of recorded times to those of a model.

    Attributes
    ----------
    model : str
        "roofline", "transfer", "link NAME, pinned" (or pageable) or "processor NAME".
    recording : str
        The machine's short name.
    cases : int
    median_ratio : float
        Recorded divided by modelled: above 1, the model is too optimistic.
    middle : (float, float)
        The 10th and the 90th percentile.
    smallest, largest : (str, float)
        The key of the case with that ratio, and the ratio.
    evidence : Evidence
        Of the recording.
    """

    model: str
    recording: str
    cases: int
    median_ratio: float
    middle: tuple[float, float]
    smallest: tuple[str, float]
    largest: tuple[str, float]
    evidence: Evidence

    @property
    def sentence(self) -> str:
        """The error in the words of a badge."""
        low, high = self.middle
        return (
            f"on {self.recording} the recorded time is {self.median_ratio:.2g} times the model's "
            f"in the median of {plural(self.cases, 'case')}, {low:.2g} to {high:.2g} times in the "
            "middle 80 %"
        )

    def rows(self) -> Sequence[Sequence[str]]:
        """Return the ratios and the cases at both ends."""
        ends = (("smallest", self.smallest), ("largest", self.largest))
        return [
            ("median", f"{self.median_ratio:.3g}"),
            ("10th to 90th percentile", f"{self.middle[0]:.3g} to {self.middle[1]:.3g}"),
            *((f"{end}: {key}", f"{ratio:.3g}") for end, (key, ratio) in ends),
        ]


def model_errors(recording: Recording) -> tuple[ModelError, ...]:
    """Return the errors of the models on a recorded machine, for the models whose experiments the
    recording has.

    The roofline is evaluated for each float32 workload of the catalogue for which it predicts at
    least 0.1 ms; the line of a transfer is fitted to every second size and evaluated at the others.
    A GPU for which ``gl.transfer.link`` or ``processor`` has a formula is compared with that.
    """
    ratios_of_models = [
        ("roofline", _roofline_ratios(recording)),
        ("transfer", _transfer_ratios(recording)),
    ]
    for part, (link, processor) in _MODELS_OF.items():
        # a GH200 is no H200: another link
        if re.search(rf"\b{part}\b", recording.environment.device):
            ratios_of_models += [
                (f"link {link}, {memory}", _link_ratios(recording, link, memory))
                for memory in ("pinned", "pageable")
            ]
            ratios_of_models.append(
                (f"processor {processor}", _processor_ratios(recording, processor))
            )
    return tuple(_summed(model, recording, ratios) for model, ratios in ratios_of_models if ratios)


def _roofline_ratios(recording: Recording) -> list[tuple[str, float]]:
    try:
        roofs = models.roofline(recording)
    except GpulabError:  # without its ceilings a recording has no roofs
        return []
    ratios = []
    for entry in recording.select("catalogue", dtype="float32"):
        work = _workload(entry)
        if work is None or entry.timing is None:
            continue
        try:
            point = roofs.place_workload(work)
        except InputError:
            # no roof for this number format: a short recording does not reach all of them
            continue
        if point.attainable_seconds >= LEAST_SECONDS:
            ratios.append((entry.key, entry.timing.median_seconds / point.attainable_seconds))
    return ratios


def _workload(entry: Entry) -> workloads.Workload | None:
    """Return the workload of an entry of the catalogue; None if this version has no workload of
    that name, size or number format.
    """
    try:
        return workloads.get(str(entry.params["workload"]))(
            n=int(entry.params["n"]), dtype=entry.params["dtype"]
        )
    except InputError:
        return None


def _transfer_ratios(recording: Recording) -> list[tuple[str, float]]:
    series: dict[tuple[object, object], list[tuple[int, float, str]]] = {}
    for entry in recording.select("transfer"):
        if entry.timing is not None:
            point = (int(entry.params["nbytes"]), entry.timing.median_seconds, entry.key)
            series.setdefault((entry.params["direction"], entry.params["memory"]), []).append(point)
    ratios = []
    for points in series.values():
        if len(points) >= _FEWEST_POINTS:
            points.sort()
            line = transfer.fit([p[0] for p in points[::2]], [p[1] for p in points[::2]])
            ratios += [
                (key, seconds / line.predict(nbytes)[1]) for nbytes, seconds, key in points[1:-1:2]
            ]
    return ratios


def _link_ratios(recording: Recording, name: str, memory: str) -> list[tuple[str, float]]:
    model = transfer.link(name, memory=memory)
    return [
        (entry.key, entry.timing.median_seconds / model.seconds(int(entry.params["nbytes"])))
        for entry in recording.select("transfer", memory=memory)
        if entry.timing is not None
    ]


def _processor_ratios(recording: Recording, name: str) -> list[tuple[str, float]]:
    model = transfer.processor(name)
    ratios = []
    for entry in recording.select("catalogue"):
        work = _workload(entry)
        if entry.timing is not None and work is not None and work.dtype in model.flops_per_second:
            ratios.append(
                (
                    entry.key,
                    entry.timing.median_seconds
                    / model.seconds(work.flops, work.nbytes, work.dtype),
                )
            )
    return ratios


def _summed(model: str, recording: Recording, ratios: list[tuple[str, float]]) -> ModelError:
    values = np.array([ratio for _, ratio in ratios])
    low, middle, high = (float(v) for v in np.percentile(values, [10, 50, 90]))
    return ModelError(
        model,
        recording.name,
        len(ratios),
        middle,
        (low, high),
        ratios[int(values.argmin())],
        ratios[int(values.argmax())],
        recording.evidence(experiment="catalogue"),
    )


def main(names: Sequence[str]) -> None:
    """Print the errors of the models on recorded machines."""
    for name in names or recordings.names():
        for one in model_errors(recordings.load(name)):
            print(f"{one.model}: {one.sentence}")
            for what, ratio in one.rows():
                print(f"    {what}: {ratio}")


if __name__ == "__main__":
    main(sys.argv[1:])
