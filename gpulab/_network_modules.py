"""The modules that ``gpulab.networks`` builds; apart from it because a module class needs torch when it is defined.

Imported only inside the functions of ``networks``, so ``import gpulab.networks`` stays light. The classes live at
module level so that a model can be pickled and sent to another process.
"""

from __future__ import annotations

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
    """Stages of two 3x3 convolutions with batch norm; the width doubles and the image halves from stage to stage."""

    def __init__(self, channels: int, classes: int, width: int, stages: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        features = channels
        for stage in range(stages):
            wide = width * 2**stage
            if stage:
                blocks.append(nn.MaxPool2d(2))
            for source in (features, wide):
                blocks += [nn.Conv2d(source, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
            features = wide
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, classes), of images (batch, channels, height, width)."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer layer: causal self-attention, then a feed-forward net four times as wide."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of ``x``: (batch, positions, width)."""
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, positions, width))
        return x + self.feed(self.feed_norm(x))  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """A decoder-only language model: token and position embeddings, ``Block`` layers, a linear head."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, *, context: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores (batch, positions, vocabulary), or with ``targets`` their mean cross entropy.

        ``tokens`` and ``targets`` are int64 of shape (batch, positions), with at most ``context`` positions.
        """
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        if targets is None:
            return scores  # type: ignore[no-any-return]
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
