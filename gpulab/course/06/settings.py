"""06.5: bring the stall under 10 %."""

# %% exercise
id = "06.5"
title = "bring the stall under 10 %"
answer_name = "settings"

# %% stub
settings = {"workers": ..., "prefetch": ...}

# %% hint
# With k workers, each on its own core, a batch arrives every 120 / k ms. How often must one
# arrive?

# %% hint
# workers x prefetch batches wait in the host's memory, and there is room for 12.

# %% solution
settings = {"workers": 5, "prefetch": 2}  # 120 ms / 5 = 24 ms a batch, less than a step; 10 batches in memory

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab.errors import InputError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.training import model_pipeline
from gpulab.training.pipelines import BUSY_STALL_RATIO
from gpulab.units import format_seconds, plural

_CORES = 8
_HOST = {"loading_seconds": 0.12, "compute_seconds": 0.03, "copy_seconds": 0.002, "cores": _CORES, "steps": 200}
_MOST_AHEAD = 12  # batches that the host's memory has room for


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"workers", "prefetch"}:
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"workers": ..., "prefetch": ...}}.')
    if any(checking.is_stub(value) for value in answer.values()):
        raise NotAttempted
    try:
        chosen = {name: checking.plain(value) for name, value in answer.items()}
        p = model_pipeline(**_HOST, **chosen)  # type: ignore[arg-type]
    except InputError as error:
        raise Refused(
            f"Your answer is {checking.describe(answer)}; the check expects two whole numbers: workers from 0 to 64, prefetch from 1 to 16."
        ) from error
    ahead, several = p.workers * p.prefetch, p.workers != 1
    if p.workers == 0:
        raise Refused(f"With 0 workers the training process loads each batch itself, and the accelerator waits {p.stall_ratio:.0%} of the time.")
    if p.workers > _CORES:
        raise Refused(
            f"The host has {_CORES} cores, and you start {p.workers} workers. They take turns on the cores, so none of them loads faster; "
            "each one costs memory."
        )
    if ahead > _MOST_AHEAD:
        raise Refused(
            f"{plural(p.workers, 'worker')} x prefetch {p.prefetch} = {ahead} batches in the host's memory; there is room for {_MOST_AHEAD}."
        )
    if p.stall_ratio >= BUSY_STALL_RATIO:
        raise Refused(
            f"The accelerator still waits {p.stall_ratio:.0%} of the time: {p.workers} {'workers deliver' if several else 'worker delivers'} "
            f"a batch every {format_seconds(p.loading_seconds / p.workers)}, and a step takes "
            f"{format_seconds(p.compute_seconds)}."
        )
    return f"{plural(p.workers, 'worker')}, prefetch {p.prefetch}: the accelerator waits {p.stall_ratio:.1%} of the time (MODELLED)."

# %% wrong: loads each batch itself
settings = {"workers": 0, "prefetch": 2}

# %% wrong: still waits
settings = {"workers": 2, "prefetch": 6}

# %% wrong: batches in the host's memory
settings = {"workers": 8, "prefetch": 2}

# %% wrong: take turns on the cores
settings = {"workers": 12, "prefetch": 1}

# %% wrong: whole number
settings = {"workers": 4.5, "prefetch": 2}
