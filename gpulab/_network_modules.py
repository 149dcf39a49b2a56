"""The modules that ``gpulab.networks`` builds, apart because a module class needs torch.

Imported only inside the functions of ``networks``, so ``import gpulab.networks`` stays light. The
classes live at module level so that a model can be pickled and sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class SmallMLP(nn.Module):
    """Linear layers with an activation between them; inputs are flattened."""

    def __init__(self, inputs: int, hidden: int, outputs: int, depth: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        features = inputs
        for _ in range(depth):
            layers += [nn.Linear(features, hidden), nn.ReLU()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            features = hidden
        layers.append(nn.Linear(features, outputs))
        self.layers = nn.Sequential(*layers)

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
        features = channels
        for stage in range(stages):
            wide = width * 2**stage
            if stage:
                blocks.append(nn.MaxPool2d(2))
            for source in (features, wide):
                blocks += [
                    nn.Conv2d(source, wide, 3, padding=1, bias=False),
                    nn.BatchNorm2d(wide),
                    nn.ReLU(inplace=True),
                ]
            features = wide
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, classes), of images (batch, channels, height, width)."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A residual block: 1x1 to fewer channels, 3x3 in groups, 1x1 back; with one group ResNet's,
    with more ResNeXt's.
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
    """Return a convolution that keeps the sides (but for its stride), its batch norm and, if given,
    its activation.
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
        features = width
        for stage in range(stages):
            wide = width * 2**stage
            for number in range(2):
                blocks.append(block(features, wide, 2 if stage and not number else 1))
                features = wide
        self.stem = nn.Sequential(*_unit(channels, width, 3, nn.ReLU(inplace=True)))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)
        )

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
        # Shapes come from what qkv gives: split over ranks, a rank has some of the heads, and x may
        # be some of the positions.
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
