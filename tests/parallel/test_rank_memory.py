"""Memory of one rank of many: predicted by the strategies' own code, and by ZeRO's formulas."""

import sys
from functools import partial
from typing import Any

import pytest
import torch
from gpulab import networks
from gpulab.errors import InputError
from gpulab.parallel import (
    STATE_STRATEGIES,
    GptShape,
    gpt_shape,
    gpt_shapes,
    largest_batch,
    predict_ranks,
    rank_states,
)

# Neither 101 rows nor five layers divide evenly.
SHAPE = GptShape("little", 5, 24, 4, 101, 8, "a test")
LAYER = 12 * 24**2 + 13 * 24
X = torch.zeros(4, 8, dtype=torch.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "size", "rank", "optimizer"),
    [("ddp", 4, 0, "sgd"), ("zero1", 4, 3, "adam"), ("zero2", 4, 0, "sgd-momentum"),
     ("zero3", 1024, 1023, "adam"), ("tensor", 4, 1, "adam"), ("pipeline-gpipe", 4, 0, "adam"),
     ("pipeline-1f1b", 4, 3, "adamw")],
)  # fmt: skip
def test_states_are_what_stays_between_steps(
    strategy: str, size: int, rank: int, optimizer: str
) -> None:
    """`rank_states` gives the bytes that the strategies' own code keeps, without the batch."""
    common: dict[str, Any] = {"strategy": strategy, "ranks": size, "rank": rank}
    p = predict_ranks(SHAPE.model, X, X, optimizer=optimizer, **common)
    states = rank_states(SHAPE, optimizer=optimizer, **common)
    message = 4 * 4 * 8 * 24 * 2 if strategy.startswith("pipeline") else 0  # kept by stages
    assert (
        0 <= p.kept_bytes - X.nbytes - states.total_bytes <= message + 4 * size + 64,
        states.parameters_bytes,
        states.optimizer_bytes,
        sum(p.peak_by_category.values()),
    ) == (True, p.peak_by_category["parameters"], p.peak_by_category["optimizer"], p.peak_bytes)
    assert p.parameter_count == SHAPE.parameter_count
    held = p.peak_bytes + p.scratch_bytes
    assert [p.needed_bytes(kind) for kind in ("cuda", "cpu")] == [
        int(held * 1.15) + 768 * 2**20,  # the margins of memory.predict's page
        int(held * 1.25) + 256 * 2**20,
    ]


def test_a_largest_batch_fits_on_a_rank_and_one_more_does_not() -> None:
    """Sharding leaves room for a larger batch; `sys.excepthook` stays as it was."""
    hook, shape = sys.excepthook, GptShape("of one layer", 1, 24, 4, 101, 8, "a test")

    def batch(n: int) -> Any:
        return (torch.zeros(n, 8, dtype=torch.int64),) * 2

    found = {}
    for strategy in ("ddp", "zero3"):
        common: dict[str, Any] = {"strategy": strategy, "ranks": 64}
        found[strategy] = most = largest_batch(shape.model, batch, memory=900 * 2**20, **common)
        needed = [
            predict_ranks(shape.model, *batch(most + k), **common).needed_bytes() for k in (0, 1)
        ]
        assert needed[0] <= 900 * 2**20 < needed[1]
    assert found["zero3"] > found["ddp"] > 0
    # the head of 20,000 words is on the last of two stages
    cut = partial(
        largest_batch, GptShape("of two layers", 2, 24, 4, 20_000, 8, "a test").model,
        lambda n: batch(2 * n), strategy="pipeline-gpipe", ranks=2, memory=800 * 2**20, most=8,
    )  # fmt: skip
    assert (8 > cut() == cut(rank=1) > 0, sys.excepthook is hook) == (True, True)


