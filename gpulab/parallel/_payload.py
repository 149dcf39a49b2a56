"""How a function travels to the ranks: by value where they could not import it."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gpulab.errors import InputError, message_of, shown


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as bytes.

    Raises
    ------
    InputError
        If it is not a function, or if something in the call cannot be pickled.
    """
    import cloudpickle

    if not callable(function):
        raise InputError(
            f"run: {shown(function)} is not a function; expected one to call on every rank. Pass "
            "the function itself."
        )
    with _packing(function, *args, *kwargs.values()):
        return cloudpickle.dumps((function, args, kwargs))  # type: ignore[no-any-return]


def fingerprint(*given: object) -> str:
    """Return a name for what values are as they travel: code, options and numbers. Made again in
    the same way they have the same name.

    Raises
    ------
    InputError
        As ``pack``.
    """
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            """Write a tensor by its numbers: torch's own way names the address of its storage,
            which is another for an equal tensor.
            """
            plain = (
                type(value) in {torch.Tensor, torch.nn.Parameter}
                and value.layout is torch.strided
                and not value.is_quantized
            )
            if not plain or value.is_meta:
                return super().reducer_override(value)
            numbers = (
                value.detach()
                .cpu()
                .resolve_conj()
                .resolve_neg()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .tobytes()
            )
            return type(value), (str(value.dtype), tuple(value.shape), value.requires_grad, numbers)

    digest = hashlib.sha256()
    with _packing(*given):
        Pickler(SimpleNamespace(write=digest.update)).dump(given)
    return digest.hexdigest()


@contextmanager
def _packing(*given: object) -> Iterator[None]:
    """Let the code of loose modules be carried, and say in a sentence what cannot be."""
    try:
        with _by_value(*given):
            yield
    except Exception as error:
        raise InputError(
            f"run: the call cannot be sent to the ranks ({type(error).__name__}: "
            f"{message_of(error)}); expected a function and "
            "arguments that can be pickled. Make open files, locks, generators and tensors on a "
            "GPU inside the function."
        ) from error


@contextmanager
def _by_value(*given: object) -> Iterator[None]:
    """Let cloudpickle carry the code of the modules that lie beside the notebook or the script, and
    are installed nowhere.
    """
    import cloudpickle

    names = {getattr(each, "__module__", None) or type(each).__module__ for each in given}
    modules = [
        module for name in names if (module := sys.modules.get(name)) is not None and loose(module)
    ]
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def loose(module: ModuleType) -> bool:
    """Whether a module is installed nowhere that an engine would find it."""
    name, file = module.__name__.split(".")[0], getattr(module, "__file__", None)
    if name in {"__main__", "gpulab"} or file is None:
        return False
    places = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    # What an environment that stands on another one sees there, and what a user installed for all
    # environments.
    places |= {
        place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}
    }
    return not any(Path(file).is_relative_to(place) for place in places)
