"""One training step, the same for a trace (real) and for a prediction (fake)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpulab import _given
from gpulab.devices import translate
from gpulab.errors import GpulabError, InputError, kind_of, message_of, shown
from gpulab.memory import sandbox

# Name -> (dtype of autocast or None, dtype of the parameters or None, whether the loss is scaled).
PRECISIONS: Mapping[str, tuple[str | None, str | None, bool]] = {
    "float32": (None, None, False),
    "bfloat16": ("bfloat16", None, False),
    "float16": ("float16", None, True),
    "pure-bfloat16": (None, "bfloat16", False),
    "pure-float16": (None, "float16", False),
}


def check_precision(function: str, precision: str) -> tuple[str | None, str | None, bool]:
    """Return what a precision means, or refuse an unknown one."""
    return PRECISIONS[_given.word(function, "precision", precision, PRECISIONS)]


def optimizer_factory(function: str, optimizer: Any) -> tuple[str, Callable[[Any], Any] | None]:
    """Return (name, callable from parameters to an optimizer) of a name, a factory or None.

    Raises
    ------
    InputError
        If the name is not one of ``torch.optim``'s, or an optimizer was given instead of a way to
        make one.
    """
    import torch

    if optimizer is None:
        return "no optimizer", None
    if isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"{function}: got {kind_of(optimizer)} that belongs to other tensors; expected a name "
            "or a factory. Pass optimizer=lambda parameters: "
            f"torch.optim.{type(optimizer).__name__}(parameters, lr=...)."
        )
    if isinstance(optimizer, str):
        kinds: list[Any] = [getattr(torch.optim, name) for name in torch.optim.__all__]
        known = {
            kind.__name__.lower(): kind
            for kind in kinds
            if isinstance(kind, type)
            and issubclass(kind, torch.optim.Optimizer)
            and kind not in (torch.optim.Optimizer, torch.optim.LBFGS)
        }
        if optimizer.lower() == "sgd-momentum":
            return "SGD with momentum", functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
        if optimizer.lower() not in known:
            names = ", ".join([*sorted(known), "sgd-momentum"])
            raise InputError(
                f"{function}: optimizer {shown(optimizer)} is unknown; expected one of {names}, or "
                "a factory. Pass 'adam'."
            )
        kind: Any = known[optimizer.lower()]
        return kind.__name__, functools.partial(kind, lr=1e-3)
    if not callable(optimizer):
        raise InputError(
            f"{function}: optimizer is {kind_of(optimizer)}; expected a name or a factory. Pass "
            "'adam'."
        )
    try:
        name = str(optimizer.__name__).replace("<lambda>", "own optimizer")
    except Exception:  # a partial has no name, and some callables answer no question at all
        name = "optimizer"
    return name, optimizer


def loss_of(function: str, value: Any) -> Any:
    """Return the scalar to differentiate: the value itself, or its ``loss``.

    Raises
    ------
    InputError
        If there is no scalar tensor that depends on a parameter.
    """
    import torch

    if isinstance(value, Mapping) and "loss" in value:
        value = value["loss"]
    elif not isinstance(value, torch.Tensor) and hasattr(value, "loss"):
        value = value.loss
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else kind_of(value)
        )
        raise InputError(
            f"{function}: the loss is {what}; expected a tensor with one element. Pass loss=..., a "
            "function from the model's output to a scalar."
        )
    if not value.requires_grad:
        raise InputError(
            f"{function}: the loss does not depend on any parameter that requires a gradient; "
            "expected at least one. Unfreeze a layer."
        )
    return value


class FakeScaler:
    """The tensors and in-place operators of ``GradScaler``, without the read-back that a fake
    tensor cannot answer.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.scale_value = torch.full((), 65536.0, dtype=torch.float32, device=device)
        self.growth = torch.full((), 0, dtype=torch.int32, device=device)

    def scale(self, loss: Any) -> Any:
        """Return the loss times the scale."""
        return loss * self.scale_value

    def step(self, optimizer: Any) -> None:
        """Unscale the gradients in place, then take the optimizer's step."""
        import torch

        inverse = self.scale_value.double().reciprocal().float()
        found = torch.full((), 0.0, dtype=torch.float32, device=inverse.device)
        gradients = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        optimizer.step()

    def update(self) -> None:
        """Change nothing: the scale stays where it is."""


