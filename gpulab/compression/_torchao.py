"""torchao, PyTorch's own library for lighter models: imported without its warnings about parts that
this machine cannot load.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from gpulab.compression._ranges import Scheme
from gpulab.errors import DeviceError, InputError, MissingLibraryError, message_of, pip_command


def quantized(model: Any, found: dict[str, Any], scheme: Scheme) -> Any:
    """Quantize the linear layers in place with torchao and return the model.

    Raises
    ------
    InputError
        If the scheme is not supported here, or there is no linear layer.
    MissingLibraryError
        If torchao is not installed.
    DeviceError
        If torchao refuses this device.
    """
    import torch

    if scheme.weights != "per-channel" or scheme.bits != 8 or scheme.activations == "static":
        raise InputError(
            f"quantize: arithmetic='torchao' with weights={scheme.weights!r}, bits={scheme.bits}, "
            f"activations={scheme.activations!r}; expected per-channel, 8 bits, and None or "
            "'dynamic'. Use arithmetic='float' for other schemes."
        )
    linear = {name for name, layer in found.items() if isinstance(layer, torch.nn.Linear)}
    if not linear:
        raise InputError(
            "quantize: arithmetic='torchao' and no linear layer; expected at least one, since "
            "torchao leaves convolutions as they are. Use arithmetic='integer' on a CPU, or "
            "'float'."
        )
    with quiet():
        try:
            from torchao import quantization
        except ImportError as error:
            raise MissingLibraryError(
                "quantize: torchao is not installed; expected it to be. Run "
                f"{pip_command('install torchao')}."
            ) from error
        make = (
            quantization.Int8DynamicActivationInt8WeightConfig
            if scheme.activations
            else quantization.Int8WeightOnlyConfig
        )
        try:
            quantization.quantize_(model, make(version=2), filter_fn=lambda _, name: name in linear)
        except Exception as error:
            raise DeviceError(
                f"quantize: torchao refused ({message_of(error)}); expected a device it supports. "
                "Use arithmetic='float'."
            ) from error
    return model.eval()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings about libraries that this machine cannot load while torchao is imported;
    errors pass.

    The messages are warnings of its loggers and of Python's warnings module: none concerns the CPU,
    and a learner can do nothing about them.
    """
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
