"""Whose figures an answer is made of: each side's of a comparison, each model's assumptions and source; and what makes no answer at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import devices, lessons, timing
from gpulab.compression import Weighing
from gpulab.errors import MissingLibraryError
from gpulab.evidence import Evidence, Note
from gpulab.lessons import _architecture, _climb, _feeding, _library, _material, _road, content
from gpulab.lessons._density import FusionGain
from gpulab.lessons.content import Never, Unmeasured
from gpulab.memory import Traffic
from gpulab.parallel import StrategyResult
from gpulab.training import FitResult, LadderResult, PipelineResult, RaceResult

ONE, OTHER = Evidence.measured("A CPU"), Evidence.measured("A GPU")
SEEN, COUNTED = SimpleNamespace(evidence=ONE), SimpleNamespace(evidence=OTHER)
QUESTIONS = {id: question for lesson in content.lessons() for id, question in lesson.questions.items()}


def made(kind: type, **fields: Any) -> Any:
    """A result of that class with these fields alone."""
    one = object.__new__(kind)
    vars(one).update(fields)
    return one


PIPELINE = made(PipelineResult, evidence=ONE, accelerator_evidence=OTHER)
EARLIER = made(PipelineResult, evidence=OTHER, accelerator_evidence=ONE)
RINGS = Evidence.modelled("each collective runs as a ring", "gl.models.collective_cost")
LOADING = {"the loading": ONE, "the accelerator": OTHER}
# What the notebook's cell passes, and the evidence of each side by its name.
SIDES: dict[str, tuple[Any, dict[str, Evidence]]] = {
    "00.6": (_material.Contest("x", "n", "it", (), OTHER, ONE), {"the CPU": ONE, "the accelerator": OTHER}),
    "01.2": (
        (SimpleNamespace(kernel="split", evidence=ONE), SimpleNamespace(kernel="straight", evidence=OTHER)),
        {"split": ONE, "straight": OTHER},
    ),
    "02.1": (
        {"the CPU": SimpleNamespace(evidence=ONE, median_seconds=1.0), "the GPU": SimpleNamespace(evidence=OTHER, total_seconds=1.0)},
        {"the CPU": ONE, "the GPU": OTHER},
    ),
    "03.1": ({"the sum": SEEN, "the product": COUNTED}, {"the sum": ONE, "the product": OTHER}),
    "03.4": ((SEEN, COUNTED), {"the operators": ONE, "the roofs": OTHER}),
    "05.10": ((SEEN, COUNTED), {"the CPU": ONE, "CUDA": OTHER}),
    "05.12": ((SEEN, COUNTED), {"autocast": ONE, "float32": OTHER}),
    "06.1": (PIPELINE, LOADING),
    "06.2": ((EARLIER, PIPELINE), LOADING),
    "06.3": ([EARLIER, PIPELINE], LOADING),
    "08.9": (
        (made(StrategyResult, evidence=OTHER), made(StrategyResult, evidence=ONE)), {"the collectives": ONE, "what they send": RINGS},
    ),
}  # fmt: skip


def test_every_question_that_has_sides_is_held() -> None:
    """A new one needs its line in the table."""
    assert {id for id, question in QUESTIONS.items() if question.sides is not None} == set(SIDES)


@pytest.mark.parametrize("id", SIDES)
def test_each_side_has_its_own_evidence(id: str) -> None:
    """By its name, in its order; a plain number or a choice has no sides, for who gives one has it from elsewhere."""
    sides = QUESTIONS[id].sides
    assert sides is not None
    given, evidence = SIDES[id]
    assert list(sides(given).items()) == list(evidence.items())
    assert [dict(sides(plain)) for plain in (7.5, "the CPU")] == [{}, {}]


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _broken(*given: Any, **named: Any) -> Any:
    raise MissingLibraryError("no compiler here.")


ROAD, CHIP = Evidence.modelled("a straight road", "a map", "3 %"), Evidence.modelled("a fast chip", "its maker", "4 %")
LINK = SimpleNamespace(name="a link", evidence=ROAD, seconds=float)
GPU = SimpleNamespace(name="a chip", evidence=CHIP, seconds=lambda adds, nbytes: 1.0, launch_seconds=1.0)
BOTH = "a map; its maker"
# Where a figure is modelled: how it comes about, what it takes for granted, where it is from, and what is known of its error.
MODELLED: dict[str, tuple[Callable[[], Any], str, str, str | None]] = {
    "bytes of a fusion": (
        lambda: lessons.fusion_gain(_twice, _broken, torch.ones(8)), "time follows the bytes moved", "gpulab.memory.traffic of both forms",
        None,
    ),
    "a feed": (
        lambda: lessons.feeding(4096), "each run copies the array over a link (a straight road), then adds it up (a fast chip)", BOTH,
        "link: 3 %; compute: 4 %",
    ),
    "claims": (
        lambda: _material._make_claims(1.0), "exercise data: times set to chosen shares of the measured ceiling", "gl.lessons.four_claims",
        "not a measurement",
    ),
    "an opponent": (
        lambda: SimpleNamespace(evidence=_material._modelled(GPU, LINK)[1]),  # type: ignore[arg-type]
        "a fast chip; each array copied by itself over a link, a straight road", "its maker; a map", "link: 3 %; compute: 4 %",
    ),
    "passes": (
        lambda: lessons.numpy_passes(np.sqrt, np.ones(3)), "each function of NumPy reads its arrays and writes its result once; no caches",
        "a count of the calls", None,
    ),
    "retraces": (
        lambda: lessons.retraces([3]), "one program for each shape that is new, none for one that is known",
        "JAX, Just-in-time compilation with jax.jit: JIT and caching", "none where JAX was there (tests/lessons/test_nb10.py)",
    ),
    "no compiler": (
        lambda: lessons.compiled(""), "nothing: no compiler is here", "the compiler's own log, where there is one", None,
    ),
    "instructions": (
        lambda: lessons.instructions("", arch="sm_80"), "the code for sm_80, counted once however often it runs",
        "NVRTC and nvdisasm", None,
    ),
    "a step of parts": (
        lessons.step_of_parts, "the parts of a step run one after the other, with made-up times", "Amdahl's law for several parts",
        "not a measurement",
    ),
    "a data sheet": (
        lambda: SimpleNamespace(evidence=_architecture._of_data_sheet()[2]), "every unit busy at the highest clock",
        "NVIDIA's data sheet of the H200: H200 SXM, dense, at 1980 MHz; CUDA Programming Guide, compute capabilities",
        "upper bounds, which no program reaches",
    ),
    "pinning": (
        lambda: lessons.pinning(8),
        "pinning takes as long as a copy into fresh memory, 2.00 s measured on A CPU, and no longer; "
        "the copies to the GPU: a straight road",
        "PyTorch, A guide on good usage of non_blocking and pin_memory() (pin_memory copies into page-locked memory)", "copies: 3 %",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MODELLED)
def test_what_a_model_takes_for_granted_and_where_it_is_from(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its place: the badge's line says assumes, source and known error."""
    monkeypatch.setattr(_library, "unusable", lambda name: "not installed")
    monkeypatch.setattr(_climb, "compile_cuda", _broken)
    monkeypatch.setattr(_road, "pageable_against_pinned", lambda nbytes: lessons.TwoKinds(8, 2.0, 1.0, ROAD))
    monkeypatch.setattr(devices, "default", lambda: devices.Device("cpu"))
    call, assumptions, source, known_error = MODELLED[what]
    if what == "a feed":
        monkeypatch.setattr(_feeding, "transfer", SimpleNamespace(link=lambda name: LINK, processor=lambda name: GPU))
    if what == "pinning":
        monkeypatch.setattr(timing, "measure", lambda *_, **__: SimpleNamespace(median_seconds=2.0, evidence=ONE))
    found = call().evidence
    assert (found.assumptions, found.source, found.known_error) == (assumptions, source, known_error)


