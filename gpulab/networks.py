"""The small real models that workloads, training, memory and the notebooks share.

Five factories, each of which returns a ``torch.nn.Module`` in training mode with weights from
torch's global generator (call ``torch.manual_seed`` first for the same ones again). Under ``with
torch.device("meta"):`` a model of any size costs no memory, which is what ``memory.predict`` needs.
No loop, no data and no pretrained weights here. The classes of the modules are at the top level, so
that a model can be pickled and sent to another process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpulab._validate import arguments, whole, within
from gpulab.errors import InputError

# sizes up to one that no memory could hold
_SIZE = partial(whole, low=1, high=2**31)
# with a share of 1 all values would be zero, and nothing would be learned
_DROPOUT = partial(within, high=0.99)


def _widths(channels: int, width: int, stages: int) -> Iterable[tuple[int, int]]:
    """Return each stage's input and output channels; the first has ``width``, each later one twice
    as many as the stage before.
    """
    return itertools.pairwise([channels, *(width * 2**stage for stage in range(stages))])


class SmallMLP(nn.Module):
    """Linear layers with an activation between them; inputs are flattened."""

    def __init__(self, inputs: int, hidden: int, outputs: int, depth: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for features in [inputs, *[hidden] * (depth - 1)]:
            layers += [nn.Linear(features, hidden), nn.ReLU()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, outputs)."""
        return self.layers(x)  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """Stages of two 3x3 convolutions with batch norm; the width doubles and the image halves from
    stage to stage.
    """

    def __init__(self, channels: int, classes: int, width: int, stages: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for features, wide in _widths(channels, width, stages):
            if blocks:
                blocks.append(nn.MaxPool2d(2))
            blocks += _unit(features, wide, 3, nn.ReLU(inplace=True))
            blocks += _unit(wide, wide, 3, nn.ReLU(inplace=True))
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, classes), of images (batch, channels, height, width)."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A residual block: 1x1 to fewer channels, 3x3 in groups, 1x1 back. With one group it is
    ResNet's block, with more groups ResNeXt's.
    """

    def __init__(self, source: int, wide: int, inner: int, groups: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_unit(source, inner, 1, nn.ReLU(inplace=True)),
            *_unit(inner, inner, 3, nn.ReLU(inplace=True), stride=stride, groups=groups),
            *_unit(inner, wide, 1),
        )
        same = source == wide and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_unit(source, wide, 1, stride=stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, (batch, wide, ...), with the sides divided by the stride."""
        return functional.relu(self.shortcut(x) + self.body(x))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1x1 to more channels, a 3x3 filter for each channel by itself, 1x1 back
    without an activation.
    """

    def __init__(self, source: int, wide: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = source * expansion
        self.body = nn.Sequential(
            *_unit(source, inner, 1, nn.ReLU6(inplace=True)),
            *_unit(inner, inner, 3, nn.ReLU6(inplace=True), stride=stride, groups=inner),
            *_unit(inner, wide, 1),
        )
        self.residual = source == wide and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, (batch, wide, ...), with the sides divided by the stride."""
        y: torch.Tensor = self.body(x)
        return x + y if self.residual else y


def _unit(
    source: int,
    wide: int,
    kernel: int,
    activation: nn.Module | None = None,
    *,
    stride: int = 1,
    groups: int = 1,
) -> list[nn.Module]:
    """Return a convolution, its batch norm and, if given, its activation. The padding keeps the
    image's sides; only the stride divides them.
    """
    convolution = nn.Conv2d(
        source, wide, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(wide), *([activation] if activation is not None else [])]


