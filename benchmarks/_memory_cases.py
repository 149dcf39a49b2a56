"""The training steps for which predictions are compared with reality: named ones, and random ones.
Three of the first forty random ones (GRU and RNN layers) showed errors that were repaired; with
another first seed they are held out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpulab import networks

O = torch.optim  # noqa: E741


@dataclass
class Case:
    """One model, batch, loss, optimizer, precision and checkpointing."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple]
    loss: Callable[[Any], Any] | None
    optimizer: Any = "adam"
    precision: str = "float32"
    checkpoint: bool = False

    def real_optimizer(self, parameters):
        if not isinstance(self.optimizer, str):
            return self.optimizer(parameters)
        return {
            "adam": O.Adam,
            "adamw": O.AdamW,
            "sgd": O.SGD,
            "rmsprop": O.RMSprop,
            "adagrad": O.Adagrad,
            "adadelta": O.Adadelta,
            "adamax": O.Adamax,
            "nadam": O.NAdam,
            "radam": O.RAdam,
        }[self.optimizer](parameters, lr=1e-3)


def labels(classes, batch):
    target = torch.randint(classes, (batch,))
    return lambda output: functional.cross_entropy(output, target)


def next_token(vocabulary, batch, positions):
    target = torch.randint(vocabulary, (batch, positions))
    return lambda output: functional.cross_entropy(output.flatten(0, 1), target.flatten())


def square(output):
    return output.float().square().mean()


def images(batch, channels, side):
    return lambda: (torch.randn(batch, channels, side, side),)


def tokens(vocabulary, batch, positions):
    return lambda: (torch.randint(vocabulary, (batch, positions)),)


def momentum(parameters):
    return O.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


class Recurrent(nn.Module):
    def __init__(self, kind, hidden=96, layers=1, vocabulary=500, **options):
        super().__init__()
        self.table = nn.Embedding(vocabulary, 64)
        self.cells = kind(64, hidden, layers, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), vocabulary)

    def forward(self, x):
        return self.head(self.cells(self.table(x))[0][:, -1])


class Residual(nn.Module):
    def __init__(self, width=16, blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = functional.relu(x + block(x))
        return self.head(x.mean((2, 3)))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx, gradient):
        x, square = ctx.saved_tensors
        return 3 * square * gradient + 0 * x


class WithCube(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(128, 512), nn.Linear(512, 10)

    def forward(self, x):
        return self.b(Cubed.apply(self.a(x)))


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = networks.mlp(256, 512, 256)

    def forward(self, x):
        return (self.body(x) - x).square().mean()


def frozen(model, *names):
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


def group_norm():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=2, dilation=2),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, padding=4, dilation=4),
        nn.GroupNorm(8, 32),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def transposed():
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.Tanh(),
        nn.ConvTranspose2d(8, 3, 3, 1, 1),
    )


def separable():
    return nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 64, 1),
        nn.BatchNorm2d(64),
        nn.Hardswish(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 16 * 16, 10),
    )


def transformer_encoder(layers, width=128, vocabulary=1000):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(vocabulary, width),
        nn.TransformerEncoder(layer, layers),
        nn.Linear(width, vocabulary),
    )


