"""Count a model's parameters and FLOPs, layer by layer, while it runs once.

A multiply and an add are two FLOP. Counted are the layers with weights, attention and other matrix
products; norms, activations and sums are left out, as by PyTorch's ``FlopCounterMode``. A zero that
is stored is multiplied and counts; one that is not stored does not.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gpulab.compression import _targets
from gpulab.compression._targets import finish
from gpulab.compression.results import Cost, LayerCost
from gpulab.errors import InputError, message_of
from gpulab.evidence import Evidence, Note


def count(model: Any, *inputs: Any, label: str | None = None) -> Cost:
    """Run a model once and return what each of its layers costs.

    Parameters
    ----------
    model : torch.nn.Module
        Masks and the like are finished first, so that the shipped model is counted.
    *inputs : tensor
        A batch, on the model's device; the first dimension of the first tensor counts items.
    label : str, optional

    Returns
    -------
    Cost
        Evidence MODELLED; a note names operators of other libraries (``torch.library``), whose
        products are not seen.

    Raises
    ------
    InputError
        If the model does not run on these inputs.

    Examples
    --------
    >>> import torch
    >>> from gpulab import compression, networks
    >>> compression.count(networks.mlp(64, 32, 10, depth=1), torch.zeros(5, 64)).flops
    23680
    """
    import torch

    done = finish(_targets.module("count", model))
    counter = _Counter(done)
    try:
        with torch.no_grad(), _products(counter), _operators(counter):
            done(*inputs)
    except Exception as error:
        raise InputError(
            f"count: the model raised {message_of(error)}; expected it to run on these inputs. Try "
            "model(x) first."
        ) from error
    finally:
        counter.remove()
    batch = int(inputs[0].shape[0]) if inputs and getattr(inputs[0], "dim", lambda: 0)() else 1
    which = (
        "one operator was"
        if len(counter.unknown) == 1
        else f"{len(counter.unknown)} operators were"
    )
    sentence = (
        f"{which} not counted: {', '.join(counter.unknown)}. "
        "torch.utils.flop_counter.register_flop_formula gives it a count."
    )
    assumptions = (
        "a multiply and an add are two operations; norms, activations and sums are left out"
    )
    return Cost(
        label=label if label is not None else type(model).__name__,
        batch=batch,
        layers=tuple(counter.rows.values()),
        other_flops=counter.other,
        parameters=stored_weights(done),
        notes=(Note("skipped", sentence),) if counter.unknown else (),
        evidence=Evidence.modelled(assumptions, "the shapes of each layer's weight and outputs"),
    )


def stored_weights(model: Any) -> int:
    """Return how many weights are stored: parameters, and the integers or values in a layer that
    took another's place.
    """
    from gpulab.compression._modules import Shipped

    parameters: int = sum(p.numel() for p in model.parameters())
    return parameters + sum(m.stored for m in model.modules() if isinstance(m, Shipped))


class _Counter:
    """Hooks on the layers, and a function mode for the matrix products outside of them."""

    def __init__(self, model: Any) -> None:
        import torch

        from gpulab.compression._modules import Shipped

        self.rows: dict[str, LayerCost] = {}
        self.other = 0
        self.unknown: dict[str, None] = {}
        self.inside = 0  # layers at work, which count for themselves
        self._hooks = []
        for name, each in model.named_modules():
            if isinstance(each, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.RNNBase, Shipped)):
                self._hooks.append(each.register_forward_pre_hook(self._enter))
                self._hooks.append(each.register_forward_hook(self._leave(name), always_call=True))

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def add(self, flops: int) -> None:
        """Count a product that belongs to no layer."""
        if not self.inside:
            self.other += flops

    def _enter(self, *_: Any) -> None:
        self.inside += 1

    def _leave(self, name: str) -> Any:
        def leave(layer: Any, _: Any, output: Any) -> None:
            self.inside -= 1
            if output is None:  # the layer raised
                return
            cost = _cost(name, layer, output)
            before = self.rows[name].flops if name in self.rows else 0
            self.rows[name] = dataclasses.replace(cost, flops=before + cost.flops)

        return leave


def _cost(name: str, layer: Any, output: Any) -> LayerCost:
    """Return a layer's cost: two FLOP for each stored weight, at each position of the output."""
    import torch

    from gpulab.compression._modules import Shipped

    # an LSTM is one operator on a CPU, and on cuDNN each of the three is: no product shows within
    if isinstance(layer, torch.nn.RNNBase):
        steps = output[0].data  # of a packed sequence the tensor in it
        read = sum(
            getattr(layer, weight).numel()
            for weight in layer._flat_weights_names
            if weight.startswith("weight")
        )
        flops = 2 * (steps.numel() // steps.shape[-1]) * read
        return LayerCost(name, "recurrent", sum(p.numel() for p in layer.parameters()), flops)
    shipped = isinstance(layer, Shipped)
    shape = layer.weight_shape if shipped else tuple(layer.weight.shape)
    stored = layer.stored if shipped else layer.weight.numel()
    flops = 2 * (output.numel() // shape[0]) * stored
    bias = 0 if layer.bias is None else layer.bias.numel()
    groups = getattr(layer, "groups", 1)
    if not (layer.convolution if shipped else hasattr(layer, "groups")):
        kind = "linear"
    elif groups == 1:
        kind = "convolution"
    else:
        kind = "depthwise" if groups == shape[0] else f"{groups} groups"
    return LayerCost(name, f"{kind}, {layer.form}" if shipped else kind, stored + bias, flops)


# Whose operators are counted, or multiply no matrices; the last three only inside of layers, which
# count for themselves.
_NAMESPACES = (
    "aten",
    "prim",
    "prims",
    "profiler",
    "c10d",
    "_c10d_functional",
    "torchao",
    "quantized",
    "onednn",
)
_PRODUCTS = ("scaled_dot_product_attention", "matmul", "__matmul__", "mm", "bmm")


def _products(counter: _Counter) -> Any:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    # What FlopCounterMode has no formula for, from the shapes of the arguments.
    formulas = {
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), lambda left, *_, **__: 2 * math.prod(left)),
        aten.addmv: lambda _, left, *__, **___: 2 * math.prod(left),
        aten.addbmm: lambda _, left, right, **__: 2 * math.prod(left) * right[-1],
        aten._trilinear: lambda left, weight, *_, **__: (
            2 * math.prod(left[:-1]) * math.prod(weight)
        ),
    }

    class Products(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if not (counter.inside or name in _PRODUCTS or name.startswith("__")):
                # Products within: of F.linear, einsum, a one-dimensional convolution, PyTorch's own
                # attention layer.
                with (
                    sdpa_kernel(SDPBackend.MATH),
                    FlopCounterMode(display=False, custom_mapping=formulas) as seen,
                ):
                    result = func(*args, **(kwargs or {}))
                counter.add(seen.get_total_flops())
                return result
            result = func(*args, **(kwargs or {}))
            if name == "scaled_dot_product_attention":
                q, k, v = (
                    list(args)
                    + [(kwargs or {}).get(n) for n in ("query", "key", "value")[len(args) :]]
                )[:3]
                counter.add(
                    2 * q.numel() * k.shape[-2]
                    + 2 * (q.numel() // q.shape[-1]) * k.shape[-2] * v.shape[-1]
                )
            elif name in _PRODUCTS and hasattr(result, "numel"):
                counter.add(2 * int(result.numel()) * int(args[0].shape[-1]))
            return result

    return Products()


def _operators(counter: _Counter) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            known = _NAMESPACES if counter.inside else _NAMESPACES[:-3]
            if func.namespace not in known and func.overloadpacket not in flop_registry:
                counter.unknown[func._schema.name] = None
            return func(*args, **(kwargs or {}))

    return Operators()  # type: ignore[no-untyped-call]
