"""Which arithmetic PyTorch may use for arrays of a dtype under the settings of this moment.

A float32 product may run in TF32 or bfloat16 when the settings allow it, eight to sixteen times
faster than float32 itself; a ceiling that ignores this would report correct times as impossible.
Convolutions allow TF32 by default.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# Arithmetic that stands for a dtype that has no tensor unit of its own.
_STANDS_FOR = {
    "complex64": "float32",
    "complex128": "float64",
    "bool": "int8",
    "uint8": "int8",
    "int16": "float32",
    "uint16": "float32",
    "int32": "float32",
    "uint32": "float32",
    "int64": "float32",
    "uint64": "float32",
}


def arithmetic(dtype: str, kind: str, operation: str | None = None) -> tuple[str, ...]:
    """Return the arithmetics that may be used for a dtype, by the names of
    ``DeviceSpec.flops_per_second``.

    Parameters
    ----------
    dtype : str
        Of the arrays, such as "float32".
    kind : str
        Of the device: "cpu", "cuda" ...
    operation : str, optional
        "matmul" or "convolution"; None counts what either may use.

    Returns
    -------
    tuple of str
        The dtype's own first. PyTorch's settings are read only if PyTorch is loaded.
    """
    own = "float8" if dtype.startswith("float8") else _STANDS_FOR.get(dtype, dtype)
    torch = sys.modules.get("torch")
    if torch is None:
        return (own,)
    if own == "float32" and kind in ("cuda", "rocm"):
        return (own, "tf32") if _tf32_allowed(torch, operation) else (own,)
    if own == "float32" and kind == "cpu" and operation != "convolution":
        precision = getattr(torch.backends.mkldnn.matmul, "fp32_precision", "none")
        return (own, "bfloat16") if precision in ("bf16", "tf32") else (own,)
    if (
        own == "float16"
        and kind == "cuda"
        and getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)
    ):
        return (own, "float16_acc16")
    return (own,)


def _tf32_allowed(torch: Any, operation: str | None) -> bool:
    override = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if override in ("0", "1"):
        return override == "1"
    places = {"matmul": (torch.backends.cuda.matmul,), "convolution": (torch.backends.cudnn,)}
    return any(
        _allows(torch, place)
        for place in places.get(operation or "", (*places["matmul"], *places["convolution"]))
    )


def _allows(torch: Any, place: Any) -> bool:
    """Whether one of PyTorch's two switches is on; the newer name is asked first, since mixing both
    makes the older one raise.
    """
    convolution = getattr(place, "conv", None)
    words = {
        getattr(place, "fp32_precision", "none"),
        getattr(convolution, "fp32_precision", "none"),
    }
    if words & {"tf32", "bf16"}:
        return True
    if "ieee" in words:
        return False
    try:
        return bool(place.allow_tf32)
    except RuntimeError:
        # the newer switches were used and say nothing here: then the general one counts
        return bool(getattr(torch.backends, "fp32_precision", "none") == "tf32")
