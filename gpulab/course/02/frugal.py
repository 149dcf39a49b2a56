"""02.2: move one line."""

# %% exercise
id = "02.2"
title = "move one line"
answer_name = "frugal"
live = True
limit_seconds = 60.0
loads = ("torch",)

# %% stub
def frugal(a, device):
    """A hundred steps on the device; `a` and the result are CPU tensors."""
    ...  # a.to(device), step(there), there.cpu()

# %% hint
# What does the hundredth step need that is not on the device already?

# %% hint
# Send once before the loop and fetch once after it. Inside the loop, `there = step(there)`.

# %% solution
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    """A hundred steps on the device; `a` and the result are CPU tensors."""
    there = a.to(device)  # once, before the loop
    for _ in range(100):
        there = step(there)
    return there.cpu()  # once, after it

# %% check
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_ratio, format_seconds

# The exercises are checked over this link. It is the same for every learner, so that a right answer is right everywhere.
EXERCISE_LINK = "pcie4-x16"
_STEPS, _NUMBERS = 100, 262_144
_LAUNCH_SECONDS = 8.7e-6  # one operation on an array this small: RECORDED on NVIDIA H200, workload "add"
_LEAST_GAIN = 3.0
# Calls that need nothing that is stored in a tensor's memory, such as its shape.
_ASKED = {"size", "dim", "numel", "nelement", "element_size", "stride", "is_contiguous", "__len__", "get_device", "is_pinned"}


class Bill:
    """Counts of the copies and of the operations on the device, and the data that was fetched from it."""

    def __init__(self) -> None:
        self.copies = self.operations = 0
        self.fetched: list[Any] = []

    def seconds(self) -> float:
        """Return the modelled time: copies from pageable memory, and a launch for each operation."""
        from gpulab import transfer

        link = transfer.link(EXERCISE_LINK, memory="pageable")
        return self.copies * link.seconds(4 * _NUMBERS) + self.operations * _LAUNCH_SECONDS


def _device(bill: Bill) -> Any:
    """Return a context that marks tensors that are sent to a GPU. It counts their copies and operations in ``bill``."""
    import torch
    from torch.overrides import TorchFunctionMode

    on_device = _class()

    def is_cuda(device: Any) -> bool:
        return device is not None and torch.device(device).type == "cuda"

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, name, first = dict(kwargs or {}), func.__name__, args[0] if args else None
            there = [a for a in (*args, *kwargs.values()) if isinstance(a, on_device)]
            if name == "__get__":
                what = getattr(func.__self__, "__name__", "")
                if there and what in ("device", "is_cuda"):
                    return torch.device("cuda", 0) if what == "device" else True
                return func(*args, **kwargs)
            if name in _ASKED:
                return func(*args, **kwargs)
            if name in ("to", "cuda", "cpu"):
                return self.moved(name, first, args[1:], kwargs)
            if name == "pin_memory":
                return first
            if name == "copy_" and isinstance(first, on_device) != isinstance(args[1], on_device):
                bill.copies += 1
                result = func(first, args[1])
                if not isinstance(first, on_device):
                    bill.fetched.append(result.detach().clone())
                return first
            if name == "numpy" and there:
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
            goes = bool(there) or is_cuda(kwargs.get("device"))
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            here = [a for a in args if isinstance(a, torch.Tensor) and not isinstance(a, on_device) and a.dim()]
            if there and here:
                raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor):  # a number or a list: it was fetched
                bill.copies += bool(there)
                if there and isinstance(result, list):
                    bill.fetched.append(torch.tensor(result))
                return result
            bill.operations += goes
            return result.as_subclass(on_device) if goes else result

        # Stands in for Tensor.to, cuda and cpu, and counts a copy if the tensor changes its device.
        def moved(self, name: str, first: Any, rest: Any, kwargs: Any) -> Any:
            copy = kwargs.pop("copy", False)
            if rest and isinstance(rest[0], torch.Tensor):
                rest = ("cuda" if isinstance(rest[0], on_device) else "cpu", *rest[1:])
            device, dtype = "cuda" if name == "cuda" else "cpu", None
            if name == "to":
                device, dtype, _, _ = torch._C._nn._parse_to(*rest, **kwargs)
            was = isinstance(first, on_device)
            goes = was if device is None else is_cuda(device)
            if goes == was and not copy and dtype in (None, first.dtype):
                return first
            data = torch.Tensor.to(first, dtype=dtype or first.dtype, copy=True).as_subclass(torch.Tensor)
            bill.copies += goes != was
            if was and not goes:
                bill.fetched.append(data.clone())
            return data.as_subclass(on_device) if goes else data

    return Counting()