class Step:
    """A model with its loss, precision and optimizer, ready to take training steps."""

    def __init__(
        self,
        function: str,
        model: Any,
        *,
        inputs: Any,
        targets: Any,
        loss: Any,
        precision: str,
        device: str,
    ) -> None:
        self.function, self.model, self.loss = function, model, loss
        self.inputs, self.targets = inputs, targets
        self.autocast_dtype, _, self.scaled = check_precision(function, precision)
        self.device, self.optimizer, self.scaler = device, None, None

    def prepare(self, tracker: Any, factory: Callable[[Any], Any] | None, scaler: Any) -> None:
        """Make the optimizer for the parameters that are not frozen."""
        trained = self._guard(
            "model", lambda: [p for p in self.model.parameters() if p.requires_grad]
        )
        if not trained:
            raise InputError(
                f"{self.function}: the model has no parameter that requires a gradient; expected "
                "at least one. Unfreeze a layer."
            )
        if factory is not None:
            tracker.in_optimizer = True  # Adagrad makes its state at once
            self.optimizer = self._guard("optimizer", lambda: factory(trained))
            tracker.in_optimizer = False
            if not (
                callable(getattr(self.optimizer, "step", None))
                and callable(getattr(self.optimizer, "zero_grad", None))
            ):
                raise InputError(
                    f"{self.function}: the optimizer's factory returned {shown(self.optimizer)}; "
                    "expected an optimizer with step() and zero_grad(). Return for example "
                    "torch.optim.Adam(parameters)."
                )
            self.scaler = scaler if self.scaled else None

    def run(self, tracker: Any) -> None:
        """Take one step: release the gradients, forward, backward, optimizer."""
        tracker.begin_step()
        owner = self.model if self.optimizer is None else self.optimizer
        self._guard("zero_grad", owner.zero_grad)
        loss = self._guard("forward", self._forward)
        scaled = self.scaler.scale(loss) if self.scaler is not None else loss
        self._guard("backward", scaled.backward)
        tracker.mark_gradients()
        if self.optimizer is not None and self.scaler is not None:
            self._guard("optimizer", lambda: self.scaler.step(self.optimizer))
            self.scaler.update()
        elif self.optimizer is not None:
            self._guard("optimizer", self.optimizer.step)

    def _forward(self) -> Any:
        import torch

        dtype = getattr(torch, self.autocast_dtype) if self.autocast_dtype else None
        with torch.autocast(self.device, dtype=dtype, enabled=dtype is not None):
            targets = () if self.targets is None else (self.targets,)
            value = (
                self.model(*self.inputs, *targets)
                if self.loss is None
                else self.loss(self.model(*self.inputs), *targets)
            )
        return loss_of(self.function, value)

    def _guard(self, part: str, call: Callable[[], Any]) -> Any:
        from gpulab.memory.tracker import Stopped

        try:
            return call()
        except (GpulabError, Stopped):
            raise
        except Exception as error:
            of_device = translate(error, f"{self.function}: {part}")
            raise of_device or InputError(explain(self.function, part, error)) from error


@contextlib.contextmanager
def on_substitutes(
    function: str,
    tracker: Any,
    model: Any,
    *,
    inputs: Any,
    targets: Any,
    loss: Any,
    precision: str,
    new_storage: Callable[[Any], Any],
    device: str | None,
) -> Iterator[Step]:
    """Give a step whose model, loss and batch hold stand-ins of their tensors, which the tracker
    counts; the caller's modules are as before afterwards.

    Parameters
    ----------
    new_storage, device
        As for ``sandbox.Lender``.
    """
    import torch

    model = sandbox.unwrapped(function, model)
    half = PRECISIONS[precision][1]
    lender = sandbox.Lender(function, new_storage, device, getattr(torch, half) if half else None)
    roots = [model, *sandbox.modules_in(loss)]
    with sandbox.lent(lender, roots):
        batch, goals = lender.everything(inputs), lender.everything(targets)
        tracker.watch_modules(roots)
        tracker.watch_inputs((batch, goals))
        step = Step(
            function,
            model,
            inputs=batch,
            targets=goals,
            loss=loss,
            precision=precision,
            device=tracker.device_type,
        )
        del batch, goals, lender  # they would keep tensors alive that the step lets go
        yield step


def explain(function: str, part: str, error: Exception) -> str:
    """Return one sentence for an error from inside the model, its loss or its optimizer."""
    name = type(error).__name__
    if name in (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "GuardOnDataDependentSymNode",
    ):
        operator = getattr(error, "func", None) or message_of(error)
        return (
            f"{function}: in {part}, {operator} depends on the values of a tensor, which a "
            "prediction does not have; expected a step whose shapes and branches depend only on "
            "shapes. Use memory.trace, which runs the step."
        )
    return (
        f"{function}: {part} raised {name}: {message_of(error) or 'no message'}; expected a step "
        "that runs. Run it yourself on a small batch; the cause is above this message."
    )


@contextlib.contextmanager
def checkpointed(model: Any) -> Iterator[list[str]]:
    """Recompute each direct child in the backward pass; of a ModuleList or ModuleDict, each member.

    Gives a list that grows by one entry for each call of a child.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    calls: list[str] = []

    def recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append("")
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    children: list[Any] = []
    for child in model.children():
        is_container = isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
        children += child.children() if is_container else [child]
    before = [(child, child.__dict__.get("forward")) for child in children]
    try:
        for child in children:
            child.__dict__["forward"] = functools.partial(recomputed, child.forward)
        yield calls
    finally:
        for child, own in before:
            child.__dict__.pop("forward", None)
            if own is not None:
                child.__dict__["forward"] = own


@contextlib.contextmanager
def optimizer_seen(tracker: Any) -> Iterator[None]:
    """Tell the tracker while any optimizer's ``step`` runs."""
    from torch.optim import optimizer as module

    def enter(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in tracker._parameters:
                    tracker.watch_parameter(parameter, "")
        tracker.mark_gradients()
        tracker.in_optimizer = True

    def leave(optimizer: Any, args: Any, kwargs: Any) -> None:
        tracker.in_optimizer = False

    handles = [
        module.register_optimizer_step_pre_hook(enter),
        module.register_optimizer_step_post_hook(leave),
    ]
    try:
        yield
    finally:
        tracker.in_optimizer = False
        for handle in handles:
            handle.remove()
