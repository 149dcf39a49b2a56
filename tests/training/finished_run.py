"""A finished run of training, and models over seeds, to be shown in tables: numbers that are easy to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.evidence import Evidence, Note
from gpulab.training import Accuracy, FitResult
from gpulab.training.comparisons import SeedsAccuracy
from gpulab.training.results import Options

HERE = Evidence.measured("a CPU")
NOTES = (Note("stopped", "It was stopped."),)
RIGHT = Accuracy(90, 100, 0.9, (0.8, 0.95), 0.1, "digits", HERE)
OPTIONS = Options(
    precision="float32", batch_size=8, steps=20, learning_rate=0.01, optimizer="adam", accumulate=1, checkpoint=False, compile=False,
    channels_last=False, fused=None, workers=0, prefetch=0, pinned=False, cuda_graph=False, loss_scale=None, clip=None, seed=0,
)  # fmt: skip


def run(**changes: Any) -> FitResult:
    """A run of twenty steps whose loss falls from 2 to 0.1 and stays for its last tenth."""
    values: dict[str, Any] = {
        "task": "digits-mlp", "device": "cpu", "options": OPTIONS, "ended": "finished", "losses": np.array([2.0] * 18 + [0.1, 0.3]),
        "first_bad_step": None, "accuracy": RIGHT, "step_seconds": np.array([1e-3]), "samples_per_second": 8000.0,
        "samples_per_second_interval": (7900.0, 8100.0), "first_step_seconds": 0.01, "phase_seconds": {"forward": 3e-3, "backward": 1e-3},
        "peak_bytes": 5120, "peak_by_category": {"parameters": 3072, "gradients": 2048}, "skipped_steps": 0, "final_scale": None,
        "total_seconds": 1.0, "notes": NOTES, "evidence": HERE, "environment": None,
    }  # fmt: skip
    return FitResult(**{**values, **changes})


def over_seeds(**changes: Any) -> SeedsAccuracy:
    """Two models of 90 % right."""
    values: dict[str, Any] = {
        "accuracies": (RIGHT, RIGHT), "mean": 0.9, "seeds_interval": None, "interval": (0.85, 0.94), "answers": "digits", "evidence": HERE,
    }  # fmt: skip
    return SeedsAccuracy(**{**values, **changes})