class BlockNet(nn.Module):
    """A 3x3 convolution, stages of two blocks each (the first of each later stage halves the
    sides), average, linear.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int,
        stages: int,
        block: Callable[[int, int, int], nn.Module],
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for features, wide in _widths(width, width, stages):
            blocks += [block(features, wide, 2 if blocks else 1), block(wide, wide, 1)]
        self.stem = nn.Sequential(*_unit(channels, width, 3, nn.ReLU(inplace=True)))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, classes), of images (batch, channels, height, width)."""
        return self.head(self.blocks(self.stem(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer layer: causal self-attention, then a feed-forward net four times as
    wide.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of ``x``: (batch, positions, width)."""
        # Shapes are taken from the output of qkv: if the model is split over ranks, a rank has only
        # some of the heads, and x may hold only some of the positions.
        qkv = self.qkv(self.attention_norm(x))
        batch, positions, _ = qkv.shape
        q, k, v = qkv.view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.feed_norm(x))  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """A decoder-only language model: token and position embeddings, ``Block`` layers, a linear
    head.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        layers: int,
        *,
        context: int,
        dropout: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores (batch, positions, vocabulary), or with ``targets`` their mean cross
        entropy.

        ``tokens`` and ``targets`` are int64 of shape (batch, positions), with at most ``context``
        positions.
        """
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        if targets is None:
            return scores  # type: ignore[no-any-return]
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


@arguments(inputs=_SIZE, hidden=_SIZE, outputs=_SIZE, depth=_SIZE, dropout=_DROPOUT)
def mlp(
    inputs: int = 784, hidden: int = 256, outputs: int = 10, depth: int = 2, dropout: float = 0.0
) -> Any:
    """Return a multi-layer perceptron: ``depth`` hidden layers with ReLU, then a linear layer.

    Parameters
    ----------
    inputs, hidden, outputs : int
        Features of the (flattened) input, of each hidden layer, and of the output.
    depth : int
        Hidden layers.
    dropout : float
        Share of each hidden layer's values set to zero in training.

    Returns
    -------
    torch.nn.Module
        Maps float (batch, ...) with ``inputs`` values a sample to (batch, outputs).

    Raises
    ------
    InputError
        If a size is not a positive whole number or ``dropout`` lies outside [0, 0.99].

    Examples
    --------
    >>> sum(p.numel() for p in mlp(64, 32, 10, depth=1).parameters()) == 64 * 32 + 32 + 32 * 10 + 10
    True
    """
    return SmallMLP(inputs, hidden, outputs, depth, dropout)


@arguments(channels=_SIZE, classes=_SIZE, width=_SIZE, stages=_SIZE)
def cnn(channels: int = 1, classes: int = 10, width: int = 32, stages: int = 2) -> Any:
    """Return a convolutional classifier: stages of two 3x3 convolutions with batch norm, then
    average and linear.

    Parameters
    ----------
    channels : int
        Of the image: 1 for gray, 3 for color.
    classes : int
    width : int
        Channels of the first stage; each later stage has twice as many.
    stages : int
        The image's sides halve between stages, so they must be at least ``2 ** (stages - 1)``
        pixels.

    Returns
    -------
    torch.nn.Module
        Maps float (batch, channels, height, width) of any size to (batch, classes). The defaults
        fit scikit-learn's 8x8 digits and have 66 thousand parameters.

    Raises
    ------
    InputError
        If a size is not a positive whole number.

    Examples
    --------
    >>> model = cnn(width=4)
    >>> model.training
    True

    The second stage has twice the channels and half the sides:

    >>> tuple(model.features(torch.zeros(1, 1, 8, 8)).shape)
    (1, 8, 4, 4)
    """
    return SmallCNN(channels, classes, width, stages)


@arguments(channels=_SIZE, classes=_SIZE, width=_SIZE, stages=_SIZE, groups=_SIZE)
def resnext(
    channels: int = 1, classes: int = 10, width: int = 32, stages: int = 2, groups: int = 8
) -> Any:
    """Return a residual classifier whose 3x3 convolutions work in groups: two bottleneck blocks per
    stage.

    Parameters
    ----------
    channels, classes : int
        Channels of the image; classes to distinguish.
    width : int
        Channels of the first stage; each later stage has twice as many. Inside a block there are
        half as many.
    stages : int
        The image's sides halve between stages.
    groups : int
        Of the 3x3 convolutions; they must divide half of ``width``. 1 gives ResNet's block.

    Returns
    -------
    torch.nn.Module
        Maps float (batch, channels, height, width) of any size to (batch, classes).

    Raises
    ------
    InputError
        If a size is not a positive whole number, or the groups do not divide the channels.

    Notes
    -----
    Source: Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017,
    figure 3 (c).

    Examples
    --------
    >>> model = resnext(width=8, groups=4)
    >>> model.blocks[0].body[3].groups
    4

    The second stage has twice the channels and half the sides:

    >>> tuple(model.blocks(torch.zeros(1, 8, 8, 8)).shape)
    (1, 16, 4, 4)
    """
    if width % 2 or width // 2 % groups:
        raise InputError(
            f"resnext: {groups} groups do not divide the {width / 2:g} channels inside a block; "
            f"expected a width that is a multiple of {2 * groups}. Pass width={2 * groups}."
        )
    return BlockNet(
        channels,
        classes,
        width,
        stages,
        lambda source, wide, stride: Bottleneck(source, wide, wide // 2, groups, stride),
    )


@arguments(channels=_SIZE, classes=_SIZE, width=_SIZE, stages=_SIZE, expansion=_SIZE)
def mobilenet(
    channels: int = 1, classes: int = 10, width: int = 16, stages: int = 2, expansion: int = 4
) -> Any:
    """Return a classifier of depthwise convolutions: two inverted residual blocks per stage.

    Parameters
    ----------
    channels, classes : int
        Channels of the image; classes to distinguish.
    width : int
        Channels between the blocks of the first stage; each later stage has twice as many.
    stages : int
        The image's sides halve between stages.
    expansion : int
        The factor by which a block increases the channels, which it convolves separately.

    Returns
    -------
    torch.nn.Module
        Maps float (batch, channels, height, width) of any size to (batch, classes).

    Raises
    ------
    InputError
        If a size is not a positive whole number.

    Notes
    -----
    Source: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018,
    table 1 and figure 4 (d).

    Examples
    --------
    >>> model = mobilenet(width=8)
    >>> model.blocks[0].body[3].groups
    32

    The second stage has twice the channels and half the sides:

    >>> tuple(model.blocks(torch.zeros(1, 8, 8, 8)).shape)
    (1, 16, 4, 4)
    """
    return BlockNet(
        channels,
        classes,
        width,
        stages,
        lambda source, wide, stride: InvertedResidual(source, wide, expansion, stride),
    )


@arguments(
    vocabulary=_SIZE, width=_SIZE, heads=_SIZE, layers=_SIZE, context=_SIZE, dropout=_DROPOUT
)
def transformer(
    vocabulary: int = 1000,
    width: int = 128,
    heads: int = 4,
    layers: int = 2,
    *,
    context: int = 128,
    dropout: float = 0.0,
    tied: bool = False,
) -> Any:
    """Return a decoder-only transformer language model, pre-norm, with causal attention and GELU.

    Parameters
    ----------
    vocabulary : int
        Distinct tokens.
    width, heads : int
        Features of a token; attention heads, which must divide ``width``.
    layers : int
    context : int
        The longest sequence.
    dropout : float
        Share of the values set to zero in training, in attention and feed-forward layers.
    tied : bool
        Whether the output layer shares the token embedding's weight.

    Returns
    -------
    torch.nn.Module
        ``model(tokens)`` maps int64 (batch, positions) to scores (batch, positions, vocabulary);
        ``model(tokens, targets)`` returns the mean cross entropy, so the model can serve as its own
        loss.

    Raises
    ------
    InputError
        If a size is not a positive whole number, ``heads`` does not divide ``width``, or
        ``dropout`` lies outside [0, 0.99].

    Examples
    --------
    >>> import torch
    >>> model = transformer(vocabulary=50, width=16, heads=2, layers=1, context=8)
    >>> tuple(model(torch.zeros(3, 8, dtype=torch.int64)).shape)
    (3, 8, 50)
    """
    if width % heads:
        nearest = width // heads * heads or heads
        raise InputError(
            f"transformer: {heads} heads do not divide width {width}; expected a multiple of "
            f"heads. Pass width={nearest}."
        )
    return SmallTransformer(
        vocabulary, width, heads, layers, context=context, dropout=dropout, tied=tied
    )
