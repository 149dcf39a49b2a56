"""The edges of what the functions of ranks take: the last value that is taken, the first that is refused, as their sentences say.

What is taken is seen by the next argument's refusal: no rank is started here.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpulab import parallel
from gpulab.errors import InputError
from gpulab.parallel import _scaling, _sweep

# What is called, with what, and how its refusal begins: that of the value itself, or of the one that comes after it.
EDGES: list[tuple[Any, dict[str, Any], str]] = [
    (parallel.cluster, {"n": 1, "timeout_seconds": 86_400, "threads": 0}, "cluster: threads=0; expected 1 or more."),
    (parallel.cluster, {"n": 2, "timeout_seconds": 86_400.5}, "cluster: timeout_seconds=86400.5; expected seconds above 0, a day at most."),
    (parallel.cluster, {"n": 2, "threads": 1, "port": 65_536}, "cluster: port=65536; expected 0 to 65535."),
    (parallel.cluster, {"n": 2, "port": 65_535, "progress": 3}, "cluster: progress=3"),
    (parallel.cluster, {"n": 2, "port": 0, "progress": 3}, "cluster: progress=3"),
    (parallel.cluster, {"n": 2, "port": -1}, "cluster: port=-1;"),
    (parallel.scaling, {"deadline": 3600, "wait_seconds": 0}, "scaling: wait_seconds is 0; expected more than 0 and at most 10."),
    (parallel.scaling, {"deadline": 3600.5}, "scaling: deadline is 3600.5; expected seconds above 0, an hour at most."),
    (parallel.scaling, {"deadline": 0}, "scaling: deadline is 0;"),
    (parallel.scaling, {"wait_seconds": 10, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"wait_seconds": 10.5}, "scaling: wait_seconds is 10.5;"),
    (parallel.scaling, {"ranks": 64, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"ranks": 1, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"ranks": 65}, "scaling: ranks is 65; expected a started cluster, or a whole number from 1 to 64."),
    (parallel.scaling, {"ranks": 0}, "scaling: ranks is 0;"),
    (parallel.global_batch, {"ranks": (1, 4096), "batch": 2**20, "epochs": 0},
     "global_batch: epochs is 0; expected whole numbers from 1 to 10,000."),
    (parallel.global_batch, {"ranks": (4097,)}, "global_batch: ranks is 4097; expected whole numbers from 1 to 4,096."),
    (parallel.global_batch, {"ranks": (0,)}, "global_batch: ranks is 0;"),
    (parallel.global_batch, {"batch": 2**20 + 1}, "global_batch: batch is 1048577; expected whole numbers from 1 to 1,048,576."),
    (parallel.global_batch, {"batch": 1, "epochs": 10_000, "learning_rate": 0},
     "global_batch: learning_rate is 0; expected a finite number above 0."),
    (parallel.global_batch, {"epochs": 10_001}, "global_batch: epochs is 10001;"),
    (parallel.global_batch, {"learning_rate": 1e6, "momentum": -1}, "global_batch: momentum is -1; expected a finite number from 0."),
    (parallel.global_batch, {"learning_rate": 1e6 + 1}, "global_batch: learning_rate is 1000001"),
    (parallel.global_batch, {"momentum": 0, "warm_up_epochs": -1}, "global_batch: warm_up_epochs is -1;"),
    (parallel.global_batch, {"warm_up_epochs": 0, "ranks": (1,), "batch": 2**20},
     "global_batch: 1 rank x 1,048,576 samples are more than the 1297"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "words"), EDGES, ids=[f"{row[0].__name__}-{k}" for k, row in enumerate(EDGES)])
def test_the_last_value_is_taken_and_the_next_refused(function: Any, given: dict[str, Any], words: str) -> None:
    """A refusal tells the edges, and those are where it begins."""
    usual = {"ranks": 2} if function is parallel.scaling else {}
    with pytest.raises(InputError) as caught:
        function(**{**usual, **given})
    assert str(caught.value).startswith(words)


def test_the_edges_of_batches_counts_and_sizes() -> None:
    """A million and some samples, as many ranks as there are, 16 GiB; a byte takes an element of float32 on each of two ranks."""
    model = _scaling._model("mlp")
    assert [_scaling._batch(model, batch, "weak", (2,)) for batch in (1, 2**20)] == [1, 2**20]
    with pytest.raises(InputError, match=r"^scaling: batch is 1048577; expected a whole number from 1 to 1,048,576\."):
        _scaling._batch(model, 2**20 + 1, "weak", (2,))
    assert _scaling._counts(3, (3, 1)) == (1, 3)
    assert _sweep._elements([1, 2**34], 2) == (2, 2**32)
    for wrong in (0, 2**34 + 1):
        with pytest.raises(InputError, match=rf"^sweep: sizes has {wrong}; expected whole bytes from 1 to 16\.0 GiB\."):
            _sweep._elements([wrong], 2)
