"""The dispatch mode that sees what type of numbers each kernel is given. Imported only inside
functions: it needs torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that compute nothing: storage and views.
_IDLE = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "detach",
        "_unsafe_view",
        "ones",
        "zeros",
        "lift_fresh",
        "arange",
    }
)
CASTS = frozenset({"_to_copy"})


class KernelTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep for each operator its name and the floating types that it was given and gave; below
    autocast, so casts are seen too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.every: list[tuple[str, list[str], list[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note its types."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, gave = _types((args, kwargs)), _types(result)
        idle = (
            func.namespace == "prim"
            or func.is_view
            or name in _IDLE
            or (name in CASTS and given == gave)
        )
        if given and not idle:
            self.every.append((name, given, gave))
        return result

    @property
    def kernels(self) -> list[tuple[str, list[str], list[str]]]:
        """Without the casts."""
        return [each for each in self.every if each[0] not in CASTS]


def _types(tree: Any) -> list[str]:
    """Return the types of the numbers in a tree; a complex one by that of its parts."""
    tensors = [
        x
        for x in tree_leaves(tree)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    ]
    return [str(x.dtype.to_real()).removeprefix("torch.") for x in tensors]
