"""Training on a real GPU: what only CUDA has, against the same run without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpulab import training

pytestmark = pytest.mark.gpu
TASK = "prose-transformer"  # needs no scikit-learn


def run(**options: Any) -> training.FitResult:
    """A short run."""
    return training.fit(TASK, **{"steps": 60, "batch_size": 16, "device": "cuda", **options})


def lacks(result: training.FitResult) -> list[str]:
    """What the device did not do of what was asked."""
    return [note.sentence for note in result.notes if note.code == "skipped"]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"pinned": True}, {"prefetch": 2, "pinned": True}, {"workers": 2, "pinned": True},
        {"loading": "items"}, {"loading": "resident", "prefetch": 2}, {"read_loss": True},
    ],
    ids=str,
)  # fmt: skip
def test_who_feeds_changes_no_bit(options: dict) -> None:
    """Twice the same losses on the GPU; the first losses are the CPU's but for rounding."""
    fed, plain = run(**options), run()
    assert fed.losses.tolist() == plain.losses.tolist()
    assert lacks(fed) == []
    np.testing.assert_allclose(fed.losses[:10], run(device="cpu", steps=10).losses, rtol=2e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"cuda_graph": True}, {"cuda_graph": True, "accumulate": 4},
        {"cuda_graph": True, "prefetch": 2, "pinned": True},
        {"cuda_graph": True, "loss_scale": 1024.0, "clip": 1.0}, {"fused": True}, {"compile": True},
        {"checkpoint": True}, {"precision": "tf32", "compile": True}, {"precision": "bfloat16"},
        {"precision": "float16"}, {"precision": "pure-bfloat16"},
    ],
    ids=str,
)  # fmt: skip
def test_faster_forms_learn_the_same(options: dict) -> None:
    """Each is really done, and the losses are those of a plain run but for its rounding."""
    found = run(**options)
    assert lacks(found) == []
    assert len(set(found.losses.tolist())) == 60
    assert found.final_loss == pytest.approx(run().final_loss, rel=0.1)
    assert ("graph" in found.phase_seconds) == bool(options.get("cuda_graph"))


def test_what_no_graph_holds_runs_launched_and_is_noted() -> None:
    """An Adam that is not capturable, and dynamic loss scaling."""
    own = run(cuda_graph=True, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3))
    scaled = run(precision="float16", cuda_graph=True, steps=5)
    for result in (own, scaled):
        assert (result.ended, result.options.cuda_graph, len(lacks(result))) == (
            "finished",
            False,
            1,
        )


def test_the_instruments_see_the_device() -> None:
    """Phases, the allocator's peak, kernels' lane, the pipeline's events, the ladder."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run(batch_size=256, steps=100)
    seen = torch.cuda.max_memory_allocated() - before
    assert result.peak_bytes == pytest.approx(seen, rel=0.1, abs=2**24)
    assert {"data", "copy", "forward", "backward", "optimizer"} <= set(result.phase_seconds)
    profiled = training.profile(lambda: torch.ones(2048, 2048, device="cuda").exp(), steps=2)
    assert any(span.lane == "device" and span.seconds > 0 for span in profiled.spans)
    steps = training.pipeline(batch_size=8, steps=5, image_size=32, pinned=True, read_loss=False)
    assert all(span.seconds > 0 for span in steps.lane("compute"))
    chosen = ("resident", "prefetch", "batch", "compile", "graph")
    climbed = training.ladder(TASK, chosen, device="cuda", seeds=0, turns=2)
    assert [rung.name for rung in climbed.rungs] == list(chosen)
