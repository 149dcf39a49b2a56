"""Model states per rank by arithmetic: equal to what the strategies' own code keeps between steps, and to ZeRO's formulas."""

from __future__ import annotations

import pytest
import torch

from gpulab.errors import InputError
from gpulab.parallel import GptShape, gpt_shape, gpt_shapes, predict_ranks, rank_states

SHAPE = GptShape("little", 5, 24, 4, 101, 8, "a test")  # 101 rows divide by nothing, five layers by no number of stages


@pytest.mark.parametrize(
    ("strategy", "size", "rank", "optimizer"),
    [
        ("ddp", 4, 0, "sgd"),
        ("zero1", 4, 3, "adam"),
        ("zero2", 4, 0, "sgd-momentum"),
        ("zero3", 1024, 0, "adam"),
        ("tensor", 4, 1, "adam"),
        ("pipeline-gpipe", 4, 0, "adam"),
        ("pipeline-1f1b", 4, 3, "adamw"),
    ],
)
def test_states_are_what_stays_between_steps(strategy: str, size: int, rank: int, optimizer: str) -> None:
    """The arithmetic gives the bytes that stay in the strategies' own code, less the batch."""
    x = torch.zeros(4, 8, dtype=torch.int64)
    p = predict_ranks(SHAPE.model, x, x, strategy=strategy, ranks=size, rank=rank, optimizer=optimizer)
    states = rank_states(SHAPE, strategy=strategy, ranks=size, rank=rank, optimizer=optimizer)
    buffers = p.kept_bytes - x.nbytes - states.total_bytes
    message = 4 * 4 * 8 * 24 * 2 if strategy.startswith("pipeline") else 0  # activations and gradients that stages receive, kept
    ranks_table = 4 * size  # the device mesh lists the ranks
    assert 0 <= buffers <= message + ranks_table + 64
    assert states.parameters_bytes == p.peak_by_category["parameters"]


@pytest.mark.parametrize("size", [1, 8, 64, 1024])
def test_seven_billion_follow_the_zero_paper(size: int) -> None:
    """16 bytes a parameter with Adam: whole, 8 + 8/N in stage 1 (4 + 4 in float32), 16/N in stage 3; padding adds under 1 %."""
    count = gpt_shape("7B").parameter_count
    states = {name: rank_states("7B", strategy=name, ranks=size).total_bytes for name in ("ddp", "zero3")}
    assert states["ddp"] == pytest.approx(16 * count, rel=1e-6)
    assert states["zero3"] == pytest.approx(16 * count / size, rel=0.01)


@pytest.mark.parametrize("name", gpt_shapes())
def test_parameters_are_counted_right(name: str) -> None:
    """A shape's formula gives the parameters of its model."""
    shape = gpt_shape(name)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in shape.model().parameters()) == shape.parameter_count
    assert rank_states(name, strategy="ddp", ranks=1).parameters_bytes == 4 * shape.parameter_count


@pytest.mark.parametrize(
    ("name", "layers", "width", "head_width"),
    [("125M", 12, 768, 64), ("1.3B", 24, 2048, 128), ("7B", 32, 4096, 128), ("70B", 86, 8192, 128)],
)
def test_shapes_are_those_that_were_published(name: str, layers: int, width: int, head_width: int) -> None:
    """GPT-3's table 2.1 (Brown et al., 2020), its 2,048 tokens and GPT-2's 50,257 words; Llama 2 70B's width and heads of 128.

    Of the 70B the layers are those with which this transformer has as many parameters.
    """
    shape = gpt_shape(name)
    assert (shape.layers, shape.width, shape.width / shape.heads) == (layers, width, head_width)
    assert (shape.vocabulary, shape.context) == (50_257, 2_048)
    nominal = float(name[:-1]) * {"M": 1e6, "B": 1e9}[name[-1]]
    tied = shape.parameter_count - shape.vocabulary * shape.width  # as GPT-3 counts: its output layer is its embedding
    assert tied == pytest.approx(nominal, rel=0.07)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 1025}, "ranks is 1025"),
        ({"rank": 2}, "rank is 2"),
        ({"strategy": "split"}, "strategy is 'split'"),
        ({"optimizer": "lion"}, "optimizer is 'lion'"),
        ({"strategy": "tensor", "ranks": 3}, "cannot split 4 heads over 3 ranks"),
        ({"strategy": "pipeline-1f1b", "ranks": 3}, "cannot cut 2 layers into 3 stages"),
        ({"model": "8B"}, "no size of the transformer"),
    ],
)
def test_bad_input_is_refused(options: dict[str, object], words: str) -> None:
    """What cannot be split, or is not there, is told in one sentence."""
    asked: dict[str, object] = {"model": "course", "strategy": "ddp", "ranks": 2, **options}
    with pytest.raises(InputError, match=words):
        rank_states(asked.pop("model"), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(("optimizer", "each", "counter"), [("adam", 8, 4), ("adamw", 8, 4), ("sgd", 0, 0), ("sgd-momentum", 4, 0)])
def test_an_optimizers_state_by_hand(optimizer: str, each: int, counter: int) -> None:
    """Of the course's model: two moments and a counter a tensor with Adam, a velocity with momentum, nothing without; in float32."""
    shape = gpt_shape("course")
    states = rank_states("course", strategy="ddp", ranks=2, optimizer=optimizer)
    tensors = 2 + 2 * 12 + 3  # embeddings; four linear layers and two norms a layer, with biases; the last norm and the head
    assert states.optimizer_bytes == each * shape.parameter_count + counter * tensors
    assert (states.parameters_bytes, states.gradients_bytes) == (4 * shape.parameter_count,) * 2
    assert states.total_bytes == (8 + each) * shape.parameter_count + counter * tensors


def test_the_courses_own_shape_is_the_networks_default() -> None:
    """``networks.transformer()`` as the lessons use it: two layers of width 128 with four heads, 1,000 words, 128 positions."""
    shape = gpt_shape("course")
    assert (shape.layers, shape.width, shape.heads, shape.vocabulary, shape.context) == (2, 128, 4, 1000, 128)


def test_states_in_words_by_hand() -> None:
    """Of a linear sum: the parts, and what they come to; which rank of how many."""
    states = rank_states("course", strategy="zero3", ranks=4, rank=2, optimizer="sgd")
    share = states.parameters_bytes
    assert states.table()[0] == ("course: zero3, rank 2 of 4", "bytes")
    assert [name for name, _ in states.table()[1]] == ["parameters", "gradients", "optimizer", "together"]
    assert (states.total_bytes, states.gradients_bytes, states.optimizer_bytes) == (2 * share, share, 0)
    assert repr(states).startswith("<course, zero3 on 4 ranks: states of ")
    assert repr(states).endswith(" on rank 2>")


def test_layers_and_ends_are_shared_out_to_stages() -> None:
    """Five layers on three stages: two, two and one; the embeddings with the first, the last norm and the head with the last."""
    layer, w = 12 * 24**2 + 13 * 24, 24
    counts = [rank_states(SHAPE, strategy="pipeline-gpipe", ranks=3, rank=rank).parameters_bytes // 4 for rank in range(3)]
    assert counts == [2 * layer + (101 + 8) * w, 2 * layer, layer + (101 + 2) * w]
    assert sum(counts) == SHAPE.parameter_count
