"""10.9: take it home: a tensor over another library's memory."""

# %% exercise
id = "10.9"
title = "take it home: a tensor over another library's memory"
answer_name = "as_tensor"
live = True
loads = ("torch",)

# %% stub
def as_tensor(x):
    """Return a CPU tensor over the memory of x, or a copy where x is read-only or has another byte order."""
    ...  # torch.from_numpy, torch.from_dlpack, torch.tensor, x.flags.writeable, x.dtype.isnative

# %% hint
# isinstance(x, np.ndarray) separates the first three cases from the last one. torch.from_numpy and
# torch.from_dlpack share memory; torch.tensor copies.

# %% hint
# x.flags.writeable is False for a read-only array. x.copy() can be written to.

# %% hint
# x.astype(x.dtype.newbyteorder("=")) is a copy in this machine's byte order.

# %% solution
import numpy as np
import torch


def as_tensor(x):
    """Return a CPU tensor over the memory of x, or a copy where x is read-only or has another byte order."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    elif not x.flags.writeable:
        x = x.copy()
    return torch.from_numpy(x)

# %% check
import warnings
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons.content import Refused


class ArrayOfAnotherLibrary:
    """An array of a library that PyTorch does not know: it has DLPack, and nothing else."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers

    def __dlpack__(self, **options: Any) -> Any:
        return self._numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._numbers.__dlpack_device__()


def _cases() -> list[tuple[str, Any, Any, bool]]:
    """Return, for each case, (name, object to pass, its numbers as an array, whether the tensor must share its memory)."""
    import torch

    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    columns, doubles = np.asfortranarray(plain + 1), np.arange(6.0).reshape(2, 3)
    part = (plain + 2)[:, ::2]
    sealed = plain + 3
    sealed.flags.writeable = False
    other = (plain + 4).astype(plain.dtype.newbyteorder("S"))
    sealed_other = (doubles + 5).astype(doubles.dtype.newbyteorder("S"))
    sealed_other.flags.writeable = False
    numbers = torch.arange(5, dtype=torch.int32)
    return [
        ("a float32 array", plain, plain, True),
        ("a float64 array", doubles, doubles, True),
        ("an array in column order", columns, columns, True),
        ("a view of every second column", part, part, True),
        ("a read-only array", sealed, sealed, False),
        ("an array in the other byte order", other, other, False),
        ("a read-only array in the other byte order", sealed_other, sealed_other, False),
        ("an array of another library", ArrayOfAnotherLibrary(numbers), numbers.numpy(), True),
    ]


def check(answer: Any) -> str:
    import torch

    ask = checking.in_turn(answer)
    for name, given, numbers, shares in _cases():
        before = numbers.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of a read-only array; the refusal says more
            tensor = ask(f"For {name}", given)
        if not isinstance(tensor, torch.Tensor):
            raise Refused(f"For {name} your function returned {checking.describe(tensor)}. Return a tensor.")
        if not np.array_equal(numbers, before):
            raise Refused(f"For {name} your function changed the caller's numbers. Only make the tensor.")
        _check_numbers(name, tensor, before)
        _check_memory(name, tensor, numbers, shares)
    return "Five arrays share their memory with the tensor, and three that cannot be shared are copied."


def _check_numbers(name: str, tensor: Any, right: np.ndarray) -> None:
    if tensor.device.type != "cpu":
        raise Refused(f"For {name} your tensor is on {tensor.device}. Memory can only be shared where it is: return a CPU tensor.")
    if tuple(tensor.shape) != right.shape:
        raise Refused(f"For {name} your tensor has the shape {tuple(tensor.shape)}; the array has {right.shape}.")
    found = tensor.detach().resolve_conj().resolve_neg().numpy()
    if found.dtype != right.dtype.newbyteorder("="):
        raise Refused(f"For {name} your tensor has the dtype {tensor.dtype}; the array has {right.dtype.name}. Keep the dtype.")
    if not np.array_equal(found, right):
        swap = "" if right.dtype.isnative else " Bytes in the other order must be swapped, not read as they are."
        raise Refused(f"For {name} your tensor has other numbers.{swap}")


def _check_memory(name: str, tensor: Any, numbers: np.ndarray, shares: bool) -> None:
    """Refuse a copy where memory can be shared, and shared memory where it must not be."""
    same = np.shares_memory(tensor.detach().numpy(), numbers)
    if shares and not same:
        raise Refused(f"For {name} you made a copy. Its memory can be shared: from_numpy and from_dlpack do.")
    if same and not shares:
        raise Refused(f"For {name} the tensor shares its memory: writing to the tensor would change an array that is read-only. Make a copy.")

# %% wrong: For a float32 array you made a copy
import torch


def as_tensor(x):
    """Copies everything."""
    return torch.tensor(x)

# %% wrong: the tensor shares its memory
import numpy as np
import torch


def as_tensor(x):
    """Forgets that an array may be read-only."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    return torch.from_numpy(x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("=")))

# %% wrong: For an array in column order you made a copy
import numpy as np
import torch


def as_tensor(x):
    """Makes every array contiguous by rows."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    return torch.from_numpy(np.ascontiguousarray(x))

# %% wrong: dtype
import numpy as np
import torch


def as_tensor(x):
    """Makes float32 of everything."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    return torch.as_tensor(x, dtype=torch.float32)

# %% wrong: byte order
import numpy as np
import torch


def as_tensor(x):
    """Forgets the byte order."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    return torch.from_numpy(x if x.flags.writeable else x.copy())

# %% wrong: has other numbers
import numpy as np
import torch


def as_tensor(x):
    """Reads swapped bytes as they are."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    x = x.view(x.dtype.newbyteorder("="))
    return torch.from_numpy(x if x.flags.writeable else x.copy())

# %% wrong: 'ArrayOfAnotherLibrary' object has no attribute
import numpy as np
import torch


def as_tensor(x):
    """Knows NumPy only."""
    if not x.dtype.isnative:
        return torch.from_numpy(x.astype(x.dtype.newbyteorder("=")))
    return torch.from_numpy(x if x.flags.writeable else x.copy())

# %% wrong: has the shape
import numpy as np
import torch


def as_tensor(x):
    """Turns the array over."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    return torch.from_numpy(x.T)

# %% wrong: Return a tensor
import numpy as np


def as_tensor(x):
    """Stays with NumPy."""
    return np.asarray(x)

# %% wrong: expects a function
as_tensor = 3


# %% wrong: Keep the dtype
import numpy as np
import torch


def as_tensor(x):
    """Return a CPU tensor over the memory of x, or a copy where x is read-only or has another byte order."""
    if not isinstance(x, np.ndarray):
        return torch.from_dlpack(x)
    if not x.dtype.isnative:
        x = x.astype(np.float32)
    elif not x.flags.writeable:
        x = x.copy()
    return torch.from_numpy(x)
