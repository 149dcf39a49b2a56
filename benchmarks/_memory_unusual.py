"""Models of other kinds than those on which the predictions were developed, written after the code
was finished. In their first run one was refused, ``nn.Transformer`` with a mask; since then the
code follows it, so only the others are held out.
"""

from __future__ import annotations

import torch
from _memory_cases import (
    Case,
    Recurrent,
    images,
    labels,
    momentum,
    next_token,
    square,
    tokens,
    transposed,
)
from torch import nn
from torch.nn import functional

from gpulab import networks


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
        )
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 3, 1)

    def forward(self, x):
        a = functional.relu(self.down1(x))
        return self.out(torch.cat((a, self.up(functional.relu(self.down2(a)))), 1))


class VisionTransformer(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 192, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(width, 10),
        )

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        return self.head(self.body(x)[:, 0])


class Cells(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(100, 32), kind(32, 64), nn.Linear(64, 10)
        self.pair = kind is nn.LSTMCell

    def forward(self, x):
        state = None
        for position in range(x.shape[1]):
            state = self.cell(self.table(x[:, position]), state)
        return self.head(state[0] if self.pair else state)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 64)
        self.both = nn.Transformer(64, 4, 1, 2, 128, 0.1, batch_first=True)
        self.head = nn.Linear(64, 200)

    def forward(self, x):
        e = self.table(x)
        return self.head(
            self.both(e, e, tgt_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))
        )


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], -1) @ weights.unsqueeze(-1)


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.a, self.b, self.head = (
            nn.Embedding(100, 48),
            nn.Linear(48, 48),
            nn.Linear(48, 48),
            nn.Linear(48, 100),
        )

    def forward(self, x):
        e = self.table(x)
        a, b, state, rows = torch.sigmoid(self.a(e)), self.b(e), 0, []
        for position in range(x.shape[1]):
            state = a[:, position] * state + b[:, position]
            rows.append(state)
        return self.head(torch.stack(rows, 1))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 17, dtype=torch.cfloat))
        self.lift, self.head = nn.Conv1d(2, 8, 1), nn.Conv1d(8, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        return self.head(
            torch.fft.irfft(
                torch.einsum("bix,iox->box", torch.fft.rfft(x), self.weight), n=x.shape[-1]
            )
        )


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 10)
        self.register_buffer("source", torch.randint(256, (2048,)))
        self.register_buffer("target", torch.randint(256, (2048,)))

    def forward(self, x):
        h = functional.relu(self.a(x))
        return self.b(torch.zeros_like(h).index_add(0, self.target, h[self.source]))


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.table, self.attend, self.head = (
            nn.Embedding(100, 64),
            nn.MultiheadAttention(64, 4, batch_first=True),
            nn.Linear(64, 100),
        )
        self.fused = fused

    def forward(self, x):
        e = self.table(x)
        return self.head(self.attend(e, e, e, need_weights=not self.fused)[0])


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 8 * i, 8, 3, padding=1) for i in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3 + 8 * i) for i in range(4))
        self.head = nn.Linear(35, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.cat((x, conv(functional.relu(norm(x)))), 1)
        return self.head(x.mean((2, 3)))


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cells, self.head = (
            nn.Embedding(100, 32),
            nn.LSTM(32, 64, proj_size=16, batch_first=True),
            nn.Linear(16, 10),
        )

    def forward(self, x):
        return self.head(self.cells(self.table(x))[0][:, -1])


def bag():
    return nn.Sequential(nn.EmbeddingBag(1000, 64, mode="mean"), nn.ReLU(), nn.Linear(64, 10))


def volume():
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Flatten(),
        nn.Linear(8 * 4**3, 10),
    )


def signal():
    return nn.Sequential(
        nn.Conv1d(2, 32, 7, padding=3), nn.GLU(1), nn.AvgPool1d(4), nn.ConvTranspose1d(16, 2, 4, 4)
    )


