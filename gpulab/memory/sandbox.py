"""Run a model on substitute tensors for a while, and restore everything afterwards.

``trace`` uses clones, ``predict`` uses fake tensors. The caller's own tensors are never touched;
the modules' attributes and the random generators are restored afterwards, even after an error.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpulab.errors import InputError, kind_of, with_article

# One at a time: two threads that lend tensors to the same model would put back each other's.
_ONE_AT_A_TIME = threading.RLock()
# Fake integers and masks up to this many (a batch's lengths) keep their values: what is computed
# from them alone is known.
_VALUES = 4096


class Lender:
    """Make and remember the stand-in of each tensor, so that tied weights and views stay tied.

    Parameters
    ----------
    new_storage : callable
        From a tensor to an untyped storage of the same size: a clone, or a fake.
    device : str or None
        Where stand-ins live; None: each where its original does.
    dtype : torch.dtype, optional
        What floating-point tensors are converted to.
    """

    def __init__(
        self,
        function: str,
        new_storage: Callable[[Any], Any],
        device: str | None,
        dtype: Any = None,
    ) -> None:
        self.function, self.new_storage = function, new_storage
        self.device, self.dtype = device, dtype
        self._tensors: dict[int, tuple[Any, Any]] = {}
        self._storages: dict[int, tuple[Any, Any]] = {}

    def tensor(self, original: Any) -> Any:
        """Return the stand-in of a tensor: same shape, strides, dtype and class, another
        storage.
        """
        import torch

        if id(original) not in self._tensors:
            with torch.no_grad():
                self._tensors[id(original)] = (original, self._make(original))
        return self._tensors[id(original)][1]

    def _make(self, original: Any) -> Any:
        import torch
        from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

        kind = type(original)
        if isinstance(original, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            raise InputError(
                f"{self.function}: the model has a lazy parameter without a shape; expected every "
                "shape to be known. Call the model once on a small input first."
            )
        plain = (
            kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
            or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        )
        if (
            original.layout is not torch.strided
            or original.is_quantized
            or original.is_nested
            or not plain
        ):
            way = ".to_padded_tensor(0)" if original.is_nested else ".to_dense() or .dequantize()"
            raise InputError(
                f"{self.function}: {with_article(kind.__name__)} ({original.layout}, "
                f"{original.dtype}) has no plain storage to trace; expected ordinary dense "
                f"tensors. Convert it with {way} first."
            )
        source = original.detach()
        storage = source.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = (storage, self.new_storage(source))
        lent: Any = torch.empty(0, dtype=source.dtype, device=self.device or source.device)
        place = source.storage_offset(), source.shape, source.stride()
        lent.set_(self._storages[storage._cdata][1], *place)
        if self.dtype is not None and source.is_floating_point():
            lent = lent.to(self.dtype)
        if source.is_conj():
            lent = torch.conj(lent)
        if source.is_neg():
            lent = torch._neg_view(lent)
        if isinstance(original, torch.nn.Parameter):
            parameter = torch.nn.Parameter(lent, requires_grad=original.requires_grad)
            parameter.__dict__.update(original.__dict__)
            return parameter
        lent.requires_grad_(original.requires_grad)
        known = (
            isinstance(lent, FakeTensor)
            and kind is torch.Tensor
            and original.is_cpu
            and lent.numel() <= _VALUES
        )
        if known and not lent.is_floating_point():
            with unset_fake_temporarily():
                lent.constant = original.detach().clone()
            lent.fake_mode.fake_tensor_converter.add_constant_storage_mapping(lent)
        return lent

    def everything(self, value: Any) -> Any:
        """Return a nest of lists, tuples and mappings with each tensor replaced by its stand-in."""
        import torch
        from torch.utils._pytree import tree_map_only

        try:
            return tree_map_only(torch.Tensor, self.tensor, value)
        except RecursionError as error:
            raise InputError(
                f"{self.function}: {kind_of(value)} in the inputs or the model contains itself; "
                "expected lists, tuples and mappings of finite depth. Remove it."
            ) from error


def unwrapped(function: str, model: Any) -> Any:
    """Return the plain module inside compiled and data-parallel wrappers; refuse what cannot be
    followed.
    """
    import torch

    parallel = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, parallel) else model._orig_mod
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{function}: {type(module).__name__} is compiled TorchScript; expected a Python "
                "module. Pass the original."
            )
    return model


def modules_in(value: Any) -> list[Any]:
    """Return the modules that a loss holds: itself, its closure, its defaults, and the globals that
    it names.
    """
    import torch

    if isinstance(value, torch.nn.Module):
        return [value]
    if isinstance(value, functools.partial):
        held: list[Any] = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        held = [value.__self__]
    elif isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        held = [cell.cell_contents for cell in cells if _is_filled(cell)]
        held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        held += [
            value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__
        ]
        held = [
            item
            for item in held
            if isinstance(item, (torch.nn.Module, functools.partial, types.MethodType))
        ]
    else:
        held = []
    return [module for item in held for module in modules_in(item)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable of the enclosing function that has no value yet
        return False


@contextlib.contextmanager
def lent(lender: Lender, roots: list[Any]) -> Iterator[None]:
    """Within the block, every tensor of the modules is its stand-in; afterwards all attributes are
    as before.
    """
    modules = list({id(m): m for root in roots for m in root.modules()}.values())
    with _ONE_AT_A_TIME:
        kept = []
        for module in modules:
            attributes = dict(module.__dict__)
            containers = [v for v in attributes.values() if isinstance(v, (dict, list, set))]
            kept.append((module, attributes, [(each, each.copy()) for each in containers]))
        try:
            for module in modules:
                _lend(lender, module)
            yield
        finally:
            try:
                _put_back(kept)
            except KeyboardInterrupt:
                # raised only once all is restored: else the rest of the model would keep the
                # stand-ins
                _put_back(kept)
                raise


def _put_back(kept: list[tuple[Any, dict[str, Any], list[tuple[Any, Any]]]]) -> None:
    for module, attributes, containers in kept:
        module.__dict__.clear()
        module.__dict__.update(attributes)
        for container, content in containers:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


def _lend(lender: Lender, module: Any) -> None:
    attributes = module.__dict__
    for group in ("_parameters", "_buffers"):
        attributes[group] = {
            name: None if t is None else lender.tensor(t) for name, t in attributes[group].items()
        }
    for name, value in list(attributes.items()):
        if name in ("_parameters", "_buffers", "_modules") or name.endswith("_hooks"):
            continue
        attributes[name] = lender.everything(value)
    if attributes.get("_compiled_call_impl") is not None:
        attributes["_compiled_call_impl"] = None


@contextlib.contextmanager
def autocast_off(device_type: str) -> Iterator[None]:
    """Suspend an autocast block of the caller's, and its depth, so that an inner block ends as an
    outermost one does.
    """
    import torch

    if not torch.is_autocast_enabled(device_type):
        yield
        return
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_enabled(device_type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, True)
        for _ in range(depth):
            torch.autocast_increment_nesting()


@contextlib.contextmanager
def undisturbed(device_type: str) -> Iterator[None]:
    """Suspend the caller's modes (no_grad, inference, autocast) in the block, and put the random
    generators back after it.
    """
    import torch

    with (
        generators_kept(),
        torch.inference_mode(False),
        torch.enable_grad(),
        autocast_off(device_type),
    ):
        yield


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Put the random generators of Python, NumPy and torch back after the block."""
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count() if in_use else 0)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
