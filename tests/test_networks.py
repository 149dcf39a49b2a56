"""The small models that lessons share: shapes, parameters counted by hand, pickling."""

import pickle
from typing import Any

import pytest
import torch
from gpulab import networks
from gpulab.errors import InputError


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


# Each layer's weights and biases, and two numbers per channel for each norm.
_RESNEXT_BLOCK = (8 * 4 + 8) + (9 * 4 * 4 // 2 + 8) + (4 * 8 + 16)
_MOBILE_BLOCK = (4 * 12 + 24) + (9 * 12 + 24) + (12 * 4 + 8)
_CNN = 9 * (3 * 4 + 4 * 4 + 4 * 8 + 8 * 8) + 2 * (4 + 4 + 8 + 8) + 8 * 7 + 7
# Embeddings and positions; a block's projections, two norms and the 4x MLP; the last norm and head.
_TRANSFORMER_BLOCK = (16 * 48 + 48) + (16 * 16 + 16) + 4 * 16 + (16 * 64 + 64) + (64 * 16 + 16)
IMAGES, TOKENS = torch.randn(2, 3, 9, 9), torch.randint(20, (2, 8))


@pytest.mark.parametrize(
    ("make", "inputs", "shape", "parameters"),
    [
        (
            lambda: networks.mlp(64, 32, 10, depth=2, dropout=0.5),
            torch.randn(5, 1, 8, 8),
            (5, 10),
            (64 * 32 + 32) + (32 * 32 + 32) + (32 * 10 + 10),
        ),
        (lambda: networks.cnn(3, 7, 4, 2), IMAGES, (2, 7), _CNN),
        (
            lambda: networks.resnext(3, 7, 8, 1, groups=2),
            IMAGES,
            (2, 7),
            (9 * 3 * 8 + 16) + 2 * _RESNEXT_BLOCK + (8 * 7 + 7),
        ),
        (
            lambda: networks.mobilenet(3, 5, 4, 1, expansion=3),
            IMAGES,
            (2, 5),
            (9 * 3 * 4 + 8) + 2 * _MOBILE_BLOCK + (4 * 5 + 5),
        ),
        (
            lambda: networks.transformer(20, 16, 2, 1, context=8),
            TOKENS,
            (2, 8, 20),
            20 * 16 + 8 * 16 + _TRANSFORMER_BLOCK + 2 * 16 + 20 * 16,
        ),
    ],
    ids=["mlp", "cnn", "resnext", "mobilenet", "transformer"],
)
def test_shape_and_parameters(make: Any, inputs: Any, shape: Any, parameters: int) -> None:
    """A model has the documented output shape and parameter count, and survives pickling."""
    model = make()
    assert (model(inputs).shape, _count(model)) == (shape, parameters)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.eval()(inputs), model.eval()(inputs))


def test_dropout_drops_in_training_only() -> None:
    """Two outputs for one input differ in training mode, by attention's dropout alone too, and are
    equal in evaluation mode. Each layer drops the share that was passed.
    """
    attention = networks.transformer(20, 16, 2, 1, context=8, dropout=0.25)
    attention.blocks[0].feed.eval()
    for model, x in (
        (networks.mlp(64, 32, 10, dropout=0.25), torch.randn(5, 64)),
        (networks.transformer(20, 16, 2, 2, context=8, dropout=0.25), TOKENS),
        (attention, TOKENS),
    ):
        equal = (torch.equal(model(x), model(x)), torch.equal(model.eval()(x), model(x)))
        shares = {each.p for each in model.modules() if isinstance(each, torch.nn.Dropout)}
        assert (equal, shares) == ((False, True), {0.25})


def test_a_block_without_its_body_is_its_shortcut() -> None:
    """Where the last norm's weight is zero, a residual block returns its input."""
    x = torch.rand(2, 8, 4, 4)
    for model in (networks.resnext(width=8, groups=4), networks.mobilenet(width=8)):
        torch.nn.init.zeros_(model.blocks[1].body[-1].weight)
        assert torch.equal(model.blocks[1](x), x)


def test_a_transformers_layer_is_pytorchs() -> None:
    """With the same weights a layer computes what PyTorch's pre-norm encoder layer does under a
    causal mask; it gets the sum of a token's embedding and its position's.
    """
    model = networks.transformer(20, 16, 4, 1, context=8).eval()
    theirs = torch.nn.TransformerEncoderLayer(
        16, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True
    )
    block, numbers = model.blocks[0], torch.randn(_TRANSFORMER_BLOCK) / 4
    torch.nn.utils.vector_to_parameters(numbers, block.parameters())
    ours = list(block.state_dict().values())  # the two norms' weights and biases come first
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours[4:] + ours[:4], strict=True)))
    x, mask = model.tokens(TOKENS) + model.positions.weight, torch.ones(8, 8).triu(1).bool()
    expected = model.head(model.norm(theirs(x, mask)))
    torch.testing.assert_close(model(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_the_transformer_is_causal_and_returns_its_loss() -> None:
    """A later token changes no earlier score; with targets the mean cross entropy comes back."""
    model = networks.transformer(20, 16, 2, 2, context=8).eval()
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 20
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])
    expected = torch.nn.functional.cross_entropy(before.flatten(0, 1), changed.flatten())
    torch.testing.assert_close(model(TOKENS, changed), expected)
    tied = networks.transformer(20, 16, 2, 2, context=8, tied=True)
    assert _count(model) - _count(tied) == 20 * 16


def test_sizes_that_do_not_fit_are_refused() -> None:
    """Heads must divide the width, groups the channels; on "meta" a huge model costs nothing."""
    with pytest.raises(InputError, match="heads"):
        networks.transformer(width=10, heads=4)
    with pytest.raises(InputError, match="width=16"):
        networks.resnext(width=12, groups=8)
    with torch.device("meta"):
        assert _count(networks.transformer(50_000, 1792, 28, 24, context=1024)) > 1e9
