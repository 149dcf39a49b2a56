"""02.9: one buffer, two libraries."""

# %% exercise
id = "02.9"
title = "one buffer, two libraries"
answer_name = "trio"
unkept = "two arrays that see one buffer exist only in the memory of a kernel"

# %% stub
trio = (..., ..., ...)  # an array, its view in another library, an array that gl.share refuses

# %% hint
# gl.share(a, "torch") returns a tensor that uses the buffer of a NumPy array.

# %% hint
# Both libraries must be able to use the memory as it is. Think of a dtype that one of them does not
# have, or of a tensor that autograd watches.

# %% hint
# torch.zeros(4, requires_grad=True)

# %% solution
import numpy as np
import torch

import gpulab as gl

a = np.zeros(4)
view = gl.share(a, "torch")
refused = torch.zeros(4, requires_grad=True)  # autograd must see every change, so PyTorch keeps its buffer to itself
trio = (a, view, refused)

# %% check
from typing import Any
from gpulab.errors import GpulabError
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused


def check(answer: Any) -> str:
    from gpulab import _backends, arrays

    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        found = checking.describe(answer)
        raise Refused(f"Your answer is {found}; the check expects three things: an array, its view, and an array that gl.share refuses.")
    if any(checking.is_stub(part) for part in answer):
        raise NotAttempted
    array, view, refused = answer
    one, other, third = (_backends.backend_of(part) for part in answer)
    if one is None or other is None or third is None:
        raise Refused("All three must be arrays of NumPy, PyTorch or CuPy.")
    if one.name == other.name:
        raise Refused(f"The first two both belong to {one.name}; the check expects two libraries that see one buffer.")
    if one.pointer(array) != other.pointer(view) or one.nbytes(array) == 0:
        raise Refused(
            "The second is a copy, or begins elsewhere in the buffer: its numbers are at another address. "
            "gl.share makes a view or refuses, and never copies."
        )
    if third.dtype_name(refused) == "bfloat16":
        raise Refused("The text above shows that NumPy has no bfloat16. Find another reason for a refusal.")
    # Only the libraries of the first two arrays are asked. CuPy refuses every array in main memory, so if it were asked too, the right
    # answer would depend on what is installed.
    asked = [name for name in (one.name, other.name) if name != third.name]
    for name in asked:
        try:
            arrays.share(refused, name)
        except GpulabError as error:
            return f"One buffer, two libraries. The third is refused: {error}"
    raise Refused(
        f"With {' and '.join(asked)} the third can be shared without a copy. Try an array that one "
        "of these libraries cannot use as it is."
    )

# %% wrong: The second is a copy
import numpy as np
import torch

a = np.zeros(4)
trio = (a, torch.tensor(a), torch.zeros(4, requires_grad=True))

# %% wrong: can be shared without a copy
import numpy as np
import gpulab as gl

a = np.zeros(4)
trio = (a, gl.share(a, "torch"), np.ones(3))

# %% wrong: no bfloat16. Find another
import numpy as np
import torch
import gpulab as gl

a = np.zeros(4)
trio = (a, gl.share(a, "torch"), torch.zeros(4, dtype=torch.bfloat16))

# %% wrong: both belong to numpy
import numpy as np

a = np.zeros(4)
trio = (a, a[:], a)

# %% wrong: must be arrays
trio = ([0.0], [0.0], [0.0])

# %% wrong: three things
trio = 5
