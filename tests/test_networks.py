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
    assert model(inputs).shape == shape
    assert _count(model) == parameters
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.eval()(inputs), model.eval()(inputs))


def test_dropout_drops_in_training_only() -> None:
    """Two outputs for one input differ in training mode, and are equal in evaluation mode."""
    for model, x in (
        (networks.mlp(64, 32, 10, dropout=0.5), torch.randn(5, 64)),
        (networks.transformer(20, 16, 2, 2, context=8, dropout=0.5), TOKENS),
    ):
        assert not torch.equal(model(x), model(x))
        assert torch.equal(model.eval()(x), model(x))


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
