"""The shared small models: shapes, parameter counts by hand, pickling, the meta device, refused sizes."""

import pickle
import subprocess
import sys

import pytest
import torch

from gpulab import networks
from gpulab.errors import InputError


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_import_is_light():
    """Importing the module loads no torch."""
    code = "import sys, gpulab.networks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mlp_shape_and_parameters():
    """An MLP flattens its input and has the parameters of its three linear layers."""
    model = networks.mlp(64, 32, 10, depth=2, dropout=0.5)
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 10)
    assert count(model) == (64 * 32 + 32) + (32 * 32 + 32) + (32 * 10 + 10)


def test_cnn_shape_and_parameters():
    """A CNN takes any image size; two stages of width 4 have the parameters counted by hand."""
    model = networks.cnn(channels=3, classes=7, width=4, stages=2)
    for side in (8, 13):
        assert model(torch.randn(2, 3, side, side)).shape == (2, 7)
    convolutions = 9 * (3 * 4 + 4 * 4 + 4 * 8 + 8 * 8)
    assert count(model) == convolutions + 2 * (4 + 4 + 8 + 8) + 8 * 7 + 7


def test_transformer_is_causal():
    """A later token changes no earlier score."""
    torch.manual_seed(0)
    model = networks.transformer(vocabulary=20, width=16, heads=2, layers=2, context=8).eval()
    tokens = torch.arange(8).reshape(1, 8)
    changed = tokens.clone()
    changed[0, -1] = 19
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_transformer_returns_the_loss():
    """With targets the model returns the mean cross entropy of its scores."""
    torch.manual_seed(0)
    model = networks.transformer(vocabulary=20, width=16, heads=2, layers=1, context=8)
    tokens, targets = torch.randint(20, (2, 8)), torch.randint(20, (2, 8))
    log_probabilities = model(tokens).log_softmax(-1)
    expected = -log_probabilities.gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(model(tokens, targets), expected)


def test_tied_weights_are_one_tensor():
    """A tied head shares the embedding's storage and takes one parameter less."""
    model = networks.transformer(vocabulary=20, width=16, heads=2, layers=1, context=8, tied=True)
    assert model.head.weight is model.tokens.weight
    assert count(networks.transformer(vocabulary=20, width=16, heads=2, layers=1, context=8)) - count(model) == 20 * 16


@pytest.mark.parametrize("model", [networks.mlp(4, 4, 2), networks.cnn(width=2), networks.transformer(10, 8, 2, 1, context=4)])
def test_models_can_be_pickled(model):
    """A model survives a trip to another process."""
    again = pickle.loads(pickle.dumps(model))
    assert [p.shape for p in again.parameters()] == [p.shape for p in model.parameters()]


def test_a_meta_model_holds_no_memory():
    """Under torch.device("meta") a billion parameters cost nothing."""
    with torch.device("meta"):
        model = networks.transformer(50_000, 1792, 28, 24, context=1024)
    assert count(model) > 1e9
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize(
    ("factory", "arguments", "word"),
    [
        (networks.mlp, {"hidden": 0}, "hidden"),
        (networks.mlp, {"depth": True}, "depth"),
        (networks.cnn, {"width": -1}, "width"),
        (networks.cnn, {"stages": 1.5}, "stages"),
        (networks.transformer, {"width": 10, "heads": 4}, "heads"),
        (networks.transformer, {"dropout": 1.0}, "dropout"),
        (networks.mlp, {"dropout": float("nan")}, "dropout"),
    ],
)
def test_bad_sizes_are_refused(factory, arguments, word):
    """A size that cannot be is refused in a sentence that names it."""
    with pytest.raises(InputError, match=word):
        factory(**arguments)