def named_cases(layers=4, positions=40):
    """Return the named cases; with fewer transformer layers and recurrent positions the same
    operators run, each fewer times.
    """

    def gpt(**options):
        return networks.transformer(1000, 128, layers=layers, context=64, **options)

    def encoder():
        return transformer_encoder(max(2, layers - 1))

    mlp = lambda: networks.mlp(256, 512, 10)  # noqa: E731
    features = lambda: (torch.randn(64, 256),)  # noqa: E731
    return [
        Case("mlp, adam", mlp, features, labels(10, 64), "adam"),
        Case(
            "mlp, batch 4096, adamw",
            mlp,
            lambda: (torch.randn(4096, 256),),
            labels(10, 4096),
            "adamw",
        ),
        Case("mlp, batch 1, sgd", mlp, lambda: (torch.randn(1, 256),), labels(10, 1), "sgd"),
        Case(
            "mlp with dropout, adagrad",
            lambda: networks.mlp(256, 512, 10, 3, 0.5),
            lambda: (torch.randn(512, 256),),
            labels(10, 512),
            "adagrad",
        ),
        Case(
            "mlp, first layer frozen",
            lambda: frozen(mlp(), "layers.1"),
            features,
            labels(10, 64),
            "adam",
        ),
        Case(
            "mlp, last layer frozen, rmsprop",
            lambda: frozen(mlp(), "layers.5"),
            lambda: (torch.randn(1024, 256),),
            labels(10, 1024),
            "rmsprop",
        ),
        Case("own loss", OwnLoss, lambda: (torch.randn(512, 256),), None, "adam"),
        Case(
            "custom autograd", WithCube, lambda: (torch.randn(1024, 128),), labels(10, 1024), "adam"
        ),
        Case(
            "cnn with batch norm, momentum",
            lambda: networks.cnn(3, 10, 16, 3),
            images(16, 3, 32),
            labels(10, 16),
            momentum,
        ),
        Case(
            "cnn with batch norm, bf16",
            lambda: networks.cnn(3, 10, 16, 3),
            images(16, 3, 32),
            labels(10, 16),
            "adam",
            "bfloat16",
        ),
        Case(
            "cnn, checkpointed",
            lambda: networks.cnn(3, 10, 16, 3),
            images(16, 3, 32),
            labels(10, 16),
            "adam",
            "float32",
            True,
        ),
        Case("group norm, dilated, adam", group_norm, images(8, 3, 32), labels(10, 8), "adam"),
        Case(
            "group norm, dilated, rmsprop, bf16",
            group_norm,
            images(8, 3, 32),
            labels(10, 8),
            "rmsprop",
            "bfloat16",
        ),
        Case("residual, rmsprop", Residual, images(16, 3, 32), labels(10, 16), "rmsprop"),
        Case(
            "residual, checkpointed",
            Residual,
            images(16, 3, 32),
            labels(10, 16),
            "adam",
            "float32",
            True,
        ),
        Case("transposed convolutions", transposed, images(8, 3, 64), square, "adam"),
        Case(
            "separable convolutions, momentum",
            separable,
            images(8, 16, 32),
            labels(10, 8),
            momentum,
        ),
        Case(
            "lstm, adam",
            lambda: Recurrent(nn.LSTM),
            tokens(500, 32, positions),
            labels(500, 32),
            "adam",
        ),
        Case(
            "lstm, 2 layers, both ways, rmsprop",
            lambda: Recurrent(nn.LSTM, 100, 2, bidirectional=True, dropout=0.2),
            tokens(500, 16, positions * 3 // 4),
            labels(500, 16),
            "rmsprop",
        ),
        Case(
            "lstm, bf16",
            lambda: Recurrent(nn.LSTM, 128),
            tokens(500, 32, positions),
            labels(500, 32),
            "adam",
            "bfloat16",
        ),
        Case(
            "gru, rmsprop",
            lambda: Recurrent(nn.GRU, 96, 2),
            tokens(500, 32, positions),
            labels(500, 32),
            "rmsprop",
        ),
        Case(
            "encoder, dropout, adamw",
            encoder,
            tokens(1000, 8, 64),
            next_token(1000, 8, 64),
            "adamw",
        ),
        Case(
            "encoder, checkpointed",
            encoder,
            tokens(1000, 8, 64),
            next_token(1000, 8, 64),
            "adamw",
            "float32",
            True,
        ),
        Case("gpt, adam", gpt, tokens(1000, 8, 64), next_token(1000, 8, 64), "adam"),
        Case(
            "gpt, tied, adagrad",
            lambda: gpt(tied=True),
            tokens(1000, 8, 64),
            next_token(1000, 8, 64),
            "adagrad",
        ),
        Case("gpt, bf16", gpt, tokens(1000, 8, 64), next_token(1000, 8, 64), "adamw", "bfloat16"),
        Case(
            "gpt, bf16, checkpointed",
            gpt,
            tokens(1000, 8, 64),
            next_token(1000, 8, 64),
            "adamw",
            "bfloat16",
            True,
        ),
        Case(
            "gpt, checkpointed, momentum",
            gpt,
            tokens(1000, 16, 64),
            next_token(1000, 16, 64),
            momentum,
            "float32",
            True,
        ),
        Case(
            "gpt, pure bf16",
            gpt,
            tokens(1000, 8, 64),
            next_token(1000, 8, 64),
            "adamw",
            "pure-bfloat16",
        ),
        Case(
            "mlp, fp16 with scaler",
            lambda: networks.mlp(64, 64, 10),
            lambda: (torch.randn(64, 64),),
            labels(10, 64),
            "adam",
            "float16",
        ),
    ]


# -- random architectures
# ---------------------------------------------------------------------------


class Skip(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Split(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return torch.cat((self.left(x), self.right(x)), 1)


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


ACTIVATIONS = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.ELU,
    nn.PReLU,
    nn.LeakyReLU,
    nn.Hardswish,
    nn.Mish,
    nn.Softplus,
    nn.SELU,
)
OPTIMIZERS = (
    "adam",
    "adamw",
    "sgd",
    "rmsprop",
    "adagrad",
    "adadelta",
    "adamax",
    "nadam",
    "radam",
    momentum,
    lambda p: O.Adam(p, lr=1e-3, amsgrad=True),
    lambda p: O.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    lambda p: O.SGD(p, lr=0.01, weight_decay=0.1),
    lambda p: O.AdamW(p, lr=1e-3, foreach=True),
)


def _dense(r):
    width, layers = r.choice((32, 100, 256, 384)), []
    features = first = r.choice((16, 65, 300))
    for _ in range(r.randint(1, 5)):
        layers += [nn.Linear(features, width, bias=r.random() < 0.8), r.choice(ACTIVATIONS)()]
        if r.random() < 0.4:
            layers.append(
                r.choice((nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm, lambda w: nn.Dropout(0.2)))(
                    width
                )
            )
        if r.random() < 0.4:
            layers.append(Skip(nn.Sequential(nn.Linear(width, width), r.choice(ACTIVATIONS)())))
        features = width
    layers.append(nn.Linear(features, 10))
    return nn.Sequential(*layers), first


def _convolutional(r, channels, side):
    layers, width = [], r.choice((4, 12, 24, 40))
    features = channels
    for _ in range(r.randint(1, 4)):
        groups = r.choice((1, 1, width)) if features % width == 0 else 1
        dilation = r.choice((1, 1, 2))
        layers.append(
            nn.Conv2d(
                features,
                width,
                r.choice((1, 3, 5)),
                padding="same",
                dilation=dilation,
                groups=groups,
                bias=r.random() < 0.7,
            )
        )
        layers.append(
            r.choice(
                (
                    nn.BatchNorm2d,
                    nn.InstanceNorm2d,
                    lambda w: nn.GroupNorm(4, w),
                    lambda w: nn.Identity(),
                )
            )(width)
        )
        layers.append(r.choice(ACTIVATIONS)())
        pool = r.choice(
            (
                None,
                None,
                nn.MaxPool2d(2),
                nn.AvgPool2d(2),
                nn.Dropout2d(0.1),
                nn.Upsample(scale_factor=2),
                "skip",
                "split",
                "transposed",
            )
        )
        if pool == "skip":
            layers.append(Skip(nn.Conv2d(width, width, 3, padding=1)))
        elif pool == "split":
            layers.append(
                Split(
                    nn.Conv2d(width, 4, 1),
                    nn.Conv2d(width, width - 4, 3, padding=1)
                    if width > 4
                    else nn.Conv2d(width, 4, 1),
                )
            )
            width = max(width, 8)
        elif pool == "transposed":
            layers.append(nn.ConvTranspose2d(width, width, 2, 2))
        elif pool is not None:
            layers.append(pool)
        features = width
    layers += [nn.AdaptiveAvgPool2d(r.choice((1, 2))), nn.Flatten()]
    features = nn.Sequential(*layers)(torch.zeros(2, channels, side, side)).shape[1]
    return nn.Sequential(*layers, nn.Linear(features, 10))


def _sequence(r, vocabulary):
    width = r.choice((32, 48, 128))
    layers = [nn.Embedding(vocabulary, width)]
    for _ in range(r.randint(1, 3)):
        kind = r.choice(("lstm", "gru", "rnn", "encoder", "conv"))
        if kind == "encoder":
            layers.append(
                nn.TransformerEncoderLayer(
                    width,
                    4,
                    r.choice((64, 200)),
                    r.choice((0.0, 0.1)),
                    batch_first=True,
                    norm_first=r.random() < 0.5,
                    activation=r.choice(("relu", "gelu")),
                )
            )
        elif kind == "conv":
            layers += [nn.Unflatten(1, (-1, 1)), nn.Flatten(1, 2), Skip(nn.Linear(width, width))]
        else:
            both = r.random() < 0.3
            layers.append(
                First(
                    {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](
                        width,
                        width // (2 if both else 1),
                        r.randint(1, 2),
                        batch_first=True,
                        bidirectional=both,
                    )
                )
            )
    return nn.Sequential(*layers, nn.Linear(width, vocabulary))


def random_case(seed):
    """Return a case drawn from a seed; the same seed gives the same case."""
    family = random.Random(seed).choice(
        ("dense", "convolutional", "convolutional", "sequence", "sequence")
    )

    def build():
        r = random.Random(seed + 1)
        batch = r.choice((1, 7, 32, 100)) if family == "dense" else r.choice((1, 3, 8, 16))
        if family == "dense":
            model, features = _dense(r)
            return model, (torch.randn(max(batch, 2), features),), labels(10, max(batch, 2))
        if family == "convolutional":
            channels, side = r.choice((1, 3, 8)), r.choice((16, 28, 40))
            model, x = (
                _convolutional(r, channels, side),
                torch.randn(max(batch, 2), channels, side, side),
            )
            return model, (x,), labels(10, max(batch, 2))
        vocabulary, positions = r.choice((50, 700)), r.choice((5, 33, 64))
        return (
            _sequence(r, vocabulary),
            (torch.randint(vocabulary, (batch, positions)),),
            next_token(vocabulary, batch, positions),
        )

    torch.manual_seed(seed)
    loss = build()[2]
    r = random.Random(seed + 2)
    optimizer = r.choice(OPTIMIZERS)
    precision = r.choice(("float32", "float32", "float32", "bfloat16"))
    recompute = r.random() < 0.25
    label = optimizer if isinstance(optimizer, str) else "own optimizer"
    return Case(
        f"random {seed}: {family}, {label}, {precision}{', checkpointed' if recompute else ''}",
        lambda: build()[0],
        lambda: build()[1],
        loss,
        optimizer,
        precision,
        recompute,
    )