def normed():
    layers = (
        nn.utils.parametrizations.weight_norm(nn.Linear(128, 256)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(256, 128)),
    )
    return nn.Sequential(
        layers[0],
        nn.PReLU(256),
        layers[1],
        nn.RMSNorm(128),
        nn.AlphaDropout(0.1),
        nn.Linear(128, 10),
    )


def double(model):
    return lambda: model().double()


def unusual_cases():
    points = lambda: (torch.randn(256, 32),)  # noqa: E731
    wave = lambda: (torch.randn(16, 2, 32),)  # noqa: E731
    rows = lambda: (torch.randn(512, 128),)  # noqa: E731
    return [
        Case("u-net", UNet, images(8, 3, 32), square),
        Case(
            "u-net, bf16, checkpointed", UNet, images(8, 3, 32), square, "adamw", "bfloat16", True
        ),
        Case("vision transformer", VisionTransformer, images(16, 3, 32), labels(10, 16), "adamw"),
        Case(
            "vision transformer, bf16",
            VisionTransformer,
            images(16, 3, 32),
            labels(10, 16),
            "adamw",
            "bfloat16",
        ),
        Case(
            "lstm cells", lambda: Cells(nn.LSTMCell), tokens(100, 32, 20), labels(10, 32), "rmsprop"
        ),
        Case(
            "gru cells, bf16",
            lambda: Cells(nn.GRUCell),
            tokens(100, 32, 20),
            labels(10, 32),
            "adam",
            "bfloat16",
        ),
        Case("lstm with projection", Projected, tokens(100, 16, 20), labels(10, 16)),
        Case("encoder and decoder", Decoder, tokens(200, 8, 24), next_token(200, 8, 24), "adamw"),
        Case(
            "mixture of experts, checkpointed",
            Experts,
            lambda: (torch.randn(256, 64),),
            square,
            "adam",
            "float32",
            True,
        ),
        Case("scan over positions", Scan, tokens(100, 16, 40), next_token(100, 16, 40), "adagrad"),
        Case("spectral, complex weights", Spectral, wave, square, "adam"),
        Case("graph, index_add", Graph, points, labels(10, 256), momentum),
        Case(
            "attention with weights",
            lambda: Attention(False),
            tokens(100, 8, 64),
            next_token(100, 8, 64),
        ),
        Case(
            "attention, fused, bf16",
            lambda: Attention(True),
            tokens(100, 8, 64),
            next_token(100, 8, 64),
            "adam",
            "bfloat16",
        ),
        Case("dense connections", Dense, images(16, 3, 24), labels(10, 16), "rmsprop"),
        Case("embedding bag", bag, tokens(1000, 64, 30), labels(10, 64), "adagrad"),
        Case("volumes", volume, lambda: (torch.randn(8, 1, 8, 8, 8),), labels(10, 8)),
        Case("signals", signal, wave, square, "adamax"),
        Case("weight and spectral norm", normed, rows, labels(10, 512)),
        Case(
            "float64 convolutions",
            double(UNet),
            lambda: (torch.randn(4, 3, 32, 32, dtype=torch.float64),),
            lambda o: o.square().mean(),
        ),
    ]


def large_cases():
    """Return steps of some hundred MiB, to compare with the growth of a whole process."""
    wide = lambda: (torch.randn(16, 3, 128, 128, dtype=torch.float64),)  # noqa: E731
    text = lambda: networks.transformer(8000, 256, 4, 4, context=128)  # noqa: E731
    return [
        Case("cnn", lambda: networks.cnn(3, 10, 32, 3), images(64, 3, 64), labels(10, 64)),
        Case(
            "cnn, bf16",
            lambda: networks.cnn(3, 10, 32, 3),
            images(64, 3, 64),
            labels(10, 64),
            "adam",
            "bfloat16",
        ),
        Case("lstm", lambda: Recurrent(nn.LSTM, 256, 2), tokens(500, 64, 100), labels(500, 64)),
        Case("transformer", text, tokens(8000, 16, 128), next_token(8000, 16, 128), "adamw"),
        Case("u-net, float64", double(UNet), wide, lambda o: o.square().mean()),
        Case("transposed convolutions", transposed, images(16, 3, 160), square),
    ]