def test_resnext_parameters_by_hand():
    """One stage of width 8 with 2 groups: stem, two bottlenecks of 4 channels inside, head; groups halve the 3x3 weights."""
    model = networks.resnext(channels=3, classes=7, width=8, stages=1, groups=2)
    assert model(torch.randn(2, 3, 9, 9)).shape == (2, 7)
    block = (8 * 4 + 8) + (9 * 4 * 4 // 2 + 8) + (4 * 8 + 16)
    assert count(model) == (9 * 3 * 8 + 16) + 2 * block + (8 * 7 + 7)
    assert count(networks.resnext(3, 7, 8, 1, groups=1)) - count(model) == 2 * 9 * 4 * 4 // 2


def test_mobilenet_parameters_by_hand():
    """One stage of width 4, expansion 3: each block has 12 channels with a 3x3 filter each; a second stage halves the sides."""
    model = networks.mobilenet(channels=1, classes=5, width=4, stages=1, expansion=3)
    block = (4 * 12 + 24) + (9 * 12 + 24) + (12 * 4 + 8)
    assert count(model) == (9 * 4 + 8) + 2 * block + (4 * 5 + 5)
    deeper = networks.mobilenet(width=4, stages=2)
    assert deeper.blocks[2].body[3].stride == (2, 2)
    assert not deeper.blocks[2].residual
    assert deeper.blocks[3].residual
    assert deeper(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_resnext_adds_its_input():
    """With its last norm's scale at zero a block gives its input back, for that is positive."""
    block = networks.resnext(width=8, stages=1, groups=2).blocks[0].eval()
    torch.nn.init.zeros_(block.body[-1].weight)
    x = torch.rand(2, 8, 5, 5)
    torch.testing.assert_close(block(x), x)


def test_groups_must_divide_the_channels():
    """The refusal names a width that fits."""
    with pytest.raises(InputError, match="width=16"):
        networks.resnext(width=12, groups=8)
    with pytest.raises(InputError, match="expansion"):
        networks.mobilenet(expansion=0)


def test_every_size_may_be_one():
    """The smallest network of each kind answers."""
    assert networks.mlp(1, 1, 1, depth=1)(torch.ones(2, 1)).shape == (2, 1)
    assert networks.cnn(1, 1, 1, 1)(torch.ones(2, 1, 1, 1)).shape == (2, 1)
    assert networks.transformer(1, 1, 1, 1, context=1)(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 1)
    assert networks.mobilenet(1, 1, 1, 1, expansion=1)(torch.ones(2, 1, 3, 3)).shape == (2, 1)
    assert networks.resnext(1, 1, 2, 1, groups=1)(torch.ones(2, 1, 3, 3)).shape == (2, 1)


def test_the_defaults_have_their_parameters():
    """Counted by hand from the layers' sizes, biases and two numbers a channel for each norm."""
    with torch.device("meta"):
        assert count(networks.mlp()) == 200_960 + 65_792 + 2_570
        assert count(networks.cnn()) == 9 * (32 + 32 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 32 + 64 + 64) + 650
        assert count(networks.resnext()) == 352 + 2 * 1_440 + 6_656 + 5_504 + 650
        assert count(networks.mobilenet()) == 176 + 2 * 2_912 + 3_968 + 9_920 + 330
        language = networks.transformer()
        assert count(language) == 128_000 + 128 * 128 + 2 * 198_272 + 256 + 128_000
        assert (language.blocks[0].heads, language.positions.num_embeddings) == (4, 128)
        assert count(networks.transformer(20, 16, 2, 1, context=8)) == 320 + 128 + 3_280 + 32 + 320


def test_the_sides_halve_between_stages():
    """An image of 8 x 8 has 4 x 4 after two stages, and 2 x 2 after three."""
    image = torch.ones(2, 1, 8, 8)
    assert networks.cnn(width=2, stages=3).features(image).shape == (2, 8, 2, 2)
    for model in (networks.resnext(width=4, stages=3, groups=1), networks.mobilenet(width=4, stages=3, expansion=1)):
        assert model.blocks(model.stem(image)).shape == (2, 16, 2, 2)
    assert networks.resnext(width=4, stages=2, groups=1).blocks(torch.ones(2, 4, 5, 5)).shape == (2, 8, 3, 3)


def test_dropout_is_where_it_was_asked_for():
    """One behind each hidden layer of the perceptron; in the transformer's attention and feed-forward layers, and only in training."""
    dropouts = [layer.p for layer in networks.mlp(4, 4, 2, depth=3, dropout=0.25).layers if isinstance(layer, torch.nn.Dropout)]
    assert dropouts == [0.25] * 3
    assert not any(isinstance(layer, torch.nn.Dropout) for layer in networks.mlp(4, 4, 2).layers)
    torch.manual_seed(0)
    model, tokens = networks.transformer(20, 16, 2, 1, context=8, dropout=0.5), torch.arange(8).reshape(1, 8)
    assert model.blocks[0].feed[-1].p == 0.5
    model.blocks[0].feed[-1].p = 0.0
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    still = networks.transformer(20, 16, 2, 1, context=8)
    assert torch.equal(still(tokens), still(tokens))


def test_a_transformers_block_by_hand():
    """Norm, then each position looks at itself and those before it, head by head; added to its input, and so the feed-forward net."""
    torch.manual_seed(0)
    block = networks.transformer(5, 4, 2, 1, context=3).blocks[0]
    x = torch.randn(1, 3, 4)
    with torch.no_grad():
        q, k, v = block.qkv(block.attention_norm(x))[0].split(4, dim=-1)
        mixed = torch.zeros(3, 4)
        for head in (slice(0, 2), slice(2, 4)):
            for i in range(3):
                weights = torch.stack([q[i, head] @ k[j, head] / 2**0.5 for j in range(i + 1)]).softmax(0)
                mixed[i, head] = sum(weights[j] * v[j, head] for j in range(i + 1))
        half = x + block.projection(mixed)
        torch.testing.assert_close(block(x), half + block.feed(block.feed_norm(half)))


def test_a_refused_size_says_what_to_pass():
    """The factory, the name, the value, and one that works; of heads the nearest width."""
    with pytest.raises(InputError, match=r"^cnn: width is 0; expected a whole number of at least 1\. Pass for example width=2\.$"):
        networks.cnn(width=0)
    with pytest.raises(InputError, match=r"^transformer: 4 heads do not divide width 10; expected a multiple of heads\. Pass width=8\.$"):
        networks.transformer(width=10, heads=4)
    with pytest.raises(InputError, match=r"Pass width=4\.$"):
        networks.transformer(width=3, heads=4)
    with pytest.raises(
        InputError, match=r"^resnext: 8 groups do not divide the 6 channels inside a block; .* a multiple of 16\. Pass width=16\.$"
    ):
        networks.resnext(width=12, groups=8)
    with pytest.raises(InputError, match=r"divide the 2\.5 channels"):
        networks.resnext(width=5, groups=1)
    for share in (-0.1, 1.0):
        with pytest.raises(InputError, match=rf"^mlp: dropout is {share}; expected a share from 0 up to, but not, 1\."):
            networks.mlp(dropout=share)


@pytest.mark.parametrize(("wide", "stride", "plain"), [(8, 1, True), (8, 2, False), (16, 1, False), (16, 2, False)])
def test_what_comes_in_is_added_as_it_is_only_where_channels_and_sides_stay(wide: int, stride: int, plain: bool):
    """Otherwise ResNet's block makes it fit with a 1x1 convolution, and MobileNetV2's adds nothing: both keep their output's shape."""
    from gpulab._network_modules import Bottleneck, InvertedResidual

    x = torch.zeros(2, 8, 6, 6)
    block, inverted = Bottleneck(8, wide, 4, 2, stride), InvertedResidual(8, wide, 2, stride)
    assert block(x).shape == inverted(x).shape == (2, wide, 6 // stride, 6 // stride)
    assert isinstance(block.shortcut, torch.nn.Identity) == plain
    assert inverted.residual == plain
