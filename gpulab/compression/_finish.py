"""``finish``: what training needed becomes what is shipped."""

from __future__ import annotations

from typing import Any

from gpulab.compression import _targets


def finish(model: Any) -> Any:
    """Return a copy without the parts that only training needs, in evaluation mode.

    Masked and shared weights become plain ones (with their zeros, with their few values), a layer trained as if it were quantised becomes a
    quantised one. The outputs stay the same. A model without such parts is copied as it is.

    Parameters
    ----------
    model : torch.nn.Module

    Raises
    ------
    InputError
        If it is no module.
    """
    from torch.nn.utils import parametrize

    from gpulab.compression import _modules

    copied = _targets.duplicate("finish", model).eval()
    for name, each in list(copied.named_modules()):
        if isinstance(each, _modules.Aware):
            low, high = (each.observed.low, each.observed.high) if each.observed is not None else (None, None)
            copied = _targets.replace(copied, name, _modules.Quantized(each.layer, each.scheme, low, high).eval())
    for each in copied.modules():
        if parametrize.is_parametrized(each, "weight"):
            _targets.plain(each)
    return copied
