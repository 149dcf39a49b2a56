"""The small real models that workloads, training, memory and the notebooks share.

Five factories, each of which returns a ``torch.nn.Module`` in training mode with weights from
torch's global generator (call ``torch.manual_seed`` first for the same ones again). Under ``with
torch.device("meta"):`` a model of any size costs no memory, which is what ``memory.predict`` needs.
No loop, no data and no pretrained weights here.
"""

from __future__ import annotations

from typing import Any

from gpulab._given import is_finite, is_whole
from gpulab.errors import InputError


def _positive(function: str, **sizes: int) -> list[int]:
    for name, value in sizes.items():
        if not is_whole(value) or value < 1:
            raise InputError(
                f"{function}: {name} is {value!r}; expected a whole number of at least 1. Pass for "
                f"example {name}=2."
            )
    return [int(value) for value in sizes.values()]


def _share(function: str, dropout: float) -> None:
    if not is_finite(dropout) or not 0 <= dropout < 1:
        raise InputError(
            f"{function}: dropout is {dropout!r}; expected a share of at least 0 and less than 1. "
            "Pass for example dropout=0.1."
        )


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
        If a size is not a positive whole number or ``dropout`` lies outside [0, 1).

    Examples
    --------
    >>> sum(p.numel() for p in mlp(64, 32, 10, depth=1).parameters()) == 64 * 32 + 32 + 32 * 10 + 10
    True
    """
    inputs, hidden, outputs, depth = _positive(
        "mlp", inputs=inputs, hidden=hidden, outputs=outputs, depth=depth
    )
    _share("mlp", dropout)
    from gpulab._network_modules import SmallMLP

    return SmallMLP(inputs, hidden, outputs, depth, dropout)


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
    >>> cnn(width=4).training
    True
    """
    channels, classes, width, stages = _positive(
        "cnn", channels=channels, classes=classes, width=width, stages=stages
    )
    from gpulab._network_modules import SmallCNN

    return SmallCNN(channels, classes, width, stages)


def resnext(
    channels: int = 1, classes: int = 10, width: int = 32, stages: int = 2, groups: int = 8
) -> Any:
    """Return a residual classifier whose 3x3 convolutions work in groups: two bottleneck blocks per
    stage.

    Parameters
    ----------
    channels, classes : int
        Of the image; of the answer.
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
    >>> resnext(width=8, groups=4).blocks[0].body[3].groups
    4
    """
    channels, classes, width, stages, groups = _positive(
        "resnext", channels=channels, classes=classes, width=width, stages=stages, groups=groups
    )
    if width % 2 or width // 2 % groups:
        raise InputError(
            f"resnext: {groups} groups do not divide the {width / 2:g} channels inside a block; "
            f"expected a width that is a multiple of {2 * groups}. Pass width={2 * groups}."
        )
    from gpulab._network_modules import BlockNet, Bottleneck

    return BlockNet(
        channels,
        classes,
        width,
        stages,
        lambda source, wide, stride: Bottleneck(source, wide, wide // 2, groups, stride),
    )


def mobilenet(
    channels: int = 1, classes: int = 10, width: int = 16, stages: int = 2, expansion: int = 4
) -> Any:
    """Return a classifier of depthwise convolutions: two inverted residual blocks per stage.

    Parameters
    ----------
    channels, classes : int
        Of the image; of the answer.
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
    >>> mobilenet(width=8).blocks[0].body[3].groups
    32
    """
    channels, classes, width, stages, expansion = _positive(
        "mobilenet",
        channels=channels,
        classes=classes,
        width=width,
        stages=stages,
        expansion=expansion,
    )
    from gpulab._network_modules import BlockNet, InvertedResidual

    return BlockNet(
        channels,
        classes,
        width,
        stages,
        lambda source, wide, stride: InvertedResidual(source, wide, expansion, stride),
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
        In attention and feed-forward layers.
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
        ``dropout`` lies outside [0, 1).

    Examples
    --------
    >>> import torch
    >>> model = transformer(vocabulary=50, width=16, heads=2, layers=1, context=8)
    >>> tuple(model(torch.zeros(3, 8, dtype=torch.int64)).shape)
    (3, 8, 50)
    """
    vocabulary, width, heads, layers, context = _positive(
        "transformer",
        vocabulary=vocabulary,
        width=width,
        heads=heads,
        layers=layers,
        context=context,
    )
    _share("transformer", dropout)
    if width % heads:
        nearest = width // heads * heads or heads
        raise InputError(
            f"transformer: {heads} heads do not divide width {width}; expected a multiple of "
            f"heads. Pass width={nearest}."
        )
    from gpulab._network_modules import SmallTransformer

    return SmallTransformer(
        vocabulary, width, heads, layers, context=context, dropout=dropout, tied=tied
    )
