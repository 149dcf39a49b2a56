"""``finish``: turn a model in training into the model that is shipped."""

from __future__ import annotations

from typing import Any

from gpulab.compression import _targets
from gpulab.errors import InputError


def finish(model: Any) -> Any:
    """Return a copy without the parts that only training needs, in evaluation mode.

    Masked and shared weights become plain ones (with their zeros, with their few values), a layer
    trained as if it were quantized becomes a quantized one. The outputs stay the same. A model
    without such parts is copied as it is.

    Parameters
    ----------
    model : torch.nn.Module

    Raises
    ------
    InputError
        If it is not a module, or a layer whose inputs must be rounded by the range seen in training
        has seen no input.
    """
    from torch.nn.utils import parametrize

    from gpulab.compression import _modules

    copied = _targets.duplicate("finish", model).eval()
    for name, each in list(copied.named_modules()):
        if isinstance(each, _modules.Aware):
            low, high = (
                (each.observed.low, each.observed.high)
                if each.observed is not None
                else (None, None)
            )
            if each.observed is not None and not bool(each.observed.seen):
                raise InputError(
                    f"finish: no input reached {name or 'the layer'} in training, so the range "
                    "that activations='static' rounds to is not known; expected a trained model. "
                    "Train it, or use quantize with calibration=x."
                )
            copied = _targets.replace(
                copied, name, _modules.Quantized(each.layer, each.scheme, low, high).eval()
            )
    for each in copied.modules():
        if parametrize.is_parametrized(each, "weight"):
            _targets.plain(each)
    return copied