def raced(**fields: Any) -> Any:
    """A fusion that was raced, with what its race says."""
    return made(FusionGain, separate_seconds=2.0, speedup_interval=(0.9, 1.1), **fields)


FIRST, SECOND = Note("disagree", "fused: the result differs."), Note("contended", "Others were at work.")
AGAIN = " Run the cell above again."
# What tells nothing, and the whole sentence that stands in the answer's place.
TELLS_NOTHING: list[tuple[str, Any, str]] = [
    ("03.4", (made(Traffic, operators=()), None), "nothing was counted." + AGAIN),
    ("03.4", (7, None), "nothing was counted." + AGAIN),
    ("03.7", raced(speedup=None, notes=(FIRST, SECOND)), "fused: the result differs."),
    ("03.7", raced(speedup=None, notes=()), "the race reported no speed-up. Run the cell that races again."),
    ("05.1", made(FitResult, ended="stopped"), "the run stopped." + AGAIN),
    ("05.10", (SEEN, 7), "expected the two policies. Run the cells above again."),
    ("06.11", made(RaceResult, rows=(), speedup=None, speedup_interval=None), "too few steps were made to time one." + AGAIN),
    ("07.1", made(Weighing, models=(SimpleNamespace(speedup=None),)), "there is nothing to compare with. Weigh two models."),
    (
        "07.9", made(Weighing, models=(SimpleNamespace(label="float32"), SimpleNamespace(label="8-bit weights"))),
        "this device has no 8-bit kernels in PyTorch, so there are only two to compare",
    ),
    ("09.8", made(LadderResult, rungs=(SimpleNamespace(learned=None),)), "the ladder trained nothing to the end. Pass seeds=3."),
    ("09.10", None, "no recorded GPU has timed both."),
]  # fmt: skip


@pytest.mark.parametrize(("id", "given", "says"), TELLS_NOTHING, ids=[f"{id}-{k}" for k, (id, *_) in enumerate(TELLS_NOTHING)])
def test_what_tells_nothing_is_no_answer(id: str, given: Any, says: str) -> None:
    """Nothing was measured, which is not that there is no such number; the sentence says what to run."""
    outcome = QUESTIONS[id].outcome
    assert outcome is not None
    with pytest.raises(Unmeasured) as why:
        outcome(given)
    assert (str(why.value), isinstance(why.value, Never)) == (says, False)