def test_shares_are_padded_and_stages_hold_their_layers() -> None:
    """FSDP pads 1,001 rows on four ranks to 251 each; five layers on three stages are 2, 2, 1.

    The last of four ranks has 23 of the 101 rows of the embedding and of the head, and momentum for
    no more.
    """
    x, states = torch.zeros(1, 10), []
    for rank in (0, 3):
        p = predict_ranks(
            lambda: torch.nn.Linear(10, 1001, bias=False), x, x, strategy="zero3", ranks=4,
            rank=rank, optimizer="sgd", loss=lambda y, t: y.sum(),
        )  # fmt: skip
        assert p.peak_by_category["parameters"] == 251 * 10 * 4
        states.append(rank_states(SHAPE, strategy="pipeline-gpipe", ranks=3, rank=rank // 2))
    assert [s.parameters_bytes // 4 for s in states] == [2 * LAYER + (101 + 8) * 24, 2 * LAYER]
    assert rank_states(
        SHAPE, strategy="zero3", ranks=4, rank=3, optimizer="sgd-momentum"
    ).optimizer_bytes == 4 * ((5 * LAYER + (8 + 2) * 24) // 4 + 2 * 23 * 24)
    last = rank_states(SHAPE, strategy="pipeline-1f1b", ranks=3, rank=2).parameters_bytes // 4
    assert last == LAYER + (101 + 2) * 24


def test_the_states_of_seven_billion_parameters(approved: Any) -> None:
    """16 bytes per parameter with DDP, 16/N with ZeRO-2 and ZeRO-3; a table has all strategies."""
    count, lines = gpt_shape("7B").parameter_count, []
    for strategy in STATE_STRATEGIES:
        for size in (1, 8, 32):
            states = rank_states("7B", strategy=strategy, ranks=size, rank=size - 1)
            lines.append(f"{states!r}: {states.table()[1]}")
            share = {"ddp": 1, "zero3": size, "zero2": size}.get(strategy)
            if share:
                assert states.total_bytes == pytest.approx(16 * count / share, rel=0.01)
    assert "\n".join(lines) + "\n" == approved


@pytest.mark.parametrize("name", gpt_shapes())
def test_shapes_are_those_that_were_published(name: str) -> None:
    """GPT-3's table 2.1 with 2,048 tokens and GPT-2's 50,257 words; 70B has Llama 2's width."""
    shape = gpt_shape(name)
    published = {
        "course": (2, 128, 4, 1000, 128), "125M": (12, 768, 12, 50_257, 2048),
        "1.3B": (24, 2048, 16, 50_257, 2048), "7B": (32, 4096, 32, 50_257, 2048),
        "70B": (86, 8192, 64, 50_257, 2048),
    }  # fmt: skip
    found = (shape.layers, shape.width, shape.heads, shape.vocabulary, shape.context)
    assert found == published[name]
    with torch.device("meta"):
        assert sum(p.numel() for p in shape.model().parameters()) == shape.parameter_count


@pytest.mark.slow
def test_checkpoints_and_bfloat16_take_less() -> None:
    """Checkpointing saves activations; bfloat16 gathers parameters in about half the bytes."""
    whole, x = networks.transformer(100, 32, 4, 2, context=16), torch.zeros(4, 16).long()
    plain, again, half = (
        predict_ranks(whole, x, x, strategy="zero3", ranks=2, **more).peak_by_category
        for more in ({}, {"checkpoint": True}, {"precision": "bfloat16"})
    )
    assert (
        again["activations"] < 0.8 * plain["activations"],
        half["communication"] <= 0.75 * plain["communication"],
    ) == (True, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"ranks": 0}, "ranks"), ({"ranks": 1025}, "1025"), ({"rank": 2}, "rank is 2"),
     ({"strategy": "zero4"}, "zero4"), ({"precision": "int8"}, "int8"),
     ({"optimizer": None}, "optimizer"), ({"strategy": "tensor", "ranks": 3}, "4 heads"),
     ({"strategy": "pipeline-gpipe", "ranks": 8}, "5 layers"),
     ({"strategy": "pipeline-gpipe", "microbatches": 3}, "batch of 3"),
     ({"microbatches": 0}, "microbatches"), ({"inputs": "x"}, "inputs"), ({"model": 8}, "int"),
     ({"loss": lambda y, t: y}, "loss")],
)  # fmt: skip
def test_what_cannot_be_predicted_is_refused(options: dict[str, Any], words: str) -> None:
    """The error has the value or what to pass instead; no process group stays initialized."""
    asked = {"model": SHAPE.model, "inputs": X, "strategy": "ddp", "ranks": 2, **options}
    model, inputs = asked.pop("model"), asked.pop("inputs")
    with pytest.raises(InputError, match=words):
        predict_ranks(model, inputs, inputs, **asked)
    assert not torch.distributed.is_initialized()