_made: list[type] = []


def _class() -> type:
    """Return the class of a tensor on the device."""
    import torch

    if not _made:
        _made.append(type("DeviceTensor", (torch.Tensor,), {"__torch_function__": torch._C._disabled_torch_function_impl}))
    return _made[0]


def wasteful(a: Any, device: Any) -> Any:
    """Send, compute and fetch in every one of a hundred steps."""
    for _ in range(_STEPS):
        there = a.to(device)
        a = (0.99 * there * (1 - there)).cpu()
    return a


def _same(one: Any, other: Any) -> bool:
    """Return whether two tensors are equal up to the rounding that another order of operations causes.

    One step more changes the numbers by 1 %, far more than the tolerance.
    """
    import torch

    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-3)


def check(answer: Any) -> str:
    import torch

    a = torch.linspace(0.1, 0.9, _NUMBERS)
    before, after = Bill(), Bill()
    with _device(before):
        expected = wasteful(a.clone(), "cuda")
    with _device(after):
        result = checking.call(answer, a.clone(), "cuda")
    if isinstance(result, np.ndarray):
        result = torch.from_numpy(result)
    if not isinstance(result, torch.Tensor):
        raise Refused(f"Your function returned {checking.describe(result)}; the check expects a tensor.")
    if not after.operations:
        raise Refused("Nothing ran on the device. Compute with the tensor that a.to(device) returned.")
    if isinstance(result, _class()):
        raise Refused("What you returned is still on the device. Fetch the result with .cpu().")
    if not _same(result, expected):
        raise Refused("The result is not that of a hundred steps. Only the copies may move; the loop still makes every step.")
    if after.operations < _STEPS or not any(_same(result, one) for one in after.fetched):
        raise Refused("What you returned was computed on the CPU. Make all hundred steps on the device, and return what you fetch from it.")
    gain = before.seconds() / after.seconds()
    if gain < _LEAST_GAIN:
        raise Refused(
            f"{after.copies} copies are left and the speed-up is {format_ratio(gain)}; at least {_LEAST_GAIN:g}x is possible. "
            "What is on the device may stay there: no step needs a copy."
        )
    return (
        f"{before.copies} copies became {after.copies}, and {format_seconds(before.seconds())} became {format_seconds(after.seconds())}: "
        f"a speed-up of {format_ratio(gain)} (MODELLED over {EXERCISE_LINK})."
    )

# %% wrong: 200 copies are left
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    for _ in range(100):
        there = a.to(device)
        there = step(there)
        a = there.cpu()
    return a

# %% wrong: 101 copies are left
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    there = a.to(device)
    for _ in range(100):
        there = step(there)
        a = there.cpu()
    return a

# %% wrong: Fetch the result
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    there = a.to(device)
    for _ in range(100):
        there = step(there)
    return there

# %% wrong: a hundred steps
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    there = step(a.to(device))
    return there.cpu()

# %% wrong: Nothing ran on the device
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    for _ in range(100):
        a = step(a)
    return a

# %% wrong: computed on the CPU
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    step(a.to(device)).cpu()
    for _ in range(100):
        a = step(a)
    return a

# %% wrong: computed on the CPU
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    a = step(a.to(device)).cpu()
    for _ in range(99):
        a = step(a)
    return a

# %% wrong: can't convert cuda
def step(v):
    return 0.99 * v * (1 - v)


def frugal(a, device):
    there = a.to(device)
    for _ in range(100):
        there = step(there)
    return there.numpy()

# %% wrong: TypeError
def frugal(a):
    return a
